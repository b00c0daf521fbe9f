//! Requests of drivers: what they do to a disk, and what the driver is told.

use cairn_block::{ErrorKind, Flags, IoError, Limits, Op};

use crate::disk::TestDisk;
use crate::world::{World, eventually, on_both_layouts, on_both_rings};
use cairn_testkit::vhost::{
    CONFIG_WCE, DATA, DISCARD, Driver, EVENT_IDX, FLUSH, GUEST, ID, IN, INDIRECT, NEXT, OUT, Piece,
    SYNC, TABLE, WRITE, ZEROES, was_notified,
};

const DONE: u8 = 0;
const FAILED: u8 = 1;
const UNSUPPORTED: u8 = 2;

#[test]
fn what_one_ring_writes_another_one_reads() {
    on_both_layouts(|layout| {
        on_both_rings(|ring| {
            let world = World::new(ring);
            let disk = TestDisk::new(1 << 20);
            let mut driver = Driver::start(&world.export("vm", &disk), FLUSH | layout, 4);
            let data: Vec<u8> = (0..8192).map(|at| (at / 7) as u8).collect();
            assert_eq!(driver.write(0, 4096, &data), DONE);
            for ring in 1..4 {
                assert_eq!(driver.read(ring, 4096, 8192), data);
                assert_eq!(driver.used_element(ring, 0), (0, 8193), "data and status are written");
            }
            assert_eq!(driver.run(2, SYNC, 0, &[]), DONE);
            assert_eq!(disk.bytes(4096, 8192), data);
            assert!(disk.log().iter().any(|seen| seen.op == Op::Flush));
            eventually("the driver is notified", || was_notified(&driver.calls[2]));
        });
    });
}

#[test]
fn layout_of_descriptors_means_nothing() {
    let world = World::new(cairn_reactor::RingKind::Auto);
    let disk = TestDisk::new(1 << 20);
    let mut driver = Driver::start(&world.export("vm", &disk), FLUSH | INDIRECT, 1);
    // Head and data share descriptors, and parts of both are elsewhere.
    let head = [&OUT.to_le_bytes()[..], &[0; 4], &8_u64.to_le_bytes()].concat();
    driver.put(DATA, &head[..5]);
    let rest = [&head[5..], &[3; 1000][..]].concat();
    driver.put(DATA + 100, &rest);
    driver.put(DATA + 5000, &[4; 24]);
    let readable = [(DATA, 5), (DATA + 100, rest.len() as u32), (DATA + 5000, 24)];
    let status = DATA + 9000;
    let mut pieces: Vec<Piece> = readable.iter().map(|(at, len)| Piece(*at, *len, false)).collect();
    pieces.push(Piece(status, 1, true));
    driver.chain(0, 0, &pieces);
    driver.offer(0, 0);
    driver.await_used(0, 1);
    assert_eq!(driver.get(status, 1), [DONE]);
    assert_eq!(disk.bytes(4096, 1024), [vec![3; 1000], vec![4; 24]].concat());
    // The same in a table of indirect descriptors, behind a direct one.
    let table = DATA + 0x10000;
    for (number, Piece(at, bytes, is_written)) in pieces[1..].iter().enumerate() {
        let flags = if *is_written { WRITE } else { NEXT };
        let next = number as u16 + 1;
        driver.put_descriptor(table + 16 * number as u64, GUEST + at, *bytes, flags, next);
    }
    driver.put(DATA + 5000, &[5; 24]);
    driver.put(status, &[9]);
    driver.put_descriptor(Driver::descriptor(0, 3), GUEST + DATA, 5, NEXT, 7);
    driver.put_descriptor(Driver::descriptor(0, 7), GUEST + table, 48, TABLE, 0);
    driver.offer(0, 3);
    driver.await_used(0, 2);
    assert_eq!((driver.used_element(0, 1), driver.get(status, 1)), ((3, 1), vec![DONE]));
    assert_eq!(disk.bytes(5096, 24), [5; 24]);
}

