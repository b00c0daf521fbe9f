//! Packed rings: what is not as in split ones, and drivers that break the protocol in them.

use std::os::unix::fs::FileExt;

use cairn_reactor::RingKind;
use cairn_testkit::vhost::{
    DATA, Driver, EVENT_IDX, FLUSH, GUEST, INDIRECT, MEMORY_BYTES, NEXT, OUT, PACKED,
    PACKED_AVAILABLE, PACKED_ENTRIES, PACKED_USED, Piece, Position, TABLE, WRITE, message,
    was_notified,
};

use crate::disk::TestDisk;
use crate::hostile::{ends_its_session, stops_its_ring};
use crate::world::{World, eventually, on_both_rings};

const DONE: u8 = 0;

/// In a first lap.
const AVAILABLE: u16 = PACKED_AVAILABLE;

/// Where the structures of notifications of ring 0 are.
const DRIVER_EVENTS: u64 = 0x1000;
const DEVICE_EVENTS: u64 = 0x2000;

/// Flags of these structures.
const EVENTS_OFF: u16 = 1;
const EVENTS_AT_PLACE: u16 = 2;

/// Puts descriptors into the first slots of ring 0: address, bytes, name, flags beside those of the
/// lap; and notifies the device.
fn offer(driver: &Driver, descriptors: &[(u64, u32, u16, u16)]) {
    for (slot, (guest, bytes, id, flags)) in descriptors.iter().enumerate().rev() {
        driver.put_packed(0, slot as u16, *guest, *bytes, *id, flags | AVAILABLE);
    }
    driver.kick(0);
}

#[test]
fn rings_go_round_in_chains_of_any_length() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let disk = TestDisk::new(1 << 20);
        let mut driver = Driver::start(&world.export("vm", &disk), FLUSH | PACKED, 1);
        for round in 0..100_u64 {
            let (sector, count) = (round % 64 * 8, round % 5 + 1);
            let data: Vec<u8> = (0..512 * count).map(|at| (at / 3 + round) as u8).collect();
            driver.put(DATA, &data);
            let piece = |number: u64| Piece(DATA + 512 * number, 512, false);
            let pieces: Vec<Piece> = (0..count).map(piece).collect();
            assert_eq!(driver.run(0, OUT, sector, &pieces), DONE);
            assert_eq!(driver.used_element(0, 2 * round as u16), (0, 1));
            assert_eq!(driver.read(0, sector * 512, data.len()), data);
            let base = driver.stop_ring(0);
            assert_eq!(base, driver.base(0));
            driver.start_ring(0, base);
        }
    });
}

#[test]
fn of_a_table_only_the_write_flags_count() {
    let world = World::new(RingKind::Auto);
    let disk = TestDisk::new(1 << 20);
    let driver = Driver::start(&world.export("vm", &disk), FLUSH | PACKED | INDIRECT, 1);
    let head = [&OUT.to_le_bytes()[..], &[0; 4], &8_u64.to_le_bytes()].concat();
    driver.put(DATA, &head);
    driver.put(DATA + 100, &[7; 512]);
    let (table, status) = (DATA + 0x10000, DATA + 9000);
    driver.put(status, &[9]);
    let ignored = NEXT | TABLE | PACKED_USED;
    let entries = [(DATA, 16, 0), (DATA + 100, 512, ignored), (status, 1, WRITE | ignored)];
    for (number, (at, bytes, flags)) in (0..).zip(entries) {
        // In a packed ring the last two fields are in the other order.
        driver.put_descriptor(table + 16 * number, GUEST + at, bytes, 0xffff, flags);
    }
    offer(&driver, &[(GUEST + table, 48, 5, TABLE | WRITE)]);
    eventually("the request has ended", || driver.get(status, 1) == [DONE]);
    eventually("its descriptor is used", || {
        let used = PACKED_AVAILABLE | PACKED_USED | WRITE;
        let words = [1_u32, 5 | u32::from(used) << 16].map(u32::to_le_bytes).concat();
        driver.get(8, 8) == words
    });
    assert_eq!(disk.bytes(4096, 512), [7; 512]);
}

