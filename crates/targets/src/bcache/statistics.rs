//! Statistics: how requests of clients used the cache, in the four windows of sysfs.
//!
//! Reactors count in rows of their own ([`super::status::Count`]). A task folds what they counted
//! into the windows at each tick, so up to a tick passes before a request is seen. A window loses
//! one part in 32 at every so many ticks; the total loses nothing.
//!
//! A read counts once, as a hit if the cache had all of it. It may be mapped in parts: a part that
//! missed, and is not the last one, leaves a mark in the row of its reactor for the last part.

use std::array;
use std::time::Duration;

use cairn_block::sync::Mutex;
use cairn_block::sync::atomic::{AtomicU64, Ordering::Relaxed};
use cairn_block::{Attribute, Env, ReactorId, Request, SectorRange, Time, Value};

use super::config::Devices;
use super::status::Count;
use super::volume::Bcache;

/// Five minutes have 22 ticks.
const TICK: Duration = Duration::from_nanos(300_000_000_000 / 22);
/// A window keeps so many of [`PARTS`] parts when it decays.
const KEPT: u64 = 31;
const PARTS: u64 = 32;
/// The fraction of an amount in a window has so many bits.
const FRACTION: u32 = 16;
/// So many marks a reactor has.
const MARKS: usize = 16;
/// What is counted, in the order of a window.
const COUNTED: [Count; 6] = [
    Count::ReadHits,
    Count::ReadMisses,
    Count::BypassHits,
    Count::BypassMisses,
    Count::MissCollisions,
    Count::BypassedSectors,
];
/// Their places in a window.
const HITS: usize = 0;
const MISSES: usize = 1;
/// After so many ticks each window decays: total, five minutes, an hour, a day.
const DECAYS: [Option<u32>; 4] = [None, Some(1), Some(12), Some(288)];

/// What an attribute shows of a window.
#[derive(Clone, Copy)]
enum Shown {
    Amount(usize),
    HitRatio,
}

/// The attributes of a window: its folder, and its place in [`DECAYS`].
macro_rules! attributes_of {
    ($($folder:literal $window:literal),*) => {
        &[$(
            (concat!($folder, "/cache_hits"), $window, Shown::Amount(HITS)),
            (concat!($folder, "/cache_misses"), $window, Shown::Amount(MISSES)),
            (concat!($folder, "/cache_bypass_hits"), $window, Shown::Amount(2)),
            (concat!($folder, "/cache_bypass_misses"), $window, Shown::Amount(3)),
            (concat!($folder, "/cache_hit_ratio"), $window, Shown::HitRatio),
            (concat!($folder, "/cache_miss_collisions"), $window, Shown::Amount(4)),
            (concat!($folder, "/bypassed"), $window, Shown::Amount(5)),
        )*]
    };
}

const ATTRIBUTES: &[(&str, usize, Shown)] =
    attributes_of!("stats_total" 0, "stats_five_minute" 1, "stats_hour" 2, "stats_day" 3);

/// The amounts of a window, with their fractions.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    amounts: [u64; COUNTED.len()],
    /// Ticks since it decayed.
    ticks: u32,
}

impl Window {
    /// A tick: so much was counted since the one before.
    fn tick(&mut self, counted: &[u64; COUNTED.len()], decays_after: Option<u32>) {
        for (amount, counted) in self.amounts.iter_mut().zip(counted) {
            *amount = amount.saturating_add(counted << FRACTION);
        }
        self.ticks += 1;
        if decays_after.is_some_and(|ticks| self.ticks >= ticks) {
            self.ticks = 0;
            for amount in &mut self.amounts {
                *amount = (u128::from(*amount) * u128::from(KEPT) / u128::from(PARTS)) as u64;
            }
        }
    }

    fn amount(&self, place: usize) -> u64 {
        self.amounts[place] >> FRACTION
    }

    fn shown(&self, shown: Shown) -> u64 {
        match shown {
            Shown::Amount(place) => self.amount(place),
            Shown::HitRatio => {
                let (hits, misses) = (self.amount(HITS), self.amount(MISSES));
                (hits * 100).checked_div(hits + misses).unwrap_or_default()
            }
        }
    }
}

#[derive(Default)]
struct State {
    windows: [Window; DECAYS.len()],
    /// The counters at the last tick.
    counters: [u64; COUNTED.len()],
}

/// Marks of reads that missed in a part, on one reactor.
#[repr(align(128))]
struct Marks([AtomicU64; MARKS]);

/// Where the mark of a read is.
fn place_of_mark(whole: SectorRange) -> usize {
    (whole.end().0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - MARKS.ilog2())) as usize
}

/// See the module's description.
pub(super) struct Statistics {
    state: Mutex<State>,
    marks: Box<[Marks]>,
}

