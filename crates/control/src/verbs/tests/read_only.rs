//! Whether the kernel's block devices of a volume are to be read-only: as the load of the live
//! table said.

use std::sync::Arc;

use parking_lot::Mutex;

use super::half_way::TABLE;
use super::line_of;
use crate::report;
use crate::verbs::snap::tests::{Patient, TestServer, folders};
use crate::verbs::steps::Step;
use crate::verbs::volume::{VolumeCreate, VolumeLoad};

/// Now, and once the loaded table is live.
fn modes(server: &TestServer, name: &str) -> (bool, bool) {
    let infos = report::infos(&server.world, &server.verbs.exports, Some(name)).unwrap();
    (infos[0].device_read_only, infos[0].loaded_read_only)
}

fn load(server: &TestServer, name: &str, table: &str, read_only: bool) {
    let (name, table) = (name.to_owned(), table.to_owned());
    let load = VolumeLoad { name, table, read_only, ..VolumeLoad::default() };
    server.verbs.load_table(&load, &Patient).unwrap();
}

fn with_volume(read_only: bool) -> (tempfile::TempDir, TestServer) {
    let (all, work, _) = folders();
    let server = TestServer::fresh(&work, TABLE);
    let (name, table) = ("e".to_owned(), "0 8 zero".to_owned());
    let create = VolumeCreate { name, table, read_only, ..VolumeCreate::default() };
    server.verbs.create_volume(&create, &Patient).unwrap();
    (all, server)
}

#[test]
fn mode_of_a_load_counts_from_the_resume_on() {
    let (_all, server) = with_volume(false);
    assert_eq!(modes(&server, "e"), (false, false));
    load(&server, "e", "0 16 zero", true);
    assert_eq!(modes(&server, "e"), (false, true));
    server.resume("e").unwrap();
    assert_eq!(modes(&server, "e"), (true, false));
    // A resume without a loaded table changes nothing; a replace, which has no mode, neither.
    server.verbs.suspend("e", false, &Patient).unwrap();
    server.resume("e").unwrap();
    server.replace("e", "0 24 zero", false).unwrap();
    assert_eq!(modes(&server, "e"), (true, false));
    load(&server, "e", "0 16 zero", false);
    assert_eq!(modes(&server, "e"), (true, false));
    let shrink = crate::verbs::volume::VolumeResume {
        name: "e".to_owned(),
        shrink: true,
        ..Default::default()
    };
    server.verbs.resume(&shrink, &Patient).unwrap();
    assert_eq!(modes(&server, "e"), (false, false));
}

#[test]
fn mode_of_a_load_counts_once_the_table_has_started_so_that_no_later_failure_loses_it() {
    let (_all, server) = with_volume(false);
    load(&server, "e", "0 16 zero", true);
    let (world, seen) = (server.world.clone(), Arc::<Mutex<Vec<(Step, bool)>>>::default());
    let log = seen.clone();
    *server.verbs.at_step.lock() = Box::new(move |step| {
        let volume = world.volume("e").unwrap();
        log.lock().push((step, world.is_device_read_only(&volume)));
    });
    server.resume("e").unwrap();
    *server.verbs.at_step.lock() = Box::new(|_| ());
    assert!(seen.lock().contains(&(Step::Recorded, false)), "{:?}", seen.lock());
    assert!(seen.lock().contains(&(Step::Started, true)), "{:?}", seen.lock());
}

#[test]
fn mode_of_a_create_moves_with_a_name_and_ends_with_the_volume() {
    let (_all, server) = with_volume(true);
    server.verbs.rename_volume("e", "f", &Patient).unwrap();
    assert_eq!(modes(&server, "f"), (true, false));
    server.verbs.remove("f").unwrap();
    server.verbs.create("f", "0 8 zero").unwrap();
    assert_eq!(modes(&server, "f"), (false, false));
}

#[test]
fn mode_of_a_table_that_was_dropped_or_refused_counts_not() {
    let (_all, server) = with_volume(false);
    load(&server, "e", "0 8 zero", true);
    server.verbs.clear("e", &Patient).unwrap();
    assert_eq!(modes(&server, "e"), (false, false));
    server.verbs.load("e", "0 16 zero").unwrap();
    server.resume("e").unwrap();
    assert_eq!(modes(&server, "e"), (false, false));
    std::fs::write(server.folder.join("meta"), vec![0; 4 << 20]).unwrap();
    load(&server, "e", super::TOO_LARGE, true);
    line_of(server.resume("e"));
    assert!(!modes(&server, "e").0, "it has its former table");
}
