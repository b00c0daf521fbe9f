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
