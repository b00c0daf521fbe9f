//! Signatures placed by hand where their owners place them, and the windows that must cover them.
//! Images made by the owners' own tools are in `tests/golden_probe.rs`.

use proptest::prelude::{prop_assert, proptest};

use super::{Kind, MissingWindow, Signature, identify, windows};

const MIB: usize = 1 << 20;

/// A blank image with some bytes placed in it.
fn image(len: usize, marks: &[(usize, &[u8])]) -> Vec<u8> {
    let mut image = vec![0; len];
    for (offset, mark) in marks {
        image[*offset..*offset + mark.len()].copy_from_slice(mark);
    }
    image
}

/// Probes only through the windows, as a caller with a large device would.
fn probe(image: &[u8]) -> Vec<Signature> {
    let device_bytes = image.len() as u64;
    let pieces: Vec<(u64, &[u8])> = windows(device_bytes)
        .into_iter()
        .map(|window| (window.start, &image[window.start as usize..window.end as usize]))
        .collect();
    identify(device_bytes, &pieces).unwrap()
}

fn kinds(image: &[u8]) -> Vec<Kind> {
    probe(image).into_iter().map(|signature| signature.kind).collect()
}

#[test]
fn a_blank_device_of_any_size_has_no_signature() {
    for len in [0, 1, 511, 512, 513, 4096, 8191, 65536, 65536 + 512, MIB, 5 * MIB + 17] {
        assert_eq!(probe(&vec![0; len]), [], "{len}");
    }
}

#[test]
fn a_window_that_was_not_read_is_an_error_and_never_blank() {
    let second = windows(MIB as u64)[1].clone();
    let head = vec![0; second.start as usize];
    let found = identify(MIB as u64, &[(0, &head)]);
    assert_eq!(found, Err(MissingWindow(second.clone())));
    let (start, end) = (second.start, second.end);
    assert_eq!(
        found.unwrap_err().to_string(),
        format!("probe: found no bytes for {start}..{end}, expected every window to be read")
    );
}

#[test]
fn md_raid_is_found_at_each_of_its_places() {
    let len = MIB + 3 * 512;
    let magic = 0xa92b_4efc_u32.to_le_bytes();
    for (offset, version) in
        [(0, "version 1.1"), (4096, "version 1.2"), ((MIB + 3 * 512 - 8192) & !4095, "version 1.0")]
    {
        let name = offset + 32;
        let image = image(len, &[(offset, &magic), (offset + 4, &[1]), (name, b"host:0")]);
        let found = probe(&image);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].kind, found[0].offset), (Kind::MdRaid, offset as u64));
        assert_eq!(found[0].details, version);
        assert_eq!(found[0].label.as_deref(), Some("host:0"));
    }
}

#[test]
fn md_raid_0_90_is_found_in_both_byte_orders() {
    let offset = MIB - 65536;
    for magic in [0xa92b_4efc_u32.to_le_bytes(), 0xa92b_4efc_u32.to_be_bytes()] {
        let found = probe(&image(MIB + 100 * 512, &[(offset, &magic)]));
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].offset, found[0].details.as_str()), (offset as u64, "version 0.90"));
    }
}

#[test]
fn a_physical_volume_is_found_in_each_of_its_four_sectors() {
    for sector in 0..4 {
        let offset = sector * 512;
        let marks: [(usize, &[u8]); 4] = [
            (offset, b"LABELONE"),
            (offset + 20, &32u32.to_le_bytes()),
            (offset + 24, b"LVM2 001"),
            (offset + 32, b"abcdefABCD0123efghIJKL4567mnopqr"),
        ];
        let found = probe(&image(MIB, &marks));
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].kind, found[0].offset), (Kind::Lvm2, offset as u64));
        let uuid = "abcdef-ABCD-0123-efgh-IJKL-4567-mnopqr";
        assert_eq!(found[0].uuid.as_deref(), Some(uuid));
    }
}

