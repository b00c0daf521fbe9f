//! Tests of the life of a backing device: alone, attached, forced.

use super::super::Attached;
use super::*;
use crate::args::Device;
use crate::fixture::Client;
use cairn_block::Disk;

const SET: Uuid = Uuid([2; 16]);
const LINEAR: &str = "0 4096 linear b 16";
const ALONE: &str = "0 4096 bcache b - 0";
const ATTACH: &str = "0 4096 bcache b c 1 attach";

/// A backing device of 4096 sectors of data.
fn backing(uuid: u8, set_uuid: Uuid, state: BackingState, block_sectors: u16) -> Image {
    let mut image = Image::new(SectorCount(16 + 4096));
    let new = NewBacking {
        uuid: Uuid([uuid; 16]),
        set_uuid,
        block_sectors,
        data_offset: 16,
        mode: CacheMode::Writeback,
        state,
        label: *b"a device of its own\0\0\0\0\0\0\0\0\0\0\0\0\0",
    };
    let at = cairn_block::Sector(SUPERBLOCK_SECTOR);
    image.write(at, &BackingSuperblock::fresh(&new).expect("legal").encode());
    image
}

/// Such devices `b` and `d`, and a set with these volumes.
fn devices(b: Image, volumes: &[UuidEntry]) -> Fixture {
    let d = backing(4, SET, BackingState::Clean, 1);
    Fixture::new([("b", b), ("c", cache_of(&[], volumes)), ("d", d)])
}

fn unattached() -> Fixture {
    devices(backing(3, Uuid::ZERO, BackingState::None, 1), &[])
}

fn entry(byte: u8) -> UuidEntry {
    UuidEntry { uuid: Uuid([byte; 16]), ..UuidEntry::default() }
}

fn superblock(test: &Fixture, name: &str) -> BackingSuperblock {
    superblock_in(test.drive(name).durable())
}

fn superblock_in(image: Image) -> BackingSuperblock {
    let bytes = image.to_vec();
    match Superblock::decode(&bytes[SUPERBLOCK_SECTOR as usize * SECTOR..]) {
        Ok(Superblock::Backing(superblock)) => superblock,
        other => panic!("it is a backing device: {other:?}"),
    }
}

fn inode(test: &Fixture, volume: &str) -> u32 {
    test.with_target(volume, |volume: &Bcache| volume.inode())
}

fn is_all(test: &Fixture, start: u64, byte: u8) {
    assert!(test.bytes("v", start, 8).iter().all(|read| *read == byte), "{start}");
}

#[test]
fn device_of_no_set_joins_one_on_a_running_volume() {
    let test = unattached();
    test.load("v", LINEAR);
    test.write("v", 0, 8, 1).expect("the drives are well");
    test.load("v", ATTACH);
    assert_eq!(state_of(&test), Value::State("clean"));
    assert_eq!(test.target("v").table(), "b c 0", "the word was acted upon");
    let attached = superblock(&test, "b");
    assert_eq!((attached.set_uuid(), attached.state()), (SET, BackingState::Clean));
    assert_eq!(inode(&test, "v"), 0);
    is_all(&test, 0, 1);
    test.write("v", 8, 8, 2).expect("the drives are well");
    drain(&test).expect("the drives are well");
    test.remove("v");
    test.load("v", "0 4096 bcache b c 0");
    is_all(&test, 0, 1);
    is_all(&test, 8, 2);
    let label = test.with_target("v", |volume: &Bcache| {
        volume.look(|set| set.volume(Uuid([3; 16])).expect("it joined").1.label_text())
    });
    assert_eq!(label.as_deref(), Some("a device of its own"));
}

#[test]
fn member_of_the_set_is_served_and_the_array_stays() {
    let test = devices(backing(3, SET, BackingState::Clean, 1), &[entry(3)]);
    test.forget();
    test.load("v", ATTACH);
    assert_eq!(test.target("v").table(), "b c 0");
    for name in ["b", "c"] {
        assert!(test.ops(name).iter().all(|(op, ..)| *op != Op::Write), "{name}");
    }
}

