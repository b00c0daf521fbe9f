//! Swaps from a table with a bcache set to one that uses the backing device without its cache.

use std::fs;
use std::path::Path;

use cairn_format::bcache::build::Builder;
use cairn_format::bcache::uuids::UuidEntry;
use cairn_format::bcache::{
    BackingState, BackingSuperblock, CacheMode, CacheSuperblock, Key, NewBacking, NewCache,
    Replacement, Superblock, Uuid,
};

use cairn_outcome::failure::Outcome;

use crate::state::StateFile;
use crate::verbs::cache::{CacheAttach, CacheDetach, CacheVolume};
use crate::verbs::snap::tests::{Content, Moment, Patient, SECTORS, TestServer, folders};
use crate::verbs::steps::Step;
use crate::verbs::volume::VolumeReplace;

const CACHED: &str = "0 1024 bcache slow fast 0";
/// The backing device alone.
const BARE: &str = "0 1024 linear slow 16";
/// The same, where a superblock is.
const ALONE: &str = "0 1024 bcache slow - 0";
/// The backing device alone, and a set that cannot be read: such a table cannot start.
const REFUSED: &str = "0 1024 linear slow 16\n1024 8 bcache slow2 fast2 0";
/// Sectors of data before those of the backing device.
const FIRST: u64 = 16;
const DIRTY: u64 = 64;

fn content() -> Content {
    vec![(DIRTY, 7), (SECTORS - DIRTY, 1)]
}

fn put(bytes: &mut [u8], sector: u64, part: &[u8]) {
    bytes[sector as usize * 512..][..part.len()].copy_from_slice(part);
}

/// A set whose cache has the first sectors dirty.
fn make_set(folder: &Path, [cache, backing]: [&str; 2], number: u8) {
    let (uuid, set_uuid) = (Uuid([number; 16]), Uuid([number + 1; 16]));
    let device_sectors = 256 * 32;
    let fresh = CacheSuperblock::fresh(&NewCache {
        uuid: Uuid([number + 2; 16]),
        set_uuid,
        block_sectors: 1,
        bucket_sectors: 32,
        device_sectors,
        replacement: Replacement::Lru,
        discard: false,
    });
    let mut image = vec![0; device_sectors as usize * 512];
    let mut builder = Builder::new(&fresh.unwrap(), 1, &mut image);
    let key = Key::new(0, FIRST + DIRTY, DIRTY).with_dirty(true);
    let placed = builder.add(key).unwrap().to_vec();
    let superblock = builder.finish(&[UuidEntry { uuid, ..UuidEntry::default() }]).unwrap();
    put(&mut image, 8, &superblock.encode());
    for part in placed {
        let data = vec![7; part.sectors() as usize * 512];
        put(&mut image, part.cached_at().unwrap().sector(), &data);
    }
    fs::write(folder.join(cache), image).unwrap();
    let superblock = BackingSuperblock::fresh(&NewBacking {
        uuid,
        set_uuid,
        block_sectors: 1,
        data_offset: FIRST,
        mode: CacheMode::Writeback,
        state: BackingState::Dirty,
        label: [0; 32],
    });
    let mut image = vec![1; (FIRST + SECTORS) as usize * 512];
    put(&mut image, 8, &superblock.unwrap().encode());
    fs::write(folder.join(backing), image).unwrap();
}

fn attached_server(folder: &Path) -> TestServer {
    attached_server_of(folder, CACHED)
}

fn attached_server_of(folder: &Path, table: &str) -> TestServer {
    make_set(folder, ["fast", "slow"], 1);
    make_set(folder, ["fast2", "slow2"], 11);
    let mut damaged = fs::read(folder.join("fast2")).unwrap();
    damaged[8192..].fill(0);
    fs::write(folder.join("fast2"), damaged).unwrap();
    TestServer::start(folder, &format!("c={table}")).unwrap()
}

fn is_attached(folder: &Path) -> bool {
    let image = fs::read(folder.join("slow")).unwrap();
    match Superblock::decode(&image[8 * 512..]).unwrap() {
        Superblock::Backing(superblock) => !superblock.set_uuid().is_zero(),
        Superblock::Cache(_) => panic!("it is a backing device"),
    }
}

fn live_target(server: &TestServer) -> String {
    server.world.volume("c").unwrap().live_table().unwrap().lines()[0].name.clone()
}

