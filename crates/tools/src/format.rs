//! `cairn format`: a new cache, exception store, pool, bcache set or image. Data is overwritten
//! only with `--yes`.
//!
//! A device that is not blank needs `--yes`; a cache with dirty blocks needs `--discard-dirty` too.
//! The order, and what a crash between two steps leaves:
//! 1. zeros over the first 4 KiB and every signature of a device that is not blank, then a flush: a
//!    blank device;
//! 2. everything but the header, then a flush: a blank device. A cache is the exception: its
//!    metadata area has version 1 with the magic still zero. Every activation refuses that, and
//!    this verb formats it again with `--yes`;
//! 3. the header or superblock, then a flush: empty and valid. Of a bcache set, the superblocks of
//!    the backing devices, then that of the cache: until that is there, they are of no set.

use cairn_backends::LeftLog;
use cairn_block::{ConfigError, ConfigKind, SECTOR_BYTES};
use cairn_format::probe::blank::way_on;
use cairn_format::qcow2::write::Blank;
use cairn_format::snapshot::ChunkSize;
use cairn_format::writecache::{BlockSize, Geometry, Superblock};
use cairn_outcome::failure::{Outcome, wrong};
use cairn_outcome::stdout;

use super::source::{OwnRemainder, Source, refuse_unless_blank};
use super::thin::output::Leave;
use super::{bcache, dirty, snapshot, thin};
use crate::args::{
    FormatBcacheArgs, FormatCommand, FormatPoolDataArgs, FormatQcow2Args, FormatSnapshotArgs,
    FormatThinPoolArgs, FormatWritecacheArgs, LeaveArgs, bytes,
};

/// Bytes of one write.
const PIECE_BYTES: u64 = 1 << 20;

/// Runs the verb.
///
/// # Errors
/// The device is not blank and `--yes` is not given, is too small, or cannot be written.
pub fn run(command: &FormatCommand) -> Outcome<u8> {
    match command {
        FormatCommand::Writecache(args) => format_writecache(args),
        FormatCommand::Snapshot(args) => format_snapshot(args),
        FormatCommand::Qcow2(args) => format_qcow2(args),
        FormatCommand::ThinPool(args) => format_thin_pool(args),
        FormatCommand::PoolData(args) => format_pool_data(args),
        FormatCommand::Bcache(args) => {
            bcache::format::run(args, |sources| make_way_for_set(args, sources))
        }
    }
}

fn format_writecache(args: &FormatWritecacheArgs) -> Outcome<u8> {
    let source = Source::write(&args.format.device)?;
    let start_sector = args.place.start_sector;
    let area = source.area_bytes(start_sector)?;
    let unfit = |error: cairn_format::writecache::Error| {
        ConfigError::new(ConfigKind::Argument, &source.name, error.to_string())
    };
    let block_size = BlockSize::new(args.block_size).map_err(unfit)?;
    let geometry = Geometry::for_format(area, block_size).map_err(unfit)?;
    let options = match start_sector {
        0 => format!(" --block-size {}", args.block_size),
        start => format!(" --block-size {} --start-sector {start}", args.block_size),
    };
    let place: (u64, OwnRemainder) = (start_sector, Geometry::is_interrupted_format);
    make_way(&source, args.format.leave, place, &way_on("writecache", &source.name, &options))?;
    write_cache(&source, start_sector * SECTOR_BYTES, &geometry)?;
    let (name, blocks, bytes) = (&source.name, geometry.n_blocks(), block_size.bytes());
    stdout::print(&format!("{name}: {blocks} blocks of {bytes} bytes\n"))
}

fn format_snapshot(args: &FormatSnapshotArgs) -> Outcome<u8> {
    let source = Source::write(&args.format.device)?;
    let name = &source.name;
    let unfit = |error: cairn_format::snapshot::Error| {
        ConfigError::new(ConfigKind::Argument, name, error.to_string())
    };
    let chunk = ChunkSize::new(args.chunk).map_err(unfit)?;
    snapshot::format::check_size(name, chunk, source.bytes)?;
    let options = format!(" --chunk {}", args.chunk);
    make_way(&source, args.format.leave, (0, |_| false), &way_on("snapshot", name, &options))?;
    snapshot::format::format(&source, chunk)?;
    stdout::print(&format!("{name}: an empty store with chunks of {} sectors\n", args.chunk))
}

