//! The client's side of a negotiation: a connection that the kernel goes on with.
//!
//! The kernel takes simple replies only, so nothing else is asked for.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use cairn_block::{ConfigError, ConfigKind};
use cairn_exports::nbd::wire::{
    ClientFlags, OPTION_MAGIC, OPTION_REPLY_MAGIC, info, option, option_reply,
};
use cairn_outcome::failure::{Outcome, refused, system};

/// How long a server may take for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The longest answer to an option, in bytes.
const ANSWER_BYTES_MAX: u32 = 64 << 10;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// At this path.
    Unix(PathBuf),
    /// At this host and port.
    Tcp(String),
}

/// A connection in transmission.
pub struct Agreed {
    /// Its socket.
    pub socket: OwnedFd,
    /// Bytes of the export.
    pub size_bytes: u64,
    /// The flags of the export.
    pub flags: u16,
    /// The smallest request, in bytes.
    pub block_bytes: u32,
}

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

impl Place {
    /// The place in a URI of this program: `nbd+unix:///EXPORT?socket=PATH` or
    /// `nbd://HOST:PORT/EXPORT`. `nbds` for TLS is the same place; the kernel has no TLS, so a
    /// server that requires it refuses.
    pub fn of_uri(uri: &str) -> Option<Place> {
        let plain = uri.strip_prefix("nbds").map(|rest| format!("nbd{rest}"));
        let uri = plain.as_deref().unwrap_or(uri);
        if let Some(rest) = uri.strip_prefix("nbd+unix:///") {
            let (_, path) = rest.split_once("?socket=")?;
            return Some(Place::Unix(PathBuf::from(decoded(path)?)));
        }
        let (host, _) = uri.strip_prefix("nbd://")?.split_once('/')?;
        Some(Place::Tcp(host.to_owned()))
    }

    /// Connects, and agrees on an export.
    ///
    /// # Errors
    /// There is no server, or it refuses.
    pub fn agree(&self, export: &str) -> Outcome<Agreed> {
        let failed = |error| system(self.to_string(), "connect", error);
        match self {
            Place::Unix(path) => {
                let mut stream = UnixStream::connect(path).map_err(failed)?;
                stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
                let (size_bytes, flags, block_bytes) = self.negotiate(&mut stream, export)?;
                stream.set_read_timeout(None).map_err(failed)?;
                Ok(Agreed { socket: stream.into(), size_bytes, flags, block_bytes })
            }
            Place::Tcp(host) => {
                let mut stream = TcpStream::connect(host).map_err(failed)?;
                stream.set_nodelay(true).map_err(failed)?;
                stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
                let (size_bytes, flags, block_bytes) = self.negotiate(&mut stream, export)?;
                stream.set_read_timeout(None).map_err(failed)?;
                Ok(Agreed { socket: stream.into(), size_bytes, flags, block_bytes })
            }
        }
    }

    fn negotiate(&self, stream: &mut dyn Stream, export: &str) -> Outcome<(u64, u16, u32)> {
        let failed = |error| system(self.to_string(), "negotiation", error);
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).map_err(failed)?;
        if &greeting[..16] != b"NBDMAGICIHAVEOPT" {
            let expected = "the greeting of an NBD server";
            return Err(refused(ConfigKind::Unsupported, self, "greeting", "another", expected));
        }
        let name = export.as_bytes();
        let mut ask = ClientFlags::all().bits().to_be_bytes().to_vec();
        ask.extend(OPTION_MAGIC.to_be_bytes());
        ask.extend(option::GO.to_be_bytes());
        ask.extend((name.len() as u32 + 8).to_be_bytes());
        ask.extend((name.len() as u32).to_be_bytes());
        ask.extend(name);
        ask.extend(1_u16.to_be_bytes());
        ask.extend(info::BLOCK_SIZE.to_be_bytes());
        stream.write_all(&ask).map_err(failed)?;
        let mut told = (0, 0, 1);
        loop {
            let (kind, payload) = self.option_answer(stream)?;
            match (kind, payload.as_slice()) {
                (option_reply::INFO, [0, 0, rest @ ..]) if rest.len() >= 10 => {
                    told.0 = u64::from_be_bytes(*rest.first_chunk().expect("it is long enough"));
                    told.1 = u16::from_be_bytes([rest[8], rest[9]]);
                }
                (option_reply::INFO, [0, 3, rest @ ..]) if rest.len() >= 12 => {
                    told.2 = u32::from_be_bytes(*rest.first_chunk().expect("it is long enough"));
                }
                (option_reply::INFO, _) => {}
                (option_reply::ACK, _) => return Ok(told),
                (_, reason) => {
                    let reason = String::from_utf8_lossy(reason);
                    let detail = format!("export '{export}': the server refuses: {reason}");
                    return Err(ConfigError::new(ConfigKind::Argument, self.to_string(), detail));
                }
            }
        }
    }

    fn option_answer(&self, stream: &mut dyn Stream) -> Outcome<(u32, Vec<u8>)> {
        let failed = |error| system(self.to_string(), "negotiation", error);
        let mut head = [0; 20];
        stream.read_exact(&mut head).map_err(failed)?;
        let number = |at: usize| u32::from_be_bytes(*head[at..].first_chunk().expect("4 bytes"));
        let magic = u64::from_be_bytes(*head.first_chunk().expect("8 bytes"));
        let (kind, length) = (number(12), number(16));
        if magic != OPTION_REPLY_MAGIC || length > ANSWER_BYTES_MAX {
            let found = format!("magic {magic:#x}, {length} bytes");
            return Err(refused(
                ConfigKind::Unsupported,
                self,
                "answer to an option",
                found,
                "one of NBD",
            ));
        }
        let mut payload = vec![0; length as usize];
        stream.read_exact(&mut payload).map_err(failed)?;
        Ok((kind, payload))
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Unix(path) => write!(f, "{}", path.display()),
            Place::Tcp(host) => write!(f, "{host}"),
        }
    }
}

impl From<&Place> for String {
    fn from(place: &Place) -> String {
        place.to_string()
    }
}

/// A word of a URI without its percent signs.
fn decoded(word: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = word.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::Place;

    #[test]
    fn place_of_a_uri_is_where_its_server_listens() {
        let unix = |path: &str| Some(Place::Unix(path.into()));
        assert_eq!(Place::of_uri("nbd+unix:///vm?socket=/run/a%20b%3F"), unix("/run/a b?"));
        let tcp = Some(Place::Tcp("127.0.0.1:10809".to_owned()));
        assert_eq!(Place::of_uri("nbd://127.0.0.1:10809/vm"), tcp);
        assert_eq!(Place::of_uri("nbds://127.0.0.1:10809/vm"), tcp);
        for uri in ["", "nbd+unix:///vm", "nbd://x", "nbd+unix:///?socket=%4"] {
            assert_eq!(Place::of_uri(uri), None, "{uri}");
        }
    }
}
