//! Fuzzes the lines of the control socket.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    cairn_fuzz::program::rpc(bytes);
});
