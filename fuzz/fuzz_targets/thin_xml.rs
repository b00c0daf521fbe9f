//! Fuzzes the XML of thin pools: reading, and building what it says.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cairn_fuzz::thin::thin_xml(bytes));
