//! [`Figures`]: the counts and levels of a server at one moment. Counts only rise.

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_block::{Disk, MappedDevice, OPS, Report, Target, Time, Traffic};
use cairn_targets::snapshot::ALLOCATED;
use serde::{Deserialize, Serialize};

use crate::devices::named_in;
use crate::exports::Exports;
use crate::live_pool::{LivePool, METADATA_BLOCK_BYTES};
use crate::report::{self, Info};
use crate::world::World;

/// The figures of a server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// When, by the server's clock that only rises.
    pub time_ns: u64,
    /// The server's process.
    pub pid: u32,
    /// A number of this start of the server, as a process may start again.
    pub server: u64,
    /// Every volume, by name.
    pub volumes: Vec<VolumeFigures>,
    /// Volumes that could not be brought up at the start.
    pub not_served: Vec<String>,
}

/// A volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VolumeFigures {
    /// Its name.
    pub name: String,
    /// `active`, `read-only`, `suspended` or `no table`.
    pub state: String,
    /// The length of its live table.
    pub size_bytes: u64,
    /// Connections of clients to its exports.
    pub clients: u64,
    /// Events so far.
    pub event_nr: u64,
    /// Failures that may have lost acknowledged writes.
    pub losses: u64,
    /// What passed it, by the name of the operation.
    pub ops: BTreeMap<String, OpFigures>,
    /// Its caches together.
    pub cache: Option<CacheFigures>,
    /// What it is as a pool or a snapshot: how full.
    pub fill: Vec<Fill>,
    /// The lines of its live table.
    pub lines: Vec<LineFigures>,
}

/// Requests of one operation that ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpFigures {
    /// How many.
    pub requests: u64,
    /// How much they asked for.
    pub bytes: u64,
    /// How many failed.
    pub errors: u64,
    /// How long they took together.
    pub total_ns: u64,
    /// How many took how long: the buckets of [`cairn_block::quantile`].
    pub buckets: Vec<u64>,
}

/// The caches of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheFigures {
    /// What only the caches have.
    pub dirty_bytes: u64,
    /// How long the oldest of it has been dirty, if a cache keeps that.
    pub oldest_dirty_seconds: Option<u64>,
    /// What writeback has copied to the origins.
    pub written_back_bytes: u64,
    /// Reads that a cache answered, in the unit of its report.
    pub hits: u64,
    /// Reads that it did not answer.
    pub misses: u64,
}

/// How full something is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fill {
    /// `data`, `metadata` of a pool, or `store` of a snapshot; `store at N` for the line at sector
    /// N if it is not the first.
    pub what: String,
    /// How much is used.
    pub used_bytes: u64,
    /// Of how much.
    pub size_bytes: u64,
}

/// A line of a live table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineFigures {
    /// As `table` prints it.
    pub table: String,
    /// As `status` prints it.
    pub status: String,
    /// The devices that it names.
    pub lowers: Vec<String>,
}

/// The figures of now.
pub fn figures(world: &World, exports: &Exports) -> Figures {
    let now = world.now();
    let exported = exports.list(world);
    let volumes = world.traffic().into_iter().map(|(volume, traffic)| {
        let info = report::info(world, exports, &volume);
        let clients = exported.iter().filter(|it| it.volume == info.name).map(|it| it.clients);
        let figures = of_volume(&volume, &info, &traffic.whole, now);
        VolumeFigures { clients: clients.sum(), ..figures }
    });
    let volumes = volumes.collect();
    Figures {
        time_ns: now.0,
        pid: std::process::id(),
        server: world.start_number(),
        volumes,
        not_served: world.not_served(),
    }
}

