//! The exception store: hands out chunks of the COW device, and commits in that order.
//!
//! An allocation makes a [`Batch`]: chunks of the origin and the COW chunks allocated for them, in
//! the queue in order of allocation. A batch is *done* when its data is written. One leader commits
//! the longest done head of the queue at once (group commit). The leader is an owner of a done
//! batch that found no other leader. Nothing is sorted, and a batch is marked done by one store to
//! it.
//!
//! S1. Batches are committed in the order of their allocation.
//! S2. A record is committed only if the list can continue after it: the record that fills an area
//!     counts as no space until the next area's chunk exists.
//! S3. A batch is committed only if the failure count of the COW device, after the flush, is what
//!     it was before the first write of the batch's data. Otherwise another user's failed flush may
//!     have dropped the data although the own flush succeeded: the batch is *lost*. It goes back to
//!     its place in the queue, and its owner writes the data again. The source is the origin, which
//!     holds the data as long as the exception is not settled (I4), or the parked request. After
//!     [`LOSSES_MAX`] times the snapshot ends. A loss that was redone is reported to no client.
//! S4. A batch whose data finds no room on the file system beneath a sparse store may be taken
//!     back: none of its records is on the device. Its chunks are handed out again once all chunks
//!     that were allocated after them are back, too.

mod persistent;
mod transient;

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use cairn_block::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use cairn_block::sync::{Mutex, Padded};
use cairn_block::{Env, IoError, IoResult, invariants, until_some};
use cairn_format::snapshot::{ChunkSize, CowChunk, Layout, OriginChunk, Record};
use event_listener::Event;
use futures_util::lock::Mutex as AsyncMutex;

use super::table::Until;
use crate::args::Device;

pub(super) use persistent::{LoadError, Loaded, Metadata, TailPiece};

/// How often the data of a batch is written again.
const LOSSES_MAX: u32 = 3;

/// The copies between an allocation and its commit.
pub(super) struct Batch {
    /// In the order of allocation.
    pub records: Vec<Record>,
    /// Whose write it is for: the snapshot's (published) or the origin's (settled).
    pub until: Until,
    /// The failure count of the COW device before the data was written.
    failures: AtomicU64,
    done: AtomicBool,
    losses: AtomicU32,
    lost: AtomicBool,
    result: OnceLock<IoResult>,
    changed: Event,
}

/// The result of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// The commit ended.
    Ended(IoResult),
    /// Its data may be lost: write it again (S3).
    Lost,
}

/// Why records were not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Setback {
    /// The data may be lost; no record was written.
    Lost,
    /// The file system has no room for the next area; no record was written.
    NoRoom,
    /// The device failed.
    Failed(IoError),
}

impl Batch {
    /// Its data is about to be written again, while the failure count of the COW device is this.
    pub fn begin(&self, failures: u64) {
        self.failures.store(failures, Ordering::Release);
        self.lost.store(false, Ordering::Release);
    }

    /// The data is written.
    pub fn set_done(&self) {
        self.done.store(true, Ordering::Release);
    }

    /// True if its data is not lost, according to the failure count.
    pub fn is_whole(&self, failures: u64) -> bool {
        self.failures.load(Ordering::Acquire) == failures
    }

    /// Its data may be lost, perhaps again. False if that was too often.
    fn lose(&self) -> bool {
        self.done.store(false, Ordering::Release);
        self.losses.fetch_add(1, Ordering::AcqRel) < LOSSES_MAX
    }

    /// The commit ended.
    pub fn end(&self, result: IoResult) {
        self.result.get_or_init(|| result);
        self.changed.notify(usize::MAX);
    }

    /// Its result since its data was written.
    pub fn news(&self) -> Option<News> {
        let ended = self.result.get().copied().map(News::Ended);
        ended.or_else(|| self.lost.load(Ordering::Acquire).then_some(News::Lost))
    }

    /// Waits for news.
    pub async fn wait_news(&self) -> News {
        until_some(&self.changed, || self.news()).await
    }
}

struct Queue {
    /// The next chunk that is handed out; in a merging store what the status line shows.
    next_free: u64,
    /// Records in the list once everything handed out is committed.
    records: u64,
    batches: VecDeque<Arc<Batch>>,
    /// Chunks that were taken back (S4), first and end, with others allocated behind them.
    returned: Vec<(u64, u64)>,
}

impl Queue {
    /// Checks what must hold whenever the lock is free; so many records are committed.
    fn check_state(&self, committed: u64) {
        let records = || self.batches.iter().flat_map(|batch| &batch.records);
        assert!(records().is_sorted_by(|a, b| a.new.0 < b.new.0), "S1");
        assert!(records().all(|record| record.new.0 < self.next_free), "S1");
        // A leader may have taken others.
        assert!(committed + records().count() as u64 <= self.records, "S1");
        assert!(self.returned.iter().all(|(first, end)| first < end), "S4");
        assert!(self.returned.iter().all(|(_, end)| *end < self.next_free), "S4");
    }

