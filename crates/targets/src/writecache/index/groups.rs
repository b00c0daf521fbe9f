//! The block in each slot: runs of slots, kept by groups of 256 slots.
//!
//! A group covers the entries that one 4 KiB granule of the metadata holds (the first granule
//! begins with the superblock and holds four entries fewer). A group is absent while all its slots
//! are empty. Otherwise it has two sets of bits (slots in use; slots where a piece starts) and
//! eight bytes per *piece*: a run of slots that hold consecutive blocks with one seq and the same
//! marks. The nth start is the nth piece, so that a slot's piece is found by counting bits. The
//! group stores its seqs in a small list. Both lists allocate units of sixteen words from a pool. A
//! cached block costs eight bytes and a share of its group, a bit more than one, or next to nothing
//! in a long run. Worst case: every slot of a group has its own commit, seventeen bytes.
//!
//! The granule to write is encoded from its group; there is no image of the metadata in memory.
//! This file holds plain data; the rules are in `index`.

use std::ops::Range;

use cairn_format::writecache::{ENTRY_BYTES, Entry, Seq};

use super::bits::{self, BITS, Bits};
use super::list::{List, Words};
use super::pool::{Pool, Pooled, Slab};

/// Being written back (I10).
pub(in super::super) const IN_WRITEBACK: u8 = 1;
/// Being taken out by a discard or write-zeroes.
pub(in super::super) const LEAVING: u8 = 2;
/// A newer version of the block is cached.
pub(in super::super) const COVERED: u8 = 4;
/// Its entry is free in the metadata, or is being made so.
pub(in super::super) const FREED: u8 = 8;
/// In the lookup by a diagonal.
pub(super) const DIAGONAL: u8 = 16;

/// Blocks from this one on are not supported.
pub(in super::super) const BLOCK_END: u64 = 1 << 48;

/// Entries whose space the superblock takes in the first granule.
const LEAD: u32 = 4;

/// A run of slots that hold consecutive blocks with one seq and the same marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Run {
    pub slot: u32,
    pub len: u32,
    pub block: u64,
    pub seq: Seq,
    pub marks: u8,
}

impl Run {
    pub fn has(&self, mark: u8) -> bool {
        self.marks & mark != 0
    }

    /// The slot after its last.
    pub fn end(&self) -> u32 {
        self.slot + self.len
    }

    /// The part of it within `from..to`, which it overlaps.
    fn clip(self, from: u32, to: u32) -> Run {
        let slot = self.slot.max(from);
        let block = self.block + u64::from(slot - self.slot);
        Run { slot, len: self.end().min(to) - slot, block, ..self }
    }
}

/// The granule of the metadata that holds a slot's entry.
pub(in super::super) fn granule_of(slot: u32) -> u32 {
    (slot + LEAD) / BITS
}

/// The first slot of the next granule.
pub(in super::super) fn granule_end(slot: u32) -> u32 {
    (granule_of(slot) + 1) * BITS - LEAD
}

/// A piece: block in the low 48 bits, the place of its seq in the next 8, its marks on top.
#[derive(Clone, Copy)]
struct Held(u64);

impl Held {
    fn new(block: u64, seq: usize, marks: u8) -> Held {
        debug_assert!(block < BLOCK_END && seq < 256);
        Held(block | (seq as u64) << 48 | u64::from(marks) << 56)
    }

    fn block(self) -> u64 {
        self.0 & (BLOCK_END - 1)
    }

    fn seq(self) -> usize {
        (self.0 >> 48) as u8 as usize
    }

    fn marks(self) -> u8 {
        (self.0 >> 56) as u8
    }

    /// True if `next`, `len` slots on, continues this piece.
    fn continues(self, len: u32, next: Held) -> bool {
        self.0 + u64::from(len) == next.0
    }
}

