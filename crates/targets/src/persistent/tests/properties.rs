//! Random steps against the reference model: after every commit the references are counted anew.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::fixture::{StoreFixture, id, mapping};
use crate::persistent::model::Mappings;
use crate::persistent::{Change, DataRun, Error};

const DATA_BLOCKS: u64 = 20_000;

#[derive(Clone, Debug)]
enum Step {
    Create(u64),
    Snapshot(u64, u64),
    Delete(u64),
    Put { device: u64, start: u64, count: u64, stride: u64 },
    Drop { device: u64, start: u64, count: u64, stride: u64 },
    Hold,
    Release,
    Grow(u64),
    Commit,
    Abort,
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let device = || 0u64..6;
    let keys = || (0u64..4000, 1u64..900, 1u64..4);
    prop_oneof![
        3 => device().prop_map(Step::Create),
        3 => (device(), device()).prop_map(|(from, new)| Step::Snapshot(from, new)),
        1 => device().prop_map(Step::Delete),
        8 => (device(), keys()).prop_map(|(device, (start, count, stride))| {
            Step::Put { device, start, count, stride }
        }),
        3 => (device(), keys()).prop_map(|(device, (start, count, stride))| {
            Step::Drop { device, start, count, stride }
        }),
        2 => (device(), 0u64..5000, 1u64..4000).prop_map(|(device, start, count)| {
            Step::Drop { device, start, count, stride: 1 }
        }),
        1 => Just(Step::Hold),
        1 => Just(Step::Release),
        1 => (1u64..20_000).prop_map(Step::Grow),
        5 => Just(Step::Commit),
        1 => Just(Step::Abort),
        1 => Just(Step::Reopen),
    ]
}

type Devices = BTreeMap<u64, Mappings>;

struct Comparison {
    test: StoreFixture,
    now: Devices,
    durable: Devices,
    held: Option<Devices>,
    durable_held: Option<Devices>,
    data_blocks: u64,
    durable_data_blocks: u64,
    time: u32,
    durable_time: u32,
    /// The blocks that commits are allowed to write.
    promised: u64,
    /// Taken and not known to be mapped in the durable state.
    taken: Vec<DataRun>,
}

impl Comparison {
    fn new(metadata_blocks: u64) -> Comparison {
        Comparison {
            test: StoreFixture::fresh(metadata_blocks, DATA_BLOCKS),
            now: Devices::new(),
            durable: Devices::new(),
            held: None,
            durable_held: None,
            data_blocks: DATA_BLOCKS,
            durable_data_blocks: DATA_BLOCKS,
            time: 0,
            durable_time: 0,
            promised: 0,
            taken: Vec::new(),
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Create(device) => self.create(device),
            Step::Snapshot(origin, new) => self.snapshot(origin, new),
            Step::Delete(device) => {
                let result = self
                    .test
                    .run(async move |env, working| working.delete_device(env, id(device)).await);
                assert_eq!(result.is_ok(), self.now.remove(&device).is_some());
            }
            Step::Put { device, start, count, stride } => self.put(device, start, count, stride),
            Step::Drop { device, start, count, stride } => self.drop(device, start, count, stride),
            Step::Hold => self.hold(),
            Step::Release => self.release(),
            Step::Grow(by) => {
                self.data_blocks += by;
                let blocks = self.data_blocks;
                self.test.working().grow_data(blocks).unwrap();
                self.promised += 40;
            }
            Step::Commit => self.commit(),
            Step::Abort => self.abort(),
            Step::Reopen => self.reopen(),
        }
    }

    fn create(&mut self, device: u64) {
        let result =
            self.test.run(async move |env, working| working.create_device(env, id(device)));
        assert_eq!(result.is_ok(), !self.now.contains_key(&device));
        self.now.entry(device).or_default();
        self.promised += 4;
    }

    fn snapshot(&mut self, origin: u64, new: u64) {
        let result =
            self.test.run(async move |_, working| working.create_snapshot(id(origin), id(new)));
        let possible = self.now.contains_key(&origin) && !self.now.contains_key(&new);
        assert_eq!(result.is_ok(), possible);
        if possible {
            let mappings = self.now[&origin].clone();
            self.now.insert(new, mappings);
            self.time += 1;
        }
        self.promised += 4;
    }

    fn promise(&mut self, blocks: u64, runs: u64) {
        let change = Change { blocks, runs, shared: true };
        self.promised += self.test.store.cost_of(change);
    }

    fn put(&mut self, device: u64, start: u64, count: u64, stride: u64) {
        if !self.now.contains_key(&device) {
            return;
        }
        let runs = self.test.store.data().take(count);
        let blocks = runs.iter().flat_map(|run| run.blocks());
        let mut changes = Vec::new();
        for (number, block) in (0..).zip(blocks) {
            changes.push((start + number * stride, Some(mapping(block.0, self.time))));
        }
        self.taken.extend(runs);
        self.promise(changes.len() as u64, if stride > 1 { changes.len() as u64 } else { 1 });
        self.apply(device, changes);
    }

