//! Fuzzes the text of tables and the arguments of every kind of target.
#![no_main]

#[path = "../targets_bodies.rs"]
mod targets_bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    targets_bodies::table(bytes);
});
