//! Keys: extents of cached data in leaves, children in interior nodes, and the roots that journal
//! entries name.
//!
//! On disk a key is two words and as many pointers as it counts; in memory it is the same words
//! with room for one pointer. Sets of several cache devices, whose keys have more, do not run
//! anywhere. All accessors mask, so that any word is a key; [`Key::decode`] reports what cannot be
//! one at all, [`Key::is_in_range`] what can be an extent, and `check` what should not be.

use core::fmt;

use zerocopy::little_endian::U64;

use super::generation::Generation;

/// The highest inode of a key.
pub const INODE_MAX: u32 = 0xf_ffff;
/// The highest position of a key.
pub const OFFSET_MAX: u64 = (1 << 63) - 1;
/// The most sectors of an extent.
pub const SIZE_MAX: u64 = 0xffff;
/// The device number of the pointers in placeholders for reads under way ("check keys").
pub const CHECK_DEVICE: u16 = 0xfff;

const HEADER: u64 = 1 << 63;
const DIRTY: u64 = 1 << 36;
const PTRS_SHIFT: u32 = 60;
const CSUM_SHIFT: u32 = 56;
const SIZE_SHIFT: u32 = 20;

/// A pointer: a place on a cache device, and the generation of its bucket.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pointer(pub u64);

impl Pointer {
    /// A pointer to a sector of the only cache device.
    #[inline]
    #[must_use]
    pub fn new(sector: u64, generation: Generation) -> Pointer {
        Pointer((sector & ((1 << 43) - 1)) << 8 | u64::from(generation.0))
    }

    /// The sector of the cache device.
    #[inline]
    #[must_use]
    pub fn sector(self) -> u64 {
        self.0 >> 8 & ((1 << 43) - 1)
    }

    /// The generation that its bucket had.
    #[inline]
    #[must_use]
    pub fn generation(self) -> Generation {
        Generation(self.0 as u8)
    }

    /// The number of the cache device in its set.
    #[inline]
    #[must_use]
    pub fn device(self) -> u16 {
        (self.0 >> 51) as u16 & 0xfff
    }

    /// The pointer to the sector `sectors` further on.
    #[must_use]
    fn advanced(self, sectors: u64) -> Pointer {
        let sector = self.sector().wrapping_add(sectors) & ((1 << 43) - 1);
        Pointer(self.0 & !(((1 << 43) - 1) << 8) | sector << 8)
    }
}

impl fmt::Debug for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}g{}", self.device(), self.sector(), self.generation().0)
    }
}

/// A key with at most one pointer.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    high: u64,
    low: u64,
    /// 0 unless `high` counts a pointer.
    pointer: u64,
}

/// Words that are no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The area ends within the key.
    #[error("key: found {found} words left, expected {expected}")]
    Short {
        /// Words left.
        found: usize,
        /// Words that the key counts.
        expected: usize,
    },
    /// More pointers than one cache device gives a key.
    #[error("key: found {found} pointers, expected at most 1 (one cache device in a set)")]
    Pointers {
        /// Pointers that the key counts.
        found: u64,
    },
}

impl Key {
    /// The key before all others.
    pub const ZERO: Key = Key { high: HEADER, low: 0, pointer: 0 };
    /// The position behind all others, which a root has.
    pub const MAX: Key = Key { high: HEADER | INODE_MAX as u64, low: OFFSET_MAX, pointer: 0 };

    /// An extent, or a child: it ends before `end` and has `sectors`.
    #[inline]
    #[must_use]
    pub fn new(inode: u32, end: u64, sectors: u64) -> Key {
        debug_assert!(inode <= INODE_MAX && end <= OFFSET_MAX && sectors <= SIZE_MAX);
        Key { high: HEADER | sectors << SIZE_SHIFT | u64::from(inode), low: end, pointer: 0 }
    }

    /// The key with a pointer.
    #[inline]
    #[must_use]
    pub fn at(self, pointer: Pointer) -> Key {
        Key { high: self.high & !(7 << PTRS_SHIFT) | 1 << PTRS_SHIFT, pointer: pointer.0, ..self }
    }

    /// The key without its pointer: nothing is cached there.
    #[inline]
    #[must_use]
    pub fn without_pointer(self) -> Key {
        Key { high: self.high & !(7 << PTRS_SHIFT | DIRTY), pointer: 0, ..self }
    }

    /// The key, dirty or clean.
    #[inline]
    #[must_use]
    pub fn with_dirty(self, dirty: bool) -> Key {
        Key { high: self.high & !DIRTY | if dirty { DIRTY } else { 0 }, ..self }
    }

    /// The key with another end, of any value.
    #[cfg(test)]
    pub(super) fn with_end(self, end: u64) -> Key {
        Key { low: end, ..self }
    }

