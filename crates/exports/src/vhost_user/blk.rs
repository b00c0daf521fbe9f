//! The virtio block device: its features, its configuration space, and the layout of requests.
//!
//! Source: the virtio specification 1.2, section 5.2. Sizes and positions are in sectors of 512
//! bytes, also where a block is larger.

use cairn_block::{Limits, SECTOR_BYTES, Segs};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use zerocopy::little_endian::{U16, U32, U64};

use super::chain::{Chain, Side};
use super::memory::{Buffers, Piece};
use super::ring::Layout;
use super::wire::Breach;
use super::wire::PROTOCOL_FEATURES;

/// The most sectors of one discard or write of zeroes: lengths in bytes have 32 bits here.
const RANGE_SECTORS_MAX: u32 = 1 << 22;

/// The most pieces of data of a request; with head and status, it fills a ring of 128.
const PIECES_MAX: u32 = 126;

/// The most bytes of such a piece.
const PIECE_BYTES_MAX: u32 = 256 << 10;

/// Bytes of the identity.
pub(super) const SERIAL_BYTES: usize = 20;

/// Bytes of a request's head, and of the range of a discard.
const HEAD_BYTES: u64 = 16;
const RANGE_BYTES: u64 = 16;

bitflags::bitflags! {
    /// What a driver and the device may use.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(super) struct Features: u64 {
        const SIZE_MAX = 1 << 1;
        const SEG_MAX = 1 << 2;
        const RO = 1 << 5;
        const BLK_SIZE = 1 << 6;
        const FLUSH = 1 << 9;
        const TOPOLOGY = 1 << 10;
        /// The driver sets whether writes are durable when they end.
        const CONFIG_WCE = 1 << 11;
        const MQ = 1 << 12;
        const DISCARD = 1 << 13;
        const WRITE_ZEROES = 1 << 14;
        const INDIRECT_DESC = 1 << 28;
        const EVENT_IDX = 1 << 29;
        const PROTOCOL_FEATURES = PROTOCOL_FEATURES;
        const VERSION_1 = 1 << 32;
        const RING_PACKED = 1 << 34;
    }
}

impl Features {
    /// The layout of rings.
    pub(super) fn layout(self) -> Layout {
        match self.contains(Features::RING_PACKED) {
            true => Layout::Packed,
            false => Layout::Split,
        }
    }

    /// What is offered.
    pub(super) fn offered(read_only: bool) -> Features {
        let mut features = Features::all();
        features.set(Features::RO, read_only);
        if read_only {
            features -= Features::DISCARD | Features::WRITE_ZEROES;
        }
        features
    }
}

/// The configuration space.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct Config {
    capacity: U64,
    size_max: U32,
    seg_max: U32,
    geometry: [u8; 4],
    blk_size: U32,
    physical_block_exp: u8,
    alignment_offset: u8,
    min_io_size: U16,
    opt_io_size: U32,
    /// Writes are in a volatile cache until a flush.
    pub(super) writeback: u8,
    unused: u8,
    num_queues: U16,
    max_discard_sectors: U32,
    max_discard_seg: U32,
    discard_sector_alignment: U32,
    max_write_zeroes_sectors: U32,
    max_write_zeroes_seg: U32,
    write_zeroes_may_unmap: u8,
    unused_too: [u8; 3],
}

/// Where [`Config::writeback`] is.
pub(super) const WRITEBACK_AT: u32 = 32;

impl Config {
    /// The space of a device of so many bytes, with so many queues.
    pub(super) fn new(limits: &Limits, bytes: u64, queues: u16, writeback: bool) -> Config {
        let block = limits.logical_block.max(SECTOR_BYTES as u32);
        let physical = limits.physical_block.max(block);
        let blocks = |bytes: u32| bytes / block;
        Config {
            capacity: (bytes / SECTOR_BYTES).into(),
            size_max: PIECE_BYTES_MAX.into(),
            seg_max: PIECES_MAX.into(),
            geometry: [0; 4],
            blk_size: block.into(),
            physical_block_exp: (physical / block).max(1).ilog2() as u8,
            alignment_offset: 0,
            min_io_size: u16::try_from(blocks(limits.io_min)).unwrap_or(0).into(),
            opt_io_size: blocks(limits.io_opt).into(),
            writeback: writeback.into(),
            unused: 0,
            num_queues: queues.into(),
            max_discard_sectors: RANGE_SECTORS_MAX.into(),
            max_discard_seg: U32::new(1),
            discard_sector_alignment: (block / SECTOR_BYTES as u32).into(),
            max_write_zeroes_sectors: RANGE_SECTORS_MAX.into(),
            max_write_zeroes_seg: U32::new(1),
            write_zeroes_may_unmap: 1,
            unused_too: [0; 3],
        }
    }
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Read,
    Write,
    Flush,
    Discard,
    WriteZeroes,
    /// The serial number.
    Identify,
    Unknown,
}

