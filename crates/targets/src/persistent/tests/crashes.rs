//! Power cuts at every step: what is left is the last acknowledged state or the one that was being
//! committed, whole, with exact counts; and the pool goes on from there, over several lives.
//!
//! `CAIRN_CUTS` says how many, `CAIRN_CUT` picks one.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use cairn_block::{Disk, Env, SectorCount};
use cairn_format::thin::{DataBlockSize, Mapping, Opening};
use cairn_sim::{Cut, CutWhen, Image, Stopped};

use super::fixture::{holes, id, mapping, world};
use crate::persistent::canary::{Bug, plant};
use crate::persistent::model::{Mappings, audit};
use crate::persistent::{Error, Options, Store, Working};

const CUTS: u64 = 150;
const LIVES: u64 = 4;
const METADATA_BLOCKS: u64 = 400;
const DATA_BLOCKS: u64 = 6000;

/// Devices by id, and those of the metadata snapshot.
type State = (BTreeMap<u64, Mappings>, Option<BTreeMap<u64, Mappings>>);

/// States in the order in which they were to be committed; the first is durable.
#[derive(Default)]
struct Record {
    states: Vec<State>,
    acknowledged: usize,
}

fn mappings(
    devices: BTreeMap<u64, (cairn_format::thin::DeviceDetails, Mappings)>,
) -> BTreeMap<u64, Mappings> {
    devices.into_iter().map(|(id, (_, mappings))| (id, mappings)).collect()
}

/// What an image holds; nothing if it is blank.
fn state_of(image: &Image) -> State {
    let bytes = image.to_vec();
    if bytes[..4096].iter().all(|&byte| byte == 0) {
        return State::default();
    }
    let found = audit(&bytes);
    (mappings(found.devices), found.held.map(mappings))
}

/// Random changes, and the state that they lead to.
async fn change(
    env: &Env,
    working: &mut Working,
    rng: &mut fastrand::Rng,
    (mut devices, mut held): State,
) -> Result<State, Error> {
    for _ in 0..rng.u32(1..5) {
        let device = rng.u64(0..4);
        match (rng.u32(..12), devices.get_mut(&device)) {
            (0 | 1, _) if working.reserve_metadata_snap().is_ok() => held = Some(devices.clone()),
            (0 | 1, _) if working.release_metadata_snap(env).await.is_ok() => held = None,
            (_, None) => match devices.iter().next().map(|(id, own)| (*id, own.clone())) {
                Some((origin, own)) if rng.bool() => {
                    working.create_snapshot(id(origin), id(device))?;
                    devices.insert(device, own);
                }
                _ => {
                    working.create_device(env, id(device))?;
                    devices.insert(device, Mappings::new());
                }
            },
            (3, Some(_)) => {
                working.delete_device(env, id(device)).await?;
                devices.remove(&device);
            }
            (4 | 5, Some(own)) => {
                let (start, len) = (rng.u64(..1500), rng.u64(1..900));
                own.retain(|key, _| !(start..start + len).contains(key));
                working.apply(env, id(device), &holes(start..start + len)).await?;
            }
            (_, Some(own)) => {
                let changes = puts(working, rng);
                own.extend(changes.iter().map(|(key, own)| (*key, own.expect("it is mapped"))));
                working.apply(env, id(device), &changes).await?;
            }
        }
    }
    Ok((devices, held))
}

fn puts(working: &Working, rng: &mut fastrand::Rng) -> Vec<(u64, Option<Mapping>)> {
    let (start, stride, count) = (rng.u64(..1500), rng.u64(1..4), rng.u64(1..500));
    let runs = working.store().data().take(count);
    let blocks = runs.into_iter().flat_map(|run| run.blocks());
    let put = |(number, block): (u64, cairn_format::thin::DataBlock)| {
        (start + number * stride, Some(mapping(block.0, working.time())))
    };
    (0..).zip(blocks).map(put).collect()
}

/// One life: opens, and commits changes until the power goes.
async fn live(
    env: Env,
    disk: Arc<dyn Disk>,
    mut rng: fastrand::Rng,
    record: Rc<RefCell<Record>>,
) -> Result<(), Error> {
    if Store::look(&env, &disk).await? == Opening::Blank {
        let size = DataBlockSize::new(128).expect("64 KiB are a legal size");
        Store::format_fresh(&env, &disk, size).await?;
    }
    let (store, mut working) = Store::open(&env, &disk, Options::default()).await?;
    if working.data_blocks() == 0 {
        working.grow_data(DATA_BLOCKS)?;
    }
    for _ in 0..rng.u32(1..8) {
        let state = record.borrow().states.last().cloned().expect("there is a first one");
        let changed = match change(&env, &mut working, &mut rng, state.clone()).await {
            Ok(changed) => changed,
            Err(Error::NoMetadataSpace) => {
                working.abort(&env).await?;
                continue;
            }
            Err(error) => return Err(error),
        };
        record.borrow_mut().states.push(changed);
        match working.commit(&env).await {
            Ok(freed) => {
                freed.into_iter().for_each(|run| store.data().release(run));
                let mut record = record.borrow_mut();
                record.acknowledged = record.states.len() - 1;
            }
            Err(Error::NoMetadataSpace) => {
                record.borrow_mut().states.pop();
                working.abort(&env).await?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Runs the lives of one cut; panics with the cut's number if one of them lost something.
fn cut(number: u64) {
    let mut rng = fastrand::Rng::with_seed(0x7415 ^ number);
    let mut image = Image::new(SectorCount(METADATA_BLOCKS * 8));
    for life in 0..LIVES {
        let record = Rc::new(RefCell::new(Record::default()));
        record.borrow_mut().states.push(state_of(&image));
        let sim = world(rng.u64(..), image);
        let when = if rng.bool() { CutWhen::Submitted } else { CutWhen::Completed };
        sim.cut_at(Cut { index: rng.u64(..60), when });
        let (disk, seed, own): (Arc<dyn Disk>, _, _) =
            (sim.drive("meta"), rng.fork(), record.clone());
        match sim.try_block_on(0, |env| live(env, disk, seed, own)) {
            Ok(result) => result.unwrap_or_else(|error| panic!("cut {number}.{life}: {error}")),
            Err(why) => assert_eq!(why, Stopped::PowerCut, "cut {number}.{life}"),
        }
        image = sim.images_after_power_cut(&mut rng).pop().expect("there is a drive").1;
        let found = state_of(&image);
        let record = record.borrow();
        let allowed = &record.states[record.acknowledged..];
        assert!(allowed.contains(&found), "cut {number}.{life}: neither the old state nor the new");
    }
}

fn number_of(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

#[test]
fn after_any_cut_the_old_or_the_new_state_is_there_whole() {
    match number_of("CAIRN_CUT") {
        Some(number) => cut(number),
        None => (0..number_of("CAIRN_CUTS").unwrap_or(CUTS)).for_each(cut),
    }
}

#[test]
fn the_power_cuts_detect_each_planted_bug() {
    for bug in [Bug::SuperblockBeforeFlush, Bug::ReuseBeforeCommit, Bug::ChangeInPlace] {
        plant(Some(bug));
        let caught = (0..400).any(|number| {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| cut(number))).is_err()
        });
        plant(None);
        assert!(caught, "{bug:?}");
    }
}
