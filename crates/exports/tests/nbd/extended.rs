//! Clients with extended headers: long ranges, replies in chunks, payloads that are announced.

use std::io::Write;
use std::time::Duration;

use cairn_block::{Flags, IoError, Op, Sector, SectorCount, SectorRange};
use cairn_exports::nbd::wire::{CommandFlags, ErrorCode, command, option};

use crate::disk::{Seen, TestDisk};
use crate::world::{World, eventually, on_both_rings};
use cairn_testkit::nbd::{Client, Wishes};

const EXTENDED: Wishes =
    Wishes { structured: false, extended: true, block_sizes: true, allocation: true };

/// A compact request reaches no further.
const PIECE: u64 = 4 << 30;
const SIZE: u64 = 3 << 40;
const INVALID: u32 = ErrorCode::Invalid.number();

fn bytes(start: u64, count: u64) -> SectorRange {
    SectorRange::new(Sector::of_byte(start), SectorCount::of_bytes(count))
}

fn seen(op: Op, flags: Flags, range: SectorRange) -> Seen {
    Seen { op, flags, range }
}

#[test]
fn every_command_is_answered_in_extended_chunks() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let disk = TestDisk::new(SIZE);
        world.export("volume", &disk);
        let mut client = Client::open(&world.socket(), "volume", EXTENDED);
        assert_eq!(client.size, SIZE);
        let (far, fua) = (2 << 40, CommandFlags::FUA.bits());
        assert_eq!(client.write(fua, far, &[7; 1024]), 0);
        assert_eq!(client.read(far - 512, 1024), [[0; 512], [7; 512]].concat());
        assert_eq!(client.run(command::FLUSH, 0, 0, 0), 0);
        assert_eq!(client.run(command::TRIM, fua, 0, 4096), 0);
        assert_eq!(client.run(command::WRITE_ZEROES, 0, far, 512), 0);
        assert_eq!(client.run_long(command::CACHE, 0, 0, SIZE), 0);
        assert_eq!(client.run(command::WRITE_ZEROES, 0, 4096, 0), 0, "nothing to do");
        assert_eq!(client.read(far, 1024), [[0; 512], [7; 512]].concat());
        let large: Vec<u8> = (0..32u32 << 20).map(|at| (at % 65_521) as u8).collect();
        assert_eq!(client.write(0, 1 << 20, &large), 0);
        assert!(client.read(1 << 20, 32 << 20) == large);
    });
}

#[test]
fn long_trim_and_write_zeroes_reach_the_disk_in_pieces() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let disk = TestDisk::new(SIZE);
        world.export("volume", &disk);
        let mut client = Client::open(&world.socket(), "volume", EXTENDED);
        let fua = CommandFlags::FUA.bits();
        let (start, length) = (1 << 20, PIECE + 4096);
        assert_eq!(client.run_long(command::TRIM, fua, start, length), 0);
        assert_eq!(client.run_long(command::TRIM, 0, start, length), 0);
        assert_eq!(client.run_long(command::WRITE_ZEROES, fua, start, length), 0);
        assert_eq!(client.run_long(command::TRIM, 0, start, PIECE), 0);
        let none = Flags::empty();
        let pieces = [bytes(start, PIECE), bytes(start + PIECE, 4096)];
        let [discards, zeroes] = [(Op::Discard, none), (Op::WriteZeroes, Flags::FUA)]
            .map(|(op, flags)| pieces.map(|piece| seen(op, flags, piece)));
        let flush = [seen(Op::Flush, none, SectorRange::default())];
        let whole = [seen(Op::Discard, none, pieces[0])];
        assert_eq!(disk.log(), [&discards[..], &flush, &discards, &zeroes, &whole].concat());
    });
}

#[test]
fn long_write_zeroes_of_parts_of_blocks_leaves_what_is_around_it() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let disk = TestDisk::with_block(SIZE, 4096);
        world.export("volume", &disk);
        let mut client = Client::open(&world.socket(), "volume", EXTENDED);
        let end = 100 + 2 * PIECE;
        assert_eq!(client.write(0, 0, &[1; 4096]), 0);
        assert_eq!(client.write(0, end - 50, &[2; 4096]), 0);
        assert_eq!(client.run_long(command::WRITE_ZEROES, 0, 100, end - 100), 0);
        assert_eq!(client.read(0, 200), [[1; 100], [0; 100]].concat());
        assert_eq!(client.read(end - 100, 200), [[0; 100], [2; 100]].concat());
        let zeroed = disk.log().into_iter().filter(|seen| seen.op == Op::WriteZeroes);
        let zeroed: Vec<_> = zeroed.map(|seen| seen.range.to_bytes()).collect();
        assert_eq!(zeroed, [PIECE, PIECE - 4096]);
    });
}

#[test]
fn piece_that_fails_fails_its_request_and_ends_it() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let disk = TestDisk::new(SIZE);
        world.export("volume", &disk);
        let mut client = Client::open(&world.socket(), "volume", EXTENDED);
        disk.fail(PIECE / 512, IoError::IO);
        for command in [command::TRIM, command::WRITE_ZEROES] {
            let io = ErrorCode::Io.number();
            assert_eq!(client.run_long(command, 0, 0, 3 * PIECE), io);
        }
        assert_eq!(disk.log().len(), 2 * 2);
    });
}

