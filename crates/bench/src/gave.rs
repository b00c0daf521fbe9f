//! [`Gave`]: what the requests of a client gave: how many a second in wall time, and processor time
//! of each. [`tell`] makes the rows of clients that had their turns at the same job.

use std::sync::Arc;

use cairn_block::Disk;
use cairn_outcome::failure::Outcome;

use super::clock::{Took, process_time};
use super::fixture::Fixture;
use super::load::{self, Job};
use super::row::{Report, Row, Samples};

/// What a job gave.
#[derive(Clone, Copy, Debug)]
pub struct Gave {
    /// Requests a second.
    pub per_s: f64,
    /// Microseconds of processor time of the client per request.
    pub processor_us: f64,
}

/// A unit and where to find the figure.
type Figure = (&'static str, fn(&Gave) -> f64);

const FIGURES: [Figure; 2] =
    [("requests/s", |gave| gave.per_s), ("client us/request", |gave| gave.processor_us)];

impl Gave {
    /// Of so many requests.
    pub fn of(took: Took, requests: usize) -> Gave {
        let per_s = requests as f64 / took.wall.as_secs_f64().max(1e-9);
        Gave { per_s, processor_us: took.us_each(requests) }
    }

    /// What a job on a disk gives, with the processor time of all threads of this process.
    ///
    /// # Errors
    /// A request failed.
    pub fn by_all_threads(fixture: &Fixture, disk: &Arc<dyn Disk>, job: &Job) -> Outcome<Gave> {
        let before = process_time();
        let wall = load::run(fixture, disk, job)?.wall;
        let processor = process_time().saturating_sub(before);
        Ok(Gave::of(Took { processor, wall }, job.requests()))
    }
}

/// Adds two rows for each of `names`: `row` begins one. The last is the baseline of the others.
pub fn tell<const N: usize>(
    report: &mut Report,
    names: [&'static str; N],
    taken: &[Vec<Gave>],
    row: impl Fn(Samples, &'static str, &'static str) -> Row,
) {
    for (unit, of) in FIGURES {
        let samples = |client: usize| Samples(taken[client].iter().map(of).collect());
        let last = N - 1;
        for (client, name) in names.into_iter().enumerate() {
            let row = row(samples(client), unit, name);
            report.push(match client == last {
                true => row,
                false => row.with("beside", names[last]).against(&samples(last)),
            });
        }
    }
}
