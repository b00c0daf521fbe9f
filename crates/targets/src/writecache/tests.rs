//! Tests of writecache in virtual time, over drives that record their requests and fail on demand.
//! `bed` is the fixture; each other file tests one file of the target.

mod bed;
mod durability;
mod errors;
mod failures;
mod killed;
mod opening;
mod pace;
mod properties;
mod reload;
mod removal;
mod soak;
mod writeback;
