//! Tests of what bypasses the cache beside a client that flushes often (R16).

use std::cell::Cell;

use cairn_block::{Disk, Flags, Time};

use super::*;
use crate::fixture::write_io;

/// Sectors of a write of the client that flushes.
const COUNT: u64 = 64;
/// Where the stream writes.
const STREAM: u64 = 40_000;

/// A served set without data, over a slow backing device. Every write without FUA bypasses it.
fn slow() -> Fixture {
    let [cache, backing] = large(&[]);
    let slow = DriveOptions { model: DriveModel::SLOW, ..DriveOptions::named("b") };
    let test = Fixture::with_options(1, [(DriveOptions::named("c"), cache), (slow, backing)]);
    test.load("v", &format!("0 {LARGE} bcache b c 0"));
    test.message("v", &["set", "writeback_running", "0"]).expect("in its range");
    test.message("v", &["set", "congested_write_threshold_us", "0"]).expect("in its range");
    test.message("v", &["set", "sequential_cutoff", "65536"]).expect("in its range");
    test.write("v", LARGE - COUNT, COUNT, 1).expect("the drives are well");
    test.flush("v").expect("the drives are well");
    test
}

/// Starts a client that writes durably to the first 512 KiB, one write after the other, until
/// `end`. Answers how many it has written.
fn start_database(test: &Fixture, end: Time) -> Rc<Cell<u64>> {
    let (env, disk) = (test.sim.env(1).clone(), test.volume("v") as Arc<dyn Disk>);
    let written = Rc::new(Cell::new(0));
    let count = written.clone();
    test.sim.env(1).spawn(async move {
        while env.now() < end {
            let start = count.get() * 7 % 16 * COUNT;
            let write = write_io(&env, start, COUNT, 7).with(Flags::FUA);
            env.io(&disk, write).await.expect("the drives are well");
            env.io(&disk, Io::flush()).await.expect("the drives are well");
            count.set(count.get() + 1);
        }
    });
    written
}

/// Starts bursts of writes: `sectors` in each second, `depth` at a time, until `end`.
fn start_bursts(test: &Fixture, end: Time, sectors: u64, depth: u64) -> Rc<Cell<u64>> {
    let written = Rc::new(Cell::new(0));
    for client in 0..depth {
        let (env, disk) = (test.sim.env(2).clone(), test.volume("v") as Arc<dyn Disk>);
        let (count, area) = (written.clone(), (LARGE - 2 * COUNT - STREAM) / depth / COUNT * COUNT);
        test.sim.env(2).spawn(async move {
            let mut at = 0;
            while env.now() < end {
                let next = env.now() + Duration::from_secs(1);
                for _ in 0..sectors / depth / COUNT {
                    let start = STREAM + client * area + at;
                    at = (at + COUNT) % area;
                    let write = write_io(&env, start, COUNT, 9);
                    env.io(&disk, write).await.expect("the drives are well");
                    count.set(count.get() + COUNT);
                }
                env.sleep_until(next).await;
            }
        });
    }
    written
}

#[test]
fn bursts_that_bypass_the_cache_leave_a_client_that_flushes_most_of_its_rate() {
    let seconds = Duration::from_secs(5);
    let rate = |sectors: u64, depth: u64| {
        let test = slow();
        let end = test.sim.now() + seconds;
        let written = start_database(&test, end);
        test.run(Duration::from_millis(200));
        let streamed = start_bursts(&test, end, sectors, depth);
        test.run(seconds + Duration::from_secs(2));
        (written.get() as f64, streamed.get())
    };
    let alone = rate(0, 1).0;
    for depth in [1, 8, 32] {
        let (beside, streamed) = rate(8192, depth);
        eprintln!("depth {depth}: {beside} beside {streamed} sectors, {alone} alone");
        assert!(beside >= 0.8 * alone, "depth {depth}: {beside} beside, {alone} alone");
        assert!(streamed >= 8192, "depth {depth}: {streamed} sectors");
    }
}

#[test]
fn a_stream_beside_a_client_that_flushes_leaves_the_cache_what_it_has() {
    let test = slow();
    let hot = |test: &Fixture| {
        test.forget();
        // In no order, so that the reads are no stream.
        for at in 0..2048 {
            test.read("v", 8192 + at * 37 % 2048 * 8, 8).expect("the drives are well");
        }
        test.seen("b").iter().filter(|seen| seen.op == Op::Read).count()
    };
    hot(&test);
    let before = hot(&test);
    let dirty = || test.volume("v").dirty().first().map_or(0, |dirty| dirty.sectors.0);
    let seconds = Duration::from_secs(20);
    let end = test.sim.now() + seconds;
    start_database(&test, end);
    test.run(Duration::from_millis(200));
    let was_dirty = dirty();
    let streamed = start_bursts(&test, end, 1 << 20, 32);
    test.run(seconds + Duration::from_secs(5));
    assert!(streamed.get() > 4 * LARGE, "{} sectors, twice the cache", streamed.get());
    // A hundredth of the cache in each of two minutes, and what the database writes.
    assert!(dirty() - was_dirty <= 2 * 2 * LARGE / 100 + 17 * COUNT, "{}", dirty() - was_dirty);
    let after = hot(&test);
    eprintln!("{before} misses before, {after} after {} sectors", streamed.get());
    assert!(after <= before + 2048 / 20, "{before} misses before, {after} after");
}

#[test]
fn a_held_write_is_answered_once_a_flush_has_covered_it() {
    let test = slow();
    let end = test.sim.now() + Duration::from_millis(500);
    start_database(&test, end);
    test.run(Duration::from_millis(200));
    test.forget();
    // More than the cache takes.
    let write = |env: &cairn_block::Env| write_io(env, STREAM, 2048, 3);
    test.start("v", "held", write);
    test.sim.run_until(|| test.labels() == ["held"]);
    let durable = test.drive("b").durable();
    let at = cairn_block::Sector(16 + STREAM + 2047);
    assert_eq!(durable.sector(at)[0], 3, "it is durable");
    let flushes = test.seen("b").iter().filter(|seen| seen.op == Op::Flush).count();
    assert_eq!(flushes, 1, "none is for the client that flushes");
    test.run(Duration::from_secs(1));
    test.forget();
    // Without flushes it is answered at once.
    test.run(Duration::from_secs(3));
    test.write("v", STREAM + 2048, 128, 4).expect("the drives are well");
    assert!(test.seen("b").iter().all(|seen| seen.op != Op::Flush));
}

#[test]
fn a_held_write_fails_if_the_device_fails_a_flush_while_it_is_in_flight() {
    let test = slow();
    let end = test.sim.now() + Duration::from_millis(500);
    start_database(&test, end);
    test.run(Duration::from_millis(200));
    test.start("v", "held", |env| write_io(env, STREAM, 2048, 3));
    test.run(Duration::from_micros(200));
    assert!(test.labels().is_empty(), "it is in flight");
    test.lose_by_another("b");
    test.run(Duration::from_secs(1));
    assert_eq!(test.ends.of("held"), Some(Err(IoError::IO)));
}
