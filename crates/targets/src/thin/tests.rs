//! Tests of pools and volumes in virtual time, over drives that record their requests and fail on
//! demand. `fixture` is what they share; each other file tests one part.

mod basics;
mod commits;
mod discards;
mod edits;
mod errors;
mod fixture;
mod full;
mod inspections;
mod killed;
mod large_blocks;
mod losses;
mod modes;
mod origins;
mod properties;
mod reload;
mod snapshots;
mod zeroes;
