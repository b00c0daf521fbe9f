//! A ring with damage in it is refused, or read as before; stale keys of the journal hide what a
//! naive reading of the rules says.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::bcache::fixture::{
    BUCKET_SECTORS, COUNTED, RING, Strict, entry_of, fresh, read, set, superblock_of, with_ring,
};
use crate::bcache::journal::encode;
use crate::bcache::node::encode_set;
use crate::bcache::{INODE_MAX, Superblock, crc64};

const BYTES: usize = BUCKET_SECTORS as usize * SECTOR_BYTES;

fn refusal(image: &[u8]) -> String {
    match load_now(image, &superblock_of(image), &mut Strict(Vec::new())) {
        Ok(_) => panic!("it is sound"),
        Err(error) => error.to_string(),
    }
}

fn torn(image: &[u8]) -> Option<u64> {
    let (_, loaded) = read(image)?;
    match loaded.torn?.what {
        What::Entry(EntryFault::Checksum { seq, .. }) => Some(seq),
        what => panic!("{what}"),
    }
}

/// The same cache, whose freed buckets are discarded.
fn discarding(mut image: Vec<u8>) -> Vec<u8> {
    image[4096 + 104] |= 2;
    let sum = crc64(&image[4096 + 8..4096 + 208 + 8 * 4]);
    image[4096..4104].copy_from_slice(&sum.to_le_bytes());
    let Ok(Superblock::Cache(superblock)) = Superblock::decode(&image[4096..]) else { panic!() };
    assert!(superblock.discards());
    image
}

#[test]
fn each_flipped_bit_of_an_entry_is_refused_unless_nothing_of_it_counts() {
    for mut image in [with_ring(set(4)), discarding(with_ring(set(4)))] {
        let (expected, _) = read(&image).expect("it is sound");
        for (_, _, seq) in RING {
            let at = entry_of(&image, seq);
            for bit in 0..(240 + 8 * 8) * 8 {
                image[at + bit / 8] ^= 1 << (bit % 8);
                let found = read(&image);
                match found {
                    // An old one may claim a number of those that would be lost.
                    None if (128..192).contains(&bit) => (),
                    None => assert!(seq >= 100, "entry {seq} bit {bit}"),
                    // Those from 100 on lie in front of entries that count.
                    Some((extents, loaded)) if seq < 100 => {
                        assert!(loaded.torn.is_none() && extents == expected, "{seq} {bit}");
                    }
                    // The newest alone can be taken for torn: but not if it was whole.
                    Some((_, loaded)) => {
                        assert_eq!(seq, COUNTED.1, "bit {bit}");
                        assert!(loaded.torn.is_some(), "bit {bit}");
                        assert!(!(64..192).contains(&bit), "bit {bit}");
                    }
                }
                image[at + bit / 8] ^= 1 << (bit % 8);
            }
        }
    }
}

#[test]
fn a_damaged_entry_is_named_with_its_bucket() {
    let mut image = with_ring(set(4));
    let at = entry_of(&image, 105);
    image[at + 250] ^= 1;
    let said = refusal(&image);
    assert!(said.starts_with("journal bucket 1: journal entry 105: checksum: found "), "{said}");
}

#[test]
fn an_entry_that_is_gone_is_refused_wherever_it_was() {
    for seq in COUNTED.0..COUNTED.1 {
        let mut image = with_ring(set(4));
        let at = entry_of(&image, seq);
        image[at..at + 512].fill(0);
        let said = refusal(&image);
        assert!(said.contains("found no "), "{seq}: {said}");
        // Where the oldest may be gone, what lies behind them shows that they are not.
        let said = refusal(&discarding(image));
        assert!(said.contains("found no "), "{seq}: {said}");
    }
}

