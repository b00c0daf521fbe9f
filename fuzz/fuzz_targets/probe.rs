//! Fuzzes the signatures a device is recognised by.
#![no_main]

#[path = "../format_bodies.rs"]
mod format_bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| format_bodies::probe_windows(bytes));
