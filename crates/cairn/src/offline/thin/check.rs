//! A thin pool's verdict for `cairn check`.

use cairn_format::thin::check::{Finding, Limits, Report, check};
use serde_json::json;

use super::{MetadataDevice, superblock, superblock_json};
use crate::failure::Outcome;
use crate::offline::check::Verdict;
use crate::offline::source::Source;

/// Checks the metadata that begins at `start_sector`.
///
/// # Errors
/// The device cannot be read.
pub fn verdict(source: &Source, start_sector: u64, data_sectors: Option<u64>) -> Outcome<Verdict> {
    let mut device = MetadataDevice::at(source, start_sector, "check")?;
    // For the progress alone: what is wrong with it is for the check to tell.
    drop(superblock(&mut device, false));
    let report = check(&mut device, Limits { data_sectors });
    device.done();
    report.map(|report| told(&report))
}

/// A report as the verb tells it.
fn told(report: &Report) -> Verdict {
    let finding = |finding: &Finding| (finding.severity(), finding.to_string());
    let totals = report.totals;
    Verdict {
        format: "dm-thin",
        severity: report.severity,
        findings: report.findings.iter().map(finding).collect(),
        findings_left_out: report.findings_left_out,
        summary: summary(report),
        facts: json!({
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
