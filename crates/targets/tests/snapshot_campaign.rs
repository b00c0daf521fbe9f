//! The crash campaign of snapshots: power cuts at seeded writes while an origin and its snapshots
//! are written, and while a snapshot is merged, over drives that lose, reorder and tear.
//!
//! The origin and its snapshots are judged, each with clients of its own: each must hold what was
//! written to it last, and a snapshot what the origin held at first, whatever the others do.
//!
//! With failing drives, and a store that fills up, the origin alone is judged; and a snapshot that
//! still calls itself valid must be, by what the cut left on the drives.
//!
//! `CAIRN_CUTS=10000 cargo test -p cairn-targets --release --test snapshot_campaign` is the long
//! run. With `--features canary` known ordering bugs are planted: each must be caught.

use std::rc::Rc;
use std::sync::Arc;

use cairn_block::{Disk, Io, LocalFuture, Sector, SectorCount, SectorRange, TargetType};
use cairn_format::snapshot::{ChunkSize, CowChunk, Header, Layout, OriginChunk, Record, records};
use cairn_sim::campaign::{
    Campaign, Generation, Images, Links, Opened, Scenario, Server, plant_failures,
};
use cairn_sim::{DriveOptions, Fault, Image, OpSet, SimWorld, Workload};

const SECTOR: usize = 512;

/// What varies between cuts.
#[derive(Clone, Copy)]
struct Shape {
    origin_sectors: u64,
    /// Chunk sizes of the snapshots, in sectors.
    chunks: [u64; 2],
    kinds: [&'static str; 2],
    merging: bool,
    /// Drives fail, and the first store fills up.
    failing: bool,
    /// Bytes of a logical block of the drives.
    logical: u32,
}

/// Many areas.
const PLAIN: Shape = Shape {
    origin_sectors: 96,
    chunks: [1, 1],
    kinds: ["P", "PO"],
    merging: false,
    failing: false,
    logical: 512,
};

const SERVING: &[Shape] = &[
    PLAIN,
    Shape { origin_sectors: 128, chunks: [1, 8], kinds: ["P", "P"], ..PLAIN },
    // Ends inside a chunk.
    Shape { origin_sectors: 250, chunks: [8, 16], kinds: ["PO", "P"], ..PLAIN },
    Shape { origin_sectors: 512, chunks: [32, 2], kinds: ["P", "P"], ..PLAIN },
    Shape { origin_sectors: 256, chunks: [8, 32], logical: 4096, ..PLAIN },
];

const MERGED: Shape = Shape { merging: true, ..PLAIN };

const MERGING: &[Shape] = &[
    Shape { chunks: [1, 4], kinds: ["P", "P"], ..MERGED },
    Shape { origin_sectors: 250, chunks: [8, 1], ..MERGED },
    Shape { origin_sectors: 128, chunks: [2, 2], kinds: ["PO", "P"], ..MERGED },
];

const FAILED: Shape = Shape { failing: true, ..PLAIN };

const FAILING: &[Shape] = &[
    FAILED,
    Shape { origin_sectors: 250, chunks: [8, 2], kinds: ["PO", "P"], ..FAILED },
    Shape { origin_sectors: 128, chunks: [1, 16], kinds: ["P", "P"], ..FAILED },
];

/// Their exceptions are in the crash log: of few chunks, since a log that is full ends them.
const TRANSIENT: &[Shape] = &[
    Shape { chunks: [8, 8], kinds: ["N", "N"], ..PLAIN },
    Shape { origin_sectors: 250, chunks: [16, 32], kinds: ["N", "N"], ..PLAIN },
    Shape { origin_sectors: 128, chunks: [8, 8], kinds: ["N", "P"], ..PLAIN },
];

impl Shape {
    /// A COW device that never fills up: every chunk once, its records, and what crashes leak. Or
    /// one that soon does.
    fn cow_sectors(&self, which: usize) -> u64 {
        let chunk = self.chunks[which];
        let chunks = self.origin_sectors.div_ceil(chunk);
        match self.failing && which == 0 {
            true => (chunks * 2 / 3 + 6) * chunk,
            false => (chunks * 3 + chunks / 8 + 40) * chunk,
        }
    }

