//! The argument reader of table lines: a cursor over the words after a target's name.
//!
//! Every target parses with [`Args`] and nothing else, so that all follow one syntax: numbers are
//! decimal, keywords are compared without regard to case (as the kernel compares them), left-over
//! words are refused, and an error names the target, the argument, what was found and what was
//! expected. A target's keywords are in its [`Spec`], which the parser and the test of the manuals
//! both read.
//!
//! Must never do I/O beyond opening a device, nor write a byte.

use std::ops::RangeInclusive;
use std::sync::Arc;

use cairn_block::{ConfigError, Ctor, Disk, Field, Registry, Sector, SectorCount};

use crate::area::Area;

/// The largest position or length that has a byte offset.
const MAX_SECTORS: u64 = u64::MAX >> 9;

/// An optional argument: its keyword and the names of the values that follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionSpec {
    /// The keyword.
    pub word: &'static str,
    /// What follows it, one name per word.
    pub values: &'static [&'static str],
}

impl OptionSpec {
    /// A keyword with its values.
    pub const fn new(word: &'static str, values: &'static [&'static str]) -> OptionSpec {
        OptionSpec { word, values }
    }

    /// How many words it takes, the keyword included.
    pub const fn words(&self) -> usize {
        1 + self.values.len()
    }
}

/// The options, status fields and messages of a kind of target. Its manual lists exactly these.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// The optional arguments.
    pub options: &'static [OptionSpec],
    /// The fields of the status line after the target's name, in order.
    pub status_fields: &'static [Field],
    /// The first words of its messages.
    pub messages: &'static [&'static str],
}

impl Spec {
    /// A target without options, status fields and messages.
    pub const NONE: Spec = Spec { options: &[], status_fields: &[], messages: &[] };
}

/// A device argument, opened.
#[derive(Clone)]
pub struct Device {
    /// The user's name for it; printed in the table line.
    pub argument: String,
    /// The disk.
    pub disk: Arc<dyn Disk>,
}

/// A cursor over the words of a table line.
pub struct Args<'a> {
    target: &'static str,
    words: &'a [&'a str],
    registry: &'a Registry,
    read_only: bool,
}

