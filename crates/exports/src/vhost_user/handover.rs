//! Sessions that go on in another process, with their sockets and those that listen.
//!
//! The server pauses: each export accepts no driver, its session takes no message, and its rings
//! take no chain. What was taken ends and is published. [`VhostUserServer::resume`] undoes that.
//! [`VhostUserServer::part`] ends it: each export leaves with its socket, what the last driver
//! chose, and its session: a [`SessionRecord`], and the descriptors that the record counts. The
//! other process judges a record like the messages of a driver ([`VhostUserServer::inherit`]), maps
//! the memory, and starts the rings that ran when its own pause ends.
//!
//! - H1. A session leaves with nothing in flight: a chain that was taken was published. So the
//!   place of each ring says which chains are left, and none runs twice.
//! - H2. A ring looks for chains when it starts. So a notification that came during the handover,
//!   or was taken by the process before, is not missed; and it notifies the driver once.
//! - H3. Judging a record writes to no memory of the driver. Rings open what is kept in flight when
//!   they start. So the process before can go on as long as the pause of this one has not ended.
//! - H4. A record of another version, or one that makes no sense, costs its own session alone: the
//!   socket is closed, and the driver connects again.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cairn_block::Env;
use serde::{Deserialize, Serialize};

use crate::front::{Phase, first};
use crate::listener::{Listener, Listening};

use super::blk::Features;
use super::channel::{Descriptors, Half};
use super::known::{InflightMemory, Known, Ring};
use super::memory::GuestMemory;
use super::notifier::Notifier;
use super::queue::Call;
use super::ring::AnyRing;
use super::server::{Served, VhostUserServer};
use super::wire::{Breach, InflightFacts, ProtocolFeatures, RegionFacts, RingAddresses};

/// The version of a record.
const VERSION: u32 = 1;

/// How often a pause is looked at.
const LOOK: Duration = Duration::from_millis(1);

