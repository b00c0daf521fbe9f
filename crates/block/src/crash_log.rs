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
//! durable, the sealed half is emptied ([`CrashLog::empty_sealed`]). So a reader that finds the
//! first half's state on the device replays both, one that finds the second's replays that, since
//! the commit has landed, and one that finds neither knows that something else has changed the
//! device in between.
//!
//! A target whose device also changes in other ways, so that its state is another one although it
//! lacks the same records, says so before and after each such change ([`CrashLog::advance`],
//! [`CrashLog::advanced`]). In between a reader may find either state. It replays all records then,
//! so that those which the device has by then do no harm when they are replayed again.
//!
//! What is replayed is committed before anything is served. The target says what state that commit
//! will leave ([`CrashLog::include`]): found with that state, the log is in the metadata already.
//!
//! # Losses
//! A failure may have lost acknowledged writes whose records are here. [`CrashLog::lose`] says so:
//! they are not replayed, since the device may hold something else in their place. And until a
//! client was told of the loss ([`CrashLog::told`]), each process that opens the log counts it once
//! for its own clients ([`CrashLog::take_loss`]). If the failure counts of the disks changed and
//! the process was killed before the target looked ([`CrashLog::survived`]), that is a loss, too.
//!
//! A failed flush may take a device back to a state from before those that the log names, and with
//! it what records stood for that are gone. So a log that is lost has nothing to replay whichever
//! state is found. [`CrashLog::lose_if_failed`] looks at the failure counts also if there are no
//! records.
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
//!     forgets what was included. In each gap a reader finds nothing to replay.
//! L6. [`CrashLog::lose`] says first that a client is to be told, and then that nothing is to be
//!     replayed: no reader finds less than what was acknowledged without a loss.
//! L7. [`CrashLog::advance`] names the state to come in one store, before the device can have it.
//!     [`CrashLog::advanced`] forgets it once all open halves extend it. Until then a reader that
//!     finds it replays all.
//!
//! One writer at a time: the target's own lock orders records. Nothing here waits or allocates but
//! the reader.

mod failures;
mod memory;
mod record;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub(crate) use failures::{begin_count, count_in, told_in};
pub use memory::{Content, CrashLogs, CrashMemory, KeptLogs, KeptMemory};
pub use record::Record;

use memory::{Half, Header, NO_PROCESS, NO_STATE};

/// What a target appends to, under its own lock.
pub struct CrashLog {
    memory: Arc<dyn CrashMemory>,
    /// The open half; the other one is sealed or empty.
    open: usize,
    generation: u64,
    /// Records of the open half, and how many each half has room for.
    len: usize,
    capacity: usize,
    /// Records that requests in flight will append.
    reserved: usize,
    /// The other half has records of a commit that has not ended.
    is_sealed: bool,
}

/// What a log extends.
#[derive(Clone, Copy)]
pub struct Base {
    /// Stands for everything that has to be the same: which devices, which arguments.
    pub owner: u64,
    /// What a reader of the device finds there.
    pub state: u64,
    /// The failure counts of the disks that have the data of records:
    /// [`crate::failures_at_opening`] to open a log, and else [`crate::failures_beneath`].
    pub failures: u64,
}

/// What an earlier process left.
#[derive(Debug, PartialEq, Eq)]
pub enum Left {
    /// What it had acknowledged on top of the device's state, in order.
    Records(Vec<Record>),
    /// It had acknowledged writes on top of these states, and the device has another one. Or the
    /// device was used with other arguments then.
    Foreign(Vec<u64>),
}

impl CrashLog {
    /// Looks at what an earlier process left, for a device that is like this now.
    pub fn open(memory: Arc<dyn CrashMemory>, base: &Base) -> (CrashLog, Left) {
        let header = Header::of(memory.as_ref());
        if !header.is_valid() {
            header.format(base, memory.process());
        }
        let halves = header.halves();
        let newest = halves.iter().map(Half::generation).max().unwrap_or_default();
        let left = left(&header, base);
        let log = CrashLog {
            open: 0,
            generation: newest,
            len: 0,
            capacity: header.half(0).capacity(),
            reserved: 0,
            is_sealed: false,
            memory: memory.clone(),
        };
        (log, left)
    }

    /// True if nothing in this memory is of use to a later process. Memory without meaning is kept.
    pub fn says_nothing(memory: &dyn CrashMemory) -> bool {
        let header = Header::of(memory);
        match header.is_valid() {
            true => header.untold() == 0 && unreplayed(&header).iter().all(|half| half.1 == 0),
            false => failures::says_nothing(memory),
        }
    }

