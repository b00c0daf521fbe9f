//! Finding extents.

use cairn_format::bcache::{Key, OFFSET_MAX};

use super::{Node, Tree};
use crate::bcache::work;

/// What lies at a sector of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Found {
    /// This extent, from the sector on.
    Extent(Key),
    /// Nothing, up to the next extent or the end of what the leaf may hold.
    Hole {
        /// The first sector that may have an extent again.
        end: u64,
    },
}

impl Tree {
    /// What lies at a sector of a volume.
    pub fn find(&self, inode: u32, sector: u64) -> Found {
        let leaf = &self.levels[0][self.leaf_of((inode, sector))];
        match leaf.extents().find((inode, sector)) {
            Some(key) if key.inode() == inode && key.start() <= sector => {
                Found::Extent(key.part(sector, OFFSET_MAX).expect("it goes beyond the sector"))
            }
            Some(key) if key.inode() == inode => Found::Hole { end: key.start() },
            _ => Found::Hole { end: upper(leaf, inode) },
        }
    }

    /// The extents of a volume from a sector on.
    pub fn extents_from(&self, inode: u32, sector: u64) -> impl Iterator<Item = &Key> {
        let first = self.leaf_of((inode, sector));
        let behind = self.levels[0][first + 1..].iter().flat_map(|leaf| leaf.extents().iter());
        let extents = self.levels[0][first].extents().iter_from((inode, sector)).chain(behind);
        let own = extents.take_while(move |key| key.inode() == inode);
        own.inspect(|_| work::did(1))
    }

    /// The leaf that has a sector of a volume, and up to which sector it has those of the volume.
    pub fn leaf_at(&self, inode: u32, sector: u64) -> (usize, u64) {
        let leaf = self.leaf_of((inode, sector));
        (leaf, upper(&self.levels[0][leaf], inode))
    }

    /// The leaf for what begins at a position: the first whose own is behind it.
    pub(super) fn leaf_of(&self, at: (u32, u64)) -> usize {
        let leaves = &self.levels[0];
        leaves.partition_point(|leaf| leaf.position() <= at).min(leaves.len() - 1)
    }
}

/// Up to which sector of a volume a leaf may hold extents.
pub(super) fn upper(leaf: &Node, inode: u32) -> u64 {
    let (last, end) = leaf.position();
    if last == inode { end } else { OFFSET_MAX }
}
