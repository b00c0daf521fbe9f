//! The reference model: each grain of dirty data that was not offered since it was added, and the
//! piece that comes next by looking at all of them.

use std::collections::{BTreeMap, BTreeSet};

use cairn_block::{Sector, SectorCount, SectorRange, Time};

use super::{AGE_MAX, Members, PART_SECTORS, Piece, SHARE, TURN_SECTORS, Urgency, ZONE_SECTORS};

/// Dirty data begins and ends at multiples of this.
pub const GRAIN: u64 = PART_SECTORS / 4;

#[derive(Clone, Default)]
struct Cursor {
    at: u64,
    /// The part that the caller has not looked through to its end.
    open: Option<u64>,
    given: u64,
    /// What a zone has to bring in this round, if that is known.
    least: Option<f64>,
}

/// About what a zone has.
#[derive(Clone, Copy)]
struct Amount {
    sectors: u64,
    runs: u64,
    since: Time,
}

/// What was added and not offered since.
pub struct Reference {
    members: Members,
    /// By first sector of a grain, how often the cursor began again since it had to be offered.
    dirty: BTreeMap<u64, u32>,
    /// By first sector of a zone.
    amounts: BTreeMap<u64, Amount>,
    cursors: Vec<Cursor>,
}

impl Reference {
    pub fn new(members: Members) -> Reference {
        let cursors = vec![Cursor::default(); members.count()];
        Reference { members, dirty: BTreeMap::new(), amounts: BTreeMap::new(), cursors }
    }

    pub fn add(&mut self, range: SectorRange, now: Time) {
        let mut by_zone = BTreeMap::<u64, u64>::new();
        for sector in (range.start.0..range.end().0).step_by(GRAIN as usize) {
            self.dirty.insert(sector, 0);
            *by_zone.entry(self.zone(sector)).or_default() += GRAIN;
        }
        for (zone, sectors) in by_zone {
            let new = Amount { sectors: 0, runs: 0, since: now };
            let amount = self.amounts.entry(zone).or_insert(new);
            amount.sectors = (amount.sectors + sectors).min(ZONE_SECTORS);
            amount.runs = (amount.runs + 1).min(amount.sectors);
        }
    }

    fn zone(&self, sector: u64) -> u64 {
        self.members.zone_of(Sector(sector)).1.start.0
    }

    /// True if the zone of a sector is taken whatever it brings.
    fn must(&self, sector: u64, urgency: Urgency<'_>) -> bool {
        match urgency {
            Urgency::Drain => true,
            Urgency::Target { now, .. } => {
                now.since(self.amounts[&self.zone(sector)].since) >= AGE_MAX
            }
        }
    }

    fn worth(&self, member: usize, sector: u64, urgency: Urgency<'_>) -> f64 {
        let Urgency::Target { prices, .. } = urgency else { return 0.0 };
        let Amount { sectors, runs, .. } = self.amounts[&self.zone(sector)];
        prices.of(member).worth(runs as u32, sectors as u32)
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

    pub fn next(&mut self, urgency: Urgency<'_>) -> Option<Piece> {
        let waiting = (0..self.cursors.len()).filter(|&member| !self.parts(member).is_empty());
        // P4
        let member = waiting.min_by_key(|&member| self.cursors[member].given)?;
        // Only while a part has to be offered do the rounds count that passed it over (P2).
        let early: Vec<u64> =
            self.dirty.keys().copied().filter(|part| !self.must(*part, urgency)).collect();
        early.into_iter().for_each(|part| {
            self.dirty.insert(part, 0);
        });
        let parts = self.parts(member);
        let first = loop {
            if let Some(first) = self.first_ahead(member, &parts, urgency) {
                break first;
            }
            self.begin_again(member, urgency);
        };
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

    /// The first part ahead of the cursor whose zone was begun, or that the round takes.
    fn first_ahead(
        &mut self,
        member: usize,
        parts: &BTreeSet<u64>,
        urgency: Urgency<'_>,
    ) -> Option<u64> {
        let worth = |part: &u64| self.worth(member, *part, urgency);
        let best = parts.iter().map(worth).fold(0.0, f64::max);
        let is_drain = matches!(urgency, Urgency::Drain);
        let known = self.cursors[member].least.filter(|_| !is_drain);
        let least = known.unwrap_or(best * SHARE);
        self.cursors[member].least = Some(least).filter(|_| !is_drain);
        let (at, end) = (self.cursors[member].at, self.members.end().0);
        let mut ahead = parts.iter().copied().filter(|&part| at < end && part >= self.part(at).1);
        ahead.find(|&part| {
            let zone = self.zone(part);
            let is_begun = zone < at && zone == self.zone(at);
            is_begun || self.must(part, urgency) || self.worth(member, part, urgency) >= least
        })
    }

    fn begin_again(&mut self, member: usize, urgency: Urgency<'_>) {
        (self.cursors[member].at, self.cursors[member].least) = (0, None);
        let grains: Vec<u64> = self.dirty.keys().copied().collect();
        for grain in grains {
            if self.part(grain).0 == member {
                let passes = if self.must(grain, urgency) { self.dirty[&grain] + 1 } else { 0 };
                assert!(passes < 2, "P2: {grain} was passed over");
                self.dirty.insert(grain, passes);
            }
        }
    }

    pub fn looked(&mut self, piece: &Piece, to: Sector, taken: SectorCount) {
        self.dirty.retain(|&sector, _| sector < piece.range.start.0 || sector >= to.0);
        let open = (to < piece.range.end()).then(|| self.part(to.0).1);
        let cursor = &mut self.cursors[piece.member];
        cursor.open = open;
        cursor.at = to.0;
        cursor.given += taken.0;
        let amount = self.amounts.get_mut(&piece.zone).expect("it was dirty");
        let before = amount.sectors.max(1);
        amount.sectors = amount.sectors.saturating_sub(taken.0);
        amount.runs = (amount.runs * amount.sectors).div_ceil(before);
        let parts = self.parts(piece.member);
        if !parts.iter().any(|&part| self.zone(part) == piece.zone) {
            self.amounts.remove(&piece.zone);
        }
    }
}
