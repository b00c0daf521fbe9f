//! Fuzzes the metadata of thin pools: checker, dump, reverse map and repair.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cairn_fuzz::thin::thin_metadata(bytes));
