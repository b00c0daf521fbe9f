//! [`BitStore`]: the bitset of a clone on its metadata device.
//!
//! It has one owner, who keeps the bits in memory. A commit makes array blocks durable whose words
//! have changed.
//!
//! B1. Only fresh blocks are written (T1 of `transaction`), until all of them are durable. Then the
//!     superblock is written and flushed. A crash leaves the old bits or the new ones, as a whole.
//! B2. Both are there after a commit that failed. So the store is of no use then (`broken`), until
//!     [`BitStore::reopen`] has read which superblock the device shows and has made it durable: a
//!     flush that failed may have dropped it.
//! B3. The device's failure count is the same after each flush as before the first write that it
//!     covers, as in `commit`.

use std::sync::Arc;

use cairn_block::sync::atomic::AtomicU64;
use cairn_block::{Disk, Env, mutants};
use cairn_format::bcache::crc64;
use cairn_format::clone::{self, ArrayBlock, Opening, Superblock, WORDS_MAX, encode_array};
use cairn_format::thin::block::{self, Kind, seal};
use cairn_format::thin::{Block, METADATA_BLOCKS_MAX, MetadataBlock, RefCount, SpaceMapRoot};

use super::cache::Cache;
use super::canary::{Bug, planted};
use super::counts::Counts;
use super::disk::MetaDisk;
use super::edit::Editor;
use super::error::{Error, MetadataPart, Path};
use super::load::load_metadata_map;
use super::nodes::{Bounds, Nodes};
use super::shadow::{MapBlock, shadow_metadata_map};
use super::store::check_device;
use super::transaction::{Transaction, outside};

/// The tree of array blocks is small: 252 blocks of it describe 2 GiB of regions' bits.
const CACHE_BYTES: usize = 1 << 20;

/// Where the content of a fresh block comes from.
#[derive(Clone, Copy)]
enum Source {
    Node,
    Map(MapBlock),
    Array(usize),
}

/// See the module's description.
pub struct BitStore {
    nodes: Nodes,
    /// The superblock on the device.
    durable: Superblock,
    txn: Transaction,
    /// The array blocks, by number.
    arrays: Vec<MetadataBlock>,
    broken: bool,
}

fn superblock_path() -> Path {
    outside(MetadataPart::Superblock, MetadataBlock::SUPERBLOCK)
}

fn damaged(path: Path) -> impl FnOnce(clone::Error) -> Error {
    move |error| Error::damaged(path, error.to_string())
}

async fn read_superblock(env: &Env, disk: &MetaDisk) -> Result<Opening, Error> {
    let mut opening = None;
    let take = |_, bytes: &[u8]| {
        let decided = block::of(bytes).map_err(clone::Error::from).and_then(Opening::decide);
        opening = Some(decided.map_err(damaged(superblock_path()))?);
        Ok(())
    };
    disk.read(env, &[MetadataBlock::SUPERBLOCK], take).await?;
    Ok(opening.expect("one block was read"))
}

fn nodes_on(disk: MetaDisk) -> Nodes {
    Nodes { disk, cache: Cache::new(CACHE_BYTES), generation: AtomicU64::new(0) }
}

impl BitStore {
    /// Reads block 0: blank, or the superblock of a clone.
    ///
    /// # Errors
    /// The device failed, or block 0 is neither.
    pub async fn look(env: &Env, disk: &Arc<dyn Disk>) -> Result<Opening, Error> {
        let disk = MetaDisk(disk.clone());
        check_device(&disk)?;
        read_superblock(env, &disk).await
    }

    /// Opens the metadata of a clone: the store and its words. Bits beyond the last region are
    /// refused, for they would count as hydrated regions.
    ///
    /// # Errors
    /// The device failed, or something is damaged.
    pub async fn open(
        env: &Env,
        disk: &Arc<dyn Disk>,
        read_only: bool,
    ) -> Result<(BitStore, Vec<u64>), Error> {
        let disk = MetaDisk(disk.clone());
        check_device(&disk)?;
        if !read_only {
            // Writes of a killed process may be in the drive's cache only, and this process is
            // about to rely on them.
            let flush = disk.flush(env, disk.failures());
            mutants::step("clone metadata: flush at opening", (), flush).await?;
        }
        let Opening::Existing(superblock) = read_superblock(env, &disk).await? else {
            let detail = "superblock: found zeros, expected a formatted clone";
            return Err(Error::damaged(superblock_path(), detail));
        };
        let nodes = nodes_on(disk);
        let bounds = bounds_of(&nodes, &superblock)?;
        let map = &superblock.metadata_space_map;
        let metadata = load_metadata_map(env, &nodes, map, &bounds).await?;
        let arrays = load_arrays(env, &nodes, &superblock, &bounds).await?;
        let words = load_words(env, &nodes, &superblock, &arrays).await?;
        refuse_free(&superblock, &metadata, &arrays)?;
        let txn = Transaction::new(metadata, Counts::empty());
        let store = BitStore { nodes, durable: superblock, txn, arrays, broken: false };
        if !read_only
            && !mutants::same("clone metadata: failure count of a superblock", 0, store.failures())
        {
            // The flush after the superblock that was read may have failed (B2).
            store.write_superblock(env, &store.durable.encode()).await?;
        }
        Ok((store, words))
    }

