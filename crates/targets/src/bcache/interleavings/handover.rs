//! Volumes of one set that are suspended and resumed on two reactors at the same time
//! (`set::users`).
//!
//! Two volumes with backing devices each have a client between a resume and the next suspend. In
//! each life:
//! - each resume and each suspend ends well, whether another volume serves the set, leaves it or
//!   joins it at that time (U4);
//! - a suspended volume has all of its data durably, also if the other one goes on (U1), and the
//!   power may be cut at any moment;
//! - once both are suspended, no volume serves the set, and no task of it runs (U3).
//!
//! Two mapped devices with the same flash-only volume: one of them serves it at a time (U2).

use futures_util::FutureExt;

use super::*;
use crate::bcache::volume::Bcache;

/// The volume with the backing device `d`, and the flash-only one.
const SECOND: Uuid = Uuid([4; 16]);
const FLASH: Uuid = Uuid([5; 16]);
const LINES: [&str; 2] = [LINE, "0 1024 bcache d c 0"];
/// How often a volume is resumed.
const TURNS: usize = 3;

type Volumes = [Arc<MappedDevice>; 2];

fn cache() -> Vec<u8> {
    let of = |uuid| UuidEntry { uuid, ..UuidEntry::default() };
    let flash = UuidEntry { flags: 1, sectors: VOLUME, ..of(FLASH) };
    cache_of(&[of(FIRST), of(SECOND), flash])
}

fn volumes_of(registry: &Arc<Registry>) -> Volumes {
    ["v", "w"].map(|name| registry.create_volume(name).expect("there is none"))
}

/// The target of a volume does something.
fn with_target<T>(volume: &MappedDevice, look: impl FnOnce(&Bcache) -> T) -> T {
    let table = volume.live_table().expect("it was resumed");
    let target = table.lines()[0].target.clone();
    look(target.as_any().and_then(|any| any.downcast_ref()).expect("it is bcache"))
}

/// No volume serves the set, and no task of it runs.
fn assert_is_at_rest(volume: &MappedDevice) {
    with_target(volume, |target| {
        let core = target.core.as_ref().expect("it has a cache");
        assert!(core.users().are_none(), "U3: {}", core.users().names());
        assert!(core.tasks.idle().now_or_never().is_some(), "U3: a task of the set runs");
    });
}

/// A volume is resumed and suspended some times, with a client in between.
async fn come_and_go(
    env: &Env,
    registry: &Arc<Registry>,
    which: usize,
    all: (Volumes, [Slots; 2]),
) {
    let (volume, slots) = (&all.0[which], &all.1[which]);
    load(env, registry, volume, LINES[which]).await;
    let disk: Arc<dyn Disk> = volume.clone();
    for turn in 0..TURNS {
        volume.resume(env).await.expect("the disks are well").whole().expect("nothing is lost");
        for slot in 0..SLOTS {
            let answered = slots.lock()[slot].answered;
            assert!(read(env, &disk, slot).await.iter().all(|byte| *byte == answered), "{slot}");
        }
        client(env.clone(), disk.clone(), slots.clone(), turn).await;
        volume.suspend(env, SuspendMode::Flush).await.expect("the disks are well");
        slots.lock().iter_mut().for_each(|slot| slot.durable = slot.answered);
    }
}

/// What the numbers of the slots of each volume may be, from before to after.
fn allowed(before: [[Slot; SLOTS]; 2], slots: &[Slots; 2]) -> [Vec<RangeInclusive<u8>>; 2] {
    let after = slots.each_ref().map(|slots| *slots.lock());
    [0, 1].map(|which| {
        let pairs = before[which].iter().zip(&after[which]);
        pairs.map(|(before, after)| before.durable..=after.submitted).collect()
    })
}

/// Both volumes are opened again, and each slot is read.
fn judge_both(images: [Vec<u8>; 3], allowed: [Vec<RangeInclusive<u8>>; 2]) {
    let [cache, b, d] = images;
    let plates = [Plate::new("c", cache), Plate::new("b", b), Plate::new("d", d)];
    let job: Job = Box::new(move |env| {
        Box::pin(async move {
            let registry = registry_of(&plates);
            let volumes = volumes_of(&registry);
            for which in [0, 1] {
                start(&env, &registry, &volumes[which], LINES[which]).await;
                let disk: Arc<dyn Disk> = volumes[which].clone();
                for (slot, allowed) in allowed[which].iter().enumerate() {
                    let bytes = read(&env, &disk, slot).await;
                    let wrong = bytes.iter().find(|byte| !allowed.contains(byte));
                    assert_eq!(wrong, None, "volume {which}, slot {slot}: expected {allowed:?}");
                }
            }
            for volume in &volumes {
                volume.suspend(&env, SuspendMode::Flush).await.expect("the disks are well");
            }
        })
    });
    run_reactors(vec![job]);
}

