//! Nodes of the tree: a log of bsets, each written once behind the one before it.
//!
//! Reading gives the sound bsets from the first on and, if the log does not end there, what is
//! wrong: the last bset may be one that was being written when the power failed. A node is a log,
//! so a reader that leaves out a damaged bset sees the keys from before that bset.
//!
//! Bsets of one node have one random number, the sequence; where it changes the log ends. Bsets of
//! what the bucket held before have another one.

use std::mem::{offset_of, size_of};

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::crc::{crc64, crc64_seeded};
use super::extents::overlay;
use super::{Key, KeyError, OFFSET_MAX, Pointer, SetMagic};
use crate::Field;

/// Bytes of the header of a bset.
pub const SET_HEADER_BYTES: usize = 32;
/// The version that is written.
const VERSION: u32 = 1;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHeader {
    csum: U64,
    magic: U64,
    seq: U64,
    version: U32,
    keys: U32,
}

const _: () = {
    assert!(size_of::<RawHeader>() == SET_HEADER_BYTES);
    assert!(offset_of!(RawHeader, seq) == 16);
};

macro_rules! field {
    ($name:ident, $size:expr) => {
        Field { name: stringify!($name), offset: offset_of!(RawHeader, $name), size: $size }
    };
}

/// Where each field of the header of a bset lies.
pub const BSET_FIELDS: [Field; 5] =
    [field!(csum, 8), field!(magic, 8), field!(seq, 8), field!(version, 4), field!(keys, 4)];

/// A node as far as it is sound.
#[derive(Debug)]
pub struct Node<'a> {
    sets: Vec<Bset<'a>>,
    /// The random number of its bsets; none without a sound bset.
    seq: Option<u64>,
    /// Where the next bset goes, in bytes.
    end: usize,
    fault: Option<NodeFault>,
}

/// A bset: keys of a node that were written together.
#[derive(Debug, Clone, Copy)]
pub struct Bset<'a> {
    /// Where it begins in the node, in bytes.
    pub at: usize,
    words: &'a [U64],
}

/// What is wrong with a node, and where in it, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("bset at byte {at}: {what}")]
pub struct NodeFault {
    /// Where the bset begins.
    pub at: usize,
    /// What is wrong.
    pub what: BsetFault,
}

/// What is wrong with a bset.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BsetFault {
    /// The node is shorter than a header.
    #[error("found {0} bytes, expected {SET_HEADER_BYTES} at least")]
    Short(usize),
    /// Something else lies there.
    #[error("magic: found {found:#018x}, expected {expected:#018x}")]
    Magic {
        /// Magic on the device.
        found: u64,
        /// Magic of the cache set.
        expected: u64,
    },
    /// A version that this format does not have.
    #[error("version: found {0}, expected 0 or 1")]
    Version(u32),
    /// It goes beyond the end of the node.
    #[error("keys: found {found} words, expected at most {expected}")]
    Length {
        /// Words that the header counts.
        found: u32,
        /// Words up to the end of the node.
        expected: usize,
    },
    /// The bytes changed since they were written, or were never written in full.
    #[error("checksum: found {found:#018x}, expected {expected:#018x}")]
    Checksum {
        /// Checksum on the device.
        found: u64,
        /// Checksum of the bytes.
        expected: u64,
    },
    /// A bset behind the first without keys: none is written.
    #[error("keys: found none, expected one at least")]
    Empty,
    /// A bset of this node behind the end of its log.
    #[error("found a bset of this node behind the end of its log, expected none")]
    BehindEnd,
    /// A key that does not decode, or is not in order.
    #[error("key {index}: {what}")]
    Key {
        /// Which key of the bset.
        index: usize,
        /// What is wrong.
        what: KeyFault,
    },
}

/// What is wrong with a key of a bset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyFault {
    /// It does not decode.
    #[error(transparent)]
    Decode(#[from] KeyError),
    /// It begins before its volume, or reaches beyond the highest position.
    #[error("found {found:?} out of range, expected an extent of sectors 0 to {OFFSET_MAX}")]
    Range {
        /// The key.
        found: Key,
    },
    /// It begins before the end of the one before it.
    #[error("found {found:?} behind {before:?}, expected extents in order")]
    Order {
        /// The key before it.
        before: Key,
        /// The key.
        found: Key,
    },
}

