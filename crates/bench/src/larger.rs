//! Part of `bench writecache`: a working set four times as large as the cache, beside the bare
//! origin.
//!
//! - `disk=memory`: everything in memory on one reactor, figures in processor time, writeback
//!   inside the timing.
//! - `disk=file`: cache and origin are files in one folder of the disk under the system's folder
//!   for temporary files, figures in wall time.
//! - `disk=slow`: a simulated solid-state drive before a simulated spindle, in virtual time
//!   ([`slow`](super::slow)).
//!
//! The working set is written once, which fills the cache and puts writeback to work, then once
//! more inside the timing: `pattern=sequential` in order, `pattern=random` each place once in
//! another order each time. `state=scattered` begins instead with a cache full of single blocks
//! that lie apart, every fourth of the working set: a large request goes in pieces.
//! `writeback=default` pauses while writes go around the cache, `no_pause` does not.

use std::sync::Arc;

use cairn_backends::{FileDisk, FileOptions, MemoryDisk};
use cairn_block::{Disk, Op, SectorCount};
use cairn_outcome::failure::{Outcome, system};

use super::cachefixture::{CacheFixture, touch};
use super::clock::Took;
use super::largercase::{Case, KIB, MIB, PATTERNS, SIZES, WRITEBACKS};
use super::load::{Job, run as run_job, sequential, shuffled};
use super::row::{Report, Samples};
use super::sample::{Subject, interleave};
use super::settings::Settings;
use super::{image, slow};

const BLOCK_BYTES: u32 = 4096;
/// The working set is so many times as large as the cache.
const TIMES: u64 = 4;

/// Adds the rows.
///
/// # Errors
/// A disk or a cache cannot be made or used.
pub fn run(settings: &Settings, report: &mut Report) -> Outcome<()> {
    in_memory(settings, report)?;
    on_files(settings, report)?;
    slow::run(settings, report)
}

/// A cache and its origin, which is the bare disk too, while the cache is not up.
struct Pair {
    cache: CacheFixture,
    origin: Arc<dyn Disk>,
    cache_bytes: u64,
}

fn in_memory(settings: &Settings, report: &mut Report) -> Outcome<()> {
    let cache_bytes = settings.pick(64 * MIB, 2 * MIB);
    let sectors = SectorCount::of_bytes(cache_bytes * TIMES);
    let origin: Arc<dyn Disk> = Arc::new(MemoryDisk::new(sectors)?);
    let cache = CacheFixture::make(cache_bytes, origin.clone())?;
    touch(&cache.fixture, &origin)?;
    let pair = Pair { cache, origin, cache_bytes };
    pair.run(settings, report, "memory", |took, requests| took.us_each(requests))
}

fn on_files(settings: &Settings, report: &mut Report) -> Outcome<()> {
    let parent = std::env::temp_dir();
    let failed = |error| system(parent.display().to_string(), "make a folder", error);
    let folder = Files(parent.join(format!("cairn-bench-files-{}", std::process::id())));
    std::fs::create_dir_all(&folder.0).map_err(failed)?;
    let cache_bytes = settings.pick(32 * MIB, 2 * MIB);
    let file = |name: &str, bytes: u64| -> Outcome<Arc<dyn Disk>> {
        let path = folder.0.join(name);
        let made = std::fs::File::create(&path).and_then(|file| file.set_len(bytes));
        made.map_err(|error| system(path.display().to_string(), "make a file", error))?;
        Ok(Arc::new(FileDisk::open(&path.to_string_lossy(), false, FileOptions::default())?))
    };
    let origin = file("origin", cache_bytes * TIMES)?;
    let cache = CacheFixture::of(file("cache", cache_bytes)?, origin.clone())?;
    // Blocks of a file that were never written cost more.
    touch(&cache.fixture, &origin)?;
    let pair = Pair { cache, origin, cache_bytes };
    let wall = |took: Took, requests: usize| took.wall.as_secs_f64() * 1e6 / requests as f64;
    pair.run(settings, report, "file", wall)
}

/// A folder that is gone when this is dropped.
struct Files(std::path::PathBuf);

impl Drop for Files {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

impl Pair {
    fn run(
        &self,
        settings: &Settings,
        report: &mut Report,
        disk: &'static str,
        us: impl Fn(Took, usize) -> f64,
    ) -> Outcome<()> {
        for (writeback, options) in WRITEBACKS {
            for pattern in PATTERNS {
                for bytes in SIZES {
                    let case = Case { disk, state: "steady", writeback, pattern, bytes };
                    self.measure(settings, report, case, options, &us)?;
                    if disk == "memory" && bytes > 4 * KIB {
                        let case = Case { state: "scattered", ..case };
                        self.measure(settings, report, case, options, &us)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn measure(
        &self,
        settings: &Settings,
        report: &mut Report,
        case: Case,
        options: &str,
        us: impl Fn(Took, usize) -> f64,
    ) -> Outcome<()> {
        let geometry = self.cache.geometry(BLOCK_BYTES)?;
        let span = self.cache_bytes * TIMES;
        let job = |seed| match case.pattern {
            "random" => Job::new(Op::Write, case.bytes, shuffled(span, case.bytes, seed)),
            _ => Job::new(Op::Write, case.bytes, sequential(span, case.bytes)),
        };
        let scattered = case.state == "scattered";
        let before = Arc::new(image::make(&geometry, |slot| scattered.then_some(slot * TIMES)));
        let jobs = if scattered { vec![job(2)] } else { vec![job(1), job(2)] };
        let timed = job(2);
        let subjects: Vec<Subject<'_, f64>> = vec![
            Box::new(|| {
                Ok(us(run_job(&self.cache.fixture, &self.origin, &timed)?, timed.requests()))
            }),
            Box::new(|| {
                let measured = self.cache.measure(&geometry, &before, options, &jobs)?;
                let last = measured.took.last().copied().unwrap_or_default();
                Ok(us(last, timed.requests()))
            }),
        ];
        let taken = interleave(settings.runs, subjects)?;
        let [bare, cached]: [Samples; 2] =
            std::array::from_fn(|index| Samples(taken[index].clone()));
        case.tell(report, &cached, &bare);
        Ok(())
    }
}