    /// The first key of these words, and how many of them it takes.
    ///
    /// # Errors
    /// They are not a key.
    pub fn decode(words: &[U64]) -> Result<(Key, usize), KeyError> {
        let short = |expected| KeyError::Short { found: words.len(), expected };
        let [high, low, rest @ ..] = words else { return Err(short(2)) };
        let high = high.get();
        let pointers = high >> PTRS_SHIFT & 7;
        let pointer = match (pointers, rest) {
            (0, _) => 0,
            (1, [pointer, ..]) => pointer.get(),
            (1, []) => return Err(short(3)),
            (found, _) => return Err(KeyError::Pointers { found }),
        };
        Ok((Key { high, low: low.get(), pointer }, 2 + pointers as usize))
    }

    /// The key to data whose words these are.
    #[must_use]
    pub fn of_words(words: [u64; 3]) -> Option<Key> {
        let (key, count) = Key::decode(&words.map(U64::new)).ok()?;
        (count == words.len()).then_some(key)
    }

    /// The words of the key.
    pub fn words(&self) -> impl Iterator<Item = u64> {
        let pointer = self.pointer().map(|pointer| pointer.0);
        [self.high, self.low].into_iter().chain(pointer)
    }

    /// How many words the key takes on disk: 2 or 3.
    #[inline]
    #[must_use]
    pub fn word_count(&self) -> usize {
        2 + usize::from(self.has_pointer())
    }

    /// The volume: an index of the array of uuids.
    #[inline]
    #[must_use]
    pub fn inode(&self) -> u32 {
        self.high as u32 & INODE_MAX
    }

    /// The first sector behind the extent; for a child, the highest position beneath it.
    #[inline]
    #[must_use]
    pub fn end(&self) -> u64 {
        self.low
    }

    /// The first sector of the extent. 0 where the key claims to begin before it.
    #[inline]
    #[must_use]
    pub fn start(&self) -> u64 {
        self.low.saturating_sub(self.sectors())
    }

    /// How long it is, in sectors.
    #[inline]
    #[must_use]
    pub fn sectors(&self) -> u64 {
        self.high >> SIZE_SHIFT & SIZE_MAX
    }

