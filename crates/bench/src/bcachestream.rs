//! The part of `bench bcache` with a long stream beside hits: how many of the reads of what is
//! cached are still hits while a stream that is many times as long as the cache passes.
//!
//! Extents of 4 KiB fill half of the cache. Clients read them at random places; between these reads
//! the stream goes on by a request of 1 MiB, in a stream of its own, with the default settings. The
//! devices copy nothing: requests are counted, and nothing is timed. A read of the stream is never
//! a hit, so the statistics of the volume tell the hits of the others.
//!
//! A stream that bypasses the cache leaves it all hits: 100 %. The last row shows that the figure
//! can fall: with `sequential_cutoff 0` the same reads enter the cache, and 79 % of the others are
//! hits (64 MiB of cache). Two conditions are needed for that, without which it has 100 %, too:
//! - A bucket of hits is read about once while as much passes as the hits take. With 16 times as
//!   many reads the least recently used bucket is always one of the stream.
//! - There is time between the requests. Without it the stream fills the free buckets and no more:
//!   what was read is not cached if no bucket is free at once, and buckets are emptied beside that.

use std::sync::Arc;
use std::time::Duration;

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
const READS: u64 = 1;
/// The time between two requests of the stream.
const PAUSE: Duration = Duration::from_millis(2);

/// What the stream does, and whether it enters the cache.
const STREAMS: [(&str, Option<Op>, bool); 4] = [
    ("none", None, false),
    ("read", Some(Op::Read), false),
    ("write", Some(Op::Write), false),
    ("read, cached", Some(Op::Read), true),
];

/// Reads with each kind of stream.
///
/// # Errors
/// A set cannot be made, or a request failed.
pub fn run(name: &'static str, settings: &Settings, report: &mut Report) -> Outcome<()> {
    let cache_sectors = settings.pick(512 << 20, 64 << 20) / SECTOR_BYTES;
    let mut alone = Samples::default();
    for (word, op, enters) in STREAMS {
        let hits = Samples(vec![hits(cache_sectors, op, enters)?]);
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
fn hits(cache_sectors: u64, stream: Option<Op>, enters: bool) -> Outcome<f64> {
    let cache = Arc::new(Cache::make(cache_sectors)?);
    let (extents, long) = (cache_sectors / 2 / KEY, cache_sectors * TIMES);
    let backing = Arc::new(Backing::make(extents * KEY + long + KEY)?);
    let set = Remade::make(1, cache.clone(), backing)?;
    let key = |n: u64| Key::new(0, BACKING_FIRST + (n + 1) * KEY, KEY);
    let keys: Vec<Key> = (0..extents).map(key).collect();
    let volume = set.serve(&keys)?;
    if enters {
        set.set("sequential_cutoff 0")?;
    }
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
        env.sleep(PAUSE).await;
    }
    Ok(())
}

/// The field `cache_hits` of the status line.
fn counted(volume: &Arc<dyn Disk>) -> u64 {
    let table = volume.mapped().and_then(|volume| volume.live_table()).expect("it is live");
    table.lines()[0].target.report().number("cache_hits").expect("a field of the status line")
}
