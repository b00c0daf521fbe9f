//! What writes to a member take, fitted to the times at which they ended.
//!
//! ```text
//! time of a write = seek + way * root of the distance + sector * sectors
//! ```
//!
//! `seek` and `way` count if the write does not begin where the one before it ended. The distance
//! is that from there, in sectors. So a drive with an arm, one without, and several side by side
//! differ in three numbers.
//!
//! The time of a write is that from its beginning, or from the end of the write that ended before
//! it, whichever is later: of writes in flight together each counts for its part.
//!
//! # Invariants
//! C1. No term is negative, and a sector is not free, so a price is finite and above 0.
//! C2. A write counts for [`SURPRISE`] times its price at most, however long it took: one that
//!     waited for clients tells little of the drive.
//! C3. A term that the writes do not determine stays what it was. The first prices are those of a
//!     drive with an arm.

use cairn_block::{Sector, SectorRange, Time};

use super::{Members, ZONE_SECTORS};

/// Writes count less by this part with each later one.
const FORGET: f64 = 1.0 / 256.0;
/// A write counts for so many times its price at most (C2), and for this many seconds in any case.
const SURPRISE: f64 = 4.0;
const UNSURPRISING: f64 = 0.000_1;
/// How often each term is corrected after a write.
const CORRECTIONS: usize = 4;
/// The least price of a sector, in seconds: 500 GB/s.
const SECTOR_MIN: f64 = 1e-9;

/// Seconds: of a seek, of the root of a sector of its distance, and of a sector written.
type Terms = [f64; 3];

/// What a write takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Price(pub Terms);

impl Price {
    /// A drive of 7200 turns per minute that has a queue to choose from.
    pub const FIRST: Price = Price([0.003, 0.000_001, 0.000_002_7]);

    fn of(&self, amounts: &Terms) -> f64 {
        self.0.iter().zip(amounts).map(|(term, amount)| term * amount).sum()
    }

    /// Seconds for so many sectors of a zone, in so many runs of touching ones.
    fn of_visit(&self, runs: u32, sectors: u32) -> f64 {
        let runs = f64::from(runs.max(1));
        let gap = ZONE_SECTORS as f64 / runs;
        self.of(&[runs, runs * gap.sqrt(), f64::from(sectors)]).max(SECTOR_MIN)
    }

    /// How many sectors of a zone go home in a second.
    pub fn worth(&self, runs: u32, sectors: u32) -> f64 {
        f64::from(sectors) / self.of_visit(runs, sectors)
    }
}

/// The fit of one member.
#[derive(Clone, Debug)]
struct Fit {
    price: Price,
    /// Sums over the writes: the products of their amounts, and of these with the times.
    products: [Terms; 3],
    times: Terms,
    /// Where the last write ended, and when.
    end: Sector,
    at: Time,
}

impl Fit {
    const NEW: Fit = Fit {
        price: Price::FIRST,
        products: [[0.0; 3]; 3],
        times: [0.0; 3],
        end: Sector(0),
        at: Time(0),
    };

    fn wrote(&mut self, range: SectorRange, began: Time, ended: Time) {
        let distance = range.start.0.abs_diff(self.end.0) as f64;
        let is_apart = if distance == 0.0 { 0.0 } else { 1.0 };
        let amounts = [is_apart, distance.sqrt(), range.count.0 as f64];
        let took = ended.since(began.max(self.at)).as_secs_f64();
        let most = SURPRISE * self.price.of(&amounts) + UNSURPRISING;
        self.fit(&amounts, took.min(most));
        (self.end, self.at) = (range.end(), ended);
    }

    /// Least squares, of which each term is corrected in turn (C1, C3).
    fn fit(&mut self, amounts: &Terms, took: f64) {
        for (row, amount) in amounts.iter().enumerate() {
            self.times[row] += amount * took - self.times[row] * FORGET;
            for (column, other) in amounts.iter().enumerate() {
                let product = &mut self.products[row][column];
                *product += amount * other - *product * FORGET;
            }
        }
        let least = [0.0, 0.0, SECTOR_MIN];
        for row in (0..3).cycle().take(3 * CORRECTIONS) {
            let own = self.products[row][row];
            if own > f64::EPSILON {
                let missing = self.times[row] - self.price.of(&self.products[row]);
                let term = &mut self.price.0[row];
                *term = (*term + missing / own).max(least[row]);
            }
        }
    }
}

/// The prices of all members of a disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct Prices {
    members: Option<Members>,
    fits: Vec<Fit>,
}

impl Prices {
    /// The disk has these members. The prices of others are forgotten.
    pub fn know(&mut self, members: &Members) {
        if self.members.as_ref() != Some(members) {
            self.members = Some(members.clone());
            self.fits = vec![Fit::NEW; members.count()];
        }
    }

