//! What verbs do when something fails: who is told, and what serves afterwards.

use std::sync::Arc;

use cairn_block::{
    Disk, Env, ErrorKind, FailureCursor, Flags, Io, IoResult, MappedDevice, Sector, SuspendMode,
};
use cairn_sim::{Effect, Fault, OpSet};

use crate::probe::{Bench, SECTOR, pattern, range};

fn write(bench: &Bench, device: &Arc<MappedDevice>, at: u64) {
    bench.write(device, range(at, 1), 7).unwrap();
}

/// A client's flush.
fn flush(bench: &Bench, device: &Arc<MappedDevice>, cursor: &mut FailureCursor) -> IoResult {
    let disk: Arc<dyn Disk> = device.clone();
    let flushed = bench.io(device, |_| Io::flush());
    let told = cursor.end_of_flush(&disk, flushed);
    cursor.was_told(&disk);
    told
}

fn cursor(device: &Arc<MappedDevice>) -> FailureCursor {
    let disk: Arc<dyn Disk> = device.clone();
    FailureCursor::new(&disk)
}

#[test]
fn a_flush_that_fails_for_one_client_is_told_to_each_once() {
    let bench = Bench::new(1);
    let volume = bench.volume("v", "0 64 probe a 0");
    let (mut one, mut other) = (cursor(&volume), cursor(&volume));
    bench.drive("a").faults().add(Fault::losing_flushes().shots(1));
    write(&bench, &volume, 3);
    assert!(flush(&bench, &volume, &mut one).is_err());
    assert!(flush(&bench, &volume, &mut other).is_err());
    assert!(flush(&bench, &volume, &mut one).is_ok());
    assert!(flush(&bench, &volume, &mut other).is_ok());
}

#[test]
fn a_loss_beneath_two_volumes_is_told_through_both() {
    let bench = Bench::new(2);
    let low = bench.volume("low", "0 64 probe a 0");
    let (x, y) = (bench.volume("x", "0 32 probe @low 0"), bench.volume("y", "0 32 probe @low 32"));
    let mut clients =
        [(x.clone(), cursor(&x)), (y.clone(), cursor(&y)), (low.clone(), cursor(&low))];
    bench.drive("a").faults().add(Fault::losing_flushes().shots(1));
    for (device, cursor) in &mut clients {
        assert!(flush(&bench, device, cursor).is_err(), "{}", device.name());
    }
    for (device, cursor) in &mut clients {
        assert!(flush(&bench, device, cursor).is_ok(), "{}", device.name());
    }
}

#[test]
fn a_swap_flushes_the_disks_that_it_leaves() {
    let bench = Bench::new(3);
    let volume = bench.volume("v", "0 64 probe a 0");
    write(&bench, &volume, 3);
    bench.load(&volume, "0 64 probe b 0").unwrap();
    bench.resume(&volume).unwrap();
    let mut sector = [0; SECTOR];
    bench.drive("a").durable().read(Sector(3), &mut sector);
    assert_eq!(sector[..], pattern(range(3, 1), 7));
}

#[test]
fn a_removal_flushes_the_drives_and_says_what_they_lost() {
    let bench = Bench::new(3);
    for fails in [false, true] {
        let volume = bench.volume("v", "0 64 probe a 0");
        write(&bench, &volume, 3);
        if fails {
            bench.drive("a").faults().add(Fault::losing_flushes().shots(1));
        }
        bench.registry.remove_volume("v");
        let removed = volume.clone();
        let removed = bench.world.block_on(1, |env| async move { removed.remove(&env).await });
        assert_eq!(removed.is_err(), fails, "{removed:?}");
        let mut sector = [0; SECTOR];
        bench.drive("a").durable().read(Sector(3), &mut sector);
        assert_eq!(sector[..], pattern(range(3, 1), 7));
    }
}

#[test]
fn a_failed_flush_of_the_disks_left_is_told_under_the_next_table() {
    let bench = Bench::new(4);
    let volume = bench.volume("v", "0 64 probe a 0");
    let mut client = cursor(&volume);
    write(&bench, &volume, 3);
    bench.drive("a").faults().add(Fault::losing_flushes().shots(1));
    bench.load(&volume, "0 64 probe b 0").unwrap();
    let lost = bench.resume(&volume).unwrap_err().to_string();
    assert!(lost.starts_with("a: flush"), "{lost}");
    assert_eq!(volume.live_table().unwrap().lines()[0].target.table(), "b 0");
    assert!(flush(&bench, &volume, &mut client).is_err());
    assert!(flush(&bench, &volume, &mut client).is_ok());
}

