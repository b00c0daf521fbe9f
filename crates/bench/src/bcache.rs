//! `bench bcache`: how long a whole cache takes to be built from a stream of extents, to be opened,
//! and to be checked, and how much memory its extents take, by their number.
//!
//! The cache device is memory, in which what was never written takes no room: add the time that a
//! drive takes for 30 bytes per extent. The extents have 4 KiB each, with as much between two of
//! them, so that none joins another; every other one is dirty. Times are of the processor: all of
//! it runs on this thread. Memory is what the process holds beyond what it held before: at the peak
//! of building (another cache, whose bytes are dropped), at the peak of opening, and with all
//! extents in order.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ops::{ControlFlow, Range};

use cairn_block::{ConfigError, ConfigKind};
use cairn_format::Severity;
use cairn_format::bcache::build::{BuildError, Builder, WriteSectors};
use cairn_format::bcache::check::check;
use cairn_format::bcache::journal::{ENTRY_BYTES_MAX, ENTRY_HEADER_BYTES, Header, encode};
use cairn_format::bcache::load::{Fault, InMemory, Loaded, Visitor, load_now, now};
use cairn_format::bcache::uuids::UuidEntry;
use cairn_format::bcache::{
    CacheSuperblock, Key, NewCache, Replacement, SECTOR_BYTES, SUPERBLOCK_SECTOR, Uuid,
};
use cairn_outcome::failure::Outcome;

use super::Settings;
use super::clock::Moment;
use super::recovery::Memory;
use super::row::{Report, Row, Samples};
use super::{
    bcachebursts, bcachedrain, bcachedsync, bcachegc, bcachehits, bcacheinserts, bcachekernel,
    bcachelimit, bcachemisses, bcachestream, bcacheworkers,
};

const NAME: &str = "bcache";
/// Sectors of an extent.
const EXTENT: u64 = 8;
/// Sectors of a bucket.
const BUCKET: u64 = 1024;

/// Runs the benchmark.
///
/// # Errors
/// A cache that was built is not sound, or the system does not report memory.
pub fn run(settings: &Settings) -> Outcome<Report> {
    let mut report = Report::default();
    let sizes = settings.pick(&[100_000, 1_000_000, 10_000_000][..], &[10_000]);
    let build_peaks = build_peaks(sizes)?;
    for (&extents, build_peak) in sizes.iter().zip(build_peaks) {
        let rounds: Vec<Round> =
            (0..settings.runs).map(|_| round(extents)).collect::<Outcome<_>>()?;
        let samples = |of: fn(&Round) -> f64| Samples(rounds.iter().map(of).collect());
        let row = |value, unit, what: &str| {
            Row::new(NAME, value, unit).with("extents", extents).with("what", what)
        };
        report.push(row(samples(|round| round.build), "s", "build"));
        report.push(row(samples(|round| round.open), "s", "open"));
        report.push(row(samples(|round| round.check), "s", "check"));
        let peak = Samples(vec![build_peak / f64::from(1 << 20)]);
        report.push(row(peak, "MiB", "build").with("memory", "peak"));
        // Memory that a round gave back may serve the next unseen.
        let each = |of: fn(&Round) -> f64| Samples(vec![of(&rounds[0]) / extents as f64]);
        let held = row(each(|round| round.held), "bytes/extent", "open").with("memory", "held");
        report.push(held);
        let peak = row(each(|round| round.peak), "bytes/extent", "open").with("memory", "peak");
        report.push(peak);
        let ring = samples(|round| round.full_ring - round.open);
        report.push(row(ring, "s", "full ring, more").with("journaled", rounds[0].journaled));
    }
    // The drains measure memory, which what runs before them may have given back.
    bcachedrain::run(NAME, settings, &mut report)?;
    bcachelimit::run(NAME, settings, &mut report)?;
    bcachehits::run(NAME, settings, &mut report)?;
    bcachedsync::run(NAME, settings, &mut report)?;
    bcachegc::run(NAME, settings, &mut report)?;
    report.extend(requests(settings)?);
    Ok(report)
}

