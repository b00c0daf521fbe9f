//! Waiters of a throttle on the reactors of a simulated world.

use std::cell::{Cell, RefCell};
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::{
    Direction, Env, Passage, Rate, Rates, TURN_BYTES, Throttle, ThrottleLimits, Time,
};
use cairn_sim::SimWorld;

const READ: Passage = Passage { direction: Direction::Read, bytes: 4096 };
const WRITE: Passage = Passage { direction: Direction::Write, bytes: 4096 };

fn rate(per_second: u64) -> Option<Rate> {
    Some(Rate { per_second: NonZeroU64::new(per_second).unwrap(), burst: None })
}

fn of_operations(per_second: u64) -> ThrottleLimits {
    let iops = Rates { total: rate(per_second), ..Rates::default() };
    ThrottleLimits { iops, ..ThrottleLimits::default() }
}

fn of_written_operations(per_second: u64) -> ThrottleLimits {
    let iops = Rates { write: rate(per_second), ..Rates::default() };
    ThrottleLimits { iops, ..ThrottleLimits::default() }
}

/// Who passed, and when.
type Log = Rc<RefCell<Vec<(usize, Time)>>>;

/// Has `who` pass so many times, one after the other.
fn pass(env: &Env, throttle: &Arc<Throttle>, log: &Log, who: usize, passages: Vec<Passage>) {
    let (task, throttle, log) = (env.clone(), throttle.clone(), log.clone());
    env.spawn(async move {
        for passage in passages {
            throttle.pass(&task, passage).await;
            log.borrow_mut().push((who, task.now()));
        }
    });
}

#[test]
fn clients_on_several_reactors_share_one_limit_in_turn() {
    for seed in 0..20 {
        let world = SimWorld::new(seed, 3);
        let throttle = Arc::new(Throttle::new(&of_operations(100)));
        let log = Log::default();
        for who in 0..3 {
            pass(world.env(who as u16), &throttle, &log, who, vec![READ; 100]);
        }
        world.run_until(|| log.borrow().len() == 300);
        let log = log.borrow();
        // 11 pass at once, the others one each hundredth of a second.
        let taken = log.last().unwrap().1;
        assert!(taken >= Time(2_890_000_000), "no faster than the rate: {taken:?}");
        assert!(taken < Time(2_900_000_000), "and no slower: {taken:?}");
        // While all three wait, none gets ahead of the others by more than one.
        for end in 30..260 {
            let count = |who| log[20..end].iter().filter(|(it, _)| *it == who).count();
            let counts = [count(0), count(1), count(2)];
            let apart = counts.iter().max().unwrap() - counts.iter().min().unwrap();
            assert!(apart <= 1, "seed {seed}: {counts:?} of {end}");
        }
        assert_eq!(throttle.waiters(), 0);
        assert!(throttle.waited().count >= 280);
    }
}

#[test]
fn read_passes_writes_that_wait_for_a_limit_of_writes() {
    let world = SimWorld::new(1, 2);
    let throttle = Arc::new(Throttle::new(&of_written_operations(1)));
    let log = Log::default();
    pass(world.env(0), &throttle, &log, 0, vec![WRITE; 3]);
    world.run_for(Duration::from_millis(10));
    pass(world.env(1), &throttle, &log, 1, vec![READ; 100]);
    world.run_for(Duration::from_millis(10));
    assert_eq!(log.borrow().len(), 101, "one write, and all reads");
}

#[test]
fn reads_and_writes_that_wait_for_the_same_room_alternate() {
    let world = SimWorld::new(1, 2);
    let throttle = Arc::new(Throttle::new(&of_operations(10)));
    let log = Log::default();
    pass(world.env(0), &throttle, &log, 0, vec![WRITE; 50]);
    pass(world.env(1), &throttle, &log, 1, vec![READ; 50]);
    world.run_until(|| log.borrow().len() == 100);
    let log = log.borrow();
    assert!(log[4..96].windows(2).all(|pair| pair[0].0 != pair[1].0), "{log:?}");
}

#[test]
fn waiter_that_is_dropped_costs_nothing_and_lets_the_next_one_pass() {
    let world = SimWorld::new(1, 2);
    let throttle = Arc::new(Throttle::new(&of_operations(1)));
    let log = Log::default();
    pass(world.env(0), &throttle, &log, 0, vec![READ]);
    world.run_for(Duration::from_millis(1));
    let (gone, task, ours) = (Rc::new(Cell::new(false)), world.env(0).clone(), throttle.clone());
    let ended = gone.clone();
    world.env(0).spawn(async move {
        let mut wait = Box::pin(ours.pass(&task, READ));
        let once = std::future::poll_fn(|cx| std::task::Poll::Ready(wait.as_mut().poll(cx)));
        assert!(once.await.is_pending());
        task.sleep(Duration::from_millis(100)).await;
        drop(wait);
        ended.set(true);
    });
    world.run_for(Duration::from_millis(1));
    pass(world.env(1), &throttle, &log, 1, vec![READ]);
    world.run_until(|| gone.get());
    assert_eq!(throttle.waiters(), 1);
    world.run_until(|| log.borrow().len() == 2);
    let at = log.borrow()[1].1;
    assert!((Time(900_000_000)..Time(901_000_000)).contains(&at), "{at:?}");
}

