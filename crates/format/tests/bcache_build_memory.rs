//! The memory that building a cache takes: that of the buckets and of one node per level of the
//! tree, for any number of extents. It is counted by the allocator of this program.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::convert::Infallible;

use cairn_format::bcache::build::{Builder, WriteSectors};
use cairn_format::bcache::uuids::UuidEntry;
use cairn_format::bcache::{CacheSuperblock, Key, NewCache, Replacement, SECTOR_BYTES, Uuid};

thread_local! {
    /// Bytes that this thread holds, and the most it has held.
    static HELD: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

/// A thread that ends has no counters any more.
fn taken(bytes: usize) {
    let held = HELD.try_with(|held| {
        held.set(held.get().wrapping_add(bytes));
        held.get()
    });
    let _ = held.map(|held| PEAK.try_with(|peak| peak.set(peak.get().max(held))));
}

fn given_back(bytes: usize) {
    let _ = HELD.try_with(|held| held.set(held.get().wrapping_sub(bytes)));
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        given_back(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// A device that drops what is written.
struct Dropped;

impl WriteSectors for Dropped {
    type Error = Infallible;

    fn write(&mut self, _: u64, _: &[u8]) -> Result<(), Infallible> {
        Ok(())
    }
}

/// The most bytes that are held while so many extents become a cache of these buckets.
fn peak(superblock: &CacheSuperblock, extents: u64) -> usize {
    let before = HELD.get();
    PEAK.set(before);
    let mut builder = Builder::new(superblock, 1, Dropped);
    for index in 0..extents {
        let extent = Key::new(0, 17 + index * 2, 1).with_dirty(index % 2 == 0);
        builder.add(extent).expect("there is room");
    }
    let volume = UuidEntry { uuid: Uuid([3; 16]), ..UuidEntry::default() };
    builder.finish(&[volume]).expect("there is room");
    PEAK.get() - before
}

#[test]
fn the_memory_of_building_does_not_grow_with_the_extents() {
    let superblock = CacheSuperblock::fresh(&NewCache {
        uuid: Uuid([1; 16]),
        set_uuid: Uuid([2; 16]),
        block_sectors: 1,
        bucket_sectors: 32,
        device_sectors: 1 << 21,
        replacement: Replacement::Lru,
        discard: false,
    });
    let superblock = superblock.expect("legal");
    let geometry = superblock.geometry();
    let buckets = geometry.buckets() as usize;
    let structure = geometry.meta_bytes().max(geometry.node_sectors() as usize * SECTOR_BYTES);
    for (extents, levels) in [(100, 1), (10_000, 2), (100_000, 2), (1_500_000, 3)] {
        let peak = peak(&superblock, extents);
        // Vectors grow by doubling, and hold the old bytes while they move: 3 for 2 at most.
        let most = 4 * buckets + 3 * (levels + 1) * structure + 8192;
        assert!(peak >= 4 * buckets && peak <= most, "{extents} extents: {peak} of {most} bytes");
        let is_less_than_extents = most < extents as usize * 5;
        assert!(is_less_than_extents || extents < 100_000, "{most} bytes, {extents} extents");
    }
}
