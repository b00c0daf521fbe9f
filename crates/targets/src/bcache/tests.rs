//! Tests of the target as a whole, over sets that a kernel made. Its crash campaign is
//! `tests/bcache_drain.rs`.

mod beside;
mod cutoffs;
mod degraded;
mod detaching;
mod dsync;
mod fill;
mod fixed;
mod flushing;
mod gc;
mod killed;
mod life;
mod nodes;
mod order;
mod overwrite;
mod policy;
mod rate;
mod removal;
mod several;
mod statistics;
mod stripes;
mod trust;
mod zones;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::sync::Mutex;
use cairn_block::{ExtentKind, Io, IoError, Op, SectorCount, SuspendMode, Value};
use cairn_format::bcache::build::Builder;
use cairn_format::bcache::uuids::UuidEntry;
use cairn_format::bcache::{
    BackingState, BackingSuperblock, CacheMode, CacheSuperblock, Key, NewBacking, NewCache,
    Replacement, SUPERBLOCK_SECTOR, Superblock, Uuid,
};
use cairn_sim::{DriveModel, DriveOptions, Effect, Fault, Image, OpSet};
use cairn_testkit::image;

use super::volume::Bcache;
use crate::fixture::{Fixture, SECTOR, drive_options, range};

/// Records of a crash log that never asks for a commit.
const MANY_RECORDS: usize = 1 << 16;
const LINE: &str = "0 16368 bcache b c 0";

fn fixture(cache: Vec<u8>, backing: Vec<u8>) -> Fixture {
    let other = ("o", Image::of_bytes(&image("bcache", "made_v3.cache")));
    let of = |name, bytes: Vec<u8>| (name, Image::of_bytes(&bytes));
    Fixture::new([of("b", backing), of("c", cache), other])
}

/// 340 KiB dirty, in a leaf.
fn stopped() -> Fixture {
    fixture(image("bcache", "wb_stop.cache"), image("bcache", "wb_stop.backing"))
}

fn backing_in(state: BackingState) -> Vec<u8> {
    let mut bytes = image("bcache", "wb_stop.backing");
    let at = SUPERBLOCK_SECTOR as usize * SECTOR;
    let Ok(Superblock::Backing(mut superblock)) = Superblock::decode(&bytes[at..]) else {
        panic!("it is a backing device")
    };
    superblock.set_state(state);
    bytes[at..at + 4096].copy_from_slice(&superblock.encode());
    bytes
}

fn drain(test: &Fixture) -> Result<(), String> {
    let volume = test.volume("v");
    test.sim.block_on(0, |env| async move {
        volume.drain_caches(&env).await.map_err(|error| error.to_string())
    })
}

fn state_of(test: &Fixture) -> Value {
    test.target("v").report().value("state").expect("a field").clone()
}

#[test]
fn extents_that_touch_are_one_write_and_a_batch_is_one_flush() {
    let test = stopped();
    test.load("v", LINE);
    assert_eq!(state_of(&test), Value::State("dirty"));
    test.forget();
    drain(&test).expect("the drives are well");
    let (superblock, data): (Vec<_>, Vec<_>) =
        test.ops("b").into_iter().filter(|(op, ..)| *op != Op::Read).partition(|it| it.1 == 8);
    // 0-64k, 1m-1280k, 2m-2060k and 4112k-4120k, behind the superblock.
    let expected = [(16, 128), (2064, 512), (4112, 24), (8240, 16)];
    let writes: Vec<_> = data.iter().filter(|(op, ..)| *op == Op::Write).collect();
    assert_eq!(writes.iter().map(|it| (it.1, it.2)).collect::<Vec<_>>(), expected);
    assert_eq!(data.iter().filter(|(op, ..)| *op == Op::Flush).count(), 1);
    assert_eq!(superblock, [(Op::Write, 8, 8)]);
    assert_eq!(state_of(&test), Value::State("clean"));
    test.forget();
    drain(&test).expect("nothing is dirty");
    assert!(test.drive("b").faults().injected() == 0 && test.recording("b").only_read());
    assert!(test.recording("c").only_read(), "a session begins once");
}

