//! [`Connection`]: one client in transmission, on one reactor.
//!
//! Three tasks share it. The receiver ([`super::serve`]) takes requests and starts them. The sender
//! sends the replies. The watcher tells both when the export is stopped. Requests complete here in
//! any order; their replies gather in a batch that the sender takes whole, so that one turn of the
//! loop is one send.
//!
//! Invariants, beside those of its [queue](crate::front):
//! - N1. The export counts as used until the last request has ended, even if the client has
//!   vanished.
//! - N2. A loss counts as reported once the reply was sent and the client is still connected; a
//!   client that vanished may connect again. A client that may only read is told of no loss: its
//!   flushes are answered without reaching the disk.

use std::cell::{Cell, OnceCell, RefCell};
use std::future::{Future, poll_fn};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::{Client, Env, ErrorKind, Io, IoError, IoResult, Op, Request, Segs};
use cairn_reactor::Driver;
use cairn_tls::Session;
use rustix::net::{Shutdown, shutdown};

use crate::front::{First, Intake, Level, Pause, Phase, Queue, Room, Signal, first};

use super::export::Export;
use super::handover::Parted;
use super::handshake::{MetaContext, Negotiated};
use super::payload::{Batch, Payload};
use super::receiver::{Ended, Rest};
use super::reply;
use super::request::Terms;
use super::wire::{Echo, ErrorCode, MessageForm, TransmissionFlags};

/// A client whose request waits for longer than this may have gone.
const HANG_UP_AFTER: Duration = Duration::from_millis(10);

/// A socket as one reactor uses it, and how far its use has been stopped.
pub(super) struct Channel {
    driver: Rc<Driver>,
    socket: Arc<OwnedFd>,
    intake: Rc<Intake>,
    /// TLS, once it is in use. Its bytes are sent by one task at a time: the one that negotiates,
    /// then the sender. What a session wants to say of itself while it receives leaves with the
    /// next reply.
    tls: OnceCell<Session>,
}

impl Channel {
    /// A channel over `socket` on `env`'s reactor.
    pub(super) fn new(env: &Env, socket: OwnedFd) -> Channel {
        let (driver, intake) = (Driver::of(env).clone(), Rc::default());
        Channel { driver, socket: Arc::new(socket), intake, tls: OnceCell::new() }
    }

    /// Runs the handshake of TLS; from now on all bytes are those of the session. Answers the names
    /// in the client's certificate.
    pub(super) async fn start_tls(&self, session: Session) -> Result<Vec<String>, Ended> {
        let session = self.tls.get_or_init(|| session);
        loop {
            self.send_output(session).await?;
            if !session.is_handshaking() {
                return Ok(session.names());
            }
            let fed = session.feed();
            if fed.is_err() {
                // Tells the client why.
                self.send_output(session).await?;
                return Err(Ended::Insecure);
            }
            match fed {
                Ok(false) if session.is_closed() => return Err(Ended::Closed),
                Ok(false) => self.receive_input(session).await?,
                _ => {}
            }
        }
    }

    /// The TLS session, if there is one.
    pub(super) fn tls(&self) -> Option<&Session> {
        self.tls.get()
    }

    /// Receives at least one byte into `segs` (with `all`, as many as the system gives at once), or
    /// returns why nothing more arrives. If this side stops receiving, that ends as soon as the
    /// system has let go of `segs`.
    pub(super) async fn receive(&self, segs: &mut Segs, all: bool) -> Result<usize, Ended> {
        match self.tls.get() {
            None => self.receive_bytes(segs, all).await,
            Some(session) => self.receive_secured(session, segs).await,
        }
    }

    /// The same over TLS.
    async fn receive_secured(&self, session: &Session, segs: &Segs) -> Result<usize, Ended> {
        if self.intake.is_halted() {
            return Err(Ended::Halted);
        }
        let receive = async |mut room: Segs| self.receive_bytes(&mut room, false).await;
        session.receive(segs, receive).await?.ok_or(Ended::Closed)
    }