impl<'a> Node<'a> {
    /// Reads a node from its bytes. `pointer` is that of the key that leads to it.
    #[must_use]
    pub fn read(bytes: &'a [u8], pointer: Pointer, magic: SetMagic, block_bytes: usize) -> Self {
        let mut node = Node { sets: Vec::new(), seq: None, end: 0, fault: None };
        while node.end < bytes.len() {
            let at = node.end;
            match read_set(&bytes[at..], node.seq, pointer, magic) {
                Ok(Some((found, words))) => {
                    node.seq = Some(found);
                    node.sets.push(Bset { at, words });
                    let length = SET_HEADER_BYTES + words.len() * 8;
                    node.end = (at + length).next_multiple_of(block_bytes).min(bytes.len());
                }
                Ok(None) => break,
                Err(what) => {
                    node.fault = Some(NodeFault { at, what });
                    return node;
                }
            }
        }
        let behind = (node.end..bytes.len()).step_by(block_bytes);
        let mut late = behind.filter(|at| node.seq.is_some() && seq_at(bytes, *at) == node.seq);
        node.fault = late.next().map(|at| NodeFault { at, what: BsetFault::BehindEnd });
        node
    }

    /// The sound bsets behind damage that ends at byte `from`, or at the end of the sound log if
    /// that is later; oldest first. `bytes` are those that the node was read from. No damage is
    /// behind these bsets, so that their keys are newer than all that the damage took.
    #[must_use]
    pub fn behind_damage(
        &self,
        bytes: &'a [u8],
        from: usize,
        pointer: Pointer,
        magic: SetMagic,
        block_bytes: usize,
    ) -> Vec<Bset<'a>> {
        let (mut sets, mut seq, mut at) = (Vec::new(), self.seq, self.end.max(from));
        while at < bytes.len() {
            let mut length = block_bytes;
            match read_set(&bytes[at..], seq, pointer, magic) {
                // The checksum of version 1 alone covers the pointer, which former nodes lack.
                Ok(Some(_)) if seq.is_none() && !has_seeded_checksum(&bytes[at..]) => {}
                Ok(Some((found, words))) => {
                    seq = Some(found);
                    sets.push(Bset { at, words });
                    length = (SET_HEADER_BYTES + words.len() * 8).next_multiple_of(block_bytes);
                }
                Ok(None) => {}
                Err(_) => sets.clear(),
            }
            at += length;
        }
        sets
    }

    /// The sound bsets, oldest first.
    #[must_use]
    pub fn sets(&self) -> &[Bset<'a>] {
        &self.sets
    }

    /// The random number that all its bsets have; none if not even the first one is sound.
    #[must_use]
    pub fn seq(&self) -> Option<u64> {
        self.seq
    }

    /// Where the next bset goes, in bytes.
    #[must_use]
    pub fn end(&self) -> usize {
        self.end
    }

    /// What is wrong behind the sound bsets.
    #[must_use]
    pub fn fault(&self) -> Option<&NodeFault> {
        self.fault.as_ref()
    }

    /// The extents of a leaf: what newer bsets have hides what older ones have. Holes are among
    /// them; remnants without a length are not.
    ///
    /// # Errors
    /// A bset with a sound checksum has a key that does not decode or is out of range, or keys that
    /// overlap.
    pub fn extents(&self) -> Result<Vec<Key>, NodeFault> {
        extents_of(&self.sets)
    }

    /// The keys of an interior node, in the order of the bsets: children, and keys at position 0
    /// that free former ones.
    ///
    /// # Errors
    /// A key does not decode.
    pub fn children(&self) -> Result<Vec<Key>, NodeFault> {
        let mut children = Vec::new();
        for set in &self.sets {
            for (index, key) in set.keys().enumerate() {
                let fault = |error: KeyError| set.fault(index, error.into());
                children.push(key.map_err(fault)?);
            }
        }
        Ok(children)
    }
}

impl<'a> Bset<'a> {
    /// The keys up to the first that does not decode.
    pub fn keys(&self) -> impl Iterator<Item = Result<Key, KeyError>> + use<'a> {
        keys(self.words)
    }

    fn fault(&self, index: usize, what: KeyFault) -> NodeFault {
        NodeFault { at: self.at, what: BsetFault::Key { index, what } }
    }

    fn read_extents(&self, extents: &mut Vec<Key>) -> Result<(), NodeFault> {
        for (index, key) in self.keys().enumerate() {
            let found = key.map_err(|error| self.fault(index, error.into()))?;
            if found.sectors() == 0 {
                continue;
            }
            if !found.is_in_range() {
                return Err(self.fault(index, KeyFault::Range { found }));
            }
            match extents.last() {
                Some(before) if before.position() > found.begin() => {
                    return Err(self.fault(index, KeyFault::Order { before: *before, found }));
                }
                _ => extents.push(found),
            }
        }
        Ok(())
    }
}

