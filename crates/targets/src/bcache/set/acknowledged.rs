//! What clients were told of that no entry of the journal has, in the crash log: a killed process
//! loses the keys of these writes, not their data.
//!
//! # What is acknowledged, and where it is
//! - A write into the cache that becomes dirty data: its key is in memory alone until its group has
//!   *entered* the journal. It has a record: the words of the key.
//! - A write in place: at a place to which a durable key leads. A write around the cache: on the
//!   backing device, behind durable holes. Neither needs a record.
//! - A hole: discards, zeros, and writes around the cache wait until theirs is durable. A key that
//!   moves leads to the same data as the one before it. Neither has a record: the set may be found
//!   without them until their group has entered.
//! - Clean data, evictions, and extents that became clean: the backing device has the data. The set
//!   may be found as it was before.
//! - States of volumes, the array of uuids, superblocks: durable before their answers.
//!
//! # The log
//! A log has the name of the place of the cache device, and belongs to its set. Its state is the
//! newest entry of the journal, by number and checksum. Each entry changes the state, with keys of
//! clients or without. So the log is told of an entry before it is written, and again after that.
//!
//! # Invariants
//! F1. A record is appended as its key enters the tree, under the lock of the set: after its data
//!     was written, before the answer. Room for it was reserved before the data was sent. So
//!     records are in the order of keys (N1).
//! F2. A group that is closed seals the records of its keys, in the same step. They are emptied in
//!     the step in which the group enters, as its last entry is written: a kill takes nothing from
//!     the device. The next group is closed after that (O2), so at most one half is sealed, and the
//!     records are those of the pending and of the committing keys.
//! F3. No bucket to which a record leads is free. If its key was replaced, then by one that is
//!     pending or committing, too. The bucket is free once a checkpoint has ended that began later,
//!     and that has both groups enter first (N4): the record is gone then.
//! F4. Data of a key with a record is not on the backing device, and its key is not clean (N3).
//!     Newer data is not there either: it comes behind a durable hole (R9), and zeros come there
//!     first only while their request has no answer.
//! F5. The keys that are lost with a set that breaks (C2) are not to be replayed: the device may
//!     show other data at their places. The log gives them up, whichever state a failed flush has
//!     taken the device back to. If the cache device has failed since the log began and the process
//!     was killed before the set broke, or if the flush at an opening failed (R12), the next
//!     opening finds another failure count, and gives up what is there, also without records: a
//!     group that had entered and a write in place have none (D1).
//! F6. The log says that there is a loss until each volume concerned has told a client of it. Which
//!     these are is known for losses of this process; those of an earlier one concern all volumes
//!     of the set. Both change under one lock ([`Untold`]), which comes before that of the set.
//!
//! # What a kill leaves
//! Records, in order, that are newer than the journal. An opening takes them as the keys of one
//! more entry (`open`). This is what a power cut may leave right after a group of these keys has
//! become durable, but for holes and moves between them: F3 and F4 say why the set may be found
//! without these. Some of the records may be in entries that are written already: of a group that
//! is about to enter, or the first entries of a group of several. All of them, in order, over these
//! entries, make the same extents again.
//!
//! # A start
//! 1. The set is opened with the records. To read only, that is all: the log keeps them.
//! 2. To change it, a session begins ([`Session::begin`]), which writes what the journal and the
//!    records have into leaves, durably.
//! 3. The log begins again, with the state by then. After that the first request is mapped, and
//!    each volume counts a loss of which no client was told.
//!
//! A kill before 3 leaves the same records, over leaves that may have their keys already.
//!
//! [`Session::begin`]: super::Session::begin

use cairn_block::{
    Base, ConfigError, ConfigKind, CrashLog, Env, FailureCount, Left, Record, failures_at_opening,
};
use cairn_format::bcache::journal::Located;
use cairn_format::bcache::{CacheSuperblock, Key, Uuid, crc64};

use super::core::Core;
use super::session::WriteError;
use crate::bcache::canary::{Bug, planted};
use crate::bcache::journal::EntryWrite;

/// The newest entry of a journal, in one word: the high half of its checksum, and the low half of
/// its number.
type Newest = u64;

