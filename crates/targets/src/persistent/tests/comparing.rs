//! What two devices differ in, and what one has for itself, against the mappings as read in full.

use std::collections::{BTreeMap, BTreeSet};

use cairn_format::thin::DeviceId;

use super::fixture::{StoreFixture, id, mapping};
use crate::persistent::model::Mappings;

const KEYS: u64 = 20_000;

impl StoreFixture {
    /// Maps `count` fresh data blocks at every `stride`th virtual block from `start` on.
    fn fill(&mut self, device: u64, start: u64, stride: u64, count: u64) {
        let time = self.working().time();
        let runs = self.store.data().take(count);
        let blocks = runs.into_iter().flat_map(|run| run.blocks());
        let changes: Vec<_> = (0..)
            .zip(blocks)
            .map(|(n, block)| (start + n * stride, Some(mapping(block.0, time))))
            .collect();
        self.run(async move |env, working| working.apply(env, id(device), &changes).await).unwrap();
        self.commit();
    }

    /// The virtual blocks that differ, and in how many steps that was told.
    fn differences(&self, devices: [u64; 2]) -> (Vec<u64>, u64) {
        let (store, devices) = (self.store.clone(), devices.map(id));
        self.sim.block_on(0, move |env| async move {
            let (mut all, mut key, mut steps) = (Vec::new(), 0, 0);
            while key < u64::MAX {
                let stretch = store.compare(&env, devices, key).await.unwrap();
                assert!(stretch.keys.start == key && stretch.keys.end > key, "no gaps");
                all.extend(stretch.changed.into_iter().flatten());
                (key, steps) = (stretch.keys.end, steps + 1);
            }
            (all, steps)
        })
    }

    fn own(&mut self, device: u64) -> (u64, u64) {
        self.run(async move |env, working| {
            let (mut own, mut key, mut steps) = (0, 0, 0);
            while key < u64::MAX {
                let (end, count) = working.own_blocks(env, id(device), key).await.unwrap();
                assert!(end > key);
                (own, key, steps) = (own + count, end, steps + 1);
            }
            (own, steps)
        })
    }

    fn judge(&mut self, devices: &[u64]) {
        let all: BTreeMap<u64, Mappings> = devices
            .iter()
            .map(|&device| (device, self.read_all(id(device), 3).unwrap().into_iter().collect()))
            .collect();
        let mut users: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        for (device, mappings) in &all {
            for mapping in mappings.values() {
                users.entry(mapping.block.0).or_default().insert(*device);
            }
        }
        for &one in devices {
            for &other in devices {
                let at = |device: u64, key| all[&device].get(&key).map(|mapping| mapping.block);
                let expected: Vec<u64> =
                    (0..KEYS).filter(|key| at(one, *key) != at(other, *key)).collect();
                assert_eq!(self.differences([one, other]).0, expected, "{one} and {other}");
            }
            let alone = all[&one].values().filter(|mapping| users[&mapping.block.0].len() == 1);
            assert_eq!(self.own(one).0, alone.count() as u64, "device {one}");
        }
    }
}

fn snapshot(test: &mut StoreFixture, origin: u64, new: u64) {
    test.working().create_snapshot(DeviceId::new(origin).unwrap(), id(new)).unwrap();
    test.commit();
}

#[test]
fn differences_and_what_is_alone_agree_with_the_mappings_in_full() {
    for seed in 0..8 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut test = StoreFixture::seeded(seed, 4000, 200_000);
        test.run(async |env, working| working.create_device(env, id(0))).unwrap();
        test.commit();
        test.fill(0, 0, 1, rng.u64(1..8000));
        let mut devices = vec![0];
        for new in 1..6 {
            snapshot(&mut test, *rng.choice(&devices).unwrap(), new);
            devices.push(new);
            for _ in 0..rng.u64(0..3) {
                let device = *rng.choice(&devices).unwrap();
                let (stride, count) = (rng.u64(1..4), rng.u64(1..1500));
                test.fill(device, rng.u64(0..KEYS - 4 * 1500), stride, count);
                let cut = rng.u64(0..KEYS);
                let mapped = test.read_all(id(device), 3).unwrap().into_iter().map(|(key, _)| key);
                let gone = mapped.filter(|key| (cut..cut + 300).contains(key));
                let gone: Vec<_> = gone.map(|key| (key, None)).collect();
                test.run(async move |env, working| working.apply(env, id(device), &gone).await)
                    .unwrap();
                test.commit();
            }
        }
        test.judge(&devices);
    }
}

#[test]
fn what_is_shared_is_passed_over() {
    let mut test = StoreFixture::fresh(4000, 200_000);
    test.run(async |env, working| working.create_device(env, id(0))).unwrap();
    test.fill(0, 0, 1, 100_000);
    let (own, steps) = test.own(0);
    assert_eq!(own, 100_000);
    assert!(steps < 20, "leaves below one node are read together: {steps} steps");
    snapshot(&mut test, 0, 1);
    assert_eq!(test.own(0), (0, 1));
    test.fill(0, 50_000, 1, 1);
    let (changed, steps) = test.differences([0, 1]);
    assert_eq!(changed, [50_000]);
    assert!(steps < 10, "two ways down, and not the tree: {steps} steps");
    assert_eq!(test.own(1).0, 1);
}
