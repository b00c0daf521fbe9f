//! Caches that are full of data when an experiment begins, made in seconds: the metadata that years
//! of writes would leave, from a [`Pattern`] and a seed. Data is never written.
//!
//! - [`bcache`]: a set of a cache device and its backing devices. [`writecache`]: a cache device.
//! - [`arrivals`]: which blocks are cached, in the order in which they came. [`layout`]: where in
//!   the buckets of a set they lie. [`piece`]: what both are made of.
//!
//! A plan is laid out first, which takes no device and refuses what does not fit. The result says
//! what it has, and is written through the caller's sink. The same plan makes the same bytes.
//!
//! Memory: 16 bytes for each extent of a set, and 8 for each run; nothing for each entry of a
//! writecache but for its runs.

pub mod arrivals;
pub mod bcache;
pub mod layout;
pub mod piece;
#[cfg(test)]
mod served;
pub mod writecache;

use std::fmt;
use std::str::FromStr;

use cairn_block::Sector;
use cairn_format::WriteSectors;
use cairn_sim::Image;

use arrivals::{Share, evenly};
use piece::Piece;

/// How the data of a cache came there: see [`arrivals`] for what is cached, and [`layout`] for
/// where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Single blocks anywhere, in random order.
    Uniform,
    /// Runs, most of them in some regions, in random order.
    Clustered,
    /// Runs whose blocks were written in random order.
    OutOfOrder,
    /// Single blocks; each bucket keeps one block dirty of so many.
    Fragmented {
        /// How many blocks of a bucket have one that is dirty.
        one_in: u32,
    },
    /// Runs in buckets that churn has thinned out, the oldest most.
    Aged,
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pattern::Uniform => f.write_str("uniform"),
            Pattern::Clustered => f.write_str("clustered"),
            Pattern::OutOfOrder => f.write_str("out-of-order"),
            Pattern::Fragmented { one_in } => write!(f, "fragmented-{one_in}"),
            Pattern::Aged => f.write_str("aged"),
        }
    }
}

impl FromStr for Pattern {
    type Err = FillError;

    fn from_str(word: &str) -> Result<Pattern, FillError> {
        let part = word.strip_prefix("fragmented-").and_then(|part| part.parse().ok());
        match (word, part) {
            ("uniform", _) => Ok(Pattern::Uniform),
            ("clustered", _) => Ok(Pattern::Clustered),
            ("out-of-order", _) => Ok(Pattern::OutOfOrder),
            ("aged", _) => Ok(Pattern::Aged),
            (_, Some(one_in @ 1..)) => Ok(Pattern::Fragmented { one_in }),
            _ => Err(FillError::Value {
                what: "pattern",
                found: word.to_owned(),
                expected: "uniform, clustered, out-of-order, fragmented-N or aged",
            }),
        }
    }
}

/// Why a plan cannot be laid out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FillError {
    /// A value that no cache has.
    #[error("{what}: found {found}, expected {expected}")]
    Value {
        /// Which one.
        what: &'static str,
        /// The value.
        found: String,
        /// What it may be.
        expected: &'static str,
    },
    /// There is more data than a device has.
    #[error("{what}: found {found} blocks, expected at most {expected}")]
    Blocks {
        /// Where.
        what: String,
        /// Blocks that are to be cached.
        found: u64,
        /// Blocks of the device.
        expected: u64,
    },
    /// The cache has fewer buckets than its data, metadata and spare ones need.
    #[error("cache: found {found} buckets behind the journal, expected {expected} at least")]
    Buckets {
        /// Buckets that there are.
        found: u64,
        /// Buckets that are needed.
        expected: u64,
    },
    /// The format has no such sizes.
    #[error(transparent)]
    Bcache(#[from] cairn_format::bcache::Error),
    /// The format has no such sizes.
    #[error(transparent)]
    Writecache(#[from] cairn_format::writecache::Error),
}

impl FillError {
    fn value(what: &'static str, found: impl fmt::Display, expected: &'static str) -> FillError {
        FillError::Value { what, found: found.to_string(), expected }
    }
}

/// So many percent of an amount, rounded down.
fn percent_of(what: &'static str, percent: f64, amount: u64) -> Result<u64, FillError> {
    if !(0.0..=100.0).contains(&percent) {
        return Err(FillError::value(what, percent, "0 to 100 percent"));
    }
    Ok((amount as f64 * percent / 100.0) as u64)
}

/// Divides dirty and clean blocks among devices, which are given with their blocks and weights.
fn shares_of(devices: &[(u64, u32)], dirty: u64, clean: u64) -> Result<Vec<Share>, FillError> {
    let weights = || devices.iter().map(|(_, weight)| u64::from(*weight));
    let all: u64 = weights().sum();
    if devices.is_empty() || devices.len() > Piece::DEVICES_MAX || all == 0 {
        return Err(FillError::value("devices", devices.len(), "1 to 64, one with a weight"));
    }
    let both = evenly(dirty, all, weights()).zip(evenly(clean, all, weights()));
    let shares = devices.iter().zip(both).enumerate();
    let share = |(index, ((blocks, _), (dirty, clean))): (usize, (&(u64, u32), _))| {
        let share = Share { blocks: *blocks, dirty, clean };
        let expected = share.blocks.min(Piece::BLOCKS_MAX);
        match dirty + clean > expected {
            true => {
                let what = format!("device {index}");
                Err(FillError::Blocks { what, found: dirty + clean, expected })
            }
            false => Ok(share),
        }
    };
    shares.map(share).collect()
}

/// Writes into an image of a simulated drive.
pub struct ImageSink<'a>(pub &'a mut Image);

impl WriteSectors for ImageSink<'_> {
    type Error = std::convert::Infallible;

    fn write(&mut self, sector: u64, bytes: &[u8]) -> Result<(), Self::Error> {
        self.0.write(Sector(sector), bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{FillError, Pattern, percent_of, shares_of};

    #[test]
    fn pattern_reads_as_it_prints() {
        for word in ["uniform", "clustered", "out-of-order", "fragmented-16", "aged"] {
            assert_eq!(word.parse::<Pattern>().map(|it| it.to_string()).as_deref(), Ok(word));
        }
        for wrong in ["", "random", "fragmented", "fragmented-0", "fragmented-x", "aged-2"] {
            let refused = wrong.parse::<Pattern>().expect_err("no pattern").to_string();
            assert!(refused.starts_with(&format!("pattern: found {wrong}")), "{refused}");
        }
    }

    #[test]
    fn percentages_are_rounded_down() {
        let of = |percent, amount| percent_of("x", percent, amount);
        assert_eq!([of(0.0, 7), of(50.0, 7), of(100.0, 7)], [Ok(0), Ok(3), Ok(7)]);
        assert!(matches!(of(-0.1, 7), Err(FillError::Value { what: "x", .. })));
    }

    #[test]
    fn devices_share_data_by_weight_and_all_of_it() {
        let devices = [(1000, 1), (1000, 0), (1000, 2)];
        let shares = shares_of(&devices, 100, 10).expect("there is room");
        assert_eq!(shares.iter().map(|it| it.dirty).collect::<Vec<_>>(), [33, 0, 67]);
        assert_eq!(shares.iter().map(|it| it.clean).collect::<Vec<_>>(), [3, 0, 7]);
        let full = shares_of(&[(100, 1), (50, 1)], 150, 0).expect_err("the second is too small");
        assert_eq!(full.to_string(), "device 1: found 75 blocks, expected at most 50");
        assert!(shares_of(&[(100, 0)], 1, 0).is_err());
    }
}
