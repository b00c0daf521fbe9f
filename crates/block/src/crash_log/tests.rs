//! A kill between any two stores leaves what was acknowledged, no more and no less.

use std::cell::Cell;

use proptest::prelude::*;

use super::*;

const OWNER: u64 = 7;

fn base(owner: u64, state: u64) -> Base {
    Base { owner, state, failures: 0 }
}

thread_local! {
    /// How many stores this thread's process still does; none: it is never killed.
    static STORES_LEFT: Cell<Option<u32>> = const { Cell::new(None) };
}

/// Counts a store. True if the process is dead.
pub(super) fn is_killed() -> bool {
    STORES_LEFT.with(|left| match left.get() {
        None => false,
        Some(0) => true,
        Some(some) => {
            left.set(Some(some - 1));
            false
        }
    })
}

fn is_dead() -> bool {
    STORES_LEFT.get() == Some(0)
}

fn left_in(memory: &Arc<KeptMemory>, owner: u64, state: u64) -> Left {
    CrashLog::open(memory.clone(), &base(owner, state)).1
}

fn begun(records: usize, state: u64) -> (Arc<KeptMemory>, CrashLog) {
    let memory = Arc::new(KeptMemory::new(records));
    let (mut log, left) = CrashLog::open(memory.clone(), &base(OWNER, state));
    assert_eq!(left, Left::Records(Vec::new()));
    log.begin(&base(OWNER, state));
    (memory, log)
}

fn put(log: &mut CrashLog, value: u64) {
    assert!(log.reserve(), "there is room");
    log.append([value; 3]);
}

#[test]
fn records_of_both_halves_are_left_until_the_commit_has_landed() {
    let (memory, mut log) = begun(4, 10);
    put(&mut log, 1);
    log.seal(Some(11));
    put(&mut log, 2);
    let records = |values: &[u64]| Left::Records(values.iter().map(|&it| [it; 3]).collect());
    assert_eq!(left_in(&memory, OWNER, 10), records(&[1, 2]));
    assert_eq!(left_in(&memory, OWNER, 11), records(&[2]));
    log.empty_sealed();
    assert_eq!(left_in(&memory, OWNER, 11), records(&[2]));
    assert_eq!(left_in(&memory, OWNER, 10), Left::Foreign(vec![11]));
    assert_eq!(left_in(&memory, OWNER + 1, 11), Left::Foreign(vec![11]));
}

#[test]
fn log_without_records_fits_any_device() {
    let (memory, mut log) = begun(4, 10);
    assert_eq!(left_in(&memory, OWNER + 1, 99), Left::Records(Vec::new()));
    put(&mut log, 1);
    log.compact(10, std::iter::empty());
    assert_eq!(left_in(&memory, OWNER + 1, 99), Left::Records(Vec::new()));
}

#[test]
fn full_half_takes_no_reservation_and_then_says_that_something_is_lost() {
    let (memory, mut log) = begun(2, 10);
    put(&mut log, 1);
    assert!(log.is_half_full() && log.reserve() && !log.reserve());
    assert!(!log.append_unreserved([9; 3]));
    log.compact(10, [[2; 3], [3; 3]].into_iter());
    assert_eq!(left_in(&memory, OWNER, 10), Left::Records(Vec::new()), "one is still reserved");
    assert!(CrashLog::open(Arc::new(memory.after_kill()), &base(OWNER, 10)).0.take_loss());
}

#[test]
fn several_records_reserve_as_much_as_there_is_and_give_back_what_they_do_not_need() {
    let (memory, mut log) = begun(4, 10);
    put(&mut log, 1);
    assert_eq!([2, 2, 1].map(|most| log.reserve_some(most)), [2, 1, 0]);
    log.append([2; 3]);
    log.cancel_some(2);
    assert_eq!(log.reserve_some(9), 2);
    assert_eq!(left_in(&memory, OWNER, 10), Left::Records(vec![[1; 3], [2; 3]]));
}

