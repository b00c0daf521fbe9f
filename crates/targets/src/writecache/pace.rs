//! The pace: how fast the two devices answer, and how client I/O and writeback share them.
//!
//! # Policy
//! Writeback has started (free slots fell to the high watermark), and a write to an uncached block
//! arrives. Where does it go?
//! - *The origin is about as fast as the cache device* ([`Origin::Quick`]): the write goes to the
//!   origin, where it costs what it would cost without a cache. In the cache it would cost two more
//!   transfers, one to read and one to write the copy.
//! - *The origin is slow, or not known yet*: the cache takes the write while slots are free, and
//!   writeback goes on as fast as the origin allows. Without a free slot the write goes around, as
//!   in the kernel.
//!
//! While clients write, writeback is throttled. With a quick origin it copies one byte for every
//! [`SHARE_QUICK`] bytes that clients write. Otherwise it copies one for every [`SHARE`] bytes that
//! go around the cache. It copies a megabyte ([`CHUNK`]) at a time. When no such write has come for
//! a while, it copies at full speed. So the cache empties slowly under load, and soon after the
//! load ends. Urgent writeback (`cleaner`, the message `flush`, a suspend that writes back, blocks
//! older than max_age) is not throttled.
//!
//! The origin serves client requests first. If a read missed or a write went around within the last
//! [`BUSY`], one copy is in flight at a time, else up to [`LANES_MAX`]; in a drain up to
//! [`LANES_PARITY`] to an origin with parity: what waits there together is written by rows, which
//! read less the more of them is written. So a client request waits for at most one request of
//! writeback (of a megabyte at most) that came before it. A request that comes later than [`BUSY`]
//! after the last one waits for those in flight.
//!
//! # Measurement
//! For each device, a moving mean of its latency is kept: of client writes, and of both sides of
//! each copy, which move the same bytes. Flushes have a mean of their own. The origin is slow if
//! its mean exceeds that of the cache device by a factor of [`SLOW_TIMES`] and by more than
//! [`SLOW_BY`]. The mean of flushes counts while clients flush ([`FLUSHING`]). All times are those
//! of the reactors' turns: an answer within the same turn counts as zero.
//!
//! A disk with an arm and a volatile cache answers at once until that cache is full. Then each
//! request of a client waits for seconds. So an origin with an arm counts as slow, even if its mean
//! is low, unless the cache device has an arm, too.
//!
//! # Batches of a drain
//! A drive does a flush alone, in the time that the copies take which its cache holds: by their
//! number if they lie apart. So a flush that took less than [`FLUSH_SHORT`] was for too few copies,
//! and the next one is for twice as many; one that took longer than [`FLUSH_LONG`] is followed by
//! one for half of them. The first request of a client after a while may wait for so long.
//!
//! # Worst case
//! Writes never stop. With a quick origin, the cache drains at the rate of the writes divided by
//! [`SHARE_QUICK`], and its content serves only overwrites and reads of cached blocks. With a slow
//! origin and writes all over it, a full cache writes at the speed of the bare origin, plus the
//! overwrites that the cache takes, minus writeback's share. A sorted drain of the whole cache
//! might have been faster; this policy gives that up.

use std::time::Duration;

use cairn_block::{Nature, Shape, Time};

/// The mean is used from this number of answers on.
const TELLING: u32 = 16;
/// The same for flushes, which are rare.
const FLUSHES_TELLING: u32 = 2;
/// The weight of one answer in the mean, as a shift.
const WEIGHT: u32 = 4;
/// A slow origin takes this many times as long as the cache device ...
const SLOW_TIMES: u64 = 4;
/// ... and longer by this much.
const SLOW_BY: Duration = Duration::from_micros(50);
/// Bytes that clients write for each byte that writeback copies, with a quick origin ...
const SHARE_QUICK: u64 = 256;
/// ... and bytes that clients write around the cache for each such byte, with any other.
const SHARE: u64 = 16;
/// While clients write, writeback begins when it may copy this many bytes. It saves up no more.
const CHUNK: u64 = 1 << 20;
/// A quick origin counts as idle when writeback has seen no new write for this long.
const QUIET: Duration = Duration::from_millis(5);
/// How often writeback checks whether it may copy while clients write.
const LOOK: Duration = Duration::from_millis(1);
/// The origin counts as busy for this long after a client request.
const BUSY: Duration = Duration::from_millis(50);
/// Flush latency counts for this long after a client's flush.
const FLUSHING: Duration = Duration::from_secs(1);
/// A drain is flushed after so many copies at first, at least and at most.
const BATCH: usize = 1024;
const BATCH_MIN: usize = 256;
const BATCH_MAX: usize = 4096;
/// A flush between these times is left as it is.
const FLUSH_SHORT: Duration = Duration::from_secs(1);
const FLUSH_LONG: Duration = Duration::from_secs(4);
/// Most copies in flight.
const LANES_MAX: u32 = 32;
/// The same of a drain to an origin with parity.
const LANES_PARITY: u32 = 256;

