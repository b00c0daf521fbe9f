//! Writes to the snapshot that cover chunks without exceptions: nothing is copied.
//!
//! Their chunks are claimed when they are mapped. Writes that arrive within one turn of a reactor
//! are handled together. A task allocates for all of them, so that allocations by other reactors do
//! not come in between. It writes chunks that are adjacent on the COW device in one request, and
//! commits once.

use std::sync::Arc;

use cairn_block::sync::{Mutex, Padded};
use cairn_block::{Env, Flags, Io, IoError, IoResult, RequestId, SectorCount, SectorRange};
use cairn_format::snapshot::Record;
use futures_util::future::join_all;

use super::core::{Core, Failed, wake};
use super::store::{Batch, News};
use super::table::Until;
use cairn_block::TaskGroup;

/// A request to the COW device is not made longer than this by joining.
const JOINED_BYTES: u64 = 1 << 20;

/// A write that covers its chunks; they are claimed.
pub(super) struct Cover {
    pub id: RequestId,
    /// The first chunk.
    pub chunk: u64,
    /// How many.
    pub count: u64,
    /// Zeros are written, and not its data.
    pub zeroes: bool,
    pub flags: Flags,
}

/// The covering writes of one target, gathered per reactor.
pub(super) struct Covering {
    tasks: Arc<TaskGroup>,
    rows: Box<[Padded<Mutex<Vec<Cover>>>]>,
}

impl Covering {
    pub fn new(env: &Env, tasks: Arc<TaskGroup>) -> Arc<Covering> {
        let rows = (0..env.post().reactors()).map(|_| Padded::default()).collect();
        Arc::new(Covering { tasks, rows })
    }

    /// Writes, commits, and completes the request, which is parked.
    pub fn add(self: &Arc<Covering>, env: &Env, core: &Arc<Core>, cover: Cover) {
        let mut covers = self.rows[usize::from(env.reactor().0)].0.lock();
        covers.push(cover);
        let first = covers.len() == 1;
        drop(covers);
        if first {
            let (me, core) = (self.clone(), core.clone());
            self.tasks.spawn(env, async move |env| me.run_jobs(env, &core).await);
        }
    }

    /// Does the jobs of a turn at the same time, the first of them here.
    async fn run_jobs(&self, env: &Env, core: &Arc<Core>) {
        let row = &self.rows[usize::from(env.reactor().0)].0;
        let covers = std::mem::take(&mut *row.lock());
        let most = (JOINED_BYTES / (core.chunk_sectors() * 512)).max(1);
        let mut jobs = split(covers, most).into_iter();
        let first = jobs.next().expect("somebody asked for this turn");
        for covers in jobs {
            let core = core.clone();
            self.tasks.spawn(env, async move |env| run(env, &core, covers).await);
        }
        run(env, core, first).await;
    }
}

/// Cuts covers into jobs of about `most` chunks.
fn split(covers: Vec<Cover>, most: u64) -> Vec<Vec<Cover>> {
    let (mut jobs, mut left) = (Vec::<Vec<Cover>>::new(), 0);
    for cover in covers {
        let count = cover.count;
        match jobs.last_mut() {
            Some(job) if count <= left => job.push(cover),
            _ => {
                left = most;
                jobs.push(vec![cover]);
            }
        }
        left = left.saturating_sub(count);
    }
    jobs
}

async fn run(env: &Env, core: &Arc<Core>, covers: Vec<Cover>) {
    let _in_use = core.enter();
    let claimed: Vec<u64> =
        covers.iter().flat_map(|cover| cover.chunk..cover.chunk + cover.count).collect();
    let batch = core.store.allocate(&claimed, Until::Published);
    core.look_at_fill();
    let got = batch.as_ref().map_or(0, |batch| batch.records.len());
    if got < claimed.len() {
        if !core.overflow() {
            core.invalidate(env, "no space left").await;
        }
        wake(env, core.exceptions.settle(claimed[got..].iter().copied()));
    }
    let mut result = Err(IoError::IO);
    if let Some(batch) = &batch {
        result = keep(env, core, &covers, batch).await;
    }
    let mut left = got as u64;
    for cover in &covers {
        let has_room = left >= cover.count;
        left = left.saturating_sub(cover.count);
        env.complete(cover.id, if has_room { result } else { Err(IoError::IO) });
    }
    if let Some(batch) = &batch {
        core.settle(env, &batch.records).await;
    }
}

/// Writes and commits. Repeats this if the data may be lost: the requests still have it.
async fn keep(env: &Env, core: &Arc<Core>, covers: &[Cover], batch: &Arc<Batch>) -> IoResult {
    loop {
        if let Err(error) = write(env, core, covers, &batch.records).await {
            return core.fail(env, batch, Failed::writing(error)).await;
        }
        batch.set_done();
        match core.commit(env, batch).await {
            News::Ended(result) => return result,
            News::Lost => batch.begin(core.cow().failures()),
        }
    }
}

/// Writes the data of the chunks for which there are COW chunks.
async fn write(
    env: &Env,
    core: &Core,
    covers: &[Cover],
    records: &[Record],
) -> Result<(), IoError> {
    let chunk = SectorCount(core.chunk_sectors());
    let bytes = chunk.to_bytes() as usize;
    let mut ios: Vec<Io> = Vec::new();
    let mut chunks = records.iter();
    for cover in covers {
        let data = match cover.zeroes {
            true => env.zeros(SectorCount(cover.count * chunk.0)),
            false => env.queued_segs(cover.id).expect("it is parked until it is completed here"),
        };
        // The commit's flush makes the data durable, if there is one.
        let flags =
            if core.store.is_persistent() { Flags::empty() } else { cover.flags & Flags::FUA };
        for (at, record) in (0..cover.count as usize).zip(&mut chunks) {
            let to = core.cow_sector(record.new.0);
            match ios.last_mut() {
                Some(io) if io.range.end() == to && io.range.to_bytes() < JOINED_BYTES => {
                    io.range.count += chunk;
                    io.flags |= flags;
                    io.segs.extend(&data, at * bytes, bytes);
                }
                _ => {
                    let range = SectorRange::new(to, chunk);
                    ios.push(Io::write(range, data.slice(at * bytes, bytes)).with(flags));
                }
            }
        }
    }
    let writes: Vec<_> = ios.into_iter().map(|io| env.io(core.cow(), io)).collect();
    join_all(writes).await.into_iter().collect()
}
