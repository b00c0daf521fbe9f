//! `cache attach`: puts a cache in front of the device of a served volume.
//!
//! The cache device says which kind of cache it becomes: one of bcache is known by its superblock;
//! a blank one becomes a `writecache`.
//!
//! **writecache.** The verb is a `replace` of `linear DEVICE 0` by `writecache s DEVICE CACHE`. The
//! new table formats the cache when it starts, behind the record of the swap: after a kill before
//! that, the next start formats the cache, or serves the old table. A writecache must have no dirty
//! blocks: these are those of another origin, or of a table that has this origin with that cache
//! already.
//!
//! **bcache.** The verb is a `replace` of `linear BACKING OFFSET` or `bcache BACKING - ...` by
//! `bcache BACKING CACHE 1 attach`, where OFFSET is the first sector of data of a formatted backing
//! device. The swap drains what passed through and flushes it; the new table attaches the device
//! when it starts, behind the record of the swap, and the record of the table that serves has not
//! the word (`lasting`). After a kill before that, the next start attaches the device, or serves
//! the old table. A device that is attached when the new table cannot start has nothing in the
//! cache, so the old table serves all of its content.

use std::sync::Arc;

use cairn_block::{ConfigError, ConfigKind, Disk, MappedDevice};
use cairn_outcome::failure::{Outcome, refused, wrong};
use cairn_targets::args::Device;
use cairn_targets::bcache::{CacheFound, first_sector_of};
use cairn_targets::spec::NO_DEVICE;

use super::cache_lines;
use crate::arguments::device;
use crate::caches::dirty_bytes_on;
use crate::control::server::Caller;
use crate::reach::Named;
use crate::under_way::Doing;
use crate::verbs::Verbs;
use crate::verbs::verb::{Done, declare};
use crate::verbs::volume::VolumeReplace;

/// The size of a cache block of a volume that has no user.
const BLOCK_BYTES: u64 = 4096;

declare! {
    /// `cache attach`
    CacheAttach = "cache_attach" -> Done {
        /// The volume
        name: String,
        /// The cache device: a blank file or block device, a volume (@NAME), or a cache device of
        /// bcache
        #[arg(value_name = "CACHE", value_parser = device())]
        cache: String,
        /// Bytes of a block of a writecache (default: 4096; while clients are connected the
        /// logical block size of the volume)
        #[arg(long, value_name = "BYTES")]
        block_size: Option<u64>,
    }
    |verb, verbs, caller| verbs.cache_attach(&verb, caller)
}

impl Verbs {
    /// # Errors
    /// The volume serves on with its old table.
    pub(in crate::verbs) fn cache_attach(
        &self,
        params: &CacheAttach,
        caller: &dyn Caller,
    ) -> Outcome<Vec<String>> {
        let CacheAttach { name, cache, block_size } = params;
        let beneath = self.beneath_snapshots(name)?.volume().to_owned();
        let named = Named::volume(&beneath).with_device(Some(cache));
        let changes = self.change_table(&named, "cache attach", caller)?;
        let volume = self.ready(&beneath)?;
        let disk = self.world.open(cache)?;
        let device = Device { argument: cache.clone(), disk };
        let (found, first) = self.world.on_home(name, move |env| async move {
            let found = CacheFound::of(&env, &device).await?;
            Ok::<_, ConfigError>((found, first_sector_of(&env, &device).await?))
        })?;
        let table = match found {
            Some(found) => self.table_with_set(params, &volume, found)?,
            None => {
                refuse_as_set(name, cache, &volume, first.is_some())?;
                let (origin, sectors) = bare_device(name, &volume)?;
                self.refuse_as_cache(name, cache)?;
                let block = self.block_bytes(name, &volume, *block_size)?;
                format!("0 {sectors} writecache s {origin} {cache} {block} 0")
            }
        };
        let params = VolumeReplace { name: beneath, table, ..VolumeReplace::default() };
        self.swap_in_turn(changes, Doing::Attach, &params, caller)
    }

    /// The table with the device of a volume behind a cache of bcache.
    fn table_with_set(
        &self,
        params: &CacheAttach,
        volume: &MappedDevice,
        found: CacheFound,
    ) -> Outcome<String> {
        let CacheAttach { name, cache, block_size } = params;
        if let Some(asked) = block_size {
            let expected = format!("nothing: the set has blocks of {} bytes", found.block_bytes);
            return Err(wrong(name, "--block-size", asked.to_string(), expected));
        }
        let (backing, offset, sectors) = backing_device(name, volume)?;
        let device = Device { argument: backing.clone(), disk: self.world.open(&backing)? };
        let first = self
            .world
            .on_home(name, move |env| async move { first_sector_of(&env, &device).await })?;
        let Some(first) = first else {
            let found = format!("{backing} without a superblock of bcache");
            let expected = "a formatted backing device (cairn format bcache --backing)";
            return Err(refused(ConfigKind::Argument, name, "table", found, expected));
        };
        if offset.is_some_and(|offset| offset != first) {
            let found = format!("sectors from {} of {backing} on", offset.unwrap_or_default());
            let expected = format!("those from {first} on, where its data begins");
            return Err(refused(ConfigKind::Argument, name, "table", found, expected));
        }
        let now = u64::from(volume.limits().logical_block);
        if found.block_bytes > now && self.is_in_use(name, volume) {
            let block = found.block_bytes;
            let found = format!("{block} bytes with users that write blocks of {now}");
            let expected = format!("at most {now} (or no clients)");
            return Err(refused(ConfigKind::Busy, cache, "block_size", found, expected));
        }
        Ok(format!("0 {sectors} bcache {backing} {cache} 1 attach"))
    }

