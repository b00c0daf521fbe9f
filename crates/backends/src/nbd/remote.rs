//! [`Remote`]: what the reactors share of a disk at a server: its facts, and the way of requests to
//! the task that has the connections.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use cairn_block::sync::Mutex;
use cairn_block::{Env, Extent, Flags, FlushGate, IoError, ReactorId, RequestId, SectorRange};
use event_listener::Event;

use super::connect::Connected;
use super::link::Link;
use super::meta::Meta;
use super::uri::Target;
use crate::answer::Answer;
use crate::remote::{RemoteCounts, add};
use cairn_nbd::negotiation::Agreed;
use cairn_nbd::session::{Care, What};
use cairn_nbd::wire::TransmissionFlags;

/// See the module's description.
pub(super) struct Remote {
    pub target: Target,
    /// What this client keeps beside the export.
    pub meta: Option<Meta>,
    /// At the first connection.
    pub agreed: Agreed,
    /// How many connections the server took when the disk was opened.
    pub connections: usize,
    /// The size in sectors, at the newest connection.
    pub sectors: AtomicU64,
    /// Flushes, and what failed.
    pub gate: FlushGate,
    /// The link's task alone counts requests.
    pub counts: RemoteCounts,
    inbox: Mutex<Inbox>,
    /// The inbox has changed, or something for which the link's task waits.
    pub changed: Event,
}

struct Inbox {
    /// The reactor that has the connections, once there was a request.
    home: Option<ReactorId>,
    /// The connections that were made when the disk was opened.
    first: Option<Vec<Connected>>,
    queue: Vec<Incoming>,
    is_closing: bool,
}

/// A request on its way to the link.
pub(super) struct Incoming {
    pub what: What,
    pub range: SectorRange,
    pub flags: Flags,
    pub data: Data,
    pub owner: Owner,
}

/// The data of a request.
pub(super) enum Data {
    /// That of the request in this slot, which is queued on the link's reactor.
    Of(RequestId),
    /// What another reactor's request writes.
    Bytes(Vec<u8>),
    /// None.
    None,
}

/// The owner of a request: it gets the result.
#[derive(Clone)]
pub(super) enum Owner {
    /// A queued request of any reactor.
    Request(RequestId),
    /// A queued read, which gets its data first if it is on another reactor.
    Read(RequestId),
    /// A task that waits.
    Task(Arc<Answer<Vec<Extent>>>),
}

impl Remote {
    pub fn new(
        (target, meta): (Target, Option<Meta>),
        (agreed, first): (Agreed, Vec<Connected>),
        gate: FlushGate,
    ) -> Remote {
        let connections = first.len();
        let inbox = Inbox { home: None, first: Some(first), queue: Vec::new(), is_closing: false };
        let counts = RemoteCounts::default();
        counts.prepare(1);
        add(&counts.connections, connections as u64);
        Remote {
            target,
            meta,
            agreed,
            connections,
            sectors: AtomicU64::new(agreed.sectors()),
            gate,
            counts,
            inbox: Mutex::new(inbox),
            changed: Event::new(),
        }
    }

    /// What is done for writes that the server has answered and not flushed.
    pub fn care(&self) -> Care {
        let flags = self.agreed.flags;
        let is_volatile = flags.contains(TransmissionFlags::SEND_FLUSH)
            && !flags.contains(TransmissionFlags::READ_ONLY);
        match self.target.replay {
            _ if !is_volatile => Care::Nothing,
            Some(bytes) => Care::Keep(bytes),
            None => Care::Tell,
        }
    }

    /// Takes a request. The first one makes its reactor the home of the connections. `data` is
    /// asked whether that is this one.
    pub fn send(
        self: &Arc<Self>,
        env: &Env,
        (what, range, flags): (What, SectorRange, Flags),
        data: impl FnOnce(bool) -> Data,
        owner: Owner,
    ) {
        let mut inbox = self.inbox.lock();
        let home = *inbox.home.get_or_insert(env.reactor());
        if let Some(first) = inbox.first.take() {
            Link::start(env, self.clone(), first);
        }
        drop(inbox);
        // A copy of data may take its time.
        let data = data(home == env.reactor());
        let incoming = Incoming { what, range, flags, data, owner };
        self.inbox.lock().queue.push(incoming);
        self.changed.notify(usize::MAX);
    }

    /// The same, and waits for the end.
    pub async fn ask(
        self: &Arc<Self>,
        env: &Env,
        what: (What, SectorRange, Flags),
        data: impl FnOnce(bool) -> Data,
    ) -> Result<Vec<Extent>, IoError> {
        let answer = Arc::<Answer<Vec<Extent>>>::default();
        self.send(env, what, data, Owner::Task(answer.clone()));
        answer.wait().await
    }

    /// What has come since the last call.
    pub fn take_queue(&self, into: &mut Vec<Incoming>) {
        into.append(&mut self.inbox.lock().queue);
    }

    /// No request comes any more.
    pub fn close(&self) {
        self.inbox.lock().is_closing = true;
        self.changed.notify(usize::MAX);
    }

    pub fn is_closing(&self) -> bool {
        self.inbox.lock().is_closing
    }
}
