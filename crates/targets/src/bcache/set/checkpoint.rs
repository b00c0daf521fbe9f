//! A checkpoint: the leaves on the device follow what clients changed.
//!
//! # Order
//! 1. Under the lock: the sectors for which leaves are behind, all of them. Keys that come later
//!    belong to the next checkpoint.
//! 2. These sectors are written in leaves (`btree::write`), durably.
//! 3. An entry of the journal says that none from before 1 is open, durably.
//! 4. What is pending enters the journal, durably (N4). If that fills the journal with entries from
//!    after 1, only another checkpoint makes room: 1 to 4 again, for this one as well.
//! 5. The requests end that found what was replaced before 1.
//! 6. Buckets that had lost their last extent before 1 are free (K1).
//! 7. The priorities are written, if a generation is far ahead of them (K3).
//!
//! # What a crash leaves
//! - Before 3: leaves with some keys of open entries. A replay goes over them, to a state that the
//!   flushes allow: `docs/decisions/0011`.
//! - After 4: no key that counts leads to a bucket of 6. One in a leaf was replaced in 2; one in an
//!   entry from before 1 is not open; one in a later entry was pending at 1 with what replaced it,
//!   which comes behind it.

use std::pin::pin;

use cairn_block::{Env, until};
use futures_util::future::{Either, select};

use super::core::Core;
use super::session::{Left, Session, WriteError};
use crate::bcache::btree::Unwritten;
use crate::bcache::coverage::{self, Path};

impl Core {
    /// Brings the leaves up to date.
    ///
    /// # Errors
    /// The set cannot be written.
    pub async fn checkpoint(&self, env: &Env) -> Result<(), WriteError> {
        self.change(env, async |session| session.checkpoint().await).await
    }
}

impl Session<'_> {
    /// See [`Core::checkpoint`].
    pub async fn checkpoint(&self) -> Result<(), WriteError> {
        let number = loop {
            let (keys, number) = self.with(|set| set.begin_checkpoint());
            let mut left = Left::of(Unwritten::gather(&keys).await);
            drop(keys);
            while !left.is_empty() {
                self.write_some(&mut left).await?;
            }
            self.with(|set| set.leaves_written());
            self.close_journal().await?;
            self.with(|set| set.entries_freed());
            self.core.changed.notify(usize::MAX);
            if self.commit_unless_full().await? {
                break number;
            }
            coverage::take(Path::CheckpointAgain);
        };
        self.core.readers.quiesce(0).await;
        self.with(|set| set.end_checkpoint(number));
        self.refill().await;
        let waiting = self.with(|set| set.changes.take_waiting());
        self.core.remap_all(self.env, waiting);
        match self.with(|set| set.buckets.are_far_ahead()) {
            true => self.write_priorities().await,
            false => Ok(()),
        }
    }

    /// Step 4. False if the commit waits for room.
    async fn commit_unless_full(&self) -> Result<bool, WriteError> {
        let core = self.core;
        let is_full = until(&core.changed, || self.with(|set| set.changes.needs_room));
        match select(pin!(core.commit(self.env)), pin!(is_full)).await {
            Either::Left((committed, _)) => committed.map(|()| true).map_err(WriteError::Cache),
            Either::Right(_) => Ok(false),
        }
    }
}