#[test]
fn a_driver_is_notified_where_it_wants_to_be() {
    for features in [FLUSH | PACKED, FLUSH | PACKED | EVENT_IDX] {
        let world = World::new(RingKind::Auto);
        let disk = TestDisk::new(1 << 20);
        let mut driver = Driver::start(&world.export("vm", &disk), features, 1);
        let wants = |driver: &Driver, place: u16, flags: u16| {
            driver.put(DRIVER_EVENTS, &[place, flags].map(u16::to_le_bytes).concat());
        };
        wants(&driver, 0, EVENTS_OFF);
        driver.write(0, 0, &[1; 512]);
        eventually("the driver is notified of the start", || was_notified(&driver.calls[0]));
        for _ in 0..20 {
            driver.write(0, 0, &[1; 512]);
        }
        assert!(!was_notified(&driver.calls[0]));
        // Of chains of three descriptors, the fourth one that follows is used nine slots ahead.
        let bits = driver.base(0) as u16;
        let place = Position { slot: bits & 0x7fff, wrap: bits >> 15 == 1 }.after(9).bits();
        if features & EVENT_IDX != 0 {
            wants(&driver, place, EVENTS_AT_PLACE);
            for _ in 0..3 {
                driver.write(0, 0, &[1; 512]);
            }
            assert!(!was_notified(&driver.calls[0]));
        } else {
            wants(&driver, 0, 0);
        }
        driver.write(0, 0, &[1; 512]);
        eventually("the driver is notified", || was_notified(&driver.calls[0]));
    }
}

#[test]
fn a_ring_that_waits_asks_for_a_notification_of_its_next_chain() {
    for features in [FLUSH | PACKED, FLUSH | PACKED | EVENT_IDX] {
        let world = World::new(RingKind::Auto);
        let disk = TestDisk::new(1 << 20);
        let mut driver = Driver::start(&world.export("vm", &disk), features, 1);
        driver.put(DEVICE_EVENTS, &[0xff; 4]);
        driver.write(0, 0, &[1; 512]);
        let place = driver.base(0) as u16;
        let is_asked = || {
            let found = driver.get(DEVICE_EVENTS, 4);
            let half = |at: usize| u16::from_le_bytes([found[at], found[at + 1]]);
            match features & EVENT_IDX != 0 {
                true => (half(0), half(2)) == (place, EVENTS_AT_PLACE),
                false => half(2) == 0,
            }
        };
        eventually("the ring waits", is_asked);
    }
}

#[test]
fn chains_that_do_not_end_or_leave_memory_stop_their_ring() {
    let head = GUEST + DATA;
    let all_next = vec![(head, 16, 0, NEXT); PACKED_ENTRIES.into()];
    stops_its_ring(
        PACKED,
        &[
            ("a chain without an end", &|driver| offer(driver, &all_next)),
            ("a next that is not available", &|driver| offer(driver, &[(head, 16, 0, NEXT)])),
            ("a next of another lap", &|driver| {
                driver.put_packed(0, 1, head, 1, 0, WRITE | PACKED_USED);
                offer(driver, &[(head, 16, 0, NEXT)]);
            }),
            ("a name behind the entries", &|driver| {
                offer(driver, &[(head, 16, 0, NEXT), (head, 1, PACKED_ENTRIES, WRITE)]);
            }),
            ("a name far behind them", &|driver| {
                offer(driver, &[(head, 16, 0, NEXT), (head, 1, u16::MAX, WRITE)]);
            }),
            ("memory that is not shared", &|driver| {
                offer(driver, &[(GUEST - 1, 16, 0, NEXT), (head, 1, 0, WRITE)]);
            }),
            ("memory behind the end", &|driver| {
                offer(driver, &[(GUEST + MEMORY_BYTES - 8, 16, 0, NEXT), (head, 1, 0, WRITE)]);
            }),
            ("an address that wraps", &|driver| {
                offer(driver, &[(u64::MAX - 7, 16, 0, NEXT), (head, 1, 0, WRITE)]);
            }),
            ("a status byte in no memory", &|driver| {
                offer(driver, &[(head, 16, 0, NEXT), (0, 1, 0, WRITE)]);
            }),
            ("what is read behind what is written", &|driver| {
                let last = (head, 1, 0, 0);
                offer(driver, &[(head, 16, 0, NEXT), (head, 1, 0, WRITE | NEXT), last]);
            }),
            ("no status", &|driver| offer(driver, &[(head, 16, 0, 0)])),
            ("a short head", &|driver| {
                offer(driver, &[(head, 15, 0, NEXT), (head, 1, 0, WRITE)]);
            }),
        ],
    );
}

