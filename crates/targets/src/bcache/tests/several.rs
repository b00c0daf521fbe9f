//! Tests of sets with several volumes.

use cairn_block::Disk;

use super::*;
use crate::fixture::Client;

pub(super) const B: &str = "0 90000 bcache b c 0";
pub(super) const D: &str = "0 30000 bcache d c 0";
const FLASH: Uuid = Uuid([5; 16]);

pub(super) fn flash_line() -> String {
    format!("0 4096 bcache - c 2 flash {FLASH}")
}

/// A set with two backing devices, `b` and `d`, a third of its size, and a flash-only volume.
/// Nothing is cached.
pub(super) fn shared() -> Fixture {
    let of = |byte| UuidEntry { uuid: Uuid([byte; 16]), ..UuidEntry::default() };
    let flash = UuidEntry { flags: 1, sectors: 4096, ..of(5) };
    let backing = |byte, sectors: u64| {
        let mut image = Image::new(SectorCount(16 + sectors));
        let new = NewBacking {
            uuid: Uuid([byte; 16]),
            set_uuid: Uuid([2; 16]),
            block_sectors: 1,
            data_offset: 16,
            mode: CacheMode::Writeback,
            state: BackingState::Clean,
            label: [0; 32],
        };
        let at = cairn_block::Sector(SUPERBLOCK_SECTOR);
        image.write(at, &BackingSuperblock::fresh(&new).expect("legal").encode());
        image
    };
    let cache = cache_of(&[], &[of(3), of(4), flash]);
    Fixture::new([("c", cache), ("b", backing(3, 90_000)), ("d", backing(4, 30_000))])
}

fn dirty(test: &Fixture, volume: &str) -> Value {
    test.target(volume).report().value("dirty_data").expect("a field").clone()
}

#[test]
fn volumes_of_a_set_are_served_at_the_same_time() {
    let test = shared();
    test.load("v", B);
    test.load("w", D);
    test.load("f", &flash_line());
    for (volume, byte) in [("v", 1), ("w", 2), ("f", 3)] {
        test.write(volume, 8, 16, byte).expect("the drives are well");
    }
    test.forget();
    test.flush("v").expect("the drives are well");
    let writes = test.ops("c").into_iter().filter(|it| it.0 == Op::Write).count();
    assert_eq!(writes, 1, "one entry has the keys of all");
    test.forget();
    test.flush("w").expect("nothing is left to do");
    assert!(test.ops("c").is_empty());
    drain(&test).expect("the drives are well");
    assert_eq!(["v", "w"].map(|volume| dirty(&test, volume)), [Value::Gauge(0), Value::Gauge(16)]);
    // Each is suspended and resumed while the others serve.
    for (volume, byte) in [("v", 1), ("w", 2), ("f", 3)] {
        test.suspend(volume, SuspendMode::Flush);
        test.forget();
        test.resume(volume).expect("it was served");
        let reads = test.ops("c").into_iter().filter(|it| it.0 == Op::Read);
        assert_eq!(reads.collect::<Vec<_>>(), [(Op::Read, 8, 8)], "the set is in memory");
        assert!(test.bytes(volume, 8, 16).iter().all(|read| *read == byte), "{volume}");
    }
}

#[test]
fn what_a_volume_cached_counts_after_sessions_of_the_others() {
    let test = shared();
    let hits = |test: &Fixture, volume| {
        test.forget();
        test.read(volume, 5000, 8).expect("the drives are well");
        let backing = if volume == "v" { "b" } else { "d" };
        let has_read = test.ops(backing).iter().any(|(op, ..)| *op == Op::Read);
        test.run(Duration::from_millis(20));
        !has_read
    };
    test.load("v", B);
    test.load("w", D);
    for volume in ["v", "w"] {
        let three = [hits(&test, volume), hits(&test, volume), hits(&test, volume)];
        assert_eq!(three, [false, false, true], "{volume}");
    }
    test.suspend("v", SuspendMode::Flush);
    test.suspend("w", SuspendMode::Flush);
    for _ in 0..3 {
        test.resume("v").expect("the drives are well");
        test.write("v", 8, 8, 1).expect("the drives are well");
        test.suspend("v", SuspendMode::Flush);
    }
    test.resume("w").expect("the drives are well");
    assert!(hits(&test, "w"));
}