    /// Receives bytes for the session, which has looked at all that came before.
    async fn receive_input(&self, session: &Session) -> Result<(), Ended> {
        let mut room = session.room();
        let count = self.receive_bytes(&mut room, false).await?;
        session.received(count);
        Ok(())
    }

    async fn receive_bytes(&self, segs: &mut Segs, all: bool) -> Result<usize, Ended> {
        while !self.intake.is_halted() {
            let mut op = self.driver.recv(&self.socket, std::mem::take(segs), all);
            let mut called_off = false;
            let count = poll_fn(|cx| {
                if self.intake.is_halted() && !std::mem::replace(&mut called_off, true) {
                    op.cancel();
                }
                self.intake.register(cx);
                Pin::new(&mut op).poll(cx)
            })
            .await;
            *segs = op.take_segs();
            match usize::try_from(count) {
                Ok(0) => return Err(Ended::Closed),
                Ok(count) => return Ok(count),
                Err(_) if count == -libc::EINTR || count == -libc::EAGAIN => {}
                Err(_) if count == -libc::ECANCELED && called_off => {}
                Err(_) => return Err(Ended::Failed(-count)),
            }
        }
        Err(Ended::Halted)
    }

    /// Waits until the client has ended its sending, or is gone. It is looked for when a while has
    /// passed. Over TCP the two look the same: replies that it is owed find out.
    pub(super) async fn hung_up(&self, env: &Env) -> Ended {
        env.sleep(HANG_UP_AFTER).await;
        match self.driver.hung_up(&self.socket).await {
            true => Ended::Failed(libc::EPIPE),
            false => Ended::Closed,
        }
    }

    /// Sends all of `segs`, and leaves it empty.
    pub(super) async fn send(&self, segs: &mut Segs) -> Result<(), Ended> {
        let Some(session) = self.tls.get() else { return self.send_bytes(segs).await };
        session.send(segs, async |mut output: Segs| self.send_bytes(&mut output).await).await
    }

    /// Sends what the session has for the client.
    async fn send_output(&self, session: &Session) -> Result<(), Ended> {
        while let Some(mut segs) = session.take_output() {
            self.send_bytes(&mut segs).await?;
        }
        Ok(())
    }

    /// Tells the client that nothing more is sent, if its bytes are protected: otherwise it could
    /// not tell the end from one that another party has made.
    async fn finish(&self) {
        let Some(session) = self.tls.get() else { return };
        session.end();
        if let Err(ended) = self.send_output(session).await {
            tracing::debug!("ending a TLS session: {ended:?}");
        }
    }

