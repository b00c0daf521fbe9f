//! Opening: formatting, recovery, and the messages of refusals.

use std::cell::Cell;
use std::rc::Rc;

use cairn_block::{Op, SectorCount, SuspendMode};
use cairn_format::writecache::{BlockSize, Entry, Geometry, Seq, Superblock};
use cairn_sim::Image;

use super::fixture::{
    CacheFixture, DRIVE_TIME, cache_sectors, initial, initial_byte, table, write_io,
};

/// The bytes of a cache of 16 slots with three committed blocks: 1, 2, 3 at sectors 0, 16, 32.
fn used_cache() -> Vec<u8> {
    let test = CacheFixture::live(16, "pause_writeback 60000");
    for block in 0..3 {
        test.write(block * 16, 8, 1 + block as u8).unwrap();
    }
    test.suspend(SuspendMode::Flush);
    test.cache.durable().to_vec()
}

fn on(cache: &[u8], origin: u64) -> CacheFixture {
    CacheFixture::of_images(initial(origin), Image::of_bytes(cache), 3)
}

#[test]
fn headers_that_do_not_fit_are_refused_with_one_line_and_without_a_write() {
    type Spoil = fn(&mut Vec<u8>);
    let lines: [(Spoil, &str); 8] = [
        (
            |bytes| bytes[0] = 0x22,
            "cache: superblock magic: found 0x23489322, expected 0x23489321 (Invalid magic in \
             the superblock)",
        ),
        (
            |bytes| bytes[4] = 2,
            "cache: superblock version: found 2, expected 1 (Invalid version in the superblock)",
        ),
        (
            |bytes| bytes[8..12].copy_from_slice(&512u32.to_le_bytes()),
            "cache: superblock block size: found 512 bytes, expected 4096 (Block size does not \
             match superblock)",
        ),
        (
            |bytes| bytes[16..24].copy_from_slice(&u64::MAX.to_le_bytes()),
            "cache: superblock n_blocks: found 18446744073709551615, expected fewer than \
             140737488355328 (Memory area is too small)",
        ),
        (
            |bytes| bytes[24..32].copy_from_slice(&u64::MAX.to_le_bytes()),
            "cache: superblock seq_count: found 18446744073709551615, expected less than 2^63",
        ),
        (
            |bytes| bytes[24..32].copy_from_slice(&(u64::MAX - 3).to_le_bytes()),
            "cache: superblock seq_count: found 18446744073709551612, expected less than 2^63",
        ),
        (
            |bytes| bytes[24..32].copy_from_slice(&(1u64 << 63).to_le_bytes()),
            "cache: superblock seq_count: found 9223372036854775808, expected less than 2^63",
        ),
        (
            |bytes| bytes[..4].fill(0),
            "cache: superblock magic: found 0 with version 1, expected 0x23489321 (formatting was \
             interrupted; zero the first sector to format again) (Invalid magic in the superblock)",
        ),
    ];
    for (spoil, line) in lines {
        let mut bytes = used_cache();
        spoil(&mut bytes);
        assert_eq!(on(&bytes, 2048).refusal(&table(2048, 4096, "")), line);
    }
}

#[test]
fn metadata_that_names_one_block_again_and_again_is_refused() {
    let test = CacheFixture::new(2048, cache_sectors(3000, 4096));
    test.load(&table(2048, 4096, ""));
    test.write_fua(0, 8, 1).unwrap();
    test.suspend(SuspendMode::Flush);
    let mut bytes = test.cache.durable().to_vec();
    // As a range of zeros would look to a superblock that has seen a commit.
    let zero = Entry { original_sector: 0, seq: Seq(0) };
    for (entries, refused) in [(1024, false), (1025, true), (3000, true)] {
        (0..entries).for_each(|slot| zero.write_at(&mut bytes, slot));
        let test = on(&bytes, 2048);
        if refused {
            let line = test.refusal(&table(2048, 4096, ""));
            let found = format!("cache: entries of sector 0: found {entries} that count");
            assert_eq!(line, format!("{found}, expected at most 1024"));
        } else {
            test.load(&table(2048, 4096, ""));
            assert_eq!(test.status().error(), 1);
        }
    }
}