    /// Reads again what the device has, after a commit that failed, and makes it durable.
    ///
    /// # Errors
    /// The device failed, or is damaged.
    pub async fn reopen(&mut self, env: &Env) -> Result<Vec<u64>, Error> {
        let disk = self.nodes.disk.0.clone();
        let (store, words) = BitStore::open(env, &disk, false).await?;
        store.write_superblock(env, &store.durable.encode()).await?;
        *self = store;
        Ok(words)
    }

    /// True if a commit has failed: [`BitStore::reopen`] is next.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// The superblock on the device.
    pub fn superblock(&self) -> &Superblock {
        &self.durable
    }

    /// Metadata blocks in use, and all.
    pub fn blocks(&self) -> (u64, u64) {
        let map = &self.durable.metadata_space_map;
        (map.allocated, map.blocks)
    }

    /// A number for the state on the device: two states that follow each other have different ones,
    /// since every commit moves a root.
    pub fn state(&self) -> u64 {
        crc64(&self.durable.encode())
    }

    fn failures(&self) -> u64 {
        self.nodes.disk.failures()
    }

    /// How many blocks a device needs for so many array blocks, so that no commit finds it full: a
    /// commit has a second one of each that changes, and of what leads to it. One node of the tree
    /// has 126 or more of them, and one bitmap more than 8000.
    pub fn least_blocks(arrays: u64) -> u64 {
        2 * (arrays + arrays / 64) + 12
    }

    /// Makes an empty clone on a device whose block 0 is all zero. A crash leaves a blank device or
    /// the empty clone.
    ///
    /// # Errors
    /// The device is not blank, too small, or failed.
    pub async fn format_fresh(
        env: &Env,
        disk: &Arc<dyn Disk>,
        region_size: clone::RegionSize,
        target_sectors: u64,
    ) -> Result<(), Error> {
        let disk = MetaDisk(disk.clone());
        check_device(&disk)?;
        if read_superblock(env, &disk).await? != Opening::Blank {
            let detail = "superblock: found one, expected zeros";
            return Err(Error::damaged(superblock_path(), detail));
        }
        let blocks = disk.blocks().min(METADATA_BLOCKS_MAX);
        let words = region_size.regions_of(target_sectors).div_ceil(64);
        if blocks < BitStore::least_blocks(words.div_ceil(WORDS_MAX as u64)) {
            return Err(Error::NoMetadataSpace);
        }
        let mut metadata = Counts::empty();
        metadata.grow(blocks);
        metadata.raise(0).expect("the device has a block 0, and its count was zero");
        let superblock = Superblock {
            flags: 0,
            uuid: [0; 16],
            metadata_space_map: SpaceMapRoot { blocks, ..SpaceMapRoot::EMPTY },
            region_size,
            target_sectors,
            bitset_root: MetadataBlock::SUPERBLOCK,
        };
        let txn = Transaction::new(metadata, Counts::empty());
        let (nodes, arrays) = (nodes_on(disk), Vec::new());
        let mut store = BitStore { nodes, durable: superblock, txn, arrays, broken: false };
        store.plant(env)?;
        let (words, arrays) = (store.durable.words(), store.durable.arrays());
        let all: Vec<usize> = (0..arrays as usize).collect();
        store.commit(env, &vec![0; words as usize], &all, None::<fn(u64)>).await
    }

    /// Plants an empty tree at each root.
    fn plant(&mut self, env: &Env) -> Result<(), Error> {
        let (nodes, txn) = (&self.nodes, &mut self.txn);
        let counts = MetadataPart::MetadataCounts;
        self.durable.metadata_space_map.ref_count_root =
            Editor::<RefCount>::new(env, nodes, txn, counts).create()?;
        self.durable.bitset_root =
            Editor::<MetadataBlock>::new(env, nodes, txn, MetadataPart::Bitset).create()?;
        Ok(())
    }

