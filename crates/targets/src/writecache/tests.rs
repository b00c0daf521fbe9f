//! The behaviour of writecache, in virtual time, over drives that note what they get and fail
//! when told. `bed` is the world; each other file is one room's promises.

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