    fn layout(&self, which: usize) -> Layout {
        let chunk = ChunkSize::new(self.chunks[which] as u32).expect("a chunk size");
        Layout::new(chunk, self.cow_sectors(which)).expect("it fits")
    }

    fn snapshot(&self, which: usize) -> String {
        let Shape { origin_sectors, chunks, kinds, .. } = self;
        let (kind, chunk) = (kinds[which], chunks[which]);
        format!("0 {origin_sectors} snapshot origin cow{which} {kind} {chunk}")
    }

    /// The volumes, in the order in which they are opened.
    fn volumes(&self) -> Vec<(&'static str, String)> {
        let sectors = self.origin_sectors;
        let mut volumes = vec![("s1", self.snapshot(1))];
        if self.merging {
            let (kind, chunk) = (self.kinds[0], self.chunks[0]);
            volumes.push(("o", format!("0 {sectors} snapshot-merge origin cow0 {kind} {chunk}")));
        } else {
            volumes.push(("s0", self.snapshot(0)));
            volumes.push(("o", format!("0 {sectors} snapshot-origin origin")));
        }
        volumes
    }

    /// A store of exceptions in runs and disorder.
    fn store_to_merge(&self, rng: &mut fastrand::Rng) -> Image {
        let (layout, chunk) = (self.layout(0), self.chunks[0]);
        let mut image = Image::new(SectorCount(self.cow_sectors(0)));
        image.write(Sector(0), &padded(&Header::fresh(layout.chunk_size()).encode()));
        let mut old: Vec<u64> = (0..self.origin_sectors.div_ceil(chunk)).collect();
        for _ in 0..old.len() / 4 {
            let (a, b) = (rng.usize(..old.len()), rng.usize(..old.len()));
            old.swap(a, b);
        }
        old.truncate(rng.usize(1..=old.len()));
        let mut new = layout.next_free(None);
        for (place, old) in (0..).zip(old) {
            let record = Record { old: OriginChunk(old), new };
            let offset = layout.record_offset(place);
            let sector = Sector::of_byte(offset - offset % SECTOR as u64);
            let mut bytes = image.sector(sector).to_vec();
            record.write_at(&mut bytes, (offset % SECTOR as u64) as usize / 16);
            image.write(sector, &bytes);
            let fill = vec![rng.u8(1..); chunk as usize * SECTOR];
            image.write(Sector(layout.chunk_sector(new)), &fill);
            new = layout.next_after(new);
        }
        image
    }
}

/// A device that was used before: blank at its start only.
fn used(sectors: u64) -> Image {
    let mut bytes = vec![0x17; sectors as usize * SECTOR];
    bytes[..4096].fill(0);
    Image::of_bytes(&bytes)
}

fn padded(bytes: &[u8]) -> Vec<u8> {
    let mut block = vec![0; SECTOR];
    block[..bytes.len()].copy_from_slice(bytes);
    block
}

struct Snapshots {
    shapes: &'static [Shape],
    /// Drives fail in every way, also while volumes are opened; and all volumes are judged until
    /// they end.
    losing: bool,
}

/// Suspends, reloads and resumes one of the volumes beneath, a few times.
fn start_reloading(generation: &Generation, name: &'static str, table: String, may_fail: bool) {
    generation.start(2, async move |server| {
        for _ in 0..3 {
            server.pause(4000).await;
            if server.env.random_below(2) == 0 {
                server.swap_or_end(name, &table, may_fail).await;
            } else {
                let device = server.volume(name);
                server.suspend_somehow(&device, may_fail).await;
                server.resume_or_end(&device, may_fail).await;
            }
        }
    });
}

/// The origin fails now and then; the COW devices do, but for their headers: a snapshot that can't
/// be marked invalid is lost to a crash.
fn plant_errors(world: &SimWorld, rng: &mut fastrand::Rng) {
    let often = [2, 20, 100][rng.usize(..3)];
    let origin = world.drive("origin");
    origin.faults().add(Fault::error(OpSet::WRITES).per_mille(often));
    if rng.bool() {
        origin.faults().add(Fault::error(OpSet::READS).per_mille(often));
    }
    for name in ["cow0", "cow1"] {
        let drive = world.drive(name);
        let behind = SectorRange::between(Sector(1), Sector(drive.sectors().0));
        let fault = match rng.usize(..5) {
            0 => Fault::error(OpSet::WRITES).on(behind),
            1 => Fault::error(OpSet::READS).on(behind),
            2 => Fault::error(OpSet::FLUSHES),
            3 => Fault::losing_flushes(),
            _ => Fault::losing_durable_writes().on(behind),
        };
        drive.faults().add(fault.per_mille(often));
    }
}

/// Reads the snapshots while they live.
fn start_reading(generation: &Generation, sectors: u64) {
    for (reactor, name) in [(0, "s0"), (1, "s1")] {
        generation.start(reactor, async move |server| {
            let (env, disk): (_, Arc<dyn Disk>) = (&server.env, server.volume(name));
            for _ in 0..20 {
                let start = Sector(env.random_below(sectors));
                let range = SectorRange::between(start, Sector(sectors));
                // An error is no news: the snapshot may have ended.
                let _ = env.io(&disk, Io::read(range, env.segs(range.count))).await;
                server.pause(300).await;
            }
        });
    }
}

/// True unless the snapshot has ended, which its status tells.
fn is_valid(server: &Server, name: &str) -> bool {
    server.target(name).is_some_and(|target| !target.status().starts_with('I'))
}

impl Scenario for Snapshots {
    type Case = Shape;

