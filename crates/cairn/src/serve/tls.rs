//! TLS: what the options and the TOML file ask for. The options replace the keys of the file.

use std::path::Path;

#[cfg(not(feature = "tls-psk"))]
use cairn_block::ConfigKind;
use cairn_exports::nbd::{Tls, TlsFiles};
#[cfg(not(feature = "tls-psk"))]
use cairn_outcome::failure::refused;
use cairn_outcome::failure::{Outcome, wrong};
use clap::ValueEnum;

use super::args::ServeArgs;
use super::config::Config;

/// Whether clients use TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TlsChoice {
    /// No client
    Off,
    /// The clients that ask for it
    On,
    /// All clients; others are refused
    Require,
}

/// How a server and its clients prove who they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// By certificates.
    Certificates,
    /// By keys that both know.
    Keys,
}

/// What proves who a server is: a folder of certificates, or a file of keys.
#[derive(Clone, Copy)]
enum Source<'a> {
    Certificates(&'a Path),
    Keys(&'a Path),
}

/// Loads what TLS needs; none without TLS.
///
/// # Errors
/// The options contradict each other, or a file is missing or wrong.
pub fn load(args: &ServeArgs, config: &Config) -> Outcome<Option<(Tls, Proof)>> {
    let of_args = source(args.tls_certificates.as_deref(), args.tls_psk.as_deref())?;
    let of_config = source(config.tls_certificates.as_deref(), config.tls_psk.as_deref())?;
    let source = of_args.or(of_config);
    let choice = match (args.tls.or(config.tls), source) {
        (Some(choice), _) => choice,
        // Certificates and keys say that clients are to be safe.
        (None, Some(_)) => TlsChoice::Require,
        (None, None) => TlsChoice::Off,
    };
    let (verify_peer, is_required) =
        (args.tls_verify_peer || config.tls_verify_peer, choice == TlsChoice::Require);
    let tls = match (choice, source) {
        (TlsChoice::Off, _) => None,
        (_, None) => {
            let expected = "--tls-certificates DIR or --tls-psk FILE, too";
            return Err(wrong("", "--tls", "no certificates", expected));
        }
        (_, Some(Source::Certificates(folder))) => {
            let files = TlsFiles { folder, verify_peer, is_required };
            Some((Tls::load(files)?, Proof::Certificates))
        }
        (_, Some(Source::Keys(file))) => Some((load_keys(file, is_required)?, Proof::Keys)),
    };
    match (tls.as_ref().map(|(_, proof)| proof), verify_peer) {
        (None, true) => Err(wrong("", "--tls-verify-peer", "no TLS", "--tls=on or require")),
        (Some(Proof::Keys), true) => {
            let expected = "certificates: a key says who its client is";
            Err(wrong("", "--tls-verify-peer", "--tls-psk", expected))
        }
        (Some(_), true) | (Some(Proof::Keys), false) => Ok(tls),
        (_, false) if config.tls_names.is_empty() => Ok(tls),
        (_, false) => {
            let expected = "tls_verify_peer, too: other clients have no name";
            Err(wrong("", "tls_names", "clients without certificates", expected))
        }
    }
}

fn source<'a>(folder: Option<&'a Path>, keys: Option<&'a Path>) -> Outcome<Option<Source<'a>>> {
    match (folder, keys) {
        (Some(_), Some(_)) => Err(wrong("", "tls_psk", "tls_certificates, too", "one of them")),
        (Some(folder), None) => Ok(Some(Source::Certificates(folder))),
        (None, Some(keys)) => Ok(Some(Source::Keys(keys))),
        (None, None) => Ok(None),
    }
}

#[cfg(feature = "tls-psk")]
fn load_keys(file: &Path, is_required: bool) -> Outcome<Tls> {
    Tls::load_keys(file, is_required)
}

#[cfg(not(feature = "tls-psk"))]
fn load_keys(_file: &Path, _is_required: bool) -> Outcome<Tls> {
    let (found, expected) = ("a program without it", "one that was built with the feature tls-psk");
    Err(refused(ConfigKind::Unsupported, "", "--tls-psk", found, expected))
}
