//! Tests of pools and volumes in virtual time, over drives that record their requests and fail on
//! demand. `bed` is the fixture; each other file tests one part.

mod basics;
mod bed;
mod commits;
mod discards;
mod edits;
mod errors;
mod full;
mod inspections;
mod large_blocks;
mod losses;
mod modes;
mod origins;
mod properties;
mod reload;
mod snapshots;
mod zeroes;