#[test]
fn a_kill_at_any_step_of_a_swap_from_a_set_leaves_all_data_and_one_table_that_serves_it() {
    for (table, starts) in [(BARE, true), (REFUSED, false)] {
        let (_all, work, copies) = folders();
        let server = attached_server(&work);
        let swap =
            |server: &TestServer| assert_eq!(server.replace("c", table, true).is_ok(), starts);
        let moments = server.moments(&copies, swap);
        let steps: Vec<Step> = moments.iter().filter_map(|moment| moment.step).collect();
        let last = if starts { Step::Started } else { Step::Attached };
        assert!(steps.ends_with(&[Step::Recorded, Step::Detached, last, Step::Resumed]) || !starts);
        assert!(starts || steps.ends_with(&[Step::Recorded, Step::Detached, last]), "{steps:?}");
        for Moment { step, folder } in moments {
            let what = format!("{table} killed at {step:?}");
            let detached = match step {
                Some(Step::Detached) => true,
                Some(Step::Started | Step::Resumed) | None => starts,
                _ => false,
            };
            assert_eq!(is_attached(&folder), !detached, "{what}");
            let start = TestServer::start(&folder, &format!("c={CACHED}"));
            let server = if detached && !starts {
                // Neither table can start.
                let refused = start.err().unwrap_or_else(|| panic!("{what}: it starts"));
                assert!(refused.to_string().contains("fast2"), "{what}: {refused}");
                fs::remove_file(folder.join("state")).unwrap();
                TestServer::start(&folder, &format!("c={BARE}")).unwrap()
            } else {
                start.unwrap_or_else(|error| panic!("{what}: {error}"))
            };
            assert_eq!(server.bytes("c"), content(), "{what}");
            assert_eq!(live_target(&server), if detached { "linear" } else { "bcache" }, "{what}");
        }
    }
}

#[test]
fn a_kill_at_any_step_of_a_detach_leaves_all_data_and_one_table_that_serves_it() {
    let (_all, work, copies) = folders();
    let server = attached_server(&work);
    let detach = |server: &TestServer| {
        let detach = CacheDetach { name: "c".to_owned(), ..CacheDetach::default() };
        assert!(server.verbs.cache_detach(&detach, &Patient).unwrap().detached);
        server.write("c", 0, 8, 9);
        server.flush("c");
    };
    let moments = server.moments(&copies, detach);
    let steps: Vec<Option<Step>> = moments.iter().map(|moment| moment.step).collect();
    assert!(steps.contains(&Some(Step::Detached)), "{steps:?}");
    for Moment { step, folder } in moments {
        let is_detached =
            matches!(step, None | Some(Step::Detached | Step::Started | Step::Resumed));
        let server = TestServer::start(&folder, &format!("c={CACHED}")).unwrap();
        let expected = match step {
            None => vec![(8, 9), (DIRTY - 8, 7), (SECTORS - DIRTY, 1)],
            Some(_) => content(),
        };
        assert_eq!(server.bytes("c"), expected, "{step:?}");
        let target = if is_detached { "linear" } else { "bcache" };
        assert_eq!(live_target(&server), target, "{step:?}");
    }
}

#[test]
fn a_device_that_a_refused_table_may_have_written_to_stays_detached_with_all_data() {
    let (_all, work, _) = folders();
    // Formats the cache: it is not formatted before the backing device of a set.
    drop(TestServer::fresh(&work, "d=0 1024 writecache s disk cache 4096 0"));
    fs::remove_file(work.join("state")).unwrap();
    let server = attached_server(&work);
    let table = "0 1024 writecache s slow cache 4096 0\n1024 8 bcache slow2 fast2 0";
    let refused = server.replace("c", table, true).unwrap_err().to_string();
    assert!(refused.contains("fast2: journal: "), "{refused}");
    assert!(refused.contains("the old table cannot start again: slow: set_uuid: "), "{refused}");
    assert!(!is_attached(&work) && server.is_suspended("c"));
    drop(server);
    fs::remove_file(work.join("state")).unwrap();
    let server = TestServer::start(&work, &format!("c={BARE}")).unwrap();
    assert_eq!(server.bytes("c"), content());
}

#[test]
fn a_new_table_that_cannot_start_is_the_only_one_that_a_swap_from_a_set_complains_of() {
    let (_all, work, _) = folders();
    let server = attached_server(&work);
    let refused = server.replace("c", REFUSED, true).unwrap_err().to_string();
    assert!(refused.contains("fast2") && !refused.contains("slow:"), "{refused}");
    for word in ["cannot start again", "is refused too", "suspended"] {
        assert!(!refused.contains(word), "{refused}");
    }
    assert!(is_attached(&work) && !server.world.volume("c").unwrap().is_suspended());
    assert_eq!((live_target(&server).as_str(), server.bytes("c")), ("bcache", content()));
    assert_eq!(server.verbs.told()["c"].table.as_deref(), Some(CACHED));
}