fn of_volume(
    volume: &Arc<MappedDevice>,
    info: &Info,
    traffic: &Traffic,
    now: Time,
) -> VolumeFigures {
    let table = volume.live_table();
    let targets: Vec<_> = table.iter().flat_map(|table| table.lines()).collect();
    let lines = targets.iter().map(|line| {
        let begin = format!("{} {} {} ", line.start.0, line.len.0, line.name);
        let table = format!("{begin}{}", line.target.table());
        let status = format!("{begin}{}", line.target.status());
        let lowers = named_in(&table);
        LineFigures { table, status, lowers }
    });
    let caches: Vec<_> = (targets.iter())
        .filter(|line| line.target.drains())
        .map(|line| cache_figures(line.target.as_ref(), now))
        .collect();
    VolumeFigures {
        name: info.name.clone(),
        state: info.state().to_owned(),
        size_bytes: info.sectors * 512,
        clients: 0,
        event_nr: info.event_nr,
        losses: volume.failures(),
        ops: OPS.into_iter().map(|op| (op.name().to_owned(), op_figures(traffic, op))).collect(),
        cache: caches.into_iter().reduce(CacheFigures::with),
        fill: fills(volume),
        lines: lines.collect(),
    }
}

fn op_figures(traffic: &Traffic, op: cairn_block::Op) -> OpFigures {
    let of = traffic.of(op);
    OpFigures {
        requests: of.count(),
        bytes: of.sectors.to_bytes(),
        errors: of.failed,
        total_ns: of.nanos,
        buckets: of.buckets().map(|(_, count)| count).collect(),
    }
}

fn cache_figures(target: &dyn Target, now: Time) -> CacheFigures {
    let (dirty, (hits, misses)) = (target.dirty(), reads_of(&target.report()));
    let since = dirty.as_ref().and_then(|dirty| dirty.since);
    CacheFigures {
        dirty_bytes: dirty.map_or(0, |dirty| dirty.sectors.to_bytes()),
        oldest_dirty_seconds: since.map(|since| now.since(since).as_secs()),
        written_back_bytes: target.written_back().to_bytes(),
        hits,
        misses,
    }
}

/// Reads that a cache answered and those it did not, as its report has them.
fn reads_of(report: &Report) -> (u64, u64) {
    let number = |name: &str| report.number(name);
    match (number("reads"), number("read_hits")) {
        (Some(reads), Some(hits)) => (hits, reads.saturating_sub(hits)),
        _ => (number("cache_hits").unwrap_or(0), number("cache_misses").unwrap_or(0)),
    }
}

impl CacheFigures {
    fn with(self, other: CacheFigures) -> CacheFigures {
        let oldest = [self.oldest_dirty_seconds, other.oldest_dirty_seconds];
        CacheFigures {
            dirty_bytes: self.dirty_bytes + other.dirty_bytes,
            oldest_dirty_seconds: oldest.into_iter().flatten().max(),
            written_back_bytes: self.written_back_bytes + other.written_back_bytes,
            hits: self.hits + other.hits,
            misses: self.misses + other.misses,
        }
    }
}

/// How full a pool, or the store of a snapshot, is.
fn fills(volume: &Arc<MappedDevice>) -> Vec<Fill> {
    let fill = |what: &str, used_bytes, size_bytes| {
        let what = what.to_owned();
        Fill { what, used_bytes, size_bytes }
    };
    if let Some(Ok(pool)) = LivePool::in_volume(volume).map(|pool| pool.figures()) {
        let data = |blocks: u64| blocks.saturating_mul(pool.block.to_bytes());
        let metadata = |blocks: u64| blocks * METADATA_BLOCK_BYTES;
        let (of_data, of_metadata) = (pool.data_blocks, pool.metadata_blocks);
        return vec![
            fill("data", data(of_data.0), data(of_data.1)),
            fill("metadata", metadata(of_metadata.0), metadata(of_metadata.1)),
        ];
    }
    let table = volume.live_table();
    let stores = table.iter().flat_map(|table| table.lines()).filter_map(|line| {
        let (used, total) = line.target.report().share(ALLOCATED)?;
        let what = match line.start.0 {
            0 => "store".to_owned(),
            start => format!("store at {start}"),
        };
        Some(fill(&what, used * 512, total * 512))
    });
    stores.collect()
}
