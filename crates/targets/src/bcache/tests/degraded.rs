//! Tests of failing devices: retries, limits, and volumes that go on without their cache.

use super::*;
use crate::fixture::{Client, write_io};

/// A volume with clean data in the cache, in this mode.
fn clean_in(mode: &'static str) -> Fixture {
    let test = stopped();
    test.load("v", LINE);
    drain(&test).expect("the drives are well");
    test.message("v", &["set", "cache_mode", mode]).expect("a mode");
    test
}

/// What the backing device has of a volume.
fn on_backing(test: &Fixture, start: u64, count: u64) -> Vec<u8> {
    test.contents("b")[(16 + start) as usize * SECTOR..][..count as usize * SECTOR].to_vec()
}

fn attribute(test: &Fixture, name: &str) -> Value {
    let attributes = test.target("v").attributes();
    attributes.iter().find(|it| it.name == name).expect(name).value.clone()
}

fn fail(test: &Fixture, drive: &str, ops: OpSet, shots: u32) {
    test.drive(drive).faults().add(Fault::error(ops).shots(shots));
}

/// The cache fails all requests from now on, and the volume finds out.
fn lose_cache(test: &Fixture) {
    test.drive("c").faults().add(Fault::error(OpSet::ALL));
    for start in 0..20 {
        let _ = test.read("v", start * 4, 4);
    }
    test.run(Duration::from_millis(200));
}

#[test]
fn clean_data_that_the_cache_cannot_read_is_read_from_the_backing_device_and_cached_again() {
    let test = clean_in("writeback");
    test.read("v", 6000, 8).expect("it begins a session");
    fail(&test, "c", OpSet::READS, 1);
    test.forget();
    assert_eq!(test.read("v", 0, 8), Ok(on_backing(&test, 0, 8)));
    assert!(test.ops("b").contains(&(Op::Read, 16, 8)));
    assert_eq!(attribute(&test, "cache/io_errors"), Value::Gauge(1));
    test.run(Duration::from_millis(20));
    test.forget();
    assert_eq!(test.read("v", 0, 8), Ok(on_backing(&test, 0, 8)));
    assert!(test.ops("b").is_empty(), "it is a hit");
}

#[test]
fn dirty_data_that_the_cache_cannot_read_is_not_read_from_elsewhere() {
    let test = stopped();
    test.load("v", LINE);
    fail(&test, "c", OpSet::READS, 1);
    test.forget();
    assert_eq!(test.read("v", 0, 8), Err(IoError::injected(cairn_block::ErrorKind::Io)));
    assert!(test.ops("b").is_empty());
    assert!(test.read("v", 0, 8).is_ok());
}

#[test]
fn a_read_that_fails_after_its_sectors_were_written_reads_what_was_written() {
    let test = clean_in("writeback");
    test.write("v", 6000, 8, 1).expect("it begins a session");
    let effect = Effect::Delay(Duration::from_millis(5));
    test.drive("c").faults().add(Fault { effect, ..Fault::error(OpSet::READS).shots(1) });
    fail(&test, "c", OpSet::READS, 1);
    let segs = test.sim.env(0).segs(SectorCount(8));
    let read = segs.clone();
    test.start("v", "read", move |_| Io::read(range(0, 8), read));
    test.write("v", 0, 8, 7).expect("it goes to another place");
    assert!(test.labels().is_empty(), "the read takes longer");
    test.run(Duration::from_secs(1));
    assert_eq!(test.labels(), ["read"]);
    assert!(segs.to_vec().iter().all(|byte| *byte == 7));
}

