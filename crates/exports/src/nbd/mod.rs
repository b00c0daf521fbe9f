//! The NBD protocol and its server.
//!
//! The protocol itself, without sockets: bytes in, decisions and bytes out.
//! - [`wire`]: the numbers and layouts.
//! - [`facts`]: what a server says about its exports.
//! - [`handshake`]: negotiation, from the greeting to the start of transmission.
//! - [`request`]: one request header judged under the terms of its connection.
//! - [`reply`]: reply headers, to be sent before payloads that are never copied.
//!
//! These never panic on any input, hold a bounded amount of memory per connection, give the
//! same result however the input is cut into pieces, and never touch a socket or wait.
//!
//! The server, which moves those bytes and turns requests into requests to disks:
//! - `server`: exports, listening, dealing connections to reactors, stopping.
//! - `negotiate`, `serve`: the two parts of a connection's life.
//! - `connection`: what its tasks share: admission, completions, replies.
//! - `receiver`, `payload`: bytes on their way in and out, without needless copies.
//! - `budget`: the memory that the payloads of all connections may take.
//! - `widen`, `gate`: ranges that are no whole blocks, and who must wait for whom.
//! - `status`, `contexts`: block status from extents, and what else is known about an export.
//!
//! Deliberately absent: how a volume is built, TLS, extended headers.

mod budget;
mod connection;
mod contexts;
mod export;
pub mod facts;
mod gate;
pub mod handshake;
mod listener;
mod negotiate;
mod options;
mod payload;
mod receiver;
pub mod reply;
pub mod request;
mod serve;
mod server;
mod shutdown;
mod signal;
mod status;
mod widen;
pub mod wire;

pub use contexts::{ContextRun, Contexts};
pub use export::NbdExport;
pub use listener::ListenAddress;
pub use server::{NbdOptions, NbdServer};
