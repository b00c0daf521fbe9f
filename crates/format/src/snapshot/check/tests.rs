//! Stores built record by record, and the findings that they must give.

use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

use super::{Checker, FINDINGS_MAX, Finding, Limits, Report, Severity, check};
use crate::snapshot::{ChunkSize, CowChunk, Header, Layout, OriginChunk, Record};

const ORIGIN_SECTORS: u64 = 1000;

fn limits(device: &[u8]) -> Limits {
    Limits { device_sectors: device.len() as u64 / 512, origin_sectors: Some(ORIGIN_SECTORS) }
}

/// A device of one-sector chunks with these records, each as (index, old, new).
fn device(chunks: usize, records: impl IntoIterator<Item = (u64, u64, u64)>) -> Vec<u8> {
    let size = ChunkSize::new(1).unwrap();
    let layout = Layout::new(size, chunks as u64).unwrap();
    let mut device = vec![0; chunks * 512];
    device[..16].copy_from_slice(&Header::fresh(size).encode());
    for (index, old, new) in records {
        let record = Record { old: OriginChunk(old), new: CowChunk(new) };
        let offset = usize::try_from(layout.record_offset(index)).unwrap();
        record.write_at(&mut device[offset..], 0);
    }
    device
}

/// The first `count` records as an allocator in order would leave them.
fn ordered(count: u64) -> impl Iterator<Item = (u64, u64, u64)> {
    (0..count).map(|index| (index, index, 2 + index + index / 32))
}

fn judged(device: &[u8]) -> Report {
    check(device, limits(device))
}

fn lines(report: &Report) -> Vec<String> {
    report.findings.iter().map(Finding::to_string).collect()
}

fn assert_one(device: &[u8], severity: Severity, line: &str) {
    let report = judged(device);
    assert_eq!(lines(&report), [line]);
    assert_eq!(report.severity, severity);
}

#[test]
fn stores_that_the_kernel_could_have_left_are_sound() {
    for count in [0, 1, 31, 32, 33, 64, 80] {
        let report = judged(&device(160, ordered(count)));
        assert_eq!((report.severity, report.counts.records), (Severity::Sound, count));
    }
    // Not in order, and with chunks that no record names.
    let report = judged(&device(160, [(0, 900, 7), (1, 0, 159), (2, 5, 3)]));
    assert_eq!(report.severity, Severity::Sound);
    assert_eq!(report.next_free, CowChunk(160));
    assert_eq!(report.usage(), Some((160, 160, 2)));
}

#[test]
fn areas_that_the_list_does_not_reach_may_hold_anything() {
    let mut device = device(160, ordered(5));
    device[2 * 512..].fill(0xAA);
    assert_eq!(judged(&device).severity, Severity::Sound);
}

#[test]
fn invalid_header_is_damage() {
    let mut device = device(160, ordered(5));
    device[12] = 24;
    let line = "chunk size: found 24 sectors, expected a power of two of at most 4194303";
    assert_one(&device, Severity::Damaged, line);
    device[0] = 0;
    let line = "header magic: found 0x70416e00, expected 0x70416e53";
    assert_one(&device, Severity::Damaged, line);
    device[..4].fill(0);
    let line = "header magic: found 0, expected a formatted exception store";
    assert_one(&device, Severity::Damaged, line);
    let size = ChunkSize::new(8).unwrap();
    let line = "device: found 8 sectors, expected at least 16";
    let mut short = vec![0; 4096];
    short[..16].copy_from_slice(&Header::fresh(size).encode());
    assert_one(&short, Severity::Damaged, line);
}

#[test]
fn an_invalidated_store_is_not_to_be_trusted_though_its_records_are_counted() {
    let mut device = device(160, ordered(5));
    device[4] = 0;
    let line = "header valid: found 0, expected 1 (the snapshot was given up)";
    assert_one(&device, Severity::Damaged, line);
    assert_eq!(judged(&device).counts.records, 5);
}

#[test]
fn every_fault_of_a_record_is_named() {
    let two = |second: (u64, u64)| device(160, [(0, 5, 7), (1, second.0, second.1)]);
    let cases = [
        ((6, 160), "record 1 new_chunk: found 160, expected a chunk below the device's 160"),
        ((6, 1), "record 1 new_chunk: found 1, a metadata chunk, expected a data chunk"),
        ((6, 34), "record 1 new_chunk: found 34, a metadata chunk, expected a data chunk"),
        ((1000, 8), "record 1 old_chunk: found 1000, expected a chunk below the origin's 1000"),
        ((5, 8), "record 1 old_chunk: found 5 kept as 8, which record 0 keeps as 7"),
        ((6, 7), "record 1 new_chunk: found 7 for chunk 6, where record 0 keeps 5"),
    ];
    for (second, line) in cases {
        assert_one(&two(second), Severity::Damaged, line);
    }
    let line = "record 1 found chunk 5 kept as 7, which record 0 says already";
    assert_one(&two((5, 7)), Severity::Repairable, line);
    assert_eq!(judged(&two((5, 7))).counts.faulty, 1);
}

