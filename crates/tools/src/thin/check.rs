//! A thin pool's verdict for `cairn check`.

use cairn_format::thin::check::{Finding, Limits, Report, check, check_held};
use cairn_outcome::failure::Outcome;
use serde_json::json;

use super::{MetadataDevice, pool_superblock, superblock, superblock_json, while_held};
use crate::source::Source;
use crate::verdict::Verdict;

/// Checks the metadata that begins at `start_sector`.
///
/// # Errors
/// The device cannot be read.
pub fn verdict(source: &Source, start_sector: u64, data_sectors: Option<u64>) -> Outcome<Verdict> {
    let mut device = MetadataDevice::at(source, start_sector, "check")?;
    // Only for the progress display: the check reports what is wrong with the superblock.
    drop(superblock(&mut device, false));
    let report = check(&mut device, Limits { data_sectors });
    device.done();
    let report = report?;
    Ok(Verdict { summary: summary(&report), ..told(&report, false) })
}

/// Checks the metadata snapshot of the metadata that begins at `start_sector`, which may be in use.
///
/// # Errors
/// The device cannot be read, there is no metadata snapshot, or the pool released it.
pub fn held(source: &Source, start_sector: u64, data_sectors: Option<u64>) -> Outcome<Verdict> {
    let mut device = MetadataDevice::at(source, start_sector, "check")?;
    let (now, before) = (pool_superblock(&mut device)?, superblock(&mut device, true)?);
    let report = check_held(&mut device, &now, Limits { data_sectors });
    let report = while_held(&mut device, &before, report);
    device.done();
    let report = report?;
    let summary = report.superblock.as_ref().map(|superblock| {
        let totals = report.totals;
        format!(
            "metadata snapshot of transaction {}, {} devices, {} mappings, {} data blocks and {} \
             metadata blocks in it; space maps not compared",
            superblock.transaction_id,
            totals.devices,
            totals.mapped_blocks,
            totals.data_used,
            totals.metadata_used
        )
    });
    Ok(Verdict { summary, ..told(&report, true) })
}

/// The verdict of a report.
fn told(report: &Report, held: bool) -> Verdict {
    let finding = |finding: &Finding| (finding.severity(), finding.to_string());
    let totals = report.totals;
    Verdict {
        format: Some("dm-thin"),
        severity: report.severity,
        findings: report.findings.iter().map(finding).collect(),
        findings_left_out: report.findings_left_out,
        summary: None,
        lines: Vec::new(),
        facts: json!({
            "metadata_snapshot": held,
            "superblock": report.superblock.as_ref().map(superblock_json),
            "counts": {
                "devices": totals.devices,
                "mapped_blocks": totals.mapped_blocks,
                "metadata_used": totals.metadata_used,
                "data_used": totals.data_used,
            },
        }),
    }
}

fn summary(report: &Report) -> Option<String> {
    let (superblock, totals) = (report.superblock.as_ref()?, report.totals);
    Some(format!(
        "transaction {}, {} devices, {} mappings, {} of {} data blocks and {} of {} metadata \
         blocks in use",
        superblock.transaction_id,
        totals.devices,
        totals.mapped_blocks,
        totals.data_used,
        superblock.data_space_map.blocks,
        totals.metadata_used,
        superblock.metadata_space_map.blocks
    ))
}
