//! Each damage of a small set is found, or changes nothing of what is served.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use proptest::prelude::*;

use super::*;
use crate::bcache::build::Builder;
use crate::bcache::fixture::{
    BUCKET_SECTORS, BUCKETS, Strict, fresh, read, set, superblock_of, uuid, with_ring,
};
use crate::bcache::journal::{self, Header};
use crate::bcache::load::{load_now, now};
use crate::bcache::node::encode_set;
use crate::bcache::{
    CacheMode, Generation, NewBacking, NewCache, Pointer, Replacement, SetMagic, Uuid,
};

const BACKING_SECTORS: u64 = 4096;

fn new_backing(state: BackingState) -> NewBacking {
    NewBacking {
        uuid: uuid(3),
        set_uuid: uuid(2),
        block_sectors: 1,
        data_offset: 16,
        mode: CacheMode::Writeback,
        state,
        label: [0; 32],
    }
}

fn backing(state: BackingState) -> Backing {
    let superblock = BackingSuperblock::fresh(&new_backing(state));
    Backing { superblock, device_sectors: BACKING_SECTORS }
}

fn checked(image: &[u8], backings: &[Backing]) -> Report {
    let mut source = image;
    let sectors = (image.len() / SECTOR_BYTES) as u64;
    let checking = pin!(check(&mut source, sectors, backings));
    match checking.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(report)) => report,
        other => panic!("an image never waits: {other:?}"),
    }
}

/// What a server that accepts no fault would serve: the extents, and the volume of inode 0.
fn served(image: &[u8]) -> Option<(Vec<Key>, Uuid)> {
    read(image).map(|(extents, loaded)| (extents, loaded.volumes[0].uuid))
}

/// Where the set has metadata, in bytes.
fn metadata(image: &[u8]) -> Vec<usize> {
    struct Nodes(Vec<u64>);
    impl Visitor for Nodes {
        fn fault(&mut self, _: &Fault) -> ControlFlow<()> {
            ControlFlow::Break(())
        }
        fn node(&mut self, at: &NodePlace, _: &Node<'_>) {
            self.0.extend(at.key.cached_at().map(Pointer::sector));
        }
        fn extent(&mut self, _: Key) {}
    }
    let superblock = superblock_of(image);
    let geometry = *superblock.geometry();
    let mut nodes = Nodes(Vec::new());
    let loaded = load_now(image, &superblock, &mut nodes).expect("it is sound");
    let buckets = superblock.journal_buckets().chain(loaded.priorities.iter().copied());
    let uuids = loaded.newest.uuids.cached_at().expect("it has some").sector();
    let sectors = buckets.map(|bucket| geometry.sector_of(bucket)).chain(nodes.0).chain([uuids]);
    let mut bytes: Vec<usize> = (4096..8192).collect();
    for sector in sectors {
        let begin = sector as usize * SECTOR_BYTES;
        bytes.extend(begin..begin + BUCKET_SECTORS as usize * SECTOR_BYTES);
    }
    bytes
}

fn words(image: &[u8], backings: &[Backing]) -> Vec<String> {
    checked(image, backings).findings.iter().map(Finding::to_string).collect()
}

#[test]
fn a_sound_set_has_no_findings() {
    let report = checked(&set(300), &[backing(BackingState::Dirty)]);
    assert_eq!(report.findings, []);
    assert_eq!((report.severity, report.findings_left_out), (Severity::Sound, 0));
    assert_eq!((report.totals.extents, report.totals.dirty_sectors), (300, 150));
    assert_eq!((report.totals.nodes, report.totals.journal_entries), (4, 1));
    assert_eq!(report.totals.data_buckets, 300_u64.div_ceil(BUCKET_SECTORS));
    assert_eq!(report.volumes.len(), 1);
    assert!(report.suspect.is_empty());
}