    fn types(&self) -> Vec<Arc<dyn TargetType>> {
        cairn_targets::types()
    }

    fn begin(&self, rng: &mut fastrand::Rng) -> (Shape, Vec<(DriveOptions, Image)>) {
        let shape = self.shapes[rng.usize(..self.shapes.len())];
        let bytes: Vec<u8> = (0..shape.origin_sectors).flat_map(initial).collect();
        let first =
            if shape.merging { shape.store_to_merge(rng) } else { used(shape.cow_sectors(0)) };
        let options = |name| {
            let logical_block = shape.logical;
            DriveOptions { logical_block, ..DriveOptions::named(name) }
        };
        let drives = vec![
            (options("origin"), Image::of_bytes(&bytes)),
            (options("cow0"), first),
            (options("cow1"), used(shape.cow_sectors(1))),
            // Not used. A life draws for each drive: without this one, seeds would change.
            (DriveOptions::named("idle"), Image::new(SectorCount(1))),
        ];
        (shape, drives)
    }

    fn open(&self, shape: Rc<Shape>, server: Server) -> LocalFuture<'static, Opened> {
        let losing = self.losing;
        Box::pin(async move {
            let mut disks = Vec::new();
            for (name, table) in shape.volumes() {
                let disk = server.create(name, &table).await?;
                let is_judged = !losing || is_valid(&server, name);
                if (!shape.failing && is_judged) || name == "o" {
                    disks.push(disk);
                }
            }
            Ok(disks)
        })
    }

    fn check_metadata(&self, shape: &Shape, images: &Images) -> Result<(), String> {
        for which in (0..2).filter(|&which| shape.kinds[which] != "N") {
            let cow = &images[&format!("cow{which}")];
            let records = check_store(shape, which, cow, self.losing)?;
            if let Some(records) = records.filter(|_| shape.failing) {
                check_content(shape, which, &records, &images["origin"], cow)?;
            }
        }
        Ok(())
    }

