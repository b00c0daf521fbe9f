//! The planner: which dirty data of a cache goes home next. It knows no target.
//!
//! A backing device is made of members, one after another ([`Members`]), a member of zones of
//! [`ZONE_SECTORS`], a zone of 64 parts. The planner knows which parts may have dirty data, and of
//! each zone about how much it has, in how many runs of touching sectors, and since when. It knows
//! no extent, so its memory is bounded by the zones: about 50 bytes for each dirty one, 26 MB for a
//! device of 16 TiB that is dirty everywhere. It does no I/O, has no clock and takes no lock.
//!
//! # Order
//! Each member has a cursor, which goes over the dirty parts of the member by rising sectors and
//! then begins again at the first: a round. The member that was given the fewest sectors has the
//! next turn. So the arm of each spindle moves in one direction, and all spindles have work at the
//! same time. A position within stripes rises on all their devices together, so stripes are one
//! member.
//!
//! A drain takes all that it meets: one round is the shortest way. If only a part is to go home
//! until a target is met ([`Urgency::Target`]), a round takes the zones from which a second brings
//! home at least half as many sectors as from the best zone, by the prices that were fitted to the
//! member's writes ([`Prices`]). The others wait, and gather more dirty data, until no better zone
//! is left, or for [`AGE_MAX`]: from then on the next round takes them whatever they bring.
//!
//! # Who does what
//! - The caller tells the planner of dirty data ([`Planner::add`]). It need not say what is gone:
//!   it finds nothing there, and the zone is forgotten.
//! - The planner answers with a [`Piece`]: a range within one zone, and how many sectors the caller
//!   may take there before it asks again.
//! - The caller looks up the dirty data in this range, in order, decides what may be written now,
//!   and makes writes of it. Then it says how far it has looked ([`Planner::looked`]). It adds
//!   nothing between the question and this answer.
//! - The rest is the caller's: which data may be written (uncommitted, being written, removed),
//!   the merging of what touches, the rate, memory, flushes, and what a crash leaves. Data that it
//!   passed over, or whose copy failed, it adds again or finds in another way.
//!
//! # Invariants
//! P1. A piece lies within one zone and one member.
//! P2. In a drain, what is added is offered before the cursor of its member has begun again twice.
//!     Otherwise that holds from the time on when its zone has the age [`AGE_MAX`]. A caller that
//!     looks at what it is offered starves no part.
//! P3. A part that was looked through is not offered again until something is added there.
//! P4. The member that has the next turn was given the fewest sectors of those with dirty parts.
//! P5. A zone that was begun is offered to its end, before another one of its member.
//! P6. One question looks at a few times [`STEP`] zones at most.

mod members;
mod prices;
#[cfg(test)]
#[cfg(not(shuttle))]
mod reference;
#[cfg(test)]
#[cfg(not(shuttle))]
mod tests;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use cairn_block::{Sector, SectorCount, SectorRange, Time};

pub(crate) use members::Members;
use prices::Price;
pub(crate) use prices::Prices;

/// The length of a zone, but for the last one of a member.
pub(crate) const ZONE_SECTORS: u64 = (32 << 20) / 512;
/// The length of a part of a zone.
const PART_SECTORS: u64 = ZONE_SECTORS / 64;
/// How many sectors a member is given in one turn, if there are several.
const TURN_SECTORS: u64 = (64 << 10) / 512;
/// A zone that is dirty for so long goes home with the next round, whatever that takes.
pub(crate) const AGE_MAX: Duration = Duration::from_secs(3600);
/// A round takes the zones that bring this share of what the best zone does, or more.
const SHARE: f64 = 0.5;
/// How many zones one question looks at.
const STEP: usize = 4096;

/// A dirty zone.
#[derive(Clone, Copy, Debug)]
struct Zone {
    /// A bit for each part that may have dirty data. Not 0.
    parts: u64,
    /// About how many sectors are dirty, and in how many runs.
    sectors: u32,
    runs: u32,
    /// When the oldest of them was added.
    since: Time,
}

impl Zone {
    fn new(since: Time) -> Zone {
        Zone { parts: 0, sectors: 0, runs: 0, since }
    }

    fn add(&mut self, from: u64, to: u64) {
        self.parts |= parts(part_of(from), to);
        // Both are at most those of a zone: data that is added again counts twice otherwise.
        self.sectors = (self.sectors + (to - from) as u32).min(ZONE_SECTORS as u32);
        self.runs = (self.runs + 1).min(self.sectors);
    }

