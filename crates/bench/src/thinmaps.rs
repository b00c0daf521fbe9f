//! Part of `bench thin`: volumes with many mappings. Reads of 4 KiB all over them, beside the bare
//! data device; snapshots of one, a thousand in a row; and what tools do with their metadata
//! ([`thintools`](super::thintools)).
//!
//! The data device is null, so that ten million blocks fit, and so that what is added is the
//! pool's. Neighbouring blocks of a volume lie apart on the data device: no run saves anything.

use std::sync::Arc;

use cairn_backends::{MemoryDisk, NullDisk};
use cairn_block::{Disk, Op, SectorCount};
use cairn_format::thin::build::{Builder, Room};
use cairn_format::thin::stream::{Pool, Run};
use cairn_format::thin::{
    BLOCK_BYTES as METADATA_BLOCK_BYTES, DataBlockSize, DeviceDetails, DeviceId, MetadataBlock,
};
use cairn_outcome::failure::Outcome;

use super::clock::Took;
use super::load::{Job, run as run_job, scattered};
use super::row::{Report, Row, Samples};
use super::sample::{Subject, interleave};
use super::settings::Settings;
use super::thinfixture::{BLOCK, BLOCK_BYTES, NAME, ThinFixture};
use super::{image, thintools};

const READ_BYTES: usize = 4 << 10;
/// A prime that divides no number of mappings here: multiples of it visit every block once.
const STRIDE: u64 = 1_000_003;
/// Blocks that the pool keeps together, at most: one read of each loads all mappings.
const GROUP: u64 = 64;
/// Room for a thousand snapshots.
const METADATA_BLOCKS_MIN: u64 = 8192;
const SNAPSHOTS: usize = 1000;
/// How many snapshots are told together.
const TOLD: usize = 100;

/// Adds the rows.
///
/// # Errors
/// A pool cannot be made or used, or a checker cannot run.
pub fn run(settings: &Settings, report: &mut Report) -> Outcome<()> {
    let sizes: &[u64] = settings.pick(&[10_000, 1_000_000, 10_000_000], &[10_000]);
    for &mappings in sizes {
        let metadata = Arc::new(metadata(mappings));
        lookups(settings, report, mappings, &metadata)?;
        snapshots(settings, report, mappings, &metadata)?;
        thintools::check(settings, report, mappings, &metadata)?;
        let metadata = differing(mappings, &metadata)?;
        thintools::diff(settings, report, mappings, &metadata)?;
    }
    Ok(())
}

/// The metadata of a pool with one volume, 0, that maps so many blocks.
fn metadata(mappings: u64) -> Vec<u8> {
    let sound = "the sizes of a bench are within the format's";
    let pool = Pool {
        time: 0,
        transaction_id: 0,
        flags: 0,
        version: cairn_format::thin::VERSION,
        data_block_size: DataBlockSize::new(BLOCK as u32).expect(sound),
        data_blocks: mappings * 2,
    };
    let mut written = Vec::<u8>::new();
    let room = Room::AtLeast(METADATA_BLOCKS_MIN);
    let mut builder = Builder::new(&mut written, room, pool).expect(sound);
    let details = DeviceDetails {
        mapped_blocks: mappings,
        transaction_id: 0,
        creation_time: 0,
        snapshotted_time: 0,
    };
    builder.begin_device(DeviceId::new(0).expect(sound), details).expect(sound);
    for origin in 0..mappings {
        let run = Run { origin, data: origin * STRIDE % mappings, len: 1, time: 0 };
        builder.add(run).expect(sound);
    }
    builder.end_device().expect(sound);
    let superblock = builder.finish().expect(sound);
    let blocks = superblock.metadata_space_map.blocks as usize;
    written.resize(blocks * METADATA_BLOCK_BYTES, 0);
    let bytes = superblock.encode(MetadataBlock::SUPERBLOCK);
    written[..METADATA_BLOCK_BYTES].copy_from_slice(&bytes);
    written
}

/// A pool with these metadata over a null data device, up, and the volume of so many mappings.
struct Mapped {
    fixture: ThinFixture,
    metadata: Arc<dyn Disk>,
    data: Arc<dyn Disk>,
    volume: Arc<dyn Disk>,
}

