//! From a block to the slots that may hold it.
//!
//! Two kinds of entries, four bytes of value each, found by hashing:
//! - a *single* names the slot of one block;
//! - a *diagonal* stands for all blocks of one aligned *stretch* of 64 that are cached in
//!   slots at one distance: its value is the slot that the stretch's first block would have.
//!
//! A lookup yields candidates; what a slot really holds says the slot side, and the rules of
//! who is entered how are the index's. Since a value does not tell its key, an entry carries
//! 16 bits of its key's hash: enough to be found, and to be moved without asking anybody.
//!
//! The entries lie in many short vectors (about 128 entries each when every slot is a single),
//! each sorted by those 16 bits, so that an entry's place can be guessed from them. A vector
//! grows by an eighth: no growth ever touches more than one of them. Six bytes per entry and
//! the slack.
//!
//! A small filter counts the singles by hash of their stretch: where it says zero, 64 blocks
//! are known to have none.

use super::groups::BLOCK_END;

/// Blocks of a stretch.
pub(super) const STRETCH: u64 = 64;
/// Added to the values of diagonals, whose slot may lie before the first.
pub(super) const BIAS: u32 = 64;

const ENTRIES_PER_SEGMENT: usize = 128;
const SLOTS_PER_COUNTER: usize = 4;

/// What is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Key {
    /// The single of a block.
    Block(u64),
    /// The diagonals of a stretch.
    Stretch(u64),
}

fn scramble(key: u64) -> u64 {
    let mut x = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ (x >> 32)
}

impl Key {
    fn hash(self) -> u64 {
        match self {
            Key::Block(block) => scramble(block),
            Key::Stretch(stretch) => scramble(stretch | BLOCK_END),
        }
    }
}

#[derive(Clone, Copy)]
struct Item {
    hash: u16,
    value: [u16; 2],
}

impl Item {
    fn new(hash: u16, value: u32) -> Item {
        Item { hash, value: [value as u16, (value >> 16) as u16] }
    }

    fn value(self) -> u32 {
        u32::from(self.value[0]) | u32::from(self.value[1]) << 16
    }
}

/// The entries of a cache.
pub(super) struct Lookup {
    segments: Vec<Vec<Item>>,
    /// Singles by stretch; a counter that reaches 255 stays there.
    counters: Vec<u8>,
}

/// The place of the first item whose hash is not below `hash`.
fn place(segment: &[Item], hash: u16) -> usize {
    let mut at = (usize::from(hash) * segment.len()) >> 16;
    while at > 0 && segment[at - 1].hash >= hash {
        at -= 1;
    }
    while at < segment.len() && segment[at].hash < hash {
        at += 1;
    }
    at
}

impl Lookup {
    /// An empty lookup for a cache of `slots` slots.
    pub fn new(slots: u32) -> Lookup {
        let segments = (slots as usize).div_ceil(ENTRIES_PER_SEGMENT).max(1);
        let counters = (slots as usize).div_ceil(SLOTS_PER_COUNTER).max(64);
        Lookup { segments: vec![Vec::new(); segments], counters: vec![0; counters] }
    }

    fn home(&self, key: Key) -> (usize, u16) {
        let hash = key.hash();
        (((hash >> 32) * self.segments.len() as u64 >> 32) as usize, hash as u16)
    }

    /// The values entered under a key, and perhaps those of a few other keys.
    pub fn candidates(&self, key: Key) -> impl Iterator<Item = u32> {
        let (segment, hash) = self.home(key);
        let segment = &self.segments[segment];
        let items = segment[place(segment, hash)..].iter();
        items.take_while(move |item| item.hash == hash).map(|item| item.value())
    }

    pub fn has(&self, key: Key, value: u32) -> bool {
        self.candidates(key).any(|other| other == value)
    }

    pub fn insert(&mut self, key: Key, value: u32) {
        let (index, hash) = self.home(key);
        let segment = &mut self.segments[index];
        if segment.len() == segment.capacity() {
            segment.reserve_exact((segment.len() / 8).max(2));
        }
        let place = place(segment, hash);
        segment.insert(place, Item::new(hash, value));
        if let Key::Block(block) = key {
            self.count(block / STRETCH, true);
        }
    }

    /// Takes an entry out; it must be there.
    pub fn remove(&mut self, key: Key, value: u32) {
        let (index, hash) = self.home(key);
        let segment = &mut self.segments[index];
        let first = place(segment, hash);
        let same = |item: &Item| item.hash == hash && item.value() == value;
        let ahead = segment[first..].iter().position(same).expect("an entry leaves once");
        segment.remove(first + ahead);
        if segment.len() < segment.capacity() / 2 {
            segment.shrink_to(segment.len() + 2);
        }
        if let Key::Block(block) = key {
            self.count(block / STRETCH, false);
        }
    }

    fn counter(&self, stretch: u64) -> usize {
        let hash = scramble(stretch) as u32;
        (u64::from(hash) * self.counters.len() as u64 >> 32) as usize
    }

