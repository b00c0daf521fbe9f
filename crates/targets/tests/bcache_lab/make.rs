//! Sets of any shape, made by the format's builder: a cached volume, a flash-only one, and a
//! journal whose keys no leaf has yet.

use cairn_format::bcache::build::{BuildError, Builder, WriteSectors};
use cairn_format::bcache::journal::{ENTRY_HEADER_BYTES, Header, encode};
use cairn_format::bcache::uuids::UuidEntry;
use cairn_format::bcache::{
    BackingState, BackingSuperblock, CacheMode, CacheSuperblock, Generation, Geometry, IntentMap,
    Key, NewBacking, NewCache, Pointer, Replacement, SECTOR_BYTES, Uuid,
};

use super::Cache;

/// Where the data of the backing device begins.
pub const FIRST: u64 = 16;

/// What a set is made of.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub block_sectors: u16,
    pub bucket_sectors: u64,
    /// Sectors of the volume.
    pub sectors: u64,
    /// How much of it is cached, of 16 parts, and how much of that is clean.
    pub cached: u64,
    pub clean: u64,
    /// The longest extent, in blocks.
    pub longest: u64,
    /// Keys of the journal.
    pub journaled: u64,
    /// Keys of an entry at most.
    pub per_entry: usize,
    /// Buckets that hold nothing.
    pub free: u64,
    /// In how many entries without keys the ring is full; none: one bucket of it is free.
    pub spare: Option<usize>,
}

pub const SHAPE: Shape = Shape {
    block_sectors: 1,
    bucket_sectors: 32,
    sectors: 2048,
    cached: 12,
    clean: 4,
    longest: 6,
    journaled: 100,
    per_entry: 16,
    free: 40,
    spare: None,
};

/// A set, and what it means.
pub struct Made {
    pub cache: Vec<u8>,
    pub backing: Vec<u8>,
    /// What the volume reads as.
    pub content: Vec<u8>,
    pub line: String,
    pub flash_line: String,
    pub flash_content: Vec<u8>,
}

/// One sector of a content: no two are equal.
pub fn stamp(number: u64) -> [u8; SECTOR_BYTES] {
    let mut sector = [number as u8; SECTOR_BYTES];
    sector[..8].copy_from_slice(&number.to_le_bytes());
    sector
}

fn put(bytes: &mut [u8], sector: u64, content: &[u8]) {
    let at = sector as usize * SECTOR_BYTES;
    bytes[at..at + content.len()].copy_from_slice(content);
}

fn get(bytes: &[u8], sector: u64, sectors: u64) -> &[u8] {
    &bytes[sector as usize * SECTOR_BYTES..][..sectors as usize * SECTOR_BYTES]
}

struct Maker<'r> {
    rng: &'r mut fastrand::Rng,
    shape: Shape,
    /// The next stamp.
    next: u64,
}

impl Maker<'_> {
    fn stamps(&mut self, sectors: u64) -> Vec<u8> {
        let stamps = self.next..self.next + sectors;
        self.next += sectors;
        stamps.flat_map(stamp).collect()
    }

    /// Extents of a volume, in order.
    fn extents(&mut self, inode: u32, first: u64) -> Vec<Key> {
        let (block, end) = (u64::from(self.shape.block_sectors), first + self.shape.sectors);
        let (mut keys, mut at) = (Vec::new(), first);
        loop {
            let sectors = block * (1 + self.rng.u64(..self.shape.longest));
            if at + sectors > end {
                return keys;
            }
            let is_cached = self.rng.u64(..16) < self.shape.cached;
            let is_dirty = inode > 0 || self.rng.u64(..16) >= self.shape.clean;
            if is_cached {
                keys.push(Key::new(inode, at + sectors, sectors).with_dirty(is_dirty));
            }
            at += sectors;
        }
    }

    fn build(
        &self,
        buckets: u64,
        keys: &[Key],
    ) -> Result<(CacheSuperblock, Vec<Key>, Vec<u8>), BuildError<std::convert::Infallible>> {
        let bucket = self.shape.bucket_sectors;
        let superblock = CacheSuperblock::fresh(&NewCache {
            uuid: Uuid([1; 16]),
            set_uuid: Uuid([2; 16]),
            block_sectors: self.shape.block_sectors,
            bucket_sectors: bucket,
            device_sectors: buckets * bucket,
            replacement: Replacement::Lru,
            discard: false,
        });
        let superblock = superblock.expect("legal");
        let mut image = vec![0; (buckets * bucket) as usize * SECTOR_BYTES];
        let mut builder = Builder::new(&superblock, 11, &mut image);
        let mut placed = Vec::new();
        for key in keys {
            placed.extend_from_slice(builder.add(*key)?);
        }
        let volume = |byte, flags, sectors| UuidEntry {
            uuid: Uuid([byte; 16]),
            flags,
            sectors,
            ..UuidEntry::default()
        };
        let superblock = builder.finish(&[volume(3, 0, 0), volume(4, 1, self.shape.sectors)])?;
        let superblock = superblock.registered(0);
        Ok((superblock, placed, image))
    }
}

