//! Space: how a pool runs out of data blocks or of metadata, how it continues when there is some
//! again, and the warnings before.
//!
//! A write that finds no data block waits while a task looks for one: a commit may free some, and
//! blocks in quarantine become free on their own. If there is none even then, the pool is out of
//! data space: writes that need a block wait, for the time that the table sets, or fail. A write
//! that finds no free metadata waits for a commit, which may free some. If it does not, the write
//! fails: the pool is out of metadata until a discard, a deletion or growth frees some. These have
//! a reserve (S3 in `stock`).

use std::time::Duration;

use cairn_block::Env;

use super::config::Options;
use super::pool::{Mode, Parked, Pool, State};
use super::stock::Purpose;

/// Warnings, by their place in [`State::warned`]; the critical ones are last.
const LOW_WATER: usize = 0;
const METADATA_LOW: usize = 1;
const DATA_MARK: usize = 2;
const METADATA_MARK: usize = 3;
const DATA_CRITICAL: usize = 4;
const METADATA_CRITICAL: usize = 5;
/// How many kinds of warning there are.
pub(super) const WARNINGS: usize = 6;

/// Most metadata blocks that the warning of little metadata is about.
const METADATA_LOW_MAX: u64 = 1024;

/// How full the metadata is before a warning: free blocks.
pub(super) fn metadata_low_watermark(total: u64) -> u64 {
    METADATA_LOW_MAX.min(total / 4)
}

impl Pool {
    /// Parks a write that needs a data block. It is mapped again when there may be one, or when
    /// waiting is pointless.
    pub fn starve(&self, env: &Env, parked: Parked) {
        let mut state = self.state.lock();
        state.starving.push(parked);
        if std::mem::replace(&mut state.seeking, true) {
            return;
        }
        drop(state);
        self.spawn(env, async |pool, env| pool.seek(env).await);
    }

    /// True if a write that needs a data block is to fail.
    pub fn fails_when_full(&self) -> bool {
        let state = self.state.lock();
        state.options.error_if_full || state.impatient
    }

    /// Parks a request that needs free metadata. It is mapped again when there is some, or when
    /// waiting is pointless.
    pub fn crowd(&self, env: &Env, parked: Parked) {
        let mut state = self.state.lock();
        state.crowded.push(parked);
        if std::mem::replace(&mut state.making_room, true) {
            return;
        }
        drop(state);
        self.spawn(env, async |pool, env| pool.make_room(env).await);
    }

    /// Commits until there is free metadata, or until it is certain that there is none.
    async fn make_room(&self, env: &Env) {
        while self.mode().provides() && !self.has_room(Purpose::Provide) {
            let listener = self.changed.listen();
            let fills = self.metadata.acknowledged().is_filling();
            if fills || self.open_volumes().iter().any(|volume| volume.is_dirty()) {
                // Whatever comes of it, the next look tells.
                let _ = self.commit(env).await;
            } else if self.room.is_granted() {
                // A write that was granted its change is under way.
                self.rest_for_change(env, listener).await;
            } else {
                // A message takes room while it acts.
                let _verb = self.verb_lock.lock().await;
                let mode = self.mode();
                if mode.provides() && !self.room.is_granted() && !self.has_room(Purpose::Provide) {
                    self.turn_mode(mode, Mode::OutOfMetadata, "no room is left in the metadata");
                }
            }
        }
        let crowded = {
            let mut state = self.state.lock();
            state.making_room = false;
            std::mem::take(&mut state.crowded)
        };
        crowded.into_iter().for_each(|parked| env.remap(parked.id));
    }

    /// The metadata may have room again.
    pub fn metadata_came(&self) {
        if self.mode() == Mode::OutOfMetadata && self.has_room(Purpose::Provide) {
            let why = "there is room in the metadata again";
            self.turn_mode(Mode::OutOfMetadata, Mode::Write, why);
        }
    }

    /// True if the metadata has room for a change, after everything was given back.
    pub fn has_room(&self, purpose: Purpose) -> bool {
        self.stocks.empty(&self.room, &self.metadata);
        self.room.is_there(&self.metadata, purpose)
    }

