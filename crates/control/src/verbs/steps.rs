//! The points between two steps of a verb, at which tests look; and helpers that verbs share.

use cairn_outcome::failure::Outcome;

/// The end of a step. The tests look here at what a crash would leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// An empty store is durable, or the devices of a pool.
    StoreMade,
    /// The state file has the new records.
    Recorded,
    /// The volume is suspended.
    Suspended,
    /// The volumes beneath are live, or removed.
    Arranged,
    /// The change of the pool's metadata is durable.
    Pooled,
    /// Backing devices of bcache that the new table uses without their caches are detached.
    Detached,
    /// The new table has started, and serves no request yet.
    Started,
    /// The new table cannot start, and backing devices of bcache are attached again. The old table
    /// has not started yet.
    Attached,
    /// Clients are served again.
    Resumed,
    /// The verb is done.
    Done,
}

/// Logs that a step could not be undone. The caller gets the error that made it undo.
pub fn log_undo_failure(what: &str, outcome: Outcome<()>) {
    if let Err(error) = outcome {
        tracing::error!("{what}: {error}");
    }
}