#[test]
fn loss_is_counted_by_each_process_until_a_client_is_told() {
    let (memory, mut log) = begun(2, 10);
    put(&mut log, 1);
    log.lose();
    assert_eq!(left_in(&memory, OWNER, 10), Left::Records(Vec::new()), "it is not replayed");
    assert!(!log.take_loss(), "this process knows");
    log.begin(&base(OWNER, 10));
    put(&mut log, 2);
    let second = Arc::new(memory.after_kill());
    let (mut log, left) = CrashLog::open(second.clone(), &base(OWNER, 10));
    assert_eq!(left, Left::Records(vec![[2; 3]]));
    assert!(log.take_loss());
    assert!(!log.take_loss(), "once");
    log.begin(&base(OWNER, 10));
    let third = Arc::new(second.after_kill());
    let (mut log, _) = CrashLog::open(third.clone(), &base(OWNER, 10));
    assert!(log.take_loss(), "nobody was told by the second");
    log.told();
    let (mut log, _) = CrashLog::open(Arc::new(third.after_kill()), &base(OWNER, 10));
    assert!(!log.take_loss());
}

#[test]
fn failure_that_the_killed_process_did_not_look_at_is_a_loss() {
    let (memory, mut log) = begun(2, 10);
    put(&mut log, 1);
    let failed = Base { failures: 1, ..base(OWNER, 10) };
    let (mut log, left) = CrashLog::open(memory.clone(), &failed);
    assert_eq!((left, log.take_loss()), (Left::Records(Vec::new()), true));
    log.begin(&failed);
    put(&mut log, 2);
    log.survived(2);
    let survived = Base { failures: 2, ..failed };
    let (_, left) = CrashLog::open(Arc::new(memory.after_kill()), &survived);
    assert_eq!(left, Left::Records(vec![[2; 3]]));
}

#[test]
fn log_that_is_lost_has_nothing_for_any_device_until_it_begins_again() {
    let (memory, mut log) = begun(4, 10);
    put(&mut log, 1);
    assert_eq!(CrashLog::unreplayed(memory.as_ref()), [(10, 1)]);
    log.lose();
    for (owner, state) in [(OWNER, 9), (OWNER, 10), (OWNER, 11), (OWNER + 1, 10)] {
        assert_eq!(left_in(&memory, owner, state), Left::Records(Vec::new()));
    }
    assert_eq!(CrashLog::unreplayed(memory.as_ref()), []);
    assert!(!CrashLog::says_nothing(memory.as_ref()), "a client is to be told");
    let next = Arc::new(memory.after_kill());
    log.told();
    assert!(CrashLog::says_nothing(memory.as_ref()));
    let (mut log, _) = CrashLog::open(next.clone(), &base(OWNER, 9));
    assert!(log.take_loss());
    log.begin(&base(OWNER, 9));
    put(&mut log, 2);
    assert_eq!(left_in(&next, OWNER, 9), Left::Records(vec![[2; 3]]));
}

#[test]
fn what_is_discarded_is_told_as_a_loss() {
    let (memory, mut log) = begun(4, 10);
    assert_eq!(CrashLog::discard(memory.as_ref()), 0);
    assert!(CrashLog::says_nothing(memory.as_ref()), "there was nothing to lose");
    put(&mut log, 1);
    assert_eq!(CrashLog::discard(memory.as_ref()), 1);
    let (mut log, left) = CrashLog::open(memory, &base(OWNER + 1, 12));
    assert_eq!(left, Left::Records(Vec::new()));
    assert!(log.take_loss() && !log.is_lost());
}

#[test]
fn kill_while_a_loss_is_recorded_leaves_the_records_or_the_loss() {
    for stores in 0..3 {
        let (memory, mut log) = begun(2, 10);
        put(&mut log, 1);
        STORES_LEFT.set(Some(stores));
        log.lose();
        STORES_LEFT.set(None);
        let (mut log, left) = CrashLog::open(Arc::new(memory.after_kill()), &base(OWNER, 10));
        let is_replayed = left == Left::Records(vec![[1; 3]]);
        assert_eq!((is_replayed, log.take_loss()), (stores < 2, stores > 0), "{stores}");
    }
}