impl Mapped {
    fn make(mappings: u64, metadata: &Arc<Vec<u8>>) -> Outcome<Mapped> {
        let bytes = |blocks: u64| SectorCount::of_bytes(blocks * BLOCK_BYTES as u64);
        let device = SectorCount::of_bytes(metadata.len() as u64);
        let meta: Arc<dyn Disk> = Arc::new(MemoryDisk::new(device)?);
        let data: Arc<dyn Disk> = Arc::new(NullDisk::new(bytes(mappings * 2)));
        let fixture = ThinFixture::make(1, &[meta.clone(), data.clone()])?;
        image::store(fixture.fixture(), &meta, metadata)?;
        fixture.pool("0")?;
        let volume = fixture.volume(0, mappings * BLOCK_BYTES as u64)?;
        Ok(Mapped { fixture, metadata: meta, data, volume })
    }

    fn end(self) -> Outcome<()> {
        let Mapped { fixture, volume, .. } = self;
        drop(volume);
        fixture.fixture().remove("v0")?;
        fixture.fixture().remove("pool")
    }
}

/// Reads of mapped blocks, when all mappings are known.
fn lookups(
    settings: &Settings,
    report: &mut Report,
    mappings: u64,
    metadata: &Arc<Vec<u8>>,
) -> Outcome<()> {
    let mapped = Mapped::make(mappings, metadata)?;
    let fixture = mapped.fixture.fixture();
    let row = |value: Samples, unit: &'static str, what: &'static str| {
        Row::new(NAME, value, unit).with("what", what).with("mappings", mappings)
    };
    let groups = (0..mappings).step_by(GROUP as usize).map(|block| block * BLOCK).collect();
    let load = Job::new(Op::Read, READ_BYTES, groups);
    let loading = run_job(fixture, &mapped.volume, &load)?.ns_each(mappings as usize);
    report.push(row(Samples(vec![loading]), "ns/mapping", "first_lookup"));
    let count = settings.pick(1_000_000, 1_000);
    let span = mappings * BLOCK_BYTES as u64;
    let job = Job::new(Op::Read, READ_BYTES, scattered(0, span, READ_BYTES, count, 3));
    let read = |disk: &Arc<dyn Disk>| Ok(run_job(fixture, disk, &job)?.ns_each(count));
    let subjects: Vec<Subject<'_, f64>> =
        vec![Box::new(|| read(&mapped.data)), Box::new(|| read(&mapped.volume))];
    let taken = interleave(settings.runs, subjects)?;
    let [bare, thin]: [Samples; 2] = std::array::from_fn(|index| Samples(taken[index].clone()));
    let told = row(thin.clone(), "ns/request", "lookup").with("bytes", READ_BYTES);
    report.push(told.with("beside", "data device").against(&bare));
    let added = thin.zip(&bare, |thin, bare| thin - bare);
    report.push(row(added, "ns/request", "lookup, added").with("bytes", READ_BYTES));
    mapped.end()
}

/// Snapshots of one volume, a thousand in a row.
fn snapshots(
    settings: &Settings,
    report: &mut Report,
    mappings: u64,
    metadata: &Arc<Vec<u8>>,
) -> Outcome<()> {
    let count = settings.pick(SNAPSHOTS, 2 * TOLD);
    let (mut first, mut last) = (Vec::new(), Vec::new());
    for _ in 0..settings.runs {
        let mapped = Mapped::make(mappings, metadata)?;
        let create =
            |id: usize| mapped.fixture.fixture().message("pool", &format!("create_snap {id} 0"));
        let took: Vec<Took> = (1..=count).map(create).collect::<Outcome<_>>()?;
        let mean =
            |took: &[Took]| took.iter().map(|took| took.us_each(1)).sum::<f64>() / TOLD as f64;
        first.push(mean(&took[..TOLD]));
        last.push(mean(&took[count - TOLD..]));
        mapped.end()?;
    }
    let row = Row::new(NAME, Samples(last), "us/snapshot").with("what", "last snapshots");
    let row = row.with("snapshots", count).with("mappings", mappings);
    report.push(row.with("beside", "first snapshots").against(&Samples(first)));
    Ok(())
}

/// These metadata after a snapshot, 1, from which the volume differs here and there by now.
fn differing(mappings: u64, metadata: &Arc<Vec<u8>>) -> Outcome<Vec<u8>> {
    let mapped = Mapped::make(mappings, metadata)?;
    mapped.fixture.fixture().message("pool", "create_snap 1 0")?;
    let every = mappings / thintools::differing(mappings);
    let places = (0..mappings).step_by(every as usize).map(|block| block * BLOCK).collect();
    run_job(
        mapped.fixture.fixture(),
        &mapped.volume,
        &Job::new(Op::Write, READ_BYTES, places).flushed(),
    )?;
    image::fetch(mapped.fixture.fixture(), &mapped.metadata, metadata.len() as u64)
}
