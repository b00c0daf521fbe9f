//! Readers on other reactors while commits run: whatever they get belongs to one durable state.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::{Disk, Env, SectorCount};
use cairn_format::thin::DataBlockSize;
use cairn_sim::{DriveOptions, Effect, Fault, Image, OpSet, SimWorld};

use super::fixture::{holes, id, mapping};
use crate::persistent::canary::{Bug, plant};
use crate::persistent::model::Mappings;
use crate::persistent::{Error, Leaf, Options, Store, Working};

const KEYS: u64 = 6000;

/// Reads leaves at random until it is told to stop, and keeps them for the judge.
async fn read(env: Env, store: Arc<Store>, stop: Rc<Cell<bool>>, got: Rc<RefCell<Vec<Leaf>>>) {
    while !stop.get() {
        let (key, ahead) = (env.random_below(KEYS), env.random_below(6) as usize);
        let leaves = store.read_leaves(&env, id(0), key, ahead).await;
        got.borrow_mut().extend(leaves.expect("the drive is sound"));
        // What is cached takes no time; others must come to their turn.
        env.sleep(Duration::from_micros(5)).await;
    }
}

/// Changes and commits; returns the mappings of each generation.
async fn commit(env: Env, mut working: Working, seed: u64) -> Vec<(u64, Mappings)> {
    let (mut rng, store) = (fastrand::Rng::with_seed(seed), working.store().clone());
    let (mut now, mut states) = (Mappings::new(), Vec::new());
    for _ in 0..40 {
        let (start, stride, count) = (rng.u64(..KEYS / 2), rng.u64(1..5), rng.u64(1..700));
        let runs = store.data().take(count);
        let blocks = runs.into_iter().flat_map(|run| run.blocks());
        let own = (0..).zip(blocks).map(|(n, block)| (start + n * stride, mapping(block.0, 0)));
        let own: Mappings = own.collect();
        let changes: Vec<_> = own.iter().map(|(key, own)| (*key, Some(*own))).collect();
        now.extend(own);
        working.apply(&env, id(0), &changes).await.expect("there is room");
        let cut = rng.u64(..KEYS);
        now.retain(|key, _| !(cut..cut + 500).contains(key));
        working.apply(&env, id(0), &holes(cut..cut + 500)).await.expect("there is room");
        let freed = working.commit(&env).await.expect("the drive is sound");
        freed.into_iter().for_each(|run| store.data().release(run));
        states.push((store.generation(), now.clone()));
    }
    states
}

async fn prepare(env: Env, disk: Arc<dyn Disk>) -> Result<(Arc<Store>, Working), Error> {
    let size = DataBlockSize::new(128).expect("64 KiB are a legal size");
    Store::format_fresh(&env, &disk, size).await?;
    // A cache of next to nothing: most nodes are read from the drive.
    let options = Options { cache_bytes: 0, ..Options::default() };
    let (store, mut working) = Store::open(&env, &disk, options).await?;
    working.grow_data(40_000)?;
    working.create_device(&env, id(0))?;
    working.commit(&env).await?;
    Ok((store, working))
}

/// One world; panics if a reader got what never was.
fn readers_beside_commits(seed: u64) {
    let sim = SimWorld::new(seed, 3);
    // Barely more room than the trees need, so that blocks come back into use at once.
    let drive = sim.add_drive(DriveOptions::named("meta"), Image::new(SectorCount(240 * 8)));
    let disk: Arc<dyn Disk> = sim.drive("meta");
    let (store, working) = sim.block_on(0, |env| prepare(env, disk)).expect("it is blank");
    let first = (store.generation(), Mappings::new());
    // Some reads take longer than several commits.
    let effect = Effect::Delay(Duration::from_millis(40));
    let fault = Fault { ops: OpSet::READS, range: None, per_mille: 150, shots: None, effect };
    drive.faults().add(fault);
    let (stop, got) = (Rc::new(Cell::new(false)), Rc::new(RefCell::new(Vec::new())));
    let running = Rc::new(Cell::new(0));
    for reactor in [1, 1, 2, 2] {
        let (store, stop, got, running) =
            (store.clone(), stop.clone(), got.clone(), running.clone());
        running.set(running.get() + 1);
        sim.block_on(reactor, |env| {
            env.clone().spawn(async move {
                read(env, store, stop, got).await;
                running.set(running.get() - 1);
            });
            std::future::ready(())
        });
    }
    let mut states = sim.block_on(0, |env| commit(env, working, seed));
    states.push(first);
    stop.set(true);
    sim.run_until(|| running.get() == 0);
    assert!(got.borrow().len() > 100);
    for leaf in got.borrow().iter() {
        let state = states.iter().find(|(generation, _)| *generation == leaf.generation);
        let (_, state) = state.expect("every generation has a state");
        let expected = state.range(leaf.keys.clone()).map(|(key, own)| (*key, *own));
        assert!(expected.eq(leaf.mappings.iter().copied()), "seed {seed}: {:?}", leaf.keys);
    }
}

#[test]
fn readers_get_leaves_of_one_durable_state_while_commits_run() {
    (0..6).for_each(readers_beside_commits);
}

#[test]
fn the_test_detects_readers_that_do_not_look_twice() {
    plant(Some(Bug::ReadOnce));
    let caught = (0..200).any(|seed| {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| readers_beside_commits(seed)))
            .is_err()
    });
    plant(None);
    assert!(caught);
}
