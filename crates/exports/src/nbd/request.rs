//! Judges one transmission request under the terms of its connection.
//!
//! Owns: the rules of the transmission phase. [`decode`] is a pure function of a 28-byte header
//! and the connection's [`Terms`]. It returns a command that may be served without further checks,
//! a refusal after which the connection goes on, or a breach after which it cannot.
//!
//! The order of the checks decides which error a request with several faults gets:
//! magic, payload that could be skipped, command known, export writable, command offered, flags
//! legal, range inside the export, empty, aligned, payload not too long.
//!
//! Promises: a [`Command`] carries only ranges that are not empty, lie inside the export, and are
//! aligned if the client knows the block sizes; a flag set in it was offered to the client.
//! Must never: read a payload or use a volume.

use thiserror::Error;
use zerocopy::FromBytes;

pub use crate::front::widen::ByteRange;

use super::wire::{
    CommandFlags, Cookie, ErrorCode, REQUEST_MAGIC, RequestHeader, TransmissionFlags, command,
};

/// Bytes of a request header.
pub const REQUEST_BYTES: usize = size_of::<RequestHeader>();

/// A refused write's payload is skipped up to this many bytes; a longer one ends the connection.
pub const PAYLOAD_SKIP_BYTES_MAX: u32 = 256 << 20;

/// What the negotiation settled that a request is judged by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Size of the export in bytes, now.
    pub size_bytes: u64,
    /// The flags the client was told.
    pub flags: TransmissionFlags,
    /// Whether the client takes structured replies.
    pub structured_replies: bool,
    /// Whether the client selected any metadata context.
    pub has_contexts: bool,
    /// Required alignment in bytes; 1 if the client did not ask for block sizes.
    pub alignment: u32,
    /// Longest payload of a read or a write, in bytes.
    pub payload_bytes_max: u32,
}

/// A request that may be served without further checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// To be echoed in the reply.
    pub cookie: Cookie,
    /// What to do.
    pub command: Command,
}

/// What a client asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Send the range's contents.
    Read {
        /// What to read.
        range: ByteRange,
        /// Answer with at most one content chunk.
        unfragmented: bool,
    },
    /// Store the payload of `range.length` bytes that follows the header.
    Write {
        /// Where to write.
        range: ByteRange,
        /// Reply only once the data is durable.
        fua: bool,
    },
    /// Make every completed write durable.
    Flush,
    /// Forget the range's contents.
    Trim {
        /// What to forget.
        range: ByteRange,
        /// Reply only once the effect is durable.
        fua: bool,
    },
    /// Expect reads of the range.
    Cache {
        /// What will be read.
        range: ByteRange,
    },
    /// Make the range read as zero.
    WriteZeroes {
        /// What to zero.
        range: ByteRange,
        /// Reply only once the zeroes are durable.
        fua: bool,
        /// Keep the range allocated.
        no_hole: bool,
        /// Fail with [`ErrorCode::NotSupported`] rather than be as slow as writing.
        fast_only: bool,
    },
    /// Report the state of the range in every selected metadata context.
    BlockStatus {
        /// What to report on.
        range: ByteRange,
        /// One extent per context is enough.
        one_extent: bool,
    },
    /// Nothing to do: a range of no bytes. Succeeds at once.
    Nothing,
    /// Answer what is in flight and close; has no reply.
    Disconnect,
}

/// A request that gets an error while the connection goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// To be echoed in the reply.
    pub cookie: Cookie,
    /// The error to reply with.
    pub error: ErrorCode,
    /// The rule that was broken, for a person.
    pub reason: &'static str,
    /// Bytes of payload to read and drop before the next header.
    pub payload_to_skip: u32,
}

/// A breach after which the stream cannot be trusted; the connection must be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Breach {
    /// The stream is out of step.
    #[error("request magic is {found:#010x}, expected 0x25609513")]
    BadMagic {
        /// The magic found.
        found: u32,
    },
    /// A write announces more payload than will be skipped.
    #[error("write announces {length} bytes of payload, expected at most 268435456")]
    OversizedPayload {
        /// The length announced.
        length: u32,
    },
}

/// The result of decoding a request header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decoded {
    /// Serve it.
    Request(Request),
    /// Reply with an error, skip the payload, go on.
    Refused(Refusal),
    /// Close the connection.
    Broken(Breach),
}

