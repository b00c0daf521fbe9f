//! Drains that are larger than a batch: their order, and that nothing is left behind or lost.

use std::sync::Arc;
use std::time::Duration;

use cairn_block::{Disk, Op, SectorCount};
use cairn_sim::{DriveModel, History, Image, OpSet, Workload};

use super::fixture::{CacheFixture, cache_sectors, slow, table, write_io};
use crate::planner::ZONE_SECTORS;

const ZONES: u64 = 4;
const SECTORS: u64 = ZONES * ZONE_SECTORS;
/// Of 4 KiB, more than a sweep needs.
const BLOCKS: u64 = 2600;
const OPTIONS: &str = "high_watermark 100 low_watermark 100 pause_writeback 60000";

/// A cache with scattered blocks before an origin of several zones, and five times as many free
/// ones. No two blocks touch.
fn filled(seed: u64, byte: u8) -> CacheFixture {
    let zeros = |sectors| Image::new(SectorCount(sectors));
    let (origin, cache) = (zeros(SECTORS), zeros(cache_sectors(6 * BLOCKS, 4096)));
    let test = CacheFixture::with_model(origin, cache, seed, DriveModel::FAST);
    test.load(&table(SECTORS, 4096, OPTIONS));
    let mut places: Vec<u64> = (0..SECTORS).step_by(16).collect();
    fastrand::Rng::with_seed(seed).shuffle(&mut places);
    for &place in &places[..BLOCKS as usize] {
        test.write(place, 8, byte).unwrap();
    }
    test.flush().unwrap();
    test.forget();
    test
}

#[test]
fn a_long_drain_writes_zone_after_zone() {
    let test = filled(1, 1);
    test.message("flush").unwrap();
    let writes = test.seen("origin").into_iter().filter(|seen| seen.op == Op::Write);
    let zones: Vec<u64> = writes.map(|seen| seen.start / ZONE_SECTORS).collect();
    assert_eq!(zones.len() as u64, BLOCKS);
    // Copies in flight overtake each other.
    for (first, later) in zones.iter().zip(&zones[64..]) {
        assert!(first <= later, "zone {later} after zone {first}");
    }
    assert_eq!(test.status().dirty(), 0);
}

#[test]
fn a_long_drain_comes_back_for_blocks_that_are_being_overwritten() {
    let test = filled(2, 1);
    let first = test.look(|_, state| state.index.first_cached(0, SECTORS / 8).map(|at| at.0));
    let start = first.expect("it is filled") * 8;
    test.cache.faults().add(slow(OpSet::WRITES, Duration::from_millis(900)).shots(1));
    test.start("overwrite", move |env| write_io(env, start, 8, 2));
    test.message("flush").unwrap();
    assert_eq!(test.status().dirty(), 0);
    assert_eq!(test.origin.durable().to_vec()[start as usize * 512], 2);
    let last = test.seen("origin").into_iter().rfind(|seen| seen.op == Op::Write);
    assert_eq!(last.map(|seen| seen.start), Some(start), "every other block went home before");
}

#[test]
fn a_long_drain_ends_while_the_origin_fails_and_the_next_one_takes_the_rest() {
    let test = filled(3, 1);
    let fault = cairn_sim::Fault::error(OpSet::WRITES);
    test.origin.faults().add(fault.shots(5));
    test.message("flush").unwrap_err();
    assert!(test.status().dirty() > 0);
    assert_eq!(test.status().error(), 1);
    // The other copies in flight fail.
    test.run(Duration::from_millis(50));
    test.message("flush").unwrap();
    assert_eq!((test.status().dirty(), test.status().error()), (0, 0));
    let home = test.origin.durable().to_vec();
    assert_eq!(home.chunks(4096).filter(|block| block[0] == 1).count() as u64, BLOCKS);
}

/// For how many copies of a drain one flush is at its end, if flushes of the origin take so long.
fn copies_for_a_flush(took: Duration) -> usize {
    let test = filled(4, 1);
    test.origin.faults().add(slow(OpSet::FLUSHES, took));
    test.message("flush").unwrap();
    assert_eq!(test.status().dirty(), 0);
    test.look(|_, state| state.pace.batch())
}

#[test]
fn a_long_drain_copies_more_for_a_flush_that_takes_no_time_and_fewer_for_one_that_takes_long() {
    let copies = [0, 2000, 5000].map(|ms| copies_for_a_flush(Duration::from_millis(ms)));
    assert!(copies.is_sorted_by(|quick, slow| quick > slow), "{copies:?}");
}

/// A concurrent workload while drains go over the cache. Returns how often it saw a sweep.
fn under_load(seed: u64) -> u32 {
    let test = filled(seed, 0);
    let disk: Arc<dyn Disk> = test.volume.clone();
    let history = History::blank(seed, disk.sectors());
    let mut rng = fastrand::Rng::with_seed(seed);
    let running = Workload::mixed(seed, 300).start(&test.sim, &disk, &history);
    let mut swept = 0;
    while !running.is_done() {
        for _ in 0..rng.u16(1..100) {
            test.sim.step();
        }
        swept += u32::from(test.look(|_, state| {
            state.check_whole();
            state.sweep.is_some()
        }));
        if rng.u8(..12) == 0 {
            let _ = test.start_message("flush");
        }
        history.verdict().unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
    test.message("flush").unwrap();
    assert_eq!(test.status().dirty(), 0);
    swept
}

#[test]
fn requests_during_long_drains_read_what_a_disk_may_hold() {
    let swept: u32 = (0..8).map(under_load).sum();
    assert!(swept > 40, "{swept} moments");
}
