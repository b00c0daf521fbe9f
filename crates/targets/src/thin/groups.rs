//! The loaded groups of one shard, found by their numbers.
//!
//! The structures that lead to an entry must fit in a cache near the processor, so that a lookup
//! waits for memory once: for the entry itself. A page names the places of 64 groups in the arena,
//! four bytes each with the mark that a group is used; ten million blocks need 0.6 MB of pages.
//! Pages are found by hash, because volumes may be large and almost empty.
//!
//! G1. A page is kept as long as it names a group.
//! G2. The ring names each group once.
//! G3. A place is named by one slot, or is free.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cairn_format::thin::Mapping;
use rustc_hash::FxHashMap;

use super::arena::{Arena, GROUP_BLOCKS, Spot};

/// The number of shards of a volume's groups: the groups of one shard are this far apart.
pub(super) const SHARDS: u64 = 64;

const PAGE_GROUPS: usize = 64;

/// Groups that are looked at for one to forget.
const SEARCH_MAX: usize = 64;

/// An entry of a group, packed as in the metadata.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry(u64);

impl Entry {
    /// No mapping packs to this: a data device has fewer blocks.
    const HOLE: Entry = Entry(u64::MAX);

    fn of(mapping: Option<Mapping>) -> Entry {
        mapping.map_or(Entry::HOLE, |mapping| Entry(mapping.pack()))
    }

    pub fn mapping(self) -> Option<Mapping> {
        (self != Entry::HOLE).then(|| Mapping::unpack(self.0))
    }

    pub fn is_hole(self) -> bool {
        self == Entry::HOLE
    }
}

/// The entries of 64 blocks, as the metadata has them.
pub(super) struct Group([Entry; GROUP_BLOCKS as usize]);

impl Group {
    /// Without a mapping.
    pub fn empty() -> Group {
        Group([Entry::HOLE; GROUP_BLOCKS as usize])
    }

    /// Adds what the metadata maps.
    pub fn set(&mut self, block: u64, mapping: Mapping) {
        self.0[(block % GROUP_BLOCKS) as usize] = Entry::of(Some(mapping));
    }
}

/// The entries of a group that is loaded.
#[derive(Clone, Copy)]
pub(super) struct Entries<'a>(&'a [AtomicU64]);

impl Entries<'_> {
    /// From the one of `block` on, at most `max` of them.
    #[inline(always)]
    pub fn from(self, block: u64, max: u64) -> impl Iterator<Item = Entry> {
        let words = self.0[(block % GROUP_BLOCKS) as usize..].iter().take(max as usize);
        words.map(|word| Entry(word.load(Ordering::Relaxed)))
    }

    pub fn get(self, block: u64) -> Option<Mapping> {
        Entry(self.word(block).load(Ordering::Relaxed)).mapping()
    }

    pub fn set(self, block: u64, mapping: Option<Mapping>) {
        self.word(block).store(Entry::of(mapping).0, Ordering::Relaxed);
    }

    fn word(&self, block: u64) -> &AtomicU64 {
        &self.0[(block % GROUP_BLOCKS) as usize]
    }

    pub fn has_mappings(self) -> bool {
        self.from(0, GROUP_BLOCKS).any(|entry| !entry.is_hole())
    }
}

/// Where a group is, if it is loaded, and whether it was used since the last search for one to
/// forget.
#[derive(Clone, Copy, Default)]
struct Slot(u32);

impl Slot {
    const USED: u32 = 1 << 31;

    /// A group that was just used.
    fn used(place: Spot) -> Slot {
        Slot((place.0 + 1) | Slot::USED)
    }

    #[inline(always)]
    fn place(self) -> Option<Spot> {
        (self.0 & !Slot::USED).checked_sub(1).map(Spot)
    }

    #[inline(always)]
    fn is_used(self) -> bool {
        self.0 & Slot::USED != 0
    }
}

/// 64 groups that follow each other in a shard.
struct Page {
    slots: [Slot; PAGE_GROUPS],
    /// The stamp of each group's latest change; 0 if it never changed.
    changed_in: [u64; PAGE_GROUPS],
}

/// The page of a group, and its slot there.
fn locate(number: u64) -> (u64, usize) {
    // Which of the shards it is, its holder knows.
    let in_shard = number / SHARDS;
    (in_shard / PAGE_GROUPS as u64, (in_shard % PAGE_GROUPS as u64) as usize)
}

/// See the module's description.
pub(super) struct Groups {
    arena: Arc<Arena>,
    pages: FxHashMap<u64, Box<Page>>,
    /// The numbers of the groups, in the order in which they are looked at for one to forget.
    ring: Vec<u64>,
    /// Where in the ring the next search begins.
    hand: usize,
}

