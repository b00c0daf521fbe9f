//! What passed a mapped device, or an export: for each operation how many requests, how much, and
//! how long they took.
//!
//! Each reactor counts in cells of its own, and a reader sums them up ([`Traffic`]): those of a
//! device ([`LocalTraffic`]) only its reactor reads, those of an export ([`SharedTraffic`]) anyone.
//! A request that the device admitted counts when it leaves, once, however many parts it had; one
//! that goes back to the gate counts when it leaves at last. Its time runs from its start by a
//! client, in turns of the reactor's loop: no clock is read for it. A copy that disks make by
//! themselves ([`crate::Env::copy`]) is no request, and is not counted.

use std::cell::Cell;
use std::time::Duration;

use crate::ids::ReactorId;
use crate::op::Op;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::units::{Sector, SectorCount, Time};

/// How many buckets a histogram has. A bucket holds what took less than twice as much as the bucket
/// before it; the first one less than `2 << SHIFT` nanoseconds. That a power of two of them reaches
/// beyond all times saves the comparison with a last one.
const BUCKETS: usize = 64;

const SHIFT: u32 = 10;

/// How many buckets are shown: the last of these has all that took longer, too (69 s).
const SHOWN: usize = 27;

/// The operations, in the order of their cells.
pub const OPS: [Op; 5] = [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes];

/// Below which time the requests of a bucket lie; none for the last one that is shown.
fn bound(bucket: usize) -> Option<Duration> {
    (bucket < SHOWN - 1).then(|| Duration::from_nanos(2 << (SHIFT as usize + bucket)))
}

/// The time that a share of the requests did not exceed, from the counts of buckets as
/// [`OpTraffic::buckets`] shows them: a bucket's bound; none if there were no requests, or if it
/// lies beyond the last bound.
pub fn quantile(counts: &[u64], share: f64) -> Option<Duration> {
    let all: u64 = counts.iter().sum();
    let wanted = ((all as f64 * share).ceil() as u64).max(1);
    let mut below = 0;
    let bucket = counts.iter().position(|count| {
        below += count;
        below >= wanted
    });
    bucket.and_then(bound)
}

/// How long a request took.
#[derive(Clone, Copy)]
pub(crate) struct Took {
    nanos: u64,
    bucket: usize,
}

impl Took {
    #[inline(always)]
    pub fn between(started: Time, now: Time) -> Took {
        debug_assert!(started <= now, "a request stays on its reactor");
        let nanos = now.0.wrapping_sub(started.0);
        Took { nanos, bucket: ((nanos >> SHIFT) | 1).ilog2() as usize }
    }
}

/// A count that one thread raises.
trait Count: Default {
    fn add(&self, more: u64);
    fn get(&self) -> u64;
}

impl Count for Cell<u64> {
    #[inline(always)]
    fn add(&self, more: u64) {
        self.set(Cell::get(self).wrapping_add(more));
    }

    fn get(&self) -> u64 {
        Cell::get(self)
    }
}

/// Others may read it.
impl Count for AtomicU64 {
    #[inline(always)]
    fn add(&self, more: u64) {
        self.store(self.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.load(Ordering::Relaxed)
    }
}

struct OpCells<C> {
    sectors: C,
    nanos: C,
    failed: C,
    buckets: [C; BUCKETS],
}

impl<C: Count> Default for OpCells<C> {
    fn default() -> OpCells<C> {
        let [sectors, nanos, failed] = Default::default();
        OpCells { sectors, nanos, failed, buckets: std::array::from_fn(|_| C::default()) }
    }
}

/// The counts of one reactor.
struct Cells<C>([OpCells<C>; OPS.len()]);

impl<C: Count> Default for Cells<C> {
    fn default() -> Cells<C> {
        Cells(Default::default())
    }
}

impl<C: Count> Cells<C> {
    #[inline(always)]
    fn count(&self, op: Op, sectors: SectorCount, took: Took, failed: bool) {
        let cells = &self.0[op as usize];
        cells.sectors.add(sectors.0);
        cells.nanos.add(took.nanos);
        cells.buckets[took.bucket % BUCKETS].add(1);
        if failed {
            cells.failed.add(1);
        }
    }
}

/// The counts of one reactor about one device.
#[derive(Default)]
pub(crate) struct LocalTraffic(Cells<Cell<u64>>);

impl LocalTraffic {
    /// A request of this length has left.
    #[inline(always)]
    pub fn count(&self, op: Op, sectors: SectorCount, took: Took, failed: bool) {
        self.0.count(op, sectors, took, failed);
    }
}

/// The counts of all reactors about one export. Each raises its own.
pub struct SharedTraffic(Box<[Cells<AtomicU64>]>);

impl SharedTraffic {
    /// For so many reactors.
    pub fn new(reactors: u16) -> SharedTraffic {
        SharedTraffic((0..reactors).map(|_| Cells::default()).collect())
    }

    /// A request that was started on this reactor has ended. The times are those of its start and
    /// of now.
    #[inline]
    pub fn count(
        &self,
        reactor: ReactorId,
        (op, sectors): (Op, SectorCount),
        (started, now): (Time, Time),
        failed: bool,
    ) {
        let cells = &self.0[usize::from(reactor.0)];
        cells.count(op, sectors, Took::between(started, now), failed);
    }

    /// What ended so far.
    pub fn sum(&self) -> Traffic {
        let mut sum = Traffic::default();
        self.0.iter().for_each(|cells| sum.add_cells(cells));
        sum
    }
}

/// The counts of one operation. They only rise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpTraffic {
    /// How much the requests that ended asked for.
    pub sectors: SectorCount,
    /// How long they took together.
    pub nanos: u64,
    /// How many failed.
    pub failed: u64,
    buckets: [u64; BUCKETS],
}

