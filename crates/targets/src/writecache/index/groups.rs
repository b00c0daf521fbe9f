//! What each slot holds: runs of slots, kept by groups of 256 slots.
//!
//! A group covers the entries that one 4 KiB granule of the metadata holds (the first granule
//! begins with the superblock and holds four entries less). It is absent while none of its
//! slots holds anything; otherwise it is two sets of bits (slots in use; slots where a piece
//! starts) and eight bytes per *piece*: a run of slots that hold consecutive blocks with one
//! seq and the same marks. The nth start is the nth piece, so that finding a slot's piece is
//! counting bits. Seqs stand in a small list of the group's own; a cached block costs eight
//! bytes and a share of its group, or next to nothing in a long run. Worst case: every slot of
//! a group of its own commit, sixteen bytes.
//!
//! The granule to write is encoded from its group; there is no image of the metadata.
//! Plain data; the rules are the index's.

use cairn_format::writecache::{ENTRY_BYTES, Entry, Seq};

use super::bits::{self, BITS, Bits};

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

/// Entries that the superblock takes the place of in the first granule.
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
struct Piece(u64);

impl Piece {
    fn new(block: u64, seq: usize, marks: u8) -> Piece {
        debug_assert!(block < BLOCK_END && seq < 256);
        Piece(block | (seq as u64) << 48 | u64::from(marks) << 56)
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
    fn continues(self, len: u32, next: Piece) -> bool {
        self.0 + u64::from(len) == next.0
    }
}

#[derive(Default)]
struct Group {
    used: Bits,
    starts: Bits,
    pieces: Vec<Piece>,
    seqs: Vec<Seq>,
}

impl Group {
    fn end_of(&self, at: u32) -> u32 {
        bits::next_one(&self.starts, at + 1).min(bits::next_zero(&self.used, at + 1))
    }

    /// The piece that holds a used position: its start and its place.
    fn find(&self, at: u32) -> (u32, usize) {
        let start = bits::last_one(&self.starts, at).expect("a used slot is in a piece");
        (start, bits::rank(&self.starts, start))
    }

    fn place_of(&mut self, seq: Seq) -> usize {
        if let Some(place) = self.seqs.iter().rposition(|&known| known == seq) {
            return place;
        }
        if self.seqs.len() > self.pieces.len() + 8 || self.seqs.len() == BITS as usize {
            self.forget_seqs();
        }
        if self.seqs.len() == self.seqs.capacity() {
            self.seqs.reserve_exact((self.seqs.len() / 4).max(2));
        }
        self.seqs.push(seq);
        self.seqs.len() - 1
    }

    /// Drops the seqs that no piece has.
    fn forget_seqs(&mut self) {
        let mut needed = [false; BITS as usize];
        self.pieces.iter().for_each(|piece| needed[piece.seq()] = true);
        let (mut places, mut count) = ([0; BITS as usize], 0);
        for (place, needed) in needed.into_iter().enumerate() {
            places[place] = count;
            count += usize::from(needed);
        }
        let mut at = 0..;
        self.seqs.retain(|_| at.next().is_some_and(|place| needed[place]));
        for piece in &mut self.pieces {
            *piece = Piece::new(piece.block(), places[piece.seq()], piece.marks());
        }
    }

    fn insert(&mut self, at: u32, len: u32, block: u64, seq: Seq, marks: u8) {
        debug_assert!(bits::next_one(&self.used, at) >= at + len, "slots are filled once");
        let piece = Piece::new(block, self.place_of(seq), marks);
        let place = bits::rank(&self.starts, at);
        bits::set(&mut self.used, at, at + len);
        self.add_start(at, place, piece);
        self.merge(at + len);
        self.merge(at);
    }

