//! Backing devices of bcache that leave their set: by `flush --detach`, by `replace`, and refused
//! where they would be written without their cache.

use super::place::{Place, json};

const CACHED: &str = "0 N bcache wb_stop.backing wb_stop.cache 0";
const BARE: &str = "0 16368 linear wb_stop.backing 16";
/// A client writes over what the cache has had.
const WRITE: &str = "qemu-io -f raw -c 'write -P 7 0 4M' -c flush \"$uri\" >/dev/null";

fn stopped() -> Place {
    let place = Place::new();
    place.golden("bcache", "wb_stop.cache");
    place.golden("bcache", "wb_stop.backing");
    place
}

fn state_of(place: &Place, backing: &str) -> (String, bool) {
    let dump = json(&place.cairn(&["dump", backing, "--json"]).ok());
    let superblock = &dump["superblock"];
    (superblock["state"].as_str().unwrap().to_owned(), superblock["set_uuid"].is_null())
}

fn content(place: &Place, table: &str) -> String {
    let sum = "nbdcopy \"$uri\" - | sha256sum";
    place.cairn(&["serve", "--read-only", "--table", table, "--run", sum]).ok()
}

#[test]
fn a_detached_backing_device_belongs_to_no_set_and_its_cache_is_not_served() {
    let place = stopped();
    let before = content(&place, CACHED);
    let out = place.cairn(&["flush", "--detach", "--table", CACHED]).ok();
    let expected = "clean: every block is on the origin\n\
                    wb_stop.backing: detached: it belongs to no set\n";
    assert_eq!(out, expected);
    assert_eq!(state_of(&place, "wb_stop.backing"), ("no cache".to_owned(), true));
    let checked = place.cairn(&["check", "wb_stop.cache", "--json"]).ok();
    assert_eq!(json(&checked)[0]["volumes"][0]["state"], "detached", "{checked}");
    assert_eq!(content(&place, BARE), before);
    place.serve_run(&["--table", BARE], WRITE).ok();
    for verb in [&["flush", "--table", CACHED][..], &["serve", "--table", CACHED, "--run", "true"]]
    {
        let line = place.cairn(verb).refused(1);
        assert!(line.contains("wb_stop.backing: set_uuid: found none, expected "), "{line}");
    }
}

#[test]
fn a_drain_alone_keeps_the_backing_device_attached() {
    let place = stopped();
    let out = place.cairn(&["flush", "--table", CACHED]).ok();
    assert_eq!(out, "clean: every block is on the origin\n");
    assert_eq!(state_of(&place, "wb_stop.backing"), ("clean".to_owned(), false));
    // A second run has nothing to drain, and detaches.
    place.cairn(&["flush", "--detach", "--table", CACHED]).ok();
    assert_eq!(state_of(&place, "wb_stop.backing"), ("no cache".to_owned(), true));
}

#[test]
fn an_interrupted_drain_does_not_detach() {
    let place = stopped();
    for is_drained in [false, true] {
        if is_drained {
            place.cairn(&["flush", "--table", CACHED]).ok();
        }
        let ran = place.cairn(&["flush", "--detach", "--timeout", "0", "--table", CACHED]);
        let (_, is_detached) = state_of(&place, "wb_stop.backing");
        // It may be done before the time is looked at.
        let expected = if is_detached { 0 } else { 124 };
        assert_eq!(ran.code, expected, "{ran:?}");
        assert_eq!(ran.out.contains("not detached: "), !is_detached, "{ran:?}");
        if is_detached {
            return;
        }
    }
}

