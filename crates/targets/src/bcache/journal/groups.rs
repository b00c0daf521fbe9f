//! Group commits: the keys of clients enter the journal.
//!
//! # Order of a commit
//! 0. If few writes of data are in flight, the commit waits until none is, or some more have ended,
//!    for [`PATIENCE`] at most: a write takes less time than the flush that it would miss. On a
//!    device that is not volatile there is no flush to miss: the commit waits only if less than
//!    [`SHORT`] is in flight, which takes less time than the entry that it would miss. Data that is
//!    sent before an entry has mostly ended when the entry has, and joins the next one; and while
//!    an entry of some clients is written, the device is busy with the data of others.
//! 1. With the turn of the journal, under the lock: the group is closed. It has all pending keys,
//!    and all waiters (G2).
//! 2. Directly after that the cache device is flushed, if there are keys, a group has entered (O2),
//!    or a client relies on a write in place (V4). The data of the keys is durable then, as it
//!    had completed when they became pending. Keys whose data completes later join the next group.
//! 3. The entries with the keys are written, one at a time (J1). Each but the last has FUA. The
//!    last one has FUA on an idle ring: no waiter of the next group has come, and the flush of 2
//!    has answered none, which would come back soon. Otherwise it is only written: the flush of
//!    the next group, which begins when that write ends, makes it durable (R14). So under load a
//!    group costs one write and one flush. On a device that is not volatile the next entry is sent
//!    in the turn in which this one ends, before the data of the clients that get their answers:
//!    behind that it would wait, and all clients with it.
//! 4. Once the last entry is durable, flushes and FUA writes that waited complete.
//!
//! If the journal has no room, a checkpoint frees it first.
//!
//! # Invariants
//! O1. A group is closed when a flush is submitted, never later: no key in it has data that the
//!     flush does not cover.
//! O2. At most one group has *entered*: its entry is written and not durable. The next entry, of
//!     whatever task, is written behind a flush that begins after the end of that write (J1). So
//!     what the entry frees in the ring is not overwritten before it is durable (J2).
//! O3. A waiter gets its answer when the entries of its group, and so those of all groups before
//!     it, are durable. Before that its keys count as volatile.
//!
//! # What a crash leaves
//! - Before 3: data that no key leads to.
//! - During 3: the keys of the first entries. None of the waiters was answered.
//! - Between 3 and 4: the entry, or not, or a part of it, which fails its checksum. Nothing was
//!   written behind it (O2), so the ring ends with the entry before it, all of whose keys and names
//!   are durable. None of the waiters was answered (O3).
//! - If the flush between 3 and 4 fails, the set is broken: the keys of the group that has entered
//!   count as lost, as those of the closed one and of the pending ones.

use std::sync::Arc;
use std::time::Duration;

use cairn_block::{Env, Flags, IoError, IoResult, mutants, until};

use super::{EntryWrite, NoEntry};
use crate::bcache::canary::{Bug, planted};
use crate::bcache::coverage::{self, Path};
use crate::bcache::set::{Core, Set, WriteError};
use crate::fair::Held;
use crate::group_commit::{Ticket, Waiter, tell};

/// For how many checkpoints a commit waits that finds no room: one may run already, and does not
/// free the entries that were written since it began.
const WAITS: u32 = 2;
/// So many writes of data in flight are few; after so many more the commit waits no longer.
const FEW: u64 = 8;
/// See step 0: sectors.
const SHORT: u64 = 32;
/// See step 0.
const PATIENCE: Duration = Duration::from_millis(2);

