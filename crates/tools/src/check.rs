//! `cairn check`: is a cache, a store, a pool, a clone, a bcache device or an image sound? The
//! worst of several decides the exit code.

use cairn_backends::CrashFiles;
use cairn_block::{ConfigError, ConfigKind, SECTOR_BYTES};
use cairn_format::Severity;
use cairn_outcome::failure::{Outcome, wrong};
use cairn_outcome::{exit, stdout};
use serde_json::{Value, json};

use super::kind::{CHECKED, Kind, not_a};
use super::source::{Source, sectors};
use super::verdict::Verdict;
use super::{bcache, clone, qcow2, snapshot, thin, writecache};
use crate::args::{CheckArgs, ListLost};

/// Runs the verb.
///
/// # Errors
/// A device cannot be read, or holds a format that the tools cannot read. The verdicts of the
/// devices before it are printed.
pub fn run(args: &CheckArgs) -> Outcome<u8> {
    if args.list_lost == Some(ListLost::Nbd) {
        return print_lost_map(args);
    }
    let as_json = args.json;
    let mut values = Vec::new();
    let judged = judge(args, &mut |device, verdict| match as_json {
        true => {
            values.push(verdict.json(device));
            Ok(())
        }
        false => stdout::print(&verdict.text(device)).map(drop),
    });
    if as_json && (judged.is_ok() || !values.is_empty()) {
        stdout::print_json(&Value::from(values))?;
    }
    judged
}

/// Checks the devices in order and returns the exit code.
fn judge(args: &CheckArgs, told: &mut dyn FnMut(&str, &Verdict) -> Outcome<()>) -> Outcome<u8> {
    let held = args.metadata_snapshot;
    let data_sectors = match (&args.data, held) {
        // The device may be in use: only its size is read.
        (Some(data), true) => Some(Source::read_beside(data)?.bytes / SECTOR_BYTES),
        (data, _) => sectors(data.as_deref())?,
    };
    let origin_sectors = sectors(args.origin.as_deref())?;
    let mut code = exit::OK;
    // `--origin` does not decide the format: a cache and an exception store both have one.
    let given = match args.backing.is_empty() {
        true => data_sectors.map(|_| Kind::Thin),
        false => Some(Kind::Bcache),
    };
    let devices = if args.devices.is_empty() { &args.backing } else { &args.devices };
    for device in devices {
        let source = thin::open(device, held)?;
        let start_sector = args.place.start_sector;
        let kind = kind_of(&source, start_sector, given)?;
        refuse_options(args, &source, kind)?;
        let (list_lost, name) = (args.list_lost.is_some(), source.name.clone());
        let mut verdict = match kind {
            Some(Kind::Thin) if held => thin::check::held(&source, start_sector, data_sectors)?,
            Some(Kind::Thin) => thin::check::verdict(&source, start_sector, data_sectors)?,
            _ if held => return Err(thin::no_metadata(&source)),
            Some(Kind::Writecache) => {
                writecache::check::verdict(&source, start_sector, origin_sectors)?
            }
            Some(Kind::Snapshot) => {
                snapshot::check::verdict(&source, start_sector, origin_sectors)?
            }
            Some(Kind::Clone) => clone::verdict(&source, start_sector)?,
            Some(Kind::Qcow2) => qcow2::verdict(source, start_sector)?,
            Some(Kind::Bcache) => {
                bcache::check::verdict(&source, start_sector, &args.backing, list_lost)?
            }
            Some(Kind::BcacheBacking) => {
                let list_lost = args.list_lost.map(|_| args.zones.as_deref());
                bcache::check::backing_verdict(&source, start_sector, list_lost)?
            }
            None => unknown(),
        };
        if !held {
            look_for_crash_logs(&name, &mut verdict)?;
        }
        code = exit::worst(code, verdict.severity.exit_code());
        told(&name, &verdict)?;
    }
    Ok(code)
}

