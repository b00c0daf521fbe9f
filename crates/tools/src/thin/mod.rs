//! Reads the metadata of a thin pool, for the tools.
//!
//! Everything that reads goes through [`MetadataDevice`]. The metadata snapshot that a pool holds
//! may be read while a server or the kernel uses the pool: its blocks do not change.

mod blocks;
pub mod check;
pub mod dump;
pub mod format;
pub mod output;
mod progress;
pub mod repair;
pub mod restore;
pub mod rmap;
mod text;

use std::path::Path;

use cairn_block::{ConfigError, ConfigKind};
use cairn_format::thin::blocks::read_one;
use cairn_format::thin::stream::{self, Stop};
use cairn_format::thin::{MetadataBlock, Superblock};
use cairn_outcome::failure::{Outcome, refused, wrong};
use serde_json::{Value, json};

use super::source::Source;
pub use blocks::MetadataDevice;

/// Opens a device; if `held`, only the metadata snapshot will be read.
///
/// # Errors
/// It cannot be opened, or another process writes it and `held` is false.
pub fn open(path: &Path, held: bool) -> Outcome<Source> {
    if held { Source::read_beside(path) } else { Source::read(path) }
}

/// The refusal of a device whose metadata snapshot was asked for.
pub fn no_metadata(source: &Source) -> ConfigError {
    let (found, expected) = ("no dm-thin metadata", "a pool's metadata device");
    wrong(&source.name, "--metadata-snapshot", found, expected)
}

/// The pool's superblock.
///
/// # Errors
/// There is none, or it is damaged.
fn pool_superblock(device: &mut MetadataDevice<'_>) -> Outcome<Superblock> {
    let at = MetadataBlock::SUPERBLOCK;
    let read = read_one(device, at, |bytes| Superblock::decode(bytes, at))?;
    let superblock = read.map_err(|bad| device.damaged(bad))?;
    let Superblock { metadata_space_map, data_space_map, .. } = &superblock;
    device.expect(metadata_space_map.allocated, data_space_map.allocated);
    Ok(superblock)
}

/// Where the metadata snapshot is.
///
/// # Errors
/// There is none.
fn held_root(device: &MetadataDevice<'_>, superblock: &Superblock) -> Outcome<MetadataBlock> {
    superblock.held_root.ok_or_else(|| {
        let expected = "a metadata snapshot (message reserve_metadata_snap)";
        refused(ConfigKind::Argument, device.name(), "held_root", 0, expected)
    })
}

/// The superblock to begin at: that of the pool, or that of its metadata snapshot.
///
/// # Errors
/// There is none, or it is damaged.
fn superblock(device: &mut MetadataDevice<'_>, held: bool) -> Outcome<Superblock> {
    let superblock = pool_superblock(device)?;
    if !held {
        return Ok(superblock);
    }
    let at = held_root(device, &superblock)?;
    let read = read_one(device, at, |bytes| Superblock::decode(bytes, at))?;
    read.map_err(|bad| device.damaged(format!("metadata snapshot: {bad}")))
}

/// The result of reading the metadata snapshot, or a refusal if the pool released the snapshot
/// before the end: its blocks may then have been overwritten.
///
/// # Errors
/// Those of the read, or the pool released the snapshot.
fn while_held<T>(
    device: &mut MetadataDevice<'_>,
    before: &Superblock,
    outcome: Outcome<T>,
) -> Outcome<T> {
    match superblock(device, true) {
        Ok(now) if now == *before => outcome,
        Err(error) if error.kind == ConfigKind::System => Err(error),
        _ => {
            let (found, expected) = ("released or replaced while it was read", "held");
            let field = "metadata snapshot";
            Err(refused(ConfigKind::Busy, device.name(), field, found, expected))
        }
    }
}

/// Sets the total of the progress display for reading every volume of a superblock, one by one.
fn expect_volumes(device: &mut MetadataDevice<'_>, superblock: &Superblock, held: bool) {
    // The caller reports damage.
    if let Ok(devices) = stream::devices(device, superblock, held) {
        let mapped = devices.iter().map(|(_, details, _)| details.mapped_blocks);
        device.expect_mappings(mapped.fold(0, u64::saturating_add));
    }
}

/// Why a stream stopped, as an error.
fn stopped(device: &MetadataDevice<'_>, stop: Stop<ConfigError>) -> ConfigError {
    match stop {
        Stop::Ended(error) => error,
        Stop::Damaged(place, fault) => device.damaged(format!("{place}: {fault}")),
    }
}

/// A superblock with stable field names.
fn superblock_json(superblock: &Superblock) -> Value {
    json!({
        "version": superblock.version,
        "needs_check": superblock.needs_check(),
        "time": superblock.time,
        "transaction_id": superblock.transaction_id,
        "held_root": superblock.held_root.map(|root| root.0),
        "data_block_size": superblock.data_block_size.sectors(),
        "data_blocks": superblock.data_space_map.blocks,
        "metadata_blocks": superblock.metadata_space_map.blocks,
    })
}
