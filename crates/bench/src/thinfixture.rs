//! [`ThinFixture`]: a pool, made again for each measurement, with a volume that all reactors use
//! at once, each in a slice of its own.
//!
//! The disks were touched before, so that no figure includes the cost of the first touch.

use std::sync::Arc;

use cairn_backends::MemoryDisk;
use cairn_block::{Disk, Op, Sector, SectorCount, Segs};
use cairn_outcome::failure::Outcome;

use super::cachefixture::touch;
use super::fixture::Fixture;
use super::load::{Data, Job, run, run_each};
use super::snapshotfixture::{Figures, Phase, Side};

/// The benchmark, in its rows.
pub const NAME: &str = "thin";
pub const MIB: u64 = 1 << 20;
/// Sectors of a data block.
pub const BLOCK: u64 = 128;
/// Bytes of a data block.
pub const BLOCK_BYTES: usize = 64 << 10;

/// Metadata is small: this much is enough for any fixture.
const METADATA_BYTES: u64 = 32 << 20;

/// What is done to a pool, step by step.
#[derive(Clone, Copy)]
pub enum Step {
    /// All workers do this at once: on the data device itself (raw), on the volume (origin) or on
    /// its snapshot.
    Run(Phase, How),
    /// The volume is snapshotted.
    Snapshot,
}

/// What a job of a step writes, and how.
#[derive(Clone, Copy)]
pub struct How {
    /// What is written.
    pub data: Data,
    /// See [`Job::elide`].
    pub elide: Option<fn(&Segs) -> bool>,
    /// The last request is a flush.
    pub flush: bool,
}

impl How {
    /// Random bytes.
    pub const RANDOM: How = How { data: Data::Random, elide: None, flush: false };
}

/// Reactors, and the devices of a pool.
pub struct ThinFixture {
    fixture: Fixture,
    /// How many reactors.
    pub workers: u16,
    metadata: Arc<dyn Disk>,
    data: Arc<dyn Disk>,
}

/// The devices of a pool in memory, touched: metadata, and data with room for so many bytes.
///
/// # Errors
/// There is not enough memory.
pub fn disks(data_bytes: u64) -> Outcome<[Arc<dyn Disk>; 2]> {
    let fixture = Fixture::make()?;
    let make = |bytes: u64| -> Outcome<Arc<dyn Disk>> {
        let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new(SectorCount::of_bytes(bytes))?);
        touch(&fixture, &disk)?;
        Ok(disk)
    };
    // Less than three quarters are ever used: the pool warns beyond.
    Ok([make(METADATA_BYTES)?, make(data_bytes * 2)?])
}

impl ThinFixture {
    /// So many reactors with these devices, metadata first.
    ///
    /// # Errors
    /// The system refused a thread or a ring.
    pub fn make(workers: u16, disks: &[Arc<dyn Disk>; 2]) -> Outcome<ThinFixture> {
        let fixture = Fixture::with(workers, cairn_targets::types())?;
        let [metadata, data] = disks.clone();
        fixture.put("metadata", metadata.clone());
        fixture.put("data", data.clone());
        Ok(ThinFixture { fixture, workers, metadata, data })
    }

    /// The reactors.
    pub fn fixture(&self) -> &Fixture {
        &self.fixture
    }

    /// Brings up a pool on the metadata that is there, with `options` (a count and so many words).
    ///
    /// # Errors
    /// The pool is refused.
    pub fn pool(&self, options: &str) -> Outcome<()> {
        let len = self.data.sectors();
        let table = format!("0 {len} thin-pool metadata data {BLOCK} 0 {options}");
        self.fixture.volume("pool", &table).map(drop)
    }

    /// The same with fresh metadata.
    ///
    /// # Errors
    /// The pool is refused.
    pub fn fresh_pool(&self, options: &str) -> Outcome<()> {
        let blank = Job::new(Op::WriteZeroes, 4 << 10, [Sector(0).0].into());
        run(&self.fixture, &self.metadata, &blank)?;
        self.pool(options)
    }

    /// Brings up the volume of an id under the name `vID`.
    ///
    /// # Errors
    /// There is none.
    pub fn volume(&self, id: u32, bytes: u64) -> Outcome<Arc<dyn Disk>> {
        let len = SectorCount::of_bytes(bytes);
        self.fixture.volume(&format!("v{id}"), &format!("0 {len} thin @pool {id}"))
    }

    /// Makes the pool anew and goes through the steps, each over `span` bytes. Answers the figures
    /// of those that are jobs.
    ///
    /// # Errors
    /// A step failed.
    pub fn measure(&self, options: &str, span: u64, steps: &[Step]) -> Outcome<Vec<Figures>> {
        self.fresh_pool(options)?;
        self.fixture.message("pool", "create_thin 0")?;
        let mut volumes = vec![self.volume(0, span)?];
        let mut figures = Vec::new();
        for step in steps {
            let (phase, how) = match step {
                Step::Run(phase, how) => (phase, how),
                Step::Snapshot => {
                    self.fixture.message("pool", &format!("create_snap {} 0", volumes.len()))?;
                    volumes.push(self.volume(volumes.len() as u32, span)?);
                    continue;
                }
            };
            let disk = match phase.on {
                Side::Raw => &self.data,
                Side::Origin => &volumes[0],
                Side::Snapshot => &volumes[volumes.len() - 1],
            };
            let How { data, elide, flush } = *how;
            let jobs = phase.jobs(span, self.workers).into_iter();
            let jobs: Vec<Job> = jobs.map(|job| Job { data, elide, flush, ..job }).collect();
            let took = run_each(&self.fixture, disk, &jobs)?;
            figures.push(Figures::of(jobs.iter().map(Job::requests).sum(), &took));
        }
        let count = volumes.len();
        drop(volumes);
        (0..count).try_for_each(|id| self.fixture.remove(&format!("v{id}")))?;
        self.fixture.remove("pool")?;
        Ok(figures)
    }
}
