//! Caches of both kinds over origins that other hosts reach.

use std::sync::Arc;
use std::time::Duration;

use cairn_block::dirty_marker::DirtyMarker;
use cairn_block::{Env, MappedDevice, Op, SectorCount, SuspendMode};
use cairn_sim::{Effect, Fault, Image, OpSet};
use cairn_testkit::image;

use crate::fixture::{Fixture, Seen, image as filled};

const WRITECACHE: &str = "0 2048 writecache s o c 4096 0";
const BCACHE: &str = "0 16368 bcache o c 0";
const LINEAR: &str = "0 2048 linear o 0";

/// An origin that other hosts reach, and a blank cache device.
fn shared() -> Fixture {
    let test = Fixture::new([("o", filled(2048, |_| 1)), ("c", Image::new(SectorCount(4096)))]);
    test.share("o");
    test
}

/// A set with a clean backing device that other hosts reach; it is in this mode.
fn shared_set(mode: &'static str) -> Fixture {
    let images = [("o", "wb_stop.backing"), ("c", "wb_stop.cache")];
    let images = images.map(|(name, file)| (name, Image::of_bytes(&image("bcache", file))));
    let test = Fixture::new(images);
    test.load("v", BCACHE);
    test.message("v", &["set", "cache_mode", mode]).expect("it is served");
    suspend(&test, true);
    test.remove("v");
    test.share("o");
    test
}

fn marker(test: &Fixture) -> Option<DirtyMarker> {
    test.markers.text("o").map(|text| DirtyMarker::decode(&text).expect("it is a marker"))
}

fn suspend(test: &Fixture, drains: bool) {
    if drains {
        test.target("v").drain_in_suspend(true);
    }
    test.suspend("v", SuspendMode::Flush);
}

/// The refusal of a resume.
fn refused(test: &Fixture, name: &str, table: &str) -> String {
    let line = test.try_load(name, table).expect_err(table).to_string();
    assert_eq!(line.lines().count(), 1, "{line}");
    line
}

#[test]
fn the_marker_stands_while_a_cache_serves_and_goes_when_nothing_is_dirty() {
    let test = shared();
    test.load("v", WRITECACHE);
    let found = marker(&test).expect("it stands before the first write");
    assert_eq!((found.kind.as_str(), found.cache.as_str()), ("writecache", "c"));
    assert_eq!(test.markers.note_of("o"), std::slice::from_ref(&found.generation));
    assert_eq!(test.target("v").dirty_marker().as_ref(), Some(&found.generation), "it is shown");
    test.write("v", 0, 8, 2).expect("the drives are well");
    suspend(&test, false);
    assert_eq!(marker(&test), Some(found.clone()), "a block is dirty");
    test.resume("v").expect("it is its own marker");
    assert_eq!(marker(&test), Some(found.clone()));
    suspend(&test, true);
    assert_eq!((marker(&test), test.markers.note_of("o")), (None, vec![]));
    assert_eq!(test.target("v").dirty_marker(), None);
    test.resume("v").expect("nothing is dirty");
    assert_ne!(marker(&test).expect("it serves").generation, found.generation);
}

#[test]
fn others_are_refused_while_it_stands_and_not_afterwards() {
    let test = shared();
    test.load("v", WRITECACHE);
    test.write("v", 0, 8, 2).expect("the drives are well");
    test.remove("v");
    test.forget();
    let line = refused(&test, "w", LINEAR);
    let expected = "o: dirty marker: found 1 of writecache c on host a, ";
    assert!(line.starts_with(expected), "{line}");
    assert!(line.ends_with("cairn unmark 'o' 1"), "{line}");
    assert!(test.recording("o").only_read());
    test.load("v", WRITECACHE);
    test.target("v").drain_in_suspend(true);
    test.load("v", LINEAR);
    assert_eq!(test.read("v", 0, 8).expect("the drives are well")[0], 2);
}