    /// A write began and ended at these times. Writes are told in the order of their ends.
    pub fn wrote(&mut self, range: SectorRange, began: Time, ended: Time) {
        let Some(members) = &self.members else { return };
        if range.start < members.end() {
            let (member, _) = members.zone_of(range.start);
            self.fits[member].wrote(range, began, ended);
        }
    }

    /// Those of a member.
    pub(super) fn of(&self, member: usize) -> Price {
        self.fits.get(member).map_or(Price::FIRST, |fit| fit.price)
    }

    /// Prices that do not change.
    #[cfg(test)]
    pub(super) fn fixed(prices: &[Price]) -> Prices {
        let fits = prices.iter().map(|&price| Fit { price, ..Fit::NEW }).collect();
        Prices { members: None, fits }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_block::SectorCount;
    use proptest::prelude::{any, prop_assert, proptest};
    use std::time::Duration;

    const DISK: u64 = 1 << 31;

    /// Writes at random places, a third of which continue the last one, take what a drive with
    /// these terms does, up to a fifth more or less; one in 50 waits for clients.
    fn fitted(terms: Terms, seed: u64) -> Price {
        let (mut fit, mut now, mut end) = (Fit::NEW, Time(0), 0);
        let mut rng = fastrand::Rng::with_seed(seed);
        for number in 0..3000 {
            let sectors = [8, 64, 512, 2048][rng.usize(..4)];
            // Near or far.
            let start = match rng.u8(..3) {
                0 => end,
                1 => (end + rng.u64(..ZONE_SECTORS)) % DISK,
                _ => rng.u64(..DISK),
            };
            let distance = start.abs_diff(end) as f64;
            let is_apart = f64::from(u8::from(start != end));
            let own = Price(terms).of(&[is_apart, distance.sqrt(), sectors as f64]);
            let noise = 0.8 + 0.4 * rng.f64();
            let wait = if number % 50 == 0 { own * 20.0 } else { 0.0 };
            let seconds = own * noise + wait;
            let began = now + Duration::from_millis(1);
            now = began + Duration::from_secs_f64(seconds);
            let range = SectorRange::new(Sector(start), SectorCount(sectors));
            fit.wrote(range, began, now);
            end = range.end().0;
        }
        fit.price
    }

    #[test]
    fn prices_become_those_of_the_drive_in_spite_of_noise_and_long_waits() {
        // Seeks of 6 ms, to 13 ms at the far end, 180 MB/s; and 50 us for each write, 500 MB/s.
        for (terms, seed) in [([0.006, 1.5e-7, 2.8e-6], 1), ([5e-5, 0.0, 1e-6], 2)] {
            let price = fitted(terms, seed);
            for (runs, sectors) in [(1, 65_536), (500, 4000), (32, 60_000), (1, 8)] {
                let [found, expected] =
                    [price, Price(terms)].map(|price| price.of_visit(runs, sectors));
                let share = found / expected;
                assert!((0.6..1.6).contains(&share), "{runs} {sectors}: {price:?}, {terms:?}");
            }
        }
    }

    #[test]
    fn writes_in_flight_together_count_each_for_its_part() {
        let mut prices = Prices::default();
        let members = Members::of_one(SectorCount(DISK));
        prices.know(&members);
        // 32 in flight at once, one ends each millisecond; they continue each other.
        for number in 0..2000 {
            let range = SectorRange::new(Sector(number * 1000), SectorCount(1000));
            let ended = Time((number + 32) * 1_000_000);
            prices.wrote(range, Time(number * 1_000_000), ended);
        }
        let Price([seek, way, sector]) = prices.of(0);
        assert!((0.9e-6..1.1e-6).contains(&sector), "{sector}");
        let Price([first_seek, first_way, _]) = Price::FIRST;
        assert_eq!([seek, way], [first_seek, first_way], "C3");
    }

    proptest! {
        #[test]
        fn prices_stay_above_zero_and_finite(
            writes in proptest::collection::vec(
                (any::<u32>(), 1_u32..10_000, any::<u32>(), any::<u64>()), 1..100,
            ),
        ) {
            let (mut fit, mut now) = (Fit::NEW, Time(0));
            for (start, sectors, wait, took) in writes {
                let (start, count) = (u64::from(start), u64::from(sectors));
                let range = SectorRange::new(Sector(start), SectorCount(count));
                let began = Time(now.0 + u64::from(wait));
                now = Time(began.0 + (took >> (16 + took % 48)));
                fit.wrote(range, began, now);
                let Price(terms) = fit.price;
                prop_assert!(terms.iter().all(|term| *term >= 0.0 && term.is_finite()), "C1");
                let after = fit.price.of_visit(100, 10_000);
                prop_assert!(after > 0.0 && after.is_finite(), "C1: {after}");
            }
        }
    }
}
