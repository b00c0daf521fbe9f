//! probe, check, dump and format on bcache devices that a real kernel or cairn itself made.

use cairn_format::bcache::{BackingState, Superblock};

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
fn what_a_damaged_cache_took_with_it_is_listed_by_volume() {
    let place = Place::new();
    for name in ["wb_stop.cache", "wb_stop.backing", "wb_kill.backing", "detached.backing"] {
        place.golden("bcache", name);
    }
    let check = ["check", "wb_stop.cache", "--list-lost", "--backing", "wb_stop.backing"];
    let ran = place.cairn(&check).ok();
    assert!(ran.ends_with("wb_stop.cache: nothing is lost\n"), "{ran}");
    let dump = json(&place.cairn(&["dump", "wb_stop.cache", "--json"]).ok());
    let uuid = dump["volumes"][0]["uuid"].as_str().unwrap().to_owned();
    // The device ends within the data of the last extent of the cache.
    let extents = dump["extents"].as_array().unwrap();
    let number = |extent: &serde_json::Value, name: &str| extent[name].as_u64().unwrap();
    let dirty = extents.iter().filter(|extent| extent["dirty"] == true);
    let last = dirty.max_by_key(|extent| number(extent, "cache_sector")).unwrap();
    let whole = place.read("wb_stop.cache");
    let kept = number(last, "cache_sector") + number(last, "sectors") - 8;
    place.write("wb_stop.cache", &whole[..kept as usize * 512]);
    let (offset, length) = (number(last, "sector") + number(last, "sectors") - 8, 4096);
    let ran = place.cairn(&check);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.out.contains("found 8 dirty sectors that cannot be read"), "{ran:?}");
    let lost = format!("{length} bytes at {}", (offset - 16) * 512);
    assert!(ran.out.contains(&format!("volume {uuid}: lost: {lost}\n")), "{ran:?}");
    let alone = place.cairn(&check[..3]);
    let lost = format!("{length} bytes at {} of its backing device", offset * 512);
    assert!(alone.out.contains(&format!("volume {uuid}: lost: {lost}\n")), "{alone:?}");
    let listed = json(&place.cairn(&[&check[..], &["--json"]].concat()).out);
    let range =
        format!("{{\"state\":\"lost\",\"offset\":{},\"length\":{length}}}", (offset - 16) * 512);
    assert_eq!(listed[0]["lost"][0]["ranges"], json(&format!("[{range}]")));
    assert_eq!(listed[0]["lost"][0]["offsets_of"], "volume");
    assert_eq!(listed[0]["lost"][0]["bytes"], 8_380_416);
    // Without any entry of the journal all is suspect, unless the device is clean.
    let mut empty = whole.clone();
    empty[64 << 10..576 << 10].fill(0);
    place.write("wb_stop.cache", &empty);
    let ran = place.cairn(&check);
    assert!(ran.out.contains(&format!("volume {uuid}: suspect: 8380416 bytes at 0\n")), "{ran:?}");
    // The cache is gone.
    let ran = place.cairn(&["check", "--list-lost", "--backing", "wb_kill.backing"]);
    assert_eq!(ran.code, 5, "{ran:?}");
    assert!(ran.out.contains(": suspect: 8380416 bytes at 0\n"), "{ran:?}");
    let ran = place.cairn(&["check", "--list-lost", "--backing", "detached.backing"]).ok();
    assert!(ran.ends_with("detached.backing: nothing is lost\n"), "{ran}");
    place.golden("snapshot", "basic-a.cow");
    let line = place.cairn(&["check", "--list-lost", "basic-a.cow"]).refused(1);
    assert!(line.contains("--list-lost: found no bcache device"), "{line}");
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
    assert!(place.cairn(&["dump", "flash.cache"]).ok().contains("', flash\n"));
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
    // It takes the UUID of the set, and says what is lost.
    let report = json(&place.cairn(&["dump", "wb_stop.cache", "--json"]).ok());
    let set = report["superblock"]["set_uuid"].as_str().unwrap().to_owned();
    let volume = report["volumes"][0]["uuid"].as_str().unwrap().to_owned();
    let format = ["format", "snapshot", "wb_stop.cache", "--yes"];
    let line = place.cairn(&[&format[..], &["--discard-dirty"]].concat()).refused(4);
    let expected = format!(
        "wb_stop.cache: content: found a cache with 680 sectors that its backing devices do not \
         have (680 sectors of volume {volume}), expected a clean one (cairn flush), or --yes \
         --discard-dirty={set}, the set's UUID, to lose them\n"
    );
    assert_eq!(line, format!("cairn: {expected}"));
    let other = format!("--discard-dirty={volume}");
    let line = place.cairn(&[&format[..], &[&other]].concat()).refused(1);
    assert!(line.contains(&format!("--discard-dirty: found {volume}, expected {set}")), "{line}");
    let line = place.cairn(&[&format[..], &["--discard-dirty=12"]].concat());
    assert!(line.code != 0 && place.read("wb_stop.cache") == before, "{line:?}");
    let given = format!("--discard-dirty={set}");
    let ran = place.cairn(&[&format[..], &[&given]].concat());
    let said = "wb_stop.cache: gives up a cache with 680 sectors that its backing devices";
    assert!(ran.code == 0 && ran.err.contains(said), "{ran:?}");
    assert!(ran.err.contains(&format!("(680 sectors of volume {volume})")), "{ran:?}");
}