    /// True if the only copy of the data is in the cache.
    #[inline]
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.high & DIRTY != 0
    }

    /// True if it leads somewhere.
    #[inline]
    #[must_use]
    pub fn has_pointer(&self) -> bool {
        self.high >> PTRS_SHIFT & 7 != 0
    }

    /// True if it can be an extent: it does not begin before its volume, nor reach beyond the
    /// highest position.
    #[must_use]
    pub fn is_in_range(&self) -> bool {
        self.sectors() <= self.end()
            && self.end() <= OFFSET_MAX
            && self.position() < Key::MAX.position()
    }

    /// Where it leads.
    #[inline]
    #[must_use]
    pub fn pointer(&self) -> Option<Pointer> {
        self.has_pointer().then_some(Pointer(self.pointer))
    }

    /// Where it leads on the only cache device; placeholders of reads lead nowhere.
    #[inline]
    #[must_use]
    pub fn cached_at(&self) -> Option<Pointer> {
        self.pointer().filter(|pointer| pointer.device() == 0)
    }

    /// The kind of data checksum that the key says it has: always 0.
    #[must_use]
    pub fn checksum_kind(&self) -> u8 {
        (self.high >> CSUM_SHIFT) as u8 & 3
    }

    /// What sorts keys of interior nodes.
    #[inline]
    #[must_use]
    pub fn position(&self) -> (u32, u64) {
        (self.inode(), self.end())
    }

    /// What sorts extents of leaves.
    #[inline]
    #[must_use]
    pub fn begin(&self) -> (u32, u64) {
        (self.inode(), self.start())
    }

    /// The rest behind the first `sectors`.
    #[inline]
    #[must_use]
    pub fn without_front(&self, sectors: u64) -> Key {
        debug_assert!(sectors <= self.sectors());
        let pointer = self.pointer().map_or(0, |pointer| pointer.advanced(sectors).0);
        Key { high: self.high - (sectors << SIZE_SHIFT), pointer, ..*self }
    }

    /// What comes before the last `sectors`.
    #[inline]
    #[must_use]
    pub fn without_back(&self, sectors: u64) -> Key {
        debug_assert!(sectors <= self.sectors());
        Key { high: self.high - (sectors << SIZE_SHIFT), low: self.low - sectors, ..*self }
    }

    /// The part between two sectors of its volume; none if it is empty.
    #[inline]
    #[must_use]
    pub fn part(&self, from: u64, to: u64) -> Option<Key> {
        let (from, to) = (from.max(self.start()), to.min(self.end()));
        (from < to).then(|| self.without_back(self.end() - to).without_front(from - self.start()))
    }

    /// Both as one key, if `next` goes on where this ends, on the device and within one bucket.
    #[inline]
    #[must_use]
    pub fn joined(&self, next: &Key, bucket_sectors: u64) -> Option<Key> {
        const ALIKE: u64 = !(SIZE_MAX << SIZE_SHIFT);
        let sectors = self.sectors() + next.sectors();
        let goes_on = self.high & ALIKE == next.high & ALIKE
            && self.low == next.start()
            && sectors <= SIZE_MAX;
        let is_near = match (self.pointer(), next.pointer()) {
            (Some(here), Some(there)) => {
                here.advanced(self.sectors()) == there
                    && here.sector() / bucket_sectors == there.sector() / bucket_sectors
            }
            _ => true,
        };
        let high = self.high & ALIKE | sectors << SIZE_SHIFT;
        (goes_on && is_near).then_some(Key { high, low: next.low, ..*self })
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dirty = if self.is_dirty() { " dirty" } else { "" };
        write!(f, "{}:{}+{}{dirty}", self.inode(), self.start(), self.sectors())?;
        self.pointer().map_or(Ok(()), |pointer| write!(f, " {pointer:?}"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::little_endian::U64;

    use super::{CHECK_DEVICE, Key, KeyError, OFFSET_MAX, Pointer, SIZE_MAX};
    use crate::bcache::Generation;

    fn words(key: &Key) -> Vec<U64> {
        key.words().map(U64::new).collect()
    }

    prop_compose! {
        fn extent()(
            inode in 0..9_u32,
            start in 0..OFFSET_MAX - SIZE_MAX,
            sectors in 1..=SIZE_MAX,
            dirty: bool,
            sector in 0..1_u64 << 42,
            generation: u8,
            has_pointer: bool,
        ) -> Key {
            let key = Key::new(inode, start + sectors, sectors);
            match has_pointer {
                true => key.with_dirty(dirty).at(Pointer::new(sector, Generation(generation))),
                false => key,
            }
        }
    }

    proptest! {
        #[test]
        fn a_key_reads_as_it_was_written(key in extent()) {
            prop_assert_eq!(Key::decode(&words(&key)), Ok((key, key.word_count())));
        }

        #[test]
        fn parts_join_to_the_whole(key in extent(), at: u64) {
            let middle = key.start() + at % key.sectors();
            let bucket = 1 << 43;
            match (key.part(0, middle), key.part(middle, OFFSET_MAX)) {
                (None, Some(all)) => prop_assert_eq!(all, key),
                (Some(front), Some(back)) => {
                    prop_assert_eq!(front.end(), back.start());
                    prop_assert_eq!(front.joined(&back, bucket), Some(key));
                    prop_assert_eq!(back.joined(&front, bucket), None);
                    if let Some(pointer) = key.pointer() {
                        let there = back.pointer().expect("of the same extent");
                        prop_assert_eq!(there.sector(), pointer.sector() + front.sectors());
                        prop_assert_eq!(there.generation(), pointer.generation());
                    }
                }
                parts => prop_assert!(false, "{:?}", parts),
            }
        }

        #[test]
        fn any_words_are_a_key_or_refused(words: [u64; 3]) {
            let words = words.map(U64::new);
            if let Ok((key, count)) = Key::decode(&words) {
                prop_assert_eq!(count, key.word_count());
                prop_assert!(key.start() <= key.end());
            }
        }
    }

    #[test]
    fn extents_of_two_buckets_stay_two() {
        let first = Key::new(0, 16, 16).at(Pointer::new(112, Generation(3)));
        let next = Key::new(0, 24, 8).at(Pointer::new(128, Generation(3)));
        assert_eq!(first.joined(&next, 128), None);
        assert!(first.joined(&next, 256).is_some());
        assert_eq!(first.joined(&next.with_dirty(true), 256), None);
    }

    #[test]
    fn too_few_words_and_too_many_pointers_are_refused() {
        let key = Key::new(0, 8, 8).at(Pointer::new(64, Generation(0)));
        let short = KeyError::Short { found: 2, expected: 3 };
        assert_eq!(Key::decode(&words(&key)[..2]), Err(short));
        let two = [0xa000_0000_0000_0000_u64, 0, 0, 0].map(U64::new);
        assert_eq!(Key::decode(&two), Err(KeyError::Pointers { found: 2 }));
    }

    #[test]
    fn placeholders_lead_nowhere() {
        let key = Key::new(0, 8, 8).at(Pointer(u64::from(CHECK_DEVICE) << 51 | 1 << 63 | 0x1234));
        assert!(key.has_pointer());
        assert_eq!(key.cached_at(), None);
    }
}
