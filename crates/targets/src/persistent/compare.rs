//! Compares two devices of one durable state, and finds the blocks that only one device has. Both
//! walk trees from key to key, and skip shared nodes without reading them.
//!
//! C1. A node that two trees share has the same content in both: nothing below it differs.
//! C2. A node with more than one pointer to it belongs to more than one device, with everything
//!     below it.

use std::ops::Range;

use cairn_block::Env;
use cairn_format::thin::{DeviceId, Mapping, MetadataBlock};

use super::error::{Error, MetadataPart, Path};
use super::nodes::{ALL_KEYS, Bounds, DEPTH_MAX, Entries, decode, too_deep};
use super::read::{Ancestor, Start, steps};
use super::store::Store;
use super::working::Working;

/// The result of a comparison for a range of virtual blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// The virtual blocks that it covers. The first range begins at the requested block, the last
    /// one ends at `u64::MAX`.
    pub keys: Range<u64>,
    /// Those of them that differ: in order, apart from each other.
    pub changed: Vec<Range<u64>>,
}

/// A path from a root down to a leaf, as far as it was walked.
struct Way {
    start: Start,
    steps: Vec<Ancestor>,
    /// The entries of each node but the last, and which of them the way takes.
    turns: Vec<(Vec<(u64, MetadataBlock)>, usize)>,
    leaf: Option<Vec<(u64, Mapping)>>,
}

impl Way {
    fn new(device: DeviceId, start: Start) -> Result<Way, Error> {
        let path =
            Path { place: MetadataPart::Mappings(device), block: start.root, keys: ALL_KEYS };
        start.bounds.check(&path, "root", start.root)?;
        let steps = vec![Ancestor { path, covers: ALL_KEYS }];
        Ok(Way { start, steps, turns: Vec::new(), leaf: None })
    }

    /// The entries of the node of a step after the one that the way takes.
    fn after(&self, step: usize) -> &[(u64, MetadataBlock)] {
        let (entries, index) = &self.turns[step];
        &entries[index + 1..]
    }

    fn last(&self) -> &Ancestor {
        self.steps.last().expect("a way begins at a root")
    }

    /// Descends by one node, unless it has reached a leaf.
    async fn descend(&mut self, store: &Store, env: &Env, key: u64) -> Result<(), Error> {
        if self.leaf.is_some() {
            return Ok(());
        }
        let (own, start) = (self.last(), &self.start);
        if self.steps.len() > DEPTH_MAX {
            return Err(too_deep(&own.path));
        }
        let node = store
            .nodes
            .fetch_one::<Mapping>(env, start.generation, &own.path, &start.bounds)
            .await?;
        match node {
            Entries::Leaf(mappings) => self.leaf = Some(mappings),
            Entries::Internal(entries) => {
                let index = child_of(&entries, key);
                let below = steps(&entries, own, index, 0);
                self.steps.extend(below);
                self.turns.push((entries, index));
            }
        }
        Ok(())
    }
}

/// The index of the child that covers `key`.
fn child_of<V>(entries: &[(u64, V)], key: u64) -> usize {
    entries.partition_point(|(own, _)| *own <= key).saturating_sub(1)
}

impl Store {
    /// Where two devices differ from virtual block `key` on, for one step of the walk: the stretch
    /// ends with a leaf, or with a part that both share. A virtual block differs if it is mapped to
    /// different data blocks, or in one device only.
    ///
    /// # Errors
    /// The durable state lacks one of the devices; or the metadata device failed, or is damaged.
    pub async fn compare(
        &self,
        env: &Env,
        devices: [DeviceId; 2],
        key: u64,
    ) -> Result<Stretch, Error> {
        let key = key.min(u64::MAX - 1);
        loop {
            let [one, other] = devices;
            let (start, with) = (self.start(one)?, self.start(other)?);
            let generation = start.generation;
            if with.generation != generation {
                continue;
            }
            let ways = [Way::new(one, start)?, Way::new(other, with)?];
            let result = self.compare_ways(env, ways, key).await;
            // R1, R2
            if self.generation() == generation {
                return result;
            }
        }
    }

    async fn compare_ways(
        &self,
        env: &Env,
        mut ways: [Way; 2],
        key: u64,
    ) -> Result<Stretch, Error> {
        loop {
            if let Some(end) = common_end(&ways) {
                return Ok(Stretch { keys: key..end, changed: Vec::new() });
            }
            if let [Some(one), Some(other)] = [&ways[0].leaf, &ways[1].leaf] {
                let end = ways[0].last().covers.end.min(ways[1].last().covers.end);
                let changed = differences(one, other, key..end);
                return Ok(Stretch { keys: key..end, changed });
            }
            for way in &mut ways {
                way.descend(self, env, key).await?;
            }
        }
    }
}

/// The end of the part that both ways share, if there is one (C1), including the following parts
/// that are the same in both.
fn common_end(ways: &[Way; 2]) -> Option<u64> {
    let [one, other] = ways;
    let (at, matching) = one.steps.iter().enumerate().find_map(|(at, step)| {
        let same = |matching: &Ancestor| matching.path.block == step.path.block;
        Some((at, other.steps.iter().position(same)?))
    })?;
    let (Some(above), Some(beside)) = (at.checked_sub(1), matching.checked_sub(1)) else {
        return Some(one.steps[at].covers.end.min(other.steps[matching].covers.end));
    };
    let (one_after, other_after) = (one.after(above), other.after(beside));
    let same = one_after.iter().zip(other_after).take_while(|(a, b)| a == b).count();
    let end = |after: &[(u64, MetadataBlock)], above: &Ancestor| {
        after.get(same).map_or(above.covers.end, |(key, _)| *key)
    };
    Some(end(one_after, &one.steps[above]).min(end(other_after, &other.steps[beside])))
}

