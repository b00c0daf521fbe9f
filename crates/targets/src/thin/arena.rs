//! Memory for the entries of a pool's groups: a few large pieces, advised for huge pages. So a
//! lookup among millions of entries does not wait for page tables in addition to its entry.
//!
//! The shard that took a place accesses it under the shard's lock. Its words are atomics only to
//! satisfy the compiler.
//!
//! Memory: the highest number of places ever in use, rounded up by huge pages. Pieces double in
//! size and stay until the pool ends.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use cairn_block::HugeWords;
use cairn_block::sync::Mutex;
use cairn_block::sync::atomic::{AtomicUsize, Ordering};

/// Virtual blocks of a group.
pub(super) const GROUP_BLOCKS: u64 = 64;

/// Places of the first piece: a huge page.
const FIRST_PLACES: u32 = 4096;

/// Each twice the one before: together all places that a slot can name.
const PIECES: usize = 19;

/// Places in use from which on groups should be dropped: 160 MiB, or 2 * 10^7 blocks. Pages that
/// name them take 3 MB, or as much as the places if those lie far apart.
const TAKEN_MAX: usize = 5 << 16;

/// Room for the entries of one group.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Spot(pub u32);

#[derive(Default)]
struct Free {
    /// Places that were given back.
    places: Vec<Spot>,
    /// How many have ever been taken.
    fresh: u32,
}

/// See the module's description.
#[derive(Default)]
pub(super) struct Arena {
    pieces: [OnceLock<HugeWords>; PIECES],
    free: Mutex<Free>,
    taken: AtomicUsize,
}

/// In which piece a place lies, and as which of its places.
fn locate(place: Spot) -> (usize, usize) {
    let nth = place.0 + FIRST_PLACES;
    let piece = nth.ilog2() - FIRST_PLACES.ilog2();
    (piece as usize, (nth - (FIRST_PLACES << piece)) as usize)
}

impl Arena {
    /// A place, with the content of its last holder.
    pub fn take(&self) -> Spot {
        self.taken.fetch_add(1, Ordering::Relaxed);
        let mut free = self.free.lock();
        if let Some(place) = free.places.pop() {
            return place;
        }
        let place = Spot(free.fresh);
        free.fresh += 1;
        let (piece, _) = locate(place);
        let words = (FIRST_PLACES as usize * GROUP_BLOCKS as usize) << piece;
        self.pieces[piece].get_or_init(|| HugeWords::zeroed(words));
        place
    }

    /// Frees places that are no longer in use.
    pub fn give(&self, places: impl IntoIterator<Item = Spot>) {
        let mut free = self.free.lock();
        let before = free.places.len();
        free.places.extend(places);
        self.taken.fetch_sub(free.places.len() - before, Ordering::Relaxed);
    }

    /// True if so many are taken that some should be given back.
    pub fn is_full(&self) -> bool {
        self.taken.load(Ordering::Relaxed) >= TAKEN_MAX
    }

    /// True if the entries are more than the caches near a processor hold.
    pub fn is_vast(&self) -> bool {
        self.taken.load(Ordering::Relaxed) >= FIRST_PLACES as usize
    }

    /// Has the processor fetch one of the words of a place that was taken.
    #[inline(always)]
    pub fn fetch(&self, place: Spot, word: usize) {
        let (piece, at) = locate(place);
        let words = self.pieces[piece].get().expect("made when the place was taken");
        words.fetch(at * GROUP_BLOCKS as usize + word);
    }

    /// The words of a place that was taken.
    #[inline(always)]
    pub fn words(&self, place: Spot) -> &[AtomicU64] {
        let (piece, at) = locate(place);
        let words = self.pieces[piece].get().expect("made when the place was taken");
        &words[at * GROUP_BLOCKS as usize..][..GROUP_BLOCKS as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_do_not_overlap_and_are_used_again() {
        let arena = Arena::default();
        let count = FIRST_PLACES * 3 + 5;
        let places: Vec<Spot> = (0..count).map(|_| arena.take()).collect();
        for (place, value) in places.iter().zip(0..) {
            arena.words(*place).iter().for_each(|word| word.store(value, Ordering::Relaxed));
        }
        for (place, value) in places.iter().zip(0..) {
            let words = arena.words(*place);
            assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == value));
        }
        arena.give(places[7..9].iter().copied());
        let again = [arena.take(), arena.take()];
        assert!(again.iter().all(|place| places[7..9].contains(place)) && again[0] != again[1]);
        assert_eq!(arena.taken.load(Ordering::Relaxed), count as usize);
    }

    #[test]
    fn every_place_that_can_be_named_has_a_piece() {
        // The last bit of a slot is not the place's.
        let last = Spot((1 << 31) - FIRST_PLACES - 1);
        assert_eq!(locate(last).0, PIECES - 1);
        assert_eq!(locate(Spot(FIRST_PLACES)), (1, 0));
        assert_eq!(locate(Spot(FIRST_PLACES - 1)), (0, FIRST_PLACES as usize - 1));
    }
}