#[test]
fn what_a_backing_device_says_is_checked_against_its_cache() {
    let image = set(20);
    let say = |state| words(&image, &[backing(state)]);
    let id = "backing device 03030303-0303-0303-0303-030303030303: state: found";
    let none = "none, expected dirty (the cache has 10 sectors that it lacks)";
    assert_eq!(say(BackingState::None), [format!("{id} {none}")]);
    let used = "inconsistent (it was used without its cache, which has 10 sectors that it lacks)";
    assert_eq!(say(BackingState::Stale), [format!("{id} {used}")]);

    let short = Backing { device_sectors: 40, ..backing(BackingState::Dirty) };
    let found = checked(&image, &[short]).findings;
    assert_eq!(found.len(), 8, "the extents from sector 40 on: {found:?}");
    assert!(found.iter().all(|it| matches!(it, Finding::Beyond { .. })));

    let mut other = backing(BackingState::Dirty);
    other.superblock.as_mut().expect("legal").set_set_uuid(uuid(9));
    let found = checked(&image, &[other]).findings;
    assert!(matches!(found[..], [Finding::OtherSet { .. }]), "{found:?}");
}

#[test]
fn dirty_keys_of_a_device_in_state_clean_are_sound_after_recovery() {
    let image = set(20);
    let report = checked(&image, &[backing(BackingState::Clean)]);
    assert_eq!(report.severity, Severity::SoundAfterRecovery);
    let expected = "backing device 03030303-0303-0303-0303-030303030303: state: found clean, and \
                    10 dirty sectors of it in the cache, which each activation counts and a \
                    drain writes back";
    assert_eq!(report.findings.iter().map(Finding::to_string).collect::<Vec<_>>(), [expected]);
    let severity = |state| checked(&image, &[backing(state)]).severity;
    assert_eq!(severity(BackingState::Dirty), Severity::Sound);
    assert_eq!(severity(BackingState::None), Severity::Repairable);
    assert_eq!(severity(BackingState::Stale), Severity::Damaged);
    // Other damage counts as before.
    let short = Backing { device_sectors: 40, ..backing(BackingState::Clean) };
    assert_eq!(checked(&image, &[short]).severity, Severity::Damaged);
}

#[test]
fn a_device_that_the_cache_does_not_know_lacks_data_only_if_it_says_so() {
    let mut images = [set(0), Vec::new()];
    images[1] = images[0].clone();
    images[1][4096..8192].copy_from_slice(&fresh().encode());
    for image in images {
        for state in [BackingState::None, BackingState::Clean, BackingState::Dirty] {
            let new = NewBacking { uuid: uuid(4), ..new_backing(state) };
            let superblock = BackingSuperblock::fresh(&new);
            let stranger = Backing { superblock, device_sectors: BACKING_SECTORS };
            let found = checked(&image, &[stranger]).findings;
            match state {
                BackingState::Dirty => assert_eq!(found, [Finding::Unknown { uuid: uuid(4) }]),
                _ => assert_eq!(found, []),
            }
        }
    }
}

#[test]
fn a_torn_last_entry_is_told_from_damage() {
    let mut image = set(20);
    let superblock = superblock_of(&image);
    let loaded = load_now(&image[..], &superblock, &mut Strict(Vec::new())).expect("sound");
    let next = Header { seq: 2, ..loaded.newest };
    let mut entry = journal::encode(&next, &[], superblock.set_uuid().set_magic(), 512);
    entry[0] ^= 1;
    let ring_bucket = superblock.journal_buckets().start + 1;
    let begin = (superblock.geometry().sector_of(ring_bucket) as usize + 1) * SECTOR_BYTES;
    image[begin..begin + entry.len()].copy_from_slice(&entry);
    let report = checked(&image, &[]);
    assert_eq!(report.severity, Severity::SoundAfterRecovery);
    let said = report.findings[0].to_string();
    assert!(said.ends_with("(possibly a torn last entry)"), "{said}");
}

/// A leaf as the root of a small set, with other keys.
fn with_leaf(keys: &[Key]) -> Vec<u8> {
    let mut image = set(4);
    let superblock = superblock_of(&image);
    let loaded = load_now(&image[..], &superblock, &mut Strict(Vec::new())).expect("sound");
    let root = loaded.newest.root.cached_at().expect("it leads somewhere");
    let magic: SetMagic = superblock.set_uuid().set_magic();
    let mut bytes = Vec::new();
    encode_set(&mut bytes, root, magic, 5, keys, 512);
    bytes.resize(BUCKET_SECTORS as usize * SECTOR_BYTES, 0);
    let begin = root.sector() as usize * SECTOR_BYTES;
    image[begin..begin + bytes.len()].copy_from_slice(&bytes);
    image
}