#[test]
fn the_oldest_entries_may_be_gone_with_their_bucket_where_buckets_are_discarded() {
    let mut image = with_ring(set(4));
    let at = entry_of(&image, 100);
    image[at..at + BYTES].fill(0);
    let said = refusal(&image);
    assert_eq!(said, "journal: found no entry 103, expected all from 103 to 110");
    let image = discarding(image);
    let (_, loaded) = read(&image).expect("they were discarded");
    assert_eq!(loaded.ring.discarded, Some(103..108));
    // Damage of any other entry may be damage of one of those.
    let mut damaged = image.clone();
    let at = entry_of(&image, 93);
    damaged[at + 300] ^= 1;
    let said = refusal(&damaged);
    assert!(said.starts_with("journal bucket 3: journal entry 93: checksum: found "), "{said}");
}

/// The ring with another block behind its newest entry, or at the beginning of the next bucket.
fn with_tail(is_behind: bool, block: &[u8]) -> Vec<u8> {
    let mut image = with_ring(set(4));
    let at = match is_behind {
        true => entry_of(&image, COUNTED.1) + 512,
        false => entry_of(&image, 90),
    };
    image[at..at + block.len()].copy_from_slice(block);
    image
}

/// An entry behind the newest of the ring.
fn next_entry(change: impl FnOnce(&mut Header)) -> Vec<u8> {
    let image = with_ring(set(4));
    let (_, loaded) = read(&image).expect("it is sound");
    let mut header = Header { seq: COUNTED.1 + 1, last_seq: COUNTED.0, ..loaded.newest };
    change(&mut header);
    let key = Key::new(0, 700, 4);
    encode(&header, &[key], superblock_of(&image).set_uuid().set_magic(), 512)
}

fn sealed(mut entry: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    entry[at..at + bytes.len()].copy_from_slice(bytes);
    let sum = crc64(&entry[8..240 + 8 * 2]);
    entry[..8].copy_from_slice(&sum.to_le_bytes());
    entry
}

#[test]
fn only_a_part_of_an_entry_behind_the_newest_is_torn() {
    for is_behind in [true, false] {
        let mut part = next_entry(|_| ());
        part[245] ^= 1;
        assert_eq!(torn(&with_tail(is_behind, &part)), Some(COUNTED.1 + 1));
        let place = if is_behind { "journal bucket 2: " } else { "journal bucket 3: " };
        let refused = |block: &[u8], expected: &str| {
            let said = refusal(&with_tail(is_behind, block));
            assert!(said.starts_with(&format!("{place}journal entry {expected}")), "{said}");
        };
        refused(&sealed(next_entry(|_| ()), 24, &[2]), "111: version: found 2");
        refused(&sealed(next_entry(|_| ()), 40, &[0xff; 8]), "111: uuid_bucket: key: found 7");
        let mut block = next_entry(|_| ());
        block[8] ^= 1;
        refused(&block, "111: magic: found 0x");
        let mut block = next_entry(|_| ());
        block[16] ^= 64;
        refused(&block, "111: seq: found 47, expected 111");
        let mut block = next_entry(|_| ());
        block[30] = 1;
        refused(&block, "111: keys: found 65538 words");
        let mut part = next_entry(|header| header.seq += 1);
        part[245] ^= 1;
        refused(&part, "112: checksum: found ");
        // Of the lap before, or of another set: nothing.
        let mut part = next_entry(|header| header.seq = 80);
        part[245] ^= 1;
        assert_eq!(torn(&with_tail(is_behind, &part)), None);
    }
    // Elsewhere it is not a part of an entry that was being written.
    let mut part = next_entry(|_| ());
    part[245] ^= 1;
    let mut image = with_ring(set(4));
    let at = entry_of(&image, 98);
    image[at..at + part.len()].copy_from_slice(&part);
    let said = refusal(&image);
    assert!(said.starts_with("journal bucket 0: journal entry 111: checksum: "), "{said}");
}

