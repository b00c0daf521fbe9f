//! The keeper: the task of an open set that decides when keys enter the journal, and when leaves
//! follow.

use std::time::Duration;

use cairn_block::sync::atomic::Ordering;
use cairn_block::{Env, Time};

use super::core::Core;
use super::session::WriteError;
use crate::bcache::work;

/// How long leaves are behind at most.
const CHECKPOINT_DELAY: Duration = Duration::from_secs(30);
/// How many keys leaves are behind at most.
const BEHIND_MAX: usize = 100_000;
/// After a checkpoint that made no bucket free: how long until the next one.
const SHORT_DELAY: Duration = Duration::from_millis(100);

impl Core {
    /// When a key enters the journal at the latest that comes now.
    pub fn commit_at(&self, env: &Env) -> Time {
        env.now() + Duration::from_millis(self.journal_delay_ms.load(Ordering::Relaxed))
    }

    /// Keeps the set until it is broken or stopped.
    pub async fn keep(&self, env: &Env) {
        let (mut checkpoint_at, mut short_at) = (env.now() + CHECKPOINT_DELAY, Time(0));
        loop {
            let commit_at = self.with(|set| set.changes.commit_due());
            let is_short = self.with(|set| set.is_short());
            let short = is_short.then_some(short_at);
            let next = [commit_at, short, Some(checkpoint_at)].into_iter().flatten().min();
            env.until_or_time(&self.changed, next, || {
                let news = |set: &mut super::Set| {
                    let has_time = set.changes.commit_due().is_some() && commit_at.is_none();
                    has_time || set.is_short() && !is_short || set.is_far_behind()
                };
                self.is_stopping() || self.is_broken() || self.with(news)
            })
            .await;
            if self.is_stopping() || self.is_broken() {
                return;
            }
            let now = env.now();
            if self.with(|set| set.changes.commit_due()).is_some_and(|at| at <= now) {
                self.kick_commit(env);
            }
            let is_short = self.with(|set| set.is_short()) && short_at <= now;
            let is_behind = self.with(|set| set.is_far_behind());
            if is_short || is_behind || checkpoint_at <= now {
                // An error broke the set.
                let _ = self.make_room(env, is_short).await;
                (checkpoint_at, short_at) = (now + CHECKPOINT_DELAY, env.now() + SHORT_DELAY);
            }
        }
    }

    /// A checkpoint; if buckets are short then, some with clean data are emptied.
    async fn make_room(&self, env: &Env, is_short: bool) -> Result<(), WriteError> {
        self.checkpoint(env).await?;
        self.trim_soon(env);
        if is_short && self.with(|set| set.is_short()) {
            self.change(env, async |session| session.evict().await).await?;
        }
        if self.with(|set| set.is_short()) {
            self.changed.notify(usize::MAX);
        }
        Ok(())
    }
}

impl super::Set {
    /// True if leaves have to follow now.
    fn is_far_behind(&self) -> bool {
        let behind = self.changes.behind();
        let is_behind = behind > BEHIND_MAX || behind > work::piece() && self.tree.has_large_leaf();
        self.changes.needs_room || is_behind
    }

    /// True if requests wait for a bucket, or will soon.
    pub fn is_short(&self) -> bool {
        !self.changes.waiting.is_empty() || self.buckets.are_short()
    }
}
