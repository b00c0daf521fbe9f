//! Sessions that wait in a pause, and those that go on in another server.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::{Flags, Op};
use cairn_exports::vhost_user::{Estate, SessionRecord};
use cairn_reactor::RingKind;
use cairn_testkit::vhost::{
    CONFIG_WCE, DATA, Driver, EVENT_IDX, FLUSH, OUT, PACKED, Piece, SYNC, event, message,
    was_notified,
};
use serde_json::{Value, json};

use crate::disk::TestDisk;
use crate::world::{World, eventually, on_both_layouts, on_both_rings};

const DONE: u8 = 0;
const FAILED: u8 = 1;
const PATIENCE: Duration = Duration::from_secs(30);

/// What another process gets: the records go through JSON, where `change` may change them.
fn sent(mut estate: Estate, change: impl Fn(&mut Value)) -> Estate {
    for session in estate.iter_mut().filter_map(|parted| parted.session.as_mut()) {
        let mut record = serde_json::to_value(&session.record).unwrap();
        change(&mut record);
        session.record = serde_json::from_value::<SessionRecord>(record).ok();
    }
    estate
}

/// Has another server go on with what the one before left; how many sessions it has.
fn take_over(world: &World, disk: &Arc<TestDisk>, estate: Estate) -> usize {
    world.export("vm", disk);
    let count = world.server.inherit(sent(estate, |_| ()));
    world.server.resume();
    count
}

/// Has another server go on with a disk that is exported as `vm`; how many sessions it has.
pub fn hand_over(world: &mut World, disk: &Arc<TestDisk>) -> usize {
    world.pause(PATIENCE).unwrap();
    let estate = world.part();
    take_over(world, disk, estate)
}

#[test]
fn a_driver_goes_on_in_another_server_again_and_again() {
    on_both_layouts(|layout| {
        on_both_rings(|ring| {
            let mut world = World::new(ring);
            let disk = TestDisk::new(1 << 20);
            let path = world.export("vm", &disk);
            let mut driver = Driver::start(&path, FLUSH | layout, 2);
            for round in 1..4_u8 {
                assert_eq!(driver.write(0, u64::from(round) * 512, &[round; 512]), DONE);
                assert_eq!(hand_over(&mut world, &disk), 1);
                assert_eq!(driver.read(1, u64::from(round) * 512, 512), [round; 512]);
                assert_eq!(world.server.users("vm"), 1);
            }
            assert_eq!(driver.ask(message::GET_QUEUE_NUM), 4);
            drop(driver);
            // Its socket listens on.
            assert_eq!(Driver::start(&path, FLUSH | layout, 1).read(0, 512, 512), [1; 512]);
        });
    });
}

/// Writes that a driver submits, each to sectors of its own.
struct Load {
    driver: Driver,
    seen: [u16; 2],
    /// The write of each slot of each ring.
    slots: [[Option<u64>; 4]; 2],
    next: u64,
    /// The writes of each ring, in order.
    submitted: [Vec<u64>; 2],
}

impl Load {
    fn new(driver: Driver) -> Load {
        let (seen, slots, submitted) = Default::default();
        Load { driver, seen, slots, next: 0, submitted }
    }

    /// Takes what was used, each write once.
    fn see(&mut self) {
        for ring in 0..2 {
            while self.driver.used(ring) != self.seen[ring] {
                let (head, written) = self.driver.used_element(ring, self.seen[ring]);
                self.seen[ring] = self.seen[ring].wrapping_add(1);
                let slot = head as u16 / 4;
                self.slots[ring][usize::from(slot)].take().expect("it is used once");
                assert_eq!((self.driver.status(ring, slot), written), (DONE, 1));
            }
        }
    }

    /// Submits a write in each free slot.
    fn submit(&mut self) {
        for (ring, slot) in [0, 1].into_iter().flat_map(|ring| (0..4).map(move |slot| (ring, slot)))
        {
            if self.slots[ring][usize::from(slot)].is_none() {
                self.slots[ring][usize::from(slot)] = Some(self.next);
                let data = [Piece(DATA, 512, false)];
                self.driver.submit(ring, slot, OUT, self.next, &data);
                self.submitted[ring].push(self.next);
                self.next += 1;
            }
        }
    }

