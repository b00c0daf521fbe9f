//! Tools on devices that nobody serves: what is this, is it sound, show it, make it, drain it.
//!
//! `probe`, `check` and `dump` only read, under a shared lock; a device that somebody writes is
//! refused as busy.

pub mod check;
pub mod dump;
pub mod flush;
mod flush_progress;
pub mod format;
pub mod probe;
mod source;
mod writecache;