/// The speed of the origin compared to the cache device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Unknown,
    Quick,
    Slow,
}

/// How long a device took to answer.
#[derive(Clone, Copy, Default)]
struct Answers {
    mean_ns: u64,
    count: u32,
}

impl Answers {
    fn add(&mut self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX >> WEIGHT);
        self.count = self.count.saturating_add(1);
        // The first answers have equal weight, so that one of them does not dominate.
        let shift = WEIGHT.min(self.count.ilog2());
        self.mean_ns = self.mean_ns - (self.mean_ns >> shift) + (took >> shift);
    }

    /// True if these are slow compared to the cache device's.
    fn are_slow(&self, cache: &Answers) -> bool {
        let times = cache.mean_ns.saturating_mul(SLOW_TIMES);
        self.mean_ns > times.max(cache.mean_ns + SLOW_BY.as_nanos() as u64)
    }
}

/// True if something happened less than `within` ago.
fn lately(at: Option<Time>, now: Time, within: Duration) -> bool {
    at.is_some_and(|at| now.since(at) < within)
}

/// Measurements of both devices and of the load.
#[derive(Clone, Copy, Default)]
pub(super) struct Pace {
    /// The origin has an arm, and the cache device has none.
    has_slow_arm: bool,
    has_parity: bool,
    cache: Answers,
    origin: Answers,
    cache_flushes: Answers,
    origin_flushes: Answers,
    /// When a request from above was last sent to the origin, a write around, a flush.
    last_at_origin: Option<Time>,
    last_around: Option<Time>,
    last_flush: Option<Time>,
    /// Writes so far, and how many there were when writeback first saw that many.
    writes: u64,
    seen: (u64, Time),
    /// Bytes that writeback may copy while clients write: with a quick origin, and with any other.
    credit_quick: u64,
    credit: u64,
    /// For how many copies of a drain one flush is.
    batch: usize,
}

impl Pace {
    /// Nothing is measured yet of these devices.
    pub fn of(cache: Nature, origin: Nature) -> Pace {
        let has_arm = |nature: Nature| nature.rotational == Some(true);
        let has_slow_arm = has_arm(origin) && !has_arm(cache);
        let has_parity = matches!(origin.shape, Shape::Parity { .. });
        Pace { has_slow_arm, has_parity, batch: BATCH, ..Pace::default() }
    }

    /// The cache device answered.
    pub fn cache_answered(&mut self, took: Duration) {
        self.cache.add(took);
    }

    /// The origin answered.
    pub fn origin_answered(&mut self, took: Duration) {
        self.origin.add(took);
    }

    /// The cache device was flushed.
    pub fn cache_flushed(&mut self, took: Duration) {
        self.cache_flushes.add(took);
    }

    /// The origin was flushed.
    pub fn origin_flushed(&mut self, took: Duration) {
        self.origin_flushes.add(took);
    }

    /// A drain begins.
    pub fn begin_drain(&mut self) {
        self.batch = BATCH;
    }

    /// The origin was flushed after so many copies of a drain.
    pub fn batch_flushed(&mut self, copies: usize, took: Duration) {
        let most = self.batch;
        self.batch = match took {
            _ if took > FLUSH_LONG => (most / 2).max(BATCH_MIN),
            _ if took < FLUSH_SHORT && copies >= most => (most * 2).min(BATCH_MAX),
            _ => most,
        };
    }

    /// Copies of a drain for one flush.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// A client sent a flush, or a write with FUA.
    pub fn flush_asked(&mut self, now: Time) {
        self.last_flush = Some(now);
    }

    /// A client sent a write.
    pub fn wrote(&mut self, bytes: u64) {
        self.writes += 1;
        self.credit_quick = (self.credit_quick + bytes / SHARE_QUICK).min(CHUNK);
    }

    /// That write goes around the cache.
    pub fn went_around(&mut self, now: Time, bytes: u64) {
        (self.last_at_origin, self.last_around) = (Some(now), Some(now));
        self.credit = (self.credit + bytes / SHARE).min(CHUNK);
    }