    /// Makes array blocks durable, by their numbers in ascending order, with the content of
    /// `words`, which are those of the whole bitset. The caller has flushed the destination before.
    /// `name` gets the state that the commit leaves, before the device can have it.
    ///
    /// # Errors
    /// The device failed, or is damaged or full. See B2.
    pub async fn commit(
        &mut self,
        env: &Env,
        words: &[u64],
        changed: &[usize],
        name: Option<impl FnOnce(u64)>,
    ) -> Result<(), Error> {
        if self.broken {
            return Err(Error::Broken);
        }
        // Marked broken while it runs, so that a commit whose future is dropped stays broken.
        self.broken = true;
        let mut next = self.durable.clone();
        let sources = self.prepare(env, &mut next, changed).await?;
        let failures = self.failures();
        self.write(env, &sources, words).await?;
        if !planted(Bug::SuperblockBeforeFlush) {
            let flush = self.nodes.disk.flush(env, failures);
            mutants::step("clone metadata: flush before the superblock", (), flush).await?;
        }
        let superblock = next.encode();
        if let Some(name) = name {
            name(crc64(&superblock));
        }
        self.write_superblock(env, &superblock).await?;
        self.durable = next;
        self.nodes.cache.clear();
        self.txn.turn();
        self.broken = false;
        Ok(())
    }

    /// Shadows of everything that changes, in memory; the fresh blocks in order.
    async fn prepare(
        &mut self,
        env: &Env,
        next: &mut Superblock,
        changed: &[usize],
    ) -> Result<Vec<(MetadataBlock, Source)>, Error> {
        let mut sources = Vec::new();
        let mut entries: Vec<(u64, Option<MetadataBlock>)> = Vec::new();
        self.arrays.resize(next.arrays() as usize, MetadataBlock::SUPERBLOCK);
        for &number in changed {
            let shadow = self.txn.allocate()?;
            let old = std::mem::replace(&mut self.arrays[number], shadow);
            if old != MetadataBlock::SUPERBLOCK {
                self.txn.lower(&outside(MetadataPart::BitsetArray, old), old)?;
            }
            sources.push((shadow, Source::Array(number)));
            entries.push((number as u64, Some(shadow)));
        }
        let (nodes, txn, place) = (&self.nodes, &mut self.txn, MetadataPart::Bitset);
        let mut editor = Editor::<MetadataBlock>::new(env, nodes, txn, place);
        next.bitset_root = editor.edit(next.bitset_root, &entries).await?;
        let map = &mut next.metadata_space_map;
        let shadows = shadow_metadata_map(env, &self.nodes, &mut self.txn, map).await?;
        next.metadata_space_map.allocated = self.txn.metadata.allocated();
        sources.extend(shadows.into_iter().map(|(at, block)| (at, Source::Map(block))));
        let nodes = self.txn.fresh.iter().filter(|(_, bytes)| bytes.is_some());
        sources.extend(nodes.map(|(at, _)| (*at, Source::Node)));
        sources.sort_unstable_by_key(|(at, _)| *at);
        let once = sources.is_sorted_by(|(a, _), (b, _)| a < b);
        if once && sources.len() == self.txn.fresh.len() {
            return Ok(sources);
        }
        let path = outside(MetadataPart::MetadataIndex, next.metadata_space_map.bitmap_root);
        Err(Error::damaged(path, "counts: found 0 for blocks in use, expected 1"))
    }

    async fn write(
        &self,
        env: &Env,
        sources: &[(MetadataBlock, Source)],
        words: &[u64],
    ) -> Result<(), Error> {
        let blocks: Vec<MetadataBlock> = sources.iter().map(|(at, _)| *at).collect();
        let mut next = sources.iter();
        let fill = |at, out: &mut [u8]| {
            let (own, source) = next.next().expect("blocks come in the order they were given");
            assert_eq!(*own, at, "blocks come in the order they were given");
            let out: &mut Block = out.try_into().expect("a block is written whole");
            let kind = match *source {
                Source::Array(number) => {
                    let part = words.chunks(WORDS_MAX).nth(number).unwrap_or_default();
                    return encode_array(out, at, part);
                }
                Source::Map(block) => block.fill(&self.txn, out),
                Source::Node => {
                    let bytes = self.txn.fresh[&at].as_ref();
                    out.copy_from_slice(&bytes.expect("a node has contents")[..]);
                    Kind::Node
                }
            };
            seal(out, kind, at);
        };
        self.nodes.disk.write(env, &blocks, fill).await
    }

    async fn write_superblock(&self, env: &Env, superblock: &Block) -> Result<(), Error> {
        let disk = &self.nodes.disk;
        let failures = disk.failures();
        let fill = |_, out: &mut [u8]| out.copy_from_slice(superblock);
        disk.write(env, &[MetadataBlock::SUPERBLOCK], fill).await?;
        let flush = disk.flush(env, failures);
        mutants::step("clone metadata: flush of the superblock", (), flush).await
    }
}

