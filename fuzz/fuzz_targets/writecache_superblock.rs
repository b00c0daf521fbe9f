//! Fuzzes the writecache superblock: decoding, encoding and layout.
#![no_main]

#[path = "../format_bodies.rs"]
mod format_bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| format_bodies::writecache_superblock(bytes));
