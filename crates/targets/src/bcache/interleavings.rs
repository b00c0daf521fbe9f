//! The whole target under shuttle: what its reactors share (the set's lock, group commits and their
//! waiters, the keeper, places that are written in place, the volumes' counts, batches of
//! writeback), see `interleaved::reactors`.
//!
//! Clients on two reactors write to slots of their own, with FUA, flushes or neither. At some
//! moment the power is cut, and at the end the process dies; the sets that are left are opened
//! again. In each life:
//! - each request ends, and no timer has to help a flush (a wake-up was lost);
//! - each slot has what was durable when the power was cut, or what was written to it later (a
//!   flush that overtook, a batch that was taken twice, a key that fell between two groups), and
//!   the backing device has the same after a drain (a copy beside a write in place).
//!
//! `handover` has several volumes on one set.

mod handover;

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::sync::Mutex;
use cairn_block::sync::atomic::{AtomicBool, Ordering};
use cairn_block::{
    BiasedLock, Disk, Env, Flags, Io, MappedDevice, ReactorId, Registry, SECTOR_BYTES, Sector,
    SectorCount, SectorRange, SuspendMode, Table, TableContext, TableLine, TargetTypes,
};
use cairn_format::bcache::build::Builder;
use cairn_format::bcache::uuids::UuidEntry;
use cairn_format::bcache::{
    BackingState, BackingSuperblock, CacheMode, CacheSuperblock, NewBacking, NewCache, Replacement,
    SUPERBLOCK_SECTOR, Uuid,
};
use cairn_sim::SimOpener;
use shuttle::rand::Rng;

use crate::epochs::Epochs;
use crate::interleaved::{Job, Plate, rounds, run_reactors};

/// Sectors of the cache device: as few buckets as are legal, of 4 KiB.
const CACHE: u64 = 1024;
/// Sectors of the volume.
const VOLUME: u64 = 1024;
/// Sectors of a slot, and how many slots there are.
const SLOT: u64 = 8;
const SLOTS: usize = 24;
/// Tasks of clients: each has its own slots.
const TASKS: usize = 4;
/// What a task does.
const STEPS: usize = 8;
/// How often the volume is drained in a life with drains.
const DRAINS: usize = 8;
/// A flush takes no virtual time, but for the patience of a commit.
const FLUSH_MAX: Duration = Duration::from_millis(20);

/// What was written to a slot.
#[derive(Clone, Copy, Default, Debug)]
struct Slot {
    /// The last number that was submitted, answered, and covered by a flush or FUA.
    submitted: u8,
    answered: u8,
    durable: u8,
}

type Slots = Arc<Mutex<[Slot; SLOTS]>>;

const SET: Uuid = Uuid([2; 16]);
/// The volume with the backing device `b`.
const FIRST: Uuid = Uuid([3; 16]);
const LINE: &str = "0 1024 bcache b c 0";

/// A fresh cache device with these volumes.
fn cache_of(volumes: &[UuidEntry]) -> Vec<u8> {
    let new = NewCache {
        uuid: Uuid([1; 16]),
        set_uuid: SET,
        block_sectors: 1,
        bucket_sectors: 8,
        device_sectors: CACHE,
        replacement: Replacement::Lru,
        discard: false,
    };
    let mut cache = vec![0; (CACHE * SECTOR_BYTES) as usize];
    let superblock = CacheSuperblock::fresh(&new).expect("legal");
    let builder = Builder::new(&superblock, 3, &mut cache);
    let superblock = builder.finish(volumes).expect("there is room");
    let at = (SUPERBLOCK_SECTOR * SECTOR_BYTES) as usize;
    cache[at..][..4096].copy_from_slice(&superblock.encode());
    cache
}

