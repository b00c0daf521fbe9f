//! The counting allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    /// Whether this thread counts its allocations in [`COUNT`].
    static WATCHED: Cell<bool> = const { Cell::new(false) };
    /// Whether this thread's allocations also count in [`total`].
    static FOLLOWED: Cell<bool> = const { Cell::new(false) };
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// The allocations of the threads that called [`follow`].
static TOTAL: AtomicU64 = AtomicU64::new(0);

struct Counting;

fn count() {
    // A thread that is ending has no counter any more.
    if WATCHED.try_with(Cell::get).unwrap_or(false) {
        COUNT.with(|count| count.set(count.get() + 1));
    }
    if FOLLOWED.try_with(Cell::get).unwrap_or(false) {
        TOTAL.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: everything is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.realloc(ptr, layout, bytes) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// How many allocations `work` makes on this thread.
pub fn allocations(work: impl FnOnce()) -> u64 {
    WATCHED.set(true);
    let before = COUNT.get();
    work();
    WATCHED.set(false);
    COUNT.get() - before
}

/// From now on counts the calling thread's allocations in [`total`].
pub fn follow() {
    FOLLOWED.set(true);
}

/// How many allocations the followed threads have made.
pub fn total() -> u64 {
    TOTAL.load(Ordering::Relaxed)
}

#[test]
fn an_allocation_is_counted() {
    let mut kept = Vec::new();
    assert!(allocations(|| kept.push(Box::new(1))) > 0);
    assert_eq!(kept.len(), 1);
}
