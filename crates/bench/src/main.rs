//! `cairn-bench NAME`, which `cairn bench NAME` runs: the figures of `docs/benchmarks.md`.
//!
//! A benchmark builds what it measures from the same parts the program is made of, runs it
//! with its baselines in one process, and prints rows:
//!
//! - [`row`]: rows, medians, spread, and whether the machine was quiet enough to compare.
//! - [`sample`]: rounds that interleave the subjects. [`clock`]: processor and wall time.
//! - [`fixture`]: reactors, disks by name, volumes. [`load`]: requests, `depth` at a time.
//!   [`simload`]: the same in virtual time.
//! - [`fio`]: fio as a client. [`gave`]: what a client's requests took, beside others.
//! - [`counting`]: a disk that counts. [`image`]: a cache's metadata, made up.
//! - [`settings`]: how to measure.
//! - one file per benchmark, listed in [`Bench::run`], and files of its parts, which import no
//!   benchmark: a test keeps the imports in one direction.
//!
//! Promises: every ratio is between figures of one run, taken in turns; nothing outside a folder
//! of its own is written. Must never: tune anything for itself.

mod arena;
mod bcache;
mod bcachebursts;
mod bcachedrain;
mod bcachedsync;
mod bcachefixture;
mod bcachegc;
mod bcachehits;
mod bcacheinserts;
mod bcachekernel;
mod bcachelimit;
mod bcachemisses;
mod bcachestream;
mod bcacheworkers;
mod cachefixture;
mod cachesizes;
mod clock;
mod costs;
mod counting;
mod fio;
mod firstbyte;
mod fixture;
mod gave;
mod growth;
mod hydrated;
mod image;
mod imagereads;
mod images;
mod kernel;
mod larger;
mod largercase;
mod layers;
mod load;
mod nbd;
mod peers;
mod rbd;
mod recovery;
mod remote;
mod remotecache;
mod row;
mod sample;
mod settings;
mod sim;
mod simload;
mod slow;
mod snapshot;
mod snapshotfixture;
mod snapshotkernel;
#[cfg(feature = "lock-stats")]
mod snapshotlocks;
mod snapshotpeers;
mod styles;
mod thin;
mod thinbeside;
mod thinfixture;
mod thinkernel;
mod thinmaps;
mod thinpeers;
mod thintools;
mod thinzeros;
mod upgrade;
mod vhost;
mod vhostload;
mod web;
mod writecache;

use std::process::ExitCode;

use cairn_outcome::failure::Outcome;
use cairn_outcome::{exit, program, stderr, stdout};
use clap::{Parser, ValueEnum};
use row::Report;
use settings::Settings;

/// Measure cairn on this machine.
#[derive(Parser)]
#[command(name = "cairn-bench", bin_name = "cairn bench", version, after_help = exit::help())]
struct Cli {
    /// Say more on stderr (twice: everything)
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
    /// The benchmark
    #[arg(value_enum)]
    name: Bench,
    /// Print JSON: an object per row
    #[arg(long)]
    json: bool,
    /// Small and short: only to see that it works
    #[arg(long)]
    quick: bool,
    /// How many rounds (default: 5, or 2 with --quick)
    #[arg(long, value_name = "ROUNDS", value_parser = clap::value_parser!(u16).range(1..))]
    runs: Option<u16>,
    /// Run the same jobs on the kernel's dm-writecache, dm-snapshot, dm-thin or bcache too, in
    /// user-mode Linux
    #[arg(long)]
    kernel: bool,
    /// The script that boots user-mode Linux
    #[arg(long, value_name = "PATH", default_value = "tests/kernel/uml")]
    uml: std::path::PathBuf,
    /// The web server of `images`, a script of python3
    #[arg(long, value_name = "PATH", default_value = "tests/web.py")]
    web: std::path::PathBuf,
    /// The image of `rbd`, of the cluster that CEPH_CONF names. Its content is overwritten
    #[arg(long, value_name = "POOL/IMAGE")]
    rbd: Option<String>,
    /// Part of recovery: open a cache once and print four figures
    #[arg(long, hide = true, num_args = 2)]
    opening: Vec<String>,
}