    async fn send_bytes(&self, segs: &mut Segs) -> Result<(), Ended> {
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

    /// Ends both directions at once: every send and receive returns.
    pub(super) fn cut(&self) {
        self.intake.raise(Level::Cut);
        if let Err(error) = shutdown(&*self.socket, Shutdown::Both) {
            // The peer has closed already: the same result.
            tracing::debug!("shutting down a connection: {error}");
        }
    }
}

/// What a receiver that was halted does next.
pub(super) enum Turn {
    /// It goes on.
    Serve,
    /// Its connection leaves for another process.
    Leave,
    /// Its connection ends.
    End,
}

/// An admitted request; the reply consumes it.
pub(super) struct Ticket {
    pub(super) echo: Echo,
    held: usize,
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
pub(super) struct Pending {
    ticket: Ticket,
    read: Option<ReadPart>,
}

/// See the module's description.
pub(super) struct Connection {
    pub(super) queue: Rc<Queue<Pending>>,
    pub(super) export: Arc<Export>,
    pub(super) channel: Channel,
    pub(super) form: MessageForm,
    pause: Arc<Pause>,
    client_knows_block_size: bool,
    /// The contexts that block status reports: those that the client selected.
    pub(super) contexts: Vec<MetaContext>,
    terms: Cell<Terms>,
    block_bytes: Cell<u32>,
    batch: RefCell<Batch>,
    receiving: Cell<bool>,
    ended: Cell<bool>,
    sender: Signal,
    watcher: Signal,
}

impl Connection {
    /// A connection that was negotiated: `terms` are those told to the client.
    pub(super) fn new(
        env: &Env,
        channel: Channel,
        (export, pause): (Arc<Export>, Arc<Pause>),
        negotiated: &Negotiated,
        terms: Terms,
    ) -> Rc<Connection> {
        let (shared, traffic) = (export.shared.clone(), export.traffic.clone());
        let intake = channel.intake.clone();
        // Before the first request.
        intake.set_phase(pause.phase());
        let label = format!("export '{}'", export.name);
        Rc::new(Connection {
            queue: Rc::new(Queue::new(env, shared, traffic, intake, label)),
            channel,
            form: negotiated.form,
            contexts: negotiated.contexts.clone(),
            pause,
            client_knows_block_size: negotiated.client_knows_block_size,
            terms: Cell::new(terms),
            block_bytes: Cell::new(export.block_bytes()),
            export,
            batch: RefCell::default(),
            receiving: Cell::new(true),
            ended: Cell::new(false),
            sender: Signal::default(),
            watcher: Signal::default(),
        })
    }

    // Terms.

