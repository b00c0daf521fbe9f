//! Opening: reads the whole set, and replays the journal in memory.
//!
//! Any damage refuses the set: what is damaged may have led to dirty data, and a volume without it
//! would show older data as if it were right. `cairn check` says what is lost.
//!
//! # Order
//! 1. The metadata and each node are read. The extents of leaves stay in memory until these take
//!    the limit (`btree_cache_size`); those of later leaves are dropped: such a leaf is absent
//!    (M1). The generations of all buckets are known then.
//! 2. The absent leaves are read again, some at a time: their extents are judged by these
//!    generations, and counted. A leaf becomes present if the journal has a key in its sectors, as
//!    it changes in 3. Its keys are in no leaf, so that it stays until a session has written them.
//! 3. The keys of the journal are laid over the tree, and those of the crash log over these
//!    (`acknowledged`).
//! 4. No two extents may have one sector of the cache (`Places`).
//!
//! Memory beyond the limit: the leaves of 2, what is read at once, the keys of the journal, a few
//! bytes per bucket, 96 per node, and a bit for each sector of the cache near extents.

use std::ops::ControlFlow;

use cairn_block::{ConfigError, ConfigKind, Env};
use cairn_format::bcache::extents::overlay;
use cairn_format::bcache::load::{Fault, LoadError, Loaded, NodePlace, Source, Visitor, load};
use cairn_format::bcache::node::Node as NodeRead;
use cairn_format::bcache::places::Places;
use cairn_format::bcache::{CacheSuperblock, Key};

use super::Set;
use super::acknowledged::{Acknowledged, open_log};
use super::changes::Changes;
use super::core::Core;
use super::device::DiskSource;
use super::leaves::{Wanted, decode, sectors_of};
use super::replay::Replay;
use crate::bcache::btree::{EXTENT_BYTES, FIRST, LAST, LeafPlace, Node, Tree, Unwritten};
use crate::bcache::buckets::{Buckets, OpenBuckets};
use crate::bcache::journal::Journal;
use crate::bcache::work;

/// Takes nodes and extents as they come: those of a level are in order.
struct Collector {
    levels: Vec<Vec<Node>>,
    /// The keys of the nodes above the leaves, stale ones too.
    above: Vec<Key>,
    /// How many extents may stay in memory beside those of the last leaf.
    room: usize,
}

impl Collector {
    /// The last leaf has all its extents.
    fn end_leaf(&mut self) {
        let Some(leaf) = self.levels.first_mut().and_then(|leaves| leaves.last_mut()) else {
            return;
        };
        match self.room.checked_sub(leaf.count()) {
            Some(room) => {
                leaf.shrink();
                self.room = room;
            }
            None => {
                leaf.leave();
            }
        }
    }
}

impl Visitor for Collector {
    fn fault(&mut self, _: &Fault) -> ControlFlow<()> {
        ControlFlow::Break(())
    }

    fn node(&mut self, at: &NodePlace, node: &NodeRead<'_>) {
        let level = usize::from(at.level);
        if self.levels.len() <= level {
            self.levels.resize_with(level + 1, Vec::new);
        }
        if level == 0 {
            self.end_leaf();
        } else {
            self.above.extend(node.sets().iter().flat_map(|set| set.keys()).flatten());
        }
        // A node without a sound set is a fault, which ended all.
        let seq = node.seq().unwrap_or_default();
        self.levels[level].push(Node::new(at.key, seq, node.end()));
    }

    fn extent(&mut self, key: Key) {
        let leaf = self.levels.first_mut().and_then(|leaves| leaves.last_mut());
        leaf.expect("an extent comes after its leaf").push_extent(key);
    }
}