#[test]
fn kill_while_records_are_kept_finds_them_as_they_were_or_as_they_are() {
    let (memory, mut log) = begun(4, 10);
    // In the second half, so that the first one is free.
    log.compact(10, [[1; 3], [2; 3]].into_iter());
    for stores in 0..40 {
        let memory = Arc::new(memory.after_kill());
        let (mut log, left) = CrashLog::open(memory.clone(), &base(OWNER, 10));
        assert_eq!(left, Left::Records(vec![[1; 3], [2; 3]]));
        STORES_LEFT.set(Some(stores));
        log.go_on(10, std::iter::once([3; 3]));
        let is_dead = is_dead();
        STORES_LEFT.set(None);
        let kept = left_in(&Arc::new(memory.after_kill()), OWNER, 10);
        let both = [vec![[1; 3], [2; 3]], vec![[3; 3]]].map(Left::Records);
        assert!(both.contains(&kept), "{stores}: {kept:?}");
        assert!(is_dead || kept == both[1], "{stores}");
        assert!(!is_dead || stores < 20, "it ends");
        if !is_dead {
            assert!(log.append_unreserved([4; 3]));
            assert_eq!(log.records(), [[3; 3], [4; 3]]);
            log.lose();
            log.empty();
            assert!(!log.is_lost());
            assert_eq!(left_in(&memory, OWNER + 1, 10), Left::Records(Vec::new()));
            assert!(CrashLog::says_nothing(memory.as_ref()));
        }
    }
}

