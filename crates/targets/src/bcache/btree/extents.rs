//! The sorted extents of a leaf, in chunks, so that one of them changes without moving the others.
//!
//! A search reads where the chunks end, and then one chunk. In both lists it compares with the last
//! entry of each group of [`WIDTH`], and then with each entry of one group. The reads of a group do
//! not wait for each other, so that their misses of the processor's caches overlap.
//!
//! # Invariants
//! E1. No chunk is empty; each has [`CHUNK`] extents at most, and knows the position of the last.
//! E2. A key that is laid over the extents moves those of the chunks that it touches and of one
//!     neighbor, and the entries for the chunks behind them.
//!
//! E3. `count` is how many extents the chunks have.
//!
//! Memory: a chunk takes 56 bytes beyond its extents. Chunks are full where extents were added in
//! order. One that was split is half full, and has room for [`GROW`] more extents at most. A chunk
//! that lost most of its extents joins a neighbor that has room.

use cairn_format::bcache::Key;

/// Extents of a chunk, at most.
const CHUNK: usize = 64;
/// How many extents a chunk gets room for at once.
const GROW: usize = CHUNK / 4;
/// A search compares with so many entries at once.
const WIDTH: usize = 16;

/// A volume, and a sector of it.
pub(in super::super) type Position = (u32, u64);

/// Before all extents, and behind them.
pub(in super::super) const FIRST: Position = (0, 0);
pub(in super::super) const LAST: Position = (u32::MAX, u64::MAX);

/// See the module's description.
#[derive(Default)]
pub(super) struct Extents {
    chunks: Vec<Chunk>,
    count: usize,
    /// Behind the key that was laid last, where a key in order belongs. Only a hint.
    next: Place,
}

struct Chunk {
    /// The position of the last extent.
    end: Position,
    extents: Vec<Key>,
}

impl Chunk {
    fn new(extents: Vec<Key>) -> Chunk {
        Chunk { end: end_of(&extents), extents }
    }
}

/// Where an extent is: its chunk, and its index there.
#[derive(Clone, Copy, Default)]
struct Place {
    chunk: usize,
    index: usize,
}