/// The benchmarks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Bench {
    /// What stacked targets cost, and how fast memory and a cached block are
    Layers,
    /// The write cache, fresh and aged, compared with a raw memory disk
    Writecache,
    /// The part of writecache with working sets larger than the cache
    Larger,
    /// Snapshots under 1 to 8 workers, compared with the raw device and with a single lock
    Snapshot,
    /// Thin pools: zeros, provisioning, sharing, lookups, snapshots, the check of their metadata
    Thin,
    /// The NBD server, compared with others (needs fio; nbdkit and qemu-storage-daemon if found)
    Nbd,
    /// The NBD client beside fio's, and a cache in front of a server (needs fio and nbdkit)
    Remote,
    /// An image of Ceph beside fio's rbd engine (needs --rbd)
    Rbd,
    /// Images of a web server, opened lazily: the first block, and what a clone has hydrated; and
    /// of qemu
    Images,
    /// The vhost-user server, compared with qemu-storage-daemon if found
    VhostUser,
    /// How long clients wait while another process takes the server's place
    Upgrade,
    /// How long a cache takes to open, and how much memory
    Recovery,
    /// How a write cache's index grows: inserts, the longest of them, hits and misses
    Growth,
    /// How long a bcache cache takes to be built, opened, checked and drained, and how much memory
    Bcache,
    /// The part of bcache with writes into the cache, misses, two workers, streams and bursts
    BcacheRequests,
    /// What turns, polls, requests and metadata cost the processor, for experiments in virtual time
    Costs,
    /// What an operation of a simulated drive costs
    Sim,
    /// All of these in turn
    All,
}

impl Bench {
    fn run(self, settings: &Settings) -> Outcome<Report> {
        match self {
            Bench::Layers => layers::run(settings),
            Bench::Writecache => writecache::run(settings),
            Bench::Larger => {
                let mut report = Report::default();
                larger::run(settings, &mut report)?;
                Ok(report)
            }
            Bench::Snapshot => snapshot::run(settings),
            Bench::Thin => thin::run(settings),
            Bench::Nbd => nbd::run(settings),
            Bench::Remote => remote::run(settings),
            Bench::Rbd => rbd::run(settings),
            Bench::Images => images::run(settings),
            Bench::VhostUser => vhost::run(settings),
            Bench::Upgrade => upgrade::run(settings),
            Bench::Recovery => recovery::run(settings),
            Bench::Growth => growth::run(settings),
            Bench::Bcache => bcache::run(settings),
            Bench::BcacheRequests => bcache::requests(settings),
            Bench::Costs => costs::run(settings),
            Bench::Sim => sim::run(settings),
            Bench::All => {
                use Bench::{
                    Bcache, Growth, Images, Layers, Nbd, Rbd, Recovery, Remote, Sim, Snapshot,
                    Thin, Upgrade, VhostUser, Writecache,
                };
                let all = [
                    Layers, Writecache, Snapshot, Thin, Nbd, Remote, Rbd, Images, VhostUser,
                    Upgrade, Recovery, Growth, Bcache, Sim,
                ];
                all.into_iter().try_fold(Report::default(), |mut report, bench| {
                    report.extend(bench.run(settings)?);
                    Ok(report)
                })
            }
        }
    }
}

fn main() -> ExitCode {
    program::run(Cli::try_parse(), |args| {
        let _log = stderr::start_log(stderr::Log::Verb, args.verbose);
        run(&args)
    })
}

fn run(args: &Cli) -> Outcome<u8> {
    if !args.opening.is_empty() {
        return recovery::open_here(&args.opening);
    }
    let runs = args.runs.map_or(if args.quick { 2 } else { 5 }, usize::from);
    let uml = args.kernel.then(|| args.uml.clone());
    let (web, rbd) = (args.web.clone(), args.rbd.clone());
    let report = args.name.run(&Settings { quick: args.quick, runs, uml, web, rbd })?;
    stdout::print(&if args.json { report.json() } else { report.text() })
}
