//! Both sides over a pair of sockets: who is refused, and that what was sent arrives.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use cairn_tls::{ClientFiles, Engine, Secured, Tls, TlsFiles};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

/// An authority's certificate, and what signs with its key.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    /// A folder with the authority `trusted`, and a certificate of this one.
    fn folder(&self, trusted: &Authority, side: &str, name: &str) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let write = |name: &str, text: String| std::fs::write(folder.path().join(name), text);
        write(&format!("{side}-cert.pem"), certificate.pem()).unwrap();
        write(&format!("{side}-key.pem"), key.serialize_pem()).unwrap();
        write("ca-cert.pem", trusted.pem.clone()).unwrap();
        folder
    }
}

fn server(folder: &Path) -> Box<dyn Engine> {
    let files = TlsFiles { folder, verify_peer: true, is_required: true };
    Tls::load(files).unwrap().engine().unwrap()
}

/// Runs a server that sends back what comes, in a thread, and a client. Answers what the client
/// got back, or why it got nothing.
fn echo(server: Box<dyn Engine>, client: Box<dyn Engine>, sent: &[u8]) -> Result<Vec<u8>, String> {
    let (near, far) = UnixStream::pair().unwrap();
    let serving = std::thread::spawn(move || {
        let mut secured = Secured::shake_hands(server, far)?;
        let mut bytes = [0; 1000];
        loop {
            match secured.read(&mut bytes)? {
                0 => return Ok(()),
                count => secured.write_all(&bytes[..count])?,
            }
        }
    });
    let talk = || {
        let mut secured = Secured::shake_hands(client, near)?;
        let mut back = vec![0; sent.len()];
        for (piece, room) in sent.chunks(50_000).zip(back.chunks_mut(50_000)) {
            secured.write_all(piece)?;
            secured.read_exact(room)?;
        }
        Ok(back)
    };
    let back = talk().map_err(|error: std::io::Error| error.to_string());
    // A client that is refused has gone: the server's thread ends.
    let served: std::io::Result<()> = serving.join().unwrap();
    match (back, served) {
        (Ok(back), _) => Ok(back),
        (Err(error), served) => Err(format!("{error}; server: {served:?}")),
    }
}

#[test]
fn what_each_side_sends_arrives() {
    let own = Authority::new();
    let (far, near) =
        (own.folder(&own, "server", "vault.example"), own.folder(&own, "client", "alice"));
    let client = ClientFiles { folder: near.path(), server: "vault.example" }.engine().unwrap();
    let sent: Vec<u8> = (0..200_000_u32).map(|at| (at % 251) as u8).collect();
    assert!(echo(server(far.path()), client, &sent).unwrap() == sent);
}

#[test]
fn another_name_or_authority_of_either_side_is_refused() {
    let (own, other) = (Authority::new(), Authority::new());
    let far = own.folder(&own, "server", "vault.example");
    for (near, name, why) in [
        (own.folder(&own, "client", "alice"), "other.example", "not valid for name"),
        (own.folder(&other, "client", "alice"), "vault.example", "invalid peer certificate"),
        (other.folder(&own, "client", "alice"), "vault.example", "server: Err"),
    ] {
        let client = ClientFiles { folder: near.path(), server: name }.engine().unwrap();
        let refused = echo(server(far.path()), client, b"x").unwrap_err();
        assert!(refused.contains(why), "{name}: {refused}");
    }
}

#[test]
fn a_client_without_a_certificate_is_refused_and_names_that_are_none_too() {
    let own = Authority::new();
    let (far, near) =
        (own.folder(&own, "server", "vault.example"), own.folder(&own, "client", "alice"));
    for file in ["client-cert.pem", "client-key.pem"] {
        std::fs::remove_file(near.path().join(file)).unwrap();
    }
    let client = ClientFiles { folder: near.path(), server: "vault.example" }.engine().unwrap();
    let refused = echo(server(far.path()), client, b"x").unwrap_err();
    assert!(refused.contains("peer sent no certificates"), "{refused}");
    let refused = ClientFiles { folder: near.path(), server: "a b" }.engine().map(drop);
    assert!(refused.unwrap_err().to_string().contains("found 'a b'"));
}
