//! `bench remote`: what a request to an NBD server costs this program's client, beside fio's nbd
//! engine (libnbd), over a unix socket to nbdkit's memory plugin.
//!
//! Told per job: requests per second in wall time, and processor time of the client's process per
//! request, that of the kernel for it included. The clients have their turns at one server. Then a
//! write cache in front of such a server, beside one over a disk of this process.

use std::sync::Arc;

use cairn_backends::DeviceOpener;
use cairn_block::{Disk, Op, Opener};
use cairn_outcome::failure::Outcome;
use serde_json::Value;

use super::fio::{self, fio};
use super::fixture::Fixture;
use super::gave::{Gave, tell};
use super::load::{Job, run as run_job, scattered};
use super::peers::{Folder, Peer, Server};
use super::remotecache;
use super::row::{Report, Row};
use super::sample::{Subject, interleave};
use super::settings::Settings;

const NAME: &str = "remote";
const MIB: u64 = 1 << 20;
const BLOCK: usize = 4 << 10;

/// The clients, by what the URI of ours has more; none is fio.
const CLIENTS: [(&str, Option<&str>); 5] = [
    ("cairn", Some("")),
    ("cairn_exclusive", Some("&exclusive")),
    ("cairn_2_connections", Some("&connections=2")),
    ("cairn_4_connections", Some("&connections=4")),
    ("fio", None),
];

/// Runs the benchmark.
///
/// # Errors
/// The server or a client failed.
pub fn run(settings: &Settings) -> Outcome<Report> {
    let mut report = Report::default();
    clients(settings, &mut report)?;
    remotecache::run(NAME, settings, &mut report)?;
    Ok(report)
}

fn clients(settings: &Settings, report: &mut Report) -> Outcome<()> {
    let (folder, bytes) = (Folder::make()?, settings.pick(256 * MIB, 16 * MIB));
    let server = Server::start(Peer::Nbdkit, &folder, bytes)?;
    let Some(server) = server.filter(|_| fio::is_there()) else {
        report.note("remote: the clients are left out: need nbdkit, and a fio with the nbd engine");
        return Ok(());
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
        tell(report, CLIENTS.map(|(name, _)| name), &taken, |value, unit, client| {
            let row = Row::new(NAME, value, unit).with("client", client);
            row.with("rw", op.name()).with("depth", depth as u64)
        });
    }
    Ok(())
}

fn ours(fixture: &Fixture, disk: &Arc<dyn Disk>, job: &Job) -> Outcome<Gave> {
    Ok(Gave::of(run_job(fixture, disk, job)?, job.requests()))
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
