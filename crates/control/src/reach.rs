//! The reach of a verb: the volumes that it changes, the volumes beneath them, and the ranges of
//! devices that the tables of all these use.
//!
//! - R1. A volume and the parts that its snapshots made of it count as one.
//! - R2. A volume brings in the devices and volumes that its tables name: the live table, the
//!   loaded one, the recorded ones, and the table that the verb gives it. A verb waits for requests
//!   of its volume (rule U3 of `under_way`), so no other verb suspends a volume beneath it. No
//!   volume is removed while a table on it is built.
//! - R3. A pool beneath a thin volume is shared: verbs on two volumes of a pool run at once. A verb
//!   that changes the pool, or makes or deletes volumes in it, holds it alone.
//! - R4. A verb holds ranges of devices, not whole devices, so that verbs on two volumes of one
//!   disk run at once. A file is known by its identity, or by its path if it does not exist yet.
//! - R5. A verb does not reach the volumes that stand on its volume. A verb on one of these reaches
//!   downwards, so the two verbs meet there.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use cairn_block::{Identity, SectorRange, TableLine};
use cairn_targets::spec::{Use, words_of};

use crate::arguments::is_path;
use crate::kept::{Part, family_of, used_by, whole_device};
use crate::state::{Record, folder_of};
use crate::world::World;

/// How a verb holds a thing or a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hold {
    /// Shared with other verbs.
    Shared,
    /// Alone.
    Alone,
}

/// A thing that is held as a whole.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Thing {
    /// A volume with its parts (R1).
    Family(String),
    /// The changes of exports that verbs made.
    ExportNames,
}

/// What a device is known by.
#[derive(Clone, Debug, PartialEq, Eq)]
enum DeviceKey {
    Device(Identity),
    Path(PathBuf),
}

/// Everything that a verb holds.
#[derive(Debug, Default)]
pub struct Reach {
    things: BTreeMap<Thing, Hold>,
    parts: Vec<(DeviceKey, SectorRange, Hold)>,
}

/// The names in a verb's parameters, from which its reach is computed.
#[derive(Clone)]
pub struct Named<'a> {
    volumes: Vec<&'a str>,
    table: &'a str,
    devices: Vec<&'a str>,
    hold: Hold,
    pools: Hold,
    export_names: bool,
}

impl<'a> Named<'a> {
    /// This volume.
    pub fn volume(name: &'a str) -> Named<'a> {
        let (volumes, devices) = (vec![name], Vec::new());
        let (hold, pools) = (Hold::Alone, Hold::Shared);
        Named { volumes, table: "", devices, hold, pools, export_names: false }
    }

    /// The first volume that was named.
    pub fn first(&self) -> &'a str {
        self.volumes.first().copied().unwrap_or_default()
    }

    /// And this one.
    pub fn and(mut self, name: &'a str) -> Named<'a> {
        self.volumes.push(name);
        self
    }

    /// To look at them.
    pub fn to_look(self) -> Named<'a> {
        Named { hold: Hold::Shared, ..self }
    }

    /// With the pools that they are of, to change these.
    pub fn with_pools(self) -> Named<'a> {
        Named { pools: Hold::Alone, ..self }
    }

    /// With what this table names, which one of them is to have.
    pub fn with_table(self, table: &'a str) -> Named<'a> {
        Named { table, ..self }
    }

    /// With a device that a table is to name.
    pub fn with_device(mut self, argument: Option<&'a str>) -> Named<'a> {
        self.devices.extend(argument);
        self
    }

    /// With the names of exports.
    pub fn with_export_names(self) -> Named<'a> {
        Named { export_names: true, ..self }
    }
}

impl Reach {
    /// All that these names lead to now. `records` is what the state file has.
    pub fn of(named: &Named<'_>, world: &World, records: &HashMap<String, Record>) -> Reach {
        let mut finding = Finding { named, world, records, reach: Reach::default() };
        if named.export_names {
            finding.reach.things.insert(Thing::ExportNames, named.hold);
        }
        named.volumes.iter().for_each(|name| finding.add_family(name, named.hold));
        // The verb refuses a text that is not a table.
        let lines = TableLine::parse_all(named.table).unwrap_or_default();
        lines.iter().for_each(|line| finding.add_line(line, named.hold));
        for device in &named.devices {
            match device.strip_prefix('@') {
                Some(volume) => finding.add_family(volume, named.hold),
                None => {
                    let (argument, range) = ((*device).to_owned(), whole_device());
                    finding.add_part(&Part { argument, range }, named.hold);
                }
            }
        }
        finding.reach
    }

