//! Tests of a backing device whose data nothing writes: a volume composed of a file with the
//! superblock and an image that is only read.

use cairn_block::{Disk, ErrorKind};

use super::*;

/// Sectors of the image.
const IMAGE: u64 = 4096;
const COMPOSED: &str = "0 16 linear h 0\n16 4096 linear i 0";
const FIXED: &str = "0 4096 bcache @b c 0";

fn content(sectors: u64) -> Vec<u8> {
    (0..sectors).flat_map(|sector| [(sector % 251) as u8 + 1; SECTOR]).collect()
}

/// The file with the superblock, of a set with nothing dirty or with one dirty extent.
fn head(state: BackingState) -> Image {
    let mut image = Image::new(SectorCount(16));
    let new = NewBacking {
        uuid: Uuid([3; 16]),
        set_uuid: SET,
        block_sectors: 1,
        data_offset: 16,
        mode: CacheMode::Writeback,
        state,
        label: [0; 32],
    };
    let at = cairn_block::Sector(SUPERBLOCK_SECTOR);
    image.write(at, &BackingSuperblock::fresh(&new).expect("legal").encode());
    image
}

fn over(drives: [(&str, Image); 3]) -> Fixture {
    let options = |name: &str| DriveOptions { read_only: name == "i", ..drive_options(name) };
    Fixture::with_options(1, drives.map(|(name, image)| (options(name), image)))
}

fn with_extents(extents: &[Key]) -> Fixture {
    let uuid = Uuid([3; 16]);
    let cache = cache_of(extents, &[UuidEntry { uuid, ..UuidEntry::default() }]);
    let state = if extents.is_empty() { BackingState::Clean } else { BackingState::Dirty };
    over([("h", head(state)), ("i", Image::of_bytes(&content(IMAGE))), ("c", cache)])
}

fn load(test: &Fixture) {
    test.load("b", COMPOSED);
    test.load("v", FIXED);
}

fn served() -> Fixture {
    let test = with_extents(&[]);
    load(&test);
    test
}

/// Reads these sectors, whose content must be that of the image. True if it took the cache alone.
fn hits(test: &Fixture, start: u64, count: u64) -> bool {
    test.forget();
    let expected = &content(IMAGE)[start as usize * SECTOR..][..count as usize * SECTOR];
    assert!(test.read("v", start, count).expect("the drives are well") == expected);
    let has_read = !test.ops("i").is_empty();
    test.run(Duration::from_millis(20));
    !has_read
}

/// Fills the cache with the first quarter of the image; durably, after a checkpoint.
fn fill(test: &Fixture) {
    hits(test, 0, 8); // it begins a session
    for start in (0..IMAGE / 4).step_by(64) {
        hits(test, start, 64);
    }
    test.run(Duration::from_secs(40));
}

fn is_warm(test: &Fixture) -> bool {
    (0..IMAGE / 4).step_by(64).all(|start| hits(test, start, 64))
}

fn superblock_of(test: &Fixture) -> BackingSuperblock {
    let head = test.drive("h").durable().to_vec();
    match Superblock::decode(&head[SUPERBLOCK_SECTOR as usize * SECTOR..]) {
        Ok(Superblock::Backing(superblock)) => superblock,
        other => panic!("{other:?}"),
    }
}

/// What a power cut leaves.
fn after_power_cut(test: &Fixture) -> Fixture {
    over(["h", "i", "c"].map(|name| (name, test.drive(name).durable())))
}

#[test]
fn what_was_read_is_in_the_cache_after_a_restart_a_kill_and_a_power_cut() {
    let test = served();
    assert!(!is_warm(&test));
    fill(&test);
    assert!(is_warm(&test));
    test.remove("v");
    test.remove("b");
    load(&test);
    assert!(is_warm(&test), "after a restart");
    // A session is under way.
    hits(&test, 3000, 8);
    assert_eq!([hits(&test, 3000, 8), hits(&test, 3000, 8)], [false, true]);
    let cut = after_power_cut(&test);
    let killed = test.killed();
    for (how, test) in [("a kill", &killed), ("a power cut", &cut)] {
        load(test);
        assert!(is_warm(test), "after {how}");
        hits(test, 3000, 8);
    }
}

/// What a power cut leaves that keeps some of what is volatile.
fn after_torn_power_cut(test: &Fixture, rng: &mut fastrand::Rng) -> Fixture {
    over(["h", "i", "c"].map(|name| (name, test.drive(name).power_cut(rng))))
}

#[test]
fn lives_that_end_at_any_time_show_the_image_and_nothing_else() {
    let mut warm = 0;
    for seed in 0..3 {
        let rng = &mut fastrand::Rng::with_seed(seed);
        let mut test = with_extents(&[]);
        for _ in 0..3 {
            load(&test);
            warm += (0..IMAGE).step_by(64).filter(|start| hits(&test, *start, 64)).count();
            for _ in 0..rng.u64(1..20) {
                let (start, sectors) = (rng.u64(..IMAGE - 64), rng.u64(1..64));
                test.start("v", "read", move |env| {
                    let count = SectorCount(sectors);
                    Io::read(range(start, sectors), env.segs(count))
                });
                test.run(Duration::from_micros(rng.u64(..3000)));
            }
            if rng.bool() {
                test.run(Duration::from_secs(35));
            }
            test = match rng.bool() {
                true => test.killed(),
                false => after_torn_power_cut(&test, rng),
            };
        }
    }
    assert!(warm > 0, "nothing outlives a life");
}

