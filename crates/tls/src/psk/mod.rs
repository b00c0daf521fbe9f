//! TLS with keys that both sides know (`--tls-psk`, `tls-psk-file`), by OpenSSL: rustls has none.
//! [`Keys`] are a server's, [`client`] has a client's side, `file` what both read.
//!
//! The promises are those of the crate. T1: what a session has decrypted and not given out comes
//! from one receive. T4: ChaCha20-Poly1305 alone, whose keys last for as many records as TLS can
//! count.

pub mod client;
mod file;

use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;
use std::sync::Arc;

use openssl::error::ErrorStack;
use openssl::ex_data::Index;
use openssl::ssl::{
    ErrorCode, Ssl, SslContext, SslContextBuilder, SslMethod, SslOptions, SslSessionCacheMode,
    SslStream, SslVersion,
};

use crate::session::{Broken, Engine, Fed};

/// The keys of a server's clients.
pub struct Keys {
    context: SslContext,
    /// Where a session has the name of its client.
    name: Index<Ssl, String>,
}

impl Keys {
    /// Reads a file of keys.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn load(path: &Path) -> Result<Keys, String> {
        let keys = file::read(path)?;
        Keys::of(keys).map_err(|error| error.to_string())
    }

    fn of(keys: file::KeysByName) -> Result<Keys, ErrorStack> {
        let name = Ssl::new_ex_index()?;
        let keys = Arc::new(keys);
        let mut builder = builder_of(SslMethod::tls_server())?;
        builder.set_num_tickets(0)?; // T3
        builder.set_psk_server_callback(move |ssl, identity, room| {
            let identity = identity.unwrap_or_default();
            // No key: the session goes on as one with a certificate would, and the server has none.
            let Some(key) = keys.get(identity).filter(|key| key.len() <= room.len()) else {
                return Ok(0);
            };
            room[..key.len()].copy_from_slice(key);
            ssl.set_ex_data(name, String::from_utf8_lossy(identity).into_owned());
            Ok(key.len())
        });
        Ok(Keys { context: builder.build(), name })
    }

    /// A session before its handshake.
    pub fn session(&self) -> Result<Session, String> {
        let failed = |error: ErrorStack| error.to_string();
        let mut ssl = Ssl::new(&self.context).map_err(failed)?;
        ssl.set_accept_state();
        Session::of(ssl, Side::Server { name: self.name }).map_err(failed)
    }
}

/// What both sides have to have.
fn builder_of(method: SslMethod) -> Result<SslContextBuilder, ErrorStack> {
    let mut builder = SslContext::builder(method)?;
    builder.set_min_proto_version(Some(SslVersion::TLS1_3))?; // T4
    builder.set_ciphersuites("TLS_CHACHA20_POLY1305_SHA256")?;
    // T3
    builder.set_session_cache_mode(SslSessionCacheMode::OFF);
    builder.set_options(SslOptions::NO_TICKET);
    Ok(builder)
}

/// What OpenSSL takes for its socket.
#[derive(Default)]
struct Pipe {
    input: Vec<u8>,
    taken: usize,
    output: Vec<u8>,
    given: usize,
}

impl Read for Pipe {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let left = &self.input[self.taken..];
        let count = left.len().min(room.len());
        if count == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        room[..count].copy_from_slice(&left[..count]);
        self.taken += count;
        Ok(count)
    }
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.output.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// OpenSSL's side of a session.
pub struct Session {
    stream: SslStream<Pipe>,
    /// Bytes of the other side; those before `given` were given out.
    plain: Vec<u8>,
    given: usize,
    is_closed: bool,
    side: Side,
}

/// Which side of a session this is.
enum Side {
    Server {
        /// Where the session has the name of its client.
        name: Index<Ssl, String>,
    },
    Client {
        /// Its name.
        user: String,
    },
}

impl Session {
    fn of(ssl: Ssl, side: Side) -> Result<Session, ErrorStack> {
        let stream = SslStream::new(ssl, Pipe::default())?;
        Ok(Session { stream, plain: Vec::new(), given: 0, is_closed: false, side })
    }

    /// Runs the handshake as far as the input goes. True if it is done.
    fn shake_hands(&mut self) -> Result<bool, String> {
        match self.stream.do_handshake() {
            Ok(()) => match &self.side {
                Side::Client { user } => {
                    client::require_key(self.stream.ssl(), user).map(|()| true)
                }
                Side::Server { .. } => Ok(true),
            },
            Err(error) if error.code() == ErrorCode::WANT_READ => Ok(false),
            Err(error) => Err(match &self.side {
                Side::Client { user } => client::refusal(&error, user),
                Side::Server { .. } => error.to_string(),
            }),
        }
    }

