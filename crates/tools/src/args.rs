//! The arguments of the tools, as a command line gives them.

use std::path::PathBuf;

use cairn_backends::parse_size;
use cairn_format::bcache::Uuid;
use cairn_outcome::failure::{Outcome, wrong};
use clap::{Args, Subcommand, ValueEnum};

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
    /// An image of qemu
    Qcow2(FormatQcow2Args),
    /// A bcache cache device, its backing devices, or both
    Bcache(FormatBcacheArgs),
}

/// Which dirty data of a cache may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiscardDirty {
    /// That of a write cache.
    Blocks,
    /// That of a write cache, and that of this bcache set.
    Set(Uuid),
}

fn parse_discard_dirty(text: &str) -> Result<DiscardDirty, String> {
    match text {
        "" => Ok(DiscardDirty::Blocks),
        text => text.parse().map(DiscardDirty::Set).map_err(|error| format!("{error}")),
    }
}

/// How losses are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ListLost {
    /// The ranges that are lost or suspect, with the verdict
    Ranges,
    /// All of one volume, as `nbdinfo --map` prints it, and nothing else
    Nbd,
}

/// What a `format` may lose.
#[derive(Args, Clone, Copy)]
pub struct LeaveArgs {
    /// Format a device that is not blank: its content is lost
    #[arg(long)]
    pub yes: bool,
    /// Lose the dirty data of a cache, which its origin does not have (with --yes); that of a
    /// bcache set if SET is its UUID
    #[arg(long, value_name = "SET", requires = "yes", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "", value_parser = parse_discard_dirty)]
    pub discard_dirty: Option<DiscardDirty>,
}

/// The arguments of a `format` of one device.
#[derive(Args)]
pub struct FormatArgs {
    /// The device
    pub device: PathBuf,
    /// What may be lost
    #[command(flatten)]
    pub leave: LeaveArgs,
}

/// `format writecache`
#[derive(Args)]
pub struct FormatWritecacheArgs {
    /// The device, and what may be lost
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
    /// The device, and what may be lost
    #[command(flatten)]
    pub format: FormatArgs,
    /// Size of a chunk in sectors
    #[arg(long, value_name = "SECTORS", default_value_t = 32)]
    pub chunk: u32,
}

/// `format qcow2`
#[derive(Args)]
pub struct FormatQcow2Args {
    /// The device, and what may be lost
    #[command(flatten)]
    pub format: FormatArgs,
    /// Size of the content
    #[arg(long, value_name = "SIZE")]
    pub size: String,
    /// Size of a cluster: a power of two from 512 to 2M
    #[arg(long, value_name = "SIZE", default_value = "64K")]
    pub cluster_size: String,
    /// The backing image, by its name relative to the image
    #[arg(long, value_name = "NAME", requires = "backing_format")]
    pub backing: Option<String>,
    /// The format of the backing image: raw or qcow2
    #[arg(long, value_name = "FORMAT", requires = "backing", value_parser = ["raw", "qcow2"])]
    pub backing_format: Option<String>,
}

/// `format thin-pool`
#[derive(Args)]
pub struct FormatThinPoolArgs {
    /// The device, and what may be lost
    #[command(flatten)]
    pub format: FormatArgs,
    /// Size of a data block: a multiple of 64K, up to 1G
    #[arg(long, value_name = "SIZE", default_value = "64K")]
    pub block_size: String,
}

/// `format pool-data`
#[derive(Args)]
pub struct FormatPoolDataArgs {
    /// The device, and what may be lost
    #[command(flatten)]
    pub format: FormatArgs,
}

/// `format bcache`
#[derive(Args)]
pub struct FormatBcacheArgs {
    /// The cache device
    #[arg(long, value_name = "DEVICE", required_unless_present = "backing")]
    pub cache: Option<PathBuf>,
    /// A backing device, which is attached to the cache, if there is one; repeatable
    #[arg(long, value_name = "DEVICE")]
    pub backing: Vec<PathBuf>,
    /// What may be lost
    #[command(flatten)]
    pub leave: LeaveArgs,
    /// Size of a bucket, a power of two (default: 512K, or less on a small cache device)
    #[arg(long, value_name = "SIZE", requires = "cache")]
    pub bucket_size: Option<String>,
    /// Bytes in a block: 512, 1024, 2048 or 4096 (default: the largest that a device needs)
    #[arg(long, value_name = "BYTES")]
    pub block_size: Option<u32>,
    /// Where the data of a backing device begins
    #[arg(long, value_name = "SECTOR", default_value_t = 16, requires = "backing")]
    pub data_offset: u64,
    /// What happens with writes
    #[arg(long, value_name = "MODE", default_value = "writethrough", requires = "backing")]
    #[arg(value_parser = ["writethrough", "writeback", "writearound", "none"])]
    pub cache_mode: String,
    /// Which buckets are reused first
    #[arg(long, value_name = "POLICY", default_value = "lru", requires = "cache")]
    #[arg(value_parser = ["lru", "fifo", "random"])]
    pub replacement: String,
    /// Discard buckets of the cache before they are reused
    #[arg(long, requires = "cache")]
    pub discard: bool,
    /// Label of a backing device, in the order of --backing; repeatable
    #[arg(long, value_name = "TEXT", requires = "backing")]
    pub label: Vec<String>,
}

