//! Which leaves are in memory. A leaf that the device has as it is in memory may be absent: its
//! extents are read when they are needed. The nodes above the leaves are no more than positions,
//! and stay.
//!
//! # Invariants
//! M1. An absent leaf has on the device, in its bsets up to its end, the extents that it had in
//!     memory when it left, but for stale ones, which lead nowhere. So each change of its extents
//!     was in a leaf durably before it left: no checkpoint, session or plan has any of it to write.
//! M2. Nothing changes an absent leaf, and no plan replaces it. Who looks at extents, or changes
//!     them, has made the leaves present before, under the same lock ([`Tree::absent_in`]).
//! M3. What was read is laid into the leaf only if it is absent still, at the same place and with
//!     the same end: so it lacks no bset.
//! M4. A leaf leaves in two steps: it is marked, the requests end that had found it, and it leaves
//!     if nothing has found or changed it since. So the end of a request finds the leaf of its
//!     verdict.
//!
//! A change counts as written once a checkpoint has ended that began later, at a time when no
//! session writes leaves (`Session::trim`).
//!
//! The order in which leaves leave is that of a clock: a leaf that was found since the hand passed
//! last stays.

use cairn_block::sync::atomic::{AtomicU64, Ordering};
use cairn_format::bcache::{Key, Pointer};

use super::extents::{Extents, LAST, Position};
use super::unwritten::Span;
use super::{Node, Tree};
use crate::bcache::canary::{Bug, planted};
use crate::bcache::work;

/// Bytes of memory of an extent, about: a chunk is at least half full.
pub(in super::super) const EXTENT_BYTES: u64 = 32;
/// How many leaves are read at once at most.
pub(in super::super) const READ_AT_ONCE: usize = 16;
/// Units of work to look at a node, and to drop an extent.
const LOOK: usize = 4;

/// Where the extents of a leaf are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// In memory, and found since the hand passed.
    Used,
    /// In memory.
    Idle,
    /// In memory until the requests have ended that had found it (M4).
    Leaving,
    /// On the device alone: so many, and whether some are dirty.
    Absent { extents: u32, has_dirty: bool },
}

/// The presence of a leaf as a word: reads that look at the tree beside each other say in it that
/// they have found the leaf. All else changes it alone.
pub(super) struct PresenceWord(AtomicU64);

const USED: u64 = 0;
const IDLE: u64 = 1;
const LEAVING: u64 = 2;
const ABSENT: u64 = 3;
/// The bits of these words.
const STATE: u64 = 3;
/// Where an absent leaf has a bit for dirty extents, and their number.
const DIRTY_SHIFT: u32 = 2;
const COUNT_SHIFT: u32 = 32;

impl PresenceWord {
    pub fn new(presence: Presence) -> PresenceWord {
        let word = PresenceWord(AtomicU64::new(USED));
        word.set(presence);
        word
    }

    pub fn get(&self) -> Presence {
        let word = self.0.load(Ordering::Relaxed);
        match word & STATE {
            USED => Presence::Used,
            IDLE => Presence::Idle,
            LEAVING => Presence::Leaving,
            _ => Presence::Absent {
                extents: (word >> COUNT_SHIFT) as u32,
                has_dirty: word >> DIRTY_SHIFT & 1 == 1,
            },
        }
    }

    pub fn set(&self, presence: Presence) {
        let word = match presence {
            Presence::Used => USED,
            Presence::Idle => IDLE,
            Presence::Leaving => LEAVING,
            Presence::Absent { extents, has_dirty } => {
                ABSENT | u64::from(has_dirty) << DIRTY_SHIFT | u64::from(extents) << COUNT_SHIFT
            }
        };
        self.0.store(word, Ordering::Relaxed);
    }

    #[inline]
    pub fn is_absent(&self) -> bool {
        self.0.load(Ordering::Relaxed) & STATE == ABSENT
    }

    /// The leaf, which is present, was found. Nothing is written if it was before.
    #[inline]
    pub fn touch(&self) {
        if self.0.load(Ordering::Relaxed) != USED {
            self.0.store(USED, Ordering::Relaxed);
        }
    }
}

