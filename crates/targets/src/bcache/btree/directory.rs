//! A directory of a sorted list of extents: which of them is the first behind a position.
//!
//! A binary search reads one line of memory after the other, each of which has to arrive before the
//! next one is known; in a large leaf most of them come from main memory. The directory has the
//! position of the last extent of each group of [`GROUP`] extents, and the same of each group of
//! such entries. A search counts the positions before its own, group by group, so that the lines of
//! a group arrive together, and only those of the last group are not in the processor's caches.
//!
//! Memory: one byte per extent.

use cairn_format::bcache::Key;

/// Extents of a group, and entries of a group of entries.
const GROUP: usize = 16;

/// A volume, and a sector of it.
type Position = (u32, u64);

/// See the module's description.
#[derive(Default)]
pub(super) struct Directory {
    /// The position of the last extent of each group.
    fine: Vec<Position>,
    /// The last entry of each group of `fine`.
    coarse: Vec<Position>,
}

impl Directory {
    /// Of extents in order.
    pub fn of(extents: &[Key]) -> Directory {
        let last = |group: &[Key]| group.last().map(Key::position).unwrap_or_default();
        let fine: Vec<Position> = extents.chunks(GROUP).map(last).collect();
        let last = |group: &[Position]| group.last().copied().unwrap_or_default();
        let coarse = fine.chunks(GROUP).map(last).collect();
        Directory { fine, coarse }
    }

    /// The group with the first extent behind a position, as its number.
    fn group(&self, at: Position) -> usize {
        let first = self.coarse.partition_point(|last| *last <= at) * GROUP;
        let entries = self.fine.iter().skip(first).take(GROUP);
        first + entries.filter(|last| **last <= at).count()
    }

    /// The first extent behind a position, as its index; the length if there is none. `extents` are
    /// those of the directory.
    pub fn first_behind(&self, extents: &[Key], at: Position) -> usize {
        let first = self.group(at) * GROUP;
        let group = extents.iter().skip(first).take(GROUP);
        first.min(extents.len()) + group.filter(|key| key.position() <= at).count()
    }
}

#[cfg(test)]
mod tests {
    use cairn_format::bcache::Key;
    use proptest::prelude::*;

    use super::Directory;

    proptest! {
        #[test]
        fn a_search_ends_where_a_binary_search_does(
            steps in proptest::collection::vec((0..50_u32, 1..4_u64), 0..900),
            at in (0..3_u32, 0..2000_u64),
        ) {
            let mut last = (0, 0);
            let extents: Vec<Key> = steps
                .into_iter()
                .map(|(chance, step)| {
                    last = if chance == 0 { (last.0 + 1, step) } else { (last.0, last.1 + step) };
                    Key::new(last.0, last.1, 1)
                })
                .collect();
            let directory = Directory::of(&extents);
            let expected = extents.partition_point(|key| key.position() <= at);
            prop_assert_eq!(directory.first_behind(&extents, at), expected);
        }
    }
}
