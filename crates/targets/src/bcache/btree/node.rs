//! A node: where it is, where its log of bsets ends, and the extents of a leaf.

use cairn_format::bcache::node::{SET_HEADER_BYTES, encode_set};
use cairn_format::bcache::{Key, Pointer, SECTOR_BYTES, SetMagic};

use super::extents::Extents;
use super::presence::{Presence, PresenceWord};
use super::unwritten::Span;

/// A node of the tree.
pub(in super::super) struct Node {
    key: Key,
    /// The random number of its bsets.
    seq: u64,
    /// Where the next bset goes, in bytes.
    end: usize,
    /// Of a leaf, unless it is absent.
    extents: Extents,
    presence: PresenceWord,
    /// The number of the checkpoint that writes its last change.
    pub(super) changed_in: u32,
}

/// Bytes to write to a node.
pub(super) struct BsetWrite {
    /// The first sector.
    pub sector: u64,
    /// Whole blocks.
    pub bytes: Vec<u8>,
}

impl Node {
    /// A node whose bsets have `seq` and end at byte `end`.
    pub fn new(key: Key, seq: u64, end: usize) -> Node {
        let (extents, presence) = (Extents::default(), PresenceWord::new(Presence::Idle));
        Node { key, seq, end, extents, presence, changed_in: 0 }
    }

    /// The key that leads to it.
    pub fn key(&self) -> Key {
        self.key
    }

    /// Where on the device it is.
    pub fn pointer(&self) -> Pointer {
        self.key.cached_at().expect("a node lies on the device")
    }

    /// The highest position that it may hold.
    pub fn position(&self) -> (u32, u64) {
        self.key.position()
    }

    /// The random number of its bsets.
    pub(super) fn seq(&self) -> u64 {
        self.seq
    }

    /// Where the next bset goes, in bytes.
    pub(super) fn end(&self) -> usize {
        self.end
    }

    /// The extents of a leaf, which is present (M2).
    #[inline]
    pub(super) fn extents(&self) -> &Extents {
        assert!(!self.is_absent(), "M2: {:?} is absent", self.key);
        &self.extents
    }

    /// The extents of a leaf, which is present, to change them (M2). It is found by that (M4).
    pub(super) fn extents_mut(&mut self) -> &mut Extents {
        assert!(!self.is_absent(), "M2: {:?} is absent", self.key);
        self.touch();
        &mut self.extents
    }

    /// How many extents a leaf has.
    pub fn count(&self) -> usize {
        match self.presence.get() {
            Presence::Absent { extents, .. } => extents as usize,
            _ => self.extents.len(),
        }
    }

    pub(super) fn presence(&self) -> Presence {
        self.presence.get()
    }

    pub(super) fn set_presence(&self, presence: Presence) {
        self.presence.set(presence);
    }

    #[inline]
    pub(super) fn is_absent(&self) -> bool {
        self.presence.is_absent()
    }

    /// A present leaf was found.
    #[inline]
    pub(super) fn touch(&self) {
        self.presence.touch();
    }

    /// A leaf becomes absent. Answers how many extents it has.
    pub fn leave(&mut self) -> usize {
        let extents = std::mem::take(&mut self.extents);
        let has_dirty = extents.iter().any(Key::is_dirty);
        self.presence.set(Presence::Absent { extents: extents.len() as u32, has_dirty });
        extents.len()
    }

    /// An absent leaf becomes present.
    pub(super) fn enter(&mut self, extents: Extents) {
        self.extents = extents;
        self.touch();
    }

    /// The keys that bring a leaf on the device up to date in these sectors, which are in order.
    pub(super) fn keys_in(&self, part: &[Span]) -> Vec<Key> {
        let mut keys = Vec::with_capacity(part.len());
        for span in part {
            span.keys_of(self.extents().iter_from((span.inode, span.start)), &mut keys);
        }
        keys
    }

    /// Adds an extent behind those of a leaf that is being read.
    pub fn push_extent(&mut self, extent: Key) {
        self.extents.push(extent);
    }

    /// All extents of a leaf that is being read are there: gives back what was taken for more.
    pub fn shrink(&mut self) {
        self.extents.shrink();
    }

    /// Bytes that it has room for.
    pub fn capacity(&self) -> usize {
        self.key.sectors() as usize * SECTOR_BYTES
    }

    /// True if there is room for a bset of so many bytes.
    pub(super) fn has_room(&self, bset_bytes: usize, block_bytes: usize) -> bool {
        self.end + bset_bytes.next_multiple_of(block_bytes) <= self.capacity()
    }

    /// Appends a bset of these keys to the log, if there is room.
    pub(super) fn append(
        &mut self,
        keys: &[Key],
        magic: SetMagic,
        block_bytes: usize,
    ) -> Option<BsetWrite> {
        if !self.has_room(bset_bytes(keys), block_bytes) {
            return None;
        }
        let length = bset_bytes(keys).next_multiple_of(block_bytes);
        let sector = self.pointer().sector() + (self.end / SECTOR_BYTES) as u64;
        let mut bytes = Vec::with_capacity(length);
        encode_set(&mut bytes, self.pointer(), magic, self.seq, keys, block_bytes);
        self.end += length;
        Some(BsetWrite { sector, bytes })
    }
}

/// Bytes of a bset of these keys, without padding.
pub(super) fn bset_bytes(keys: &[Key]) -> usize {
    SET_HEADER_BYTES + keys.iter().map(Key::word_count).sum::<usize>() * 8
}
