//! Fuzzes what a server hands over to its successor.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    cairn_fuzz::handover::handover(bytes);
});
