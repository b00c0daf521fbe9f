//! The NBD protocol, as the server and the client of cairn speak it: numbers and layouts. Source:
//! `proto.md` of the project NetworkBlockDevice/nbd.
//!
//! Deliberately absent: sockets, policy, state.

pub mod wire;
