//! [`Env`]: everything nondeterministic that a target may use; an argument of each call.
//!
//! One `Env` is one reactor's world: its clock (read once per loop turn), its random numbers, its
//! tasks and timers, its request slots and buffers, its view of every mapped device, and the
//! mailbox to other reactors. The real and the simulated world implement [`Tasks`] and [`Post`];
//! code above cannot tell which one it runs in. An `Env` never leaves its reactor.

use std::any::Any;
use std::cell::{Cell, OnceCell, Ref, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use event_listener::Event;
use futures_util::future::select;

use crate::buf::{Buf, BufPool, Segs};
use crate::disk::{CopyError, Disk, Limits};
use crate::engine::{self, Work};
use crate::error::IoResult;
use crate::ids::{DeviceId, ReactorId, RequestId, StreamId};
use crate::local::{LocalDevice, Locals, Tables};
use crate::log_limit::LogLimit;
use crate::op::{Flags, Op};
use crate::request::{Client, Completion, Request};
use crate::slots::Slots;
use crate::table::Table;
use crate::throttle::Throttle;
use crate::units::{Sector, SectorCount, SectorRange, Time};

/// Yields for one turn of the reactor: the other tasks run, and new mail and completions are
/// handled.
pub async fn yield_once() {
    let mut yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// A job for another reactor.
pub type Job = Box<dyn FnOnce(&Env) + Send>;

/// A message to a reactor.
pub enum Mail {
    /// The request has ended.
    Complete(RequestId, IoResult),
    /// The request is to be mapped again.
    Remap(RequestId),
    /// The request goes back to its device until the next resume.
    HandBack(RequestId),
    /// Anything else.
    Call(Job),
}

/// The way to every reactor's mailbox, from any thread.
pub trait Post: Send + Sync {
    /// Delivers `mail`; wakes the reactor if it sleeps.
    fn post(&self, to: ReactorId, mail: Mail);

    /// How many reactors there are; their ids count from 0.
    fn reactors(&self) -> u16;

    /// The rate limit of this world's log.
    fn log(&self) -> &LogLimit;

    /// What all background copies of this world pass.
    fn background(&self) -> &Throttle;

    /// The time since 1970-01-01 00:00 UTC: for what is written into formats, not for waiting.
    fn unix_time(&self) -> Duration;
}

/// The executor and timers of one reactor.
pub trait Tasks {
    /// Starts a task on this reactor.
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()>>>);

    /// Wakes `waker` at `at` or soon after; returns a key for [`Tasks::cancel`].
    fn wake_at(&self, at: Time, waker: Waker) -> u64;

    /// Forgets a timer; it may have fired already.
    fn cancel(&self, at: Time, key: u64);
}

/// What a world puts into an [`Env`].
pub struct World {
    /// This reactor's id.
    pub reactor: ReactorId,
    /// Seed of this reactor's random numbers.
    pub seed: u64,
    /// Its executor and timers.
    pub tasks: Rc<dyn Tasks>,
    /// The mailboxes.
    pub post: Arc<dyn Post>,
    /// What this world's disks need of their reactor (a ring); disks downcast it.
    pub mechanism: Rc<dyn Any>,
}

struct Inner {
    world: World,
    now: Cell<Time>,
    rng: RefCell<fastrand::Rng>,
    slots: Slots,
    pool: BufPool,
    zeros: OnceCell<Buf>,
    work: RefCell<VecDeque<Work>>,
    running: Cell<bool>,
    locals: Locals,
    tables: RefCell<Tables>,
    violations: Cell<u64>,
    ending: Cell<bool>,
}

/// One reactor's world. Cloning makes another handle on it.
#[derive(Clone)]
pub struct Env(Rc<Inner>);

impl Env {
    /// The environment of one reactor.
    pub fn new(world: World) -> Env {
        Env(Rc::new(Inner {
            now: Cell::default(),
            rng: RefCell::new(fastrand::Rng::with_seed(world.seed)),
            slots: Slots::new(world.reactor),
            pool: BufPool::default(),
            zeros: OnceCell::new(),
            work: RefCell::default(),
            running: Cell::new(false),
            locals: Locals::default(),
            tables: RefCell::default(),
            violations: Cell::new(0),
            ending: Cell::new(false),
            world,
        }))
    }

    /// This reactor.
    pub fn reactor(&self) -> ReactorId {
        self.0.world.reactor
    }

    /// The time at the start of this turn of the loop.
    pub fn now(&self) -> Time {
        self.0.now.get()
    }

    /// Sets the time; the reactor does this once per turn of its loop.
    pub fn set_now(&self, now: Time) {
        self.0.now.set(now);
    }

    /// A random number below `bound` (which is not zero).
    pub fn random_below(&self, bound: u64) -> u64 {
        self.0.rng.borrow_mut().u64(..bound)
    }

    /// A buffer of at least `bytes` bytes.
    pub fn buf(&self, bytes: usize) -> Buf {
        self.0.pool.alloc(bytes)
    }

    /// Limits the memory that this reactor's free buffers occupy, in bytes.
    pub fn keep_idle_buffers(&self, bytes: usize) {
        self.0.pool.set_keep(bytes);
    }

    /// Segments over a fresh buffer, as long as `count` sectors.
    pub fn segs(&self, count: SectorCount) -> Segs {
        let bytes = usize::try_from(count.to_bytes()).expect("a request fits in memory");
        Segs::of(&self.buf(bytes), 0, bytes)
    }

    /// Segments of zeros, as long as `count` sectors; for writing only. They share one small
    /// buffer however long they are.
    pub fn zeros(&self, count: SectorCount) -> Segs {
        const PIECE_BYTES: usize = 64 << 10;
        let zeros = self.0.zeros.get_or_init(|| {
            let buf = self.buf(PIECE_BYTES);
            buf.write(0, PIECE_BYTES, |bytes| bytes.fill(0));
            buf
        });
        let mut segs = Segs::default();
        let mut left = usize::try_from(count.to_bytes()).expect("a request fits in memory");
        while left > 0 {
            let piece = left.min(PIECE_BYTES);
            segs.push(zeros.clone(), 0, piece);
            left -= piece;
        }
        segs
    }

    /// What this world's disks need of their reactor.
    pub fn mechanism<T: 'static>(&self) -> Option<&T> {
        self.0.world.mechanism.downcast_ref()
    }

    /// The mailboxes, to keep and use from any thread.
    pub fn post(&self) -> &Arc<dyn Post> {
        &self.0.world.post
    }

    /// What background copies pass before they take anything that others need: those that no client
    /// waits for. Each is a write of the bytes that it copies.
    pub fn background(&self) -> &Throttle {
        self.post().background()
    }

    /// Logs a warning, unless there was one of the same key within the last minute: see
    /// [`LogLimit`].
    pub fn warn(&self, key: &str, line: impl FnOnce() -> String) {
        self.post().log().warn(self.now(), key, line);
    }

    /// The time since 1970-01-01 00:00 UTC: for what is written into formats. It may jump; for
    /// waiting and measuring there is [`Env::now`].
    pub fn unix_time(&self) -> Duration {
        self.post().unix_time()
    }

    /// Starts a task on this reactor.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.0.world.tasks.spawn(Box::pin(task));
    }

    /// Completes after `duration`.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        self.sleep_until(self.now() + duration)
    }

    /// Completes at `at`, or at once if it has passed.
    pub fn sleep_until(&self, at: Time) -> Sleep {
        Sleep { env: self.clone(), at, key: None }
    }

    /// Waits until `condition` holds, at most until the time `end`, if there is one. Code that
    /// changes what the condition reads notifies `event`.
    pub async fn until_or_time(
        &self,
        event: &Event,
        end: Option<Time>,
        mut condition: impl FnMut() -> bool,
    ) {
        loop {
            let notified = event.listen();
            if condition() || end.is_some_and(|end| self.now() >= end) {
                return;
            }
            match end {
                Some(end) => drop(select(self.sleep_until(end), notified).await),
                None => notified.await,
            }
        }
    }

    // Requests.

    /// Starts a request of `client` on `disk`. [`Client::complete`] is called exactly once, perhaps
    /// before this returns.
    pub fn start(&self, disk: &Arc<dyn Disk>, io: Io, client: Rc<dyn Client>, cookie: u64) {
        let mut request = self.0.slots.alloc();
        request.op = io.op;
        request.flags = io.flags;
        request.range = io.range;
        request.segs = io.segs;
        request.stream = io.stream;
        request.started = self.now();
        request.flush_copy = 0;
        request.completion = Completion::Client(client, cookie);
        if self.0.running.get() {
            self.push_work(Work::Start(disk.clone(), request));
        } else {
            engine::run(self, Some((disk.as_ref(), request)));
        }
    }

    /// The size and limits of a disk, as a request that this reactor starts now finds them. They
    /// take no lock where the disk is a mapped device that serves.
    pub fn facts_of(&self, disk: &dyn Disk) -> (SectorCount, Limits) {
        let local = disk.mapped().and_then(|device| self.local(device.id()).facts());
        local.unwrap_or_else(|| (disk.sectors(), disk.limits()))
    }

    /// Warms the index entries for a request that begins at `at` and will be started soon
    /// ([`crate::Target::prefetch`]).
    pub fn prefetch(&self, disk: &Arc<dyn Disk>, at: Sector) {
        engine::prefetch(self, disk.as_ref(), at);
    }

    /// Starts a request and returns a future of its result. Dropping the future leaves the
    /// request running: it owns its memory.
    pub fn io(&self, disk: &Arc<dyn Disk>, io: Io) -> IoFuture {
        let cell = Rc::new(IoCell::default());
        self.start(disk, io, cell.clone(), 0);
        IoFuture(cell)
    }

    /// Has the disks copy a range at once and without a buffer ([`Disk::copy_from`]), through
    /// mapped devices that only remap it. `None` if they cannot, if a device is suspended, or if
    /// the copy is not legal: nothing was done, and the caller reads and writes.
    pub fn copy(
        &self,
        (source, from): (&Arc<dyn Disk>, SectorRange),
        (disk, to): (&Arc<dyn Disk>, Sector),
    ) -> Option<Result<(), CopyError>> {
        let tables = &*self.tables();
        let to = SectorRange::new(to, from.count);
        let (source, from) = engine::lowest(self, tables, source.as_ref(), (from, Op::Read))?;
        let (disk, to) = engine::lowest(self, tables, disk.as_ref(), (to, Op::Write))?;
        disk.copy_from(self, source, from, to.start)
    }

    /// Makes durable what completed on `disk`, for the caller's own order of writes: a flush,
    /// unless the disk is not volatile (N1). Failures are known from its failure count alone.
    ///
    /// # Errors
    /// The flush failed.
    pub async fn make_durable(&self, disk: &Arc<dyn Disk>) -> IoResult {
        match disk.nature().volatile {
            true => self.io(disk, Io::flush()).await,
            false => Ok(()),
        }
    }

    /// Ends a queued request. Any reactor may call this, once per request.
    pub fn complete(&self, id: RequestId, result: IoResult) {
        self.mail_or(id, Work::Finish(id, result), Mail::Complete(id, result));
    }

    /// Ends a queued read with these bytes. Any reactor may call this: the read's own one stores
    /// them.
    pub fn complete_read(&self, id: RequestId, bytes: Vec<u8>) {
        let end = move |env: &Env| {
            if let Some(segs) = env.queued_segs(id) {
                segs.copy_in(0, &bytes);
            }
            env.complete(id, Ok(()));
        };
        match id.reactor == self.reactor() {
            true => end(self),
            false => self.post().post(id.reactor, Mail::Call(Box::new(end))),
        }
    }

    /// The data of a request that is queued on this reactor: for its target, which reads or writes
    /// it in other ways than by one remap.
    pub fn queued_segs(&self, id: RequestId) -> Option<Segs> {
        self.slots().parked_segs(id)
    }

    /// Has a queued request mapped again by its target.
    pub fn remap(&self, id: RequestId) {
        self.mail_or(id, Work::Remap(id), Mail::Remap(id));
    }

    /// Gives a queued request back to its mapped device, which parks it until the next resume
    /// (for [`crate::SuspendMode::NoFlush`]).
    pub fn hand_back(&self, id: RequestId) {
        self.mail_or(id, Work::HandBack(id), Mail::HandBack(id));
    }

    fn mail_or(&self, id: RequestId, work: Work, mail: Mail) {
        if id.reactor == self.reactor() {
            self.push_work(work);
        } else {
            self.post().post(id.reactor, mail);
        }
    }

    /// Runs `job` on every reactor (on this one at once).
    pub fn call_everywhere(&self, job: impl Fn(&Env) + Send + Clone + 'static) {
        for reactor in (0..self.post().reactors()).map(ReactorId) {
            if reactor == self.reactor() {
                job(self);
            } else {
                let job = job.clone();
                self.post().post(reactor, Mail::Call(Box::new(move |env| job(env))));
            }
        }
    }

    // For the reactor.

    /// Acts on a message from the mailbox.
    pub fn receive(&self, mail: Mail) {
        match mail {
            Mail::Complete(id, result) => self.push_work(Work::Finish(id, result)),
            Mail::Remap(id) => self.push_work(Work::Remap(id)),
            Mail::HandBack(id) => self.push_work(Work::HandBack(id)),
            Mail::Call(job) => job(self),
        }
    }

    /// Does all work that completions and messages queued. True if there was any.
    pub fn turn(&self) -> bool {
        if self.0.work.borrow().is_empty() {
            return false;
        }
        engine::run(self, None);
        true
    }

    /// Requests that have not ended.
    pub fn requests_in_use(&self) -> usize {
        self.0.slots.in_use()
    }

    /// How many requests have ended.
    pub fn requests_ended(&self) -> u64 {
        self.0.slots.ended()
    }

    /// True once the world is ending: an error may have no other cause.
    pub fn is_ending(&self) -> bool {
        self.0.ending.get()
    }

    pub(crate) fn set_ending(&self) {
        self.0.ending.set(true);
    }

    /// How many requests broke the contract between two layers. Zero in a correct program.
    pub fn contract_violations(&self) -> u64 {
        self.0.violations.get()
    }

    // For the engine.

    pub(crate) fn slots(&self) -> &Slots {
        &self.0.slots
    }

    pub(crate) fn push_work(&self, work: Work) {
        self.0.work.borrow_mut().push_back(work);
    }

    pub(crate) fn pop_work(&self) -> Option<Work> {
        self.0.work.borrow_mut().pop_front()
    }

    pub(crate) fn set_running(&self, running: bool) -> bool {
        self.0.running.replace(running)
    }

    pub(crate) fn count_violation(&self) {
        self.0.violations.set(self.0.violations.get() + 1);
    }

    /// This reactor's view of a mapped device; made (closed) at first use.
    pub(crate) fn local(&self, device: DeviceId) -> &LocalDevice {
        self.0.locals.get(device)
    }

    /// The live tables, for the length of a run of the engine.
    pub(crate) fn tables(&self) -> Ref<'_, Tables> {
        self.0.tables.borrow()
    }

    /// Changes this reactor's table of a device. Must not be called while the engine runs (D4).
    pub(crate) fn swap_table(&self, device: DeviceId, table: Option<Arc<Table>>) {
        let old = self.0.tables.borrow_mut().swap(device, table);
        // Targets are dropped here, with no table borrowed.
        drop(old);
    }
}

