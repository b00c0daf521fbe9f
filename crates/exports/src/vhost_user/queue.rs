//! [`VirtQueue`]: one ring of a session, on one reactor.
//!
//! Three tasks share it. The taker takes chains, starts their requests, and shows the driver which
//! ones ended at once; the publisher shows it the others, once per turn of the loop; the watcher
//! tells the taker that the ring is stopped. Requests complete here in any order.
//!
//! A taker that finds nothing leaves the driver's notifications off and has the reactor
//! [watch](cairn_reactor::Watch) the ring. Only when the reactor is about to sleep, it asks for a
//! notification, and looks once more.
//!
//! Invariants, beside those of its [queue](crate::front) and of its [ring](super::ring):
//! - Q1. A chain that was taken is used exactly once, unless the driver broke the protocol. Data,
//!   then the status byte, then what says that the chain was used, then what shows this are
//!   written.
//! - Q2. A ring that was stopped has used all that it took. So the place where it goes on says
//!   which chains are left.
//! - Q3. A loss counts as reported once the chain of the flush was published.
//! - Q4. Data that the disk tests, or sends to more than one place, is copied first: the guest may
//!   change it at any time.
//!
//! A driver that breaks the protocol stops its ring alone: no further chain is taken from it until
//! the ring is started again. One that takes memory away ends its session.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use cairn_block::sync::Mutex;
use cairn_block::sync::atomic::{AtomicBool, Ordering};
use cairn_block::{
    BufPool, Client, Direction, Env, ErrorKind, Flags, Io, IoError, IoResult, Op, Passage,
    SECTOR_BYTES, Segs,
};
use cairn_reactor::Driver;

use crate::front::widen::{self, ByteRange};
use crate::front::{First, Intake, Level, Membership, Phase, Queue, Room, Shutdown, Signal, first};

use super::blk::{Command, Request, SERIAL_BYTES, Status};
use super::chain::Chain;
use super::export::{Export, Facts};
use super::memory::{Buffers, Piece};
use super::notifier::Notifier;
use super::ring::AnyRing;
use super::wire::Breach;

/// The most bytes of a request. Drivers send less: so much have all pieces that the configuration
/// space allows.
const DATA_BYTES_MAX: u64 = 32 << 20;

/// So many chains are published while the taker goes on, so that the driver goes on beside it. With
/// fewer, the driver sleeps and is notified more often than the time that it gains is worth.
const BATCH_WHILE_TAKING: usize = 32;

/// What notifies the driver, which may replace it.
pub(super) type Call = Arc<Mutex<Option<Notifier>>>;

/// What a ring is started with.
pub(super) struct Setup {
    pub(super) export: Arc<Export>,
    pub(super) ring: AnyRing,
    pub(super) kick: Notifier,
    pub(super) call: Call,
    /// Tells the driver that the ring has stopped by itself.
    pub(super) error: Call,
    /// Is raised if the driver has taken memory away: its session ends.
    pub(super) broken: Arc<Shutdown>,
    /// Each write is durable when it ends.
    pub(super) write_through: Arc<AtomicBool>,
    /// The driver was not told of a loss.
    pub(super) owes: bool,
    /// Counts the ring among what a pause waits for.
    pub(super) counted: Membership,
}

/// How a ring ended.
#[derive(Clone, Copy, Default)]
pub(super) struct Ended {
    /// Where the ring goes on.
    pub(super) base: u32,
    /// The driver was not told of a loss.
    pub(super) owes: bool,
    /// It stopped by itself: the driver broke the protocol.
    pub(super) has_failed: bool,
}

/// A request that was taken and has to wait for the throttle. Nothing but its ring waits with it:
/// the room is that of a request without memory.
struct Late<'a> {
    room: Room<'a>,
    request: Request,
    passage: Passage,
}

/// A request that the disk is working on.
struct Ticket {
    head: u16,
    /// How many bytes are written if it succeeds, the status byte included.
    written: u32,
    status: Piece,
    held: usize,
    /// What follows a read of whole blocks. Few requests have one, and all tickets are moved.
    copy: Option<Box<Copied>>,
}

/// A read of whole blocks, and the memory that gets the bytes behind the lead.
struct Copied {
    blocks: Segs,
    lead: usize,
    data: Segs,
}

/// Chains that were used and not published.
#[derive(Default)]
struct Batch {
    used: Vec<(u16, u32)>,
    held: usize,
    reports_loss: bool,
}

