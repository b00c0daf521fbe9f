//! What is lost when a cache with dirty data is gone: a server with a state file keeps a map of
//! dirty zones, and a forced run and `check --list-lost` name the ranges.

use std::os::unix::process::ExitStatusExt;

use super::place::{Place, json};

const ZONE: u64 = 64 << 20;
/// Bytes of the backing device; its data begins at 8 KiB.
const BYTES: u64 = 4 * ZONE;
const FIRST: u64 = 8192;
const TABLE: &str = "vm=0 N bcache slow fast 0";
const MAP: &str = "vm.state.zones-vm";

/// A fresh set, and a TOML-less server with a state file that runs a script.
fn fresh() -> Place {
    let place = Place::new();
    place.sparse("fast", 64 << 20);
    place.sparse("slow", BYTES);
    place
        .cairn(&[
            "format",
            "bcache",
            "--cache",
            "fast",
            "--backing",
            "slow",
            "--cache-mode",
            "writeback",
        ])
        .ok();
    place
}

fn serve(place: &Place, table: &str, options: &[&str], script: &str) -> super::place::Ran {
    let serve = ["--table", table, "--state", "vm.state"];
    place.serve_run(&[&serve[..], options].concat(), script)
}

/// Writes at these bytes of the volume, flushes, and kills the server.
fn write_and_kill(place: &Place, places: &[u64]) {
    let writes: String = places.iter().map(|at| format!("-c 'write -P 7 {at} 4k' ")).collect();
    let write = format!("qemu-io -f raw {writes} -c flush \"$uri\"");
    let script = format!("{write} >/dev/null && kill -9 $PPID");
    let serve = ["serve", "--table", TABLE, "--state", "vm.state", "--run", &script];
    let status = place.command(&serve).output().unwrap().status;
    assert_eq!(status.signal(), Some(9), "it was killed");
}

/// The ranges that `check --list-lost` lists of the backing device: offset and length.
fn listed(place: &Place, options: &[&str]) -> Vec<(u64, u64)> {
    let check = ["check", "slow", "--list-lost", "--json"];
    let ran = place.cairn(&[&check[..], options].concat());
    let volume = &json(&ran.out)[0]["lost"][0];
    let ranges = volume["ranges"].as_array().unwrap_or_else(|| panic!("{ran:?}")).iter();
    ranges.map(|it| (it["offset"].as_u64().unwrap(), it["length"].as_u64().unwrap())).collect()
}

fn set_of(place: &Place) -> String {
    let dump = json(&place.cairn(&["dump", "slow", "--json"]).ok());
    dump["superblock"]["set_uuid"].as_str().unwrap().to_owned()
}

#[test]
fn forced_run_and_check_name_the_zones_that_were_dirty_when_the_cache_is_gone() {
    let place = fresh();
    write_and_kill(&place, &[0, 2 * ZONE]);
    std::fs::remove_file(place.path("fast")).unwrap();
    assert_eq!(listed(&place, &[]), [(0, BYTES - FIRST)], "without the map");
    let expected = [(0, ZONE - FIRST), (2 * ZONE - FIRST, ZONE)];
    assert_eq!(listed(&place, &["--zones", MAP]), expected);
    let map = ["check", "slow", "--list-lost=nbd", "--zones", MAP];
    let map = place.cairn(&map).out;
    let kinds: Vec<&str> = map.lines().filter_map(|line| line.split(' ').next_back()).collect();
    assert_eq!(kinds, ["suspect", "sound", "suspect", "sound"]);
    let table = format!("vm=0 N bcache slow - 2 force {}", set_of(&place));
    let ran = serve(&place, &table, &[], "true");
    assert_eq!(ran.code, 0, "{ran:?}");
    for (at, bytes) in expected {
        let line = format!("vm: slow: suspect: {bytes} bytes at {at}\n");
        assert!(ran.err.contains(&line), "{line}: {}", ran.err);
    }
    assert!(ran.err.matches("suspect:").count() == 2, "{}", ran.err);
    // The list stays.
    assert_eq!(listed(&place, &["--zones", MAP]), expected);
}

/// Takes the cache away, and answers what the forced run logs.
fn force_without_cache(place: &Place, name: &str) -> String {
    std::fs::rename(place.path("fast"), place.path("gone")).unwrap();
    let table = format!("{name}=0 N bcache slow - 2 force {}", set_of(place));
    let ran = serve(place, &table, &[], "true");
    assert_eq!(ran.code, 0, "{ran:?}");
    ran.err
}

const ANYWHERE: &str = "the lost data may be anywhere in the volume";

#[test]
fn map_counts_for_a_volume_of_another_name() {
    let place = fresh();
    write_and_kill(&place, &[ZONE]);
    let log = force_without_cache(&place, "renamed");
    let line = format!("renamed: slow: suspect: {ZONE} bytes at {}\n", ZONE - FIRST);
    assert!(log.contains(&line) && !log.contains(ANYWHERE), "{log}");
}

#[test]
fn map_does_not_count_once_a_server_without_it_has_used_the_set() {
    let place = fresh();
    write_and_kill(&place, &[ZONE]);
    let write = "qemu-io -f raw -c 'write -P 7 128M 4k' -c flush \"$uri\" >/dev/null";
    let table = "0 N bcache slow fast 0";
    place.cairn(&["serve", "--table", table, "--run", write]).ok();
    std::fs::copy(place.path("slow"), place.path("copy")).unwrap();
    let log = force_without_cache(&place, "vm");
    assert!(log.contains(ANYWHERE) && !log.contains("suspect:"), "{log}");
    let line = place.cairn(&["check", "copy", "--list-lost", "--zones", MAP]).refused(1);
    assert!(line.contains("cache_seq: found") && line.contains("all may be lost"), "{line}");
}

#[test]
fn volume_that_is_stopped_names_what_is_dirty_then_and_a_clean_one_nothing() {
    let place = fresh();
    let write = "qemu-io -f raw -c 'write -P 7 0 4k' -c 'write -P 7 64M 4k' \
                 -c 'discard 0 4k' \"$uri\" >/dev/null";
    assert_eq!(serve(&place, TABLE, &[], write).code, 0);
    assert_eq!(listed(&place, &["--zones", MAP]), [(ZONE - FIRST, ZONE)]);
    place.cairn(&["flush", "--table", &TABLE[3..]]).ok();
    assert_eq!(listed(&place, &["--zones", MAP]), []);
}

#[test]
fn detach_by_a_swap_removes_the_map() {
    let place = fresh();
    let script = "qemu-io -f raw -c 'write -P 7 0 4k' -c flush \"$uri\" >/dev/null \
                  && test -e vm.state.zones-vm && cairn cache detach vm 2>/dev/null >/dev/null \
                  && for i in 1 2 3 4 5 6 7 8 9; do test -e vm.state.zones-vm || exit 0; \
                  sleep 0.1; done; exit 7";
    let ran = serve(&place, TABLE, &[], script);
    assert_eq!(ran.code, 0, "{ran:?}");
}

#[test]
fn zones_are_for_backing_devices_alone_and_a_file_without_a_map_is_refused() {
    let place = fresh();
    write_and_kill(&place, &[0]);
    let check = ["check", "fast", "--list-lost", "--zones", MAP];
    let line = place.cairn(&check).refused(1);
    assert!(line.contains("--zones: found another device"), "{line}");
    place.write("junk", vec![7; 8192]);
    let line = place.cairn(&["check", "slow", "--list-lost", "--zones", "junk"]).refused(2);
    assert!(line.contains("junk: zones: found no sound map"), "{line}");
}
