//! [`Queue`]: the requests of one client on one reactor, from admission to the end of their
//! replies.
//!
//! The protocol decodes a request, waits for room, admits it, and starts it with a token of its own
//! (whatever it needs to answer). When the disk is done, it takes the token back, and gives the
//! memory back once the client has the reply. The data is pool memory or the client's own memory
//! ([`cairn_block::Buf::foreign`]), which takes no room.
//!
//! Invariants:
//! - Q1. A request, and its memory, counts from its admission until the protocol says that its
//!   reply was sent or dropped. Nothing is admitted while the counts are at their limits or the
//!   budget is spent. Hence a client that does not read its replies holds a bounded amount of
//!   memory.
//! - Q2. A write that entered the gate leaves it exactly once, before its reply is made.
//! - Q3. A client that may write learns of lost writes at its next flush, once. Its failure cursor
//!   is set when the queue is made, before its first request. The loss counts as reported once the
//!   protocol says so.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Context;

use cairn_block::{
    CellGuard, CellMode, Client, Env, ErrorKind, FailureCursor, Io, IoError, IoResult, Limits, Op,
    Passage, Request, SectorCount, SectorRange, SharedTraffic, StreamId, Throttle,
};

use super::budget::Portion;
use super::{First, Level, Phase, SharedDisk, Signal, first};

/// Limit on the requests of one queue that are admitted and not answered.
const REQUESTS_MAX: usize = 128;

/// Limit on the memory of the admitted requests of one queue, in bytes; a single larger request may
/// pass. Beyond what the pool of a reactor keeps, memory would be taken from the system for each
/// request.
const HELD_BYTES_MAX: usize = 16 << 20;

/// Nothing more is taken from the client.
pub(crate) struct Halted;

/// How far the use of a client has been stopped, whether it is paused, and the wake-up of the task
/// that hears it.
pub(crate) struct Intake {
    level: Cell<Level>,
    phase: Cell<Phase>,
    /// There may be room for a request, or the task must stop.
    changed: Signal,
}

impl Default for Intake {
    fn default() -> Intake {
        let (level, phase) = (Cell::new(Level::Serving), Cell::new(Phase::Going));
        Intake { level, phase, changed: Signal::default() }
    }
}

impl Intake {
    pub(crate) fn level(&self) -> Level {
        self.level.get()
    }

    pub(crate) fn is_halted(&self) -> bool {
        self.level.get() > Level::Serving || self.phase.get() != Phase::Going
    }

    /// The phase of the pause, while the client is served.
    pub(crate) fn phase(&self) -> Option<Phase> {
        (self.level.get() == Level::Serving).then(|| self.phase.get())
    }

    /// The phase of the pause has changed.
    pub(crate) fn set_phase(&self, phase: Phase) {
        self.phase.set(phase);
        self.changed.wake();
    }

    /// Waits until `ready` returns a value; calls it at each change. For the task that hears the
    /// client.
    pub(crate) async fn until<T>(&self, ready: impl FnMut() -> Option<T>) -> T {
        self.changed.until(ready).await
    }

    /// Has the task that hears the client look again at each change.
    pub(crate) fn register(&self, cx: &Context<'_>) {
        self.changed.register(cx);
    }

    /// Raises the level; a lower one changes nothing.
    pub(crate) fn raise(&self, level: Level) {
        self.level.set(self.level.get().max(level));
        self.changed.wake();
    }

    async fn halted(&self) {
        self.changed.until(|| self.is_halted().then_some(())).await;
    }
}

/// Memory reserved for a request's payload; returned to the budget unless the request is admitted.
pub(crate) struct Room<'a> {
    portion: &'a Portion,
    bytes: usize,
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.portion.give(self.bytes);
    }
}

/// How a write passed the gate.
enum Pass {
    /// It takes part in no exclusion (not a write, or under a cell held elsewhere).
    Free,
    /// As a loose write: counted at the gate, without a cell.
    Loose,
    /// In a cell, which is released with it.
    Cell { _guard: CellGuard },
}

/// The requests that the disk is working on, by their cookies.
struct Pending<T> {
    slots: Vec<Option<(Pass, T)>>,
    free: Vec<usize>,
}

impl<T> Pending<T> {
    fn insert(&mut self, pending: (Pass, T)) -> u64 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Some(pending);
        slot as u64
    }

    fn remove(&mut self, slot: u64) -> (Pass, T) {
        let slot = slot as usize;
        self.free.push(slot);
        self.slots[slot].take().expect("a disk completes each request once")
    }
}

/// See the module's description. `T` is the protocol's token of a request.
pub(crate) struct Queue<T> {
    pub(crate) env: Env,
    shared: Arc<SharedDisk>,
    /// Names the client's volume in the log.
    label: String,
    stream: StreamId,
    /// What the clients of the export have asked for.
    traffic: Arc<SharedTraffic>,
    failures: RefCell<FailureCursor>,
    pending: RefCell<Pending<T>>,
    requests: Cell<usize>,
    held: Cell<usize>,
    /// What `held`, and the payload being received, take of the budget.
    portion: Portion,
    requires_cells: Cell<bool>,
    intake: Rc<Intake>,
}

