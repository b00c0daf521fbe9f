//! `cairn lab workers`: how many times as much as one worker up to 64 workers do that write to an
//! origin with a snapshot, if only locks limit them. A model, not a measurement.
//!
//! # The model
//! Each worker has a processor of its own and writes to a slice of its own. A request takes the
//! worker's own time, and then the one lock that workers share most, in the order of arrival. Both
//! times vary (exponentially, around their means), so this is a closed queueing network with one
//! station and a delay. Its exact solution is by mean value analysis (Reiser and Lavenberg, 1980):
//! with `n` workers a request is `held * (1 + q)` at the lock, where `q` is how many are there on
//! average with `n - 1` workers.
//!
//! # What it does not know
//! - Memory that all processors share, and its caches: copies cost what they cost one worker.
//! - What a processor pays for a lock that another one had, and for a thread that sleeps.
//! - All locks but the one that is held longest.

use std::path::Path;

use cairn_outcome::failure::Outcome;
use cairn_outcome::stdout;
use serde::Deserialize;

use crate::experiment::verb::write_files;
use crate::page::{Axis, Chart, Line, Page, Part, Section, Table};

/// The figures that were measured, with their date and machine.
const TEXT: &str = include_str!("../../../docs/evidence/locks.toml");
/// The name of the page.
const NAME: &str = "workers";
/// Workers of a table's rows.
const SHOWN: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
const MOST: usize = 64;
/// What stands above the comparison with what was measured.
const CHECK: &str = "Measured: requests of two workers in the same time of each one's processor. \
                     They shared memory, and passed locks from one processor to the other, which \
                     the model does not count. Where it does not agree, what it shows for more \
                     workers is what the lock that is held longest would allow, and no forecast.";
/// A model agrees with what was measured within so much of it.
const AGREES: f64 = 0.1;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Measured {
    date: String,
    machine: String,
    request: Vec<Request>,
}

/// A kind of request. Times are in picoseconds.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    name: String,
    busy: u64,
    held: u64,
    held_single: u64,
    two: f64,
    two_single: f64,
}

/// One line of the plot: a kind of request with one of the two ways to lock.
struct Case<'a> {
    request: &'a Request,
    locks: &'static str,
    held: u64,
    /// Measured with two workers.
    two: f64,
}

impl Request {
    fn cases(&self) -> [Case<'_>; 2] {
        let case = |locks, held, two| Case { request: self, locks, held, two };
        [case("groups", self.held, self.two), case("one lock", self.held_single, self.two_single)]
    }
}

impl Case<'_> {
    fn name(&self) -> String {
        format!("{}, {}", self.request.name, self.locks)
    }

    /// How many times as much as one worker so many do, for each number of workers up to the last.
    fn speedups(&self) -> Vec<f64> {
        speedups(self.request.busy.saturating_sub(self.held) as f64, self.held as f64, MOST)
    }
}

/// See the module's description: from one worker on. `own` and `held` are the times of a request.
fn speedups(own: f64, held: f64, most: usize) -> Vec<f64> {
    let alone = 1.0 / (own + held);
    let mut queued = 0.0;
    let more = (1..=most).map(|workers| {
        let at_lock = held * (1.0 + queued);
        let rate = workers as f64 / (own + at_lock);
        queued = rate * at_lock;
        rate / alone
    });
    more.collect()
}

/// Prints the table, and writes the page into a folder.
///
/// # Errors
/// A file cannot be written.
pub fn run(out: Option<&Path>, json: bool) -> Outcome<u8> {
    let measured: Measured = toml::from_str(TEXT).expect("the file of locks is well formed");
    let page = page(&measured);
    if let Some(out) = out {
        write_files(out, page.files(NAME))?;
    }
    stdout::print(&if json { page.json() } else { page.summary() })
}

