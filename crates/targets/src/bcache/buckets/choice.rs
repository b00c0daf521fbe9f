//! Choosing buckets that are to be emptied: those that are least worth keeping, of all that may be.
//! All buckets are looked at, some at a time. They may change between two pieces: the task that
//! empties a bucket looks at it again.

use std::collections::BinaryHeap;

use cairn_format::bcache::{Generation, Geometry, Key};

use super::{Bucket, Buckets, JUST_USED};
use crate::bcache::work;

/// The buckets with the least worth, of those looked at so far.
pub(in super::super) struct Choice {
    most: usize,
    /// The next bucket to look at.
    next: u64,
    /// Each with its worth; the one with the most comes first.
    chosen: BinaryHeap<(u64, u64)>,
}

impl Choice {
    /// Of `most` buckets at most.
    pub fn new(most: usize) -> Choice {
        Choice { most, next: 0, chosen: BinaryHeap::new() }
    }

    fn offer(&mut self, worth: u64, bucket: u64) {
        if self.chosen.len() < self.most {
            self.chosen.push((worth, bucket));
        } else if let Some(mut last) = self.chosen.peek_mut()
            && (worth, bucket) < *last
        {
            *last = (worth, bucket);
        }
    }

    /// The buckets, those with the least worth first.
    pub fn into_buckets(self) -> Vec<u64> {
        self.chosen.into_sorted_vec().into_iter().map(|(_, bucket)| bucket).collect()
    }
}

/// Some of the buckets, as their present users have them: what has a later generation is no part
/// of it.
pub(in super::super) struct Marks {
    geometry: Geometry,
    /// Of each bucket its generation and [`MARKED`]; 0 if it is not marked. Fresh memory is zero:
    /// marks for a few of millions of buckets take no time under the lock of the set.
    words: Vec<u16>,
}

const MARKED: u16 = 1 << 8;

fn mark_of(generation: Generation) -> u16 {
    MARKED | u16::from(generation.0)
}

impl Marks {
    /// True if an extent lies in one of them.
    pub fn have(&self, key: &Key) -> bool {
        key.cached_at().is_some_and(|pointer| {
            let bucket = self.geometry.bucket_of(pointer.sector()) as usize;
            self.words[bucket] == mark_of(pointer.generation())
        })
    }

    /// These are not marked any more.
    pub fn unmark(&mut self, buckets: &[u64]) {
        buckets.iter().for_each(|at| self.words[*at as usize] = 0);
    }
}

impl Buckets {
    /// Looks at the next usable buckets from `next` on. True if these were the last.
    fn look_on(&self, next: &mut u64, mut look: impl FnMut(u64, &Bucket)) -> bool {
        let usable = self.geometry.usable();
        let from = (*next).max(usable.start).min(usable.end);
        *next = (from + work::piece() as u64).min(usable.end);
        work::did((*next - from) as usize);
        (from..*next).for_each(|at| look(at, &self.buckets[at as usize]));
        *next == usable.end
    }

    /// Chooses among the next buckets that have only clean data and may be taken, settled on the
    /// device as in memory: those with the least data. True if these were the last.
    pub fn choose_clean(&self, choice: &mut Choice) -> bool {
        let mut next = choice.next;
        let are_all = self.look_on(&mut next, |at, it| {
            if it.may_be_emptied(self.settled) {
                choice.offer(u64::from(it.live), at);
            }
        });
        choice.next = next;
        are_all
    }

    /// Of the next buckets with only clean data that may be taken, the lowest priority enters
    /// `least`. True if these were the last.
    pub fn least_used(&self, next: &mut u64, least: &mut Option<u16>) -> bool {
        self.look_on(next, |_, it| {
            if it.is_clean() && it.may_be_taken() {
                let priority = it.priority(self.clock());
                *least = Some(least.map_or(priority, |own| own.min(priority)));
            }
        })
    }

    /// Chooses among the next buckets with only clean data those that are least worth keeping: used
    /// longest ago, and with the least data. `least` is the lowest priority of all. True if these
    /// were the last.
    pub fn choose_victims(&self, least: u16, choice: &mut Choice) -> bool {
        let ground = u64::from(JUST_USED - least.min(JUST_USED)) / 8;
        let mut next = choice.next;
        let are_all = self.look_on(&mut next, |at, it| {
            if it.is_clean() && it.may_be_taken() {
                let above = u64::from(it.priority(self.clock()).saturating_sub(least));
                choice.offer((above + ground.max(1)) * u64::from(it.live), at);
            }
        });
        choice.next = next;
        are_all
    }

    /// Chooses among the next closed buckets with dirty data that are not full of it those with the
    /// least of it. True if these were the last.
    pub fn choose_sparse(&self, choice: &mut Choice) -> bool {
        let (mut next, bucket_sectors) = (choice.next, self.geometry.bucket_sectors());
        let are_all = self.look_on(&mut next, |at, it| {
            if it.is_sparse(bucket_sectors) {
                choice.offer(u64::from(it.dirty), at);
            }
        });
        choice.next = next;
        are_all
    }

    /// True if a bucket that was chosen by [`Buckets::choose_clean`] and marked then may still be
    /// emptied.
    pub fn may_be_emptied(&self, bucket: u64, marks: &Marks) -> bool {
        let it = &self.buckets[bucket as usize];
        it.may_be_emptied(self.settled) && marks.words[bucket as usize] == mark_of(it.generation)
    }

    /// True if a bucket is closed, has dirty data, is not busy and not full of it.
    pub fn may_be_packed(&self, bucket: u64) -> bool {
        self.buckets[bucket as usize].is_sparse(self.geometry.bucket_sectors())
    }

    /// How many of these have no dirty data, and how many no data.
    pub fn count_clean(&self, buckets: &[u64]) -> [usize; 2] {
        let buckets = buckets.iter().map(|at| &self.buckets[*at as usize]);
        let [clean, empty] = [|it: &&Bucket| it.dirty == 0, |it: &&Bucket| it.live == 0];
        [buckets.clone().filter(clean).count(), buckets.filter(empty).count()]
    }

    /// Marks these buckets.
    pub fn marks(&self, buckets: &[u64]) -> Marks {
        let mut words = vec![0; self.buckets.len()];
        for at in buckets.iter().map(|at| *at as usize) {
            words[at] = mark_of(self.buckets[at].generation);
        }
        Marks { geometry: self.geometry, words }
    }
}