fn at(start: u64, sector: u64, generation: u8) -> Key {
    Key::new(0, start + 2, 2).at(Pointer::new(sector, Generation(generation)))
}

#[test]
fn extents_that_share_a_sector_or_lie_in_metadata_are_found() {
    let data = superblock_of(&set(4)).journal_buckets().end * BUCKET_SECTORS;
    let found = words(&with_leaf(&[at(16, data, 0), at(20, data + 1, 0)]), &[]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("found its sectors in"), "{found:?}");
    let journal = superblock_of(&set(4)).journal_buckets().start * BUCKET_SECTORS;
    let found = words(&with_leaf(&[at(16, journal, 0)]), &[]);
    assert_eq!(found, ["bucket 3: found data in it, expected the journal alone"]);
}

#[test]
fn stale_keys_are_sound_unless_they_were_dirty_or_are_too_old() {
    let data = superblock_of(&set(4)).journal_buckets().end * BUCKET_SECTORS;
    // The second key raises the generation of the bucket of both.
    let set = |first: Key| with_leaf(&[first, at(20, data + 2, 10), at(24, data + 4, 100)]);
    assert_eq!(words(&set(at(16, data, 99)), &[]), Vec::<String>::new());
    let dirty = words(&set(at(16, data, 99).with_dirty(true)), &[]);
    assert_eq!(dirty.len(), 1);
    let lost = ": its bucket was reused (generation + 1): its data is lost";
    assert!(dirty[0].ends_with(lost), "{dirty:?}");
    let old = words(&set(at(16, data, 3)), &[]);
    assert!(old[0].ends_with("found generation + 97, expected at most + 96"), "{old:?}");
}

#[test]
fn a_lost_extent_that_the_journal_overwrote_is_no_loss() {
    let data = superblock_of(&set(4)).journal_buckets().end * BUCKET_SECTORS;
    let stale = at(16, data, 0).with_dirty(true);
    let image = with_leaf(&[stale, at(20, data + 2, 10)]);
    assert_eq!(checked(&image, &[]).findings, [Finding::StaleDirty { key: stale, behind: 10 }]);
    let newer = at(16, data + 4, 10).with_dirty(true);
    let image = with_entry(image, &[newer]);
    assert_eq!(checked(&image, &[]).findings, []);
    assert_eq!(read(&image).expect("sound").0, [newer, at(20, data + 2, 10)]);
}

#[test]
fn dirty_extents_before_the_data_of_their_device_are_found() {
    let data = superblock_of(&set(4)).journal_buckets().end * BUCKET_SECTORS;
    let key = at(15, data, 0).with_dirty(true);
    let report = checked(&with_leaf(&[key]), &[backing(BackingState::Dirty)]);
    assert_eq!(report.findings, [Finding::Beyond { key, size: 16..BACKING_SECTORS }]);
    assert_eq!(report.severity, Severity::Damaged);
}

#[test]
fn extents_of_no_volume_are_found() {
    let data = superblock_of(&set(4)).journal_buckets().end * BUCKET_SECTORS;
    let stray = Key::new(7, 18, 2).at(Pointer::new(data, Generation(0))).with_dirty(true);
    let found = words(&with_leaf(&[stray]), &[]);
    assert_eq!(
        found,
        ["inode 7: found 1 extents, 2 sectors of them dirty, expected none (no volume)"]
    );
}

/// The sector of a leaf with leaves on both sides, and its place in the tree.
fn second_leaf(image: &[u8]) -> (u64, NodePlace) {
    struct Leaves(Vec<NodePlace>);
    impl Visitor for Leaves {
        fn fault(&mut self, _: &Fault) -> ControlFlow<()> {
            ControlFlow::Break(())
        }
        fn node(&mut self, at: &NodePlace, _: &Node<'_>) {
            self.0.push(*at);
        }
        fn extent(&mut self, _: Key) {}
    }
    let mut leaves = Leaves(Vec::new());
    load_now(image, &superblock_of(image), &mut leaves).expect("sound");
    let second = leaves.0.iter().filter(|place| place.level == 0).nth(1).expect("there are three");
    (second.key.cached_at().expect("it leads somewhere").sector(), *second)
}

