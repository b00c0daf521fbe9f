//! `rename`: what moves with a name, and what refuses another one. The kills between its steps are
//! in `half_way`.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use cairn_backends::DeviceOpener;
use cairn_block::{ConfigKind, Disk, FailureCursor, Io, IoError, IoResult, Opener};
use parking_lot::Mutex;

use super::half_way::TABLE;
use super::line_of;
use crate::state::{Export, Record, StateFile};
use crate::throttles::Limits;
use crate::verbs::export::{ExportAdd, ExportRemove, ExportThrottle};
use crate::verbs::pool::tests::params;
use crate::verbs::snap::tests::{Moment, Patient, SECTORS, TestServer, all_of, folders};
use crate::verbs::steps::Step;
use crate::verbs::thin::ThinCreate;
use crate::verbs::verb::Verb;

impl TestServer {
    /// A server with the volume `e` of byte 5.
    fn with_e(work: &Path) -> TestServer {
        let server = TestServer::fresh(work, TABLE);
        fs::write(work.join("other"), vec![5; SECTORS as usize * 512]).unwrap();
        server.verbs.create("e", "0 1024 linear other 0").unwrap();
        server
    }

    fn try_rename(&self, name: &str, to: &str) -> Result<(), String> {
        self.verbs.rename_volume(name, to, &Patient).map_err(|error| error.to_string())
    }

    fn exports(&self) -> Vec<(String, String)> {
        let served = self.verbs.exports.served().into_iter();
        let mut names: Vec<_> = served.map(|export| (export.name, export.volume)).collect();
        names.sort();
        names
    }

    /// What the first two flushes of a new client answer.
    fn first_flushes(&self, name: &str) -> [IoResult; 2] {
        let disk: Arc<dyn Disk> = self.world.volume(name).unwrap();
        let mut cursor = FailureCursor::new(&disk);
        [(); 2].map(|()| {
            let on = disk.clone();
            let flushed =
                self.world.on_home(name, |env| async move { env.io(&on, Io::flush()).await });
            let told = cursor.end_of_flush(&disk, flushed);
            cursor.was_told(&disk);
            told
        })
    }
}

fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(one, two)| ((*one).to_owned(), (*two).to_owned())).collect()
}

#[test]
fn renamed_volume_has_its_data_and_its_export_under_the_new_name_also_after_a_restart() {
    let (_all, work, _) = folders();
    let server = TestServer::with_e(&work);
    server.write("e", 0, SECTORS, 6);
    server.try_rename("e", "f").unwrap();
    assert!(!server.has("e"));
    assert_eq!(server.bytes("f"), all_of(6));
    assert_eq!(server.exports(), owned(&[("f", "f"), ("v", "v")]));
    drop(server);
    let again = TestServer::start(&work, TABLE).unwrap();
    assert!(!again.has("e"));
    assert_eq!(again.bytes("f"), all_of(6));
    again.verbs.create("e", "0 8 zero").unwrap();
}

#[test]
fn loss_that_no_client_was_told_of_is_told_to_the_clients_of_the_new_name() {
    let (_all, work, copies) = folders();
    let server = TestServer::with_e(&work);
    server.world.tell_of_loss("e");
    let moments = server.moments(&copies, |server| server.try_rename("e", "f").unwrap());
    assert_eq!(server.world.untold_losses(), ["f"]);
    assert_eq!(server.first_flushes("f"), [Err(IoError::IO), Ok(())]);
    // As after a stop: a volume of the old name has lost nothing.
    server.verbs.create("e", "0 8 zero").unwrap();
    assert_eq!(server.first_flushes("e"), [Ok(()), Ok(())]);
    for Moment { step, folder } in moments {
        let untold = StateFile::open(&folder.join("state")).unwrap().untold();
        let is_new = step != Some(Step::Arranged);
        assert_eq!(untold.contains("f"), is_new, "a server that is killed after {step:?}");
        assert!(!untold.contains("e"));
    }
}

#[test]
fn state_file_that_cannot_be_written_leaves_the_old_name_served() {
    let (_all, work, _) = folders();
    let server = TestServer::with_e(&work);
    let before = fs::read(work.join("state")).unwrap();
    fs::create_dir(work.join("state.new")).unwrap();
    let refused = server.try_rename("e", "f").unwrap_err();
    assert!(refused.contains("state: write"), "{refused}");
    assert!(!server.has("f"));
    assert_eq!(server.bytes("e"), all_of(5));
    assert_eq!(server.exports(), owned(&[("e", "e"), ("v", "v")]));
    fs::remove_dir(work.join("state.new")).unwrap();
    assert_eq!(fs::read(work.join("state")).unwrap(), before);
    server.try_rename("e", "f").unwrap();
}

