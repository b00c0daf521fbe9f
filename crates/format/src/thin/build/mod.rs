//! New metadata from a stream: first the trees, built from the leaves up, then the space maps; the
//! superblock last.
//!
//! Blocks are allocated in order from 1 on, and each is written once, as soon as it is full.
//! Promises that no node other than a root is less than a third full, and that the counts are those
//! of the blocks written. Promises that nothing is a pool before [`Builder::finish`] returns its
//! superblock; the caller writes the superblock after everything else is durable.
//!
//! Memory: a byte per data block that is mapped, two blocks per level of the current tree, and some
//! 50 bytes per device.

mod tree;

use std::collections::BTreeMap;
use std::convert::Infallible;

use rustc_hash::FxHashMap;

use super::block::{self, BLOCK_BYTES, Block, Kind};
use super::counts::Counts;
use super::stream::{Pool, Run, Sink};
use super::{
    BITMAP_ENTRIES, BitmapMut, COUNT_IN_TREE, DataBlock, DeviceDetails, DeviceId, IndexBlockMut,
    IndexEntry, METADATA_BLOCKS_MAX, Mapping, MetadataBlock, Node, RefCount, SpaceMapRoot,
    Superblock,
};
use tree::{Copies, TreeBuilder};

/// Where new blocks are written.
pub trait WriteBlocks {
    /// Why one cannot be written.
    type Error;

    /// Writes a sealed block. Blocks come in any order, each once.
    ///
    /// # Errors
    /// The system refused.
    fn write(&mut self, at: MetadataBlock, bytes: &Block) -> Result<(), Self::Error>;
}

/// A metadata device in memory; it grows as blocks are written.
impl WriteBlocks for Vec<u8> {
    type Error = Infallible;

    fn write(&mut self, at: MetadataBlock, bytes: &Block) -> Result<(), Infallible> {
        let begin = at.0 as usize * BLOCK_BYTES;
        self.resize(self.len().max(begin + BLOCK_BYTES), 0);
        self[begin..begin + BLOCK_BYTES].copy_from_slice(bytes);
        Ok(())
    }
}

impl<W: WriteBlocks> WriteBlocks for &mut W {
    type Error = W::Error;

    fn write(&mut self, at: MetadataBlock, bytes: &Block) -> Result<(), W::Error> {
        (**self).write(at, bytes)
    }
}

/// The number of metadata blocks of the new device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// This many.
    Fixed(u64),
    /// This many, or more if needed; in that case a quarter of them stays free.
    AtLeast(u64),
}

/// Why metadata cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Two devices have this id.
    #[error("device {device}: found it twice")]
    DeviceTwice {
        /// The device.
        device: DeviceId,
    },
    /// Virtual blocks that do not ascend.
    #[error("device {device}: found virtual block {found} after {before}, expected them to ascend")]
    OutOfOrder {
        /// The device.
        device: DeviceId,
        /// The virtual block.
        found: u64,
        /// The one before.
        before: u64,
    },
    /// Mappings to data blocks that do not exist, or of virtual blocks that overflow 64 bits.
    #[error(
        "device {device}: found {} mappings from virtual block {} to data block {}, expected data \
         blocks below {blocks}", run.len, run.origin, run.data
    )]
    Outside {
        /// The device.
        device: DeviceId,
        /// The mappings.
        run: Run,
        /// Data blocks of the pool.
        blocks: u64,
    },
    /// A run without mappings.
    #[error("device {device}: found a run of length 0 at virtual block {origin}, expected some")]
    EmptyRun {
        /// The device.
        device: DeviceId,
        /// Where it begins.
        origin: u64,
    },
    /// A mapping newer than the pool's time: it would look unshared to every snapshot.
    #[error("device {device}: found a mapping of time {found}, expected at most the pool's {time}")]
    FromTheFuture {
        /// The device.
        device: DeviceId,
        /// Its time.
        found: u32,
        /// The pool's.
        time: u32,
    },
    /// More data blocks than metadata can count.
    #[error("nr_data_blocks: found {found}, expected at most {most}")]
    TooManyDataBlocks {
        /// Data blocks.
        found: u64,
        /// The number that the largest metadata can count.
        most: u64,
    },
    /// The device is too small.
    #[error("metadata device: found {blocks} blocks, expected more")]
    NoRoom {
        /// Blocks on it.
        blocks: u64,
    },
}

