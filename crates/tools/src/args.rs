//! The arguments of the tools, as a command line gives them.

use std::path::PathBuf;

use cairn_backends::parse_size;
use cairn_outcome::failure::{Outcome, wrong};
use clap::{Args, Subcommand};

/// What can be formatted.
#[derive(Subcommand)]
pub enum FormatCommand {
    /// A dm-writecache cache device
    Writecache(FormatWritecacheArgs),
    /// A dm-snapshot exception store
    Snapshot(FormatSnapshotArgs),
    /// The metadata device of a dm-thin pool
    ThinPool(FormatThinPoolArgs),
    /// The data device of a dm-thin pool: made blank
    PoolData(FormatPoolDataArgs),
}

/// What every `format` takes.
#[derive(Args)]
pub struct FormatArgs {
    /// The device
    pub device: PathBuf,
    /// Format although the device is not blank: what it holds is lost
    #[arg(long)]
    pub yes: bool,
    /// Format although blocks are lost that the origin does not have (with --yes)
    #[arg(long, requires = "yes")]
    pub discard_dirty: bool,
}

/// `format writecache`
#[derive(Args)]
pub struct FormatWritecacheArgs {
    /// What and whether
    #[command(flatten)]
    pub format: FormatArgs,
    /// Bytes in a cache block: 512, 1024, 2048 or 4096
    #[arg(long, default_value_t = 4096)]
    pub block_size: u32,
    /// Where the header is
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// `format snapshot`
#[derive(Args)]
pub struct FormatSnapshotArgs {
    /// What and whether
    #[command(flatten)]
    pub format: FormatArgs,
    /// Size of a chunk in sectors
    #[arg(long, value_name = "SECTORS", default_value_t = 32)]
    pub chunk: u32,
}

/// `format thin-pool`
#[derive(Args)]
pub struct FormatThinPoolArgs {
    /// What and whether
    #[command(flatten)]
    pub format: FormatArgs,
    /// Size of a data block: a multiple of 64K, up to 1G
    #[arg(long, value_name = "SIZE", default_value = "64K")]
    pub block_size: String,
}

/// `format pool-data`
#[derive(Args)]
pub struct FormatPoolDataArgs {
    /// What and whether
    #[command(flatten)]
    pub format: FormatArgs,
}

/// `check`
#[derive(Args)]
pub struct CheckArgs {
    /// Which devices and how
    #[command(flatten)]
    pub devices: DevicesArgs,
    /// The origin device, to find blocks or chunks that lie beyond its end
    #[arg(long)]
    pub origin: Option<PathBuf>,
    /// The data device of a thin pool, to find a map that is larger
    #[arg(long)]
    pub data: Option<PathBuf>,
    /// Check the metadata snapshot of a thin pool, which may be in use meanwhile
    #[arg(long)]
    pub metadata_snapshot: bool,
}

/// `dump`
#[derive(Args)]
pub struct DumpArgs {
    /// The device
    pub device: PathBuf,
    /// Where the header is
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Show free slots, or records after the end of the list, too
    #[arg(long)]
    pub all: bool,
    /// Show the metadata snapshot of a thin pool, which may be in use meanwhile
    #[arg(long)]
    pub metadata_snapshot: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `restore`
#[derive(Args)]
pub struct RestoreArgs {
    /// The XML of dump or thin_dump; - reads the standard input
    pub xml: PathBuf,
    /// A file to make, or a device for the metadata
    #[arg(long, value_name = "NEW")]
    pub output: PathBuf,
    /// Data blocks of the pool, where the XML does not know them
    #[arg(long, value_name = "COUNT")]
    pub data_blocks: Option<u64>,
    /// Write over whatever the device holds
    #[arg(long)]
    pub yes: bool,
    /// Write although blocks of a cache are lost that the origin does not have (with --yes)
    #[arg(long, requires = "yes")]
    pub discard_dirty: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `rmap`
#[derive(Args)]
pub struct RmapArgs {
    /// The metadata device
    pub device: PathBuf,
    /// Where the superblock is
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Data blocks to tell of, the last one left out; again for more (default: all)
    #[arg(long, value_name = "BEGIN..END")]
    pub region: Vec<String>,
    /// Look at the metadata snapshot, which may be in use meanwhile
    #[arg(long)]
    pub metadata_snapshot: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `repair`
#[derive(Args)]
pub struct RepairArgs {
    /// The COW device, or the metadata device of a pool
    pub device: PathBuf,
    /// Where the header is
    #[command(flatten)]
    pub place: PlaceArgs,
    /// A file to make, for a sound store; the device is only read
    #[arg(long, value_name = "NEW", conflicts_with = "in_place")]
    #[arg(required_unless_present = "in_place")]
    pub output: Option<PathBuf>,
    /// Change the device itself (with --yes)
    #[arg(long, requires = "yes")]
    pub in_place: bool,
    /// Yes, change it
    #[arg(long)]
    pub yes: bool,
    /// Write although blocks of a cache are lost that the origin does not have (with --yes)
    #[arg(long, requires = "yes")]
    pub discard_dirty: bool,
    /// The origin device, to find chunks that lie beyond its end
    #[arg(long)]
    pub origin: Option<PathBuf>,
    /// Keep what follows the end of the list, though it may be out of date
    #[arg(long)]
    pub salvage: bool,
    /// Sectors in a data block of a pool, if its superblock is lost
    #[arg(long, value_name = "SECTORS", conflicts_with = "in_place")]
    pub data_block_size: Option<u32>,
    /// Data blocks of a pool, if its superblock is lost
    #[arg(long, value_name = "COUNT", conflicts_with = "in_place")]
    pub data_blocks: Option<u64>,
    /// Transaction id of a pool, if its superblock is lost
    #[arg(long, value_name = "ID", conflicts_with = "in_place")]
    pub transaction_id: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Tools that read devices.
#[derive(Args)]
pub struct DevicesArgs {
    /// Files or block devices
    #[arg(required = true)]
    pub devices: Vec<PathBuf>,
    /// Where the header is
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Where a header begins.
#[derive(Args, Clone, Copy)]
pub struct PlaceArgs {
    /// First sector of the header on the device
    #[arg(long, value_name = "SECTOR", default_value_t = 0)]
    pub start_sector: u64,
}

/// The bytes of a size of whole sectors.
///
/// # Errors
/// It is no such size.
pub fn bytes(field: &str, size: &str) -> Outcome<u64> {
    let parsed = parse_size(size).ok().filter(|bytes| *bytes > 0 && bytes.is_multiple_of(512));
    let expected = "a size above 0, in whole sectors, like 2048s or 1G";
    parsed.ok_or_else(|| wrong("", field, format!("'{size}'"), expected))
}
