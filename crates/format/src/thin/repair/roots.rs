//! Searches for the roots of a pool whose superblock does not contain them, among all blocks.
//!
//! A commit leaves old nodes in free blocks, so there may be several roots. A details tree and a
//! top-level tree belong together if they have the same devices. The blocks of a commit are not
//! overwritten before the next commit. So a pair is not the last one if it leads to a sound block
//! of another kind, or to other numbers of mappings than its details say. But blocks may be lost: a
//! pair *fits* if no such contradiction is found and at least half of its mappings can be reached.
//!
//! Details trees are tried in this order: the one that a superblock names, then the newest, by
//! time, transaction and mappings. Among details that are equally new, the pair that reaches most
//! is taken, by the sum of the mappings' times. The first pair that fits is taken. If none fits,
//! the pair that reaches most is taken. If no details match any top-level tree, the top-level tree
//! with the newest mappings is taken. Details that a superblock names are kept if they are whole,
//! whatever top-level tree is found: an older top-level tree may have other devices.
//!
//! Memory: that of a [`Scan`], some 80 bytes per distinct candidate, 32 bytes per distinct mapping
//! tree, and the entries of one pair at a time. At most the [`CANDIDATES_MAX`] newest details trees
//! are candidates; 24 bytes are kept of each that was one, to recognise equal ones.

use core::hash::Hasher;
use std::hash::DefaultHasher;

use rustc_hash::{FxHashMap, FxHashSet};

use super::scan::{Class, Scan};
use super::whole::{End, read_whole};
use crate::thin::block::Block;
use crate::thin::blocks::{Blocks, read_one};
use crate::thin::leaves::each_leaf;
use crate::thin::{DeviceDetails, DeviceId, Mapping, MetadataBlock, Node, Superblock, Value};

/// Limit on the details trees that are considered.
const CANDIDATES_MAX: usize = 4096;

/// The two trees that lead to all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Roots {
    /// None if no details tree was found.
    pub(super) details: Option<MetadataBlock>,
    pub(super) top: MetadataBlock,
}

impl Roots {
    pub(super) fn of(superblock: &Superblock) -> Roots {
        Roots { details: Some(superblock.details_root), top: superblock.mapping_root }
    }

    /// Whether the root of the top-level tree is a node. The root of the details may be lost:
    /// details can be made up.
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
    /// The newest superblock of a metadata snapshot.
    pub(super) superblock: Option<Superblock>,
}

/// Searches for the roots; the details may be those of the superblock.
pub(super) fn search<B: Blocks>(
    blocks: &mut B,
    named: Option<MetadataBlock>,
) -> Result<Found, B::Error> {
    let scan = Scan::run(blocks)?;
    let mut search = Search { blocks, scan: &scan, trees: FxHashMap::default() };
    let details = search.details(named)?;
    let tops = search.tops()?;
    let roots = match search.best_pair(&details, &tops)? {
        Some(pair) => Some(pair),
        None => search.best_top(&tops)?,
    };
    // Named details are the first candidate, if they are a candidate.
    let whole = details.first().map(|first| first.root).filter(|root| named == Some(*root));
    let roots = roots.map(|roots| Roots { details: whole.or(roots.details), ..roots });
    Ok(Found { roots, superblock: scan.superblock })
}

/// The devices of a tree: their number, and a hash of their ids.
type Devices = (u64, u64);

/// How new a details tree is: named by the superblock, not empty, time, transaction, mappings.
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

/// The result of reading a tree, the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    /// It leads to a block of another kind; reading stopped there.
    Stale,
    /// Blocks of it are lost.
    Torn,
    /// All of it was read.
    Whole,
}

/// The part of a mapping tree that can be reached.
#[derive(Clone, Copy)]
struct Tree {
    state: State,
    mapped: u64,
    /// The newest mapping's time.
    newest: u32,
    /// The sum of all mappings' times.
    times: u64,
}

/// What a pair of trees leads to.
struct Pair {
    roots: Roots,
    /// Whether it can be the last commit.
    fits: bool,
    /// The sum of the times of the mappings that can be reached, and their number.
    reach: (u64, u64),
}

/// A search in progress.
struct Search<'a, B> {
    blocks: &'a mut B,
    scan: &'a Scan,
    /// The contents of each mapping tree that was walked.
    trees: FxHashMap<MetadataBlock, Tree>,
}