/// The content of 256 slots. Its first two cache lines tell where the third one is that a lookup
/// needs.
#[derive(Clone, Default)]
pub(super) struct Group {
    used: Bits,
    starts: Bits,
    pieces: List<16>,
    seqs: List<16>,
    /// The next unused group, while this one is unused.
    link: u32,
}

impl Pooled for Group {
    fn link(&self) -> u32 {
        self.link
    }

    fn set_link(&mut self, other: u32) {
        self.link = other;
    }
}

impl Group {
    fn piece(&self, words: &Pool<Words>, place: usize) -> Held {
        Held(self.pieces.get(words, place))
    }

    fn end_of(&self, at: u32) -> u32 {
        bits::next_one(&self.starts, at + 1).min(bits::next_zero(&self.used, at + 1))
    }

    /// The piece that holds a used position: its start and its place.
    fn find(&self, at: u32) -> (u32, usize) {
        let start = bits::last_one(&self.starts, at).expect("a used slot is in a piece");
        (start, bits::rank(&self.starts, start))
    }

    fn place_of(&mut self, words: &mut Pool<Words>, seq: Seq) -> usize {
        let mut places = (0..self.seqs.len()).rev();
        if let Some(place) = places.find(|&place| self.seqs.get(words, place) == seq.0) {
            return place;
        }
        if self.seqs.len() > self.pieces.len() + 8 || self.seqs.len() == BITS as usize {
            self.forget_seqs(words);
        }
        self.seqs.push(words, seq.0);
        self.seqs.len() - 1
    }

    /// Drops the seqs that no piece has.
    fn forget_seqs(&mut self, words: &mut Pool<Words>) {
        let mut needed = [false; BITS as usize];
        self.pieces.iter(words).for_each(|piece| needed[Held(piece).seq()] = true);
        let (mut places, mut count) = ([0; BITS as usize], 0);
        for place in (0..self.seqs.len()).filter(|&place| needed[place]) {
            let seq = self.seqs.get(words, place);
            self.seqs.set(words, count, seq);
            (places[place], count) = (count, count + 1);
        }
        self.seqs.truncate(words, count);
        for place in 0..self.pieces.len() {
            let held = self.piece(words, place);
            let moved = Held::new(held.block(), places[held.seq()], held.marks());
            self.pieces.set(words, place, moved.0);
        }
    }

    fn insert(&mut self, words: &mut Pool<Words>, (at, to): (u32, u32), run: Content) {
        debug_assert!(bits::next_one(&self.used, at) >= to, "slots are filled once");
        let held = Held::new(run.block, self.place_of(words, run.seq), run.marks);
        let mut place = 0;
        if at > 0 && bits::get(&self.used, at - 1) {
            let (start, before) = self.find(at - 1);
            if self.piece(words, before).continues(at - start, held) {
                bits::set(&mut self.used, at, to);
                return self.merge(words, to);
            }
            place = before + 1;
        } else if at > 0 {
            place = bits::rank(&self.starts, at);
        }
        bits::set(&mut self.used, at, to);
        self.add_start(words, at, place, held);
        self.merge(words, to);
    }

    /// Like `insert`, with nothing at or after `at` yet.
    fn append(&mut self, words: &mut Pool<Words>, (at, to): (u32, u32), run: Content) {
        let held = Held::new(run.block, self.place_of(words, run.seq), run.marks);
        bits::set(&mut self.used, at, to);
        if at > 0
            && bits::get(&self.used, at - 1)
            && let Some(start) = bits::last_one(&self.starts, at - 1)
            && self.piece(words, self.pieces.len() - 1).continues(at - start, held)
        {
            return;
        }
        self.pieces.push(words, held.0);
        bits::set(&mut self.starts, at, at + 1);
    }

    fn add_start(&mut self, words: &mut Pool<Words>, at: u32, place: usize, held: Held) {
        self.pieces.insert(words, place, held.0);
        bits::set(&mut self.starts, at, at + 1);
    }

