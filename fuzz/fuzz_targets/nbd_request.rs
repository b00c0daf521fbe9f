//! Fuzzes what an NBD client asks for once it is connected.
#![no_main]

#[path = "../exports_bodies.rs"]
mod exports_bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| exports_bodies::nbd_request(bytes));