/// `check`
#[derive(Args)]
pub struct CheckArgs {
    /// Files or block devices
    #[arg(required_unless_present = "backing")]
    pub devices: Vec<PathBuf>,
    /// Where the header is
    #[command(flatten)]
    pub place: PlaceArgs,
    /// The origin device, to find blocks or chunks that lie beyond its end
    #[arg(long)]
    pub origin: Option<PathBuf>,
    /// The data device of a thin pool, to find mappings beyond its end
    #[arg(long)]
    pub data: Option<PathBuf>,
    /// A backing device of a bcache cache, to check what it says against the cache; repeatable.
    /// Without a cache: what it says itself
    #[arg(long, value_name = "DEVICE", conflicts_with_all = ["data", "origin"])]
    pub backing: Vec<PathBuf>,
    /// List the ranges of volumes that a damaged or missing bcache cache took with it; reads all of
    /// its dirty data
    #[arg(long, value_name = "FORM", value_enum, num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "ranges")]
    pub list_lost: Option<ListLost>,
    /// The map of dirty zones of a server, STATE.zones-VOLUME: only zones that it names may lack
    /// what a missing cache had
    #[arg(long, value_name = "FILE", requires = "list_lost")]
    pub zones: Option<PathBuf>,
    /// Check the metadata snapshot of a thin pool; the pool may be in use
    #[arg(long)]
    pub metadata_snapshot: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `dump`
#[derive(Args)]
pub struct DumpArgs {
    /// The device
    pub device: PathBuf,
    /// Where the header is
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Also show free slots, or records after the end of the list
    #[arg(long)]
    pub all: bool,
    /// Show the metadata snapshot of a thin pool; the pool may be in use
    #[arg(long)]
    pub metadata_snapshot: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `restore`
#[derive(Args)]
pub struct RestoreArgs {
    /// The XML of dump or thin_dump; - is the standard input
    pub xml: PathBuf,
    /// A file to create, or a device, for the metadata
    #[arg(long, value_name = "NEW")]
    pub output: PathBuf,
    /// Data blocks of the pool, if the XML does not say them
    #[arg(long, value_name = "COUNT")]
    pub data_blocks: Option<u64>,
    /// Overwrite a device that is not blank: its content is lost
    #[arg(long)]
    pub yes: bool,
    /// Lose the dirty data of a cache, which its origin does not have (with --yes); that of a
    /// bcache set if SET is its UUID
    #[arg(long, value_name = "SET", requires = "yes", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "", value_parser = parse_discard_dirty)]
    pub discard_dirty: Option<DiscardDirty>,
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
    /// Data-block range, END exclusive; repeatable (default: all)
    #[arg(long, value_name = "BEGIN..END")]
    pub region: Vec<String>,
    /// Read the metadata snapshot; the pool may be in use
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
    /// A file to create for the repaired metadata; the device is only read
    #[arg(long, value_name = "NEW", conflicts_with = "in_place")]
    #[arg(required_unless_present = "in_place")]
    pub output: Option<PathBuf>,
    /// Change the device itself (with --yes)
    #[arg(long, requires = "yes")]
    pub in_place: bool,
    /// Confirms that a device may be overwritten
    #[arg(long)]
    pub yes: bool,
    /// Lose the dirty data of a cache, which its origin does not have (with --yes); that of a
    /// bcache set if SET is its UUID
    #[arg(long, value_name = "SET", requires = "yes", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "", value_parser = parse_discard_dirty)]
    pub discard_dirty: Option<DiscardDirty>,
    /// The origin device, to find chunks that lie beyond its end
    #[arg(long)]
    pub origin: Option<PathBuf>,
    /// Also keep records after the end of the list, which may be out of date
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

/// The devices that a tool reads.
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
