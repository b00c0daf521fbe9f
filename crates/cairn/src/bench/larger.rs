//! Part of `bench writecache`: a working set larger than the cache, beside the bare origin.
//!
//! The cache has been filled with dirty blocks before each round. Writeback goes on meanwhile, on
//! the same reactor: once without pausing, once as by default, when it waits while writes go
//! around the cache.

use std::sync::Arc;

use cairn_backends::MemoryDisk;
use cairn_block::{Disk, Op, SectorCount};

use super::cachebed::{CacheBed, touch};
use super::load::{Job, run as run_job, sequential, shuffled};
use super::row::{Report, Row, Samples};
use super::sample::{Subject, interleave};
use super::{Settings, image};
use crate::failure::Outcome;

const BLOCK_BYTES: u32 = 4096;
const MIB: u64 = 1 << 20;
const KIB: usize = 1 << 10;

/// Adds the rows.
///
/// # Errors
/// A disk or a cache cannot be made or used.
pub fn run(settings: &Settings, report: &mut Report) -> Outcome<()> {
    let (cache_bytes, origin_bytes) =
        (settings.pick(64 * MIB, 2 * MIB), settings.pick(256 * MIB, 8 * MIB));
    let origin: Arc<dyn Disk> = Arc::new(MemoryDisk::new(SectorCount::of_bytes(origin_bytes))?);
    let cache = CacheBed::make(cache_bytes, origin)?;
    let bare = cache.bed.memory("bare", origin_bytes)?;
    touch(&cache.bed, &bare)?;
    let geometry = cache.geometry(BLOCK_BYTES)?;
    // Slots hold blocks that lie far from each other: nothing merges on its way home.
    let apart = origin_bytes / cache_bytes;
    let full = Arc::new(image::make(&geometry, |slot| Some(slot * apart)));
    for (mode, options) in [("no_pause", "2 pause_writeback 0"), ("default", "0")] {
        for order in ["sequential", "random"] {
            for bytes in [4 * KIB, 64 * KIB, 512 * KIB] {
                let places = match order {
                    "random" => shuffled(origin_bytes, bytes, 8),
                    _ => sequential(origin_bytes, bytes),
                };
                let job = Job::new(Op::Write, bytes, places);
                let jobs = std::slice::from_ref(&job);
                let subjects: Vec<Subject<'_, f64>> = vec![
                    Box::new(|| Ok(run_job(&cache.bed, &bare, &job)?.us_each(job.requests()))),
                    Box::new(|| {
                        let measured = cache.measure(&geometry, &full, options, jobs)?;
                        Ok(measured.took[0].us_each(job.requests()))
                    }),
                ];
                let taken = interleave(settings.runs, subjects)?;
                let [bare, cached]: [Samples; 2] =
                    std::array::from_fn(|index| Samples(taken[index].clone()));
                let row = Row::new("larger", cached, "us/write").with("writeback", mode);
                report.push(row.with("order", order).with("bytes", bytes).against(&bare));
            }
        }
    }
    Ok(())
}
