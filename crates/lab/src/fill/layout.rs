//! Where in a cache the blocks lie that came: which bucket has how much of them, and in which
//! order.
//!
//! L1. All that came has a place, in one bucket, and no two extents share blocks.
//! L2. Buckets are filled in their order on the device. A later bucket was filled later.
//!
//! # Rules
//! - [`Pattern::Uniform`], [`Pattern::Clustered`], [`Pattern::OutOfOrder`]: buckets full of dirty
//!   data, then buckets full of clean data, in order of arrival without gaps.
//! - [`Pattern::Fragmented`]: each bucket keeps the given part of its blocks dirty, one block at
//!   least. Clean data has equal shares of what is left in these buckets, and then buckets of its
//!   own. The other blocks were overwritten since.
//! - [`Pattern::Aged`]: a third of what the buckets had was overwritten since, or less where the
//!   buckets would not suffice. Of the dirty data the oldest bucket has almost nothing, as
//!   writeback was there, and each later one more, by equal steps, up to a full bucket. Clean data
//!   has shares of the rest by its size.
//!
//! In buckets of the last two rules dirty, clean and overwritten blocks lie in random order.

use std::fmt;

use fastrand::Rng;

use super::Pattern;
use super::arrivals::{Stream, evenly};
use super::piece::Piece;

/// How many blocks of one bucket are dirty and clean; the others were overwritten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mix {
    /// Dirty blocks.
    pub dirty: u32,
    /// Clean blocks.
    pub clean: u32,
}

/// Where a piece lies: in blocks of the cache, from its first bucket for data on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extent {
    /// Which blocks.
    pub piece: Piece,
    place: u64,
}

const DIRTY: u64 = 1 << 63;

// Memory is what limits an experiment.
const _: () = assert!(size_of::<Extent>() == 16);

impl Extent {
    fn new(piece: Piece, place: u64, is_dirty: bool) -> Extent {
        Extent { piece, place: place | if is_dirty { DIRTY } else { 0 } }
    }

    /// The first block of the cache that it has.
    pub fn place(&self) -> u64 {
        self.place & !DIRTY
    }

    /// True if only the cache has it.
    pub fn is_dirty(&self) -> bool {
        self.place & DIRTY != 0
    }
}

impl fmt::Debug for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dirty = if self.is_dirty() { " dirty" } else { "" };
        write!(f, "{:?} at {}{dirty}", self.piece, self.place())
    }
}

/// How many blocks are dirty and clean in each bucket; a bucket has `room` blocks, and there are
/// `buckets` at most. More than these are answered if they do not suffice.
pub fn mixes(pattern: Pattern, dirty: u64, clean: u64, room: u64, buckets: u64) -> Vec<Mix> {
    match pattern {
        Pattern::Uniform | Pattern::Clustered | Pattern::OutOfOrder => {
            let mut mixes = vec![Mix::default(); dirty.div_ceil(room) as usize];
            fill(&mut mixes, dirty, room, |mix| &mut mix.dirty);
            add_clean(&mut mixes, clean, room);
            mixes
        }
        Pattern::Fragmented { one_in } => {
            let kept = (room / u64::from(one_in)).max(1);
            let mut mixes = vec![Mix::default(); dirty.div_ceil(kept) as usize];
            fill(&mut mixes, dirty, kept, |mix| &mut mix.dirty);
            spread_clean(&mut mixes, clean, room);
            mixes
        }
        Pattern::Aged => {
            let needed = ((dirty + clean) * 3 / 2).div_ceil(room).max((2 * dirty).div_ceil(room));
            let least = (dirty + clean).div_ceil(room);
            let mut mixes = vec![Mix::default(); needed.min(buckets).max(least) as usize];
            age(&mut mixes, dirty, room);
            spread_clean(&mut mixes, clean, room);
            mixes
        }
    }
}

