//! The part of `bench bcache` with clients that wait until each write is durable, on files of the
//! disk under the system's folder for temporary files: real flushes.
//!
//! - `shape=fua+flush`: a write with FUA and a flush, as a block device that is opened with
//!   `O_DSYNC` gets them. `shape=write+flush`: `fsync` after each write. `shape=fua`: FUA alone.
//! - `data=fresh`: sectors without dirty data. `data=rewritten`: the same sectors once more, whose
//!   dirty data and keys are durable.
//!
//! The baseline is the same clients on a bare file, in the same rounds. A fresh write is durable
//! when its data, and after that the entry of the journal with its key, are. So the most that one
//! client can get of the bare file is `bound`: the time of a write there, over that and the time of
//! an entry, which is a write of 4 KiB with FUA. Writeback is off.
//!
//! The statistics of the set tell how many entries of the journal and flushes of the cache device
//! there were for each of the fresh durable writes, and how many flushes of the backing device. An
//! entry takes one block here: its keys are those of the clients' last writes.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::sync::Arc;

use cairn_backends::{FileDisk, FileOptions};
use cairn_block::{Disk, Env, Flags, Io, IoResult, SECTOR_BYTES, Sector, SectorCount, SectorRange};
use cairn_outcome::failure::{Outcome, system};
use futures_util::future::join_all;

use super::bcachefixture::{BACKING_FIRST, SET, make_backing, make_cache, number};
use super::clock::Moment;
use super::fixture::Fixture;
use super::row::{Report, Row, Samples};
use super::sample::{Subject, interleave};
use super::settings::Settings;

/// Sectors of a write, and of an entry.
pub const COUNT: u64 = (32 << 10) / SECTOR_BYTES;
const ENTRY: u64 = (4 << 10) / SECTOR_BYTES;
/// Clients of the larger figure.
const CLIENTS: u64 = 4;

/// How a client makes its writes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    FuaAndFlush,
    WriteAndFlush,
    Fua,
}

const SHAPES: [Shape; 3] = [Shape::FuaAndFlush, Shape::WriteAndFlush, Shape::Fua];

impl Shape {
    fn word(self) -> &'static str {
        match self {
            Shape::FuaAndFlush => "fua+flush",
            Shape::WriteAndFlush => "write+flush",
            Shape::Fua => "fua",
        }
    }
}

/// What clients do.
#[derive(Clone, Copy)]
struct Load {
    shape: Shape,
    clients: u64,
    /// Writes of each client, and their sectors.
    writes: u64,
    count: u64,
}

impl Load {
    fn sectors(&self) -> u64 {
        self.clients * self.writes * self.count
    }

    /// Runs it on the sectors from `start` on. Answers durable writes per second.
    fn run(self, fixture: &Fixture, disk: &Arc<dyn Disk>, start: u64) -> Outcome<f64> {
        let disk = disk.clone();
        let (took, results) = fixture.on(move |env| async move {
            let each = self.writes * self.count;
            let client = |index: u64| self.client(&env, &disk, start + index * each);
            let began = Moment::now();
            let results = join_all((0..self.clients).map(client)).await;
            (began.elapsed().wall, results)
        });
        let failed = |error| system("bench", "a durable write", std::io::Error::other(error));
        results.into_iter().collect::<IoResult>().map_err(failed)?;
        Ok((self.clients * self.writes) as f64 / took.as_secs_f64())
    }

    async fn client(&self, env: &Env, disk: &Arc<dyn Disk>, start: u64) -> IoResult {
        let segs = env.segs(SectorCount(self.count));
        segs.for_each_mut(0, segs.bytes(), |bytes| bytes.fill(7));
        for at in 0..self.writes {
            let start = Sector(start + at * self.count);
            let write = Io::write(SectorRange::new(start, SectorCount(self.count)), segs.clone());
            let is_fua = self.shape != Shape::WriteAndFlush;
            let flags = if is_fua { Flags::FUA } else { Flags::empty() };
            env.io(disk, write.with(flags)).await?;
            if self.shape != Shape::Fua {
                env.io(disk, Io::flush()).await?;
            }
        }
        Ok(())
    }
}

/// What the statistics of a set tell at some time.
#[derive(Clone, Copy)]
struct Done {
    /// Blocks of metadata, but for nodes.
    entries: u64,
    cache_flushes: u64,
    backing_flushes: u64,
}

impl Done {
    fn now(volume: &Arc<dyn Disk>) -> Done {
        let volume = volume.mapped().expect("it is a volume");
        let nodes = number(volume, "btree_written");
        Done {
            entries: (number(volume, "metadata_written") - nodes) / ENTRY,
            cache_flushes: number(volume, "cache_flushes"),
            backing_flushes: number(volume, "backing_flushes"),
        }
    }

    /// What was done since, in the same order.
    fn since(self, before: Done) -> [u64; 3] {
        [
            self.entries - before.entries,
            self.cache_flushes - before.cache_flushes,
            self.backing_flushes - before.backing_flushes,
        ]
    }
}

/// A folder that is gone when this is dropped.
pub struct Files(PathBuf);

impl Files {
    /// Makes it on a disk.
    ///
    /// # Errors
    /// The system refused.
    pub fn make() -> Outcome<Files> {
        let parent = std::env::temp_dir();
        let folder = parent.join(format!("cairn-bench-dsync-{}", std::process::id()));
        let failed = |error| system(parent.display().to_string(), "make a folder", error);
        std::fs::create_dir_all(&folder).map_err(failed)?;
        Ok(Files(folder))
    }

