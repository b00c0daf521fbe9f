//! From tables to claims: which claims a volume's table makes, through which volumes, and whether
//! they are granted.
//!
//! Owns the world's register of claims (`claims`) and the walk from a table line to its entries: a
//! target's claims ([`Target::claims`](crate::Target::claims)), followed through every remapper
//! beneath ([`Target::remaps`](crate::Target::remaps)) down to the last disk that a remapper leads
//! to. A claim on a volume whose target is no remapper ends there: that target has claims of its
//! own.
//!
//! Order: a resume takes the claims of the next live table before anything is suspended or written.
//! The old table's claims stay until its targets have closed their devices, and are then dropped. A
//! suspend keeps the claims; the end of the volume drops them. When a volume beneath gets another
//! table, the claims that lead through it are followed again in the same step: the swap is refused
//! if one of them would clash with another holder's.
//!
//! A read-only table claims nothing and is entered as no writer.
//!
//! Nothing here waits. Lock order: the register before the state of any device.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use crate::claims::{ClaimKind, Clash, Entry, Holder, Place, Register, Use, clash_within};
use crate::device::MappedDevice;
use crate::disk::Disk;
use crate::error::{ConfigError, ConfigKind};
use crate::sync::Mutex;
use crate::table::{Line, Table};
use crate::units::{Sector, SectorRange};

/// No disk is longer.
const END: Sector = Sector(1 << 55);

/// What a target claims: one range of one lower disk, or of the volume that it makes.
pub struct Claim {
    /// The lower disk; none for what the target shows of itself.
    pub disk: Option<Arc<dyn Disk>>,
    /// On that disk, or on the target.
    pub range: SectorRange,
    /// Who may use it too.
    pub kind: ClaimKind,
    /// What it is used as, for errors: `cache device`.
    pub role: &'static str,
}

impl Claim {
    /// A claim on a range of a lower disk.
    pub fn on(
        disk: &Arc<dyn Disk>,
        range: SectorRange,
        kind: ClaimKind,
        role: &'static str,
    ) -> Claim {
        Claim { disk: Some(disk.clone()), range, kind, role }
    }

    /// A claim on a lower disk from a sector to its end, however long it becomes.
    pub fn from(disk: &Arc<dyn Disk>, start: Sector, kind: ClaimKind, role: &'static str) -> Claim {
        Claim::on(disk, SectorRange::between(start, END), kind, role)
    }

    /// A claim on the target's own range of the volume: no other volume may write through it.
    pub fn of_itself(role: &'static str) -> Claim {
        let range = SectorRange::between(Sector(0), END);
        Claim { disk: None, range, kind: ClaimKind::Own, role }
    }
}

/// A volume that a table claims, or a part of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claimed {
    /// Its name.
    pub volume: String,
    /// Others may read it meanwhile.
    pub may_be_read: bool,
}

/// Who claims a volume, or a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimant {
    /// The volume that claims it.
    pub volume: String,
    /// As what.
    pub role: &'static str,
    /// Others may read it meanwhile.
    pub may_be_read: bool,
}

/// The claims of one world.
#[derive(Default)]
pub(crate) struct Claims(Mutex<State>);

#[derive(Default)]
struct State {
    register: Register,
    /// The tables that stand behind a holder's entries: the live one, for a while the one before.
    tables: HashMap<u32, Vec<Weak<Table>>>,
}

pub(crate) fn place_of(disk: &Arc<dyn Disk>) -> Place {
    match disk.mapped() {
        Some(device) => Place::Volume(device.id().0),
        None => Place::Disk(Arc::as_ptr(disk).cast::<()>().addr()),
    }
}

/// Follows claims down. `swapped` is a device whose table is taken for another than its live one.
struct Tracer<'a> {
    swapped: Option<(u32, &'a Table)>,
    entries: Vec<Entry>,
}

/// What is the same all the way down.
#[derive(Clone, Copy)]
struct Claiming {
    how: Use,
    root: Place,
}

