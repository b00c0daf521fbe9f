//! `cairn probe`: every signature on a device, and how much of a cache is dirty.

use cairn_format::probe::{Kind, Signature};
use cairn_format::writecache::check::{Report, Severity};
use cairn_outcome::failure::Outcome;
use cairn_outcome::{exit, stdout};
use serde_json::{Value, json};

use super::bcache;
use super::source::Source;
use super::writecache::{self, counts_json, superblock_json};
use crate::args::DevicesArgs;

/// What one device holds.
struct Found {
    device: String,
    bytes: u64,
    signatures: Vec<Signature>,
    /// The check of the writecache, if there is one.
    cache: Option<Report>,
    /// What a cache or a backing device of bcache says, if it is one.
    bcache: Option<bcache::probe::Found>,
}

/// Runs the verb.
///
/// # Errors
/// A device cannot be read.
pub fn run(args: &DevicesArgs) -> Outcome<u8> {
    let (mut code, mut text, mut values) = (exit::OK, String::new(), Vec::new());
    for device in &args.devices {
        let found = look(&Source::read(device)?, args.place.start_sector)?;
        code = exit::worst(code, found.exit_code());
        text.push_str(&found.text());
        values.push(found.json());
    }
    match args.json {
        true => stdout::print_json(&Value::from(values))?,
        false => stdout::print(&text)?,
    };
    Ok(code)
}

fn look(source: &Source, start_sector: u64) -> Outcome<Found> {
    let signatures = source.identify(start_sector)?;
    let is_cache = signatures.iter().any(|signature| signature.kind == Kind::Writecache);
    let cache = is_cache.then(|| writecache::check(source, start_sector, None)).transpose()?;
    let is_bcache = |it: &Signature| matches!(it.kind, Kind::BcacheCache | Kind::BcacheBacking);
    let bcache = signatures.iter().any(is_bcache);
    let bcache = bcache.then(|| bcache::probe::look(source, start_sector)).transpose()?;
    Ok(Found { device: source.name.clone(), bytes: source.bytes, signatures, cache, bcache })
}

impl Found {
    fn exit_code(&self) -> u8 {
        let cache = match &self.cache {
            Some(report) if report.severity >= Severity::Repairable => report.severity.exit_code(),
            Some(report) if report.counts.dirty() > 0 => exit::RECOVERS,
            _ => exit::OK,
        };
        exit::worst(cache, self.bcache.as_ref().map_or(exit::OK, |found| found.exit_code()))
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for signature in &self.signatures {
            text.push_str(&format!("{}: {signature}\n", self.device));
        }
        if self.signatures.is_empty() {
            text.push_str(&format!("{}: nothing that cairn recognises\n", self.device));
        }
        if let Some(report) = &self.cache {
            let dirty = report.counts.dirty();
            let of = report.superblock.as_ref().map_or(0, |superblock| superblock.n_blocks());
            let state = if dirty > 0 { "dirty" } else { "clean" };
            let all = report.counts.committed + report.counts.uncommitted + report.counts.free;
            let least = if all < of { "at least " } else { "" };
            text.push_str(&format!(
                "{}: {state}: {least}{dirty} of {of} blocks ({} KiB) are not on the origin; {}\n",
                self.device,
                writecache::dirty_bytes(report).div_ceil(1024),
                report.severity
            ));
        }
        if let Some(found) = &self.bcache {
            text.push_str(&found.text(&self.device));
        }
        text
    }

    fn json(&self) -> Value {
        let signature = |signature: &Signature| {
            json!({
                "kind": signature.kind.name(),
                "offset": signature.offset,
                "label": signature.label,
                "uuid": signature.uuid,
                "details": signature.details,
            })
        };
        let cache = self.cache.as_ref().map(|report| {
            json!({
                "superblock": report.superblock.as_ref().map(superblock_json),
                "counts": counts_json(report),
                "dirty_bytes": writecache::dirty_bytes(report),
                "severity": report.severity.to_string(),
            })
        });
        json!({
            "device": self.device,
            "bytes": self.bytes,
            "signatures": self.signatures.iter().map(signature).collect::<Vec<_>>(),
            "writecache": cache,
            "bcache": self.bcache.as_ref().map(bcache::probe::Found::json),
        })
    }
}
