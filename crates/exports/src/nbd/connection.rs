//! [`Connection`]: one client in transmission, on one reactor.
//!
//! Three tasks share it. The receiver ([`super::serve`]) takes requests and starts them. The sender
//! sends the replies. The watcher tells both when the export is stopped. Requests complete here in
//! any order; their replies gather in a batch that the sender takes whole, so that one turn of the
//! loop is one send.
//!
//! Invariants:
//! - N1. A request, and its memory, counts from before its payload is received until its reply was
//!   sent or dropped. Nothing is received while the counts are at their limits or the server's
//!   budget is spent. Hence a client that does not read its replies holds a bounded amount of
//!   memory.
//! - N2. The export counts as used until the last request has ended, even if the client has
//!   vanished.
//! - N3. A write that entered the gate leaves it exactly once, before its reply is queued.
//! - N4. A client that may write learns of lost writes at its next flush, once. Its failure cursor
//!   is set when it connects, before its first request is received. The loss counts as reported
//!   once the reply was sent and the client is still connected; a client that vanished may connect
//!   again. A client that may only read is told of no loss: its flushes are answered without
//!   reaching the disk.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use cairn_block::{
    CellGuard, Client, Env, ErrorKind, FailureCursor, Io, IoError, IoResult, Op, Request,
    SectorRange, Segs,
};
use cairn_reactor::Driver;
use rustix::net::{Shutdown, shutdown};

use super::budget::Portion;
use super::export::Export;
use super::handshake::{MetaContext, Negotiated};
use super::payload::{Batch, Payload};
use super::receiver::Ended;
use super::reply::{self, Last};
use super::request::Terms;
use super::shutdown::Level;
use super::signal::{First, Signal, first};
use super::wire::{Cookie, ErrorCode, TransmissionFlags};

/// Limit on the requests of one connection that are admitted and not answered.
const REQUESTS_MAX: usize = 128;

/// Limit on the memory of the admitted requests of one connection, in bytes; a single larger
/// request may pass. Beyond what the pool of a reactor keeps, memory would be taken from the system
/// for each request.
const HELD_BYTES_MAX: usize = 16 << 20;

/// A socket as one reactor uses it, and how far its use has been stopped.
pub(super) struct Channel {
    driver: Rc<Driver>,
    socket: Arc<OwnedFd>,
    level: Cell<Level>,
    /// Wakes the receiver: there may be room for a request, or it must stop.
    room: Signal,
}

impl Channel {
    /// A channel over `socket` on `env`'s reactor.
    pub(super) fn new(env: &Env, socket: OwnedFd) -> Channel {
        Channel {
            driver: Driver::of(env).clone(),
            socket: Arc::new(socket),
            level: Cell::new(Level::Serving),
            room: Signal::default(),
        }
    }

    /// Receives at least one byte into `segs` (with `all`, as many as the system gives at once), or
    /// returns why nothing more arrives.
    pub(super) async fn receive(&self, segs: &mut Segs, all: bool) -> Result<usize, Ended> {
        loop {
            let mut op = self.driver.recv(&self.socket, std::mem::take(segs), all);
            let count = poll_fn(|cx| {
                if self.level.get() > Level::Serving {
                    return Poll::Ready(Err(Ended::Halted));
                }
                self.room.register(cx);
                Pin::new(&mut op).poll(cx).map(Ok)
            })
            .await?;
            *segs = op.take_segs();
            match usize::try_from(count) {
                Ok(0) => return Err(Ended::Closed),
                Ok(count) => return Ok(count),
                Err(_) if count == -libc::EINTR || count == -libc::EAGAIN => {}
                Err(_) => return Err(Ended::Failed(-count)),
            }
        }
    }

    /// Sends all of `segs`, and leaves it empty.
    pub(super) async fn send(&self, segs: &mut Segs) -> Result<(), Ended> {
        while segs.bytes() > 0 {
            let mut op = self.driver.send(&self.socket, std::mem::take(segs));
            let count = Pin::new(&mut op).await;
            *segs = op.take_segs();
            match usize::try_from(count) {
                Ok(count) => segs.advance(count),
                Err(_) if count == -libc::EINTR || count == -libc::EAGAIN => {}
                Err(_) => return Err(Ended::Failed(-count)),
            }
        }
        Ok(())
    }

    fn raise(&self, level: Level) {
        self.level.set(self.level.get().max(level));
        self.room.wake();
    }