/// The set of most tests.
const SET: Uuid = Uuid([2; 16]);

/// Sectors of the volume of [`large`].
const LARGE: u64 = 90_000;

/// A cache with these volumes, and these extents of them, all of them dirty.
fn cache_of(extents: &[Key], volumes: &[UuidEntry]) -> Image {
    let dirty: Vec<Key> = extents.iter().map(|key| key.with_dirty(true)).collect();
    clean_cache_of(&dirty, volumes)
}

/// The same with the extents as they are.
fn clean_cache_of(extents: &[Key], volumes: &[UuidEntry]) -> Image {
    cache_in(SET, extents, volumes)
}

fn cache_in(set_uuid: Uuid, extents: &[Key], volumes: &[UuidEntry]) -> Image {
    let new = NewCache {
        uuid: Uuid([1; 16]),
        set_uuid,
        block_sectors: 1,
        bucket_sectors: 128,
        device_sectors: 2 * LARGE,
        replacement: Replacement::Lru,
        discard: false,
    };
    let mut bytes = vec![0; LARGE as usize * 2 * SECTOR];
    let fresh = CacheSuperblock::fresh(&new).expect("legal");
    let mut builder = Builder::new(&fresh, 3, &mut bytes);
    for key in extents {
        builder.add(*key).expect("there is room");
    }
    let superblock = builder.finish(volumes).expect("there is room");
    let mut image = Image::of_bytes(&bytes);
    image.write(cairn_block::Sector(SUPERBLOCK_SECTOR), &superblock.encode());
    image
}

/// A set with these extents, all of them dirty: the images of the cache and of its backing device.
fn large(extents: &[Key]) -> [Image; 2] {
    let uuid = Uuid([3; 16]);
    let cache = cache_of(extents, &[UuidEntry { uuid, ..UuidEntry::default() }]);
    [cache, backing_in_set(SET, uuid)]
}

fn backing_in_set(set_uuid: Uuid, uuid: Uuid) -> Image {
    let mut image = Image::new(SectorCount(16 + LARGE));
    let at = cairn_block::Sector(SUPERBLOCK_SECTOR);
    let new = NewBacking {
        uuid,
        set_uuid,
        block_sectors: 1,
        data_offset: 16,
        mode: CacheMode::Writeback,
        state: BackingState::Dirty,
        label: [0; 32],
    };
    image.write(at, &BackingSuperblock::fresh(&new).expect("legal").encode());
    image
}

/// 45 000 extents: a long row around the end of the first batch, and others that touch by chance.
fn scattered() -> Vec<Key> {
    let rng = &mut fastrand::Rng::with_seed(13);
    let mut end = 16;
    let extent = |index: u64| {
        let gap = if (19_000..24_000).contains(&index) { 0 } else { rng.u64(..3) };
        end += gap + 1;
        Key::new(0, end, 1)
    };
    let extents: Vec<Key> = (0..45_000).map(extent).collect();
    assert!(extents.last().expect("there are some").end() <= 16 + LARGE);
    extents
}

/// The fewest writes of a mebibyte at most that have all of these extents.
fn fewest_writes(extents: &[Key]) -> Vec<(u64, u64)> {
    let mut writes: Vec<(u64, u64)> = Vec::new();
    for key in extents {
        match writes.last_mut() {
            Some((start, count)) if *start + *count == key.start() && *count < 2048 => *count += 1,
            _ => writes.push((key.start(), 1)),
        }
    }
    writes
}

