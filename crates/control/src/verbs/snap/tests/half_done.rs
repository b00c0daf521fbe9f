//! What was left half done: by a verb that failed, or only in the state file.

use super::*;

#[test]
fn a_volume_whose_rollback_stopped_half_way_is_resumed_on_the_merge_or_not_at_all() {
    let (_all, work, _) = folders();
    let server = TestServer::with_snapshot(&work);
    let store = work.join("v@mon.1.cow");
    server.poke_when(Step::Suspended, &store, VERSION_AT, 9);
    let line = line_of(server.verbs.snap_merge("v@mon", true, None));
    assert!(line.contains("the merge has begun"), "{line}");
    server.whenever();
    for refused in [server.resume("v"), server.verbs.snap_merge("v@mon", true, None)] {
        let line = line_of(refused);
        assert!(line.contains("header version: found 9"), "{line}");
        assert!(server.is_suspended("v"));
    }
    poke(&store, VERSION_AT, 1);
    server.resume("v").unwrap();
    assert_eq!((server.bytes("v"), server.bytes("v@mon")), (all_of(1), all_of(1)));
    server.write("v", 10, 10, 5);
    server.end_merge();
    assert_eq!(server.bytes("v"), [(10, 1), (10, 5), (1004, 1)]);
    assert_eq!((server.bytes("v@mon"), server.changed("v@mon")), (all_of(1), vec![(8, 16)]));
}

#[test]
fn a_volume_is_not_resumed_while_a_recorded_snapshot_of_it_cannot_be() {
    for keep in [true, false] {
        let (_all, work, _) = folders();
        let server = TestServer::with_snapshot(&work);
        let (before, state) = (server.files(), fs::read(work.join("state")).unwrap());
        // The chunk of the second record: once more that of the first.
        let (store, at) = (work.join("v@mon.cow"), 4096 + 16);
        server.poke_when(Step::Suspended, &store, at, 0);
        let line = line_of(server.verbs.snap_merge("v@mon", keep, None));
        assert!(line.contains("for the second time"), "{line}");
        server.whenever();
        assert_eq!((server.files(), fs::read(work.join("state")).unwrap()), (before, state));
        let line = line_of(server.resume("v"));
        assert!(line.contains("for the second time") && server.is_suspended("v"), "{line}");
        poke(&store, at, 1);
        server.resume("v").unwrap();
        server.write("v", 100, 100, 3);
        assert_eq!((server.bytes("v@mon"), server.changed("v@mon")), (all_of(1), vec![(0, 200)]));
    }
}

#[test]
fn a_snapshot_whose_removal_failed_is_back_before_its_volume_is() {
    let (_all, work, _) = folders();
    let server = TestServer::with_snapshot(&work);
    fs::create_dir(work.join("state.new")).unwrap();
    let store = work.join("v@mon.cow");
    server.poke_when(Step::Arranged, &store, VERSION_AT, 9);
    server.verbs.snap_remove("v@mon").unwrap_err();
    server.whenever();
    let line = line_of(server.resume("v"));
    assert!(line.contains("header version: found 9") && server.is_suspended("v"), "{line}");
    poke(&store, VERSION_AT, 1);
    server.resume("v").unwrap();
    server.write("v", 100, 100, 3);
    assert_eq!((server.bytes("v@mon"), server.changed("v@mon")), (all_of(1), vec![(0, 200)]));
    fs::remove_dir(work.join("state.new")).unwrap();
    server.verbs.snap_remove("v@mon").unwrap();
    assert_eq!(server.files(), ["cache", "disk", "state"]);
}

#[test]
fn a_recorded_store_that_has_become_blank_is_not_formatted() {
    let (_all, work, _) = folders();
    let server = TestServer::with_snapshot(&work);
    drop(server);
    let store = work.join("v@mon.cow");
    let content = fs::read(&store).unwrap();
    let blank = vec![0; content.len()];
    fs::write(&store, &blank).unwrap();
    let line = line_of(TestServer::start(&work, LINEAR));
    assert!(line.starts_with("v@mon: v@mon.cow: header: found a blank device"), "{line}");
    assert!(fs::read(&store).unwrap() == blank);
    fs::write(&store, content).unwrap();
    assert_eq!(TestServer::start(&work, LINEAR).unwrap().bytes("v@mon"), all_of(1));
}

#[test]
fn a_snapshot_whose_end_only_the_state_file_knows_is_invalid_after_a_restart() {
    let (_all, work, _) = folders();
    let server = TestServer::fresh(&work, LINEAR);
    server.create("v@mon").unwrap();
    server.create("v@tue").unwrap();
    server.write("v", 0, 100, 2);
    let lost = |server: &TestServer, name: &str| {
        let events = server.world.volume(name).unwrap().events().clone();
        server.world.on_home(name, move |_| async move { events.content_lost().await })
    };
    let states = |server: &TestServer| -> Vec<String> {
        let infos = server.verbs.snap_list(None, &Patient).unwrap().into_iter();
        let mut states: Vec<_> =
            infos.map(|info| format!("{} {}", info.name, info.state)).collect();
        states.sort();
        states
    };
    assert!(!lost(&server, "v"), "a volume is no snapshot");
    assert!(lost(&server, "v@mon"));
    drop(server);
    for _ in 0..2 {
        let again = TestServer::start(&work, LINEAR).unwrap();
        assert_eq!(states(&again), ["v@mon invalid", "v@tue valid"]);
        assert_eq!(again.bytes("v@tue"), all_of(1));
    }
    let again = TestServer::start(&work, LINEAR).unwrap();
    again.verbs.snap_remove("v@mon").unwrap();
    again.create("v@mon").unwrap();
    assert!(lost(&again, "v@tue"), "after a restart too");
    drop(again);
    let again = TestServer::start(&work, LINEAR).unwrap();
    assert_eq!(states(&again), ["v@mon valid", "v@tue invalid"]);
}