impl Command {
    /// Where its data is.
    fn data_side(self) -> Side {
        match self {
            Command::Read | Command::Identify => Side::Writable,
            _ => Side::Readable,
        }
    }
}

/// How a request ended, in its status byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Status {
    Done = 0,
    Failed = 1,
    Unsupported = 2,
}

/// A request without its head and status byte.
#[derive(Clone, Copy)]
pub(super) struct Request {
    pub(super) command: Command,
    /// First byte of the disk, for commands that have one.
    pub(super) offset: u64,
    /// Bytes of its data: [`Request::data`].
    pub(super) bytes: u64,
    /// The byte that says how it ended.
    pub(super) status: Piece,
    /// The range of a discard or write of zeroes, or what to answer if there is none. It was read
    /// once: the guest may change it.
    pub(super) range: Result<RangeOf, Status>,
}

/// The range of a discard or write of zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RangeOf {
    pub(super) offset: u64,
    pub(super) bytes: u32,
    pub(super) may_unmap: bool,
}

impl Request {
    /// The request in a chain. The layout of descriptors means nothing: the first 16 bytes are the
    /// head, and the last one is the status.
    pub(super) fn decode(chain: &Chain, memory: &Buffers) -> Result<Request, Breach> {
        let (readable, writable) = (chain.readable_bytes, chain.writable_bytes);
        let (HEAD_BYTES.., Some(status)) = (readable, chain.last_writable()) else {
            let found = format!("{readable} and {writable} bytes");
            return Err(Breach::field("request", found, "a head of 16 bytes, and a status byte"));
        };
        let mut head = [0; HEAD_BYTES as usize];
        chain.load(memory, 0, &mut head);
        let [kind, _, sector_low, sector_high]: [U32; 4] = zerocopy::transmute!(head);
        let sector = u64::from(sector_low.get()) | u64::from(sector_high.get()) << 32;
        let command = match kind.get() {
            0 => Command::Read,
            1 => Command::Write,
            4 => Command::Flush,
            8 => Command::Identify,
            11 => Command::Discard,
            13 => Command::WriteZeroes,
            _ => Command::Unknown,
        };
        let bytes = match command.data_side() {
            Side::Readable => readable - HEAD_BYTES,
            Side::Writable => writable - 1,
        };
        // A sector beyond every disk stays beyond every disk.
        let offset = sector.saturating_mul(SECTOR_BYTES);
        let range = match command {
            Command::Discard | Command::WriteZeroes if bytes == RANGE_BYTES => {
                let mut bytes = [0; RANGE_BYTES as usize];
                chain.load(memory, HEAD_BYTES, &mut bytes);
                RangeOf::decode(command, bytes)
            }
            _ => Err(Status::Failed),
        };
        Ok(Request { command, offset, bytes, status, range })
    }

    /// The memory of its data.
    pub(super) fn data(&self, chain: &Chain, memory: &Buffers) -> Segs {
        let side = self.command.data_side();
        let skipped = if side == Side::Readable { HEAD_BYTES } else { 0 };
        chain.segs(memory, side, skipped, self.bytes)
    }
}

impl RangeOf {
    fn decode(command: Command, bytes: [u8; RANGE_BYTES as usize]) -> Result<RangeOf, Status> {
        const MAY_UNMAP: u32 = 1;
        let [sector_low, sector_high, sectors, flags]: [U32; 4] = zerocopy::transmute!(bytes);
        let allowed = if command == Command::WriteZeroes { MAY_UNMAP } else { 0 };
        if flags.get() & !allowed != 0 {
            return Err(Status::Unsupported);
        }
        if sectors.get() == 0 || sectors.get() > RANGE_SECTORS_MAX {
            return Err(Status::Failed);
        }
        let sector = u64::from(sector_low.get()) | u64::from(sector_high.get()) << 32;
        Ok(RangeOf {
            offset: sector.saturating_mul(SECTOR_BYTES),
            bytes: sectors.get() * SECTOR_BYTES as u32,
            may_unmap: flags.get() & MAY_UNMAP != 0,
        })
    }
}
