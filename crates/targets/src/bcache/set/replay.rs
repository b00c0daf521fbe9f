//! The entries of the journal that were found at opening, until leaves have them: as a whole, or in
//! parts where the ring lacks the room for the fresh roots that this may take (see
//! `journal`).
//!
//! The tree in memory has the keys of all entries. So the leaves of a part get the newest extents,
//! those of later parts too; these parts still count, and a replay of them changes nothing.
//!
//! # Invariants
//! Y1. The parts are of entries in order, the oldest first.
//! Y2. A part leaves once its sectors are written in leaves, durably. Then only the entries from
//!     the next part on are open. A part is of whole buckets of the ring, so that one at least is
//!     free then.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use cairn_format::bcache::journal::{ENTRY_HEADER_BYTES, Located};
use cairn_format::bcache::load::Loaded;
use cairn_format::bcache::{Geometry, Key};

use crate::bcache::canary::{Bug, planted};

/// How many parts there are at most: each leaf may be written as often.
const PARTS: usize = 8;

/// See the module's description. Memory: that of the keys, until all parts have left.
pub(super) struct Replay {
    keys: Arc<Vec<Key>>,
    parts: VecDeque<Part>,
}

struct Part {
    /// Its oldest entry.
    first: u64,
    /// Its keys.
    keys: Range<usize>,
}

impl Replay {
    /// All as one part. `keys` is what the journal amounts to.
    pub fn whole(loaded: &Loaded, keys: Vec<Key>) -> Replay {
        let part = Part { first: loaded.newest.last_seq, keys: 0..keys.len() };
        Replay { keys: Arc::new(keys), parts: VecDeque::from([part]) }
    }

    /// The journal in parts; none if its keys are not those of its entries, one after the other, or
    /// if what a key says depends on the root being a leaf: a part may put a node above it. The
    /// last `newer` keys are in no entry: the last part has them.
    pub fn in_parts(loaded: &mut Loaded, geometry: &Geometry, newer: usize) -> Option<Replay> {
        let is_gone = |key: &Key| key.is_dirty() && loaded.is_stale(geometry, key);
        if loaded.newest.root_level == 0 && loaded.journal.iter().any(is_gone) {
            return None;
        }
        let entries = &loaded.ring.entries[..];
        let in_one_bucket = |a: &Located, b: &Located| a.index == b.index;
        let of_buckets: Vec<usize> = entries.chunk_by(in_one_bucket).map(<[_]>::len).collect();
        let (mut parts, mut end) = (VecDeque::new(), entries.len());
        let mut rest = &loaded.journal[..loaded.journal.len() - newer];
        for some in of_buckets.chunks(of_buckets.len().div_ceil(PARTS)).rev() {
            let begin = end - some.iter().sum::<usize>();
            let first = first_of(&entries[begin..end], rest)?;
            parts.push_front(Part { first: entries[begin].header.seq, keys: first..rest.len() });
            (rest, end) = (&rest[..first], begin);
        }
        let is_whole = rest.is_empty();
        parts.back_mut()?.keys.end = loaded.journal.len();
        is_whole.then(|| Replay { keys: Arc::new(std::mem::take(&mut loaded.journal)), parts })
    }

    /// The oldest entry that is open.
    pub fn open(&self) -> Option<u64> {
        let first = usize::from(planted(Bug::PartBeforeLeaves));
        self.parts.get(first).map(|part| part.first)
    }

    /// The keys of the first part, as a part of all keys; none when all parts have left.
    pub fn first(&self) -> Option<(Arc<Vec<Key>>, Range<usize>)> {
        self.parts.front().map(|part| (self.keys.clone(), part.keys.clone()))
    }

    /// The sectors of the first part are written in leaves.
    pub fn leave(&mut self) {
        self.parts.pop_front();
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

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use std::ops::ControlFlow;

    use cairn_format::bcache::load::{Fault, Loaded, Visitor, load_now};
    use cairn_format::bcache::{Geometry, Key, SECTOR_BYTES, Superblock};
    use cairn_testkit::image;

    use super::Replay;
    use crate::bcache::btree::Unwritten;

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
    fn the_parts_of_a_journal_have_the_sectors_of_all_entries() {
        let (mut loaded, geometry) = journal();
        loaded.newest.root_level = 1;
        let expected = Unwritten::of(&loaded.journal);
        let mut replay = Replay::in_parts(&mut loaded, &geometry, 0).expect("entry by entry");
        assert!(replay.parts.len() > 1);
        let firsts: Vec<u64> = replay.parts.iter().map(|part| part.first).collect();
        assert!(firsts.is_sorted() && firsts[0] == loaded.newest.last_seq, "{firsts:?}");
        let mut all = Unwritten::default();
        while let Some((keys, part)) = replay.first() {
            assert!(!part.is_empty());
            all.add(&keys[part]);
            replay.leave();
        }
        assert_eq!(all, expected);
    }

    #[test]
    fn stale_dirty_keys_above_a_leaf_are_replayed_as_a_whole() {
        let (mut loaded, geometry) = journal();
        loaded.newest.root_level = 0;
        let last = loaded.journal.iter().rfind(|key| key.is_dirty()).expect("some are");
        let bucket = geometry.bucket_of(last.cached_at().expect("it is").sector()) as usize;
        loaded.buckets[bucket].generation = loaded.buckets[bucket].generation.next();
        assert!(Replay::in_parts(&mut loaded, &geometry, 0).is_none());
    }
}
