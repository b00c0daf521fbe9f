//! Turns: which verbs may change something at the same time. A verb holds its reach (see `reach`)
//! from its beginning to its end.
//!
//! Invariants:
//! - T1. No two turns that hold the same thing run at once, unless both only share it.
//! - T2. A turn gets its whole reach at once, and a waiting verb holds nothing. So no two verbs
//!   wait for each other, in any order of the volumes that they name.
//! - T3. Of two verbs that reach the same thing, the one that asked first gets its turn first.
//! - T4. A turn holds the reach of its verb at the moment when the turn is given, not when the verb
//!   asked: the reach is computed again whenever a turn has ended since.
//! - T5. A verb that waits gives up when its caller is gone: it gets no turn after that, and holds
//!   up no later verb.
//!
//! T4 needs no lock on the state from which a reach is computed. A verb changes only what it holds.
//! So the turns of that moment cannot change a reach that shares nothing with them. A reach that
//! shares something waits and is computed again.

use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::reach::Reach;

/// How long a verb waits before it looks again whether its caller is gone.
const STEP: Duration = Duration::from_millis(100);

/// The turns of one server.
#[derive(Default)]
pub struct Turns {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// How many verbs have asked.
    asked: u64,
    /// How often a turn ended, or a verb gave up waiting.
    ended: u64,
    /// Each with the number under which its verb asked.
    turns: Vec<(u64, Reach)>,
    waiting: Vec<(u64, Reach)>,
    closed: bool,
}

/// A turn. It ends when this is dropped, also by a panic.
pub struct Turn<'a> {
    turns: &'a Turns,
    number: u64,
}

/// Why a verb gets no turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoTurn {
    /// No verb gets one any more: see [`Turns::close`].
    Closed,
    /// The caller hung up while the verb waited.
    CallerGone,
}

impl State {
    /// True if no turn and no earlier waiting verb reaches the same things (T1, T3).
    fn is_free(&self, number: u64, reach: &Reach) -> bool {
        let earlier = self.waiting.iter().filter(|(other, _)| *other < number);
        let mut before = self.turns.iter().chain(earlier);
        before.all(|(_, other)| !reach.meets(other))
    }

    /// A verb waits no more.
    fn leave(&mut self, number: u64) {
        self.waiting.retain(|(waiting, _)| *waiting != number);
    }
}

impl Turns {
    /// Waits for a turn with the reach that `reach` computes, until `is_gone` says that the caller
    /// is gone. A turn that is free at once is given to any caller.
    ///
    /// # Errors
    /// The verb must not act.
    pub fn take(
        &self,
        reach: impl Fn() -> Reach,
        is_gone: impl Fn() -> bool,
    ) -> Result<Turn<'_>, NoTurn> {
        let mut state = self.state.lock();
        state.asked += 1;
        let number = state.asked;
        loop {
            if state.closed {
                state.leave(number);
                return Err(NoTurn::Closed);
            }
            let ended = state.ended;
            drop(state);
            let found = reach();
            state = self.state.lock();
            if state.ended != ended || state.closed {
                continue;
            }
            state.leave(number);
            if state.is_free(number, &found) {
                state.turns.push((number, found));
                return Ok(Turn { turns: self, number });
            }
            state.waiting.push((number, found));
            while state.ended == ended && !state.closed {
                self.changed.wait_for(&mut state, STEP);
                if MutexGuard::unlocked(&mut state, &is_gone) {
                    state.leave(number);
                    // Later verbs may go on.
                    state.ended += 1;
                    self.changed.notify_all();
                    return Err(NoTurn::CallerGone);
                }
            }
        }
    }

    /// Gives no more turns, and ends the waits.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
    }

    /// Gives turns again.
    pub fn open(&self) {
        self.state.lock().closed = false;
    }

    /// True between [`Turns::close`] and [`Turns::open`].
    pub fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// True if no verb has a turn.
    pub fn is_idle(&self) -> bool {
        self.state.lock().turns.is_empty()
    }
}

#[cfg(test)]
impl Turns {
    /// How many verbs wait.
    pub fn waiting(&self) -> usize {
        self.state.lock().waiting.len()
    }