fn format_qcow2(args: &FormatQcow2Args) -> Outcome<u8> {
    let source = Source::write(&args.format.device)?;
    let name = &source.name;
    let (size, cluster_bytes) =
        (bytes("--size", &args.size)?, bytes("--cluster-size", &args.cluster_size)?);
    if !cluster_bytes.is_power_of_two() || !(512..=2 << 20).contains(&cluster_bytes) {
        let expected = "a power of two from 512 to 2M";
        return Err(wrong(name, "--cluster-size", cluster_bytes, expected));
    }
    if !size.is_multiple_of(SECTOR_BYTES) {
        return Err(wrong(name, "--size", size, "a multiple of 512"));
    }
    let backing = args.backing.as_deref().zip(args.backing_format.as_deref());
    let (cluster_bits, refcount_order) = (cluster_bytes.trailing_zeros(), 4);
    let blank = Blank { size, cluster_bits, refcount_order, backing };
    let first = blank
        .bytes()
        .map_err(|error| ConfigError::new(ConfigKind::Argument, name, error.to_string()))?;
    if source.bytes < first.len() as u64 {
        let expected = format!("at least {} bytes", first.len());
        return Err(wrong(name, "size", source.bytes, &expected));
    }
    let over = backing.map(|(name, format)| format!(" --backing {name} --backing-format {format}"));
    let (size_word, cluster_word) = (&args.size, &args.cluster_size);
    let options =
        format!(" --size {size_word} --cluster-size {cluster_word}{}", over.unwrap_or_default());
    let way_on = way_on("qcow2", name, &options);
    make_way(&source, args.format.leave, (0, |_| false), &way_on)?;
    let (header, rest) = first.split_at(cluster_bytes as usize);
    source.write_at(cluster_bytes, rest)?;
    source.flush()?;
    source.write_at(0, header)?;
    source.flush()?;
    stdout::print(&format!("{name}: an empty image of {size} bytes\n"))
}

fn format_thin_pool(args: &FormatThinPoolArgs) -> Outcome<u8> {
    let path = &args.format.device;
    let block_bytes = bytes("--block-size", &args.block_size)?;
    let LeaveArgs { yes, discard_dirty } = args.format.leave;
    let leave = Leave { yes, discard_dirty };
    thin::format::run(path, block_bytes, leave)?;
    let name = path.display();
    stdout::print(&format!("{name}: an empty pool with data blocks of {block_bytes} bytes\n"))
}

fn format_pool_data(args: &FormatPoolDataArgs) -> Outcome<u8> {
    let source = Source::write(&args.format.device)?;
    make_way(&source, args.format.leave, (0, |_| false), &way_on("pool-data", &source.name, ""))?;
    stdout::print(&format!("{}: blank\n", source.name))
}

/// Makes all devices of a set blank, if all of them may be.
fn make_way_for_set(args: &FormatBcacheArgs, sources: &[&Source]) -> Outcome<()> {
    let way_on = way_on("bcache", &bcache::format::command(args), "");
    let judged: Vec<InTheWay> = sources
        .iter()
        .map(|source| judge(source, args.leave, (0, |_| false), &way_on))
        .collect::<Outcome<_>>()?;
    sources.iter().zip(judged).try_for_each(|(source, judged)| judged.remove(source, 0))
}

/// Makes the range from a start sector on blank; one that is not blank needs `--yes`.
fn make_way(
    source: &Source,
    leave: LeaveArgs,
    place: (u64, OwnRemainder),
    way_on: &str,
) -> Outcome<()> {
    judge(source, leave, place, way_on)?.remove(source, place.0)
}

/// What of a device must go first.
struct InTheWay {
    logs: Vec<LeftLog>,
    /// The range from a start sector on is not blank.
    content: bool,
}

impl InTheWay {
    fn remove(self, source: &Source, start_sector: u64) -> Outcome<()> {
        dirty::give_up(source, self.logs)?;
        match self.content {
            true => source.make_blank(start_sector),
            false => Ok(()),
        }
    }
}

/// Finds what must go before the range from a start sector on is formatted; that needs `--yes`.
///
/// # Errors
/// It is not given, or the range has dirty data.
fn judge(
    source: &Source,
    leave: LeaveArgs,
    (start_sector, is_own_remainder): (u64, OwnRemainder),
    way_on: &str,
) -> Outcome<InTheWay> {
    let logs = dirty::refuse(source, start_sector, leave.discard_dirty)?;
    let found = source.judge(start_sector, is_own_remainder)?;
    if !leave.yes {
        refuse_unless_blank(&source.name, &found, way_on)?;
    }
    Ok(InTheWay { logs, content: !found.is_blank() })
}

fn write_cache(source: &Source, start: u64, geometry: &Geometry) -> Outcome<()> {
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
