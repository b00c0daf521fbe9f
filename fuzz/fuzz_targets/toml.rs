//! Fuzzes the TOML file.
#![no_main]

#[path = "../cairn_bodies.rs"]
mod cairn_bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    cairn_bodies::toml(bytes);
});