    /// So many sectors of it go home.
    fn take(&mut self, taken: SectorCount) {
        let before = u64::from(self.sectors.max(1));
        self.sectors = self.sectors.saturating_sub(taken.0.min(before) as u32);
        self.runs = (u64::from(self.runs) * u64::from(self.sectors)).div_ceil(before) as u32;
    }

    fn is_due(&self, now: Time) -> bool {
        now.since(self.since) >= AGE_MAX
    }

    /// True if a round takes it.
    fn is_wanted(&self, least: f64, urgency: Urgency<'_>, price: &Price) -> bool {
        match urgency {
            Urgency::Drain => true,
            Urgency::Target { now, .. } => {
                self.is_due(now) || price.worth(self.runs, self.sectors) >= least
            }
        }
    }
}

/// What the round of a member takes.
#[derive(Clone, Copy, Debug)]
enum Round {
    /// Not known before the zones from this one on are looked at; the best one before it brings so
    /// many sectors in a second.
    Measuring { at: u64, best: f64 },
    /// Zones that bring at least so much.
    Going { least: f64 },
}

impl Round {
    const NEW: Round = Round::Measuring { at: 0, best: 0.0 };
}

/// The dirty parts of a member.
#[derive(Clone)]
struct Queue {
    /// By their first sectors.
    zones: BTreeMap<u64, Zone>,
    /// The next piece begins here or later, or at the first dirty part.
    cursor: u64,
    /// Data was added before the cursor, in the part that the cursor is in.
    behind: bool,
    /// How many sectors the member was given.
    given: u64,
    round: Round,
}

/// The first sector of the part that a sector of a zone lies in.
fn part_of(sector: u64) -> u64 {
    sector / PART_SECTORS * PART_SECTORS
}

/// The bits of the parts that begin at `from` or later and before `to`, in sectors of a zone.
fn parts(from: u64, to: u64) -> u64 {
    let below = |sector: u64| match sector.div_ceil(PART_SECTORS) {
        64.. => u64::MAX,
        part => (1 << part) - 1,
    };
    below(to) & !below(from)
}

/// What is to go home.
#[derive(Clone, Copy)]
pub(crate) enum Urgency<'p> {
    /// All.
    Drain,
    /// The most for the time that it takes, at these prices.
    Target { now: Time, prices: &'p Prices },
}

/// What the planner says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Look there.
    Look(Piece),
    /// More zones are to be looked at: ask again, after other tasks.
    Again,
    /// No part is dirty.
    Nothing,
}

/// Where to look next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The range that may have dirty data.
    pub range: SectorRange,
    /// How many sectors the caller may take there; it may exceed this by its last write.
    pub most: SectorCount,
    zone: u64,
    member: usize,
}

impl Queue {
    const NEW: Queue =
        Queue { zones: BTreeMap::new(), cursor: 0, behind: false, given: 0, round: Round::NEW };

    /// The next zone of the round, and its parts that are ahead of the cursor; none if one question
    /// has looked at enough. Some zone is dirty. `under` is the zone that the cursor lies in.
    fn ahead(&mut self, mut under: u64, urgency: Urgency<'_>, price: &Price) -> Option<(u64, u64)> {
        loop {
            let least = match urgency {
                Urgency::Drain => {
                    self.round = Round::NEW;
                    0.0
                }
                Urgency::Target { .. } => self.measure(price)?,
            };
            let passed = part_of(self.cursor - under);
            for (looked, (&start, zone)) in self.zones.range(under..).enumerate() {
                if looked == STEP {
                    self.cursor = start;
                    return None;
                }
                let is_under = start == under;
                let ahead = match is_under {
                    true => zone.parts & parts(passed, ZONE_SECTORS),
                    false => zone.parts,
                };
                // P5
                let is_begun = is_under && self.cursor > start;
                if ahead != 0 && (is_begun || zone.is_wanted(least, urgency, price)) {
                    return Some((start, ahead));
                }
            }
            self.begin_again();
            under = 0;
        }
    }

    /// The cursor is at the first sector, and what the next round takes is not known.
    fn begin_again(&mut self) {
        (self.cursor, self.round) = (0, Round::NEW);
    }

