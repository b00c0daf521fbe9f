//! What goes over the wire: every command, errors, order, exports that are added and removed.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::{
    Env, ErrorKind, Flags, IoError, Limits, LocalFuture, Op, Sector, SectorCount, SectorRange,
};
use cairn_exports::nbd::wire::{
    CommandFlags, ErrorCode, TransmissionFlags, command, option, option_error,
};
use cairn_exports::nbd::{ContextRun, Contexts, ListenAddress, NbdExport};

use crate::disk::{Seen, TestDisk};
use crate::world::{World, eventually, on_both_rings};
use cairn_testkit::nbd::{Client, Wishes};

const ALL: Wishes =
    Wishes { structured: true, extended: false, block_sizes: true, allocation: true };

fn sectors(start: u64, count: u64) -> SectorRange {
    SectorRange::new(Sector(start), SectorCount(count))
}

fn code(error: ErrorCode) -> u32 {
    error.number()
}

#[test]
fn each_command_reaches_the_disk_as_one_request_with_its_flags() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let disk = TestDisk::new(3 << 40);
        world.export("volume", &disk);
        let mut client = Client::open(&world.socket(), "volume", ALL);
        assert_eq!(client.size, 3 << 40);
        assert_eq!(client.block_sizes, Some((1, 4096, 32 << 20)));
        let far = (2 << 40) + 4096;
        let (fua, no_hole) = (CommandFlags::FUA.bits(), CommandFlags::NO_HOLE.bits());
        let fast = CommandFlags::FAST_ZERO.bits();
        assert_eq!(client.write(fua, far, &[7; 1024]), 0);
        assert_eq!(client.read(far - 512, 1024), [[0; 512], [7; 512]].concat());
        assert_eq!(client.run(command::FLUSH, 0, 0, 0), 0);
        assert_eq!(client.run(command::TRIM, 0, 0, 0xffff_f000), 0);
        assert_eq!(client.run(command::WRITE_ZEROES, fua | no_hole, far, 1024), 0);
        assert_eq!(client.run(command::WRITE_ZEROES, fast, 0, 0xffff_f000), 0);
        assert_eq!(client.run(command::CACHE, 0, 0, 1 << 20), 0);
        assert_eq!(client.run(command::WRITE_ZEROES, 0, 0, 0), 0, "nothing to do");
        let (start, none) = (far / 512, Flags::empty());
        let huge = sectors(0, 0xffff_f000 / 512);
        let expected = [
            (Op::Write, Flags::FUA, sectors(start, 2)),
            (Op::Read, none, sectors(start - 1, 2)),
            (Op::Flush, none, SectorRange::default()),
            (Op::Discard, none, huge),
            (Op::WriteZeroes, Flags::FUA | Flags::NO_UNMAP, sectors(start, 2)),
            (Op::WriteZeroes, Flags::FAST_ZERO, huge),
        ];
        let expected = expected.map(|(op, flags, range)| Seen { op, flags, range });
        assert_eq!(disk.log(), expected);
    });
}

#[test]
fn longest_payload_is_written_and_read_back() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        world.export("volume", &TestDisk::new(64 << 20));
        let mut client = Client::open(&world.socket(), "volume", Wishes::default());
        let data: Vec<u8> = (0..32u32 << 20).map(|at| (at % 65_521) as u8).collect();
        assert_eq!(client.write(0, 1 << 20, &data), 0);
        assert!(client.read(1 << 20, 32 << 20) == data);
    });
}

#[test]
fn replies_come_in_the_order_of_completion() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let disk = TestDisk::new(1 << 20);
        world.export("volume", &disk);
        let wishes = Wishes { structured: true, ..Wishes::default() };
        let mut client = Client::open(&world.socket(), "volume", wishes);
        disk.hold(0);
        let first = client.send(command::READ, 0, 0, 512);
        let second = client.send(command::READ, 0, 512, 512);
        let third = client.send_write(0, 1024, &[1; 512]);
        let early = [client.reply(0).cookie, client.reply(0).cookie];
        assert!(early == [second, third] || early == [third, second]);
        disk.release(0);
        assert_eq!(client.reply(0).cookie, first);
    });
}

