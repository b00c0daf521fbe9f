//! What is kept of each second of a run.

use std::time::Duration;

use cairn_block::{Time, Value};
use cairn_sim::drives::Used;

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
    /// What each drive did.
    pub drives: Vec<Used>,
    /// What the clients of each kind did.
    pub clients: Vec<Done>,
    /// How long the processor was busy.
    pub busy: Duration,
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
}

impl Record {
    /// How long it took, in virtual time.
    pub fn took(&self) -> Duration {
        let (first, last) = (self.samples.first(), self.samples.last());
        first.zip(last).map_or(Duration::ZERO, |(first, last)| last.at.since(first.at))
    }
}

/// The number of an attribute.
pub(super) fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Counter(number) | Value::Gauge(number) => Some(*number),
        _ => None,
    }
}
