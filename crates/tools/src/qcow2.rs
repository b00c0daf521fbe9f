//! The verdict on an image of qemu for `cairn check`.

use std::path::PathBuf;

use cairn_block::{ConfigError, ConfigKind};
use cairn_format::Severity;
use cairn_format::qcow2::check::{Counts, Finding, Report, check};
use cairn_format::qcow2::{Error, Header, Layout, PROLOGUE_BYTES, Prologue};
use cairn_outcome::failure::{Outcome, system, wrong};
use serde_json::{Value, json};

use super::source::Source;
use super::verdict::Verdict;

/// Checks the image in this file, which is locked as qemu does it from now on: other programs may
/// have it open.
///
/// # Errors
/// It cannot be read, another program writes to it, or it has a feature that is not read.
pub fn verdict(source: Source, start_sector: u64) -> Outcome<Verdict> {
    if start_sector > 0 {
        return Err(wrong(&source.name, "--start-sector", start_sector, "0 for an image"));
    }
    let path = PathBuf::from(&source.name);
    drop(source);
    let image = Source::read_image(&path)?;
    let (header, layout) = match begin(&image)? {
        Ok(begun) => begun,
        Err(error) if is_another(&error) => {
            let detail = error.to_string();
            return Err(ConfigError::new(ConfigKind::Unsupported, &image.name, detail));
        }
        Err(error) => return Ok(of_header(error)),
    };
    let report = check(&header, &layout, &mut |at, bytes| read(&image, at, bytes))?;
    Ok(of_report(&report, header.cluster_bytes()))
}

/// The header and where everything is, or what is wrong with them.
fn begin(image: &Source) -> Outcome<Result<(Header, Layout), Error>> {
    let first_bytes = |most: u64| {
        let len = usize::try_from(most.min(image.bytes)).unwrap_or(usize::MAX);
        image.bytes_at(0, len)
    };
    let prologue = match Prologue::parse(&first_bytes(PROLOGUE_BYTES as u64)?) {
        Ok(prologue) => prologue,
        Err(error) => return Ok(Err(error)),
    };
    let first = first_bytes(prologue.cluster_bytes)?;
    let header = Header::parse(&first, image.bytes);
    Ok(header.and_then(|header| {
        let layout = Layout::parse(&first, &header)?;
        Ok((header, layout))
    }))
}

/// True for what may be a correct image.
fn is_another(error: &Error) -> bool {
    error.is_unsupported() || matches!(error, Error::BadField { field: "version", .. })
}

fn read(image: &Source, at: u64, bytes: &mut [u8]) -> Outcome<()> {
    let (len, read) = (bytes.len(), image.read_into(at, bytes));
    read.map_err(|error| system(&image.name, &format!("read {len} bytes at {at}"), error))
}

fn of_header(error: Error) -> Verdict {
    let finding = Finding::Wrong(error);
    Verdict {
        format: Some("qcow2"),
        severity: Severity::Damaged,
        findings: vec![(finding.severity(), finding.to_string())],
        findings_left_out: 0,
        summary: None,
        lines: Vec::new(),
        facts: json!({}),
    }
}

fn of_report(report: &Report, cluster_bytes: u64) -> Verdict {
    let finding = |finding: &Finding| (finding.severity(), finding.to_string());
    Verdict {
        format: Some("qcow2"),
        severity: report.severity,
        findings: report.findings.iter().map(finding).collect(),
        findings_left_out: report.findings_left_out,
        summary: Some(summary(&report.counts, cluster_bytes)),
        lines: match report.severity {
            Severity::Repairable => vec![
                "a start of the target `qcow2` or `qemu-img check -r leaks` corrects them"
                    .to_owned(),
            ],
            _ => Vec::new(),
        },
        facts: facts(&report.counts, cluster_bytes),
    }
}

fn summary(counts: &Counts, cluster_bytes: u64) -> String {
    let Counts { clusters, used, leaked, data, compressed, snapshots, bitmaps } = counts;
    format!(
        "{used} of {clusters} clusters of {cluster_bytes} bytes used, {leaked} leaked, {data} with \
         data, {compressed} of these compressed, {snapshots} snapshots, {bitmaps} bitmaps"
    )
}

fn facts(counts: &Counts, cluster_bytes: u64) -> Value {
    json!({
        "header": { "cluster_bytes": cluster_bytes },
        "counts": {
            "clusters": counts.clusters,
            "used": counts.used,
            "leaked": counts.leaked,
            "data": counts.data,
            "compressed": counts.compressed,
            "snapshots": counts.snapshots,
            "bitmaps": counts.bitmaps,
        },
    })
}
