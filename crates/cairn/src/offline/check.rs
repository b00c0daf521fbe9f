//! `cairn check`: is a cache sound? The worst of several decides the exit code.

use std::path::Path;

use cairn_block::{ConfigKind, SECTOR_BYTES};
use cairn_format::probe::Kind;
use cairn_format::writecache::check::{Finding, Report};
use serde_json::{Value, json};

use super::source::Source;
use super::writecache::{self, counts_json, severity_word, superblock_json};
use crate::cli::DevicesArgs;
use crate::exit;
use crate::failure::{Outcome, refused};
use crate::remote;

/// Runs the verb.
///
/// # Errors
/// A device cannot be read, or holds something else than a cache.
pub fn run(args: &DevicesArgs, origin: Option<&Path>) -> Outcome<u8> {
    let origin = origin.map(Source::read).transpose()?;
    let origin_sectors = origin.map(|origin| origin.bytes / SECTOR_BYTES);
    let (mut code, mut text, mut values) = (exit::OK, String::new(), Vec::new());
    for device in &args.devices {
        let source = Source::read(device)?;
        refuse_others(&source, args.place.start_sector)?;
        let report = writecache::check(&source, args.place.start_sector, origin_sectors)?;
        code = exit::worst(code, report.severity.exit_code());
        text.push_str(&report_text(&source.name, &report));
        values.push(report_json(&source.name, &report));
    }
    match args.json {
        true => remote::print_json(&Value::from(values))?,
        false => remote::print(&text)?,
    };
    Ok(code)
}

/// Refuses what is plainly something else; a cache with a broken header is damaged, not foreign.
fn refuse_others(source: &Source, start_sector: u64) -> Outcome<()> {
    let found = source.identify(start_sector)?;
    if found.is_empty() || found.iter().any(|signature| signature.kind == Kind::Writecache) {
        return Ok(());
    }
    let kinds: Vec<_> = found.iter().map(|signature| signature.kind.name()).collect();
    let (kind, found) = (ConfigKind::Unsupported, kinds.join(", "));
    Err(refused(kind, &source.name, "format", found, "dm-writecache"))
}

fn report_text(device: &str, report: &Report) -> String {
    let mut text = String::new();
    for finding in &report.findings {
        let word = severity_word(finding.severity());
        text.push_str(&format!("{device}: {finding} [{word}]\n"));
    }
    if report.findings_left_out > 0 {
        text.push_str(&format!("{device}: {} more findings\n", report.findings_left_out));
    }
    text.push_str(&format!("{device}: {}", severity_word(report.severity)));
    if let Some(superblock) = &report.superblock {
        text.push_str(&format!(
            ": {} blocks of {} bytes, {} dirty, {} uncommitted, {} free, commit {}",
            superblock.n_blocks(),
            superblock.block_size().bytes(),
            report.counts.dirty(),
            report.counts.uncommitted,
            report.counts.free,
            superblock.seq()
        ));
    }
    text.push('\n');
    text
}

fn report_json(device: &str, report: &Report) -> Value {
    let finding = |finding: &Finding| {
        json!({
            "severity": severity_word(finding.severity()),
            "text": finding.to_string(),
        })
    };
    json!({
        "device": device,
        "format": "dm-writecache",
        "severity": severity_word(report.severity),
        "exit_code": report.severity.exit_code(),
        "superblock": report.superblock.as_ref().map(superblock_json),
        "counts": counts_json(report),
        "findings": report.findings.iter().map(finding).collect::<Vec<_>>(),
        "findings_left_out": report.findings_left_out,
    })
}