impl<'a> Tracer<'a> {
    fn trace(device: &Holder, table: &Table, swapped: Option<(u32, &'a Table)>) -> Vec<Entry> {
        let mut tracer = Tracer { swapped, entries: Vec::new() };
        if !table.is_read_only() {
            table.lines().iter().for_each(|line| tracer.line(device, line));
        }
        tracer.entries
    }

    fn line(&mut self, device: &Holder, line: &Line) {
        for claim in line.target.claims() {
            let how = Use::Claim(claim.kind, claim.role);
            match claim.disk {
                Some(disk) => {
                    let claiming = Claiming { how, root: place_of(&disk) };
                    self.follow(&disk, claim.range, claiming, &[]);
                }
                None => self.itself(device, line, how),
            }
        }
        let whole = SectorRange::new(Sector(0), line.len);
        if !line.read_only
            && let Some(parts) = line.target.remaps(whole)
        {
            for (disk, range) in parts {
                let claiming = Claiming { how: Use::Writer, root: place_of(&disk) };
                self.follow(&disk, range, claiming, &[]);
            }
        }
    }

    fn itself(&mut self, device: &Holder, line: &Line, how: Use) {
        let place = Place::Volume(device.id);
        let (range, name) = (line.range(), format!("@{}", device.name));
        let (root, through) = (place, Vec::new());
        self.entries.push(Entry { place, range, how, root, through, name });
    }

    fn follow(
        &mut self,
        disk: &Arc<dyn Disk>,
        range: SectorRange,
        claiming: Claiming,
        above: &[String],
    ) {
        let Claiming { how, root } = claiming;
        // What nothing writes needs no owner: images that many volumes stand on.
        if disk.mapped().is_none() && disk.limits().read_only {
            return;
        }
        let (place, name) = (place_of(disk), disk.name());
        self.entries.push(Entry { place, range, how, root, through: above.to_vec(), name });
        let Some(device) = disk.mapped() else { return };
        let live = device.live_table();
        let table = match self.swapped {
            Some((id, table)) if place == Place::Volume(id) => Some(table),
            _ => live.as_deref(),
        };
        let mut through = above.to_vec();
        through.push(device.holder().family.clone());
        for line in table.into_iter().flat_map(Table::lines) {
            let Some(mut inside) = range.intersect(line.range()) else { continue };
            inside.start = Sector(inside.start.0 - line.start.0);
            for (disk, range) in line.target.remaps(inside).into_iter().flatten() {
                self.follow(&disk, range, claiming, &through);
            }
        }
    }
}

impl State {
    /// Those whose ways lead through a device, with their entries if it had another table.
    fn above(&self, id: u32, table: &Table) -> Vec<(u32, Vec<Entry>)> {
        let users = self.register.users(Place::Volume(id)).filter(|(user, _)| user.id != id);
        let mut users: Vec<&Holder> = users.map(|(user, _)| user).collect();
        users.dedup();
        let anew = |user: &Holder| {
            let tables = self.tables.get(&user.id).into_iter().flatten();
            let tables = tables.filter_map(Weak::upgrade);
            let traced = tables.flat_map(|own| Tracer::trace(user, &own, Some((id, table))));
            // What it has handed over it does not get back.
            let has = |entry: &Entry| self.register.has(user.id, entry.root, entry.how);
            (user.id, traced.filter(has).collect())
        };
        users.into_iter().map(anew).collect()
    }

    /// The entries of a device with `table` in addition to those it has.
    fn wanted(&self, device: &MappedDevice, table: &Table) -> Result<Vec<Entry>, Box<Clash>> {
        let holder = device.holder();
        let new = Tracer::trace(holder, table, None);
        if let Some(clash) = clash_within(holder, &new) {
            return Err(Box::new(clash));
        }
        let mut wanted: Vec<Entry> = self.register.kept(holder.id).cloned().collect();
        wanted.retain(|entry| !new.contains(entry));
        wanted.extend(new);
        Ok(wanted)
    }
}

impl Claims {
    /// Takes the claims of a table that is to be live, in addition to those of the device.
    ///
    /// # Errors
    /// Another holder's claim clashes: nothing was changed.
    pub fn take(&self, device: &MappedDevice, table: &Arc<Table>) -> Result<(), ConfigError> {
        let mut state = self.0.lock();
        let id = device.id().0;
        let above = state.above(id, table);
        let wanted = state.wanted(device, table).map_err(|clash| refusal(&clash))?;
        let replaced = state.register.replace(device.holder(), wanted, above);
        replaced.map_err(|clash| refusal(&clash))?;
        let tables = state.tables.entry(id).or_default();
        if !tables.iter().any(|own| std::ptr::eq(own.as_ptr(), Arc::as_ptr(table))) {
            tables.push(Arc::downgrade(table));
        }
        Ok(())
    }

    /// True if [`Claims::take`] would succeed.
    ///
    /// # Errors
    /// Those of [`Claims::take`].
    pub fn check(&self, device: &MappedDevice, table: &Table) -> Result<(), ConfigError> {
        let state = self.0.lock();
        let above = state.above(device.id().0, table);
        let wanted = state.wanted(device, table).map_err(|clash| refusal(&clash))?;
        let checked = state.register.check_all(device.holder(), &wanted, &above);
        checked.map(drop).map_err(|clash| refusal(&clash))
    }