/// What is known of a session, beside its descriptors: each number counts them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRecord {
    version: u32,
    features: u64,
    protocol: u64,
    socket: usize,
    /// The socket for messages of the server.
    backend: Option<usize>,
    regions: Vec<RegionRow>,
    inflight: Option<InflightRow>,
    rings: Vec<RingRow>,
    /// What was received of a message, and the descriptors that came with it.
    received: (Vec<u8>, Vec<usize>),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RegionRow {
    guest: u64,
    user: u64,
    bytes: u64,
    offset: u64,
    file: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct InflightRow {
    bytes: u64,
    offset: u64,
    queues: u16,
    entries: u16,
    file: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RingRow {
    entries: u32,
    /// Where descriptors, what is available, and what is used are.
    addresses: Option<[u64; 3]>,
    base: u32,
    kick: Option<usize>,
    call: Option<usize>,
    error: Option<usize>,
    enabled: bool,
    owes: bool,
    was_started: bool,
    has_failed: bool,
    /// It ran.
    runs: bool,
}

/// A session that has left.
#[derive(Clone)]
pub struct PartedSession {
    /// What is known of it; none if this version cannot read it.
    pub record: Option<SessionRecord>,
    /// What the record counts.
    pub descriptors: Vec<Arc<OwnedFd>>,
}

/// An export that has left.
#[derive(Clone)]
pub struct PartedExport {
    /// Its name.
    pub name: String,
    /// Where it listened.
    pub listening: Listening,
    /// Writes are volatile until a flush, as a driver chose last.
    pub writeback: bool,
    /// A driver that has left was not told of a loss.
    pub owes: bool,
    /// Its session.
    pub session: Option<PartedSession>,
}

/// What a server leaves to another process.
pub type Estate = Vec<PartedExport>;

/// Counts descriptors as they are named.
#[derive(Default)]
struct Named(Vec<Arc<OwnedFd>>);

impl Named {
    fn add(&mut self, fd: &Arc<OwnedFd>) -> usize {
        self.0.push(fd.clone());
        self.0.len() - 1
    }

    fn call(&mut self, call: &Call) -> Option<usize> {
        call.lock().as_ref().map(|notifier| self.add(&notifier.end))
    }
}

/// Descriptors that are taken by their numbers.
struct Given(Vec<Option<Arc<OwnedFd>>>);

impl Given {
    fn take(&mut self, at: usize) -> Result<Arc<OwnedFd>, Breach> {
        let fd = self.0.get_mut(at).and_then(Option::take);
        fd.ok_or_else(|| Breach::field("descriptor of a record", at, "one that is given once"))
    }

    fn notifier(&mut self, at: Option<usize>) -> Result<Option<Notifier>, Breach> {
        at.map(|at| Notifier::new(self.take(at)?)).transpose()
    }

    fn call(&mut self, at: Option<usize>) -> Result<Call, Breach> {
        self.notifier(at).map(|notifier| Call::new(notifier.into()))
    }
}

impl PartedSession {
    fn of(known: Known) -> PartedSession {
        let mut named = Named::default();
        let (bytes, passed) = known.half.parts();
        let regions = known.memory.regions().map(|(facts, file)| {
            let RegionFacts { guest, user, bytes, offset } = facts;
            RegionRow { guest, user, bytes, offset, file: named.add(file) }
        });
        let regions = regions.collect();
        let inflight = known.inflight.as_ref().map(|InflightMemory { facts, file, .. }| {
            let InflightFacts { bytes, offset, queues, entries } = *facts;
            InflightRow { bytes, offset, queues, entries, file: named.add(file) }
        });
        let record = SessionRecord {
            version: VERSION,
            features: known.features.bits(),
            protocol: known.protocol.bits(),
            socket: named.add(&known.socket),
            backend: known.backend.as_ref().map(|socket| named.add(socket)),
            regions,
            inflight,
            rings: known.rings.iter().map(|ring| RingRow::of(ring, &mut named)).collect(),
            received: (bytes.to_vec(), passed.iter().map(|fd| named.add(fd)).collect()),
        };
        PartedSession { record: Some(record), descriptors: named.0 }
    }

    /// Judges a session as one of an export with so many queues. (H3)
    pub(super) fn judge(self, queues: u16) -> Result<Known, Breach> {
        let unread = || Breach::field("version of a record", "one that cannot be read", "1");
        let record = self.record.ok_or_else(unread)?;
        if record.version != VERSION {
            return Err(Breach::field("version of a record", record.version, "1"));
        }
        let mut given = Given(self.descriptors.into_iter().map(Some).collect());
        let features = Features::from_bits(record.features).ok_or_else(|| {
            Breach::field("features of a record", record.features, "some that are offered")
        })?;
        let protocol = ProtocolFeatures::from_bits(record.protocol).ok_or_else(|| {
            Breach::field("protocol features of a record", record.protocol, "some that are offered")
        })?;
        let mut memory = GuestMemory::default();
        for RegionRow { guest, user, bytes, offset, file } in record.regions {
            memory.add(RegionFacts { guest, user, bytes, offset }, given.take(file)?)?;
        }
        let inflight = record.inflight.map(|row| {
            let InflightRow { bytes, offset, queues, entries, file } = row;
            let facts = InflightFacts { bytes, offset, queues, entries };
            InflightMemory::new(facts, given.take(file)?)
        });
        let (bytes, passed) = record.received;
        let passed = passed.into_iter().map(|fd| given.take(fd));
        let half = Half::of(&bytes, passed.collect::<Result<Descriptors, _>>()?)?;
        let mut known = Known {
            socket: given.take(record.socket)?,
            half,
            backend: record.backend.map(|fd| given.take(fd)).transpose()?,
            features,
            protocol,
            memory,
            inflight: inflight.transpose()?,
            rings: Vec::new(),
        };
        for row in record.rings {
            let ring = row.judge(&mut given)?;
            known.rings.push(ring);
        }
        known.judge_rings(queues)?;
        Ok(known)
    }
}

impl RingRow {
    fn of(ring: &Ring, named: &mut Named) -> RingRow {
        let places = |it: RingAddresses| [it.descriptors, it.available, it.used];
        RingRow {
            entries: ring.entries,
            addresses: ring.addresses.map(places),
            base: ring.base,
            kick: ring.kick.as_ref().map(|kick| named.add(&kick.end)),
            call: named.call(&ring.call),
            error: named.call(&ring.error),
            enabled: ring.enabled,
            owes: ring.owes,
            was_started: ring.was_started,
            has_failed: ring.has_failed,
            runs: ring.goes_on,
        }
    }

    fn judge(self, given: &mut Given) -> Result<Ring, Breach> {
        let addresses = self.addresses.map(|[descriptors, available, used]| RingAddresses {
            descriptors,
            available,
            used,
        });
        Ok(Ring {
            entries: self.entries,
            addresses,
            base: self.base,
            kick: given.notifier(self.kick)?,
            call: given.call(self.call)?,
            error: given.call(self.error)?,
            enabled: self.enabled,
            owes: self.owes,
            was_started: self.was_started,
            has_failed: self.has_failed,
            goes_on: self.runs,
            running: None,
        })
    }
}

impl Known {
    /// Judges the rings, of which there are so many now. Those that the driver never named may go.
    fn judge_rings(&mut self, queues: u16) -> Result<(), Breach> {
        let offered = usize::from(queues);
        let is_named = |ring: &Ring| {
            ring.entries > 0 || ring.addresses.is_some() || ring.enabled || ring.goes_on
        };
        if self.rings.iter().skip(offered).any(is_named) {
            return Err(Breach::field("rings of a record", self.rings.len(), "those offered now"));
        }
        self.rings.resize_with(offered, Ring::default);
        for (index, ring) in self.rings.iter().enumerate().filter(|(_, ring)| ring.goes_on) {
            let facts = ring.facts(self.features).filter(|_| ring.kick.is_some());
            let facts = facts.ok_or_else(|| {
                Breach::field("ring of a record", index, "one that was described, as it runs")
            })?;
            AnyRing::new(&self.memory, facts)?;
            if let Some(inflight) = &self.inflight {
                inflight.region(facts.layout, index, ring.entries)?;
            }
        }
        Ok(())
    }
}

impl VhostUserServer {
    /// Pauses: on return no driver is heard, and all that was taken is published.
    ///
    /// # Errors
    /// So many sessions or rings have not come to that within `patience`. All go on.
    pub async fn pause(&self, env: &Env, patience: Duration) -> Result<(), usize> {
        let (pauses, began) = (&self.0.pauses, env.now());
        for stage in [&pauses.sessions, &pauses.rings] {
            stage.pause.set(Phase::Pausing);
            loop {
                let busy = stage.busy();
                if busy == 0 {
                    break;
                }
                if env.now().since(began) >= patience {
                    self.resume();
                    return Err(busy);
                }
                env.sleep(LOOK).await;
            }
        }
        Ok(())
    }

    /// A server that has no export yet begins with a pause, with the sockets that an earlier
    /// process left: the exports that come use them by their paths.
    pub fn begin_paused(&self, sockets: impl IntoIterator<Item = Listening>) {
        self.set_phase(Phase::Pausing);
        self.0.inherited.lock().extend(sockets);
    }

    fn set_phase(&self, phase: Phase) {
        self.0.pauses.sessions.pause.set(phase);
        self.0.pauses.rings.pause.set(phase);
    }

    /// Ends the pause: drivers go on here. The sockets of an earlier process that no export has are
    /// closed.
    pub fn resume(&self) {
        for unused in std::mem::take(&mut *self.0.inherited.lock()) {
            match Listener::inherited(unused) {
                Ok(listener) => listener.unlink(),
                Err(error) => tracing::warn!("vhost-user: {error}"),
            }
        }
        self.set_phase(Phase::Going);
    }

    /// Ends the pause: all exports leave. What does not leave within `patience` is closed.
    pub async fn part(&self, env: &Env, patience: Duration) -> Estate {
        self.set_phase(Phase::Leaving);
        first(self.0.pauses.sessions.tasks.empty(), env.sleep(patience)).await;
        let exports = std::mem::take(&mut *self.0.exports.lock());
        let parted = |Served { export, listener, known }| PartedExport {
            name: export.name.clone(),
            listening: listener.leave(),
            writeback: export.writeback.load(Ordering::SeqCst),
            owes: export.owes.load(Ordering::SeqCst),
            session: known.lock().take().map(PartedSession::of),
        };
        exports.into_iter().map(parted).collect()
    }

    /// Has exports go on with the sessions of an earlier process when the pause ends. Answers how
    /// many sessions do. (H4)
    pub fn inherit(&self, parted: Estate) -> usize {
        let mut count = 0;
        for PartedExport { name, writeback, owes, session, .. } in parted {
            let served = self.0.exports.lock().iter().find(|it| it.export.name == name).cloned();
            if let Some(Served { export, .. }) = &served {
                export.writeback.store(writeback, Ordering::SeqCst);
                export.owes.store(owes, Ordering::SeqCst);
            }
            let Some(session) = session else { continue };
            match served.map(|it| go_on(&it, session)) {
                Some(Ok(())) => count += 1,
                Some(Err(breach)) => warn(&name, &breach.to_string()),
                None => warn(&name, "it is not served"),
            }
        }
        count
    }
}

fn go_on(Served { export, known, .. }: &Served, session: PartedSession) -> Result<(), Breach> {
    let judged = session.judge(export.queues)?;
    *known.lock() = Some(judged);
    Ok(())
}

fn warn(export: &str, reason: &str) {
    tracing::warn!("export '{export}': session of an earlier process closed: {reason}");
}
