//! Caches that were left dirty: what the state file remembers of them when no table has them.

use std::fs;
use std::path::Path;

use cairn_outcome::failure::Outcome;

use crate::state::{CacheState, StateFile};
use crate::verbs::pool::tests::params;
use crate::verbs::snap::tests::{Content, Patient, SECTORS, TestServer, all_of, folders};
use crate::verbs::thin::ThinCreate;
use crate::verbs::volume::{VolumeCreate, VolumeReplace};

const CACHED: &str = "0 1024 writecache s disk cache 4096 0";
const BARE: &str = "0 1024 linear disk 0";
const LACKS: &str = "32 KiB on cache that disk lacks";

/// The volume `c`, of which its cache alone has the first sectors.
fn dirty(work: &Path) -> TestServer {
    let server = TestServer::fresh(work, &format!("c={CACHED}"));
    server.write("c", 0, 64, 7);
    server.flush("c");
    server
}

fn new() -> Content {
    vec![(64, 7), (SECTORS - 64, 1)]
}

/// The same, when the server is gone: killed, or after `c` was removed.
fn left(work: &Path, removed: bool) {
    let server = dirty(work);
    if removed {
        server.verbs.remove("c").unwrap();
    }
}

fn start(work: &Path, table: &str) -> Outcome<TestServer> {
    TestServer::start(work, table)
}

fn state_of(work: &Path) -> Vec<(CacheState, Option<u64>)> {
    let caches = StateFile::open(&work.join("state")).unwrap().caches();
    caches.iter().map(|record| (record.state, record.bytes)).collect()
}

fn create(server: &TestServer, table: &str, discard_dirty: bool) -> Outcome<Vec<String>> {
    let (name, table) = ("y".to_owned(), table.to_owned());
    server.verbs.create_volume(
        &VolumeCreate { name, table, discard_dirty, ..VolumeCreate::default() },
        &Patient,
    )
}

/// Empties a cache device in place, as `cairn format` would.
fn zero(work: &Path) {
    use std::os::unix::fs::FileExt;
    let cache = fs::OpenOptions::new().write(true).open(work.join("cache")).unwrap();
    cache.write_all_at(&[0; 64 << 10], 0).unwrap();
}

#[test]
fn a_removed_volume_leaves_its_origin_to_its_cache_alone() {
    let (_all, work, _) = folders();
    let server = dirty(&work);
    assert_eq!(state_of(&work), [(CacheState::InUse, None)]);
    server.verbs.remove("c").unwrap();
    assert_eq!(state_of(&work), [(CacheState::Left, Some(32 << 10))]);
    let expected = format!(
        "y: dirty data: found {LACKS}, expected none (a table with cache before disk has it; \
         --discard-dirty loses it)"
    );
    server.verbs.create("d", "0 1024 error").unwrap();
    for table in [BARE, "0 512 error\n512 8 linear disk 1016", "0 1024 snapshot-origin disk"] {
        let line = create(&server, table, false).unwrap_err().to_string();
        assert_eq!(line, expected, "{table}");
        assert!(!server.has("y"));
    }
    let replaced = server.replace("d", BARE, false).unwrap_err().to_string();
    assert_eq!(replaced, expected.replacen("y: ", "d: ", 1));
    server.verbs.load("d", BARE).unwrap();
    assert!(server.resume("d").unwrap_err().to_string().contains(LACKS));
    // What does not use the origin, and the cache itself, pass.
    for table in ["0 8 zero", "0 1024 writecache s ./disk ./cache 4096 2 high_watermark 60"] {
        create(&server, table, false).unwrap();
        server.verbs.remove("y").unwrap();
    }
    create(&server, CACHED, false).unwrap();
    assert_eq!(server.bytes("y"), new());
}

#[test]
fn a_start_does_not_serve_an_origin_without_its_dirty_cache() {
    for removed in [false, true] {
        let (_all, work, _) = folders();
        left(&work, removed);
        let line = start(&work, &format!("x={BARE}")).err().unwrap().to_string();
        let told =
            format!("x: dirty data: found {LACKS}, expected none (a table with cache before");
        assert!(line.starts_with(&told), "{line}");
        assert!(line.contains("cairn state forget cache --yes loses it"), "{line}");
        let again = start(&work, &format!("x={CACHED}")).unwrap();
        assert_eq!(again.bytes("x"), new());
    }
}

