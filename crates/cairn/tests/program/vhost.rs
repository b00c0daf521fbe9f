//! A server of a virtual machine's disk is killed while requests are in flight; the next server
//! goes on with them.

use std::collections::BTreeMap;
use std::path::Path;

use cairn_testkit::vhost::{DATA, Driver, EVENT_IDX, FLUSH, OUT, PACKED, Piece, RINGS};

use super::place::{Place, Server, until};

/// Requests of a ring that are in flight at a time: as many as have four descriptors each.
const SLOTS: u16 = 4;

const BLOCK: u32 = 4096;

/// Where the data of a slot is.
fn data(ring: usize, slot: u16) -> u64 {
    DATA + (ring as u64 * u64::from(SLOTS) + u64::from(slot)) * u64::from(BLOCK)
}

/// What is written, in order: each write has its number in it.
pub struct Writer {
    pub driver: Driver,
    /// How many chains of each ring were seen as used.
    seen: [u16; RINGS as usize],
    next: u64,
    /// The number of the write in flight, by ring and slot.
    in_flight: BTreeMap<(usize, u16), (u64, u64)>,
    /// The number of the last write of each block that has ended.
    written: BTreeMap<u64, u64>,
}

impl Writer {
    /// One whose driver, which accepts further features, has started all of its rings; with memory
    /// for what is in flight, or without it.
    pub fn start(socket: &Path, features: u64, is_tracked: bool) -> Writer {
        let mut driver = connect(socket);
        driver.negotiate(FLUSH | features);
        driver.share_all();
        if is_tracked {
            driver.track();
        }
        let begin = driver.begin();
        (0..RINGS.into()).for_each(|ring| driver.start_ring(ring, begin));
        let (seen, in_flight, written) = Default::default();
        Writer { driver, seen, next: 0, in_flight, written }
    }

    /// Takes what has ended, and fills every free slot, until `count` writes have ended.
    pub fn write(&mut self, count: usize) {
        let mut ended = 0;
        until(|| {
            ended += self.take_ended();
            self.fill();
            (ended >= count).then_some(())
        });
    }

    /// Takes what ends, and fills every free slot once. Answers how many writes have ended.
    pub fn turn(&mut self) -> usize {
        let ended = self.take_ended();
        self.fill();
        ended
    }

    /// Waits until all writes have ended.
    pub fn finish(&mut self) {
        while !self.in_flight.is_empty() {
            until(|| (self.take_ended() > 0).then_some(()));
        }
    }

    /// Checks that a disk has what was written last. Answers how many blocks were.
    pub fn check(&self, disk: &[u8]) -> usize {
        for (block, number) in &self.written {
            let at = *block as usize * BLOCK as usize;
            let expected = number.to_le_bytes().repeat(BLOCK as usize / 8);
            assert!(disk[at..at + BLOCK as usize] == expected, "block {block}, write {number}");
        }
        self.written.len()
    }

    fn take_ended(&mut self) -> usize {
        let mut ended = 0;
        for ring in 0..usize::from(RINGS) {
            // The status byte of a request means nothing before its chain is used.
            while self.driver.used(ring) != self.seen[ring] {
                let (head, _) = self.driver.used_element(ring, self.seen[ring]);
                self.seen[ring] = self.seen[ring].wrapping_add(1);
                let slot = head as u16 / 4;
                let (block, number) = self.in_flight.remove(&(ring, slot)).expect("used once");
                assert_eq!(self.driver.status(ring, slot), 0);
                self.written.insert(block, number);
                ended += 1;
            }
        }
        ended
    }

    fn fill(&mut self) {
        for ring in 0..usize::from(RINGS) {
            for slot in 0..SLOTS {
                // No two writes of one block are in flight.
                let block = self.next * 7 % 1024;
                let is_busy = self.in_flight.values().any(|(other, _)| *other == block);
                if self.in_flight.contains_key(&(ring, slot)) || is_busy {
                    continue;
                }
                let at = data(ring, slot);
                self.driver.put(at, &self.next.to_le_bytes().repeat(BLOCK as usize / 8));
                let piece = [Piece(at, BLOCK, false)];
                self.driver.submit(ring, slot, OUT, block * u64::from(BLOCK) / 512, &piece);
                self.in_flight.insert((ring, slot), (block, self.next));
                self.next += 1;
            }
        }
    }
}

fn serve(place: &Place) -> Server {
    let socket = place.path("vm.sock");
    let export = format!("vhost-user-blk:{},num-queues={RINGS}", socket.display());
    let table = "0 8192 writecache s slow fast 4096 4 autocommit_blocks 1000000 autocommit_time \
                 3600000";
    place.serve(&["--table", table, "--export", &export])
}

pub fn connect(path: &Path) -> Driver {
    until(|| path.exists().then(|| Driver::connect(path)))
}

#[test]
fn a_socket_whose_export_is_missing_is_told_and_comes_with_the_export() {
    let place = Place::new();
    place.write(
        "vm.toml",
        "listen = 'unix:n'\ncontrol = 'c'\n[[volume]]\nname = 'a'\ntable = '0 8 zero'",
    );
    let server = place.serve(&["vm.toml", "--export", "vhost-user-blk:s,name=b"]);
    place.cairn(&["create", "b", "--control", "c", "--table", "0 16 zero"]).ok();
    let mut driver = connect(&place.path("s"));
    driver.negotiate(FLUSH);
    assert_eq!(driver.config(0, 8), 16_u64.to_le_bytes());
    let ran = server.interrupt();
    assert!(ran.err.contains("s: no socket yet: there is no export 'b'"), "{ran:?}");
    assert!(!place.exists("s"));
}

/// A driver that accepts further features writes, and `kills` servers are killed under it. Each
/// write ends once, and none is lost.
fn write_over_kills(features: u64, kills: usize) {
    let place = Place::new();
    place.sparse("slow", 4 << 20);
    place.sparse("fast", 2 << 20);
    let mut server = serve(&place);
    let socket = place.path("vm.sock");
    let mut writer = Writer::start(&socket, features, true);
    for kill in 0..kills {
        writer.write(50 + 13 * kill);
        drop(server);
        server = serve(&place);
        writer.driver.connect_again(&socket, FLUSH | features, RINGS.into());
    }
    writer.finish();
    let ran = server.interrupt();
    assert_eq!(ran.code, 0, "{ran:?}");
    place.cairn(&["flush", "--table", "0 8192 writecache s slow fast 4096 0"]).ok();
    assert!(writer.check(&place.read("slow")) > 500);
}

#[test]
fn requests_in_flight_outlive_kills_of_the_server() {
    write_over_kills(0, 12);
}

#[test]
fn requests_in_flight_in_packed_rings_outlive_kills_of_the_server() {
    write_over_kills(PACKED, 12);
    write_over_kills(PACKED | EVENT_IDX, 8);
}