/// Reads the set. Nothing is written, unless it `writes_again` what it reads (D3).
///
/// # Errors
/// It is damaged, or cannot be read.
pub(in super::super) async fn open(
    env: &Env,
    core: &Core,
    superblock: CacheSuperblock,
    writes_again: bool,
) -> Result<Set, ConfigError> {
    let device = core.cache.device();
    let argument = &device.argument;
    let room = (core.memory_limit() / EXTENT_BYTES) as usize;
    let mut collector = Collector { levels: Vec::new(), above: Vec::new(), room };
    let mut source = DiskSource::new(env, device, writes_again);
    let damaged = |detail: String| {
        let detail = format!("{detail}; see: cairn check {argument}");
        ConfigError::new(ConfigKind::Damaged, argument, detail)
    };
    let mut loaded = match load(&mut source, &superblock, &mut collector).await {
        Ok(loaded) => loaded,
        Err(LoadError::Source(never)) => match never {},
        Err(LoadError::Fault(fault)) => return Err(damaged(fault.to_string())),
    };
    collector.end_leaf();
    if let Some(torn) = &loaded.torn {
        tracing::info!("{argument}: a last entry was being written when the power failed: {torn}");
    }
    let (acknowledged, newer) = open_log(core, &superblock, loaded.ring.newest())?;
    if !loaded.add_newer(superblock.geometry(), &newer) {
        return Err(damaged("crash log: found a key that leads nowhere".to_owned()));
    }
    let opening = Opening::begin(superblock, loaded, collector);
    let mut opening = Opening { acknowledged, newer: newer.len(), ..opening.map_err(damaged)? };
    opening.read_absent(&mut source).await.map_err(damaged)?;
    opening.end().map_err(damaged)
}

/// The set of what was read.
struct Opening {
    superblock: CacheSuperblock,
    loaded: Loaded,
    /// What the journal lays over the tree.
    journaled: Vec<Key>,
    buckets: Buckets,
    tree: Tree,
    /// Of the extents of absent leaves.
    places: Places,
    acknowledged: Acknowledged,
    /// How many keys of the journal are in no entry, but in the crash log.
    newer: usize,
}

impl Opening {
    /// The generations are known: the extents in memory are judged.
    ///
    /// # Errors
    /// The first contradiction.
    fn begin(
        superblock: CacheSuperblock,
        loaded: Loaded,
        Collector { levels, above, .. }: Collector,
    ) -> Result<Opening, String> {
        let (geometry, magic) = (*superblock.geometry(), superblock.set_uuid().set_magic());
        let mut buckets = Buckets::new(geometry, &loaded.buckets);
        let mut tree = Tree::new(geometry, magic, levels);
        superblock.journal_buckets().for_each(|bucket| buckets.mark_metadata(bucket));
        loaded.priorities.iter().for_each(|bucket| buckets.mark_metadata(*bucket));
        let of = |key: &Key| key.cached_at().map(|pointer| geometry.bucket_of(pointer.sector()));
        let structures = tree.nodes().chain([loaded.newest.uuids]).filter_map(|key| of(&key));
        structures.for_each(|bucket| buckets.mark_metadata(bucket));
        loaded.journal.iter().chain(&above).for_each(|key| buckets.mark_seen(key));
        let gone = tree.keep_live(&mut buckets)?;
        let journaled = loaded.journaled(&geometry);
        refuse_lost(&gone, &journaled, &buckets)?;
        let places = Places::new(&geometry);
        let (acknowledged, newer) = (Acknowledged::default(), 0);
        Ok(Opening { superblock, loaded, journaled, buckets, tree, places, acknowledged, newer })
    }

    /// Step 2.
    ///
    /// # Errors
    /// The first contradiction.
    async fn read_absent(&mut self, source: &mut DiskSource<'_>) -> Result<(), String> {
        let (mut changes, mut from) = (None, FIRST);
        loop {
            let mut leaves = self.tree.absent_between(from, LAST);
            // The last leaf of all comes again.
            leaves.retain(|leaf| leaf.after >= from);
            let Some(last) = leaves.last() else { return Ok(()) };
            from = last.position;
            let ranges: Vec<_> = leaves.iter().map(sectors_of).collect();
            let read = match source.read(&ranges).await {
                Ok(read) => read,
                Err(never) => match never {},
            };
            // The journal may have keys that do not count, and are written in leaves all the same.
            let changes = changes.get_or_insert_with(|| Unwritten::of(&self.loaded.journal));
            for (leaf, bytes) in leaves.iter().zip(read) {
                let has_changes = changes.overlaps_between(leaf.after, leaf.position);
                let judged = bytes.and_then(|bytes| self.judge(leaf, &bytes, has_changes));
                judged.map_err(|what| {
                    format!("node of level 0 at sector {}: {what}", leaf.pointer.sector())
                })?;
            }
        }
    }

