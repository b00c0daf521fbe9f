//! `bench remote`: what a request to an NBD server costs this program's client, beside fio's nbd
//! engine (libnbd), over a unix socket to nbdkit's memory plugin.
//!
//! Told per job: requests per second in wall time, and processor time of the client's process per
//! request, that of the kernel for it included. The clients have their turns at one server.

use std::sync::Arc;

use cairn_backends::DeviceOpener;
use cairn_block::{Disk, Op, Opener};
use cairn_outcome::failure::Outcome;
use serde_json::Value;

use super::fio::{self, fio};
use super::fixture::Fixture;
use super::load::{Job, run as run_job, scattered};
use super::peers::{Folder, Peer, Server};
use super::row::{Report, Row, Samples};
use super::sample::{Subject, interleave};
use super::settings::Settings;

const NAME: &str = "remote";
const MIB: u64 = 1 << 20;
const BLOCK: usize = 4 << 10;

/// The clients, by what the URI of ours has more; none is fio.
const CLIENTS: [(&str, Option<&str>); 3] =
    [("cairn", Some("")), ("cairn_exclusive", Some("&exclusive")), ("fio", None)];

/// What a job gave.
struct Gave {
    per_s: f64,
    processor_us: f64,
}

/// A unit and where to find the figure.
type Figure = (&'static str, fn(&Gave) -> f64);

/// Runs the benchmark.
///
/// # Errors
/// The server or a client failed.
pub fn run(settings: &Settings) -> Outcome<Report> {
    let mut report = Report::default();
    let (folder, bytes) = (Folder::make()?, settings.pick(256 * MIB, 16 * MIB));
    let server = Server::start(Peer::Nbdkit, &folder, bytes)?;
    let Some(server) = server.filter(|_| fio::is_there()) else {
        report.note("remote: left out: needs nbdkit, and a fio with the nbd engine");
        return Ok(report);
    };
    fio(&server, &["--rw=write", "--bs=1M", "--iodepth=4", &format!("--size={bytes}")])?;
    let fixture = Fixture::make()?;
    for (op, depth) in [(Op::Read, 32), (Op::Write, 32), (Op::Read, 1), (Op::Write, 1)] {
        let mut subjects: Vec<Subject<'_, Gave>> = Vec::new();
        for (_, more) in CLIENTS {
            let (server, fixture) = (&server, &fixture);
            subjects.push(match more {
                None => Box::new(move || theirs(server, (op, depth), settings)),
                Some(more) => {
                    let uri = format!("{}{more}", server.uri);
                    let disk = DeviceOpener::default().open(&uri, false, Arc::default())?;
                    let requests = settings.pick(if depth == 1 { 20_000 } else { 200_000 }, 1_000);
                    let places = scattered(0, bytes, BLOCK, requests, 7);
                    let job = Job { depth, turn: depth, ..Job::new(op, BLOCK, places) };
                    Box::new(move || ours(fixture, &disk, &job))
                }
            });
        }
        let taken = interleave(settings.runs, subjects)?;
        tell(&mut report, (op, depth), &taken);
    }
    Ok(report)
}

fn ours(fixture: &Fixture, disk: &Arc<dyn Disk>, job: &Job) -> Outcome<Gave> {
    let took = run_job(fixture, disk, job)?;
    let per_s = job.requests() as f64 / took.wall.as_secs_f64();
    Ok(Gave { per_s, processor_us: took.us_each(job.requests()) })
}

fn theirs(server: &Server, (op, depth): (Op, usize), settings: &Settings) -> Outcome<Gave> {
    let (rw, side) = match op {
        Op::Read => ("--rw=randread", "read"),
        _ => ("--rw=randwrite", "write"),
    };
    let runtime = settings.pick("--runtime=2s", "--runtime=100ms");
    let depth = format!("--iodepth={depth}");
    let done = fio(server, &[rw, "--bs=4k", &depth, "--time_based", runtime])?;
    let job = &done["jobs"][0];
    let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
    let share = (number(&job["usr_cpu"]) + number(&job["sys_cpu"])) / 100.0;
    let spent_us = share * number(&job["job_runtime"]) * 1000.0;
    let requests = number(&job[side]["total_ios"]).max(1.0);
    Ok(Gave { per_s: number(&job[side]["iops"]), processor_us: spent_us / requests })
}

fn tell(report: &mut Report, (op, depth): (Op, usize), taken: &[Vec<Gave>]) {
    let samples = |client: usize, of: fn(&Gave) -> f64| -> Samples {
        Samples(taken[client].iter().map(of).collect())
    };
    let figures: [Figure; 2] =
        [("requests/s", |gave| gave.per_s), ("client us/request", |gave| gave.processor_us)];
    let fio = CLIENTS.len() - 1;
    for (unit, of) in figures {
        for (client, (name, _)) in CLIENTS.iter().enumerate() {
            let row = Row::new(NAME, samples(client, of), unit)
                .with("client", *name)
                .with("rw", op.name())
                .with("depth", depth as u64);
            report.push(match client == fio {
                true => row,
                false => row.with("beside", "fio").against(&samples(fio, of)),
            });
        }
    }
}