#[test]
fn a_dirty_cache_whose_origin_was_used_without_it_is_refused() {
    let test = shared();
    test.load("v", WRITECACHE);
    test.write("v", 0, 8, 2).expect("the drives are well");
    let stood = test.markers.text("o").expect("it stands");
    test.remove("v");
    test.markers.set_text("o", None);
    test.forget();
    let line = refused(&test, "v", WRITECACHE);
    assert!(line.starts_with("o: dirty marker: found none, expected that of writecache c"));
    let another = stood.replace("1 1 ", "1 ff ");
    test.markers.set_text("o", Some(&another));
    let line = refused(&test, "v", WRITECACHE);
    assert!(line.starts_with("o: dirty marker: found ff of writecache c on host a"), "{line}");
    let writes = test.seen("o").into_iter().filter(|seen| seen.op == Op::Write).count();
    assert_eq!(writes, 0, "nothing was written back");
    test.markers.set_text("o", Some(&stood));
    test.load("v", WRITECACHE);
}

#[test]
fn a_cache_from_another_host_is_taken_if_the_user_names_the_marker() {
    let test = shared();
    test.load("v", WRITECACHE);
    test.write("v", 0, 8, 2).expect("the drives are well");
    test.remove("v");
    test.markers.move_to("b");
    let line = refused(&test, "v", WRITECACHE);
    assert!(line.contains("--adopt-marker 'o=1'"), "{line}");
    test.markers.adopt("o", "1");
    test.load("v", WRITECACHE);
    let found = marker(&test).expect("it serves");
    assert_eq!(found.host, "b");
    assert_ne!(found.generation, "1", "the former host knows that one");
    test.remove("v");
    test.load("v", WRITECACHE);
    assert_eq!(marker(&test), Some(found), "it is noted");
}

#[test]
fn a_cache_of_before_there_were_markers_is_taken_if_the_user_says_so() {
    let test = Fixture::new([("o", filled(2048, |_| 1)), ("c", Image::new(SectorCount(4096)))]);
    test.load("v", WRITECACHE);
    test.write("v", 0, 8, 2).expect("the drives are well");
    test.remove("v");
    test.share("o");
    let line = refused(&test, "v", WRITECACHE);
    assert!(line.contains("--adopt-marker 'o=none'"), "{line}");
    test.markers.adopt("o", "none");
    test.load("v", WRITECACHE);
    assert!(marker(&test).is_some());
}

#[test]
fn a_server_without_a_state_file_knows_the_markers_of_its_own_host() {
    let test = shared();
    test.load("v", WRITECACHE);
    test.write("v", 0, 8, 2).expect("the drives are well");
    let found = marker(&test);
    test.remove("v");
    test.markers.move_to("a");
    let line = refused(&test, "v", WRITECACHE);
    assert!(line.contains("--adopt-marker 'o=1'"), "its state file is another one: {line}");
    test.markers.forget_state_file();
    test.load("v", WRITECACHE);
    assert_eq!(marker(&test), found);
    test.remove("v");
    test.markers.move_to("b");
    let line = refused(&test, "v", WRITECACHE);
    assert!(line.contains("--adopt-marker 'o=1'"), "it is another host: {line}");
}

#[test]
fn another_cache_of_the_same_server_is_refused_and_so_is_a_blank_one() {
    let test = Fixture::new([
        ("o", filled(2048, |_| 1)),
        ("c", Image::new(SectorCount(4096))),
        ("d", Image::new(SectorCount(4096))),
    ]);
    test.load("v", "0 2048 writecache s o d 4096 0");
    suspend(&test, true);
    test.remove("v");
    test.share("o");
    test.load("v", WRITECACHE);
    test.write("v", 0, 8, 2).expect("the drives are well");
    test.remove("v");
    let stood = marker(&test);
    let line = refused(&test, "v", "0 2048 writecache s o d 4096 0");
    assert!(line.contains("expected that of writecache d"), "{line}");
    // The cache device is gone, and another one has its name.
    let images = [("o", test.drive("o").visible()), ("c", Image::new(SectorCount(4096)))];
    let blank = Fixture::new(images);
    blank.share("o");
    blank.markers.forget_state_file();
    blank.markers.set_text("o", test.markers.text("o").as_deref());
    let line = refused(&blank, "v", WRITECACHE);
    assert!(line.contains("expected none: its newest data is in that cache"), "{line}");
    assert!(blank.contents("c").iter().all(|byte| *byte == 0), "it is not formatted");
    assert_eq!(marker(&blank), stood);
}

