//! Tests of snapshots in virtual time, over drives that record their requests and fail on demand.
//! `fixture` is what they share; each other file tests one part.

mod cycles;
mod failures;
mod fixture;
mod full;
mod killed;
mod merging;
mod opening;
mod preserving;
mod properties;
mod room;
mod stopping;
