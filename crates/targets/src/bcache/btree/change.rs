//! Changing the extents of the tree in memory, one key at a time. The leaves on the device are
//! behind then, in the sectors of the key. `buckets` counts what changes, and nothing else.

use std::slice::from_ref;

use cairn_format::bcache::{Key, OFFSET_MAX, SIZE_MAX};

use super::lookup::upper;
use super::unwritten::{Span, TAKES};
use super::{Found, Tree};
use crate::bcache::buckets::Buckets;
use crate::bcache::work;

/// Bytes of a key of an extent.
const KEY_BYTES: usize = 24;

/// By how many sectors a volume has more than before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in super::super) struct Change {
    /// Whose only copy is in the cache.
    pub dirty: i64,
    /// That lie in the cache, dirty ones too.
    pub cached: i64,
}

impl Change {
    fn add(&mut self, key: &Key, times: i64) {
        let sectors = key.cached_at().map_or(0, |_| key.sectors() as i64) * times;
        self.cached += sectors;
        self.dirty += if key.is_dirty() { sectors } else { 0 };
    }
}

impl Tree {
    /// Lays keys over the extents in memory, one after the other. Those without a pointer make
    /// holes. Keys in order take the least time.
    pub fn apply(&mut self, keys: &[Key], buckets: &mut Buckets) {
        let mut leaf = 0;
        for key in keys {
            self.lay_near(&mut leaf, key, buckets);
        }
    }

    /// Lays one key over the extents in memory. Without a pointer it makes a hole.
    pub fn lay(&mut self, key: &Key, buckets: &mut Buckets) -> Change {
        self.lay_near(&mut 0, key, buckets)
    }

    /// The same. The key begins in the leaf `index`, perhaps; answers in which one it ends.
    fn lay_near(&mut self, index: &mut usize, key: &Key, buckets: &mut Buckets) -> Change {
        let bucket_sectors = self.geometry.bucket_sectors();
        let many = self.node_bytes() / KEY_BYTES + work::piece() / 2;
        let (mut change, mut rest) = (Change::default(), Some(*key));
        while let Some(key) = rest {
            *index = self.leaf_near(*index, key.begin());
            let number = self.present.number();
            let leaf = &mut self.levels[0][*index];
            assert!(key.begin() < leaf.position(), "{TAKES}: {key:?}");
            let end = upper(leaf, key.inode());
            rest = key.part(end, OFFSET_MAX);
            // None of a key without length.
            let Some(part) = key.part(0, end) else { break };
            let before = leaf.count();
            leaf.changed_in = number;
            leaf.extents_mut().lay(&part, bucket_sectors, |old| {
                change.add(old, -1);
                buckets.replace(from_ref(old), &[]);
            });
            self.present.extents = self.present.extents + leaf.count() - before;
            self.has_large_leaf |= leaf.extents().are_more_than(many);
            change.add(&part, 1);
            buckets.count(&part);
        }
        change
    }

    /// Compares and swaps: `new`, which has the sectors of `old`, counts in those sectors that
    /// still lead to where `old` leads, in the same generation, and are dirty as `old` is. All
    /// others stay. Answers how many sectors were replaced.
    pub fn replace(&mut self, old: &Key, new: &Key, buckets: &mut Buckets) -> u64 {
        self.replace_near(&mut 0, old, new, buckets)
    }

    /// The same of several keys, which become clean. Keys in order take the least time.
    pub fn clean(&mut self, keys: &[Key], buckets: &mut Buckets) -> u64 {
        let mut leaf = 0;
        let clean = |key: &Key| self.replace_near(&mut leaf, key, &key.with_dirty(false), buckets);
        keys.iter().map(clean).sum()
    }

    /// [`Tree::replace`] of a key that begins in the leaf `index`, perhaps; answers in `index` in
    /// which one the last part that was replaced ends.
    fn replace_near(
        &mut self,
        index: &mut usize,
        old: &Key,
        new: &Key,
        buckets: &mut Buckets,
    ) -> u64 {
        assert_eq!((old.begin(), old.position()), (new.begin(), new.position()), "of one range");
        let (mut from, mut replaced) = (old.start(), 0);
        while let Some(part) = self.part_left(*index, old, from) {
            from = part.end();
            let part = new.part(part.start(), from).expect("it lies within");
            self.lay_near(index, &part, buckets);
            replaced += part.sectors();
        }
        replaced
    }

