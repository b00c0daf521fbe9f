//! dump and rmap of the metadata snapshot that a pool holds, beside whoever changes the pool.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::process::Stdio;

use cairn_format::thin::{BLOCK_BYTES, Block, MetadataBlock, Superblock};

use super::place::Place;

const AT: MetadataBlock = MetadataBlock::SUPERBLOCK;

fn superblock(place: &Place) -> Superblock {
    let bytes: &Block = &place.read("held.meta")[..BLOCK_BYTES].try_into().unwrap();
    Superblock::decode(bytes, AT).unwrap()
}

/// Writes a superblock over the pool's, as whoever serves it would.
fn commit(place: &Place, superblock: &Superblock) {
    let file = File::options().write(true).open(place.path("held.meta")).unwrap();
    file.write_all_at(&superblock.encode(AT), 0).unwrap();
}

/// Metadata with so many mappings, and a metadata snapshot of them.
fn hold(place: &Place, mappings: u64) {
    place.pool_xml("xml", mappings);
    place.cairn(&["restore", "xml", "--output", "held.meta"]).ok();
    let now = superblock(place);
    let last = MetadataBlock(now.metadata_space_map.blocks - 1);
    place.patch("held.meta", last.0 as usize * BLOCK_BYTES, &now.encode(last));
    commit(place, &Superblock { held_root: Some(last), ..now });
}

#[test]
fn a_metadata_snapshot_that_is_released_meanwhile_is_told() {
    let place = Place::new();
    hold(&place, 20_000);
    let shown = place.cairn(&["dump", "held.meta", "--metadata-snapshot"]).ok();
    assert_eq!(shown.lines().filter(|line| line.contains("<single_mapping")).count(), 20_000);
    let held = superblock(&place);
    let released = Superblock { held_root: None, ..held.clone() };
    for verb in ["dump", "rmap"] {
        commit(&place, &held);
        let mut command = place.command(&[verb, "held.meta", "--metadata-snapshot"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // It has begun, and cannot end before more than a pipe holds is taken away.
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        commit(&place, &released);
        let output = child.wait_with_output().unwrap();
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(4), "{verb}: {line}");
        let expected = "metadata snapshot: found released or replaced while it was read";
        assert!(line.contains(expected), "{verb}: {line}");
    }
}

#[test]
fn only_a_pool_has_a_metadata_snapshot() {
    let place = Place::new();
    place.golden("writecache", "commit1.cache");
    place.golden("snapshot", "basic-a.cow");
    for device in ["commit1.cache", "basic-a.cow"] {
        place.cairn(&["dump", device]).ok();
        let line = place.cairn(&["dump", device, "--metadata-snapshot"]).refused(1);
        assert!(line.contains("--metadata-snapshot: found no dm-thin metadata"), "{line}");
    }
}

#[test]
fn tools_leave_the_metadata_of_a_pool_that_is_served_alone() {
    let place = Place::new();
    place.golden("thin", "snaps.meta");
    place.sparse("data", 32 * 65536);
    place.golden("thin", "big.thin_dump.xml");
    let pool = "pool=0 4096 thin-pool snaps.meta data 128 0";
    let script = "
      for verb in check dump rmap 'repair --output new' 'repair --in-place --yes' \\
        'restore big.thin_dump.xml --yes --output' 'dump --metadata-snapshot'; do
        cairn $verb snaps.meta >out 2>err; echo $? $verb
      done";
    let args = ["--table", pool, "--table", "v=0 1024 thin @pool 1"];
    let expected = "4 check\n4 dump\n4 rmap\n4 repair --output new\n4 repair --in-place --yes\n\
                    4 restore big.thin_dump.xml --yes --output\n0 dump --metadata-snapshot\n";
    assert_eq!(place.serve_run(&args, script).ok(), expected);
    assert!(!place.exists("new"));
    place.cairn(&["check", "snaps.meta"]).ok();
}