/// Metadata without what is in a crash log is older than what clients know.
fn look_for_crash_logs(name: &str, verdict: &mut Verdict) -> Outcome<()> {
    for log in CrashFiles::left_for(name)? {
        let severity = Severity::SoundAfterRecovery;
        let is_image = verdict.format == Some("qcow2");
        let way_on = match is_image {
            false => "`cairn serve` or `cairn flush` replays them",
            true => {
                "`cairn serve` replays them; another program that writes to the image before, as \
                 `qemu-img check -r` does, loses them"
            }
        };
        if is_image {
            // A start finds what leaks.
            verdict.lines.clear();
        }
        let finding = format!(
            "crash log: {} records of writes that a killed server acknowledged are not in the \
             metadata yet; {way_on}",
            log.records
        );
        verdict.findings.push((severity, finding));
        verdict.severity = verdict.severity.max(severity);
    }
    Ok(())
}

/// Prints what of a volume is lost, as `nbdinfo --map` does, and nothing else.
fn print_lost_map(args: &CheckArgs) -> Outcome<u8> {
    let devices = if args.devices.is_empty() { &args.backing } else { &args.devices };
    let [device] = &devices[..] else {
        let found = format!("{} devices", devices.len());
        return Err(wrong("", "--list-lost=nbd", found, "one"));
    };
    let (source, start_sector) = (Source::read(device)?, args.place.start_sector);
    let given = (!args.devices.is_empty() && !args.backing.is_empty()).then_some(Kind::Bcache);
    let kind = kind_of(&source, start_sector, given)?;
    refuse_options(args, &source, kind)?;
    let (severity, parts) = match kind {
        Some(Kind::Bcache) => bcache::check::lost_map(&source, start_sector, &args.backing)?,
        _ => bcache::check::backing_lost_map(&source, start_sector, args.zones.as_deref())?,
    };
    match args.json {
        true => stdout::print_json(&bcache::lost::map_json(&parts))?,
        false => stdout::print(&bcache::lost::map_lines(&parts))?,
    };
    Ok(severity.exit_code())
}

/// Refuses options that are for other formats.
fn refuse_options(args: &CheckArgs, source: &Source, kind: Option<Kind>) -> Outcome<()> {
    let is_alone = args.devices.is_empty() || args.backing.is_empty();
    if !is_alone && kind != Some(Kind::Bcache) {
        return Err(wrong(&source.name, "--backing", "no bcache cache", "one"));
    }
    if args.list_lost.is_some() && !matches!(kind, Some(Kind::Bcache | Kind::BcacheBacking)) {
        return Err(wrong(&source.name, "--list-lost", "no bcache device", "one"));
    }
    let other = [("--origin", args.origin.is_some()), ("--data", args.data.is_some())];
    if let Some((option, _)) = other.into_iter().find(|(_, given)| *given)
        && kind == Some(Kind::Qcow2)
    {
        return Err(wrong(&source.name, option, "an image", "a cache, store or pool"));
    }
    if args.zones.is_some() && kind != Some(Kind::BcacheBacking) {
        let expected = "a backing device without its cache";
        return Err(wrong(&source.name, "--zones", "another device", expected));
    }
    Ok(())
}

/// The format of a device; refuses a device with another signature. If there is no signature, the
/// header may be lost: the format is then that of a pool whose other blocks are recognised, or the
/// one that the options imply (`given`).
fn kind_of(source: &Source, start_sector: u64, given: Option<Kind>) -> Outcome<Option<Kind>> {
    let found = source.identify(start_sector)?;
    match Kind::of(&found) {
        Some(kind) => Ok(Some(kind)),
        None if found.is_empty() => Ok(Kind::without_header(source, start_sector)?.or(given)),
        None => {
            let detail = not_a(CHECKED, &found);
            Err(ConfigError::new(ConfigKind::Unsupported, &source.name, detail))
        }
    }
}

/// The verdict where nothing is recognised: an ordinary file, or the header is lost.
fn unknown() -> Verdict {
    let severity = Severity::Damaged;
    Verdict {
        format: None,
        severity,
        findings: vec![(severity, not_a(CHECKED, &[]))],
        findings_left_out: 0,
        summary: None,
        lines: Vec::new(),
        facts: json!({}),
    }
}
