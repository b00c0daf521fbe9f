//! Fuzzes the signatures a device is recognised by.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cairn_fuzz::format::probe_windows(bytes));
