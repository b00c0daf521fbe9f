//! The behaviour of pools and volumes, in virtual time, over drives that note what they get and
//! fail when told. `bed` is the world; each other file is one room's promises.

mod basics;
mod bed;
mod commits;
mod discards;
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
