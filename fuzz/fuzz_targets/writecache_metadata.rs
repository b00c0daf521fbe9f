//! Fuzzes the writecache slot table and its checker.
#![no_main]

#[path = "../format_bodies.rs"]
mod format_bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| format_bodies::writecache_metadata(bytes));
