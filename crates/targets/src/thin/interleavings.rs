//! The epochs and the volume map under shuttle: see `interleaved`.

use std::sync::Arc;

use cairn_block::ReactorId;
use cairn_block::sync::Mutex;
use cairn_block::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use cairn_format::thin::{DataBlock, DeviceDetails, DeviceId, Mapping};
use shuttle::thread;

use super::groups::Group;
use super::index::{Run, Stamp, VolumeMap};
use super::volume::Volume;
use crate::epochs::Epochs;
use crate::interleaved::{block_on, rounds};

/// The volume with id 0 that has so many mapped blocks, the highest as the metadata says.
pub(super) fn volume(mapped_blocks: u64, highest: Option<u64>) -> Arc<Volume> {
    let details =
        DeviceDetails { mapped_blocks, transaction_id: 0, creation_time: 0, snapshotted_time: 0 };
    Volume::new(DeviceId::new(0).expect("it is small"), details, highest, &Arc::default())
}

pub(super) fn mapping(block: u64) -> Mapping {
    Mapping { block: DataBlock(block), time: 0 }
}

/// A group whose block 0 is mapped to this data block.
fn group_of(block: u64) -> Group {
    let mut group = Group::empty();
    group.set(0, mapping(block));
    group
}

fn data_of(run: Run) -> Option<u64> {
    match run {
        Run::Mapped { data, .. } => Some(data.0),
        Run::Hole { .. } | Run::Absent => None,
    }
}

/// A volume whose block 0 is mapped to data block 7, which is `reused` at some time.
struct Scene {
    map: VolumeMap,
    epochs: Arc<Epochs<1>>,
    reused: AtomicU64,
}

impl Scene {
    fn new() -> Arc<Scene> {
        let map = VolumeMap::new(1, 1, &Arc::default());
        map.end_load(0, &group_of(7), || true, 0);
        Arc::new(Scene { map, epochs: Epochs::new(2), reused: AtomicU64::new(0) })
    }

    /// A request of a reactor to block 0.
    fn request(&self, reactor: u16) {
        let mut shard = self.map.shard(0);
        let found = data_of(shard.run(0, 1, 0));
        let epoch = self.epochs.enter(ReactorId(reactor), 0);
        drop(shard);
        if found == Some(7) {
            for _ in 0..2 {
                assert_eq!(self.reused.load(Ordering::Relaxed), 0, "T3");
                thread::yield_now();
            }
        }
        self.epochs.leave(ReactorId(reactor), epoch);
    }

    /// Unmaps block 0, and uses its data block for something else as soon as that is allowed.
    fn reuse(&self) {
        self.map.shard(0).change(0, None, Stamp { commit: 1 }, true);
        block_on(self.epochs.quiesce(0));
        self.reused.store(1, Ordering::Relaxed);
    }
}

#[test]
fn a_data_block_is_used_anew_only_when_who_found_it_has_ended() {
    let life = || {
        let scene = Scene::new();
        let threads: Vec<_> = (0..2)
            .map(|reactor| {
                let scene = scene.clone();
                thread::spawn(move || (0..3).for_each(|_| scene.request(reactor)))
            })
            .collect();
        scene.reuse();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    };
    shuttle::check_random(life, rounds());
}

#[test]
fn waits_at_the_same_time_all_end_and_are_all_right() {
    let life = || {
        let scene = Scene::new();
        let busy = scene.clone();
        let requests = thread::spawn(move || (0..4).for_each(|_| busy.request(0)));
        let other = scene.clone();
        let waits = thread::spawn(move || {
            block_on(other.epochs.quiesce(0));
            block_on(other.epochs.quiesce(0));
        });
        scene.reuse();
        requests.join().expect("no panic");
        waits.join().expect("no panic");
    };
    shuttle::check_random(life, rounds());
}

