//! A reactor's stock, which it hands out by itself: a few free data blocks, and the right to make
//! changes that fit the free metadata.
//!
//! S1. A data block in a stock was taken from the allocator, and is in no other stock.
//! S2. For every change that is made and not durable, or may still be made from a stock, the most
//!     metadata blocks that it can take are reserved ([`Room`]). For every change that may still be
//!     made, room for a record in the crash log is reserved, too (`acknowledged`).
//! S3. Allocations leave a reserve of metadata, so that a pool whose metadata is full can still
//!     discard. Discards leave a part of the reserve, so that volumes can still be deleted.
//!     Metadata below half a MiB leaves no such part. Metadata that would mostly be reserve has
//!     none: the kernel makes such pools, and they must work here.

use cairn_block::sync::Mutex;
use cairn_block::sync::atomic::{AtomicU64, Ordering};
use cairn_block::{Env, ReactorId};

use super::metadata::PoolMetadata;
use super::status::reserve;
use crate::persistent::DataRun;

/// Data blocks that a stock takes at once, if there are plenty.
const REFILL_BLOCKS: u64 = 64;

/// Changes that a stock may make before it asks again, if there are plenty.
const REFILL_CHANGES: u64 = 64;

/// Metadata of fewer blocks leaves nothing for deletions alone (S3).
const SMALL_BLOCKS: u64 = 128;

/// Metadata of fewer times what a change takes has no reserve (S3).
const LEAST_UNITS: u64 = 4;

/// What a change is for: how much of the reserve it leaves (S3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A mapping is made, a volume or a snapshot: all of it.
    Provide,
    /// A mapping goes: enough for messages that free something.
    Discard,
    /// A volume or a metadata snapshot goes.
    Delete,
}

/// The right to make changes (S2).
pub(super) struct Room {
    /// Metadata blocks per change. Changes only while nothing is granted.
    unit: AtomicU64,
    granted: AtomicU64,
}

impl Room {
    /// Room in the metadata of `metadata`.
    pub fn new(metadata: &PoolMetadata) -> Room {
        Room { unit: AtomicU64::new(metadata.unit_cost(false)), granted: AtomicU64::new(0) }
    }

    /// Recomputes the metadata reservation of each change: the pool is larger now, or begins to
    /// share.
    pub fn price(&self, metadata: &PoolMetadata, shares: bool) {
        assert!(!self.is_granted(), "what is granted has its price");
        self.unit.store(metadata.unit_cost(shares), Ordering::Release);
    }

    /// Metadata blocks that a change of this kind leaves free.
    pub fn keep(&self, metadata: &PoolMetadata, purpose: Purpose) -> u64 {
        let (unit, total) = (self.unit.load(Ordering::Acquire), metadata.metadata_use().total);
        if total < LEAST_UNITS * unit {
            return 0;
        }
        let for_delete = if total < SMALL_BLOCKS { 0 } else { unit };
        match purpose {
            Purpose::Provide => reserve(total).max(unit + for_delete),
            Purpose::Discard => for_delete,
            Purpose::Delete => 0,
        }
    }

    /// Promises what a message takes beyond what any commit does; none if it is not there. It is
    /// to be given back with [`PoolMetadata::unreserve`].
    pub fn for_message(&self, metadata: &PoolMetadata, purpose: Purpose) -> Option<u64> {
        let unit = self.unit.load(Ordering::Acquire);
        metadata.reserve(unit, self.keep(metadata, purpose)).then_some(unit)
    }

    /// Grants up to `count` changes, fewer if little is left.
    pub fn grant(&self, metadata: &PoolMetadata, mut count: u64, purpose: Purpose) -> u64 {
        let (unit, keep) = (self.unit.load(Ordering::Acquire), self.keep(metadata, purpose));
        count = metadata.acknowledged().reserve(count);
        let records = count;
        while count > 0 && !metadata.reserve(count * unit, keep) {
            count /= 2;
        }
        metadata.acknowledged().cancel(records - count);
        self.granted.fetch_add(count, Ordering::AcqRel);
        count
    }

