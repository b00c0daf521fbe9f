//! Fuzzes whole caches of bcache: reading, checker, losses.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cairn_fuzz::bcache::bcache_set(bytes));
