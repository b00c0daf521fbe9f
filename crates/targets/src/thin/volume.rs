//! One thin volume of an open pool: its map and the state of its durability. Every table that
//! serves the volume shares it.

use std::sync::Arc;

use cairn_block::FailureCount;
use cairn_block::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use cairn_format::thin::{DeviceDetails, DeviceId};

use super::arena::Arena;
use super::index::{Run, Shard, VolumeMap};
use super::losses::{Raised, Writers};

/// See the module's description.
pub(super) struct Volume {
    pub id: DeviceId,
    pub map: VolumeMap,
    /// The pool's time when the volume was last snapshotted: blocks mapped before it are shared.
    snapshotted: AtomicU32,
    /// How many hold its requests back; tables check it under the lock of a shard.
    gates: AtomicU32,
    /// Changes that no commit has frozen.
    dirty: AtomicBool,
    /// Changes that a commit under way has frozen.
    frozen: AtomicBool,
    /// The mapped devices whose failure counts rise if changes are lost.
    writers: Writers,
    /// Tables that serve it.
    users: AtomicUsize,
    /// The highest mapped block as the metadata says, plus one.
    highest: AtomicU64,
}

impl Volume {
    /// A volume as the metadata has it, with its highest mapped block.
    pub fn new(
        id: DeviceId,
        details: DeviceDetails,
        highest: Option<u64>,
        arena: &Arc<Arena>,
    ) -> Arc<Volume> {
        let end = highest.map_or(0, |block| block + 1);
        Arc::new(Volume {
            id,
            map: VolumeMap::new(details.mapped_blocks, end, arena),
            snapshotted: AtomicU32::new(details.snapshotted_time),
            gates: AtomicU32::new(0),
            dirty: AtomicBool::new(false),
            frozen: AtomicBool::new(false),
            writers: Writers::default(),
            users: AtomicUsize::new(0),
            highest: AtomicU64::new(end),
        })
    }

    /// What lies at `block`, of which `shard` is the shard.
    #[inline(always)]
    pub fn look(&self, shard: &mut Shard, block: u64, max: u64) -> Run {
        match shard.run(block, max, self.snapshotted.load(Ordering::Relaxed)) {
            // M4
            Run::Absent if block >= self.map.end() => Run::Hole { count: max },
            run => run,
        }
    }

    /// The volume was snapshotted at `time`. No request reads this now: its gate is closed.
    pub fn set_snapshotted(&self, time: u32) {
        self.snapshotted.store(time, Ordering::Release);
    }

    /// Holds requests back from now on. Those that were let in are counted by the epochs.
    pub fn close_gate(&self) {
        self.gates.fetch_add(1, Ordering::AcqRel);
        // The holder of a shard's lock may have looked before; a later holder sees the gate.
        self.map.shards().for_each(drop);
    }

    /// Lets them in again.
    pub fn open_gate(&self) {
        self.gates.fetch_sub(1, Ordering::AcqRel);
    }

    /// True if requests are held back.
    #[inline(always)]
    pub fn is_closed(&self) -> bool {
        // A request that finds it open sees the changes that were made while it was closed (T5).
        self.gates.load(Ordering::Acquire) > 0
    }

    /// A change is about to be made, under the lock of its shard: before its stamp is taken (N1).
    pub fn set_dirty(&self) {
        if !self.dirty.load(Ordering::SeqCst) {
            self.dirty.store(true, Ordering::SeqCst);
        }
    }

    /// True if there is a change for a commit to take.
    pub fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::SeqCst)
    }

    /// True if a change is not durable. Changes made before the call are seen.
    pub fn is_changed(&self) -> bool {
        // In this order: a commit sets `frozen` before it clears `dirty`.
        self.is_dirty() || self.frozen.load(Ordering::Acquire)
    }

    /// A commit takes the changes; true if there may be some.
    pub fn freeze(&self) -> bool {
        if !self.is_dirty() {
            return false;
        }
        self.frozen.store(true, Ordering::Release);
        self.dirty.store(false, Ordering::Release);
        true
    }

    /// The frozen changes are durable.
    pub fn thaw(&self) {
        self.frozen.store(false, Ordering::Release);
    }

    /// Changes were rolled back: if there were any, they are lost, and these failure counts rose.
    pub fn lose(&self) -> Option<Vec<Raised>> {
        // Before the flags: a task that sees them cleared sees the loss.
        let loses = self.is_changed().then(|| self.writers.tell());
        self.dirty.store(false, Ordering::Release);
        self.frozen.store(false, Ordering::Release);
        loses
    }

    /// A table begins to serve it, for a mapped device with this failure count.
    pub fn enter(&self, failures: &Arc<FailureCount>) {
        self.users.fetch_add(1, Ordering::AcqRel);
        self.writers.add(failures);
    }

    /// A table has ended; true if it was the last. Its device hears of what it wrote and is not
    /// durable yet.
    pub fn leave(&self, failures: &Arc<FailureCount>) -> bool {
        if !self.is_changed() {
            self.writers.remove(failures);
        }
        self.users.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// True if a table serves it.
    pub fn is_used(&self) -> bool {
        self.users.load(Ordering::Acquire) > 0
    }

    /// The highest mapped block: as the last commit left it, or later.
    pub fn highest(&self) -> Option<u64> {
        let durable = self.durable_highest();
        if self.is_changed() { self.map.highest_loaded().max(durable) } else { durable }
    }

    /// The highest mapped block as the last commit left it.
    pub fn durable_highest(&self) -> Option<u64> {
        self.highest.load(Ordering::Acquire).checked_sub(1)
    }

    /// The metadata says which is the highest mapped block.
    pub fn set_highest(&self, highest: Option<u64>) {
        self.highest.store(highest.map_or(0, |block| block + 1), Ordering::Release);
    }
}
