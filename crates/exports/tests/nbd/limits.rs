//! Clients that vanish, stall, send too much or never end; and stops in spite of them.

use std::io::{Read, Write};
use std::time::Duration;

use cairn_block::Op;
use cairn_exports::nbd::NbdOptions;
use cairn_exports::nbd::wire::{command, option, option_error, option_reply};

use crate::disk::TestDisk;
use crate::world::{World, eventually, on_both_rings};
use cairn_testkit::nbd::{Client, Wishes};

/// So long that only a stop that waits for the wrong thing reaches it.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn write_without_its_payload_never_reaches_the_disk() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let disk = TestDisk::new(8 << 20);
        world.export("volume", &disk);
        for sent in [1, 100, 70_000, (4 << 20) - 1] {
            let mut client = Client::open(&world.socket(), "", Wishes::default());
            client.send(command::WRITE, 0, 0, 4 << 20);
            client.stream.write_all(&vec![5; sent]).unwrap();
            drop(client);
            eventually("the connection has ended", || world.server.connections() == 0);
        }
        assert_eq!(disk.log(), []);
    });
}

#[test]
fn requests_of_a_vanished_client_run_to_their_end() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let disk = TestDisk::new(1 << 20);
        world.export("volume", &disk);
        disk.hold(0);
        let mut client = Client::open(&world.socket(), "", Wishes::default());
        client.send_write(0, 0, &[6; 4096]);
        client.send(command::READ, 0, 8192, 4096);
        eventually("both are submitted", || disk.log().len() == 2);
        drop(client);
        assert_eq!(world.server.connections(), 1, "its write is still in flight");
        disk.release(0);
        eventually("the connection has ended", || world.server.connections() == 0);
        assert_eq!(disk.bytes(0, 4096), [6; 4096]);
    });
}

#[test]
fn client_that_reads_no_replies_holds_bounded_memory() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let disk = TestDisk::new(1 << 20);
        world.export("volume", &disk);
        let mut client = Client::open(&world.socket(), "", Wishes::default());
        let (count, len) = (400u64, 1 << 20);
        let mut sender = client.stream.try_clone().unwrap();
        let flood = std::thread::spawn(move || {
            let mut header = Vec::new();
            for cookie in 0..count {
                header.extend(0x2560_9513u32.to_be_bytes());
                header.extend([0, 0, 0, 0]);
                header.extend(cookie.to_be_bytes());
                header.extend(0u64.to_be_bytes());
                header.extend((len as u32).to_be_bytes());
            }
            sender.write_all(&header).unwrap();
        });
        eventually("reads pile up", || disk.log().len() >= 16 && disk.in_flight() == 0);
        // The server goes on with other clients, and takes no more from this one.
        for _ in 0..20 {
            drop(Client::open(&world.socket(), "", Wishes::default()));
        }
        // The bytes that are held, and those that the socket took.
        assert!(disk.log().len() <= 32, "bounded by memory: {}", disk.log().len());
        let mut seen: Vec<u64> = (0..count).map(|_| client.reply(len).cookie).collect();
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..count), "each is answered once");
        flood.join().unwrap();
        assert!(disk.most_in_flight() <= 128);
    });
}

