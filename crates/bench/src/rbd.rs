//! `bench rbd`: what a request to an image of Ceph costs this program, beside fio's rbd engine, on
//! an image that the user names and whose content is lost.
//!
//! Told per job: requests per second in wall time, and processor time of the whole process per
//! request: most of it is spent by the threads of librbd, in either program. An image has one
//! owner, so each turn opens the image and closes it. That is not part of the figures: of ours the
//! job is timed, and from fio's time that of a run with one request is taken off.
//!
//! This program turns the cache of librbd off; `fio` has it off, too, by a copy of the
//! configuration. `fio_cached` has the configuration as it is.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cairn_backends::{DeviceOpener, rbd};
use cairn_block::{ConfigKind, Disk, Op, Opener};
use cairn_outcome::failure::{Outcome, refused, system, wrong};

use super::clock::Took;
use super::fio;
use super::fixture::Fixture;
use super::gave::{Gave, tell};
use super::load::{Job, run as run_job, scattered, sequential};
use super::peers::{Folder, children_time};
use super::row::{Report, Row};
use super::sample::{Subject, interleave};
use super::settings::Settings;

const NAME: &str = "rbd";
const ENGINE: &str = "rbd";
const MIB: u64 = 1 << 20;
const BLOCK: usize = 4 << 10;
const CLIENTS: [&str; 3] = ["cairn", "fio_cached", "fio"];
/// The configuration of Ceph's programs, and the variable that names another one.
const CONF: &str = "/etc/ceph/ceph.conf";
const CONF_VARIABLE: &str = "CEPH_CONF";
const NO_CACHE: &str = "\n[client]\nrbd cache = false\n";

/// What is measured, and on what.
struct Work<'a> {
    pool: &'a str,
    image: &'a str,
    bytes: u64,
    op: Op,
    depth: usize,
    requests: usize,
}

/// Runs the benchmark.
///
/// # Errors
/// The image cannot be opened or used, or fio failed.
pub fn run(settings: &Settings) -> Outcome<Report> {
    let mut report = Report::default();
    let Some(named) = settings.rbd.as_deref().filter(|_| fio::has_engine(ENGINE)) else {
        report.note("rbd: left out: needs --rbd POOL/IMAGE, and a fio with the rbd engine");
        return Ok(report);
    };
    let parts = named.split_once('/').filter(|(_, image)| !image.contains(['/', '@', '?']));
    let Some((pool, image)) = parts else {
        return Err(wrong("--rbd", "image", format!("'{named}'"), "POOL/IMAGE"));
    };
    let folder = Folder::make()?;
    let conf = without_cache(&folder)?;
    let bytes = fill(&uri(pool, image), settings.pick(128 * MIB, 16 * MIB))?;
    for (op, depth) in [(Op::Read, 32), (Op::Write, 32), (Op::Read, 1), (Op::Write, 1)] {
        let requests = settings.pick(if depth == 1 { 10_000 } else { 40_000 }, 400);
        let work = &Work { pool, image, bytes, op, depth, requests };
        let subjects: Vec<Subject<'_, Gave>> = vec![
            Box::new(|| ours(work)),
            Box::new(|| theirs(work, None)),
            Box::new(|| theirs(work, Some(&conf))),
        ];
        let taken = interleave(settings.runs, subjects)?;
        tell(&mut report, CLIENTS, &taken, |value, unit, client| {
            let row = Row::new(NAME, value, unit).with("client", client);
            row.with("rw", op.name()).with("depth", depth as u64)
        });
    }
    Ok(report)
}

fn uri(pool: &str, image: &str) -> String {
    format!("rbd:{pool}/{image}")
}