    /// Ends both directions at once: every send and receive returns.
    fn cut(&self) {
        self.raise(Level::Cut);
        if let Err(error) = shutdown(&*self.socket, Shutdown::Both) {
            // The peer has closed already: the same result.
            tracing::debug!("shutting down a connection: {error}");
        }
    }
}

/// Memory reserved for a request's payload; returned to the budget unless the request is admitted.
pub(super) struct Room<'a> {
    conn: &'a Connection,
    bytes: usize,
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.conn.portion.give(self.bytes);
    }
}

/// An admitted request; the reply consumes it.
pub(super) struct Ticket {
    pub(super) cookie: Cookie,
    held: usize,
}

/// How a write passed the gate.
pub(super) enum Pass {
    /// It takes part in no exclusion (not a write, or under a cell held elsewhere).
    Free,
    /// As a loose write: counted at the gate, without a cell.
    Loose,
    /// In a cell, which is released with it.
    Cell(CellGuard),
}

/// How a read's data becomes its reply.
pub(super) struct ReadPart {
    /// First byte asked for.
    pub(super) offset: u64,
    /// Bytes asked for.
    pub(super) length: u32,
    /// Bytes in front of them that were read because they belong to the first block.
    pub(super) lead: usize,
    /// The memory.
    pub(super) data: Payload,
}

/// A request that a disk is working on.
struct Pending {
    ticket: Ticket,
    pass: Pass,
    read: Option<ReadPart>,
}

#[derive(Default)]
struct PendingTable {
    slots: Vec<Option<Pending>>,
    free: Vec<usize>,
}

impl PendingTable {
    fn insert(&mut self, pending: Pending) -> u64 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Some(pending);
        slot as u64
    }

    fn remove(&mut self, slot: u64) -> Pending {
        let slot = slot as usize;
        self.free.push(slot);
        self.slots[slot].take().expect("a disk completes each request once")
    }
}

/// See the module's description.
pub(super) struct Connection {
    pub(super) env: Env,
    pub(super) export: Arc<Export>,
    pub(super) channel: Channel,
    pub(super) structured: bool,
    /// The contexts that block status reports: those that the client selected.
    pub(super) contexts: Vec<MetaContext>,
    terms: Cell<Terms>,
    block_bytes: Cell<u32>,
    negotiated_size_bytes: u64,
    failures: RefCell<FailureCursor>,
    pending: RefCell<PendingTable>,
    batch: RefCell<Batch>,
    requests: Cell<usize>,
    held: Cell<usize>,
    /// What `held`, and the payload being received, take of the server's budget.
    portion: Portion,
    receiving: Cell<bool>,
    ended: Cell<bool>,
    requires_cells: Cell<bool>,
    sender: Signal,
    watcher: Signal,
}

impl Connection {
    /// A connection that has just been negotiated.
    pub(super) fn new(
        env: &Env,
        channel: Channel,
        export: Arc<Export>,
        negotiated: &Negotiated,
        terms: Terms,
    ) -> Rc<Connection> {
        Rc::new(Connection {
            env: env.clone(),
            channel,
            structured: negotiated.structured_replies,
            contexts: negotiated.contexts.clone(),
            negotiated_size_bytes: terms.size_bytes,
            failures: RefCell::new(FailureCursor::new(&export.disk)),
            terms: Cell::new(terms),
            block_bytes: Cell::new(export.block_bytes()),
            portion: Portion::new(&export.account),
            export,
            pending: RefCell::default(),
            batch: RefCell::default(),
            requests: Cell::new(0),
            held: Cell::new(0),
            receiving: Cell::new(true),
            ended: Cell::new(false),
            requires_cells: Cell::new(false),
            sender: Signal::default(),
            watcher: Signal::default(),
        })
    }

    // Terms.

    /// Reads the disk's limits again: it may have shrunk or changed its block size since the
    /// negotiation.
    pub(super) fn refresh(&self) {
        let block_bytes = self.export.block_bytes();
        self.block_bytes.set(block_bytes);
        let now = self.export.size_bytes(block_bytes);
        let size_bytes = self.negotiated_size_bytes.min(now);
        self.terms.set(Terms { size_bytes, ..self.terms.get() });
    }

    /// The terms under which requests are judged now.
    pub(super) fn terms(&self) -> Terms {
        self.terms.get()
    }

