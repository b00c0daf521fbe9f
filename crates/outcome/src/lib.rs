//! How operations and programs end: one way for all programs of the project.
//!
//! - [`failure`]: what operations return. [`exit`]: exit codes.
//! - [`stdout`]: results. [`stderr`]: errors, notes and the log.
//! - [`signals`]: requests to stop, and files that must not outlive an interrupted verb.
//! - [`program`]: the frame of a `main`, and where the other programs are.
//!
//! Promises: an error is one line on stderr and one exit code; a stream that cannot be written
//! causes no panic. Deliberately absent: verbs, options, devices.

pub mod exit;
pub mod failure;
pub mod program;
pub mod signals;
pub mod stderr;
pub mod stdout;
