//! The map of dirty zones: where a backing device may lack data that only its cache has.
//!
//! It is cairn's own, in a file of the server, so that it exists when the cache is gone. A zone is
//! 64 MiB of the backing device. The file has two *slots* of the same size that take turns, so that
//! a slot that was written in part leaves the older one. A slot says of which backing device and
//! set it is, and in which session of the set it was written. The write-intent map in the
//! superblock of the backing device has the newest session that may have made data dirty
//! ([`IntentMap`](super::IntentMap)): a map of another session does not count
//! ([`ZoneMap::lost`]).
//!
//! A map may name too much: zones whose data was written back since. It never names too little, if
//! no kernel has used the set since: a kernel that finds the state `dirty` leaves no trace on the
//! backing device. The next start that finds both devices compares the map with the cache.

use core::mem::{offset_of, size_of};
use core::ops::Range;

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::crc::crc64;
use super::{BackingState, BackingSuperblock, Uuid};
use crate::Field;

/// Bytes of the header of a slot.
pub const HEADER_BYTES: usize = 128;
/// A slot is a multiple of this many bytes.
pub const SLOT_ALIGN: usize = 4096;
/// The magic of a slot.
pub const MAGIC: [u8; 16] = *b"cairn zone map\0\0";
/// Sectors of a zone: 64 MiB.
pub const ZONE_SECTORS: u64 = 131_072;

const FLAG_CLOSED: u64 = 1;
/// The smallest and the largest zone that is read.
const ZONE_SECTORS_LEGAL: core::ops::RangeInclusive<u64> = 8..=1 << 50;

/// The header of a slot as it lies in the file.
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHeader {
    csum: U64,
    magic: [u8; 16],
    sequence: U64,
    backing_uuid: [u8; 16],
    set_uuid: [u8; 16],
    cache_seq: U64,
    journal_seq: U64,
    flags: U64,
    zone_sectors: U64,
    device_sectors: U64,
    pad: [u8; 24],
}

macro_rules! field {
    ($name:ident, $size:expr) => {
        Field { name: stringify!($name), offset: offset_of!(RawHeader, $name), size: $size }
    };
}

/// Where each field of the header lies.
pub const HEADER_FIELDS: [Field; 11] = [
    field!(csum, 8),
    field!(magic, 16),
    field!(sequence, 8),
    field!(backing_uuid, 16),
    field!(set_uuid, 16),
    field!(cache_seq, 8),
    field!(journal_seq, 8),
    field!(flags, 8),
    field!(zone_sectors, 8),
    field!(device_sectors, 8),
    field!(pad, 24),
];

const _: () = assert!(size_of::<RawHeader>() == HEADER_BYTES);

/// What a slot says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZoneMap {
    /// The backing device.
    pub backing_uuid: Uuid,
    /// The set of its cache.
    pub set_uuid: Uuid,
    /// The sequence of the cache's superblock in the session that wrote it.
    pub cache_seq: u64,
    /// A durable entry of the journal of that time.
    pub journal_seq: u64,
    /// The volume was suspended after it: nothing became dirty in that session any more.
    pub is_closed: bool,
    zone_sectors: u64,
    device_sectors: u64,
    /// A bit for each zone, from bit 0 of the first byte on.
    bits: Vec<u8>,
}

/// Why a map does not say where data is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Foreign {
    /// It is of another backing device.
    #[error("uuid: found {found}, expected {expected}, that of the backing device")]
    Device {
        /// That of the map.
        found: Uuid,
        /// That of the device.
        expected: Uuid,
    },
    /// It is of another set.
    #[error("set_uuid: found {found}, expected {expected}, the set of the backing device")]
    Set {
        /// That of the map.
        found: Uuid,
        /// That of the device.
        expected: Uuid,
    },
    /// It is of another session.
    #[error("cache_seq: found {found}, expected {expected}, the newest session of the device")]
    Session {
        /// That of the map.
        found: u64,
        /// That of the write-intent map.
        expected: u64,
    },
    /// The superblock does not say which session was the newest.
    #[error("the backing device has no write-intent map that says which session was the newest")]
    Unknown,
    /// Something became dirty behind the clean close that the map says.
    #[error("it was closed without dirty zones, but the backing device is dirty: another program")]
    UsedSince,
}