    pub(super) fn may_only_read(&self) -> bool {
        self.terms.get().flags.contains(TransmissionFlags::READ_ONLY)
    }

    /// The smallest unit that the disk takes, in bytes.
    pub(super) fn block_bytes(&self) -> u64 {
        u64::from(self.block_bytes.get())
    }

    // Admission.

    /// Waits until a request whose payload takes `bytes` of memory may be admitted. (N1)
    pub(super) async fn room(&self, bytes: usize) -> Result<Room<'_>, Ended> {
        let (room, level) = (&self.channel.room, &self.channel.level);
        room.until(|| {
            if level.get() > Level::Serving {
                return Some(Err(Ended::Halted));
            }
            let held = self.held.get();
            let fits = held == 0 || held + bytes <= HELD_BYTES_MAX;
            (fits && self.requests.get() < REQUESTS_MAX).then_some(Ok(()))
        })
        .await?;
        if !self.portion.try_take(bytes) {
            let halted = room.until(|| (level.get() > Level::Serving).then_some(()));
            if let First::Right(()) = first(self.portion.take(&self.env, bytes), halted).await {
                return Err(Ended::Halted);
            }
        }
        Ok(Room { conn: self, bytes })
    }

    /// Admits a request for which there is room.
    pub(super) fn admit(&self, cookie: Cookie, mut room: Room<'_>) -> Ticket {
        let held = std::mem::take(&mut room.bytes);
        self.requests.set(self.requests.get() + 1);
        self.held.set(self.held.get() + held);
        Ticket { cookie, held }
    }

    /// From now until this connection ends, every write to the disk holds a cell.
    pub(super) fn require_cells(&self) {
        if !self.requires_cells.replace(true) {
            self.export.gate.require_cells();
        }
    }

    // Requests and their answers.

    /// Starts an admitted request; its completion answers the client.
    pub(super) fn start(
        self: &Rc<Self>,
        ticket: Ticket,
        io: Io,
        pass: Pass,
        read: Option<ReadPart>,
    ) {
        let slot = self.pending.borrow_mut().insert(Pending { ticket, pass, read });
        self.env.start(&self.export.disk, io, self.clone(), slot);
    }

    /// Starts a request that no client sent (part of a read-modify-write, a flush after a trim) and
    /// waits for it.
    pub(super) async fn io(&self, io: Io) -> IoResult {
        let (op, range) = (io.op, io.range);
        let result = self.env.io(&self.export.disk, io).await;
        if let Err(error) = result {
            self.log_failure(op, range, error);
        }
        result
    }

    /// Logs that the volume failed a request, before the client gets the error.
    #[cold]
    fn log_failure(&self, op: Op, range: SectorRange, error: IoError) {
        // An operation that the volume does not support is not a failure of it.
        if matches!(error.kind, ErrorKind::Unsupported | ErrorKind::Shutdown) {
            return;
        }
        let key = format!("export '{}': {} failed", self.export.name, op.name());
        self.env.warn(&key, || match op {
            Op::Flush => format!("{key}: {error}"),
            _ => format!("{key}: sector {}, {} sectors: {error}", range.start.0, range.count.0),
        });
    }

    /// Replies to a request that has no data to send.
    pub(super) fn answer(&self, ticket: Ticket, result: IoResult) {
        match result {
            Ok(()) => {
                let head = reply::simple_success(ticket.cookie);
                self.reply(ticket, |batch, env| batch.push_head(env, &head));
            }
            Err(error) => self.refuse(ticket, error_code(error), &error.to_string()),
        }
    }

    /// Replies to a read with its data.
    pub(super) fn answer_read(&self, ticket: Ticket, read: &ReadPart) {
        let (cookie, length) = (ticket.cookie, read.length as usize);
        self.reply(ticket, |batch, env| {
            if self.structured {
                let head = reply::offset_data(cookie, Last::Yes, read.offset, read.length);
                batch.push_head(env, &head);
            } else {
                batch.push_head(env, &reply::simple_success(cookie));
            }
            batch.push_data(&read.data, read.lead, length);
        });
    }

    /// Replies with an error and a message for a person.
    pub(super) fn refuse(&self, ticket: Ticket, code: ErrorCode, message: &str) {
        let head = reply::refused(ticket.cookie, self.structured, code, message);
        self.answer_with(ticket, &head);
    }

    /// Replies with bytes that are a complete reply.
    pub(super) fn answer_with(&self, ticket: Ticket, bytes: &[u8]) {
        self.reply(ticket, |batch, env| batch.push_head(env, bytes));
    }

    fn reply(&self, ticket: Ticket, push: impl FnOnce(&mut Batch, &Env)) {
        let mut batch = self.batch.borrow_mut();
        batch.requests += 1;
        batch.held += ticket.held;
        if self.channel.level.get() < Level::Cut {
            push(&mut batch, &self.env);
        }
        self.sender.wake();
    }

    // Tasks.

    /// Sends replies until the receiver has ended and every request was answered.
    pub(super) async fn send_replies(&self) {
        let mut batch = Batch::default();
        while self.sender.until(|| self.next_batch(&mut batch)).await {
            if self.channel.level.get() < Level::Cut {
                match self.channel.send(batch.segs()).await {
                    Ok(()) if batch.reports_loss && self.receiving.get() => {
                        self.failures.borrow().was_told(&self.export.disk);
                    }
                    Ok(()) => {}
                    Err(ended) => {
                        tracing::debug!(
                            "export `{}`: sending stopped: {ended:?}",
                            self.export.name
                        );
                        self.channel.cut();
                    }
                }
            }
            self.requests.set(self.requests.get() - batch.requests);
            let held = batch.held;
            batch.clear();
            self.held.set(self.held.get() - held);
            self.portion.give(held);
            self.channel.room.wake();
        }
        self.end();
    }

    /// Moves the replies to send now into `batch`, which is empty. False when no reply will ever
    /// follow.
    fn next_batch(&self, batch: &mut Batch) -> Option<bool> {
        let mut gathered = self.batch.borrow_mut();
        if !gathered.is_empty() {
            std::mem::swap(&mut *gathered, batch);
            return Some(true);
        }
        (!self.receiving.get() && self.requests.get() == 0).then_some(false)
    }

    /// The receiver has ended.
    pub(super) fn stop_receiving(&self) {
        self.receiving.set(false);
        self.sender.wake();
    }

    /// Passes the levels of the export's shutdown on to the channel, until the connection ends.
    pub(super) async fn watch(&self) {
        let mut seen = Level::Serving;
        while seen < Level::Cut {
            let ended = self.watcher.until(|| self.ended.get().then_some(()));
            match first(ended, self.export.shutdown.above(seen)).await {
                First::Left(()) => break,
                First::Right(level) => seen = level,
            }
            match seen {
                Level::Cut => self.channel.cut(),
                level => self.channel.raise(level),
            }
        }
        self.watcher.clear();
    }

    fn end(&self) {
        if self.requires_cells.replace(false) {
            self.export.gate.stop_requiring_cells();
        }
        self.ended.set(true);
        self.watcher.wake();
        self.sender.clear();
        self.channel.room.clear();
    }
}

