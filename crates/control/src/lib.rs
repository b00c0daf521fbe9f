//! Volumes as a library: the state of a server, and the verbs that change it.
//!
//! The modules of a line import only those of the lines above it and of their own line, and no two
//! import each other in a circle. A test keeps it so (`cairn/tests/imports.rs`).
//! - [`names`], [`kept`], [`lasting`], [`measure`], [`under_way`], [`world`]: reactors, volumes and
//!   their names.
//! - [`thin_line`], [`live_pool`], [`contexts`]: queries of live snapshots and pools.
//! - [`throttles`], [`state`], [`tls_names`], [`exports`]: limits, the state file, and the exports
//!   that clients find.
//! - [`metrics`]: what monitoring reads.
//! - [`caches`]: rules for tables that touch caches that were left dirty.
//! - [`sockets`], [`handover`]: what a server leaves to its successor, another process.
//! - [`control`], [`http`], [`keeper_calls`], [`arguments`], [`devices`], [`report`]: the parts of
//!   verbs.
//! - [`watch`]: what a person watches.
//! - [`reach`], [`turns`]: which verbs may change something at the same time.
//! - [`verbs`]: one struct per verb, which the command line, the client and the server share.
//! - [`plan`]: the order of a start. [`client`]: asks a running server.
//!
//! Deliberately absent: policy (targets), mechanism (backends, exports), the command line but for
//! the parameters of verbs, and what reading verbs print for a person (cairn). Verbs that change
//! something answer with notes, which are lines for a person.

pub mod arguments;
pub mod caches;
pub mod client;
pub mod contexts;
pub mod control;
pub mod devices;
pub mod exports;
pub mod handover;
pub mod http;
pub mod keeper_calls;
pub mod kept;
pub mod lasting;
pub mod live_pool;
pub mod measure;
pub mod metrics;
pub mod names;
pub mod plan;
pub mod reach;
pub mod report;
pub mod sockets;
pub mod state;
pub mod thin_line;
pub mod throttles;
pub mod tls_names;
pub mod turns;
pub mod under_way;
pub mod verbs;
pub mod watch;
pub mod world;
