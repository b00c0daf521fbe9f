//! Part of `bench remote`: a write cache in front of an NBD server (nbdkit's memory plugin, a unix
//! socket) beside the same cache in front of a disk in memory. Both caches are in memory.
//!
//! The cache holds the whole span before each job, committed, and has room for all of it once more:
//! no request of a job needs the origin. The jobs: reads and writes of 4 KiB, 32 at a time and one
//! alone, and writes with a flush after every 32, which makes the cache commit.

use std::sync::Arc;

use cairn_backends::{DeviceOpener, MemoryDisk};
use cairn_block::{Disk, Op, Opener, SectorCount};
use cairn_outcome::failure::Outcome;

use super::cachefixture::{CacheFixture, NO_WRITEBACK};
use super::clock::Took;
use super::gave::{Gave, tell};
use super::image;
use super::load::{Job, scattered, sequential};
use super::peers::{Folder, Peer, Server};
use super::row::{Report, Row};
use super::sample::{Subject, interleave};
use super::settings::Settings;

const MIB: u64 = 1 << 20;
const BLOCK: usize = 4 << 10;
/// Bytes of each write that fills the cache.
const FILL: usize = 64 << 10;
/// Writes between two flushes.
const FLUSH_EVERY: usize = 32;
const ORIGINS: [&str; 2] = ["nbd", "memory"];

/// What is done to blocks that the cache holds.
#[derive(Clone, Copy)]
struct Case {
    what: &'static str,
    op: Op,
    depth: usize,
    flushes: bool,
}

const CASES: [Case; 5] = [
    Case { what: "write hit", op: Op::Write, depth: 32, flushes: false },
    Case { what: "read hit", op: Op::Read, depth: 32, flushes: false },
    Case { what: "write hit", op: Op::Write, depth: 1, flushes: false },
    Case { what: "read hit", op: Op::Read, depth: 1, flushes: false },
    Case { what: "write hit, flushed", op: Op::Write, depth: 32, flushes: true },
];

/// Adds the rows.
///
/// # Errors
/// The server or a cache failed.
pub fn run(name: &'static str, settings: &Settings, report: &mut Report) -> Outcome<()> {
    let (folder, span) = (Folder::make()?, settings.pick(64 * MIB, 2 * MIB));
    let Some(server) = Server::start(Peer::Nbdkit, &folder, span * 2)? else {
        report.note(format!("{name}: the write cache is left out: needs nbdkit"));
        return Ok(());
    };
    let remote = DeviceOpener::default().open(&server.uri, false, Arc::default())?;
    let local: Arc<dyn Disk> = Arc::new(MemoryDisk::new(SectorCount::of_bytes(span * 2))?);
    let make = |origin| CacheFixture::make(span * 3, origin);
    let caches = [make(remote)?, make(local)?];
    for case in CASES {
        let count = if case.depth == 1 { 50_000 } else { 200_000 };
        let jobs = &case.jobs(span, settings.pick(count, 5_000));
        let subject = |cache| -> Subject<'_, Gave> { Box::new(move || measure(cache, jobs)) };
        let taken = interleave(settings.runs, caches.iter().map(subject).collect())?;
        tell(report, ORIGINS, &taken, |value, unit, origin| {
            Row::new(name, value, unit)
                .with("cache", case.what)
                .with("depth", case.depth as u64)
                .with("origin", origin)
        });
    }
    Ok(())
}

impl Case {
    /// What fills the cache, then so many requests.
    fn jobs(self, span: u64, requests: usize) -> Vec<Job> {
        let places = scattered(0, span, BLOCK, requests, 7);
        let pieces = places.chunks(if self.flushes { FLUSH_EVERY } else { requests });
        let job = |piece: &[u64]| Job {
            depth: self.depth,
            turn: self.depth,
            flush: self.flushes,
            ..Job::new(self.op, BLOCK, piece.into())
        };
        let fill = Job::new(Op::Write, FILL, sequential(span, FILL)).flushed();
        std::iter::once(fill).chain(pieces.map(job)).collect()
    }
}

/// Does the jobs on a fresh cache. Answers what all but the first gave.
fn measure(cache: &CacheFixture, jobs: &[Job]) -> Outcome<Gave> {
    let geometry = cache.geometry(BLOCK as u32)?;
    let fresh = Arc::new(image::make(&geometry, |_| None));
    let measured = cache.measure(&geometry, &fresh, NO_WRITEBACK, jobs)?;
    let sum = |all: Took, took: &Took| Took {
        processor: all.processor + took.processor,
        wall: all.wall + took.wall,
    };
    let took = measured.took[1..].iter().fold(Took::default(), sum);
    Ok(Gave::of(took, jobs[1..].iter().map(Job::requests).sum()))
}