#[test]
fn a_second_luks_header_is_enough() {
    for kib in [16, 32, 64, 128, 256, 512, 1024, 2048, 4096] {
        let offset = kib << 10;
        let found = probe(&image(5 * MIB, &[(offset, b"SKUL\xba\xbe\x00\x02")]));
        assert_eq!(found.len(), 1, "{kib}");
        assert_eq!((found[0].kind, found[0].offset), (Kind::Luks2, offset as u64));
        assert_eq!(found[0].details, "second header only");
    }
}

#[test]
fn a_gpt_header_is_found_for_both_block_sizes_and_at_both_ends() {
    let len = MIB + 4096;
    for (offset, details) in
        [(512, ""), (4096, ""), (len - 512, "backup only"), (len - 4096, "backup only")]
    {
        let found = probe(&image(len, &[(offset, b"EFI PART")]));
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].kind, found[0].offset), (Kind::Gpt, offset as u64));
        assert_eq!(found[0].details, details);
    }
}

#[test]
fn swap_is_found_for_every_page_size_and_when_hibernated() {
    for page in [4096, 8192, 16384, 32768, 65536] {
        assert_eq!(kinds(&image(MIB, &[(page - 10, b"SWAPSPACE2")])), [Kind::Swap]);
    }
    let found = probe(&image(MIB, &[(4086, b"S1SUSPEND\0")]));
    assert_eq!(found[0].details, "page size 4096, hibernation image");
}

#[test]
fn a_boot_sector_counts_with_and_without_partitions() {
    let found = probe(&image(MIB, &[(510, &[0x55, 0xAA])]));
    assert_eq!((found[0].kind, found[0].details.as_str()), (Kind::Mbr, "boot sector"));
    let found = probe(&image(MIB, &[(510, &[0x55, 0xAA]), (450, &[0x83]), (466, &[0x82])]));
    assert_eq!(found[0].details, "partitions 2");
}

#[test]
fn a_writecache_counts_even_when_it_would_not_open() {
    let magic = 0x2348_9321_u32.to_le_bytes();
    let found = probe(&image(MIB, &[(0, &magic), (4, &[9])]));
    assert_eq!(found[0].kind, Kind::Writecache);
    assert_eq!(found[0].details, "superblock version: found 9, expected 1");
    // Formatting that stopped before the magic.
    let found = kinds(&image(MIB, &[(4, &[1]), (8, &512u32.to_le_bytes())]));
    assert_eq!(found, [Kind::Writecache]);
}

#[test]
fn remains_of_several_owners_are_all_reported() {
    let marks: [(usize, &[u8]); 3] =
        [(0, b"XFSB"), (1024 + 56, &[0x53, 0xEF]), (65536 + 64, b"_BHRfS_M")];
    assert_eq!(kinds(&image(MIB, &marks)), [Kind::Ext2, Kind::Xfs, Kind::Btrfs]);
}

#[test]
fn a_label_cannot_carry_control_characters_to_a_terminal() {
    let found = probe(&image(MIB, &[(0, b"XFSB"), (108, b"\x1b[2Jx\xffy\nz")]));
    assert_eq!(found[0].label.as_deref(), Some("?[2Jx\u{fffd}y"));
    assert_eq!(found[0].to_string(), "xfs at byte 0, label ?[2Jx\u{fffd}y");
}

/// The structures below are written by hand from their published layouts; tools that make real ones
/// are called by `tests/clients/blank.sh`.
fn one(len: usize, marks: &[(usize, &[u8])]) -> (&'static str, u64) {
    let found = probe(&image(len, marks));
    assert_eq!(found.len(), 1, "{found:?}");
    (found[0].kind.name(), found[0].offset)
}

