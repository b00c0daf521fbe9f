//! `cairn format writecache`: a fresh cache, never over somebody's data unasked.
//!
//! Order, and what a crash between two steps leaves:
//! 1. the whole metadata area with the magic still zero, then a flush: no cache, which every
//!    activation refuses (version 1 with magic 0) and this verb formats again with `--yes`;
//! 2. the superblock with its magic, then a flush: an empty cache.

use cairn_block::{ConfigError, ConfigKind, SECTOR_BYTES};
use cairn_format::writecache::check::Report;
use cairn_format::writecache::{BlockSize, Geometry, SUPERBLOCK_BYTES, Superblock};

use super::source::Source;
use super::writecache;
use crate::cli::FormatArgs;
use crate::failure::{Outcome, refused, wrong};
use crate::remote;

/// Bytes written at once.
const PIECE_BYTES: u64 = 1 << 20;

/// Runs the verb.
///
/// # Errors
/// The device is not blank and was not given up, is too small, or cannot be written.
pub fn run(args: &FormatArgs) -> Outcome<u8> {
    let source = Source::write(&args.device)?;
    let area = source.area_bytes(args.place.start_sector)?;
    let start = args.place.start_sector * SECTOR_BYTES;
    let unfit = |error: cairn_format::writecache::Error| {
        ConfigError::new(ConfigKind::Argument, &source.name, error.to_string())
    };
    let block_size = BlockSize::new(args.block_size).map_err(unfit)?;
    let geometry = Geometry::for_format(area, block_size).map_err(unfit)?;
    let report = writecache::check(&source, args.place.start_sector, None)?;
    refuse_dirty(&source, &report, args.discard_dirty)?;
    if !args.yes {
        refuse_unless_blank(&source, args.place.start_sector, start)?;
    }
    write(&source, start, &geometry)?;
    let (name, blocks, bytes) = (&source.name, geometry.n_blocks(), block_size.bytes());
    remote::print(&format!("{name}: {blocks} blocks of {bytes} bytes\n"))
}

fn refuse_dirty(source: &Source, report: &Report, discard_dirty: bool) -> Outcome<()> {
    let dirty = report.counts.dirty();
    if dirty == 0 || discard_dirty {
        return Ok(());
    }
    let found = format!("a cache with {dirty} blocks that its origin does not have");
    let expected = "a clean one (cairn flush), or --yes --discard-dirty to lose them";
    Err(refused(ConfigKind::Busy, &source.name, "content", found, expected))
}

fn refuse_unless_blank(source: &Source, start_sector: u64, start: u64) -> Outcome<()> {
    let mut found = source.identify(start_sector)?;
    if start_sector > 0 {
        found.extend(source.identify(0)?);
    }
    let expected = "a blank device, or --yes to lose what is there";
    if let Some(signature) = found.first() {
        return Err(wrong(&source.name, "content", signature, expected));
    }
    let head = source.bytes_at(start, SUPERBLOCK_BYTES)?;
    if head.iter().any(|byte| *byte != 0) {
        let found = format!("bytes that are not zero at {start}");
        return Err(wrong(&source.name, "content", found, expected));
    }
    Ok(())
}

fn write(source: &Source, start: u64, geometry: &Geometry) -> Outcome<()> {
    let superblock = Superblock::fresh(geometry);
    let mut offset = 0;
    while offset < geometry.metadata_bytes() {
        let len = PIECE_BYTES.min(geometry.metadata_bytes() - offset);
        let mut piece = vec![0; len as usize];
        geometry.fill_fresh(&superblock.encode_unfinished(), offset, &mut piece);
        source.write_at(start + offset, &piece)?;
        offset += len;
    }
    source.flush()?;
    source.write_at(start, &superblock.encode())?;
    source.flush()
}
