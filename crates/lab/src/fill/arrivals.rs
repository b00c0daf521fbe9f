//! Which blocks of the backing devices are in a cache, in the order in which they came.
//!
//! A1. No block comes twice.
//! A2. Of each device as many blocks come, dirty and clean, as were asked for.
//! A3. The order depends on the seed alone.
//!
//! # Rules
//! *Single blocks* ([`Pattern::Uniform`], [`Pattern::Fragmented`]) lie anywhere on their device,
//! each block as probable as another; their devices alternate by chance, by what each has left.
//!
//! *Runs* are blocks in a row. Their lengths are powers of two blocks, and each length has the same
//! share of the data: from one block up to [`RUN_BYTES`] for [`Pattern::Clustered`] and
//! [`Pattern::Aged`], from 64 KiB for [`Pattern::OutOfOrder`]. So where a block has 4 KiB, single
//! blocks are half of the runs and a ninth of the data. The gaps between the runs of a region are
//! uniform, around the mean that its data leaves. The runs come in random order.
//!
//! *Regions*: `Clustered` and `Aged` put nine tenths of the data into regions of [`REGION_BYTES`],
//! anywhere on the device, of which three quarters are cached; the rest is spread evenly over the
//! others. Where that needs more than the device, all is one region. `OutOfOrder` spreads its runs
//! evenly over the device; each run comes whole, its blocks in random order.

use fastrand::Rng;

use super::Pattern;
use super::piece::Piece;
use crate::permutation::Permutation;

/// Bytes of the longest run.
const RUN_BYTES: u64 = 1 << 20;
/// Bytes of the shortest run whose blocks come out of order.
const SHUFFLED_BYTES: u64 = 64 << 10;
/// Bytes of a region: two zones of the writeback planner.
const REGION_BYTES: u64 = 64 << 20;
/// A device has at least so many regions.
const REGIONS_MIN: u64 = 16;

/// What is cached of one device, in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Blocks of the device.
    pub blocks: u64,
    /// Dirty ones.
    pub dirty: u64,
    /// Clean ones.
    pub clean: u64,
}

impl Share {
    fn cached(&self) -> u64 {
        self.dirty + self.clean
    }
}

/// Pieces in the order in which they came.
pub type Stream = Box<dyn Iterator<Item = Piece>>;

/// The dirty pieces and the clean ones, for blocks of so many bytes.
pub fn arrivals(
    pattern: Pattern,
    shares: &[Share],
    block_bytes: u64,
    rng: &mut Rng,
) -> (Stream, Stream) {
    let longest = (RUN_BYTES / block_bytes).max(1).ilog2();
    let shuffled = (SHUFFLED_BYTES / block_bytes).max(2).ilog2();
    let any = Lengths { least: 0, most: longest };
    match pattern {
        Pattern::Uniform | Pattern::Fragmented { .. } => singles(shares, rng),
        Pattern::Clustered | Pattern::Aged => {
            let region = Some(REGION_BYTES / block_bytes);
            let (dirty, clean) = runs(shares, any, region, rng);
            (Box::new(dirty.into_iter()), Box::new(clean.into_iter()))
        }
        Pattern::OutOfOrder => {
            let lengths = Lengths { least: shuffled, most: longest.max(shuffled) };
            let (dirty, clean) = runs(shares, lengths, None, rng);
            (out_of_order(dirty, rng.fork()), out_of_order(clean, rng.fork()))
        }
    }
}

// Single blocks.

/// The blocks of one device that are still to come.
struct Rest {
    order: Permutation,
    next: u64,
    end: u64,
}

fn singles(shares: &[Share], rng: &mut Rng) -> (Stream, Stream) {
    let orders: Vec<Permutation> =
        shares.iter().map(|share| Permutation::new(share.blocks, rng)).collect();
    let rests = |range: fn(&Share) -> (u64, u64)| {
        let rests = shares.iter().zip(&orders).map(|(share, order)| {
            let (next, end) = range(share);
            Rest { order: *order, next, end }
        });
        rests.collect::<Vec<_>>()
    };
    let dirty = rests(|share| (0, share.dirty));
    let clean = rests(|share| (share.dirty, share.cached()));
    (alternating(dirty, rng.fork()), alternating(clean, rng.fork()))
}

/// Takes the next block of a device, by chance: the more a device has left, the more often.
fn alternating(mut rests: Vec<Rest>, mut rng: Rng) -> Stream {
    let mut left: u64 = rests.iter().map(|rest| rest.end - rest.next).sum();
    Box::new(std::iter::from_fn(move || {
        if left == 0 {
            return None;
        }
        let mut chosen = rng.u64(..left);
        left -= 1;
        for (device, rest) in rests.iter_mut().enumerate() {
            let own = rest.end - rest.next;
            if chosen < own {
                rest.next += 1;
                return Some(Piece::new(device, rest.order.at(rest.next - 1), 1));
            }
            chosen -= own;
        }
        unreachable!("one of them has what is left")
    }))
}

// Runs.

/// The lengths of runs: powers of two, with these exponents.
#[derive(Clone, Copy)]
struct Lengths {
    least: u32,
    most: u32,
}

impl Lengths {
    /// The length of a run. Twice as long is half as probable, so that each has the same data.
    fn draw(self, rng: &mut Rng) -> u64 {
        let above = self.most - self.least;
        let steps = std::iter::repeat_with(|| rng.u64(..).trailing_zeros());
        let step = steps.into_iter().find(|step| *step <= above);
        1 << (self.least + step.expect("most draws are 0"))
    }

