//! `bench vhost-user`: the same requests over shared memory on this program's vhost-user server and
//! on qemu-storage-daemon's, in turns, over one queue or two; on this program's over split and over
//! packed rings.
//!
//! The driver is that of another project, in one thread of this process. Told per job and server:
//! requests per second in wall time, the processor time of the server's process per request, and at
//! depth 1 the time of a request.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cairn_block::ConfigKind;
use cairn_outcome::failure::{Outcome, refused, system};
use cairn_outcome::program::sibling;

use super::peers::{Folder, is_there, processor_time};
use super::row::{Report, Row, Samples};
use super::sample::{Subject, interleave};
use super::settings::Settings;
use super::vhostload::{BYTES, DISK_BYTES, Job, Load};

const NAME: &str = "vhost-user";

/// How long it may take to write a disk once.
const FILL_TIME_MAX: Duration = Duration::from_secs(30);

/// How long a server may take to listen.
const START_TRIES: u32 = 500;
const TRY_EVERY: Duration = Duration::from_millis(20);

/// The kinds of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    /// `cairn` on a disk that does nothing.
    Null,
    /// `cairn` on a memory disk.
    Memory,
    /// qemu-storage-daemon on its disk that does nothing.
    Qemu,
}

impl Peer {
    const ALL: [Peer; 3] = [Peer::Null, Peer::Memory, Peer::Qemu];

    fn name(self) -> &'static str {
        match self {
            Peer::Null => "cairn_null",
            Peer::Memory => "cairn_memory",
            Peer::Qemu => "qemu_null",
        }
    }

    fn command(self, folder: &Folder, socket: &Path) -> Command {
        let (sectors, at) = (DISK_BYTES / 512, socket.display());
        if self == Peer::Qemu {
            let mut command = Command::new("qemu-storage-daemon");
            let disk = format!("driver=null-co,node-name=disk,size={DISK_BYTES},read-zeroes=off");
            command.args(["--blockdev", &disk]);
            let export = "type=vhost-user-blk,id=disk,node-name=disk,writable=on,num-queues=2";
            command.args(["--export", &format!("{export},addr.type=unix,addr.path={at}")]);
            return command;
        }
        let kind = if self == Peer::Null { "null" } else { "mem" };
        let mut command = Command::new(sibling("cairn"));
        command.args(["serve", "--table", &format!("0 {sectors} linear {kind}:{DISK_BYTES} 0")]);
        command.args(["--export", &format!("vhost-user-blk:{at},num-queues=2")]);
        command.arg("--listen").arg(format!("unix:{at}.nbd"));
        command.arg("--control").arg(folder.path(&format!("{}.control", self.name())));
        command
    }
}

/// A running server.
struct Server {
    peer: Peer,
    socket: String,
    child: Child,
}

