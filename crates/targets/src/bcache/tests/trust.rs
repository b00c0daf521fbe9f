//! Tests of what becomes of clean extents at a start (`trust`).

use cairn_format::bcache::intent::{SLOT_BYTES, SLOT_OFFSETS};
use cairn_format::bcache::{IntentMap, SECTOR_BYTES, SUPERBLOCK_BYTES, crc64};

use super::*;

const PLACE: usize = SUPERBLOCK_SECTOR as usize * SECTOR_BYTES;

/// A set in which a session of cairn cached 8 sectors at 5000, which ended, or was killed.
fn filled(is_killed: bool) -> [Vec<u8>; 2] {
    let test = stopped();
    test.load("v", LINE);
    drain(&test).expect("the drives are well");
    test.write("v", 0, 8, 1).expect("the drives are well");
    assert_eq!([hits(&test, 5000), hits(&test, 5000)], [false, true]);
    test.run(Duration::from_secs(31));
    if !is_killed {
        test.remove("v");
    }
    [test.contents("b"), test.contents("c")]
}

fn of([backing, cache]: [Vec<u8>; 2]) -> Fixture {
    fixture(cache, backing)
}

/// Reads 4 KiB; true if all of it came from the cache.
fn hits(test: &Fixture, start: u64) -> bool {
    test.forget();
    test.read("v", start, 8).expect("the drives are well");
    let has_read = test.ops("b").iter().any(|(op, ..)| *op == Op::Read);
    test.run(Duration::from_millis(20));
    !has_read
}

/// What a kernel does that registers the set: another sequence in the superblock of the cache.
fn register(cache: &mut [u8]) {
    let superblock = &mut cache[PLACE..PLACE + SUPERBLOCK_BYTES];
    let Ok(Superblock::Cache(read)) = Superblock::decode(superblock) else { panic!("a cache") };
    superblock[112..120].copy_from_slice(&(read.seq() + 1).to_le_bytes());
    let keys = (read.journal_buckets().end - read.journal_buckets().start) as usize;
    let csum = crc64(&superblock[8..208 + 8 * keys]);
    superblock[..8].copy_from_slice(&csum.to_le_bytes());
}

/// Changes the superblock of the backing device.
fn change(backing: &mut [u8], change: impl FnOnce(&mut BackingSuperblock)) {
    let bytes = &mut backing[PLACE..PLACE + SUPERBLOCK_BYTES];
    let Ok(Superblock::Backing(mut superblock)) = Superblock::decode(bytes) else {
        panic!("a backing device")
    };
    change(&mut superblock);
    bytes.copy_from_slice(&superblock.encode());
}

fn map_of(backing: &[u8]) -> Option<IntentMap> {
    let mut map = None;
    change(&mut backing.to_vec(), |superblock| map = superblock.intent());
    map
}

fn has_written(test: &Fixture) -> bool {
    ["b", "c"].iter().any(|name| test.ops(name).iter().any(|(op, ..)| *op == Op::Write))
}

#[test]
fn what_a_session_of_cairn_cached_counts_at_the_next_start() {
    for is_killed in [false, true] {
        let images = filled(is_killed);
        let map = map_of(&images[0]).expect("the session wrote it");
        assert_eq!((map.is_closed, map.count()), (!is_killed, 0));
        let test = of(images);
        test.load("v", LINE);
        assert!(!has_written(&test) && hits(&test, 5000), "killed: {is_killed}");
    }
}

#[test]
fn what_was_cached_before_a_kernel_came_leaves_the_set_durably_and_once() {
    for is_killed in [false, true] {
        let [backing, mut cache] = filled(is_killed);
        register(&mut cache);
        let test = of([backing, cache]);
        test.load("v", LINE);
        // What is on the devices durably has nothing clean; `keep_clean` would find it.
        let [backing, cache] = ["b", "c"].map(|name| test.drive(name).durable().to_vec());
        let again = of([backing, cache]);
        again.build_read_only("v", "0 16368 bcache b c 1 keep_clean").expect("it is sound");
        again.resume("v").expect("it is sound");
        let has_clean = again.with_target("v", |it: &Bcache| {
            it.look(|set| set.tree.extents().any(|key| !key.is_dirty()))
        });
        assert_eq!(has_clean, Some(false), "killed: {is_killed}");
        let three = [hits(&test, 5000), hits(&test, 5000), hits(&test, 5000)];
        assert_eq!(three, [false, false, true], "killed: {is_killed}: it is cached again");
        test.run(Duration::from_secs(31));
        test.remove("v");
        let next = of(["b", "c"].map(|name| test.contents(name)));
        next.load("v", LINE);
        assert!(!has_written(&next) && hits(&next, 5000), "it counts from then on");
    }
}