/// The part with requests on a set that is open, and the kernel's bcache if asked for.
///
/// # Errors
/// A set cannot be made, or a request failed.
pub fn requests(settings: &Settings) -> Outcome<Report> {
    let mut report = Report::default();
    bcacheinserts::run(NAME, settings, &mut report)?;
    bcachemisses::run(NAME, settings, &mut report)?;
    bcacheworkers::run(NAME, settings, &mut report)?;
    bcachestream::run(NAME, settings, &mut report)?;
    bcachebursts::run(NAME, settings, &mut report)?;
    if let Some(uml) = &settings.uml {
        bcachekernel::run(NAME, settings, uml, &mut report)?;
    }
    Ok(report)
}

/// Seconds of the processor, and bytes.
struct Round {
    build: f64,
    open: f64,
    check: f64,
    held: f64,
    peak: f64,
    /// Opening with a full ring, of so many keys.
    full_ring: f64,
    journaled: u64,
}

fn round(extents: u64) -> Outcome<Round> {
    let mut device = Device::default();
    let began = Moment::now();
    let superblock = build(extents, &mut device).map_err(|error| unsound(format!("{error:?}")))?;
    let build = began.elapsed().processor.as_secs_f64();

    let before = Memory::now()?;
    Memory::forget_peak()?;
    let (open, loaded, opened) = open(&device, &superblock)?;
    let after = Memory::now()?;
    if opened.len() as u64 != extents {
        return Err(unsound(format!("found {} extents, expected {extents}", opened.len())));
    }

    let (_, sectors) = (device.write(SUPERBLOCK_SECTOR, &superblock.encode()), sectors_of(extents));
    let began = Moment::now();
    let Ok(report) = now(check(&mut InMemory(|range: &_| device.bytes(range)), sectors, &[]));
    let check = began.elapsed().processor.as_secs_f64();
    if report.severity != Severity::Sound || report.totals.extents != extents {
        return Err(unsound(format!("{:?}", report.findings.first())));
    }

    fill_ring(&mut device, &superblock, loaded.newest, &opened);
    drop((opened, loaded));
    let (full_ring, loaded, opened) = self::open(&device, &superblock)?;
    if opened.len() as u64 != extents {
        return Err(unsound(format!("found {} extents, expected {extents}", opened.len())));
    }
    let journaled = loaded.journal.len() as u64;
    let grown = |bytes: u64| bytes.saturating_sub(before.held) as f64;
    let (held, peak) = (grown(after.held), grown(after.peak));
    Ok(Round { build, open, check, held, peak, full_ring, journaled })
}

fn unsound(said: String) -> ConfigError {
    ConfigError::new(ConfigKind::Damaged, "the cache built", said)
}

/// Opens the cache: how long that took, and what it has.
fn open(device: &Device, superblock: &CacheSuperblock) -> Outcome<(f64, Loaded, Vec<Key>)> {
    let began = Moment::now();
    let mut collect = Collect::default();
    let loaded = load_now(InMemory(|range: &_| device.bytes(range)), superblock, &mut collect)
        .map_err(|error| unsound(error.to_string()))?;
    let opened = loaded.extents(superblock.geometry(), collect.0);
    Ok((began.elapsed().processor.as_secs_f64(), loaded, opened))
}

