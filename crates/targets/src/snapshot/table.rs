//! The exception table: which chunks have an exception, and which are getting one.
//!
//! Sharded by groups of neighbouring chunks, each under a short lock, so that a run of chunks is
//! looked up under one lock and different places never meet. A *completed* exception is one whose
//! record is durable (or needs none); a *pending* one is being copied, or its record committed.
//!
//! T1. A chunk is claimed by one copier at a time: the one that made its pending exception.
//! T2. A pending exception that was published is completed too: readers and writers of the
//!     snapshot follow it to the COW device. Writers of the origin wait until it is settled: until
//!     every earlier reader of the snapshot has left the origin.
//! T3. Whoever waits is in exactly one place, and is told exactly once.
//!
//! Must never do I/O, nor call out while a lock is held.

use std::ops::Range;
use std::sync::Arc;

use cairn_block::RequestId;
use cairn_block::sync::Mutex;
use cairn_block::sync::atomic::{AtomicBool, Ordering};
use cairn_format::snapshot::Record;
use event_listener::Event;
use rustc_hash::FxHashMap;

use super::presence::{Presence, WORD_CHUNKS};

/// Neighbouring chunks that share a shard: 2^6.
const GROUP_SHIFT: u32 = WORD_CHUNKS.trailing_zeros();
const SHARDS: usize = 128;
/// Stripes of the readers' counters; a group lies in one.
pub(super) const STRIPES: usize = 64;

/// Who waits for a chunk.
pub(super) enum Waiter {
    /// A parked request, to be mapped again.
    Request(RequestId),
    /// A task.
    Bell(Arc<Bell>),
}

/// Rings once.
#[derive(Default)]
pub(super) struct Bell {
    rung: AtomicBool,
    event: Event,
}

impl Bell {
    /// Wakes who waits, now and later.
    pub fn ring(&self) {
        self.rung.store(true, Ordering::Release);
        self.event.notify(usize::MAX);
    }

    /// Waits for the ring.
    pub async fn wait(&self) {
        loop {
            let listener = self.event.listen();
            if self.rung.load(Ordering::Acquire) {
                return;
            }
            listener.await;
        }
    }
}

/// What somebody waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    /// The chunk can be found on the COW device.
    Published,
    /// The origin's chunk may be overwritten.
    Settled,
}

#[derive(Default)]
struct Pending {
    published: bool,
    until_published: Vec<Waiter>,
    until_settled: Vec<Waiter>,
}

impl Pending {
    fn into_waiters(self) -> impl Iterator<Item = Waiter> {
        self.until_published.into_iter().chain(self.until_settled)
    }
}

#[derive(Default)]
struct Shard {
    completed: FxHashMap<u64, u64>,
    pending: FxHashMap<u64, Pending>,
}

#[repr(align(128))]
#[derive(Default)]
struct Padded(Mutex<Shard>);

/// How the exceptions of a snapshot are guarded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Locks {
    /// Groups of neighbouring chunks have locks of their own.
    #[default]
    Sharded,
    /// One lock for all, for the benchmark to compare with.
    Single,
}

/// The exceptions of one snapshot; chunks of the origin to chunks of the COW device.
pub(super) struct Exceptions {
    shards: Box<[Padded]>,
    presence: Presence,
}

/// Where a run of chunks lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Its first chunk on the COW device; none: on the origin.
    pub cow: Option<u64>,
    /// How many chunks, at least one.
    pub count: u64,
}

/// What a write to the snapshot finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WritePlan {
    /// Exceptions: overwrite these chunks of the COW device.
    Cow { first: u64, count: u64 },
    /// The first chunk is getting its exception; the request waits in its list.
    Waits,
    /// So many chunks, all covered by the write, are claimed now: no copy is needed.
    Claimed { count: u64 },
    /// The first chunk has none, and the write does not cover it.
    Missing,
}

/// What a claim for one chunk found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// There is an exception, as far as wanted.
    Done,
    /// The chunk is the caller's to copy.
    Mine,
    /// Somebody else copies it.
    Busy,
}

/// What a write to the origin finds in one snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OriginPlan {
    /// Every chunk has a settled exception.
    Clear,
    /// A chunk is getting its exception; the waiter is in its list.
    Waits,
    /// A chunk has none.
    Missing,
}

/// The stripe of a chunk.
pub(super) fn stripe_of(chunk: u64) -> usize {
    mix(chunk >> GROUP_SHIFT) % STRIPES
}

