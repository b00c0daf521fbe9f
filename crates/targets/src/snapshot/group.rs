//! A group of neighbouring chunks: which of them have an exception, the COW chunk of each, and
//! which exceptions are pending.
//!
//! ```text
//!   completed  ..1.11..   a bit per chunk
//!   places       7 89     the chunks of the COW device, one for each bit that is set
//!   pending    1.1.....   claimed, or held back
//! ```
//!
//! The place of a chunk is found by counting the bits below its own. A pending chunk that is also
//! completed was published: only writers of the origin wait for it. (In a merging snapshot nothing
//! is copied: there a pending chunk is held back, and its writers wait.)
//!
//! P1. There is a place for each completed chunk.
//! P2. A waiter waits for a pending chunk, or nothing would wake it (T3 of `table`).

use super::table::{OriginPlan, Run, Until, Waiter};

/// Chunks of a group.
pub(super) const CHUNKS: u64 = 64;

/// The waiters of a group with what they wait for, in order of arrival.
#[derive(Default)]
struct Waiting(Vec<(u64, Until, Waiter)>);

/// The exceptions of a group. Chunks are named by their place in it, 0 to 63.
#[derive(Default)]
pub(super) struct Group {
    completed: u64,
    pending: u64,
    places: Vec<u64>,
    waiting: Option<Box<Waiting>>,
}

/// How many of the lowest bits are set.
fn ones_from(bits: u64, at: u64) -> u64 {
    u64::from((bits >> at).trailing_ones())
}

impl Group {
    /// A bit for each chunk that has an exception.
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// A bit for each chunk that is getting one, or is held back.
    #[cfg(test)]
    pub fn pending(&self) -> u64 {
        self.pending
    }

    pub fn is_completed(&self, at: u64) -> bool {
        self.completed >> at & 1 == 1
    }

    pub fn is_pending(&self, at: u64) -> bool {
        self.pending >> at & 1 == 1
    }

    /// Where the place of a chunk is, or would be.
    fn rank(&self, at: u64) -> usize {
        (self.completed & ((1 << at) - 1)).count_ones() as usize
    }

    /// Where the chunks from `at` lie: up to `most` that go one way.
    pub fn run(&self, at: u64, most: u64) -> Run {
        if !self.is_completed(at) {
            let missing = ones_from(!self.completed, at);
            return Run { cow: None, count: missing.min(most) };
        }
        let most = ones_from(self.completed, at).min(most);
        let places = &self.places[self.rank(at)..][..most as usize];
        let follows = |pair: &&[u64]| pair[1] == pair[0] + 1;
        let count = places.windows(2).take_while(follows).count() as u64 + 1;
        Run { cow: Some(places[0]), count }
    }

    /// How many chunks from `at` are not being copied, up to `most`.
    pub fn free_of_copies(&self, at: u64, most: u64) -> u64 {
        ones_from(!(self.pending & !self.completed), at).min(most)
    }

    /// How many chunks from `at` are not held back, up to `most`.
    pub fn free_of_holds(&self, at: u64, most: u64) -> u64 {
        ones_from(!self.pending, at).min(most)
    }

    /// Decides about a write to `count` chunks of the origin from `at`.
    pub fn plan_origin_write(
        &mut self,
        at: u64,
        count: u64,
        waiter: &dyn Fn() -> Waiter,
    ) -> OriginPlan {
        let settled = ones_from(self.completed & !self.pending, at);
        if settled >= count {
            return OriginPlan::Clear;
        }
        if !self.is_pending(at + settled) {
            return OriginPlan::Missing;
        }
        self.wait(at + settled, Until::Settled, waiter());
        OriginPlan::Waits
    }

    /// Claims `count` chunks from `at`, or holds them back.
    pub fn begin(&mut self, at: u64, count: u64) {
        self.pending |= (u64::MAX >> (CHUNKS - count)) << at;
    }

    /// `waiter` waits for a pending chunk.
    pub fn wait(&mut self, at: u64, until: Until, waiter: Waiter) {
        self.waiting.get_or_insert_default().0.push((at, until, waiter));
    }

    /// The chunk has an exception from now on; false if it had one.
    pub fn complete(&mut self, at: u64, place: u64) -> bool {
        if self.is_completed(at) {
            return false;
        }
        self.places.insert(self.rank(at), place);
        self.completed |= 1 << at;
        true
    }