impl Extents {
    /// These extents, which are in order.
    pub fn of(extents: &[Key]) -> Extents {
        let chunks = extents.chunks(CHUNK).map(|some| Chunk::new(some.to_vec()));
        Extents { chunks: chunks.collect(), count: extents.len(), next: Place::default() }
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Key> {
        self.chunks.iter().flat_map(|chunk| &chunk.extents)
    }

    /// Those that end behind a position, in order.
    pub fn iter_from(&self, at: Position) -> impl Iterator<Item = &Key> {
        let Place { chunk, index } = self.seek(at);
        let mut chunks = self.chunks[chunk..].iter();
        let first = chunks.next().map_or(&[][..], |chunk| &chunk.extents[index..]);
        first.iter().chain(chunks.flat_map(|chunk| &chunk.extents))
    }

    /// The first extent that ends behind a position.
    pub fn find(&self, at: Position) -> Option<&Key> {
        self.get(self.seek(at))
    }

    /// The same; the key that was laid last lies before it, perhaps.
    pub fn find_next(&self, at: Position) -> Option<&Key> {
        self.get(self.seek_next(at))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// True if there are clearly more than `most`, as far as the number of chunks tells.
    pub fn are_more_than(&self, most: usize) -> bool {
        self.chunks.len() > most / (CHUNK / 2)
    }

    /// Adds an extent behind all others.
    pub fn push(&mut self, extent: Key) {
        self.count += 1;
        match self.chunks.last_mut().filter(|chunk| chunk.extents.len() < CHUNK) {
            Some(chunk) => {
                chunk.end = extent.position();
                chunk.extents.push(extent);
            }
            None => {
                let mut extents = Vec::with_capacity(CHUNK);
                extents.push(extent);
                self.chunks.push(Chunk::new(extents));
            }
        }
    }

    /// Gives back the memory that [`Extents::push`] took for more extents.
    pub fn shrink(&mut self) {
        self.chunks.last_mut().into_iter().for_each(|chunk| chunk.extents.shrink_to_fit());
        self.chunks.shrink_to_fit();
    }

    /// Keeps the extents for which `keep` answers true. It is asked about each once, in order.
    pub fn retain(&mut self, mut keep: impl FnMut(&Key) -> bool) {
        self.chunks.iter_mut().for_each(|chunk| chunk.extents.retain(&mut keep));
        let kept: usize = self.chunks.iter().map(|chunk| chunk.extents.len()).sum();
        if kept == self.count {
            return;
        }
        let mut kept = Extents::default();
        self.iter().for_each(|key| kept.push(*key));
        kept.shrink();
        *self = kept;
    }

    /// Lays a key over the extents: it takes the place of what they have in its sectors. A key
    /// without a pointer only makes a hole. `removed` gets each part that was replaced, in order. A
    /// key that continues the extent before it in its bucket makes that longer.
    pub fn lay(&mut self, key: &Key, bucket_sectors: u64, mut removed: impl FnMut(&Key)) {
        let from = self.seek_next(key.begin());
        let (mut to, mut before, mut behind) = (from, None, None);
        let mut replaced = 0;
        while let Some(old) = self.get(to).filter(|old| old.begin() < key.position()) {
            // None of a key without length.
            old.part(key.start(), key.end()).iter().for_each(&mut removed);
            before = before.or(old.part(0, key.start()));
            behind = old.part(key.end(), u64::MAX);
            to = self.after(to);
            replaced += 1;
        }
        let mut own = key.cached_at().map(|_| *key);
        if let Some(key) = own {
            let joined = before.and_then(|before| before.joined(&key, bucket_sectors));
            let is_joined =
                joined.is_some() || before.is_none() && self.join(from, &key, bucket_sectors);
            before = joined.or(before);
            own = own.filter(|_| !is_joined);
        }
        let keys = [before, own, behind];
        self.count = self.count + keys.iter().flatten().count() - replaced;
        self.splice(from, to, keys);
    }

    /// Makes the extent before a place longer by a key, if the key continues it.
    fn join(&mut self, place: Place, key: &Key, bucket_sectors: u64) -> bool {
        let chunk = match place.index {
            0 => place.chunk.checked_sub(1),
            _ => Some(place.chunk),
        };
        let Some(chunk) = chunk else { return false };
        let Chunk { end, extents } = &mut self.chunks[chunk];
        let index = if place.index == 0 { extents.len() } else { place.index } - 1;
        let Some(both) = extents[index].joined(key, bucket_sectors) else { return false };
        extents[index] = both;
        *end = end_of(extents);
        true
    }

    /// The first extent that ends behind a position, or the place behind the last chunk.
    fn seek(&self, at: Position) -> Place {
        let chunk = count_first(&self.chunks, |chunk| chunk.end <= at);
        let extents = self.chunks.get(chunk).map_or(&[][..], |chunk| &chunk.extents);
        Place { chunk, index: count_first(extents, |extent| extent.position() <= at) }
    }

    /// The same; it is behind the key that was laid last, perhaps.
    fn seek_next(&self, at: Position) -> Place {
        match self.is_first_behind(self.next, at) {
            true => self.next,
            false => self.seek(at),
        }
    }

    /// True if a place is that of the first extent that ends behind a position. May be false for
    /// the first extent of a chunk.
    fn is_first_behind(&self, place: Place, at: Position) -> bool {
        let Some(chunk) = self.chunks.get(place.chunk) else { return false };
        let before = place.index.checked_sub(1).and_then(|before| chunk.extents.get(before));
        before.is_some_and(|extent| extent.position() <= at)
            && chunk.extents.get(place.index).is_some_and(|extent| extent.position() > at)
    }

    fn get(&self, at: Place) -> Option<&Key> {
        self.chunks.get(at.chunk)?.extents.get(at.index)
    }

    /// The place behind that of an extent.
    fn after(&self, Place { chunk, index }: Place) -> Place {
        match index + 1 < self.chunks[chunk].extents.len() {
            true => Place { chunk, index: index + 1 },
            false => Place { chunk: chunk + 1, index: 0 },
        }
    }

    /// Puts keys into the place of the extents from `from` up to `to`.
    fn splice(&mut self, from: Place, to: Place, keys: [Option<Key>; 3]) {
        let Place { mut chunk, mut index } = from;
        let mut upto = to.index;
        if to.chunk > chunk {
            upto = self.chunks[chunk].extents.len();
            if to.index > 0 {
                self.chunks[to.chunk].extents.drain(..to.index);
            }
            self.chunks.drain(chunk + 1..to.chunk);
        } else if upto == 0 && chunk > 0 {
            // Behind the chunk before: so chunks become full where keys are laid in order.
            chunk -= 1;
            index = self.chunks[chunk].extents.len();
            upto = index;
        }
        if self.chunks.is_empty() {
            self.chunks.push(Chunk::new(Vec::new()));
        }
        let extents = &mut self.chunks[chunk].extents;
        for key in keys.into_iter().flatten() {
            if index < upto {
                extents[index] = key;
            } else {
                if extents.len() == extents.capacity() {
                    extents.reserve_exact(GROW);
                }
                extents.insert(index, key);
                upto += 1;
            }
            index += 1;
        }
        self.next = Place { chunk, index };
        let is_smaller = index < upto;
        if is_smaller {
            extents.drain(index..upto);
        }
        self.settle(chunk, index, is_smaller);
    }

    /// Restores E1 for a chunk in which extents before `index` were changed.
    fn settle(&mut self, chunk: usize, index: usize, is_smaller: bool) {
        let extents = &mut self.chunks[chunk].extents;
        if extents.is_empty() {
            self.chunks.remove(chunk);
            return;
        }
        if extents.len() > CHUNK {
            // A full one stays where keys are laid in order.
            let half = extents.len() / 2;
            let cut = if index == extents.len() { CHUNK } else { half };
            let mut behind = Vec::with_capacity(extents.len() - cut + GROW);
            behind.extend(extents.drain(cut..));
            extents.shrink_to(cut.next_multiple_of(GROW));
            self.chunks.insert(chunk + 1, Chunk::new(behind));
        }
        let Chunk { end, extents } = &mut self.chunks[chunk];
        *end = end_of(extents);
        if is_smaller && extents.len() <= CHUNK / 4 {
            self.unite(chunk);
        }
    }

    /// Puts the extents of a chunk into that behind it or before it, if there is room.
    fn unite(&mut self, chunk: usize) {
        let has_room = |first: &usize| match self.chunks.get(*first..*first + 2) {
            Some([first, second]) => first.extents.len() + second.extents.len() <= CHUNK * 3 / 4,
            _ => false,
        };
        let before = chunk.checked_sub(1);
        let Some(first) = [Some(chunk), before].into_iter().flatten().find(has_room) else {
            return;
        };
        let second = self.chunks.remove(first + 1);
        let Chunk { end, extents } = &mut self.chunks[first];
        extents.reserve_exact(second.extents.len());
        extents.extend(second.extents);
        *end = second.end;
    }
}

/// Where the last of some extents ends.
fn end_of(extents: &[Key]) -> Position {
    extents.last().map(Key::position).unwrap_or_default()
}

/// How many entries there are for which `is_before` answers true. These are the first.
fn count_first<T>(entries: &[T], is_before: impl Fn(&T) -> bool) -> usize {
    let (mut first, mut rest) = (0, entries);
    while rest.len() > WIDTH * WIDTH {
        let (half, behind) = rest.split_at(rest.len() / 2);
        match is_before(&half[half.len() - 1]) {
            true => (first, rest) = (first + half.len(), behind),
            false => rest = half,
        }
    }
    let groups = rest.chunks_exact(WIDTH);
    let before = groups.filter(|group| is_before(&group[WIDTH - 1])).count() * WIDTH;
    let group = rest[before..].iter().take(WIDTH);
    first + before + group.filter(|entry| is_before(entry)).count()
}

#[cfg(test)]
mod tests {
    use cairn_format::bcache::extents::overlay;
    use cairn_format::bcache::{Generation, Key, Pointer};
    use proptest::prelude::*;

    use super::{CHUNK, Chunk, Extents, GROW};
    use crate::bcache::btree::reference::{Sectors, lay_over, sectors_of};

    /// Sectors of a bucket.
    const BUCKET: u64 = 64;

    /// An extent whose place follows from where it begins, so that neighbors may be joined.
    fn extent(inode: u32, start: u64, sectors: u64) -> Key {
        let sectors = sectors.min(BUCKET - start % BUCKET);
        Key::new(inode, start + sectors, sectors).at(Pointer::new(start, Generation(0)))
    }

    fn key() -> impl Strategy<Value = Key> {
        let length = prop_oneof![9 => 1..6_u64, 1 => 1..BUCKET];
        (0..3_u32, 0..1500_u64, length, 0..6_u8).prop_map(|(inode, start, sectors, kind)| {
            let key = extent(inode, start, sectors);
            let elsewhere = Pointer::new((start * 7) % BUCKET * BUCKET, Generation(1));
            match kind {
                0 => key.without_pointer(),
                1 => key.at(elsewhere),
                kind => key.with_dirty(kind > 3),
            }
        })
    }

    /// E1, and that the extents are in order.
    fn check(extents: &Extents) {
        for Chunk { end, extents } in &extents.chunks {
            assert!(!extents.is_empty() && extents.len() <= CHUNK, "{}", extents.len());
            assert_eq!(super::end_of(extents), *end);
        }
        let keys: Vec<&Key> = extents.iter().collect();
        assert_eq!(keys.len(), extents.count, "E3");
        assert!(keys.windows(2).all(|pair| pair[0].position() <= pair[1].begin()), "{keys:?}");
        assert!(keys.iter().all(|key| key.cached_at().is_some() && key.sectors() > 0));
    }

    /// Every third sector of a volume.
    fn scattered(count: u64) -> Vec<Key> {
        (0..count).map(|at| extent(1, at * 3, 1)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn a_key_that_is_laid_takes_the_place_of_what_it_overlaps(
            first in 0..500_u64,
            keys in proptest::collection::vec(key(), 1..600),
        ) {
            let mut extents = Extents::of(&scattered(first));
            let mut sectors = sectors_of(extents.iter());
            for key in keys {
                let (mut removed, mut expected) = (Vec::new(), Sectors::new());
                extents.lay(&key, BUCKET, |part| removed.push(*part));
                let own = (key.inode(), key.start())..(key.inode(), key.end());
                expected.extend(sectors.range(own).map(|(at, place)| (*at, *place)));
                prop_assert_eq!(sectors_of(&removed), expected, "{:?}", key);
                lay_over(&mut sectors, &[key]);
                check(&extents);
            }
            prop_assert_eq!(sectors_of(extents.iter()), sectors);
        }

        #[test]
        fn a_search_ends_where_a_binary_search_does(
            steps in proptest::collection::vec((0..50_u32, 1..4_u64), 0..900),
            at in (0..3_u32, 0..2000_u64),
        ) {
            let mut last = (0, 0);
            let keys: Vec<Key> = steps
                .into_iter()
                .map(|(chance, step)| {
                    last = if chance == 0 { (last.0 + 1, step) } else { (last.0, last.1 + step) };
                    Key::new(last.0, last.1, 1)
                })
                .collect();
            let extents = Extents::of(&keys);
            let first = keys.partition_point(|key| key.position() <= at);
            prop_assert_eq!(extents.find(at), keys.get(first));
            let behind: Vec<Key> = extents.iter_from(at).copied().collect();
            prop_assert_eq!(&behind[..], &keys[first..]);
        }

        #[test]
        fn extents_that_are_not_kept_disappear(
            count in 0..500_u64,
            kept in proptest::collection::vec(any::<bool>(), 500),
        ) {
            let keys = scattered(count);
            let mut extents = Extents::default();
            keys.iter().for_each(|key| extents.push(*key));
            let is_kept = |key: &Key| kept[key.start() as usize / 3];
            extents.retain(is_kept);
            check(&extents);
            let left: Vec<Key> = extents.iter().copied().collect();
            let expected: Vec<Key> = keys.into_iter().filter(is_kept).collect();
            prop_assert_eq!(left, expected);
        }
    }

    #[test]
    fn keys_laid_over_all_extents_give_the_list_that_an_overlay_gives() {
        let (older, mut expected) = (scattered(5 * CHUNK as u64), Vec::new());
        let newer: Vec<Key> = (0..200).map(|at| extent(1, at * 5, 2).with_dirty(true)).collect();
        overlay(&older, &newer, &mut expected);
        let mut extents = Extents::of(&older);
        newer.iter().for_each(|key| extents.lay(key, BUCKET, |_| {}));
        check(&extents);
        assert_eq!(extents.iter().copied().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn keys_that_continue_each_other_are_one_extent_for_each_bucket() {
        let mut extents = Extents::of(&[extent(1, 1000, 8)]);
        let keys: Vec<Key> = (0..4 * BUCKET / 8).map(|at| extent(1, at * 8, 8)).collect();
        keys.iter().for_each(|key| extents.lay(key, BUCKET, |_| {}));
        assert_eq!(extents.len(), 4 + 1);
        // A part that is written to its own place again is joined with what is left before it.
        extents.lay(&keys[3], BUCKET, |_| {});
        let first: Vec<u64> = extents.iter().take(2).map(Key::end).collect();
        assert_eq!(first, [32, BUCKET]);
        extents.lay(&keys[4].with_dirty(true), BUCKET, |_| {});
        assert_eq!(extents.len(), 4 + 3);
    }

    #[test]
    fn chunks_are_full_where_keys_are_laid_behind_all_others() {
        let mut extents = Extents::of(&[extent(0, 0, 8)]);
        scattered(10 * CHUNK as u64).iter().for_each(|key| extents.lay(key, BUCKET, |_| {}));
        check(&extents);
        assert_eq!(extents.chunks.len(), 11);
    }

    #[test]
    fn chunks_have_room_for_few_extents_after_keys_were_laid_anywhere() {
        let mut keys = scattered(100 * CHUNK as u64);
        fastrand::Rng::with_seed(1).shuffle(&mut keys);
        let mut extents = Extents::default();
        keys.iter().for_each(|key| extents.lay(key, BUCKET, |_| {}));
        check(&extents);
        assert!(extents.chunks.iter().all(|it| it.extents.capacity() <= it.extents.len() + GROW));
        assert!(extents.chunks.len() <= 200);
    }

    #[test]
    fn chunks_that_lose_their_extents_are_joined() {
        let keys = scattered(40 * CHUNK as u64);
        let mut extents = Extents::of(&keys);
        let holes = keys.iter().enumerate().filter(|(at, _)| at % 8 > 0);
        holes.for_each(|(_, key)| extents.lay(&key.without_pointer(), BUCKET, |_| {}));
        check(&extents);
        assert_eq!(extents.len(), 5 * CHUNK);
        assert!(extents.chunks.len() <= 20, "{}", extents.chunks.len());
        extents.lay(&Key::new(1, 60_000, 60_000), BUCKET, |_| {});
        check(&extents);
        assert_eq!(extents.len(), 0);
    }
}