    /// The parts of an extent that still lead to where it leads, in the same generation, and are
    /// dirty as it is; in order.
    pub fn parts_left(&self, old: &Key) -> impl Iterator<Item = Key> {
        std::iter::successors(self.part_left(0, old, old.start()), |part| {
            self.part_left(0, old, part.end())
        })
    }

    /// The first of these parts from a sector on, which is in the leaf `near`, perhaps.
    fn part_left(&self, near: usize, old: &Key, mut from: u64) -> Option<Key> {
        let leads = |key: &Key| (key.cached_at(), key.is_dirty());
        loop {
            let fragment = self.fragment(near, old, from)?;
            from = fragment.end();
            let part = old.part(fragment.start(), from).expect("it lies within");
            if leads(&fragment) == leads(&part) {
                return Some(fragment);
            }
        }
    }

    /// What the first extent behind a sector has within the sectors of a key, from that one on.
    fn fragment(&self, near: usize, within: &Key, from: u64) -> Option<Key> {
        // Most extents are whole: they need no second search.
        if from >= within.end() {
            return None;
        }
        self.first_near(near, &Span { start: from, ..Span::of(within) })?.part(from, within.end())
    }

    /// Drops the extents of a leaf for which `leaves` answers true; it is asked about each once, in
    /// order. Answers the holes that they leave, in order; those that touch are one.
    pub fn evict_leaf(
        &mut self,
        index: usize,
        mut leaves: impl FnMut(&Key) -> bool,
        buckets: &mut Buckets,
    ) -> Vec<Key> {
        let mut holes: Vec<Key> = Vec::new();
        let number = self.present.number();
        let leaf = &mut self.levels[0][index];
        let before = leaf.count();
        leaf.extents_mut().retain(|key| {
            work::did(1);
            let leaves = leaves(key);
            if leaves {
                buckets.replace(from_ref(key), &[]);
                add_hole(&mut holes, key);
            }
            !leaves
        });
        if leaf.count() < before {
            leaf.changed_in = number;
            self.present.extents -= before - leaf.count();
        }
        holes
    }

    /// Holes, in order, that no extent lies between become one, if one key has room for that.
    pub fn join_holes(&self, holes: &[Key]) -> Vec<Key> {
        let mut joined: Vec<Key> = Vec::with_capacity(holes.len());
        for hole in holes {
            let is_empty_upto = |last: &Key| {
                let between = self.find(last.inode(), last.end());
                matches!(between, Found::Hole { end } if end >= hole.start())
            };
            let is_near =
                |last: &Key| last.inode() == hole.inode() && hole.end() - last.start() <= SIZE_MAX;
            match joined.last_mut().filter(|last| is_near(last) && is_empty_upto(last)) {
                Some(last) => *last = Key::new(hole.inode(), hole.end(), hole.end() - last.start()),
                None => joined.push(*hole),
            }
        }
        joined
    }
}

/// The holes that extents leave, which are in order: those that touch are one.
pub(in super::super) fn holes_of(extents: &[Key]) -> Vec<Key> {
    let mut holes = Vec::new();
    extents.iter().for_each(|key| add_hole(&mut holes, key));
    holes
}

/// Adds the hole that an extent behind the others leaves.
fn add_hole(holes: &mut Vec<Key>, extent: &Key) {
    let hole = extent.without_pointer();
    match holes.last().and_then(|last| last.joined(&hole, u64::MAX)) {
        Some(both) => *holes.last_mut().expect("there is one") = both,
        None => holes.push(hole),
    }
}

#[cfg(test)]
mod tests {
    use cairn_format::bcache::{Generation, Key, Pointer};
    use proptest::prelude::*;

    use super::{Change, Span};
    use crate::bcache::btree::Unwritten;
    use crate::bcache::btree::reference::{Model, Sectors, lay_over, replace_in, sectors_of};

    /// The buckets of 8 sectors that the extents of these tests lie in.
    const DATA: [u64; 4] = [200, 201, 202, 203];

    /// An extent at the place in a bucket that its first sector says. So neighbors may be joined.
    fn extent(inode: u32, start: u64, sectors: u64, bucket: usize) -> Key {
        let sectors = sectors.min(8 - start % 8);
        let pointer = Pointer::new(DATA[bucket] * 8 + start % 8, Generation(0));
        Key::new(inode, start + sectors, sectors).at(pointer)
    }

