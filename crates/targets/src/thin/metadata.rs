//! The pool's metadata for the rest of the pool: the store of `persistent`, the right to change it
//! behind a lock that tasks wait for, and the figures of status lines, which never wait.

use std::sync::Arc;

use cairn_block::sync::Mutex;
use cairn_block::{Disk, Env, IoError, yield_once};
use cairn_format::thin::{DataBlockSize, DeviceDetails, DeviceId, Mapping, MetadataBlock};

use super::acknowledged::Acknowledged;
use super::arena::GROUP_BLOCKS;
use super::groups::Group;
use crate::fair::{Fair, Held};
use crate::persistent::{
    Change as Cost, DataAllocator, Error, Leaf, MetadataUse, Options, Store, Stretch, Working,
};

/// How often something is read while commits may end before it is read while none can.
const ROUNDS_BESIDE_COMMITS: usize = 4;

/// Leaves that are read ahead when one is needed.
const LEAVES_AHEAD: usize = 3;

/// The superblock's fields for a status line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    pub transaction_id: u64,
    pub held_root: Option<u64>,
    pub needs_check: bool,
    pub time: u32,
}

impl Facts {
    /// True if volumes may share metadata, with each other or with a metadata snapshot.
    pub fn shares(&self) -> bool {
        self.time > 0 || self.held_root.is_some()
    }

    fn of(working: &Working) -> Facts {
        Facts {
            transaction_id: working.transaction_id(),
            held_root: working.held_root().map(|MetadataBlock(block)| block),
            needs_check: working.needs_check(),
            time: working.time(),
        }
    }
}

/// Why a commit or a look at the metadata failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum MetadataError {
    /// The metadata.
    #[error(transparent)]
    Metadata(#[from] Error),
    /// The flush of the data device before a commit.
    #[error("data device: flush: {0}")]
    Data(IoError),
    /// A flush of the data device by another user, after new blocks were written.
    #[error("data device: a flush failed after new blocks were written, whose data may be lost")]
    DataLost,
    /// A commit failed; its own error is in the log.
    #[error("the commit failed: {0}; see the log")]
    Commit(IoError),
    /// No thin device can have this id.
    #[error(transparent)]
    Id(#[from] cairn_format::thin::Error),
    /// A volume that is to be deleted.
    #[error("device {0}: found it in use by a table, expected none")]
    InUse(DeviceId),
    /// The transaction id is not the one that the message expects.
    #[error("transaction id: found {found}, expected {expected}")]
    TransactionId {
        /// What it is.
        found: u64,
        /// What the message said.
        expected: u64,
    },
    /// The pool's mode forbids every change.
    #[error("the pool is read-only")]
    NotWritable,
    /// The pool changed after the caller had planned its edit.
    #[error(
        "transaction id and snapshots: found {} and {}, expected {} and {}: the pool was changed \
         by a message; try again",
        found.0, found.1, expected.0, expected.1
    )]
    Planned {
        /// The counters now.
        found: (u64, u32),
        /// The counters that the plan relies on.
        expected: (u64, u32),
    },
}

impl MetadataError {
    /// True if the data device failed.
    pub fn is_of_data(&self) -> bool {
        matches!(self, MetadataError::Data(_) | MetadataError::DataLost)
    }

    /// The error that a request ends with.
    pub fn io(&self) -> IoError {
        match self {
            MetadataError::Data(error) | MetadataError::Commit(error) => *error,
            MetadataError::Metadata(Error::Io { source, .. }) => *source,
            _ => IoError::IO,
        }
    }
}

type Result<T> = std::result::Result<T, MetadataError>;

/// Groups of mappings as they were read together.
pub(super) struct Leaves {
    pub generation: u64,
    /// The group that was asked for, and others that were read whole.
    pub groups: Vec<(u64, Group)>,
}

impl Leaves {
    /// Reads a group.
    pub async fn read(
        env: &Env,
        metadata: &PoolMetadata,
        id: DeviceId,
        group: u64,
    ) -> Result<Leaves> {
        let first = group * GROUP_BLOCKS;
        let read = async || {
            let mut leaves: Vec<Leaf> = Vec::new();
            let mut next = first;
            while next < first + GROUP_BLOCKS {
                let Some(more) = metadata.store.try_leaves(env, id, next, LEAVES_AHEAD).await?
                else {
                    return Ok(None);
                };
                next = more.last().map_or(u64::MAX, |leaf| leaf.keys.end);
                leaves.extend(more);
            }
            let generation = leaves[0].generation;
            let is_one_state = leaves.iter().all(|leaf| leaf.generation == generation);
            Ok(is_one_state.then(|| Leaves { generation, groups: groups_of(&leaves, group) }))
        };
        metadata.of_one_state(read).await
    }
}