/// Fills the ring with entries as long as they may be, but for the bucket of the builder's entry
/// and one that is free. Their keys are extents that the tree has, at random.
fn fill_ring(device: &mut Device, superblock: &CacheSuperblock, newest: Header, extents: &[Key]) {
    let (geometry, magic) = (superblock.geometry(), superblock.set_uuid().set_magic());
    let rng = &mut fastrand::Rng::with_seed(13);
    let (mut seq, each) = (newest.seq, (ENTRY_BYTES_MAX - ENTRY_HEADER_BYTES) / 24);
    for bucket in superblock.journal_buckets().skip(2) {
        let mut at = geometry.sector_of(bucket);
        let end = at + geometry.bucket_sectors();
        while at + (ENTRY_BYTES_MAX / SECTOR_BYTES) as u64 <= end {
            seq += 1;
            let keys: Vec<Key> = (0..each).map(|_| extents[rng.usize(..extents.len())]).collect();
            let header = Header { seq, ..newest };
            let Ok(()) = device.write(at, &encode(&header, &keys, magic, geometry.block_bytes()));
            at += (ENTRY_BYTES_MAX / SECTOR_BYTES) as u64;
        }
    }
}

/// Sectors of a device with room for so many extents, and for what leads to them.
fn sectors_of(extents: u64) -> u64 {
    let data = extents * EXTENT / BUCKET;
    (data + data / 8 + 1024) * BUCKET
}

/// Bytes that the builder holds at its peak, at most, for each number of extents. What the process
/// holds before the first of them is left out; it runs before all else, as memory that was given
/// back would serve it unseen.
fn build_peaks(sizes: &[u64]) -> Outcome<Vec<f64>> {
    let before = Memory::now()?;
    let peak = |extents: &u64| {
        Memory::forget_peak()?;
        build(*extents, &mut Dropped).map_err(|error| unsound(format!("{error:?}")))?;
        Ok(Memory::now()?.peak.saturating_sub(before.held) as f64)
    };
    sizes.iter().map(peak).collect()
}

fn build<W: WriteSectors>(
    extents: u64,
    device: &mut W,
) -> Result<CacheSuperblock, BuildError<W::Error>> {
    let new = NewCache {
        uuid: Uuid([1; 16]),
        set_uuid: Uuid([2; 16]),
        block_sectors: 8,
        bucket_sectors: BUCKET,
        device_sectors: sectors_of(extents),
        replacement: Replacement::Lru,
        discard: false,
    };
    let fresh = CacheSuperblock::fresh(&new).expect("the sizes of a bench are legal");
    let mut builder = Builder::new(&fresh, 1, device);
    for index in 0..extents {
        let end = 16 + (2 * index + 1) * EXTENT;
        builder.add(Key::new(0, end, EXTENT).with_dirty(index % 2 == 0))?;
    }
    let volume = UuidEntry { uuid: Uuid([3; 16]), ..UuidEntry::default() };
    builder.finish(&[volume])
}

/// A device that drops what is written.
struct Dropped;

impl WriteSectors for Dropped {
    type Error = Infallible;

    fn write(&mut self, _: u64, _: &[u8]) -> Result<(), Infallible> {
        Ok(())
    }
}

/// A device in memory: what was written, by its first sector.
#[derive(Default)]
struct Device(BTreeMap<u64, Vec<u8>>);

impl WriteSectors for Device {
    type Error = Infallible;

    fn write(&mut self, sector: u64, bytes: &[u8]) -> Result<(), Infallible> {
        self.0.insert(sector, bytes.to_vec());
        Ok(())
    }
}

impl Device {
    /// The bytes of a range of sectors; what was not written is zeros.
    fn bytes(&self, range: &Range<u64>) -> Vec<u8> {
        let mut bytes = vec![0; (range.end - range.start) as usize * SECTOR_BYTES];
        // Nothing is read that begins within what was written.
        for (sector, written) in self.0.range(range.clone()) {
            let at = (sector - range.start) as usize * SECTOR_BYTES;
            let length = written.len().min(bytes.len() - at);
            bytes[at..at + length].copy_from_slice(&written[..length]);
        }
        bytes
    }
}

/// Takes the extents, and refuses every fault.
#[derive(Default)]
struct Collect(Vec<Key>);

impl Visitor for Collect {
    fn fault(&mut self, _: &Fault) -> ControlFlow<()> {
        ControlFlow::Break(())
    }

    fn extent(&mut self, key: Key) {
        self.0.push(key);
    }
}
