//! The behaviour of snapshots, in virtual time, over drives that note what they get and fail when
//! told. `bed` is the world; each other file is one room's promises.

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
