//! Headers and entries built by hand: what is read of them, and what is refused.

use super::{Backing, Compression, Error, Header, Place, Prologue, Run};

/// Bytes to put at a place.
type Change<'a> = (usize, &'a [u8]);

const CLUSTER: u64 = 1 << 16;
const IMAGE: u64 = 64 * CLUSTER;

/// The first cluster of an image of version 3: 1 GiB in clusters of 64 KiB, the L1 table in the
/// fourth.
fn image() -> Vec<u8> {
    let mut bytes = vec![0; CLUSTER as usize];
    for (at, number) in [(0, 0x5146_49fb_u32), (4, 3), (20, 16), (36, 2), (96, 4), (100, 112)] {
        put(&mut bytes, at, &number.to_be_bytes());
    }
    put(&mut bytes, 24, &(1u64 << 30).to_be_bytes());
    put(&mut bytes, 40, &(3 * CLUSTER).to_be_bytes());
    bytes
}

fn put(bytes: &mut [u8], at: usize, what: &[u8]) {
    bytes[at..at + what.len()].copy_from_slice(what);
}

/// The image with these bytes at these places.
fn changed(changes: &[Change<'_>]) -> Result<Header, Error> {
    let mut bytes = image();
    changes.iter().for_each(|(at, what)| put(&mut bytes, *at, what));
    Header::parse(&bytes, IMAGE)
}

fn header(changes: &[Change<'_>]) -> Header {
    changed(changes).expect("it is an image")
}

const EXTENDED: Change<'static> = (79, &[16]);
const VERSION_2: Change<'static> = (7, &[2]);

#[test]
fn a_header_says_how_large_the_content_is() {
    let found = header(&[]);
    assert_eq!((found.size, found.cluster_bytes()), (1 << 30, CLUSTER));
    assert_eq!((found.backing, found.compression), (None, Compression::Deflate));
    assert_eq!(Prologue::parse(&image()).unwrap().cluster_bytes, CLUSTER);
    assert!(header(&[(79, &[2])]).is_corrupt && header(&[(79, &[1])]).is_dirty);
    assert_eq!(header(&[(79, &[8]), (104, &[1])]).compression, Compression::Zstd);
    // Features are no part of version 2.
    assert!(!header(&[VERSION_2, (79, &[2])]).is_corrupt);
}

#[test]
fn a_wrong_header_is_refused_in_one_line_that_says_why() {
    let most = [0xff; 8];
    let name: Change<'_> = (8, &[0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 4]);
    let cases: [(&[Change<'_>], &str); 24] = [
        (&[(0, b"nope")], "magic: found 0x6e6f7065"),
        (&[(7, &[4])], "version: found 4"),
        (&[(23, &[8])], "cluster_bits: found 8"),
        (&[(23, &[22])], "cluster_bits: found 22"),
        (&[(20, &most[..4])], "cluster_bits: found 4294967295"),
        (&[(35, &[1])], "encryption (AES)"),
        (&[(35, &[2])], "encryption (LUKS)"),
        (&[(35, &[3])], "crypt_method: found 3"),
        (&[(79, &[4])], "data in a file of its own"),
        (&[(79, &[32])], "incompatible feature 5"),
        (&[(72, &[128])], "incompatible feature 63"),
        (&[(79, &[8])], "compression_type: found 0"),
        (&[(104, &[1])], "compression_type: found 1"),
        (&[(79, &[8]), (104, &[2])], "compression type 2"),
        (&[(79, &[16]), (23, &[13])], "cluster_bits: found 13"),
        (&[(100, &[0, 0, 0, 100])], "header_length: found 100"),
        (&[(100, &most[..4])], "header_length: found 4294967295"),
        (&[(24, &most)], "size: found 18446744073709551615"),
        (&[(36, &[0, 0, 0, 1])], "l1_size: found 1, expected at least 2"),
        (&[(46, &[1])], "l1_table_offset: found 196864"),
        (&[(40, &[0, 0, 0, 0, 1])], "L1 table: found the image's end at byte 4194304"),
        (&[(8, &most)], "backing_file_size: found 0"),
        (&[(8, &most), (16, &[0, 0, 3, 255])], "backing_file_offset: found 18446744073709551615"),
        (&[name, (512, &most[..4])], "backing file: found bytes that are no UTF-8"),
    ];
    for (changes, expected) in cases {
        let line = changed(changes).expect_err(expected).to_string();
        assert!(line.contains(expected) && !line.contains('\n'), "{expected}: {line}");
    }
}

#[test]
fn an_image_that_ends_within_its_header_is_refused() {
    let whole = image();
    for len in [0, 3, 23, 24, 71, 103, 111] {
        let error = Header::parse(&whole[..len], len as u64).expect_err("too short");
        assert!(matches!(error, Error::Truncated { field: "header", .. }), "{len}: {error}");
    }
    let l1_end = 3 * CLUSTER + 16;
    assert!(Header::parse(&whole, l1_end).is_ok());
    Header::parse(&whole, l1_end - 1).expect_err("the L1 table is cut short");
}

#[test]
fn a_backing_image_is_found_with_its_format() {
    let name: Change<'_> = (8, &[0, 0, 0, 0, 0, 0, 0, 200, 0, 0, 0, 4]);
    let backing = |name: &str, format: Option<&str>| {
        Some(Backing { name: name.to_owned(), format: format.map(str::to_owned) })
    };
    let text: Change<'_> = (200, b"base");
    assert_eq!(header(&[name, text]).backing, backing("base", None));
    // An unknown extension of 3 bytes, padded to 8, then the format.
    let unknown: Change<'_> = (112, &[1, 2, 3, 4, 0, 0, 0, 3]);
    let format: Change<'_> = (128, b"\xe2\x79\x2a\xca\x00\x00\x00\x05qcow2");
    let found = header(&[name, text, unknown, format]);
    assert_eq!(found.backing, backing("base", Some("qcow2")));
    // Extensions follow the header of version 2, too.
    let format: Change<'_> = (72, b"\xe2\x79\x2a\xca\x00\x00\x00\x03raw");
    let found = header(&[VERSION_2, name, text, format, (88, &[0; 8])]);
    assert_eq!(found.backing, backing("base", Some("raw")));
    // An extension must end before the name begins.
    let long: Change<'_> = (112, &[1, 2, 3, 4, 0, 0, 0, 81]);
    let line = changed(&[name, text, long]).expect_err("it is too long").to_string();
    assert!(line.contains("length of an extension: found 81, expected at most 80"), "{line}");
}

#[test]
fn entries_lie_where_the_tables_are() {
    let plain = header(&[]);
    let span = CLUSTER * 8192;
    assert_eq!((plain.l1_span(), plain.l2_entry_bytes()), (span, 8));
    assert_eq!(plain.l1_entry_at(span - 1), 3 * CLUSTER);
    assert_eq!(plain.l1_entry_at(span), 3 * CLUSTER + 8);
    assert_eq!(plain.l2_entry_at(CLUSTER, span + 3 * CLUSTER + 1), CLUSTER + 24);
    assert_eq!(plain.without_table(5), Run { place: Place::Nowhere, bytes: span - 5 });
    let extended = changed(&[EXTENDED, (36, &[0, 0, 0, 4])]).unwrap();
    assert_eq!((extended.l1_span(), extended.l2_entry_bytes()), (span / 2, 16));
    assert_eq!(extended.l2_entry_at(CLUSTER, 3 * CLUSTER), CLUSTER + 48);
}

#[test]
fn an_l1_entry_names_a_table_in_the_image() {
    let plain = header(&[]);
    assert_eq!(plain.l2_table(0, 0), Ok(None));
    assert_eq!(plain.l2_table(0, (1 << 63) | CLUSTER), Ok(Some(CLUSTER)));
    plain.l2_table(0, CLUSTER + 512).expect_err("misaligned");
    plain.l2_table(0, IMAGE).expect_err("beyond the end");
    plain.l2_table(0, u64::MAX).expect_err("misaligned and beyond the end");
}

#[test]
fn an_entry_says_where_a_cluster_is() {
    let plain = header(&[]);
    let at = |entry| plain.run(CLUSTER + 512, entry, 0).map(|run| (run.place, run.bytes));
    let left = CLUSTER - 512;
    assert_eq!(at(0), Ok((Place::Nowhere, left)));
    assert_eq!(at(1), Ok((Place::Zeros, left)));
    assert_eq!(at((1 << 63) | (5 * CLUSTER)), Ok((Place::Data(5 * CLUSTER + 512), left)));
    assert_eq!(at((5 * CLUSTER) | 1), Ok((Place::Zeros, left)));
    at(5 * CLUSTER + 512).expect_err("misaligned");
    at(IMAGE).expect_err("beyond the end");
    at(IMAGE - CLUSTER).expect("the last cluster");
    // A sector and two more, from byte 300 of a sector.
    let start = 7 * CLUSTER + 300;
    let place = Place::Compressed { start, bytes: 3 * 512 - 300, skip: 512 };
    assert_eq!(at((1 << 62) | (2 << 54) | start), Ok((place, left)));
    at((1 << 62) | IMAGE).expect_err("beyond the end");
}

#[test]
fn version_2_has_no_zero_flag() {
    let old = header(&[VERSION_2]);
    old.run(0, 1, 0).expect_err("a zero flag");
    assert_eq!(old.run(0, 0, 0).unwrap().place, Place::Nowhere);
}

#[test]
fn subclusters_of_one_kind_are_one_run() {
    let extended = changed(&[EXTENDED, (36, &[0, 0, 0, 4])]).unwrap();
    let size = CLUSTER / 32;
    // Data in 0 and 1, zeros in 2, nothing in 3 to 31.
    let (entry, bitmap) = (5 * CLUSTER, (1 << 34) | 3);
    let at =
        |guest, entry, bitmap| extended.run(guest, entry, bitmap).map(|run| (run.place, run.bytes));
    assert_eq!(at(0, entry, bitmap), Ok((Place::Data(5 * CLUSTER), 2 * size)));
    let one = (Place::Data(5 * CLUSTER + size + 512), size - 512);
    assert_eq!(at(size + 512, entry, bitmap), Ok(one));
    assert_eq!(at(2 * size, entry, bitmap), Ok((Place::Zeros, size)));
    assert_eq!(at(3 * size, entry, bitmap), Ok((Place::Nowhere, 29 * size)));
    assert_eq!(at(0, 0, 1 << 32), Ok((Place::Zeros, size)));
    at(0, entry, (1 << 32) | 1).expect_err("data and zeros");
    at(0, 0, 1).expect_err("data of no cluster");
    // Bit 0 of the first word means nothing here.
    assert_eq!(at(31 * size, 1, 0), Ok((Place::Nowhere, size)));
}

#[test]
fn no_bytes_make_it_panic_or_run_out_of_a_cluster() {
    let mut word = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = || {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word
    };
    for _ in 0..20_000 {
        let mut bytes = image();
        for _ in 0..random() % 6 {
            let at = (random() % 128) as usize;
            bytes[at] = random() as u8;
        }
        let image_bytes = random() >> (random() % 64);
        let Ok(header) = Header::parse(&bytes, image_bytes) else { continue };
        for _ in 0..8 {
            let guest = random() % header.size.max(1);
            assert!(header.l1_entry_at(guest) + 8 <= image_bytes || header.size == 0);
            if let Ok(Some(table)) = header.l2_table(guest, random()) {
                let end = header.l2_entry_at(table, guest) + header.l2_entry_bytes();
                assert!(end <= image_bytes);
            }
            if let Ok(run) = header.run(guest, random(), random()) {
                let left = header.cluster_bytes() - guest % header.cluster_bytes();
                assert!(run.bytes > 0 && run.bytes <= left);
            }
        }
    }
}
