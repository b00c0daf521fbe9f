//! What is refused, what is formatted, and how a store passes from table to table.

use std::sync::Arc;

use cairn_block::{Disk, Env, Io, Sector, SectorCount, SuspendMode};
use cairn_sim::{Fault, Image, OpSet};

use super::fixture::{SnapshotFixture, initial, initial_byte, write_io};

fn with_header(words: [u32; 4]) -> Image {
    let mut image = Image::new(SectorCount(2048));
    let mut bytes = vec![0; 512];
    for (field, word) in bytes.chunks_mut(4).zip(words) {
        field.copy_from_slice(&word.to_le_bytes());
    }
    image.write(Sector(0), &bytes);
    image
}

#[test]
fn bad_stores_are_refused_with_one_line_and_nothing_written() {
    const MAGIC: u32 = 0x7041_6e53;
    let refusal = |header: [u32; 4], line: &str| {
        SnapshotFixture::of_images(initial(512), vec![with_header(header)]).refusal("s", line)
    };
    let line = "0 512 snapshot origin cow0 P 8";
    for (header, part) in [
        ([0x1234, 1, 1, 8], "header magic"),
        ([MAGIC, 1, 2, 8], "header version: found 2"),
        ([MAGIC, 1, 1, 24], "chunk size: found 24"),
        ([MAGIC, 1, 1, 16], "chunk_size: found 8 sectors in the table, expected 16"),
    ] {
        let text = refusal(header, line);
        assert!(text.contains(part), "{text}");
    }
    let merge = "0 512 snapshot-merge origin cow0 N 8";
    assert!(refusal([0; 4], merge).contains("store: found N"));
    let own = SnapshotFixture::new(512, &[2048]).refusal("s", "0 512 snapshot cow0 cow0 P 8");
    assert!(own.contains("the origin itself"), "{own}");
    let small = SnapshotFixture::new(512, &[15]).refusal("s", line);
    assert!(small.contains("found 15 sectors, expected at least 16"), "{small}");
    let long = SnapshotFixture::new(500, &[2048]).refusal("s", line);
    assert!(long.contains("size: found 500 sectors"), "{long}");
    assert!(
        SnapshotFixture::new(500, &[]).refusal("s", "0 512 snapshot-origin origin").contains("500")
    );
}

#[test]
fn a_device_with_somebodys_signature_is_not_formatted() {
    let mut image = Image::new(SectorCount(2048));
    let mut superblock = vec![0; 1024];
    superblock[0x38..0x3a].copy_from_slice(&[0x53, 0xef]);
    superblock[0..4].copy_from_slice(&64u32.to_le_bytes());
    image.write(Sector(2), &superblock);
    let test = SnapshotFixture::of_images(initial(512), vec![image]);
    let text = test.refusal("s", "0 512 snapshot origin cow0 P 8");
    let expected = "cow0: not blank: found ext2 at byte 1024; \
                    to lose that: cairn format snapshot cow0 --chunk 8 --yes";
    assert!(text.ends_with(expected), "{text}");
}

#[test]
fn a_store_is_not_first_formatted_for_an_origin_that_is_itself_a_layer() {
    let line = "0 512 snapshot origin cow0 P 8";
    let mut origin = initial(512);
    let mut pool = vec![0; 512];
    pool[32..40].copy_from_slice(&27_022_010u64.to_le_bytes());
    origin.write(Sector(0), &pool);
    let blank = Image::new(SectorCount(2048));
    let text = SnapshotFixture::of_images(origin.clone(), vec![blank]).refusal("s", line);
    let expected = "origin: the origin is itself a cache, store or pool: found thin-pool-metadata \
                    at byte 0; to format cow0 in front of it all the same: cairn format snapshot \
                    cow0 --chunk 8 --yes";
    assert!(text.ends_with(expected), "{text}");
    let store = with_header([0x7041_6e53, 1, 1, 8]);
    SnapshotFixture::of_images(origin, vec![store]).load("s", line);
}

#[test]
fn a_wrong_header_is_refused_with_the_signature_it_belongs_to() {
    let mut image = Image::new(SectorCount(2048));
    let mut sector = vec![0; 512];
    sector[3..11].copy_from_slice(b"NTFS    ");
    image.write(Sector(0), &sector);
    let text = SnapshotFixture::of_images(initial(512), vec![image])
        .refusal("s", "0 512 snapshot origin cow0 P 8");
    assert!(text.contains("header magic: found"), "{text}");
    assert!(text.contains("; found ntfs at byte 0; to lose that: cairn format snapshot"), "{text}");
}

