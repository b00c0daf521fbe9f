//! Part of `bench images`: reads of regions that a clone has hydrated from a web server's image,
//! beside a linear target on the clone's destination.
//!
//! The destination is in memory. A write of a sector into each region of the range has the clone
//! copy the region first; then a flush commits. Nothing is copied in the background. In each turn
//! one of the two volumes is brought up on the same destination.

use cairn_block::{ConfigKind, Op, SECTOR_BYTES, SectorCount};
use cairn_outcome::failure::{Outcome, refused};

use super::fixture::Fixture;
use super::gave::{Gave, tell};
use super::load::{Job, run as run_job, scattered, sequential};
use super::row::{Report, Row};
use super::sample::{Subject, interleave};
use super::settings::Settings;

const BLOCK: usize = 4 << 10;
const METADATA_BYTES: u64 = 4 << 20;
const REGION_BYTES: usize = 64 << 10;
/// The field of the status line with the hydrated regions.
const HYDRATED: usize = 3;
const VOLUMES: [&str; 2] = ["clone", "linear"];

/// Adds the rows for the first `bytes` of the image.
///
/// # Errors
/// The image cannot be read, or a volume cannot be made.
pub fn run(
    name: &'static str,
    settings: &Settings,
    uri: &str,
    bytes: u64,
    report: &mut Report,
) -> Outcome<()> {
    let fixture = Fixture::make()?;
    let image = fixture.open(uri)?;
    let len = image.sectors();
    fixture.put("source", image);
    fixture.memory("metadata", METADATA_BYTES)?;
    fixture.memory("destination", len.to_bytes())?;
    let tables = [clone_table(len), format!("0 {len} linear destination 0")];
    hydrate(&fixture, &tables[0], bytes)?;
    for depth in [32, 1] {
        let requests = settings.pick(if depth == 1 { 50_000 } else { 200_000 }, 5_000);
        let places = scattered(0, bytes, BLOCK, requests, 7);
        let job = &Job { depth, turn: depth, ..Job::new(Op::Read, BLOCK, places) };
        let fixture = &fixture;
        let subject = |table| -> Subject<'_, Gave> {
            Box::new(move || {
                let volume = fixture.volume("volume", table)?;
                let took = run_job(fixture, &volume, job)?;
                drop(volume);
                fixture.remove("volume")?;
                Ok(Gave::of(took, job.requests()))
            })
        };
        let taken =
            interleave(settings.runs, tables.iter().map(String::as_str).map(subject).collect())?;
        tell(report, VOLUMES, &taken, |value, unit, volume| {
            Row::new(name, value, unit)
                .with("what", "hydrated read")
                .with("depth", depth as u64)
                .with("volume", volume)
        });
    }
    Ok(())
}

fn clone_table(len: SectorCount) -> String {
    let region = REGION_BYTES as u64 / SECTOR_BYTES;
    format!("0 {len} clone metadata destination source {region} 1 no_hydration")
}

/// Hydrates the first `bytes`, and nothing else.
fn hydrate(fixture: &Fixture, table: &str, bytes: u64) -> Outcome<()> {
    let volume = fixture.volume("volume", table)?;
    let places = sequential(bytes, REGION_BYTES);
    let expected = places.len();
    run_job(fixture, &volume, &Job::new(Op::Write, SECTOR_BYTES as usize, places).flushed())?;
    let live = volume.mapped().and_then(|device| device.live_table());
    let status = live.map(|table| table.lines()[0].target.status()).unwrap_or_default();
    let found = status.split(' ').nth(HYDRATED).and_then(|field| field.split('/').next());
    if found.and_then(|count| count.parse().ok()) != Some(expected) {
        let expected = format!("{expected} hydrated regions");
        return Err(refused(ConfigKind::System, "clone", "status", status, expected));
    }
    drop(volume);
    fixture.remove("volume")
}