/// Why building stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BuildError<E> {
    /// A block cannot be written.
    Write(E),
    /// The metadata was refused.
    Refused(Refusal),
}

impl<E> From<Refusal> for BuildError<E> {
    fn from(refusal: Refusal) -> BuildError<E> {
        BuildError::Refused(refusal)
    }
}

/// The blocks allocated so far, and where they are written.
pub(super) struct Allocator<W> {
    out: W,
    room: Room,
    next: u64,
    /// For blocks with several pointers: the number of pointers beyond the first.
    shared: FxHashMap<u64, u32>,
}

impl<W: WriteBlocks> Allocator<W> {
    fn most(&self) -> u64 {
        match self.room {
            Room::Fixed(blocks) => blocks.min(METADATA_BLOCKS_MAX),
            Room::AtLeast(_) => METADATA_BLOCKS_MAX,
        }
    }

    fn allocate(&mut self) -> Result<MetadataBlock, Refusal> {
        let blocks = self.most();
        if self.next >= blocks {
            return Err(Refusal::NoRoom { blocks });
        }
        self.next += 1;
        Ok(MetadataBlock(self.next - 1))
    }

    /// Seals a block and writes it.
    fn place(
        &mut self,
        at: MetadataBlock,
        kind: Kind,
        bytes: &mut Block,
    ) -> Result<(), BuildError<W::Error>> {
        block::seal(bytes, kind, at);
        self.out.write(at, bytes).map_err(BuildError::Write)
    }

    /// Counts another pointer to a block that was written before.
    fn share(&mut self, at: MetadataBlock) {
        *self.shared.entry(at.0).or_insert(0) += 1;
    }

    fn count(&self, at: u64) -> u32 {
        match at < self.next {
            true => 1 + self.shared.get(&at).copied().unwrap_or(0),
            false => 0,
        }
    }
}

/// A device being built.
struct Building {
    id: DeviceId,
    details: DeviceDetails,
    tree: TreeBuilder<Mapping>,
    last: Option<u64>,
}

/// Builds metadata from a stream.
pub struct Builder<W> {
    allocator: Allocator<W>,
    pool: Pool,
    data: Counts,
    copies: Copies,
    devices: BTreeMap<DeviceId, (DeviceDetails, MetadataBlock)>,
    building: Option<Building>,
}

impl<W: WriteBlocks> Builder<W> {
    /// Starts a pool.
    ///
    /// # Errors
    /// [`Refusal::TooManyDataBlocks`], or no room to count them.
    pub fn new(out: W, room: Room, pool: Pool) -> Result<Builder<W>, Refusal> {
        let mut allocator = Allocator { out, room, next: 0, shared: FxHashMap::default() };
        let (found, blocks) = (pool.data_blocks, allocator.most());
        let most = DataBlock::END.0.min(METADATA_BLOCKS_MAX * BITMAP_ENTRIES);
        if found > most {
            return Err(Refusal::TooManyDataBlocks { found, most });
        }
        if found > blocks.saturating_mul(BITMAP_ENTRIES) {
            return Err(Refusal::NoRoom { blocks });
        }
        let _superblock = allocator.allocate()?;
        Ok(Builder {
            allocator,
            pool,
            data: Counts::new(found),
            copies: Copies::default(),
            devices: BTreeMap::new(),
            building: None,
        })
    }

    /// Starts a device. Its `mapped_blocks` are counted from zero.
    ///
    /// # Errors
    /// There is a device with this id.
    pub fn begin_device(&mut self, id: DeviceId, details: DeviceDetails) -> Result<(), Refusal> {
        if self.devices.contains_key(&id) {
            return Err(Refusal::DeviceTwice { device: id });
        }
        let details = DeviceDetails { mapped_blocks: 0, ..details };
        self.building = Some(Building { id, details, tree: TreeBuilder::new(), last: None });
        Ok(())
    }

    /// Adds mappings to the device.
    ///
    /// # Errors
    /// They are refused, or cannot be written.
    pub fn add(&mut self, run: Run) -> Result<(), BuildError<W::Error>> {
        self.judge(run)?;
        let building = self.building.as_mut().expect("a device was begun");
        for index in 0..run.len {
            let mapping = Mapping { block: DataBlock(run.data + index), time: run.time };
            let (copies, allocator) = (&mut self.copies, &mut self.allocator);
            let written = building.tree.push(run.origin + index, mapping, copies, allocator)?;
            written.iter().for_each(|leaf| count(&mut self.data, leaf));
        }
        building.details.mapped_blocks += run.len;
        Ok(())
    }

