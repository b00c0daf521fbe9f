//! Fuzzes the writecache slot table and its checker.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cairn_fuzz::format::writecache_metadata(bytes));
