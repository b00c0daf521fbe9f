//! The limit of background copies, as the background task keeps to it: it waits for its turn before
//! it takes a block that frees a slot, with no block marked and no lock held. Each turn is one job.

use cairn_block::{Direction, Env, LocalFuture, Passage, Time};
use event_listener::EventListener;
use futures_util::future::{self, Either};

/// What the limit of background copies says to blocks that free slots. Others were asked for, or
/// are old.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Limit {
    /// There is none.
    #[default]
    None,
    /// The background task has to wait for its turn.
    Waits,
    /// One job may be taken.
    Granted,
    /// A job of so many blocks was taken.
    Spent(u64),
}

/// The turns of the background task.
pub(super) struct Turns<'e> {
    env: &'e Env,
    waits: Option<LocalFuture<'e, ()>>,
    has_turn: bool,
}

impl<'e> Turns<'e> {
    pub(super) fn new(env: &'e Env) -> Turns<'e> {
        Turns { env, waits: None, has_turn: false }
    }

    /// What counts now.
    pub(super) fn limit(&self) -> Limit {
        match (self.env.background().is_on(), self.has_turn) {
            (false, _) => Limit::None,
            (true, false) => Limit::Waits,
            (true, true) => Limit::Granted,
        }
    }

    /// Counts what was taken, in blocks of so many bytes.
    pub(super) fn count(&mut self, limit: Limit, block_bytes: u64) {
        if let Limit::Spent(blocks) = limit {
            let copy = Passage::of_copy(blocks * block_bytes);
            self.env.background().charge(self.env.now(), copy);
            self.has_turn = false;
        }
    }

    /// Waits for a turn, a change, or the time `at`. The place among those who wait is kept.
    pub(super) async fn wait(&mut self, at: Option<Time>, changed: EventListener) {
        let env = self.env;
        let turn = || Box::pin(env.background().turn(env, Direction::Write)) as LocalFuture<'e, ()>;
        let other = async {
            match at {
                Some(at) => sleep_or_change(env, at, changed).await,
                None => changed.await,
            }
        };
        let waits = self.waits.get_or_insert_with(turn);
        self.has_turn =
            matches!(future::select(waits, std::pin::pin!(other)).await, Either::Left(_));
        if self.has_turn {
            self.waits = None;
        }
    }

    /// Gives the place up: one that is not looked after would hold the others up.
    pub(super) fn leave(&mut self) {
        self.waits = None;
    }
}

/// Waits for a change or a time.
pub(super) async fn sleep_or_change(env: &Env, at: Time, changed: EventListener) {
    match future::select(std::pin::pin!(env.sleep_until(at)), changed).await {
        Either::Left(((), _)) | Either::Right(((), _)) => (),
    }
}