#[test]
fn without_an_origin_only_impossible_old_chunks_are_reported() {
    let device = device(160, [(0, 1 << 40, 7), (1, 1 << 54, 8)]);
    let report = check(&device, Limits { origin_sectors: None, ..limits(&device) });
    assert_eq!(report.counts.faulty, 1);
}

#[test]
fn a_torn_write_leaves_records_after_the_end() {
    let records = ordered(31).filter(|(index, ..)| ![5, 6].contains(index));
    let line = "record 5: found the end of the list with 24 records after it in its area, \
                expected none (a write was torn)";
    assert_one(&device(160, records), Severity::Repairable, line);
    // The last slot is taken, but the next area is as empty as it was made.
    let records = ordered(32).filter(|(index, ..)| *index != 5);
    assert_eq!(judged(&device(160, records)).severity, Severity::Repairable);
}

#[test]
fn list_that_continued_in_the_next_area_has_lost_records() {
    let report = judged(&device(160, ordered(40).filter(|(index, ..)| *index != 5)));
    assert_eq!(report.severity, Severity::Damaged);
    assert_eq!(
        lines(&report)[1],
        "record 5: found the end of the list, yet area 1 goes on with 8 records, expected no gap \
         (records are lost)"
    );
    assert_eq!(report.counts.after_end, 34);
}

#[test]
fn full_area_at_the_end_of_the_device_needs_a_larger_device() {
    let line = "area 0: found it full at the end of the device, expected room for one more area \
                (grow the device by a chunk)";
    assert_one(&device(34, ordered(32)), Severity::Repairable, line);
    assert_eq!(judged(&device(35, ordered(32))).severity, Severity::Sound);
}

#[test]
fn bytes_that_were_never_given_are_damage() {
    let device = device(160, ordered(5));
    let report = Checker::new(&device, limits(&device)).finish();
    assert_eq!(lines(&report), ["area: found no bytes at 512, expected records"]);
}

#[test]
fn findings_beyond_the_limit_are_counted() {
    let count = FINDINGS_MAX as u64 + 10;
    let device = device(2000, (0..count).map(|index| (index, index % 1000, 1)));
    let report = judged(&device);
    assert_eq!((report.findings.len(), report.findings_left_out), (FINDINGS_MAX, 10));
}

proptest! {
    #[test]
    fn pieces_of_any_size_give_the_same_report(
        slots in proptest::collection::vec((0u64..12, 0u64..45), 0..70),
        bytes_max in any::<u16>(),
    ) {
        let records = (0..).zip(&slots).map(|(index, (old, new))| (index, *old, *new));
        let device = device(120, records);
        let whole = judged(&device);
        let mut checker = Checker::new(&device, limits(&device));
        while let Some(range) = checker.wants(u64::from(bytes_max)) {
            checker.feed(&device[range.start as usize..range.end as usize]);
        }
        prop_assert_eq!(checker.finish(), whole);
    }

    #[test]
    fn checker_agrees_with_the_reference_model(
        slots in proptest::collection::vec((0u64..40, 0u64..90), 0..40),
    ) {
        let records = (0..).zip(&slots).map(|(index, (old, new))| (index, *old, *new));
        let device = device(80, records);
        let list: Vec<_> = slots.iter().take_while(|(_, new)| *new != 0).collect();
        let rest = &slots[list.len()..];
        // The next area is read only if the last slot before it is taken.
        let looked_at = match rest.len() {
            _ if list.len() < 32 && slots.get(31).is_none_or(|(_, new)| *new == 0) => {
                &rest[..rest.len().min(32 - list.len())]
            }
            _ => rest,
        };
        let sound = looked_at.iter().all(|slot| *slot == (0, 0))
            && list.iter().enumerate().all(|(i, (old, new))| {
                let twice = list[..i].iter().any(|(o, n)| o == old || n == new);
                !twice && ![1, 34, 67].contains(new) && *new < 80
            });
        let report = judged(&device);
        prop_assert_eq!(report.counts.records, list.len() as u64);
        prop_assert_eq!(report.severity == Severity::Sound, sound, "{:?}", report.findings);
        let lines = |finding: &Finding| finding.to_string().lines().count();
        prop_assert!(report.findings.iter().all(|finding| lines(finding) == 1));
    }
}
