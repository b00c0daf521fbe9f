//! Buckets: what each holds, which are free, and the generations that their next users get.
//!
//! # Invariants
//! K1. A bucket is free if no live key on the device leads to it. A key lives unless a newer set of
//!     its leaf, an entry of the journal that counts, or a newer generation hides it: all of these
//!     are durable, and stay until a leaf without the key is. So a power cut at any time finds no
//!     key that counts to what is written there. No node and no other structure is in it either.
//! K2. A bucket gets the generation after its own when it is taken. Its keys raise the generation
//!     at the next opening. After a crash the priorities on the device may be behind by that; none
//!     of their generations ever makes a stale pointer live, because a live key of each older
//!     generation would have kept the bucket from being free.
//! K3. No pointer to a bucket becomes more than [`STALE_MAX`] generations old: the kernel takes
//!     more for damage, and from 129 on it would pass for a newer one. A use raises the generation
//!     twice, as a bucket is taken and as its node is replaced. Counted are the pointers of
//!     extents, of the journal, and of all keys of the nodes above the leaves: those to replaced
//!     children stay there until their node is replaced.
//! K4. The counts are those of the tree in memory. They run ahead of the device while a plan is
//!     written; [`Buckets::refill`] and [`Buckets::records`] are called when none is.
//!
//! `free` keeps the list of free buckets; `choice` chooses those that are to be emptied. Both, and
//! `census`, look at a bounded number of buckets at once (`work`).

mod census;
mod choice;
mod free;
mod open;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use cairn_block::sync::Padded;
use cairn_block::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use cairn_format::bcache::priorities::{METADATA, Record};
use cairn_format::bcache::{Age, Generation, Geometry, Key, Pointer, STALE_MAX};

use super::canary::{Bug, planted};
use super::work;
use free::Idle;

pub(super) use census::Census;
pub(super) use choice::{Choice, Marks};
pub(super) use open::OpenBuckets;

/// The priority of a bucket that was just used.
const JUST_USED: u16 = 0x8000;
/// How many free buckets are kept for metadata.
const RESERVE_MIN: usize = 4;
const RESERVE_MAX: usize = 64;
/// Free buckets are short if fewer than this part of all are left for data.
const SHORT_PART: usize = 64;

/// At most one in so many buckets is left alone after a write to it failed.
const BAD_PART: usize = 64;

/// What is known of a bucket.
#[derive(Default)]
struct Bucket {
    generation: Generation,
    /// When it was used last, by the clock of uses. Reads change it beside each other.
    used_at: AtomicU32,
    /// How old the oldest stale pointer to it is.
    oldest: u8,
    /// It has something else than data.
    is_metadata: bool,
    /// It is among the free ones.
    is_free: bool,
    /// It is among those that may be free soon (`free`).
    is_listed: bool,
    /// Data is written to it until it is full.
    is_open: bool,
    /// A write of data to it failed: it is not taken again.
    is_bad: bool,
    /// How often its generation was raised since the priorities were planned last.
    ahead: u8,
    /// Writes of data in flight.
    writing: u32,
    /// Extents of it that tasks are copying, or are about to.
    copied: u32,
    /// Sectors of extents, and of dirty ones.
    live: u32,
    dirty: u32,
    /// The number of the checkpoint that was next when it lost sectors last.
    lost_in: u32,
}

impl Bucket {
    /// True if it has nothing in memory.
    fn is_idle(&self) -> bool {
        let is_in_use = self.is_metadata || self.is_open || self.is_busy();
        self.live == 0 && !(is_in_use || self.is_free || self.is_bad)
    }

    /// True if what it has lost is not on the device either, once the checkpoint `settled` has
    /// ended.
    fn is_settled(&self, settled: u32) -> bool {
        self.lost_in <= settled || planted(Bug::ReuseBeforeCheckpoint)
    }

    /// Requests write to it, or tasks copy from it.
    fn is_busy(&self) -> bool {
        self.writing > 0 || self.copied > 0
    }

    /// K3: its next use makes no pointer too old.
    fn may_be_taken(&self) -> bool {
        self.oldest.max(self.ahead).saturating_add(2) <= STALE_MAX
    }

