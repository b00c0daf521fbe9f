//! Decoding an encoded node gives its keys, and each damage is found.

use proptest::prelude::*;

use super::*;
use crate::bcache::extents::latest;
use crate::bcache::{Generation, INODE_MAX, Uuid};

const NODE: Pointer = Pointer(0x1234_5600);
const BLOCK: usize = 512;

fn magic() -> SetMagic {
    Uuid([5; 16]).set_magic()
}

fn key(start: u64, sectors: u64, at: u64) -> Key {
    Key::new(1, start + sectors, sectors).at(Pointer::new(at, Generation(1)))
}

fn node_of(sets: &[Vec<Key>], seq: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for set in sets {
        encode_set(&mut bytes, NODE, magic(), seq, set, BLOCK);
    }
    bytes.resize(16 << 10, 0);
    bytes
}

fn read(bytes: &[u8]) -> Node<'_> {
    Node::read(bytes, NODE, magic(), BLOCK)
}

#[test]
fn newer_sets_hide_what_older_ones_have() {
    let bytes = node_of(&[vec![key(0, 100, 1000)], vec![key(40, 10, 2000)]], 9);
    let node = read(&bytes);
    assert_eq!((node.sets().len(), node.fault(), node.end()), (2, None, 1024));
    let expected = [key(0, 40, 1000), key(40, 10, 2000), key(50, 50, 1050)];
    assert_eq!(node.extents(), Ok(expected.to_vec()));
}

#[test]
fn the_log_ends_where_the_sequence_changes() {
    let mut bytes = node_of(&[vec![key(0, 8, 1000)]], 9);
    let other = node_of(&[vec![key(8, 8, 2000)]], 10);
    bytes[512..1024].copy_from_slice(&other[..512]);
    let node = read(&bytes);
    assert_eq!((node.sets().len(), node.fault()), (1, None));
}

#[test]
fn a_fresh_root_may_be_empty_and_no_other_set() {
    let bytes = node_of(&[vec![]], 9);
    assert_eq!(read(&bytes).extents(), Ok(vec![]));
    assert_eq!(read(&bytes).fault(), None);
    let bytes = node_of(&[vec![key(0, 8, 1000)], vec![]], 9);
    assert_eq!(read(&bytes).fault(), Some(&NodeFault { at: 512, what: BsetFault::Empty }));
}

#[test]
fn a_torn_set_leaves_those_before_it() {
    let mut bytes = node_of(&[vec![key(0, 8, 1000)], vec![key(8, 8, 2000); 1]], 9);
    bytes[512 + 40] ^= 1;
    let node = read(&bytes);
    assert_eq!(node.extents(), Ok(vec![key(0, 8, 1000)]));
    let fault = node.fault().expect("it is torn");
    assert!(matches!(fault, NodeFault { at: 512, what: BsetFault::Checksum { .. } }), "{fault}");
}

#[test]
fn a_set_behind_the_end_of_the_log_is_damage() {
    let mut bytes = node_of(&[vec![key(0, 8, 1000)], vec![key(8, 8, 2000)]], 9);
    bytes.copy_within(512..1024, 2048);
    bytes[512..1024].fill(0);
    assert_eq!(read(&bytes).fault(), Some(&NodeFault { at: 2048, what: BsetFault::BehindEnd }));
}

#[test]
fn a_node_that_another_pointer_leads_to_does_not_verify() {
    let bytes = node_of(&[vec![key(0, 8, 1000)]], 9);
    let node = Node::read(&bytes, Pointer(NODE.0 + 1), magic(), BLOCK);
    let fault = node.fault().expect("its generation is another");
    assert!(matches!(fault.what, BsetFault::Checksum { .. }), "{fault}");
    assert!(node.sets().is_empty());
}

#[test]
fn a_set_longer_than_its_node_and_one_of_another_version_are_refused() {
    let sound = node_of(&[vec![key(0, 8, 1000)]], 9);
    let mut bytes = sound.clone();
    bytes[28..32].copy_from_slice(&2045_u32.to_le_bytes());
    let what = BsetFault::Length { found: 2045, expected: 2044 };
    assert_eq!(read(&bytes).fault(), Some(&NodeFault { at: 0, what }));
    let mut bytes = sound;
    bytes[24] = 2;
    let what = BsetFault::Version(2);
    assert_eq!(read(&bytes).fault(), Some(&NodeFault { at: 0, what }));
}

#[test]
fn extents_that_overlap_within_a_set_are_refused() {
    let bytes = node_of(&[vec![key(0, 8, 1000), key(7, 8, 2000)]], 9);
    let fault = read(&bytes).extents().expect_err("they overlap");
    assert_eq!(
        fault.to_string(),
        "bset at byte 0: key 1: found 1:7+8 0:2000g1 behind 1:0+8 0:1000g1, expected \
         extents in order"
    );
}

#[test]
fn extents_out_of_range_are_refused() {
    let range = |found: Key| {
        let bytes = node_of(&[vec![key(0, 8, 1000)], vec![found]], 9);
        let what = BsetFault::Key { index: 0, what: KeyFault::Range { found } };
        assert_eq!(read(&bytes).extents(), Err(NodeFault { at: 512, what }), "{found:?}");
    };
    // Longer than what is before its end, so that it would begin before its volume.
    range(key(0, 9, 1000).with_end(8));
    range(key(100, 8, 1000).with_end(OFFSET_MAX + 1));
    range(key(100, 8, 1000).with_end(u64::MAX));
    range(Key::new(INODE_MAX, OFFSET_MAX, 8).at(Pointer::new(1000, Generation(1))));
    let last = Key::new(INODE_MAX, OFFSET_MAX - 1, 8).at(Pointer::new(1000, Generation(1)));
    let highest = Key::new(1, OFFSET_MAX, 8).at(Pointer::new(2000, Generation(1)));
    let bytes = node_of(&[vec![highest, last]], 9);
    assert_eq!(read(&bytes).extents(), Ok(vec![highest, last]));
}

proptest! {
    #[test]
    fn a_leaf_has_what_inserting_its_keys_in_turn_gives(
        sets in proptest::collection::vec(
            proptest::collection::vec((0..200_u64, 1..20_u64, 0..900_u64), 1..6), 1..6),
    ) {
        let list = |set: &Vec<(u64, u64, u64)>| {
            latest(set.iter().map(|(start, sectors, at)| key(*start, *sectors, *at)))
        };
        let sorted: Vec<Vec<Key>> = sets.iter().map(list).collect();
        let all = latest(sorted.iter().flatten().copied());
        let bytes = node_of(&sorted, 3);
        let node = read(&bytes);
        prop_assert_eq!(node.fault(), None);
        prop_assert_eq!(node.extents(), Ok(all));
    }

    #[test]
    fn each_damaged_bit_of_a_set_is_found(bit in 0..(32 + 24 * 2) * 8_usize) {
        let mut bytes = node_of(&[vec![key(0, 8, 1000), key(8, 8, 2000)]], 9);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(read(&bytes).fault().is_some());
    }

    #[test]
    fn no_bytes_make_it_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..2000),
        sound: bool,
    ) {
        let mut bytes = bytes;
        if sound && bytes.len() > 600 {
            let mut set = Vec::new();
            encode_set(&mut set, NODE, magic(), 9, &[key(0, 8, 1)], BLOCK);
            bytes[..512].copy_from_slice(&set);
        }
        let node = read(&bytes);
        let _ = (node.extents(), node.children());
    }
}