    /// The chunk has no exception any more.
    pub fn forget(&mut self, at: u64) {
        if self.is_completed(at) {
            self.places.remove(self.rank(at));
            self.completed &= !(1 << at);
        }
    }

    /// The chunk is no longer pending. Adds its waiters to `waiters`.
    pub fn end(&mut self, at: u64, waiters: &mut Vec<Waiter>) {
        self.pending &= !(1 << at);
        self.take_waiters(waiters, |chunk, _until| chunk == at);
    }

    /// No chunk is pending any more. Adds all waiters to `waiters`.
    pub fn end_all(&mut self, waiters: &mut Vec<Waiter>) {
        self.pending = 0;
        self.take_waiters(waiters, |_chunk, _until| true);
    }

    /// Adds those that waited for a chunk to be published to `waiters`.
    pub fn tell_published(&mut self, at: u64, waiters: &mut Vec<Waiter>) {
        self.take_waiters(waiters, |chunk, until| chunk == at && until == Until::Published);
    }

    /// Checks what must hold whenever the lock is free.
    pub fn check_state(&self) {
        assert_eq!(self.places.len(), self.completed.count_ones() as usize, "P1");
        for (chunk, _, _) in self.waiting.iter().flat_map(|waiting| &waiting.0) {
            assert!(self.is_pending(*chunk), "P2");
        }
    }

    fn take_waiters(&mut self, waiters: &mut Vec<Waiter>, of: impl Fn(u64, Until) -> bool) {
        let Some(waiting) = &mut self.waiting else { return };
        let taken = waiting.0.extract_if(.., |(chunk, until, _)| of(*chunk, *until));
        waiters.extend(taken.map(|(_, _, waiter)| waiter));
        if waiting.0.is_empty() {
            self.waiting = None;
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::collections::BTreeMap;

    use super::{CHUNKS, Group, Run, Until, Waiter};

    /// What a run is, told by looking at each chunk.
    fn naive_run(places: &BTreeMap<u64, u64>, at: u64, most: u64) -> Run {
        let cow = places.get(&at).copied();
        let goes_on = |ahead: &u64| {
            let expected = cow.map(|first| first + ahead);
            at + ahead < CHUNKS && places.get(&(at + ahead)).copied() == expected
        };
        Run { cow, count: (0..most).take_while(goes_on).count() as u64 }
    }

    #[test]
    fn places_are_found_as_in_a_map_of_chunks() {
        let mut rng = fastrand::Rng::with_seed(7);
        for _ in 0..50 {
            let (mut group, mut naive) = (Group::default(), BTreeMap::new());
            for step in 0..300 {
                let at = rng.u64(..CHUNKS);
                if rng.u8(..4) == 0 {
                    group.forget(at);
                    naive.remove(&at);
                } else {
                    // Often next to a neighbour's.
                    let place = if rng.bool() { 1000 + at } else { step };
                    assert_eq!(group.complete(at, place), !naive.contains_key(&at));
                    naive.entry(at).or_insert(place);
                }
                let (from, most) = (rng.u64(..CHUNKS), 1 + rng.u64(..CHUNKS));
                let most = most.min(CHUNKS - from);
                assert_eq!(group.run(from, most), naive_run(&naive, from, most));
            }
            assert_eq!(group.completed().count_ones() as usize, naive.len());
        }
    }

    #[test]
    #[should_panic = "P2"]
    fn a_waiter_for_a_chunk_that_is_not_pending_is_noticed() {
        let mut group = Group::default();
        group.begin(3, 1);
        group.wait(3, Until::Settled, Waiter::Bell(std::sync::Arc::default()));
        group.check_state();
        group.pending = 0;
        group.check_state();
    }

    #[test]
    fn snapshot_writers_wait_for_a_pending_copy_but_not_for_a_published_one() {
        let mut group = Group::default();
        group.begin(60, 4);
        assert_eq!((group.free_of_copies(0, 64), group.free_of_copies(61, 3)), (60, 0));
        group.complete(61, 5);
        assert_eq!((group.free_of_copies(61, 3), group.free_of_holds(61, 3)), (1, 0));
        let mut waiters = Vec::new();
        group.end_all(&mut waiters);
        assert_eq!((group.free_of_holds(0, 64), waiters.len()), (64, 0));
    }
}
