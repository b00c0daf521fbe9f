//! What a durable write costs: entries of the journal, and flushes of both devices, for the shapes
//! in which clients ask for it (R1, R14).

use std::cell::Cell;

use cairn_block::{Disk, Env, Flags};

use super::*;
use crate::fixture::{Seen, write_io};

/// How a client makes its writes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// FUA and a flush: a block device that is opened with `O_DSYNC`.
    FuaAndFlush,
    /// `fsync` after each write.
    WriteAndFlush,
    /// FUA alone.
    Fua,
}

const SHAPES: [Shape; 3] = [Shape::FuaAndFlush, Shape::WriteAndFlush, Shape::Fua];

/// Durable writes of a client.
const WRITES: u64 = 100;
/// Sectors of each.
const COUNT: u64 = 64;

/// What a durable write took on average.
#[derive(Clone, Copy, Debug)]
struct Cost {
    /// Entries of the journal.
    entries: f64,
    /// Flushes of the cache device, and writes with FUA to it.
    flushes: f64,
    /// Flushes of the backing device, and writes with FUA to it.
    backing: f64,
}

/// A served set without data.
fn fresh() -> Fixture {
    fresh_on(true)
}

/// The same; the cache device may have a volatile cache.
fn fresh_on(volatile_cache: bool) -> Fixture {
    let [cache, backing] = large(&[]);
    let options = DriveOptions { volatile_cache, ..DriveOptions::named("c") };
    let drives = [(options, cache), (DriveOptions::named("b"), backing)];
    let test = Fixture::with_options(1, drives);
    test.load("v", &format!("0 {LARGE} bcache b c 0"));
    test.message("v", &["set", "writeback_running", "0"]).expect("in its range");
    test.write("v", LARGE - COUNT, COUNT, 1).expect("the drives are well");
    test.flush("v").expect("the drives are well");
    test
}

/// Writes durably, one after the other.
async fn write_durably(env: Env, disk: Arc<dyn Disk>, shape: Shape, start: u64) {
    for at in 0..WRITES {
        let write = write_io(&env, start + at * COUNT, COUNT, 7);
        let flags = if shape == Shape::WriteAndFlush { Flags::empty() } else { Flags::FUA };
        env.io(&disk, write.with(flags)).await.expect("the drives are well");
        if shape != Shape::Fua {
            env.io(&disk, Io::flush()).await.expect("the drives are well");
        }
    }
}

/// Runs so many clients, each with sectors of its own.
fn cost(test: &Fixture, shape: Shape, clients: u64) -> Cost {
    test.forget();
    let ended = Rc::new(RefCell::new(0));
    for client in 0..clients {
        let env = test.sim.env((client % 3) as u16).clone();
        let disk: Arc<dyn Disk> = test.volume("v");
        let (ended, start) = (ended.clone(), client * 2 * WRITES * COUNT);
        env.clone().spawn(async move {
            write_durably(env, disk, shape, start).await;
            *ended.borrow_mut() += 1;
        });
    }
    test.sim.run_until(|| *ended.borrow() == clients);
    let ring = ring(test);
    let (cache, backing) = (test.seen("c"), test.seen("b"));
    let each = |count: usize| count as f64 / (clients * WRITES) as f64;
    let is_durable = |seen: &&Seen| seen.op == Op::Flush || seen.fua;
    let is_entry = |seen: &&Seen| seen.op == Op::Write && ring.contains(&seen.start);
    Cost {
        entries: each(cache.iter().filter(is_entry).count()),
        flushes: each(cache.iter().filter(is_durable).count()),
        backing: each(backing.iter().filter(is_durable).count()),
    }
}

/// The sectors of the journal.
fn ring(test: &Fixture) -> std::ops::Range<u64> {
    let ring = test.with_target("v", |volume: &Bcache| {
        volume.look(|set| set.superblock.journal_buckets()).expect("it is open")
    });
    ring.start * 128..ring.end * 128
}

