//! bcache sets served and drained by the program, with and without their caches; and the map of
//! what is lost.

use serde_json::Value;

use super::place::{Place, json};

/// Bytes of the volume of `wb_stop`.
const BYTES: u64 = 8_380_416;

fn stopped() -> Place {
    let place = Place::new();
    place.golden("bcache", "wb_stop.cache");
    place.golden("bcache", "wb_stop.backing");
    place
}

fn sum_of(image: &str) -> String {
    let records = cairn_testkit::manifest("bcache");
    let of = |record: &&Value| {
        [&record["cache"], &record["backing"]].into_iter().any(|name| name.as_str() == Some(image))
    };
    records.iter().find(of).unwrap()["sha256"].as_str().unwrap().to_owned()
}

/// Serves a table read-only and answers what the command prints.
fn served(place: &Place, options: &[&str], table: &str, command: &str) -> super::place::Ran {
    let serve = ["serve", "--read-only", "--table", table, "--run", command];
    place.cairn(&[&serve[..], options].concat())
}

const SUM: &str = "nbdcopy \"$uri\" - | sha256sum | cut -d ' ' -f 1";
const READ: &str = "nbdcopy \"$uri\" /dev/null && echo read";

#[test]
fn length_n_is_all_that_the_backing_device_has_of_data() {
    let place = stopped();
    let table = "0 N bcache wb_stop.backing wb_stop.cache 0";
    let ran = served(&place, &[], table, "cairn table; nbdinfo --size \"$uri\"").ok();
    assert_eq!(ran, format!("default: 0 16368 bcache wb_stop.backing wb_stop.cache 0\n{BYTES}\n"));
    assert_eq!(served(&place, &[], table, SUM).ok().trim(), sum_of("wb_stop.cache"));
    // Its cache is not asked.
    let table = "0 N bcache wb_stop.backing - 0";
    assert_eq!(served(&place, &[], table, "cairn table").ok().split(' ').nth(2), Some("16368"));
    place.cairn(&["flush", "--table", "0 N bcache wb_stop.backing wb_stop.cache 0"]).ok();
    place.cairn(&["check", "wb_stop.cache", "--backing", "wb_stop.backing"]).ok();
    let dump = json(&place.cairn(&["dump", "wb_stop.backing", "--json"]).ok());
    assert_eq!(dump["superblock"]["state"], "clean");
}

#[test]
fn length_n_of_a_flash_only_volume_is_its_size() {
    let place = Place::new();
    place.golden("bcache", "flash.cache");
    let dump = json(&place.cairn(&["dump", "flash.cache", "--json"]).ok());
    let volumes = dump["volumes"].as_array().unwrap();
    let flash = volumes.iter().find(|volume| volume["state"] == "flash").unwrap();
    let uuid = flash["uuid"].as_str().unwrap();
    let sectors = flash["size_sectors"].as_u64().unwrap();
    let table = format!("0 N bcache - flash.cache 2 flash {uuid}");
    let size = served(&place, &[], &table, "nbdinfo --size \"$uri\"").ok();
    assert_eq!(size, format!("{}\n", sectors * 512));
    let table = "0 N bcache - flash.cache 2 flash 00000000-0000-0000-0000-000000000001";
    let line = served(&place, &[], table, "true").refused(1);
    assert!(line.contains("flash: found 00000000-0000-0000-0000-000000000001, expected"), "{line}");
}

#[test]
fn length_n_of_devices_that_give_none_is_refused_with_the_device() {
    let place = stopped();
    place.sparse("blank", 1 << 20);
    for (words, part) in [
        ("blank wb_stop.cache 0", "blank: superblock magic: found 0000"),
        ("wb_stop.cache wb_stop.cache 0", "found that of a cache device, expected that of a back"),
        ("- wb_stop.cache 0", "wb_stop.cache: flash: found nothing, expected a flash-only volume"),
        ("- - 0", "bcache: length: found no number, expected a device"),
        ("missing wb_stop.cache 0", "missing: "),
    ] {
        let line = served(&place, &[], &format!("0 N bcache {words}"), "true").refused(1);
        assert!(line.contains(part), "{words}: {line}");
    }
}

#[test]
fn without_its_cache_a_dirty_volume_fails_reads_unless_old_data_is_accepted() {
    let place = stopped();
    let table = "0 N bcache wb_stop.backing wb_stop.cache 0";
    // The cache is not opened: it may be gone.
    std::fs::remove_file(place.path("wb_stop.cache")).unwrap();
    let before = place.read("wb_stop.backing");
    let ran = served(&place, &["--without-cache"], table, READ);
    assert!(ran.code != 0 && ran.err.contains("Input/output error"), "{ran:?}");
    let ran = served(&place, &["--without-cache", "--stale-ok"], table, READ).ok();
    assert_eq!(ran, "read\n");
    let ran = served(&place, &["--without-cache", "--stale-ok"], table, "cairn table").ok();
    assert_eq!(ran, "default: 0 16368 bcache wb_stop.backing - 1 stale_ok\n");
    assert!(place.read("wb_stop.backing") == before);
}