impl Server {
    /// Starts it; none if its program is not there.
    fn start(peer: Peer, folder: &Folder) -> Outcome<Option<Server>> {
        if peer == Peer::Qemu && !is_there("qemu-storage-daemon") {
            return Ok(None);
        }
        let failed = |error| system(peer.name(), "start", error);
        let socket = folder.path(&format!("{}.vhost", peer.name()));
        let mut command = peer.command(folder, &socket);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(failed)?;
        let mut server = Server { peer, socket: socket.display().to_string(), child };
        for _ in 0..START_TRIES {
            if socket.exists() {
                return Ok(Some(server));
            }
            if server.child.try_wait().map_err(failed)?.is_some() {
                break;
            }
            std::thread::sleep(TRY_EVERY);
        }
        Err(refused(ConfigKind::System, peer.name(), "server", "none", "one that listens"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

const JOBS: [Job; 8] = [
    Job { writes: false, depth: 32, queues: 1, packed: false },
    Job { writes: true, depth: 32, queues: 1, packed: false },
    Job { writes: false, depth: 32, queues: 1, packed: true },
    Job { writes: true, depth: 32, queues: 1, packed: true },
    Job { writes: false, depth: 32, queues: 2, packed: false },
    Job { writes: true, depth: 32, queues: 2, packed: false },
    Job { writes: false, depth: 1, queues: 1, packed: false },
    Job { writes: true, depth: 1, queues: 1, packed: false },
];

/// qemu-storage-daemon has no packed rings.
fn suits(job: Job, server: &Server) -> bool {
    !job.packed || server.peer != Peer::Qemu
}

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
/// A server failed.
pub fn run(settings: &Settings) -> Outcome<Report> {
    let (mut report, folder) = (Report::default(), Folder::make()?);
    let mut servers = Vec::new();
    for peer in Peer::ALL {
        match Server::start(peer, &folder)? {
            Some(server) => servers.push(server),
            None => report.note(format!("vhost-user: {} left out: not installed", peer.name())),
        }
    }
    for server in &servers {
        fill(server)?;
    }
    for job in &JOBS[..settings.pick(JOBS.len(), 3)] {
        let servers: Vec<&Server> = servers.iter().filter(|server| suits(*job, server)).collect();
        let measure =
            |server| -> Subject<'_, Gave> { Box::new(move || one(server, *job, settings)) };
        let taken = interleave(settings.runs, servers.iter().copied().map(measure).collect())?;
        tell(&mut report, *job, &servers, &taken);
    }
    Ok(report)
}

fn tell(report: &mut Report, job: Job, servers: &[&Server], taken: &[Vec<Gave>]) {
    let samples = |server: usize, of: fn(&Gave) -> f64| -> Samples {
        Samples(taken[server].iter().map(of).collect())
    };
    let figures: [Figure; 3] = [
        ("requests/s", |gave| gave.per_s),
        ("server us/request", |gave| gave.processor_us),
        ("us latency", |gave| gave.latency_us),
    ];
    let peer = servers.iter().position(|server| server.peer == Peer::Qemu);
    for (unit, of) in figures {
        for (index, server) in servers.iter().enumerate() {
            let row = Row::new(NAME, samples(index, of), unit)
                .with("server", server.peer.name())
                .with("rw", if job.writes { "randwrite" } else { "randread" })
                .with("bytes", BYTES)
                .with("depth", job.depth)
                .with("queues", job.queues)
                .with("rings", if job.packed { "packed" } else { "split" });
            match peer.filter(|peer| *peer != index) {
                Some(peer) => {
                    let row = row.with("beside", servers[peer].peer.name());
                    report.push(row.against(&samples(peer, of)));
                }
                None => report.push(row),
            }
        }
    }
}

/// Writes all of a disk once: memory that was never touched costs more than a request.
fn fill(server: &Server) -> Outcome<()> {
    let failed = |error| system(server.peer.name(), "driver", error);
    let mut load = Load::connect(&server.socket, JOBS[1]).map_err(failed)?;
    load.next = Some(0);
    let end = Instant::now() + FILL_TIME_MAX;
    load.run(end).map(|_| ()).map_err(failed)
}

fn one(server: &Server, job: Job, settings: &Settings) -> Outcome<Gave> {
    let failed = |error| system(server.peer.name(), "driver", error);
    let time = Duration::from_millis(settings.pick(2000, 100));
    let mut load = Load::connect(&server.socket, job).map_err(failed)?;
    let before = processor_time(server.child.id())?;
    let began = Instant::now();
    let requests = load.run(began + time).map_err(failed)?;
    let taken = began.elapsed().as_secs_f64();
    let spent = processor_time(server.child.id())?.saturating_sub(before);
    let requests = (requests as f64).max(1.0);
    Ok(Gave {
        per_s: requests / taken,
        processor_us: spent.as_secs_f64() * 1e6 / requests,
        latency_us: taken * 1e6 * (job.depth * job.queues) as f64 / requests,
    })
}
