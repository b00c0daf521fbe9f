//! [`Link`]: the requests of a disk on their way to a server and back, over one connection after
//! another, or several at a time ([`Lane`]). Its task is on one reactor, the disk's home; the data
//! of other reactors' requests is copied.
//!
//! - L1. A connection has at most one receive and one send under way. If one connection ends, all
//!   are ended, and the next ones are made when every receive and send has ended: no byte of an old
//!   connection reaches the memory of a request that is sent again.
//! - L2. An answer that breaks the protocol ends the connection; what came before it counts.
//! - L3. The failure count rises before any request that ends after a loss is answered (F1).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cairn_block::sync::Mutex;
use cairn_block::{
    ConfigError, ConfigKind, Env, Extent, IoError, IoResult, Op, ReactorId, SectorCount,
    SectorRange, Segs, Time, until, until_some,
};
use cairn_nbd::answers::Lost;
use cairn_nbd::wire::TransmissionFlags;
use event_listener::Event;
use futures_util::future::{join, join_all};

use super::channel::Channel;
use super::connect::{Connected, connect_all};
use super::lane::Lane;
use super::meta::{self, Meta};
use super::remote::{Data, Incoming, Owner, Remote};
use crate::remote::{RemoteState, add};
use cairn_nbd::session::{Ask, Counts, Session, Told, What};

/// Pauses between two tries to connect.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Connections that a server ends sooner, twice in a row, are fewer next time.
const SETTLED: Duration = Duration::from_secs(10);

/// The longest piece of a request without data: less than 32 bits of bytes, and whole blocks.
const PIECE_BYTES: u64 = 1 << 30;

/// A request as it came to the link.
#[derive(Clone)]
pub(super) struct Arrival {
    owner: Owner,
    /// Before a write of zeros becomes a write.
    what: What,
    count: SectorCount,
    at: Time,
}

/// A request that is sent as one, or the pieces of which this one is a part.
#[derive(Clone)]
pub(super) enum Ticket {
    Whole(Arrival),
    Piece(Rc<Pieces>),
}

/// A request that is sent in pieces.
pub(super) struct Pieces {
    arrival: Arrival,
    /// All data of a read for another reactor.
    data: Segs,
    left: Cell<u64>,
    error: Cell<Option<IoError>>,
}

/// How a connection ends.
#[derive(Default)]
pub(super) struct End {
    pub why: Lost,
    /// The server has ended it, or the way to it has. (Else this client has, because of an answer,
    /// be it a fatal alert of TLS.)
    pub by_server: bool,
}

/// See the module's description.
pub(super) struct Link {
    pub env: Env,
    pub remote: Arc<Remote>,
    pub session: RefCell<Session<Ticket, Segs>>,
    /// The connections.
    channels: RefCell<Vec<Rc<Channel>>>,
    /// The most connections that are made next.
    most: Cell<usize>,
    /// The connections have ended, or are to.
    is_down: Cell<bool>,
    /// The end of the first of them.
    end: RefCell<Option<End>>,
    /// A request has ended by an answer over these connections. (One that was sent again is no sign
    /// that the server will answer what comes.)
    has_ended: Cell<bool>,
    incoming: RefCell<Vec<Incoming>>,
    told: RefCell<Vec<Told<Ticket, Segs>>>,
    /// Those of the status request that is being answered.
    extents: RefCell<Vec<Extent>>,
}

impl Link {
    /// Starts the task of a disk that has had its first request.
    pub fn start(env: &Env, remote: Arc<Remote>, first: Vec<Connected>) {
        let care = remote.care();
        let link = Rc::new(Link {
            env: env.clone(),
            session: RefCell::new(Session::new(care)),
            most: Cell::new(remote.connections),
            remote,
            channels: RefCell::default(),
            is_down: Cell::new(true),
            end: RefCell::default(),
            has_ended: Cell::new(false),
            incoming: RefCell::default(),
            told: RefCell::default(),
            extents: RefCell::default(),
        });
        env.spawn(async move { link.run(first).await });
    }

