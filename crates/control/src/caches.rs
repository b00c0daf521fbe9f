//! The rules for tables that touch a recorded cache that is not live (see `state::caches`).
//!
//! Verdict first: [`Caches::judge`] checks the table that a volume is to have. It refuses a table
//!
//! - J1. that uses a part of a recorded origin without the cache, while the cache is dirty or
//!   cannot be read, unless the user gives its dirty blocks up;
//! - J2. with a recorded cache whose device is another one by now, which has no cache or a clean
//!   one: it would take the place of the device with the dirty blocks;
//! - J3. with a cache that was given up: a writeback would overwrite later writes of clients.
//!
//! [`cairn_block::Fate`] says whether a table uses an origin without its cache, for the disks to
//! which the record leads now. A cache in a live table of this server is not checked here: claims
//! keep other tables away, and `verbs::volume::swap` checks the table that replaces it. A volume
//! that is the origin of a recorded cache comes up before the volume with that cache. It is kept
//! for that volume (`kept`, K6), so no client and no other volume uses it without the cache.
//!
//! Recorded are the caches whose format does not name the origin, as that of writecache. A bcache
//! set is not: the superblock of the backing device names it, and `world::attached` has the rules.
//!
//! Reads only devices that no live table writes, and writes none.

use std::path::Path;
use std::sync::Arc;

use cairn_block::{
    ConfigError, ConfigKind, Disk, Env, Fate, Line, MappedDevice, Ranges, SECTOR_BYTES, Sector,
    SectorCount, SectorRange, Table, claimed_by_line, escape_word, fate_of_claimed,
};
use cairn_format::writecache::check::{Checker, Limits};
use cairn_format::writecache::{ENTRY_BYTES, Entry, MAGIC, SUPERBLOCK_BYTES};
use cairn_outcome::failure::{Outcome, one_line, refused};
use cairn_targets::args::Device;
use cairn_targets::blank::read_sectors;
use cairn_targets::writecache::{CACHE_ROLE, ORIGIN_ROLE};

use crate::state::{CacheRecord, CacheState, Extent, Known, StateFile};
use crate::world::{World, of_volume};

/// Sectors of metadata in one read.
const PIECE_SECTORS: u64 = 2048;

/// Finds the disk of a recorded range, if it is open.
type Way<'a> = &'a dyn Fn(&Extent) -> Option<Arc<dyn Disk>>;

/// The recorded caches of a world.
#[derive(Clone, Copy)]
pub struct Caches<'a> {
    world: &'a World,
    state: &'a StateFile,
}

/// What the user of a verb can do about a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// The verb has an option that gives dirty data up, which was given or not.
    Option(bool),
    /// The verb has no such option.
    Forget,
}

/// The content of the device of a recorded cache.
#[derive(Debug, PartialEq, Eq)]
enum Look {
    /// A cache with this many dirty bytes.
    Dirty(u64),
    /// A cache without dirty blocks. `same_device`: it is the device that was recorded.
    Clean { same_device: bool },
    /// No cache.
    Nothing { same_device: bool },
    /// The device is missing, in use, or damaged.
    Unknown(String),
}