#[test]
fn a_drain_flushes_once_per_full_batch_or_two_seconds_and_writes_what_touches_at_once() {
    let (extents, second) = (scattered(), Duration::from_secs(1));
    let fast = DriveModel { jitter: Duration::ZERO, ..DriveModel::FAST };
    let slow = DriveModel { fixed: Duration::from_millis(20), ..fast };
    // (drives, how many seconds the drain takes at least and at most)
    for (model, took_at_least, took_at_most) in [(fast, 0, 2), (slow, 12, 60)] {
        let options = |name: &str| DriveOptions { model, ..DriveOptions::named(name) };
        let [cache, backing] = large(&extents);
        let drives = [(options("c"), cache), (options("b"), backing)];
        let test = Fixture::with_options(1, drives);
        test.load("v", &format!("0 {LARGE} bcache b c 0"));
        test.forget();
        let began = test.sim.now();
        drain(&test).expect("the drives are well");
        let took = test.sim.now().since(began);
        assert!(took >= second * took_at_least && took <= second * took_at_most, "{took:?}");
        let seen = test.seen("b");
        let of = |op| seen.iter().filter(move |it| it.op == op && it.start != SUPERBLOCK_SECTOR);
        let mut writes: Vec<_> = of(Op::Write).map(|it| (it.start, it.count)).collect();
        writes.sort_unstable();
        assert!(writes == fewest_writes(&extents), "{} writes", writes.len());
        let flushes = of(Op::Flush).count() as u128;
        let batches = extents.len().div_ceil(20_000) as u128;
        let most = batches.max(took.as_millis().div_ceil(2000));
        assert!(flushes >= 3 && flushes <= most, "{flushes} flushes in {took:?}");
        assert_eq!(state_of(&test), Value::State("clean"));
    }
}

#[test]
fn a_suspend_ends_a_drain_and_the_next_one_goes_on() {
    let test = stopped();
    // No session begins before the drain.
    test.load("v", "0 16368 bcache b c 1 keep_clean");
    let dirty = || test.volume("v").dirty().first().map_or(0, |dirty| dirty.sectors.0);
    let before = dirty();
    let answer = Rc::new(RefCell::new(None));
    let (env, volume, place) = (test.sim.env(0).clone(), test.volume("v"), answer.clone());
    test.sim.env(0).spawn(async move {
        let drained = volume.drain_caches(&env).await;
        *place.borrow_mut() = Some(drained.map_err(|error| error.to_string()));
    });
    test.run(Duration::from_micros(60));
    test.suspend("v", SuspendMode::Flush);
    let drained = answer.take().expect("a suspend waits for it").expect_err("it was ended");
    assert!(drained.contains("a suspend ended the drain"), "{drained}");
    assert!(dirty() > 0 && dirty() <= before);
    test.resume("v").expect("the drives are well");
    assert_eq!(state_of(&test), Value::State("dirty"));
    drain(&test).expect("the drives are well");
    assert_eq!((dirty(), state_of(&test)), (0, Value::State("clean")));
}

#[test]
fn devices_that_do_not_belong_together_are_refused_and_nothing_is_written() {
    let test = stopped();
    for (line, part) in [
        ("0 16368 bcache c b 0", "b: superblock version: found that of a backing device"),
        ("0 16368 bcache b b 0", "b: cache: found the backing device, expected another device"),
        ("0 16368 bcache b o 0", "b: set_uuid: found "),
        ("0 16369 bcache b c 0", "b: device size: found 16384 sectors, expected at least 16385"),
        ("0 16368 bcache b c 2 set 00000000000000000000000000000001", "c: set_uuid: found "),
    ] {
        let refused = test.refusal("v", line);
        assert!(refused.starts_with(part), "{line}: {refused}");
    }
    // What the set says is known at the resume, which flushes before it reads.
    let flash = "0 8 bcache - c 2 flash 00000000000000000000000000000001";
    let refused = test.try_load("v", flash).expect_err("there is none").to_string();
    assert!(refused.starts_with("c: uuids: found no flash-only volume 00000000-"), "{refused}");
    let test = fixture(image("bcache", "detached.cache"), image("bcache", "detached.backing"));
    assert!(test.refusal("v", LINE).starts_with("b: set_uuid: found none, expected "));
    let test = fixture(image("bcache", "wb_stop.cache"), backing_in(BackingState::Stale));
    assert!(test.refusal("v", LINE).starts_with("b: state: found inconsistent"));
}

