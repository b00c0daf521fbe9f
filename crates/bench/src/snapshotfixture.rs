//! [`SnapshotFixture`]: an origin with a snapshot, made again for each measurement. All reactors
//! write to it at once, each in a slice of its own.
//!
//! The disks were touched before, so that no figure includes the cost of the first touch.

use std::sync::Arc;
use std::time::Duration;

use cairn_block::{Disk, Op, SECTOR_BYTES, Sector, SectorCount};
use cairn_outcome::failure::Outcome;
use cairn_targets::snapshot::{KIND, Locks, SINGLE_LOCK_KIND};

use super::clock::Took;
use super::fixture::Fixture;
use super::load::{Job, run, run_each, sequential, shuffled};

/// The benchmark, in its rows.
pub const NAME: &str = "snapshot";
pub const MIB: u64 = 1 << 20;

/// Which volume a phase uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Neither: the origin's device itself.
    Raw,
    /// The `snapshot-origin`.
    Origin,
    /// The `snapshot`.
    Snapshot,
}

/// What all workers do at once.
#[derive(Clone, Copy)]
pub struct Phase {
    /// Its name.
    pub what: &'static str,
    /// Where.
    pub on: Side,
    /// Reads or writes.
    pub op: Op,
    /// Bytes of each request.
    pub bytes: usize,
    /// How many requests each worker keeps in flight.
    pub depth: usize,
    /// In order, or all over the slice.
    pub in_order: bool,
    /// Bytes from one place to the next; each place has one request at its start.
    pub stride: usize,
}

impl Phase {
    /// Requests of 4 KiB all over the slice, 32 in flight.
    pub const fn small(what: &'static str, on: Side, op: Op) -> Phase {
        let bytes = 4 << 10;
        Phase { what, on, op, bytes, depth: 32, in_order: false, stride: bytes }
    }

    /// Requests of 256 KiB in order, 32 in flight.
    pub const fn large(what: &'static str, on: Side, op: Op) -> Phase {
        let bytes = 256 << 10;
        Phase { what, on, op, bytes, depth: 32, in_order: true, stride: bytes }
    }

    /// The same, one at a time.
    pub const fn one_by_one(self) -> Phase {
        Phase { depth: 1, ..self }
    }

    /// A job for each worker's slice of `span` bytes.
    pub fn jobs(&self, span: u64, workers: u16) -> Vec<Job> {
        let slice = span / u64::from(workers);
        let job = |worker: u64| {
            let places = match self.in_order {
                true => sequential(slice, self.stride),
                false => shuffled(slice, self.stride, worker + 5),
            };
            let start = worker * slice / SECTOR_BYTES;
            let places = places.iter().map(|place| start + place).collect();
            Job { depth: self.depth, turn: self.depth, ..Job::new(self.op, self.bytes, places) }
        };
        (0..u64::from(workers)).map(job).collect()
    }
}

/// What a phase took.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Requests per second of all workers together, by the wall's clock.
    pub per_s: f64,
    /// Microseconds of processor time for each request.
    pub us: f64,
}

impl Figures {
    /// Of so many requests, and what each worker took.
    pub fn of(requests: usize, took: &[Took]) -> Figures {
        let wall = took.iter().map(|took| took.wall).max().unwrap_or_default();
        let processor: Duration = took.iter().map(|took| took.processor).sum();
        Figures {
            per_s: requests as f64 / wall.as_secs_f64().max(1e-9),
            us: processor.as_nanos() as f64 / 1000.0 / requests as f64,
        }
    }
}

/// The snapshot of a measurement.
#[derive(Clone, Copy)]
pub struct Shape {
    /// `P` or `N`.
    pub store: &'static str,
    /// Sectors of a chunk.
    pub chunk: u64,
}

/// Reactors, and the disks of an origin and its snapshot.
pub struct SnapshotFixture {
    fixture: Fixture,
    /// How many reactors.
    pub workers: u16,
    origin: Arc<dyn Disk>,
    cow: Arc<dyn Disk>,
}

