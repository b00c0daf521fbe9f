//! A table's attachment to a volume: the objects that its requests use, from a resume until the
//! table is closed.
//!
//! A table may be closed and resumed again, because its replacement could not start. It then gets
//! another attachment, since pool and volume may be others by then. Attachments form a chain, so
//! that requests find the last one without a lock.

use std::sync::{Arc, OnceLock};

use cairn_block::sync::atomic::{AtomicBool, Ordering};
use cairn_block::{
    Disk, Env, FailureCount, IoError, IoResult, Request, SectorCount, SectorRange, Verdict,
};
use cairn_format::thin::{DataBlock, Mapping};

use super::acknowledged::Changed;
use super::index::Shard;
use super::losses::PassedOn;
use super::pool::{Parked, Pool};
use super::span::BlockSpan;
use super::volume::Volume;
use crate::persistent::DataRun;

/// The external origin of a volume.
#[derive(Clone)]
pub(super) struct Origin {
    pub disk: Arc<dyn Disk>,
    pub sectors: u64,
}

/// See the module's description.
pub(super) struct VolumeAttachment {
    pub pool: Arc<Pool>,
    pub volume: Arc<Volume>,
    pub origin: Option<Origin>,
    /// The failures of the data device that the table passes on.
    pub passed_on: PassedOn,
    /// The mapped device's own failure count.
    failures: Arc<FailureCount>,
    attachment: u64,
    /// Requests that would wait are handed back to the device, which is being suspended.
    handing_back: AtomicBool,
    /// The table serves no more, and does not block a deletion of the volume.
    left: AtomicBool,
    /// Where the table went on.
    next: OnceLock<Arc<VolumeAttachment>>,
}

impl Drop for VolumeAttachment {
    fn drop(&mut self) {
        self.leave();
    }
}

impl VolumeAttachment {
    /// A place at an open volume, of which the caller became a user for `failures`. The table has
    /// passed on so many failures before.
    pub fn new(
        pool: Arc<Pool>,
        volume: Arc<Volume>,
        origin: Option<Origin>,
        failures: &Arc<FailureCount>,
        before: u64,
    ) -> VolumeAttachment {
        VolumeAttachment {
            attachment: pool.new_attachment(),
            passed_on: PassedOn::new(pool.data_disk().failures_told(), before),
            pool,
            volume,
            origin,
            failures: failures.clone(),
            handing_back: AtomicBool::new(false),
            left: AtomicBool::new(false),
            next: OnceLock::new(),
        }
    }

    /// Where a range lies.
    pub fn span(&self, range: SectorRange) -> BlockSpan {
        BlockSpan::of(range, self.pool.block.0)
    }

    /// A request at this place goes to this data block, and those after it.
    pub fn to_data(&self, span: &BlockSpan, data: DataBlock) -> Verdict<'_> {
        let sector = self.pool.data_range(data, 1).start + SectorCount(span.offset);
        Verdict::Remapped { disk: self.pool.data_disk().as_ref(), sector }
    }

    /// The last of the chain.
    #[inline(always)]
    pub fn last(first: &Arc<VolumeAttachment>) -> &Arc<VolumeAttachment> {
        let mut attachment = first;
        while let Some(next) = attachment.next.get() {
            attachment = next;
        }
        attachment
    }

    /// The table continues there. Verbs of a device run one at a time, so there is no concurrent
    /// call.
    pub fn go_on(&self, next: Arc<VolumeAttachment>) {
        self.next.get_or_init(|| next);
    }

    /// The table has ended: it is no user of the volume any more.
    pub fn leave(&self) {
        if !self.left.swap(true, Ordering::AcqRel) {
            self.pool.close_volume(&self.volume, &self.failures);
        }
    }

    /// True once the table has ended.
    pub fn has_left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }

    /// Has a request wait in one of the pool's lists, unless these are handed back now.
    pub fn wait(&self, env: &Env, request: &Request, park: impl FnOnce(Parked)) {
        park(Parked { id: request.id(), attachment: self.attachment });
        // After it was parked: the task that set this flag may have looked too early.
        if self.handing_back.load(Ordering::Acquire) {
            self.pool.hand_back(env, self.attachment);
        }
    }

    /// From now on requests that would wait are handed back, and so are those that wait already.
    pub fn hand_back(&self, env: &Env) {
        self.handing_back.store(true, Ordering::Release);
        self.pool.hand_back(env, self.attachment);
    }

    /// The table is live again: requests may wait.
    pub fn serve_again(&self) {
        self.handing_back.store(false, Ordering::Release);
    }

    /// Maps the blocks of the cell that begins at `block` to the filled data blocks, or gives those
    /// back. Then the requests that waited for the cell continue.
    pub fn finish_fill(&self, env: &Env, block: u64, result: IoResult) -> IoResult {
        let (pool, volume) = (&self.pool, &self.volume);
        let mut shard = volume.map.shard(block);
        let (cell, waiters) = shard.release(block);
        let data = DataRun { start: cell.data, count: cell.count };
        // A pool that was rolled back has forgotten the group, and changes nothing any more.
        let result = result.and(if pool.mode().is_writable() { Ok(()) } else { Err(IoError::IO) });
        match result {
            Ok(()) => map_blocks(pool, volume, &mut shard, block, data),
            Err(_) => {
                pool.room.give_back(&pool.metadata, cell.count);
                pool.metadata.allocator().put_back(data);
            }
        }
        drop(shard);
        if result.is_err() {
            pool.space_came();
        }
        waiters.into_iter().for_each(|id| env.remap(id));
        result
    }
}

/// Maps blocks from `block` on to these data blocks, as of now.
pub(super) fn map_blocks(
    pool: &Pool,
    volume: &Volume,
    shard: &mut Shard,
    block: u64,
    data: DataRun,
) {
    let (time, stamp) = (pool.time.load(Ordering::Acquire), pool.stamp(volume));
    for (at, data) in (block..).zip(data.blocks()) {
        shard.change(at, Some(Mapping { block: data, time }), stamp, false);
    }
    let first = Mapping { block: data.start, time };
    pool.acknowledge(&Changed::mapped(volume.id, block, first, data.count), data.count);
}
