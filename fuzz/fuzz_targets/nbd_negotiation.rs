//! Fuzzes what an NBD server says while it negotiates with the client.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cairn_fuzz::client::nbd_negotiation(bytes));
