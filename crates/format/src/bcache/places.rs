//! Whether extents lie where they may: within their volume, and each in sectors of the cache that
//! no other has.

use std::ops::Range;

use super::{Geometry, Key};

/// True if an extent does not lie within its volume, whose `sectors` are counted as keys count
/// them.
#[must_use]
pub fn is_beyond(key: &Key, sectors: &Range<u64>) -> bool {
    key.start() < sectors.start || key.end() > sectors.end
}

/// Sectors of a page: it takes 4 KiB.
const PAGE: u64 = 1 << 15;

/// Which sectors of a cache extents have. Memory: a bit for each sector of the pages, of 16 MiB of
/// the cache, that have some.
pub struct Places {
    pages: Vec<Option<Box<[u64; (PAGE / 64) as usize]>>>,
    shared: Option<(Key, u64)>,
}

impl Places {
    /// None has any.
    #[must_use]
    pub fn new(geometry: &Geometry) -> Places {
        let sectors = geometry.buckets() * geometry.bucket_sectors();
        let pages = (0..sectors.div_ceil(PAGE)).map(|_| None).collect();
        Places { pages, shared: None }
    }

    /// An extent, which lies on the cache; without a place it counts for nothing.
    pub fn take(&mut self, key: &Key) {
        let Some(pointer) = key.cached_at() else { return };
        let (mut at, end) = (pointer.sector(), pointer.sector() + key.sectors());
        while at < end {
            let page = self.pages[(at / PAGE) as usize].get_or_insert_with(|| Box::new([0; _]));
            let word = &mut page[(at % PAGE / 64) as usize];
            let count = (end - at).min(64 - at % 64);
            let mask = (u64::MAX >> (64 - count)) << (at % 64);
            if *word & mask != 0 && self.shared.is_none() {
                let first = at / 64 * 64 + u64::from((*word & mask).trailing_zeros());
                self.shared = Some((*key, first));
            }
            *word |= mask;
            at += count;
        }
    }

    /// The first extent that was taken with a sector of the cache that one before it has, and the
    /// first such sector.
    #[must_use]
    pub fn shared(&self) -> Option<(Key, u64)> {
        self.shared
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{PAGE, Places, is_beyond};
    use crate::bcache::{CHECK_DEVICE, Generation, Geometry, Key, Pointer};

    fn key(start: u64, sectors: u64, at: u64) -> Key {
        Key::new(0, start + sectors, sectors).at(Pointer::new(at, Generation(0)))
    }

    #[test]
    fn an_extent_over_either_end_of_its_volume_is_beyond() {
        let sectors = 16..100;
        let beyond = [(16, 84), (15, 1), (15, 2), (99, 1), (99, 2), (100, 1)]
            .map(|(start, count)| is_beyond(&key(start, count, 0), &sectors));
        assert_eq!(beyond, [false, true, true, false, true, true]);
    }

    #[test]
    fn placeholders_and_holes_share_nothing() {
        let geometry = Geometry::new(1, 64, 200, 1).expect("legal");
        let nowhere = Pointer(u64::from(CHECK_DEVICE) << 51 | 640 << 8);
        let keys = [key(0, 8, 640), key(8, 8, 0).without_pointer(), key(16, 8, 0).at(nowhere)];
        let mut places = Places::new(&geometry);
        keys.iter().for_each(|key| places.take(key));
        assert_eq!(places.shared(), None);
    }

    #[test]
    fn extents_at_the_end_of_a_page_share_what_they_have_in_both_pages() {
        let geometry = Geometry::new(1, 2 * PAGE, 20, 1).expect("legal");
        for (at, sectors) in [(3 * PAGE - 1, 2), (3 * PAGE - 64, 128), (3 * PAGE, 1)] {
            let mut places = Places::new(&geometry);
            places.take(&key(0, 3 * PAGE - 2 * PAGE, 2 * PAGE));
            assert_eq!(places.shared(), None);
            let second = key(PAGE, sectors, at);
            places.take(&second);
            let expected = (at < 3 * PAGE).then_some((second, at));
            assert_eq!(places.shared(), expected, "{at}");
        }
    }

    proptest! {
        #[test]
        fn extents_share_a_sector_where_a_map_of_all_sectors_says_so(
            extents in proptest::collection::vec((64..12_800_u64, 1..20_u64), 0..60),
        ) {
            let geometry = Geometry::new(1, 64, 200, 1).expect("legal");
            let extents: Vec<Key> = extents
                .into_iter()
                .zip(0..)
                .map(|((at, sectors), index)| key(index * 100, sectors.min(64 - at % 64), at))
                .collect();
            let mut owner = std::collections::BTreeMap::new();
            let mut first = None;
            for key in &extents {
                let at = key.cached_at().expect("it has a place").sector();
                for sector in at..at + key.sectors() {
                    if owner.insert(sector, key).is_some() && first.is_none() {
                        first = Some((*key, sector));
                    }
                }
            }
            let mut places = Places::new(&geometry);
            extents.iter().for_each(|key| places.take(key));
            prop_assert_eq!(places.shared(), first);
        }
    }
}
