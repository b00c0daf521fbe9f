//! A driver of the tests: messages as they are, and rings whose every byte a test may set.
//!
//! Its memory is a file, of which the tests read and write pieces; the server has it mapped.

use std::cell::RefCell;
use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::eventually;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

mod packed;

use packed::PackedSide;
pub use packed::{PACKED_AVAILABLE, PACKED_ENTRIES, PACKED_USED, Position};

/// How many rings a driver has.
pub const RINGS: u16 = 4;

/// The numbers of messages: from the protocol's document, not from the server's decoder.
pub mod message {
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const SET_VRING_ERR: u32 = 14;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const GET_QUEUE_NUM: u32 = 17;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const SET_BACKEND_REQ_FD: u32 = 21;
    pub const GET_CONFIG: u32 = 24;
    pub const SET_CONFIG: u32 = 25;
    pub const GET_INFLIGHT_FD: u32 = 31;
    pub const SET_INFLIGHT_FD: u32 = 32;
}

pub const FLUSH: u64 = 1 << 9;
pub const CONFIG_WCE: u64 = 1 << 11;
pub const INDIRECT: u64 = 1 << 28;
pub const EVENT_IDX: u64 = 1 << 29;
pub const PACKED: u64 = 1 << 34;
const USUAL: u64 = 1 << 30 | 1 << 32;

/// Where the memory is, for the guest and for this process; and its length.
pub const GUEST: u64 = 0x1_0000_0000;
const USER: u64 = 0x7000_0000_0000;
pub const MEMORY_BYTES: u64 = 8 << 20;

/// Entries of each split ring; how far apart the rings are, and the parts of one.
pub const ENTRIES: u16 = 16;
const RING_BYTES: u64 = 0x4000;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;

/// Where requests of ring 0 are; those of the others follow.
const HEADS: u64 = 0x40000;
/// Where data may be.
pub const DATA: u64 = 0x100000;

/// Flags of a descriptor.
pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;
pub const TABLE: u16 = 4;

/// Kinds of requests.
pub const IN: u32 = 0;
pub const OUT: u32 = 1;
pub const SYNC: u32 = 4;
pub const ID: u32 = 8;
pub const DISCARD: u32 = 11;
pub const ZEROES: u32 = 13;

/// A piece of memory that the device reads, or writes: address in the file, and length.
#[derive(Clone, Copy)]
pub struct Piece(pub u64, pub u32, pub bool);

pub struct Driver {
    pub socket: UnixStream,
    pub memory: File,
    kicks: Vec<OwnedFd>,
    pub calls: Vec<OwnedFd>,
    pub errors: Vec<OwnedFd>,
    available: Vec<u16>,
    /// The rings are packed: their state.
    packed: Option<Vec<RefCell<PackedSide>>>,
    /// What is in flight: the memory of the server's side, and what describes it.
    pub inflight: Option<(File, [u8; 24])>,
}

impl Driver {
    /// A driver that has said nothing.
    pub fn connect(path: &Path) -> Driver {
        let socket = UnixStream::connect(path).expect("a server");
        socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a server");
        let memory: File = memfd_create("guest", MemfdFlags::CLOEXEC).expect("memory").into();
        memory.set_len(MEMORY_BYTES).expect("memory");
        let fds = || (0..RINGS).map(|_| event()).collect::<Vec<_>>();
        let available = vec![0; RINGS.into()];
        let (kicks, calls, errors) = (fds(), fds(), fds());
        Driver { socket, memory, kicks, calls, errors, available, packed: None, inflight: None }
    }

    /// One that has started `rings` rings with these features.
    pub fn start(path: &Path, features: u64, rings: usize) -> Driver {
        let mut driver = Driver::connect(path);
        driver.negotiate(features);
        driver.share_all();
        (0..rings).for_each(|ring| driver.start_ring(ring, driver.begin()));
        driver
    }

    /// Connects again, to the server after the one that died, as an emulator does: with the memory
    /// for what is in flight, and rings that begin where they say that they were used. Packed ones
    /// do not say it: an emulator gives the base of the last start.
    pub fn connect_again(&mut self, path: &Path, features: u64, rings: usize) {
        self.socket = UnixStream::connect(path).expect("a server");
        self.socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a server");
        self.negotiate(features);
        self.share_all();
        if let Some((file, facts)) = &self.inflight {
            self.say(message::SET_INFLIGHT_FD, facts, &[file.as_fd()]);
        }
        for ring in 0..rings {
            let base = if self.packed.is_some() { self.begin() } else { self.used(ring).into() };
            self.start_ring(ring, base);
            self.kick(ring);
        }
    }

    // Messages.

