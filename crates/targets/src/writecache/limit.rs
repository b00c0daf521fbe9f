//! The limit of background copies, as the background task keeps to it: it waits for its turn before
//! it takes blocks that free slots, with no block marked and no lock held. Of a turn it takes one
//! batch, which is sorted and flushed like one without a limit.

use cairn_block::{Env, LocalFuture, Passage, TURN_BYTES, Time, Turn};
use event_listener::EventListener;
use futures_util::future::{self, Either};

use super::WriteCache;
use super::writeback::Action;

/// What the limit of background copies says to blocks that free slots. Others were asked for, or
/// are old.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Limit {
    /// There is none.
    #[default]
    None,
    /// The background task has to wait for its turn.
    Waits,
    /// `left` blocks may be taken, and `spent` were.
    Turn { left: u64, spent: u64 },
}

impl Limit {
    /// How many blocks the next job may have: one job without a turn, for a client that waits.
    pub(super) fn most(self) -> u64 {
        match self {
            Limit::None | Limit::Waits => u64::MAX,
            Limit::Turn { left, .. } => left,
        }
    }

    /// So many blocks were taken.
    pub(super) fn take(&mut self, blocks: u64) {
        *self = match *self {
            Limit::None => return,
            Limit::Waits => Limit::Turn { left: 0, spent: blocks },
            Limit::Turn { left, spent } => {
                Limit::Turn { left: left.saturating_sub(blocks), spent: spent + blocks }
            }
        }
    }
}

/// The turns of the background task.
pub(super) struct Turns<'e> {
    env: &'e Env,
    block_bytes: u64,
    waits: Option<LocalFuture<'e, Turn<'e>>>,
    turn: Option<Turn<'e>>,
}

impl<'e> Turns<'e> {
    /// None yet, for blocks of so many bytes.
    pub(super) fn new(env: &'e Env, block_bytes: u64) -> Turns<'e> {
        Turns { env, block_bytes, waits: None, turn: None }
    }

    /// What counts now.
    pub(super) fn limit(&self) -> Limit {
        match (self.env.background().is_on(), &self.turn) {
            (false, _) => Limit::None,
            (true, None) => Limit::Waits,
            (true, Some(_)) => {
                Limit::Turn { left: (TURN_BYTES / self.block_bytes).max(1), spent: 0 }
            }
        }
    }

    /// Counts what was taken.
    pub(super) fn count(&mut self, limit: Limit) {
        let Limit::Turn { spent: spent @ 1.., .. } = limit else { return };
        let bytes = spent * self.block_bytes;
        match self.turn.take() {
            Some(turn) => turn.spend(bytes),
            None => self.env.background().charge(self.env.now(), Passage::of_copy(bytes)),
        }
    }

    /// Waits for a turn, a change, or the time `at`. It keeps its place in the queue.
    pub(super) async fn wait(&mut self, at: Option<Time>, changed: EventListener) {
        let env = self.env;
        let turn = || Box::pin(env.background().turn(env)) as LocalFuture<'e, Turn<'e>>;
        let other = async {
            match at {
                Some(at) => sleep_or_change(env, at, changed).await,
                None => changed.await,
            }
        };
        let waits = self.waits.get_or_insert_with(turn);
        if let Either::Left((turn, _)) = future::select(waits, std::pin::pin!(other)).await {
            (self.turn, self.waits) = (Some(turn), None);
        }
    }

    /// Gives the turn up, or the place: one that is not looked after would hold the others up.
    pub(super) fn leave(&mut self) {
        (self.turn, self.waits) = (None, None);
    }
}

impl WriteCache {
    /// The next action under a limit, and what it leaves of that.
    pub(super) fn next_action(&self, now: Time, limit: Limit) -> (Action, Limit) {
        let mut state = self.state.lock();
        state.limit = limit;
        let action = self.action(&mut state, now);
        (action, state.limit)
    }
}

/// Waits for a change or a time.
pub(super) async fn sleep_or_change(env: &Env, at: Time, changed: EventListener) {
    match future::select(std::pin::pin!(env.sleep_until(at)), changed).await {
        Either::Left(((), _)) | Either::Right(((), _)) => (),
    }
}