    /// Takes grants back, of changes that will not be made.
    pub fn give_back(&self, metadata: &PoolMetadata, count: u64) {
        metadata.acknowledged().cancel(count);
        self.end(metadata, count);
    }

    /// Takes grants back, of changes that are durable.
    pub fn end(&self, metadata: &PoolMetadata, count: u64) {
        self.granted.fetch_sub(count, Ordering::AcqRel);
        metadata.unreserve(count * self.unit.load(Ordering::Acquire));
    }

    /// True if a change would be granted now. It grants none, so that reservations may be
    /// recomputed in between.
    pub fn is_there(&self, metadata: &PoolMetadata, purpose: Purpose) -> bool {
        let unit = self.unit.load(Ordering::Acquire);
        let is_there = metadata.reserve(unit, self.keep(metadata, purpose));
        if is_there {
            metadata.unreserve(unit);
        }
        is_there && metadata.acknowledged().has_room()
    }

    /// True if changes may be under way.
    pub fn is_granted(&self) -> bool {
        self.granted.load(Ordering::Acquire) > 0
    }
}

#[derive(Default)]
struct Stock {
    blocks: Vec<DataRun>,
    changes: u64,
}

#[repr(align(128))]
#[derive(Default)]
struct Row(Mutex<Stock>);

/// What a request for blocks got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// These, with the right to map them.
    Blocks(DataRun),
    /// There is no free data block.
    NoData,
    /// The metadata has no room for another change before a commit.
    NoMetadata,
}

/// The stocks of all reactors.
pub(super) struct Stocks(Box<[Row]>);

impl Stocks {
    /// Empty stocks.
    pub fn new(env: &Env) -> Stocks {
        Stocks((0..env.post().reactors()).map(|_| Row::default()).collect())
    }

    /// Takes 1 to `most` data blocks that lie together, with as many changes.
    pub fn take(&self, at: ReactorId, most: u64, room: &Room, metadata: &PoolMetadata) -> Taken {
        let mut stock = self.0[usize::from(at.0)].0.lock();
        if stock.changes == 0 {
            stock.changes = room.grant(metadata, REFILL_CHANGES, Purpose::Provide);
            if stock.changes == 0 {
                return Taken::NoMetadata;
            }
        }
        if stock.blocks.is_empty() {
            let from = metadata.allocator();
            // When few blocks are left, reactors keep none in stock.
            let share = from.free() / (4 * self.0.len() as u64);
            stock.blocks = from.take(REFILL_BLOCKS.min(share).max(most));
            stock.blocks.reverse();
        }
        let changes = stock.changes;
        let Some(run) = stock.blocks.last_mut() else { return Taken::NoData };
        let count = run.count.min(most).min(changes);
        let taken = DataRun { start: run.start, count };
        if count == run.count {
            stock.blocks.pop();
        } else {
            *run = DataRun::new(run.start.0 + count, run.count - count);
        }
        stock.changes -= count;
        Taken::Blocks(taken)
    }

    /// Takes the right to remove up to `most` mappings, from the reserve if need be.
    pub fn take_removals(
        &self,
        at: ReactorId,
        most: u64,
        room: &Room,
        metadata: &PoolMetadata,
    ) -> u64 {
        let mut stock = self.0[usize::from(at.0)].0.lock();
        if stock.changes == 0 {
            stock.changes = room.grant(metadata, REFILL_CHANGES, Purpose::Provide);
        }
        let taken = stock.changes.min(most);
        stock.changes -= taken;
        taken + room.grant(metadata, most - taken, Purpose::Discard)
    }

