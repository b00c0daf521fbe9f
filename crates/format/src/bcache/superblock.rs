//! The superblock: 4 KiB at sector 8 of cache and backing devices alike.
//!
//! Promises that a [`CacheSuperblock`] and a [`BackingSuperblock`] always have legal values, and
//! that encoding one returns every byte that it was read from but those changed on purpose and the
//! checksum: the kernel keeps bytes that it does not know, and so does this.

use core::mem::{offset_of, size_of};

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::crc::crc64;
use super::intent::{IntentMap, RawLineage};
use super::uuids::UuidEntry;
use super::{Error, Geometry, SECTORS_MAX, Uuid};
use crate::Field;

/// The magic of both kinds of device.
pub const MAGIC: [u8; 16] = [
    0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba, 0x6d, 0x81,
];
/// Where the superblock is, in sectors.
pub const SUPERBLOCK_SECTOR: u64 = 8;
/// Its size.
pub const SUPERBLOCK_BYTES: usize = 4096;
/// The fewest buckets of a cache.
pub const BUCKETS_MIN: u64 = 128;
/// The most buckets of a journal.
pub const JOURNAL_BUCKETS_MAX: usize = 256;
/// Where the data of a backing device begins, in sectors, unless its superblock says otherwise.
pub const DATA_OFFSET: u64 = 16;

/// Feature "large_bucket": the bucket size is stored as its logarithm.
const INCOMPAT_LARGE_BUCKET: u64 = 2;
/// The obsolete feature for large buckets: sixteen more bits at the end.
const INCOMPAT_OBSOLETE_BUCKET: u64 = 1;

/// How often a superblock was written at most: there are numbers left for those behind it.
const SEQ_MAX: u64 = 1 << 63;

const FLAG_SYNC: u64 = 1;
const FLAG_DISCARD: u64 = 2;

/// The superblock as it lies on the device.
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Raw {
    csum: U64,
    offset: U64,
    version: U64,
    magic: [u8; 16],
    uuid: [u8; 16],
    set_uuid: [u8; 16],
    label: [u8; 32],
    flags: U64,
    seq: U64,
    feature_compat: U64,
    feature_incompat: U64,
    feature_ro_compat: U64,
    pad: [u8; 40],
    /// Of a cache; of a backing device it is `data_offset`.
    nbuckets: U64,
    block_size: U16,
    bucket_size: U16,
    nr_in_set: U16,
    nr_this_dev: U16,
    last_mount: U32,
    first_bucket: U16,
    keys: U16,
    d: [U64; JOURNAL_BUCKETS_MAX],
    bucket_size_hi: U16,
    tail: [u8; SUPERBLOCK_BYTES - 2258],
}

macro_rules! field {
    ($name:ident, $size:expr) => {
        Field { name: stringify!($name), offset: offset_of!(Raw, $name), size: $size }
    };
}

/// Where each field of the superblock lies.
pub const SUPERBLOCK_FIELDS: [Field; 24] = [
    field!(csum, 8),
    field!(offset, 8),
    field!(version, 8),
    field!(magic, 16),
    field!(uuid, 16),
    field!(set_uuid, 16),
    field!(label, 32),
    field!(flags, 8),
    field!(seq, 8),
    field!(feature_compat, 8),
    field!(feature_incompat, 8),
    field!(feature_ro_compat, 8),
    field!(pad, 40),
    field!(nbuckets, 8),
    field!(block_size, 2),
    field!(bucket_size, 2),
    field!(nr_in_set, 2),
    field!(nr_this_dev, 2),
    field!(last_mount, 4),
    field!(first_bucket, 2),
    field!(keys, 2),
    field!(d, 2048),
    field!(bucket_size_hi, 2),
    field!(tail, 1838),
];

const _: () = {
    assert!(size_of::<Raw>() == SUPERBLOCK_BYTES);
    assert!(offset_of!(Raw, magic) == 24);
    assert!(offset_of!(Raw, flags) == 104);
    assert!(offset_of!(Raw, nbuckets) == 184);
    assert!(offset_of!(Raw, keys) == 206);
    assert!(offset_of!(Raw, d) == 208);
    assert!(offset_of!(Raw, bucket_size_hi) == 2256);
};

