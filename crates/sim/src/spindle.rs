//! [`Spindle`]: a rotating drive: one arm, one request at a time, and a queue from which it
//! chooses.
//!
//! The time of a request is the seek to its track (by the square root of the distance), the wait
//! until its first sector comes under the arm, and its transfer. The drive takes the request that
//! it can begin first, unless the oldest has waited too long. Writes take as long as reads: there
//! is no memory that would complete them early. Flushes do not need the arm.

use std::collections::VecDeque;
use std::time::Duration;

use cairn_block::{Sector, SectorCount, SectorRange, Time};

use crate::drive::OpId;

/// The properties of a drive with one arm.
#[derive(Clone, Copy, Debug)]
pub struct Spindle {
    /// One turn of the platter.
    pub revolution: Duration,
    /// A seek to the next track.
    pub seek_min: Duration,
    /// A seek over all tracks.
    pub seek_max: Duration,
    /// The length of a track.
    pub track: SectorCount,
    /// The drive chooses among at most this many requests.
    pub queue: usize,
    /// A request that has waited this long is next.
    pub patience: Duration,
}

impl Spindle {
    /// A nearline drive of 7200 turns per minute: 188 MB/s, 13 ms for a small request anywhere.
    pub const NEARLINE: Spindle = Spindle {
        revolution: Duration::from_micros(8_333),
        seek_min: Duration::from_millis(1),
        seek_max: Duration::from_micros(15_500),
        track: SectorCount(3072),
        queue: 32,
        patience: Duration::from_millis(500),
    };

    /// A request that continues the previous one loses no turn if it comes within this time after
    /// that one's end.
    const GRACE: Duration = Duration::from_millis(1);

    /// The time from `now` until the arm, at `arm`, is at the first sector `to` of a request, on a
    /// drive of `sectors`.
    fn position(&self, arm: Arm, to: Sector, sectors: SectorCount, now: Time) -> Duration {
        if arm.at == to && now.since(arm.since) < Self::GRACE {
            return Duration::ZERO;
        }
        let tracks = (sectors.0 / self.track.0).max(1) as f64;
        let distance = (arm.at.0 / self.track.0).abs_diff(to.0 / self.track.0) as f64;
        let seek = match distance {
            0.0 => Duration::ZERO,
            _ => {
                let share = (distance / tracks).sqrt();
                self.seek_min + (self.seek_max - self.seek_min).mul_f64(share)
            }
        };
        let turn = self.revolution.as_nanos() as u64;
        let under_arm = (now + seek).0 % turn;
        let angle = turn * (to.0 % self.track.0) / self.track.0;
        seek + Duration::from_nanos((angle + turn - under_arm) % turn)
    }

    fn transfer(&self, count: SectorCount) -> Duration {
        let turn = self.revolution.as_nanos() as u64;
        Duration::from_nanos(turn * count.0 / self.track.0)
    }
}

/// The position of the arm, and since when it is there.
#[derive(Clone, Copy, Default)]
struct Arm {
    at: Sector,
    since: Time,
}

/// A request that waits for the arm.
pub(crate) struct Pending {
    pub op: OpId,
    pub range: SectorRange,
    /// The delay of a planted fault.
    pub delay: Duration,
    pub since: Time,
}

/// The arm of one drive and the requests that wait for it.
#[derive(Default)]
pub(crate) struct Queue {
    arm: Arm,
    waiting: VecDeque<Pending>,
    busy: bool,
}

impl Queue {
    pub fn push(&mut self, pending: Pending) {
        self.waiting.push_back(pending);
    }

    /// The request under the arm has ended.
    pub fn release(&mut self) {
        self.busy = false;
    }

    /// The next request to begin, and how long it takes; none if the arm is busy or nothing waits.
    pub fn next(
        &mut self,
        spindle: &Spindle,
        sectors: SectorCount,
        now: Time,
    ) -> Option<(OpId, Duration)> {
        if self.busy {
            return None;
        }
        let old = self.waiting.front()?.since + spindle.patience <= now;
        let seen = if old { 1 } else { spindle.queue };
        let arm = self.arm;
        let position = |to: &Pending| spindle.position(arm, to.range.start, sectors, now);
        let queue = self.waiting.iter().take(seen).enumerate();
        let best = queue.min_by_key(|(index, pending)| (position(pending), *index))?.0;
        let pending = self.waiting.remove(best)?;
        let took = position(&pending) + spindle.transfer(pending.range.count);
        self.busy = true;
        self.arm = Arm { at: pending.range.end(), since: now + took };
        Some((pending.op, took + pending.delay))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DriveOptions, Image, SimWorld};
    use cairn_block::{Disk, Io};
    use std::sync::Arc;

    const SECTORS: u64 = 1 << 31;

    /// Requests per second for requests at `places`, with `in_flight` at a time.
    fn rate(places: &[u64], sectors: u64, in_flight: usize) -> f64 {
        let world = SimWorld::new(1, 1);
        let mut options = DriveOptions::named("a");
        (options.spindle, options.volatile_cache) = (Some(Spindle::NEARLINE), false);
        let drive: Arc<dyn Disk> = world.add_drive(options, Image::new(SectorCount(SECTORS)));
        let places: Arc<[u64]> = places.into();
        let count = places.len();
        let next = std::rc::Rc::new(std::cell::Cell::new(0));
        let ended = std::rc::Rc::new(std::cell::Cell::new(0));
        for _ in 0..in_flight {
            let (env, drive, places) = (world.env(0).clone(), drive.clone(), places.clone());
            let (next, ended) = (next.clone(), ended.clone());
            world.env(0).spawn(async move {
                while let Some(&place) = places.get(next.replace(next.get() + 1)) {
                    let range = SectorRange::new(Sector(place), SectorCount(sectors));
                    let segs = env.segs(range.count);
                    env.io(&drive, Io::write(range, segs)).await.unwrap();
                    ended.set(ended.get() + 1);
                }
            });
        }
        world.run_until(|| ended.get() == count);
        count as f64 / (world.now().0 as f64 / 1e9)
    }

    fn anywhere(count: usize) -> Vec<u64> {
        let mut rng = fastrand::Rng::with_seed(7);
        (0..count).map(|_| rng.u64(..SECTORS / 8) * 8).collect()
    }

    #[test]
    fn sequential_requests_run_at_the_speed_of_the_platter() {
        let places: Vec<u64> = (0..500).map(|piece| piece * 256).collect();
        let mib = rate(&places, 256, 8) / 8.0;
        assert!((160.0..190.0).contains(&mib), "{mib} MiB/s");
    }

    #[test]
    fn random_request_takes_a_seek_and_half_a_turn() {
        let ms = 1000.0 / rate(&anywhere(300), 8, 1);
        assert!((12.0..14.5).contains(&ms), "{ms} ms");
    }

    #[test]
    fn queue_makes_random_requests_two_to_three_times_as_fast() {
        let (one, many) = (rate(&anywhere(300), 8, 1), rate(&anywhere(600), 8, 32));
        assert!((2.0..3.5).contains(&(many / one)), "{one} and {many} per second");
    }

    #[test]
    fn sorted_requests_are_faster_still() {
        let mut places = anywhere(600);
        let arrival = rate(&places, 8, 32);
        places.sort_unstable();
        let sorted = rate(&places, 8, 32);
        assert!(sorted > 1.5 * arrival, "{arrival} and {sorted} per second");
    }
}