/// See the module's description.
pub(super) struct VirtQueue {
    queue: Rc<Queue<Ticket>>,
    export: Arc<Export>,
    memory: Buffers,
    broken: Arc<Shutdown>,
    ring: RefCell<AnyRing>,
    driver: Rc<Driver>,
    call: Call,
    write_through: Arc<AtomicBool>,
    intake: Rc<Intake>,
    batch: RefCell<Batch>,
    taking: Cell<bool>,
    /// The taker starts a request; it publishes what ends by that.
    starting: Cell<bool>,
    has_failed: Cell<bool>,
    publisher: Signal,
    /// How it ended, once it has left.
    ended: Arc<Mutex<Ended>>,
    members: RefCell<Option<[Membership; 2]>>,
}

/// Starts a ring on the reactor of `env`. `stop` ends it; its last user leaves when it has ended,
/// and `ended` says how.
pub(super) fn start(
    env: &Env,
    setup: Setup,
    memory: Buffers,
    (stop, member): (Arc<Shutdown>, Membership),
    ended: Arc<Mutex<Ended>>,
) {
    let Setup { export, ring, kick, call, error, broken, write_through, owes, counted } = setup;
    let intake = Rc::<Intake>::default();
    // Before the first request.
    intake.set_phase(export.pauses.rings.pause.phase());
    let label = format!("export '{}'", export.name);
    let (shared, traffic) = (export.shared.clone(), export.traffic.clone());
    let queue = Queue::new(env, shared, traffic, intake.clone(), label);
    if owes {
        queue.owe();
    }
    let vq = Rc::new(VirtQueue {
        queue: Rc::new(queue),
        memory,
        broken,
        export,
        ring: RefCell::new(ring),
        driver: Driver::of(env).clone(),
        call,
        write_through,
        intake: intake.clone(),
        batch: RefCell::default(),
        taking: Cell::new(true),
        starting: Cell::new(false),
        has_failed: Cell::new(false),
        publisher: Signal::default(),
        ended,
        members: RefCell::new(Some([member, counted])),
    });
    // A server that died may have published without a notification.
    notify(&vq.call);
    env.spawn(watch(vq.export.clone(), stop, intake));
    let publishing = vq.clone();
    env.spawn(async move { publishing.publish_all().await });
    env.spawn(async move {
        if let Err(breach) = vq.take_all(&kick).await {
            let key = format!("export '{}': a ring has stopped", vq.export.name);
            vq.has_failed.set(true);
            vq.queue.env.warn(&key, || format!("{key}: {breach}"));
            notify(&error);
            vq.look_at_memory();
        }
        vq.taking.set(false);
        vq.publisher.wake();
    });
}

/// Passes the phases of the server's pause on to the ring, until that is stopped.
async fn watch(export: Arc<Export>, stop: Arc<Shutdown>, intake: Rc<Intake>) {
    let mut phase = intake.phase();
    loop {
        // A session that waits for something else does not keep a ring from its end.
        let stopped = first(stop.above(Level::Serving), export.shutdown.above(Level::Serving));
        match first(stopped, export.pauses.rings.pause.phase_that(|now| Some(now) != phase)).await {
            First::Left(_) => return intake.raise(Level::Draining),
            First::Right(next) => {
                phase = Some(next);
                intake.set_phase(next);
            }
        }
    }
}

/// Notifies the driver, if it gave a descriptor for that.
pub(super) fn notify(call: &Call) {
    let call = call.lock().clone();
    if let Some(call) = call {
        call.notify();
    }
}

impl VirtQueue {
    /// Takes chains until the ring is stopped.
    async fn take_all(self: &Rc<Self>, kick: &Notifier) -> Result<(), Breach> {
        let (mut kicks, mut chain) = (true, Chain::default());
        let this = self.clone();
        let watch = self.driver.watch(move || this.ring.borrow().has_next());
        loop {
            while self.ring.borrow().has_next() {
                let Some(room) = self.room().await else { break };
                if let Some(late) = self.take(room, &mut chain)? {
                    self.publish();
                    self.admit_late(&chain, late).await;
                }
                if self.batch.borrow().used.len() >= BATCH_WHILE_TAKING {
                    self.publish();
                }
            }
            self.publish();
            if self.intake.is_halted() {
                match self.goes_on_after_pause().await {
                    true => continue,
                    false => return Ok(()),
                }
            }
            self.look_at_memory();
            let halted = self.intake.until(|| self.intake.is_halted().then_some(()));
            // Kicks stay off as long as the reactor looks by itself.
            if !matches!(first(halted, watch.ready()).await, First::Right(false)) {
                continue;
            }
            if self.ring.borrow_mut().ask_for_kick() {
                self.ring.borrow_mut().refuse_kicks();
                continue;
            }
            let halted = self.intake.until(|| self.intake.is_halted().then_some(()));
            if !kicks {
                halted.await;
                continue;
            }
            if let First::Right(events) = first(halted, self.driver.readable(&kick.end)).await {
                kicks = events > 0 && kick.take();
                self.ring.borrow_mut().refuse_kicks();
            }
        }
    }