#[test]
fn a_damaged_leaf_makes_its_range_suspect() {
    let mut image = set(300);
    let (sector, second) = second_leaf(&image);
    image[sector as usize * SECTOR_BYTES + 100] ^= 1;
    let report = checked(&image, &[]);
    assert_eq!(report.severity, Severity::Damaged);
    assert_eq!(report.suspect, [second.after..second.key.position()]);
    assert!(report.totals.extents > 100, "the others are counted");
}

/// A device some of whose sectors cannot be read.
struct Bad<'a> {
    image: &'a [u8],
    sectors: Range<u64>,
}

impl Source for Bad<'_> {
    type Error = std::convert::Infallible;

    async fn read(
        &mut self,
        ranges: &[Range<u64>],
    ) -> Result<Vec<Result<Vec<u8>, String>>, Self::Error> {
        let mut read = self.image.read(ranges).await?;
        for (bytes, range) in read.iter_mut().zip(ranges) {
            if range.start < self.sectors.end && self.sectors.start < range.end {
                *bytes = Err("it is bad".to_owned());
            }
        }
        Ok(read)
    }
}

/// What is lost of the volume of inode 0 where some sectors cannot be read.
fn lost(image: &[u8], sectors: Range<u64>) -> Vec<(Certainty, Range<u64>)> {
    lost_within(image, sectors, 16..BACKING_SECTORS)
}

fn lost_of(image: &[u8], sectors: Range<u64>) -> Vec<(Certainty, Range<u64>)> {
    lost_within(image, sectors, 16..1 << 20)
}

fn lost_within(
    image: &[u8],
    sectors: Range<u64>,
    volume: Range<u64>,
) -> Vec<(Certainty, Range<u64>)> {
    let mut source = Bad { image, sectors };
    let sectors = (image.len() / SECTOR_BYTES) as u64;
    let Ok((_, losses)) = now(check_losses(&mut source, sectors, &[]));
    losses.of(0, &volume)
}

/// The set with one more entry in its journal.
fn with_entry(mut image: Vec<u8>, keys: &[Key]) -> Vec<u8> {
    let superblock = superblock_of(&image);
    let loaded = load_now(&image[..], &superblock, &mut Strict(Vec::new())).expect("sound");
    let next = Header { seq: 2, ..loaded.newest };
    let entry = journal::encode(&next, keys, superblock.set_uuid().set_magic(), 512);
    let ring_bucket = superblock.journal_buckets().start + 1;
    let begin = (superblock.geometry().sector_of(ring_bucket) as usize + 1) * SECTOR_BYTES;
    image[begin..begin + entry.len()].copy_from_slice(&entry);
    image
}

#[test]
fn dirty_data_that_cannot_be_read_is_lost_and_clean_data_is_not() {
    let image = set(20);
    // The data of the extents lies in a row, a sector each; every other one is dirty.
    let data = superblock_of(&image).journal_buckets().end * BUCKET_SECTORS;
    assert_eq!(lost(&image, 0..0), []);
    let sector = |index: u64| 16 + index * 2..17 + index * 2;
    let expected = [(Certainty::Lost, sector(4)), (Certainty::Lost, sector(6))];
    assert_eq!(lost(&image, data + 3..data + 8), expected);
    // Of a long extent, the part.
    let long = Key::new(0, 600, 6).with_dirty(true);
    let long = long.at(Pointer::new(data + BUCKET_SECTORS * 40, Generation(0)));
    let image = with_entry(image, &[long]);
    let bad = data + BUCKET_SECTORS * 40 + 2..data + BUCKET_SECTORS * 40 + 3;
    assert_eq!(lost(&image, bad), [(Certainty::Lost, 596..597)]);
}

#[test]
fn what_a_damaged_leaf_held_is_suspect_but_for_what_the_journal_says() {
    let image = set(300);
    let data = superblock_of(&image).journal_buckets().end * BUCKET_SECTORS;
    let (leaf, place) = second_leaf(&image);
    let (after, upto) = (place.after.1, place.key.position().1);
    let bad = || leaf + 1..leaf + 2;
    assert_eq!(lost(&image, bad()), [(Certainty::Suspect, after..upto)]);
    let known = Key::new(0, after + 20, 4).with_dirty(true);
    let known = known.at(Pointer::new(data + BUCKET_SECTORS * 90, Generation(0)));
    let hole = Key::new(0, after + 30, 2);
    let image = with_entry(image, &[known, hole]);
    let suspect = |range| (Certainty::Suspect, range);
    let expected =
        [suspect(after..after + 16), suspect(after + 20..after + 28), suspect(after + 30..upto)];
    assert_eq!(lost(&image, bad()), expected);
    // Without the entry nothing is known for sure.
    let journal = superblock_of(&image).journal_buckets().start + 1;
    let entry = journal * BUCKET_SECTORS;
    let everything = [suspect(16..BACKING_SECTORS)];
    assert_eq!(lost(&image, entry..entry + 1), everything);
    assert_eq!(lost(&image, 8..9), everything);
}

