//! What a crash between two steps leaves: at each step the files are copied as a killed process
//! would leave them, and every copy is started again. Nothing is dirty meanwhile, so that a copy
//! is of one moment.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use cairn_block::{ConfigKind, Disk, Io, Op, Sector, SectorCount, SectorRange};
use cairn_outcome::failure::Outcome;

use crate::verbs::pool::tests::{OTHER, params};
use crate::verbs::snap::tests::{Content, Moment, Patient, SECTORS, TestServer, all_of, folders};
use crate::verbs::steps::Step;
use crate::verbs::thin::{ThinCreate, ThinDiff, ThinRename, ThinRollback, ThinSnapshot};

/// Sectors of a data block.
const BLOCK: u64 = 128;

impl TestServer {
    /// A pool `p` with a volume `v` full of byte 1, durably.
    fn with_thin(folder: &Path) -> TestServer {
        let server = TestServer::start(folder, OTHER).unwrap();
        server.verbs.pool_create(&params("p"), &Patient).unwrap();
        server.thin("p/v").unwrap();
        server.fill("v", 0, SECTORS, 1);
        server
    }

    fn thin(&self, name: &str) -> Outcome<()> {
        let (name, size_bytes) = (name.to_owned(), SECTORS * 512);
        let params = ThinCreate { name, size_bytes, ..ThinCreate::default() };
        self.verbs.thin_create(&params, &Patient)
    }

    fn snapshot(&self, name: &str) -> Outcome<()> {
        let name = name.to_owned();
        self.verbs.thin_snapshot(&ThinSnapshot { name, ..ThinSnapshot::default() }, &Patient)
    }

    fn rollback(&self, name: &str, keep: Option<&str>) -> Outcome<()> {
        let (name, keep) = (name.to_owned(), keep.map(str::to_owned));
        self.verbs.thin_rollback(&ThinRollback { name, keep }, &Patient)
    }

    fn rename(&self, name: &str, to: &str, size_bytes: Option<u64>) -> Outcome<()> {
        self.rename_over(name, to, size_bytes, None)
    }

    fn rename_over(
        &self,
        name: &str,
        to: &str,
        size_bytes: Option<u64>,
        origin: Option<&str>,
    ) -> Outcome<()> {
        let (name, to, origin) = (name.to_owned(), to.to_owned(), origin.map(str::to_owned));
        self.verbs.thin_rename(&ThinRename { name, to, size_bytes, origin }, &Patient)
    }

    fn fill(&self, name: &str, start: u64, count: u64, byte: u8) {
        self.write(name, start, count, byte);
        self.flush(name);
    }

    /// Sectors that differ, as first and count.
    fn changed_in_pool(&self, name: &str, other: Option<&str>) -> Vec<(u64, u64)> {
        let (name, other) = (name.to_owned(), other.map(str::to_owned));
        let params = ThinDiff { name, other, from: None };
        let all = self.verbs.thin_diff(&params).unwrap();
        assert_eq!(all.next, None);
        all.extents.iter().map(|extent| (extent.offset / 512, extent.length / 512)).collect()
    }

    /// Name, id, and sectors mapped and exclusive.
    fn list(&self) -> Vec<(String, u32, u64, u64)> {
        let infos = self.verbs.thin_list(None).unwrap().into_iter();
        infos
            .map(|info| {
                let own = info.exclusive_bytes.unwrap();
                assert_eq!(info.shared_bytes.unwrap(), info.mapped_bytes - own);
                (info.name, info.id, info.mapped_bytes / 512, own / 512)
            })
            .collect()
    }

    fn names(&self) -> Vec<String> {
        self.list().into_iter().map(|row| row.0).collect()
    }

    fn message(&self, words: &[&str]) {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        self.world.message("p", 0, &words).unwrap();
    }
}

fn steps(moments: &[Moment]) -> Vec<Step> {
    moments.iter().filter_map(|moment| moment.step).collect()
}