    /// Makes a piece begin at `at`, if a piece covers it.
    fn split(&mut self, words: &mut Pool<Words>, at: u32) {
        if at >= BITS || !bits::get(&self.used, at) || bits::get(&self.starts, at) {
            return;
        }
        let (start, place) = self.find(at);
        let rest = Held(self.piece(words, place).0 + u64::from(at - start));
        self.add_start(words, at, place + 1, rest);
    }

    /// Joins the piece that begins at `at` with the one before, if it continues it.
    fn merge(&mut self, words: &mut Pool<Words>, at: u32) {
        if at == 0 || at >= BITS || !bits::get(&self.starts, at) {
            return;
        }
        if !bits::get(&self.used, at - 1) {
            return;
        }
        let (start, place) = self.find(at - 1);
        let (held, next) = (self.piece(words, place), self.piece(words, place + 1));
        if held.continues(at - start, next) {
            self.pieces.drain(words, place + 1..place + 2);
            bits::clear(&mut self.starts, at, at + 1);
        }
    }

    /// The places of the pieces that make up `from..to`, which begin and end at its ends.
    fn places(&mut self, words: &mut Pool<Words>, from: u32, to: u32) -> Range<usize> {
        self.split(words, from);
        self.split(words, to);
        bits::rank(&self.starts, from)..bits::rank(&self.starts, to)
    }

    fn remove(&mut self, words: &mut Pool<Words>, from: u32, to: u32) {
        let places = self.places(words, from, to);
        self.pieces.drain(words, places);
        bits::clear(&mut self.starts, from, to);
        bits::clear(&mut self.used, from, to);
    }

    fn mark(&mut self, words: &mut Pool<Words>, from: u32, to: u32, set: u8, clear: u8) {
        for place in self.places(words, from, to) {
            let held = self.piece(words, place);
            let marks = (held.marks() | set) & !clear;
            self.pieces.set(words, place, Held::new(held.block(), held.seq(), marks).0);
        }
        let mut at = to;
        loop {
            self.merge(words, at);
            match at.checked_sub(1).and_then(|below| bits::last_one(&self.starts, below)) {
                Some(start) if at > from && start >= from => at = start,
                _ => break,
            }
        }
    }

    /// The first piece at or after `at`, whole: start, end, place.
    fn next(&self, at: u32) -> Option<(u32, u32, usize)> {
        let at = bits::next_one(&self.used, at);
        if at == BITS {
            return None;
        }
        let (start, place) = self.find(at);
        Some((start, self.end_of(at), place))
    }

    /// Every run of it, in order, as the group of this index.
    fn each(&self, words: &Pool<Words>, index: usize, mut see: impl FnMut(Run)) {
        let mut at = 0;
        for held in self.pieces.iter(words).map(Held) {
            let start = bits::next_one(&self.starts, at);
            at = self.end_of(start);
            see(self.run(words, index, (start, at), held));
        }
    }

    fn run(&self, words: &Pool<Words>, index: usize, (start, end): (u32, u32), held: Held) -> Run {
        Run {
            slot: slot_at(index, start),
            len: end - start,
            block: held.block(),
            seq: Seq(self.seqs.get(words, held.seq())),
            marks: held.marks(),
        }
    }
}

/// What consecutive slots are filled with.
#[derive(Clone, Copy)]
struct Content {
    block: u64,
    seq: Seq,
    marks: u8,
}

/// Every slot of a cache.
pub(in super::super) struct Groups {
    /// The names of the groups.
    names: Vec<u32>,
    groups: Pool<Group>,
    words: Pool<Words>,
    slots: u32,
}

/// The name of a group that is absent.
const ABSENT: u32 = u32::MAX;

/// Cuts a range of slots at the borders of groups: group, and positions in it.
fn parts(slot: u32, len: u32) -> impl Iterator<Item = (usize, u32, u32)> {
    let (mut at, end) = (slot + LEAD, slot + LEAD + len);
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let (group, from) = (at / BITS, at % BITS);
        let to = (end - group * BITS).min(BITS);
        at = (group + 1) * BITS;
        Some((group as usize, from, to))
    })
}