    /// About how many runs so many blocks are, and one at least.
    fn runs_of(self, blocks: u64) -> u64 {
        let classes = u64::from(self.most - self.least + 1);
        // The mean is `classes * 2^least / (2 - 2^-(classes - 1))`.
        (blocks * 2 / (classes << self.least)).max(1)
    }
}

/// Blocks of a device in a row, of which some are cached.
#[derive(Clone, Copy)]
struct Part {
    begin: u64,
    blocks: u64,
    cached: u64,
}

/// The runs of all devices in the order in which they come, the dirty ones and the clean ones. A
/// region has so many blocks; without regions a device is one.
fn runs(
    shares: &[Share],
    lengths: Lengths,
    region: Option<u64>,
    rng: &mut Rng,
) -> (Vec<Piece>, Vec<Piece>) {
    let cached: u64 = shares.iter().map(Share::cached).sum();
    let mut all = Vec::with_capacity(lengths.runs_of(cached) as usize);
    for (device, share) in shares.iter().enumerate() {
        let parts = match region {
            None => vec![Part { begin: 0, blocks: share.blocks, cached: share.cached() }],
            Some(region) => regions(share, region, rng),
        };
        for part in parts {
            runs_within(part, lengths, rng, |start, count| {
                all.push(Piece::new(device, start, count));
            });
        }
    }
    rng.shuffle(&mut all);
    divide(shares, all)
}

/// The regions of a device, with what is cached of each.
fn regions(share: &Share, region: u64, rng: &mut Rng) -> Vec<Part> {
    let region = region.min(share.blocks / REGIONS_MIN).max(1);
    let count = share.blocks.div_ceil(region);
    let order = Permutation::new(count, rng);
    // Nine tenths of what is cached, of which a region takes three quarters of its blocks.
    let hot = (share.cached() * 6 / 5).div_ceil(region).min(count);
    let part_at = |index| {
        let begin = order.at(index) * region;
        Part { begin, blocks: region.min(share.blocks - begin), cached: 0 }
    };
    let mut parts: Vec<Part> = (0..count).map(part_at).collect();
    let (hot, cold) = parts.split_at_mut(hot as usize);
    let blocks_of = |parts: &[Part]| parts.iter().map(|part| part.blocks).sum::<u64>();
    let (hot_blocks, cold_blocks) = (blocks_of(hot), blocks_of(cold));
    let least = share.cached().saturating_sub(hot_blocks);
    let in_cold = (share.cached() / 10).min(cold_blocks).max(least);
    for (parts, blocks, cached) in
        [(hot, hot_blocks, share.cached() - in_cold), (cold, cold_blocks, in_cold)]
    {
        let shares = evenly(cached, blocks, parts.iter().map(|part| part.blocks));
        let shares: Vec<u64> = shares.collect();
        parts.iter_mut().zip(shares).for_each(|(part, cached)| part.cached = cached);
    }
    parts
}

/// Divides an amount among parts by their weights, whose sum is `all`. No part gets more than its
/// share rounded up, and together they get all.
pub fn evenly(
    amount: u64,
    all: u64,
    weights: impl Iterator<Item = u64>,
) -> impl Iterator<Item = u64> {
    let upto = move |weight: u64| {
        (u128::from(amount) * u128::from(weight) / u128::from(all.max(1))) as u64
    };
    weights.scan(0, move |before, weight| {
        let own = upto(*before + weight) - upto(*before);
        *before += weight;
        Some(own)
    })
}

/// Runs and gaps in turn, by rising blocks, until all that is cached of a part is in runs.
fn runs_within(part: Part, lengths: Lengths, rng: &mut Rng, mut put: impl FnMut(u64, u64)) {
    let (mut at, mut left) = (part.begin, part.cached);
    let mut free = part.blocks - part.cached;
    while left > 0 {
        // As many gaps as runs, and the rest behind them.
        let gap = rng.u64(..=2 * free / (lengths.runs_of(left) + 1));
        let count = lengths.draw(rng).min(left);
        put(at + gap, count);
        at += gap + count;
        left -= count;
        free -= gap;
    }
}

/// The pieces with the first blocks of each device, as many as are dirty of it, and the others.
fn divide(shares: &[Share], pieces: Vec<Piece>) -> (Vec<Piece>, Vec<Piece>) {
    let mut dirty_left: Vec<u64> = shares.iter().map(|share| share.dirty).collect();
    let (mut dirty, mut clean) = (pieces, Vec::new());
    let mut kept = 0;
    for index in 0..dirty.len() {
        let piece = dirty[index];
        let left = &mut dirty_left[piece.device()];
        if *left == 0 {
            clean.push(piece);
            continue;
        }
        let (front, rest) = piece.cut(*left);
        *left -= front.count();
        dirty[kept] = front;
        kept += 1;
        clean.extend(rest);
    }
    dirty.truncate(kept);
    (dirty, clean)
}

/// The blocks of each run in random order, a run after another.
fn out_of_order(runs: Vec<Piece>, mut rng: Rng) -> Stream {
    let mut runs = runs.into_iter();
    let mut blocks: Vec<Piece> = Vec::new();
    Box::new(std::iter::from_fn(move || {
        if blocks.is_empty() {
            let run = runs.next()?;
            blocks.extend((run.start()..run.end()).map(|start| Piece::new(run.device(), start, 1)));
            rng.shuffle(&mut blocks);
        }
        blocks.pop()
    }))
}

#[cfg(test)]
mod tests;
