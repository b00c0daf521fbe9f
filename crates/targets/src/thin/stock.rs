//! What a reactor may hand out by itself: a few free data blocks, and the right to make changes
//! that fit the free metadata.
//!
//! S1. A data block in a stock was taken from the allocator, and is in no other stock.
//! S2. Every change that is made and not durable, or may still be made with what stocks hold, has
//!     the metadata blocks promised that it takes at most ([`Room`]).

use cairn_block::sync::Mutex;
use cairn_block::sync::atomic::{AtomicU64, Ordering};
use cairn_block::{Env, ReactorId};

use super::ledger::Ledger;
use crate::persistent::DataRun;

/// Data blocks that a stock takes at once, if there are plenty.
const REFILL_BLOCKS: u64 = 64;

/// Changes that a stock may make before it asks again, if there are plenty.
const REFILL_CHANGES: u64 = 64;

/// The right to make changes: each has the metadata blocks promised that it takes at most.
pub(super) struct Room {
    /// Metadata blocks per change. Changes only while nothing is granted.
    unit: AtomicU64,
    granted: AtomicU64,
}

impl Room {
    /// Room in the metadata of `ledger`.
    pub fn new(ledger: &Ledger) -> Room {
        Room { unit: AtomicU64::new(ledger.unit_cost(false)), granted: AtomicU64::new(0) }
    }

    /// Prices changes anew: the pool is larger now, or begins to share.
    pub fn price(&self, ledger: &Ledger, shares: bool) {
        assert!(!self.is_granted(), "what is granted has its price");
        self.unit.store(ledger.unit_cost(shares), Ordering::Release);
    }

    /// Grants up to `count` changes, fewer if little is left.
    pub fn grant(&self, ledger: &Ledger, mut count: u64) -> u64 {
        let unit = self.unit.load(Ordering::Acquire);
        while count > 0 && !ledger.reserve(count * unit) {
            count /= 2;
        }
        self.granted.fetch_add(count, Ordering::AcqRel);
        count
    }

    /// Takes grants back: of changes that are durable, or that will not be made.
    pub fn give_back(&self, ledger: &Ledger, count: u64) {
        self.granted.fetch_sub(count, Ordering::AcqRel);
        ledger.unreserve(count * self.unit.load(Ordering::Acquire));
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
    pub fn take(&self, at: ReactorId, most: u64, room: &Room, ledger: &Ledger) -> Taken {
        let mut stock = self.0[usize::from(at.0)].0.lock();
        if stock.changes == 0 {
            stock.changes = room.grant(ledger, REFILL_CHANGES);
            if stock.changes == 0 {
                return Taken::NoMetadata;
            }
        }
        if stock.blocks.is_empty() {
            let from = ledger.allocator();
            // When little is left, no reactor sits on it.
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

    /// Takes the right to make up to `most` changes.
    pub fn take_changes(&self, at: ReactorId, most: u64, room: &Room, ledger: &Ledger) -> u64 {
        let mut stock = self.0[usize::from(at.0)].0.lock();
        if stock.changes == 0 {
            stock.changes = room.grant(ledger, REFILL_CHANGES);
        }
        let taken = stock.changes.min(most);
        stock.changes -= taken;
        taken
    }

    /// Gives everything back: data blocks to the allocator, rights to the room.
    pub fn empty(&self, room: &Room, ledger: &Ledger) {
        for row in &self.0 {
            let stock = std::mem::take(&mut *row.0.lock());
            room.give_back(ledger, stock.changes);
            stock.blocks.into_iter().for_each(|run| ledger.allocator().put_back(run));
        }
    }

    /// Data blocks in all stocks.
    pub fn blocks(&self) -> u64 {
        let held = |row: &Row| row.0.lock().blocks.iter().map(|run| run.count).sum::<u64>();
        self.0.iter().map(held).sum()
    }
}
