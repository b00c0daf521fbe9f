//! Checks whether a pool's metadata is sound: walks every tree, counts every reference, compares
//! both space maps.
//!
//! [`check`] reads through [`Blocks`] and gives a [`Report`] of counts and findings. Each finding
//! has a [`Severity`], and the worst of them is the result. Nothing is repaired here.
//! [`check_held`] checks the metadata snapshot alone, and may do so while the pool is in use.
//!
//! Sound: free counts, hints and numbers of allocated blocks of any value (the kernel and the tools
//! write different ones, and no reader relies on them); stale nodes in free blocks; counts of
//! blocks beyond the end of a map, which are nevertheless reported.
//!
//! Not sound:
//! - a count above the number of references: space is lost, nothing else;
//! - a count below it: a block in use counted as free and could be overwritten, and perhaps was;
//! - a time that is too large for mappings: dm-thin then writes it over the data block's number;
//! - a broken space map: all of it can be derived from the trees;
//! - a broken tree: its contents are lost. Counts that are too high are then not reported, since
//!   the lost part may hold the references.
//!
//! Memory: a byte or two per metadata block, a byte per data block that is counted, the memory of a
//! [`Walk`], and at most [`FINDINGS_MAX`] findings; the rest are counted. No number in the metadata
//! can raise it: data blocks are counted only as far as there are distinct bitmaps for them.

mod finding;
mod held;
mod maps;

use std::collections::BTreeMap;

use super::block::Block;
use super::blocks::{Bad, Blocks, read_one};
use super::counts::Counts;
use super::leaves::entries;
use super::walk::{Family, Fault, Graph, NodeLocation, Seen, Tree, Visit, Walk};
use super::{
    BITMAP_ENTRIES, DeviceDetails, DeviceId, METADATA_BLOCKS_MAX, Mapping, MetadataBlock, Node,
    Opening, Superblock, TIME_MAX, Value,
};
pub use crate::severity::Severity;
pub use finding::{Finding, Map};
pub use held::check_held;

/// Limit on the findings kept in a report; further ones only count, for the severity too.
pub const FINDINGS_MAX: usize = 1000;

/// The sizes that the metadata is checked against.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Sectors of the data device, if known.
    pub data_sectors: Option<u64>,
}

/// What the check counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Thin volumes.
    pub devices: u64,
    /// Mappings of all volumes; a data block counts as often as it is mapped.
    pub mapped_blocks: u64,
    /// Metadata blocks in use.
    pub metadata_used: u64,
    /// Data blocks in use.
    pub data_used: u64,
}

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The superblock, if there is a sound one.
    pub superblock: Option<Superblock>,
    /// The worst finding.
    pub severity: Severity,
    /// The findings, at most [`FINDINGS_MAX`].
    pub findings: Vec<Finding>,
    /// How many findings there were beyond those.
    pub findings_left_out: u64,
    /// What was counted.
    pub totals: Totals,
}

impl Report {
    fn begin() -> Report {
        Report {
            superblock: None,
            severity: Severity::Sound,
            findings: Vec::new(),
            findings_left_out: 0,
            totals: Totals::default(),
        }
    }

    fn add(&mut self, finding: Finding) {
        self.severity = self.severity.max(finding.severity());
        if self.findings_left_out == 0
            && self.findings.last_mut().is_some_and(|last| last.extend(&finding))
        {
            return;
        }
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(finding);
        } else {
            self.findings_left_out += 1;
        }
    }
}

/// Checks a metadata device.
///
/// # Errors
/// Reading has to end.
pub fn check<B: Blocks>(blocks: &mut B, limits: Limits) -> Result<Report, B::Error> {
    let mut report = Report::begin();
    match read_one(blocks, MetadataBlock::SUPERBLOCK, Opening::decide)? {
        Err(bad) => report.add(Finding::Superblock(bad)),
        Ok(Opening::Blank) => report.add(Finding::Unformatted),
        Ok(Opening::Existing(superblock)) => {
            if superblock.needs_check() {
                report.add(Finding::NeedsCheck);
            }
            let count = sizes(&superblock, blocks.count(), limits, &mut report);
            report.superblock = Some((*superblock).clone());
            let mut within = Within { blocks, count };
            return Check::new(*superblock, count, report).run(&mut within);
        }
    }
    Ok(report)
}