    /// Like `insert`, with nothing at or after `at` yet.
    fn append(&mut self, at: u32, len: u32, block: u64, seq: Seq, marks: u8) {
        let piece = Piece::new(block, self.place_of(seq), marks);
        bits::set(&mut self.used, at, at + len);
        if at > 0
            && bits::get(&self.used, at - 1)
            && let Some(start) = bits::last_one(&self.starts, at - 1)
            && self.pieces.last().is_some_and(|last| last.continues(at - start, piece))
        {
            return;
        }
        self.pieces.push(piece);
        bits::set(&mut self.starts, at, at + 1);
    }

    fn add_start(&mut self, at: u32, place: usize, piece: Piece) {
        if self.pieces.len() == self.pieces.capacity() {
            let room = BITS as usize - self.pieces.len();
            self.pieces.reserve_exact((self.pieces.len() / 4).clamp(2, room.max(2)));
        }
        self.pieces.insert(place, piece);
        bits::set(&mut self.starts, at, at + 1);
    }

    /// Makes a piece begin at `at`, if a piece covers it.
    fn split(&mut self, at: u32) {
        if at >= BITS || !bits::get(&self.used, at) || bits::get(&self.starts, at) {
            return;
        }
        let (start, place) = self.find(at);
        let rest = Piece(self.pieces[place].0 + u64::from(at - start));
        self.add_start(at, place + 1, rest);
    }

    /// Joins the piece that begins at `at` with the one before, if it continues it.
    fn merge(&mut self, at: u32) {
        if at == 0 || at >= BITS || !bits::get(&self.starts, at) {
            return;
        }
        if !bits::get(&self.used, at - 1) {
            return;
        }
        let (start, place) = self.find(at - 1);
        if self.pieces[place].continues(at - start, self.pieces[place + 1]) {
            self.pieces.remove(place + 1);
            bits::clear(&mut self.starts, at, at + 1);
        }
    }

    /// The places of the pieces that make up `from..to`, which begin and end at its ends.
    fn places(&mut self, from: u32, to: u32) -> std::ops::Range<usize> {
        self.split(from);
        self.split(to);
        bits::rank(&self.starts, from)..bits::rank(&self.starts, to)
    }

    fn remove(&mut self, from: u32, to: u32) {
        let places = self.places(from, to);
        self.pieces.drain(places);
        bits::clear(&mut self.starts, from, to);
        bits::clear(&mut self.used, from, to);
        if self.pieces.len() < self.pieces.capacity() / 2 {
            self.pieces.shrink_to(self.pieces.len() + 2);
        }
    }

    fn mark(&mut self, from: u32, to: u32, set: u8, clear: u8) {
        let places = self.places(from, to);
        for piece in &mut self.pieces[places] {
            let marks = (piece.marks() | set) & !clear;
            *piece = Piece::new(piece.block(), piece.seq(), marks);
        }
        let mut at = to;
        loop {
            self.merge(at);
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
}

/// Every slot of a cache.
pub(in super::super) struct Groups {
    groups: Vec<Option<Box<Group>>>,
    slots: u32,
}

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
        Groups { groups: std::iter::repeat_with(|| None).take(count).collect(), slots }
    }

    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Puts consecutive blocks into slots that hold nothing.
    pub fn insert(&mut self, slot: u32, len: u32, block: u64, seq: Seq, marks: u8) {
        for (group, from, to) in parts(slot, len) {
            let block = block + u64::from(slot_at(group, from) - slot);
            let group = self.groups[group].get_or_insert_default();
            group.insert(from, to - from, block, seq, marks);
        }
    }

    /// Like `insert`, for slots after all that hold anything.
    pub fn append(&mut self, slot: u32, len: u32, block: u64, seq: Seq, marks: u8) {
        for (index, from, to) in parts(slot, len) {
            let block = block + u64::from(slot_at(index, from) - slot);
            if self.groups[index].is_none() {
                self.end_appending(index);
            }
            let group = self.groups[index].get_or_insert_with(|| {
                Box::new(Group { pieces: Vec::with_capacity(BITS as usize), ..Group::default() })
            });
            group.append(from, to - from, block, seq, marks);
        }
    }

