//! The roots of a pool whose superblock does not tell them: every block is looked at.
//!
//! A commit leaves old nodes in free blocks, so that several roots may be there. A details tree and
//! a top-level tree belong together if they have the same devices; a pair is whole if every mapping
//! tree can be walked and has as many entries as the details say. The details that a superblock
//! names come first, then the newest, by time, transaction and mappings. The first whole pair is
//! taken, of equals the one with the newest mappings; else the first pair; where no details fit any
//! top-level tree, the one of these with the newest mappings.
//!
//! Memory: what a [`Scan`] takes, some 80 bytes per candidate, of which those alike are one, 24
//! bytes per distinct mapping tree, and the entries of one pair at a time. Of details trees no more
//! than the [`CANDIDATES_MAX`] newest are candidates.

use core::hash::Hasher;
use std::hash::DefaultHasher;

use rustc_hash::{FxHashMap, FxHashSet};

use super::scan::{Class, Scan};
use crate::thin::block::Block;
use crate::thin::blocks::{Blocks, read_one};
use crate::thin::leaves::each_leaf;
use crate::thin::{DeviceDetails, DeviceId, Mapping, MetadataBlock, Node, Superblock, Value};

/// Details trees that are considered.
const CANDIDATES_MAX: usize = 4096;

/// The two trees that lead to all else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Roots {
    /// If there is one.
    pub(super) details: Option<MetadataBlock>,
    pub(super) top: MetadataBlock,
}

impl Roots {
    pub(super) fn of(superblock: &Superblock) -> Roots {
        Roots { details: Some(superblock.details_root), top: superblock.mapping_root }
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

/// Looks for the roots; the details may be those of the superblock.
pub(super) fn search<B: Blocks>(
    blocks: &mut B,
    named: Option<MetadataBlock>,
) -> Result<Found, B::Error> {
    let scan = Scan::run(blocks)?;
    let mut search = Search { blocks, trees: FxHashMap::default() };
    let details = search.details(&scan, named)?;
    let tops = search.tops(&scan)?;
    let roots = match search.best_pair(&details, &tops)? {
        Some(pair) => Some(pair),
        None => search.best_top(&tops)?,
    };
    Ok(Found { roots, superblock: scan.superblock })
}

/// Which devices a tree has: how many, and a hash of their ids.
type Devices = (u64, u64);

/// How new a details tree is: named by the superblock, devices at all, time, transaction, mappings.
type Age = (bool, bool, u32, u64, u64);

/// A details tree.
#[derive(Clone, Copy)]
struct Details {
    root: MetadataBlock,
    devices: Devices,
    age: Age,
}

/// A top-level tree.
#[derive(Clone, Copy)]
struct Top {
    root: MetadataBlock,
    devices: Devices,
}

/// What a mapping tree holds.
#[derive(Clone, Copy)]
struct Tree {
    mapped: u64,
    /// The newest mapping's time.
    newest: u32,
    /// The sum of all mappings' times.
    times: u64,
}

/// Why a tree is not read to its end.
enum End<E> {
    Reading(E),
    /// It is not what it should be.
    Unfit,
}

impl<E> From<E> for End<E> {
    fn from(error: E) -> End<E> {
        End::Reading(error)
    }
}

/// Hands on each entry of a tree. Ends with the first gap, or entry that `take` does not want:
/// false.
fn read_whole<V: Value, B: Blocks>(
    blocks: &mut B,
    root: MetadataBlock,
    take: &mut dyn FnMut(u64, V) -> bool,
) -> Result<bool, B::Error> {
    let read = each_leaf::<V, B, End<B::Error>>(blocks, root, &mut |_, leaf| match leaf {
        Ok(leaf) if leaf.entries::<V>().all(|(key, value)| take(key, value)) => Ok(()),
        _ => Err(End::Unfit),
    });
    match read {
        Ok(()) => Ok(true),
        Err(End::Unfit) => Ok(false),
        Err(End::Reading(error)) => Err(error),
    }
}

/// A search under way.
struct Search<'a, B> {
    blocks: &'a mut B,
    /// What each mapping tree that was walked holds, if it is whole.
    trees: FxHashMap<MetadataBlock, Option<Tree>>,
}

impl<B: Blocks> Search<'_, B> {
    /// The distinct details trees that are whole, the newest first.
    fn details(
        &mut self,
        scan: &Scan,
        named: Option<MetadataBlock>,
    ) -> Result<Vec<Details>, B::Error> {
        let (mut found, mut seen) = (Vec::new(), FxHashSet::default());
        let all = named.into_iter().chain(scan.roots(Class::Details));
        for root in all {
            let mut age = (named == Some(root), false, 0, 0, 0_u64);
            let mut hash = DefaultHasher::new();
            let devices = self.devices::<DeviceDetails>(root, &mut |details| {
                let DeviceDetails { mapped_blocks, transaction_id, creation_time, .. } = details;
                let (_, some, time, transaction, mapped) = &mut age;
                *some = true;
                *time = creation_time.max(details.snapshotted_time).max(*time);
                *transaction = transaction_id.max(*transaction);
                *mapped = mapped.saturating_add(mapped_blocks);
                hash.write_u64(mapped_blocks);
                hash.write_u64(transaction_id);
                hash.write_u32(creation_time);
                hash.write_u32(details.snapshotted_time);
                true
            })?;
            let Some(devices) = devices else { continue };
            if seen.insert((devices, hash.finish())) {
                found.push(Details { root, devices, age });
            }
            if found.len() >= 2 * CANDIDATES_MAX {
                keep_newest(&mut found);
            }
        }
        keep_newest(&mut found);
        Ok(found)
    }

