//! Certificates, and a client of the tests that speaks TLS.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cairn_exports::nbd::wire::{option, option_reply};
use cairn_exports::nbd::{Tls, TlsFiles};
use cairn_testkit::nbd::Client;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustix::event::{PollFd, PollFlags, poll};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

/// The authority of a test.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: rcgen::Certificate,
}

impl Authority {
    pub fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "authority of tests");
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        Authority { issuer: Issuer::new(params, key), certificate }
    }

    /// A certificate with these names, and its key.
    fn issue(&self, common: &str, dns: &[&str]) -> (rcgen::Certificate, KeyPair) {
        let names: Vec<_> = dns.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, common);
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }

    /// TLS of a server with a certificate of this authority.
    pub fn server(&self, verify_peer: bool, is_required: bool) -> Tls {
        let folder = tempfile::tempdir().unwrap();
        let (certificate, key) = self.issue("server", &["server.example"]);
        let write = |name: &str, text: String| std::fs::write(folder.path().join(name), text);
        write("server-cert.pem", certificate.pem()).unwrap();
        write("server-key.pem", key.serialize_pem()).unwrap();
        write("ca-cert.pem", self.certificate.pem()).unwrap();
        Tls::load(TlsFiles { folder: folder.path(), verify_peer, is_required }).unwrap()
    }

    /// A client without a certificate.
    pub fn nameless(&self) -> Arc<ClientConfig> {
        Arc::new(self.client().with_no_client_auth())
    }

    /// A client with a certificate of this authority that trusts the one of the server.
    pub fn named(&self, of_server: &Authority, common: &str, dns: &[&str]) -> Arc<ClientConfig> {
        let (certificate, key) = self.issue(common, dns);
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = of_server.client().with_client_auth_cert(vec![certificate.into()], key);
        Arc::new(config.unwrap())
    }

    fn client(&self) -> rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from(self.certificate.clone())).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider);
        builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots)
    }
}

/// Connects and has the server start TLS; nothing of TLS was sent yet.
pub fn starttls(path: &Path) -> Client {
    let mut client = Client::over(Client::connect(path));
    client.option(option::STARTTLS, &[]);
    assert_eq!(client.option_replies()[0].0, option_reply::ACK);
    client
}

/// A session with the server, before its handshake.
pub fn session(config: &Arc<ClientConfig>) -> ClientConnection {
    let name = "server.example".try_into().unwrap();
    ClientConnection::new(config.clone(), name).unwrap()
}

/// A client over TLS; a thread moves its bytes until either side ends.
pub fn over_tls(path: &Path, config: &Arc<ClientConfig>) -> Client {
    let (mut tls, socket) = (session(config), starttls(path).stream);
    let (plain, other) = UnixStream::pair().unwrap();
    plain.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    std::thread::spawn(move || {
        if let Err(error) = move_bytes(&mut tls, socket, other) {
            println!("client over TLS: {error}");
        }
    });
    Client::over(plain)
}

fn move_bytes(
    tls: &mut ClientConnection,
    mut socket: UnixStream,
    mut plain: UnixStream,
) -> io::Result<()> {
    let mut bytes = vec![0; 32 << 10];
    loop {
        while tls.wants_write() {
            tls.write_tls(&mut socket)?;
        }
        let is_open = !tls.is_handshaking();
        let wanted = if is_open { PollFlags::IN } else { PollFlags::empty() };
        let mut polled = [PollFd::new(&socket, PollFlags::IN), PollFd::new(&plain, wanted)];
        poll(&mut polled, None)?;
        let (from_server, from_client) = (polled[0].revents(), polled[1].revents());
        if !from_server.is_empty() {
            let count = tls.read_tls(&mut socket)?;
            let state = tls.process_new_packets().map_err(io::Error::other)?;
            let mut left = state.plaintext_bytes_to_read();
            while left > 0 {
                let count = tls.reader().read(&mut bytes)?;
                plain.write_all(&bytes[..count])?;
                left -= count;
            }
            if count == 0 || state.peer_has_closed() {
                return Ok(());
            }
        }
        if from_client.intersects(PollFlags::IN | PollFlags::HUP) && is_open {
            match plain.read(&mut bytes)? {
                0 => return Ok(()),
                count => tls.writer().write_all(&bytes[..count])?,
            }
        }
    }
}