#[test]
fn a_cache_device_shorter_than_its_cache_is_refused() {
    let bytes = used_cache();
    let line = on(&bytes[..bytes.len() - 4096], 2048).refusal(&table(2048, 4096, ""));
    let short = "cache: area too small: n_blocks 16 needs 69632 bytes, the device has 65536 \
                 (Memory area is too small)";
    assert_eq!(line, short);
    let line = CacheFixture::new(2048, 8).refusal(&table(2048, 4096, ""));
    assert!(line.starts_with("cache: ") && line.ends_with("(Memory area is too small)"), "{line}");
}

#[test]
fn entries_that_no_block_of_the_origin_can_have_are_refused() {
    let bytes = used_cache();
    let line = on(&bytes, 32).refusal(&table(32, 4096, ""));
    let beyond = "cache: entry 2 original_sector: found 32, expected a multiple of 8 with a block \
                  before the end of the origin, sector 32";
    assert_eq!(line, beyond, "the origin shrank");
    for sector in [4, u64::MAX, 1 << 40] {
        let mut bytes = used_cache();
        Entry { original_sector: sector, seq: Seq(0) }.write_at(&mut bytes, 9);
        let line = on(&bytes, 2048).refusal(&table(2048, 4096, ""));
        assert!(line.starts_with(&format!("cache: entry 9 original_sector: found {sector}, ")));
    }
}

#[test]
fn entries_beyond_the_table_line_are_kept_and_written_back() {
    let test = on(&used_cache(), 2048);
    test.load(&table(16, 4096, "pause_writeback 60000"));
    assert_eq!(test.status().dirty(), 3);
    test.message("flush").unwrap();
    let origin = test.origin.durable().to_vec();
    assert_eq!([origin[0], origin[16 * 512], origin[32 * 512]], [1, 2, 3]);
}

#[test]
fn tables_that_fit_no_device_are_refused() {
    let bytes = used_cache();
    for (line, refused) in [
        ("0 2048 writecache s origin origin 4096 0", "origin: "),
        ("0 4096 writecache s origin cache 4096 0", "origin: size: found 2048"),
        ("0 2044 writecache s origin cache 4096 0", "origin: length of the table line"),
        ("0 2048 writecache s origin cache 4096 2 start_sector 136", "cache: start_sector: "),
        ("0 2048 writecache s origin nowhere 4096 0", "nowhere: device"),
    ] {
        let found = on(&bytes, 2048).refusal(line);
        assert!(found.starts_with(refused), "{line}: {found}");
    }
}

#[test]
fn a_blank_device_with_a_signature_is_not_formatted() {
    let mut bytes = vec![0; 256 << 10];
    bytes[1080..1082].copy_from_slice(&[0x53, 0xef]);
    // What else an ext4 superblock has: block size, revision, inode count.
    bytes[1024..1028].copy_from_slice(&64u32.to_le_bytes());
    bytes[1028..1032].copy_from_slice(&256u32.to_le_bytes());
    let test = on(&bytes, 2048);
    let line = test.refusal(&table(2048, 4096, ""));
    let expected = "cache: not blank: found ext2 at byte 1024; \
                    to lose that: cairn format writecache cache --yes";
    assert_eq!(line, expected);
}

#[test]
fn a_device_with_data_or_a_signature_behind_its_first_sector_is_not_formatted() {
    let way_on = "to lose that: cairn format writecache cache --block-size 512 --start-sector 8";
    for (at, mark, found) in [
        (4096 + 512, &b"x"[..], "data (a byte that is not zero) at byte 4608"),
        (8191, b"x", "data (a byte that is not zero) at byte 8191"),
        (32769, b"CD001", "iso9660 at byte 32768"),
        (4096 + 32769, b"NSR02", "udf at byte 36864"),
    ] {
        let mut bytes = vec![0; 256 << 10];
        bytes[at..at + mark.len()].copy_from_slice(mark);
        let line = on(&bytes, 2048).refusal(&table(2048, 512, "start_sector 8"));
        assert_eq!(line, format!("cache: not blank: found {found}; {way_on} --yes"));
    }
}

