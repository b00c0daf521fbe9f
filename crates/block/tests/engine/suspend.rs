//! Suspend, load, resume and remove, with requests under way.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::{
    CallOff, Disk, Env, ErrorKind, Io, IoError, IoResult, MappedDevice, SectorCount, SuspendMode,
};
use cairn_sim::{History, Workload};

use crate::probe::{Bench, pattern, range};

type Ended = Rc<RefCell<Vec<(u64, IoResult)>>>;

/// Starts single-sector writes on a reactor, in this order; notes how each ended.
fn start_writes(
    bench: &Bench,
    volume: &Arc<MappedDevice>,
    reactor: u16,
    sectors: std::ops::Range<u64>,
) -> Ended {
    let ended: Ended = Rc::default();
    let env: &Env = bench.world.env(reactor);
    for sector in sectors {
        let segs = env.segs(SectorCount(1));
        segs.copy_in(0, &pattern(range(sector, 1), 1));
        let disk: Arc<dyn Disk> = volume.clone();
        let io = env.io(&disk, Io::write(range(sector, 1), segs));
        let ended = ended.clone();
        env.spawn(async move {
            let result = io.await;
            ended.borrow_mut().push((sector, result));
        });
    }
    ended
}

#[test]
fn nothing_passes_a_suspended_device_and_all_of_it_passes_in_order_after_the_resume() {
    let bench = Bench::new(1);
    let volume = bench.volume("v", "0 200 probe a 0");
    bench.suspend(&volume, SuspendMode::Flush);
    assert!(volume.is_suspended());
    let lists = [0, 1, 2].map(|id| {
        let first = u64::from(id) * 50;
        start_writes(&bench, &volume, id, first..first + 20)
    });
    bench.world.run_for(Duration::from_secs(1));
    assert_eq!(bench.take_seen(), []);
    bench.resume(&volume).unwrap();
    bench.world.run_until(|| lists.iter().all(|list| list.borrow().len() == 20));
    let seen = bench.take_seen();
    for id in 0..3u64 {
        let of_reactor = seen.iter().filter(|seen| u64::from(seen.reactor.0) == id);
        let order: Vec<u64> = of_reactor.map(|seen| seen.range.start.0).collect();
        assert_eq!(order, (id * 50..id * 50 + 20).collect::<Vec<_>>());
    }
    bench.assert_clean();
}

#[test]
fn a_resume_with_a_new_table_moves_what_waited_to_it() {
    let bench = Bench::new(2);
    let volume = bench.volume("v", "0 64 probe a 0");
    bench.suspend(&volume, SuspendMode::Flush);
    let ended = start_writes(&bench, &volume, 1, 0..4);
    bench.load(&volume, "0 128 probe b 0").unwrap();
    assert_eq!(volume.sectors(), SectorCount(64), "the new table is not live");
    let events = volume.event_nr();
    bench.resume(&volume).unwrap();
    bench.world.run_until(|| ended.borrow().len() == 4);
    assert_eq!(volume.sectors(), SectorCount(128));
    assert_eq!(volume.event_nr(), events, "a new table is no event");
    let on_b = bench.drive("b").visible().to_vec();
    assert_eq!(on_b[..4 * 512], pattern(range(0, 4), 1));
    bench.assert_clean();
}

#[test]
fn a_suspend_waits_for_what_was_admitted_and_a_flushing_one_lets_the_hoard_through() {
    let bench = Bench::new(3);
    let volume = bench.volume("v", "0 64 probe a 0 hoard=1 piece=2");
    let ended = start_writes(&bench, &volume, 0, 0..5);
    bench.world.run_for(Duration::from_secs(1));
    assert!(ended.borrow().is_empty(), "hoarded");
    bench.suspend(&volume, SuspendMode::Flush);
    bench.world.run_until(|| ended.borrow().len() == 5);
    assert!(ended.borrow().iter().all(|(_, result)| result.is_ok()));
    bench.assert_clean();
}

