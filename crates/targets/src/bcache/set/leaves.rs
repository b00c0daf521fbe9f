//! Reading absent leaves, and letting leaves leave (`btree::presence`).
//!
//! - A request that needs absent leaves waits. One task reads the leaves that requests wait for,
//!   some at once, and has the requests mapped again once each of them finds all of its leaves.
//!   Beyond the limit it waits for others to leave before it reads the next ones, but not for
//!   longer than [`ROOM_WAIT`]: leaves may have to be written first.
//! - A task that changes extents makes their leaves present first ([`Core::with_present`]).
//! - Leaves may leave while a task reads others for the same change or request. A task that lacks
//!   leaves after its first read keeps the trim from marking any until it has all of them
//!   ([`Gathering`]). So its wait ends with every limit.
//! - A task that only looks at extents ([`Core::scan`]) looks at what it has read of an absent
//!   leaf, and leaves it absent.
//! - Once the extents in memory take more than the limit, leaves leave, in the turn of the set
//!   ([`Session::trim`]): no leaf is being written then (M1).
//!
//! A leaf that cannot be read, or is damaged, breaks the set, as in the kernel: it may have keys to
//! dirty data.

use std::time::Duration;

use cairn_block::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use cairn_block::{ConfigError, ConfigKind, Env, RequestId, yield_once};
use cairn_format::bcache::load::Source;
use cairn_format::bcache::node::Node as NodeRead;
use cairn_format::bcache::{Key, OFFSET_MAX, SECTOR_BYTES, SetMagic};

use super::Set;
use super::core::Core;
use super::device::DiskSource;
use super::session::{Session, WriteError};
use crate::bcache::btree::{
    FIRST, LAST, LeafPlace, Position, READ_AT_ONCE, Scanned, Span, Tree, Which,
};
use crate::bcache::canary::{self, Bug, planted};
use crate::bcache::coverage::{self, Path};

/// The default of `btree_cache_size`.
pub(super) const NODE_CACHE_BYTES: u64 = 1 << 30;
/// Leaves leave until the rest takes so many of [`PARTS`] of the limit.
const KEPT: u64 = 7;
const PARTS: u64 = 8;
/// The time between two passes of the hand: tasks and requests that wait for leaves find them.
const PAUSE: Duration = Duration::from_millis(10);
const ROOM_WAIT: Duration = Duration::from_millis(100);
/// How many waiting requests are looked at while the lock is held.
const TAKEN_AT_ONCE: usize = 1024;

/// What requests wait for, under the lock of the set.
#[derive(Default)]
pub(in super::super) struct Wanted {
    requests: Vec<(Span, RequestId)>,
    /// A task reads them.
    is_served: bool,
}

impl Wanted {
    /// A request waits for the leaves with sectors of a span. True if the caller starts the task.
    pub fn add(&mut self, span: Span, id: RequestId) -> bool {
        coverage::take(Path::WaitForLeaf);
        self.requests.push((span, id));
        !std::mem::replace(&mut self.is_served, true)
    }

    /// Takes the first requests, as many as leaves are read at once, and some of those that wait
    /// for the same ones; none once the task is to end.
    fn take(&mut self, tree: &Tree) -> Option<Vec<(Span, RequestId)>> {
        let mut leaves: Vec<LeafPlace> = Vec::new();
        let goes = |(span, _): &mut (Span, RequestId)| {
            let has_room = leaves.len() < READ_AT_ONCE;
            let mut missing = tree.absent_in(span);
            missing.retain(|leaf| !leaves.contains(leaf));
            let goes = has_room || missing.is_empty();
            leaves.extend(if goes { missing } else { Vec::new() });
            goes
        };
        let some = self.requests.len().min(TAKEN_AT_ONCE);
        let requests: Vec<_> = self.requests.extract_if(..some, goes).collect();
        self.is_served = !requests.is_empty();
        self.is_served.then_some(requests)
    }
}

