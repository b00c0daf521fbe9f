//! Fuzzes the XML of thin pools: reading, and building what it says.
#![no_main]

#[path = "../thin_bodies.rs"]
mod thin_bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thin_bodies::thin_xml(bytes));
