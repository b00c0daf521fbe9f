//! Lines of a trace: their words and numbers, and errors that name them.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{BufRead, Read};

use cairn_block::{ConfigError, SECTOR_BYTES, Sector, SectorCount, SectorRange};
use cairn_outcome::failure::{Outcome, system, wrong};

/// The longest line, in bytes.
pub const LINE_BYTES_MAX: usize = 1 << 16;
/// How much of a word an error shows, in characters.
const SHOWN_CHARS_MAX: usize = 60;

/// The lines of a file.
pub struct Lines<R> {
    name: String,
    input: R,
    /// Of the last line, from 1.
    number: u64,
    text: Vec<u8>,
}

impl<R: BufRead> Lines<R> {
    /// The lines of `input`, a file called `name`.
    pub fn new(name: &str, input: R) -> Lines<R> {
        Lines { name: name.to_owned(), input, number: 0, text: Vec::new() }
    }

    /// The next one that has words.
    ///
    /// # Errors
    /// The file cannot be read, or the line is longer than [`LINE_BYTES_MAX`].
    pub fn next(&mut self) -> Outcome<Option<Line<'_>>> {
        loop {
            self.text.clear();
            self.number += 1;
            let mut input = (&mut self.input).take(LINE_BYTES_MAX as u64 + 1);
            let count = input
                .read_until(b'\n', &mut self.text)
                .map_err(|error| system(&self.name, "read", error))?;
            if count == 0 {
                return Ok(None);
            }
            if count > LINE_BYTES_MAX {
                let line = Line { name: &self.name, number: self.number, text: "".into() };
                let found = format!("more than {LINE_BYTES_MAX} bytes");
                return Err(line.wrong("line", found, "the text of a trace"));
            }
            if !self.text.trim_ascii().is_empty() {
                break;
            }
        }
        let text = String::from_utf8_lossy(&self.text);
        Ok(Some(Line { name: &self.name, number: self.number, text }))
    }
}

/// A line.
pub struct Line<'a> {
    name: &'a str,
    number: u64,
    /// What it says. Bytes that are no UTF-8 are U+FFFD.
    pub text: Cow<'a, str>,
}

impl Line<'_> {
    /// The words between spaces.
    pub fn words(&self) -> Vec<&str> {
        self.text.split_ascii_whitespace().collect()
    }

    /// An error about this line.
    pub fn wrong(&self, field: &str, found: impl Display, expected: impl Display) -> ConfigError {
        wrong(self.name, &format!("line {}: {field}", self.number), found, expected)
    }

    /// An error about a word of this line.
    pub fn wrong_word(&self, field: &str, word: &str, expected: impl Display) -> ConfigError {
        self.wrong(field, shown(word), expected)
    }

    /// A number in decimal.
    pub fn number(&self, field: &str, word: &str) -> Outcome<u64> {
        let is_number = word.bytes().all(|byte| byte.is_ascii_digit());
        let number = if is_number { word.parse().ok() } else { None };
        number.ok_or_else(|| self.wrong_word(field, word, format!("a number up to {}", u64::MAX)))
    }

    /// A number times `by`, for a unit of another size.
    pub fn scaled(&self, field: &str, word: &str, by: u64) -> Outcome<u64> {
        let number = self.number(field, word)?;
        number
            .checked_mul(by)
            .ok_or_else(|| self.wrong(field, number, format!("a number up to {}", u64::MAX / by)))
    }

    /// A range from its first byte and its length in bytes.
    pub fn range_of_bytes(&self, offset: &str, length: &str) -> Outcome<SectorRange> {
        let whole = |field, word| {
            let bytes = self.number(field, word)?;
            if bytes.is_multiple_of(SECTOR_BYTES) {
                return Ok(bytes);
            }
            Err(self.wrong(field, bytes, format!("a multiple of {SECTOR_BYTES}")))
        };
        let (offset, length) = (whole("offset", offset)?, whole("length", length)?);
        if length == 0 {
            return Err(self.wrong("length", length, "more"));
        }
        Ok(SectorRange::new(Sector::of_byte(offset), SectorCount::of_bytes(length)))
    }
}

/// A word as an error shows it: quoted, without what a terminal obeys, and not too long.
pub fn shown(word: &str) -> String {
    let escaped: String = word.escape_debug().take(SHOWN_CHARS_MAX).collect();
    format!("\"{escaped}\"")
}
