//! The command line: every verb, and the options and arguments that only a client needs. The verbs
//! of a running server declare their own parameters, and the tools their own arguments.
//!
//! [`parse`] gives a [`Cli`]; no verb acts here.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use cairn_outcome::exit;
use cairn_tools::args::{
    CheckArgs, DevicesArgs, DumpArgs, FormatCommand, RepairArgs, RestoreArgs, RmapArgs,
};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::serve::{RingChoice, ServeArgs};

use cairn_control::arguments::sectors;
use cairn_control::state::Adopted;
use cairn_control::verbs::cache::{
    CacheAttach, CacheDetach, CacheFlush, CacheGet, CacheList, CacheSet, CacheVolume,
};
use cairn_control::verbs::export::{ExportAdd, ExportList, ExportRemove, ExportThrottle};
use cairn_control::verbs::pool::{PoolCreate, PoolGrow, PoolStatus, PoolTrim};
use cairn_control::verbs::server::{ServerMetrics, ServerUpgrade, TargetList};
use cairn_control::verbs::snap::{
    SnapCreate, SnapDiff, SnapGrow, SnapList, SnapMerge, SnapRemove, SnapRollback,
};
use cairn_control::verbs::state::{StateForget, StateShow};
use cairn_control::verbs::thin::{
    ThinCreate, ThinDiff, ThinList, ThinRemove, ThinRename, ThinRollback, ThinSnapshot,
};
use cairn_control::verbs::verb::Verb;
use cairn_control::verbs::volume::{
    VolumeClear, VolumeCreate, VolumeInfo, VolumeList, VolumeLoad, VolumeMessage, VolumeRemove,
    VolumeRename, VolumeReplace, VolumeResize, VolumeResume, VolumeStatus, VolumeSuspend,
    VolumeTable, VolumeWait,
};