/// A superblock of either kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Superblock {
    /// Of a cache device.
    Cache(CacheSuperblock),
    /// Of a backing device.
    Backing(BackingSuperblock),
}

/// The superblock of a cache device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheSuperblock {
    bytes: Bytes,
    geometry: Geometry,
}

/// The superblock of a backing device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackingSuperblock {
    bytes: Bytes,
}

/// What the kernel does with writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheMode {
    /// To both devices.
    Writethrough,
    /// To the cache, and later to the backing device.
    Writeback,
    /// To the backing device.
    Writearound,
    /// Neither reads nor writes use the cache.
    None,
}

impl CacheMode {
    const ALL: [CacheMode; 4] =
        [CacheMode::Writethrough, CacheMode::Writeback, CacheMode::Writearound, CacheMode::None];

    /// The kernel's word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            CacheMode::Writethrough => "writethrough",
            CacheMode::Writeback => "writeback",
            CacheMode::Writearound => "writearound",
            CacheMode::None => "none",
        }
    }

    /// The mode of a word.
    #[must_use]
    pub fn of_word(word: &str) -> Option<CacheMode> {
        CacheMode::ALL.into_iter().find(|mode| mode.word() == word)
    }
}

/// The attachment state of a backing device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackingState {
    /// It belongs to no set.
    None,
    /// The cache has nothing that it lacks.
    Clean,
    /// The cache may have data that it lacks.
    Dirty,
    /// Inconsistent: it was used without its cache although that had data it lacked.
    Stale,
}

impl BackingState {
    /// The kernel's words for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            BackingState::None => "no cache",
            BackingState::Clean => "clean",
            BackingState::Dirty => "dirty",
            BackingState::Stale => "inconsistent",
        }
    }
}

/// Which buckets are reused first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replacement {
    /// Those unused for longest.
    Lru,
    /// In order.
    Fifo,
    /// Any.
    Random,
}

impl Replacement {
    const ALL: [Replacement; 3] = [Replacement::Lru, Replacement::Fifo, Replacement::Random];

    /// The kernel's word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Replacement::Lru => "lru",
            Replacement::Fifo => "fifo",
            Replacement::Random => "random",
        }
    }

    /// The policy of a word.
    #[must_use]
    pub fn of_word(word: &str) -> Option<Replacement> {
        Replacement::ALL.into_iter().find(|policy| policy.word() == word)
    }
}

/// What makes a new cache superblock.
#[derive(Debug, Clone, Copy)]
pub struct NewCache {
    /// Of this device.
    pub uuid: Uuid,
    /// Of the set.
    pub set_uuid: Uuid,
    /// Sectors of a block.
    pub block_sectors: u16,
    /// Sectors of a bucket.
    pub bucket_sectors: u64,
    /// Sectors of the device.
    pub device_sectors: u64,
    /// Which buckets are reused first.
    pub replacement: Replacement,
    /// Whether buckets are discarded before they are reused.
    pub discard: bool,
}

/// What makes a new backing superblock.
#[derive(Debug, Clone, Copy)]
pub struct NewBacking {
    /// Of this device.
    pub uuid: Uuid,
    /// The set that it is attached to; zeros for none.
    pub set_uuid: Uuid,
    /// Sectors of a block.
    pub block_sectors: u16,
    /// Where its data begins.
    pub data_offset: u64,
    /// What happens with writes.
    pub mode: CacheMode,
    /// Its attachment state.
    pub state: BackingState,
    /// A name.
    pub label: [u8; 32],
}

#[derive(Clone)]
struct Bytes(Box<Raw>);

impl PartialEq for Bytes {
    fn eq(&self, other: &Bytes) -> bool {
        // The checksum is made when they are written.
        self.0.as_bytes()[8..] == other.0.as_bytes()[8..]
    }
}

impl Eq for Bytes {}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "version {} uuid {}", self.0.version, self.uuid())
    }
}