    /// Nothing more is taken. If that is for a pause, waits for its end once all that was taken was
    /// published. True if the ring goes on here.
    async fn goes_on_after_pause(&self) -> bool {
        let is_pausing = || self.intake.phase() == Some(Phase::Pausing);
        self.intake.until(|| (self.queue.is_empty() || !is_pausing()).then_some(())).await;
        let _waiting = is_pausing().then(|| self.export.pauses.rings.pause.wait());
        self.intake.until(|| (!is_pausing()).then_some(())).await;
        self.intake.phase() == Some(Phase::Going)
    }

    /// Room for the next request; none if nothing more is taken.
    async fn room(&self) -> Option<Room<'_>> {
        if let Some(room) = self.queue.try_room(0) {
            return Some(room);
        }
        // The room may be that of requests which have ended.
        self.publish();
        self.queue.room(0).await.ok()
    }

    /// Takes the next chain and starts its request, or returns it if it has to wait for the
    /// throttle.
    fn take<'a>(
        self: &Rc<Self>,
        room: Room<'a>,
        chain: &mut Chain,
    ) -> Result<Option<Late<'a>>, Breach> {
        if !self.ring.borrow_mut().take(&self.memory, chain)? {
            return Ok(None);
        }
        let request = Request::decode(chain, &self.memory)?;
        let throttle = &self.export.throttle;
        if throttle.is_on()
            && let Some(passage) = self.passage_of(&request)
            && !throttle.try_pass(self.queue.env.now(), passage)
        {
            return Ok(Some(Late { room, request, passage }));
        }
        self.admit(room, chain, request);
        Ok(None)
    }

    /// Starts the request of a chain that was taken when it has passed the throttle. If the ring is
    /// stopped, at once: it uses all that it took (Q2).
    async fn admit_late(self: &Rc<Self>, chain: &Chain, late: Late<'_>) {
        let Late { room, request, passage } = late;
        let throttle = &self.export.throttle;
        if self.queue.pass(throttle, passage).await.is_err() {
            throttle.charge(self.queue.env.now(), passage);
        }
        self.admit(room, chain, request);
    }

    fn admit(self: &Rc<Self>, room: Room<'_>, chain: &Chain, request: Request) {
        let (head, status) = (chain.head, request.status);
        let ticket = Ticket { head, written: 1, status, held: self.queue.admit(room), copy: None };
        self.starting.set(true);
        self.serve(chain, request, ticket);
        self.starting.set(false);
    }

    fn serve(self: &Rc<Self>, chain: &Chain, request: Request, mut ticket: Ticket) {
        let facts = self.export.facts(&self.queue.env);
        let changes =
            matches!(request.command, Command::Write | Command::Discard | Command::WriteZeroes);
        if changes && facts.is_read_only {
            return self.answer(ticket, Status::Failed);
        }
        match request.command {
            Command::Read | Command::Write => {
                let Some(range) = data_range(&facts, &request) else {
                    return self.answer(ticket, status_of_nothing(&request));
                };
                let data = request.data(chain, &self.memory);
                if request.command == Command::Write {
                    return self.write(&facts, range, data, ticket);
                }
                ticket.written += range.length as u32;
                self.read(&facts, range, data, ticket);
            }
            // A client that may only read wrote nothing.
            Command::Flush if facts.is_read_only => self.answer(ticket, Status::Done),
            Command::Flush => self.start(Io::flush(), ticket),
            Command::Discard | Command::WriteZeroes => {
                self.change_range(&facts, &request, ticket);
            }
            Command::Identify => {
                let serial = self.export.serial();
                let bytes = request.bytes.min(SERIAL_BYTES as u64) as usize;
                request.data(chain, &self.memory).copy_in(0, &serial[..bytes]);
                ticket.written += bytes as u32;
                self.answer(ticket, Status::Done);
            }
            Command::Unknown => self.answer(ticket, Status::Unsupported),
        }
    }

    /// What the limits of the export count. A discard moves no data, and neither does what will be
    /// refused; a flush waits for no limit.
    fn passage_of(&self, request: &Request) -> Option<Passage> {
        let facts = self.export.facts(&self.queue.env);
        let data = || data_range(&facts, request);
        let named = || request.range.ok().and_then(|it| inside(&facts, it.offset, it.bytes.into()));
        let (direction, range) = match request.command {
            Command::Read => (Direction::Read, data()),
            Command::Write => (Direction::Write, data()),
            Command::WriteZeroes => (Direction::Write, named()),
            Command::Discard => (Direction::Write, None),
            Command::Flush | Command::Identify | Command::Unknown => return None,
        };
        let moves = direction == Direction::Read || !facts.is_read_only;
        let bytes = range.filter(|_| moves).map_or(0, |range| range.length);
        Some(Passage { direction, bytes })
    }

    fn read(self: &Rc<Self>, facts: &Facts, range: ByteRange, data: Segs, ticket: Ticket) {
        let whole = widen::outer(range, facts.block_bytes);
        if whole.to_bytes() == range.length {
            return self.start(Io::read(whole, data), ticket);
        }
        let lead = (range.offset - whole.start.to_bytes()) as usize;
        self.with_room(whole.to_bytes() as usize, ticket, move |this, blocks, mut ticket| {
            ticket.copy = Some(Box::new(Copied { blocks: blocks.clone(), lead, data }));
            this.start(Io::read(whole, blocks), ticket);
        });
    }

    fn write(self: &Rc<Self>, facts: &Facts, range: ByteRange, data: Segs, ticket: Ticket) {
        let block_bytes = facts.block_bytes;
        let whole = widen::outer(range, block_bytes);
        let is_whole = whole.to_bytes() == range.length;
        let flags = self.write_flags();
        if is_whole && !facts.copies_data {
            let io = Io::write(whole, data).with(flags);
            return self.queue.start_write(self.clone(), io, ticket);
        }
        let lead = (range.offset - whole.start.to_bytes()) as usize;
        self.with_room(whole.to_bytes() as usize, ticket, move |this, blocks, ticket| {
            copy(&data, &blocks, lead); // Q4
            let io = Io::write(whole, blocks).with(flags);
            if is_whole {
                return this.queue.start_write(this.clone(), io, ticket);
            }
            this.queue.require_cells();
            let task = this.clone();
            this.queue.env.spawn(async move {
                let result = widen::write(&task.queue, range, block_bytes, io).await;
                task.answer(ticket, status(result));
            });
        });
    }

    /// Runs `go` with memory of `bytes` bytes once the budget has room for it.
    fn with_room(
        self: &Rc<Self>,
        bytes: usize,
        mut ticket: Ticket,
        go: impl FnOnce(&Rc<VirtQueue>, Segs, Ticket) + 'static,
    ) {
        let held = BufPool::footprint(bytes);
        ticket.held += held;
        let go = move |this: &Rc<VirtQueue>| {
            let buf = this.queue.env.buf(bytes);
            go(this, Segs::of(&buf, 0, bytes), ticket);
        };
        if self.queue.try_more(held) {
            return go(self);
        }
        let this = self.clone();
        self.queue.env.spawn(async move {
            this.queue.more(held).await;
            go(&this);
        });
    }

    /// A discard or write of zeroes.
    fn change_range(self: &Rc<Self>, facts: &Facts, request: &Request, ticket: Ticket) {
        let named = match request.range {
            Ok(named) => named,
            Err(status) => return self.answer(ticket, status),
        };
        let Some(range) = inside(facts, named.offset, named.bytes.into()) else {
            return self.answer(ticket, Status::Failed);
        };
        let block_bytes = facts.block_bytes;
        if request.command == Command::Discard {
            // It may forget less than it was asked to.
            return match widen::inner(range, block_bytes) {
                Some(whole) if facts.discards => {
                    self.start(Io::on(Op::Discard, whole), ticket);
                }
                _ => self.answer(ticket, Status::Done),
            };
        }
        let mut flags = self.write_flags();
        flags.set(Flags::NO_UNMAP, !named.may_unmap);
        let whole = widen::outer(range, block_bytes);
        if whole.to_bytes() == range.length {
            let io = Io::on(Op::WriteZeroes, whole).with(flags);
            return self.queue.start_write(self.clone(), io, ticket);
        }
        self.queue.require_cells();
        let this = self.clone();
        self.queue.env.spawn(async move {
            let result = widen::write_zeroes(&this.queue, range, block_bytes, flags).await;
            this.answer(ticket, status(result));
        });
    }

    fn write_flags(&self) -> Flags {
        let is_durable = self.write_through.load(Ordering::Relaxed);
        if is_durable { Flags::FUA } else { Flags::empty() }
    }

    fn start(self: &Rc<Self>, io: Io, ticket: Ticket) {
        self.queue.start(self.clone(), io, ticket);
    }

    /// Says how a request ended. (Q1)
    fn answer(&self, ticket: Ticket, status: Status) {
        self.memory.store(ticket.status, status as u8);
        let written = if status == Status::Done { ticket.written } else { 1 };
        let mut batch = self.batch.borrow_mut();
        let is_first = batch.used.is_empty();
        batch.used.push((ticket.head, written));
        batch.held += ticket.held;
        if is_first && !self.starting.get() {
            self.publisher.wake();
        }
    }

    /// Publishes what other tasks than the taker ended, until that has ended and every request was
    /// answered.
    async fn publish_all(&self) {
        while self.publisher.until(|| self.has_used()).await {
            self.publish();
        }
        self.end();
    }

    /// False when nothing will ever be published any more.
    fn has_used(&self) -> Option<bool> {
        match self.batch.borrow().used.is_empty() {
            false => Some(true),
            true => (!self.taking.get() && self.queue.is_empty()).then_some(false),
        }
    }

    /// Publishes what is used.
    fn publish(&self) {
        let batch = &mut *self.batch.borrow_mut();
        if batch.used.is_empty() {
            return;
        }
        let is_wanted = self.ring.borrow_mut().use_all(&batch.used);
        if is_wanted {
            notify(&self.call);
        }
        if std::mem::take(&mut batch.reports_loss) {
            self.queue.losses_were_told(); // Q3
        }
        self.queue.release(batch.used.len(), std::mem::take(&mut batch.held));
        batch.used.clear();
        self.look_at_memory();
    }

    /// Ends the session of a driver that has taken memory away.
    fn look_at_memory(&self) {
        if !self.memory.is_whole() {
            self.broken.raise(Level::Cut);
        }
    }

    fn end(&self) {
        self.queue.close();
        self.publisher.clear();
        let (base, has_failed) = (self.ring.borrow().base(), self.has_failed.get());
        let ended = Ended { base, owes: self.owes(), has_failed };
        *self.ended.lock() = ended;
        drop(self.members.borrow_mut().take());
    }

    fn owes(&self) -> bool {
        !self.export.is_read_only() && self.queue.owes()
    }
}