/// An absent leaf: where it is, and what each change of it changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct LeafPlace {
    pub pointer: Pointer,
    /// Its position, and that of the leaf before it.
    pub position: Position,
    pub after: Position,
    /// Where its bsets end, in bytes.
    pub end: usize,
    /// The random number of its bsets.
    pub seq: u64,
    /// Some of its extents are dirty.
    pub has_dirty: bool,
}

/// Which extents a scan looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Which {
    All,
    /// Dirty ones; it finds others as well.
    Dirty,
}

/// How far a scan got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum Scanned {
    /// Up to here; there is more.
    To(Position),
    /// The next leaves are absent.
    Absent(Vec<LeafPlace>),
    /// All, or as much as was looked for.
    All,
}

/// The leaves in memory.
#[derive(Default)]
pub(super) struct Present {
    /// How many extents are in memory.
    pub extents: usize,
    /// How many leaves are absent.
    absent: usize,
    /// Leaves are marked, or about to be.
    is_marking: bool,
    /// The number of the next checkpoint, and of the last one that has ended.
    next: u32,
    settled: u32,
    /// The leaf that the hand points to.
    hand: usize,
}

impl Present {
    /// Of these leaves.
    pub fn of<'n>(leaves: impl Iterator<Item = &'n Node>) -> Present {
        let mut present = Present::default();
        for leaf in leaves {
            match leaf.is_absent() {
                true => present.absent += 1,
                false => present.extents += leaf.count(),
            }
        }
        present
    }

    /// True if each leaf is present, and none is about to leave: no search for absent ones is
    /// needed.
    fn is_whole(&self) -> bool {
        self.absent == 0 && !self.is_marking
    }

    /// The number of the checkpoint that writes what changes now.
    pub fn number(&self) -> u32 {
        self.next + 1
    }
}

impl Tree {
    /// Bytes of memory of the extents, about.
    pub fn memory(&self) -> u64 {
        self.present.extents as u64 * EXTENT_BYTES
    }

    /// All leaves count as changed now.
    pub fn keep_all(&mut self) {
        let number = self.present.number();
        self.levels[0].iter_mut().for_each(|leaf| leaf.changed_in = number);
    }

    /// A checkpoint begins: what changes later belongs to the next one.
    pub fn begin_checkpoint(&mut self) {
        self.present.next += 1;
    }

    /// The last checkpoint that has begun has ended.
    pub fn end_checkpoint(&mut self) {
        self.present.settled = self.present.next;
    }

    /// Adds the bytes of memory of the next leaves with changes that no checkpoint has written,
    /// from the leaf `next` on. True if there are more to look at.
    pub fn count_unwritten(&self, next: &mut usize, bytes: &mut u64) -> bool {
        let leaves = &self.levels[0][(*next).min(self.levels[0].len())..];
        let some = &leaves[..leaves.len().min(work::piece().div_ceil(LOOK))];
        let is_unwritten =
            |leaf: &&Node| !leaf.is_absent() && leaf.changed_in > self.present.settled;
        let extents: usize = some.iter().filter(is_unwritten).map(Node::count).sum();
        *bytes += extents as u64 * EXTENT_BYTES;
        *next += some.len();
        some.len() < leaves.len()
    }

    /// How many of these keys, from the first on, begin in so many leaves at most.
    pub fn prefix_in(&self, keys: &[Key], most: usize) -> usize {
        let (mut last, mut leaves) = (None, 0);
        let is_beyond = |key: &Key| {
            let leaf = Some(self.leaf_of(key.begin()));
            leaves += usize::from(leaf != last);
            last = leaf;
            leaves > most
        };
        keys.iter().position(is_beyond).unwrap_or(keys.len())
    }

    /// The absent leaves with sectors of a span; some of them if there are many. The others are
    /// found (M4).
    pub fn absent_in(&self, span: &Span) -> Vec<LeafPlace> {
        self.absent_between((span.inode, span.start), (span.inode, span.end))
    }

