//! Fuzzes buckets of the journal of bcache.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cairn_fuzz::bcache::bcache_journal(bytes));
