//! Stamps: test data from which a sector's write can be told.
//!
//! A stamped sector names its own position, the write and the seed of the run. The rest of its
//! bytes follow from these, so a torn, misdirected or mixed sector is never taken for a whole one.

use cairn_block::{SECTOR_BYTES, Sector, SectorRange};

const SECTOR: usize = SECTOR_BYTES as usize;
const MAGIC: u64 = u64::from_le_bytes(*b"CRNSTAMP");
const GARBAGE: u64 = u64::from_le_bytes(*b"CRNTRASH");

/// What a sector holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Content {
    /// Zeros.
    Zero,
    /// The data of write `id` in the run with `seed`.
    Write {
        /// The write's number.
        id: u64,
        /// The run's seed.
        seed: u64,
    },
    /// The data that a write put at another sector.
    Misplaced {
        /// Where it belongs.
        sector: u64,
        /// The write's number.
        id: u64,
    },
    /// The data that a drive may leave after a discard.
    Garbage,
    /// Anything else, as a hash.
    Other(u64),
}

fn mix(mut word: u64) -> u64 {
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
}

/// A hash of bytes, the same on every machine.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    words(bytes).fold(bytes.len() as u64, |hash, word| mix(hash.rotate_left(5) ^ word))
}

fn stamped_words(sector: u64, id: u64, seed: u64) -> impl Iterator<Item = u64> {
    let key = mix(sector ^ mix(id ^ mix(seed)));
    let head = [MAGIC, sector, id, seed];
    head.into_iter().chain((4..).map(move |index: u64| key.wrapping_mul(index | 1)))
}

/// What stamped data names: the sector that it was made for, the write, and the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub sector: u64,
    pub id: u64,
    pub seed: u64,
}

/// The stamp of 512 bytes that are stamped, as a whole.
pub(crate) fn stamp_of(bytes: &[u8]) -> Option<Stamp> {
    let mut head = words(bytes);
    let [magic, sector, id, seed] = std::array::from_fn(|_| head.next().expect("a whole sector"));
    let is_whole =
        || stamped_words(sector, id, seed).zip(words(bytes)).all(|(own, found)| own == found);
    (magic == MAGIC && is_whole()).then_some(Stamp { sector, id, seed })
}

/// The 512 bytes of a stamp.
pub(crate) fn stamped_sector(Stamp { sector, id, seed }: Stamp) -> [u8; SECTOR] {
    let mut out = [0; SECTOR];
    for (bytes, word) in out.chunks_mut(8).zip(stamped_words(sector, id, seed)) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    out
}

/// The data of write `id` for `range`.
pub(crate) fn stamped(range: SectorRange, id: u64, seed: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(range.to_bytes() as usize);
    for sector in range.start.0..range.end().0 {
        out.extend(stamped_sector(Stamp { sector, id, seed }));
    }
    out
}

/// The data that a drive may leave in a discarded range.
pub(crate) fn garbage(rng: &mut fastrand::Rng, range: SectorRange) -> Vec<u8> {
    let mut out = Vec::with_capacity(range.to_bytes() as usize);
    for _ in 0..range.count.0 {
        let fill = rng.u64(..);
        out.extend(GARBAGE.to_le_bytes());
        (1..SECTOR / 8).for_each(|_| out.extend(fill.to_le_bytes()));
    }
    out
}

impl Content {
    /// Classifies 512 bytes found at `sector`.
    pub fn of(sector: Sector, bytes: &[u8]) -> Content {
        assert_eq!(bytes.len(), SECTOR);
        if bytes.iter().all(|&byte| byte == 0) {
            return Content::Zero;
        }
        let head = |index: usize| words(&bytes[index * 8..]).next();
        let is_garbage =
            head(0) == Some(GARBAGE) && words(&bytes[8..]).all(|word| Some(word) == head(1));
        if is_garbage {
            return Content::Garbage;
        }
        match stamp_of(bytes) {
            Some(Stamp { sector: at, id, seed }) if at == sector.0 => Content::Write { id, seed },
            Some(Stamp { sector: at, id, .. }) => Content::Misplaced { sector: at, id },
            None => Content::Other(hash(bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_block::SectorCount;

    #[test]
    fn contents_of_a_sector_are_classified_by_their_stamp() {
        let range = SectorRange::new(Sector(40), SectorCount(2));
        let data = stamped(range, 7, 99);
        let (first, second) = data.split_at(SECTOR);
        assert_eq!(Content::of(Sector(40), first), Content::Write { id: 7, seed: 99 });
        assert_eq!(Content::of(Sector(40), second), Content::Misplaced { sector: 41, id: 7 });
        let mut torn = second.to_vec();
        torn[500] ^= 1;
        assert!(matches!(Content::of(Sector(41), &torn), Content::Other(_)));
        assert_eq!(Content::of(Sector(0), &[0; SECTOR]), Content::Zero);
        let trash = garbage(&mut fastrand::Rng::with_seed(1), range);
        assert_eq!(Content::of(Sector(9), &trash[SECTOR..]), Content::Garbage);
    }
}