    /// Adds a whole leaf of other metadata, which may be shared: if the leaf of `source` was added
    /// before, for any device, this adds another pointer to it.
    ///
    /// # Errors
    /// It is refused, or cannot be written.
    pub fn add_leaf(
        &mut self,
        source: MetadataBlock,
        leaf: &Node<'_>,
    ) -> Result<(), BuildError<W::Error>> {
        for (key, mapping) in leaf.entries::<Mapping>() {
            self.judge(Run { origin: key, data: mapping.block.0, len: 1, time: mapping.time })?;
        }
        let building = self.building.as_mut().expect("a device was begun");
        let (copies, allocator) = (&mut self.copies, &mut self.allocator);
        let written = building.tree.push_leaf(source, leaf, copies, allocator)?;
        written.iter().for_each(|leaf| count(&mut self.data, leaf));
        building.details.mapped_blocks += leaf.len() as u64;
        Ok(())
    }

    /// Checks mappings, and stores the last virtual block.
    fn judge(&mut self, run: Run) -> Result<(), Refusal> {
        let building = self.building.as_mut().expect("a device was begun");
        let (device, blocks, time) = (building.id, self.pool.data_blocks, self.pool.time);
        if run.len == 0 {
            return Err(Refusal::EmptyRun { device, origin: run.origin });
        }
        let inside = run.data.checked_add(run.len).is_some_and(|end| end <= blocks);
        let Some(last) = run.origin.checked_add(run.len - 1).filter(|_| inside) else {
            return Err(Refusal::Outside { device, run, blocks });
        };
        if run.time > time {
            return Err(Refusal::FromTheFuture { device, found: run.time, time });
        }
        if let Some(before) = building.last.filter(|before| *before >= run.origin) {
            return Err(Refusal::OutOfOrder { device, found: run.origin, before });
        }
        building.last = Some(last);
        Ok(())
    }

    /// Ends the device.
    ///
    /// # Errors
    /// Its tree cannot be written.
    pub fn end_device(&mut self) -> Result<(), BuildError<W::Error>> {
        let building = self.building.take().expect("a device was begun");
        let (root, written) = building.tree.finish(&mut self.copies, &mut self.allocator)?;
        written.iter().for_each(|leaf| count(&mut self.data, leaf));
        self.devices.insert(building.id, (building.details, root));
        Ok(())
    }

