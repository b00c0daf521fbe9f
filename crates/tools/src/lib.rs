//! Tools on devices that no server uses: identify, check, show, format, repair.
//!
//! Each verb is a file with a `run` that takes its arguments ([`args`]), prints, and returns the
//! exit code. [`source`]: the device. [`progress`]: the progress of a drain, on stderr.
//!
//! `probe`, `check` and `dump` only read, under a shared lock; a device that another process writes
//! is refused as busy. Each format has a folder with what the verbs need to know of it; a verb asks
//! [`kind`] which format a device holds.

pub mod args;
mod bcache;
pub mod check;
mod clone;
mod dirty;
pub mod dump;
pub mod format;
mod kind;
pub mod probe;
pub mod progress;
mod qcow2;
pub mod repair;
pub mod snapshot;
pub mod source;
pub mod thin;
mod verdict;
mod writecache;