/// Whether a task has leaves leave. What is asked for while it runs is done before it ends.
#[derive(Default)]
pub(super) struct Trimming(AtomicU8);

/// No task runs; one runs; it is to begin once more.
const RESTS: u8 = 0;
const RUNS: u8 = 1;
const ASKED: u8 = 2;

impl Trimming {
    /// Leaves are to leave. True if the caller starts the task.
    fn ask(&self) -> bool {
        self.0.swap(ASKED, Ordering::Relaxed) == RESTS
    }

    /// The task begins, once more perhaps. False if nothing was asked for since it began last: it
    /// has ended.
    fn begin(&self) -> bool {
        let next = |state| Some(if state == ASKED { RUNS } else { RESTS });
        let before = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        before == Ok(ASKED)
    }
}

/// While one of these lives no leaf is marked to leave.
struct Gathering<'c>(&'c AtomicUsize);

impl Gathering<'_> {
    fn begin(core: &Core) -> Gathering<'_> {
        coverage::take(Path::GatherLeaves);
        core.gathering.fetch_add(1, Ordering::Relaxed);
        Gathering(&core.gathering)
    }
}

impl Drop for Gathering<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Core {
    /// Starts the task that reads what requests wait for.
    pub fn start_reading(&self, env: &Env) {
        self.spawn(env, async |core, env| {
            let take = || core.lock().as_mut().and_then(|set| set.wanted.take(&set.tree));
            while let Some(requests) = take() {
                let (spans, requests): (Vec<Span>, Vec<RequestId>) = requests.into_iter().unzip();
                // An error broke the set: the requests go where its state sends them.
                let _ = core.with_present(env, spans.iter().copied(), |_| ()).await;
                core.remap_all(env, requests);
                core.wait_below_limit(env).await;
            }
        });
    }

    /// Waits while the extents in memory take more than the limit; see the module's description.
    async fn wait_below_limit(&self, env: &Env) {
        if self.is_above_limit() {
            let is_over = || !self.is_above_limit() || self.is_stopping() || self.is_broken();
            env.until_or_time(&self.changed, Some(env.now() + ROOM_WAIT), is_over).await;
        }
    }

    /// Reads leaves, all at once. What is not sound breaks the set; none of one that was present by
    /// then.
    ///
    /// # Errors
    /// The set is broken.
    pub(super) async fn read(
        &self,
        env: &Env,
        leaves: &[LeafPlace],
    ) -> Result<Vec<Option<Vec<Key>>>, WriteError> {
        let ranges: Vec<_> = leaves.iter().map(sectors_of).collect();
        let mut source = DiskSource::new(env, self.cache.device(), false);
        let read = match source.read(&ranges).await {
            Ok(read) => read,
            Err(never) => match never {},
        };
        let mut all = Vec::with_capacity(leaves.len());
        for (leaf, bytes) in leaves.iter().zip(read) {
            let extents = bytes.and_then(|bytes| self.decode(leaf, &bytes));
            // A leaf that was replaced or read since need not be read.
            if let Err(what) = extents.as_ref()
                && self.is_still_absent(leaf)
            {
                let (cache, sector) = (&self.cache.device().argument, leaf.pointer.sector());
                tracing::error!("{cache}: node at sector {sector}: {what}");
                self.break_down(env, &WriteError::Leaf(sector));
            }
            all.push(extents.ok());
            self.check()?;
            yield_once().await;
        }
        Ok(all)
    }

    fn is_still_absent(&self, leaf: &LeafPlace) -> bool {
        self.lock().as_ref().is_some_and(|set| set.tree.is_still_absent(leaf))
    }

