//! Every verb that changes tables, stopped at each of its steps: by a kill (the files are copied,
//! and the copy is started), and by a state file that cannot be written from that step on. Whatever
//! became of the verb, the next start serves every volume.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cairn_outcome::failure::Outcome;

use crate::verbs::cache::{CacheAttach, CacheDetach, CacheSet};
use crate::verbs::pool::tests::params;
use crate::verbs::pool::{PoolCreate, PoolGrow};
use crate::verbs::snap::tests::{Content, Moment, Patient, SECTORS, TestServer, all_of, folders};
use crate::verbs::steps::Step;
use crate::verbs::thin::{ThinCreate, ThinRename, ThinRollback, ThinSnapshot};

pub(super) const TABLE: &str = "v=0 1024 linear disk 0";
/// A table of the same file that is another one.
const OTHER: &str = "0 512 linear other 0\n512 512 linear other 512";

const STEPS: [Step; 10] = [
    Step::StoreMade,
    Step::Recorded,
    Step::Suspended,
    Step::Arranged,
    Step::Pooled,
    Step::Detached,
    Step::Started,
    Step::Attached,
    Step::Resumed,
    Step::Done,
];

pub(super) type Verb = (&'static str, fn(&TestServer) -> Outcome<()>);

pub(super) const VERBS: [Verb; 31] = [
    ("create", |server| server.verbs.create("f", "0 8 zero")),
    ("create that fails", |server| server.verbs.create("f", super::TOO_LARGE)),
    ("remove", |server| server.verbs.remove("e").map(drop)),
    ("rename", |server| server.verbs.rename_volume("e", "f", &Patient)),
    ("rename of a dirty cache", |server| server.verbs.rename_volume("c", "f", &Patient)),
    ("load and resume", |server| {
        server.verbs.load("e", OTHER)?;
        server.resume("e")
    }),
    ("load and clear", |server| {
        server.verbs.load("e", OTHER)?;
        server.verbs.clear("e", &Patient)
    }),
    ("load and resume that fails", |server| {
        server.verbs.load("e", super::TOO_LARGE)?;
        server.resume("e")
    }),
    ("replace", |server| server.replace("e", OTHER, false)),
    ("replace that fails", |server| server.replace("e", super::TOO_LARGE, false)),
    ("replace that flushes", |server| server.replace("c", BARE, true)),
    ("replace that would lose", |server| server.replace("c", BARE, false)),
    ("load and resume that would lose", |server| {
        server.verbs.load("c", BARE)?;
        server.resume("c")
    }),
    ("remove of a dirty cache", |server| server.verbs.remove("c").map(drop)),
    ("cache attach", |server| {
        fs::write(server.folder.join("new"), vec![0; 1 << 20]).unwrap();
        let (name, cache) = ("e".to_owned(), "new".to_owned());
        let attach = CacheAttach { name, cache, ..CacheAttach::default() };
        server.verbs.cache_attach(&attach, &Patient).map(drop)
    }),
    ("cache set", |server| {
        let (name, settings) = ("c".to_owned(), vec!["high_watermark=70".to_owned()]);
        let set = CacheSet { name, settings, ..CacheSet::default() };
        server.verbs.cache_set(&set, &Patient).map(drop)
    }),
    ("cache detach", |server| {
        let detach = CacheDetach { name: "c".to_owned(), ..CacheDetach::default() };
        server.verbs.cache_detach(&detach, &Patient).map(drop)
    }),
    ("snap create", |server| server.create("v@tue")),
    ("snap create of the first", |server| server.create("e@tue")),
    ("snap remove", |server| server.verbs.snap_remove("v@mon")),
    ("snap rollback", |server| merge(server, true)),
    ("snap merge", |server| merge(server, false)),
    ("pool create", |server| {
        let [data, metadata] = ["q.data", "q.meta"].map(str::to_owned);
        server.verbs.pool_create(&PoolCreate { data, metadata, ..params("q") }, &Patient)
    }),
    ("pool grow", |server| grow(server, 8 << 20)),
    ("pool grow that fails", |server| grow(server, 2 << 40)),
    ("thin create", |server| thin(server, "p/u")),
    ("thin snapshot", |server| thin_snapshot(server, "t@tue")),
    ("thin rollback", |server| thin_rollback(server, None)),
    ("thin rollback that keeps", |server| thin_rollback(server, Some("@old".to_owned()))),
    ("thin remove", |server| server.verbs.thin_remove("t@mon")),
    ("thin rename", |server| {
        let (name, to) = ("t".to_owned(), "w".to_owned());
        server.verbs.thin_rename(&ThinRename { name, to, ..ThinRename::default() }, &Patient)
    }),
];

const CACHED: &str = "0 1024 writecache s slow fast 4096 0";
/// The origin of that cache alone.
const BARE: &str = "0 1024 linear slow 0";

fn merge(server: &TestServer, keep: bool) -> Outcome<()> {
    server.verbs.snap_merge("v@mon", keep, None)?;
    server.try_to_end_merge().map(drop)
}

fn grow(server: &TestServer, bytes: u64) -> Outcome<()> {
    let (name, data_bytes) = ("p".to_owned(), Some(bytes));
    server.verbs.pool_grow(&PoolGrow { name, data_bytes, ..PoolGrow::default() }, &Patient)
}

fn thin(server: &TestServer, name: &str) -> Outcome<()> {
    let (name, size_bytes) = (name.to_owned(), SECTORS * 512);
    server.verbs.thin_create(&ThinCreate { name, size_bytes, ..ThinCreate::default() }, &Patient)
}

fn thin_snapshot(server: &TestServer, name: &str) -> Outcome<()> {
    let name = name.to_owned();
    server.verbs.thin_snapshot(&ThinSnapshot { name, ..ThinSnapshot::default() }, &Patient)
}

fn thin_rollback(server: &TestServer, keep: Option<String>) -> Outcome<()> {
    let name = "t@mon".to_owned();
    server.verbs.thin_rollback(&ThinRollback { name, keep }, &Patient)
}

/// A volume with a snapshot, one without, one with a dirty cache, and a pool whose volume has one.
pub(super) fn full_house(work: &Path) -> TestServer {
    fs::write(work.join("meta"), vec![0; 4 << 20]).unwrap();
    let server = TestServer::fresh(work, TABLE);
    server.create("v@mon").unwrap();
    server.write("v", 0, 96, 2);
    fs::write(work.join("other"), vec![5; SECTORS as usize * 512]).unwrap();
    server.verbs.create("e", "0 1024 linear other 0").unwrap();
    fs::write(work.join("slow"), vec![6; SECTORS as usize * 512]).unwrap();
    fs::write(work.join("fast"), vec![0; 1 << 20]).unwrap();
    server.verbs.create("c", CACHED).unwrap();
    server.write("c", 0, 64, 7);
    server.flush("c");
    server.verbs.pool_create(&params("p"), &Patient).unwrap();
    thin(&server, "p/t").unwrap();
    server.write("t", 0, SECTORS, 3);
    thin_snapshot(&server, "t@mon").unwrap();
    server.write("t", 0, 128, 4);
    server.flush("t");
    server
}

/// Every volume is served, with what it had, or with what its snapshot had.
fn check(folder: &Path, what: &str) {
    let server = TestServer::start(folder, TABLE).unwrap_or_else(|error| panic!("{what}: {error}"));
    let is_one_of = |name: &str, contents: &[Content]| {
        let content = server.bytes(name);
        assert!(contents.contains(&content), "{what}: {name}: {content:?}");
    };
    is_one_of("v", &[all_of(1), vec![(96, 2), (SECTORS - 96, 1)]]);
    if server.has("v@mon") {
        is_one_of("v@mon", &[all_of(1)]);
    }
    let thin = if server.has("t") { "t" } else { "w" };
    is_one_of(thin, &[all_of(3), vec![(128, 4), (SECTORS - 128, 3)]]);
    let cached = vec![(64, 7), (SECTORS - 64, 6)];
    if server.has("e") {
        is_one_of("e", &[all_of(5)]);
    }
    if server.has("c") {
        is_one_of("c", std::slice::from_ref(&cached));
    }
    if what.starts_with("rename") {
        // The new name has the volume, or the old one has.
        let (old, content) = if what.contains("cache") { ("c", cached) } else { ("e", all_of(5)) };
        assert!(server.has("f") != server.has(old), "{what}");
        is_one_of(if server.has("f") { "f" } else { old }, &[content]);
    }
}

#[test]
fn a_kill_at_any_step_of_any_verb_leaves_what_the_next_start_serves() {
    for (name, verb) in VERBS {
        let (_all, work, copies) = folders();
        let server = full_house(&work);
        let moments = server.moments(&copies, |server| drop(verb(server)));
        assert!(moments.len() > 1 || name == "create that fails", "{name}");
        for Moment { step, folder } in moments {
            check(&folder, &format!("{name} killed at {step:?}"));
        }
    }
}

#[test]
fn a_state_file_that_fails_at_any_step_of_any_verb_leaves_what_the_next_start_serves() {
    for (name, verb) in VERBS {
        for step in STEPS {
            let (_all, work, _) = folders();
            let server = full_house(&work);
            let (obstacle, reached) = (work.join("state.new"), Arc::new(AtomicBool::new(false)));
            let (folder, seen) = (obstacle.clone(), reached.clone());
            *server.verbs.at_step.lock() = Box::new(move |now| {
                if now == step && !seen.swap(true, Ordering::Relaxed) {
                    fs::create_dir(&folder).unwrap();
                }
            });
            drop(verb(&server));
            *server.verbs.at_step.lock() = Box::new(|_| ());
            drop(server);
            if reached.load(Ordering::Relaxed) {
                fs::remove_dir(&obstacle).unwrap();
                check(&work, &format!("{name} without a state file from {step:?}"));
            }
        }
    }
}