impl Superblock {
    /// Reads the superblock from the [`SUPERBLOCK_BYTES`] at [`SUPERBLOCK_SECTOR`].
    ///
    /// # Errors
    /// The magic is missing, or the superblock is damaged or of an unknown kind.
    pub fn decode(bytes: &[u8]) -> Result<Superblock, Error> {
        let bytes = Bytes::verified(bytes)?;
        match bytes.0.version.get() {
            0 | 3 | 5 => CacheSuperblock::validated(bytes).map(Superblock::Cache),
            _ => BackingSuperblock::validated(bytes).map(Superblock::Backing),
        }
    }

    /// True if these bytes have the magic. The rest may be damaged.
    #[must_use]
    pub fn has_magic(bytes: &[u8]) -> bool {
        bytes.get(24..40).is_some_and(|found| found == MAGIC)
    }
}

impl Bytes {
    fn verified(bytes: &[u8]) -> Result<Bytes, Error> {
        let short = |_| Error::Short { found: bytes.len() };
        let (raw, _) = Raw::ref_from_prefix(bytes).map_err(|error| short(error.to_string()))?;
        if raw.magic != MAGIC {
            return Err(Error::Magic { found: raw.magic });
        }
        if raw.offset.get() != SUPERBLOCK_SECTOR {
            return Err(Error::Offset { found: raw.offset.get() });
        }
        if usize::from(raw.keys.get()) > JOURNAL_BUCKETS_MAX {
            return Err(Error::JournalBuckets { found: raw.keys.get() });
        }
        let (found, expected) = (raw.csum.get(), checksum_of(raw));
        if found != expected {
            return Err(Error::Checksum { found, expected });
        }
        if !matches!(raw.version.get(), 0 | 1 | 3..=6) {
            return Err(Error::Version { found: raw.version.get() });
        }
        let bytes = Bytes(Box::new(raw.clone()));
        if bytes.uuid().is_zero() {
            return Err(Error::NoUuid { field: "uuid" });
        }
        let block = u64::from(raw.block_size.get());
        in_range("block_size", block, block.is_power_of_two() && block <= 8, "1, 2, 4 or 8")?;
        Ok(bytes)
    }

    /// For a cache alone: the kernel neither reads the features of a backing device nor keeps them.
    /// It writes leftovers of its memory there (seen in 6.1).
    fn refuse_features(&self) -> Result<(), Error> {
        let known_incompat = INCOMPAT_LARGE_BUCKET | INCOMPAT_OBSOLETE_BUCKET;
        let features = [
            ("feature_compat", self.0.feature_compat.get(), 0),
            ("feature_incompat", self.0.feature_incompat.get(), known_incompat),
            ("feature_ro_compat", self.0.feature_ro_compat.get(), 0),
        ];
        let unknown = features.into_iter().find(|(_, found, known)| found & !known != 0);
        match unknown {
            Some((field, found, known)) if self.has_features() => {
                Err(Error::Features { field, found, known })
            }
            _ => Ok(()),
        }
    }

    fn has_features(&self) -> bool {
        self.0.version.get() >= 5
    }

    fn fresh(version: u64, uuid: Uuid, set_uuid: Uuid, block_sectors: u16) -> Bytes {
        let mut raw = Box::new(Raw::new_zeroed());
        raw.offset = U64::new(SUPERBLOCK_SECTOR);
        raw.version = U64::new(version);
        raw.magic = MAGIC;
        raw.uuid = uuid.0;
        raw.set_uuid = set_uuid.0;
        raw.block_size = U16::new(block_sectors);
        raw.nr_in_set = U16::new(1);
        Bytes(raw)
    }

    fn encode(&self) -> Vec<u8> {
        let mut raw = self.0.clone();
        raw.csum = U64::new(checksum_of(&raw));
        raw.as_bytes().to_vec()
    }

    fn uuid(&self) -> Uuid {
        Uuid(self.0.uuid)
    }

    fn flag(&self, shift: u32, mask: u64) -> u64 {
        self.0.flags.get() >> shift & mask
    }

    fn set_flag(&mut self, shift: u32, mask: u64, value: u64) {
        let flags = self.0.flags.get();
        self.0.flags = U64::new(flags & !(mask << shift) | value << shift);
    }
}

