//! What a watch promises to its task.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use cairn_block::ReactorId;
use cairn_reactor::{Driver, Options, Reactors, RingKind};

const HERE: ReactorId = ReactorId(0);

fn reactors(spin: Option<Duration>) -> Reactors {
    let reactors =
        Reactors::start(Options { count: 1, ring: RingKind::Auto }).expect("a ring opens");
    if let Some(spin) = spin {
        reactors.set_spin(spin);
    }
    reactors
}

#[test]
fn what_is_written_while_the_reactor_polls_needs_no_notification() {
    let reactors = reactors(Some(Duration::from_secs(100)));
    let (waits, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let writer = {
        let (waits, written) = (waits.clone(), written.clone());
        std::thread::spawn(move || {
            while !waits.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            written.store(true, Ordering::Release);
        })
    };
    let came = reactors.block_on(HERE, move |env| async move {
        let watch = Driver::of(&env).watch(move || {
            waits.store(true, Ordering::Release);
            written.load(Ordering::Acquire)
        });
        // The budget may have been set after the turn began.
        while !watch.ready().await {
            env.sleep(Duration::from_millis(1)).await;
        }
        true
    });
    assert!(came);
    writer.join().expect("it does not panic");
}

#[test]
fn an_idle_watch_is_told_before_the_reactor_sleeps_and_not_looked_at_any_more() {
    let reactors = reactors(None);
    let looks = Arc::new(AtomicU32::new(0));
    let counted = looks.clone();
    reactors.block_on(HERE, move |env| async move {
        let counter = counted.clone();
        let watch = Rc::new(Driver::of(&env).watch(move || {
            counter.fetch_add(1, Ordering::Relaxed);
            false
        }));
        let mut most = 0;
        for _ in 0..600 {
            let before = counted.load(Ordering::Relaxed);
            assert!(!watch.ready().await, "nothing came");
            env.sleep(Duration::from_micros(100)).await;
            most = most.max(counted.load(Ordering::Relaxed) - before);
        }
        assert!(most > 1, "it polled");
        // By now polling has become rare: most of these pauses end at the first look. One that
        // the system interrupts for longer than a sleep begins anew.
        let mut polled = 0;
        for _ in 0..200 {
            let before = counted.load(Ordering::Relaxed);
            assert!(!watch.ready().await);
            polled += u32::from(counted.load(Ordering::Relaxed) > before + 1);
            env.sleep(Duration::from_micros(100)).await;
        }
        assert!(polled <= 50, "{polled} of 200 pauses were polled");
    });
}

#[test]
fn a_budget_of_zero_means_that_nothing_is_looked_at_twice() {
    let reactors = reactors(Some(Duration::ZERO));
    let looks = Arc::new(AtomicU32::new(0));
    let counted = looks.clone();
    reactors.block_on(HERE, |env| async move {
        env.sleep(Duration::from_millis(1)).await;
        let watch = Driver::of(&env).watch(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            false
        });
        for _ in 0..100 {
            assert!(!watch.ready().await);
            env.sleep(Duration::from_micros(50)).await;
        }
    });
    assert_eq!(looks.load(Ordering::Relaxed), 100);
}