fn is_zone(sectors: u64) -> bool {
    sectors.is_power_of_two() && ZONE_SECTORS_LEGAL.contains(&sectors)
}

/// Bytes of a slot for so many zones.
fn slot_bytes(zones: u64) -> u64 {
    (HEADER_BYTES as u64 + zones.div_ceil(8)).next_multiple_of(SLOT_ALIGN as u64)
}

impl ZoneMap {
    /// A map without marks, of zones of so many sectors.
    ///
    /// # Panics
    /// If the device has 2^60 sectors or more: no device has. If a zone has no legal size.
    #[must_use]
    pub fn new(
        backing_uuid: Uuid,
        set_uuid: Uuid,
        device_sectors: u64,
        zone_sectors: u64,
    ) -> ZoneMap {
        assert!(device_sectors < 1 << 60, "no device has as many sectors");
        assert!(is_zone(zone_sectors), "a legal size");
        let zones = device_sectors.div_ceil(zone_sectors);
        ZoneMap {
            backing_uuid,
            set_uuid,
            cache_seq: 0,
            journal_seq: 0,
            is_closed: false,
            zone_sectors,
            device_sectors,
            bits: vec![0; zones.div_ceil(8) as usize],
        }
    }

    /// How many zones it has.
    #[must_use]
    pub fn zones(&self) -> u64 {
        self.device_sectors.div_ceil(self.zone_sectors)
    }

    /// Marks a zone as dirty.
    ///
    /// # Panics
    /// If there is no such zone.
    pub fn mark(&mut self, zone: u64) {
        assert!(zone < self.zones(), "a zone of the device");
        self.bits[(zone / 8) as usize] |= 1 << (zone % 8);
    }

    /// Marks the zones whose bits are set, from bit 0 of the first word on; those behind the end of
    /// the device are left out.
    pub fn mark_words(&mut self, words: &[u64]) {
        let bytes = words.iter().flat_map(|word| word.to_le_bytes());
        self.bits.iter_mut().zip(bytes).for_each(|(own, byte)| *own |= byte);
        let rest = self.zones() % 8;
        if let Some(last) = self.bits.last_mut().filter(|_| rest != 0) {
            *last &= (1 << rest) - 1;
        }
    }

    /// True if a zone may be dirty; those behind the end of the map may.
    #[must_use]
    pub fn is_marked(&self, zone: u64) -> bool {
        zone >= self.zones() || self.bits[(zone / 8) as usize] >> (zone % 8) & 1 != 0
    }