impl Default for OpTraffic {
    fn default() -> OpTraffic {
        OpTraffic { sectors: SectorCount::ZERO, nanos: 0, failed: 0, buckets: [0; BUCKETS] }
    }
}

impl OpTraffic {
    /// How many requests ended.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// How many requests took less than a time, and no less than the time before it. The times
    /// rise; the last one has no bound.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<Duration>, u64)> {
        let (shown, beyond) = self.buckets.split_at(SHOWN - 1);
        let last = (None, beyond.iter().sum());
        (0..).map(bound).zip(shown.iter().copied()).chain([last])
    }

    /// The time that a share of the requests did not exceed, a bucket's bound; none if there were
    /// no requests, or if it lies beyond the last bound.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let counts: Vec<u64> = self.buckets().map(|(_, count)| count).collect();
        quantile(&counts, share)
    }
}

/// The counts of all reactors about one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic([OpTraffic; OPS.len()]);

impl Traffic {
    /// The counts of an operation.
    pub fn of(&self, op: Op) -> &OpTraffic {
        &self.0[op as usize]
    }

    pub(crate) fn of_local(local: &LocalTraffic) -> Traffic {
        let mut traffic = Traffic::default();
        traffic.add_cells(&local.0);
        traffic
    }

    /// What came after an earlier sum of the same counts.
    #[must_use]
    pub(crate) fn since(mut self, earlier: &Traffic) -> Traffic {
        for (sum, less) in self.0.iter_mut().zip(&earlier.0) {
            sum.sectors = SectorCount(sum.sectors.0.wrapping_sub(less.sectors.0));
            sum.nanos = sum.nanos.wrapping_sub(less.nanos);
            sum.failed -= less.failed;
            sum.buckets.iter_mut().zip(less.buckets).for_each(|(sum, less)| *sum -= less);
        }
        self
    }

    /// With the counts of another one.
    #[must_use]
    pub fn with(mut self, other: &Traffic) -> Traffic {
        for (sum, more) in self.0.iter_mut().zip(&other.0) {
            sum.sectors += more.sectors;
            sum.nanos = sum.nanos.wrapping_add(more.nanos);
            sum.failed += more.failed;
            sum.buckets.iter_mut().zip(more.buckets).for_each(|(sum, more)| *sum += more);
        }
        self
    }

    fn add_cells<C: Count>(&mut self, cells: &Cells<C>) {
        for (sum, cells) in self.0.iter_mut().zip(&cells.0) {
            sum.sectors += SectorCount(cells.sectors.get());
            sum.nanos = sum.nanos.wrapping_add(cells.nanos.get());
            sum.failed += cells.failed.get();
            for (bucket, cell) in sum.buckets.iter_mut().zip(&cells.buckets) {
                *bucket += cell.get();
            }
        }
    }
}

/// What passed a device, and each line of its table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceTraffic {
    /// Each request once.
    pub whole: Traffic,
    /// Each part of a request at its line.
    pub lines: Vec<LineTraffic>,
}

/// What passed a line of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineTraffic {
    /// Its first sector.
    pub start: Sector,
    /// Its kind of target.
    pub target: String,
    /// Each part of a request that it had.
    pub traffic: Traffic,
}

impl DeviceTraffic {
    pub(crate) fn add(&mut self, whole: &Traffic) {
        self.whole = self.whole.with(whole);
    }

    /// While a table is swapped, the reactors may have different ones.
    pub(crate) fn add_line(&mut self, start: Sector, target: &str, more: &Traffic) {
        let mut lines = self.lines.iter_mut();
        match lines.find(|line| line.start == start && line.target == target) {
            Some(line) => line.traffic = line.traffic.with(more),
            None => {
                let target = target.to_owned();
                self.lines.push(LineTraffic { start, target, traffic: *more });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{LocalTraffic, OPS, SHOWN, Took, Traffic};
    use crate::op::Op;
    use crate::units::{SectorCount, Time};
    use std::time::Duration;

    fn took(nanos: u64) -> Took {
        Took::between(Time(7), Time(7 + nanos))
    }

    #[test]
    fn each_operation_has_its_place() {
        for (at, op) in OPS.into_iter().enumerate() {
            assert_eq!(op as usize, at);
        }
    }

    #[test]
    fn times_are_counted_below_the_bound_of_their_bucket() {
        let local = LocalTraffic::default();
        for nanos in [0, 2047, 2048, 4095, 1 << 20, u64::MAX - 7] {
            local.count(Op::Write, SectorCount(8), took(nanos), nanos == 0);
        }
        let mut traffic = Traffic::default();
        traffic.add_cells(&local.0);
        let writes = traffic.of(Op::Write);
        assert_eq!((writes.count(), writes.sectors, writes.failed), (6, SectorCount(48), 1));
        let in_bucket = |nanos| {
            let bound = Some(Duration::from_nanos(nanos));
            writes.buckets().find(|bucket| bucket.0 == bound).unwrap().1
        };
        assert_eq!([2048, 4096, 1 << 20, 1 << 21].map(in_bucket), [2, 2, 0, 1]);
        assert_eq!(writes.buckets().last().unwrap(), (None, 1));
        assert_eq!(writes.buckets().count(), SHOWN);
        assert_eq!(writes.quantile(0.5), Some(Duration::from_nanos(4096)));
        assert_eq!(writes.quantile(1.0), None);
        assert_eq!(traffic.of(Op::Read).quantile(0.5), None);
    }
}