    /// How recently it was used: [`JUST_USED`] if that was now.
    fn priority(&self, clock: u32) -> u16 {
        let used_at = self.used_at.load(Ordering::Relaxed);
        let ago = clock.saturating_sub(used_at).min(u32::from(JUST_USED) - 1);
        JUST_USED - ago as u16
    }

    /// True if it has dirty data or metadata.
    fn is_in_use(&self) -> bool {
        self.dirty > 0 || self.is_metadata
    }

    /// True if it has only clean data, and is not busy.
    fn is_clean(&self) -> bool {
        let is_in_use = self.is_metadata || self.is_open || self.is_busy();
        self.live > 0 && self.dirty == 0 && !is_in_use
    }

    /// True if it has only clean data and may be taken, settled on the device as in memory.
    fn may_be_emptied(&self, settled: u32) -> bool {
        self.is_clean() && self.lost_in <= settled && self.may_be_taken()
    }

    /// True if it has dirty data, has room for more of it, and is not busy.
    fn is_sparse(&self, bucket_sectors: u64) -> bool {
        let is_in_use = self.is_metadata || self.is_open || self.is_busy();
        self.dirty > 0 && u64::from(self.dirty) < bucket_sectors && !is_in_use
    }

    /// Gives it the next generation.
    fn raise(&mut self) {
        self.generation = self.generation.next();
        self.ahead = self.ahead.saturating_add(1);
    }
}

/// How far requests have used the cache. Reads change it beside each other, now and then.
#[derive(Default)]
struct Uses {
    /// The clock of uses: it goes on once for each 1024th part of the cache that is requested.
    clock: AtomicU32,
    /// Sectors that were requested.
    requested: AtomicU64,
}

/// See the module's description.
pub(super) struct Buckets {
    geometry: Geometry,
    buckets: Vec<Bucket>,
    /// The free ones; the next comes last.
    free: Vec<u64>,
    /// Those that may be free soon.
    idle: Idle,
    /// How many free ones a plan that is being made takes at most.
    held: usize,
    /// A generation is not that of the priorities on the device.
    has_changed: bool,
    /// How many have dirty data or metadata.
    in_use: usize,
    /// Sectors of dirty extents, and what was lost since this was forgotten last.
    dirty: u64,
    lost: u64,
    /// The highest `ahead` of a bucket.
    ahead: u8,
    /// How many free ones are kept for metadata.
    reserve: usize,
    /// A 1024th part of the cache, in sectors.
    tick: u64,
    uses: Padded<Uses>,
    /// How many are bad.
    bad: usize,
    /// The number of the next checkpoint, and of the last that has ended.
    next: u32,
    settled: u32,
}

impl Buckets {
    /// Buckets as the device has them, all of them empty.
    pub fn new(geometry: Geometry, records: &[Record]) -> Buckets {
        let bucket = |record: &Record| {
            let used_at = AtomicU32::new(record.priority.min(JUST_USED).into());
            Bucket { generation: record.generation, used_at, ..Bucket::default() }
        };
        let mut buckets: Vec<Bucket> = records.iter().map(bucket).collect();
        buckets.resize_with(geometry.buckets() as usize, Bucket::default);
        let reserve = (geometry.buckets() as usize / 128).clamp(RESERVE_MIN, RESERVE_MAX);
        Buckets {
            geometry,
            buckets,
            free: Vec::new(),
            idle: Idle::default(),
            held: 0,
            has_changed: false,
            in_use: 0,
            dirty: 0,
            lost: 0,
            ahead: 0,
            reserve,
            tick: (geometry.buckets() * geometry.bucket_sectors() / 1024).max(1),
            uses: Padded(Uses { clock: AtomicU32::new(JUST_USED.into()), ..Uses::default() }),
            bad: 0,
            next: 0,
            settled: 0,
        }
    }

    fn bucket_of(&self, pointer: Pointer) -> usize {
        self.geometry.bucket_of(pointer.sector()) as usize
    }

    /// True if a key leads to a bucket that was reused since.
    pub fn is_stale(&self, key: &Key) -> bool {
        key.cached_at().is_some_and(|pointer| {
            self.buckets[self.bucket_of(pointer)].generation.outdates(pointer.generation())
        })
    }

