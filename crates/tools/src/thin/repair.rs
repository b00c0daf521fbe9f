//! `cairn repair` on a pool's metadata: new metadata in a file or on another device.
//!
//! The damaged metadata is only read, so a repair can be repeated. In place, only the needs-check
//! flag is cleared, by one write of the superblock, and only if the check finds nothing else.
//!
//! Something is lost where the repair says so, and where a check of the old metadata finds damage:
//! a count below the references is none to the trees, but the block may have been written over.
//! Then every mapping is made to look shared.

use std::path::Path;

use cairn_backends::LeftLog;
use cairn_block::{ConfigError, ConfigKind};
use cairn_format::Severity;
use cairn_format::thin::blocks::{Bad, read_one};
use cairn_format::thin::check::{Finding, Limits, Report, check};
use cairn_format::thin::repair::{Differs, Given, Plan, RepairError, Repaired};
use cairn_format::thin::{DataBlockSize, Error, MetadataBlock, Superblock};
use cairn_outcome::failure::{Outcome, refused, wrong};
use cairn_outcome::{exit, signals, stdout};
use serde_json::json;

use super::output::{Leave, Output};
use super::restore::built;
use super::{MetadataDevice, check as checking, expect_volumes, superblock, superblock_json};
use crate::args::RepairArgs;
use crate::dirty;
use crate::source::Source;
use crate::verdict::{findings_json, findings_text};

/// Repairs the metadata; in place, `logs` are given up for it.
///
/// # Errors
/// Nothing can be saved, or something cannot be read or written.
pub fn run(source: &Source, args: &RepairArgs, logs: Vec<LeftLog>) -> Outcome<u8> {
    match &args.output {
        Some(path) => into_new(source, args, path),
        None => clear_flag(source, args, logs),
    }
}

fn into_new(source: &Source, args: &RepairArgs, path: &Path) -> Outcome<u8> {
    let (_, stop) = signals::watch()?;
    // Before the search for roots, which takes long.
    let command = format!("cairn repair {} --output {}", source.name, path.display());
    let leave = Leave { yes: args.yes, discard_dirty: args.discard_dirty };
    let mut output = Output::open(path, leave, &command, &stop)?;
    let start_sector = args.place.start_sector;
    let device = |doing| Ok(MetadataDevice::at(source, start_sector, doing)?.stopped_by(&stop));
    let mut searched = device("repair")?;
    let plan = Plan::new(&mut searched, given(source, args)?);
    searched.done();
    let to = path.display().to_string();
    let mut plan = plan.map_err(|error| told(source, &to, error))?;
    let before = examine(device("check")?)?;
    plan.heed(&before);
    let mut device = device("repair")?;
    // Only for the progress display.
    if let Ok(superblock) = superblock(&mut device, false) {
        expect_volumes(&mut device, &superblock, false);
    }
    let room = output.room(plan.pool().data_blocks);
    let repaired = plan.build(&mut device, &mut output, room);
    let repaired = repaired.map_err(|error| told(source, &to, error));
    let written =
        repaired.and_then(|repaired| output.finish(&repaired.superblock).map(|()| repaired));
    device.done();
    show(source, (&before, &written?), &output.into_source(), args.json)
}

/// Checks the old metadata.
fn examine(mut device: MetadataDevice<'_>) -> Outcome<Report> {
    // Only for the progress display: the check reports what is wrong with the superblock.
    drop(superblock(&mut device, false));
    let report = check(&mut device, Limits::default());
    device.done();
    report
}

fn given(source: &Source, args: &RepairArgs) -> Outcome<Given> {
    let size = args.data_block_size.map(DataBlockSize::new).transpose();
    Ok(Given {
        data_block_size: size.map_err(|error| {
            ConfigError::new(ConfigKind::Argument, &source.name, error.to_string())
        })?,
        data_blocks: args.data_blocks,
        transaction_id: args.transaction_id,
    })
}

fn told(source: &Source, to: &str, error: RepairError<ConfigError>) -> ConfigError {
    let damaged = |text: String| ConfigError::new(ConfigKind::Damaged, &source.name, text);
    match error {
        RepairError::Ended(error) => error,
        RepairError::Refused(refusal) => built(&source.name, to, refusal.into()),
        RepairError::NoSuperblock(bad) => damaged(format!(
            "{bad}; what it knew must be given: --data-block-size and --data-blocks"
        )),
        RepairError::Unsupported(error) => unsupported(source, &error),
        RepairError::Differs(differs) => other_than_known(source, differs),
        RepairError::NoRoots => damaged("found no trees, expected a pool's metadata".to_owned()),
    }
}

fn unsupported(source: &Source, error: &Error) -> ConfigError {
    ConfigError::new(ConfigKind::Unsupported, &source.name, error.to_string())
}

