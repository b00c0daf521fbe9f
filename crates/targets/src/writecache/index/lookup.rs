//! From a block to the slots that may hold it.
//!
//! Two kinds of entries, four bytes of value each, found by hashing:
//! - a *single* names the slot of one block;
//! - a *diagonal* stands for all blocks of one aligned *stretch* of 64 that are cached in slots at
//!   one distance. Its value is the slot that the stretch's first block would have.
//!
//! A lookup yields candidates. `groups` tells which block a slot really holds, and the index
//! decides which blocks are entered, and how. A value does not tell its key, so an entry carries 16
//! bits of its key's hash: enough to find it and to move it without asking the groups.
//!
//! The entries are in many short *segments* (about 256 entries each when every slot is a single),
//! each sorted by those 16 bits, so that an entry's position can be guessed from them. All entries
//! of a stretch are in one segment. The hash of a single contains its place in the stretch and 10
//! bits of the stretch's hash: one pass over a segment finds every block of a stretch that may have
//! a single. A segment is a list of units of 32 entries from a pool. It grows by one unit, and
//! nothing is ever rehashed. Cost: six bytes per entry, half a unit of slack and a head of 64 bytes
//! per segment. The head names the first 13 units, further units name the rest.
//!
//! A lookup waits for these cache lines: the head; the hashes of a unit together with the value,
//! once for a single, twice where the segment has diagonals; then the group. A unit stores its
//! hashes apart from its values, so that many are compared at once.

use super::pool::{Pool, Pooled, Slab};

/// Blocks of a stretch.
pub(super) const STRETCH: u64 = 64;
/// Added to the values of diagonals, whose slot may lie before the first.
pub(super) const BIAS: u32 = 64;

const ENTRIES_PER_SEGMENT: usize = 256;
/// Entries of a unit.
const UNIT: usize = 32;
/// Hashes that are compared at once.
const LANES: usize = 8;
/// Units of a segment that its head names.
const UNITS: usize = 13;
/// Units that a further unit names; such a unit holds no entries.
const NAMES: usize = UNIT - 1;
/// Bits of a single's hash that its stretch has.
const STRETCH_BITS: u32 = 10;
const STRETCH_MASK: u16 = (1 << STRETCH_BITS) - 1;

/// Segments of a part that is filled at once.
const PART: usize = 128;
/// Entries of a chunk of such a part.
const CHUNK: usize = 1024;

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

/// Maps a place in a stretch to the high bits of a hash and back, differently in each stretch.
fn mix(offset: u16, hash: u64) -> u16 {
    offset ^ ((hash >> STRETCH_BITS) as u16 % STRETCH as u16)
}

impl Key {
    /// Hash of its stretch, and of itself.
    fn hashes(self) -> (u64, u16) {
        match self {
            Key::Block(block) => {
                let hash = scramble(block / STRETCH);
                let high = mix((block % STRETCH) as u16, hash) << STRETCH_BITS;
                (hash, high | hash as u16 & STRETCH_MASK)
            }
            Key::Stretch(stretch) => {
                let hash = scramble(stretch);
                (hash, (hash >> 16) as u16)
            }
        }
    }

    fn is_diagonal(self) -> bool {
        matches!(self, Key::Stretch(_))
    }
}

#[derive(Clone, Copy)]
struct Item {
    hash: u16,
    value: u32,
}

/// Entries of a segment: their hashes are one line of the processor's cache, which is looked
/// through as a whole. Places that are not in use have the highest hash.
#[repr(align(64))]
#[derive(Clone)]
pub(super) struct Unit {
    hashes: [u16; UNIT],
    values: [u32; UNIT],
}

const _: () = assert!(size_of::<Unit>() == 6 * UNIT);

impl Default for Unit {
    fn default() -> Unit {
        Unit { hashes: [u16::MAX; UNIT], values: [0; UNIT] }
    }
}

impl Pooled for Unit {
    fn link(&self) -> u32 {
        self.values[0]
    }

    fn set_link(&mut self, other: u32) {
        self.values[0] = other;
    }
}

