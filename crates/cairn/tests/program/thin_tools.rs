//! check, dump, restore, repair and rmap on thin pools that a real kernel made, whole and damaged.

use cairn_format::thin::blocks::MemoryBlocks;
use cairn_format::thin::stream::devices;
use cairn_format::thin::{
    BITMAP_ENTRIES, BLOCK_BYTES, BitmapMut, Block, IndexEntry, Kind, MetadataBlock, Node,
    Superblock, block,
};

use super::place::{Place, json};

/// Where the mappings of the last volume begin.
fn last_mapping_root(metadata: &[u8]) -> usize {
    let superblock = metadata[..BLOCK_BYTES].try_into().unwrap();
    let superblock = Superblock::decode(superblock, MetadataBlock::SUPERBLOCK).unwrap();
    let all = devices(&mut MemoryBlocks::new(metadata), &superblock, false).unwrap();
    all.last().unwrap().2.0 as usize
}

#[test]
fn check_counts_what_is_in_a_pool_and_names_what_is_wrong() {
    let place = Place::new();
    for name in ["snaps.meta", "needscheck.meta"] {
        place.golden("thin", name);
    }
    place.sparse("small.data", 31 * 65536);
    let out = place.cairn(&["check", "snaps.meta"]).ok();
    assert_eq!(
        out,
        "snaps.meta: sound: transaction 42, 4 devices, 19 mappings, 12 of 32 data blocks and 18 of \
         128 metadata blocks in use\n"
    );
    assert_eq!(place.cairn(&["check", "needscheck.meta"]).code, 3);
    let ran = place.cairn(&["check", "snaps.meta", "--data", "small.data"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.out.contains("data space map nr_blocks: found 32, expected at most 31"), "{ran:?}");
    let report = &json(&place.cairn(&["check", "snaps.meta", "--json"]).ok())[0];
    assert_eq!(report["format"], "dm-thin");
    assert_eq!(report["counts"]["mapped_blocks"], 19);
    assert_eq!(report["superblock"]["held_root"], 54);
}

#[test]
fn output_before_an_error_is_printed() {
    let place = Place::new();
    place.golden("thin", "snaps.meta");
    place.golden("thin", "big.meta");
    let verdict = place.cairn(&["check", "snaps.meta"]).ok();
    let ran = place.cairn(&["check", "snaps.meta", "missing"]);
    assert_eq!((ran.code, ran.out), (1, verdict));
    let ran = place.cairn(&["check", "snaps.meta", "missing", "--json"]);
    assert_eq!((ran.code, &json(&ran.out)[0]["device"]), (1, &"snaps.meta".into()));
    // The last volume loses the root of its mappings.
    let whole = place.cairn(&["dump", "big.meta"]).ok();
    let bytes = place.read("big.meta");
    let root = last_mapping_root(&bytes);
    place.patch("big.meta", root * 4096, &[0xEE; 4096]);
    for (args, end) in [(&["dump", "big.meta"][..], ">\n"), (&["dump", "big.meta", "--json"], "[")]
    {
        let ran = place.cairn(args);
        assert_eq!(ran.code, 2, "{ran:?}");
        assert!(ran.out.len() > 1000 && ran.out.ends_with(end), "{ran:?}");
        assert!(args.len() > 2 || whole.starts_with(&ran.out), "{ran:?}");
    }
}

#[test]
fn dump_restore_and_repair_say_the_same_of_a_pool() {
    let place = Place::new();
    place.golden("thin", "big.meta");
    place.golden("thin", "big.thin_dump.xml");
    let expected = String::from_utf8(place.read("big.thin_dump.xml")).unwrap();
    assert!(place.cairn(&["dump", "big.meta"]).ok() == expected);
    place.cairn(&["restore", "big.thin_dump.xml", "--output", "new.meta"]).ok();
    assert!(place.cairn(&["dump", "new.meta"]).ok() == expected);
    place.cairn(&["check", "new.meta"]).ok();
    let out = place.cairn(&["repair", "big.meta", "--output", "mended.meta"]).ok();
    assert!(out.contains("5 devices, 2179 mappings kept: nothing was lost"), "{out}");
    assert!(place.cairn(&["dump", "mended.meta"]).ok() == expected);
    let dumped = json(&place.cairn(&["dump", "big.meta", "--json"]).ok());
    assert_eq!(dumped["devices"][1]["mapped_blocks"], 540);
    assert_eq!(dumped["devices"][0]["mappings"][0]["length"], 100);
}

#[test]
fn an_existing_output_is_not_overwritten_and_a_failure_leaves_no_file() {
    let place = Place::new();
    place.golden("thin", "basic.meta");
    place.golden("thin", "big.thin_dump.xml");
    let before = place.read("basic.meta");
    let line = place.cairn(&["restore", "big.thin_dump.xml", "--output", "basic.meta"]).refused(1);
    assert!(
        line.contains(
            "basic.meta: not blank: found thin-pool-metadata at byte 0; to lose that: cairn"
        ),
        "{line}"
    );
    assert!(place.read("basic.meta") == before);
    place.write("cut.xml", &place.read("big.thin_dump.xml")[..2000]);
    let line = place.cairn(&["restore", "cut.xml", "--output", "none"]).refused(1);
    assert!(line.contains("cut.xml: line "), "{line}");
    assert!(!place.exists("none"));
    let xml = "big.thin_dump.xml";
    place.cairn(&["restore", xml, "--output", "basic.meta", "--yes"]).ok();
    place.cairn(&["check", "basic.meta"]).ok();
    place.sparse("tiny", 8 * 4096);
    let line = place.cairn(&["restore", xml, "--output", "tiny"]).refused(1);
    assert!(line.contains("tiny: metadata device: found 8 blocks, expected more"), "{line}");
}

#[test]
fn a_repair_tells_what_is_lost_and_searches_for_lost_roots() {
    let place = Place::new();
    place.golden("thin", "snaps.meta");
    let whole = place.cairn(&["dump", "snaps.meta"]).ok();
    place
        .write("torn.meta", [vec![0xEE; 4096], place.read("snaps.meta")[4096..].to_vec()].concat());
    let line = place.cairn(&["repair", "torn.meta", "--output", "new"]).refused(2);
    assert!(line.contains("must be given: --data-block-size and --data-blocks"), "{line}");
    let sizes = ["--data-block-size", "128", "--data-blocks", "32", "--transaction-id", "42"];
    let args = [&["repair", "torn.meta", "--output", "new"][..], &sizes].concat();
    let ran = place.cairn(&args);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.out.contains("the roots were searched for"), "{ran:?}");
    // Of roots that were searched for everything is to look shared.
    let mappings = |text: &str| {
        let lines = text.lines().filter(|line| line.contains("_mapping "));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(mappings(&place.cairn(&["dump", "new"]).ok()) == mappings(&whole));
    place.cairn(&["repair", "snaps.meta", "--in-place"]).refused(1);
    place.golden("thin", "needscheck.meta");
    place.cairn(&["repair", "needscheck.meta", "--in-place", "--yes"]).ok();
    place.cairn(&["check", "needscheck.meta"]).ok();
}

/// Changes a block of metadata, and seals it.
fn forge(meta: &mut [u8], at: MetadataBlock, kind: Kind, change: impl FnOnce(&mut Block)) {
    let begin = at.0 as usize * BLOCK_BYTES;
    let bytes: &mut Block = (&mut meta[begin..begin + BLOCK_BYTES]).try_into().unwrap();
    change(bytes);
    block::seal(bytes, kind, at);
}

/// The first bitmap of the data space map.
fn data_bitmap(meta: &[u8]) -> MetadataBlock {
    let block_at = |at: MetadataBlock| -> Block {
        meta[at.0 as usize * BLOCK_BYTES..][..BLOCK_BYTES].try_into().unwrap()
    };
    let at = MetadataBlock::SUPERBLOCK;
    let root = Superblock::decode(&block_at(at), at).unwrap().data_space_map.bitmap_root;
    Node::decode(&block_at(root), root).unwrap().value::<IndexEntry>(0).bitmap
}

#[test]
fn a_repair_tells_of_a_block_in_use_that_counted_as_free() {
    let place = Place::new();
    place.golden("thin", "snaps.meta");
    let mut meta = place.read("snaps.meta");
    let bitmap = data_bitmap(&meta);
    forge(&mut meta, bitmap, Kind::Bitmap, |bytes| BitmapMut::cached(bytes).set(0, 0));
    place.write("low.meta", &meta);
    assert_eq!(place.cairn(&["check", "low.meta"]).code, 2);
    let ran = place.cairn(&["repair", "low.meta", "--output", "new"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    let told = "low.meta: data block 0, reference count: found 0, expected 3 [damaged]";
    assert!(ran.out.contains(told), "{ran:?}");
    assert!(ran.out.contains("4 devices, 19 mappings kept: something was lost\n"), "{ran:?}");
    place.cairn(&["check", "new"]).ok();
}

#[test]
fn a_repair_in_place_speaks_json_and_refuses_what_it_would_not_heed() {
    let place = Place::new();
    place.golden("thin", "needscheck.meta");
    place.golden("snapshot", "basic-a.cow");
    let before = place.read("needscheck.meta");
    let in_place = ["repair", "needscheck.meta", "--in-place", "--yes"];
    for option in ["--data-block-size", "--data-blocks", "--transaction-id"] {
        assert_eq!(place.cairn(&[&in_place[..], &[option, "128"]].concat()).code, 1, "{option}");
        let line = place.cairn(&["repair", "basic-a.cow", "--output", "new", option, "128"]);
        let line = line.refused(1);
        assert!(line.contains(&format!("{option}: found an exception store")), "{line}");
    }
    let line = place.cairn(&[&in_place[..], &["--salvage"]].concat()).refused(1);
    assert!(line.contains("--salvage: found a pool's metadata"), "{line}");
    assert!(place.read("needscheck.meta") == before);
    let told = json(&place.cairn(&[&in_place[..], &["--json"]].concat()).ok());
    assert_eq!(told["check"]["severity"], "sound");
    assert_eq!(told["superblock"]["needs_check"], false);
}

#[test]
fn a_pool_with_unknown_features_is_not_repaired() {
    let place = Place::new();
    place.golden("thin", "needscheck.meta");
    for (offset, field) in [(356, "compat_ro_flags"), (360, "incompat_flags")] {
        let mut meta = place.read("needscheck.meta");
        let at = MetadataBlock::SUPERBLOCK;
        forge(&mut meta, at, Kind::Superblock, |bytes| bytes[offset] = 4);
        place.write("later.meta", &meta);
        for how in [["--output", "new"], ["--in-place", "--yes"]] {
            let line = place.cairn(&[&["repair", "later.meta"][..], &how].concat()).refused(63);
            assert!(line.contains(&format!("later.meta: superblock {field}: found 0x4")), "{line}");
        }
        assert!(!place.exists("new") && place.read("later.meta") == meta);
    }
}

#[test]
fn a_pool_without_a_superblock_is_taken_for_nothing_else() {
    let place = Place::new();
    place.golden("thin", "snaps.meta");
    let mut meta = place.read("snaps.meta");
    meta[32] ^= 1;
    place.write("torn.meta", &meta);
    place.sparse("small.data", 32 * 65536);
    place.write("noise", vec![0xA5; 1 << 20]);
    let told = "torn.meta: superblock magic: found 27022011, expected 27022010";
    let ran = place.cairn(&["check", "torn.meta"]);
    assert!(ran.code == 2 && ran.out.contains(told), "{ran:?}");
    let line = place.cairn(&["dump", "torn.meta"]).refused(2);
    assert!(line.contains(told), "{line}");
    let sizes = "--data-block-size and --data-blocks";
    let line = place.cairn(&["repair", "torn.meta", "--output", "new"]).refused(2);
    assert!(line.contains(told) && line.contains(sizes), "{line}");
    // What is not to be written over is not worth a search.
    place.golden("thin", "basic.meta");
    let line = place.cairn(&["repair", "torn.meta", "--output", "basic.meta"]).refused(1);
    assert!(line.contains("basic.meta: not blank: found thin-pool-metadata at byte 0; "), "{line}");
    let nothing = "noise: not a dm-";
    let ran = place.cairn(&["check", "noise"]);
    let lines = ran.out.lines().count();
    assert!(ran.code == 2 && lines == 1 && ran.out.starts_with(nothing), "{ran:?}");
    let ran = place.cairn(&["check", "noise", "--data", "small.data"]);
    assert!(ran.code == 2 && ran.out.contains("expected 27022010"), "{ran:?}");
    let line = place.cairn(&["dump", "noise"]).refused(2);
    assert!(line.contains(nothing), "{line}");
    let line = place.cairn(&["repair", "noise", "--output", "new"]).refused(63);
    assert!(line.contains(nothing) && line.contains(sizes), "{line}");
}

#[test]
fn in_place_nothing_is_written_if_there_is_another_finding() {
    let place = Place::new();
    place.golden("thin", "needscheck.meta");
    let mut meta = place.read("needscheck.meta");
    let at = data_bitmap(&meta);
    // Too high for a block that nobody has.
    forge(&mut meta, at, Kind::Bitmap, |bytes| {
        let free = BitmapMut::cached(bytes).view().find_free(0..30).unwrap();
        BitmapMut::cached(bytes).set(free, 1);
    });
    place.write("both.meta", &meta);
    assert_eq!(place.cairn(&["check", "both.meta"]).code, 3);
    let line = place.cairn(&["repair", "both.meta", "--in-place", "--yes"]).refused(2);
    assert!(line.contains("expected no finding but needs_check: use --output"), "{line}");
    assert!(place.read("both.meta") == meta);
}

#[test]
fn in_place_a_harmless_finding_hides_no_damage() {
    let place = Place::new();
    place.golden("thin", "needscheck.meta");
    let mut meta = place.read("needscheck.meta");
    let at = data_bitmap(&meta);
    forge(&mut meta, at, Kind::Bitmap, |bytes| {
        let mut bitmap = BitmapMut::cached(bytes);
        // Beyond the end of the map, which is told first; and a block that is in use.
        bitmap.set(BITMAP_ENTRIES as usize - 1, 1);
        let used = (0..30).find(|entry| bitmap.view().get(*entry) > 0).unwrap();
        bitmap.set(used, 0);
    });
    place.write("low.meta", &meta);
    let ran = place.cairn(&["check", "low.meta"]);
    let told = [ran.out.find("its end: found 1"), ran.out.find("reference count: found 0")];
    assert!(ran.code == 2 && told[0].is_some() && told[0] < told[1], "{ran:?}");
    let line = place.cairn(&["repair", "low.meta", "--in-place", "--yes"]).refused(2);
    assert!(line.contains("reference count: found 0"), "{line}");
    assert!(place.read("low.meta") == meta);
}

#[test]
fn a_sound_superblock_is_not_overruled_by_an_option() {
    let place = Place::new();
    place.golden("thin", "snaps.meta");
    let options =
        [("--data-block-size", "256"), ("--data-blocks", "31"), ("--transaction-id", "3")];
    for (option, value) in options {
        let args = ["repair", "snaps.meta", option, value, "--output", "new"];
        let line = place.cairn(&args).refused(1);
        assert!(line.contains(&format!("snaps.meta: {option}: found {value}, ")), "{line}");
        assert!(line.contains("which the superblock says"), "{line}");
        assert!(!place.exists("new"));
    }
    let sizes = ["--data-block-size", "128", "--data-blocks", "32", "--transaction-id", "42"];
    place.cairn(&[&["repair", "snaps.meta", "--output", "new"][..], &sizes].concat()).ok();
}

#[test]
fn a_reverse_map_and_the_metadata_snapshot_are_read_beside_a_writer() {
    let place = Place::new();
    place.golden("thin", "snaps.meta");
    let out = place.cairn(&["rmap", "snaps.meta", "--region", "0..2", "--region", "9..11"]).ok();
    assert_eq!(
        out,
        "data 0..2 -> thin(1) 0..2\ndata 0..1 -> thin(7) 0..1\ndata 9..10 -> thin(0) 0..1\n\
         data 10..11 -> thin(0) 9..10\n"
    );
    let array = json(&place.cairn(&["rmap", "snaps.meta", "--json", "--region", "0..2"]).ok());
    assert_eq!(array[0], serde_json::json!({"data": 0, "device": 1, "origin": 0, "length": 2}));
    assert_eq!(array.as_array().unwrap().len(), 2);
    let none = json(&place.cairn(&["rmap", "snaps.meta", "--json", "--region", "31..32"]).ok());
    assert_eq!(none, serde_json::json!([]));
    let held = place.cairn(&["dump", "snaps.meta", "--metadata-snapshot"]).ok();
    assert!(held.contains("nr_data_blocks=\"0\""), "{held}");
    let out = place.cairn(&["check", "snaps.meta", "--metadata-snapshot"]).ok();
    assert_eq!(
        out,
        "snaps.meta: sound: metadata snapshot of transaction 42, 4 devices, 19 mappings, 10 data \
         blocks and 7 metadata blocks in it; space maps not compared\n"
    );
    let ran = place.cairn(&["check", "snaps.meta", "--metadata-snapshot", "--json"]).ok();
    let report = &json(&ran)[0];
    assert_eq!(
        (&report["metadata_snapshot"], &report["severity"]),
        (&true.into(), &"sound".into())
    );
    place.cairn(&["rmap", "snaps.meta", "--region", "2..2"]).refused(1);
    place.golden("thin", "basic.meta");
    place.golden("snapshot", "basic-a.cow");
    for verb in ["check", "dump"] {
        let line = place.cairn(&[verb, "basic.meta", "--metadata-snapshot"]).refused(1);
        assert!(line.contains("held_root: found 0, expected a metadata snapshot"), "{line}");
        // Nothing else is read without the lock.
        let line = place.cairn(&[verb, "basic-a.cow", "--metadata-snapshot"]).refused(1);
        assert!(line.contains("found no dm-thin metadata"), "{line}");
    }
}
