//! Part of `bench writecache`: a working set larger than the cache on a simulated slow drive, in
//! virtual time.
//!
//! The origin is a spindle ([`Spindle::NEARLINE`]) of 64 GiB, the cache a solid-state drive. The
//! random working set is scattered over the whole origin, as the blocks of a large volume are;
//! the sequential one lies together. A round is a seed.

use std::sync::Arc;

use cairn_block::{Disk, Op, Registry, SectorCount, Table, TableContext, TableLine, TargetTypes};
use cairn_outcome::failure::{Outcome, wrong};
use cairn_sim::{DriveModel, DriveOptions, Image, SimWorld, Spindle};

use super::largercase::{Case, MIB, PATTERNS, SIZES, WRITEBACKS};
use super::load::shuffled;
use super::row::{Report, Samples};
use super::settings::Settings;
use super::simload;

const ORIGIN_BYTES: u64 = 64 << 30;
/// Writes in flight.
const DEPTH: usize = 32;

/// Adds the rows.
///
/// # Errors
/// A write failed.
pub fn run(settings: &Settings, report: &mut Report) -> Outcome<()> {
    let cache_bytes = settings.pick(16 * MIB, MIB);
    for (writeback, options) in WRITEBACKS {
        for pattern in PATTERNS {
            for bytes in SIZES {
                let case = Case { disk: "slow", state: "steady", writeback, pattern, bytes };
                let mut taken = [Vec::new(), Vec::new()];
                for seed in 0..settings.runs as u64 {
                    let bare = Lab::new(seed, cache_bytes);
                    taken[0].push(bare.us_each(case, bare.origin.clone(), seed)?);
                    let cached = Lab::new(seed, cache_bytes);
                    let volume = cached.volume(options)?;
                    taken[1].push(cached.us_each(case, volume, seed)?);
                }
                let [bare, cached] = taken.map(Samples);
                case.tell(report, &cached, &bare);
            }
        }
    }
    Ok(())
}

/// A world with a slow drive and a fast one.
struct Lab {
    world: SimWorld,
    origin: Arc<dyn Disk>,
    span: u64,
}

impl Lab {
    fn new(seed: u64, cache_bytes: u64) -> Lab {
        let world = SimWorld::new(seed, 1);
        let spindle = DriveOptions {
            spindle: Some(Spindle::NEARLINE),
            volatile_cache: false,
            model: DriveModel { flush: std::time::Duration::from_micros(100), ..DriveModel::SLOW },
            ..DriveOptions::named("origin")
        };
        let blank = |bytes| Image::new(SectorCount::of_bytes(bytes));
        let origin = world.add_drive(spindle, blank(ORIGIN_BYTES));
        let fast = DriveOptions { volatile_cache: false, ..DriveOptions::named("cache") };
        world.add_drive(fast, blank(cache_bytes));
        Lab { world, origin, span: cache_bytes * 4 }
    }

    fn volume(&self, options: &str) -> Outcome<Arc<dyn Disk>> {
        let registry = Arc::new(Registry::new(Box::new(self.world.opener())));
        let volume = registry.create_volume("volume")?;
        let len = self.origin.sectors();
        let table = format!("0 {len} writecache s origin cache 4096 {options}");
        let lines = TableLine::parse_all(&table)?;
        let device = volume.clone();
        self.world.block_on(0, |env| async move {
            let types = TargetTypes::new(cairn_targets::types());
            let context = TableContext { types: &types, registry: &registry, read_only: false };
            device.load(Table::build(&env, &device, &lines, context).await?).await;
            device.resume(&env).await?.whole()
        })?;
        Ok(volume)
    }

    /// Writes the working set twice; virtual microseconds per write of the second time.
    fn us_each(&self, case: Case, disk: Arc<dyn Disk>, seed: u64) -> Outcome<f64> {
        let mut took = 0.0;
        for pass in 0..2 {
            let order = shuffled(self.span, case.bytes, 2 * seed + pass);
            let sectors = case.bytes as u64 / 512;
            let spread = ORIGIN_BYTES / self.span;
            let places: Arc<[u64]> = match case.pattern {
                "random" => order.iter().map(|place| place * spread).collect(),
                _ => (0..order.len() as u64).map(|piece| piece * sectors).collect(),
            };
            let began = self.world.now();
            simload::run(&self.world, &disk, (Op::Write, sectors), places.clone(), DEPTH)
                .map_err(|error| wrong("slow", "write", error, "success"))?;
            let micros = self.world.now().since(began).as_secs_f64() * 1e6;
            took = micros / places.len() as f64;
        }
        Ok(took)
    }
}
