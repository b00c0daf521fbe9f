//! Exports with limits: what waits, what does not, and what ends a wait.

use std::io::Write;
use std::net::TcpStream;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_block::{Rate, Rates, ReactorId, Throttle, ThrottleLimits};
use cairn_exports::nbd::ListenAddress;
use cairn_exports::nbd::wire::command;
use cairn_reactor::RingKind;
use cairn_testkit::nbd::{Client, Wishes};

use crate::disk::TestDisk;
use crate::handover::{part, pause, take_over};
use crate::world::{World, eventually, on_both_rings};

/// So long that only what waits for a throttled request reaches it.
const LONG: Duration = Duration::from_secs(60);

fn rate(per_second: u64) -> Rates {
    let per_second = NonZeroU64::new(per_second).unwrap();
    Rates { total: Some(Rate { per_second, burst: None }), ..Rates::default() }
}

fn operations(per_second: u64) -> Arc<Throttle> {
    let iops = rate(per_second);
    Arc::new(Throttle::new(&ThrottleLimits { iops, ..ThrottleLimits::default() }))
}

/// What lets one request with data pass in the time of a test.
fn one() -> Arc<Throttle> {
    let bytes = rate(1);
    Arc::new(Throttle::new(&ThrottleLimits { bytes, ..ThrottleLimits::default() }))
}

fn open(world: &World) -> Client {
    Client::open(&world.socket(), "volume", Wishes::default())
}

/// A client whose second request waits, for longer than the test takes.
fn throttled(world: &World, disk: &Arc<TestDisk>, throttle: &Arc<Throttle>) -> Client {
    world.export_slowly("volume", disk, throttle);
    let mut client = open(world);
    assert_eq!(client.write(0, 0, &[1; 4096]), 0);
    client.send_write(0, 4096, &[2; 4096]);
    eventually("the second write waits", || throttle.waiters() == 1);
    client
}

#[test]
fn connections_of_an_export_share_its_limit() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let (disk, throttle) = (TestDisk::new(1 << 20), operations(100));
        world.export_slowly("volume", &disk, &throttle);
        let began = Instant::now();
        let mut clients = [open(&world), open(&world), open(&world)];
        for client in &mut clients {
            for _ in 0..20 {
                client.send(command::READ, 0, 0, 512);
            }
        }
        for client in &mut clients {
            for _ in 0..20 {
                client.reply(512);
            }
        }
        // 11 pass at once.
        assert!(began.elapsed() >= Duration::from_millis(490), "{:?}", began.elapsed());
        let waited = throttle.waited();
        assert!(waited.count > 0 && waited.time >= Duration::from_millis(490), "{waited:?}");
        assert_eq!(throttle.waiters(), 0);
    });
}

#[test]
fn requests_without_data_and_other_exports_wait_for_nothing() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let (disk, throttle) = (TestDisk::new(1 << 20), one());
        let _waiting = throttled(&world, &disk, &throttle);
        world.export("other", &disk);
        let mut client = open(&world);
        assert_eq!(client.run(command::FLUSH, 0, 0, 0), 0);
        assert_eq!(client.run(command::CACHE, 0, 0, 512), 0);
        let mut other = Client::open(&world.socket(), "other", Wishes::default());
        assert_eq!(other.read(0, 4096), [1; 4096]);
        assert_eq!(throttle.waiters(), 1);
    });
}

#[test]
fn request_that_waits_holds_no_memory_and_none_of_its_payload_is_taken() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let (disk, throttle) = (TestDisk::new(8 << 20), one());
        let mut client = throttled(&world, &disk, &throttle);
        let mut sender = client.stream.try_clone().unwrap();
        let more = client.write_bytes(0, 0, &vec![3; 4 << 20]);
        let sending = std::thread::spawn(move || sender.write_all(&more));
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(world.server.memory_held(), 0);
        assert!(!sending.is_finished(), "the client's bytes stay in its socket");
        assert_eq!(disk.log().len(), 1);
        throttle.set(&ThrottleLimits::default());
        assert_eq!((client.reply(0).error, client.reply(0).error), (0, 0));
        sending.join().unwrap().unwrap();
        assert_eq!(disk.bytes(0, 4096), [3; 4096]);
    });
}

#[test]
fn export_is_removed_while_a_request_waits() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let (disk, throttle) = (TestDisk::new(1 << 20), one());
        let mut client = throttled(&world, &disk, &throttle);
        let began = Instant::now();
        assert_eq!(world.remove("volume", LONG), 0);
        assert!(began.elapsed() < LONG, "it did not wait");
        assert!(client.is_closed());
        assert_eq!((disk.log().len(), throttle.waiters()), (1, 0));
    });
}

#[test]
fn server_stops_while_a_request_waits() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let (disk, throttle) = (TestDisk::new(1 << 20), one());
        let _client = throttled(&world, &disk, &throttle);
        let began = Instant::now();
        assert_eq!(world.stop(LONG), 0);
        assert!(began.elapsed() < LONG, "it did not wait");
    });
}

