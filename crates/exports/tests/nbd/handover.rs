//! Connections that wait in a pause, and those that go on in another server.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::ReactorId;
use cairn_exports::nbd::wire::{CommandFlags, REQUEST_MAGIC, command};
use cairn_exports::nbd::{Estate, NbdServer, Parted};
use cairn_reactor::RingKind;
use cairn_testkit::nbd::{Client, Wishes};

use crate::disk::TestDisk;
use crate::world::{World, eventually, on_both_rings};

const EIO: u32 = 5;
const PATIENCE: Duration = Duration::from_secs(30);
const EXTENDED: Wishes =
    Wishes { structured: false, extended: true, block_sizes: false, allocation: false };

pub fn pause(world: &World, patience: Duration) -> Result<(), usize> {
    let server = world.server.clone();
    world
        .reactors
        .block_on(ReactorId(1), move |env| async move { server.pause(&env, patience).await })
}

pub fn part(world: &World) -> Estate {
    let server = world.server.clone();
    world
        .reactors
        .block_on(ReactorId(1), move |env| async move { server.part(&env, PATIENCE).await })
}

fn socket(it: Arc<OwnedFd>) -> OwnedFd {
    it.try_clone().unwrap()
}

/// Has a server go on with all that another one left.
pub fn take_over(server: &NbdServer, estate: Estate) {
    for listening in estate.listeners {
        server.listen_on(listening).unwrap();
    }
    for (parted, connected) in estate.connections {
        server.take_over(parted, socket(connected));
    }
}

/// A world in which a server has an export of this disk, and no socket of its own in use.
fn heir(world: &World, disk: &Arc<TestDisk>) -> NbdServer {
    let (server, _) = world.serve_again("volume", disk);
    server
}

/// A write of this data, as bytes.
fn write(cookie: u64, offset: u64, data: &[u8]) -> Vec<u8> {
    let mut bytes = REQUEST_MAGIC.to_be_bytes().to_vec();
    bytes.extend(0_u16.to_be_bytes());
    bytes.extend(command::WRITE.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

#[test]
fn connection_goes_on_in_another_server_from_any_byte_of_its_requests() {
    on_both_rings(|ring| goes_on_from_any_byte(ring, 28, Wishes::default()));
}

#[test]
fn extended_connection_goes_on_in_another_server_from_any_byte_of_its_requests() {
    on_both_rings(|ring| goes_on_from_any_byte(ring, 32, EXTENDED));
}

/// Writes of a client whose headers have so many bytes, cut anywhere.
fn goes_on_from_any_byte(ring: RingKind, header: usize, wishes: Wishes) {
    const LARGE: usize = 300 << 10;
    let data: Vec<u8> = (0..LARGE).map(|at| (at / 512) as u8 ^ at as u8).collect();
    let large = header + 4096;
    let last = large + header + LARGE + header + 512;
    let body = large + header;
    let cuts = [1, header - 1, header, header + 1, header + 512, large - 1, large, body + 1];
    let late = [body + 70_000, body + LARGE - 1, last - 513, last - 1, last];
    for cut in cuts.into_iter().chain(late) {
        let world = World::new(ring);
        let disk = TestDisk::new(1 << 20);
        world.export("volume", &disk);
        let mut client = Client::open(&world.socket(), "volume", wishes);
        let mut stream = client.write_bytes(0, 0, &data[..4096]);
        stream.extend(client.write_bytes(0, 8192, &data));
        stream.extend(client.write_bytes(0, 4096, &data[..512]));
        assert_eq!(stream.len(), last);
        client.stream.write_all(&stream[..cut]).unwrap();
        // Some cuts come before the server has received all of it, and some after.
        std::thread::sleep(Duration::from_millis(u64::from(cut % 2 == 0) * 5));
        pause(&world, PATIENCE).unwrap();
        let estate = part(&world);
        assert_eq!(estate.connections.len(), 1, "cut at {cut}");
        let server = heir(&world, &disk);
        take_over(&server, estate);
        client.stream.write_all(&stream[cut..]).unwrap();
        let mut cookies = [0; 3].map(|_| client.reply(0).cookie);
        cookies.sort_unstable();
        assert_eq!(cookies, [1, 2, 3], "cut at {cut}");
        assert_eq!(client.read(0, 4096), data[..4096]);
        assert_eq!(client.read(4096, 512), data[..512]);
        assert_eq!(client.read(8192, LARGE as u32), data, "cut at {cut}");
        assert_eq!(server.users("volume"), 1);
        // The socket listens again, too.
        let mut other = Client::open(&world.socket(), "volume", Wishes::default());
        assert_eq!(other.read(4096, 512), data[..512]);
    }
}

#[test]
fn connection_goes_on_in_another_server_within_the_payload_of_a_refused_write() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let disk = TestDisk::new(1 << 20);
        world.export("volume", &disk);
        let mut client = Client::open(&world.socket(), "volume", Wishes::default());
        let beyond = write(1, 2 << 20, &[7; 8192]);
        client.stream.write_all(&beyond[..5000]).unwrap();
        assert_ne!(client.reply(0).error, 0, "it is refused before its data is there");
        pause(&world, PATIENCE).unwrap();
        let estate = part(&world);
        let server = heir(&world, &disk);
        take_over(&server, estate);
        client.stream.write_all(&beyond[5000..]).unwrap();
        assert_eq!(client.write(0, 512, &[9; 512]), 0);
        assert_eq!(client.read(512, 512), [9; 512]);
    });
}

