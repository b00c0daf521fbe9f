//! The NBD protocol, as the server and the client of cairn speak it.
//!
//! - [`wire`]: numbers and layouts. Source: `proto.md` of the project NetworkBlockDevice/nbd.
//! - [`negotiation`]: the client's side of a negotiation, over any stream of bytes.
//! - [`session`]: what a client sends when, and what a lost connection loses. The client of the
//!   crate `backends` runs it over sockets, the simulator over links that it loses.
//! - [`answers`]: what the bytes of a server mean for a client's requests.
//! - [`calls`]: a client that waits for each answer. [`records`]: what it keeps beside an export.
//!
//! Deliberately absent: sockets, clocks, tasks.

pub mod answers;
pub mod calls;
mod extents;
pub mod negotiation;
pub mod records;
pub mod session;
pub mod wire;
