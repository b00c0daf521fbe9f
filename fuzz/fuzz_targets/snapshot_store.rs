//! Fuzzes the exception store of dm-snapshot: header, layout, checker and repair.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cairn_fuzz::format::snapshot_store(bytes));