/// Sectors of a node of [`with_large_nodes`].
const NODE_SECTORS: u64 = 128;

/// A set with blocks of 4 KiB and nodes of 64 KiB: 5000 extents of 4 sectors, two of three dirty.
fn with_large_nodes() -> (Vec<u8>, Vec<Key>) {
    let mut image = vec![0; 400 * NODE_SECTORS as usize * SECTOR_BYTES];
    let fresh = CacheSuperblock::fresh(&NewCache {
        uuid: uuid(1),
        set_uuid: uuid(2),
        block_sectors: 8,
        bucket_sectors: NODE_SECTORS,
        device_sectors: 400 * NODE_SECTORS,
        replacement: Replacement::Lru,
        discard: false,
    });
    let mut builder = Builder::new(&fresh.expect("legal"), 77, &mut image);
    let extents: Vec<Key> =
        (0..5000).map(|index| Key::new(0, 24 + index * 8, 4).with_dirty(index % 3 > 0)).collect();
    for extent in &extents {
        builder.add(*extent).expect("there is room");
    }
    let volume = UuidEntry { uuid: uuid(3), ..UuidEntry::default() };
    let superblock = builder.finish(&[volume]).expect("there is room");
    image[4096..8192].copy_from_slice(&superblock.encode());
    (image, extents)
}

#[test]
fn a_bset_with_4_kib_of_damage_and_none_around_it_makes_the_range_of_its_leaf_suspect() {
    let (image, extents) = with_large_nodes();
    let (leaf, place) = second_leaf(&image);
    let range = place.after.1..place.key.end();
    let is_in = |key: &&Key| range.contains(&key.start());
    let inside: Vec<&Key> = extents.iter().filter(is_in).collect();
    assert!(inside.len() > 2000 && inside.len() < 3000);
    // The bset, and the free blocks behind it.
    let used = (32 + inside.len() * 24).next_multiple_of(4096);
    for at in (0..NODE_SECTORS as usize * SECTOR_BYTES).step_by(4096) {
        let mut damaged = image.clone();
        let begin = leaf as usize * SECTOR_BYTES + at;
        damaged[begin..begin + 4096].fill(0x5a);
        let mut source = &damaged[..];
        let sectors = (damaged.len() / SECTOR_BYTES) as u64;
        let Ok((report, losses)) = now(check_losses(&mut source, sectors, &[]));
        let found = losses.of(0, &(16..1 << 20));
        if at >= used {
            assert_eq!((found, report.severity), (Vec::new(), Severity::Sound), "byte {at}");
            continue;
        }
        assert_eq!(found, [(Certainty::Suspect, range.clone())], "byte {at}");
        assert_eq!(report.findings.len(), 1);
        assert_eq!(report.totals.extents as usize, extents.len() - inside.len());
    }
}

