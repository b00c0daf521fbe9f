//! Reads the metadata of a dm-writecache cache device in pieces, for the tools.

pub mod check;
pub mod dump;

use cairn_block::{ConfigKind, SECTOR_BYTES};
use cairn_format::writecache::check::{Checker, Limits, Report};
use cairn_format::writecache::{ENTRY_BYTES, Entry, SUPERBLOCK_BYTES, Superblock};
use cairn_outcome::failure::{Outcome, refused};
use serde_json::{Value, json};

use crate::source::Source;

/// Bytes of entries in one read.
const PIECE_BYTES: u64 = 1 << 20;

/// Checks the cache that begins at `start_sector`.
///
/// # Errors
/// The device cannot be read.
pub fn check(source: &Source, start_sector: u64, origin_sectors: Option<u64>) -> Outcome<Report> {
    let area_bytes = source.area_bytes(start_sector)?;
    let start = start_sector * SECTOR_BYTES;
    let head = SUPERBLOCK_BYTES.min(usize::try_from(area_bytes).unwrap_or(SUPERBLOCK_BYTES));
    let superblock = source.bytes_at(start, head)?;
    let limits = Limits { area_bytes: Some(area_bytes), origin_sectors, target_sectors: None };
    let mut checker = Checker::new(&superblock, limits);
    let wanted = checker.entries_wanted() as u64;
    for_each_piece(source, start, wanted, |_, entries| {
        entries.iter().for_each(|entry| checker.entry(*entry));
        Ok(())
    })?;
    Ok(checker.finish())
}

/// Refuses to overwrite dirty blocks of a cache that begins at this sector.
///
/// # Errors
/// There is one, or the device cannot be read.
pub fn refuse_dirty(source: &Source, start_sector: u64) -> Outcome<()> {
    let dirty = check(source, start_sector, None)?.counts.dirty();
    if dirty == 0 {
        return Ok(());
    }
    let found = format!("a cache with {dirty} blocks that its origin does not have");
    let expected = "a clean one (cairn flush), or --yes --discard-dirty to lose them";
    Err(refused(ConfigKind::Busy, &source.name, "content", found, expected))
}

/// Reads the first `count` entries of the slot table and passes them to `each` in pieces, with the
/// slot number of the first entry.
///
/// # Errors
/// The device cannot be read, or `each` fails.
pub fn for_each_piece(
    source: &Source,
    start: u64,
    count: u64,
    mut each: impl FnMut(u64, &[Entry]) -> Outcome<()>,
) -> Outcome<()> {
    let per_piece = PIECE_BYTES / ENTRY_BYTES as u64;
    let mut slot = 0;
    while slot < count {
        let entries = per_piece.min(count - slot);
        let offset = start + SUPERBLOCK_BYTES as u64 + slot * ENTRY_BYTES as u64;
        let bytes = source.bytes_at(offset, entries as usize * ENTRY_BYTES)?;
        each(slot, &Entry::iter(&bytes).collect::<Vec<_>>())?;
        slot += entries;
    }
    Ok(())
}

/// A superblock with stable field names.
pub fn superblock_json(superblock: &Superblock) -> Value {
    json!({
        "block_size": superblock.block_size().bytes(),
        "n_blocks": superblock.n_blocks(),
        "seq_count": superblock.seq().0,
    })
}

/// How the slots divide, with stable field names.
pub fn counts_json(report: &Report) -> Value {
    let counts = report.counts;
    json!({
        "committed": counts.committed,
        "superseded": counts.superseded,
        "uncommitted": counts.uncommitted,
        "free": counts.free,
        "stale": counts.stale,
        "dirty": counts.dirty(),
    })
}

/// Bytes that the origin does not have yet.
pub fn dirty_bytes(report: &Report) -> u64 {
    let block = report.superblock.as_ref().map_or(0, |sb| u64::from(sb.block_size().bytes()));
    report.counts.dirty() * block
}
