//! Amounts in the form of bcache's sysfs: up to three digits, one digit after the point, and a
//! letter for the power of 1024. Numbers are divided at least once.

const LETTERS: &[u8] = b"kMGTPE";

/// An amount, mostly of bytes.
pub(super) fn human(amount: i64) -> String {
    let (mut whole, mut rest, mut letter) = (amount.unsigned_abs(), 0, None);
    while letter.is_none() || whole >= 1000 {
        rest = whole % 1024;
        whole /= 1024;
        letter = Some(letter.map_or(0, |letter| letter + 1));
    }
    let sign = if amount < 0 { "-" } else { "" };
    let letter = char::from(LETTERS[letter.unwrap_or_default()]);
    format!("{sign}{whole}.{}{letter}", rest * 10 / 1024)
}

#[cfg(test)]
mod tests {
    use super::human;

    #[test]
    fn amounts_have_up_to_three_digits_and_one_after_the_point() {
        for (amount, expected) in [
            (0, "0.0k"),
            (511, "0.4k"),
            (4096, "4.0k"),
            (-4096, "-4.0k"),
            (1023 * 1024, "0.9M"),
            (999 * 1024 + 1023, "999.9k"),
            (1000 * 1024, "0.9M"),
            (3 << 29, "1.5G"),
            // The rate of an idle device, as a kernel shows it.
            (i64::from(i32::MAX) * 512, "0.9T"),
            (i64::MAX, "7.9E"),
            (i64::MIN, "-8.0E"),
        ] {
            assert_eq!(human(amount), expected, "{amount}");
        }
    }
}
