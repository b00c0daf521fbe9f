//! `cairn repair` on an exception store: into a new file, or in place.
//!
//! A new file, and what a crash between two steps leaves:
//! 1. chunks and records, then a flush: a file without a header, which is not a store;
//! 2. the header, then a flush of file and folder: the sound store.
//!
//! After a failure or a signal the file is removed. In place, each record is written alone, within
//! a sector:
//! 1. records from the tail over dropped ones, then a flush: every kept record is now before the
//!    tail, and some stand twice; another repair continues from here;
//! 2. zeros over the slots left over, then a flush: the sound store. Until then slots are taken
//!    after the end, which another repair clears.

use std::path::Path;

use cairn_backends::LeftLog;
use cairn_block::{ConfigKind, SECTOR_BYTES};
use cairn_format::Severity;
use cairn_format::snapshot::check::FINDINGS_MAX;
use cairn_format::snapshot::repair::{Plan, Refusal, Repair, Step, packed_chunk};
use cairn_format::snapshot::{CowChunk, Layout, RECORD_BYTES, Record};
use cairn_outcome::failure::{Outcome, refused};
use cairn_outcome::signals::{self, Unfinished};
use cairn_outcome::{exit, stdout};
use serde_json::json;

use super::{PIECE_BYTES, Store, check};
use crate::args::RepairArgs;
use crate::dirty;
use crate::source::sectors;
use crate::source::{Source, sync_folder};
use crate::verdict::{findings_json, findings_text};

/// The records that are dropped, each with its reason.
#[derive(Default)]
struct Dropped {
    lines: Vec<(Severity, String)>,
    left_out: u64,
}

/// Repairs the store; in place, `logs` are given up for it. A signal stops reading; writes in place
/// always run to their end.
///
/// # Errors
/// The store cannot be repaired, something cannot be read or written, or a signal came.
pub fn run(source: &Source, args: &RepairArgs, logs: Vec<LeftLog>) -> Outcome<u8> {
    let (_, stop) = signals::watch()?;
    let origin_sectors = sectors(args.origin.as_deref())?;
    let store = Store::at(source, args.place.start_sector, origin_sectors)?.stopped_by(&stop);
    let before = check::report(&store)?;
    let mut dropped = Dropped::default();
    let plan = walk(&store, args.salvage, |step| {
        dropped.note(step);
        Ok(())
    })?;
    let output = match &args.output {
        Some(path) => Some(write_new(&store, &plan, args.salvage, path)?),
        None => {
            write_in_place(&store, &plan, logs)?;
            None
        }
    };
    let repaired = output.as_ref().unwrap_or(source);
    let start_sector = if output.is_some() { 0 } else { args.place.start_sector };
    let after = check::verdict(repaired, start_sector, origin_sectors)?;
    let gone = before.counts.records + before.counts.after_end - plan.kept();
    let lost = before.severity == Severity::Damaged;
    if args.json {
        stdout::print_json(&json!({
            "device": source.name,
            "output": output.as_ref().map(|output| &output.name),
            "kept": plan.kept(),
            "dropped": gone,
            "lost": lost,
            "findings": findings_json(&dropped.lines),
            "findings_left_out": dropped.left_out,
            "check": after.json(&repaired.name),
        }))?;
    } else {
        let findings = findings_text(&source.name, &dropped.lines, dropped.left_out);
        let loss = if lost { "something was lost" } else { "nothing was lost" };
        let counts = format!("{} records kept, {gone} dropped: {loss}", plan.kept());
        let verdict = after.text(&repaired.name);
        stdout::print(&format!("{findings}{}: {counts}\n{verdict}", source.name))?;
    }
    let code = if lost { exit::DAMAGED } else { exit::OK };
    Ok(exit::worst(code, after.severity.exit_code()))
}

