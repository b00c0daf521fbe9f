//! The write-intent map: which regions of a backing device may differ from clean data of the cache.
//!
//! It is cairn's own, in bytes 1024 to 4095 of the superblock of the backing device, which the
//! kernel keeps: two *slots* that take turns, so that a slot that was written in part leaves the
//! other one. A slot says in which session of the set, and behind which entry of the journal, it
//! was written. If only cairn has written to the set since then, clean extents outside of the
//! regions with a bit are what the backing device has, durably. The superblock of the cache has the
//! *lineage* for that, in its bytes that are kept: from which of its writes on all were cairn's.
//!
//! A kernel knows neither, raises the sequence of the cache's superblock when it registers the set,
//! and keeps the lineage as it is: so the lineage does not end at that sequence any more.

use core::mem::{offset_of, size_of};

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::crc::crc64;
use super::{CacheSuperblock, Uuid};
use crate::Field;

/// Bytes of a slot.
pub const SLOT_BYTES: usize = 1536;
/// Where the slots lie in the superblock.
pub const SLOT_OFFSETS: [usize; 2] = [1024, 2560];
/// How many regions a map has at most.
pub const REGIONS_MAX: usize = 8192;
/// The smallest region, in sectors.
pub const REGION_SECTORS_MIN: u64 = 2048;
/// The magic of a slot.
pub const SLOT_MAGIC: [u8; 16] = *b"cairn intent map";
/// The magic of a lineage.
pub const LINEAGE_MAGIC: [u8; 16] = *b"cairn lineage\0\0\0";

const FLAG_CLOSED: u64 = 1;
/// The largest region, in sectors: 8192 of them have more than a device may have.
const REGION_SECTORS_MAX: u64 = 1 << 50;

/// A slot as it lies on the device.
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawSlot {
    csum: U64,
    magic: [u8; 16],
    sequence: U64,
    set_uuid: [u8; 16],
    cache_seq: U64,
    journal_seq: U64,
    flags: U64,
    region_sectors: U64,
    pad: [u8; 432],
    bits: [u8; REGIONS_MAX / 8],
}

/// A lineage as it lies on the device.
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RawLineage {
    magic: [u8; 16],
    first: U64,
    last: U64,
    pad: [u8; 8],
}

macro_rules! field {
    ($raw:ident, $name:ident, $size:expr) => {
        Field { name: stringify!($name), offset: offset_of!($raw, $name), size: $size }
    };
}

/// Where each field of a slot lies.
pub const SLOT_FIELDS: [Field; 10] = [
    field!(RawSlot, csum, 8),
    field!(RawSlot, magic, 16),
    field!(RawSlot, sequence, 8),
    field!(RawSlot, set_uuid, 16),
    field!(RawSlot, cache_seq, 8),
    field!(RawSlot, journal_seq, 8),
    field!(RawSlot, flags, 8),
    field!(RawSlot, region_sectors, 8),
    field!(RawSlot, pad, 432),
    field!(RawSlot, bits, 1024),
];

/// Where each field of a lineage lies.
pub const LINEAGE_FIELDS: [Field; 4] = [
    field!(RawLineage, magic, 16),
    field!(RawLineage, first, 8),
    field!(RawLineage, last, 8),
    field!(RawLineage, pad, 8),
];

/// Bytes of a lineage.
pub const LINEAGE_BYTES: usize = 40;

const _: () = {
    assert!(size_of::<RawSlot>() == SLOT_BYTES);
    assert!(size_of::<RawLineage>() == LINEAGE_BYTES);
    assert!(SLOT_OFFSETS[0] + SLOT_BYTES == SLOT_OFFSETS[1]);
    assert!(SLOT_OFFSETS[1] + SLOT_BYTES == super::SUPERBLOCK_BYTES);
    // The head of a slot is one sector, and the bits are whole ones.
    assert!(offset_of!(RawSlot, bits) == 512);
};

/// What a slot says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IntentMap {
    /// The set of the cache.
    pub set_uuid: Uuid,
    /// The sequence of the cache's superblock in the session that wrote it.
    pub cache_seq: u64,
    /// A durable entry of the journal of that time.
    pub journal_seq: u64,
    /// The volume was suspended: nothing was in flight.
    pub is_closed: bool,
    /// Sectors of a region; the first begins at sector 0 of the backing device.
    pub region_sectors: u64,
    /// A bit for each region, from bit 0 of the first byte on.
    bits: Box<[u8; REGIONS_MAX / 8]>,
}

