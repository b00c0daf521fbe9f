//! A whole cache from a stream of entries, in the order of slots.
//!
//! The slot table is written piece by piece, and its first piece last, as that has the superblock.
//! So a builder that ends early leaves no cache where there was none. It flushes nothing: it is for
//! images that nothing else uses, not for devices whose power may go. The data of the slots is the
//! caller's.
//!
//! Memory: two pieces; not the entries, whose number does not matter.

use super::{ENTRY_BYTES, Entry, Geometry, SECTOR_BYTES, SUPERBLOCK_BYTES, Seq, Superblock};
use crate::WriteSectors;

/// Bytes that are written at once, but for the last ones.
const PIECE_BYTES: u64 = 1 << 20;

/// Why a cache cannot be built.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError<E> {
    /// The system refused to write.
    #[error("cannot be written")]
    Write(E),
    /// There are more entries than slots.
    #[error("slots: found {0}, expected more")]
    Full(u64),
}

/// Builds a cache.
pub struct Builder<W> {
    writer: W,
    geometry: Geometry,
    /// What the table begins with, once a later piece has begun.
    first: Vec<u8>,
    /// The piece that entries go to, and where it begins in the area.
    piece: Vec<u8>,
    piece_begin: u64,
    next_slot: u64,
}

impl<W: WriteSectors> Builder<W> {
    /// A cache without entries; sector 0 of the writer is that of the area.
    #[must_use]
    pub fn new(geometry: Geometry, writer: W) -> Builder<W> {
        let (first, piece) = (Vec::new(), fresh_piece(&geometry, 0));
        Builder { writer, geometry, first, piece, piece_begin: 0, next_slot: 0 }
    }

    /// The entry of the next slot. Answers the slot.
    ///
    /// # Errors
    /// There is no slot left, or the system refused to write.
    pub fn add(&mut self, entry: Entry) -> Result<u64, BuildError<W::Error>> {
        let slot = self.next_slot;
        if slot == self.geometry.n_blocks() {
            return Err(BuildError::Full(slot));
        }
        let offset = self.geometry.entry_offset(slot);
        if offset == self.piece_begin + PIECE_BYTES {
            self.end_piece()?;
        }
        let at = (offset - self.piece_begin) as usize;
        self.piece[at..at + ENTRY_BYTES].copy_from_slice(&entry.encode());
        self.next_slot += 1;
        Ok(slot)
    }

    /// Ends the cache: the slots that are left were never used, and the superblock counts `seq`
    /// commits.
    ///
    /// # Errors
    /// The system refused to write.
    pub fn finish(mut self, seq: Seq) -> Result<(), BuildError<W::Error>> {
        while self.piece_begin + (self.piece.len() as u64) < self.geometry.metadata_bytes() {
            self.end_piece()?;
        }
        self.end_piece()?;
        let superblock = Superblock::fresh(&self.geometry).with_seq(seq).encode();
        self.first[..SUPERBLOCK_BYTES].copy_from_slice(&superblock);
        self.writer.write(0, &self.first).map_err(BuildError::Write)
    }

    /// Writes the piece, or keeps it if it is the first, and begins the one behind it.
    fn end_piece(&mut self) -> Result<(), BuildError<W::Error>> {
        let begin = self.piece_begin;
        self.piece_begin += self.piece.len() as u64;
        let next = fresh_piece(&self.geometry, self.piece_begin);
        let piece = std::mem::replace(&mut self.piece, next);
        if begin == 0 {
            self.first = piece;
            return Ok(());
        }
        self.writer.write(begin / SECTOR_BYTES, &piece).map_err(BuildError::Write)
    }
}