fn other_than_known(source: &Source, differs: Differs) -> ConfigError {
    let option = format!("--{}", differs.field.replace('_', "-"));
    let expected = format!("{}, which the superblock says", differs.expected);
    wrong(&source.name, &option, differs.found, expected)
}

fn show(
    source: &Source,
    (before, repaired): (&Report, &Repaired),
    output: &Source,
    as_json: bool,
) -> Outcome<u8> {
    let (lines, left_out) = lost_things(before, repaired);
    let lost = !lines.is_empty() || left_out > 0 || repaired.roots_searched;
    let after = checking::verdict(output, 0, None)?;
    if as_json {
        stdout::print_json(&json!({
            "device": source.name,
            "output": output.name,
            "superblock": superblock_json(&repaired.superblock),
            "devices": repaired.devices,
            "mapped_blocks": repaired.mapped_blocks,
            "roots_searched": repaired.roots_searched,
            "lost": lost,
            "findings": findings_json(&lines),
            "findings_left_out": left_out,
            "check": after.json(&output.name),
        }))?;
    } else {
        let findings = findings_text(&source.name, &lines, left_out);
        let searched = match repaired.roots_searched {
            true => "; the roots were searched for, and may be older ones",
            false => "",
        };
        let loss = if lost { "something was lost" } else { "nothing was lost" };
        let (devices, mapped) = (repaired.devices, repaired.mapped_blocks);
        let counts = format!("{devices} devices, {mapped} mappings kept: {loss}{searched}");
        let verdict = after.text(&output.name);
        stdout::print(&format!("{findings}{}: {counts}\n{verdict}", source.name))?;
    }
    let code = if lost { exit::DAMAGED } else { exit::OK };
    Ok(exit::worst(code, after.severity.exit_code()))
}

/// What the check of the old metadata calls damage, then the findings of the repair, and how many
/// findings are left out.
fn lost_things(before: &Report, repaired: &Repaired) -> (Vec<(Severity, String)>, u64) {
    let damage = |finding: &&Finding| finding.severity() == Severity::Damaged;
    let mut findings: Vec<_> = before.findings.iter().filter(damage).collect();
    findings.extend(repaired.findings.iter().filter(|told| !before.findings.contains(told)));
    let lines = findings.iter().map(|finding| (finding.severity(), finding.to_string()));
    // The severity of findings that a report leaves out is not known.
    let left_out = match before.severity {
        Severity::Damaged => before.findings_left_out,
        _ => 0,
    };
    (lines.collect(), left_out + repaired.findings_left_out)
}

/// Clears the needs-check flag, if a check finds nothing else.
fn clear_flag(source: &Source, args: &RepairArgs, logs: Vec<LeftLog>) -> Outcome<u8> {
    let start_sector = args.place.start_sector;
    let mut device = MetadataDevice::at(source, start_sector, "check")?;
    let at = MetadataBlock::SUPERBLOCK;
    let features =
        read_one(&mut device, at, |bytes| Superblock::decode(bytes, at)?.refuse_writing())?;
    if let Err(Bad::Wrong(error @ Error::UnknownFeature { .. })) = features {
        return Err(unsupported(source, &error));
    }
    let mut superblock = superblock(&mut device, false)?;
    let report = examine(device)?;
    if let Some(found) = other_finding(&report) {
        let expected = "no finding but needs_check: use --output";
        return Err(refused(ConfigKind::Damaged, &source.name, "metadata", found, expected));
    }
    dirty::give_up(source, logs)?;
    if superblock.needs_check() {
        superblock.set_needs_check(false);
        let start = source.bytes - source.area_bytes(start_sector)?;
        source.write_at(start, &superblock.encode(MetadataBlock::SUPERBLOCK))?;
        source.flush()?;
    }
    let after = checking::verdict(source, start_sector, None)?;
    if args.json {
        stdout::print_json(&json!({
            "device": source.name,
            "output": null,
            "superblock": superblock_json(&superblock),
            "lost": false,
            "check": after.json(&source.name),
        }))?;
    } else {
        stdout::print(&after.text(&source.name))?;
    }
    Ok(after.severity.exit_code())
}

/// The first finding besides the needs-check flag. Findings that a report leaves out count as one,
/// since their severity is not known.
fn other_finding(report: &Report) -> Option<String> {
    let wrong = |finding: &&Finding| {
        **finding != Finding::NeedsCheck && finding.severity() > Severity::Sound
    };
    let left_out = report.findings_left_out;
    let first = report.findings.iter().find(wrong).map(ToString::to_string);
    first.or_else(|| (left_out > 0).then(|| format!("{left_out} findings that are not shown")))
}