/// Swaps from `old` to `new`, where `fail` keeps the state file from being written once the new
/// table has started. Then the server is killed, and `mend` makes the file writable again.
fn check_unwritable_state(
    [old, new]: [&str; 2],
    fail: impl Fn(&StateFile) + Send + 'static,
    mend: impl Fn(&StateFile),
) {
    let (_all, work, _) = folders();
    fs::write(work.join("disk"), vec![1; SECTORS as usize * 512]).unwrap();
    fs::write(work.join("cache"), vec![0; 1 << 20]).unwrap();
    let server = attached_server_of(&work, old);
    let state = server.verbs.state.clone().unwrap();
    let failing = state.clone();
    *server.verbs.at_step.lock() = Box::new(move |step| {
        if step == Step::Started {
            fail(&failing);
        }
    });
    let (name, table) = ("c".to_owned(), new.to_owned());
    let params = VolumeReplace { name, table, flush: true, ..VolumeReplace::default() };
    let replaced = server.verbs.replace(&params, &Patient);
    assert!(!is_attached(&work));
    assert_eq!(live_target(&server), "linear");
    assert_eq!(server.verbs.told()["c"].table.as_deref(), Some(new));
    let notes = replaced.unwrap();
    for note in ["slow: detached from set ", "the new table serves; the next change records it: "] {
        assert!(notes.iter().any(|line| line.starts_with(note)), "{notes:?}");
    }
    server.write("c", 0, 8, 9);
    server.flush("c");
    drop(server);
    mend(&state);
    drop(state);
    let server = TestServer::start(&work, &format!("c={old}")).unwrap();
    assert_eq!(live_target(&server), "linear");
    assert_eq!(server.bytes("c"), [(8, 9), (DIRTY - 8, 7), (SECTORS - DIRTY, 1)]);
}

#[test]
fn a_device_stays_detached_if_the_folder_of_the_state_file_fails_once_the_new_table_has_started() {
    let fail = |state: &StateFile| state.fail_to_sync_folder(true);
    check_unwritable_state([CACHED, BARE], fail, |_| ());
}

#[test]
fn a_device_stays_detached_if_no_state_file_can_be_made_once_the_new_table_has_started() {
    let old = format!("{CACHED}\n1024 1024 writecache s disk cache 4096 0");
    let new = format!("{BARE}\n1024 1024 linear disk 0");
    let stray = |state: &StateFile| state.path().with_file_name("state.new");
    let fail = move |state: &StateFile| fs::create_dir(stray(state)).unwrap();
    check_unwritable_state([&old, &new], fail, |state| fs::remove_dir(stray(state)).unwrap());
}

fn attach(server: &TestServer) -> Outcome<Vec<String>> {
    let (name, cache) = ("c".to_owned(), "fast".to_owned());
    let attach = CacheAttach { name, cache, ..CacheAttach::default() };
    server.verbs.cache_attach(&attach, &Patient)
}

/// A set, and a server that has detached its backing device and serves it alone by this table.
fn detached_server(folder: &Path, table: &str) -> TestServer {
    let server = attached_server(folder);
    let detach = CacheDetach { name: "c".to_owned(), ..CacheDetach::default() };
    assert!(server.verbs.cache_detach(&detach, &Patient).unwrap().detached);
    if table != BARE {
        server.replace("c", table, false).unwrap();
    }
    server
}

#[test]
fn a_kill_at_any_step_of_an_attach_leaves_all_data_and_one_table_that_serves_it() {
    for table in [BARE, ALONE] {
        let (_all, work, copies) = folders();
        let server = detached_server(&work, table);
        let attach = |server: &TestServer| {
            attach(server).unwrap();
            server.write("c", 0, 8, 9);
            server.flush("c");
        };
        let moments = server.moments(&copies, attach);
        let steps: Vec<Option<Step>> = moments.iter().map(|moment| moment.step).collect();
        assert!(steps.contains(&Some(Step::Started)), "{steps:?}");
        assert_eq!(server.verbs.told()["c"].table.as_deref(), Some(CACHED), "the word is dropped");
        for Moment { step, folder } in moments {
            let what = format!("{table} killed at {step:?}");
            let server = TestServer::start(&folder, &format!("c={CACHED}"))
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            let expected = match step {
                None => vec![(8, 9), (DIRTY - 8, 7), (SECTORS - DIRTY, 1)],
                Some(_) => content(),
            };
            assert_eq!(server.bytes("c"), expected, "{what}");
            // The record of the swap is there, so the start attaches.
            let is_recorded =
                matches!(step, None | Some(Step::Recorded | Step::Started | Step::Resumed));
            assert_eq!(is_attached(&folder), is_recorded, "{what}");
            let recorded = server.verbs.told()["c"].table.clone().unwrap();
            assert_eq!(recorded.trim_end(), if is_recorded { CACHED } else { table }, "{what}");
        }
    }
}

