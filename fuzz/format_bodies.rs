//! What a fuzzer does with the formats' bytes: decode them, and hold the decoder to its promises.
//!
//! Shared with the ordinary property tests of `crates/format`, which run the same bodies on random
//! and mutated bytes in every `cargo test`. A body panics when a promise is broken, and must never
//! depend on anything but its input.

use cairn_format::probe;
use cairn_format::writecache::check::{Checker, Finding, Limits, Severity, check};
use cairn_format::writecache::{BlockSize, Entry, Geometry, Opening, Superblock};

/// Superblock bytes: what decodes must encode to the same bytes and lay out without overflow.
pub fn writecache_superblock(bytes: &[u8]) {
    for size in [512, 1024, 2048, 4096] {
        let block_size = BlockSize::new(size).expect("a legal block size");
        match Opening::decide(bytes, block_size) {
            Ok(Opening::Format) => assert_eq!(bytes[..8], [0; 8]),
            Ok(Opening::Existing(superblock)) => assert_eq!(superblock.block_size(), block_size),
            Err(error) => assert!(!error.kernel_text().is_empty() && one_line(&error)),
        }
    }
    let Ok(superblock) = Superblock::parse(bytes) else { return };
    assert_eq!(superblock.encode(), bytes[..64]);
    let geometry = Geometry::of_superblock(&superblock, u64::MAX).expect("any area is enough");
    let last = geometry.n_blocks() - 1;
    assert!(geometry.entry_offset(last) + 16 <= geometry.data_offset());
    let block_bytes = u64::from(geometry.block_size().bytes());
    assert_eq!(geometry.slot_offset(last) + block_bytes, geometry.area_bytes());
    assert!(geometry.region_of_entry(last) < geometry.region_count());
    assert!(Geometry::of_superblock(&superblock, geometry.area_bytes()).is_ok());
    assert!(Geometry::of_superblock(&superblock, geometry.area_bytes() - 1).is_err());
}

/// Metadata bytes, superblock and slot table, checked against limits taken from the end of the
/// input: the counts must add up, whether the entries come in one piece or in many.
pub fn writecache_metadata(bytes: &[u8]) {
    let (metadata, limits) = split_limits(bytes);
    let whole = check(metadata, Entry::iter(metadata.get(64..).unwrap_or_default()), limits);
    let counts = whole.counts;
    assert_eq!(whole.severity, whole.severity.max(worst_kept(&whole.findings)));
    assert_eq!(whole.findings.is_empty(), whole.severity.exit_code() == 0);
    assert!(whole.findings.iter().all(one_line));
    assert!(counts.superseded <= counts.committed && counts.stale <= counts.free);
    let read = counts.dirty() + counts.free_after_recovery();
    assert_eq!(read, counts.committed + counts.uncommitted + counts.free);

    let mut checker = Checker::new(metadata, limits);
    if let Some(superblock) = &whole.superblock {
        assert!(read <= superblock.n_blocks());
        let geometry = Geometry::of_superblock(superblock, u64::MAX).expect("any area is enough");
        for (offset, piece) in (0..).step_by(48).zip(metadata.chunks(48)) {
            geometry.entries_in(offset, piece).for_each(|(_, entry)| checker.entry(entry));
        }
        for (slot, entry) in geometry.entries_in(0, metadata) {
            assert_eq!(Entry::read_at(metadata, slot), Some(entry));
            assert_eq!(Entry::decode(&entry.encode()), entry);
        }
    }
    assert_eq!(checker.finish(), whole);
}

/// A device: its size in the first eight bytes, then its windows one after another, then zeros.
pub fn probe_windows(bytes: &[u8]) {
    if let Ok(found) = probe::identify(bytes.len() as u64, &[(0, bytes)]) {
        assert!(found.iter().all(one_line));
    }
    let Some((size, mut rest)) = bytes.split_first_chunk() else { return };
    let device_bytes = u64::from_le_bytes(*size);
    let mut read: Vec<(u64, Vec<u8>)> = Vec::new();
    for window in probe::windows(device_bytes) {
        let len = usize::try_from(window.end - window.start).expect("windows are small");
        let (given, left) = rest.split_at(len.min(rest.len()));
        rest = left;
        let mut piece = given.to_vec();
        piece.resize(len, 0);
        read.push((window.start, piece));
    }
    let pieces: Vec<(u64, &[u8])> =
        read.iter().map(|(start, piece)| (*start, piece.as_slice())).collect();
    let found = probe::identify(device_bytes, &pieces).expect("every window was given");
    assert!(found.iter().all(|signature| signature.offset < device_bytes && one_line(signature)));
}

fn split_limits(bytes: &[u8]) -> (&[u8], Limits) {
    let Some((metadata, tail)) = bytes.split_last_chunk::<8>() else {
        return (bytes, Limits::default());
    };
    let (origin, target) = tail.split_at(4);
    let sectors = |half: &[u8]| half.try_into().ok().map(u32::from_le_bytes).map(u64::from);
    let limits = Limits {
        area_bytes: None,
        origin_sectors: sectors(origin).filter(|sectors| *sectors != 0),
        target_sectors: sectors(target).filter(|sectors| *sectors != 0),
    };
    (metadata, limits)
}

fn worst_kept(findings: &[Finding]) -> Severity {
    findings.iter().map(Finding::severity).max().unwrap_or(Severity::Sound)
}

fn one_line(shown: &impl ToString) -> bool {
    let text = shown.to_string();
    !text.is_empty() && !text.chars().any(char::is_control)
}