/// An error and the rule that was broken.
type Fault = (ErrorCode, &'static str);

/// The byte offset of a header's request, and how many bytes of payload follow, both unchecked;
/// none if the stream is out of step.
pub fn peek(bytes: &[u8; REQUEST_BYTES]) -> Option<(u64, usize)> {
    let header = header_of(bytes);
    let payload = if header.command.get() == command::WRITE { header.length.get() } else { 0 };
    (header.magic.get() == REQUEST_MAGIC).then_some((header.offset.get(), payload as usize))
}

fn header_of(bytes: &[u8; REQUEST_BYTES]) -> RequestHeader {
    RequestHeader::read_from_bytes(bytes.as_slice())
        .expect("the array is exactly as long as a header")
}

/// Judges a request header under `terms`.
pub fn decode(bytes: &[u8; REQUEST_BYTES], terms: &Terms) -> Decoded {
    let header = header_of(bytes);
    if header.magic.get() != REQUEST_MAGIC {
        return Decoded::Broken(Breach::BadMagic { found: header.magic.get() });
    }
    let is_write = header.command.get() == command::WRITE;
    let payload = if is_write { header.length.get() } else { 0 };
    if payload > PAYLOAD_SKIP_BYTES_MAX {
        return Decoded::Broken(Breach::OversizedPayload { length: payload });
    }
    let cookie = Cookie(header.cookie.get());
    match judge(&header, terms) {
        Ok(command) => Decoded::Request(Request { cookie, command }),
        Err((error, reason)) => {
            Decoded::Refused(Refusal { cookie, error, reason, payload_to_skip: payload })
        }
    }
}

fn judge(header: &RequestHeader, terms: &Terms) -> Result<Command, Fault> {
    let number = header.command.get();
    // A disconnect is accepted whatever its other fields are: it has no reply that could carry an
    // error.
    if number == command::DISC {
        return Ok(Command::Disconnect);
    }
    check_offered(number, terms)?;
    let flags = legal_flags(number, header.flags.get(), terms)?;
    if number == command::FLUSH {
        return match (header.offset.get(), header.length.get()) {
            (0, 0) => Ok(Command::Flush),
            _ => Err((ErrorCode::Invalid, "a flush has no offset and no length")),
        };
    }
    let Some(range) = checked_range(header, terms)? else {
        return match number {
            // A reply to block status describes at least one byte; this range has none.
            command::BLOCK_STATUS => Err((ErrorCode::Invalid, "block status of no bytes")),
            _ => Ok(Command::Nothing),
        };
    };
    let unfragmented = flags.contains(CommandFlags::DF);
    if matches!(number, command::READ | command::WRITE) && range.length > terms.payload_bytes_max {
        let error = if unfragmented { ErrorCode::Overflow } else { ErrorCode::Invalid };
        return Err((error, "the payload is longer than the maximum block size"));
    }
    let fua = flags.contains(CommandFlags::FUA);
    Ok(match number {
        command::READ => Command::Read { range, unfragmented },
        command::WRITE => Command::Write { range, fua },
        command::TRIM => Command::Trim { range, fua },
        command::CACHE => Command::Cache { range },
        command::WRITE_ZEROES => Command::WriteZeroes {
            range,
            fua,
            no_hole: flags.contains(CommandFlags::NO_HOLE),
            fast_only: flags.contains(CommandFlags::FAST_ZERO),
        },
        command::BLOCK_STATUS => {
            Command::BlockStatus { range, one_extent: flags.contains(CommandFlags::REQ_ONE) }
        }
        _ => unreachable!("check_offered refused command {number}"),
    })
}

/// Refuses commands that are unknown, that write to a read-only export, or that were not offered.
fn check_offered(number: u16, terms: &Terms) -> Result<(), Fault> {
    let writes = matches!(number, command::WRITE | command::TRIM | command::WRITE_ZEROES);
    if writes && terms.flags.contains(TransmissionFlags::READ_ONLY) {
        return Err((ErrorCode::NotPermitted, "the export is read-only"));
    }
    let offered = match number {
        command::READ | command::WRITE => true,
        command::FLUSH => terms.flags.contains(TransmissionFlags::SEND_FLUSH),
        command::TRIM => terms.flags.contains(TransmissionFlags::SEND_TRIM),
        command::CACHE => terms.flags.contains(TransmissionFlags::SEND_CACHE),
        command::WRITE_ZEROES => terms.flags.contains(TransmissionFlags::SEND_WRITE_ZEROES),
        command::BLOCK_STATUS => terms.structured_replies && terms.has_contexts,
        _ => return Err((ErrorCode::Invalid, "unknown command")),
    };
    match offered {
        true => Ok(()),
        false => Err((ErrorCode::Invalid, "the command was not negotiated")),
    }
}

/// The flags, if each is known, applies to the command and was offered.
fn legal_flags(number: u16, bits: u16, terms: &Terms) -> Result<CommandFlags, Fault> {
    let flags = CommandFlags::from_bits(bits)
        .ok_or((ErrorCode::Invalid, "a command flag is not negotiated"))?;
    // FUA is legal on every command once offered: old clients set it on all of them.
    let mut legal = CommandFlags::empty();
    legal.set(CommandFlags::FUA, terms.flags.contains(TransmissionFlags::SEND_FUA));
    match number {
        command::READ => {
            let offered =
                terms.structured_replies && terms.flags.contains(TransmissionFlags::SEND_DF);
            legal.set(CommandFlags::DF, offered);
        }
        command::WRITE_ZEROES => {
            legal |= CommandFlags::NO_HOLE;
            let offered = terms.flags.contains(TransmissionFlags::SEND_FAST_ZERO);
            legal.set(CommandFlags::FAST_ZERO, offered);
        }
        command::BLOCK_STATUS => legal |= CommandFlags::REQ_ONE,
        _ => {}
    }
    match legal.contains(flags) {
        true => Ok(flags),
        false => Err((ErrorCode::Invalid, "a command flag does not apply or was not offered")),
    }
}

/// The range, if it lies inside the export and is aligned; `None` if it is empty.
fn checked_range(header: &RequestHeader, terms: &Terms) -> Result<Option<ByteRange>, Fault> {
    let (offset, length) = (header.offset.get(), header.length.get());
    let end = offset.checked_add(u64::from(length));
    if end.is_none_or(|end| end > terms.size_bytes) {
        let error = match header.command.get() {
            command::WRITE | command::WRITE_ZEROES => ErrorCode::NoSpace,
            _ => ErrorCode::Invalid,
        };
        return Err((error, "the range goes beyond the end of the export"));
    }
    if length == 0 {
        return Ok(None);
    }
    let aligned =
        offset.is_multiple_of(u64::from(terms.alignment)) && length.is_multiple_of(terms.alignment);
    match aligned {
        true => Ok(Some(ByteRange { offset, length })),
        false => Err((ErrorCode::Invalid, "the range is not aligned to the minimum block size")),
    }
}

#[cfg(test)]
mod tests;
