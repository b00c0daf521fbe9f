//! The NBD protocol's constants and fixed-layout messages, each written once.
//!
//! Owns: magic numbers, flag sets, option, information, command, chunk and error numbers, and the
//! structs that cross the wire. Everything is big-endian and without padding; the sizes are proved
//! at compile time. Covers fixed newstyle negotiation, simple replies, structured replies and
//! extended headers; TLS appears only as a number that is refused by name.
//!
//! Must never: interpret a message, allocate, or know an export.

use bitflags::bitflags;
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First eight bytes of the greeting, "NBDMAGIC".
pub const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second magic of the greeting, and the magic of every option, "IHAVEOPT".
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Magic of every reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Magic of a compact transmission request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Magic of an extended transmission request.
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// Magic of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Magic of one chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
/// Magic of one chunk of an extended reply.
pub const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

/// Longest string (name, query, message) the protocol allows, in bytes.
pub const STRING_BYTES_MAX: usize = 4096;
/// Zeroes after the answer to `EXPORT_NAME`, unless the client declined them.
pub const EXPORT_NAME_ZEROES: usize = 124;
/// Payload that every server must take from a client that never asked for block sizes.
pub const PAYLOAD_BYTES_USUAL_MAX: u32 = 32 << 20;

/// The one metadata context that the protocol itself defines.
pub const BASE_ALLOCATION: &str = "base:allocation";

/// The form of all messages of a transmission phase, as negotiated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MessageForm {
    /// Compact requests, simple replies.
    #[default]
    Simple,
    /// Compact requests; replies are structured, and simple where they carry nothing.
    Structured,
    /// Extended requests, extended replies.
    Extended,
}

impl MessageForm {
    /// True if replies can consist of chunks.
    pub const fn has_chunks(self) -> bool {
        !matches!(self, MessageForm::Simple)
    }

    /// Bytes of a request header.
    pub const fn request_bytes(self) -> usize {
        match self {
            MessageForm::Simple | MessageForm::Structured => size_of::<RequestHeader>(),
            MessageForm::Extended => size_of::<ExtendedRequestHeader>(),
        }
    }

    /// The magic of a request.
    pub const fn request_magic(self) -> u32 {
        match self {
            MessageForm::Simple | MessageForm::Structured => REQUEST_MAGIC,
            MessageForm::Extended => EXTENDED_REQUEST_MAGIC,
        }
    }
}

bitflags! {
    /// Flags the server sends in its greeting (16 bits).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct HandshakeFlags: u16 {
        /// The server speaks fixed newstyle: it answers options it does not know.
        const FIXED_NEWSTYLE = 1 << 0;
        /// The server can leave out the zeroes after `EXPORT_NAME`.
        const NO_ZEROES = 1 << 1;
    }

    /// Flags the client answers with (32 bits). Any other bit ends the connection.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ClientFlags: u32 {
        /// The client speaks fixed newstyle.
        const FIXED_NEWSTYLE = 1 << 0;
        /// The client wants no zeroes after `EXPORT_NAME`.
        const NO_ZEROES = 1 << 1;
    }

    /// What an export offers during transmission (16 bits).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct TransmissionFlags: u16 {
        /// Always set.
        const HAS_FLAGS = 1 << 0;
        /// Writes, trims and write-zeroes are refused.
        const READ_ONLY = 1 << 1;
        /// `FLUSH` is served.
        const SEND_FLUSH = 1 << 2;
        /// The `FUA` command flag is honoured.
        const SEND_FUA = 1 << 3;
        /// Seeks are expensive; the client may schedule for it.
        const ROTATIONAL = 1 << 4;
        /// `TRIM` is served.
        const SEND_TRIM = 1 << 5;
        /// `WRITE_ZEROES` is served.
        const SEND_WRITE_ZEROES = 1 << 6;
        /// The `DF` command flag is honoured; only if replies can consist of chunks.
        const SEND_DF = 1 << 7;
        /// A flush on one connection covers completed writes of all connections.
        const CAN_MULTI_CONN = 1 << 8;
        /// `CACHE` is served.
        const SEND_CACHE = 1 << 10;
        /// The `FAST_ZERO` command flag is honoured.
        const SEND_FAST_ZERO = 1 << 11;
    }

    /// Flags of one transmission request (16 bits).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct CommandFlags: u16 {
        /// The reply means that what was written is durable.
        const FUA = 1 << 0;
        /// Write-zeroes must leave the range allocated.
        const NO_HOLE = 1 << 1;
        /// A read is answered by at most one content chunk.
        const DF = 1 << 2;
        /// Block status of one extent is enough.
        const REQ_ONE = 1 << 3;
        /// Write-zeroes must fail with `ENOTSUP` if it is no faster than writing.
        const FAST_ZERO = 1 << 4;
        /// The length of an extended request is that of the payload that follows it.
        const PAYLOAD_LEN = 1 << 5;
    }

    /// Flags of one chunk of a structured or extended reply (16 bits).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ChunkFlags: u16 {
        /// The last chunk of its reply.
        const DONE = 1 << 0;
    }

    /// State of an extent in the `base:allocation` context (32 bits).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct AllocationState: u32 {
        /// Not allocated: a later write may find no space.
        const HOLE = 1 << 0;
        /// Reads as zero.
        const ZERO = 1 << 1;
    }
}

