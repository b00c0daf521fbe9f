//! The numbers and layouts of vhost-user messages, and their decoder. Little-endian, as every
//! machine that runs this is.
//!
//! Source: the vhost-user protocol as QEMU documents it (`interop/vhost-user`), and the header
//! layout therein: request, flags, payload size; then the payload.
//!
//! Never panics on any input, touches no socket, and takes at most [`PAYLOAD_BYTES_MAX`] bytes of a
//! payload. A message that the peer may not send is a [`Breach`], which names it and what is wrong.

use thiserror::Error;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use zerocopy::little_endian::{U16, U32, U64};

/// Bytes of a header.
pub const HEADER_BYTES: usize = 12;

/// The longest payload of a message that is understood, in bytes.
pub const PAYLOAD_BYTES_MAX: usize = 512;

/// The most descriptors that come with one message: one for each region of a memory table.
pub const DESCRIPTORS_MAX: usize = 8;

/// The longest piece of the configuration space that a message may carry, in bytes.
const CONFIG_BYTES_MAX: u32 = 256;

/// The version in the flags of each message, with its mask.
const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const IS_REPLY: u32 = 1 << 2;
const NEEDS_REPLY: u32 = 1 << 3;

/// In the messages that pass a descriptor of a ring: its index, and that there is no descriptor.
const INDEX_MASK: u64 = 0xff;
const NO_DESCRIPTOR: u64 = 1 << 8;

/// The bit among the features of a device that says that there are features of the protocol.
pub const PROTOCOL_FEATURES: u64 = 1 << 30;

bitflags::bitflags! {
    /// What both ends of a session may use.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ProtocolFeatures: u64 {
        /// Several rings.
        const MQ = 1 << 0;
        /// Any message may ask for an answer.
        const REPLY_ACK = 1 << 3;
        /// The device has a socket to send messages of its own.
        const BACKEND_REQ = 1 << 5;
        /// The configuration space is read and written by messages.
        const CONFIG = 1 << 9;
        /// The driver's side keeps which requests are in flight.
        const INFLIGHT_SHMFD = 1 << 12;
        /// Memory comes and goes region by region.
        const CONFIGURE_MEM_SLOTS = 1 << 15;
    }
}

/// Numbers of the messages of the driver's side.
mod number {
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const RESET_OWNER: u32 = 4;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const SET_VRING_ERR: u32 = 14;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const GET_QUEUE_NUM: u32 = 17;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const SET_BACKEND_REQ_FD: u32 = 21;
    pub const GET_CONFIG: u32 = 24;
    pub const SET_CONFIG: u32 = 25;
    pub const GET_INFLIGHT_FD: u32 = 31;
    pub const SET_INFLIGHT_FD: u32 = 32;
    pub const GET_MAX_MEM_SLOTS: u32 = 36;
    pub const ADD_MEM_REG: u32 = 37;
    pub const REM_MEM_REG: u32 = 38;
}

