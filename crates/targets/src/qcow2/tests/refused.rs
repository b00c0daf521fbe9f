//! Images and tables that are refused, in one line.

use cairn_format::qcow2::Severity;

use cairn_sim::{DriveOptions, Image};

use super::fixture::{ALONE, OVER, Qcow2Fixture, blank};
use crate::fixture::{Fixture, OneVolume, drive_options, initial};

/// Bytes to put at a place.
type Change<'a> = (usize, &'a [u8]);

const TABLE: usize = 3 * 1024;
const BLOCK: usize = 2 * 1024;

fn fixture(changes: &[Change<'_>], has_backing: bool) -> Qcow2Fixture {
    let mut image = blank(has_backing);
    image.resize(20 * 1024, 0);
    for (at, bytes) in changes {
        image[*at..at + bytes.len()].copy_from_slice(bytes);
    }
    Qcow2Fixture::of(image, 40)
}

fn word(flags: u64, cluster: u64) -> [u8; 8] {
    (flags | (cluster * 1024)).to_be_bytes()
}

#[test]
fn a_line_that_does_not_go_with_the_image_is_refused() {
    for (table, has_backing, part) in [
        ("0 1000 qcow2 image -", false, "length: found 1000 sectors in the table, expected 1003"),
        ("0 1003 qcow2 image base", false, "backing: found 'base', expected '-'"),
        ("0 1003 qcow2 image -", true, "backing: found '-', expected 'base' (format raw)"),
        ("0 1003 qcow2 image", false, "backing: found nothing"),
        ("0 1003 qcow2 image - x", false, "trailing words: found 'x'"),
        ("0 1003 qcow2 base -", false, "magic: found"),
    ] {
        let line = fixture(&[], has_backing).refusal(table);
        assert!(line.contains(part), "{table}: {line}");
    }
}

#[test]
fn an_image_that_a_writer_does_not_understand_is_refused() {
    let cases: [(&[Change<'_>], &str); 6] = [
        (&[(7, &[2]), (72, &[0; 40])], "version 2: the target does not take such images"),
        (&[(79, &[2])], "marked as corrupt; `qemu-img check -r all` repairs it"),
        (&[(79, &[1])], "the image was not closed"),
        (&[(63, &[1]), (70, &[4])], "internal snapshots: the target does not take"),
        (&[(79, &[4])], "data in a file of its own"),
        (&[(35, &[1])], "encryption"),
    ];
    for (changes, part) in cases {
        let line = fixture(changes, false).refusal(ALONE);
        assert!(line.contains(part), "{part}: {line}");
    }
}

#[test]
fn tables_with_anything_that_is_not_right_are_refused_when_the_volume_starts() {
    const COPIED: u64 = 1 << 63;
    let counted: Change<'_> = (BLOCK + 8, &[0, 1, 0, 1, 0, 1]);
    let table = word(COPIED, 4);
    let named: Change<'_> = (TABLE, &table);
    let bad = |entry: u64| entry.to_be_bytes();
    let (data, twice, free) = (word(COPIED, 5), word(COPIED, 5), word(COPIED, 9));
    let (far, own, shared) = (word(COPIED, 900), word(COPIED, 2), word(0, 5));
    let (compressed, odd) = (bad((1 << 62) | 5120), bad(COPIED | (5 * 1024) | 8));
    let at = |entry: usize| 4 * 1024 + entry * 8;
    let cases: [(&[Change<'_>], &str); 10] = [
        (&[counted, named, (at(0), &data), (at(7), &twice)], "L2 entry for byte 7168: cluster 5"),
        (
            &[counted, named, (at(0), &free)],
            "cluster 9: found another refcount, expected the refcount 1",
        ),
        (&[counted, named, (at(0), &far)], "beyond the image's end"),
        (&[counted, named, (at(0), &own)], "cluster 2: found another reference, expected"),
        (&[counted, named, (at(0), &shared)], "expected bit 63"),
        (&[counted, named, (at(0), &compressed)], "compressed clusters: the target does not take"),
        (&[counted, named, (at(0), &odd)], "expected no reserved bits"),
        (&[(TABLE, &word(COPIED, 4))], "L1 entry for byte 0: cluster 4: found another refcount"),
        (&[(BLOCK + 1, &[2])], "header: cluster 0: found another refcount"),
        (&[(1024, &bad(2 * 1024 + 8))], "refcount table entry: found 2056"),
    ];
    for (changes, part) in cases {
        let test = fixture(changes, false);
        let before = test.contents("image");
        let line = test.try_load_refused(ALONE);
        assert!(line.contains(part), "{part}: {line}");
        assert_eq!(test.contents("image"), before, "nothing is written");
    }
    let test = fixture(&[counted, named, (at(0), &data)], true);
    test.load(OVER);
    assert!(test.durable().0.severity < Severity::Damaged);
}

#[test]
fn a_table_that_is_named_often_is_read_once() {
    // 64 KiB of refcount table behind everything, each entry of which names the same block.
    let mut image = blank(false);
    let table = image.len() as u64;
    image.extend((0..8192).flat_map(|_| 2048_u64.to_be_bytes()));
    image[48..56].copy_from_slice(&table.to_be_bytes());
    image[56..60].copy_from_slice(&64_u32.to_be_bytes());
    let refcounts = Qcow2Fixture::of(image, 100);
    refcounts.forget();
    let line = refcounts.try_load_refused(ALONE);
    assert!(line.contains("refcount table entry: found 2048, expected"), "{line}");
    // An L1 table whose entries name the same L2 table, for a reader.
    let mut image = blank(false);
    image.extend([0; 1024]);
    let table = image.len() as u64;
    image.extend((0..4096).flat_map(|_| word(1 << 63, 4)));
    image[36..40].copy_from_slice(&4096_u32.to_be_bytes());
    image[40..48].copy_from_slice(&table.to_be_bytes());
    let mapping = Qcow2Fixture::of(image, 100);
    mapping.forget();
    let line = mapping.try_load_read_only(ALONE).unwrap_err().to_string();
    assert!(line.contains("L1 entry for byte 131072: cluster 4: found another ref"), "{line}");
    for test in [refcounts, mapping] {
        assert!(test.ops("image").len() < 10);
    }
}

#[test]
fn clusters_that_are_smaller_than_blocks_of_the_backing_device_are_refused() {
    let large = DriveOptions { logical_block: 4096, ..drive_options("base") };
    let base = (large, Image::of_bytes(&initial("base", 304)));
    let mut image = blank(true);
    image[24..32].copy_from_slice(&(1000_u64 * 512).to_be_bytes());
    let image = (drive_options("image"), Image::of_bytes(&image));
    let test = OneVolume::of(Fixture::with_options(1, [image, base]));
    let line = test.refusal("0 1000 qcow2 image base");
    assert!(line.contains("cluster size: found 1024, expected at least"), "{line}");
}

#[test]
fn a_last_cluster_that_is_cut_short_ends_in_zeros_for_a_reader() {
    let mut image = blank(false);
    (image[BLOCK + 9], image[BLOCK + 11]) = (1, 1);
    image[TABLE..TABLE + 8].copy_from_slice(&word(1 << 63, 4));
    image.resize(5 * 1024, 0);
    image[4 * 1024..4 * 1024 + 8].copy_from_slice(&word(1 << 63, 5));
    image.extend([5; 512]);
    let test = Qcow2Fixture::with(drive_options("image"), Image::of_bytes(&image));
    test.try_load_read_only(ALONE).unwrap();
    assert_eq!((test.bytes(0, 2), test.bytes(1, 3)), (vec![5, 0], vec![0; 3]));
}
