//! The default sockets and their folder. Promise: only the user of the server can enter it; or a
//! service manager made it, and only that user can make sockets there.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use cairn_block::ConfigKind;
use cairn_outcome::failure::{Outcome, refused, system};

/// Name of the control socket in the runtime folder.
pub const CONTROL_NAME: &str = "control.sock";
/// Name of the NBD socket in the runtime folder.
pub const NBD_NAME: &str = "nbd.sock";

/// A control socket that listens.
pub struct ControlSocket {
    /// Where.
    pub path: PathBuf,
    /// The socket.
    pub listener: UnixListener,
    /// It was given by socket activation: its path belongs to the program that made it.
    pub is_activated: bool,
}

/// The folder of a server's default sockets: `$RUNTIME_DIRECTORY`, which a service manager sets,
/// else that of [`user_folder`]. It is made if it is missing.
///
/// # Errors
/// It can't be made, or belongs to another user.
pub fn runtime_folder() -> Outcome<PathBuf> {
    folder_of(named("RUNTIME_DIRECTORY"))
}

/// The folder where a client looks for the default sockets: `$XDG_RUNTIME_DIR/cairn`, else
/// `/tmp/cairn-UID`. It is made if it is missing.
///
/// # Errors
/// It can't be made, or belongs to another user.
pub fn user_folder() -> Outcome<PathBuf> {
    folder_of(None)
}

fn named(variable: &str) -> Option<OsString> {
    std::env::var_os(variable).filter(|folder| !folder.is_empty())
}

fn folder_of(of_service: Option<OsString>) -> Outcome<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    // Others may reach the sockets in the folder of a service: these have rights of their own.
    let (refused_mode, expected) = match of_service {
        Some(_) => (0o022, "a folder that only this user can write to"),
        None => (0o077, "a folder that only this user can enter"),
    };
    let folder = match (of_service, named("XDG_RUNTIME_DIR")) {
        // Of several, the first.
        (Some(folders), _) => {
            let first = folders.as_bytes().split(|byte| *byte == b':').next().unwrap_or_default();
            PathBuf::from(OsStr::from_bytes(first))
        }
        (None, Some(folder)) => PathBuf::from(folder).join("cairn"),
        (None, None) => PathBuf::from(format!("/tmp/cairn-{user}")),
    };
    let shown = folder.display().to_string();
    match std::fs::DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(system(shown, "make the folder for sockets", error));
        }
        _ => {}
    }
    let found = std::fs::symlink_metadata(&folder).map_err(|e| system(&shown, "look at", e))?;
    if !found.is_dir() || found.uid() != user || found.mode() & refused_mode != 0 {
        let expected = format!("{expected} (or give the sockets' paths)");
        let seen = format!("owner {}, mode {:o}", found.uid(), found.mode() & 0o7777);
        return Err(refused(ConfigKind::System, shown, "runtime folder", seen, expected));
    }
    Ok(folder)
}