#[test]
fn requests_outside_of_the_disk_or_of_odd_length_fail_and_change_nothing() {
    on_both_layouts(|layout| {
        let world = World::new(cairn_reactor::RingKind::Auto);
        let disk = TestDisk::new(1 << 20);
        let mut driver = Driver::start(&world.export("vm", &disk), FLUSH | layout, 1);
        let piece = |bytes| [Piece(DATA, bytes, false)];
        assert_eq!(driver.run(0, OUT, 2048, &piece(512)), FAILED);
        assert_eq!(driver.run(0, OUT, 2047, &piece(1024)), FAILED);
        assert_eq!(driver.run(0, OUT, u64::MAX, &piece(512)), FAILED);
        assert_eq!(driver.run(0, OUT, 0, &piece(100)), FAILED);
        assert_eq!(driver.run(0, OUT, 0, &[]), DONE, "nothing is written at once");
        assert_eq!(driver.run(0, IN, 2048, &[Piece(DATA, 512, true)]), FAILED);
        assert_eq!(driver.run(0, 77, 0, &[]), UNSUPPORTED);
        assert_eq!(driver.range(DISCARD, 2048, 8, 0), FAILED);
        assert_eq!(driver.range(DISCARD, 0, 8, 1), UNSUPPORTED, "a flag that means nothing");
        assert_eq!(driver.range(ZEROES, 0, 0, 0), FAILED);
        assert_eq!(driver.range(ZEROES, 0, 8, 2), UNSUPPORTED);
        assert_eq!(driver.range(ZEROES, 0, u32::MAX, 0), FAILED);
        assert!(disk.log().is_empty(), "{:?}", disk.log());
    });
}

#[test]
fn discards_and_zeroes_reach_the_disk_as_they_were_asked_for() {
    on_both_layouts(|layout| {
        let world = World::new(cairn_reactor::RingKind::Auto);
        let disk = TestDisk::new(1 << 20);
        let mut driver = Driver::start(&world.export("vm", &disk), FLUSH | layout, 1);
        assert_eq!(driver.range(DISCARD, 8, 16, 0), DONE);
        assert_eq!(driver.range(ZEROES, 32, 8, 0), DONE);
        assert_eq!(driver.range(ZEROES, 40, 8, 1), DONE);
        let seen: Vec<_> =
            disk.log().iter().map(|it| (it.op, it.range.start.0, it.flags)).collect();
        let expected = [
            (Op::Discard, 8, Flags::empty()),
            (Op::WriteZeroes, 32, Flags::NO_UNMAP),
            (Op::WriteZeroes, 40, Flags::empty()),
        ];
        assert_eq!(seen, expected);
    });
}

#[test]
fn writes_are_durable_for_a_driver_that_does_not_flush() {
    on_both_layouts(|layout| {
        let world = World::new(cairn_reactor::RingKind::Auto);
        let disk = TestDisk::new(1 << 20);
        let path = world.export("vm", &disk);
        let flags_of_last = || disk.log().last().unwrap().flags;
        let mut driver = Driver::start(&path, layout, 1);
        driver.write(0, 0, &[1; 512]);
        assert_eq!(flags_of_last(), Flags::FUA);
        assert_eq!(driver.range(ZEROES, 0, 8, 1), DONE);
        assert_eq!(flags_of_last(), Flags::FUA);
        drop(driver);
        let mut driver = Driver::start(&path, FLUSH | CONFIG_WCE | layout, 1);
        assert_eq!(driver.config(32, 1), [1], "a volatile cache");
        driver.write(0, 0, &[2; 512]);
        assert_eq!(flags_of_last(), Flags::empty());
        driver.set_config(32, &[0]);
        assert_eq!(driver.config(32, 1), [0]);
        driver.write(0, 0, &[3; 512]);
        assert_eq!(flags_of_last(), Flags::FUA);
        driver.set_config(32, &[1]);
        assert_eq!(driver.config(32, 1), [1]);
        driver.write(0, 0, &[4; 512]);
        assert_eq!(flags_of_last(), Flags::empty());
    });
}

#[test]
fn sectors_within_larger_blocks_are_read_and_written() {
    on_both_layouts(|layout| {
        on_both_rings(|ring| {
            let world = World::new(ring);
            let disk = TestDisk::with_block(1 << 20, 4096);
            let mut driver = Driver::start(&world.export("vm", &disk), FLUSH | layout, 1);
            assert_eq!(driver.write(0, 0, &[1; 8192]), DONE);
            assert_eq!(driver.write(0, 1536, &[2; 4096]), DONE);
            assert_eq!(driver.range(ZEROES, 13, 1, 1), DONE);
            let mut expected = [vec![1; 1536], vec![2; 4096], vec![1; 2560]].concat();
            expected[13 * 512..14 * 512].fill(0);
            assert_eq!(disk.bytes(0, 8192), expected);
            assert_eq!(driver.read(0, 512, 7168), expected[512..7680]);
            assert_eq!(driver.config(20, 4), 4096_u32.to_le_bytes(), "the size of a block");
        });
    });
}

