//! Sets with several volumes to which nothing was written yet, of any shape, and what a user may
//! set while they are served.

use cairn_block::Sector;
use cairn_format::bcache::build::Builder;
use cairn_format::bcache::uuids::UuidEntry;
use cairn_format::bcache::{
    CacheMode, CacheSuperblock, NewCache, Replacement, SECTOR_BYTES, SUPERBLOCK_SECTOR, Uuid,
};
use cairn_sim::{DriveOptions, Image};

use super::make::backing_of;

/// What a set is made of.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub block_sectors: u16,
    pub bucket_sectors: u64,
    pub buckets: u64,
    /// Sectors of a volume.
    pub sectors: u64,
    /// Volumes of the set: the first two have backing devices, the third lies in the cache alone.
    pub volumes: usize,
    pub mode: CacheMode,
    /// The cache device keeps what it completed in volatile memory until a flush.
    pub volatile_cache: bool,
    /// How many operations a generation has at most, and the shortest and the longest in sectors.
    pub ops: u64,
    pub shortest: u64,
    pub longest: u64,
}

/// The volumes of a set, with the names of their backing devices.
pub const VOLUMES: [(&str, &str); 3] =
    [("volume", "backing"), ("second", "backing2"), ("flash", "-")];

/// Holds all data several times.
pub const ROOMY: Shape = Shape {
    block_sectors: 1,
    bucket_sectors: 16,
    buckets: 400,
    sectors: 512,
    volumes: 1,
    mode: CacheMode::Writeback,
    volatile_cache: true,
    ops: 400,
    shortest: 1,
    longest: 128,
};

/// Smaller than the volume: always short of buckets.
pub const TIGHT: Shape = Shape { buckets: 150, sectors: 3000, ..ROOMY };

/// Nodes that soon have siblings.
pub const SMALL_NODES: Shape = Shape { bucket_sectors: 8, ..TIGHT };

/// Many small extents in small nodes: these have siblings, and become sparse again.
pub const MANY_KEYS: Shape =
    Shape { bucket_sectors: 8, buckets: 800, sectors: 4000, ops: 2500, longest: 8, ..ROOMY };

/// Few extents, each of them large.
pub const LARGE_EXTENTS: Shape = Shape {
    bucket_sectors: 128,
    buckets: 200,
    sectors: 4000,
    ops: 80,
    shortest: 128,
    longest: 512,
    ..ROOMY
};

/// Sets with large extents only.
pub const PLAIN: &[Shape] = &[
    LARGE_EXTENTS,
    // Always short of buckets.
    Shape { buckets: 140, sectors: 16_000, ..LARGE_EXTENTS },
    Shape { volumes: 2, ..LARGE_EXTENTS },
    Shape { block_sectors: 8, bucket_sectors: 256, ..LARGE_EXTENTS },
];

/// Sets on a cache device that is not volatile.
pub const DURABLE: &[Shape] = &[
    Shape { volatile_cache: false, ..ROOMY },
    Shape { volatile_cache: false, ..TIGHT },
    Shape { volatile_cache: false, volumes: 2, ..ROOMY },
];

pub const SHAPES: &[Shape] = &[
    ROOMY,
    Shape { block_sectors: 8, bucket_sectors: 32, ..ROOMY },
    Shape { bucket_sectors: 128, ..ROOMY },
    TIGHT,
    SMALL_NODES,
    MANY_KEYS,
    MANY_KEYS,
    Shape { block_sectors: 8, bucket_sectors: 64, sectors: 8000, ..TIGHT },
    Shape { volumes: 2, ..ROOMY },
    Shape { volumes: 3, ..ROOMY },
    Shape { volumes: 2, sectors: 1500, ..TIGHT },
    Shape { volumes: 3, sectors: 600, ..TIGHT },
];

pub const MODES: &[CacheMode] = &[
    CacheMode::Writeback,
    CacheMode::Writeback,
    CacheMode::Writethrough,
    CacheMode::Writearound,
    CacheMode::None,
];

