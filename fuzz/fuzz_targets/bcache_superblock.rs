//! Fuzzes the superblocks of bcache: decoding, encoding, sizes.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cairn_fuzz::bcache::bcache_superblock(bytes));
