//! [`Budget`]: the memory that the payloads of all connections may take.
//!
//! A request takes the bytes of its payload from the budget before it allocates the payload, and
//! gives them back when its reply was sent. The budget knows accounts, one for each volume (disk).
//! A connection has a [`Portion`], which draws on its volume's account. May be used from any
//! reactor.
//!
//! - B1. A request takes all of its bytes in one step, or waits holding none.
//! - B2. After that step no more bytes are held than the budget has, and the volume holds no more
//!   than half of what the other volumes leave. So a volume that never gives its half back (its
//!   pool is full, it is suspended) leaves as much to the others. A request too large to ever fit
//!   under this rule is let in when nothing at all is held.
//! - B3. Requests of one volume are served in the order they came. A request that does not fit does
//!   not stop those of other volumes.
//! - B4. No request waits for ever while all volumes go on. If its volume holds nothing and it has
//!   waited for a while, it takes *priority*: no other request is let in for a short time, during
//!   which the others give back what they hold. The pauses between two such times grow, so that
//!   volumes which never give anything back cost the others little.
//! - B5. A portion keeps some spare bytes, so that small requests touch nothing that reactors
//!   share. While a request waits, no portion keeps any. A request that begins to wait sets
//!   `waiting` before it collects the spare bytes; a portion that gets bytes back reads `waiting`
//!   after it added them; so one of the two sees the other. The spare bytes of all portions are a
//!   small part of the budget.
//!
//! Must never: take memory itself, or wake a task under its lock.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use cairn_block::Env;
use cairn_block::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use cairn_block::sync::{Mutex, Padded};
use smallvec::SmallVec;

use super::signal::{First, first};

/// Limit on the spare bytes of one portion.
const SPARE_BYTES_MAX: usize = 256 << 10;

/// The spare bytes of all portions are at most 1 / `SPARE_PART` of the budget.
const SPARE_PART: usize = 16;

/// How long a request waits before it takes priority: the first time, and at most. (B4)
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// How long it keeps priority, at most.
const TURN_MAX: Duration = Duration::from_secs(1);

/// See the module's description.
pub(super) struct Budget {
    total: usize,
    /// Limit on the spare bytes of one portion.
    spare_max: usize,
    /// True while a request is in the queue.
    waiting: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Sum over the accounts.
    held: usize,
    /// In the order they came.
    queue: Vec<Arc<Waiter>>,
    /// The waiter that has priority: no request may pass it. (B4)
    priority: Option<Arc<Waiter>>,
    portions: Vec<Arc<Spare>>,
}

/// What a volume holds of a budget.
pub(super) struct Account {
    budget: Arc<Budget>,
    /// Bytes, spare ones included; changed under the budget's lock.
    held: AtomicUsize,
}

/// The spare bytes of a portion, in a cache line of their own.
struct Spare {
    account: Arc<Account>,
    bytes: Padded<AtomicUsize>,
}

/// A request that waits.
struct Waiter {
    account: Arc<Account>,
    bytes: usize,
    progress: Mutex<Progress>,
}

enum Progress {
    Waiting(Option<Waker>),
    Granted,
    /// The waiter has claimed its bytes, or no longer wants them.
    Ended,
}

/// Tasks to wake after the lock was released.
type Woken = SmallVec<[Waker; 4]>;

impl Budget {
    /// A budget of `total` bytes for at most `connections` portions.
    pub(super) fn new(total: usize, connections: usize) -> Arc<Budget> {
        let spare_max = (total / SPARE_PART / connections.max(1)).min(SPARE_BYTES_MAX);
        let (waiting, state) = (AtomicBool::new(false), Mutex::default());
        Arc::new(Budget { total, spare_max, waiting, state })
    }

    /// An account for another volume.
    pub(super) fn account(self: &Arc<Self>) -> Arc<Account> {
        Arc::new(Account { budget: self.clone(), held: AtomicUsize::new(0) })
    }

    /// How many bytes requests hold now, without the spare bytes.
    pub(super) fn held(&self) -> usize {
        let state = self.state.lock();
        let spare = state.portions.iter().map(|spare| spare.bytes.0.load(Ordering::SeqCst));
        state.held.saturating_sub(spare.sum())
    }