fn state_of(seq: u64, csum: u64) -> Newest {
    csum >> 32 << 32 | seq & u64::from(u32::MAX)
}

fn text(state: Newest) -> String {
    format!("entry {} ({:08x})", state as u32, state >> 32)
}

fn record_of(key: &Key) -> Record {
    let mut words = key.words();
    [(); 3].map(|()| words.next().expect("a key to data has three words"))
}

fn key_of(record: &Record) -> Option<Key> {
    Key::of_words(*record).filter(Key::is_dirty)
}

/// The log of an open set, if there is a place for one.
#[derive(Default)]
pub(in super::super) struct Acknowledged {
    log: Option<CrashLog>,
    owner: u64,
    /// The newest entry that is written, and the one that is being written.
    state: Newest,
    next: Newest,
    /// The failure counts beneath the cache device when the set was opened.
    failures: u64,
    /// So many records of an earlier process are not in leaves yet.
    left: usize,
    /// Records count: the log has begun since the set was opened.
    is_live: bool,
}

impl Acknowledged {
    /// Makes room for the record of a write. False if it has to wait for a group commit.
    #[inline]
    pub fn reserve(&mut self) -> bool {
        self.log.as_mut().is_none_or(CrashLog::reserve)
    }

    /// The write has failed.
    pub fn cancel(&mut self) {
        self.log.iter_mut().for_each(CrashLog::cancel);
    }

    /// The write has ended, and its key is in the tree (F1). True if a group commit should begin,
    /// since there is not much room left.
    #[inline]
    pub fn append(&mut self, key: &Key) -> bool {
        let Some(log) = &mut self.log else { return false };
        log.append(record_of(key));
        log.is_half_full()
    }

    /// A group is closed (F2).
    pub fn seal(&mut self) {
        let state = self.state;
        self.log.iter_mut().for_each(|log| log.seal(Some(state)));
        if planted(Bug::RecordsForgottenEarly) {
            self.entered();
        }
    }

    /// The entries of that group are written (F2), or it has none, or its keys are lost.
    pub fn entered(&mut self) {
        self.log.iter_mut().for_each(CrashLog::empty_sealed);
    }

    /// This entry is about to be written.
    pub fn begin_entry(&mut self, entry: &EntryWrite) {
        let next = state_of(entry.seq, entry.csum);
        self.next = next;
        self.log.iter_mut().for_each(|log| log.advance(next));
    }

    /// It is written.
    pub fn end_entry(&mut self) {
        self.state = self.next;
        let state = self.state;
        self.log.iter_mut().for_each(|log| log.advanced(state));
    }

    /// Keys are lost (F5).
    pub fn give_up(&mut self) {
        self.log.iter_mut().for_each(CrashLog::lose);
    }

    /// Clients were told of all losses.
    pub fn told(&mut self) {
        self.log.iter_mut().for_each(CrashLog::told);
    }

    /// Forgets what an earlier process left: the set has it durably, or it is lost. Records count
    /// from now on. True if that process knew of a loss that its clients were not told of.
    fn begin(&mut self) -> bool {
        (self.left, self.is_live) = (0, true);
        let base = Base { owner: self.owner, state: self.state, failures: self.failures };
        let Some(log) = &mut self.log else { return false };
        let is_lost = log.take_loss();
        log.begin(&base);
        is_lost
    }
}

fn owner_of(set: Uuid) -> u64 {
    crc64(&set.0)
}