    /// Gives everything back: data blocks to the allocator, rights to the room.
    pub fn empty(&self, room: &Room, metadata: &PoolMetadata) {
        for row in &self.0 {
            // Under the lock: a task that finds a row empty sees its reservation returned.
            let mut stock = row.0.lock();
            let Stock { blocks, changes } = std::mem::take(&mut *stock);
            room.give_back(metadata, changes);
            blocks.into_iter().for_each(|run| metadata.allocator().put_back(run));
        }
    }

    /// Checks what must hold whenever a row's lock is free.
    pub fn check_state(&self, room: &Room) {
        // All rows at once: reservations return to the room after they have left a row.
        let rows: Vec<_> = self.0.iter().map(|row| row.0.lock()).collect();
        let changes: u64 = rows.iter().map(|stock| stock.changes).sum();
        assert!(changes <= room.granted.load(Ordering::Acquire), "S2");
        let mut runs: Vec<_> = rows.iter().flat_map(|stock| &stock.blocks).collect();
        runs.sort_unstable();
        assert!(runs.is_sorted_by(|a, b| a.start.0 + a.count <= b.start.0), "S1");
    }

    /// Data blocks in all stocks.
    pub fn blocks(&self) -> u64 {
        let held = |row: &Row| row.0.lock().blocks.iter().map(|run| run.count).sum::<u64>();
        self.0.iter().map(held).sum()
    }
}

#[cfg(all(test, shuttle))]
mod interleavings {
    //! Tasks that reserve metadata against one that recomputes the reservations, under shuttle: see
    //! `interleaved`.

    use std::sync::Arc;

    use cairn_block::{Disk, SectorCount};
    use cairn_format::thin::DataBlockSize;
    use cairn_sim::{DriveOptions, Image, SimWorld};
    use shuttle::thread;

    use super::*;
    use crate::interleaved::rounds;
    use crate::persistent::Store;

    struct Parts {
        stocks: Stocks,
        room: Room,
        metadata: PoolMetadata,
    }

    impl Parts {
        /// Over fresh metadata in memory.
        fn new() -> Arc<Parts> {
            let sim = SimWorld::new(1, 1);
            sim.add_drive(DriveOptions::named("meta"), Image::new(SectorCount(256 * 8)));
            let disk: Arc<dyn Disk> = sim.drive("meta");
            let parts = sim.block_on(0, |env| async move {
                let size = DataBlockSize::new(128).expect("64 KiB are a legal size");
                Store::format_fresh(&env, &disk, size).await?;
                let metadata = PoolMetadata::open(&env, &disk, size, false).await?;
                let (stocks, room) = (Stocks::new(&env), Room::new(&metadata));
                Ok::<_, crate::persistent::Error>(Parts { stocks, room, metadata })
            });
            Arc::new(parts.expect("the drive is sound"))
        }

        /// Behaves like a task that reserves metadata or data blocks.
        fn look(&self) {
            self.stocks.empty(&self.room, &self.metadata);
            assert!(self.room.is_there(&self.metadata, Purpose::Provide));
        }
    }

    #[test]
    fn reservations_are_recomputed_while_tasks_reserve() {
        let life = || {
            let parts = Parts::new();
            // Of a write that failed: the stock has rights.
            let Parts { stocks, room, metadata } = &*parts;
            room.give_back(metadata, stocks.take_removals(ReactorId(0), 1, room, metadata));
            assert!(room.is_granted());
            let other = parts.clone();
            let looks = thread::spawn(move || (0..2).for_each(|_| other.look()));
            stocks.empty(room, metadata);
            room.price(metadata, true);
            looks.join().expect("no panic");
            assert!(!room.is_granted());
            let unit = room.unit.load(Ordering::Acquire);
            assert_eq!(unit, metadata.unit_cost(true));
        };
        let mut config = shuttle::Config::new();
        config.stack_size = 1 << 20;
        let scheduler = shuttle::scheduler::RandomScheduler::new(rounds() / 10);
        shuttle::Runner::new(scheduler, config).run(life);
    }
}
