//! Lists of extents, in order and without overlaps, and one laid over another.

use std::collections::VecDeque;

use super::Key;

/// Lays `newer` over `older`: of what both have, the newer counts. Both, and what is appended to
/// `out`, are in order and do not overlap. Keys without a length disappear.
pub fn overlay(older: &[Key], newer: &[Key], out: &mut Vec<Key>) {
    lay_over(&mut Apart { older: older.iter(), out }, newer);
}

/// The same in the memory of the older list, and as much more as `newer` displaces.
#[must_use]
pub fn overlaid(older: Vec<Key>, newer: &[Key]) -> Vec<Key> {
    let (read, written, displaced) = Default::default();
    let mut lists = InPlace { list: older, read, written, displaced };
    lay_over(&mut lists, newer);
    lists.list.truncate(lists.written);
    lists.list
}

/// Where the older keys come from, and where the result goes.
trait Lists {
    fn next(&mut self) -> Option<Key>;
    fn put(&mut self, key: Key);

    fn next_extent(&mut self) -> Option<Key> {
        std::iter::from_fn(|| self.next()).find(|key| key.sectors() > 0)
    }
}

fn lay_over(lists: &mut impl Lists, newer: &[Key]) {
    let mut rest = lists.next_extent();
    for new in newer.iter().filter(|key| key.sectors() > 0) {
        while let Some(old) = rest {
            if old.begin() >= new.position() {
                break;
            }
            if old.position() <= new.begin() {
                lists.put(old);
                rest = lists.next_extent();
                continue;
            }
            // They overlap.
            if let Some(front) = old.part(0, new.start()) {
                lists.put(front);
            }
            rest = match old.part(new.end(), u64::MAX) {
                Some(behind) => Some(behind),
                None => lists.next_extent(),
            };
        }
        lists.put(*new);
    }
    while let Some(old) = rest {
        lists.put(old);
        rest = lists.next_extent();
    }
}

struct Apart<'a> {
    older: std::slice::Iter<'a, Key>,
    out: &'a mut Vec<Key>,
}

impl Lists for Apart<'_> {
    fn next(&mut self) -> Option<Key> {
        self.older.next().copied()
    }

    fn put(&mut self, key: Key) {
        self.out.push(key);
    }
}

/// The result is written over what was read; what was not read yet moves to `displaced` first.
struct InPlace {
    list: Vec<Key>,
    read: usize,
    written: usize,
    displaced: VecDeque<Key>,
}

impl Lists for InPlace {
    fn next(&mut self) -> Option<Key> {
        self.displaced.pop_front().or_else(|| {
            let key = self.list.get(self.read).copied()?;
            self.read += 1;
            Some(key)
        })
    }

    fn put(&mut self, key: Key) {
        if self.written == self.read {
            match self.list.get(self.read) {
                Some(unread) => self.displaced.push_back(*unread),
                None => self.list.push(key),
            }
            self.read += 1;
        }
        self.list[self.written] = key;
        self.written += 1;
    }
}

/// What keys amount to that are laid over each other in turn, in order. Keys without a length
/// disappear.
///
/// Most keys of a journal overlap none, or exactly those that they replace: sorting shows which,
/// and only the others are laid over each other one by one.
pub fn latest(keys: impl Iterator<Item = Key>) -> Vec<Key> {
    let keys: Vec<Key> = keys.filter(|key| key.sectors() > 0).collect();
    // What sorts a key, and its turn, as one number: that sorts fastest.
    let numbered = |(key, turn): (&Key, u32)| {
        u128::from(key.inode()) << 95 | u128::from(key.start()) << 32 | u128::from(turn)
    };
    let mut order: Vec<u128> = keys.iter().zip(0..).map(numbered).collect();
    order.sort_unstable();
    let key_of = |number: u128| keys[number as u32 as usize];
    let mut list = Vec::with_capacity(keys.len());
    let mut rest = &mut order[..];
    while let Some(first) = rest.first().copied().map(key_of) {
        let (mut reach, mut are_alike) = (first.position(), true);
        let overlaps = |number: &&u128| {
            let key = key_of(**number);
            let overlaps = key.begin() < reach;
            are_alike &= !overlaps || (key.begin(), key.position()) == (first.begin(), reach);
            reach = reach.max(key.position());
            overlaps
        };
        let length = 1 + rest[1..].iter().take_while(overlaps).count();
        let (group, behind) = rest.split_at_mut(length);
        rest = behind;
        if are_alike {
            list.push(key_of(group[length - 1]));
            continue;
        }
        group.sort_unstable_by_key(|number| *number as u32);
        let mut map = ExtentMap::default();
        group.iter().for_each(|number| map.insert(key_of(*number)));
        list.extend(map.extents.into_values());
    }
    list
}