#[test]
fn what_was_negotiated_holds_in_the_other_server() {
    on_both_rings(|ring| {
        for (structured, extended) in [(true, false), (false, true)] {
            let world = World::new(ring);
            let disk = TestDisk::new(1 << 20);
            world.export("volume", &disk);
            let wishes = Wishes { structured, extended, allocation: true, ..Wishes::default() };
            let mut client = Client::open(&world.socket(), "volume", wishes);
            pause(&world, PATIENCE).unwrap();
            let estate = part(&world);
            let server = heir(&world, &disk);
            take_over(&server, estate);
            client.send(command::BLOCK_STATUS, 0, 0, 4096);
            let reply = client.reply(0);
            assert_eq!((reply.error, reply.extents.len()), (0, 1));
        }
    });
}

#[test]
fn record_without_extended_headers_is_of_a_connection_without_them() {
    let mut record = serde_json::to_value(Parted::default()).unwrap();
    assert_ne!(record.as_object_mut().unwrap().remove("extended_headers"), None);
    assert_eq!(serde_json::from_value::<Parted>(record).unwrap(), Parted::default());
}

#[test]
fn loss_that_a_client_was_not_told_of_is_told_by_the_other_server_once() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let disk = TestDisk::new(1 << 20);
        world.export("volume", &disk);
        let open = || Client::open(&world.socket(), "volume", Wishes::default());
        let [mut told, mut untold] = [open(), open()];
        // The server knows what a client was told from its first request on.
        for client in [&mut told, &mut untold] {
            assert_eq!(client.write(0, 0, &[1; 512]), 0);
        }
        disk.shared.failures.raise();
        assert_eq!(told.run(command::FLUSH, 0, 0, 0), EIO);
        pause(&world, PATIENCE).unwrap();
        let estate = part(&world);
        // The counts of another process begin anew.
        let again = TestDisk::new(1 << 20);
        let server = heir(&world, &again);
        take_over(&server, estate);
        let flushes = |client: &mut Client| [0; 2].map(|_| client.run(command::FLUSH, 0, 0, 0));
        assert_eq!(flushes(&mut told), [0, 0]);
        assert_eq!(flushes(&mut untold), [EIO, 0]);
    });
}

#[test]
fn pause_ends_without_a_trace() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let disk = TestDisk::new(1 << 20);
        world.export("volume", &disk);
        let mut client = Client::open(&world.socket(), "volume", Wishes::default());
        let bytes = write(1, 0, &[5; 70_000 / 512 * 512]);
        for (written, cut) in [28, 40_000].into_iter().enumerate() {
            client.stream.write_all(&bytes[..cut]).unwrap();
            pause(&world, PATIENCE).unwrap();
            client.stream.write_all(&bytes[cut..]).unwrap();
            std::thread::sleep(Duration::from_millis(10));
            assert_eq!(disk.log().len(), written, "nothing is taken during a pause");
            world.server.resume();
            assert_eq!((client.reply(0).error, disk.log().len()), (0, written + 1));
        }
    });
}

#[test]
fn pause_is_called_off_if_a_request_does_not_end() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let disk = TestDisk::new(1 << 20);
        world.export("volume", &disk);
        let mut client = Client::open(&world.socket(), "volume", Wishes::default());
        let mut other = Client::open(&world.socket(), "volume", Wishes::default());
        disk.hold(0);
        client.send_write(0, 0, &[1; 512]);
        eventually("the write is under way", || disk.in_flight() == 1);
        assert_eq!(pause(&world, Duration::from_millis(20)), Err(1));
        assert_eq!(other.write(CommandFlags::FUA.bits(), 512, &[2; 512]), 0, "all go on");
        disk.release(0);
        assert_eq!(client.reply(0).error, 0);
        assert_eq!(client.write(0, 0, &[3; 512]), 0);
        pause(&world, PATIENCE).unwrap();
    });
}

#[test]
fn new_client_waits_for_the_end_of_a_pause() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let disk = TestDisk::new(1 << 20);
        world.export("volume", &disk);
        pause(&world, PATIENCE).unwrap();
        let path = world.socket();
        let client = std::thread::spawn(move || {
            Client::open(&path, "volume", Wishes::default()).write(0, 0, &[1; 512])
        });
        std::thread::sleep(Duration::from_millis(10));
        assert_eq!(world.server.connections(), 0, "it is not accepted");
        let estate = part(&world);
        let server = heir(&world, &disk);
        take_over(&server, estate);
        assert_eq!(client.join().unwrap(), 0);
    });
}

#[test]
fn connection_whose_export_is_not_there_is_closed() {
    let world = World::new(cairn_reactor::RingKind::Auto);
    let disk = TestDisk::new(1 << 20);
    world.export("other", &disk);
    let mut client = Client::open(&world.socket(), "other", Wishes::default());
    pause(&world, PATIENCE).unwrap();
    let estate = part(&world);
    let server = heir(&world, &disk);
    take_over(&server, estate);
    assert!(client.is_closed());
}