    /// Which of the chunks that were taken back lie at the end of what was handed out.
    fn last_returned(&self) -> Option<usize> {
        self.returned.iter().position(|returned| returned.1 == self.next_free)
    }
}

/// The store of one snapshot.
pub(super) struct Store {
    pub cow: Device,
    pub chunk: ChunkSize,
    persistent: bool,
    queue: Padded<Mutex<Queue>>,
    /// Its holder is the only writer of metadata.
    pub metadata: Padded<AsyncMutex<Metadata>>,
    leading: Padded<Leading>,
    /// Records that are durable.
    committed: AtomicU64,
}

/// Who commits.
#[derive(Default)]
struct Leading {
    /// There is a leader.
    taken: AtomicBool,
    /// The last commit was over before its reactor turned: waiting for the next is short.
    is_quick: AtomicBool,
}

impl Store {
    /// An empty store.
    pub fn new(cow: Device, chunk: ChunkSize, persistent: bool) -> Store {
        let next_free = if persistent { persistent::FIRST_FREE } else { transient::FIRST_FREE };
        let (batches, returned) = (VecDeque::new(), Vec::new());
        let queue = Queue { next_free, records: 0, batches, returned };
        Store {
            cow,
            chunk,
            persistent,
            queue: Padded(Mutex::new(queue)),
            metadata: Padded::default(),
            leading: Padded::default(),
            committed: AtomicU64::new(0),
        }
    }

    pub fn is_persistent(&self) -> bool {
        self.persistent
    }

    /// Resets it to a new store. No task uses it.
    pub async fn reset(&self) {
        let next_free =
            if self.persistent { persistent::FIRST_FREE } else { transient::FIRST_FREE };
        self.take_over(Loaded { next_free, records: 0, metadata: Metadata::default() }).await;
    }

    /// The layout of the device at its current size.
    pub fn layout(&self) -> Option<Layout> {
        Layout::new(self.chunk, self.cow.disk.sectors().0).ok()
    }

    /// Installs the state that was read from the device.
    pub async fn take_over(&self, loaded: Loaded) {
        {
            let mut queue = self.queue.0.lock();
            (queue.next_free, queue.records) = (loaded.next_free, loaded.records);
            queue.returned.clear();
        }
        self.committed.store(loaded.records, Ordering::Release);
        *self.metadata.0.lock().await = loaded.metadata;
    }

    /// Allocates chunks for `old`, as many as there is room for. `None` if there is no room for
    /// one. The data is written afterwards.
    pub fn allocate(&self, old: &[u64], until: Until) -> Option<Arc<Batch>> {
        let whole = self.allocate_now(old, until, true);
        if whole.is_some() {
            return whole;
        }
        // A store on a file may have grown: its size is read again. If the system does not report
        // the size, it is unchanged.
        let _ = self.cow.disk.refresh();
        self.allocate_now(old, until, false)
    }

    /// Chunks for `old`: for `all` of them or none, or for as many as there is room for.
    fn allocate_now(&self, old: &[u64], until: Until, all: bool) -> Option<Arc<Batch>> {
        let (sectors, layout) = (self.cow.disk.sectors().0, self.layout());
        let failures = self.cow.disk.failures();
        let mut records = Vec::with_capacity(old.len());
        let mut queue = self.queue.0.lock();
        let before = (queue.next_free, queue.records);
        while records.len() < old.len() {
            let run = self.room(layout.as_ref(), sectors, &queue) as usize;
            let now = &old[records.len()..][..run.min(old.len() - records.len())];
            let Some(last) = (now.len() as u64).checked_sub(1) else { break };
            let first = queue.next_free;
            let record = |(new, &old)| Record { old: OriginChunk(old), new: CowChunk(new) };
            records.extend((first..).zip(now).map(record));
            queue.next_free = self.next_after(layout.as_ref(), first + last);
            queue.records += last + 1;
        }
        if records.is_empty() || (all && records.len() < old.len()) {
            (queue.next_free, queue.records) = before;
            return None;
        }
        let batch = Arc::new(Batch {
            records,
            until,
            failures: AtomicU64::new(failures),
            done: AtomicBool::new(false),
            losses: AtomicU32::new(0),
            lost: AtomicBool::new(false),
            result: OnceLock::new(),
            changed: Event::new(),
        });
        queue.batches.push_back(batch.clone());
        invariants::sample(|| queue.check_state(self.committed()));
        Some(batch)
    }

    /// Checks the queue of batches.
    pub fn check_state(&self) {
        self.queue.0.lock().check_state(self.committed());
    }

    /// The chunk that is handed out after this one.
    fn next_after(&self, layout: Option<&Layout>, chunk: u64) -> u64 {
        let layout = layout.filter(|_| self.persistent);
        layout.map_or(chunk + 1, |layout| layout.next_after(CowChunk(chunk)).0)
    }

