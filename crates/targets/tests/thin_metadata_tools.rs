//! Metadata that we make, in the eyes of Debian's thin-provisioning-tools: `thin_check` finds
//! nothing wrong with it, and `thin_dump` tells the mappings that were put into it. Without the
//! tools the tests say so and pass, unless `CAIRN_TEST_NO_SKIP=1`.

mod foreign;

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_block::{Disk, Env, SectorCount};
use cairn_format::thin::{DataBlockSize, DeviceId, Mapping};
use cairn_sim::{DriveOptions, Image, SimWorld};
use cairn_targets::persistent::{Error, Options, Store, Working};

type Devices = BTreeMap<u64, BTreeMap<u64, Mapping>>;

fn id(device: u64) -> DeviceId {
    DeviceId::new(device).expect("a small number")
}

/// Random changes in several commits; a metadata snapshot in between, if `held`.
async fn make(env: Env, disk: Arc<dyn Disk>, seed: u64, held: bool) -> Result<Devices, Error> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let size = DataBlockSize::new(128).expect("64 KiB are a legal size");
    Store::format_fresh(&env, &disk, size).await?;
    let (store, mut working) = Store::open(&env, &disk, Options::default()).await?;
    working.grow_data(50_000)?;
    let mut devices = Devices::new();
    for round in 0..12 {
        for _ in 0..rng.u32(1..5) {
            change(&env, &mut working, &mut rng, &mut devices).await?;
        }
        let freed = working.commit(&env).await?;
        freed.into_iter().for_each(|run| store.data().release(run));
        if held && round == 6 {
            working.reserve_metadata_snap()?;
            working.commit(&env).await?;
        }
    }
    Ok(devices)
}

async fn change(
    env: &Env,
    working: &mut Working,
    rng: &mut fastrand::Rng,
    devices: &mut Devices,
) -> Result<(), Error> {
    let device = rng.u64(0..6);
    let Some(own) = devices.get_mut(&device) else {
        match devices.iter().next().map(|(id, own)| (*id, own.clone())) {
            Some((origin, own)) if rng.bool() => {
                working.create_snapshot(id(origin), id(device))?;
                devices.insert(device, own);
            }
            _ => {
                working.create_device(env, id(device))?;
                devices.insert(device, BTreeMap::new());
            }
        }
        return Ok(());
    };
    match rng.u32(..10) {
        0 => {
            working.delete_device(env, id(device)).await?;
            devices.remove(&device);
        }
        1 | 2 => {
            let (start, len) = (rng.u64(..6000), rng.u64(1..3000));
            own.retain(|key, _| !(start..start + len).contains(key));
            let holes: Vec<_> = (start..start + len).map(|block| (block, None)).collect();
            working.apply(env, id(device), &holes).await?;
        }
        _ => {
            let (start, stride, count) = (rng.u64(..6000), rng.u64(1..4), rng.u64(1..2000));
            let (runs, time) = (working.store().data().take(count), working.time());
            let blocks = runs.into_iter().flat_map(|run| run.blocks());
            let new =
                (0..).zip(blocks).map(|(n, block)| (start + n * stride, Mapping { block, time }));
            let new: BTreeMap<u64, Mapping> = new.collect();
            let changes: Vec<_> = new.iter().map(|(key, own)| (*key, Some(*own))).collect();
            own.extend(new);
            working.apply(env, id(device), &changes).await?;
        }
    }
    Ok(())
}

/// The value of an attribute of an XML element on one line.
fn attribute(line: &str, name: &str) -> u64 {
    let from = line.find(&format!(" {name}=\"")).expect(line) + name.len() + 3;
    let value = &line[from..];
    value[..value.find('"').expect(line)].parse().expect(line)
}

fn parse(xml: &str) -> Devices {
    let (mut devices, mut device) = (Devices::new(), 0);
    for line in xml.lines().map(str::trim) {
        if line.starts_with("<device") {
            device = attribute(line, "dev_id");
            devices.insert(device, BTreeMap::new());
            continue;
        }
        let (key, block, len) = if line.starts_with("<single_mapping") {
            (attribute(line, "origin_block"), attribute(line, "data_block"), 1)
        } else if line.starts_with("<range_mapping") {
            let length = attribute(line, "length");
            (attribute(line, "origin_begin"), attribute(line, "data_begin"), length)
        } else {
            continue;
        };
        let time = attribute(line, "time") as u32;
        let own = devices.get_mut(&device).expect("a mapping lies in a device");
        for n in 0..len {
            let block = cairn_format::thin::DataBlock(block + n);
            own.insert(key + n, Mapping { block, time });
        }
    }
    devices
}

#[test]
fn thin_check_and_thin_dump_agree_with_what_was_made() {
    for (seed, held) in (0..10).map(|seed| (seed, seed % 2 == 1)) {
        let sim = SimWorld::new(seed, 1);
        let image = Image::new(SectorCount(4096 * 8));
        let drive = sim.add_drive(DriveOptions::named("meta"), image);
        let disk: Arc<dyn Disk> = drive.clone();
        let made = sim.block_on(0, |env| make(env, disk, seed, held)).expect("there is room");
        let path = foreign::file(&drive.durable().to_vec());
        let tools = ["thin_check", "thin_dump"].map(|tool| foreign::run(tool, &path));
        std::fs::remove_file(path).expect("it was written");
        let [Some((sound, told)), Some((dumped, xml))] = tools else { return };
        assert!(sound, "seed {seed}: {told}");
        assert!(dumped, "seed {seed}: {xml}");
        assert!(parse(&xml) == made, "seed {seed}: thin_dump tells of other mappings");
    }
}
