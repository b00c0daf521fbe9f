//! The crash log: what a target has acknowledged and not yet made durable, in memory that outlives
//! its process.
//!
//! A killed process loses what it has in memory only: entries, mappings and keys of writes that it
//! has answered and not yet committed. The data of these writes is on its disks. So the target
//! appends a [`Record`] for each of them, a few stores, and the next process replays them. After a
//! power cut the memory does not exist, and nothing is promised that was not before.
//!
//! # Halves
//! Records go to the open half. It extends metadata that the target names by one number, its
//! *state*: what a reader of the device finds there. A commit seals the half at the moment in which
//! it decides what it covers ([`CrashLog::seal`]), and records go to the other half from then on,
//! which extends the state that the commit will leave. A target that does not know that state yet
//! names it later ([`CrashLog::name_state`]), before the device can have it. Once the commit is
//! durable, the sealed half is emptied ([`CrashLog::empty_sealed`]). So a reader that finds the first half's state on the
//! device replays both, one that finds the second's replays that, since the commit has landed, and
//! one that finds neither knows that somebody else has changed the device in between.
//!
//! What is replayed is committed before anything is served. The target says what state that commit
//! will leave ([`CrashLog::include`]): found with that state, the log is in the metadata already.
//!
//! # What a kill between two stores leaves
//! L1. A record counts if its check does, which is stored last, with release order. It depends on
//!     the half's generation, so that what an earlier generation left there does not count.
//! L2. A half counts if its check does, which is stored last when it is opened, and cleared first
//!     when it is emptied. Generations never repeat: a new one is above all that memory names, and
//!     an emptied half keeps the number of its own.
//! L3. [`CrashLog::seal`] opens the other half before the sealed one is touched. Until the target's
//!     device has the new state, both are replayed, in the order of their generations.
//! L4. [`CrashLog::compact`] names the generation of the other half, puts records there, and then
//!     opens it as one that replaces the older half.
//! L5. [`CrashLog::begin`] includes the device's state, empties both halves, opens one, and then
//!     forgets what was included. In each gap a reader finds nothing to replay, or a loss that is
//!     told once more.
//!
//! One writer at a time: the target's own lock orders records. Nothing here waits or allocates but
//! the reader.

mod memory;
mod record;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use memory::{CrashLogs, CrashMemory, KeptLogs, KeptMemory};
pub use record::Record;

use memory::{Half, Header, NO_STATE};

/// What a target appends to, under its own lock.
pub struct CrashLog {
    memory: Arc<dyn CrashMemory>,
    /// The open half; the other one is sealed or empty.
    open: usize,
    generation: u64,
    /// Records of the open half, and those that it has room for.
    len: usize,
    /// Records that requests in flight will append.
    reserved: usize,
    /// The other half has records of a commit that has not ended.
    is_sealed: bool,
}

/// What an earlier process left.
#[derive(Debug, PartialEq, Eq)]
pub enum Left {
    /// What it had acknowledged on top of the device's state, in order.
    Records(Vec<Record>),
    /// It had acknowledged writes, and knew of a failure that may have lost some.
    Lost,
    /// It had acknowledged writes on top of these states, and the device has another one. Or the
    /// device was used with other arguments then.
    Foreign(Vec<u64>),
}

impl CrashLog {
    /// Looks at what an earlier process left, for a device that has this state now. `owner` stands
    /// for everything else that has to be the same: which devices, which arguments.
    pub fn open(memory: Arc<dyn CrashMemory>, owner: u64, state: u64) -> (CrashLog, Left) {
        let header = Header::of(memory.as_ref());
        if !header.is_valid() {
            header.format(owner);
        }
        let halves = header.halves();
        let newest = halves.iter().map(Half::generation).max().unwrap_or_default();
        let left = left(&header, owner, state);
        let log = CrashLog {
            open: 0,
            generation: newest,
            len: 0,
            reserved: 0,
            is_sealed: false,
            memory: memory.clone(),
        };
        (log, left)
    }

    /// The next commit is one of all that was left, and leaves this state. Durable or not, from now
    /// on a device with that state needs none of it.
    pub fn include(&mut self, state: u64) {
        Header::of(self.memory.as_ref()).include(state);
    }

    /// Forgets what was left: the device has it, or it is given up. Records extend this state, which
    /// the device has.
    pub fn begin(&mut self, owner: u64, state: u64) {
        let header = Header::of(self.memory.as_ref());
        header.include(state);
        let mut halves = header.halves();
        halves.sort_by_key(Half::generation);
        halves.iter().for_each(Half::empty);
        (self.open, self.len, self.is_sealed) = (0, 0, false);
        self.generation += 1;
        header.half(0).open(self.generation, state, true);
        header.begin(owner);
    }

