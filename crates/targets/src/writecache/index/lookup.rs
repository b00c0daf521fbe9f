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
//! each sorted by those 16 bits, so that an entry's place can be guessed from them; all entries
//! of a stretch lie in one. A vector grows by an eighth: no growth touches more than one. Six bytes per entry and
//! the slack.
//!
//! Beside them small counters tell how many singles there are by hash of their stretch: where
//! one says zero, 64 blocks are known to have none. Half a byte per slot of the cache.

/// Blocks of a stretch.
pub(super) const STRETCH: u64 = 64;
/// Added to the values of diagonals, whose slot may lie before the first.
pub(super) const BIAS: u32 = 64;

/// Entries pushed together when a lookup is filled at once.
const BATCH: usize = 256;
const ENTRIES_PER_SEGMENT: usize = 128;
const COUNTERS: usize = 40;

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
    /// Hash of its stretch, and of itself.
    fn hashes(self) -> (u64, u16) {
        match self {
            Key::Block(block) => (scramble(block / STRETCH), scramble(block) as u16),
            Key::Stretch(stretch) => {
                let hash = scramble(stretch);
                (hash, (hash >> 16) as u16)
            }
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

/// Entries, and the singles among them by stretch; a counter that reaches 255 stays there. The
/// head of a segment is one line of the processor's cache.
#[repr(align(64))]
#[derive(Clone)]
struct Segment {
    items: Vec<Item>,
    counters: [u8; COUNTERS],
}

impl Segment {
    const EMPTY: Segment = Segment { items: Vec::new(), counters: [0; COUNTERS] };

    fn count(&mut self, counter: u8, more: bool) {
        let counter = &mut self.counters[usize::from(counter)];
        *counter = match (*counter, more) {
            (u8::MAX, _) => u8::MAX,
            (count, true) => count + 1,
            (count, false) => count - 1,
        };
    }
}

/// The counter of a stretch, by its hash.
fn counter_of(hash: u64) -> u8 {
    ((u64::from(hash as u16) * COUNTERS as u64) >> 16) as u8
}

/// The entries of a cache.
pub(super) struct Lookup {
    segments: Vec<Segment>,
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
        Lookup { segments: vec![Segment::EMPTY; segments] }
    }

    fn segment_of(&self, hash: u64) -> usize {
        (((hash >> 32) * self.segments.len() as u64) >> 32) as usize
    }

    /// The values entered under a key, and perhaps those of a few other keys.
    pub fn candidates(&self, key: Key) -> impl Iterator<Item = u32> {
        let (stretch, hash) = key.hashes();
        let segment = &self.segments[self.segment_of(stretch)].items;
        let items = segment[place(segment, hash)..].iter();
        items.take_while(move |item| item.hash == hash).map(|item| item.value())
    }

    pub fn has(&self, key: Key, value: u32) -> bool {
        self.candidates(key).any(|other| other == value)
    }

    pub fn insert(&mut self, key: Key, value: u32) {
        let (stretch, hash) = key.hashes();
        let at = self.segment_of(stretch);
        let segment = &mut self.segments[at];
        let items = &mut segment.items;
        if items.len() == items.capacity() {
            items.reserve_exact((items.len() / 8).max(2));
        }
        items.insert(place(items, hash), Item::new(hash, value));
        if matches!(key, Key::Block(_)) {
            segment.count(counter_of(stretch), true);
        }
    }

    /// Takes an entry out; it must be there.
    pub fn remove(&mut self, key: Key, value: u32) {
        let (stretch, hash) = key.hashes();
        let at = self.segment_of(stretch);
        let segment = &mut self.segments[at];
        let items = &mut segment.items;
        let first = place(items, hash);
        let same = |item: &Item| item.hash == hash && item.value() == value;
        let ahead = items[first..].iter().position(same).expect("an entry leaves once");
        items.remove(first + ahead);
        if items.len() < items.capacity() / 2 {
            items.shrink_to(items.len() + 2);
        }
        if matches!(key, Key::Block(_)) {
            segment.count(counter_of(stretch), false);
        }
    }

    /// False if no block of the stretch has a single.
    pub fn may_have_singles(&self, stretch: u64) -> bool {
        let hash = scramble(stretch);
        self.segments[self.segment_of(hash)].counters[usize::from(counter_of(hash))] != 0
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.segments.iter().map(|segment| segment.items.len()).sum()
    }
}

/// A lookup that is filled once, in no order, and much faster than one by one.
pub(super) struct Bulk {
    lookup: Lookup,
    sizes: Vec<u32>,
    batch: Vec<(u32, Item, Option<u8>)>,
}

impl Bulk {
    pub fn new(slots: u32) -> Bulk {
        let lookup = Lookup::new(slots);
        let sizes = vec![0; lookup.segments.len()];
        Bulk { lookup, sizes, batch: Vec::with_capacity(BATCH) }
    }

    /// The first of two passes over all entries: makes room.
    pub fn announce(&mut self, key: Key) {
        self.sizes[self.lookup.segment_of(key.hashes().0)] += 1;
    }

    /// The second pass.
    pub fn push(&mut self, key: Key, value: u32) {
        let (stretch, hash) = key.hashes();
        let counter = matches!(key, Key::Block(_)).then(|| counter_of(stretch));
        let segment = self.lookup.segment_of(stretch) as u32;
        self.batch.push((segment, Item::new(hash, value), counter));
        if self.batch.len() == BATCH {
            self.flush();
        }
    }

    fn flush(&mut self) {
        // Loads that do not depend on each other wait for memory together.
        let segments = &mut self.lookup.segments;
        let mut touched = 0;
        for &(segment, _, _) in &self.batch {
            let last = segments[segment as usize].items.last();
            touched ^= last.map_or(0, |item| item.hash);
        }
        std::hint::black_box(touched);
        for (segment, item, counter) in self.batch.drain(..) {
            let size = self.sizes[segment as usize] as usize;
            let segment = &mut segments[segment as usize];
            if segment.items.capacity() == 0 {
                segment.items.reserve_exact(size);
            }
            segment.items.push(item);
            if let Some(counter) = counter {
                segment.count(counter, true);
            }
        }
    }

    /// The lookup, and pairs of values whose keys may be one key.
    pub fn finish(mut self) -> (Lookup, Vec<u32>) {
        self.flush();
        let mut alike = Vec::new();
        for segment in &mut self.lookup.segments {
            let segment = &mut segment.items;
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
        assert_eq!(lookup.len(), model.len());
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
