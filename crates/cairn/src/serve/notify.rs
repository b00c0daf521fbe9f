//! What a service manager learns of the server, as `sd_notify(3)` describes it: when it is ready,
//! how much is dirty, when it upgrades or stops, and that a long stop goes on.
//!
//! Without `NOTIFY_SOCKET` nothing is sent. A message that cannot be sent changes nothing: the
//! manager decides by itself.
//!
//! **Upgrade.** Only the main process of a unit is heard (`NotifyAccess=main`). The server that
//! leaves therefore names its successor, and says in the same message that it is ready. The
//! successor says so again, which counts if this process started itself again.
//!
//! **A long stop.** A manager kills a server that stops for too long. While a drain copies, the
//! server asks for [`EXTENSION`] more, and for as long as [`COMMITS`] while volumes commit: how far
//! a commit is cannot be seen.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::Command;
use std::sync::mpsc::{Receiver, RecvError, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use cairn_control::names::is_hidden;
use cairn_control::world::World;
use cairn_outcome::signals::Event;
use cairn_tools::progress::size_text;
use rustix::time::{ClockId, clock_gettime};

/// The variable that names the manager's socket.
const SOCKET: &str = "NOTIFY_SOCKET";

/// How often the server sends its status.
const EVERY: Duration = Duration::from_secs(5);

/// How much time a stop that goes on asks for.
const EXTENSION: Duration = Duration::from_secs(60);

/// How long all commits of a stop may take.
const COMMITS: Duration = Duration::from_secs(600);

/// How long a message waits for a manager that does not read.
const PATIENCE: Duration = Duration::from_secs(1);

/// Sends one message, of lines.
fn tell(lines: &[&str]) {
    if let Err(error) = std::env::var_os(SOCKET).map_or(Ok(()), |name| send(&name, lines)) {
        tracing::debug!("{SOCKET}: {error}");
    }
}

/// A name that begins with `@` is an abstract one, all others are paths.
fn send(name: &OsStr, lines: &[&str]) -> io::Result<()> {
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        path => SocketAddr::from_pathname(OsStr::from_bytes(path)),
    }?;
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(PATIENCE))?;
    socket.send_to_addr(lines.join("\n").as_bytes(), &address).map(drop)
}

/// True if there is a manager.
fn is_heard() -> bool {
    std::env::var_os(SOCKET).is_some()
}

/// Keeps the manager's socket from a command.
pub fn forget(command: &mut Command) {
    command.env_remove(SOCKET);
}

/// Clients are served.
pub fn ready(world: &World) {
    if is_heard() {
        tell(&["READY=1", &status(world)]);
    }
}

/// The next event of a server that serves. Until it comes, sends the status every [`EVERY`], if it
/// has changed.
///
/// # Errors
/// No event can come any more.
pub fn next(world: &World, happened: &Receiver<Event>) -> Result<Event, RecvError> {
    if !is_heard() {
        return happened.recv();
    }
    let mut told = None;
    loop {
        match happened.recv_timeout(EVERY) {
            Ok(event) => break Ok(event),
            Err(RecvTimeoutError::Disconnected) => break Err(RecvError),
            Err(RecvTimeoutError::Timeout) => {
                let now = status(world);
                if told.as_ref() != Some(&now) {
                    tell(&[&now]);
                    told = Some(now);
                }
            }
        }
    }
}

/// Another process may go on. Either [`ready`] or [`goes_on_as`] follows.
pub fn upgrading() {
    let now = clock_gettime(ClockId::Monotonic);
    let now_us = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
    tell(&["RELOADING=1", &format!("MONOTONIC_USEC={now_us}"), "STATUS=upgrading"]);
}

/// That process is the server.
pub fn goes_on_as(pid: u32) {
    tell(&[&format!("MAINPID={pid}"), "READY=1"]);
}

/// The server ends.
pub fn stopping() {
    tell(&["STOPPING=1", "STATUS=stopping"]);
}

/// The stop goes on: this much is left to write back.
pub fn draining(left_bytes: u64) {
    if is_heard() {
        let text = format!("STATUS=stopping, {} to write back", size_text(left_bytes));
        tell(&[&extension(), &text]);
    }
}

/// Commits, as a part of the stop. The manager waits, for no longer than [`COMMITS`].
pub fn while_it_commits<T>(work: impl FnOnce() -> T) -> T {
    if !is_heard() {
        return work();
    }
    tell(&[&extension()]);
    let (ended, is_ended) = channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            let until = Instant::now() + COMMITS;
            while is_ended.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                if Instant::now() < until {
                    tell(&[&extension()]);
                }
            }
        });
        let _ended = ended;
        work()
    })
}

fn extension() -> String {
    format!("EXTEND_TIMEOUT_USEC={}", EXTENSION.as_micros())
}

/// Like `STATUS=serving 3 volumes, 1 not served, 1.20 GiB dirty`
fn status(world: &World) -> String {
    let served = world.volumes().iter().filter(|volume| !is_hidden(volume.volume())).count();
    let volumes = if served == 1 { "volume" } else { "volumes" };
    let missing = match world.not_served().len() {
        0 => String::new(),
        count => format!(", {count} not served"),
    };
    format!("STATUS=serving {served} {volumes}{missing}, {} dirty", size_text(world.dirty_bytes()))
}