#[test]
fn of_a_leaf_with_a_damaged_bset_older_dirty_extents_are_named_and_newer_ones_are_sound() {
    let (mut image, extents) = with_large_nodes();
    let (leaf, place) = second_leaf(&image);
    let first = leaf as usize * SECTOR_BYTES;
    let range = place.after.1..place.key.end();
    let inside: Vec<&Key> = extents.iter().filter(|key| range.contains(&key.start())).collect();
    // Two bsets of a block behind the first: the newer one has an extent, and a hole.
    let pointer = place.key.cached_at().expect("it leads somewhere");
    let magic = superblock_of(&image).set_uuid().set_magic();
    let seq = u64::from_le_bytes(image[first + 16..first + 24].try_into().expect("8 bytes"));
    let free = Pointer::new(NODE_SECTORS * 380, Generation(0));
    let over = |index: usize| Key::new(0, inside[index].end(), 4);
    let (lost, extent, hole) = (over(20), over(40).with_dirty(true).at(free), over(50));
    let second = first + (32 + inside.len() * 24).next_multiple_of(4096);
    let mut bsets = Vec::new();
    encode_set(&mut bsets, pointer, magic, seq, &[lost], 4096);
    encode_set(&mut bsets, pointer, magic, seq, &[extent, hole], 4096);
    image[second..second + bsets.len()].copy_from_slice(&bsets);
    assert_eq!(lost_of(&image, 0..0), []);

    // Each dirty extent of the first bset, and what is between them, but for the newest two.
    let newest = |at: u64| [extent, hole].iter().any(|key| key.start() <= at && at < key.end());
    let mut expected = Vec::new();
    let mut gap = range.start;
    for key in inside.iter().filter(|key| key.is_dirty() || newest(key.start())) {
        if gap < key.start() {
            expected.push((Certainty::Suspect, gap..key.start()));
        }
        if !newest(key.start()) {
            expected.push((Certainty::Suspect, key.start()..key.end()));
        }
        gap = key.end();
    }
    if gap < range.end {
        expected.push((Certainty::Suspect, gap..range.end));
    }
    let sector = (second / SECTOR_BYTES) as u64;
    assert_eq!(lost_of(&image, sector..sector + 8), expected, "unreadable");
    let mut damaged = image.clone();
    damaged[second + 24..second + 4096].fill(0x5a);
    assert_eq!(lost_of(&damaged, 0..0), expected, "damaged");
    // The first bset is damaged: only the newer ones are known.
    let (hidden, newer) = (over(20), [extent, hole]);
    let gone = leaf + 8..leaf + 16;
    let mut at = range.start;
    let mut expected = Vec::new();
    for key in [hidden].iter().chain(&newer) {
        expected.push((Certainty::Suspect, at..key.start()));
        at = key.end();
    }
    expected.push((Certainty::Suspect, at..range.end));
    assert_eq!(lost_of(&image, gone), expected);
    // Damage behind the bsets: another one may have been there.
    let behind = sector + 16..sector + 24;
    let all = lost_of(&image, behind);
    let covered: u64 = all.iter().map(|(_, range)| range.end - range.start).sum();
    assert_eq!(covered, range.end - range.start);
}

#[test]
fn each_dirty_extent_in_4_kib_of_unreadable_data_is_named_as_lost_and_no_other() {
    let image = set(100);
    let data = superblock_of(&image).journal_buckets().end * BUCKET_SECTORS;
    // Extents of a sector, in a row on the cache; every other one is dirty.
    for first in [0, 1, 40, 91] {
        let of = |index: u64| (Certainty::Lost, 16 + index * 2..17 + index * 2);
        let expected: Vec<_> = (first..first + 8).filter(|at| at % 2 == 0).map(of).collect();
        assert_eq!(expected.len(), 4);
        assert_eq!(lost(&image, data + first..data + first + 8), expected, "from {first} on");
    }
}

#[test]
fn a_cache_that_claims_more_buckets_than_its_device_has_takes_no_memory_for_them() {
    let mut image = set(20);
    let new = NewCache {
        uuid: uuid(1),
        set_uuid: uuid(2),
        block_sectors: 1,
        bucket_sectors: 8,
        device_sectors: 1 << 43,
        replacement: Replacement::Lru,
        discard: false,
    };
    let superblock = CacheSuperblock::fresh(&new).expect("legal").in_use_with_journal(8);
    assert_eq!(superblock.geometry().buckets(), 1 << 40);
    image[4096..8192].copy_from_slice(&superblock.encode());
    let found = checked(&image, &[]).findings;
    let expected = Error::DeviceSize { found: BUCKETS * BUCKET_SECTORS, expected: 1 << 43 };
    assert_eq!(found, [Finding::Superblock(expected)]);
}

#[test]
fn without_priorities_only_what_the_journal_has_as_dirty_is_suspect() {
    let image = set(20);
    let superblock = superblock_of(&image);
    let loaded = load_now(&image[..], &superblock, &mut Strict(Vec::new())).expect("sound");
    let priorities = loaded.priorities[0] * BUCKET_SECTORS;
    assert_eq!(lost(&image, priorities..priorities + 1), []);
    let data = superblock.journal_buckets().end * BUCKET_SECTORS + BUCKET_SECTORS * 90;
    let dirty = Key::new(0, 900, 4).with_dirty(true).at(Pointer::new(data, Generation(0)));
    let clean = Key::new(0, 940, 4).at(Pointer::new(data + 4, Generation(0)));
    let image = with_entry(image, &[dirty, clean]);
    let expected = [(Certainty::Suspect, 896..900)];
    assert_eq!(lost(&image, priorities..priorities + 1), expected);
}

