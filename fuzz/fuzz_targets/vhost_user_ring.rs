//! Fuzzes what a driver writes into its rings.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cairn_fuzz::exports::vhost_user_ring(bytes));
