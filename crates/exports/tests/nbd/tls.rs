//! Clients over TLS: requests of every size, clients that break the protocol, and the end.

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_block::ReactorId;
use cairn_exports::nbd::wire::{command, option, option_error, option_reply};
use cairn_exports::nbd::{NbdExport, NbdOptions, NoContexts};
use cairn_reactor::RingKind;
use cairn_testkit::nbd::{Client, Wishes};

use crate::disk::TestDisk;
use crate::tls_client::{Authority, over_tls, session, starttls};
use crate::world::{World, eventually, on_both_rings};

const SIZE: u64 = 8 << 20;

fn pattern(bytes: usize, seed: u8) -> Vec<u8> {
    (0..bytes).map(|at| (at / 7) as u8 ^ (at % 251) as u8 ^ seed).collect()
}

fn open(world: &World, config: &Arc<rustls::ClientConfig>) -> Client {
    let wishes = Wishes::default();
    over_tls(&world.socket(), config).agree(wishes).enter("volume", wishes, &["base:allocation"])
}

/// A server that requires TLS, with a volume.
fn world(ring: RingKind, authority: &Authority, verify_peer: bool) -> World {
    let world = World::new(ring);
    world.server.offer_tls(authority.server(verify_peer, true));
    world.export("volume", &TestDisk::new(SIZE));
    world
}

#[test]
fn requests_of_every_size_go_through_tls() {
    on_both_rings(|ring| {
        let authority = Authority::new();
        let world = world(ring, &authority, false);
        let mut client = open(&world, &authority.nameless());
        assert_eq!(client.size, SIZE);
        for (turn, bytes) in
            [1, 511, 4096, 16_384, 16_385, 70_001, 1 << 20, 4 << 20].iter().enumerate()
        {
            let (offset, data) = (turn as u64 * 100, pattern(*bytes, turn as u8));
            assert_eq!(client.write(0, offset, &data), 0);
            assert!(client.read(offset, *bytes as u32) == data, "{bytes} bytes");
        }
        assert_eq!(client.run(command::FLUSH, 0, 0, 0), 0);
        // Many at a time: replies of many records, requests that share records.
        let data = pattern(64 << 10, 9);
        assert_eq!(client.write(0, 0, &data), 0);
        for _ in 0..64 {
            client.send(command::READ, 0, 0, 64 << 10);
        }
        for _ in 0..64 {
            assert!(client.reply(64 << 10).data == data);
        }
        client.send(command::DISC, 0, 0, 0);
        assert!(client.is_closed());
        eventually("the connection has ended", || world.server.connections() == 0);
    });
}

#[test]
fn client_that_sends_half_a_hello_is_closed_by_the_limit() {
    on_both_rings(|ring| {
        let authority = Authority::new();
        let options =
            NbdOptions { handshake_timeout: Duration::from_millis(200), ..NbdOptions::default() };
        let world = World::with_options(ring, options);
        world.server.offer_tls(authority.server(false, true));
        let mut hello = Vec::new();
        session(&authority.nameless()).write_tls(&mut hello).unwrap();
        for sent in [0, 1, 5, hello.len() / 2, hello.len()] {
            let (mut client, began) = (starttls(&world.socket()), Instant::now());
            client.stream.write_all(&hello[..sent]).unwrap();
            eventually("the connection has ended", || world.server.connections() == 0);
            assert!(began.elapsed() >= Duration::from_millis(150), "{sent} bytes were refused");
        }
    });
}

#[test]
fn bytes_that_are_no_tls_close_the_connection_and_no_other() {
    on_both_rings(|ring| {
        let authority = Authority::new();
        let world = world(ring, &authority, false);
        let mut other = open(&world, &authority.nameless());
        for bytes in [&[0; 5][..], b"IHAVEOPT\0\0\0\x03\0\0\0\0", &[0xff; 70_000]] {
            let mut client = starttls(&world.socket());
            // The server may close before all is sent.
            drop(client.stream.write_all(bytes));
            eventually("the connection has ended", || world.server.connections() == 1);
        }
        assert_eq!(other.read(0, 512), [0; 512]);
    });
}

#[test]
fn bytes_behind_the_end_of_a_session_stop_no_reactor() {
    on_both_rings(|ring| {
        let authority = Authority::new();
        let world = world(ring, &authority, false);
        let others: Vec<_> = (0..3).map(|_| open(&world, &authority.nameless())).collect();
        // In the middle of a handshake: a warning that the client ends.
        let mut client = starttls(&world.socket());
        client
            .stream
            .write_all(&[&[0x15, 3, 3, 0, 2, 1, 0][..], &[0x17; 30_000]].concat())
            .unwrap();
        eventually("the connection has ended", || world.server.connections() == others.len());
        // In a negotiation: half a header, the end, and more.
        let (mut client, mut tls) = (starttls(&world.socket()), session(&authority.nameless()));
        tls.complete_io(&mut client.stream).unwrap();
        tls.writer().write_all(b"IHAVE").unwrap();
        tls.send_close_notify();
        let mut bytes = Vec::new();
        while tls.wants_write() {
            tls.write_tls(&mut bytes).unwrap();
        }
        bytes.extend([0x17; 30_000]);
        client.stream.write_all(&bytes).unwrap();
        eventually("the connection has ended", || world.server.connections() == others.len());
        for mut other in others {
            assert_eq!(other.read(0, 512), [0; 512]);
        }
    });
}