impl Unit {
    fn get(&self, at: usize) -> Item {
        Item { hash: self.hashes[at], value: self.values[at] }
    }

    fn set(&mut self, at: usize, item: Item) {
        (self.hashes[at], self.values[at]) = (item.hash, item.value);
    }

    /// How many of the hashes are below `hash`.
    fn below(&self, hash: u16) -> usize {
        self.hashes.iter().map(|&other| u16::from(other < hash)).sum::<u16>().into()
    }

    /// Shows the hashes of the entries that may belong to the stretch with these bits.
    fn of_stretch(&self, bits: u16, mut see: impl FnMut(u16)) {
        let fits = |hash: &u16| (hash ^ bits) & STRETCH_MASK == 0;
        for mut hashes in self.hashes.chunks_exact(LANES) {
            // Most units have none, so there is no branch for each hash.
            if hashes.iter().fold(false, |any, hash| any | fits(hash)) {
                while let Some(at) = hashes.iter().position(fits) {
                    see(hashes[at]);
                    hashes = &hashes[at + 1..];
                }
            }
        }
    }

    /// Moves the entries of `from..to` up by one, and puts `item` before them; answers the one
    /// that was at `to`.
    fn push_up(&mut self, from: usize, to: usize, item: Item) -> Item {
        let last = self.get(to);
        self.hashes.copy_within(from..to, from + 1);
        self.values.copy_within(from..to, from + 1);
        self.set(from, item);
        last
    }

    /// Moves the entries after `from`, up to `to`, down by one, and puts `item` after them;
    /// answers the one that was at `from`.
    fn pull_down(&mut self, from: usize, to: usize, item: Item) -> Item {
        let first = self.get(from);
        self.hashes.copy_within(from + 1..to + 1, from);
        self.values.copy_within(from + 1..to + 1, from);
        self.set(to, item);
        first
    }
}

/// Entries in the order of their hashes; one line of the processor's cache.
#[repr(align(64))]
#[derive(Clone, Default)]
struct Segment {
    units: [u32; UNITS],
    /// Where the names of more units are.
    more: u32,
    len: u32,
    /// How many of the entries are diagonals.
    diagonals: u32,
}

const _: () = assert!(size_of::<Segment>() == 64);

impl Segment {
    fn len(&self) -> usize {
        self.len as usize
    }

    /// How many units it has.
    fn units(&self) -> usize {
        self.len().div_ceil(UNIT)
    }

    /// Where the name of a unit beyond the head's is kept: the list, and the place in it.
    fn listed(&self, units: &Pool<Unit>, index: usize) -> (u32, usize) {
        let (mut list, mut at) = (self.more, index - UNITS);
        while at >= NAMES {
            (list, at) = (units.get(list).values[NAMES], at - NAMES);
        }
        (list, at)
    }

    fn name(&self, units: &Pool<Unit>, index: usize) -> u32 {
        if index < UNITS {
            return self.units[index];
        }
        let (list, at) = self.listed(units, index);
        units.get(list).values[at]
    }