#[test]
fn a_map_that_is_damaged_in_both_slots_or_of_another_set_vouches_for_nothing() {
    for wrong in 0..4 {
        let [mut backing, cache] = filled(false);
        match wrong {
            0 => SLOT_OFFSETS.iter().for_each(|at| backing[PLACE + at + SLOT_BYTES - 1] ^= 1),
            1 => change(&mut backing, |superblock| {
                let mut map = superblock.intent().expect("it has one");
                map.set_uuid = Uuid([9; 16]);
                superblock.set_intent(&map);
            }),
            2 => change(&mut backing, |superblock| {
                let mut map = superblock.intent().expect("it has one");
                map.journal_seq += 1000;
                superblock.set_intent(&map);
            }),
            _ => change(&mut backing, |superblock| {
                let mut map = superblock.intent().expect("it has one");
                map.cache_seq += 1;
                superblock.set_intent(&map);
            }),
        }
        let test = of([backing, cache]);
        test.load("v", LINE);
        assert!(has_written(&test), "wrong: {wrong}");
        assert!(!hits(&test, 5000), "wrong: {wrong}");
    }
}

#[test]
fn the_extents_of_a_region_with_a_bit_leave_and_the_others_stay() {
    let [mut backing, cache] = filled(false);
    change(&mut backing, |superblock| {
        let mut map = superblock.intent().expect("it has one");
        assert_eq!(map.region_sectors, 2048);
        map.set(map.region_of(16 + 5000), true);
        superblock.set_intent(&map);
    });
    let test = of([backing, cache]);
    test.load("v", LINE);
    // The drain left 0-64k and 1m-1280k clean.
    assert!(hits(&test, 2048));
    let three = [hits(&test, 5000), hits(&test, 5000), hits(&test, 5000)];
    assert_eq!(three, [false, false, true]);
    test.run(Duration::from_secs(31));
    test.remove("v");
    assert_eq!(map_of(&test.contents("b")).map(|map| map.count()), Some(0));
}

#[test]
fn keep_clean_serves_what_a_kernel_cached_and_vouches_for_nothing() {
    let [backing, mut cache] = filled(false);
    register(&mut cache);
    let test = of([backing, cache]);
    let line = "0 16368 bcache b c 1 keep_clean";
    test.load("v", line);
    assert!(!has_written(&test) && hits(&test, 5000));
    test.write("v", 9000, 8, 3).expect("the drives are well");
    // A map would name a session before this one as the newest.
    assert_eq!(durable_superblock(&test).intent(), None);
    test.remove("v");
    let test = of(["b", "c"].map(|name| test.contents(name)));
    test.load("v", line);
    assert!(hits(&test, 5000));
    test.remove("v");
    test.load("w", LINE);
    test.forget();
    test.read("w", 5000, 8).expect("the drives are well");
    assert!(test.ops("b").iter().any(|(op, ..)| *op == Op::Read), "without the word it leaves");
    assert!(test.bytes("w", 9000, 8).iter().all(|byte| *byte == 3), "dirty data stays");
}

#[test]
fn a_table_that_is_only_read_passes_over_what_a_kernel_cached() {
    let [backing, mut cache] = filled(false);
    register(&mut cache);
    let images = [backing, cache];
    let test = of(images.clone());
    test.build_read_only("v", LINE).expect("it is sound");
    test.resume("v").expect("it is sound");
    assert!(!hits(&test, 5000) && !hits(&test, 5000) && !hits(&test, 2048));
    test.remove("v");
    assert!(["b", "c"].map(|name| test.contents(name)) == images, "a byte was written");
}