    fn count(&mut self, stretch: u64, more: bool) {
        let at = self.counter(stretch);
        let counter = &mut self.counters[at];
        *counter = match (*counter, more) {
            (u8::MAX, _) => u8::MAX,
            (count, true) => count + 1,
            (count, false) => count - 1,
        };
    }

    /// False if no block of the stretch has a single.
    pub fn may_have_singles(&self, stretch: u64) -> bool {
        self.counters[self.counter(stretch)] != 0
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.segments.iter().map(Vec::len).sum()
    }

    /// Bytes of memory in use.
    pub fn bytes(&self) -> u64 {
        let items: usize = self.segments.iter().map(Vec::capacity).sum();
        let table = self.segments.capacity() * size_of::<Vec<Item>>() + self.counters.len();
        (items * size_of::<Item>() + table) as u64
    }
}

/// A lookup that is filled once, in no order, and much faster than one by one.
pub(super) struct Bulk {
    lookup: Lookup,
    sizes: Vec<u32>,
    batch: Vec<(u32, Item)>,
}

impl Bulk {
    pub fn new(slots: u32) -> Bulk {
        let lookup = Lookup::new(slots);
        let sizes = vec![0; lookup.segments.len()];
        Bulk { lookup, sizes, batch: Vec::with_capacity(64) }
    }

    /// The first of two passes over all entries: makes room.
    pub fn announce(&mut self, key: Key) {
        self.sizes[self.lookup.home(key).0] += 1;
        if let Key::Block(block) = key {
            self.lookup.count(block / STRETCH, true);
        }
    }

    /// The second pass.
    pub fn push(&mut self, key: Key, value: u32) {
        let (segment, hash) = self.lookup.home(key);
        self.batch.push((segment as u32, Item::new(hash, value)));
        if self.batch.len() == 64 {
            self.flush();
        }
    }

    fn flush(&mut self) {
        // Loads that do not depend on each other wait for memory together.
        let segments = &mut self.lookup.segments;
        let touch = |&(segment, _): &(u32, Item)| {
            segments[segment as usize].last().map_or(0, |item| u32::from(item.hash))
        };
        std::hint::black_box(self.batch.iter().map(touch).fold(0, u32::wrapping_add));
        for (segment, item) in self.batch.drain(..) {
            let items = &mut segments[segment as usize];
            if items.capacity() == 0 {
                items.reserve_exact(self.sizes[segment as usize] as usize);
            }
            items.push(item);
        }
    }

    /// The lookup, and pairs of values whose keys may be one key.
    pub fn finish(mut self) -> (Lookup, Vec<u32>) {
        self.flush();
        let mut alike = Vec::new();
        for segment in &mut self.lookup.segments {
            segment.sort_unstable_by_key(|item| item.hash);
            let same = |pair: &&[Item]| pair[0].hash == pair[1].hash;
            for pair in segment.windows(2).filter(same) {
                alike.extend([pair[0].value(), pair[1].value()]);
            }
        }
        (self.lookup, alike)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, proptest};
    use std::collections::BTreeSet;

    fn key(word: u8) -> Key {
        let number = u64::from(word / 2);
        if word.is_multiple_of(2) { Key::Block(number) } else { Key::Stretch(number) }
    }

    fn check(lookup: &Lookup, model: &BTreeSet<(Key, u32)>) {
        for word in 0..=255 {
            let key = key(word);
            for &(_, value) in model.range((key, 0)..=(key, u32::MAX)) {
                assert!(lookup.has(key, value));
            }
            let blocks = model.iter().filter(|(key, _)| matches!(key, Key::Block(_)));
            let singles = blocks.filter(|(other, _)| match (other, key) {
                (Key::Block(block), Key::Stretch(stretch)) => block / STRETCH == stretch,
                _ => false,
            });
            if let Key::Stretch(stretch) = key {
                assert!(singles.count() == 0 || lookup.may_have_singles(stretch));
            }
        }
        let entered: usize = lookup.segments.iter().map(Vec::len).sum();
        assert_eq!(entered, model.len());
    }

    proptest! {
        #[test]
        fn what_was_entered_is_found_until_it_leaves(
            slots in 1u32..1000,
            steps in proptest::collection::vec((any::<u8>(), 0u32..4, any::<bool>()), 1..300),
        ) {
            let (mut lookup, mut model) = (Lookup::new(slots), BTreeSet::new());
            for (word, value, enters) in steps {
                let entry = (key(word), value.wrapping_sub(2));
                if enters && model.insert(entry) {
                    lookup.insert(entry.0, entry.1);
                } else if !enters && model.remove(&entry) {
                    lookup.remove(entry.0, entry.1);
                }
            }
            check(&lookup, &model);
            let mut bulk = Bulk::new(slots);
            model.iter().for_each(|&(key, _)| bulk.announce(key));
            model.iter().for_each(|&(key, value)| bulk.push(key, value));
            let (lookup, alike) = bulk.finish();
            check(&lookup, &model);
            for key in (0..=255).map(key) {
                let values: Vec<u32> =
                    model.range((key, 0)..=(key, u32::MAX)).map(|entry| entry.1).collect();
                assert!(values.len() < 2 || values.iter().all(|value| alike.contains(value)));
            }
        }
    }
}
