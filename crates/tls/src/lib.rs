//! TLS of NBD connections, for servers and clients: certificates as [`Tls`] and [`ClientFiles`]
//! load them, and the [`Session`] of one connection. With the feature `tls-psk` also keys that both
//! sides know, in place of certificates (`psk`).
//!
//! Promises:
//! - T1. A session holds a bounded amount of memory: one receive from the socket, one record of the
//!   other side that has not arrived or was not taken, one piece of bytes to send. A handshake
//!   message is limited by the library (64 KiB).
//! - T2. No byte that arrived before the session is part of it, so no plain bytes count as having
//!   been protected.
//! - T3. No session is resumed: each certificate is checked again, with its dates.
//! - T4. Only TLS 1.3, which changes its keys before they are worn out: with older versions a
//!   session ends in the middle of replies after 2^24 records. OpenSSL does not change them by
//!   itself, so with keys of both sides the cipher is one that does not wear them out.

mod blocking;
mod client;
mod client_key;
mod files;
mod names;
#[cfg(feature = "tls-psk")]
mod psk;
mod server;
mod session;

pub use blocking::Secured;
pub use client::ClientFiles;
pub use client_key::ClientKey;
pub use server::{Tls, TlsFiles};
pub use session::{Broken, Engine, Fed, Session, Taken};
