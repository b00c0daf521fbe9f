//! Fuzzes what a driver says in its messages.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cairn_fuzz::exports::vhost_user_message(bytes));
