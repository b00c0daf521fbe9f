//! The command line: every verb, option and argument, and nothing else. Verbs of a running server
//! are here, but for those on snapshots and pools (`layers`); the tools declare their own arguments.
//!
//! [`parse`] gives a [`Cli`]; no verb acts here.

use std::ffi::OsString;
use std::path::PathBuf;

use cairn_outcome::exit;
use cairn_tools::args::{
    CheckArgs, DevicesArgs, DumpArgs, FormatCommand, RepairArgs, RestoreArgs, RmapArgs,
};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::serve::{RingChoice, ServeArgs};

mod layers;

pub use layers::{
    MergeArgs, PoolCommand, PoolCreateArgs, SnapCommand, SnapCreateArgs, ThinCommand,
};
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
    /// List the kinds of target, or show the table line of one (needs no server)
    Targets(TargetsArgs),
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
    Load {
        /// Which, and the table
        #[command(flatten)]
        table: TableArgs,
        /// The new device beneath snapshots holds the same bytes, as a copy of the old one does
        #[arg(long)]
        same_content: bool,
    },
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
    Create {
        /// Which, and the table
        #[command(flatten)]
        table: TableArgs,
        /// Leave behind what only a cache has, though the table uses its origin: it is lost
        #[arg(long)]
        discard_dirty: bool,
    },
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
    /// Make an empty cache, snapshot store, or pool metadata or data device
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

/// `targets`
#[derive(Args)]
pub struct TargetsArgs {
    /// The kind of target to show: its table line, status and messages
    pub name: Option<String>,
    /// The list of a server
    #[command(flatten)]
    pub list: ListArgs,
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

/// What a swap of tables may do.
#[derive(Args, Clone, Copy)]
pub struct SwapArgs {
    /// Have caches write back first, while clients are served; Ctrl-C leaves the old table
    #[arg(long)]
    pub flush: bool,
    /// Leave behind what only a cache has, though the new table uses its origin: it is lost
    #[arg(long)]
    pub discard_dirty: bool,
    /// Make a volume shorter although clients or other volumes use it
    #[arg(long)]
    pub shrink: bool,
    /// The new device beneath snapshots holds the same bytes, as a copy of the old one does
    #[arg(long)]
    pub same_content: bool,
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

/// Adds which second words there are, to the refusal of one that is none.
fn with_verbs(mut error: clap::Error, args: &[OsString]) -> clap::Error {
    let mut command = &Cli::command();
    for arg in args.iter().skip(1) {
        let Some(next) = command.find_subcommand(arg) else { break };
        command = next;
    }
    if error.kind() == ErrorKind::InvalidSubcommand && command.get_name() != "cairn" {
        let names = command.get_subcommands().map(|verb| verb.get_name().to_owned()).collect();
        error.insert(ContextKind::ValidSubcommand, ContextValue::Strings(names));
    }
    error
}

#[cfg(test)]
mod tests {
    use super::{Cli, parse};
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
        let line =
            "unrecognized subcommand 'blah', expected writecache, snapshot, thin-pool, pool-data";
        assert_eq!(wrong(&["cairn", "format", "blah", "c"]), line);
    }
}