    /// The same of all that begins between two positions.
    pub fn absent_between(&self, from: Position, upto: Position) -> Vec<LeafPlace> {
        let mut absent = Vec::new();
        if self.present.is_whole() {
            return absent;
        }
        let first = self.leaf_of(from);
        for index in first..self.levels[0].len() {
            if index > first && self.after(0, index) >= upto || absent.len() == READ_AT_ONCE {
                break;
            }
            absent.extend(self.place_if_absent(index));
        }
        absent
    }

    /// The absent leaves from this one on that follow each other, some of them, for a scan.
    pub(super) fn absent_row(&self, first: usize, upto: Position, which: Which) -> Vec<LeafPlace> {
        let leaves = self.levels[0].iter().enumerate().skip(first).take(READ_AT_ONCE);
        let is_wanted = |(index, leaf): &(usize, &Node)| match leaf.presence() {
            Presence::Absent { has_dirty, .. } => {
                let is_inside = *index == first || self.after(0, *index) < upto;
                is_inside && (has_dirty || which == Which::All)
            }
            _ => false,
        };
        let row = leaves.take_while(is_wanted);
        row.filter_map(|(index, _)| self.place_if_absent(index)).collect()
    }

    /// The same up to the last leaf. None if the first is present: it is found.
    pub fn absent_from(&self, first: usize) -> Vec<LeafPlace> {
        match self.place_if_absent(first) {
            Some(_) => self.absent_row(first, LAST, Which::All),
            None => Vec::new(),
        }
    }

    /// The place of a leaf, if it is absent. Otherwise it is found.
    #[inline]
    pub(super) fn place_if_absent(&self, index: usize) -> Option<LeafPlace> {
        let leaf = &self.levels[0][index];
        if !leaf.is_absent() {
            leaf.touch();
            return None;
        }
        Some(self.place_of(index))
    }

    /// The place of an absent leaf.
    #[cold]
    fn place_of(&self, index: usize) -> LeafPlace {
        let leaf = &self.levels[0][index];
        LeafPlace {
            pointer: leaf.pointer(),
            position: leaf.position(),
            after: self.after(0, index),
            end: leaf.end(),
            seq: leaf.seq(),
            has_dirty: matches!(leaf.presence(), Presence::Absent { has_dirty: true, .. }),
        }
    }

    /// Looks at the extents that end behind `from` and begin before `upto`, in order, as long as
    /// `look` answers true; so many that the lock is not held for long. Absent leaves without dirty
    /// extents are passed over if `which` says so.
    pub fn scan(
        &self,
        from: Position,
        upto: Position,
        which: Which,
        mut look: impl FnMut(&Key) -> bool,
    ) -> Scanned {
        let (mut at, mut units) = (from, 0);
        while at < upto {
            let index = self.leaf_of(at);
            let leaf = &self.levels[0][index];
            if leaf.position() <= at {
                // No leaf lies behind it.
                return Scanned::All;
            }
            units += 1;
            match leaf.presence() {
                Presence::Absent { has_dirty: false, .. } if which == Which::Dirty => {}
                Presence::Absent { .. } if at > from => return Scanned::To(at),
                Presence::Absent { .. } => {
                    return Scanned::Absent(self.absent_row(index, upto, which));
                }
                _ => {
                    for key in leaf.extents().iter_from(at).take_while(|key| key.begin() < upto) {
                        if units >= work::piece() {
                            return Scanned::To(key.begin().max(at));
                        }
                        work::did(1);
                        units += if key.is_dirty() { 4 } else { 1 };
                        if !look(key) {
                            return Scanned::All;
                        }
                    }
                }
            }
            at = leaf.position();
            if units >= work::piece() {
                return Scanned::To(at);
            }
        }
        Scanned::All
    }

    /// The index of the leaf that was at this place, if it is absent and nothing has changed it
    /// since (M3).
    fn still_absent(&self, place: &LeafPlace) -> Option<usize> {
        let index = self.levels[0].partition_point(|leaf| leaf.position() < place.position);
        let is_it = self.levels[0].get(index)?.is_absent()
            && self.place_if_absent(index).as_ref() == Some(place);
        is_it.then_some(index)
    }

    /// True if the leaf at this place is absent, and nothing has changed it since.
    pub fn is_still_absent(&self, place: &LeafPlace) -> bool {
        self.still_absent(place).is_some()
    }

