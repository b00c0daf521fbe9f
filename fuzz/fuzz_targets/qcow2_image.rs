//! Fuzzes the header and the tables of qcow2 images.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cairn_fuzz::format::qcow2_image(bytes));