fn bounds_of(nodes: &Nodes, superblock: &Superblock) -> Result<Bounds, Error> {
    let (found, device) = (superblock.metadata_space_map.blocks, nodes.disk.blocks());
    if found > device {
        return Err(Error::Geometry(format!(
            "metadata device: found {device} blocks, expected {found} as in its space map"
        )));
    }
    let (arrays, most) = (superblock.arrays(), found.min(METADATA_BLOCKS_MAX));
    if found == 0 || found > METADATA_BLOCKS_MAX || arrays > most {
        let detail = format!(
            "metadata_space_map_root nr_blocks: found {found}, expected 1 to \
             {METADATA_BLOCKS_MAX}, and room for {arrays} array blocks"
        );
        return Err(Error::damaged(superblock_path(), detail));
    }
    Ok(Bounds { metadata_blocks: found, data_blocks: 0 })
}

async fn load_arrays(
    env: &Env,
    nodes: &Nodes,
    superblock: &Superblock,
    bounds: &Bounds,
) -> Result<Vec<MetadataBlock>, Error> {
    let (place, root) = (MetadataPart::Bitset, superblock.bitset_root);
    let entries = nodes.all::<MetadataBlock>(env, place, root, bounds).await?;
    let gapless = entries.iter().zip(0..).all(|((key, _), number)| *key == number);
    let (found, expected) = (entries.len() as u64, superblock.arrays());
    if found != expected || !gapless {
        let detail = format!("array blocks: found {found}, expected numbers 0 to {expected}");
        return Err(Error::damaged(outside(place, root), detail));
    }
    let arrays: Vec<MetadataBlock> = entries.into_iter().map(|(_, at)| at).collect();
    let mut sorted = arrays.clone();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(arrays),
        Some(twice) => {
            let detail = format!("array blocks: found {} twice, expected each once", twice[0]);
            Err(Error::damaged(outside(place, root), detail))
        }
    }
}

async fn load_words(
    env: &Env,
    nodes: &Nodes,
    superblock: &Superblock,
    arrays: &[MetadataBlock],
) -> Result<Vec<u64>, Error> {
    let mut order: Vec<usize> = (0..arrays.len()).collect();
    order.sort_unstable_by_key(|&number| arrays[number]);
    let blocks: Vec<MetadataBlock> = order.iter().map(|&number| arrays[number]).collect();
    let mut words = vec![0; superblock.words() as usize];
    let mut next = order.iter();
    let take = |at, bytes: &[u8]| {
        let number = *next.next().expect("blocks come in the order they were asked for");
        let count = superblock.words_of_array(number as u64);
        let fault = damaged(outside(MetadataPart::BitsetArray, at));
        let bytes = block::of(bytes).map_err(clone::Error::from);
        let array = bytes.and_then(|bytes| ArrayBlock::decode(bytes, at, count)).map_err(fault)?;
        let places = words[number * WORDS_MAX..].iter_mut();
        places.zip(array.words()).for_each(|(place, word)| *place = word);
        Ok(())
    };
    nodes.disk.read(env, &blocks, take).await?;
    let tail = superblock.regions() % 64;
    if tail > 0 && words.last().is_some_and(|last| last >> tail != 0) {
        let path = outside(MetadataPart::Bitset, superblock.bitset_root);
        return Err(Error::damaged(path, "bits: found some beyond the last region, expected none"));
    }
    Ok(words)
}

/// Refuses a block that is in use but counted as free: it would be overwritten.
fn refuse_free(
    superblock: &Superblock,
    metadata: &Counts,
    arrays: &[MetadataBlock],
) -> Result<(), Error> {
    let map = &superblock.metadata_space_map;
    let roots = [
        (MetadataPart::Superblock, MetadataBlock::SUPERBLOCK),
        (MetadataPart::MetadataIndex, map.bitmap_root),
        (MetadataPart::MetadataCounts, map.ref_count_root),
        (MetadataPart::Bitset, superblock.bitset_root),
    ];
    let bitmaps = metadata.pages().iter().filter_map(|page| page.at);
    let bitmaps = bitmaps.map(|at| (MetadataPart::MetadataBitmap, at));
    let arrays = arrays.iter().map(|at| (MetadataPart::BitsetArray, *at));
    let mut used = roots.into_iter().chain(bitmaps).chain(arrays);
    match used.find(|(_, block)| metadata.get(block.0) == Some(0)) {
        None => Ok(()),
        Some((place, block)) => {
            let detail = "count of this block: found 0, expected 1 or more";
            Err(Error::damaged(outside(place, block), detail))
        }
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests;