    /// Has the server make memory for what is in flight, and use it.
    pub fn track(&mut self) {
        let mut facts = [0; 24];
        facts[16..18].copy_from_slice(&RINGS.to_le_bytes());
        facts[18..20].copy_from_slice(&self.entries().to_le_bytes());
        self.say(message::GET_INFLIGHT_FD, &facts, &[]);
        let mut reply = [0; 36];
        let file = receive_with_file(&self.socket, &mut reply);
        facts.copy_from_slice(&reply[12..]);
        self.say(message::SET_INFLIGHT_FD, &facts, &[file.as_fd()]);
        self.inflight = Some((file, facts));
    }

    pub fn say(&self, number: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) {
        self.say_with(number, 1, payload, fds);
    }

    pub fn say_with(&self, number: u32, flags: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut bytes = Vec::new();
        for word in [number, flags, payload.len() as u32] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(payload);
        self.send(&bytes, fds);
    }

    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        }
        // A server that has hung up answers by that.
        let _ = sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
    }

    pub fn word(&self, number: u32, value: u64) {
        self.say(number, &value.to_le_bytes(), &[]);
    }

    pub fn pair(&self, number: u32, ring: usize, value: u32) {
        self.say(number, &pair(ring, value), &[]);
    }

    /// The payload of the reply to a message of this number.
    pub fn reply(&mut self, number: u32) -> Vec<u8> {
        let mut head = [0; 12];
        self.socket.read_exact(&mut head).expect("an answer");
        let word =
            |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("as many bytes"));
        assert_eq!((word(0), word(4)), (number, 0b101));
        let mut payload = vec![0; word(8) as usize];
        self.socket.read_exact(&mut payload).expect("an answer");
        payload
    }

    pub fn ask(&mut self, number: u32) -> u64 {
        self.say(number, &[], &[]);
        u64::from_le_bytes(self.reply(number).try_into().expect("as many bytes"))
    }

    /// True once the server has hung up.
    pub fn is_hung_up(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.socket.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }

    pub fn negotiate(&mut self, features: u64) {
        self.word(message::SET_OWNER, 0);
        let offered = self.ask(message::GET_FEATURES);
        let wanted = features | USUAL;
        assert_eq!(wanted & !offered, 0, "{offered:#x}");
        let protocol = self.ask(message::GET_PROTOCOL_FEATURES);
        self.word(message::SET_PROTOCOL_FEATURES, protocol);
        self.word(message::SET_FEATURES, wanted);
        let is_same = self.packed.is_some() == (features & PACKED != 0);
        if !is_same {
            let sides = (0..RINGS).map(|_| RefCell::default()).collect();
            self.packed = (features & PACKED != 0).then_some(sides);
        }
    }

    /// The base of a ring that was never used.
    pub fn begin(&self) -> u32 {
        if self.packed.is_some() { 0x8000_8000 } else { 0 }
    }

    /// The base of a ring of which all that was offered was used.
    pub fn base(&self, ring: usize) -> u32 {
        let used = self.used(ring);
        match &self.packed {
            Some(sides) => u32::from(sides[ring].borrow().used.bits()) * 0x1_0001,
            None => used.into(),
        }
    }

    fn entries(&self) -> u16 {
        if self.packed.is_some() { PACKED_ENTRIES } else { ENTRIES }
    }

    /// Shares parts of the memory: address for the guest, for this process, length, and place.
    pub fn share(&self, regions: &[(u64, u64, u64, u64)]) {
        let mut payload = Vec::from((regions.len() as u64).to_le_bytes());
        for (guest, user, bytes, offset) in regions {
            for word in [guest, bytes, user, offset] {
                payload.extend(word.to_le_bytes());
            }
        }
        let files: Vec<_> = regions.iter().map(|_| self.memory.as_fd()).collect();
        self.say(message::SET_MEM_TABLE, &payload, &files);
    }

    /// Shares all of the memory.
    pub fn share_all(&self) {
        self.share(&[(GUEST, USER, MEMORY_BYTES, 0)]);
    }

    pub fn pass(&self, number: u32, ring: usize, fd: BorrowedFd<'_>) {
        self.say(number, &(ring as u64).to_le_bytes(), &[fd]);
    }

    pub fn start_ring(&self, ring: usize, base: u32) {
        self.pair(message::SET_VRING_NUM, ring, self.entries().into());
        self.pair(message::SET_VRING_BASE, ring, base);
        let at = USER + ring as u64 * RING_BYTES;
        self.place_ring(ring, [at, at + USED, at + AVAILABLE]);
        self.pass(message::SET_VRING_CALL, ring, self.calls[ring].as_fd());
        self.pass(message::SET_VRING_ERR, ring, self.errors[ring].as_fd());
        self.pass(message::SET_VRING_KICK, ring, self.kicks[ring].as_fd());
        self.pair(message::SET_VRING_ENABLE, ring, 1);
    }

    /// Says where descriptors, what is used, and what is available are.
    pub fn place_ring(&self, ring: usize, places: [u64; 3]) {
        let mut payload = pair(ring, 0);
        places.iter().chain(&[0]).for_each(|place| payload.extend(place.to_le_bytes()));
        self.say(message::SET_VRING_ADDR, &payload, &[]);
    }

    /// Stops a ring: the index of its next chain.
    pub fn stop_ring(&mut self, ring: usize) -> u32 {
        self.pair(message::GET_VRING_BASE, ring, 0);
        let reply = self.reply(message::GET_VRING_BASE);
        assert_eq!(reply[..4], (ring as u32).to_le_bytes());
        u32::from_le_bytes(reply[4..].try_into().expect("as many bytes"))
    }

    pub fn config(&mut self, offset: u32, bytes: u32) -> Vec<u8> {
        let mut payload: Vec<u8> = [offset, bytes, 0].map(u32::to_le_bytes).concat();
        payload.resize(12 + bytes as usize, 0);
        self.say(message::GET_CONFIG, &payload, &[]);
        self.reply(message::GET_CONFIG).split_off(12)
    }

    pub fn set_config(&self, offset: u32, data: &[u8]) {
        let head = [offset, data.len() as u32, 0].map(u32::to_le_bytes).concat();
        self.say(message::SET_CONFIG, &[&head, data].concat(), &[]);
    }

    // Rings.

    pub fn put(&self, at: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, at).expect("memory");
    }

    pub fn get(&self, at: u64, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        self.memory.read_exact_at(&mut data, at).expect("memory");
        data
    }

    pub fn put_descriptor(&self, at: u64, guest: u64, bytes: u32, flags: u16, next: u16) {
        let mut descriptor = Vec::from(guest.to_le_bytes());
        descriptor.extend(bytes.to_le_bytes());
        descriptor.extend(flags.to_le_bytes());
        descriptor.extend(next.to_le_bytes());
        self.put(at, &descriptor);
    }

    /// Where a descriptor of a ring is.
    pub fn descriptor(ring: usize, index: u16) -> u64 {
        ring as u64 * RING_BYTES + u64::from(index) * 16
    }

    /// Makes the chain that begins at a descriptor available, and notifies the device.
    pub fn offer(&mut self, ring: usize, head: u16) {
        self.offer_unseen(ring, head);
        self.kick(ring);
    }

    /// The same without a notification.
    pub fn offer_unseen(&mut self, ring: usize, head: u16) {
        if let Some(sides) = &self.packed {
            self.see(ring, &sides[ring]);
            for (slot, Piece(at, bytes, _), flags) in sides[ring].borrow_mut().offer(head) {
                self.put_packed(ring, slot, GUEST + at, bytes, head, flags);
            }
            return;
        }
        let at = ring as u64 * RING_BYTES + AVAILABLE;
        let index = &mut self.available[ring];
        self.memory
            .write_all_at(&head.to_le_bytes(), at + 4 + 2 * u64::from(*index % ENTRIES))
            .expect("a descriptor");
        *index = index.wrapping_add(1);
        self.memory.write_all_at(&index.to_le_bytes(), at + 2).expect("memory");
    }

    /// Writes a descriptor of a packed ring, its flags last.
    pub fn put_packed(&self, ring: usize, slot: u16, guest: u64, bytes: u32, id: u16, flags: u16) {
        let at = Driver::descriptor(ring, slot);
        let rest = [&bytes.to_le_bytes()[..], &id.to_le_bytes()].concat();
        self.put(at, &[&guest.to_le_bytes()[..], &rest].concat());
        self.put(at + 14, &flags.to_le_bytes());
    }

    /// Takes what was used in a packed ring.
    fn see(&self, ring: usize, side: &RefCell<PackedSide>) {
        side.borrow_mut().see(|slot| {
            let bytes = self.get(Driver::descriptor(ring, slot) + 8, 8);
            let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
            (u32::from(half(0)) | u32::from(half(2)) << 16, half(4), half(6))
        });
    }

    pub fn kick(&self, ring: usize) {
        rustix::io::write(&self.kicks[ring], &1_u64.to_ne_bytes()).expect("a descriptor");
    }

    pub fn kick_end(&self, ring: usize) -> BorrowedFd<'_> {
        self.kicks[ring].as_fd()
    }

    /// Puts pieces into descriptors from `first`, in order; of a packed ring, those with this name
    /// when they are offered.
    pub fn chain(&self, ring: usize, first: u16, pieces: &[Piece]) {
        if let Some(sides) = &self.packed {
            sides[ring].borrow_mut().chains.insert(first, pieces.to_vec());
            return;
        }
        for (number, Piece(at, bytes, is_written)) in pieces.iter().enumerate() {
            let index = first + number as u16;
            let mut flags = if *is_written { WRITE } else { 0 };
            if number + 1 < pieces.len() {
                flags |= NEXT;
            }
            self.put_descriptor(
                Driver::descriptor(ring, index),
                GUEST + at,
                *bytes,
                flags,
                index + 1,
            );
        }
    }

    /// The same driver, whose rings have offered nothing yet.
    pub fn again(mut self) -> Driver {
        self.available.fill(0);
        for side in self.packed.iter().flatten() {
            side.take();
        }
        self
    }

    /// Where the head of the request in slot `slot` of a ring is; its status byte follows.
    pub fn head(ring: usize, slot: u16) -> u64 {
        HEADS + ring as u64 * 0x1000 + u64::from(slot) * 32
    }

    /// Submits a request whose data is at these places. Slots are four descriptors apart.
    pub fn submit(&mut self, ring: usize, slot: u16, kind: u32, sector: u64, data: &[Piece]) {
        let head = Driver::head(ring, slot);
        self.put(head, &[&kind.to_le_bytes(), &[0; 4][..], &sector.to_le_bytes()].concat());
        self.put(head + 16, &[0xff]);
        let mut pieces = vec![Piece(head, 16, false)];
        pieces.extend(data);
        pieces.push(Piece(head + 16, 1, true));
        self.chain(ring, slot * 4, &pieces);
        self.offer(ring, slot * 4);
    }

    /// The status of a request, 0xff while it has not ended.
    pub fn status(&self, ring: usize, slot: u16) -> u8 {
        self.get(Driver::head(ring, slot) + 16, 1)[0]
    }

    /// How many chains of a ring were used.
    pub fn used(&self, ring: usize) -> u16 {
        if let Some(sides) = &self.packed {
            self.see(ring, &sides[ring]);
            return sides[ring].borrow().seen.len() as u16;
        }
        let at = ring as u64 * RING_BYTES + USED + 2;
        u16::from_le_bytes(self.get(at, 2).try_into().expect("as many bytes"))
    }

    /// The head and the bytes written of a chain that was used.
    pub fn used_element(&self, ring: usize, index: u16) -> (u32, u32) {
        if let Some(sides) = &self.packed {
            return sides[ring].borrow().seen[usize::from(index)];
        }
        let at = ring as u64 * RING_BYTES + USED + 4 + 8 * u64::from(index % ENTRIES);
        let bytes = self.get(at, 8);
        let word =
            |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("as many bytes"));
        (word(0), word(4))
    }

    pub fn await_used(&self, ring: usize, count: u16) {
        eventually("chains are used", || self.used(ring) == count);
    }

    /// A request in slot 0 of a ring that has none: its status.
    pub fn run(&mut self, ring: usize, kind: u32, sector: u64, data: &[Piece]) -> u8 {
        let used = self.used(ring);
        self.submit(ring, 0, kind, sector, data);
        self.await_used(ring, used.wrapping_add(1));
        self.status(ring, 0)
    }

    pub fn write(&mut self, ring: usize, offset: u64, data: &[u8]) -> u8 {
        self.put(DATA, data);
        self.run(ring, OUT, offset / 512, &[Piece(DATA, data.len() as u32, false)])
    }

    pub fn read(&mut self, ring: usize, offset: u64, bytes: usize) -> Vec<u8> {
        let piece = Piece(DATA, bytes as u32, true);
        assert_eq!(self.run(ring, IN, offset / 512, &[piece]), 0);
        self.get(DATA, bytes)
    }

    /// A request with a range: its status.
    pub fn range(&mut self, kind: u32, sector: u64, sectors: u32, flags: u32) -> u8 {
        let words = [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()];
        self.put(DATA, &words.concat());
        self.run(0, kind, 0, &[Piece(DATA, 16, false)])
    }
}

fn pair(ring: usize, value: u32) -> Vec<u8> {
    [ring as u32, value].map(u32::to_le_bytes).concat()
}

pub fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("a descriptor")
}

/// Fills `bytes`, with which one descriptor comes.
fn receive_with_file(socket: &UnixStream, bytes: &mut [u8]) -> File {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let expected = bytes.len();
    let pieces = &mut [IoSliceMut::new(bytes)];
    let received = recvmsg(socket, pieces, &mut control, RecvFlags::WAITALL).expect("an answer");
    assert_eq!(received.bytes, expected);
    let passed = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut passed) => passed.next(),
        _ => None,
    });
    passed.expect("a descriptor").into()
}

/// True if the descriptor was notified since the last look.
pub fn was_notified(fd: &OwnedFd) -> bool {
    rustix::io::read(fd, &mut [0; 8]).is_ok()
}

/// Sends a byte at a time, with the descriptors at the first one.
pub fn trickle(driver: &Driver, bytes: &[u8]) {
    for byte in bytes {
        (&driver.socket).write_all(&[*byte]).expect("a descriptor");
    }
}
