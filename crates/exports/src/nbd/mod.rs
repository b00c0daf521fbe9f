//! The NBD protocol, without sockets: bytes in, decisions and bytes out.
//!
//! - [`wire`]: the numbers and layouts.
//! - [`facts`]: what a server says about its exports.
//! - [`handshake`]: negotiation, from the greeting to the start of transmission.
//! - [`request`]: one request header judged under the terms of its connection.
//! - [`reply`]: reply headers, to be sent before payloads that are never copied.
//!
//! Promises: never panics on any input, holds a bounded amount of memory per connection, and
//! gives the same result however the input is cut into pieces.
//! Must never: touch a socket, wait, or know how a volume is built.

pub mod facts;
pub mod handshake;
mod options;
pub mod reply;
pub mod request;
pub mod wire;
