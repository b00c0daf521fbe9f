//! [`Workload`]: seeded requests from every reactor, with a bounded number in flight, recorded in a
//! [`History`]. They come from one or several [`Connection`]s; each learns of losses as a client of
//! a server does.
//!
//! Ranges follow three patterns, so that caches see overwrites, runs and misses: hot hot_spots,
//! sequential runs, and uniform. Data is stamped; a read's memory is filled with a poison byte
//! first.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use cairn_block::{
    Client, Disk, Env, ErrorKind, FailureCursor, Flags, Io, IoError, IoResult, Op, Request, Sector,
    SectorCount, SectorRange, Segs,
};

use crate::drive::SimDrive;
use crate::history::{ClientId, History, OpTicket};
use crate::world::{SimWorld, Stopped};

const POISON: u8 = 0xa5;

/// How often each operation occurs, relative to the others.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// Reads.
    pub read: u32,
    /// Writes.
    pub write: u32,
    /// Writes with FUA.
    pub fua: u32,
    /// Flushes.
    pub flush: u32,
    /// Write-zeroes, a quarter of them with FUA.
    pub zeroes: u32,
    /// Discards.
    pub discard: u32,
    /// Writes of zeros as data, a quarter of them with FUA.
    pub zero_data: u32,
}

impl Default for Mix {
    fn default() -> Mix {
        Mix { read: 30, write: 50, fua: 5, flush: 8, zeroes: 4, discard: 3, zero_data: 0 }
    }
}

impl Mix {
    /// An operation, and the operation that the history records: data of zeros counts as
    /// write-zeroes.
    fn draw(&self, rng: &mut fastrand::Rng) -> (Op, Op, Flags) {
        let none = Flags::empty();
        let zeroes = if rng.u8(..4) == 0 { Flags::FUA } else { none };
        let kinds = [
            (self.read, Op::Read, Op::Read, none),
            (self.write, Op::Write, Op::Write, none),
            (self.fua, Op::Write, Op::Write, Flags::FUA),
            (self.flush, Op::Flush, Op::Flush, none),
            (self.zeroes, Op::WriteZeroes, Op::WriteZeroes, zeroes),
            (self.discard, Op::Discard, Op::Discard, none),
            (self.zero_data, Op::Write, Op::WriteZeroes, zeroes),
        ];
        let sum: u32 = kinds.iter().map(|kind| kind.0).sum();
        let mut at = rng.u32(..sum);
        for (weight, op, known_as, flags) in kinds {
            if at < weight {
                return (op, known_as, flags);
            }
            at -= weight;
        }
        unreachable!("a number below the sum falls into one of the weights")
    }
}

/// What to do to a disk.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Its own seed.
    pub seed: u64,
    /// How many operations.
    pub ops: u64,
    /// How many are in flight per reactor.
    pub in_flight: u16,
    /// What they are.
    pub mix: Mix,
    /// The shortest range.
    pub min: SectorCount,
    /// The longest range.
    pub max: SectorCount,
    /// The longest pause before an operation.
    pub pause: Duration,
}

impl Workload {
    /// All kinds of operations: 4 in flight per reactor, up to 64 KiB each.
    pub fn mixed(seed: u64, ops: u64) -> Workload {
        let (min, max) = (SectorCount(1), SectorCount(128));
        let (mix, pause) = (Mix::default(), Duration::from_micros(100));
        Workload { seed, ops, in_flight: 4, mix, min, max, pause }
    }

    /// Runs the whole workload, for one client.
    ///
    /// # Errors
    /// The world stopped before the last operation ended.
    pub fn run(
        self,
        world: &SimWorld,
        disk: &Arc<dyn Disk>,
        history: &History,
    ) -> Result<(), Stopped> {
        let running = self.start(world, disk, history);
        world.try_run_until(|| running.is_done())
    }

    /// Starts it for one client; the operations run whenever the world runs.
    pub fn start(self, world: &SimWorld, disk: &Arc<dyn Disk>, history: &History) -> Running {
        let only = Connection::of(ClientId::FIRST, world, disk, history);
        self.start_for(world, vec![only])
    }

