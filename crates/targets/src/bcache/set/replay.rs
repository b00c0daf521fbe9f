//! What a session found in the journal, on its way to the leaves: as a whole, or in parts where
//! the ring lacks the room for the fresh roots that this may take (see `journal`).
//!
//! # Invariants
//! Y1. The parts are of entries in order, the oldest first. Their keys are those that no later
//!     entry overwrites, so they overlap nowhere, and what the leaves show never goes back in time.
//!     A stale key of a later part takes the place of older keys, too: a clean one enters as a
//!     hole, a dirty one enters no leaf.
//! Y2. A part leaves once its keys are in leaves, durably. Then only the entries from the next part
//!     on are open. A part is of whole buckets of the ring, so that one at least is free then.
//! Y3. Holes that are made during the replay are laid over all parts: no key that enters a leaf
//!     later leads to a bucket that was emptied.

use std::collections::VecDeque;

use cairn_format::bcache::extents::{latest, overlaid, overlay};
use cairn_format::bcache::journal::{ENTRY_HEADER_BYTES, Located};
use cairn_format::bcache::load::Loaded;
use cairn_format::bcache::{Geometry, Key};

use crate::bcache::canary::{Bug, planted};

/// How many parts there are at most: each leaf may be written as often.
const PARTS: usize = 8;

/// See the module's description.
pub(super) struct Replay {
    parts: VecDeque<Part>,
}

struct Part {
    /// Its oldest entry.
    first: u64,
    keys: Vec<Key>,
}

impl Replay {
    /// All as one part. `keys` is what the journal amounts to.
    pub fn whole(loaded: &Loaded, keys: Vec<Key>) -> Replay {
        Replay { parts: VecDeque::from([Part { first: loaded.newest.last_seq, keys }]) }
    }

    /// The journal in parts; none if its keys are not those of its entries, one after the other, or
    /// if what a key says depends on the root being a leaf: a part may put a node above it.
    pub fn in_parts(mut loaded: Loaded, geometry: &Geometry) -> Option<Replay> {
        let is_gone = |key: &Key| key.is_dirty() && loaded.is_stale(geometry, key);
        if loaded.newest.root_level == 0 && loaded.journal.iter().any(is_gone) {
            return None;
        }
        let entries = std::mem::take(&mut loaded.ring.entries);
        let in_one_bucket = |a: &Located, b: &Located| a.index == b.index;
        let of_buckets: Vec<usize> = entries.chunk_by(in_one_bucket).map(<[_]>::len).collect();
        let mut rest = std::mem::take(&mut loaded.journal);
        let (mut parts, mut later, mut end) = (VecDeque::new(), Vec::new(), entries.len());
        for some in of_buckets.chunks(of_buckets.len().div_ceil(PARTS)).rev() {
            let begin = end - some.iter().sum::<usize>();
            let own = latest(rest.split_off(first_of(&entries[begin..end], &rest)?).into_iter());
            let first = entries[begin].header.seq;
            let says = |key: Key| loaded.says(geometry, &key);
            let keys = without(&own, &later).into_iter().filter_map(says).collect();
            parts.push_front(Part { first, keys });
            later = overlaid(own, &later);
            end = begin;
        }
        rest.is_empty().then_some(Replay { parts })
    }

    /// The oldest entry that is open.
    pub fn open(&self) -> Option<u64> {
        let first = usize::from(planted(Bug::PartBeforeLeaves));
        self.parts.get(first).map(|part| part.first)
    }

    /// The keys of the first part; none when all parts have left.
    pub fn take_keys(&mut self) -> Option<Vec<Key>> {
        self.parts.front_mut().map(|part| std::mem::take(&mut part.keys))
    }

    /// The keys of the first part are in leaves.
    pub fn leave(&mut self) {
        self.parts.pop_front();
    }

    /// Lays holes over what was not taken yet.
    pub fn lay_over(&mut self, holes: &[Key]) {
        for part in self.parts.iter_mut().skip(1) {
            let mut both = Vec::with_capacity(part.keys.len() + holes.len());
            overlay(&part.keys, holes, &mut both);
            part.keys = both;
        }
    }
}

/// Where the keys of these entries begin, the last of which are at the end of `keys`.
fn first_of(entries: &[Located], keys: &[Key]) -> Option<usize> {
    let words_of = |entry: &Located| (entry.bytes.end - entry.bytes.start - ENTRY_HEADER_BYTES) / 8;
    let (mut words, mut first) = (entries.iter().map(words_of).sum::<usize>(), keys.len());
    while words > 0 {
        first = first.checked_sub(1)?;
        words = words.checked_sub(keys[first].word_count())?;
    }
    Some(first)
}

