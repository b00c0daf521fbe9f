//! probe, check, dump, format and flush on images a real kernel or cairn itself made.

use super::place::{Place, json};

/// A cache with some blocks the origin does not have, made by serving.
fn dirty(place: &Place) {
    place.sparse("origin", 1 << 20);
    place.sparse("cache", 256 << 10);
    place.write("data", [7; 40960]);
    place.cairn(&["format", "writecache", "cache"]).ok();
    place.serve_run(&["--table", LINE], "nbdcopy --flush data \"$uri\"").ok();
}

const LINE: &str = "0 2048 writecache s origin cache 4096 0";

#[test]
fn probe_names_what_it_finds_and_tells_dirty_caches_by_5() {
    let place = Place::new();
    for name in ["4k.cache", "fresh.cache", "flushed.cache"] {
        place.golden("writecache", name);
    }
    place.sparse("blank", 4096);
    let ran = place.cairn(&["probe", "4k.cache"]);
    assert_eq!(ran.code, 5, "{ran:?}");
    assert!(ran.out.contains("4k.cache: dm-writecache at byte 0"), "{ran:?}");
    assert!(ran.out.contains("4k.cache: dirty: "), "{ran:?}");
    place.cairn(&["probe", "fresh.cache", "flushed.cache"]).ok();
    assert_eq!(place.cairn(&["probe", "blank"]).ok(), "blank: nothing that cairn recognises\n");
    let ran = place.cairn(&["probe", "--json", "blank", "4k.cache"]);
    assert_eq!(ran.code, 5);
    let found = json(&ran.out);
    assert_eq!(found[0]["signatures"], json("[]"));
    assert_eq!(found[1]["signatures"][0]["kind"], "dm-writecache");
    assert_eq!(found[1]["writecache"]["superblock"]["block_size"], 4096);
}

#[test]
fn check_tells_recovery_from_damage() {
    let place = Place::new();
    for name in ["4k.cache", "dups.cache", "dups-after.cache", "uncommitted.cache"] {
        place.golden("writecache", name);
    }
    // One entry of dups.cache is ahead of its superblock, which no ordering leaves behind.
    for (name, code) in
        [("4k.cache", 0), ("dups.cache", 2), ("dups-after.cache", 0), ("uncommitted.cache", 5)]
    {
        let before = place.read(name);
        let ran = place.cairn(&["check", name]);
        assert_eq!(ran.code, code, "{ran:?}");
        assert!(place.read(name) == before);
    }
    place.golden("writecache", "512-start9.cache");
    let ran = place.cairn(&["check", "512-start9.cache", "--start-sector", "9", "--json"]);
    let report = &json(&ran.out)[0];
    assert_eq!(report["superblock"]["block_size"], 512, "{ran:?}");
    assert_eq!(report["exit_code"], ran.code);
}

#[test]
fn check_refuses_what_is_plainly_something_else() {
    let place = Place::new();
    let mut ext4 = vec![0; 64 << 10];
    ext4[1024 + 56..1024 + 58].copy_from_slice(&[0x53, 0xef]);
    place.write("ext", ext4);
    let line = place.cairn(&["check", "ext"]).refused(63);
    assert!(line.contains("ext: ext"), "{line}");
}

#[test]
fn dump_shows_superblock_and_entries() {
    let place = Place::new();
    place.golden("writecache", "4k.cache");
    let text = place.cairn(&["dump", "4k.cache"]).ok();
    assert!(text.starts_with("block_size 4096\nn_blocks "), "{text}");
    assert!(text.contains(": committed, original_sector "), "{text}");
    assert!(!text.contains(": free"), "{text}");
    let all = json(&place.cairn(&["dump", "4k.cache", "--all", "--json"]).ok());
    let n_blocks = all["superblock"]["n_blocks"].as_u64().unwrap();
    assert_eq!(all["entries"].as_array().unwrap().len() as u64, n_blocks);
}

#[test]
fn format_spares_what_is_not_blank() {
    let place = Place::new();
    place.sparse("cache", 256 << 10);
    let made = place.cairn(&["format", "writecache", "cache"]).ok();
    assert_eq!(made, "cache: 63 blocks of 4096 bytes\n");
    place.golden("writecache", "fresh.cache");
    let before = place.read("cache");
    let line = place.cairn(&["format", "writecache", "cache"]).refused(1);
    let expected = "cache: not blank: found dm-writecache at byte 0; to lose that: cairn format \
                    writecache cache --block-size 4096 --yes";
    assert!(line.contains(expected), "{line}");
    place.write("text", "precious".repeat(1 << 16));
    place.cairn(&["format", "writecache", "text"]).refused(1);
    assert_eq!(place.read("text"), "precious".repeat(1 << 16).as_bytes());
    assert!(place.read("cache") == before);
    place.cairn(&["format", "writecache", "cache", "--yes", "--block-size", "512"]).ok();
    place.cairn(&["format", "writecache", "cache", "--block-size", "513"]).refused(1);
    place.sparse("tiny", 512);
    place.cairn(&["format", "writecache", "tiny"]).refused(1);
}