/// Option numbers, sent by the client while negotiating.
pub mod option {
    /// Enter transmission with the named export; cannot be answered by an error.
    pub const EXPORT_NAME: u32 = 1;
    /// End the negotiation politely.
    pub const ABORT: u32 = 2;
    /// List the exports.
    pub const LIST: u32 = 3;
    /// Withdrawn from the protocol; refused.
    pub const PEEK_EXPORT: u32 = 4;
    /// Start TLS.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Describe an export and enter transmission with it.
    pub const GO: u32 = 7;
    /// Answer in structured replies from now on.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List metadata contexts of an export.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Select the metadata contexts that block status reports.
    pub const SET_META_CONTEXT: u32 = 10;
    /// Use extended requests and replies, with lengths of 64 bits.
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Types of successful option replies.
pub mod option_reply {
    /// The option is done.
    pub const ACK: u32 = 1;
    /// One export of a listing.
    pub const SERVER: u32 = 2;
    /// One piece of information about an export.
    pub const INFO: u32 = 3;
    /// One metadata context.
    pub const META_CONTEXT: u32 = 4;
}

/// Types of option replies that refuse (bit 31 set); the payload is a message for a person.
pub mod option_error {
    /// The server does not know the option.
    pub const UNSUP: u32 = (1 << 31) + 1;
    /// The server does not want to.
    pub const POLICY: u32 = (1 << 31) + 2;
    /// The option's payload is malformed, or it came at the wrong moment.
    pub const INVALID: u32 = (1 << 31) + 3;
    /// The server takes no client without TLS.
    pub const TLS_REQD: u32 = (1 << 31) + 5;
    /// No such export.
    pub const UNKNOWN: u32 = (1 << 31) + 6;
    /// The server is shutting down.
    pub const SHUTDOWN: u32 = (1 << 31) + 7;
    /// The option's payload is larger than the server takes.
    pub const TOO_BIG: u32 = (1 << 31) + 9;
    /// Extended headers are in use, or needed.
    pub const EXT_HEADER_REQD: u32 = (1 << 31) + 10;
}

/// Kinds of information about an export.
pub mod info {
    /// Size and transmission flags; always sent.
    pub const EXPORT: u16 = 0;
    /// The export's own name.
    pub const NAME: u16 = 1;
    /// A description for a person.
    pub const DESCRIPTION: u16 = 2;
    /// Minimum, preferred and maximum block size.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Command numbers of transmission requests.
pub mod command {
    /// Read a range.
    pub const READ: u16 = 0;
    /// Write a range; the payload follows the header.
    pub const WRITE: u16 = 1;
    /// Disconnect; has no reply.
    pub const DISC: u16 = 2;
    /// Make completed writes durable.
    pub const FLUSH: u16 = 3;
    /// The contents of a range are no longer needed.
    pub const TRIM: u16 = 4;
    /// A range will be read soon.
    pub const CACHE: u16 = 5;
    /// Make a range read as zero.
    pub const WRITE_ZEROES: u16 = 6;
    /// Report the state of a range.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Types of chunks of structured and extended replies.
pub mod chunk {
    /// Nothing more to say; always the last chunk.
    pub const NONE: u16 = 0;
    /// Data at an offset.
    pub const OFFSET_DATA: u16 = 1;
    /// A run of zeroes at an offset.
    pub const OFFSET_HOLE: u16 = 2;
    /// Extents in one metadata context, in a structured reply.
    pub const BLOCK_STATUS: u16 = 5;
    /// Extents in one metadata context, in an extended reply.
    pub const BLOCK_STATUS_EXT: u16 = 6;
    /// The request failed.
    pub const ERROR: u16 = (1 << 15) + 1;
    /// The request failed at an offset.
    pub const ERROR_OFFSET: u16 = (1 << 15) + 2;
}

/// The error numbers the protocol allows in a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ErrorCode {
    /// EPERM: a write to a read-only export.
    NotPermitted = 1,
    /// EIO: the device failed.
    Io = 5,
    /// ENOMEM: no memory to serve the request.
    NoMemory = 12,
    /// EINVAL: the request breaks the rules.
    Invalid = 22,
    /// ENOSPC: a write beyond the end, or no space left.
    NoSpace = 28,
    /// EOVERFLOW: an unfragmented read is too long.
    Overflow = 75,
    /// ENOTSUP: a fast zero would not be fast.
    NotSupported = 95,
    /// ESHUTDOWN: the server is shutting down.
    Shutdown = 108,
}

impl ErrorCode {
    /// The error of this number on the wire, if the protocol has it.
    pub fn of(number: u32) -> Option<ErrorCode> {
        use ErrorCode::{
            Invalid, Io, NoMemory, NoSpace, NotPermitted, NotSupported, Overflow, Shutdown,
        };
        [NotPermitted, Io, NoMemory, Invalid, NoSpace, Overflow, NotSupported, Shutdown]
            .into_iter()
            .find(|code| code.number() == number)
    }