#[test]
fn an_entry_that_is_not_there_when_its_keys_are_read_is_refused() {
    /// Reads a sector as zeros from the second time on.
    struct Fading<'a> {
        image: &'a [u8],
        sector: u64,
        reads: usize,
    }
    impl Source for Fading<'_> {
        type Error = Infallible;
        async fn read(
            &mut self,
            ranges: &[Range<u64>],
        ) -> Result<Vec<Result<Vec<u8>, String>>, Infallible> {
            let mut read = self.image.read(ranges).await?;
            for (bytes, range) in
                read.iter_mut().zip(ranges).filter(|it| it.1.contains(&self.sector))
            {
                self.reads += 1;
                let at = (self.sector - range.start) as usize * SECTOR_BYTES;
                if self.reads > 1 {
                    bytes.as_mut().expect("it is read")[at..at + SECTOR_BYTES].fill(0);
                }
            }
            Ok(read)
        }
    }
    let image = with_ring(set(4));
    for seq in COUNTED.0..=COUNTED.1 {
        let sector = (entry_of(&image, seq) / SECTOR_BYTES) as u64;
        let source = Fading { image: &image, sector, reads: 0 };
        let loaded = load_now(source, &superblock_of(&image), &mut Strict(Vec::new()));
        let said = loaded.expect_err("it is gone").to_string();
        assert!(
            said.contains(&format!("found no journal entry, expected entry {seq}, ")),
            "{said}"
        );
    }
}

/// The set with one entry in its journal, which has these keys.
fn with_keys(keys: &[Key]) -> Vec<u8> {
    let mut image = set(4);
    let (_, loaded) = read(&image).expect("it is sound");
    let next = Header { seq: 2, last_seq: 2, ..loaded.newest };
    let superblock = superblock_of(&image);
    let entry = encode(&next, keys, superblock.set_uuid().set_magic(), 512);
    let at = (superblock.journal_buckets().start + 2) as usize * BYTES;
    image[at..at + entry.len()].copy_from_slice(&entry);
    image
}

#[test]
fn keys_of_the_journal_out_of_range_are_refused() {
    let place = |bucket: u64| Pointer::new(bucket * BUCKET_SECTORS, Generation(0));
    let key = Key::new(1, 100, 8).at(place(500)).with_dirty(true);
    assert!(read(&with_keys(&[key])).is_some());
    let last = Key::new(INODE_MAX, OFFSET_MAX, 8);
    for wrong in [key.with_end(7), key.with_end(OFFSET_MAX + 1), key.with_end(u64::MAX), last] {
        let said = refusal(&with_keys(&[key, wrong]));
        let expected = format!("journal entry 2: key {wrong:?}: found it out of range, expected ");
        assert!(said.starts_with(&expected), "{said}");
    }
    // What has no length says nothing, wherever it leads.
    let remnant = Key::new(1, 100, 0).at(place(1 << 30));
    assert!(read(&with_keys(&[remnant, Key::ZERO])).is_some());
}

#[test]
fn two_children_at_one_position_are_refused() {
    let image = set(300);
    let (_, loaded) = read(&image).expect("it is sound");
    let (geometry, root) = (*superblock_of(&image).geometry(), loaded.newest.root);
    let pointer = root.cached_at().expect("it is there");
    let at = pointer.sector() as usize * SECTOR_BYTES;
    let magic = superblock_of(&image).set_uuid().set_magic();
    let node = Node::read(&image[at..at + BYTES], pointer, magic, 512);
    let mut children = node.children().expect("keys");
    let twin = children[1].at(Pointer::new(geometry.sector_of(500), Generation(0)));
    children.insert(1, twin);
    let mut bytes = Vec::new();
    encode_set(&mut bytes, pointer, magic, 5, &children, 512);
    let mut image = image;
    image[at..at + bytes.len()].copy_from_slice(&bytes);
    let said = refusal(&image);
    assert!(said.contains(": children: found "), "{said}");
    assert!(said.ends_with(" at one position, expected one"), "{said}");
}