    /// Changes the state, then lets in the waiters that fit now.
    fn change<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state.lock();
        let result = change(&mut state);
        let woken = self.serve(&mut state);
        drop(state);
        woken.into_iter().for_each(Waker::wake);
        result
    }

    /// Whether a volume may take this many bytes now. (B2)
    fn fits(&self, state: &State, account: &Account, bytes: usize) -> bool {
        let own = account.held.load(Ordering::Relaxed);
        let left = self.total.saturating_sub(state.held - own);
        state.held == 0 || own.saturating_add(bytes) <= left / 2
    }

    /// Whether a waiter exists that a new request of this account must not pass. (B3, B4)
    fn must_queue(state: &State, account: &Arc<Account>) -> bool {
        let same = |waiter: &Arc<Waiter>| Arc::ptr_eq(&waiter.account, account);
        state.priority.is_some() || state.queue.iter().any(same)
    }

    /// Lets in every waiter that fits, in order.
    fn serve(&self, state: &mut State) -> Woken {
        let mut woken = Woken::new();
        let mut blocked: SmallVec<[*const Account; 8]> = SmallVec::new();
        let mut at = 0;
        while let Some(waiter) = state.queue.get(at).cloned() {
            let account = Arc::as_ptr(&waiter.account);
            let barred = state.priority.as_ref().is_some_and(|one| !Arc::ptr_eq(one, &waiter));
            if barred
                || blocked.contains(&account)
                || !self.fits(state, &waiter.account, waiter.bytes)
            {
                blocked.push(account);
                at += 1;
                continue;
            }
            state.queue.remove(at);
            state.hold(&waiter.account, waiter.bytes);
            state.drop_priority(&waiter);
            let mut progress = waiter.progress.lock();
            if let Progress::Waiting(Some(waker)) =
                std::mem::replace(&mut *progress, Progress::Granted)
            {
                woken.push(waker);
            }
        }
        self.waiting.store(!state.queue.is_empty(), Ordering::SeqCst);
        woken
    }

    /// Takes back the spare bytes of all portions. (B5)
    fn collect(&self, state: &mut State) {
        self.waiting.store(true, Ordering::SeqCst);
        let portions = std::mem::take(&mut state.portions);
        for spare in &portions {
            state.free(&spare.account, spare.bytes.0.swap(0, Ordering::SeqCst));
        }
        state.portions = portions;
    }
}

impl State {
    fn hold(&mut self, account: &Account, bytes: usize) {
        self.held += bytes;
        account.held.fetch_add(bytes, Ordering::Relaxed);
    }

    fn free(&mut self, account: &Account, bytes: usize) {
        self.held -= bytes;
        let before = account.held.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "a volume gives back what it holds");
    }

    fn drop_priority(&mut self, waiter: &Arc<Waiter>) {
        self.priority.take_if(|one| Arc::ptr_eq(one, waiter));
    }
}

/// What a connection holds of its volume's account.
pub(super) struct Portion(Arc<Spare>);

impl Portion {
    /// A portion that holds nothing.
    pub(super) fn new(account: &Arc<Account>) -> Portion {
        let spare = Arc::new(Spare { account: account.clone(), bytes: Padded::default() });
        account.budget.state.lock().portions.push(spare.clone());
        Portion(spare)
    }

    fn budget(&self) -> &Budget {
        &self.0.account.budget
    }

    /// Takes `bytes` if that is possible at once.
    pub(super) fn try_take(&self, bytes: usize) -> bool {
        if bytes == 0 {
            return true;
        }
        let spare = &self.0.bytes.0;
        let enough = |spare: usize| spare.checked_sub(bytes);
        spare.fetch_update(Ordering::SeqCst, Ordering::SeqCst, enough).is_ok()
            || self.take_shared(bytes)
    }

    #[inline(never)]
    fn take_shared(&self, bytes: usize) -> bool {
        let (budget, account) = (self.budget(), &self.0.account);
        budget.change(|state| {
            state.free(account, self.0.bytes.0.swap(0, Ordering::SeqCst));
            if Budget::must_queue(state, account) || !budget.fits(state, account, bytes) {
                return false;
            }
            state.hold(account, bytes);
            let more = budget.spare_max;
            if state.queue.is_empty() && budget.fits(state, account, more) {
                state.hold(account, more);
                self.0.bytes.0.fetch_add(more, Ordering::SeqCst);
            }
            true
        })
    }