#[test]
fn a_crash_while_a_volume_is_made_leaves_none_or_it() {
    let (_all, work, copies) = folders();
    let server = TestServer::with_thin(&work);
    let moments = server.moments(&copies, |server| server.thin("p/w").unwrap());
    assert_eq!(steps(&moments), [Step::Recorded, Step::Pooled, Step::Arranged, Step::Done]);
    for Moment { step, folder } in moments {
        let again = TestServer::start(&folder, OTHER).unwrap();
        let made = step != Some(Step::Recorded);
        assert_eq!(again.has("w"), made, "{step:?}");
        assert_eq!(again.names().len(), if made { 2 } else { 1 }, "{step:?}");
        assert_eq!(again.bytes("v"), all_of(1), "{step:?}");
        if made {
            assert_eq!(again.bytes("w"), all_of(0), "{step:?}");
        } else {
            // The name that was dropped is gone for good, and free.
            again.thin("p/w").unwrap();
        }
        again.fill("w", 0, BLOCK, 5);
        drop(again);
        assert!(TestServer::start(&folder, OTHER).unwrap().has("w"), "{step:?}");
    }
}

#[test]
fn a_crash_while_a_snapshot_is_made_leaves_none_or_a_true_one() {
    let (_all, work, copies) = folders();
    let server = TestServer::with_thin(&work);
    let moments = server.moments(&copies, |server| {
        server.snapshot("v@mon").unwrap();
        server.fill("v", 100, 50, 2);
    });
    assert_eq!(steps(&moments), [Step::Recorded, Step::Pooled, Step::Arranged, Step::Done]);
    let now: Content = vec![(100, 1), (50, 2), (SECTORS - 150, 1)];
    assert_eq!((server.bytes("v@mon"), server.bytes("v")), (all_of(1), now.clone()));
    assert_eq!(server.changed_in_pool("v@mon", None), [(0, 2 * BLOCK)]);
    let rows = [("v".to_owned(), 0, SECTORS, 256), ("v@mon".to_owned(), 1, SECTORS, 256)];
    assert_eq!(server.list(), rows);
    for Moment { step, folder } in moments {
        let again = TestServer::start(&folder, OTHER).unwrap();
        assert_eq!(again.has("v@mon"), step != Some(Step::Recorded), "{step:?}");
        if again.has("v@mon") {
            assert_eq!(again.bytes("v@mon"), all_of(1), "{step:?}");
            again.fill("v", 0, SECTORS, 9);
            assert_eq!(again.bytes("v@mon"), all_of(1), "{step:?}: after more writes");
        }
        let expected = if step.is_none() { now.clone() } else { all_of(1) };
        if !again.has("v@mon") {
            assert_eq!(again.bytes("v"), expected, "{step:?}");
        }
    }
}

#[test]
fn a_crash_during_a_rollback_leaves_the_volume_as_it_was_or_as_the_snapshot() {
    for keep in [None, Some("@before")] {
        let (_all, work, copies) = folders();
        let server = TestServer::with_thin(&work);
        server.snapshot("v@mon").unwrap();
        server.fill("v", 0, 500, 2);
        server.snapshot("v@tue").unwrap();
        server.fill("v", 500, 100, 3);
        let (now, tue) = (server.bytes("v"), server.bytes("v@tue"));
        let moments = server.moments(&copies, |server| server.rollback("v@mon", keep).unwrap());
        let expected = [
            Step::Pooled,
            Step::Suspended,
            Step::Arranged,
            Step::Recorded,
            Step::Resumed,
            Step::Done,
        ];
        assert_eq!(steps(&moments), expected);
        assert_eq!(server.bytes("v"), all_of(1));
        server.fill("v", 0, 10, 7);
        assert_eq!(server.bytes("v@mon"), all_of(1));
        assert_eq!(server.names().len(), if keep.is_some() { 4 } else { 3 });
        for Moment { step, folder } in moments {
            let again = TestServer::start(&folder, OTHER).unwrap();
            let before = [Step::Pooled, Step::Suspended, Step::Arranged].map(Some).contains(&step);
            let expected = if before { now.clone() } else { all_of(1) };
            assert_eq!(again.bytes("v"), expected, "{step:?}");
            assert_eq!(again.bytes("v@mon"), all_of(1), "{step:?}");
            assert_eq!(again.bytes("v@tue"), tue, "{step:?}");
            if !before && keep.is_some() {
                assert_eq!(again.bytes("v@before"), now, "{step:?}");
            }
            // What has no name can be taken away.
            for name in again.names().iter().filter(|name| name.starts_with("thin-")) {
                again.verbs.thin_remove(&format!("p/{name}")).unwrap();
            }
            again.fill("v", 0, SECTORS, 9);
            assert_eq!(again.bytes("v@tue"), tue, "{step:?}: after more writes");
        }
    }
}