#[test]
fn a_volume_larger_than_any_device_is_refused() {
    let image = set(4);
    let (_, loaded) = read(&image).expect("it is sound");
    let uuids = loaded.newest.uuids.cached_at().expect("they are there").sector();
    let with = |sectors: u64, flags: u8| {
        let mut image = image.clone();
        let at = uuids as usize * SECTOR_BYTES;
        image[at + 60] = flags;
        image[at + 64..at + 72].copy_from_slice(&sectors.to_le_bytes());
        image
    };
    let said = refusal(&with(u64::MAX, 1));
    let expected = "uuids: volume 0: sectors: found 18446744073709551615, expected at most ";
    assert!(said.starts_with(expected), "{said}");
    // Where there is a backing device the number means nothing.
    assert!(read(&with(u64::MAX, 0)).is_some() && read(&with(SECTORS_MAX, 1)).is_some());
}

/// Where each sector of a volume lies, and whether it is dirty.
type Sectors = BTreeMap<(u32, u64), (Pointer, bool)>;

/// Replays keys one by one and sector by sector, as the rules say.
fn replayed(mut sectors: Sectors, keys: &[Key], buckets: &[Record], level: u16) -> Sectors {
    let is_stale = |at: &Pointer| {
        let bucket = (at.sector() / BUCKET_SECTORS) as usize;
        buckets[bucket].generation.outdates(at.generation())
    };
    let tree = sectors.clone();
    for key in keys {
        for sector in key.start()..key.end() {
            let part = key.part(sector, sector + 1).expect("within it");
            let at = (key.inode(), sector);
            match part.cached_at() {
                // It was moved or written back: the tree knows.
                Some(place) if is_stale(&place) && key.is_dirty() && level > 0 => {
                    match tree.get(&at) {
                        Some(known) => sectors.insert(at, *known),
                        None => sectors.remove(&at),
                    }
                }
                Some(place) if !is_stale(&place) => sectors.insert(at, (place, key.is_dirty())),
                _ => sectors.remove(&at),
            };
        }
    }
    sectors.retain(|_, (place, _)| !is_stale(place));
    sectors
}

fn sectors_of(extents: &[Key]) -> Sectors {
    let mut sectors = Sectors::new();
    for key in extents {
        for sector in key.start()..key.end() {
            let part = key.part(sector, sector + 1).expect("within it");
            let place = part.cached_at().expect("extents lead somewhere");
            sectors.insert((key.inode(), sector), (place, part.is_dirty()));
        }
    }
    sectors
}

/// Keys of two volumes, in a few buckets, whose generations are near those of the buckets.
fn keys() -> impl Strategy<Value = Vec<Key>> {
    let one = (0..2_u32, 0..60_u64, 0..8_u64, 0..4_u8, 200..206_u64, 0..4_u8);
    let key = |(inode, start, sectors, kind, bucket, generation): (u32, u64, u64, u8, u64, u8)| {
        let key = Key::new(inode, start + sectors, sectors);
        let place = Pointer::new(bucket * BUCKET_SECTORS, Generation(generation.wrapping_sub(2)));
        if kind == 0 { key } else { key.with_dirty(kind > 1).at(place) }
    };
    proptest::collection::vec(one.prop_map(key), 0..40)
}

proptest! {
    #[test]
    fn each_sector_lies_where_replaying_the_journal_key_by_key_says(
        tree in keys(),
        journal in keys(),
        generations in proptest::collection::vec(0..3_u8, 6),
        level in 0..2_u16,
    ) {
        let geometry = *fresh().geometry();
        let image = set(4);
        let (_, mut loaded) = read(&image).expect("it is sound");
        for (bucket, generation) in (200..).zip(generations) {
            loaded.buckets[bucket].generation = Generation(generation.wrapping_sub(1));
        }
        let tree: Vec<Key> =
            latest(tree.into_iter()).into_iter().filter(|key| key.cached_at().is_some()).collect();
        loaded.newest.root_level = level;
        loaded.journal.clone_from(&journal);
        let expected = replayed(sectors_of(&tree), &journal, &loaded.buckets, level);
        prop_assert_eq!(sectors_of(&loaded.extents(&geometry, tree)), expected);
    }
}