/// Opens the log of a set with this newest entry. Answers the keys that are newer than that.
///
/// # Errors
/// What was acknowledged belongs to another state of the set, or has no meaning.
pub(super) fn open_log(
    core: &Core,
    superblock: &CacheSuperblock,
    newest: &Located,
) -> Result<(Acknowledged, Vec<Key>), ConfigError> {
    let Some(memory) = &core.log_memory else { return Ok(Default::default()) };
    let owner = owner_of(superblock.set_uuid());
    let state = state_of(newest.header.seq, newest.csum);
    let failures = failures_at_opening(core.cache.disk().as_ref());
    CrashLog::lose_if_failed(memory.as_ref(), failures);
    let (log, left) = CrashLog::open(memory.clone(), &Base { owner, state, failures });
    let argument = &core.cache.device().argument;
    let refuse = |detail: String| {
        ConfigError::new(ConfigKind::Damaged, argument, format!("crash log: {detail}"))
    };
    let keys = match left {
        Left::Records(records) => {
            let keys: Option<Vec<Key>> = records.iter().map(key_of).collect();
            keys.ok_or_else(|| refuse("found a record that is no key to dirty data".to_owned()))?
        }
        Left::Foreign(states) => {
            let states: Vec<String> = states.into_iter().map(text).collect();
            return Err(refuse(format!(
                "found acknowledged writes of a killed server on top of journal {}, expected {} as \
                 on the device: it was used by something else, or formatted; `cairn serve \
                 --discard-crash-log` gives these writes up",
                states.join(" and "),
                text(state)
            )));
        }
    };
    let (left, log, is_live, failures) = (keys.len(), Some(log), false, core.cache.known_beneath());
    Ok((Acknowledged { log, owner, state, next: state, failures, left, is_live }, keys))
}

impl Core {
    /// The set was opened. To change it: what an earlier process had acknowledged is durable on
    /// return, and records count from now on.
    ///
    /// # Errors
    /// The set cannot be written.
    pub async fn begin_log(&self, env: &Env, read_only: bool) -> Result<(), WriteError> {
        let count = self.with(|set| set.acknowledged.left);
        let argument = &self.cache.device().argument;
        if read_only {
            if count > 0 {
                tracing::warn!(
                    "{argument}: a server was killed: {count} acknowledged writes are read from \
                     its crash log, and not durable before the set is opened for writing"
                );
            }
            return Ok(());
        }
        if count > 0 {
            self.change(env, async |session| session.begin().await).await?;
            tracing::warn!(
                "{argument}: a server was killed: {count} acknowledged writes are in the set \
                 again, and durable"
            );
        }
        // F6: under the lock of what is untold.
        let mut untold = self.untold.lock();
        self.with(|set| {
            if !set.acknowledged.is_live && set.acknowledged.begin() {
                untold.add_all(set.live_volumes());
            }
        });
        Ok(())
    }

    /// A volume begins to serve the set. If it has to tell its clients of a loss that it has not
    /// counted, `count` does that, and answers the failure count. True then.
    pub fn tells_of_loss(&self, inode: u32, count: impl FnOnce() -> u64) -> bool {
        self.untold.lock().raise(inode, count)
    }

    /// A client of the volume was told of all its failures.
    pub fn told(&self, inode: u32, failures: &FailureCount) {
        let mut untold = self.untold.lock();
        if untold.told(inode, failures.told())
            && let Some(set) = self.lock().as_mut()
        {
            set.acknowledged.told();
        }
    }
}

/// The volumes whose clients are to be told of losses of the set. The log says that there is a loss
/// until there are none (F6).
#[derive(Default)]
pub(in super::super) struct Untold(Vec<Owed>);

struct Owed {
    inode: u32,
    /// The failure count of the mapped device that has the loss; none before the volume serves.
    count: Option<u64>,
}

impl Untold {
    /// A volume is to tell its clients, who find the loss in this count.
    pub fn add(&mut self, inode: u32, count: Option<u64>) {
        self.0.retain(|owed| owed.inode != inode);
        self.0.push(Owed { inode, count });
    }

    fn add_all(&mut self, inodes: impl Iterator<Item = u32>) {
        inodes.for_each(|inode| self.add(inode, None));
    }

    fn raise(&mut self, inode: u32, count: impl FnOnce() -> u64) -> bool {
        let owed = self.0.iter_mut().find(|owed| owed.inode == inode && owed.count.is_none());
        let Some(owed) = owed else { return false };
        owed.count = Some(count());
        true
    }

    /// Clients of a volume were told of so many failures. True if none are to be told any more.
    fn told(&mut self, inode: u32, told: u64) -> bool {
        let before = self.0.len();
        let is_told = |owed: &Owed| owed.count.is_some_and(|count| count <= told);
        self.0.retain(|owed| owed.inode != inode || !is_told(owed));
        before > 0 && self.0.is_empty()
    }
}