impl IntentMap {
    /// A map without bits, for a device of so many sectors.
    #[must_use]
    pub fn new(set_uuid: Uuid, device_sectors: u64) -> IntentMap {
        let needed = device_sectors.div_ceil(REGIONS_MAX as u64).next_power_of_two();
        IntentMap {
            set_uuid,
            cache_seq: 0,
            journal_seq: 0,
            is_closed: false,
            region_sectors: needed.clamp(REGION_SECTORS_MIN, REGION_SECTORS_MAX),
            bits: Box::new([0; REGIONS_MAX / 8]),
        }
    }

    /// The region of a sector.
    #[must_use]
    pub fn region_of(&self, sector: u64) -> usize {
        (sector / self.region_sectors).min(REGIONS_MAX as u64 - 1) as usize
    }

    /// True if clean data in a region may differ from the backing device.
    ///
    /// # Panics
    /// If `region` is not below [`REGIONS_MAX`].
    #[must_use]
    pub fn is_set(&self, region: usize) -> bool {
        self.bits[region / 8] >> (region % 8) & 1 != 0
    }

    /// Sets or clears the bit of a region.
    ///
    /// # Panics
    /// If `region` is not below [`REGIONS_MAX`].
    pub fn set(&mut self, region: usize, is_set: bool) {
        let (byte, bit) = (&mut self.bits[region / 8], 1 << (region % 8));
        *byte = if is_set { *byte | bit } else { *byte & !bit };
    }

    /// How many regions have a bit.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.bits.iter().map(|byte| byte.count_ones()).sum()
    }

    /// True if only cairn has written to the set since this was written: the superblock of the
    /// cache is that of the same session, or of one that only sessions of cairn came before; and
    /// the journal has not gone back.
    #[must_use]
    pub fn vouches(&self, cache: &CacheSuperblock, newest_entry: u64) -> bool {
        let own_since = cache.own_since().unwrap_or(cache.seq());
        self.set_uuid == cache.set_uuid()
            && (own_since..=cache.seq()).contains(&self.cache_seq)
            && self.journal_seq <= newest_entry
    }

    /// The newer slot that is sound, and its sequence.
    fn newest(superblock: &[u8]) -> Option<(usize, u64, IntentMap)> {
        let slot = |at: usize| {
            let (sequence, map) = decode_slot(&superblock[SLOT_OFFSETS[at]..])?;
            Some((at, sequence, map))
        };
        [slot(0), slot(1)].into_iter().flatten().max_by_key(|(_, sequence, _)| *sequence)
    }

    /// The map that a superblock of a backing device has; none if both slots are not sound.
    pub(super) fn of(superblock: &[u8]) -> Option<IntentMap> {
        IntentMap::newest(superblock).map(|(_, _, map)| map)
    }

    /// Puts the map into the slot of a superblock that is not the newest sound one.
    pub(super) fn put(&self, superblock: &mut [u8]) {
        let (at, sequence) = match IntentMap::newest(superblock) {
            Some((at, sequence, _)) => (1 - at, sequence.saturating_add(1)),
            None => (0, 1),
        };
        let slot = self.encode_slot(sequence);
        superblock[SLOT_OFFSETS[at]..][..SLOT_BYTES].copy_from_slice(&slot);
    }

    /// Leaves no slot of a superblock sound.
    pub(super) fn clear(superblock: &mut [u8]) {
        SLOT_OFFSETS.iter().for_each(|at| superblock[*at..][..SLOT_BYTES].fill(0));
    }

    /// The bytes of a slot.
    #[must_use]
    pub fn encode_slot(&self, sequence: u64) -> Vec<u8> {
        let mut raw = RawSlot::new_zeroed();
        raw.magic = SLOT_MAGIC;
        raw.sequence = U64::new(sequence);
        raw.set_uuid = self.set_uuid.0;
        raw.cache_seq = U64::new(self.cache_seq);
        raw.journal_seq = U64::new(self.journal_seq);
        raw.flags = U64::new(if self.is_closed { FLAG_CLOSED } else { 0 });
        raw.region_sectors = U64::new(self.region_sectors);
        raw.bits = *self.bits;
        raw.csum = U64::new(crc64(&raw.as_bytes()[8..]));
        raw.as_bytes().to_vec()
    }
}

/// What a slot says, and its sequence; none if it is not sound, or a later version wrote it. The
/// superblock has room for a whole one.
///
/// # Panics
/// If there are fewer bytes than a slot has.
#[must_use]
pub fn decode_slot(bytes: &[u8]) -> Option<(u64, IntentMap)> {
    let (raw, _) = RawSlot::ref_from_prefix(bytes).expect("a slot has its bytes");
    let is_sound = raw.magic == SLOT_MAGIC && raw.csum.get() == crc64(&raw.as_bytes()[8..]);
    let (region_sectors, flags) = (raw.region_sectors.get(), raw.flags.get());
    let is_legal = region_sectors.is_power_of_two()
        && (REGION_SECTORS_MIN..=REGION_SECTORS_MAX).contains(&region_sectors)
        && flags & !FLAG_CLOSED == 0
        && raw.pad.iter().all(|byte| *byte == 0);
    let map = || IntentMap {
        set_uuid: Uuid(raw.set_uuid),
        cache_seq: raw.cache_seq.get(),
        journal_seq: raw.journal_seq.get(),
        is_closed: flags & FLAG_CLOSED != 0,
        region_sectors,
        bits: Box::new(raw.bits),
    };
    (is_sound && is_legal).then(|| (raw.sequence.get(), map()))
}

