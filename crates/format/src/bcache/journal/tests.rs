//! Decoding an encoded entry gives its fields, and `Ring::of` agrees with a naive reading of the
//! rules.

use proptest::prelude::*;

use super::*;
use crate::bcache::{Generation, Pointer, Uuid};

fn magic() -> SetMagic {
    Uuid([5; 16]).set_magic()
}

fn header(seq: u64, last_seq: u64) -> Header {
    Header {
        seq,
        last_seq,
        has_long_uuids: true,
        uuids: Key::new(0, 0, 128).at(Pointer::new(4096, Generation(2))),
        root: Key::MAX.at(Pointer::new(8192, Generation(3))),
        root_level: 1,
        priorities: 77,
    }
}

fn key(start: u64) -> Key {
    Key::new(1, start + 8, 8).at(Pointer::new(512, Generation(1))).with_dirty(true)
}

fn located(seq: u64, last_seq: u64) -> Located {
    let bytes = ByteRange { start: 0, end: 512 };
    Located { header: header(seq, last_seq), csum: 0, index: 0, bytes }
}

#[test]
fn entries_read_as_they_were_written() {
    let keys = [key(0), key(8).without_pointer(), key(16)];
    let mut bytes = encode(&header(5, 3), &keys, magic(), 512);
    bytes.extend(encode(&header(6, 3), &[], magic(), 512));
    let length = bytes.len();
    bytes.resize(64 << 10, 0);
    let (entries, end) = scan(&bytes, magic(), 512);
    assert_eq!(end, ScanEnd { at: length, fault: None, newest_behind: None });
    assert_eq!(entries.len(), 2);
    assert_eq!((entries[0].header, entries[0].at), (header(5, 3), 0));
    let found: Vec<Key> = entries[0].keys().map(|key| key.expect("sound")).collect();
    assert_eq!(found, keys);
    assert_eq!(entries[0].bytes(), 240 + 8 * 8);
    assert_eq!((entries[1].header, entries[1].at), (header(6, 3), 512));
    assert_eq!(entries[1].keys().count(), 0);
}

#[test]
fn a_torn_entry_ends_the_bucket_and_is_told() {
    let mut bytes = encode(&header(5, 3), &[key(0)], magic(), 512);
    bytes.extend(encode(&header(6, 3), &[key(8); 20], magic(), 512));
    bytes[512 + 300] ^= 1;
    let (entries, end) = scan(&bytes, magic(), 512);
    assert_eq!((entries.len(), end.at), (1, 512));
    let fault = end.fault.expect("it has the magic");
    assert!(matches!(fault, EntryFault::Checksum { seq: 6, .. }), "{fault}");
}

#[test]
fn what_is_newer_behind_the_end_of_a_bucket_is_told() {
    let entry = |seq| encode(&header(seq, 3), &[key(0)], magic(), 512);
    let mut bytes = [entry(5), entry(6), entry(7), entry(4)].concat();
    bytes[512 + 100] ^= 1;
    let (entries, end) = scan(&bytes, magic(), 512);
    assert_eq!((entries.len(), end.at, end.newest_behind), (1, 512, Some(7)));
    bytes[512..1024].fill(0);
    let (_, end) = scan(&bytes, magic(), 512);
    assert_eq!((end.fault, end.newest_behind), (None, Some(7)));
}

#[test]
fn an_entry_of_another_set_is_nothing() {
    let other = Uuid([6; 16]).set_magic();
    let bytes = encode(&header(5, 3), &[key(0)], other, 512);
    let (entries, end) = scan(&bytes, magic(), 512);
    assert!(entries.is_empty() && end.fault.is_none());
}

#[test]
fn an_entry_longer_than_its_bucket_is_none() {
    let bytes = encode(&header(5, 3), &[key(0); 40], magic(), 512);
    let (entries, end) = scan(&bytes[..1024], magic(), 512);
    assert!(entries.is_empty());
    let expected = EntryFault::Length { seq: 5, found: 120, expected: 98 };
    assert_eq!(end.fault, Some(expected));
}

