//! What writes to a member take, fitted to the times at which they ended.
//!
//! ```text
//! time of a write = arm + sector * sectors
//! arm             = seek + way * root of the distance; at most sector * distance
//! ```
//!
//! The distance is that from the end of the write before, in sectors: what lies between passes
//! under the arm of a drive if nothing quicker does. So a drive with an arm, one without, and
//! several side by side differ in three numbers.
//!
//! The time of a write is that from its beginning, or from the end of the write that ended before
//! it, whichever is later: of writes in flight together each counts for its part.
//!
//! # Invariants
//! C1. No term is negative, and a sector is not free, so a price is finite and above 0.
//! C2. A write counts for [`SURPRISE`] times its price at most, however long it took: one that
//!     waited for clients tells little of the drive.
//! C3. A term that the writes do not determine stays what it was: that of a sector if none is
//!     [`LONG`], those of the arm if no shorter one begins far from the one before. The first
//!     prices are those of a drive with an arm.

use std::time::Duration;

use cairn_block::{Sector, SectorRange, Time};

use super::{Members, ZONE_SECTORS};

/// Writes count less by this part with each later one.
const FORGET: f64 = 1.0 / 256.0;
/// The same for each flush.
const FORGET_FLUSH: f64 = 1.0 / 4.0;
/// A write counts for so many times its price at most (C2), and for this many seconds in any case.
const SURPRISE: f64 = 4.0;
const UNSURPRISING: f64 = 0.000_1;
/// How often each term of the arm is corrected after a write.
const CORRECTIONS: usize = 4;
/// The least price of a sector, in seconds: 500 GB/s.
const SECTOR_MIN: f64 = 1e-9;
/// An arm takes so many seconds to another zone at least, among the requests of a long queue.
const ARM_MIN: f64 = 0.000_3;
/// Writes of so many sectors say what a sector takes.
const LONG: f64 = 128.0;

/// What a write takes, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Price {
    pub seek: f64,
    /// For the root of a sector of its distance.
    pub way: f64,
    pub sector: f64,
}

impl Price {
    /// A drive of 7200 turns per minute that has a queue to choose from.
    pub const FIRST: Price = Price { seek: 0.002, way: 0.000_002, sector: 0.000_002_7 };

    /// From the end of one write to the beginning of the next. `Err`: what lies between passes
    /// under the arm.
    fn arm(&self, distance: f64) -> Result<f64, f64> {
        let (moved, passed) = (self.seek + self.way * distance.sqrt(), self.sector * distance);
        if moved < passed { Ok(moved) } else { Err(passed) }
    }

    fn of(&self, distance: f64, sectors: f64) -> f64 {
        let (Ok(arm) | Err(arm)) = self.arm(distance);
        arm + self.sector * sectors
    }

    /// So many sectors of a zone, in so many runs of touching ones.
    fn of_visit(&self, runs: u32, sectors: u32) -> f64 {
        let (runs, sectors) = (f64::from(runs.max(1)), f64::from(sectors.max(1)));
        runs * self.of(ZONE_SECTORS as f64 / runs, sectors / runs)
    }

    /// How many sectors of a zone go home in a second.
    pub fn worth(&self, runs: u32, sectors: u32) -> f64 {
        f64::from(sectors) / self.of_visit(runs, sectors)
    }
}

/// The fit of one member: least squares, of which each term is corrected in turn (C1, C3). All sums
/// are over the writes that say something of their term.
#[derive(Clone, Debug)]
struct Fit {
    price: Price,
    /// Of the squares of long writes, and of their lengths with what sectors took.
    long: [f64; 2],
    /// Of the products of 1 and the root of the distance, and of both with what the arm took.
    products: [[f64; 2]; 2],
    times: [f64; 2],
    /// Where the last write ended, and when.
    end: Sector,
    at: Time,
}

/// Adds to a sum of which older parts are forgotten.
fn remember(sum: &mut f64, part: f64) {
    *sum += part - *sum * FORGET;
}

impl Fit {
    const NEW: Fit = Fit {
        price: Price::FIRST,
        long: [0.0; 2],
        products: [[0.0; 2]; 2],
        times: [0.0; 2],
        end: Sector(0),
        at: Time(0),
    };

    fn wrote(&mut self, range: SectorRange, began: Time, ended: Time) {
        let distance = range.start.0.abs_diff(self.end.0) as f64;
        let sectors = range.count.0 as f64;
        let took = ended.since(began.max(self.at)).as_secs_f64();
        let took = took.min(SURPRISE * self.price.of(distance, sectors) + UNSURPRISING);
        match self.price.arm(distance) {
            Ok(arm) | Err(arm) if sectors >= LONG => self.fit_sector(sectors, took - arm),
            Ok(_) => self.fit_arm(&[1.0, distance.sqrt()], took - self.price.sector * sectors),
            Err(_) => {}
        }
        (self.end, self.at) = (range.end(), ended);
    }

