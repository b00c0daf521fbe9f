//! Sessions: rings that stop and start, memory that changes, losses, and the end of an export.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use cairn_block::{Flags, SectorCount};

use crate::disk::TestDisk;
use crate::world::{World, eventually, on_both_layouts, on_both_rings};
use cairn_testkit::vhost::{
    CONFIG_WCE, DATA, Driver, EVENT_IDX, FLUSH, GUEST, MEMORY_BYTES, OUT, Piece, RINGS, SYNC,
    event, message, trickle, was_notified,
};

/// Where the used index of ring 0 is.
const USED_INDEX: u64 = 0x2002;

const DONE: u8 = 0;
const FAILED: u8 = 1;

#[test]
fn a_ring_that_stops_has_used_all_it_took_and_goes_on_where_it_was() {
    on_both_layouts(|layout| {
        on_both_rings(|ring| {
            let world = World::new(ring);
            let disk = TestDisk::new(1 << 20);
            let mut driver = Driver::start(&world.export("vm", &disk), FLUSH | layout, 1);
            for slot in 0..3 {
                driver.submit(0, slot, OUT, u64::from(slot) * 8, &[Piece(DATA, 512, false)]);
            }
            let base = driver.stop_ring(0);
            assert_eq!(driver.base(0), base);
            assert_eq!(disk.in_flight(), 0);
            // What the driver offers to a ring that is stopped waits.
            driver.submit(0, 3, OUT, 80, &[Piece(DATA, 512, false)]);
            driver.start_ring(0, base);
            driver.await_used(0, 4);
            assert_eq!(driver.status(0, 3), DONE);
            assert_eq!(driver.stop_ring(0), driver.base(0));
        });
    });
}

#[test]
fn a_ring_waits_for_its_requests_before_it_stops() {
    on_both_layouts(|layout| {
        let world = World::new(cairn_reactor::RingKind::Auto);
        let disk = TestDisk::new(1 << 20);
        let mut driver = Driver::start(&world.export("vm", &disk), FLUSH | layout, 1);
        disk.hold(0);
        driver.submit(0, 0, OUT, 0, &[Piece(DATA, 512, false)]);
        eventually("the write is under way", || disk.in_flight() == 1);
        driver.pair(message::GET_VRING_BASE, 0, 0);
        let mut byte = [0];
        driver.socket.set_nonblocking(true).unwrap();
        assert!(driver.socket.read(&mut byte).is_err(), "no answer yet");
        driver.socket.set_nonblocking(false).unwrap();
        assert_eq!(driver.used(0), 0);
        disk.release(0);
        assert_eq!(driver.reply(message::GET_VRING_BASE)[4..], driver.base(0).to_le_bytes());
        assert_eq!(driver.used(0), 1);
    });
}

#[test]
fn a_ring_that_is_not_enabled_does_nothing() {
    on_both_layouts(|layout| {
        let world = World::new(cairn_reactor::RingKind::Auto);
        let disk = TestDisk::new(1 << 20);
        let mut driver = Driver::start(&world.export("vm", &disk), FLUSH | layout, 2);
        driver.pair(message::SET_VRING_ENABLE, 0, 0);
        // Its answer says that the message before it was handled.
        driver.ask(message::GET_QUEUE_NUM);
        driver.submit(0, 0, OUT, 0, &[Piece(DATA, 512, false)]);
        assert_eq!(driver.write(1, 4096, &[1; 512]), DONE);
        assert_eq!((driver.used(0), disk.log().len()), (0, 1));
        driver.pair(message::SET_VRING_ENABLE, 0, 1);
        driver.await_used(0, 1);
    });
}

