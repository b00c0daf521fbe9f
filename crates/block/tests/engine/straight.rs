//! Lines that have nothing to decide: the engine takes requests past them without asking, and
//! nobody can tell the difference.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::{Disk, ErrorKind, Io, Sector, SectorCount, SuspendMode};
use cairn_sim::{Effect, Fault, History, OpSet, Workload};

use crate::probe::{Bench, pattern, range};
use crate::suspend::shake;

#[test]
fn nobody_is_asked_and_every_request_arrives_where_it_belongs() {
    let bench = Bench::new(1);
    bench.volume("low", "0 100 probe a 3 straight=1");
    bench.volume("middle", "0 50 probe @low 10 straight=1\n50 20 probe b 0 straight=1");
    let top = bench.volume("top", "0 60 probe @middle 5 straight=1");
    bench.write(&top, range(0, 60), 7).unwrap();
    assert_eq!(bench.read(&top, range(0, 60)).unwrap(), pattern(range(0, 60), 7));
    let whole = pattern(range(0, 60), 7);
    assert_eq!(bench.drive("a").visible().to_vec()[18 * 512..63 * 512], whole[..45 * 512]);
    assert_eq!(bench.drive("b").visible().to_vec()[..15 * 512], whole[45 * 512..]);
    // Only what crosses the end of a line is the target's to split.
    assert!(bench.take_seen().iter().all(|seen| seen.range.start.0 < 60));
    bench.io(&top, |_| Io::flush()).unwrap();
    bench.assert_clean();
}

#[test]
fn a_copy_passes_devices_that_only_remap_and_no_others() {
    let bench = Bench::new(1);
    let world = &bench.world;
    let low = bench.volume("low", "0 90 probe b 3 straight=1");
    let middle: Arc<dyn Disk> = bench.volume("middle", "0 50 probe @low 10 straight=1");
    let asked: Arc<dyn Disk> = bench.volume("asked", "0 90 probe a 0");
    let source = bench.volume("source", "0 90 probe a 0 straight=1");
    bench.write(&source, range(0, 90), 4).unwrap();
    let (from, to): (Arc<dyn Disk>, Arc<dyn Disk>) = (bench.drive("a"), bench.drive("b"));
    let copy = |from: &Arc<dyn Disk>, at, to: &Arc<dyn Disk>, start| {
        let (from, to) = (from.clone(), to.clone());
        world.block_on(0, move |env| async move { env.copy((&from, at), (&to, Sector(start))) })
    };
    assert_eq!(copy(&from, range(0, 8), &middle, 42), Some(Ok(())));
    assert!(bench.take_seen().is_empty(), "nobody was asked");
    let copied = bench.drive("b").visible().to_vec()[55 * 512..63 * 512].to_vec();
    assert_eq!(copied, pattern(range(0, 8), 4));
    assert_eq!(copy(&middle, range(42, 4), &to, 0), Some(Ok(())), "as a source");
    assert_eq!(bench.drive("b").visible().to_vec()[..4 * 512], pattern(range(0, 4), 4));
    assert_eq!(copy(&from, range(0, 8), &middle, 43), None, "beyond the end");
    assert_eq!(copy(&from, range(0, 0), &middle, 0), None, "empty");
    assert_eq!(copy(&asked, range(0, 8), &to, 0), None, "a target that decides");
    assert_eq!(copy(&from, range(0, 8), &(bench.drive("c") as Arc<dyn Disk>), 0), None);
    bench.suspend(&low, SuspendMode::Flush);
    assert_eq!(copy(&from, range(0, 8), &middle, 0), None, "suspended");
    bench.resume(&low).unwrap();
    assert_eq!(copy(&from, range(0, 8), &middle, 0), Some(Ok(())));
    bench.assert_clean();
}

#[test]
fn who_will_decide_first_is_told_where_a_request_will_begin() {
    let bench = Bench::new(1);
    bench.volume("low", "0 100 probe a 3");
    bench.volume("middle", "0 50 probe @low 10 straight=1\n50 20 probe b 7");
    let top: Arc<dyn Disk> = bench.volume("top", "0 60 probe @middle 5 straight=1");
    let env = bench.world.env(0);
    let told = |at| {
        env.prefetch(&top, Sector(at));
        std::mem::take(&mut *bench.log.prefetched.lock())
    };
    assert_eq!(told(1), [(3, Sector(16))]);
    assert_eq!(told(44), [(3, Sector(59))]);
    assert_eq!(told(45), [(7, Sector(0))]);
    assert_eq!(told(59), [(7, Sector(14))]);
    assert_eq!(told(60), [], "beyond the end");
    assert_eq!(told(u64::MAX), []);
    bench.assert_clean();
}

