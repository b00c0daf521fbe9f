//! `cache attach`: puts a `writecache` in front of the device of a served volume.
//!
//! The verb is a `replace` of `linear DEVICE 0` by `writecache s DEVICE CACHE`. The new table
//! formats the cache when it starts, behind the record of the swap: after a kill before that, the
//! next start formats the cache, or serves the old table.
//!
//! The cache must be blank, or a writecache without dirty blocks: dirty blocks are those of another
//! origin, or of a table that has this origin with that cache already.

use std::sync::Arc;

use cairn_block::{ConfigError, ConfigKind, Disk, MappedDevice};
use cairn_outcome::failure::{Outcome, refused, wrong};

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
        /// The cache device: a blank file or block device, or a volume (@NAME)
        #[arg(value_name = "CACHE", value_parser = device())]
        cache: String,
        /// Bytes of a cache block (default: 4096; while clients are connected the logical block
        /// size of the volume)
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
        let (origin, sectors) = bare_device(name, &volume)?;
        self.refuse_as_cache(name, cache)?;
        let block = self.block_bytes(name, &volume, *block_size)?;
        let table = format!("0 {sectors} writecache s {origin} {cache} {block} 0");
        let params = VolumeReplace { name: beneath, table, ..VolumeReplace::default() };
        self.swap_in_turn(changes, Doing::Attach, &params, caller)
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
        // Snapshots are users, too.
        let is_used = volume.volume() != name
            || !self.world.users_of(name).is_empty()
            || self.exports.refuse_clients(name, "").is_err();
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
