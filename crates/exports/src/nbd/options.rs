//! Parses the payloads of negotiation options.
//!
//! Owns: the layouts with variable parts (names, lists of information requests, lists of metadata
//! queries) and the protocol's limits on strings.
//!
//! Promises: a parsed request uses up its payload exactly; its strings are UTF-8, without NUL and
//! at most 4096 bytes. Must never: look up an export or write a reply.

use std::str;

use super::wire::{STRING_BYTES_MAX, info, option_error};

/// Why a payload is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Malformed {
    /// One of [`option_error`].
    pub kind: u32,
    /// For a person.
    pub message: &'static str,
}

/// Payload of `INFO` and `GO`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InfoRequest<'a> {
    /// The export's name; empty means the default.
    pub name: &'a str,
    /// Whether the export's own name is wanted.
    pub wants_name: bool,
    /// Whether the description is wanted.
    pub wants_description: bool,
    /// Whether the block sizes are wanted; a client that asks promises to obey them.
    pub wants_block_sizes: bool,
}

/// Payload of `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MetaRequest<'a> {
    /// The export's name; empty means the default.
    pub name: &'a str,
    /// Each of the form `namespace:leaf`, or `namespace:` for all of a namespace.
    pub queries: Vec<&'a str>,
}

impl<'a> InfoRequest<'a> {
    pub(super) fn parse(payload: &'a [u8]) -> Result<Self, Malformed> {
        let mut fields = Fields { rest: payload };
        let name = fields.string()?;
        let mut request =
            Self { name, wants_name: false, wants_description: false, wants_block_sizes: false };
        for _ in 0..fields.number_u16()? {
            match fields.number_u16()? {
                info::NAME => request.wants_name = true,
                info::DESCRIPTION => request.wants_description = true,
                info::BLOCK_SIZE => request.wants_block_sizes = true,
                // The export's size is always sent; unknown requests may be ignored.
                _ => {}
            }
        }
        fields.finish()?;
        Ok(request)
    }
}

impl<'a> MetaRequest<'a> {
    pub(super) fn parse(payload: &'a [u8]) -> Result<Self, Malformed> {
        let mut fields = Fields { rest: payload };
        let name = fields.string()?;
        let count = fields.number_u32()?;
        // The count is not trusted beyond the bytes of the payload, so nothing is reserved for it.
        let mut queries = Vec::new();
        for _ in 0..count {
            let query = fields.string()?;
            if !query.contains(':') {
                return Err(invalid("a metadata query has no namespace"));
            }
            queries.push(query);
        }
        fields.finish()?;
        Ok(Self { name, queries })
    }
}

/// A payload that is nothing but a name.
pub(super) fn parse_name(payload: &[u8]) -> Result<&str, Malformed> {
    if payload.len() > STRING_BYTES_MAX {
        return Err(Malformed {
            kind: option_error::TOO_BIG,
            message: "a string is longer than 4096 bytes",
        });
    }
    if payload.contains(&0) {
        return Err(invalid("a string contains NUL"));
    }
    str::from_utf8(payload).map_err(|_| invalid("a string is not UTF-8"))
}

fn invalid(message: &'static str) -> Malformed {
    Malformed { kind: option_error::INVALID, message }
}

/// Fields read one after another from a payload.
struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self
            .rest
            .split_at_checked(count)
            .ok_or_else(|| invalid("the option's payload ends early"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn number_u16(&mut self) -> Result<u16, Malformed> {
        let bytes = self.bytes(size_of::<u16>())?;
        Ok(u16::from_be_bytes(bytes.try_into().expect("exactly two bytes were taken")))
    }

    fn number_u32(&mut self) -> Result<u32, Malformed> {
        let bytes = self.bytes(size_of::<u32>())?;
        Ok(u32::from_be_bytes(bytes.try_into().expect("exactly four bytes were taken")))
    }

    /// A length of 32 bits and a string of that length.
    fn string(&mut self) -> Result<&'a str, Malformed> {
        let length = self.number_u32()?;
        parse_name(self.bytes(length as usize)?)
    }

    fn finish(self) -> Result<(), Malformed> {
        match self.rest {
            [] => Ok(()),
            _ => Err(invalid("the option's payload is longer than its fields")),
        }
    }
}