/// What to start: an operation on a range with its data.
#[derive(Clone, Debug)]
pub struct Io {
    /// What to do.
    pub op: Op,
    /// Modifiers.
    pub flags: Flags,
    /// Where.
    pub range: SectorRange,
    /// The data of a read or write, as long as the range.
    pub segs: Segs,
    /// The stream that it belongs to.
    pub stream: StreamId,
}

impl Io {
    /// Reads `range` into `segs`.
    pub fn read(range: SectorRange, segs: Segs) -> Io {
        Io::of(Op::Read, range, segs)
    }

    /// Writes `segs` to `range`.
    pub fn write(range: SectorRange, segs: Segs) -> Io {
        Io::of(Op::Write, range, segs)
    }

    /// Flushes the disk.
    pub fn flush() -> Io {
        Io::on(Op::Flush, SectorRange::default())
    }

    /// An operation without data.
    pub fn on(op: Op, range: SectorRange) -> Io {
        Io::of(op, range, Segs::default())
    }

    fn of(op: Op, range: SectorRange, segs: Segs) -> Io {
        Io { op, flags: Flags::empty(), range, segs, stream: StreamId::default() }
    }

    /// Adds flags.
    #[must_use]
    pub fn with(mut self, flags: Flags) -> Io {
        self.flags |= flags;
        self
    }

