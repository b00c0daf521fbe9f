//! [`Ssd`]: a drive without an arm: a command path that passes one operation after another, and
//! units that work in parallel behind it.
//!
//! An operation occupies the path for a fixed time and one by its length, which bounds operations
//! per second and bandwidth. Then it occupies a unit for its latency, with a seeded spread, so that
//! operations overtake each other. A flush takes a fixed time if something was written since the
//! last one began, and next to nothing otherwise; one is under way at a time, and those that wait
//! share the next. A FUA write takes a flush longer.
//!
//! A write ends in the drive's memory, a flush only takes time: nothing is destaged that D2 could
//! miss. Deliberately absent: garbage collection and the slower writes of a drive that is full, of
//! which no figures are published here.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::time::Duration;

use cairn_block::{Nature, Op, SectorCount, Shape, Time};

use super::geometry::nanos;
use super::queue::{HostQueue, Operation};
use super::slab::Slab;
use super::used::{Meter, NEVER, Used};
use super::{Arrival, OpId, Timing};

/// The figures of one direction.
#[derive(Clone, Copy, Debug)]
pub struct PathFigures {
    /// The command path is occupied for this long.
    pub command: Duration,
    /// In addition per KiB, in nanoseconds: the bandwidth.
    pub ns_per_kib: u64,
    /// A unit is occupied for this long.
    pub latency: Duration,
}

/// The figures of a drive without an arm.
#[derive(Clone, Copy, Debug)]
pub struct SsdFigures {
    /// Reads.
    pub read: PathFigures,
    /// Writes, write-zeroes (without data) and discards (without data).
    pub write: PathFigures,
    /// The latency varies by up to this, evenly.
    pub spread_percent: u64,
    /// Units that work in parallel.
    pub units: usize,
    /// Operations that the drive holds at a time.
    pub queue: usize,
    /// The longest operation that neighbours merge to.
    pub longest: SectorCount,
    /// A flush of written data; also what FUA adds to a write.
    pub flush: Duration,
    /// A flush waits until the drive has no other command, and keeps others out (SATA).
    pub flush_alone: bool,
    /// Completed writes may be lost in a power cut until a flush.
    pub volatile: bool,
}

/// Nothing written: a flush only crosses the link.
const EMPTY_FLUSH: Duration = Duration::from_micros(5);

impl SsdFigures {
    /// A SATA drive without power-loss protection.
    pub const SATA: SsdFigures = SsdFigures {
        // Published: 560 and 530 MB/s; 120 and 44 us for 4 KiB; 64 000 to 69 000 per second with
        // 32 in flight: the path takes 15 us.
        read: PathFigures {
            command: Duration::from_nanos(7_700),
            ns_per_kib: 1_828,
            latency: Duration::from_nanos(105_000),
        },
        write: PathFigures {
            command: Duration::from_nanos(7_300),
            ns_per_kib: 1_932,
            latency: Duration::from_nanos(29_000),
        },
        // Assumed.
        spread_percent: 20,
        units: 32,
        // Published: NCQ.
        queue: 32,
        // Assumed: as HddFigures.
        longest: SectorCount(2048),
        // Published: 1 to 3 ms for a synchronous write.
        flush: Duration::from_micros(1_900),
        flush_alone: true,
        volatile: true,
    };

    /// The same with power-loss protection.
    pub const SATA_PROTECTED: SsdFigures = SsdFigures {
        // Published: 158 us for a synchronous write of 4 KiB, of which the write takes 44.
        flush: Duration::from_micros(114),
        volatile: false,
        ..SsdFigures::SATA
    };

    /// An NVMe drive of the consumer class.
    pub const NVME: SsdFigures = SsdFigures {
        // Published: 2400 and 1300 MB/s, 88 and 24 us for 4 KiB. The command time is assumed:
        // 300 000 per second.
        read: PathFigures {
            command: Duration::from_nanos(1_600),
            ns_per_kib: 427,
            latency: Duration::from_nanos(84_700),
        },
        write: PathFigures {
            command: Duration::from_nanos(300),
            ns_per_kib: 788,
            latency: Duration::from_nanos(20_500),
        },
        // Assumed.
        spread_percent: 20,
        units: 64,
        queue: 1023,
        longest: SectorCount(1024),
        // Published: 0.7 to 2.4 ms.
        flush: Duration::from_micros(1_500),
        flush_alone: false,
        volatile: true,
    };

    /// An NVMe drive with power-loss protection.
    pub const NVME_PROTECTED: SsdFigures = SsdFigures {
        // Published.
        flush: Duration::from_micros(50),
        volatile: false,
        ..SsdFigures::NVME
    };

    /// Optane 900P: memory that needs no erasing and no cache.
    pub const OPTANE: SsdFigures = SsdFigures {
        // Published: 2500 and 2000 MB/s, 9 to 10 us, 500 000 per second.
        read: PathFigures {
            command: Duration::from_nanos(350),
            ns_per_kib: 410,
            latency: Duration::from_nanos(7_400),
        },
        write: PathFigures {
            command: Duration::from_nanos(0),
            ns_per_kib: 512,
            latency: Duration::from_nanos(7_400),
        },
        // Assumed: it varies little.
        spread_percent: 5,
        units: 16,
        queue: 1023,
        // Assumed: 128 KiB.
        longest: SectorCount(256),
        // Published: about 0.
        flush: EMPTY_FLUSH,
        flush_alone: false,
        volatile: false,
    };
}

