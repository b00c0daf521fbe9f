//! Files of keys, as psktool and libnbd have them: a line for each, as `NAME:HEX`.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The shortest key, in bytes; what the tools make is longer.
const KEY_BYTES_MIN: usize = 16;

/// The longest key that OpenSSL takes, in bytes.
pub const KEY_BYTES_MAX: usize = 256;

/// A file of keys is not longer.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Keys, by the names of their clients.
pub type KeysByName = HashMap<Vec<u8>, Vec<u8>>;

/// Reads a file of keys.
///
/// # Errors
/// What is wrong with it. No key is shown.
pub fn read(path: &Path) -> Result<KeysByName, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let mut text = String::new();
    let read = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text);
    read.map_err(|error| error.to_string())?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("found more than {FILE_BYTES_MAX} bytes of keys"));
    }
    parse(&text)
}

fn parse(text: &str) -> Result<KeysByName, String> {
    let mut keys = HashMap::new();
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |found: &str| {
            let expected = "NAME:KEY, a key of";
            let bytes = format!("{KEY_BYTES_MIN} to {KEY_BYTES_MAX} bytes in hexadecimal digits");
            format!("line {}: found {found}, expected {expected} {bytes}", at + 1)
        };
        // The key is not shown.
        let (name, key) = line.trim_end().split_once(':').ok_or_else(|| wrong("no colon"))?;
        let key = bytes_of(key).ok_or_else(|| wrong("another key"))?;
        if name.is_empty() || !(KEY_BYTES_MIN..=KEY_BYTES_MAX).contains(&key.len()) {
            let found = if name.is_empty() { "no name" } else { "a key of another length" };
            return Err(wrong(found));
        }
        if keys.insert(name.as_bytes().to_vec(), key).is_some() {
            return Err(format!("line {}: found '{name}' again, expected one key for it", at + 1));
        }
    }
    if keys.is_empty() { Err("found no key".to_owned()) } else { Ok(keys) }
}

fn bytes_of(hex: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u32>> = hex.chars().map(|digit| digit.to_digit(16)).collect();
    let digits = digits.filter(|digits| digits.len().is_multiple_of(2))?;
    Some(digits.chunks(2).map(|pair| (pair[0] * 16 + pair[1]) as u8).collect())
}

#[cfg(test)]
mod tests {
    use super::parse;

    const KEY: &str = "00112233445566778899aabbccddeeff";

    #[test]
    fn a_file_has_a_key_for_each_name() {
        let keys = parse(&format!("alice:{KEY}\n\nbob:{KEY}{KEY}\n")).unwrap();
        assert_eq!((keys.len(), keys[&b"alice"[..]][1], keys[&b"bob"[..]].len()), (2, 0x11, 32));
        for (text, found) in [
            ("alice", "line 1: found no colon, expected NAME:KEY"),
            ("\nalice:0011", "line 2: found a key of another length"),
            (&format!("alice:{KEY}0"), "line 1: found another key"),
            (&format!("alice:{KEY}xx"), "line 1: found another key"),
            (&format!(":{KEY}"), "line 1: found no name"),
            (&format!("a:{KEY}\na:{KEY}"), "line 2: found 'a' again"),
            ("\n", "found no key"),
        ] {
            let refused = parse(text).unwrap_err();
            assert!(refused.starts_with(found), "{text}: {refused}");
            assert!(!refused.contains(KEY), "a key is shown: {refused}");
        }
    }
}