    /// The number on the wire; never zero.
    pub const fn number(self) -> u32 {
        self as u32
    }
}

/// The client's mark on a request, echoed in every reply to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cookie(pub u64);

/// What every reply repeats of its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Echo {
    /// The client's mark.
    pub cookie: Cookie,
    /// The offset in the request's header, whatever the command; repeated in extended replies only.
    pub offset: u64,
}

/// The first message of the server.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Greeting {
    /// [`GREETING_MAGIC`].
    pub magic: U64,
    /// [`OPTION_MAGIC`].
    pub option_magic: U64,
    /// [`HandshakeFlags`].
    pub flags: U16,
}

/// Header of an option; `length` bytes of payload follow.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct OptionHeader {
    /// [`OPTION_MAGIC`].
    pub magic: U64,
    /// One of [`option`].
    pub option: U32,
    /// Bytes of payload.
    pub length: U32,
}

/// Header of a reply to an option; `length` bytes of payload follow.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct OptionReplyHeader {
    /// [`OPTION_REPLY_MAGIC`].
    pub magic: U64,
    /// The option answered.
    pub option: U32,
    /// One of [`option_reply`] or [`option_error`].
    pub kind: U32,
    /// Bytes of payload.
    pub length: U32,
}

/// The answer to `EXPORT_NAME`, perhaps followed by [`EXPORT_NAME_ZEROES`] zeroes.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ExportNameReply {
    /// Size of the export in bytes.
    pub size_bytes: U64,
    /// [`TransmissionFlags`].
    pub flags: U16,
}

