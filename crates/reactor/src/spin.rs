//! [`Spinner`]: how long an idle reactor polls before it sleeps.
//!
//! Owns the decision, and no clock: the caller passes the time. Sleeping and being woken costs a
//! reactor some microseconds, and the client as many again; spinning costs processor time.
//! Therefore a reactor spins only as long as its last pause was no longer than the budget. A pause
//! longer than the budget ends in sleep; afterwards the reactor sleeps at once, until a pause turns
//! out to have been short. Hence an idle server uses no processor time, whatever the budget is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cairn_block::Time;

/// The budget of all reactors, in nanoseconds; 0 = sleep at once.
#[derive(Clone, Default)]
pub(crate) struct SpinBudget(Arc<AtomicU64>);

impl SpinBudget {
    pub fn set(&self, budget: Duration) {
        let nanos = u64::try_from(budget.as_nanos()).unwrap_or(u64::MAX);
        self.0.store(nanos, Ordering::Relaxed);
    }

    fn get(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// See the module's description.
pub(crate) struct Spinner {
    budget: SpinBudget,
    /// When the current pause began; none outside a pause.
    began: Option<Time>,
    last_pause: Duration,
}

impl Spinner {
    pub fn new(budget: SpinBudget) -> Spinner {
        Spinner { budget, began: None, last_pause: Duration::MAX }
    }

    /// There was something to do at `now`.
    pub fn busy(&mut self, now: Time) {
        if let Some(began) = self.began.take() {
            self.last_pause = now.since(began);
        }
    }

    /// There is nothing to do at `now`. Returns until when to poll before sleeping; none: sleep
    /// now.
    pub fn idle(&mut self, now: Time) -> Option<Time> {
        let budget = self.budget.get();
        if budget.is_zero() {
            self.began = None;
            return None;
        }
        let began = *self.began.get_or_insert(now);
        let until = began + budget;
        (self.last_pause <= budget && now < until).then_some(until)
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

    #[test]
    fn a_reactor_without_a_budget_sleeps_at_once() {
        let mut spinner = spinner(0);
        for now in 0..10 {
            assert_eq!(spinner.idle(Time(now)), None);
            spinner.busy(Time(now));
        }
    }

    #[test]
    fn only_a_short_pause_makes_the_next_one_spin() {
        let mut spinner = spinner(100);
        assert_eq!(spinner.idle(Time(1000)), None, "nothing is known yet");
        spinner.busy(Time(1050));
        assert_eq!(spinner.idle(Time(1060)), Some(Time(1160)));
        assert_eq!(spinner.idle(Time(1100)), Some(Time(1160)), "the same pause");
        assert_eq!(spinner.idle(Time(1160)), None, "it outlasted the budget");
        spinner.busy(Time(5000));
        assert_eq!(spinner.idle(Time(5010)), None, "it was long");
        spinner.busy(Time(5020));
        assert_eq!(spinner.idle(Time(5030)), Some(Time(5130)));
    }
}