    /// Gives back what the last group before `end` has too much.
    pub fn end_appending(&mut self, end: usize) {
        let end = end.min(self.groups.len());
        let before = self.groups[..end].last_mut();
        if let Some(Some(group)) = before {
            group.pieces.shrink_to_fit();
            group.seqs.shrink_to_fit();
        }
    }

    /// Empties slots, all of which hold something.
    pub fn remove(&mut self, slot: u32, len: u32) {
        for (index, from, to) in parts(slot, len) {
            let group = self.groups[index].as_mut().expect("the slots hold something");
            group.remove(from, to);
            if group.pieces.is_empty() {
                self.groups[index] = None;
            }
        }
    }

    /// Sets and clears marks of slots, all of which hold something.
    pub fn mark(&mut self, slot: u32, len: u32, set: u8, clear: u8) {
        for (index, from, to) in parts(slot, len) {
            let group = self.groups[index].as_mut().expect("the slots hold something");
            group.mark(from, to, set, clear);
        }
    }

    fn run(&self, index: usize, (start, end, place): (u32, u32, usize)) -> Run {
        let group = self.groups[index].as_ref().expect("the piece was found in it");
        let piece = group.pieces[place];
        Run {
            slot: slot_at(index, start),
            len: end - start,
            block: piece.block(),
            seq: group.seqs[piece.seq()],
            marks: piece.marks(),
        }
    }

    /// What a slot and those after it hold, without their seq: block, how many, marks.
    pub fn glance(&self, slot: u32) -> Option<(u64, u32, u8)> {
        let (index, at) = (granule_of(slot) as usize, (slot + LEAD) % BITS);
        let group = self.groups.get(index)?.as_ref()?;
        if !bits::get(&group.used, at) {
            return None;
        }
        let (start, place) = group.find(at);
        let piece = group.pieces[place];
        Some((piece.block() + u64::from(at - start), group.end_of(at) - at, piece.marks()))
    }

    /// The whole run that a slot is in.
    pub fn whole(&self, slot: u32) -> Option<Run> {
        let (index, at) = (granule_of(slot) as usize, (slot + LEAD) % BITS);
        let group = self.groups.get(index)?.as_ref()?;
        if !bits::get(&group.used, at) {
            return None;
        }
        let (start, place) = group.find(at);
        Some(self.run(index, (start, group.end_of(at), place)))
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
            if let Some(group) = &self.groups[index]
                && let Some(piece) = group.next(at % BITS)
            {
                let run = self.run(index, piece);
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

    /// Encodes the entries of a granule from its `skip`th on into `out`, as they are on disk
    /// once every commit below `limit` has ended.
    pub fn encode(&self, granule: u32, limit: Seq, block_sectors: u64, out: &mut [u8]) {
        out.fill(0xff);
        const { assert!(Entry::NEVER_USED.seq.0 == u64::MAX) };
        let Some(group) = &self.groups[granule as usize] else { return };
        let lead = if granule == 0 { LEAD } else { 0 };
        let mut start = bits::next_one(&group.starts, 0);
        for piece in &group.pieces {
            let (end, seq) = (group.end_of(start), group.seqs[piece.seq()]);
            if piece.marks() & FREED == 0 && seq < limit {
                let from = (start - lead) as usize * ENTRY_BYTES;
                let to = (end - lead) as usize * ENTRY_BYTES;
                let mut sector = piece.block() * block_sectors;
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
        for group in self.groups.iter().flatten() {
            assert!(!group.pieces.is_empty(), "an empty group is absent");
            assert_eq!(group.pieces.len(), bits::rank(&group.starts, BITS));
            for word in 0..4 {
                assert_eq!(group.starts[word] & !group.used[word], 0, "a piece starts in use");
            }
            assert!(group.pieces.iter().all(|piece| piece.seq() < group.seqs.len()));
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