/// Checks the superblock by itself. Returns the number of metadata blocks that can be in use.
fn sizes(superblock: &Superblock, count: u64, limits: Limits, report: &mut Report) -> u64 {
    if let Err(error) = superblock.refuse_writing() {
        report.add(Finding::ReadOnly(error));
    }
    if superblock.time > TIME_MAX {
        report.add(Finding::Time { found: superblock.time });
    }
    let (root, most) = (superblock.metadata_space_map, count.min(METADATA_BLOCKS_MAX));
    if root.blocks > most {
        report.add(Finding::MapSize { map: Map::Metadata, root, most });
    }
    let block_sectors = u64::from(superblock.data_block_size.sectors());
    let there = limits.data_sectors.map(|sectors| sectors / block_sectors);
    if let Some(most) = there.filter(|most| superblock.data_space_map.blocks > *most) {
        let root = superblock.data_space_map;
        report.add(Finding::MapSize { map: Map::Data, root, most });
    }
    root.blocks.min(most)
}

/// A device of which only the first blocks can be in use.
struct Within<'a, B> {
    blocks: &'a mut B,
    count: u64,
}

impl<B: Blocks> Blocks for Within<'_, B> {
    type Error = B::Error;

    fn count(&self) -> u64 {
        self.count
    }

    fn read(
        &mut self,
        wanted: &[MetadataBlock],
        each: &mut dyn FnMut(MetadataBlock, Option<&Block>),
    ) -> Result<(), B::Error> {
        self.blocks.read(wanted, each)
    }
}

/// The devices of the pool, or of its metadata snapshot.
#[derive(Default)]
struct Devices {
    held: bool,
    details: BTreeMap<DeviceId, DeviceDetails>,
    roots: BTreeMap<DeviceId, MetadataBlock>,
}

/// A check in progress.
struct Check {
    superblock: Superblock,
    seen: Seen,
    graph: Graph,
    metadata: Counts,
    data: Counts,
    report: Report,
}

impl Check {
    fn new(superblock: Superblock, count: u64, report: Report) -> Check {
        Check {
            superblock,
            seen: Seen::none(count),
            graph: Graph::default(),
            metadata: Counts::new(count),
            data: Counts::new(0),
            report,
        }
    }

    fn run<B: Blocks>(mut self, blocks: &mut B) -> Result<Report, B::Error> {
        self.enter_superblock();
        let (metadata, large) = self.metadata_map(blocks)?;
        let data = self.data_map(blocks)?;
        let held = self.held(blocks)?;
        let mut sets = Vec::new();
        for (superblock, held) in [(Some(self.superblock.clone()), false), (held, true)] {
            if let Some(superblock) = superblock {
                sets.push(self.devices(blocks, &superblock, held)?);
            }
        }
        self.mappings(blocks, &sets)?;
        self.mapped_blocks(&sets);
        let whole = self.report.severity < Severity::Damaged;
        self.compare_data(blocks, &data, whole)?;
        self.compare_metadata(blocks, &metadata, &large, whole)?;
        if !whole {
            self.report.add(Finding::CountsLeftOut);
        }
        self.report.totals.metadata_used = self.metadata.used();
        self.report.totals.data_used = self.data.used();
        Ok(self.report)
    }

    fn enter_superblock(&mut self) {
        // This cannot fail: the block was just read as a superblock.
        let _fresh = self.seen.enter(MetadataBlock::SUPERBLOCK, Family::Superblock);
        self.metadata.add(0);
    }