#[test]
fn an_external_origin_is_that_of_snapshots_and_rollbacks_too() {
    let (_all, work, _) = folders();
    fs::write(work.join("base"), vec![3; SECTORS as usize * 512]).unwrap();
    let server = TestServer::start(&work, OTHER).unwrap();
    server.verbs.pool_create(&params("p"), &Patient).unwrap();
    let (name, size_bytes) = ("p/w".to_owned(), SECTORS * 512);
    let origin = Some("base".to_owned());
    server
        .verbs
        .thin_create(&ThinCreate { name, size_bytes, origin, id: Some(4) }, &Patient)
        .unwrap();
    assert_eq!(server.bytes("w"), all_of(3));
    server.fill("w", 10, 10, 1);
    server.snapshot("w@mon").unwrap();
    server.fill("w", 0, 2 * BLOCK, 2);
    let mon: Content = vec![(10, 3), (10, 1), (SECTORS - 20, 3)];
    let now: Content = vec![(2 * BLOCK, 2), (SECTORS - 2 * BLOCK, 3)];
    assert_eq!((server.bytes("w@mon"), server.bytes("w")), (mon.clone(), now.clone()));
    server.rollback("w@mon", Some("@before")).unwrap();
    // A crash may have left either: the pool knows nothing of an origin.
    server.message(&["create_snap", "20", "4"]);
    server.message(&["create_snap", "21", "4"]);
    drop(server);
    let server = TestServer::start(&work, OTHER).unwrap();
    assert_eq!((server.bytes("w@mon"), server.bytes("w")), (mon.clone(), mon));
    assert_eq!(server.bytes("w@before"), now);
    let size = Some(SECTORS * 512);
    server.rename_over("p/thin-20", "over", size, Some("base")).unwrap();
    server.rename("p/thin-21", "bare", size).unwrap();
    assert_eq!(server.bytes("over"), now);
    assert_eq!(server.bytes("bare"), [(2 * BLOCK, 2), (SECTORS - 2 * BLOCK, 0)]);
    for (refused, part) in [
        (server.rename_over("over", "other", None, Some("base")), "--origin: found 'base'"),
        (server.rename_over("p/thin-9", "other", size, Some("a b")), "without spaces"),
    ] {
        let line = refused.unwrap_err().to_string();
        assert!(line.contains(part), "{line}");
    }
    drop(server);
    assert_eq!(TestServer::start(&work, OTHER).unwrap().bytes("over"), now);
}

