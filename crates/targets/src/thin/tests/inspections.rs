//! What verbs ask of a pool, and the trim of its free blocks.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use cairn_block::{Op, SuspendMode, yield_once};

use super::fixture::{BLOCK, PoolFixture, range, write_io};
use crate::thin::ThinPool;

impl PoolFixture {
    fn own(&self, id: u32) -> u64 {
        self.ask(async move |env, pool| {
            pool.settle(env).await.unwrap();
            pool.own_blocks(env, id).await.unwrap()
        })
    }

    /// Blocks that differ, as first and count.
    fn differences(&self, one: u32, other: u32, sectors: u64) -> Vec<(u64, u64)> {
        self.ask(async move |env, pool| {
            pool.settle(env).await.unwrap();
            let (mut at, mut all) = (0, Vec::new());
            while at < sectors {
                let rest = range(at, sectors - at);
                let (told, parts) = pool.differences(env, [one, other], rest).await.unwrap();
                all.extend(parts.iter().map(|part| (part.start.0, part.count.0)));
                at += told.0;
            }
            all
        })
    }
}

#[test]
fn a_pool_tells_what_is_own_and_what_differs_from_a_snapshot() {
    let test = PoolFixture::with_volume(128, 64, 32);
    test.write("thin", 0, 10 * BLOCK, 1).unwrap();
    assert_eq!(test.own(0), 10);
    test.message(&["create_snap", "1", "0"]).unwrap();
    assert_eq!((test.own(0), test.own(1)), (0, 0));
    assert_eq!(test.differences(0, 1, 32 * BLOCK), []);
    test.write("thin", BLOCK + 8, 8, 2).unwrap();
    test.write("thin", 20 * BLOCK, 2 * BLOCK, 3).unwrap();
    test.discard("thin", 5 * BLOCK, BLOCK).unwrap();
    assert_eq!((test.own(0), test.own(1)), (3, 2));
    let changed = [(BLOCK, BLOCK), (5 * BLOCK, BLOCK), (20 * BLOCK, 2 * BLOCK)];
    test.forget();
    assert_eq!(test.differences(0, 1, 32 * BLOCK), changed);
    assert_eq!(test.differences(1, 0, BLOCK + 4), [(BLOCK, 4)], "cut to the range");
    assert_eq!(test.ops("data"), [], "metadata alone is read");
    test.read("thin", 0, 8).unwrap();
    assert_eq!(test.ops("data").len(), 1);
    let devices = test.ask(async |_, pool| pool.devices().unwrap());
    let times: Vec<_> = devices.iter().map(|device| (device.id, device.creation_time)).collect();
    assert_eq!(times, [(0, 0), (1, 1)]);
    let figures = test.ask(async |_, pool| pool.figures().unwrap());
    assert_eq!((figures.mode, figures.data_blocks), ("rw", (13, 64)));
    assert_eq!((figures.marks_percent, figures.critical_percent), ([75, 85], [95, 95]));
}

#[test]
fn an_id_that_no_volume_has_or_can_have_is_refused_by_its_number() {
    let test = PoolFixture::with_volume(128, 64, 32);
    let refusal = |id| {
        let own = test.ask(async move |env, pool| pool.own_blocks(env, id).await);
        own.unwrap_err().to_string()
    };
    let (none, too_large) = (refusal(1), refusal(1 << 24));
    assert!(none.contains("device 1: found none"), "{none}");
    assert!(too_large.contains("found 16777216, expected at most 16777215"), "{too_large}");
}

#[test]
fn queries_of_cached_metadata_yield_to_other_tasks() {
    let test = PoolFixture::with_volume(128, 64, 32);
    test.write("thin", 0, 10 * BLOCK, 1).unwrap();
    test.message(&["create_snap", "1", "0"]).unwrap();
    // Reads what is not in memory yet.
    assert_eq!((test.own(0), test.differences(0, 1, 32 * BLOCK).len()), (0, 0));
    let turns = test.ask(async |env, pool| {
        let turns = Rc::new(Cell::new(0));
        let others = turns.clone();
        env.spawn(async move {
            for turn in 1..=2 {
                others.set(turn);
                yield_once().await;
            }
        });
        pool.own_blocks(env, 0).await.unwrap();
        let first = turns.get();
        pool.differences(env, [0, 1], range(0, 32 * BLOCK)).await.unwrap();
        (first, turns.get())
    });
    assert_eq!(turns, (1, 2));
}

#[test]
fn a_trim_tells_of_every_free_block_and_of_no_other() {
    let test = PoolFixture::with_volume(128, 64, 32);
    test.write("thin", 0, 10 * BLOCK, 1).unwrap();
    test.flush("thin").unwrap();
    test.write("thin", 10 * BLOCK, BLOCK, 2).unwrap();
    let before = test.bytes("thin", 0, 11 * BLOCK);
    test.forget();
    let trimmed = test.ask(async |env, pool| pool.trim(env).await.unwrap());
    assert_eq!(trimmed.0, 53 * BLOCK);
    let discards: u64 =
        test.ops("data").iter().filter(|op| op.0 == Op::Discard).map(|op| op.2).sum();
    assert_eq!(discards, 53 * BLOCK);
    assert_eq!(test.bytes("thin", 0, 11 * BLOCK), before);
    assert!(test.status("pool").contains(" 11/64 "), "{}", test.status("pool"));
    test.suspend("pool", SuspendMode::Flush);
    let line = test.ask(async |env, pool| pool.trim(env).await.unwrap_err().to_string());
    assert!(line.contains("pool: found it suspended"), "{line}");
    test.resume("pool").unwrap();
}

#[test]
fn writes_that_need_the_blocks_of_a_trim_wait_for_it() {
    let test = PoolFixture::new(128, 16);
    test.load_pool("0 1 error_if_no_space");
    test.message(&["create_thin", "0"]).unwrap();
    test.load_thin("thin", 0, 16);
    let target = test.volume("pool").live_table().unwrap().lines()[0].target.clone();
    test.sim.block_on(0, |env| {
        let own = env.clone();
        env.spawn(async move {
            let any = target.as_any().and_then(|any| any.downcast_ref::<ThinPool>());
            any.expect("a pool").trim(&own).await.unwrap();
        });
        std::future::ready(())
    });
    for (label, block) in [("first", 0), ("last", 15)] {
        test.start("thin", label, move |env| write_io(env, block * BLOCK, BLOCK, 7));
    }
    test.run(Duration::from_secs(1));
    assert!(test.ends.all().iter().all(|(_, result)| result.is_ok()), "{:?}", test.ends);
    assert_eq!(test.labels().len(), 2);
    assert!(test.status("pool").contains(" rw "), "{}", test.status("pool"));
}
