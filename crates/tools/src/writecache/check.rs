//! A writecache's verdict for `cairn check`.

use cairn_format::writecache::check::{Finding, Report};
use cairn_outcome::failure::Outcome;
use serde_json::json;

use super::{counts_json, superblock_json};
use crate::source::Source;
use crate::verdict::Verdict;

/// Checks the cache that begins at `start_sector`.
///
/// # Errors
/// The device cannot be read.
pub fn verdict(
    source: &Source,
    start_sector: u64,
    origin_sectors: Option<u64>,
) -> Outcome<Verdict> {
    let report = super::check(source, start_sector, origin_sectors)?;
    let finding = |finding: &Finding| (finding.severity(), finding.to_string());
    Ok(Verdict {
        format: Some("dm-writecache"),
        severity: report.severity,
        findings: report.findings.iter().map(finding).collect(),
        findings_left_out: report.findings_left_out,
        summary: summary(&report),
        lines: Vec::new(),
        facts: json!({
            "superblock": report.superblock.as_ref().map(superblock_json),
            "counts": counts_json(&report),
        }),
    })
}

fn summary(report: &Report) -> Option<String> {
    let superblock = report.superblock.as_ref()?;
    Some(format!(
        "{} blocks of {} bytes, {} dirty, {} uncommitted, {} free, commit {}",
        superblock.n_blocks(),
        superblock.block_size().bytes(),
        report.counts.dirty(),
        report.counts.uncommitted,
        report.counts.free,
        superblock.seq()
    ))
}
