//! `cairn lab writeback`: the order of writeback, on the configurations that reviewers of ordered
//! writeback used.
//!
//! - [`rows`]: the experiments, which are files of `docs/evidence/writeback`, with what was seen
//!   elsewhere. [`versions`]: the rows as they are run. [`bound`]: the least time of a row.
//!   [`judge`]: how runs compare. [`table`]: all of it, side by side. [`ranges`]: the same over
//!   ranges of the drives' figures. [`scales`]: rows at two scales; both by [`measure`].
//!   `parity`: rows of arrays. `buckets`: those that are fragmented. [`asked`]: what a user asks
//!   for. [`verb`]: what is done then.
//!
//! Promise: a page is that of `cairn lab run` with the file that is written beside it.

pub mod asked;
pub mod bound;
mod buckets;
pub mod judge;
pub mod measure;
mod parity;
pub mod ranges;
pub mod rows;
pub mod scales;
pub mod table;
#[cfg(test)]
mod testing;
pub mod verb;
pub mod versions;
