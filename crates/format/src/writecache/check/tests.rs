//! The checker finding by finding, then against a reference model.

use std::collections::BTreeMap;

use proptest::prelude::{Just, Strategy, any, prop_assert_eq, prop_oneof, proptest};

use super::{Counts, FINDINGS_MAX, Finding, Limits, Report, Severity, check};
use crate::writecache::{
    BlockSize, ENTRY_BYTES, Entry, Error, Geometry, NO_SECTOR, SUPERBLOCK_BYTES, Seq, Superblock,
};

const FREE: (u64, u64) = (NO_SECTOR, u64::MAX);

/// A 4 KiB-block cache at commit 5 whose first entries are given as (sector, seq).
fn cache(entries: &[(u64, u64)]) -> (Vec<u8>, Vec<Entry>) {
    let area = entries.len().max(1) as u64 * 8192 + 4096;
    let geometry = Geometry::for_format(area, BlockSize::new(4096).unwrap()).unwrap();
    let superblock = Superblock::fresh(&geometry).with_seq(Seq(5));
    let mut all: Vec<Entry> =
        entries.iter().map(|&(original_sector, seq)| entry(original_sector, seq)).collect();
    all.resize(usize::try_from(geometry.n_blocks()).unwrap(), Entry::NEVER_USED);
    (superblock.encode().to_vec(), all)
}

fn entry(original_sector: u64, seq: u64) -> Entry {
    Entry { original_sector, seq: Seq(seq) }
}

fn report(entries: &[(u64, u64)], limits: Limits) -> Report {
    let (superblock, entries) = cache(entries);
    check(&superblock, entries, limits)
}

fn only_finding(entries: &[(u64, u64)]) -> Finding {
    let report = report(entries, Limits::default());
    assert_eq!(report.findings.len(), 1, "{:?}", report.findings);
    assert_eq!(report.severity, report.findings[0].severity());
    report.findings[0].clone()
}

#[test]
fn a_cache_of_committed_and_free_slots_is_sound() {
    let found = report(&[(0, 0), (8, 4), (16, u64::MAX), FREE], Limits::default());
    assert_eq!(found.severity.exit_code(), 0);
    assert_eq!((found.counts.committed, found.counts.stale), (2, 1));
    assert_eq!(found.counts.dirty(), 2);
    assert_eq!(found.findings, []);
}

#[test]
fn an_uncommitted_entry_is_left_to_recovery() {
    let finding = only_finding(&[(8, 5)]);
    assert_eq!(finding, Finding::Uncommitted { slot: 0, sector: 8 });
    assert_eq!(finding.severity().exit_code(), 5);
}

#[test]
fn the_older_of_two_entries_is_left_to_recovery_in_either_order() {
    let (older, newer) = ((0, Seq(2)), (1, Seq(4)));
    let expected = Finding::Superseded { sector: 8, older, newer };
    assert_eq!(only_finding(&[(8, 2), (8, 4)]), expected);
    assert_eq!(expected.severity().exit_code(), 5);
    let (older, newer) = ((1, Seq(2)), (0, Seq(4)));
    assert_eq!(only_finding(&[(8, 4), (8, 2)]), Finding::Superseded { sector: 8, older, newer });
}

#[test]
fn two_entries_of_the_same_commit_are_damage() {
    let finding = only_finding(&[(8, 4), FREE, (8, 4)]);
    assert_eq!(finding, Finding::IdenticalSeq { sector: 8, seq: Seq(4), slots: (0, 2) });
    assert_eq!(finding.severity().exit_code(), 2);
}

#[test]
fn identical_entries_that_a_newer_one_supersedes_are_left_to_recovery() {
    let found = report(&[(8, 4), (8, 3), (8, 3)], Limits::default());
    assert_eq!(found.severity, Severity::SoundAfterRecovery);
    assert_eq!(found.counts.dirty(), 1);
}

#[test]
fn a_commit_number_ahead_of_the_superblock_is_damage() {
    let finding = only_finding(&[(8, 6)]);
    let expected = Finding::SeqAhead { slot: 0, seq: Seq(6), superblock_seq: Seq(5) };
    assert_eq!(finding, expected);
    assert_eq!(finding.severity().exit_code(), 2);
}

