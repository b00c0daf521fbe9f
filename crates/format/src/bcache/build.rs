//! A whole cache from a stream of extents: leaves first, built in order, then the nodes above them,
//! volumes, priorities, and one entry of the journal that names them all.
//!
//! Buckets are taken in order from the journal's end on, for data and metadata alike, and each
//! structure is written once. Nothing is a cache before the superblock that [`Builder::finish`]
//! returns is written; the caller does so when all else is durable.
//!
//! A caller may place data himself: [`Builder::keep_for_data`] takes a range of buckets out of that
//! order, and the extents of [`Builder::add_at`] lie in them where their pointers say. So every
//! bucket has data or metadata, never both. That no two extents share sectors is the caller's
//! promise: a builder that noticed it would need memory for each.
//!
//! Memory: four bytes per bucket, the keys of one node per level of the tree, and the bytes of one
//! structure; not the extents, whose number does not matter.

use std::ops::Range;

use super::journal::{self, Header};
use super::node::{SET_HEADER_BYTES, encode_set};
use super::priorities::{self, JUST_USED, METADATA, Record};
use super::uuids::{self, UuidEntry};
use super::{CacheSuperblock, Generation, Geometry, INODE_MAX, Key, OFFSET_MAX, Pointer, SetMagic};
pub use crate::write_sectors::WriteSectors;

/// How much of a node is filled, of five parts: a split begins beyond it.
const FILL: usize = 4;
/// Words of a key with a pointer.
const KEY_WORDS: usize = 3;

/// Why a cache cannot be built.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError<E> {
    /// The system refused to write.
    #[error("cannot be written")]
    Write(E),
    /// There are not enough buckets.
    #[error("buckets: found {0}, expected more")]
    Full(u64),
    /// Extents must come in order.
    #[error("extent {found:?}: found it behind {before:?}, expected extents in order")]
    Order {
        /// The extent before it.
        before: Key,
        /// The extent.
        found: Key,
    },
    /// Buckets that cannot be kept for data.
    #[error("buckets for data: found {found:?}, expected them within {expected:?}")]
    Kept {
        /// The buckets.
        found: Range<u64>,
        /// Those behind the journal.
        expected: Range<u64>,
    },
    /// An extent whose place is not one of generation 0 in one bucket that is kept for data.
    #[error("extent {found:?}: found it elsewhere, expected it in one of the buckets {expected:?}")]
    Place {
        /// The extent.
        found: Key,
        /// The buckets that are kept for data.
        expected: Range<u64>,
    },
}

/// The buckets of a new cache behind its superblock and its journal: for nodes, priorities, the
/// array of uuids, and data.
#[must_use]
pub fn buckets_behind_journal(geometry: &Geometry) -> Range<u64> {
    let first = geometry.usable().start + u64::from(geometry.journal_buckets());
    first.min(geometry.buckets())..geometry.buckets()
}

/// How many of them get metadata if there are so many extents.
#[must_use]
pub fn metadata_buckets(geometry: &Geometry, extents: u64) -> u64 {
    const UUIDS: u64 = 1;
    let mut buckets = UUIDS + geometry.priority_sets();
    let mut nodes = extents;
    loop {
        nodes = nodes.div_ceil(node_keys(geometry) as u64).max(1);
        buckets += nodes;
        if nodes == 1 {
            return buckets;
        }
    }
}

/// How many keys with a pointer a node takes.
fn node_keys(geometry: &Geometry) -> usize {
    let bytes = geometry.node_sectors() as usize * super::SECTOR_BYTES - SET_HEADER_BYTES;
    bytes * FILL / 5 / (KEY_WORDS * 8)
}

/// Builds a cache.
pub struct Builder<W> {
    writer: W,
    superblock: CacheSuperblock,
    geometry: Geometry,
    magic: SetMagic,
    buckets: Vec<Record>,
    /// The next bucket that nothing is in, unless it is kept.
    next_bucket: u64,
    /// Buckets for extents that the caller places.
    kept: Range<u64>,
    /// The bucket that data goes to, and its sectors in use.
    data: Option<(u64, u64)>,
    last: Option<Key>,
    /// Keys of nodes not yet full, from the leaves up.
    levels: Vec<Vec<Key>>,
    /// The random number of the next node.
    seq: u64,
    /// The pieces that the last extent was cut into.
    placed: Vec<Key>,
    bytes: Vec<u8>,
}