impl<'a> Caches<'a> {
    /// None without a state file, or if the server writes nothing.
    pub fn of(world: &'a World, state: Option<&'a StateFile>) -> Option<Caches<'a>> {
        let state = state.filter(|_| !world.read_only())?;
        Some(Caches { world, state })
    }

    /// Checks the table that `name` is to have. Returns the caches that it gives up. Drops the
    /// records of caches that are found clean.
    ///
    /// # Errors
    /// J1 to J3.
    pub fn judge(&self, name: &str, leave: Leave) -> Outcome<Vec<CacheRecord>> {
        let records = self.state.caches();
        let volume = self.world.volume(name)?;
        let Some(table) = volume.inactive_table().or_else(|| volume.live_table()) else {
            return Ok(Vec::new());
        };
        if records.is_empty() {
            return Ok(Vec::new());
        }
        let own = self.caches_in(name, &table);
        let (mut given_up, mut over) = (Vec::new(), Vec::new());
        let is_beneath = |record: &CacheRecord| {
            let is_own = own.iter().any(|own| own.is_same_cache(record));
            !is_own && self.world.is_kept_for(name, &record.volume)
        };
        let absent = |record: &CacheRecord| !self.is_live(record) && !is_beneath(record);
        for record in records.into_iter().filter(absent) {
            let has = own.iter().find(|own| own.is_same_cache(&record));
            match self.judge_one(name, &table, has, record, leave)? {
                Verdict::Passes => {}
                Verdict::Over(record) => over.push(record),
                Verdict::GivenUp(record) => given_up.push(record),
            }
        }
        if !over.is_empty() {
            self.state.record_caches(|all| all.retain(|record| !over.contains(record)))?;
        }
        Ok(given_up)
    }

    fn judge_one(
        &self,
        name: &str,
        table: &Table,
        has: Option<&CacheRecord>,
        mut record: CacheRecord,
        leave: Leave,
    ) -> Outcome<Verdict> {
        let fate = self.fate(&record, table);
        let is_moved = has.is_some_and(|own| own.cache != record.cache);
        let concerns = match (record.may_be_dirty(), fate) {
            (false, _) => has.is_some(),
            (true, Fate::Left) => false,
            (true, Fate::Kept) => is_moved,
            (true, Fate::Orphaned) => true,
        };
        if !concerns {
            return Ok(Verdict::Passes);
        }
        let look = self.look(name, &record);
        if let Look::Dirty(bytes) = look {
            record.bytes = Some(bytes);
        }
        match (&look, fate) {
            (Look::Clean { same_device: true } | Look::Nothing { same_device: true }, _) => {
                Ok(Verdict::Over(record))
            }
            (Look::Clean { .. } | Look::Nothing { .. }, _) if !record.may_be_dirty() => {
                Ok(Verdict::Over(record))
            }
            _ if !record.may_be_dirty() => Err(format_first(name, &record)),
            (Look::Dirty(_) | Look::Unknown(_), Fate::Kept) => Ok(Verdict::Passes),
            _ if leave == Leave::Option(true) => Ok(Verdict::GivenUp(record)),
            _ => Err(self.refusal(name, &record, &look, leave)),
        }
    }

    /// Records the caches of a table, then runs `go`, which makes it live (C1).
    ///
    /// # Errors
    /// The file could not be written, or those of `go`: the former records are restored.
    pub fn go_live(&self, name: &str, go: impl FnOnce() -> Outcome<()>) -> Outcome<()> {
        let before = self.state.caches();
        let volume = self.world.volume(name)?;
        let table = volume.inactive_table().or_else(|| volume.live_table());
        let own = table.map(|table| self.caches_in(name, &table)).unwrap_or_default();
        self.state.record_caches(|all| {
            // A cache that is recorded already changes nothing, so that a full file system does not
            // refuse the resume.
            for own in &own {
                match all.iter_mut().find(|known| own.is_same_cache(known)) {
                    Some(known) => known.clone_from(own),
                    None => all.push(own.clone()),
                }
            }
        })?;
        let went = go();
        if went.as_ref().is_err_and(|error| error.kind != ConfigKind::Lost) {
            self.put_back(name, &before, &own);
        }
        went
    }

    /// Gives up the dirty blocks of some caches (C3).
    ///
    /// # Errors
    /// The file could not be written.
    pub fn give_up(&self, lost: &[CacheRecord]) -> Outcome<()> {
        if lost.is_empty() {
            return Ok(());
        }
        self.state.record_caches(|all| {
            all.retain(|known| !lost.iter().any(|lost| lost.is_same_cache(known)));
            let given_up =
                |lost: &CacheRecord| CacheRecord { state: CacheState::GivenUp, ..lost.clone() };
            all.extend(lost.iter().map(given_up));
        })
    }

    /// Restores the former records of the caches that a failed verb changed. The records of other
    /// verbs' caches stay.
    pub fn put_back(&self, name: &str, before: &[CacheRecord], changed: &[CacheRecord]) {
        let is_changed =
            |known: &CacheRecord| changed.iter().any(|changed| changed.is_same_cache(known));
        let put_back = self.state.record_caches(|all| {
            all.retain(|known| !is_changed(known));
            all.extend(before.iter().filter(|known| is_changed(known)).cloned());
        });
        if let Err(error) = put_back {
            tracing::error!("{name}: {error}");
        }
    }

    /// The records.
    pub fn recorded(&self) -> Vec<CacheRecord> {
        self.state.caches()
    }

    /// The records of a table's caches, for when it is live.
    pub fn caches_in(&self, name: &str, table: &Table) -> Vec<CacheRecord> {
        table.lines().iter().filter_map(|line| self.cache_of(name, line)).collect()
    }

    /// Records the dirty bytes of the caches of a table that is no longer live (C2).
    ///
    /// # Errors
    /// The file could not be written: they stay `in-use`.
    pub fn left_by(&self, name: &str, table: &Table) -> Outcome<()> {
        let lines = table.lines().iter().map(|line| (name, line));
        self.leave(lines.filter(|(_, line)| {
            self.cache_of(name, line).is_some_and(|record| !self.is_live(&record))
        }))
    }

    /// The same for all tables when the server stops, except those of volumes that lost writes.
    ///
    /// # Errors
    /// The file could not be written.
    pub fn left_by_all(&self, has_lost: impl Fn(&str) -> bool) -> Outcome<()> {
        let volumes = self.world.volumes();
        let tables: Vec<_> = (volumes.iter().filter(|volume| !has_lost(volume.volume())))
            .filter_map(|volume| Some((volume.volume(), volume.live_table()?)))
            .collect();
        self.leave(
            tables
                .iter()
                .flat_map(|(name, table)| table.lines().iter().map(move |line| (*name, line))),
        )
    }

    fn leave<'b>(&self, lines: impl Iterator<Item = (&'b str, &'b Line)>) -> Outcome<()> {
        let left = lines.filter_map(|(name, line)| {
            let bytes = line.target.dirty().map(|dirty| dirty.sectors.to_bytes());
            Some(CacheRecord { state: CacheState::Left, bytes, ..self.cache_of(name, line)? })
        });
        let left: Vec<CacheRecord> = left.collect();
        self.state.record_caches(|all| {
            for record in left {
                let Some(at) = all.iter().position(|known| known.is_same_cache(&record)) else {
                    continue;
                };
                match (record.bytes, all[at].may_be_dirty()) {
                    (None, _) => drop(all.remove(at)),
                    (Some(_), true) => all[at] = record,
                    (Some(_), false) => {}
                }
            }
        })
    }

    /// The record of a line with a cache, while it is live. None if its devices end with the
    /// server.
    fn cache_of(&self, name: &str, line: &Line) -> Option<CacheRecord> {
        if !line.target.drains() || line.target.detaches() {
            return None;
        }
        let claims = claimed_by_line(line);
        let [(_, origin), (_, cache)] = claims.as_slice() else { return None };
        let table = line.target.table();
        let word = |at: usize| table.split_whitespace().nth(at).unwrap_or_default().to_owned();
        Some(CacheRecord {
            cache: self.extents(cache)?,
            origin: self.extents(origin)?,
            volume: name.to_owned(),
            names: (word(2), word(1)),
            state: CacheState::InUse,
            bytes: None,
        })
    }

    fn extents(&self, ranges: &Ranges) -> Option<Vec<Extent>> {
        let extent = |(disk, range): &(Arc<dyn Disk>, SectorRange)| {
            let identity = self.world.registry().identity_of(disk)?;
            Some(Extent {
                device: absolute(&disk.name()),
                identity: Known::of(&identity)?,
                start: range.start.0,
                count: range.count.0,
            })
        };
        ranges.iter().map(extent).collect()
    }

    /// True if a live table has a cache of this name.
    pub fn is_called_live(&self, name: &str) -> bool {
        let records = self.state.caches();
        records.iter().any(|record| record.is_called(name) && self.is_live(record))
    }

    fn is_live(&self, record: &CacheRecord) -> bool {
        self.world.volumes().iter().any(|volume| {
            let table = volume.live_table();
            let caches = table.map(|table| self.caches_in(volume.volume(), &table));
            caches.is_some_and(|caches| caches.iter().any(|cache| cache.is_same_cache(record)))
        })
    }

    /// What happens to the dirty blocks of a cache if `table` is live. Its devices are the recorded
    /// ones, and those that have their names now.
    fn fate(&self, record: &CacheRecord, table: &Table) -> Fate {
        let registry = self.world.registry();
        let recorded = |extent: &Extent| extent.identity.opened(registry);
        let called = |extent: &Extent| registry.opened(&registry.identify(&extent.device).ok()?);
        let ways: [Way<'_>; 2] = [&recorded, &called];
        let range =
            |extent: &Extent| SectorRange::new(Sector(extent.start), SectorCount(extent.count));
        let ranges = |extents: &[Extent], way: usize| -> Option<Ranges> {
            extents.iter().map(|extent| Some((ways[way](extent)?, range(extent)))).collect()
        };
        let origin: Ranges = (ways.iter())
            .flat_map(|way| {
                record.origin.iter().filter_map(|extent| Some((way(extent)?, range(extent))))
            })
            .collect();
        let mut fate = fate_of_claimed(table, &[], &origin);
        for (one, other) in [(0, 0), (1, 1), (0, 1), (1, 0)] {
            if let (Some(of_origin), Some(of_cache)) =
                (ranges(&record.origin, one), ranges(&record.cache, other))
            {
                let claims = [(ORIGIN_ROLE, of_origin), (CACHE_ROLE, of_cache)];
                fate = fate.min(fate_of_claimed(table, &claims, &origin));
            }
        }
        fate
    }
}

