//! Tests of writecache in virtual time, over drives that record their requests and fail on demand.
//! `fixture` is what they share; each other file tests one file of the target.

mod durability;
mod errors;
mod failures;
mod fixture;
mod killed;
mod opening;
mod pace;
mod properties;
mod reload;
mod removal;
mod soak;
mod sweep;
mod writeback;
