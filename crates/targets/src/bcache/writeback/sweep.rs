//! The sweep: the planner chooses what the background writeback copies next.
//!
//! A pass fills a planner with what is dirty, in pieces, and ends when nothing is left of it. The
//! planner knows zones and no extents; the extents of a zone are looked up when it is their turn,
//! so what became dirty there since goes with them. While more than the target is dirty, the
//! planner is filled again after [`REFILL`]: then it knows which zones clients have written since,
//! and no write of a client pays for that. Zones keep their age.
//!
//! While parts of stripes are expensive, stripes that are dirty as a whole go home first: they have
//! a planner of their own. Its parts may have neighbors of these stripes, too.

use std::time::Duration;

use cairn_block::sync::atomic::Ordering;
use cairn_block::{Env, Sector, SectorCount, SectorRange, Time, yield_once};
use cairn_format::bcache::Key;

use super::batch::BATCH_SECTORS;
use crate::bcache::btree::Which;
use crate::bcache::flushing::Flushing;
use crate::bcache::stripes::Stripes;
use crate::bcache::volume::Bcache;
use crate::bcache::work;
use crate::planner::{Answer, Members, Piece, Planner, Urgency};

/// How many extents are looked at while the lock is held; those that are dirty take longer.
fn piece_keys() -> usize {
    work::piece() / 2
}

/// How long a planner knows enough of what is dirty.
const REFILL: Duration = Duration::from_secs(60);

/// A batch gets no more extents once the drive is expected to take so many times the time after
/// which it is sealed, its flush included: clients do not write in place what is in it, and what
/// they ask of the drive waits for the flush.
const PLANNED_TIMES: u32 = 2;
/// While clients are active it is this part of that time: half a second, in which hosts expect an
/// answer to a read. It doubles with each batch in which no client asked for anything.
const ACTIVE_PART: u32 = 4;
/// How many extents are looked at then, before it is asked how long they take.
const LOOKED_ACTIVE: usize = 64;
/// So many extents are taken in any case: what a flush takes beyond the work of the batch is not
/// told apart, and must not make batches ever shorter.
const EXTENTS_MIN: usize = 256;

/// What is left of a pass.
pub(super) struct Sweep {
    /// Of stripes that are dirty as a whole, and of the rest.
    planners: [Planner; 2],
    /// When they were filled.
    filled: Time,
}

/// Sectors that are dirty in a row.
#[derive(Clone, Copy, Default)]
struct Row {
    start: u64,
    end: u64,
}

/// How many extents are looked at, and how many sectors are taken, before the planner is asked
/// again.
#[derive(Clone, Copy)]
struct Room {
    extents: usize,
    sectors: u64,
}

/// How long the drive may take for the next batch, if that was `before` for the last one. `sealed`
/// is the time after which a batch is sealed.
pub(super) fn planned_time(sealed: Duration, before: Duration, are_active: bool) -> Duration {
    let least = sealed / ACTIVE_PART;
    match are_active {
        true => least,
        false => (2 * before).clamp(least, PLANNED_TIMES * sealed),
    }
}

/// The rows that keys make, in their order.
pub(super) fn rows_of(keys: &[Key]) -> impl Iterator<Item = SectorRange> {
    let rows = keys.chunk_by(|key, next| key.end() == next.start());
    rows.map(|row| range_of(row[0].start(), row[row.len() - 1].end()))
}

fn range_of(start: u64, end: u64) -> SectorRange {
    SectorRange::between(Sector(start), Sector(end))
}

impl Sweep {
    fn new(members: &Members, now: Time) -> Sweep {
        Sweep { planners: [(); 2].map(|()| Planner::new(members.clone())), filled: now }
    }

