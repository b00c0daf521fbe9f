//! The NBD protocol and its server.
//!
//! The protocol itself, without sockets: bytes in, decisions and bytes out.
//! - [`wire`]: the numbers and layouts, of a crate that the client has, too.
//! - [`facts`]: what a server says about its exports.
//! - [`handshake`]: negotiation, from the greeting to the start of transmission.
//! - [`request`]: one request header judged under the terms of its connection.
//! - [`reply`]: reply headers, to be sent before payloads that are never copied.
//!
//! These never panic on any input, hold a bounded amount of memory per connection, and never touch
//! a socket or wait. The result does not depend on how the input is split into pieces.
//!
//! The server, which moves those bytes and turns requests into requests to disks:
//! - `server`: exports, listening sockets, assignment of connections to reactors, shutdown.
//! - `negotiate`, `serve`: the two parts of a connection's life.
//! - `handover`: connections that leave for another process, and those that come from one.
//! - `connection`: what its tasks share: completions, replies, the bytes under [TLS](cairn_tls).
//!   Admission and memory are the [front](crate::front)'s.
//! - `receiver`, `payload`: received and sent bytes, with as few copies as possible.
//! - `status`, `contexts`: block status from extents, and further metadata contexts of an export.
//!
//! Deliberately absent: how a volume is built, block status of a choice of contexts.

mod connection;
mod contexts;
mod export;
pub mod facts;
mod handover;
pub mod handshake;
mod negotiate;
mod options;
mod payload;
mod receiver;
pub mod reply;
pub mod request;
mod serve;
mod server;
mod status;

pub use cairn_nbd::wire;
pub use cairn_tls::{Tls, TlsFiles};

pub use crate::listener::{ListenAddress, Listening};
pub use contexts::{ContextRun, Contexts, NoContexts};
pub use export::NbdExport;
pub use handover::{Estate, Parted, REST_BYTES_MAX};
pub use server::{NbdOptions, NbdServer};