/// When an operation ends, its place in the order of starts, and its number. Of equal times the
/// earlier started one is first.
type Ending = Reverse<(Time, u64, usize)>;

/// A drive without an arm.
pub struct Ssd {
    figures: SsdFigures,
    rng: fastrand::Rng,
    meter: Meter,
    queue: HostQueue,
    path_free: Time,
    /// When each unit is free.
    units: BinaryHeap<Reverse<Time>>,
    operations: Slab<Operation>,
    running: BinaryHeap<Ending>,
    next_order: u64,
    flushing: Vec<OpId>,
    flush_end: Time,
    /// Something was written since the last flush began.
    is_written: bool,
}

impl Ssd {
    /// A drive whose service times are drawn from a seed.
    pub fn new(figures: SsdFigures, seed: u64) -> Ssd {
        Ssd {
            figures,
            rng: fastrand::Rng::with_seed(seed),
            meter: Meter::default(),
            queue: HostQueue::new(figures.longest),
            path_free: Time(0),
            units: (0..figures.units).map(|_| Reverse(Time(0))).collect(),
            operations: Slab::default(),
            running: BinaryHeap::new(),
            next_order: 0,
            flushing: Vec::new(),
            flush_end: Time(0),
            is_written: false,
        }
    }

    fn step(&mut self, now: Time, ended: &mut Vec<OpId>) {
        self.meter.advance(now);
        while let Some(first) = self.running.peek_mut().filter(|first| first.0.0 <= now) {
            let Reverse((_, _, number)) = PeekMut::pop(first);
            let operation = self.operations.remove(number);
            self.is_written |= operation.op == Op::Write || operation.op == Op::WriteZeroes;
            self.meter.ended(operation.count());
            operation.end(ended);
        }
        if !self.flushing.is_empty() && self.flush_end <= now {
            self.meter.ended(self.flushing.len());
            ended.append(&mut self.flushing);
        }
        self.admit(now);
        self.plan();
    }

    fn plan(&mut self) {
        let running = self.running.peek().map_or(NEVER, |Reverse((at, ..))| *at);
        let flush = if self.flushing.is_empty() { NEVER } else { self.flush_end };
        self.meter.plan(running.min(flush));
    }

    fn admit(&mut self, now: Time) {
        let is_alone = self.running.is_empty() || !self.figures.flush_alone;
        if self.queue.has_flush() && self.flushing.is_empty() && is_alone {
            self.flushing = self.queue.take_flushes();
            self.meter.used.flushes += 1;
            let took = if self.is_written { self.figures.flush } else { EMPTY_FLUSH };
            self.is_written = false;
            self.flush_end = now + took;
        }
        let has_flush = self.queue.has_flush() || !self.flushing.is_empty();
        let is_open = !(self.figures.flush_alone && has_flush);
        while is_open && self.running.len() < self.figures.queue {
            let Some(operation) = self.queue.pop() else { break };
            self.start(operation, now);
        }
    }

    fn start(&mut self, operation: Operation, now: Time) {
        let path = if operation.op == Op::Read { self.figures.read } else { self.figures.write };
        let bytes = if operation.op.has_data() { operation.range.to_bytes() } else { 0 };
        let passing = nanos(path.command) + bytes * path.ns_per_kib / 1024;
        self.meter.used.operations += 1;
        self.meter.used.transfer_ns += passing;
        self.path_free = Time(self.path_free.0.max(now.0) + passing);
        let mut unit = self.units.peek_mut().expect("a drive has units");
        let mut latency = nanos(path.latency);
        if self.figures.volatile && operation.is_fua {
            latency += nanos(self.figures.flush);
        }
        let spread = latency * self.figures.spread_percent / 100;
        let drawn = latency - spread + self.rng.u64(..=2 * spread);
        let at = Time(unit.0.max(self.path_free).0 + drawn);
        *unit = Reverse(at);
        let order = self.next_order;
        self.next_order += 1;
        self.running.push(Reverse((at, order, self.operations.insert(operation))));
    }
}

impl Timing for Ssd {
    fn arrive(&mut self, now: Time, arrival: Arrival) {
        self.meter.arrived(now, &arrival);
        self.queue.push(&arrival);
    }

    fn next(&self) -> Option<Time> {
        self.meter.next()
    }

    fn go_on(&mut self, now: Time, ended: &mut Vec<OpId>) {
        while let Some(at) = self.meter.due(now) {
            self.step(at, ended);
        }
        self.meter.advance(now);
    }

    fn used(&self) -> Used {
        let mut used = Used { merges: self.queue.merges(), arms: 1, ..self.meter.used };
        let now = self.meter.now();
        // What is on the path is counted whole when it starts.
        let ahead = self.path_free.0.saturating_sub(now.0);
        used.idle_ns = (now.0 + ahead).saturating_sub(used.transfer_ns);
        used
    }

    fn nature(&self) -> Nature {
        let volatile = self.figures.volatile;
        Nature { rotational: Some(false), volatile, shape: Shape::Single }
    }
}

#[cfg(test)]
mod tests;