/// The piece from byte `begin` of the area on, without entries; empty behind the metadata.
fn fresh_piece(geometry: &Geometry, begin: u64) -> Vec<u8> {
    let bytes = PIECE_BYTES.min(geometry.metadata_bytes() - begin);
    let mut piece = vec![0; bytes as usize];
    geometry.fill_fresh(&[0; SUPERBLOCK_BYTES], begin, &mut piece);
    piece
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writecache::check::{Limits, check};
    use crate::writecache::{BlockSize, Opening};

    fn geometry(bytes: u64, block_bytes: u32) -> Geometry {
        let block = BlockSize::new(block_bytes).expect("legal");
        Geometry::for_format(bytes, block).expect("it fits")
    }

    /// A cache of which so many slots hold blocks, the last first; and its entries.
    fn built(geometry: &Geometry, count: u64) -> (Vec<u8>, Vec<Entry>) {
        let mut image = Vec::new();
        let mut builder = Builder::new(*geometry, &mut image);
        let block = u64::from(geometry.sectors_per_block());
        let entry =
            |slot: u64| Entry { original_sector: (count - slot) * block, seq: Seq(slot / 8) };
        let entries: Vec<Entry> = (0..count).map(entry).collect();
        for (slot, entry) in entries.iter().enumerate() {
            assert_eq!(builder.add(*entry), Ok(slot as u64));
        }
        builder.finish(Seq(count / 8 + 1)).expect("memory");
        (image, entries)
    }

    #[test]
    fn built_cache_has_its_entries_and_the_other_slots_were_never_used() {
        // The metadata ends within the first piece, within the second, and in whole pieces.
        for (slots, count) in [(100, 0), (100, 60), (70_000, 0), (70_000, 69_000), (131_068, 9)] {
            let geometry = geometry(slots * 528 + 1024, 512);
            let (image, entries) = built(&geometry, count);
            assert_eq!(image.len() as u64, geometry.metadata_bytes());
            let found: Vec<Entry> = geometry.entries_in(0, &image).map(|(_, it)| it).collect();
            assert_eq!(found.len() as u64, geometry.n_blocks());
            assert!(found[..entries.len()] == entries);
            assert!(found[entries.len()..].iter().all(|it| *it == Entry::NEVER_USED));
            let report = check(&image, found, Limits::default());
            assert_eq!((report.findings, report.counts.dirty()), (vec![], count));
        }
    }

    #[test]
    fn superblock_is_written_last() {
        #[derive(Default)]
        struct Order(Vec<u64>);
        impl WriteSectors for Order {
            type Error = std::convert::Infallible;
            fn write(&mut self, sector: u64, _: &[u8]) -> Result<(), Self::Error> {
                self.0.push(sector);
                Ok(())
            }
        }
        let mut order = Order::default();
        let mut builder = Builder::new(geometry(150_000 * 528, 512), &mut order);
        builder.add(Entry::NEVER_USED).expect("memory");
        builder.finish(Seq(1)).expect("memory");
        assert_eq!(order.0, [2048, 4096, 0]);
    }

    #[test]
    fn more_entries_than_slots_are_refused() {
        let geometry = geometry(64 << 10, 4096);
        let mut builder = Builder::new(geometry, Vec::new());
        let slots = geometry.n_blocks();
        (0..slots).for_each(|slot| assert_eq!(builder.add(Entry::NEVER_USED), Ok(slot)));
        assert_eq!(builder.add(Entry::NEVER_USED), Err(BuildError::Full(slots)));
    }

    #[test]
    fn empty_cache_is_what_formatting_makes() {
        let geometry = geometry(1 << 20, 4096);
        let (image, _) = built(&geometry, 0);
        let opened = Opening::decide(&image, geometry.block_size());
        assert_eq!(opened, Ok(Opening::Existing(Superblock::fresh(&geometry).with_seq(Seq(1)))));
        let mut fresh = vec![0; image.len()];
        let superblock = Superblock::fresh(&geometry).with_seq(Seq(1)).encode();
        geometry.fill_fresh(&superblock, 0, &mut fresh);
        assert!(image == fresh);
    }
}