#[test]
fn entries_that_the_newest_does_not_count_are_left_out() {
    let all = [7, 3, 4, 5, 6].map(|seq| located(seq, 5)).to_vec();
    let ring = Ring::of(all, false).expect("a journal");
    assert_eq!(ring.entries.iter().map(|entry| entry.header.seq).collect::<Vec<_>>(), [5, 6, 7]);
    assert_eq!(ring.newest().header.seq, 7);
}

#[test]
fn what_is_no_journal_is_refused() {
    let ring = |seqs: &[u64], discards| {
        Ring::of(seqs.iter().map(|seq| located(*seq, 3)).collect(), discards)
    };
    assert_eq!(ring(&[], false), Err(RingFault::Empty));
    let gap = |missing| Err(RingFault::Gap { missing, first: 3, last: 6 });
    assert_eq!(ring(&[3, 4, 6], false), gap(5));
    assert_eq!(ring(&[4, 5, 6], false), gap(3));
    assert_eq!(ring(&[4, 5, 6], true).map(|ring| ring.discarded), Ok(Some(3..4)));
    assert_eq!(ring(&[3, 5, 6], true), gap(4));
    assert_eq!(ring(&[3, 4, 4, 5], false), Err(RingFault::Twice { seq: 4 }));
    let future = Ring::of(vec![located(2, 3)], false);
    assert_eq!(future, Err(RingFault::LastSeq { seq: 2, found: 3 }));
    let last = Ring::of(vec![located(SEQ_MAX + 1, SEQ_MAX + 1)], false);
    assert_eq!(last, Err(RingFault::Seq { seq: SEQ_MAX + 1 }));
}

#[test]
fn as_many_entries_count_as_the_kernel_has_pins() {
    let ring = |count| Ring::of((3..3 + count).map(|seq| located(seq, 3)).collect(), false);
    for count in [25_000, 32_767] {
        assert_eq!(ring(count).map(|ring| ring.entries.len() as u64), Ok(count));
    }
    assert_eq!(ring(32_768), Err(RingFault::LastSeq { seq: 32_770, found: 3 }));
}

proptest! {
    #[test]
    fn a_ring_counts_all_from_the_oldest_to_the_newest_or_is_refused(
        seqs in proptest::collection::btree_set(1..40_u64, 0..30),
        back in 0..40_u64,
    ) {
        let newest = seqs.last().copied();
        let all = seqs.iter().map(|seq| located(*seq, newest.unwrap_or(0).saturating_sub(back)));
        let found = Ring::of(all.collect(), false);
        let Some(newest) = newest else {
            prop_assert_eq!(found, Err(RingFault::Empty));
            return Ok(());
        };
        let counted: Vec<u64> = (newest.saturating_sub(back)..=newest).collect();
        match counted.iter().find(|seq| !seqs.contains(seq)) {
            Some(missing) => {
                let gap = matches!(found, Err(RingFault::Gap { missing: m, .. }) if m == *missing);
                prop_assert!(gap, "{:?}", found);
            }
            None => {
                let ring = found.expect("none is missing");
                let seqs: Vec<u64> = ring.entries.iter().map(|entry| entry.header.seq).collect();
                prop_assert_eq!(seqs, counted);
            }
        }
    }

    #[test]
    fn each_damaged_bit_of_an_entry_is_found(bit in 0..(240 + 24) * 8_usize) {
        let mut bytes = encode(&header(5, 3), &[key(0)], magic(), 512);
        bytes[bit / 8] ^= 1 << (bit % 8);
        let (entries, end) = scan(&bytes, magic(), 512);
        prop_assert!(entries.is_empty());
        let fault = end.fault.expect("it was whole once");
        let is_magic = matches!(fault, EntryFault::Magic { seq: 5, .. });
        prop_assert_eq!(is_magic, (64..128).contains(&bit));
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        let mut bytes = bytes;
        let _ = scan(&bytes, magic(), 512);
        if bytes.len() > 16 {
            bytes[8..16].copy_from_slice(&magic().journal().to_le_bytes());
            let _ = scan(&bytes, magic(), 512);
        }
    }
}