/// Settings. Of `sequential_cutoff`: no stream bypasses the cache, each request does, streams of
/// some requests do; the default.
pub const SETTINGS: &[[&str; 2]] = &[
    ["sequential_cutoff", "0"],
    ["sequential_cutoff", "512"],
    ["sequential_cutoff", "32768"],
    ["sequential_cutoff", "4194304"],
    ["congested_read_threshold_us", "0"],
    ["congested_read_threshold_us", "30"],
    ["congested_write_threshold_us", "0"],
    ["congested_write_threshold_us", "30"],
    ["write_zeroes_cutoff", "0"],
    ["write_zeroes_cutoff", "512"],
    ["write_zeroes_cutoff", "4096"],
    ["readahead_cache_policy", "meta-only"],
    ["cutoff_writeback", "0"],
    ["cutoff_writeback", "70"],
    ["cutoff_writeback_sync", "0"],
    ["cutoff_writeback_sync", "90"],
    ["writeback_percent", "0"],
    ["writeback_percent", "1"],
    ["writeback_percent", "40"],
    ["writeback_delay", "0"],
    ["writeback_delay", "30"],
    ["writeback_rate", "1"],
    ["writeback_rate", "1000000"],
    ["writeback_running", "0"],
    ["writeback_running", "1"],
    ["writeback_policy", "completion"],
    ["writeback_policy", "strict"],
    ["writeback_policy", "sorted"],
    ["writeback_policy", "sweep"],
    ["copy_gc_enabled", "0"],
    ["copy_gc_enabled", "1"],
    ["trigger_gc", "1"],
    ["trigger_gc", "1"],
    ["trigger_gc", "1"],
    ["trigger_gc", "1"],
];

impl Shape {
    /// The table of a volume.
    pub fn table(&self, index: usize) -> String {
        let (sectors, backing) = (self.sectors, VOLUMES[index].1);
        match backing {
            "-" => format!("0 {sectors} bcache - cache 2 flash {}", uuid_of(index)),
            _ => format!("0 {sectors} bcache {backing} cache 0"),
        }
    }

    /// The volumes that have a backing device.
    pub fn cached(&self) -> impl Iterator<Item = usize> + use<> {
        (0..self.volumes).filter(|index| VOLUMES[*index].1 != "-")
    }

    /// A set that nothing was written to: the cache device, and the backing devices.
    pub fn drives(&self) -> Vec<(DriveOptions, Image)> {
        let superblock = CacheSuperblock::fresh(&NewCache {
            uuid: Uuid([1; 16]),
            set_uuid: Uuid([2; 16]),
            block_sectors: self.block_sectors,
            bucket_sectors: self.bucket_sectors,
            device_sectors: self.buckets * self.bucket_sectors,
            replacement: Replacement::Lru,
            discard: false,
        });
        let superblock = superblock.expect("legal");
        let sectors = self.buckets * self.bucket_sectors;
        let mut bytes = vec![0; sectors as usize * SECTOR_BYTES];
        let builder = Builder::new(&superblock, 11, &mut bytes);
        let entry = |index: usize| {
            let is_flash = VOLUMES[index].1 == "-";
            let sectors = if is_flash { self.sectors } else { 0 };
            let flags = u32::from(is_flash);
            UuidEntry { uuid: uuid_of(index), flags, sectors, ..UuidEntry::default() }
        };
        let entries: Vec<UuidEntry> = (0..self.volumes).map(entry).collect();
        let superblock = builder.finish(&entries).expect("there is room").registered(0);
        let mut cache = Image::of_bytes(&bytes);
        cache.write(Sector(SUPERBLOCK_SECTOR), &superblock.encode());
        let data = vec![0; self.sectors as usize * SECTOR_BYTES];
        let backing = |index: usize| {
            let bytes = backing_of(uuid_of(index), self.block_sectors, &data, self.mode);
            (DriveOptions::named(VOLUMES[index].1), Image::of_bytes(&bytes))
        };
        let volatile_cache = self.volatile_cache;
        let cache = (DriveOptions { volatile_cache, ..DriveOptions::named("cache") }, cache);
        [cache].into_iter().chain(self.cached().map(backing)).collect()
    }
}

fn uuid_of(index: usize) -> Uuid {
    Uuid([3 + index as u8; 16])
}