fn slot_at(group: usize, at: u32) -> u32 {
    group as u32 * BITS + at - LEAD
}

impl Groups {
    pub fn new(slots: u32) -> Groups {
        let count = if slots == 0 { 0 } else { granule_of(slots - 1) as usize + 1 };
        Groups { names: vec![ABSENT; count], groups: Pool::new(), words: Pool::new(), slots }
    }

    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// True if memory should be added soon; see [`Pool`].
    pub fn is_low(&self) -> bool {
        self.groups.is_low() || self.words.is_low()
    }

    /// Adds memory.
    pub fn add(&mut self, groups: Slab<Group>, words: Slab<Words>) {
        self.groups.add(groups);
        self.words.add(words);
    }

    fn group(&self, index: usize) -> Option<&Group> {
        let name = *self.names.get(index)?;
        (name != ABSENT).then(|| self.groups.get(name))
    }

    /// A group that is there.
    fn present(&mut self, index: usize) -> (&mut Group, &mut Pool<Words>) {
        assert_ne!(self.names[index], ABSENT, "the slots hold something");
        (self.groups.get_mut(self.names[index]), &mut self.words)
    }

    fn get_or_add(&mut self, index: usize) -> (&mut Group, &mut Pool<Words>) {
        if self.names[index] == ABSENT {
            let name = self.groups.take();
            *self.groups.get_mut(name) = Group::default();
            self.names[index] = name;
        }
        self.present(index)
    }

    /// Puts consecutive blocks into slots that hold nothing.
    pub fn insert(&mut self, slot: u32, len: u32, block: u64, seq: Seq, marks: u8) {
        for (index, from, to) in parts(slot, len) {
            let block = block + u64::from(slot_at(index, from) - slot);
            let (group, words) = self.get_or_add(index);
            group.insert(words, (from, to), Content { block, seq, marks });
        }
    }

    /// Like `insert`, for slots after all that hold anything.
    pub fn append(&mut self, slot: u32, len: u32, block: u64, seq: Seq, marks: u8) {
        for (index, from, to) in parts(slot, len) {
            let block = block + u64::from(slot_at(index, from) - slot);
            let (group, words) = self.get_or_add(index);
            group.append(words, (from, to), Content { block, seq, marks });
        }
    }

    /// Empties slots, all of which hold something.
    pub fn remove(&mut self, slot: u32, len: u32) {
        for (index, from, to) in parts(slot, len) {
            let (group, words) = self.present(index);
            group.remove(words, from, to);
            if group.pieces.len() == 0 {
                group.seqs.truncate(words, 0);
                self.groups.give(self.names[index]);
                self.names[index] = ABSENT;
            }
        }
    }

    /// Sets and clears marks of slots, all of which hold something.
    pub fn mark(&mut self, slot: u32, len: u32, set: u8, clear: u8) {
        for (index, from, to) in parts(slot, len) {
            let (group, words) = self.present(index);
            group.mark(words, from, to, set, clear);
        }
    }

    /// The block in a slot, how many slots continue it, and the marks: like [`Self::at`], without
    /// the seq.
    pub fn glance(&self, slot: u32) -> Option<(u64, u32, u8)> {
        let (index, at) = (granule_of(slot) as usize, (slot + LEAD) % BITS);
        let group = self.group(index)?;
        if !bits::get(&group.used, at) {
            return None;
        }
        let (start, place) = group.find(at);
        let held = group.piece(&self.words, place);
        Some((held.block() + u64::from(at - start), group.end_of(at) - at, held.marks()))
    }

    /// The whole run that a slot is in.
    pub fn whole(&self, slot: u32) -> Option<Run> {
        let (index, at) = (granule_of(slot) as usize, (slot + LEAD) % BITS);
        let group = self.group(index)?;
        if !bits::get(&group.used, at) {
            return None;
        }
        let (start, place) = group.find(at);
        let held = group.piece(&self.words, place);
        Some(group.run(&self.words, index, (start, group.end_of(at)), held))
    }

