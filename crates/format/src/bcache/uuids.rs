//! The array of uuids: one entry for each volume that the set has or had; its index is the inode of
//! the volume's keys.
//!
//! It has no checksum of its own. Entries that a volume once had stay, marked by a UUID of their
//! own, since keys of their inode may be left.

use std::mem::{offset_of, size_of};

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Uuid, label_text};
use crate::Field;

/// Bytes of an entry.
pub const ENTRY_BYTES: usize = 128;
/// Bytes of an entry of the old layout.
pub const LEGACY_ENTRY_BYTES: usize = 64;
/// What an entry has as its UUID once its volume was detached.
pub const INVALIDATED: Uuid = Uuid([
    0xa0, 0x3e, 0xf8, 0xed, 0x3e, 0xe1, 0xb8, 0x78, 0xc8, 0x50, 0xfc, 0x5e, 0xcb, 0x16, 0xcd, 0x99,
]);

const FLAG_FLASH_ONLY: u32 = 1;

/// What an entry begins with in both layouts.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHead {
    uuid: [u8; 16],
    label: [u8; 32],
    first_reg: U32,
    last_reg: U32,
    invalidated: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawEntry {
    head: RawHead,
    flags: U32,
    sectors: U64,
    pad: [u8; 56],
}

#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawLegacyEntry {
    head: RawHead,
    pad: U32,
}

macro_rules! field {
    ($of:ident, $name:ident, $size:expr) => {
        Field { name: stringify!($name), offset: offset_of!($of, $name), size: $size }
    };
}

/// Where each field of an entry lies.
pub const UUID_FIELDS: [Field; 8] = [
    field!(RawHead, uuid, 16),
    field!(RawHead, label, 32),
    field!(RawHead, first_reg, 4),
    field!(RawHead, last_reg, 4),
    field!(RawHead, invalidated, 4),
    field!(RawEntry, flags, 4),
    field!(RawEntry, sectors, 8),
    field!(RawEntry, pad, 56),
];

const _: () = {
    assert!(offset_of!(RawEntry, head) == 0);
    assert!(size_of::<RawEntry>() == ENTRY_BYTES);
    assert!(size_of::<RawLegacyEntry>() == LEGACY_ENTRY_BYTES);
};

/// A volume that the set has or had.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UuidEntry {
    /// Of the volume: of its backing device, where it has one.
    pub uuid: Uuid,
    /// A name.
    pub label: [u8; 32],
    /// When it was first registered, in seconds of Unix time.
    pub first_registered: u32,
    /// When it was last registered.
    pub last_registered: u32,
    /// When it was detached; 0 if it was not.
    pub invalidated: u32,
    /// All flags.
    pub flags: u32,
    /// The size of a volume without a backing device, in sectors.
    pub sectors: u64,
}

impl UuidEntry {
    /// A volume of so many sectors without a backing device, that is made at this time, in seconds
    /// of Unix time.
    #[must_use]
    pub fn flash_only(uuid: Uuid, sectors: u64, now_s: u32) -> UuidEntry {
        UuidEntry {
            uuid,
            first_registered: now_s,
            last_registered: now_s,
            flags: FLAG_FLASH_ONLY,
            sectors,
            ..UuidEntry::default()
        }
    }

    /// True if the slot was never used.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.uuid.is_zero()
    }

    /// True if it stands for a volume that the set has.
    #[must_use]
    pub fn is_live(&self) -> bool {
        !self.is_empty() && self.uuid != INVALIDATED
    }

    /// True if the volume has no backing device: all its data is in the cache alone.
    #[must_use]
    pub fn is_flash_only(&self) -> bool {
        self.flags & FLAG_FLASH_ONLY != 0
    }

    /// The label, up to its first zero or newline.
    #[must_use]
    pub fn label_text(&self) -> String {
        label_text(&self.label)
    }
}

/// The entries in these bytes, `is_long` or in the old layout. The index of each is its inode.
#[must_use]
pub fn read(bytes: &[u8], is_long: bool) -> Vec<UuidEntry> {
    if is_long {
        let (entries, _) =
            <[RawEntry]>::ref_from_prefix_with_elems(bytes, bytes.len() / ENTRY_BYTES)
                .expect("they were counted");
        return entries.iter().map(long).collect();
    }
    let count = bytes.len() / LEGACY_ENTRY_BYTES;
    let (entries, _) =
        <[RawLegacyEntry]>::ref_from_prefix_with_elems(bytes, count).expect("they were counted");
    entries.iter().map(|raw| of_head(&raw.head)).collect()
}

fn long(raw: &RawEntry) -> UuidEntry {
    UuidEntry { flags: raw.flags.get(), sectors: raw.sectors.get(), ..of_head(&raw.head) }
}

/// An entry of a backing device.
fn of_head(head: &RawHead) -> UuidEntry {
    UuidEntry {
        uuid: Uuid(head.uuid),
        label: head.label,
        first_registered: head.first_reg.get(),
        last_registered: head.last_reg.get(),
        invalidated: head.invalidated.get(),
        flags: 0,
        sectors: 0,
    }
}

/// The `bytes` of the array, in the 128-byte layout. Entries beyond its room are left out.
#[must_use]
pub fn encode(entries: &[UuidEntry], bytes: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes);
    for entry in entries.iter().take(bytes / ENTRY_BYTES) {
        let mut raw = RawEntry::new_zeroed();
        raw.head.uuid = entry.uuid.0;
        raw.head.label = entry.label;
        raw.head.first_reg = U32::new(entry.first_registered);
        raw.head.last_reg = U32::new(entry.last_registered);
        raw.head.invalidated = U32::new(entry.invalidated);
        raw.flags = U32::new(entry.flags);
        raw.sectors = U64::new(entry.sectors);
        out.extend_from_slice(raw.as_bytes());
    }
    out.resize(bytes, 0);
    out
}

#[cfg(test)]
mod tests {
    use super::{INVALIDATED, UuidEntry, encode, read};
    use crate::bcache::Uuid;

    fn entry(byte: u8) -> UuidEntry {
        UuidEntry {
            uuid: Uuid([byte; 16]),
            label: [byte; 32],
            first_registered: 1,
            last_registered: 2,
            invalidated: 3,
            flags: 1,
            sectors: 1 << 40,
        }
    }

    #[test]
    fn entries_read_as_they_were_written() {
        let entries = [entry(1), UuidEntry::default(), entry(9)];
        let bytes = encode(&entries, 4096);
        let found = read(&bytes, true);
        assert_eq!(found.len(), 32);
        assert_eq!(found[..3], entries);
        assert!(found[3].is_empty() && found[0].is_live() && found[0].is_flash_only());
        let detached = UuidEntry { uuid: INVALIDATED, ..entry(1) };
        assert!(!detached.is_live() && !detached.is_empty());
    }

    #[test]
    fn entries_of_the_old_layout_are_half_as_long() {
        let mut bytes = vec![0; 4096];
        bytes[64..80].copy_from_slice(&[5; 16]);
        bytes[80..84].copy_from_slice(b"disk");
        bytes[112] = 7;
        let found = read(&bytes, false);
        assert_eq!(found.len(), 64);
        assert_eq!(found[1].uuid, Uuid([5; 16]));
        assert_eq!((found[1].label_text().as_str(), found[1].first_registered), ("disk", 7));
        assert!(!found[1].is_flash_only());
    }
}
