//! The superblock and the entries of a cache for `cairn dump`.

use std::fmt::Write;

use cairn_block::{ConfigError, ConfigKind, SECTOR_BYTES};
use cairn_format::writecache::{
    Entry, EntryState, Geometry, NO_SECTOR, SUPERBLOCK_BYTES, Superblock,
};
use cairn_outcome::failure::Outcome;
use cairn_outcome::{exit, stdout};
use serde_json::{Value, json};

use super::{for_each_piece, superblock_json};
use crate::source::Source;

/// Shows the cache that begins at `start_sector`.
///
/// # Errors
/// The device cannot be read or holds no cache.
pub fn show(source: &Source, start_sector: u64, all: bool, as_json: bool) -> Outcome<u8> {
    let area = source.area_bytes(start_sector)?;
    let start = start_sector * SECTOR_BYTES;
    let head = SUPERBLOCK_BYTES.min(usize::try_from(area).unwrap_or(SUPERBLOCK_BYTES));
    let damaged = |error: cairn_format::writecache::Error| {
        ConfigError::new(ConfigKind::Damaged, &source.name, error.to_string())
    };
    let superblock = Superblock::parse(&source.bytes_at(start, head)?).map_err(damaged)?;
    let geometry = Geometry::of_superblock(&superblock, area).map_err(damaged)?;
    let shown = |entry: &Entry| all || !entry.seq.is_free();
    let (mut text, mut entries) = (head_text(&superblock, &geometry), Vec::new());
    for_each_piece(source, start, superblock.n_blocks(), |first, piece| {
        let slots = (first..).zip(piece).filter(|(_, entry)| shown(entry));
        for (slot, entry) in slots {
            if as_json {
                entries.push(entry_json(slot, entry, &superblock));
            } else {
                entry_text(&mut text, slot, entry, &superblock);
            }
        }
        if as_json {
            return Ok(());
        }
        stdout::print(&std::mem::take(&mut text)).map(drop)
    })?;
    if as_json {
        let mut value = superblock_json(&superblock);
        value["data_offset"] = json!(geometry.data_offset());
        return stdout::print_json(&json!({
            "device": source.name,
            "superblock": value,
            "entries": entries,
        }));
    }
    Ok(exit::OK)
}

fn head_text(superblock: &Superblock, geometry: &Geometry) -> String {
    format!(
        "block_size {}\nn_blocks {}\nseq_count {}\ndata_offset {}\n",
        superblock.block_size().bytes(),
        superblock.n_blocks(),
        superblock.seq(),
        geometry.data_offset()
    )
}

fn state_word(entry: &Entry, superblock: &Superblock) -> &'static str {
    match entry.state(superblock.seq()) {
        EntryState::Free => "free",
        EntryState::Uncommitted => "uncommitted",
        EntryState::Committed => "committed",
    }
}

fn entry_text(text: &mut String, slot: u64, entry: &Entry, superblock: &Superblock) {
    let state = state_word(entry, superblock);
    write!(text, "slot {slot}: {state}").expect("writing to a string cannot fail");
    if entry.original_sector != NO_SECTOR {
        let sector = entry.original_sector;
        write!(text, ", original_sector {sector}").expect("writing to a string cannot fail");
    }
    if !entry.seq.is_free() {
        let seq = entry.seq;
        write!(text, ", seq_count {seq}").expect("writing to a string cannot fail");
    }
    text.push('\n');
}

/// The marks of a free slot are `null`: not every JSON reader can hold such large numbers.
fn entry_json(slot: u64, entry: &Entry, superblock: &Superblock) -> Value {
    json!({
        "slot": slot,
        "state": state_word(entry, superblock),
        "original_sector": (entry.original_sector != NO_SECTOR).then_some(entry.original_sector),
        "seq_count": (!entry.seq.is_free()).then_some(entry.seq.0),
    })
}