    /// True if what is in this memory goes with a device of this state, with or without records.
    pub fn names(memory: &dyn CrashMemory, state: u64) -> bool {
        let header = Header::of(memory);
        let extends = |half: &Half<'_>| half.is_open() && half.state() == state;
        let is_one = header.included() == Some(state) || header.halves().iter().any(extends);
        header.is_valid() && is_one
    }

    /// What an earlier process left in this memory, if it was not replayed: the states that it may
    /// extend, each with its number of records.
    pub fn unreplayed(memory: &dyn CrashMemory) -> Vec<(u64, usize)> {
        let header = Header::of(memory);
        if header.is_valid() { unreplayed(&header) } else { Vec::new() }
    }

    /// Gives up what an earlier process left in this memory. Answers how many records that were: if
    /// any, the next process to open the log tells its clients of a loss.
    pub fn discard(memory: &dyn CrashMemory) -> usize {
        let header = Header::of(memory);
        let records = CrashLog::unreplayed(memory).iter().map(|half| half.1).sum();
        if records > 0 {
            header.set_untold(NO_PROCESS);
            empty_in_order(&header);
        }
        records
    }

    /// The next commit is one of all that was left, and leaves this state. Durable or not, from now
    /// on a device with that state needs none of it.
    pub fn include(&mut self, state: u64) {
        Header::of(self.memory.as_ref()).include(state);
    }

    /// Forgets what was left: the device has it, or it is given up. Records extend what the device
    /// is now.
    pub fn begin(&mut self, base: &Base) {
        let header = Header::of(self.memory.as_ref());
        header.include(base.state);
        empty_in_order(&header);
        (self.open, self.len, self.is_sealed) = (0, 0, false);
        self.generation += 1;
        header.half(0).open(self.generation, base.state, true);
        header.begin(base, self.memory.process());
    }

    /// Keeps what was left, as these records; the state is as it was. [`Self::begin`] would forget
    /// it, and a target without a commit has it nowhere else.
    pub fn go_on(&mut self, state: u64, records: impl Iterator<Item = Record>) {
        let header = Header::of(self.memory.as_ref());
        let open = [0, 1].into_iter().filter(|&index| header.half(index).is_open());
        self.open = open.max_by_key(|&index| header.half(index).generation()).unwrap_or_default();
        self.compact(state, records);
    }

    /// The records of the open half, in order.
    pub fn records(&self) -> Vec<Record> {
        Header::of(self.memory.as_ref()).half(self.open).records()
    }

    /// No failure until this count ([`crate::failures_beneath`]) has lost what is recorded.
    pub fn survived(&mut self, failures: u64) {
        Header::of(self.memory.as_ref()).set_survived(failures);
    }

    /// Makes room for a record that [`Self::append`] or [`Self::cancel`] will ask for. False if the
    /// open half is full: the target has to commit first.
    pub fn reserve(&mut self) -> bool {
        self.reserve_some(1) == 1
    }

    /// Makes room for up to so many records, as [`Self::reserve`] does for one. Answers for how
    /// many.
    pub fn reserve_some(&mut self, most: usize) -> usize {
        let some = most.min(self.capacity - self.len - self.reserved);
        self.reserved += some;
        some
    }

    /// Gives back what was reserved.
    pub fn cancel(&mut self) {
        self.cancel_some(1);
    }

    /// Gives back what was reserved for so many records.
    pub fn cancel_some(&mut self, count: usize) {
        self.reserved -= count;
    }

    /// Appends a record for which there is room.
    pub fn append(&mut self, record: Record) {
        self.reserved -= 1;
        self.add(record);
    }

