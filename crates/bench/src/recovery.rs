//! `bench recovery`: how long a write cache takes to open, and how much memory that takes, by the
//! number of its entries.
//!
//! The cache device is memory too, so that the figures are the program's own: add the time that a
//! drive takes to read 16 bytes per entry. `sorted`: neighbouring slots hold neighbouring blocks;
//! `shuffled`: they hold blocks in no order, the worst for an index by run. Memory is what the
//! process holds beyond what it held before: at the peak, and when the volume is up. Each opening
//! is a process of its own, since memory that one gave back may serve the next unseen.

use std::process::{Command, Stdio};
use std::sync::Arc;

use cairn_backends::{MemoryDisk, NullDisk};
use cairn_block::{ConfigError, ConfigKind, Disk, SectorCount};
use cairn_outcome::failure::{Outcome, refused, system, wrong};
use cairn_outcome::stdout;

use super::clock::Moment;
use super::fixture::Fixture;
use super::image;
use super::row::{Report, Row, Samples};
use super::settings::Settings;

const BLOCK_BYTES: u32 = 4096;
const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// One opening.
struct Opening {
    seconds: f64,
    /// Of the processor, on the reactor.
    processor_seconds: f64,
    peak_bytes: f64,
    held_bytes: f64,
}

/// Runs the benchmark.
///
/// # Errors
/// A cache cannot be made or opened.
pub fn run(settings: &Settings) -> Outcome<Report> {
    let mut report = Report::default();
    let sizes: &[u64] = settings.pick(&[GIB, 10 * GIB, 100 * GIB], &[16 * MIB]);
    for &cache_bytes in sizes {
        for order in ["sorted", "shuffled"] {
            let entries = image::geometry(cache_bytes, BLOCK_BYTES)?.n_blocks();
            let mut openings = Vec::new();
            for _ in 0..settings.runs {
                openings.push(apart(cache_bytes, order)?);
            }
            let samples = |of: fn(&Opening) -> f64| Samples(openings.iter().map(of).collect());
            let row = |value: Samples, unit| {
                Row::new("recovery", value, unit).with("entries", entries).with("order", order)
            };
            let each = |value: Samples| {
                Samples(value.0.into_iter().map(|bytes| bytes / entries as f64).collect())
            };
            report.push(row(samples(|opening| opening.seconds), "s"));
            let processor = samples(|opening| opening.processor_seconds);
            report.push(row(processor, "s").with("of", "processor"));
            let peak = each(samples(|opening| opening.peak_bytes));
            report.push(row(peak, "bytes/entry").with("memory", "peak"));
            let held = each(samples(|opening| opening.held_bytes));
            report.push(row(held, "bytes/entry").with("memory", "held"));
        }
    }
    Ok(report)
}

/// One opening in a process of its own.
fn apart(cache_bytes: u64, order: &str) -> Outcome<Opening> {
    let failed = |error| system("bench", "run of a process of its own", error);
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.args(["recovery", "--opening", order, &cache_bytes.to_string()]);
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().map_err(failed)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let figures: Vec<f64> = text.split_whitespace().flat_map(str::parse).collect();
    match figures[..] {
        [seconds, processor_seconds, peak_bytes, held_bytes] => {
            Ok(Opening { seconds, processor_seconds, peak_bytes, held_bytes })
        }
        _ => {
            let found = format!("'{}' and {}", text.trim(), output.status);
            Err(refused(ConfigKind::System, "bench", "opening", found, "four figures"))
        }
    }
}

/// The other end of that: opens once and prints the figures. `words` are the order and the size
/// of the cache in bytes.
///
/// # Errors
/// The words are not that, or the cache cannot be opened.
pub fn open_here(words: &[String]) -> Outcome<u8> {
    let [order, bytes] = words else {
        return Err(wrong("bench", "opening", words.len(), "an order and a size"));
    };
    let bytes = bytes.parse().map_err(|_| wrong("bench", "opening", bytes, "a size in bytes"))?;
    let Opening { seconds, processor_seconds, peak_bytes, held_bytes } =
        open(bytes, order == "shuffled")?;
    stdout::print(&format!("{seconds} {processor_seconds} {peak_bytes} {held_bytes}\n"))
}

/// A prime that divides no number of entries here: multiples of it visit every block once.
const STRIDE: u64 = 1_000_003;

fn open(cache_bytes: u64, shuffled: bool) -> Outcome<Opening> {
    let fixture = Fixture::make()?;
    let geometry = image::geometry(cache_bytes, BLOCK_BYTES)?;
    let entries = geometry.n_blocks();
    // Blocks apart from each other, so that the origin has room for all of them in any order.
    let block_of = |slot: u64| if shuffled { slot * STRIDE % entries } else { slot };
    let cache: Arc<dyn Disk> = Arc::new(MemoryDisk::new(SectorCount::of_bytes(cache_bytes))?);
    fixture.put("cache", cache.clone());
    let sectors = SectorCount::of_bytes(cache_bytes);
    fixture.put("origin", Arc::new(NullDisk::new(sectors)));
    let metadata = Arc::new(image::make(&geometry, |slot| Some(block_of(slot))));
    image::store(&fixture, &cache, &metadata)?;
    drop(metadata);
    let before = Memory::now()?;
    Memory::forget_peak()?;
    let (began, on_reactor) = (Moment::now(), fixture.on(|_| async { Moment::now() }));
    let table = format!(
        "0 {sectors} writecache s origin cache {BLOCK_BYTES} 4 \
                         high_watermark 100 low_watermark 100"
    );
    fixture.volume("volume", &table)?;
    let seconds = began.elapsed().wall.as_secs_f64();
    let processor = fixture.on(move |_| async move { on_reactor.elapsed().processor });
    let after = Memory::now()?;
    fixture.remove("volume")?;
    let grown = |bytes: u64| bytes.saturating_sub(before.held) as f64;
    Ok(Opening {
        seconds,
        processor_seconds: processor.as_secs_f64(),
        peak_bytes: grown(after.peak),
        held_bytes: grown(after.held),
    })
}

/// What the system says of this process's memory, in bytes.
pub struct Memory {
    /// The most since the peak was forgotten.
    pub peak: u64,
    /// Now.
    pub held: u64,
}

impl Memory {
    /// As it is now.
    ///
    /// # Errors
    /// The system does not say.
    pub fn now() -> Outcome<Memory> {
        let path = "/proc/self/status";
        let text = std::fs::read_to_string(path).map_err(|error| system(path, "read", error))?;
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
            kib.map(|kib| kib * 1024).ok_or_else(|| {
                let detail = format!("{name} found no number, expected one");
                ConfigError::new(ConfigKind::System, path, detail)
            })
        };
        Ok(Memory { peak: field("VmHWM:")?, held: field("VmRSS:")? })
    }

    /// Lets the peak begin anew at what is held now.
    ///
    /// # Errors
    /// The system does not let it.
    pub fn forget_peak() -> Outcome<()> {
        let path = "/proc/self/clear_refs";
        std::fs::write(path, "5").map_err(|error| system(path, "write", error))
    }
}
