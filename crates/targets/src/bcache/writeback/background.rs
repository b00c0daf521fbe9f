//! Writeback in the background: it keeps the amount of dirty data near its target at the pace of
//! the throttle, and makes buckets free when they are short.
//!
//! What is at most the target waits for `writeback_delay` after something became dirty, and after
//! each pass over the backing device; then it is written back slowly. More than that is written
//! back at once, at the rate of the controller. If buckets are short, neither the rate nor
//! `writeback_running` counts: requests may wait for a bucket.
//!
//! What is written back at a pace also keeps to the server's limit of background copies: each batch
//! is a turn of it. The wait for a turn comes before the batch has any lock, key or bucket, so that
//! no client, drain or end of the volume waits for the limit.

use std::pin::pin;
use std::time::Duration;

use cairn_block::sync::atomic::Ordering;
use cairn_block::{CopyError, Env, SECTOR_BYTES, TURN_BYTES, Time, Turn};
use cairn_format::bcache::Key;
use futures_util::future::{Either, select};

use super::policy::{Policy, Shape};
use super::sweep::{Sweep, planned_time};
use super::uncopied::Uncopied;
use super::{How, Undrained};
use crate::bcache::coverage::{self, Path};
use crate::bcache::set::Set;
use crate::bcache::volume::Bcache;

/// How long writeback waits after a pass in which nothing could be copied, or that failed.
const PAUSE: Duration = Duration::from_secs(5);

/// When buckets are short, a batch is sealed after this time: its flush makes some free.
const URGENT_TIME: Duration = Duration::from_millis(250);

/// What there is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// Nothing, until something changes.
    None,
    /// Nothing before this time.
    Later(Time),
    /// At the pace of the throttle.
    Paced,
    /// As fast as possible.
    Urgent,
}

/// Where the task is.
struct Pass {
    /// Something was copied in this pass.
    has_begun: bool,
    /// The next batch begins here, unless there is a sweep.
    from: u64,
    sweep: Option<Sweep>,
    /// Requests of clients, as of the last batch.
    requests: u64,
    /// How long the drive may take for a batch.
    planned: Duration,
    /// What is at most the target waits until then; none if nothing was dirty.
    calm_until: Option<Time>,
    /// After a failure all waits until then.
    failed_until: Time,
}

impl Bcache {
    /// Writes back until the volume is suspended or its set is broken.
    pub(in super::super) async fn write_back(&self, env: &Env) {
        let core = self.core.as_ref().expect("it has a cache");
        let mut pass = Pass {
            has_begun: false,
            from: 0,
            sweep: None,
            requests: 0,
            planned: Duration::ZERO,
            calm_until: None,
            failed_until: Time(0),
        };
        loop {
            if self.is_resting() || self.is_degraded() {
                return;
            }
            let update_at = self.update_rate(env);
            let found = self.work(env, &mut pass);
            let turn = match found {
                Work::None => {
                    env.until_or_time(&core.changed, None, || self.has_news(env, found, &mut pass))
                        .await;
                    continue;
                }
                Work::Later(at) => {
                    let news = || self.has_news(env, found, &mut pass);
                    env.until_or_time(&core.changed, Some(at.min(update_at)), news).await;
                    continue;
                }
                Work::Paced => match self.next_turn(env, &mut pass).await {
                    Some(turn) => Some(turn),
                    None => continue,
                },
                Work::Urgent => None,
            };
            let ended = self.write_back_some(env, &mut pass, turn).await;
            if let Ok(true) = ended {
                pass.has_begun = true;
                continue;
            }
            match ended {
                Ok(_) if pass.has_begun => pass.calm_until = Some(env.now() + self.calm()),
                Ok(_) => pass.failed_until = env.now() + PAUSE,
                Err(error) => {
                    let volume = &self.config.volume;
                    env.warn(volume, || format!("{volume}: writeback: {error}"));
                    pass.failed_until = env.now() + PAUSE;
                }
            }
            (pass.has_begun, pass.from, pass.sweep) = (false, 0, None);
        }
    }

