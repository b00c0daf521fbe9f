//! What a model counts, and when it has something to do.

use std::ops::{Add, Sub};

use cairn_block::{Op, SectorCount, Time};

use super::Arrival;

/// What a drive did. Times are nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// The arm moved, or the drive changed heads.
    pub seek_ns: u64,
    /// The arm waited for a sector.
    pub rotation_ns: u64,
    /// Data passed under the arm; of a drive without one, through its command path.
    pub transfer_ns: u64,
    /// The arm was kept busy by something else: ends of flushes, reports of FUA writes.
    pub other_ns: u64,
    /// The arm, or the command path, had nothing to do.
    pub idle_ns: u64,
    /// Arrivals, flushes among them.
    pub requests: u64,
    /// Of these, writes and write-zeroes.
    pub writes: u64,
    /// Arrivals that joined a neighbour that waited.
    pub merges: u64,
    /// Operations of the medium: of the arm, or of the command path.
    pub operations: u64,
    /// Arrivals of reads, in sectors.
    pub read_sectors: u64,
    /// Arrivals of writes and write-zeroes, in sectors.
    pub written_sectors: u64,
    /// How far the arm moved.
    pub seek_cylinders: u64,
    /// Flushes that the drive did; several that wait share one.
    pub flushes: u64,
    /// Arms, or command paths, whose times these are.
    pub arms: u64,
    /// Operations in flight, integrated over time: divided by the time, the mean queue depth.
    pub depth_ns: u64,
    /// Rows of an array with parity that were written whole: nothing was read for their parity.
    pub whole_rows: u64,
    /// Rows of an array with parity that were written in part.
    pub part_rows: u64,
    /// The writes by their lengths.
    pub lengths: Lengths,
}

/// How many of something had at most 4 KiB, and more up to 8, 16, and so on up to 512 KiB; the last
/// is how many had more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lengths(pub [u64; Lengths::CLASSES]);

impl Lengths {
    /// Classes of lengths.
    pub const CLASSES: usize = 9;

    /// Counts one of so many sectors.
    pub fn count(&mut self, sectors: u64) {
        let class = sectors.div_ceil(8).next_power_of_two().ilog2() as usize;
        self.0[class.min(Lengths::CLASSES - 1)] += 1;
    }
}

impl Add for Lengths {
    type Output = Lengths;
    fn add(self, other: Lengths) -> Lengths {
        Lengths(std::array::from_fn(|class| self.0[class] + other.0[class]))
    }
}

impl Sub for Lengths {
    type Output = Lengths;
    fn sub(self, before: Lengths) -> Lengths {
        Lengths(std::array::from_fn(|class| self.0[class] - before.0[class]))
    }
}

impl Used {
    /// How long all arms were busy, in nanoseconds.
    pub fn busy_ns(&self) -> u64 {
        self.seek_ns + self.rotation_ns + self.transfer_ns + self.other_ns
    }
}

impl Sub for Used {
    type Output = Used;
    /// What a drive did between two moments; its arms are those of both.
    fn sub(self, before: Used) -> Used {
        Used {
            seek_ns: self.seek_ns - before.seek_ns,
            rotation_ns: self.rotation_ns - before.rotation_ns,
            transfer_ns: self.transfer_ns - before.transfer_ns,
            other_ns: self.other_ns - before.other_ns,
            idle_ns: self.idle_ns.saturating_sub(before.idle_ns),
            requests: self.requests - before.requests,
            writes: self.writes - before.writes,
            merges: self.merges - before.merges,
            operations: self.operations - before.operations,
            read_sectors: self.read_sectors - before.read_sectors,
            written_sectors: self.written_sectors - before.written_sectors,
            seek_cylinders: self.seek_cylinders - before.seek_cylinders,
            flushes: self.flushes - before.flushes,
            arms: self.arms,
            depth_ns: self.depth_ns - before.depth_ns,
            whole_rows: self.whole_rows - before.whole_rows,
            part_rows: self.part_rows - before.part_rows,
            lengths: self.lengths - before.lengths,
        }
    }
}

impl Add for Used {
    type Output = Used;
    fn add(self, other: Used) -> Used {
        Used {
            seek_ns: self.seek_ns + other.seek_ns,
            rotation_ns: self.rotation_ns + other.rotation_ns,
            transfer_ns: self.transfer_ns + other.transfer_ns,
            other_ns: self.other_ns + other.other_ns,
            idle_ns: self.idle_ns + other.idle_ns,
            requests: self.requests + other.requests,
            writes: self.writes + other.writes,
            merges: self.merges + other.merges,
            operations: self.operations + other.operations,
            read_sectors: self.read_sectors + other.read_sectors,
            written_sectors: self.written_sectors + other.written_sectors,
            seek_cylinders: self.seek_cylinders + other.seek_cylinders,
            flushes: self.flushes + other.flushes,
            arms: self.arms + other.arms,
            depth_ns: self.depth_ns + other.depth_ns,
            whole_rows: self.whole_rows + other.whole_rows,
            part_rows: self.part_rows + other.part_rows,
            lengths: self.lengths + other.lengths,
        }
    }
}

/// No event is planned.
pub(super) const NEVER: Time = Time(u64::MAX);

/// Counts what arrives and ends, and keeps the time of a model and of its next event.
pub(super) struct Meter {
    pub used: Used,
    now: Time,
    depth: u64,
    next: Time,
}

impl Default for Meter {
    fn default() -> Meter {
        Meter { used: Used::default(), now: Time(0), depth: 0, next: NEVER }
    }
}

impl Meter {
    pub fn now(&self) -> Time {
        self.now
    }

    pub fn advance(&mut self, now: Time) {
        assert!(now >= self.now, "time never goes back");
        self.used.depth_ns += self.depth * (now.0 - self.now.0);
        self.now = now;
    }

    /// When the model has something to do next. It is kept, since it is asked for more often than
    /// it changes.
    pub fn next(&self) -> Option<Time> {
        (self.next != NEVER).then_some(self.next)
    }

    /// The time of the next event, if it is due. One that was due before the last arrival takes
    /// place at the time of that.
    pub fn due(&self, now: Time) -> Option<Time> {
        self.next().filter(|next| *next <= now).map(|next| next.max(self.now))
    }

    /// The model did all that was due; its next event is at this time, or [`NEVER`].
    pub fn plan(&mut self, next: Time) {
        self.next = next;
    }

    /// An arrival is an event.
    pub fn arrived(&mut self, now: Time, arrival: &Arrival) {
        self.advance(now);
        self.next = self.next.min(now);
        self.depth += 1;
        self.used.requests += 1;
        let SectorCount(count) = arrival.range.count;
        assert!((count == 0) == (arrival.op == Op::Flush), "only a flush has no range");
        match arrival.op {
            Op::Read => self.used.read_sectors += count,
            Op::Write | Op::WriteZeroes => {
                self.used.writes += 1;
                self.used.lengths.count(count);
                self.used.written_sectors += count;
            }
            Op::Flush | Op::Discard => {}
        }
    }

    pub fn ended(&mut self, count: usize) {
        self.depth -= count as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_counted_by_the_power_of_two_that_they_fit_into() {
        let mut lengths = Lengths::default();
        for kib in [1, 4, 5, 8, 9, 512, 513, 1024, 4096] {
            lengths.count(kib * 2);
        }
        assert_eq!(lengths.0, [2, 2, 1, 0, 0, 0, 0, 1, 3]);
        let twice = Used { lengths, ..Used::default() } + Used { lengths, ..Used::default() };
        assert_eq!((twice - Used { lengths, ..Used::default() }).lengths, lengths);
    }
}