#[test]
fn hfs_is_found_by_its_magic_and_block_size() {
    let blocks: (usize, &[u8]) = (1024 + 20, &[0, 0, 0x10, 0]);
    assert_eq!(one(MIB, &[(1024, b"BD"), blocks]), ("hfs", 1024));
    assert_eq!(probe(&image(MIB, &[(1024, b"BD"), (1044, &[0, 0, 0x10, 1])])), []);
    let blocks: (usize, &[u8]) = (1024 + 40, &[0, 0, 0x10, 0]);
    assert_eq!(one(MIB, &[(1024, b"H+\0\x04"), blocks]), ("hfsplus", 1024));
    assert_eq!(one(MIB, &[(1024, b"HX\0\x05"), blocks]), ("hfsplus", 1024));
    assert_eq!(probe(&image(MIB, &[(1024, b"H+\0\x03"), blocks])), []);
    assert_eq!(probe(&image(MIB, &[(1024, b"H+\0\x04"), (1064, &[0, 0, 0x10, 1])])), []);
}

#[test]
fn zfs_is_found_by_each_of_its_four_labels() {
    let kib = |kib: usize| kib << 10;
    // XDR: encoding and byte order, version, flags; a pair: two sizes, length of its name, name.
    let list: &[u8] = b"\x01\x01\0\0\0\0\0\0\0\0\0\x01\0\0\0\x24\0\0\0\x20\0\0\0\x07version\0";
    let len = 64 * MIB + 300 * 512;
    for label in [0, kib(256), 64 * MIB - kib(512), 64 * MIB - kib(256)] {
        let at = label + kib(16);
        assert_eq!(one(len, &[(at, list)]), ("zfs", at as u64));
        assert_eq!(probe(&image(len, &[(at, &list[..24])])), [], "a name of zeros");
    }
}

#[test]
fn bcachefs_is_found_at_each_of_its_places() {
    let magic = b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef";
    let len = 8 * MIB + 512;
    for at in [4096, 2 * MIB, 7 * MIB + 512] {
        assert_eq!(one(len, &[(at + 24, magic)]), ("bcachefs", at as u64));
    }
}

#[test]
fn vmfs_vdo_and_oracle_asm_are_found() {
    assert_eq!(one(4 * MIB, &[(MIB, &0xc001_d00d_u32.to_le_bytes())]), ("vmfs-volume", 1 << 20));
    assert_eq!(one(4 * MIB, &[(2 * MIB, &0x2fab_f15e_u32.to_le_bytes())]), ("vmfs", 2 << 20));
    assert_eq!(one(MIB, &[(0, b"dmvdo001")]), ("vdo", 0));
    assert_eq!(one(MIB, &[(32, b"ORCLDISK")]), ("oracleasm", 0));
}

#[test]
fn drbd_is_found_in_the_last_4_kib_of_whole_ones_and_of_all() {
    for magic in [0x8374_026b_u32, 0x8374_026c, 0x8374_026d] {
        let magic = magic.to_be_bytes();
        let len = MIB + 512;
        let at = MIB - 4096;
        assert_eq!(one(len, &[(at + 60, &magic)]), ("drbd", at as u64));
        let at = len - 4096;
        assert_eq!(one(len, &[(at + 60, &magic)]), ("drbd", at as u64));
    }
}

#[test]
fn the_raids_of_disk_controllers_are_found_at_the_end() {
    let len = 8 * MIB;
    let last = len - 512;
    let cases: [(&str, usize, &[u8]); 9] = [
        ("ddf-raid", last, b"\xde\x11\xde\x11"),
        ("ddf-raid", len - 257 * 512, b"\xde\x11\xde\x11"),
        ("highpoint-raid", len - 11 * 512, b"\xf3\x16\x78\x5a"),
        ("intel-raid", len - 1024, b"Intel Raid ISM Cfg Sig. 1.3.00"),
        ("intel-raid", len - 8192, b"Intel Raid ISM Cfg Sig. 1.3.00"),
        ("lsi-raid", last, b"$XIDE$"),
        ("nvidia-raid", len - 1024, b"NVIDIA  "),
        ("promise-raid", len - 63 * 512, b"Promise Technology, Inc."),
        ("promise-raid", len - 3087 * 512, b"Promise Technology, Inc."),
    ];
    for (name, at, mark) in cases {
        assert_eq!(one(len, &[(at, mark)]), (name, at as u64));
    }
    assert_eq!(one(len, &[(4608 + 32, b"\xf0\x16\x78\x5a")]), ("highpoint-raid", 4608));
    let adaptec: [(usize, &[u8]); 2] = [(last, b"\x37\xfc\x4d\x1e"), (last + 256, b"DPTM")];
    assert_eq!(one(len, &adaptec), ("adaptec-raid", last as u64));
    assert_eq!(probe(&image(len, &adaptec[..1])), []);
}

