//! Sizes as people write them: plain bytes, `512s` sectors, `K`, `M`, `G`, `T` powers of 1024.

use cairn_block::SECTOR_BYTES;

/// A text that is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("size: found '{found}', expected bytes, or a number with s (sectors), K, M, G or T")]
pub struct SizeError {
    /// The text.
    pub found: String,
}

/// The bytes that `text` names.
///
/// # Errors
/// It is not a number with one of the suffixes, or does not fit in 64 bits.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    size_of_text(text).ok_or_else(|| SizeError { found: text.to_owned() })
}

fn size_of_text(text: &str) -> Option<u64> {
    let suffix = text.chars().last()?;
    let unit = match suffix.to_ascii_uppercase() {
        'S' => SECTOR_BYTES,
        'K' => 1 << 10,
        'M' => 1 << 20,
        'G' => 1 << 30,
        'T' => 1 << 40,
        '0'..='9' => 1,
        _ => return None,
    };
    let digits = text.strip_suffix(|c: char| c.is_ascii_alphabetic()).unwrap_or(text);
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_sectors_and_powers_of_1024() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("512s", 512 * 512),
            ("4K", 4096),
            ("4k", 4096),
            ("64M", 64 << 20),
            ("10G", 10 << 30),
            ("3T", 3 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn invalid_size_is_refused_and_quoted() {
        for text in ["", "K", "-1", "+1", "1.5G", "4KiB", "4 K", "0x10", "16777216T", "１"] {
            let error = parse_size(text).unwrap_err();
            assert!(error.to_string().contains(&format!("'{text}'")), "{error}");
        }
    }
}
