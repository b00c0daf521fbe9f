//! [`ClientFiles`]: what a client checks a server by, and shows of itself.

use std::path::Path;
use std::sync::Arc;

use cairn_block::{ConfigError, ConfigKind};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

use crate::files;
use crate::session::Engine;

/// Where a client's certificates are.
#[derive(Clone, Copy, Debug)]
pub struct ClientFiles<'a> {
    /// The folder with `ca-cert.pem`, the authorities of servers, and `ca-crl.pem` if there is one;
    /// `client-cert.pem` and `client-key.pem` if the server asks for a certificate.
    pub folder: &'a Path,
    /// The name or address that the server's certificate has to have.
    pub server: &'a str,
}

impl ClientFiles<'_> {
    /// The engine of a session. Reads the files, so that new certificates count at once.
    ///
    /// # Errors
    /// A file is missing, or has something else in it, or the name is none.
    pub fn engine(&self) -> Result<Box<dyn Engine>, ConfigError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let (authority, certificate) =
            (self.folder.join("ca-cert.pem"), self.folder.join("client-cert.pem"));
        let refused = |error: rustls::Error| files::refused(&certificate, error.to_string());
        let roots = Arc::new(files::roots(self.folder)?);
        let mut verifier = WebPkiServerVerifier::builder_with_provider(roots, provider.clone());
        if let Some(lists) = files::revoked(self.folder)? {
            verifier = verifier.with_crls(lists).allow_unknown_revocation_status();
        }
        let verifier =
            verifier.build().map_err(|error| files::refused(&authority, error.to_string()))?;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13]) // T4
            .map_err(refused)?
            .with_webpki_verifier(verifier);
        let mut config = match certificate.symlink_metadata() {
            Ok(_) => {
                let (chain, key) = files::pair(self.folder, "client")?;
                builder.with_client_auth_cert(chain, key).map_err(refused)?
            }
            Err(_) => builder.with_no_client_auth(),
        };
        config.resumption = Resumption::disabled(); // T3
        let name = ServerName::try_from(self.server.to_owned()).map_err(|_| {
            let (found, expected) = (format!("'{}'", self.server), "a DNS name or an address");
            ConfigError::argument("TLS", "name of the server", found, expected)
        })?;
        let connection = ClientConnection::new(Arc::new(config), name);
        let mut connection = connection.map_err(|error| {
            ConfigError::new(ConfigKind::System, self.server, format!("TLS: {error}"))
        })?;
        // What is written is sent before more is written.
        connection.set_buffer_limit(None);
        Ok(Box::new(rustls::Connection::Client(connection)))
    }
}