#[test]
fn refused_rename_leaves_no_claim_behind() {
    let (_all, work, _) = folders();
    let server = TestServer::fresh(&work, TABLE);
    server.verbs.create("c", "0 1024 writecache s @v cache 4096 0").unwrap();
    fs::create_dir(work.join("state.new")).unwrap();
    server.try_rename("c", "d").unwrap_err();
    fs::remove_dir(work.join("state.new")).unwrap();
    assert_eq!(server.exports(), owned(&[("c", "c")]));
    server.verbs.remove("c").unwrap();
    assert_eq!(server.exports(), owned(&[("v", "v")]));
}

#[test]
fn files_of_a_renamed_volume_stay_locked_in_between() {
    let (_all, work, _) = folders();
    let server = TestServer::with_e(&work);
    let (file, seen) = (work.join("other"), Arc::<Mutex<Vec<_>>>::default());
    let log = seen.clone();
    *server.verbs.at_step.lock() = Box::new(move |_| {
        // As another process opens it.
        let opened = DeviceOpener::default().open(file.to_str().unwrap(), false, Arc::default());
        log.lock().push(opened.err().map(|error| error.kind));
    });
    server.try_rename("e", "f").unwrap();
    assert_eq!(*seen.lock(), [Some(ConfigKind::Busy); 3]);
}

#[test]
fn volume_that_cannot_begin_under_the_new_name_goes_on_under_the_old_one() {
    let (_all, work, _) = folders();
    let server = TestServer::with_e(&work);
    throttle(&server, "e", "iops-total=7");
    let (before, changes) = (server.verbs.changes.record_of("e"), server.verbs.exports.changes());
    let world = server.world.clone();
    *server.verbs.at_step.lock() = Box::new(move |step| {
        if step == Step::Recorded {
            world.create("f").unwrap();
        }
    });
    let refused = server.try_rename("e", "f").unwrap_err();
    assert!(refused.contains("found a volume of this name"), "{refused}");
    *server.verbs.at_step.lock() = Box::new(|_| ());
    assert!(!server.has("f"));
    assert_eq!(server.bytes("e"), all_of(5));
    assert_eq!(server.verbs.changes.record_of("e"), before);
    assert_eq!(server.verbs.exports.changes(), changes);
    let state = StateFile::open(&work.join("state")).unwrap();
    assert_eq!((state.records(), state.exports()), (vec![before], changes));
    assert_eq!(server.exports(), owned(&[("e", "e"), ("v", "v")]));
}

#[test]
fn undone_rename_that_cannot_be_written_is_written_with_the_next_change() {
    let (_all, work, _) = folders();
    let server = TestServer::with_e(&work);
    throttle(&server, "e", "iops-total=7");
    server.world.tell_of_loss("e");
    let (before, changes) = (server.verbs.changes.record_of("e"), server.verbs.exports.changes());
    let (world, blocked) = (server.world.clone(), work.join("state.new"));
    *server.verbs.at_step.lock() = Box::new(move |step| {
        if step == Step::Recorded {
            world.create("f").unwrap();
            fs::create_dir(&blocked).unwrap();
        }
    });
    let refused = server.try_rename("e", "f").unwrap_err();
    *server.verbs.at_step.lock() = Box::new(|_| ());
    assert!(refused.contains("the state file has 'f' for now") && !refused.contains('\n'));
    assert_eq!(server.bytes("e"), all_of(5));
    assert_eq!(server.exports(), owned(&[("e", "e"), ("v", "v")]));
    assert_eq!(server.world.untold_losses(), ["e"], "no volume of the new name lost writes");
    assert_eq!(server.verbs.changes.record_of("e"), before);
    line_of(server.verbs.create("other", "0 8 zero"));
    fs::remove_dir(work.join("state.new")).unwrap();
    server.verbs.create("other", "0 8 zero").unwrap();
    let state = StateFile::open(&work.join("state")).unwrap();
    let records: Vec<Record> =
        state.records().into_iter().filter(|record| record.name != "other").collect();
    assert_eq!((records, state.exports()), (vec![before], changes));
    assert!(!state.untold().contains("f"));
}