#[test]
fn a_crash_while_a_volume_is_removed_leaves_it_or_none() {
    let (_all, work, copies) = folders();
    let server = TestServer::with_thin(&work);
    server.snapshot("v@mon").unwrap();
    server.fill("v", 0, SECTORS, 2);
    let moments = server.moments(&copies, |server| server.verbs.thin_remove("v@mon").unwrap());
    assert_eq!(steps(&moments), [Step::Arranged, Step::Recorded, Step::Pooled, Step::Done]);
    assert_eq!(server.list(), [("v".to_owned(), 0, SECTORS, SECTORS)]);
    for Moment { step, folder } in moments {
        let again = TestServer::start(&folder, OTHER).unwrap();
        assert_eq!(again.has("v@mon"), step == Some(Step::Arranged), "{step:?}");
        if again.has("v@mon") {
            assert_eq!(again.bytes("v@mon"), all_of(1), "{step:?}");
            continue;
        }
        if step == Some(Step::Recorded) {
            assert_eq!(again.names(), ["v", "thin-1"]);
            again.verbs.thin_remove("p/thin-1").unwrap();
        }
        assert_eq!(again.names(), ["v"], "{step:?}");
        // The number is used again, and nobody takes the new volume for the old one.
        again.snapshot("v@mon").unwrap();
        assert_eq!(again.bytes("v@mon"), all_of(2), "{step:?}");
    }
}

#[test]
fn a_crash_during_a_rename_leaves_all_names_as_they_were_or_all_new() {
    let (_all, work, copies) = folders();
    let server = TestServer::with_thin(&work);
    server.snapshot("v@mon").unwrap();
    server.fill("v", 0, 8, 2);
    let v = server.bytes("v");
    let moments = server.moments(&copies, |server| server.rename("v", "w", None).unwrap());
    assert_eq!(server.names(), ["w", "w@mon"]);
    for Moment { step, folder } in moments {
        let again = TestServer::start(&folder, OTHER).unwrap();
        let name = if step == Some(Step::Arranged) { "v" } else { "w" };
        assert_eq!(again.names(), [name.to_owned(), format!("{name}@mon")], "{step:?}");
        assert_eq!(again.bytes(name), v, "{step:?}");
        assert_eq!(again.bytes(&format!("{name}@mon")), all_of(1), "{step:?}");
    }
    server.rename("w@mon", "clone", None).unwrap();
    assert_eq!((server.bytes("clone"), server.bytes("w")), (all_of(1), v));
}

#[test]
fn a_loss_that_no_client_was_told_of_goes_with_a_new_name() {
    let (_all, work, _) = folders();
    let server = TestServer::with_thin(&work);
    server.snapshot("v@mon").unwrap();
    server.world.tell_of_loss("v");
    server.rename("v", "w", None).unwrap();
    let untold = server.world.untold_losses();
    assert!(
        untold.contains(&"w".to_owned()) && !untold.contains(&"w@mon".to_owned()),
        "{untold:?}"
    );
}

#[test]
fn a_start_drops_names_whose_device_was_deleted_or_replaced() {
    let (_all, work, _) = folders();
    let server = TestServer::with_thin(&work);
    for name in ["v@a", "v@b", "v@c"] {
        server.snapshot(name).unwrap();
    }
    drop(server);
    // Somebody else works on the pool meanwhile.
    let table = "p=0 8192 thin-pool p.meta p.data 128 0";
    let (state, aside) = (work.join("state"), work.join("aside"));
    fs::rename(&state, &aside).unwrap();
    let other = TestServer::start(&work, table).unwrap();
    other.message(&["delete", "1"]);
    other.message(&["delete", "2"]);
    other.message(&["create_thin", "2"]);
    drop(other);
    fs::rename(&aside, &state).unwrap();
    let server = TestServer::start(&work, OTHER).unwrap();
    assert_eq!(server.names(), ["v", "v@c", "thin-2"]);
    assert_eq!(server.bytes("v@c"), all_of(1));
    let text = fs::read_to_string(&state).unwrap();
    assert!(!text.contains("v@a") && !text.contains("v@b") && text.contains("v@c"), "{text}");
    // It gets a name, with a size, and both names are free again.
    let line = server.rename("p/thin-2", "w", None).unwrap_err().to_string();
    assert!(line.contains("--size: found none"), "{line}");
    server.rename("p/thin-2", "w", Some(SECTORS * 512)).unwrap();
    assert_eq!(server.bytes("w"), all_of(0));
    server.snapshot("v@a").unwrap();
    assert_eq!(server.names(), ["v", "v@c", "v@a", "w"]);
    drop(server);
    assert_eq!(TestServer::start(&work, OTHER).unwrap().names(), ["v", "v@c", "v@a", "w"]);
}

