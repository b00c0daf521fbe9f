//! Reading: bytes to tags, and tags to the stream.
//!
//! Knows only the part of XML that these files use: elements with attributes, comments and
//! declarations; no text, no entities. Memory: one tag, at most [`TAG_BYTES_MAX`].

use crate::thin::stream::{Pool, Run, Sink};
use crate::thin::{DataBlockSize, DeviceDetails, DeviceId, Error, TIME_MAX, VERSION};

/// Longest tag or comment that is read.
pub const TAG_BYTES_MAX: usize = 1 << 16;

/// What is wrong with the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// Text between tags.
    #[error("found text, expected a tag")]
    Text,
    /// A tag without an end, or too long.
    #[error("found a tag without end within {} bytes", TAG_BYTES_MAX)]
    LongTag,
    /// A tag that is not an element with attributes.
    #[error("found <{found}>, expected an element with attributes")]
    BadTag {
        /// Its text.
        found: String,
    },
    /// An element where it cannot be.
    #[error("found <{found}>, expected {expected}")]
    Unexpected {
        /// Its name.
        found: String,
        /// What can be there.
        expected: &'static str,
    },
    /// An attribute that is missing.
    #[error("<{element}>: found no {attribute}")]
    Missing {
        /// The element.
        element: String,
        /// The attribute.
        attribute: &'static str,
    },
    /// An attribute that is not a number, or too large.
    #[error("<{element}> {attribute}: found {found:?}, expected a number up to {most}")]
    BadNumber {
        /// The element.
        element: String,
        /// The attribute.
        attribute: &'static str,
        /// Its text.
        found: String,
        /// The largest number.
        most: u64,
    },
    /// A number that the format does not allow.
    #[error(transparent)]
    Format(#[from] Error),
    /// The text ends before the pool does.
    #[error("found the end of the text, expected {expected}")]
    Short {
        /// What should come.
        expected: &'static str,
    },
}

/// Why reading stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum XmlError<E> {
    /// The text is wrong.
    Broken {
        /// Counted from 1.
        line: u64,
        /// How.
        what: Broken,
    },
    /// The sink refused the stream.
    Refused {
        /// Counted from 1.
        line: u64,
        /// Why.
        error: E,
    },
}

/// Which elements are open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Nothing,
    Pool,
    Device,
    Done,
}

impl Open {
    fn expects(self) -> &'static str {
        match self {
            Open::Nothing => "<superblock>",
            Open::Pool => "<device> or </superblock>",
            Open::Device => "<single_mapping>, <range_mapping> or </device>",
            Open::Done => "nothing more",
        }
    }
}

/// Reads XML into a stream.
pub struct Reader<S> {
    sink: S,
    open: Open,
    line: u64,
    /// An incomplete tag: from its `<` on.
    tag: Vec<u8>,
    quote: Option<u8>,
}

impl<S: Sink> Reader<S> {
    /// A reader at the start of a text.
    pub fn new(sink: S) -> Reader<S> {
        Reader { sink, open: Open::Nothing, line: 1, tag: Vec::new(), quote: None }
    }

