//! [`Load`]: operations that are sent to a volume, so many in flight; and what becomes of them.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use cairn_block::{
    Client, ConfigError, Disk, Env, Flags, Io, IoResult, Op, Request, SectorCount, Segs, Time,
    yield_once,
};
use cairn_outcome::failure::Outcome;

use super::histogram::Histogram;
use crate::workload::Operation;

/// What a client sends, in order. It is over at the end, or after an error.
pub type Operations = Box<dyn Iterator<Item = Outcome<Operation>>>;

/// Operations of more than this have memory of their own.
const SHARED: SectorCount = SectorCount(2048);

/// What the clients of one kind did since the beginning, and how long their last operations took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Operations that ended, flushes among them.
    pub operations: u64,
    /// Of these, those that failed.
    pub failed: u64,
    /// Flushes.
    pub flushes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// How long all operations took together, in nanoseconds.
    pub waited_ns: u64,
    /// When the last one ended, from the beginning.
    pub last_end: Time,
    /// Nanoseconds that half of the operations since the last sample did not exceed; none without
    /// any.
    pub p50_ns: Option<u64>,
    /// The same of 99 %.
    pub p99_ns: Option<u64>,
    /// The same of 99.9 %.
    pub p999_ns: Option<u64>,
}

/// What several loads share: the clients of one line of an experiment.
#[derive(Default)]
pub struct Tally {
    done: Cell<Done>,
    latencies: RefCell<Histogram>,
    /// Latencies since the beginning.
    all: RefCell<Histogram>,
    /// Places for operations that are in use, or will be: a load has as many as its depth.
    under_way: Cell<u64>,
    /// Why no more are sent.
    error: RefCell<Option<ConfigError>>,
    /// A flush follows each write: both are one operation to latencies.
    flush_follows: bool,
}

impl Tally {
    /// Of no operations. If a flush follows each write, latencies are from a write's beginning to
    /// its flush's end.
    pub fn new(flush_follows: bool) -> Tally {
        Tally { flush_follows, ..Tally::default() }
    }

    /// Counts until now. Percentiles begin again.
    pub fn sample(&self) -> Done {
        let mut latencies = self.latencies.borrow_mut();
        let [p50_ns, p99_ns, p999_ns] = [500, 990, 999].map(|share| latencies.per_mille(share));
        latencies.clear();
        Done { p50_ns, p99_ns, p999_ns, ..self.done.get() }
    }

    /// Counts and percentiles of the whole run.
    pub fn whole(&self) -> Done {
        let all = self.all.borrow();
        let [p50_ns, p99_ns, p999_ns] = [500, 990, 999].map(|share| all.per_mille(share));
        Done { p50_ns, p99_ns, p999_ns, ..self.done.get() }
    }

    /// True if nothing is sent any more.
    pub fn is_over(&self) -> bool {
        self.under_way.get() == 0
    }

    /// Why operations could not be had.
    pub fn take_error(&self) -> Option<ConfigError> {
        self.error.take()
    }

    /// An operation took so long, and ended so long after the beginning.
    fn ended(&self, operation: (Op, u64), took: Duration, end: Time, result: IoResult) {
        let (op, bytes) = operation;
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let mut done = self.done.get();
        done.operations += 1;
        // The flush of a write that ended well waits for both.
        let is_part = self.flush_follows && op == Op::Write && result.is_ok();
        if !is_part {
            done.waited_ns = done.waited_ns.saturating_add(nanos);
        }
        done.last_end = done.last_end.max(end);
        match (op, result) {
            (_, Err(_)) => done.failed += 1,
            (Op::Flush, _) => done.flushes += 1,
            (Op::Read, _) => done.read_bytes += bytes,
            _ => done.written_bytes += bytes,
        }
        self.done.set(done);
        if is_part {
            return;
        }
        self.latencies.borrow_mut().add(nanos);
        self.all.borrow_mut().add(nanos);
    }

    /// A place is not used any more.
    fn leave(&self) {
        self.under_way.set(self.under_way.get() - 1);
    }
}

