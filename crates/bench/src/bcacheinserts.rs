//! The part of `bench bcache` that writes into the cache: what a write costs whose data becomes
//! dirty data, from its request to the durable entry of the journal with its key.
//!
//! Each place of the span once, in no order, 32 requests at a time, then a flush inside the
//! timing; in the background no data is written back. `op=insert`: nothing of the span is cached.
//! `op=overwrite`: all of it is, and its keys are durable. On a device in memory (`disk=memory`)
//! the baseline is the same job on a memory disk. On a device that forgets (`disk=null`) there are
//! so many extents that leaves follow several times, so that their cost is inside the timing.
//!
//! Figures are of the reactor's processor, and, with `of=wall`, of the wall's clock.

use std::sync::Arc;

use cairn_backends::{MemoryDisk, NullDisk};
use cairn_block::sync::atomic::Ordering;
use cairn_block::{ConfigError, ConfigKind, Disk, Op, SECTOR_BYTES, SectorCount};
use cairn_outcome::failure::Outcome;

use super::bcachefixture::{Backing, Cache, KEY, Remade, number};
use super::cachefixture::touch;
use super::clock::Took;
use super::load::{Job, run as run_job, shuffled};
use super::row::{Report, Row, Samples};
use super::sample::{Subject, interleave};
use super::settings::Settings;

const PHASES: [&str; 2] = ["insert", "overwrite"];

/// What is written.
#[derive(Clone, Copy)]
pub struct Load {
    /// Of the cache device: `memory` or `null`.
    pub disk: &'static str,
    /// Bytes of a request, and of all.
    pub bytes: usize,
    pub span: u64,
}

impl Load {
    /// The job of a phase.
    pub fn job(&self, seed: u64) -> Job {
        Job::new(Op::Write, self.bytes, shuffled(self.span, self.bytes, seed)).flushed()
    }
}

/// Sectors of a cache that takes all of a span as dirty data: half of it is.
fn cache_sectors(span: u64) -> u64 {
    (span * 2 / SECTOR_BYTES).next_multiple_of(1024) + (128 << 10)
}

/// A set whose volume has a span, and the cache device if it forgets its data.
pub struct Inserts {
    pub set: Remade,
    forgetful: Option<Arc<Cache>>,
}

impl Inserts {
    /// On so many reactors; the cache device is touched.
    ///
    /// # Errors
    /// There is no memory.
    pub fn make(reactors: u16, disk: &str, span: u64) -> Outcome<Inserts> {
        let backing = Arc::new(Backing::make(span / SECTOR_BYTES + KEY)?);
        let sectors = cache_sectors(span);
        let (cache, forgetful): (Arc<dyn Disk>, _) = if disk == "null" {
            let cache = Arc::new(Cache::make(sectors)?);
            (cache.clone(), Some(cache))
        } else {
            (Arc::new(MemoryDisk::new(SectorCount(sectors))?), None)
        };
        let set = Remade::make(reactors, cache.clone(), backing)?;
        if forgetful.is_none() {
            touch(&set.fixture, &cache)?;
        }
        Ok(Inserts { set, forgetful })
    }

    /// Makes the set and its volume, with nothing of the span.
    ///
    /// # Errors
    /// A step failed.
    pub fn serve(&self) -> Outcome<Arc<dyn Disk>> {
        self.forget(false);
        let volume = self.set.serve(&[])?;
        self.forget(true);
        Ok(volume)
    }

    fn forget(&self, forgets: bool) {
        if let Some(cache) = &self.forgetful {
            cache.forgets.store(forgets, Ordering::Relaxed);
        }
    }

    /// Both phases on a fresh set.
    fn measure(&self, load: Load) -> Outcome<Vec<Took>> {
        let volume = self.serve()?;
        let took = [5, 6].map(|seed| run_job(&self.set.fixture, &volume, &load.job(seed)));
        let dirty = number(volume.mapped().expect("it is a volume"), "dirty_data");
        self.set.end(volume)?;
        // The fixture writes a block, too.
        if dirty != load.span / SECTOR_BYTES + KEY {
            let detail = format!("dirty_data: found {dirty} sectors, expected all of the span");
            return Err(ConfigError::new(ConfigKind::System, "bench", detail));
        }
        took.into_iter().collect()
    }
}

/// Writes as often as the settings say.
///
/// # Errors
/// A set cannot be made, or a request failed.
pub fn run(name: &'static str, settings: &Settings, report: &mut Report) -> Outcome<()> {
    let load = |disk, bytes, real, quick| {
        let span = settings.pick(real, quick);
        Load { disk, bytes, span }
    };
    let loads = [
        load("memory", 4 << 10, 256 << 20, 4 << 20),
        load("memory", 512 << 10, 512 << 20, 4 << 20),
        load("null", 4 << 10, 2 << 30, 8 << 20),
    ];
    loads.into_iter().try_for_each(|load| run_with(load, name, settings, report))
}

fn run_with(
    load: Load,
    name: &'static str,
    settings: &Settings,
    report: &mut Report,
) -> Outcome<()> {
    let inserts = Inserts::make(1, load.disk, load.span)?;
    let fixture = &inserts.set.fixture;
    let bare: Arc<dyn Disk> = if load.disk == "null" {
        Arc::new(NullDisk::new(SectorCount::of_bytes(load.span)))
    } else {
        let bare = fixture.memory("bare", load.span)?;
        touch(fixture, &bare)?;
        bare
    };
    let subjects: Vec<Subject<'_, Vec<Took>>> = vec![
        Box::new(|| Ok(vec![run_job(fixture, &bare, &load.job(5))?])),
        Box::new(|| inserts.measure(load)),
    ];
    let taken = interleave(settings.runs, subjects)?;
    let requests = (load.span / load.bytes as u64) as f64;
    let samples = |subject: usize, phase: usize, of: fn(&Took) -> f64| {
        Samples(taken[subject].iter().map(|took| of(&took[phase]) * 1e6 / requests).collect())
    };
    let processor = |took: &Took| took.processor.as_secs_f64();
    let wall = |took: &Took| took.wall.as_secs_f64();
    for (phase, op) in PHASES.into_iter().enumerate() {
        let row = |value| {
            let row = Row::new(name, value, "us/request").with("what", "write into the cache");
            row.with("op", op).with("disk", load.disk).with("bytes", load.bytes)
        };
        let (bare, ours) = (samples(0, 0, processor), samples(1, phase, processor));
        report.push(row(ours.clone()).against(&bare));
        let added = ours.zip(&bare, |ours, bare| ours - bare);
        report.push(row(added).with("added", "by the target"));
        report.push(row(samples(1, phase, wall)).with("of", "wall").against(&samples(0, 0, wall)));
    }
    Ok(())
}