/// The message of the device's side that says that the configuration space has changed.
const CONFIG_CHANGED: u32 = 2;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHeader {
    request: U32,
    flags: U32,
    size: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawRegion {
    guest: U64,
    bytes: U64,
    user: U64,
    offset: U64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawRing {
    index: U32,
    value: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawAddresses {
    index: U32,
    flags: U32,
    descriptors: U64,
    used: U64,
    available: U64,
    log: U64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawConfig {
    offset: U32,
    bytes: U32,
    flags: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawInflight {
    bytes: U64,
    offset: U64,
    queues: U16,
    entries: U16,
    /// Between the fields and the next multiple of eight bytes.
    unused: [u8; 4],
}

/// Memory for requests in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InflightFacts {
    /// Its length.
    pub bytes: u64,
    /// Where it begins in its file, in bytes.
    pub offset: u64,
    /// How many queues it is for.
    pub queues: u16,
    /// How many entries each of them has.
    pub entries: u16,
}

/// The head of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    number: u32,
    /// The peer waits for an answer, also to a message that has none of its own.
    pub needs_reply: bool,
    /// Bytes of the payload that follows.
    pub payload_bytes: usize,
}

/// A region of the memory that both ends share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionFacts {
    /// Its first address as the guest knows it.
    pub guest: u64,
    /// Its first address in the process at the other end.
    pub user: u64,
    /// Its length.
    pub bytes: u64,
    /// Where it begins in its file, in bytes.
    pub offset: u64,
}

/// Where the parts of a ring are, as addresses in the process at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingAddresses {
    /// The table of descriptors.
    pub descriptors: u64,
    /// What the driver makes available.
    pub available: u64,
    /// What the device has used.
    pub used: u64,
}

/// A message of the driver's side.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the protocol's")]
pub enum Message {
    GetFeatures,
    SetFeatures(u64),
    SetOwner,
    ResetOwner,
    GetProtocolFeatures,
    SetProtocolFeatures(u64),
    GetQueueNum,
    SetMemTable(Vec<RegionFacts>),
    GetMaxMemSlots,
    AddMemReg(RegionFacts),
    RemMemReg(RegionFacts),
    SetVringNum { ring: u32, entries: u32 },
    SetVringAddr { ring: u32, addresses: RingAddresses },
    SetVringBase { ring: u32, base: u32 },
    GetVringBase { ring: u32 },
    SetVringKick { ring: u32 },
    SetVringCall { ring: u32 },
    SetVringErr { ring: u32 },
    SetVringEnable { ring: u32, enabled: bool },
    SetBackendReqFd,
    GetConfig { offset: u32, bytes: u32 },
    SetConfig { offset: u32, data: Vec<u8> },
    GetInflightFd(InflightFacts),
    SetInflightFd(InflightFacts),
}

/// What the peer did that the protocol does not allow.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Breach {
    /// The version in the flags is not ours.
    #[error("version: found {0}, expected 1")]
    Version(u32),
    /// A reply, to nothing that was asked.
    #[error("message {0}: found a reply, expected a request")]
    Reply(u32),
    /// The payload is longer than any message has.
    #[error("message {number}: payload: found {found} bytes, expected at most {PAYLOAD_BYTES_MAX}")]
    Long {
        /// The message.
        number: u32,
        /// Its length.
        found: u32,
    },
    /// The message is unknown, or belongs to a feature that was not offered.
    #[error("message {0}: found one that no offered feature has")]
    Unknown(u32),
    /// The payload does not have the length that its message has.
    #[error("message {number}: payload: found {found} bytes, expected {expected}")]
    Length {
        /// The message.
        number: u32,
        /// Bytes that came.
        found: usize,
        /// Bytes that the message has.
        expected: usize,
    },
    /// The message came with the wrong number of descriptors.
    #[error("message {number}: found {found} descriptors, expected {expected}")]
    Descriptors {
        /// The message.
        number: u32,
        /// How many came.
        found: usize,
        /// How many belong to it.
        expected: usize,
    },
    /// A field has a value that makes no sense.
    #[error("{field}: found {found}, expected {expected}")]
    Field {
        /// Which.
        field: &'static str,
        /// Its value.
        found: String,
        /// What it may be.
        expected: &'static str,
    },
}

impl Breach {
    /// A field with a value that makes no sense.
    pub(super) fn field(
        field: &'static str,
        found: impl ToString,
        expected: &'static str,
    ) -> Breach {
        Breach::Field { field, found: found.to_string(), expected }
    }
}

