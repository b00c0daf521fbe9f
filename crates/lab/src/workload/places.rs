//! Where the operations of a client go: numbers of units, which are as large as its smallest
//! operation.

use cairn_outcome::failure::{Outcome, wrong};

use super::zipf::{EXPONENT_MAX, Zipf};
use crate::permutation::Permutation;

/// The order of places.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Order {
    /// Anywhere, each place as likely as any other.
    Random,
    /// Anywhere, but no place again before every other place had its turn. One size only.
    RandomOnce,
    /// One after another; from the start of the region again at its end.
    Sequential,
    /// Few places often and many seldom, by Zipf's law with this exponent. Which places are hot is
    /// random: they are not neighbours.
    Zipf(f64),
    /// Runs of neighbours at random places, whose pieces come in random order. One size only.
    Neighbours {
        /// Pieces of a run.
        pieces: u32,
        /// Runs that are under way at the same time, and whose pieces come mixed.
        runs: u32,
    },
}

/// The most pieces that runs under way can have together: they are held in memory.
const PIECES_MAX: u64 = 1 << 20;

impl Order {
    /// Refuses what cannot be.
    pub(super) fn check(self, has_sizes: bool) -> Outcome<()> {
        let refuse = |field, found, expected| Err(wrong("workload", field, found, expected));
        match self {
            Order::RandomOnce | Order::Neighbours { .. } if has_sizes => {
                refuse("size", "several".to_owned(), "one, as this order needs")
            }
            Order::Zipf(exponent) if !(0.0..=EXPONENT_MAX).contains(&exponent) => {
                refuse("exponent", exponent.to_string(), "a number from 0 to 8")
            }
            Order::Neighbours { pieces, runs } => {
                let all = u64::from(pieces) * u64::from(runs);
                if all == 0 || all > PIECES_MAX {
                    let found = format!("{pieces} pieces, {runs} runs");
                    return refuse("neighbours", found, "1 to 1048576 pieces in all runs");
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// Draws places.
pub struct Places {
    /// In the region.
    units: u64,
    progress: Progress,
}

enum Progress {
    Random,
    RandomOnce { permutation: Permutation, next: u64 },
    Sequential { next: u64 },
    Zipf { zipf: Zipf, permutation: Permutation },
    Neighbours { pieces: u64, runs: Vec<Run> },
}

/// A run under way.
struct Run {
    /// Its first unit.
    start: u64,
    /// Pieces that are not drawn yet, the next one last.
    left: Vec<u32>,
}

impl Places {
    /// For a region of `units`, which is not zero.
    pub fn new(order: Order, units: u64, rng: &mut fastrand::Rng) -> Places {
        let progress = match order {
            Order::Random => Progress::Random,
            Order::RandomOnce => {
                Progress::RandomOnce { permutation: Permutation::new(units, rng), next: 0 }
            }
            Order::Sequential => Progress::Sequential { next: 0 },
            Order::Zipf(exponent) => Progress::Zipf {
                zipf: Zipf::new(units, exponent),
                permutation: Permutation::new(units, rng),
            },
            Order::Neighbours { pieces, runs } => {
                let run = || Run { start: 0, left: Vec::with_capacity(pieces as usize) };
                let runs = (0..runs).map(|_| run()).collect();
                Progress::Neighbours { pieces: u64::from(pieces), runs }
            }
        };
        Places { units, progress }
    }

    /// The first unit of the next operation, of `size` units; it is at most the region.
    pub fn next(&mut self, size: u64, rng: &mut fastrand::Rng) -> u64 {
        let (units, last) = (self.units, self.units - size);
        match &mut self.progress {
            Progress::Random => rng.u64(..=last),
            Progress::RandomOnce { permutation, next } => {
                if *next == units {
                    *permutation = Permutation::new(units, rng);
                    *next = 0;
                }
                *next += 1;
                permutation.at(*next - 1)
            }
            Progress::Sequential { next } => {
                let start = if *next > last { 0 } else { *next };
                *next = start + size;
                start
            }
            Progress::Zipf { zipf, permutation } => permutation.at(zipf.next(rng) - 1).min(last),
            Progress::Neighbours { pieces, runs } => {
                let chosen = rng.usize(..runs.len());
                runs[chosen].next(*pieces, units, rng)
            }
        }
    }
}

impl Run {
    /// The next piece; of another run if this one is over. The last run of a region may be shorter.
    fn next(&mut self, pieces: u64, units: u64, rng: &mut fastrand::Rng) -> u64 {
        if self.left.is_empty() {
            self.start = rng.u64(..units.div_ceil(pieces)) * pieces;
            let count = pieces.min(units - self.start) as u32;
            self.left.extend(0..count);
            rng.shuffle(&mut self.left);
        }
        let piece = self.left.pop().expect("a run has a piece");
        self.start + u64::from(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::{Order, Places, Progress};
    use crate::workload::testing::assert_fits;

    fn draw(order: Order, units: u64, size: u64, count: usize) -> Vec<u64> {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut places = Places::new(order, units, &mut rng);
        (0..count).map(|_| places.next(size, &mut rng)).collect()
    }

    #[test]
    fn random_places_are_even() {
        let mut counts = [0; 99];
        for place in draw(Order::Random, 100, 2, 100_000) {
            counts[place as usize] += 1;
        }
        assert_fits(&counts, &[1.0; 99]);
    }

    #[test]
    fn random_once_visits_each_place_once_in_every_round() {
        let places = draw(Order::RandomOnce, 1000, 1, 2000);
        let (first, second) = places.split_at(1000);
        assert_ne!(first, second);
        for round in [first, second] {
            let mut round = round.to_vec();
            assert!(!round.is_sorted());
            round.sort_unstable();
            assert!(round.into_iter().eq(0..1000));
        }
    }

    #[test]
    fn sequential_places_follow_on_each_other_and_start_again() {
        assert_eq!(draw(Order::Sequential, 7, 2, 5), [0, 2, 4, 0, 2]);
        assert_eq!(draw(Order::Sequential, 2, 2, 3), [0, 0, 0]);
    }

    #[test]
    fn zipf_places_are_few_and_far_apart() {
        let units = 100_000;
        let places = draw(Order::Zipf(1.2), units, 1, 50_000);
        let mut counts = std::collections::BTreeMap::new();
        places.iter().for_each(|place| *counts.entry(*place).or_insert(0) += 1);
        let mut hottest: Vec<(u64, u64)> = counts.into_iter().map(|(at, n)| (n, at)).collect();
        hottest.sort_unstable_by(|a, b| b.cmp(a));
        let of_ten: u64 = hottest[..10].iter().map(|(count, _)| count).sum();
        // The sum of k^-1.2 to 10 is 2.468, to 100 000 it is 5.092.
        assert!((23_700..24_800).contains(&of_ten), "{of_ten}");
        let halves = hottest[..20].iter().filter(|(_, at)| *at < units / 2).count();
        assert!((4..=16).contains(&halves), "{halves}");
    }

    #[test]
    fn neighbours_come_shuffled_in_whole_runs() {
        let order = Order::Neighbours { pieces: 8, runs: 1 };
        let places = draw(order, 100, 1, 4000);
        let (mut at, mut short) = (0, 0);
        let mut orders = std::collections::BTreeSet::new();
        while at + 8 <= places.len() {
            let first = places[at] / 8 * 8;
            // The last run of the region has four pieces.
            let length = 8.min(100 - first);
            let mut pieces = places[at..at + length as usize].to_vec();
            at += length as usize;
            short += u64::from(length == 4);
            orders.insert(pieces.iter().map(|piece| piece - first).collect::<Vec<_>>());
            pieces.sort_unstable();
            assert!(pieces.into_iter().eq(first..first + length));
        }
        // Nearly every run of about 500 is in an order of its own.
        assert!(short > 0 && orders.len() > 400, "{short} {}", orders.len());
    }

    #[test]
    fn operation_larger_than_a_unit_ends_in_the_region_in_every_order() {
        for order in [Order::Random, Order::Sequential, Order::Zipf(0.0)] {
            let places = draw(order, 4, 3, 100);
            assert!(places.iter().all(|place| *place <= 1), "{order:?}: {places:?}");
        }
    }

    #[test]
    fn runs_under_way_take_no_more_memory_than_at_first() {
        let mut rng = fastrand::Rng::with_seed(1);
        let order = Order::Neighbours { pieces: 100, runs: 3 };
        let mut places = Places::new(order, 1 << 30, &mut rng);
        let memory = |places: &Places| match &places.progress {
            Progress::Neighbours { runs, .. } => {
                runs.iter().map(|run| (run.left.as_ptr(), run.left.capacity())).collect::<Vec<_>>()
            }
            _ => Vec::new(),
        };
        let before = memory(&places);
        assert_eq!(before.len(), 3);
        for _ in 0..10_000 {
            places.next(1, &mut rng);
        }
        assert_eq!(memory(&places), before);
    }

    #[test]
    fn runs_under_way_are_mixed() {
        let order = Order::Neighbours { pieces: 4, runs: 8 };
        let places = draw(order, 1 << 20, 1, 1000);
        let changes = places.windows(2).filter(|pair| pair[0] / 4 != pair[1] / 4).count();
        assert!(changes > 800, "{changes}");
    }

    #[test]
    fn orders_that_cannot_be_are_refused() {
        let neighbours = |pieces, runs| Order::Neighbours { pieces, runs };
        let wrong = [
            (neighbours(0, 1), false),
            (neighbours(1 << 16, 1 << 16), false),
            (neighbours(4, 1), true),
            (Order::RandomOnce, true),
            (Order::Zipf(-0.1), false),
            (Order::Zipf(f64::NAN), false),
            (Order::Zipf(8.1), false),
        ];
        for (order, has_sizes) in wrong {
            let error = order.check(has_sizes).unwrap_err().to_string();
            assert!(error.contains("found") && error.contains("expected"), "{error}");
        }
        assert!(Order::Zipf(1.2).check(true).is_ok());
    }
}
