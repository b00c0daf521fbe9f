//! A client's side of a session: one key, and nothing in its place.
//!
//! - C1. The client offers its key alone. It verifies the certificate of a server with no
//!   authority, and so refuses each server that answers with one.
//! - C2. A handshake that has ended counts only if it used the key.

use std::path::Path;

use openssl::error::ErrorStack;
use openssl::ssl::{Error, Ssl, SslMethod, SslRef, SslVerifyMode};

use super::file::{self, KEY_BYTES_MAX};
use super::{Session, Side, builder_of};

/// The longest name that OpenSSL sends, in bytes.
const NAME_BYTES_MAX: usize = 128;

/// A session that has its first message for the server.
///
/// # Errors
/// What is wrong with the file, or with the name.
pub fn session(path: &Path, user: &str) -> Result<Session, String> {
    // Every connection reads the file again: a pipe would hold the second one up.
    let is_file = path.metadata().map_err(|error| error.to_string())?.is_file();
    if !is_file {
        return Err("found no regular file, expected one with lines NAME:KEY".to_owned());
    }
    let key = file::read(path)?.remove(user.as_bytes());
    let key = key.ok_or_else(|| {
        format!("found no key of '{user}', the user of the URI, expected a line {user}:KEY")
    })?;
    if user.len() > NAME_BYTES_MAX {
        let found = user.len();
        return Err(format!(
            "found a name of {found} bytes in the URI, expected at most {NAME_BYTES_MAX}"
        ));
    }
    of_key(key, user)
}

fn of_key(key: Vec<u8>, user: &str) -> Result<Session, String> {
    debug_assert!(key.len() <= KEY_BYTES_MAX && user.len() <= NAME_BYTES_MAX);
    let mut session = start(key, user).map_err(|error| error.to_string())?;
    session.shake_hands()?;
    Ok(session)
}

fn start(key: Vec<u8>, user: &str) -> Result<Session, ErrorStack> {
    let mut builder = builder_of(SslMethod::tls_client())?;
    builder.set_verify(SslVerifyMode::PEER); // C1
    let name = user.as_bytes().to_vec();
    builder.set_psk_client_callback(move |_, _, identity, room| {
        // The name ends with a zero byte. No key: the handshake goes on without, and fails by C1.
        if name.len() >= identity.len() || key.len() > room.len() {
            return Ok(0);
        }
        identity[..name.len()].copy_from_slice(&name);
        identity[name.len()] = 0;
        room[..key.len()].copy_from_slice(&key);
        Ok(key.len())
    });
    let mut ssl = Ssl::new(&builder.build())?;
    ssl.set_connect_state();
    Session::of(ssl, Side::Client { user: user.to_owned() })
}

/// Checks C2: OpenSSL counts a session of a key as one that is resumed, and nothing else can be
/// resumed here (T3).
pub(super) fn require_key(ssl: &SslRef, user: &str) -> Result<(), String> {
    match ssl.session_reused() && ssl.peer_certificate().is_none() {
        true => Ok(()),
        false => Err(unproved("a handshake without the key", user)),
    }
}

/// Why a handshake has failed, on one line.
pub(super) fn refusal(error: &Error, user: &str) -> String {
    let reasons = error.ssl_error().map(ErrorStack::errors).unwrap_or_default();
    match reasons.iter().find_map(openssl::error::Error::reason) {
        // OpenSSL has the version of TLS that had an alert first before its name.
        Some(reason) => {
            let reason = reason.find("alert ").map_or(reason, |at| &reason[at..]);
            unproved(&format!("'{reason}'"), user)
        }
        None => error.to_string(),
    }
}