#[test]
fn durable_writes_of_what_was_written_before_need_no_entry() {
    for shape in SHAPES {
        for clients in [1, 4] {
            let test = fresh();
            cost(&test, shape, clients);
            let cost = cost(&test, shape, clients);
            assert_eq!((cost.entries, cost.backing), (0.0, 0.0), "{shape:?}, {clients} clients");
            assert!(cost.flushes <= 1.0, "{shape:?}, {clients} clients: {cost:?}");
        }
    }
}

#[test]
fn durable_writes_share_entries_and_flushes_and_need_none_of_the_backing_device() {
    for shape in SHAPES {
        for clients in [1, 4] {
            let cost = cost(&fresh(), shape, clients);
            // A flush may come after its key's group was closed: its client joins the next one.
            let entries = match (clients, shape) {
                (1, _) => 1.05,
                (_, Shape::WriteAndFlush) => 0.55,
                _ => 0.5,
            };
            assert!(cost.entries <= entries, "{shape:?}, {clients} clients: {cost:?}");
            // One flush for the data, and one for the entry: shared by all clients but one alone.
            let flushes = if clients == 1 { 2.05 } else { 0.65 };
            assert!(cost.flushes <= flushes, "{shape:?}, {clients} clients: {cost:?}");
            assert_eq!(cost.backing, 0.0, "{shape:?}, {clients} clients");
        }
    }
}

#[test]
fn durable_writes_to_a_device_that_is_not_volatile_need_no_flush_and_no_fua() {
    for shape in SHAPES {
        for clients in [1, 4] {
            let cost = cost(&fresh_on(false), shape, clients);
            assert!((0.2..=1.05).contains(&cost.entries), "{shape:?}, {clients} clients: {cost:?}");
            assert_eq!((cost.flushes, cost.backing), (0.0, 0.0), "{shape:?}, {clients} clients");
        }
    }
}

/// How many entries the cache device has got when two writes of so many sectors are durable, of
/// which one is on its way for a millisecond longer.
fn entries_of_two(volatile_cache: bool, count: u64) -> usize {
    let test = fresh_on(volatile_cache);
    test.forget();
    let effect = Effect::Delay(Duration::from_millis(1));
    test.drive("c").faults().add(Fault { effect, ..Fault::error(OpSet::WRITES) }.shots(1));
    for (label, start) in [("late", 0), ("early", COUNT)] {
        test.start("v", label, |env| write_io(env, start, count, 2).with(Flags::FUA));
    }
    test.sim.run_until(|| test.labels().len() == 2);
    let ring = ring(&test);
    test.seen("c").iter().filter(|seen| ring.contains(&seen.start)).count()
}

#[test]
fn a_commit_waits_for_data_if_that_costs_less_than_the_flush_or_the_entry_it_would_miss() {
    assert_eq!([8, COUNT].map(|count| entries_of_two(true, count)), [1, 1], "a flush");
    assert_eq!([8, COUNT].map(|count| entries_of_two(false, count)), [1, 2], "an entry");
}

#[test]
fn an_entry_is_flushed_if_its_device_became_volatile_while_it_was_written() {
    for becomes_volatile in [false, true] {
        let test = fresh_on(false);
        let ring = ring(&test);
        test.forget();
        test.start("v", "write", |env| write_io(env, 0, 8, 2).with(Flags::FUA));
        let is_entered = Cell::new(false);
        test.sim.run_until(|| {
            let seen = test.seen("c");
            is_entered.set(is_entered.get() || seen.iter().any(|it| ring.contains(&it.start)));
            is_entered.get()
        });
        if becomes_volatile {
            test.recording("c").set_volatile();
        }
        test.sim.run_until(|| test.labels() == ["write"]);
        let flushes = test.seen("c").iter().filter(|seen| seen.op == Op::Flush).count();
        assert_eq!(flushes, usize::from(becomes_volatile));
    }
}
