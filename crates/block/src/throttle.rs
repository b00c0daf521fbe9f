//! [`Throttle`]: a limit on the operations and bytes per second of all that passes it, with bursts.
//!
//! Owns leaky buckets ([`bucket`]) and the waiters in order. The users of one export, or all
//! background copies of a server, share one throttle across reactors. What passes has not been
//! admitted anywhere yet: a waiter holds no request, claim, budget or buffer that others need.
//!
//! # Algorithm
//! The limits have the names and the meaning that qemu's manual of disk throttling gives them. Each
//! limit is a bucket. Its *level* rises by the cost of all that passes, and leaks at the rate of
//! the limit. Something passes while no bucket that it concerns is over its size:
//! - A limit without a burst has room for a tenth of a second, as else every second request of a
//!   client would wait for a timer.
//! - A limit with a burst has room for `max` times `length`: so much passes faster than the rate,
//!   and at the rate afterwards. If the length is more than a second, a second bucket keeps the
//!   burst itself to its rate: its *burst level* leaks at `max`, and it has room for a tenth of a
//!   second of that.
//!
//! An operation costs one, or its bytes divided by the size of an operation if it has more bytes
//! than that. What passes may fill a bucket beyond its size. So how long something waits does not
//! depend on its own cost, and nothing is too large to pass.
//!
//! A copy in the background learns only after its wait how much it is. It waits for a [`Turn`],
//! which costs [`TURN_BYTES`] at once, and says then what it spends. What it does not spend is
//! taken back, as far as it cannot have leaked yet.
//!
//! # Invariants
//! - T1. In any time `t` no more passes than rate x t + size + the cost of the last that passed,
//!   and what [`Throttle::charge`] was told of, and what turns spent beyond their bytes.
//! - T2. What keeps to the rate never waits: a bucket that leaked all that it got is empty. Levels
//!   are exact: units times nanoseconds, in whole numbers.
//! - T3. Waiters of a direction (reads, writes) pass in the order that they came. A read does not
//!   wait for a write that only a limit of writes holds up, and the other way round. Where both
//!   directions wait for room that they share, the older waiter passes first.
//! - T4. While a direction has waiters, the first one has a timer for the time at which it may
//!   pass, or waits for an older one of the other direction that may pass now. The first waiters
//!   are woken when one leaves and when the limits change. So no waiter is forgotten, and none
//!   polls.
//! - T5. A waiter that is dropped has passed nothing, and costs nothing. A turn that is dropped
//!   spends nothing.
//! - T6. New limits begin with empty buckets. Without limits everything passes at once.
//!
//! Time comes with each call, once per turn of a reactor. Reactors read it at different moments: a
//! bucket goes by the latest time that it has seen, which only makes it leak later.
//!
//! Must never: wake a task under its lock; allocate for what need not wait.

mod bucket;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::num::NonZeroU64;
use std::pin::Pin;
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::env::{Env, Sleep};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::units::Time;

use bucket::{Bucket, UNIT};

/// A limit: so much per second, and more for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Operations or bytes per second.
    pub per_second: NonZeroU64,
    /// What may pass beyond that.
    pub burst: Option<Burst>,
}

/// How far a limit may be exceeded for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst {
    /// Operations or bytes per second while it lasts; no less than the rate of the limit.
    pub per_second: NonZeroU64,
    /// How long it may last.
    pub seconds: NonZeroU64,
}

/// The limits of one unit: for both directions together, or for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// For reads and writes together.
    pub total: Option<Rate>,
    /// For reads.
    pub read: Option<Rate>,
    /// For writes.
    pub write: Option<Rate>,
}

/// All limits of a throttle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThrottleLimits {
    /// Of operations.
    pub iops: Rates,
    /// Of bytes.
    pub bytes: Rates,
    /// An operation of more bytes than this counts as several.
    pub iops_size: Option<NonZeroU64>,
}

