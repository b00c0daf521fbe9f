//! Objects of web servers and object stores as read-only disks.
//!
//! ```text
//!  reactors                    helper thread "objects" (the client's runtime)
//!  ObjectDisk::submit -------> task of the disk: Planner --> Object::read --> server
//!  the request's mailbox <---- its answer                <-- checked answer <--
//! ```
//!
//! - `uri`: what the argument of a table line means.
//! - `planner`: which ranges are asked for: joined, and ahead of runs. Pure.
//! - `client`: the client of the server, with a limit for each answer.
//! - `fetch`: one question to the server, and the check of its answer.
//! - `worker`, `disk`: the way of a read to the helper thread and back.
//!
//! - O1. All data that a disk ever answers is of one object: every answer of the server has the
//!   ETag and the length that it had when the disk was opened. After the first one that has not,
//!   every read fails, those that were under way too.
//! - O2. Memory of a disk: what its waiting reads ask for, twice, and
//!   [`AHEAD_BYTES_MAX`](planner::AHEAD_BYTES_MAX). An answer that is an error may take 5 MiB more
//!   for the time until it has ended.
//!
//! Nothing is ever written, so no failure can lose a write: the failure count stays zero.

#[cfg(feature = "objects")]
mod client;
#[cfg(feature = "objects")]
mod disk;
#[cfg(feature = "objects")]
mod fetch;
#[cfg(feature = "objects")]
mod planner;
mod uri;
#[cfg(feature = "objects")]
mod worker;

use std::sync::Arc;

use cairn_block::ConfigError;

use crate::remote::RemoteDisk;

pub(crate) use self::uri::{Address, is_uri};

/// Opens an object. Blocks the thread.
///
/// # Errors
/// See `ObjectDisk::open`.
#[cfg(feature = "objects")]
pub(crate) fn open(argument: &str) -> Result<Arc<dyn RemoteDisk>, ConfigError> {
    Ok(Arc::new(disk::ObjectDisk::open(argument)?))
}

/// Refuses: this build has no client.
///
/// # Errors
/// Always.
#[cfg(not(feature = "objects"))]
pub(crate) fn open(argument: &str) -> Result<Arc<dyn RemoteDisk>, ConfigError> {
    Address::parse(argument)?;
    let detail = "URI: this build reads no objects; build it with `--features objects`";
    Err(ConfigError::new(cairn_block::ConfigKind::Unsupported, argument, detail))
}
