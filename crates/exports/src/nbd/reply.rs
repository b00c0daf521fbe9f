//! Encodes replies of the transmission phase.
//!
//! Owns: the layout of simple replies and structured chunks. A function here makes the bytes that
//! precede a payload; the payload itself follows by scatter-gather and is never copied. Fixed
//! replies are plain arrays, so the ready path allocates nothing; only messages and long lists of
//! extents can spill to the heap.
//!
//! Which form to use: without structured replies every reply is simple. With them, a read and a
//! block status must be answered in chunks; an error should be (a chunk carries a message); any
//! other success may be simple. [`refused`] and [`nothing_done`] choose the form.
//!
//! Must never: touch a payload, or decide whether a request succeeded.

use smallvec::SmallVec;
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{Immutable, IntoBytes};

use super::wire::{
    ChunkFlags, ChunkHeader, Cookie, ErrorCode, ErrorPayload, SIMPLE_REPLY_MAGIC, STRING_BYTES_MAX,
    STRUCTURED_REPLY_MAGIC, SimpleReply, StatusDescriptor, chunk,
};

/// Bytes of a simple reply.
pub const SIMPLE_BYTES: usize = size_of::<SimpleReply>();
/// Bytes of a chunk without payload.
pub const CHUNK_BYTES: usize = size_of::<ChunkHeader>();
/// Bytes that go before the data of an `OFFSET_DATA` chunk.
pub const DATA_BYTES: usize = CHUNK_BYTES + size_of::<u64>();

/// Longest data of one `OFFSET_DATA` chunk: its offset must fit the length field too.
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

/// A simple reply of success; after a read, its data follows.
pub fn simple_success(cookie: Cookie) -> [u8; SIMPLE_BYTES] {
    simple(cookie, 0)
}

/// A simple reply of failure; nothing follows.
pub fn simple_error(cookie: Cookie, error: ErrorCode) -> [u8; SIMPLE_BYTES] {
    simple(cookie, error.number())
}

/// The `NONE` chunk, which ends a reply.
pub fn done(cookie: Cookie) -> [u8; CHUNK_BYTES] {
    zerocopy::transmute!(chunk_header(cookie, chunk::NONE, Last::Yes, 0))
}

/// The bytes that precede `length` bytes of data at `offset`; `length` is neither zero nor more
/// than [`DATA_LENGTH_MAX`].
pub fn offset_data(cookie: Cookie, last: Last, offset: u64, length: u32) -> [u8; DATA_BYTES] {
    assert!(length != 0, "a content chunk describes at least one byte");
    assert!(length <= DATA_LENGTH_MAX, "a chunk of {length} bytes overflows its length field");
    let header = chunk_header(cookie, chunk::OFFSET_DATA, last, length + size_of::<u64>() as u32);
    joined(&header, &U64::new(offset))
}

/// One run of bytes in one state; `length` is not zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatusExtent {
    /// Bytes in the extent.
    pub length: u32,
    /// Its state, in the context's own bits (for `base:allocation`, an
    /// [`AllocationState`](super::wire::AllocationState)).
    pub state: u32,
}

/// The extents of one metadata context, consecutive from the request's offset; at least one.
pub fn block_status(
    cookie: Cookie,
    last: Last,
    context: u32,
    extents: &[StatusExtent],
) -> ReplyBytes {
    assert!(!extents.is_empty(), "block status describes at least one extent");
    let payload = size_of::<U32>() + extents.len() * size_of::<StatusDescriptor>();
    let payload = u32::try_from(payload).expect("an extent list is bounded by its request");
    let mut bytes = ReplyBytes::with_capacity(CHUNK_BYTES + payload as usize);
    let header = chunk_header(cookie, chunk::BLOCK_STATUS, last, payload);
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(U32::new(context).as_bytes());
    for extent in extents {
        assert!(extent.length != 0, "an extent has at least one byte");
        let (length, state) = (U32::new(extent.length), U32::new(extent.state));
        bytes.extend_from_slice(StatusDescriptor { length, state }.as_bytes());
    }
    bytes
}

/// An `ERROR` chunk: the whole request failed. An overlong message is cut.
pub fn error(cookie: Cookie, last: Last, error: ErrorCode, message: &str) -> ReplyBytes {
    let message = &message[..message.floor_char_boundary(STRING_BYTES_MAX)];
    let length = (size_of::<ErrorPayload>() + message.len()) as u32;
    let payload = ErrorPayload {
        error: U32::new(error.number()),
        message_length: U16::new(message.len() as u16),
    };
    let mut bytes = ReplyBytes::with_capacity(CHUNK_BYTES + length as usize);
    bytes.extend_from_slice(chunk_header(cookie, chunk::ERROR, last, length).as_bytes());
    bytes.extend_from_slice(payload.as_bytes());
    bytes.extend_from_slice(message.as_bytes());
    bytes
}

/// The whole reply to a request that failed before any of its chunks was sent.
pub fn refused(
    cookie: Cookie,
    structured_replies: bool,
    code: ErrorCode,
    message: &str,
) -> ReplyBytes {
    match structured_replies {
        true => error(cookie, Last::Yes, code, message),
        false => ReplyBytes::from_slice(&simple_error(cookie, code)),
    }
}