    /// The superblock of the metadata snapshot, if one is held.
    fn held<B: Blocks>(&mut self, blocks: &mut B) -> Result<Option<Superblock>, B::Error> {
        let Some(at) = self.superblock.held_root else { return Ok(None) };
        self.metadata.add(at.0);
        let read = read_one(blocks, at, |bytes| Superblock::decode(bytes, at))?;
        match (read, self.seen.enter(at, Family::Superblock)) {
            (Ok(superblock), Ok(_)) => return Ok(Some(superblock)),
            (Err(bad), _) => self.report.add(Finding::Held(bad)),
            (Ok(_), Err(fault)) => {
                let tree = Tree { held: true, ..Tree::of(Family::Superblock) };
                let place = NodeLocation { tree, block: at, first: 0, last: u64::MAX };
                self.report.add(Finding::Tree { place, fault });
            }
        }
        Ok(None)
    }

    /// Walks the details tree and the top-level tree, and lists their entries. Those of the
    /// metadata snapshot come second, and share nodes with the pool's.
    fn devices<B: Blocks>(
        &mut self,
        blocks: &mut B,
        superblock: &Superblock,
        held: bool,
    ) -> Result<Devices, B::Error> {
        let (details, top) = (superblock.details_root, superblock.mapping_root);
        let tree = |family| Tree { held, ..Tree::of(family) };
        self.walk::<DeviceDetails, B>(blocks, tree(Family::Details), details, |_, _| {})?;
        self.walk::<MetadataBlock, B>(blocks, tree(Family::TopLevel), top, |counts, leaf| {
            for (_, root) in leaf.entries::<MetadataBlock>() {
                counts.add(root.0);
            }
        })?;
        let found = (
            entries::<DeviceDetails, B>(blocks, details, &mut |_, _| {})?,
            entries::<MetadataBlock, B>(blocks, top, &mut |_, _| {})?,
        );
        let devices = Devices {
            held,
            details: self.by_device(found.0, Family::Details),
            roots: self.by_device(found.1, Family::TopLevel),
        };
        for device in devices.details.keys().filter(|id| !devices.roots.contains_key(id)) {
            let (device, missing) = (*device, Family::TopLevel);
            self.report.add(Finding::HalfADevice { device, held, missing });
        }
        for device in devices.roots.keys().filter(|id| !devices.details.contains_key(id)) {
            let (device, missing) = (*device, Family::Details);
            self.report.add(Finding::HalfADevice { device, held, missing });
        }
        Ok(devices)
    }

    fn by_device<T>(&mut self, entries: Vec<(u64, T)>, family: Family) -> BTreeMap<DeviceId, T> {
        let mut devices = BTreeMap::new();
        for (key, value) in entries {
            match DeviceId::new(key) {
                Ok(device) => drop(devices.insert(device, value)),
                Err(_) => self.report.add(Finding::BadDeviceId { family, key }),
            }
        }
        devices
    }

