//! Tests of what clients and users ask for while a backing device leaves its set.

use super::*;

/// The first sectors are dirty, and no flush has covered them.
fn dirty() -> Fixture {
    let test = stopped();
    test.load("v", LINE);
    test.message("v", &["set", "writeback_running", "0"]).expect("in its range");
    test.write("v", 0, 64, 7).expect("the drives are well");
    test
}

type Detached = Rc<RefCell<Option<Result<Vec<String>, String>>>>;

/// Starts a drain that is to leave nothing dirty, and the detach behind it.
fn start_detach(test: &Fixture) -> Detached {
    test.target("v").set_leaving(true);
    let ended = Detached::default();
    let (env, volume, place) = (test.sim.env(0).clone(), test.volume("v"), ended.clone());
    test.sim.env(0).spawn(async move {
        let detached = match volume.drain_caches(&env).await {
            Ok(()) => volume.detach_caches(&env, None).await,
            Err(error) => Err(error),
        };
        *place.borrow_mut() = Some(detached.map_err(|error| error.to_string()));
    });
    ended
}

/// Starts a detach and, so many steps of the world later, what `meddle` does; then waits for the
/// detach. False if it ended before.
fn detach_until(test: &Fixture, step: u64, meddle: impl FnOnce()) -> bool {
    let ended = start_detach(test);
    for _ in 0..step {
        if ended.borrow().is_some() {
            return false;
        }
        test.sim.step();
    }
    meddle();
    test.sim.run_until(|| ended.borrow().is_some());
    let detached = ended.take().expect("it has ended");
    assert!(detached.is_ok(), "step {step}: {detached:?}");
    true
}

/// What a volume reads as after a power cut now: with its cache, or alone once it is detached.
fn after_power_cut(test: &Fixture) -> Vec<u8> {
    let durable = |name| (name, Image::of_bytes(&test.drive(name).durable().to_vec()));
    let is_detached = durable_superblock(test).set_uuid().is_zero();
    let next = Fixture::new([durable("b"), durable("c")]);
    next.load("v", if is_detached { "0 16368 bcache b - 0" } else { LINE });
    next.bytes("v", 0, 64)
}

/// Each step at the beginning, and fewer and fewer.
fn after(step: u64) -> u64 {
    step + 1 + step / 4
}

#[test]
fn a_flush_at_any_moment_of_a_detach_covers_what_was_written_before() {
    let (mut step, mut flushes) = (0, 0);
    loop {
        let test = dirty();
        let came = detach_until(&test, step, || {
            test.start("v", "flush", |_| Io::flush());
            test.sim.run_until(|| test.labels() == ["flush"]);
            assert_eq!(test.ends.of("flush"), Some(Ok(())), "step {step}");
            let found = after_power_cut(&test);
            assert!(found.iter().all(|byte| *byte == 7), "step {step}");
        });
        if !came {
            break;
        }
        let superblock = durable_superblock(&test);
        assert_eq!((superblock.state(), superblock.set_uuid()), (BackingState::None, Uuid::ZERO));
        (step, flushes) = (after(step), flushes + 1);
    }
    assert!(flushes > 12, "{flushes} moments");
}

#[test]
fn a_message_at_any_moment_of_a_detach_leaves_the_device_detached() {
    let (mut step, mut messages) = (0, 0);
    loop {
        let test = dirty();
        let mut answers = Vec::new();
        let came = detach_until(&test, step, || {
            for words in [
                &["set", "cache_mode", "writethrough"][..],
                &["set", "writeback_running", "1"],
                &["get", "writeback_rate_debug"],
                &["get", "state"],
            ] {
                answers.push(test.start_message("v", words));
            }
        });
        if !came {
            break;
        }
        test.run(Duration::from_secs(1));
        for answer in answers {
            let answer = answer.take().expect("it is answered");
            assert!(answer.is_ok(), "step {step}: {answer:?}");
        }
        let superblock = durable_superblock(&test);
        assert_eq!((superblock.state(), superblock.set_uuid()), (BackingState::None, Uuid::ZERO));
        assert_eq!(superblock.mode(), CacheMode::Writethrough, "step {step}");
        let data = test.contents("b");
        assert!(data[16 * SECTOR..][..64 * SECTOR].iter().all(|byte| *byte == 7), "step {step}");
        (step, messages) = (after(step), messages + 1);
    }
    assert!(messages > 12, "{messages} moments");
}