impl Core {
    /// Writes the next entry of the journal, durably, after all that was written before. If that
    /// fails the set is broken before another one has the turn: an entry behind one that is not
    /// there is a gap (J1).
    ///
    /// # Errors
    /// There is no room for it, or it cannot be written.
    pub async fn write_entry(
        &self,
        env: &Env,
        build: impl FnOnce(&mut Set) -> Result<EntryWrite, NoEntry>,
    ) -> Result<(), WriteError> {
        let _turn = self.journal_turn.lock().await;
        if self.is_broken() {
            return Err(WriteError::Broken);
        }
        let entry = self.with(|set| {
            let entry = build(set)?;
            set.acknowledged.begin_entry(&entry);
            Ok::<_, NoEntry>(entry)
        })?;
        let written = self.cache.commit(env, entry.sector, &entry.bytes).await;
        // With the turn: no entry is written behind one that may be damaged.
        let written = written.map_err(WriteError::Cache);
        written.inspect_err(|error| self.break_down(env, error))?;
        self.with(|set| {
            set.acknowledged.end_entry();
            set.journal.newest_is_durable();
        });
        Ok(())
    }

    /// Waits until all keys that are pending are durable.
    ///
    /// # Errors
    /// They are lost.
    pub async fn commit(&self, env: &Env) -> IoResult {
        let ticket = Arc::new(Ticket::default());
        self.with(|set| set.changes.commits.join(Waiter::Ticket(ticket.clone())));
        self.kick_commit(env);
        ticket.wait().await
    }

    /// Starts the commit task on this reactor, unless one runs.
    pub fn kick_commit(&self, env: &Env) {
        if self.with(|set| set.changes.commits.starts()) {
            self.start_commit(env);
        }
    }

    /// Starts the commit task on this reactor. The caller found that none runs (G3).
    pub fn start_commit(&self, env: &Env) {
        self.spawn(env, async |core, env| core.commit_loop(env).await);
    }

    async fn commit_loop(&self, env: &Env) {
        let mut entered = None;
        loop {
            entered = self.commit_once(env, entered).await;
            if !self.with(|set| set.changes.commits.goes_on(entered.is_some())) {
                self.changed.notify(usize::MAX);
                return;
            }
        }
    }

    /// Makes the group durable that has entered, and commits the next one. Answers the waiters of
    /// that, if only the next flush makes it durable.
    async fn commit_once(&self, env: &Env, entered: Option<Vec<Waiter>>) -> Option<Vec<Waiter>> {
        self.wait_for_arrivals(env).await;
        let turn = self.journal_turn.lock().await;
        let (mut waiters, mut has_keys) = self.close_group(entered.is_some());
        let is_idle = entered.as_ref().is_none_or(Vec::is_empty);
        if entered.is_some() || has_keys || self.cache.owes_a_flush() {
            let flushed = self.make_group_durable(env, entered.is_some()).await;
            self.answer(env, entered.unwrap_or_default(), flushed);
            if planted(Bug::GroupClosedLate) {
                has_keys |= self.with(|set| set.changes.close_again());
            }
        }
        let mut committed = if self.is_broken() { Err(IoError::IO) } else { Ok(true) };
        if has_keys && committed.is_ok() {
            committed = self.write_group(env, turn, is_idle).await.map_err(|error| {
                self.break_down(env, &error);
                IoError::IO
            });
        }
        match committed {
            Ok(true) => tell(env, waiters, Ok(())),
            Err(error) => self.answer(env, waiters, Err(error)),
            Ok(false) => {
                if planted(Bug::AnsweredBeforeFlush) {
                    tell(env, std::mem::take(&mut waiters), Ok(()));
                }
                return Some(waiters);
            }
        }
        None
    }

    /// Answers waiters. If the set is broken, requests are mapped again, to what their volumes do
    /// then (`degraded`).
    fn answer(&self, env: &Env, waiters: Vec<Waiter>, result: IoResult) {
        if result.is_ok() {
            return tell(env, waiters, result);
        }
        for waiter in waiters {
            match waiter {
                Waiter::Request(id) => env.remap(id),
                other => tell(env, vec![other], result),
            }
        }
    }

