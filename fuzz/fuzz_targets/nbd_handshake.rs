//! Fuzzes what an NBD client says while it negotiates.
#![no_main]

#[path = "../exports_bodies.rs"]
mod exports_bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| exports_bodies::nbd_handshake(bytes));