#[test]
fn an_attach_that_fails_leaves_the_old_table_and_its_device() {
    let (_all, work, _) = folders();
    let server = detached_server(&work, BARE);
    let mut cache = fs::read(work.join("fast")).unwrap();
    // The journal: the set cannot be read.
    cache[8192..8192 + 32 * 512 * 8].fill(0);
    fs::write(work.join("fast"), cache).unwrap();
    let refused = attach(&server).unwrap_err().to_string();
    assert!(refused.contains("fast: journal: "), "{refused}");
    assert_eq!((live_target(&server).as_str(), server.bytes("c")), ("linear", content()));
    assert_eq!(server.verbs.told()["c"].table.as_deref().map(str::trim_end), Some(BARE));
    assert!(!is_attached(&work));
}

#[test]
fn an_attach_is_refused_with_one_line_where_a_device_does_not_fit() {
    let (_all, work, _) = folders();
    let server = detached_server(&work, "0 512 linear slow 17");
    let refused = attach(&server).unwrap_err().to_string();
    let expected = "c: table: found sectors from 17 of slow on, expected those from 16 on, where";
    assert!(refused.starts_with(expected), "{refused}");
    server.replace("c", BARE, false).unwrap();
    let other = |cache: &str| {
        let (name, cache) = ("c".to_owned(), cache.to_owned());
        let attach = CacheAttach { name, cache, ..CacheAttach::default() };
        server.verbs.cache_attach(&attach, &Patient).unwrap_err().to_string()
    };
    let refused = other("slow2");
    let expected = "slow2: superblock: found that of a backing device of bcache, expected that of \
                    a cache device (cairn format bcache --cache)";
    assert_eq!(refused, expected, "a backing device is no cache");
    server.verbs.create("w", "0 8 linear fast 0").unwrap();
    let refused = attach(&server).unwrap_err().to_string();
    assert!(refused.contains("fast") && refused.contains("'w'"), "{refused}");
    server.verbs.remove("w").unwrap();
    attach(&server).unwrap();
    let refused = attach(&server).unwrap_err().to_string();
    assert_eq!(refused, "c: table: found a cache, expected none (cairn cache detach c)");
}

#[test]
fn a_kill_at_any_step_of_a_new_volume_in_a_set_leaves_it_whole_or_not_there() {
    let (_all, work, copies) = folders();
    let server = attached_server(&work);
    let make = |name: &str, size_bytes: u64| CacheVolume {
        set: "c".to_owned(),
        name: name.to_owned(),
        size_bytes,
    };
    let moments = server.moments(&copies, |server: &TestServer| {
        server.verbs.cache_volume(&make("f", SECTORS * 512), &Patient).unwrap();
        server.write("f", 0, SECTORS, 3);
        server.flush("f");
    });
    for Moment { step, folder } in moments {
        let what = format!("killed at {step:?}");
        let server = TestServer::start(&folder, &format!("c={CACHED}"))
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(server.bytes("c"), content(), "{what}");
        let is_recorded = matches!(step, None | Some(Step::Recorded));
        assert_eq!(server.has("f"), is_recorded, "{what}");
        match step {
            None => assert_eq!(server.bytes("f"), [(SECTORS, 3)]),
            Some(Step::Recorded) => assert_eq!(server.bytes("f"), [(SECTORS, 0)]),
            _ => {}
        }
    }
    for (params, part) in [
        (make("f", 512), "f: name: found a volume of this name, expected a new name"),
        (make("g", 513), "c: flash_vol_create: found '513', expected a multiple of 512 bytes"),
        (CacheVolume { set: "f".to_owned(), ..make("f@g", 512) }, "volume: name: found"),
    ] {
        let refused = server.verbs.cache_volume(&params, &Patient).unwrap_err().to_string();
        assert!(refused.starts_with(part), "{refused}");
    }
    // The set of a volume that lies in it alone.
    let beside = CacheVolume { set: "f".to_owned(), ..make("h", 512) };
    server.verbs.cache_volume(&beside, &Patient).unwrap();
    let detach = CacheDetach { name: "c".to_owned(), ..CacheDetach::default() };
    assert!(server.verbs.cache_detach(&detach, &Patient).unwrap().detached);
    let refused = server.verbs.cache_volume(&make("k", 512), &Patient).unwrap_err().to_string();
    assert!(refused.starts_with("c: table: found no cache"), "{refused}");
}
