//! The budget's rules one by one, then all of them together from several threads.

use std::cell::Cell;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use cairn_block::{Env, ReactorId, Time};
use cairn_reactor::{Core, CoreParts, PostOffice};

use super::{Budget, Portion, Waiting};

const MIB: usize = 1 << 20;

/// Portions without spare bytes, each of a volume of its own.
fn volumes<const N: usize>(budget: &Arc<Budget>) -> [Portion; N] {
    std::array::from_fn(|_| Portion::new(&budget.account()))
}

/// A budget whose portions keep no spare bytes.
fn exact(total: usize) -> Arc<Budget> {
    Budget::new(total, usize::MAX)
}

fn is_granted(waiting: &Waiting<'_>) -> bool {
    let mut cx = Context::from_waker(Waker::noop());
    pin!(waiting.granted()).poll(&mut cx).is_ready()
}

#[test]
fn a_volume_holds_at_most_half_of_what_the_others_leave() {
    let budget = exact(64 * MIB);
    let [a, b, c] = volumes(&budget);
    assert!(a.try_take(32 * MIB) && !a.try_take(1), "B2");
    assert!(b.try_take(16 * MIB) && !b.try_take(1));
    assert!(c.try_take(8 * MIB) && !c.try_take(1));
    a.give(32 * MIB);
    assert!(b.try_take(12 * MIB) && !b.try_take(1));
    assert_eq!(budget.held(), 36 * MIB);
}

#[test]
fn a_volume_that_gives_nothing_back_does_not_stop_another() {
    let budget = exact(64 * MIB);
    let [stuck, other] = volumes(&budget);
    assert!(stuck.try_take(32 * MIB));
    let waiting = Waiting::begin(&stuck, MIB);
    for _ in 0..100 {
        assert!(other.try_take(16 * MIB), "B3");
        other.give(16 * MIB);
        assert!(!is_granted(&waiting), "the other never holds what the first waits for");
    }
    stuck.give(MIB);
    assert!(is_granted(&waiting));
}

#[test]
fn requests_of_one_volume_are_let_in_as_they_came() {
    let budget = exact(64 * MIB);
    let account = budget.account();
    let [a, b, c] = std::array::from_fn(|_| Portion::new(&account));
    assert!(a.try_take(32 * MIB));
    let (large, small) = (Waiting::begin(&b, 8 * MIB), Waiting::begin(&c, MIB));
    a.give(4 * MIB);
    assert!(!is_granted(&large) && !is_granted(&small), "B3");
    assert!(!a.try_take(MIB), "a new one waits behind both");
    a.give(4 * MIB);
    assert!(is_granted(&large) && !is_granted(&small));
    drop(large);
    assert!(is_granted(&small), "what was not claimed comes back");
    drop(small);
    assert_eq!(budget.held(), 24 * MIB);
}

#[test]
fn a_request_larger_than_the_budget_is_let_in_alone() {
    let budget = exact(16 * MIB);
    let [a, b] = volumes(&budget);
    assert!(b.try_take(MIB) && !a.try_take(40 * MIB));
    let waiting = Waiting::begin(&a, 40 * MIB);
    b.give(MIB);
    assert!(is_granted(&waiting));
    waiting.claim();
    assert!(!b.try_take(1));
    a.give(40 * MIB);
    assert!(b.try_take(MIB));
}

#[test]
fn spare_bytes_serve_small_requests_and_are_collected_for_those_that_wait() {
    let budget = Budget::new(64 * MIB, 16);
    let [a, b] = volumes(&budget);
    assert!(a.try_take(4096));
    let taken = budget.state.lock().held;
    assert_eq!((taken, budget.held()), (4096 + budget.spare_max, 4096), "B5");
    assert!(a.try_take(4096));
    a.give(2 * 4096);
    assert_eq!(budget.state.lock().held, taken, "nothing shared was touched");
    assert!(b.try_take(20 * MIB) && !b.try_take(20 * MIB));
    let waiting = Waiting::begin(&b, 12 * MIB);
    assert!(is_granted(&waiting), "exactly half is free once nothing is spare");
    waiting.claim();
    let more = Waiting::begin(&b, MIB);
    assert!(a.try_take(4096));
    a.give(4096);
    assert_eq!(budget.state.lock().held, 32 * MIB, "nothing is kept while anybody waits");
    drop(more);
    b.give(32 * MIB);
    drop((a, b));
    assert_eq!(budget.state.lock().held, 0);
}

