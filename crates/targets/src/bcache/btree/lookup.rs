//! Finding extents.

use cairn_format::bcache::{Key, OFFSET_MAX};

use super::extents::Position;
use super::unwritten::Span;
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
    /// What an absent leaf says.
    Absent,
}

impl Tree {
    /// What lies at a sector of a volume.
    pub fn find(&self, inode: u32, sector: u64) -> Found {
        let index = self.leaf_of((inode, sector));
        let leaf = &self.levels[0][index];
        if self.place_if_absent(index).is_some() {
            return Found::Absent;
        }
        match leaf.extents().find((inode, sector)) {
            Some(key) if key.inode() == inode && key.start() <= sector => {
                Found::Extent(key.part(sector, OFFSET_MAX).expect("it goes beyond the sector"))
            }
            Some(key) if key.inode() == inode => Found::Hole { end: key.start() },
            _ => Found::Hole { end: upper(leaf, inode) },
        }
    }

    /// The extents that overlap a span, in order. Its leaves are present (M2).
    pub fn extents_in(&self, span: &Span) -> impl Iterator<Item = &Key> {
        self.extents_between((span.inode, span.start), (span.inode, span.end))
    }

    /// The extents that end behind the one position and begin before the other, in order. Their
    /// leaves are present (M2).
    pub fn extents_between(&self, from: Position, upto: Position) -> impl Iterator<Item = &Key> {
        let first = self.leaf_of(from);
        let behind = self.levels[0][first..].iter().zip(&self.levels[0][first + 1..]);
        let behind = behind.take_while(move |(before, _)| before.position() < upto);
        let behind = behind.flat_map(|(_, leaf)| leaf.extents().iter());
        let extents = self.levels[0][first].extents().iter_from(from).chain(behind);
        extents.take_while(move |key| key.begin() < upto).inspect(|_| work::did(1))
    }

    /// The first extent of a span, whose start is in the leaf `near`, perhaps. One behind the key
    /// that was laid last takes the least time.
    pub(super) fn first_near(&self, near: usize, span: &Span) -> Option<&Key> {
        let (from, upto) = ((span.inode, span.start), (span.inode, span.end));
        let leaf = &self.levels[0][self.leaf_near(near, from)];
        work::did(1);
        match leaf.extents().find_next(from) {
            Some(key) => Some(key).filter(|key| key.begin() < upto),
            None if leaf.position() < upto => self.extents_between(leaf.position(), upto).next(),
            None => None,
        }
    }

    /// The leaf that has a sector of a volume, and up to which sector it has those of the volume.
    pub fn leaf_at(&self, inode: u32, sector: u64) -> (usize, u64) {
        let leaf = self.leaf_of((inode, sector));
        (leaf, upper(&self.levels[0][leaf], inode))
    }

    /// The leaf for what begins at a position: the first whose own is behind it.
    pub fn leaf_of(&self, at: Position) -> usize {
        let leaves = &self.levels[0];
        leaves.partition_point(|leaf| leaf.position() <= at).min(leaves.len() - 1)
    }

    /// The same; it is `near`, perhaps.
    pub(super) fn leaf_near(&self, near: usize, at: Position) -> usize {
        let is_near = at >= self.after(0, near) && at < self.levels[0][near].position();
        if is_near { near } else { self.leaf_of(at) }
    }
}

/// Up to which sector of a volume a leaf may hold extents.
pub(super) fn upper(leaf: &Node, inode: u32) -> u64 {
    let (last, end) = leaf.position();
    if last == inode { end } else { OFFSET_MAX }
}
