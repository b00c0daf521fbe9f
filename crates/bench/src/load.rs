//! [`Job`]: a client that keeps so many requests in flight until all its places are done.
//!
//! The buffers are used in turn, as a real client's queue does: with `depth` of them the data is
//! as cold as there. After `depth` requests the reactor gets its turn, so that what a target does
//! in the background happens inside the timing.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::{Arc, Barrier};
use std::task::{Poll, Waker};

use cairn_block::{
    Client, ConfigError, ConfigKind, Disk, Env, Io, IoError, IoResult, Op, Request, SECTOR_BYTES,
    Sector, SectorCount, SectorRange, Segs,
};
use cairn_outcome::failure::Outcome;

use super::clock::{Moment, Took};
use super::fixture::Fixture;

/// What the buffers of a job hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// Neither zeros nor each other's bytes.
    Random,
    /// Nothing but zeros.
    Zeros,
    /// Zeros up to the last byte, which is none.
    LastByte,
}

/// Requests of one kind and size.
#[derive(Clone)]
pub struct Job {
    /// What to do at each place.
    pub op: Op,
    /// Bytes of each request.
    pub bytes: usize,
    /// First sectors, in order.
    pub places: Arc<[u64]>,
    /// How many are in flight at once, each with its buffer.
    pub depth: usize,
    /// How many may be started before the reactor gets its turn.
    pub turn: usize,
    /// Flush at the end, inside the timing.
    pub flush: bool,
    /// What is written.
    pub data: Data,
    /// Each write of which this says that it is zeros is sent as such.
    pub elide: Option<fn(&Segs) -> bool>,
}

impl Job {
    /// Reads or writes at `places`, 32 at a time.
    pub fn new(op: Op, bytes: usize, places: Arc<[u64]>) -> Job {
        Job {
            op,
            bytes,
            places,
            depth: 32,
            turn: 32,
            flush: false,
            data: Data::Random,
            elide: None,
        }
    }

    /// Flushes at the end, inside the timing.
    #[must_use]
    pub fn flushed(self) -> Job {
        Job { flush: true, ..self }
    }

    /// Gives the reactor its turn this rarely.
    #[must_use]
    pub fn per_turn(self, turn: usize) -> Job {
        Job { turn, ..self }
    }

    /// How many requests.
    pub fn requests(&self) -> usize {
        self.places.len()
    }

    fn range(&self, place: u64) -> SectorRange {
        SectorRange::new(Sector(place), SectorCount::of_bytes(self.bytes as u64))
    }

    /// A buffer for each request in flight.
    pub fn buffers(&self, env: &Env) -> VecDeque<Segs> {
        let mut rng = fastrand::Rng::with_seed(1);
        let fill = |_| {
            let segs = env.segs(SectorCount::of_bytes(self.bytes as u64));
            segs.for_each_mut(0, self.bytes, |bytes| match self.data {
                Data::Random => rng.fill(bytes),
                Data::Zeros | Data::LastByte => bytes.fill(0),
            });
            if self.data == Data::LastByte {
                segs.copy_in(self.bytes - 1, &[1]);
            }
            segs
        };
        (0..self.depth).map(fill).collect()
    }
}

/// Every piece of `bytes` in `span` bytes once, in an order of the seed's choice.
pub fn shuffled(span: u64, bytes: usize, seed: u64) -> Arc<[u64]> {
    let mut places: Vec<u64> = sequential(span, bytes).to_vec();
    fastrand::Rng::with_seed(seed).shuffle(&mut places);
    places.into()
}

/// Every piece of `bytes` in `span` bytes, in order.
pub fn sequential(span: u64, bytes: usize) -> Arc<[u64]> {
    (0..span / bytes as u64).map(|piece| piece * (bytes as u64 / SECTOR_BYTES)).collect()
}

/// `count` pieces of `bytes` anywhere in `span` bytes from `start`, some of them more than once.
pub fn scattered(start: u64, span: u64, bytes: usize, count: usize, seed: u64) -> Arc<[u64]> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let (pieces, sectors) = (span / bytes as u64, bytes as u64 / SECTOR_BYTES);
    (0..count).map(|_| start / SECTOR_BYTES + rng.u64(..pieces) * sectors).collect()
}