/// What both kinds have.
macro_rules! common_fields {
    ($kind:ty) => {
        impl $kind {
            /// The version.
            #[must_use]
            pub fn version(&self) -> u64 {
                self.bytes.0.version.get()
            }

            /// The device's identifier.
            #[must_use]
            pub fn uuid(&self) -> Uuid {
                self.bytes.uuid()
            }

            /// The set's identifier; zeros for a backing device that belongs to none.
            #[must_use]
            pub fn set_uuid(&self) -> Uuid {
                Uuid(self.bytes.0.set_uuid)
            }

            /// Sectors of a block: what is written at once.
            #[must_use]
            pub fn block_sectors(&self) -> u32 {
                u32::from(self.bytes.0.block_size.get())
            }

            /// How often a cache's superblock was written. 0 on backing devices.
            #[must_use]
            pub fn seq(&self) -> u64 {
                self.bytes.0.seq.get()
            }

            /// When it was last registered, in seconds of Unix time.
            #[must_use]
            pub fn last_mount(&self) -> u32 {
                self.bytes.0.last_mount.get()
            }

            /// All flags, for a person to see.
            #[must_use]
            pub fn flags(&self) -> u64 {
                self.bytes.0.flags.get()
            }

            /// The feature bits: compatible, incompatible, and read-only compatible.
            #[must_use]
            pub fn features(&self) -> [u64; 3] {
                let raw = &self.bytes.0;
                [raw.feature_compat.get(), raw.feature_incompat.get(), raw.feature_ro_compat.get()]
            }

            /// The checksum that its bytes have.
            #[must_use]
            pub fn checksum(&self) -> u64 {
                checksum_of(&self.bytes.0)
            }

            /// The bytes to write at [`SUPERBLOCK_SECTOR`].
            #[must_use]
            pub fn encode(&self) -> Vec<u8> {
                self.bytes.encode()
            }
        }
    };
}

common_fields!(CacheSuperblock);
common_fields!(BackingSuperblock);

impl CacheSuperblock {
    fn validated(bytes: Bytes) -> Result<CacheSuperblock, Error> {
        bytes.refuse_features()?;
        let raw = &bytes.0;
        if Uuid(raw.set_uuid).is_zero() {
            return Err(Error::NoUuid { field: "set_uuid" });
        }
        let in_set = u64::from(raw.nr_in_set.get());
        in_range("nr_in_set", in_set, in_set == 1, "1 (one cache device in a set)")?;
        let seq = raw.seq.get();
        in_range("seq", seq, seq <= SEQ_MAX, "2^63 at most")?;
        let this = u64::from(raw.nr_this_dev.get());
        in_range("nr_this_dev", this, this == 0, "0")?;
        if raw.nbuckets.get() < BUCKETS_MIN {
            return Err(Error::FewBuckets { found: raw.nbuckets.get() });
        }
        let geometry = Geometry::new(
            u32::from(raw.block_size.get()),
            bytes.bucket_sectors()?,
            raw.nbuckets.get(),
            u64::from(raw.first_bucket.get()),
        )?;
        let first = u64::from(raw.first_bucket.get());
        let journal = raw.d[..usize::from(raw.keys.get())].iter().map(|bucket| bucket.get());
        for ((index, found), expected) in journal.enumerate().zip(first..) {
            if found != expected || found >= raw.nbuckets.get() {
                return Err(Error::JournalBucket { index, found, expected });
            }
        }
        Ok(CacheSuperblock { bytes, geometry })
    }

    /// The superblock of an empty cache, as tools make it: not yet in use.
    ///
    /// # Errors
    /// The device is too small, or a size is not legal.
    pub fn fresh(new: &NewCache) -> Result<CacheSuperblock, Error> {
        let large = new.bucket_sectors > u64::from(u16::MAX);
        let version = if large { 5 } else { 3 };
        let mut bytes = Bytes::fresh(version, new.uuid, new.set_uuid, new.block_sectors);
        let raw = &mut bytes.0;
        raw.feature_incompat = U64::new(if large { INCOMPAT_LARGE_BUCKET } else { 0 });
        let size = if large { u64::from(new.bucket_sectors.ilog2()) } else { new.bucket_sectors };
        raw.bucket_size = U16::new(size as u16);
        raw.nbuckets = U64::new(new.device_sectors / new.bucket_sectors.max(1));
        raw.first_bucket = U16::new((23 / new.bucket_sectors.max(1) + 1) as u16);
        bytes.set_flag(2, 7, new.replacement as u64);
        bytes.set_flag(1, 1, u64::from(new.discard));
        Bytes::verified(&bytes.encode()).and_then(CacheSuperblock::validated)
    }

