//! The control socket: JSON-RPC 2.0 over a unix socket, one JSON document per line.
//!
//! - [`rpc`]: requests, responses and errors.
//! - [`server`]: the socket and its connections.
//! - `log`: the log of verbs.
//!
//! The methods are the verbs' own (see `verbs::methods`).

mod log;
pub mod rpc;
pub mod server;
