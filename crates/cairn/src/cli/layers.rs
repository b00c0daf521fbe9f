//! The verbs on snapshots, pools and their volumes: `snap`, `pool`, `thin`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{NameArgs, ReadArgs, ServerArgs};

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
    /// The volume gets the snapshot's content, what was written since is lost; the snapshot goes
    Merge {
        /// What both do
        #[command(flatten)]
        merge: MergeArgs,
        /// Disconnect the clients that use the snapshot
        #[arg(long)]
        force: bool,
    },
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
