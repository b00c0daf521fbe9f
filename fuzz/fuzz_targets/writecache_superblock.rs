//! Fuzzes the writecache superblock: decoding, encoding and layout.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cairn_fuzz::format::writecache_superblock(bytes));