    /// Reads the disk's limits again: it may have grown, shrunk or changed its block size since the
    /// negotiation. A client learns of it elsewhere, as a kernel's device that is given its size
    /// again.
    pub(super) fn refresh(&self) {
        let block_bytes = self.export.block_bytes();
        self.block_bytes.set(block_bytes);
        let size_bytes = self.export.size_bytes(block_bytes);
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

    // Requests and their answers.

    /// Admits a request for which there is room.
    pub(super) fn admit(&self, echo: Echo, room: Room<'_>) -> Ticket {
        Ticket { echo, held: self.queue.admit(room) }
    }

    /// Starts an admitted request, no write; its completion answers the client.
    pub(super) fn start(self: &Rc<Self>, ticket: Ticket, io: Io, read: Option<ReadPart>) {
        self.queue.start(self.clone(), io, Pending { ticket, read });
    }

    /// Starts an admitted write of whole blocks; its completion answers the client.
    pub(super) fn start_write(self: &Rc<Self>, ticket: Ticket, io: Io) {
        self.queue.start_write(self.clone(), io, Pending { ticket, read: None });
    }

    /// Replies to a request that has no data to send.
    pub(super) fn answer(&self, ticket: Ticket, result: IoResult) {
        match result {
            Ok(()) => {
                let head = reply::success(self.form, ticket.echo);
                self.reply(ticket, |batch, env| batch.push_head(env, &head));
            }
            Err(error) => self.refuse(ticket, error_code(error), &error.to_string()),
        }
    }

    /// Replies to a read with its data.
    pub(super) fn answer_read(&self, ticket: Ticket, read: &ReadPart) {
        let head = reply::data(self.form, ticket.echo, read.offset, read.length);
        self.reply(ticket, |batch, env| {
            batch.push_head(env, &head);
            batch.push_data(&read.data, read.lead, read.length as usize);
        });
    }

    /// Replies with an error and a message for a person.
    pub(super) fn refuse(&self, ticket: Ticket, code: ErrorCode, message: &str) {
        let head = reply::refused(self.form, ticket.echo, code, message);
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
        if !self.queue.is_cut() {
            push(&mut batch, &self.queue.env);
        }
        self.sender.wake();
    }

    // Tasks.

    /// Sends replies until the receiver has ended and every request was answered.
    pub(super) async fn send_replies(&self) {
        let mut batch = Batch::default();
        while self.sender.until(|| self.next_batch(&mut batch)).await {
            if !self.queue.is_cut() {
                match self.channel.send(batch.segs()).await {
                    Ok(()) if batch.reports_loss && self.receiving.get() => {
                        self.queue.losses_were_told();
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
            let (requests, held) = (batch.requests, batch.held);
            batch.clear();
            self.queue.release(requests, held);
        }
        if !self.queue.is_cut() {
            self.channel.finish().await;
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
        (!self.receiving.get() && self.queue.is_empty()).then_some(false)
    }

    /// The receiver has ended.
    pub(super) fn stop_receiving(&self) {
        self.receiving.set(false);
        self.sender.wake();
    }

    /// Passes the levels of the export's shutdown, and the phases of the server's pause, on to the
    /// channel, until the connection ends.
    pub(super) async fn watch(&self) {
        let (mut seen, mut phase) = (Level::Serving, self.intake_phase());
        while seen < Level::Cut {
            let ended = self.watcher.until(|| self.ended.get().then_some(()));
            let now = phase;
            let changed =
                first(self.export.shutdown.above(seen), self.pause.phase_that(|it| it != now));
            match first(ended, changed).await {
                First::Left(()) => break,
                First::Right(First::Left(level)) => seen = level,
                First::Right(First::Right(next)) => {
                    phase = next;
                    self.channel.intake.set_phase(phase);
                    continue;
                }
            }
            match seen {
                Level::Cut => self.channel.cut(),
                level => self.channel.intake.raise(level),
            }
        }
        self.watcher.clear();
    }

    fn intake_phase(&self) -> Phase {
        self.channel.intake.phase().unwrap_or(Phase::Going)
    }

    /// The receiver was halted. If that is for a pause, waits for its end. (P1)
    pub(super) async fn wait_for_end_of_pause(&self) -> Turn {
        let intake = &self.channel.intake;
        let is_pausing = || intake.phase() == Some(Phase::Pausing);
        intake.until(|| (self.queue.is_empty() || !is_pausing()).then_some(())).await;
        let waiting = is_pausing().then(|| self.pause.wait());
        intake.until(|| (!is_pausing()).then_some(())).await;
        match intake.phase() {
            Some(Phase::Going) => Turn::Serve,
            Some(_) if waiting.is_some() => Turn::Leave,
            _ => Turn::End,
        }
    }

    /// The connection as another process can go on with it. (P2)
    pub(super) fn hand_over(&self, rest: Rest) -> (Parted, Arc<OwnedFd>) {
        let Terms { flags, .. } = self.terms.get();
        let parted = Parted {
            export: self.export.name.clone(),
            flags: flags.bits(),
            structured_replies: self.form.has_chunks(),
            extended_headers: self.form == MessageForm::Extended,
            contexts: self.contexts.iter().map(|it| (it.id, it.name.clone())).collect(),
            client_knows_block_size: self.client_knows_block_size,
            owes: !self.may_only_read() && self.queue.owes(),
            skip: rest.skip,
            bytes: rest.bytes,
        };
        (parted, self.channel.socket.clone())
    }

    fn end(&self) {
        self.queue.close();
        self.ended.set(true);
        self.watcher.wake();
        self.sender.clear();
    }
}

impl Client for Connection {
    fn complete(&self, _env: &Env, cookie: u64, request: &mut Request, result: IoResult) {
        let (Pending { ticket, read }, result) = self.queue.end(cookie, request, result);
        if request.op == Op::Flush {
            self.batch.borrow_mut().reports_loss |= result.is_err();
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
        ErrorKind::Io | ErrorKind::Busy | ErrorKind::Fenced => ErrorCode::Io,
        ErrorKind::NoSpace => ErrorCode::NoSpace,
        ErrorKind::Invalid => ErrorCode::Invalid,
        ErrorKind::Unsupported => ErrorCode::NotSupported,
        ErrorKind::ReadOnly => ErrorCode::NotPermitted,
        ErrorKind::NoMemory => ErrorCode::NoMemory,
        ErrorKind::Shutdown => ErrorCode::Shutdown,
    }
}