    /// Adds a row, of which nothing follows. `stripe` is 0 if parts are not expensive.
    fn add(&mut self, row: Row, stripe: u64) {
        let Row { start, end } = row;
        let (first, last) = match stripe {
            0 => (end, end),
            _ => (start.next_multiple_of(stripe), end / stripe * stripe),
        };
        let ([whole, rest], now) = (&mut self.planners, self.filled);
        if first >= last {
            return rest.add(range_of(start, end), now);
        }
        whole.add(range_of(first, last), now);
        for (start, end) in [(start, first), (last, end)] {
            if start < end {
                rest.add(range_of(start, end), now);
            }
        }
    }

    /// Goes on where another one was.
    fn follow(&mut self, before: &Sweep) {
        for (planner, before) in self.planners.iter_mut().zip(&before.planners) {
            planner.follow(before);
        }
    }

    /// True if the planners are to be filled again, above the target.
    pub fn is_old(&self, now: Time) -> bool {
        now.since(self.filled) >= REFILL
    }

    /// What the first planner says that knows of dirty data, and which one that is.
    fn next(&mut self, urgency: Urgency<'_>) -> (usize, Answer) {
        let [whole, rest] = &mut self.planners;
        match whole.next(urgency) {
            Answer::Nothing => (1, rest.next(urgency)),
            answer => (0, answer),
        }
    }

    /// What a batch left goes with a later one of the pass.
    pub fn add_again(&mut self, untried: &[Key]) {
        let ([_, rest], now) = (&mut self.planners, self.filled);
        untried.iter().for_each(|key| rest.add(range_of(key.start(), key.end()), now));
    }
}

impl Bcache {
    /// A sweep that knows what is dirty now, and goes on where another one was.
    pub(super) async fn plan_pass(&self, env: &Env, before: Option<Sweep>) -> Sweep {
        let backing = &self.config.devices.backing().expect("a volume that is drained").disk;
        let members = Members::of(backing);
        self.throttle.prices.lock().know(&members);
        let mut sweep = Sweep::new(&members, env.now());
        let stripe = self.stripes.as_ref().map_or(0, Stripes::expensive_size);
        let mut row = Row::default();
        let mut add = |key: &Key| {
            if key.is_dirty() && key.start() != row.end {
                sweep.add(row, stripe);
                row.start = key.start();
            }
            row.end = if key.is_dirty() { key.end() } else { row.end };
            true
        };
        let core = self.core.as_ref().expect("a volume that is drained has a cache");
        // What was found before the set broke is not written.
        let _ = core.scan_volume(env, self.inode(), Which::Dirty, &mut add).await;
        sweep.add(row, stripe);
        if let Some(before) = &before {
            sweep.follow(before);
        }
        sweep
    }

    fn ask(&self, sweep: &mut Sweep, now: Time, is_drain: bool) -> (usize, Answer) {
        let prices = self.throttle.prices.lock();
        sweep.next(if is_drain { Urgency::Drain } else { Urgency::Target { now, prices: &prices } })
    }

    /// True if no client has asked for anything for some batches.
    pub(super) fn is_calm(&self, planned: Duration) -> bool {
        planned >= self.config.flushing.batch_time[0]
    }

    /// The dirty extents that the sweep chooses, of about `most` sectors at most, for which the
    /// drive takes about the planned time.
    pub(super) async fn next_swept(
        &self,
        env: &Env,
        sweep: &mut Sweep,
        most: u64,
        planned: Duration,
    ) -> Vec<Key> {
        let (mut keys, mut sectors, mut looked_at) = (Vec::new(), 0, 0);
        let mut time = Duration::ZERO;
        let most = most.min(BATCH_SECTORS);
        let Flushing { batch_keys, .. } = self.config.flushing;
        let step = if self.is_calm(planned) { piece_keys() } else { LOOKED_ACTIVE };
        let is_full = |keys: &[Key], time| time >= planned && keys.len() >= EXTENTS_MIN;
        while keys.len() < batch_keys && sectors < most && !is_full(&keys, time) {
            let is_drain = self.throttle.settings.percent.load(Ordering::Relaxed) == 0;
            let (planner, piece) = match self.ask(sweep, env.now(), is_drain) {
                (planner, Answer::Look(piece)) => (planner, piece),
                (_, Answer::Again) => {
                    yield_once().await;
                    continue;
                }
                (_, Answer::Nothing) => break,
            };
            let before = keys.len();
            let room = Room {
                sectors: (most - sectors).min(piece.most.0),
                extents: step.min(batch_keys.saturating_sub(before)).max(1),
            };
            let looked = self.dirty_of(env, &piece, room, &mut keys).await;
            let taken = keys[before..].iter().map(Key::sectors).sum();
            sectors += taken;
            time += self.throttle.prices.lock().time_of(rows_of(&keys[before..]));
            let to = looked.unwrap_or(piece.range.end());
            sweep.planners[planner].looked(
                &piece,
                to.clamp(piece.range.start, piece.range.end()),
                SectorCount(taken),
            );
            if looked.is_none() {
                break;
            }
            looked_at += keys.len() - before;
            if taken == 0 || looked_at >= piece_keys() {
                looked_at = 0;
                yield_once().await;
            }
        }
        keys
    }

