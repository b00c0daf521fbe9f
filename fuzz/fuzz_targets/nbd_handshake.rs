//! Fuzzes what an NBD client says while it negotiates.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cairn_fuzz::exports::nbd_handshake(bytes));