#[test]
fn a_pool_whose_metadata_has_become_blank_is_refused_and_no_name_is_lost() {
    let (_all, work, _) = folders();
    let server = TestServer::with_thin(&work);
    server.snapshot("v@mon").unwrap();
    drop(server);
    let (meta, state) = (work.join("p.meta"), work.join("state"));
    let (sound, recorded) = (fs::read(&meta).unwrap(), fs::read(&state).unwrap());
    let blank = vec![0; sound.len()];
    fs::write(&meta, &blank).unwrap();
    let error = TestServer::start(&work, OTHER).err().expect("refused");
    assert_eq!(error.kind, ConfigKind::Damaged);
    let line = error.to_string();
    assert!(line.contains("p: p.meta: superblock: found zeros, expected the pool"), "{line}");
    assert_eq!((fs::read(&meta).unwrap(), fs::read(&state).unwrap()), (blank, recorded));
    fs::write(&meta, &sound).unwrap();
    assert_eq!(TestServer::start(&work, OTHER).unwrap().names(), ["v", "v@mon"]);
}

#[test]
fn a_failed_verb_leaves_everything_as_it_was() {
    let (_all, work, _) = folders();
    let server = TestServer::with_thin(&work);
    server.snapshot("v@mon").unwrap();
    server.fill("v", 0, BLOCK, 2);
    let (before, state) = (server.list(), fs::read(work.join("state")).unwrap());
    // The state file can't be replaced.
    fs::create_dir(work.join("state.new")).unwrap();
    server.thin("p/w").unwrap_err();
    server.snapshot("v@tue").unwrap_err();
    server.rollback("v@mon", None).unwrap_err();
    server.rollback("v@mon", Some("@old")).unwrap_err();
    server.rename("v", "w", None).unwrap_err();
    server.verbs.thin_remove("v@mon").unwrap_err();
    fs::remove_dir(work.join("state.new")).unwrap();
    assert_eq!((server.list(), fs::read(work.join("state")).unwrap()), (before, state));
    server.fill("v", BLOCK, BLOCK, 3);
    assert_eq!(server.bytes("v"), [(BLOCK, 2), (BLOCK, 3), (SECTORS - 2 * BLOCK, 1)]);
    assert_eq!(server.bytes("v@mon"), all_of(1));
    assert_eq!(server.changed_in_pool("v@mon", None), [(0, 2 * BLOCK)]);
}

#[test]
fn a_removal_that_the_pool_refuses_leaves_the_volume_with_its_name() {
    let (_all, work, _) = folders();
    let server = TestServer::with_thin(&work);
    server.snapshot("v@mon").unwrap();
    let state = fs::read(work.join("state")).unwrap();
    let world = server.world.clone();
    *server.verbs.at_step.lock() = Box::new(move |step| {
        if step == Step::Recorded {
            // Somebody else serves it meanwhile.
            world.create("w").unwrap();
            world.load("w", "0 1024 thin @p 1").unwrap();
            world.resume("w").unwrap();
        }
    });
    server.verbs.thin_remove("v@mon").unwrap_err();
    assert_eq!(fs::read(work.join("state")).unwrap(), state);
    assert_eq!(server.bytes("v@mon"), all_of(1));
}

