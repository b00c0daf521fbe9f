//! The header, its extensions and the name of the backing image: all within the first cluster.
//!
//! Promises that a [`Header`]'s L1 table is as long as the content needs, not longer than
//! [`L1_ENTRIES_MAX`], and lies in the image; that no feature is in use that changes how content is
//! found, but those that are read here; not that any table is sound.

use core::mem::{offset_of, size_of};

use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::Error;
use crate::field::Field;

/// The first four bytes of an image.
pub const MAGIC: u32 = 0x5146_49fb;
/// Clusters are at least 2^9 bytes.
pub const CLUSTER_BITS_MIN: u32 = 9;
/// Clusters are at most 2^21 bytes, as qemu has it.
pub const CLUSTER_BITS_MAX: u32 = 21;
/// The longest L1 table: 32 MiB, as qemu has it.
pub const L1_ENTRIES_MAX: u64 = 4 << 20;
/// Bytes of the longest header that is known.
pub const HEADER_BYTES: usize = 112;
/// How many of the first bytes [`Prologue::parse`] wants.
pub const PROLOGUE_BYTES: usize = 24;

const V2_BYTES: usize = 72;
const V3_BYTES: usize = 104;
pub(super) const NAME_BYTES_MAX: u32 = 1023;
/// With subclusters: at least 16 KiB, so that one is at least a sector.
const EXTENDED_CLUSTER_BITS_MIN: u32 = 14;

const EXTENSION_END: u32 = 0;
pub(super) const EXTENSION_BACKING_FORMAT: u32 = 0xe279_2aca;

const CORRUPT: u64 = 1 << 1;
const DIRTY: u64 = 1;
const EXTERNAL_DATA: u64 = 1 << 2;
const COMPRESSION_TYPE: u64 = 1 << 3;
const EXTENDED_L2: u64 = 1 << 4;

/// The header as it lies in the image. Version 2 ends before `incompatible_features`.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RawHeader {
    pub(super) magic: U32,
    pub(super) version: U32,
    pub(super) backing_file_offset: U64,
    pub(super) backing_file_size: U32,
    pub(super) cluster_bits: U32,
    pub(super) size: U64,
    crypt_method: U32,
    pub(super) l1_size: U32,
    pub(super) l1_table_offset: U64,
    pub(super) refcount_table_offset: U64,
    pub(super) refcount_table_clusters: U32,
    pub(super) nb_snapshots: U32,
    pub(super) snapshots_offset: U64,
    incompatible_features: U64,
    compatible_features: U64,
    pub(super) autoclear_features: U64,
    pub(super) refcount_order: U32,
    pub(super) header_length: U32,
    compression_type: u8,
    padding: [u8; 7],
}

macro_rules! field {
    ($name:ident, $size:expr) => {
        Field { name: stringify!($name), offset: offset_of!(RawHeader, $name), size: $size }
    };
}

/// Where each field of the header lies.
pub const HEADER_FIELDS: [Field; 20] = [
    field!(magic, 4),
    field!(version, 4),
    field!(backing_file_offset, 8),
    field!(backing_file_size, 4),
    field!(cluster_bits, 4),
    field!(size, 8),
    field!(crypt_method, 4),
    field!(l1_size, 4),
    field!(l1_table_offset, 8),
    field!(refcount_table_offset, 8),
    field!(refcount_table_clusters, 4),
    field!(nb_snapshots, 4),
    field!(snapshots_offset, 8),
    field!(incompatible_features, 8),
    field!(compatible_features, 8),
    field!(autoclear_features, 8),
    field!(refcount_order, 4),
    field!(header_length, 4),
    field!(compression_type, 1),
    field!(padding, 7),
];

const _: () = {
    assert!(size_of::<RawHeader>() == HEADER_BYTES);
    assert!(offset_of!(RawHeader, size) == PROLOGUE_BYTES);
    assert!(offset_of!(RawHeader, incompatible_features) == V2_BYTES);
    assert!(offset_of!(RawHeader, compression_type) == V3_BYTES);
};

/// How compressed clusters are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Deflate, without a header.
    Deflate,
    /// Zstandard.
    Zstd,
}

/// The image that shows where an image has nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backing {
    /// Its name, as the image has it.
    pub name: String,
    /// Its format, if the image tells one.
    pub format: Option<String>,
}

/// What tells how long the header can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prologue {
    /// Bytes of a cluster. The header, with everything that belongs to it, is in the first one.
    pub cluster_bytes: u64,
}

impl Prologue {
    /// Reads the first [`PROLOGUE_BYTES`] of an image.
    ///
    /// # Errors
    /// This is no image, or none of a known version or cluster size.
    pub fn parse(bytes: &[u8]) -> Result<Prologue, Error> {
        let truncated = || truncated("header", bytes.len() as u64, PROLOGUE_BYTES as u64);
        let word = |at: usize| {
            let four = bytes.get(at..at + 4).and_then(|four| four.try_into().ok());
            four.map(u32::from_be_bytes).ok_or_else(truncated)
        };
        match word(0)? {
            MAGIC => {}
            found => return Err(Error::WrongMagic { found }),
        }
        match word(4)? {
            2 | 3 => {}
            found => return Err(bad("version", found.into(), "2 or 3")),
        }
        match word(20)? {
            bits @ CLUSTER_BITS_MIN..=CLUSTER_BITS_MAX => Ok(Prologue { cluster_bytes: 1 << bits }),
            found => {
                let expected = format!("{CLUSTER_BITS_MIN} to {CLUSTER_BITS_MAX}");
                Err(bad("cluster_bits", found.into(), expected))
            }
        }
    }
}

