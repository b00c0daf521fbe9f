//! The world repeats a run exactly, keeps the order of messages, and leaks nothing.

use super::*;
use cairn_block::{Disk, Io, Sector, SectorCount, SectorRange};
use std::sync::Weak;

fn range(start: u64, count: u64) -> SectorRange {
    SectorRange::new(Sector(start), SectorCount(count))
}

fn world_with_a_drive(seed: u64) -> (SimWorld, Arc<dyn Disk>) {
    let world = SimWorld::new(seed, 3);
    let drive = world.add_drive(DriveOptions::named("a"), Image::new(SectorCount(1024)));
    (world, drive)
}

/// Every reactor writes for a while and asks another to write too.
fn busy_run(seed: u64) -> (u64, Image) {
    let (world, disk) = world_with_a_drive(seed);
    let finished = Rc::new(Cell::new(0));
    for id in 0..world.reactors() {
        let (env, disk, finished) = (world.env(id).clone(), disk.clone(), finished.clone());
        world.env(id).spawn(async move {
            for round in 0..20 {
                let segs = env.segs(SectorCount(1));
                segs.copy_in(0, &[round; 512]);
                let at = Sector(env.random_below(64));
                env.io(&disk, Io::write(SectorRange::new(at, SectorCount(1)), segs)).await.unwrap();
                let (other, disk) = (ReactorId((id + 1) % 3), disk.clone());
                let job = move |env: &Env| {
                    let io = env.io(&disk, Io::flush());
                    env.spawn(async move { io.await.unwrap() });
                };
                env.post().post(other, cairn_block::Mail::Call(Box::new(job)));
                env.sleep(Duration::from_micros(env.random_below(50))).await;
            }
            finished.set(finished.get() + 1);
        });
    }
    world.run_until(|| finished.get() == 3);
    (world.fingerprint(), world.drive("a").visible())
}

#[test]
fn the_same_seed_makes_the_same_run() {
    for seed in 0..10 {
        assert_eq!(busy_run(seed), busy_run(seed));
    }
    assert_ne!(busy_run(1).0, busy_run(2).0);
}

#[test]
fn time_passes_only_in_the_world() {
    let world = SimWorld::new(1, 1);
    let hour = Duration::from_secs(3600);
    world.block_on(0, move |env| async move { env.sleep(hour).await });
    assert!(world.now() >= Time::default() + hour);
    world.run_for(hour);
    assert!(world.now() >= Time::default() + 2 * hour);
}

#[test]
fn messages_of_one_sender_keep_their_order() {
    for seed in 0..50 {
        let world = SimWorld::new(seed, 3);
        let log = Arc::new(parking_lot::Mutex::new(Vec::new()));
        for sender in 0..2u16 {
            let log = log.clone();
            world.block_on(sender, move |env| async move {
                for number in 0..20 {
                    let log = log.clone();
                    let job = move |_: &Env| log.lock().push((sender, number));
                    env.post().post(ReactorId(2), cairn_block::Mail::Call(Box::new(job)));
                }
            });
        }
        world.run_until(|| log.lock().len() == 40);
        for sender in 0..2 {
            let own: Vec<i32> =
                log.lock().iter().filter(|(from, _)| *from == sender).map(|(_, n)| *n).collect();
            assert!(own.is_sorted(), "seed {seed}: {own:?}");
        }
    }
}

#[test]
#[should_panic(expected = "seed 77")]
fn a_deadlock_panics_with_the_seed() {
    let world = SimWorld::new(77, 2);
    world.block_on(0, |_| std::future::pending::<()>());
}

#[test]
fn nothing_happens_after_a_power_cut() {
    let (world, disk) = world_with_a_drive(5);
    world.cut_at(Cut { index: 3, when: crate::CutWhen::Completed });
    let writes = Rc::new(Cell::new(0));
    let count = writes.clone();
    let stopped = world.try_block_on(0, move |env| async move {
        loop {
            env.io(&disk, Io::write(range(0, 1), env.segs(SectorCount(1)))).await.unwrap();
            count.set(count.get() + 1);
        }
    });
    assert_eq!(stopped, Err::<(), _>(Stopped::PowerCut));
    assert_eq!(writes.get(), 3, "the fourth was done, but its request did not complete");
    assert!(!world.step());
}

#[test]
fn a_dropped_world_leaves_nothing_behind() {
    let (world, disk) = world_with_a_drive(5);
    let drive: Weak<SimDrive> = Arc::downgrade(&world.drive("a"));
    let event = Arc::new(event_listener::Event::new());
    let waited = event.clone();
    world.env(1).spawn(async move {
        let _circle = waited.clone();
        waited.listen().await;
    });
    world.env(0).spawn({
        let env = world.env(0).clone();
        async move {
            let _ = env.io(&disk, Io::write(range(0, 8), env.segs(SectorCount(8)))).await;
        }
    });
    world.run_for(Duration::from_micros(10));
    assert!(world.requests_in_use() > 0, "the write is in flight");
    drop(world);
    assert!(drive.upgrade().is_none());
    assert_eq!(Arc::strong_count(&event), 1);
}