    /// Appends a record that has reserved nothing. False if there is no room: the target has to
    /// [`Self::compact`] the log.
    pub fn append_unreserved(&mut self, record: Record) -> bool {
        let has_room = self.len + self.reserved < self.capacity;
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

    /// There is nothing left to replay or to tell, unless the process has not begun to serve.
    /// [`Self::begin`] is next, if anything is.
    pub fn empty(&mut self) {
        if self.memory.is_of_a_start() {
            return;
        }
        let header = Header::of(self.memory.as_ref());
        empty_in_order(&header);
        header.find_again();
        header.set_untold(0);
    }

    /// A new record will soon find no room.
    pub fn is_nearly_full(&self) -> bool {
        8 * self.len >= 7 * self.capacity
    }

    /// Half of the open half's records are in use: the target should commit.
    pub fn is_half_full(&self) -> bool {
        2 * self.len >= self.capacity
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

    /// The device is about to have this state. It may, or may not, have some of the records then.
    pub fn advance(&mut self, state: u64) {
        Header::of(self.memory.as_ref()).advance(state);
    }

    /// The device has that state. All records extend it.
    pub fn advanced(&mut self, state: u64) {
        let header = Header::of(self.memory.as_ref());
        header.halves().iter().filter(|half| half.is_open()).for_each(|half| half.extend(state));
        header.advance(NO_STATE);
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
            if self.len + self.reserved == self.capacity {
                return self.lose();
            }
            self.add(record);
        }
        new.open(self.generation, state, true);
        old.empty();
    }

    /// Acknowledged writes may be lost, although a device may show them: what is recorded is not to
    /// be replayed. This process tells its clients.
    pub fn lose(&mut self) {
        Header::of(self.memory.as_ref()).lose(self.memory.process());
    }

    /// The same, if the device has failed since an earlier process began its log, for a device that
    /// has this failure count now ([`crate::failures_at_opening`]).
    pub fn lose_if_failed(memory: &dyn CrashMemory, failures: u64) {
        let header = Header::of(memory);
        let is_earlier = header.is_valid() && header.begun_by() != memory.process();
        if is_earlier && !header.is_lost() && header.survived() != failures {
            header.lose(NO_PROCESS);
        }
    }

    /// A failure may have lost acknowledged writes that have no record here. This process tells its
    /// clients.
    pub fn count_loss(&mut self) {
        Header::of(self.memory.as_ref()).set_untold(self.memory.process());
    }

    /// True if an earlier process knew of a loss that no client was told of. This one has to tell
    /// its clients, and is not asked again.
    pub fn take_loss(&mut self) -> bool {
        let header = Header::of(self.memory.as_ref());
        let counted_by = header.untold();
        let process = self.memory.process();
        let is_earlier = counted_by != 0 && counted_by != process;
        if is_earlier {
            header.set_untold(process);
        }
        is_earlier
    }

    /// True if what is recorded is not to be replayed.
    pub fn is_lost(&self) -> bool {
        Header::of(self.memory.as_ref()).is_lost()
    }

    /// A client was told of all losses.
    pub fn told(&mut self) {
        Header::of(self.memory.as_ref()).set_untold(0);
    }
}

/// Empties both halves, the older one first: what is left in between is a log whose commit landed.
fn empty_in_order(header: &Header<'_>) {
    let mut halves = header.halves();
    halves.sort_by_key(Half::generation);
    halves.iter().for_each(Half::empty);
}

/// The halves whose records count, in order.
fn counting<'m>(header: &Header<'m>) -> Vec<Half<'m>> {
    let mut halves: Vec<Half<'_>> = header.halves().into_iter().filter(Half::is_open).collect();
    halves.sort_by_key(Half::generation);
    if let Some(whole) = halves.iter().rposition(Half::is_whole) {
        halves.drain(..whole);
    }
    halves
}

fn unreplayed(header: &Header<'_>) -> Vec<(u64, usize)> {
    let counted = |half: &Half<'_>| (half.state(), half.records().len());
    match header.is_lost() {
        true => Vec::new(),
        false => counting(header).iter().map(counted).collect(),
    }
}

/// What is to be done with what memory has.
fn left(header: &Header<'_>, base: &Base) -> Left {
    let halves = counting(header);
    let records: Vec<Vec<Record>> = halves.iter().map(Half::records).collect();
    let states: Vec<u64> = halves.iter().map(Half::state).collect();
    let first = match header.next() == Some(base.state) && !states.is_empty() {
        true => Some(0),
        false => states.iter().position(|&it| it == base.state),
    };
    let is_included = header.included() == Some(base.state);
    let is_empty = records.iter().all(Vec::is_empty);
    // A kill came before the target knew of a failure.
    let is_of_use = !is_empty && !is_included && !header.is_lost();
    if is_of_use && header.survived() != base.failures {
        header.lose(NO_PROCESS);
    }
    match first {
        _ if is_empty || is_included || header.is_lost() => Left::Records(Vec::new()),
        _ if header.owner() != base.owner => Left::Foreign(named(states, header)),
        None => Left::Foreign(named(states, header)),
        Some(first) => Left::Records(records[first..].concat()),
    }
}

/// The states that have a name, each once.
fn named(states: Vec<u64>, header: &Header<'_>) -> Vec<u64> {
    let all = states.into_iter().chain(header.next());
    let mut named: Vec<u64> = all.filter(|&state| state != NO_STATE).collect();
    named.dedup();
    named
}
