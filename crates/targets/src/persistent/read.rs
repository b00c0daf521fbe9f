//! Reading mappings of the last durable state, from any reactor, while a commit runs.
//!
//! R1. All nodes of a walk belong to one durable state. The reader notes the state's generation
//!     with the root. If the generation has changed at the end of the walk, it walks again. Blocks
//!     that only an old state uses are overwritten by the commit after the next at the earliest,
//!     when the generation has changed.
//! R2. An error counts only if the generation has not changed.
//! R3. A data block that the durable state maps is not free. If one is, its count is wrong: it is
//!     not handed out from then on, and the leaf that maps it is refused. If it was handed out
//!     before, only a check of the metadata can tell.

use std::ops::Range;
use std::sync::Arc;

use cairn_block::Env;
use cairn_block::sync::atomic::Ordering;
use cairn_format::thin::{DeviceId, Mapping, MetadataBlock};

use super::canary::{Bug, planted};
use super::cost;
use super::error::{Error, MetadataPart, Path};
use super::nodes::{ALL_KEYS, Bounds, DEPTH_MAX, Entries, children, decode, too_deep};
use super::store::Store;

/// A decoded leaf of a mapping tree: all mappings of a range of virtual blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// The durable state that it belongs to.
    pub generation: u64,
    /// The virtual blocks that it covers, half-open. Those without an entry in `mappings` are not
    /// mapped. The ranges of consecutive leaves touch; the last one ends at `u64::MAX`.
    pub keys: Range<u64>,
    /// Virtual blocks in ascending order, with their data blocks.
    pub mappings: Vec<(u64, Mapping)>,
}

/// Where a walk begins.
pub(super) struct Start {
    pub generation: u64,
    pub bounds: Bounds,
    pub root: MetadataBlock,
}

/// A node on the way to a leaf.
pub(super) struct Ancestor {
    pub path: Path,
    /// The keys that it covers. They begin before its first key if no node comes before it.
    pub covers: Range<u64>,
}

impl Store {
    /// The leaf that covers virtual block `key` of a device, and up to `ahead` leaves that follow
    /// it (fewer if their parent has fewer), read together.
    ///
    /// # Errors
    /// The durable state has no such device; or the metadata device failed, or is damaged.
    pub async fn read_leaves(
        &self,
        env: &Env,
        device: DeviceId,
        key: u64,
        ahead: usize,
    ) -> Result<Vec<Leaf>, Error> {
        loop {
            if let Some(leaves) = self.try_leaves(env, device, key, ahead).await? {
                return Ok(leaves);
            }
        }
    }

    /// Like [`Store::read_leaves`], or `None` if a commit was published during the walk.
    ///
    /// # Errors
    /// As for [`Store::read_leaves`].
    pub async fn try_leaves(
        &self,
        env: &Env,
        device: DeviceId,
        key: u64,
        ahead: usize,
    ) -> Result<Option<Vec<Leaf>>, Error> {
        let start = self.start(device)?;
        let result = self.walk(env, device, &start, key.min(u64::MAX - 1), ahead).await;
        if self.nodes.generation() == start.generation || planted(Bug::ReadOnce) {
            return result.map(Some);
        }
        Ok(None)
    }

    pub(super) fn start(&self, device: DeviceId) -> Result<Start, Error> {
        let published = self.published.lock();
        let own = published.devices.get(&device).ok_or(Error::NoDevice(device))?;
        let (generation, bounds) = (published.generation, published.bounds);
        Ok(Start { generation, bounds, root: own.root })
    }

    async fn walk(
        &self,
        env: &Env,
        device: DeviceId,
        start: &Start,
        key: u64,
        ahead: usize,
    ) -> Result<Vec<Leaf>, Error> {
        let path =
            Path { place: MetadataPart::Mappings(device), block: start.root, keys: ALL_KEYS };
        start.bounds.check(&path, "root", start.root)?;
        let mut own = Ancestor { path, covers: ALL_KEYS };
        let mut after: Vec<Ancestor> = Vec::new();
        for _ in 0..DEPTH_MAX {
            let node = self
                .nodes
                .fetch_one::<Mapping>(env, start.generation, &own.path, &start.bounds)
                .await?;
            match node {
                Entries::Leaf(mappings) => {
                    let mut leaves = vec![self.leaf(start, own, mappings)?];
                    // A reader that needs an unreadable leaf asks for it, and gets the error.
                    let _ = self.read_after(env, start, after, &mut leaves).await;
                    return Ok(leaves);
                }
                Entries::Internal(entries) => {
                    let index = entries.partition_point(|(own, _)| *own <= key).saturating_sub(1);
                    after = steps(&entries, &own, index, ahead);
                    own = after.remove(0);
                }
            }
        }
        Err(too_deep(&own.path))
    }