#[test]
fn volume_that_begins_under_neither_name_is_noted_as_not_served_under_the_old_one() {
    let (_all, work, _) = folders();
    let server = TestServer::with_e(&work);
    let (file, away) = (work.join("other"), work.join("away"));
    let (from, to) = (file.clone(), away.clone());
    *server.verbs.at_step.lock() = Box::new(move |step| {
        if step == Step::Recorded {
            fs::rename(&from, &to).unwrap();
        }
    });
    let refused = server.try_rename("e", "f").unwrap_err();
    *server.verbs.at_step.lock() = Box::new(|_| ());
    assert!(refused.contains("; 'e' is not served: ") && !refused.contains('\n'), "{refused}");
    assert!(!server.has("e") && !server.has("f"));
    assert!(server.world.why_not_served("e").is_some());
    assert_eq!(server.exports(), owned(&[("v", "v")]));
    fs::rename(&away, &file).unwrap();
    drop(server);
    let again = TestServer::start(&work, TABLE).unwrap();
    assert_eq!(again.bytes("e"), all_of(5));
}

#[test]
fn claimed_volume_is_not_served_while_a_rename_is_undone() {
    let (_all, work, _) = folders();
    let server = TestServer::fresh(&work, TABLE);
    server.verbs.create("c", "0 1024 writecache s @v cache 4096 0").unwrap();
    server.write("c", 0, 8, 9);
    let (world, exports) = (server.world.clone(), server.verbs.exports.clone());
    let seen = Arc::<Mutex<Vec<bool>>>::default();
    let log = seen.clone();
    *server.verbs.at_step.lock() = Box::new(move |step| {
        if step == Step::Recorded {
            world.create("d").unwrap();
            // As after a failure to begin.
            exports.settle(&world, "d");
            log.lock().push(exports.served_as("v").is_some());
        }
    });
    server.try_rename("c", "d").unwrap_err();
    *server.verbs.at_step.lock() = Box::new(|_| ());
    assert_eq!(*seen.lock(), [false]);
    assert_eq!(server.exports(), owned(&[("c", "c")]));
    assert_eq!(server.bytes("c"), [(8, 9), (SECTORS - 8, 1)]);
    server.verbs.remove("c").unwrap();
    assert_eq!(server.exports(), owned(&[("v", "v")]), "no name awaits its claims any more");
}

fn throttle(server: &TestServer, name: &str, limits: &str) {
    let limits = Limits::parse(name, limits).unwrap();
    let throttle = ExportThrottle { name: name.to_owned(), limits };
    throttle.run(&server.verbs, &Patient).unwrap();
}

fn export(server: &TestServer, volume: &str, name: &str, read_only: bool) {
    let (volume, name) = (volume.to_owned(), Some(name.to_owned()));
    let add = ExportAdd { volume, name, read_only, ..ExportAdd::default() };
    add.run(&server.verbs, &Patient).unwrap();
}

/// The removal of a volume changes no more of the exports than limits of its own, and so waits for
/// no rename of another one.
#[test]
fn limits_that_another_verb_takes_away_during_a_rename_stay_away() {
    for fails in [false, true] {
        let (_all, work, _) = folders();
        let server = TestServer::with_e(&work);
        throttle(&server, "v", "iops-total=7");
        let verbs = Arc::downgrade(&server.verbs);
        *server.verbs.at_step.lock() = Box::new(move |step| {
            let verbs = verbs.upgrade().unwrap();
            let (at, other) = if fails { (Step::Recorded, "f") } else { (Step::Arranged, "") };
            if step == at {
                let changed = verbs.changes.record_with(&verbs.exports, Vec::new(), |changes| {
                    changes.throttles.remove("v");
                });
                changed.unwrap();
                // It takes the new name away, so that the rename is undone.
                if fails && verbs.world.volume(other).is_err() {
                    verbs.world.create(other).unwrap();
                }
            }
        });
        assert_eq!(server.try_rename("e", "f").is_err(), fails);
        assert!(server.verbs.exports.limits_of("v").is_empty());
        let recorded = server.verbs.state.clone().unwrap().exports();
        assert!(!recorded.throttles.contains_key("v"), "fails: {fails}");
    }
}

