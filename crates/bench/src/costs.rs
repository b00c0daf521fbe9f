//! `bench costs`: what the parts of a reactor's work cost the processor. The lab charges these
//! prices in virtual time (`docs/evidence/costs.toml`).
//!
//! - A turn and a poll: tasks that only yield, one or many of them in each turn.
//! - A request: a read hit of bcache, 32 together, its data from a disk that copies nothing.
//! - A KiB of metadata: an entry of bcache's journal is encoded, with its checksum.

use std::hint::black_box;

use cairn_block::yield_once;
use cairn_format::bcache::journal::{self, Header};
use cairn_format::bcache::{Key, Pointer};
use cairn_outcome::failure::Outcome;

use super::bcachefixture::SET;
use super::bcachehits::Hits;
use super::clock::Moment;
use super::fixture::Fixture;
use super::row::{Report, Row, Samples};
use super::sample::{Subject, interleave};
use super::settings::Settings;

const NAME: &str = "costs";
/// Tasks that yield in each turn.
const TASKS: usize = 256;
/// Cached extents of a request's volume.
const EXTENTS: u64 = 100_000;
/// Requests that are sent in each turn.
const TOGETHER: usize = 32;
/// Keys of an entry of the journal.
const ENTRY_KEYS: u64 = 1000;

/// Runs the benchmark.
///
/// # Errors
/// A disk cannot be made or used.
pub fn run(settings: &Settings) -> Outcome<Report> {
    let mut report = Report::default();
    let fixture = Fixture::make()?;
    let turns = settings.pick(200_000, 2_000);
    let hits = Hits::make(settings.pick(EXTENTS, EXTENTS / 10), settings.pick(1_000_000, 10_000))?;
    let subjects: Vec<Subject<'_, f64>> = vec![
        Box::new(|| Ok(yields(&fixture, 1, turns))),
        Box::new(|| Ok(yields(&fixture, TASKS, turns / TASKS))),
        Box::new(|| metadata(&fixture, turns / 100)),
        Box::new(|| hits.ns_each(TOGETHER)),
    ];
    let taken = interleave(settings.runs, subjects)?;
    let [one, many, metadata, request]: [Samples; 4] =
        taken.into_iter().map(Samples).collect::<Vec<_>>().try_into().expect("four subjects");
    // A turn of many tasks costs itself and its polls.
    let poll = many.zip(&one, |many, one| (many - one) / (TASKS - 1) as f64);
    let turn = one.zip(&poll, |one, poll| one - poll);
    for (what, samples, unit) in [
        ("turn", turn, "ns"),
        ("poll", poll, "ns"),
        ("request", request, "ns"),
        ("metadata", metadata, "ns/KiB"),
    ] {
        report.push(Row::new(NAME, samples, unit).with("what", what));
    }
    Ok(report)
}

/// Nanoseconds of a turn in which so many tasks run once.
fn yields(fixture: &Fixture, tasks: usize, turns: usize) -> f64 {
    let took = fixture.on(move |env| async move {
        (1..tasks).for_each(|_| env.spawn(yield_often(turns)));
        // They begin before the clock does.
        yield_once().await;
        let began = Moment::now();
        yield_often(turns).await;
        began.elapsed()
    });
    took.ns_each(turns)
}

async fn yield_often(turns: usize) {
    for _ in 0..turns {
        yield_once().await;
    }
}

/// Nanoseconds for a KiB of an entry of the journal.
fn metadata(fixture: &Fixture, times: usize) -> Outcome<f64> {
    let (took, bytes) = fixture.on(move |_| async move {
        let key = |n: u64| Key::new(0, n * 8, 8).with_dirty(true).at(Pointer(n << 16));
        let keys: Vec<Key> = (1..=ENTRY_KEYS).map(key).collect();
        let (uuids, root) = (key(1), key(2));
        let header = Header {
            seq: 1,
            last_seq: 1,
            has_long_uuids: true,
            uuids,
            root,
            root_level: 0,
            priorities: 1,
        };
        let (magic, mut bytes) = (SET.set_magic(), 0);
        let began = Moment::now();
        for _ in 0..times {
            bytes = black_box(journal::encode(&header, black_box(&keys), magic, 4096)).len();
        }
        (began.elapsed(), bytes)
    });
    Ok(took.ns_each(times) * 1024.0 / bytes as f64)
}