#[test]
fn device_that_was_of_the_set_gets_a_number_that_was_never_used() {
    for state in [BackingState::None, BackingState::Stale] {
        let set_uuid = if state == BackingState::None { Uuid::ZERO } else { SET };
        let b = backing(3, set_uuid, state, 1);
        let mut image = cache_of(&[Key::new(1, 24, 8)], &[entry(4), entry(3)]);
        // The dirty data of its former number, which is given up.
        image.write(cairn_block::Sector(2 * LARGE - 8), &[9; 8 * SECTOR]);
        let d = backing(4, SET, BackingState::Clean, 1);
        let test = Fixture::new([("b", b), ("c", image), ("d", d)]);
        test.load("v", ATTACH);
        assert_eq!(inode(&test, "v"), 2);
        is_all(&test, 0, 0);
        assert_eq!(test.target("v").dirty().map(|dirty| dirty.sectors.0), None);
        let former = test.with_target("v", |volume: &Bcache| {
            volume.look(|set| set.volume(Uuid([3; 16])).map(|(inode, _)| inode)).flatten()
        });
        assert_eq!(former, Some(2), "the former entry is invalid");
    }
}

#[test]
fn attach_is_refused_where_data_or_a_volume_would_be_lost() {
    let other = Uuid([9; 16]);
    for (b, volumes, part) in [
        (backing(3, other, BackingState::Dirty, 1), vec![], "b: set_uuid: found 09090909-"),
        (backing(4, Uuid::ZERO, BackingState::None, 1), vec![entry(4)], "b: uuid: found 0404"),
    ] {
        let test = devices(b, &volumes);
        if !volumes.is_empty() {
            test.load("w", "0 4096 bcache d c 0");
        }
        let before = superblock(&test, "b").encode();
        let refused = test.try_load("v", ATTACH).expect_err("it is refused").to_string();
        assert!(refused.starts_with(part), "{refused}");
        assert_eq!(superblock(&test, "b").encode(), before);
    }
    let numbered = |n: u16| UuidEntry {
        uuid: Uuid(std::array::from_fn(|at| n.to_le_bytes()[at % 2] | 128)),
        ..UuidEntry::default()
    };
    let full: Vec<UuidEntry> = (0..512).map(numbered).collect();
    let test = devices(backing(3, Uuid::ZERO, BackingState::None, 1), &full);
    let refused = test.try_load("v", ATTACH).expect_err("it is refused").to_string();
    assert!(refused.starts_with("c: uuids: found no unused entry"), "{refused}");
    let test = unattached();
    let refused = test.build_read_only("v", ATTACH).expect_err("nothing is written").to_string();
    assert!(refused.starts_with("b: attach: found a device that is not of the set"), "{refused}");
}

#[test]
fn blocks_of_the_backing_device_are_at_least_those_of_the_set() {
    let b = backing(3, Uuid::ZERO, BackingState::None, 1);
    let cache = Image::of_bytes(&image("bcache", "wt_mixed.cache"));
    let test = Fixture::new([("b", b), ("c", cache)]);
    let expected = "b: block_size: found 1 sectors, expected at least that of the cache, 8 sectors";
    assert_eq!(test.refusal("v", ATTACH), expected);
}

#[test]
fn failed_write_of_an_attach_leaves_a_device_that_is_used_alone_or_attached_again() {
    for (name, ops) in [
        ("b", OpSet::WRITES),
        ("b", OpSet::FLUSHES),
        ("c", OpSet::WRITES),
        ("c", OpSet::DURABLE_WRITES),
        ("c", OpSet::FLUSHES),
    ] {
        let test = unattached();
        test.load("v", LINEAR);
        test.write("v", 0, 8, 1).expect("the drives are well");
        test.flush("v").expect("the drives are well");
        test.drive(name).faults().add(Fault::error(ops));
        test.try_load("v", ATTACH).expect_err("a device fails");
        test.drive(name).faults().clear();
        assert_eq!(superblock(&test, "b").state(), BackingState::None, "{name}");
        is_all(&test, 0, 1);
        test.load("v", ATTACH);
        is_all(&test, 0, 1);
        assert_eq!(superblock(&test, "b").state(), BackingState::Clean, "{name}");
    }
}

