//! [`RemoteDisk`]: what disks that another process or machine keeps have in common. Their servers
//! may be away, so each one has a state and counts of its own beside those of the volumes above.
//!
//! A disk raises its [`RemoteCounts`] where its requests end; [`RemoteFigures`] are their values at
//! one moment, for any thread. Requests that the disk answers without its server are not counted.
//!
//! Must never: allocate or lock while a request is counted.

use std::sync::OnceLock;

use cairn_block::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use cairn_block::{Disk, Op, ReactorId, SectorCount, SharedTraffic, Time, Traffic};

/// A disk that another process or machine keeps.
pub trait RemoteDisk: Disk {
    /// What keeps it.
    fn kind(&self) -> RemoteKind;

    /// Its state, and what passed it so far.
    fn figures(&self) -> RemoteFigures;
}

/// What keeps a remote disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteKind {
    /// An NBD server.
    Nbd,
    /// A Ceph cluster.
    Rbd,
    /// A web server or an object store.
    Object,
}

impl RemoteKind {
    /// Its name in figures.
    pub fn name(self) -> &'static str {
        match self {
            RemoteKind::Nbd => "nbd",
            RemoteKind::Rbd => "rbd",
            RemoteKind::Object => "object",
        }
    }
}

/// The state of a remote disk, as its last request or connection has shown it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RemoteState {
    /// Requests are answered.
    Connected,
    /// The connection is lost, or a request has failed: requests wait while it is tried again.
    Reconnecting,
    /// It was tried again for as long as the URI says: requests fail until it succeeds.
    Unreachable,
    /// The server answers that it refuses the request.
    Refused,
    /// Another client has taken the disk over: every request fails.
    Fenced,
    /// The object was changed since it was opened: every read fails.
    Changed,
}

impl RemoteState {
    /// All of them, by their numbers.
    pub const ALL: [RemoteState; 6] = [
        RemoteState::Connected,
        RemoteState::Reconnecting,
        RemoteState::Unreachable,
        RemoteState::Refused,
        RemoteState::Fenced,
        RemoteState::Changed,
    ];

    /// Its name in figures.
    pub fn name(self) -> &'static str {
        match self {
            RemoteState::Connected => "connected",
            RemoteState::Reconnecting => "reconnecting",
            RemoteState::Unreachable => "unreachable",
            RemoteState::Refused => "refused",
            RemoteState::Fenced => "fenced",
            RemoteState::Changed => "changed",
        }
    }
}

/// The figures of a remote disk at one moment. What a kind of disk does not have is none.
#[derive(Clone, Debug)]
pub struct RemoteFigures {
    /// As the table names it.
    pub uri: String,
    /// The same for everyone to see: without what may prove a right of access.
    pub shown: String,
    /// What keeps it.
    pub kind: RemoteKind,
    /// Whether its server answers.
    pub state: RemoteState,
    /// Requests wait, it has answered none for the time that the URI says, and they do not fail by
    /// themselves: a stop leaves without them.
    pub is_silent: bool,
    /// Its length.
    pub size: SectorCount,
    /// Connections of now.
    pub connections: Option<u64>,
    /// Connections that were made after one was lost.
    pub reconnects: Option<u64>,
    /// Requests that a lost connection, or a try that failed, left without an answer.
    pub retries: Option<u64>,
    /// The writes that are kept until they are flushed, if they are.
    pub replay: Option<ReplayFigures>,
    /// Bytes that its server sent as data, those included that were fetched ahead of reads.
    pub fetched_bytes: Option<u64>,
    /// Failures that may have lost writes which the server had answered.
    pub losses: u64,
    /// The requests to its server that have ended. A time begins when the disk takes the request.
    pub traffic: Traffic,
}

/// The writes that a client keeps until they are flushed, to write them again after a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayFigures {
    /// The memory of writes that are kept, or have no answer yet, in bytes.
    pub held_bytes: u64,
    /// The limit of that.
    pub limit_bytes: u64,
    /// Bytes that were written again over another connection.
    pub replayed_bytes: u64,
}

/// The counts of a remote disk, for all threads.
#[derive(Default)]
pub(crate) struct RemoteCounts {
    state: AtomicU8,
    pub connections: AtomicU64,
    pub reconnects: AtomicU64,
    pub retries: AtomicU64,
    pub held_bytes: AtomicU64,
    pub replayed_bytes: AtomicU64,
    traffic: OnceLock<SharedTraffic>,
}

impl RemoteCounts {
    /// Makes room for the counts of so many reactors. Only the first call has an effect.
    pub fn prepare(&self, reactors: u16) {
        self.traffic.get_or_init(|| SharedTraffic::new(reactors));
    }

    /// A request has ended on its reactor, which counts in cells of its own. Nothing before
    /// [`RemoteCounts::prepare`].
    #[inline]
    pub fn count(
        &self,
        reactor: ReactorId,
        what: (Op, SectorCount),
        times: (Time, Time),
        failed: bool,
    ) {
        if let Some(traffic) = self.traffic.get() {
            traffic.count(reactor, what, times, failed);
        }
    }

    /// Answers the state of before.
    pub fn enter(&self, state: RemoteState) -> RemoteState {
        state_of(self.state.swap(state as u8, Ordering::Relaxed))
    }

    pub fn state(&self) -> RemoteState {
        state_of(self.state.load(Ordering::Relaxed))
    }

    pub fn traffic(&self) -> Traffic {
        self.traffic.get().map(SharedTraffic::sum).unwrap_or_default()
    }
}

fn state_of(number: u8) -> RemoteState {
    RemoteState::ALL[usize::from(number)]
}

/// The value of a count.
pub(crate) fn value(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

/// Raises a count that any thread may raise.
pub(crate) fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::{RemoteCounts, RemoteState};

    #[test]
    fn a_state_is_the_one_that_was_entered_last() {
        let counts = RemoteCounts::default();
        assert_eq!(counts.state(), RemoteState::Connected);
        for state in RemoteState::ALL {
            counts.enter(state);
            assert_eq!(counts.state(), state);
        }
        assert_eq!(counts.enter(RemoteState::Connected), RemoteState::Changed);
    }
}