fn page(measured: &Measured) -> Page {
    let cases: Vec<Case<'_>> = measured.request.iter().flat_map(Request::cases).collect();
    let fact = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    Page {
        title: "A model: workers that write to an origin with a snapshot".to_owned(),
        introduction:
            "This is a model, not a measurement. Each write is the first to its chunk of \
                       4 KiB, whose old data goes to the snapshot's store. Only the lock that is \
                       held longest limits the workers: each has a processor of its own, and \
                       drives and memory never limit. The cost of passing a lock from one \
                       processor to another is not in it."
                .to_owned(),
        facts: vec![
            fact("measured on", &measured.date),
            fact("measured with", &measured.machine),
            fact("groups", "exceptions have a lock for each group of them, as in cairn"),
            fact("one lock", "the same program with one lock for all exceptions"),
        ],
        sections: vec![
            Section {
                title: "The model".to_owned(),
                parts: vec![Part::Chart(chart(&cases)), Part::Table(table(&cases))],
            },
            Section {
                title: "Beside what was measured".to_owned(),
                parts: vec![Part::Text(CHECK.to_owned()), Part::Table(check(&cases))],
            },
        ],
    }
}

fn chart(cases: &[Case<'_>]) -> Chart {
    let line = |case: &Case<'_>| {
        let speedups = case.speedups().into_iter().enumerate();
        Line::new(&case.name(), speedups.map(|(at, speedup)| ((at + 1) as f64, speedup)))
    };
    Chart {
        title: "Requests per second beside one worker (a model)".to_owned(),
        x: Axis::linear("workers", ""),
        y: Axis::linear("times one worker", ""),
        lines: cases.iter().map(line).collect(),
        ..Chart::default()
    }
}

fn table(cases: &[Case<'_>]) -> Table {
    let columns: Vec<String> = ["request", "of it with the lock, %"]
        .map(str::to_owned)
        .into_iter()
        .chain(SHOWN.map(|workers| format!("{workers}")))
        .collect();
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let mut table = Table::new("Times one worker, by the number of workers (a model)", &columns);
    for case in cases {
        let share = 100.0 * case.held as f64 / case.request.busy as f64;
        let speedups = case.speedups();
        let mut row = vec![case.name(), format!("{share:.1}")];
        row.extend(SHOWN.map(|workers| format!("{:.2}", speedups[workers - 1])));
        table.row(&row.iter().map(String::as_str).collect::<Vec<_>>());
    }
    table
}

fn check(cases: &[Case<'_>]) -> Table {
    let columns = ["request", "measured", "model", "within 10 %"];
    let mut table = Table::new("Two workers beside one", &columns);
    for case in cases {
        let model = case.speedups()[1];
        let agrees = if (model / case.two - 1.0).abs() <= AGREES { "yes" } else { "no" };
        let (measured, model) = (format!("{:.2}", case.two), format!("{model:.2}"));
        table.row(&[&case.name(), &measured, &model, agrees]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The long-run shares of a worker's states, by counting them: `n` workers, each of which is
    /// away for `own` or waits for the lock, both exponential. How often per time unit one leaves.
    fn rate_by_states(own: f64, held: f64, workers: usize) -> f64 {
        // The share of the state with k workers at the lock, as a multiple of that with none.
        let mut shares = vec![1.0];
        for at_lock in 1..=workers {
            let away = (workers - at_lock + 1) as f64;
            shares.push(shares[at_lock - 1] * away * held / own);
        }
        let all: f64 = shares.iter().sum();
        (1.0 - shares[0] / all) / held
    }

    #[test]
    fn speedups_are_those_of_the_chain_of_states() {
        for (own, held) in [(900.0, 100.0), (500.0, 500.0), (999.0, 1.0)] {
            let alone = 1.0 / (own + held);
            for (at, speedup) in speedups(own, held, 16).into_iter().enumerate() {
                let by_states = rate_by_states(own, held, at + 1) / alone;
                assert!((speedup / by_states - 1.0).abs() < 1e-9, "{own} {held} {at}");
            }
        }
    }

    #[test]
    fn many_workers_do_no_more_than_the_lock_lets_through() {
        let most = speedups(800.0, 200.0, 64);
        assert!((most[0] - 1.0).abs() < 1e-12);
        assert!(most.is_sorted() && most[63] <= 5.0 && most[63] > 4.99);
        assert!(speedups(1000.0, 0.0, 64)[63] > 63.9, "nothing is shared");
    }

    #[test]
    fn every_page_says_that_it_is_a_model() {
        let measured: Measured = toml::from_str(TEXT).unwrap();
        let page = page(&measured);
        assert!(page.title.starts_with("A model") && page.html().contains("not a measurement"));
        assert!(measured.request.iter().all(|one| one.held_single < one.busy));
    }
}
