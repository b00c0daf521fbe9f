//! [`Store`]: the part that every reactor shares. It has the last durable state for reading, the
//! free data blocks, and the account of metadata blocks.

use std::sync::Arc;

use cairn_block::sync::Mutex;
use cairn_block::sync::atomic::{AtomicU64, Ordering};
use cairn_block::{Disk, Env, mutants};
use cairn_format::thin::block;
use cairn_format::thin::{
    DataBlockSize, DeviceDetails, DeviceId, MetadataBlock, Opening, Superblock,
};
use rustc_hash::FxHashMap;

use super::allocator::{DataAllocator, DataRun};
use super::cache::Cache;
use super::disk::MetaDisk;
use super::error::{Error, MetadataPart, Path};
use super::nodes::{Bounds, Nodes};
use super::transaction::outside;
use super::working::Working;

/// A thin device in the metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// The root of its mapping tree.
    pub(super) root: MetadataBlock,
    /// Size and times.
    pub details: DeviceDetails,
}

/// Summary of the last durable state.
#[derive(Default)]
pub(super) struct Published {
    pub generation: u64,
    pub bounds: Bounds,
    pub devices: FxHashMap<DeviceId, Device>,
}

/// How a store is opened.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The data block size of the table; `None` takes that of the superblock.
    pub data_block_size: Option<DataBlockSize>,
    /// Most bytes of clean tree nodes that are kept in memory.
    pub cache_bytes: usize,
    /// No write and no flush is sent to the device before [`Working::allow_changes`].
    pub read_only: bool,
}

impl Options {
    /// Default for the bytes of clean tree nodes that are kept.
    pub const CACHE_BYTES: usize = 16 << 20;
}

impl Default for Options {
    fn default() -> Options {
        let cache_bytes = Options::CACHE_BYTES;
        Options { data_block_size: None, cache_bytes, read_only: false }
    }
}

/// Blocks of the metadata map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetadataUse {
    /// All.
    pub total: u64,
    /// With a count above zero after the last commit.
    pub used: u64,
    /// What can still be allocated before the next commit.
    pub free: u64,
    /// What any commit may take, independent of its changes.
    pub overhead: u64,
}

/// The metadata of a pool, shared by every reactor.
pub struct Store {
    pub(super) nodes: Nodes,
    pub(super) published: Mutex<Published>,
    pub(super) data: DataAllocator,
    pub(super) account: Account,
    data_block_size: DataBlockSize,
}

/// Metadata blocks that are free, reserved, and needed by every commit independent of its changes.
#[derive(Default)]
pub(super) struct Account {
    pub total: AtomicU64,
    pub used: AtomicU64,
    pub free: AtomicU64,
    pub overhead: AtomicU64,
    pub reserved: AtomicU64,
    pub data_used: AtomicU64,
    pub height: AtomicU64,
}

impl Store {
    /// Reads block 0: blank, or the superblock of a pool.
    ///
    /// # Errors
    /// The device failed, or block 0 is neither.
    pub async fn look(env: &Env, disk: &Arc<dyn Disk>) -> Result<Opening, Error> {
        let disk = MetaDisk(disk.clone());
        check_device(&disk)?;
        read_superblock(env, &disk).await
    }

    /// Opens the metadata of a pool: reads both space maps and the list of devices.
    ///
    /// # Errors
    /// The device failed, or something is damaged, unknown, or does not fit the options.
    pub async fn open(
        env: &Env,
        disk: &Arc<dyn Disk>,
        options: Options,
    ) -> Result<(Arc<Store>, Working), Error> {
        let disk = MetaDisk(disk.clone());
        check_device(&disk)?;
        if !options.read_only {
            // Writes of a killed process may be in the drive's cache only, and this process is
            // about to rely on them.
            let flush = disk.flush(env, disk.failures());
            mutants::step("metadata: flush at opening", (), flush).await?;
        }
        let superblock = match read_superblock(env, &disk).await? {
            Opening::Existing(superblock) => *superblock,
            Opening::Blank => {
                let detail = "superblock: found zeros, expected a formatted pool";
                return Err(Error::damaged(superblock_path(), detail));
            }
        };
        let (found, size) = (superblock.data_block_size, options.data_block_size);
        if let Some(expected) = size.filter(|size| *size != found) {
            let (found, expected) = (found.sectors(), expected.sectors());
            return Err(Error::Geometry(format!(
                "superblock data_block_size: found {found} sectors, expected {expected} sectors \
                 as in the table"
            )));
        }
        let store = Arc::new(Store::new(disk, options.cache_bytes, found));
        let mut working = Working::load(env, store.clone(), superblock).await?;
        working.unflushed = options.read_only;
        if !options.read_only {
            working.make_sure(env).await?;
        }
        store.publish_all(&working);
        store.free_data_blocks(&working);
        Ok((store, working))
    }

