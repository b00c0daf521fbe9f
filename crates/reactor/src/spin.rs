//! [`Spinner`]: how long an idle reactor polls before it sleeps.
//!
//! Owns the decision, and no clock: the caller passes the time. Sleeping and being woken costs a
//! reactor some microseconds, and the client as many again; polling costs processor time. Whether
//! polling finds something cannot be told from how long a sleep took, since clients notify later
//! than they show a request. Therefore the spinner tries it.
//!
//! - S1. A reactor polls for at most the budget, and then sleeps.
//! - S2. After polling that found nothing, the reactor sleeps at once for a number of times: once,
//!   twice as often after each further failure, at most [`RESTS_MAX`] times. Polling that found
//!   something ends this.
//!
//! Hence an idle server uses no processor time with any budget. Under a load that polling
//! does not help, it costs a budget per [`RESTS_MAX`] sleeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cairn_block::Time;

/// The most sleeps without polling before them.
const RESTS_MAX: u32 = 256;

/// The budget of a reactor with a [`Watch`](crate::Watch), if none was set.
const WATCHED: Duration = Duration::from_micros(32);

/// No budget was set.
const UNSET: u64 = u64::MAX;

/// The budget of all reactors, in nanoseconds; 0 = sleep at once.
#[derive(Clone)]
pub(crate) struct SpinBudget(Arc<AtomicU64>);

impl Default for SpinBudget {
    fn default() -> SpinBudget {
        SpinBudget(Arc::new(AtomicU64::new(UNSET)))
    }
}

impl SpinBudget {
    pub fn set(&self, budget: Duration) {
        let nanos = u64::try_from(budget.as_nanos()).unwrap_or(UNSET);
        self.0.store(nanos.min(UNSET - 1), Ordering::Relaxed);
    }

    fn get(&self, is_watched: bool) -> Duration {
        match self.0.load(Ordering::Relaxed) {
            UNSET if is_watched => WATCHED,
            UNSET => Duration::ZERO,
            nanos => Duration::from_nanos(nanos),
        }
    }
}

/// See the module's description.
pub(crate) struct Spinner {
    budget: SpinBudget,
    /// It polls before the next sleep.
    tries: bool,
    /// When polling ends; none while it does not poll.
    until: Option<Time>,
    /// How many sleeps follow the last failure without polling, and how many of them are left.
    rests: u32,
    left: u32,
}

impl Spinner {
    pub fn new(budget: SpinBudget) -> Spinner {
        Spinner { budget, tries: true, until: None, rests: 0, left: 0 }
    }

    /// True if the reactor, which has a watch or not, polls before the next sleep.
    pub fn tries(&self, is_watched: bool) -> bool {
        self.tries && !self.budget.get(is_watched).is_zero()
    }

    /// There was something to do.
    pub fn busy(&mut self) {
        if self.until.take().is_some() {
            self.rests = 0;
        }
    }

    /// There is nothing to do at `now`. Returns until when to poll before sleeping; none: sleep
    /// now.
    pub fn idle(&mut self, now: Time, is_watched: bool) -> Option<Time> {
        if !self.tries(is_watched) {
            self.until = None;
            return None;
        }
        let until = *self.until.get_or_insert(now + self.budget.get(is_watched));
        if now < until {
            return Some(until);
        }
        self.rests = (self.rests * 2).clamp(1, RESTS_MAX); // S2
        (self.until, self.left, self.tries) = (None, self.rests, false);
        None
    }

    /// The reactor has slept.
    pub fn slept(&mut self) {
        self.tries = self.left == 0;
        self.left = self.left.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spinner(budget_ns: u64) -> Spinner {
        let budget = SpinBudget::default();
        budget.set(Duration::from_nanos(budget_ns));
        Spinner::new(budget)
    }

    /// Goes through a pause in which nothing comes, and a sleep; answers whether it polled.
    fn pause_in_vain(spinner: &mut Spinner, budget_ns: u64) -> bool {
        let polls = spinner.idle(Time(1000), true).is_some();
        assert_eq!(spinner.idle(Time(1000 + budget_ns), true), None, "S1");
        assert!(!spinner.tries(true));
        spinner.slept();
        spinner.busy();
        polls
    }

    #[test]
    fn a_reactor_without_a_budget_sleeps_at_once() {
        let mut spinner = spinner(0);
        for now in 0..10 {
            assert!(!spinner.tries(true));
            assert_eq!(spinner.idle(Time(now), true), None);
            spinner.busy();
            spinner.slept();
        }
    }

    #[test]
    fn unless_a_budget_is_set_a_reactor_polls_only_for_a_watch() {
        let mut spinner = Spinner::new(SpinBudget::default());
        assert_eq!(spinner.idle(Time(0), false), None);
        assert_eq!(spinner.idle(Time(0), true), Some(Time(0) + WATCHED));
    }

    #[test]
    fn polling_that_finds_nothing_becomes_rarer() {
        let mut spinner = spinner(100);
        let polls: Vec<_> = (0..2000).filter(|_| pause_in_vain(&mut spinner, 100)).collect();
        // After 1, 2, 4, ... 256, 256, ... pauses.
        assert_eq!(polls[..6], [0, 2, 5, 10, 19, 36]);
        assert_eq!(polls.len(), 9 + (1999 - polls[8]) / 257);
    }

    #[test]
    fn polling_that_finds_something_goes_on() {
        let mut spinner = spinner(100);
        while pause_in_vain(&mut spinner, 100) || spinner.rests < 64 {}
        while spinner.idle(Time(0), true).is_none() {
            spinner.slept();
        }
        for now in (1000..9000).step_by(1000) {
            spinner.busy();
            assert_eq!(spinner.idle(Time(now), true), Some(Time(now + 100)));
            assert_eq!(spinner.idle(Time(now + 50), true), Some(Time(now + 100)), "the same pause");
        }
        assert_eq!(spinner.idle(Time(8100), true), None);
        spinner.slept();
        assert!(!spinner.tries(true), "it rests once");
        spinner.slept();
        assert!(spinner.tries(true));
    }
}