impl Dropped {
    fn note(&mut self, step: &Step) {
        match step {
            Step::Keep { .. } => {}
            Step::Drop { .. } if self.lines.len() == FINDINGS_MAX => self.left_out += 1,
            Step::Drop { .. } => self.lines.push((step.severity(), step.to_string())),
        }
    }
}

/// Decides which records are kept and which are dropped.
fn walk(
    store: &Store<'_>,
    salvage: bool,
    mut each: impl FnMut(&Step) -> Outcome<()>,
) -> Outcome<Plan> {
    let repair = Repair::new(&store.head()?, store.limits, salvage);
    let mut repair = repair.map_err(|refusal: Refusal| store.damaged(refusal))?;
    while let Some(range) = repair.wants(PIECE_BYTES) {
        repair.feed(&store.bytes(range)?).iter().try_for_each(&mut each)?;
    }
    Ok(repair.finish())
}

/// Writes the kept records and their chunks to a new file, without gaps.
fn write_new(store: &Store<'_>, plan: &Plan, salvage: bool, path: &Path) -> Outcome<Source> {
    // At least as large as the device, so that the snapshot has the same space to grow.
    let sectors = plan.needed_sectors().max(store.limits.device_sectors);
    let output = Source::create(path, sectors * SECTOR_BYTES)?;
    let made = Unfinished::file(path);
    fill(store, sectors, salvage, &output)?;
    sync_folder(path)?;
    made.finish();
    Ok(output)
}

fn fill(store: &Store<'_>, sectors: u64, salvage: bool, output: &Source) -> Outcome<()> {
    let header = store.head()?;
    let repair = Repair::new(&header, store.limits, salvage);
    let old = *repair.map_err(|refusal| store.damaged(refusal))?.layout();
    let size = old.chunk_size();
    let new = Layout::new(size, sectors).map_err(|error| store.damaged(error))?;
    let mut index = 0;
    walk(store, salvage, |step| {
        let Step::Keep { record, .. } = step else { return Ok(()) };
        let to = packed_chunk(size, index);
        copy_chunk(
            store,
            old.chunk_sector(record.new),
            new.chunk_sector(to),
            size.bytes(),
            output,
        )?;
        output.write_at(new.record_offset(index), &packed(record, to))?;
        index += 1;
        Ok(())
    })?;
    output.flush()?;
    output.write_at(0, &header)?;
    output.flush()
}

fn packed(record: &Record, new: CowChunk) -> [u8; RECORD_BYTES] {
    Record { new, ..*record }.encode()
}

/// Copies a chunk; zeros become holes.
fn copy_chunk(
    store: &Store<'_>,
    from_sector: u64,
    to_sector: u64,
    bytes: u64,
    output: &Source,
) -> Outcome<()> {
    let mut done = 0;
    while done < bytes {
        let len = PIECE_BYTES.min(bytes - done);
        let from = from_sector * SECTOR_BYTES + done;
        let piece = store.bytes(from..from + len)?;
        if piece.iter().any(|byte| *byte != 0) {
            output.write_at(to_sector * SECTOR_BYTES + done, &piece)?;
        }
        done += len;
    }
    Ok(())
}

fn write_in_place(store: &Store<'_>, plan: &Plan, logs: Vec<LeftLog>) -> Outcome<()> {
    if !plan.fits_in_place() {
        let expected = "room for one more area: a device larger by a chunk, or --output";
        let (kind, found) = (ConfigKind::Damaged, "it full at the end of the device");
        return Err(refused(kind, &store.source.name, "last area", found, expected));
    }
    dirty::give_up(store.source, logs)?;
    let offset = |index| store.start + plan.layout().record_offset(index);
    for (from, to) in plan.moves() {
        let record = store.source.bytes_at(offset(from), RECORD_BYTES)?;
        store.source.write_at(offset(to), &record)?;
    }
    if plan.clear().is_empty() {
        return Ok(());
    }
    store.source.flush()?;
    for index in plan.clear() {
        store.source.write_at(offset(index), &Record::END.encode())?;
    }
    store.source.flush()
}
