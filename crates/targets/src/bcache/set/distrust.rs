//! Clean extents that may differ from the backing device leave the set (`trust`).
//!
//! # Order
//! 1. A session begins.
//! 2. Leaf by leaf, the extents leave the tree in memory. Reads of their sectors go to the backing
//!    device from then on; the leaves on the device are behind there.
//! 3. A checkpoint, after some leaves: these follow. Then 2, until no leaf is left.
//!
//! Holes that no other extent lies between are one key, so a leaf that loses all its extents gets
//! a few keys, or is replaced. The first checkpoint is of one leaf: where no bucket is free, it may
//! empty buckets with other clean data. Each next one is of up to twice as many leaves, as it finds
//! the buckets free that the extents before had.
//!
//! A crash leaves some of the extents. The map does not vouch for them either.

use cairn_block::{Env, yield_once};
use cairn_format::bcache::{Key, OFFSET_MAX};

use super::Set;
use super::core::Core;
use super::session::{Session, WriteError};
use crate::bcache::btree::Span;

/// How many keys a checkpoint has at most, but for those of its last leaf.
const KEYS_AT_ONCE: usize = 8192;

/// What became of the extents of a leaf.
pub(in super::super) struct LeafDropped {
    /// Sectors that left.
    pub sectors: u64,
    /// The first sector of the volume in the next leaf; none if this was the last one.
    pub next: Option<u64>,
}

impl Session<'_> {
    /// The clean extents of a volume for which `is_suspect` answers true leave the set, durably.
    /// Answers how many sectors these are.
    ///
    /// # Errors
    /// The set cannot be written.
    pub async fn drop_clean(
        &self,
        inode: u32,
        is_suspect: &impl Fn(&Key) -> bool,
    ) -> Result<u64, WriteError> {
        self.begin().await?;
        // What a bucket loses from now on counts after a checkpoint (K1).
        self.with(|set| set.buckets.serve_clients());
        let (mut next, mut sectors, mut most) = (Some(0), 0, 1);
        while next.is_some() {
            let (mut leaves, before) = (0, self.with(|set| set.changes.behind()));
            while let Some(from) = next.filter(|_| leaves < most) {
                let dropped = self.core.drop_clean_of_leaf(self.env, inode, from, is_suspect);
                let dropped = dropped.await?;
                let behind = self.with(|set| set.changes.behind());
                (next, sectors, leaves) = (dropped.next, sectors + dropped.sectors, leaves + 1);
                yield_once().await;
                if behind >= before + KEYS_AT_ONCE {
                    break;
                }
            }
            most = leaves * 2;
            self.checkpoint().await?;
            self.trim().await?;
        }
        Ok(sectors)
    }
}

impl Core {
    /// The same of the leaf that has this sector of the volume, in memory.
    ///
    /// # Errors
    /// The set is broken.
    pub async fn drop_clean_of_leaf(
        &self,
        env: &Env,
        inode: u32,
        from: u64,
        is_suspect: &impl Fn(&Key) -> bool,
    ) -> Result<LeafDropped, WriteError> {
        let span = Span { inode, start: from, end: from + 1 };
        self.with_present(env, [span], |set| set.drop_clean_of_leaf(inode, from, is_suspect)).await
    }
}

impl Set {
    fn drop_clean_of_leaf(
        &mut self,
        inode: u32,
        from: u64,
        is_suspect: &impl Fn(&Key) -> bool,
    ) -> LeafDropped {
        let (leaf, end) = self.tree.leaf_at(inode, from);
        let mut sectors = 0;
        self.evict_of_leaf(leaf, |key| {
            let leaves = key.inode() == inode && !key.is_dirty() && is_suspect(key);
            sectors += if leaves { key.sectors() } else { 0 };
            leaves
        });
        LeafDropped { sectors, next: (end < OFFSET_MAX).then_some(end) }
    }
}