impl<'a> Args<'a> {
    /// The words after the name of `target`.
    pub fn new(target: &'static str, ctor: &Ctor<'a>) -> Args<'a> {
        let Ctor { args, registry, read_only, .. } = *ctor;
        Args { target, words: args, registry, read_only }
    }

    /// How many words have not been read.
    pub fn left(&self) -> usize {
        self.words.len()
    }

    /// An error about `field`.
    pub fn refuse(
        &self,
        field: &str,
        found: impl std::fmt::Display,
        expected: &str,
    ) -> ConfigError {
        ConfigError::argument(self.target, field, found, expected)
    }

    /// The next word, unparsed.
    ///
    /// # Errors
    /// There is none.
    pub fn word(&mut self, field: &str) -> Result<&'a str, ConfigError> {
        self.next(field, "one more word")
    }

    fn next(&mut self, field: &str, expected: &str) -> Result<&'a str, ConfigError> {
        let Some((&word, rest)) = self.words.split_first() else {
            return Err(self.refuse(field, "nothing", expected));
        };
        self.words = rest;
        Ok(word)
    }

    /// The next word as a decimal number within `range`.
    ///
    /// # Errors
    /// It is missing, not a number, or outside.
    pub fn number(&mut self, field: &str, range: RangeInclusive<u64>) -> Result<u64, ConfigError> {
        let expected = match (*range.start(), *range.end()) {
            (low, u64::MAX) => format!("a number of at least {low}"),
            (low, high) => format!("a number from {low} to {high}"),
        };
        let word = self.next(field, &expected)?;
        let number = word.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| self.refuse(field, format!("'{word}'"), &expected))
    }

    /// The next word as a position in sectors.
    ///
    /// # Errors
    /// It is missing or not a number of sectors below 2^55.
    pub fn sector(&mut self, field: &str) -> Result<Sector, ConfigError> {
        self.number(field, 0..=MAX_SECTORS).map(Sector)
    }

    /// The next word as a length of at least `least` sectors.
    ///
    /// # Errors
    /// It is missing, too small, or not a number of sectors below 2^55.
    pub fn sectors(&mut self, field: &str, least: u64) -> Result<SectorCount, ConfigError> {
        self.number(field, least..=MAX_SECTORS).map(SectorCount)
    }

    /// The next word as one of `words`, without regard to case; answers with its index.
    ///
    /// # Errors
    /// It is missing or none of them.
    pub fn choice(&mut self, field: &str, words: &[&str]) -> Result<usize, ConfigError> {
        let expected = one_of(words);
        let word = self.next(field, &expected)?;
        let found = words.iter().position(|known| known.eq_ignore_ascii_case(word));
        found.ok_or_else(|| self.refuse(field, format!("'{word}'"), &expected))
    }

    /// The next word as a device, opened; its size is read again.
    ///
    /// # Errors
    /// It is missing, or the device can't be opened.
    pub fn device(&mut self, field: &str) -> Result<Device, ConfigError> {
        let argument = self.next(field, "a device")?;
        let disk = self.registry.open(argument, self.read_only)?;
        disk.refresh()?;
        Ok(Device { argument: argument.to_owned(), disk })
    }

    /// The next two words as a device and the sector on it where `len` sectors begin.
    ///
    /// # Errors
    /// One is missing or wrong, or the device does not hold that range.
    pub fn area(
        &mut self,
        device_field: &str,
        offset_field: &str,
        len: SectorCount,
    ) -> Result<Area, ConfigError> {
        let device = self.device(device_field)?;
        let start = self.sector(offset_field)?;
        Area::new(self.target, device, offset_field, start, len)
    }

    /// A group of optional arguments: a count of words, then the words. A keyword and its
    /// values are one word each. Without any word left, the group is empty.
    ///
    /// # Errors
    /// The count is not a number up to `most`, or fewer words follow.
    pub fn group(&mut self, field: &str, most: usize) -> Result<Args<'a>, ConfigError> {
        let mut group = Args { words: &[], ..*self };
        if self.words.is_empty() {
            return Ok(group);
        }
        let count = self.number(field, 0..=most as u64)? as usize;
        let Some((words, rest)) = self.words.split_at_checked(count) else {
            let found = format!("{count} with {} words after it", self.words.len());
            return Err(self.refuse(field, found, "a count of the words after it"));
        };
        group.words = words;
        self.words = rest;
        Ok(group)
    }

    /// In a group: the next keyword, spelled as in `known`; `None` at the end. Its values are the
    /// next words.
    ///
    /// # Errors
    /// The word is unknown, or the group ends before its last value.
    pub fn option(
        &mut self,
        known: &'static [OptionSpec],
    ) -> Result<Option<&'static str>, ConfigError> {
        if self.words.is_empty() {
            return Ok(None);
        }
        let word = self.word("option")?;
        let Some(spec) = known.iter().find(|spec| spec.word.eq_ignore_ascii_case(word)) else {
            let words: Vec<_> = known.iter().map(|spec| spec.word).collect();
            return Err(self.refuse("option", format!("'{word}'"), &one_of(&words)));
        };
        if self.left() < spec.values.len() {
            let found = format!("{} words counted after it", self.left());
            let expected = format!("{} ({})", spec.values.len(), spec.values.join(", "));
            return Err(self.refuse(spec.word, found, &expected));
        }
        Ok(Some(spec.word))
    }

    /// Ends the line.
    ///
    /// # Errors
    /// A word is left over.
    pub fn finish(self) -> Result<(), ConfigError> {
        match self.words.first() {
            None => Ok(()),
            Some(word) => {
                let found = format!("'{word}'");
                Err(self.refuse("trailing words", found, "the end of the line"))
            }
        }
    }
}