#[test]
fn memory_changes_between_requests() {
    on_both_layouts(|layout| {
        on_both_rings(|ring| {
            let world = World::new(ring);
            let disk = TestDisk::new(1 << 20);
            let mut driver = Driver::start(&world.export("vm", &disk), FLUSH | layout, 2);
            assert_eq!(driver.write(0, 0, &[1; 512]), DONE);
            // In two regions, which a request may cross; what was in the middle moves for the
            // guest.
            let (user, half) = (0x7000_0000_0000, MEMORY_BYTES / 2);
            driver.share(&[(GUEST, user, half, 0), (GUEST + half, user + half, half, half)]);
            driver.put(half - 512, &[2; 1024]);
            let across = [Piece(half - 512, 1024, false)];
            assert_eq!(driver.run(0, OUT, 8, &across), DONE);
            assert_eq!(disk.bytes(4096, 1024), [2; 1024]);
            assert_eq!(driver.write(1, 0, &[3; 512]), DONE, "the other rings go on, too");
            driver.share(&[(GUEST, user, half, 0)]);
            assert_eq!(driver.ask(message::GET_QUEUE_NUM), u64::from(RINGS));
            assert_eq!(driver.write(0, 0, &[4; 512]), DONE);
            // Data where no memory is shared now: the ring stops.
            driver.submit(0, 1, OUT, 0, &[Piece(half, 512, false)]);
            eventually("the ring stops", || was_notified(&driver.errors[0]));
            assert_eq!(driver.status(0, 1), 0xff);
            assert_eq!(driver.write(1, 0, &[5; 512]), DONE);
            // With that memory the ring goes on with the same request.
            driver.put(half, &[6; 512]);
            driver.share(&[(GUEST, user, half, 0), (GUEST + half, user + half, half, half)]);
            eventually("the request is served", || driver.status(0, 1) == DONE);
            assert_eq!(disk.bytes(0, 512), [6; 512]);
            assert_eq!(driver.write(0, 0, &[7; 512]), DONE);
        });
    });
}

#[test]
fn a_loss_is_told_once_and_is_owed_to_the_ring_that_follows() {
    on_both_layouts(|layout| {
        let world = World::new(cairn_reactor::RingKind::Auto);
        let disk = TestDisk::new(1 << 20);
        let path = world.export("vm", &disk);
        let mut driver = Driver::start(&path, FLUSH | layout, 1);
        assert_eq!(driver.write(0, 0, &[1; 512]), DONE);
        disk.shared.failures.raise();
        assert_eq!(driver.run(0, SYNC, 0, &[]), FAILED);
        assert_eq!(driver.run(0, SYNC, 0, &[]), DONE);
        disk.shared.failures.raise();
        // The server tells another client.
        disk.shared.failures.acknowledge(2);
        let base = driver.stop_ring(0);
        driver.start_ring(0, base);
        assert_eq!(driver.run(0, SYNC, 0, &[]), FAILED);
        assert_eq!(driver.run(0, SYNC, 0, &[]), DONE);
        // The server tells a driver that connects again what it did not tell the one before.
        disk.shared.failures.raise();
        drop(driver);
        let mut driver = Driver::start(&path, FLUSH | layout, 1);
        assert_eq!(driver.run(0, SYNC, 0, &[]), FAILED);
        assert_eq!(driver.run(0, SYNC, 0, &[]), DONE);
    });
}

#[test]
fn a_loss_that_another_client_was_told_of_is_owed_to_the_next_session_until_a_ring_tells_it() {
    let world = World::new(cairn_reactor::RingKind::Auto);
    let disk = TestDisk::new(1 << 20);
    let path = world.export("vm", &disk);
    let mut driver = Driver::start(&path, FLUSH, 2);
    for ring in 0..2 {
        assert_eq!(driver.write(ring, 0, &[1; 512]), DONE);
    }
    disk.shared.failures.raise();
    disk.shared.failures.acknowledge(1);
    drop(driver);
    // One that starts no ring takes nothing away.
    drop(Driver::start(&path, FLUSH, 0));
    let mut driver = Driver::start(&path, FLUSH, 2);
    assert_eq!(driver.run(0, SYNC, 0, &[]), FAILED);
    drop(driver);
    let mut driver = Driver::start(&path, FLUSH, 2);
    assert_eq!(driver.run(0, SYNC, 0, &[]), DONE);
    assert_eq!(driver.run(1, SYNC, 0, &[]), DONE);
}

#[test]
fn a_volume_that_grows_is_announced() {
    let world = World::new(cairn_reactor::RingKind::Auto);
    let disk = TestDisk::new(1 << 20);
    let mut driver = Driver::start(&world.export("vm", &disk), FLUSH, 0);
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    driver.say(message::SET_BACKEND_REQ_FD, &[], &[ours.as_fd()]);
    driver.start_ring(0, 0);
    assert_eq!(driver.config(0, 8), 2048_u64.to_le_bytes());
    let mut told = [0; 12];
    theirs.read_exact(&mut told).unwrap();
    world.server.look_at_sizes();
    *disk.sectors.lock().unwrap() = SectorCount(4096);
    world.server.look_at_sizes();
    theirs.read_exact(&mut told).unwrap();
    assert_eq!(told, *[2_u32, 1, 0].map(u32::to_le_bytes).as_flattened());
    assert_eq!(driver.config(0, 8), 4096_u64.to_le_bytes());
    assert_eq!(driver.write(0, 2048 * 512, &[1; 512]), DONE);
    theirs.set_nonblocking(true).unwrap();
    assert!(theirs.read(&mut told).is_err(), "it is told once");
}

