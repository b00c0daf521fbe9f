//! [`Line`]: the way of requests to a drive that is at a server, over connections that are lost.
//! Which request is sent when is decided by the client's own [`Session`]; the line has what is
//! beneath it: messages, connections and the server.
//!
//! Fault model:
//! - A connection is lost at a message, by a seeded choice: at a request, which is then not carried
//!   out; at an answer to one that was carried out. Other requests on their way are not carried
//!   out, and those that the server has begun are carried out and not answered.
//! - With [`Remote::kills`], half of the losses are deaths of the server: what is volatile in the
//!   drive is lost, kept or torn as by a power cut, while the client goes on.
//! - The client connects again after a seeded time. If that is longer than [`Remote::reconnect`],
//!   requests fail with planted errors until then.
//! - Another host opens the drive at a moment that a test chooses
//!   ([`crate::Faults::take_away`]). The connection ends with the next message, as if this host had
//!   been stopped until then. The client finds the session of the other one before it sends
//!   anything, and every request fails. A write that the server gets from it nevertheless ends the
//!   run.
//! - When the process of the client is killed, what the session kept is gone. The server goes on.
//!   A power cut is one of both.
//! - A server has ended the requests of one connection before it takes the next. (One that carries
//!   out a request of a lost connection after those of the next breaks every client that sends
//!   again what was not answered. The protocol has nothing against that.)
//!
//! A loss that is told raises the failure count of the drive, and counts as a planted error.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::{
    Disk, Env, ErrorKind, Flags, Flow, FlushGate, Io, IoError, Limits, Op, Request, RequestId,
    SectorCount, SectorRange, mutants,
};
use cairn_nbd::session::{Ask, Care, Data, Session, Told, What};
use parking_lot::Mutex;

use super::{DriveShared, Medium};
use crate::mechanics::Mechanics;

/// The longest way of a message, in nanoseconds.
const WAY_NS: u64 = 60_000;

/// Between two looks whether a server has ended what it began.
const LOOK: Duration = Duration::from_micros(20);

/// The place of a drive at a server.
#[derive(Clone, Copy, Debug)]
pub struct Remote {
    /// What the client does for writes that were answered and not flushed.
    pub care: Care,
    /// The chance that a message loses the connection, in a thousand.
    pub per_mille: u16,
    /// Losses of a connection may be deaths of the server.
    pub kills: bool,
    /// The longest time without a connection.
    pub outage: Duration,
    /// Requests wait for a connection this long, then they fail.
    pub reconnect: Duration,
    /// Connections are lost only from [`crate::Faults::lose_connections`] on.
    pub begins_well: bool,
}

/// What a request writes: a part of bytes that others share.
#[derive(Clone)]
struct Bytes {
    all: Arc<[u8]>,
    part: Range<usize>,
}

impl Bytes {
    fn get(&self) -> &[u8] {
        &self.all[self.part.clone()]
    }
}

impl Data for Bytes {
    fn part(&self, bytes: Range<usize>) -> Bytes {
        let at = self.part.start;
        Bytes { all: self.all.clone(), part: at + bytes.start..at + bytes.end }
    }
}

struct State {
    session: Session<RequestId, Bytes>,
    /// Which connection it is.
    number: u64,
    is_up: bool,
    /// No connection came in time: requests fail.
    is_over: bool,
    /// Another host has the drive.
    is_taken: bool,
    /// Requests that the server has begun, of all connections.
    begun: u32,
}

/// A request on its way.
struct Message {
    connection: u64,
    cookie: u64,
    op: Op,
    range: SectorRange,
    flags: Flags,
    data: Option<Bytes>,
}

struct Inner {
    remote: Remote,
    medium: Arc<DriveShared>,
    gate: Arc<FlushGate>,
    state: Mutex<State>,
}

/// See the module's description.
pub(super) struct Line(Arc<Inner>);

fn mechanics(env: &Env) -> &Rc<Mechanics> {
    env.mechanism().expect("a simulated drive is used in a simulated world")
}

fn below(env: &Env, bound: u64) -> u64 {
    mechanics(env).rng.borrow_mut().u64(..bound)
}

async fn travel(env: &Env) {
    env.sleep(Duration::from_nanos(below(env, WAY_NS))).await;
}

impl Line {
    /// A first connection to the server that has this drive.
    pub fn new(remote: Remote, medium: Arc<DriveShared>, gate: Arc<FlushGate>) -> Line {
        // As the programs' client: such a server has made durable what it has answered.
        let care = if medium.options.volatile_cache { remote.care } else { Care::Nothing };
        let mut session = Session::new(care);
        session.connected();
        let state =
            State { session, number: 0, is_up: true, is_over: false, is_taken: false, begun: 0 };
        Line(Arc::new(Inner { remote, medium, gate, state: Mutex::new(state) }))
    }
}

impl Inner {
    /// Sends what may be sent.
    fn send(self: &Arc<Self>, env: &Env) {
        loop {
            let mut state = self.state.lock();
            let connection = state.number;
            let Some(wire) = state.session.take_next() else { return };
            let What::Op(op) = wire.what else { unreachable!("no disk asks for extents") };
            let (cookie, range, flags) = (wire.cookie, wire.range, wire.flags);
            let data = wire.data.cloned();
            drop(state);
            if self.loses(env) {
                return self.lose(env);
            }
            let message = Message { connection, cookie, op, range, flags, data };
            let (line, own) = (self.clone(), env.clone());
            env.spawn(async move { line.serve(&own, message).await });
        }
    }