fn one_of(words: &[&str]) -> String {
    match words {
        [only] => format!("'{only}'"),
        _ => format!("one of {}", words.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_block::Events;
    use cairn_sim::SimOpener;

    const KNOWN: &[OptionSpec] =
        &[OptionSpec::new("plain", &[]), OptionSpec::new("Pair", &["left", "right"])];

    fn with_args<R>(words: &[&str], test: impl FnOnce(Args<'_>) -> R) -> R {
        let registry = Registry::new(Box::new(SimOpener::new()));
        let events = Events::default();
        let ctor = Ctor {
            start: Sector(0),
            len: SectorCount(8),
            args: words,
            registry: &registry,
            events: &events,
            failures: &Default::default(),
            read_only: false,
        };
        test(Args::new("probe", &ctor))
    }

    fn text<T>(result: Result<T, ConfigError>) -> String {
        result.err().expect("refused").to_string()
    }

    #[test]
    fn numbers_are_decimal_and_bounded() {
        let words = ["7", "300", "x", "-1", "0x10", "18446744073709551616", "36028797018963968"];
        with_args(&words, |mut args| {
            assert_eq!(args.number("n", 0..=255).unwrap(), 7);
            let wrong = "probe: n: found '300', expected a number from 0 to 255";
            assert_eq!(text(args.number("n", 0..=255)), wrong);
            for word in &words[2..6] {
                let wrong = format!("probe: n: found '{word}', expected a number of at least 1");
                assert_eq!(text(args.number("n", 1..=u64::MAX)), wrong);
            }
            assert!(text(args.sector("offset")).contains("from 0 to 36028797018963967"));
            let missing = "probe: n: found nothing, expected a number of at least 0";
            assert_eq!(text(args.number("n", 0..=u64::MAX)), missing);
        });
    }

    #[test]
    fn a_group_ends_where_its_count_says() {
        with_args(&["4", "PAIR", "1", "2", "plain", "after"], |mut args| {
            let mut group = args.group("#options", 4).unwrap();
            assert_eq!(group.option(KNOWN).unwrap(), Some("Pair"));
            assert_eq!((group.word("left").unwrap(), group.word("right").unwrap()), ("1", "2"));
            assert_eq!(group.option(KNOWN).unwrap(), Some("plain"));
            assert_eq!(group.option(KNOWN).unwrap(), None);
            assert_eq!(args.word("last").unwrap(), "after");
            args.finish().unwrap();
        });
    }

    #[test]
    fn without_words_a_group_is_empty() {
        with_args(&[], |mut args| {
            assert_eq!(args.group("#options", 4).unwrap().option(KNOWN).unwrap(), None);
        });
    }

    #[test]
    fn wrong_groups_are_refused() {
        let refusal = |words: &[&str]| {
            with_args(words, |mut args| {
                let group = args.group("#options", 4);
                text(group.and_then(|mut group| group.option(KNOWN)))
            })
        };
        assert_eq!(
            refusal(&["2", "plain"]),
            "probe: #options: found 2 with 1 words after it, expected a count of the words after it"
        );
        assert_eq!(refusal(&["5"]), "probe: #options: found '5', expected a number from 0 to 4");
        assert_eq!(
            refusal(&["1", "other"]),
            "probe: option: found 'other', expected one of plain, Pair"
        );
        assert_eq!(
            refusal(&["2", "pair", "1", "2"]),
            "probe: Pair: found 1 words counted after it, expected 2 (left, right)"
        );
    }

    #[test]
    fn choices_ignore_case_and_trailing_words_are_refused() {
        with_args(&["W", "x", "more"], |mut args| {
            assert_eq!(args.choice("direction", &["r", "w"]).unwrap(), 1);
            let wrong = "probe: direction: found 'x', expected one of r, w";
            assert_eq!(text(args.choice("direction", &["r", "w"])), wrong);
            let left = "probe: trailing words: found 'more', expected the end of the line";
            assert_eq!(text(args.finish()), left);
        });
    }
}
