//! Tests of the policies of flushes that experiments compare.

use std::time::Duration;

use cairn_block::{Disk, Sector, SectorCount, SectorRange};

use super::*;
use crate::fixture::Seen;

/// Extents of a test, none of which touches another.
const EXTENTS: u64 = 1200;

/// A served set without dirty data, whose flushes follow a policy.
fn served(policy: &str) -> Fixture {
    let [cache, backing] = large(&[]);
    let drives = [(drive_options("c"), cache), (drive_options("b"), backing)];
    let test = Fixture::with_options(1, drives).with_words_of_the_lab();
    test.load("v", &format!("0 {LARGE} bcache b c 2 flushes {policy}"));
    set(&test, "writeback_running", "0");
    set(&test, "writeback_delay", "0");
    set(&test, "sequential_cutoff", "0");
    test.write("v", 0, 8, 1).expect("the drives are well");
    test.flush("v").expect("the drives are well");
    test.forget();
    test
}

fn set(test: &Fixture, name: &'static str, value: &'static str) {
    test.message("v", &["set", name, value]).expect("in its range");
}

fn flushes(seen: &[Seen]) -> usize {
    seen.iter().filter(|seen| seen.op == Op::Flush).count()
}

/// A write around the cache.
fn write_around(test: &Fixture, start: u64) {
    set(test, "cache_mode", "writearound");
    test.write("v", start, 8, 2).expect("the drives are well");
    set(test, "cache_mode", "writeback");
    test.forget();
}

#[test]
fn flush_reaches_the_backing_device_as_its_policy_says() {
    // After a cached write, and after one around the cache: how many flushes of clients get there.
    for (policy, cached, around) in [
        ("ours", 0, 1),
        ("forwarded", 3, 3),
        ("stock", 3, 3),
        ("patch-v0", 0, 0),
        ("one-bit", 0, 1),
    ] {
        let test = served(policy);
        let flush_thrice = || {
            (0..3).for_each(|_| test.flush("v").expect("the drives are well"));
            flushes(&test.seen("b"))
        };
        test.write("v", 800, 8, 1).expect("the drives are well");
        // The state of the backing device, and what was written with it.
        test.forget();
        assert_eq!(flush_thrice(), cached, "{policy}, cached");
        write_around(&test, 1600);
        assert_eq!(flush_thrice(), around, "{policy}, around the cache");
    }
}

#[test]
fn second_flush_does_not_wait_for_the_one_that_took_the_bit() {
    for (policy, waits) in [("ours", true), ("one-bit", false)] {
        let test = served(policy);
        write_around(&test, 1600);
        let ended = Rc::new(RefCell::new(Vec::new()));
        for flush in 0..2 {
            let (env, disk): (_, Arc<dyn Disk>) = (test.sim.env(0).clone(), test.volume("v"));
            let ended = ended.clone();
            env.clone().spawn(async move {
                // The second one comes while the first one is under way.
                env.sleep(Duration::from_micros(flush)).await;
                env.io(&disk, Io::flush()).await.expect("the drives are well");
                ended.borrow_mut().push((flush, env.now()));
            });
        }
        test.sim.run_until(|| ended.borrow().len() == 2);
        let ended = ended.borrow();
        assert_eq!(ended[0].0, u64::from(!waits), "{policy}: {ended:?}");
    }
}

#[test]
fn keys_become_clean_after_what_their_policy_asks_for() {
    for (policy, has_fua, batches) in [
        ("ours", false, Some(1)),
        ("batch-500", false, Some(3)),
        ("fua", true, None),
        ("stock", false, None),
    ] {
        let test = served(policy);
        for at in 0..EXTENTS {
            test.write("v", at * 24, 8, 1).expect("the drives are well");
        }
        test.forget();
        set(&test, "writeback_percent", "0");
        set(&test, "writeback_running", "1");
        test.run(Duration::from_secs(20));
        assert_eq!(test.target("v").report().number("dirty_data"), Some(0), "{policy}");
        let seen = test.seen("b");
        let copies: Vec<&Seen> =
            seen.iter().filter(|seen| seen.op == Op::Write && seen.start >= 16).collect();
        assert_eq!(copies.len() as u64, EXTENTS, "{policy}");
        assert!(copies.iter().all(|copy| copy.fua == has_fua), "{policy}");
        let between = seen.iter().skip_while(|seen| seen.start < 16 || seen.op != Op::Write);
        let found = between.filter(|seen| seen.op == Op::Flush).count();
        match batches {
            Some(least) => {
                assert!((least..least + 2).contains(&found), "{policy}: {found} flushes")
            }
            None => assert_eq!(found, 0, "{policy}"),
        }
    }
}

/// What flushes take beyond the work of their batches must not make these ever shorter.
#[test]
fn batches_beside_a_client_have_a_least_size_however_long_flushes_take() {
    const LEAST: usize = 256;
    let test = served("ours");
    set(&test, "writeback_percent", "0");
    let delay = Effect::Delay(Duration::from_secs(2));
    test.drive("b").faults().add(Fault { effect: delay, ..Fault::error(OpSet::FLUSHES) });
    // A client that is never quiet.
    let (env, disk): (_, Arc<dyn Disk>) = (test.sim.env(0).clone(), test.volume("v"));
    env.clone().spawn(async move {
        let range = SectorRange::new(Sector(0), SectorCount(8));
        // Until the world ends.
        while env.io(&disk, Io::read(range, env.segs(range.count))).await.is_ok() {
            env.sleep(Duration::from_millis(50)).await;
        }
    });
    // The first batch tells how long a flush takes.
    for offset in [0, 12] {
        set(&test, "writeback_running", "0");
        for at in 0..EXTENTS {
            test.write("v", at * 24 + offset, 8, 1).expect("the drives are well");
        }
        test.forget();
        set(&test, "writeback_running", "1");
        test.run(Duration::from_secs(40));
    }
    let seen = test.seen("b");
    let is_copy = |seen: &&Seen| seen.op == Op::Write && seen.start >= 16;
    let batches = seen.split(|seen| seen.op == Op::Flush);
    let batches: Vec<usize> = batches.map(|some| some.iter().filter(is_copy).count()).collect();
    let batches: Vec<usize> = batches.into_iter().filter(|copies| *copies > 0).collect();
    assert_eq!(batches.iter().sum::<usize>() as u64, EXTENTS, "{batches:?}");
    let (last, whole) = batches.split_last().expect("something was dirty");
    assert!(whole.len() > 1 && *last > 0, "{batches:?}");
    assert!(whole.iter().all(|copies| *copies >= LEAST), "{batches:?}");
}