/// The client's side.
struct Pump {
    free: RefCell<VecDeque<Segs>>,
    ended: Cell<usize>,
    error: Cell<Option<IoError>>,
    waker: Cell<Option<Waker>>,
}

impl Client for Pump {
    fn complete(&self, _env: &Env, _cookie: u64, request: &mut Request, result: IoResult) {
        let segs = std::mem::take(&mut request.segs);
        if segs.bytes() > 0 {
            self.free.borrow_mut().push_back(segs);
        }
        self.ended.set(self.ended.get() + 1);
        if let Err(error) = result {
            self.error.set(Some(error));
        }
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Pump {
    fn take(&self) -> Option<Segs> {
        self.free.borrow_mut().pop_front()
    }

    /// Lets the reactor turn once, then waits until there is something to do.
    async fn wait(&self, started: usize, total: usize) {
        cairn_block::yield_once().await;
        poll_fn(|context| {
            let may_start = started < total && !self.free.borrow().is_empty();
            if may_start || self.ended.get() == started {
                return Poll::Ready(());
            }
            self.waker.set(Some(context.waker().clone()));
            Poll::Pending
        })
        .await;
    }
}

/// Does a job on a disk.
///
/// # Errors
/// A request failed.
pub fn run(fixture: &Fixture, disk: &Arc<dyn Disk>, job: &Job) -> Outcome<Took> {
    let (disk, name, job) = (disk.clone(), disk.name(), job.clone());
    let took = fixture.on(|env| async move { pump(&env, &disk, &job, &Barrier::new(1)).await });
    took.map_err(|error| failed(name, error))
}

/// Does a job on each reactor of the fixture, all at once. Answers each one's time.
///
/// # Errors
/// A request failed.
pub fn run_each(fixture: &Fixture, disk: &Arc<dyn Disk>, jobs: &[Job]) -> Outcome<Vec<Took>> {
    let (disk, name, start) = (disk.clone(), disk.name(), Arc::new(Barrier::new(jobs.len())));
    let jobs: Arc<[Job]> = jobs.into();
    let took = fixture.on_each(move |index, env| {
        let (disk, jobs, start) = (disk.clone(), jobs.clone(), start.clone());
        async move { pump(&env, &disk, &jobs[usize::from(index)], &start).await }
    });
    let took: Result<Vec<Took>, IoError> = took.into_iter().collect();
    took.map_err(|error| failed(name, error))
}

fn failed(name: String, error: IoError) -> ConfigError {
    ConfigError::new(ConfigKind::System, name, "bench: a request").with_source(error)
}

/// Waits at `start` for the other reactors; blocks its own reactor, which has no other work.
async fn pump(
    env: &Env,
    disk: &Arc<dyn Disk>,
    job: &Job,
    start: &Barrier,
) -> Result<Took, IoError> {
    let pump = Rc::new(Pump {
        free: RefCell::new(job.buffers(env)),
        ended: Cell::new(0),
        error: Cell::new(None),
        waker: Cell::new(None),
    });
    let (mut started, total) = (0, job.requests());
    start.wait();
    let began = Moment::now();
    while pump.ended.get() < total {
        let mut turn = job.turn;
        // As a connection does with requests that arrived together.
        let ready = pump.free.borrow().len().min(turn);
        for &place in job.places[started..].iter().take(ready).skip(1) {
            env.prefetch(disk, Sector(place));
        }
        while turn > 0
            && started < total
            && let Some(segs) = pump.take()
        {
            let range = job.range(job.places[started]);
            let io = if job.elide.is_some_and(|is_zero| is_zero(&segs)) {
                pump.free.borrow_mut().push_back(segs);
                Io::on(Op::WriteZeroes, range)
            } else {
                Io { segs, ..Io::on(job.op, range) }
            };
            env.start(disk, io, pump.clone(), 0);
            started += 1;
            turn -= 1;
        }
        if pump.ended.get() < total {
            pump.wait(started, total).await;
        }
    }
    if job.flush {
        env.io(disk, Io::flush()).await?;
    }
    let took = began.elapsed();
    pump.error.get().map_or(Ok(took), Err)
}
