//! Experiments: the targets that `cairn serve` runs, on simulated drives, in virtual time.
//!
//! ```text
//!  FILE --form--> Experiment --run--> one world per variant and seed --record--> samples
//! ```
//!
//! - [`form`]: what a file may say, of [`clients`] in a file of their own. [`devices`]: drives by
//!   their words. [`words`]: what stands for something else. [`run`]: one world, from its
//!   beginning to its end; [`runs`]: several. [`client`]: operations that are sent. [`record`],
//!   [`histogram`], `census` (runs of dirty data): what is kept. [`report`]: its page; [`phases`]:
//!   tables of it; [`variant`]: its runs. [`verb`]: what a user asks for.
//!
//! Promises:
//! - X1. A run is decided by its experiment, variant, seed and prices: nothing else is random, and
//!   nothing reads a clock.
//! - X2. No policy is here: volumes are tables of `cairn_targets`, and what a variant changes are
//!   messages to them.

mod census;
pub mod client;
pub mod clients;
pub mod devices;
pub mod form;
pub mod histogram;
pub mod phases;
pub mod record;
pub mod report;
pub mod run;
pub mod runs;
pub mod variant;
pub mod verb;
pub mod words;
