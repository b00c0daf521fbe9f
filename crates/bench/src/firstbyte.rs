//! Part of `bench images`: how long the first block of an image takes from the moment it is opened,
//! in milliseconds of wall time, beside a client that only connects and reads that block.
//!
//! - `image`: a device argument is opened, then 4 KiB are read at its start, then 4 KiB elsewhere,
//!   which nothing has fetched.
//! - `clone`: the same through a clone with blank metadata, whose source is the image and which
//!   hydrates in the background, as a volume does that is made from an image.
//! - `qcow2 image`: an image of qemu that the server has; its content is that of the other.
//! - `qcow2 file`: the same as a file in memory, beside nothing.
//!
//! The first open of a process also starts the thread that talks to servers: `opens=first`.

use std::sync::Arc;
use std::time::Instant;

use cairn_backends::MemoryDisk;
use cairn_block::{ConfigError, ConfigKind, Disk, Io, Sector, SectorCount, SectorRange};
use cairn_outcome::failure::Outcome;

use super::fixture::Fixture;
use super::row::{Report, Row, Samples};
use super::sample::{Subject, interleave};
use super::settings::Settings;
use super::web::Web;

const BLOCK: u64 = 4 << 10;
const METADATA_BYTES: u64 = 4 << 20;
/// Sectors of a region of the clone.
const REGION: u64 = 128;

/// The device that is at no server.
pub const LOCAL: &str = "qcow2 file";

/// What the benchmark opens.
pub struct Images<'a> {
    /// The server.
    pub web: &'a Web,
    /// The name of its image.
    pub image: &'a str,
    /// Images of qemu: the name in the rows and the device argument.
    pub qcow2: &'a [(&'static str, String)],
    /// Where the other block is, in bytes.
    pub other: u64,
}

/// Milliseconds of each step.
struct Steps {
    open: f64,
    first: f64,
    other: f64,
}

/// A part of the rows and where to find the figure.
type Part = (&'static str, fn(&Steps) -> f64);

/// The second has the bar.
const PARTS: [Part; 4] = [
    ("open", |steps| steps.open),
    ("open and first block", |steps| steps.open + steps.first),
    ("first block", |steps| steps.first),
    ("another block", |steps| steps.other),
];

/// Adds the rows.
///
/// # Errors
/// The server does not answer, or a volume cannot be made.
pub fn run(
    name: &'static str,
    settings: &Settings,
    images: &Images<'_>,
    report: &mut Report,
) -> Outcome<()> {
    let Images { web, image, qcow2, other } = *images;
    let other = Sector::of_byte(other);
    let row = |value, device| Row::new(name, value, "ms").with("device", device);
    let uri = web.uri(image);
    let devices = ["image", "clone"].into_iter().chain(qcow2.iter().map(|(device, _)| *device));
    let first = open_image(&uri, other)?;
    let (what, of) = PARTS[1];
    let value = Samples(vec![of(&first)]);
    report.push(row(value, "image").with("what", what).with("opens", "first"));
    let plain = || {
        let took = ms(web.get(image, BLOCK as usize)?);
        Ok(Steps { open: 0.0, first: took, other: 0.0 })
    };
    let mut subjects: Vec<Subject<'_, Steps>> = vec![
        Box::new(plain),
        Box::new(|| open_image(&uri, other)),
        Box::new(|| open_clone(&uri, other)),
    ];
    for (_, uri) in qcow2 {
        subjects.push(Box::new(|| open_image(uri, other)));
    }
    let taken = interleave(settings.runs, subjects)?;
    let samples = |subject: usize, of: fn(&Steps) -> f64| -> Samples {
        Samples(taken[subject].iter().map(of).collect())
    };
    let plain = samples(0, PARTS[1].1);
    report.push(row(plain.clone(), "plain client").with("what", "connect and first block"));
    for (device, subject) in devices.zip(1..) {
        for (what, of) in PARTS {
            let row = row(samples(subject, of), device).with("what", what);
            report.push(match what == PARTS[1].0 && device != LOCAL {
                true => row.with("beside", "plain client").against(&plain),
                false => row,
            });
        }
    }
    Ok(())
}

fn ms(took: std::time::Duration) -> f64 {
    took.as_secs_f64() * 1000.0
}

fn open_image(uri: &str, other: Sector) -> Outcome<Steps> {
    let fixture = Fixture::make()?;
    let began = Instant::now();
    let disk = fixture.open(uri)?;
    let open = ms(began.elapsed());
    read(&fixture, &disk, (open, other))
}

fn open_clone(uri: &str, other: Sector) -> Outcome<Steps> {
    let fixture = Fixture::make()?;
    fixture.memory("metadata", METADATA_BYTES)?;
    let began = Instant::now();
    let source = fixture.open(uri)?;
    let len = source.sectors();
    fixture.put("source", source);
    fixture.put("destination", Arc::new(MemoryDisk::new(len)?));
    let table = format!("0 {len} clone metadata destination source {REGION}");
    let volume = fixture.volume("volume", &table)?;
    let open = ms(began.elapsed());
    let steps = read(&fixture, &volume, (open, other));
    drop(volume);
    fixture.remove("volume")?;
    steps
}

/// Reads a block at the start, then the other one. `open` is how long the open took.
fn read(fixture: &Fixture, disk: &Arc<dyn Disk>, (open, other): (f64, Sector)) -> Outcome<Steps> {
    let block = |at: Sector| -> Outcome<f64> {
        let (from, began) = (disk.clone(), Instant::now());
        let range = SectorRange::new(at, SectorCount::of_bytes(BLOCK));
        let done = fixture.on(move |env| async move {
            let segs = env.segs(range.count);
            env.io(&from, Io::read(range, segs)).await
        });
        let failed = |error| {
            ConfigError::new(ConfigKind::System, disk.name(), "bench: a read").with_source(error)
        };
        done.map(|_| ms(began.elapsed())).map_err(failed)
    };
    Ok(Steps { open, first: block(Sector(0))?, other: block(other)? })
}
