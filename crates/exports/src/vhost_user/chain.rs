//! [`Chain`]: one request of a driver as a ring gives it, and the descriptors of which it consists.
//!
//! Descriptors of split and packed rings have the same fields in another order. What is alike in
//! both rings is here: the limits, the order of pieces, and the copy of an indirect table.

use cairn_block::Segs;

use super::memory::{Buffers, Piece};
use super::wire::Breach;

/// The most descriptors of a chain, and of a table of indirect ones.
pub(super) const CHAIN_MAX: usize = 1024;

/// Bytes of a descriptor.
pub(super) const DESCRIPTOR_BYTES: usize = 16;

/// Flags of a descriptor.
pub(super) const NEXT: u16 = 1;
pub(super) const WRITE: u16 = 2;
pub(super) const INDIRECT: u16 = 4;

/// One request of the driver. A ring lists its memory once; parts of it are ranges of that list.
/// One chain serves all requests of a ring, one after another, so that none is allocated.
#[derive(Default)]
pub(super) struct Chain {
    /// Names it when it has been used.
    pub(super) head: u16,
    /// What the device reads, then what it writes.
    pieces: Vec<Piece>,
    /// How many of the pieces it reads.
    readable_pieces: usize,
    pub(super) readable_bytes: u64,
    pub(super) writable_bytes: u64,
}

/// A side of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// What the device reads.
    Readable,
    /// What the device writes.
    Writable,
}

/// A piece of memory of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descriptor {
    pub(super) guest: u64,
    pub(super) bytes: u32,
    pub(super) flags: u16,
    /// The next descriptor of the chain in a split ring; the chain's name in a packed one.
    pub(super) link: u16,
}

impl Descriptor {
    /// As a split ring has it.
    pub(super) fn decode_split(bytes: [u8; DESCRIPTOR_BYTES]) -> Descriptor {
        let [guest, rest] = zerocopy::transmute!(bytes);
        let (guest, rest) = (u64::from_le(guest), u64::from_le(rest));
        let (flags, link) = ((rest >> 32) as u16, (rest >> 48) as u16);
        Descriptor { guest, bytes: rest as u32, flags, link }
    }

    /// As a packed ring has it.
    pub(super) fn decode_packed(bytes: [u8; DESCRIPTOR_BYTES]) -> Descriptor {
        let Descriptor { guest, bytes, flags: link, link: flags } = Descriptor::decode_split(bytes);
        Descriptor { guest, bytes, flags, link }
    }

    /// Copies the table of indirect descriptors that this one names.
    pub(super) fn read_table(&self, memory: &Buffers, table: &mut Vec<u8>) -> Result<(), Breach> {
        let bytes = self.bytes as usize;
        let most = CHAIN_MAX * DESCRIPTOR_BYTES;
        if bytes == 0 || bytes > most || !bytes.is_multiple_of(DESCRIPTOR_BYTES) {
            return Err(Breach::field("indirect descriptors", bytes, "1 to 1024 of 16 bytes"));
        }
        table.resize(bytes, 0);
        let mut rest = &mut table[..];
        let copy = |piece: Piece| {
            let (out, behind) = std::mem::take(&mut rest).split_at_mut(piece.bytes as usize);
            memory.load(piece, out);
            rest = behind;
        };
        match memory.find(self.guest, self.bytes, copy) {
            true => Ok(()),
            false => Err(self.outside()),
        }
    }

    fn outside(&self) -> Breach {
        let found = format!("{} bytes at {:#x}", self.bytes, self.guest);
        Breach::field("descriptor", found, "bytes in shared memory")
    }
}

impl Chain {
    /// Begins another one.
    pub(super) fn clear(&mut self) {
        self.pieces.clear();
        (self.readable_pieces, self.readable_bytes, self.writable_bytes) = (0, 0, 0);
    }

    /// Appends the memory that a descriptor names.
    pub(super) fn push(&mut self, descriptor: &Descriptor, memory: &Buffers) -> Result<(), Breach> {
        let is_writable = descriptor.flags & WRITE != 0;
        if !is_writable && self.writable_bytes > 0 {
            let found = "readable behind writable";
            return Err(Breach::field("descriptor", found, "all readable ones first"));
        }
        let append = |piece| self.pieces.push(piece);
        if !memory.find(descriptor.guest, descriptor.bytes, append) {
            return Err(descriptor.outside());
        }
        match is_writable {
            true => self.writable_bytes += u64::from(descriptor.bytes),
            false => {
                self.readable_bytes += u64::from(descriptor.bytes);
                self.readable_pieces = self.pieces.len();
            }
        }
        Ok(())
    }

    /// The pieces that make up `bytes` bytes of a side behind its first `skipped` ones.
    fn part(&self, side: Side, skipped: u64, bytes: u64) -> impl Iterator<Item = Piece> {
        let (readable, writable) = self.pieces.split_at(self.readable_pieces);
        let pieces = if side == Side::Readable { readable } else { writable };
        let (mut skip, mut left) = (skipped, bytes);
        pieces.iter().filter_map(move |piece| {
            let skipped = skip.min(piece.bytes.into());
            let piece = piece.skip(skipped as u32);
            let piece = piece.first(left.min(piece.bytes.into()) as u32);
            (skip, left) = (skip - skipped, left - u64::from(piece.bytes));
            (piece.bytes > 0).then_some(piece)
        })
    }

    /// Copies the bytes at the begin of what the device reads, of which there are so many.
    pub(super) fn load(&self, memory: &Buffers, skipped: u64, out: &mut [u8]) {
        let mut rest = out;
        for piece in self.part(Side::Readable, skipped, rest.len() as u64) {
            let (out, behind) = std::mem::take(&mut rest).split_at_mut(piece.bytes as usize);
            memory.load(piece, out);
            rest = behind;
        }
        assert!(rest.is_empty(), "read beyond the end of a chain");
    }

    /// The last byte that the device writes.
    pub(super) fn last_writable(&self) -> Option<Piece> {
        let last = self.pieces[self.readable_pieces..].iter().rev().find(|it| it.bytes > 0)?;
        Some(last.skip(last.bytes - 1))
    }

    /// The `bytes` bytes of a side behind its first `skipped` ones, as requests name memory.
    pub(super) fn segs(&self, memory: &Buffers, side: Side, skipped: u64, bytes: u64) -> Segs {
        let mut segs = Segs::default();
        self.part(side, skipped, bytes).for_each(|piece| memory.push(&mut segs, piece));
        segs
    }
}
