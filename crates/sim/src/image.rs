//! [`Image`]: the contents of a drive, sparse and cheap to clone.
//!
//! Clones share chunks of 4 KiB until one of them writes. Sectors that were never written read as
//! zero.

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_block::{SECTOR_BYTES, Sector, SectorCount, SectorRange};

const CHUNK: usize = 4096;
const SECTOR: usize = SECTOR_BYTES as usize;
/// Sectors of a chunk.
const PER_CHUNK: u64 = (CHUNK / SECTOR) as u64;

/// The bytes of a drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    sectors: SectorCount,
    chunks: BTreeMap<u64, Arc<[u8; CHUNK]>>,
}

impl Image {
    /// An image of zeros.
    pub fn new(sectors: SectorCount) -> Image {
        Image { sectors, chunks: BTreeMap::new() }
    }

    /// An image of these bytes, padded with zeros to a whole sector.
    pub fn of_bytes(bytes: &[u8]) -> Image {
        let sectors = SectorCount(bytes.len().div_ceil(SECTOR) as u64);
        let mut image = Image::new(sectors);
        for (index, sector) in bytes.chunks(SECTOR).enumerate() {
            let mut whole = [0; SECTOR];
            whole[..sector.len()].copy_from_slice(sector);
            image.write(Sector(index as u64), &whole);
        }
        image
    }

    /// The size in sectors.
    pub fn sectors(&self) -> SectorCount {
        self.sectors
    }

    /// Makes the image longer (with zeros) or shorter.
    pub fn resize(&mut self, sectors: SectorCount) {
        if sectors < self.sectors {
            let lost = SectorRange::between(Sector(sectors.0), Sector(self.sectors.0));
            self.zero(lost);
        }
        self.sectors = sectors;
    }

    /// Copies whole sectors from `start` into `out`.
    pub fn read(&self, start: Sector, out: &mut [u8]) {
        self.check(start, out.len());
        for (index, piece) in out.chunks_mut(SECTOR).enumerate() {
            let at = (start.to_bytes() as usize) + index * SECTOR;
            match self.chunks.get(&((at / CHUNK) as u64)) {
                Some(chunk) => piece.copy_from_slice(&chunk[at % CHUNK..at % CHUNK + SECTOR]),
                None => piece.fill(0),
            }
        }
    }

    /// One sector.
    pub fn sector(&self, sector: Sector) -> [u8; SECTOR] {
        let mut out = [0; SECTOR];
        self.read(sector, &mut out);
        out
    }

    /// Writes whole sectors from `start`.
    pub fn write(&mut self, start: Sector, bytes: &[u8]) {
        self.write_with(start, bytes, false);
    }

    /// The same, and zeros take memory.
    pub(crate) fn write_all(&mut self, start: Sector, bytes: &[u8]) {
        self.write_with(start, bytes, true);
    }

    fn write_with(&mut self, start: Sector, bytes: &[u8], keeps_zeros: bool) {
        self.check(start, bytes.len());
        for (index, piece) in bytes.chunks(SECTOR).enumerate() {
            let at = (start.to_bytes() as usize) + index * SECTOR;
            let key = (at / CHUNK) as u64;
            let is_zero = || piece.iter().all(|&byte| byte == 0);
            if !keeps_zeros && !self.chunks.contains_key(&key) && is_zero() {
                continue;
            }
            let chunk = self.chunks.entry(key).or_insert_with(|| Arc::new([0; CHUNK]));
            let chunk = Arc::make_mut(chunk);
            chunk[at % CHUNK..at % CHUNK + SECTOR].copy_from_slice(piece);
        }
    }

    /// Sets a range to zero.
    pub fn zero(&mut self, range: SectorRange) {
        for sector in range.start.0..range.end().0 {
            self.write(Sector(sector), &[0; SECTOR]);
        }
    }