/// Extents to which single ones are added in any order, the latest on top.
#[derive(Debug, Default)]
struct ExtentMap {
    /// By inode and first sector.
    extents: std::collections::BTreeMap<(u32, u64), Key>,
}

impl ExtentMap {
    /// Lays an extent over all others.
    fn insert(&mut self, new: Key) {
        let before = self.extents.range(..new.begin()).next_back().map(|(_, key)| *key);
        if let Some(old) = before.filter(|old| old.position() > new.begin()) {
            self.put(old.part(0, new.start()));
            self.put(old.part(new.end(), u64::MAX));
        }
        while let Some((_, old)) = self.extents.range(new.begin()..new.position()).next() {
            let old = *old;
            self.extents.remove(&old.begin());
            self.put(old.part(new.end(), u64::MAX));
        }
        self.put(Some(new));
    }

    fn put(&mut self, key: Option<Key>) {
        if let Some(key) = key {
            self.extents.insert(key.begin(), key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::{latest, overlaid, overlay};
    use crate::bcache::{Generation, Key, Pointer};

    /// Where each sector of each volume lies, and whether it is dirty.
    type Sectors = BTreeMap<(u32, u64), (Option<Pointer>, bool)>;

    fn sectors_of<'k>(keys: impl IntoIterator<Item = &'k Key>) -> Sectors {
        let mut sectors = Sectors::new();
        for key in keys {
            for sector in key.start()..key.end() {
                let part = key.part(sector, sector + 1).expect("within it");
                sectors.insert((key.inode(), sector), (part.pointer(), part.is_dirty()));
            }
        }
        sectors
    }

    fn are_in_order(keys: &[Key]) -> bool {
        keys.windows(2).all(|pair| pair[0].position() <= pair[1].begin())
            && keys.iter().all(|key| key.sectors() > 0)
    }

    fn extents() -> impl Strategy<Value = Vec<Key>> {
        let extent = (0..3_u32, 0..60_u64, 0..12_u64, 0..4_u8, 0..900_u64);
        let extent = extent.prop_map(|(inode, start, sectors, kind, sector)| {
            let key = Key::new(inode, start + sectors, sectors);
            match kind {
                0 => key,
                kind => key.with_dirty(kind == 1).at(Pointer::new(sector, Generation(kind))),
            }
        });
        proptest::collection::vec(extent, 0..30)
    }

    proptest! {
        #[test]
        fn the_latest_extent_counts_on_each_sector(keys in extents()) {
            let list = latest(keys.iter().copied());
            prop_assert!(are_in_order(&list), "{:?}", list);
            prop_assert_eq!(sectors_of(&list), sectors_of(&keys));
        }

        #[test]
        fn the_newer_list_counts_on_each_sector(older in extents(), newer in extents()) {
            let (older, newer) = (latest(older.into_iter()), latest(newer.into_iter()));
            let mut both = Vec::new();
            overlay(&older, &newer, &mut both);
            prop_assert!(are_in_order(&both), "{:?}", both);
            prop_assert_eq!(sectors_of(&both), sectors_of(older.iter().chain(&newer)));
            prop_assert_eq!(overlaid(older, &newer), both);
        }
    }
}