#[test]
fn the_next_driver_is_heard_when_the_one_before_has_left() {
    let world = World::new(cairn_reactor::RingKind::Auto);
    let disk = TestDisk::new(1 << 20);
    let path = world.export("vm", &disk);
    let mut first = Driver::start(&path, FLUSH, 1);
    assert_eq!(world.server.users("vm"), 1);
    disk.hold(0);
    first.submit(0, 0, OUT, 0, &[Piece(DATA, 512, false)]);
    eventually("the write is under way", || disk.in_flight() == 1);
    let mut second = Driver::connect(&path);
    second.say(message::GET_QUEUE_NUM, &[], &[]);
    drop(first);
    second.socket.set_nonblocking(true).unwrap();
    assert!(second.socket.read(&mut [0]).is_err(), "a request of the first one is under way");
    second.socket.set_nonblocking(false).unwrap();
    disk.release(0);
    assert_eq!(second.reply(message::GET_QUEUE_NUM), u64::from(RINGS).to_le_bytes());
    assert_eq!(second.ask(message::GET_QUEUE_NUM), u64::from(RINGS));
}

#[test]
fn an_export_that_is_removed_ends_its_session_between_requests() {
    on_both_layouts(|layout| {
        on_both_rings(|ring| {
            let world = World::new(ring);
            let disk = TestDisk::new(1 << 20);
            let path = world.export("vm", &disk);
            let mut driver = Driver::start(&path, FLUSH | layout, 2);
            disk.hold(0);
            driver.submit(0, 0, OUT, 0, &[Piece(DATA, 512, false)]);
            eventually("the write is under way", || disk.in_flight() == 1);
            assert_eq!(world.remove("vm", Duration::from_millis(10)), 1, "a request is under way");
            assert_eq!(driver.used(0), 0);
            disk.release(0);
            driver.await_used(0, 1);
            assert!(driver.is_hung_up());
            assert!(!path.exists());
            let again = world.export("vm", &disk);
            assert_eq!(Driver::start(&again, FLUSH | layout, 1).write(0, 0, &[1; 512]), DONE);
            assert_eq!(world.remove("vm", Duration::from_secs(60)), 0);
        });
    });
}

#[test]
fn a_message_that_comes_byte_by_byte_is_understood() {
    let world = World::new(cairn_reactor::RingKind::Auto);
    let disk = TestDisk::new(1 << 20);
    let mut driver = Driver::connect(&world.export("vm", &disk));
    let bytes = [17_u32, 1, 0].map(u32::to_le_bytes).concat();
    trickle(&driver, &bytes);
    assert_eq!(driver.reply(message::GET_QUEUE_NUM), u64::from(RINGS).to_le_bytes());
}

#[test]
fn names_and_numbers_of_queues_that_make_no_sense_are_refused() {
    use cairn_exports::vhost_user::VhostExport;
    let world = World::new(cairn_reactor::RingKind::Auto);
    let disk = TestDisk::new(1 << 20);
    let socket = world.export("vm", &disk);
    let export = |name: &str, queues| VhostExport {
        name: name.to_owned(),
        disk: disk.clone(),
        read_only: false,
        socket: socket.with_extension("other"),
        rights: Default::default(),
        queues,
        throttle: Default::default(),
    };
    let refused = |name, queues| world.server.add_export(export(name, queues)).unwrap_err();
    assert!(refused("vm", 1).to_string().contains("expected a name not in use"));
    assert!(refused("other", 0).to_string().contains("expected 1 to 64"));
    assert!(refused("other", 65).to_string().contains("num-queues"));
}

