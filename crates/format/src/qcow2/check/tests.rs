//! An image built by hand, and what a check finds when bytes of it are changed.

use super::{Finding, Report, Severity, check};
use crate::qcow2::{Header, Layout};

const CLUSTER: usize = 512;

/// Clusters: header, refcount table, refcount block, L1 table, two L2 tables, two of data, the
/// table of snapshots, the L1 table of a snapshot, one that is free.
const CLUSTERS: usize = 11;
const FREE: usize = 10;

struct Image(Vec<u8>);

impl Image {
    /// The content is one byte more than an L2 table stands for; its first and last clusters are
    /// data. The snapshot shares the first L2 table.
    fn new() -> Image {
        let mut image = Image(vec![0; CLUSTERS * CLUSTER]);
        let header = [(0, 0x5146_49fb_u32), (4, 3), (20, 9), (36, 2), (56, 1), (60, 1), (96, 4)];
        header.iter().for_each(|(at, number)| image.put(*at, &number.to_be_bytes()));
        image.put(100, &104_u32.to_be_bytes());
        let words = [(24, 64 * 512 + 512), (40, 3 * 512), (48, 512), (64, 8 * 512)];
        words.iter().for_each(|(at, number)| image.word(*at, *number));
        image.word(CLUSTER, 2 * 512);
        for (cluster, refcount) in [1, 1, 1, 1, 2, 1, 2, 1, 1, 1, 0].into_iter().enumerate() {
            image.refcount(cluster, refcount);
        }
        image.word(3 * CLUSTER, 4 * 512);
        image.word(3 * CLUSTER + 8, (1 << 63) | (5 * 512));
        image.word(4 * CLUSTER, 6 * 512);
        image.word(5 * CLUSTER, (1 << 63) | (7 * 512));
        image.word(8 * CLUSTER, 9 * 512);
        image.put(8 * CLUSTER + 8, &2_u32.to_be_bytes());
        image.put(8 * CLUSTER + 36, &16_u32.to_be_bytes());
        image.word(9 * CLUSTER, 4 * 512);
        image
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn word(&mut self, at: usize, word: u64) {
        self.put(at, &word.to_be_bytes());
    }

    fn refcount(&mut self, cluster: usize, refcount: u16) {
        self.put(2 * CLUSTER + 2 * cluster, &refcount.to_be_bytes());
    }

    fn check(&self) -> Report {
        let header = Header::parse(&self.0[..CLUSTER], self.0.len() as u64).expect("a header");
        let layout = Layout::parse(&self.0[..CLUSTER], &header).expect("a layout");
        let read = &mut |at: u64, bytes: &mut [u8]| {
            bytes.copy_from_slice(&self.0[at as usize..at as usize + bytes.len()]);
            Ok::<(), ()>(())
        };
        check(&header, &layout, read).expect("no read fails")
    }
}

/// The findings of an image with these changes, as text, and the worst of them.
fn found(change: impl FnOnce(&mut Image)) -> (Vec<String>, Severity) {
    let mut image = Image::new();
    change(&mut image);
    let report = image.check();
    (report.findings.iter().map(Finding::to_string).collect(), report.severity)
}

#[test]
fn an_image_whose_refcounts_are_its_references_is_sound() {
    let report = Image::new().check();
    assert_eq!((report.findings, report.severity), (vec![], Severity::Sound));
    let counts = report.counts;
    assert_eq!((counts.clusters, counts.used, counts.leaked), (11, 10, 0));
    assert_eq!((counts.data, counts.snapshots), (2, 1));
}

#[test]
fn a_refcount_that_is_too_high_is_a_leak_and_loses_nothing() {
    let (lines, severity) = found(|image| image.refcount(FREE, 1));
    assert_eq!(lines, ["cluster 10: refcount: found 1, expected 0 (leaked)"]);
    assert_eq!(severity, Severity::Repairable);
}

#[test]
fn a_refcount_that_is_too_low_is_damage() {
    let (lines, severity) = found(|image| {
        image.refcount(8, 0);
        image.refcount(9, 0);
    });
    assert_eq!(lines, ["clusters 8 to 9: refcount: found 0, expected 1"]);
    assert_eq!(severity, Severity::Damaged);
    // What a program does that is killed, if the image says that its refcounts come late.
    let (lines, severity) = found(|image| {
        image.put(79, &[1]);
        image.refcount(7, 0);
    });
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert_eq!(severity, Severity::SoundAfterRecovery);
}

#[test]
fn bit_63_that_contradicts_the_refcount_is_damage() {
    let (lines, severity) = found(|image| image.word(4 * CLUSTER, (1 << 63) | (6 * 512)));
    let line = "L2 entry for byte 0: bit 63: found set, expected clear: the refcount is 2";
    assert_eq!((&lines[..], severity), (&[line.to_owned()][..], Severity::Damaged));
    let (lines, _) = found(|image| image.word(3 * CLUSTER + 8, 5 * 512));
    let line = "L1 entry for byte 32768: bit 63: found clear, expected set: the refcount is 1";
    assert_eq!(lines, [line]);
}

#[test]
fn an_entry_that_no_program_writes_is_damage() {
    for (at, word, text) in [
        (3 * CLUSTER, (4 * 512) | 2, "reserved bits"),
        (3 * CLUSTER, 1 << 63, "expected a place"),
        (4 * CLUSTER, (6 * 512) | (1 << 56), "reserved bits"),
        (4 * CLUSTER, 99 * 512, "beyond the image's end"),
        (CLUSTER, 2 * 512 + 1, "no reserved bits"),
        (CLUSTER + 8, 99 * 512, "refcount block"),
        (8 * CLUSTER, 99 * 512, "L1 table of a snapshot"),
        (8 * CLUSTER + 32, 1 << 20, "table of snapshots: found the image's end"),
        (8 * CLUSTER + 32, 8, "extra data of a snapshot"),
        // A cluster of zeros that is kept, in the active state and in the snapshot's.
        (4 * CLUSTER + 8, (99 * 512) | 1, "beyond the image's end"),
        (4 * CLUSTER + 8, (1 << 62) | (11 * 512), "beyond the image's end"),
        (4 * CLUSTER + 8, (3 << 62) | (10 * 512), "expected no bit 63"),
        // Data where the L1 table is, and where the refcounts are.
        (5 * CLUSTER, (1 << 63) | (3 * 512), "of the L1 table: found 2 references"),
        (5 * CLUSTER, (1 << 63) | (2 * 512), "of the refcount block: found 2 references"),
        (4 * CLUSTER + 8, 5 * 512, "of the L2 table: found 3 references"),
    ] {
        let (lines, severity) = found(|image| image.word(at, word));
        assert!(lines.iter().any(|line| line.contains(text)), "{text}: {lines:?}");
        assert_eq!(severity, Severity::Damaged, "{text}");
    }
}

#[test]
fn a_table_that_is_named_often_is_read_once() {
    let mut image = Image::new();
    // All entries of the L1 table name one L2 table, as do those of the snapshot.
    (0..2).for_each(|entry| image.word(3 * CLUSTER + entry * 8, 4 * 512));
    (0..2).for_each(|entry| image.word(9 * CLUSTER + entry * 8, 4 * 512));
    let header = Header::parse(&image.0[..CLUSTER], image.0.len() as u64).unwrap();
    let layout = Layout::parse(&image.0[..CLUSTER], &header).unwrap();
    let mut reads = Vec::new();
    let read = &mut |at: u64, bytes: &mut [u8]| {
        reads.push(at);
        bytes.copy_from_slice(&image.0[at as usize..at as usize + bytes.len()]);
        Ok::<(), ()>(())
    };
    let report = check(&header, &layout, read).unwrap();
    assert_eq!(reads.iter().filter(|at| **at == 4 * 512).count(), 1);
    let text: Vec<_> = report.findings.iter().map(Finding::to_string).collect();
    assert!(text.contains(&"cluster 4: refcount: found 2, expected 4".to_owned()), "{text:?}");
}
