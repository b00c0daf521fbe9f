//! Workloads: what clients ask for, one operation at a time, from a seed.
//!
//! - [`Source`]: tells its next [`Operation`]. [`Client`]: an order of places, sizes, a share of
//!   reads, a kind of durability and a pause. [`Mixture`]: several sources by weight. [`Burst`]:
//!   much at once, at equal distances in time.
//! - [`clients`]: several clients of one kind, each with a seed of its own.
//! - `places`: where operations go. `zipf`: ranks by Zipf's law. `pause`: think time.
//!
//! Promises, which the tests hold:
//! - W1. The same seed gives the same operations on every machine: integers, and + - * / and sqrt
//!   of IEEE 754 where a real number is needed.
//! - W2. Each range lies in the region of its source, and starts at a multiple of the smallest size
//!   from the region's start.
//! - W3. [`Source::next`] allocates nothing, and its time does not grow with the region.
//! - W4. Sources end never. Who asks decides when a workload is over.

mod burst;
mod client;
mod pause;
mod places;
#[cfg(test)]
mod testing;
mod zipf;

use std::time::Duration;

use cairn_block::{Op, Sector, SectorCount, SectorRange, Time};

pub use burst::Burst;
pub use client::{Behaviour, Client, Durability, clients};
pub use pause::Pause;
pub use places::Order;

/// One operation of a client.
///
/// A client that keeps one operation in flight starts the next one when `think` has passed since
/// the end of the one before, and never before `not_before`. One that keeps more in flight starts
/// it when it has room, after the same times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Operation {
    /// What.
    pub op: Op,
    /// Where; empty for a flush.
    pub range: SectorRange,
    /// Durable when it ends.
    pub is_fua: bool,
    /// How long the client waits before it.
    pub think: Duration,
    /// The earliest moment of its start, from the start of the workload.
    pub not_before: Time,
}

impl Operation {
    /// An operation on `count` sectors from `start`, without waiting.
    pub fn new(op: Op, start: u64, count: u64) -> Operation {
        Operation::on(op, SectorRange::new(Sector(start), SectorCount(count)))
    }

    /// An operation on a range, without waiting.
    pub fn on(op: Op, range: SectorRange) -> Operation {
        Operation { op, range, is_fua: false, think: Duration::ZERO, not_before: Time(0) }
    }

    /// A flush.
    pub fn flush() -> Operation {
        Operation::new(Op::Flush, 0, 0)
    }

    /// The same for a device of such blocks: reads and writes are widened to whole blocks, as a
    /// client of the device would send them, and discards narrowed; none if nothing is left.
    #[must_use]
    pub fn of_whole_blocks(self, block: SectorCount) -> Option<Operation> {
        let down = |sector: u64| sector / block.0 * block.0;
        let up = |sector: u64| sector.next_multiple_of(block.0);
        let (start, end) = (self.range.start.0, self.range.end().0);
        let (start, end) = match self.op {
            Op::Flush => return Some(self),
            Op::Discard => (up(start), down(end)),
            _ => (down(start), up(end)),
        };
        let range = SectorRange::between(Sector(start), Sector(end.max(start)));
        (!range.is_empty()).then_some(Operation { range, ..self })
    }
}

/// Tells operations, one after another.
pub trait Source {
    /// The next operation.
    fn next(&mut self) -> Operation;
}

/// Several sources, of which each operation comes from one by weight.
///
/// A source that waits (by think time, or as a [`Burst`]) makes the whole mixture wait: sources
/// that do not wait for each other are separate clients.
pub struct Mixture {
    sources: Vec<(u32, Box<dyn Source>)>,
    sum: u64,
    rng: fastrand::Rng,
}

impl Mixture {
    /// A mixture of sources with their weights.
    ///
    /// # Panics
    /// If no weight is above zero.
    pub fn new(sources: Vec<(u32, Box<dyn Source>)>, seed: u64) -> Mixture {
        let sum = sources.iter().map(|(weight, _)| u64::from(*weight)).sum();
        assert!(sum > 0, "a mixture has something in it");
        Mixture { sources, sum, rng: fastrand::Rng::with_seed(seed) }
    }
}

impl Source for Mixture {
    fn next(&mut self) -> Operation {
        let weights = self.sources.iter().map(|(weight, _)| u64::from(*weight));
        let chosen = choose(weights, self.sum, &mut self.rng);
        self.sources[chosen].1.next()
    }
}

/// The index of one of the weights, each as likely as it is heavy. Their sum is not zero.
fn choose(weights: impl Iterator<Item = u64>, sum: u64, rng: &mut fastrand::Rng) -> usize {
    let mut at = rng.u64(..sum);
    for (i, weight) in weights.enumerate() {
        if at < weight {
            return i;
        }
        at -= weight;
    }
    unreachable!("a number below the sum falls into one of the weights")
}

#[cfg(test)]
mod tests {
    use cairn_block::{Op, SectorCount};

    use super::testing::{assert_fits, take};
    use super::{Mixture, Operation, Source};

    #[test]
    fn operations_on_parts_of_blocks_are_widened_and_discards_narrowed() {
        let cases = [
            (Op::Write, (8, 8), Some((8, 8))),
            (Op::Write, (7, 2), Some((0, 16))),
            (Op::Read, (9, 1), Some((8, 8))),
            (Op::Discard, (7, 10), Some((8, 8))),
            (Op::Discard, (8, 8), Some((8, 8))),
            (Op::Discard, (9, 7), None),
            (Op::Discard, (1, 2), None),
            (Op::Flush, (0, 0), Some((0, 0))),
        ];
        for (op, (start, count), expected) in cases {
            let whole = Operation::new(op, start, count).of_whole_blocks(SectorCount(8));
            let expected = expected.map(|(start, count)| Operation::new(op, start, count));
            assert_eq!(whole, expected, "{op:?} {start}+{count}");
        }
    }

    struct Constant(u64);

    impl Source for Constant {
        fn next(&mut self) -> Operation {
            Operation::new(Op::Write, self.0, 1)
        }
    }

    #[test]
    fn mixture_takes_from_its_sources_by_weight() {
        let source = |i| Box::new(Constant(i)) as Box<dyn Source>;
        let weights = [5, 0, 1, 14];
        let sources = (0..).zip(weights).map(|(i, weight)| (weight, source(i))).collect();
        let mut counts = [0; 4];
        for operation in take(&mut Mixture::new(sources, 1), 40_000) {
            counts[operation.range.start.0 as usize] += 1;
        }
        assert_fits(&counts, &[0.25, 0.0, 0.05, 0.7]);
    }
}
