//! Timing models of drives: when each operation ends, in virtual time.
//!
//! A model knows ranges, times and its own figures; it holds no contents and names no target. Its
//! caller ([`Timing`]) sends it arrivals, and asks when the model next has something to do. The
//! model then tells which operations ended.
//!
//! - [`Hdd`]: one arm, command queueing, a volatile write cache. [`Ssd`]: a command path and
//!   parallel units. [`Raid5`]: md's rule over members. Linear and striped volumes are the real
//!   targets over drives.
//! - [`Figures`](HddFigures) of a model stand in one constant, each with its source: *published*
//!   (a row that `cairn lab drives` repeats), or *assumed*.
//! - `queue`: what waits before a drive, where neighbours merge. `geometry`: where sectors are, how
//!   long the arm takes. `places`: what the arm can do next. `runs`: dirty data in a drive's cache;
//!   `cells`: its index. `used`: what a model counts. `slab`: things by number.
//!
//! Promises, which the tests hold:
//! - D1. Each arrival ends exactly once.
//! - D2. A flush ends after everything that had ended when it arrived has left the volatile cache.
//! - D3. The same arrivals at the same times end at the same times on every machine: times are
//!   whole nanoseconds, floating point is used for tables only, with operations that IEEE 754
//!   rounds exactly (+ - * / sqrt), and the only randomness is seeded.
//! - D4. No step looks at more than the drive's queue and the oldest runs of its cache, so that its
//!   cost does not grow with the dirty data.
//!
//! It panics where a caller breaks the rules: time never goes back, and an empty range is for a
//! flush only.

mod cells;
mod geometry;
mod hdd;
mod places;
mod queue;
mod raid5;
mod runs;
pub(crate) mod slab;
mod ssd;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod used;

use cairn_block::{Limits, Nature, Op, SectorRange, Time};

pub use crate::drive::OpId;
pub use hdd::{Hdd, HddFigures};
pub use raid5::{Raid5, Raid5Figures};
pub use ssd::{PathFigures, Ssd, SsdFigures};
pub use used::{Lengths, Used};

/// An operation that reaches a drive.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// Its name. No other operation in flight has it.
    pub id: OpId,
    /// What to do.
    pub op: Op,
    /// Where; empty for a flush.
    pub range: SectorRange,
    /// It is durable when it ends.
    pub is_fua: bool,
}

/// A drive in virtual time.
///
/// The caller delivers all arrivals of one moment, then calls [`Timing::go_on`]: what arrived
/// together merges, as under the block layer's plug.
pub trait Timing: Send {
    /// An operation arrives. It starts at the next [`Timing::go_on`] at the earliest.
    fn arrive(&mut self, now: Time, arrival: Arrival);

    /// When there is something to do next. Never later than the next end of an operation.
    fn next(&self) -> Option<Time>;

    /// Does what is due until `now`, and adds the operations that ended, in order of their ends.
    fn go_on(&mut self, now: Time, ended: &mut Vec<OpId>);

    /// What it did until the last call.
    fn used(&self) -> Used;

    /// What it is made of.
    fn nature(&self) -> Nature;

    /// Its preferred sizes.
    fn limits(&self) -> Limits {
        Limits::default()
    }
}