impl<B: Blocks> Search<'_, B> {
    /// The distinct whole details trees, the newest first.
    fn details(&mut self, named: Option<MetadataBlock>) -> Result<Vec<Details>, B::Error> {
        let (mut found, mut seen) = (Vec::new(), FxHashSet::default());
        let all = named.into_iter().chain(self.scan.roots(Class::Details));
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

    /// The distinct whole top-level trees.
    fn tops(&mut self) -> Result<Vec<Top>, B::Error> {
        let (mut found, mut seen) = (Vec::new(), FxHashSet::default());
        let count = self.blocks.count();
        for root in self.scan.roots(Class::Top) {
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

    /// The devices of a tree, if it is whole, its keys are device ids, and `take` accepts every
    /// value.
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

    /// Chooses the pair.
    fn best_pair(&mut self, details: &[Details], tops: &[Top]) -> Result<Option<Roots>, B::Error> {
        let mut by_devices: FxHashMap<Devices, Vec<MetadataBlock>> = FxHashMap::default();
        for top in tops {
            by_devices.entry(top.devices).or_default().push(top.root);
        }
        let mut most: Option<Pair> = None;
        for same_age in details.chunk_by(|a, b| a.age == b.age) {
            let mut best: Option<Pair> = None;
            for one in same_age {
                let Some(tops) = by_devices.get(&one.devices) else { continue };
                let known = self.entries::<DeviceDetails>(one.root)?;
                for top in tops {
                    let pair = self.pair(&known, Roots { details: Some(one.root), top: *top })?;
                    let best = if pair.fits { &mut best } else { &mut most };
                    if best.as_ref().is_none_or(|best| pair.reach > best.reach) {
                        *best = Some(pair);
                    }
                }
            }
            if let Some(best) = best {
                return Ok(Some(best.roots));
            }
        }
        Ok(most.map(|pair| pair.roots))
    }

    /// Determines what these two trees lead to.
    fn pair(&mut self, details: &[(u64, DeviceDetails)], roots: Roots) -> Result<Pair, B::Error> {
        let tops = self.entries::<MetadataBlock>(roots.top)?;
        let mut fits = details.len() == tops.len();
        let (mut expected, mut mapped, mut times) = (0_u64, 0_u64, 0_u64);
        for ((id, details), (same, root)) in details.iter().zip(&tops) {
            let tree = self.tree(*root)?;
            fits &= id == same && tree.fits(details);
            expected = expected.saturating_add(details.mapped_blocks);
            mapped = mapped.saturating_add(tree.mapped);
            times = times.saturating_add(tree.times);
        }
        fits &= mapped >= expected.div_ceil(2);
        Ok(Pair { roots, fits, reach: (times, mapped) })
    }

    /// Chooses a top-level tree when there are no details: the newest that does not lead to a block
    /// of another kind.
    fn best_top(&mut self, tops: &[Top]) -> Result<Option<Roots>, B::Error> {
        let mut best = None;
        for top in tops {
            let (mut fits, mut newest, mut mapped) = (true, None, 0_u64);
            for (_, root) in self.entries::<MetadataBlock>(top.root)? {
                let tree = self.tree(root)?;
                fits &= tree.state != State::Stale;
                if tree.mapped > 0 {
                    newest = newest.max(Some(tree.newest));
                    mapped = mapped.saturating_add(tree.mapped);
                }
            }
            let rank = (newest.is_some(), fits, newest, mapped);
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

    /// The contents of a mapping tree. Each tree is walked once.
    fn tree(&mut self, root: MetadataBlock) -> Result<Tree, B::Error> {
        if let Some(known) = self.trees.get(&root) {
            return Ok(*known);
        }
        let mut tree = Tree { state: State::Whole, mapped: 0, newest: 0, times: 0 };
        let scan = self.scan;
        let read = each_leaf::<Mapping, B, End<B::Error>>(self.blocks, root, &mut |at, leaf| {
            match leaf {
                Ok(leaf) => tree.take(leaf),
                Err(_) if scan.is_lost(at.block) => tree.state = State::Torn,
                Err(_) => {
                    tree.state = State::Stale;
                    return Err(End::Unfit);
                }
            }
            Ok(())
        });
        if let Err(End::Reading(error)) = read {
            return Err(error);
        }
        self.trees.insert(root, tree);
        Ok(tree)
    }
}

impl Tree {
    fn take(&mut self, leaf: &Node<'_>) {
        for (_, mapping) in leaf.entries::<Mapping>() {
            self.mapped += 1;
            self.newest = self.newest.max(mapping.time);
            self.times += u64::from(mapping.time);
        }
    }

    /// Whether it can be the tree that the details describe.
    fn fits(&self, details: &DeviceDetails) -> bool {
        match self.state {
            State::Stale => false,
            State::Torn => self.mapped <= details.mapped_blocks,
            State::Whole => self.mapped == details.mapped_blocks,
        }
    }
}

/// Sorts the candidates and keeps the newest [`CANDIDATES_MAX`]; of equal ones the first found.
fn keep_newest(found: &mut Vec<Details>) {
    found.sort_by_key(|one| core::cmp::Reverse(one.age));
    found.truncate(CANDIDATES_MAX);
}
