//! The verdict on a cache or a backing device for `cairn check`.

use std::path::Path;

use cairn_format::Severity;
use cairn_format::bcache::check::{Finding, Report};
use cairn_format::bcache::{BackingState, BackingSuperblock, Superblock};
use cairn_outcome::failure::Outcome;
use serde_json::{Value, json};

use super::{backing_json, cache_json, state_word, volume_json};
use crate::source::Source;
use crate::verdict::Verdict;

/// Checks the cache that begins at `start_sector`, against these backing devices.
///
/// # Errors
/// A device cannot be read.
pub fn verdict(
    source: &Source,
    start_sector: u64,
    backings: &[impl AsRef<Path>],
) -> Outcome<Verdict> {
    let report = super::report(source, start_sector, backings)?;
    let finding = |finding: &Finding| (finding.severity(), finding.to_string());
    Ok(Verdict {
        format: Some("bcache"),
        severity: report.severity,
        findings: report.findings.iter().map(finding).collect(),
        findings_left_out: report.findings_left_out,
        summary: summary(&report),
        facts: json!({
            "superblock": report.superblock.as_ref().map(cache_json),
            "totals": totals_json(&report),
            "volumes": report.volumes.iter().map(volume_json).collect::<Vec<_>>(),
            "suspect": suspect_json(&report),
        }),
    })
}

/// Checks what a backing device says of itself. Without its cache no more can be known.
///
/// # Errors
/// The device cannot be read.
pub fn backing_verdict(source: &Source, start_sector: u64) -> Outcome<Verdict> {
    let superblock = super::superblock(source, start_sector)?;
    let (finding, facts) = match &superblock {
        Ok(Superblock::Backing(backing)) => (finding_of(backing), backing_json(backing)),
        Ok(Superblock::Cache(cache)) => (None, cache_json(cache)),
        Err(error) => (Some((Severity::Damaged, error.to_string())), Value::Null),
    };
    let state = match &superblock {
        Ok(Superblock::Backing(backing)) => Some(state_word(backing.state())),
        _ => None,
    };
    Ok(Verdict {
        format: Some("bcache backing device"),
        severity: finding.as_ref().map_or(Severity::Sound, |(severity, _)| *severity),
        findings: finding.into_iter().collect(),
        findings_left_out: 0,
        summary: state.map(|state| format!("state {state}")),
        facts: json!({ "superblock": facts }),
    })
}

fn finding_of(backing: &BackingSuperblock) -> Option<(Severity, String)> {
    let set = backing.set_uuid();
    match backing.state() {
        BackingState::None | BackingState::Clean => None,
        BackingState::Dirty => {
            let text = format!("state: found dirty: the cache of set {set} has data that it lacks");
            Some((Severity::SoundAfterRecovery, text))
        }
        BackingState::Stale => {
            let text = format!(
                "state: found stale: it was used without the cache of set {set}, which has data \
                 that it lacks"
            );
            Some((Severity::Damaged, text))
        }
    }
}

fn summary(report: &Report) -> Option<String> {
    let superblock = report.superblock.as_ref()?;
    let (geometry, totals) = (superblock.geometry(), &report.totals);
    if !superblock.is_in_use() {
        return Some(format!("{} buckets, never used", geometry.buckets()));
    }
    Some(format!(
        "{} buckets of {} KiB, {} with data, {} with metadata, {} extents, {} KiB dirty",
        geometry.buckets(),
        geometry.bucket_sectors() / 2,
        totals.data_buckets,
        totals.metadata_buckets,
        totals.extents,
        totals.dirty_sectors.div_ceil(2),
    ))
}

fn totals_json(report: &Report) -> Value {
    let totals = &report.totals;
    json!({
        "metadata_buckets": totals.metadata_buckets,
        "data_buckets": totals.data_buckets,
        "nodes": totals.nodes,
        "journal_entries": totals.journal_entries,
        "extents": totals.extents,
        "dirty_sectors": totals.dirty_sectors,
    })
}

/// Ranges of keys that are not known.
fn suspect_json(report: &Report) -> Value {
    let position = |(inode, sector): (u32, u64)| json!({ "inode": inode, "sector": sector });
    let ranges = report.suspect.iter();
    ranges
        .map(|range| json!({ "after": position(range.start), "up_to": position(range.end) }))
        .collect()
}
