//! What is kept of each second of a run.

use std::time::Duration;

use cairn_block::{Report, Time, Value};
use cairn_sim::drives::{Lengths, Used};

use super::client::Done;

/// One moment of a run. What is counted is counted since the beginning.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Virtual time since the run began.
    pub at: Time,
    /// Dirty sectors of each volume.
    pub dirty: Vec<u64>,
    /// Sectors per second that the controller of each volume allows; none without one.
    pub rate: Vec<Option<u64>>,
    /// Percent of the buckets of each volume's cache that have dirty data or metadata; none without
    /// buckets.
    pub in_use: Vec<Option<u64>>,
    /// How often the cache of each volume had what was read; none without one.
    pub hits: Vec<Option<Hits>>,
    /// Each number that the experiment records, of all volumes together.
    pub counts: Vec<u64>,
    /// What each drive did.
    pub drives: Vec<Used>,
    /// What the clients of each kind did.
    pub clients: Vec<Done>,
    /// How long the processor was busy.
    pub busy: Duration,
}

/// Reads of a cache, as its target counts them: a bcache by extents, a writecache by blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hits {
    /// All of them.
    pub reads: u64,
    /// Of these, those that the cache had.
    pub hits: u64,
}

impl Hits {
    /// What the status of a cache says; none of another target.
    pub(super) fn of(report: &Report) -> Option<Hits> {
        let field = |name| number(report.value(name)?);
        match (field("cache_hits"), field("cache_misses")) {
            (Some(hits), Some(misses)) => Some(Hits { reads: hits + misses, hits }),
            _ => Some(Hits { reads: field("reads")?, hits: field("read_hits")? }),
        }
    }
}

/// A whole run.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// In order of time. The first is that of the beginning, the last that of the end.
    pub samples: Vec<Sample>,
    /// What the clients of each kind did, with the percentiles of the whole run.
    pub clients: Vec<Done>,
    /// It ended as the experiment asks, not only because its time was over.
    pub is_done: bool,
    /// The index of the first sample after all was sent, if the experiment waits for that.
    pub sent: Option<usize>,
    /// How long the dirty data went home that was left then, if the experiment waits for that.
    pub drained: Option<Duration>,
    /// How long the runs of dirty data in the caches were when each phase began, and at the end;
    /// nothing of a run that is one phase.
    pub dirty_runs: Vec<Lengths>,
}

impl Record {
    /// How long it took, in virtual time.
    pub fn took(&self) -> Duration {
        let (first, last) = (self.samples.first(), self.samples.last());
        first.zip(last).map_or(Duration::ZERO, |(first, last)| last.at.since(first.at))
    }

    /// The last sample in which clients still sent something.
    pub fn clients_end(&self) -> &Sample {
        let last = self.samples.len() - 1;
        &self.samples[self.sent.unwrap_or(last)]
    }
}

/// The number of an attribute.
pub(super) fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Counter(number) | Value::Gauge(number) => Some(*number),
        _ => None,
    }
}

#[cfg(test)]
pub mod testing {
    //! Runs in which little happened.

    use super::*;

    /// A moment at which nothing was recorded.
    pub fn nothing_at(second: u64) -> Sample {
        Sample {
            at: Time(second * 1_000_000_000),
            dirty: Vec::new(),
            rate: Vec::new(),
            in_use: Vec::new(),
            hits: Vec::new(),
            counts: Vec::new(),
            drives: Vec::new(),
            clients: Vec::new(),
            busy: Duration::ZERO,
        }
    }

    /// A run without clients that ended as its experiment asks.
    pub fn record(samples: Vec<Sample>) -> Record {
        Record {
            samples,
            clients: Vec::new(),
            is_done: true,
            sent: None,
            drained: None,
            dirty_runs: Vec::new(),
        }
    }
}