#[test]
fn an_attached_backing_device_is_written_with_its_cache_only() {
    let place = stopped();
    place.sparse("fast", 256 << 10);
    place.sparse("other", 1 << 20);
    for state in ["dirty", "clean"] {
        for table in [
            BARE,
            "0 8 linear wb_stop.backing 1000",
            "0 16368 passthrough wb_stop.backing",
            "0 2048 striped 2 8 other 0 wb_stop.backing 4096",
        ] {
            let ran = place.cairn(&["serve", "--table", table, "--run", "true"]);
            assert_eq!(ran.code, 1, "{table}: {ran:?}");
            let line = ran.err.lines().find(|line| line.contains("attached to the bcache set"));
            let line = line.unwrap_or_else(|| panic!("{table}: {ran:?}"));
            assert!(line.starts_with("cairn: default: wb_stop.backing: "), "{line}");
            assert!(line.contains(&format!("({state})")), "{line}");
            assert!(line.contains("cairn flush --detach --table '0 N bcache"), "{line}");
        }
        // Reading is allowed, and so is writing for clients that run the set.
        place.serve_run(&["--read-only", "--table", BARE], "true").ok();
        place.serve_run(&["--guest-sets", "--table", BARE], "true").ok();
        place.cairn(&["flush", "--table", CACHED]).ok();
    }
    // The content of a volume is that of its clients.
    place.sparse("disk", 1 << 20);
    let bytes = place.read("wb_stop.backing");
    place.patch("disk", 65536 + 4096, &bytes[4096..8192]);
    let tables = ["--table", "lower=0 1024 linear disk 128", "--table", "v=0 1024 linear @lower 0"];
    place.serve_run(&tables, "true").ok();
}

#[test]
fn verbs_refuse_tables_that_write_past_the_cache() {
    let place = stopped();
    let script = format!(
        "cairn create v --table '{BARE}'; echo $?; cairn create v --table '0 8 zero'; \
         cairn replace v --table '{BARE}'; echo $?; cairn replace v --flush --table '{BARE}'; \
         echo $?; cairn load v --table '{BARE}'; cairn resume v; echo $?; cairn clear v; \
         cairn table v; \
         cairn create w --discard-dirty --table '{BARE}'; echo $?"
    );
    let ran = place.serve_run(&["--state", "state", "--table", "other=0 8 zero"], &script);
    assert_eq!(ran.out, "1\n1\n1\n1\n0 8 zero \n1\n", "{ran:?}");
    let lines = ran.err.lines().filter(|line| line.contains("attached to the bcache set"));
    assert_eq!(lines.count(), 5, "{ran:?}");
    assert_eq!(state_of(&place, "wb_stop.backing"), ("dirty".to_owned(), false));
}

#[test]
fn replace_with_flush_drains_and_detaches() {
    let place = stopped();
    let before = content(&place, CACHED).trim().to_owned();
    let script = format!(
        "cairn replace disk --table '{BARE}'; echo $?; cairn table disk; \
         cairn replace disk --flush --table '{BARE}'; echo $?; nbdcopy \"$uri\" - | sha256sum; \
         {WRITE}; echo $?"
    );
    let ran = place.serve_run(&["--state", "state", "--table", &format!("disk={CACHED}")], &script);
    let cached = "0 16368 bcache wb_stop.backing wb_stop.cache 0";
    assert!(ran.out.starts_with(&format!("1\n{cached}\n0\n")), "{ran:?}");
    assert!(ran.out.contains(&before) && ran.out.ends_with("0\n"), "{ran:?}");
    let attached = "cairn: disk: wb_stop.backing: attached to the bcache set";
    assert!(ran.err.contains(attached), "{ran:?}");
    assert!(ran.err.contains("--flush drains the cache and detaches the device"), "{ran:?}");
    assert!(ran.err.contains("cairn: disk: wb_stop.backing: detached from set "), "{ran:?}");
    assert_eq!(state_of(&place, "wb_stop.backing"), ("no cache".to_owned(), true));
    place.cairn(&["check", "wb_stop.cache"]).ok();
}

