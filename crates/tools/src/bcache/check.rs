//! The verdict on a cache or a backing device for `cairn check`.

use std::path::Path;

use cairn_block::SECTOR_BYTES;
use cairn_format::Severity;
use cairn_format::bcache::check::{Backing, Finding, Report};
use cairn_format::bcache::{BackingState, BackingSuperblock, Superblock};
use cairn_outcome::failure::{Outcome, wrong};
use serde_json::{Value, json};

use super::lost::{self, MapPart, VolumeLosses};
use super::{backing_json, cache_json, volume_json};
use crate::source::Source;
use crate::verdict::Verdict;

/// Checks the cache that begins at `start_sector`, against these backing devices; `list_lost`: and
/// what damage took with it.
///
/// # Errors
/// A device cannot be read.
pub fn verdict(
    source: &Source,
    start_sector: u64,
    backings: &[impl AsRef<Path>],
    list_lost: bool,
) -> Outcome<Verdict> {
    let backings: Vec<Backing> =
        backings.iter().map(|path| super::backing(path.as_ref())).collect::<Outcome<_>>()?;
    let (report, lost) = match list_lost {
        true => {
            let (report, losses) = super::report_losses(source, start_sector, &backings)?;
            let lost = lost::of_set(&report, &losses, &backings);
            (report, Some(lost))
        }
        false => (super::report(source, start_sector, &backings)?, None),
    };
    let finding = |finding: &Finding| (finding.severity(), finding.to_string());
    Ok(Verdict {
        format: Some("bcache"),
        severity: report.severity,
        findings: report.findings.iter().map(finding).collect(),
        findings_left_out: report.findings_left_out,
        summary: summary(&report),
        lines: lost.as_deref().map(lost::lines).unwrap_or_default(),
        facts: with_lost(
            json!({
                "superblock": report.superblock.as_ref().map(cache_json),
                "totals": totals_json(&report),
                "volumes": report.volumes.iter().map(volume_json).collect::<Vec<_>>(),
                "suspect": suspect_json(&report),
            }),
            lost.as_deref(),
        ),
    })
}

/// The map of the one volume of a cache, or of that of the backing device given, with the worst
/// finding.
///
/// # Errors
/// A device cannot be read, or there is not one volume of known size.
pub fn lost_map(
    source: &Source,
    start_sector: u64,
    backings: &[impl AsRef<Path>],
) -> Outcome<(Severity, Vec<MapPart>)> {
    let backings: Vec<Backing> =
        backings.iter().map(|path| super::backing(path.as_ref())).collect::<Outcome<_>>()?;
    let (report, losses) = super::report_losses(source, start_sector, &backings)?;
    let mut volumes = lost::of_set(&report, &losses, &backings);
    if !backings.is_empty() {
        volumes.retain(VolumeLosses::has_device);
    }
    Ok((report.severity, one_map(source, &volumes)?))
}

/// The same of a backing device without its cache, by a map of dirty zones if there is one.
///
/// # Errors
/// The device or the map cannot be read, the device has no superblock, or the map does not count.
pub fn backing_lost_map(
    source: &Source,
    start_sector: u64,
    zones: Option<&Path>,
) -> Outcome<(Severity, Vec<MapPart>)> {
    let backing = match super::superblock(source, start_sector)? {
        Ok(Superblock::Backing(backing)) => backing,
        Ok(Superblock::Cache(_)) => return Err(super::damaged(source, "found a cache device")),
        Err(error) => return Err(super::damaged(source, error)),
    };
    let sectors = source.area_bytes(start_sector)? / SECTOR_BYTES;
    let finding = finding_of(&backing, sectors);
    let severity = finding.map_or(Severity::Sound, |(severity, _)| severity);
    Ok((severity, one_map(source, &[lost_of(&backing, sectors, zones)?])?))
}

fn lost_of(
    backing: &BackingSuperblock,
    sectors: u64,
    zones: Option<&Path>,
) -> Outcome<VolumeLosses> {
    let lost = zones.map(|zones| lost::by_zones(zones, backing, sectors)).transpose()?;
    Ok(lost::without_cache(backing, sectors, lost))
}

fn one_map(source: &Source, volumes: &[VolumeLosses]) -> Outcome<Vec<MapPart>> {
    lost::map(volumes).map_err(|found| {
        let found = format!("{found} volumes of known size");
        wrong(&source.name, "--list-lost=nbd", found, "one: give its backing device (--backing)")
    })
}

fn with_lost(mut facts: Value, lost: Option<&[VolumeLosses]>) -> Value {
    if let Some(lost) = lost {
        facts["lost"] = lost::json(lost);
    }
    facts
}

/// Checks what a backing device says of itself. Without its cache no more can be known, but for a
/// map of dirty zones. `list_lost`: and what is lost, by such a map if there is one.
///
/// # Errors
/// The device or the map cannot be read, or the map does not count.
pub fn backing_verdict(
    source: &Source,
    start_sector: u64,
    list_lost: Option<Option<&Path>>,
) -> Outcome<Verdict> {
    let superblock = super::superblock(source, start_sector)?;
    let sectors = source.area_bytes(start_sector)? / SECTOR_BYTES;
    let (finding, facts) = match &superblock {
        Ok(Superblock::Backing(backing)) => (finding_of(backing, sectors), backing_json(backing)),
        Ok(Superblock::Cache(cache)) => (None, cache_json(cache)),
        Err(error) => (Some((Severity::Damaged, error.to_string())), Value::Null),
    };
    let state = match &superblock {
        Ok(Superblock::Backing(backing)) => Some(backing.state().word()),
        _ => None,
    };
    let lost = match (&superblock, list_lost) {
        (Ok(Superblock::Backing(backing)), Some(zones)) => {
            Some(vec![lost_of(backing, sectors, zones)?])
        }
        _ => None,
    };
    Ok(Verdict {
        format: Some("bcache backing device"),
        severity: finding.as_ref().map_or(Severity::Sound, |(severity, _)| *severity),
        findings: finding.into_iter().collect(),
        findings_left_out: 0,
        summary: state.map(|state| format!("state {state}")),
        lines: lost.as_deref().map(lost::lines).unwrap_or_default(),
        facts: with_lost(json!({ "superblock": facts }), lost.as_deref()),
    })
}

/// The worst that a backing device of so many sectors says of itself.
fn finding_of(backing: &BackingSuperblock, sectors: u64) -> Option<(Severity, String)> {
    if let Err(error) = backing.data_sectors(sectors) {
        return Some((Severity::Damaged, error.to_string()));
    }
    let set = backing.set_uuid();
    match backing.state() {
        BackingState::None | BackingState::Clean => None,
        BackingState::Dirty => {
            let text = format!("state: found dirty: the cache of set {set} has data that it lacks");
            Some((Severity::SoundAfterRecovery, text))
        }
        BackingState::Stale => {
            let text = format!(
                "state: found inconsistent: it was used without the cache of set {set}, which has \
                 data that it lacks"
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