fn core() -> Core {
    let post = PostOffice::new(1);
    let (reactor, reactor_waker) = (ReactorId(0), post.reactor_waker(ReactorId(0)));
    Core::new(CoreParts { reactor, seed: 1, post, reactor_waker, mechanism: Rc::new(()) })
}

/// A task that always has one or two requests of `bytes` in progress, until `stop` is set.
async fn traffic(env: Env, portion: Portion, bytes: usize, stop: Rc<Cell<bool>>) {
    portion.take(&env, bytes).await;
    while !stop.get() {
        let next = portion.take(&env, bytes);
        let end = env.sleep(Duration::from_millis(3));
        if let super::First::Right(()) = super::first(next, end).await {
            portion.give(bytes);
            portion.take(&env, bytes).await;
            continue;
        }
        env.sleep(Duration::from_millis(1)).await;
        portion.give(bytes);
    }
    portion.give(bytes);
}

#[test]
fn large_request_gets_in_while_many_volumes_keep_the_budget_busy() {
    let (core, budget, stop) = (core(), exact(64 * MIB), Rc::new(Cell::new(false)));
    // More than a third of the budget is always in use, by volumes that hold little each.
    for portion in volumes::<12>(&budget) {
        core.env().spawn(traffic(core.env().clone(), portion, 4 * MIB, stop.clone()));
    }
    let (env, [large], done) = (core.env().clone(), volumes(&budget), Rc::new(Cell::new(false)));
    let ended = done.clone();
    let mut now = Time(0);
    let mut turn = |until: &dyn Fn() -> bool| {
        for _ in 0..20_000 {
            while core.turn(now, Vec::new()) {}
            if until() {
                return true;
            }
            now = now + Duration::from_millis(1);
        }
        false
    };
    turn(&|| budget.held() >= 40 * MIB);
    core.env().spawn(async move {
        large.take(&env, 32 * MIB).await;
        large.give(32 * MIB);
        ended.set(true);
    });
    assert!(turn(&|| done.get()), "B4");
    stop.set(true);
    assert!(turn(&|| budget.held() == 0), "everybody goes on afterwards");
}

#[test]
fn a_request_that_can_never_fit_costs_the_others_little() {
    let (core, budget) = (core(), exact(64 * MIB));
    let [stuck, large, busy] = volumes(&budget);
    assert!(stuck.try_take(32 * MIB));
    let env = core.env().clone();
    core.env().spawn(async move {
        large.take(&env, 32 * MIB).await;
        unreachable!("half of what is left is less");
    });
    let (env, count) = (core.env().clone(), Rc::new(Cell::new(0)));
    let counted = count.clone();
    core.env().spawn(async move {
        loop {
            busy.take(&env, MIB).await;
            env.sleep(Duration::from_millis(1)).await;
            busy.give(MIB);
            counted.set(counted.get() + 1);
        }
    });
    for millisecond in 0..60_000 {
        while core.turn(Time(millisecond * 1_000_000), Vec::new()) {}
    }
    assert!(count.get() > 45_000, "{} of 60 000", count.get());
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn wait<T>(mut future: Pin<&mut impl Future<Output = T>>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        std::thread::park();
    }
}

#[test]
fn threads_that_share_a_budget_do_not_deadlock() {
    let budget = Budget::new(64 * MIB, 64);
    let accounts = [budget.account(), budget.account()];
    std::thread::scope(|scope| {
        for number in 0..4usize {
            let (budget, account) = (&budget, &accounts[number % 2]);
            scope.spawn(move || {
                let portion = Portion::new(account);
                let mut random = number as u64;
                let mut held = Vec::new();
                for _ in 0..20_000 {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let bytes = if random >> 60 == 0 { 12 * MIB } else { (random >> 44) as usize };
                    if held.len() > 3 {
                        held.drain(..).for_each(|bytes| portion.give(bytes));
                    }
                    if !portion.try_take(bytes) {
                        // A thread that waits holds nothing, so all of them end.
                        held.drain(..).for_each(|bytes| portion.give(bytes));
                        let waiting = Waiting::begin(&portion, bytes);
                        wait(pin!(waiting.granted()));
                        waiting.claim();
                    }
                    held.push(bytes);
                    assert!(budget.state.lock().held <= 64 * MIB, "B2");
                }
                held.drain(..).for_each(|bytes| portion.give(bytes));
            });
        }
    });
    assert_eq!(budget.state.lock().held, 0);
}
