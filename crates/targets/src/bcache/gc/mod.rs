//! Collecting: what became sparse is packed, so that its buckets are free again. `coalesce` packs
//! nodes of the tree, `moving` packs buckets with dirty data.
//!
//! # What is not needed
//! The kernel walks its tree to mark what each bucket has, since it does not know otherwise; no
//! bucket is given up while it does. Here the tree in memory has the counts of each bucket at any
//! time (`buckets`). So there is no pass over all keys before buckets are free, and of section 8.2
//! of the format's description these are left out: marks and their validity, `last_gc` (K3 keeps
//! the age of the oldest pointer), and the allocator that waits for a pass. Nodes with many dead
//! keys need no pass either: a node is rewritten when its log is full (`btree::insert`), and a node
//! whose keys have all gone is coalesced.
//!
//! # When
//! A task of the set, the collector, begins a pass if there is work:
//!
//! - *moving*, if more than [`PACKED`] percent of the buckets are in use, and are three times as
//!   large as the dirty data, as the rate of writeback counts it, and `copy_gc_enabled`;
//! - *coalescing*, after a sixteenth of the cache has lost its data since the last pass;
//! - both, after `trigger_gc`.
//!
//! A pass works in rounds, each in the turn of the set. Between two rounds it waits for
//! [`PAUSE`] if clients have sent requests since the last one, unless they wait for a bucket.

mod coalesce;
mod moving;

use std::time::Duration;

use cairn_block::Env;
use cairn_block::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::set::{Core, Set, WriteError};
use super::writeback::is_sparse;
use moving::Sources;

/// Buckets are packed above so many percent in use: below the default of `cutoff_writeback`, 40,
/// above which writes go around the cache.
const PACKED: u64 = 35;
/// How long a pass waits between two rounds while clients are active.
const PAUSE: Duration = Duration::from_millis(100);
/// After a pass: how long until the next one, unless it is triggered.
const REST: Duration = Duration::from_secs(30);
/// A pass coalesces after so many parts of the cache have lost their data, of [`PARTS`].
const PARTS: u64 = 16;
/// How many rounds of moving a pass has at most.
const ROUNDS: usize = 512;

/// Settings and statistics.
pub(super) struct Gc {
    /// The attribute `copy_gc_enabled`, 0 or 1.
    pub copy_enabled: AtomicU64,
    /// The attribute `trigger_gc`: not 0 until the pass begins that was asked for.
    pub trigger: AtomicU64,
    /// How many buckets were packed into others, and how many nodes became fewer.
    pub moved_buckets: AtomicU64,
    pub coalesced_nodes: AtomicU64,
    /// How many passes have ended.
    pub passes: AtomicU64,
    /// The last pass, which had free buckets to fill, took the dirty data of no bucket although the
    /// cache is fragmented.
    is_in_vain: AtomicBool,
}

impl Default for Gc {
    fn default() -> Gc {
        Gc {
            copy_enabled: AtomicU64::new(1),
            trigger: AtomicU64::new(0),
            moved_buckets: AtomicU64::new(0),
            coalesced_nodes: AtomicU64::new(0),
            passes: AtomicU64::new(0),
            is_in_vain: AtomicBool::new(false),
        }
    }
}

impl Gc {
    fn moves(&self) -> bool {
        self.copy_enabled.load(Ordering::Relaxed) != 0
    }

    /// True if fragmented buckets are packed: then writeback need not make them free.
    pub fn packs(&self) -> bool {
        self.moves() && !self.is_in_vain.load(Ordering::Relaxed)
    }
}

impl Set {
    /// True if many buckets are in use for little dirty data.
    fn is_fragmented(&self) -> bool {
        let (geometry, buckets) = (self.superblock.geometry(), &self.buckets);
        let sectors = [geometry.bucket_sectors(), buckets.dirty_sectors()];
        let in_use = buckets.in_use() as u64;
        in_use * 100 / geometry.buckets().max(1) > PACKED && is_sparse(in_use, sectors)
    }

    /// True if so much has lost its data that nodes may be sparse.
    fn may_be_sparse(&self) -> bool {
        let geometry = self.superblock.geometry();
        self.buckets.lost_sectors() > geometry.buckets() * geometry.bucket_sectors() / PARTS
    }
}

