//! `bench upgrade`: how long clients wait for an answer while `cairn upgrade` puts a new process in
//! the place of the server's.
//!
//! A client writes 4 KiB at random places, one request after another, over NBD or vhost-user. Told
//! per protocol and disk: the longest time between two answers around an upgrade, the same in as
//! long a time without one, and how long the verb takes. The server and its successor are the same
//! program. The disk is one that does nothing, or a write cache on files, with dirty blocks.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use cairn_block::ConfigKind;
use cairn_outcome::failure::{Outcome, refused, system};
use cairn_outcome::program::sibling;
use rustix::process::{Pid, Signal, kill_process};

use super::peers::Folder;
use super::row::{Report, Row, Samples};
use super::sample::{Subject, interleave};
use super::settings::Settings;
use super::vhostload::{BYTES, DISK_BYTES, Job, Load};

const NAME: &str = "upgrade";

/// Bytes of the cache: more than is written in all rounds before the cache writes back.
const CACHE_BYTES: u64 = 256 << 20;

/// How long a server may take to listen.
const START_TRIES: u32 = 500;
const TRY_EVERY: Duration = Duration::from_millis(20);

/// How a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Nbd,
    VhostUser,
}

/// What is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disk {
    Null,
    Writecache,
}

const CASES: [(Protocol, Disk); 4] = [
    (Protocol::Nbd, Disk::Null),
    (Protocol::Nbd, Disk::Writecache),
    (Protocol::VhostUser, Disk::Null),
    (Protocol::VhostUser, Disk::Writecache),
];

impl Protocol {
    fn name(self) -> &'static str {
        match self {
            Protocol::Nbd => "nbd",
            Protocol::VhostUser => "vhost-user",
        }
    }
}

impl Disk {
    fn name(self) -> &'static str {
        match self {
            Disk::Null => "null",
            Disk::Writecache => "writecache",
        }
    }
}

/// What a round gave, in milliseconds.
struct Gave {
    /// The longest time between two answers around an upgrade.
    pause: f64,
    /// The same without one.
    quiet: f64,
    /// How long the verb took.
    verb: f64,
}