#[test]
fn a_volume_with_a_table_of_its_own_is_snapshotted_and_rolled_back() {
    let (_all, work, _) = folders();
    let server = TestServer::with_thin(&work);
    server.message(&["create_thin", "7"]);
    drop(server);
    let own = "own=0 1024 thin @p 7";
    let server = TestServer::start(&work, own).unwrap();
    server.snapshot("own@mon").unwrap();
    server.fill("own", 0, SECTORS, 4);
    server.rollback("p/own@mon", Some("@full")).unwrap();
    assert_eq!((server.bytes("own"), server.bytes("own@full")), (all_of(0), all_of(4)));
    assert_eq!(server.changed_in_pool("own@mon", Some("@full")), [(0, SECTORS)]);
    assert_eq!(server.changed_in_pool("own@mon", Some("own")), []);
    // Forward again.
    server.rollback("own@full", None).unwrap();
    assert_eq!(server.bytes("own"), all_of(4));
    drop(server);
    let server = TestServer::start(&work, own).unwrap();
    assert_eq!((server.bytes("own"), server.bytes("own@mon")), (all_of(4), all_of(0)));
}

#[test]
fn the_configured_number_of_a_volume_that_was_rolled_back_is_not_given_to_another() {
    let (_all, work, _) = folders();
    let server = TestServer::start(&work, OTHER).unwrap();
    server.verbs.pool_create(&params("p"), &Patient).unwrap();
    server.message(&["create_thin", "0"]);
    drop(server);
    let server = TestServer::start(&work, "own=0 1024 thin @p 0").unwrap();
    server.snapshot("own@mon").unwrap();
    server.rollback("own@mon", None).unwrap();
    server.thin("p/w").unwrap();
    let ids: Vec<_> = server.list().into_iter().map(|row| (row.0, row.1)).collect();
    let expected = [("own", 2), ("own@mon", 1), ("w", 3)];
    assert_eq!(ids, expected.map(|(name, id)| (name.to_owned(), id)));
    let (name, size_bytes) = ("p/x".to_owned(), SECTORS * 512);
    let asked = ThinCreate { name, size_bytes, id: Some(0), origin: None };
    let line = server.verbs.thin_create(&asked, &Patient).unwrap_err().to_string();
    assert!(line.contains("id: found volume 0 of the pool, or of a table"), "{line}");
}

