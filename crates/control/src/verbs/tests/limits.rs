//! What becomes of the limits of exports when volumes are removed, renamed and made again.

use std::sync::Arc;

use cairn_outcome::failure::Outcome;

use super::half_way::full_house;
use crate::state::{Record, StateFile};
use crate::throttles::Limits;
use crate::verbs::export::{ExportAdd, ExportThrottle};
use crate::verbs::snap::tests::{Patient, TestServer, folders};
use crate::verbs::thin::ThinRename;

const LIMITS: &str = "iops-total=7";

fn limits() -> Limits {
    Limits::parse("test", LIMITS).unwrap()
}

fn limit(server: &TestServer, export: &str) {
    let (name, limits) = (export.to_owned(), limits());
    server.verbs.export_throttle(ExportThrottle { name, limits }, &Patient).unwrap();
}

fn limits_of(server: &TestServer, export: &str) -> String {
    server.verbs.exports.limits_of(export).to_string()
}

fn merged(server: &TestServer) -> Outcome<()> {
    server.verbs.snap_merge("v@mon", false, None)
}

type Removal = (&'static str, fn(&TestServer) -> Outcome<()>);

const REMOVALS: [Removal; 4] = [
    ("e", |server| server.verbs.remove("e").map(drop)),
    ("v@mon", |server| server.verbs.snap_remove("v@mon")),
    ("v@mon", merged),
    ("t@mon", |server| server.verbs.thin_remove("t@mon")),
];

#[test]
fn limits_of_a_removed_volume_go_with_it_in_the_same_change_of_the_state_file() {
    for (name, remove) in REMOVALS {
        let (_all, work, copies) = folders();
        let server = full_house(&work);
        limit(&server, name);
        limit(&server, "v");
        assert_eq!(limits_of(&server, name), LIMITS);
        for moment in server.moments(&copies, |server| remove(server).unwrap()) {
            let state = StateFile::open(&moment.folder.join("state")).unwrap();
            let is_it = |record: &Record| record.name == name && record.table.is_some();
            let (records, exports) = (state.records(), state.exports());
            let has_limits = exports.throttles.contains_key(name);
            assert_eq!(records.iter().any(is_it), has_limits, "{name}: {:?}", moment.step);
            assert!(exports.throttles.contains_key("v"), "that of another volume stays");
        }
        assert_eq!(limits_of(&server, name), "none");
    }
}

#[test]
fn next_snapshot_of_the_name_has_no_limits_of_the_one_that_was_removed() {
    let (_all, work, _) = folders();
    let server = TestServer::fresh(&work, "v=0 1024 linear disk 0");
    server.create("v@mon").unwrap();
    limit(&server, "v@mon");
    server.verbs.snap_remove("v@mon").unwrap();
    server.create("v@mon").unwrap();
    assert_eq!(limits_of(&server, "v@mon"), "none");
    // Another change writes all limits again.
    limit(&server, "v");
    let state = StateFile::open(&work.join("state")).unwrap();
    assert_eq!(state.exports().throttles.into_keys().collect::<Vec<_>>(), ["v"]);
}

#[test]
fn export_that_a_verb_added_keeps_its_limits_as_it_outlives_its_volume() {
    let (_all, work, _) = folders();
    let server = TestServer::fresh(&work, "v=0 1024 linear disk 0");
    server.verbs.create("w", "0 8 zero").unwrap();
    let (volume, name) = ("w".to_owned(), Some("again".to_owned()));
    let add = ExportAdd { volume, name, throttle: Some(limits()), ..ExportAdd::default() };
    server.verbs.export_add(add, &Patient).unwrap();
    limit(&server, "w");
    server.verbs.remove("w").unwrap();
    assert_eq!([limits_of(&server, "w"), limits_of(&server, "again")], ["none", LIMITS]);
    server.verbs.create("w", "0 8 zero").unwrap();
    assert_eq!([limits_of(&server, "w"), limits_of(&server, "again")], ["none", LIMITS]);
}

#[test]
fn removal_that_is_undone_leaves_the_limits_and_those_that_other_verbs_changed() {
    let (_all, work, _) = folders();
    let server = TestServer::fresh(&work, "v=0 1024 linear disk 0");
    server.verbs.create("w", "0 8 zero").unwrap();
    limit(&server, "w");
    let (changes, exports) = (&server.verbs.changes, &server.verbs.exports);
    let record = changes.record_of("w");
    let mut cleared = record.clone();
    cleared.clear();
    let before = changes.record_gone(exports, vec![cleared]).unwrap();
    assert_eq!(limits_of(&server, "w"), "none");
    limit(&server, "v");
    changes.record_back(exports, vec![record], &before).unwrap();
    assert_eq!([limits_of(&server, "v"), limits_of(&server, "w")], [LIMITS, LIMITS]);
    let state = StateFile::open(&work.join("state")).unwrap();
    assert_eq!(state.exports(), exports.changes());
}

#[test]
fn limits_go_along_with_a_volume_that_gets_another_name() {
    let (_all, work, _) = folders();
    let server = Arc::new(full_house(&work));
    limit(&server, "t");
    let rename = |name: &str, to: &str| {
        let (name, to) = (name.to_owned(), to.to_owned());
        server.verbs.thin_rename(&ThinRename { name, to, ..ThinRename::default() }, &Patient)
    };
    rename("t", "u").unwrap();
    assert_eq!([limits_of(&server, "t"), limits_of(&server, "u")], ["none", LIMITS]);
    let state = StateFile::open(&work.join("state")).unwrap();
    assert_eq!(state.exports().throttles.into_keys().collect::<Vec<_>>(), ["u"]);
}
