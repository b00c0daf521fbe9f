//! Snapshots that come and go, very often, while the origin under them is written without a pause:
//! up to eight at a time, of every chunk size and both stores. Each is of one moment; nobody waits
//! for ever; nothing of those that are gone stays.
//!
//! `CAIRN_CYCLES=100000 cargo test --release -p cairn-targets --lib cycles -- --nocapture` is the
//! long run.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Duration;

use cairn_block::{Disk, Env, Io, Op, SuspendMode};

use super::super::core::Core;
use super::fixture::{SnapshotFixture, range, write_io};

const CYCLES: u64 = 300;
const SNAPSHOTS: u64 = 8;
const ORIGIN_SECTORS: u64 = 512;
/// Writers on each reactor, each with a write in flight: far more than is copied at once.
const WRITERS: u64 = 16;
/// Cycles after which nothing is left of a snapshot that was removed.
const GONE_AFTER: usize = 4;

/// One round of a writer after the other until it is told to stop.
fn start_writers(test: &SnapshotFixture, stop: &Rc<Cell<bool>>) {
    for reactor in 0..test.sim.reactors() {
        for _ in 0..WRITERS {
            let (disk, stop): (Arc<dyn Disk>, _) = (test.volume("o"), stop.clone());
            let env = test.sim.env(reactor).clone();
            test.sim.env(reactor).spawn(async move {
                while !stop.get() {
                    let start = env.random_below(ORIGIN_SECTORS - 16);
                    let io = write_io(&env, start, 1 + env.random_below(16), start as u8);
                    env.io(&disk, io).await.expect("nobody planted an error");
                }
            });
        }
    }
}

/// The first block of a COW device is made blank again. Drives remember what is not flushed.
fn blank(test: &SnapshotFixture, cow: &str) {
    let [origin, cow] = ["origin", cow].map(|name| -> Arc<dyn Disk> { test.drive(name) });
    let zeroes = Io::on(Op::WriteZeroes, range(0, 8));
    let blank = |env: Env| async move {
        env.io(&cow, zeroes).await?;
        env.io(&cow, Io::flush()).await?;
        env.io(&origin, Io::flush()).await
    };
    test.sim.block_on(0, blank).unwrap();
}

/// A simulated drive remembers each version of what was not flushed: flushed now and then, it
/// takes no more memory in the long run.
fn flush(test: &SnapshotFixture, name: &str) {
    let drive: Arc<dyn Disk> = test.drive(name);
    test.sim.block_on(0, |env: Env| async move { env.io(&drive, Io::flush()).await }).unwrap();
}

#[test]
fn snapshots_come_and_go_under_saturated_copying_without_deadlock_or_leak() {
    let cycles = std::env::var("CAIRN_CYCLES").map_or(CYCLES, |text| text.parse().unwrap());
    let test = SnapshotFixture::new(ORIGIN_SECTORS, &[2048; SNAPSHOTS as usize]);
    test.load("o", &format!("0 {ORIGIN_SECTORS} snapshot-origin origin"));
    let stop = Rc::new(Cell::new(false));
    start_writers(&test, &stop);
    let mut rng = fastrand::Rng::with_seed(4);
    let mut moments = vec![None; SNAPSHOTS as usize];
    let mut gone: VecDeque<Weak<Core>> = VecDeque::new();
    for cycle in 0..cycles {
        let at = rng.u64(..SNAPSHOTS) as usize;
        let (name, cow) = (format!("s{at}"), format!("cow{at}"));
        if let Some(moment) = moments[at].take() {
            if rng.u8(..8) == 0 {
                assert!(test.read(&name, 0, ORIGIN_SECTORS).unwrap() == moment, "cycle {cycle}");
            }
            gone.push_back(Arc::downgrade(&test.core(&name)));
            test.remove(&name);
        }
        let (store, chunk) = (["P", "PO", "N"][rng.usize(..3)], 1 << rng.u32(..6));
        blank(&test, &cow);
        ["origin", cow.as_str()].iter().for_each(|drive| flush(&test, drive));
        test.suspend("o", [SuspendMode::Flush, SuspendMode::NoFlush][rng.usize(..2)]);
        moments[at] = Some(test.drive("origin").visible().to_vec());
        test.load(&name, &format!("0 {ORIGIN_SECTORS} snapshot origin {cow} {store} {chunk}"));
        test.resume("o").unwrap();
        test.run(Duration::from_micros(rng.u64(..400)));
        test.forget();
        while gone.len() > GONE_AFTER {
            let core = gone.pop_front().expect("it is not empty");
            assert_eq!(core.strong_count(), 0, "cycle {cycle}: a snapshot outlives its removal");
        }
        if cycle % 10_000 == 9_999 {
            eprintln!("{} cycles", cycle + 1);
        }
    }
    stop.set(true);
    test.settle();
    for (at, moment) in moments.iter().enumerate() {
        let Some(moment) = moment else { continue };
        let name = format!("s{at}");
        assert!(test.read(&name, 0, ORIGIN_SECTORS).unwrap() == *moment, "{name}, in the end");
        let core = test.core(&name);
        assert_eq!(core.exceptions.pending(), 0, "{name}");
    }
}