    /// Starts it for several clients of one disk, who share the operations.
    ///
    /// # Panics
    /// `clients` is empty.
    pub fn start_for(self, world: &SimWorld, clients: Vec<Connection>) -> Running {
        let disk = &clients[0].disk;
        let size = disk.sectors();
        let block = disk.limits().logical_sectors();
        let mut rng = fastrand::Rng::with_seed(self.seed);
        let hot_spots = std::array::from_fn(|_| rng.u64(..size.0 / block.0) * block.0);
        let workers = u64::from(world.reactors()) * u64::from(self.in_flight);
        let shared = Rc::new(Shared {
            plan: RefCell::new(Plan {
                workload: self,
                rng,
                size,
                block,
                hot_spots,
                cursor: 0,
                run: 0,
            }),
            left: Cell::new(self.ops),
            workers: Cell::new(workers),
        });
        for worker in 0..workers {
            let env = world.env((worker % u64::from(world.reactors())) as u16);
            let client = clients[worker as usize % clients.len()].clone();
            env.spawn(run_worker(env.clone(), shared.clone(), client));
        }
        Running(shared)
    }
}

/// A workload that was started.
pub struct Running(Rc<Shared>);

impl Running {
    /// True if every operation has ended.
    pub fn is_done(&self) -> bool {
        self.0.workers.get() == 0
    }

    /// How many operations have not been started.
    pub fn left(&self) -> u64 {
        self.0.left.get()
    }
}

struct Shared {
    plan: RefCell<Plan>,
    left: Cell<u64>,
    workers: Cell<u64>,
}

/// A client of a disk, with one cursor for all its flushes.
#[derive(Clone)]
pub struct Connection {
    disk: Arc<dyn Disk>,
    history: History,
    id: ClientId,
    /// The losses that the client was told of.
    cursor: Rc<RefCell<FailureCursor>>,
    drives: Rc<[Arc<SimDrive>]>,
}

impl Connection {
    /// Connects to a disk of `world`.
    pub fn new(world: &SimWorld, disk: &Arc<dyn Disk>, history: &History) -> Connection {
        Connection::of(history.connect(), world, disk, history)
    }

    fn of(id: ClientId, world: &SimWorld, disk: &Arc<dyn Disk>, history: &History) -> Connection {
        let cursor = Rc::new(RefCell::new(FailureCursor::new(disk)));
        let drives = world.all_drives().into();
        Connection { disk: disk.clone(), history: history.clone(), id, cursor, drives }
    }

    /// The disk.
    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    /// Records the start of a flush, or of another operation that makes as much durable.
    pub fn begin_flush(&self) -> OpTicket {
        self.submit(Op::Flush, SectorRange::default(), Flags::empty())
    }

    /// Records its end.
    pub fn end_flush(&self, flush: OpTicket, result: IoResult) {
        self.history.complete(flush, self.told(result), &[]);
    }

    /// Flushes the disk.
    pub async fn flush(&self, env: &Env) {
        let flush = self.begin_flush();
        self.run_io(env, Io::flush(), flush).await;
    }

    fn submit(&self, op: Op, range: SectorRange, flags: Flags) -> OpTicket {
        self.history.submit_by(self.id, op, range, flags)
    }

    /// The client's result of a flush to which the disk answered `result`. A loss that the client
    /// is told of counts as injected only if an error was planted; otherwise it is an unexpected
    /// error.
    fn told(&self, result: IoResult) -> IoResult {
        let told = self.cursor.borrow_mut().end_of_flush(&self.disk, result);
        self.cursor.borrow().was_told(&self.disk);
        let planted = self.drives.iter().any(|drive| drive.faults().injected() > 0);
        match told {
            Err(_) if result.is_ok() && planted => Err(IoError::injected(ErrorKind::Io)),
            told => told,
        }
    }
}

/// Where the next operation goes.
struct Plan {
    workload: Workload,
    rng: fastrand::Rng,
    size: SectorCount,
    block: SectorCount,
    hot_spots: [u64; 4],
    cursor: u64,
    run: u64,
}

impl Plan {
    fn range(&mut self) -> SectorRange {
        let (block, blocks) = (self.block.0, self.size.0 / self.block.0);
        let most = (self.workload.max.0 / block).clamp(1, blocks);
        let least = (self.workload.min.0 / block).clamp(1, most);
        let length = match self.rng.u8(..4) {
            0 => least,
            1 => self.rng.u64(least..=most),
            _ => self.rng.u64(least..=most.min(least + 7)),
        };
        let start = match self.rng.u8(..8) {
            0..4 => {
                let spot = self.hot_spots[self.rng.usize(..self.hot_spots.len())] / block;
                spot + self.rng.u64(..16)
            }
            4..6 => self.sequential(length, blocks),
            _ => self.rng.u64(..blocks),
        };
        let start = start.min(blocks - least);
        let length = length.min(blocks - start);
        SectorRange::new(Sector(start * block), SectorCount(length * block))
    }