    fn workload(&self, _shape: &Shape, rng: &mut fastrand::Rng) -> Workload {
        let (seed, ops) = (rng.u64(..), rng.u64(..300));
        let mut workload = Workload::mixed(seed, ops);
        // Snapshots take no discards without being told to.
        workload.mix.discard = 0;
        workload
    }

    fn suspends(&self) -> bool {
        !self.shapes[0].failing
    }

    fn outlives_kills(&self) -> bool {
        self.shapes[0].kinds[0] == "N"
    }

    fn outlives_cuts(&self) -> bool {
        !self.outlives_kills()
    }

    fn fails_at_start(&self) -> bool {
        self.losing
    }

    fn trouble(&self, shape: &Rc<Shape>, generation: &Generation, rng: &mut fastrand::Rng) -> bool {
        let world = generation.world;
        if shape.failing {
            plant_errors(world, rng);
            start_reading(generation, shape.origin_sectors);
        }
        if self.losing {
            plant_failures(&world.all_drives(), [5, 30][rng.usize(..2)], None, rng);
        }
        if !shape.failing && rng.u8(..3) == 0 {
            let mut volumes = shape.volumes();
            let (name, table) = volumes.swap_remove(rng.usize(..volumes.len()));
            start_reloading(generation, name, table, self.losing);
        }
        self.losing
    }
}

/// What a sector of the origin holds at first.
fn initial(sector: u64) -> [u8; SECTOR] {
    [(sector % 251) as u8 + 1; SECTOR]
}

/// Nobody wrote to the snapshot: it holds what the origin held at first.
fn check_content(
    shape: &Shape,
    which: usize,
    records: &[Record],
    origin: &Image,
    cow: &Image,
) -> Result<(), String> {
    let chunk = shape.chunks[which];
    for sector in 0..shape.origin_sectors {
        let record = records.iter().find(|record| record.old.0 == sector / chunk);
        let found = match record {
            Some(record) => cow.sector(Sector(record.new.0 * chunk + sector % chunk)),
            None => origin.sector(Sector(sector)),
        };
        if found[..] != initial(sector) {
            let from = if record.is_some() { "its store" } else { "the origin" };
            return Err(format!("cow{which}: valid, but sector {sector} changed in {from}"));
        }
    }
    Ok(())
}

/// The records of a store: each chunk once, on both sides, and none where no data can be. None if
/// the device is blank or the store invalid.
fn check_store(
    shape: &Shape,
    which: usize,
    image: &Image,
    losing: bool,
) -> Result<Option<Vec<Record>>, String> {
    let header = image.sector(Sector(0));
    // A crash while formatting leaves a blank device.
    if header[..4] == [0; 4] {
        return Ok(None);
    }
    let header = Header::parse(&header).map_err(|error| error.to_string())?;
    if !header.is_valid() && (shape.failing || losing) {
        return Ok(None);
    }
    if !header.is_valid() {
        return Err(format!("cow{which}: invalidated"));
    }
    let (layout, bytes) = (shape.layout(which), image.to_vec());
    let mut seen: Vec<Record> = Vec::new();
    for area in 0..layout.area_count() {
        let range = layout.area_bytes(area);
        let area: Vec<Record> = records(&bytes[range.start as usize..range.end as usize]).collect();
        let full = area.len() as u64 == layout.records_per_area();
        seen.extend(area);
        if !full {
            break;
        }
    }
    let mut old: Vec<OriginChunk> = seen.iter().map(|record| record.old).collect();
    let mut new: Vec<CowChunk> = seen.iter().map(|record| record.new).collect();
    if !shape.merging && !new.is_sorted() {
        return Err(format!("cow{which}: records out of the order of allocation"));
    }
    old.sort_unstable();
    old.dedup();
    new.sort_unstable();
    new.dedup();
    if old.len() != seen.len() || new.len() != seen.len() {
        return Err(format!("cow{which}: a chunk twice in {} records", seen.len()));
    }
    match new.iter().find(|&&chunk| !layout.is_data_chunk(chunk)) {
        Some(chunk) => Err(format!("cow{which}: data in chunk {chunk}")),
        None => Ok(Some(seen)),
    }
}