#[test]
fn a_backing_device_in_state_none_is_refused_with_its_cache() {
    let test = fixture(image("bcache", "wb_stop.cache"), backing_in(BackingState::None));
    let refused = test.refusal("v", LINE);
    assert!(refused.starts_with("b: state: found none, expected clean or dirty"), "{refused}");
}

#[test]
fn a_damaged_node_is_refused_with_its_place() {
    let mut cache = image("bcache", "wb_stop.cache");
    let test = stopped();
    test.load("v", LINE);
    let root = test.with_target("v", |volume: &super::Bcache| {
        volume.look(|set| set.tree.root().0).expect("it is open")
    });
    let sector = root.cached_at().expect("it lies there").sector();
    // The sequence of the first set; the keys of an empty one are not covered.
    cache[sector as usize * SECTOR + 16] ^= 1;
    let test = fixture(cache, image("bcache", "wb_stop.backing"));
    let refused = test.try_load("v", LINE).expect_err("it is damaged").to_string();
    let place = format!("c: node of level 0 at sector {sector}: bset at byte 0: checksum: ");
    assert!(refused.starts_with(&place), "{refused}");
    assert!(refused.ends_with("; see: cairn check c"), "{refused}");
}

#[test]
fn a_cache_that_claims_more_buckets_than_its_device_has_is_refused_unread() {
    let mut cache = image("bcache", "wb_stop.cache");
    let new = NewCache {
        uuid: Uuid([1; 16]),
        set_uuid: Uuid([2; 16]),
        block_sectors: 1,
        bucket_sectors: 8,
        device_sectors: 1 << 43,
        replacement: Replacement::Lru,
        discard: false,
    };
    let superblock = CacheSuperblock::fresh(&new).expect("legal").in_use_with_journal(8);
    let at = SUPERBLOCK_SECTOR as usize * SECTOR;
    cache[at..at + 4096].copy_from_slice(&superblock.encode());
    let sectors = cache.len() / SECTOR;
    let test = fixture(cache, image("bcache", "wb_stop.backing"));
    let expected =
        format!("c: device size: found {sectors} sectors, expected at least {}", 1_u64 << 43);
    assert!(test.refusal("v", LINE).starts_with(&expected), "{}", test.refusal("v", LINE));
}

#[test]
fn without_its_cache_a_backing_device_is_read_where_it_is_sound_or_on_demand() {
    let test = fixture(image("bcache", "wb_stop.cache"), backing_in(BackingState::Dirty));
    test.load("v", "0 16368 bcache b - 0");
    assert_eq!(test.read("v", 0, 8), Err(IoError::IO));
    test.load("v", "0 16368 bcache b - 1 stale_ok");
    let stale = test.read("v", 0, 8).expect("it is read as it is");
    assert!(stale == image("bcache", "wb_stop.backing")[16 * SECTOR..24 * SECTOR]);
    assert!(!test.target("v").drains());
    let test = fixture(image("bcache", "wb_stop.cache"), backing_in(BackingState::Clean));
    test.load("v", "0 16368 bcache b - 0");
    assert!(test.read("v", 0, 8).is_ok());
}

#[test]
fn what_a_lost_cache_may_have_had_is_no_hole_to_clients() {
    let kinds = |state, line: &str| {
        // Nothing was ever written to it but its superblock.
        let mut backing = Image::new(SectorCount(16384));
        let at = SUPERBLOCK_SECTOR as usize * SECTOR;
        backing.write(cairn_block::Sector(SUPERBLOCK_SECTOR), &backing_in(state)[at..at + 4096]);
        let cache = Image::of_bytes(&image("bcache", "wb_stop.cache"));
        let test = Fixture::new([("b", backing), ("c", cache)]);
        test.load("v", line);
        let extents = test.extents("v", range(0, 16368)).expect("it tells");
        let mut kinds: Vec<_> = extents.iter().map(|extent| extent.kind).collect();
        kinds.dedup();
        (kinds, extents.iter().map(|extent| extent.count.0).sum::<u64>())
    };
    let data = (vec![ExtentKind::Data], 16368);
    let (alone, stale) = ("0 16368 bcache b - 0", "0 16368 bcache b - 1 stale_ok");
    assert_eq!(kinds(BackingState::Dirty, alone), data);
    assert_eq!(kinds(BackingState::Stale, alone), data);
    assert_eq!(kinds(BackingState::Dirty, stale), data);
    let sound = kinds(BackingState::Clean, alone).0;
    assert_ne!(sound, [ExtentKind::Data], "what the backing device says");
}