#[test]
fn short_marks_of_disk_controllers_need_their_checksums() {
    let len = MIB;
    let last = len - 512;
    let via: [(usize, &[u8]); 2] = [(last, b"\x55\xaa\x01"), (last + 50, &[0])];
    assert_eq!(one(len, &via), ("via-raid", last as u64));
    assert_eq!(probe(&image(len, &[(last, b"\x55\xaa\x01"), (last + 50, &[1])])), []);
    // The words sum up to 0: 0x4d4a and its complement.
    let rest = 0u16.wrapping_sub(u16::from_le_bytes(*b"JM")).to_le_bytes();
    assert_eq!(one(len, &[(last, b"JM"), (last + 4, &rest)]), ("jmicron-raid", last as u64));
    assert_eq!(probe(&image(len, &[(last, b"JM")])), []);
    let magic: (usize, &[u8]) = (last + 0x60, &0x2f00_0000_u32.to_le_bytes());
    let checksum = 0u16.wrapping_sub(0x2f00).to_le_bytes();
    assert_eq!(one(len, &[magic, (last + 0x13E, &checksum)]), ("silicon-raid", last as u64));
    assert_eq!(probe(&image(len, &[magic])), []);
}

#[test]
fn old_unix_file_systems_are_found_in_both_byte_orders() {
    for magic in [0x0001_1954_u32, 0x1954_0119] {
        for (bytes, at) in [
            (magic.to_le_bytes(), 8 << 10),
            (magic.to_be_bytes(), 64 << 10),
            (magic.to_le_bytes(), 256 << 10),
        ] {
            assert_eq!(one(MIB, &[(at + 1372, &bytes)]), ("ufs", at as u64));
        }
    }
    for block in [9, 15, 18] {
        let at = block * 1024 + 512;
        assert_eq!(one(MIB, &[(at + 504, b"\xfd\x18\x7e\x20")]), ("sysv", at as u64));
    }
    assert_eq!(one(MIB, &[(8192, b"\xa5\x01\xfc\xf5")]), ("vxfs", 8192));
    assert_eq!(one(MIB, &[(8192, b"\x49\xe8\x95\xf9")]), ("hpfs", 8192));
}

#[test]
fn minix_needs_more_than_its_magic() {
    // 16 inodes, a map of each kind, first zone 5 of 40.
    let version_1 = |zones: u8| [16, 0, zones, 0, 1, 0, 1, 0, 5, 0, 0, 0];
    let sound = version_1(40);
    assert_eq!(one(MIB, &[(1024, &sound), (1040, b"\x8f\x13")]), ("minix", 1024));
    let marks: [(usize, &[u8]); 2] = [(1024, &version_1(4)), (1040, b"\x8f\x13")];
    assert_eq!(probe(&image(MIB, &marks)), [], "the first zone lies behind the last");
    assert_eq!(probe(&image(MIB, &[(1040, b"\x8f\x13")])), []);
    assert_eq!(probe(&image(MIB, &[(1048, b"\x5a\x4d")])), []);
}