    /// Takes the next bytes.
    ///
    /// # Errors
    /// The text is wrong, or the sink refuses what it says.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), XmlError<S::Error>> {
        for byte in bytes {
            self.line += u64::from(*byte == b'\n');
            if self.tag.is_empty() {
                match byte {
                    b'<' => self.tag.push(b'<'),
                    byte if byte.is_ascii_whitespace() => {}
                    _ => return Err(self.broken(Broken::Text)),
                }
                continue;
            }
            self.tag.push(*byte);
            if self.tag.len() > TAG_BYTES_MAX {
                return Err(self.broken(Broken::LongTag));
            }
            if self.ends(*byte) {
                let tag = core::mem::take(&mut self.tag);
                self.take(&tag[1..tag.len() - 1])?;
                // Reuse its capacity.
                self.tag = tag;
                self.tag.clear();
            }
        }
        Ok(())
    }

    /// Ends the reading, and returns the sink.
    ///
    /// # Errors
    /// The text is not complete.
    pub fn finish(self) -> Result<S, XmlError<S::Error>> {
        match (self.open, self.tag.is_empty()) {
            (Open::Done, true) => Ok(self.sink),
            (open, _) => Err(self.broken(Broken::Short { expected: open.expects() })),
        }
    }

    /// Whether the tag ends with this byte, which is its last one so far.
    fn ends(&mut self, byte: u8) -> bool {
        if self.tag.starts_with(b"<!--") {
            return self.tag.len() >= b"<!---->".len() && self.tag.ends_with(b"-->");
        }
        match (self.quote, byte) {
            (None, b'"' | b'\'') => self.quote = Some(byte),
            (Some(quote), byte) if quote == byte => self.quote = None,
            (None, b'>') => return true,
            _ => {}
        }
        false
    }

    fn broken(&self, what: Broken) -> XmlError<S::Error> {
        XmlError::Broken { line: self.line, what }
    }

    /// Handles a complete tag, given without its brackets.
    fn take(&mut self, tag: &[u8]) -> Result<(), XmlError<S::Error>> {
        if tag.starts_with(b"!") || tag.starts_with(b"?") {
            return Ok(());
        }
        let element = Element::parse(tag);
        let element = element.ok_or_else(|| {
            let found = String::from_utf8_lossy(tag).trim().escape_debug().take(60).collect();
            self.broken(Broken::BadTag { found })
        })?;
        if let Some(name) = element.name.strip_prefix('/') {
            return self.close(name);
        }
        let done = self.begin(&element);
        done.map_err(|error| self.stopped(error))?;
        if element.empty && matches!(element.name, "superblock" | "device") {
            return self.close(element.name);
        }
        Ok(())
    }

    fn stopped(&self, error: Refusal<S::Error>) -> XmlError<S::Error> {
        match error {
            Refusal::Broken(what) => self.broken(what),
            Refusal::Sink(error) => XmlError::Refused { line: self.line, error },
        }
    }

    fn begin(&mut self, element: &Element<'_>) -> Result<(), Refusal<S::Error>> {
        match (self.open, element.name) {
            (Open::Nothing, "superblock") => {
                let pool = element.pool()?;
                self.sink.pool(&pool).map_err(Refusal::Sink)?;
                self.open = Open::Pool;
            }
            (Open::Pool, "device") => {
                let (id, details) = element.device()?;
                self.sink.device(id, &details).map_err(Refusal::Sink)?;
                self.open = Open::Device;
            }
            (Open::Device, "single_mapping" | "range_mapping") => {
                let run = element.run()?;
                self.sink.run(run).map_err(Refusal::Sink)?;
            }
            (open, name) => {
                let (found, expected) = (name.to_owned(), open.expects());
                return Err(Broken::Unexpected { found, expected }.into());
            }
        }
        Ok(())
    }

    fn close(&mut self, name: &str) -> Result<(), XmlError<S::Error>> {
        let closed = match (self.open, name) {
            (Open::Pool, "superblock") => {
                self.open = Open::Done;
                self.sink.end()
            }
            (Open::Device, "device") => {
                self.open = Open::Pool;
                self.sink.end_device()
            }
            (Open::Device, "single_mapping" | "range_mapping") => Ok(()),
            (open, name) => {
                let (found, expected) = (format!("/{name}"), open.expects());
                return Err(self.broken(Broken::Unexpected { found, expected }));
            }
        };
        closed.map_err(|error| XmlError::Refused { line: self.line, error })
    }
}

enum Refusal<E> {
    Broken(Broken),
    Sink(E),
}

impl<E> From<Broken> for Refusal<E> {
    fn from(broken: Broken) -> Refusal<E> {
        Refusal::Broken(broken)
    }
}

/// A parsed tag.
struct Element<'a> {
    name: &'a str,
    /// What follows the name.
    attributes: &'a str,
    empty: bool,
}