#[test]
fn block_status_merges_extents_that_the_disk_reports_in_pieces() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let disk = TestDisk::new(1 << 20);
        world.export("volume", &disk);
        let mut client = Client::open(&world.socket(), "volume", ALL);
        client.write(0, 0, &[9; 8 * 512]);
        client.write(0, 16 * 512, &[0; 8 * 512]);
        let one = CommandFlags::REQ_ONE.bits();
        for (flags, expected) in
            [(0, vec![(4096, 0), (4096, 3), (4096, 2), (4096, 3)]), (one, vec![(4096, 0)])]
        {
            let cookie = client.send(command::BLOCK_STATUS, flags, 0, 16384);
            let reply = client.reply(0);
            assert_eq!((reply.cookie, reply.error), (cookie, 0));
            assert_eq!(reply.extents, expected);
        }
    });
}

#[test]
fn slow_block_status_is_answered_in_part() {
    let world = World::new(cairn_reactor::RingKind::Auto);
    world.export("volume", &TestDisk::new(8 << 20));
    let mut client = Client::open(&world.socket(), "volume", ALL);
    client.write(0, 0, &vec![9; 8 << 20]);
    // The disk reports three blocks at a time.
    client.send(command::BLOCK_STATUS, 0, 0, 8 << 20);
    assert_eq!(client.reply(0).extents, [(4096 * 3 * 512, 0)]);
    client.send(command::BLOCK_STATUS, 0, 4096 * 3 * 512, (8 << 20) - 4096 * 3 * 512);
    assert_eq!(client.reply(0).extents, [((8 << 20) - 4096 * 3 * 512, 0)]);
}

#[test]
fn illegal_requests_are_answered_and_the_connection_goes_on() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let disk = TestDisk::new(1 << 20);
        world.export("volume", &disk);
        for (structured, extended) in [(false, false), (true, false), (false, true)] {
            let wishes = Wishes { structured, extended, block_sizes: true, allocation: false };
            let mut client = Client::open(&world.socket(), "volume", wishes);
            let (invalid, no_space) = (code(ErrorCode::Invalid), code(ErrorCode::NoSpace));
            assert_eq!(client.run(99, 0, 0, 0), invalid);
            assert_eq!(client.run(command::READ, 0, 1 << 20, 512), invalid, "beyond the end");
            assert_eq!(client.run(command::READ, 1 << 9, 0, 512), invalid, "unknown flag");
            assert_eq!(client.run(command::BLOCK_STATUS, 0, 0, 512), invalid, "no context");
            assert_eq!(client.write(0, (1 << 20) - 512, &[1; 1024]), no_space);
            assert_eq!(client.write(0, 0, &vec![1; (32 << 20) + 512]), no_space);
            assert_eq!(client.write(0, 0, &[3; 512]), 0);
            assert_eq!(client.read(0, 512), [3; 512]);
        }
    });
}

#[test]
fn an_oversized_write_is_skipped_and_refused() {
    let world = World::new(cairn_reactor::RingKind::Auto);
    world.export("volume", &TestDisk::new(64 << 20));
    let mut client = Client::open(&world.socket(), "volume", Wishes::default());
    assert_eq!(client.write(0, 0, &vec![1; (32 << 20) + 512]), code(ErrorCode::Invalid));
    assert_eq!(client.read(0, 512), [0; 512]);
}

#[test]
fn out_of_step_stream_is_closed_after_pending_replies() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let disk = TestDisk::new(1 << 20);
        world.export("volume", &disk);
        let mut client = Client::open(&world.socket(), "volume", Wishes::default());
        disk.hold(0);
        let cookie = client.send_write(0, 0, &[1; 512]);
        client.stream.write_all(&[0xee; 28]).unwrap();
        disk.release(0);
        assert_eq!(client.reply(0).cookie, cookie);
        assert!(client.is_closed());
    });
}

#[test]
fn disconnect_is_followed_by_replies_to_requests_in_flight() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let disk = TestDisk::new(1 << 20);
        world.export("volume", &disk);
        let mut client = Client::open(&world.socket(), "volume", Wishes::default());
        disk.hold(0);
        let cookie = client.send(command::READ, 0, 0, 512);
        client.send(command::DISC, 0, 0, 0);
        eventually("the read is in flight", || disk.in_flight() == 1);
        disk.release(0);
        assert_eq!(client.reply(512).cookie, cookie);
        assert!(client.is_closed());
        eventually("the connection has ended", || world.server.connections() == 0);
    });
}

