//! The command line: every verb, option and argument, and nothing else.
//!
//! [`parse`] gives a [`Cli`] or the text to print; no verb acts here. Wrong usage is one line and
//! exit code 1, since 2 means damage.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::bench::BenchArgs;
use crate::exit;
use crate::replace::SwapArgs;
use crate::serve::{RingChoice, ServeArgs};

/// The device mapper's storage stack in userspace.
#[derive(Parser)]
#[command(name = "cairn", version, about, after_help = exit::help())]
pub struct Cli {
    /// Say more on stderr (twice: everything)
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// The verbs.
#[derive(Subcommand)]
pub enum Command {
    /// Build volumes from tables and serve them
    Serve(Box<ServeArgs>),
    /// Show the status line of each target
    Status(ReadArgs),
    /// Show the table lines of a volume
    Table {
        /// Which volumes and how
        #[command(flatten)]
        read: ReadArgs,
        /// Leave out words that only cairn knows, as the kernel would take the line
        #[arg(long)]
        kernel: bool,
        /// Show the table that waits for a resume
        #[arg(long)]
        inactive: bool,
    },
    /// List the volumes
    Ls(ListArgs),
    /// Show the state of volumes
    Info(ReadArgs),
    /// List the kinds of target
    Targets(ListArgs),
    /// List the exports and where they are served
    Exports(ListArgs),
    /// Exports of a running server: add, remove
    #[command(subcommand)]
    Export(ExportCommand),
    /// Records of tables that verbs changed: show, forget
    #[command(subcommand)]
    State(StateCommand),
    /// Send a message to the target at a sector
    Message {
        /// Which
        #[command(flatten)]
        volume: NameArgs,
        /// A sector of the target's line
        sector: u64,
        /// The message
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// Let no request in and finish those under way
    Suspend {
        /// Which
        #[command(flatten)]
        volume: NameArgs,
        /// Hold unfinished requests back for the next table instead of finishing them
        #[arg(long)]
        noflush: bool,
        /// Accepted for dmsetup's sake: there is no file system to lock here
        #[arg(long)]
        nolockfs: bool,
    },
    /// Load a table beside the live one; resume makes it live
    #[command(visible_alias = "reload")]
    Load(TableArgs),
    /// Make the loaded table live and let requests in
    Resume {
        /// Which
        #[command(flatten)]
        volume: NameArgs,
        /// What it may do
        #[command(flatten)]
        swap: SwapArgs,
    },
    /// Give a volume another table while it is in use, or leave everything as it was
    Replace {
        /// Which, and the table
        #[command(flatten)]
        table: TableArgs,
        /// What it may do
        #[command(flatten)]
        swap: SwapArgs,
    },
    /// Drop the loaded table
    Clear(NameArgs),
    /// Create a volume, load its table and resume it
    Create(TableArgs),
    /// Take a volume away
    Remove {
        /// Which
        #[command(flatten)]
        volume: NameArgs,
        /// Disconnect the clients that use it
        #[arg(long)]
        force: bool,
    },
    /// Wait for an event of a volume
    Wait {
        /// Which
        #[command(flatten)]
        volume: NameArgs,
        /// Return once there were more events than this (default: the number now)
        event_nr: Option<u64>,
    },
    /// Snapshots of a volume: create, list, diff, rollback, merge, remove, grow
    #[command(subcommand)]
    Snap(SnapCommand),
    /// Thin pools: create, status, grow, trim
    #[command(subcommand)]
    Pool(PoolCommand),
    /// Volumes of thin pools: create, snapshot, list, diff, rollback, remove, rename
    #[command(subcommand)]
    Thin(ThinCommand),
    /// What is this? Exit code 5: a dirty cache
    Probe(DevicesArgs),
    /// Is it sound? Exit codes 0, 5, 3, 2
    Check(CheckArgs),
    /// Show the metadata of a device; of a thin pool as XML
    Dump(DumpArgs),
    /// Save what can be saved of a damaged exception store or pool. Exit code 2: something was lost
    Repair(RepairArgs),
    /// Make the metadata of a thin pool out of XML
    Restore(RestoreArgs),
    /// Show which volumes of a thin pool map a data block
    Rmap(RmapArgs),
    /// Make a fresh cache
    #[command(subcommand)]
    Format(FormatCommand),
    /// Write the dirty blocks of a cache back to its origin, offline
    Flush(FlushArgs),
    /// Measure this program on this machine
    Bench(BenchArgs),
}

/// `export`
#[derive(Subcommand)]
pub enum ExportCommand {
    /// Serve a volume under another name, also after the next start
    Add {
        /// Which
        #[command(flatten)]
        volume: NameArgs,
        /// The name that clients ask for (default: the volume's own)
        #[arg(long = "as", value_name = "EXPORT")]
        export: Option<String>,
        /// A line for a person
        #[arg(long, value_name = "TEXT", default_value = "")]
        description: String,
        /// Refuse writes
        #[arg(long)]
        read_only: bool,
    },
    /// Serve an export no more, also after the next start
    Remove {
        /// The server
        #[command(flatten)]
        server: ServerArgs,
        /// The export
        #[arg(value_name = "EXPORT")]
        name: String,
        /// Disconnect its clients
        #[arg(long)]
        force: bool,
    },
}

/// `state`
#[derive(Subcommand)]
pub enum StateCommand {
    /// Show what is recorded of volumes and exports
    Show {
        /// Where
        #[command(flatten)]
        place: StateArgs,
        /// The volume (default: all)
        name: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Drop what is recorded of a volume that is not served: the configuration counts again
    Forget {
        /// Where
        #[command(flatten)]
        place: StateArgs,
        /// The volume
        name: String,
        /// Its snapshots and merges go with it: their content is lost
        #[arg(long)]
        yes: bool,
    },
}

/// Where records are.
#[derive(Args)]
pub struct StateArgs {
    /// The server
    #[command(flatten)]
    pub server: ServerArgs,
    /// A state file, without a server
    #[arg(long, value_name = "FILE", conflicts_with = "control")]
    pub state: Option<PathBuf>,
}

/// `snap`
#[derive(Subcommand)]
pub enum SnapCommand {
    /// Make a snapshot of a volume; its clients see a pause
    Create(SnapCreateArgs),
    /// List the snapshots of a volume, or all
    List(ReadArgs),
    /// List the ranges that may differ: of a snapshot and its volume now, or another snapshot
    Diff {
        /// Which
        #[command(flatten)]
        snap: SnapNameArgs,
        /// Another snapshot of the same volume (default: the volume itself)
        #[arg(value_name = "@NAME")]
        other: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Give the volume the content of a snapshot, which stays; what was written since is lost
    Rollback {
        /// Which and how
        #[command(flatten)]
        merge: MergeArgs,
        /// The store that the snapshot goes on with (default: a file beside the state file)
        #[arg(long, value_name = "PATH")]
        store: Option<PathBuf>,
    },
    /// Give the volume the content of a snapshot, and take the snapshot away
    Merge(MergeArgs),
    /// Take a snapshot away; the volume stays as it is
    Remove {
        /// Which
        #[command(flatten)]
        snap: SnapNameArgs,
        /// Disconnect the clients that use it
        #[arg(long)]
        force: bool,
    },
    /// Make the store of a snapshot larger
    Grow {
        /// Which
        #[command(flatten)]
        snap: SnapNameArgs,
        /// The new size of its file, like 10G
        #[arg(long)]
        size: String,
    },
}

/// `pool`
#[derive(Subcommand)]
pub enum PoolCommand {
    /// Make a pool over a data and a metadata device, or files to make
    Create(Box<PoolCreateArgs>),
    /// Show how full pools are, and in which mode
    Status(ReadArgs),
    /// Make a pool larger: by the sizes said, or as its devices have grown
    Grow {
        /// Which
        #[command(flatten)]
        pool: NameArgs,
        /// The new size of the data file, like 100G
        #[arg(long, value_name = "SIZE")]
        data_size: Option<String>,
        /// The new size of the metadata file
        #[arg(long, value_name = "SIZE")]
        metadata_size: Option<String>,
    },
    /// Tell the data device of every free block, so that a file gets its room back
    Trim {
        /// Which
        #[command(flatten)]
        pool: NameArgs,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// `pool create`
#[derive(Args)]
pub struct PoolCreateArgs {
    /// The pool
    #[command(flatten)]
    pub pool: NameArgs,
    /// The data device: a file (made with --data-size), a block device or a volume (@NAME)
    #[arg(long, value_name = "PATH|@VOLUME")]
    pub data: PathBuf,
    /// The metadata device: a blank file or block device, a volume (@NAME), or a file to make
    #[arg(long, value_name = "PATH|@VOLUME")]
    pub metadata: PathBuf,
    /// Size of the data file to make, like 100G (sparse)
    #[arg(long, value_name = "SIZE")]
    pub data_size: Option<String>,
    /// Size of the metadata file to make (default: 64 bytes per data block, at least 4M; sparse)
    #[arg(long, value_name = "SIZE")]
    pub metadata_size: Option<String>,
    /// Size of a data block: a multiple of 64K, up to 1G (default: 64K)
    #[arg(long, value_name = "SIZE")]
    pub block_size: Option<String>,
    /// Raise an event when no more data blocks than this are free (default: 0)
    #[arg(long, value_name = "BLOCKS")]
    pub low_water: Option<u64>,
    /// What becomes of zeros that clients write: unmap (the default) or off
    #[arg(long, value_name = "MODE")]
    pub detect_zeroes: Option<String>,
    /// Do not zero new blocks around what is written to them
    #[arg(long)]
    pub skip_block_zeroing: bool,
    /// Take no discards
    #[arg(long)]
    pub ignore_discard: bool,
    /// Free blocks at a discard, and do not tell the data device
    #[arg(long)]
    pub no_discard_passdown: bool,
    /// Writes that find no free block fail at once, instead of waiting
    #[arg(long)]
    pub error_if_no_space: bool,
    /// How long writes wait for a free block (default: 60; 0: for ever)
    #[arg(long, value_name = "SECONDS")]
    pub no_space_timeout: Option<u64>,
    /// Raise an event when so much of the data is in use (default: 75)
    #[arg(long, value_name = "PERCENT")]
    pub data_mark: Option<u64>,
    /// Raise an event when so much of the metadata is in use (default: 85)
    #[arg(long, value_name = "PERCENT")]
    pub metadata_mark: Option<u64>,
}

/// `thin`
#[derive(Subcommand)]
pub enum ThinCommand {
    /// Make an empty volume of a pool
    Create {
        /// Which
        #[command(flatten)]
        thin: ThinNameArgs,
        /// Its size, like 10G
        size: String,
        /// Its number in the pool (default: the lowest that is free)
        #[arg(long)]
        id: Option<u64>,
        /// A device that unmapped blocks are read from; it must not change
        #[arg(long, value_name = "PATH|@VOLUME")]
        origin: Option<PathBuf>,
    },
    /// Make a snapshot of a volume: a volume of its own that shares everything
    Snapshot {
        /// The snapshot: VOLUME@NAME
        #[command(flatten)]
        thin: ThinNameArgs,
        /// The volume it is made of (default: VOLUME of VOLUME@NAME)
        #[arg(long, value_name = "VOLUME")]
        of: Option<String>,
        /// Its number in the pool (default: the lowest that is free)
        #[arg(long)]
        id: Option<u64>,
    },
    /// List the volumes of a pool, a volume with its snapshots, or all; with their own bytes
    List(ReadArgs),
    /// List the ranges that may differ: of a snapshot and its volume now, or any two of a pool
    Diff {
        /// The server
        #[command(flatten)]
        server: ServerArgs,
        /// The snapshot
        #[arg(value_name = "VOLUME@NAME")]
        name: String,
        /// Another volume or snapshot (default: the volume itself)
        #[arg(value_name = "@NAME|VOLUME")]
        other: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Give a volume the content of a snapshot, which stays; what was written since is lost
    Rollback {
        /// The snapshot: VOLUME@NAME
        #[command(flatten)]
        thin: ThinNameArgs,
        /// Keep what the volume was under this name
        #[arg(long, value_name = "@NAME")]
        keep: Option<String>,
    },
    /// Delete a volume or snapshot, or POOL/thin-ID
    Remove {
        /// Which
        #[command(flatten)]
        thin: ThinNameArgs,
        /// Disconnect the clients that use it
        #[arg(long)]
        force: bool,
    },
    /// Give a volume with its snapshots another name, or POOL/thin-ID a first one
    Rename {
        /// Which
        #[command(flatten)]
        thin: ThinNameArgs,
        /// The new name
        to: String,
        /// The size of a volume that had no name
        #[arg(long)]
        size: Option<String>,
        /// Its external origin, which a pool does not know (default: none, and what it has not
        /// written itself reads as zeros)
        #[arg(long, value_name = "PATH|@VOLUME")]
        origin: Option<PathBuf>,
    },
}

/// Verbs on one volume of a pool.
#[derive(Args)]
pub struct ThinNameArgs {
    /// The server
    #[command(flatten)]
    pub server: ServerArgs,
    /// The volume; the pool may be left out where there is a volume of this name
    #[arg(value_name = "[POOL/]VOLUME")]
    pub name: String,
}

/// `snap create`
#[derive(Args)]
pub struct SnapCreateArgs {
    /// Which
    #[command(flatten)]
    pub snap: SnapNameArgs,
    /// The exception store: a blank file or block device, or a file to make (default:
    /// VOLUME@NAME.cow beside the state file)
    #[arg(long, value_name = "PATH")]
    pub store: Option<PathBuf>,
    /// Size of a chunk in sectors (default: 32, or one block if that is larger)
    #[arg(long, value_name = "SECTORS")]
    pub chunk: Option<u32>,
    /// Size of the file to make, like 10G (default: sparse, with room for every chunk)
    #[arg(long)]
    pub size: Option<String>,
    /// Raise an event of the snapshot when its store is so full (default: 80)
    #[arg(long, value_name = "PERCENT")]
    pub fill: Option<u64>,
    /// Make the file so much larger each time it is that full, like 1G
    #[arg(long, value_name = "SIZE")]
    pub grow: Option<String>,
}

/// Verbs on one snapshot.
#[derive(Args)]
pub struct SnapNameArgs {
    /// The server
    #[command(flatten)]
    pub server: ServerArgs,
    /// The snapshot
    #[arg(value_name = "VOLUME@NAME")]
    pub name: String,
}

/// `snap rollback` and `snap merge`
#[derive(Args)]
pub struct MergeArgs {
    /// Which
    #[command(flatten)]
    pub snap: SnapNameArgs,
    /// Return when it has begun, and leave the rest to the server
    #[arg(long)]
    pub no_wait: bool,
    /// Stop watching after this many seconds; exit code 124 if work is left, which goes on
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<f64>,
}

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

/// `flush`
#[derive(Args)]
pub struct FlushArgs {
    /// The table with the cache: START LENGTH writecache ...
    #[arg(long, required = true)]
    pub table: Vec<String>,
    /// Stop after this many seconds; exit code 124 if work is left
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<f64>,
    /// Which ring
    #[arg(long, value_enum, default_value_t = RingChoice::Auto)]
    pub ring: RingChoice,
}

/// How to reach a running server.
#[derive(Args)]
pub struct ServerArgs {
    /// The server's control socket (default: $CAIRN_CONTROL, then the one serve listens on by
    /// default)
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
}

/// Verbs on one volume.
#[derive(Args)]
pub struct NameArgs {
    /// The server
    #[command(flatten)]
    pub server: ServerArgs,
    /// The volume
    pub name: String,
}

/// Verbs that show something of some volumes.
#[derive(Args)]
pub struct ReadArgs {
    /// The server
    #[command(flatten)]
    pub server: ServerArgs,
    /// The volume (default: all, each line with its name in front)
    pub name: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Verbs that list.
#[derive(Args)]
pub struct ListArgs {
    /// The server
    #[command(flatten)]
    pub server: ServerArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Verbs that take a table.
#[derive(Args)]
pub struct TableArgs {
    /// Which
    #[command(flatten)]
    pub volume: NameArgs,
    /// A table line; again or with newlines for more
    #[arg(long)]
    pub table: Vec<String>,
    /// A file with the table (default: standard input)
    #[arg(conflicts_with = "table")]
    pub file: Option<PathBuf>,
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

/// What the command line amounts to.
pub enum Parsed {
    /// A verb to run.
    Run(Box<Cli>),
    /// Text to print on stdout, and be done (`--help`, `--version`).
    Print(String),
    /// Wrong usage: one line.
    Wrong(String),
}

/// Parses the command line.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Parsed {
    let matches = match Cli::command().try_get_matches_from(args) {
        Ok(matches) => matches,
        Err(error) => return answer(&error),
    };
    match Cli::from_arg_matches(&matches) {
        Err(error) => answer(&error),
        Ok(mut cli) => {
            if let (Command::Serve(args), Some(serve)) =
                (&mut cli.command, matches.subcommand_matches("serve"))
            {
                args.remember_order(serve);
            }
            Parsed::Run(Box::new(cli))
        }
    }
}

fn answer(error: &clap::Error) -> Parsed {
    let text = error.render().to_string();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Parsed::Print(text),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            Parsed::Wrong("found no verb, expected one (see cairn --help)".to_owned())
        }
        _ => {
            let line = text.split("\n\n").next().unwrap_or_default();
            let words: Vec<_> = line.split_whitespace().collect();
            let line = words.join(" ");
            Parsed::Wrong(line.strip_prefix("error: ").unwrap_or(&line).to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Cli, Parsed, parse};
    use clap::CommandFactory;

    fn wrong(args: &[&str]) -> String {
        match parse(args.iter().map(Into::into)) {
            Parsed::Wrong(line) => line,
            _ => panic!("expected a refusal"),
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn wrong_usage_is_one_line() {
        for args in [&["cairn"][..], &["cairn", "frob"], &["cairn", "probe"], &["cairn", "-x"]] {
            let line = wrong(args);
            assert!(!line.is_empty() && !line.contains('\n'), "{line:?}");
        }
        assert_eq!(wrong(&["cairn", "frob"]), "unrecognized subcommand 'frob'");
    }
}