    // Opening.

    fn set_metadata(&mut self, at: usize, is_metadata: bool) {
        let was_in_use = self.buckets[at].is_in_use();
        self.buckets[at].is_metadata = is_metadata;
        let is_in_use = self.buckets[at].is_in_use();
        self.count_in_use(was_in_use, is_in_use);
        self.list_if_idle(at);
    }

    fn count_in_use(&mut self, was: bool, is: bool) {
        self.in_use = self.in_use + usize::from(is) - usize::from(was);
    }

    /// A structure or node is in this bucket.
    pub fn mark_metadata(&mut self, bucket: u64) {
        self.set_metadata(bucket as usize, true);
    }

    /// A key of a node or of the journal as it is on the device, live or stale.
    pub fn mark_seen(&mut self, key: &Key) {
        let Some(pointer) = key.cached_at() else { return };
        let at = self.bucket_of(pointer);
        let bucket = &mut self.buckets[at];
        if let Age::Stale(age) = bucket.generation.age_of(pointer.generation()) {
            bucket.oldest = bucket.oldest.max(age);
        }
    }

    /// The first bucket that has extents and metadata, or more extents than fit, and what it has.
    pub fn overlap(&self) -> Option<String> {
        let room = self.geometry.bucket_sectors();
        self.buckets.iter().enumerate().find_map(|(at, bucket)| match bucket {
            Bucket { is_metadata: true, live: 1.., .. } => {
                Some(format!("bucket {at}: found data in it, expected metadata alone"))
            }
            Bucket { live, .. } if u64::from(*live) > room => Some(format!(
                "bucket {at}: found extents of {live} sectors in it, expected {room} at most"
            )),
            _ => None,
        })
    }

    // Extents.

    /// An extent that the tree has.
    pub fn count(&mut self, key: &Key) {
        self.change(key, 1);
    }

    /// These extents took the place of those.
    pub fn replace(&mut self, old: &[Key], new: &[Key]) {
        old.iter().for_each(|key| self.change(key, -1));
        new.iter().for_each(|key| self.change(key, 1));
    }

    fn change(&mut self, key: &Key, times: i32) {
        let Some(pointer) = key.cached_at() else { return };
        let (at, sectors) = (self.bucket_of(pointer), key.sectors() as i32 * times);
        let dirty = if key.is_dirty() { sectors } else { 0 };
        let bucket = &mut self.buckets[at];
        let was_in_use = bucket.is_in_use();
        bucket.lost_in = self.next;
        bucket.live = bucket.live.wrapping_add_signed(sectors);
        bucket.dirty = bucket.dirty.wrapping_add_signed(dirty);
        self.dirty = self.dirty.wrapping_add_signed(dirty.into());
        self.lost += u64::from(sectors.min(0).unsigned_abs());
        let is_in_use = bucket.is_in_use();
        let is_empty = bucket.live == 0;
        self.count_in_use(was_in_use, is_in_use);
        if is_empty {
            self.list_if_idle(at);
        }
    }

    /// Counts an extent that was read from a leaf. False if its bucket was reused, or it has none:
    /// the tree drops it. A dirty extent whose bucket was reused is added to `gone`.
    pub fn count_if_live(&mut self, key: &Key, gone: &mut Vec<Key>) -> bool {
        self.mark_seen(key);
        let is_live = key.cached_at().is_some() && !self.is_stale(key);
        if is_live {
            self.count(key);
        } else if key.is_dirty() && key.cached_at().is_some() {
            gone.push(*key);
        }
        is_live
    }

    // Allocation.

    /// How many there are.
    pub fn count_all(&self) -> usize {
        self.buckets.len()
    }

    /// How many are free.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// How many of them data may take.
    pub fn free_for_data(&self) -> usize {
        self.free.len().saturating_sub(self.reserve.max(self.held))
    }

    /// Takes a bucket for a node or another structure.
    pub fn take_for_metadata(&mut self) -> Option<Pointer> {
        let bucket = self.free.pop()?;
        self.take(bucket);
        self.set_metadata(bucket as usize, true);
        Some(self.start_of(bucket))
    }

