//! Claims: which volume uses which range of which disk, and which others may use it too.
//!
//! Owns the rules and the register of entries. It knows neither tables nor targets (`claiming`
//! turns those into entries). Does no I/O and never waits.
//!
//! A *holder* is a volume. Each of its entries names a disk, a range and a kind ([`ClaimKind`]). A
//! claim on a volume is entered for the volume and for every range beneath it to which remappers
//! lead, so that two claims meet wherever their stacks meet. A remapper (`linear` and the like)
//! claims nothing; its table is entered as a *writer*, so that claims see it.
//!
//! Two entries of different holders clash if they overlap on one disk, unless
//! - C1. both only read, or both are writers: remappers may share a range;
//! - C2. both are claims of one kin: the same role on the same device (a snapshot and its origin;
//!   not an origin reached by another path, which would not see the writes);
//! - C3. one is a writer of a suspended volume: it writes nothing, and is checked again at its
//!   resume;
//! - C4. one claim leads through a volume that the other holder is a part of: a volume beneath acts
//!   for the one above;
//! - C5. the existing entry belongs to a suspended volume and is handed over: to a part of the same
//!   volume (a volume and what its snapshots made of it), or, for a claim that may be handed over,
//!   to the same role on the same device. It is then taken out, and its former holder must claim it
//!   again at its own resume.
//!
//! Within one table, overlapping entries clash if one is a claim, except among kin.
//!
//! L1. No two entries in the register clash: a suspended volume keeps its claims.
//! L2. A refused change leaves the register unchanged.

use std::collections::HashMap;

use crate::units::SectorRange;

/// How a range of a disk is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimKind {
    /// By its owner alone.
    Own,
    /// By its owner alone; a suspended owner gives it up to another volume in the same role.
    Handed,
    /// By all holders with the same role on the same device, and no other.
    Kin,
    /// It must not change; others may read it.
    Read,
}

/// A place that can be claimed: a mapped device by its number, another disk by its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Place {
    Volume(u32),
    Disk(usize),
}

/// What an entry says of its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// A remapper may write it.
    Writer,
    /// It is claimed, in a role that an error names.
    Claim(ClaimKind, &'static str),
}

/// One use of one range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub place: Place,
    pub range: SectorRange,
    pub how: Use,
    /// Where the way to this place began: what the table names.
    pub root: Place,
    /// The families of the volumes on the way, without the one at this place.
    pub through: Vec<String>,
    /// The place, to be printed.
    pub name: String,
}

/// A volume that uses something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub id: u32,
    pub name: String,
    /// What it is a part of.
    pub family: String,
}

/// Two entries that exclude each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Clash {
    /// Who asked, and for what.
    pub asker: Holder,
    pub wanted: Entry,
    /// Who has it, and how; the asker itself if its table names something twice.
    pub owner: Holder,
    pub held: Entry,
}

struct Held {
    holder: Holder,
    live: bool,
    entries: Vec<Entry>,
}

/// Everybody's entries.
#[derive(Default)]
pub(crate) struct Register {
    held: HashMap<u32, Held>,
    /// Who has entries at a place.
    users: HashMap<Place, Vec<u32>>,
}

impl Entry {
    fn overlaps(&self, other: &Entry) -> bool {
        self.place == other.place && self.range.overlaps(other.range)
    }

    fn is_kin_of(&self, other: &Entry) -> bool {
        matches!(self.how, Use::Claim(ClaimKind::Kin, _))
            && self.how == other.how
            && self.root == other.root
    }

    fn is_handed_to(&self, other: &Entry) -> bool {
        matches!(self.how, Use::Claim(ClaimKind::Handed, _))
            && self.how == other.how
            && self.root == other.root
    }

    /// C1 and C2: true if both may exist, for any holders.
    fn goes_with(&self, other: &Entry) -> bool {
        let reads = |entry: &Entry| matches!(entry.how, Use::Claim(ClaimKind::Read, _));
        let both_write = self.how == Use::Writer && other.how == Use::Writer;
        both_write || (reads(self) && reads(other)) || self.is_kin_of(other)
    }
}

/// What becomes of an entry that is in the register when another one overlaps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meeting {
    Peace,
    HandOver,
    Clash,
}

impl Held {
    fn meet(&self, held: &Entry, asker: &Holder, wanted: &Entry) -> Meeting {
        if !held.overlaps(wanted) || held.goes_with(wanted) {
            return Meeting::Peace;
        }
        if held.through.contains(&asker.family) || wanted.through.contains(&self.holder.family) {
            return Meeting::Peace; // C4
        }
        if self.live {
            return Meeting::Clash;
        }
        if held.how == Use::Writer {
            return Meeting::Peace; // C3
        }
        let is_handed = self.holder.family == asker.family || held.is_handed_to(wanted);
        if is_handed { Meeting::HandOver } else { Meeting::Clash } // C5
    }
}

/// The first two entries of one table that exclude each other.
pub(crate) fn clash_within(asker: &Holder, entries: &[Entry]) -> Option<Clash> {
    for (at, held) in entries.iter().enumerate() {
        let later = entries[at + 1..].iter();
        let clashes = |wanted: &&Entry| held.overlaps(wanted) && !held.goes_with(wanted);
        if let Some(wanted) = later.clone().find(clashes) {
            return Some(Clash {
                asker: asker.clone(),
                wanted: wanted.clone(),
                owner: asker.clone(),
                held: held.clone(),
            });
        }
    }
    None
}