/// The virtual blocks of a range that two leaves map differently.
fn differences(
    one: &[(u64, Mapping)],
    other: &[(u64, Mapping)],
    keys: Range<u64>,
) -> Vec<Range<u64>> {
    let inside = |entries: &[(u64, Mapping)]| -> Vec<(u64, u64)> {
        let entries = entries.iter().filter(|(key, _)| keys.contains(key));
        entries.map(|(key, mapping)| (*key, mapping.block.0)).collect()
    };
    let (one, other) = (inside(one), inside(other));
    let (mut a, mut b) = (one.iter().peekable(), other.iter().peekable());
    let mut changed: Vec<Range<u64>> = Vec::new();
    while let Some(key) = [a.peek(), b.peek()].into_iter().flatten().map(|(key, _)| *key).min() {
        let (left, right) = (a.next_if(|entry| entry.0 == key), b.next_if(|entry| entry.0 == key));
        if left == right {
            continue;
        }
        match changed.last_mut().filter(|last| last.end == key) {
            Some(last) => last.end += 1,
            None => changed.push(key..key + 1),
        }
    }
    changed
}

impl Working {
    /// How many data blocks only `device` maps, from virtual block `key` on, and where that count
    /// ends: with a node above leaves, or with a shared part (C2). Uncommitted changes are not
    /// seen.
    ///
    /// # Errors
    /// The durable state has no such device; or the metadata device failed, or is damaged.
    pub async fn own_blocks(
        &self,
        env: &Env,
        device: DeviceId,
        key: u64,
    ) -> Result<(u64, u64), Error> {
        self.guard_reading()?;
        let key = key.min(u64::MAX - 1);
        // No commit is published during this: the caller has the working state.
        let mut way = Way::new(device, self.store.start(device)?)?;
        loop {
            if !self.is_own(&way.last().path) {
                return Ok((way.last().covers.end, 0));
            }
            let depth = way.steps.len();
            way.descend(&self.store, env, key).await?;
            if let Some(mappings) = &way.leaf {
                let above = depth.checked_sub(2).map(|index| &way.steps[index]);
                return match above {
                    Some(above) => self.own_below(env, &way.start, above, key).await,
                    None => Ok((u64::MAX, self.own_mappings(mappings, key))),
                };
            }
        }
    }

    /// Like [`Working::own_blocks`], for one node above leaves; the leaves are read together.
    async fn own_below(
        &self,
        env: &Env,
        start: &Start,
        above: &Ancestor,
        key: u64,
    ) -> Result<(u64, u64), Error> {
        let (generation, bounds): (u64, &Bounds) = (start.generation, &start.bounds);
        let nodes = &self.store.nodes;
        let node = nodes.fetch_one::<Mapping>(env, generation, &above.path, bounds).await?;
        let Entries::Internal(entries) = node else { unreachable!("it led to a leaf") };
        let leaves = steps(&entries, above, child_of(&entries, key), entries.len());
        let own: Vec<Path> =
            leaves.into_iter().map(|leaf| leaf.path).filter(|path| self.is_own(path)).collect();
        let mut count = 0;
        for (bytes, path) in nodes.fetch(env, generation, &own).await?.iter().zip(&own) {
            if let Entries::Leaf(mappings) = decode(bytes, path, bounds)? {
                count += self.own_mappings(&mappings, key);
            }
        }
        Ok((above.covers.end, count))
    }

    fn own_mappings(&self, mappings: &[(u64, Mapping)], key: u64) -> u64 {
        let own =
            |entry: &&(u64, Mapping)| entry.0 >= key && self.data_count(entry.1.block) == Some(1);
        mappings.iter().filter(own).count() as u64
    }

    fn is_own(&self, path: &Path) -> bool {
        self.txn.metadata.get(path.block.0) == Some(1)
    }
}

#[cfg(test)]
mod tests {
    use super::differences;
    use cairn_format::thin::{DataBlock, Mapping};

    #[test]
    fn what_is_mapped_elsewhere_or_on_one_side_only_differs() {
        let leaf = |entries: &[(u64, u64)]| -> Vec<(u64, Mapping)> {
            let mapping =
                |&(key, block)| (key, Mapping { block: DataBlock(block), time: key as u32 });
            entries.iter().map(mapping).collect()
        };
        let one = leaf(&[(1, 10), (2, 11), (5, 12), (6, 13), (9, 20)]);
        let other = leaf(&[(2, 11), (5, 40), (6, 41), (7, 42), (9, 20)]);
        assert_eq!(differences(&one, &other, 0..100), [1..2, 5..8]);
        let cut = differences(&one, &other, 2..7);
        assert!(cut.len() == 1 && cut[0] == (5..7), "{cut:?}");
        assert_eq!(differences(&one, &one, 0..100), []);
    }
}
