//! Fuzzes the TOML file.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    cairn_fuzz::program::toml(bytes);
});