    /// The extents of a leaf that lead somewhere (M1).
    fn decode(&self, leaf: &LeafPlace, bytes: &[u8]) -> Result<Vec<Key>, String> {
        let (magic, block_bytes) = self.with(|set| {
            let geometry = set.superblock.geometry();
            (set.superblock.set_uuid().set_magic(), geometry.block_bytes())
        });
        let mut extents = decode(leaf, bytes, magic, block_bytes)?;
        self.with(|set| {
            extents.retain(|key| key.cached_at().is_some() && !set.buckets.is_stale(key));
        });
        Ok(extents)
    }

    /// Makes leaves present.
    ///
    /// # Errors
    /// The set is broken.
    pub async fn enter(&self, env: &Env, leaves: &[LeafPlace]) -> Result<(), WriteError> {
        for some in leaves.chunks(READ_AT_ONCE) {
            for (leaf, extents) in some.iter().zip(self.read(env, some).await?) {
                if let (Some(set), Some(extents)) = (self.lock().as_mut(), extents) {
                    set.tree.enter(leaf, &extents);
                }
                yield_once().await;
            }
        }
        self.trim_soon(env);
        Ok(())
    }

    /// Acts on the set once the leaves are present with sectors of these spans.
    ///
    /// # Errors
    /// The set is broken.
    pub async fn with_present<T>(
        &self,
        env: &Env,
        spans: impl IntoIterator<Item = Span> + Clone,
        act: impl FnOnce(&mut Set) -> T,
    ) -> Result<T, WriteError> {
        let (mut has_read, mut gathering) = (false, None);
        loop {
            let absent = {
                let mut guard = self.lock();
                let set = guard.as_mut().ok_or(WriteError::Broken)?;
                let absent = set.absent_in_all(spans.clone());
                if absent.is_empty() {
                    return Ok(act(set));
                }
                absent
            };
            if has_read {
                gathering.get_or_insert_with(|| Gathering::begin(self));
            }
            has_read = true;
            self.enter(env, &absent).await?;
        }
    }

    /// Looks at the extents that end behind `from` and begin before `upto`, in order, some at a
    /// time, as long as `look` answers true. `look` gets an extent that changes during the scan
    /// either from before or from after the change.
    ///
    /// # Errors
    /// The set is broken.
    pub async fn scan(
        &self,
        env: &Env,
        mut from: Position,
        upto: Position,
        which: Which,
        look: &mut impl FnMut(&Key) -> bool,
    ) -> Result<(), WriteError> {
        loop {
            let scanned = match self.lock().as_ref() {
                Some(set) => set.tree.scan(from, upto, which, &mut *look),
                None => return Err(WriteError::Broken),
            };
            match scanned {
                Scanned::All => return Ok(()),
                Scanned::To(at) => from = at,
                Scanned::Absent(leaves) => {
                    coverage::take(Path::ScanAbsent);
                    let Some(at) = self.scan_absent(env, &leaves, from, upto, look).await? else {
                        return Ok(());
                    };
                    from = at;
                }
            }
            yield_once().await;
        }
    }

    /// The same of a volume.
    ///
    /// # Errors
    /// The set is broken.
    pub async fn scan_volume(
        &self,
        env: &Env,
        inode: u32,
        which: Which,
        look: &mut impl FnMut(&Key) -> bool,
    ) -> Result<(), WriteError> {
        self.scan(env, (inode, 0), (inode, OFFSET_MAX), which, look).await
    }

    /// The extents that lie in buckets, or the dirty ones, in order. If there are more than `most`,
    /// the last of several buckets are dropped.
    ///
    /// # Errors
    /// The set is broken.
    pub async fn extents_in(
        &self,
        env: &Env,
        buckets: &mut Vec<u64>,
        most: usize,
        which: Which,
    ) -> Result<Vec<Key>, WriteError> {
        let mut marks = self.with(|set| set.buckets.marks(buckets));
        let mut extents = Vec::new();
        let mut look = |key: &Key| {
            if (key.is_dirty() || which == Which::All) && marks.have(key) {
                extents.push(*key);
            }
            while extents.len() > most && buckets.len() > 1 {
                marks.unmark(&buckets.split_off(buckets.len().div_ceil(2)));
                extents.retain(|key| marks.have(key));
            }
            true
        };
        self.scan(env, FIRST, LAST, which, &mut look).await?;
        Ok(extents)
    }