impl<T: 'static> Queue<T> {
    /// The queue of a client that has sent nothing yet.
    pub(crate) fn new(
        env: &Env,
        shared: Arc<SharedDisk>,
        traffic: Arc<SharedTraffic>,
        intake: Rc<Intake>,
        label: String,
    ) -> Queue<T> {
        Queue {
            env: env.clone(),
            label,
            stream: shared.front.next_stream(),
            traffic,
            failures: RefCell::new(FailureCursor::new(&shared.disk)),
            pending: RefCell::new(Pending { slots: Vec::new(), free: Vec::new() }),
            requests: Cell::new(0),
            held: Cell::new(0),
            portion: Portion::new(&shared.account),
            requires_cells: Cell::new(false),
            shared,
            intake,
        }
    }

    // Admission.

    /// Room for a request whose payload takes `bytes` of memory, if there is some at once and the
    /// client is not halted. (Q1)
    pub(crate) fn try_room(&self, bytes: usize) -> Option<Room<'_>> {
        let fits = !self.intake.is_halted() && self.fits(bytes) && self.portion.try_take(bytes);
        fits.then_some(Room { portion: &self.portion, bytes })
    }

    /// Waits for it. (Q1)
    pub(crate) async fn room(&self, bytes: usize) -> Result<Room<'_>, Halted> {
        let fits = || match self.intake.is_halted() {
            true => Some(Err(Halted)),
            false => self.fits(bytes).then_some(Ok(())),
        };
        self.intake.changed.until(fits).await?;
        if !self.portion.try_take(bytes) {
            let taken = first(self.portion.take(&self.env, bytes), self.intake.halted()).await;
            if let First::Right(()) = taken {
                return Err(Halted);
            }
        }
        Ok(Room { portion: &self.portion, bytes })
    }

    /// True if the limits of the queue allow one more request.
    fn fits(&self, bytes: usize) -> bool {
        let held = self.held.get();
        let fits = held == 0 || held + bytes <= HELD_BYTES_MAX;
        fits && self.requests.get() < REQUESTS_MAX
    }

    /// Waits until a request passes the throttle of its export. Nothing was taken for it yet: a
    /// client that waits here, or is halted, holds nothing that others need. A request that passed
    /// and is halted afterwards passes once more when it comes again.
    pub(crate) async fn pass(&self, throttle: &Throttle, passage: Passage) -> Result<(), Halted> {
        if self.intake.is_halted() {
            return Err(Halted);
        }
        match first(throttle.pass(&self.env, passage), self.intake.halted()).await {
            First::Left(()) => Ok(()),
            First::Right(()) => Err(Halted),
        }
    }

    /// Admits a request for which there is room; returns what it holds, for [`Queue::release`].
    pub(crate) fn admit(&self, mut room: Room<'_>) -> usize {
        let held = std::mem::take(&mut room.bytes);
        self.requests.set(self.requests.get() + 1);
        self.held.set(self.held.get() + held);
        held
    }

    /// Takes memory for an admitted request that turns out to need some, if there is room at once.
    /// It belongs to what the request holds.
    pub(crate) fn try_more(&self, bytes: usize) -> bool {
        let taken = self.portion.try_take(bytes);
        if taken {
            self.held.set(self.held.get() + bytes);
        }
        taken
    }

    /// The same, as soon as there is room. An admitted request runs to its end: a stop does not
    /// keep it from memory. The caller holds no other memory for it (the budget's B1).
    pub(crate) async fn more(&self, bytes: usize) {
        self.portion.take(&self.env, bytes).await;
        self.held.set(self.held.get() + bytes);
    }

    /// The replies of so many requests, which hold `held` together, were sent or dropped.
    pub(crate) fn release(&self, requests: usize, held: usize) {
        let (requests_before, held_before) = (self.requests.get(), self.held.get());
        self.requests.set(requests_before - requests);
        self.held.set(held_before - held);
        self.portion.give(held);
        // Else no task waits for room, nor for the end of the last request.
        if requests_before == REQUESTS_MAX || held_before > 0 || self.intake.is_halted() {
            self.intake.changed.wake();
        }
    }

    /// True if no reply reaches the client any more. What remains of a long request is not begun.
    pub(crate) fn is_cut(&self) -> bool {
        self.intake.level() >= Level::Cut
    }

    /// True if every admitted request was answered.
    pub(crate) fn is_empty(&self) -> bool {
        self.requests.get() == 0
    }

    // Requests.

    /// Starts an admitted request that writes nothing (or discards: see the gate). `client` is told
    /// of its end, and calls [`Queue::end`].
    pub(crate) fn start(&self, client: Rc<dyn Client>, io: Io, token: T) {
        self.start_past(client, io, (Pass::Free, token));
    }

    fn start_past(&self, client: Rc<dyn Client>, io: Io, pending: (Pass, T)) {
        let cookie = self.pending.borrow_mut().insert(pending);
        self.env.start(&self.shared.disk, io.in_stream(self.stream), client, cookie);
    }

    /// Starts an admitted write of whole blocks: loose, or in a shared cell while a client requires
    /// cells.
    pub(crate) fn start_write(self: &Rc<Self>, client: Rc<dyn Client>, io: Io, token: T) {
        let gate = &self.shared.gate;
        if gate.enter_loose(self.env.reactor()) {
            return self.start_past(client, io, (Pass::Loose, token));
        }
        if let Some(guard) = gate.cells().try_hold(io.range, CellMode::Shared) {
            return self.start_past(client, io, (Pass::Cell { _guard: guard }, token));
        }
        let this = self.clone();
        self.env.spawn(async move {
            let guard = this.shared.gate.cells().hold(io.range, CellMode::Shared).await;
            this.start_past(client, io, (Pass::Cell { _guard: guard }, token));
        });
    }

    /// The unit in which the disk would rather have long requests, as a thin volume its blocks.
    pub(super) fn unit(&self) -> SectorCount {
        let Limits { io_opt, logical_block, .. } = self.shared.disk.limits();
        let is_whole = io_opt > 0 && io_opt.is_multiple_of(logical_block.max(1));
        SectorCount::of_bytes(if is_whole { io_opt } else { logical_block }.into())
    }

    /// True if nothing more is taken from the client for now.
    pub(crate) fn is_halted(&self) -> bool {
        self.intake.is_halted()
    }

    /// Carries out one piece of a long write-zeroes of whole blocks. It passes the gate as a write
    /// from [`Queue::start_write`] does.
    pub(crate) async fn write_piece(&self, io: Io) -> IoResult {
        let gate = &self.shared.gate;
        if gate.enter_loose(self.env.reactor()) {
            let result = self.io(io).await;
            gate.leave_loose(self.env.reactor()); // Q2
            return result;
        }
        let _guard = gate.cells().hold(io.range, CellMode::Shared).await;
        self.io(io).await
    }

    /// Starts a request that no client sent (part of a read-modify-write, a flush after a trim) and
    /// waits for it.
    pub(crate) async fn io(&self, io: Io) -> IoResult {
        let (op, range) = (io.op, io.range);
        let result = self.env.io(&self.shared.disk, io.in_stream(self.stream)).await;
        if let Err(error) = result {
            self.log_failure(op, range, error);
        }
        result
    }

    /// A request has ended: its token, and the result to tell the client.
    pub(crate) fn end(
        &self,
        cookie: u64,
        request: &Request,
        mut result: IoResult,
    ) -> (T, IoResult) {
        if request.op == Op::Flush {
            result = self.failures.borrow_mut().end_of_flush(&self.shared.disk, result); // Q3
        }
        let (pass, token) = self.pending.borrow_mut().remove(cookie);
        // Q2
        if let Pass::Loose = pass {
            self.shared.gate.leave_loose(self.env.reactor());
        }
        drop(pass);
        let (asked, times) =
            ((request.op, request.range.count), (request.started(), self.env.now()));
        self.traffic.count(self.env.reactor(), asked, times, result.is_err());
        if let Err(error) = result {
            self.log_failure(request.op, request.range, error);
        }
        (token, result)
    }

    /// The client was told of nothing that its writes met in an earlier process.
    pub(crate) fn owe(&self) {
        self.failures.borrow_mut().owe();
    }

    /// True if the client's next flush will report a loss.
    pub(crate) fn owes(&self) -> bool {
        self.failures.borrow().is_behind(&self.shared.disk)
    }

    /// The client has been told of the losses that the latest flushes reported. (Q3)
    pub(crate) fn losses_were_told(&self) {
        self.failures.borrow().was_told(&self.shared.disk);
    }

    /// Logs that the volume failed a request, before the client gets the error.
    #[cold]
    fn log_failure(&self, op: Op, range: SectorRange, error: IoError) {
        // An operation that the volume does not support is not a failure of it.
        if matches!(error.kind, ErrorKind::Unsupported | ErrorKind::Shutdown) {
            return;
        }
        let key = format!("{}: {} failed", self.label, op.name());
        self.env.warn(&key, || match op {
            Op::Flush => format!("{key}: {error}"),
            _ => format!("{key}: sector {}, {} sectors: {error}", range.start.0, range.count.0),
        });
    }

    // The gate.

    /// From now until this queue is closed, every write to the disk holds a cell.
    pub(crate) fn require_cells(&self) {
        if !self.requires_cells.replace(true) {
            self.shared.gate.require_cells();
        }
    }

    /// Waits until this queue alone may touch whole blocks. It requires cells.
    pub(super) async fn exclusive(&self, whole: SectorRange) -> CellGuard {
        let gate = &self.shared.gate;
        gate.no_loose_writes().await;
        gate.cells().hold(whole, CellMode::Exclusive).await
    }

    /// The client has gone, and its last request has ended.
    pub(crate) fn close(&self) {
        if self.requires_cells.replace(false) {
            self.shared.gate.stop_requiring_cells();
        }
        self.intake.changed.clear();
    }
}