impl Statistics {
    /// Nothing was counted yet, on this many reactors.
    pub fn new(reactors: u16) -> Statistics {
        let marks = |_| Marks(array::from_fn(|_| AtomicU64::new(0)));
        Statistics { state: Mutex::default(), marks: (0..reactors).map(marks).collect() }
    }

    /// A read was mapped up to some sector. `whole` is what was left of it before. Answers whether
    /// the whole read is a hit, if that was its last part.
    #[inline]
    fn end_part(
        &self,
        reactor: ReactorId,
        started: Time,
        whole: SectorRange,
        is_last: bool,
        is_hit: bool,
    ) -> Option<bool> {
        if is_last && !is_hit {
            return Some(false);
        }
        let mark = &self.marks[usize::from(reactor.0)].0[place_of_mark(whole)];
        // Reads that end at the same sector and were started at the same time share it.
        let tag = (whole.end().0.rotate_right(20) ^ started.0) | 1 << 63;
        let has_missed = mark.load(Relaxed) == tag;
        match (is_last, is_hit) {
            (true, _) => {
                if has_missed {
                    mark.store(0, Relaxed);
                }
                Some(!has_missed)
            }
            (false, true) => None,
            (false, false) => {
                mark.store(tag, Relaxed);
                None
            }
        }
    }

    /// A tick: the counters are these now.
    fn tick(&self, counters: [u64; COUNTED.len()]) {
        let mut state = self.state.lock();
        let before = std::mem::replace(&mut state.counters, counters);
        // Counters that were cleared begin again.
        let since = |place: usize| counters[place].checked_sub(before[place]);
        let counted = array::from_fn(|place| since(place).unwrap_or(counters[place]));
        for (window, decays_after) in state.windows.iter_mut().zip(DECAYS) {
            window.tick(&counted, decays_after);
        }
    }
}

impl Bcache {
    /// A read was mapped: `count` sectors of it go where `is_hit` says.
    #[inline]
    pub(super) fn count_read(
        &self,
        env: &Env,
        request: &Request,
        count: u64,
        is_hit: bool,
        is_bypass: bool,
    ) {
        if is_bypass {
            self.counters.add(env, Count::BypassedSectors as usize, count);
        }
        let (started, whole) = (request.started(), request.range);
        let is_last = count == whole.count.0;
        let ended = self.statistics.end_part(env.reactor(), started, whole, is_last, is_hit);
        if let Some(is_hit) = ended {
            let count = match (is_bypass, is_hit) {
                (false, true) => Count::ReadHits,
                (false, false) => Count::ReadMisses,
                (true, true) => Count::BypassHits,
                (true, false) => Count::BypassMisses,
            };
            self.counters.add(env, count as usize, 1);
        }
    }

    /// Starts the ticks of a volume that was resumed, unless they go on.
    pub(super) fn start_statistics(&self, env: &Env) {
        let is_cached = matches!(self.config.devices, Devices::Cached { .. });
        if is_cached && !self.is_ticking.swap(true, Relaxed) {
            self.spawn(env, async |volume, env| volume.keep_statistics(env).await);
        }
    }

    async fn keep_statistics(&self, env: &Env) {
        let core = self.core.as_ref().expect("it has a cache");
        let mut next = env.now() + TICK;
        loop {
            let is_ending = || self.is_resting() || core.is_stopping();
            env.until_or_time(&core.changed, Some(next), is_ending).await;
            if is_ending() {
                self.is_ticking.store(false, Relaxed);
                return;
            }
            let counters = self.counters.read();
            self.statistics.tick(COUNTED.map(|count| counters[count as usize]));
            next = next + TICK;
        }
    }