    /// A request goes to the server, is carried out and answered.
    async fn serve(self: &Arc<Self>, env: &Env, message: Message) {
        let Message { connection, cookie, op, range, flags, data } = message;
        travel(env).await;
        {
            let mut state = self.state.lock();
            if state.number != connection {
                return;
            }
            let is_write = matches!(op, Op::Write | Op::WriteZeroes | Op::Discard);
            assert!(!(state.is_taken && is_write), "a host that was fenced writes {range}");
            state.begun += 1;
        }
        let segs = env.segs(if op.has_data() { range.count } else { SectorCount::ZERO });
        if let (Op::Write, Some(data)) = (op, data) {
            segs.copy_in(0, data.get());
        }
        let medium: Arc<dyn Disk> = Arc::new(Medium(self.medium.clone()));
        let io = Io { segs: segs.clone(), ..Io::on(op, range) }.with(flags);
        let result = env.io(&medium, io).await;
        self.state.lock().begun -= 1;
        if self.state.lock().number != connection {
            return;
        }
        if self.loses(env) {
            return self.lose(env);
        }
        travel(env).await;
        let mut told = Vec::new();
        {
            let mut state = self.state.lock();
            if state.number != connection {
                return;
            }
            let known = state.session.answered(cookie, result, &mut |one| told.push(one));
            assert!(known, "an answer to a request that was not sent");
        }
        let read = (op == Op::Read && result.is_ok()).then(|| segs.to_vec());
        self.tell(env, told, read);
        self.send(env);
    }

    fn loses(&self, env: &Env) -> bool {
        if self.medium.faults.is_taken() && !self.state.lock().is_taken {
            return true;
        }
        let may = !self.remote.begins_well || self.medium.faults.loses_connections();
        may && below(env, 1000) < u64::from(self.remote.per_mille)
    }

    /// The connection is lost, and perhaps the server with it.
    fn lose(self: &Arc<Self>, env: &Env) {
        let mut told = Vec::new();
        {
            let mut state = self.state.lock();
            if !state.is_up {
                return;
            }
            state.is_up = false;
            state.number += 1;
            state.session.lost(&mut |one| told.push(one));
        }
        self.tell(env, told, None);
        if self.remote.kills {
            let rng = &mut *mechanics(env).rng.borrow_mut();
            if rng.bool() {
                self.medium.die(rng);
            }
        }
        let (line, own) = (self.clone(), env.clone());
        env.spawn(async move { line.connect_again(&own).await });
    }

    async fn connect_again(self: &Arc<Self>, env: &Env) {
        let outage = below(env, self.remote.outage.as_nanos() as u64);
        let outage = Duration::from_nanos(outage);
        env.sleep(outage.min(self.remote.reconnect)).await;
        if outage > self.remote.reconnect {
            self.state.lock().is_over = true;
            self.give_up(env);
            env.sleep(outage - self.remote.reconnect).await;
        }
        while self.state.lock().begun > 0 {
            env.sleep(LOOK).await;
        }
        if self.medium.faults.is_taken() {
            self.state.lock().is_taken = true;
            if !mutants::skips("nbd: look at the session") {
                return self.be_fenced(env);
            }
        }
        {
            let mut state = self.state.lock();
            (state.is_up, state.is_over) = (true, false);
            state.session.connected();
        }
        self.send(env);
    }

    /// Nothing is sent any more, until the drive is opened by another process.
    fn be_fenced(&self, env: &Env) {
        let mut told = Vec::new();
        {
            let mut state = self.state.lock();
            state.is_over = true;
            state.session.fence(&mut |one| told.push(one));
        }
        self.tell(env, told, None);
        self.give_up(env);
    }

    fn give_up(&self, env: &Env) {
        let mut told = Vec::new();
        let mut state = self.state.lock();
        if state.is_over {
            let kind = if state.is_taken { ErrorKind::Fenced } else { ErrorKind::Io };
            let error = IoError::injected(kind);
            state.session.give_up(error, &mut |one| told.push(one));
            self.medium.faults.count();
        }
        drop(state);
        self.tell(env, told, None);
    }

    /// Tells whom it concerns; `read` is the data of a read that has ended.
    fn tell(&self, env: &Env, told: Vec<Told<RequestId, Bytes>>, read: Option<Vec<u8>>) {
        for one in told {
            match (one, &read) {
                (Told::Lost, _) => {
                    self.gate.failures().raise();
                    self.medium.faults.count();
                }
                (Told::Ended(id, ..), Some(bytes)) => env.complete_read(id, bytes.clone()),
                (Told::Ended(id, result, _), None) => env.complete(id, result),
            }
        }
    }
}

impl Disk for Line {
    fn name(&self) -> String {
        Medium(self.0.medium.clone()).name()
    }

    fn sectors(&self) -> SectorCount {
        Medium(self.0.medium.clone()).sectors()
    }

    fn limits(&self) -> Limits {
        Medium(self.0.medium.clone()).limits()
    }

    fn submit(&self, env: &Env, request: &mut Request) -> Flow {
        let (id, op, range) = (request.id(), request.op, request.range);
        let bytes = if op == Op::Write { range.to_bytes() as usize } else { 0 };
        let all: Arc<[u8]> = request.segs.slice(0, bytes).to_vec().into();
        let data = Bytes { all, part: 0..bytes };
        let ask = Ask { what: What::Op(op), range, flags: request.flags, data, owner: id };
        let mut state = self.0.state.lock();
        state.session.submit(ask);
        let is_over = state.is_over;
        drop(state);
        if is_over {
            let (line, own) = (self.0.clone(), env.clone());
            env.spawn(async move { line.give_up(&own) });
        }
        self.0.send(env);
        Flow::Queued
    }
}