    /// The next piece of a sequential run. A run ends after some pieces; then another starts
    /// elsewhere.
    fn sequential(&mut self, length: u64, blocks: u64) -> u64 {
        if self.run == 0 || self.cursor + length > blocks {
            self.run = self.rng.u64(4..32);
            self.cursor = self.rng.u64(..blocks);
        }
        let start = self.cursor;
        self.run -= 1;
        self.cursor += length;
        start
    }

    fn pause(&mut self) -> Option<Duration> {
        let most = u64::try_from(self.workload.pause.as_nanos()).unwrap_or(u64::MAX);
        match self.rng.u8(..8) {
            0 => Some(Duration::from_nanos(self.rng.u64(..=most.saturating_mul(50)))),
            1..4 => Some(Duration::from_nanos(self.rng.u64(..=most))),
            _ => None,
        }
    }
}

/// Runs one operation after another until none is left.
async fn run_worker(env: Env, shared: Rc<Shared>, client: Connection) {
    while let Some(left) = shared.left.get().checked_sub(1) {
        shared.left.set(left);
        let pause = shared.plan.borrow_mut().pause();
        if let Some(pause) = pause {
            env.sleep(pause).await;
        }
        let (io, ticket) = make_io(&env, &shared, &client);
        client.run_io(&env, io, ticket).await;
    }
    shared.workers.set(shared.workers.get() - 1);
}

fn make_io(env: &Env, shared: &Shared, client: &Connection) -> (Io, OpTicket) {
    let mut plan = shared.plan.borrow_mut();
    let mix = plan.workload.mix;
    let (op, known_as, flags) = mix.draw(&mut plan.rng);
    let range = if op == Op::Flush { SectorRange::default() } else { plan.range() };
    let ticket = client.submit(known_as, range, flags);
    let segs = if op.has_data() { scattered(env, &mut plan.rng, range) } else { Segs::default() };
    match op {
        Op::Read => segs.for_each_mut(0, segs.bytes(), |bytes| bytes.fill(POISON)),
        Op::Write if known_as == Op::WriteZeroes => segs.zero(0, segs.bytes()),
        Op::Write => segs.copy_in(0, &client.history.data(ticket)),
        Op::Flush | Op::Discard | Op::WriteZeroes => {}
    }
    (Io { segs, ..Io::on(op, range) }.with(flags), ticket)
}

/// Memory for a range, sometimes in two pieces that do not start at a page.
fn scattered(env: &Env, rng: &mut fastrand::Rng, range: SectorRange) -> Segs {
    let bytes = range.to_bytes() as usize;
    if bytes < 1024 || rng.u8(..4) > 0 {
        return env.segs(range.count);
    }
    let first = rng.usize(1..bytes / 512) * 512;
    let mut segs = Segs::of(&env.buf(first + 512), 512, first);
    segs.push(env.buf(bytes - first), 0, bytes - first);
    segs
}

/// Records the end of an operation when the disk completes it.
struct Recorder {
    client: Connection,
    ticket: OpTicket,
    done: Cell<bool>,
    waker: Cell<Option<Waker>>,
}

impl Client for Recorder {
    fn complete(&self, _env: &Env, _cookie: u64, request: &mut Request, result: IoResult) {
        if request.op == Op::Flush {
            self.client.end_flush(self.ticket, result);
        } else {
            let reads = request.op == Op::Read && result.is_ok();
            let data = if reads { request.segs.to_vec() } else { Vec::new() };
            self.client.history.complete(self.ticket, result, &data);
        }
        self.done.set(true);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Connection {
    async fn run_io(&self, env: &Env, io: Io, ticket: OpTicket) {
        let recorder = Rc::new(Recorder {
            client: self.clone(),
            ticket,
            done: Cell::new(false),
            waker: Cell::new(None),
        });
        env.start(&self.disk, io, recorder.clone(), 0);
        poll_fn(|cx| {
            if recorder.done.get() {
                return Poll::Ready(());
            }
            recorder.waker.set(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await;
    }
}