#[test]
fn without_its_cache_a_clean_volume_is_read_whole() {
    let place = stopped();
    let table = "0 N bcache wb_stop.backing wb_stop.cache 0";
    place.cairn(&["flush", "--table", table]).ok();
    std::fs::remove_file(place.path("wb_stop.cache")).unwrap();
    let sum = served(&place, &["--without-cache"], table, SUM).ok();
    assert_eq!(sum.trim(), sum_of("wb_stop.cache"));
}

#[test]
fn without_cache_is_for_servers_that_only_read_tables_of_bcache() {
    let place = stopped();
    let table = "0 N bcache wb_stop.backing wb_stop.cache 0";
    let serve = ["serve", "--without-cache", "--run", "true", "--table"];
    let line = place.cairn(&[&serve[..], &[table]].concat()).refused(1);
    let expected = "--without-cache: found a server that writes, expected --read-only";
    assert!(line.contains(expected), "{line}");
    let linear = "0 8 linear wb_stop.backing 0";
    let line = place.cairn(&[&serve[..], &[linear, "--read-only"]].concat()).refused(1);
    assert!(line.contains("--without-cache: found no line of bcache, expected one"), "{line}");
    let ran = place.cairn(&["serve", "--read-only", "--stale-ok", "--table", table]);
    assert!(ran.code != 0 && ran.err.contains("--without-cache"), "{ran:?}");
    // Flash-only volumes are in the cache alone.
    let flash = "0 8 bcache - wb_stop.cache 2 flash 00000000000000000000000000000001";
    let line = place.cairn(&[&serve[..], &[flash, "--read-only"]].concat()).refused(1);
    assert!(line.contains("backing: found '-' with cache '-', expected a device"), "{line}");
}

/// The parts of a map as JSON: offset, length and type. They follow each other from 0 to the end.
fn parts_of(map: &str) -> Vec<(u64, u64, u64)> {
    let map = json(map);
    let number = |part: &Value, name: &str| part[name].as_u64().unwrap();
    let parts: Vec<_> = map.as_array().unwrap().iter().collect();
    let mut at = 0;
    for part in &parts {
        assert_eq!(number(part, "offset"), at, "{map}");
        at += number(part, "length");
        let words = ["sound", "lost", "suspect"];
        assert_eq!(part["description"], words[number(part, "type") as usize], "{map}");
    }
    assert_eq!(at, BYTES, "{map}");
    parts
        .iter()
        .map(|part| ["offset", "length", "type"].map(|name| number(part, name)).into())
        .collect()
}

#[test]
fn lost_ranges_are_listed_as_the_map_of_an_nbd_export() {
    let place = stopped();
    let check = ["check", "wb_stop.cache", "--backing", "wb_stop.backing", "--list-lost=nbd"];
    let with_json = [&check[..], &["--json"]].concat();
    let map = place.cairn(&check).ok();
    assert_eq!(map, format!("{:>10}  {BYTES:>10}    0  sound\n", 0));
    assert_eq!(parts_of(&place.cairn(&with_json).ok()), [(0, BYTES, 0)]);
    // The bytes of one dirty extent cannot be read: 2m-2060k of the volume, 4 KiB of it.
    let dump = json(&place.cairn(&["dump", "wb_stop.cache", "--json"]).ok());
    let extents = dump["extents"].as_array().unwrap();
    let number = |extent: &Value, name: &str| extent[name].as_u64().unwrap();
    let dirty = extents.iter().filter(|extent| extent["dirty"] == true);
    let last = dirty.max_by_key(|extent| number(extent, "cache_sector")).unwrap();
    let kept = number(last, "cache_sector") + number(last, "sectors") - 8;
    let whole = place.read("wb_stop.cache");
    place.write("wb_stop.cache", &whole[..kept as usize * 512]);
    let at = (number(last, "sector") + number(last, "sectors") - 8 - 16) * 512;
    let ran = place.cairn(&with_json);
    assert_eq!(ran.code, 2, "{ran:?}");
    let rest = (at + 4096, BYTES - at - 4096, 0);
    assert_eq!(parts_of(&ran.out), [(0, at, 0), (at, 4096, 1), rest]);
    let text = place.cairn(&check).out;
    assert_eq!(text.lines().nth(1), Some(&*format!("{at:>10}        4096    1  lost")));
    // Without any entry of the journal all is suspect.
    let mut empty = whole.clone();
    empty[64 << 10..576 << 10].fill(0);
    place.write("wb_stop.cache", &empty);
    assert_eq!(parts_of(&place.cairn(&with_json).out), [(0, BYTES, 2)]);
    // So it is where the cache is gone.
    let alone = ["check", "wb_stop.backing", "--list-lost=nbd", "--json"];
    let ran = place.cairn(&alone);
    assert_eq!((ran.code, parts_of(&ran.out)), (5, vec![(0, BYTES, 2)]));
}

