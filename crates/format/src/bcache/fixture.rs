//! A small set for tests, with what a server of it reads, and with a ring of several entries.

use std::ops::ControlFlow;

use super::build::Builder;
use super::journal::{self, Header};
use super::load::{Fault, Loaded, Visitor, load_now};
use super::uuids::UuidEntry;
use super::{
    CacheSuperblock, Generation, Key, NewCache, Pointer, Replacement, SECTOR_BYTES, Superblock,
    Uuid,
};

pub const BUCKET_SECTORS: u64 = 8;
pub const BUCKETS: u64 = 600;

pub fn uuid(byte: u8) -> Uuid {
    Uuid([byte; 16])
}

pub fn fresh() -> CacheSuperblock {
    let new = NewCache {
        uuid: uuid(1),
        set_uuid: uuid(2),
        block_sectors: 1,
        bucket_sectors: BUCKET_SECTORS,
        device_sectors: BUCKETS * BUCKET_SECTORS,
        replacement: Replacement::Lru,
        discard: false,
    };
    CacheSuperblock::fresh(&new).expect("legal")
}

/// A set of one volume with `count` extents of a sector, every other one dirty, and the superblock
/// in its place.
pub fn set(count: u64) -> Vec<u8> {
    let mut image = Vec::new();
    let fresh = fresh();
    let mut builder = Builder::new(&fresh, 77, &mut image);
    for index in 0..count {
        let extent = Key::new(0, 17 + index * 2, 1).with_dirty(index % 2 == 0);
        builder.add(extent).expect("there is room");
    }
    let volume = UuidEntry { uuid: uuid(3), ..UuidEntry::default() };
    let superblock = builder.finish(&[volume]).expect("there is room");
    image.resize(BUCKETS as usize * BUCKET_SECTORS as usize * SECTOR_BYTES, 0);
    image[4096..8192].copy_from_slice(&superblock.encode());
    image
}

/// Takes the extents, and refuses every fault.
pub struct Strict(pub Vec<Key>);

impl Visitor for Strict {
    fn fault(&mut self, _: &Fault) -> ControlFlow<()> {
        ControlFlow::Break(())
    }

    fn extent(&mut self, key: Key) {
        self.0.push(key);
    }
}

pub fn superblock_of(image: &[u8]) -> CacheSuperblock {
    match Superblock::decode(&image[4096..8192]) {
        Ok(Superblock::Cache(superblock)) => superblock,
        other => panic!("{other:?}"),
    }
}

/// What a server that accepts no fault reads: the extents, and what else there is.
pub fn read(image: &[u8]) -> Option<(Vec<Key>, Loaded)> {
    let Ok(Superblock::Cache(superblock)) = Superblock::decode(&image[4096..8192]) else {
        return None;
    };
    let mut strict = Strict(Vec::new());
    let loaded = load_now(image, &superblock, &mut strict).ok()?;
    Some((loaded.extents(superblock.geometry(), strict.0), loaded))
}

/// The entries of the ring of [`with_ring`]: the bucket of each, its block there, and its number.
/// Those from 103 on count.
pub const RING: [(u64, u64, u64); 22] = [
    (0, 0, 98),
    (0, 1, 99),
    (1, 0, 100),
    (1, 1, 101),
    (1, 2, 102),
    (1, 3, 103),
    (1, 4, 104),
    (1, 5, 105),
    (1, 6, 106),
    (1, 7, 107),
    (2, 0, 108),
    (2, 1, 109),
    (2, 2, 110),
    (2, 3, 87),
    (2, 4, 88),
    (2, 5, 89),
    (3, 0, 90),
    (3, 1, 91),
    (3, 2, 92),
    (3, 3, 93),
    (3, 4, 94),
    (3, 5, 95),
];
/// The oldest entry of it that counts, and the newest.
pub const COUNTED: (u64, u64) = (103, 110);

/// Where the entry of a number in [`RING`] begins, in bytes.
pub fn entry_of(image: &[u8], seq: u64) -> usize {
    let (index, block, _) = RING.iter().find(|entry| entry.2 == seq).expect("it is there");
    let bucket = superblock_of(image).journal_buckets().start + index;
    ((bucket * BUCKET_SECTORS + block) as usize) * SECTOR_BYTES
}

/// The set with a ring that went round: entries that count in two buckets, and those of the lap
/// before behind them. Each has a dirty extent, a clean one and a hole.
pub fn with_ring(mut image: Vec<u8>) -> Vec<u8> {
    let superblock = superblock_of(&image);
    let (_, loaded) = read(&image).expect("it is sound");
    let first = superblock.journal_buckets().start;
    let begin = (first * BUCKET_SECTORS) as usize * SECTOR_BYTES;
    image[begin..begin + 4 * BUCKET_SECTORS as usize * SECTOR_BYTES].fill(0);
    for (index, block, seq) in RING {
        let last_seq = if seq == COUNTED.1 { COUNTED.0 } else { seq.min(COUNTED.0) - 3 };
        let header = Header { seq, last_seq, ..loaded.newest };
        let start = 16 + (seq % 30) * 10;
        let place = (BUCKETS - 30 + seq % 30) * BUCKET_SECTORS;
        let at = |sector| Pointer::new(place + sector, Generation(0));
        let keys = [
            Key::new(0, start + 2, 2).with_dirty(true).at(at(0)),
            Key::new(0, start + 5, 2).at(at(2)),
            Key::new(0, start + 8, 2),
        ];
        let bytes = journal::encode(&header, &keys, superblock.set_uuid().set_magic(), 512);
        let at = ((first + index) * BUCKET_SECTORS + block) as usize * SECTOR_BYTES;
        image[at..at + bytes.len()].copy_from_slice(&bytes);
    }
    image
}
