//! [`Processor`]: how long the turns of a reactor take in a world of events. The time is charged by
//! what was done, not measured, so that a run is the same on every machine.
//!
//! It is charged after the turn: what a turn sends to drives reaches them at its beginning. What
//! the simulator itself asks for (a flush or FUA write passes the gate of its drive in a task)
//! costs nothing. Copies of data have no price: requests pass their data on without a copy.

use std::cell::Cell;
use std::time::Duration;

use cairn_reactor::Core;

/// What work costs the processor, in picoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prices {
    /// A turn of the reactor.
    pub turn: u64,
    /// A request, of a client or of a target, through all layers.
    pub request: u64,
    /// A task that runs once.
    pub poll: u64,
    /// A KiB of metadata that is written: it is encoded, and has a checksum.
    pub metadata_kib: u64,
}

impl Prices {
    /// Work costs nothing, but for a nanosecond each turn.
    pub const FREE: Prices = Prices { turn: 0, request: 0, poll: 0, metadata_kib: 0 };
}

/// What a processor did.
#[derive(Clone, Copy, Default)]
struct Done {
    requests: u64,
    polls: u64,
    metadata_bytes: u64,
}

/// How often the task of a request that passes a gate runs.
const GATE_POLLS: u64 = 2;

/// See the module's description.
pub(crate) struct Processor {
    prices: Prices,
    done: Cell<Done>,
    busy_ps: Cell<u64>,
}

impl Processor {
    pub fn new(prices: Prices) -> Processor {
        Processor { prices, done: Cell::default(), busy_ps: Cell::default() }
    }

    /// The reactor has made a turn. Since the beginning this much metadata was written, and so many
    /// requests passed gates. Answers how many nanoseconds the turn takes, at least one.
    pub fn charge(&self, core: &Core, metadata_bytes: u64, gated: u64) -> u64 {
        let before = self.done.get();
        let done = Done {
            requests: core.env().requests_ended().saturating_sub(gated).max(before.requests),
            polls: core.polled().saturating_sub(gated * GATE_POLLS).max(before.polls),
            metadata_bytes,
        };
        let prices = &self.prices;
        let cost = prices.turn
            + prices.request * (done.requests - before.requests)
            + prices.poll * (done.polls - before.polls)
            + prices.metadata_kib * (done.metadata_bytes - before.metadata_bytes) / 1024;
        self.done.set(done);
        let (before_ps, after_ps) = (self.busy_ps.get(), self.busy_ps.get() + cost.max(1000));
        self.busy_ps.set(after_ps);
        // Fractions are carried over.
        (after_ps / 1000 - before_ps / 1000).max(1)
    }

    pub fn busy(&self) -> Duration {
        Duration::from_nanos(self.busy_ps.get() / 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DriveOptions, Image, SimWorld};
    use cairn_block::{Disk, Io, Sector, SectorCount, SectorRange};
    use std::sync::Arc;

    /// How long a world of events takes for 100 reads of a drive whose own time is left out.
    fn busy(prices: Prices) -> Duration {
        let world = SimWorld::of_events(1, prices);
        let disk: Arc<dyn Disk> =
            world.add_drive(DriveOptions::named("a"), Image::new(SectorCount(64)));
        world.block_on(0, move |env| async move {
            for _ in 0..100 {
                let range = SectorRange::new(Sector(8), SectorCount(8));
                env.io(&disk, Io::read(range, env.segs(range.count))).await.unwrap();
            }
        });
        world.busy()
    }

    #[test]
    fn work_takes_the_time_of_its_prices() {
        let free = busy(Prices::FREE);
        assert!(free < Duration::from_micros(1), "a nanosecond each turn: {free:?}");
        let request = busy(Prices { request: 3_000_000, ..Prices::FREE });
        assert!((request.as_micros()).abs_diff(300) <= 1, "{request:?}");
        let poll = busy(Prices { poll: 2_000_000, ..Prices::FREE });
        assert!((200..=206).contains(&poll.as_micros()), "one for each, one first: {poll:?}");
    }
}