#[test]
fn fat_needs_parameters_that_describe_one() {
    let jump: (usize, &[u8]) = (0, b"\xeb\x3c\x90");
    let mark: (usize, &[u8]) = (510, &[0x55, 0xAA]);
    // 512 bytes in a sector, 4 sectors in a cluster, 1 reserved, 2 FATs, 2000 sectors, 8 per FAT.
    let parameters = b"\0\x02\x04\x01\0\x02\0\x02\xd0\x07\xf8\x08\0";
    let fat = image(MIB, &[jump, mark, (11, parameters)]);
    assert_eq!(kinds(&fat), [Kind::Other("vfat"), Kind::Mbr]);
    let named = image(MIB, &[(11, parameters), (0x36, b"FAT12   ")]);
    assert_eq!(kinds(&named), [Kind::Other("vfat")]);
    assert_eq!(kinds(&image(MIB, &[jump, mark])), [Kind::Mbr]);
    for (place, byte) in [(12, 3), (13, 3), (14, 0), (16, 0), (23, 8), (21, 0x80)] {
        let mut other = fat.clone();
        other[place] = byte;
        assert_eq!(kinds(&other), [Kind::Mbr], "{place}");
    }
}

#[test]
fn udf_is_found_behind_the_descriptors_of_iso9660_and_in_larger_blocks() {
    assert_eq!(one(MIB, &[(32769, b"BEA01")]), ("udf", 32768));
    assert_eq!(one(MIB, &[(32769, b"NSR03")]), ("udf", 32768));
    let bridge: [(usize, &[u8]); 2] = [(32769, b"CD001"), (32769 + 2048, b"NSR02")];
    assert_eq!(kinds(&image(MIB, &bridge)), [Kind::Other("iso9660"), Kind::Other("udf")]);
    let large: [(usize, &[u8]); 2] = [(32769, b"CD001"), (32769 + 4096, b"NSR02")];
    assert_eq!(kinds(&image(MIB, &large)), [Kind::Other("iso9660"), Kind::Other("udf")]);
    let apart: [(usize, &[u8]); 2] = [(32769, b"CD001"), (32769 + 8192, b"NSR02")];
    assert_eq!(kinds(&image(MIB, &apart)), [Kind::Other("iso9660")]);
}

#[test]
fn metadata_of_other_device_mapper_targets_is_found() {
    for (name, magic) in [
        ("dm-cache-metadata", 0o6_142_003_u64),
        ("dm-era-metadata", 2_126_579_579),
        ("dm-clone-metadata", 0x8af2_7f64),
    ] {
        assert_eq!(one(MIB, &[(32, &magic.to_le_bytes())]), (name, 0));
        assert!(Kind::Other(name).is_layer());
    }
    assert_eq!(one(MIB, &[(0, b"verity\0\0")]), ("dm-verity", 0));
    assert_eq!(one(MIB, &[(0, b"integrt\0")]), ("dm-integrity", 0));
    assert!(!Kind::Other("dm-verity").is_layer() && !Kind::Ext4.is_layer());
}

#[test]
fn the_manual_names_every_signature() {
    let manual = include_str!("../../../../docs/formats/probe.md");
    for row in super::signatures::TABLE {
        assert!(manual.contains(&format!("`{}`", row.name)), "{}", row.name);
    }
    for name in ["udf", "xfs-log"] {
        assert!(manual.contains(&format!("`{name}`")), "{name}");
    }
}

proptest! {
    #[test]
    fn windows_are_whole_sectors_within_the_device_and_small(device_bytes in 0u64..1 << 50) {
        let windows = windows(device_bytes);
        for window in &windows {
            prop_assert!(window.start <= window.end && window.end <= device_bytes);
            prop_assert!(window.start % 512 == 0 && window.end % 512 == 0);
        }
        prop_assert!(windows.windows(2).all(|pair| pair[0].end < pair[1].start));
        let bytes: u64 = windows.iter().map(|window| window.end - window.start).sum();
        prop_assert!(windows.len() < 40 && bytes < 256 << 10, "{}: {bytes}", windows.len());
    }
}