#[test]
fn new_limits_apply_to_those_that_wait() {
    let world = SimWorld::new(1, 2);
    let throttle = Arc::new(Throttle::new(&of_operations(1)));
    let log = Log::default();
    pass(world.env(0), &throttle, &log, 0, vec![READ; 10]);
    pass(world.env(1), &throttle, &log, 1, vec![WRITE; 10]);
    world.run_for(Duration::from_millis(10));
    assert_eq!(log.borrow().len(), 1);
    throttle.set(&of_operations(1000));
    world.run_for(Duration::from_millis(1));
    assert_eq!(log.borrow().len(), 20);
    throttle.set(&of_operations(1));
    pass(world.env(0), &throttle, &log, 0, vec![READ; 100]);
    world.run_for(Duration::from_millis(10));
    throttle.set(&ThrottleLimits::default());
    world.run_for(Duration::from_millis(1));
    assert_eq!(log.borrow().len(), 120);
}

/// Has `who` take turns, each of which spends `bytes` after `takes`.
fn take_turns(
    env: &Env,
    throttle: &Arc<Throttle>,
    log: &Log,
    who: usize,
    (takes, bytes): (Duration, Option<u64>),
) {
    let (task, throttle, log) = (env.clone(), throttle.clone(), log.clone());
    env.spawn(async move {
        for _ in 0..10 {
            let turn = throttle.turn(&task).await;
            log.borrow_mut().push((who, task.now()));
            task.sleep(takes).await;
            match bytes {
                Some(bytes) => turn.spend(bytes),
                None => drop(turn),
            }
        }
    });
}

fn of_bytes(per_second: u64) -> ThrottleLimits {
    let bytes = Rates { total: rate(per_second), ..Rates::default() };
    ThrottleLimits { bytes, ..ThrottleLimits::default() }
}

#[test]
fn one_turn_at_a_time_is_given_to_users_that_wait() {
    let world = SimWorld::new(1, 3);
    let throttle = Arc::new(Throttle::new(&of_bytes(TURN_BYTES)));
    let log = Log::default();
    for who in 0..3 {
        let how = (Duration::from_millis(500), Some(TURN_BYTES));
        take_turns(world.env(who as u16), &throttle, &log, who, how);
    }
    world.run_until(|| log.borrow().len() == 30);
    let log = log.borrow();
    let apart = log.windows(2).map(|pair| pair[1].1.since(pair[0].1)).min().unwrap();
    // The first one leaves the tenth of a second that a bucket has room for.
    assert!(apart >= Duration::from_millis(900), "{apart:?}: {log:?}");
    assert!(log.last().unwrap().1 < Time(30_000_000_000), "and no slower: {log:?}");
}

#[test]
fn turn_costs_what_it_spends() {
    for (bytes, most) in [(Some(1 << 20), 2_250), (None, 1), (Some(TURN_BYTES * 2), 18_000)] {
        let world = SimWorld::new(1, 1);
        let throttle = Arc::new(Throttle::new(&of_bytes(TURN_BYTES)));
        let log = Log::default();
        take_turns(world.env(0), &throttle, &log, 0, (Duration::ZERO, bytes));
        world.run_until(|| log.borrow().len() == 10);
        let taken = log.borrow().last().unwrap().1.since(Time(0)).as_millis();
        assert!(taken <= most && taken + 101 >= most, "{bytes:?}: {taken} of {most}");
    }
}

/// Runs a task beside a throttle with a turn per second.
fn beside_turns<T: 'static, F: Future<Output = T> + 'static>(
    run: impl FnOnce(Env, Arc<Throttle>) -> F + 'static,
) -> T {
    let throttle = Arc::new(Throttle::new(&of_bytes(TURN_BYTES)));
    SimWorld::new(1, 1).block_on(0, move |env| run(env, throttle))
}

#[test]
fn late_end_of_a_turn_takes_no_cost_of_others_back() {
    let passed_at = beside_turns(|env, throttle| async move {
        let turn = throttle.turn(&env).await;
        env.sleep(Duration::from_secs(2)).await;
        throttle.charge(env.now(), Passage { bytes: TURN_BYTES * 2, ..WRITE });
        drop(turn);
        throttle.pass(&env, WRITE).await;
        env.now()
    });
    assert!(passed_at >= Time(3_900_000_000), "{passed_at:?}");
}

#[test]
fn end_of_a_turn_takes_nothing_from_new_limits() {
    let passes = beside_turns(|env, throttle| async move {
        let turn = throttle.turn(&env).await;
        throttle.set(&of_bytes(TURN_BYTES));
        throttle.charge(env.now(), Passage { bytes: TURN_BYTES, ..WRITE });
        drop(turn);
        throttle.try_pass(env.now(), WRITE)
    });
    assert!(!passes, "it is full");
}