#[test]
fn a_suspend_without_flush_hands_the_hoard_to_the_next_table() {
    for seed in 0..20 {
        let bench = Bench::new(seed);
        let volume = bench.volume("v", "0 8 probe a 0\n8 56 probe a 8 hoard=1 piece=3");
        let ended = start_writes(&bench, &volume, 0, 8..12);
        // One request across both lines: a part of it has ended when the rest is handed back.
        let disk: Arc<dyn Disk> = volume.clone();
        let wide = bench.world.env(1).segs(SectorCount(16));
        wide.copy_in(0, &pattern(range(0, 16), 2));
        let wide = bench.world.env(1).io(&disk, Io::write(range(0, 16), wide));
        let flush = bench.world.env(2).io(&disk, Io::flush());
        let late: Ended = Rc::default();
        for (number, io) in [wide, flush].into_iter().enumerate() {
            let late = late.clone();
            bench.world.env(0).spawn(async move {
                let result = io.await;
                late.borrow_mut().push((number as u64, result));
            });
        }
        bench.world.run_for(Duration::from_millis(100));
        bench.suspend(&volume, SuspendMode::NoFlush);
        assert!(ended.borrow().is_empty() && late.borrow().is_empty());
        bench.load(&volume, "0 64 probe b 0").unwrap();
        bench.resume(&volume).unwrap();
        bench.world.run_until(|| ended.borrow().len() == 4 && late.borrow().len() == 2);
        assert!(late.borrow().iter().chain(ended.borrow().iter()).all(|(_, end)| end.is_ok()));
        let on_b = bench.drive("b").visible().to_vec();
        assert_eq!(on_b[..8 * 512], pattern(range(0, 8), 2), "the whole request went to b");
        bench.assert_clean();
    }
}

#[test]
fn a_suspend_that_is_called_off_lets_requests_go_on() {
    for seed in 0..20 {
        let bench = Bench::new(seed);
        let low = bench.volume("low", "0 64 probe a 0");
        let top = bench.volume("top", "0 32 probe @low 0\n32 32 probe b 0 hoard=1");
        bench.suspend(&low, SuspendMode::Flush);
        let stuck = start_writes(&bench, &top, 0, 0..4);
        let hoarded = start_writes(&bench, &top, 1, 40..44);
        // Its second part is handed back at once, and its first part ends after the gate is open.
        let disk: Arc<dyn Disk> = top.clone();
        let segs = bench.world.env(1).segs(SectorCount(8));
        segs.copy_in(0, &pattern(range(28, 8), 5));
        let wide = bench.world.env(1).io(&disk, Io::write(range(28, 8), segs));
        bench.world.run_for(Duration::from_millis(10));
        let call_off = Arc::new(CallOff::default());
        let mode = [SuspendMode::Flush, SuspendMode::NoFlush][seed as usize % 2];
        let (device, calls) = (top.clone(), call_off.clone());
        let (ended, env) = (Rc::new(RefCell::new(None)), bench.world.env(2).clone());
        let end = ended.clone();
        bench.world.env(2).spawn(async move {
            let suspended = device.suspend_unless(&env, mode, &calls).await;
            *end.borrow_mut() = Some(suspended.unwrap());
        });
        bench.world.run_for(Duration::from_millis(10));
        let waits = start_writes(&bench, &top, 2, 8..12);
        bench.world.run_for(Duration::from_secs(1));
        assert!(waits.borrow().is_empty(), "at the gate");
        call_off.call();
        bench.world.run_until(|| ended.borrow().is_some());
        assert_eq!(*ended.borrow(), Some(false));
        assert!(!top.is_suspended());
        bench.world.run_for(Duration::from_secs(1));
        assert!(stuck.borrow().is_empty());
        bench.resume(&low).unwrap();
        bench.world.run_until(|| stuck.borrow().len() == 4 && waits.borrow().len() == 4);
        bench.world.run_for(Duration::from_millis(10));
        // What was handed back is hoarded again.
        bench.suspend(&top, SuspendMode::Flush);
        bench.world.run_until(|| hoarded.borrow().len() == 4);
        bench.world.block_on(1, |_| wide).unwrap();
        for ended in [stuck, waits, hoarded] {
            assert!(ended.borrow().iter().all(|(_, result)| result.is_ok()));
        }
        bench.assert_clean();
    }
}

#[test]
fn a_device_whose_target_refuses_to_resume_stays_suspended_and_can_try_again() {
    let bench = Bench::new(4);
    let volume = bench.volume("v", "0 64 probe a 0");
    bench.load(&volume, "0 64 probe b 0\n64 8 probe b 64").unwrap();
    *bench.log.refuse.lock() = true;
    let ended = start_writes(&bench, &volume, 0, 0..1);
    bench.world.run_until(|| ended.borrow().len() == 1);
    let error = bench.resume(&volume).unwrap_err().to_string();
    assert!(error.contains("found bad, expected good"), "{error}");
    assert!(volume.is_suspended());
    let ended = start_writes(&bench, &volume, 1, 4..6);
    bench.world.run_for(Duration::from_secs(1));
    assert!(ended.borrow().is_empty());
    *bench.log.refuse.lock() = false;
    bench.resume(&volume).unwrap();
    bench.world.run_until(|| ended.borrow().len() == 2);
    bench.assert_clean();
}

