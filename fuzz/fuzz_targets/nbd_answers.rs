//! Fuzzes what an NBD server answers to a client with requests under way.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cairn_fuzz::client::nbd_answers(bytes));