/// How many chunks from `chunk` lie in its group.
pub(super) fn left_in_group(chunk: u64) -> u64 {
    (1 << GROUP_SHIFT) - (chunk & ((1 << GROUP_SHIFT) - 1))
}

fn mix(group: u64) -> usize {
    (group.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize
}

impl Shard {
    fn run(&self, chunk: u64, most: u64) -> Run {
        let Some(&first) = self.completed.get(&chunk) else {
            let missing = |ahead: &u64| !self.completed.contains_key(&(chunk + ahead));
            let count = (1..most).take_while(missing).count() as u64 + 1;
            return Run { cow: None, count };
        };
        let next = |ahead: &u64| self.completed.get(&(chunk + ahead)) == Some(&(first + ahead));
        Run { cow: Some(first), count: (1..most).take_while(next).count() as u64 + 1 }
    }

    /// How many chunks from `chunk` no writer has to wait for.
    fn free_of_pending(&self, chunk: u64, most: u64) -> u64 {
        if self.pending.is_empty() {
            return most;
        }
        let waits = |at: u64| self.pending.get(&at).is_some_and(|pending| !pending.published);
        (0..most).take_while(|ahead| !waits(chunk + ahead)).count() as u64
    }
}

impl Exceptions {
    /// An empty table for an origin of so many chunks.
    pub fn new(locks: Locks, chunks: u64) -> Exceptions {
        let (shards, known) = if locks == Locks::Sharded { (SHARDS, chunks) } else { (1, 0) };
        let shards = (0..shards).map(|_| Padded::default()).collect();
        Exceptions { shards, presence: Presence::new(known) }
    }

    fn shard(&self, chunk: u64) -> &Mutex<Shard> {
        // A power of two.
        &self.shards[mix(chunk >> GROUP_SHIFT) & (self.shards.len() - 1)].0
    }

    /// Where the chunks from `chunk` lie: up to `most`, to the end of the group, that go one way.
    /// Takes no lock if the first has no exception.
    pub fn find(&self, chunk: u64, most: u64) -> Run {
        let most = most.min(left_in_group(chunk));
        match self.presence.missing(chunk) {
            0 => self.shard(chunk).lock().run(chunk, most),
            missing => Run { cow: None, count: missing.min(most) },
        }
    }

    /// The chunks of `first..end` that have an exception, in order, as runs. Costs as much as
    /// there are chunks or exceptions, whichever are fewer.
    pub fn changed(&self, first: u64, end: u64) -> Vec<Range<u64>> {
        let count: usize = self.shards.iter().map(|shard| shard.0.lock().completed.len()).sum();
        let mut chunks: Vec<u64> = Vec::new();
        if end.saturating_sub(first) < count as u64 {
            let mut at = first;
            while at < end {
                let stop = end.min(at + left_in_group(at));
                let shard = self.shard(at).lock();
                chunks.extend((at..stop).filter(|chunk| shard.completed.contains_key(chunk)));
                at = stop;
            }
        } else {
            for shard in &self.shards {
                let shard = shard.0.lock();
                chunks.extend(shard.completed.keys().filter(|at| (first..end).contains(*at)));
            }
            chunks.sort_unstable();
        }
        let mut runs: Vec<Range<u64>> = Vec::new();
        for chunk in chunks {
            match runs.last_mut().filter(|run| run.end == chunk) {
                Some(run) => run.end += 1,
                None => runs.push(chunk..chunk + 1),
            }
        }
        runs
    }

    /// Decides about a write of up to `most` chunks from `chunk`, of which `whole` are covered
    /// from the first on.
    pub fn plan_write(&self, chunk: u64, most: u64, whole: u64, id: RequestId) -> WritePlan {
        let most = most.min(left_in_group(chunk));
        let mut shard = self.shard(chunk).lock();
        let free = shard.free_of_pending(chunk, most);
        if free == 0 {
            let pending = shard.pending.get_mut(&chunk).expect("it stands in the way");
            pending.until_published.push(Waiter::Request(id));
            return WritePlan::Waits;
        }
        let run = shard.run(chunk, free);
        match run.cow {
            Some(first) => WritePlan::Cow { first, count: run.count },
            None if whole == 0 => WritePlan::Missing,
            None => {
                let count = run.count.min(whole);
                for at in chunk..chunk + count {
                    shard.pending.insert(at, Pending::default());
                }
                WritePlan::Claimed { count }
            }
        }
    }

    /// Decides about a write through the merging snapshot: a run on the COW device or on the
    /// origin that is not being merged; none if the request waits for the first chunk's step.
    pub fn plan_merging_write(&self, chunk: u64, most: u64, id: RequestId) -> Option<Run> {
        let most = most.min(left_in_group(chunk));
        let mut shard = self.shard(chunk).lock();
        let free = shard.free_of_pending(chunk, most);
        if free == 0 {
            let pending = shard.pending.get_mut(&chunk).expect("it stands in the way");
            pending.until_published.push(Waiter::Request(id));
            return None;
        }
        Some(shard.run(chunk, free))
    }

    /// Decides about a write to the chunks of the origin `first..end`, for who waits.
    pub fn plan_origin_write(
        &self,
        first: u64,
        end: u64,
        waiter: &dyn Fn() -> Waiter,
    ) -> OriginPlan {
        let mut chunk = first;
        while chunk < end {
            let stop = end.min(chunk + left_in_group(chunk));
            let mut shard = self.shard(chunk).lock();
            for at in chunk..stop {
                if let Some(pending) = shard.pending.get_mut(&at) {
                    pending.until_settled.push(waiter());
                    return OriginPlan::Waits;
                }
                if !shard.completed.contains_key(&at) {
                    return OriginPlan::Missing;
                }
            }
            chunk = stop;
        }
        OriginPlan::Clear
    }

    /// Claims a chunk that has no exception; if somebody else has it, `waiter` joins its list.
    pub fn claim(
        &self,
        chunk: u64,
        until: Until,
        waiter: impl FnOnce() -> Option<Waiter>,
    ) -> Claim {
        let mut shard = self.shard(chunk).lock();
        if let Some(pending) = shard.pending.get_mut(&chunk) {
            let list = match until {
                Until::Published if pending.published => return Claim::Done,
                Until::Published => &mut pending.until_published,
                Until::Settled => &mut pending.until_settled,
            };
            list.extend(waiter());
            return Claim::Busy;
        }
        if shard.completed.contains_key(&chunk) {
            return Claim::Done;
        }
        shard.pending.insert(chunk, Pending::default());
        Claim::Mine
    }

    /// Holds back the writers of a completed chunk, whose merge begins.
    pub fn hold(&self, chunk: u64) {
        self.shard(chunk).lock().pending.insert(chunk, Pending::default());
    }

    /// Adds an exception of a store that is being read; false if there is one.
    pub fn load(&self, record: Record) -> bool {
        let mut shard = self.shard(record.old.0).lock();
        self.presence.set(record.old.0);
        shard.completed.insert(record.old.0, record.new.0).is_none()
    }

    /// The records are durable: who asks from now on finds the chunks on the COW device. Answers
    /// who waited for that.
    pub fn publish(&self, records: &[Record]) -> Vec<Waiter> {
        let mut waiters = Vec::new();
        for record in records {
            let mut shard = self.shard(record.old.0).lock();
            // A claim that was given up meanwhile leaves nothing to publish.
            let Some(pending) = shard.pending.get_mut(&record.old.0) else { continue };
            pending.published = true;
            waiters.append(&mut pending.until_published);
            shard.completed.insert(record.old.0, record.new.0);
            self.presence.set(record.old.0);
        }
        waiters
    }

    /// Ends pending exceptions, published or given up. Answers who waited.
    pub fn settle(&self, chunks: impl IntoIterator<Item = u64>) -> Vec<Waiter> {
        let mut waiters = Vec::new();
        for chunk in chunks {
            let pending = self.shard(chunk).lock().pending.remove(&chunk);
            waiters.extend(pending.into_iter().flat_map(Pending::into_waiters));
        }
        waiters
    }

    /// Gives up every pending exception. Answers who waited.
    pub fn settle_all(&self) -> Vec<Waiter> {
        let mut waiters = Vec::new();
        for shard in &self.shards {
            let pending = std::mem::take(&mut shard.0.lock().pending);
            let mut chunks: Vec<_> = pending.into_iter().collect();
            chunks.sort_unstable_by_key(|(chunk, _)| *chunk);
            waiters.extend(chunks.into_iter().flat_map(|(_, pending)| pending.into_waiters()));
        }
        waiters
    }

    /// Merged: the chunks are on the origin. Answers who waited.
    pub fn forget(&self, chunks: impl Iterator<Item = u64> + Clone) -> Vec<Waiter> {
        for chunk in chunks.clone() {
            let mut shard = self.shard(chunk).lock();
            shard.completed.remove(&chunk);
            self.presence.clear(chunk);
        }
        self.settle(chunks)
    }

    /// How many chunks are pending.
    #[cfg(test)]
    pub fn pending(&self) -> usize {
        self.shards.iter().map(|shard| shard.0.lock().pending.len()).sum()
    }
}