#[test]
fn client_that_leaves_while_its_request_waits_is_gone() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let (disk, throttle) = (TestDisk::new(1 << 20), one());
        let client = throttled(&world, &disk, &throttle);
        drop(client);
        eventually("the connection has ended", || world.server.connections() == 0);
        assert_eq!((disk.log().len(), throttle.waiters()), (1, 0));
    });
}

/// A connection over TCP.
fn open_tcp(world: &World) -> Client {
    let any = ListenAddress::Tcp("127.0.0.1:0".parse().unwrap());
    let ListenAddress::Tcp(address) = world.server.listen(&any).unwrap() else { panic!("a port") };
    let stream = OwnedFd::from(TcpStream::connect(address).unwrap());
    let stream = Client::greet(UnixStream::from(stream));
    Client::over(stream).agree(Wishes::default()).enter("volume", Wishes::default(), &[])
}

#[test]
fn client_over_tcp_that_leaves_while_its_request_waits_is_gone() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let (disk, throttle) = (TestDisk::new(1 << 20), one());
        world.export_slowly("volume", &disk, &throttle);
        let mut client = open_tcp(&world);
        assert_eq!(client.write(0, 0, &[1; 4096]), 0);
        client.send_write(0, 4096, &[2; 4096]);
        client.send_write(0, 8192, &[3; 4096]);
        eventually("the second write waits", || throttle.waiters() == 1);
        drop(client);
        eventually("the connection has ended", || world.server.connections() == 0);
        assert_eq!((disk.log().len(), throttle.waiters()), (1, 0));
    });
}

#[test]
fn client_that_ends_its_sending_is_answered_what_had_begun() {
    for opens in [open, open_tcp] {
        on_both_rings(|ring| {
            let world = World::new(ring);
            let (disk, throttle) = (TestDisk::new(1 << 20), one());
            world.export_slowly("volume", &disk, &throttle);
            disk.hold(0);
            let mut client = opens(&world);
            let first = client.send_write(0, 0, &[1; 4096]);
            client.send_write(0, 4096, &[2; 4096]);
            eventually("the second write waits", || throttle.waiters() == 1);
            client.stream.shutdown(std::net::Shutdown::Write).unwrap();
            eventually("it waits no more", || throttle.waiters() == 0);
            disk.release(0);
            let reply = client.reply(0);
            assert_eq!((reply.error, reply.cookie), (0, first));
            assert!(client.is_closed());
            assert_eq!(disk.log().len(), 1);
        });
    }
}

#[test]
fn request_that_waits_goes_on_in_another_server() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let (disk, throttle) = (TestDisk::new(1 << 20), one());
        let mut client = throttled(&world, &disk, &throttle);
        client.send_write(0, 8192, &[3; 512]);
        pause(&world, LONG).unwrap();
        let estate = part(&world);
        assert_eq!((estate.connections.len(), disk.log().len()), (1, 1));
        let (server, _socket) = world.serve_again("volume", &disk);
        take_over(&server, estate);
        assert_eq!((client.reply(0).error, client.reply(0).error), (0, 0));
        assert_eq!(disk.bytes(4096, 4096), [2; 4096]);
        assert_eq!(disk.bytes(8192, 512), [3; 512]);
        assert_eq!(disk.log().len(), 3, "each is carried out once");
    });
}

#[test]
fn request_that_waits_is_carried_out_once_after_a_pause() {
    let world = World::new(RingKind::Auto);
    let (disk, throttle) = (TestDisk::new(1 << 20), one());
    let mut client = throttled(&world, &disk, &throttle);
    pause(&world, LONG).unwrap();
    assert_eq!(throttle.waiters(), 0);
    world.server.resume();
    eventually("it waits again", || throttle.waiters() == 1);
    throttle.set(&ThrottleLimits::default());
    assert_eq!(client.reply(0).error, 0);
    assert_eq!(disk.log().len(), 2);
}

#[test]
fn requests_that_run_are_answered_while_a_later_one_waits() {
    let world = World::new(RingKind::Auto);
    let (disk, throttle) = (TestDisk::new(1 << 20), one());
    world.export_slowly("volume", &disk, &throttle);
    disk.hold(0);
    let mut client = open(&world);
    let first = client.send_write(0, 0, &[1; 512]);
    client.send_write(0, 512, &[2; 512]);
    eventually("the second one waits", || throttle.waiters() == 1);
    disk.release(0);
    assert_eq!(client.reply(0).cookie, first);
    for reactor in (0..world.reactors.post().reactors()).map(ReactorId) {
        let in_use = world.reactors.block_on(reactor, |env| async move { env.requests_in_use() });
        assert_eq!(in_use, 0, "what waits has no request");
    }
}