/// The groups that leaves, which follow each other, tell wholly: from `first` on.
fn groups_of(leaves: &[Leaf], first: u64) -> Vec<(u64, Group)> {
    let end = leaves.last().map_or(0, |leaf| leaf.keys.end) / GROUP_BLOCKS;
    let mut groups = vec![(first, Group::empty())];
    for (block, mapping) in leaves.iter().flat_map(|leaf| &leaf.mappings) {
        let number = block / GROUP_BLOCKS;
        if number < first || number >= end.max(first + 1) {
            continue;
        }
        if groups.last().is_none_or(|(last, _)| *last != number) {
            groups.push((number, Group::empty()));
        }
        if let Some((_, group)) = groups.last_mut() {
            group.set(*block, *mapping);
        }
    }
    groups
}

/// See the module's description.
pub(super) struct PoolMetadata {
    store: Arc<Store>,
    working: Fair<Working>,
    facts: Mutex<Facts>,
    acknowledged: Acknowledged,
}

impl PoolMetadata {
    /// Opens the metadata of a pool that exists.
    pub async fn open(
        env: &Env,
        disk: &Arc<dyn Disk>,
        block_size: DataBlockSize,
        read_only: bool,
    ) -> std::result::Result<PoolMetadata, Error> {
        let options =
            Options { data_block_size: Some(block_size), read_only, ..Options::default() };
        let (store, working) = Store::open(env, disk, options).await?;
        let facts = Mutex::new(Facts::of(&working));
        let acknowledged = Acknowledged::default();
        Ok(PoolMetadata { store, working: Fair::new(working), facts, acknowledged })
    }

    /// What clients have been answered and the metadata does not have: the crash log.
    pub fn acknowledged(&self) -> &Acknowledged {
        &self.acknowledged
    }

    /// The figures of status lines.
    pub fn facts(&self) -> Facts {
        *self.facts.lock()
    }