#[test]
fn device_of_no_set_is_read_and_written_without_a_cache() {
    let test = unattached();
    test.load("v", ALONE);
    assert!(!test.volume("v").limits().read_only);
    test.forget();
    test.write("v", 8, 8, 5).expect("it passes through");
    test.flush("v").expect("it passes through");
    test.discard("v", 64, 8).expect("it passes through");
    let ops: Vec<_> = test.ops("b").into_iter().filter(|it| it.0 != Op::Read).collect();
    assert_eq!(ops, [(Op::Write, 24, 8), (Op::Flush, 16, 0), (Op::Discard, 80, 8)]);
    is_all(&test, 8, 5);
    assert_eq!(state_of(&test), Value::State("none"));
    let client = Client::new(test.volume("v"));
    test.write("v", 8, 8, 6).expect("it passes through");
    test.lose_by_another("b");
    assert_eq!(test.flush_of(&client), Err(IoError::IO), "the loss is told once");
    assert_eq!(test.flush_of(&client), Ok(()));
    test.load("v", ATTACH);
    test.load("v", "0 4096 bcache b c 0");
    assert_eq!(superblock(&test, "b").state(), BackingState::Clean);
}

#[test]
fn device_of_a_set_whose_cache_is_absent_is_not_written() {
    for state in [BackingState::Clean, BackingState::Dirty, BackingState::Stale] {
        let test = devices(backing(3, SET, state, 1), &[]);
        test.load("v", ALONE);
        assert!(test.volume("v").limits().read_only, "{state:?}");
        test.write("v", 0, 8, 1).expect_err("it is refused");
    }
}

#[test]
fn volume_is_made_in_an_open_set_and_taken_away_while_it_is_empty() {
    let test = devices(backing(3, SET, BackingState::Clean, 1), &[entry(3)]);
    test.load("v", "0 4096 bcache b c 0");
    let uuid = test.message("v", &["flash_vol_create", "1048576"]).expect("there is room");
    test.load("f", &format!("0 2048 bcache - c 2 flash {uuid}"));
    assert_eq!(test.volume("f").sectors(), SectorCount(2048));
    test.write("f", 0, 8, 9).expect("the drives are well");
    test.flush("f").expect("the drives are well");
    for (words, part) in [
        (["flash_vol_create", "513"], "flash_vol_create: found '513', expected a multiple of 512"),
        (["flash_vol_create", "0"], "flash_vol_create: found '0', expected a multiple of 512"),
        (["flash_vol_remove", "0"], "flash_vol_remove: found '0', expected a volume without"),
    ] {
        let refused = test.message("v", &words).expect_err("it is wrong").to_string();
        assert!(refused.starts_with(part), "{refused}");
    }
    let uuid: &'static str = Box::leak(uuid.into_boxed_str());
    test.message("v", &["flash_vol_remove", uuid]).expect_err("it is served");
    test.remove("f");
    test.message("v", &["flash_vol_remove", uuid]).expect_err("it has data");
    let other = test.message("v", &["flash_vol_create", "512"]).expect("there is room");
    let other: &'static str = Box::leak(other.into_boxed_str());
    test.message("v", &["flash_vol_remove", other]).expect("it is empty");
    test.try_load("g", &format!("0 1 bcache - c 2 flash {other}")).expect_err("it is gone");
    test.load("f", &format!("0 2048 bcache - c 2 flash {uuid}"));
    assert!(test.bytes("f", 0, 8).iter().all(|byte| *byte == 9));
    test.suspend("v", SuspendMode::Flush);
    let refused = test.message("v", &["flash_vol_create", "512"]).expect_err("it is suspended");
    assert!(refused.to_string().contains("suspended"), "{refused}");
}

