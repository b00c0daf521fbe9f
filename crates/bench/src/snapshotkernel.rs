//! Part of `bench snapshot`: the same jobs on the kernel's dm-snapshot, in user-mode Linux on this
//! machine, in turns with ours. One worker, wall time on both sides. User-mode Linux is fair to
//! large requests (it copies as fast as we do) and slow at small ones: its system calls are.

use std::path::Path;

use cairn_block::Op;
use cairn_outcome::failure::Outcome;
use cairn_targets::snapshot::Locks;

use super::kernel::boot;
use super::row::{Report, Row, Samples};
use super::settings::Settings;
use super::snapshotfixture::{MIB, NAME, Phase, Shape, Side, SnapshotFixture, cow_bytes, disks};

const GUEST: &str = include_str!("snapshot-guest.sh");

/// A job on a snapshot of its own.
struct Load {
    store: &'static str,
    chunk: u64,
    phase: Phase,
}

const LOADS: [Load; 6] = {
    const SMALL: Phase = Phase::small("copy_out", Side::Origin, Op::Write);
    const LARGE: Phase = Phase { bytes: 64 << 10, stride: 64 << 10, ..SMALL };
    const FIRST: Phase = Phase { what: "first_write", on: Side::Snapshot, ..LARGE };
    const fn load(store: &'static str, chunk: u64, phase: Phase) -> Load {
        Load { store, chunk, phase }
    }
    [
        load("P", 8, SMALL),
        load("N", 8, SMALL),
        load("P", 128, LARGE),
        load("N", 128, LARGE),
        load("P", 128, FIRST),
        load("N", 128, FIRST),
    ]
};

/// Adds the rows, or a note if there is no kernel to run.
///
/// # Errors
/// The kernel or a snapshot of ours failed.
pub fn run(settings: &Settings, uml: &Path, report: &mut Report) -> Outcome<()> {
    let span = settings.pick(256 * MIB, 4 * MIB);
    let [origin, cow] = disks("memory", span)?;
    let fixture = SnapshotFixture::make(1, Locks::Sharded, &origin, &cow)?;
    let mut words = vec![(span / 1024).to_string(), (cow_bytes(span) / 1024).to_string()];
    words.extend(LOADS.iter().map(|Load { store, chunk, phase }| {
        let volume = if phase.on == Side::Origin { "origin" } else { "snapshot" };
        format!("{volume}:{store}:{chunk}:{}", phase.bytes)
    }));
    let disks_mib = (span + cow_bytes(span)) / MIB;
    let mut ours = vec![Vec::new(); LOADS.len()];
    let mut theirs = ours.clone();
    for _ in 0..settings.runs {
        let lines = match boot(uml, GUEST, disks_mib, &words, LOADS.len())? {
            Ok(lines) => lines,
            Err(reason) => {
                report.note(format!("kernel: left out: {reason}"));
                return Ok(());
            }
        };
        for (index, (load, line)) in LOADS.iter().zip(lines).enumerate() {
            theirs[index].push(line.parse().unwrap_or(f64::NAN));
            let shape = Shape { store: load.store, chunk: load.chunk };
            let figures = fixture.measure(shape, span, std::slice::from_ref(&load.phase))?;
            let bytes = figures[0].per_s * load.phase.bytes as f64;
            ours[index].push(bytes / MIB as f64);
        }
    }
    for (load, (ours, theirs)) in LOADS.iter().zip(ours.into_iter().zip(theirs)) {
        let row = Row::new(NAME, Samples(ours), "MiB/s")
            .with("store", load.store)
            .with("chunk", load.chunk * 512)
            .with("what", load.phase.what)
            .with("bytes", load.phase.bytes)
            .with("beside", "kernel");
        report.push(row.against(&Samples(theirs)));
    }
    Ok(())
}
