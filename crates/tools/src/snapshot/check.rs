//! An exception store's verdict for `cairn check`.

use cairn_format::snapshot::check::{Checker, Finding, Report};
use cairn_outcome::failure::Outcome;
use serde_json::json;

use super::{PIECE_BYTES, Store, header_json};
use crate::source::Source;
use crate::verdict::Verdict;

/// Checks the store that begins at `start_sector`.
///
/// # Errors
/// The device cannot be read.
pub fn verdict(
    source: &Source,
    start_sector: u64,
    origin_sectors: Option<u64>,
) -> Outcome<Verdict> {
    report(&Store::at(source, start_sector, origin_sectors)?).map(|report| told(&report))
}

/// Checks a store.
///
/// # Errors
/// The device cannot be read.
pub fn report(store: &Store<'_>) -> Outcome<Report> {
    let mut checker = Checker::new(&store.head()?, store.limits);
    while let Some(range) = checker.wants(PIECE_BYTES) {
        checker.feed(&store.bytes(range)?);
    }
    Ok(checker.finish())
}

/// The verdict of a report.
pub fn told(report: &Report) -> Verdict {
    let finding = |finding: &Finding| (finding.severity(), finding.to_string());
    let usage = report.usage().map(|(allocated, total, metadata)| {
        json!({
            "allocated_sectors": allocated,
            "total_sectors": total,
            "metadata_sectors": metadata,
        })
    });
    Verdict {
        format: Some("dm-snapshot"),
        severity: report.severity,
        findings: report.findings.iter().map(finding).collect(),
        findings_left_out: report.findings_left_out,
        summary: summary(report),
        lines: Vec::new(),
        facts: json!({
            "header": report.header.as_ref().map(header_json),
            "counts": {
                "records": report.counts.records,
                "faulty": report.counts.faulty,
                "after_end": report.counts.after_end,
            },
            "usage": usage,
        }),
    }
}

fn summary(report: &Report) -> Option<String> {
    let (header, (allocated, total, metadata)) = (report.header?, report.usage()?);
    Some(format!(
        "{} records of chunks of {} sectors, {allocated} of {total} sectors allocated, {metadata} \
         of them metadata",
        report.counts.records,
        header.chunk_size().sectors()
    ))
}