#[test]
fn a_resume_without_a_table_is_refused() {
    let bench = Bench::new(5);
    let volume = bench.volume("v", "0 64 probe a 0");
    bench.remove(&volume);
    let error = bench.resume(&volume).unwrap_err().to_string();
    assert!(error.contains("no table is loaded"), "{error}");
}

#[test]
fn a_removed_device_fails_what_waited_and_what_comes_later() {
    let bench = Bench::new(6);
    let volume = bench.volume("v", "0 64 probe a 0");
    bench.suspend(&volume, SuspendMode::Flush);
    let ended = start_writes(&bench, &volume, 2, 0..3);
    bench.remove(&volume);
    bench.world.run_until(|| ended.borrow().len() == 3);
    let gone = Err(IoError::new(ErrorKind::Shutdown));
    assert!(ended.borrow().iter().all(|(_, result)| *result == gone));
    assert_eq!(bench.write(&volume, range(0, 1), 1), gone);
    assert_eq!(bench.io(&volume, |_| Io::flush()), gone);
    bench.assert_clean();
}

#[test]
fn a_part_that_waits_at_a_lower_gate_does_not_disturb_its_siblings() {
    for seed in 0..20 {
        let bench = Bench::new(seed);
        let low = bench.volume("low", "0 64 probe a 0 piece=5");
        let top = bench.volume("top", "0 8 probe @low 0\n8 16 probe b 0 piece=3");
        bench.suspend(&low, SuspendMode::Flush);
        let disk: Arc<dyn Disk> = top.clone();
        let segs = bench.world.env(0).segs(SectorCount(24));
        segs.copy_in(0, &pattern(range(0, 24), 4));
        let io = bench.world.env(0).io(&disk, Io::write(range(0, 24), segs));
        let flush = bench.world.env(0).io(&disk, Io::flush());
        bench.world.run_for(Duration::from_secs(1));
        let on_b = bench.drive("b").visible().to_vec();
        assert_eq!(on_b[..16 * 512], pattern(range(8, 16), 4), "the siblings have ended");
        bench.resume(&low).unwrap();
        bench.world.block_on(0, |_| async move { io.await.and(flush.await) }).unwrap();
        assert_eq!(bench.read(&top, range(0, 24)).unwrap(), pattern(range(0, 24), 4));
        bench.assert_clean();
    }
}

/// Suspends, or begins to, and resumes, again and again, until told to stop.
pub async fn shake(env: Env, device: Arc<MappedDevice>, rounds: u64) {
    for _ in 0..rounds {
        env.sleep(Duration::from_micros(env.random_below(3000))).await;
        let mode = if env.random_below(2) == 0 { SuspendMode::Flush } else { SuspendMode::NoFlush };
        let call_off = Arc::new(CallOff::default());
        if env.random_below(2) == 0 {
            let (env, call_off) = (env.clone(), call_off.clone());
            env.clone().spawn(async move {
                env.sleep(Duration::from_micros(env.random_below(300))).await;
                call_off.call();
            });
        }
        let suspended = device.suspend_unless(&env, mode, &call_off).await.unwrap();
        assert!(suspended || call_off.is_called());
        env.sleep(Duration::from_micros(env.random_below(500))).await;
        device.resume(&env).await.unwrap().whole().expect("nothing is lost");
    }
}

#[test]
fn requests_survive_suspends_at_every_level_of_a_busy_stack() {
    for seed in 0..30 {
        let bench = Bench::new(seed);
        let low = bench.volume("low", "0 100 probe a 3 piece=7 hold=1\n100 150 probe b 11 queue=1");
        let top = bench.volume("top", "0 33 probe c 0\n33 217 probe @low 30 piece=9 queue=1");
        for (reactor, device) in [(0, &low), (1, &top), (2, &low)] {
            let env = bench.world.env(reactor);
            env.spawn(shake(env.clone(), device.clone(), 10));
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

#[test]
fn what_waited_and_does_not_fit_the_new_table_fails_without_reaching_it() {
    let bench = Bench::new(3);
    let volume = bench.volume("v", "0 200 probe a 0");
    bench.suspend(&volume, SuspendMode::Flush);
    let ended = start_writes(&bench, &volume, 1, 98..102);
    bench.world.run_for(Duration::from_secs(1));
    bench.load(&volume, "0 100 probe a 0").unwrap();
    bench.resume(&volume).unwrap();
    bench.world.run_until(|| ended.borrow().len() == 4);
    let mut results = ended.borrow().clone();
    results.sort_by_key(|(sector, _)| *sector);
    let fits: Vec<bool> = results.iter().map(|(_, result)| result.is_ok()).collect();
    assert_eq!(fits, [true, true, false, false]);
    assert_eq!(bench.take_seen().len(), 2);
    bench.assert_clean();
}