    /// True if a volume has extents.
    ///
    /// # Errors
    /// The set is broken.
    pub async fn has_extents(&self, env: &Env, inode: u32) -> Result<bool, WriteError> {
        let mut is_found = false;
        let mut look = |_: &Key| {
            is_found = true;
            false
        };
        self.scan_volume(env, inode, Which::All, &mut look).await?;
        Ok(is_found)
    }

    /// The same of absent leaves in a row. Answers where to go on; none if `look` wants no more.
    async fn scan_absent(
        &self,
        env: &Env,
        leaves: &[LeafPlace],
        mut from: Position,
        upto: Position,
        look: &mut impl FnMut(&Key) -> bool,
    ) -> Result<Option<Position>, WriteError> {
        for (leaf, extents) in leaves.iter().zip(self.read(env, leaves).await?) {
            let Some(extents) = extents.filter(|_| leaf.after <= from) else {
                return Ok(Some(from));
            };
            {
                let guard = self.lock();
                let set = guard.as_ref().ok_or(WriteError::Broken)?;
                if !set.tree.is_still_absent(leaf) {
                    return Ok(Some(from));
                }
                let extents = extents.iter().filter(|key| key.position() > from);
                for key in extents.take_while(|key| key.begin() < upto) {
                    if !look(key) {
                        return Ok(None);
                    }
                }
            }
            from = leaf.position;
            if from >= upto {
                return Ok(None);
            }
            yield_once().await;
        }
        Ok(Some(from))
    }

    /// Why a start ends: the set broke while its leaves were read.
    pub fn unread(&self, error: &WriteError) -> ConfigError {
        ConfigError::new(ConfigKind::System, &self.cache.device().argument, error.to_string())
    }

    /// The limit of the extents in memory, in bytes.
    pub(in super::super) fn memory_limit(&self) -> u64 {
        canary::memory().unwrap_or_else(|| self.node_cache.load(Ordering::Relaxed))
    }

    /// True if the extents in memory take more than the limit.
    pub fn is_above_limit(&self) -> bool {
        let limit = self.memory_limit();
        self.lock().as_ref().is_some_and(|set| set.tree.memory() > limit)
    }

    /// Has leaves leave, once the turn of the set is free.
    pub fn trim_soon(&self, env: &Env) {
        if self.is_above_limit() && self.trimming.ask() {
            self.spawn(env, async |core, env| {
                while core.trimming.begin() {
                    // A broken set is read again.
                    let _ = core.trim_below_limit(env).await;
                }
            });
        }
    }

    /// Has leaves leave, until the limit is kept or no more may leave. A request that waits for a
    /// leaf is mapped again between two passes of the hand.
    async fn trim_below_limit(&self, env: &Env) -> Result<(), WriteError> {
        let mut in_vain = 0;
        while in_vain < 2 && self.is_above_limit() && !self.is_stopping() {
            let memory = || self.lock().as_ref().map(|set| set.tree.memory());
            let before = memory();
            self.change(env, async |session| session.trim().await).await?;
            in_vain = if memory() < before { 0 } else { in_vain + 1 };
            let end = env.now() + PAUSE;
            let is_over = || self.is_stopping() || self.is_broken();
            env.until_or_time(&self.changed, Some(end), is_over).await;
        }
        Ok(())
    }
}