#[test]
fn blocks_that_a_device_cannot_write_are_refused() {
    for (name, other) in [("b", "c"), ("c", "b")] {
        let drive = |own: &str, kind| {
            let block = if own == name { 4096 } else { 512 };
            let options =
                DriveOptions { logical_block: block, ..crate::fixture::drive_options(own) };
            (options, Image::of_bytes(&image("bcache", &format!("wb_stop.{kind}"))))
        };
        let test = Fixture::with_options(1, [drive("b", "backing"), drive("c", "cache")]);
        let refused = test.refusal("v", LINE);
        let expected =
            format!("{name}: block_size: found 512 bytes in the cache, expected at least ");
        assert!(refused.starts_with(&expected), "{refused}, {other} is well");
    }
}

#[test]
fn dirty_keys_of_a_device_that_is_called_clean_are_served_and_drained() {
    let test = fixture(image("bcache", "wb_stop.cache"), backing_in(BackingState::Clean));
    let right = stopped();
    right.load("v", LINE);
    test.load("v", LINE);
    let dirty =
        |test: &Fixture| test.volume("v").dirty().first().map_or(0, |dirty| dirty.sectors.0);
    assert_eq!((dirty(&test), dirty(&right)), (680, 680));
    assert!(test.read("v", 0, 16368) == right.read("v", 0, 16368));
    drain(&test).expect("the drives are well");
    assert_eq!((dirty(&test), state_of(&test)), (0, Value::State("clean")));
    let alone = test.contents("b")[16 * SECTOR..].to_vec();
    assert_eq!(right.read("v", 0, 16368).map(|all| all == alone), Ok(true), "it has it all");
}

/// Collects the log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// What `act` logs.
fn log_of(act: impl FnOnce()) -> String {
    let log = Log::default();
    let writer = log.clone();
    let subscriber =
        tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    tracing::subscriber::with_default(subscriber, act);
    String::from_utf8(log.0.lock().clone()).expect("it is text")
}

/// The warnings of the log while a table is loaded and resumed.
fn warnings_of(test: &Fixture, line: &str) -> Vec<String> {
    let text = log_of(|| test.load("v", line));
    text.lines().filter_map(|line| Some(line.split_once(" WARN ")?.1.to_owned())).collect()
}

#[test]
fn the_log_warns_of_clean_extents_that_no_write_intent_map_vouches_for() {
    for (line, expected) in [
        (LINE, "v: c: 128 clean sectors are not used: no write-intent map vouches for them"),
        (
            "0 16368 bcache b c 1 keep_clean",
            "v: c: 128 clean sectors are served as the kernel does: after a power cut they may \
             differ from b",
        ),
    ] {
        let warnings = warnings_of(&stopped(), line);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains(expected), "{warnings:?}");
    }
    // A cache without clean extents.
    let [cache, backing] = large(&[Key::new(0, 24, 8)]);
    let test = Fixture::new([("c", cache), ("b", backing)]);
    assert_eq!(warnings_of(&test, &format!("0 {LARGE} bcache b c 0")), [""; 0]);
}