#[test]
fn without_dirty_data_a_volume_goes_on_without_its_failed_cache() {
    for mode in ["writeback", "writethrough", "writearound", "none"] {
        let test = clean_in(mode);
        let client = Client::new(test.volume("v"));
        lose_cache(&test);
        let superblock = durable_superblock(&test);
        assert_eq!((superblock.state(), superblock.set_uuid()), (BackingState::None, Uuid::ZERO));
        assert_eq!(state_of(&test), Value::State("none"), "{mode}");
        assert_eq!(attribute(&test, "io_disable"), Value::Gauge(0));
        test.write("v", 0, 8, 7).expect("the backing device is well");
        test.zero("v", 8, 8).expect("the backing device is well");
        test.discard("v", 64, 8).expect("the backing device is well");
        assert_eq!(test.flush_of(&client), Ok(()), "nothing is lost");
        assert!(on_backing(&test, 0, 8).iter().all(|byte| *byte == 7));
        assert_eq!(test.read("v", 0, 200), Ok(on_backing(&test, 0, 200)), "{mode}");
        // Also after a suspend, and a drain has nothing to do.
        test.suspend("v", SuspendMode::Flush);
        test.resume("v").expect("the backing device is well");
        drain(&test).expect("nothing is dirty");
        assert_eq!(test.read("v", 0, 200), Ok(on_backing(&test, 0, 200)), "{mode}");
        test.remove("v");
        // A cache that comes back counts no more.
        test.drive("c").faults().clear();
        let refused = test.refusal("v", LINE);
        assert!(refused.contains("went on when its cache failed"), "{refused}");
    }
}

#[test]
fn with_dirty_data_a_volume_with_a_failed_cache_is_stopped_until_the_set_is_opened_again() {
    let test = stopped();
    test.load("v", LINE);
    let before = test.read("v", 0, 16368).expect("the drives are well");
    lose_cache(&test);
    test.forget();
    assert_eq!(attribute(&test, "io_disable"), Value::Gauge(1));
    assert_eq!(test.read("v", 5000, 8), Err(IoError::IO), "no request is sent past the cache");
    assert_eq!(test.write("v", 0, 8, 7), Err(IoError::IO));
    assert_eq!(test.flush("v"), Err(IoError::IO));
    assert!(test.ops("b").is_empty());
    let superblock = durable_superblock(&test);
    assert_eq!(superblock.state(), BackingState::Dirty);
    test.drive("c").faults().clear();
    let _ = test.try_suspend("v", SuspendMode::Flush);
    test.resume("v").expect("the cache is well");
    assert!(test.read("v", 0, 16368) == Ok(before));
}

#[test]
fn always_stops_a_volume_whose_cache_failed() {
    let test = clean_in("writethrough");
    test.message("v", &["set", "stop_when_cache_set_failed", "always"]).expect("a word");
    lose_cache(&test);
    assert_eq!(test.read("v", 0, 8), Err(IoError::IO));
    assert_eq!(durable_superblock(&test).state(), BackingState::Clean);
    let wrong = test.message("v", &["set", "stop_when_cache_set_failed", "never"]);
    let text = wrong.expect_err("no word").to_string();
    assert!(text.contains("found 'never', expected auto or always"), "{text}");
}

#[test]
fn a_volume_whose_superblock_cannot_say_so_does_not_go_on() {
    let test = clean_in("writethrough");
    test.drive("b").faults().add(Fault::error(OpSet::DURABLE_WRITES));
    lose_cache(&test);
    test.forget();
    assert_eq!(test.write("v", 0, 8, 7), Err(IoError::IO));
    assert!(test.ops("b").is_empty());
}

#[test]
fn writes_that_wait_for_the_failing_cache_go_to_the_backing_device() {
    let test = clean_in("writethrough");
    test.write("v", 6000, 8, 1).expect("it begins a session");
    test.drive("c").faults().add(Fault::error(OpSet::ALL));
    // Over clean data: a hole has to be durable first.
    test.write("v", 0, 8, 7).expect("the backing device is well");
    test.flush("v").expect("the backing device is well");
    assert!(on_backing(&test, 0, 8).iter().all(|byte| *byte == 7));
    assert_eq!(durable_superblock(&test).state(), BackingState::None);
}

#[test]
fn a_failed_write_into_the_cache_is_its_own_error_and_its_place_is_left_alone() {
    let test = clean_in("writeback");
    test.write("v", 6000, 8, 1).expect("it begins a session");
    test.forget();
    fail(&test, "c", OpSet::WRITES, 1);
    assert!(test.write("v", 0, 8, 7).is_err());
    let failed = test.ops("c").into_iter().find(|it| it.0 == Op::Write).expect("sent").1;
    assert_eq!(test.read("v", 0, 8), Ok(on_backing(&test, 0, 8)));
    test.forget();
    for write in 0..64 {
        test.write("v", write * 8, 8, 7).expect("the drives are well");
    }
    let writes = test.ops("c").into_iter().filter(|it| it.0 == Op::Write && it.2 == 8);
    assert!(writes.into_iter().all(|it| it.1 / 128 != failed / 128), "another bucket");
    test.flush("v").expect("one error is below the limit");
}

