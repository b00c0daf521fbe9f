//! Writes in place: over dirty data whose key is durable, on the cache device, without a key of
//! their own (R15). With FUA such a write is durable with its data alone. Without, it is counted at
//! its end, and the next flush of a client waits for a flush of the cache device.
//!
//! # Invariants
//! V1. A write goes in place only where the tree has one dirty extent, and where every key is in a
//!     durable entry of the journal, or in none any more (`Recent`). So a power cut at any later
//!     time leaves a key to that place, or a newer one.
//! V2. The bucket counts the write from its verdict to its end. So the bucket is not reused before
//!     the data has arrived, also if another write, a hole or a discard takes the key away.
//! V3. What was *taken out* ([`Core::take_out`]) is not written in place: a write there takes a new
//!     place, and the key of that tells a compare that the extent has changed. Writes in place that
//!     began before have ended when `take_out` answers. A task that reads an extent to move or
//!     copy its data, and then replaces its key if that is unchanged (a batch of writeback, a move
//!     by GC), takes it out before it reads, and until the replace has ended. Only then is the data
//!     that was read the data that the extent has.
//! V4. A write without FUA is counted before it is answered. A flush of a client ends once a flush
//!     of the cache device has succeeded that began after all of these.
//! V5. If the cache device fails, the volumes whose writes in place were answered and are not
//!     covered by a flush count a loss, once.
//!
//! An eviction needs no more than V2: it takes buckets with clean data only, to which nothing is
//! being written. A discard, and a write that takes a new place, may come while a write in place is
//! in flight, as both are of clients then: the order of such requests is not defined. After it the
//! data of the write in place is where no key leads.
//!
//! # What a crash leaves
//! The key, and in each sector of a write in flight the data from before or after it, as on any
//! drive. With FUA, or once a flush has ended, the data from after it. If the entry of a newer key
//! for these sectors is durable, the data of that: it was not durable when the write in place was
//! mapped, so its own write was in flight or came later.

use std::sync::Arc;

use cairn_block::{Env, yield_once};
use cairn_format::bcache::{Key, Pointer};

use super::core::Core;
use super::{Changes, Set};
use crate::bcache::btree::{Found, Span, Unwritten};
use crate::bcache::canary::{Bug, planted};
use crate::bcache::work;
use crate::epochs::Epoch;

/// The head of a write goes in place if it has so many sectors, or is the whole write: many small
/// pieces cost more than one new place.
const HEAD_MIN: u64 = 64;

/// Extents that are taken out.
pub(super) struct Taken {
    number: u64,
    sectors: Unwritten,
}

/// Extents that are taken out until this is dropped (V3).
#[must_use = "the extents are in use again once it is dropped"]
pub(in super::super) struct TakenOut {
    core: Arc<Core>,
    number: u64,
    /// Those whose buckets are not free until then, or until no copy is read any more (R6).
    pub keys: Vec<Key>,
    /// Those whose buckets were free or reused by then.
    pub lost: Vec<Key>,
}

impl TakenOut {
    /// No copy of the extents is read any more: their buckets may be emptied.
    pub fn end_copies(&mut self) {
        let keys = std::mem::take(&mut self.keys);
        if let Some(set) = self.core.lock().as_mut() {
            keys.iter().for_each(|key| set.buckets.end_copy(key));
        }
    }
}

impl Drop for TakenOut {
    fn drop(&mut self) {
        self.end_copies();
        if let Some(set) = self.core.lock().as_mut() {
            set.changes.taken.retain(|taken| taken.number != self.number);
        }
    }
}

impl Core {
    /// Takes extents out of use in place (V3), and keeps their buckets from being reused (R6),
    /// until the answer is dropped. The caller reads the data of those that it has after that.
    pub async fn take_out(&self, keys: Vec<Key>) -> TakenOut {
        let sectors = Unwritten::gather(&keys).await;
        let number = self.with(|set| {
            let number = set.changes.last_taken + 1;
            set.changes.last_taken = number;
            set.changes.taken.push(Taken { number, sectors });
            number
        });
        let mut taken = TakenOut { core: self.me(), number, keys: Vec::new(), lost: Vec::new() };
        for some in keys.chunks(work::piece() / 2) {
            self.with(|set| {
                work::did(some.len());
                for key in some {
                    match set.buckets.begin_copy(key) {
                        true => taken.keys.push(*key),
                        false => taken.lost.push(*key),
                    }
                }
            });
            yield_once().await;
        }
        if !planted(Bug::CopyDuringOverwrite) {
            self.overwriters.quiesce(0).await;
        }
        taken
    }

    /// A write in place begins, of as many of these sectors as the answer says. None if they are to
    /// have a new place. The caller has locked the set.
    pub fn begin_overwrite(
        &self,
        env: &Env,
        set: &mut Set,
        span: &Span,
    ) -> Option<(Pointer, u64, Epoch)> {
        let (pointer, count) = set.place_of_overwrite(span)?;
        set.buckets.begin_write(pointer);
        set.buckets.touch(pointer.sector());
        Some((pointer, count, self.overwriters.enter(env.reactor(), 0)))
    }

    /// True if a flush of a client has to wait, for keys or for writes in place (R1).
    pub fn owes(&self, set: &Set) -> bool {
        set.changes.owe_a_commit() || self.cache.owes_a_flush()
    }

    /// It has ended. The caller has locked the set, and leaves the epoch after that.
    pub fn end_overwrite(&self, set: &mut Set, inode: u32, sector: u64, is_volatile: bool) {
        set.buckets.end_write(sector);
        if is_volatile {
            let number = self.cache.add_overwrite();
            set.changes.overwrote(inode, number);
        }
    }
}

impl Changes {
    /// A volume relies on the write in place with this number (V5).
    fn overwrote(&mut self, inode: u32, number: u64) {
        match self.overwrote.iter_mut().find(|(own, _)| *own == inode) {
            Some((_, last)) => *last = number,
            None => self.overwrote.push((inode, number)),
        }
    }
}

impl Set {
    /// Where these sectors, or the first of them, may be written in place (V1, V3).
    fn place_of_overwrite(&self, span: &Span) -> Option<(Pointer, u64)> {
        let Found::Extent(key) = self.tree.find(span.inode, span.start) else { return None };
        let want = span.end - span.start;
        let count = want.min(key.sectors());
        if !key.is_dirty() || count < want.min(HEAD_MIN) {
            return None;
        }
        let head = Span { end: span.start + count, ..*span };
        let changes = &self.changes;
        let is_taken = changes.taken.iter().any(|taken| taken.sectors.overlaps(&head));
        let is_durable = changes.are_durable(&head) || planted(Bug::OverwriteVolatile);
        let pointer = key.cached_at().expect("an extent leads somewhere");
        (is_durable && !is_taken).then_some((pointer, count))
    }
}