    async fn read_after(
        &self,
        env: &Env,
        start: &Start,
        after: Vec<Ancestor>,
        leaves: &mut Vec<Leaf>,
    ) -> Result<(), Error> {
        if after.is_empty() {
            return Ok(());
        }
        let paths: Vec<Path> = after.iter().map(|step| step.path.clone()).collect();
        let blocks = self.nodes.fetch(env, start.generation, &paths).await?;
        for (bytes, step) in blocks.iter().zip(after) {
            match decode(bytes, &step.path, &start.bounds)? {
                Entries::Leaf(mappings) => leaves.push(self.leaf(start, step, mappings)?),
                Entries::Internal(_) => {
                    let detail = "kind: found an internal node beside a leaf, expected a leaf";
                    return Err(Error::damaged(step.path, detail));
                }
            }
        }
        Ok(())
    }

    fn leaf(
        &self,
        start: &Start,
        step: Ancestor,
        mappings: Vec<(u64, Mapping)>,
    ) -> Result<Leaf, Error> {
        let generation = start.generation;
        // A block that a later commit frees becomes free after its generation was published.
        let is_current = || self.nodes.generation() == generation;
        let mut lost = None;
        for (key, to) in &mappings {
            if self.data.withdraw(to.block, is_current) {
                lost = Some((*key, to.block));
            }
        }
        match lost {
            None => Ok(Leaf { generation, keys: step.covers, mappings }),
            Some((key, block)) => {
                let (count, expected) = ("found 0", "expected 1 or more for the mapping of block");
                let detail = format!("count of data block {block}: {count}, {expected} {key}");
                Err(Error::damaged(step.path, detail))
            }
        }
    }

    // Reservations.

    /// How many metadata blocks a change takes at most, beyond what every commit takes.
    pub fn cost_of(&self, change: cost::Change) -> u64 {
        // One level more than now: the change itself may add it.
        cost::of(change, self.account.height.load(Ordering::Acquire) + 1)
    }

    /// Like [`Store::cost_of`], for any number of mapped blocks.
    pub fn cost_at_most(&self, change: cost::Change) -> u64 {
        let (_, data_blocks) = self.data_use();
        cost::of(change, cost::height(data_blocks) + 1)
    }

    /// Reserves `cost` metadata blocks for a change that the next commit, or the one after it, will
    /// apply. False if fewer than `cost` plus `keep` are left: a commit may help, then only growth
    /// or changes that free metadata.
    #[must_use]
    pub fn reserve(&self, cost: u64, keep: u64) -> bool {
        let account = &self.account;
        let reserved = account.reserved.fetch_add(cost, Ordering::AcqRel) + cost;
        let overhead = account.overhead.load(Ordering::Acquire);
        let needed = reserved.saturating_add(overhead).saturating_add(keep);
        if needed <= account.free.load(Ordering::Acquire) {
            return true;
        }
        account.reserved.fetch_sub(cost, Ordering::AcqRel);
        false
    }

    /// Takes a reservation back: after the commit that applied the change, or because the change
    /// will not be made.
    pub fn unreserve(&self, cost: u64) {
        self.account.reserved.fetch_sub(cost, Ordering::AcqRel);
    }
}

/// The child at `index` and up to `ahead` that follow it.
pub(super) fn steps(
    entries: &[(u64, MetadataBlock)],
    parent: &Ancestor,
    index: usize,
    ahead: usize,
) -> Vec<Ancestor> {
    let end = (index + 1).saturating_add(ahead).min(entries.len());
    let keys_end = entries.get(end).map_or(parent.path.keys.end, |(key, _)| *key);
    let keys = parent.path.keys.start..keys_end;
    let own = children(&entries[index..end], &Path { keys, ..parent.path.clone() });
    // The first child also covers the keys before its first key.
    let mut covered = if index == 0 { parent.covers.start } else { own[0].keys.start };
    let step = |path: Path| {
        let covers = covered..path.keys.end;
        covered = path.keys.end;
        Ancestor { covers, path }
    };
    own.into_iter().map(step).collect()
}

const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<Arc<Store>>();
};
