//! Where entries go in the ring, and that the one that frees it always has room (J1 to J6).

use std::collections::BTreeMap;

use cairn_format::bcache::journal::{ByteRange, Header, Located, Ring, scan};
use cairn_format::bcache::{Geometry, Key, SECTOR_BYTES, SetMagic, Uuid};
use proptest::prelude::*;

use super::{COUNTING_MAX, Journal, NoEntry, SPARE};

const BUCKETS: u64 = 3;

fn geometry() -> Geometry {
    Geometry::new(1, 16, 200, 2).expect("legal")
}

fn magic() -> SetMagic {
    Uuid([3; 16]).set_magic()
}

/// The ring on a device, as bytes by sector.
struct Device {
    sectors: BTreeMap<u64, Vec<u8>>,
    journal: Journal,
}

impl Device {
    /// A ring whose newest entry is number 1, in the ring's second bucket.
    fn new() -> Device {
        let none = Key::MAX;
        let (seq, last_seq, root_level, priorities) = (1, 1, 0, 5);
        let header = Header {
            seq,
            last_seq,
            has_long_uuids: true,
            uuids: none,
            root: none,
            root_level,
            priorities,
        };
        let located =
            Located { header, csum: 0, index: 1, bytes: ByteRange { start: 0, end: 240 } };
        let ring = Ring { entries: vec![located], discarded: None };
        let bytes = cairn_format::bcache::journal::encode(&header, &[], magic(), SECTOR_BYTES);
        let journal = Journal::new(&ring, 2..2 + BUCKETS, geometry(), magic());
        let mut device = Device { sectors: BTreeMap::new(), journal };
        device.put(geometry().sector_of(3), &bytes);
        device
    }

    fn put(&mut self, sector: u64, bytes: &[u8]) {
        for (at, piece) in (sector..).zip(bytes.chunks(SECTOR_BYTES)) {
            self.sectors.insert(at, piece.to_vec());
        }
    }

    fn write(&mut self, keys: usize, frees: bool) -> bool {
        let keys: Vec<Key> = (0..keys as u64).map(|at| Key::new(0, at * 8 + 8, 8)).collect();
        let open = (!frees).then_some(self.journal.newest.last_seq);
        let Ok(entry) = self.journal.entry(&keys, open, SPARE) else { return false };
        self.put(entry.sector, &entry.bytes);
        self.journal.newest_is_durable();
        true
    }

    /// A restart.
    fn restart(&mut self) {
        self.journal = Journal::new(&self.read(), 2..2 + BUCKETS, geometry(), magic());
    }

    fn read(&self) -> Ring {
        let mut all = Vec::new();
        for index in 0..BUCKETS as usize {
            let first = geometry().sector_of(2 + index as u64);
            let sector = |at| self.sectors.get(&at).cloned().unwrap_or(vec![0; SECTOR_BYTES]);
            let bytes: Vec<u8> = (first..first + 16).flat_map(sector).collect();
            let (entries, _) = scan(&bytes, magic(), SECTOR_BYTES);
            all.extend(entries.iter().map(|entry| {
                let bytes = ByteRange { start: entry.at, end: entry.at + entry.bytes() };
                Located { header: entry.header, csum: entry.csum, index, bytes }
            }));
        }
        Ring::of(all, false).expect("a ring without gaps")
    }
}

proptest! {
    /// A reader finds the newest entry and all that count, after any writes and restarts.
    #[test]
    fn a_ring_is_read_as_it_was_written(
        writes in proptest::collection::vec((0..90_usize, 0..4_u8), 1..60),
    ) {
        let mut device = Device::new();
        let (mut seq, mut last_seq) = (1, 1);
        for (keys, kind) in writes {
            let frees = kind == 0;
            let keys = if frees { 0 } else { keys };
            if device.write(keys, frees) {
                seq += 1;
                last_seq = if frees { seq } else { last_seq };
            }
            let ring = device.read();
            let newest = ring.newest().header;
            prop_assert_eq!((newest.seq, newest.last_seq), (seq, last_seq));
            prop_assert_eq!(ring.entries.len() as u64, seq - last_seq + 1);
            if kind == 1 {
                device.restart();
            }
        }
    }
}