#[test]
fn a_suspend_that_loses_says_so_and_ends_suspended() {
    let bench = Bench::new(5);
    let volume = bench.volume("v", "0 64 probe a 0");
    let mut client = cursor(&volume);
    *bench.log.lose.lock() = true;
    let device = volume.clone();
    let lost = bench
        .world
        .block_on(0, |env| async move { device.suspend(&env, SuspendMode::Flush).await });
    assert!(lost.unwrap_err().to_string().contains("commit"));
    assert!(volume.is_suspended());
    *bench.log.lose.lock() = false;
    bench.resume(&volume).unwrap();
    assert!(flush(&bench, &volume, &mut client).is_err());
    assert!(flush(&bench, &volume, &mut client).is_ok());
}

#[test]
fn a_volume_made_again_under_its_name_tells_what_nobody_heard() {
    let bench = Bench::new(6);
    let volume = bench.volume("v", "0 64 probe a 0");
    write(&bench, &volume, 3);
    bench.drive("a").faults().add(Fault::losing_flushes().shots(1));
    bench.suspend(&volume, SuspendMode::Flush);
    let device = volume.clone();
    let flushed =
        bench.world.block_on(0, |env| async move { device.flush_disks(&env).await.is_ok() });
    assert!(!flushed);
    bench.remove(&volume);
    assert_eq!(bench.registry.untold_losses(), ["v"]);
    let again = bench.volume("v", "0 64 probe b 0");
    let mut client = cursor(&again);
    assert!(flush(&bench, &again, &mut client).is_err());
    assert!(bench.registry.untold_losses().is_empty());
    assert!(flush(&bench, &again, &mut cursor(&again)).is_ok());
}

fn write_fua(env: &Env) -> Io {
    Io::write(range(9, 1), env.zeros(range(9, 1).count)).with(Flags::FUA)
}

#[test]
fn a_write_with_fua_that_the_drive_refuses_is_nobody_elses_loss() {
    let bench = Bench::new(7);
    let volume = bench.volume("v", "0 64 probe a 0");
    let mut other = cursor(&volume);
    for (effect, lost) in
        [(Effect::Error(ErrorKind::Io), false), (Effect::Lose(ErrorKind::Io), true)]
    {
        let ops = if lost { OpSet::DURABLE_WRITES } else { OpSet::WRITES };
        let fault = Fault { effect, ..Fault::error(ops) };
        let id = bench.drive("a").faults().add(fault);
        assert!(bench.io(&volume, write_fua).is_err());
        bench.drive("a").faults().remove(id);
        assert_eq!(flush(&bench, &volume, &mut other).is_err(), lost);
    }
}

#[test]
fn a_device_none_of_whose_tables_can_start_stays_suspended_and_names_both_reasons() {
    let bench = Bench::new(7);
    let volume = bench.volume("v", "0 64 probe a 0");
    bench.load(&volume, "0 64 probe b 0 refuse=1").unwrap();
    *bench.log.refuse.lock() = true;
    let refused = bench.resume(&volume).unwrap_err().to_string();
    assert_eq!(refused.matches("mood").count(), 2, "{refused}");
    assert!(volume.is_suspended());
    assert_eq!(volume.live_table().unwrap().lines()[0].target.table(), "a 0");
    *bench.log.refuse.lock() = false;
    bench.load(&volume, "0 64 probe a 0").unwrap();
    bench.resume(&volume).unwrap();
    write(&bench, &volume, 3);
}

#[test]
fn a_table_that_cannot_start_leaves_the_old_one_live() {
    let bench = Bench::new(8);
    let volume = bench.volume("v", "0 64 probe a 0");
    write(&bench, &volume, 3);
    bench.load(&volume, "0 64 probe b 0 refuse=1").unwrap();
    let refused = bench.resume(&volume).unwrap_err().to_string();
    assert!(refused.contains("mood"), "{refused}");
    assert!(!volume.is_suspended());
    assert_eq!(volume.live_table().unwrap().lines()[0].target.table(), "a 0");
    assert!(volume.inactive_table().is_none());
    write(&bench, &volume, 4);
    bench.assert_clean();
}

#[test]
fn block_status_waits_for_a_resume_and_a_message_does_not() {
    let bench = Bench::new(9);
    let volume = bench.volume("v", "0 64 probe a 0");
    bench.suspend(&volume, SuspendMode::Flush);
    let (disk, answered) = (volume.clone(), std::rc::Rc::new(std::cell::Cell::new(false)));
    let (env, seen) = (bench.world.env(2).clone(), answered.clone());
    bench.world.env(2).spawn(async move {
        disk.extents(&env, range(0, 8)).await.unwrap();
        seen.set(true);
    });
    let device = volume.clone();
    let said = bench.world.block_on(0, |env| async move {
        device.message(&env, Sector(0), &["word"]).await.unwrap_err().to_string()
    });
    assert!(said.contains("takes no messages"), "{said}");
    assert!(!answered.get());
    bench.resume(&volume).unwrap();
    bench.world.run_until(|| answered.get());
}