#[test]
fn payloads_of_200_connections_stay_in_the_budget_and_leave_room_for_another_volume() {
    const MEMORY: usize = 64 << 20;
    let options = NbdOptions { memory_bytes: MEMORY, ..NbdOptions::default() };
    let world = World::with_options(cairn_reactor::RingKind::Auto, options);
    let (stuck, other) = (TestDisk::new(1 << 20), TestDisk::new(8 << 20));
    world.export("stuck", &stuck);
    world.export("other", &other);
    stuck.hold(0);
    let open = |_| Client::open(&world.socket(), "stuck", Wishes::default());
    let mut clients: Vec<Client> = (0..200).map(open).collect();
    for client in &mut clients {
        client.send(command::READ, 0, 0, 1 << 20);
        client.send_write(0, 0, &[9; 100 << 10]);
    }
    eventually("the volume has its half", || world.server.memory_held() > (MEMORY / 2) - (1 << 20));
    let mut client = Client::open(&world.socket(), "other", Wishes::default());
    for _ in 0..10 {
        assert_eq!(client.read(0, 8 << 20).len(), 8 << 20, "another volume goes on");
        assert_eq!(client.write(0, 0, &[7; 4 << 20]), 0);
        assert!(world.server.memory_held() <= MEMORY);
    }
    eventually("no more than half", || world.server.memory_held() <= MEMORY / 2);
    assert!(stuck.in_flight() <= MEMORY >> 19, "{}", stuck.in_flight());
    stuck.release(0);
    for client in &mut clients {
        for _ in 0..2 {
            let mut magic = [0; 16];
            client.stream.read_exact(&mut magic).unwrap();
            assert_eq!(magic[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0]);
            if magic[15] == 1 {
                client.stream.read_exact(&mut vec![0; 1 << 20]).unwrap();
            }
            assert!(world.server.memory_held() <= MEMORY);
        }
    }
    eventually("everything came back", || world.server.memory_held() == 0);
}

#[test]
fn memory_of_an_incomplete_payload_returns_when_the_client_leaves() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let disk = TestDisk::new(8 << 20);
        world.export("volume", &disk);
        disk.hold(0);
        let mut client = Client::open(&world.socket(), "", Wishes::default());
        client.send(command::READ, 0, 0, 4096);
        client.send(command::WRITE, 0, 0, 4 << 20);
        eventually("its memory is taken", || world.server.memory_held() == (4 << 20) + 4096);
        drop(client);
        eventually("it came back", || world.server.memory_held() == 4096);
        disk.release(0);
        eventually("all of it", || world.server.memory_held() == 0);
    });
}

#[test]
fn stopping_does_not_wait_for_memory() {
    let options = NbdOptions { memory_bytes: 64 << 20, ..NbdOptions::default() };
    let world = World::with_options(cairn_reactor::RingKind::Auto, options);
    let disk = TestDisk::new(1 << 20);
    world.export("volume", &disk);
    disk.hold(0);
    let open = |_| Client::open(&world.socket(), "", Wishes::default());
    let mut clients: Vec<Client> = (0..40).map(open).collect();
    for client in &mut clients {
        client.send(command::READ, 0, 0, 1 << 20);
    }
    eventually("some wait for memory", || world.server.memory_held() > 30 << 20);
    std::thread::scope(|scope| {
        let stop = scope.spawn(|| world.stop(LONG));
        eventually("those that wait go", || world.server.connections() <= 32);
        disk.release(0);
        drop(clients);
        assert_eq!(stop.join().unwrap(), 0);
    });
}

#[test]
fn many_small_requests_are_all_answered() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let disk = TestDisk::new(1 << 20);
        world.export("volume", &disk);
        let mut client = Client::open(&world.socket(), "", Wishes::default());
        for round in 0..20u8 {
            let mut open: Vec<u64> = (0..200)
                .map(|at| {
                    client.send_write(0, at * 4096, &vec![round; 512 * (1 + at as usize % 8)])
                })
                .collect();
            while !open.is_empty() {
                let reply = client.reply(0);
                assert_eq!(reply.error, 0);
                open.retain(|cookie| *cookie != reply.cookie);
            }
        }
        assert!(disk.most_in_flight() <= 128);
        assert_eq!(disk.log().iter().filter(|seen| seen.op == Op::Write).count(), 4000);
    });
}

#[test]
fn client_that_negotiates_too_slowly_is_closed() {
    on_both_rings(|ring| {
        let options =
            NbdOptions { handshake_timeout: Duration::from_millis(20), ..NbdOptions::default() };
        let world = World::with_options(ring, options);
        let mut silent = Client::over(Client::connect(&world.socket()));
        assert!(silent.is_closed());
        eventually("the connection has ended", || world.server.connections() == 0);
    });
}

