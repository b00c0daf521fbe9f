//! bcache caches and backing devices for the tools.

pub mod check;
pub mod dump;
pub mod format;
pub mod lost;
pub mod probe;

use std::convert::Infallible;
use std::ops::Range;
use std::path::Path;

use cairn_block::{ConfigError, ConfigKind, SECTOR_BYTES};
use cairn_format::Severity;
use cairn_format::bcache::check::{Backing, Losses, Report, Volume, check, check_losses};
use cairn_format::bcache::load;
use cairn_format::bcache::uuids::UuidEntry;
use cairn_format::bcache::{
    BackingState, BackingSuperblock, CacheSuperblock, Error, SUPERBLOCK_BYTES, SUPERBLOCK_SECTOR,
    Superblock,
};
use cairn_outcome::failure::{Outcome, refused, wrong};
use cairn_outcome::stderr::say;
use serde_json::{Value, json};

use crate::args::DiscardDirty;
use crate::source::Source;

/// A device whose sectors are counted from a first one.
pub struct Sectors<'a> {
    source: &'a Source,
    start_sector: u64,
}

impl load::Source for Sectors<'_> {
    type Error = Infallible;

    async fn read(
        &mut self,
        ranges: &[Range<u64>],
    ) -> Result<Vec<Result<Vec<u8>, String>>, Infallible> {
        Ok(ranges.iter().map(|range| self.bytes(range)).collect())
    }
}

