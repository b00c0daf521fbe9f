//! Group commits: the keys of clients enter the journal.
//!
//! # Order of a commit
//! 1. Under the lock: all pending keys, and all waiters (G2).
//! 2. The cache device is flushed: the data of the keys is durable, as it had completed when they
//!    became pending.
//! 3. The entries with the keys are written, one at a time, each durably (J1, J4).
//! 4. Flushes and FUA writes that waited complete.
//!
//! If the journal has no room, a checkpoint frees it first.
//!
//! # What a crash leaves
//! - Before 3: data that no key leads to.
//! - During 3: the keys of the first entries. None of the waiters was answered.

use std::sync::Arc;

use cairn_block::{Env, IoError, IoResult, until};

use super::{EntryWrite, NoEntry};
use crate::bcache::set::{Core, Set, WriteError};
use crate::group_commit::{Ticket, Waiter, tell};

/// For how many checkpoints a commit waits that finds no room: one may run already, and does not
/// free the entries that were written since it began.
const WAITS: u32 = 2;

impl Core {
    /// Writes the next entry of the journal, durably, after all that was written before.
    ///
    /// # Errors
    /// There is no room for it, or it cannot be written.
    pub async fn write_entry(
        &self,
        env: &Env,
        build: impl FnOnce(&mut Set) -> Result<EntryWrite, NoEntry>,
    ) -> Result<(), WriteError> {
        let _turn = self.journal_turn.lock().await;
        let entry = self.with(build)?;
        let written = self.cache.commit(env, entry.sector, &entry.bytes).await;
        written.map_err(WriteError::Cache)
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
        loop {
            self.commit_once(env).await;
            if !self.with(|set| set.changes.commits.goes_on(false)) {
                self.changed.notify(usize::MAX);
                return;
            }
        }
    }

    async fn commit_once(&self, env: &Env) {
        let waiters = self.with(|set| set.changes.begin_commit());
        let result = match self.is_broken() {
            true => Err(IoError::IO),
            false => match self.write_group(env).await {
                Ok(()) => {
                    self.with(|set| set.changes.end_commit());
                    Ok(())
                }
                Err(error) => {
                    self.break_down(env, &error);
                    Err(IoError::IO)
                }
            },
        };
        match result {
            Ok(()) => tell(env, waiters, result),
            Err(error) => self.give_up(env, waiters, error),
        }
    }

    /// The set is broken: requests are mapped again, to what their volumes do then (`degraded`).
    fn give_up(&self, env: &Env, waiters: Vec<Waiter>, error: IoError) {
        for waiter in waiters {
            match waiter {
                Waiter::Request(id) => env.remap(id),
                other => tell(env, vec![other], Err(error)),
            }
        }
    }

    /// Steps 2 and 3.
    async fn write_group(&self, env: &Env) -> Result<(), WriteError> {
        let (mut written, count) = (0, self.with(|set| set.changes.committing()));
        let mut waits = 0;
        while written < count {
            let mut some = 0;
            let freed = self.with(|set| set.changes.freed);
            let build = |set: &mut Set| {
                let (entry, keys) = set.entry_of_commit(written)?;
                some = keys;
                Ok(entry)
            };
            match self.write_entry(env, build).await {
                Ok(()) => (written, waits) = (written + some, 0),
                Err(WriteError::Journal(NoEntry::Full)) if waits < WAITS => {
                    waits += 1;
                    self.wait_for_room(freed).await;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits for a checkpoint, which the keeper runs. (The holder of the turn may be one that waits
    /// for this commit.)
    async fn wait_for_room(&self, freed: u64) {
        self.with(|set| set.changes.needs_room = true);
        self.changed.notify(usize::MAX);
        until(&self.changed, || self.is_broken() || self.with(|set| set.changes.freed > freed))
            .await;
    }
}