/// The backing device of a volume, with this data, called dirty, of the set that is made.
pub fn backing_of(uuid: Uuid, block_sectors: u16, data: &[u8], mode: CacheMode) -> Vec<u8> {
    let new = NewBacking {
        uuid,
        set_uuid: Uuid([2; 16]),
        block_sectors,
        data_offset: FIRST,
        mode,
        state: BackingState::Dirty,
        label: [0; 32],
    };
    let mut backing = vec![0; FIRST as usize * SECTOR_BYTES];
    backing.extend(data);
    let mut superblock = BackingSuperblock::fresh(&new).expect("legal");
    // Clean extents count: the first session of cairn cached them, whose number is 1.
    let mut map = IntentMap::new(new.set_uuid, FIRST + data.len() as u64 / 512);
    map.cache_seq = 1;
    superblock.set_intent(&map);
    put(&mut backing, 8, &superblock.encode());
    backing
}

/// Makes a set.
pub fn make(rng: &mut fastrand::Rng, shape: Shape) -> Made {
    // The buckets that the keys of the journal may take.
    let journal_buckets = match shape.journaled {
        0 => 0,
        keys => {
            let sectors = keys * shape.longest * u64::from(shape.block_sectors);
            sectors / shape.bucket_sectors + keys / 4 + 2
        }
    };
    if shape.spare.is_none() {
        return make_with(rng, shape, journal_buckets).0;
    }
    // As many as they do take.
    let (_, taken) = make_with(&mut rng.clone(), shape, journal_buckets);
    make_with(rng, shape, taken).0
}

/// Makes a set with so many buckets for the data of the journal's keys. Answers how many these
/// took.
fn make_with(rng: &mut fastrand::Rng, shape: Shape, journal_buckets: u64) -> (Made, u64) {
    let mut maker = Maker { rng, shape, next: 1 };
    let data = maker.stamps(shape.sectors);
    let backing = backing_of(Uuid([3; 16]), shape.block_sectors, &data, CacheMode::Writeback);
    let mut content = backing[FIRST as usize * SECTOR_BYTES..].to_vec();
    let mut flash_content = vec![0; content.len()];

    let mut keys = maker.extents(0, FIRST);
    keys.extend(maker.extents(1, 0));
    // The smallest cache that holds it all, and what the journal and the shape add.
    let (mut least, mut most) = (127, 128);
    while maker.build(most, &keys).is_err() {
        (least, most) = (most, most * 2);
    }
    while most - least > 1 {
        let middle = least.midpoint(most);
        match maker.build(middle, &keys) {
            Ok(_) => most = middle,
            Err(_) => least = middle,
        }
    }
    // A larger cache has a larger ring, and more priorities.
    let grown = |buckets: u64| {
        let geometry = Geometry::new(shape.block_sectors.into(), shape.bucket_sectors, buckets, 16);
        let geometry = geometry.expect("legal");
        u64::from(geometry.journal_buckets()) + geometry.priority_sets()
    };
    let mut buckets = most + journal_buckets + shape.free;
    while buckets - grown(buckets) < most - grown(most) + journal_buckets + shape.free {
        buckets += 1;
    }
    let (superblock, placed, mut cache) = maker.build(buckets, &keys).expect("there is room");
    for key in &placed {
        let at = key.cached_at().expect("it was placed").sector();
        let first = if key.inode() == 0 { FIRST } else { 0 };
        let bytes = match key.is_dirty() {
            true => maker.stamps(key.sectors()),
            false => get(&content, key.start() - first, key.sectors()).to_vec(),
        };
        let volume = if key.inode() == 0 { &mut content } else { &mut flash_content };
        put(volume, key.start() - first, &bytes);
        put(&mut cache, at, &bytes);
    }
    cache.write(8, &superblock.encode()).expect("memory");
    let first = buckets - journal_buckets;
    let mut journal = Journal { maker, superblock, next: first, used: 0 };
    journal.write(&mut cache, &backing, &mut content);
    let taken = journal.next - first + u64::from(journal.used > 0);
    let uuid = Uuid([4; 16]);
    let made = Made {
        cache,
        backing,
        content,
        line: format!("0 {} bcache backing cache 0", shape.sectors),
        flash_line: format!("0 {} bcache - cache 2 flash {uuid}", shape.sectors),
        flash_content,
    };
    (made, taken)
}