impl Client for Connection {
    fn complete(&self, env: &Env, cookie: u64, request: &mut Request, mut result: IoResult) {
        // N4
        if request.op == Op::Flush {
            result = self.failures.borrow_mut().end_of_flush(&self.export.disk, result);
            self.batch.borrow_mut().reports_loss |= result.is_err();
        }
        let Pending { ticket, pass, read } = self.pending.borrow_mut().remove(cookie);
        // N3
        match pass {
            Pass::Free => {}
            Pass::Loose => self.export.gate.leave_loose(env.reactor()),
            Pass::Cell(guard) => drop(guard),
        }
        if let Err(error) = result {
            self.log_failure(request.op, request.range, error);
        }
        match (read, result) {
            (Some(read), Ok(())) => self.answer_read(ticket, &read),
            (_, result) => self.answer(ticket, result),
        }
    }
}

/// The error number for the client.
fn error_code(error: IoError) -> ErrorCode {
    match error.kind {
        ErrorKind::Io | ErrorKind::Busy => ErrorCode::Io,
        ErrorKind::NoSpace => ErrorCode::NoSpace,
        ErrorKind::Invalid => ErrorCode::Invalid,
        ErrorKind::Unsupported => ErrorCode::NotSupported,
        ErrorKind::ReadOnly => ErrorCode::NotPermitted,
        ErrorKind::NoMemory => ErrorCode::NoMemory,
        ErrorKind::Shutdown => ErrorCode::Shutdown,
    }
}