    fn fit_sector(&mut self, sectors: f64, took: f64) {
        remember(&mut self.long[0], sectors * sectors);
        remember(&mut self.long[1], sectors * took);
        self.price.sector = (self.long[1] / self.long[0]).max(SECTOR_MIN);
    }

    fn fit_arm(&mut self, amounts: &[f64; 2], took: f64) {
        for (row, amount) in amounts.iter().enumerate() {
            remember(&mut self.times[row], amount * took);
            for (column, other) in amounts.iter().enumerate() {
                remember(&mut self.products[row][column], amount * other);
            }
        }
        let ([[one, root], [_, distance]], [time, far]) = (self.products, self.times);
        let Price { seek, way, .. } = &mut self.price;
        for _ in 0..CORRECTIONS {
            *seek = ((time - *way * root) / one).max(0.0);
            *way = ((far - *seek * root) / distance).max(0.0);
        }
    }
}

/// What flushes take for the writes that they cover. A drive with a volatile cache has taken those
/// before it has done their work: its flushes tell what the ends of writes do not. The work is
/// measured by what it would take at [`Price::FIRST`], as its prices are those of the cache.
#[derive(Clone, Copy, Debug, Default)]
struct Residue {
    flushes: f64,
    work: f64,
}

impl Residue {
    fn flushed(&mut self, work: f64, took: f64) {
        self.flushes += took - self.flushes * FORGET_FLUSH;
        self.work += work - self.work * FORGET_FLUSH;
    }

    fn of(self, work: f64) -> f64 {
        match self.work > 0.0 {
            true => work * (self.flushes / self.work),
            false => 0.0,
        }
    }
}