/// The word for a device in the table of a server that is started in any folder.
fn absolute(name: &str) -> String {
    if name.starts_with('@') {
        return name.to_owned();
    }
    let absolute = std::path::absolute(name).unwrap_or_else(|_| Path::new(name).to_owned());
    escape_word(&absolute.to_string_lossy())
}

/// What a table means for one record.
enum Verdict {
    Passes,
    /// There is nothing that it keeps.
    Over(CacheRecord),
    /// It is lost, as the user said.
    GivenUp(CacheRecord),
}

/// What is on a device.
impl Caches<'_> {
    fn look(&self, name: &str, record: &CacheRecord) -> Look {
        let unknown = |error: ConfigError| Look::Unknown(one_line(&error));
        let [extent] = record.cache.as_slice() else {
            return Look::Unknown("it lies in several places".to_owned());
        };
        let is_block = matches!(extent.identity, Known::Block(_));
        let (device, same_device) = match self.device_of(extent) {
            Ok(found) => found,
            Err(error) => return unknown(error),
        };
        let count = extent.count.min(device.disk.sectors().0.saturating_sub(extent.start));
        let range = SectorRange::new(Sector(extent.start), SectorCount(count));
        match self.world.on_home(name, move |env| read_cache(env, device, range)) {
            Ok(Look::Nothing { .. }) => Look::Nothing { same_device },
            // The system may number block devices in another order at each boot.
            Ok(Look::Clean { .. }) => Look::Clean { same_device: same_device || is_block },
            Ok(look) => look,
            Err(error) => unknown(error),
        }
    }

    /// The device of a recorded range. True if it is the one that was recorded, false if only its
    /// name is.
    fn device_of(&self, extent: &Extent) -> Outcome<(Device, bool)> {
        let registry = self.world.registry();
        let (argument, recorded) = (extent.device.clone(), &extent.identity);
        let (disk, same) = match recorded.opened(registry) {
            Some(disk) => (disk, true),
            None => {
                let identity = registry.identify(&argument)?;
                let same = Known::of(&identity).as_ref() == Some(recorded);
                (self.world.open_to_read(&argument)?, same)
            }
        };
        if let Some(volume) = disk.mapped() {
            self.world.refuse_suspended(MappedDevice::volume(volume))?;
        }
        Ok((Device { argument, disk }, same))
    }
}

