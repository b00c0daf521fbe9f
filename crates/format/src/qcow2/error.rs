//! What can be wrong with an image, in one line: field, found, expected. The caller prints the
//! image first.

use super::MAGIC;

/// A fault of the header or of an entry, or a feature that is not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// This is no qcow2 image.
    #[error("magic: found {found:#010x}, expected {MAGIC:#010x}, that of qcow2")]
    WrongMagic {
        /// The first four bytes.
        found: u32,
    },
    /// The image ends too early.
    #[error("{field}: found the image's end at byte {end}, expected at least {expected} bytes")]
    Truncated {
        /// What should be there.
        field: &'static str,
        /// Bytes of the image.
        end: u64,
        /// Bytes that are needed.
        expected: u64,
    },
    /// A number that no image may have.
    #[error("{field}: found {found}, expected {expected}")]
    BadField {
        /// The field.
        field: &'static str,
        /// Its value.
        found: u64,
        /// What it may be.
        expected: String,
    },
    /// A text that is no UTF-8.
    #[error("{field}: found bytes that are no UTF-8, expected UTF-8")]
    NoText {
        /// The field.
        field: &'static str,
    },
    /// Something that a correct image may have, and that cairn does not read.
    #[error("{what}: cairn does not read such images; `qemu-img convert` makes one without it")]
    Unsupported {
        /// What it is.
        what: String,
    },
    /// Something that a correct image may have, and with which it is not taken for writing.
    #[error(
        "{what}: the target does not take such images; make a new one with this one as its backing \
         image, or `qemu-img convert` it"
    )]
    NotWritten {
        /// What it is.
        what: String,
    },
    /// The image has to be repaired before it is written.
    #[error("{what}; `qemu-img check -r all` repairs it")]
    ToRepair {
        /// What is wrong.
        what: String,
    },
    /// A correct image may be so large, and a check does not take it.
    #[error("{what}: found {found}, a check takes at most {most}")]
    TooLarge {
        /// What there are too many of.
        what: &'static str,
        /// How many there are.
        found: u64,
        /// The most.
        most: u64,
    },
    /// An entry of a table that no image may have.
    #[error("{table} entry for byte {guest}: found {found:#x}, {expected}")]
    BadEntry {
        /// The level: L1 or L2, and whether it is of a snapshot.
        table: &'static str,
        /// The offset in the image's content that it is for.
        guest: u64,
        /// The entry.
        found: u64,
        /// What it should be.
        expected: &'static str,
    },
}

impl Error {
    /// True if the image may be correct, but not one that is read.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        matches!(
            self,
            Error::Unsupported { .. } | Error::NotWritten { .. } | Error::TooLarge { .. }
        )
    }
}
