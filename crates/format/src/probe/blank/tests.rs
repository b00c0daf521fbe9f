//! Ranges that are blank, and ranges that only seem to be.

use super::{Area, Verdict};
use crate::probe::Kind;
use crate::writecache::Geometry;

const MIB: u64 = 1 << 20;

/// Judges only through the windows, as a caller with a large device would.
fn judge(area: Area, image: &[u8]) -> Verdict {
    let windows = area.windows();
    let pieces: Vec<(u64, &[u8])> = windows
        .into_iter()
        .map(|window| (window.start, &image[window.start as usize..window.end as usize]))
        .collect();
    area.judge(&pieces).unwrap()
}

fn verdict(start: u64, marks: &[(u64, &[u8])]) -> Verdict {
    let mut image = vec![0; 4 * MIB as usize];
    for (offset, mark) in marks {
        image[*offset as usize..*offset as usize + mark.len()].copy_from_slice(mark);
    }
    judge(Area::new(4 * MIB, start), &image)
}

fn found(start: u64, marks: &[(u64, &[u8])]) -> String {
    verdict(start, marks).to_string()
}

#[test]
fn only_zeros_in_the_first_4_kib_are_blank() {
    assert_eq!(verdict(0, &[]), Verdict::Blank);
    assert_eq!(verdict(0, &[(4096, &[1])]), Verdict::Blank);
    assert_eq!(verdict(0, &[(8, &[1])]), Verdict::Data(8));
    assert_eq!(verdict(0, &[(4095, &[1])]), Verdict::Data(4095));
    assert_eq!(verdict(MIB, &[(MIB + 4095, &[1])]), Verdict::Data(MIB + 4095));
    assert_eq!(verdict(MIB, &[(MIB - 1, &[1])]), Verdict::Blank);
    assert_eq!(found(0, &[(8, &[1])]), "data (a byte that is not zero) at byte 8");
}

#[test]
fn a_device_of_any_size_and_start_is_judged() {
    for len in [0, 511, 512, 4096, 4608, MIB - 512] {
        for start in [0, 512, 4096] {
            let area = Area::new(len, start);
            assert_eq!(judge(area, &vec![0; len as usize]), Verdict::Blank, "{len} {start}");
        }
    }
}

#[test]
fn a_signature_far_behind_the_start_is_found_and_named_with_its_offset() {
    assert_eq!(found(0, &[(32769, b"CD001")]), "iso9660 at byte 32768");
    let marks: [(u64, &[u8]); 2] = [(32769, b"CD001"), (4 * MIB - 512, b"EFI PART")];
    let expected = format!("iso9660 at byte 32768, gpt at byte {}", 4 * MIB - 512);
    assert_eq!(found(0, &marks), expected);
    // Also found in a range that begins later, as in a partition of its own.
    let at = MIB + 32769;
    assert_eq!(found(MIB, &[(at, b"CD001")]), format!("iso9660 at byte {}", MIB + 32768));
}

#[test]
fn signature_before_the_range_covers_it() {
    assert_eq!(found(MIB, &[(0, b"XFSB")]), "xfs at byte 0");
    assert_eq!(found(MIB, &[(512, b"EFI PART")]), "gpt at byte 512");
}

#[test]
fn a_boot_record_covers_the_range_only_with_a_partition_that_reaches_into_it() {
    let mark: (u64, &[u8]) = (510, &[0x55, 0xAA]);
    let partition = |start: u32, sectors: u32| {
        let mut entry = [0; 16];
        entry[4] = 0x83;
        entry[8..12].copy_from_slice(&start.to_le_bytes());
        entry[12..].copy_from_slice(&sectors.to_le_bytes());
        entry
    };
    assert_eq!(verdict(MIB, &[mark]), Verdict::Blank);
    assert_eq!(verdict(MIB, &[mark, (446, &partition(1, 2047))]), Verdict::Blank);
    for (start, sectors) in [(1, 2048), (4096, 1), (u32::MAX, u32::MAX)] {
        let marks: [(u64, &[u8]); 2] = [mark, (462, &partition(start, sectors))];
        assert_eq!(found(MIB, &marks), "mbr at byte 0", "{start}");
    }
    assert_eq!(found(0, &[mark]), "mbr at byte 0");
}

#[test]
fn the_windows_zeroed_make_the_range_blank_and_leave_the_rest_alone() {
    for start in [0, MIB] {
        let area = Area::new(4 * MIB, start);
        let mut image = vec![0x34; 4 * MIB as usize];
        assert!(!judge(area, &image).is_blank());
        for window in area.windows_within() {
            assert!(window.start >= start);
            image[window.start as usize..window.end as usize].fill(0);
        }
        assert_eq!(judge(area, &image), Verdict::Blank, "{start}");
        assert!(image[..start as usize].iter().all(|byte| *byte == 0x34));
    }
}

#[test]
fn remainder_of_an_interrupted_format_counts_as_blank_on_request() {
    let mut image = vec![0; MIB as usize];
    image[64..4096].fill(0xFF);
    let area = Area::new(MIB, 0);
    assert_eq!(judge(area, &image), Verdict::Data(64));
    let area = area.or_own_remainder(Geometry::is_interrupted_format);
    assert_eq!(judge(area, &image), Verdict::Blank);
    image[32769..32774].copy_from_slice(b"CD001");
    let Verdict::Signatures(found) = judge(area, &image) else { panic!("a file system is there") };
    assert_eq!(found[0].kind, Kind::Other("iso9660"));
}

#[test]
fn a_window_that_was_not_read_is_an_error_and_never_blank() {
    let area = Area::new(MIB, 0);
    assert!(area.judge(&[(0, &[0; 4096])]).is_err());
}