/// A fresh backing device, in this mode.
fn backing_of(uuid: Uuid, mode: CacheMode) -> Vec<u8> {
    let new = NewBacking {
        uuid,
        set_uuid: SET,
        block_sectors: 1,
        data_offset: 16,
        mode,
        state: BackingState::Clean,
        label: [0; 32],
    };
    let mut backing = vec![0; ((16 + VOLUME) * SECTOR_BYTES) as usize];
    let superblock = BackingSuperblock::fresh(&new).expect("legal");
    let at = (SUPERBLOCK_SECTOR * SECTOR_BYTES) as usize;
    backing[at..][..4096].copy_from_slice(&superblock.encode());
    backing
}

/// The devices of a server.
fn registry_of(plates: &[Arc<Plate>]) -> Arc<Registry> {
    let opener = plates.iter().fold(SimOpener::new(), |all, plate| {
        let disk: Arc<dyn Disk> = plate.clone();
        all.with(&plate.name(), disk)
    });
    Arc::new(Registry::new(Box::new(opener)))
}

/// The volume over these disks.
fn volume(plates: &[Arc<Plate>; 2]) -> (Arc<Registry>, Arc<MappedDevice>) {
    let registry = registry_of(plates);
    let volume = registry.create_volume("v").expect("there is none");
    (registry, volume)
}

/// Loads the table of a volume, and resumes it.
async fn start(env: &Env, registry: &Arc<Registry>, volume: &Arc<MappedDevice>, line: &str) {
    load(env, registry, volume, line).await;
    volume.resume(env).await.expect("the disks are well").whole().expect("nothing is lost");
}

async fn load(env: &Env, registry: &Arc<Registry>, volume: &Arc<MappedDevice>, line: &str) {
    let lines = TableLine::parse_all(line).expect("legal");
    let types = TargetTypes::new(crate::types());
    let context = TableContext { types: &types, registry, read_only: false };
    let table = Table::build(env, volume, &lines, context).await.expect("a sound set");
    volume.load(table).await;
}

fn range_of(slot: usize) -> SectorRange {
    SectorRange::new(Sector(slot as u64 * SLOT * 3), SectorCount(SLOT))
}

async fn read(env: &Env, disk: &Arc<dyn Disk>, slot: usize) -> Vec<u8> {
    let range = range_of(slot);
    let segs = env.segs(range.count);
    env.io(disk, Io::read(range, segs.clone())).await.expect("it can be read");
    segs.to_vec()
}

async fn write(env: &Env, disk: &Arc<dyn Disk>, slots: &Slots, slot: usize, fua: bool) {
    let number = {
        let mut slots = slots.lock();
        slots[slot].submitted += 1;
        slots[slot].submitted
    };
    let range = range_of(slot);
    let segs = env.segs(range.count);
    segs.copy_in(0, &vec![number; range.to_bytes() as usize]);
    let flags = if fua { Flags::FUA } else { Flags::empty() };
    env.io(disk, Io::write(range, segs).with(flags)).await.expect("the disks are well");
    let mut slots = slots.lock();
    slots[slot].answered = number;
    if fua {
        slots[slot].durable = number;
    }
}

async fn flush(env: &Env, disk: &Arc<dyn Disk>, slots: &Slots) {
    let (covered, begun) = (*slots.lock(), env.now());
    env.io(disk, Io::flush()).await.expect("the disks are well");
    let took = env.now().since(begun);
    assert!(took <= FLUSH_MAX, "a flush was woken by a timer alone, after {took:?}");
    let mut slots = slots.lock();
    for (slot, covered) in slots.iter_mut().zip(covered) {
        slot.durable = slot.durable.max(covered.answered);
    }
}

/// A client, with slots of its own, one of which it writes often.
async fn client(env: Env, disk: Arc<dyn Disk>, slots: Slots, task: usize) {
    let own = SLOTS / TASKS;
    for _ in 0..STEPS {
        let (what, slot) = {
            let mut rng = shuttle::rand::thread_rng();
            let which = if rng.gen_bool(0.5) { 0 } else { rng.gen_range(0..own) };
            (rng.gen_range(0..6), task * own + which)
        };
        match what {
            0 | 1 => flush(&env, &disk, &slots).await,
            2 => write(&env, &disk, &slots, slot, true).await,
            _ => write(&env, &disk, &slots, slot, false).await,
        }
    }
}