    /// True if a new volume `part` of the device's family could make `claim`, which is on the
    /// device, once the device's table is that of another new volume, beneath both.
    ///
    /// # Errors
    /// Another holder's claim or writes clash.
    pub fn check_part(
        &self,
        device: &MappedDevice,
        part: &str,
        claim: &Claim,
    ) -> Result<(), ConfigError> {
        let family = device.holder().family.clone();
        // No device has this number.
        let asker = Holder { id: u32::MAX, name: part.to_owned(), family };
        let state = self.0.lock();
        let mut tracer = Tracer { swapped: None, entries: Vec::new() };
        if let Some(disk) = &claim.disk {
            let how = Use::Claim(claim.kind, claim.role);
            tracer.follow(disk, claim.range, Claiming { how, root: place_of(disk) }, &[]);
        }
        let top = Place::Volume(device.id().0);
        let (here, beneath): (Vec<_>, Vec<_>) =
            tracer.entries.into_iter().partition(|entry| entry.place == top);
        // Other users of the device will stand above the part, and do not use what is beneath it.
        let users = state.register.users(top).map(|(user, _)| user.id);
        let others: Vec<u32> = users.filter(|id| *id != device.id().0).collect();
        let checked = state.register.check(&asker, &beneath, &[]);
        let checked = checked.and_then(|_| state.register.check(&asker, &here, &others));
        checked.map(drop).map_err(|clash| refusal(&clash))
    }

    /// The former table has let go: only what `table` claims is held from now on.
    pub fn settle(&self, device: &MappedDevice, table: &Arc<Table>) {
        let mut state = self.0.lock();
        let entries = Tracer::trace(device.holder(), table, None);
        state.register.set(device.id().0, entries);
        state.tables.insert(device.id().0, vec![Arc::downgrade(table)]);
    }

    /// The device is suspended.
    pub fn rest(&self, device: &MappedDevice) {
        self.0.lock().register.rest(device.id().0);
    }

    /// The device has ended.
    pub fn release(&self, device: &MappedDevice) {
        let mut state = self.0.lock();
        state.register.release(device.id().0);
        state.tables.remove(&device.id().0);
    }

    /// Who claims a device.
    pub fn claimants(&self, device: &MappedDevice) -> Vec<Claimant> {
        let state = self.0.lock();
        let users = state.register.users(Place::Volume(device.id().0));
        let others = users.filter(|(user, _)| user.id != device.id().0);
        let claims = others.filter_map(|(user, entry)| match entry.how {
            Use::Claim(kind, role) => {
                let may_be_read = kind == ClaimKind::Read;
                Some(Claimant { volume: user.name.clone(), role, may_be_read })
            }
            Use::Writer => None,
        });
        claims.collect()
    }
}

/// The volumes that a table claims, by name; one that is claimed in two ways is there twice.
pub(crate) fn claimed_by(device: &Holder, table: &Table) -> Vec<Claimed> {
    let entries = Tracer::trace(device, table, None);
    let claimed = entries.iter().filter_map(|entry| match (entry.place, entry.how) {
        (Place::Volume(id), Use::Claim(kind, _)) if id != device.id => {
            let volume = entry.name.trim_start_matches('@').to_owned();
            Some(Claimed { volume, may_be_read: kind == ClaimKind::Read })
        }
        _ => None,
    });
    let mut claimed: Vec<Claimed> = claimed.collect();
    claimed.sort();
    claimed.dedup();
    claimed
}

fn refusal(clash: &Clash) -> ConfigError {
    let Clash { asker, wanted, owner, held } = clash;
    let role = |entry: &Entry| match entry.how {
        Use::Claim(_, role) => format!("the {role}"),
        Use::Writer => "a remapped device".to_owned(),
    };
    let shared = held.range.intersect(wanted.range).unwrap_or(held.range);
    let sectors = match shared.end() {
        END if shared.start == Sector(0) => String::new(),
        END => format!(" (sectors from {})", shared.start),
        end => format!(" (sectors {}..{end})", shared.start),
    };
    let name = &owner.name;
    let detail = match held.how {
        _ if owner.id == asker.id => {
            let (first, second) = (role(held), role(wanted));
            format!("'{name}' would use it twice{sectors}, as {first} and as {second}")
        }
        Use::Claim(..) => format!(
            "in use as {} of volume '{name}'{sectors}; name another device, or remove '{name}' \
             first",
            role(held)
        ),
        Use::Writer => format!(
            "volume '{name}' writes to it{sectors}; name '@{name}' instead, or remove '{name}' \
             first"
        ),
    };
    ConfigError::new(ConfigKind::Busy, &held.name, detail)
}