    /// The sizes of the cache.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// True if the journal, the tree and all the rest are valid; false on a cache never used.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        self.flags() & FLAG_SYNC != 0
    }

    /// Whether buckets are discarded before they are reused.
    #[must_use]
    pub fn discards(&self) -> bool {
        self.flags() & FLAG_DISCARD != 0
    }

    /// Which buckets are reused first; a number without a meaning counts as LRU.
    #[must_use]
    pub fn replacement(&self) -> Replacement {
        match self.bytes.flag(2, 7) {
            1 => Replacement::Fifo,
            2 => Replacement::Random,
            _ => Replacement::Lru,
        }
    }

    /// The buckets of the journal, in the order of the ring.
    #[must_use]
    pub fn journal_buckets(&self) -> std::ops::Range<u64> {
        let first = u64::from(self.bytes.0.first_bucket.get());
        first..first + u64::from(self.bytes.0.keys.get())
    }

    /// True if the bucket size has the obsolete form, which is to be read only.
    #[must_use]
    pub fn is_obsolete(&self) -> bool {
        self.bytes.has_features()
            && self.bytes.0.feature_incompat.get() & INCOMPAT_OBSOLETE_BUCKET != 0
    }

    /// From which sequence on all superblocks up to this one were written by cairn; none if this
    /// one was not.
    #[must_use]
    pub fn own_since(&self) -> Option<u64> {
        RawLineage::own_since(&self.bytes.0.pad, self.seq())
    }

    /// What a session that continues a cache writes first.
    #[must_use]
    pub fn registered(&self, now_s: u32) -> CacheSuperblock {
        let mut next = self.clone();
        let raw = &mut next.bytes.0;
        raw.seq = U64::new(raw.seq.get() + 1);
        raw.pad = RawLineage::continued(&raw.pad, raw.seq.get());
        raw.last_mount = U32::new(now_s);
        raw.version = U64::new(raw.version.get().max(3));
        next
    }

    /// With a journal of so many buckets, and marked as in use.
    #[must_use]
    pub fn in_use_with_journal(&self, buckets: u16) -> CacheSuperblock {
        let mut next = self.clone();
        let first = u64::from(next.bytes.0.first_bucket.get());
        next.bytes.0.keys = U16::new(buckets);
        for (slot, bucket) in next.bytes.0.d.iter_mut().zip(first..first + u64::from(buckets)) {
            *slot = U64::new(bucket);
        }
        next.bytes.set_flag(0, 1, 1);
        next
    }
}

impl Bytes {
    fn bucket_sectors(&self) -> Result<u64, Error> {
        let raw = &self.0;
        let size = u64::from(raw.bucket_size.get());
        let features = if self.has_features() { raw.feature_incompat.get() } else { 0 };
        if features & INCOMPAT_LARGE_BUCKET != 0 {
            in_range("bucket_size", size, size < 32, "a logarithm below 32")?;
            return Ok(1 << size);
        }
        let high = u64::from(raw.bucket_size_hi.get());
        Ok(if features & INCOMPAT_OBSOLETE_BUCKET != 0 { size | high << 16 } else { size })
    }
}

impl BackingSuperblock {
    fn validated(bytes: Bytes) -> Result<BackingSuperblock, Error> {
        let superblock = BackingSuperblock { bytes };
        let offset = superblock.data_offset();
        let is_legal = (DATA_OFFSET..=SECTORS_MAX).contains(&offset);
        in_range("data_offset", offset, is_legal, "16 to 2^54 sectors")?;
        Ok(superblock)
    }

    /// The superblock of a backing device, as tools make it.
    ///
    /// # Errors
    /// A size is not legal.
    pub fn fresh(new: &NewBacking) -> Result<BackingSuperblock, Error> {
        let version = if new.data_offset == DATA_OFFSET { 1 } else { 4 };
        let mut bytes = Bytes::fresh(version, new.uuid, new.set_uuid, new.block_sectors);
        if version == 4 {
            bytes.0.nbuckets = U64::new(new.data_offset);
        }
        bytes.0.label = new.label;
        let mut superblock = BackingSuperblock { bytes };
        superblock.set_mode(new.mode);
        superblock.set_state(new.state);
        Bytes::verified(&superblock.encode()).and_then(BackingSuperblock::validated)
    }

