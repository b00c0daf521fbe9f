//! [`Compared`]: a run of the trace and its figures.

use std::time::Duration;

use super::advice::Figures;
use super::setup::Setup;
use crate::experiment::record::{Record, Sample};

/// A year of 365 days.
const YEAR: Duration = Duration::from_secs(365 * 86_400);

/// A run.
pub struct Compared {
    /// What ran.
    pub setup: Setup,
    /// What it did.
    pub figures: Figures,
    /// In order of time.
    pub samples: Vec<Sample>,
}

impl Compared {
    /// Of a run on a cache drive to which so many bytes may be written, and of a trace that takes
    /// so long by itself.
    pub fn of(setup: Setup, record: Record, endurance: Option<u64>, span: Duration) -> Compared {
        let done = record.clients[0];
        let first = record.samples.first().expect("a run has a beginning");
        let last = record.samples.last().expect("a run has an end");
        let end = record.clients_end();
        let written = |drive: usize| {
            let used = last.drives[drive] - first.drives[drive];
            used.written_sectors * 512
        };
        let hits = |sample: &Sample| sample.hits[0];
        let hit_percent = hits(first).zip(hits(end)).and_then(|(first, end)| {
            let (reads, hits) = (end.reads - first.reads, end.hits - first.hits);
            (reads > 0).then(|| 100.0 * hits as f64 / reads as f64)
        });
        let took = Duration::from_nanos(done.last_end.0);
        let cache_written = setup.cache.as_ref().map(|_| written(1));
        let years = endurance
            .zip(cache_written)
            .and_then(|(endurance, written)| years(endurance, written, took.max(span)));
        let figures = Figures {
            label: setup.label(),
            cache_bytes: setup.cache.as_ref().map(|cache| cache.bytes),
            is_writeback: setup.kind.is_writeback(),
            is_whole: record.sent.is_some(),
            took,
            operations: done.operations,
            bytes: done.read_bytes + done.written_bytes,
            mean_ns: done.waited_ns as f64 / done.operations.max(1) as f64,
            percentiles_ns: [done.p50_ns, done.p99_ns, done.p999_ns],
            hit_percent,
            backing_busy_percent: busy_percent(first, end),
            backing_written: written(0),
            cache_written,
            years,
            dirty_bytes: end.dirty[0] * 512,
            drained: record.drained,
        };
        Compared { setup, figures, samples: record.samples }
    }
}

/// How much of the time between two samples the backing device was busy: its arms, if it has some.
fn busy_percent(first: &Sample, end: &Sample) -> f64 {
    let used = end.drives[0] - first.drives[0];
    let nanos = (end.at.0 - first.at.0).max(1) * used.arms.max(1);
    100.0 * used.busy_ns() as f64 / nanos as f64
}

/// How long a drive lasts to which so much is written in so long, without a pause; none if nothing
/// is written.
fn years(endurance: u64, written: u64, period: Duration) -> Option<f64> {
    let rate = written as f64 / period.as_secs_f64();
    (rate > 0.0 && rate.is_finite()).then(|| endurance as f64 / rate / YEAR.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drive_lasts_as_long_as_its_endurance_takes_at_the_rate_of_the_trace() {
        let day = Duration::from_secs(86_400);
        assert_eq!(years(365_000, 1000, day), Some(1.0));
        assert_eq!(years(365_000, 1000, 2 * day), Some(2.0));
        assert_eq!(years(365_000, 0, day), None);
        assert_eq!(years(365_000, 5, Duration::ZERO), None);
    }
}
