//! Part of `bench writecache`: the same job on the kernel's dm-writecache, in user-mode Linux on
//! this machine, in turns with ours. Both are in wall time; the kernel's final commit is not
//! in its timing, ours is.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use cairn_backends::NullDisk;
use cairn_block::{Disk, SectorCount};
use cairn_outcome::failure::{Outcome, refused, system};

use super::cachefixture::{CacheFixture, NO_WRITEBACK, touch};
use super::cachesizes::Sizes;
use super::clock::mib_per_s;
use super::image;
use super::load::run as run_job;
use super::row::{Report, Row, Samples};
use super::settings::Settings;

const GUEST: &str = include_str!("kernel-guest.sh");
/// The exit status of the boot script if there is no kernel.
const SKIPPED: i32 = 77;
/// Memory of the guest beyond its disks, in MiB.
const GUEST_MIB: u64 = 512;
/// Seconds.
const GUEST_LIMIT: &str = "600";

/// One round: block (0 for the raw disk), operation, MiB/s.
type Round = Vec<(u32, String, f64)>;

/// Adds the rows, or a note if there is no kernel to run.
///
/// # Errors
/// The kernel or a cache of ours failed.
pub fn run(settings: &Settings, sizes: &Sizes, uml: &Path, report: &mut Report) -> Outcome<()> {
    let (mut theirs, mut ours): (Vec<Round>, Vec<Round>) = (Vec::new(), Vec::new());
    let origin: Arc<dyn Disk> = Arc::new(NullDisk::new(SectorCount::of_bytes(sizes.span)));
    let cache = CacheFixture::make(sizes.cache, origin)?;
    let raw = cache.fixture.memory("raw", sizes.span)?;
    touch(&cache.fixture, &raw)?;
    for _ in 0..settings.runs {
        match guest(sizes, uml)? {
            Ok(round) => theirs.push(round),
            Err(reason) => {
                report.note(format!("kernel: left out: {reason}"));
                return Ok(());
            }
        }
        let mut round: Round = Vec::new();
        let took = run_job(&cache.fixture, &raw, &sizes.job(5))?;
        round.push((0, "raw".to_owned(), mib_per_s(sizes.span, took.wall)));
        for &block in sizes.blocks {
            let geometry = cache.geometry(block)?;
            let fresh = Arc::new(image::make(&geometry, |_| None));
            let jobs = [sizes.job(5), sizes.job(6)];
            let measured = cache.measure(&geometry, &fresh, NO_WRITEBACK, &jobs)?;
            for (op, took) in ["insert", "overwrite"].into_iter().zip(measured.took) {
                round.push((block, op.to_owned(), mib_per_s(sizes.span, took.wall)));
            }
        }
        ours.push(round);
    }
    for (index, (block, op, _)) in ours[0].iter().enumerate() {
        let of = |rounds: &[Round]| Samples(rounds.iter().map(|round| round[index].2).collect());
        let row = Row::new("writecache", of(&ours), "MiB/s").with("block", *block);
        let row = row.with("op", op.as_str()).with("beside", "kernel");
        report.push(row.against(&of(&theirs)));
    }
    Ok(())
}

/// Boots the kernel once. Answers its figures, or why there are none.
fn guest(sizes: &Sizes, uml: &Path) -> Outcome<Result<Round, String>> {
    let mut words = vec![(sizes.cache / 1024).to_string(), (sizes.span / (1 << 20)).to_string()];
    words.extend(sizes.blocks.iter().map(u32::to_string));
    let lines = boot(uml, GUEST, sizes.cache / (1 << 20), &words, 1 + 2 * sizes.blocks.len())?;
    Ok(lines.map(|lines| lines.iter().filter_map(|line| figure(line)).collect()))
}

/// Boots the kernel with disks of so many MiB in its memory and runs a script in it. Answers the
/// `count` lines that it printed, or why there is no kernel to boot.
///
/// # Errors
/// The script failed, or printed something else.
pub fn boot(
    uml: &Path,
    script: &str,
    disks_mib: u64,
    words: &[String],
    count: usize,
) -> Outcome<Result<Vec<String>, String>> {
    let shown = uml.display().to_string();
    if !uml.exists() {
        return Ok(Err(format!("{shown}: found nothing, expected the script (--uml)")));
    }
    let folder = std::env::temp_dir().join(format!("cairn-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|error| system(&shown, "make a folder", error))?;
    let path = folder.join("guest.sh");
    let written = std::fs::write(&path, script);
    let output = written.and_then(|()| {
        let memory = format!("{}M", disks_mib + GUEST_MIB);
        let mut command = Command::new(uml);
        command.args(["-m", &memory, "-t", GUEST_LIMIT]).arg(&path).args(words);
        command.stdin(Stdio::null()).output()
    });
    drop(std::fs::remove_dir_all(&folder));
    let output = output.map_err(|error| system(&shown, "run", error))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let last = lines.last().cloned().unwrap_or_else(|| "nothing".to_owned());
    if output.status.code() == Some(SKIPPED) {
        return Ok(Err(last));
    }
    if !output.status.success() || lines.len() != count {
        let kind = cairn_block::ConfigKind::System;
        return Err(refused(kind, shown, "guest", format!("'{last}'"), "a line per figure"));
    }
    Ok(Ok(lines))
}

fn figure(line: &str) -> Option<(u32, String, f64)> {
    let mut words = line.split_whitespace();
    let (block, op, speed) = (words.next()?, words.next()?, words.next()?);
    Some((block.parse().ok()?, op.to_owned(), speed.parse().ok()?))
}