#[test]
fn the_last_volume_ends_the_session_of_the_set() {
    let test = shared();
    test.load("v", B);
    test.load("w", D);
    test.write("v", 0, 8, 1).expect("the drives are well");
    test.write("w", 0, 8, 2).expect("the drives are well");
    test.suspend("v", SuspendMode::Flush);
    let between = test.contents("c");
    test.run(Duration::from_secs(1));
    test.write("w", 8, 8, 3).expect("the drives are well");
    test.suspend("w", SuspendMode::Flush);
    assert_ne!(test.contents("c"), between, "the other volume went on");
    test.forget();
    test.run(Duration::from_secs(120));
    assert!(test.ops("c").is_empty(), "no task of the set runs");
    for volume in ["w", "v"] {
        test.resume(volume).expect("the drives are well");
    }
    assert!(test.bytes("v", 0, 8).iter().all(|byte| *byte == 1));
    assert!(test.bytes("w", 8, 8).iter().all(|byte| *byte == 3));
}

#[test]
fn a_volume_of_a_set_is_served_once() {
    let test = shared();
    test.load("f", &flash_line());
    let error = test.try_load("g", &flash_line()).expect_err("f serves it").to_string();
    assert!(error.contains(&format!("volume {FLASH}: found it served by f")), "{error}");
    test.write("f", 0, 8, 1).expect("f goes on");
    test.suspend("f", SuspendMode::Flush);
    test.load("g", &flash_line());
    assert!(test.bytes("g", 0, 8).iter().all(|byte| *byte == 1));
}

#[test]
fn a_failure_of_the_cache_is_told_to_the_volumes_with_lost_keys() {
    let test = shared();
    test.load("v", B);
    test.load("w", D);
    let clients = ["v", "w"].map(|volume| Client::new(test.volume(volume)));
    test.write("w", 0, 8, 1).expect("the drives are well");
    test.flush("w").expect("the drives are well");
    test.write("v", 0, 8, 1).expect("the drives are well");
    test.drive("c").faults().add(Fault::error(OpSet::WRITES));
    test.run(Duration::from_secs(1));
    // Both have dirty data, so both are stopped; one has lost nothing.
    let losses = ["v", "w"].map(|volume| test.volume(volume).failures());
    assert_eq!(losses, [1, 0]);
    assert!(clients.iter().all(|client| test.flush_of(client).is_err()));
    assert_eq!(["v", "w"].map(|volume| test.read(volume, 0, 8)), [const { Err(IoError::IO) }; 2]);
    // The set is opened again once no volume serves it.
    test.drive("c").faults().clear();
    test.suspend("w", SuspendMode::Flush);
    let error = test.resume("w").expect_err("v serves the set that failed").to_string();
    assert!(error.contains("found that it could not be written while it serves v"), "{error}");
    assert!(test.try_suspend("v", SuspendMode::Flush).is_err());
    test.resume("w").expect("it is read again");
    assert!(test.bytes("w", 0, 8).iter().all(|byte| *byte == 1));
}

#[test]
fn each_backing_device_has_its_share_of_what_may_be_dirty() {
    let test = shared();
    let target = |volume| {
        let debug = test.message(volume, &["get", "writeback_rate_debug"]).expect("a volume");
        debug.lines().find_map(|line| line.strip_prefix("target:\t\t").map(str::to_owned))
    };
    test.load("v", B);
    let alone = target("v");
    test.load("w", D);
    assert_eq!([target("v"), target("w")].map(Option::unwrap), ["6.5M", "2.1M"]);
    test.suspend("w", SuspendMode::Flush);
    assert_eq!(target("v"), alone);
}