    /// A tree of many leaves: of each of three volumes, every other sector.
    fn model() -> (Model, Sectors) {
        let mut model = Model::new(900, 8);
        model.take(DATA);
        for inode in 0..3 {
            let keys: Vec<Key> = (0..300).map(|at| extent(inode, at * 2, 1, 0)).collect();
            model.insert(keys).expect("there are buckets");
        }
        assert!(model.tree.leaves() > 4);
        let sectors = sectors_of(model.tree.extents());
        (model, sectors)
    }

    /// How many sectors are dirty, and how many are cached.
    fn totals(sectors: &Sectors) -> (i64, i64) {
        (sectors.values().filter(|(_, dirty)| *dirty).count() as i64, sectors.len() as i64)
    }

    #[derive(Debug, Clone)]
    enum Step {
        Lay(Key),
        /// A key that was laid before, by its number; that many sectors fewer in front and behind;
        /// of another generation; the bucket that it moves to, and whether it is dirty there.
        Replace(usize, [u64; 2], bool, usize, bool),
        /// A leaf, and the buckets whose extents leave it.
        Evict(usize, [bool; 4]),
    }

    fn step() -> impl Strategy<Value = Step> {
        let place = || (0..3_u32, 0..640_u64);
        let key = (place(), 1..9_u64, 0..4_usize, any::<bool>());
        let key = key.prop_map(|((inode, start), sectors, bucket, dirty)| {
            Step::Lay(extent(inode, start, sectors, bucket).with_dirty(dirty))
        });
        let hole = (place(), 1..90_u64);
        let hole = hole.prop_map(|((inode, start), sectors)| {
            Step::Lay(Key::new(inode, start + sectors, sectors))
        });
        let cut = [0..3_u64, 0..3_u64];
        let replace = (any::<usize>(), cut, 0..8_u8, 0..4_usize, any::<bool>());
        let replace = replace.prop_map(|(number, cut, other, bucket, dirty)| {
            Step::Replace(number, cut, other == 0, bucket, dirty)
        });
        let evict = (any::<usize>(), any::<[bool; 4]>());
        let evict = evict.prop_map(|(leaf, buckets)| Step::Evict(leaf, buckets));
        prop_oneof![10 => key, 2 => hole, 10 => replace, 1 => evict]
    }