/// The device mapper's storage stack in userspace.
#[derive(Parser)]
#[command(name = "cairn", version, about, after_help = exit::help())]
pub struct Cli {
    /// Say more on stderr (twice: everything)
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// The control socket of the server (default: $CAIRN_CONTROL, then the default of serve)
    #[arg(long, global = true, value_name = "PATH")]
    pub control: Option<PathBuf>,
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
    Status(StatusArgs),
    /// Show the table lines of a volume
    Table(Query<VolumeTable>),
    /// List the volumes
    Ls {
        /// How
        #[command(flatten)]
        list: Listing<VolumeList>,
        /// Show sizes and states (the default on a terminal)
        #[arg(short, long)]
        long: bool,
        /// Show the volumes over their lower devices
        #[arg(long, conflicts_with_all = ["long", "bytes", "json"])]
        tree: bool,
    },
    /// Show the state of volumes
    Info(Query<VolumeInfo>),
    /// List the kinds of target, or show the table line of one (needs no server)
    Targets {
        /// The kind of target to show: its table line, status and messages
        name: Option<String>,
        /// The list of a server
        #[command(flatten)]
        list: Query<TargetList>,
    },
    /// List the exports and where they are served
    Exports(Listing<ExportList>),
    /// Make an export a block device of this machine's kernel, /dev/nbdN (needs root)
    Attach(AttachArgs),
    /// End the block device of an export
    Detach(DetachArgs),
    /// Exports of a running server: add, remove, throttle
    #[command(subcommand)]
    Export(ExportCommand),
    /// Records of tables that verbs changed: show, forget
    #[command(subcommand)]
    State(StateCommand),
    /// Send a message to the target at a sector
    Message(VolumeMessage),
    /// Admit no more requests and finish those in flight
    Suspend {
        /// Which and how
        #[command(flatten)]
        verb: VolumeSuspend,
        /// Accepted for dmsetup's sake: there is no file system to lock here
        #[arg(long)]
        nolockfs: bool,
    },
    /// Load an inactive table; resume makes it live
    #[command(visible_alias = "reload")]
    Load(WithTable<VolumeLoad>),
    /// Make the loaded table live and admit requests
    Resume(VolumeResume),
    /// Make the last line of a volume's table longer or shorter: linear or thin
    Resize(VolumeResize),
    /// Give a volume in use another table; after a failure it keeps the old one
    Replace(WithTable<VolumeReplace>),
    /// Drop the loaded table
    Clear(VolumeClear),
    /// Create a volume, load its table and resume it
    Create(WithTable<VolumeCreate>),
    /// Remove a volume
    Remove(VolumeRemove),
    /// Give a volume that is not in use another name
    Rename(VolumeRename),
    /// Have another program, or a new version, go on with the volumes and clients of a server
    Upgrade(ServerUpgrade),
    /// Show what a server counts, as Prometheus reads it
    Metrics(ServerMetrics),
    /// Wait for an event of a volume
    Wait(VolumeWait),
    /// Follow the events of all volumes, or of some
    Events(EventsArgs),
    /// Show what volumes do: requests, dirty data, writeback, how full pools are
    Top(TopArgs),
    /// Caches of served volumes: list, get, set, flush, attach, detach
    #[command(subcommand)]
    Cache(Box<CacheCommand>),
    /// Snapshots of a volume: create, list, diff, rollback, merge, remove, grow
    #[command(subcommand)]
    Snap(Box<SnapCommand>),
    /// Thin pools: create, status, grow, trim
    #[command(subcommand)]
    Pool(Box<PoolCommand>),
    /// Volumes of thin pools: create, snapshot, list, diff, rollback, remove, rename
    #[command(subcommand)]
    Thin(Box<ThinCommand>),
    /// Let a client that --take-over has fenced use its Ceph cluster again, once its host has
    /// restarted
    Unfence {
        /// An image of the cluster
        #[arg(value_name = "rbd:POOL/IMAGE")]
        device: String,
        /// The address of the client, as the take-over logged it
        address: String,
    },
    /// Remove the dirty marker that a cache has left beside its origin: the data that only that
    /// cache has is given up
    Unmark {
        /// The origin: rbd:POOL/IMAGE, an NBD export with meta=, or a file
        #[arg(value_name = "DEVICE")]
        device: String,
        /// The generation of the marker, as the refusal of the origin shows it
        generation: String,
    },
    /// Show which formats a device has. Exit code 5: a dirty cache
    Probe(DevicesArgs),
    /// Check whether metadata is sound. Exit codes 0, 5, 3, 2
    Check(CheckArgs),
    /// Show the metadata of a device; of a thin pool as XML
    Dump(DumpArgs),
    /// Recover what is readable of a damaged exception store or pool. Exit code 2: data was lost
    Repair(RepairArgs),
    /// Make the metadata of a thin pool from XML
    Restore(RestoreArgs),
    /// Show which volumes of a thin pool map a data block
    Rmap(RmapArgs),
    /// Make an empty cache, snapshot store, pool, bcache device or image of qemu
    #[command(subcommand)]
    Format(FormatCommand),
    /// Write the dirty blocks of a cache back to its origin, offline
    Flush(FlushArgs),
    /// Measure this program on this machine: runs cairn-bench
    #[command(disable_help_flag = true)]
    Bench {
        /// What to measure and how: see cairn bench --help
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<OsString>,
    },
    /// Experiments with simulated drives: runs cairn-lab
    #[command(disable_help_flag = true)]
    Lab {
        /// Which: see cairn lab --help
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<OsString>,
    },
    /// Print the completions of a shell
    Completions {
        /// Which
        shell: clap_complete::Shell,
    },
    /// Write the manual pages to a folder
    Man {
        /// Where
        #[arg(value_name = "DIR")]
        folder: PathBuf,
        /// The date that the pages show
        #[arg(long, value_name = "YYYY-MM-DD")]
        date: Option<String>,
    },
}

/// `status`
#[derive(Args)]
pub struct StatusArgs {
    /// What
    #[command(flatten)]
    pub query: Query<VolumeStatus>,
    /// Print it again and again; with --json one document per line
    #[command(flatten)]
    pub repeat: Repeat,
}

/// How often something is shown.
#[derive(Args)]
pub struct Repeat {
    /// Ask every so many seconds, until Ctrl-C
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub interval: Option<Duration>,
    /// Stop after so many answers
    #[arg(long, value_name = "N", requires = "interval",
        value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
}

/// `events`
#[derive(Args)]
pub struct EventsArgs {
    /// The volumes (default: all, also those that come later)
    pub names: Vec<String>,
    /// Stop after so many events
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Print one JSON document per line
    #[arg(long)]
    pub json: bool,
}

