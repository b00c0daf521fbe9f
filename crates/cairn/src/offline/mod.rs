//! Tools on devices that nobody serves: what is this, is it sound, show it, make it, drain
//! it, repair it.
//!
//! `probe`, `check` and `dump` only read, under a shared lock; a device that somebody writes is
//! refused as busy. Each format has a room of its own with what the verbs need to know of it; a
//! verb asks [`room`] which one to enter.

pub mod check;
pub mod dump;
pub mod flush;
pub mod flush_progress;
pub mod format;
pub mod probe;
pub mod repair;
mod room;
mod snapshot;
pub mod source;
pub mod thin;
mod writecache;
