//! Fuzzes images of qemu under a volume that writes them.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    cairn_fuzz::qcow2_volume::qcow2_volume(bytes);
});
