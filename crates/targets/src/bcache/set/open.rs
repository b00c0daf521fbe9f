//! Opening: reads the whole set, and replays the journal in memory.
//!
//! Any damage refuses the set: what is damaged may have led to dirty data, and a volume without it
//! would show older data as if it were right. `cairn check` says what is lost.

use std::ops::ControlFlow;

use cairn_block::{ConfigError, ConfigKind, Env};
use cairn_format::bcache::extents::overlay;
use cairn_format::bcache::load::{Fault, LoadError, Loaded, NodePlace, Visitor, load};
use cairn_format::bcache::node::Node as NodeRead;
use cairn_format::bcache::places::shared;
use cairn_format::bcache::{CacheSuperblock, Key};

use super::changes::Changes;
use super::device::DiskSource;
use super::leaves::Wanted;
use super::replay::Replay;
use super::{CacheDevice, Set};
use crate::bcache::btree::{Node, Tree};
use crate::bcache::buckets::{Buckets, OpenBuckets};
use crate::bcache::journal::Journal;

/// Takes nodes and extents as they come: those of a level are in order.
struct Collector {
    levels: Vec<Vec<Node>>,
    /// The keys of the nodes above the leaves, stale ones too.
    above: Vec<Key>,
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
        if let Some(before) = self.levels[0].last_mut() {
            before.shrink();
        }
        if level > 0 {
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

/// Reads the set. Nothing is written.
///
/// # Errors
/// It is damaged, or cannot be read.
pub(in super::super) async fn open(
    env: &Env,
    cache: &CacheDevice,
    superblock: CacheSuperblock,
) -> Result<Set, ConfigError> {
    let argument = &cache.device().argument;
    let mut collector = Collector { levels: Vec::new(), above: Vec::new() };
    let mut source = DiskSource { env, device: cache.device() };
    let loaded = match load(&mut source, &superblock, &mut collector).await {
        Ok(loaded) => loaded,
        Err(LoadError::Source(never)) => match never {},
        Err(LoadError::Fault(fault)) => {
            let detail = format!("{fault}; see: cairn check {argument}");
            return Err(ConfigError::new(ConfigKind::Damaged, argument, detail));
        }
    };
    if let Some(torn) = &loaded.torn {
        tracing::info!("{argument}: a last entry was being written when the power failed: {torn}");
    }
    assemble(superblock, loaded, collector).map_err(|detail| {
        let detail = format!("{detail}; see: cairn check {argument}");
        ConfigError::new(ConfigKind::Damaged, argument, detail)
    })
}

/// The set of what was read.
///
/// # Errors
/// The first contradiction.
fn assemble(
    superblock: CacheSuperblock,
    mut loaded: Loaded,
    Collector { levels, above }: Collector,
) -> Result<Set, String> {
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
    if let Some(key) = journaled.iter().find(|key| key.position() > Key::MAX.position()) {
        return Err(format!("journal: found key {key:?} behind the highest position"));
    }
    tree.apply(&journaled, &mut buckets);
    if let Some(overlap) = buckets.overlap() {
        return Err(overlap);
    }
    if let Some((first, second)) = shared(&geometry, || tree.extents()) {
        return Err(format!("extent {second:?}: found its sectors in {first:?} too"));
    }
    let journal = Journal::new(&loaded.ring, superblock.journal_buckets(), geometry, magic);
    let (volumes, priorities) = (loaded.volumes.clone(), loaded.priorities.clone());
    let parts = match journal.room() > tree.leaves() {
        true => None,
        false => Replay::in_parts(&mut loaded, &geometry),
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
        volumes,
        priorities,
    })
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