#[test]
fn dirty_extents_that_are_stale_are_lost_and_those_that_share_a_place_are_suspect() {
    let data = superblock_of(&set(4)).journal_buckets().end * BUCKET_SECTORS;
    let stale = [at(16, data, 99).with_dirty(true), at(20, data + 2, 100)];
    assert_eq!(lost(&with_leaf(&stale), 0..0), [(Certainty::Lost, 16..18)]);
    let shared = [at(16, data, 0).with_dirty(true), at(20, data + 1, 0)];
    assert_eq!(lost(&with_leaf(&shared), 0..0), [(Certainty::Suspect, 16..18)]);
}

/// Flips each bit of the metadata, one at a time. `check` finds it, or what is served is the same;
/// what it calls sound after a recovery has a torn last entry, and no other damage.
fn flip_all(mut image: Vec<u8>) {
    let expected = served(&image).expect("it is sound");
    let backings = [backing(BackingState::Dirty)];
    for byte in metadata(&image) {
        for bit in 0..8 {
            image[byte] ^= 1 << bit;
            let report = checked(&image, &backings);
            match report.severity {
                Severity::Sound => {
                    assert!(served(&image).as_ref() == Some(&expected), "byte {byte} bit {bit}");
                }
                Severity::SoundAfterRecovery => {
                    let is_torn = matches!(report.findings[..], [Finding::Torn(_)]);
                    assert!(is_torn, "byte {byte} bit {bit}: {:?}", report.findings);
                }
                Severity::Repairable | Severity::Damaged => {}
            }
            image[byte] ^= 1 << bit;
        }
    }
}

/// Extents of the set that all bits are flipped of; the long run has more.
fn extents_to_flip() -> u64 {
    let text = std::env::var("CAIRN_FLIP_EXTENTS");
    text.map_or(300, |text| text.parse().expect("CAIRN_FLIP_EXTENTS"))
}

#[test]
fn each_flipped_bit_of_the_metadata_is_found_or_changes_nothing() {
    flip_all(set(extents_to_flip()));
}

#[test]
fn each_flipped_bit_beneath_a_ring_with_many_entries_is_found_or_changes_nothing() {
    flip_all(with_ring(set(4)));
}

#[test]
fn each_flipped_bit_of_a_backing_superblock_is_found_or_changes_nothing() {
    let image = set(20);
    let whole = backing(BackingState::Dirty).superblock.expect("legal");
    let mut bytes = whole.encode();
    let says = |it: &BackingSuperblock| {
        (it.version(), it.uuid(), it.set_uuid(), it.state(), it.mode(), it.data_offset())
    };
    for bit in 0..bytes.len() * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        let superblock = match Superblock::decode(&bytes) {
            Ok(Superblock::Backing(superblock)) => {
                assert_eq!(says(&superblock), says(&whole), "bit {bit}");
                Ok(superblock)
            }
            Ok(Superblock::Cache(_)) => panic!("bit {bit}: it became a cache"),
            Err(error) => Err(error),
        };
        let is_refused = superblock.is_err();
        let given = Backing { superblock, ..backing(BackingState::Dirty) };
        let severity = checked(&image, &[given]).severity;
        assert_eq!(severity == Severity::Sound, !is_refused, "bit {bit}");
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}

proptest! {
    #[test]
    fn damage_of_any_kind_ends_in_a_report(
        changes in proptest::collection::vec(
            (any::<prop::sample::Index>(), any::<[u8; 8]>()),
            1..8,
        ),
    ) {
        let mut image = set(300);
        let metadata = metadata(&image);
        for (at, bytes) in changes {
            let at = *at.get(&metadata);
            image[at..at + 8].copy_from_slice(&bytes);
        }
        let report = checked(&image, &[backing(BackingState::Dirty)]);
        if let (Severity::Damaged, true) = (report.severity, report.findings.is_empty()) {
            prop_assert!(false, "a severity without a finding");
        }
    }
}