/// Which limits something concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Those of reads.
    Read = 0,
    /// Those of writes.
    Write = 1,
}

impl Direction {
    fn other(self) -> Direction {
        match self {
            Direction::Read => Direction::Write,
            Direction::Write => Direction::Read,
        }
    }
}

/// What is to pass: one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passage {
    /// Its direction.
    pub direction: Direction,
    /// Its bytes.
    pub bytes: u64,
}

impl Passage {
    /// A copy in the background, which counts once, as a write.
    pub fn of_copy(bytes: u64) -> Passage {
        Passage { direction: Direction::Write, bytes }
    }
}

/// What a turn of a background copy is about: its user makes one batch of about so many bytes,
/// which one flush makes durable.
pub const TURN_BYTES: u64 = 4 << 20;

/// How often something waited, and how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waited {
    /// How often.
    pub count: u64,
    /// How long, all waits together.
    pub time: Duration,
}

/// See the module's description.
#[derive(Default)]
pub struct Throttle {
    /// It has limits.
    is_on: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Those of operations, then those of bytes.
    units: [Buckets; 2],
    iops_size: Option<NonZeroU64>,
    /// The latest time that was seen.
    at: Time,
    /// Those of reads, then those of writes; in order of their tickets.
    queues: [VecDeque<Waiter>; 2],
    next_ticket: u64,
    waited: Waited,
    /// How often the limits were replaced.
    replaced: u64,
}

/// The buckets of one unit.
#[derive(Default)]
struct Buckets {
    total: Option<Bucket>,
    directed: [Option<Bucket>; 2],
}

struct Waiter {
    ticket: u64,
    waker: Option<Waker>,
}

/// The state of a waiter when it looked.
enum Verdict {
    /// It has passed, by limits that were replaced so often.
    Passed(u64),
    /// It may pass then at the earliest.
    Until(Time),
    /// It is woken.
    Behind,
}

/// Tasks to wake once the lock is released: the first of each queue.
type Woken = [Option<Waker>; 2];

fn wake(woken: Woken) {
    woken.into_iter().flatten().for_each(Waker::wake);
}

impl Throttle {
    /// A throttle with these limits.
    pub fn new(limits: &ThrottleLimits) -> Throttle {
        let throttle = Throttle::default();
        throttle.set(limits);
        throttle
    }

    /// True if it has limits: one look at memory that changes rarely. Without limits there is no
    /// need to ask for more.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Replaces the limits; the new ones also count for the waiters. (T6)
    pub fn set(&self, limits: &ThrottleLimits) {
        let woken = {
            let mut state = self.state.lock();
            state.units = [Buckets::new(&limits.iops), Buckets::new(&limits.bytes)];
            state.iops_size = limits.iops_size;
            state.replaced += 1;
            self.is_on.store(*limits != ThrottleLimits::default(), Ordering::Relaxed);
            state.first_waiters()
        };
        wake(woken);
    }

    /// Passes if that is possible at once.
    pub fn try_pass(&self, now: Time, passage: Passage) -> bool {
        self.try_charge(now, passage).is_some()
    }

    /// The same. Answers how often the limits were replaced before.
    fn try_charge(&self, now: Time, passage: Passage) -> Option<u64> {
        let mut state = self.state.lock();
        state.leak(now);
        let passes = state.queues[passage.direction as usize].is_empty()
            && state.time_to_room(passage.direction) == 0
            && !state.older_may_pass(passage.direction, u64::MAX);
        if passes {
            state.charge(passage);
        }
        passes.then_some(state.replaced)
    }

    /// Counts what passes at once, also beyond what the limits allow: what cannot wait any longer,
    /// or had its turn. Others wait for longer.
    pub fn charge(&self, now: Time, passage: Passage) {
        let mut state = self.state.lock();
        state.leak(now);
        state.charge(passage);
    }

    /// Passes as soon as that is possible. Dropping the future passes nothing. (T5)
    pub async fn pass(&self, env: &Env, passage: Passage) {
        self.pass_by(env, passage).await;
    }