    /// True if a verb that asked now would wait.
    pub fn would_wait(&self, reach: &Reach) -> bool {
        let state = self.state.lock();
        !state.is_free(state.asked + 1, reach)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.turns.state.lock();
        state.turns.retain(|(number, _)| *number != self.number);
        state.ended += 1;
        self.turns.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::sync::mpsc::{Receiver, channel};
    use std::thread::{self, yield_now};
    use std::time::Duration;

    use parking_lot::Mutex;

    use super::{NoTurn, Turn, Turns};
    use crate::reach::{Hold, Reach};

    /// Nothing here takes as long: what does hangs.
    const FOREVER: Duration = Duration::from_secs(60);

    fn alone(names: &[&str]) -> Reach {
        Reach::of_families(names.iter().map(|name| (*name, Hold::Alone)))
    }

    fn take<'a>(turns: &'a Turns, names: &[&str]) -> Result<Turn<'a>, NoTurn> {
        turns.take(|| alone(names), || false)
    }

    /// Takes a turn in another thread, writes that down, and ends it when told to.
    fn begin(turns: &Arc<Turns>, names: &'static [&'static str], log: &Log) -> Receiver<()> {
        let (turns, log, (tell, told)) = (turns.clone(), log.clone(), channel());
        thread::spawn(move || {
            let turn = turns.take(|| alone(names), || false);
            log.lock().push((names, turn.is_ok()));
            drop(turn);
            let _ = tell.send(());
        });
        told
    }

    type Log = Arc<Mutex<Vec<(&'static [&'static str], bool)>>>;

    fn until_waiting(turns: &Turns, count: usize) {
        while turns.waiting() != count {
            yield_now();
        }
    }

    #[test]
    fn turns_that_share_nothing_or_only_share_it_run_at_once() {
        let turns = Turns::default();
        let shared = || Reach::of_families([("p", Hold::Shared)]);
        let all = [take(&turns, &["a"]), take(&turns, &["b", "c"])];
        let sharing = [turns.take(shared, || false), turns.take(shared, || false)];
        assert!(all.iter().chain(&sharing).all(Result::is_ok) && !turns.is_idle());
        drop((all, sharing));
        assert!(turns.is_idle());
    }

    #[test]
    fn verbs_that_reach_the_same_come_in_the_order_in_which_they_asked() {
        let (turns, log) = (Arc::new(Turns::default()), Log::default());
        let first = take(&turns, &["a"]);
        let both = begin(&turns, &["a", "b"], &log);
        until_waiting(&turns, 1);
        // It is free, but a verb that asked before waits for it.
        let last = begin(&turns, &["b"], &log);
        until_waiting(&turns, 2);
        assert!(log.lock().is_empty());
        drop(first);
        both.recv_timeout(FOREVER).unwrap();
        last.recv_timeout(FOREVER).unwrap();
        assert_eq!(*log.lock(), [(&["a", "b"][..], true), (&["b"], true)]);
    }

    #[test]
    fn a_reach_is_computed_again_when_a_turn_has_ended() {
        let turns = Arc::new(Turns::default());
        let first = take(&turns, &["a"]);
        let stands_on: Arc<Mutex<&[&str]>> = Arc::new(Mutex::new(&["a"]));
        let (again, found, (tell, told)) = (turns.clone(), stands_on.clone(), channel());
        thread::spawn(move || {
            let turn = again.take(|| alone(*found.lock()), || false).unwrap();
            tell.send(()).unwrap();
            drop(turn);
        });
        until_waiting(&turns, 1);
        *stands_on.lock() = &["b"];
        let other = take(&turns, &["b"]);
        drop(first);
        until_waiting(&turns, 1);
        assert!(told.try_recv().is_err(), "it reaches b by now, which another one has");
        drop(other);
        told.recv_timeout(FOREVER).unwrap();
    }

    #[test]
    fn no_turn_is_given_once_they_are_closed_and_who_waits_is_told() {
        let (turns, log) = (Arc::new(Turns::default()), Log::default());
        let first = take(&turns, &["a"]);
        let waits = begin(&turns, &["a"], &log);
        until_waiting(&turns, 1);
        turns.close();
        waits.recv_timeout(FOREVER).unwrap();
        assert_eq!(*log.lock(), [(&["a"][..], false)]);
        assert!(matches!(take(&turns, &["b"]), Err(NoTurn::Closed)) && !turns.is_idle());
        drop(first);
        assert!(turns.is_idle());
        turns.open();
        drop(take(&turns, &["b"]).unwrap());
    }

    #[test]
    fn a_verb_whose_caller_goes_while_it_waits_gets_no_turn_and_holds_up_no_other() {
        let (turns, log) = (Arc::new(Turns::default()), Log::default());
        let first = take(&turns, &["a"]);
        let (gone, (tell, told)) = (Arc::new(AtomicBool::new(false)), channel());
        let (waiting, is_gone) = (turns.clone(), gone.clone());
        thread::spawn(move || {
            let turn = waiting.take(|| alone(&["a", "b"]), || is_gone.load(Ordering::SeqCst));
            tell.send(turn.err()).unwrap();
        });
        until_waiting(&turns, 1);
        let later = begin(&turns, &["b"], &log);
        until_waiting(&turns, 2);
        gone.store(true, Ordering::SeqCst);
        assert_eq!(told.recv_timeout(FOREVER).unwrap(), Some(NoTurn::CallerGone));
        later.recv_timeout(FOREVER).unwrap();
        assert_eq!(*log.lock(), [(&["b"][..], true)]);
        drop(first);
        assert!(turns.is_idle() && turns.waiting() == 0);
    }

    #[test]
    fn a_verb_whose_caller_went_just_before_its_turn_came_does_not_get_it() {
        let turns = Arc::new(Turns::default());
        let first = take(&turns, &["a"]);
        let (gone, (tell, told)) = (Arc::new(AtomicBool::new(false)), channel());
        let (waiting, is_gone) = (turns.clone(), gone.clone());
        thread::spawn(move || {
            let turn = waiting.take(|| alone(&["a"]), || is_gone.load(Ordering::SeqCst));
            tell.send(turn.err()).unwrap();
        });
        until_waiting(&turns, 1);
        gone.store(true, Ordering::SeqCst);
        drop(first);
        assert_eq!(told.recv_timeout(FOREVER).unwrap(), Some(NoTurn::CallerGone));
    }

    /// How many have each thing: those that share it, and 1000 for one that has it alone.
    fn check(names: &[(&'static str, Hold)], held: &HashMap<&str, AtomicU32>) {
        let weight = |hold| if hold == Hold::Alone { 1000 } else { 1 };
        for (name, hold) in names {
            let before = held[name].fetch_add(weight(*hold), Ordering::SeqCst);
            let most = if *hold == Hold::Alone { 0 } else { 999 };
            assert!(before <= most, "{name}: {before}");
        }
        yield_now();
        for (name, hold) in names {
            held[name].fetch_sub(weight(*hold), Ordering::SeqCst);
        }
    }

    #[test]
    fn many_verbs_never_have_the_same_and_all_of_them_end() {
        const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
        let turns = Turns::default();
        let held: HashMap<_, _> = NAMES.iter().map(|name| (*name, AtomicU32::new(0))).collect();
        thread::scope(|scope| {
            for seed in 1..=6_u32 {
                let (turns, held) = (&turns, &held);
                scope.spawn(move || {
                    let mut random = seed;
                    for _ in 0..500 {
                        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        let picked = NAMES.iter().enumerate().filter_map(|(at, name)| {
                            let hold =
                                [Hold::Shared, Hold::Alone][(random >> (17 + at)) as usize % 2];
                            (random >> (8 + at) & 1 == 1).then_some((*name, hold))
                        });
                        let picked: Vec<_> = picked.collect();
                        let turn =
                            turns.take(|| Reach::of_families(picked.iter().copied()), || false);
                        check(&picked, held);
                        drop(turn);
                    }
                });
            }
        });
        assert!(turns.is_idle() && turns.state.lock().waiting.is_empty());
    }
}
