//! The planner: which dirty data of a cache goes home next. It knows no target.
//!
//! A backing device is made of members, one after another ([`Members`]), a member of zones of
//! [`ZONE_SECTORS`], a zone of 64 parts. The planner knows which parts may have dirty data: 64 bits
//! for each dirty zone. It knows no extent, so its memory is bounded by the zones. It does no I/O,
//! has no clock and takes no lock.
//!
//! # Order
//! Each member has a cursor, which goes over the dirty parts of the member by rising sectors and
//! then begins again at the first. The member that was given the fewest sectors has the next turn.
//! So the arm of each spindle moves in one direction, and all spindles have work at the same time.
//! A position within stripes rises on all their devices together, so stripes are one member.
//!
//! # Who does what
//! - The caller tells the planner of dirty data ([`Planner::add`]).
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
//! P2. What is added is offered before the cursor of its member has begun again twice. A caller
//!     that looks at what it is offered starves no part.
//! P3. A part that was looked through is not offered again until something is added there.
//! P4. The member that has the next turn was given the fewest sectors of those with dirty parts.

mod members;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use cairn_block::{Sector, SectorCount, SectorRange};

pub(crate) use members::Members;

/// The length of a zone, but for the last one of a member.
pub(crate) const ZONE_SECTORS: u64 = (32 << 20) / 512;
/// The length of a part of a zone.
const PART_SECTORS: u64 = ZONE_SECTORS / 64;
/// How many sectors a member is given in one turn, if there are several.
const TURN_SECTORS: u64 = (64 << 10) / 512;

/// The dirty parts of a member.
#[derive(Clone, Default)]
struct Queue {
    /// By the first sector of the zone, a bit for each dirty part. No zone without a bit.
    zones: BTreeMap<u64, u64>,
    /// The next piece begins here or later, or at the first dirty part.
    cursor: u64,
    /// Data was added before the cursor, in the part that the cursor is in.
    behind: bool,
    /// How many sectors the member was given.
    given: u64,
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

/// The dirty zones, and which one is next.
pub(crate) struct Planner {
    members: Members,
    queues: Vec<Queue>,
}

impl Planner {
    /// A planner that knows of no dirty data.
    pub fn new(members: Members) -> Planner {
        let queues = vec![Queue::default(); members.count()];
        Planner { members, queues }
    }

    /// A range has dirty data. What lies behind the last member is ignored.
    pub fn add(&mut self, range: SectorRange) {
        let (mut at, end) = (range.start.0, range.end().min(self.members.end()).0);
        while at < end {
            let (member, zone) = self.members.zone_of(Sector(at));
            let queue = &mut self.queues[member];
            let (start, end) = (zone.start.0, end.min(zone.end().0));
            let (from, to) = (at - start, end - start);
            *queue.zones.entry(start).or_default() |= parts(part_of(from), to);
            if zone.contains(Sector(queue.cursor)) {
                let cursor = queue.cursor - start;
                queue.behind |= from < cursor && part_of(cursor) < cursor.min(to);
            }
            at = end;
        }
    }

    /// Where to look next; none if no part is dirty.
    pub fn next(&mut self) -> Option<Piece> {
        let dirty = self.queues.iter().enumerate().filter(|(_, queue)| !queue.zones.is_empty());
        let (member, _) = dirty.min_by_key(|(_, queue)| queue.given)?;
        let several = self.queues.len() > 1;
        let queue = &mut self.queues[member];
        let (_, under) = self.members.zone_of(Sector(queue.cursor));
        let passed = part_of(queue.cursor - under.start.0);
        let ahead = queue.zones.range(under.start.0..).find_map(|(&zone, &bits)| {
            let ahead =
                if zone == under.start.0 { bits & parts(passed, ZONE_SECTORS) } else { bits };
            (ahead != 0).then_some((zone, ahead))
        });
        let (zone, ahead) = match ahead {
            Some(ahead) => ahead,
            None => {
                queue.cursor = 0;
                queue.zones.iter().next().map(|(&zone, &bits)| (zone, bits))?
            }
        };
        let first = u64::from(ahead.trailing_zeros());
        let count = u64::from((ahead >> first).trailing_ones());
        let start = Sector(queue.cursor.max(zone + first * PART_SECTORS));
        let end = Sector(zone + (first + count) * PART_SECTORS);
        let end = end.min(self.members.zone_of(start).1.end());
        let most = SectorCount(if several { TURN_SECTORS } else { u64::MAX });
        Some(Piece { range: SectorRange::between(start, end), most, zone, member })
    }

    /// The caller has looked at a piece up to a sector, and took so much.
    pub fn looked(&mut self, piece: &Piece, to: Sector, taken: SectorCount) {
        let queue = &mut self.queues[piece.member];
        let Entry::Occupied(mut bits) = queue.zones.entry(piece.zone) else {
            unreachable!("the zone of a piece is dirty");
        };
        let (from, sector) = (part_of(piece.range.start.0 - piece.zone), to.0 - piece.zone);
        let is_through = to >= piece.range.end();
        let mut seen = parts(from, if is_through { sector } else { part_of(sector) });
        let first = parts(from, from + 1);
        if seen & first != 0 && std::mem::take(&mut queue.behind) {
            seen &= !first;
        }
        *bits.get_mut() &= !seen;
        if *bits.get() == 0 {
            bits.remove();
        }
        queue.given += taken.0;
        queue.cursor = if to < self.members.end() { to.0 } else { 0 };
    }
}
