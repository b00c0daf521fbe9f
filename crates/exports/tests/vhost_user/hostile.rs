//! Drivers that break the protocol: each ends its session, or stops one of its rings, and hurts no
//! other driver.

use std::fs::File;
use std::os::fd::AsFd;

use crate::disk::TestDisk;
use crate::world::{World, eventually, on_both_rings};
use cairn_reactor::RingKind;
use cairn_testkit::vhost::{
    DATA, Driver, FLUSH, GUEST, INDIRECT, MEMORY_BYTES, NEXT, OUT, Piece, TABLE, WRITE, message,
    was_notified,
};

const USER: u64 = 0x7000_0000_0000;

/// What a driver does, and its name.
pub type Break<'a> = (&'a str, &'a dyn Fn(&mut Driver));

/// Every way of `breaks` stops its ring, of which the driver is told; the other ring goes on, and
/// the ring works again once it is started again.
pub fn stops_its_ring(layout: u64, breaks: &[Break<'_>]) {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let disk = TestDisk::new(1 << 20);
        let path = world.export("vm", &disk);
        for (what, breaks) in breaks {
            let mut driver = Driver::start(&path, FLUSH | INDIRECT | layout, 2);
            breaks(&mut driver);
            eventually(what, || was_notified(&driver.errors[0]));
            assert_eq!(driver.used(0), 0, "{what}");
            assert_eq!(driver.write(1, 0, &[1; 512]), 0, "{what}");
            driver.stop_ring(0);
            driver.put(0, &[0; 0x3000]);
            let mut driver = driver.again();
            driver.start_ring(0, driver.begin());
            assert_eq!(driver.write(0, 0, &[2; 512]), 0, "{what}");
        }
        assert!(disk.log().iter().all(|seen| seen.range.start.0 == 0));
    });
}

/// A descriptor of ring 0.
fn descriptor(driver: &Driver, index: u16, guest: u64, bytes: u32, flags: u16, next: u16) {
    driver.put_descriptor(Driver::descriptor(0, index), guest, bytes, flags, next);
}

#[test]
fn chains_that_do_not_end_or_leave_memory_stop_their_ring() {
    let head = GUEST + DATA;
    stops_its_ring(
        0,
        &[
            ("a loop", &|driver| {
                descriptor(driver, 0, head, 16, NEXT, 1);
                descriptor(driver, 1, head, 16, NEXT, 0);
                driver.offer(0, 0);
            }),
            ("a head behind the table", &|driver| driver.offer(0, 16)),
            ("a next behind the table", &|driver| {
                descriptor(driver, 0, head, 16, NEXT, 16);
                driver.offer(0, 0);
            }),
            ("memory that is not shared", &|driver| {
                descriptor(driver, 0, GUEST - 1, 16, NEXT, 1);
                descriptor(driver, 1, head, 1, WRITE, 0);
                driver.offer(0, 0);
            }),
            ("memory behind the end", &|driver| {
                descriptor(driver, 0, GUEST + MEMORY_BYTES - 8, 16, NEXT, 1);
                descriptor(driver, 1, head, 1, WRITE, 0);
                driver.offer(0, 0);
            }),
            ("an address that wraps", &|driver| {
                descriptor(driver, 0, u64::MAX - 7, 16, NEXT, 1);
                descriptor(driver, 1, head, 1, WRITE, 0);
                driver.offer(0, 0);
            }),
            ("a status byte in no memory", &|driver| {
                descriptor(driver, 0, head, 16, NEXT, 1);
                descriptor(driver, 1, 0, 1, WRITE, 0);
                driver.offer(0, 0);
            }),
            ("what is read behind what is written", &|driver| {
                descriptor(driver, 0, head, 16, NEXT, 1);
                descriptor(driver, 1, head, 1, WRITE | NEXT, 2);
                descriptor(driver, 2, head, 1, 0, 0);
                driver.offer(0, 0);
            }),
        ],
    );
}

#[test]
fn requests_without_head_or_status_stop_their_ring() {
    stops_its_ring(
        0,
        &[
            ("no status", &|driver| {
                driver.chain(0, 0, &[Piece(DATA, 16, false)]);
                driver.offer(0, 0);
            }),
            ("a short head", &|driver| {
                driver.chain(0, 0, &[Piece(DATA, 15, false), Piece(DATA, 1, true)]);
                driver.offer(0, 0);
            }),
            ("nothing at all", &|driver| {
                driver.chain(0, 0, &[Piece(DATA, 0, false)]);
                driver.offer(0, 0);
            }),
            ("more than a ring is available", &|driver| {
                driver.put(0x1002, &17_u16.to_le_bytes());
                driver.kick(0);
            }),
        ],
    );
}