#[test]
fn that_a_marker_is_gone_is_adopted_once() {
    let test = shared();
    test.load("v", WRITECACHE);
    test.write("v", 0, 8, 2).expect("the drives are well");
    test.remove("v");
    test.markers.set_text("o", None);
    test.markers.adopt("o", "none");
    let line = refused(&test, "v", WRITECACHE);
    assert!(line.contains("--adopt-marker 'o=none-1'"), "one is noted: {line}");
    test.markers.adopt("o", "none-1");
    test.load("v", WRITECACHE);
    test.remove("v");
    let stood = marker(&test).expect("a block is dirty").generation;
    test.markers.set_text("o", None);
    let line = refused(&test, "v", WRITECACHE);
    assert!(line.contains(&format!("--adopt-marker 'o=none-{stood}'")), "{line}");
}

#[test]
fn a_marker_of_somebody_else_is_not_removed() {
    let test = shared();
    test.load("v", WRITECACHE);
    let others = test.markers.text("o").expect("it serves").replace("1 1 ", "1 ff ");
    test.markers.set_text("o", Some(&others));
    suspend(&test, true);
    assert_eq!(test.markers.text("o"), Some(others));
}

#[test]
fn without_an_answer_nothing_is_served() {
    let test = shared();
    test.markers.set_failing(true);
    for table in [WRITECACHE, LINEAR] {
        let line = refused(&test, "v", table);
        assert_eq!(line, "o: dirty marker: no answer");
    }
    test.markers.set_failing(false);
    test.load("v", WRITECACHE);
    test.markers.set_failing(true);
    suspend(&test, true);
    test.markers.set_failing(false);
    assert!(marker(&test).is_some(), "it could not be removed");
    test.resume("v").expect("it is its own marker");
    suspend(&test, true);
    assert_eq!(marker(&test), None);
}

#[test]
fn what_is_no_marker_of_this_program_is_not_overwritten() {
    let test = shared();
    test.markers.set_text("o", Some("2 later"));
    for table in [WRITECACHE, LINEAR] {
        let line = refused(&test, "v", table);
        assert_eq!(line, "o: dirty marker: found '2 later', expected one of version 1");
    }
    assert_eq!(test.markers.text("o").as_deref(), Some("2 later"));
}

#[test]
fn a_killed_server_goes_on_with_its_marker() {
    let test = shared();
    test.load("v", WRITECACHE);
    test.write("v", 0, 8, 2).expect("the drives are well");
    let found = marker(&test);
    let again = test.killed();
    again.load("v", WRITECACHE);
    assert_eq!(marker(&again), found);
}

/// Runs a verb of `v` for so long, and kills the server. The drives keep what they hold.
fn killed_during(
    test: Fixture,
    micros: u64,
    verb: impl AsyncFnOnce(Arc<MappedDevice>, Env) + 'static,
) -> Fixture {
    let (volume, env) = (test.volume("v"), test.sim.env(0).clone());
    test.sim.env(0).spawn(async move { verb(volume, env).await });
    test.run(Duration::from_micros(micros));
    test.killed()
}

#[test]
fn a_start_that_is_killed_at_any_moment_is_followed_by_one_that_is_not_refused() {
    let mut stood = 0;
    for micros in (0..4000).step_by(25) {
        let test = shared();
        test.build("v", WRITECACHE).expect("the drives are well");
        let again = killed_during(test, micros, async |volume, env| {
            let _ = volume.resume(&env).await;
        });
        stood += usize::from(marker(&again).is_some());
        again.load("v", WRITECACHE);
    }
    assert!(stood > 0 && stood < 160, "{stood} kills came after the marker");
}

#[test]
fn an_adoption_that_is_killed_at_any_moment_can_be_repeated() {
    for micros in (0..3000).step_by(25) {
        let test = shared();
        test.load("v", WRITECACHE);
        test.write("v", 0, 8, 2).expect("the drives are well");
        test.remove("v");
        test.markers.move_to("b");
        test.markers.adopt("o", "1");
        test.build("v", WRITECACHE).expect("the drives are well");
        let again = killed_during(test, micros, async |volume, env| {
            let _ = volume.resume(&env).await;
        });
        again.load("v", WRITECACHE);
    }
}