    fn drop(&mut self, device: u64, start: u64, count: u64, stride: u64) {
        if !self.now.contains_key(&device) {
            return;
        }
        self.promise(count, if stride > 1 { count } else { 1 });
        self.apply(device, (0..count).map(|n| (start + n * stride, None)).collect());
    }

    fn apply(&mut self, device: u64, changes: Vec<(u64, Option<cairn_format::thin::Mapping>)>) {
        let own = self.now.get_mut(&device).unwrap();
        for (key, mapping) in &changes {
            match mapping {
                Some(mapping) => _ = own.insert(*key, *mapping),
                None => _ = own.remove(key),
            }
        }
        let result =
            self.test.run(async move |env, working| working.apply(env, id(device), &changes).await);
        self.or_abort(result);
    }

    fn hold(&mut self) {
        match self.test.working().reserve_metadata_snap() {
            Ok(()) => {
                assert!(self.held.is_none());
                self.held = Some(self.now.clone());
                self.promised += 1;
            }
            Err(Error::Held(_)) => assert!(self.held.is_some()),
            Err(error) => assert!(matches!(error, Error::Uncommitted), "{error}"),
        }
    }

    fn release(&mut self) {
        let result = self.test.run(async |env, working| working.release_metadata_snap(env).await);
        match result {
            Ok(()) => assert!(self.held.take().is_some()),
            Err(Error::NotHeld) => assert!(self.held.is_none()),
            Err(error) => assert!(matches!(error, Error::Uncommitted), "{error}"),
        }
    }

    fn or_abort(&mut self, result: Result<(), Error>) {
        if let Err(error) = result {
            assert!(matches!(error, Error::NoMetadataSpace), "{error}");
            self.abort();
        }
    }

    fn commit(&mut self) {
        let overhead = self.test.store.account.overhead.load(std::sync::atomic::Ordering::Relaxed);
        let changed = self.test.working().is_changed();
        match self.test.run(async |env, working| working.commit(env).await) {
            Ok(freed) => {
                let written = self.test.working().blocks_written();
                let promised = self.promised + overhead;
                assert!(!changed || written <= promised, "{written} blocks, {promised} promised");
                freed.into_iter().for_each(|run| self.test.store.data().release(run));
                self.durable.clone_from(&self.now);
                self.durable_held.clone_from(&self.held);
                (self.durable_time, self.durable_data_blocks) = (self.time, self.data_blocks);
                (self.promised, self.taken) = (0, Vec::new());
                self.check();
            }
            Err(error) => self.or_abort(Err(error)),
        }
    }

    fn abort(&mut self) {
        self.test.run(async |env, working| working.abort(env).await).unwrap();
        self.now.clone_from(&self.durable);
        self.held.clone_from(&self.durable_held);
        (self.time, self.data_blocks) = (self.durable_time, self.durable_data_blocks);
        self.promised = 0;
        for run in std::mem::take(&mut self.taken) {
            self.test.store.data().put_back(run);
        }
        self.check();
    }

    fn reopen(&mut self) {
        self.commit();
        let (store, working) =
            super::fixture::open(&self.test.sim, crate::persistent::Options::default()).unwrap();
        self.test.replace(store, working);
        self.check();
    }

    /// Everything, from the bytes and through the face for readers.
    fn check(&self) {
        let found = self.test.audit();
        let devices: Devices =
            found.devices.iter().map(|(id, (_, mappings))| (*id, mappings.clone())).collect();
        assert_eq!(devices, self.durable);
        let held = found.held.map(|held| {
            held.into_iter().map(|(id, (_, mappings))| (id, mappings)).collect::<Devices>()
        });
        assert_eq!(held, self.durable_held);
        assert_eq!(found.superblock.time, self.durable_time);
        for (device, mappings) in &self.durable {
            let read = self.test.read_all(id(*device), 3).unwrap();
            assert!(read.into_iter().eq(mappings.iter().map(|(key, own)| (*key, *own))));
        }
        let free = self.durable_data_blocks - found.data.len() as u64;
        assert_eq!(self.test.store.data().free(), free);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, max_shrink_iters: 300, ..Default::default() })]

    #[test]
    fn the_store_agrees_with_its_reference_model(steps in prop::collection::vec(step(), 1..60)) {
        let mut comparison = Comparison::new(4096);
        steps.iter().for_each(|step| comparison.step(step));
        comparison.commit();
    }

    #[test]
    fn a_small_device_runs_out_and_stays_sound(steps in prop::collection::vec(step(), 1..60)) {
        let mut comparison = Comparison::new(60);
        steps.iter().for_each(|step| comparison.step(step));
        comparison.commit();
    }
}