impl<'a> Element<'a> {
    fn parse(tag: &'a [u8]) -> Option<Element<'a>> {
        let text = core::str::from_utf8(tag).ok()?.trim();
        let (text, empty) = match text.strip_suffix('/') {
            Some(text) => (text, true),
            None => (text, false),
        };
        let end = text.find(|c: char| c.is_ascii_whitespace()).unwrap_or(text.len());
        let (name, attributes) = text.split_at(end);
        let element = Element { name, attributes, empty };
        let sound = !name.is_empty() && element.pairs().all(|pair| pair.is_some());
        sound.then_some(element)
    }

    /// Names and values; `None`, as the last item, where the text is neither.
    fn pairs(&self) -> impl Iterator<Item = Option<(&'a str, &'a str)>> {
        let mut rest = Some(self.attributes.trim_start());
        core::iter::from_fn(move || {
            let text = rest.take().filter(|text| !text.is_empty())?;
            let pair = pair(text);
            rest = pair.map(|(_, _, after)| after.trim_start());
            Some(pair.map(|(name, value, _)| (name, value)))
        })
    }

    fn text(&self, attribute: &str) -> Option<&'a str> {
        self.pairs().flatten().find(|(name, _)| *name == attribute).map(|(_, value)| value)
    }

    fn number(&self, attribute: &'static str, most: u64) -> Result<u64, Broken> {
        let element = || self.name.to_owned();
        let text = self.text(attribute);
        let text = text.ok_or_else(|| Broken::Missing { element: element(), attribute })?;
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse() {
            Ok(number) if digits && number <= most => Ok(number),
            _ => {
                let found = text.chars().take(40).collect();
                Err(Broken::BadNumber { element: element(), attribute, found, most })
            }
        }
    }

    fn short(&self, attribute: &'static str, most: u32) -> Result<u32, Broken> {
        let number = self.number(attribute, u64::from(most))?;
        Ok(u32::try_from(number).expect("it is no more than `most`"))
    }

    /// A number with a default, because older tools do not write the attribute.
    fn optional(&self, attribute: &'static str, default: u32) -> Result<u32, Broken> {
        match self.text(attribute) {
            Some(_) => self.short(attribute, u32::MAX),
            None => Ok(default),
        }
    }

    fn pool(&self) -> Result<Pool, Broken> {
        Ok(Pool {
            time: self.short("time", TIME_MAX)?,
            transaction_id: self.number("transaction", u64::MAX)?,
            flags: self.optional("flags", 0)?,
            version: self.optional("version", VERSION)?,
            data_block_size: DataBlockSize::new(self.short("data_block_size", u32::MAX)?)?,
            data_blocks: self.number("nr_data_blocks", u64::MAX)?,
        })
    }

    fn device(&self) -> Result<(DeviceId, DeviceDetails), Broken> {
        let id = DeviceId::new(self.number("dev_id", u64::MAX)?)?;
        let details = DeviceDetails {
            mapped_blocks: self.number("mapped_blocks", u64::MAX)?,
            transaction_id: self.number("transaction", u64::MAX)?,
            creation_time: self.short("creation_time", u32::MAX)?,
            snapshotted_time: self.short("snap_time", u32::MAX)?,
        };
        Ok((id, details))
    }

    fn run(&self) -> Result<Run, Broken> {
        let (origin, data, len) = match self.name {
            "single_mapping" => ("origin_block", "data_block", 1),
            _ => ("origin_begin", "data_begin", self.number("length", u64::MAX)?),
        };
        Ok(Run {
            origin: self.number(origin, u64::MAX)?,
            data: self.number(data, u64::MAX)?,
            len,
            time: self.short("time", TIME_MAX)?,
        })
    }
}

/// The first attribute of a text, and what follows it.
fn pair(text: &str) -> Option<(&str, &str, &str)> {
    let (name, rest) = text.split_once('=')?;
    let rest = rest.trim_start();
    let quote = rest.chars().next().filter(|quote| matches!(quote, '"' | '\''))?;
    let (value, after) = rest[1..].split_once(quote)?;
    let name = name.trim_end();
    let sound = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    sound.then_some((name, value, after))
}