/// `top`
#[derive(Args)]
pub struct TopArgs {
    /// The volumes (default: all)
    pub names: Vec<String>,
    /// How often it asks the server
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "1")]
    pub interval: Duration,
    /// Print so many tables and stop, in place of the screen (the default where stdout is no
    /// terminal: no end)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
}

/// A time between two looks.
fn seconds(text: &str) -> Result<Duration, String> {
    let time = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let is_sane = |time: &Duration| (Duration::from_millis(10)..=MONTH).contains(time);
    time.filter(is_sane).ok_or("expected a number of seconds, at least 0.01".to_owned())
}

const MONTH: Duration = Duration::from_secs(31 * 86_400);

/// How long requests wait for a server that is gone, unless a user says otherwise.
pub const DEAD_SECONDS: u64 = 60;

/// `attach`
#[derive(Args)]
pub struct AttachArgs {
    /// The export
    pub name: String,
    /// Which device (default: one that is free)
    #[arg(long, value_name = "/dev/nbdN")]
    pub device: Option<PathBuf>,
    /// How many connections: requests of several processors go side by side
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=64))]
    pub connections: u16,
    /// How long requests wait for a server that is gone, before they fail
    #[arg(long, value_name = "SECONDS", default_value_t = DEAD_SECONDS)]
    pub dead_timeout: u64,
    /// Stay, connect again whenever a connection is lost, and detach at the end
    #[arg(long)]
    pub stay: bool,
}

/// `detach`
#[derive(Args)]
pub struct DetachArgs {
    /// The export, or its device
    #[arg(value_name = "NAME|/dev/nbdN")]
    pub name: String,
}

/// `export`
#[derive(Subcommand)]
pub enum ExportCommand {
    /// Serve a volume under another name, also after the next start
    Add(ExportAdd),
    /// Stop serving an export, also after the next start
    Remove(ExportRemove),
    /// Limit what the clients of an export may do, also after the next start
    Throttle(ExportThrottle),
}

/// `state`
#[derive(Subcommand)]
pub enum StateCommand {
    /// Show the records of volumes, exports and caches
    Show {
        /// Where
        #[command(flatten)]
        place: StateArgs,
        /// Which and how
        #[command(flatten)]
        query: Query<StateShow>,
    },
    /// Drop the record of a volume that is not served; the next start uses the configuration
    Forget {
        /// Where
        #[command(flatten)]
        place: StateArgs,
        /// Which
        #[command(flatten)]
        verb: StateForget,
    },
}

/// Where records are.
#[derive(Args)]
pub struct StateArgs {
    /// A state file, without a server
    #[arg(long, value_name = "FILE", conflicts_with = "control")]
    pub state: Option<PathBuf>,
}

/// `cache`
#[derive(Subcommand)]
pub enum CacheCommand {
    /// List the caches: their devices, modes, states and dirty data
    List(Listing<CacheList>),
    /// Show the attributes of a cache, or one of them
    Get(Query<CacheGet>),
    /// Change attributes of a cache, or options of its line; clients stay connected
    Set(CacheSet),
    /// Write back what is dirty, while clients use the volume
    Flush(CacheFlush),
    /// Put a cache in front of the device of a volume in use
    Attach(CacheAttach),
    /// Write back what is dirty, and serve the volume without its cache
    Detach {
        /// Which
        #[command(flatten)]
        verb: CacheDetach,
        /// Return when the detach has begun; the server continues it
        #[arg(long)]
        no_wait: bool,
        /// Give up after this many seconds, with the cache in its place; exit code 124
        #[arg(long, value_name = "SECONDS")]
        timeout: Option<f64>,
    },
    /// Make a volume that lies in the cache alone, in the set of a served volume of bcache
    Volume(CacheVolume),
}

/// `snap`
#[derive(Subcommand)]
pub enum SnapCommand {
    /// Make a snapshot of a volume; its clients see a pause
    Create(SnapCreate),
    /// List the snapshots of a volume, or all
    List(Listing<SnapList>),
    /// List the ranges that may differ: of a snapshot and its volume now, or another snapshot
    Diff(Query<SnapDiff>),
    /// Give the volume the content of a snapshot and keep the snapshot; later writes are lost
    Rollback(Merging<SnapRollback>),
    /// Give the volume the content of a snapshot and delete the snapshot; later writes are lost
    Merge(Merging<SnapMerge>),
    /// Delete a snapshot; the volume is unchanged
    Remove(SnapRemove),
    /// Make the store of a snapshot larger
    Grow(SnapGrow),
}

