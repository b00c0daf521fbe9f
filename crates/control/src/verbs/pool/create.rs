//! `pool create`: the devices, the table and the metadata of a new pool.

use std::fs;
use std::path::PathBuf;

use cairn_block::{ConfigKind, Disk, MappedDevice, SECTOR_BYTES};
use cairn_outcome::failure::{Outcome, refused, wrong};
use cairn_targets::persistent::{Options, Store};
use cairn_tools::source::{Source, sync_folder};

use crate::arguments::{bytes, device, is_path, sectors};
use crate::control::server::Caller;
use crate::live_pool::is_pool;
use crate::names::refuse_at_sign;
use crate::reach::Named;
use crate::state::Record;
use crate::verbs::snap::store::{check_argument, discard};
use crate::verbs::steps::{Step, log_undo_failure};
use crate::verbs::verb::{Done, declare};
use crate::verbs::{Changes, Verbs};

/// The default size of a data block in sectors: 64 KiB.
pub const BLOCK_SECTORS: u64 = 128;
/// A block is a multiple of this, and no larger than that.
const BLOCK_STEP: u64 = 128;
const BLOCK_MAX: u64 = 1 << 21;

/// Bytes of metadata per data block in a file that is made. Documented are 48: the file is sparse,
/// so that room for snapshots costs nothing before it is used.
const METADATA_BYTES_PER_BLOCK: u64 = 64;
const METADATA_BYTES_MIN: u64 = 4 << 20;
/// The most that a pool uses: 255 bitmaps of blocks.
const METADATA_BYTES_MAX: u64 = 255 * 16320 * 4096;

const DETECT: &str = "detect_zeroes";

/// A device of a pool to be.
struct Part<'a> {
    /// `data` or `metadata`.
    field: &'a str,
    /// Sectors of a data block.
    block: u64,
    argument: &'a str,
    bytes: Option<u64>,
}

declare! {
    /// `pool create`
    PoolCreate = "pool_create" -> Done {
        /// The pool
        name: String,
        /// The data device: a file (made with --data-size), a block device or a volume (@NAME)
        #[arg(long, value_name = "PATH|@VOLUME", value_parser = device())]
        data: String,
        /// The metadata device: a blank file or block device, a volume (@NAME), or a file to make
        #[arg(long, value_name = "PATH|@VOLUME", value_parser = device())]
        metadata: String,
        /// Size of the data file to make, like 100G (sparse)
        #[arg(long = "data-size", value_name = "SIZE", value_parser = bytes())]
        data_bytes: Option<u64>,
        /// Size of the metadata file to make (default: 64 bytes per data block, at least 4M;
        /// sparse)
        #[arg(long = "metadata-size", value_name = "SIZE", value_parser = bytes())]
        metadata_bytes: Option<u64>,
        /// Size of a data block: a multiple of 64K, up to 1G (default: 64K)
        #[arg(long = "block-size", value_name = "SIZE", value_parser = sectors())]
        block_sectors: Option<u64>,
        /// Raise an event when no more data blocks than this are free (default: 0)
        #[arg(long = "low-water", value_name = "BLOCKS")]
        low_water_blocks: Option<u64>,
        /// The features of the table line, word by word. Without `detect_zeroes` it is `unmap`.
        #[arg(skip)]
        features: Option<Vec<String>>,
    }
    |verb, verbs, caller| verbs.pool_create(&verb, caller)
}

impl Verbs {
    /// `pool create`
    ///
    /// # Errors
    /// Nothing has changed.
    pub fn pool_create(&self, params: &PoolCreate, caller: &dyn Caller) -> Outcome<()> {
        let name = &params.name;
        refuse_at_sign(name)?;
        let named = Named::volume(name).with_device(Some(&params.data));
        let named = named.with_device(Some(&params.metadata));
        let changes = self.change_table(&named, "pool create", caller)?;
        self.refuse_recorded(name)?;
        if self.world.volume(name).is_ok() || changes.record_of(name).configured.is_some() {
            return Err(refused(ConfigKind::Busy, name, "name", "a volume of it", "a new one"));
        }
        let block = block_sectors(params)?;
        let mut made = Vec::new();
        let table = self.pool_table(params, block, &mut made);
        let undo = |made: &[PathBuf]| made.iter().for_each(|path| discard(path));
        let table = table.inspect_err(|_| undo(&made))?;
        self.step(Step::StoreMade);
        let before = changes.record_of(name);
        let (live, pool_made_s) = (Some(table.clone()), Some(self.world.unix_time_s()));
        let record = Record { table: live, pool_made_s, ..before.clone() };
        let up = self.make_pool(&changes, record, &table);
        if up.is_err() {
            log_undo_failure(name, changes.record_all(vec![before]));
            log_undo_failure(name, self.take_down(name));
            if changes.is_sure() {
                undo(&made);
            }
        }
        up?;
        self.step(Step::Done);
        Ok(())
    }

    /// Steps 2 to 4.
    fn make_pool(&self, changes: &Changes, record: Record, table: &str) -> Outcome<()> {
        let name = record.name.clone();
        self.world.create(&name)?;
        self.set_owner(&name)?;
        self.world.load(&name, table)?;
        changes.record_all(vec![record])?;
        self.step(Step::Recorded);
        self.make_live(&name)?;
        self.step(Step::Arranged);
        self.exports.add_volume(&self.world, &name)
    }

