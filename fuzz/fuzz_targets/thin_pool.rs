//! Fuzzes the metadata of thin pools under a pool that serves: opening, requests, messages.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    cairn_fuzz::thin_pool::thin_pool(bytes);
});
