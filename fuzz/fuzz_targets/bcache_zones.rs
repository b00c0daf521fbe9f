//! Fuzzes slots of the map of dirty zones of bcache.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cairn_fuzz::bcache::bcache_zones(bytes));