    /// Takes `bytes` as soon as that is possible. Dropping the future takes nothing. (B1)
    pub(super) async fn take(&self, env: &Env, bytes: usize) {
        let waiting = Waiting::begin(self, bytes);
        let (mut pause, mut turn) = (PAUSE, PAUSE);
        loop {
            if let First::Left(()) = first(waiting.granted(), env.sleep(pause)).await {
                break;
            }
            let budget = self.budget();
            budget.change(|state| waiting.take_priority(state));
            if let First::Left(()) = first(waiting.granted(), env.sleep(turn)).await {
                break;
            }
            budget.change(|state| state.drop_priority(&waiting.waiter));
            (pause, turn) = ((2 * pause).min(PAUSE_MAX), (2 * turn).min(TURN_MAX));
        }
        waiting.claim();
    }

    /// Gives back `bytes` that were taken.
    pub(super) fn give(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let (spare, budget) = (&self.0.bytes.0, self.budget());
        let now = spare.fetch_add(bytes, Ordering::SeqCst) + bytes;
        // B5
        let waiting = budget.waiting.load(Ordering::SeqCst);
        if waiting || now > 2 * budget.spare_max {
            self.give_shared(if waiting { 0 } else { budget.spare_max });
        }
    }

    /// Gives back the spare bytes except `keep`.
    #[inline(never)]
    fn give_shared(&self, keep: usize) {
        self.budget().change(|state| {
            let spare = self.0.bytes.0.swap(0, Ordering::SeqCst);
            let keep = if state.queue.is_empty() { keep.min(spare) } else { 0 };
            self.0.bytes.0.fetch_add(keep, Ordering::SeqCst);
            state.free(&self.0.account, spare - keep);
        });
    }
}

impl Drop for Portion {
    fn drop(&mut self) {
        self.budget().change(|state| {
            state.portions.retain(|other| !Arc::ptr_eq(other, &self.0));
            state.free(&self.0.account, self.0.bytes.0.swap(0, Ordering::SeqCst));
        });
    }
}

/// A waiter's place in the queue; dropping it leaves the queue and gives back granted bytes.
struct Waiting<'a> {
    budget: &'a Budget,
    waiter: Arc<Waiter>,
}

impl<'a> Waiting<'a> {
    fn begin(portion: &'a Portion, bytes: usize) -> Waiting<'a> {
        let (budget, account) = (portion.budget(), portion.0.account.clone());
        let progress = Mutex::new(Progress::Waiting(None));
        let waiter = Arc::new(Waiter { account, bytes, progress });
        budget.change(|state| {
            budget.collect(state);
            state.queue.push(waiter.clone());
        });
        Waiting { budget, waiter }
    }

    /// Waits until the bytes were granted.
    async fn granted(&self) {
        poll_fn(|cx| match &mut *self.waiter.progress.lock() {
            Progress::Waiting(waker) => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
            Progress::Granted | Progress::Ended => Poll::Ready(()),
        })
        .await;
    }

    /// Takes priority over every other request. Does nothing if another waiter has priority, or if
    /// this volume has an older waiter or holds bytes (which it may give back). (B4)
    fn take_priority(&self, state: &mut State) {
        let account = &self.waiter.account;
        let starved = account.held.load(Ordering::Relaxed) == 0;
        let first = state.queue.iter().find(|other| Arc::ptr_eq(&other.account, account));
        let is_first = first.is_some_and(|first| Arc::ptr_eq(first, &self.waiter));
        if starved && is_first && state.priority.is_none() {
            state.priority = Some(self.waiter.clone());
        }
    }

    /// Leaves the granted bytes to the caller.
    fn claim(self) {
        *self.waiter.progress.lock() = Progress::Ended;
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.budget.change(|state| {
            let waiter = &self.waiter;
            state.drop_priority(waiter);
            state.queue.retain(|other| !Arc::ptr_eq(other, waiter));
            let progress = std::mem::replace(&mut *waiter.progress.lock(), Progress::Ended);
            if matches!(progress, Progress::Granted) {
                state.free(&waiter.account, waiter.bytes);
            }
        });
    }
}

#[cfg(test)]
mod tests;