fn campaign(shapes: &'static [Shape]) -> Campaign<Snapshots> {
    Campaign::new(Snapshots { shapes, losing: false })
}

fn losing_campaign(shapes: &'static [Shape]) -> Campaign<Snapshots> {
    Campaign::new(Snapshots { shapes, losing: true })
}

#[test]
fn an_origin_and_its_snapshots_survive_power_cuts() {
    campaign(SERVING).run();
}

#[test]
fn transient_snapshots_survive_kills() {
    campaign(TRANSIENT).run();
}

#[test]
fn an_origin_survives_power_cuts_while_drives_fail_and_snapshots_end() {
    campaign(FAILING).run();
}

#[test]
fn an_origin_and_its_snapshots_hold_or_end_when_drives_fail_in_every_way() {
    losing_campaign(SERVING).run();
}

#[test]
fn a_merge_holds_or_fails_when_drives_fail_in_every_way() {
    losing_campaign(MERGING).run();
}

#[test]
fn a_merge_survives_power_cuts() {
    campaign(MERGING).run();
}

#[test]
fn deaths_of_the_server_of_an_origin_lose_nothing() {
    campaign(SERVING).elsewhere(&["origin"], Links::ServersDie).cuts(60).run();
}

#[test]
fn deaths_of_the_server_of_a_store_lose_nothing() {
    campaign(SERVING).elsewhere(&["cow0"], Links::ServersDie).cuts(60).run();
}

#[test]
fn deaths_of_the_server_of_an_origin_are_told_where_nothing_is_kept() {
    losing_campaign(SERVING).elsewhere(&["origin"], Links::Told).cuts(60).run();
}

#[test]
fn a_host_that_is_fenced_writes_nothing_and_what_it_flushed_is_there() {
    losing_campaign(SERVING).elsewhere(&["origin", "cow0"], Links::Taken).cuts(60).run();
}

#[cfg(feature = "canary")]
mod canaries {
    use super::{Campaign, FAILING, MERGING, SERVING, Shape, Snapshots, campaign, losing_campaign};
    use cairn_block::mutants::skip;
    use cairn_targets::snapshot::canary::{Bug, plant};

    fn taken_out(name: &'static str, campaign: Campaign<Snapshots>) {
        skip(Some(name));
        campaign.cuts(10_000).expect_caught(name);
        skip(None);
    }

    #[test]
    fn relying_on_a_mark_that_a_killed_process_left_in_a_drive_is_caught() {
        taken_out("snapshot: flush of a mark found", campaign(FAILING));
    }

    #[test]
    fn ignoring_the_failure_count_is_caught() {
        taken_out("snapshot: failure count of data", losing_campaign(SERVING));
    }

    fn caught(bug: Bug, shapes: &'static [Shape]) {
        plant(Some(bug));
        campaign(shapes).cuts(2000).expect_caught(&format!("{bug:?}"));
        plant(None);
    }

    #[test]
    fn a_record_before_its_data_is_caught() {
        caught(Bug::RecordBeforeData, SERVING);
    }

    #[test]
    fn overwriting_the_origin_before_the_record_is_caught() {
        caught(Bug::OriginBeforeRecord, SERVING);
    }

    #[test]
    fn a_full_area_before_its_successor_is_caught() {
        caught(Bug::FullBeforeZeroed, SERVING);
    }

    #[test]
    fn clearing_before_the_origin_is_durable_is_caught() {
        caught(Bug::ClearBeforeOriginFlush, MERGING);
    }
}