#[test]
fn the_log_warns_of_dirty_keys_of_a_device_in_state_clean() {
    let is_contradiction = |line: &String| line.contains("dirty sectors were found");
    let test = fixture(image("bcache", "wb_stop.cache"), backing_in(BackingState::Clean));
    let warnings = warnings_of(&test, LINE);
    let found: Vec<_> = warnings.iter().filter(|line| is_contradiction(line)).collect();
    let expected = "v: the state of b is clean, but 680 dirty sectors were found on c: they are";
    assert!(found.len() == 1 && found[0].contains(expected), "{warnings:?}");
    assert!(!warnings_of(&stopped(), LINE).iter().any(is_contradiction));
    drain(&test).expect("the drives are well");
    test.suspend("v", SuspendMode::Flush);
    assert!(!warnings_of(&test, LINE).iter().any(is_contradiction), "nothing is dirty");
}

#[test]
fn dirty_keys_outside_of_the_data_are_refused() {
    let data = 16 + LARGE;
    for (extent, is_sound) in [
        (Key::new(0, 16, 8), false),
        (Key::new(0, 17, 2), false),
        (Key::new(0, 24, 8), true),
        (Key::new(0, data, 8), true),
        (Key::new(0, data + 1, 2), false),
        (Key::new(0, data + 90, 2), false),
    ] {
        let [cache, backing] = large(&[extent]);
        let test = Fixture::new([("c", cache), ("b", backing)]);
        let loaded = test.try_load("v", &format!("0 {LARGE} bcache b c 0"));
        let refused = loaded.err().map(|error| error.to_string());
        let expected = format!("c: extent {:?}", extent);
        let expected = expected.trim_end_matches(" dirty");
        assert_eq!(refused.is_none(), is_sound, "{extent:?}: {refused:?}");
        assert!(refused.is_none_or(|line| line.starts_with(expected)), "{extent:?}");
    }
}

#[test]
fn a_volume_says_what_it_is() {
    let test = stopped();
    test.load("v", LINE);
    assert_eq!(test.io("v", |_| Io::flush()), Ok(()));
    let attributes = test.target("v").attributes();
    let value = |name| attributes.iter().find(|it| it.name == name).expect(name).value.clone();
    assert_eq!(value("state"), Value::State("dirty"));
    assert_eq!(value("cache_mode"), Value::State("writeback"));
    assert_eq!(value("dirty_data"), Value::Gauge(680));
    assert_eq!((value("bucket_size"), value("block_size")), (Value::Gauge(128), Value::Gauge(1)));
    assert_eq!((value("tree_depth"), value("btree_nodes")), (Value::Gauge(0), Value::Gauge(1)));
    assert_eq!(value("set"), Value::Absent);
    test.read("v", 0, 8).expect("dirty");
    test.read("v", 9000, 8).expect("not cached");
    assert_eq!(test.target("v").report().number("cache_hits"), Some(1));
    assert_eq!(test.target("v").report().number("cache_misses"), Some(1));
}

/// Where the data of writes went: the sectors of the volume that the backing device got.
fn written_around(test: &Fixture) -> Vec<u64> {
    let data = test.ops("b").into_iter().filter(|(op, at, _)| *op == Op::Write && *at >= 16);
    data.map(|(_, at, _)| at - 16).collect()
}

#[test]
fn long_stream_goes_around_the_cache_but_for_dirty_data() {
    let test = stopped();
    test.load("v", LINE);
    drain(&test).expect("the drives are well");
    test.message("v", &["set", "sequential_cutoff", "65536"]).expect("a number in its range");
    test.write("v", 8232, 8, 6).expect("the drives are well");
    test.forget();
    for start in (8104..8264).step_by(16) {
        test.write("v", start, 16, 7).expect("the drives are well");
        test.write("v", 12_000 + start * 2 % 3000, 8, 8).expect("the drives are well");
    }
    assert_eq!(written_around(&test), [8216, 8248]);
    assert!(test.bytes("v", 8104, 160).iter().all(|byte| *byte == 7));
    test.message("v", &["set", "sequential_cutoff", "0"]).expect("a number in its range");
    test.write("v", 8264, 16, 9).expect("the drives are well");
    assert_eq!(written_around(&test), [0; 0], "no stream bypasses the cache");
}