#[test]
fn tables_of_indirect_descriptors_that_make_no_sense_stop_their_ring() {
    let (table, head) = (GUEST + DATA, GUEST + DATA + 256);
    // A request in a table: a read of nothing.
    let put_request = |driver: &Driver| {
        driver.put_descriptor(DATA, head, 16, 0, 0);
        driver.put_descriptor(DATA + 16, head + 16, 1, 0, WRITE);
    };
    let bad_entry = |flags| {
        move |driver: &mut Driver| {
            driver.put_descriptor(DATA, table, 16, 0, WRITE);
            driver.put_descriptor(DATA + 16, table, 16, 0, flags);
            offer(driver, &[(table, 32, 0, TABLE)]);
        }
    };
    stops_its_ring(
        PACKED,
        &[
            ("an empty table", &|driver| offer(driver, &[(table, 0, 0, TABLE)])),
            ("half a descriptor", &|driver| offer(driver, &[(table, 24, 0, TABLE)])),
            ("a table of a gigabyte", &|driver| offer(driver, &[(table, 1 << 30, 0, TABLE)])),
            ("a table outside", &|driver| offer(driver, &[(0, 32, 0, TABLE)])),
            ("a table with a next", &|driver| {
                put_request(driver);
                offer(driver, &[(table, 32, 0, TABLE | NEXT), (head, 1, 0, WRITE)]);
            }),
            ("a table with a next that is missing", &|driver| {
                offer(driver, &[(table, 32, 0, TABLE | NEXT)]);
            }),
            ("a table behind a descriptor", &|driver| {
                put_request(driver);
                offer(driver, &[(head, 16, 0, NEXT), (table, 32, 0, TABLE)]);
            }),
            ("what is read behind what is written in a table", &bad_entry(0)),
            ("a table without a request", &bad_entry(WRITE)),
        ],
    );
}

/// A driver with a request in flight, in slots 0 to 2, does `breaks`: its ring stops.
fn stops_its_ring_in_flight(breaks: impl Fn(&Driver)) {
    let world = World::new(RingKind::Auto);
    let disk = TestDisk::new(1 << 20);
    let mut driver = Driver::start(&world.export("vm", &disk), FLUSH | PACKED, 2);
    disk.hold(0);
    driver.submit(0, 0, OUT, 0, &[Piece(DATA, 512, false)]);
    eventually("the write is under way", || disk.in_flight() == 1);
    breaks(&driver);
    driver.kick(0);
    eventually("the ring stops", || was_notified(&driver.errors[0]));
    disk.release(0);
    driver.await_used(0, 1);
    assert_eq!(driver.write(1, 4096, &[1; 512]), DONE);
    // It goes on at the chain that it did not take.
    let place = u32::from(driver.base(0) as u16);
    assert_eq!(driver.stop_ring(0), place * 0x1_0001);
}

#[test]
fn names_and_slots_of_a_chain_that_is_in_flight_are_not_taken_again() {
    stops_its_ring_in_flight(|driver| {
        driver.put_packed(0, 4, GUEST + DATA, 1, 0, WRITE | AVAILABLE);
        driver.put_packed(0, 3, GUEST + DATA, 16, 0, NEXT | AVAILABLE);
    });
    stops_its_ring_in_flight(|driver| {
        // Into the next lap, where the first slot is not used yet.
        driver.put_packed(0, 0, GUEST + DATA, 1, 5, WRITE | PACKED_USED);
        for slot in (3..PACKED_ENTRIES).rev() {
            driver.put_packed(0, slot, GUEST + DATA, 2, 5, NEXT | AVAILABLE);
        }
    });
}

#[test]
fn bases_and_numbers_of_entries_that_make_no_sense_end_their_session() {
    let base = |base: u32| {
        move |driver: &mut Driver| {
            driver.stop_ring(0);
            driver.pair(message::SET_VRING_BASE, 0, base);
            driver.pass(message::SET_VRING_KICK, 0, driver.kick_end(0));
        }
    };
    ends_its_session(
        PACKED,
        &[
            ("a next chain behind the ring", &base(0x8000_800d)),
            ("a next use behind the ring", &base(0x800d_8000)),
            ("more than a lap in flight", &base(0x8002_0003)),
            ("less than none in flight", &base(0x8003_8002)),
            ("a ring larger than all", &|driver| {
                driver.stop_ring(0);
                driver.pair(message::SET_VRING_NUM, 0, 32769);
                driver.pass(message::SET_VRING_KICK, 0, driver.kick_end(0));
            }),
        ],
    );
}

#[test]
fn memory_for_what_is_in_flight_that_makes_no_sense_ends_the_session() {
    let changed = |at: u64, value: u16| {
        move |driver: &mut Driver| {
            driver.stop_ring(0);
            driver.stop_ring(1);
            driver.track();
            driver.start_ring(0, driver.begin());
            driver.ask(message::GET_QUEUE_NUM);
            driver.stop_ring(0);
            let (region, _) = driver.inflight.as_ref().unwrap();
            region.write_all_at(&value.to_le_bytes(), at).unwrap();
            driver.pass(message::SET_VRING_KICK, 0, driver.kick_end(0));
        }
    };
    ends_its_session(
        PACKED,
        &[
            ("another version", &changed(8, 2)),
            ("another number of entries", &changed(10, 12)),
            ("a first free entry behind all", &changed(14, 14)),
            ("none is free, and none is taken", &changed(14, 13)),
            ("places behind the ring", &changed(18, 13)),
            ("a place of the next use behind the ring", &changed(16, 13)),
            ("a list that loops", &changed(32 + 32 * 3 + 2, 1)),
            ("a list that leaves the entries", &changed(32 + 32 * 3 + 2, 99)),
            ("a list that leaves some out", &changed(32 + 32 * 3 + 2, 7)),
        ],
    );
}