fn life_of_two() {
    let [b, d] = [FIRST, SECOND].map(|uuid| backing_of(uuid, CacheMode::Writeback));
    let plates = [Plate::new("c", cache()), Plate::new("b", b), Plate::new("d", d)];
    let registry = registry_of(&plates);
    let (volumes, slots) = (volumes_of(&registry), [Slots::default(), Slots::default()]);
    let left = Arc::new(Mutex::new(None));
    let jobs = [0, 1].map(|which| {
        let (plates, registry, left) = (plates.clone(), registry.clone(), left.clone());
        let (all, slots) = ((volumes.clone(), slots.clone()), slots.clone());
        let job: Job = Box::new(move |env| {
            Box::pin(async move {
                let cuts = async {
                    if which == 1 {
                        return;
                    }
                    let moment = shuttle::rand::thread_rng().gen_range(0..150);
                    for _ in 0..moment {
                        cairn_block::yield_once().await;
                    }
                    let before = slots.each_ref().map(|slots| *slots.lock());
                    let images = Plate::durable(plates.each_ref().map(|plate| &**plate));
                    *left.lock() = Some((images, allowed(before, &slots)));
                };
                let own = come_and_go(&env, &registry, which, all);
                futures_util::future::join(own, cuts).await;
            })
        });
        job
    });
    run_reactors(jobs.into());
    assert_is_at_rest(&volumes[0]);
    let (images, ranges) = left.lock().take().expect("the power was cut");
    judge_both(images, ranges);
    // The process dies after both were suspended.
    let before = slots.each_ref().map(|slots| *slots.lock());
    let images = plates.each_ref().map(|plate| plate.visible());
    judge_both(images, allowed(before, &slots));
}

/// A mapped device tries to serve the flash-only volume, some times. Answers how often it has.
async fn try_to_serve(
    env: &Env,
    registry: &Arc<Registry>,
    volume: &Arc<MappedDevice>,
    own: u8,
) -> usize {
    let (disk, mut served): (Arc<dyn Disk>, _) = (volume.clone(), 0);
    for _ in 0..TURNS {
        load(env, registry, volume, &format!("0 {VOLUME} bcache - c 2 flash {FLASH}")).await;
        match volume.resume(env).await {
            Ok(resumed) => resumed.whole().expect("nothing is lost"),
            Err(refused) => {
                let text = refused.to_string();
                assert!(text.contains("found it served by"), "{text}");
                continue;
            }
        }
        served += 1;
        let range = range_of(0);
        let segs = env.segs(range.count);
        segs.copy_in(0, &vec![own; range.to_bytes() as usize]);
        env.io(&disk, Io::write(range, segs)).await.expect("the disks are well");
        cairn_block::yield_once().await;
        let found = read(env, &disk, 0).await;
        assert!(found.iter().all(|byte| *byte == own), "U2: another one writes to it");
        volume.suspend(env, SuspendMode::Flush).await.expect("the disks are well");
    }
    served
}

fn life_of_one_flash_volume() {
    let registry = registry_of(&[Plate::new("c", cache())]);
    let volumes = volumes_of(&registry);
    let served = Arc::new(Mutex::new(0));
    let jobs = [0, 1].map(|which: usize| {
        let (registry, volume) = (registry.clone(), volumes[which].clone());
        let served = served.clone();
        let job: Job = Box::new(move |env| {
            Box::pin(async move {
                let own = try_to_serve(&env, &registry, &volume, which as u8 + 1).await;
                *served.lock() += own;
            })
        });
        job
    });
    run_reactors(jobs.into());
    assert!(*served.lock() > 0, "the first that is resumed serves it");
}

#[test]
fn volumes_of_a_set_come_and_go_on_two_reactors() {
    check_lives(rounds() / 6, life_of_two);
}

#[test]
fn a_volume_of_a_set_is_served_by_one_of_two_reactors_at_a_time() {
    check_lives(rounds() / 3, life_of_one_flash_volume);
}

/// Without the handover a life of each test fails.
#[cfg(feature = "canary")]
#[test]
fn volumes_that_come_and_go_without_the_handover_are_caught() {
    use crate::bcache::canary::{Bug, plant};
    const LIVES_MAX: usize = 10_000;
    for life in [life_of_two as fn(), life_of_one_flash_volume] {
        plant(Some(Bug::NoHandover));
        let caught = std::panic::catch_unwind(|| check_lives(LIVES_MAX, life));
        plant(None);
        assert!(caught.is_err(), "it was not caught");
    }
}
