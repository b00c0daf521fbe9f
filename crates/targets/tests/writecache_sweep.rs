//! How long a drain of scattered blocks takes, in virtual time, on one simulated spindle and on two
//! of them one after another.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::{
    Disk, Env, Io, MappedDevice, Registry, Sector, SectorCount, SectorRange, Table, TableContext,
    TableLine, TargetTypes,
};
use cairn_sim::{DriveOptions, Image, SimWorld, Spindle};

/// Of the origin.
const SECTORS: u64 = 1 << 21;
const BLOCKS: usize = 10_000;

async fn load(env: &Env, registry: &Arc<Registry>, device: &Arc<MappedDevice>, table: &str) {
    let lines = TableLine::parse_all(table).expect("a table");
    let types = TargetTypes::new(cairn_targets::types());
    let context = TableContext { types: &types, registry, read_only: false };
    let table = Table::build(env, device, &lines, context).await.expect("it fits");
    device.load(table).await;
    device.resume(env).await.expect("the drives are well").whole().expect("nothing is lost");
}

/// Writes blocks anywhere in the cache and drains them to spindles of equal size, which lie one
/// after another. Returns the time of the drain.
fn drain(spindles: u64) -> Duration {
    let world = SimWorld::new(11, 1);
    let part = SECTORS / spindles;
    let mut origin = String::new();
    for number in 0..spindles {
        let name = format!("spindle{number}");
        let spindle = Some(Spindle::NEARLINE);
        let options = DriveOptions { spindle, volatile_cache: false, ..DriveOptions::named(&name) };
        world.add_drive(options, Image::new(SectorCount(part)));
        origin += &format!("{} {part} linear {name} 0\n", number * part);
    }
    world.add_drive(DriveOptions::named("cache"), Image::new(SectorCount::of_bytes(48 << 20)));
    let registry = Arc::new(Registry::new(Box::new(world.opener())));
    let [lower, volume] =
        ["origin", "volume"].map(|name| registry.create_volume(name).expect("a name"));
    let cached = format!(
        "0 {SECTORS} writecache s @origin cache 4096 4 high_watermark 100 low_watermark 99"
    );
    let device = volume.clone();
    world.block_on(0, |env| async move {
        load(&env, &registry, &lower, &origin).await;
        load(&env, &registry, &device, &cached).await;
        let disk: Arc<dyn Disk> = device;
        let mut places: Vec<u64> = (0..SECTORS).step_by(16).collect();
        fastrand::Rng::with_seed(1).shuffle(&mut places);
        for &place in &places[..BLOCKS] {
            let range = SectorRange::new(Sector(place), SectorCount(8));
            let write = Io::write(range, env.segs(range.count));
            env.io(&disk, write).await.expect("the drives are well");
        }
    });
    let ended = Rc::new(Cell::new(false));
    let target = volume.live_table().expect("a table").lines()[0].target.clone();
    let (env, place, began) = (world.env(0).clone(), ended.clone(), world.now());
    world.env(0).spawn(async move {
        target.message(&env, &["flush"]).await.expect("everything comes home");
        place.set(true);
    });
    world.run_until(|| ended.get());
    let took = world.now().since(began);
    world.block_on(0, |env| async move { volume.remove(&env).await.expect("it is idle") });
    took
}

#[test]
fn a_drain_moves_the_arm_over_the_origin_once_and_both_of_two_spindles_at_a_time() {
    let [one, two] = [1, 2].map(drain);
    println!("{BLOCKS} blocks: {one:?} on one spindle, {two:?} on two");
    // In batches of 8 MiB, each in the order of the origin, it took 22.8 s, and 23.6 s on two.
    let block = one / BLOCKS as u32;
    assert!(block < Duration::from_millis(1), "{block:?} each");
    assert!(two.as_secs_f64() < one.as_secs_f64() * 0.6, "{two:?} on two spindles, {one:?} on one");
}