#[test]
fn closing_a_gate_waits_for_every_request_that_passed_it() {
    let life = || {
        let volume = volume(0, None);
        let (epochs, is_snapshotted) = (Epochs::<1>::new(2), Arc::new(AtomicBool::new(false)));
        let threads: Vec<_> = (0..2)
            .map(|reactor| {
                let (volume, epochs) = (volume.clone(), epochs.clone());
                let is_snapshotted = is_snapshotted.clone();
                thread::spawn(move || {
                    let reactor = ReactorId(reactor);
                    let shard = volume.map.shard(0);
                    if volume.is_closed() {
                        return; // It would be parked.
                    }
                    let epoch = epochs.enter(reactor, 0);
                    drop(shard);
                    thread::yield_now();
                    assert!(!is_snapshotted.load(Ordering::Relaxed), "T5");
                    epochs.leave(reactor, epoch);
                })
            })
            .collect();
        volume.close_gate();
        block_on(epochs.quiesce(0));
        is_snapshotted.store(true, Ordering::Relaxed);
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    };
    shuttle::check_random(life, rounds());
}

/// The metadata of a volume with one block, and the map before it.
struct Cached {
    volume: Arc<Volume>,
    /// The durable mapping of block 0, with its generation.
    durable: Mutex<(u64, u64)>,
    generation: AtomicU64,
    next_commit: AtomicU64,
    durable_commit: AtomicU64,
}

impl Cached {
    fn new() -> Arc<Cached> {
        Arc::new(Cached {
            volume: volume(1, Some(0)),
            durable: Mutex::new((0, 1)),
            generation: AtomicU64::new(0),
            next_commit: AtomicU64::new(1),
            durable_commit: AtomicU64::new(0),
        })
    }

    /// As a task loads a group: reads first, and asks under the shard's lock whether it still is
    /// so.
    fn load(&self) {
        let (generation, block) = *self.durable.lock();
        thread::yield_now();
        let current = || self.generation.load(Ordering::Acquire) == generation;
        let durable = self.durable_commit.load(Ordering::Acquire);
        let _ = self.volume.map.end_load(0, &group_of(block), current, durable);
    }

    /// Maps block 0 anew, if its group is loaded.
    fn change(&self, block: u64) -> bool {
        let mut shard = self.volume.map.shard(0);
        if !shard.is_loaded(0) {
            return false;
        }
        self.volume.set_dirty();
        let stamp = Stamp { commit: self.next_commit.load(Ordering::SeqCst) };
        shard.change(0, Some(mapping(block)), stamp, false);
        true
    }

    fn commit(&self) {
        let number = self.next_commit.fetch_add(1, Ordering::SeqCst);
        if !self.volume.freeze() {
            self.durable_commit.store(number, Ordering::Release);
            return;
        }
        let taken = self.volume.map.shards().flat_map(|mut shard| shard.take_pending());
        let last = taken.last().and_then(|change| change.mapping);
        if let Some(mapping) = last {
            let mut durable = self.durable.lock();
            *durable = (durable.0 + 1, mapping.block.0);
            self.generation.store(durable.0, Ordering::Release);
        }
        self.durable_commit.store(number, Ordering::Release);
        self.volume.thaw();
    }

    fn look(&self) -> Option<u64> {
        data_of(self.volume.map.shard(0).run(0, 1, 0))
    }
}

#[test]
fn what_was_changed_is_found_however_groups_are_loaded_committed_and_forgotten() {
    let life = || {
        let cached = Cached::new();
        let spawn = |act: fn(&Cached)| {
            let cached = cached.clone();
            thread::spawn(move || (0..2).for_each(|_| act(&cached)))
        };
        let threads = [
            spawn(Cached::load),
            spawn(Cached::commit),
            spawn(|cached| {
                let durable = cached.durable_commit.load(Ordering::Acquire);
                cached.volume.map.shard(0).forget_one(durable);
            }),
        ];
        let mut newest = 1;
        for block in 2..4 {
            if cached.change(block) {
                newest = block;
            }
            assert!(cached.look().is_none_or(|found| found == newest), "M1");
            cached.load();
            assert!(cached.look().is_none_or(|found| found == newest), "M1");
        }
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        cached.load();
        assert_eq!(cached.look(), Some(newest), "M1");
        cached.commit();
        assert_eq!(cached.durable.lock().1, newest, "M2");
        assert!(!cached.volume.is_changed());
    };
    shuttle::check_random(life, rounds());
}
