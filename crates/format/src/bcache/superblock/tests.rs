//! Decoding an encoded superblock gives its fields, and illegal values are refused.

use proptest::prelude::*;

use super::*;

fn new_cache() -> NewCache {
    NewCache {
        uuid: Uuid([1; 16]),
        set_uuid: Uuid([2; 16]),
        block_sectors: 1,
        bucket_sectors: 128,
        device_sectors: 1 << 17,
        replacement: Replacement::Fifo,
        discard: true,
    }
}

fn new_backing() -> NewBacking {
    NewBacking {
        uuid: Uuid([3; 16]),
        set_uuid: Uuid([2; 16]),
        block_sectors: 8,
        data_offset: 64,
        mode: CacheMode::Writeback,
        state: BackingState::Clean,
        label: *b"disk\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
    }
}

/// A superblock with one byte range changed and a checksum that is right again.
fn changed(superblock: &[u8], at: usize, bytes: &[u8]) -> Result<Superblock, Error> {
    let mut changed = superblock.to_vec();
    changed[at..at + bytes.len()].copy_from_slice(bytes);
    let raw = Raw::ref_from_bytes(&changed).expect("its size");
    let csum = checksum_of(raw);
    changed[..8].copy_from_slice(&csum.to_le_bytes());
    Superblock::decode(&changed)
}

#[test]
fn a_fresh_cache_reads_as_it_was_made() {
    let fresh = CacheSuperblock::fresh(&new_cache()).expect("legal");
    let read = Superblock::decode(&fresh.encode()).expect("sound");
    assert_eq!(read, Superblock::Cache(fresh.clone()));
    assert_eq!((fresh.version(), fresh.seq(), fresh.is_in_use()), (3, 0, false));
    assert_eq!(fresh.geometry().buckets(), 1024);
    assert_eq!(fresh.geometry().usable(), 1..1024);
    assert_eq!((fresh.replacement(), fresh.discards()), (Replacement::Fifo, true));
    assert!(fresh.journal_buckets().is_empty());

    let used = fresh.in_use_with_journal(8).registered(77);
    let Ok(Superblock::Cache(read)) = Superblock::decode(&used.encode()) else { panic!("sound") };
    assert!(read.is_in_use());
    assert_eq!((read.seq(), read.last_mount(), read.journal_buckets()), (1, 77, 1..9));
}

#[test]
fn large_buckets_need_the_feature() {
    let new = NewCache { bucket_sectors: 1 << 17, device_sectors: 1 << 26, ..new_cache() };
    let fresh = CacheSuperblock::fresh(&new).expect("legal");
    assert_eq!((fresh.version(), fresh.features()), (5, [0, 2, 0]));
    assert_eq!(fresh.geometry().bucket_sectors(), 1 << 17);
}

#[test]
fn a_backing_device_reads_as_it_was_made() {
    let mut backing = BackingSuperblock::fresh(&new_backing()).expect("legal");
    assert_eq!((backing.version(), backing.data_offset(), backing.seq()), (4, 64, 0));
    assert_eq!((backing.mode(), backing.state()), (CacheMode::Writeback, BackingState::Clean));
    assert_eq!(backing.label(), "disk");
    assert_eq!(backing.data_sectors(100), Ok(36));
    assert!(backing.data_sectors(64).is_err());
    for state in [BackingState::Dirty, BackingState::Stale, BackingState::None, BackingState::Clean]
    {
        backing.set_state(state);
        assert_eq!((backing.state(), backing.mode()), (state, CacheMode::Writeback));
        let read = Superblock::decode(&backing.encode());
        assert_eq!(read, Ok(Superblock::Backing(backing.clone())));
    }
    let old = NewBacking { data_offset: DATA_OFFSET, state: BackingState::None, ..new_backing() };
    let old = BackingSuperblock::fresh(&old).expect("legal");
    assert_eq!((old.version(), old.data_offset(), old.state()), (1, 16, BackingState::None));
}

#[test]
fn unknown_bytes_are_kept() {
    let backing = BackingSuperblock::fresh(&new_backing()).expect("legal").encode();
    let mut with_more = backing.clone();
    with_more[1024..4096].fill(0xa5);
    let Ok(Superblock::Backing(mut read)) = Superblock::decode(&with_more) else {
        panic!("they are outside of the checksum")
    };
    read.set_state(BackingState::Dirty);
    assert_eq!(read.encode()[1024..4096], with_more[1024..4096]);
    // Pad, and the unassigned bits of the flags.
    for at in [144, 183, 109] {
        let Ok(Superblock::Backing(mut read)) = changed(&backing, at, &[0x80]) else {
            panic!("byte {at} is accepted")
        };
        read.set_mode(CacheMode::None);
        assert_eq!(read.encode()[at], 0x80);
    }
}