#[test]
fn clients_write_nothing_and_only_the_superblock_and_the_cache_are_written() {
    let test = served();
    assert!(test.volume("v").limits().read_only && !test.volume("v").limits().discard);
    fill(&test);
    let refused = [
        test.write("v", 0, 8, 7),
        test.write("v", 3000, 8, 7),
        test.zero("v", 0, 8),
        test.discard("v", 0, 8),
    ];
    for result in refused {
        assert_eq!(result.expect_err("it is fixed").kind, ErrorKind::ReadOnly);
    }
    test.flush("v").expect("the drives are well");
    assert!(hits(&test, 0, 8));
    test.message("v", &["set", "cache_mode", "writethrough"]).expect("the superblock is written");
    assert_eq!(superblock_of(&test).mode(), CacheMode::Writethrough);
    test.suspend("v", SuspendMode::Flush);
    assert!(test.drive("i").visible().to_vec() == content(IMAGE));
    assert_eq!(superblock_of(&test).state(), BackingState::Clean);
}

#[test]
fn dirty_data_that_could_not_be_written_back_is_refused_and_kept() {
    let test = with_extents(&[Key::new(0, 24, 8)]);
    test.load("b", COMPOSED);
    test.forget();
    let refused = test.try_load("v", FIXED).expect_err("it is dirty").to_string();
    let is_write = |(op, ..): &(Op, u64, u64)| !matches!(op, Op::Read | Op::Flush);
    assert!(!["h", "c"].iter().any(|name| test.ops(name).iter().any(is_write)));
    let expected = "@b: data: found read-only with 8 dirty sectors in the cache, expected none";
    assert!(refused.starts_with(expected), "{refused}");
    assert_eq!(superblock_of(&test).state(), BackingState::Dirty);
}

#[test]
fn a_state_that_was_left_dirty_without_dirty_data_is_served() {
    let test = with_extents(&[]);
    let dirty = over([
        ("h", head(BackingState::Dirty)),
        ("i", test.drive("i").durable()),
        ("c", test.drive("c").durable()),
    ]);
    load(&dirty);
    fill(&dirty);
    assert!(is_warm(&dirty));
    drain(&dirty).expect("nothing is dirty");
}

#[test]
fn what_needs_to_be_written_and_cannot_be_is_refused() {
    let test = with_extents(&[]);
    for (composed, part) in [
        ("0 16 linear h 0\n16 4096 zero", "@b: backing: found a volume, expected a file"),
        (
            "0 16 linear h 0\n16 4088 linear i 0\n4104 8 zero",
            "@b: data: found only sectors 16+4088 read-only, expected all of the data read-only",
        ),
    ] {
        test.load("b", composed);
        let refused = test.refusal("v", FIXED);
        assert!(refused.starts_with(part), "{refused}");
    }
    test.load("b", COMPOSED);
    test.load("fast", "0 90000 linear c 0\n90000 4096 linear i 0\n94096 85904 linear c 94096");
    let refused = test.refusal("v", "0 4096 bcache @b @fast 0");
    let expected = "@fast: cache: found sectors 90000+4096 read-only, expected a writable device";
    assert!(refused.starts_with(expected), "{refused}");
}

#[test]
fn a_superblock_that_cannot_be_written_is_refused_with_a_cache() {
    let test = with_extents(&[]);
    let image = [test.drive("h").durable().to_vec(), content(IMAGE)].concat();
    let read_only = DriveOptions { read_only: true, ..drive_options("i") };
    let cache = (drive_options("c"), test.drive("c").durable());
    let test = Fixture::with_options(1, [(read_only, Image::of_bytes(&image)), cache]);
    let refused = test.refusal("v", "0 4096 bcache i c 0");
    let expected = "i: superblock: found it read-only, expected a writable device";
    assert_eq!(refused, expected);
}

#[test]
fn without_its_failed_cache_the_image_is_read_and_not_written() {
    let test = served();
    fill(&test);
    test.drive("c").faults().add(Fault::error(OpSet::ALL));
    for start in 0..20 {
        let _ = test.read("v", start * 4, 4);
    }
    test.run(Duration::from_millis(200));
    let superblock = superblock_of(&test);
    assert_eq!((superblock.state(), superblock.set_uuid()), (BackingState::None, Uuid::ZERO));
    assert!(!hits(&test, 0, 64));
    assert_eq!(test.write("v", 0, 8, 7).expect_err("it is fixed").kind, ErrorKind::ReadOnly);
    test.remove("v");
    test.load("v", "0 4096 bcache @b - 0");
    assert!(!hits(&test, 0, 64));
    assert_eq!(test.write("v", 0, 8, 7).expect_err("it is fixed").kind, ErrorKind::ReadOnly);
}

#[test]
fn a_table_beneath_that_makes_the_data_writable_is_noticed_at_the_next_resume() {
    let test = served();
    fill(&test);
    test.suspend("v", SuspendMode::Flush);
    test.swap("b", "0 16 linear h 0\n16 4096 zero")
        .expect("no request is under way")
        .whole()
        .unwrap();
    let refused = test.resume("v").expect_err("its data changes").to_string();
    assert!(refused.starts_with("@b: backing: found a volume"), "{refused}");
}

#[test]
fn two_volumes_have_the_same_image_beneath() {
    let test = served();
    test.load("other", "0 4096 linear i 0");
    test.load("reader", "0 4096 linear @other 0");
    assert_eq!(test.read("reader", 8, 8), Ok(content(16)[8 * SECTOR..].to_vec()));
    assert!(!hits(&test, 8, 8));
}
