//! `cairn check`: is a cache, a store or a pool sound? The worst of several decides the exit code.

use cairn_block::{ConfigKind, SECTOR_BYTES};
use cairn_format::Severity;
use cairn_outcome::failure::{Outcome, refused};
use cairn_outcome::{exit, stdout};
use serde_json::{Value, json};

use super::room::{FORMATS, NOTHING, Room};
use super::source::{Source, sectors};
use super::verdict::Verdict;
use super::{snapshot, thin, writecache};
use crate::args::CheckArgs;

/// Runs the verb.
///
/// # Errors
/// A device cannot be read, or holds something that no room knows: of those before it the verdicts
/// are printed.
pub fn run(args: &CheckArgs) -> Outcome<u8> {
    let as_json = args.devices.json;
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

/// Judges one device after the other, and gives the exit code.
fn judge(args: &CheckArgs, told: &mut dyn FnMut(&str, &Verdict) -> Outcome<()>) -> Outcome<u8> {
    let (devices, held) = (&args.devices, args.metadata_snapshot);
    let data_sectors = match (&args.data, held) {
        // Its size alone is wanted of a device that is in use.
        (Some(data), true) => Some(Source::read_beside(data)?.bytes / SECTOR_BYTES),
        (data, _) => sectors(data.as_deref())?,
    };
    let origin_sectors = sectors(args.origin.as_deref())?;
    let mut code = exit::OK;
    // An origin says nothing of the kind: both a cache and an exception store have one.
    let given = data_sectors.map(|_| Room::Thin);
    for device in &devices.devices {
        let source = thin::open(device, held)?;
        let start_sector = devices.place.start_sector;
        let verdict = match room(&source, start_sector, given)? {
            Some(Room::Thin) if held => thin::check::held(&source, start_sector, data_sectors)?,
            Some(Room::Thin) => thin::check::verdict(&source, start_sector, data_sectors)?,
            _ if held => return Err(thin::no_metadata(&source)),
            Some(Room::Writecache) => {
                writecache::check::verdict(&source, start_sector, origin_sectors)?
            }
            Some(Room::Snapshot) => {
                snapshot::check::verdict(&source, start_sector, origin_sectors)?
            }
            None => unknown(),
        };
        code = exit::worst(code, verdict.severity.exit_code());
        told(&source.name, &verdict)?;
    }
    Ok(code)
}

/// Refuses what is plainly something else. Where nothing is recognised the header may be what is
/// lost: then a pool tells itself, or what was `given` beside the device says what it should be.
fn room(source: &Source, start_sector: u64, given: Option<Room>) -> Outcome<Option<Room>> {
    let found = source.identify(start_sector)?;
    match Room::of(&found) {
        Some(room) => Ok(Some(room)),
        None if found.is_empty() => Ok(Room::without_header(source, start_sector)?.or(given)),
        None => {
            let kinds: Vec<_> = found.iter().map(|signature| signature.kind.name()).collect();
            let (kind, found) = (ConfigKind::Unsupported, kinds.join(", "));
            Err(refused(kind, &source.name, "format", found, FORMATS))
        }
    }
}

/// What there is to say where nothing is recognised: a header is damaged, or there never was one.
fn unknown() -> Verdict {
    let severity = Severity::Damaged;
    Verdict {
        format: "unknown",
        severity,
        findings: vec![(severity, format!("format: found {NOTHING}, expected {FORMATS}"))],
        findings_left_out: 0,
        summary: None,
        facts: json!({}),
    }
}