#[test]
fn exports_and_limits_move_with_the_name_in_one_change_of_the_state_file() {
    let (_all, work, copies) = folders();
    let server = TestServer::with_e(&work);
    throttle(&server, "e", "iops-total=7");
    export(&server, "e", "data", true);
    throttle(&server, "data", "bps-total=4096");
    let moments = server.moments(&copies, |server| server.try_rename("e", "f").unwrap());
    assert_eq!(server.exports(), owned(&[("data", "f"), ("f", "f"), ("v", "v")]));
    assert_eq!(server.verbs.exports.limits_of("f").to_string(), "iops-total=7");
    assert_eq!(server.verbs.exports.limits_of("data").to_string(), "bps-total=4096");
    assert!(server.verbs.exports.limits_of("e").is_empty());
    for Moment { step, folder } in moments {
        let state = StateFile::open(&folder.join("state")).unwrap();
        let (name, other) = if step == Some(Step::Arranged) { ("e", "f") } else { ("f", "e") };
        let exports = state.exports();
        let added: Vec<&str> = exports.added.iter().map(|one| one.volume.as_str()).collect();
        assert_eq!(added, [name], "{step:?}");
        let has_limits = |name: &str| exports.throttles.contains_key(name);
        assert!(has_limits(name) && !has_limits(other) && has_limits("data"), "{step:?}");
        assert_eq!(state.records()[0].name, name);
    }
}

#[test]
fn export_of_the_own_name_that_was_removed_or_made_read_only_stays_so() {
    let (_all, work, _) = folders();
    let server = TestServer::with_e(&work);
    let remove = |name: &str| {
        let remove = ExportRemove { name: name.to_owned(), ..ExportRemove::default() };
        remove.run(&server.verbs, &Patient).unwrap();
    };
    remove("e");
    server.try_rename("e", "f").unwrap();
    assert_eq!(server.exports(), owned(&[("v", "v")]));
    export(&server, "f", "f", true);
    server.try_rename("f", "g").unwrap();
    let own = Export {
        name: "g".to_owned(),
        volume: "g".to_owned(),
        description: String::new(),
        read_only: true,
    };
    assert_eq!(server.verbs.exports.served_as("g"), Some(own));
    // What an earlier volume of the name left counts no more.
    server.verbs.create("h", "0 8 zero").unwrap();
    remove("h");
    server.verbs.remove("h").unwrap();
    server.verbs.create("x", "0 8 zero").unwrap();
    server.try_rename("x", "h").unwrap();
    assert!(server.verbs.exports.served_as("h").is_some());
}

#[test]
fn claimed_volume_is_not_served_in_between_and_a_dirty_cache_has_one_owner() {
    let (_all, work, _) = folders();
    let server = TestServer::fresh(&work, "v=0 1024 linear disk 0");
    server.verbs.create("c", "0 1024 writecache s @v cache 4096 0").unwrap();
    server.write("c", 0, 8, 9);
    let owners = |state: &StateFile| {
        state.caches().into_iter().map(|cache| cache.volume).collect::<Vec<_>>()
    };
    let (exports, seen) = (server.verbs.exports.clone(), Arc::<Mutex<Vec<_>>>::default());
    let (log, state) = (seen.clone(), work.join("state"));
    *server.verbs.at_step.lock() = Box::new(move |step| {
        let state = StateFile::open(&state).unwrap();
        log.lock().push((step, exports.served_as("v").is_some(), owners(&state)));
    });
    server.try_rename("c", "d").unwrap();
    let at = |step, owner: &str| (step, false, vec![owner.to_owned()]);
    let expected = [at(Step::Arranged, "c"), at(Step::Recorded, "d"), at(Step::Done, "d")];
    assert_eq!(*seen.lock(), expected);
    assert_eq!(server.exports(), owned(&[("d", "d")]));
    assert_eq!(server.bytes("d"), [(8, 9), (SECTORS - 8, 1)]);
    *server.verbs.at_step.lock() = Box::new(|_| ());
    server.verbs.remove("d").unwrap();
    assert_eq!(server.exports(), owned(&[("v", "v")]), "it is free again");
}

