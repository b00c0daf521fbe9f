//! Part of `bench bcache`: writes into the cache beside the kernel's bcache, in user-mode Linux on
//! this machine, in turns with ours: the same job on devices in memory, on a fresh set in mode
//! writeback, with nothing written back. One worker, wall time on both sides. Our final flush is
//! inside the timing, the kernel's is not. `op=dsync`: one client that waits until each write is
//! durable.

use std::path::Path;

use cairn_block::{Flags, Io, IoError, Sector, SectorCount, SectorRange};
use cairn_outcome::failure::{Outcome, system};

use super::bcacheinserts::{Inserts, Load};
use super::clock::{Moment, mib_per_s};
use super::kernel::boot;
use super::load::{run as run_job, shuffled};
use super::row::{Report, Row, Samples};
use super::settings::Settings;

const GUEST: &str = include_str!("bcache-guest.sh");
const MIB: u64 = 1 << 20;

/// The jobs: operation, bytes of a request, and requests at once.
const JOBS: [(&str, usize, usize); 3] =
    [("insert", 4 << 10, 32), ("insert", 512 << 10, 32), ("dsync", 32 << 10, 1)];

/// Adds the rows, or a note if there is no kernel to run.
///
/// # Errors
/// The kernel or a set of ours failed.
pub fn run(
    name: &'static str,
    settings: &Settings,
    uml: &Path,
    report: &mut Report,
) -> Outcome<()> {
    // The kernel refuses caches of 512 buckets or fewer.
    let span = settings.pick(256 * MIB, 128 * MIB);
    let inserts = Inserts::make(1, "memory", span)?;
    let cache_bytes = inserts.set.cache_bytes();
    let mut words = vec![(cache_bytes / 1024).to_string(), (span / 1024).to_string()];
    let job = |(op, bytes, depth)| format!("{bytes}:{depth}:{}", u8::from(op == "dsync"));
    words.extend(JOBS.map(job));
    let (mut ours, mut theirs) = (vec![Vec::new(); JOBS.len()], vec![Vec::new(); JOBS.len()]);
    for _ in 0..settings.runs {
        let disks_mib = 2 * cache_bytes / MIB;
        let lines = match boot(uml, GUEST, disks_mib, &words, JOBS.len())? {
            Ok(lines) => lines,
            Err(reason) => {
                report.note(format!("kernel: left out: {reason}"));
                return Ok(());
            }
        };
        for (index, ((op, bytes, _), line)) in JOBS.into_iter().zip(lines).enumerate() {
            theirs[index].push(line.parse().unwrap_or(f64::NAN));
            ours[index].push(measure(&inserts, op, Load { disk: "memory", bytes, span })?);
        }
    }
    for ((op, bytes, _), (ours, theirs)) in JOBS.into_iter().zip(ours.into_iter().zip(theirs)) {
        let row = Row::new(name, Samples(ours), "MiB/s").with("what", "write into the cache");
        let row = row.with("op", op).with("bytes", bytes).with("beside", "kernel");
        report.push(row.against(&Samples(theirs)));
    }
    Ok(())
}

fn measure(inserts: &Inserts, op: &str, load: Load) -> Outcome<f64> {
    let volume = inserts.serve()?;
    let fixture = &inserts.set.fixture;
    let wall = if op == "dsync" {
        let (disk, places) = (volume.clone(), shuffled(load.span, load.bytes, 5));
        let count = SectorCount::of_bytes(load.bytes as u64);
        let took: Result<_, IoError> = fixture.on(move |env| async move {
            let segs = env.segs(count);
            segs.for_each_mut(0, segs.bytes(), |bytes| bytes.fill(7));
            let began = Moment::now();
            for &place in places.iter() {
                let range = SectorRange::new(Sector(place), count);
                env.io(&disk, Io::write(range, segs.clone()).with(Flags::FUA)).await?;
                env.io(&disk, Io::flush()).await?;
            }
            Ok(began.elapsed().wall)
        });
        took.map_err(|error| system("bench", "a durable write", std::io::Error::other(error)))?
    } else {
        run_job(fixture, &volume, &load.job(5))?.wall
    };
    inserts.set.end(volume)?;
    Ok(mib_per_s(load.span, wall))
}