    /// The attributes of the windows; absent without a backing device and its cache. What was
    /// bypassed is in sectors.
    pub(super) fn statistics_attributes(&self) -> Vec<Attribute> {
        let is_cached = matches!(self.config.devices, Devices::Cached { .. });
        let state = self.statistics.state.lock();
        let attribute = |&(name, window, shown): &(&'static str, usize, Shown)| {
            let value = Value::Gauge(state.windows[window].shown(shown));
            Attribute { name, value: if is_cached { value } else { Value::Absent } }
        };
        ATTRIBUTES.iter().map(attribute).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_block::{Sector, SectorCount};
    use proptest::prelude::*;

    fn amounts(statistics: &Statistics, place: usize) -> [u64; 4] {
        let state = statistics.state.lock();
        array::from_fn(|window| state.windows[window].amount(place))
    }

    /// Ticks in which nothing is counted.
    fn rest(statistics: &Statistics, ticks: usize) {
        let counters = statistics.state.lock().counters;
        (0..ticks).for_each(|_| statistics.tick(counters));
    }

    #[test]
    fn windows_lose_a_32nd_part_after_their_ticks_and_the_total_nothing() {
        let statistics = Statistics::new(1);
        statistics.tick([0, 0, 0, 0, 7, 1000]);
        assert_eq!(amounts(&statistics, 5), [1000, 968, 1000, 1000]);
        assert_eq!(amounts(&statistics, 4), [7, 6, 7, 7]);
        rest(&statistics, 10);
        assert_eq!(amounts(&statistics, 5), [1000, 705, 1000, 1000]);
        rest(&statistics, 1);
        assert_eq!(amounts(&statistics, 5), [1000, 683, 968, 1000]);
        rest(&statistics, 10);
        // Five minutes.
        assert_eq!(amounts(&statistics, 5), [1000, 497, 968, 1000]);
        rest(&statistics, 265);
        assert_eq!(amounts(&statistics, 5), [1000, 0, 481, 1000]);
        rest(&statistics, 1);
        assert_eq!(amounts(&statistics, 5), [1000, 0, 466, 968]);
    }

    #[test]
    fn ratio_is_that_of_the_hits_among_the_reads_that_do_not_bypass_the_cache() {
        for (hits, misses, expected) in
            [(0, 0, 0), (3, 0, 100), (0, 3, 0), (2, 1, 66), (1 << 40, 1 << 40, 50)]
        {
            let statistics = Statistics::new(1);
            statistics.tick([hits, misses, 90, 7, 0, 0]);
            let state = statistics.state.lock();
            assert_eq!(state.windows[0].shown(Shown::HitRatio), expected, "{hits} {misses}");
        }
    }

    #[test]
    fn counters_that_were_cleared_begin_again() {
        let statistics = Statistics::new(1);
        statistics.tick([10, 0, 0, 0, 0, 0]);
        statistics.tick([3, 0, 0, 0, 0, 0]);
        assert_eq!(amounts(&statistics, 0)[0], 13);
    }

    proptest! {
        /// Against a window that decays each of its amounts by itself.
        #[test]
        fn windows_are_near_the_sum_of_their_decayed_parts(
            counted in proptest::collection::vec(0..100_000_u64, 1..700),
        ) {
            let statistics = Statistics::new(1);
            let mut all = 0;
            for amount in &counted {
                all += amount;
                statistics.tick([all, 0, 0, 0, 0, 0]);
            }
            let found = amounts(&statistics, 0);
            for (window, ticks) in [(1, 1), (2, 12), (3, 288)] {
                let decays = |at: usize| (counted.len() / ticks - at / ticks) as i32;
                let part = |(at, amount): (usize, &u64)| {
                    *amount as f64 * (31.0_f64 / 32.0).powi(decays(at))
                };
                let expected: f64 = counted.iter().enumerate().map(part).sum();
                let difference = found[window] as f64 - expected;
                prop_assert!((-2.0..0.01).contains(&difference), "{window}: {difference}");
            }
            prop_assert_eq!(found[0], all);
        }

        /// Reads of some reactors in parts, in any order among reads.
        #[test]
        fn read_is_a_hit_if_all_its_parts_are(
            reads in proptest::collection::vec(
                proptest::collection::vec(any::<bool>(), 1..5),
                1..8,
            ),
            order in proptest::collection::vec(0..8_usize, 0..40),
        ) {
            let statistics = Statistics::new(2);
            let mut done = vec![0; reads.len()];
            let in_order = order.into_iter().filter(|read| *read < reads.len());
            let rest = (0..reads.len()).flat_map(|read| vec![read; 5]);
            for read in in_order.chain(rest) {
                let (parts, at) = (&reads[read], done[read]);
                let Some(&is_hit) = parts.get(at) else { continue };
                done[read] += 1;
                let end = 1000 * (read as u64 + 1);
                let left = SectorCount(8 * (parts.len() - at) as u64);
                let whole = SectorRange::new(Sector(end - left.0), left);
                let reactor = ReactorId(read as u16 % 2);
                let is_last = done[read] == parts.len();
                let ended = statistics.end_part(reactor, Time(5), whole, is_last, is_hit);
                let expected = is_last.then(|| parts.iter().all(|is_hit| *is_hit));
                // Reads of a reactor with the same place displace each other's marks.
                let place = |read: usize| {
                    let end = SectorRange::new(Sector(1000 * (read as u64 + 1)), SectorCount(0));
                    (read % 2, place_of_mark(end))
                };
                let is_shared = (0..reads.len()).any(|it| it != read && place(it) == place(read));
                let may_differ = is_shared && expected == Some(false) && is_hit;
                prop_assert!(ended == expected || may_differ && ended == Some(true));
            }
        }
    }
}
