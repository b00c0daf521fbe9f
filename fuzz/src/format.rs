//! What a fuzzer does with the formats' bytes: decode them, and hold the decoder to its promises.
//!
//! Shared with the ordinary property tests of `crates/format`, which run the same bodies on random
//! and mutated bytes in every `cargo test`. A body panics when a promise is broken, and must never
//! depend on anything but its input.

use cairn_format::probe;
use cairn_format::qcow2::{self, Place};
use cairn_format::snapshot;
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

/// A COW device: the header, in a chunk of its own, then areas as far as they are asked for, packed
/// one after another; what is not given is zero. The device's and the origin's sectors come last,
/// as two 64-bit words. The checker must not care how its bytes are cut, a repair must agree with
/// it, and no number may overflow.
pub fn snapshot_store(bytes: &[u8]) {
    let Some((given, limits)) = split_sizes(bytes) else { return };
    match snapshot::Opening::decide(given) {
        Ok(snapshot::Opening::Blank) => assert_eq!(given[..4], [0; 4]),
        Ok(snapshot::Opening::Existing(header)) => assert_eq!(header.encode(), given[..16]),
        Err(error) => assert!(!error.kernel_errno().is_empty() && one_line(&error)),
    }
    // The areas of a hostile store may be a gibibyte each: too much to make up.
    let size = snapshot::Header::parse(given).map(|header| header.chunk_size().bytes());
    if size.is_ok_and(|bytes| bytes > 1 << 16) {
        return;
    }
    let whole = snapshot_report(given, limits, 1 << 16);
    assert_eq!(snapshot_report(given, limits, 48), whole);
    assert!(whole.findings.iter().all(one_line));
    assert_eq!(whole.findings.is_empty(), whole.severity.exit_code() == 0);
    assert!(whole.counts.faulty <= whole.counts.records);
    assert_eq!(whole.usage().is_some(), whole.layout.is_some());
    let Ok(mut repair) = snapshot::repair::Repair::new(given, limits, false) else { return };
    let layout = *repair.layout();
    while let Some(range) = repair.wants(1 << 16) {
        for step in repair.feed(&area_piece(given, &layout, range)) {
            assert!(one_line(&step));
            if let snapshot::repair::Step::Keep { record, .. } = step {
                assert!(layout.is_data_chunk(record.new));
                assert!(layout.chunk_sector(record.new) < limits.device_sectors);
            }
        }
    }
    let plan = repair.finish();
    assert_eq!(plan.kept(), whole.counts.records - whole.counts.faulty);
    assert!(plan.moves().all(|(from, to)| to < plan.kept() && plan.kept() <= from));
    assert!(plan.needed_sectors() > 0);
}

fn snapshot_report(
    given: &[u8],
    limits: snapshot::check::Limits,
    bytes_max: u64,
) -> snapshot::check::Report {
    let mut checker = snapshot::check::Checker::new(given, limits);
    while let Some(range) = checker.wants(bytes_max) {
        let header = snapshot::Header::parse(given).expect("it wants something");
        let layout = snapshot::Layout::new(header.chunk_size(), limits.device_sectors);
        let layout = layout.expect("it wants something");
        checker.feed(&area_piece(given, &layout, range));
    }
    checker.finish()
}

/// The bytes of a range within an area: areas follow the header's sector without gaps.
fn area_piece(given: &[u8], layout: &snapshot::Layout, range: std::ops::Range<u64>) -> Vec<u8> {
    let chunk_bytes = layout.chunk_size().bytes();
    let area = (range.start / chunk_bytes - 1) / (layout.records_per_area() + 1);
    let packed = 512 + area * chunk_bytes + range.start % chunk_bytes;
    let len = usize::try_from(range.end - range.start).expect("pieces are small");
    let begin = usize::try_from(packed).unwrap_or(usize::MAX).min(given.len());
    let mut piece = given[begin..given.len().min(begin.saturating_add(len))].to_vec();
    piece.resize(len, 0);
    piece
}

fn split_sizes(bytes: &[u8]) -> Option<(&[u8], snapshot::check::Limits)> {
    let (rest, origin) = bytes.split_last_chunk::<8>()?;
    let (given, device) = rest.split_last_chunk::<8>()?;
    let origin_sectors = Some(u64::from_le_bytes(*origin)).filter(|sectors| *sectors != 0);
    let device_sectors = u64::from_le_bytes(*device);
    Some((given, snapshot::check::Limits { device_sectors, origin_sectors }))
}

/// A check reads within the image, and ends.
fn qcow2_check(bytes: &[u8], header: &qcow2::Header) {
    let layout = match qcow2::Layout::parse(bytes, header) {
        Ok(layout) => layout,
        Err(error) => return assert!(one_line(&error)),
    };
    let read = &mut |at: u64, room: &mut [u8]| {
        let at = usize::try_from(at).expect("it is in the image");
        room.copy_from_slice(&bytes[at..at + room.len()]);
        Ok::<(), ()>(())
    };
    let report = qcow2::check(header, &layout, read).expect("no read fails");
    assert!(report.counts.used <= report.counts.clusters);
    assert!(report.findings.iter().all(one_line));
    let worst = report.findings.iter().map(qcow2::check::Finding::severity).max();
    assert!(worst.is_none_or(|worst| worst <= report.severity));
}

/// An image: its header, then what its tables say of some places of its content. Nothing lies
/// beyond the image, and no run leaves its cluster.
pub fn qcow2_image(bytes: &[u8]) {
    let image_bytes = bytes.len() as u64;
    if let Err(error) = qcow2::Prologue::parse(bytes) {
        assert!(one_line(&error));
        return;
    }
    let header = match qcow2::Header::parse(bytes, image_bytes) {
        Ok(header) => header,
        Err(error) => return assert!(one_line(&error)),
    };
    qcow2_check(bytes, &header);
    let word = |at: u64| {
        let at = usize::try_from(at).expect("it is in the image");
        u64::from_be_bytes(*bytes[at..].first_chunk().expect("it is in the image"))
    };
    let (span, cluster) = (header.l1_span(), header.cluster_bytes());
    let places = [0, cluster - 1, cluster, span - 1, span, header.size / 2, header.size.max(1) - 1];
    let near = (0..64u64).map(|number| number.saturating_mul(cluster / 2 + 513));
    for guest in places.into_iter().chain(near).filter(|guest| *guest < header.size) {
        let entry = word(header.l1_entry_at(guest));
        let table = match header.l2_table(guest, entry) {
            Ok(Some(table)) => table,
            Ok(None) => {
                assert!(header.without_table(guest).bytes > 0);
                continue;
            }
            Err(error) => {
                assert!(one_line(&error));
                continue;
            }
        };
        let at = header.l2_entry_at(table, guest);
        let bitmap = if header.l2_entry_bytes() == 16 { word(at + 8) } else { 0 };
        match header.run(guest, word(at), bitmap) {
            Ok(run) => {
                assert!(run.bytes > 0 && run.bytes <= cluster - guest % cluster);
                match run.place {
                    Place::Data(at) => assert!(at - guest % cluster < image_bytes),
                    Place::Compressed { start, bytes, skip } => {
                        assert!(start < image_bytes && bytes > 0 && bytes <= 2 * cluster);
                        assert_eq!(skip, guest % cluster);
                    }
                    Place::Nowhere | Place::Zeros => {}
                }
            }
            Err(error) => assert!(one_line(&error)),
        }
    }
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
