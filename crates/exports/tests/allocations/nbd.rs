//! Requests of an NBD client, on the server's thread.

use std::io::{Read, Write};
use std::num::NonZeroU64;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use cairn_backends::MemoryDisk;
use cairn_block::{Rate, Rates, ReactorId, SectorCount, Throttle, ThrottleLimits};
use cairn_exports::nbd::{ListenAddress, NbdExport, NbdOptions, NbdServer};
use cairn_reactor::{Options, Reactors, RingKind};

use crate::counting;

const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;

/// A client that asks for the default export by `EXPORT_NAME`, the shortest negotiation.
fn connect(path: &std::path::Path) -> UnixStream {
    let mut socket = UnixStream::connect(path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut greeting = [0; 18];
    socket.read_exact(&mut greeting).unwrap();
    socket.write_all(&3u32.to_be_bytes()).unwrap();
    socket.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
    let mut facts = [0; 10];
    socket.read_exact(&mut facts).unwrap();
    socket
}

fn request(command: u16, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(0x2560_9513u32.to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(command.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    if command == WRITE {
        bytes.resize(bytes.len() + length as usize, 7);
    }
    bytes
}

/// One round: many small requests at once, then large ones.
fn round(socket: &mut UnixStream) {
    let mut batch = Vec::new();
    let mut answer_bytes = 0;
    for number in 0..16 {
        batch.extend(request(WRITE, number << 12, 4096));
        batch.extend(request(READ, number << 12, 4096));
        answer_bytes += 16 + 16 + 4096;
    }
    batch.extend(request(FLUSH, 0, 0));
    answer_bytes += 16;
    exchange(socket, &batch, answer_bytes);
    for length in [128 << 10, 512 << 10, 2 << 20, 8 << 20] {
        exchange(socket, &request(WRITE, 1 << 20, length), 16);
        exchange(socket, &request(READ, 1 << 20, length), 16 + length as usize);
    }
}

fn exchange(socket: &mut UnixStream, request: &[u8], answer_bytes: usize) {
    socket.write_all(request).unwrap();
    let mut answer = vec![0; answer_bytes];
    socket.read_exact(&mut answer).unwrap();
    assert_eq!(answer[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0]);
}

#[test]
fn requests_of_a_client_take_no_memory_on_the_servers_thread() {
    serve_rounds(RingKind::Auto, &ThrottleLimits::default());
    serve_rounds(RingKind::Threads, &ThrottleLimits::default());
}

#[test]
fn requests_that_pass_a_limit_at_once_take_no_memory_either() {
    let per_second = NonZeroU64::new(1_000_000_000_000).unwrap();
    let rates = Rates { total: Some(Rate { per_second, burst: None }), ..Rates::default() };
    let limits = ThrottleLimits { iops: rates, bytes: rates, iops_size: NonZeroU64::new(512) };
    serve_rounds(RingKind::Auto, &limits);
}

fn serve_rounds(ring: RingKind, limits: &ThrottleLimits) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nbd");
    let reactors = Reactors::start(Options { count: 1, ring }).unwrap();
    let server = NbdServer::new(reactors.post(), NbdOptions::default());
    let disk = Arc::new(MemoryDisk::new(SectorCount::of_bytes(16 << 20)).unwrap());
    let (name, description) = ("v".to_owned(), String::new());
    let throttle = Arc::new(Throttle::new(limits));
    let export = NbdExport { name, description, disk, read_only: false, throttle };
    server.add_export(export).unwrap();
    server.listen(&ListenAddress::Unix(path.clone())).unwrap();
    let mut socket = connect(&path);
    (0..50).for_each(|_| round(&mut socket));
    reactors.block_on(ReactorId(0), |_env| async { counting::follow() });
    // The allocations of the call itself are over when the next round has been answered.
    round(&mut socket);
    let before = counting::total();
    (0..200).for_each(|_| round(&mut socket));
    let taken = counting::total() - before;
    // A batch longer than all before it may still make a list grow.
    assert!(taken <= 20, "{}: {taken} in 200 rounds of 41 requests", reactors.ring_name());
    drop(socket);
    reactors.block_on(ReactorId(0), move |env| async move {
        server.stop(&env, Duration::from_secs(1)).await;
    });
}