#[test]
fn connection_over_the_limit_gets_an_error_and_the_others_stay() {
    let options = NbdOptions { connections_max: 2, ..NbdOptions::default() };
    let world = World::with_options(cairn_reactor::RingKind::Auto, options);
    world.export("volume", &TestDisk::new(1 << 20));
    let mut first = Client::open(&world.socket(), "", Wishes::default());
    let second = Client::open(&world.socket(), "", Wishes::default());
    let stream = Client::connect(&world.socket());
    let mut third = Client::over(stream);
    third.option(option::STRUCTURED_REPLY, &[]);
    assert_eq!(third.option_replies()[0].0, option_reply::ACK);
    third.option(option::GO, &[0; 6]);
    let (kind, text) = third.option_replies().remove(0);
    assert_eq!(kind, option_error::POLICY);
    let text = String::from_utf8(text).unwrap();
    assert!(text.starts_with("too many connections: 2 are open"), "{text}");
    assert!(third.is_closed());
    assert_eq!(first.read(0, 512), [0; 512]);
    drop(second);
    eventually("a place is free", || world.server.connections() == 1);
    Client::open(&world.socket(), "", Wishes::default());
}

#[test]
fn many_connections_over_the_limit_are_closed_and_do_not_count() {
    let options = NbdOptions { connections_max: 1, ..NbdOptions::default() };
    let world = World::with_options(cairn_reactor::RingKind::Auto, options);
    world.export("volume", &TestDisk::new(1 << 20));
    let mut first = Client::open(&world.socket(), "", Wishes::default());
    let connect = || std::os::unix::net::UnixStream::connect(world.socket()).unwrap();
    let mut silent: Vec<_> = (0..50).map(|_| connect()).collect();
    let last = silent.pop().unwrap();
    let mut last = Client::over(last);
    assert!(last.is_closed(), "only so many are told");
    let log = world.reactors.post();
    assert_eq!(log.log().counted("nbd: connection refused"), Some(49), "one line");
    assert_eq!(first.read(0, 512), [0; 512]);
    drop(first);
    eventually("the place is free", || world.server.connections() == 0);
    Client::open(&world.socket(), "", Wishes::default());
}

#[test]
fn stop_answers_admitted_requests_and_closes_negotiations() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let disk = TestDisk::new(1 << 20);
        world.export("volume", &disk);
        let mut client = Client::open(&world.socket(), "", Wishes::default());
        let idle = Client::open(&world.socket(), "", Wishes::default());
        let negotiating = Client::connect(&world.socket());
        disk.hold(0);
        let cookie = client.send_write(0, 0, &[7; 512]);
        eventually("the write is in flight", || disk.in_flight() == 1);
        std::thread::scope(|scope| {
            let stop = scope.spawn(|| world.stop(LONG));
            for stream in [idle.stream, negotiating] {
                let mut client = Client::over(stream);
                assert!(client.is_closed());
            }
            disk.release(0);
            assert_eq!(client.reply(0).cookie, cookie);
            assert!(client.is_closed());
            assert_eq!(stop.join().unwrap(), 0);
        });
        assert!(!world.socket().exists());
        assert!(std::os::unix::net::UnixStream::connect(world.socket()).is_err());
    });
}

#[test]
fn client_that_reads_no_replies_is_cut_after_the_drain_time() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let disk = TestDisk::new(1 << 20);
        world.export("volume", &disk);
        let mut client = Client::open(&world.socket(), "", Wishes::default());
        for _ in 0..100 {
            client.send(command::READ, 0, 0, 1 << 20);
        }
        eventually("reads pile up", || disk.log().len() >= 10 && disk.in_flight() == 0);
        assert_eq!(world.stop(Duration::from_millis(1)), 0);
    });
}

#[test]
fn stop_returns_how_many_connections_wait_for_a_disk() {
    let world = World::new(cairn_reactor::RingKind::Auto);
    let disk = TestDisk::new(1 << 20);
    world.export("volume", &disk);
    disk.hold(0);
    let mut client = Client::open(&world.socket(), "", Wishes::default());
    client.send_write(0, 0, &[7; 512]);
    eventually("the write is in flight", || disk.in_flight() == 1);
    assert_eq!(world.stop(Duration::ZERO), 1);
    disk.release(0);
    eventually("the connection has ended", || world.server.connections() == 0);
}
