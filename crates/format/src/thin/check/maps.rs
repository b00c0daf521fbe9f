//! The space maps' part of a check: finds the bitmaps, and compares them with the counted
//! references.

use super::{Check, Finding, Map, Report, bad, outside};
use crate::thin::blocks::{Bad, Blocks, read_one};
use crate::thin::counts::Counts;
use crate::thin::walk::{Family, Fault, NodeLocation, Tree, Visit, Walk};
use crate::thin::{
    BITMAP_ENTRIES, BITMAPS_MAX, Bitmap, COUNT_IN_TREE, IndexBlock, IndexEntry, MetadataBlock,
    Node, RefCount,
};

/// The usable bitmaps of a map, by number.
pub(super) type Bitmaps = Vec<(u64, MetadataBlock)>;

/// Large counts: block and count.
pub(super) type Large = Vec<(u64, u32)>;

impl Check {
    /// Finds the metadata map's bitmaps and its large counts, and counts the blocks of both.
    pub(super) fn metadata_map<B: Blocks>(
        &mut self,
        blocks: &mut B,
    ) -> Result<(Bitmaps, Large), B::Error> {
        let root = self.superblock.metadata_space_map;
        let (at, expected) = (root.bitmap_root, root.bitmaps());
        let needed = usize::try_from(expected).map_or(BITMAPS_MAX, |count| count.min(BITMAPS_MAX));
        self.metadata.add(at.0);
        let entries = read_one(blocks, at, |bytes| {
            let index = IndexBlock::decode(bytes, at)?;
            Ok((0..needed).map(|bitmap| index.entry(bitmap).bitmap).collect::<Vec<_>>())
        })?;
        let entries = entries
            .map_err(Fault::from)
            .and_then(|entries| self.seen.enter(at, Family::MetadataIndex).map(|_| entries));
        let found = entries.unwrap_or_else(|fault| {
            let tree = Tree::of(Family::MetadataIndex);
            let place = NodeLocation { tree, block: at, first: 0, last: u64::MAX };
            self.report.add(Finding::Tree { place, fault });
            Vec::new()
        });
        let found = (0..).zip(found).collect();
        let bitmaps = self.enter_bitmaps(Map::Metadata, found, blocks.count());
        let mut large = Vec::new();
        let tree = Tree::of(Family::MetadataCounts);
        self.walk::<RefCount, B>(blocks, tree, root.ref_count_root, |_, leaf| {
            large.extend(leaf.entries::<RefCount>().map(|(block, count)| (block, count.0)));
        })?;
        Ok((bitmaps, large))
    }

    /// Finds the data map's bitmaps, counts their blocks, and prepares the counts of data blocks.
    pub(super) fn data_map<B: Blocks>(&mut self, blocks: &mut B) -> Result<Bitmaps, B::Error> {
        let root = self.superblock.data_space_map;
        let mut found = Vec::new();
        self.walk::<IndexEntry, B>(
            blocks,
            Tree::of(Family::DataIndex),
            root.bitmap_root,
            |_, leaf| {
                found.extend(
                    leaf.entries::<IndexEntry>().map(|(index, entry)| (index, entry.bitmap)),
                );
            },
        )?;
        found.sort_unstable();
        let expected = root.bitmaps();
        found.retain(|(index, _)| *index < expected);
        let in_place = (0..).zip(&found).take_while(|(index, entry)| *index == entry.0);
        let index = in_place.count() as u64;
        if index < expected {
            self.report.add(Finding::NoBitmap { map: Map::Data, index, expected });
        }
        let bitmaps = self.enter_bitmaps(Map::Data, found, blocks.count());
        // Each bitmap takes a block: counts beyond that number of bitmaps have nothing to compare
        // with.
        let countable = blocks.count().saturating_mul(BITMAP_ENTRIES);
        self.data = Counts::new(root.blocks.min(countable));
        Ok(bitmaps)
    }

    fn enter_bitmaps(&mut self, map: Map, found: Bitmaps, count: u64) -> Bitmaps {
        let mut usable = Vec::new();
        for (index, at) in found {
            self.metadata.add(at.0);
            let fault = match at.0 < count {
                true => bad(at, Family::Bitmap, &mut self.seen),
                false => Some(outside(at, count)),
            };
            match fault {
                None => usable.push((index, at)),
                Some(fault) => self.report.add(Finding::Bitmap { map, index, fault }),
            }
        }
        usable
    }

    /// Compares the data map with the references that were counted.
    pub(super) fn compare_data<B: Blocks>(
        &mut self,
        blocks: &mut B,
        bitmaps: &Bitmaps,
        whole: bool,
    ) -> Result<(), B::Error> {
        let root = self.superblock.data_space_map;
        self.metadata.add(root.ref_count_root.0);
        let tree = Tree::of(Family::DataCounts);
        let mut walk = Walk::<RefCount>::new(&mut self.seen, &mut self.graph);
        walk.add(tree, root.ref_count_root);
        let (counts, report) = (&mut self.data, &mut self.report);
        let compare = Compare { map: Map::Data, counts, whole, report };
        let mut visit = LargeCounts { metadata: &mut self.metadata, compare };
        walk.run(blocks, &mut visit)?;
        visit.compare.bitmaps(blocks, bitmaps, root.blocks)?;
        self.entries_below(&[(tree, root.ref_count_root)]);
        Ok(())
    }