/// The prices of all members of a disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct Prices {
    members: Option<Members>,
    fits: Vec<Fit>,
    residue: Residue,
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

    /// True if some member has an arm, as far as is known.
    pub fn have_arm(&self) -> bool {
        let has_arm = |fit: &Fit| {
            let (Ok(arm) | Err(arm)) = fit.price.arm(ZONE_SECTORS as f64);
            arm >= ARM_MIN
        };
        self.fits.is_empty() || self.fits.iter().any(has_arm)
    }

    /// What runs of touching sectors take that are written in this order, until a flush has covered
    /// them.
    pub fn time_of(&self, runs: impl Iterator<Item = SectorRange>) -> Duration {
        let [seconds, work] = self.time_and_work(runs);
        Duration::from_secs_f64(seconds + self.residue.of(work))
    }

    /// A flush that began after the ends of these writes took so long.
    pub fn flushed(&mut self, runs: impl Iterator<Item = SectorRange>, took: Duration) {
        let [_, work] = self.time_and_work(runs);
        self.residue.flushed(work, took.as_secs_f64());
    }

    /// What runs take at the prices of their members, and at the first ones.
    fn time_and_work(&self, runs: impl Iterator<Item = SectorRange>) -> [f64; 2] {
        let (mut end, mut seconds, mut work) = (None, 0.0, 0.0);
        let Some(members) = &self.members else { return [0.0; 2] };
        for run in runs.filter(|run| run.start < members.end()) {
            let (member, _) = members.zone_of(run.start);
            let distance = run.start.0.abs_diff(end.unwrap_or(self.fits[member].end).0) as f64;
            seconds += self.of(member).of(distance, run.count.0 as f64);
            work += Price::FIRST.of(distance, run.count.0 as f64);
            end = Some(run.end());
        }
        [seconds, work]
    }

    /// Those of a member.
    pub(super) fn of(&self, member: usize) -> Price {
        self.fits.get(member).map_or(Price::FIRST, |fit| fit.price)
    }

    /// Prices that do not change.
    #[cfg(test)]
    pub(super) fn fixed(prices: &[Price]) -> Prices {
        let fits = prices.iter().map(|&price| Fit { price, ..Fit::NEW }).collect();
        Prices { fits, ..Prices::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_block::SectorCount;
    use proptest::prelude::{any, prop_assert, proptest};
    use std::time::Duration;

    const DISK: u64 = 1 << 31;

    /// Writes of these lengths at random places, a third of which continue the last one, take what
    /// a drive at this price does, up to a fifth more or less; one in 50 waits for clients.
    fn fit_to(price: Price, lengths: &[u64], fit: &mut Fit, seed: u64) {
        let (mut now, mut end) = (fit.at, fit.end.0);
        let mut rng = fastrand::Rng::with_seed(seed);
        for number in 0..3000 {
            let sectors = lengths[rng.usize(..lengths.len())];
            // Near or far.
            let start = match rng.u8(..3) {
                0 => end,
                1 => (end + rng.u64(..ZONE_SECTORS)) % DISK,
                _ => rng.u64(..DISK),
            };
            let own = price.of(start.abs_diff(end) as f64, sectors as f64);
            let noise = 0.8 + 0.4 * rng.f64();
            let wait = if number % 50 == 0 { own * 20.0 } else { 0.0 };
            let began = now + Duration::from_millis(1);
            now = began + Duration::from_secs_f64(own * noise + wait);
            let range = SectorRange::new(Sector(start), SectorCount(sectors));
            fit.wrote(range, began, now);
            end = range.end().0;
        }
    }

    /// Seeks of 6 ms, to 13 ms at the far end, 180 MB/s.
    const ARM: Price = Price { seek: 0.006, way: 1.5e-7, sector: 2.8e-6 };
    /// 50 us for each write, 500 MB/s.
    const CHIP: Price = Price { seek: 5e-5, way: 0.0, sector: 1e-6 };

    fn assert_near(found: Price, expected: Price) {
        for (runs, sectors) in [(1, 65_536), (500, 4000), (32, 60_000), (1, 8)] {
            let share = found.of_visit(runs, sectors) / expected.of_visit(runs, sectors);
            assert!((0.6..1.6).contains(&share), "{runs} {sectors}: {found:?}, {expected:?}");
        }
    }

    #[test]
    fn prices_become_those_of_the_drive_in_spite_of_noise_and_long_waits() {
        for (price, seed) in [(ARM, 1), (CHIP, 2)] {
            let mut fit = Fit::NEW;
            fit_to(price, &[8, 64, 512, 2048], &mut fit, seed);
            assert_near(fit.price, price);
            // C3: then only short ones.
            let sector = fit.price.sector;
            fit_to(price, &[8], &mut fit, seed + 2);
            assert_near(fit.price, price);
            let prices = Prices { fits: vec![fit.clone()], ..Prices::default() };
            assert_eq!(prices.have_arm(), price == ARM);
            assert!((fit.price.sector - sector).abs() < f64::EPSILON);
        }
    }

    #[test]
    fn time_of_writes_is_that_of_their_runs() {
        let members = Members::of_one(SectorCount(DISK));
        let mut prices = Prices::default();
        let run = |start, count| SectorRange::new(Sector(start), SectorCount(count));
        assert_eq!(prices.time_of([run(0, 1000)].into_iter()), Duration::ZERO, "nothing is known");
        prices.know(&members);
        let Price { seek, way, sector } = Price::FIRST;
        let expected = 1000.0 * sector + (seek + way * 1000.0) + 8.0 * sector + 10.0 * sector;
        let runs = [run(0, 1000), run(1_001_000, 8), run(1_001_010, 8), run(DISK, 8)];
        let found = prices.time_of(runs.into_iter()).as_secs_f64();
        assert!((found - expected).abs() < 1e-6, "{found} {expected}");
    }

    #[test]
    fn writes_that_a_cache_takes_at_once_cost_what_their_flush_does() {
        let mut prices = Prices::default();
        prices.know(&Members::of_one(SectorCount(DISK)));
        let runs = |count: u64| {
            (0..count).map(|number| SectorRange::new(Sector(number * 5000), SectorCount(8)))
        };
        let time = |prices: &Prices, count| prices.time_of(runs(count)).as_secs_f64();
        let cached = |prices: &mut Prices, flush| {
            let mut now = Time(0);
            for range in runs(1000) {
                let began = now;
                now = now + Duration::from_micros(10);
                prices.wrote(range, began, now);
            }
            prices.flushed(runs(1000), Duration::from_millis(flush));
        };
        (0..50).for_each(|_| cached(&mut prices, 8));
        assert!(time(&prices, 1000) < 0.1, "{}", time(&prices, 1000));
        (0..50).for_each(|_| cached(&mut prices, 2000));
        for (count, expected) in [(1000, 2.0), (100, 0.2)] {
            let found = time(&prices, count);
            assert!((expected * 0.98..expected * 1.1).contains(&found), "{count}: {found}");
        }
        (0..50).for_each(|_| cached(&mut prices, 8));
        assert!(time(&prices, 1000) < 0.1, "{}", time(&prices, 1000));
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
        let Price { seek, way, sector } = prices.of(0);
        assert!((0.9e-6..1.1e-6).contains(&sector), "{sector}");
        assert_eq!((seek, way), (Price::FIRST.seek, Price::FIRST.way), "C3");
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
                let Price { seek, way, sector } = fit.price;
                let is_legal = |term: f64| term >= 0.0 && term.is_finite();
                prop_assert!([seek, way, sector].into_iter().all(is_legal), "C1");
                let after = fit.price.of_visit(100, 10_000);
                prop_assert!(after > 0.0 && after.is_finite(), "C1: {after}");
            }
        }
    }
}