    /// The extents of an absent leaf were read. The leaf becomes present, unless it has changed
    /// since (M3).
    pub fn enter(&mut self, place: &LeafPlace, extents: &[Key]) {
        let Some(index) = self.still_absent(place) else { return };
        work::did(extents.len().min(work::piece()));
        self.present.extents += extents.len();
        self.present.absent -= 1;
        self.levels[0][index].enter(Extents::of(extents));
    }

    /// Of the extents of an absent leaf, these lead somewhere. It stays absent.
    pub fn settle_absent(&mut self, place: &LeafPlace, extents: &[Key]) {
        let Some(index) = self.still_absent(place) else { return };
        let (count, has_dirty) = (extents.len() as u32, extents.iter().any(Key::is_dirty));
        self.levels[0][index].set_presence(Presence::Absent { extents: count, has_dirty });
    }

    /// Marks leaves to leave until the rest takes `most` bytes, or the hand has passed each leaf
    /// once: so one that was just read stays. True if there are more to look at: `looked` counts
    /// the leaves, and `marked` the extents of those that are marked.
    pub fn mark_leaving(&mut self, most: u64, (looked, marked): (&mut usize, &mut usize)) -> bool {
        let (mut units, leaves) = (0, self.levels[0].len());
        self.present.is_marking = true;
        while *looked < leaves && units < work::piece() {
            let rest = self.present.extents.saturating_sub(*marked);
            if rest as u64 * EXTENT_BYTES <= most {
                return false;
            }
            (units, *looked) = (units + LOOK, *looked + 1);
            self.present.hand = (self.present.hand + 1) % leaves;
            let (settled, leaf) = (self.present.settled, &self.levels[0][self.present.hand]);
            let is_written = leaf.changed_in <= settled || planted(Bug::DropUnwritten);
            match leaf.presence() {
                Presence::Used => leaf.set_presence(Presence::Idle),
                Presence::Idle if is_written && leaf.extents().len() > 0 => {
                    leaf.set_presence(Presence::Leaving);
                    *marked += leaf.extents().len();
                }
                _ => {}
            }
        }
        *looked < leaves
    }

    /// The requests have ended that had found them: the marked leaves from `next` on leave, some of
    /// them. True if there are more.
    pub fn drop_leaving(&mut self, next: &mut usize) -> bool {
        let mut units = 0;
        while *next < self.levels[0].len() && units < work::piece() {
            let leaf = &mut self.levels[0][*next];
            if leaf.presence() == Presence::Leaving {
                let dropped = leaf.leave();
                self.present.extents -= dropped;
                self.present.absent += 1;
                units += dropped;
            }
            (units, *next) = (units + LOOK, *next + 1);
        }
        self.present.is_marking = *next < self.levels[0].len();
        self.present.is_marking
    }
}

#[cfg(test)]
mod tests {
    use cairn_format::bcache::node::Node as NodeRead;
    use cairn_format::bcache::{Key, SECTOR_BYTES};
    use proptest::prelude::*;

    use super::*;
    use crate::bcache::btree::reference::{DATA, Model, Sectors, extent, hole, lay_over};
    use crate::bcache::btree::{FIRST, LAST, Unwritten};

    #[test]
    fn word_says_the_presence_of_a_leaf_and_that_it_was_found() {
        let absent = |extents, has_dirty| Presence::Absent { extents, has_dirty };
        for presence in [absent(0, false), absent(u32::MAX, true), absent(7, false)] {
            assert_eq!(PresenceWord::new(presence).get(), presence);
            assert!(PresenceWord::new(presence).is_absent());
        }
        for presence in [Presence::Used, Presence::Idle, Presence::Leaving] {
            let word = PresenceWord::new(presence);
            assert_eq!(word.get(), presence);
            word.touch();
            assert_eq!(word.get(), Presence::Used);
        }
    }

    /// Each leaf leaves memory that may.
    fn drop_all(tree: &mut Tree) {
        for _ in 0..2 {
            let (mut looked, mut marked, mut next) = (0, 0, 0);
            while tree.mark_leaving(0, (&mut looked, &mut marked)) {}
            while tree.drop_leaving(&mut next) {}
        }
    }

