//! Fuzzes the array of volumes of bcache.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cairn_fuzz::bcache::bcache_uuids(bytes));
