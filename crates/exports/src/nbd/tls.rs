//! TLS of a connection: certificates as a server loads them, and the session of one client. With
//! the feature `tls-psk` also keys that both sides know, in place of certificates (`psk`).
//!
//! A session stands between a socket and what reads and writes it: bytes from the socket go in by
//! [`Session::feed`], and the client's by [`Session::take`] out; [`Session::encrypt`] turns bytes
//! for the client into bytes for the socket, which [`Session::take_output`] gives out. It never
//! touches the socket and never waits.
//!
//! Promises:
//! - T1. A session holds a bounded amount of memory: one receive from the socket, one record of the
//!   client that has not arrived or was not taken, one piece of bytes to send. A client's
//!   handshake message is limited by the library (64 KiB).
//! - T2. No byte that arrived before the session is part of it, so no client's plain bytes count as
//!   having been protected.
//! - T3. No session is resumed: each client's certificate is checked again, with its dates.
//! - T4. Only TLS 1.3, which changes its keys before they are worn out: with older versions a
//!   session ends in the middle of replies after 2^24 records. OpenSSL does not change them by
//!   itself, so with keys of both sides the cipher is one that does not wear them out.

use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;
use std::sync::Arc;

use cairn_block::{Buf, ConfigError, ConfigKind, Env, Segs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig, ServerConnection};

use super::certificate::names_of;

/// The most bytes that are received from the socket at once.
const INPUT_BYTES: usize = 64 << 10;

/// The most bytes for the client that are encrypted before they are sent: seven full records.
const PLAIN_BYTES_MAX: usize = 7 * (16 << 10);

/// Memory for those records, with what each adds.
const OUTPUT_BYTES: usize = 128 << 10;

/// TLS as a server offers it.
#[derive(Clone)]
pub struct Tls {
    server: Server,
    /// Clients without TLS are refused.
    pub is_required: bool,
}

/// What a server shows of itself.
#[derive(Clone)]
enum Server {
    Certificates(Arc<ServerConfig>),
    #[cfg(feature = "tls-psk")]
    Keys(Arc<super::psk::Keys>),
}

/// The library's side of a session. It touches no socket.
pub(super) trait Engine {
    /// True until both sides have shown all that they must.
    fn is_handshaking(&self) -> bool;

    /// Acts on bytes from the socket. On an error there may be output that tells the client.
    fn feed(&mut self, bytes: &[u8]) -> Result<Fed, String>;

    /// Moves bytes of the client into `room`; answers how many.
    fn read(&mut self, room: &mut [u8]) -> usize;

    /// Encrypts bytes for the client. It takes all, unless the session has failed.
    fn write(&mut self, bytes: &[u8]) -> Result<(), ()>;

    /// Encrypts that nothing more comes.
    fn end(&mut self);

    /// True if there are bytes for the socket.
    fn has_output(&self) -> bool;

    /// Moves bytes for the socket into `room`; answers how many.
    fn take_output(&mut self, room: &mut [u8]) -> usize;

    /// The names of the client, which were checked.
    fn client_names(&self) -> Vec<String>;
}

/// What came of bytes from the socket.
pub(super) struct Fed {
    /// How many bytes the engine took.
    pub taken: usize,
    /// The client has ended its side.
    pub is_closed: bool,
}

impl Engine for ServerConnection {
    fn is_handshaking(&self) -> bool {
        rustls::CommonState::is_handshaking(self)
    }

    fn feed(&mut self, mut bytes: &[u8]) -> Result<Fed, String> {
        let taken = self.read_tls(&mut bytes).map_err(|error| error.to_string())?;
        if taken == 0 {
            return Err("the session takes no more bytes".to_owned());
        }
        let state = self.process_new_packets().map_err(|error| error.to_string())?;
        Ok(Fed { taken, is_closed: state.peer_has_closed() })
    }

    fn read(&mut self, room: &mut [u8]) -> usize {
        let mut filled = 0;
        while filled < room.len() {
            match self.reader().read(&mut room[filled..]) {
                Ok(more) if more > 0 => filled += more,
                // Nothing is there now, or ever.
                _ => break,
            }
        }
        filled
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), ()> {
        self.writer().write_all(bytes).map_err(drop)
    }

    fn end(&mut self) {
        self.send_close_notify();
    }

    fn has_output(&self) -> bool {
        self.wants_write()
    }

    fn take_output(&mut self, room: &mut [u8]) -> usize {
        let mut out = io::Cursor::new(room);
        while self.wants_write() && self.write_tls(&mut out).is_ok_and(|count| count > 0) {}
        out.position() as usize
    }

    fn client_names(&self) -> Vec<String> {
        let certificate = self.peer_certificates().and_then(|chain| chain.first());
        certificate.map(|certificate| names_of(certificate)).unwrap_or_default()
    }
}

