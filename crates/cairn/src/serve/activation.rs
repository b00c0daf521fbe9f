//! Socket activation: sockets that a service manager or a client opened for this process, as
//! `sd_listen_fds(3)` describes it.
//!
//! The sockets are the descriptors from 3 on. `LISTEN_PID` says for which process, `LISTEN_FDS` how
//! many, `LISTEN_FDNAMES` their names: the one called `control` is for verbs, all others are for
//! NBD clients. A descriptor that is none of these is refused.
//!
//! Commands that the server starts do not inherit the sockets, and [`forget`] keeps the variables
//! from them: a program that replaces this one has the same process number, and would take its own
//! descriptors for these sockets.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::process::Command;
use std::sync::Arc;

use cairn_control::sockets::ControlSocket;
use cairn_exports::nbd::{ListenAddress, Listening};
use cairn_outcome::failure::{Outcome, wrong};
use rustix::io::FdFlags;

const PID: &str = "LISTEN_PID";
const COUNT: &str = "LISTEN_FDS";
const NAMES: &str = "LISTEN_FDNAMES";

/// The first descriptor.
const FIRST: RawFd = 3;

/// The name of the socket for verbs.
const CONTROL: &str = "control";

/// Sockets that were opened for this process.
#[derive(Default)]
pub struct Activated {
    /// Those of NBD clients.
    pub nbd: Vec<Listening>,
    /// That of verbs.
    pub control: Option<ControlSocket>,
}

/// Takes the sockets that were opened for this process. To be called once, before the process opens
/// descriptors of its own by number.
///
/// # Errors
/// The variables make no sense, or a descriptor is no socket to listen on.
pub fn take() -> Outcome<Activated> {
    let variable = |name| std::env::var(name).ok();
    let is_for_this = variable(PID).and_then(|pid| pid.parse().ok()) == Some(std::process::id());
    match variable(COUNT) {
        Some(count) if is_for_this => take_all(&count, &variable(NAMES).unwrap_or_default()),
        _ => Ok(Activated::default()),
    }
}

/// Keeps the variables from a command.
pub fn forget(command: &mut Command) {
    for name in [PID, COUNT, NAMES] {
        command.env_remove(name);
    }
}

fn take_all(count: &str, names: &str) -> Outcome<Activated> {
    let expected = "the number of sockets from descriptor 3 on";
    let wrong_count = || wrong(COUNT, "sockets", format!("'{count}'"), expected);
    let count: u16 = count.parse().map_err(|_| wrong_count())?;
    let mut names = names.split(':');
    let mut activated = Activated::default();
    for fd in (FIRST..).take(count.into()) {
        let name = names.next().unwrap_or_default();
        if !is_open(fd) {
            return Err(refused(fd, "nothing"));
        }
        // SAFETY: it is open, and by the protocol it is this process's to use: the program that
        // started the process left it there, and this process has opened nothing before.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        activated.add(fd, name, socket)?;
    }
    Ok(activated)
}

/// True if the descriptor is open.
fn is_open(fd: RawFd) -> bool {
    std::fs::symlink_metadata(format!("/proc/self/fd/{fd}")).is_ok()
}

fn refused(fd: RawFd, found: &str) -> cairn_block::ConfigError {
    let expected = "a stream socket that listens at a path or at a TCP port";
    wrong(format!("descriptor {fd}"), COUNT, found, expected)
}

impl Activated {
    fn add(&mut self, fd: RawFd, name: &str, socket: OwnedFd) -> Outcome<()> {
        let address = ListenAddress::of(&socket).map_err(|found| refused(fd, found))?;
        rustix::io::fcntl_setfd(&socket, FdFlags::CLOEXEC)
            .map_err(|_| refused(fd, "a descriptor that cannot be kept from commands"))?;
        let is_activated = true;
        match (name, address) {
            (CONTROL, ListenAddress::Unix(path)) if self.control.is_none() => {
                let listener = socket.into();
                self.control = Some(ControlSocket { path, listener, is_activated });
            }
            (CONTROL, address) => {
                let found = format!("{address} with the name 'control'");
                let expected = "one unix socket of this name";
                return Err(wrong(format!("descriptor {fd}"), NAMES, found, expected));
            }
            (_, address) => {
                let socket = Arc::new(socket);
                self.nbd.push(Listening { address, socket, is_activated });
            }
        }
        Ok(())
    }
}