#[test]
fn volume_that_others_know_by_its_name_is_refused_in_one_line() {
    let (_all, work, _) = folders();
    fs::write(work.join("meta"), vec![0; 4 << 20]).unwrap();
    let server = TestServer::with_e(&work);
    server.verbs.create("on", "0 8 linear @e 0").unwrap();
    server.verbs.create("loaded", "0 8 zero").unwrap();
    server.verbs.load("loaded", "0 8 zero").unwrap();
    server.verbs.create("held", "0 8 zero").unwrap();
    server.verbs.suspend("held", false, &Patient).unwrap();
    server.verbs.create("free", "0 8 zero").unwrap();
    fs::write(work.join("third"), vec![0; SECTORS as usize * 512]).unwrap();
    server.verbs.create("parent", "0 1024 linear third 0").unwrap();
    server.create("parent@mon").unwrap();
    server.verbs.pool_create(&params("p"), &Patient).unwrap();
    let (name, size_bytes) = ("p/t".to_owned(), SECTORS * 512);
    let thin = ThinCreate { name, size_bytes, ..ThinCreate::default() };
    server.verbs.thin_create(&thin, &Patient).unwrap();
    export(&server, "v", "taken", false);
    let before = fs::read(work.join("state")).unwrap();
    for (name, to, expected) in [
        ("none", "x", "none: there is no volume of this name; `cairn ls` lists them"),
        ("v", "x", "v: name: found a volume of the configuration, expected one made by cairn"),
        ("e", "x", "e: users: found volume 'on' on it, expected none"),
        ("p", "x", "p: users: found volume 't' on it, expected none"),
        ("t", "x", "t: rename: found a volume of a pool, expected none (cairn thin rename gives"),
        ("loaded", "x", "loaded: state: found a loaded table, expected none (cairn resume or"),
        ("held", "x", "held: state: found suspended, expected a live volume"),
        ("parent", "x", "parent: rename: found snapshots of it, expected none (snapshots have"),
        ("parent@mon", "x", "parent@mon: rename: found a snapshot, expected none (snapshots have"),
        ("free", "on", "on: name: found a volume of this name, expected a new one"),
        ("free", "free", "free: name: found a volume of this name, expected a new one"),
        ("free", "taken", "export 'taken': name: found an export of v, expected a new one"),
        ("free", "a/b", "volume: name: found 'a/b', expected a name without spaces and '/'"),
        ("free", "", "volume: name: found '', expected a name without spaces and '/'"),
        ("free", "parent@x", "volume: name: found 'parent@x', expected a name without '@'"),
    ] {
        let refused = server.try_rename(name, to).unwrap_err();
        assert!(refused.starts_with(expected) && !refused.contains('\n'), "{refused}");
    }
    assert_eq!(fs::read(work.join("state")).unwrap(), before);
    server.try_rename("free", "x").unwrap();
    assert!(line_of(server.verbs.remove("free")).contains("no volume"));
}

#[test]
fn volume_whose_content_ends_with_its_table_is_refused_and_keeps_it() {
    let (_all, work, _) = folders();
    fs::write(work.join("slow"), vec![0; SECTORS as usize * 512]).unwrap();
    fs::write(work.join("cow"), vec![0; SECTORS as usize * 512]).unwrap();
    let server = TestServer::with_e(&work);
    for (table, expected) in [
        ("0 1024 linear mem:512K 0", "found 'mem:512K', a disk in memory without a name, expected"),
        ("0 1024 writecache s slow mem:1M 4096 0", "found 'mem:1M', a disk in memory without a"),
        ("0 1024 snapshot slow cow N 8", "found a snapshot with store N, expected none"),
        ("0 1024 snapshot slow cow n8 8", "found a snapshot with store N, expected none"),
    ] {
        server.verbs.create("m", table).unwrap();
        server.write("m", 0, 8, 9);
        let refused = server.try_rename("m", "x").unwrap_err();
        assert!(refused.starts_with("m: table: ") && refused.contains(expected), "{refused}");
        assert_eq!(server.bytes("m")[0], (8, 9), "{table}");
        server.verbs.remove("m").unwrap();
    }
    // These have nothing, or keep it.
    fs::write(work.join("cow"), vec![0; SECTORS as usize * 512]).unwrap();
    for table in [
        "0 1024 linear null:512K 0",
        "0 1024 linear mem:512K,name=m 0",
        "0 1024 snapshot slow cow P 8",
    ] {
        server.verbs.create("m", table).unwrap();
        server.write("m", 0, 8, 9);
        let before = server.bytes("m");
        server.try_rename("m", "x").unwrap();
        assert_eq!(server.bytes("x"), before, "{table}");
        server.verbs.remove("x").unwrap();
    }
}

#[test]
fn table_of_a_volume_that_is_not_served_counts_as_a_user() {
    let (_all, work, _) = folders();
    let server = TestServer::with_e(&work);
    let user =
        Record { table: Some("0 8 linear @e 0".to_owned()), ..Record::as_configured("gone", None) };
    server.verbs.changes.record_all(vec![user]).unwrap();
    let refused = server.try_rename("e", "x").unwrap_err();
    assert!(refused.starts_with("e: users: found a recorded table of 'gone' on it"), "{refused}");
    let refused = server.try_rename("e", "gone").unwrap_err();
    assert!(refused.starts_with("e: users: found a recorded table"), "{refused}");
}
