//! The program, run as its users run it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bad_input;
mod bcache_detach;
mod bcache_detaching;
mod bcache_in_error;
mod bcache_in_use;
mod bcache_interrupted;
mod bcache_serve;
mod bcache_tools;
mod bcache_verbs;
mod bcache_zones;
mod bench;
mod cache;
mod clone_tools;
mod kept;
mod killed;
mod losses;
mod manuals;
mod notify;
mod owners;
mod pages;
mod place;
mod replace;
mod serve;
mod snap;
mod snapshot_tools;
mod sockets;
mod state;
mod thin_held;
mod thin_large;
mod thin_restore;
mod thin_tools;
mod upgrade;
mod verbs;
mod vhost;
mod vhost_upgrade;
mod writecache_tools;