    /// Compares the metadata map with the references that were counted. All must be counted before.
    pub(super) fn compare_metadata<B: Blocks>(
        &mut self,
        blocks: &mut B,
        bitmaps: &Bitmaps,
        large: &Large,
        whole: bool,
    ) -> Result<(), B::Error> {
        let (counts, report) = (&mut self.metadata, &mut self.report);
        let mut compare = Compare { map: Map::Metadata, counts, whole, report };
        for (block, count) in large {
            compare.large(*block, *count);
        }
        let end = self.superblock.metadata_space_map.blocks;
        compare.bitmaps(blocks, bitmaps, end)
    }
}

/// Visits the tree of large counts of data blocks.
struct LargeCounts<'a> {
    metadata: &'a mut Counts,
    compare: Compare<'a>,
}

impl Visit for LargeCounts<'_> {
    fn leaf(&mut self, _: Tree, leaf: &Node<'_>) {
        for (block, count) in leaf.entries::<RefCount>() {
            self.compare.large(block, count.0);
        }
    }

    fn internal(&mut self, node: &Node<'_>) {
        super::count_children(self.metadata, node);
    }

    fn fault(&mut self, place: NodeLocation, fault: Fault) {
        self.compare.report.add(Finding::Tree { place, fault });
    }
}

/// Compares stored counts with counted references.
struct Compare<'a> {
    map: Map,
    counts: &'a mut Counts,
    /// Whether every reference is known, that is, no tree is damaged.
    whole: bool,
    report: &'a mut Report,
}

impl Compare<'_> {
    /// Checks a count of the tree, and marks its block as having one.
    fn large(&mut self, block: u64, found: u32) {
        self.counts.mark(block);
        self.judge(block, found, self.counts.get(block));
    }

    fn judge(&mut self, block: u64, found: u32, expected: u32) {
        if found < expected || found > expected && self.whole {
            let (map, first, last) = (self.map, block, block);
            self.report.add(Finding::Count { map, first, last, found, expected });
        }
    }

    /// Checks the counts in all bitmaps of a map that has `end` blocks.
    fn bitmaps<B: Blocks>(
        &mut self,
        blocks: &mut B,
        bitmaps: &Bitmaps,
        end: u64,
    ) -> Result<(), B::Error> {
        let mut sorted = bitmaps.clone();
        sorted.sort_unstable_by_key(|(_, at)| *at);
        let wanted: Vec<_> = sorted.iter().map(|(_, at)| *at).collect();
        let mut next = sorted.iter();
        blocks.read(&wanted, &mut |at, bytes| {
            let Some((index, _)) = next.next() else { return };
            let bitmap = bytes.ok_or(Bad::Unreadable { at });
            match bitmap.and_then(|bytes| Ok(Bitmap::decode(bytes, at)?)) {
                Ok(bitmap) => self.bitmap(&bitmap, index * BITMAP_ENTRIES, end),
                Err(bad) => {
                    let (map, index, fault) = (self.map, *index, bad.into());
                    self.report.add(Finding::Bitmap { map, index, fault });
                }
            }
        })
    }

    fn bitmap(&mut self, bitmap: &Bitmap<'_>, begin: u64, end: u64) {
        self.beyond(bitmap, begin, end);
        let end = end.min(begin + BITMAP_ENTRIES).min(self.counts.blocks());
        for block in begin..end {
            let (found, expected) = (bitmap.get((block - begin) as usize), self.counts.get(block));
            let (in_tree, marked) = (found == COUNT_IN_TREE, self.counts.is_marked(block));
            match (found == expected.min(COUNT_IN_TREE), in_tree) {
                (true, true) if !marked => {
                    let map = self.map;
                    self.report.add(Finding::NoLargeCount { map, block, expected });
                }
                (true, _) => {}
                // The count is in the tree, and was checked there.
                (false, true) if marked => {}
                (false, _) => self.judge(block, found, expected),
            }
        }
    }

    /// Reports counts beyond the end of the map.
    fn beyond(&mut self, bitmap: &Bitmap<'_>, begin: u64, end: u64) {
        let first = end.saturating_sub(begin).min(BITMAP_ENTRIES);
        let found = (first..BITMAP_ENTRIES).filter(|entry| bitmap.get(*entry as usize) > 0).count();
        if found > 0 {
            let (map, found) = (self.map, found as u64);
            self.report.add(Finding::Beyond { map, end, found });
        }
    }
}