#[test]
fn a_session_begins_in_the_bucket_behind_the_newest_entry() {
    let mut device = Device::new();
    assert!(device.write(0, false));
    assert_eq!(device.read().newest().index, 2);
    assert!(device.write(0, false));
    assert_eq!(device.read().newest().index, 2, "it goes on in it");
}

#[test]
fn a_full_ring_has_room_for_the_entry_that_frees_it() {
    let mut device = Device::new();
    while device.write(1, false) {}
    // A restart begins no bucket, as none is free.
    device.restart();
    assert_eq!((device.journal.room(), device.write(0, false)), (1, false), "it is spared");
    assert!(device.write(0, true), "the one that frees");
    assert!(device.write(90, false), "all but one bucket is free");
    assert_eq!(device.read().entries.len(), 2);
}

#[test]
fn entries_that_leave_none_open_go_round_a_ring_of_two_buckets() {
    let mut device = Device::new();
    device.journal.highest.truncate(2);
    for seq in 2..200 {
        assert!(device.write(0, true), "{seq}");
        assert!(device.journal.says(None));
        assert_eq!(device.read().entries.len(), 1);
    }
    assert!(device.write(3, true) && !device.journal.says(None), "it has keys");
}

#[test]
fn room_is_what_entries_find() {
    for filled in 0..60 {
        let mut device = Device::new();
        (0..filled).for_each(|_| assert!(device.write(0, true)));
        (0..filled / 3).for_each(|_| assert!(device.write(0, false)));
        if filled % 2 == 0 {
            device.restart();
        }
        let room = device.journal.room();
        let found = (0..).take_while(|_| device.write(0, false)).count();
        assert_eq!(room, found + 1, "one is spared");
    }
}

#[test]
fn no_more_entries_count_than_a_kernel_pins() {
    for left in 0..3 {
        let mut device = Device::new();
        let newest = &mut device.journal.newest;
        (newest.seq, newest.last_seq) = (COUNTING_MAX - left, 1);
        device.journal.highest.resize(8, 0);
        let room = device.journal.room();
        let written = (0..).take_while(|_| device.write(1, false)).count();
        assert_eq!((written, room), (left as usize, written + 1), "the one that frees is spared");
        assert_eq!(device.journal.newest.seq, COUNTING_MAX);
        let mut next = |open| device.journal.entry(&[], open, SPARE).map(|_| ()).err();
        assert_eq!(next(Some(1)), Some(NoEntry::Full));
        assert_eq!(next(Some(2)), None, "it frees one");
        assert_eq!(next(Some(2)), Some(NoEntry::Full));
        assert_eq!(next(None), None, "it frees all");
        assert_eq!(next(Some(COUNTING_MAX + 2)), None);
    }
}

#[test]
fn an_entry_that_frees_is_written_although_the_kernel_left_more() {
    let mut device = Device::new();
    let newest = &mut device.journal.newest;
    (newest.seq, newest.last_seq) = (COUNTING_MAX + 1, 1);
    assert_eq!((device.journal.room(), device.write(0, false)), (1, false));
    let entry = device.journal.entry(&[], Some(2), SPARE);
    assert!(entry.is_ok(), "it frees one");
    assert_eq!((device.journal.room(), device.write(0, false)), (1, false));
    assert!(device.write(0, true) && device.journal.says(None));
}

#[test]
fn the_last_number_is_not_followed_by_the_first() {
    let mut device = Device::new();
    device.journal.newest.seq = u64::MAX;
    let refused = device.journal.entry(&[], None, SPARE).err();
    assert_eq!(refused, Some(NoEntry::Numbers));
}