    /// Waits for the turn of a background copy: for a user that learns only then how much it is.
    pub async fn turn<'a>(&'a self, env: &'a Env) -> Turn<'a> {
        let replaced = self.pass_by(env, Passage::of_copy(TURN_BYTES)).await;
        Turn { throttle: self, env, replaced, began: env.now(), spent: None }
    }

    /// The same as [`Throttle::pass`]. Answers how often the limits were replaced before.
    async fn pass_by(&self, env: &Env, passage: Passage) -> u64 {
        match self.try_charge(env.now(), passage) {
            Some(replaced) => replaced,
            None => self.wait(env, passage).await,
        }
    }

    async fn wait(&self, env: &Env, passage: Passage) -> u64 {
        let place = Place::take(self, env, passage);
        let mut timer: Option<Sleep> = None;
        poll_fn(|cx| {
            loop {
                timer = match place.judge(cx.waker()) {
                    Verdict::Passed(replaced) => return Poll::Ready(replaced),
                    Verdict::Behind => None,
                    Verdict::Until(at) => Some(env.sleep_until(at)),
                };
                if timer.as_mut().is_none_or(|timer| Pin::new(timer).poll(cx).is_pending()) {
                    return Poll::Pending;
                }
            }
        })
        .await
    }

    /// How often and how long something has waited.
    pub fn waited(&self) -> Waited {
        self.state.lock().waited
    }

    /// How many wait now.
    pub fn waiters(&self) -> usize {
        self.state.lock().queues.iter().map(VecDeque::len).sum()
    }
}

/// The turn of a background copy, which was charged [`TURN_BYTES`]. Dropping it spends nothing.
pub struct Turn<'a> {
    throttle: &'a Throttle,
    env: &'a Env,
    replaced: u64,
    began: Time,
    spent: Option<u64>,
}

impl Turn<'_> {
    /// Ends the turn: so many bytes pass.
    pub fn spend(mut self, bytes: u64) {
        self.spent = Some(bytes);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let woken = {
            let mut state = self.throttle.state.lock();
            state.leak(self.env.now());
            if state.replaced == self.replaced {
                let nanos = state.at.since(self.began).as_nanos() as u64;
                state.correct(self.spent, nanos);
            } else if let Some(bytes) = self.spent {
                state.charge(Passage::of_copy(bytes));
            }
            state.first_waiters()
        };
        wake(woken);
    }
}

/// A place among the waiters; dropping it leaves them.
struct Place<'a> {
    throttle: &'a Throttle,
    env: &'a Env,
    passage: Passage,
    ticket: u64,
    began: Time,
}

impl<'a> Place<'a> {
    fn take(throttle: &'a Throttle, env: &'a Env, passage: Passage) -> Place<'a> {
        let mut state = throttle.state.lock();
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.queues[passage.direction as usize].push_back(Waiter { ticket, waker: None });
        Place { throttle, env, passage, ticket, began: env.now() }
    }

    /// Passes if it is this waiter's turn; if not, says what it waits for. (T3, T4)
    fn judge(&self, waker: &Waker) -> Verdict {
        let direction = self.passage.direction;
        let mut state = self.throttle.state.lock();
        state.leak(self.env.now());
        if !state.keep_waker(self, waker) {
            return Verdict::Behind;
        }
        match state.time_to_room(direction) {
            0 if state.older_may_pass(direction, self.ticket) => Verdict::Behind,
            0 => {
                state.charge(self.passage);
                Verdict::Passed(state.replaced)
            }
            nanos => Verdict::Until(state.at + Duration::from_nanos(nanos)),
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let woken = {
            let mut state = self.throttle.state.lock();
            let queue = &mut state.queues[self.passage.direction as usize];
            if let Ok(at) = queue.binary_search_by_key(&self.ticket, |waiter| waiter.ticket) {
                queue.remove(at);
            }
            state.waited.count += 1;
            state.waited.time += self.env.now().since(self.began);
            state.first_waiters()
        };
        wake(woken);
    }
}

