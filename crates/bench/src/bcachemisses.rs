//! The part of `bench bcache` that reads what is not cached: what a miss adds to a read of the
//! backing device, in a cache of many extents.
//!
//! Both devices copy nothing, so that the figure is the program's own. Each place has 4 KiB between
//! two extents and is read once, in no order. `fills=none`: the mode is `none`, in which the cache
//! answers what it has, and takes nothing. `fills=all`: what is read enters the cache, whose copy
//! and write are inside the figure; `filled` says how much of it entered.

use std::sync::Arc;

use cairn_block::sync::atomic::Ordering;
use cairn_block::{Disk, Op, SECTOR_BYTES};
use cairn_format::bcache::Key;
use cairn_outcome::failure::Outcome;

use super::bcachefixture::{BACKING_FIRST, Backing, Cache, KEY, Remade, number, sectors_for};
use super::load::{Job, run as run_job, shuffled};
use super::row::{Report, Row, Samples};
use super::sample::{Subject, interleave};
use super::settings::Settings;

/// Bytes of a read.
const BYTES: usize = (KEY * SECTOR_BYTES) as usize;

/// A set with an extent in each second place.
struct Misses {
    extents: u64,
    cache: Arc<Cache>,
    backing: Arc<dyn Disk>,
    set: Remade,
}

/// One round: nanoseconds for each read, and how many percent of them entered the cache.
struct Round {
    ns: f64,
    filled: f64,
}

impl Misses {
    fn make(extents: u64) -> Outcome<Misses> {
        // Room for as many extents again.
        let cache = Arc::new(Cache::make(sectors_for(extents * 4))?);
        let backing: Arc<dyn Disk> = Arc::new(Backing::make((extents * 2 + 1) * KEY)?);
        let set = Remade::make(1, cache.clone(), backing.clone())?;
        Ok(Misses { extents, cache, backing, set })
    }

    /// Each place without an extent, from this sector on.
    fn job(&self, first: u64, turn: usize) -> Job {
        let places = shuffled(self.extents * 2 * BYTES as u64, 2 * BYTES, 3);
        let places = places.iter().map(|place| first + place).collect();
        Job { depth: turn, ..Job::new(Op::Read, BYTES, places).per_turn(turn) }
    }

    fn bare(&self, turn: usize) -> Outcome<Round> {
        let job = self.job(BACKING_FIRST, turn);
        let took = run_job(&self.set.fixture, &self.backing, &job)?;
        Ok(Round { ns: took.ns_each(job.requests()), filled: 0.0 })
    }

    fn missed(&self, fills: bool, turn: usize) -> Outcome<Round> {
        let key = |n: u64| Key::new(0, BACKING_FIRST + (2 * n + 2) * KEY, KEY);
        let keys: Vec<Key> = (0..self.extents).map(key).collect();
        self.cache.forgets.store(false, Ordering::Relaxed);
        let volume = self.set.serve(&keys)?;
        self.cache.forgets.store(true, Ordering::Relaxed);
        if !fills {
            self.set.set("cache_mode none")?;
        }
        let written = || number(volume.mapped().expect("it is a volume"), "written");
        let (job, before) = (self.job(0, turn), written());
        let took = run_job(&self.set.fixture, &volume, &job)?;
        let filled = (written() - before) as f64 * 100.0 / (self.extents * KEY) as f64;
        self.set.end(volume)?;
        Ok(Round { ns: took.ns_each(job.requests()), filled })
    }
}

/// Reads as often as the settings say.
///
/// # Errors
/// A set cannot be made, or a request failed.
pub fn run(name: &'static str, settings: &Settings, report: &mut Report) -> Outcome<()> {
    let extents = settings.pick(100_000, 5_000);
    let misses = Misses::make(extents)?;
    for turn in [1, 32] {
        let subjects: Vec<Subject<'_, Round>> = vec![
            Box::new(|| misses.bare(turn)),
            Box::new(|| misses.missed(false, turn)),
            Box::new(|| misses.missed(true, turn)),
        ];
        let taken = interleave(settings.runs, subjects)?;
        let samples = |at: usize, of: fn(&Round) -> f64| {
            let rounds: &[Round] = &taken[at];
            Samples(rounds.iter().map(of).collect())
        };
        let ns = |at| samples(at, |round| round.ns);
        let row = |value, unit, fills: &str| {
            let row = Row::new(name, value, unit).with("extents", extents);
            row.with("what", "read miss").with("fills", fills).with("together", turn)
        };
        let bare = ns(0);
        for (at, fills) in [(1, "none"), (2, "all")] {
            report.push(row(ns(at), "ns/request", fills).against(&bare));
            let added = ns(at).zip(&bare, |miss, bare| miss - bare);
            report.push(row(added, "ns/request", fills).with("added", "by the target"));
        }
        let of_fill = ns(2).zip(&ns(1), |with, without| with - without);
        report.push(row(of_fill, "ns/request", "all").with("added", "by the fill"));
        let filled = samples(2, |round| round.filled);
        report.push(row(filled, "% of reads", "all").with("filled", true));
    }
    Ok(())
}