    /// Takes a step in the tree and in the map. Answers the keys of the sectors that changed.
    fn take(model: &mut Model, sectors: &mut Sectors, laid: &mut Vec<Key>, step: Step) -> Vec<Key> {
        let Model { tree, buckets, .. } = model;
        match step {
            Step::Lay(key) => {
                let before = totals(sectors);
                lay_over(sectors, &[key]);
                let after = totals(sectors);
                let expected = Change { dirty: after.0 - before.0, cached: after.1 - before.1 };
                assert_eq!(tree.lay(&key, buckets), expected, "{key:?}");
                laid.extend(key.cached_at().map(|_| key));
                vec![key]
            }
            Step::Replace(number, [front, back], is_other, bucket, dirty) => {
                let Some(key) =
                    laid.len().checked_sub(1).map(|last| laid[last - number % 9 % laid.len()])
                else {
                    return Vec::new();
                };
                let part = key.part(key.start() + front, key.end().saturating_sub(back));
                let mut old = part.unwrap_or(key);
                if is_other {
                    let pointer = old.cached_at().expect("it has a place");
                    old = old.at(Pointer::new(pointer.sector(), Generation(1)));
                }
                let new = extent(old.inode(), old.start(), old.sectors(), bucket).with_dirty(dirty);
                let expected = replace_in(sectors, &old, &new);
                assert_eq!(tree.replace(&old, &new, buckets), expected, "{old:?} {new:?}");
                laid.push(new);
                vec![new]
            }
            Step::Evict(leaf, evicted) => {
                let is_evicted = |key: &Key| {
                    let bucket = key.cached_at().expect("it leads somewhere").sector() / 8;
                    !key.is_dirty() && evicted[(bucket - DATA[0]) as usize]
                };
                let index = leaf % tree.leaves();
                let gone = tree.levels[0][index].extents().iter().filter(|key| is_evicted(key));
                let gone: Vec<Key> = gone.map(|key| key.without_pointer()).collect();
                let holes = tree.evict_leaf(index, is_evicted, buckets);
                assert_eq!(Unwritten::of(&holes), Unwritten::of(&gone));
                let touch = |pair: &[Key]| pair[0].position() >= pair[1].begin();
                assert!(!holes.windows(2).any(touch), "{holes:?}");
                lay_over(sectors, &holes);
                holes
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        /// After each step the tree has what the map has, it is sound, and the buckets have the
        /// counts of a recount. The leaves on the device get the same.
        #[test]
        fn single_changes_give_what_changing_sector_by_sector_gives(
            steps in proptest::collection::vec(step(), 1..120),
        ) {
            let ((mut model, mut sectors), mut laid) = (model(), Vec::new());
            let mut unwritten = Unwritten::default();
            for step in steps {
                let changed = take(&mut model, &mut sectors, &mut laid, step.clone());
                unwritten.add(&changed);
                model.tree.check_state().expect("B1 and B3");
                model.check_counts();
                prop_assert_eq!(&sectors_of(model.tree.extents()), &sectors, "{:?}", step);
            }
            model.write_all(&mut unwritten).expect("there are buckets");
            model.check(&sectors);
        }

        /// Keys over the extents of many leaves, some of which later ones have replaced in part.
        #[test]
        fn keys_become_clean_together_as_they_do_one_by_one(
            keys in proptest::collection::vec((0..3_u32, 0..640_u64, 1..9_u64, 0..4_usize), 1..90),
            are_in_order in any::<bool>(),
        ) {
            let (mut model, mut sectors) = model();
            let key = |(inode, start, count, bucket)| extent(inode, start, count, bucket);
            let mut keys: Vec<Key> = keys.into_iter().map(key).collect();
            keys.iter_mut().for_each(|key| *key = key.with_dirty(true));
            let Model { tree, buckets, .. } = &mut model;
            tree.apply(&keys, buckets);
            lay_over(&mut sectors, &keys);
            if are_in_order {
                keys.sort_unstable_by_key(Key::begin);
            }
            let clean = |key: &Key| replace_in(&mut sectors, key, &key.with_dirty(false));
            let expected: u64 = keys.iter().map(clean).sum();
            prop_assert_eq!(tree.clean(&keys, buckets), expected);
            model.tree.check_state().expect("B1 and B3");
            model.check_counts();
            prop_assert_eq!(sectors_of(model.tree.extents()), sectors);
        }
    }

    #[test]
    fn a_key_over_the_border_of_two_leaves_is_cut_there() {
        let (mut model, mut sectors) = model();
        let (inode, end) = model.tree.levels[0][0].position();
        let key = Key::new(inode, end + 40, 80);
        assert_eq!(model.tree.lay(&key, &mut model.buckets), Change { dirty: 0, cached: -40 });
        let key = extent(inode, (end - 1) / 8 * 8, 8, 1).with_dirty(true);
        assert!(key.start() < end && end < key.end());
        assert_eq!(model.tree.lay(&key, &mut model.buckets), Change { dirty: 8, cached: 8 });
        let leaves: Vec<usize> = (0..2)
            .map(|leaf| {
                model.tree.levels[0][leaf].extents().iter().filter(|key| key.is_dirty()).count()
            })
            .collect();
        assert_eq!(leaves, [1, 1]);
        lay_over(&mut sectors, &[Key::new(inode, end + 40, 80), key]);
        model.write_all(&mut Unwritten::of(&[Key::new(inode, end + 40, 80)])).expect("buckets");
        model.check(&sectors);
    }

    #[test]
    fn only_what_still_leads_to_the_old_place_is_replaced() {
        let (mut model, _) = model();
        let Model { tree, buckets, .. } = &mut model;
        let old = extent(1, 8, 8, 1).with_dirty(true);
        tree.lay(&old, buckets);
        // A client writes over two sectors, and makes a hole of one.
        let newer = extent(1, 10, 2, 2).with_dirty(true);
        tree.lay(&newer, buckets);
        tree.lay(&Key::new(1, 14, 1), buckets);
        let clean = old.with_dirty(false);
        assert_eq!(tree.replace(&clean, &old, buckets), 0, "they are dirty");
        assert_eq!(tree.replace(&old, &clean, buckets), 5);
        assert_eq!(tree.replace(&old, &clean, buckets), 0, "they are clean");
        let part = |key: &Key, from, to| key.part(from, to).expect("within it");
        let expected = [part(&clean, 8, 10), newer, part(&clean, 12, 13), part(&clean, 14, 16)];
        let found: Vec<Key> =
            tree.extents_in(&Span { inode: 1, start: 8, end: 16 }).copied().collect();
        assert_eq!(found, expected);
        let other = clean.at(Pointer::new(DATA[1] * 8, Generation(1)));
        assert_eq!(tree.replace(&other, &extent(1, 8, 8, 3), buckets), 0, "of that generation");
    }
}
