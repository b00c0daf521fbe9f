//! Judges one transmission request under the terms of its connection.
//!
//! Owns: the rules of the transmission phase. [`decode`] is a pure function of a header, compact or
//! extended, and the connection's [`Terms`]. It returns a command that may be served without
//! further checks, a refusal after which the connection goes on, or a breach after which it cannot.
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
    CommandFlags, Cookie, Echo, ErrorCode, ExtendedRequestHeader, MessageForm, RequestHeader,
    TransmissionFlags, command,
};

/// Bytes of the longest request header.
pub const REQUEST_BYTES_MAX: usize = MessageForm::Extended.request_bytes();

/// A refused request's payload is skipped up to this many bytes; a longer one ends the connection.
pub const PAYLOAD_SKIP_BYTES_MAX: u32 = 256 << 20;

/// What the negotiation settled that a request is judged by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Size of the export in bytes, now.
    pub size_bytes: u64,
    /// The flags the client was told.
    pub flags: TransmissionFlags,
    /// The form of requests and replies.
    pub form: MessageForm,
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
    pub echo: Echo,
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
    /// Store the payload of `range.length` bytes that follows the header; no other command that is
    /// served has one.
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
    pub echo: Echo,
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
    #[error("request magic is {found:#010x}, expected {expected:#010x}")]
    BadMagic {
        /// The magic found.
        found: u32,
        /// That of the form that was negotiated.
        expected: u32,
    },
    /// A request announces more payload than will be skipped.
    #[error("request announces {length} bytes of payload, expected at most 268435456")]
    OversizedPayload {
        /// The length announced.
        length: u64,
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

/// The fields of a request header of either form.
struct Header {
    magic: u32,
    flags: u16,
    command: u16,
    cookie: Cookie,
    offset: u64,
    length: u64,
}

impl Header {
    /// Reads a header of the form, which `bytes` holds exactly.
    fn read(bytes: &[u8], form: MessageForm) -> Header {
        const WHOLE: &str = "a header of this form, exactly";
        match form {
            MessageForm::Simple | MessageForm::Structured => {
                let header = RequestHeader::read_from_bytes(bytes).expect(WHOLE);
                Header {
                    magic: header.magic.get(),
                    flags: header.flags.get(),
                    command: header.command.get(),
                    cookie: Cookie(header.cookie.get()),
                    offset: header.offset.get(),
                    length: u64::from(header.length.get()),
                }
            }
            MessageForm::Extended => {
                let header = ExtendedRequestHeader::read_from_bytes(bytes).expect(WHOLE);
                Header {
                    magic: header.magic.get(),
                    flags: header.flags.get(),
                    command: header.command.get(),
                    cookie: Cookie(header.cookie.get()),
                    offset: header.offset.get(),
                    length: header.length.get(),
                }
            }
        }
    }

    /// Bytes of payload that follow the header. A write has one always; in the extended form any
    /// command does that says so by a flag. The specification has writes set the flag, too, but
    /// qemu 10 does not.
    fn payload_bytes(&self, form: MessageForm) -> u64 {
        let announces =
            form == MessageForm::Extended && self.flags & CommandFlags::PAYLOAD_LEN.bits() != 0;
        if self.command == command::WRITE || announces { self.length } else { 0 }
    }
}

/// The byte offset of a header's request, and how many bytes of payload follow, both unchecked;
/// none if the stream is out of step. `bytes` is exactly a header of the form.
pub fn peek(bytes: &[u8], form: MessageForm) -> Option<(u64, usize)> {
    let header = Header::read(bytes, form);
    let payload = usize::try_from(header.payload_bytes(form)).ok()?;
    (header.magic == form.request_magic()).then_some((header.offset, payload))
}

/// Judges a request header under `terms`. `bytes` is exactly a header of their form.
pub fn decode(bytes: &[u8], terms: &Terms) -> Decoded {
    let header = Header::read(bytes, terms.form);
    let expected = terms.form.request_magic();
    if header.magic != expected {
        return Decoded::Broken(Breach::BadMagic { found: header.magic, expected });
    }
    let length = header.payload_bytes(terms.form);
    let payload_to_skip = match u32::try_from(length) {
        Ok(bytes) if bytes <= PAYLOAD_SKIP_BYTES_MAX => bytes,
        _ => return Decoded::Broken(Breach::OversizedPayload { length }),
    };
    let echo = Echo { cookie: header.cookie, offset: header.offset };
    match judge(&header, terms) {
        Ok(command) => Decoded::Request(Request { echo, command }),
        Err((error, reason)) => Decoded::Refused(Refusal { echo, error, reason, payload_to_skip }),
    }
}

fn judge(header: &Header, terms: &Terms) -> Result<Command, Fault> {
    let number = header.command;
    // A disconnect is accepted whatever its other fields are: it has no reply that could carry an
    // error.
    if number == command::DISC {
        return Ok(Command::Disconnect);
    }
    check_offered(number, terms)?;
    let flags = legal_flags(number, header.flags, terms)?;
    if number == command::FLUSH {
        return match (header.offset, header.length) {
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
    let is_too_long = range.length > u64::from(terms.payload_bytes_max);
    if matches!(number, command::READ | command::WRITE) && is_too_long {
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
        command::BLOCK_STATUS => terms.form.has_chunks() && terms.has_contexts,
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
                terms.form.has_chunks() && terms.flags.contains(TransmissionFlags::SEND_DF);
            legal.set(CommandFlags::DF, offered);
        }
        command::WRITE_ZEROES => {
            legal |= CommandFlags::NO_HOLE;
            let offered = terms.flags.contains(TransmissionFlags::SEND_FAST_ZERO);
            legal.set(CommandFlags::FAST_ZERO, offered);
        }
        command::BLOCK_STATUS => legal |= CommandFlags::REQ_ONE,
        command::WRITE if terms.form == MessageForm::Extended => {
            legal |= CommandFlags::PAYLOAD_LEN;
        }
        _ => {}
    }
    match legal.contains(flags) {
        true => Ok(flags),
        false => Err((ErrorCode::Invalid, "a command flag does not apply or was not offered")),
    }
}

/// The range, if it lies inside the export and is aligned; `None` if it is empty.
fn checked_range(header: &Header, terms: &Terms) -> Result<Option<ByteRange>, Fault> {
    let (offset, length) = (header.offset, header.length);
    let end = offset.checked_add(length);
    if end.is_none_or(|end| end > terms.size_bytes) {
        let error = match header.command {
            command::WRITE | command::WRITE_ZEROES => ErrorCode::NoSpace,
            _ => ErrorCode::Invalid,
        };
        return Err((error, "the range goes beyond the end of the export"));
    }
    if length == 0 {
        return Ok(None);
    }
    let alignment = u64::from(terms.alignment);
    match offset.is_multiple_of(alignment) && length.is_multiple_of(alignment) {
        true => Ok(Some(ByteRange { offset, length })),
        false => Err((ErrorCode::Invalid, "the range is not aligned to the minimum block size")),
    }
}

#[cfg(test)]
mod tests;