impl State {
    /// Brings the buckets to the time `now`.
    fn leak(&mut self, now: Time) {
        let nanos = now.0.saturating_sub(self.at.0);
        self.at = self.at.max(now);
        self.units.iter_mut().flat_map(Buckets::all).for_each(|bucket| bucket.leak(nanos));
    }

    /// Nanoseconds until the buckets that a direction concerns have room; 0 if they have.
    fn time_to_room(&self, direction: Direction) -> u64 {
        let of = |unit: &Buckets| unit.of(direction).map(Bucket::time_to_room).max().unwrap_or(0);
        self.units.iter().map(of).max().unwrap_or(0)
    }

    /// True if the first waiter of the other direction came before `ticket` and may pass now: it
    /// has a timer, which is due. (T3)
    fn older_may_pass(&self, direction: Direction, ticket: u64) -> bool {
        let other = direction.other();
        let first = self.queues[other as usize].front();
        first.is_some_and(|first| first.ticket < ticket) && self.time_to_room(other) == 0
    }

    /// What something costs: operations, and bytes.
    fn costs(&self, bytes: u64) -> [u128; 2] {
        let large = self.iops_size.filter(|size| bytes > size.get());
        let operations =
            large.map_or(UNIT, |size| u128::from(bytes) * UNIT / u128::from(size.get()));
        [operations, u128::from(bytes) * UNIT]
    }

    fn charge(&mut self, Passage { direction, bytes }: Passage) {
        let costs = self.costs(bytes);
        for (unit, cost) in self.units.iter_mut().zip(costs) {
            unit.of_mut(direction).for_each(|bucket| bucket.fill(cost));
        }
    }

    /// A turn that was charged so many nanoseconds ago spends so many bytes, or nothing.
    fn correct(&mut self, spent: Option<u64>, nanos: u64) {
        let costs = spent.map_or([0; 2], |bytes| self.costs(bytes));
        let charged = self.costs(TURN_BYTES);
        for ((unit, cost), charged) in self.units.iter_mut().zip(costs).zip(charged) {
            for bucket in unit.of_mut(Direction::Write) {
                bucket.fill(cost.saturating_sub(charged));
                bucket.take_back(charged.saturating_sub(cost), nanos);
            }
        }
    }

    /// Remembers whom to wake. True if it is the first of its queue.
    fn keep_waker(&mut self, place: &Place<'_>, waker: &Waker) -> bool {
        let queue = &mut self.queues[place.passage.direction as usize];
        let at = queue.binary_search_by_key(&place.ticket, |waiter| waiter.ticket);
        if let Some(waiter) = at.ok().and_then(|at| queue.get_mut(at))
            && !waiter.waker.as_ref().is_some_and(|known| known.will_wake(waker))
        {
            waiter.waker = Some(waker.clone());
        }
        at == Ok(0)
    }

    /// Those to wake when something has changed. (T4)
    fn first_waiters(&self) -> Woken {
        [0, 1].map(|queue: usize| self.queues[queue].front().and_then(|first| first.waker.clone()))
    }
}

impl Buckets {
    fn new(rates: &Rates) -> Buckets {
        let bucket = |rate: Option<Rate>| rate.map(Bucket::new);
        Buckets { total: bucket(rates.total), directed: [rates.read, rates.write].map(bucket) }
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Bucket> {
        self.total.iter_mut().chain(self.directed.iter_mut().flatten())
    }

    fn of(&self, direction: Direction) -> impl Iterator<Item = &Bucket> {
        self.total.iter().chain(&self.directed[direction as usize])
    }

    fn of_mut(&mut self, direction: Direction) -> impl Iterator<Item = &mut Bucket> {
        self.total.iter_mut().chain(&mut self.directed[direction as usize])
    }
}
