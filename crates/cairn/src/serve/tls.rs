//! TLS: what the options and the TOML file ask for. The options replace the keys of the file.

use cairn_exports::nbd::{Tls, TlsFiles};
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

/// Loads what TLS needs; none without TLS.
///
/// # Errors
/// The options contradict each other, or a file is missing or wrong.
pub fn load(args: &ServeArgs, config: &Config) -> Outcome<Option<Tls>> {
    let folder = args.tls_certificates.as_deref().or(config.tls_certificates.as_deref());
    let choice = match (args.tls.or(config.tls), folder) {
        (Some(choice), _) => choice,
        // Certificates say that clients are to be safe.
        (None, Some(_)) => TlsChoice::Require,
        (None, None) => TlsChoice::Off,
    };
    let verify_peer = args.tls_verify_peer || config.tls_verify_peer;
    let tls = match (choice, folder) {
        (TlsChoice::Off, _) => None,
        (_, None) => {
            let expected = "--tls-certificates DIR, too";
            return Err(wrong("", "--tls", "no certificates", expected));
        }
        (choice, Some(folder)) => {
            let is_required = choice == TlsChoice::Require;
            Some(Tls::load(TlsFiles { folder, verify_peer, is_required })?)
        }
    };
    match (&tls, verify_peer) {
        (None, true) => Err(wrong("", "--tls-verify-peer", "no TLS", "--tls=on or require")),
        (Some(_), true) => Ok(tls),
        (_, false) if config.tls_names.is_empty() => Ok(tls),
        (_, false) => {
            let expected = "tls_verify_peer, too: other clients have no name";
            Err(wrong("", "tls_names", "clients without certificates", expected))
        }
    }
}