#[test]
fn a_missing_cache_keeps_its_origin_from_other_tables() {
    let (_all, work, _) = folders();
    let server = dirty(&work);
    server.verbs.remove("c").unwrap();
    fs::rename(work.join("cache"), work.join("away")).unwrap();
    let line = create(&server, BARE, false).unwrap_err().to_string();
    let told = "y: dirty data: cache keeps 32 KiB that disk lacks, and cannot be looked at (";
    assert!(line.starts_with(told), "{line}");
    assert!(line.ends_with("; put it back, or --discard-dirty loses it"), "{line}");
    // An empty one in its place.
    fs::write(work.join("cache"), vec![0; 1 << 20]).unwrap();
    for table in [BARE, CACHED] {
        let line = create(&server, table, false).unwrap_err().to_string();
        assert!(line.contains("another device without a cache is in its place"), "{table}: {line}");
    }
    // A clean cache in its place.
    fs::remove_file(work.join("cache")).unwrap();
    fs::write(work.join("cache"), vec![0; 1 << 20]).unwrap();
    fs::write(work.join("origin"), vec![0; 512 << 10]).unwrap();
    create(&server, "0 1024 writecache s origin cache 4096 0", false).unwrap();
    server.verbs.remove("y").unwrap();
    for table in [BARE, CACHED] {
        let line = create(&server, table, false).unwrap_err().to_string();
        let told = "another cache, which is clean, is in its place; put it back";
        assert!(line.contains(told), "{table}: {line}");
    }
    // The same cache under another name.
    create(&server, "0 1024 writecache s disk away 4096 0", false).unwrap();
    assert_eq!(server.bytes("y"), new());
}

#[test]
fn another_cache_is_not_put_before_an_origin_that_a_dirty_one_has() {
    let (_all, work, _) = folders();
    let server = dirty(&work);
    server.verbs.remove("c").unwrap();
    fs::write(work.join("fresh"), vec![0; 1 << 20]).unwrap();
    let table = "0 1024 writecache s disk fresh 4096 0";
    assert!(create(&server, table, false).unwrap_err().to_string().contains(LACKS));
    assert_eq!(fs::read(work.join("fresh")).unwrap(), vec![0; 1 << 20], "it is not formatted");
    let notes = create(&server, table, true).unwrap();
    let told =
        "cache keeps 32 KiB that disk lacks; given up: format cache before it is a cache again";
    assert_eq!(notes, [told]);
    assert_eq!(server.bytes("y"), all_of(1));
}

#[test]
fn a_cache_that_was_given_up_is_no_cache_until_it_is_formatted() {
    for by_create in [false, true] {
        let (_all, work, _) = folders();
        let server = dirty(&work);
        if by_create {
            server.verbs.remove("c").unwrap();
            create(&server, BARE, true).unwrap();
        } else {
            let (name, table) = ("c".to_owned(), BARE.to_owned());
            let params = VolumeReplace { name, table, discard_dirty: true, ..Default::default() };
            server.verbs.replace(&params, &Patient).unwrap();
        }
        let name = if by_create { "y" } else { "c" };
        assert_eq!(state_of(&work), [(CacheState::GivenUp, Some(32 << 10))]);
        server.write(name, 0, 64, 9);
        let line = server.replace(name, CACHED, false).unwrap_err().to_string();
        let told = format!(
            "{name}: cache: given up: it has 32 KiB that would overwrite newer data of disk; \
             first: cairn format writecache cache --yes --discard-dirty"
        );
        assert_eq!(line, told);
        assert_eq!(server.bytes(name), [(64, 9), (SECTORS - 64, 1)]);
        zero(&work);
        server.replace(name, CACHED, false).unwrap();
        assert_eq!(server.bytes(name), [(64, 9), (SECTORS - 64, 1)]);
        assert_eq!(state_of(&work), [(CacheState::InUse, None)]);
    }
}

