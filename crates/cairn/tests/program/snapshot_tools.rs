//! check, dump and repair on exception stores that a real kernel made, whole and damaged.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::process::{Child, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use super::place::{Place, json, signalled, until};

/// Byte of a record of area 0 in `basic-a.cow` (chunks of 8 sectors, 6 records).
fn record(index: usize) -> usize {
    4096 + index * 16
}

/// What a store keeps: origin chunk to content.
fn kept(place: &Place, name: &str) -> BTreeMap<u64, Vec<u8>> {
    let dumped = json(&place.cairn(&["dump", name, "--json"]).ok());
    let bytes = dumped["header"]["chunk_size"].as_u64().unwrap() as usize * 512;
    let store = place.read(name);
    let records = dumped["records"].as_array().unwrap().iter();
    let number = |record: &Value, key: &str| record[key].as_u64().unwrap();
    let content = records.map(|record| {
        let from = number(record, "new_chunk") as usize * bytes;
        (number(record, "old_chunk"), store[from..from + bytes].to_vec())
    });
    content.collect()
}

#[test]
fn check_clears_what_the_kernel_left_and_counts_as_its_status_line() {
    let place = Place::new();
    for name in ["fresh.cow", "basic-a.cow", "multi.cow", "overflow-po-40.cow", "invalid-p-34.cow"]
    {
        place.golden("snapshot", name);
    }
    place.golden("snapshot", "clean.origin");
    let out = place.cairn(&["check", "multi.cow", "--origin", "clean.origin"]).ok();
    assert_eq!(
        out,
        "multi.cow: sound: 80 records of chunks of 1 sectors, 84 of 160 sectors allocated, 4 of \
         them metadata\n"
    );
    let ran = place.cairn(&["check", "fresh.cow", "overflow-po-40.cow", "invalid-p-34.cow"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.out.contains("(the snapshot was given up) [damaged]\n"), "{ran:?}");
    let report = &json(&place.cairn(&["check", "basic-a.cow", "--json"]).ok())[0];
    assert_eq!(report["format"], "dm-snapshot");
    assert_eq!(report["header"], json(r#"{"chunk_size": 8, "valid": true, "version": 1}"#));
    assert_eq!(report["counts"], json(r#"{"after_end": 0, "faulty": 0, "records": 6}"#));
    assert_eq!(report["usage"]["allocated_sectors"], 64);
    assert_eq!(
        (&report["severity"], &report["exit_code"]),
        (&Value::from("sound"), &Value::from(0))
    );
}

#[test]
fn check_names_what_is_wrong_and_writes_nothing() {
    let place = Place::new();
    place.golden("snapshot", "basic-a.cow");
    place.sparse("short.origin", 4096);
    place.patch("basic-a.cow", record(2) + 8, &[1]);
    place.patch("basic-a.cow", record(9) + 8, &[9]);
    let before = place.read("basic-a.cow");
    let ran = place.cairn(&["check", "basic-a.cow"]);
    assert_eq!((ran.code, ran.out.lines().count()), (2, 3), "{ran:?}");
    assert!(ran.out.contains("record 2 new_chunk: found 1, a metadata chunk"), "{ran:?}");
    assert!(ran.out.contains("with 1 records after it in its area"), "{ran:?}");
    let ran = place.cairn(&["check", "basic-a.cow", "--origin", "short.origin"]);
    assert!(ran.out.contains("expected a chunk below the origin's 1 [damaged]"), "{ran:?}");
    assert!(place.read("basic-a.cow") == before);
}

#[test]
fn dump_shows_the_header_and_the_list() {
    let place = Place::new();
    place.golden("snapshot", "crafted.cow");
    let text = place.cairn(&["dump", "crafted.cow"]).ok();
    assert!(text.starts_with("valid 1\nversion 1\nchunk_size 8\nchunks 24\nareas 1\n"), "{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with("record ")).count(), 5, "{text}");
    place.patch("crafted.cow", record(7), &[3, 0, 0, 0, 0, 0, 0, 0, 4]);
    let hidden = json(&place.cairn(&["dump", "crafted.cow", "--json"]).ok());
    assert_eq!(hidden["records"].as_array().unwrap().len(), 5);
    let all = place.cairn(&["dump", "crafted.cow", "--all"]).ok();
    assert!(all.ends_with("record 7: old_chunk 3, new_chunk 4, after the end\n"), "{all}");
    place.patch("crafted.cow", 8, &[2]);
    let line = place.cairn(&["dump", "crafted.cow"]).refused(2);
    assert!(line.contains("header version: found 2, expected 1"), "{line}");
}

/// Two records wrong, one left over after the end.
fn damaged(place: &Place) {
    place.golden("snapshot", "basic-a.cow");
    place.patch("basic-a.cow", record(1) + 8, &[200]);
    let first = place.read("basic-a.cow")[record(0)..record(0) + 16].to_vec();
    place.patch("basic-a.cow", record(4), &first);
    place.patch("basic-a.cow", record(9) + 8, &[9]);
}

/// What basic-a keeps, without the records that [`damaged`] spoils.
fn undamaged(place: &Place) -> BTreeMap<u64, Vec<u8>> {
    place.golden("snapshot", "basic-a.cow");
    let old_chunk = |index: usize| u64::from(place.read("basic-a.cow")[record(index)]);
    let mut kept = kept(place, "basic-a.cow");
    assert!(kept.remove(&old_chunk(1)).is_some() && kept.remove(&old_chunk(4)).is_some());
    kept
}

#[test]
fn repair_makes_a_sound_store_beside_the_damaged_one() {
    let place = Place::new();
    let expected = undamaged(&place);
    damaged(&place);
    let before = place.read("basic-a.cow");
    let ran = place.cairn(&["repair", "basic-a.cow", "--output", "new.cow"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.out.contains("record 1 new_chunk: found 200, expected"), "{ran:?}");
    assert!(ran.out.contains("basic-a.cow: 4 records kept, 3 dropped: something was lost\n"));
    assert!(ran.out.contains("new.cow: sound: 4 records"), "{ran:?}");
    assert!(place.read("basic-a.cow") == before);
    assert_eq!(place.read("new.cow").len(), before.len());
    assert!(kept(&place, "new.cow") == expected);
    let line = place.cairn(&["repair", "basic-a.cow", "--output", "new.cow"]).refused(1);
    assert!(line.contains("new.cow: create"), "{line}");
    let ran = place.cairn(&["repair", "new.cow", "--output", "again.cow", "--json"]);
    let told = json(&ran.ok());
    assert_eq!((&told["kept"], &told["dropped"]), (&Value::from(4), &Value::from(0)));
    assert_eq!(told["check"]["severity"], "sound");
    assert!(place.read("again.cow") == place.read("new.cow"));
}

#[test]
fn repair_changes_a_store_in_place_only_when_told_twice() {
    let place = Place::new();
    let expected = undamaged(&place);
    damaged(&place);
    let before = place.read("basic-a.cow");
    place.cairn(&["repair", "basic-a.cow"]).refused(1);
    place.cairn(&["repair", "basic-a.cow", "--in-place"]).refused(1);
    place.cairn(&["repair", "basic-a.cow", "--in-place", "--yes", "--output", "x"]).refused(1);
    assert!(place.read("basic-a.cow") == before);
    let ran = place.cairn(&["repair", "basic-a.cow", "--in-place", "--yes"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    place.cairn(&["check", "basic-a.cow"]).ok();
    assert!(kept(&place, "basic-a.cow") == expected);
    // Only the area has changed.
    assert!(place.read("basic-a.cow")[8192..] == before[8192..]);
    let repaired = place.read("basic-a.cow");
    place.cairn(&["repair", "basic-a.cow", "--in-place", "--yes"]).ok();
    assert!(place.read("basic-a.cow") == repaired);
}

#[test]
fn nothing_is_lost_where_a_write_was_torn_and_what_follows_is_kept_to_salvage() {
    let place = Place::new();
    place.golden("snapshot", "multi.cow");
    let whole = kept(&place, "multi.cow");
    // Record 70 is the seventh of area 2, which is chunk 67: the rest follows the end.
    place.patch("multi.cow", 67 * 512 + 6 * 16, &[0; 16]);
    assert_eq!(place.cairn(&["check", "multi.cow"]).code, 3);
    let out = place.cairn(&["repair", "multi.cow", "--output", "short.cow"]).ok();
    assert!(out.contains("70 records kept, 9 dropped: nothing was lost"), "{out}");
    let out = place.cairn(&["repair", "multi.cow", "--output", "long.cow", "--salvage"]).ok();
    assert!(out.contains("79 records kept, 0 dropped"), "{out}");
    for (name, records) in [("short.cow", 70), ("long.cow", 79)] {
        let kept = kept(&place, name);
        assert_eq!(kept.len(), records);
        assert!(kept.iter().all(|(chunk, content)| whole[chunk] == *content));
    }
}

#[test]
fn a_full_store_without_a_successor_grows_into_a_new_file() {
    let place = Place::new();
    place.golden("snapshot", "area32.cow");
    // Chunks 0 to 33: header, area, 32 data chunks, and no room for area 1 behind them.
    let store = place.read("area32.cow");
    place.write("full.cow", &store[..34 * 512]);
    let ran = place.cairn(&["check", "full.cow"]);
    assert_eq!(ran.code, 3, "{ran:?}");
    let line = place.cairn(&["repair", "full.cow", "--in-place", "--yes"]).refused(2);
    assert!(line.contains("expected room for one more area"), "{line}");
    place.cairn(&["repair", "full.cow", "--output", "new.cow"]).ok();
    assert_eq!(place.read("new.cow").len(), 35 * 512);
    assert!(kept(&place, "new.cow") == kept(&place, "area32.cow"));
}

#[test]
fn repair_refuses_what_it_cannot_know() {
    let place = Place::new();
    place.golden("snapshot", "invalid-p-34.cow");
    let line = place.cairn(&["repair", "invalid-p-34.cow", "--output", "new"]).refused(2);
    assert!(line.contains("an invalidated snapshot cannot be repaired"), "{line}");
    assert!(!place.exists("new"));
    place.sparse("blank", 65536);
    let line = place.cairn(&["repair", "blank", "--output", "new"]).refused(63);
    assert!(line.contains("blank: not a dm-snapshot store or"), "{line}");
    assert!(!place.exists("new"));
}

/// A repair to a new file, which it has begun to fill, of a store that takes long to copy: 4000
/// chunks of 16 MiB, all but the first of them holes.
fn copying(place: &Place) -> Child {
    const CHUNK_BYTES: u64 = 16 << 20;
    place.sparse("large.cow", 4002 * CHUNK_BYTES);
    let header = [u32::from_le_bytes(*b"SnAp"), 1, 1, (CHUNK_BYTES / 512) as u32];
    let numbers = (0..4000u64).flat_map(|index| [index, index + 2]);
    let records: Vec<u8> = numbers.flat_map(u64::to_le_bytes).collect();
    let store = File::options().write(true).open(place.path("large.cow")).unwrap();
    store.write_all_at(&header.map(u32::to_le_bytes).concat(), 0).unwrap();
    store.write_all_at(&records, CHUNK_BYTES).unwrap();
    store.write_all_at(&[7; 4096], 2 * CHUNK_BYTES).unwrap();
    let mut command = place.command(&["repair", "large.cow", "--output", "new.cow"]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = |found: Metadata| found.blocks() > 0;
    until(|| fs::metadata(place.path("new.cow")).is_ok_and(begun).then_some(()));
    child
}

#[test]
fn a_repair_stops_at_a_signal_and_takes_its_file_away() {
    let place = Place::new();
    let mut child = copying(&place);
    assert_eq!(signalled(&mut child, &[Signal::INT]).code(), Some(1));
    let said = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
    assert_eq!(said, "cairn: large.cow: interrupted\n");
    assert!(!place.exists("new.cow"));
    let mut child = copying(&place);
    assert!(!signalled(&mut child, &[Signal::INT, Signal::TERM]).success());
    assert!(!place.exists("new.cow"));
}

#[test]
fn an_origin_does_not_say_what_a_device_without_a_header_was() {
    let place = Place::new();
    place.golden("snapshot", "basic-a.cow");
    place.patch("basic-a.cow", 0, &[0; 4]);
    place.sparse("origin", 1 << 20);
    for args in [&["check", "basic-a.cow"][..], &["check", "basic-a.cow", "--origin", "origin"]] {
        let ran = place.cairn(args);
        let told =
            "basic-a.cow: not a dm-writecache cache, a dm-snapshot store, a dm-thin or dm-clone";
        assert!(ran.code == 2 && ran.out.contains(told), "{ran:?}");
    }
}
