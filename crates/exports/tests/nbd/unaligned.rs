//! Clients that were not told block sizes: any range, from several connections at once, to one
//! server or to several.

use std::path::Path;
use std::sync::Arc;

use cairn_block::{Flags, Op, StreamId};
use cairn_exports::nbd::wire::{CommandFlags, command};

use crate::disk::TestDisk;
use crate::world::{World, eventually, on_both_rings};
use cairn_testkit::nbd::{Client, Wishes};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 16;

/// A small generator with a fixed seed, so that a failure repeats.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % bound
    }
}

/// Writes and zeroes inside its own stripe of each block, with many requests in flight, and checks
/// its own data with reads. Returns what its stripes must hold.
fn scribble(socket: &Path, part: u64, parts: u64) -> Vec<u8> {
    let mut client = Client::open(socket, "volume", Wishes::default());
    let mut random = Random(part + 1);
    let mut model = vec![0; (BLOCK * BLOCKS) as usize];
    let stripe = BLOCK / parts;
    for round in 0..60 {
        let mut sent = Vec::new();
        for block in 0..BLOCKS {
            let from = random.below(stripe - 1);
            let len = 1 + random.below(stripe - from);
            let at = block * BLOCK + part * stripe + from;
            let range = at as usize..(at + len) as usize;
            if random.below(4) == 0 {
                model[range].fill(0);
                sent.push(client.send(command::WRITE_ZEROES, 0, at, len as u32));
            } else {
                let byte = (1 + round + part) as u8;
                model[range].fill(byte);
                sent.push(client.send_write(0, at, &vec![byte; len as usize]));
            }
        }
        for _ in 0..sent.len() {
            let reply = client.reply(0);
            assert_eq!(reply.error, 0);
            sent.retain(|cookie| *cookie != reply.cookie);
        }
        assert!(sent.is_empty());
        let (at, len) = (random.below(BLOCKS) * BLOCK + part * stripe, stripe);
        assert_eq!(client.read(at, len as u32), model[at as usize..(at + len) as usize]);
    }
    model
}

#[test]
fn clients_of_two_servers_writing_parts_of_one_block_keep_each_others_bytes() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let disk = TestDisk::with_block(BLOCK * BLOCKS, BLOCK as u32);
        world.export("volume", &disk);
        let (_second, other_socket) = world.serve_again("volume", &disk);
        let sockets = [world.socket(), other_socket];
        let parts = 3;
        let models: Vec<Vec<u8>> = std::thread::scope(|scope| {
            let start = |part| {
                let socket = &sockets[part as usize % sockets.len()];
                scope.spawn(move || scribble(socket, part, parts))
            };
            let threads: Vec<_> = (0..parts).map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let stripe = (BLOCK / parts) as usize;
        let found = disk.bytes(0, (BLOCK * BLOCKS) as usize);
        for (part, model) in models.iter().enumerate() {
            for block in 0..BLOCKS as usize {
                let at = block * BLOCK as usize + part * stripe;
                assert!(found[at..at + stripe] == model[at..at + stripe], "{part} in {block}");
            }
        }
    });
}

/// The other client writes whole blocks; each of its blocks must end in one of the two allowed
/// states.
#[test]
fn concurrent_read_modify_write_never_undoes_a_whole_block_write() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let disk = TestDisk::with_block(BLOCK * BLOCKS, BLOCK as u32);
        world.export("volume", &disk);
        let mut unaligned = Client::open(&world.socket(), "volume", Wishes::default());
        let mut whole = Client::open(&world.socket(), "volume", Wishes::default());
        for round in 1..200u8 {
            let at = u64::from(round) % BLOCKS * BLOCK;
            // Two in flight at once: the first byte by one client, the block by the other.
            unaligned.send_write(0, at, &[0xff]);
            whole.send_write(0, at, &[round; BLOCK as usize]);
            assert_eq!((unaligned.reply(0).error, whole.reply(0).error), (0, 0));
            let found = disk.bytes(at, BLOCK as usize);
            assert!(found[1..].iter().all(|byte| *byte == round), "round {round}");
            assert!(found[0] == round || found[0] == 0xff, "round {round}");
        }
    });
}