/// Which figure, its unit, and where to find it.
type Figure = (&'static str, fn(&Gave) -> f64);

const FIGURES: [Figure; 3] = [
    ("ms longest wait", |gave| gave.pause),
    ("ms longest wait without an upgrade", |gave| gave.quiet),
    ("ms of the verb", |gave| gave.verb),
];

/// Runs the benchmark.
///
/// # Errors
/// A server or a client failed.
pub fn run(settings: &Settings) -> Outcome<Report> {
    let (mut report, folder) = (Report::default(), Folder::on_disk()?);
    let mut servers = Vec::new();
    for (protocol, disk) in CASES {
        servers.push(Server::start(&folder, protocol, disk)?);
    }
    let subjects = servers
        .iter_mut()
        .map(|server| -> Subject<'_, Gave> { Box::new(|| one(server, settings)) });
    let taken = interleave(settings.runs, subjects.collect())?;
    for ((protocol, disk), taken) in CASES.into_iter().zip(&taken) {
        for (unit, of) in FIGURES {
            let row = Row::new(NAME, Samples(taken.iter().map(of).collect()), unit)
                .with("protocol", protocol.name())
                .with("disk", disk.name());
            report.push(row);
        }
    }
    Ok(report)
}

fn one(server: &mut Server, settings: &Settings) -> Outcome<Gave> {
    let around = Duration::from_millis(settings.pick(300, 50));
    let mut verb = Duration::ZERO;
    let pause = server.longest_wait(|server| {
        std::thread::sleep(around);
        let began = Instant::now();
        let upgraded = server.upgrade();
        verb = began.elapsed();
        std::thread::sleep(around);
        upgraded
    })?;
    let quiet = server.longest_wait(|_| {
        std::thread::sleep(2 * around + verb);
        Ok(())
    })?;
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    Ok(Gave { pause: ms(pause), quiet: ms(quiet), verb: ms(verb) })
}

/// A running server; each upgrade makes it another process.
struct Server {
    protocol: Protocol,
    /// Where its clients find it.
    socket: PathBuf,
    control: PathBuf,
    /// The process that was started here, until the first upgrade.
    child: Option<Child>,
    process: u32,
}

impl Server {
    fn start(folder: &Folder, protocol: Protocol, disk: Disk) -> Outcome<Server> {
        let name = format!("{}-{}", protocol.name(), disk.name());
        let path = |ending: &str| folder.path(&format!("{name}.{ending}"));
        let failed = |error| system(&name, "start", error);
        let sectors = DISK_BYTES / 512;
        let table = match disk {
            Disk::Null => format!("0 {sectors} linear null:{DISK_BYTES} 0"),
            Disk::Writecache => {
                let files = [("slow", DISK_BYTES), ("fast", CACHE_BYTES)];
                for (ending, bytes) in files {
                    let file = File::create(path(ending)).and_then(|file| file.set_len(bytes));
                    file.map_err(failed)?;
                }
                let [slow, fast] = files.map(|(ending, _)| path(ending).display().to_string());
                format!("0 {sectors} writecache s {slow} {fast} 4096 0")
            }
        };
        let (nbd, vhost, control) = (path("nbd"), path("vhost"), path("control"));
        let mut command = Command::new(sibling("cairn"));
        command.args(["serve", "--table", &table, "--state"]).arg(path("state"));
        command.arg("--listen").arg(format!("unix:{}", nbd.display()));
        command.arg("--export").arg(format!("vhost-user-blk:{}", vhost.display()));
        command.arg("--control").arg(&control);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(failed)?;
        let socket = if protocol == Protocol::Nbd { nbd } else { vhost };
        let process = child.id();
        let mut server = Server { protocol, socket, control, child: Some(child), process };
        for _ in 0..START_TRIES {
            let is_there = server.socket.exists() && server.control.exists();
            if is_there && UnixStream::connect(&server.control).is_ok() {
                return Ok(server);
            }
            if let Some(child) = &mut server.child
                && child.try_wait().map_err(failed)?.is_some()
            {
                break;
            }
            std::thread::sleep(TRY_EVERY);
        }
        Err(refused(ConfigKind::System, name, "server", "none", "one that listens"))
    }

    /// Has another process go on.
    fn upgrade(&mut self) -> Outcome<()> {
        let mut command = Command::new(sibling("cairn"));
        command.arg("upgrade").arg("--control").arg(&self.control).stdin(Stdio::null());
        let output = command.output().map_err(|error| system("upgrade", "run", error))?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let number = said.strip_prefix("process ").and_then(|rest| rest.split(' ').next());
        let Some(process) = number.and_then(|number| number.parse().ok()) else {
            let said = String::from_utf8_lossy(&output.stderr);
            let found = said.lines().next().unwrap_or("nothing").to_owned();
            return Err(refused(ConfigKind::System, "upgrade", "answer", found, "a process"));
        };
        self.process = process;
        if let Some(mut child) = self.child.take() {
            child.wait().map_err(|error| system("upgrade", "wait", error))?;
        }
        Ok(())
    }

    /// The longest time between two answers to a client that writes while `act` runs.
    fn longest_wait(&mut self, act: impl FnOnce(&mut Server) -> Outcome<()>) -> Outcome<Duration> {
        let (protocol, socket) = (self.protocol, self.socket.clone());
        let stop = AtomicBool::new(false);
        let (writes, begun) = channel();
        std::thread::scope(|scope| {
            let client = scope.spawn(|| -> std::io::Result<Duration> {
                let mut write = client(protocol, &socket.display().to_string())?;
                write()?;
                drop(writes);
                let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
                while !stop.load(Ordering::Relaxed) {
                    write()?;
                    let now = Instant::now();
                    longest = longest.max(now - last);
                    last = now;
                }
                Ok(longest)
            });
            // Ends when the client writes, or has failed.
            let never: Result<(), _> = begun.recv();
            debug_assert!(never.is_err());
            let acted = act(self);
            stop.store(true, Ordering::Relaxed);
            let longest = client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            acted?;
            longest.map_err(|error| system(protocol.name(), "client", error))
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        match &mut self.child {
            Some(child) => {
                drop(child.kill());
                drop(child.wait());
            }
            None => {
                let process = i32::try_from(self.process).ok().and_then(Pid::from_raw);
                if let Some(process) = process {
                    let _ = kill_process(process, Signal::KILL);
                }
            }
        }
    }
}

type Client = Box<dyn FnMut() -> std::io::Result<()>>;

/// A client, which writes once when called.
fn client(protocol: Protocol, socket: &str) -> std::io::Result<Client> {
    match protocol {
        Protocol::Nbd => {
            let mut stream = negotiate(socket)?;
            let mut random = fastrand::Rng::with_seed(7);
            Ok(Box::new(move || write(&mut stream, random.u64(..DISK_BYTES / BYTES as u64))))
        }
        Protocol::VhostUser => {
            let job = Job { writes: true, depth: 1, queues: 1, packed: false };
            let mut load = Load::connect(socket, job)?;
            Ok(Box::new(move || load.run_one()))
        }
    }
}

/// Asks an NBD server for its only export.
fn negotiate(socket: &str) -> std::io::Result<UnixStream> {
    let mut stream = UnixStream::connect(socket)?;
    stream.read_exact(&mut [0; 18])?;
    // Flags of the client, then option 1, the name of an export, which is empty.
    stream.write_all(&3_u32.to_be_bytes())?;
    stream.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\0")?;
    stream.read_exact(&mut [0; 10])?;
    Ok(stream)
}

/// Writes a page over NBD.
fn write(stream: &mut UnixStream, page: u64) -> std::io::Result<()> {
    let mut request = [0x5a; 28 + BYTES];
    // The magic, no flags, a write, and a cookie, which the reply repeats.
    request[..16].copy_from_slice(b"\x25\x60\x95\x13\0\0\0\x01answered");
    request[16..24].copy_from_slice(&(page * BYTES as u64).to_be_bytes());
    request[24..28].copy_from_slice(&(BYTES as u32).to_be_bytes());
    stream.write_all(&request)?;
    let mut reply = [0; 16];
    stream.read_exact(&mut reply)?;
    match reply.strip_prefix(b"\x67\x44\x66\x98\0\0\0\0") {
        Some(b"answered") => Ok(()),
        _ => Err(std::io::Error::other(format!("a reply: {reply:?}"))),
    }
}
