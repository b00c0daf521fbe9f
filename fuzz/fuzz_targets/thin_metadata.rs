//! Fuzzes the metadata of thin pools: checker, dump, reverse map and repair.
#![no_main]

#[path = "../thin_bodies.rs"]
mod thin_bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thin_bodies::thin_metadata(bytes));
