//! The part of `bench bcache` with a long stream beside hits: how many of the reads of what is
//! cached are still hits while a stream that is many times as long as the cache passes.
//!
//! Extents of 4 KiB fill half of the cache. Clients read them at random places; between these reads
//! the stream goes on by a request of 1 MiB, in a stream of its own, with the default settings. The
//! devices copy nothing: requests are counted, and nothing is timed. A read of the stream is never
//! a hit, so the statistics of the volume tell the hits of the others.

use std::sync::Arc;

use cairn_block::sync::atomic::Ordering;
use cairn_block::{
    ConfigError, ConfigKind, Disk, Env, Io, IoResult, Op, SECTOR_BYTES, Sector, SectorCount,
    SectorRange, StreamId,
};
use cairn_format::bcache::Key;
use cairn_outcome::failure::Outcome;

use super::bcachefixture::{BACKING_FIRST, Backing, Cache, KEY, Remade};
use super::row::{Report, Row, Samples};
use super::settings::Settings;

/// Sectors of a request of the stream.
const LONG: u64 = (1 << 20) / SECTOR_BYTES;
/// The stream is so many times as long as the cache.
const TIMES: u64 = 16;
/// Reads at random places for each request of the stream.
const READS: u64 = 16;

/// What the stream does.
const STREAMS: [(&str, Option<Op>); 3] =
    [("none", None), ("read", Some(Op::Read)), ("write", Some(Op::Write))];

/// Reads with each kind of stream.
///
/// # Errors
/// A set cannot be made, or a request failed.
pub fn run(name: &'static str, settings: &Settings, report: &mut Report) -> Outcome<()> {
    let cache_sectors = settings.pick(512 << 20, 64 << 20) / SECTOR_BYTES;
    let mut alone = Samples::default();
    for (word, op) in STREAMS {
        let hits = Samples(vec![hits(cache_sectors, op)?]);
        let row = Row::new(name, hits.clone(), "% of reads").with("what", "hits beside a stream");
        let row = row.with("stream", word);
        if op.is_none() {
            alone = hits;
            report.push(row);
        } else {
            report.push(row.against(&alone));
        }
    }
    Ok(())
}

/// How many percent of the reads are hits.
fn hits(cache_sectors: u64, stream: Option<Op>) -> Outcome<f64> {
    let cache = Arc::new(Cache::make(cache_sectors)?);
    let (extents, long) = (cache_sectors / 2 / KEY, cache_sectors * TIMES);
    let backing = Arc::new(Backing::make(extents * KEY + long + KEY)?);
    let set = Remade::make(1, cache.clone(), backing)?;
    let key = |n: u64| Key::new(0, BACKING_FIRST + (n + 1) * KEY, KEY);
    let keys: Vec<Key> = (0..extents).map(key).collect();
    let volume = set.serve(&keys)?;
    cache.forgets.store(true, Ordering::Relaxed);
    let (before, disk) = (counted(&volume), volume.clone());
    let done: IoResult = set
        .fixture
        .on(move |env| async move { requests(&env, &disk, extents, long / LONG, stream).await });
    done.map_err(|error| ConfigError::new(ConfigKind::System, "bench", error.to_string()))?;
    let hits = counted(&volume) - before;
    set.end(volume)?;
    Ok(hits as f64 * 100.0 / (long / LONG * READS) as f64)
}

async fn requests(
    env: &Env,
    disk: &Arc<dyn Disk>,
    extents: u64,
    count: u64,
    stream: Option<Op>,
) -> IoResult {
    let rng = &mut fastrand::Rng::with_seed(7);
    let (short, long) = (env.segs(SectorCount(KEY)), env.segs(SectorCount(LONG)));
    let io = |op, start, count, segs| {
        let range = SectorRange::new(Sector(start), SectorCount(count));
        Io { segs, ..Io::on(op, range) }
    };
    for at in 0..count {
        if let Some(op) = stream {
            let request = io(op, extents * KEY + at * LONG, LONG, long.clone());
            env.io(disk, request.in_stream(StreamId(1))).await?;
        }
        for _ in 0..READS {
            env.io(disk, io(Op::Read, rng.u64(..extents) * KEY, KEY, short.clone())).await?;
        }
        cairn_block::yield_once().await;
    }
    Ok(())
}

/// The field `cache_hits` of the status line.
fn counted(volume: &Arc<dyn Disk>) -> u64 {
    let table = volume.mapped().and_then(|volume| volume.live_table()).expect("it is live");
    table.lines()[0].target.report().number("cache_hits").unwrap_or(0)
}