#[test]
fn a_swap_that_is_undone_gives_nothing_up() {
    let (_all, work, _) = folders();
    let server = dirty(&work);
    fs::write(work.join("meta"), vec![0; 4 << 20]).unwrap();
    let before = state_of(&work);
    let (name, table) = ("c".to_owned(), super::TOO_LARGE.to_owned());
    let params = VolumeReplace { name, table, discard_dirty: true, ..Default::default() };
    server.verbs.replace(&params, &Patient).unwrap_err();
    assert_eq!(state_of(&work), before);
    assert_eq!(server.bytes("c"), new());
}

#[test]
fn a_clean_cache_leaves_no_record() {
    let (_all, work, _) = folders();
    let server = dirty(&work);
    server.replace("c", BARE, true).unwrap();
    assert_eq!(state_of(&work), []);
    server.replace("c", CACHED, false).unwrap();
    server.verbs.remove("c").unwrap();
    assert_eq!(state_of(&work), []);
    create(&server, BARE, false).unwrap();
}

#[test]
fn devices_of_a_cache_are_recorded_by_absolute_paths_and_names_of_volumes() {
    let (_all, work, _) = folders();
    let server = TestServer::fresh(&work, "c=0 1024 linear disk 0");
    server.verbs.pool_create(&params("p"), &Patient).unwrap();
    let (name, size_bytes) = ("p/t".to_owned(), 1 << 20);
    server
        .verbs
        .thin_create(&ThinCreate { name, size_bytes, ..ThinCreate::default() }, &Patient)
        .unwrap();
    server.verbs.remove("c").unwrap();
    server.verbs.create("c", "0 1024 writecache s disk @t 4096 0").unwrap();
    let record = &server.verbs.caches().unwrap().recorded()[0];
    let devices = [&record.origin, &record.cache].map(|extents| extents[0].device.clone());
    let disk = work.canonicalize().unwrap().join("disk").display().to_string();
    assert_eq!(devices, [disk, "@t".to_owned()]);
}

#[test]
fn a_cache_that_others_cleaned_leaves_its_origin() {
    let (_all, work, _) = folders();
    let server = dirty(&work);
    server.verbs.remove("c").unwrap();
    zero(&work);
    create(&server, BARE, false).unwrap();
    assert_eq!(state_of(&work), []);
}

#[test]
fn a_forgotten_cache_is_given_up_and_frees_its_origin() {
    let (_all, work, _) = folders();
    let server = dirty(&work);
    assert!(
        server
            .verbs
            .state_forget("cache", true, &Patient)
            .unwrap_err()
            .to_string()
            .contains("in use")
    );
    server.verbs.remove("c").unwrap();
    server.verbs.state_forget("cache", false, &Patient).unwrap_err();
    let told = server.verbs.state_forget("cache", true, &Patient).unwrap();
    assert_eq!(told, ["cache: given up: cache keeps 32 KiB that disk lacks"]);
    create(&server, BARE, false).unwrap();
    server.verbs.remove("y").unwrap();
    create(&server, CACHED, false).unwrap_err();
    server.verbs.state_forget("cache", false, &Patient).unwrap();
    create(&server, CACHED, false).unwrap();
    assert_eq!(server.bytes("y"), new());
}

#[test]
fn a_kill_at_any_step_of_a_swap_leaves_the_cache_or_says_that_it_is_given_up() {
    let (_all, work, copies) = folders();
    let server = dirty(&work);
    let moments = server.moments(&copies, |server| {
        let (name, table) = ("c".to_owned(), BARE.to_owned());
        let params = VolumeReplace { name, table, discard_dirty: true, ..Default::default() };
        server.verbs.replace(&params, &Patient).unwrap();
        server.write("c", 0, 64, 9);
    });
    for moment in moments {
        let again = start(&moment.folder, &format!("c={CACHED}")).unwrap();
        let live = again.world.volume("c").unwrap().live_table().unwrap();
        let is_cached = live.lines()[0].name == "writecache";
        drop(again);
        let records = state_of(&moment.folder);
        let expected = if is_cached { CacheState::InUse } else { CacheState::GivenUp };
        assert_eq!(records[0].0, expected, "{:?}", moment.step);
        let other = start(&moment.folder, &format!("c={}", if is_cached { BARE } else { CACHED }));
        assert!(other.is_err() || !is_cached, "{:?}", moment.step);
    }
}