#[test]
fn a_map_of_what_is_lost_is_that_of_one_volume_of_known_size() {
    let place = stopped();
    let line = place.cairn(&["check", "wb_stop.cache", "--list-lost=nbd"]).refused(1);
    let part = "--list-lost=nbd: found 0 volumes of known size, expected one: give its backing";
    assert!(line.contains(part), "{line}");
    let two = ["check", "wb_stop.backing", "wb_stop.backing", "--list-lost=nbd"];
    let line = place.cairn(&two).refused(1);
    assert!(line.contains("--list-lost=nbd: found 2 devices, expected one"), "{line}");
    place.golden("snapshot", "basic-a.cow");
    let line = place.cairn(&["check", "--list-lost=nbd", "basic-a.cow"]).refused(1);
    assert!(line.contains("--list-lost: found no bcache device"), "{line}");
}

#[test]
fn two_volumes_of_a_set_are_read_at_once() {
    let place = Place::new();
    for (name, bytes) in [("fast", 64 << 20), ("slow", 16 << 20), ("slower", 8 << 20)] {
        place.sparse(name, bytes);
    }
    let format = "format bcache --cache fast --backing slow --backing slower";
    place.cairn(&format.split(' ').collect::<Vec<_>>()).ok();
    let tables = ["a=0 N bcache slow fast 0", "b=0 N bcache slower fast 0"];
    let content = |name: &str, byte: u8| {
        let before = place.read(name);
        let bytes = vec![byte; before.len() - 8192];
        place.patch(name, 8192, &bytes);
        bytes
    };
    let contents = [content("slow", b's'), content("slower", b'r')];
    let both = ["serve", "--table", tables[0], "--table", tables[1], "--run"];
    let ran = place.cairn(&[&both[..], &["cairn table", "--read-only"]].concat()).ok();
    assert_eq!(ran, "a: 0 32752 bcache slow fast 0\nb: 0 16368 bcache slower fast 0\n");
    let copy = "nbdcopy \"nbd+unix:///a?socket=$unixsocket\" a.img && \
                nbdcopy \"nbd+unix:///b?socket=$unixsocket\" b.img";
    place.cairn(&[&both[..], &[copy, "--read-only"]].concat()).ok();
    assert!([place.read("a.img"), place.read("b.img")] == contents);
}

#[test]
fn two_volumes_of_a_set_are_written_at_once_and_one_goes_on_when_the_other_is_detached() {
    let place = Place::new();
    for (name, bytes) in [("fast", 64 << 20), ("slow", 16 << 20), ("slower", 8 << 20)] {
        place.sparse(name, bytes);
    }
    let format =
        "format bcache --cache fast --backing slow --backing slower --cache-mode writeback";
    place.cairn(&format.split(' ').collect::<Vec<_>>()).ok();
    let run = "set -e
        of() { echo \"nbd+unix:///$1?socket=$unixsocket\"; }
        head -c 1M /dev/zero | tr '\\0' a > a.raw
        head -c 1M /dev/zero | tr '\\0' b > b.raw
        nbdcopy a.raw $(of a) & nbdcopy b.raw $(of b); wait $!
        cairn cache detach a
        cairn table
        nbdcopy b.raw $(of b)
        cairn cache list --json | grep -c dirty";
    let serve = ["serve", "--state", "state", "--table", "a=0 N bcache slow fast 0", "--table"];
    let args = [&serve[..], &["b=0 N bcache slower fast 0", "--run", run]].concat();
    let ran = place.cairn(&args).ok();
    assert!(ran.contains("a: 0 32752 linear slow 16\nb: 0 16368 bcache slower fast 0"), "{ran}");
    assert!(place.read("slow")[8192..][..1 << 20].iter().all(|byte| *byte == b'a'));
    assert_eq!(place.read("slow")[8192 + (1 << 20)], 0);
    place.cairn(&["flush", "--table", "0 N bcache slower fast 0"]).ok();
    assert!(place.read("slower")[8192..][..1 << 20].iter().all(|byte| *byte == b'b'));
    place.cairn(&["check", "fast", "--backing", "slower"]).ok();
}