#[test]
fn data_that_must_not_change_is_copied() {
    on_both_layouts(|layout| {
        let world = World::new(cairn_reactor::RingKind::Auto);
        let limits = Limits { stable_data: true, ..Limits::default() };
        let disk = TestDisk::with_limits(1 << 20, limits);
        let mut driver = Driver::start(&world.export("vm", &disk), FLUSH | layout, 1);
        disk.hold(8);
        driver.put(DATA, &[7; 4096]);
        driver.submit(0, 0, OUT, 8, &[Piece(DATA, 4096, false)]);
        eventually("the write is under way", || disk.in_flight() == 1);
        assert!(world.front.memory_held() >= 4096, "a copy is in memory");
        disk.release(8);
        driver.await_used(0, 1);
        assert_eq!(disk.bytes(4096, 4096), [7; 4096]);
    });
}

#[test]
fn errors_of_the_disk_are_told_and_later_requests_succeed() {
    on_both_layouts(|layout| {
        let world = World::new(cairn_reactor::RingKind::Auto);
        let disk = TestDisk::new(1 << 20);
        let mut driver = Driver::start(&world.export("vm", &disk), FLUSH | layout, 1);
        disk.fail(8, IoError::new(ErrorKind::NoSpace));
        disk.fail(16, IoError::new(ErrorKind::Unsupported));
        assert_eq!(driver.write(0, 4096, &[1; 512]), FAILED);
        assert_eq!(driver.used_element(0, 0), (0, 1));
        assert_eq!(driver.range(ZEROES, 16, 8, 0), UNSUPPORTED);
        assert_eq!(driver.write(0, 0, &[1; 512]), DONE);
    });
}

#[test]
fn a_read_only_export_writes_nothing() {
    on_both_layouts(|layout| {
        let world = World::new(cairn_reactor::RingKind::Auto);
        let disk = TestDisk::new(1 << 20);
        let mut driver = Driver::start(&world.export_for("vm", &disk, true), 1 << 5 | layout, 1);
        assert_eq!(driver.write(0, 0, &[1; 512]), FAILED);
        assert_eq!(driver.range(DISCARD, 0, 8, 0), FAILED);
        assert_eq!(driver.run(0, SYNC, 0, &[]), DONE);
        assert_eq!(driver.read(0, 0, 512), [0; 512]);
        assert!(disk.log().iter().all(|seen| seen.op == Op::Read));
    });
}

#[test]
fn serial_number_is_the_name_and_long_names_differ() {
    let world = World::new(cairn_reactor::RingKind::Auto);
    let disk = TestDisk::new(1 << 20);
    let identify = |name: &str| {
        let mut driver = Driver::start(&world.export(name, &disk), FLUSH, 1);
        assert_eq!(driver.run(0, ID, 0, &[Piece(DATA, 20, true)]), DONE);
        assert_eq!(driver.used_element(0, 0), (0, 21));
        driver.get(DATA, 20)
    };
    assert_eq!(identify("vm"), [b"vm".to_vec(), vec![0; 18]].concat());
    let long = ["machines-of-the-north-1", "machines-of-the-north-2"].map(identify);
    assert!(long.iter().all(|serial| serial.starts_with(b"machines-of")));
    assert_ne!(long[0], long[1]);
}

#[test]
fn a_driver_that_wants_no_notification_gets_none() {
    for features in [FLUSH, FLUSH | EVENT_IDX] {
        let world = World::new(cairn_reactor::RingKind::Auto);
        let disk = TestDisk::new(1 << 20);
        let mut driver = Driver::start(&world.export("vm", &disk), features, 1);
        if features & EVENT_IDX == 0 {
            driver.put(0x1000, &1_u16.to_le_bytes());
        } else {
            // At the third one.
            driver.put(0x1000 + 4 + 2 * 16, &2_u16.to_le_bytes());
        }
        driver.write(0, 0, &[1; 512]);
        eventually("the driver is notified of the start", || was_notified(&driver.calls[0]));
        driver.write(0, 0, &[1; 512]);
        assert!(!was_notified(&driver.calls[0]));
        driver.put(0x1000, &0_u16.to_le_bytes());
        driver.write(0, 0, &[1; 512]);
        eventually("the driver is notified", || was_notified(&driver.calls[0]));
    }
}