#[test]
fn tables_of_indirect_descriptors_that_make_no_sense_stop_their_ring() {
    let table = GUEST + DATA;
    stops_its_ring(
        0,
        &[
            ("an empty table", &|driver| {
                descriptor(driver, 0, table, 0, TABLE, 0);
                driver.offer(0, 0);
            }),
            ("half a descriptor", &|driver| {
                descriptor(driver, 0, table, 24, TABLE, 0);
                driver.offer(0, 0);
            }),
            ("a table of a gigabyte", &|driver| {
                descriptor(driver, 0, table, 1 << 30, TABLE, 0);
                driver.offer(0, 0);
            }),
            ("a table outside", &|driver| {
                descriptor(driver, 0, 0, 32, TABLE, 0);
                driver.offer(0, 0);
            }),
            ("a table with a next", &|driver| {
                descriptor(driver, 0, table, 32, TABLE | NEXT, 1);
                driver.offer(0, 0);
            }),
            ("a table in a table", &|driver| {
                driver.put_descriptor(DATA, table, 16, TABLE, 0);
                descriptor(driver, 0, table, 16, TABLE, 0);
                driver.offer(0, 0);
            }),
            ("a loop in a table", &|driver| {
                driver.put_descriptor(DATA, table, 16, NEXT, 0);
                descriptor(driver, 0, table, 16, TABLE, 0);
                driver.offer(0, 0);
            }),
        ],
    );
}