    /// S4. After it there may be a done batch now without a leader.
    pub fn take_back(&self, batch: &Arc<Batch>) {
        let layout = self.layout();
        let [first, last] = [batch.records.first(), batch.records.last()]
            .map(|record| record.expect("a batch has records").new.0);
        let end = self.next_after(layout.as_ref(), last);
        let mut queue = self.queue.0.lock();
        queue.batches.retain(|other| !Arc::ptr_eq(other, batch));
        queue.records -= batch.records.len() as u64;
        queue.returned.push((first, end));
        while let Some(at) = queue.last_returned() {
            queue.next_free = queue.returned.swap_remove(at).0;
        }
    }

    /// S3: batches that the leader took go back to their places, to be written again. False if
    /// one of them was lost too often; then they stay with the leader.
    pub fn put_back_lost(&self, batches: &[Arc<Batch>]) -> bool {
        // `count` visits every batch.
        if batches.iter().filter(|batch| !batch.lose()).count() > 0 {
            return false;
        }
        self.put_back(batches);
        for batch in batches {
            batch.lost.store(true, Ordering::Release);
            batch.changed.notify(usize::MAX);
        }
        true
    }

    /// Batches that the leader took go back to their places.
    pub fn put_back(&self, batches: &[Arc<Batch>]) {
        let mut queue = self.queue.0.lock();
        batches.iter().rev().for_each(|batch| queue.batches.push_front(batch.clone()));
    }

    /// True if the head of the queue is done and there was no leader: the caller leads from now on,
    /// until it [stops](Store::stop_leading).
    ///
    /// The owner that has set a batch done asks, and a leader that has stopped asks again: so no
    /// done head stays without a leader.
    pub fn lead(&self) -> bool {
        let is_done = |batch: &Arc<Batch>| batch.done.load(Ordering::Acquire);
        let has_done = self.queue.0.lock().batches.front().is_some_and(is_done);
        has_done && !self.leading.0.taken.swap(true, Ordering::AcqRel)
    }

    /// Lets another owner lead. `is_quick`: the last commit was quick, so the next may be too.
    pub fn stop_leading(&self, is_quick: bool) {
        self.leading.0.is_quick.store(is_quick, Ordering::Relaxed);
        // Swapped, so that the caller sees the changes of every owner that found it leading.
        self.leading.0.taken.swap(false, Ordering::AcqRel);
    }

    /// True if there is a leader.
    pub fn is_led(&self) -> bool {
        self.leading.0.taken.load(Ordering::Relaxed)
    }

    /// True if commits end so soon that sleeping and being woken would take longer.
    pub fn is_quick(&self) -> bool {
        self.leading.0.is_quick.load(Ordering::Relaxed)
    }

    /// Takes the done head of the queue.
    pub fn take_done(&self) -> Vec<Arc<Batch>> {
        let mut queue = self.queue.0.lock();
        let done = queue.batches.iter().take_while(|batch| batch.done.load(Ordering::Acquire));
        let count = done.count();
        queue.batches.drain(..count).collect()
    }

    /// Makes records durable, in their order, and the data before them, which was written while
    /// the failure count of the COW device was `failures`. The caller holds the metadata lock.
    pub async fn write_records(
        &self,
        env: &Env,
        metadata: &mut Metadata,
        records: &[Record],
        failures: u64,
    ) -> Result<(), Setback> {
        if self.persistent {
            persistent::append(self, env, metadata, records, failures).await?;
        }
        self.committed.fetch_add(records.len() as u64, Ordering::AcqRel);
        Ok(())
    }

    /// A merge took `count` records from the end of the list.
    pub fn shorten(&self, count: u64) {
        let committed = self.committed.load(Ordering::Acquire) - count;
        self.committed.store(committed, Ordering::Release);
        let mut queue = self.queue.0.lock();
        queue.records = committed;
        if let Some(layout) = self.layout() {
            let (area, slot) = layout.place(committed);
            queue.next_free = 1 + area * (layout.records_per_area() + 1) + slot + 1;
        }
    }

    /// Records that are durable.
    pub fn committed(&self) -> u64 {
        self.committed.load(Ordering::Acquire)
    }

    /// The figures of the status line, in sectors: allocated, total, metadata.
    pub fn usage(&self) -> [u64; 3] {
        let chunk = u64::from(self.chunk.sectors());
        let allocated = self.queue.0.lock().next_free.saturating_mul(chunk);
        let metadata = match self.persistent {
            true => (self.committed() / self.chunk.records_per_area() + 2) * chunk,
            false => 0,
        };
        [allocated, self.cow.disk.sectors().0, metadata]
    }

    /// How many chunks can be handed out side by side.
    fn room(&self, layout: Option<&Layout>, sectors: u64, queue: &Queue) -> u64 {
        match (self.persistent, layout) {
            (true, Some(layout)) => persistent::room(layout, queue.next_free, queue.records),
            (true, None) => 0,
            (false, _) => transient::room(self.chunk, sectors, queue.next_free),
        }
    }

    /// True if a write of one more chunk would find room.
    pub fn has_room(&self) -> bool {
        let sectors = self.cow.disk.sectors().0;
        self.room(self.layout().as_ref(), sectors, &self.queue.0.lock()) > 0
    }
}