/// Payload of the information [`info::EXPORT`].
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct InfoExport {
    /// [`info::EXPORT`].
    pub kind: U16,
    /// Size of the export in bytes.
    pub size_bytes: U64,
    /// [`TransmissionFlags`].
    pub flags: U16,
}

/// Payload of the information [`info::BLOCK_SIZE`].
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct InfoBlockSize {
    /// [`info::BLOCK_SIZE`].
    pub kind: U16,
    /// Every offset and length is a multiple of this, in bytes.
    pub minimum: U32,
    /// Requests aligned to this many bytes are fastest.
    pub preferred: U32,
    /// Longest payload in bytes.
    pub maximum: U32,
}

/// Header of a compact request; a `WRITE` is followed by `length` bytes of payload.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RequestHeader {
    /// [`REQUEST_MAGIC`].
    pub magic: U32,
    /// [`CommandFlags`].
    pub flags: U16,
    /// One of [`command`].
    pub command: U16,
    /// The client's mark.
    pub cookie: U64,
    /// First byte of the range.
    pub offset: U64,
    /// Bytes in the range.
    pub length: U32,
}

/// Header of an extended request; with the flag [`CommandFlags::PAYLOAD_LEN`] it is followed by
/// `length` bytes of payload.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ExtendedRequestHeader {
    /// [`EXTENDED_REQUEST_MAGIC`].
    pub magic: U32,
    /// [`CommandFlags`].
    pub flags: U16,
    /// One of [`command`].
    pub command: U16,
    /// The client's mark.
    pub cookie: U64,
    /// First byte of the range.
    pub offset: U64,
    /// Bytes in the range, or of payload.
    pub length: U64,
}

/// A simple reply; a successful read is followed by its data.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SimpleReply {
    /// [`SIMPLE_REPLY_MAGIC`].
    pub magic: U32,
    /// Zero, or an [`ErrorCode`].
    pub error: U32,
    /// The request's mark.
    pub cookie: U64,
}

/// Header of one chunk of a structured reply; `length` bytes of payload follow.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ChunkHeader {
    /// [`STRUCTURED_REPLY_MAGIC`].
    pub magic: U32,
    /// [`ChunkFlags`].
    pub flags: U16,
    /// One of [`chunk`].
    pub kind: U16,
    /// The request's mark.
    pub cookie: U64,
    /// Bytes of payload.
    pub length: U32,
}

/// Header of one chunk of an extended reply; `length` bytes of payload follow.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ExtendedChunkHeader {
    /// [`EXTENDED_REPLY_MAGIC`].
    pub magic: U32,
    /// [`ChunkFlags`].
    pub flags: U16,
    /// One of [`chunk`].
    pub kind: U16,
    /// The request's mark.
    pub cookie: U64,
    /// The request's offset.
    pub offset: U64,
    /// Bytes of payload.
    pub length: U64,
}

/// Start of the payload of [`chunk::ERROR`] and [`chunk::ERROR_OFFSET`]; the message follows.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ErrorPayload {
    /// An [`ErrorCode`].
    pub error: U32,
    /// Bytes of message.
    pub message_length: U16,
}

/// One descriptor of a [`chunk::BLOCK_STATUS`] payload, which starts with a context number.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct StatusDescriptor {
    /// Bytes in the extent; never zero.
    pub length: U32,
    /// State of the extent, in the context's own bits.
    pub state: U32,
}

/// Start of a [`chunk::BLOCK_STATUS_EXT`] payload; the descriptors follow.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ExtendedStatusHead {
    /// The context's number.
    pub context: U32,
    /// How many descriptors follow; never zero.
    pub count: U32,
}

/// One descriptor of a [`chunk::BLOCK_STATUS_EXT`] payload.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ExtendedStatusDescriptor {
    /// Bytes in the extent; never zero.
    pub length: U64,
    /// State of the extent, in the context's own bits.
    pub state: U64,
}

