//! The exception store: hands out chunks of the COW device, and commits in that order.
//!
//! An allocation makes a [`Batch`]: chunks of the origin with the chunks they get, in the queue at
//! the place that the allocation took. A batch is *done* when its data is written; the longest
//! done head of the queue is committed together by one leader (group commit), an owner of a done
//! batch who found nobody leading. Nobody sorts, and being done is one store to the batch.
//!
//! S1. Batches are committed in the order of their allocation.
//! S2. A record is committed only if the list can go on after it: the record that fills an area
//!     counts as no space until the next area's chunk exists.

mod persistent;
mod transient;

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use cairn_block::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use cairn_block::sync::{Mutex, Padded};
use cairn_block::{Env, IoError, IoResult};
use cairn_format::snapshot::{ChunkSize, CowChunk, Layout, OriginChunk, Record};
use futures_util::lock::Mutex as AsyncMutex;

use super::table::Bell;
use crate::args::Device;

pub(super) use persistent::{Ledger, LoadError, Loaded, TailPiece};

/// What is remembered of the copies between an allocation and its commit.
pub(super) struct Batch {
    /// In the order of allocation.
    pub records: Vec<Record>,
    done: AtomicBool,
    result: OnceLock<IoResult>,
    ended: Bell,
}

impl Batch {
    /// The data is written.
    pub fn set_done(&self) {
        self.done.store(true, Ordering::Release);
    }

    /// The commit ended.
    pub fn end(&self, result: IoResult) {
        self.result.get_or_init(|| result);
        self.ended.ring();
    }

    /// The commit's result, if it has ended.
    pub fn result(&self) -> Option<IoResult> {
        self.result.get().copied()
    }

    /// Waits for the commit's end.
    pub async fn wait_ended(&self) {
        self.ended.wait().await;
    }
}

struct Queue {
    /// The next chunk that is handed out; in a merging store what the status line shows.
    next_free: u64,
    /// Records in the list once everything handed out is committed.
    records: u64,
    batches: VecDeque<Arc<Batch>>,
}

/// The store of one snapshot.
pub(super) struct Store {
    pub cow: Device,
    pub chunk: ChunkSize,
    persistent: bool,
    queue: Padded<Mutex<Queue>>,
    /// Whoever holds it writes metadata.
    pub ledger: Padded<AsyncMutex<Ledger>>,
    leading: Padded<Leading>,
    /// Records that are durable.
    committed: AtomicU64,
}

/// Who commits.
#[derive(Default)]
struct Leading {
    /// Somebody leads.
    taken: AtomicBool,
    /// The last commit was over before its reactor turned: waiting for the next is short.
    is_quick: AtomicBool,
}

impl Store {
    /// An empty store.
    pub fn new(cow: Device, chunk: ChunkSize, persistent: bool) -> Store {
        let next_free = if persistent { persistent::FIRST_FREE } else { transient::FIRST_FREE };
        let queue = Queue { next_free, records: 0, batches: VecDeque::new() };
        Store {
            cow,
            chunk,
            persistent,
            queue: Padded(Mutex::new(queue)),
            ledger: Padded::default(),
            leading: Padded::default(),
            committed: AtomicU64::new(0),
        }
    }

    pub fn is_persistent(&self) -> bool {
        self.persistent
    }

    /// Where everything lies on the device as large as it is now.
    pub fn layout(&self) -> Option<Layout> {
        Layout::new(self.chunk, self.cow.disk.sectors().0).ok()
    }

    /// Takes over what was read from the device.
    pub async fn take_over(&self, loaded: Loaded) {
        {
            let mut queue = self.queue.0.lock();
            (queue.next_free, queue.records) = (loaded.next_free, loaded.records);
        }
        self.committed.store(loaded.records, Ordering::Release);
        *self.ledger.0.lock().await = loaded.ledger;
    }

    /// Chunks for `old`, as many as there is room for. None: there is no room for one.
    pub fn allocate(&self, old: &[u64]) -> Option<Arc<Batch>> {
        let whole = self.allocate_now(old, true);
        if whole.is_some() {
            return whole;
        }
        // A store on a file may have grown; who is short of room looks once more. Where the system
        // does not tell the size, it is as before.
        let _ = self.cow.disk.refresh();
        self.allocate_now(old, false)
    }

    /// Chunks for `old`: for `all` of them or none, or for as many as there is room for.
    fn allocate_now(&self, old: &[u64], all: bool) -> Option<Arc<Batch>> {
        let (sectors, layout) = (self.cow.disk.sectors().0, self.layout());
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
            queue.next_free = match layout.filter(|_| self.persistent) {
                Some(layout) => layout.next_after(CowChunk(first + last)).0,
                None => first + last + 1,
            };
            queue.records += last + 1;
        }
        if records.is_empty() || (all && records.len() < old.len()) {
            (queue.next_free, queue.records) = before;
            return None;
        }
        let batch = Arc::new(Batch {
            records,
            done: AtomicBool::new(false),
            result: OnceLock::new(),
            ended: Bell::default(),
        });
        queue.batches.push_back(batch.clone());
        Some(batch)
    }

    /// True if the head of the queue is done and nobody led: the caller leads from now on, until
    /// he [stops](Store::stop_leading).
    ///
    /// Whoever has set a batch done asks, and whoever has stopped leading asks again: no done head
    /// is left behind.
    pub fn lead(&self) -> bool {
        let is_done = |batch: &Arc<Batch>| batch.done.load(Ordering::Acquire);
        let has_done = self.queue.0.lock().batches.front().is_some_and(is_done);
        has_done && !self.leading.0.taken.swap(true, Ordering::AcqRel)
    }

    /// Lets somebody else lead, who perhaps commits `is_quick`ly too.
    pub fn stop_leading(&self, is_quick: bool) {
        self.leading.0.is_quick.store(is_quick, Ordering::Relaxed);
        // Swapped, so that the caller sees what everybody did who found him leading.
        self.leading.0.taken.swap(false, Ordering::AcqRel);
    }

    /// True if somebody leads.
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

    /// Makes records durable, in their order. The caller holds the ledger.
    pub async fn write_records(
        &self,
        env: &Env,
        ledger: &mut Ledger,
        records: &[Record],
    ) -> Result<(), IoError> {
        if self.persistent {
            persistent::append(self, env, ledger, records).await?;
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