#[test]
fn leaves_that_lose_all_their_extents_get_a_few_keys() {
    let clean: Vec<Key> = scattered().iter().map(|key| key.with_dirty(false)).collect();
    let uuid = Uuid([3; 16]);
    let cache = clean_cache_of(&clean, &[UuidEntry { uuid, ..UuidEntry::default() }]);
    let [_, backing] = large(&[]);
    let test = Fixture::new([("c", cache), ("b", backing)]);
    test.load("v", "0 90000 bcache b c 0");
    let written: u64 =
        test.ops("c").iter().filter(|(op, ..)| *op == Op::Write).map(|it| it.2).sum();
    // A key for each extent would take 16 bytes and 45 000 extents.
    assert!((1..45_000 * 16 / 512 / 8).contains(&written), "{written} sectors were written");
    let left = test.with_target("v", |it: &Bcache| it.look(|set| set.tree.extents().count()));
    assert_eq!(left, Some(0));
}

/// What a write of 4 KiB takes on average, over clean data or over none, one after the other at
/// random places; and what a write of the superblock of the backing device takes. The cache device
/// flushes in `flush`, and the backing device is a spinning disk.
fn times(is_over_clean: bool, flush: Duration) -> [Duration; 2] {
    const WRITES: u32 = 300;
    let all: Vec<Key> = (0..LARGE / 8).map(|at| Key::new(0, 16 + at * 8 + 8, 8)).collect();
    let extents = if is_over_clean { &all[..] } else { &[] };
    let volume = UuidEntry { uuid: Uuid([3; 16]), ..UuidEntry::default() };
    let cache = clean_cache_of(extents, &[volume]);
    let [_, mut backing] = large(&[]);
    let mut superblock = vec![0; SUPERBLOCK_BYTES];
    let at = cairn_block::Sector(SUPERBLOCK_SECTOR);
    backing.read(at, &mut superblock);
    let mut bytes = vec![0; PLACE];
    bytes.append(&mut superblock);
    change(&mut bytes, |superblock| {
        assert!(superblock.set_intent(&IntentMap::new(Uuid([2; 16]), LARGE)));
    });
    backing.write(at, &bytes[PLACE..]);
    let fast = DriveModel { flush, ..DriveModel::FAST };
    let options = |name: &str, model| DriveOptions { model, ..DriveOptions::named(name) };
    let drives = [(options("c", fast), cache), (options("b", DriveModel::SLOW), backing)];
    let test = Fixture::with_options(1, drives);
    test.load("v", &format!("0 {LARGE} bcache b c 0"));
    test.message("v", &["set", "cache_mode", "writearound"]).expect("a mode");
    test.write("v", 0, 8, 1).expect("the session begins");
    let mut rng = fastrand::Rng::with_seed(5);
    let mut places: Vec<u64> = (1..LARGE / 8).collect();
    rng.shuffle(&mut places);
    let began = test.sim.now();
    for place in &places[..WRITES as usize] {
        test.write("v", place * 8, 8, 2).expect("the drives are well");
    }
    let write = test.sim.now().since(began) / WRITES;
    let began = test.sim.now();
    for _ in 0..WRITES {
        test.message("v", &["set", "cache_mode", "writearound"]).expect("a mode");
    }
    [write, test.sim.now().since(began) / WRITES]
}

/// The figures of `docs/decisions` on the order of writes over clean data.
#[test]
fn a_hole_before_a_write_over_clean_data_costs_less_than_a_bit_in_the_superblock() {
    for flush in [50, 300, 2000].map(Duration::from_micros) {
        let ([over, superblock], [around, _]) = (times(true, flush), times(false, flush));
        eprintln!("flush {flush:?}: over {over:?}, around {around:?}, superblock {superblock:?}");
        let hole = over.saturating_sub(around);
        assert!(hole <= 3 * flush + Duration::from_micros(500), "{flush:?}: {hole:?}");
        assert!(superblock > 2 * hole, "{flush:?}: {superblock:?}, {hole:?}");
    }
}

#[test]
fn the_map_of_a_session_is_durable_before_its_first_clean_data_counts() {
    let test = of(filled(false));
    let is_closed = |test: &Fixture| {
        let map = map_of(&test.drive("b").durable().to_vec());
        map.expect("a session has written it").is_closed
    };
    test.load("v", LINE);
    assert!(is_closed(&test));
    assert!(!hits(&test, 6000), "it begins a session");
    assert!(!is_closed(&test), "the map is that of this session");
}
