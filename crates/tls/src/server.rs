//! [`Tls`]: what a server shows of itself, certificates or keys, and what it asks of clients.

use std::path::Path;
use std::sync::Arc;

use cairn_block::ConfigError;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ServerConfig, ServerConnection};

use crate::files;
use crate::session::Engine;

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
    Keys(Arc<crate::psk::Keys>),
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
        let refused = |error: rustls::Error| files::refused(&certificate, error.to_string());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(refused)?;
        let builder = match files.verify_peer {
            true => builder.with_client_cert_verifier(verifier(files.folder, provider)?),
            false => builder.with_no_client_auth(),
        };
        let (chain, key) = files::pair(files.folder, "server")?;
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
        let keys = crate::psk::Keys::load(path).map_err(|detail| files::refused(path, detail))?;
        Ok(Tls { server: Server::Keys(Arc::new(keys)), is_required })
    }

    /// The engine of another session.
    ///
    /// # Errors
    /// The library has no memory for it.
    pub fn engine(&self) -> Result<Box<dyn Engine>, String> {
        match &self.server {
            Server::Certificates(config) => {
                let connection = ServerConnection::new(config.clone());
                let mut connection = connection.map_err(|error| error.to_string())?;
                // What is written is sent before more is written.
                connection.set_buffer_limit(None);
                Ok(Box::new(rustls::Connection::Server(connection)))
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
/// ones.
fn verifier(
    folder: &Path,
    provider: Arc<rustls::crypto::CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, ConfigError> {
    let roots = Arc::new(files::roots(folder)?);
    let mut builder = WebPkiClientVerifier::builder_with_provider(roots, provider);
    if let Some(lists) = files::revoked(folder)? {
        builder = builder.with_crls(lists).allow_unknown_revocation_status();
    }
    let path = folder.join("ca-cert.pem");
    builder.build().map_err(|error| files::refused(&path, error.to_string()))
}