/// Half of the clients, on a reactor.
async fn clients(env: &Env, disk: &Arc<dyn Disk>, slots: &Slots, half: usize) {
    let of_task = |task| client(env.clone(), disk.clone(), slots.clone(), task);
    let own = half * TASKS / 2;
    futures_util::future::join_all((own..own + TASKS / 2).map(of_task)).await;
}

/// What a power cut or a kill leaves, and for each slot the numbers of which it has one.
struct Left {
    images: [Vec<u8>; 2],
    allowed: [RangeInclusive<u8>; SLOTS],
}

/// The power is cut now: what was durable before is there, or what was submitted until then.
fn cut([backing, cache]: &[Arc<Plate>; 2], slots: &Slots) -> Left {
    let before = *slots.lock();
    let images = Plate::durable([cache, backing]);
    let after = *slots.lock();
    let allowed = |slot: usize| before[slot].durable..=after[slot].submitted;
    Left { images, allowed: std::array::from_fn(allowed) }
}

/// The process dies after all requests have ended.
fn kill([backing, cache]: &[Arc<Plate>; 2], slots: &Slots) -> Left {
    let slots = *slots.lock();
    let allowed = |slot: usize| slots[slot].durable..=slots[slot].submitted;
    let images = [cache.visible(), backing.visible()];
    Left { images, allowed: std::array::from_fn(allowed) }
}

/// The set is opened again, and each slot read. Then all is written back, and the backing device
/// alone has the same.
fn judge(left: Left) {
    let [cache, backing] = left.images;
    let plates = [Plate::new("b", backing), Plate::new("c", cache)];
    let job: Job = Box::new(move |env| {
        Box::pin(async move {
            let (registry, volume) = volume(&plates);
            start(&env, &registry, &volume, LINE).await;
            let disk: Arc<dyn Disk> = volume.clone();
            let mut found = Vec::new();
            for (slot, allowed) in left.allowed.iter().enumerate() {
                let bytes = read(&env, &disk, slot).await;
                let wrong = bytes.iter().find(|byte| !allowed.contains(byte));
                assert_eq!(wrong, None, "slot {slot}: expected {allowed:?}");
                found.push(bytes);
            }
            volume.drain_caches(&env).await.expect("the disks are well");
            volume.suspend(&env, SuspendMode::Flush).await.expect("the disks are well");
            let alone = plates[0].visible();
            for (slot, bytes) in found.iter().enumerate() {
                let at = range_of(slot).start.to_bytes() + 16 * SECTOR_BYTES;
                let is_same = alone[at as usize..].starts_with(bytes);
                assert!(is_same, "slot {slot}: another content on the backing device");
            }
        })
    });
    run_reactors(vec![job]);
}

/// A life of a set in this mode, with drains while the clients write, if it `drains`.
fn life(mode: CacheMode, drains: bool) {
    let cache = cache_of(&[UuidEntry { uuid: FIRST, ..UuidEntry::default() }]);
    let plates = [Plate::new("b", backing_of(FIRST, mode)), Plate::new("c", cache)];
    let (registry, volume) = volume(&plates);
    let slots: Slots = Arc::default();
    let left: Arc<Mutex<Option<Left>>> = Arc::default();
    let has_started = Arc::new(event_listener::Event::new());
    let first: Job = {
        let (volume, slots, plates) = (volume.clone(), slots.clone(), plates.clone());
        let (left, has_started) = (left.clone(), has_started.clone());
        Box::new(move |env| {
            Box::pin(async move {
                start(&env, &registry, &volume, LINE).await;
                has_started.notify(usize::MAX);
                let disk: Arc<dyn Disk> = volume.clone();
                let moment = shuttle::rand::thread_rng().gen_range(0..60);
                let cuts = async {
                    for _ in 0..moment {
                        cairn_block::yield_once().await;
                    }
                    *left.lock() = Some(cut(&plates, &slots));
                };
                futures_util::future::join(clients(&env, &disk, &slots, 0), cuts).await;
            })
        })
    };
    let second: Job = {
        let (volume, slots) = (volume.clone(), slots.clone());
        Box::new(move |env| {
            Box::pin(async move {
                cairn_block::until(&has_started, || volume.live_table().is_some()).await;
                let disk: Arc<dyn Disk> = volume.clone();
                let drain = async {
                    for _ in 0..if drains { DRAINS } else { 0 } {
                        cairn_block::yield_once().await;
                        volume.drain_caches(&env).await.expect("the disks are well");
                    }
                };
                futures_util::future::join(clients(&env, &disk, &slots, 1), drain).await;
            })
        })
    };
    run_reactors(vec![first, second]);
    let left = left.lock().take().expect("the power was cut");
    judge(left);
    judge(kill(&plates, &slots));
}

