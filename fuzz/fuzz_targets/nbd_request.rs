//! Fuzzes what an NBD client asks for once it is connected.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cairn_fuzz::exports::nbd_request(bytes));