impl RawLineage {
    /// From which sequence on all superblocks up to this one were cairn's; none if this one is not.
    pub(super) fn own_since(pad: &[u8; LINEAGE_BYTES], seq: u64) -> Option<u64> {
        let raw = RawLineage::ref_from_bytes(pad).expect("it has its bytes");
        let is_own = raw.magic == LINEAGE_MAGIC && raw.last.get() == seq;
        (is_own && raw.first.get() <= seq).then(|| raw.first.get())
    }

    /// The same bytes in the next superblock, with this sequence. Bytes that another program put
    /// there stay.
    pub(super) fn continued(pad: &[u8; LINEAGE_BYTES], next: u64) -> [u8; LINEAGE_BYTES] {
        let raw = RawLineage::ref_from_bytes(pad).expect("it has its bytes");
        if raw.magic != LINEAGE_MAGIC && pad.iter().any(|byte| *byte != 0) {
            return *pad;
        }
        let first = RawLineage::own_since(pad, next - 1).unwrap_or(next);
        let mut raw = RawLineage::new_zeroed();
        raw.magic = LINEAGE_MAGIC;
        (raw.first, raw.last) = (U64::new(first), U64::new(next));
        let mut bytes = [0; LINEAGE_BYTES];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bcache::{
        BackingState, BackingSuperblock, CacheMode, NewBacking, NewCache, Replacement,
        SUPERBLOCK_BYTES, Superblock,
    };

    const SET: Uuid = Uuid([2; 16]);

    fn cache() -> CacheSuperblock {
        let new = NewCache {
            uuid: Uuid([1; 16]),
            set_uuid: SET,
            block_sectors: 1,
            bucket_sectors: 16,
            device_sectors: 16 * 200,
            replacement: Replacement::Lru,
            discard: false,
        };
        CacheSuperblock::fresh(&new).expect("legal").in_use_with_journal(2)
    }

    fn backing() -> BackingSuperblock {
        let new = NewBacking {
            uuid: Uuid([3; 16]),
            set_uuid: SET,
            block_sectors: 1,
            data_offset: 16,
            mode: CacheMode::Writeback,
            state: BackingState::Clean,
            label: [0; 32],
        };
        BackingSuperblock::fresh(&new).expect("legal")
    }

    fn read(bytes: &[u8]) -> BackingSuperblock {
        match Superblock::decode(bytes) {
            Ok(Superblock::Backing(backing)) => backing,
            other => panic!("{other:?}"),
        }
    }

    /// What a kernel does when it registers the set: another sequence, and all else as it was.
    fn registered_by_a_kernel(cache: &CacheSuperblock) -> CacheSuperblock {
        let mut bytes = cache.encode();
        bytes[112..120].copy_from_slice(&(cache.seq() + 1).to_le_bytes());
        let keys = usize::from(u16::from_le_bytes([bytes[206], bytes[207]]));
        let csum = crc64(&bytes[8..208 + 8 * keys]);
        bytes[..8].copy_from_slice(&csum.to_le_bytes());
        match Superblock::decode(&bytes) {
            Ok(Superblock::Cache(cache)) => cache,
            other => panic!("{other:?}"),
        }
    }

    fn map_of(cache: &CacheSuperblock) -> IntentMap {
        IntentMap { cache_seq: cache.seq(), journal_seq: 5, ..IntentMap::new(SET, 1 << 20) }
    }

    #[test]
    fn a_map_reads_as_it_was_written_and_the_slots_take_turns() {
        let mut superblock = backing();
        assert_eq!(superblock.intent(), None);
        let mut map = IntentMap::new(SET, 1 << 33);
        assert_eq!(map.region_sectors, 1 << 20);
        for turn in 0..5 {
            map.set(turn * 7, true);
            map.set(8191 - turn, turn % 2 == 0);
            (map.cache_seq, map.journal_seq, map.is_closed) = (turn as u64, 9, turn % 2 == 1);
            let before = superblock.encode();
            assert!(superblock.set_intent(&map));
            superblock = read(&superblock.encode());
            assert_eq!(superblock.intent().as_ref(), Some(&map));
            let other = SLOT_OFFSETS[1 - turn % 2];
            let kept = other..other + SLOT_BYTES;
            assert_eq!(superblock.encode()[kept.clone()], before[kept], "the other slot stays");
        }
        assert!(map.is_set(28) && !map.is_set(27) && map.is_set(8191));
        assert_eq!((map.count(), map.region_of(1 << 20), map.region_of(u64::MAX)), (8, 1, 8191));
    }

    #[test]
    fn a_slot_that_was_written_in_part_leaves_the_older_one() {
        let mut superblock = backing();
        let map = map_of(&cache());
        superblock.set_intent(&map);
        let old = superblock.encode();
        let mut next = map.clone();
        (next.cache_seq, next.is_closed) = (7, true);
        next.set(8000, true);
        superblock.set_intent(&next);
        let new = superblock.encode();
        for sectors in 0..256_u32 {
            let of = |at: usize| if sectors >> (at / 512) & 1 != 0 { &new } else { &old };
            let torn: Vec<u8> = (0..SUPERBLOCK_BYTES).map(|at| of(at)[at]).collect();
            let found = read(&torn).intent();
            let has_all = sectors & 0xe0 == 0xe0 || new[2560..] == torn[2560..];
            assert_eq!(found.as_ref(), Some(if has_all { &next } else { &map }), "{sectors:#x}");
        }
    }

    #[test]
    fn each_flipped_bit_of_a_slot_is_noticed() {
        let slot = map_of(&cache()).encode_slot(3);
        assert!(decode_slot(&slot).is_some_and(|(sequence, _)| sequence == 3));
        for bit in 0..SLOT_BYTES * 8 {
            let mut slot = slot.clone();
            slot[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode_slot(&slot), None, "bit {bit}");
        }
    }

    #[test]
    fn the_map_stays_when_state_mode_or_set_change() {
        let mut superblock = backing();
        let map = map_of(&cache());
        superblock.set_intent(&map);
        superblock.set_state(BackingState::Dirty);
        superblock.set_mode(CacheMode::None);
        superblock.set_set_uuid(Uuid::ZERO);
        assert_eq!(read(&superblock.encode()).intent(), Some(map));
        assert!(superblock.clear_intent());
        assert_eq!(read(&superblock.encode()).intent(), None);
        assert!(!superblock.clear_intent());
    }

    #[test]
    fn a_superblock_whose_checksum_covers_the_slots_takes_no_map() {
        let mut bytes = backing().encode();
        bytes[206] = 1;
        let csum = crc64(&bytes[8..216]);
        bytes[..8].copy_from_slice(&csum.to_le_bytes());
        let mut superblock = read(&bytes);
        assert!(!superblock.set_intent(&map_of(&cache())));
        assert_eq!(superblock.encode(), bytes);
    }

    #[test]
    fn sessions_of_cairn_are_trusted_and_a_kernel_in_between_is_not() {
        let first = cache().registered(1);
        let map = map_of(&first);
        assert!(map.vouches(&first, 5) && map.vouches(&first, 6));
        assert!(!map.vouches(&first, 4), "the journal went back");
        let later = first.registered(2).registered(3);
        assert_eq!((first.own_since(), later.own_since()), (Some(1), Some(1)));
        assert!(map.vouches(&later, 9), "other volumes of the set were served");
        assert!(!map_of(&later).vouches(&first, 9), "the cache went back");
        let other = IntentMap { set_uuid: Uuid([9; 16]), ..map.clone() };
        assert!(!other.vouches(&first, 5));
        let kernel = registered_by_a_kernel(&later);
        assert_eq!((kernel.seq(), kernel.own_since()), (4, None));
        assert!(!map.vouches(&kernel, 9) && !map_of(&later).vouches(&kernel, 9));
        assert!(map_of(&kernel).vouches(&kernel, 9), "its extents were looked at");
        let after = kernel.registered(4);
        assert_eq!(after.own_since(), Some(5));
        assert!(!map.vouches(&after, 9) && !map_of(&kernel).vouches(&after, 9));
        assert!(map_of(&after).vouches(&after.registered(5), 9));
    }

    #[test]
    fn bytes_of_others_in_the_superblock_of_the_cache_stay() {
        let mut bytes = cache().encode();
        bytes[150] = 7;
        let csum = crc64(&bytes[8..208 + 16]);
        bytes[..8].copy_from_slice(&csum.to_le_bytes());
        let Ok(Superblock::Cache(foreign)) = Superblock::decode(&bytes) else { panic!("sound") };
        let next = foreign.registered(3);
        assert_eq!((next.own_since(), &next.encode()[144..184]), (None, &bytes[144..184]));
    }
}
