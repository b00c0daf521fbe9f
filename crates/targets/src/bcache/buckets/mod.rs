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

#[cfg(test)]
mod tests;

use cairn_format::bcache::priorities::{METADATA, Record};
use cairn_format::bcache::{Age, Generation, Geometry, Key, Pointer, STALE_MAX};

/// What is known of a bucket.
#[derive(Clone, Copy, Default)]
struct Bucket {
    generation: Generation,
    /// How recently it was used: the priority at opening.
    priority: u16,
    /// How old the oldest stale pointer to it is.
    oldest: u8,
    /// It has something else than data.
    is_metadata: bool,
    /// It is among the free ones.
    is_free: bool,
    /// Sectors of extents, and of dirty ones.
    live: u32,
    dirty: u32,
}

impl Bucket {
    /// K3: its next use makes no pointer too old.
    fn may_be_taken(&self) -> bool {
        self.oldest.saturating_add(2) <= STALE_MAX
    }
}

/// See the module's description.
pub(super) struct Buckets {
    geometry: Geometry,
    buckets: Vec<Bucket>,
    /// The free ones; the next comes last.
    free: Vec<u64>,
    /// A generation is not that of the priorities on the device.
    has_changed: bool,
}

impl Buckets {
    /// Buckets as the device has them, all of them empty.
    pub fn new(geometry: Geometry, records: &[Record]) -> Buckets {
        let bucket = |record: &Record| {
            let (generation, priority) = (record.generation, record.priority);
            Bucket { generation, priority, ..Bucket::default() }
        };
        let mut buckets: Vec<Bucket> = records.iter().map(bucket).collect();
        buckets.resize(geometry.buckets() as usize, Bucket::default());
        Buckets { geometry, buckets, free: Vec::new(), has_changed: false }
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

    /// A structure or node is in this bucket.
    pub fn mark_metadata(&mut self, bucket: u64) {
        self.buckets[bucket as usize].is_metadata = true;
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
        self.change(key, u32::wrapping_add);
    }

    /// These extents took the place of those.
    pub fn replace(&mut self, old: &[Key], new: &[Key]) {
        old.iter().for_each(|key| self.change(key, u32::wrapping_sub));
        new.iter().for_each(|key| self.change(key, u32::wrapping_add));
    }

    fn change(&mut self, key: &Key, by: fn(u32, u32) -> u32) {
        let Some(pointer) = key.cached_at() else { return };
        let (at, sectors) = (self.bucket_of(pointer), key.sectors() as u32);
        let bucket = &mut self.buckets[at];
        bucket.live = by(bucket.live, sectors);
        bucket.dirty = by(bucket.dirty, if key.is_dirty() { sectors } else { 0 });
    }

    // Allocation.

    /// How many are free.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Takes a bucket for a node or another structure.
    pub fn take_for_metadata(&mut self) -> Option<Pointer> {
        let bucket = self.free.pop()?;
        let state = &mut self.buckets[bucket as usize];
        debug_assert!(state.live == 0 && !state.is_metadata, "K1");
        state.generation = state.generation.next();
        state.oldest = state.oldest.saturating_add(1);
        (state.is_free, state.is_metadata) = (false, true);
        self.has_changed = true;
        Some(Pointer::new(self.geometry.sector_of(bucket), state.generation))
    }

    /// The node at `pointer` was replaced, durably. Its parent has a key of the next generation.
    pub fn node_replaced(&mut self, pointer: Pointer) {
        let at = self.bucket_of(pointer);
        let bucket = &mut self.buckets[at];
        bucket.is_metadata = false;
        bucket.generation = pointer.generation().next();
        bucket.oldest = bucket.oldest.saturating_add(1);
        self.has_changed = true;
    }

    /// These buckets have no structure any more, durably. No key ever led to it.
    pub fn structure_replaced(&mut self, buckets: &[u64]) {
        buckets.iter().for_each(|at| self.buckets[*at as usize].is_metadata = false);
    }

    // Priorities.

    /// True if the priorities on the device have older generations.
    pub fn have_changed(&self) -> bool {
        self.has_changed
    }

    /// What the priorities say of each bucket.
    pub fn records(&self) -> Vec<Record> {
        let record = |bucket: &Bucket| Record {
            generation: bucket.generation,
            priority: match bucket {
                Bucket { is_metadata: true, .. } => METADATA,
                Bucket { live: 0, .. } => 0,
                _ => bucket.priority,
            },
        };
        self.buckets.iter().map(record).collect()
    }

    /// What [`Buckets::records`] answered is on the device, durably.
    pub fn recorded(&mut self) {
        self.has_changed = false;
    }

    /// Finds the buckets that are free now (K1). No plan is being written (K4).
    pub fn refill(&mut self) {
        for at in self.geometry.usable().rev() {
            let bucket = &mut self.buckets[at as usize];
            let is_empty = bucket.live == 0 && !bucket.is_metadata;
            if is_empty && !bucket.is_free && bucket.may_be_taken() {
                bucket.is_free = true;
                self.free.push(at);
            }
        }
    }

    /// The buckets that have only clean data and may be taken, those with the least data first.
    pub fn clean(&self) -> Vec<u64> {
        let is_clean = |bucket: &Bucket| {
            bucket.live > 0 && bucket.dirty == 0 && !bucket.is_metadata && bucket.may_be_taken()
        };
        let usable = self.geometry.usable();
        let mut clean: Vec<u64> =
            usable.filter(|at| is_clean(&self.buckets[*at as usize])).collect();
        clean.sort_by_key(|at| self.buckets[*at as usize].live);
        clean
    }

    /// How much of the buckets has no dirty data and no metadata, in percent.
    pub fn available_percent(&self) -> u64 {
        let usable = self.geometry.usable();
        let is_available = |bucket: &&Bucket| bucket.dirty == 0 && !bucket.is_metadata;
        let buckets = &self.buckets[usable.start as usize..usable.end as usize];
        buckets.iter().filter(is_available).count() as u64 * 100 / buckets.len().max(1) as u64
    }
}
