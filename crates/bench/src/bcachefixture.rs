//! Sets of bcache for benchmarks: a cache that is built of extents, its backing device, and disks
//! for both that forget data.
//!
//! [`Remade`] is a set that is made again for each measurement, on devices that stay. Each time it
//! has another UUID, so that nothing of the journals before it counts.

use std::cell::Cell;
use std::sync::Arc;

use cairn_backends::{MemoryDisk, NullDisk};
use cairn_block::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use cairn_block::{
    ConfigError, ConfigKind, Disk, Env, Flow, Io, IoError, Limits, MappedDevice, Op, Request,
    SECTOR_BYTES, Sector, SectorCount, SectorRange, Value,
};
use cairn_format::bcache::build::{Builder, WriteSectors};
use cairn_format::bcache::uuids::UuidEntry;
use cairn_format::bcache::{
    BackingState, BackingSuperblock, CacheMode, CacheSuperblock, IntentMap, Key, NewBacking,
    NewCache, Replacement, SUPERBLOCK_SECTOR, Uuid,
};
use cairn_outcome::failure::Outcome;

use super::fixture::Fixture;
use super::load::{Job, run};

/// The set of a benchmark that makes one.
pub const SET: Uuid = Uuid([2; 16]);
/// Sectors of a key.
pub const KEY: u64 = 8;
/// Sectors of a bucket.
const BUCKET: u64 = 1024;
/// Sectors of the backing device before its data.
pub const BACKING_FIRST: u64 = 16;

/// Sectors of a cache with room for so many extents.
pub fn sectors_for(extents: u64) -> u64 {
    (extents * KEY / BUCKET * 9 / 8 + 1024) * BUCKET
}

/// Makes the cache of a set: data was never written, and is zeros.
///
/// # Errors
/// The device failed.
pub fn make_cache(
    fixture: &Fixture,
    disk: &Arc<dyn Disk>,
    set: Uuid,
    extents: &[Key],
) -> Outcome<()> {
    let new = NewCache {
        uuid: Uuid([1; 16]),
        set_uuid: set,
        block_sectors: 8,
        bucket_sectors: BUCKET,
        device_sectors: disk.sectors().0,
        replacement: Replacement::Lru,
        discard: false,
    };
    let failed = |what: String| ConfigError::new(ConfigKind::System, "bench: cache", what);
    let fresh = CacheSuperblock::fresh(&new).map_err(|error| failed(error.to_string()))?;
    let mut pieces = Writes { fixture, disk };
    // Nodes of sets that were made on the device before have other numbers.
    let seed = u128::from_le_bytes(set.0) as u64;
    let mut builder = Builder::new(&fresh, seed, &mut pieces);
    for key in extents {
        builder.add(*key).map_err(|error| failed(error.to_string()))?;
    }
    let volume = UuidEntry { uuid: Uuid([3; 16]), ..UuidEntry::default() };
    let superblock = builder.finish(&[volume]).map_err(|error| failed(error.to_string()))?;
    let written = pieces.write(SUPERBLOCK_SECTOR, &superblock.encode());
    written.map_err(|error| failed(error.to_string()))
}

/// Gives the backing device its superblock: it is dirty.
///
/// # Errors
/// The device failed.
pub fn make_backing(fixture: &Fixture, disk: &Arc<dyn Disk>, set: Uuid) -> Outcome<()> {
    let new = NewBacking {
        uuid: Uuid([3; 16]),
        set_uuid: set,
        block_sectors: 8,
        data_offset: BACKING_FIRST,
        mode: CacheMode::Writeback,
        state: BackingState::Dirty,
        label: [0; 32],
    };
    let mut superblock = BackingSuperblock::fresh(&new).expect("the sizes of a bench are legal");
    // Clean extents count, as if a session of cairn had cached them.
    superblock.set_intent(&IntentMap::new(new.set_uuid, disk.sectors().0));
    let written = Writes { fixture, disk }.write(SUPERBLOCK_SECTOR, &superblock.encode());
    written.map_err(|error| ConfigError::new(ConfigKind::System, "backing", error.to_string()))
}

/// Writes to a disk of the fixture.
struct Writes<'a> {
    fixture: &'a Fixture,
    disk: &'a Arc<dyn Disk>,
}

impl WriteSectors for Writes<'_> {
    type Error = IoError;

    fn write(&mut self, sector: u64, bytes: &[u8]) -> Result<(), IoError> {
        let (disk, bytes) = (self.disk.clone(), bytes.to_vec());
        self.fixture.on(move |env| async move {
            let range = SectorRange::new(Sector(sector), SectorCount::of_bytes(bytes.len() as u64));
            let segs = env.segs(range.count);
            segs.copy_in(0, &bytes);
            env.io(&disk, Io::write(range, segs)).await
        })
    }
}

/// A cache device in memory, which can forget the data that it gets from then on.
pub struct Cache {
    kept: MemoryDisk,
    forgotten: NullDisk,
    pub forgets: AtomicBool,
}

impl Cache {
    /// Of so many sectors.
    ///
    /// # Errors
    /// There is no memory.
    pub fn make(sectors: u64) -> Outcome<Cache> {
        let kept = MemoryDisk::new(SectorCount(sectors))?;
        let forgotten = NullDisk::new(SectorCount(sectors));
        Ok(Cache { kept, forgotten, forgets: AtomicBool::new(false) })
    }
}

