//! What a fuzzer does with the TOML file and the lines of the control socket: decode them, and hold
//! the decoders to their promises.
//!
//! Shared with the ordinary property test of `crates/cairn`, which runs the same bodies on random
//! and mutated seeds in every `cargo test`. A body panics when a promise is broken, and must never
//! depend on anything but its input.

use cairn::untrusted;

/// The text of a TOML file. True if it is one that has a meaning.
pub fn toml(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    match untrusted::toml(&text) {
        Ok(_) => true,
        Err(line) => {
            assert!(!line.contains('\n'), "one line: {line:?}");
            assert!(line.contains(": "), "{line} names a place");
            false
        }
    }
}

/// A line on the control socket. True if it is a call that would be carried out.
pub fn rpc(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let (line, is_call) = untrusted::rpc_line(&text);
    assert!(!line.contains('\n'), "one line: {line:?}");
    assert!(line.starts_with("{\"jsonrpc\":\"2.0\",\"id\":"), "{line}");
    is_call
}