    /// Takes the dirty extents of a piece that there is room for. Answers how far it has looked;
    /// none if the set is broken.
    async fn dirty_of(
        &self,
        env: &Env,
        piece: &Piece,
        room: Room,
        keys: &mut Vec<Key>,
    ) -> Option<Sector> {
        let mut sectors = 0;
        let (start, end) = (piece.range.start.0, piece.range.end().0);
        let (mut looked, mut to) = (0, piece.range.end());
        let mut take = |key: &Key| {
            if looked == room.extents || sectors >= room.sectors {
                to = Sector(key.start());
                return false;
            }
            looked += 1;
            // An extent that begins before the piece was offered with the one before.
            if key.is_dirty() && key.start() >= start && !self.is_written(key) {
                sectors += key.sectors();
                keys.push(*key);
            }
            true
        };
        let (from, upto) = ((self.inode(), start), (self.inode(), end));
        let core = self.core.as_ref()?;
        core.scan(env, from, upto, Which::Dirty, &mut take).await.ok().map(|()| to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pieces of a sweep over these rows, in sectors.
    fn pieces(rows: &[(u64, u64)], stripe: u64) -> Vec<(u64, u64)> {
        let members = Members::of_one(SectorCount(1 << 20));
        let mut sweep = Sweep::new(&members, Time(0));
        rows.iter().for_each(|(start, end)| sweep.add(Row { start: *start, end: *end }, stripe));
        std::iter::from_fn(|| {
            let (at, Answer::Look(piece)) = sweep.next(Urgency::Drain) else { return None };
            sweep.planners[at].looked(&piece, piece.range.end(), piece.range.count);
            Some((piece.range.start.0, piece.range.end().0))
        })
        .collect()
    }

    #[test]
    fn batches_become_longer_step_by_step_while_clients_are_quiet() {
        let sealed = Duration::from_secs(2);
        let mut planned = Duration::ZERO;
        let mut next = |are_active| {
            planned = planned_time(sealed, planned, are_active);
            planned.as_millis()
        };
        let quiet = [false; 5].map(&mut next);
        assert_eq!(quiet, [500, 1000, 2000, 4000, 4000]);
        assert_eq!([true, true, false].map(next), [500, 500, 1000]);
    }

    #[test]
    fn whole_stripes_come_first_where_parts_are_expensive() {
        let rows = [(0, 8), (100_000, 100_008), (3000, 9000), (200_000, 206_144)];
        let sorted = pieces(&rows, 0);
        assert!(sorted.is_sorted());
        assert_eq!(pieces(&rows, 3072)[..2], [(3072, 6144), (202_752, 205_824)]);
        let found = pieces(&rows, 3072);
        assert!(found[2..].is_sorted(), "{found:?}");
    }

    #[test]
    fn a_row_without_a_whole_stripe_is_a_part() {
        assert_eq!(pieces(&[(1000, 6000)], 3072), [(0, 6144)]);
    }
}