    /// A read goes to the origin.
    pub fn missed(&mut self, now: Time) {
        self.last_at_origin = Some(now);
    }

    /// Writeback copies this many bytes.
    pub fn spend(&mut self, bytes: u64) {
        self.credit_quick = self.credit_quick.saturating_sub(bytes);
        self.credit = self.credit.saturating_sub(bytes);
    }

    pub fn origin(&self, now: Time) -> Origin {
        if self.has_slow_arm {
            return Origin::Slow;
        }
        if self.cache.count < TELLING || self.origin.count < TELLING {
            return Origin::Unknown;
        }
        let flushes = &self.origin_flushes;
        let flushing = lately(self.last_flush, now, FLUSHING) && flushes.count >= FLUSHES_TELLING;
        if self.origin.are_slow(&self.cache) || flushing && flushes.are_slow(&self.cache_flushes) {
            return Origin::Slow;
        }
        Origin::Quick
    }

    /// How many bytes writeback may copy now, or when to ask again.
    pub fn allowance(&mut self, now: Time) -> Result<u64, Time> {
        let quick = self.origin(now) == Origin::Quick;
        let busy = if quick { self.is_written(now) } else { lately(self.last_around, now, BUSY) };
        let credit = if quick { self.credit_quick } else { self.credit };
        match credit {
            _ if !busy => Ok(u64::MAX),
            CHUNK.. => Ok(credit),
            _ => Err(now + LOOK),
        }
    }

    /// True if writes keep coming. Elapsed time alone proves little: perhaps this thread was not
    /// scheduled.
    fn is_written(&mut self, now: Time) -> bool {
        if self.seen.0 != self.writes {
            self.seen = (self.writes, now);
        }
        self.writes > 0 && now.since(self.seen.1) < QUIET
    }

