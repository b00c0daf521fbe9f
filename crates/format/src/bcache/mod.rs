//! bcache: cache devices and backing devices.
//!
//! A cache device is cut into *buckets*. Data lies in buckets as *extents*; a B-tree of [`Key`]s
//! says where; its nodes are logs of *bsets*, which hold keys ([`node`]). A *journal* ([`journal`])
//! holds the keys that leaves do not have yet, and names the root, the array of volumes ([`uuids`])
//! and the *priorities* ([`priorities`]), which hold each bucket's [`Generation`]. Backing devices
//! have a [`superblock`] alone, which has cairn's write-intent map, too ([`intent`]). A server may
//! keep a map of the dirty zones of a backing device in a file ([`zones`]).
//!
//! A *set* is a cache set: a cache device and its backing devices. A part of a node is a *bset*, a
//! part of the priorities a *prio_set*; what the kernel calls jset is an *entry* of the journal.
//!
//! Sectors have 512 bytes. Keys of a backing device count from the beginning of that device, so
//! that its data begins at its superblock's offset.
//!
//! Source of the layout: the format's documentation, `docs/formats/bcache.md`.

pub mod build;
pub mod check;
mod crc;
mod error;
pub mod extents;
#[cfg(test)]
mod fixture;
mod generation;
mod geometry;
pub mod intent;
pub mod journal;
mod key;
pub mod load;
pub mod node;
pub mod places;
pub mod priorities;
pub mod superblock;
pub mod uuids;
pub mod zones;

use std::fmt;
use std::str::FromStr;

pub use crc::{crc64, crc64_seeded};
pub use error::Error;
pub use generation::{Age, Generation, STALE_MAX};
pub use geometry::{Geometry, SECTOR_BYTES, SECTORS_MAX};
pub use intent::IntentMap;
pub use key::{CHECK_DEVICE, INODE_MAX, Key, KeyError, OFFSET_MAX, Pointer, SIZE_MAX};
pub use superblock::{
    BackingState, BackingSuperblock, CacheMode, CacheSuperblock, DATA_OFFSET, JOURNAL_BUCKETS_MAX,
    NewBacking, NewCache, Replacement, SUPERBLOCK_BYTES, SUPERBLOCK_SECTOR, Superblock,
};
pub use zones::ZoneMap;

/// The identifier of a device or a set.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// No identifier.
    pub const ZERO: Uuid = Uuid([0; 16]);

    /// True if it identifies nothing.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        *self == Uuid::ZERO
    }

    /// The part of the magic numbers that all structures of the set with this identifier share.
    #[must_use]
    pub fn set_magic(&self) -> SetMagic {
        let (first, _) = self.0.split_first_chunk::<8>().expect("it has 16 bytes");
        SetMagic(u64::from_le_bytes(*first))
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            let hyphen = if matches!(at, 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{hyphen}{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Text that is not a UUID.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("found '{0}', expected a UUID of 32 hexadecimal digits")]
pub struct NoUuid(String);

impl FromStr for Uuid {
    type Err = NoUuid;

    fn from_str(text: &str) -> Result<Uuid, NoUuid> {
        let wrong = || NoUuid(text.to_owned());
        let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b'-').collect();
        let mut bytes = [0; 16];
        if digits.len() != 32 {
            return Err(wrong());
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            let digit = |digit: u8| char::from(digit).to_digit(16).ok_or_else(wrong);
            *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
        }
        Ok(Uuid(bytes))
    }
}

/// The part of a set's identifier that is in the magic numbers of its structures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetMagic(u64);

impl SetMagic {
    /// The magic of journal entries.
    #[must_use]
    pub fn journal(self) -> u64 {
        self.0 ^ 0x2452_35c1_a362_5032
    }

    /// The magic of priorities.
    #[must_use]
    pub fn priorities(self) -> u64 {
        self.0 ^ 0x6750_e15f_8733_7f91
    }

    /// The magic of bsets.
    #[must_use]
    pub fn keys(self) -> u64 {
        self.0 ^ 0x9013_5c78_b99e_07f5
    }
}

/// A label up to its first zero or newline: the kernel stores what was behind it in memory, too.
fn label_text(label: &[u8]) -> String {
    let end = label.iter().position(|byte| matches!(byte, 0 | b'\n')).unwrap_or(label.len());
    String::from_utf8_lossy(&label[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::{Uuid, label_text};

    #[test]
    fn a_uuid_reads_as_it_prints() {
        let uuid = Uuid(std::array::from_fn(|at| at as u8 * 17));
        assert_eq!(uuid.to_string(), "00112233-4455-6677-8899-aabbccddeeff");
        assert_eq!(uuid.to_string().parse(), Ok(uuid));
        assert_eq!("00112233445566778899AABBCCDDEEFF".parse(), Ok(uuid));
        for wrong in ["", "0011", "0011223344556677889-aabbccddeeffg"] {
            assert!(wrong.parse::<Uuid>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_label_ends_at_a_newline() {
        assert_eq!(label_text(b"disk\n\x07\x00stack"), "disk");
        assert_eq!(label_text(b"disk\0stack"), "disk");
        assert_eq!(label_text(b"disk"), "disk");
    }
}
