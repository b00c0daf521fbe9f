//! Fuzzes the text of tables and the arguments of every kind of target.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    cairn_fuzz::targets::table(bytes);
});
