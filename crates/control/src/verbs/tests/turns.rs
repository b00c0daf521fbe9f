//! Verbs of different volumes run at once, and those that reach the same volume or device one after
//! the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::{fs, thread};

use cairn_block::Claimed;

use super::failing::let_go;
use super::{begin, end, line_of, now};
use crate::control::server::Caller;
use crate::reach::{Named, Reach};
use crate::state::CacheRecord;
use crate::verbs::pool::tests::params;
use crate::verbs::snap::SnapCreate;
use crate::verbs::snap::tests::{Patient, TestServer, folders};
use crate::verbs::steps::Step;
use crate::verbs::thin::{ThinCreate, ThinRollback, ThinSnapshot};

/// The volume `v` on a disk, and room for others on the file `big`.
fn server() -> (tempfile::TempDir, Arc<TestServer>) {
    let (all, work, _) = folders();
    fs::write(work.join("big"), vec![0; 4 << 20]).unwrap();
    fs::write(work.join("other"), vec![0; 1 << 20]).unwrap();
    (all, Arc::new(TestServer::fresh(&work, "v=0 1024 linear disk 0")))
}

/// Has the next verb wait at a step. The first end tells that it is there, the other lets it go on.
fn stop_at(server: &TestServer, at: Step) -> (Receiver<()>, Sender<()>) {
    let ((tell, there), (go, on)) = (channel(), channel());
    let mut once = Some((tell, on));
    *server.verbs.at_step.lock() = Box::new(move |step| {
        if let Some((tell, on)) = once.take_if(|_| step == at) {
            tell.send(()).unwrap();
            on.recv().unwrap();
        }
    });
    (there, go)
}

fn thin(server: &TestServer, name: &str) {
    let (name, size_bytes) = (name.to_owned(), 512 << 10);
    server
        .verbs
        .thin_create(&ThinCreate { name, size_bytes, ..ThinCreate::default() }, &Patient)
        .unwrap();
}

#[test]
fn verbs_of_other_volumes_go_on_while_one_is_under_way() {
    let (_all, server) = server();
    let (there, go) = stop_at(&server, Step::Resumed);
    let slow = begin(&server, |server| server.verbs.create("w", "0 1024 linear big 0"));
    end(&there);
    now(&server, |server| {
        server.create("v@mon").unwrap();
        server.verbs.suspend("v", false, &Patient).unwrap();
        server.resume("v").unwrap();
        assert_eq!(server.verbs.snap_list(None, &Patient).unwrap().len(), 1);
        // Another part of the same file.
        server.verbs.create("x", "0 1024 linear big 1024").unwrap();
        server.verbs.remove("x").unwrap();
    });
    assert_eq!(slow.try_recv().unwrap_err(), TryRecvError::Empty);
    go.send(()).unwrap();
    end(&slow).unwrap();
    assert!(server.has("w") && server.has("v@mon"));
}