    fn unit<'a>(&self, units: &'a Pool<Unit>, index: usize) -> &'a Unit {
        units.get(self.name(units, index))
    }

    fn get(&self, units: &Pool<Unit>, at: usize) -> Item {
        self.unit(units, at / UNIT).get(at % UNIT)
    }

    /// The place of the first item whose hash is not below `hash`.
    fn place(&self, units: &Pool<Unit>, hash: u16) -> usize {
        if self.len == 0 {
            return 0;
        }
        let guess = (usize::from(hash) * self.len()) >> 16;
        let mut index = guess / UNIT;
        // The value is near here: loading its cache line overlaps with loading that of the hashes.
        std::hint::black_box(self.unit(units, index).values[guess % UNIT]);
        loop {
            let at = self.unit(units, index).below(hash);
            if at == 0 && index > 0 && self.unit(units, index - 1).hashes[UNIT - 1] >= hash {
                index -= 1;
            } else if at == UNIT && (index + 1) * UNIT < self.len() {
                index += 1;
            } else {
                return index * UNIT + at;
            }
        }
    }

    fn push(&mut self, units: &mut Pool<Unit>, item: Item) {
        let (index, at) = (self.len() / UNIT, self.len() % UNIT);
        if at == 0 {
            self.add_unit(units, index);
        }
        units.get_mut(self.name(units, index)).set(at, item);
        self.len += 1;
    }

    fn add_unit(&mut self, units: &mut Pool<Unit>, index: usize) {
        let name = units.take();
        units.get_mut(name).hashes.fill(u16::MAX);
        if index < UNITS {
            self.units[index] = name;
            return;
        }
        if index == UNITS {
            self.more = units.take();
        } else if (index - UNITS).is_multiple_of(NAMES) {
            let (next, (last, _)) = (units.take(), self.listed(units, index - 1));
            units.get_mut(last).values[NAMES] = next;
        }
        let (list, at) = self.listed(units, index);
        units.get_mut(list).values[at] = name;
    }

    /// Gives the last unit back.
    fn give_unit(&mut self, units: &mut Pool<Unit>, index: usize) {
        units.give(self.name(units, index));
        if index >= UNITS && (index - UNITS).is_multiple_of(NAMES) {
            units.give(self.listed(units, index).0);
        }
    }

    fn insert(&mut self, units: &mut Pool<Unit>, at: usize, item: Item) {
        let last = self.len();
        self.push(units, item);
        let mut carried = item;
        for index in at / UNIT..=last / UNIT {
            let from = if index == at / UNIT { at % UNIT } else { 0 };
            let to = if index == last / UNIT { last % UNIT } else { UNIT - 1 };
            carried = units.get_mut(self.name(units, index)).push_up(from, to, carried);
        }
    }

    fn remove(&mut self, units: &mut Pool<Unit>, at: usize) {
        let last = self.len() - 1;
        let mut carried = Item { hash: u16::MAX, value: 0 };
        for index in (at / UNIT..=last / UNIT).rev() {
            let from = if index == at / UNIT { at % UNIT } else { 0 };
            let to = if index == last / UNIT { last % UNIT } else { UNIT - 1 };
            carried = units.get_mut(self.name(units, index)).pull_down(from, to, carried);
        }
        self.len -= 1;
        if self.len().is_multiple_of(UNIT) {
            self.give_unit(units, last / UNIT);
        }
    }
}

/// The entries of a cache.
pub(super) struct Lookup {
    segments: Vec<Segment>,
    units: Pool<Unit>,
}

impl Lookup {
    /// An empty lookup for a cache of `slots` slots.
    pub fn new(slots: u32) -> Lookup {
        let segments = (slots as usize).div_ceil(ENTRIES_PER_SEGMENT).max(1);
        Lookup { segments: vec![Segment::default(); segments], units: Pool::new() }
    }

    /// True if memory should be added soon; see [`Pool`].
    pub fn is_low(&self) -> bool {
        self.units.is_low()
    }

    /// Adds memory.
    pub fn add(&mut self, slab: Slab<Unit>) {
        self.units.add(slab);
    }

    fn segment_of(&self, hash: u64) -> usize {
        (((hash >> 32) * self.segments.len() as u64) >> 32) as usize
    }

    /// The values entered under a key, and perhaps those of a few other keys.
    pub fn candidates(&self, key: Key) -> impl Iterator<Item = u32> {
        let (stretch, hash) = key.hashes();
        let segment = &self.segments[self.segment_of(stretch)];
        let places = if key.is_diagonal() && segment.diagonals == 0 {
            0..0
        } else {
            segment.place(&self.units, hash)..segment.len()
        };
        let items = places.map(|at| segment.get(&self.units, at));
        items.take_while(move |item| item.hash == hash).map(|item| item.value)
    }

    pub fn has(&self, key: Key, value: u32) -> bool {
        self.candidates(key).any(|other| other == value)
    }