#[test]
fn a_cache_with_a_damaged_superblock_is_formatted_only_if_its_data_is_given_up() {
    let place = Place::new();
    place.golden("bcache", "wb_stop.cache");
    place.patch("wb_stop.cache", 4096 + 110, &[1]);
    let line = place.cairn(&["format", "snapshot", "wb_stop.cache", "--yes"]).refused(4);
    assert!(line.contains("found a damaged bcache device (superblock checksum: found "), "{line}");
    place.cairn(&["format", "snapshot", "wb_stop.cache", "--yes", "--discard-dirty"]).ok();
}

/// Sets the state of a backing device in its superblock.
fn set_state(place: &Place, backing: &str, state: BackingState) {
    let superblock = Superblock::decode(&place.read(backing)[4096..8192]);
    let Ok(Superblock::Backing(mut superblock)) = superblock else { panic!("{superblock:?}") };
    superblock.set_state(state);
    place.patch(backing, 4096, &superblock.encode());
}

#[test]
fn check_of_dirty_keys_exits_with_5_if_the_state_is_clean_and_3_if_it_is_none() {
    let place = Place::new();
    place.golden("bcache", "wb_stop.cache");
    place.golden("bcache", "wb_stop.backing");
    for (state, code, part) in [
        (BackingState::Dirty, 0, "sound"),
        (BackingState::Clean, 5, "state: found clean, and 680 dirty sectors of it in the cache"),
        (BackingState::None, 3, "state: found none, expected dirty (the cache has 680 sectors"),
        (BackingState::Stale, 2, "state: found inconsistent (it was used without its cache"),
    ] {
        set_state(&place, "wb_stop.backing", state);
        let ran = place.cairn(&["check", "wb_stop.cache", "--backing", "wb_stop.backing"]);
        assert!(ran.code == code && ran.out.contains(part), "{state:?}: {ran:?}");
    }
}

#[test]
fn no_format_overwrites_dirty_data_of_a_set_that_is_not_given_up_by_name() {
    let cases = [
        ("wb_stop.cache", None, "found a cache with 680 sectors that its backing devices do not"),
        ("wb_stop.backing", None, " whose cache has sectors that it does not have, expected"),
        (
            "wb_stop.backing",
            Some(BackingState::Stale),
            "that was used without its cache, which has sectors",
        ),
    ];
    for (device, state, part) in cases {
        for kind in ["writecache", "snapshot", "thin-pool", "pool-data", "bcache"] {
            let place = Place::new();
            place.golden("bcache", device);
            if let Some(state) = state {
                set_state(&place, device, state);
            }
            let dump = json(&place.cairn(&["dump", device, "--json"]).ok());
            let set = dump["superblock"]["set_uuid"].as_str().unwrap().to_owned();
            let mut format = vec!["format", kind, device, "--yes"];
            if kind == "bcache" {
                format.insert(2, "--backing");
            }
            let before = place.read(device);
            let run = |more: &[&str]| place.cairn(&[&format[..], more].concat());
            for refused in [run(&[]), run(&["--discard-dirty"])] {
                let line = refused.refused(4);
                assert!(line.contains(part), "{kind}: {line}");
                assert!(line.contains(&format!("--yes --discard-dirty={set}")), "{kind}: {line}");
            }
            let line = run(&["--discard-dirty=99999999-2222-3333-4444-555555555556"]).refused(1);
            assert!(line.contains(&format!("expected {set}, the set")), "{kind}: {line}");
            assert!(place.read(device) == before, "{kind}");
            let ran = run(&[&*format!("--discard-dirty={set}")]);
            assert_eq!(ran.code, 0, "{kind}: {ran:?}");
            assert!(ran.err.starts_with(&format!("cairn: {device}: gives up a ")), "{ran:?}");
        }
    }
}