impl Client for VirtQueue {
    fn complete(
        &self,
        _env: &Env,
        cookie: u64,
        request: &mut cairn_block::Request,
        result: IoResult,
    ) {
        let (mut ticket, result) = self.queue.end(cookie, request, result);
        if request.op == Op::Flush {
            self.batch.borrow_mut().reports_loss |= result.is_err();
        }
        if let (Some(copied), Ok(())) = (ticket.copy.take(), result) {
            let Copied { blocks, lead, data } = *copied;
            copy(&blocks.slice(lead, data.bytes()), &data, 0);
        }
        self.answer(ticket, status(result));
    }
}

/// Copies all of `from` to `to`, behind its first `at` bytes.
fn copy(from: &Segs, to: &Segs, mut at: usize) {
    from.for_each(0, from.bytes(), |bytes| {
        to.copy_in(at, bytes);
        at += bytes.len();
    });
}

/// The bytes that a request with data names; none if they are not all in the disk, or no whole
/// sectors.
fn data_range(facts: &Facts, request: &Request) -> Option<ByteRange> {
    (request.bytes <= DATA_BYTES_MAX).then(|| inside(facts, request.offset, request.bytes))?
}

fn inside(facts: &Facts, offset: u64, length: u64) -> Option<ByteRange> {
    let end = offset.checked_add(length)?;
    let whole = length > 0 && length.is_multiple_of(SECTOR_BYTES);
    (whole && end <= facts.bytes).then_some(ByteRange { offset, length })
}

/// What to answer to a request that names no bytes of the disk.
fn status_of_nothing(request: &Request) -> Status {
    if request.bytes == 0 { Status::Done } else { Status::Failed }
}

fn status(result: IoResult) -> Status {
    match result {
        Ok(()) => Status::Done,
        Err(IoError { kind: ErrorKind::Unsupported, .. }) => Status::Unsupported,
        Err(_) => Status::Failed,
    }
}