#[test]
fn a_marker_is_gone_only_once_the_origin_durably_has_all_data() {
    let mut gone = 0;
    for micros in (0..6000).step_by(50) {
        let test = shared();
        test.load("v", WRITECACHE);
        test.write("v", 0, 8, 2).expect("the drives are well");
        test.target("v").drain_in_suspend(true);
        let again = killed_during(test, micros, async |volume, env| {
            let _ = volume.suspend(&env, SuspendMode::Flush).await;
        });
        if marker(&again).is_none() {
            gone += 1;
            let durable = again.drive("o").durable().to_vec();
            assert!(durable[..4096].iter().all(|byte| *byte == 2), "after {micros} us");
        }
        again.load("v", WRITECACHE);
        assert!(again.read("v", 0, 8).expect("the drives are well").iter().all(|it| *it == 2));
    }
    assert!(gone > 0 && gone < 120, "{gone} kills came after the removal");
}

#[test]
fn bcache_has_a_marker_with_its_set_in_writeback_only() {
    for (mode, stands) in [("writethrough", false), ("writearound", false), ("writeback", true)] {
        let test = shared_set(mode);
        test.load("v", BCACHE);
        let found = marker(&test);
        assert_eq!(found.is_some(), stands, "{mode}");
        if let Some(found) = found {
            assert_eq!((found.kind.as_str(), found.uuid.len()), ("bcache", 36), "{found:?}");
        }
    }
}

#[test]
fn bcache_that_is_switched_to_writeback_has_its_marker_before() {
    let test = shared_set("writethrough");
    test.load("v", BCACHE);
    test.markers.set_failing(true);
    let refused = test.message("v", &["set", "cache_mode", "writeback"]).expect_err("no answer");
    assert!(refused.to_string().contains("dirty marker: no answer"), "{refused}");
    test.markers.set_failing(false);
    test.message("v", &["set", "cache_mode", "writeback"]).expect("it is served");
    assert!(marker(&test).is_some());
    test.write("v", 0, 8, 2).expect("the drives are well");
    test.message("v", &["set", "cache_mode", "writethrough"]).expect("it is served");
    assert!(marker(&test).is_some(), "what is dirty stays so");
    suspend(&test, true);
    assert_eq!(marker(&test), None);
}

#[test]
fn a_backing_device_alone_is_refused_while_the_marker_stands() {
    let test = shared_set("writeback");
    test.load("v", BCACHE);
    test.write("v", 0, 8, 2).expect("the drives are well");
    test.remove("v");
    for table in ["0 16368 bcache o - 0", "0 16368 bcache o - 1 stale_ok", "0 16384 linear o 0"] {
        let line = refused(&test, "v", table);
        assert!(line.starts_with("o: dirty marker: found "), "{line}");
    }
    test.load("v", BCACHE);
    test.target("v").drain_in_suspend(true);
    test.load("v", "0 16384 linear o 0");
}

#[test]
fn bcache_that_was_not_used_leaves_no_marker() {
    let test = shared_set("writeback");
    test.load("v", BCACHE);
    assert!(marker(&test).is_some());
    suspend(&test, false);
    assert_eq!(marker(&test), None);
    test.resume("v").expect("nothing is dirty");
    test.load("v", "0 16384 linear o 0");
}

#[test]
fn a_backing_device_of_no_set_ends_the_marker_that_a_kill_left() {
    let test = shared_set("writeback");
    test.load("v", BCACHE);
    let stood = test.markers.text("o").expect("it serves");
    let volume = test.volume("v");
    test.sim
        .block_on(0, |env| async move { volume.detach_caches(&env, None).await })
        .expect("nothing is dirty");
    test.remove("v");
    test.markers.set_text("o", Some(&stood));
    test.load("v", "0 16368 bcache o - 0");
    assert_eq!(marker(&test), None);
}

#[test]
fn a_volume_between_keeps_no_marker_and_is_refused_nothing() {
    let test = shared();
    test.load("under", LINEAR);
    test.load("v", "0 2048 writecache s @under c 4096 0");
    assert_eq!(marker(&test), None);
    assert!(test.markers.note_of("o").is_empty());
}

/// Between a look at the marker and the next one (M7).
fn wait(test: &Fixture) {
    test.run(Duration::from_secs(2));
}

/// Serves a cache and makes it dirty. Nothing that was seen of the marker counts any more.
fn make_dirty(test: &Fixture, table: &str) {
    test.load("v", table);
    test.write("v", 0, 8, 2).expect("the drives are well");
    wait(test);
    test.forget();
}