    /// How many zones are marked.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.bits.iter().map(|byte| byte.count_ones()).sum()
    }

    /// The marked parts of these sectors of the backing device, in order, those that touch as one.
    /// What lies behind the end of the map counts as marked.
    #[must_use]
    pub fn marked_in(&self, sectors: Range<u64>) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        let mut add = |part: Range<u64>| {
            let part = part.start.max(sectors.start)..part.end.min(sectors.end);
            match ranges.last_mut() {
                _ if part.is_empty() => {}
                Some(last) if last.end == part.start => last.end = part.end,
                _ => ranges.push(part),
            }
        };
        for zone in (0..self.zones()).filter(|zone| self.is_marked(*zone)) {
            let start = zone * self.zone_sectors;
            add(start..(start + self.zone_sectors).min(self.device_sectors));
        }
        add(self.device_sectors..u64::MAX);
        ranges
    }

    /// The sectors of a backing device, of so many sectors, that may lack what its lost cache had.
    ///
    /// # Errors
    /// The map does not count for it: any sector may.
    pub fn lost(
        &self,
        backing: &BackingSuperblock,
        device_sectors: u64,
    ) -> Result<Vec<Range<u64>>, Foreign> {
        let state = backing.state();
        if matches!(state, BackingState::None | BackingState::Clean) {
            return Ok(Vec::new());
        }
        let (found, expected) = (self.backing_uuid, backing.uuid());
        if found != expected {
            return Err(Foreign::Device { found, expected });
        }
        let (found, expected) = (self.set_uuid, backing.set_uuid());
        if found != expected {
            return Err(Foreign::Set { found, expected });
        }
        let intent = backing.intent().filter(|intent| intent.set_uuid == expected);
        let intent = intent.ok_or(Foreign::Unknown)?;
        let (found, expected) = (self.cache_seq, intent.cache_seq);
        if found != expected {
            return Err(Foreign::Session { found, expected });
        }
        if self.is_closed && self.count() == 0 && state == BackingState::Dirty {
            return Err(Foreign::UsedSince);
        }
        Ok(self.marked_in(backing.data_offset()..device_sectors))
    }

    /// The bytes of a slot.
    #[must_use]
    pub fn encode_slot(&self, sequence: u64) -> Vec<u8> {
        let mut raw = RawHeader::new_zeroed();
        raw.magic = MAGIC;
        raw.sequence = U64::new(sequence);
        raw.backing_uuid = self.backing_uuid.0;
        raw.set_uuid = self.set_uuid.0;
        raw.cache_seq = U64::new(self.cache_seq);
        raw.journal_seq = U64::new(self.journal_seq);
        raw.flags = U64::new(if self.is_closed { FLAG_CLOSED } else { 0 });
        raw.zone_sectors = U64::new(self.zone_sectors);
        raw.device_sectors = U64::new(self.device_sectors);
        let mut slot = vec![0; slot_bytes(self.zones()) as usize];
        slot[..HEADER_BYTES].copy_from_slice(raw.as_bytes());
        slot[HEADER_BYTES..][..self.bits.len()].copy_from_slice(&self.bits);
        let csum = crc64(&slot[8..]);
        slot[..8].copy_from_slice(&csum.to_le_bytes());
        slot
    }

    /// What a slot says, and its sequence; none if it is not sound.
    #[must_use]
    pub fn decode_slot(slot: &[u8]) -> Option<(u64, ZoneMap)> {
        let (raw, rest) = RawHeader::ref_from_prefix(slot).ok()?;
        if raw.magic != MAGIC || raw.csum.get() != crc64(&slot[8..]) {
            return None;
        }
        let (zone_sectors, device_sectors) = (raw.zone_sectors.get(), raw.device_sectors.get());
        let flags = raw.flags.get();
        let is_legal = is_zone(zone_sectors)
            && device_sectors < 1 << 60
            && flags & !FLAG_CLOSED == 0
            && raw.pad.iter().all(|byte| *byte == 0);
        if !is_legal {
            return None;
        }
        let zones = device_sectors.div_ceil(zone_sectors);
        if slot_bytes(zones) != slot.len() as u64 {
            return None;
        }
        let (bits, tail) = rest.split_at(zones.div_ceil(8) as usize);
        let has_more = zones % 8 != 0 && bits.last().is_some_and(|byte| byte >> (zones % 8) != 0);
        if has_more || tail.iter().any(|byte| *byte != 0) {
            return None;
        }
        let map = ZoneMap {
            backing_uuid: Uuid(raw.backing_uuid),
            set_uuid: Uuid(raw.set_uuid),
            cache_seq: raw.cache_seq.get(),
            journal_seq: raw.journal_seq.get(),
            is_closed: flags & FLAG_CLOSED != 0,
            zone_sectors,
            device_sectors,
            bits: bits.to_vec(),
        };
        Some((raw.sequence.get(), map))
    }
}

/// The newest sound slot of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Newest {
    /// Which slot it is: 0 or 1.
    pub slot: usize,
    /// Its sequence.
    pub sequence: u64,
    /// What it says.
    pub map: ZoneMap,
}