impl Register {
    /// True if `entries` could be a live holder's, as far as the others are concerned. `moving`
    /// are holders that do not count, for instance because their entries are being replaced too.
    pub fn check(
        &self,
        asker: &Holder,
        entries: &[Entry],
        moving: &[u32],
    ) -> Result<Vec<(u32, Entry)>, Box<Clash>> {
        let mut handed = Vec::new();
        for wanted in entries {
            let users = self.users.get(&wanted.place).into_iter().flatten();
            let others = users.filter(|id| **id != asker.id && !moving.contains(*id));
            for other in others.map(|id| &self.held[id]) {
                for held in &other.entries {
                    match other.meet(held, asker, wanted) {
                        Meeting::Peace => (),
                        Meeting::HandOver => handed.push((other.holder.id, held.clone())),
                        Meeting::Clash => {
                            return Err(Box::new(Clash {
                                asker: asker.clone(),
                                wanted: wanted.clone(),
                                owner: other.holder.clone(),
                                held: held.clone(),
                            }));
                        }
                    }
                }
            }
        }
        Ok(handed)
    }

    /// Enters `entries` for a holder that is about to be live, in place of those it had; and for
    /// those above it, whose ways lead through it, what they have from now on.
    pub fn replace(
        &mut self,
        asker: &Holder,
        entries: Vec<Entry>,
        above: Vec<(u32, Vec<Entry>)>,
    ) -> Result<(), Box<Clash>> {
        let mut handed = self.check_all(asker, &entries, &above)?;
        for (id, entry) in handed.drain(..) {
            let mut left = self.held[&id].entries.clone();
            left.retain(|other| *other != entry);
            self.set(id, left);
        }
        let holder = asker.clone();
        self.held.entry(asker.id).or_insert(Held { holder, live: true, entries: Vec::new() });
        self.set(asker.id, entries);
        self.held.get_mut(&asker.id).expect("it was just entered").live = true;
        above.into_iter().for_each(|(id, entries)| self.set(id, entries));
        Ok(())
    }

    /// The same, changing nothing (L2). Answers what would be handed over.
    pub fn check_all(
        &self,
        asker: &Holder,
        entries: &[Entry],
        above: &[(u32, Vec<Entry>)],
    ) -> Result<Vec<(u32, Entry)>, Box<Clash>> {
        let mut moving: Vec<u32> = above.iter().map(|(id, _)| *id).collect();
        moving.push(asker.id);
        let mut handed = self.check(asker, entries, &moving)?;
        let mut arrived = Register::default();
        arrived.enter(asker, true, entries);
        for (id, entries) in above {
            let user = &self.held[id];
            handed.extend(self.check(&user.holder, entries, &moving)?);
            arrived.check(&user.holder, entries, &[])?;
            arrived.enter(&user.holder, user.live, entries);
        }
        Ok(handed)
    }

    fn enter(&mut self, holder: &Holder, live: bool, entries: &[Entry]) {
        self.held.insert(holder.id, Held { holder: holder.clone(), live, entries: Vec::new() });
        self.set(holder.id, entries.to_vec());
    }

    /// A holder has these entries now; it had them, or others were asked.
    pub fn set(&mut self, id: u32, entries: Vec<Entry>) {
        let Some(held) = self.held.get_mut(&id) else { return };
        let before = std::mem::replace(&mut held.entries, entries);
        for place in before.iter().map(|entry| entry.place) {
            if let Some(users) = self.users.get_mut(&place) {
                users.retain(|user| *user != id);
            }
        }
        for place in self.held[&id].entries.iter().map(|entry| entry.place) {
            let users = self.users.entry(place).or_default();
            if !users.contains(&id) {
                users.push(id);
            }
        }
        self.users.retain(|_, users| !users.is_empty());
    }

    /// A holder is suspended: its claims stay.
    pub fn rest(&mut self, id: u32) {
        if let Some(held) = self.held.get_mut(&id) {
            held.live = false;
        }
    }

    /// A holder has ended.
    pub fn release(&mut self, id: u32) {
        self.set(id, Vec::new());
        self.held.remove(&id);
    }

    /// True if a holder uses what a table names in this way.
    pub fn has(&self, id: u32, root: Place, how: Use) -> bool {
        let mut entries = self.held.get(&id).into_iter().flat_map(|held| &held.entries);
        entries.any(|entry| entry.root == root && entry.how == how)
    }

    /// What a holder keeps until its former table is closed: all, or if it is suspended its claims.
    pub fn kept(&self, id: u32) -> impl Iterator<Item = &Entry> {
        let held = self.held.get(&id).into_iter();
        held.flat_map(|held| {
            let stays = |entry: &&Entry| held.live || entry.how != Use::Writer;
            held.entries.iter().filter(stays)
        })
    }

    /// Who has entries at a place.
    pub fn users(&self, place: Place) -> impl Iterator<Item = (&Holder, &Entry)> {
        let users = self.users.get(&place).into_iter().flatten().map(|id| &self.held[id]);
        users.flat_map(move |held| {
            let here = held.entries.iter().filter(move |entry| entry.place == place);
            here.map(|entry| (&held.holder, entry))
        })
    }
}

#[cfg(test)]
mod tests;