    /// Looks for data blocks until there are some, or until it is certain that there are none.
    async fn seek(&self, env: &Env) {
        loop {
            let listener = self.changed.listen();
            // Checked in the order in which freed blocks move, so that none is missed: a commit
            // counts its freed blocks as in quarantine before its changes are durable, and the
            // quarantine frees them before it ends.
            let changed = self.open_volumes().iter().any(|volume| volume.is_changed());
            let quarantined = self.state.lock().quarantined > 0;
            // Blocks in the stocks of reactors are for the waiting writes.
            self.stocks.empty(&self.room, &self.metadata);
            if self.metadata.allocator().free() > 0 || !self.mode().provides() {
                break;
            }
            // A trim puts what is free into quarantine.
            let quarantined = quarantined || self.state.lock().quarantined > 0;
            if changed && self.mode() == Mode::Write {
                // Whatever comes of it, the next look tells.
                let _ = self.commit(env).await;
            } else if quarantined {
                listener.await;
            } else {
                self.run_out(env).await;
                break;
            }
        }
        // After the search, for any reason, the waiting writes look again: they find a block or a
        // gate, fail, or return here.
        let starving = {
            let mut state = self.state.lock();
            state.seeking = false;
            std::mem::take(&mut state.starving)
        };
        starving.into_iter().for_each(|parked| env.remap(parked.id));
    }

    /// There is no data block, not even after a commit. Waits until that has changed, or writes are
    /// to fail.
    async fn run_out(&self, env: &Env) {
        self.turn_mode(Mode::Write, Mode::OutOfData, "no data block is left");
        // Some may have come free before the mode said that they are missed.
        self.space_came();
        let time = {
            let state = self.state.lock();
            if state.options.error_if_full || state.impatient {
                return;
            }
            state.options.no_space_timeout()
        };
        self.rest_while_full(env, time).await;
        if self.mode() == Mode::OutOfData && !self.state.lock().stopping {
            self.state.lock().impatient = true;
            let (name, time) = (self.name(), time.unwrap_or_default());
            tracing::warn!("{name}: no space for {time:?}: writes fail now");
            self.announce();
        }
    }

    /// Waits until the pool is not out of data space any more or is being stopped, for so long at
    /// most.
    async fn rest_while_full(&self, env: &Env, time: Option<Duration>) {
        let end = time.map(|time| env.now() + time);
        let is_over = || self.mode() != Mode::OutOfData || self.state.lock().stopping;
        env.until_or_time(&self.changed, end, is_over).await;
    }

    /// Data blocks may have come free.
    pub fn space_came(&self) {
        if self.mode() == Mode::OutOfData && self.metadata.allocator().free() > 0 {
            self.state.lock().impatient = false;
            let why = "there are free data blocks again";
            self.turn_mode(Mode::OutOfData, Mode::Write, why);
        }
        // The task that looks for blocks sees this, and wakes the waiting writes.
        self.changed.notify(usize::MAX);
        self.look_at_marks();
    }

    /// Warns if little is left, once until things get better.
    pub fn look_at_marks(&self) {
        let (total, free) = (self.metadata.data_use().0, self.free_data());
        let used = total.saturating_sub(free);
        let metadata = self.metadata.metadata_use();
        // The reserve counts as used; otherwise a small device would be full before a warning.
        let kept = metadata.overhead + self.room.keep(&self.metadata, Purpose::Provide);
        let metadata_used = (metadata.used + kept).min(metadata.total);
        let metadata_free = metadata.total - metadata_used;
        let mut state = self.state.lock();
        let low = state.low_water_blocks;
        let data_is = |percent: u64| used * 100 >= total * percent;
        let metadata_is = |percent: u64| metadata_used * 100 >= metadata.total * percent;
        let Options { marks_percent: marks, critical_percent: critical, .. } = state.options;
        let signs = [
            (LOW_WATER, free <= low, false),
            (METADATA_LOW, metadata_free <= metadata_low_watermark(metadata.total), true),
            (DATA_MARK, data_is(marks[0]), true),
            (METADATA_MARK, metadata_is(marks[1]), true),
            (DATA_CRITICAL, data_is(critical[0]), true),
            (METADATA_CRITICAL, metadata_is(critical[1]), true),
        ];
        let given = signs.map(|(warning, is_so, resets)| {
            take_warning(&mut state, warning, is_so, resets).then_some(warning)
        });
        drop(state);
        let Some(worst) = given.into_iter().flatten().max() else { return };
        let critical = if worst >= DATA_CRITICAL { "critical: " } else { "" };
        tracing::warn!(
            "{}: {critical}{used} of {total} data blocks used, {} of {} metadata blocks",
            self.name(),
            metadata.used,
            metadata.total
        );
        self.announce();
    }
}

/// True if a warning is to be given now.
fn take_warning(state: &mut State, warning: usize, is_so: bool, resets: bool) -> bool {
    let known = state.warned[warning];
    state.warned[warning] = is_so || (known && !resets);
    is_so && !known
}