#[test]
fn what_is_not_legal_is_refused_by_its_field() {
    let cache = CacheSuperblock::fresh(&new_cache()).expect("legal").in_use_with_journal(4);
    let cache = cache.encode();
    let cases: &[(usize, &[u8], &str)] = &[
        (8, &[9], "superblock offset: found sector 9"),
        (16, &[2], "superblock version: found 2"),
        (16, &[7], "superblock version: found 7"),
        (40, &[0; 16], "superblock uuid: found zeros"),
        (56, &[0; 16], "superblock set_uuid: found zeros"),
        (184, &[127, 0, 0, 0, 0, 0, 0, 0], "superblock nbuckets: found 127"),
        (192, &[3], "superblock block_size: found 3"),
        (192, &[16], "superblock block_size: found 16"),
        (194, &[100], "superblock bucket_size: found 100"),
        (194, &[4], "superblock bucket_size: found 4"),
        (112, &[1, 0, 0, 0, 0, 0, 0, 0x80], "superblock seq: found 9223372036854775809"),
        (196, &[2], "superblock nr_in_set: found 2"),
        (198, &[1], "superblock nr_this_dev: found 1"),
        (204, &[0], "superblock first_bucket: found 0"),
        (206, &[1, 1], "superblock keys: found 257"),
        (216, &[9], "superblock journal bucket 1: found bucket 9, expected 2"),
    ];
    for (at, bytes, expected) in cases {
        let error = changed(&cache, *at, bytes).expect_err(expected).to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    let mut unknown = CacheSuperblock::fresh(&new_cache()).expect("legal");
    unknown.bytes.0.version = U64::new(5);
    unknown.bytes.0.feature_incompat = U64::new(6);
    let error = Superblock::decode(&unknown.encode()).expect_err("an unknown feature").to_string();
    assert_eq!(error, "superblock feature_incompat: found 0x6, expected no bits but 0x3");

    let backing = BackingSuperblock::fresh(&new_backing()).expect("legal").encode();
    let error = changed(&backing, 184, &[15]).expect_err("within the superblock").to_string();
    assert!(error.starts_with("superblock data_offset: found 15"), "{error}");
    let error = changed(&backing, 184, &[0xff; 8]).expect_err("beyond each device").to_string();
    assert!(error.starts_with("superblock data_offset: found 18446744073709551615"), "{error}");
}

#[test]
fn features_of_a_backing_device_are_what_a_kernel_left_there_and_count_for_nothing() {
    let mut superblock = BackingSuperblock::fresh(&new_backing()).expect("legal");
    superblock.bytes.0.version = U64::new(6);
    // Linux 6.1 wrote these, the second where it had read a cache before.
    for features in [[0x2000_0008_e298_0e80, 0, 0x1_0080_0080], [0, 2, 0]] {
        superblock.bytes.0.feature_compat = U64::new(features[0]);
        superblock.bytes.0.feature_incompat = U64::new(features[1]);
        superblock.bytes.0.feature_ro_compat = U64::new(features[2]);
        let read = Superblock::decode(&superblock.encode());
        assert_eq!(read, Ok(Superblock::Backing(superblock.clone())), "{features:x?}");
    }
}

proptest! {
    #[test]
    fn each_damaged_bit_that_the_checksum_covers_is_found(bit in 0..(208 + 8 * 4) * 8_usize) {
        let cache = CacheSuperblock::fresh(&new_cache()).expect("legal").in_use_with_journal(4);
        let mut bytes = cache.encode();
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(Superblock::decode(&bytes).is_err());
    }

    #[test]
    fn no_bytes_make_it_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..4200)) {
        let _ = Superblock::decode(&bytes);
        if bytes.len() >= SUPERBLOCK_BYTES {
            bytes[24..40].copy_from_slice(&MAGIC);
            bytes[8..24].copy_from_slice(&[8, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
            bytes[207] = 0;
            let _ = changed(&bytes[..SUPERBLOCK_BYTES], 0, &[]);
        }
    }
}