impl Groups {
    /// None yet; they will lie in this arena.
    pub fn new(arena: Arc<Arena>) -> Groups {
        Groups { arena, pages: FxHashMap::default(), ring: Vec::new(), hand: 0 }
    }

    /// The entries of a group that is loaded.
    pub fn get(&self, number: u64) -> Option<Entries<'_>> {
        let (page, at) = locate(number);
        let place = self.pages.get(&page)?.slots[at].place()?;
        Some(Entries(self.arena.words(place)))
    }

    /// Has the processor fetch the entry of a block, if its group is loaded.
    #[inline(always)]
    pub fn fetch(&self, block: u64) {
        let (page, at) = locate(block / GROUP_BLOCKS);
        if let Some(place) = self.pages.get(&page).and_then(|page| page.slots[at].place()) {
            self.arena.fetch(place, (block % GROUP_BLOCKS) as usize);
        }
    }

    /// The entries of a group that is loaded; it is not forgotten soon.
    #[inline(always)]
    pub fn use_one(&mut self, number: u64) -> Option<Entries<'_>> {
        let (page, at) = locate(number);
        let slot = &mut self.pages.get_mut(&page)?.slots[at];
        let place = slot.place()?;
        if !slot.is_used() {
            *slot = Slot::used(place);
        }
        Some(Entries(self.arena.words(place)))
    }

    /// The entries of a group that is loaded, one of which changes.
    pub fn change_one(&mut self, number: u64, stamp: u64) -> Option<Entries<'_>> {
        let (page, at) = locate(number);
        let page = self.pages.get_mut(&page)?;
        let place = page.slots[at].place()?;
        page.changed_in[at] = stamp;
        Some(Entries(self.arena.words(place)))
    }

    /// Adds a group that is not there.
    pub fn add(&mut self, number: u64, group: &Group) {
        let place = self.arena.take();
        for (word, entry) in self.arena.words(place).iter().zip(&group.0) {
            word.store(entry.0, Ordering::Relaxed);
        }
        let (page, at) = locate(number);
        let empty = || Page { slots: [Slot::default(); PAGE_GROUPS], changed_in: [0; PAGE_GROUPS] };
        let page = self.pages.entry(page).or_insert_with(|| Box::new(empty()));
        debug_assert!(page.slots[at].place().is_none(), "a group is added once");
        page.slots[at] = Slot::used(place);
        page.changed_in[at] = 0;
        self.ring.push(number);
    }

    /// True if a group should be forgotten before another is added.
    pub fn is_full(&self) -> bool {
        self.arena.is_full()
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        let slots = self.pages.values().flat_map(|page| page.slots);
        self.arena.give(slots.filter_map(Slot::place));
        self.pages.clear();
        self.ring.clear();
    }

    /// The first of the groups within these that maps something.
    pub fn first_mapped(&self, numbers: Range<u64>) -> Option<u64> {
        let mut some: Vec<u64> =
            self.ring.iter().copied().filter(|it| numbers.contains(it)).collect();
        some.sort_unstable();
        some.into_iter().find(|&number| self.named(number).has_mappings())
    }

    /// The highest mapped block.
    pub fn last_mapped(&self) -> Option<u64> {
        let mut all = self.ring.clone();
        all.sort_unstable();
        let number = all.into_iter().rfind(|&number| self.named(number).has_mappings())?;
        let entries = (0..).zip(self.named(number).from(0, GROUP_BLOCKS));
        let (last, _) = entries.filter(|(_, entry)| !entry.is_hole()).last()?;
        Some(number * GROUP_BLOCKS + last)
    }

    /// A group that the ring names.
    fn named(&self, number: u64) -> Entries<'_> {
        self.get(number).expect("G2")
    }

    /// The page of a group that the ring names, and its slot there.
    fn page_of(&mut self, number: u64) -> (&mut Page, usize) {
        let (page, at) = locate(number);
        (self.pages.get_mut(&page).expect("G1"), at)
    }

    /// Forgets a group that is durable, is not held and, if one is near, was not used lately; true
    /// if there was one.
    pub fn forget_one(&mut self, durable: u64, is_held: impl Fn(u64) -> bool) -> bool {
        let mut victim = None;
        for _ in 0..self.ring.len().min(SEARCH_MAX) {
            self.hand = (self.hand + 1) % self.ring.len();
            let (hand, number) = (self.hand, self.ring[self.hand]);
            let (page, at) = self.page_of(number);
            if page.changed_in[at] > durable || is_held(number) {
                continue;
            }
            victim = Some(hand);
            if !page.slots[at].is_used() {
                break;
            }
            page.slots[at].0 &= !Slot::USED;
        }
        let Some(victim) = victim else { return false };
        let number = self.ring.swap_remove(victim);
        self.remove(number);
        true
    }

    /// Forgets a group that the ring does not name any more.
    fn remove(&mut self, number: u64) {
        let (page, at) = self.page_of(number);
        let place = std::mem::take(&mut page.slots[at]).place();
        if page.slots.iter().all(|slot| slot.place().is_none()) {
            self.pages.remove(&locate(number).0);
        }
        self.arena.give(place);
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use cairn_format::thin::DataBlock;

    use super::*;

    /// Groups of the shard 5, one of them far away.
    fn some() -> Groups {
        let mut groups = Groups::new(Arc::default());
        for number in [5 + SHARDS, 5, 5 + SHARDS * 70, 5 + SHARDS * (1 << 40)] {
            groups.add(number, &Group::empty());
        }
        groups
    }

    #[test]
    fn groups_are_found_by_their_numbers_however_far_apart() {
        let mut groups = some();
        assert_eq!((groups.ring.len(), groups.pages.len()), (4, 3));
        let mapping = Some(Mapping { block: DataBlock(1), time: 0 });
        groups.change_one(5 + SHARDS * 70, 1).expect("added").set(9, mapping);
        assert_eq!(groups.get(5 + SHARDS * 70).and_then(|group| group.get(9)), mapping);
        assert!(!groups.get(5).expect("added").has_mappings());
        assert!(groups.get(5 + SHARDS * 2).is_none() && groups.get(5 + SHARDS * 999).is_none());
    }

    #[test]
    fn prefetch_of_an_unmapped_block_changes_nothing() {
        let groups = some();
        for number in [5, 5 + SHARDS * 2, 5 + SHARDS * 999, (1 << 50) + 5] {
            groups.fetch(number * GROUP_BLOCKS + 63);
        }
        assert_eq!((groups.ring.len(), groups.pages.len()), (4, 3));
    }

    #[test]
    fn only_clean_groups_that_nobody_holds_are_forgotten() {
        let mut groups = some();
        assert!(groups.change_one(5, 5).is_some());
        let is_held = |number| number == 5 + SHARDS;
        assert!(groups.forget_one(4, is_held) && groups.forget_one(4, is_held));
        assert!(!groups.forget_one(4, is_held), "one has a change, one is held");
        assert!(groups.forget_one(5, is_held), "the change is durable");
        assert!(!groups.forget_one(5, is_held), "one is held");
        assert_eq!((groups.ring.len(), groups.pages.len()), (1, 1), "G1");
    }

    #[test]
    fn what_was_used_lately_is_forgotten_last() {
        let mut groups = some();
        // Now none counts as used, and one of the four is gone.
        assert!(groups.forget_one(0, |_| false));
        let used = groups.ring[1];
        for _ in 0..2 {
            assert!(groups.use_one(used).is_some());
            assert!(groups.forget_one(0, |_| false));
        }
        assert_eq!(groups.ring, [used]);
    }

    #[test]
    fn the_first_and_the_last_mapped_are_found_among_empty_groups() {
        let mut groups = some();
        assert_eq!((groups.first_mapped(0..u64::MAX), groups.last_mapped()), (None, None));
        let mapping = Some(Mapping { block: DataBlock(1), time: 0 });
        for number in [5 + SHARDS, 5 + SHARDS * 70] {
            groups.change_one(number, 1).expect("added").set(number * GROUP_BLOCKS + 9, mapping);
        }
        assert_eq!(groups.first_mapped(0..u64::MAX), Some(5 + SHARDS));
        assert_eq!(groups.first_mapped(6 + SHARDS..u64::MAX), Some(5 + SHARDS * 70));
        assert_eq!(groups.first_mapped(0..5 + SHARDS), None);
        assert_eq!(groups.last_mapped(), Some((5 + SHARDS * 70) * GROUP_BLOCKS + 9));
    }

    #[test]
    fn places_go_back_when_their_groups_are_forgotten() {
        let mut groups = some();
        let arena = groups.arena.clone();
        let place = groups.pages[&locate(5).0].slots[locate(5).1].place();
        groups.clear();
        let free: Vec<Spot> = (0..4).map(|_| arena.take()).collect();
        assert!(free.iter().all(|place| place.0 < 4) && free.contains(&place.expect("added")));
        assert!(groups.get(5).is_none());
    }
}
