//! Exports with limits: what waits, and what ends a wait.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_block::{Rate, Rates, Throttle, ThrottleLimits};
use cairn_testkit::vhost::{DATA, DISCARD, Driver, FLUSH, IN, OUT, Piece, SYNC, ZEROES};

use crate::disk::TestDisk;
use crate::world::{World, eventually, on_both_layouts, on_both_rings};

const DONE: u8 = 0;
const WAITS: u8 = 0xff;
/// So long that only what waits for a throttled request reaches it.
const LONG: Duration = Duration::from_secs(60);

/// What lets one request with data pass in the time of a test.
fn one() -> Arc<Throttle> {
    let per_second = NonZeroU64::MIN;
    let bytes = Rates { total: Some(Rate { per_second, burst: None }), ..Rates::default() };
    Arc::new(Throttle::new(&ThrottleLimits { bytes, ..ThrottleLimits::default() }))
}

/// A driver that has written a block and whose next write, on another ring, waits.
fn throttled(
    world: &World,
    disk: &Arc<TestDisk>,
    throttle: &Arc<Throttle>,
    features: u64,
) -> Driver {
    let mut driver = Driver::start(&world.export_slowly("vm", disk, throttle), features, 3);
    assert_eq!(driver.write(0, 0, &[1; 4096]), DONE);
    driver.submit(1, 0, OUT, 8, &[Piece(DATA, 4096, false)]);
    eventually("the second write waits", || throttle.waiters() == 1);
    driver
}

#[test]
fn rings_share_the_limit_of_their_export_and_a_flush_waits_for_none() {
    on_both_layouts(|layout| {
        on_both_rings(|ring| {
            let world = World::new(ring);
            let (disk, throttle) = (TestDisk::new(1 << 20), one());
            let mut driver = throttled(&world, &disk, &throttle, FLUSH | layout);
            assert_eq!(driver.run(2, SYNC, 0, &[]), DONE);
            assert_eq!((driver.status(1, 0), throttle.waiters()), (WAITS, 1));
            assert_eq!(world.front.memory_held(), 0);
            throttle.set(&ThrottleLimits::default());
            driver.await_used(1, 1);
            assert_eq!(driver.status(1, 0), DONE);
            assert_eq!(disk.bytes(4096, 4096), [1; 4096]);
        });
    });
}

#[test]
fn discard_costs_no_bytes_and_zeroes_do() {
    let world = World::new(cairn_reactor::RingKind::Auto);
    let (disk, throttle) = (TestDisk::new(1 << 20), one());
    let mut driver = Driver::start(&world.export_slowly("vm", &disk, &throttle), FLUSH, 1);
    (0..3).for_each(|_| assert_eq!(driver.range(DISCARD, 0, 8, 0), DONE));
    assert_eq!(driver.range(ZEROES, 0, 8, 0), DONE);
    driver.submit(0, 0, OUT, 0, &[Piece(DATA, 512, false)]);
    eventually("a write waits", || throttle.waiters() == 1);
    assert_eq!(throttle.waited().count, 0, "nothing has waited before");
}

#[test]
fn requests_that_are_refused_cost_no_bytes() {
    const FAILED: u8 = 1;
    let world = World::new(cairn_reactor::RingKind::Auto);
    let (disk, throttle) = (TestDisk::new(1 << 20), one());
    let mut driver = Driver::start(&world.export_slowly("vm", &disk, &throttle), FLUSH, 1);
    let (end, huge) = ((1 << 20) / 512, Piece(DATA, 64 << 10, false));
    for _ in 0..2 {
        assert_eq!(driver.run(0, OUT, end, &[huge]), FAILED, "behind the end");
        assert_eq!(driver.run(0, IN, end, &[Piece(DATA, 4096, true)]), FAILED);
        assert_eq!(driver.run(0, OUT, 0, &[Piece(DATA, 100, false)]), FAILED, "no sectors");
        assert_eq!(driver.range(ZEROES, end, 8, 0), FAILED);
    }
    assert_eq!(throttle.waited().count, 0, "nothing has waited");
    assert_eq!(driver.write(0, 0, &[1; 512]), DONE);
    driver.submit(0, 0, OUT, 0, &[Piece(DATA, 512, false)]);
    eventually("a write waits", || throttle.waiters() == 1);
}

#[test]
fn ring_that_is_stopped_has_used_what_waited() {
    on_both_layouts(|layout| {
        on_both_rings(|ring| {
            let world = World::new(ring);
            let (disk, throttle) = (TestDisk::new(1 << 20), one());
            let mut driver = throttled(&world, &disk, &throttle, FLUSH | layout);
            driver.submit(1, 1, OUT, 16, &[Piece(DATA, 512, false)]);
            let base = driver.stop_ring(1);
            assert_eq!((driver.used(1), driver.status(1, 0)), (1, DONE));
            assert_eq!(driver.status(1, 1), WAITS, "the next one was not taken");
            assert_eq!(disk.log().len(), 2);
            throttle.set(&ThrottleLimits::default());
            driver.start_ring(1, base);
            driver.kick(1);
            driver.await_used(1, 2);
            assert_eq!(driver.status(1, 1), DONE);
        });
    });
}

#[test]
fn export_is_removed_while_a_request_waits() {
    on_both_layouts(|layout| {
        on_both_rings(|ring| {
            let world = World::new(ring);
            let (disk, throttle) = (TestDisk::new(1 << 20), one());
            let mut driver = throttled(&world, &disk, &throttle, FLUSH | layout);
            let began = Instant::now();
            assert_eq!(world.remove("vm", LONG), 0);
            assert!(began.elapsed() < LONG, "it did not wait");
            assert_eq!((driver.status(1, 0), throttle.waiters()), (DONE, 0));
            assert!(driver.is_hung_up());
        });
    });
}

#[test]
fn driver_that_leaves_while_its_request_waits_makes_room_for_the_next_one() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let (disk, throttle) = (TestDisk::new(1 << 20), one());
        drop(throttled(&world, &disk, &throttle, FLUSH));
        eventually("its session has ended", || world.server.users("vm") == 0);
        assert_eq!((disk.log().len(), throttle.waiters()), (2, 0));
    });
}