/// Where a server's certificates are, and what it asks of clients.
#[derive(Clone, Copy, Debug)]
pub struct TlsFiles<'a> {
    /// The folder with `server-cert.pem` and `server-key.pem`; for `verify_peer` also with
    /// `ca-cert.pem`, and `ca-crl.pem` if there is one.
    pub folder: &'a Path,
    /// A client needs a certificate of `ca-cert.pem`.
    pub verify_peer: bool,
    /// Clients without TLS are refused.
    pub is_required: bool,
}

impl Tls {
    /// Reads certificates and keys.
    ///
    /// # Errors
    /// A file is missing, or has something else in it, or the key is not the certificate's.
    pub fn load(files: TlsFiles<'_>) -> Result<Tls, ConfigError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let certificate = files.folder.join("server-cert.pem");
        let key = files.folder.join("server-key.pem");
        let refused = |error: rustls::Error| refused(&certificate, error.to_string());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(refused)?;
        let builder = match files.verify_peer {
            true => builder.with_client_cert_verifier(verifier(files.folder, provider)?),
            false => builder.with_no_client_auth(),
        };
        let chain = all::<CertificateDer<'static>>(&certificate)?;
        let key = PrivateKeyDer::from_pem_file(&key).map_err(|error| not_read(&key, error))?;
        let mut config = builder.with_single_cert(chain, key).map_err(refused)?;
        // T3
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        let server = Server::Certificates(Arc::new(config));
        Ok(Tls { server, is_required: files.is_required })
    }

    /// Reads keys that clients share with the server, by their names: a line for each, as
    /// `NAME:HEX`.
    ///
    /// # Errors
    /// The file cannot be read, or a line is none of a key.
    #[cfg(feature = "tls-psk")]
    pub fn load_keys(path: &Path, is_required: bool) -> Result<Tls, ConfigError> {
        let keys = super::psk::Keys::load(path).map_err(|detail| refused(path, detail))?;
        Ok(Tls { server: Server::Keys(Arc::new(keys)), is_required })
    }

    /// The engine of another session.
    fn engine(&self) -> Result<Box<dyn Engine>, String> {
        match &self.server {
            Server::Certificates(config) => {
                let connection = ServerConnection::new(config.clone());
                let mut connection = connection.map_err(|error| error.to_string())?;
                // What is written is sent before more is written.
                connection.set_buffer_limit(None);
                Ok(Box::new(connection))
            }
            #[cfg(feature = "tls-psk")]
            Server::Keys(keys) => keys.session().map(|session| Box::new(session) as _),
        }
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("is_required", &self.is_required).finish_non_exhaustive()
    }
}

/// Accepts the clients that have a certificate of `ca-cert.pem` that is not on the list of revoked
/// ones. One whose issuer has no such list is not revoked.
fn verifier(
    folder: &Path,
    provider: Arc<rustls::crypto::CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, ConfigError> {
    let (path, list) = (folder.join("ca-cert.pem"), folder.join("ca-crl.pem"));
    let mut roots = RootCertStore::empty();
    for certificate in all::<CertificateDer<'static>>(&path)? {
        roots.add(certificate).map_err(|error| refused(&path, error.to_string()))?;
    }
    let mut builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    // A name that leads nowhere is a mistake, not the absence of a list.
    if list.symlink_metadata().is_ok() {
        let revoked = all::<CertificateRevocationListDer<'static>>(&list)?;
        builder = builder.with_crls(revoked).allow_unknown_revocation_status();
    }
    builder.build().map_err(|error| refused(&path, error.to_string()))
}

/// Every object of a kind in a file; at least one.
fn all<T: PemObject>(path: &Path) -> Result<Vec<T>, ConfigError> {
    let objects = T::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<T>, _>>);
    let objects = objects.map_err(|error| not_read(path, error))?;
    match objects.is_empty() {
        true => Err(not_read(path, rustls::pki_types::pem::Error::NoItemsFound)),
        false => Ok(objects),
    }
}

fn not_read(path: &Path, error: rustls::pki_types::pem::Error) -> ConfigError {
    use rustls::pki_types::pem::Error;
    match error {
        Error::Io(error) if error.kind() == ErrorKind::NotFound => {
            refused(path, "there is no such file".to_owned())
        }
        Error::Io(error) => refused(path, format!("cannot be read: {error}")),
        Error::NoItemsFound => refused(path, "found nothing in PEM form of this kind".to_owned()),
        error => refused(path, error.to_string()),
    }
}

fn refused(path: &Path, detail: String) -> ConfigError {
    ConfigError::new(ConfigKind::Argument, path.display().to_string(), format!("TLS: {detail}"))
}

