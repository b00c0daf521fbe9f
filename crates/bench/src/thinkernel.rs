//! Part of `bench thin`: blocks provisioned and written again, beside the kernel's dm-thin in
//! user-mode Linux on this machine, in turns with ours. One worker, wall time on both sides; our
//! final commit is inside the timing, the kernel's is not.

use std::path::Path;

use cairn_block::Op;
use cairn_outcome::failure::Outcome;

use super::kernel::boot;
use super::row::{Report, Row, Samples};
use super::settings::Settings;
use super::snapshotfixture::{Phase, Side};
use super::thinfixture::{How, MIB, NAME, Step, ThinFixture, disks};

const GUEST: &str = include_str!("thin-guest.sh");
/// Bytes of each write.
const SIZES: [usize; 3] = [64 << 10, 512 << 10, 1 << 20];
const PHASES: [&str; 2] = ["first_write", "write_again"];

/// Adds the rows, or a note if there is no kernel to run.
///
/// # Errors
/// The kernel or a pool of ours failed.
pub fn run(settings: &Settings, uml: &Path, report: &mut Report) -> Outcome<()> {
    let span = settings.pick(256 * MIB, 16 * MIB);
    let data = span * 3 / 2;
    let fixture = ThinFixture::make(1, &disks(span)?)?;
    let mut words = vec![(data / 1024).to_string(), (span / 1024).to_string()];
    words.extend(SIZES.iter().map(usize::to_string));
    let count = SIZES.len() * PHASES.len();
    let (mut ours, mut theirs) = (vec![Vec::new(); count], vec![Vec::new(); count]);
    for _ in 0..settings.runs {
        let lines = match boot(uml, GUEST, 2 * data / MIB, &words, count)? {
            Ok(lines) => lines,
            Err(reason) => {
                report.note(format!("kernel: left out: {reason}"));
                return Ok(());
            }
        };
        for (index, line) in lines.iter().enumerate() {
            theirs[index].push(line.parse().unwrap_or(f64::NAN));
        }
        for (index, bytes) in SIZES.into_iter().enumerate() {
            let write = Phase::small("write", Side::Origin, Op::Write);
            let write = Phase { bytes, stride: bytes, ..write };
            let step = Step::Run(write, How { flush: true, ..How::RANDOM });
            for (phase, figures) in fixture.measure("0", span, &[step, step])?.iter().enumerate() {
                let bytes_per_s = figures.per_s * bytes as f64;
                ours[index * PHASES.len() + phase].push(bytes_per_s / MIB as f64);
            }
        }
    }
    for (index, (ours, theirs)) in ours.into_iter().zip(theirs).enumerate() {
        let row = Row::new(NAME, Samples(ours), "MiB/s")
            .with("what", PHASES[index % PHASES.len()])
            .with("bytes", SIZES[index / PHASES.len()])
            .with("beside", "kernel");
        report.push(row.against(&Samples(theirs)));
    }
    Ok(())
}