#[test]
fn invalid_parameters_are_refused_on_one_line() {
    let (_all, work, _) = folders();
    let server = TestServer::with_thin(&work);
    server.snapshot("v@mon").unwrap();
    let before = server.list();
    let create = |name: &str, size_bytes, id| {
        let params = ThinCreate { name: name.into(), size_bytes, id, origin: None };
        server.verbs.thin_create(&params, &Patient)
    };
    for (refused, part) in [
        (create("w", 512, None), "POOL/NAME"),
        (create("nobody/w", 512, None), "nobody: there is no pool of this name; pools: p"),
        (create("x/w", 512, None), "x: there is no pool of this name"),
        (create("p/v", 512, None), "v: name: found a volume of this name"),
        (create("p/x", 512, None), "x: name: found a volume of this name"),
        (create("p/w@a", 512, None), "cairn thin snapshot makes snapshots"),
        (create("p/thin-3", 512, None), "thin rename"),
        (create("p/w", 0, None), "size: found 0 bytes"),
        (create("p/w", 1000, None), "size: found 1000 bytes, expected whole sectors"),
        (create("p/w", 512, Some(1 << 24)), "id: found 16777216, expected a number from 0 to"),
        (create("p/w", 512, Some(1)), "id: found volume 1 of the pool"),
        (server.snapshot("v@mon"), "v@mon: name: found a volume of this name"),
        (server.snapshot("v@mon@tue"), "not of a snapshot"),
        (server.snapshot("x@mon"), "x: table: found 'zero', expected one line of thin"),
        (server.snapshot("nobody@mon"), "nobody: there is no volume of this name"),
        (server.snapshot("q/v@tue"), "v: pool: found p, not q"),
        (server.rollback("v", None), "VOLUME@NAME"),
        (server.rollback("v@nobody", None), "v@nobody: there is no volume of this name"),
        (server.rollback("v@mon", Some("@mon")), "v@mon: name: found a volume of this name"),
        (server.verbs.thin_remove("v"), "snapshots: found snapshots of it (v@mon)"),
        (server.verbs.thin_remove("x"), "a volume with a table of its own"),
        (server.verbs.thin_remove("p"), "a volume with a table of its own"),
        (server.verbs.thin_remove("p/thin-9"), "p/thin-9: the pool has no volume of this id"),
        (server.verbs.thin_remove("p/thin-0"), "found one with a name, 'v'"),
        (server.rename("v", "x", None), "x: name: found a volume of this name"),
        (server.rename("v", "w@mon", None), "w: there is no volume of this name"),
        (server.rename("v", "v@old", None), "it has snapshots of its own"),
        (server.rename("v@mon", "x@mon", None), "x: table: found 'zero'"),
        (server.rename("v", "w", Some(512)), "--size"),
    ] {
        let line = refused.unwrap_err().to_string();
        assert!(line.contains(part), "expected '{part}' in: {line}");
        assert!(!line.contains('\n'), "{line}");
    }
    let snapshot = |name: &str, of: &str| {
        let (name, of) = (name.to_owned(), Some(of.to_owned()));
        server.verbs.thin_snapshot(&ThinSnapshot { name, of, id: None }, &Patient)
    };
    let diff = |other: &str| {
        let (name, other) = ("p/v@mon".to_owned(), Some(other.to_owned()));
        server.verbs.thin_diff(&ThinDiff { name, other, from: None }).map(drop)
    };
    diff("p/v").unwrap();
    for refused in [
        snapshot("w", "q/v"),
        diff("q/v"),
        server.rollback("v@mon", Some("q/w")),
        server.rename("v", "q/w", None),
        server.rename("p/thin-9", "q/w", Some(512)),
    ] {
        let line = refused.unwrap_err().to_string();
        assert!(line.contains(": pool: found p, not q, expected the pool of the"), "{line}");
    }
    assert_eq!(server.list(), before);
    assert_eq!((server.bytes("v"), server.bytes("v@mon")), (all_of(1), all_of(1)));
    let gone = server.verbs.thin_diff(&ThinDiff { name: "v".into(), ..Default::default() });
    assert!(gone.unwrap_err().to_string().contains("a snapshot (VOLUME@NAME), or two volumes"));
}

#[test]
fn a_volume_that_is_removed_during_a_comparison_is_no_damage() {
    let (_all, work, _) = folders();
    let server = TestServer::with_thin(&work);
    let pool = server.verbs.pool("p").unwrap();
    for ids in [[0, 9], [9, 0]] {
        let error = server.verbs.differences(&pool, ids, 0, SECTORS).unwrap_err();
        assert_eq!(error.kind, ConfigKind::Busy, "{error}");
        assert!(error.to_string().contains("found volume 9 removed meanwhile"), "{error}");
    }
}

#[test]
fn a_discard_of_a_whole_fresh_volume_is_done_at_once() {
    let (_all, work, _) = folders();
    let server = TestServer::with_thin(&work);
    // A whole PiB, sixteen times 2^30 blocks: whatever looked at each would not end.
    let size_bytes = 1 << 50;
    let name = "p/huge".to_owned();
    let params = ThinCreate { name, size_bytes, ..ThinCreate::default() };
    server.verbs.thin_create(&params, &Patient).unwrap();
    let disk: Arc<dyn Disk> = server.world.volume("huge").unwrap();
    let range = SectorRange::new(Sector(0), SectorCount(size_bytes / 512));
    let discarded = server
        .world
        .on_home("huge", move |env| async move { env.io(&disk, Io::on(Op::Discard, range)).await });
    discarded.unwrap();
    assert_eq!(server.verbs.thin_list(Some("huge")).unwrap()[0].mapped_bytes, 0);
}
