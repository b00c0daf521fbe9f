//! The default sockets and their folder. Promise: only the user of the server can enter it.

use std::io::ErrorKind;
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

/// The folder of the default sockets: `$XDG_RUNTIME_DIR/cairn`, else `/tmp/cairn-UID`. Made if it
/// is missing.
///
/// # Errors
/// It can't be made, or belongs to another user.
pub fn runtime_folder() -> Outcome<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let folder = match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(folder) if !folder.is_empty() => PathBuf::from(folder).join("cairn"),
        _ => PathBuf::from(format!("/tmp/cairn-{user}")),
    };
    let shown = folder.display().to_string();
    match std::fs::DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(system(shown, "make the folder for sockets", error));
        }
        _ => {}
    }
    let found = std::fs::symlink_metadata(&folder).map_err(|e| system(&shown, "look at", e))?;
    if !found.is_dir() || found.uid() != user || found.mode() & 0o077 != 0 {
        let expected = "a folder that only this user can enter (or give the sockets' paths)";
        let seen = format!("owner {}, mode {:o}", found.uid(), found.mode() & 0o7777);
        return Err(refused(ConfigKind::System, shown, "runtime folder", seen, expected));
    }
    Ok(folder)
}