    /// A plan that is being made takes so many free buckets at most; 0 once it is made. None of
    /// them is taken for data.
    pub fn hold(&mut self, count: usize) {
        self.held = count;
    }

    /// Takes a bucket for data, unless only those are free that metadata needs.
    pub fn take_for_data(&mut self) -> Option<Pointer> {
        if self.free_for_data() == 0 {
            return None;
        }
        let bucket = self.free.pop()?;
        self.take(bucket).is_open = true;
        self.touch(self.geometry.sector_of(bucket));
        Some(self.start_of(bucket))
    }

    fn take(&mut self, bucket: u64) -> &mut Bucket {
        let state = &mut self.buckets[bucket as usize];
        debug_assert!(state.live == 0 && !state.is_metadata && !state.is_open, "K1");
        state.raise();
        state.oldest = state.oldest.saturating_add(u8::from(state.oldest > 0));
        state.is_free = false;
        self.ahead = self.ahead.max(state.ahead);
        self.has_changed = true;
        state
    }

    /// The pointer to the beginning of a bucket.
    fn start_of(&self, bucket: u64) -> Pointer {
        let generation = self.buckets[bucket as usize].generation;
        Pointer::new(self.geometry.sector_of(bucket), generation)
    }

    /// True if free buckets for data will run out soon.
    pub fn are_short(&self) -> bool {
        self.free.len() < self.wanted()
    }

    // Writes of data.

    /// A request used what lies at this sector.
    pub fn touch(&self, sector: u64) {
        let bucket = &self.buckets[self.geometry.bucket_of(sector) as usize];
        let clock = self.clock();
        if bucket.used_at.load(Ordering::Relaxed) != clock {
            bucket.used_at.store(clock, Ordering::Relaxed);
        }
    }

    fn clock(&self) -> u32 {
        self.uses.0.clock.load(Ordering::Relaxed)
    }

    /// After so many requested sectors the clock of uses goes on.
    #[inline]
    pub fn tick(&self) -> u64 {
        self.tick
    }

    /// Requests of so many sectors were made.
    pub fn requested(&self, sectors: u64) {
        let Uses { clock, requested } = &self.uses.0;
        let (before, tick) = (requested.fetch_add(sectors, Ordering::Relaxed), self.tick);
        let ticks = (before + sectors) / tick - before / tick;
        if ticks > 0 {
            clock.fetch_add(ticks as u32, Ordering::Relaxed);
        }
    }

    /// No more data is written to this bucket, but for writes that have begun.
    pub fn close(&mut self, bucket: u64) {
        self.buckets[bucket as usize].is_open = false;
        self.list_if_idle(bucket as usize);
    }

    /// A write of data to this bucket failed. One in [`BAD_PART`] at most is not used again.
    pub fn mark_bad(&mut self, bucket: u64) {
        let most = self.buckets.len() / BAD_PART;
        let bucket = &mut self.buckets[bucket as usize];
        if !bucket.is_bad && self.bad < most {
            (bucket.is_bad, self.bad) = (true, self.bad + 1);
        }
    }

    /// A write of data to this place begins.
    pub fn begin_write(&mut self, pointer: Pointer) {
        let at = self.bucket_of(pointer);
        self.buckets[at].writing += 1;
    }

    /// A write of data has ended that began at this sector. Answers the pointer to it.
    pub fn end_write(&mut self, sector: u64) -> Pointer {
        let at = self.geometry.bucket_of(sector) as usize;
        self.buckets[at].writing -= 1;
        self.list_if_idle(at);
        Pointer::new(sector, self.buckets[at].generation)
    }

    /// A task is about to copy this extent: its bucket is not free until the task has ended. False
    /// if the bucket is, or was reused, since the extent was found.
    pub fn begin_copy(&mut self, key: &Key) -> bool {
        let Some(pointer) = key.cached_at() else { return false };
        let at = self.bucket_of(pointer);
        let bucket = &mut self.buckets[at];
        let is_there = !bucket.is_free && bucket.generation == pointer.generation();
        bucket.copied += u32::from(is_there);
        is_there
    }