/// Fills one bucket after another.
fn fill(mixes: &mut [Mix], mut left: u64, room: u64, field: impl Fn(&mut Mix) -> &mut u32) {
    for mix in mixes {
        let own = left.min(room);
        *field(mix) = own as u32;
        left -= own;
    }
}

/// Adds buckets of clean data.
fn add_clean(mixes: &mut Vec<Mix>, clean: u64, room: u64) {
    let first = mixes.len();
    mixes.resize(first + clean.div_ceil(room) as usize, Mix::default());
    fill(&mut mixes[first..], clean, room, |mix| &mut mix.clean);
}

/// Shares clean data among the buckets by what the dirty data leaves, and adds buckets of the rest.
fn spread_clean(mixes: &mut Vec<Mix>, clean: u64, room: u64) {
    let left: Vec<u64> = mixes.iter().map(|mix| room - u64::from(mix.dirty)).collect();
    let all = left.iter().sum();
    let spread = clean.min(all);
    for (mix, own) in mixes.iter_mut().zip(evenly(spread, all, left.into_iter())) {
        mix.clean = own as u32;
    }
    add_clean(mixes, clean - spread, room);
}

/// Shares dirty data among the buckets by their age. What is more than a bucket has room for goes
/// to the one before it.
fn age(mixes: &mut [Mix], dirty: u64, room: u64) {
    let count = mixes.len() as u64;
    let weights = (0..count).map(|index| 2 * index + 1);
    let wanted: Vec<u64> = evenly(dirty, count * count, weights).collect();
    let mut over = 0;
    for (mix, wanted) in mixes.iter_mut().zip(wanted).rev() {
        let own = (wanted + over).min(room);
        over = wanted + over - own;
        mix.dirty = own as u32;
    }
    debug_assert_eq!(over, 0, "there are as many buckets as all blocks need");
}

/// Pieces of a stream that are cut to what a bucket has room for.
struct Cutter {
    stream: Stream,
    rest: Option<Piece>,
}

impl Cutter {
    /// The next piece, of `count` blocks at most.
    fn next(&mut self, count: u64) -> Piece {
        let piece = self.rest.take().or_else(|| self.stream.next());
        let piece = piece.expect("as many blocks come as the buckets have");
        let (front, rest) = piece.cut(count);
        self.rest = rest;
        front
    }
}

/// Puts what comes into the buckets of these mixes. Answers the extents by device and block.
pub fn lay_out(
    pattern: Pattern,
    mixes: &[Mix],
    (dirty, clean): (Stream, Stream),
    room: u64,
    rng: &mut Rng,
) -> Vec<Extent> {
    let is_mixed = matches!(pattern, Pattern::Fragmented { .. } | Pattern::Aged);
    let mut dirty = Cutter { stream: dirty, rest: None };
    let mut clean = Cutter { stream: clean, rest: None };
    let mut extents = Vec::new();
    // A piece and whether it is dirty; none for a block that was overwritten.
    let mut content: Vec<Option<(Piece, bool)>> = Vec::new();
    for (bucket, mix) in (0..).zip(mixes) {
        content.clear();
        for (cutter, is_dirty, count) in
            [(&mut dirty, true, mix.dirty), (&mut clean, false, mix.clean)]
        {
            let mut left = u64::from(count);
            while left > 0 {
                let piece = cutter.next(left);
                left -= piece.count();
                content.push(Some((piece, is_dirty)));
            }
        }
        if is_mixed {
            let lost = room - u64::from(mix.dirty) - u64::from(mix.clean);
            content.extend((0..lost).map(|_| None));
            rng.shuffle(&mut content);
        }
        let mut place = bucket * room;
        for item in &content {
            match *item {
                Some((piece, is_dirty)) => {
                    extents.push(Extent::new(piece, place, is_dirty));
                    place += piece.count();
                }
                None => place += 1,
            }
        }
    }
    extents.sort_unstable();
    extents
}

#[cfg(test)]
mod tests;