    fn finish(&mut self) {
        eventually("all writes end", || {
            self.see();
            self.slots.as_flattened().iter().all(Option::is_none)
        });
    }
}

#[test]
fn under_load_each_request_runs_once_and_in_the_order_of_its_ring() {
    for event_idx in [0, EVENT_IDX] {
        on_both_layouts(|layout| {
            for is_tracked in [false, true] {
                let mut world = World::new(RingKind::Auto);
                let disk = TestDisk::new(64 << 20);
                let mut driver = Driver::connect(&world.export("vm", &disk));
                driver.negotiate(FLUSH | event_idx | layout);
                driver.share_all();
                if is_tracked {
                    driver.track();
                }
                (0..2).for_each(|ring| driver.start_ring(ring, driver.begin()));
                let mut load = Load::new(driver);
                for round in 0..40 {
                    for _ in 0..round % 4 {
                        load.submit();
                        load.see();
                    }
                    load.submit();
                    world.pause(PATIENCE).unwrap();
                    let ran = disk.log().len();
                    assert_eq!(disk.in_flight(), 0);
                    load.see();
                    load.submit();
                    let estate = world.part();
                    load.submit();
                    assert_eq!(disk.log().len(), ran, "nothing is taken in a pause");
                    assert_eq!(take_over(&world, &disk, estate), 1);
                }
                load.finish();
                let log: Vec<u64> = disk.log().iter().map(|seen| seen.range.start.0).collect();
                assert_eq!(log.len() as u64, load.next, "none runs twice, and none is lost");
                for submitted in &load.submitted {
                    let of_ring = |sector: &&u64| submitted.contains(sector);
                    assert_eq!(&log.iter().filter(of_ring).copied().collect::<Vec<_>>(), submitted);
                }
            }
        });
    }
}

#[test]
fn what_is_offered_in_a_pause_is_taken_after_it_in_order() {
    on_both_layouts(|layout| {
        let mut world = World::new(RingKind::Auto);
        let disk = TestDisk::new(1 << 20);
        let features = FLUSH | EVENT_IDX | layout;
        let mut driver = Driver::start(&world.export("vm", &disk), features, 1);
        assert_eq!(driver.write(0, 512, &[9; 512]), DONE);
        world.pause(PATIENCE).unwrap();
        driver.submit(0, 2, OUT, 2, &[Piece(DATA, 512, false)]);
        let estate = world.part();
        driver.submit(0, 1, OUT, 1, &[Piece(DATA, 512, false)]);
        // The notification is taken, as by the process before; the chain is not.
        assert!(rustix::io::read(driver.kick_end(0), &mut [0; 8]).is_ok());
        assert_eq!(take_over(&world, &disk, estate), 1);
        driver.await_used(0, 3);
        let log: Vec<u64> = disk.log().iter().map(|seen| seen.range.start.0).collect();
        assert_eq!(log, [1, 2, 1]);
    });
}

#[test]
fn a_pause_that_is_called_off_changes_nothing() {
    on_both_layouts(|layout| {
        on_both_rings(|ring| {
            let world = World::new(ring);
            let disk = TestDisk::new(1 << 20);
            let mut driver = Driver::start(&world.export("vm", &disk), FLUSH | layout, 2);
            disk.hold(0);
            driver.submit(0, 0, OUT, 0, &[Piece(DATA, 512, false)]);
            eventually("the write is under way", || disk.in_flight() == 1);
            assert_eq!(world.pause(Duration::from_millis(20)), Err(1));
            driver.submit(1, 0, OUT, 8, &[Piece(DATA, 512, false)]);
            driver.submit(0, 1, OUT, 16, &[Piece(DATA, 512, false)]);
            // The ring whose request does not end goes on beside it, too.
            driver.await_used(1, 1);
            driver.await_used(0, 1);
            assert_eq!(driver.status(0, 1), DONE);
            disk.release(0);
            driver.await_used(0, 2);
            assert_eq!(world.pause(PATIENCE), Ok(()));
            world.server.resume();
            assert_eq!(driver.write(0, 0, &[1; 512]), DONE);
            assert_eq!(disk.log().len(), 4);
        });
    });
}