#[test]
fn probe_tells_a_truncated_dirty_cache_dirty_and_damaged() {
    let place = Place::new();
    dirty(&place);
    let whole = place.cairn(&["probe", "cache"]);
    assert!(whole.out.contains("cache: dirty: 10 of 63 blocks (40 KiB)"), "{whole:?}");
    let bytes = place.read("cache");
    place.write("cut", &bytes[..128 << 10]);
    let ran = place.cairn(&["probe", "cut"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    let expected = "cut: dirty: 10 of 63 blocks (40 KiB) are not on the origin; damaged";
    assert!(ran.out.contains(expected), "{ran:?}");
    place.cairn(&["format", "writecache", "cut", "--yes"]).refused(4);
    // Cut within the slot table: what is left of it counts.
    place.write("short", &bytes[..512]);
    let ran = place.cairn(&["probe", "short"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.out.contains("short: dirty: at least 10 of 63 blocks"), "{ran:?}");
}

#[test]
fn swapped_devices_of_a_cache_are_refused_and_the_origin_stays() {
    let place = Place::new();
    let mut origin = vec![0; 1 << 20];
    origin[1080..1082].copy_from_slice(&[0x53, 0xef]);
    place.write("origin", &origin);
    place.sparse("fast", 256 << 10);
    let swapped = ["--table", "0 512 writecache s fast origin 4096 0"];
    let line = place.serve_run(&swapped, "true").refused(1);
    let expected = "origin: not blank: found ext2 at byte 1024; to lose that: cairn format \
                    writecache origin --yes";
    assert!(line.contains(expected), "{line}");
    assert!(place.read("origin") == origin);
    // Of a cache that exists, and an origin without a signature.
    dirty(&place);
    place.sparse("slow", 1 << 20);
    let swapped = ["--table", "0 512 writecache s cache slow 4096 0"];
    let line = place.serve_run(&swapped, "true").refused(1);
    let expected = "cache: the origin is itself a cache, store or pool: found dm-writecache at \
                    byte 0; to format slow in front of it all the same: cairn format writecache \
                    slow --yes";
    assert!(line.contains(expected), "{line}");
    assert!(place.read("slow").iter().all(|byte| *byte == 0));
    place.cairn(&["format", "writecache", "slow", "--yes"]).ok();
    place.serve_run(&swapped, "true").ok();
}

#[test]
fn every_kind_is_formatted_over_other_data_with_yes_only_and_serves() {
    let place = Place::new();
    let mut used = vec![0; 8 << 20];
    used[32769..32774].copy_from_slice(b"CD001");
    used[(8 << 20) - 512..][..8].copy_from_slice(b"EFI PART");
    for (words, table) in [
        ("writecache DEV --block-size 512", "0 64 writecache s origin DEV 512 0"),
        ("snapshot DEV --chunk 16", "0 64 snapshot origin DEV P 16"),
        ("thin-pool DEV --block-size 131072", "0 1024 thin-pool DEV origin 256 0"),
    ] {
        place.sparse("origin", 1 << 20);
        place.write("DEV", &used);
        let line = place.serve_run(&["--table", table], "true").refused(1);
        let found =
            "DEV: not blank: found iso9660 at byte 32768, gpt at byte 8388096; to lose that";
        assert!(line.contains(&format!("{found}: cairn format {words} --yes")), "{line}");
        let mut format: Vec<&str> = std::iter::once("format").chain(words.split(' ')).collect();
        let line = place.cairn(&format).refused(1);
        assert!(line.contains(&format!("{found}: cairn format {words} --yes")), "{line}");
        assert!(place.read("DEV") == used);
        format.push("--yes");
        place.cairn(&format).ok();
        let ran = place.cairn(&["probe", "DEV"]).ok();
        assert_eq!(ran.lines().filter(|line| line.contains(" at byte ")).count(), 1, "{ran}");
        place.cairn(&["check", "DEV"]).ok();
        place.serve_run(&["--table", table], "true").ok();
    }
    place.write("DEV", &used);
    let line = place.cairn(&["format", "pool-data", "DEV"]).refused(1);
    assert!(line.contains("to lose that: cairn format pool-data DEV --yes"), "{line}");
    place.cairn(&["format", "pool-data", "DEV", "--yes"]).ok();
    let ran = place.cairn(&["probe", "DEV"]).ok();
    assert_eq!(ran, "DEV: nothing that cairn recognises\n");
}

#[test]
fn no_kind_is_formatted_over_a_dirty_cache_without_giving_its_blocks_up() {
    let place = Place::new();
    dirty(&place);
    let before = place.read("cache");
    for kind in ["writecache", "snapshot", "thin-pool", "pool-data"] {
        let line = place.cairn(&["format", kind, "cache", "--yes"]).refused(4);
        assert!(line.contains("10 blocks that its origin does not have"), "{line}");
        assert!(place.read("cache") == before, "{kind}");
    }
    place.cairn(&["format", "snapshot", "cache", "--yes", "--discard-dirty"]).ok();
}

#[test]
fn no_metadata_is_restored_or_repaired_over_a_dirty_cache_without_giving_its_blocks_up() {
    let place = Place::new();
    dirty(&place);
    place.golden("thin", "basic.meta");
    place.pool_xml("xml", 4);
    let mut before = place.read("cache");
    before.resize(4 << 20, 0);
    place.write("cache", &before);
    let restore = ["restore", "xml", "--output", "cache", "--yes"];
    let repair = ["repair", "basic.meta", "--output", "cache", "--yes"];
    for args in [restore, repair] {
        let line = place.cairn(&args).refused(4);
        assert!(line.contains("10 blocks that its origin does not have"), "{line}");
        assert!(place.read("cache") == before, "{args:?}");
        place.cairn(&[&args[..], &["--discard-dirty"]].concat()).ok();
        assert_eq!(place.cairn(&["check", "cache"]).code, 0);
        place.write("cache", &before);
    }
    // A store behind the header of the cache.
    place.golden("snapshot", "basic-a.cow");
    let mut both = before[..4096].to_vec();
    both.extend(place.read("basic-a.cow"));
    place.write("both", &both);
    let repair = ["repair", "both", "--start-sector", "8", "--in-place", "--yes"];
    let line = place.cairn(&repair).refused(4);
    assert!(line.contains("10 blocks that its origin does not have"), "{line}");
    assert!(place.read("both") == both);
}

#[test]
fn a_dirty_cache_is_formatted_only_when_its_blocks_are_given_up() {
    let place = Place::new();
    place.golden("writecache", "4k.cache");
    let before = place.read("4k.cache");
    let line = place.cairn(&["format", "writecache", "4k.cache", "--yes"]).refused(4);
    assert!(line.contains("blocks that its origin does not have"), "{line}");
    assert!(place.read("4k.cache") == before);
    place.cairn(&["format", "writecache", "4k.cache", "--yes", "--discard-dirty"]).ok();
    place.cairn(&["check", "4k.cache"]).ok();
}

#[test]
fn flush_drains_a_cache_to_its_origin_even_in_several_runs() {
    let place = Place::new();
    dirty(&place);
    assert_eq!(place.cairn(&["probe", "cache"]).code, 5);
    // The time is over at once; whether anything is left then is the machine's affair.
    let ran = place.cairn(&["flush", "--table", LINE, "--timeout", "0"]);
    assert!([0, 124].contains(&ran.code), "{ran:?}");
    let out = place.cairn(&["flush", "--table", LINE]).ok();
    assert_eq!(out, "clean: every block is on the origin\n");
    place.cairn(&["probe", "cache"]).ok();
    assert!(place.read("origin")[..40960] == [7; 40960]);
    let line = place.cairn(&["flush", "--table", "0 8 linear origin 0"]).refused(1);
    assert!(line.contains("expected a line of a cache"), "{line}");
}

#[test]
fn flush_refuses_a_blank_device_in_place_of_the_cache_and_writes_nothing() {
    let place = Place::new();
    dirty(&place);
    std::fs::rename(place.path("cache"), place.path("away")).unwrap();
    place.sparse("cache", 1 << 20);
    let line = place.cairn(&["flush", "--table", LINE]).refused(2);
    assert!(line.contains("cache: superblock: found a blank device, expected a cache"), "{line}");
    assert!(place.read("cache").iter().all(|byte| *byte == 0));
}