    /// The right to change the metadata, for a message; [`PoolMetadata::note`] follows.
    pub async fn working(&self) -> Held<'_, Working> {
        self.working.lock().await
    }

    /// Records changes for status lines.
    pub fn note(&self, working: &Working) {
        *self.facts.lock() = Facts::of(working);
    }

    /// The data blocks that may be taken.
    pub fn allocator(&self) -> &DataAllocator {
        self.store.data()
    }

    /// Data blocks of the pool, and those of them in use.
    pub fn data_use(&self) -> (u64, u64) {
        let (used, total) = self.store.data_use();
        (total, used)
    }

    /// The use of metadata blocks.
    pub fn metadata_use(&self) -> MetadataUse {
        self.store.metadata_use()
    }

    // Room.

    /// The most metadata blocks that one change takes; more if its volume may share metadata with
    /// another.
    pub fn unit_cost(&self, shared: bool) -> u64 {
        self.store.cost_at_most(Cost { blocks: 1, runs: 1, shared })
    }

    /// Promises metadata blocks; false if they are not there, or no `keep` more.
    pub fn reserve(&self, cost: u64, keep: u64) -> bool {
        self.store.reserve(cost, keep)
    }

    /// Takes promises back.
    pub fn unreserve(&self, cost: u64) {
        self.store.unreserve(cost);
    }

    // The durable state.

    /// A device's details.
    pub fn details(&self, id: DeviceId) -> Result<DeviceDetails> {
        let device = self.store.device(id).ok_or(Error::NoDevice(id))?;
        Ok(device.details)
    }

    /// Every device, by id.
    pub fn devices(&self) -> Vec<(DeviceId, DeviceDetails)> {
        self.store.devices().into_iter().map(|(id, device)| (id, device.details)).collect()
    }

    /// Where two devices differ from `block` on, as far as one step tells. Others have their turn
    /// in between, though everything be in memory.
    pub async fn compare(&self, env: &Env, ids: [DeviceId; 2], block: u64) -> Result<Stretch> {
        yield_once().await;
        Ok(self.store.compare(env, ids, block).await?)
    }

    /// How many data blocks only this device maps. Commits and other tasks run in between.
    pub async fn own_blocks(&self, env: &Env, id: DeviceId) -> Result<u64> {
        let (mut count, mut block) = (0, 0);
        while block < u64::MAX {
            let (end, own) = self.working.lock().await.own_blocks(env, id, block).await?;
            (count, block) = (count + own, end);
            yield_once().await;
        }
        Ok(count)
    }

    /// Reads one durable state while commits run. If commits keep changing it, reads while none can
    /// end.
    async fn of_one_state<T>(&self, read: impl AsyncFn() -> Result<Option<T>>) -> Result<T> {
        for _ in 0..ROUNDS_BESIDE_COMMITS {
            if let Some(found) = read().await? {
                return Ok(found);
            }
        }
        let _working = self.working.lock().await;
        Ok(read().await?.expect("only who holds it publishes a commit"))
    }

    /// The leaf that speaks of a block.
    async fn leaf(&self, env: &Env, id: DeviceId, block: u64) -> Result<Leaf> {
        let read = async || Ok(self.store.try_leaves(env, id, block, 0).await?);
        let leaves = self.of_one_state(read).await?;
        Ok(leaves.into_iter().next().expect("a walk ends at a leaf"))
    }

    /// The highest mapped block of a device.
    pub async fn highest(&self, env: &Env, id: DeviceId) -> Result<Option<u64>> {
        let leaf = self.leaf(env, id, u64::MAX).await?;
        Ok(leaf.mappings.last().map(|(block, _)| *block))
    }

    /// Those of these changes, in the order of their blocks, that the durable state does not have.
    pub async fn missing(
        &self,
        env: &Env,
        id: DeviceId,
        changes: Vec<(u64, Option<Mapping>)>,
    ) -> Result<Vec<(u64, Option<Mapping>)>> {
        let (mut missing, mut known) = (Vec::new(), None::<Leaf>);
        for (block, mapping) in changes {
            let leaf = match known.take().filter(|leaf| leaf.keys.contains(&block)) {
                Some(leaf) => leaf,
                None => self.leaf(env, id, block).await?,
            };
            let at = leaf.mappings.binary_search_by_key(&block, |(block, _)| *block);
            let found = at.ok().map(|at| leaf.mappings[at].1.block);
            if found != mapping.map(|mapping| mapping.block) {
                missing.push((block, mapping));
            }
            known = Some(leaf);
        }
        Ok(missing)
    }

    /// The number of the state on the device, as the crash log names it.
    pub async fn state(&self) -> u64 {
        self.working.lock().await.state()
    }

    /// True if a leaf that was read still belongs to the durable state.
    pub fn is_current(&self, generation: u64) -> bool {
        self.store.generation() == generation
    }

    /// The first mapped block at or after `from`.
    pub async fn next_mapped(&self, env: &Env, id: DeviceId, from: u64) -> Result<Option<u64>> {
        let mut key = from;
        loop {
            let leaf = self.leaf(env, id, key).await?;
            let at = leaf.mappings.partition_point(|(block, _)| *block < from);
            if let Some((block, _)) = leaf.mappings.get(at) {
                return Ok(Some(*block));
            }
            if leaf.keys.end == u64::MAX {
                return Ok(None);
            }
            key = leaf.keys.end;
        }
    }

    /// True if a commit would write something.
    pub async fn is_changed(&self) -> bool {
        self.working.lock().await.is_changed()
    }

    /// Back to the durable state, which is marked as in need of a check if `marks` says so. The
    /// mark may reach the device later only. The log names `pool`.
    ///
    /// # Errors
    /// The metadata cannot be read; or the device may hold another state than the one that was
    /// read.
    pub async fn abort(&self, env: &Env, marks: bool, pool: &str) -> Result<()> {
        let mut working = self.working.lock().await;
        let aborted = working.abort(env).await;
        if aborted.is_ok()
            && marks
            && let Err(error) = working.set_needs_check(env).await
        {
            tracing::warn!("{pool}: the mark that a check is due is not on the device: {error}");
        }
        self.note(&working);
        aborted?;
        if working.is_doubtful() { Err(Error::Doubtful.into()) } else { Ok(()) }
    }

    /// Tries again to put the mark on the device, if it is due.
    pub async fn mark(&self, env: &Env) {
        let mut working = self.working.lock().await;
        if working.needs_check() {
            // It stays in memory, and another try may come.
            let _ = working.set_needs_check(env).await;
        }
    }
}