    async fn run(&self, first: Vec<Connected>) {
        let (mut next, mut since, mut pause) = (Some(first), None, PAUSE_MIN);
        let mut was_quick = false;
        while let Some(connections) = next.take() {
            self.take_incoming();
            if !self.session.borrow().is_waited_for() {
                since = None;
            }
            let made = connections.iter().map(|connected| connected.made).max();
            self.serve(connections).await;
            if self.remote.is_closing() {
                break;
            }
            let lasted = made.map_or(Duration::ZERO, |made| made.elapsed());
            self.enter(RemoteState::Reconnecting);
            let uri = &self.remote.target.uri;
            let End { why, by_server } = self.end.take().unwrap_or_default();
            self.env.warn(uri, || format!("{uri}: the connection is lost: {why}"));
            self.change(|session, tell| session.lost(tell));
            // A request that ends each connection must not be sent for ever, nor without a pause.
            if self.has_ended.get() {
                since = None;
            }
            if self.has_ended.get() || lasted >= PAUSE_MAX {
                pause = PAUSE_MIN;
            }
            // A server may end what is more than it takes, after some answers or none. One that was
            // killed does so once.
            let is_quick = by_server && lasted < SETTLED;
            self.most.set(match is_quick {
                true if was_quick => (self.most.get() / 2).max(1),
                true => self.most.get(),
                false => self.remote.connections,
            });
            was_quick = is_quick;
            let since = *since.get_or_insert(self.env.now());
            next = self.connect_again(since, &mut pause).await;
        }
        if self.session.borrow_mut().close() {
            self.count_loss();
        }
    }

    /// Sends and receives over these connections, until one of them has ended, and so all.
    async fn serve(&self, connections: Vec<Connected>) {
        let lanes = Lane::over(self, &self.env, connections);
        self.channels.replace(lanes.iter().map(|lane| lane.channel.clone()).collect());
        self.is_down.set(false);
        self.has_ended.set(false);
        self.session.borrow_mut().connected();
        join_all(lanes.iter().map(|lane| join(lane.send(), lane.receive()))).await;
        self.channels.take();
    }

    fn count_loss(&self) {
        let uri = &self.remote.target.uri;
        self.remote.gate.failures().raise();
        self.env.warn(&format!("{uri} lost"), || {
            format!("{uri}: writes that were not flushed may be lost")
        });
    }

    /// Other connections; none if the disk was closed in the meantime. Requests have waited for
    /// them since a time.
    async fn connect_again(&self, since: Time, pause: &mut Duration) -> Option<Vec<Connected>> {
        let deadline = since + self.remote.target.reconnect;
        while !self.remote.is_closing() {
            self.wait(*pause, deadline).await;
            *pause = (*pause * 2).min(PAUSE_MAX);
            if self.remote.is_closing() {
                break;
            }
            let uri = &self.remote.target.uri;
            match self.try_connect().await {
                // The next owner of the export may have opened it.
                Ok(_) if self.remote.is_closing() => break,
                Ok(connections) => {
                    let kept = self.session.borrow().kept_bytes();
                    let after = self.env.now().since(since).as_secs_f64();
                    let count = connections.len();
                    tracing::info!(
                        "{uri}: connected again after {after:.1} s, connections: {count}; {kept} \
                         bytes of memory hold writes that are sent again"
                    );
                    add(&self.remote.counts.reconnects, 1);
                    self.remote.counts.enter(RemoteState::Connected);
                    self.count_connections(count);
                    return Some(connections);
                }
                Err(error) if meta::is_fence(&error) => {
                    self.stay_fenced(&error).await;
                    break;
                }
                Err(error) => self.env.warn(&format!("{uri} again"), || error.to_string()),
            }
        }
        None
    }

    /// Another client has opened the export: nothing is sent to it any more, and every request
    /// fails, until the disk is closed.
    async fn stay_fenced(&self, error: &ConfigError) {
        tracing::error!("{error}: every request fails until the device is opened again");
        self.remote.counts.enter(RemoteState::Fenced);
        self.change(|session, tell| session.fence(tell));
        let mut has_come = true;
        while !self.remote.is_closing() {
            if has_come {
                self.change(|session, tell| session.give_up(IoError::FENCED, tell));
            }
            has_come = false;
            until(&self.remote.changed, || {
                has_come |= self.take_incoming();
                has_come || self.remote.is_closing()
            })
            .await;
        }
    }

    /// Notes that there is no connection; answers the state of before.
    fn enter(&self, state: RemoteState) -> RemoteState {
        self.count_connections(0);
        self.remote.counts.enter(state)
    }

    fn count_connections(&self, connections: usize) {
        self.remote.counts.connections.store(connections as u64, Ordering::Relaxed);
    }