#[test]
fn damaged_records_are_refused() {
    let test = SnapshotFixture::new(512, &[2048]);
    test.load("s", "0 512 snapshot origin cow0 P 8");
    test.write("s", 0, 8, 7).unwrap();
    for (old, new, part) in [
        (0u64, 3u64, "record 1 old_chunk: found 0 for the second time"),
        (1, 2, "record 1 new_chunk: found 2 for the second time"),
        (64, 3, "record 1 old_chunk: found 64, expected below 64"),
        (1, 258, "record 1 new_chunk: found 258"),
        (1, 1, "record 1 new_chunk: found 1"),
    ] {
        let mut cow = test.drive("cow0").durable();
        let mut sector = cow.sector(Sector(8));
        sector[16..24].copy_from_slice(&old.to_le_bytes());
        sector[24..32].copy_from_slice(&new.to_le_bytes());
        cow.write(Sector(8), &sector);
        let other = SnapshotFixture::of_images(initial(512), vec![cow]);
        let error = other.try_load("s", "0 512 snapshot origin cow0 P 8").unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn stale_records_behind_the_end_of_the_list_do_not_come_back() {
    let test = SnapshotFixture::new(512, &[2048]);
    test.load("s", "0 512 snapshot origin cow0 P 8");
    test.write("s", 0, 8, 7).unwrap();
    let mut cow = test.drive("cow0").durable();
    let mut sector = cow.sector(Sector(8));
    // A record whose predecessor is missing.
    sector[32..40].copy_from_slice(&5u64.to_le_bytes());
    sector[40..48].copy_from_slice(&9u64.to_le_bytes());
    cow.write(Sector(8), &sector);
    let other = SnapshotFixture::of_images(initial(512), vec![cow]);
    other.load("s", "0 512 snapshot origin cow0 P 8");
    other.write("s", 8, 8, 8).unwrap();
    let third = other.reopen_durable();
    third.load("s", "0 512 snapshot origin cow0 P 8");
    assert_eq!(third.bytes("s", 40, 8), (40..48).map(initial_byte).collect::<Vec<_>>());
}

#[test]
fn stale_records_do_not_come_back_by_a_failed_flush() {
    const SNAPSHOT: &str = "0 512 snapshot origin cow0 P 8";
    let test = SnapshotFixture::new(512, &[2048]);
    test.load("s", SNAPSHOT);
    // All records but one of a sector.
    (0..31).for_each(|chunk| test.write("s", chunk * 8, 8, 7).unwrap());
    let mut cow = test.drive("cow0").durable();
    let mut sector = cow.sector(Sector(9));
    sector[..8].copy_from_slice(&60u64.to_le_bytes());
    sector[8..16].copy_from_slice(&50u64.to_le_bytes());
    cow.write(Sector(9), &sector);
    let other = SnapshotFixture::of_images(initial(512), vec![cow]);
    other.load("s", SNAPSHOT);
    other.drive("cow0").faults().add(Fault::losing_flushes().shots(1));
    let disk: Arc<dyn Disk> = other.drive("cow0");
    let flush = |env: Env| async move { env.io(&disk, Io::flush()).await };
    other.sim.block_on(0, flush).expect_err("it fails");
    other.write("s", 31 * 8, 8, 8).unwrap();
    let third = other.reopen_durable();
    third.load("s", SNAPSHOT);
    assert_eq!(third.bytes("s", 480, 8), (480..488).map(initial_byte).collect::<Vec<_>>());
}

#[test]
fn a_new_table_takes_the_store_over_even_a_transient_one() {
    for kind in ["N", "P"] {
        let test = SnapshotFixture::new(512, &[2048]);
        let line = format!("0 512 snapshot origin cow0 {kind} 8");
        test.load("s", &line);
        test.load("o", "0 512 snapshot-origin origin");
        test.write("s", 0, 4, 7).unwrap();
        test.forget();
        test.load("s", &line);
        assert_eq!(test.bytes("s", 0, 4), [7; 4], "{kind}");
        test.write("o", 100, 8, 9).unwrap();
        assert_eq!(test.bytes("s", 100, 1), [initial_byte(100)], "{kind}: it is still kin");
        let busy = test.try_load("t", &line).unwrap_err().to_string();
        assert!(busy.contains("the COW device of volume 's'"), "{busy}");
        test.suspend("s", SuspendMode::Flush);
        test.load("t", &line);
        assert_eq!(test.bytes("t", 0, 4), [7; 4], "{kind}: another volume took it");
        assert!(test.resume("s").is_err(), "{kind}: it is no longer its own");
        test.remove("t");
        test.load("s", &line);
    }
}

#[test]
fn a_transient_store_is_empty_again_when_nobody_serves_it() {
    let test = SnapshotFixture::new(512, &[2048]);
    test.load("s", "0 512 snapshot origin cow0 N 8");
    test.write("s", 0, 8, 7).unwrap();
    assert_eq!(test.status("s"), "8/2048 0");
    test.remove("s");
    test.load("s", "0 512 snapshot origin cow0 N 8");
    assert_eq!(test.status("s"), "0/2048 0");
    assert_eq!(test.bytes("s", 0, 1), [initial_byte(0)]);
}

#[test]
fn an_invalid_transient_snapshot_stays_invalid_under_a_new_table() {
    let test = SnapshotFixture::new(512, &[8]);
    let line = "0 512 snapshot origin cow0 N 8";
    test.load("s", line);
    test.load("o", "0 512 snapshot-origin origin");
    test.write("o", 0, 16, 7).unwrap();
    assert_eq!(test.status("s"), "Invalid");
    test.load("s", line);
    assert_eq!(test.status("s"), "Invalid");
    assert!(test.read("s", 0, 8).is_err());
}

#[test]
fn a_failed_format_leaves_a_blank_device() {
    let test = SnapshotFixture::new(512, &[2048]);
    test.drive("cow0").faults().add(Fault::error(OpSet::FLUSHES));
    assert!(test.try_load("s", "0 512 snapshot origin cow0 P 8").is_err());
    assert_eq!(test.drive("cow0").visible().sector(Sector(0))[..16], [0; 16]);
    test.drive("cow0").faults().clear();
    test.load("s", "0 512 snapshot origin cow0 P 8");
    assert_eq!(test.status("s"), "16/2048 16");
}

#[test]
fn a_new_snapshot_keeps_what_was_volatile_in_its_origin() {
    const SNAPSHOT: &str = "0 512 snapshot @real cow0 P 8";
    let test = SnapshotFixture::new(512, &[2048]);
    test.load("real", "0 512 linear origin 0");
    test.io("real", |env| write_io(env, 16, 8, 200)).expect("no drive fails");
    test.load("s", SNAPSHOT);
    let again = test.reopen_durable();
    again.load("real", "0 512 linear origin 0");
    again.load("s", SNAPSHOT);
    assert_eq!(again.bytes("s", 16, 8), [200; 8]);
}