/// Every way of `breaks` ends its session, and the next driver is served.
pub fn ends_its_session(layout: u64, breaks: &[Break<'_>]) {
    let world = World::new(RingKind::Auto);
    let disk = TestDisk::new(1 << 20);
    let (path, other) = (world.export("vm", &disk), world.export("other", &disk));
    let mut beside = Driver::start(&other, FLUSH, 1);
    for (what, breaks) in breaks {
        let mut driver = Driver::start(&path, FLUSH | layout, 2);
        assert_eq!(driver.write(1, 0, &[1; 512]), 0);
        breaks(&mut driver);
        assert!(driver.is_hung_up(), "{what}");
        assert_eq!(beside.write(0, 0, &[2; 512]), 0, "{what}");
    }
    assert_eq!(Driver::start(&path, FLUSH, 1).write(0, 0, &[3; 512]), 0);
}

#[test]
fn messages_that_break_the_protocol_end_their_session() {
    ends_its_session(
        0,
        &[
            ("another version", &|driver| driver.say_with(message::GET_FEATURES, 2, &[], &[])),
            ("a reply", &|driver| driver.say_with(message::GET_FEATURES, 5, &[], &[])),
            ("an unknown message", &|driver| driver.say(99, &[], &[])),
            ("a long payload", &|driver| {
                driver.send(&[1, 1, u32::MAX].map(u32::to_le_bytes).concat(), &[]);
            }),
            ("a short payload", &|driver| driver.say(message::SET_FEATURES, &[0; 7], &[])),
            ("features that were not offered", &|driver| {
                driver.word(message::SET_FEATURES, 1 << 60);
            }),
            ("a ring that was not offered", &|driver| {
                driver.pair(message::SET_VRING_NUM, 4, 16);
            }),
            ("a number of entries that is no power of two", &|driver| {
                driver.stop_ring(0);
                driver.pair(message::SET_VRING_NUM, 0, 15);
                driver.pass(message::SET_VRING_KICK, 0, driver.kick_end(0));
            }),
            ("a ring larger than all", &|driver| {
                driver.stop_ring(0);
                driver.pair(message::SET_VRING_NUM, 0, 1 << 16);
                driver.pass(message::SET_VRING_KICK, 0, driver.kick_end(0));
            }),
            ("a base of more than 16 bits", &|driver| {
                driver.pair(message::SET_VRING_BASE, 0, 1 << 16);
            }),
            ("a ring outside of memory", &|driver| {
                driver.place_ring(0, [0, USER, USER]);
            }),
            ("a ring at an odd address", &|driver| {
                driver.place_ring(0, [USER + 8, USER + 0x2000, USER + 0x1000]);
            }),
            ("a ring that ends behind memory", &|driver| {
                driver.place_ring(0, [USER + MEMORY_BYTES - 16, USER + 0x2000, USER + 0x1000]);
            }),
            ("configuration outside of its space", &|driver| driver.set_config(250, &[0; 16])),
        ],
    );
}

#[test]
fn descriptors_and_memory_that_make_no_sense_end_their_session() {
    let region = |guest, user, bytes, offset| {
        move |driver: &mut Driver| {
            driver.share(&[(guest, user, bytes, offset)]);
        }
    };
    ends_its_session(
        0,
        &[
            ("memory behind its file", &region(GUEST, USER, MEMORY_BYTES + 1, 0)),
            ("memory far behind its file", &region(GUEST, USER, MEMORY_BYTES, u64::MAX)),
            ("no memory", &region(GUEST, USER, 0, 0)),
            ("memory beyond all addresses", &region(u64::MAX, USER, 4096, 0)),
            ("memory twice", &|driver| {
                driver.share(&[(GUEST, USER, 8192, 0), (GUEST + 4096, USER + 8192, 8192, 0)]);
            }),
            ("no file", &|driver| {
                let payload = [&1_u64.to_le_bytes()[..], &[0; 32]].concat();
                driver.say(message::SET_MEM_TABLE, &payload, &[]);
            }),
            ("a directory", &|driver| {
                let folder = File::open("/tmp").unwrap();
                let words = [1, GUEST, 4096, USER, 0].map(u64::to_le_bytes).concat();
                driver.say(message::SET_MEM_TABLE, &words, &[folder.as_fd()]);
            }),
            ("more regions than a table has", &|driver| {
                driver.say(message::SET_MEM_TABLE, &9_u64.to_le_bytes(), &[]);
            }),
            ("descriptors without a message that has one", &|driver| {
                driver.say(message::GET_FEATURES, &[], &[driver.memory.as_fd()]);
            }),
            ("too many descriptors", &|driver| {
                driver.say(message::GET_FEATURES, &[], &[driver.memory.as_fd(); 12]);
            }),
            ("no kick", &|driver| {
                driver.say(message::SET_VRING_KICK, &(1_u64 << 8).to_le_bytes(), &[]);
            }),
            ("a file that is always readable", &|driver| {
                driver.pass(message::SET_VRING_KICK, 0, driver.memory.as_fd());
            }),
            ("a device that is always readable", &|driver| {
                let zero = File::open("/dev/zero").unwrap();
                driver.pass(message::SET_VRING_KICK, 0, zero.as_fd());
            }),
        ],
    );
}

#[test]
fn a_pipe_whose_other_end_is_closed_does_not_keep_a_reactor_busy() {
    let world = World::new(RingKind::Auto);
    let disk = TestDisk::new(1 << 20);
    let mut driver = Driver::start(&world.export("vm", &disk), FLUSH, 2);
    let (reader, writer) = std::io::pipe().unwrap();
    driver.pass(message::SET_VRING_KICK, 0, reader.as_fd());
    drop(writer);
    // The ring is not notified any more, and the session goes on.
    driver.ask(message::GET_QUEUE_NUM);
    driver.submit(0, 0, OUT, 0, &[Piece(DATA, 512, false)]);
    assert_eq!(driver.write(1, 0, &[1; 512]), 0);
    assert_eq!(driver.stop_ring(0), u32::from(driver.used(0)));
}

#[test]
fn a_driver_that_takes_its_memory_away_ends_its_session_alone() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let disk = TestDisk::new(1 << 20);
        let path = world.export("vm", &disk);
        let mut beside = Driver::start(&world.export("other", &disk), FLUSH, 1);
        // All of it, rings included; and the data of a request alone.
        for left in [0, 0x80000] {
            let mut driver = Driver::start(&path, FLUSH, 2);
            assert_eq!(driver.write(0, 0, &[1; 512]), 0);
            driver.chain(0, 0, &[Piece(0x40000, 16, false), Piece(DATA, 1, true)]);
            if left > 0 {
                driver.offer_unseen(0, 0);
            }
            driver.memory.set_len(left).unwrap();
            driver.kick(0);
            assert!(driver.is_hung_up(), "{left}");
            assert_eq!(beside.write(0, 0, &[2; 512]), 0);
        }
        assert_eq!(Driver::start(&path, FLUSH, 1).write(0, 0, &[3; 512]), 0);
    });
}

#[test]
fn half_a_message_holds_up_nothing_but_its_session() {
    let world = World::new(RingKind::Auto);
    let disk = TestDisk::new(1 << 20);
    let path = world.export("vm", &disk);
    let driver = Driver::start(&path, FLUSH, 1);
    driver.send(&[1, 0, 0], &[]);
    let mut beside = Driver::start(&world.export("other", &disk), FLUSH, 1);
    assert_eq!(beside.write(0, 0, &[1; 512]), 0);
    drop(driver);
    assert_eq!(Driver::start(&path, FLUSH, 1).write(0, 0, &[2; 512]), 0);
}