#[test]
fn a_set_with_an_unreadable_extent_is_drained_of_the_others_and_not_detached() {
    let place = stopped();
    let dump = json(&place.cairn(&["dump", "wb_stop.cache", "--json"]).ok());
    let number = |extent: &serde_json::Value, name: &str| extent[name].as_u64().unwrap();
    let extents = dump["extents"].as_array().unwrap();
    let bad = extents.iter().find(|extent| extent["dirty"] == true).unwrap();
    let (at, count) = (number(bad, "cache_sector"), number(bad, "sectors"));
    let start = number(bad, "sector");
    // The cache as a volume with a hole that cannot be read.
    let (behind, all) = (at + count, place.read("wb_stop.cache").len() as u64 / 512);
    let fast = format!(
        "fast=0 {at} linear wb_stop.cache 0\n{at} {count} error\n\
         {behind} {} linear wb_stop.cache {behind}",
        all - behind
    );
    let disk = "disk=0 N bcache wb_stop.backing @fast 0";
    let script = format!("cairn replace disk --flush --table '{BARE}'; echo $?; cairn table disk");
    let ran = place.serve_run(&["--state", "state", "--table", &fast, "--table", disk], &script);
    assert_eq!(ran.out, "1\n0 16368 bcache wb_stop.backing @fast 0\n", "{ran:?}");
    let end = start + count;
    let line = format!(
        "wb_stop.backing with @fast: could not copy 1 extent ({count} sectors), which stay dirty: \
         inode 0 sectors {start}..{end} ({count} sectors), reading @fast: "
    );
    assert!(ran.err.contains(&line), "{line}: {ran:?}");
    assert_eq!(state_of(&place, "wb_stop.backing"), ("dirty".to_owned(), false));
    let dump = json(&place.cairn(&["dump", "wb_stop.cache", "--json"]).ok());
    let extents = dump["extents"].as_array().unwrap();
    let left: Vec<_> = extents.iter().filter(|extent| extent["dirty"] == true).collect();
    assert_eq!((left.len(), number(left[0], "sector")), (1, start));
}

#[test]
fn no_verb_gives_up_the_dirty_data_of_a_set() {
    let place = stopped();
    let before = content(&place, CACHED).trim().to_owned();
    let sum = "nbdcopy \"$uri\" - | sha256sum";
    let script = format!("cairn replace disk --discard-dirty --table '{BARE}'; echo $?; {sum}");
    for own in [&[][..], &["--guest-sets"]] {
        let table = format!("disk={CACHED}");
        let args = [&["--state", "state", "--table", table.as_str()], own].concat();
        let ran = place.serve_run(&args, &script);
        assert_eq!(ran.out, format!("1\n{before}\n"), "{ran:?}");
        assert!(ran.err.contains("--flush drains the cache and detaches the device"), "{ran:?}");
    }
    // Reads began a session, which writes back in the background.
    let (state, is_detached) = state_of(&place, "wb_stop.backing");
    assert!(["dirty", "clean"].contains(&&state[..]) && !is_detached, "{state}");
    assert_eq!(content(&place, CACHED).trim(), before);
}

#[test]
fn a_volume_is_no_backing_device_of_a_set_that_may_be_written() {
    let place = stopped();
    let tables = [
        "--table",
        "lower=0 16384 linear wb_stop.backing 0",
        "--table",
        "v=0 16368 bcache @lower wb_stop.cache 0",
    ];
    let guests = [&["serve", "--guest-sets"], &tables[..], &["--run", "true"]].concat();
    let ran = place.cairn(&guests);
    let line = "cairn: v: @lower: backing: found a volume, expected a file";
    assert!(ran.code == 1 && ran.err.contains(line), "{ran:?}");
    place.serve_run(&[&["--read-only"], &tables[..]].concat(), "true").ok();
}

