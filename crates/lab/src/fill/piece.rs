//! [`Piece`]: blocks of one device that came one after another, in eight bytes.

use std::fmt;

const COUNT_BITS: u32 = 16;
const START_BITS: u32 = 42;

/// Blocks of a device, in order of device and block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Piece(u64);

impl Piece {
    /// The most blocks of a piece.
    pub const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;
    /// The most blocks of a device.
    pub const BLOCKS_MAX: u64 = 1 << START_BITS;
    /// The most devices.
    pub const DEVICES_MAX: usize = 1 << (u64::BITS - START_BITS - COUNT_BITS);

    /// `count` blocks of a device from `start` on.
    pub fn new(device: usize, start: u64, count: u64) -> Piece {
        debug_assert!(device < Piece::DEVICES_MAX);
        debug_assert!(start < Piece::BLOCKS_MAX && count <= Piece::COUNT_MAX);
        Piece((device as u64) << (START_BITS + COUNT_BITS) | start << COUNT_BITS | count)
    }

    /// The index of its device.
    pub fn device(self) -> usize {
        (self.0 >> (START_BITS + COUNT_BITS)) as usize
    }

    /// Its first block.
    pub fn start(self) -> u64 {
        self.0 >> COUNT_BITS & (Piece::BLOCKS_MAX - 1)
    }

    /// How many blocks it has.
    pub fn count(self) -> u64 {
        self.0 & Piece::COUNT_MAX
    }

    /// The block behind it.
    pub fn end(self) -> u64 {
        self.start() + self.count()
    }

    /// Its first `count` blocks, and the others if there are any.
    pub fn cut(self, count: u64) -> (Piece, Option<Piece>) {
        if count >= self.count() {
            return (self, None);
        }
        let rest = Piece::new(self.device(), self.start() + count, self.count() - count);
        (Piece::new(self.device(), self.start(), count), Some(rest))
    }
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}+{}", self.device(), self.start(), self.count())
    }
}

#[cfg(test)]
mod tests {
    use super::Piece;

    #[test]
    fn parts_of_a_piece_are_the_whole() {
        for (device, start, count) in [(0, 0, 1), (5, 77, 9), (63, Piece::BLOCKS_MAX - 1, 65_535)] {
            let piece = Piece::new(device, start, count);
            assert_eq!((piece.device(), piece.start(), piece.count()), (device, start, count));
            assert_eq!(piece.cut(count), (piece, None));
        }
        let (front, rest) = Piece::new(3, 10, 8).cut(3);
        assert_eq!((front, rest), (Piece::new(3, 10, 3), Some(Piece::new(3, 13, 5))));
        assert_eq!(front.end(), 13);
    }

    #[test]
    fn pieces_sort_by_device_and_block() {
        let sorted = [Piece::new(0, 9, 900), Piece::new(1, 2, 1), Piece::new(1, 3, 1)];
        assert!(sorted.is_sorted());
    }
}
