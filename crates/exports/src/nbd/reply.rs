//! Encodes replies of the transmission phase.
//!
//! Owns: the layout of simple replies and of chunks, structured and extended. A function here makes
//! the bytes that precede a payload; the payload itself follows by scatter-gather and is never
//! copied. Short replies stay on the stack, so the ready path allocates nothing; only messages and
//! long lists of extents can spill to the heap.
//!
//! Which form to use: without chunks every reply is simple. In the structured form, a read and a
//! block status must be answered in chunks; an error should be (a chunk carries a message); any
//! other success is simple. In the extended form every reply consists of chunks.
//!
//! Must never: touch a payload, or decide whether a request succeeded.

use smallvec::SmallVec;
use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::{U16, U32, U64};

use super::wire::{
    ChunkFlags, ChunkHeader, EXTENDED_REPLY_MAGIC, Echo, ErrorCode, ErrorPayload,
    ExtendedChunkHeader, ExtendedStatusDescriptor, ExtendedStatusHead, MessageForm,
    SIMPLE_REPLY_MAGIC, STRING_BYTES_MAX, STRUCTURED_REPLY_MAGIC, SimpleReply, StatusDescriptor,
    chunk,
};

/// Longest data of one `OFFSET_DATA` chunk: its offset must fit a length field of 32 bits, too.
pub const DATA_LENGTH_MAX: u32 = u32::MAX - size_of::<u64>() as u32;

/// A reply whose length is not fixed; short ones stay on the stack.
pub type ReplyBytes = SmallVec<[u8; 128]>;

/// Whether a chunk ends its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Last {
    /// More chunks of this reply follow.
    No,
    /// The reply is complete.
    Yes,
}

/// The whole reply to a request that succeeded and has nothing to send.
pub fn success(form: MessageForm, echo: Echo) -> ReplyBytes {
    match form {
        MessageForm::Simple | MessageForm::Structured => simple(echo, 0),
        MessageForm::Extended => done(form, echo),
    }
}

/// The bytes that precede `length` bytes of data read at `offset`, the whole answer to a read;
/// `length` is neither zero nor more than [`DATA_LENGTH_MAX`].
pub fn data(form: MessageForm, echo: Echo, offset: u64, length: u32) -> ReplyBytes {
    match form {
        MessageForm::Simple => simple(echo, 0),
        _ => offset_data(form, echo, Last::Yes, offset, length),
    }
}

/// The `NONE` chunk, which ends a reply.
pub fn done(form: MessageForm, echo: Echo) -> ReplyBytes {
    chunk_header(form, echo, chunk::NONE, Last::Yes, 0)
}

/// The bytes that precede `length` bytes of data in a chunk; see [`data`].
pub fn offset_data(
    form: MessageForm,
    echo: Echo,
    last: Last,
    offset: u64,
    length: u32,
) -> ReplyBytes {
    assert!(length != 0, "a content chunk describes at least one byte");
    assert!(length <= DATA_LENGTH_MAX, "a chunk of {length} bytes overflows its length field");
    let payload = length + size_of::<u64>() as u32;
    let mut bytes = chunk_header(form, echo, chunk::OFFSET_DATA, last, payload);
    bytes.extend_from_slice(U64::new(offset).as_bytes());
    bytes
}

/// One run of bytes in one state; `length` is not zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatusExtent {
    /// Bytes in the extent; without extended headers, no more than 32 bits can say.
    pub length: u64,
    /// Its state, in the context's own bits (for `base:allocation`, an
    /// [`AllocationState`](super::wire::AllocationState)).
    pub state: u32,
}

/// The extents of one metadata context, consecutive from the request's offset; at least one.
pub fn block_status(
    form: MessageForm,
    echo: Echo,
    last: Last,
    context: u32,
    extents: &[StatusExtent],
) -> ReplyBytes {
    assert!(!extents.is_empty(), "block status describes at least one extent");
    assert!(extents.iter().all(|extent| extent.length != 0), "an extent has at least one byte");
    let is_extended = form == MessageForm::Extended;
    let (head, each) = match is_extended {
        true => (size_of::<ExtendedStatusHead>(), size_of::<ExtendedStatusDescriptor>()),
        false => (size_of::<U32>(), size_of::<StatusDescriptor>()),
    };
    let payload = head + extents.len() * each;
    let length = u32::try_from(payload).expect("an extent list is bounded by its request");
    let kind = if is_extended { chunk::BLOCK_STATUS_EXT } else { chunk::BLOCK_STATUS };
    let mut bytes = chunk_header(form, echo, kind, last, length);
    bytes.reserve_exact(payload);
    let context = U32::new(context);
    if is_extended {
        let count = U32::new(extents.len() as u32);
        bytes.extend_from_slice(ExtendedStatusHead { context, count }.as_bytes());
        for extent in extents {
            let (length, state) = (U64::new(extent.length), U64::new(u64::from(extent.state)));
            bytes.extend_from_slice(ExtendedStatusDescriptor { length, state }.as_bytes());
        }
    } else {
        bytes.extend_from_slice(context.as_bytes());
        for extent in extents {
            let length = u32::try_from(extent.length).expect("no longer than a compact request");
            let (length, state) = (U32::new(length), U32::new(extent.state));
            bytes.extend_from_slice(StatusDescriptor { length, state }.as_bytes());
        }
    }
    bytes
}