#[test]
fn half_an_entry_is_damage_only_if_it_counts_as_committed() {
    let committed = only_finding(&[(NO_SECTOR, 4)]);
    assert_eq!(committed, Finding::NoSector { slot: 0, seq: Seq(4), committed: true });
    assert_eq!(committed.severity(), Severity::Damaged);
    let uncommitted = only_finding(&[(NO_SECTOR, 5)]);
    assert_eq!(uncommitted, Finding::NoSector { slot: 0, seq: Seq(5), committed: false });
    assert_eq!(uncommitted.severity(), Severity::SoundAfterRecovery);
}

#[test]
fn a_sector_inside_a_block_is_damage_only_if_it_counts_as_committed() {
    let finding = only_finding(&[(9, 4)]);
    assert_eq!(finding.severity(), Severity::Damaged);
    assert_eq!(finding.to_string(), "slot 0 original_sector: found 9, expected a multiple of 8");
    assert_eq!(only_finding(&[(9, 5)]).severity(), Severity::SoundAfterRecovery);
}

#[test]
fn the_origin_must_hold_the_whole_block_and_the_table_line_should() {
    let limits = |origin, target| Limits {
        origin_sectors: Some(origin),
        target_sectors: Some(target),
        ..Limits::default()
    };
    assert_eq!(report(&[(8, 0)], limits(16, 16)).findings, []);
    let past_origin = report(&[(8, 0)], limits(15, 15));
    let expected = Finding::BeyondOrigin { slot: 0, sector: 8, origin_sectors: 15 };
    assert_eq!(past_origin.findings, [expected]);
    assert_eq!(past_origin.severity.exit_code(), 2);
    let past_target = report(&[(8, 0)], limits(16, 15));
    let expected = Finding::BeyondTarget { slot: 0, sector: 8, target_sectors: 15 };
    assert_eq!(past_target.findings, [expected]);
    assert_eq!(past_target.severity.exit_code(), 3);
}

#[test]
fn a_sector_near_the_end_of_the_number_range_is_beyond_any_origin() {
    let limits = Limits { origin_sectors: Some(u64::MAX), ..Limits::default() };
    let found = report(&[(u64::MAX - 7, 0)], limits);
    assert!(matches!(found.findings[..], [Finding::BeyondOrigin { .. }]));
}

#[test]
fn blank_device_interrupted_format_and_foreign_data_are_distinguished() {
    let verdict = |bytes: &[u8]| {
        let report = check(bytes, [], Limits::default());
        (report.findings.clone(), report.severity)
    };
    assert_eq!(verdict(&[0; 64]), (vec![Finding::Unformatted], Severity::Damaged));
    let mut interrupted = [0; 64];
    interrupted[4] = 1;
    let error = Error::InterruptedFormat { version: 1 };
    assert_eq!(verdict(&interrupted), (vec![Finding::Superblock(error)], Severity::Repairable));
    let error = Error::WrongMagic { found: 0x0101_0101 };
    assert_eq!(verdict(&[1; 64]), (vec![Finding::Superblock(error)], Severity::Damaged));
}

#[test]
fn reserved_bytes_and_reserved_commit_numbers_are_found() {
    let (mut bytes, entries) = cache(&[FREE]);
    bytes[40] = 1;
    let found = check(&bytes, entries.clone(), Limits::default());
    assert_eq!((found.findings, found.severity.exit_code()), (vec![Finding::ReservedBytes], 3));
    bytes[40] = 0;
    for seq in [Seq::FREE, Seq(u64::MAX - 2), Seq::END] {
        bytes[24..32].copy_from_slice(&seq.0.to_le_bytes());
        let found = check(&bytes, entries.clone(), Limits::default());
        let expected = (vec![Finding::ReservedSeq(seq)], 2);
        assert_eq!((found.findings, found.severity.exit_code()), expected);
    }
}

#[test]
fn a_cache_larger_than_its_device_or_cut_short_is_damage() {
    let (bytes, entries) = cache(&[FREE; 40]);
    let n_blocks = entries.len() as u64;
    let limits = Limits { area_bytes: Some(8192), ..Limits::default() };
    let found = check(&bytes, entries.clone(), limits);
    assert!(matches!(found.findings[..], [Finding::Superblock(Error::AreaTooSmall { .. })]));
    let found = check(&bytes, entries.into_iter().take(3), Limits::default());
    assert_eq!(found.findings, [Finding::MissingEntries { found: 3, n_blocks }]);
}