    /// What a zone has to bring in this round; none if one question has looked at enough.
    fn measure(&mut self, price: &Price) -> Option<f64> {
        let (at, mut best) = match self.round {
            Round::Going { least } => return Some(least),
            Round::Measuring { at, best } => (at, best),
        };
        let mut zones = self.zones.range(at..);
        for (_, zone) in zones.by_ref().take(STEP) {
            best = price.worth(zone.runs, zone.sectors).max(best);
        }
        if let Some((&at, _)) = zones.next() {
            self.round = Round::Measuring { at, best };
            return None;
        }
        let least = best * SHARE;
        self.round = Round::Going { least };
        Some(least)
    }
}

/// The dirty zones, and which one is next.
#[derive(Clone)]
pub(crate) struct Planner {
    members: Members,
    queues: Vec<Queue>,
}

impl Planner {
    /// A planner that knows of no dirty data.
    pub fn new(members: Members) -> Planner {
        let queues = vec![Queue::NEW; members.count()];
        Planner { members, queues }
    }

    /// A range, all of which is dirty, is one run of dirty data. What lies behind the last member
    /// is ignored.
    pub fn add(&mut self, range: SectorRange, now: Time) {
        let (mut at, end) = (range.start.0, range.end().min(self.members.end()).0);
        while at < end {
            let (member, zone) = self.members.zone_of(Sector(at));
            let queue = &mut self.queues[member];
            let (start, end) = (zone.start.0, end.min(zone.end().0));
            let (from, to) = (at - start, end - start);
            queue.zones.entry(start).or_insert_with(|| Zone::new(now)).add(from, to);
            if zone.contains(Sector(queue.cursor)) {
                let cursor = queue.cursor - start;
                queue.behind |= from < cursor && part_of(cursor) < cursor.min(to);
            }
            at = end;
        }
    }

    /// Goes on where another planner of the same members was, which knew of what was dirty before:
    /// zones that both have keep their age.
    pub fn follow(&mut self, before: &Planner) {
        if before.members != self.members {
            return;
        }
        for (queue, before) in self.queues.iter_mut().zip(&before.queues) {
            (queue.cursor, queue.given) = (before.cursor, before.given);
            for (start, zone) in &mut queue.zones {
                let known = before.zones.get(start);
                zone.since = known.map_or(zone.since, |known| known.since.min(zone.since));
            }
        }
    }

    /// Where to look next.
    pub fn next(&mut self, urgency: Urgency<'_>) -> Answer {
        let dirty = self.queues.iter().enumerate().filter(|(_, queue)| !queue.zones.is_empty());
        let Some((member, _)) = dirty.min_by_key(|(_, queue)| queue.given) else {
            return Answer::Nothing;
        };
        let several = self.queues.len() > 1;
        let queue = &mut self.queues[member];
        let price = match urgency {
            Urgency::Drain => Price::FIRST,
            Urgency::Target { prices, .. } => prices.of(member),
        };
        let (_, under) = self.members.zone_of(Sector(queue.cursor));
        let Some((zone, ahead)) = queue.ahead(under.start.0, urgency, &price) else {
            return Answer::Again;
        };
        let first = u64::from(ahead.trailing_zeros());
        let count = u64::from((ahead >> first).trailing_ones());
        let start = Sector(queue.cursor.max(zone + first * PART_SECTORS));
        let end = Sector(zone + (first + count) * PART_SECTORS);
        let end = end.min(self.members.zone_of(start).1.end());
        let most = SectorCount(if several { TURN_SECTORS } else { u64::MAX });
        Answer::Look(Piece { range: SectorRange::between(start, end), most, zone, member })
    }

    /// The caller has looked at a piece up to a sector, and took so much.
    pub fn looked(&mut self, piece: &Piece, to: Sector, taken: SectorCount) {
        let queue = &mut self.queues[piece.member];
        let Entry::Occupied(mut entry) = queue.zones.entry(piece.zone) else {
            unreachable!("the zone of a piece is dirty");
        };
        let (from, sector) = (part_of(piece.range.start.0 - piece.zone), to.0 - piece.zone);
        let is_through = to >= piece.range.end();
        let mut seen = parts(from, if is_through { sector } else { part_of(sector) });
        let first = parts(from, from + 1);
        if seen & first != 0 && std::mem::take(&mut queue.behind) {
            seen &= !first;
        }
        let zone = entry.get_mut();
        zone.parts &= !seen;
        zone.take(taken);
        if zone.parts == 0 {
            entry.remove();
        }
        queue.given += taken.0;
        queue.cursor = to.0;
        if to >= self.members.end() {
            queue.begin_again();
        }
    }
}