    /// Makes or checks the devices, and returns the table over them.
    fn pool_table(
        &self,
        params: &PoolCreate,
        block: u64,
        made: &mut Vec<PathBuf>,
    ) -> Outcome<String> {
        let PoolCreate { data, metadata, .. } = params;
        if data == metadata {
            return Err(wrong(metadata, "metadata", "the data device itself", "another device"));
        }
        let part = Part { field: "data", block, argument: data, bytes: params.data_bytes };
        let sectors = self.pool_device(&part, None, made)?;
        let (blocks, low) = (sectors / block, params.low_water_blocks.unwrap_or(0));
        if blocks == 0 {
            let expected = format!("at least one data block, {block} sectors");
            return Err(wrong(data, "size", format!("{sectors} sectors"), expected));
        }
        let bytes = params.metadata_bytes;
        let part = Part { field: "metadata", block, argument: metadata, bytes };
        self.pool_device(&part, Some(metadata_bytes(blocks)), made)?;
        let mut words = params.features.clone().unwrap_or_default();
        if !words.iter().any(|word| word == DETECT) {
            words.extend([DETECT, "unmap"].map(str::to_owned));
        }
        let (length, count) = (blocks * block, words.len());
        let words = words.join(" ");
        Ok(format!("0 {length} thin-pool {metadata} {data} {block} {low} {count} {words}"))
    }

    /// Makes the file if there is none; answers the size of the device, in sectors. What is not
    /// blank is refused, but for metadata without any volume.
    fn pool_device(
        &self,
        part: &Part<'_>,
        default_bytes: Option<u64>,
        made: &mut Vec<PathBuf>,
    ) -> Outcome<u64> {
        let Part { field, argument, bytes, .. } = *part;
        let option = format!("--{field}-size");
        if let Some(volume) = argument.strip_prefix('@') {
            let volume = self.world.volume(volume)?;
            if let Some(bytes) = bytes {
                return Err(wrong(argument, &option, bytes, "none: it is a volume"));
            }
            self.world.refuse_suspended(volume.volume())?;
            self.refuse_in_use(&volume)?;
            self.refuse_used(part)?;
            return Ok(volume.sectors().0);
        }
        check_argument(argument)?;
        let path = self.place(argument);
        if fs::symlink_metadata(&path).is_ok() {
            if let Some(bytes) = bytes {
                return Err(wrong(argument, &option, bytes, "none: the device exists"));
            }
            // First check whether another volume or client uses it.
            let sectors = Source::write(&path)?.bytes / SECTOR_BYTES;
            self.refuse_used(part)?;
            return Ok(sectors);
        }
        let wanted = bytes.or(default_bytes);
        let fits = |bytes: &u64| *bytes >= 4096 && bytes.is_multiple_of(SECTOR_BYTES);
        let Some(bytes) = wanted.filter(fits) else {
            let found = wanted.map_or("none".to_owned(), |bytes| bytes.to_string());
            let expected = "the size of the file to make, in whole sectors";
            return Err(wrong(argument, &option, found, expected));
        };
        let source = Source::create(&path, bytes)?;
        made.push(path.clone());
        source.flush()?;
        sync_folder(&path)?;
        Ok(bytes / SECTOR_BYTES)
    }
}

impl Verbs {
    /// Refuses a device that is not blank. Metadata of a pool without any volume will do: it is
    /// what `cairn format thin-pool` makes.
    fn refuse_used(&self, part: &Part<'_>) -> Outcome<()> {
        if part.field == "data" {
            return self.world.refuse_unless_blank(part.argument, "pool-data", String::new());
        }
        let disk = self.world.open(part.argument)?;
        let is_empty = self.world.on_home(part.argument, move |env| async move {
            let options = Options { read_only: true, ..Options::default() };
            let opened = Store::open(&env, &disk, options).await;
            opened.is_ok_and(|(store, _)| store.devices().is_empty())
        });
        if is_empty {
            return Ok(());
        }
        let options = format!(" --block-size {}", part.block * SECTOR_BYTES);
        self.world.refuse_unless_blank(part.argument, "thin-pool", options)
    }

    /// Refuses a volume that another volume, a client, or itself as a pool uses.
    fn refuse_in_use(&self, volume: &MappedDevice) -> Outcome<()> {
        let name = volume.volume();
        self.world.refuse_users(name)?;
        if is_pool(volume) {
            return Err(refused(ConfigKind::Busy, name, "users", "a pool's own volumes", "none"));
        }
        self.exports.refuse_clients(name, "none")
    }
}

fn block_sectors(params: &PoolCreate) -> Outcome<u64> {
    let block = params.block_sectors.unwrap_or(BLOCK_SECTORS);
    if !(BLOCK_STEP..=BLOCK_MAX).contains(&block) || !block.is_multiple_of(BLOCK_STEP) {
        let found = block.saturating_mul(SECTOR_BYTES);
        let expected = "a multiple of 64 KiB, up to 1 GiB";
        return Err(wrong(&params.name, "--block-size", format!("{found} bytes"), expected));
    }
    for argument in [&params.data, &params.metadata] {
        if !is_path(argument) && !argument.starts_with('@') {
            let expected = "a file, a block device or a volume (@NAME)";
            return Err(wrong(&params.name, "device", format!("'{argument}'"), expected));
        }
    }
    Ok(block)
}

/// How large a metadata file is made for so many data blocks.
fn metadata_bytes(data_blocks: u64) -> u64 {
    let bytes = data_blocks.saturating_mul(METADATA_BYTES_PER_BLOCK).next_multiple_of(4096);
    bytes.clamp(METADATA_BYTES_MIN, METADATA_BYTES_MAX)
}