/// `pool`
#[derive(Subcommand)]
pub enum PoolCommand {
    /// Make a pool over a data and a metadata device, or files to make
    Create {
        /// What
        #[command(flatten)]
        verb: PoolCreate,
        /// How
        #[command(flatten)]
        features: Box<FeatureArgs>,
    },
    /// Show how full pools are, and in which mode
    Status(Listing<PoolStatus>),
    /// Make a pool larger: to the given sizes, or to the sizes of its devices
    Grow(PoolGrow),
    /// Discard every free block on the data device; a sparse file gives its space back
    Trim(Query<PoolTrim>),
}

/// `thin`
#[derive(Subcommand)]
pub enum ThinCommand {
    /// Make an empty volume of a pool
    Create(ThinCreate),
    /// Make a snapshot of a volume: another volume that shares all blocks
    Snapshot(ThinSnapshot),
    /// List the volumes of a pool, a volume with its snapshots, or all; with their own bytes
    List(Listing<ThinList>),
    /// List the ranges that may differ: of a snapshot and its volume now, or any two of a pool
    Diff(Query<ThinDiff>),
    /// Give a volume the content of a snapshot and keep the snapshot; later writes are lost
    Rollback(ThinRollback),
    /// Delete a volume or snapshot, or POOL/thin-ID
    Remove(ThinRemove),
    /// Give a volume with its snapshots another name, or POOL/thin-ID a first one
    Rename(ThinRename),
}

/// A verb that shows something.
#[derive(Args)]
pub struct Query<V: Verb> {
    /// What
    #[command(flatten)]
    pub verb: V,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// A verb that lists, with sizes.
#[derive(Args)]
pub struct Listing<V: Verb> {
    /// What
    #[command(flatten)]
    pub query: Query<V>,
    /// Print sizes in bytes
    #[arg(long)]
    pub bytes: bool,
}

/// A verb that takes a table.
#[derive(Args)]
pub struct WithTable<V: Verb> {
    /// Which
    #[command(flatten)]
    pub verb: V,
    /// The table
    #[command(flatten)]
    pub table: TableArgs,
}

/// A table.
#[derive(Args)]
pub struct TableArgs {
    /// A table line; again or with newlines for more
    #[arg(long)]
    pub table: Vec<String>,
    /// A file with the table (default: standard input)
    #[arg(conflicts_with = "table")]
    pub file: Option<PathBuf>,
}

/// A verb that begins a merge.
#[derive(Args)]
pub struct Merging<V: Verb> {
    /// Which
    #[command(flatten)]
    pub verb: V,
    /// Until when
    #[command(flatten)]
    pub until: UntilArgs,
}

/// When the progress display of a merge ends.
#[derive(Args)]
pub struct UntilArgs {
    /// Return when the merge has begun; the server continues it
    #[arg(long)]
    pub no_wait: bool,
    /// Stop the progress display after this many seconds; exit code 124 if the merge continues
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<f64>,
}

/// The features of a pool.
#[derive(Args)]
pub struct FeatureArgs {
    /// How all-zero writes are handled: unmap (the default) or off
    #[arg(long, value_name = "MODE")]
    pub detect_zeroes: Option<String>,
    /// Do not zero new blocks around what is written to them
    #[arg(long)]
    pub skip_block_zeroing: bool,
    /// Take no discards
    #[arg(long)]
    pub ignore_discard: bool,
    /// Free blocks at a discard without discarding on the data device
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
    /// Make the data file longer by SIZE whenever no more blocks than --low-water are free
    /// (without --low-water: when a quarter of SIZE is free)
    #[arg(long, value_name = "SIZE", value_parser = sectors())]
    pub grow: Option<u64>,
    /// Make the data file no longer than this by itself
    #[arg(long, value_name = "SIZE", value_parser = sectors(), requires = "grow")]
    pub grow_max: Option<u64>,
}

/// `flush`
#[derive(Args)]
pub struct FlushArgs {
    /// The table with the cache: START LENGTH writecache ..., or 0 N bcache BACKING CACHE 0
    #[arg(long, required = true)]
    pub table: Vec<String>,
    /// After the drain, detach the backing devices of bcache: they belong to no set any more, and
    /// may be written alone
    #[arg(long)]
    pub detach: bool,
    /// With --detach: give up what only a cache has that is gone, where its set has this UUID
    #[arg(long, value_name = "SET", requires = "detach")]
    pub discard_dirty: Option<String>,
    /// Give up what a killed server has left in the crash log of the cache
    #[arg(long)]
    pub discard_crash_log: bool,
    /// The cache of this origin on another host, or one of before there were dirty markers, is this
    /// one's: the generation as the refusal shows it, or none
    #[arg(long, value_name = "DEVICE=GENERATION", value_parser = Adopted::parse)]
    pub adopt_marker: Vec<Adopted>,
    /// Stop after this many seconds; exit code 124 if work is left
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<f64>,
    /// Which ring
    #[arg(long, value_enum, default_value_t = RingChoice::Auto)]
    pub ring: RingChoice,
}

/// Parses the command line.
///
/// # Errors
/// It is wrong, or asks for help or the version.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let args: Vec<OsString> = args.into_iter().collect();
    let matches = Cli::command().try_get_matches_from(&args);
    let matches = matches.map_err(|error| with_verbs(error, &args))?;
    let mut cli = Cli::from_arg_matches(&matches)?;
    if let (Command::Serve(args), Some(serve)) =
        (&mut cli.command, matches.subcommand_matches("serve"))
    {
        args.remember_order(serve);
    }
    Ok(cli)
}

