//! The exception table: which chunks have an exception, and which exceptions are pending.
//!
//! Groups of neighbouring chunks, each with its own short lock and cache line, so that a run of
//! chunks is looked up under one lock and different places do not contend. A *completed* exception
//! has a durable record (or needs none); a *pending* one is being copied, or its record committed.
//!
//! The chunks of a group with a completed exception can also be read without its lock. A reader of
//! the snapshot looks there first; where no bit is set it goes to the origin and has written to no
//! memory that other reactors share. A bit is set before the exception's copier looks for readers,
//! so that rule E1 of `epochs` holds for the bits as for the table.
//!
//! Groups are made at the first claim, in pages: unwritten chunks cost nothing, and chunks written
//! at random cost a byte each and eight per exception.
//!
//! T1. A chunk is claimed by one copier at a time: the one that made its pending exception.
//! T2. A pending exception that was published is completed too: readers and writers of the snapshot
//!     follow it to the COW device. Writers of the origin wait until it is settled: until every
//!     earlier reader of the snapshot has left the origin.
//! T3. A waiter is in exactly one list, and is woken exactly once.
//! T4. Whenever the lock of a group is free, the bits that are read without it are the group's.
//!
//! Must never do I/O, nor call other code while a lock is held.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use cairn_block::sync::Mutex;
use cairn_block::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use cairn_block::{RequestId, invariants, until};
use cairn_format::snapshot::Record;
use event_listener::Event;
use rustc_hash::FxHashMap;

use super::group::{CHUNKS, Group};

/// Groups of a page: 4 KiB.
const PAGE_GROUPS: u64 = 64;
const PAGE_CHUNKS: u64 = PAGE_GROUPS * CHUNKS;
/// Stripes of the readers' counters; a group lies in one.
pub(super) const STRIPES: usize = 64;

/// A waiter for a chunk.
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
    /// Wakes the waiter, also one that waits later.
    pub fn ring(&self) {
        self.rung.store(true, Ordering::Release);
        self.event.notify(usize::MAX);
    }

    /// Waits for the ring.
    pub async fn wait(&self) {
        until(&self.event, || self.rung.load(Ordering::Acquire)).await;
    }
}

/// The state that a waiter waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    /// The chunk can be found on the COW device.
    Published,
    /// The origin's chunk may be overwritten.
    Settled,
}

/// A group, its lock, and the bits that are read without it.
#[repr(align(64))]
#[derive(Default)]
struct Cell {
    completed: AtomicU64,
    group: Mutex<Group>,
}

type Page = Box<[Cell]>;

fn fresh_page() -> Page {
    (0..PAGE_GROUPS).map(|_| Cell::default()).collect()
}

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
    pages: Box<[OnceLock<Page>]>,
    /// Groups beyond the pages: of an origin that has grown, or all of them.
    rest: Mutex<FxHashMap<u64, Group>>,
}

/// Where a run of chunks lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Its first chunk on the COW device; none: on the origin.
    pub cow: Option<u64>,
    /// How many chunks, at least one.
    pub count: u64,
}

/// The verdict on a write to the snapshot.
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
    /// Another copier has it.
    Busy,
}

/// The verdict on a write to the origin, for one snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OriginPlan {
    /// Every chunk has a settled exception.
    Clear,
    /// A chunk is getting its exception; the waiter is in its list.
    Waits,
    /// A chunk has none.
    Missing,
    /// The server ends: a snapshot that may lack a chunk keeps nothing any more.
    Refused,
}

