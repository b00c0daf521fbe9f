//! probe, check, dump and format on bcache devices that a real kernel or cairn itself made.

use super::place::{Place, json};

#[test]
fn probe_tells_dirty_sets_by_5_and_damaged_ones_by_2() {
    let place = Place::new();
    for name in ["wb_stop.cache", "wb_stop.backing", "made_v3.cache", "detached.backing"] {
        place.golden("bcache", name);
    }
    let ran = place.cairn(&["probe", "wb_stop.cache"]);
    assert_eq!(ran.code, 5, "{ran:?}");
    let expected = "wb_stop.cache: dirty: 680 sectors (340 KiB) are in the cache alone; sound\n";
    assert!(ran.out.contains("wb_stop.cache: bcache-cache at byte 4096"), "{ran:?}");
    assert!(ran.out.contains(expected), "{ran:?}");
    let ran = place.cairn(&["probe", "wb_stop.backing"]);
    assert_eq!(ran.code, 5, "{ran:?}");
    assert!(ran.out.contains("wb_stop.backing: dirty: its cache has data"), "{ran:?}");
    place.cairn(&["probe", "detached.backing"]).ok();
    let ran = place.cairn(&["probe", "--json", "wb_stop.cache", "wb_stop.backing"]);
    let found = json(&ran.out);
    assert_eq!(found[0]["bcache"]["dirty_sectors"], 680, "{ran:?}");
    let volume = &found[0]["bcache"]["volumes"][0];
    let backing = &found[1]["bcache"]["superblock"];
    assert_eq!(volume["uuid"], backing["uuid"]);
    assert_eq!(found[0]["bcache"]["superblock"]["set_uuid"], backing["set_uuid"]);
    assert_eq!((&backing["state"], &backing["mode"]), (&json("\"dirty\""), &json("\"writeback\"")));
    place.patch("wb_stop.cache", 4096 + 110, &[1]);
    let ran = place.cairn(&["probe", "wb_stop.cache"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.out.contains("wb_stop.cache: superblock checksum: found "), "{ran:?}");
}

#[test]
fn every_golden_set_is_sound_beside_its_backing_device() {
    let place = Place::new();
    for record in cairn_testkit::manifest("bcache") {
        let mut args = vec!["check"];
        if let Some(cache) = record["cache"].as_str() {
            place.golden("bcache", cache);
            args.push(cache);
        }
        if let Some(backing) = record["backing"].as_str() {
            place.golden("bcache", backing);
            args.extend(["--backing", backing]);
        }
        let ran = place.cairn(&args);
        // The journals of these two end with a part of an entry.
        let is_torn = args[1].starts_with("made_");
        assert_eq!(ran.code, if is_torn { 5 } else { 0 }, "{args:?}: {ran:?}");
        assert_eq!(ran.out.contains("(possibly a torn last entry)"), is_torn, "{ran:?}");
    }
    let ran = place.cairn(&["check", "wb_stop.cache"]).ok();
    let expected =
        "1024 buckets of 64 KiB, 7 with data, 12 with metadata, 17 extents, 340 KiB dirty";
    assert_eq!(ran, format!("wb_stop.cache: sound: {expected}\n"));
}

#[test]
fn check_names_what_does_not_belong_together_or_is_damaged() {
    let place = Place::new();
    for name in ["wb_stop.cache", "wb_stop.backing", "tree_kill.backing", "ring_kill.cache"] {
        place.golden("bcache", name);
    }
    let ran = place.cairn(&["check", "wb_stop.cache", "--backing", "tree_kill.backing"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.out.contains(": found it in set "), "{ran:?}");
    let ran = place.cairn(&["check", "--backing", "wb_stop.backing"]);
    assert_eq!(ran.code, 5, "{ran:?}");
    assert!(ran.out.contains("state: found dirty: the cache of set "), "{ran:?}");
    let line = place.cairn(&["check", "tree_kill.backing", "--backing", "wb_stop.backing"]);
    let line = line.refused(1);
    assert!(line.contains("tree_kill.backing: --backing: found no bcache cache"), "{line}");
    // The magic of the superblock is lost: what is meant is known by the option.
    place.patch("wb_stop.cache", 4096 + 24, &[0; 16]);
    let ran = place.cairn(&["check", "wb_stop.cache", "--backing", "wb_stop.backing"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.out.contains("wb_stop.cache: superblock magic: found 000"), "{ran:?}");
    let found = place.cairn(&["check", "ring_kill.cache", "--json"]).ok();
    let report = &json(&found)[0];
    assert_eq!((&report["format"], &report["severity"]), (&json("\"bcache\""), &json("\"sound\"")));
    assert_eq!(report["totals"]["dirty_sectors"], 1204, "{report}");
    assert_eq!(report["volumes"][0]["state"], "attached");
}

#[test]
fn dump_shows_superblock_journal_tree_volumes_and_priorities() {
    let place = Place::new();
    for name in ["tree_kill.cache", "tree_kill.backing", "flash.cache"] {
        place.golden("bcache", name);
    }
    let text = place.cairn(&["dump", "tree_kill.cache"]).ok();
    for part in ["\nbuckets 8192\n", "\njournal entries ", "\nvolume 0: ", ": level 1, up to "] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(text.lines().filter(|line| line.starts_with("extent ")).count(), 3086);
    assert!(!text.contains("\nbucket 0: generation "));
    let all = json(&place.cairn(&["dump", "tree_kill.cache", "--all", "--json"]).ok());
    assert_eq!(all["extents"].as_array().unwrap().len(), 3086);
    assert_eq!(all["buckets"].as_array().unwrap().len(), 8192);
    assert_eq!(all["priorities"].as_array().unwrap().len(), 2);
    assert_eq!(all["journal"]["entries"].as_array().unwrap().len(), 12);
    let backing = place.cairn(&["dump", "tree_kill.backing"]).ok();
    assert!(backing.contains("data_offset 64\n"), "{backing}");
    assert!(place.cairn(&["dump", "flash.cache"]).ok().contains(", flash-only, 8192 sectors\n"));
    place.patch("flash.cache", 4096 + 110, &[1]);
    place.cairn(&["dump", "flash.cache"]).refused(2);
}

#[test]
fn no_kind_is_formatted_over_a_dirty_cache_without_giving_its_data_up() {
    let place = Place::new();
    place.golden("bcache", "wb_stop.cache");
    let before = place.read("wb_stop.cache");
    for kind in ["writecache", "snapshot", "thin-pool", "pool-data"] {
        let line = place.cairn(&["format", kind, "wb_stop.cache", "--yes"]).refused(4);
        assert!(line.contains("680 sectors that its backing devices do not have"), "{line}");
        assert!(place.read("wb_stop.cache") == before, "{kind}");
    }
    place.cairn(&["format", "snapshot", "wb_stop.cache", "--yes", "--discard-dirty"]).ok();
}
