//! Every verb that changes tables, stopped at each of its steps: by a kill (the files are copied,
//! and the copy is started), and by a state file that cannot be written from that step on. Whatever
//! became of the verb, the next start serves every volume.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cairn_outcome::failure::Outcome;

use crate::verbs::pool::tests::params;
use crate::verbs::pool::{PoolCreate, PoolGrow};
use crate::verbs::snap::tests::{Bed, Content, Moment, SECTORS, all_of, folders};
use crate::verbs::steps::Step;
use crate::verbs::thin::{ThinCreate, ThinRename, ThinRollback, ThinSnapshot};

pub(super) const TABLE: &str = "v=0 1024 linear disk 0";
/// A table of the same file that is another one.
const OTHER: &str = "0 512 linear other 0\n512 512 linear other 512";

const STEPS: [Step; 8] = [
    Step::StoreMade,
    Step::Recorded,
    Step::Suspended,
    Step::Arranged,
    Step::Pooled,
    Step::Started,
    Step::Resumed,
    Step::Done,
];

pub(super) type Verb = (&'static str, fn(&Bed) -> Outcome<()>);

pub(super) const VERBS: [Verb; 26] = [
    ("create", |bed| bed.verbs.create("f", "0 8 zero")),
    ("create that fails", |bed| bed.verbs.create("f", super::TOO_LARGE)),
    ("remove", |bed| bed.verbs.remove("e").map(drop)),
    ("load and resume", |bed| {
        bed.verbs.load("e", OTHER)?;
        bed.resume("e")
    }),
    ("load and clear", |bed| {
        bed.verbs.load("e", OTHER)?;
        bed.verbs.clear("e")
    }),
    ("load and resume that fails", |bed| {
        bed.verbs.load("e", super::TOO_LARGE)?;
        bed.resume("e")
    }),
    ("replace", |bed| bed.replace("e", OTHER, false)),
    ("replace that fails", |bed| bed.replace("e", super::TOO_LARGE, false)),
    ("replace that flushes", |bed| bed.replace("c", BARE, true)),
    ("replace that would lose", |bed| bed.replace("c", BARE, false)),
    ("load and resume that would lose", |bed| {
        bed.verbs.load("c", BARE)?;
        bed.resume("c")
    }),
    ("remove of a dirty cache", |bed| bed.verbs.remove("c").map(drop)),
    ("snap create", |bed| bed.create("v@tue")),
    ("snap create of the first", |bed| bed.create("e@tue")),
    ("snap remove", |bed| bed.verbs.snap_remove("v@mon")),
    ("snap rollback", |bed| merge(bed, true)),
    ("snap merge", |bed| merge(bed, false)),
    ("pool create", |bed| {
        let [data, metadata] = ["q.data", "q.meta"].map(str::to_owned);
        bed.verbs.pool_create(&PoolCreate { data, metadata, ..params("q") })
    }),
    ("pool grow", |bed| grow(bed, 8 << 20)),
    ("pool grow that fails", |bed| grow(bed, 2 << 40)),
    ("thin create", |bed| thin(bed, "p/u")),
    ("thin snapshot", |bed| thin_snapshot(bed, "t@tue")),
    ("thin rollback", |bed| thin_rollback(bed, None)),
    ("thin rollback that keeps", |bed| thin_rollback(bed, Some("@old".to_owned()))),
    ("thin remove", |bed| bed.verbs.thin_remove("t@mon")),
    ("thin rename", |bed| {
        let (name, to) = ("t".to_owned(), "w".to_owned());
        bed.verbs.thin_rename(&ThinRename { name, to, ..ThinRename::default() })
    }),
];

const CACHED: &str = "0 1024 writecache s slow fast 4096 0";
/// The origin of that cache alone.
const BARE: &str = "0 1024 linear slow 0";

fn merge(bed: &Bed, keep: bool) -> Outcome<()> {
    bed.verbs.snap_merge("v@mon", keep, None)?;
    bed.try_to_end_merge().map(drop)
}

fn grow(bed: &Bed, bytes: u64) -> Outcome<()> {
    let (name, data_bytes) = ("p".to_owned(), Some(bytes));
    bed.verbs.pool_grow(&PoolGrow { name, data_bytes, ..PoolGrow::default() })
}

fn thin(bed: &Bed, name: &str) -> Outcome<()> {
    let (name, size_bytes) = (name.to_owned(), SECTORS * 512);
    bed.verbs.thin_create(&ThinCreate { name, size_bytes, ..ThinCreate::default() })
}

fn thin_snapshot(bed: &Bed, name: &str) -> Outcome<()> {
    let name = name.to_owned();
    bed.verbs.thin_snapshot(&ThinSnapshot { name, ..ThinSnapshot::default() })
}

fn thin_rollback(bed: &Bed, keep: Option<String>) -> Outcome<()> {
    let name = "t@mon".to_owned();
    bed.verbs.thin_rollback(&ThinRollback { name, keep })
}

/// A volume with a snapshot, one without, one with a dirty cache, and a pool whose volume has one.
pub(super) fn full_house(work: &Path) -> Bed {
    fs::write(work.join("meta"), vec![0; 4 << 20]).unwrap();
    let bed = Bed::fresh(work, TABLE);
    bed.create("v@mon").unwrap();
    bed.write("v", 0, 96, 2);
    fs::write(work.join("other"), vec![5; SECTORS as usize * 512]).unwrap();
    bed.verbs.create("e", "0 1024 linear other 0").unwrap();
    fs::write(work.join("slow"), vec![6; SECTORS as usize * 512]).unwrap();
    fs::write(work.join("fast"), vec![0; 1 << 20]).unwrap();
    bed.verbs.create("c", CACHED).unwrap();
    bed.write("c", 0, 64, 7);
    bed.flush("c");
    bed.verbs.pool_create(&params("p")).unwrap();
    thin(&bed, "p/t").unwrap();
    bed.write("t", 0, SECTORS, 3);
    thin_snapshot(&bed, "t@mon").unwrap();
    bed.write("t", 0, 128, 4);
    bed.flush("t");
    bed
}

/// Every volume is served, with what it had, or with what its snapshot had.
fn check(folder: &Path, what: &str) {
    let bed = Bed::start(folder, TABLE).unwrap_or_else(|error| panic!("{what}: {error}"));
    let is_one_of = |name: &str, contents: &[Content]| {
        let content = bed.bytes(name);
        assert!(contents.contains(&content), "{what}: {name}: {content:?}");
    };
    is_one_of("v", &[all_of(1), vec![(96, 2), (SECTORS - 96, 1)]]);
    if bed.has("v@mon") {
        is_one_of("v@mon", &[all_of(1)]);
    }
    let thin = if bed.has("t") { "t" } else { "w" };
    is_one_of(thin, &[all_of(3), vec![(128, 4), (SECTORS - 128, 3)]]);
    if bed.has("e") {
        is_one_of("e", &[all_of(5)]);
    }
    if bed.has("c") {
        is_one_of("c", &[vec![(64, 7), (SECTORS - 64, 6)]]);
    }
}

#[test]
fn a_kill_at_any_step_of_any_verb_leaves_what_the_next_start_serves() {
    for (name, verb) in VERBS {
        let (_all, work, copies) = folders();
        let bed = full_house(&work);
        let moments = bed.moments(&copies, |bed| drop(verb(bed)));
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
            let bed = full_house(&work);
            let (obstacle, reached) = (work.join("state.new"), Arc::new(AtomicBool::new(false)));
            let (folder, seen) = (obstacle.clone(), reached.clone());
            *bed.verbs.at_step.lock() = Box::new(move |now| {
                if now == step && !seen.swap(true, Ordering::Relaxed) {
                    fs::create_dir(&folder).unwrap();
                }
            });
            drop(verb(&bed));
            *bed.verbs.at_step.lock() = Box::new(|_| ());
            drop(bed);
            if reached.load(Ordering::Relaxed) {
                fs::remove_dir(&obstacle).unwrap();
                check(&work, &format!("{name} without a state file from {step:?}"));
            }
        }
    }
}