#[test]
fn probe_calls_a_backing_device_without_room_for_data_damaged() {
    let place = Place::new();
    place.golden("bcache", "wb_stop.backing");
    let whole = place.read("wb_stop.backing");
    place.write("wb_stop.backing", &whole[..8192]);
    let ran = place.cairn(&["probe", "wb_stop.backing"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    let expected =
        "wb_stop.backing: device size: found 16 sectors, expected at least 17; damaged\n";
    assert!(ran.out.ends_with(expected), "{ran:?}");
    assert_eq!(place.cairn(&["check", "wb_stop.backing"]).code, 2);
}

#[test]
fn a_set_is_formatted_whole_and_sound() {
    let place = Place::new();
    place.sparse("fast", 64 << 20);
    place.sparse("slow", 16 << 20);
    place.sparse("slower", 8 << 20);
    let format = "format bcache --cache fast --backing slow --backing slower \
                  --cache-mode writeback --data-offset 64 --label disk --replacement fifo \
                  --discard --block-size 4096";
    let format: Vec<&str> = format.split(' ').filter(|word| !word.is_empty()).collect();
    let said = place.cairn(&format).ok();
    assert!(said.starts_with("fast: 1024 buckets of 64 KiB, set "), "{said}");
    assert!(said.contains("slow: 32704 sectors from sector 64 on, set "), "{said}");
    let check = ["check", "fast", "--backing", "slow", "--backing", "slower", "--json"];
    let report = &json(&place.cairn(&check).ok())[0];
    assert_eq!(report["findings"], json("[]"));
    assert_eq!(report["volumes"][0]["label"], "disk");
    assert_eq!(report["volumes"][1]["state"], "attached");
    assert_eq!(report["superblock"]["replacement"], "fifo");
    assert_eq!(report["superblock"]["discard"], true);
    assert_eq!(report["superblock"]["block_sectors"], 8);
    let slow = json(&place.cairn(&["dump", "slow", "--json"]).ok());
    assert_eq!(slow["superblock"]["set_uuid"], report["superblock"]["set_uuid"]);
    assert_eq!(slow["superblock"]["state"], "clean");
    assert_eq!(slow["superblock"]["mode"], "writeback");
    // A second time, each of the devices is in the way.
    let before = place.read("slow");
    let line = place.cairn(&format).refused(1);
    assert!(line.contains("fast: not blank: found bcache-cache at byte 4096; to lose"), "{line}");
    let words = "cairn format bcache --cache fast --backing slow --backing slower \
                 --block-size 4096 --data-offset 64 --cache-mode writeback \
                 --replacement fifo --label 'disk' --discard --yes";
    assert!(line.contains(words), "{line}");
    assert!(place.read("slow") == before);
    place.cairn(&[&format[..], &["--yes"]].concat()).ok();
    let again = json(&place.cairn(&["dump", "slow", "--json"]).ok());
    assert_ne!(again["superblock"]["uuid"], slow["superblock"]["uuid"]);
}

#[test]
fn one_device_in_the_way_keeps_all_of_a_set_as_they_are() {
    let place = Place::new();
    place.sparse("fast", 16 << 20);
    place.write("slow", "precious".repeat(1 << 16));
    let before = place.read("fast");
    let line = place.cairn(&["format", "bcache", "--cache", "fast", "--backing", "slow"]);
    let line = line.refused(1);
    assert!(line.contains("slow: not blank: found data"), "{line}");
    assert!(place.read("fast") == before);
    // A cache with dirty data is lost only if it is given up.
    place.golden("bcache", "wb_stop.cache");
    place.cairn(&["format", "bcache", "--cache", "wb_stop.cache", "--yes"]).refused(4);
    let dump = json(&place.cairn(&["dump", "wb_stop.cache", "--json"]).ok());
    let given = format!("--discard-dirty={}", dump["superblock"]["set_uuid"].as_str().unwrap());
    place.cairn(&["format", "bcache", "--cache", "wb_stop.cache", "--yes", &given]).ok();
}

#[test]
fn devices_and_sizes_that_make_no_set_are_refused() {
    let place = Place::new();
    place.sparse("fast", 16 << 20);
    place.sparse("slow", 16 << 20);
    place.sparse("tiny", 8192);
    for (words, expected) in [
        ("--cache tiny", "tiny: size: found 2 buckets of 4096 bytes, expected at least 513"),
        (
            "--cache fast --bucket-size 24K",
            "fast: superblock bucket_size: found 48, expected a power",
        ),
        ("--cache fast --bucket-size 64K", "fast: size: found 256 buckets of 65536 bytes"),
        (
            "--cache fast --bucket-size 2K",
            "fast: superblock bucket_size: found 4, expected a power",
        ),
        ("--cache fast --block-size 8192", "--block-size: found 8192, expected 512, 1024"),
        ("--backing tiny", "tiny: device size: found 16 sectors, expected at least 17"),
        ("--backing slow --data-offset 8", "slow: superblock data_offset: found 8, expected 16"),
        (
            "--backing slow --data-offset 17 --block-size 1024",
            "--data-offset: found 17, expected a",
        ),
        ("--backing slow --label a --label b", "--label: found 'b', expected one for each"),
        ("--cache fast --backing fast", "fast: "),
    ] {
        let words: Vec<&str> = ["format", "bcache"].into_iter().chain(words.split(' ')).collect();
        let ran = place.cairn(&words);
        assert!(ran.code == 1 || ran.code == 4, "{ran:?}");
        assert!(ran.err.contains(expected), "{ran:?}");
    }
    assert_ne!(place.cairn(&["format", "bcache"]).code, 0);
    let said = place.cairn(&["format", "bcache", "--backing", "slow"]).ok();
    assert_eq!(said, "slow: 32752 sectors from sector 16 on, no set\n");
    assert_eq!(place.cairn(&["check", "slow"]).ok(), "slow: sound: state no cache\n");
}