#[test]
fn a_new_table_that_cannot_start_leaves_the_set_as_it_was() {
    let place = stopped();
    for name in ["tree_kill.cache", "tree_kill.backing"] {
        place.golden("bcache", name);
    }
    // Sound superblocks, and no sound entry in the journal: the set is read at the resume.
    let mut damaged = place.read("tree_kill.cache");
    damaged[8192..2 << 20].fill(0);
    place.write("tree_kill.cache", damaged);
    let table = format!("{BARE}\n16368 8 bcache tree_kill.backing tree_kill.cache 0");
    let sum = "nbdcopy \"$uri\" - | sha256sum";
    let replace = format!("cairn replace disk --flush --table '{table}'; echo $?");
    let script = format!("{sum}; {replace}; {sum}; cairn table disk");
    let disk = format!("disk={CACHED}");
    let ran = place.serve_run(&["--state", "state", "--table", &disk], &script);
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(lines.len(), 4, "{ran:?}");
    assert!(ran.err.contains("tree_kill.cache"), "{ran:?}");
    assert!(!ran.err.contains("the old table cannot start"), "{ran:?}");
    assert!(lines[0] == lines[2] && lines[1] != "0", "{ran:?}");
    assert_eq!(lines[3], "0 16368 bcache wb_stop.backing wb_stop.cache 0", "{ran:?}");
    assert_eq!(state_of(&place, "wb_stop.backing"), ("clean".to_owned(), false));
}

#[test]
fn without_its_cache_a_backing_device_is_detached_if_nothing_is_missing() {
    let place = stopped();
    std::fs::remove_file(place.path("wb_stop.cache")).unwrap();
    let alone = "0 N bcache wb_stop.backing - 0";
    let ran = place.cairn(&["flush", "--detach", "--table", alone]);
    assert_eq!(ran.code, 1, "{ran:?}");
    let expected = "flush: detach: wb_stop.backing: its cache has data that it lacks, how much is \
                    not known without it; --discard-dirty=";
    let (_, rest) = ran.err.split_once(expected).unwrap_or_else(|| panic!("{ran:?}"));
    let set = rest.split(',').next().unwrap();
    let other = "00000000-0000-0000-0000-000000000001";
    let give_up = |set: &str| {
        let discard = format!("--discard-dirty={set}");
        place.cairn(&["flush", "--detach", &discard, "--table", alone])
    };
    let refused = give_up(other);
    assert_eq!(refused.code, 1, "{refused:?}");
    let line = format!("--discard-dirty: found {other}, expected {set}");
    assert!(refused.err.contains(&line), "{refused:?}");
    assert_eq!(state_of(&place, "wb_stop.backing"), ("dirty".to_owned(), false));
    let out = give_up(set).ok();
    assert_eq!(out, "wb_stop.backing: inconsistent: what only its cache had is given up\n");
    assert_eq!(state_of(&place, "wb_stop.backing"), ("inconsistent".to_owned(), false));
    // It is written alone.
    place.serve_run(&["--table", BARE], WRITE).ok();

    let place = stopped();
    place.cairn(&["flush", "--table", CACHED]).ok();
    place.cairn(&["flush", "--detach", "--table", alone]).ok();
    assert_eq!(state_of(&place, "wb_stop.backing"), ("no cache".to_owned(), true));
}

#[test]
fn detach_is_for_tables_with_a_backing_device_of_bcache() {
    let place = Place::new();
    place.sparse("slow", 1 << 20);
    place.sparse("fast", 256 << 10);
    let table = "0 2048 writecache s slow fast 4096 0";
    let line = place.cairn(&["flush", "--detach", "--table", table]).refused(1);
    assert!(line.contains("--detach: found no backing device of bcache, expected a"), "{line}");
}

#[test]
fn a_volume_with_snapshots_keeps_its_content_when_its_set_is_left() {
    let place = stopped();
    let before = content(&place, CACHED).trim().to_owned();
    let sum = "nbdcopy \"nbd+unix:///v@s?socket=$unixsocket\" - | sha256sum";
    let script = format!(
        "cairn snap create v@s; \
         cairn replace v@real --flush --table '0 16368 linear wb_stop.backing 8'; echo $?; \
         cairn replace v@real --flush --table '{BARE}'; echo $?; {sum}; {WRITE}; {sum}"
    );
    let table = format!("v={CACHED}");
    let args = ["--state", "state", "--export", "v", "--table", &table];
    let ran = place.serve_run(&args, &script);
    assert_eq!(ran.out, format!("4\n0\n{before}\n{before}\n"), "{ran:?}");
    assert!(ran.err.contains("ruins v@s"), "{ran:?}");
    assert_eq!(state_of(&place, "wb_stop.backing"), ("no cache".to_owned(), true));
}
