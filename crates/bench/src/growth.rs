//! `bench growth`: how a write cache's index grows, in memory alone: random 4 KiB writes into a
//! blank cache until every slot is taken, each block once.
//!
//! The cache device keeps its metadata in memory and forgets the data, so that 100 GiB of cache
//! fit, and so that the figures are those of the index and the engine. Every insert is timed by
//! itself (processor time of submitting it, in which it also completes): its mean, and the
//! longest, which shows that nothing is rehashed as a whole. Then reads of blocks that are
//! cached and of blocks that are not. The origin has twice the cache's size.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cairn_backends::{MemoryDisk, NullDisk};
use cairn_block::{
    Client, ConfigError, ConfigKind, Disk, Env, Flow, Io, IoError, IoResult, Limits, Request,
    Sector, SectorCount, SectorRange,
};
use cairn_format::writecache::Geometry;
use cairn_outcome::failure::Outcome;

use super::clock::Moment;
use super::fixture::Fixture;
use super::image;
use super::row::{Report, Row, Samples};
use super::settings::Settings;

const BLOCK_BYTES: u32 = 4096;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// A prime that divides no number of blocks here: multiples of it visit every block once.
const STRIDE: u64 = 1_000_003;
/// Requests before the reactor gets its turn.
const TURN: u64 = 32;
/// Most reads of each kind.
const READS_MAX: u64 = 1_000_000;

/// A disk that keeps what lies before a sector and forgets the rest.
struct Hollow {
    kept: MemoryDisk,
    forgotten: NullDisk,
    border: Sector,
}

impl Disk for Hollow {
    fn name(&self) -> String {
        "hollow".to_owned()
    }

    fn sectors(&self) -> SectorCount {
        self.forgotten.sectors()
    }

    fn limits(&self) -> Limits {
        self.forgotten.limits()
    }

    fn submit(&self, env: &Env, request: &mut Request) -> Flow {
        if request.range.start < self.border {
            self.kept.submit(env, request)
        } else {
            self.forgotten.submit(env, request)
        }
    }
}

/// Counts ends.
#[derive(Default)]
struct Ends {
    ended: Cell<u64>,
    error: Cell<Option<IoError>>,
}

impl Client for Ends {
    fn complete(&self, _env: &Env, _cookie: u64, _request: &mut Request, result: IoResult) {
        self.ended.set(self.ended.get() + 1);
        if let Err(error) = result {
            self.error.set(Some(error));
        }
    }
}

/// What requests of one kind took.
struct Figures {
    mean_ns: f64,
    longest_us: f64,
}

/// Runs the benchmark.
///
/// # Errors
/// A cache cannot be made or used.
pub fn run(settings: &Settings) -> Outcome<Report> {
    let mut report = Report::default();
    let sizes: &[u64] = settings.pick(&[400 * MIB, 4 * GIB, 100 * GIB], &[16 * MIB]);
    for &bytes in sizes {
        let geometry = image::geometry(bytes, BLOCK_BYTES)?;
        let mut taken: [Vec<Figures>; 3] = Default::default();
        // The longest of all is what counts: two rounds tell as much as five.
        for _ in 0..settings.runs.min(2) {
            for (taken, figures) in taken.iter_mut().zip(grow(bytes, &geometry)?) {
                taken.push(figures);
            }
        }
        for (op, figures) in ["insert", "hit", "miss"].into_iter().zip(&taken) {
            let row = |value: Samples, unit, what: &str| {
                let row = Row::new("growth", value, unit).with("entries", geometry.n_blocks());
                row.with("op", op).with("what", what)
            };
            let samples = |of: fn(&Figures) -> f64| Samples(figures.iter().map(of).collect());
            report.push(row(samples(|figures| figures.mean_ns), "ns", "mean"));
            report.push(row(samples(|figures| figures.longest_us), "us", "longest"));
        }
    }
    Ok(report)
}

fn grow(bytes: u64, geometry: &Geometry) -> Outcome<[Figures; 3]> {
    let fixture = Fixture::make()?;
    let metadata = SectorCount::of_bytes(geometry.data_offset());
    fixture.put(
        "cache",
        Arc::new(Hollow {
            kept: MemoryDisk::new(metadata)?,
            forgotten: NullDisk::new(SectorCount::of_bytes(bytes)),
            border: Sector(metadata.0),
        }),
    );
    let sectors = SectorCount::of_bytes(bytes * 2);
    fixture.put("origin", Arc::new(NullDisk::new(sectors)));
    let table = format!(
        "0 {sectors} writecache s origin cache {BLOCK_BYTES} 4 \
                         high_watermark 100 low_watermark 100"
    );
    let volume = fixture.volume("volume", &table)?;
    let entries = geometry.n_blocks();
    let figures = fixture.on(move |env| async move {
        let cached = move |number: u64| number * STRIDE % entries;
        let insert = time(&env, &volume, true, entries, cached).await?;
        let reads = entries.min(READS_MAX);
        let hit = time(&env, &volume, false, reads, cached).await?;
        let missing = move |number: u64| entries + cached(number);
        let miss = time(&env, &volume, false, reads, missing).await?;
        Ok([insert, hit, miss])
    });
    fixture.remove("volume")?;
    figures.map_err(|error: IoError| {
        ConfigError::new(ConfigKind::System, "bench", "a request").with_source(error)
    })
}

/// Writes or reads so many blocks, one after the other.
async fn time(
    env: &Env,
    disk: &Arc<dyn Disk>,
    write: bool,
    count: u64,
    block_of: impl Fn(u64) -> u64,
) -> Result<Figures, IoError> {
    let (ends, length) = (Rc::new(Ends::default()), SectorCount(u64::from(BLOCK_BYTES) / 512));
    let segs = env.segs(length);
    let (mut sum, mut longest) = (Duration::ZERO, Duration::ZERO);
    for number in 0..count {
        let range = SectorRange::new(Sector(block_of(number) * length.0), length);
        let segs = segs.clone();
        let io = if write { Io::write(range, segs) } else { Io::read(range, segs) };
        let began = Moment::now();
        env.start(disk, io, ends.clone(), 0);
        let took = began.elapsed().processor;
        (sum, longest) = (sum + took, longest.max(took));
        if number % TURN == TURN - 1 {
            cairn_block::yield_once().await;
        }
    }
    while ends.ended.get() < count {
        cairn_block::yield_once().await;
    }
    let mean_ns = sum.as_nanos() as f64 / count as f64;
    let figures = Figures { mean_ns, longest_us: longest.as_nanos() as f64 / 1000.0 };
    ends.error.get().map_or(Ok(figures), Err)
}