impl Disk for Cache {
    fn name(&self) -> String {
        "cache".to_owned()
    }

    fn sectors(&self) -> SectorCount {
        self.kept.sectors()
    }

    fn limits(&self) -> Limits {
        self.kept.limits()
    }

    fn submit(&self, env: &Env, request: &mut Request) -> Flow {
        match self.forgets.load(Ordering::Relaxed) {
            true => self.forgotten.submit(env, request),
            false => self.kept.submit(env, request),
        }
    }
}

/// A backing device that keeps its superblock, forgets its data, and counts.
pub struct Backing {
    superblock: MemoryDisk,
    data: NullDisk,
    pub reads: AtomicU64,
    pub writes: AtomicU64,
    pub flushes: AtomicU64,
}

impl Backing {
    /// Of so many sectors of data.
    ///
    /// # Errors
    /// There is no memory.
    pub fn make(sectors: u64) -> Outcome<Backing> {
        let superblock = MemoryDisk::new(SectorCount(BACKING_FIRST))?;
        let data = NullDisk::new(SectorCount(BACKING_FIRST + sectors));
        let (reads, writes, flushes) = Default::default();
        Ok(Backing { superblock, data, reads, writes, flushes })
    }

    /// Counts from zero again.
    pub fn count_again(&self) {
        let counts = [&self.reads, &self.writes, &self.flushes];
        counts.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }
}

impl Disk for Backing {
    fn name(&self) -> String {
        "backing".to_owned()
    }

    fn sectors(&self) -> SectorCount {
        self.data.sectors()
    }

    fn limits(&self) -> Limits {
        self.data.limits()
    }

    fn submit(&self, env: &Env, request: &mut Request) -> Flow {
        if request.op != Op::Flush && request.range.end().0 <= BACKING_FIRST {
            return self.superblock.submit(env, request);
        }
        match request.op {
            Op::Read => self.reads.fetch_add(1, Ordering::Relaxed),
            Op::Write => self.writes.fetch_add(1, Ordering::Relaxed),
            Op::Flush => self.flushes.fetch_add(1, Ordering::Relaxed),
            _ => 0,
        };
        self.data.submit(env, request)
    }
}

/// See the module's description.
pub struct Remade {
    pub fixture: Fixture,
    cache: Arc<dyn Disk>,
    backing: Arc<dyn Disk>,
    made: Cell<u32>,
}

impl Remade {
    /// On so many reactors. The last block of the volume belongs to the fixture.
    ///
    /// # Errors
    /// The system refused a thread or a ring.
    pub fn make(reactors: u16, cache: Arc<dyn Disk>, backing: Arc<dyn Disk>) -> Outcome<Remade> {
        let fixture = Fixture::with(reactors, cairn_targets::types())?;
        fixture.put("cache", cache.clone());
        fixture.put("backing", backing.clone());
        Ok(Remade { fixture, cache, backing, made: Cell::new(0) })
    }

    /// Bytes of the cache device.
    pub fn cache_bytes(&self) -> u64 {
        self.cache.sectors().to_bytes()
    }

    /// Makes the set with these extents, and serves it. Nothing is written back in the background,
    /// as much of the cache may be dirty as the attributes allow, and the first write is done.
    ///
    /// # Errors
    /// A step failed.
    pub fn serve(&self, extents: &[Key]) -> Outcome<Arc<dyn Disk>> {
        self.made.set(self.made.get() + 1);
        let set = Uuid(fastrand::Rng::with_seed(self.made.get().into()).u128(..).to_le_bytes());
        make_cache(&self.fixture, &self.cache, set, extents)?;
        make_backing(&self.fixture, &self.backing, set)?;
        let sectors = self.backing.sectors().0 - BACKING_FIRST;
        let table = format!("0 {sectors} bcache backing cache 0");
        let volume = self.fixture.volume("volume", &table)?;
        for setting in ["writeback_running 0", "cutoff_writeback 70"] {
            self.set(setting)?;
        }
        let bytes = (KEY * SECTOR_BYTES) as usize;
        let write = Job { depth: 1, ..Job::new(Op::Write, bytes, [sectors - KEY].into()) };
        run(&self.fixture, &volume, &write.flushed())?;
        Ok(volume)
    }

    /// Sets an attribute: its name and value.
    ///
    /// # Errors
    /// The volume refuses it.
    pub fn set(&self, setting: &str) -> Outcome<()> {
        self.fixture.message("volume", &format!("set {setting}")).map(drop)
    }

    /// Ends the volume.
    ///
    /// # Errors
    /// Its last commit failed.
    pub fn end(&self, volume: Arc<dyn Disk>) -> Outcome<()> {
        drop(volume);
        self.fixture.remove("volume")
    }
}

/// An attribute of a volume that is a number.
///
/// # Panics
/// It has none of this name, or that is no number.
pub fn number(volume: &MappedDevice, name: &str) -> u64 {
    let table = volume.live_table().expect("it is live");
    let found = table.lines()[0].target.attributes().into_iter().find(|it| it.name == name);
    match found.map(|attribute| attribute.value) {
        Some(Value::Gauge(number) | Value::Counter(number)) => number,
        other => panic!("{name}: found {other:?}, expected a number"),
    }
}
