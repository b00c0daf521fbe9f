//! `cairn probe` of a cache or a backing device: what it prints after the signature.

use cairn_block::SECTOR_BYTES;
use cairn_format::Severity;
use cairn_format::bcache::check::{Report, Volume};
use cairn_format::bcache::{BackingState, BackingSuperblock, Error, Superblock};
use cairn_outcome::exit;
use cairn_outcome::failure::Outcome;
use serde_json::{Value, json};

use super::{backing_json, cache_json, volume_json};
use crate::source::Source;

/// What a device with the magic of a bcache superblock is.
pub enum Found {
    /// A cache, checked.
    Cache(Box<Report>),
    /// A backing device that has room for data.
    Backing(BackingSuperblock),
    /// A superblock that is damaged or of an unknown kind, or a backing device that is too small
    /// for its superblock.
    Wrong(Error),
}

/// Looks at the device that begins at `start_sector`.
///
/// # Errors
/// The device cannot be read.
pub fn look(source: &Source, start_sector: u64) -> Outcome<Found> {
    Ok(match super::superblock(source, start_sector)? {
        Ok(Superblock::Cache(_)) => {
            Found::Cache(Box::new(super::report(source, start_sector, &[])?))
        }
        Ok(Superblock::Backing(backing)) => {
            match backing.data_sectors(source.area_bytes(start_sector)? / SECTOR_BYTES) {
                Ok(_) => Found::Backing(backing),
                Err(error) => Found::Wrong(error),
            }
        }
        Err(error) => Found::Wrong(error),
    })
}

impl Found {
    /// 5 if there is dirty data, unless there is damage.
    pub fn exit_code(&self) -> u8 {
        let (severity, is_dirty) = match self {
            Found::Cache(report) => (report.severity, report.totals.dirty_sectors > 0),
            Found::Backing(backing) => match backing.state() {
                BackingState::None | BackingState::Clean => (Severity::Sound, false),
                BackingState::Dirty => (Severity::Sound, true),
                BackingState::Stale => (Severity::Damaged, true),
            },
            Found::Wrong(_) => (Severity::Damaged, false),
        };
        match severity {
            Severity::Sound | Severity::SoundAfterRecovery if is_dirty => exit::RECOVERS,
            Severity::Sound | Severity::SoundAfterRecovery => exit::OK,
            severity => severity.exit_code(),
        }
    }

    /// Lines for a person.
    pub fn text(&self, device: &str) -> String {
        match self {
            Found::Cache(report) => cache_text(device, report),
            Found::Backing(backing) => match backing.state() {
                BackingState::None | BackingState::Clean => String::new(),
                BackingState::Dirty => {
                    format!("{device}: dirty: its cache has data that it lacks\n")
                }
                BackingState::Stale => format!(
                    "{device}: inconsistent: it was used without its cache, which has data that \
                     it lacks\n"
                ),
            },
            Found::Wrong(error) => format!("{device}: {error}; damaged\n"),
        }
    }

    /// The same with stable field names.
    pub fn json(&self) -> Value {
        match self {
            Found::Cache(report) => json!({
                "superblock": report.superblock.as_ref().map(cache_json),
                "volumes": report.volumes.iter().map(volume_json).collect::<Vec<_>>(),
                "dirty_sectors": report.totals.dirty_sectors,
                "severity": report.severity.to_string(),
            }),
            Found::Backing(backing) => json!({ "superblock": backing_json(backing) }),
            Found::Wrong(error) => json!({ "error": error.to_string() }),
        }
    }
}

fn cache_text(device: &str, report: &Report) -> String {
    let dirty = report.totals.dirty_sectors;
    let state = if dirty > 0 { "dirty" } else { "clean" };
    let least = if report.severity == Severity::Damaged { "at least " } else { "" };
    let kib = dirty.div_ceil(2);
    let mut text = format!(
        "{device}: {state}: {least}{dirty} sectors ({kib} KiB) are in the cache alone; {}\n",
        report.severity
    );
    for Volume { inode, entry, dirty_sectors, .. } in &report.volumes {
        let (uuid, word) = (entry.uuid, super::volume_word(entry));
        let label = match entry.label_text() {
            label if label.is_empty() => label,
            label => format!(" '{label}'"),
        };
        text.push_str(&format!(
            "{device}: volume {inode}: {uuid}{label}, {word}, {dirty_sectors} sectors dirty\n"
        ));
    }
    text
}