/// The parts of `keys` that `others` do not cover. Both are in order and do not overlap.
fn without(keys: &[Key], others: &[Key]) -> Vec<Key> {
    let (mut left, mut others) = (Vec::with_capacity(keys.len()), others.iter().peekable());
    for key in keys {
        let mut rest = Some(*key);
        while let Some(key) = rest {
            while others.next_if(|other| other.position() <= key.begin()).is_some() {}
            let Some(other) = others.peek().filter(|other| other.begin() < key.position()) else {
                left.push(key);
                break;
            };
            left.extend(key.part(0, other.start()));
            rest = key.part(other.end(), u64::MAX);
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use cairn_format::bcache::load::{Fault, Loaded, Visitor, load_now};
    use cairn_format::bcache::{Geometry, Key, SECTOR_BYTES, Superblock};
    use cairn_testkit::image;
    use proptest::prelude::*;

    use super::{Replay, overlaid, without};

    fn keys() -> impl Strategy<Value = Vec<Key>> {
        let one = (0..3_u32, 0..9_u64, 1..9_u64);
        proptest::collection::vec(one, 0..30).prop_map(|mut ones| {
            ones.sort_unstable();
            let mut last = (0, 0);
            let key = |(inode, gap, sectors): (u32, u64, u64)| {
                let start = gap + if last.0 == inode { last.1 } else { 0 };
                last = (inode, start + sectors);
                Key::new(inode, start + sectors, sectors)
            };
            ones.into_iter().map(key).collect()
        })
    }

    fn sectors(keys: &[Key]) -> Vec<(u32, u64)> {
        keys.iter().flat_map(|key| (key.start()..key.end()).map(|at| (key.inode(), at))).collect()
    }

    proptest! {
        #[test]
        fn what_is_left_and_the_others_are_all(keys in keys(), others in keys()) {
            let left = without(&keys, &others);
            let (own, other) = (sectors(&left), sectors(&others));
            prop_assert!(own.iter().all(|at| !other.contains(at)));
            let all = overlaid(left, &others);
            prop_assert_eq!(sectors(&all), sectors(&overlaid(keys, &others)));
        }
    }

    struct Nothing;

    impl Visitor for Nothing {
        fn fault(&mut self, _: &Fault) -> ControlFlow<()> {
            ControlFlow::Break(())
        }

        fn extent(&mut self, _: Key) {}
    }

    /// A journal of many entries. Each has an extent of a few sectors, dirty and clean in turns.
    fn journal() -> (Loaded, Geometry) {
        let image = image("bcache", "ring_kill.cache");
        let Ok(Superblock::Cache(superblock)) = Superblock::decode(&image[8 * SECTOR_BYTES..])
        else {
            panic!("it is a cache")
        };
        let mut loaded = load_now(&image[..], &superblock, &mut Nothing).expect("it is sound");
        for (index, key) in (0..).zip(&mut loaded.journal) {
            let pointer = key.cached_at().expect("it leads somewhere");
            *key = Key::new(0, 20 + index * 7 % 40, 4).with_dirty(index % 3 > 0).at(pointer);
        }
        (loaded, *superblock.geometry())
    }

    #[test]
    fn the_parts_of_a_journal_with_stale_keys_amount_to_the_whole() {
        let (mut loaded, geometry) = journal();
        let bucket = |key: &Key| {
            geometry.bucket_of(key.cached_at().expect("it leads somewhere").sector()) as usize
        };
        let mut buckets: Vec<usize> = loaded.journal.iter().map(bucket).collect();
        buckets.dedup();
        assert!(buckets.len() > 1, "{buckets:?}");
        loaded.newest.root_level = 1;
        // The newest keys are stale, so that older ones lie beneath them.
        let last = *buckets.last().expect("there is one");
        loaded.buckets[last].generation = loaded.buckets[last].generation.next();
        let expected = loaded.journaled(&geometry);
        let stale = loaded.journal.iter().filter(|key| loaded.is_stale(&geometry, key)).count();
        assert!(stale > 0 && stale < loaded.journal.len());
        let replay = Replay::in_parts(loaded, &geometry).expect("entry by entry");
        assert!(replay.parts.len() > 1);
        let mut all: Vec<Key> = replay.parts.into_iter().flat_map(|part| part.keys).collect();
        all.sort_by_key(Key::begin);
        let cut = |keys: &[Key]| -> Vec<Key> {
            let each = |key: &Key| {
                let key = *key;
                (key.start()..key.end()).filter_map(move |at| key.part(at, at + 1))
            };
            keys.iter().flat_map(each).collect()
        };
        assert_eq!(cut(&all), cut(&expected));
    }

    #[test]
    fn stale_dirty_keys_above_a_leaf_are_replayed_as_a_whole() {
        let (mut loaded, geometry) = journal();
        loaded.newest.root_level = 0;
        let last = loaded.journal.iter().rfind(|key| key.is_dirty()).expect("some are");
        let bucket = geometry.bucket_of(last.cached_at().expect("it is").sector()) as usize;
        loaded.buckets[bucket].generation = loaded.buckets[bucket].generation.next();
        assert!(Replay::in_parts(loaded, &geometry).is_none());
    }
}