impl Core {
    /// True if no volume serves the set, or it is broken: no round begins.
    fn rests(&self) -> bool {
        self.is_stopping() || self.is_broken() || self.users().are_none()
    }

    /// True if a message asked for a pass.
    fn is_triggered(&self) -> bool {
        self.gc.trigger.load(Ordering::Relaxed) != 0
    }

    /// True if there is work for a pass.
    fn has_garbage(&self) -> bool {
        let is_fragmented = |set: &Set| self.gc.moves() && set.is_fragmented();
        let look = |set: &mut Set| is_fragmented(set) || set.may_be_sparse();
        self.is_triggered() || self.with(look)
    }

    /// The collector: the task of an open set that begins passes, until the set is broken or
    /// stopped.
    pub async fn keep_packed(&self, env: &Env) {
        let mut next = env.now();
        loop {
            let had_garbage = self.has_garbage();
            let is_over = || {
                let has_news = self.has_garbage() && (self.is_triggered() || !had_garbage);
                self.is_stopping() || self.is_broken() || has_news
            };
            env.until_or_time(&self.changed, had_garbage.then_some(next), is_over).await;
            if self.is_stopping() || self.is_broken() {
                return;
            }
            if self.is_triggered() || self.has_garbage() && next <= env.now() {
                // An error broke the set.
                let _ = self.collect(env).await;
                next = env.now() + REST;
            }
        }
    }

    /// A pass. If it was asked for, and a suspend or a failure ends it early, the next session
    /// begins it again.
    async fn collect(&self, env: &Env) -> Result<(), WriteError> {
        let is_triggered = self.gc.trigger.swap(0, Ordering::Relaxed) != 0;
        let collected = self.coalesce_and_pack(env, is_triggered).await;
        if is_triggered && self.rests() {
            self.gc.trigger.store(1, Ordering::Relaxed);
        } else if collected.is_ok() {
            self.gc.passes.fetch_add(1, Ordering::Relaxed);
        }
        collected
    }

    async fn coalesce_and_pack(&self, env: &Env, is_triggered: bool) -> Result<(), WriteError> {
        if is_triggered || self.with(|set| set.may_be_sparse()) {
            self.with(|set| set.buckets.forget_lost());
            self.coalesce(env).await?;
        }
        let is_fragmented = self.with(|set| set.is_fragmented());
        if is_triggered || self.gc.moves() && is_fragmented {
            let packed = self.pack_all(env).await?;
            if packed > 0 || self.with(|set| set.buckets.free_for_data()) > 0 {
                self.gc.is_in_vain.store(is_fragmented && packed == 0, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Rounds of moving. Answers how many buckets have no dirty data any more.
    async fn pack_all(&self, env: &Env) -> Result<usize, WriteError> {
        let (mut all, mut requests) = (0, self.users().requests());
        let mut sources = Sources::default();
        for _ in 0..ROUNDS {
            let is_fresh = sources.are_used_up();
            if is_fresh {
                sources = self.find_sources(env).await?;
            }
            let packed = self.change(env, async |session| session.pack(&mut sources).await).await?;
            match packed.clean {
                0 if is_fresh => break,
                // Clients have changed what was found.
                0 => sources = Sources::default(),
                _ => {}
            }
            all += packed.clean;
            self.gc.moved_buckets.fetch_add(packed.clean as u64, Ordering::Relaxed);
            requests = self.give_way(env, requests, packed.empty > 0).await;
        }
        Ok(all)
    }

    /// Waits if clients are active: they have sent more than `requests`. If rounds make buckets
    /// free, it waits no longer once clients wait for one. Answers how many requests now.
    async fn give_way(&self, env: &Env, requests: u64, frees: bool) -> u64 {
        let now = self.users().requests();
        if now != requests {
            let end = env.now() + PAUSE;
            let is_over = || {
                let is_wanted = frees && self.with(|set| set.is_short());
                self.is_stopping() || self.is_broken() || is_wanted
            };
            env.until_or_time(&self.changed, Some(end), is_over).await;
        }
        self.users().requests()
    }
}
