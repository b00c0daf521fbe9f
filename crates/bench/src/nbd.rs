//! `bench nbd`: the same fio jobs on this program's NBD server and on its peers', in turns, one
//! connection or two over a unix socket.
//!
//! Told per job and server: requests or MiB per second in wall time, and the processor time of
//! the server's process per request, which does not depend on how fast fio is.

use std::time::Duration;

use cairn_outcome::failure::Outcome;
use serde_json::Value;

use super::fio::{self, fio};
use super::peers::{Folder, Peer, Server};
use super::row::{Report, Row, Samples};
use super::sample::{Subject, interleave};
use super::settings::Settings;

const NAME: &str = "nbd";
const MIB: u64 = 1 << 20;

/// A job for fio.
struct Job {
    rw: &'static str,
    bytes: u32,
    depth: u32,
    connections: u32,
}

const JOBS: [Job; 8] = [
    Job { rw: "randwrite", bytes: 4 << 10, depth: 32, connections: 1 },
    Job { rw: "randwrite", bytes: 4 << 10, depth: 32, connections: 2 },
    Job { rw: "randread", bytes: 4 << 10, depth: 32, connections: 1 },
    Job { rw: "randread", bytes: 4 << 10, depth: 32, connections: 2 },
    Job { rw: "randwrite", bytes: 512 << 10, depth: 8, connections: 1 },
    Job { rw: "randread", bytes: 512 << 10, depth: 8, connections: 1 },
    Job { rw: "randwrite", bytes: 4 << 10, depth: 1, connections: 1 },
    Job { rw: "randread", bytes: 4 << 10, depth: 1, connections: 1 },
];

/// What a job on a server gave.
struct Gave {
    per_s: f64,
    processor_us: f64,
    latency_us: f64,
}

/// A unit and where to find the figure.
type Figure = (&'static str, fn(&Gave) -> f64);

/// Runs the benchmark.
///
/// # Errors
/// A server or fio failed.
pub fn run(settings: &Settings) -> Outcome<Report> {
    let mut report = Report::default();
    if !fio::is_there() {
        report.note("nbd: left out: needs a fio with the nbd engine");
        return Ok(report);
    }
    let (folder, bytes) = (Folder::make()?, settings.pick(256 * MIB, 16 * MIB));
    let mut servers = Vec::new();
    for peer in Peer::ALL {
        match Server::start(peer, &folder, bytes)? {
            Some(server) => servers.push(server),
            None => report.note(format!("nbd: {} left out: not installed", peer.name())),
        }
    }
    for server in &servers {
        fio(server, &["--rw=write", "--bs=1M", "--iodepth=4", &format!("--size={bytes}")])?;
    }
    for job in &JOBS[..settings.pick(JOBS.len(), 2)] {
        let measure =
            |server| -> Subject<'_, Gave> { Box::new(move || one(server, job, settings)) };
        let taken = interleave(settings.runs, servers.iter().map(measure).collect())?;
        tell(&mut report, job, &servers, &taken);
    }
    Ok(report)
}

fn tell(report: &mut Report, job: &Job, servers: &[Server], taken: &[Vec<Gave>]) {
    let samples = |server: usize, of: fn(&Gave) -> f64| -> Samples {
        Samples(taken[server].iter().map(of).collect())
    };
    let figures: [Figure; 3] = [
        ("requests/s", |gave| gave.per_s),
        ("server us/request", |gave| gave.processor_us),
        ("us latency", |gave| gave.latency_us),
    ];
    for (unit, of) in figures {
        for (index, server) in servers.iter().enumerate() {
            let row = || {
                Row::new(NAME, samples(index, of), unit)
                    .with("server", server.peer.name())
                    .with("rw", job.rw)
                    .with("bytes", job.bytes)
                    .with("depth", job.depth)
                    .with("connections", job.connections)
            };
            let peers = servers.iter().enumerate().filter(|(_, peer)| !peer.peer.is_ours());
            if server.peer.is_ours() && peers.clone().next().is_some() {
                for (other, peer) in peers {
                    let row = row().with("beside", peer.peer.name());
                    report.push(row.against(&samples(other, of)));
                }
            } else {
                report.push(row());
            }
        }
    }
}

fn one(server: &Server, job: &Job, settings: &Settings) -> Outcome<Gave> {
    let before = server.processor_time()?;
    let done = fio(
        server,
        &[
            &format!("--rw={}", job.rw),
            &format!("--bs={}", job.bytes),
            &format!("--iodepth={}", job.depth),
            &format!("--numjobs={}", job.connections),
            "--time_based",
            settings.pick("--runtime=2s", "--runtime=100ms"),
        ],
    )?;
    let spent = server.processor_time()?.saturating_sub(before);
    let side = &done["jobs"][0][if job.rw == "randread" { "read" } else { "write" }];
    let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
    let requests = number(&side["total_ios"]).max(1.0);
    Ok(Gave {
        per_s: number(&side["iops"]),
        processor_us: us(spent) / requests,
        latency_us: number(&side["clat_ns"]["mean"]) / 1000.0,
    })
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