#[test]
fn a_backing_device_at_its_limit_stops_the_volume_until_the_next_resume() {
    let test = stopped();
    test.load("v", LINE);
    let read = || test.read("v", 9000, 8);
    let fault = test.drive("b").faults().add(Fault::error(OpSet::READS));
    for _ in 0..64 {
        assert!(read().is_err());
    }
    test.forget();
    assert_eq!(read(), Err(IoError::IO));
    assert_eq!(test.read("v", 0, 8), Err(IoError::IO), "the cache has it, but the volume stopped");
    assert!(test.ops("b").is_empty() && test.ops("c").is_empty());
    test.drive("b").faults().remove(fault);
    let _ = test.try_suspend("v", SuspendMode::Flush);
    test.resume("v").expect("the drives are well");
    assert!(read().is_ok() && test.read("v", 0, 8).is_ok());
    assert_eq!(attribute(&test, "io_errors"), Value::Gauge(0));
}

#[test]
fn one_volume_goes_on_when_another_one_with_dirty_data_is_stopped() {
    let of = |byte| UuidEntry { uuid: Uuid([byte; 16]), ..UuidEntry::default() };
    let backing = |byte| {
        let mut image = Image::new(SectorCount(16 + 30_000));
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
    let cache = cache_of(&[], &[of(3), of(4)]);
    let test = Fixture::new([("c", cache), ("b", backing(3)), ("d", backing(4))]);
    test.load("v", "0 30000 bcache b c 0");
    test.load("w", "0 30000 bcache d c 0");
    test.write("w", 0, 8, 1).expect("the drives are well");
    test.flush("w").expect("the drives are well");
    lose_cache(&test);
    test.write("v", 0, 8, 7).expect("it has no dirty data");
    test.drive("c").faults().clear();
    assert_eq!(test.write("v", 8, 8, 7), Ok(()));
    if test.write("w", 8, 8, 2).is_ok() {
        panic!("its dirty data is in the failed cache");
    }
    let _ = test.try_suspend("w", SuspendMode::Flush);
    test.suspend("v", SuspendMode::Flush);
    test.resume("w").expect("the set is opened again");
    assert!(test.bytes("w", 0, 8).iter().all(|byte| *byte == 1));
    test.resume("v").expect("it goes on without the cache");
    assert!(test.bytes("v", 0, 16).iter().all(|byte| *byte == 7));
}

#[test]
fn writes_in_flight_when_the_cache_fails_are_answered_once() {
    let test = clean_in("writeback");
    test.write("v", 6000, 8, 1).expect("it begins a session");
    drain(&test).expect("the drives are well");
    let effect = Effect::Delay(Duration::from_millis(5));
    test.drive("c").faults().add(Fault { effect, ..Fault::error(OpSet::WRITES) });
    test.start("v", "write", |env| write_io(env, 0, 8, 7));
    test.drive("c").faults().clear();
    lose_cache(&test);
    test.run(Duration::from_secs(1));
    assert_eq!(test.labels(), ["write"]);
}

#[test]
fn a_suspend_of_a_set_in_error_fails_if_acknowledged_writes_were_not_durable() {
    for is_flushed in [false, true] {
        let test = stopped();
        test.load("v", LINE);
        test.message("v", &["set", "journal_delay_ms", "60000"]).expect("in its range");
        let client = Client::new(test.volume("v"));
        test.write("v", 8000, 8, 1).expect("the drives are well");
        if is_flushed {
            test.flush("v").expect("the drives are well");
        }
        lose_cache(&test);
        let suspended = test.try_suspend("v", SuspendMode::Flush).map_err(|it| it.to_string());
        let text = "c: the set is in error, what was last written may not be durable";
        let expected = if is_flushed { Ok(()) } else { Err(text.to_owned()) };
        assert_eq!(suspended, expected);
        test.drive("c").faults().clear();
        test.resume("v").expect("the cache is well");
        assert_eq!(test.flush_of(&client).is_err(), !is_flushed, "it is told");
        test.suspend("v", SuspendMode::Flush);
    }
}

#[test]
fn a_suspend_whose_commit_breaks_the_set_fails() {
    let test = stopped();
    test.load("v", LINE);
    test.message("v", &["set", "journal_delay_ms", "60000"]).expect("in its range");
    test.write("v", 8000, 8, 1).expect("the drives are well");
    test.drive("c").faults().add(Fault::error(OpSet::ALL));
    assert!(test.try_suspend("v", SuspendMode::Flush).is_err());
}

#[test]
fn a_suspend_fails_if_what_was_written_around_the_cache_cannot_be_flushed() {
    for is_flushed in [false, true] {
        let test = clean_in("writearound");
        let client = Client::new(test.volume("v"));
        test.write("v", 8000, 8, 1).expect("the drives are well");
        if is_flushed {
            test.flush("v").expect("the drives are well");
        }
        fail(&test, "b", OpSet::FLUSHES, 1);
        let suspended = test.try_suspend("v", SuspendMode::Flush).map_err(|it| it.to_string());
        let text = "b: what was written around the cache may not be durable";
        match suspended {
            Ok(()) => assert!(is_flushed),
            Err(error) => assert!(!is_flushed && error.starts_with(text), "{error}"),
        }
        test.drive("b").faults().clear();
        test.resume("v").expect("the drives are well");
        assert_eq!(test.flush_of(&client).is_err(), !is_flushed, "it is told");
    }
}

#[test]
fn a_suspend_fails_if_the_flush_of_a_fill_met_a_loss_that_no_client_was_told_of() {
    for is_told in [false, true] {
        let test = clean_in("writethrough");
        let client = Client::new(test.volume("v"));
        test.flush("v").expect("the drives are well");
        fail(&test, "b", OpSet::FLUSHES, 1);
        let log = log_of(|| {
            test.write("v", 8000, 8, 1).expect("the drives are well");
            test.write("v", 12_000, 8, 1).expect("the drives are well");
            test.run(Duration::from_secs(6));
        });
        assert_eq!(test.drive("b").faults().injected(), 1, "the fill has a flush of its own");
        let counted = log.lines().filter(|line| {
            line.contains("ERROR")
                && line.ends_with("v: b: a failure may have lost writes around the cache")
        });
        assert_eq!(counted.count(), 1, "{log}");
        if is_told {
            assert!(test.flush_of(&client).is_err());
        }
        let suspended = test.try_suspend("v", SuspendMode::Flush).map_err(|it| it.to_string());
        let text = "b: what was written around the cache may not be durable: ";
        match suspended {
            Ok(()) => assert!(is_told),
            Err(error) => assert!(!is_told && error.starts_with(text), "{error}"),
        }
        test.resume("v").expect("the drives are well");
        assert_eq!(test.flush_of(&client).is_err(), !is_told, "it is told once");
        assert_eq!(test.flush_of(&client), Ok(()));
        test.suspend("v", SuspendMode::Flush);
    }
}

#[test]
fn a_batch_stays_dirty_whose_copies_the_failed_flush_of_another_user_may_have_dropped() {
    let test = stopped();
    test.load("v", LINE);
    test.write("v", 6000, 8, 1).expect("it begins a session");
    let dirty = || test.target("v").dirty().map(|dirty| dirty.sectors);
    let before = dirty();
    // The other copies have ended long before this one.
    let effect = Effect::Delay(Duration::from_millis(50));
    let slow = Fault { effect, ..Fault::error(OpSet::WRITES).on(range(16 + 6000, 8)) };
    test.drive("b").faults().add(slow);
    let ended = Rc::new(RefCell::new(None));
    let (volume, env, own) = (test.volume("v"), test.sim.env(2).clone(), ended.clone());
    test.sim.env(2).spawn(async move {
        *own.borrow_mut() = Some(volume.drain_caches(&env).await.is_ok());
    });
    test.run(Duration::from_millis(20));
    test.lose_by_another("b");
    test.run(Duration::from_secs(1));
    assert_eq!((*ended.borrow(), dirty()), (Some(false), before));
    assert_eq!(durable_superblock(&test).state(), BackingState::Dirty);
    drain(&test).expect("the copies are made again");
    let durable = test.drive("b").durable();
    let sector = |at: u64| durable.sector(cairn_block::Sector(16 + at)).to_vec();
    let first = test.read("v", 0, 1).expect("the drives are well");
    assert_eq!([sector(0), sector(6000)], [first, vec![1; 512]]);
}