#[test]
fn what_is_given_up_is_not_found_again_after_a_kill() {
    for stores in 0..20 {
        let (memory, mut log) = begun(2, 10);
        put(&mut log, 1);
        log.seal(Some(11));
        put(&mut log, 2);
        STORES_LEFT.set(Some(stores));
        log.begin(&base(OWNER, 99));
        STORES_LEFT.set(None);
        let found = left_in(&memory, OWNER, 99);
        match stores {
            0 => assert_eq!(found, Left::Foreign(vec![10, 11])),
            _ => assert_eq!(found, Left::Records(Vec::new()), "{stores}"),
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Append,
    /// A commit: sealed, so many records, landed, emptied. Its state is named late if they are odd.
    Commit(u8),
    /// All that is uncommitted is dropped again.
    Drop,
    Compact,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => Just(Step::Append),
        2 => (0..4_u8).prop_map(Step::Commit),
        1 => Just(Step::Drop),
        1 => Just(Step::Compact),
    ]
}

/// A target whose device is a list of numbers. Records are numbers; 0 takes out what is not
/// committed.
#[derive(Clone, Default)]
struct Twin {
    /// On the device.
    durable: Vec<u64>,
    state: u64,
    /// Acknowledged and not committed.
    volatile: Vec<u64>,
    next: u64,
    /// The process died while it dropped what is volatile.
    is_dropping: bool,
}

impl Twin {
    fn append(&mut self, log: &mut CrashLog) {
        if !log.reserve() {
            return;
        }
        self.next += 1;
        log.append([self.next; 3]);
        // Acknowledged, unless the process died before that.
        if !is_dead() {
            self.volatile.push(self.next);
        }
    }

    fn step(&mut self, log: &mut CrashLog, step: &Step) {
        match *step {
            Step::Append => self.append(log),
            Step::Commit(more) => {
                let frozen = self.volatile.len();
                let is_known = more % 2 == 0;
                log.seal(is_known.then_some(self.state + 1));
                (0..more).for_each(|_| self.append(log));
                if !is_known {
                    log.name_state(self.state + 1);
                }
                if !is_dead() {
                    self.durable.extend(self.volatile.drain(..frozen));
                    self.state += 1;
                }
                log.empty_sealed();
            }
            Step::Drop if log.reserve() => {
                log.append([0; 3]);
                self.is_dropping = is_dead();
                if !is_dead() {
                    self.volatile.clear();
                    log.compact(self.state, std::iter::empty());
                }
            }
            Step::Drop => {}
            Step::Compact => {
                let records: Vec<Record> = self.volatile.iter().map(|&it| [it; 3]).collect();
                log.compact(self.state, records.into_iter());
            }
        }
    }

    fn replayed(&self, records: &[Record]) -> Vec<u64> {
        let mut all = Vec::new();
        for record in records {
            match record[0] {
                0 => all.clear(),
                number => all.push(number),
            }
        }
        all
    }
}

proptest! {
    #[test]
    fn a_kill_between_any_two_stores_loses_nothing(
        steps in prop::collection::vec(step(), 1..12),
        again in prop::collection::vec(step(), 0..6),
        [first, second] in prop::array::uniform2(0..120_u32),
    ) {
        let memory = Arc::new(KeptMemory::new(6));
        let mut twin = Twin::default();
        for (steps, stores) in [(steps, first), (again, second), (Vec::new(), 1000)] {
            // The start, which a kill may interrupt as well.
            STORES_LEFT.set(Some(stores));
            let (mut log, left) = CrashLog::open(memory.clone(), &base(OWNER, twin.state));
            let Left::Records(records) = left else { panic!("{left:?}") };
            let replayed = twin.replayed(&records);
            let unanswered = replayed.strip_prefix(&twin.volatile[..]);
            let is_dropped = twin.is_dropping && replayed.is_empty();
            prop_assert!(
                unanswered.is_some_and(|more| more.len() <= 1) || is_dropped,
                "{replayed:?} in place of {:?}", twin.volatile
            );
            (twin.volatile, twin.is_dropping) = (replayed, false);
            if !twin.volatile.is_empty() {
                log.include(twin.state + 1);
                if !is_dead() {
                    let volatile = std::mem::take(&mut twin.volatile);
                    twin.durable.extend(volatile);
                    twin.state += 1;
                }
            }
            if !is_dead() {
                log.begin(&base(OWNER, twin.state));
            }
            for step in steps {
                if is_dead() {
                    break;
                }
                twin.step(&mut log, &step);
            }
            STORES_LEFT.set(None);
        }
    }
}

#[test]
fn records_are_left_in_each_state_that_a_device_may_have() {
    for stores in 0..8 {
        let (memory, mut log) = begun(4, 10);
        put(&mut log, 1);
        log.seal(Some(10));
        put(&mut log, 2);
        STORES_LEFT.set(Some(stores));
        log.advance(20);
        // The device changes here, unless the process is dead.
        log.advanced(20);
        STORES_LEFT.set(None);
        let states: &[u64] = match stores {
            0 => &[10],
            1 => &[10, 20],
            _ => &[20],
        };
        for &state in states {
            let both = Left::Records(vec![[1; 3], [2; 3]]);
            assert_eq!(left_in(&memory, OWNER, state), both, "{stores}");
        }
        assert!(matches!(left_in(&memory, OWNER, 15), Left::Foreign(_)), "{stores}");
    }
}

#[test]
fn failure_since_an_earlier_process_began_loses_its_log_with_and_without_records() {
    for (records, failures, is_earlier) in [(0, 1, true), (1, 1, true), (1, 0, true), (1, 1, false)]
    {
        let (memory, mut log) = begun(4, 10);
        (0..records).for_each(|_| put(&mut log, 1));
        let memory = if is_earlier { Arc::new(memory.after_kill()) } else { memory };
        CrashLog::lose_if_failed(&*memory, failures);
        let is_lost = is_earlier && failures > 0;
        let gone_back = left_in(&memory, OWNER, 9);
        assert_eq!(gone_back == Left::Records(Vec::new()), is_lost || records == 0);
        let (mut log, _) = CrashLog::open(memory.clone(), &base(OWNER, 10));
        assert_eq!(log.take_loss(), is_lost, "{records} {failures} {is_earlier}");
    }
}