    /// The run from a slot on.
    pub fn at(&self, slot: u32) -> Option<Run> {
        self.whole(slot).map(|run| run.clip(slot, u32::MAX))
    }

    /// The first run in `from..to`, cut to it.
    pub fn next(&self, from: u32, to: u32) -> Option<Run> {
        let (mut at, end) = (from + LEAD, to.min(self.slots) + LEAD);
        while at < end {
            let index = (at / BITS) as usize;
            if let Some(group) = self.group(index)
                && let Some((start, end, place)) = group.next(at % BITS)
            {
                let held = group.piece(&self.words, place);
                let run = group.run(&self.words, index, (start, end), held);
                return (run.slot < to).then(|| run.clip(from, to));
            }
            at = (index as u32 + 1) * BITS;
        }
        None
    }

    /// The runs in `from..to`, in order, cut to it.
    pub fn runs(&self, from: u32, to: u32) -> impl Iterator<Item = Run> {
        let mut at = from;
        std::iter::from_fn(move || {
            let run = self.next(at, to)?;
            at = run.end();
            Some(run)
        })
    }

    /// Calls `see` with every run, in order; much faster than a lookup of each.
    pub fn each(&self, mut see: impl FnMut(Run)) {
        for index in 0..self.names.len() {
            if let Some(group) = self.group(index) {
                group.each(&self.words, index, &mut see);
            }
        }
    }

    /// Encodes the entries of a granule from its `skip`th on into `out`, as they are on disk
    /// once every commit below `limit` has ended.
    pub fn encode(&self, granule: u32, limit: Seq, block_sectors: u64, out: &mut [u8]) {
        out.fill(0xff);
        const { assert!(Entry::NEVER_USED.seq.0 == u64::MAX) };
        let Some(group) = self.group(granule as usize) else { return };
        let lead = if granule == 0 { LEAD } else { 0 };
        let mut start = bits::next_one(&group.starts, 0);
        for held in group.pieces.iter(&self.words).map(Held) {
            let end = group.end_of(start);
            let seq = Seq(group.seqs.get(&self.words, held.seq()));
            if held.marks() & FREED == 0 && seq < limit {
                let from = (start - lead) as usize * ENTRY_BYTES;
                let to = (end - lead) as usize * ENTRY_BYTES;
                let mut sector = held.block() * block_sectors;
                for bytes in out[from..to].as_chunks_mut::<ENTRY_BYTES>().0 {
                    *bytes = Entry { original_sector: sector, seq }.encode();
                    sector += block_sectors;
                }
            }
            start = bits::next_one(&group.starts, end);
        }
    }

