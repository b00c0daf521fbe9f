//! Locks that measure how long they are held and waited for: `block::sync` with the feature
//! `lock-stats`, for `cairn bench snapshot`.
//!
//! Every acquisition is counted and every wait is timed. The time that a lock is held is sampled.
//! The cost of reading the clock is measured and subtracted. A sample that is far too long is
//! dropped, because the system had preempted the holder.

use std::any::type_name;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// One in so many holds is timed.
const SAMPLE: u64 = 16;

/// No lock of ours is held so long by who runs, in nanoseconds.
const HELD_MAX_NS: u64 = 20_000;

thread_local! {
    /// Where a byte of each thread lies tells the threads apart.
    static HERE: u8 = const { 0 };
}

/// What is known of one lock.
#[derive(Debug)]
struct Tally {
    name: &'static str,
    taken: AtomicU64,
    /// The thread that took it first; zero: none yet.
    first: AtomicUsize,
    /// Others took it too.
    is_shared: AtomicBool,
    timed: AtomicU64,
    held_ns: AtomicU64,
    waits: AtomicU64,
    waited_ns: AtomicU64,
}

/// Every lock there is.
static TALLIES: parking_lot::Mutex<Vec<Weak<Tally>>> = parking_lot::Mutex::new(Vec::new());

/// All locks that guard one type, since the last [`reset`].
#[derive(Clone, Debug)]
pub struct LockUse {
    /// The type that they guard.
    pub name: &'static str,
    /// How often they were taken.
    pub taken: u64,
    /// How often a thread had to wait.
    pub waits: u64,
    /// How long, all together, in nanoseconds.
    pub waited_ns: u64,
    /// How long the one that was held longest of those that more than one thread took was held,
    /// in nanoseconds.
    pub hottest_held_ns: u64,
}

#[expect(clippy::disallowed_methods, reason = "it tells no policy the time")]
fn now() -> Instant {
    Instant::now()
}

fn ns_since(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// What it costs to time nothing.
fn clock_ns() -> u64 {
    (0..1000).map(|_| ns_since(now())).min().unwrap_or(0)
}

/// Forgets what was counted.
pub fn reset() {
    for tally in TALLIES.lock().iter().filter_map(Weak::upgrade) {
        let counters = [&tally.taken, &tally.timed, &tally.held_ns, &tally.waits, &tally.waited_ns];
        counters.iter().for_each(|counter| counter.store(0, Ordering::Relaxed));
        tally.first.store(0, Ordering::Relaxed);
        tally.is_shared.store(false, Ordering::Relaxed);
    }
}

/// The locks that live now, by what they guard.
pub fn uses() -> Vec<LockUse> {
    let (clock_ns, mut uses) = (clock_ns(), Vec::<LockUse>::new());
    for tally in TALLIES.lock().iter().filter_map(Weak::upgrade) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (taken, timed) = (load(&tally.taken), load(&tally.timed));
        let held_ns = load(&tally.held_ns).saturating_sub(timed * clock_ns);
        let held_ns = (held_ns * taken).checked_div(timed).unwrap_or(0);
        let place = uses.iter().position(|other| other.name == tally.name);
        let place = place.unwrap_or_else(|| {
            let name = tally.name;
            uses.push(LockUse { name, taken: 0, waits: 0, waited_ns: 0, hottest_held_ns: 0 });
            uses.len() - 1
        });
        let of = &mut uses[place];
        of.taken += taken;
        of.waits += load(&tally.waits);
        of.waited_ns += load(&tally.waited_ns);
        if tally.is_shared.load(Ordering::Relaxed) {
            of.hottest_held_ns = of.hottest_held_ns.max(held_ns);
        }
    }
    uses
}

impl Tally {
    fn note_thread(&self) {
        let here = HERE.with(|here| std::ptr::from_ref(here).addr());
        let first = self.first.load(Ordering::Relaxed);
        if first == 0 {
            self.first.store(here, Ordering::Relaxed);
        } else if first != here {
            self.is_shared.store(true, Ordering::Relaxed);
        }
    }
}

/// A lock that counts.
#[derive(Debug)]
pub struct Mutex<T> {
    inner: parking_lot::Mutex<T>,
    tally: Arc<Tally>,
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Mutex<T> {
        Mutex::new(T::default())
    }
}

impl<T> Mutex<T> {
    /// A lock around `value`.
    pub fn new(value: T) -> Mutex<T> {
        let counter = || AtomicU64::new(0);
        let tally = Arc::new(Tally {
            name: type_name::<T>(),
            taken: counter(),
            first: AtomicUsize::new(0),
            is_shared: AtomicBool::new(false),
            timed: counter(),
            held_ns: counter(),
            waits: counter(),
            waited_ns: counter(),
        });
        let mut tallies = TALLIES.lock();
        if tallies.len() == tallies.capacity() {
            tallies.retain(|tally| tally.strong_count() > 0);
        }
        tallies.push(Arc::downgrade(&tally));
        Mutex { inner: parking_lot::Mutex::new(value), tally }
    }

    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let guard = self.inner.try_lock().unwrap_or_else(|| {
            let began = now();
            let guard = self.inner.lock();
            self.tally.waits.fetch_add(1, Ordering::Relaxed);
            self.tally.waited_ns.fetch_add(ns_since(began), Ordering::Relaxed);
            guard
        });
        let taken = self.tally.taken.fetch_add(1, Ordering::Relaxed);
        let since = taken.is_multiple_of(SAMPLE).then(|| {
            self.tally.note_thread();
            now()
        });
        MutexGuard { guard, tally: &self.tally, since }
    }
}

/// The lock is held until this is dropped.
pub struct MutexGuard<'a, T> {
    guard: parking_lot::MutexGuard<'a, T>,
    tally: &'a Tally,
    since: Option<Instant>,
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        if let Some(since) = self.since {
            let held_ns = ns_since(since);
            if held_ns < HELD_MAX_NS {
                self.tally.held_ns.fetch_add(held_ns, Ordering::Relaxed);
                self.tally.timed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}