    /// The extents of an absent leaf, as the device has them.
    fn read(model: &Model, leaf: &LeafPlace) -> Vec<Key> {
        let from = leaf.pointer.sector() as usize * SECTOR_BYTES;
        let magic = model.superblock.set_uuid().set_magic();
        let bytes = &model.image[from..from + leaf.end];
        let node = NodeRead::read(bytes, leaf.pointer, magic, model.geometry().block_bytes());
        assert_eq!((node.end(), node.seq()), (leaf.end, Some(leaf.seq)));
        let mut extents = node.extents().expect("it is sound");
        extents.retain(|key| key.cached_at().is_some());
        extents
    }

    fn enter_all(model: &mut Model, from: (u32, u64), upto: (u32, u64)) {
        loop {
            let absent = model.tree.absent_between(from, upto);
            if absent.is_empty() {
                return;
            }
            for leaf in absent {
                let extents = read(model, &leaf);
                work::begin();
                model.tree.enter(&leaf, &extents);
                assert!(!model.tree.is_still_absent(&leaf));
            }
        }
    }

    /// A checkpoint ends that has nothing to write, and each leaf leaves.
    fn settle(model: &mut Model) {
        model.tree.begin_checkpoint();
        model.tree.end_checkpoint();
        drop_all(&mut model.tree);
    }

    fn absent_leaves(tree: &Tree) -> usize {
        tree.levels[0].iter().filter(|leaf| leaf.is_absent()).count()
    }

    /// Keys enter the tree, once their leaves are present. Answers what leaves lack.
    fn apply(model: &mut Model, sectors: &mut Sectors, keys: &[Key]) -> Unwritten {
        for key in keys {
            enter_all(model, key.begin(), key.position());
        }
        lay_over(sectors, keys);
        model.apply(keys)
    }

    /// A model with many extents, and what leaves lack of them.
    fn model_of(count: u64) -> (Model, Sectors, Unwritten) {
        let (mut model, mut sectors) = (Model::new(2000, 8), Sectors::new());
        model.take([DATA]);
        let keys: Vec<Key> = (0..count).map(|at| extent(1, at * 2, true)).collect();
        let behind = apply(&mut model, &mut sectors, &keys);
        (model, sectors, behind)
    }

    #[test]
    fn leaves_with_changes_since_the_last_checkpoint_stay() {
        let (mut model, mut sectors, mut behind) = model_of(2000);
        drop_all(&mut model.tree);
        assert_eq!(absent_leaves(&model.tree), 0, "nothing is written");
        model.tree.begin_checkpoint();
        model.write_all(&mut behind).expect("there are buckets");
        let mut behind = apply(&mut model, &mut sectors, &[hole(1, 0, 100)]);
        model.tree.end_checkpoint();
        drop_all(&mut model.tree);
        assert_eq!(absent_leaves(&model.tree), model.tree.leaves() - 1);
        assert!(model.tree.memory() < 200 * EXTENT_BYTES);
        model.write_all(&mut behind).expect("there are buckets");
        enter_all(&mut model, FIRST, LAST);
        model.check(&sectors);
    }

    #[test]
    fn a_scan_ends_behind_the_last_leaf() {
        let mut model = Model::new(2000, 8);
        model.take([DATA]);
        let mut behind = apply(&mut model, &mut Sectors::new(), &[extent(1, 8, true)]);
        model.write_all(&mut behind).expect("there are buckets");
        settle(&mut model);
        let end = model.tree.bounds_of(model.tree.leaves() - 1).1;
        let scan = |from, which| model.tree.scan(from, LAST, which, |_| true);
        assert!(matches!(scan(FIRST, Which::Dirty), Scanned::Absent(leaves) if leaves.len() == 1));
        assert_eq!(scan(end, Which::All), Scanned::All);
        // A leaf without dirty extents is passed over.
        let mut behind = {
            enter_all(&mut model, FIRST, LAST);
            apply(&mut model, &mut Sectors::new(), &[extent(1, 8, false)])
        };
        model.write_all(&mut behind).expect("there are buckets");
        settle(&mut model);
        let scan = |which| model.tree.scan(FIRST, LAST, which, |_| true);
        assert_eq!(scan(Which::Dirty), Scanned::All);
        assert!(matches!(scan(Which::All), Scanned::Absent(_)));
    }