    /// Blocks allocated so far.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.allocator.next
    }

    /// Writes the remaining blocks, and returns the superblock. The device must have as many blocks
    /// as its metadata space map counts, and must be made durable before the superblock is written.
    ///
    /// # Errors
    /// A block cannot be written.
    pub fn finish(mut self) -> Result<Superblock, BuildError<W::Error>> {
        let details = self.devices.iter().map(|(id, (details, _))| (id.key(), *details));
        let details_root = tree::build(details, &mut self.allocator)?;
        let roots = self.devices.iter().map(|(id, (_, root))| (id.key(), *root));
        let mapping_root = tree::build(roots, &mut self.allocator)?;
        let data_space_map = self.data_map()?;
        let metadata_space_map = self.metadata_map()?;
        Ok(Superblock {
            flags: self.pool.flags,
            uuid: [0; 16],
            version: self.pool.version,
            time: self.pool.time,
            transaction_id: self.pool.transaction_id,
            held_root: None,
            data_space_map,
            metadata_space_map,
            mapping_root,
            details_root,
            data_block_size: self.pool.data_block_size,
            metadata_blocks_at_format: metadata_space_map.blocks,
            compat_flags: 0,
            compat_ro_flags: 0,
        })
    }

    fn data_map(&mut self) -> Result<SpaceMapRoot, BuildError<W::Error>> {
        let (blocks, mut entries, mut large) = (self.pool.data_blocks, Vec::new(), Vec::new());
        for index in 0..blocks.div_ceil(BITMAP_ENTRIES) {
            let at = self.allocator.allocate()?;
            let data = &self.data;
            let (entry, mut bytes) = bitmap(at, index, blocks, |block| data.get(block), &mut large);
            self.allocator.place(at, Kind::Bitmap, &mut bytes)?;
            entries.push((index, entry));
        }
        Ok(SpaceMapRoot {
            blocks,
            allocated: self.data.used(),
            bitmap_root: tree::build(entries.into_iter(), &mut self.allocator)?,
            ref_count_root: tree::build(large.into_iter(), &mut self.allocator)?,
        })
    }

    /// Counts all blocks allocated so far and its own. Each block it allocates itself has count 1,
    /// so the large counts are known before it begins.
    fn metadata_map(&mut self) -> Result<SpaceMapRoot, BuildError<W::Error>> {
        let mut shared: Vec<_> =
            self.allocator.shared.iter().map(|(at, more)| (*at, 1 + more)).collect();
        shared.sort_unstable();
        let large = shared.into_iter().filter(|(_, count)| *count >= COUNT_IN_TREE);
        let large = large.map(|(at, count)| (at, RefCount(count)));
        let ref_count_root = tree::build(large, &mut self.allocator)?;
        let index_at = self.allocator.allocate()?;
        let blocks = self.metadata_blocks();
        let mut bitmaps = Vec::new();
        for _ in 0..blocks.div_ceil(BITMAP_ENTRIES) {
            bitmaps.push(self.allocator.allocate()?);
        }
        let mut index_bytes = [0; BLOCK_BYTES];
        let mut index_block = IndexBlockMut::init(&mut index_bytes);
        for (index, at) in bitmaps.into_iter().enumerate() {
            let (allocator, number) = (&self.allocator, index as u64);
            let (entry, mut bytes) =
                bitmap(at, number, blocks, |block| allocator.count(block), &mut Vec::new());
            index_block.set(index, entry);
            self.allocator.place(at, Kind::Bitmap, &mut bytes)?;
        }
        self.allocator.place(index_at, Kind::Index, &mut index_bytes)?;
        let (allocated, bitmap_root) = (self.allocator.next, index_at);
        Ok(SpaceMapRoot { blocks, allocated, bitmap_root, ref_count_root })
    }

    /// The number of metadata blocks that the pool will have.
    fn metadata_blocks(&self) -> u64 {
        let used = self.allocator.next;
        let grown = |least: u64| least.max(used + used / 4 + used.div_ceil(BITMAP_ENTRIES) + 16);
        match self.allocator.room {
            Room::Fixed(blocks) => blocks.min(METADATA_BLOCKS_MAX),
            Room::AtLeast(least) => grown(least).min(METADATA_BLOCKS_MAX),
        }
    }
}

impl<W: WriteBlocks> Sink for Builder<W> {
    type Error = BuildError<W::Error>;

    /// The pool was passed to [`Builder::new`].
    fn pool(&mut self, _: &Pool) -> Result<(), Self::Error> {
        Ok(())
    }

    fn device(&mut self, id: DeviceId, details: &DeviceDetails) -> Result<(), Self::Error> {
        Ok(self.begin_device(id, *details)?)
    }

    fn run(&mut self, run: Run) -> Result<(), Self::Error> {
        self.add(run)
    }

    fn end_device(&mut self) -> Result<(), Self::Error> {
        Builder::end_device(self)
    }

    fn end(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }
}

fn count(data: &mut Counts, leaf: &Block) {
    let leaf = Node::cached(leaf).expect("it was built here");
    for (_, mapping) in leaf.entries::<Mapping>() {
        data.add(mapping.block.0);
    }
}

/// One bitmap of a map of this many blocks, its index entry, and its large counts.
fn bitmap(
    at: MetadataBlock,
    index: u64,
    blocks: u64,
    count: impl Fn(u64) -> u32,
    large: &mut Vec<(u64, RefCount)>,
) -> (IndexEntry, Block) {
    let mut bytes = [0; BLOCK_BYTES];
    let mut bitmap = BitmapMut::init(&mut bytes);
    let begin = index * BITMAP_ENTRIES;
    let end = blocks.min(begin + BITMAP_ENTRIES);
    for block in begin..end {
        let count = count(block);
        bitmap.set((block - begin) as usize, count.min(COUNT_IN_TREE));
        if count >= COUNT_IN_TREE {
            large.push((block, RefCount(count)));
        }
    }
    let len = (end - begin) as usize;
    let free = bitmap.view().count_free(0..len);
    let none_free_before = bitmap.view().find_free(0..len).unwrap_or(len) as u32;
    (IndexEntry { bitmap: at, free, none_free_before }, bytes)
}
