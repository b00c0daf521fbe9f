//! The reference model: each grain of dirty data that was not offered since it was added, and the
//! piece that comes next by looking at all of them.

use std::collections::{BTreeMap, BTreeSet};

use cairn_block::{Sector, SectorCount, SectorRange};

use super::{Members, PART_SECTORS, Piece, TURN_SECTORS};

/// Dirty data begins and ends at multiples of this.
pub const GRAIN: u64 = PART_SECTORS / 4;

#[derive(Clone, Default)]
struct Cursor {
    at: u64,
    /// The part that the caller has not looked through to its end.
    open: Option<u64>,
    given: u64,
}

/// What was added and not offered since.
pub struct Reference {
    members: Members,
    /// By first sector of a grain, how often the cursor began again since the grain was added.
    dirty: BTreeMap<u64, u32>,
    cursors: Vec<Cursor>,
}

impl Reference {
    pub fn new(members: Members) -> Reference {
        let cursors = vec![Cursor::default(); members.count()];
        Reference { members, dirty: BTreeMap::new(), cursors }
    }

    pub fn add(&mut self, range: SectorRange) {
        for sector in (range.start.0..range.end().0).step_by(GRAIN as usize) {
            self.dirty.insert(sector, 0);
        }
    }

    pub fn is_clean(&self) -> bool {
        self.dirty.is_empty()
    }

    /// The member of a sector, and where its part begins and ends.
    fn part(&self, sector: u64) -> (usize, u64, u64) {
        let (member, zone) = self.members.zone_of(Sector(sector));
        let inside = (sector - zone.start.0) / PART_SECTORS * PART_SECTORS;
        let start = zone.start.0 + inside;
        (member, start, (start + PART_SECTORS).min(zone.end().0))
    }

    /// The parts of a member that are to be looked at.
    fn parts(&self, member: usize) -> BTreeSet<u64> {
        let dirty = self.dirty.keys().map(|&sector| self.part(sector));
        let own = dirty.filter(|part| part.0 == member).map(|part| part.1);
        own.chain(self.cursors[member].open).collect()
    }

    pub fn next(&mut self) -> Option<Piece> {
        let waiting = (0..self.cursors.len()).filter(|&member| !self.parts(member).is_empty());
        // P4
        let member = waiting.min_by_key(|&member| self.cursors[member].given)?;
        let parts = self.parts(member);
        let at = self.cursors[member].at;
        let end = self.members.end().0;
        let ahead = |part: &&u64| at < end && **part >= self.part(at).1;
        let first = parts.iter().find(ahead).copied().unwrap_or_else(|| {
            self.cursors[member].at = 0;
            let members = &self.members;
            let own = |sector: &u64| members.zone_of(Sector(*sector)).0 == member;
            for (sector, passes) in self.dirty.iter_mut().filter(|(sector, _)| own(sector)) {
                *passes += 1;
                assert!(*passes < 2, "P2: {sector} was passed over");
            }
            *parts.first().expect("it waits")
        });
        let zone = self.members.zone_of(Sector(first)).1;
        let mut end = self.part(first).2;
        while end < zone.end().0 && parts.contains(&end) {
            end = self.part(end).2;
        }
        let start = first.max(self.cursors[member].at);
        let most = if self.cursors.len() > 1 { TURN_SECTORS } else { u64::MAX };
        let range = SectorRange::between(Sector(start), Sector(end));
        Some(Piece { range, most: SectorCount(most), zone: zone.start.0, member })
    }

    pub fn looked(&mut self, piece: &Piece, to: Sector, taken: SectorCount) {
        self.dirty.retain(|&sector, _| sector < piece.range.start.0 || sector >= to.0);
        let open = (to < piece.range.end()).then(|| self.part(to.0).1);
        let cursor = &mut self.cursors[piece.member];
        cursor.open = open;
        cursor.at = to.0;
        cursor.given += taken.0;
    }
}