    /// True if clients, volumes or snapshots use the volume.
    fn is_in_use(&self, name: &str, volume: &MappedDevice) -> bool {
        volume.volume() != name
            || !self.world.users_of(name).is_empty()
            || self.exports.refuse_clients(name, "").is_err()
    }

    /// Refuses a device that a table uses, and one that is neither blank nor a writecache without
    /// dirty blocks.
    fn refuse_as_cache(&self, name: &str, cache: &str) -> Outcome<()> {
        let disk = self.world.open(cache)?;
        let volumes = self.world.volumes();
        let uses = |volume: &&Arc<MappedDevice>| {
            let tables = [volume.live_table(), volume.inactive_table()];
            let mut lines = tables.iter().flatten().flat_map(|table| table.lines());
            lines.any(|line| line.target.lowers().iter().any(|lower| Arc::ptr_eq(lower, &disk)))
        };
        if let Some(user) = volumes.iter().find(uses) {
            let found = format!("a device that volume '{}' uses", user.volume());
            return Err(refused(ConfigKind::Busy, cache, "cache", found, "one of its own"));
        }
        let bytes = match dirty_bytes_on(&self.world, cache)? {
            None => return self.world.refuse_unless_blank(cache, "writecache", String::new()),
            Some(0) => return Ok(()),
            Some(bytes) => bytes,
        };
        let detail = format!(
            "cache: found {} KiB of dirty data, which are not {name}'s; it is attached once they \
             are written back (cairn flush) or given up: cairn format writecache {cache} --yes \
             --discard-dirty",
            bytes.div_ceil(1024)
        );
        Err(ConfigError::new(ConfigKind::Argument, cache, detail))
    }

    /// How large a block is. Users of the volume were told its logical block size, so it does not
    /// grow while there are any.
    fn block_bytes(&self, name: &str, volume: &MappedDevice, asked: Option<u64>) -> Outcome<u64> {
        let now = u64::from(volume.limits().logical_block);
        let is_used = self.is_in_use(name, volume);
        match asked {
            Some(asked) if is_used && asked > now => {
                let found = format!("{asked} with users that write blocks of {now}");
                let expected = format!("{now} (or no clients)");
                Err(refused(ConfigKind::Busy, name, "--block-size", found, expected))
            }
            Some(asked) => Ok(asked),
            None if is_used => Ok(now),
            None => Ok(BLOCK_BYTES.max(now)),
        }
    }
}

/// Refuses a device that is no cache device of bcache where one is needed: if it is a backing
/// device, or the volume is `bcache BACKING - ...`.
fn refuse_as_set(name: &str, cache: &str, volume: &MappedDevice, is_backing: bool) -> Outcome<()> {
    let found = match (is_backing, backing_device(name, volume)) {
        (true, _) => "that of a backing device of bcache",
        (false, Ok((_, None, _))) => "none",
        (false, _) => return Ok(()),
    };
    let expected = "that of a cache device (cairn format bcache --cache)";
    Err(refused(ConfigKind::Argument, cache, "superblock", found, expected))
}

/// The device that a volume maps as a whole from its first sector on, and the length.
fn bare_device(name: &str, volume: &MappedDevice) -> Outcome<(String, u64)> {
    if !cache_lines(volume).is_empty() {
        let expected = format!("none (cairn cache detach {name})");
        return Err(wrong(name, "table", "a cache", expected));
    }
    let table = volume.live_table();
    let lines: Vec<_> = table.iter().flat_map(|table| table.lines()).collect();
    let printed = lines.first().map(|line| line.to_table_line());
    match printed.as_ref().map(|line| (line.target.as_str(), line.args.as_slice())) {
        Some(("linear", [device, offset])) if lines.len() == 1 && offset == "0" => {
            Ok((device.clone(), lines[0].len.0))
        }
        _ => {
            let found = printed.map_or("no line".to_owned(), |line| format!("'{line}'"));
            let expected = "one line, linear DEVICE 0";
            Err(wrong(name, "table", found, expected))
        }
    }
}

/// The backing device that a volume maps as a whole, the sector where it begins to do so if its
/// line says so, and the length.
fn backing_device(name: &str, volume: &MappedDevice) -> Outcome<(String, Option<u64>, u64)> {
    let table = volume.live_table();
    let lines: Vec<_> = table.iter().flat_map(|table| table.lines()).collect();
    let printed = lines.first().filter(|_| lines.len() == 1).map(|line| line.to_table_line());
    let words = printed.as_ref().map(|line| (line.target.as_str(), line.args.as_slice()));
    match (words, lines.first()) {
        (Some(("linear", [device, offset])), Some(line)) => {
            Ok((device.clone(), offset.parse().ok(), line.len.0))
        }
        (Some(("bcache", [backing, cache, ..])), Some(line)) if cache == NO_DEVICE => {
            Ok((backing.clone(), None, line.len.0))
        }
        (Some(("bcache", _)), _) => {
            let expected = format!("none (cairn cache detach {name})");
            Err(wrong(name, "table", "a cache", expected))
        }
        _ => {
            let found = match lines.first() {
                Some(line) => format!("'{}'", line.to_table_line()),
                None => "no line".to_owned(),
            };
            let expected = "one line, linear BACKING OFFSET or bcache BACKING - 0";
            Err(wrong(name, "table", found, expected))
        }
    }
}