impl<W: WriteSectors> Builder<W> {
    /// A cache without extents. `superblock` is a fresh one; `seed` any number: nodes get numbers
    /// from it on.
    #[must_use]
    pub fn new(superblock: &CacheSuperblock, seed: u64, writer: W) -> Builder<W> {
        let geometry = *superblock.geometry();
        let superblock = superblock.in_use_with_journal(geometry.journal_buckets());
        let next_bucket = superblock.journal_buckets().end;
        Builder {
            writer,
            geometry,
            magic: superblock.set_uuid().set_magic(),
            buckets: vec![Record::default(); geometry.buckets() as usize],
            next_bucket,
            kept: 0..0,
            data: None,
            last: None,
            levels: vec![Vec::new()],
            seq: seed | 1,
            placed: Vec::new(),
            bytes: Vec::new(),
            superblock,
        }
    }

    /// Keeps these buckets for extents that the caller places. Comes before all extents.
    ///
    /// # Errors
    /// Not all of them lie behind the journal.
    pub fn keep_for_data(self, buckets: Range<u64>) -> Result<Builder<W>, BuildError<W::Error>> {
        debug_assert!(self.last.is_none(), "buckets are kept before anything lies in them");
        let expected = buckets_behind_journal(&self.geometry);
        if buckets.start < expected.start || buckets.end > expected.end {
            return Err(BuildError::Kept { found: buckets, expected });
        }
        Ok(Builder { kept: buckets, ..self })
    }

    /// Adds an extent behind all others, which lies where its pointer says.
    ///
    /// # Errors
    /// It does not lie in one of the buckets that are kept for data, the tree has no room, the
    /// system refused to write, or the extent is not in order.
    pub fn add_at(&mut self, extent: Key) -> Result<(), BuildError<W::Error>> {
        let bucket = self.kept_bucket_of(&extent);
        let expected = self.kept.clone();
        let bucket = bucket.ok_or(BuildError::Place { found: extent, expected })?;
        self.follow(extent)?;
        self.buckets[bucket as usize].priority = JUST_USED;
        self.add_key(0, extent)
    }

    /// The bucket of an extent, if it is kept for data.
    fn kept_bucket_of(&self, extent: &Key) -> Option<u64> {
        let pointer = extent.cached_at()?;
        let bucket = self.geometry.bucket_of(pointer.sector());
        let is_good = extent.sectors() > 0
            && pointer.generation() == Generation::default()
            && self.geometry.holds(pointer.sector(), extent.sectors())
            && self.kept.contains(&bucket);
        is_good.then_some(bucket)
    }

    /// Notes the extent that comes next.
    fn follow(&mut self, extent: Key) -> Result<(), BuildError<W::Error>> {
        if let Some(before) = self.last.filter(|before| before.position() > extent.begin()) {
            return Err(BuildError::Order { before, found: extent });
        }
        self.last = Some(extent);
        Ok(())
    }

    /// Adds an extent behind all others. Answers where its data is to be: the extent with a
    /// pointer, in pieces where it goes over the end of a bucket.
    ///
    /// # Errors
    /// There is no room, the system refused to write, or the extent is not in order.
    pub fn add(&mut self, extent: Key) -> Result<&[Key], BuildError<W::Error>> {
        self.follow(extent)?;
        self.placed.clear();
        let mut rest = Some(extent).filter(|extent| extent.sectors() > 0);
        while let Some(extent) = rest {
            let (sector, room) = self.room_for_data()?;
            let end = extent.start() + extent.sectors().min(room);
            let piece = extent.part(0, end).expect("there is room");
            let piece = piece.at(Pointer::new(sector, Generation::default()));
            self.data = self.data.map(|(bucket, used)| (bucket, used + piece.sectors()));
            self.add_key(0, piece)?;
            self.placed.push(piece);
            rest = extent.part(end, OFFSET_MAX);
        }
        Ok(&self.placed)
    }