    /// Checks what must hold of every group.
    pub fn check(&self) {
        for group in (0..self.names.len()).filter_map(|index| self.group(index)) {
            assert!(group.pieces.len() > 0, "an empty group is absent");
            assert_eq!(group.pieces.len(), bits::rank(&group.starts, BITS));
            for word in 0..4 {
                assert_eq!(group.starts[word] & !group.used[word], 0, "a piece starts in use");
            }
            let mut held = group.pieces.iter(&self.words).map(Held);
            assert!(held.all(|held| held.seq() < group.seqs.len()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{Strategy, any, prop_oneof, proptest};

    #[derive(Clone, Debug)]
    enum Step {
        Insert { slot: u32, len: u32, block: u64, seq: u64 },
        Remove { slot: u32, len: u32 },
        Mark { slot: u32, len: u32, set: u8, clear: u8 },
    }

    fn step() -> impl Strategy<Value = Step> {
        let place = (0u32..700, 1u32..300);
        prop_oneof![
            (place.clone(), 0u64..3, 0u64..600).prop_map(|((slot, len), shift, seq)| {
                Step::Insert { slot, len, block: u64::from(slot) + shift * 1000, seq: seq / 200 }
            }),
            (0u32..700, 0u64..600).prop_map(|(slot, seq)| {
                Step::Insert { slot, len: 1, block: u64::from(slot), seq }
            }),
            place.clone().prop_map(|(slot, len)| Step::Remove { slot, len }),
            (place, 0u8..16, any::<bool>()).prop_map(|((slot, len), marks, set)| {
                let (set, clear) = if set { (marks, 0) } else { (0, marks) };
                Step::Mark { slot, len, set, clear }
            }),
        ]
    }

    type Naive = Vec<Option<(u64, u64, u8)>>;

    fn apply(groups: &mut Groups, naive: &mut Naive, step: Step) {
        let slots = naive.len() as u32;
        let (Step::Insert { slot, len, .. }
        | Step::Remove { slot, len }
        | Step::Mark { slot, len, .. }) = step;
        let (slot, end) = (slot % slots, (slot % slots + len).min(slots));
        let wants_used = !matches!(step, Step::Insert { .. });
        let fits = (slot..end).take_while(|&at| naive[at as usize].is_some() == wants_used);
        let len = fits.count() as u32;
        if len == 0 {
            return;
        }
        let cells = &mut naive[slot as usize..(slot + len) as usize];
        match step {
            Step::Insert { block, seq, .. } => {
                groups.insert(slot, len, block, Seq(seq), 0);
                (block..).zip(cells).for_each(|(block, cell)| *cell = Some((block, seq, 0)));
            }
            Step::Remove { .. } => {
                groups.remove(slot, len);
                cells.fill(None);
            }
            Step::Mark { set, clear, .. } => {
                groups.mark(slot, len, set, clear);
                cells.iter_mut().flatten().for_each(|cell| cell.2 = (cell.2 | set) & !clear);
            }
        }
    }

    proptest! {
        #[test]
        fn runs_hold_what_single_slots_would(
            slots in 1u32..700,
            steps in proptest::collection::vec(step(), 1..120),
            limit in 0u64..600,
        ) {
            let (mut groups, mut naive) = (Groups::new(slots), vec![None; slots as usize]);
            for step in steps {
                apply(&mut groups, &mut naive, step);
            }
            groups.check();
            let mut seen = vec![None; slots as usize];
            let mut last = None;
            for run in groups.runs(0, slots) {
                assert_eq!(groups.whole(run.slot), Some(run));
                for ahead in 0..run.len {
                    let cell = (run.block + u64::from(ahead), run.seq.0, run.marks);
                    seen[(run.slot + ahead) as usize] = Some(cell);
                }
                let joined = last.is_some_and(|last: Run| {
                    last.end() == run.slot && granule_of(last.slot) == granule_of(run.slot)
                        && (last.block + u64::from(last.len), last.seq, last.marks)
                            == (run.block, run.seq, run.marks)
                });
                assert!(!joined, "what can be one run is one");
                last = Some(run);
            }
            assert_eq!(seen, naive);
            check_encoding(&groups, &naive, limit);
        }
    }

    fn check_encoding(groups: &Groups, naive: &Naive, limit: u64) {
        let granules = granule_of(naive.len() as u32 - 1) + 1;
        let mut bytes = Vec::new();
        for granule in 0..granules {
            let mut out = vec![0; if granule == 0 { 4096 - 64 } else { 4096 }];
            groups.encode(granule, Seq(limit), 8, &mut out);
            bytes.extend(out);
        }
        for (entry, cell) in Entry::iter(&bytes).zip(naive) {
            let expected = match *cell {
                Some((block, seq, marks)) if seq < limit && marks & FREED == 0 => {
                    Entry { original_sector: block * 8, seq: Seq(seq) }
                }
                _ => Entry::NEVER_USED,
            };
            assert_eq!(entry, expected);
        }
    }
}