impl Newest {
    /// None if no slot of the file is sound.
    #[must_use]
    pub fn of(file: &[u8]) -> Option<Newest> {
        let bytes = file.len() / 2;
        if bytes == 0 || !file.len().is_multiple_of(2 * SLOT_ALIGN) {
            return None;
        }
        let decode = |slot: usize| {
            let (sequence, map) = ZoneMap::decode_slot(&file[slot * bytes..][..bytes])?;
            Some(Newest { slot, sequence, map })
        };
        [decode(0), decode(1)].into_iter().flatten().max_by_key(|newest| newest.sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bcache::{CacheMode, IntentMap, NewBacking};

    const SET: Uuid = Uuid([2; 16]);
    const DEVICE: Uuid = Uuid([3; 16]);
    /// Ten zones, the last of them one sector.
    const SECTORS: u64 = 9 * ZONE_SECTORS + 1;

    fn map() -> ZoneMap {
        let mut map = ZoneMap::new(DEVICE, SET, SECTORS, ZONE_SECTORS);
        (map.cache_seq, map.journal_seq) = (7, 40);
        [0, 1, 4, 9].into_iter().for_each(|zone| map.mark(zone));
        map
    }

    fn intent(set: Uuid) -> IntentMap {
        let mut intent = IntentMap::new(set, SECTORS);
        intent.cache_seq = 7;
        intent
    }

    fn backing(state: BackingState) -> BackingSuperblock {
        let new = NewBacking {
            uuid: DEVICE,
            set_uuid: SET,
            block_sectors: 1,
            data_offset: 16,
            mode: CacheMode::Writeback,
            state,
            label: [0; 32],
        };
        let mut backing = BackingSuperblock::fresh(&new).expect("legal");
        assert!(backing.set_intent(&intent(SET)));
        backing
    }

    #[test]
    fn slot_has_its_golden_bytes() {
        let slot = map().encode_slot(5);
        assert_eq!(slot.len(), 4096);
        assert_eq!(&slot[8..24], b"cairn zone map\0\0");
        let word = |at: usize| u64::from_le_bytes(slot[at..at + 8].try_into().expect("8 bytes"));
        assert_eq!((word(24), &slot[32..48], &slot[48..64]), (5, &[3; 16][..], &[2; 16][..]));
        assert_eq!([64, 72, 80, 88, 96].map(word), [7, 40, 0, 131_072, SECTORS]);
        assert_eq!(&slot[128..131], [0b1_0011, 0b10, 0]);
        assert!(slot[104..128].iter().chain(&slot[130..]).all(|byte| *byte == 0));
        assert_eq!(word(0), 0x313f_de5e_46dd_8101);
    }

    #[test]
    fn map_reads_as_it_was_written() {
        for sectors in [0, 1, ZONE_SECTORS, SECTORS, 8 * 40_000 * ZONE_SECTORS] {
            let mut map = ZoneMap::new(DEVICE, SET, sectors, ZONE_SECTORS);
            map.is_closed = sectors % 2 == 0;
            (0..map.zones()).step_by(3).for_each(|zone| map.mark(zone));
            let slot = map.encode_slot(sectors);
            assert_eq!(ZoneMap::decode_slot(&slot), Some((sectors, map)));
        }
    }

    #[test]
    fn words_mark_the_zones_of_their_bits_within_the_device() {
        let mut map = ZoneMap::new(DEVICE, SET, 70 * ZONE_SECTORS, ZONE_SECTORS);
        map.mark(5);
        map.mark_words(&[1 << 63 | 1, u64::MAX]);
        let marked: Vec<u64> = (0..70).filter(|zone| map.is_marked(*zone)).collect();
        assert_eq!(marked, [0, 5, 63, 64, 65, 66, 67, 68, 69]);
        assert_eq!(map.count(), 9);
    }

    #[test]
    fn each_flipped_bit_of_a_slot_is_noticed() {
        let slot = map().encode_slot(3);
        for bit in 0..slot.len() * 8 {
            let mut slot = slot.clone();
            slot[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(ZoneMap::decode_slot(&slot), None, "bit {bit}");
        }
        assert_eq!(ZoneMap::decode_slot(&slot[..4095]), None);
        assert_eq!(ZoneMap::decode_slot(&[]), None);
    }

    #[test]
    fn illegal_values_with_a_right_checksum_are_refused() {
        let good = map().encode_slot(3);
        let with = |at: usize, value: u64| {
            let mut slot = good.clone();
            slot[at..at + 8].copy_from_slice(&value.to_le_bytes());
            let csum = crc64(&slot[8..]);
            slot[..8].copy_from_slice(&csum.to_le_bytes());
            ZoneMap::decode_slot(&slot)
        };
        assert!(with(72, 41).is_some(), "the checksum is right");
        for (at, value) in [
            (80, 2),
            (88, 0),
            (88, 3000),
            (88, 4),
            (96, 1 << 60),
            (96, 1 << 40),
            (104, 1),
            (128, 0b11 << 10),
            (136, 1),
        ] {
            assert_eq!(with(at, value), None, "{at} {value}");
        }
    }

    #[test]
    fn newer_sound_slot_counts_and_one_written_in_part_leaves_the_older_one() {
        let (old, mut new) = (map(), map());
        new.mark(7);
        let (old_slot, new_slot) = (old.encode_slot(4), new.encode_slot(5));
        let file = |first: &[u8], second: &[u8]| Newest::of(&[first, second].concat());
        let of = |newest: Option<Newest>| newest.map(|it| (it.slot, it.sequence, it.map));
        assert_eq!(of(file(&old_slot, &new_slot)), Some((1, 5, new.clone())));
        assert_eq!(of(file(&new_slot, &old_slot)), Some((0, 5, new)));
        for sectors in 1..8_usize {
            let torn = [&new_slot[..sectors * 512], &vec![0; 4096 - sectors * 512][..]].concat();
            let found = of(file(&old_slot, &torn)).expect("the older one");
            // The rest of the new one is zeros, too.
            assert_eq!(found.1, 5, "{sectors}");
            let torn = [&[0; 512][..], &new_slot[512..]].concat();
            assert_eq!(of(file(&old_slot, &torn)), Some((0, 4, old.clone())));
        }
        assert_eq!(Newest::of(&[]), None);
        assert_eq!(file(&old_slot, &[]), None);
        assert_eq!(file(&[0; 4096], &[0; 4096]), None);
    }

    #[test]
    fn marked_zones_that_touch_are_one_range_within_the_data() {
        let (zone, map) = (ZONE_SECTORS, map());
        let expected = [16..2 * zone, 4 * zone..5 * zone, 9 * zone..SECTORS];
        assert_eq!(map.marked_in(16..SECTORS), expected);
        let longer = [expected[0].clone(), expected[1].clone(), 9 * zone..SECTORS + 100];
        assert_eq!(map.marked_in(16..SECTORS + 100), longer, "what the map does not cover counts");
        let inside = zone..zone + 8;
        assert_eq!(map.marked_in(inside.clone()).first(), Some(&inside));
        assert_eq!(map.marked_in(3 * zone..4 * zone), []);
        assert!(map.is_marked(9) && !map.is_marked(8) && map.is_marked(10));
    }

    #[test]
    fn map_counts_for_its_device_set_and_newest_session_alone() {
        let (dirty, map) = (backing(BackingState::Dirty), map());
        let lost = map.marked_in(16..SECTORS);
        assert_eq!(map.lost(&dirty, SECTORS), Ok(lost.clone()));
        assert_eq!(map.lost(&backing(BackingState::Stale), SECTORS), Ok(lost));
        for state in [BackingState::Clean, BackingState::None] {
            assert_eq!(map.lost(&backing(state), SECTORS), Ok(Vec::new()));
        }
        let other = Uuid([9; 16]);
        let of = |change: fn(&mut ZoneMap)| {
            let mut map = map.clone();
            change(&mut map);
            map.lost(&dirty, SECTORS)
        };
        let (found, expected) = (other, DEVICE);
        assert_eq!(
            of(|map| map.backing_uuid = Uuid([9; 16])),
            Err(Foreign::Device { found, expected })
        );
        let expected = SET;
        assert_eq!(of(|map| map.set_uuid = Uuid([9; 16])), Err(Foreign::Set { found, expected }));
        for found in [6, 8] {
            let map = ZoneMap { cache_seq: found, ..map.clone() };
            assert_eq!(map.lost(&dirty, SECTORS), Err(Foreign::Session { found, expected: 7 }));
        }
        let mut unknown = dirty.clone();
        assert!(unknown.set_intent(&intent(other)));
        assert_eq!(map.lost(&unknown, SECTORS), Err(Foreign::Unknown));
    }

    #[test]
    fn dirty_device_behind_a_close_without_dirty_zones_was_used_since() {
        let mut map = ZoneMap { cache_seq: 7, ..ZoneMap::new(DEVICE, SET, SECTORS, ZONE_SECTORS) };
        let dirty = backing(BackingState::Dirty);
        assert_eq!(map.lost(&dirty, SECTORS), Ok(Vec::new()), "its first write did not follow");
        map.is_closed = true;
        assert_eq!(map.lost(&dirty, SECTORS), Err(Foreign::UsedSince));
        map.mark(3);
        assert!(map.lost(&dirty, SECTORS).is_ok());
    }
}
