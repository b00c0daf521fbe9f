//! The devices of volumes that are not served: nobody else writes to them until they are served
//! again or forgotten.

use super::place::{Place, Ran};
use super::state::beside;

const MIB: u64 = 1 << 20;

/// A script against a server with these tables, and with `b`, so that something is served.
fn with(place: &Place, tables: &[&str], script: &str) -> (Ran, Ran) {
    let mut args = vec!["--table", "b=0 8 zero"];
    tables.iter().for_each(|table| args.extend(["--table", table]));
    beside(place, &args, script)
}

/// A volume `disk` on the file `slow`, with the snapshot `disk@s`.
fn snapshotted() -> Place {
    let place = Place::new();
    place.write("slow", [7; 16384]);
    with(&place, &["disk=0 16 linear slow 0"], "cairn snap create disk@s").0.ok();
    place
}

#[test]
fn a_volume_under_another_name_does_not_write_to_the_origin_of_snapshots() {
    let place = snapshotted();
    let script = "cairn ls; cairn create x --table '0 8 linear slow 8'; echo $?; \
                  cairn create y --table '0 8 linear slow 16'; echo $?";
    let (ran, server) = with(&place, &["disk2=0 16 linear slow 0"], script);
    assert_eq!(ran.out, "b\n4\n0\n", "{ran:?}");
    let line = "x: slow: kept for 'disk', which is not served (cairn state show tells why; \
                cairn state forget disk gives it up)\n";
    assert!(ran.err.ends_with(line), "{ran:?}");
    assert!(server.err.contains("disk2 is not served: disk2: slow: kept for 'disk'"), "{server:?}");
    let (ran, _) = with(&place, &["disk=0 16 linear slow 0"], "cairn snap list");
    assert!(ran.ok().contains("disk@s  valid"));
}

#[test]
fn an_origin_whose_store_is_missing_is_kept_until_it_is_forgotten() {
    let place = snapshotted();
    std::fs::remove_file(place.path("disk@s.cow")).unwrap();
    std::fs::hard_link(place.path("slow"), place.path("alias")).unwrap();
    let create = "cairn create other --table '0 16 linear alias 0'; echo $?";
    let script = format!("{create}; cairn state forget disk --yes > forgotten; {create}");
    let (ran, _) = with(&place, &["disk=0 16 linear slow 0"], &script);
    assert_eq!(ran.out, "4\n0\n", "{ran:?}");
    assert!(ran.err.contains("other: alias: kept for 'disk'"), "{ran:?}");
}

#[test]
fn the_data_of_a_pool_without_its_metadata_is_kept() {
    let place = Place::new();
    ["meta", "data"].iter().for_each(|name| place.sparse(name, 8 * MIB));
    let pool = ["p=0 16384 thin-pool meta data 128 0"];
    with(&place, &pool, "cairn thin create p/t 1M").0.ok();
    std::fs::rename(place.path("meta"), place.path("away")).unwrap();
    let create = "cairn create o --table '0 8 linear data 0'; echo $?";
    let script = format!("{create}; cairn ls");
    let (ran, _) = with(&place, &pool, &script);
    assert_eq!(ran.out, "4\nb\n", "{ran:?}");
    // Nothing is recorded of the pool itself.
    let script = format!("cairn state forget t > forgotten; cairn state forget p; {create}");
    let (ran, _) = with(&place, &pool, &script);
    assert_eq!(ran.out, "p: nothing is recorded; its devices are free for now\n0\n", "{ran:?}");
}

#[test]
fn the_origin_of_a_cache_that_is_missing_is_kept() {
    let place = Place::new();
    ["slow", "fast"].iter().for_each(|name| place.sparse(name, 4 * MIB));
    let cache = "disk=0 8192 writecache s slow fast 4096 0";
    with(&place, &[cache], "true").0.ok();
    std::fs::rename(place.path("fast"), place.path("away")).unwrap();
    let (ran, server) = with(&place, &[cache, "two=0 8 linear slow 0"], "cairn ls");
    assert_eq!(ran.ok(), "b\n");
    assert!(server.err.contains("two is not served: two: slow: kept for 'disk'"), "{server:?}");
    // Looking is no harm.
    let tables = [cache, "two=0 8 linear slow 0"];
    let args: Vec<&str> = tables.iter().flat_map(|table| ["--table", table]).collect();
    let ran = beside(&place, &[&args[..], &["--read-only"]].concat(), "cairn ls").0;
    assert_eq!(ran.ok(), "two\n");
}

#[test]
fn a_plain_volume_that_is_not_served_keeps_nothing() {
    let place = Place::new();
    place.sparse("disk", MIB);
    let tables = ["one=0 8 linear disk 0\n8 8 linear missing 0", "two=0 8 linear disk 8"];
    let script = "cairn ls; cairn create three --table '0 8 linear disk 0'; echo $?";
    let (ran, server) = with(&place, &tables, script);
    assert_eq!(ran.out, "b\ntwo\n0\n", "{ran:?}");
    assert!(server.err.contains("one is not served"), "{server:?}");
}

#[test]
fn a_volume_beneath_a_cache_that_is_missing_is_neither_written_nor_exported() {
    let place = Place::new();
    ["slow", "fast"].iter().for_each(|name| place.sparse(name, 4 * MIB));
    let tables = ["origin=0 8192 linear slow 0", "disk=0 8192 writecache s @origin fast 4096 0"];
    with(&place, &tables, "true").0.ok();
    std::fs::rename(place.path("fast"), place.path("away")).unwrap();
    let create = "cairn create x --table '0 8 linear @origin 0'; echo $?";
    let exports = "cairn exports | awk 'NR > 1 { print $1 }'";
    let script = format!(
        "{exports}; cairn export add origin; echo $?; {create}; \
         cairn state forget disk >forgotten; {exports}; {create}"
    );
    let (ran, server) = with(&place, &tables, &script);
    assert_eq!(ran.out, "b\n4\n4\nb\norigin\n0\n", "{ran:?}");
    assert!(ran.err.contains("x: @origin: kept for 'disk', which is not served"), "{ran:?}");
    let line = "origin: not exported: kept for 'disk', which is not served";
    assert!(server.err.contains(line), "{server:?}");
}

#[test]
fn a_volume_before_a_cache_or_pool_does_not_take_its_devices() {
    let place = Place::new();
    let files = ["slow", "fast", "meta", "data"];
    files.iter().for_each(|name| place.sparse(name, 8 * MIB));
    let tables = [
        "one=0 8 linear slow 0",
        "two=0 8 linear data 8192",
        "three=0 8 linear data 16376",
        "disk=0 8192 writecache s slow fast 4096 0",
        "pool=0 16256 thin-pool meta data 128 0",
    ];
    let (ran, server) = with(&place, &tables, "cairn ls");
    assert_eq!(ran.ok(), "b\ndisk\npool\nthree\n");
    for line in ["one: slow: kept for 'disk', which needs", "two: data: kept for 'pool', which"] {
        assert!(server.err.contains(line), "{server:?}");
    }
    // Whether or not it can be brought up.
    std::fs::rename(place.path("fast"), place.path("away")).unwrap();
    assert_eq!(with(&place, &tables, "cairn ls").0.ok(), "b\npool\nthree\n");
}