#[test]
fn a_device_in_the_middle_closes_its_gate_and_waits_for_what_is_below_it() {
    let bench = Bench::new(2);
    let middle = bench.volume("middle", "0 64 probe a 0 straight=1");
    let top = bench.volume("top", "0 64 probe @middle 0 straight=1");
    let slow = Effect::Delay(Duration::from_secs(1));
    bench.drive("a").faults().add(Fault { effect: slow, ..Fault::error(OpSet::WRITES) });
    let (disk, env): (Arc<dyn Disk>, _) = (top.clone(), bench.world.env(0));
    let ended = Rc::new(Cell::new(0));
    let write = |at| {
        let (task, disk, count) = (env.clone(), disk.clone(), ended.clone());
        env.spawn(async move {
            let segs = task.segs(SectorCount(1));
            task.io(&disk, Io::write(range(at, 1), segs)).await.unwrap();
            count.set(count.get() + 1);
        });
    };
    write(0);
    bench.world.run_for(Duration::from_millis(1));
    assert_eq!(ended.get(), 0);
    bench.suspend(&middle, SuspendMode::Flush);
    assert_eq!(ended.get(), 1, "it waited for the write");
    write(1);
    bench.world.run_for(Duration::from_secs(5));
    assert_eq!(ended.get(), 1, "it lets nothing in");
    bench.load(&middle, "0 64 probe b 0 straight=1").unwrap();
    bench.resume(&middle).unwrap();
    bench.world.run_until(|| ended.get() == 2);
    bench.assert_clean();
}

#[test]
fn a_device_that_became_smaller_or_coarser_is_not_overrun() {
    let bench = Bench::new(3);
    let middle = bench.volume("middle", "0 64 probe a 0 straight=1");
    let top = bench.volume("top", "0 64 probe @middle 0 straight=1");
    bench.load(&middle, "0 32 probe a 0 straight=1").unwrap();
    bench.resume(&middle).unwrap();
    bench.write(&top, range(24, 8), 1).unwrap();
    let error = bench.write(&top, range(32, 8), 1).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Invalid);
    assert_eq!(bench.world.contract_violations(), 1);
    assert_eq!(bench.world.requests_in_use(), 0);
}

#[test]
fn every_reactor_knows_the_size_of_the_table_that_serves() {
    let bench = Bench::new(5);
    let device = bench.volume("v", "0 64 probe a 0");
    let (drive, disk): (Arc<dyn Disk>, Arc<dyn Disk>) = (bench.drive("a"), device.clone());
    let known = |disk: &Arc<dyn Disk>, sectors| {
        (0..3).all(|reactor| {
            let facts = bench.world.env(reactor).facts_of(&**disk);
            facts == (SectorCount(sectors), disk.limits())
        })
    };
    assert!(known(&disk, 64));
    assert!(known(&drive, drive.sectors().0), "a disk that is no volume says it itself");
    bench.load(&device, "0 32 probe a 0").unwrap();
    assert!(known(&disk, 64), "it serves the old one");
    bench.suspend(&device, SuspendMode::Flush);
    assert!(known(&disk, 64), "a device that is suspended says it itself");
    bench.resume(&device).unwrap();
    assert!(known(&disk, 32));
    bench.assert_clean();
}

#[test]
fn errors_pass_straight_lines_unchanged() {
    let bench = Bench::new(4);
    bench.volume("low", "0 64 probe a 0 straight=1");
    let top = bench.volume("top", "0 64 probe @low 0 straight=1");
    let full = Effect::Error(ErrorKind::NoSpace);
    bench.drive("a").faults().add(Fault { effect: full, ..Fault::error(OpSet::WRITES) });
    assert_eq!(bench.write(&top, range(0, 8), 1).unwrap_err().kind, ErrorKind::NoSpace);
    bench.read(&top, range(0, 8)).unwrap();
    bench.assert_clean();
}

#[test]
fn a_stack_of_straight_and_crooked_lines_survives_suspends_at_every_level() {
    for seed in 0..30 {
        let bench = Bench::new(seed);
        let low = bench.volume(
            "low",
            "0 100 probe a 3 straight=1\n100 150 probe b 11 hold=1\n250 50 probe a 300 straight=1",
        );
        let middle = bench.volume("middle", "0 290 probe @low 10 straight=1");
        let upper = bench.volume(
            "upper",
            "0 60 probe @middle 5 queue=1 piece=7\n60 220 probe @middle 65 straight=1",
        );
        let top = bench.volume("top", "0 280 probe @upper 0 straight=1");
        for (reactor, device) in [(0, &low), (1, &top), (2, &middle), (1, &upper)] {
            let env = bench.world.env(reactor);
            env.spawn(shake(env.clone(), device.clone(), 8));
        }
        let disk: Arc<dyn Disk> = top.clone();
        let history = History::blank(seed, disk.sectors());
        let workload = Workload { max: SectorCount(64), ..Workload::mixed(seed, 200) };
        workload.run(&bench.world, &disk, &history).unwrap();
        history.verdict().unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        bench.world.run_for(Duration::from_secs(1));
        bench.assert_clean();
    }
}