/// A client that writes to these sectors again and again, a block at a time, until `is_over`.
fn overwrite(test: &Fixture, sectors: u64, is_over: &Rc<RefCell<bool>>) -> Rc<RefCell<u64>> {
    let (env, volume) = (test.sim.env(1).clone(), test.volume("v"));
    let (over, count) = (is_over.clone(), Rc::new(RefCell::new(0)));
    let written = count.clone();
    test.sim.env(1).spawn(async move {
        let disk: Arc<dyn Disk> = volume;
        while !*over.borrow() {
            let start = env.random_below(sectors / 8) * 8;
            let segs = env.segs(SectorCount(8));
            segs.copy_in(0, &[7; 8 * SECTOR]);
            env.io(&disk, Io::write(range(start, 8), segs)).await.expect("the drives are well");
            *written.borrow_mut() += 1;
        }
    });
    count
}

#[test]
fn drain_of_a_detach_ends_although_a_client_overwrites_dirty_data_all_the_time() {
    let test = devices(backing(3, SET, BackingState::Clean, 1), &[entry(3)]);
    test.load("v", "0 4096 bcache b c 0");
    for start in (0..4096).step_by(8) {
        test.write("v", start, 8, 1).expect("the drives are well");
    }
    let dirty = || test.target("v").dirty().map_or(0, |dirty| dirty.sectors.0);
    assert_eq!(dirty(), 4096);
    let is_over = Rc::new(RefCell::new(false));
    let written = overwrite(&test, 4096, &is_over);
    // A plain drain leaves what was overwritten since.
    drain(&test).expect("the drives are well");
    assert!(dirty() > 0);
    test.target("v").set_leaving(true);
    let before = *written.borrow();
    drain(&test).expect("the drives are well");
    assert_eq!((dirty(), state_of(&test)), (0, Value::State("clean")));
    test.run(Duration::from_millis(100));
    assert_eq!(dirty(), 0, "nothing becomes dirty");
    assert!(*written.borrow() > before, "the client goes on");
    // It was called off.
    test.target("v").set_leaving(false);
    test.run(Duration::from_millis(100));
    assert!(dirty() > 0);
    *is_over.borrow_mut() = true;
    test.run(Duration::from_millis(100));
    let content = test.read("v", 0, 4096).expect("the drives are well");
    test.target("v").drain_in_suspend(true);
    test.suspend("v", SuspendMode::Flush);
    let device = test.contents("b");
    assert!(device[16 * SECTOR..] == content, "the device has all data");
}

#[test]
fn write_over_dirty_data_that_cannot_be_written_back_goes_into_the_cache() {
    let test = devices(backing(3, SET, BackingState::Clean, 1), &[entry(3)]);
    test.load("v", "0 4096 bcache b c 0");
    test.write("v", 0, 16, 1).expect("the drives are well");
    test.drive("b").faults().add(Fault::error(OpSet::WRITES).on(range(16, 64)));
    test.target("v").set_leaving(true);
    test.write("v", 0, 8, 2).expect("the cache takes it");
    is_all(&test, 0, 2);
    is_all(&test, 8, 1);
    drain(&test).expect_err("the backing device fails");
    test.drive("b").faults().clear();
    drain(&test).expect("the drives are well");
    is_all(&test, 0, 2);
}

#[test]
fn forced_run_is_inconsistent_durably_before_the_first_request() {
    let line = format!("0 4096 bcache b - 2 force {SET}");
    for state in [BackingState::Clean, BackingState::Dirty] {
        let test = devices(backing(3, SET, state, 1), &[entry(3)]);
        test.load("v", &line);
        assert_eq!(superblock(&test, "b").state(), BackingState::Stale);
        test.write("v", 0, 8, 7).expect("it runs");
        test.flush("v").expect("it runs");
        test.remove("v");
        assert!(test.refusal("v", "0 4096 bcache b c 0").starts_with("b: state: found inconsist"));
        // Again, without a write.
        test.forget();
        test.load("v", &line);
        assert!(test.ops("b").iter().all(|(op, ..)| *op != Op::Write));
        is_all(&test, 0, 7);
        test.load("v", ATTACH);
        assert_eq!(inode(&test, "v"), 1, "its old number is dead");
        is_all(&test, 0, 7);
    }
}

