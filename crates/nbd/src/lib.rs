//! The NBD protocol, as the server and the client of cairn speak it.
//!
//! - [`wire`]: numbers and layouts. Source: `proto.md` of the project NetworkBlockDevice/nbd.
//! - [`session`]: what a client sends when, and what a lost connection loses. The client of the
//!   crate `backends` runs it over sockets, the simulator over links that it loses.
//!
//! Deliberately absent: sockets, clocks, tasks.

pub mod session;
pub mod wire;