#[test]
fn errors_of_the_disk_keep_their_meaning() {
    let world = World::new(cairn_reactor::RingKind::Auto);
    let disk = TestDisk::new(1 << 20);
    world.export("volume", &disk);
    for (structured, extended) in [(false, false), (true, false), (false, true)] {
        let wishes = Wishes { structured, extended, ..Wishes::default() };
        let mut client = Client::open(&world.socket(), "volume", wishes);
        for (kind, expected) in [
            (ErrorKind::Io, ErrorCode::Io),
            (ErrorKind::NoSpace, ErrorCode::NoSpace),
            (ErrorKind::Unsupported, ErrorCode::NotSupported),
            (ErrorKind::ReadOnly, ErrorCode::NotPermitted),
            (ErrorKind::NoMemory, ErrorCode::NoMemory),
            (ErrorKind::Shutdown, ErrorCode::Shutdown),
        ] {
            disk.fail(8, IoError::new(kind));
            assert_eq!(client.run(command::READ, 0, 4096, 512), code(expected));
            assert_eq!(client.write(0, 4096, &[1; 512]), code(expected));
        }
    }
    // Three clients with four failures each; an unsupported operation and the disk's shutdown do
    // not count.
    for op in ["read", "write"] {
        let key = format!("export 'volume': {op} failed");
        assert_eq!(world.reactors.post().log().counted(&key), Some(3 * 4 - 1));
    }
}

#[test]
fn a_read_only_export_says_so_and_refuses_writes() {
    let world = World::new(cairn_reactor::RingKind::Auto);
    let disk = TestDisk::new(1 << 20);
    let export = NbdExport {
        name: "volume".to_owned(),
        description: String::new(),
        disk: disk.clone(),
        read_only: true,
        throttle: Arc::default(),
    };
    world.server.add_export(export).unwrap();
    let mut client = Client::open(&world.socket(), "", Wishes::default());
    let flags = TransmissionFlags::from_bits_retain(client.flags);
    assert!(flags.contains(TransmissionFlags::READ_ONLY | TransmissionFlags::CAN_MULTI_CONN));
    assert_eq!(client.write(0, 0, &[1; 512]), code(ErrorCode::NotPermitted));
    assert_eq!(client.run(command::TRIM, 0, 0, 512), code(ErrorCode::NotPermitted));
    assert_eq!(client.read(0, 512), [0; 512]);
    assert!(disk.log().iter().all(|seen| seen.op == Op::Read));
}

#[test]
fn exports_come_go_and_grow_while_others_are_served() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let (one, two) = (TestDisk::new(1 << 20), TestDisk::new(1 << 20));
        world.export("one", &one);
        let mut client = Client::open(&world.socket(), "", Wishes::default());
        world.export("two", &two);
        let mut stream = Client::open(&world.socket(), "two", Wishes::default());
        *one.sectors.lock().unwrap() = SectorCount::of_bytes(2 << 20);
        assert_eq!(Client::open(&world.socket(), "one", Wishes::default()).size, 2 << 20);
        assert_eq!(client.read(1 << 20, 512), [0; 512], "as far as it reaches now");
        let beyond = client.run(command::READ, 0, 2 << 20, 512);
        assert_eq!(beyond, code(ErrorCode::Invalid));
        assert_eq!(world.remove("two", Duration::from_secs(60)), 0);
        assert!(stream.is_closed());
        assert_eq!(client.read(0, 512), [0; 512]);
        stream.stream = Client::connect(&world.socket());
        stream.option(option::INFO, &[0, 0, 0, 3, b't', b'w', b'o', 0, 0]);
        assert_eq!(stream.option_replies()[0].0, option_error::UNKNOWN);
    });
}

#[test]
fn a_volume_that_shrank_refuses_what_lies_beyond_its_end() {
    let world = World::new(cairn_reactor::RingKind::Auto);
    let disk = TestDisk::new(1 << 20);
    world.export("volume", &disk);
    let mut client = Client::open(&world.socket(), "", Wishes::default());
    *disk.sectors.lock().unwrap() = SectorCount::of_bytes(4096);
    assert_eq!(client.write(0, 4096, &[1; 512]), code(ErrorCode::NoSpace));
    assert_eq!(client.write(0, 3584, &[1; 512]), 0);
}

