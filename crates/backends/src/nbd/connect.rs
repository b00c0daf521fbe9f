//! A connection that has passed its negotiation. Blocks: it runs on a helper thread, or on that of
//! an offline tool.

use std::fs::File;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use cairn_block::{ConfigError, ConfigKind};
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use super::handshake::{Agreed, negotiate};
use super::uri::{Place, Target};

/// How long a server may take for an answer of its negotiation.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection in transmission.
pub struct Connected {
    /// Its socket.
    pub socket: OwnedFd,
    /// What was agreed on.
    pub agreed: Agreed,
}

/// Connects and negotiates.
///
/// # Errors
/// There is no server, or it refuses.
pub fn connect(target: &Target) -> Result<Connected, ConfigError> {
    let failed = |error: std::io::Error| {
        ConfigError::new(ConfigKind::System, &target.uri, format!("connect: {error}"))
    };
    let socket: OwnedFd = match &target.place {
        Place::Unix(path) => UnixStream::connect(path).map_err(failed)?.into(),
        Place::Tcp(host, port) => connect_tcp(host, *port).map_err(failed)?.into(),
    };
    set_timeouts(&socket, Some(PATIENCE)).map_err(failed)?;
    let mut stream = File::from(socket);
    let agreed = negotiate(&mut stream, target)?;
    let socket = OwnedFd::from(stream);
    set_timeouts(&socket, None).map_err(failed)?;
    Ok(Connected { socket, agreed })
}

fn set_timeouts(socket: &OwnedFd, time: Option<Duration>) -> std::io::Result<()> {
    set_socket_timeout(socket, Timeout::Recv, time)?;
    Ok(set_socket_timeout(socket, Timeout::Send, time)?)
}

fn connect_tcp(host: &str, port: u16) -> std::io::Result<TcpStream> {
    let mut failed = None;
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => failed = Some(error),
        }
    }
    Err(failed.unwrap_or_else(|| std::io::ErrorKind::NotFound.into()))
}