    pub fn insert(&mut self, key: Key, value: u32) {
        let (stretch, hash) = key.hashes();
        let at = self.segment_of(stretch);
        let Lookup { segments, units } = self;
        let segment = &mut segments[at];
        let place = segment.place(units, hash);
        segment.insert(units, place, Item { hash, value });
        segment.diagonals += u32::from(key.is_diagonal());
    }

    /// Takes an entry out; it must be there.
    pub fn remove(&mut self, key: Key, value: u32) {
        let (stretch, hash) = key.hashes();
        let at = self.segment_of(stretch);
        let Lookup { segments, units } = self;
        let segment = &mut segments[at];
        let mut places = segment.place(units, hash)..segment.len();
        let same = |at: &usize| {
            let item = segment.get(units, *at);
            item.hash == hash && item.value == value
        };
        let place = places.find(same).expect("an entry leaves once");
        segment.remove(units, place);
        segment.diagonals -= u32::from(key.is_diagonal());
    }

    /// False if no block of a stretch has a single.
    pub fn may_have_singles(&self, stretch: u64) -> bool {
        let segment = &self.segments[self.segment_of(scramble(stretch))];
        segment.len != segment.diagonals
    }

    /// The blocks of a stretch that may have a single: a bit for each.
    pub fn singles(&self, stretch: u64) -> u64 {
        let (hash, mut blocks) = (scramble(stretch), 0);
        if !self.may_have_singles(stretch) {
            return blocks;
        }
        let segment = &self.segments[self.segment_of(hash)];
        for index in 0..segment.units() {
            segment.unit(&self.units, index).of_stretch(hash as u16, |other| {
                blocks |= 1 << mix(other >> STRETCH_BITS, hash);
            });
        }
        blocks
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.segments.iter().map(Segment::len).sum()
    }
}

/// An entry to be added to a lookup: its value, its hash, and its segment's index within the part.
#[derive(Clone, Copy, Default)]
struct Entry(u64);

impl Entry {
    fn new(segment: usize, diagonal: bool, item: Item) -> Entry {
        let place = (segment % PART) as u64 | u64::from(diagonal) << 8;
        Entry(place << 48 | u64::from(item.hash) << 32 | u64::from(item.value))
    }

    fn item(self) -> Item {
        Item { hash: self.hash(), value: self.0 as u32 }
    }

    fn hash(self) -> u16 {
        (self.0 >> 32) as u16
    }

    fn segment(self) -> usize {
        (self.0 >> 48) as u8 as usize
    }

    fn is_diagonal(self) -> bool {
        self.0 >> 56 != 0
    }

    /// Its bucket: segments in order, each by the highest bits of the hash.
    fn bucket(self) -> usize {
        self.segment() * BUCKETS + usize::from(self.hash() >> STRETCH_BITS)
    }
}

/// Buckets that a segment's entries are sorted into first.
const BUCKETS: usize = 1 << (16 - STRETCH_BITS);

/// A lookup that is filled once, in any order, and much faster than entry by entry. Entries are
/// first divided by segments, so that each part's memory stays in the processor's cache.
pub(super) struct Bulk {
    lookup: Lookup,
    /// Memory for all entries, in chunks: one allocation, which goes back to the system whole.
    entries: Vec<u64>,
    chunks: usize,
    parts: Vec<Part>,
}

/// The chunks of a part, and how many entries the last one has.
#[derive(Clone, Default)]
struct Part {
    chunks: Vec<u32>,
    last: usize,
}

impl Part {
    /// Its entries, piece by piece.
    fn pieces<'a>(&self, entries: &'a [u64]) -> impl Iterator<Item = &'a [u64]> {
        self.chunks.iter().enumerate().map(move |(index, &chunk)| {
            let len = if index + 1 == self.chunks.len() { self.last } else { CHUNK };
            let start = chunk as usize * CHUNK;
            &entries[start..start + len]
        })
    }
}

impl Bulk {
    /// For a cache of `slots` slots, and about so many entries.
    pub fn new(slots: u32, entries: usize) -> Bulk {
        let lookup = Lookup::new(slots);
        let parts = vec![Part::default(); lookup.segments.len().div_ceil(PART)];
        let chunks = entries.div_ceil(CHUNK) + parts.len();
        Bulk { lookup, entries: vec![0; chunks * CHUNK], chunks: 0, parts }
    }