    /// Where the data begins, in sectors.
    #[must_use]
    pub fn data_offset(&self) -> u64 {
        match self.version() {
            1 => DATA_OFFSET,
            _ => self.bytes.0.nbuckets.get(),
        }
    }

    /// How many sectors of data a device of `device_sectors` has.
    ///
    /// # Errors
    /// It ends before the data begins.
    pub fn data_sectors(&self, device_sectors: u64) -> Result<u64, Error> {
        let offset = self.data_offset();
        let too_small = Error::DeviceSize { found: device_sectors, expected: offset + 1 };
        device_sectors.checked_sub(offset).filter(|sectors| *sectors > 0).ok_or(too_small)
    }

    /// The label, up to its first zero or newline.
    #[must_use]
    pub fn label(&self) -> String {
        super::label_text(&self.bytes.0.label)
    }

    /// The entry that it gets in the array of a set which it joins at this time, in seconds of
    /// Unix time.
    #[must_use]
    pub fn as_volume(&self, now_s: u32) -> UuidEntry {
        UuidEntry {
            uuid: self.uuid(),
            label: self.bytes.0.label,
            first_registered: now_s,
            last_registered: now_s,
            ..UuidEntry::default()
        }
    }

    /// What happens with writes; a number without a meaning counts as none.
    #[must_use]
    pub fn mode(&self) -> CacheMode {
        match self.bytes.flag(0, 15) {
            0 => CacheMode::Writethrough,
            1 => CacheMode::Writeback,
            2 => CacheMode::Writearound,
            _ => CacheMode::None,
        }
    }

    /// Its attachment state.
    #[must_use]
    pub fn state(&self) -> BackingState {
        match self.bytes.flag(61, 3) {
            0 => BackingState::None,
            1 => BackingState::Clean,
            2 => BackingState::Dirty,
            _ => BackingState::Stale,
        }
    }

    /// Says what happens with writes.
    pub fn set_mode(&mut self, mode: CacheMode) {
        self.bytes.set_flag(0, 15, mode as u64);
    }

    /// Sets its attachment state.
    pub fn set_state(&mut self, state: BackingState) {
        self.bytes.set_flag(61, 3, state as u64);
    }

    /// The write-intent map; none if cairn has not written one, or both slots are damaged.
    #[must_use]
    pub fn intent(&self) -> Option<IntentMap> {
        let has_room = self.bytes.0.keys.get() == 0;
        has_room.then(|| IntentMap::of(self.bytes.0.as_bytes())).flatten()
    }

    /// Puts a write-intent map into the slot that is not in use. False if there is no room: the
    /// checksum covers what follows the header, so that a part of a slot would damage all.
    pub fn set_intent(&mut self, map: &IntentMap) -> bool {
        let has_room = self.bytes.0.keys.get() == 0;
        if has_room {
            map.put(self.bytes.0.as_mut_bytes());
        }
        has_room
    }

    /// Drops the write-intent map: no session is known to be the newest. False if there is none.
    pub fn clear_intent(&mut self) -> bool {
        let has_map = self.intent().is_some();
        if has_map {
            IntentMap::clear(self.bytes.0.as_mut_bytes());
        }
        has_map
    }

    /// Says which set it belongs to; zeros for none.
    pub fn set_set_uuid(&mut self, set_uuid: Uuid) {
        self.bytes.0.set_uuid = set_uuid.0;
    }
}

fn checksum_of(raw: &Raw) -> u64 {
    let keys = usize::from(raw.keys.get()).min(JOURNAL_BUCKETS_MAX);
    crc64(&raw.as_bytes()[8..offset_of!(Raw, d) + 8 * keys])
}

fn in_range(
    field: &'static str,
    found: u64,
    is_legal: bool,
    expected: &'static str,
) -> Result<(), Error> {
    is_legal.then_some(()).ok_or(Error::Field { field, found, expected })
}

#[cfg(test)]
mod tests;
