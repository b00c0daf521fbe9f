//! The lab: experiments with the simulator's drives, and the figures that its models must meet.
//!
//! - [`experiment`]: targets on simulated drives, from a file. [`costs`]: of the processor.
//! - [`dsync`]: durable writes through a cache, by policy of flushes.
//! - [`load`]: a closed loop over a timing model. [`drives`]: each model beside published rows.
//! - [`workload`]: what clients ask for. [`trace`]: what they once asked for, from a file.
//! - [`page`]: an experiment as one HTML file with plots, and its data.
//! - [`fill`]: caches that are full of data when an experiment begins.
//! - [`writeback`]: experiments about the order of writeback, side by side.
//! - [`what_if`]: what a cache would do for a user's trace.
//! - [`workers`]: a model of workers that share locks.
//! - [`publish`]: all pages of the evidence. [`jobs`]: runs beside each other.
//! - [`permutation`]: numbers in a random order, without memory.
//!
//! Promise: the same build prints the same figures, to the byte, on every machine. Nothing here
//! reads a clock, and what is random is seeded.

pub mod costs;
pub mod drives;
pub mod dsync;
pub mod experiment;
pub mod fill;
pub mod jobs;
pub mod load;
pub mod page;
pub mod permutation;
pub mod publish;
pub mod trace;
pub mod what_if;
pub mod workers;
pub mod workload;
pub mod writeback;