#[test]
fn writes_go_around_a_congested_cache() {
    let around = |threshold| {
        let slow = Duration::from_millis(50);
        let drive = |name, fixed, file| {
            let model = DriveModel { fixed, ..drive_options(name).model };
            let options = DriveOptions { model, ..drive_options(name) };
            (options, Image::of_bytes(&image("bcache", file)))
        };
        let drives = [
            drive("b", Duration::from_micros(100), "wb_stop.backing"),
            drive("c", slow, "wb_stop.cache"),
        ];
        let test = Fixture::with_options(1, drives);
        test.load("v", LINE);
        drain(&test).expect("the drives are well");
        test.message("v", &["set", "congested_write_threshold_us", threshold]).expect("a number");
        test.forget();
        for write in 0..60 {
            test.write("v", 10_000 + write * 32, 8, 7).expect("the drives are well");
        }
        written_around(&test).len()
    };
    assert_eq!((around("60000"), around("0")), (0, 0));
    assert!((30..60).contains(&around("20000")), "the limit falls with each slow write");
}

/// The superblock of the backing device as a power cut leaves it.
fn durable_superblock(test: &Fixture) -> BackingSuperblock {
    let bytes = test.drive("b").durable().to_vec();
    let at = SUPERBLOCK_SECTOR as usize * SECTOR;
    match Superblock::decode(&bytes[at..]) {
        Ok(Superblock::Backing(superblock)) => superblock,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_mode_is_durable_once_its_message_is_answered() {
    let test = stopped();
    test.load("v", LINE);
    for (word, mode) in [("none", CacheMode::None), ("writeback", CacheMode::Writeback)] {
        test.message("v", &["set", "cache_mode", word]).expect("a mode");
        assert_eq!(durable_superblock(&test).mode(), mode);
    }
}

#[test]
fn the_state_is_durable_before_the_first_dirty_data_and_after_a_drain() {
    let test = stopped();
    test.load("v", LINE);
    for _ in 0..2 {
        drain(&test).expect("the drives are well");
        assert_eq!(durable_superblock(&test).state(), BackingState::Clean);
        test.write("v", 0, 8, 7).expect("the drives are well");
        assert_eq!(durable_superblock(&test).state(), BackingState::Dirty);
    }
}

#[test]
fn a_key_that_comes_while_a_commit_runs_enters_the_journal_without_a_request() {
    let test = stopped();
    test.load("v", LINE);
    drain(&test).expect("the drives are well");
    test.message("v", &["set", "writeback_running", "0"]).expect("in its range");
    test.write("v", 0, 8, 7).expect("the drives are well");
    let effect = Effect::Delay(Duration::from_millis(250));
    test.drive("c").faults().add(Fault { effect, ..Fault::error(OpSet::FLUSHES) });
    // The commit of the first key begins after 100 ms, and runs when the second one is due.
    test.run(Duration::from_millis(110));
    test.write("v", 64, 8, 7).expect("the drives are well");
    let owes_a_commit = || {
        test.with_target("v", |volume: &Bcache| {
            volume.look(|set| set.changes.owe_a_commit()).expect("it is open")
        })
    };
    assert!(owes_a_commit());
    test.run(Duration::from_secs(5));
    assert!(!owes_a_commit());
}

#[test]
fn messages_with_wrong_words_are_refused_with_what_was_expected() {
    let test = stopped();
    test.load("v", LINE);
    for (words, expected) in [
        (&["set", "sequential_cutoff", "4M"][..], "found '4M', expected a number of bytes from 0"),
        (&["set", "speed", "1"], "found 'set speed', expected set and one of cache_mode, write"),
        (&["set", "dirty_data", "0"], "dirty_data: found 'set', expected 'get': it is only read"),
        (&["set", "journal_delay_ms", "65536"], "a number of milliseconds from 0 to 65535"),
        (&["set", "speed"], "found 'set speed', expected set <name> <value>, get <name>"),
        (&["set", "cache_mode", "fast"], "found 'fast', expected writethrough, writeback"),
    ] {
        let error = test.message("v", words).expect_err("it is wrong").to_string();
        assert!(error.contains(expected), "{words:?}: {error}");
    }
}
