//! Part of `bench images`: 4 KiB reads of an image of qemu (qcow2, a file in memory), beside
//! `qemu-img bench`, which reads the same blocks in the same order.
//!
//! Processor time is that of all threads, and the kernel's for them; from that of qemu-img a run
//! with one request is taken off.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use cairn_block::{ConfigKind, Op};
use cairn_outcome::failure::{Outcome, refused, system};

use super::clock::Took;
use super::fixture::Fixture;
use super::gave::{Gave, tell};
use super::load::Job;
use super::peers::children_time;
use super::row::{Report, Row};
use super::sample::{Subject, interleave};
use super::settings::Settings;

const PROGRAM: &str = "qemu-img";
const BLOCK: u64 = 4 << 10;
const SECTORS: u64 = BLOCK / 512;
/// From one block to the next, in blocks, around the end. It is odd, so that every block of a power
/// of two has its turn.
const STEP: u64 = 10_007;
const CLIENTS: [&str; 2] = ["cairn", "qemu-img"];

/// Makes an image of the content of a file; it has its length.
///
/// # Errors
/// qemu-img cannot be run, or fails.
pub fn convert(raw: &Path, image: &Path) -> Outcome<()> {
    let formats = ["convert", "-f", "raw", "-O", "qcow2"];
    let mut command = Command::new(PROGRAM);
    command.args(formats).arg(raw).arg(image);
    qemu(command, image).map(drop)
}

/// Adds the rows of an image, all of whose blocks are allocated.
///
/// # Errors
/// The image cannot be read.
pub fn run(
    name: &'static str,
    settings: &Settings,
    path: &Path,
    report: &mut Report,
) -> Outcome<()> {
    let fixture = Fixture::make()?;
    let disk = fixture.open(&format!("qcow2:{}", path.display()))?;
    let blocks = disk.sectors().to_bytes() / BLOCK;
    for depth in [32, 1] {
        let requests = settings.pick(if depth == 1 { 20_000 } else { 100_000 }, 1_000);
        let places = (0..requests).map(|turn| turn * STEP % blocks * SECTORS).collect();
        let job = Job { depth, turn: depth, ..Job::new(Op::Read, BLOCK as usize, places) };
        let subjects: Vec<Subject<'_, Gave>> = vec![
            Box::new(|| Gave::by_all_threads(&fixture, &disk, &job)),
            Box::new(|| theirs(path, requests, depth)),
        ];
        let taken = interleave(settings.runs, subjects)?;
        tell(report, CLIENTS, &taken, |value, unit, client| {
            Row::new(name, value, unit)
                .with("what", "qcow2 read")
                .with("depth", depth as u64)
                .with("client", client)
        });
    }
    Ok(())
}

fn theirs(path: &Path, requests: u64, depth: usize) -> Outcome<Gave> {
    let run = |count: u64| -> Outcome<Took> {
        let mut command = Command::new(PROGRAM);
        command.args(["bench", "-f", "qcow2", "-c", &count.to_string()]);
        command.args(["-d", &depth.to_string(), "-s", &BLOCK.to_string()]);
        command.args(["-S", &(STEP * BLOCK).to_string()]).arg(path);
        let before = children_time()?;
        let wall = seconds(&qemu(command, path)?, path)?;
        Ok(Took { processor: children_time()?.saturating_sub(before), wall })
    };
    let (all, one) = (run(requests)?, run(1)?);
    let processor = all.processor.saturating_sub(one.processor);
    Ok(Gave::of(Took { processor, ..all }, requests as usize))
}

/// Runs qemu-img; answers what it prints.
fn qemu(mut command: Command, path: &Path) -> Outcome<String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| system(PROGRAM, "run", error))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let found = format!("{} saying '{}'", output.status, said.lines().next().unwrap_or("nothing"));
    Err(refused(ConfigKind::System, path.display().to_string(), PROGRAM, found, "success"))
}

/// The time that `qemu-img bench` prints.
fn seconds(text: &str, path: &Path) -> Outcome<Duration> {
    let time = text.split("completed in ").nth(1).and_then(|rest| rest.split(' ').next());
    let time = time.and_then(|time| time.parse().ok());
    time.and_then(|time| Duration::try_from_secs_f64(time).ok()).ok_or_else(|| {
        let (found, expected) = (format!("'{}'", text.trim()), "how long it took");
        refused(ConfigKind::System, path.display().to_string(), PROGRAM, found, expected)
    })
}