fn writes_to_origin(test: &Fixture) -> usize {
    test.seen("o").iter().filter(|seen| seen.op == Op::Write).count()
}

#[test]
fn nothing_is_written_back_over_the_marker_of_another_host() {
    // What bcache says in its superblock is no data.
    let caches = [(shared(), WRITECACHE, 0), (shared_set("writeback"), BCACHE, 16)];
    for (test, table, data) in caches {
        make_dirty(&test, table);
        let stood = test.markers.text("o").expect("it stands");
        let is_write = |seen: &&Seen| seen.op == Op::Write && seen.start >= data;
        let writes = || test.seen("o").iter().filter(is_write).count();
        for other in [Some(stood.replace("1 1 ", "1 ff ")), None] {
            test.markers.set_text("o", other.as_deref());
            test.forget();
            suspend(&test, true);
            assert_eq!((writes(), test.markers.text("o")), (0, other), "{table}");
            test.markers.set_text("o", Some(&stood));
            test.remove("v");
            test.load("v", table);
            wait(&test);
        }
        suspend(&test, true);
        assert!(writes() > 0 && marker(&test).is_none(), "{table}: drained");
    }
}

#[test]
fn a_cache_that_finds_the_marker_of_another_host_serves_nothing() {
    let test = shared();
    make_dirty(&test, WRITECACHE);
    test.markers.set_text("o", None);
    test.message("v", &["flush"]).expect_err("nothing is written back");
    test.read("v", 64, 8).expect_err("another host may have written it");

    let test = shared_set("writeback");
    make_dirty(&test, BCACHE);
    test.markers.set_text("o", None);
    test.message("v", &["set", "writeback_percent", "0"]).expect("it is served");
    test.run(Duration::from_secs(120));
    test.read("v", 64, 8).expect_err("another host may have written it");
}

#[test]
fn an_origin_whose_marker_cannot_be_read_gets_nothing_until_it_can() {
    let test = shared();
    make_dirty(&test, WRITECACHE);
    test.markers.set_failing(true);
    suspend(&test, true);
    assert_eq!(writes_to_origin(&test), 0);
    test.markers.set_failing(false);
    test.resume("v").expect("it is its own marker");
    suspend(&test, true);
    assert_eq!(marker(&test), None);
}

#[test]
fn a_marker_that_is_lost_while_a_copy_is_read_stops_its_write() {
    let test = shared();
    make_dirty(&test, WRITECACHE);
    let slow =
        Fault { effect: Effect::Delay(Duration::from_secs(5)), ..Fault::error(OpSet::READS) };
    test.drive("c").faults().add(slow);
    let _answer = test.start_message("v", &["flush"]);
    wait(&test);
    test.markers.set_text("o", None);
    test.run(Duration::from_secs(20));
    assert_eq!(writes_to_origin(&test), 0, "a look before the read has let it through");
}

#[test]
fn answers_that_come_too_late_end_a_drain_with_an_error() {
    let test = shared();
    make_dirty(&test, WRITECACHE);
    test.markers.set_delay(Duration::from_secs(3));
    test.message("v", &["flush"]).expect_err("no answer counts");
    assert_eq!(writes_to_origin(&test), 0);
    test.markers.set_delay(Duration::ZERO);
    test.message("v", &["flush"]).expect("it is tried again");
    assert!(writes_to_origin(&test) > 0);
}

#[test]
fn bcache_that_is_switched_to_writeback_leaves_the_marker_of_another_host() {
    let test = shared_set("writethrough");
    test.load("v", BCACHE);
    let other = "1 ff bcache d 22222222-2222-3333-4444-555555555555 b 0";
    test.markers.set_text("o", Some(other));
    test.message("v", &["set", "cache_mode", "writeback"]).expect_err("another host has it");
    assert_eq!(test.markers.text("o").as_deref(), Some(other));
}

#[test]
fn a_start_that_a_marker_refuses_takes_the_origin_from_nobody() {
    let test = shared();
    test.markers.set_text("o", Some("1 ff writecache d - b 0"));
    for table in [LINEAR, WRITECACHE] {
        refused(&test, "v", table);
        assert!(!test.markers.is_taken("o"), "{table}");
    }
    test.markers.set_text("o", None);
    test.load("v", LINEAR);
    assert!(test.markers.is_taken("o"));
}