const _: () = {
    assert!(size_of::<Greeting>() == 18);
    assert!(size_of::<OptionHeader>() == 16);
    assert!(size_of::<OptionReplyHeader>() == 20);
    assert!(size_of::<ExportNameReply>() == 10);
    assert!(size_of::<InfoExport>() == 12);
    assert!(size_of::<InfoBlockSize>() == 14);
    assert!(size_of::<RequestHeader>() == 28);
    assert!(size_of::<SimpleReply>() == 16);
    assert!(size_of::<ChunkHeader>() == 20);
    assert!(size_of::<ErrorPayload>() == 6);
    assert!(size_of::<StatusDescriptor>() == 8);
    assert!(size_of::<ExtendedRequestHeader>() == 32);
    assert!(size_of::<ExtendedChunkHeader>() == 32);
    assert!(size_of::<ExtendedStatusHead>() == 8);
    assert!(size_of::<ExtendedStatusDescriptor>() == 16);
};

#[cfg(test)]
mod tests {
    use super::{
        ChunkFlags, CommandFlags, ExtendedChunkHeader, ExtendedRequestHeader, GREETING_MAGIC,
        MessageForm, OPTION_MAGIC, RequestHeader, chunk, command, option,
    };
    use zerocopy::FromBytes;

    #[test]
    fn the_two_greeting_magics_are_readable_words() {
        assert_eq!(&GREETING_MAGIC.to_be_bytes(), b"NBDMAGIC");
        assert_eq!(&OPTION_MAGIC.to_be_bytes(), b"IHAVEOPT");
    }

    /// Early drafts of the protocol numbered these one higher; deployed clients do not.
    #[test]
    fn the_metadata_options_have_the_numbers_that_deployed_clients_send() {
        let numbers =
            (option::LIST_META_CONTEXT, option::SET_META_CONTEXT, option::EXTENDED_HEADERS);
        assert_eq!(numbers, (9, 10, 11));
    }

    #[test]
    fn a_request_header_reads_its_fields_big_endian() {
        let mut bytes = [0u8; 28];
        bytes[..4].copy_from_slice(&[0x25, 0x60, 0x95, 0x13]);
        bytes[7] = 4;
        bytes[15] = 9;
        bytes[22] = 2;
        bytes[27] = 1;
        let header = RequestHeader::read_from_bytes(&bytes).unwrap();
        assert_eq!(header.magic.get(), super::REQUEST_MAGIC);
        assert_eq!(header.command.get(), command::TRIM);
        assert_eq!(header.cookie.get(), 9);
        assert_eq!(header.offset.get(), 0x200);
        assert_eq!(header.length.get(), 1);
    }

    #[test]
    fn extended_headers_have_their_fields_where_the_protocol_puts_them() {
        let mut bytes = [0u8; 32];
        bytes[..4].copy_from_slice(&[0x21, 0xe4, 0x1c, 0x71]);
        (bytes[5], bytes[7], bytes[15]) = (0x20, 1, 9);
        (bytes[22], bytes[27]) = (2, 5);
        let header = ExtendedRequestHeader::read_from_bytes(&bytes).unwrap();
        assert_eq!(header.magic.get(), MessageForm::Extended.request_magic());
        assert_eq!(header.flags.get(), CommandFlags::PAYLOAD_LEN.bits());
        assert_eq!((header.command.get(), header.cookie.get()), (command::WRITE, 9));
        assert_eq!((header.offset.get(), header.length.get()), (0x200, 5 << 32));
        bytes[..4].copy_from_slice(&[0x6e, 0x8a, 0x27, 0x8c]);
        (bytes[5], bytes[7]) = (1, 6);
        let header = ExtendedChunkHeader::read_from_bytes(&bytes).unwrap();
        assert_eq!(header.magic.get(), super::EXTENDED_REPLY_MAGIC);
        assert_eq!(header.flags.get(), ChunkFlags::DONE.bits());
        assert_eq!((header.kind.get(), header.cookie.get()), (chunk::BLOCK_STATUS_EXT, 9));
        assert_eq!((header.offset.get(), header.length.get()), (0x200, 5 << 32));
    }
}