#[test]
fn a_driver_goes_on_from_any_byte_of_a_message_and_with_its_descriptors() {
    let bytes = [message::SET_VRING_CALL, 1, 8, 0, 0].map(u32::to_le_bytes).concat();
    for cut in [1, 11, 12, 13, 19] {
        let mut world = World::new(RingKind::Auto);
        let disk = TestDisk::new(1 << 20);
        let mut driver = Driver::start(&world.export("vm", &disk), FLUSH, 1);
        let call = event();
        driver.ask(message::GET_QUEUE_NUM);
        driver.send(&bytes[..cut], &[call.as_fd()]);
        // Some cuts come before the server has received the half, and some after.
        std::thread::sleep(Duration::from_millis(5 * (cut as u64 % 2)));
        assert_eq!(hand_over(&mut world, &disk), 1);
        assert_eq!(driver.write(0, 0, &[1; 512]), DONE);
        driver.send(&bytes[cut..], &[]);
        driver.ask(message::GET_QUEUE_NUM);
        assert!(was_notified(&call), "of what was used before");
        assert_eq!(driver.write(0, 0, &[1; 512]), DONE);
        eventually("the new descriptor is notified", || was_notified(&call));
    }
}

#[test]
fn a_driver_goes_on_from_any_step_of_its_negotiation() {
    on_both_layouts(|layout| {
        let mut world = World::new(RingKind::Auto);
        let disk = TestDisk::new(1 << 20);
        let path = world.export("vm", &disk);
        assert_eq!(hand_over(&mut world, &disk), 0, "a socket without a session");
        let mut driver = Driver::connect(&path);
        driver.ask(message::GET_QUEUE_NUM);
        let mut again = |driver: &mut Driver| {
            // Its answer says that the message before it was handled.
            driver.ask(message::GET_QUEUE_NUM);
            assert_eq!(hand_over(&mut world, &disk), 1);
        };
        again(&mut driver);
        driver.negotiate(FLUSH | layout);
        again(&mut driver);
        driver.share_all();
        again(&mut driver);
        driver.track();
        again(&mut driver);
        let begin = driver.begin();
        driver.start_ring(0, begin);
        driver.pair(message::SET_VRING_ENABLE, 0, 0);
        again(&mut driver);
        driver.submit(0, 0, OUT, 0, &[Piece(DATA, 512, false)]);
        again(&mut driver);
        assert_eq!(driver.used(0), 0, "the ring is not enabled");
        driver.pair(message::SET_VRING_ENABLE, 0, 1);
        driver.await_used(0, 1);
        again(&mut driver);
        assert_eq!(driver.stop_ring(0), driver.base(0));
        again(&mut driver);
        let base = driver.base(0);
        driver.start_ring(0, base);
        assert_eq!(driver.write(0, 0, &[1; 512]), DONE);
        // It connects again, with the memory for what is in flight.
        again(&mut driver);
        driver.connect_again(&path, FLUSH | layout, 1);
        assert_eq!(driver.write(0, 0, &[2; 512]), DONE);
        assert_eq!(disk.log().len(), 3);
    });
}

#[test]
fn a_driver_that_connects_in_a_pause_is_served_after_it() {
    let mut world = World::new(RingKind::Auto);
    let disk = TestDisk::new(1 << 20);
    let path = world.export("vm", &disk);
    world.pause(PATIENCE).unwrap();
    let mut driver = Driver::connect(&path);
    driver.say(message::GET_QUEUE_NUM, &[], &[]);
    driver.socket.set_nonblocking(true).unwrap();
    assert!(driver.socket.read(&mut [0]).is_err(), "it waits");
    driver.socket.set_nonblocking(false).unwrap();
    let estate = world.part();
    assert_eq!(take_over(&world, &disk, estate), 0);
    driver.reply(message::GET_QUEUE_NUM);
    driver.negotiate(FLUSH);
}