    /// These volumes, and nothing that their tables name.
    #[cfg(test)]
    pub fn of_families<'a>(families: impl IntoIterator<Item = (&'a str, Hold)>) -> Reach {
        let things = families.into_iter();
        let things = things.map(|(name, hold)| (Thing::Family(name.to_owned()), hold)).collect();
        Reach { things, ..Reach::default() }
    }

    /// True if the two must not be held at once (T1 of `turns`).
    pub fn meets(&self, other: &Reach) -> bool {
        let clash = |one: Hold, two: Hold| one.max(two) == Hold::Alone;
        let same_thing = |(thing, hold): (&Thing, &Hold)| {
            other.things.get(thing).is_some_and(|theirs| clash(*hold, *theirs))
        };
        let same_part = |(place, range, hold): &(DeviceKey, SectorRange, Hold)| {
            let mut theirs = other.parts.iter().filter(|theirs| theirs.0 == *place);
            theirs.any(|(_, theirs, held)| range.overlaps(*theirs) && clash(*hold, *held))
        };
        self.things.iter().any(same_thing) || self.parts.iter().any(same_part)
    }
}

/// A reach that is being found.
struct Finding<'a> {
    named: &'a Named<'a>,
    world: &'a World,
    records: &'a HashMap<String, Record>,
    reach: Reach,
}

impl Finding<'_> {
    fn add_family(&mut self, name: &str, hold: Hold) {
        let family = family_of(name);
        let thing = Thing::Family(family.to_owned());
        if self.reach.things.get(&thing).is_some_and(|held| *held >= hold) {
            return;
        }
        self.reach.things.insert(thing, hold);
        for line in self.lines_of(family) {
            self.add_line(&line, hold);
        }
    }

    /// What the tables of a volume and of its parts say (R2).
    fn lines_of(&self, family: &str) -> Vec<TableLine> {
        let volumes = self.world.volumes();
        let own = volumes.iter().filter(|volume| family_of(volume.volume()) == family);
        let mut lines: Vec<TableLine> =
            own.flat_map(|volume| self.world.lines_in(volume)).collect();
        let records = self.records.values().filter(|record| family_of(&record.name) == family);
        let texts = records.flat_map(|record| [&record.table, &record.inactive, &record.former]);
        let recorded = texts.flatten().filter_map(|text| TableLine::parse_all(text).ok());
        lines.extend(recorded.flatten());
        lines
    }

    fn add_line(&mut self, line: &TableLine, hold: Hold) {
        let words = words_of(line).map(|(_, words)| words.fixed).unwrap_or_default();
        let pool = words.iter().find(|(arg, _)| arg.used == Use::Pool).map(|(_, pool)| *pool);
        for word in &line.args {
            let Some(volume) = word.strip_prefix('@') else { continue };
            let is_pool = pool == Some(word.as_str());
            self.add_family(volume, if is_pool { hold.min(self.named.pools) } else { hold });
        }
        for part in used_by(line) {
            self.add_part(&part, hold);
        }
    }

    /// A part of a device that is no volume (R4).
    fn add_part(&mut self, part: &Part, hold: Hold) {
        let Part { argument, range } = part;
        if argument.starts_with('@') {
            return;
        }
        let device = self.world.registry().identify(argument).ok().map(DeviceKey::Device);
        let path = is_path(argument).then(|| DeviceKey::Path(full(&self.world.place(argument))));
        let places = device.into_iter().chain(path);
        self.reach.parts.extend(places.map(|place| (place, *range, hold)));
    }
}

/// A path with no link in it but perhaps its last step, which may not be there yet.
fn full(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default();
    folder_of(path).canonicalize().map_or_else(|_| path.to_owned(), |folder| folder.join(name))
}