    pub fn push(&mut self, key: Key, value: u32) {
        let (stretch, hash) = key.hashes();
        let segment = self.lookup.segment_of(stretch);
        let entry = Entry::new(segment, key.is_diagonal(), Item { hash, value });
        let part = &mut self.parts[segment / PART];
        if part.last == CHUNK || part.chunks.is_empty() {
            part.chunks.push(self.chunks as u32);
            (self.chunks, part.last) = (self.chunks + 1, 0);
            if self.chunks * CHUNK > self.entries.len() {
                self.entries.resize(self.chunks * CHUNK, 0);
            }
        }
        let chunk = part.chunks[part.chunks.len() - 1] as usize;
        self.entries[chunk * CHUNK + part.last] = entry.0;
        part.last += 1;
    }

    /// The lookup, and pairs of values whose keys may be one key.
    pub fn finish(mut self) -> (Lookup, Vec<u32>) {
        let (mut alike, mut sorted) = (Vec::new(), Vec::new());
        for (index, part) in self.parts.iter().enumerate() {
            part.sort(&self.entries, &mut sorted);
            for pair in sorted.windows(2) {
                let place = |entry: Entry| (entry.segment(), entry.hash());
                if place(pair[0]) == place(pair[1]) {
                    alike.extend([pair[0].item().value, pair[1].item().value]);
                }
            }
            let Lookup { segments, units } = &mut self.lookup;
            for entry in &sorted {
                let segment = &mut segments[index * PART + entry.segment()];
                segment.push(units, entry.item());
                segment.diagonals += u32::from(entry.is_diagonal());
            }
        }
        (self.lookup, alike)
    }
}

impl Part {
    /// Sorts its entries by segment and hash.
    fn sort(&self, entries: &[u64], sorted: &mut Vec<Entry>) {
        let mut ends = vec![0u32; PART * BUCKETS];
        for piece in self.pieces(entries) {
            piece.iter().for_each(|&entry| ends[Entry(entry).bucket()] += 1);
        }
        let mut sum = 0;
        for end in &mut ends {
            sum += std::mem::replace(end, sum);
        }
        sorted.clear();
        sorted.resize(sum as usize, Entry::default());
        for piece in self.pieces(entries) {
            for &entry in piece {
                let place = &mut ends[Entry(entry).bucket()];
                sorted[*place as usize] = Entry(entry);
                *place += 1;
            }
        }
        let mut start = 0;
        for end in ends {
            let bucket = start as usize..end as usize;
            if bucket.len() > 1 {
                sorted[bucket].sort_unstable_by_key(|entry| entry.hash());
            }
            start = end;
        }
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
                let may_have = lookup.singles(stretch);
                for (single, _) in singles {
                    let Key::Block(block) = single else { continue };
                    assert!(may_have & (1 << (block % STRETCH)) != 0);
                }
            }
        }
        assert_eq!(lookup.len(), model.len());
        let diagonals: u32 = lookup.segments.iter().map(|segment| segment.diagonals).sum();
        assert_eq!(diagonals as usize, model.iter().filter(|entry| entry.0.is_diagonal()).count());
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
            let mut bulk = Bulk::new(slots, model.len());
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

    #[test]
    fn a_segment_grows_beyond_what_its_head_names() {
        let count = ((UNITS + 2 * NAMES + 3) * UNIT) as u32;
        let key = |value: u32| Key::Block(u64::from(value) * 7919);
        let mut lookup = Lookup::new(1);
        (0..count).for_each(|value| lookup.insert(key(value), value));
        assert_eq!(lookup.len(), count as usize);
        for value in (0..count).rev() {
            assert!(lookup.has(key(value / 2), value / 2));
            lookup.remove(key(value), value);
            assert!(!lookup.has(key(value), value));
            assert_eq!(lookup.len(), value as usize);
        }
        assert!((0..256).all(|value| !lookup.has(key(value), value)));
    }
}