#[test]
fn writes_stay_durable_in_another_server_if_the_driver_does_not_flush_or_chose_so() {
    on_both_layouts(|layout| {
        for (features, choice) in [(0, None), (CONFIG_WCE | FLUSH, Some(0)), (FLUSH, None)] {
            let mut world = World::new(RingKind::Auto);
            let disk = TestDisk::new(1 << 20);
            let path = world.export("vm", &disk);
            let mut driver = Driver::start(&path, features | layout, 1);
            choice.into_iter().for_each(|choice| driver.set_config(32, &[choice]));
            driver.ask(message::GET_QUEUE_NUM);
            let is_durable = features != FLUSH;
            for _ in 0..2 {
                assert_eq!(hand_over(&mut world, &disk), 1);
                assert_eq!(driver.write(0, 0, &[1; 512]), DONE);
                let seen = *disk.log().last().unwrap();
                let expected = if is_durable { Flags::FUA } else { Flags::empty() };
                assert_eq!((seen.op, seen.flags), (Op::Write, expected));
            }
            drop(driver);
            eventually("the driver has left", || world.server.users("vm") == 0);
            // What the last driver chose goes on without a session, too.
            assert_eq!(hand_over(&mut world, &disk), 0);
            let mut driver = Driver::start(&path, CONFIG_WCE | FLUSH | layout, 1);
            assert_eq!(driver.config(32, 1), [choice.unwrap_or(1)]);
        }
    });
}

#[test]
fn a_loss_is_owed_in_another_server() {
    on_both_layouts(|layout| {
        let mut world = World::new(RingKind::Auto);
        let disk = TestDisk::new(1 << 20);
        let path = world.export("vm", &disk);
        let mut driver = Driver::start(&path, FLUSH | layout, 1);
        assert_eq!(driver.write(0, 0, &[1; 512]), DONE);
        disk.shared.failures.raise();
        disk.shared.failures.acknowledge(1);
        for _ in 0..2 {
            assert_eq!(hand_over(&mut world, &disk), 1);
        }
        assert_eq!(driver.run(0, SYNC, 0, &[]), FAILED);
        assert_eq!(hand_over(&mut world, &disk), 1);
        assert_eq!(driver.run(0, SYNC, 0, &[]), DONE);
        // To a driver that comes later.
        disk.shared.failures.raise();
        disk.shared.failures.acknowledge(2);
        drop(driver);
        eventually("the driver has left", || world.server.users("vm") == 0);
        assert_eq!(hand_over(&mut world, &disk), 0);
        let mut driver = Driver::start(&path, FLUSH | layout, 1);
        assert_eq!(driver.run(0, SYNC, 0, &[]), FAILED);
    });
}

#[test]
fn a_ring_that_has_stopped_by_itself_is_not_started_again() {
    on_both_layouts(|layout| {
        let mut world = World::new(RingKind::Auto);
        let disk = TestDisk::new(1 << 20);
        let mut driver = Driver::start(&world.export("vm", &disk), FLUSH | layout, 2);
        driver.submit(0, 0, OUT, 0, &[Piece(u64::MAX >> 1, 512, false)]);
        eventually("the ring stops", || was_notified(&driver.errors[0]));
        assert_eq!(hand_over(&mut world, &disk), 1);
        assert_eq!(driver.write(1, 0, &[1; 512]), DONE);
        assert!(!was_notified(&driver.errors[0]));
        driver.stop_ring(0);
        driver.put(0, &[0; 0x3000]);
        let mut driver = driver.again();
        driver.start_ring(0, driver.begin());
        assert_eq!(driver.write(0, 0, &[2; 512]), DONE);
    });
}