#[test]
fn two_exports_of_one_name_are_refused() {
    let world = World::new(cairn_reactor::RingKind::Auto);
    let disk = TestDisk::new(1 << 20);
    world.export("volume", &disk);
    let again = NbdExport {
        name: "volume".to_owned(),
        description: String::new(),
        disk,
        read_only: false,
        throttle: Arc::default(),
    };
    let error = world.server.add_export(again).unwrap_err();
    assert_eq!(error.to_string(), "nbd: export: found volume, expected a name not in use");
}

#[test]
fn a_socket_in_use_is_refused_and_stays_in_use() {
    let world = World::new(cairn_reactor::RingKind::Auto);
    world.export("volume", &TestDisk::new(1 << 20));
    let error = world.server.listen(&ListenAddress::Unix(world.socket())).unwrap_err();
    assert_eq!(error.kind, cairn_block::ConfigKind::Busy);
    Client::open(&world.socket(), "", Wishes::default());
}

#[test]
fn preferred_block_size_is_the_disks_between_a_page_and_the_largest_payload() {
    for (io_min, preferred) in [(512, 4096), (65_536, 65_536), (1 << 30, 32 << 20)] {
        let world = World::new(cairn_reactor::RingKind::Auto);
        let limits = Limits { io_min, ..Limits::default() };
        world.export("volume", &TestDisk::with_limits(1 << 20, limits));
        let client = Client::open(&world.socket(), "volume", ALL);
        assert_eq!(client.block_sizes, Some((1, preferred, 32 << 20)));
    }
}

/// Reports that the second half of the first MiB is in state 1, under two names.
struct SecondHalf;

const OWN: &str = "cairn:changed:mon";
const QEMUS: &str = "qemu:dirty-bitmap:mon";

impl Contexts for SecondHalf {
    fn names(&self) -> Vec<String> {
        vec![OWN.to_owned(), QEMUS.to_owned()]
    }

    fn describe<'a>(
        &'a self,
        _env: &'a Env,
        name: &'a str,
        range: SectorRange,
    ) -> LocalFuture<'a, Result<Vec<ContextRun>, IoError>> {
        assert!([OWN, QEMUS].contains(&name), "{name}");
        let (start, end) = (range.start.0, range.end().0);
        let middle = 1024u64.clamp(start, end);
        let runs = [(middle - start, 0), (end - middle, 1)];
        let runs = runs.into_iter().filter(|(count, _)| *count > 0);
        let run = |(count, state)| ContextRun { count: SectorCount(count), state };
        Box::pin(std::future::ready(Ok(runs.map(run).collect())))
    }
}

fn world_of_second_half() -> World {
    let world = World::new(cairn_reactor::RingKind::Auto);
    let disk = TestDisk::new(1 << 20);
    let export = NbdExport {
        name: "volume".to_owned(),
        description: String::new(),
        disk,
        read_only: false,
        throttle: Arc::default(),
    };
    world.server.add_export_with(export, Arc::new(SecondHalf)).unwrap();
    world
}

#[test]
fn an_exports_own_contexts_are_selected_and_reported_with_allocation() {
    let world = world_of_second_half();
    let wishes = Wishes { structured: true, allocation: true, ..Wishes::default() };
    let halves = [(1 << 19, 0), (1 << 19, 1)];
    for (queries, expected) in [
        (&[OWN][..], halves.to_vec()),
        (&[QEMUS], halves.to_vec()),
        (&[OWN, QEMUS], [halves, halves].concat()),
        (&["base:allocation", OWN], vec![(1 << 20, 3), (1 << 19, 0), (1 << 19, 1)]),
        (&["base:allocation", "cairn:changed:nobody"], vec![(1 << 20, 3)]),
    ] {
        let mut client = Client::open_with(&world.socket(), "volume", wishes, queries);
        client.send(command::BLOCK_STATUS, 0, 0, 1 << 20);
        assert_eq!(client.reply(0).extents, expected, "{queries:?}");
    }
}

#[test]
fn an_exports_own_contexts_are_listed_by_their_namespaces() {
    let world = world_of_second_half();
    let wishes = Wishes { structured: true, ..Wishes::default() };
    for (query, expected) in [
        ("qemu:", QEMUS),
        ("qemu:dirty-bitmap:", QEMUS),
        ("cairn:", OWN),
        ("cairn:changed:", OWN),
        (OWN, OWN),
    ] {
        let mut client = Client::negotiate(&world.socket(), wishes);
        assert_eq!(client.contexts(option::LIST_META_CONTEXT, "volume", &[query]), [expected]);
    }
}
