//! The part of `bench bcache` with bursts that bypass the cache, beside clients that wait until
//! each write is durable, on files: how much of their speed the clients keep.
//!
//! The clients are those of `bcachedsync` with FUA and flush, at fresh places in no order; they end
//! when the time is over, and sooner if they have written each place. A burst is written each
//! second: four writes of 1 MiB, without FUA, each as long as the cutoff of sequential streams. The
//! baseline is the same clients without bursts, in the same rounds.
//!
//! With `--quick` a round is shorter than the time between two bursts, so that its figure says
//! nothing: the rounds run, and have no row.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::{
    ConfigError, ConfigKind, Disk, Env, Flags, Io, IoResult, SECTOR_BYTES, Sector, SectorCount,
    SectorRange, StreamId,
};
use cairn_outcome::failure::Outcome;
use futures_util::future::{join, join_all};

use super::bcachedsync::{COUNT, Files};
use super::bcachefixture::{BACKING_FIRST, Remade};
use super::clock::Moment;
use super::load::shuffled;
use super::row::{Report, Row, Samples};
use super::sample::{Subject, interleave};
use super::settings::Settings;

/// Sectors of a write of a burst, how many there are, and how often a burst comes.
const LONG: u64 = (1 << 20) / SECTOR_BYTES;
const BURST: u64 = 4;
const EVERY: Duration = Duration::from_secs(1);
const CLIENTS: [u64; 2] = [1, 4];

/// A load for some time.
#[derive(Clone)]
struct Load {
    clients: u64,
    has_bursts: bool,
    duration: Duration,
    /// Places of the clients' writes; bursts begin behind the span.
    places: Arc<[u64]>,
    span_sectors: u64,
}

/// What the clients of a load have done.
#[derive(Default)]
struct Progress {
    writes: Cell<usize>,
    has_ended: Cell<bool>,
}

impl Load {
    /// Answers durable writes of the clients per second, up to the last client's end: the task of
    /// the bursts may sleep beyond it.
    async fn run(self, env: &Env, disk: &Arc<dyn Disk>) -> Result<f64, cairn_block::IoError> {
        let (progress, began) = (Rc::new(Progress::default()), Moment::now());
        let clients = async {
            let client = |_| self.client(env, disk, &progress, began);
            let results = join_all((0..self.clients).map(client)).await;
            let elapsed = began.elapsed().wall;
            progress.has_ended.set(true);
            results.into_iter().collect::<IoResult>().map(|()| elapsed)
        };
        let (served, burst) = join(clients, self.bursts(env, disk, &progress)).await;
        burst?;
        Ok(progress.writes.get() as f64 / served?.as_secs_f64())
    }

    async fn client(
        &self,
        env: &Env,
        disk: &Arc<dyn Disk>,
        progress: &Progress,
        began: Moment,
    ) -> IoResult {
        let segs = env.segs(SectorCount(COUNT));
        segs.for_each_mut(0, segs.bytes(), |bytes| bytes.fill(7));
        while began.elapsed().wall < self.duration {
            let index = progress.writes.get();
            let Some(&place) = self.places.get(index) else { break };
            progress.writes.set(index + 1);
            let range = SectorRange::new(Sector(place), SectorCount(COUNT));
            env.io(disk, Io::write(range, segs.clone()).with(Flags::FUA)).await?;
            env.io(disk, Io::flush()).await?;
        }
        Ok(())
    }

    async fn bursts(&self, env: &Env, disk: &Arc<dyn Disk>, progress: &Progress) -> IoResult {
        let segs = env.segs(SectorCount(LONG));
        segs.for_each_mut(0, segs.bytes(), |bytes| bytes.fill(9));
        let mut at = self.span_sectors;
        while self.has_bursts && !progress.has_ended.get() {
            for _ in 0..BURST {
                let range = SectorRange::new(Sector(at), SectorCount(LONG));
                let write = Io::write(range, segs.clone()).in_stream(StreamId(1));
                env.io(disk, write).await?;
                at += LONG;
            }
            env.sleep(EVERY).await;
        }
        Ok(())
    }
}

/// Measures as often as the settings say.
///
/// # Errors
/// A file or set cannot be made, or a write failed.
pub fn run(name: &'static str, settings: &Settings, report: &mut Report) -> Outcome<()> {
    let duration = settings.pick(Duration::from_millis(2500), Duration::from_millis(50));
    let files = Files::make()?;
    let span = settings.pick(1 << 30, 8 << 20);
    let (span_sectors, bursts) = (span / SECTOR_BYTES, BURST * LONG * 64);
    let cache = files.open("cache", span_sectors * 2 + (128 << 10), false)?;
    let backing = files.open("backing", BACKING_FIRST + span_sectors + bursts, true)?;
    let set = Remade::make(1, cache, backing)?;
    let places = shuffled(span, (COUNT * SECTOR_BYTES) as usize, 4);
    let load = |clients, has_bursts| {
        let places = places.clone();
        Load { clients, has_bursts, duration, places, span_sectors }
    };
    let measure = |load: Load| {
        let volume = set.serve(&[])?;
        let cutoff = LONG * SECTOR_BYTES;
        set.set(&format!("sequential_cutoff {cutoff}"))?;
        let disk = volume.clone();
        let speed = set.fixture.on(move |env| async move { load.run(&env, &disk).await });
        set.end(volume)?;
        speed.map_err(|error| ConfigError::new(ConfigKind::System, "bench", error.to_string()))
    };
    for clients in CLIENTS {
        let subjects: Vec<Subject<'_, f64>> = vec![
            Box::new(|| measure(load(clients, false))),
            Box::new(|| measure(load(clients, true))),
        ];
        let taken = interleave(settings.runs, subjects)?;
        if settings.quick {
            continue;
        }
        let [alone, beside]: [Samples; 2] = std::array::from_fn(|at| Samples(taken[at].clone()));
        let row = Row::new(name, beside, "1/s").with("what", "durable writes of 32 KiB");
        let row = row.with("beside", "bursts that bypass").with("clients", clients);
        report.push(row.against(&alone));
    }
    Ok(())
}