    /// Requests have waited for a connection for as long as they may: they fail until there is one.
    fn give_up(&self) {
        if self.enter(RemoteState::Unreachable) != RemoteState::Unreachable {
            let (uri, time) = (&self.remote.target.uri, self.remote.target.reconnect.as_secs());
            self.env.warn(&format!("{uri} unreachable"), || {
                format!("{uri}: no connection for {time} s: requests fail until there is one")
            });
        }
        self.take_incoming();
        self.change(|session, tell| session.give_up(IoError::IO, tell));
    }

    /// Waits between two tries. Requests that wait for longer than they may fail.
    async fn wait(&self, pause: Duration, deadline: Time) {
        let end = self.env.now() + pause;
        let is_over = || self.env.now() >= deadline;
        loop {
            if is_over() {
                self.give_up();
            }
            let until = if is_over() { end } else { end.min(deadline) };
            let has_come = || is_over() && self.take_incoming();
            self.env.until_or_time(&self.remote.changed, Some(until), has_come).await;
            if self.env.now() >= end || self.remote.is_closing() {
                return;
            }
        }
    }

    /// Connects on a thread of its own, as that may take its time, and compares the export with the
    /// one of before.
    async fn try_connect(&self) -> Result<Vec<Connected>, ConfigError> {
        let result = Arc::new((Mutex::new(None), Event::new()));
        let (remote, told) = (self.remote.clone(), result.clone());
        let uri = &self.remote.target.uri;
        let most = self.most.get();
        let work = move || {
            let mut connected = connect_all(&remote.target, most);
            // K2: the look comes after the connections.
            if let (Ok(_), Some(Err(other))) = (&connected, remote.meta.as_ref().map(Meta::look)) {
                connected = Err(other);
            }
            *told.0.lock() = Some(connected);
            told.1.notify(usize::MAX);
        };
        let started = std::thread::Builder::new().name("nbd-connect".to_owned()).spawn(work);
        started.map_err(|error| {
            let detail = format!("connect: a thread: {error}");
            ConfigError::new(ConfigKind::System, uri, detail)
        })?;
        let connected = until_some(&result.1, || result.0.lock().take()).await?;
        let sectors = self.remote.sectors.load(Ordering::Relaxed);
        let agreed = connected.first().map_or(self.remote.agreed, |first| first.agreed);
        agreed.refuse_other_than(&self.remote.agreed, sectors, uri)?;
        self.remote.sectors.store(agreed.sectors(), Ordering::Relaxed);
        Ok(connected)
    }

    /// Notes how a connection ends, unless another one has ended before it.
    pub fn note_end(&self, end: End) {
        self.end.borrow_mut().get_or_insert(end);
    }

    /// Ends the connections: what is under way on them ends soon.
    pub fn hang_up(&self, end: End) {
        self.note_end(end);
        self.is_down.set(true);
        self.channels.borrow().iter().for_each(|channel| channel.hang_up());
        self.remote.changed.notify(usize::MAX);
    }

    /// True if the connections have ended, or are to.
    pub fn is_down(&self) -> bool {
        self.is_down.get()
    }

    /// The server has answered a request; of a status request with extents.
    pub fn answered(&self, cookie: u64, result: IoResult, extents: Vec<Extent>) {
        self.extents.replace(extents);
        self.change(|session, tell| session.answered(cookie, result, tell));
        // A request may have waited for this answer, or the end of the link.
        if self.session.borrow().has_next() || self.remote.is_closing() {
            self.remote.changed.notify(usize::MAX);
        }
    }

    /// Changes the session, and tells whom it concerns.
    pub fn change<R>(
        &self,
        change: impl FnOnce(&mut Session<Ticket, Segs>, &mut dyn FnMut(Told<Ticket, Segs>)) -> R,
    ) -> R {
        let mut told = self.told.take();
        let result = change(&mut self.session.borrow_mut(), &mut |one| told.push(one));
        self.publish();
        for one in told.drain(..) {
            match one {
                Told::Lost => self.count_loss(),
                Told::Ended(ticket, result, data) => self.end(ticket, result, &data),
            }
        }
        self.told.replace(told);
        result
    }

    /// Has other threads see what the session counts.
    fn publish(&self) {
        let (session, counts) = (self.session.borrow(), &self.remote.counts);
        let Counts { replayed_bytes, unanswered } = session.counts();
        counts.held_bytes.store(session.held_bytes(), Ordering::Relaxed);
        counts.replayed_bytes.store(replayed_bytes, Ordering::Relaxed);
        counts.retries.store(unanswered, Ordering::Relaxed);
    }