impl Header {
    /// Decodes the head of a message.
    ///
    /// # Errors
    /// It is no request of this protocol, or its payload is too long.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, Breach> {
        let RawHeader { request, flags, size } = zerocopy::transmute!(*bytes);
        let (number, flags) = (request.get(), flags.get());
        if flags & VERSION_MASK != VERSION {
            return Err(Breach::Version(flags & VERSION_MASK));
        }
        if flags & IS_REPLY != 0 {
            return Err(Breach::Reply(number));
        }
        let payload_bytes = size.get() as usize;
        if payload_bytes > PAYLOAD_BYTES_MAX {
            return Err(Breach::Long { number, found: size.get() });
        }
        Ok(Header { number, needs_reply: flags & NEEDS_REPLY != 0, payload_bytes })
    }

    /// Decodes the message with this head, `payload`, and so many descriptors.
    ///
    /// # Errors
    /// It is not as the protocol has it.
    pub fn message(self, payload: &[u8], descriptors: usize) -> Result<Message, Breach> {
        let message = self.decode_payload(payload)?;
        let expected = match &message {
            Message::SetMemTable(regions) => regions.len(),
            Message::AddMemReg(_) | Message::SetBackendReqFd | Message::SetInflightFd(_) => 1,
            // Some drivers pass a descriptor here, which means nothing.
            Message::RemMemReg(_) => descriptors,
            Message::SetVringKick { .. }
            | Message::SetVringCall { .. }
            | Message::SetVringErr { .. } => usize::from(!is_without_descriptor(payload)),
            _ => 0,
        };
        if descriptors != expected {
            return Err(Breach::Descriptors { number: self.number, found: descriptors, expected });
        }
        Ok(message)
    }

    fn decode_payload(self, payload: &[u8]) -> Result<Message, Breach> {
        let ring = || self.whole::<RawRing>(payload).map(|it| (it.index.get(), it.value.get()));
        let word = || self.whole::<U64>(payload).map(|it| it.get());
        let passed = || word().map(|it| (it & INDEX_MASK) as u32);
        Ok(match self.number {
            number::GET_FEATURES => Message::GetFeatures,
            number::SET_FEATURES => Message::SetFeatures(word()?),
            number::SET_OWNER => Message::SetOwner,
            number::RESET_OWNER => Message::ResetOwner,
            number::GET_PROTOCOL_FEATURES => Message::GetProtocolFeatures,
            number::SET_PROTOCOL_FEATURES => Message::SetProtocolFeatures(word()?),
            number::GET_QUEUE_NUM => Message::GetQueueNum,
            number::SET_MEM_TABLE => Message::SetMemTable(self.regions(payload)?),
            number::GET_MAX_MEM_SLOTS => Message::GetMaxMemSlots,
            number::ADD_MEM_REG => Message::AddMemReg(self.region(payload)?),
            number::REM_MEM_REG => Message::RemMemReg(self.region(payload)?),
            number::SET_VRING_NUM => {
                ring().map(|(ring, entries)| Message::SetVringNum { ring, entries })?
            }
            number::SET_VRING_ADDR => self.addresses(payload)?,
            number::SET_VRING_BASE => {
                ring().map(|(ring, base)| Message::SetVringBase { ring, base })?
            }
            number::GET_VRING_BASE => ring().map(|(ring, _)| Message::GetVringBase { ring })?,
            number::SET_VRING_KICK => passed().map(|ring| Message::SetVringKick { ring })?,
            number::SET_VRING_CALL => passed().map(|ring| Message::SetVringCall { ring })?,
            number::SET_VRING_ERR => passed().map(|ring| Message::SetVringErr { ring })?,
            number::SET_VRING_ENABLE => {
                ring().map(|(ring, value)| Message::SetVringEnable { ring, enabled: value != 0 })?
            }
            number::SET_BACKEND_REQ_FD => Message::SetBackendReqFd,
            number::GET_CONFIG | number::SET_CONFIG => self.config(payload)?,
            number::GET_INFLIGHT_FD => Message::GetInflightFd(self.inflight(payload)?),
            number::SET_INFLIGHT_FD => Message::SetInflightFd(self.inflight(payload)?),
            number => return Err(Breach::Unknown(number)),
        })
    }

    /// The whole payload as one `T`.
    fn whole<T: FromBytes + KnownLayout + Immutable>(self, payload: &[u8]) -> Result<T, Breach> {
        T::read_from_bytes(payload).map_err(|_| self.wrong_length(payload, size_of::<T>()))
    }

    fn wrong_length(self, payload: &[u8], expected: usize) -> Breach {
        Breach::Length { number: self.number, found: payload.len(), expected }
    }

    /// One region behind eight bytes that mean nothing.
    fn region(self, payload: &[u8]) -> Result<RegionFacts, Breach> {
        self.whole::<[U64; 5]>(payload).map(|[_, guest, bytes, user, offset]| {
            let [guest, bytes, user, offset] = [guest, bytes, user, offset].map(U64::get);
            RegionFacts { guest, user, bytes, offset }
        })
    }

    /// A count, four bytes that mean nothing, and as many regions. There may be room for more.
    fn regions(self, payload: &[u8]) -> Result<Vec<RegionFacts>, Breach> {
        let short = |expected| self.wrong_length(payload, expected);
        let (head, rest) = RawRing::read_from_prefix(payload).map_err(|_| short(8))?;
        let count = head.index.get() as usize;
        if count > DESCRIPTORS_MAX {
            return Err(Breach::field("regions of memory", count, "at most 8"));
        }
        let regions = <[RawRegion]>::ref_from_prefix_with_elems(rest, count)
            .map_err(|_| short(size_of::<RawRing>() + count * size_of::<RawRegion>()))?;
        let facts = |region: &RawRegion| RegionFacts {
            guest: region.guest.get(),
            user: region.user.get(),
            bytes: region.bytes.get(),
            offset: region.offset.get(),
        };
        Ok(regions.0.iter().map(facts).collect())
    }

    fn inflight(self, payload: &[u8]) -> Result<InflightFacts, Breach> {
        let raw: RawInflight = self.whole(payload)?;
        Ok(InflightFacts {
            bytes: raw.bytes.get(),
            offset: raw.offset.get(),
            queues: raw.queues.get(),
            entries: raw.entries.get(),
        })
    }

    fn addresses(self, payload: &[u8]) -> Result<Message, Breach> {
        let raw: RawAddresses = self.whole(payload)?;
        let addresses = RingAddresses {
            descriptors: raw.descriptors.get(),
            available: raw.available.get(),
            used: raw.used.get(),
        };
        Ok(Message::SetVringAddr { ring: raw.index.get(), addresses })
    }

    fn config(self, payload: &[u8]) -> Result<Message, Breach> {
        let short = |_| self.wrong_length(payload, size_of::<RawConfig>());
        let (raw, data) = RawConfig::read_from_prefix(payload).map_err(short)?;
        let (offset, bytes) = (raw.offset.get(), raw.bytes.get());
        if offset > CONFIG_BYTES_MAX || bytes > CONFIG_BYTES_MAX - offset {
            let found = format!("{bytes} bytes from {offset}");
            return Err(Breach::field("configuration space", found, "bytes within the first 256"));
        }
        if data.len() != bytes as usize {
            return Err(self.wrong_length(payload, size_of::<RawConfig>() + bytes as usize));
        }
        Ok(match self.number {
            number::GET_CONFIG => Message::GetConfig { offset, bytes },
            _ => Message::SetConfig { offset, data: data.to_vec() },
        })
    }

    fn reply(self, payload: &[u8]) -> Vec<u8> {
        message(self.number, VERSION | IS_REPLY, payload)
    }

    /// The answer that is a number: to a question, or 0 for a success that the peer waits for.
    pub fn reply_word(self, word: u64) -> Vec<u8> {
        self.reply(&word.to_le_bytes())
    }

    /// The answer with the index of a ring and where it stopped.
    pub fn reply_base(self, ring: u32, base: u32) -> Vec<u8> {
        self.reply(RawRing { index: ring.into(), value: base.into() }.as_bytes())
    }

    /// The answer with memory for requests in flight, whose descriptor goes with it.
    pub fn reply_inflight(self, facts: InflightFacts) -> Vec<u8> {
        let InflightFacts { bytes, offset, queues, entries } = facts;
        let (bytes, offset) = (bytes.into(), offset.into());
        let (queues, entries) = (queues.into(), entries.into());
        self.reply(RawInflight { bytes, offset, queues, entries, unused: [0; 4] }.as_bytes())
    }

    /// The answer with bytes of the configuration space.
    pub fn reply_config(self, offset: u32, data: &[u8]) -> Vec<u8> {
        let bytes = U32::new(data.len() as u32);
        let head = RawConfig { offset: offset.into(), bytes, flags: U32::ZERO };
        self.reply(&[head.as_bytes(), data].concat())
    }
}

/// The message that says that the configuration space has changed.
pub fn config_changed() -> Vec<u8> {
    message(CONFIG_CHANGED, VERSION, &[])
}

fn message(number: u32, flags: u32, payload: &[u8]) -> Vec<u8> {
    let size = U32::new(payload.len() as u32);
    let head = RawHeader { request: number.into(), flags: flags.into(), size };
    [head.as_bytes(), payload].concat()
}

fn is_without_descriptor(payload: &[u8]) -> bool {
    U64::read_from_bytes(payload).is_ok_and(|it| it.get() & NO_DESCRIPTOR != 0)
}