#[test]
fn a_wrong_header_is_refused_with_the_signature_it_belongs_to() {
    let mut bytes = vec![0; 256 << 10];
    bytes[..4].copy_from_slice(b"XFSB");
    let line = on(&bytes, 2048).refusal(&table(2048, 4096, ""));
    let expected = "cache: superblock magic: found 0x42534658, expected 0x23489321 (Invalid magic \
                    in the superblock); found xfs at byte 0; to lose that: cairn format writecache \
                    cache --yes";
    assert_eq!(line, expected);
}

#[test]
fn a_cache_is_not_first_formatted_in_front_of_an_origin_that_is_itself_a_layer() {
    let mut store = vec![0; 1 << 20];
    store[..4].copy_from_slice(b"SnAp");
    let mut bcache = vec![0; 1 << 20];
    let magic = b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81";
    bcache[4120..4136].copy_from_slice(magic);
    let mut used = used_cache();
    used.resize(1 << 20, 0);
    let blank = Image::new(SectorCount(cache_sectors(16, 4096)));
    for (origin, found) in [
        (&used, "dm-writecache at byte 0"),
        (&store, "dm-snapshot at byte 0"),
        (&bcache, "bcache-cache at byte 4096"),
    ] {
        let test = CacheFixture::of_images(Image::of_bytes(origin), blank.clone(), 3);
        let line = test.refusal(&table(2048, 4096, ""));
        let expected = format!(
            "origin: the origin is itself a cache, store or pool: found {found}; to format cache \
             in front of it all the same: cairn format writecache cache --yes"
        );
        assert_eq!(line, expected);
    }
}

#[test]
fn a_cache_that_exists_opens_whatever_is_written_to_its_origin() {
    let mut origin = used_cache();
    origin.resize(1 << 20, 0);
    let test = CacheFixture::of_images(Image::of_bytes(&origin), Image::of_bytes(&used_cache()), 3);
    test.load(&table(2048, 4096, "pause_writeback 60000"));
    assert_eq!(test.byte(0), 1);
}

#[test]
fn a_device_that_is_no_longer_blank_at_resume_is_not_formatted() {
    let test = CacheFixture::new(2048, cache_sectors(16, 4096));
    test.fixture.build("test", &table(2048, 4096, "")).unwrap();
    let cache = test.registry.open("cache", false).unwrap();
    let written = test.sim.block_on(0, |env| {
        let io = write_io(&env, 7, 1, 7);
        async move { env.io(&cache, io).await }
    });
    written.unwrap();
    let refused = test.try_resume().unwrap_err().to_string();
    assert!(
        refused.contains("cache: not blank: found data (a byte that is not zero) at byte 3584")
    );
    assert_eq!(test.cache.visible().to_vec()[..3584], [0; 3584]);
}

#[test]
fn an_interrupted_format_is_done_again() {
    let test = CacheFixture::new(2048, cache_sectors(300, 4096));
    let end = test.start_load(&table(2048, 4096, ""));
    let mut rng = fastrand::Rng::with_seed(1);
    let mut steps = 0;
    while end.borrow().is_none() {
        assert!(test.sim.step());
        let cache = test.cache.power_cut(&mut rng);
        let again = CacheFixture::of_images(initial(2048), cache, 2);
        again.load(&table(2048, 4096, ""));
        assert_eq!((again.status().free(), again.byte(0)), (300, initial_byte(0)));
        again.write_fua(0, 8, 1).unwrap();
        steps += 1;
    }
    assert!(steps > 10, "{steps}");
    end.take().expect("ended").expect("it loads");
}

#[test]
fn formatting_touches_the_metadata_only() {
    let mut bytes = vec![0xaa; cache_sectors(16, 4096) as usize * 512];
    bytes[..4096].fill(0);
    let test = on(&bytes, 2048);
    test.load(&table(2048, 4096, ""));
    let after = test.cache.durable().to_vec();
    let superblock = Superblock::parse(&after).unwrap();
    assert_eq!((superblock.n_blocks(), superblock.seq()), (16, Seq(0)));
    for slot in 0..16 {
        assert_eq!(Entry::read_at(&after, slot), Some(Entry::NEVER_USED));
    }
    assert!(after[4096..] == bytes[4096..]);
}

