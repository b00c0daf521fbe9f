//! The roots of a pool whose superblock does not tell them: every block is looked at.
//!
//! A commit leaves old nodes in free blocks, so that several roots may be there. A details tree and
//! a top-level tree belong together if they have the same devices; a pair is whole if every mapping
//! tree can be walked and has as many entries as the details say. The newest whole pair is taken,
//! newest by time, transaction, mappings and their times; else the newest pair.
//!
//! Memory: a byte per metadata block, and the details of the candidates, at most
//! [`CANDIDATES_MAX`] of them.

use rustc_hash::FxHashSet;

use crate::thin::block::{self, Block, Kind};
use crate::thin::blocks::{Blocks, read_one};
use crate::thin::leaves::{each_leaf, entries};
use crate::thin::walk::Fault;
use crate::thin::{
    DeviceDetails, DeviceId, METADATA_BLOCKS_MAX, Mapping, MetadataBlock, Node, NodeKind,
    Superblock, Value,
};

/// Roots of either tree that are considered.
const CANDIDATES_MAX: usize = 4096;
/// Blocks asked for at once.
const SCAN_BLOCKS: u64 = 4096;

/// The two trees that lead to all else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Roots {
    pub(super) details: MetadataBlock,
    pub(super) top: MetadataBlock,
}

impl Roots {
    pub(super) fn of(superblock: &Superblock) -> Roots {
        Roots { details: superblock.details_root, top: superblock.mapping_root }
    }

    /// Whether the root of the top-level tree is a node. The other root may be lost: it leads to
    /// nothing that cannot be made up.
    pub(super) fn lead_to_devices<B: Blocks>(self, blocks: &mut B) -> Result<bool, B::Error> {
        let at = self.top;
        let node = read_one(blocks, at, |bytes: &Block| {
            Node::decode(bytes, at).and_then(Node::expect::<MetadataBlock>).map(drop)
        })?;
        Ok(node.is_ok())
    }
}

/// What a search found.
pub(super) struct Found {
    pub(super) roots: Option<Roots>,
    /// A superblock that a metadata snapshot holds.
    pub(super) superblock: Option<Superblock>,
}

/// What blocks are, as far as they may be roots.
#[derive(Default)]
struct Scan {
    internal: Vec<MetadataBlock>,
    details: Vec<MetadataBlock>,
    top: Vec<MetadataBlock>,
    children: FxHashSet<MetadataBlock>,
    superblock: Option<Superblock>,
}

/// Looks for the roots, beginning with those that the superblock names.
pub(super) fn search<B: Blocks>(blocks: &mut B, named: Option<Roots>) -> Result<Found, B::Error> {
    let scan = Scan::run(blocks)?;
    let (mut details, mut tops) = (Vec::new(), Vec::new());
    let roots = |of: &[MetadataBlock]| {
        let all = of.iter().chain(&scan.internal).copied();
        all.filter(|at| !scan.children.contains(at)).collect::<Vec<_>>()
    };
    for at in named.map(|named| named.details).into_iter().chain(roots(&scan.details)) {
        if details.len() < CANDIDATES_MAX {
            details.extend(devices::<DeviceDetails, B>(blocks, at)?);
        }
    }
    for at in named.map(|named| named.top).into_iter().chain(roots(&scan.top)) {
        if tops.len() < CANDIDATES_MAX {
            tops.extend(devices::<MetadataBlock, B>(blocks, at)?);
        }
    }
    let roots = best(blocks, &details, &tops)?;
    Ok(Found { roots, superblock: scan.superblock })
}

impl Scan {
    fn run<B: Blocks>(blocks: &mut B) -> Result<Scan, B::Error> {
        let mut scan = Scan::default();
        let count = blocks.count().min(METADATA_BLOCKS_MAX);
        for begin in (0..count).step_by(SCAN_BLOCKS as usize) {
            let end = count.min(begin + SCAN_BLOCKS);
            let wanted: Vec<_> = (begin..end).map(MetadataBlock).collect();
            blocks.read(&wanted, &mut |at, bytes| {
                if let Some(bytes) = bytes {
                    scan.look(at, bytes);
                }
            })?;
        }
        Ok(scan)
    }