    pub(super) fn new(disk: MetaDisk, cache_bytes: usize, size: DataBlockSize) -> Store {
        let cache = Cache::new(cache_bytes);
        Store {
            nodes: Nodes { disk, cache, generation: AtomicU64::new(0) },
            published: Mutex::new(Published::default()),
            data: DataAllocator::empty(),
            account: Account::default(),
            data_block_size: size,
        }
    }

    /// The unit of mapping.
    pub fn data_block_size(&self) -> DataBlockSize {
        self.data_block_size
    }

    /// The data blocks that may be taken.
    pub fn data(&self) -> &DataAllocator {
        &self.data
    }

    /// Data blocks with a count above zero in the working map (an unmap shows at once), and all
    /// data blocks of the last durable map.
    pub fn data_use(&self) -> (u64, u64) {
        let total = self.published.lock().bounds.data_blocks;
        (self.account.data_used.load(Ordering::Acquire), total)
    }

    /// The use of metadata blocks.
    pub fn metadata_use(&self) -> MetadataUse {
        MetadataUse {
            total: self.account.total.load(Ordering::Acquire),
            used: self.account.used.load(Ordering::Acquire),
            free: self.account.free.load(Ordering::Acquire),
            overhead: self.account.overhead.load(Ordering::Acquire),
        }
    }

    /// The number of the last durable state; every commit raises it.
    pub fn generation(&self) -> u64 {
        self.nodes.generation()
    }

    /// A device of the last durable state.
    pub fn device(&self, device: DeviceId) -> Option<Device> {
        self.published.lock().devices.get(&device).copied()
    }

    /// The devices of the last durable state, by id.
    pub fn devices(&self) -> Vec<(DeviceId, Device)> {
        let published = self.published.lock();
        let mut devices: Vec<_> = published.devices.iter().map(|(id, own)| (*id, *own)).collect();
        devices.sort_unstable_by_key(|(id, _)| *id);
        devices
    }

    /// Replaces the whole durable state, as read from the device.
    pub(super) fn publish_all(&self, working: &Working) {
        self.nodes.cache.clear();
        let mut published = self.published.lock();
        published.devices = working.devices().collect();
        published.bounds = working.bounds();
        published.generation += 1;
        self.nodes.generation.store(published.generation, Ordering::Release);
        drop(published);
        self.account.used.store(working.txn.metadata.allocated(), Ordering::Release);
        working.settle_account();
    }

    /// The durable map now has this many blocks: the new ones can be taken.
    pub(super) fn extend_data(&self, blocks: u64) {
        let first = self.data.blocks();
        if first < blocks {
            self.data.extend(blocks);
            self.data.put_back(DataRun::new(first, blocks - first));
        }
    }

    /// After opening: the free blocks of the durable map can be taken.
    fn free_data_blocks(&self, working: &Working) {
        self.data.extend(working.bounds().data_blocks);
        working.free_data().for_each(|run| self.data.put_back(run));
    }
}

fn superblock_path() -> Path {
    outside(MetadataPart::Superblock, MetadataBlock::SUPERBLOCK)
}

pub(super) fn check_device(disk: &MetaDisk) -> Result<(), Error> {
    let logical = disk.0.limits().logical_block;
    if logical as usize > cairn_format::thin::BLOCK_BYTES {
        return Err(Error::Geometry(format!(
            "logical block size: found {logical} bytes, expected at most 4096"
        )));
    }
    if disk.blocks() == 0 {
        let sectors = disk.0.sectors();
        return Err(Error::Geometry(format!("size: found {sectors} sectors, expected 8 or more")));
    }
    Ok(())
}

/// Reads and decides about block 0.
pub(super) async fn read_superblock(env: &Env, disk: &MetaDisk) -> Result<Opening, Error> {
    let mut opening = None;
    let damaged =
        |error: cairn_format::thin::Error| Error::damaged(superblock_path(), error.to_string());
    let take = |_, bytes: &[u8]| {
        let bytes = block::of(bytes).map_err(damaged)?;
        opening = Some(Opening::decide(bytes).map_err(damaged)?);
        Ok(())
    };
    disk.read(env, &[MetadataBlock::SUPERBLOCK], take).await?;
    Ok(opening.expect("one block was read"))
}

/// Reads the superblock of a formatted device, or the held copy of one.
pub(super) async fn read_existing(
    env: &Env,
    disk: &MetaDisk,
    at: MetadataBlock,
) -> Result<Superblock, Error> {
    let mut found = None;
    let damaged = |error: cairn_format::thin::Error| {
        Error::damaged(outside(MetadataPart::Superblock, at), error.to_string())
    };
    let take = |_, bytes: &[u8]| {
        let bytes = block::of(bytes).map_err(damaged)?;
        found = Some(Superblock::decode(bytes, at).map_err(damaged)?);
        Ok(())
    };
    disk.read(env, &[at], take).await?;
    Ok(found.expect("one block was read"))
}
