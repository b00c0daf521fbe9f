//! TLS of a connection: certificates as a server loads them, and the session of one client.
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
//!   session ends in the middle of replies after 2^24 records.

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
    config: Arc<ServerConfig>,
    /// Clients without TLS are refused.
    pub is_required: bool,
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
        Ok(Tls { config: Arc::new(config), is_required: files.is_required })
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
    tls: RefCell<ServerConnection>,
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
    pub(super) fn new(env: &Env, tls: &Tls) -> Result<Session, rustls::Error> {
        let mut connection = ServerConnection::new(tls.config.clone())?;
        // What is written is sent before more is written.
        connection.set_buffer_limit(None);
        let input = Input { buf: env.buf(INPUT_BYTES), start: 0, end: 0 };
        Ok(Session {
            env: env.clone(),
            tls: RefCell::new(connection),
            input: RefCell::new(input),
            error: RefCell::default(),
            is_closed: Cell::default(),
        })
    }

    /// True until the client has shown all that it must.
    pub(super) fn is_handshaking(&self) -> bool {
        self.tls.borrow().is_handshaking()
    }

    /// True if the client has ended its side.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.get()
    }

    /// Why the session has failed, for the log.
    pub(super) fn error(&self) -> Option<String> {
        self.error.borrow().clone()
    }

    /// The names in the client's certificate, which was checked; none without a certificate.
    pub(super) fn client_names(&self) -> Vec<String> {
        let tls = self.tls.borrow();
        let certificate = tls.peer_certificates().and_then(|chain| chain.first());
        certificate.map(|certificate| names_of(certificate)).unwrap_or_default()
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
        let mut tls = self.tls.borrow_mut();
        // Bytes behind the client's end mean nothing.
        if input.start == input.end || self.is_closed.get() {
            return Ok(false);
        }
        let (start, len) = (input.start, input.end - input.start);
        let read = input.buf.read(start, len, |mut bytes| tls.read_tls(&mut bytes));
        let processed = match read {
            Ok(0) => Err("the session takes no more bytes".to_owned()),
            Ok(count) => {
                input.start += count;
                tls.process_new_packets().map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        match processed {
            Ok(state) => {
                self.is_closed.set(self.is_closed.get() || state.peer_has_closed());
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
        let mut tls = self.tls.borrow_mut();
        let (mut count, mut is_dry) = (0, false);
        segs.for_each_mut(at, segs.bytes() - at, |piece| {
            let mut filled = 0;
            while !is_dry && filled < piece.len() {
                match tls.reader().read(&mut piece[filled..]) {
                    Ok(more) if more > 0 => filled += more,
                    // Nothing is there now, or ever: see below.
                    _ => is_dry = true,
                }
            }
            count += filled;
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
        let mut tls = self.tls.borrow_mut();
        let count = segs.bytes().min(PLAIN_BYTES_MAX);
        let mut written = Ok(());
        // Without a limit it takes everything, unless it has failed.
        segs.for_each(0, count, |piece| {
            written = written.and_then(|()| tls.writer().write_all(piece).map_err(drop));
        });
        written.map(|()| count)
    }

    /// Tells the client that nothing more comes.
    pub(super) fn end(&self) {
        self.tls.borrow_mut().send_close_notify();
    }

    /// Bytes for the socket; none if there are none.
    pub(super) fn take_output(&self) -> Option<Segs> {
        let mut tls = self.tls.borrow_mut();
        if !tls.wants_write() {
            return None;
        }
        let buf = self.env.buf(OUTPUT_BYTES);
        let len = buf.write(0, OUTPUT_BYTES, |room| {
            let mut out = io::Cursor::new(room);
            while tls.wants_write() && tls.write_tls(&mut out).is_ok_and(|count| count > 0) {}
            out.position() as usize
        });
        Some(Segs::of(&buf, 0, len))
    }
}
