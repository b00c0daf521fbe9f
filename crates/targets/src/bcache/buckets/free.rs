//! Which buckets are free: a bucket is listed when it becomes idle in memory, and is free when what
//! it lost is settled on the device, too (K1).
//!
//! # Invariants
//! I1. A bucket that is idle and not free is listed once: under the number of the checkpoint after
//!     which it may be free, or among those that K3 keeps. So no search over all buckets is needed.
//!     (Before the first search, which the opening makes, only buckets that it has passed are.)
//! I2. A listed bucket may have got data since, or have lost more: it is looked at again when its
//!     turn comes.

use std::collections::BTreeMap;

use super::Buckets;
use crate::bcache::canary::{Bug, planted};
use crate::bcache::work;

/// See the module's description.
#[derive(Default)]
pub(super) struct Idle {
    /// By the number of the checkpoint when they lost sectors last.
    listed: BTreeMap<u32, Vec<u64>>,
    /// Those with a pointer that their next use would make too old (K3).
    kept: Vec<u64>,
    /// The first search has passed the usable buckets before this one, counted from the last.
    searched: u64,
}

impl Buckets {
    /// Lists a bucket if it is idle (I1).
    pub(super) fn list_if_idle(&mut self, at: usize) {
        let usable = self.geometry.usable();
        let bucket = &mut self.buckets[at];
        let is_searched =
            usable.contains(&(at as u64)) && usable.end - self.idle.searched <= at as u64;
        if bucket.is_idle() && !bucket.is_listed && is_searched {
            bucket.is_listed = true;
            self.idle.listed.entry(bucket.lost_in).or_default().push(at as u64);
        }
    }

    /// True if nothing of a bucket has changed since a checkpoint began that has ended.
    pub fn is_settled(&self, bucket: u64) -> bool {
        self.buckets[bucket as usize].is_settled(self.settled)
    }

    /// What a bucket lost last is settled on the device: no key that counts leads to it.
    pub fn call_settled(&mut self, bucket: u64) {
        let state = &mut self.buckets[bucket as usize];
        let lost_in = state.lost_in;
        state.lost_in = lost_in.min(self.settled);
        if let Some(listed) = self.idle.listed.get_mut(&lost_in)
            && let Some(index) = listed.iter().rposition(|at| *at == bucket)
        {
            listed.swap_remove(index);
            state.is_listed = false;
            self.list_if_idle(bucket as usize);
        }
    }

    /// The priorities were planned: K3 is judged again.
    pub(super) fn list_again(&mut self) {
        let kept = std::mem::take(&mut self.idle.kept);
        let oldest = self.idle.listed.entry(0).or_default();
        match oldest.is_empty() {
            true => *oldest = kept,
            false => oldest.extend(kept),
        }
    }

    /// Finds buckets that are free now (K1), some at a time. No plan is being written (K4). True if
    /// there may be more.
    pub fn refill(&mut self) -> bool {
        let mut found = Vec::new();
        let mut looked = 0;
        while looked < work::piece() {
            let Some(at) = self.next_listed().or_else(|| self.next_unsearched()) else { break };
            looked += 1;
            let bucket = &mut self.buckets[at as usize];
            bucket.is_listed = false;
            if !bucket.is_idle() || !bucket.is_settled(self.settled) {
                self.list_if_idle(at as usize);
            } else if !bucket.may_be_taken() {
                bucket.is_listed = true;
                self.idle.kept.push(at);
            } else {
                bucket.is_free = true;
                found.push(at);
            }
        }
        work::did(looked);
        found.sort_unstable_by(|a, b| b.cmp(a));
        self.free.extend(found);
        looked == work::piece()
    }

    /// The next listed bucket whose turn it is.
    fn next_listed(&mut self) -> Option<u64> {
        let mut first = self.idle.listed.first_entry()?;
        if *first.key() > self.settled && !planted(Bug::ReuseBeforeCheckpoint) {
            return None;
        }
        let next = first.get_mut().pop();
        if first.get().is_empty() {
            first.remove();
        }
        next.or_else(|| self.next_listed())
    }

    /// The next bucket of the first search, from the last one on: so the first is taken first.
    fn next_unsearched(&mut self) -> Option<u64> {
        let usable = self.geometry.usable();
        let at = usable.end.checked_sub(self.idle.searched + 1)?;
        usable.contains(&at).then(|| {
            self.idle.searched += 1;
            at
        })
    }

    /// I1, and that the free buckets are idle (K1).
    #[cfg(test)]
    pub fn check_state(&self) {
        let listed: Vec<u64> = self.idle.listed.values().flatten().copied().collect();
        let mut all: Vec<u64> = listed.iter().chain(&self.idle.kept).copied().collect();
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[0] < pair[1]), "I1: listed once");
        for at in self.geometry.usable() {
            let bucket = &self.buckets[at as usize];
            let is_listed = all.binary_search(&at).is_ok();
            assert_eq!(is_listed, bucket.is_listed, "I1: {at}");
            let is_searched = self.geometry.usable().end - self.idle.searched <= at;
            assert!(!bucket.is_idle() || is_listed || !is_searched, "I1: {at} is idle");
            assert_eq!(bucket.is_free, self.free.contains(&at), "{at}");
            let is_unused = bucket.live == 0 && !bucket.is_metadata && !bucket.is_open;
            assert!(!bucket.is_free || is_unused && bucket.writing == 0, "K1: {at}");
        }
    }
}
