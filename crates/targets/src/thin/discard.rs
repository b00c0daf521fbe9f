//! Discards: remove the mappings of whole blocks and, once that is durable, free the data blocks.
//!
//! An unmapped range needs no work, however long it is: a new volume is discarded at once. A
//! discard inside one loaded group is done at once. Any other discard is a task that goes from
//! group to group, and asks the metadata for the next mapping.

use std::ops::Range;

use cairn_block::{Env, IoError, IoResult, Request, SectorRange, Verdict, yield_once};

use super::acknowledged::Changed;
use super::arena::GROUP_BLOCKS;
use super::attachment::VolumeAttachment;
use super::config::Discards;
use super::index::Shard;
use super::map::{NO_SPACE, Thin};
use super::pool::Mode;
use super::stock::Purpose;

impl Thin {
    pub(super) fn map_discard<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        let attachment = self.attachment();
        let (pool, volume) = (&attachment.pool, &attachment.volume);
        if pool.discards() == Discards::Ignore {
            return Verdict::Failed(IoError::UNSUPPORTED);
        }
        let (first, end) = self.whole_blocks(request.range);
        let mut shard = volume.map.shard(first);
        if pool.holds_back(volume) {
            drop(shard);
            return self.wait_at_gate(env, request);
        }
        match pool.mode() {
            Mode::Fail => return Verdict::Failed(IoError::IO),
            // As the kernel: success, without effect.
            Mode::ReadOnly => return Verdict::Completed,
            Mode::Write | Mode::OutOfData | Mode::OutOfMetadata => (),
        }
        let end = end.min(volume.map.end());
        if first >= end {
            return Verdict::Completed;
        }
        let one_group = first / GROUP_BLOCKS == (end - 1) / GROUP_BLOCKS;
        let count = end - first;
        if one_group && shard.is_loaded(first) && shard.clear_of_cells(first, count) == count {
            let mapped = (first..end).filter(|block| shard.get(*block).is_some()).count() as u64;
            let can = pool.stocks.take_removals(env.reactor(), mapped, &pool.room, &pool.metadata);
            if can == mapped {
                unmap_some(attachment, &mut shard, first..end, mapped);
                return Verdict::Completed;
            }
            pool.room.give_back(&pool.metadata, can);
        }
        // Counted as in flight: a task that closes the gate waits for its end.
        let epoch = pool.epochs.enter(env.reactor(), 0);
        drop(shard);
        let (attachment, id) = (attachment.clone(), request.id());
        pool.tasks.spawn(env, async move |env| {
            let result = attachment.discard(env, first, end).await;
            attachment.pool.epochs.leave(env.reactor(), epoch);
            env.complete(id, result);
        });
        Verdict::Queued
    }

    /// The blocks that lie wholly in a range.
    fn whole_blocks(&self, range: SectorRange) -> (u64, u64) {
        let size = self.attachment().pool.block.0;
        let (first, end) = (range.start.0.div_ceil(size), range.end().0 / size);
        (first, end.max(first))
    }
}

impl VolumeAttachment {
    /// Unmaps a range, group by group.
    async fn discard(&self, env: &Env, first: u64, end: u64) -> IoResult {
        let mut next = first;
        while let Some(block) = self.next_mapped(env, next, end).await? {
            let group = block / GROUP_BLOCKS;
            let group_end = ((group + 1) * GROUP_BLOCKS).min(end);
            next = self.discard_in_group(env, block, group_end).await?;
            // Loaded groups are handled without waiting, with a yield between groups.
            yield_once().await;
        }
        Ok(())
    }

    /// The first block in a range that may be mapped: as the loaded groups say, or the metadata.
    async fn next_mapped(
        &self,
        env: &Env,
        mut from: u64,
        end: u64,
    ) -> Result<Option<u64>, IoError> {
        // Groups that are loaded are known without a look at all of them.
        while from < end {
            let Some(is_mapped) = self.volume.map.shard(from).has_mappings(from) else { break };
            if is_mapped {
                return Ok(Some(from));
            }
            from = (from / GROUP_BLOCKS + 1) * GROUP_BLOCKS;
        }
        if from >= end {
            return Ok(None);
        }
        let in_metadata = self.pool.metadata.next_mapped(env, self.volume.id, from).await;
        let in_metadata = in_metadata.map_err(|error| error.io())?;
        if in_metadata.is_some_and(|block| block / GROUP_BLOCKS == from / GROUP_BLOCKS) {
            return Ok(in_metadata.filter(|block| *block < end));
        }
        let groups = from / GROUP_BLOCKS..end.div_ceil(GROUP_BLOCKS);
        let loaded = self.volume.map.first_loaded_group(groups);
        let in_memory = loaded.map(|group| (group * GROUP_BLOCKS).max(from));
        let next = match (in_metadata, in_memory) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        Ok(next.filter(|block| *block < end))
    }

    /// Unmaps a range of one group; answers where to go on.
    async fn discard_in_group(&self, env: &Env, first: u64, end: u64) -> Result<u64, IoError> {
        let (pool, volume) = (&self.pool, &self.volume);
        pool.loaded(env, volume, first / GROUP_BLOCKS).await?;
        let listener = pool.changed.listen();
        let can = {
            let mut shard = volume.map.shard(first);
            if !pool.mode().is_writable() {
                return Ok(end);
            }
            let clear = shard.clear_of_cells(first, end - first);
            if clear == 0 || !shard.is_loaded(first) {
                None
            } else {
                let some = first..first + clear;
                let mapped = some.filter(|block| shard.get(*block).is_some()).count() as u64;
                let can =
                    pool.stocks.take_removals(env.reactor(), mapped, &pool.room, &pool.metadata);
                let done = unmap_some(self, &mut shard, first..first + clear, can);
                if done > first {
                    return Ok(done);
                }
                Some(can)
            }
        };
        match can {
            // The metadata has no room before a commit, or not even then.
            Some(0) if !pool.has_room(Purpose::Discard) => {
                let fills = pool.metadata.acknowledged().is_filling();
                if !fills && !pool.room.is_granted() && !volume.is_dirty() {
                    return Err(NO_SPACE);
                }
                pool.commit(env).await?;
                pool.rest_for_change(env, listener).await;
            }
            Some(0) => (),
            // A cell, or the group was forgotten: look again a little later.
            _ => pool.rest_for_change(env, listener).await,
        }
        Ok(first)
    }
}

/// Unmaps up to `can` mapped blocks of a range of one loaded group; answers the first that was not
/// looked at. The changes were granted.
fn unmap_some(
    attachment: &VolumeAttachment,
    shard: &mut Shard,
    range: Range<u64>,
    can: u64,
) -> u64 {
    let (pool, volume) = (&attachment.pool, &attachment.volume);
    let (mut changes, mut done) = (0, range.end);
    for block in range.clone() {
        if shard.get(block).is_none() {
            continue;
        }
        if changes == can {
            done = block;
            break;
        }
        changes += 1;
        shard.change(block, None, pool.stamp(volume), true);
    }
    pool.acknowledge(&Changed::unmapped(volume.id, range.start..done), changes);
    done
}