/// So many lives, each with other interleavings.
fn check_lives(lives: usize, life: impl Fn() + Send + Sync + 'static) {
    let mut config = shuttle::Config::new();
    config.stack_size = 1 << 20;
    let scheduler = shuttle::scheduler::RandomScheduler::new(lives);
    shuttle::Runner::new(scheduler, config).run(life);
}

fn check(lives: usize, mode: CacheMode, drains: bool) {
    check_lives(lives, move || life(mode, drains));
}

#[test]
fn flushes_and_writes_of_two_reactors_into_the_cache() {
    check(rounds() / 3, CacheMode::Writeback, false);
}

#[test]
fn a_drain_beside_writes_of_two_reactors() {
    check(rounds() / 3, CacheMode::Writeback, true);
}

#[test]
fn writes_of_two_reactors_around_and_through_the_cache() {
    check(rounds() / 3, CacheMode::Writethrough, false);
}

/// The orders between reactors that these lives are for: without one of them, a life fails.
#[cfg(feature = "canary")]
#[test]
fn each_planted_bug_of_what_reactors_share_is_caught() {
    use super::canary::{Bug, plant};
    let bugs = [
        (Bug::AnsweredBeforeFlush, false),
        (Bug::EntryBehindVolatile, false),
        (Bug::GroupClosedLate, false),
        (Bug::OverwriteVolatile, false),
        (Bug::CopyDuringOverwrite, true),
    ];
    // The first that fails ends the search.
    const LIVES_MAX: usize = 30_000;
    for (bug, drains) in bugs {
        plant(Some(bug));
        let caught = std::panic::catch_unwind(|| check(LIVES_MAX, CacheMode::Writeback, drains));
        plant(None);
        assert!(caught.is_err(), "{bug:?} was not caught");
    }
}

/// H2: what a hit found is given up only after the hit has ended.
#[test]
fn change_waits_for_the_hits_that_have_not_seen_it() {
    const CHANGES: usize = 3;
    let look = || {
        let (lock, epochs) = (Arc::new(BiasedLock::new(2, 0)), Epochs::<1>::new(2));
        let gone: Arc<[AtomicBool; CHANGES + 1]> = Arc::default();
        let reader = |reactor| {
            let (lock, epochs, gone) = (lock.clone(), epochs.clone(), gone.clone());
            shuttle::thread::spawn(move || {
                for _ in 0..16 {
                    let enter = |place: &usize| (*place, epochs.enter(reactor, 0));
                    let (place, epoch) = lock.read(reactor, enter);
                    assert!(!gone[place].load(Ordering::Relaxed), "a hit reads what is gone");
                    epochs.leave(reactor, epoch);
                }
            })
        };
        let readers = [ReactorId(0), ReactorId(1)].map(reader);
        for was in &gone[..CHANGES] {
            *lock.lock() += 1;
            while !epochs.have_left(std::iter::once(0)) {
                shuttle::thread::yield_now();
            }
            was.store(true, Ordering::Relaxed);
        }
        readers.into_iter().for_each(|reader| reader.join().expect("no reader panics"));
    };
    shuttle::check_random(look, rounds());
}