#[test]
fn chains_that_a_dead_server_had_taken_are_run_before_new_ones_in_their_order() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let disk = TestDisk::new(1 << 20);
        let path = world.export("vm", &disk);
        let mut driver = Driver::connect(&path);
        driver.negotiate(FLUSH);
        driver.share_all();
        driver.track();
        driver.start_ring(0, 0);
        assert_eq!(driver.write(0, 0, &[1; 512]), DONE);
        let base = driver.stop_ring(0);
        assert_eq!(base, 1);
        // A server took slots 1, 2 and 3, used slot 2, and died.
        for slot in 1..4 {
            driver.submit(0, slot, OUT, 8 * u64::from(slot), &[Piece(DATA, 512, false)]);
        }
        driver.put(USED_INDEX, &2_u16.to_le_bytes());
        let (region, _) = driver.inflight.as_ref().unwrap();
        region.write_all_at(&2_u16.to_le_bytes(), 14).unwrap();
        for (order, slot) in [(5_u64, 3_u64), (6, 1)] {
            let entry = 16 + 16 * (4 * slot);
            region.write_all_at(&order.to_le_bytes(), entry + 8).unwrap();
            region.write_all_at(&[1], entry).unwrap();
        }
        let before = disk.log().len();
        driver.connect_again(&path, FLUSH, 1);
        driver.submit(0, 0, OUT, 64, &[Piece(DATA, 512, false)]);
        driver.await_used(0, 5);
        let started: Vec<u64> =
            disk.log()[before..].iter().map(|seen| seen.range.start.0 / 8).collect();
        assert_eq!(started, [3, 1, 8]);
        assert_eq!(
            (driver.status(0, 3), driver.status(0, 2), driver.status(0, 1)),
            (DONE, 255, DONE)
        );
    });
}

#[test]
fn a_driver_that_reads_nothing_does_not_keep_its_export() {
    let world = World::new(cairn_reactor::RingKind::Auto);
    let disk = TestDisk::new(1 << 20);
    let driver = Driver::start(&world.export("vm", &disk), FLUSH, 1);
    driver.socket.set_nonblocking(true).unwrap();
    let question = [message::GET_FEATURES, 1, 0].map(u32::to_le_bytes).concat();
    // Until its answers fill all there is.
    let mut quiet = 0;
    while quiet < 20 {
        quiet = if (&driver.socket).write(&question).is_ok() { 0 } else { quiet + 1 };
        std::thread::sleep(Duration::from_micros(if quiet > 0 { 2000 } else { 0 }));
    }
    assert_eq!(world.remove("vm", Duration::from_secs(60)), 0);
}

#[test]
fn the_choice_of_a_write_cache_outlives_sessions_and_the_server() {
    on_both_layouts(|layout| {
        let disk = TestDisk::new(1 << 20);
        let is_durable = || disk.log().last().unwrap().flags == Flags::FUA;
        let features = FLUSH | CONFIG_WCE | layout;
        let world = World::new(cairn_reactor::RingKind::Auto);
        let path = world.export("vm", &disk);
        let mut driver = Driver::connect(&path);
        // Emulators read this before they know what the guest accepts, and keep it.
        assert_eq!(driver.config(32, 1), [1]);
        driver.negotiate(features);
        driver.share_all();
        driver.track();
        driver.start_ring(0, driver.begin());
        driver.write(0, 0, &[1; 512]);
        assert!(!is_durable());
        driver.set_config(32, &[0]);
        assert_eq!(driver.config(32, 1), [0]);
        driver.connect_again(&path, features, 1);
        driver.write(0, 0, &[2; 512]);
        assert!(is_durable(), "after a session");
        drop(world);
        let world = World::new(cairn_reactor::RingKind::Auto);
        driver.connect_again(&world.export("vm", &disk), features, 1);
        driver.write(0, 0, &[3; 512]);
        assert!(is_durable(), "after a restart");
        assert_eq!(driver.config(32, 1), [0]);
    });
}

#[test]
fn a_driver_is_notified_of_what_was_used_before_it_gave_a_descriptor() {
    on_both_layouts(|layout| {
        let world = World::new(cairn_reactor::RingKind::Auto);
        let disk = TestDisk::new(1 << 20);
        let mut driver = Driver::start(&world.export("vm", &disk), FLUSH | EVENT_IDX | layout, 1);
        assert_eq!(driver.write(0, 0, &[1; 512]), DONE);
        eventually("the first one is notified", || was_notified(&driver.calls[0]));
        let other = event();
        driver.pass(message::SET_VRING_CALL, 0, other.as_fd());
        eventually("the other one is notified", || was_notified(&other));
    });
}
