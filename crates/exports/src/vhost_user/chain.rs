//! [`Chain`]: one request of a driver as a ring gives it, and the descriptors of which it consists.
//!
//! Descriptors of split and packed rings have the same fields in another order. What is alike in
//! both rings is here: the limits, the order of pieces, and the copy of an indirect table.

use cairn_block::Segs;

use super::memory::Buffers;
use super::wire::Breach;

/// The most descriptors of a chain, and of a table of indirect ones.
pub(super) const CHAIN_MAX: usize = 1024;

/// Bytes of a descriptor.
pub(super) const DESCRIPTOR_BYTES: usize = 16;

/// Flags of a descriptor.
pub(super) const NEXT: u16 = 1;
pub(super) const WRITE: u16 = 2;
pub(super) const INDIRECT: u16 = 4;

/// One request of the driver.
#[derive(Default)]
pub(super) struct Chain {
    /// Names it when it has been used.
    pub(super) head: u16,
    /// What the device reads.
    pub(super) readable: Segs,
    /// What the device writes.
    pub(super) writable: Segs,
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
        let mut segs = Segs::default();
        if !memory.push(&mut segs, self.guest, self.bytes) {
            return Err(self.outside());
        }
        table.resize(bytes, 0);
        segs.copy_out(0, table);
        Ok(())
    }

    fn outside(&self) -> Breach {
        let found = format!("{} bytes at {:#x}", self.bytes, self.guest);
        Breach::field("descriptor", found, "bytes in shared memory")
    }
}

impl Chain {
    /// Appends the memory that a descriptor names.
    pub(super) fn push(&mut self, descriptor: &Descriptor, memory: &Buffers) -> Result<(), Breach> {
        let is_writable = descriptor.flags & WRITE != 0;
        if !is_writable && self.writable.bytes() > 0 {
            let found = "readable behind writable";
            return Err(Breach::field("descriptor", found, "all readable ones first"));
        }
        let segs = if is_writable { &mut self.writable } else { &mut self.readable };
        match memory.push(segs, descriptor.guest, descriptor.bytes) {
            true => Ok(()),
            false => Err(descriptor.outside()),
        }
    }
}