/// A copy of the configuration in which the cache of librbd is off.
fn without_cache(folder: &Folder) -> Outcome<PathBuf> {
    let from = std::env::var_os(CONF_VARIABLE).map_or_else(|| CONF.into(), PathBuf::from);
    let shown = from.display().to_string();
    let text = std::fs::read_to_string(&from).map_err(|error| system(&shown, "read", error))?;
    let copy = folder.path("ceph.conf");
    std::fs::write(&copy, text + NO_CACHE).map_err(|error| system(shown, "copy", error))?;
    Ok(copy)
}

/// Writes the start of the image, so that all its objects are there. Answers how many bytes.
fn fill(uri: &str, bytes: u64) -> Outcome<u64> {
    with_image(uri, |fixture, disk| {
        let bytes = bytes.min(disk.sectors().to_bytes()) / MIB * MIB;
        if bytes == 0 {
            let found = format!("{} sectors", disk.sectors());
            return Err(wrong(uri, "size", found, "1 MiB or more"));
        }
        let places = sequential(bytes, MIB as usize);
        let job = Job { depth: 8, ..Job::new(Op::Write, MIB as usize, places).flushed() };
        run_job(fixture, disk, &job)?;
        Ok(bytes)
    })
}

/// Opens an image, and closes it before the answer: fio would be refused otherwise.
fn with_image<T>(
    uri: &str,
    work: impl FnOnce(&Fixture, &Arc<dyn Disk>) -> Outcome<T>,
) -> Outcome<T> {
    let done = Fixture::make().and_then(|fixture| {
        let disk = DeviceOpener::default().open(uri, false, Arc::default())?;
        work(&fixture, &disk)
    });
    let is_closed = rbd::finish_closing();
    let done = done?;
    if !is_closed {
        let (found, expected) = ("a cluster that does not answer", "a closed image");
        return Err(refused(ConfigKind::System, uri, "close", found, expected));
    }
    Ok(done)
}

fn ours(work: &Work<'_>) -> Outcome<Gave> {
    let Work { op, depth, requests, bytes, .. } = *work;
    let places = scattered(0, bytes, BLOCK, requests, 7);
    let job = Job { depth, turn: depth, ..Job::new(op, BLOCK, places) };
    let uri = uri(work.pool, work.image);
    with_image(&uri, |fixture, disk| Gave::by_all_threads(fixture, disk, &job))
}

fn theirs(work: &Work<'_>, conf: Option<&Path>) -> Outcome<Gave> {
    let (all, one) = (fio_takes(work, work.requests, conf)?, fio_takes(work, 1, conf)?);
    let processor = all.processor.saturating_sub(one.processor);
    Ok(Gave::of(Took { processor, ..all }, work.requests))
}

/// Wall time of the job of fio, and processor time of all its processes.
fn fio_takes(work: &Work<'_>, requests: usize, conf: Option<&Path>) -> Outcome<Took> {
    let rw = if work.op == Op::Read { "--rw=randread" } else { "--rw=randwrite" };
    let arguments = [
        format!("--ioengine={ENGINE}"),
        format!("--pool={}", work.pool),
        format!("--rbdname={}", work.image),
        format!("--iodepth={}", work.depth),
        format!("--size={}", work.bytes),
        format!("--bs={BLOCK}"),
        format!("--io_size={}", BLOCK * requests),
        "--clientname=admin".to_owned(),
        "--norandommap".to_owned(),
        rw.to_owned(),
    ];
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let environment = conf.map(|conf| (CONF_VARIABLE, conf));
    let before = children_time()?;
    let done = fio::run(work.image, &arguments, environment)?;
    let processor = children_time()?.saturating_sub(before);
    let job = &done["jobs"][0];
    let side = if work.op == Op::Read { "read" } else { "write" };
    let found = job[side]["total_ios"].as_u64();
    if found != Some(requests as u64) {
        let (found, expected) = (format!("{found:?}"), format!("{requests}"));
        return Err(refused(ConfigKind::System, work.image, "requests of fio", found, expected));
    }
    let ms = job["job_runtime"].as_u64().unwrap_or(0);
    Ok(Took { processor, wall: Duration::from_millis(ms) })
}
