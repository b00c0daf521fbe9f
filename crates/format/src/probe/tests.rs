//! Marks placed by hand where their owners place them, and the windows that must show them. Images
//! made by the owners' own tools are in `tests/golden_probe.rs`.

use proptest::prelude::{prop_assert, proptest};

use super::{HEAD_BYTES, Kind, MissingWindow, Signature, identify, windows};

const MIB: usize = 1 << 20;

/// A blank image with some bytes placed in it.
fn image(len: usize, marks: &[(usize, &[u8])]) -> Vec<u8> {
    let mut image = vec![0; len];
    for (offset, mark) in marks {
        image[*offset..*offset + mark.len()].copy_from_slice(mark);
    }
    image
}

/// Probes through the windows alone, as a caller with a large device would.
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
    let head = vec![0; 68 << 10];
    let found = identify(MIB as u64, &[(0, &head)]);
    assert_eq!(found, Err(MissingWindow(128 << 10..(128 << 10) + 512)));
    assert_eq!(
        found.unwrap_err().to_string(),
        "probe: found no bytes for 131072..131584, expected every window to be read"
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
fn remains_of_several_owners_are_all_told() {
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

proptest! {
    #[test]
    fn windows_are_whole_sectors_within_the_device(device_bytes in 0u64..1 << 50) {
        for window in windows(device_bytes) {
            prop_assert!(window.start <= window.end && window.end <= device_bytes);
            prop_assert!(window.start % 512 == 0 && window.end % 512 == 0);
            prop_assert!(window.end - window.start <= HEAD_BYTES);
        }
    }
}
