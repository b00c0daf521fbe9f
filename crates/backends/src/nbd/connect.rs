//! A connection that has passed its negotiation. Blocks: no reactor runs it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use cairn_block::{ConfigError, ConfigKind};
use cairn_tls::{Engine, Secured};
use rustix::net::sockopt::{
    Timeout, set_socket_keepalive, set_socket_timeout, set_tcp_keepcnt, set_tcp_keepidle,
    set_tcp_keepintvl, set_tcp_user_timeout,
};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use super::uri::{Place, Proof, Target};
use cairn_nbd::calls::Calls;
use cairn_nbd::negotiation::{Agreed, Wish, agree, negotiate, start_tls};
use cairn_nbd::wire::TransmissionFlags;

/// How long a server may take until transmission begins.
const PATIENCE: Duration = Duration::from_secs(10);

/// The same for each connection beyond the first one: a server that serves one client after another
/// lets the next one wait.
const PATIENCE_MORE: Duration = Duration::from_secs(2);

/// A connection in transmission.
pub struct Connected {
    /// Its socket.
    pub socket: OwnedFd,
    /// What was agreed on.
    pub agreed: Agreed,
    /// The session of TLS, if all bytes from now on are its own.
    pub tls: Option<Box<dyn Engine>>,
    /// Since when it is.
    pub made: Instant,
}

/// Connects and negotiates, under TLS if there is a proof of who both are.
///
/// # Errors
/// There is no server, or it refuses, or is another one.
pub fn connect(
    place: &Place,
    wish: Wish<'_>,
    proof: Option<&Proof>,
) -> Result<Connected, ConfigError> {
    connect_until(place, wish, proof, Instant::now() + PATIENCE)
}

fn connect_until(
    place: &Place,
    wish: Wish<'_>,
    proof: Option<&Proof>,
    until: Instant,
) -> Result<Connected, ConfigError> {
    let mut stream = reach(place, wish, until)?;
    let (agreed, tls) = match proof {
        None => (negotiate(&mut stream, wish)?, None),
        Some(proof) => {
            let mut secured = secure(&mut stream, place, wish, proof)?;
            let agreed = agree(&mut secured, wish)?;
            (agreed, Some(secured.into_engine().map_err(|error| insecure(wish, &error))?))
        }
    };
    let socket = OwnedFd::from(stream.socket);
    set_timeouts(&socket, None).map_err(|error| unreached(wish, &error))?;
    Ok(Connected { socket, agreed, tls, made: Instant::now() })
}

/// Makes `most` connections if the server offers several (`CAN_MULTI_CONN`), or as many as it
/// takes. All of them may take as long as one.
///
/// # Errors
/// Those of [`connect`] at the first connection; or a later one is to another export.
pub(super) fn connect_all(target: &Target, most: usize) -> Result<Vec<Connected>, ConfigError> {
    let (place, wish, proof) = (&target.place, target.wish(), target.tls.as_ref());
    let end = Instant::now() + PATIENCE;
    let first = connect_until(place, wish, proof, end)?;
    let agreed = first.agreed;
    let mut all = vec![first];
    let most = if agreed.flags.contains(TransmissionFlags::CAN_MULTI_CONN) { most } else { 1 };
    while all.len() < most {
        let until = end.min(Instant::now() + PATIENCE_MORE);
        match connect_until(place, wish, proof, until) {
            Ok(next) => {
                // A server may have been replaced in between. It numbers contexts as it likes.
                let same = Agreed { allocation: agreed.allocation, ..next.agreed };
                next.agreed.refuse_other_than(&agreed, agreed.sectors(), &target.uri)?;
                if same != agreed {
                    let detail = "export: found another size or form at the next connection";
                    return Err(ConfigError::new(ConfigKind::Unsupported, &target.uri, detail));
                }
                all.push(next);
            }
            Err(error) => {
                // Also if the time is over.
                tracing::warn!("{error}: connected {} of {most} times", all.len());
                break;
            }
        }
    }
    Ok(all)
}