    /// Ends the cache with these volumes, the inode of each being its index. Answers the superblock
    /// that makes it one.
    ///
    /// # Errors
    /// There is no room, or the system refused to write.
    pub fn finish(
        mut self,
        volumes: &[UuidEntry],
    ) -> Result<CacheSuperblock, BuildError<W::Error>> {
        let (root, root_level) = self.finish_tree()?;
        let bucket = self.take_bucket(METADATA)?;
        let bytes = uuids::encode(volumes, self.geometry.meta_bytes());
        self.write(self.geometry.sector_of(bucket), &bytes)?;
        let uuids = Key::new(0, 0, self.geometry.meta_sectors())
            .at(Pointer::new(self.geometry.sector_of(bucket), Generation::default()));
        let priorities = self.write_priorities()?;
        let header = Header {
            seq: 1,
            last_seq: 1,
            has_long_uuids: true,
            uuids,
            root,
            root_level,
            priorities,
        };
        let bytes = journal::encode(&header, &[], self.magic, self.geometry.block_bytes());
        // A ring begins with its second bucket, as the kernel's does.
        let bucket = self.superblock.journal_buckets().start + 1;
        self.write(self.geometry.sector_of(bucket), &bytes)?;
        Ok(self.superblock)
    }

    /// Where data may go next, and how many sectors there are for it.
    fn room_for_data(&mut self) -> Result<(u64, u64), BuildError<W::Error>> {
        let bucket_sectors = self.geometry.bucket_sectors();
        let (bucket, used) = match self.data.filter(|(_, used)| *used < bucket_sectors) {
            Some(data) => data,
            None => (self.take_bucket(JUST_USED)?, 0),
        };
        self.data = Some((bucket, used));
        Ok((self.geometry.sector_of(bucket) + used, bucket_sectors - used))
    }

    fn take_bucket(&mut self, priority: u16) -> Result<u64, BuildError<W::Error>> {
        if self.kept.contains(&self.next_bucket) {
            self.next_bucket = self.kept.end;
        }
        let bucket = self.next_bucket;
        if bucket == self.geometry.buckets() {
            return Err(BuildError::Full(bucket));
        }
        self.next_bucket += 1;
        self.buckets[bucket as usize].priority = priority;
        Ok(bucket)
    }

    fn write(&mut self, sector: u64, bytes: &[u8]) -> Result<(), BuildError<W::Error>> {
        self.writer.write(sector, bytes).map_err(BuildError::Write)
    }

    /// Adds a key to the node of a level; a full one is written first.
    fn add_key(&mut self, level: usize, key: Key) -> Result<(), BuildError<W::Error>> {
        if level == self.levels.len() {
            self.levels.push(Vec::new());
        }
        if self.levels[level].len() == node_keys(&self.geometry) {
            let (inode, end) = self.levels[level].last().expect("it is full").position();
            let child = self.write_node(level, inode, end)?;
            self.add_key(level + 1, child)?;
        }
        self.levels[level].push(key);
        Ok(())
    }

    /// Writes the node of a level, whose position is (`inode`, `end`). Answers the key to it.
    fn write_node(
        &mut self,
        level: usize,
        inode: u32,
        end: u64,
    ) -> Result<Key, BuildError<W::Error>> {
        let bucket = self.take_bucket(METADATA)?;
        let sector = self.geometry.sector_of(bucket);
        let pointer = Pointer::new(sector, Generation::default());
        self.bytes.clear();
        let block_bytes = self.geometry.block_bytes();
        let keys = &self.levels[level];
        encode_set(&mut self.bytes, pointer, self.magic, self.seq, keys, block_bytes);
        self.writer.write(sector, &self.bytes).map_err(BuildError::Write)?;
        self.levels[level].clear();
        self.seq = self.seq.wrapping_add(2);
        Ok(Key::new(inode, end, self.geometry.node_sectors()).at(pointer))
    }

    /// Writes the last node of each level. Answers the key to the root, and its level.
    fn finish_tree(&mut self) -> Result<(Key, u16), BuildError<W::Error>> {
        let mut level = 0;
        loop {
            let root = self.write_node(level, INODE_MAX, OFFSET_MAX)?;
            if level + 1 == self.levels.len() {
                return Ok((root, level as u16));
            }
            level += 1;
            self.add_key(level, root)?;
        }
    }

    /// Writes the priorities. Answers the bucket of the first prio_set.
    fn write_priorities(&mut self) -> Result<u64, BuildError<W::Error>> {
        let sets = self.geometry.priority_sets();
        let taken = (0..sets).map(|_| self.take_bucket(METADATA)).collect::<Result<Vec<_>, _>>()?;
        let (geometry, records) = (self.geometry, std::mem::take(&mut self.buckets));
        for (sector, set) in priorities::encode_chain(&records, &taken, &geometry, self.magic) {
            self.write(sector, &set)?;
        }
        Ok(taken[0])
    }
}

#[cfg(test)]
mod tests;