/// A client with so many operations in flight. It ends when the world does, at a time, when it has
/// sent all, or when one failed.
pub struct Load {
    me: Weak<Load>,
    disk: Arc<dyn Disk>,
    operations: RefCell<Operations>,
    /// Data of most operations: no drive keeps it.
    data: Segs,
    began: Time,
    /// It starts no operation before this, nor from the end on.
    active: Range<Time>,
    /// When its last write began, whose flush follows.
    write_began: Cell<Time>,
    tally: Rc<Tally>,
}

impl Load {
    /// Starts `depth` operations on a volume, within a time.
    pub fn start(
        env: &Env,
        disk: Arc<dyn Disk>,
        operations: Operations,
        depth: u32,
        active: Range<Time>,
        tally: Rc<Tally>,
    ) {
        let load = Rc::new_cyclic(|me| Load {
            me: me.clone(),
            disk,
            operations: RefCell::new(operations),
            data: data_of(env, SHARED),
            began: env.now(),
            active,
            write_began: Cell::new(Time(0)),
            tally,
        });
        load.tally.under_way.set(load.tally.under_way.get() + u64::from(depth));
        (0..depth).for_each(|_| load.go_on_later(env));
    }

    /// The same in a turn of the reactor to come.
    fn go_on_later(&self, env: &Env) {
        let (own, me) = (env.clone(), self.me.upgrade().expect("it is running"));
        env.spawn(async move {
            yield_once().await;
            me.go_on(&own);
        });
    }

    fn go_on(&self, env: &Env) {
        match self.next(env) {
            Some((at, operation)) if at <= env.now() => self.send(env, operation),
            Some((at, operation)) => {
                let (own, me) = (env.clone(), self.me.upgrade().expect("it is running"));
                env.spawn(async move {
                    own.sleep_until(at).await;
                    me.send(&own, operation);
                });
            }
            None => self.tally.leave(),
        }
    }

    /// The next operation, and its time; none if there is none before the client stops.
    fn next(&self, env: &Env) -> Option<(Time, Operation)> {
        if env.now() >= self.active.end {
            return None;
        }
        match self.operations.borrow_mut().next()? {
            Ok(operation) => {
                let not_before = Time(self.began.0 + operation.not_before.0);
                let at = (env.now() + operation.think).max(not_before).max(self.active.start);
                (at < self.active.end).then_some((at, operation))
            }
            Err(error) => {
                self.tally.error.borrow_mut().get_or_insert(error);
                None
            }
        }
    }

    fn send(&self, env: &Env, operation: Operation) {
        let Operation { op, range, is_fua, .. } = operation;
        let bytes = if op.has_data() { range.to_bytes() as usize } else { 0 };
        let flags = if is_fua { Flags::FUA } else { Flags::empty() };
        let io = match op {
            Op::Flush => Io::flush(),
            _ if bytes > self.data.bytes() => {
                Io { segs: data_of(env, range.count), ..Io::on(op, range).with(flags) }
            }
            _ => Io { segs: self.data.slice(0, bytes), ..Io::on(op, range).with(flags) },
        };
        let me: Rc<dyn Client> = self.me.upgrade().expect("it is running");
        if op == Op::Write {
            self.write_began.set(env.now());
        }
        env.start(&self.disk, io, me, env.now().0);
    }
}

/// Data without zeros, as a target may look for these.
fn data_of(env: &Env, count: SectorCount) -> Segs {
    let segs = env.segs(count);
    segs.for_each_mut(0, segs.bytes(), |bytes| bytes.fill(0xa5));
    segs
}

impl Client for Load {
    fn complete(&self, env: &Env, began: u64, request: &mut Request, result: IoResult) {
        let operation = (request.op, request.range.to_bytes());
        let end = Time(env.now().0 - self.began.0);
        let from = match self.tally.flush_follows && request.op == Op::Flush {
            true => self.write_began.get(),
            false => Time(began),
        };
        self.tally.ended(operation, env.now().since(from), end, result);
        match result {
            // It would fail for ever, perhaps at once.
            Err(_) => self.tally.leave(),
            // A volume that answers at once must not keep time and other requests from going on.
            Ok(()) if env.now() == Time(began) => self.go_on_later(env),
            Ok(()) => self.go_on(env),
        }
    }
}