#[test]
fn another_server_notifies_a_driver_as_it_asked_to_be() {
    on_both_layouts(|layout| {
        let mut world = World::new(RingKind::Auto);
        let disk = TestDisk::new(1 << 20);
        let mut driver = Driver::start(&world.export("vm", &disk), FLUSH | layout, 2);
        // One ring has no descriptor.
        driver.say(message::SET_VRING_CALL, &(1_u64 | 1 << 8).to_le_bytes(), &[]);
        driver.ask(message::GET_QUEUE_NUM);
        assert_eq!(hand_over(&mut world, &disk), 1);
        eventually("a ring that starts notifies", || was_notified(&driver.calls[0]));
        was_notified(&driver.calls[1]);
        assert_eq!(driver.write(0, 0, &[1; 512]), DONE);
        eventually("the driver is notified of the write", || was_notified(&driver.calls[0]));
        assert_eq!(driver.write(1, 0, &[1; 512]), DONE);
        assert!(!was_notified(&driver.calls[1]));
        driver.submit(0, 0, OUT, 0, &[Piece(u64::MAX >> 1, 512, false)]);
        eventually("the ring stops", || was_notified(&driver.errors[0]));
    });
}

#[test]
fn a_driver_is_told_of_another_size_in_another_server() {
    let mut world = World::new(RingKind::Auto);
    let disk = TestDisk::new(1 << 20);
    let mut driver = Driver::start(&world.export("vm", &disk), FLUSH, 0);
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.set_read_timeout(Some(PATIENCE)).unwrap();
    driver.say(message::SET_BACKEND_REQ_FD, &[], &[ours.as_fd()]);
    drop(ours);
    driver.start_ring(0, 0);
    for _ in 0..3 {
        theirs.read_exact(&mut [0; 12]).unwrap();
        driver.ask(message::GET_QUEUE_NUM);
        assert_eq!(hand_over(&mut world, &disk), 1);
    }
}

#[test]
fn sessions_without_their_export_or_their_rings_are_closed() {
    let mut world = World::new(RingKind::Auto);
    let disk = TestDisk::new(1 << 20);
    let paths = ["gone", "fewer", "same"].map(|name| world.export(name, &disk));
    let mut gone = Driver::start(&paths[0], FLUSH, 1);
    let mut fewer = Driver::start(&paths[1], FLUSH, 3);
    let mut same = Driver::start(&paths[2], FLUSH, 2);
    for driver in [&mut gone, &mut fewer, &mut same] {
        driver.ask(message::GET_QUEUE_NUM);
    }
    world.pause(PATIENCE).unwrap();
    let estate = world.part();
    for name in ["fewer", "same"] {
        world.export_with(name, &disk, false, 2);
    }
    assert_eq!(world.server.inherit(sent(estate, |_| ())), 1);
    world.server.resume();
    assert!(gone.is_hung_up() && fewer.is_hung_up());
    assert!(!paths[0].exists() && paths[1].exists());
    assert_eq!(same.write(0, 0, &[1; 512]), DONE);
    assert_eq!(Driver::start(&paths[1], FLUSH, 2).write(0, 0, &[1; 512]), DONE);
}

/// A change of a record that no server makes, and its name.
type Change<'a> = (&'a str, &'a dyn Fn(&mut Value));