/// Bytes of a COW device that holds every chunk of an origin once.
pub fn cow_bytes(origin_bytes: u64) -> u64 {
    // Records and areas take less than a sixteenth for chunks of 512 bytes and more.
    origin_bytes + origin_bytes / 16 + (4 << 20)
}

impl SnapshotFixture {
    /// So many reactors with these disks.
    ///
    /// # Errors
    /// The system refused a thread or a ring.
    pub fn make(
        workers: u16,
        locks: Locks,
        origin: &Arc<dyn Disk>,
        cow: &Arc<dyn Disk>,
    ) -> Outcome<SnapshotFixture> {
        let mut types = cairn_targets::types();
        types.retain(|kind| kind.name() != "snapshot");
        let kind = if locks == Locks::Single { SINGLE_LOCK_KIND } else { KIND };
        types.push(Arc::new(kind));
        let fixture = Fixture::with(workers, types)?;
        fixture.put("origin", origin.clone());
        fixture.put("cow", cow.clone());
        Ok(SnapshotFixture { fixture, workers, origin: origin.clone(), cow: cow.clone() })
    }

    /// The reactors.
    pub fn fixture(&self) -> &Fixture {
        &self.fixture
    }

    /// Makes the snapshot anew and goes through the phases, each over `span` bytes.
    ///
    /// # Errors
    /// A step failed.
    pub fn measure(&self, shape: Shape, span: u64, phases: &[Phase]) -> Outcome<Vec<Figures>> {
        self.measure_with(shape, span, phases, |_begins| ())
    }

    /// The same, with a look whenever a phase begins (true) and ends.
    ///
    /// # Errors
    /// A step failed.
    pub fn measure_with(
        &self,
        shape: Shape,
        span: u64,
        phases: &[Phase],
        mut look: impl FnMut(bool),
    ) -> Outcome<Vec<Figures>> {
        let blank = Job::new(Op::WriteZeroes, 4 << 10, [Sector(0).0].into());
        run(&self.fixture, &self.cow, &blank)?;
        let (len, Shape { store, chunk }) = (self.origin.sectors(), shape);
        let line = format!("0 {len} snapshot origin cow {store} {chunk}");
        let snapshot = self.fixture.volume("snapshot", &line)?;
        let origin = self.fixture.volume("origin", &format!("0 {len} snapshot-origin origin"))?;
        let mut figures = Vec::new();
        for phase in phases {
            let disk = match phase.on {
                Side::Raw => &self.origin,
                Side::Origin => &origin,
                Side::Snapshot => &snapshot,
            };
            let jobs = phase.jobs(span, self.workers);
            look(true);
            let took = run_each(&self.fixture, disk, &jobs)?;
            look(false);
            figures.push(Figures::of(jobs.iter().map(Job::requests).sum(), &took));
        }
        drop((snapshot, origin));
        self.fixture.remove("origin")?;
        self.fixture.remove("snapshot")?;
        Ok(figures)
    }
}

/// The disks of a bench: origin and COW device, touched.
///
/// # Errors
/// There is not enough memory.
pub fn disks(kind: &str, bytes: u64) -> Outcome<[Arc<dyn Disk>; 2]> {
    let fixture = Fixture::make()?;
    let make = |bytes: u64| -> Outcome<Arc<dyn Disk>> {
        let sectors = SectorCount::of_bytes(bytes);
        if kind == "null" {
            return Ok(Arc::new(cairn_backends::NullDisk::new(sectors)));
        }
        let disk: Arc<dyn Disk> = Arc::new(cairn_backends::MemoryDisk::new(sectors)?);
        super::cachefixture::touch(&fixture, &disk)?;
        Ok(disk)
    };
    Ok([make(bytes)?, make(cow_bytes(bytes))?])
}
