//! `cairn flush` of a large bcache set, ended in the middle: by Ctrl-C, by `--timeout` and by a
//! kill. The set stays whole, has the same content, and the next run finishes.

use std::convert::Infallible;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};

use cairn_format::bcache::build::{Builder, WriteSectors};
use cairn_format::bcache::uuids::UuidEntry;
use cairn_format::bcache::{
    BackingState, BackingSuperblock, CacheMode, CacheSuperblock, Key, NewBacking, NewCache,
    Replacement, Uuid,
};
use rustix::process::Signal;

use super::place::{Place, json, signalled};

const TABLE: &str = "0 N bcache slow fast 0";
const SUM: &str = "nbdcopy \"$uri\" - | sha256sum";
/// Dirty extents in the first set. A set that is drained before the end comes is
/// made again with twice as many.
const EXTENTS: u64 = 4_000;
const EXTENTS_MAX: u64 = 64 * EXTENTS;
/// Sectors from one extent to the next, which it does not touch.
const APART: u64 = 2;
const BUCKET: u64 = 1024;
const FIRST: u64 = 16;

struct Sectors<'a>(&'a File);

impl Sectors<'_> {
    fn put(&self, sector: u64, bytes: &[u8]) {
        self.0.write_all_at(bytes, sector * 512).unwrap();
    }
}

impl WriteSectors for Sectors<'_> {
    type Error = Infallible;

    fn write(&mut self, sector: u64, bytes: &[u8]) -> Result<(), Infallible> {
        self.put(sector, bytes);
        Ok(())
    }
}

/// A set with so many dirty extents of one sector, no two of which have the same data.
fn set_of(extents: u64) -> Place {
    let place = Place::new();
    let (uuid, set_uuid) = (Uuid([3; 16]), Uuid([2; 16]));
    let device_sectors = (extents / BUCKET * 9 / 8 + 1024) * BUCKET;
    place.sparse("fast", device_sectors * 512);
    place.sparse("slow", (FIRST + extents * APART) * 512);
    let open = |name: &str| File::options().write(true).open(place.path(name)).unwrap();
    let (fast, slow) = (open("fast"), open("slow"));
    let fresh = CacheSuperblock::fresh(&NewCache {
        uuid: Uuid([1; 16]),
        set_uuid,
        block_sectors: 1,
        bucket_sectors: BUCKET,
        device_sectors,
        replacement: Replacement::Lru,
        discard: false,
    });
    let mut builder = Builder::new(&fresh.unwrap(), 1, Sectors(&fast));
    for at in 0..extents {
        let key = Key::new(0, FIRST + at * APART + 1, 1).with_dirty(true);
        let placed = builder.add(key).unwrap()[0].cached_at().unwrap();
        let mut sector = [7; 512];
        sector[..8].copy_from_slice(&at.to_le_bytes());
        Sectors(&fast).put(placed.sector(), &sector);
    }
    let superblock = builder.finish(&[UuidEntry { uuid, ..UuidEntry::default() }]).unwrap();
    Sectors(&fast).put(8, &superblock.encode());
    let backing = BackingSuperblock::fresh(&NewBacking {
        uuid,
        set_uuid,
        block_sectors: 1,
        data_offset: FIRST,
        mode: CacheMode::Writeback,
        state: BackingState::Dirty,
        label: [0; 32],
    });
    Sectors(&slow).put(8, &backing.unwrap().encode());
    place
}

fn content(place: &Place) -> String {
    place.cairn(&["serve", "--read-only", "--table", TABLE, "--run", SUM]).ok()
}

fn dirty_sectors(place: &Place) -> u64 {
    let ran = place.cairn(&["check", "fast", "--backing", "slow", "--json"]);
    let report = &json(&ran.out)[0];
    assert_eq!(report["findings"], json("[]"), "{report}");
    report["totals"]["dirty_sectors"].as_u64().unwrap()
}

/// Begins a drain, ends it by a signal once copying has begun, and returns how the program ended
/// and what it printed.
fn end_by(place: &Place, signal: Signal) -> (ExitStatus, String) {
    let mut command = place.command(&["flush", "--table", TABLE]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("to write back")));
    // The first writes of the drain, which begins here.
    let slow = place.path("slow");
    super::place::until(|| {
        let mut sector = [0; 8];
        File::open(&slow).unwrap().read_exact_at(&mut sector, (FIRST + APART) * 512).unwrap();
        (sector == 1_u64.to_le_bytes()).then_some(())
    });
    let status = signalled(&mut child, &[signal]);
    let mut out = String::new();
    std::io::Read::read_to_string(&mut child.stdout.take().unwrap(), &mut out).unwrap();
    (status, out)
}

/// Ends a drain of a set in the middle, and checks what is left. `end` returns false if the drain
/// was faster.
fn check_end(end: impl Fn(&Place) -> bool) {
    let mut extents = EXTENTS;
    let (place, before) = loop {
        assert!(extents <= EXTENTS_MAX, "each drain ended before it was interrupted");
        let place = set_of(extents);
        let before = content(&place);
        if end(&place) {
            break (place, before);
        }
        extents *= 2;
    };
    let left = dirty_sectors(&place);
    assert!(left > 0 && left <= extents, "{left} of {extents}");
    assert_eq!(place.cairn(&["probe", "slow"]).code, 5);
    assert_eq!(content(&place), before);
    let out = place.cairn(&["flush", "--table", TABLE]).ok();
    assert_eq!(out, "clean: every block is on the origin\n");
    assert_eq!(dirty_sectors(&place), 0);
    place.cairn(&["probe", "fast", "slow"]).ok();
    std::fs::remove_file(place.path("fast")).unwrap();
    let alone = ["serve", "--read-only", "--without-cache", "--table", TABLE, "--run", SUM];
    assert_eq!(place.cairn(&alone).ok(), before);
}

#[test]
fn ctrl_c_ends_a_drain_with_1_and_the_next_run_finishes() {
    check_end(|place| {
        let (status, out) = end_by(place, Signal::INT);
        if status.code() == Some(0) {
            return false;
        }
        assert_eq!(status.code(), Some(1), "{out}");
        assert!(out.ends_with(" left\n"), "{out}");
        true
    });
}

#[test]
fn a_timeout_ends_a_drain_with_124_and_the_next_run_finishes() {
    check_end(|place| {
        let ran = place.cairn(&["flush", "--timeout", "0.05", "--table", TABLE]);
        if ran.code == 0 {
            return false;
        }
        assert_eq!(ran.code, 124, "{ran:?}");
        assert!(ran.out.ends_with(" left\n"), "{ran:?}");
        true
    });
}

#[test]
fn a_kill_in_the_middle_of_a_drain_leaves_a_set_that_the_next_run_finishes() {
    check_end(|place| {
        let (status, _) = end_by(place, Signal::KILL);
        status.signal() == Some(9)
    });
}
