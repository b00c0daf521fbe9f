//! Fuzzes slots of the write-intent map of bcache.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cairn_fuzz::bcache::bcache_intent(bytes));