struct Journal<'r> {
    maker: Maker<'r>,
    superblock: CacheSuperblock,
    /// The bucket for data, and its sectors in use.
    next: u64,
    used: u64,
}

impl Journal<'_> {
    /// A place for data.
    fn place(&mut self, sectors: u64) -> u64 {
        if self.used + sectors > self.maker.shape.bucket_sectors {
            (self.next, self.used) = (self.next + 1, 0);
        }
        self.used += sectors;
        self.next * self.maker.shape.bucket_sectors + self.used - sectors
    }

    /// A key over anything: dirty, or a hole.
    fn key(&mut self, cache: &mut [u8], backing: &[u8], content: &mut [u8]) -> Key {
        let shape = self.maker.shape;
        let block = u64::from(shape.block_sectors);
        let sectors = block * (1 + self.maker.rng.u64(..shape.longest));
        let start = self.maker.rng.u64(..(shape.sectors - sectors) / block) * block;
        let key = Key::new(0, FIRST + start + sectors, sectors);
        if self.maker.rng.u8(..8) == 0 {
            put(content, start, get(backing, FIRST + start, sectors));
            return key;
        }
        let (at, bytes) = (self.place(sectors), self.maker.stamps(sectors));
        put(content, start, &bytes);
        put(cache, at, &bytes);
        key.with_dirty(true).at(Pointer::new(at, Generation(0)))
    }

    /// Entries behind the builder's, all of which count, up to the last bucket of the ring or, if
    /// the ring is to be full, through the first.
    fn write(&mut self, cache: &mut [u8], backing: &[u8], content: &mut [u8]) {
        let shape = self.maker.shape;
        let newest = Cache::read(cache).loaded.newest;
        let (geometry, magic) =
            (*self.superblock.geometry(), self.superblock.set_uuid().set_magic());
        let ring = self.superblock.journal_buckets();
        let room = geometry.bucket_sectors() as usize * SECTOR_BYTES;
        let (last, spare) = match shape.spare {
            Some(entries) => (ring.start, entries * geometry.padded(ENTRY_HEADER_BYTES)),
            None => (ring.end - 1, 0),
        };
        let (mut bucket, mut at, mut seq) = (ring.start + 1, geometry.block_bytes(), 1);
        let mut left = shape.journaled as usize;
        let longest = geometry.padded(ENTRY_HEADER_BYTES + shape.per_entry * 24);
        while left > 0 && (bucket != last || at + longest + spare <= room) {
            let count = left.min(1 + self.maker.rng.usize(..shape.per_entry));
            let keys: Vec<Key> = (0..count).map(|_| self.key(cache, backing, content)).collect();
            left -= count;
            seq += 1;
            let header = Header { seq, last_seq: 1, ..newest };
            let bytes = encode(&header, &keys, magic, geometry.block_bytes());
            if at + bytes.len() > room {
                (bucket, at) = (if bucket + 1 == ring.end { ring.start } else { bucket + 1 }, 0);
            }
            put(cache, geometry.sector_of(bucket) + (at / SECTOR_BYTES) as u64, &bytes);
            at += bytes.len();
        }
    }
}
