//! What a watched request says at its end: its class, the epoch that it entered, how long it waited
//! before it was mapped, and a number.
//!
//! ```text
//! bits       63..60  59..56  55..43   42..0
//! hit        class   epoch   waited   number: a sector of the cache device, which has 43 bits
//! insert     class   epoch   waited   number: the same
//! overwrite  class   epoch   waited   number: the same
//! around     class   epoch   number: the fill, 24 bits; failures of the backing device, 32 bits
//! held       class   epoch   number: the same
//! miss       class   epoch   number: the fill
//! ```

use std::time::Duration;

use cairn_block::{Env, Request};

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
    /// A read from the backing device whose data enters the cache.
    Miss,
    /// A write in place to the cache device; it entered the epoch of overwriters.
    Overwrite,
    /// A write to the backing device that is answered when it is durable.
    Held,
}

/// See the module's description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word {
    pub class: Class,
    pub epoch: Epoch,
    /// From its start until it was mapped; zero if the class keeps no such time.
    pub waited: Waited,
    /// Of a hit, an insertion or an overwrite: the sector of the cache device. Of a write around
    /// the cache: the low bits of the failures of the backing device that were known, and above
    /// them the number of its fill. Of a miss: that of its fill.
    pub number: u64,
}

/// The time from the start of a request until it was mapped: it may have waited for a bucket, or in
/// a layer above. It is kept in whole units, rounded up, so what is left is the most that the lower
/// device can have taken less than a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Waited(u64);

impl Waited {
    /// About a millisecond, in nanoseconds.
    const UNIT: u64 = 1 << 20;
    /// Longer than can be told.
    const LONG: u64 = (1 << (EPOCH_SHIFT - WAITED_SHIFT)) - 1;

    /// Of a request that is mapped now.
    pub fn until_now(env: &Env, request: &Request) -> Waited {
        let waited = env.now().since(request.started()).as_nanos() as u64;
        Waited(waited.div_ceil(Waited::UNIT).min(Waited::LONG))
    }

    /// How long the lower device took for a request that ends now; zero if that cannot be told.
    pub fn took(self, env: &Env, request: &Request) -> Duration {
        if self.0 == Waited::LONG {
            return Duration::ZERO;
        }
        let all = env.now().since(request.started());
        all.saturating_sub(Duration::from_nanos(self.0 * Waited::UNIT))
    }
}

const CLASS_SHIFT: u32 = 60;
const EPOCH_SHIFT: u32 = 56;
const WAITED_SHIFT: u32 = 43;

impl Class {
    /// Where the number of this class ends, and the time begins that it waited, if that is kept.
    fn number_bits(self) -> u32 {
        match self {
            Class::Hit | Class::Insert | Class::Overwrite => WAITED_SHIFT,
            Class::Around | Class::Held | Class::Miss => EPOCH_SHIFT,
        }
    }
}

impl Word {
    /// For [`cairn_block::Request::watch`].
    pub fn to_word(self) -> u64 {
        let Word { class, epoch, waited, number } = self;
        let bits = class.number_bits();
        debug_assert!(number >> bits == 0, "the number has its bits");
        debug_assert!(bits < EPOCH_SHIFT || waited == Waited::default(), "no time is kept");
        let head = (class as u64) << CLASS_SHIFT | epoch.to_word() << EPOCH_SHIFT;
        head | waited.0 << WAITED_SHIFT | number
    }

    /// Of the word.
    pub fn of_word(word: u64) -> Word {
        let class = match word >> CLASS_SHIFT {
            0 => Class::Hit,
            1 => Class::Insert,
            2 => Class::Around,
            3 => Class::Miss,
            4 => Class::Overwrite,
            _ => Class::Held,
        };
        let epoch = Epoch::of_word(word >> EPOCH_SHIFT & 0xf);
        let bits = class.number_bits();
        let waited = (word & ((1 << EPOCH_SHIFT) - 1)) >> bits;
        Word { class, epoch, waited: Waited(waited), number: word & ((1 << bits) - 1) }
    }
}

#[cfg(test)]
mod tests {
    use super::{Class, Epoch, Waited, Word};

    #[test]
    fn words_keep_all_their_parts() {
        use Class::{Around, Hit, Insert, Miss};
        let sector = (1 << 43) - 1;
        for (class, epoch, waited, number) in [
            (Hit, 0, 0, 0),
            (Hit, 1, 0, 1),
            (Hit, 0, 1, sector),
            (Insert, 1, Waited::LONG, 1 << 42),
            (Insert, 0, Waited::LONG, sector),
            (Around, 1, 0, 1 << 43),
            (Around, 0, 0, (1 << 56) - 1),
            (Miss, 0, 0, (1 << 24) - 1),
        ] {
            let (epoch, waited) = (Epoch::of_word(epoch), Waited(waited));
            let word = Word { class, epoch, waited, number };
            assert_eq!(Word::of_word(word.to_word()), word);
        }
    }
}
