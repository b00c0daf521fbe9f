//! Tables beneath a volume with snapshots: what ruins the snapshots is refused.

use std::fs;
use std::path::Path;

use cairn_block::ConfigKind;
use cairn_outcome::failure::Outcome;

use crate::verbs::snap::tests::{Patient, SECTORS, TestServer, all_of, folders};
use crate::verbs::volume::{VolumeLoad, VolumeReplace, VolumeResume};

const OWN: &str = "0 1024 linear disk 0";
const RUINED: &str = "v@real: table: found other content than now, which ruins v@mon, v@tue, \
                      expected the same device, with a cache or without (remove or merge the \
                      snapshots first; --same-content if it is a copy)";

/// The volume `v` of byte 1 with two snapshots, beside volumes on other devices.
fn snapped(work: &Path) -> TestServer {
    fs::write(work.join("other"), vec![1; SECTORS as usize * 512]).unwrap();
    let server = TestServer::fresh(work, "v=0 1024 linear disk 0");
    server.create("v@mon").unwrap();
    server.create("v@tue").unwrap();
    server
}

fn replacing(table: &str) -> VolumeReplace {
    let (name, table) = ("v@real".to_owned(), table.to_owned());
    VolumeReplace { name, table, ..VolumeReplace::default() }
}

fn replace(server: &TestServer, params: &VolumeReplace) -> Outcome<()> {
    server.verbs.replace(params, &Patient).map(drop)
}

#[test]
fn a_table_beneath_snapshots_with_other_content_is_refused() {
    let (_all, work, _) = folders();
    let server = snapped(&work);
    server.write("v", 0, 8, 2);
    for table in [
        "0 1024 linear other 0",
        "0 1024 zero",
        "0 1024 error",
        "0 512 linear disk 0\n512 512 linear other 512",
        "0 512 linear disk 512\n512 512 linear disk 0",
        "0 1024 striped 2 8 disk 0 disk 512",
        "0 1024 writecache s other cache 4096 0",
        "0 1016 linear disk 8",
    ] {
        let error = replace(&server, &replacing(table)).unwrap_err();
        assert_eq!((error.kind, error.to_string().as_str()), (ConfigKind::Busy, RUINED), "{table}");
        assert_eq!(server.verbs.load("v@real", table).unwrap_err().to_string(), RUINED, "{table}");
        let real = server.world.volume("v@real").unwrap();
        assert!(!real.is_suspended() && real.inactive_table().is_none(), "{table}");
        assert_eq!(server.verbs.told()["v@real"].table.as_deref(), Some(OWN));
    }
    server.write("v", 8, 8, 3);
    assert_eq!(server.bytes("v@mon"), all_of(1));
    assert_eq!(server.bytes("v"), [(8, 2), (8, 3), (1008, 1)]);
}

#[test]
fn a_refused_load_keeps_the_table_that_was_loaded_before() {
    let (_all, work, _) = folders();
    let server = snapped(&work);
    server.verbs.load("v@real", "0 512 linear disk 0\n512 512 linear disk 512").unwrap();
    server.verbs.load("v@real", "0 1024 error").unwrap_err();
    let waiting = server.world.volume("v@real").unwrap().inactive_table().unwrap();
    assert_eq!(waiting.lines().len(), 2);
    server.resume("v@real").unwrap();
}

#[test]
fn a_cache_comes_and_goes_beneath_snapshots() {
    let (_all, work, _) = folders();
    let server = snapped(&work);
    replace(&server, &replacing("0 1024 writecache s disk cache 4096 0")).unwrap();
    server.write("v", 0, 64, 2);
    let line = replace(&server, &replacing(OWN)).unwrap_err().to_string();
    assert!(line.starts_with("v@real: dirty data: found 32 KiB on cache"), "{line}");
    replace(&server, &VolumeReplace { flush: true, ..replacing(OWN) }).unwrap();
    assert_eq!((server.bytes("v"), server.bytes("v@mon")), (vec![(64, 2), (960, 1)], all_of(1)));
    // The same device in pieces, and a longer table.
    fs::OpenOptions::new().write(true).open(work.join("disk")).unwrap().set_len(1 << 20).unwrap();
    for table in ["0 512 linear disk 0\n512 512 linear disk 512", "0 2048 linear disk 0"] {
        replace(&server, &replacing(table)).unwrap();
        assert_eq!(server.bytes("v@mon"), all_of(1), "{table}");
    }
}

#[test]
fn stripes_beneath_snapshots_are_known_by_any_name() {
    let (_all, work, _) = folders();
    fs::write(work.join("other"), vec![1; SECTORS as usize * 512]).unwrap();
    fs::write(work.join("cache"), vec![0; 1 << 20]).unwrap();
    fs::write(work.join("a"), vec![1; 512 * 512]).unwrap();
    fs::write(work.join("b"), vec![1; 512 * 512]).unwrap();
    let server = TestServer::start(&work, "v=0 1024 striped 2 8 a 0 b 0").unwrap();
    server.create("v@mon").unwrap();
    replace(&server, &replacing("0 1024 striped 2 8 ./a 0 b 0")).unwrap();
    for other in ["0 1024 striped 2 16 a 0 b 0", "0 1024 striped 2 8 b 0 a 0"] {
        replace(&server, &replacing(other)).unwrap_err();
    }
    server.verbs.snap_remove("v@mon").unwrap();
    // Beneath a volume, and beneath a cache.
    server.replace("v", "0 1024 linear other 0", false).unwrap();
    server.verbs.create("s", "0 1024 striped 2 8 a 0 b 0").unwrap();
    server.replace("v", "0 1024 linear @s 0", false).unwrap();
    server.create("v@mon").unwrap();
    replace(&server, &replacing("0 1024 writecache s @s cache 4096 0")).unwrap();
    assert_eq!(server.bytes("v@mon"), all_of(1));
}

#[test]
fn a_copy_may_take_the_place_of_the_device_beneath_snapshots() {
    let (_all, work, _) = folders();
    let server = snapped(&work);
    let copy = "0 1024 linear other 0";
    replace(&server, &VolumeReplace { same_content: true, ..replacing(copy) }).unwrap();
    assert_eq!(server.verbs.told()["v@real"].table.as_deref(), Some(copy));
    let (name, table) = ("v@real".to_owned(), OWN.to_owned());
    server
        .verbs
        .load_table(
            &VolumeLoad { name: name.clone(), table, same_content: true, read_only: false },
            &Patient,
        )
        .unwrap();
    assert!(server.resume("v@real").unwrap_err().to_string().contains("ruins v@mon, v@tue"));
    let params = VolumeResume { name, same_content: true, ..VolumeResume::default() };
    server.verbs.resume(&params, &Patient).unwrap();
    assert_eq!(server.bytes("v@tue"), all_of(1));
    // Without snapshots there is nothing to ruin.
    server.verbs.snap_remove("v@mon").unwrap();
    server.verbs.snap_remove("v@tue").unwrap();
    server.replace("v", "0 1024 zero", false).unwrap();
}