#[test]
fn long_write_zeroes_and_a_partial_write_exclude_each_other() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let disk = TestDisk::with_block(SIZE, 4096);
        world.export("volume", &disk);
        let mut partial = Client::open(&world.socket(), "volume", Wishes::default());
        let mut long = Client::open(&world.socket(), "volume", EXTENDED);
        let zero = |client: &mut Client| {
            client.send_long(command::WRITE_ZEROES, 0, 0, PIECE + 4096);
        };
        disk.hold(0);
        partial.send_write(0, 1, &[9]);
        eventually("the partial write reads its block", || disk.in_flight() == 1);
        zero(&mut long);
        // When this read is answered, the request before it has progressed as far as it can.
        long.read(2 * PIECE, 4096);
        assert!(disk.log().iter().all(|seen| seen.op == Op::Read), "{:?}", disk.log());
        disk.release(0);
        assert_eq!((partial.reply(0).error, long.reply(0).error), (0, 0));
        assert_eq!(disk.bytes(0, 3), [0; 3]);
        disk.hold(0);
        zero(&mut long);
        eventually("the first piece is in flight", || disk.in_flight() == 1);
        let before = disk.log().len();
        partial.send_write(0, 1, &[9]);
        partial.read(2 * PIECE, 4096);
        assert_eq!(disk.log().len(), before + 1, "{:?}", disk.log());
        disk.release(0);
        assert_eq!((partial.reply(0).error, long.reply(0).error), (0, 0));
        assert_eq!(disk.bytes(0, 3), [0, 9, 0]);
    });
}

#[test]
fn rest_of_a_long_request_is_not_begun_once_its_client_is_cut() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let disk = TestDisk::new(SIZE);
        world.export("volume", &disk);
        for (already, command) in [command::TRIM, command::WRITE_ZEROES].into_iter().enumerate() {
            disk.hold(PIECE / 512);
            let mut client = Client::open(&world.socket(), "volume", EXTENDED);
            client.send_long(command, 0, 0, 3 * PIECE);
            let second = || disk.log().len() == 2 * already + 2 && disk.in_flight() == 1;
            eventually("the second piece is in flight", second);
            assert_eq!(world.remove("volume", Duration::from_millis(1)), 1);
            disk.release(PIECE / 512);
            eventually("the connection has ended", || world.server.connections() == 0);
            assert_eq!(disk.log().len(), 2 * already + 2);
            world.export("volume", &disk);
        }
    });
}

#[test]
fn block_status_tells_of_extents_beyond_32_bits() {
    let world = World::new(cairn_reactor::RingKind::Auto);
    world.export("volume", &TestDisk::new(SIZE));
    let mut client = Client::open(&world.socket(), "volume", EXTENDED);
    assert_eq!(client.write(0, 1 << 40, &[9; 512]), 0);
    client.send_long(command::BLOCK_STATUS, 0, 0, SIZE);
    let rest = SIZE - (1 << 40) - 512;
    assert_eq!(client.reply(0).extents, [(1 << 40, 3), (512, 0), (rest, 3)]);
    let one = CommandFlags::REQ_ONE.bits();
    client.send_long(command::BLOCK_STATUS, one, 512, SIZE - 512);
    assert_eq!(client.reply(0).extents, [((1 << 40) - 512, 3)]);
    assert_eq!(client.run_long(command::BLOCK_STATUS, 0, 512, SIZE), INVALID);
}

#[test]
fn payload_where_none_belongs_is_skipped_and_the_connection_goes_on() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let disk = TestDisk::new(1 << 20);
        world.export("volume", &disk);
        let mut client = Client::open(&world.socket(), "volume", EXTENDED);
        let flag = CommandFlags::PAYLOAD_LEN.bits();
        for command in [command::READ, command::TRIM, command::BLOCK_STATUS, command::FLUSH, 99] {
            let mut bytes = client.header(command, flag, 0, 100_000);
            bytes.extend([0xee; 100_000]);
            client.stream.write_all(&bytes).unwrap();
            assert_eq!(client.reply(0).error, INVALID, "command {command}");
        }
        // Without the flag, as qemu 10 sends it.
        let mut bytes = client.header(command::WRITE, 0, 0, 512);
        bytes.extend([0; 512]);
        client.stream.write_all(&bytes).unwrap();
        assert_eq!(client.reply(0).error, 0);
        assert_eq!(client.write(0, 0, &vec![1; (32 << 20) + 512]), ErrorCode::NoSpace.number());
        assert_eq!(client.read(0, 512), [0; 512]);
        assert_eq!(disk.log().len(), 2);
    });
}

#[test]
fn payload_that_is_too_long_to_be_skipped_ends_the_connection() {
    let world = World::new(cairn_reactor::RingKind::Auto);
    world.export("volume", &TestDisk::new(1 << 20));
    let mut client = Client::open(&world.socket(), "volume", EXTENDED);
    client.send_long(command::WRITE, CommandFlags::PAYLOAD_LEN.bits(), 0, 1 << 40);
    assert!(client.is_closed());
}

#[test]
fn export_name_after_extended_headers_closes_the_connection() {
    let world = World::new(cairn_reactor::RingKind::Auto);
    world.export("volume", &TestDisk::new(1 << 20));
    let mut client = Client::negotiate(&world.socket(), EXTENDED);
    client.option(option::EXPORT_NAME, b"volume");
    assert!(client.is_closed());
}