/// A header that says where all content is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Bytes of the content.
    pub size: u64,
    /// The image that shows where this one has nothing.
    pub backing: Option<Backing>,
    /// How its compressed clusters are compressed.
    pub compression: Compression,
    /// A program found damage in the image and marked it. It may be read.
    pub is_corrupt: bool,
    /// Its refcounts may be wrong, which changes nothing for a reader.
    pub is_dirty: bool,
    pub(super) cluster_bits: u32,
    /// Clusters have 32 subclusters each, and entries of L2 tables two words.
    pub(super) is_extended: bool,
    /// Version 2 has no zero flags, and refcounts of 16 bits.
    pub(super) is_version_3: bool,
    pub(super) l1_table: u64,
    /// Where its extensions end at the latest.
    pub(super) extensions_end: u64,
    /// Bytes of the image itself.
    pub(super) image_bytes: u64,
}

impl Header {
    /// Reads the header of an image of `image_bytes` from its first bytes: as many as a cluster has
    /// ([`Prologue`]), or all of a shorter image.
    ///
    /// # Errors
    /// It is none, or has a feature that is not read.
    pub fn parse(bytes: &[u8], image_bytes: u64) -> Result<Header, Error> {
        let cluster_bytes = Prologue::parse(bytes)?.cluster_bytes;
        let (raw, length) = raw(bytes, cluster_bytes)?;
        let features = raw.incompatible_features.get();
        let compression = compression(features, raw.compression_type)?;
        refuse_unread(&raw, features)?;
        let mut header = Header {
            size: raw.size.get(),
            backing: None,
            compression,
            is_corrupt: features & CORRUPT != 0,
            is_dirty: features & DIRTY != 0,
            cluster_bits: raw.cluster_bits.get(),
            is_extended: features & EXTENDED_L2 != 0,
            is_version_3: raw.version.get() >= 3,
            l1_table: raw.l1_table_offset.get(),
            extensions_end: match raw.backing_file_offset.get() {
                0 => cluster_bytes.min(bytes.len() as u64),
                name => name,
            },
            image_bytes,
        };
        if header.is_extended && header.cluster_bits < EXTENDED_CLUSTER_BITS_MIN {
            let expected = format!("at least {EXTENDED_CLUSTER_BITS_MIN} with subclusters");
            return Err(bad("cluster_bits", header.cluster_bits.into(), expected));
        }
        header.check_l1(raw.l1_size.get().into())?;
        header.backing = backing(&raw, bytes, length, cluster_bytes)?;
        Ok(header)
    }

    fn check_l1(&self, entries: u64) -> Result<(), Error> {
        let needed = self.size.div_ceil(self.l1_span());
        if needed > L1_ENTRIES_MAX {
            let most = L1_ENTRIES_MAX * self.l1_span();
            return Err(bad("size", self.size, format!("at most {most} with this cluster size")));
        }
        if entries < needed {
            return Err(bad("l1_size", entries, format!("at least {needed} for this size")));
        }
        if !self.l1_table.is_multiple_of(self.cluster_bytes()) {
            return Err(bad("l1_table_offset", self.l1_table, "a multiple of the cluster size"));
        }
        match self.l1_table.checked_add(needed * 8) {
            Some(end) if end <= self.image_bytes => Ok(()),
            end => Err(truncated("L1 table", self.image_bytes, end.unwrap_or(u64::MAX))),
        }
    }

    /// Bytes of a cluster.
    #[must_use]
    pub fn cluster_bytes(&self) -> u64 {
        1 << self.cluster_bits
    }
}

/// The header, and where its extensions begin. Of an image of version 2 the fields of version 3 are
/// zero.
pub(super) fn raw(bytes: &[u8], cluster_bytes: u64) -> Result<(RawHeader, u64), Error> {
    // A later version of the header has more fields.
    let mut fixed = [0; HEADER_BYTES];
    let known = bytes.len().min(HEADER_BYTES);
    fixed[..known].copy_from_slice(&bytes[..known]);
    let parse = |fixed: &[u8; HEADER_BYTES]| {
        RawHeader::read_from_bytes(fixed)
            .map_err(|_| truncated("header", known as u64, HEADER_BYTES as u64))
    };
    let length = header_length(&parse(&fixed)?, bytes.len() as u64, cluster_bytes)?;
    fixed[usize::try_from(length).unwrap_or(HEADER_BYTES).min(HEADER_BYTES)..].fill(0);
    Ok((parse(&fixed)?, length))
}