#[test]
fn plain_options_behind_starttls_are_not_taken_for_protected_ones() {
    on_both_rings(|ring| {
        let authority = Authority::new();
        let world = world(ring, &authority, false);
        let mut client = Client::over(Client::connect(&world.socket()));
        let option = |number: u32| {
            let mut bytes = b"IHAVEOPT".to_vec();
            bytes.extend(number.to_be_bytes());
            bytes.extend([0; 4]);
            bytes
        };
        let both = [option(option::STARTTLS), option(option::STRUCTURED_REPLY)].concat();
        let began = Instant::now();
        client.stream.write_all(&both).unwrap();
        assert_eq!(client.option_replies()[0].0, option_reply::ACK);
        assert!(client.is_closed());
        assert!(began.elapsed() < Duration::from_secs(5), "not by the limit of negotiations");
        eventually("the connection has ended", || world.server.connections() == 0);
    });
}

#[test]
fn plain_client_is_told_that_tls_is_required() {
    let authority = Authority::new();
    let world = world(RingKind::Auto, &authority, false);
    let mut client = Client::over(Client::connect(&world.socket()));
    for number in [option::LIST, option::GO, option::STRUCTURED_REPLY, 99] {
        client.option(number, &[]);
        assert_eq!(client.option_replies()[0].0, option_error::TLS_REQD, "{number}");
    }
    client.option(option::EXPORT_NAME, b"volume");
    assert!(client.is_closed());
}

#[test]
fn tls_starts_once() {
    let authority = Authority::new();
    let world = world(RingKind::Auto, &authority, false);
    let mut client = over_tls(&world.socket(), &authority.nameless());
    client.option(option::STARTTLS, &[]);
    assert_eq!(client.option_replies()[0].0, option_error::INVALID);
    let mut client = client.enter("volume", Wishes::default(), &["base:allocation"]);
    assert_eq!(client.read(0, 512), [0; 512]);
}

#[test]
fn clients_without_a_certificate_of_the_authority_are_refused_and_others_served() {
    on_both_rings(|ring| {
        let (authority, stranger) = (Authority::new(), Authority::new());
        let world = world(ring, &authority, true);
        let known = authority.named(&authority, "alice", &[]);
        let mut client = open(&world, &known);
        for config in [authority.nameless(), stranger.named(&authority, "alice", &[])] {
            // With TLS 1.3 the client's handshake has ended when it is refused.
            assert!(over_tls(&world.socket(), &config).is_closed());
        }
        eventually("they have ended", || world.server.connections() == 1);
        assert_eq!(client.read(0, 512), [0; 512]);
    });
}

#[test]
fn names_of_a_certificate_open_their_exports_alone() {
    let authority = Authority::new();
    let world = world(RingKind::Auto, &authority, true);
    let export = NbdExport {
        name: "secret".to_owned(),
        description: String::new(),
        disk: TestDisk::new(1 << 20),
        read_only: false,
        throttle: Arc::default(),
    };
    let names = vec!["bob".to_owned(), "vm.example".to_owned()];
    world.server.add_export_for(export, Arc::new(NoContexts), names).unwrap();
    let answer = |common: &str, dns: &[&str]| {
        let config = authority.named(&authority, common, dns);
        let mut client = over_tls(&world.socket(), &config);
        client.option(option::INFO, b"\0\0\0\x06secret\0\0");
        client.option_replies().last().unwrap().0
    };
    assert_eq!(answer("bob", &[]), option_reply::ACK);
    assert_eq!(answer("x", &["other.example", "vm.example"]), option_reply::ACK);
    assert_eq!(answer("bobby", &["VM.example.com"]), option_error::UNKNOWN);
}

#[test]
fn client_over_tls_goes_on_after_a_pause_and_is_closed_when_connections_leave() {
    on_both_rings(|ring| {
        let authority = Authority::new();
        let world = World::new(ring);
        world.server.offer_tls(authority.server(false, false));
        let disk = TestDisk::new(SIZE);
        world.export("volume", &disk);
        let mut secured = open(&world, &authority.nameless());
        let _plain = Client::open(&world.socket(), "volume", Wishes::default());
        let pause = || {
            let server = world.server.clone();
            let patience = Duration::from_secs(30);
            world.reactors.block_on(ReactorId(1), move |env| async move {
                server.pause(&env, patience).await
            })
        };
        // Within a write, whose payload is in pieces of records.
        let data = pattern(300_000, 3);
        let bytes = secured.write_bytes(0, 512, &data);
        secured.stream.write_all(&bytes[..100_000]).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        pause().unwrap();
        world.server.resume();
        secured.stream.write_all(&bytes[100_000..]).unwrap();
        assert_eq!(secured.reply(0).error, 0);
        assert!(secured.read(512, 300_000) == data);
        pause().unwrap();
        let server = world.server.clone();
        let estate = world.reactors.block_on(ReactorId(1), move |env| async move {
            server.part(&env, Duration::from_secs(30)).await
        });
        assert_eq!(estate.connections.len(), 1, "the one without TLS");
        assert!(secured.is_closed());
    });
}

#[test]
fn plain_connection_of_an_earlier_server_is_closed_by_one_that_requires_tls() {
    let authority = Authority::new();
    let world = World::new(RingKind::Auto);
    let disk = TestDisk::new(1 << 20);
    world.export("volume", &disk);
    let (heir, _) = world.serve_again("volume", &disk);
    heir.offer_tls(authority.server(false, true));
    let mut client = Client::open(&world.socket(), "volume", Wishes::default());
    let server = world.server.clone();
    let estate = world.reactors.block_on(ReactorId(1), move |env| async move {
        server.pause(&env, Duration::from_secs(30)).await.unwrap();
        server.part(&env, Duration::from_secs(30)).await
    });
    for (parted, socket) in estate.connections {
        heir.take_over(parted, socket.try_clone().unwrap());
    }
    assert!(client.is_closed());
}
