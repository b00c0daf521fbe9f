//! The part of `bench bcache` that reads what is cached: what a hit adds to a request, by the
//! number of extents.
//!
//! The data comes from a disk that copies nothing, so that the figure is the program's own. Places
//! are at random among all extents; requests are started together, as those of a connection are, or
//! each alone.

use std::sync::Arc;

use cairn_backends::NullDisk;
use cairn_block::sync::atomic::Ordering;
use cairn_block::{Disk, Op, SECTOR_BYTES, SectorCount};
use cairn_format::bcache::Key;
use cairn_outcome::failure::Outcome;

use super::bcachefixture::{BACKING_FIRST, Cache, KEY, SET, make_backing, make_cache, sectors_for};
use super::fixture::Fixture;
use super::load::{Job, run as run_job, scattered};
use super::row::{Report, Row, Samples};
use super::sample::{Subject, interleave};
use super::settings::Settings;

/// Bytes of a read.
const BYTES: usize = (KEY * SECTOR_BYTES) as usize;

/// Reads as often as the settings say.
///
/// # Errors
/// A set cannot be made or opened, or a request failed.
pub fn run(name: &'static str, settings: &Settings, report: &mut Report) -> Outcome<()> {
    for &extents in settings.pick(&[100_000, 10_000_000][..], &[10_000]) {
        run_with(extents, name, settings, report)?;
    }
    Ok(())
}

/// A set of which every second place of 4 KiB is cached, and reads of these.
pub struct Hits {
    fixture: Fixture,
    volume: Arc<dyn Disk>,
    /// A disk that copies nothing, as the one that has the data.
    bare: Arc<dyn Disk>,
    places: Arc<[u64]>,
}

impl Hits {
    /// With so many extents, and so many reads at random places.
    ///
    /// # Errors
    /// A disk or the set cannot be made.
    pub fn make(extents: u64, requests: usize) -> Outcome<Hits> {
        let fixture = Fixture::make()?;
        let keys: Vec<Key> =
            (1..=extents).map(|n| Key::new(0, BACKING_FIRST + n * 2 * KEY, KEY)).collect();
        let cache = Arc::new(Cache::make(sectors_for(extents))?);
        fixture.put("cache", cache.clone());
        make_cache(&fixture, &(cache.clone() as Arc<dyn Disk>), SET, &keys)?;
        let sectors = extents * 2 * KEY;
        let backing = fixture.memory("backing", (BACKING_FIRST + sectors) * SECTOR_BYTES)?;
        make_backing(&fixture, &backing, SET)?;
        let volume = fixture.volume("volume", &format!("0 {sectors} bcache backing cache 0"))?;
        cache.forgets.store(true, Ordering::Relaxed);
        let bare: Arc<dyn Disk> = Arc::new(NullDisk::new(SectorCount(sectors)));
        // Of two places for an extent the second has one.
        let (start, span) = (KEY * SECTOR_BYTES, (sectors - KEY) * SECTOR_BYTES);
        let places = scattered(start, span, BYTES * 2, requests, 2);
        Ok(Hits { fixture, volume, bare, places })
    }

    /// Nanoseconds of a hit, so many of which are sent in each turn.
    ///
    /// # Errors
    /// A read failed.
    pub fn ns_each(&self, turn: usize) -> Outcome<f64> {
        self.on(&self.volume, turn)
    }

    fn on(&self, disk: &Arc<dyn Disk>, turn: usize) -> Outcome<f64> {
        let job = Job::new(Op::Read, BYTES, self.places.clone()).per_turn(turn);
        let job = Job { depth: turn, ..job };
        Ok(run_job(&self.fixture, disk, &job)?.ns_each(self.places.len()))
    }
}

fn run_with(
    extents: u64,
    name: &'static str,
    settings: &Settings,
    report: &mut Report,
) -> Outcome<()> {
    let hits = Hits::make(extents, settings.pick(1_000_000, 10_000))?;
    for turn in [1, 32] {
        let subjects: Vec<Subject<'_, f64>> =
            vec![Box::new(|| hits.on(&hits.bare, turn)), Box::new(|| hits.on(&hits.volume, turn))];
        let taken = interleave(settings.runs, subjects)?;
        let [bare, hit]: [Samples; 2] = std::array::from_fn(|at| Samples(taken[at].clone()));
        let row = |samples: Samples| {
            let row = Row::new(name, samples, "ns/request").with("extents", extents);
            row.with("what", "read hit").with("together", turn)
        };
        report.push(row(hit.clone()).against(&bare));
        report.push(row(hit.zip(&bare, |hit, bare| hit - bare)).with("added", "by the target"));
    }
    drop(hits.volume);
    hits.fixture.remove("volume")
}
