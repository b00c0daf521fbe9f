//! Fuzzes the exception store of dm-snapshot: header, layout, checker and repair.
#![no_main]

#[path = "../format_bodies.rs"]
mod format_bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| format_bodies::snapshot_store(bytes));