/// The whole reply to a request for no bytes
/// ([`Command::Nothing`](super::request::Command::Nothing)), which may be an empty read.
pub fn nothing_done(cookie: Cookie, structured_replies: bool) -> ReplyBytes {
    match structured_replies {
        true => ReplyBytes::from_slice(&done(cookie)),
        false => ReplyBytes::from_slice(&simple_success(cookie)),
    }
}

fn simple(cookie: Cookie, error: u32) -> [u8; SIMPLE_BYTES] {
    zerocopy::transmute!(SimpleReply {
        magic: U32::new(SIMPLE_REPLY_MAGIC),
        error: U32::new(error),
        cookie: U64::new(cookie.0),
    })
}

fn chunk_header(cookie: Cookie, kind: u16, last: Last, length: u32) -> ChunkHeader {
    let flags = match last {
        Last::Yes => ChunkFlags::DONE,
        Last::No => ChunkFlags::empty(),
    };
    ChunkHeader {
        magic: U32::new(STRUCTURED_REPLY_MAGIC),
        flags: U16::new(flags.bits()),
        kind: U16::new(kind),
        cookie: U64::new(cookie.0),
        length: U32::new(length),
    }
}

fn joined<P: IntoBytes + Immutable, const N: usize>(header: &ChunkHeader, payload: &P) -> [u8; N] {
    const { assert!(N == CHUNK_BYTES + size_of::<P>()) };
    let mut bytes = [0; N];
    bytes[..CHUNK_BYTES].copy_from_slice(header.as_bytes());
    bytes[CHUNK_BYTES..].copy_from_slice(payload.as_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use zerocopy::FromBytes;

    use super::{
        CHUNK_BYTES, Last, StatusExtent, block_status, done, error, nothing_done, offset_data,
        refused, simple_error, simple_success,
    };
    use crate::nbd::wire::{
        AllocationState, ChunkHeader, Cookie, ErrorCode, STRUCTURED_REPLY_MAGIC, chunk,
    };

    const COOKIE: Cookie = Cookie(0x0102_0304_0506_0708);

    /// The kind, the last mark and the payload of a chunk whose length field fits, plus
    /// `following` bytes that are sent from elsewhere.
    fn parsed(bytes: &[u8], following: u32) -> (u16, bool, Vec<u8>) {
        let (header, payload) = ChunkHeader::read_from_prefix(bytes).unwrap();
        assert_eq!(header.magic.get(), STRUCTURED_REPLY_MAGIC);
        assert_eq!(header.cookie.get(), COOKIE.0);
        assert_eq!(header.length.get(), payload.len() as u32 + following);
        (header.kind.get(), header.flags.get() == 1, payload.to_vec())
    }

    #[test]
    fn simple_replies_carry_the_cookie_and_the_error() {
        let mut expected = [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(simple_success(COOKIE), expected);
        expected[7] = 28;
        assert_eq!(simple_error(COOKIE, ErrorCode::NoSpace), expected);
    }

    #[test]
    fn the_none_chunk_is_last_and_empty() {
        assert_eq!(parsed(&done(COOKIE), 0), (chunk::NONE, true, vec![]));
    }

    #[test]
    fn a_data_chunk_counts_the_offset_and_the_data_that_follows() {
        let bytes = offset_data(COOKIE, Last::No, 0x1000, 512);
        let offset = 0x1000u64.to_be_bytes().to_vec();
        assert_eq!(parsed(&bytes, 512), (chunk::OFFSET_DATA, false, offset));
    }

    #[test]
    fn block_status_lists_its_extents_after_the_context() {
        let hole = (AllocationState::HOLE | AllocationState::ZERO).bits();
        let extents =
            [StatusExtent { length: 512, state: 0 }, StatusExtent { length: 256, state: hole }];
        let bytes = block_status(COOKIE, Last::Yes, 7, &extents);
        let payload = vec![0, 0, 0, 7, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 3];
        assert_eq!(parsed(&bytes, 0), (chunk::BLOCK_STATUS, true, payload));
    }

    #[test]
    fn an_error_chunk_carries_its_message() {
        let bytes = error(COOKIE, Last::Yes, ErrorCode::Io, "bad");
        let payload = vec![0, 0, 0, 5, 0, 3, b'b', b'a', b'd'];
        assert_eq!(parsed(&bytes, 0), (chunk::ERROR, true, payload));
    }

    #[test]
    fn an_overlong_message_is_cut_between_characters() {
        let bytes = error(COOKIE, Last::Yes, ErrorCode::Io, &"€".repeat(2000));
        let (_, _, payload) = parsed(&bytes, 0);
        assert_eq!(payload.len(), 6 + 4095);
        assert!(std::str::from_utf8(&payload[6..]).is_ok());
    }

    #[test]
    fn a_refusal_is_structured_exactly_if_that_was_negotiated() {
        let simple = refused(COOKIE, false, ErrorCode::Invalid, "why");
        assert_eq!(simple.as_slice(), simple_error(COOKIE, ErrorCode::Invalid));
        let structured = refused(COOKIE, true, ErrorCode::Invalid, "why");
        assert_eq!(parsed(&structured, 0).0, chunk::ERROR);
    }

    #[test]
    fn an_empty_request_is_answered_in_the_negotiated_form() {
        assert_eq!(nothing_done(COOKIE, false).as_slice(), simple_success(COOKIE));
        assert_eq!(nothing_done(COOKIE, true).len(), CHUNK_BYTES);
    }
}