/// The stripe of a chunk.
pub(super) fn stripe_of(chunk: u64) -> usize {
    ((chunk / CHUNKS).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % STRIPES
}

/// How many chunks from `chunk` lie in its group.
pub(super) fn left_in_group(chunk: u64) -> u64 {
    CHUNKS - chunk % CHUNKS
}

impl Exceptions {
    /// An empty table for an origin of so many chunks.
    pub fn new(locks: Locks, chunks: u64) -> Exceptions {
        let known = if locks == Locks::Sharded { chunks } else { 0 };
        let pages = known.div_ceil(PAGE_CHUNKS);
        Exceptions { pages: (0..pages).map(|_| OnceLock::new()).collect(), rest: Mutex::default() }
    }

    /// The page of a chunk, and where in it the chunk's group is; none: in the rest.
    fn page(&self, chunk: u64) -> Option<(&OnceLock<Page>, usize)> {
        let group = chunk / CHUNKS;
        let page = self.pages.get(usize::try_from(group / PAGE_GROUPS).ok()?)?;
        Some((page, (group % PAGE_GROUPS) as usize))
    }

    /// Looks at, or changes, a chunk's group under its lock, told where in it the chunk is.
    fn with<T>(&self, chunk: u64, look: impl FnOnce(&mut Group, u64) -> T) -> T {
        let at = chunk % CHUNKS;
        let Some((page, index)) = self.page(chunk) else {
            return look(self.rest.lock().entry(chunk / CHUNKS).or_default(), at);
        };
        let cell = &page.get_or_init(fresh_page)[index];
        let mut group = cell.group.lock();
        let answer = look(&mut group, at);
        invariants::sample(|| group.check_state());
        if cell.completed.load(Ordering::Relaxed) != group.completed() {
            cell.completed.store(group.completed(), Ordering::Release);
        }
        answer
    }

    /// Where the chunks from `chunk` lie: up to `most`, to the end of the group, that go one way.
    /// Takes no lock if the group is in a page and the first has no exception.
    pub fn find(&self, chunk: u64, most: u64) -> Run {
        let (at, most) = (chunk % CHUNKS, most.min(left_in_group(chunk)));
        let Some((page, index)) = self.page(chunk) else {
            let rest = self.rest.lock();
            let run = rest.get(&(chunk / CHUNKS)).map(|group| group.run(at, most));
            return run.unwrap_or(Run { cow: None, count: most });
        };
        let completed = page.get().map_or(0, |page| page[index].completed.load(Ordering::Acquire));
        match u64::from((completed >> at).trailing_zeros()) {
            0 => self.with(chunk, |group, at| group.run(at, most)),
            missing => Run { cow: None, count: missing.min(most) },
        }
    }

    /// The chunks of `first..end` that have an exception, in order, as runs.
    pub fn changed(&self, first: u64, end: u64) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        let mut add = |group: u64, mut completed: u64| {
            while completed != 0 {
                let chunk = group * CHUNKS + u64::from(completed.trailing_zeros());
                completed &= completed - 1;
                match runs.last_mut().filter(|run| run.end == chunk) {
                    _ if !(first..end).contains(&chunk) => (),
                    Some(run) => run.end += 1,
                    None => runs.push(chunk..chunk + 1),
                }
            }
        };
        let touched = first / PAGE_CHUNKS..end.div_ceil(PAGE_CHUNKS);
        let pages = (0..).zip(&self.pages).filter(|(page, _)| touched.contains(page));
        for (page, groups) in pages {
            let cells = groups.get().into_iter().flatten();
            for (index, cell) in (0..).zip(cells) {
                add(page * PAGE_GROUPS + index, cell.completed.load(Ordering::Acquire));
            }
        }
        let rest = self.rest.lock();
        let mut groups: Vec<_> =
            rest.iter().map(|(group, state)| (*group, state.completed())).collect();
        drop(rest);
        groups.sort_unstable();
        groups.into_iter().for_each(|(group, completed)| add(group, completed));
        runs
    }

    /// Decides about a write of up to `most` chunks from `chunk`, of which `whole` are covered
    /// from the first on.
    pub fn plan_write(&self, chunk: u64, most: u64, whole: u64, id: RequestId) -> WritePlan {
        let most = most.min(left_in_group(chunk));
        self.with(chunk, |group, at| {
            let free = group.free_of_copies(at, most);
            if free == 0 {
                group.wait(at, Until::Published, Waiter::Request(id));
                return WritePlan::Waits;
            }
            let run = group.run(at, free);
            match run.cow {
                Some(first) => WritePlan::Cow { first, count: run.count },
                None if whole == 0 => WritePlan::Missing,
                None => {
                    let count = run.count.min(whole);
                    group.begin(at, count);
                    WritePlan::Claimed { count }
                }
            }
        })
    }

    /// Decides about a write through the merging snapshot: a run on the COW device or on the
    /// origin that is not being merged; none if the request waits for the first chunk's step.
    pub fn plan_merging_write(&self, chunk: u64, most: u64, id: RequestId) -> Option<Run> {
        let most = most.min(left_in_group(chunk));
        self.with(chunk, |group, at| {
            let free = group.free_of_holds(at, most);
            if free == 0 {
                group.wait(at, Until::Settled, Waiter::Request(id));
                return None;
            }
            Some(group.run(at, free))
        })
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
            let count = (end - chunk).min(left_in_group(chunk));
            let plan = self.with(chunk, |group, at| group.plan_origin_write(at, count, waiter));
            if plan != OriginPlan::Clear {
                return plan;
            }
            chunk += count;
        }
        OriginPlan::Clear
    }

    /// Claims a chunk that has no exception. If another copier has it, `waiter` joins its list.
    pub fn claim(
        &self,
        chunk: u64,
        until: Until,
        waiter: impl FnOnce() -> Option<Waiter>,
    ) -> Claim {
        self.with(chunk, |group, at| {
            let is_done = group.is_completed(at);
            if group.is_pending(at) && !(is_done && until == Until::Published) {
                if let Some(waiter) = waiter() {
                    group.wait(at, until, waiter);
                }
                return Claim::Busy;
            }
            if is_done {
                return Claim::Done;
            }
            group.begin(at, 1);
            Claim::Mine
        })
    }

    /// Holds back the writers of a completed chunk, whose merge begins.
    pub fn hold(&self, chunk: u64) {
        self.with(chunk, |group, at| group.begin(at, 1));
    }

    /// Adds an exception of a store that is being read; false if there is one.
    pub fn load(&self, record: Record) -> bool {
        self.with(record.old.0, |group, at| group.complete(at, record.new.0))
    }

    /// The records are durable: who asks from now on finds the chunks on the COW device. Answers
    /// who waited for that.
    pub fn publish(&self, records: &[Record]) -> Vec<Waiter> {
        let mut waiters = Vec::new();
        for record in records {
            self.with(record.old.0, |group, at| {
                // A claim that was given up since leaves nothing to publish.
                if group.is_pending(at) {
                    group.complete(at, record.new.0);
                    group.tell_published(at, &mut waiters);
                }
            });
        }
        waiters
    }

    /// Ends pending exceptions, published or given up. Answers who waited.
    pub fn settle(&self, chunks: impl IntoIterator<Item = u64>) -> Vec<Waiter> {
        let mut waiters = Vec::new();
        for chunk in chunks {
            self.with(chunk, |group, at| group.end(at, &mut waiters));
        }
        waiters
    }

    /// Gives up every pending exception. Answers who waited.
    pub fn settle_all(&self) -> Vec<Waiter> {
        let mut waiters = Vec::new();
        for cell in self.pages.iter().filter_map(OnceLock::get).flatten() {
            cell.group.lock().end_all(&mut waiters);
        }
        let mut rest = self.rest.lock();
        let mut groups: Vec<_> = rest.iter_mut().collect();
        groups.sort_unstable_by_key(|(group, _)| **group);
        groups.into_iter().for_each(|(_, group)| group.end_all(&mut waiters));
        waiters
    }

    /// Checks every group.
    pub fn check_state(&self) {
        for cell in self.pages.iter().filter_map(OnceLock::get).flatten() {
            let group = cell.group.lock();
            group.check_state();
            assert_eq!(cell.completed.load(Ordering::Acquire), group.completed(), "T4");
        }
        self.rest.lock().values().for_each(Group::check_state);
    }

    /// Drops every exception. No task uses the table.
    pub fn clear(&self) {
        for cell in self.pages.iter().filter_map(OnceLock::get).flatten() {
            *cell.group.lock() = Group::default();
            cell.completed.store(0, Ordering::Release);
        }
        self.rest.lock().clear();
    }

    /// Merged: the chunks are on the origin. Answers who waited.
    pub fn forget(&self, chunks: impl Iterator<Item = u64> + Clone) -> Vec<Waiter> {
        for chunk in chunks.clone() {
            self.with(chunk, Group::forget);
        }
        self.settle(chunks)
    }

    /// How many groups there are.
    #[cfg(all(test, not(shuttle)))]
    fn groups(&self) -> usize {
        let cells = self.pages.iter().filter_map(OnceLock::get).flatten();
        cells.count() + self.rest.lock().len()
    }

    /// How many chunks are pending.
    #[cfg(test)]
    pub fn pending(&self) -> u32 {
        let cells = self.pages.iter().filter_map(OnceLock::get).flatten();
        let paged: u32 = cells.map(|cell| cell.group.lock().pending().count_ones()).sum();
        let rest: u32 = self.rest.lock().values().map(|group| group.pending().count_ones()).sum();
        paged + rest
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use cairn_block::sync::Mutex;
    use cairn_format::snapshot::{CowChunk, OriginChunk, Record};

    use super::{Exceptions, Locks, Run};

    fn record(old: u64, new: u64) -> Record {
        Record { old: OriginChunk(old), new: CowChunk(new) }
    }

    #[test]
    fn missing_chunks_are_counted_to_the_next_exception_or_the_end_of_the_group() {
        for locks in [Locks::Sharded, Locks::Single] {
            let table = Exceptions::new(locks, 100_000);
            let missing = |count| Run { cow: None, count };
            assert_eq!((table.find(0, 99), table.find(63, 99)), (missing(64), missing(1)));
            assert_eq!(table.groups(), 0, "who looks leaves nothing behind");
            assert!(table.load(record(10, 7)) && table.load(record(99_999, 8)));
            assert!(!table.load(record(10, 9)));
            assert_eq!((table.find(0, 99), table.find(11, 99)), (missing(10), missing(53)));
            assert_eq!(table.find(10, 99), Run { cow: Some(7), count: 1 });
            table.forget([10].into_iter());
            assert_eq!(table.find(0, 99), missing(64));
        }
    }

    #[test]
    fn what_lies_beyond_the_origin_as_it_was_is_kept_too() {
        let table = Exceptions::new(Locks::Sharded, 1);
        assert!(table.load(record(1 << 40, 7)) && table.load(record((1 << 40) + 1, 8)));
        assert!(table.load(record(5, 9)));
        assert_eq!(table.find(1 << 40, 9), Run { cow: Some(7), count: 2 });
        assert_eq!(table.changed(0, u64::MAX), [5..6, 1 << 40..(1 << 40) + 2]);
        assert_eq!(table.changed(5, (1 << 40) + 1), [5..6, 1 << 40..(1 << 40) + 1]);
        assert_eq!(Exceptions::new(Locks::Sharded, 0).find(0, 1), Run { cow: None, count: 1 });
    }

    #[test]
    fn a_group_and_its_lock_fill_one_cache_line() {
        // Locks that measure themselves are larger.
        if size_of::<Mutex<()>>() == 1 {
            assert_eq!(size_of::<super::Cell>(), 64);
        }
    }
}
