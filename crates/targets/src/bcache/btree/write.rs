//! Writing bsets: the one place that does.
//!
//! # Order
//! The levels of a plan are written from the leaves up. In each level:
//!
//! 1. The fresh nodes, and of each appended bset all but its first block of the drive (the *tail*).
//! 2. A flush, if there was any of these; of leaves always: it makes the data of their keys durable
//!    (R3), which had completed when the plan was made.
//! 3. The first block of each appended bset (the *head*), which has its header.
//! 4. A flush.
//!
//! Then, if the root is another one, an entry of the journal that names it.
//!
//! # What a crash leaves
//! - Before 4: nothing leads to the fresh nodes. Of an appended bset the head is there or not, as
//!   the drive writes one block of its own whole. If it is not, the block there has the sequence of
//!   something else, and the log ends where it ended before. If it is, the tail is durable. So no
//!   power cut leaves a part of a bset, on which a kernel shuts the cache set down.
//! - After 4 of the leaves: each leaf has its old or its new keys, independently of others. Keys of
//!   leaves are put there for two reasons: the journal has them, and has them still; or dirty keys
//!   become clean, and each does so by itself.
//! - Between levels: fresh nodes to which nothing leads, and old ones that are whole. What replaces
//!   an old node is durable before its parent says so, and the old node's bucket stays as it is
//!   until the whole plan is durable.
//! - A parent's bset has the keys to the fresh children and those that free the old ones, so both
//!   count together.
//! - Before the entry that names a fresh root: the old root, whole, with the old children.
//!
//! After the first write or flush that fails, the device counts as failed until it is opened again.

use cairn_block::{Env, IoResult, mutants};

use super::Plan;
use super::node::BsetWrite;
use crate::bcache::canary::{Bug, planted};
use crate::bcache::set::{CacheDevice, count_written};

/// Writes a plan, but for the entry that names a fresh root.
///
/// # Errors
/// The device failed.
pub(in super::super) async fn write_plan(env: &Env, cache: &CacheDevice, plan: &Plan) -> IoResult {
    let head_bytes = cache.block_bytes();
    let bsets = plan.levels.iter().flat_map(|level| level.fresh.iter().chain(&level.appended));
    count_written(&cache.work.nodes, bsets.map(|bset| bset.bytes.len() as u64).sum());
    for (height, level) in plan.levels.iter().enumerate() {
        let (heads, tails): (Vec<_>, Vec<_>) =
            level.appended.iter().map(|bset| cut(bset, head_bytes)).unzip();
        let fresh = level.fresh.iter().map(|bset| (bset.sector, &bset.bytes[..]));
        let first: Vec<_> = fresh.chain(tails.into_iter().flatten()).collect();
        cache.write_all(env, &first).await?;
        let is_late = plan.is_coalescing && planted(Bug::CoalescedBeforeDurable);
        let is_ordered = !planted(Bug::ParentBeforeChild) && !is_late;
        // The data of the keys of leaves (R3), or tails and fresh nodes.
        let is_volatile = height == 0 || !first.is_empty();
        if is_volatile && is_ordered && !planted(Bug::HeadBeforeTail) {
            mutants::step("bcache: flush before the heads", (), cache.flush(env)).await?;
        }
        cache.write_all(env, &heads).await?;
        if !heads.is_empty() && is_ordered {
            mutants::step("bcache: flush of a level", (), cache.flush(env)).await?;
        }
    }
    Ok(())
}

/// Bytes, and the sector that they go to.
type Write<'a> = (u64, &'a [u8]);

/// The head of a bset, and its tail, if it has one.
fn cut(bset: &BsetWrite, head_bytes: usize) -> (Write<'_>, Option<Write<'_>>) {
    let (head, tail) = bset.bytes.split_at(head_bytes.min(bset.bytes.len()));
    let behind = bset.sector + (head.len() / cairn_format::bcache::SECTOR_BYTES) as u64;
    ((bset.sector, head), (!tail.is_empty()).then_some((behind, tail)))
}