fn unproved(found: &str, user: &str) -> String {
    format!("found {found}, expected a server that knows '{user}' and its key")
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use openssl::pkey::PKey;
    use openssl::ssl::{Ssl, SslAcceptor, SslMethod, SslVersion};
    use openssl::x509::X509;
    use tempfile::TempDir;

    use super::super::{Keys, Session, Side, builder_of};
    use super::{of_key, session};
    use crate::session::Engine;

    /// Moves what each side has for the other, in pieces of `step` bytes, until both are done.
    fn shake(client: &mut Session, server: &mut Session, step: usize) -> Result<(), String> {
        for _ in 0..8 {
            pass(client, server, step).map_err(|error| format!("server: {error}"))?;
            let passed = pass(server, client, step);
            passed.map_err(|error| format!("client: {error}"))?;
            let is_over = !client.is_handshaking() && !server.is_handshaking();
            if is_over && !client.has_output() {
                return Ok(());
            }
        }
        Err("it does not end".to_owned())
    }

    /// What a failure has said before counts, too.
    fn pass(from: &mut Session, to: &mut Session, step: usize) -> Result<(), String> {
        let mut room = vec![0; 1 << 16];
        let mut fed = Ok(());
        while from.has_output() {
            let count = from.take_output(&mut room);
            for piece in room[..count].chunks(step) {
                fed = fed.and_then(|()| to.feed(piece).map(drop));
            }
        }
        fed
    }

    /// Why the client refuses the server.
    fn refused(client: &mut Session, server: &mut Session) -> String {
        let first = shake(client, server, 1 << 16).unwrap_err();
        assert!(client.is_handshaking() || first.starts_with("client"), "{first}");
        let told = match first.strip_prefix("client: ") {
            Some(told) => told.to_owned(),
            None => pass(server, client, 1 << 16).unwrap_err(),
        };
        assert!(!told.contains('\n'), "{told}");
        told
    }

    fn server(key: u8) -> Session {
        Keys::of([(b"alice".to_vec(), vec![key; 16])].into()).unwrap().session().unwrap()
    }

    /// A server with a certificate, which takes no key.
    fn stranger(version: SslVersion) -> Session {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        let mut builder = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls_server()).unwrap();
        builder.set_max_proto_version(Some(version)).unwrap();
        builder.set_certificate(&X509::from_pem(pem.as_bytes()).unwrap()).unwrap();
        let key = PKey::private_key_from_pem(key.serialize_pem().as_bytes()).unwrap();
        builder.set_private_key(&key).unwrap();
        let mut ssl = Ssl::new(builder.build().context()).unwrap();
        ssl.set_accept_state();
        let name = Ssl::new_ex_index().unwrap();
        Session::of(ssl, Side::Server { name }).unwrap()
    }

    fn file(text: &str) -> (TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.psk");
        std::fs::write(&path, text).unwrap();
        (folder, path)
    }

    #[test]
    fn a_client_and_a_server_with_one_key_hear_each_other() {
        let (_folder, path) =
            file(&format!("bob:{}\nalice:{}\n", "08".repeat(16), "07".repeat(16)));
        for step in [1, 100, 1 << 16] {
            let (mut client, mut server) = (session(&path, "alice").unwrap(), server(7));
            shake(&mut client, &mut server, step).unwrap();
            assert_eq!((server.names(), client.names().len()), (vec!["alice".to_owned()], 0));
            let cipher = client.stream.ssl().current_cipher().unwrap().name();
            assert_eq!(cipher, "TLS_CHACHA20_POLY1305_SHA256");
            let mut room = vec![0; 1 << 18];
            let sent: Vec<u8> = (0..20_000_u32).map(|at| (at % 251) as u8).collect();
            client.write(&sent).unwrap();
            pass(&mut client, &mut server, step).unwrap();
            // A session gives out what one receive brought before it takes the next (T1).
            let count = server.read(&mut room);
            assert!(count > 0 && room[..count] == sent[sent.len() - count..]);
            server.write(b"from the server").unwrap();
            server.end();
            pass(&mut server, &mut client, step).unwrap();
            let count = client.read(&mut room);
            assert_eq!((&room[..count], client.is_closed), (&b"from the server"[..], true));
        }
    }

    #[test]
    fn a_server_with_another_key_or_none_of_the_name_is_refused() {
        for (key, user) in [(8, "alice"), (7, "mallory")] {
            let mut client = of_key(vec![7; 16], user).unwrap();
            let told = refused(&mut client, &mut server(key));
            assert!(told.starts_with("found '") && told.contains("alert"), "{told}");
            assert!(told.ends_with(&format!("expected a server that knows '{user}' and its key")));
        }
    }

    // C1, C2
    #[test]
    fn a_server_that_shows_a_certificate_in_place_of_the_key_is_refused() {
        let mut client = of_key(vec![7; 16], "alice").unwrap();
        let told = refused(&mut client, &mut stranger(SslVersion::TLS1_3));
        assert!(told.ends_with("expected a server that knows 'alice' and its key"), "{told}");
    }

    // T4
    #[test]
    fn a_server_with_an_older_version_or_no_tls_is_refused() {
        let mut client = of_key(vec![7; 16], "alice").unwrap();
        let told = refused(&mut client, &mut stranger(SslVersion::TLS1_2));
        assert!(told.contains("version"), "{told}");
        let mut client = of_key(vec![7; 16], "alice").unwrap();
        let told = client.feed(b"IHAVEOPT, in plain text").map(drop).unwrap_err();
        assert!(told.starts_with("found '"), "{told}");
    }

    // T4: the server has the key, but not the cipher.
    #[test]
    fn a_server_with_another_cipher_is_refused() {
        let mut builder = builder_of(SslMethod::tls_server()).unwrap();
        builder.set_ciphersuites("TLS_AES_128_GCM_SHA256").unwrap();
        builder.set_psk_server_callback(|_, _, room| {
            room[..16].fill(7);
            Ok(16)
        });
        let mut ssl = Ssl::new(&builder.build()).unwrap();
        ssl.set_accept_state();
        let name = Ssl::new_ex_index().unwrap();
        let mut server = Session::of(ssl, Side::Server { name }).unwrap();
        let mut client = of_key(vec![7; 16], "alice").unwrap();
        let told = refused(&mut client, &mut server);
        assert!(told.starts_with("found 'alert handshake failure'"), "{told}");
    }

    // T4: one that only proves who sends, one with keys that wear out, one of TLS 1.2 that hides
    // nothing.
    #[test]
    fn a_cipher_that_was_put_into_the_answer_of_the_server_is_refused() {
        // Behind the headers of record and message, the version, the random bytes, and the client's
        // word for its session, which is sent back.
        let at = 5 + 4 + 2 + 32 + 1 + 32;
        for cipher in [[0xc0, 0xb4], [0x13, 0x01], [0x00, 0x2c]] {
            let (mut client, mut server) = (of_key(vec![7; 16], "alice").unwrap(), server(7));
            pass(&mut client, &mut server, 1 << 16).unwrap();
            let mut answer = vec![0; 1 << 16];
            let count = server.take_output(&mut answer);
            assert_eq!(answer[at..at + 2], [0x13, 0x03]);
            answer[at..at + 2].copy_from_slice(&cipher);
            let told = client.feed(&answer[..count]).map(drop).unwrap_err();
            assert!(told.contains("cipher returned'"), "{told}");
            assert!(client.is_handshaking() && client.write(b"data").is_err());
        }
    }

    #[test]
    fn a_file_without_the_key_is_refused_and_shows_no_other() {
        let key = "07".repeat(16);
        let long = "a".repeat(129);
        let (folder, path) = file(&format!("alice:{key}\n{long}:{key}\n"));
        let refused = |path: &std::path::Path, user: &str| {
            let told = session(path, user).map(drop).unwrap_err();
            assert!(!told.contains(&key) && !told.contains('\n'), "{told}");
            told
        };
        assert!(refused(&path, "bob").starts_with("found no key of 'bob'"));
        assert!(refused(&path, &long).starts_with("found a name of 129 bytes"));
        assert!(refused(&folder.path().join("none"), "alice").contains("No such file"));
        assert!(refused(folder.path(), "alice").contains("found no regular file"));
        let (_folder, path) = file("alice:0x07");
        assert!(refused(&path, "alice").starts_with("line 1: found another key"));
    }

    #[test]
    fn the_longest_name_and_key_are_sent_whole() {
        let name = "a".repeat(super::NAME_BYTES_MAX);
        let key = vec![7; super::KEY_BYTES_MAX];
        let keys = Keys::of([(name.clone().into_bytes(), key.clone())].into()).unwrap();
        let (mut client, mut server) = (of_key(key, &name).unwrap(), keys.session().unwrap());
        shake(&mut client, &mut server, 1 << 16).unwrap();
        assert_eq!(server.names(), [name]);
    }
}