/// What a session has for the client's reader.
pub(super) enum Taken {
    /// So many bytes; none means that more must arrive first.
    Bytes(usize),
    /// The client has ended its side.
    Closed,
}

/// The TLS session of one connection.
pub(super) struct Session {
    env: Env,
    engine: RefCell<Box<dyn Engine>>,
    /// What was received from the socket.
    input: RefCell<Input>,
    /// Why the session has failed.
    error: RefCell<Option<String>>,
    is_closed: Cell<bool>,
}

/// Bytes from the socket that the session has not looked at: `buf[start..end]`.
struct Input {
    buf: Buf,
    start: usize,
    end: usize,
}

impl Session {
    /// A session before its handshake.
    pub(super) fn new(env: &Env, tls: &Tls) -> Result<Session, String> {
        let engine = RefCell::new(tls.engine()?);
        let input = Input { buf: env.buf(INPUT_BYTES), start: 0, end: 0 };
        Ok(Session {
            env: env.clone(),
            engine,
            input: RefCell::new(input),
            error: RefCell::default(),
            is_closed: Cell::default(),
        })
    }

    /// True until the client has shown all that it must.
    pub(super) fn is_handshaking(&self) -> bool {
        self.engine.borrow().is_handshaking()
    }

    /// True if the client has ended its side.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.get()
    }

    /// Why the session has failed, for the log.
    pub(super) fn error(&self) -> Option<String> {
        self.error.borrow().clone()
    }

    /// The names of the client, which were checked; none without a certificate.
    pub(super) fn client_names(&self) -> Vec<String> {
        self.engine.borrow().client_names()
    }

    /// Memory for the next receive from the socket. All that was received has been fed.
    pub(super) fn room(&self) -> Segs {
        let mut input = self.input.borrow_mut();
        debug_assert_eq!(input.start, input.end, "what was received is fed first");
        (input.start, input.end) = (0, 0);
        Segs::of(&input.buf, 0, INPUT_BYTES)
    }

    /// So many bytes were received into the room.
    pub(super) fn received(&self, count: usize) {
        self.input.borrow_mut().end = count;
    }

    /// Has the session look at what was received, as far as it can hold what comes of it. False if
    /// there was nothing to look at, or the client has ended its side.
    ///
    /// # Errors
    /// The client does not keep to the protocol, or its certificate is refused. The reason is kept,
    /// and the output tells the client.
    pub(super) fn feed(&self) -> Result<bool, ()> {
        let mut input = self.input.borrow_mut();
        // Bytes behind the client's end mean nothing.
        if input.start == input.end || self.is_closed.get() {
            return Ok(false);
        }
        let (start, len) = (input.start, input.end - input.start);
        match input.buf.read(start, len, |bytes| self.engine.borrow_mut().feed(bytes)) {
            Ok(Fed { taken, is_closed }) => {
                input.start += taken;
                self.is_closed.set(self.is_closed.get() || is_closed);
                Ok(true)
            }
            Err(reason) => {
                self.error.borrow_mut().get_or_insert(reason);
                Err(())
            }
        }
    }

    /// Moves bytes of the client into `segs`, from `at` on.
    pub(super) fn take(&self, segs: &Segs, at: usize) -> Taken {
        let mut engine = self.engine.borrow_mut();
        let (mut count, mut is_dry) = (0, false);
        segs.for_each_mut(at, segs.bytes() - at, |piece| {
            if !is_dry {
                let filled = engine.read(piece);
                is_dry = filled < piece.len();
                count += filled;
            }
        });
        match count == 0 && self.is_closed.get() {
            true => Taken::Closed,
            false => Taken::Bytes(count),
        }
    }

    /// Encrypts the first bytes of `segs`; answers how many.
    ///
    /// # Errors
    /// The session has failed: nothing more reaches the client.
    pub(super) fn encrypt(&self, segs: &Segs) -> Result<usize, ()> {
        let mut engine = self.engine.borrow_mut();
        let count = segs.bytes().min(PLAIN_BYTES_MAX);
        let mut written = Ok(());
        segs.for_each(0, count, |piece| written = written.and_then(|()| engine.write(piece)));
        written.map(|()| count)
    }

    /// Tells the client that nothing more comes.
    pub(super) fn end(&self) {
        self.engine.borrow_mut().end();
    }

    /// Bytes for the socket; none if there are none.
    pub(super) fn take_output(&self) -> Option<Segs> {
        let mut engine = self.engine.borrow_mut();
        if !engine.has_output() {
            return None;
        }
        let buf = self.env.buf(OUTPUT_BYTES);
        let len = buf.write(0, OUTPUT_BYTES, |room| engine.take_output(room));
        Some(Segs::of(&buf, 0, len))
    }
}
