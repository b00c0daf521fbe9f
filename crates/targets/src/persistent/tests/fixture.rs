//! A store on a simulated drive.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::{Disk, Env, SectorCount};
use cairn_format::thin::{DataBlock, DataBlockSize, DeviceId, Mapping};
use cairn_sim::{DriveModel, DriveOptions, Image, SimDrive, SimWorld};

use crate::persistent::model::{Found, audit};
use crate::persistent::{Error, Options, Store, Working};

pub fn id(id: u64) -> DeviceId {
    DeviceId::new(id).unwrap()
}

pub fn mapping(block: u64, time: u32) -> Mapping {
    Mapping { block: DataBlock(block), time }
}

/// Changes that unmap a range.
pub fn holes(blocks: Range<u64>) -> Vec<(u64, Option<Mapping>)> {
    blocks.map(|block| (block, None)).collect()
}

/// A drive that takes no time, so that many steps are quick to simulate.
pub fn world(seed: u64, image: Image) -> SimWorld {
    let sim = SimWorld::new(seed, 1);
    let mut options = DriveOptions::named("meta");
    let (fixed, flush) = (Duration::from_micros(1), Duration::from_micros(1));
    let (per_kib, jitter) = (Duration::ZERO, Duration::from_micros(3));
    options.model = DriveModel { fixed, flush, per_kib, jitter };
    sim.add_drive(options, image);
    sim
}

pub struct StoreFixture {
    pub sim: SimWorld,
    pub store: Arc<Store>,
    pub working: Option<Working>,
}

impl StoreFixture {
    /// A fresh pool on a device of `blocks` metadata blocks.
    pub fn fresh(blocks: u64, data_blocks: u64) -> StoreFixture {
        StoreFixture::seeded(1, blocks, data_blocks)
    }

    /// The same in a world of another seed.
    pub fn seeded(seed: u64, blocks: u64, data_blocks: u64) -> StoreFixture {
        let sim = world(seed, Image::new(SectorCount(blocks * 8)));
        let disk: Arc<dyn Disk> = sim.drive("meta");
        let size = DataBlockSize::new(128).unwrap();
        sim.block_on(0, |env| async move { Store::format_fresh(&env, &disk, size).await }).unwrap();
        let mut test = StoreFixture::open(sim).unwrap();
        test.run(async move |_, working| working.grow_data(data_blocks)).unwrap();
        test.commit();
        test
    }

    /// Opens the metadata of the drive.
    pub fn open(sim: SimWorld) -> Result<StoreFixture, Error> {
        let (store, working) = open(&sim, Options::default())?;
        Ok(StoreFixture { sim, store, working: Some(working) })
    }

    /// Goes on with a store that was opened anew.
    pub fn replace(&mut self, store: Arc<Store>, working: Working) {
        (self.store, self.working) = (store, Some(working));
    }

    pub fn drive(&self) -> Arc<SimDrive> {
        self.sim.drive("meta")
    }

    pub fn working(&mut self) -> &mut Working {
        self.working.as_mut().expect("it is taken for the time of a run only")
    }

    pub fn run<T: 'static>(
        &mut self,
        act: impl AsyncFnOnce(&Env, &mut Working) -> T + 'static,
    ) -> T {
        let mut working = self.working.take().expect("runs do not nest");
        let run = |env: Env| async move {
            let result = act(&env, &mut working).await;
            (result, working)
        };
        let (result, working) = self.sim.block_on(0, run);
        self.working = Some(working);
        result
    }

    /// Commits, and gives freed blocks back at once.
    pub fn commit(&mut self) {
        let freed = self.run(async |env, working| working.commit(env).await).unwrap();
        freed.into_iter().for_each(|run| self.store.data().release(run));
    }

    /// What the reference model finds on the drive.
    pub fn audit(&self) -> Found {
        audit(&self.drive().visible().to_vec())
    }

    /// All mappings of a device, through the face for readers.
    pub fn read_all(&self, device: DeviceId, ahead: usize) -> Result<Vec<(u64, Mapping)>, Error> {
        let store = self.store.clone();
        self.sim.block_on(0, move |env| async move {
            let (mut all, mut key) = (Vec::new(), 0);
            while key < u64::MAX {
                for leaf in store.read_leaves(&env, device, key, ahead).await? {
                    assert_eq!(leaf.keys.start, if key == 0 { 0 } else { key }, "no gaps");
                    assert!(leaf.mappings.iter().all(|(own, _)| leaf.keys.contains(own)));
                    key = leaf.keys.end;
                    all.extend(leaf.mappings);
                }
            }
            Ok(all)
        })
    }
}

pub fn open(sim: &SimWorld, options: Options) -> Result<(Arc<Store>, Working), Error> {
    let disk: Arc<dyn Disk> = sim.drive("meta");
    sim.block_on(0, |env| async move { Store::open(&env, &disk, options).await })
}
