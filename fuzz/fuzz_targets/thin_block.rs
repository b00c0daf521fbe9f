//! Fuzzes the blocks of a thin pool's metadata: superblock, nodes, bitmaps, index.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cairn_fuzz::thin::thin_block(bytes));
