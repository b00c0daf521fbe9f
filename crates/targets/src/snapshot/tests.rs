//! Tests of snapshots in virtual time, over drives that record their requests and fail on demand.
//! `bed` is the fixture; each other file tests one part.

mod bed;
mod cycles;
mod failures;
mod full;
mod merging;
mod opening;
mod preserving;
mod properties;
mod room;
mod stopping;