    /// Step 0.
    async fn wait_for_arrivals(&self, env: &Env) {
        let is_volatile = self.cache.disk().nature().volatile;
        let (begun, are_few) = self.with(|set| {
            let arrivals = &set.changes.arrivals;
            let (begun, in_flight) = arrivals.in_flight();
            let is_short = is_volatile || arrivals.sectors() <= SHORT;
            (begun, (1..=FEW).contains(&in_flight) && is_short)
        });
        if !are_few {
            return;
        }
        let have_ended = || self.with(|set| set.changes.arrivals.have_ended(begun, FEW));
        env.until_or_time(&self.arrived, Some(env.now() + PATIENCE), have_ended).await;
    }

    /// Step 1. Answers the waiters, and whether the group has keys. Behind a group that has entered
    /// keys without a waiter have time: the keeper begins their commit.
    fn close_group(&self, has_entered: bool) -> (Vec<Waiter>, bool) {
        self.with(|set| match has_entered && !set.changes.commits.has_waiters() {
            true => (Vec::new(), false),
            false => set.close_group(),
        })
    }

    /// Step 2: the end of the group that has entered.
    async fn make_group_durable(&self, env: &Env, has_entered: bool) -> IoResult {
        let flush = mutants::step("bcache: flush of a group", (), self.cache.flush(env));
        let flushed = match planted(Bug::EntryBehindVolatile) && has_entered {
            true => Ok(()),
            false => flush.await,
        };
        if let Err(error) = flushed {
            self.break_down(env, &WriteError::Cache(error));
        }
        let covered = |set: &mut Set| {
            if has_entered {
                set.group_is_durable();
            }
        };
        self.unless_broken(covered).map_err(|_| IoError::IO)
    }

    /// Notes what was written, unless its keys count as lost.
    fn unless_broken(&self, note: impl FnOnce(&mut Set)) -> Result<(), WriteError> {
        self.with(|set| match self.is_broken() {
            true => Err(WriteError::Broken),
            false => {
                note(set);
                Ok(())
            }
        })
    }

    /// Step 3. The caller has flushed the device, and has the turn of the journal. Answers whether
    /// the group is durable.
    async fn write_group(
        &self,
        env: &Env,
        turn: Held<'_, ()>,
        is_idle: bool,
    ) -> Result<bool, WriteError> {
        let (mut written, count) = (0, self.with(|set| set.changes.committing()));
        let (mut turn, mut waits) = (Some(turn), 0);
        loop {
            let (built, freed) = self.with(|set| (set.entry_of_commit(written), set.changes.freed));
            match built {
                Ok((entry, keys)) => {
                    (written, waits) = (written + keys, 0);
                    let is_last = written == count;
                    let has_come = self.with(|set| set.changes.commits.has_waiters());
                    let waits_for_next = is_last && (has_come || !is_idle);
                    if waits_for_next {
                        coverage::take(Path::SharedFlush);
                    }
                    let fua = if waits_for_next { Flags::empty() } else { Flags::FUA };
                    let written = self.cache.write_entry(env, entry.sector, &entry.bytes, fua);
                    let written = written.await.map_err(WriteError::Cache);
                    written.inspect_err(|error| self.break_down(env, error))?;
                    self.unless_broken(|set| set.acknowledged.end_entry())?;
                    if is_last {
                        let entered = |set: &mut Set| set.group_has_entered(!waits_for_next);
                        return self.unless_broken(entered).map(|()| !waits_for_next);
                    }
                }
                Err(NoEntry::Full) if waits < WAITS => {
                    waits += 1;
                    drop(turn.take());
                    self.wait_for_room(freed).await;
                    turn = Some(self.journal_turn.lock().await);
                }
                Err(error) => return Err(error.into()),
            }
            if self.is_broken() {
                return Err(WriteError::Broken);
            }
        }
    }

    /// Waits for a checkpoint, which the keeper runs. (The holder of the turn may be one that waits
    /// for this commit.)
    async fn wait_for_room(&self, freed: u64) {
        coverage::take(Path::FullRing);
        self.with(|set| set.changes.needs_room = true);
        self.changed.notify(usize::MAX);
        until(&self.changed, || self.is_broken() || self.with(|set| set.changes.freed > freed))
            .await;
    }
}