#[test]
fn the_entries_of_a_cache_cut_short_count_as_far_as_the_device_reaches() {
    let (bytes, entries) = cache(&[(8, 1), (16, 2), FREE, (24, 3)]);
    let area_bytes = SUPERBLOCK_BYTES as u64 + 3 * ENTRY_BYTES as u64 + 15;
    let limits = Limits { area_bytes: Some(area_bytes), ..Limits::default() };
    let found = check(&bytes, entries, limits);
    assert!(matches!(found.findings[..], [Finding::Superblock(Error::AreaTooSmall { .. })]));
    assert_eq!(
        (found.severity, found.counts.dirty(), found.counts.free),
        (Severity::Damaged, 2, 1)
    );
    assert!(found.superblock.is_some());
}

#[test]
fn findings_beyond_the_limit_are_counted_not_kept() {
    let found = report(&vec![(8, 6); FINDINGS_MAX + 10], Limits::default());
    assert_eq!(found.findings.len(), FINDINGS_MAX);
    assert_eq!(found.findings_left_out, 10);
    assert_eq!(found.severity, Severity::Damaged);
}

/// The reference model: the same result from lists and loops, replaying recovery on a plain map.
fn reference(entries: &[Entry], origin_sectors: u64) -> (Counts, Severity) {
    let mut counts = Counts::default();
    let mut worst = Severity::Sound;
    let mut kept: BTreeMap<u64, u64> = BTreeMap::new();
    for Entry { original_sector: sector, seq: Seq(seq) } in entries.iter().copied() {
        if seq == u64::MAX {
            counts.free += 1;
            counts.stale += u64::from(sector != u64::MAX);
        } else if seq >= 5 {
            counts.uncommitted += 1;
            let found = if seq > 5 { Severity::Damaged } else { Severity::SoundAfterRecovery };
            worst = worst.max(found);
        } else {
            counts.committed += 1;
            if sector % 8 != 0 || u128::from(sector) + 8 > u128::from(origin_sectors) {
                worst = Severity::Damaged;
            }
            if let Some(rival) = kept.get(&sector) {
                counts.superseded += 1;
                worst = worst.max(Severity::SoundAfterRecovery);
                if *rival == seq {
                    worst = Severity::Damaged;
                }
            }
            let newest = kept.entry(sector).or_insert(seq);
            *newest = seq.max(*newest);
        }
    }
    (counts, worst)
}

fn entry_strategy() -> impl Strategy<Value = Entry> {
    let sector = prop_oneof![
        20 => (0u64..12).prop_map(|block| block * 8),
        1 => 0u64..100,
        1 => Just(NO_SECTOR),
        1 => any::<u64>(),
    ];
    let seq = prop_oneof![
        10 => 0u64..5,
        3 => Just(5),
        1 => 6u64..9,
        8 => Just(u64::MAX),
    ];
    (sector, seq).prop_map(|(sector, seq)| entry(sector, seq))
}

proptest! {
    #[test]
    fn checker_agrees_with_the_reference_model(
        entries in proptest::collection::vec(entry_strategy(), 1..20),
    ) {
        let pairs: Vec<(u64, u64)> =
            entries.iter().map(|entry| (entry.original_sector, entry.seq.0)).collect();
        let (superblock, entries) = cache(&pairs);
        let limits = Limits { origin_sectors: Some(80), ..Limits::default() };
        let found = check(&superblock, entries.clone(), limits);
        let (counts, severity) = reference(&entries, 80);
        prop_assert_eq!(found.counts, counts);
        prop_assert_eq!(found.severity, severity);
        prop_assert_eq!(found.findings.is_empty(), severity == Severity::Sound);
        let slots = counts.dirty() + counts.free_after_recovery();
        prop_assert_eq!(slots, entries.len() as u64);
        for finding in &found.findings {
            let lines = finding.to_string().lines().count();
            prop_assert_eq!(lines, 1);
        }
    }
}