    fn end(&self, ticket: Ticket, result: IoResult, data: &Segs) {
        self.has_ended.set(true);
        match ticket {
            Ticket::Whole(arrival) => self.tell(&arrival, result, data),
            Ticket::Piece(pieces) => {
                pieces.error.set(pieces.error.get().or(result.err()));
                pieces.left.set(pieces.left.get() - 1);
                if pieces.left.get() == 0 {
                    let result = pieces.error.get().map_or(Ok(()), Err);
                    self.tell(&pieces.arrival, result, &pieces.data);
                }
            }
        }
    }

    fn tell(&self, arrival: &Arrival, result: IoResult, data: &Segs) {
        let Arrival { owner, what, count, at } = arrival;
        if let What::Op(op) = *what {
            let (what, times) = ((op, *count), (*at, self.env.now()));
            self.remote.counts.count(ReactorId(0), what, times, result.is_err());
        }
        match owner {
            Owner::Task(answer) => {
                let extents = self.extents.take();
                answer.tell(result.map(|()| extents));
            }
            Owner::Read(id) if id.reactor != self.env.reactor() && result.is_ok() => {
                self.env.complete_read(*id, data.to_vec());
            }
            Owner::Request(id) | Owner::Read(id) => self.env.complete(*id, result),
        }
    }

    /// Gives the session what has come. False if nothing has.
    pub fn take_incoming(&self) -> bool {
        let mut incoming = self.incoming.take();
        self.remote.take_queue(&mut incoming);
        let any = !incoming.is_empty();
        for one in incoming.drain(..) {
            self.submit(one);
        }
        self.incoming.replace(incoming);
        if any {
            self.publish();
        }
        any
    }

    fn submit(&self, incoming: Incoming) {
        let Incoming { mut what, range, flags, data, owner } = incoming;
        let arrival = Arrival { owner, what, count: range.count, at: self.env.now() };
        let data = self.data_of(what, range, data);
        let has_zeroes = self.remote.agreed.flags.contains(TransmissionFlags::SEND_WRITE_ZEROES);
        let is_zeros = what == What::Op(Op::WriteZeroes) && !has_zeroes;
        if is_zeros {
            what = What::Op(Op::Write);
        }
        let has_data = matches!(what, What::Op(Op::Read | Op::Write));
        let data_at = |at: u64, range: SectorRange| match has_data {
            true if is_zeros => self.env.zeros(range.count),
            true => data.slice(at as usize, range.to_bytes() as usize),
            false => Segs::default(),
        };
        let most =
            if has_data { u64::from(self.remote.agreed.payload_bytes_max) } else { PIECE_BYTES };
        if range.to_bytes() <= most {
            let data = data_at(0, range);
            let ask = Ask { what, range, flags, data, owner: Ticket::Whole(arrival) };
            return self.session.borrow_mut().submit(ask);
        }
        // Memory of this reactor belongs to the request itself.
        let count = range.to_bytes().div_ceil(most);
        let (left, error) = (Cell::new(count), Cell::new(None));
        let pieces = Rc::new(Pieces { arrival, data: data.clone(), left, error });
        for piece in 0..count {
            let at = SectorCount::of_bytes(piece * most);
            let range = SectorRange::new(
                range.start + at,
                (range.count - at).min(SectorCount::of_bytes(most)),
            );
            let data = data_at(piece * most, range);
            let ask = Ask { what, range, flags, data, owner: Ticket::Piece(pieces.clone()) };
            self.session.borrow_mut().submit(ask);
        }
    }

    /// The data of a request in this reactor's memory. What is kept must not change.
    fn data_of(&self, what: What, range: SectorRange, data: Data) -> Segs {
        let bytes = range.to_bytes() as usize;
        match (what, data) {
            (What::Op(Op::Write), Data::Bytes(written)) => {
                let segs = self.env.segs(range.count);
                segs.copy_in(0, &written);
                segs
            }
            (What::Op(Op::Write), Data::Of(id)) => {
                let segs = self.env.queued_segs(id).unwrap_or_default().slice(0, bytes);
                if !self.session.borrow().keeps() {
                    return segs;
                }
                let kept = self.env.segs(range.count);
                let mut at = 0;
                segs.for_each(0, bytes, |piece| {
                    kept.copy_in(at, piece);
                    at += piece.len();
                });
                kept
            }
            (What::Op(Op::Read), Data::Of(id)) => {
                self.env.queued_segs(id).unwrap_or_default().slice(0, bytes)
            }
            (What::Op(Op::Read), _) => self.env.segs(range.count),
            _ => Segs::default(),
        }
    }
}