#[test]
fn records_that_make_no_sense_cost_their_session_alone() {
    let set = |path: &'static str, to: Value| {
        move |record: &mut Value| *record.pointer_mut(path).unwrap() = to.clone()
    };
    let no_room = u64::MAX - 4096;
    let changes: [Change<'_>; 25] = [
        ("another version", &set("/version", json!(2))),
        ("no record", &set("/rings", json!("some"))),
        ("features of later servers", &set("/features", json!(1_u64 << 60))),
        ("protocol features of later servers", &set("/protocol", json!(1_u64 << 60))),
        ("no such socket", &set("/socket", json!(99))),
        ("a descriptor twice", &set("/socket", json!(0))),
        ("no such other socket", &set("/backend", json!(99))),
        ("memory without a file", &set("/regions/0/file", json!(99))),
        ("memory behind its file", &set("/regions/0/bytes", json!(1_u64 << 40))),
        ("memory far behind its file", &set("/regions/0/offset", json!(no_room))),
        ("no memory", &set("/regions/0/bytes", json!(0))),
        ("memory beyond all addresses", &set("/regions/0/guest", json!(no_room))),
        ("rings in no memory", &set("/regions", json!([]))),
        ("another memory", &set("/regions/0/user", json!(1_u64 << 20))),
        ("a ring that no layout has", &set("/rings/0/entries", json!(15))),
        ("a ring that is too large", &set("/rings/0/entries", json!(1 << 16))),
        ("a ring outside of memory", &set("/rings/0/addresses/2", json!(8))),
        ("a ring at an odd address", &set("/rings/0/addresses/0", json!(0x7000_0000_0001_u64))),
        ("a ring that is nowhere", &set("/rings/0/addresses", json!(null))),
        ("a place outside of the ring", &set("/rings/0/base", json!(1 << 20))),
        ("a ring that is not notified", &set("/rings/0/kick", json!(null))),
        ("no room for what is in flight", &set("/inflight/bytes", json!(64))),
        ("no room for what is in flight in any ring", &|record| {
            set("/rings/0/runs", json!(false))(record);
            set("/inflight/bytes", json!(4))(record);
        }),
        ("what is in flight behind its file", &set("/inflight/offset", json!(1 << 20))),
        (
            "more than a message",
            &set("/received/0", json!([1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7])),
        ),
    ];
    let mut world = World::new(RingKind::Auto);
    let disk = TestDisk::new(1 << 20);
    let path = world.export("vm", &disk);
    for (what, change) in changes {
        let mut driver = Driver::connect(&path);
        driver.negotiate(FLUSH);
        driver.share_all();
        driver.track();
        driver.start_ring(0, 0);
        assert_eq!(driver.write(0, 0, &[1; 512]), DONE, "{what}");
        world.pause(PATIENCE).unwrap();
        let estate = world.part();
        world.export("vm", &disk);
        let (before, used) = (driver.get(0, 0x3000), driver.used(0));
        assert_eq!(world.server.inherit(sent(estate, change)), 0, "{what}");
        assert_eq!(driver.get(0, 0x3000), before, "{what}: nothing was written");
        world.server.resume();
        assert!(driver.is_hung_up(), "{what}");
        // It connects again, and loses nothing.
        driver.submit(0, 0, OUT, 0, &[Piece(DATA, 512, false)]);
        driver.connect_again(&path, FLUSH, 1);
        driver.await_used(0, used + 1);
    }
}

#[test]
fn requests_of_another_server_are_kept_in_flight_for_the_next_one() {
    for (layout, entry_bytes) in [(0, 16), (PACKED, 32)] {
        let mut world = World::new(RingKind::Auto);
        let disk = TestDisk::new(1 << 20);
        let mut driver = Driver::connect(&world.export("vm", &disk));
        driver.negotiate(FLUSH | layout);
        driver.share_all();
        driver.track();
        driver.start_ring(0, driver.begin());
        assert_eq!(driver.write(0, 0, &[1; 512]), DONE);
        assert_eq!(hand_over(&mut world, &disk), 1);
        let region = driver.inflight.as_ref().unwrap().0.try_clone().unwrap();
        let marks = || {
            let mut bytes = [0; 256];
            region.read_exact_at(&mut bytes, 0).unwrap();
            bytes.chunks(entry_bytes).skip(1).filter(|entry| entry[0] == 1).count()
        };
        assert_eq!(marks(), 0);
        disk.hold(8);
        driver.submit(0, 0, OUT, 8, &[Piece(DATA, 512, false)]);
        eventually("the write is under way", || disk.in_flight() == 1);
        assert_eq!(marks(), 1);
        disk.release(8);
        driver.await_used(0, 2);
        eventually("the write is used", || marks() == 0);
    }
}