    /// Walks one tree whose leaves hold no data blocks.
    fn walk<V: Value, B: Blocks>(
        &mut self,
        blocks: &mut B,
        tree: Tree,
        root: MetadataBlock,
        leaf: impl FnMut(&mut Counts, &Node<'_>),
    ) -> Result<(), B::Error> {
        self.metadata.add(root.0);
        let mut walk = Walk::<V>::new(&mut self.seen, &mut self.graph);
        walk.add(tree, root);
        let mut visit = Other { counts: &mut self.metadata, report: &mut self.report, leaf };
        walk.run(blocks, &mut visit)?;
        self.entries_below(&[(tree, root)]);
        Ok(())
    }

    /// Entries in the leaves of some trees; none where a node was not found. Reports loops.
    fn entries_below(&mut self, trees: &[(Tree, MetadataBlock)]) -> Vec<Option<u64>> {
        let below = self.graph.entries_below(trees.iter().map(|(_, root)| *root));
        let below = below.into_iter().zip(trees);
        let counted = below.map(|(counted, (tree, root))| {
            counted.unwrap_or_else(|fault| {
                let place = NodeLocation { tree: *tree, block: *root, first: 0, last: u64::MAX };
                self.report.add(Finding::Tree { place, fault });
                None
            })
        });
        counted.collect()
    }

    /// Walks the mapping trees of all devices together.
    fn mappings<B: Blocks>(&mut self, blocks: &mut B, sets: &[Devices]) -> Result<(), B::Error> {
        let mut walk = Walk::<Mapping>::new(&mut self.seen, &mut self.graph);
        for (tree, root) in sets.iter().flat_map(Devices::trees) {
            walk.add(tree, root);
        }
        let mut visit = Mappings {
            metadata: &mut self.metadata,
            data: &mut self.data,
            blocks: self.superblock.data_space_map.blocks,
            time: self.superblock.time,
            report: &mut self.report,
        };
        walk.run(blocks, &mut visit)
    }

    /// Compares the number of leaf entries with the details, and sums up those of the first set.
    fn mapped_blocks(&mut self, sets: &[Devices]) {
        let trees: Vec<_> = sets.iter().flat_map(Devices::trees).collect();
        let counted = self.entries_below(&trees).into_iter().zip(&trees);
        let mut details = sets.iter().flat_map(|set| {
            set.roots.keys().map(|device| (*device, set.held, set.details.get(device)))
        });
        let first = sets.first().map(|set| set.held);
        for (counted, _) in counted {
            let Some((device, held, details)) = details.next() else { break };
            let (Some(expected), Some(details)) = (counted, details) else { continue };
            let found = details.mapped_blocks;
            if found != expected {
                self.report.add(Finding::MappedBlocks { device, held, found, expected });
            }
            if Some(held) == first {
                let totals = &mut self.report.totals;
                totals.mapped_blocks = totals.mapped_blocks.saturating_add(expected);
            }
        }
        self.report.totals.devices = sets.first().map_or(0, |set| set.roots.len() as u64);
    }
}

impl Devices {
    /// The mapping trees.
    fn trees(&self) -> impl Iterator<Item = (Tree, MetadataBlock)> + '_ {
        self.roots.iter().map(|(device, root)| {
            let (family, device, held) = (Family::Mappings, Some(*device), self.held);
            (Tree { family, device, held }, *root)
        })
    }
}

/// Visits trees whose leaves hold no data blocks.
struct Other<'a, F> {
    counts: &'a mut Counts,
    report: &'a mut Report,
    leaf: F,
}

impl<F: FnMut(&mut Counts, &Node<'_>)> Visit for Other<'_, F> {
    fn leaf(&mut self, _: Tree, leaf: &Node<'_>) {
        (self.leaf)(self.counts, leaf);
    }

    fn internal(&mut self, node: &Node<'_>) {
        count_children(self.counts, node);
    }

    fn fault(&mut self, place: NodeLocation, fault: Fault) {
        self.report.add(Finding::Tree { place, fault });
    }
}

/// Visits mapping trees.
struct Mappings<'a> {
    metadata: &'a mut Counts,
    data: &'a mut Counts,
    blocks: u64,
    time: u32,
    report: &'a mut Report,
}

impl Visit for Mappings<'_> {
    fn leaf(&mut self, tree: Tree, leaf: &Node<'_>) {
        let (blocks, time) = (self.blocks, self.time);
        for (key, mapping) in leaf.entries::<Mapping>() {
            self.data.add(mapping.block.0);
            if mapping.block.0 >= blocks || mapping.time > time {
                let place = NodeLocation { tree, block: leaf.at(), first: key, last: key };
                self.report.add(Finding::Mapping { place, key, mapping, blocks, time });
            }
        }
    }

    fn internal(&mut self, node: &Node<'_>) {
        count_children(self.metadata, node);
    }

    fn fault(&mut self, place: NodeLocation, fault: Fault) {
        self.report.add(Finding::Tree { place, fault });
    }
}

fn count_children(counts: &mut Counts, node: &Node<'_>) {
    for (_, child) in node.entries::<MetadataBlock>() {
        counts.add(child.0);
    }
}

/// Why a bitmap cannot be used, if it cannot.
fn bad(at: MetadataBlock, family: Family, seen: &mut Seen) -> Option<Fault> {
    match seen.enter(at, family) {
        Ok(true) => None,
        Ok(false) => Some(Fault::UsedTwice { at, found: family }),
        Err(fault) => Some(fault),
    }
}

/// The fault of a block beyond the end.
fn outside(at: MetadataBlock, count: u64) -> Fault {
    Bad::Outside { at, count }.into()
}