impl Sectors<'_> {
    fn bytes(&self, range: &Range<u64>) -> Result<Vec<u8>, String> {
        let length = (range.end - range.start) * SECTOR_BYTES;
        let begin = (self.start_sector + range.start) * SECTOR_BYTES;
        if begin.checked_add(length).is_none_or(|end| end > self.source.bytes) {
            return Err("it lies beyond the end of the device".to_owned());
        }
        let mut bytes = vec![0; length as usize];
        match self.source.read_into(begin, &mut bytes) {
            Ok(()) => Ok(bytes),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// The superblock of a device that begins at `start_sector`.
///
/// # Errors
/// The device cannot be read.
pub fn superblock(source: &Source, start_sector: u64) -> Outcome<Result<Superblock, Error>> {
    let offset = (start_sector + SUPERBLOCK_SECTOR) * SECTOR_BYTES;
    let room = source.bytes.saturating_sub(offset).min(SUPERBLOCK_BYTES as u64);
    let bytes = source.bytes_at(offset, room as usize)?;
    Ok(Superblock::decode(&bytes))
}

/// Checks a cache that begins at `start_sector`, and what these backing devices say of it.
///
/// # Errors
/// A device cannot be read.
pub fn report(source: &Source, start_sector: u64, backings: &[Backing]) -> Outcome<Report> {
    let sectors = source.area_bytes(start_sector)? / SECTOR_BYTES;
    let mut sectors_of = Sectors { source, start_sector };
    let Ok(report) = load::now(check(&mut sectors_of, sectors, backings));
    Ok(report)
}

/// The same, and what damage took with it.
///
/// # Errors
/// A device cannot be read.
pub fn report_losses(
    source: &Source,
    start_sector: u64,
    backings: &[Backing],
) -> Outcome<(Report, Losses)> {
    let sectors = source.area_bytes(start_sector)? / SECTOR_BYTES;
    let mut sectors_of = Sectors { source, start_sector };
    let Ok(found) = load::now(check_losses(&mut sectors_of, sectors, backings));
    Ok(found)
}

fn backing(path: &Path) -> Outcome<Backing> {
    let source = Source::read(path)?;
    let superblock = superblock(&source, 0)?.and_then(|superblock| match superblock {
        Superblock::Backing(backing) => Ok(backing),
        Superblock::Cache(_) => {
            Err(Error::Kind { found: "a cache device", expected: "a backing device" })
        }
    });
    Ok(Backing { superblock, device_sectors: source.bytes / SECTOR_BYTES })
}

/// Refuses to overwrite a cache that begins at this sector and has dirty data, or a backing device
/// that lacks some; or says what is lost.
///
/// # Errors
/// There is some, or there may be, and it is not given up; or the device cannot be read.
pub fn refuse_dirty(
    source: &Source,
    start_sector: u64,
    discard: Option<DiscardDirty>,
) -> Outcome<()> {
    let (set, lost) = match superblock(source, start_sector)? {
        Ok(Superblock::Cache(cache)) if cache.is_in_use() => {
            let report = report(source, start_sector, &[])?;
            (cache.set_uuid(), what_is_dirty(&report))
        }
        Ok(Superblock::Backing(backing)) => (backing.set_uuid(), what_is_lacking(&backing)),
        Ok(_) | Err(Error::Magic { .. } | Error::Short { .. }) => return Ok(()),
        // Its set cannot be known.
        Err(_) if discard.is_some() => return Ok(()),
        Err(error) => {
            let found = format!("a damaged bcache device ({error}), perhaps with dirty data");
            let expected = "a sound one, or --yes --discard-dirty to lose it";
            return Err(refused(ConfigKind::Busy, &source.name, "content", found, expected));
        }
    };
    let Some(lost) = lost else { return Ok(()) };
    match discard {
        Some(DiscardDirty::Set(given)) if given == set => {
            say(format_args!("{}: gives up {lost}", source.name));
            Ok(())
        }
        Some(DiscardDirty::Set(given)) => {
            let expected = format!("{set}, the set whose data would be lost: {lost}");
            Err(wrong(&source.name, "--discard-dirty", given, expected))
        }
        _ => {
            let expected = format!(
                "a clean one (cairn flush), or --yes --discard-dirty={set}, the set's UUID, to \
                 lose them"
            );
            Err(refused(ConfigKind::Busy, &source.name, "content", lost, expected))
        }
    }
}

/// What a backing device lacks. Without the device, it is lost as well.
fn what_is_lacking(backing: &BackingSuperblock) -> Option<String> {
    let uuid = backing.uuid();
    match backing.state() {
        BackingState::None | BackingState::Clean => None,
        BackingState::Dirty => {
            Some(format!("a backing device ({uuid}) whose cache has sectors that it does not have"))
        }
        BackingState::Stale => Some(format!(
            "a backing device ({uuid}) that was used without its cache, which has sectors that it \
             does not have"
        )),
    }
}

/// What only the cache has, or may have.
fn what_is_dirty(report: &Report) -> Option<String> {
    let of = |volume: &Volume| match &volume.entry {
        entry if entry.uuid.is_zero() => format!("inode {}", volume.inode),
        entry => format!("volume {}", entry.uuid),
    };
    let dirty = report.volumes.iter().filter(|volume| volume.dirty_sectors > 0);
    let each: Vec<String> =
        dirty.map(|volume| format!("{} sectors of {}", volume.dirty_sectors, of(volume))).collect();
    match (report.totals.dirty_sectors, report.severity) {
        (0, Severity::Damaged) => Some(
            "a damaged cache, which may have data that its backing devices do not have".to_owned(),
        ),
        (0, _) => None,
        (dirty, severity) => {
            let least = if severity == Severity::Damaged { "at least " } else { "" };
            let each = each.join(", ");
            Some(format!(
                "a cache with {least}{dirty} sectors that its backing devices do not have ({each})"
            ))
        }
    }
}

/// What keeps a tool from reading a cache.
fn damaged(source: &Source, error: impl std::fmt::Display) -> ConfigError {
    ConfigError::new(ConfigKind::Damaged, &source.name, error.to_string())
}

/// The superblock of a cache with stable field names.
pub fn cache_json(superblock: &CacheSuperblock) -> Value {
    let geometry = superblock.geometry();
    let journal = superblock.journal_buckets();
    json!({
        "version": superblock.version(),
        "uuid": superblock.uuid().to_string(),
        "set_uuid": superblock.set_uuid().to_string(),
        "in_use": superblock.is_in_use(),
        "discard": superblock.discards(),
        "replacement": superblock.replacement().word(),
        "seq": superblock.seq(),
        "last_mount": superblock.last_mount(),
        "features": superblock.features(),
        "block_sectors": geometry.block_sectors(),
        "bucket_sectors": geometry.bucket_sectors(),
        "buckets": geometry.buckets(),
        "first_bucket": geometry.usable().start,
        "journal_buckets": journal.end - journal.start,
    })
}

/// The superblock of a backing device with stable field names.
pub fn backing_json(superblock: &BackingSuperblock) -> Value {
    let set = superblock.set_uuid();
    json!({
        "version": superblock.version(),
        "uuid": superblock.uuid().to_string(),
        "set_uuid": (!set.is_zero()).then(|| set.to_string()),
        "label": superblock.label(),
        "mode": superblock.mode().word(),
        "state": superblock.state().word(),
        "data_offset": superblock.data_offset(),
        "block_sectors": superblock.block_sectors(),
        "last_mount": superblock.last_mount(),
    })
}

/// What was counted of a volume, with stable field names.
fn volume_json(volume: &Volume) -> Value {
    let entry = &volume.entry;
    json!({
        "inode": volume.inode,
        "uuid": entry.uuid.to_string(),
        "label": entry.label_text(),
        "state": volume_word(entry),
        "size_sectors": entry.is_flash_only().then_some(entry.sectors),
        "extents": volume.extents,
        "cached_sectors": volume.sectors,
        "dirty_sectors": volume.dirty_sectors,
    })
}

fn volume_word(entry: &UuidEntry) -> &'static str {
    match entry {
        entry if entry.is_empty() => "unknown",
        entry if !entry.is_live() => "detached",
        entry if entry.is_flash_only() => "flash",
        _ => "attached",
    }
}