    /// Makes it part of a stream.
    #[must_use]
    pub fn in_stream(mut self, stream: StreamId) -> Io {
        self.stream = stream;
        self
    }
}

#[derive(Default)]
struct IoCell {
    result: Cell<Option<IoResult>>,
    waker: Cell<Option<Waker>>,
}

impl Client for IoCell {
    fn complete(&self, _env: &Env, _cookie: u64, _request: &mut Request, result: IoResult) {
        self.result.set(Some(result));
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// The result of [`Env::io`].
pub struct IoFuture(Rc<IoCell>);

impl Future for IoFuture {
    type Output = IoResult;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<IoResult> {
        if let Some(result) = self.0.result.get() {
            return Poll::Ready(result);
        }
        self.0.waker.set(Some(cx.waker().clone()));
        Poll::Pending
    }
}

/// Completes at its time; made by [`Env::sleep`].
pub struct Sleep {
    env: Env,
    at: Time,
    key: Option<u64>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(key) = self.key.take() {
            self.env.0.world.tasks.cancel(self.at, key);
        }
        if self.env.now() >= self.at {
            return Poll::Ready(());
        }
        self.key = Some(self.env.0.world.tasks.wake_at(self.at, cx.waker().clone()));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.env.0.world.tasks.cancel(self.at, key);
        }
    }
}
