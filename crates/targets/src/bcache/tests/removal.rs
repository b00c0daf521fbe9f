//! Tests of discards and of large write-zeroes.

use super::*;

#[test]
fn a_discard_drops_what_the_cache_has_and_goes_on_to_the_backing_device() {
    let test = stopped();
    test.load("v", LINE);
    let dirty = || test.target("v").report().value("dirty_data").expect("a field").clone();
    let before = dirty();
    test.forget();
    // The cache has sectors 2048 to 2559, dirty.
    test.discard("v", 2048, 256).expect("the drives are well");
    let discards: Vec<_> = test.ops("b").into_iter().filter(|it| it.0 == Op::Discard).collect();
    assert_eq!(discards, [(Op::Discard, 16 + 2048, 256)]);
    assert_ne!(dirty(), before);
    drain(&test).expect("the drives are well");
    let written = test.ops("b").into_iter().filter(|it| it.0 == Op::Write && it.1 >= 16);
    assert!(
        !written.into_iter().any(|it| (16 + 2048..16 + 2304).contains(&it.1)),
        "what was dropped came back"
    );
    test.write("v", 2048, 8, 7).expect("the drives are well");
    test.remove("v");
    test.load("v", LINE);
    assert!(test.bytes("v", 2048, 8).iter().all(|byte| *byte == 7));
}

#[test]
fn a_discard_waits_for_the_batch_that_copies_its_data() {
    let test = stopped();
    test.load("v", LINE);
    test.write("v", 0, 8, 1).expect("the drives are well");
    let effect = Effect::Delay(Duration::from_millis(50));
    let slow = Fault { effect, ..Fault::error(OpSet::WRITES) };
    test.drive("b").faults().add(slow);
    let (volume, env) = (test.volume("v"), test.sim.env(2).clone());
    test.sim.env(2).spawn(async move { drop(volume.drain_caches(&env).await) });
    test.run(Duration::from_millis(20));
    test.forget();
    test.discard("v", 2048, 8).expect("the drives are well");
    let ops = test.ops("b");
    let at = |op| ops.iter().position(|it| it.0 == op);
    assert!(at(Op::Flush).expect("the batch ends with one") < at(Op::Discard).expect("sent"));
}

#[test]
fn a_discard_that_fails_leaves_what_is_dirty_counted_and_the_volume_stopped() {
    // All of the dirty data, and a part of it.
    for (start, count) in [(0, 16_368), (2048, 256)] {
        let test = stopped();
        test.load("v", LINE);
        test.write("v", 0, 8, 1).expect("it begins a session");
        test.flush("v").expect("the drives are well");
        let before = test.target("v").dirty().expect("some is").sectors;
        test.drive("c").faults().add(Fault::error(OpSet::WRITES));
        assert_eq!(test.discard("v", start, count), Err(IoError::IO));
        assert_eq!(test.target("v").dirty().map(|dirty| dirty.sectors), Some(before));
        test.drive("c").faults().clear();
        assert_eq!(test.read("v", 0, 8), Err(IoError::IO), "it is stopped");
        let _ = test.try_suspend("v", SuspendMode::Flush);
        test.resume("v").expect("the cache is well");
    }
}

#[test]
fn zeros_of_all_dirty_data_let_a_volume_go_on_without_a_cache_that_fails_after_them() {
    // All of the dirty data, and a part of it.
    for (start, count, goes_on) in [(0, 16_368, true), (2048, 2048, false)] {
        let test = stopped();
        test.load("v", LINE);
        test.write("v", 0, 8, 1).expect("it begins a session");
        test.flush("v").expect("the drives are well");
        test.drive("c").faults().add(Fault::error(OpSet::WRITES));
        test.forget();
        let expected = if goes_on { Ok(()) } else { Err(IoError::IO) };
        assert_eq!(test.zero("v", start, count), expected);
        let zeroed = test.ops("b").contains(&(Op::WriteZeroes, 16 + start, count));
        assert!(zeroed, "the cache failed after that");
        if goes_on {
            assert_eq!(durable_superblock(&test).state(), BackingState::None);
            assert!(test.bytes("v", start, count).iter().all(|byte| *byte == 0));
        } else {
            assert_eq!(durable_superblock(&test).state(), BackingState::Dirty);
            assert_eq!(test.read("v", 0, 8), Err(IoError::IO), "it is stopped");
        }
    }
}