/// The extents of these bsets of a leaf, oldest first: what newer ones have hides what older ones
/// have.
///
/// # Errors
/// As [`Node::extents`].
pub(super) fn extents_of(sets: &[Bset<'_>]) -> Result<Vec<Key>, NodeFault> {
    let mut extents: Vec<Key> = Vec::new();
    let mut newer = Vec::new();
    let mut merged = Vec::new();
    for set in sets {
        newer.clear();
        set.read_extents(&mut newer)?;
        if extents.is_empty() {
            std::mem::swap(&mut extents, &mut newer);
            continue;
        }
        merged.clear();
        overlay(&extents, &newer, &mut merged);
        std::mem::swap(&mut extents, &mut merged);
    }
    Ok(extents)
}

/// The keys of an area, up to the first that does not decode.
pub(super) fn keys(mut words: &[U64]) -> impl Iterator<Item = Result<Key, KeyError>> {
    std::iter::from_fn(move || {
        if words.is_empty() {
            return None;
        }
        let decoded = Key::decode(words);
        words = decoded.map_or(&[], |(_, count)| &words[count..]);
        Some(decoded.map(|(key, _)| key))
    })
}

/// The bset at the beginning of `bytes`: its sequence and words; none where the log ends.
fn read_set(
    bytes: &[u8],
    seq: Option<u64>,
    pointer: Pointer,
    magic: SetMagic,
) -> Result<Option<(u64, &[U64])>, BsetFault> {
    let Ok((raw, rest)) = RawHeader::ref_from_prefix(bytes) else {
        return if seq.is_some() { Ok(None) } else { Err(BsetFault::Short(bytes.len())) };
    };
    let found = raw.seq.get();
    if seq.is_some_and(|seq| seq != found) {
        return Ok(None);
    }
    if raw.magic.get() != magic.keys() {
        return Err(BsetFault::Magic { found: raw.magic.get(), expected: magic.keys() });
    }
    let count = raw.keys.get() as usize;
    let Ok((words, _)) = <[U64]>::ref_from_prefix_with_elems(rest, count) else {
        return Err(BsetFault::Length { found: raw.keys.get(), expected: rest.len() / 8 });
    };
    let covered = &bytes[8..SET_HEADER_BYTES + count * 8];
    let expected = match raw.version.get() {
        0 => crc64(covered),
        VERSION => crc64_seeded(pointer.0, covered),
        version => return Err(BsetFault::Version(version)),
    };
    if raw.csum.get() != expected {
        return Err(BsetFault::Checksum { found: raw.csum.get(), expected });
    }
    if seq.is_some() && count == 0 {
        return Err(BsetFault::Empty);
    }
    Ok(Some((found, words)))
}

fn has_seeded_checksum(bytes: &[u8]) -> bool {
    RawHeader::ref_from_prefix(bytes).is_ok_and(|(raw, _)| raw.version.get() == VERSION)
}

fn seq_at(bytes: &[u8], at: usize) -> Option<u64> {
    RawHeader::ref_from_prefix(&bytes[at..]).ok().map(|(raw, _)| raw.seq.get())
}

/// Appends a bset to `out`, padded with zeros to whole blocks.
///
/// `pointer` is that of the key that leads to the node. Keys of leaves must be in order.
pub fn encode_set<'k>(
    out: &mut Vec<u8>,
    pointer: Pointer,
    magic: SetMagic,
    seq: u64,
    keys: impl IntoIterator<Item = &'k Key>,
    block_bytes: usize,
) {
    let begin = out.len();
    out.extend_from_slice(&[0; SET_HEADER_BYTES]);
    for word in keys.into_iter().flat_map(Key::words) {
        out.extend_from_slice(&word.to_le_bytes());
    }
    let words = (out.len() - begin - SET_HEADER_BYTES) / 8;
    let mut raw = RawHeader {
        csum: U64::ZERO,
        magic: U64::new(magic.keys()),
        seq: U64::new(seq),
        version: U32::new(VERSION),
        keys: U32::new(words as u32),
    };
    out[begin..begin + SET_HEADER_BYTES].copy_from_slice(raw.as_bytes());
    raw.csum = U64::new(crc64_seeded(pointer.0, &out[begin + 8..]));
    out[begin..begin + SET_HEADER_BYTES].copy_from_slice(raw.as_bytes());
    let length = (out.len() - begin).next_multiple_of(block_bytes);
    out.resize(begin + length, 0);
}

#[cfg(test)]
mod tests;
