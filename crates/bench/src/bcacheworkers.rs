//! The part of `bench bcache` with two workers on one set: hits and inserts of 4 KiB, on as many
//! reactors as there are workers, beside one worker that does all of it.
//!
//! `disk=null`: the cache device forgets its data, so that what the workers share of the program
//! tells. `disk=memory`: with the copies. How well two threads of the machine copy memory beside
//! each other is measured in the same rounds (`what=memcpy`), and each speed of two workers over
//! that of one is compared with it.

use std::sync::Arc;

use cairn_block::sync::atomic::Ordering;
use cairn_block::{Disk, Op, SECTOR_BYTES};
use cairn_format::bcache::Key;
use cairn_outcome::failure::Outcome;

use super::arena::{self, Arena};
use super::bcachefixture::{BACKING_FIRST, Backing, Cache, KEY, Remade, sectors_for};
use super::bcacheinserts::Inserts;
use super::load::{Job, run_each, scattered, shuffled};
use super::row::{Report, Row, Samples};
use super::sample::{Subject, interleave};
use super::settings::Settings;
use super::snapshotfixture::Figures;

/// Bytes of a request.
const BYTES: usize = (KEY * SECTOR_BYTES) as usize;
const WORKERS: [u16; 2] = [1, 2];

/// The places of a job in as many parts as there are workers, each of which has places all over.
fn parts(job: &Job, workers: u16) -> Vec<Job> {
    let part = |index: u16| {
        let own = job.places.iter().skip(usize::from(index)).step_by(usize::from(workers));
        Job { places: own.copied().collect(), ..job.clone() }
    };
    (0..workers).map(part).collect()
}

fn measure(set: &Remade, volume: &Arc<dyn Disk>, jobs: &[Job]) -> Outcome<Figures> {
    let took = run_each(&set.fixture, volume, jobs)?;
    Ok(Figures::of(jobs.iter().map(Job::requests).sum(), &took))
}

/// Copies without a disk, of the places of a job.
struct Copies {
    arenas: [Arena; 2],
    job: Job,
}

impl Copies {
    fn make(span: u64) -> Copies {
        let half = span / 2;
        let job = Job::new(Op::Write, BYTES, shuffled(half, BYTES, 3));
        Copies { arenas: [Arena::new(half), Arena::new(half)], job }
    }

    fn measure(&self, set: &Remade, workers: u16) -> Figures {
        let jobs = vec![self.job.clone(); usize::from(workers)];
        let took = arena::copy_each(&set.fixture, &self.arenas[..jobs.len()], &jobs);
        Figures::of(jobs.iter().map(Job::requests).sum(), &took)
    }
}

/// A set all of whose places are cached.
struct Hits {
    set: Remade,
    volume: Arc<dyn Disk>,
    jobs: Vec<Job>,
}

impl Hits {
    fn make(workers: u16, extents: u64, requests: usize) -> Outcome<Hits> {
        let cache = Arc::new(Cache::make(sectors_for(extents))?);
        let backing = Arc::new(Backing::make((extents * 2 + 1) * KEY)?);
        let set = Remade::make(workers, cache.clone(), backing)?;
        let key = |n: u64| Key::new(0, BACKING_FIRST + (2 * n + 1) * KEY, KEY);
        let keys: Vec<Key> = (0..extents).map(key).collect();
        let volume = set.serve(&keys)?;
        cache.forgets.store(true, Ordering::Relaxed);
        let places = scattered(0, extents * 2 * BYTES as u64, BYTES * 2, requests, 2);
        let jobs = parts(&Job::new(Op::Read, BYTES, places), workers);
        Ok(Hits { set, volume, jobs })
    }
}

/// Measures as often as the settings say.
///
/// # Errors
/// A set cannot be made, or a request failed.
pub fn run(name: &'static str, settings: &Settings, report: &mut Report) -> Outcome<()> {
    let extents = settings.pick(100_000, 5_000);
    let requests = settings.pick(1_000_000, 10_000);
    let hits = |workers| Hits::make(workers, extents, requests);
    let hits = [hits(1)?, hits(2)?];
    let span = settings.pick(128 << 20, 4 << 20);
    let copies = Copies::make(span);
    let mut inserts = Vec::new();
    for disk in ["null", "memory"] {
        for workers in WORKERS {
            inserts.push((disk, workers, Inserts::make(workers, disk, span)?));
        }
    }
    let mut subjects: Vec<Subject<'_, Figures>> = Vec::new();
    let mut whats = vec![("memcpy", "none"), ("read hit", "null")];
    for (own, workers) in hits.iter().zip(WORKERS) {
        let copies = &copies;
        subjects.push(Box::new(move || Ok(copies.measure(&own.set, workers))));
    }
    for own in &hits {
        subjects.push(Box::new(|| measure(&own.set, &own.volume, &own.jobs)));
    }
    for (disk, workers, own) in &inserts {
        if *workers == 1 {
            whats.push(("insert", *disk));
        }
        let jobs = parts(&Job::new(Op::Write, BYTES, shuffled(span, BYTES, 5)).flushed(), *workers);
        subjects.push(Box::new(move || {
            let volume = own.serve()?;
            let figures = measure(&own.set, &volume, &jobs)?;
            own.set.end(volume)?;
            Ok(figures)
        }));
    }
    let taken = interleave(settings.runs, subjects)?;
    for (index, (what, disk)) in whats.into_iter().enumerate() {
        tell(name, report, (what, disk), &taken[2 * index..2 * index + 2], &taken[..2]);
    }
    hits.into_iter().try_for_each(|own| own.set.end(own.volume))
}

/// The rows of what one worker and two did, beside what one and two did that only copied.
fn tell(
    name: &'static str,
    report: &mut Report,
    (what, disk): (&str, &str),
    taken: &[Vec<Figures>],
    copied: &[Vec<Figures>],
) {
    let per_s = |of: &[Figures]| Samples(of.iter().map(|figures| figures.per_s).collect());
    let us = |of: &[Figures]| Samples(of.iter().map(|figures| figures.us).collect());
    let scaling = |of: &[Vec<Figures>]| per_s(&of[1]).zip(&per_s(&of[0]), |two, one| two / one);
    let row = |value, unit| {
        let row = Row::new(name, value, unit).with("what", what).with("disk", disk);
        row.with("bytes", BYTES).with("workers", 2)
    };
    let speed = row(per_s(&taken[1]), "requests/s").with("beside", "one_worker");
    report.push(speed.against(&per_s(&taken[0])));
    let cost = row(us(&taken[1]), "us/request").with("beside", "one_worker");
    report.push(cost.against(&us(&taken[0])));
    if what != "memcpy" {
        let scaled = row(scaling(taken), "of one_worker").with("beside", "memcpy");
        report.push(scaled.against(&scaling(copied)));
    }
}