#[test]
fn read_modify_write_waits_for_whole_block_writes_in_flight_on_every_server() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let disk = TestDisk::with_block(BLOCK * BLOCKS, BLOCK as u32);
        world.export("volume", &disk);
        let (_second, socket) = world.serve_again("volume", &disk);
        waits_for_writes_in_flight(&disk, &world.socket(), &world.socket());
        waits_for_writes_in_flight(&disk, &world.socket(), &socket);
    });
}

fn waits_for_writes_in_flight(disk: &TestDisk, whole: &Path, unaligned: &Path) {
    let mut whole = Client::open(whole, "volume", Wishes::default());
    let mut unaligned = Client::open(unaligned, "volume", Wishes::default());
    let seen_before = disk.log().len();
    disk.hold(0);
    whole.send_write(0, 0, &[1; BLOCK as usize]);
    eventually("the write is in flight", || disk.in_flight() == 1);
    unaligned.send_write(0, 0, &[2]);
    // When this read is answered, the write before it has progressed as far as it can.
    unaligned.send(command::READ, 0, BLOCK, BLOCK as u32);
    assert_eq!(unaligned.reply(BLOCK as usize).data.len(), BLOCK as usize);
    assert_eq!(disk.log().len(), seen_before + 2, "{:?}", disk.log());
    disk.release(0);
    assert_eq!((whole.reply(0).error, unaligned.reply(0).error), (0, 0));
    assert_eq!(disk.bytes(0, 3), [2, 1, 1]);
}

#[test]
fn any_range_reads_and_writes_like_a_file_and_keeps_its_flags() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let disk: Arc<TestDisk> = TestDisk::with_block(BLOCK * BLOCKS, BLOCK as u32);
        world.export("volume", &disk);
        let wishes = Wishes { structured: true, ..Wishes::default() };
        let mut client = Client::open(&world.socket(), "volume", wishes);
        let data: Vec<u8> = (0..20_000u32).map(|at| (at % 251) as u8).collect();
        let fua = CommandFlags::FUA.bits();
        assert_eq!(client.write(fua, 3, &data), 0);
        let written = disk.log().into_iter().find(|seen| seen.op == Op::Write).unwrap();
        assert_eq!(written.flags, Flags::FUA);
        let mut model = vec![0; (BLOCK * BLOCKS) as usize];
        model[3..20_003].copy_from_slice(&data);
        for (from, len) in [(0, 1), (3, 1), (1, 4096), (4095, 4098), (8192, 4096), (19_999, 100)] {
            assert_eq!(client.read(from, len), model[from as usize..from as usize + len as usize]);
        }
        assert_eq!(client.run(command::WRITE_ZEROES, fua, 4000, 5000), 0);
        model[4000..9000].fill(0);
        assert_eq!(client.run(command::TRIM, fua, 100, 4000), 0, "no whole block inside");
        assert_eq!(disk.bytes(0, model.len()), model);
        assert_eq!(client.run(command::TRIM, fua, 8191, 4098), 0);
        let trimmed = disk.log().into_iter().rev().take(2).map(|seen| seen.op);
        assert_eq!(trimmed.collect::<Vec<_>>(), [Op::Flush, Op::Discard]);
        model[8192..12288].fill(0);
        assert_eq!(disk.bytes(0, model.len()), model);
    });
}

#[test]
fn all_requests_of_a_connection_are_one_stream_and_no_other_connection_has_it() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let disk = TestDisk::with_block(BLOCK * BLOCKS, BLOCK as u32);
        world.export("volume", &disk);
        let (_second, socket) = world.serve_again("volume", &disk);
        let mut streams = Vec::new();
        for socket in [world.socket(), world.socket(), socket] {
            let mut client = Client::open(&socket, "volume", Wishes::default());
            assert_eq!(client.write(0, 0, &[1; BLOCK as usize]), 0);
            assert_eq!(client.write(0, 1, &[2; 1]), 0, "its parts too");
            client.read(0, BLOCK as u32);
            assert_eq!(client.run(command::FLUSH, 0, 0, 0), 0);
            let seen = disk.take_streams();
            assert_eq!(seen, vec![seen[0]; 6]);
            assert_ne!(seen[0], StreamId::default());
            streams.push(seen[0].0);
        }
        streams.dedup();
        assert_eq!(streams.len(), 3);
    });
}