/// The dirty bytes of the writecache at the beginning of a device that no table uses. None if there
/// is no writecache; of a damaged one nothing is known to be dirty.
///
/// # Errors
/// The device is not there, another process holds it, or it cannot be read.
pub fn dirty_bytes_on(world: &World, argument: &str) -> Outcome<Option<u64>> {
    let disk = world.open_to_read(argument)?;
    let range = SectorRange::new(Sector(0), disk.sectors());
    let device = Device { argument: argument.to_owned(), disk };
    Ok(match world.on_home(argument, move |env| read_cache(env, device, range))? {
        Look::Nothing { .. } => None,
        Look::Clean { .. } | Look::Unknown(_) => Some(0),
        Look::Dirty(bytes) => Some(bytes),
    })
}

/// Reads the metadata of a cache. `Nothing` is on any device.
async fn read_cache(env: Env, device: Device, range: SectorRange) -> Outcome<Look> {
    if range.is_empty() {
        return Ok(Look::Nothing { same_device: true });
    }
    let first = SectorRange::new(range.start, SectorCount(1));
    let head = read_sectors(&env, &device, first).await?;
    if !head.starts_with(&MAGIC.to_le_bytes()) {
        return Ok(Look::Nothing { same_device: true });
    }
    let area_bytes = Some(range.to_bytes());
    let limits = Limits { area_bytes, ..Limits::default() };
    let mut checker = Checker::new(&head[..SUPERBLOCK_BYTES], limits);
    let end = SUPERBLOCK_BYTES as u64 + checker.entries_wanted() as u64 * ENTRY_BYTES as u64;
    let (mut at, mut skip) = (0, SUPERBLOCK_BYTES as u64);
    while at < end {
        let len = (end - at).min(PIECE_SECTORS * SECTOR_BYTES);
        let sectors = SectorCount(len.div_ceil(SECTOR_BYTES));
        let start = Sector(range.start.0 + at / SECTOR_BYTES);
        let piece = read_sectors(&env, &device, SectorRange::new(start, sectors)).await?;
        Entry::iter(&piece[skip as usize..len as usize]).for_each(|entry| checker.entry(entry));
        (at, skip) = (at + len, 0);
    }
    let report = checker.finish();
    let dirty = report.counts.dirty();
    match &report.superblock {
        None => Ok(Look::Unknown("its superblock is damaged".to_owned())),
        // Whose it is, the caller knows.
        Some(_) if dirty == 0 => Ok(Look::Clean { same_device: false }),
        Some(superblock) => Ok(Look::Dirty(dirty * u64::from(superblock.block_size().bytes()))),
    }
}