/// An `ERROR` chunk: the whole request failed. An overlong message is cut.
pub fn error(
    form: MessageForm,
    echo: Echo,
    last: Last,
    error: ErrorCode,
    message: &str,
) -> ReplyBytes {
    let message = &message[..message.floor_char_boundary(STRING_BYTES_MAX)];
    let length = size_of::<ErrorPayload>() + message.len();
    let payload = ErrorPayload {
        error: U32::new(error.number()),
        message_length: U16::new(message.len() as u16),
    };
    let mut bytes = chunk_header(form, echo, chunk::ERROR, last, length as u32);
    bytes.reserve_exact(length);
    bytes.extend_from_slice(payload.as_bytes());
    bytes.extend_from_slice(message.as_bytes());
    bytes
}

/// The whole reply to a request that failed before any of its chunks was sent.
pub fn refused(form: MessageForm, echo: Echo, code: ErrorCode, message: &str) -> ReplyBytes {
    match form {
        MessageForm::Simple => simple(echo, code.number()),
        _ => error(form, echo, Last::Yes, code, message),
    }
}

/// The whole reply to a request for no bytes
/// ([`Command::Nothing`](super::request::Command::Nothing)), which may be an empty read.
pub fn nothing_done(form: MessageForm, echo: Echo) -> ReplyBytes {
    match form {
        MessageForm::Simple => simple(echo, 0),
        _ => done(form, echo),
    }
}

/// A simple reply; after a read that succeeded, its data follows.
fn simple(echo: Echo, error: u32) -> ReplyBytes {
    let reply = SimpleReply {
        magic: U32::new(SIMPLE_REPLY_MAGIC),
        error: U32::new(error),
        cookie: U64::new(echo.cookie.0),
    };
    ReplyBytes::from_slice(reply.as_bytes())
}