    /// How many copies may be in flight, of a drain or of other writeback.
    pub fn lanes(&self, now: Time, is_drain: bool) -> u32 {
        match lately(self.last_at_origin, now, BUSY) {
            true => 1,
            false if is_drain && self.has_parity => LANES_PARITY,
            false => LANES_MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use cairn_block::SectorCount;

    use super::{
        Answers, BATCH, BATCH_MAX, BATCH_MIN, BUSY, CHUNK, Duration, FLUSHES_TELLING, FLUSHING,
        LANES_MAX, LANES_PARITY, LOOK, Nature, Origin, Pace, QUIET, SHARE, SHARE_QUICK, Shape,
        TELLING, Time,
    };

    const MS: Duration = Duration::from_millis(1);
    const NOW: Time = Time(1_000_000_000);

    fn pace(cache: Duration, origin: Duration) -> Pace {
        let mut pace = Pace::default();
        for _ in 0..TELLING {
            pace.cache_answered(cache);
            pace.origin_answered(origin);
        }
        pace
    }

    #[test]
    fn mean_latency_follows_and_one_outlier_does_not_dominate() {
        let mut answers = Answers::default();
        (0..8).for_each(|_| answers.add(MS));
        let near = |mean: u64, of: u64| mean.abs_diff(of) * 20 < of;
        assert!(near(answers.mean_ns, 1_000_000), "{}", answers.mean_ns);
        answers.add(MS * 100);
        assert!(answers.mean_ns < 15_000_000, "{}", answers.mean_ns);
        (0..200).for_each(|_| answers.add(MS));
        assert!(near(answers.mean_ns, 1_000_000), "{}", answers.mean_ns);
    }

    #[test]
    fn origin_speed_is_unknown_after_few_answers() {
        let mut pace = pace(MS, MS * 10);
        assert_eq!(pace.origin(NOW), Origin::Slow);
        pace.origin.count -= 1;
        assert_eq!(pace.origin(NOW), Origin::Unknown);
    }

    #[test]
    fn origin_is_slow_by_a_factor_and_by_an_absolute_time() {
        let us = Duration::from_micros;
        assert_eq!(pace(Duration::ZERO, Duration::ZERO).origin(NOW), Origin::Quick);
        assert_eq!(pace(us(1), us(40)).origin(NOW), Origin::Quick, "by a factor only");
        assert_eq!(pace(us(100), us(300)).origin(NOW), Origin::Quick, "by a time only");
        assert_eq!(pace(us(100), us(500)).origin(NOW), Origin::Slow);
    }

    #[test]
    fn origin_with_an_arm_is_slow_however_quickly_its_cache_answers() {
        let nature = |rotational| Nature { rotational, ..Nature::UNKNOWN };
        let [arm, none, unknown] = [Some(true), Some(false), None].map(nature);
        for (cache, origin, expected) in [
            (none, arm, Origin::Slow),
            (unknown, arm, Origin::Slow),
            (arm, arm, Origin::Quick),
            (none, unknown, Origin::Quick),
            (none, none, Origin::Quick),
        ] {
            let mut pace = Pace::of(cache, origin);
            for _ in 0..TELLING {
                pace.cache_answered(MS);
                pace.origin_answered(MS);
            }
            assert_eq!(pace.origin(NOW), expected, "{cache:?} {origin:?}");
        }
    }

    #[test]
    fn slow_flushes_count_while_clients_flush() {
        let mut pace = pace(MS, MS);
        for _ in 0..FLUSHES_TELLING {
            pace.cache_flushed(MS);
            pace.origin_flushed(MS * 20);
        }
        assert_eq!(pace.origin(NOW), Origin::Quick);
        pace.flush_asked(NOW);
        assert_eq!(pace.origin(NOW), Origin::Slow);
        assert_eq!(pace.origin(NOW + FLUSHING), Origin::Quick);
    }

    #[test]
    fn quick_origin_limits_writeback_to_its_share_until_writes_end() {
        let mut pace = pace(MS, MS);
        assert_eq!(pace.allowance(NOW), Ok(u64::MAX));
        pace.wrote(SHARE_QUICK * (CHUNK - 1));
        assert_eq!(pace.allowance(NOW), Err(NOW + LOOK));
        pace.wrote(SHARE_QUICK * CHUNK);
        assert_eq!(pace.allowance(NOW), Ok(CHUNK), "no more is saved up");
        pace.spend(4096);
        pace.wrote(0);
        assert_eq!(pace.allowance(NOW + QUIET * 9), Err(NOW + QUIET * 9 + LOOK), "new to it");
        assert_eq!(pace.allowance(NOW + QUIET * 10), Ok(u64::MAX));
    }

    #[test]
    fn slow_origin_limits_writeback_by_writes_around_only() {
        let mut pace = pace(MS, MS * 10);
        pace.wrote(512);
        assert_eq!(pace.allowance(NOW), Ok(u64::MAX), "it drains while the cache takes writes");
        pace.went_around(NOW, SHARE * (CHUNK - 1));
        assert_eq!(pace.allowance(NOW), Err(NOW + LOOK));
        pace.went_around(NOW, SHARE);
        assert_eq!(pace.allowance(NOW), Ok(CHUNK));
        pace.spend(CHUNK);
        assert_eq!(pace.allowance(NOW + BUSY), Ok(u64::MAX));
    }

    #[test]
    fn a_flush_of_a_drain_is_for_as_many_copies_as_take_some_seconds() {
        let mut pace = Pace::default();
        pace.begin_drain();
        let most_after = |pace: &mut Pace, copies: usize, took: Duration| {
            pace.batch_flushed(copies, took);
            pace.batch()
        };
        assert_eq!(most_after(&mut pace, BATCH, 999 * MS), 2 * BATCH);
        assert_eq!(most_after(&mut pace, BATCH, 10 * MS), 2 * BATCH, "it was for fewer");
        assert_eq!(most_after(&mut pace, 2 * BATCH, 1000 * MS), 2 * BATCH);
        assert_eq!(most_after(&mut pace, 10, 4001 * MS), BATCH, "few took long");
        for _ in 0..20 {
            pace.batch_flushed(BATCH_MAX, MS);
        }
        assert_eq!(pace.batch(), BATCH_MAX);
        for _ in 0..20 {
            pace.batch_flushed(1, 9000 * MS);
        }
        assert_eq!(pace.batch(), BATCH_MIN);
        pace.begin_drain();
        assert_eq!(pace.batch(), BATCH);
    }

    #[test]
    fn one_copy_is_in_flight_while_clients_use_the_origin() {
        let mut pace = Pace::default();
        assert_eq!(pace.lanes(NOW, false), LANES_MAX);
        pace.missed(NOW);
        assert_eq!(pace.lanes(NOW + BUSY / 2, true), 1);
        assert_eq!(pace.lanes(NOW + BUSY, true), LANES_MAX);
        let shape = Shape::Parity { chunk: SectorCount(128), data_members: 3 };
        let mut pace = Pace::of(Nature::UNKNOWN, Nature { shape, ..Nature::UNKNOWN });
        assert_eq!([false, true].map(|drain| pace.lanes(NOW, drain)), [LANES_MAX, LANES_PARITY]);
        pace.missed(NOW);
        assert_eq!(pace.lanes(NOW + BUSY / 2, true), 1);
    }
}