    /// Step 2 of a leaf; it becomes present if it `has_changes` in the journal.
    fn judge(&mut self, leaf: &LeafPlace, bytes: &[u8], has_changes: bool) -> Result<(), String> {
        let (geometry, magic) =
            (self.superblock.geometry(), self.superblock.set_uuid().set_magic());
        let mut extents = decode(leaf, bytes, magic, geometry.block_bytes())?;
        let mut gone = Vec::new();
        extents.retain(|key| self.buckets.count_if_live(key, &mut gone));
        if !gone.is_empty() {
            let first = self.journaled.partition_point(|key| key.position() <= leaf.after);
            let end = self.journaled.partition_point(|key| key.begin() < leaf.position);
            refuse_lost(&gone, &self.journaled[first..end.max(first)], &self.buckets)?;
        }
        if has_changes {
            work::begin();
            self.tree.enter(leaf, &extents);
        } else {
            extents.iter().for_each(|key| self.places.take(key));
            self.tree.settle_absent(leaf, &extents);
        }
        Ok(())
    }

    /// Steps 3 and 4.
    ///
    /// # Errors
    /// The first contradiction.
    fn end(self) -> Result<Set, String> {
        let Opening { superblock, mut loaded, journaled, mut buckets, mut tree, .. } = self;
        let (mut places, acknowledged) = (self.places, self.acknowledged);
        let (geometry, magic) = (*superblock.geometry(), superblock.set_uuid().set_magic());
        if let Some(key) = journaled.iter().find(|key| key.position() > Key::MAX.position()) {
            return Err(format!("journal: found key {key:?} behind the highest position"));
        }
        tree.apply(&journaled, &mut buckets);
        if let Some(overlap) = buckets.overlap() {
            return Err(overlap);
        }
        tree.extents().for_each(|key| places.take(key));
        if let Some((key, sector)) = places.shared() {
            return Err(shared(&tree, &key, sector));
        }
        let journal = Journal::new(&loaded.ring, superblock.journal_buckets(), geometry, magic);
        let (volumes, priorities) = (loaded.volumes.clone(), loaded.priorities.clone());
        let parts = match journal.room() > tree.leaves() {
            true => None,
            false => Replay::in_parts(&mut loaded, &geometry, self.newer),
        };
        if parts.is_some() {
            // It writes sectors of keys, too, that do not count, and whose leaves have not changed.
            tree.keep_all();
        }
        let replay = parts.unwrap_or_else(|| Replay::whole(&loaded, journaled));
        Ok(Set {
            open_buckets: OpenBuckets::new(&geometry),
            changes: Changes::default(),
            replay: Some(replay),
            open_holes: None,
            wanted: Wanted::default(),
            superblock,
            tree,
            buckets,
            journal,
            acknowledged,
            volumes,
            priorities,
        })
    }
}

/// What is wrong with an extent, a sector of which another has, too.
fn shared(tree: &Tree, key: &Key, sector: u64) -> String {
    let has_it = |other: &&Key| {
        let at = other.cached_at().map_or(0, |pointer| pointer.sector());
        *other != key && (at..at + other.sectors()).contains(&sector)
    };
    match tree.extents().find(has_it) {
        Some(other) => format!("extent {key:?}: found its sectors in {other:?} too"),
        None => format!("extent {key:?}: found sector {sector} of the cache in another one, too"),
    }
}

/// Refuses dirty extents of the tree whose bucket was reused, unless the journal has what is newer:
/// their data is gone.
fn refuse_lost(gone: &[Key], journaled: &[Key], buckets: &Buckets) -> Result<(), String> {
    let mut left = Vec::new();
    overlay(gone, journaled, &mut left);
    match left.iter().find(|key| key.is_dirty() && buckets.is_stale(key)) {
        Some(key) => Err(format!("extent {key:?}: found its bucket reused: its data is lost")),
        None => Ok(()),
    }
}