/// A process has written a state of the backing device, the device has lost it in a failure, and
/// still shows it: stale by a forced run, or none by a detach. Then the process was killed.
fn shown_and_lost(is_forced: bool) -> (Fixture, BackingState) {
    let test = devices(backing(3, SET, BackingState::Clean, 1), &[entry(3)]);
    if !is_forced {
        test.load("v", "0 4096 bcache b c 0");
    }
    // A write that fails may be there or not.
    for _ in 0..100 {
        test.drive("b").faults().add(Fault::error(OpSet::DURABLE_WRITES).shots(1));
        if is_forced {
            let line = format!("0 4096 bcache b - 2 force {SET}");
            test.try_load("v", &line).expect_err("the state cannot be written");
        } else {
            let volume = test.volume("v");
            let detached =
                test.sim.block_on(0, |env| async move { volume.detach_caches(&env, None).await });
            detached.expect_err("the superblock cannot be written");
        }
        let shown = superblock_in(test.drive("b").visible()).state();
        if shown != BackingState::Clean {
            test.lose_by_another("b");
            assert_eq!(superblock(&test, "b").state(), BackingState::Clean, "it is lost");
            return (test.killed(), shown);
        }
    }
    panic!("no write that failed was there");
}

#[test]
fn run_without_the_cache_does_not_rest_on_a_state_that_is_shown_and_lost() {
    for (is_forced, options) in [(true, format!("2 force {SET}")), (false, "0".to_owned())] {
        let (test, shown) = shown_and_lost(is_forced);
        test.load("v", &format!("0 4096 bcache b - {options}"));
        assert_eq!(superblock(&test, "b").state(), shown, "durable before the first request");
    }
}

#[test]
fn table_without_bcache_does_not_rest_on_a_state_that_is_shown_and_lost() {
    let (test, shown) = shown_and_lost(false);
    let disk = test.registry.open("b", false).expect("it is there");
    let device = Device { argument: "b".to_owned(), disk };
    let attached = test.sim.block_on(0, |env| async move { Attached::of(&env, device).await });
    assert!(attached.unwrap().is_none(), "no cache counts");
    assert_eq!(superblock(&test, "b").state(), shown, "durable before a table starts");
}

#[test]
fn forced_run_takes_the_set_of_the_device() {
    let test = devices(backing(3, SET, BackingState::Dirty, 1), &[]);
    let other = Uuid([9; 16]);
    let refused = test.refusal("v", &format!("0 4096 bcache b - 2 force {other}"));
    assert!(refused.starts_with("b: force: found 09090909-"), "{refused}");
    assert_eq!(superblock(&test, "b").state(), BackingState::Dirty);
    let test = unattached();
    let refused = test.refusal("v", &format!("0 4096 bcache b - 2 force {SET}"));
    assert!(refused.starts_with("b: force: found a device that belongs to no set"), "{refused}");
}

#[test]
fn forced_run_that_cannot_write_its_state_does_not_begin() {
    for ops in [OpSet::WRITES, OpSet::FLUSHES] {
        let test = devices(backing(3, SET, BackingState::Dirty, 1), &[]);
        test.build("v", &format!("0 4096 bcache b - 2 force {SET}")).expect("it is a table");
        test.drive("b").faults().add(Fault::error(ops));
        assert!(test.try_resume("v").is_err());
        test.drive("b").faults().clear();
        test.resume("v").expect("the drives are well");
        assert_eq!(superblock(&test, "b").state(), BackingState::Stale);
    }
}