    /// Makes room for a record that [`Self::append`] or [`Self::cancel`] will ask for. False if the
    /// open half is full: the target has to commit first.
    pub fn reserve(&mut self) -> bool {
        let has_room = self.len + self.reserved < self.capacity();
        self.reserved += usize::from(has_room);
        has_room
    }

    /// Gives back what was reserved.
    pub fn cancel(&mut self) {
        self.reserved -= 1;
    }

    /// Appends a record for which there is room.
    pub fn append(&mut self, record: Record) {
        self.reserved -= 1;
        self.add(record);
    }

    /// Appends a record that has reserved nothing. False if there is no room: the target has to
    /// [`Self::compact`] the log.
    pub fn append_unreserved(&mut self, record: Record) -> bool {
        let has_room = self.len + self.reserved < self.capacity();
        if has_room {
            self.add(record);
        }
        has_room
    }

    fn add(&mut self, record: Record) {
        let half = Header::of(self.memory.as_ref()).half(self.open);
        half.put(self.generation, self.len, record);
        self.len += 1;
    }

    /// Half of the open half's records are in use: the target should commit.
    pub fn is_half_full(&self) -> bool {
        2 * self.len >= self.capacity()
    }

    /// A commit has decided what it covers: all records until now. It will leave this state; with
    /// None, [`Self::name_state`] says which, before the device can have it.
    ///
    /// # Panics
    /// The commit before has not ended.
    pub fn seal(&mut self, state: Option<u64>) {
        assert!(!self.is_sealed, "one commit at a time");
        self.generation += 1;
        (self.open, self.len, self.is_sealed) = (1 - self.open, 0, true);
        let state = state.unwrap_or(NO_STATE);
        Header::of(self.memory.as_ref()).half(self.open).open(self.generation, state, false);
    }

    /// The commit under way will leave this state.
    ///
    /// # Panics
    /// No commit is under way.
    pub fn name_state(&mut self, state: u64) {
        assert!(self.is_sealed, "a commit is under way");
        Header::of(self.memory.as_ref()).half(self.open).extend(state);
    }

    /// The commit is durable.
    pub fn empty_sealed(&mut self) {
        if std::mem::take(&mut self.is_sealed) {
            Header::of(self.memory.as_ref()).half(1 - self.open).empty();
        }
    }

    /// These records stand for all that is uncommitted, in place of those before; the state is as
    /// it was. If they have no room, the log says that something is lost: a kill is reported then,
    /// and loses as without a log.
    ///
    /// # Panics
    /// A commit is under way.
    pub fn compact(&mut self, state: u64, records: impl Iterator<Item = Record>) {
        assert!(!self.is_sealed, "no commit is under way");
        let memory = self.memory.clone();
        let header = Header::of(memory.as_ref());
        let (old, new) = (header.half(self.open), header.half(1 - self.open));
        (self.open, self.generation, self.len) = (1 - self.open, self.generation + 1, 0);
        new.name(self.generation);
        for record in records {
            if self.len + self.reserved == new.capacity() {
                return self.lose();
            }
            self.add(record);
        }
        new.open(self.generation, state, true);
        old.empty();
    }

    /// Acknowledged writes may be lost, although a device may show them: what is recorded is not to
    /// be replayed.
    pub fn lose(&mut self) {
        Header::of(self.memory.as_ref()).lose();
    }

    /// How many records a half has room for.
    fn capacity(&self) -> usize {
        Header::of(self.memory.as_ref()).half(self.open).capacity()
    }
}

/// What is to be done with what memory has.
fn left(header: &Header<'_>, owner: u64, state: u64) -> Left {
    let mut halves: Vec<Half<'_>> = header.halves().into_iter().filter(Half::is_open).collect();
    halves.sort_by_key(Half::generation);
    if let Some(whole) = halves.iter().rposition(Half::is_whole) {
        halves.drain(..whole);
    }
    let records: Vec<Vec<Record>> = halves.iter().map(Half::records).collect();
    let states: Vec<u64> = halves.iter().map(Half::state).collect();
    let first = states.iter().position(|&it| it == state);
    let is_included = header.included() == Some(state);
    let is_empty = records.iter().all(Vec::is_empty);
    match (header.is_lost(), first) {
        (false, _) if is_empty || is_included => Left::Records(Vec::new()),
        _ if header.owner() != owner => Left::Foreign(named(states)),
        (true, None) if is_included || states.is_empty() => Left::Lost,
        (_, None) => Left::Foreign(named(states)),
        (true, Some(_)) => Left::Lost,
        (false, Some(first)) => Left::Records(records[first..].concat()),
    }
}

/// The states that have a name.
fn named(states: Vec<u64>) -> Vec<u64> {
    states.into_iter().filter(|&state| state != NO_STATE).collect()
}