    /// The task has ended.
    pub fn end_copy(&mut self, key: &Key) {
        let at = self.bucket_of(key.cached_at().expect("an extent leads somewhere"));
        self.buckets[at].copied -= 1;
        self.list_if_idle(at);
    }

    // Checkpoints.

    /// A checkpoint begins. Answers its number.
    pub fn begin_checkpoint(&mut self) -> u32 {
        self.next += 1;
        self.next - 1
    }

    /// Clients write from now on: what a bucket loses counts once a checkpoint has ended that
    /// begins later (K1).
    pub fn serve_clients(&mut self) {
        self.next = self.next.max(1);
    }

    /// This checkpoint has ended.
    pub fn settle(&mut self, number: u32) {
        self.settled = number;
    }

    /// The node at `pointer` was replaced, durably. Its parent has a key of the next generation.
    pub fn node_replaced(&mut self, pointer: Pointer) {
        let at = self.bucket_of(pointer);
        self.set_metadata(at, false);
        let bucket = &mut self.buckets[at];
        bucket.raise();
        debug_assert_eq!(bucket.generation, pointer.generation().next(), "K2");
        // The parent has the key to the node.
        bucket.oldest = bucket.oldest.saturating_add(1);
        self.ahead = self.ahead.max(bucket.ahead);
        self.has_changed = true;
    }

    /// These buckets have no structure any more, durably. No key ever led to it.
    pub fn structure_replaced(&mut self, buckets: &[u64]) {
        buckets.iter().for_each(|at| self.set_metadata(*at as usize, false));
    }

    // Priorities.

    /// True if the priorities on the device have older generations.
    pub fn have_changed(&self) -> bool {
        self.has_changed
    }

    /// True if a generation is so far ahead of the priorities on the device that they are to be
    /// written.
    pub fn are_far_ahead(&self) -> bool {
        self.ahead >= STALE_MAX / 2
    }

    /// What the priorities will say is to be asked of all buckets: they will be on the device,
    /// durably, or the set is broken.
    pub fn begin_records(&mut self) {
        (self.has_changed, self.ahead) = (false, 0);
    }

    /// Adds what the priorities say of the next buckets. True if these were the last. A bucket that
    /// gets another generation after this is ahead of them (K2).
    pub fn records(&mut self, records: &mut Vec<Record>) -> bool {
        let clock = self.clock();
        let record = |bucket: &mut Bucket| {
            bucket.ahead = 0;
            Record {
                generation: bucket.generation,
                priority: match bucket {
                    Bucket { is_metadata: true, .. } => METADATA,
                    Bucket { live: 0, .. } => 0,
                    _ => bucket.priority(clock),
                },
            }
        };
        let from = records.len();
        let to = (from + work::piece()).min(self.buckets.len());
        work::did(to - from);
        records.extend(self.buckets[from..to].iter_mut().map(record));
        let are_all = to == self.buckets.len();
        if are_all {
            self.list_again();
        }
        are_all
    }

    /// How many buckets for data are to be free.
    pub fn wanted(&self) -> usize {
        self.reserve + (self.buckets.len() / SHORT_PART).max(2)
    }

    /// Sectors of dirty extents.
    pub fn dirty_sectors(&self) -> u64 {
        self.dirty
    }

    /// Sectors that buckets have lost since this was forgotten last.
    pub fn lost_sectors(&self) -> u64 {
        self.lost
    }

    /// Begins to count again what buckets lose.
    pub fn forget_lost(&mut self) {
        self.lost = 0;
    }

    /// Sectors of the dirty extents of a bucket.
    pub fn dirty_sectors_of(&self, bucket: u64) -> u64 {
        self.buckets[bucket as usize].dirty.into()
    }

    /// How many have dirty data or metadata.
    pub fn in_use(&self) -> usize {
        self.in_use
    }

    /// How much of the buckets has dirty data or metadata, in percent, as the kernel counts: also
    /// those before the first usable one.
    pub fn in_use_percent(&self) -> u64 {
        self.in_use as u64 * 100 / (self.buckets.len() as u64).max(1)
    }
}