    fn look(&mut self, at: MetadataBlock, bytes: &Block) {
        match block::identify(bytes) {
            Some(Kind::Superblock) => self.superblock = Superblock::decode(bytes, at).ok(),
            Some(Kind::Node) => {}
            _ => return,
        }
        let Ok(node) = Node::decode(bytes, at) else { return };
        match (node.kind(), node.value_bytes()) {
            (NodeKind::Internal, _) => {
                self.internal.push(at);
                self.children.extend(node.entries::<MetadataBlock>().map(|(_, child)| child));
            }
            (NodeKind::Leaf, DeviceDetails::BYTES) => self.details.push(at),
            (NodeKind::Leaf, MetadataBlock::BYTES) if may_be_top(&node) => self.top.push(at),
            _ => {}
        }
    }
}

/// Whether the keys are those of devices, and the values those of metadata blocks.
fn may_be_top(node: &Node<'_>) -> bool {
    node.entries::<MetadataBlock>()
        .all(|(key, root)| DeviceId::new(key).is_ok() && root.0 < METADATA_BLOCKS_MAX)
}

/// A tree with devices for keys.
struct Candidate<V> {
    root: MetadataBlock,
    entries: Vec<(u64, V)>,
}

/// The tree at a root, if it is whole and has devices for keys.
fn devices<V: Value, B: Blocks>(
    blocks: &mut B,
    root: MetadataBlock,
) -> Result<Option<Candidate<V>>, B::Error> {
    let mut whole = true;
    let entries = entries::<V, B>(blocks, root, &mut |_, _| whole = false)?;
    whole &= entries.iter().all(|(key, _)| DeviceId::new(*key).is_ok());
    Ok(whole.then_some(Candidate { root, entries }))
}

/// The pair to take.
fn best<B: Blocks>(
    blocks: &mut B,
    details: &[Candidate<DeviceDetails>],
    tops: &[Candidate<MetadataBlock>],
) -> Result<Option<Roots>, B::Error> {
    let mut pairs = Vec::new();
    for detail in details {
        let same = |top: &&Candidate<MetadataBlock>| {
            let keys = top.entries.iter().map(|(key, _)| key);
            keys.eq(detail.entries.iter().map(|(key, _)| key))
        };
        pairs.extend(tops.iter().filter(same).map(|top| (age(detail), detail, top)));
    }
    // The newest first; of equals, what was named first.
    pairs.sort_by_key(|(age, _, _)| core::cmp::Reverse(*age));
    let (mut newest, mut chosen) = (None, None);
    for (age, detail, top) in &pairs {
        if chosen.is_some_and(|(chosen, _, _)| chosen != *age) {
            break;
        }
        // Of pairs that are as old the one with the newest mappings.
        let times = mapping_times(blocks, detail, top)?;
        if times.is_some() && times > newest {
            newest = times;
            chosen = Some((*age, *detail, *top));
        }
    }
    let chosen = chosen.or(pairs.first().copied());
    Ok(chosen.map(|(_, detail, top)| Roots { details: detail.root, top: top.root }))
}

/// How new a details tree is: devices at all, time, transaction, mappings.
fn age(candidate: &Candidate<DeviceDetails>) -> (bool, u32, u64, u64) {
    let details = || candidate.entries.iter().map(|(_, details)| details);
    let time = details().map(|one| one.creation_time.max(one.snapshotted_time)).max();
    let transaction = details().map(|one| one.transaction_id).max();
    let mapped = details().map(|one| one.mapped_blocks).fold(0, u64::saturating_add);
    let some = !candidate.entries.is_empty();
    (some, time.unwrap_or(0), transaction.unwrap_or(0), mapped)
}

/// The sum of all mappings' times, if every mapping tree has what the details say.
fn mapping_times<B: Blocks>(
    blocks: &mut B,
    details: &Candidate<DeviceDetails>,
    top: &Candidate<MetadataBlock>,
) -> Result<Option<u64>, B::Error> {
    let mut times = 0_u64;
    for ((_, details), (_, root)) in details.entries.iter().zip(&top.entries) {
        let mut mapped = Some(0);
        each_leaf::<Mapping, B, B::Error>(blocks, *root, &mut |_, leaf: Result<_, Fault>| {
            let leaf: Option<&Node<'_>> = leaf.ok();
            mapped = mapped.zip(leaf).map(|(sum, leaf)| sum + leaf.len() as u64);
            let entries = leaf.into_iter().flat_map(|leaf| leaf.entries::<Mapping>());
            times = entries.fold(times, |sum, (_, mapping)| sum + u64::from(mapping.time));
            Ok(())
        })?;
        if mapped != Some(details.mapped_blocks) {
            return Ok(None);
        }
    }
    Ok(Some(times))
}
