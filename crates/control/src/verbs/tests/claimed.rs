//! Verbs that record a table before it is live: what other volumes use is refused before the
//! record, as a kill after it would leave two volumes of which the next start serves only one.

use std::fs;

use super::line_of;
use crate::verbs::pool::tests::{OTHER, params};
use crate::verbs::snap::SnapCreate;
use crate::verbs::snap::tests::{Moment, Patient, SECTORS, TestServer, all_of, folders};
use crate::verbs::steps::Step;
use crate::verbs::thin::{ThinCreate, ThinRename};

fn steps(moments: &[Moment]) -> Vec<Step> {
    moments.iter().filter_map(|moment| moment.step).collect()
}

#[test]
fn a_snapshot_is_refused_before_it_is_recorded_if_another_volume_writes_the_origin() {
    let (_all, work, copies) = folders();
    let server = TestServer::fresh(&work, "v=0 1024 linear disk 0");
    server.verbs.create("w", "0 512 linear disk 512").unwrap();
    let (files, state) = (server.files(), fs::read(work.join("state")).unwrap());
    let moments = server.moments(&copies, |server| {
        let line = line_of(server.create("v@mon"));
        assert!(line.starts_with("v@mon: ") && line.contains("disk: volume 'w' writes"), "{line}");
    });
    assert_eq!(steps(&moments), []);
    assert_eq!((server.files(), fs::read(work.join("state")).unwrap()), (files, state));
    assert!(!server.is_suspended("v") && !server.has("v@mon") && !server.has("v@real"));
    // A volume that stands on it does not matter, as it sees the same moment.
    server.verbs.remove("w").unwrap();
    server.verbs.create("above", "0 1024 linear @v 0").unwrap();
    server.create("v@mon").unwrap();
    server.write("above", 0, 8, 2);
    assert_eq!(server.bytes("v@mon"), all_of(1));
}

#[test]
fn a_store_that_is_kept_for_another_volume_is_refused_before_it_is_formatted() {
    let (_all, work, _) = folders();
    let server = TestServer::fresh(&work, "v=0 1024 linear disk 0");
    let before = fs::read(work.join("cache")).unwrap();
    server.world.keep("lost", ["0 1024 writecache s gone cache 4096 0"], false);
    let store = Some("cache".to_owned());
    let params = SnapCreate { name: "v@mon".to_owned(), store, ..SnapCreate::default() };
    let line = line_of(server.verbs.snap_create(&params, &Patient));
    assert!(line.starts_with("v@mon: cache: kept for 'lost'"), "{line}");
    assert!(fs::read(work.join("cache")).unwrap() == before);
}

#[test]
fn an_external_origin_that_another_volume_writes_is_refused_before_the_record() {
    let (_all, work, copies) = folders();
    fs::write(work.join("base"), vec![3; SECTORS as usize * 512]).unwrap();
    let server = TestServer::start(&work, OTHER).unwrap();
    server.verbs.pool_create(&params("p"), &Patient).unwrap();
    let words = ["create_thin", "20"].map(str::to_owned).to_vec();
    server.world.message("p", 0, &words).unwrap();
    server.verbs.create("w", "0 1024 linear base 0").unwrap();
    let state = fs::read(work.join("state")).unwrap();
    let moments = server.moments(&copies, |server| {
        let (size_bytes, origin) = (SECTORS * 512, Some("base".to_owned()));
        let params = ThinCreate { name: "p/u".to_owned(), size_bytes, origin, id: None };
        let created = server.verbs.thin_create(&params, &Patient);
        let (name, to) = ("p/thin-20".to_owned(), "u".to_owned());
        let (size_bytes, origin) = (Some(size_bytes), Some("base".to_owned()));
        let renamed =
            server.verbs.thin_rename(&ThinRename { name, to, size_bytes, origin }, &Patient);
        for refused in [created, renamed] {
            let line = refused.unwrap_err().to_string();
            assert!(line.starts_with("u: ") && line.contains("base: volume 'w' writes"), "{line}");
        }
        // A pool writes its own devices.
        let line = server.create("p@mon").unwrap_err().to_string();
        assert!(line.starts_with("p@mon: @p: in use as"), "{line}");
    });
    assert_eq!(steps(&moments), []);
    assert!(fs::read(work.join("state")).unwrap() == state);
    assert!(server.world.volume("u").is_err());
}
