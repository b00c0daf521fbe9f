//! What a watched request says at its end: its class, the epoch that it entered, and a number.

use crate::epochs::Epoch;

/// What a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// A read from the cache device; it entered the epoch of readers.
    Hit,
    /// A write to the cache device; it entered the epoch of writers.
    Insert,
    /// A write to the backing device.
    Around,
}

/// See the module's description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word {
    pub class: Class,
    pub epoch: Epoch,
    /// Of an insertion: the sector of the cache device where the data goes. Of a write around the
    /// cache: the low bits of the failures of the backing device that were known.
    pub number: u64,
}

const CLASS_SHIFT: u32 = 60;
const EPOCH_SHIFT: u32 = 56;

impl Word {
    /// For [`cairn_block::Request::watch`].
    pub fn to_word(self) -> u64 {
        (self.class as u64) << CLASS_SHIFT | self.epoch.to_word() << EPOCH_SHIFT | self.number
    }

    /// Of the word.
    pub fn of_word(word: u64) -> Word {
        let class = match word >> CLASS_SHIFT {
            0 => Class::Hit,
            1 => Class::Insert,
            _ => Class::Around,
        };
        let epoch = Epoch::of_word(word >> EPOCH_SHIFT & 0xf);
        Word { class, epoch, number: word & ((1 << EPOCH_SHIFT) - 1) }
    }
}