#[test]
fn of_several_versions_the_newest_wins_and_the_others_are_freed_on_disk() {
    let mut bytes = used_cache();
    let seq = |bytes: &mut Vec<u8>, seq: u64| bytes[24..32].copy_from_slice(&seq.to_le_bytes());
    seq(&mut bytes, 5);
    let data = Geometry::for_format(bytes.len() as u64, BlockSize::new(4096).unwrap()).unwrap();
    for (slot, sector, seq) in [(5, 0, 3), (6, 0, 2), (7, 16, 4), (8, 32, 5), (9, 480, 9)] {
        Entry { original_sector: sector, seq: Seq(seq) }.write_at(&mut bytes, slot);
        let at = data.slot_offset(slot) as usize;
        bytes[at..at + 4096].fill(50 + slot as u8);
    }
    let test = on(&bytes, 2048);
    test.load(&table(2048, 4096, "pause_writeback 60000"));
    assert_eq!(test.durable_entries(), [(0, 3, 55), (16, 4, 57), (32, 0, 3)]);
    assert_eq!([test.byte(0), test.byte(16), test.byte(32)], [55, 57, 3]);
    assert_eq!((test.status().dirty(), test.status().error()), (3, 0));
    test.check();
    // Recovering again finds nothing to do.
    let before = test.cache.visible();
    test.suspend(SuspendMode::Flush);
    test.forget();
    test.resume();
    assert!(test.seen("cache").iter().all(|op| matches!(op.op, Op::Read | Op::Flush)));
    assert_eq!(test.cache.visible(), before);
}

#[test]
fn read_only_serves_a_dirty_cache_and_a_blank_one_without_a_write() {
    for bytes in [used_cache(), vec![0; 256 << 10]] {
        let test = on(&bytes, 2048);
        test.try_load_read_only(&table(2048, 4096, "")).unwrap();
        let expected = if bytes[0] == 0 { initial_byte(16) } else { 2 };
        assert_eq!(test.byte(16), expected);
        test.write(0, 8, 1).unwrap_err();
        let refused = test.message("flush").unwrap_err().to_string();
        assert_eq!(refused, "flush: the device is open read-only");
        test.run(std::time::Duration::from_secs(10));
        test.suspend(SuspendMode::Flush);
        test.resume();
        assert!(test.cache.visible().to_vec() == bytes);
        assert_eq!(test.origin.visible(), initial(2048));
    }
}

#[test]
fn the_printed_table_opens_the_same_cache() {
    let all = "high_watermark 60 low_watermark 20 autocommit_time 50 max_age 900000 \
               writeback_jobs 9 pause_writeback 17 cleaner";
    for options in ["", "start_sector 0", all] {
        let test = on(&used_cache(), 2048);
        test.load(&table(2048, 4096, options));
        let printed = test.target().table();
        test.load(&format!("0 2048 writecache {printed}"));
        assert_eq!(test.target().table(), printed);
        assert_eq!(test.byte(16), 2);
    }
}

#[test]
fn a_cache_on_a_grown_device_keeps_its_size() {
    let mut bytes = used_cache();
    bytes.extend([0; 64 << 10]);
    let test = on(&bytes, 2048);
    test.load(&table(2048, 4096, ""));
    assert_eq!((test.status().0[1], test.status().dirty()), (16, 3));
}

#[test]
fn a_fresh_table_that_another_users_failed_flush_lost_gets_no_superblock() {
    // A device counts as blank by its first 4 KiB: the slots behind may hold an earlier cache's.
    let test = CacheFixture::new(2048, cache_sectors(16, 4096));
    test.build("test", &table(2048, 4096, "")).unwrap();
    let (env, volume) = (test.sim.env(0).clone(), test.volume.clone());
    let resumed = Rc::new(Cell::new(None));
    let place = resumed.clone();
    test.sim.env(0).spawn(async move {
        place.set(Some(volume.resume(&env).await.is_ok()));
    });
    // The other's flush runs when the zeros of the table are completed, and loses them.
    while !test.seen("cache").iter().any(|seen| seen.op == Op::Write) {
        assert_eq!(resumed.get(), None);
        test.run(DRIVE_TIME / 4);
    }
    test.lose_by_another("cache");
    test.settle();
    assert_eq!(resumed.get(), Some(false));
    assert_eq!(test.cache.durable().to_vec()[..8], [0; 8]);
}