/// The length of the header: its extensions follow.
fn header_length(raw: &RawHeader, given: u64, cluster_bytes: u64) -> Result<u64, Error> {
    let (least, length) = match raw.version.get() {
        2 => (V2_BYTES as u64, V2_BYTES as u64),
        _ => (V3_BYTES as u64, raw.header_length.get().into()),
    };
    if given < least {
        return Err(truncated("header", given, least));
    }
    if !(least..=cluster_bytes).contains(&length) {
        let expected = format!("{least} to {cluster_bytes}");
        return Err(bad("header_length", length, expected));
    }
    if length > given {
        return Err(truncated("header", given, length));
    }
    Ok(length)
}

fn compression(features: u64, kind: u8) -> Result<Compression, Error> {
    let is_told = features & COMPRESSION_TYPE != 0;
    match kind {
        0 if !is_told => Ok(Compression::Deflate),
        1 if is_told => Ok(Compression::Zstd),
        0 | 1 => {
            let expected = if is_told { "1: the feature bit is set" } else { "0" };
            Err(bad("compression_type", kind.into(), expected))
        }
        _ => Err(Error::Unsupported { what: format!("compression type {kind}") }),
    }
}

fn refuse_unread(raw: &RawHeader, features: u64) -> Result<(), Error> {
    let unsupported = |what: &str| Err(Error::Unsupported { what: what.to_owned() });
    match raw.crypt_method.get() {
        0 => {}
        1 => return unsupported("encryption (AES)"),
        2 => return unsupported("encryption (LUKS)"),
        found => return Err(bad("crypt_method", found.into(), "0")),
    }
    if features & EXTERNAL_DATA != 0 {
        return unsupported("data in a file of its own");
    }
    let known = DIRTY | CORRUPT | COMPRESSION_TYPE | EXTENDED_L2;
    match features & !known {
        0 => Ok(()),
        unknown => unsupported(&format!("incompatible feature {}", unknown.trailing_zeros())),
    }
}

fn backing(
    raw: &RawHeader,
    bytes: &[u8],
    extensions: u64,
    cluster_bytes: u64,
) -> Result<Option<Backing>, Error> {
    let (offset, len) = (raw.backing_file_offset.get(), raw.backing_file_size.get());
    if offset == 0 {
        return Ok(None);
    }
    if len == 0 || len > NAME_BYTES_MAX {
        let expected = format!("1 to {NAME_BYTES_MAX}");
        return Err(bad("backing_file_size", len.into(), expected));
    }
    let len = u64::from(len);
    if offset < extensions || offset > cluster_bytes - len.min(cluster_bytes) {
        let expected = "a place in the first cluster, behind the header";
        return Err(bad("backing_file_offset", offset, expected));
    }
    let name = within(bytes, offset, len);
    let name = name.ok_or_else(|| truncated("backing file", bytes.len() as u64, offset + len))?;
    let name = text("backing file", name)?;
    let format = backing_format(bytes, extensions..offset)?;
    Ok(Some(Backing { name, format }))
}

/// The backing format among the extensions, which end where the name begins.
fn backing_format(bytes: &[u8], range: core::ops::Range<u64>) -> Result<Option<String>, Error> {
    let found = extension(bytes, range, EXTENSION_BACKING_FORMAT)?;
    found.map(|found| text("backing format", found)).transpose()
}

/// The data of the extension of this kind, if there is one in a range of the first cluster.
pub(super) fn extension(
    bytes: &[u8],
    range: core::ops::Range<u64>,
    wanted: u32,
) -> Result<Option<&[u8]>, Error> {
    let mut at = range.start;
    while range.end - at >= 8 {
        let head = within(bytes, at, 8);
        let head = head.ok_or_else(|| truncated("extension", bytes.len() as u64, at + 8))?;
        let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|i| head[at + i]));
        let (kind, len) = (word(0), u64::from(word(4)));
        at += 8;
        if kind == EXTENSION_END {
            break;
        }
        if len > range.end - at {
            let expected = format!("at most {}", range.end - at);
            return Err(bad("length of an extension", len, expected));
        }
        if kind == wanted {
            let data = within(bytes, at, len);
            let end = bytes.len() as u64;
            return data.ok_or_else(|| truncated("extension", end, at + len)).map(Some);
        }
        at = at.saturating_add(len.next_multiple_of(8)).min(range.end);
    }
    Ok(None)
}

fn within(bytes: &[u8], at: u64, len: u64) -> Option<&[u8]> {
    let (at, len) = (usize::try_from(at).ok()?, usize::try_from(len).ok()?);
    bytes.get(at..at.checked_add(len)?)
}

fn text(field: &'static str, bytes: &[u8]) -> Result<String, Error> {
    String::from_utf8(bytes.to_vec()).map_err(|_| Error::NoText { field })
}

pub(super) fn truncated(field: &'static str, end: u64, expected: u64) -> Error {
    Error::Truncated { field, end, expected }
}

pub(super) fn bad(field: &'static str, found: u64, expected: impl Into<String>) -> Error {
    Error::BadField { field, found, expected: expected.into() }
}