impl Session<'_> {
    /// Has leaves leave if the extents in memory take more than the limit. The caller has nothing
    /// left to write in leaves (M1).
    ///
    /// # Errors
    /// The set is broken.
    pub async fn trim(&self) -> Result<(), WriteError> {
        let is_gathered = || self.core.gathering.load(Ordering::Relaxed) > 0;
        if self.core.is_stopping() || !self.core.is_above_limit() || is_gathered() {
            return Ok(());
        }
        let most = self.core.memory_limit() / PARTS * KEPT;
        // What changed lately may leave, too, once it is written.
        if self.is_checkpoint_due(most).await && !planted(Bug::DropUnwritten) {
            self.checkpoint().await?;
        }
        let (mut looked, mut marked) = (0, 0);
        let mut mark = |set: &mut Set| {
            !is_gathered() && set.tree.mark_leaving(most, (&mut looked, &mut marked))
        };
        while self.with(&mut mark) {
            yield_once().await;
        }
        self.core.readers.quiesce(0).await;
        self.core.writers.quiesce(0).await;
        self.core.check()?;
        coverage::take(Path::LeafLeaves);
        let mut next = 0;
        while self.with(|set| set.tree.drop_leaving(&mut next)) {
            yield_once().await;
        }
        self.core.changed.notify(usize::MAX);
        Ok(())
    }

    /// True if the leaves that the device has as they are do not suffice: the others take more than
    /// `most` bytes.
    async fn is_checkpoint_due(&self, most: u64) -> bool {
        self.with(Set::settle_leaves);
        if !self.with(|set| set.has_session()) {
            return false;
        }
        let (mut next, mut unwritten) = (0, 0);
        while self.with(|set| set.tree.count_unwritten(&mut next, &mut unwritten)) {
            yield_once().await;
        }
        unwritten > most
    }
}

impl Set {
    /// If no leaf lacks anything, all changes count as written. The caller has the turn, and
    /// nothing left to write.
    fn settle_leaves(&mut self) {
        if self.has_session() && self.changes.behind() == 0 {
            self.tree.begin_checkpoint();
            self.tree.end_checkpoint();
        }
    }

    /// The absent leaves of spans, each once; some of them if there are many.
    fn absent_in_all(&self, spans: impl IntoIterator<Item = Span>) -> Vec<LeafPlace> {
        let mut absent: Vec<LeafPlace> = Vec::new();
        for leaf in spans.into_iter().flat_map(|span| self.tree.absent_in(&span)) {
            if !absent.contains(&leaf) {
                absent.push(leaf);
            }
            if absent.len() == READ_AT_ONCE {
                break;
            }
        }
        absent
    }
}

/// The extents of a leaf on the device, stale ones too.
pub(super) fn decode(
    leaf: &LeafPlace,
    bytes: &[u8],
    magic: SetMagic,
    block_bytes: usize,
) -> Result<Vec<Key>, String> {
    let node = NodeRead::read(bytes, leaf.pointer, magic, block_bytes);
    if let Some(fault) = node.fault() {
        return Err(fault.to_string());
    }
    let found = (node.end(), node.seq());
    if found != (leaf.end, Some(leaf.seq)) {
        let expected = (leaf.end, leaf.seq);
        return Err(format!("found its end and number at {found:?}, expected {expected:?}"));
    }
    node.extents().map_err(|fault| fault.to_string())
}

/// What is read of a leaf.
pub(super) fn sectors_of(leaf: &LeafPlace) -> std::ops::Range<u64> {
    let first = leaf.pointer.sector();
    first..first + leaf.end.div_ceil(SECTOR_BYTES) as u64
}

#[cfg(test)]
mod tests {
    use super::Trimming;

    #[test]
    fn leaves_that_are_to_leave_while_the_task_ends_have_it_begin_once_more() {
        let trimming = Trimming::default();
        assert!(trimming.ask(), "the caller starts the task");
        assert!(trimming.begin());
        assert!(!trimming.ask(), "it runs");
        // It has looked at the memory for the last time, and is about to end.
        assert!(trimming.begin(), "it goes on");
        assert!(!trimming.begin(), "it ends");
        assert!(trimming.ask(), "another one starts");
    }
}