    /// Decrypts all records that are whole.
    fn decrypt(&mut self) -> Result<(), String> {
        self.plain.drain(..std::mem::take(&mut self.given));
        loop {
            let begin = self.plain.len();
            self.plain.resize(begin + (16 << 10), 0);
            let read = self.stream.ssl_read(&mut self.plain[begin..]);
            self.plain.truncate(begin + read.as_ref().copied().unwrap_or(0));
            match read {
                Ok(_) => {}
                Err(error) if error.code() == ErrorCode::WANT_READ => return Ok(()),
                Err(error) if error.code() == ErrorCode::ZERO_RETURN => {
                    self.is_closed = true;
                    return Ok(());
                }
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}

impl Engine for Session {
    fn is_handshaking(&self) -> bool {
        !self.stream.ssl().is_init_finished()
    }

    fn feed(&mut self, bytes: &[u8]) -> Result<Fed, String> {
        let pipe = self.stream.get_mut();
        pipe.input.drain(..std::mem::take(&mut pipe.taken));
        pipe.input.extend_from_slice(bytes);
        if !self.is_handshaking() || self.shake_hands()? {
            self.decrypt()?;
        }
        Ok(Fed { taken: bytes.len(), is_closed: self.is_closed })
    }

    fn read(&mut self, room: &mut [u8]) -> usize {
        let left = &self.plain[self.given..];
        let count = left.len().min(room.len());
        room[..count].copy_from_slice(&left[..count]);
        self.given += count;
        count
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        self.stream.write_all(bytes).map_err(|_| Broken)
    }

    fn end(&mut self) {
        // A session that has failed has nothing to end.
        drop(self.stream.shutdown());
    }

    fn has_output(&self) -> bool {
        let pipe = self.stream.get_ref();
        pipe.given < pipe.output.len()
    }

    fn take_output(&mut self, room: &mut [u8]) -> usize {
        let pipe = self.stream.get_mut();
        let left = &pipe.output[pipe.given..];
        let count = left.len().min(room.len());
        room[..count].copy_from_slice(&left[..count]);
        pipe.given += count;
        if pipe.given == pipe.output.len() {
            pipe.output.clear();
            pipe.given = 0;
        }
        count
    }

    fn names(&self) -> Vec<String> {
        match self.side {
            Side::Server { name } => self.stream.ssl().ex_data(name).cloned().into_iter().collect(),
            // The key tells that the server is one that has it, not its name.
            Side::Client { .. } => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Keys, Session};
    use crate::session::Engine;
    use openssl::ssl::{ErrorCode, Ssl, SslContext, SslMethod, SslStream};

    type Client = SslStream<super::Pipe>;

    fn client(name: &'static str, key: u8) -> Client {
        let mut context = SslContext::builder(SslMethod::tls_client()).unwrap();
        context.set_psk_client_callback(move |_, _, identity, room| {
            identity[..name.len()].copy_from_slice(name.as_bytes());
            identity[name.len()] = 0;
            room[..16].fill(key);
            Ok(16)
        });
        let mut ssl = Ssl::new(&context.build()).unwrap();
        ssl.set_connect_state();
        SslStream::new(ssl, super::Pipe::default()).unwrap()
    }

    /// Moves what each side has for the other, in pieces of `step` bytes, until both are done.
    fn shake(client: &mut Client, server: &mut Session, step: usize) -> Result<(), String> {
        for _ in 0..8 {
            let ended = client.do_handshake();
            if let Err(error) = &ended
                && error.code() != ErrorCode::WANT_READ
            {
                return Err(error.to_string());
            }
            let sent = std::mem::take(&mut client.get_mut().output);
            for piece in sent.chunks(step) {
                server.feed(piece)?;
            }
            let mut room = vec![0; 1 << 16];
            let count = server.take_output(&mut room);
            client.get_mut().input.extend_from_slice(&room[..count]);
            if ended.is_ok() && !server.is_handshaking() {
                return Ok(());
            }
        }
        Err("it does not end".to_owned())
    }

    fn server() -> Session {
        Keys::of([(b"alice".to_vec(), vec![7; 16])].into()).unwrap().session().unwrap()
    }

    #[test]
    fn a_client_with_the_key_has_a_name_and_both_hear_each_other() {
        for step in [1, 100, 1 << 16] {
            let (mut client, mut server) = (client("alice", 7), server());
            shake(&mut client, &mut server, step).unwrap();
            assert_eq!(server.names(), ["alice"]);
            client.ssl_write(b"from the client").unwrap();
            let sent = std::mem::take(&mut client.get_mut().output);
            for piece in sent.chunks(step) {
                server.feed(piece).unwrap();
            }
            let mut room = [0; 64];
            assert_eq!(server.read(&mut room[..4]), 4);
            let more = server.read(&mut room[4..]);
            assert_eq!(&room[..4 + more], b"from the client");
            server.write(b"from the server").unwrap();
            let mut output = vec![0; 1 << 16];
            let count = server.take_output(&mut output);
            client.get_mut().input.extend_from_slice(&output[..count]);
            let count = client.ssl_read(&mut room).unwrap();
            assert_eq!(&room[..count], b"from the server");
            drop(client.shutdown());
            let sent = std::mem::take(&mut client.get_mut().output);
            assert!(server.feed(&sent).unwrap().is_closed);
        }
    }

    #[test]
    fn other_keys_and_other_names_are_refused() {
        for (name, key) in [("alice", 8), ("mallory", 7)] {
            let mut server = server();
            shake(&mut client(name, key), &mut server, 1 << 16).unwrap_err();
            assert!(server.names().is_empty() || server.is_handshaking(), "{name}");
        }
    }
}