    /// Waits for a turn of the limit of background copies; none if the task has to look again.
    async fn next_turn<'e>(&self, env: &'e Env, pass: &mut Pass) -> Option<Turn<'e>> {
        let core = self.core.as_ref().expect("it has a cache");
        let mut turn = pin!(env.background().turn(env));
        loop {
            // The rate goes on while this waits.
            let update_at = self.update_rate(env);
            let news = || self.has_news(env, Work::Paced, pass);
            let other = env.until_or_time(&core.changed, Some(update_at), news);
            if let Either::Left((turn, _)) = select(turn.as_mut(), pin!(other)).await {
                return Some(turn);
            }
            if self.has_news(env, Work::Paced, pass) {
                return None;
            }
        }
    }

    /// True if the task has to look again.
    fn has_news(&self, env: &Env, found: Work, pass: &mut Pass) -> bool {
        self.is_resting() || self.is_degraded() || self.work(env, pass) != found
    }

    /// How long what is at most the target waits.
    fn calm(&self) -> Duration {
        Duration::from_secs(self.throttle.settings.delay.load(Ordering::Relaxed))
    }

    fn work(&self, env: &Env, pass: &mut Pass) -> Work {
        let dirty = self.dirty_sectors();
        if dirty == 0 {
            pass.calm_until = None;
            return Work::None;
        }
        let now = env.now();
        let calm_until = *pass.calm_until.get_or_insert_with(|| now + self.calm());
        let looked = self.look(|set| (set.is_short(), dirty > self.dirty_target(set)));
        let (is_short, is_above) = looked.unwrap_or_default();
        match is_short {
            _ if now < pass.failed_until => Work::Later(pass.failed_until),
            true => Work::Urgent,
            false if !self.throttle.settings.is_running() => Work::Later(Time(u64::MAX)),
            false if is_above || self.is_boosted() || now >= calm_until => Work::Paced,
            false => Work::Later(calm_until),
        }
    }

    /// The keys of the next batch of a pass.
    async fn next_keys(&self, env: &Env, pass: &mut Pass, policy: Policy, most: u64) -> Vec<Key> {
        if policy != Policy::Sweep {
            pass.sweep = None;
            return self.next_dirty(env, pass.from, most).await;
        }
        let is_above = || self.look(|set| self.dirty_sectors() > self.dirty_target(set));
        let mut sweep = match pass.sweep.take() {
            Some(sweep) if !sweep.is_old(env.now()) || is_above() != Some(true) => sweep,
            before => self.plan_pass(env, before).await,
        };
        let keys = self.next_swept(env, &mut sweep, most, pass.planned).await;
        pass.sweep = Some(sweep);
        keys
    }

    /// Nothing of a batch could be copied. If requests wait for a bucket, its errors count, so that
    /// a dead device reaches its limit and these requests are answered.
    fn count_uncopied(&self, env: &Env, failed: &[Uncopied]) {
        let is_wanted = self.look(|set| !set.changes.waiting.is_empty());
        if !is_wanted.unwrap_or_default() {
            return;
        }
        for one in failed {
            match one.error {
                CopyError::Read(error) => self.count_cache(env, Err(error)),
                CopyError::Write(error) => self.count_backing(env, Err(error)),
            }
        }
    }

    /// How the copies of a batch are issued.
    fn shape(&self, policy: Policy, is_calm: bool) -> Shape {
        let has_parity = self.stripes.as_ref().is_some_and(|it| it.expensive_size() > 0);
        match policy {
            Policy::Sweep if has_parity && is_calm => Shape::GATHERED,
            policy => policy.shape(),
        }
    }

    /// Writes back one batch, at the pace of the throttle if it has a turn. Answers false if
    /// nothing of the pass is left, or nothing could be copied.
    async fn write_back_some(
        &self,
        env: &Env,
        pass: &mut Pass,
        turn: Option<Turn<'_>>,
    ) -> Result<bool, Undrained> {
        let is_paced = turn.is_some();
        let _turn = self.draining.lock().await;
        let _batch = self.batching.lock().await;
        let policy = self.throttle.settings.policy();
        let most = match is_paced {
            true if env.background().is_on() => self.paced_batch().min(TURN_BYTES / SECTOR_BYTES),
            true => self.paced_batch(),
            false => u64::MAX,
        };
        let (requests, _) = self.requests();
        let are_active = std::mem::replace(&mut pass.requests, requests) != requests;
        // Requests that wait for a bucket are not counted again.
        let [paced, paced_time] = self.config.flushing.batch_time;
        pass.planned = planned_time(paced, pass.planned, are_active || !is_paced);
        let keys = self.next_keys(env, pass, policy, most).await;
        if let Some(turn) = turn {
            let sectors: u64 = keys.iter().map(Key::sectors).sum();
            turn.spend(sectors * SECTOR_BYTES);
        }
        if keys.is_empty() {
            return Ok(false);
        }
        coverage::take(if is_paced { Path::PacedBatch } else { Path::UrgentBatch });
        coverage::take(policy.path());
        let (is_boosted, settings) = (self.is_boosted(), &self.throttle.settings);
        let gives_way = || {
            let is_short = || self.look(Set::is_short).unwrap_or_default();
            let is_wanted = self.drains_waiting.load(Ordering::Relaxed) > 0;
            let has_ended = is_boosted && !self.is_boosted() || !settings.is_running();
            is_wanted || has_ended || is_short()
        };
        let ends = || self.is_resting() || self.is_degraded() || is_paced && gives_way();
        let time = if is_paced { paced } else { URGENT_TIME };
        let shape = self.shape(policy, self.is_calm(pass.planned));
        let how = How { ends: &ends, is_paced, time, paced_time, shape };
        let mut batch = self.write_batch(env, keys, how).await?;
        pass.from = batch.next;
        if let Some(sweep) = &mut pass.sweep {
            sweep.add_again(&batch.untried);
        }
        if batch.written.is_empty() {
            self.count_uncopied(env, &batch.failed);
            // Without a failure, it gave way before its first write.
            return Ok(batch.failed.is_empty());
        }
        batch.written.sort_unstable_by_key(Key::start);
        self.make_clean(env, &batch.written).await?;
        self.core.as_ref().expect("it has a cache").changed.notify(usize::MAX);
        Ok(true)
    }
}