/// Which of these wait while `verb` is under way, which is stopped at a step.
fn waits_for(server: &TestServer, others: &[(&str, Named<'_>)]) -> Vec<String> {
    let reach = |named: &Named<'_>| Reach::of(named, &server.world, &server.verbs.told());
    let waits = others.iter().filter(|(_, named)| server.verbs.turns.would_wait(&reach(named)));
    waits.map(|(name, _)| (*name).to_owned()).collect()
}

#[test]
fn a_verb_has_what_its_volume_stands_on_and_the_parts_of_devices_beneath() {
    let (_all, server) = server();
    server.verbs.create("base", "0 1024 linear big 0").unwrap();
    server.verbs.create("top", "0 512 linear @base 0").unwrap();
    let (there, go) = stop_at(&server, Step::Recorded);
    let slow = begin(&server, |server| server.verbs.load("top", "0 512 linear other 8"));
    end(&there);
    std::os::unix::fs::symlink(server.folder.join("big"), server.folder.join("link")).unwrap();
    let table = |name, table| Named::volume(name).with_table(table);
    let waiting = waits_for(
        &server,
        &[
            ("the volume", Named::volume("top")),
            ("a snapshot of it", Named::volume("top@s")),
            ("to look at it", Named::volume("top").to_look()),
            ("beneath", Named::volume("base")),
            ("another volume", Named::volume("v")),
            ("on the same", table("new", "0 8 linear @base 0")),
            ("its device", table("new", "0 8 linear big 8")),
            ("by another name", table("new", "0 8 linear link 8")),
            ("another part", table("new", "0 8 linear big 1024")),
            ("the loaded device", table("new", "0 8 linear other 8")),
            ("before it", table("new", "0 8 linear other 0")),
            ("all of it", Named::volume("new").with_device(Some("other"))),
            ("names of exports", Named::volume("new").with_export_names()),
        ],
    );
    let expected = [
        "the volume",
        "a snapshot of it",
        "to look at it",
        "beneath",
        "on the same",
        "its device",
        "by another name",
        "the loaded device",
        "all of it",
    ];
    assert_eq!(waiting, expected);
    go.send(()).unwrap();
    end(&slow).unwrap();
}

#[test]
fn a_file_that_is_still_to_be_made_is_known_by_its_path() {
    let (_all, server) = server();
    let (there, go) = stop_at(&server, Step::StoreMade);
    let slow = begin(&server, |server| server.verbs.pool_create(&params("p"), &Patient));
    end(&there);
    fs::write(server.folder.join("q.data"), vec![0; 1 << 20]).unwrap();
    let table = |table| Named::volume("new").with_table(table);
    let named = [
        ("made meanwhile", table("0 8 linear p.data 0")),
        ("by another path", table("0 8 linear ./p.meta 0")),
        ("another file", table("0 8 linear q.data 0")),
    ];
    assert_eq!(waits_for(&server, &named), ["made meanwhile", "by another path"]);
    go.send(()).unwrap();
    end(&slow).unwrap();
}

#[test]
fn volumes_of_a_pool_do_not_wait_for_each_other_but_for_what_changes_the_pool() {
    let (_all, server) = server();
    server.verbs.pool_create(&params("p"), &Patient).unwrap();
    thin(&server, "p/one");
    thin(&server, "p/two");
    let (there, go) = stop_at(&server, Step::Recorded);
    let slow = begin(&server, |server| server.create("one@s"));
    end(&there);
    let named = [
        ("two", Named::volume("two")),
        ("one", Named::volume("one")),
        ("the pool", Named::volume("p")),
        ("a new volume", Named::volume("three").and("p")),
        ("a thin snapshot of two", Named::volume("two@s").and("two").with_pools()),
    ];
    assert_eq!(
        waits_for(&server, &named),
        ["one", "the pool", "a new volume", "a thin snapshot of two"]
    );
    now(&server, |server| {
        server.verbs.suspend("two", false, &Patient).unwrap();
        server.resume("two").unwrap();
        server.create("two@mine").unwrap();
    });
    go.send(()).unwrap();
    end(&slow).unwrap();
    assert_eq!(server.verbs.snap_list(None, &Patient).unwrap().len(), 2);
}

#[test]
fn a_verb_has_the_names_and_files_that_it_chooses_itself() {
    let (_all, server) = server();
    let (there, go) = stop_at(&server, Step::StoreMade);
    let slow = begin(&server, |server| server.create("v@mon"));
    end(&there);
    let named = [("its store", Named::volume("w").with_device(Some("v@mon.cow")))];
    assert_eq!(waits_for(&server, &named), ["its store"]);
    go.send(()).unwrap();
    end(&slow).unwrap();
    server.verbs.pool_create(&params("p"), &Patient).unwrap();
    thin(&server, "p/t");
    let (name, of) = ("t@s".to_owned(), None);
    server
        .verbs
        .thin_snapshot(&ThinSnapshot { name, of, ..ThinSnapshot::default() }, &Patient)
        .unwrap();
    let (there, go) = stop_at(&server, Step::Pooled);
    let slow = begin(&server, |server| {
        let (name, keep) = ("t@s".to_owned(), Some("p/kept".to_owned()));
        server.verbs.thin_rollback(&ThinRollback { name, keep }, &Patient)
    });
    end(&there);
    assert_eq!(waits_for(&server, &[("kept", Named::volume("kept"))]), ["kept"]);
    go.send(()).unwrap();
    end(&slow).unwrap();
}

#[test]
fn a_verb_that_would_wait_in_its_turn_for_a_suspended_volume_beneath_is_refused() {
    let (_all, server) = server();
    server.verbs.create("top", "0 8 linear @v 0").unwrap();
    server.create("top@mon").unwrap();
    server.verbs.create("plain", "0 8 linear @v 8").unwrap();
    server.verbs.suspend("plain", false, &Patient).unwrap();
    server.verbs.suspend("v", false, &Patient).unwrap();
    let grown = now(&server, |server| server.verbs.snap_grow("top@mon", 1 << 20, &Patient));
    let resumed = now(&server, |server| server.resume("plain"));
    for (line, name) in [(line_of(grown), "top@mon"), (line_of(resumed), "plain")] {
        assert_eq!(line, format!("{name}: state: found @v suspended, expected a live volume"));
    }
    now(&server, |server| server.resume("v")).unwrap();
    now(&server, |server| server.resume("plain")).unwrap();
}

#[test]
fn a_store_grows_while_the_keeper_waits_for_a_turn_on_another_volume() {
    let (_all, server) = server();
    server.verbs.create("w", "0 1024 linear big 0").unwrap();
    for name in ["v@mon", "w@mon"] {
        let (name, grow_bytes) = (name.to_owned(), Some(64 << 10));
        let (chunk_sectors, size_bytes) = (Some(8), Some(64 << 10));
        let fill_percent = Some(50);
        let params =
            SnapCreate { name, chunk_sectors, size_bytes, fill_percent, grow_bytes, store: None };
        server.verbs.snap_create(&params, &Patient).unwrap();
    }
    let (there, go) = stop_at(&server, Step::StoreMade);
    let slow = begin(&server, |server| server.create("v@other"));
    end(&there);
    server.verbs.watch_over().unwrap();
    server.write("v", 0, 64, 2);
    while server.verbs.turns.waiting() == 0 {
        thread::yield_now();
    }
    server.write("w", 0, 64, 2);
    let grown = |server: &TestServer, name: &str| {
        let share = server.verbs.report_of(name).unwrap().share("allocated/total");
        share.is_some_and(|(_, total)| total > 128)
    };
    while !grown(&server, "w@mon") {
        thread::yield_now();
    }
    assert!(!grown(&server, "v@mon"));
    go.send(()).unwrap();
    end(&slow).unwrap();
    while !grown(&server, "v@mon") {
        thread::yield_now();
    }
}

#[test]
fn a_volume_that_its_user_suspended_during_a_merge_stays_suspended() {
    let (_all, server) = server();
    server.create("v@mon").unwrap();
    server.write("v", 0, 8, 2);
    server.verbs.snap_merge("v@mon", false, None).unwrap();
    server.verbs.suspend("v", false, &Patient).unwrap();
    let line = line_of(server.try_to_end_merge());
    assert_eq!(line, "v: end of merge: found a suspended volume, expected a live one");
    assert!(server.verbs.stuck().is_empty() && server.is_suspended("v"));
    server.resume("v").unwrap();
    assert!(server.try_to_end_merge().unwrap());
}

#[test]
fn a_verb_waits_for_the_one_on_its_volume_and_sees_what_that_did() {
    let (_all, server) = server();
    let (there, go) = stop_at(&server, Step::Recorded);
    let first = begin(&server, |server| server.verbs.create("w", "0 1024 linear big 0"));
    end(&there);
    let second = begin(&server, |server| server.verbs.create("w", "0 8 zero"));
    let on = begin(&server, |server| server.verbs.create("on", "0 8 linear @w 0"));
    while server.verbs.turns.waiting() < 2 {
        thread::yield_now();
    }
    go.send(()).unwrap();
    end(&first).unwrap();
    assert!(line_of(end(&second)).starts_with("w: "), "the name is taken by then");
    end(&on).unwrap();
    assert!(server.has("on"));
}

/// Hangs up as soon as a verb has an entry in the register of those that wait for requests.
struct HangsUpDuring(Arc<TestServer>, AtomicBool);

impl Caller for HangsUpDuring {
    fn is_gone(&self) -> bool {
        let is_under_way = !self.0.world.under_way().is_empty();
        self.1.fetch_or(is_under_way, Ordering::Relaxed) || is_under_way
    }
}

#[test]
fn a_suspend_called_off_too_late_does_not_undo_that_of_another_user() {
    let (_all, server) = server();
    let until_waiting = |count| {
        while server.verbs.turns.waiting() != count {
            thread::yield_now();
        }
    };
    let before = server.verbs.change(&Named::volume("v"), "test", &Patient).unwrap();
    let hangs_up = HangsUpDuring(server.clone(), AtomicBool::new(false));
    let called_off = begin(&server, move |server| server.verbs.suspend("v", false, &hangs_up));
    until_waiting(1);
    let ((tell, there), (go, on)) = (channel(), channel::<()>());
    let between = begin(&server, move |server| {
        let _turn = server.verbs.change(&Named::volume("v"), "test", &Patient).unwrap();
        tell.send(()).unwrap();
        on.recv().unwrap();
    });
    until_waiting(2);
    let other = begin(&server, |server| server.verbs.suspend("v", false, &Patient));
    until_waiting(3);
    drop(before);
    end(&there);
    // The other user's suspend, and the end of the first one.
    until_waiting(2);
    go.send(()).unwrap();
    end(&between);
    let is_suspended = end(&other).is_ok();
    assert_eq!(line_of(end(&called_off)), "v: suspend: interrupted by its caller");
    assert_eq!(server.is_suspended("v"), is_suspended);
    assert!(server.verbs.stuck().is_empty());
}

#[test]
fn an_undone_verb_leaves_the_records_of_other_caches() {
    let (_all, work, _) = folders();
    let server = TestServer::fresh(&work, "d=0 1024 writecache s disk cache 4096 0");
    let before = server.verbs.caches().unwrap().recorded();
    let caches = server.verbs.caches().unwrap();
    let own = caches.caches_in("d", &server.world.volume("d").unwrap().live_table().unwrap());
    caches.go_live("d", || Ok(())).unwrap();
    let mut other = CacheRecord { volume: "other".to_owned(), ..own[0].clone() };
    other.cache[0].start = 1 << 20;
    server.verbs.state.as_ref().unwrap().record_caches(|all| all.push(other.clone())).unwrap();
    caches.put_back("d", &before, &own);
    assert_eq!(caches.recorded(), [vec![other], before].concat());
}

#[test]
fn a_volume_about_to_be_claimed_is_not_exported_by_another_verb() {
    let (_all, server) = server();
    let exports = &server.verbs.exports;
    let claimed = Claimed { volume: "v".to_owned(), may_be_read: false };
    let served = |server: &TestServer| server.verbs.exports.served_as("v").is_some();
    exports.give_way(&server.world, "u", &[claimed]).unwrap();
    assert!(!served(&server) && exports.gave_way("v", "u") && !exports.gave_way("v", "w"));
    server.verbs.create("w", "0 8 linear big 0").unwrap();
    exports.add_volume(&server.world, "v").unwrap();
    assert!(!served(&server));
    exports.settle(&server.world, "u");
    assert!(served(&server) && !exports.gave_way("v", "u"));
}

/// What a thread does to volumes of its own and to those that it shares with others. Answers how
/// much of it was not refused: what is, as another thread came first, leaves everything as it was.
fn act(server: &TestServer, own: &str, round: usize) -> usize {
    let verbs = &server.verbs;
    let snapshot = |name: String, of: &str| ThinSnapshot {
        name,
        of: Some(of.to_owned()),
        ..ThinSnapshot::default()
    };
    let done = match round % 6 {
        0 => verbs.create(&format!("on-{own}"), "0 8 linear @shared 0"),
        1 => verbs.thin_snapshot(&snapshot(format!("{own}-copy"), "t"), &Patient),
        2 => server.create(&format!("shared@{own}")),
        3 => verbs.suspend("t", false, &Patient).and_then(|()| server.resume("t")),
        4 => verbs.snap_remove(&format!("shared@{own}")),
        _ => verbs
            .thin_remove(&format!("{own}-copy"))
            .and_then(|()| verbs.remove(&format!("on-{own}")).map(drop)),
    };
    usize::from(done.is_ok())
}

#[test]
fn concurrent_changes_are_recorded_as_they_are_served() {
    const ROUNDS: usize = 24;
    let (_all, server) = server();
    server.verbs.create("shared", "0 1024 linear big 0").unwrap();
    server.verbs.pool_create(&params("p"), &Patient).unwrap();
    thin(&server, "p/t");
    server.write("t", 0, 128, 7);
    let workers: Vec<_> = (["a", "b", "c", "d"].into_iter().enumerate())
        .map(|(first, own)| {
            begin(&server, move |server| {
                (first..first + ROUNDS).map(|round| act(server, own, round)).sum::<usize>()
            })
        })
        .collect();
    let done: usize = workers.iter().map(end).sum();
    assert!(done > ROUNDS, "{done}");
    let told = server.verbs.told();
    for volume in server.world.volumes() {
        let name = volume.volume();
        let recorded = told[name].table.as_deref().map(str::trim);
        assert_eq!(recorded, server.world.printed(name).unwrap().as_deref(), "{name}");
        assert!(!volume.is_suspended(), "{name}");
    }
    let recorded = told.values().filter(|record| record.table.is_some());
    let mut recorded: Vec<String> = recorded.map(|record| record.name.clone()).collect();
    recorded.sort();
    let served = |server: &TestServer| -> Vec<String> {
        let volumes = server.world.volumes();
        volumes.iter().map(|volume| volume.volume().to_owned()).collect()
    };
    let mut before = served(&server);
    before.sort();
    assert_eq!(recorded, before);
    assert!(server.verbs.turns.is_idle());
    let folder = server.folder.clone();
    server.verbs.close();
    let_go(server);
    let again = TestServer::start(&folder, "v=0 1024 linear disk 0").unwrap();
    let mut after = served(&again);
    after.sort();
    assert_eq!(after, before);
}