    #[test]
    fn a_marked_leaf_that_is_found_stays() {
        let (mut model, _, mut behind) = model_of(2000);
        model.write_all(&mut behind).expect("there are buckets");
        model.tree.begin_checkpoint();
        model.tree.end_checkpoint();
        for _ in 0..2 {
            let (mut looked, mut marked) = (0, 0);
            while model.tree.mark_leaving(0, (&mut looked, &mut marked)) {}
        }
        let mut next = 0;
        model.tree.find(1, 500);
        while model.tree.drop_leaving(&mut next) {}
        assert_eq!(absent_leaves(&model.tree), model.tree.leaves() - 1);
        assert!(model.tree.absent_in(&Span { inode: 1, start: 500, end: 501 }).is_empty());
    }

    #[test]
    fn what_was_read_before_a_leaf_changed_does_not_enter() {
        let (mut model, mut sectors, mut behind) = model_of(40);
        model.write_all(&mut behind).expect("there are buckets");
        settle(&mut model);
        let before = model.tree.absent_between(FIRST, LAST)[0];
        let old = read(&model, &before);
        let mut behind = apply(&mut model, &mut sectors, &[hole(1, 0, 20)]);
        model.tree.enter(&before, &old);
        model.write_all(&mut behind).expect("there are buckets");
        settle(&mut model);
        // It is absent again, with another bset.
        model.tree.enter(&before, &old);
        assert_eq!(absent_leaves(&model.tree), 1);
        enter_all(&mut model, FIRST, LAST);
        model.check(&sectors);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Each sector lies where it lay, whichever leaves left in between.
        #[test]
        fn leaving_and_entering_change_no_sector(
            rounds in proptest::collection::vec(
                proptest::collection::vec((0..3_u32, 0..3000_u64, 1..300_u64, 0..4_u8), 1..8),
                1..8,
            ),
            late in any::<u64>(),
        ) {
            let (mut model, mut sectors) = (Model::new(3000, 8), Sectors::new());
            model.take([DATA]);
            for (round, changes) in rounds.into_iter().enumerate() {
                let mut all = Vec::new();
                for (inode, start, count, kind) in changes {
                    all.push(match kind {
                        0 => vec![hole(inode, start, count)],
                        _ => (start..start + count).map(|at| extent(inode, at, kind > 1)).collect(),
                    });
                }
                // Some come after the checkpoint has begun.
                let early = all.len() - (late >> round & 1) as usize;
                let mut behind = apply(&mut model, &mut sectors, &all[..early].concat());
                model.tree.begin_checkpoint();
                let mut left = apply(&mut model, &mut sectors, &all[early..].concat());
                model.write_all(&mut behind).expect("there are buckets");
                model.tree.end_checkpoint();
                drop_all(&mut model.tree);
                let dirty = sectors.values().filter(|(_, dirty)| *dirty).count();
                let of = |at| model.tree.place_if_absent(at);
                let places: Vec<LeafPlace> = (0..model.tree.leaves()).filter_map(of).collect();
                let of_absent = |leaf: &LeafPlace| read(&model, leaf);
                let absent: Vec<Key> = places.iter().flat_map(of_absent).collect();
                let present = model.tree.levels[0].iter().filter(|leaf| !leaf.is_absent());
                let present = present.flat_map(|leaf| leaf.extents().iter().copied());
                let found = absent.iter().copied().chain(present);
                let count: u64 = found.filter(Key::is_dirty).map(|key| key.sectors()).sum();
                prop_assert_eq!(count as usize, dirty);
                for leaf in &places {
                    prop_assert_eq!(leaf.has_dirty, read(&model, leaf).iter().any(Key::is_dirty));
                }
                model.write_all(&mut left).expect("there are buckets");
            }
            enter_all(&mut model, FIRST, LAST);
            model.check(&sectors);
            model.check_counts();
            let extents = model.tree.extents().count() as u64;
            prop_assert_eq!(model.tree.memory(), extents * EXTENT_BYTES);
        }
    }
}