/// Adds the list of subcommands to the refusal of an unknown one.
fn with_verbs(mut error: clap::Error, args: &[OsString]) -> clap::Error {
    let mut command = &Cli::command();
    for arg in args.iter().skip(1) {
        let Some(next) = command.find_subcommand(arg) else { break };
        command = next;
    }
    let is_mistyped = error.get(ContextKind::SuggestedSubcommand).is_some();
    let is_second = error.kind() == ErrorKind::InvalidSubcommand && command.get_name() != "cairn";
    if is_second && !is_mistyped {
        let names = command.get_subcommands().map(|verb| verb.get_name().to_owned()).collect();
        error.insert(ContextKind::ValidSubcommand, ContextValue::Strings(names));
    }
    error
}

#[cfg(test)]
mod tests {
    use super::{Cli, Command, parse};
    use cairn_outcome::program::usage;
    use clap::CommandFactory;

    fn wrong(args: &[&str]) -> String {
        usage(&parse(args.iter().map(Into::into)).err().expect("a refusal"))
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_control_socket_is_named_before_or_after_the_verb() {
        for args in ["--control c snap list", "snap --control c list", "snap list --control c"] {
            let cli = parse(format!("cairn {args}").split(' ').map(Into::into)).unwrap();
            assert_eq!(cli.control.as_deref(), Some("c".as_ref()), "{args}");
        }
        let cli = parse("cairn --control c serve".split(' ').map(Into::into)).unwrap();
        let Command::Serve(serve) = cli.command else { panic!("expected serve") };
        assert_eq!(serve.control.as_deref(), Some("c".as_ref()));
    }

    #[test]
    fn wrong_usage_is_one_line() {
        for args in [&["cairn"][..], &["cairn", "frob"], &["cairn", "probe"], &["cairn", "-x"]] {
            let line = wrong(args);
            assert!(!line.is_empty() && !line.contains('\n'), "{line:?}");
        }
        assert_eq!(
            wrong(&["cairn", "xyzzy"]),
            "unrecognized subcommand 'xyzzy' (see cairn --help)"
        );
        let line = wrong(&["cairn", "statu"]);
        assert!(line.contains("; did you mean '") && line.contains("'status'"), "{line}");
        let line = wrong(&["cairn", "snap", "creat", "vm@a"]);
        assert!(line.ends_with("; did you mean 'create'?"), "{line}");
        let line =
            "unrecognized subcommand 'blob', expected writecache, snapshot, thin-pool, pool-data";
        assert!(wrong(&["cairn", "format", "blob", "c"]).starts_with(line));
    }
}
