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

/// Two extents that name one sector of the cache. `extents` answers all of them each time; those
/// without a place count for nothing.
///
/// Memory: eight bytes per extent, four per bucket.
#[must_use]
pub fn shared<'k, I: Iterator<Item = &'k Key>>(
    geometry: &Geometry,
    extents: impl Fn() -> I,
) -> Option<(Key, Key)> {
    let placed = || extents().filter_map(|key| Some((key, key.cached_at()?.sector())));
    let bucket_of = |sector: u64| geometry.bucket_of(sector) as usize;
    // Extents are sorted by bucket, by counting, and then within each bucket.
    let mut ends = vec![0_u32; geometry.buckets() as usize + 1];
    placed().for_each(|(_, sector)| ends[bucket_of(sector) + 1] += 1);
    let mut count = 0;
    for end in &mut ends {
        count += *end;
        *end = count;
    }
    let mut places = vec![0_u64; count as usize];
    for (key, sector) in placed() {
        let next = &mut ends[bucket_of(sector)];
        places[*next as usize] = (sector % geometry.bucket_sectors()) << 16 | key.sectors();
        *next += 1;
    }
    let mut begin = 0;
    for (bucket, end) in ends.iter().take(geometry.buckets() as usize).enumerate() {
        let places = &mut places[begin..*end as usize];
        begin = *end as usize;
        places.sort_unstable();
        let overlap = |pair: &&[u64]| (pair[0] >> 16) + (pair[0] & 0xffff) > pair[1] >> 16;
        if let Some(pair) = places.windows(2).find(overlap) {
            let at = geometry.sector_of(bucket as u64) + (pair[1] >> 16);
            let mut there =
                placed().filter(|(key, sector)| (*sector..sector + key.sectors()).contains(&at));
            let first = there.next().map(|(key, _)| *key);
            return first.zip(there.next().map(|(key, _)| *key));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{is_beyond, shared};
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
        assert_eq!(shared(&geometry, || keys.iter()), None);
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
            let mut is_shared = false;
            for key in &extents {
                let at = key.cached_at().expect("it has a place").sector();
                for sector in at..at + key.sectors() {
                    is_shared |= owner.insert(sector, key).is_some();
                }
            }
            let found = shared(&geometry, || extents.iter());
            prop_assert_eq!(found.is_some(), is_shared);
            if let Some((first, second)) = found {
                let range = |key: &Key| {
                    let at = key.cached_at().expect("it has a place").sector();
                    at..at + key.sectors()
                };
                let (first, second) = (range(&first), range(&second));
                prop_assert!(first.start < second.end && second.start < first.end);
            }
        }
    }
}