/// The header of a chunk with `length` bytes of payload, which the caller appends or sends.
fn chunk_header(form: MessageForm, echo: Echo, kind: u16, last: Last, length: u32) -> ReplyBytes {
    let flags = match last {
        Last::Yes => ChunkFlags::DONE,
        Last::No => ChunkFlags::empty(),
    };
    let (flags, kind) = (U16::new(flags.bits()), U16::new(kind));
    let cookie = U64::new(echo.cookie.0);
    match form {
        MessageForm::Simple => unreachable!("a simple reply has no chunks"),
        MessageForm::Structured => {
            let (magic, length) = (U32::new(STRUCTURED_REPLY_MAGIC), U32::new(length));
            let header = ChunkHeader { magic, flags, kind, cookie, length };
            ReplyBytes::from_slice(header.as_bytes())
        }
        MessageForm::Extended => {
            let (magic, offset) = (U32::new(EXTENDED_REPLY_MAGIC), U64::new(echo.offset));
            let length = U64::new(u64::from(length));
            let header = ExtendedChunkHeader { magic, flags, kind, cookie, offset, length };
            ReplyBytes::from_slice(header.as_bytes())
        }
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromBytes;

    use super::{
        Last, StatusExtent, block_status, data, done, error, nothing_done, offset_data, refused,
        success,
    };
    use crate::nbd::wire::MessageForm::{Extended, Simple, Structured};
    use crate::nbd::wire::{
        AllocationState, ChunkHeader, Cookie, EXTENDED_REPLY_MAGIC, Echo, ErrorCode,
        ExtendedChunkHeader, MessageForm, STRUCTURED_REPLY_MAGIC, chunk,
    };

    const ECHO: Echo = Echo { cookie: Cookie(0x0102_0304_0506_0708), offset: 0x1_0000_0200 };
    const SIMPLE: [u8; 16] = [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];

    /// The kind, the last mark and the payload of a chunk whose length field fits, plus
    /// `following` bytes that are sent from elsewhere.
    fn parsed(form: MessageForm, bytes: &[u8], following: u64) -> (u16, bool, Vec<u8>) {
        let (kind, flags, length, payload) = if form == Extended {
            let (header, payload) = ExtendedChunkHeader::read_from_prefix(bytes).unwrap();
            assert_eq!(header.magic.get(), EXTENDED_REPLY_MAGIC);
            assert_eq!((header.cookie.get(), header.offset.get()), (ECHO.cookie.0, ECHO.offset));
            (header.kind, header.flags, header.length.get(), payload)
        } else {
            let (header, payload) = ChunkHeader::read_from_prefix(bytes).unwrap();
            assert_eq!(header.magic.get(), STRUCTURED_REPLY_MAGIC);
            assert_eq!(header.cookie.get(), ECHO.cookie.0);
            (header.kind, header.flags, u64::from(header.length.get()), payload)
        };
        assert_eq!(length, payload.len() as u64 + following);
        (kind.get(), flags.get() == 1, payload.to_vec())
    }

    #[test]
    fn simple_replies_carry_the_cookie_and_the_error() {
        assert_eq!(success(Simple, ECHO).as_slice(), SIMPLE);
        assert_eq!(success(Structured, ECHO).as_slice(), SIMPLE);
        assert_eq!(data(Simple, ECHO, 0, 512).as_slice(), SIMPLE);
        let mut expected = SIMPLE;
        expected[7] = 28;
        assert_eq!(refused(Simple, ECHO, ErrorCode::NoSpace, "why").as_slice(), expected);
    }

    #[test]
    fn the_none_chunk_is_last_and_empty() {
        for form in [Structured, Extended] {
            assert_eq!(parsed(form, &done(form, ECHO), 0), (chunk::NONE, true, vec![]));
        }
    }

    #[test]
    fn a_data_chunk_counts_the_offset_and_the_data_that_follows() {
        let offset = 0x1000u64.to_be_bytes().to_vec();
        for form in [Structured, Extended] {
            let bytes = offset_data(form, ECHO, Last::No, 0x1000, 512);
            let expected = (chunk::OFFSET_DATA, false, offset.clone());
            assert_eq!(parsed(form, &bytes, 512), expected);
            let whole = parsed(form, &data(form, ECHO, 0x1000, 512), 512);
            assert_eq!(whole, (chunk::OFFSET_DATA, true, offset.clone()));
        }
    }

    #[test]
    fn block_status_lists_its_extents_after_the_context() {
        let hole = (AllocationState::HOLE | AllocationState::ZERO).bits();
        let extents =
            [StatusExtent { length: 512, state: 0 }, StatusExtent { length: 256, state: hole }];
        let bytes = block_status(Structured, ECHO, Last::Yes, 7, &extents);
        let payload = vec![0, 0, 0, 7, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 3];
        assert_eq!(parsed(Structured, &bytes, 0), (chunk::BLOCK_STATUS, true, payload));
    }

    #[test]
    fn extended_block_status_counts_its_extents_and_has_room_for_long_ones() {
        let extents =
            [StatusExtent { length: 5 << 32, state: 3 }, StatusExtent { length: 256, state: 0 }];
        let bytes = block_status(Extended, ECHO, Last::No, 7, &extents);
        let mut payload = vec![0, 0, 0, 7, 0, 0, 0, 2];
        payload.extend([0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3]);
        payload.extend([0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(parsed(Extended, &bytes, 0), (chunk::BLOCK_STATUS_EXT, false, payload));
    }

    #[test]
    fn an_error_chunk_carries_its_message() {
        let payload = vec![0, 0, 0, 5, 0, 3, b'b', b'a', b'd'];
        for form in [Structured, Extended] {
            let bytes = error(form, ECHO, Last::Yes, ErrorCode::Io, "bad");
            assert_eq!(parsed(form, &bytes, 0), (chunk::ERROR, true, payload.clone()));
        }
    }

    #[test]
    fn an_overlong_message_is_cut_between_characters() {
        let bytes = error(Structured, ECHO, Last::Yes, ErrorCode::Io, &"€".repeat(2000));
        let (_, _, payload) = parsed(Structured, &bytes, 0);
        assert_eq!(payload.len(), 6 + 4095);
        assert!(std::str::from_utf8(&payload[6..]).is_ok());
    }

    #[test]
    fn a_refusal_has_a_message_if_replies_have_chunks() {
        for form in [Structured, Extended] {
            let bytes = refused(form, ECHO, ErrorCode::Invalid, "why");
            assert_eq!(parsed(form, &bytes, 0).0, chunk::ERROR);
        }
    }

    #[test]
    fn an_empty_request_is_answered_in_the_negotiated_form() {
        assert_eq!(nothing_done(Simple, ECHO).as_slice(), SIMPLE);
        for form in [Structured, Extended] {
            let bytes = nothing_done(form, ECHO);
            assert_eq!(parsed(form, &bytes, 0), (chunk::NONE, true, vec![]));
        }
    }

    #[test]
    fn an_extended_reply_is_never_simple() {
        assert_eq!(parsed(Extended, &success(Extended, ECHO), 0), (chunk::NONE, true, vec![]));
    }
}