/// The region of ring 0 and the ring, by the offsets of the protocol's document: not by the
/// server's encoder.
struct Dead<'a>(&'a Driver);

impl Dead<'_> {
    fn put(&self, at: u64, bytes: &[u8]) {
        self.0.inflight.as_ref().unwrap().0.write_all_at(bytes, at).unwrap();
    }

    /// The chain of a slot, which has three descriptors, is taken, in the entries from `first`.
    fn take(&self, slot: u16, first: u16, order: u64) {
        let at = |entry: u16| 32 + 32 * u64::from(entry);
        self.put(at(first), &[1]);
        self.put(at(first) + 4, &(first + 2).to_le_bytes());
        self.put(at(first) + 6, &3_u16.to_le_bytes());
        self.put(at(first) + 8, &order.to_le_bytes());
        let head = GUEST + Driver::head(0, slot);
        let pieces = [(head, 16, NEXT), (GUEST + DATA, 512, NEXT), (head + 16, 1, WRITE)];
        for (entry, (guest, bytes, flags)) in (first..).zip(pieces) {
            let words = [slot * 4, flags | AVAILABLE].map(u16::to_le_bytes).concat();
            self.put(at(entry) + 16, &words);
            self.put(at(entry) + 20, &u32::to_le_bytes(bytes));
            self.put(at(entry) + 24, &guest.to_le_bytes());
        }
    }

    /// The first free entry and the place of the next use, each now and before.
    fn place(&self, [free, old_free]: [u16; 2], [used, old_used]: [u16; 2]) {
        let halves = [free, old_free, used, old_used].map(u16::to_le_bytes);
        self.put(12, halves.as_flattened());
        self.put(20, &[1, 1]);
    }
}

#[test]
fn chains_that_a_dead_server_had_taken_are_run_before_new_ones_in_their_order() {
    // The server had shown that slot 2 was used; it had not yet noted that; or it had noted it and
    // not shown it.
    for (is_shown, is_noted) in [(true, true), (true, false), (false, false)] {
        let world = World::new(RingKind::Auto);
        let disk = TestDisk::new(1 << 20);
        let path = world.export("vm", &disk);
        let mut driver = Driver::connect(&path);
        driver.negotiate(FLUSH | PACKED);
        driver.share_all();
        driver.track();
        driver.start_ring(0, driver.begin());
        assert_eq!(driver.write(0, 0, &[1; 512]), DONE);
        assert_eq!(driver.stop_ring(0), 0x8003_8003);
        for slot in 1..4 {
            driver.submit(0, slot, OUT, 8 * u64::from(slot), &[Piece(DATA, 512, false)]);
        }
        let dead = Dead(&driver);
        // In another order than that of the ring.
        for (slot, first, order) in [(1, 0, 7), (3, 6, 5), (2, 3, 6)] {
            dead.take(slot, first, order);
        }
        dead.put(32 + 32 * 5 + 2, &9_u16.to_le_bytes());
        if is_noted {
            dead.put(32 + 32 * 3, &[0]);
        }
        dead.place(if is_noted { [3, 3] } else { [3, 9] }, if is_noted { [6, 6] } else { [6, 3] });
        if is_shown {
            let flags = AVAILABLE | PACKED_USED | WRITE;
            driver.put_packed(0, 3, GUEST, 1, 8, flags);
        }
        let before = disk.log().len();
        driver.connect_again(&path, FLUSH | PACKED, 1);
        driver.submit(0, 0, OUT, 64, &[Piece(DATA, 512, false)]);
        driver.await_used(0, 5);
        let started: Vec<u64> =
            disk.log()[before..].iter().map(|seen| seen.range.start.0 / 8).collect();
        let expected: &[u64] = if is_shown { &[3, 1, 8] } else { &[3, 2, 1, 8] };
        assert_eq!(started, expected);
        let again = if is_shown { 0xff } else { DONE };
        let statuses = [1, 2, 3].map(|slot| driver.status(0, slot));
        assert_eq!(statuses, [DONE, again, DONE]);
        assert_eq!(driver.stop_ring(0), driver.base(0));
    }
}