    /// The distinct top-level trees that are whole.
    fn tops(&mut self, scan: &Scan) -> Result<Vec<Top>, B::Error> {
        let (mut found, mut seen) = (Vec::new(), FxHashSet::default());
        let count = self.blocks.count();
        for root in scan.roots(Class::Top) {
            let mut hash = DefaultHasher::new();
            let devices = self.devices::<MetadataBlock>(root, &mut |root| {
                hash.write_u64(root.0);
                root.0 < count
            })?;
            let Some(devices) = devices else { continue };
            if seen.insert((devices, hash.finish())) {
                found.push(Top { root, devices });
            }
        }
        Ok(found)
    }

    /// The devices of a tree, if it is whole, has devices for keys, and `take` wants every value.
    fn devices<V: Value>(
        &mut self,
        root: MetadataBlock,
        take: &mut dyn FnMut(V) -> bool,
    ) -> Result<Option<Devices>, B::Error> {
        let (mut count, mut ids) = (0, DefaultHasher::new());
        let whole = read_whole::<V, B>(self.blocks, root, &mut |key, value| {
            count += 1;
            ids.write_u64(key);
            DeviceId::new(key).is_ok() && take(value)
        })?;
        Ok(whole.then(|| (count, ids.finish())))
    }

    /// The pair to take.
    fn best_pair(&mut self, details: &[Details], tops: &[Top]) -> Result<Option<Roots>, B::Error> {
        let mut by_devices: FxHashMap<Devices, Vec<MetadataBlock>> = FxHashMap::default();
        for top in tops {
            by_devices.entry(top.devices).or_default().push(top.root);
        }
        let mut first = None;
        for same_age in details.chunk_by(|a, b| a.age == b.age) {
            let mut best: Option<(u64, Roots)> = None;
            for one in same_age {
                let Some(tops) = by_devices.get(&one.devices) else { continue };
                let known = self.entries::<DeviceDetails>(one.root)?;
                for top in tops {
                    let roots = Roots { details: Some(one.root), top: *top };
                    first = first.or(Some(roots));
                    let times = self.times(&known, *top)?;
                    if times > best.map(|(times, _)| times) {
                        best = times.map(|times| (times, roots));
                    }
                }
            }
            if let Some((_, roots)) = best {
                return Ok(Some(roots));
            }
        }
        Ok(first)
    }

    /// The sum of all mappings' times, if every mapping tree has what the details say.
    fn times(
        &mut self,
        details: &[(u64, DeviceDetails)],
        top: MetadataBlock,
    ) -> Result<Option<u64>, B::Error> {
        let tops = self.entries::<MetadataBlock>(top)?;
        let mut times = 0_u64;
        for ((id, details), (same, root)) in details.iter().zip(&tops) {
            match self.tree(*root)? {
                Some(tree) if id == same && tree.mapped == details.mapped_blocks => {
                    times = times.saturating_add(tree.times);
                }
                _ => return Ok(None),
            }
        }
        Ok((details.len() == tops.len()).then_some(times))
    }

    /// The top-level tree to take if there are no details: the newest, and rather a whole one.
    fn best_top(&mut self, tops: &[Top]) -> Result<Option<Roots>, B::Error> {
        let mut best = None;
        for top in tops {
            let (mut whole, mut newest, mut mapped) = (true, None, 0_u64);
            for (_, root) in self.entries::<MetadataBlock>(top.root)? {
                let tree = self.tree(root)?;
                whole &= tree.is_some();
                if let Some(tree) = tree.filter(|tree| tree.mapped > 0) {
                    newest = newest.max(Some(tree.newest));
                    mapped = mapped.saturating_add(tree.mapped);
                }
            }
            let rank = (newest.is_some(), whole, newest, mapped);
            if best.is_none_or(|(best, _)| rank > best) {
                best = Some((rank, Roots { details: None, top: top.root }));
            }
        }
        Ok(best.map(|(_, roots)| roots))
    }

    fn entries<V: Value>(&mut self, root: MetadataBlock) -> Result<Vec<(u64, V)>, B::Error> {
        let mut all = Vec::new();
        read_whole::<V, B>(self.blocks, root, &mut |key, value| {
            all.push((key, value));
            true
        })?;
        Ok(all)
    }

    /// What a mapping tree holds, if it is whole. Each is walked once.
    fn tree(&mut self, root: MetadataBlock) -> Result<Option<Tree>, B::Error> {
        if let Some(known) = self.trees.get(&root) {
            return Ok(*known);
        }
        let mut tree = Tree { mapped: 0, newest: 0, times: 0 };
        let whole = read_whole::<Mapping, B>(self.blocks, root, &mut |_, mapping| {
            tree.mapped += 1;
            tree.newest = tree.newest.max(mapping.time);
            tree.times += u64::from(mapping.time);
            true
        })?;
        let tree = whole.then_some(tree);
        self.trees.insert(root, tree);
        Ok(tree)
    }
}

/// Keeps as many as may be considered, sorted; of equals those found first.
fn keep_newest(found: &mut Vec<Details>) {
    found.sort_by_key(|one| core::cmp::Reverse(one.age));
    found.truncate(CANDIDATES_MAX);
}