    /// A file of so many sectors. All of it is written, unless it is sparse: blocks that never
    /// were cost a commit of the file system's journal.
    ///
    /// # Errors
    /// The system refused.
    pub fn open(&self, name: &str, sectors: u64, is_sparse: bool) -> Outcome<Arc<dyn Disk>> {
        let path = self.0.join(name);
        let shown = path.display().to_string();
        let make = || {
            let file = std::fs::File::create(&path)?;
            file.set_len(sectors * SECTOR_BYTES)?;
            let (piece, bytes) = (vec![0; 1 << 20], sectors * SECTOR_BYTES);
            let pieces = if is_sparse { 0 } else { bytes.div_ceil(1 << 20) };
            for at in 0..pieces {
                let length = (bytes - (at << 20)).min(1 << 20) as usize;
                std::os::unix::fs::FileExt::write_all_at(&file, &piece[..length], at << 20)?;
            }
            file.sync_all()
        };
        make().map_err(|error| system(shown.clone(), "make a file", error))?;
        Ok(Arc::new(FileDisk::open(&shown, false, FileOptions::default())?))
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// Measures as often as the settings say.
///
/// # Errors
/// A file or set cannot be made, or a write failed.
pub fn run(name: &'static str, settings: &Settings, report: &mut Report) -> Outcome<()> {
    let (fixture, files) = (Fixture::make()?, Files::make()?);
    let writes = settings.pick(200, 10);
    let of_clients = |clients| SHAPES.map(|shape| Load { shape, clients, writes, count: COUNT });
    let loads: Vec<Load> = [1, CLIENTS].into_iter().flat_map(of_clients).collect();
    let sectors = loads.iter().map(Load::sectors).sum::<u64>() * (settings.runs as u64 + 1);
    // Dirty data stays below the cutoff.
    let cache = files.open("cache", (sectors * 2).next_multiple_of(1024).max(1 << 20), false)?;
    let backing = files.open("backing", BACKING_FIRST + sectors, true)?;
    let bare = files.open("bare", loads.iter().map(Load::sectors).max().unwrap_or(0), false)?;
    fixture.put("cache", cache.clone());
    fixture.put("backing", backing.clone());
    make_cache(&fixture, &cache, SET, &[])?;
    make_backing(&fixture, &backing, SET)?;
    let volume = fixture.volume("volume", &format!("0 {sectors} bcache backing cache 0"))?;
    let settings_of = ["writeback_running 0", "sequential_cutoff 0", "cutoff_writeback 70"];
    for setting in settings_of {
        fixture.message("volume", &format!("set {setting}"))?;
    }
    let next = Cell::new(0);
    for load in loads {
        measure(name, settings, report, &fixture, [&bare, &volume], load, &next)?;
    }
    fixture.remove("volume")
}

fn measure(
    name: &'static str,
    settings: &Settings,
    report: &mut Report,
    fixture: &Fixture,
    [bare, volume]: [&Arc<dyn Disk>; 2],
    load: Load,
    next: &Cell<u64>,
) -> Outcome<()> {
    let (start, done) = (Cell::new(0), RefCell::new(Vec::new()));
    let fresh = || {
        start.set(next.replace(next.get() + load.sectors()));
        let before = Done::now(volume);
        let speed = load.run(fixture, volume, start.get())?;
        done.borrow_mut().push(Done::now(volume).since(before));
        Ok(speed)
    };
    let entry = Load { shape: Shape::Fua, clients: 1, count: ENTRY, ..load };
    let data = Load { shape: Shape::Fua, clients: 1, ..load };
    let subjects: Vec<Subject<'_, f64>> = vec![
        Box::new(|| load.run(fixture, bare, 0)),
        Box::new(fresh),
        Box::new(|| load.run(fixture, volume, start.get())),
        Box::new(|| data.run(fixture, bare, 0)),
        Box::new(|| entry.run(fixture, bare, 0)),
    ];
    let taken = interleave(settings.runs, subjects)?;
    let [bare, fresh, rewritten, data, entry] =
        std::array::from_fn(|at| Samples(taken[at].clone()));
    let row = |samples: &Samples, unit| {
        let row = Row::new(name, samples.clone(), unit).with("what", "durable writes of 32 KiB");
        row.with("shape", load.shape.word()).with("clients", load.clients)
    };
    let durable = |samples: &Samples, what| row(samples, "1/s").with("data", what).against(&bare);
    report.push(durable(&fresh, "fresh"));
    report.push(durable(&rewritten, "rewritten"));
    // The first round does not count.
    let done = &done.borrow()[1..];
    let each = (load.clients * load.writes) as f64;
    let counted = |at: usize, over: f64| {
        Samples(done.iter().map(|counts| counts[at] as f64 / over).collect())
    };
    report.push(row(&counted(0, each), "entries/write").with("data", "fresh"));
    report.push(row(&counted(1, each), "flushes/write").with("data", "fresh"));
    let of_backing = row(&counted(2, 1.0), "flushes").with("data", "fresh");
    report.push(of_backing.with("of", "backing device"));
    if load.clients == 1 {
        // Rates are the inverse of times.
        let steps = data.zip(&entry, |data, entry| 1.0 / data + 1.0 / entry);
        let bound = steps.zip(&bare, |steps, bare| 1.0 / (steps * bare));
        report.push(row(&bound, "of bare").with("bound", "data, then entry"));
    }
    Ok(())
}