/// The bytes of a connection whose requests wait for their answers.
pub(super) trait Waiting: Read + Write {}
impl<S: Read + Write> Waiting for S {}

/// A connection on which each request waits for its answer; all of them together as long as a
/// negotiation may take.
///
/// # Errors
/// Those of [`connect`].
pub(super) fn connect_waiting(
    place: &Place,
    wish: Wish<'_>,
    proof: Option<&Proof>,
) -> Result<Calls<Box<dyn Waiting>>, ConfigError> {
    let wish = Wish { is_simple: true, ..wish };
    let mut stream = reach(place, wish, Instant::now() + PATIENCE)?;
    let (stream, agreed): (Box<dyn Waiting>, Agreed) = match proof {
        None => {
            let agreed = negotiate(&mut stream, wish)?;
            (Box::new(stream), agreed)
        }
        Some(proof) => {
            let mut secured = secure(stream, place, wish, proof)?;
            let agreed = agree(&mut secured, wish)?;
            (Box::new(secured), agreed)
        }
    };
    Ok(Calls::new(stream, agreed))
}

/// A connection before its negotiation.
fn reach(place: &Place, wish: Wish<'_>, until: Instant) -> Result<Timed, ConfigError> {
    let socket = match place {
        Place::Unix(path) => connect_unix(path, until),
        Place::Tcp(host, port) => connect_tcp(host, *port, until),
    };
    let socket = socket.map_err(|error| unreached(wish, &error))?;
    Ok(Timed { socket: File::from(socket), until })
}

/// The same under TLS.
fn secure<S: Read + Write>(
    mut stream: S,
    place: &Place,
    wish: Wish<'_>,
    proof: &Proof,
) -> Result<Secured<S>, ConfigError> {
    // A client without its files asks the server for nothing.
    let engine = proof.engine(place)?;
    start_tls(&mut stream, wish)?;
    Secured::shake_hands(engine, stream).map_err(|error| insecure(wish, &error))
}

fn unreached(wish: Wish<'_>, error: &io::Error) -> ConfigError {
    ConfigError::new(ConfigKind::System, wish.device, format!("connect: {error}"))
}

fn insecure(wish: Wish<'_>, error: &io::Error) -> ConfigError {
    ConfigError::new(ConfigKind::System, wish.device, format!("TLS: {error}"))
}

/// A stream that ends at a time.
struct Timed {
    socket: File,
    until: Instant,
}

impl Timed {
    fn allow_rest(&self) -> io::Result<()> {
        set_timeouts(&self.socket, Some(left(self.until)))
    }
}

impl Read for Timed {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.allow_rest()?;
        self.socket.read(room)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.allow_rest()?;
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The time that is left. No time at all would be no limit.
fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}

fn set_timeouts(socket: impl AsFd, time: Option<Duration>) -> io::Result<()> {
    set_socket_timeout(&socket, Timeout::Recv, time)?;
    Ok(set_socket_timeout(&socket, Timeout::Send, time)?)
}

/// A server that accepts nothing is waited for as long as for an answer.
fn connect_unix(path: &Path, until: Instant) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    set_timeouts(&socket, Some(left(until)))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

fn connect_tcp(host: &str, port: u16, until: Instant) -> io::Result<OwnedFd> {
    let mut failed = None;
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, left(until)) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                watch(&stream)?;
                return Ok(stream.into());
            }
            Err(error) => failed = Some(error),
        }
    }
    Err(failed.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
}

/// A host that is gone is noticed after some seconds, whether or not something was sent to it.
fn watch(stream: &TcpStream) -> io::Result<()> {
    set_socket_keepalive(stream, true)?;
    set_tcp_keepidle(stream, Duration::from_secs(5))?;
    set_tcp_keepintvl(stream, Duration::from_secs(5))?;
    set_tcp_keepcnt(stream, 3)?;
    Ok(set_tcp_user_timeout(stream, 20_000)?)
}
