//! The control socket: JSON-RPC 2.0 over a unix socket, one JSON document per line.
//!
//! - [`rpc`]: requests, responses, errors and every method's parameters.
//! - [`server`]: the socket and its connections.
//! - [`client`]: how a verb reaches a server.
//! - `log`: what the log says of verbs.
//!
//! The manual (`docs/cli.md`) lists the methods; a test holds it to [`rpc::METHODS`].

pub mod client;
mod log;
pub mod rpc;
pub mod server;