/// Refusals.
impl Caches<'_> {
    fn refusal(&self, name: &str, record: &CacheRecord, look: &Look, leave: Leave) -> ConfigError {
        let (cache, origin) = &record.names;
        let loses = match leave {
            Leave::Option(_) => "--discard-dirty loses it".to_owned(),
            Leave::Forget => record.way_out(self.state.path()).1,
        };
        let keeps = record.what_it_keeps();
        let detail = match look {
            Look::Unknown(why) => format!(
                "dirty data: {keeps}, and cannot be looked at ({why}); put it back, or {loses}"
            ),
            Look::Nothing { .. } => format!(
                "dirty data: {keeps}, and another device without a cache is in its place; put it \
                 back, or {loses}"
            ),
            Look::Clean { .. } => format!(
                "dirty data: {keeps}, and another cache, which is clean, is in its place; put it \
                 back, or {loses}"
            ),
            _ => {
                let found = format!("{} on {cache} that {origin} lacks", kib(record.bytes));
                let expected =
                    format!("none (a table with {cache} before {origin} has it; {loses})");
                return refused(ConfigKind::Argument, name, "dirty data", found, expected);
            }
        };
        ConfigError::new(ConfigKind::Argument, name, detail)
    }
}

fn kib(bytes: Option<u64>) -> String {
    format!("{} KiB", bytes.unwrap_or(0).div_ceil(1024))
}

fn format_first(name: &str, record: &CacheRecord) -> ConfigError {
    let (cache, origin) = &record.names;
    let detail = format!(
        "given up: it has {} that would overwrite newer data of {origin}; first: cairn format \
         writecache {cache} --yes --discard-dirty",
        kib(record.bytes)
    );
    of_volume(name, ConfigError::new(ConfigKind::Argument, cache, detail))
}