    /// Sets a range to zero, and gives back the memory of the chunks that lie in it.
    pub(crate) fn forget(&mut self, range: SectorRange) {
        let (first, last) = (range.start.0.div_ceil(PER_CHUNK), range.end().0 / PER_CHUNK);
        if first >= last {
            return self.zero(range);
        }
        self.zero(SectorRange::between(range.start, Sector(first * PER_CHUNK)));
        self.zero(SectorRange::between(Sector(last * PER_CHUNK), range.end()));
        let inside: Vec<u64> = self.chunks.range(first..last).map(|(&key, _)| key).collect();
        for key in inside {
            self.chunks.remove(&key);
        }
    }

    /// The ranges that were written, in pieces.
    pub(crate) fn written(&self) -> impl Iterator<Item = SectorRange> {
        self.written_in(SectorRange::new(Sector(0), self.sectors))
    }

    /// The ranges inside of one that were written, in pieces.
    pub(crate) fn written_in(&self, range: SectorRange) -> impl Iterator<Item = SectorRange> {
        let keys = range.start.0 / PER_CHUNK..range.end().0.div_ceil(PER_CHUNK);
        self.chunks.range(keys).map(move |(key, _)| {
            let (start, end) = (Sector(key * PER_CHUNK), Sector((key + 1) * PER_CHUNK));
            SectorRange::between(start.max(range.start), end.min(range.end()))
        })
    }

    /// All bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = vec![0; usize::try_from(self.sectors.to_bytes()).expect("it is in memory")];
        self.read(Sector(0), &mut out);
        out
    }

    fn check(&self, start: Sector, bytes: usize) {
        assert!(bytes.is_multiple_of(SECTOR), "an image is read and written by whole sectors");
        let range = SectorRange::new(start, SectorCount::of_bytes(bytes as u64));
        assert!(range.fits_in(self.sectors), "{range} lies outside of {}", self.sectors);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_sectors_read_back_and_the_rest_is_zero() {
        let mut image = Image::new(SectorCount(100));
        image.write(Sector(7), &[3; 2 * SECTOR]);
        let copy = image.clone();
        image.write(Sector(8), &[4; SECTOR]);
        assert_eq!(copy.sector(Sector(8)), [3; SECTOR], "a clone does not follow");
        let all = image.to_vec();
        assert!(all[..7 * SECTOR].iter().all(|&byte| byte == 0));
        assert!(all[7 * SECTOR..8 * SECTOR].iter().all(|&byte| byte == 3));
        assert!(all[8 * SECTOR..9 * SECTOR].iter().all(|&byte| byte == 4));
        assert!(all[9 * SECTOR..].iter().all(|&byte| byte == 0));
        assert_eq!(Image::of_bytes(&all).to_vec(), all);
    }

    #[test]
    fn forgotten_ranges_are_zero_and_take_no_memory() {
        let mut image = Image::new(SectorCount(100));
        image.write(Sector(0), &[3; 40 * SECTOR]);
        image.forget(SectorRange::new(Sector(6), SectorCount(20)));
        for sector in 0..40 {
            let expected = if (6..26).contains(&sector) { [0; SECTOR] } else { [3; SECTOR] };
            assert_eq!(image.sector(Sector(sector)), expected, "sector {sector}");
        }
        let written: Vec<_> = image.written().map(|range| (range.start.0, range.count.0)).collect();
        assert_eq!(written, [(0, 8), (24, 8), (32, 8)]);
        let inside = image.written_in(SectorRange::new(Sector(26), SectorCount(8)));
        let inside: Vec<_> = inside.map(|range| (range.start.0, range.count.0)).collect();
        assert_eq!(inside, [(26, 6), (32, 2)]);
    }

    #[test]
    fn shrinking_drops_the_sectors_beyond_the_end() {
        let mut image = Image::new(SectorCount(16));
        image.write(Sector(12), &[1; SECTOR]);
        image.resize(SectorCount(10));
        image.resize(SectorCount(16));
        assert_eq!(image.sector(Sector(12)), [0; SECTOR]);
    }
}
