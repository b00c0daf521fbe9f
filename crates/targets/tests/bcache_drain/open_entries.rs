//! Drains of sets with as many open entries in the journal as a kernel may leave.

use std::convert::Infallible;

use cairn_block::{Sector, SectorCount};
use cairn_format::bcache::build::{Builder, WriteSectors};
use cairn_format::bcache::journal::{ENTRIES_MAX, Header, encode, scan};
use cairn_format::bcache::uuids::UuidEntry;
use cairn_format::bcache::{
    BackingState, CacheMode, CacheSuperblock, Generation, Key, NewCache, Pointer, Replacement,
    SECTOR_BYTES, SUPERBLOCK_SECTOR, Uuid,
};
use cairn_sim::Image;

use super::bcache_lab::Lab;
use super::bcache_lab::make::{FIRST, backing_of, stamp};
use super::{difference, state_of};

/// Sectors of the volume.
const SECTORS: u64 = 4096;
const BUCKET_SECTORS: u64 = 1024;

/// A cache device; only what was written to it takes memory.
struct Device(Image);

impl WriteSectors for Device {
    type Error = Infallible;

    fn write(&mut self, sector: u64, bytes: &[u8]) -> Result<(), Infallible> {
        self.0.write(Sector(sector), bytes);
        Ok(())
    }
}

/// A cache without extents, and what its only entry says.
fn empty_cache(buckets: u64) -> (Device, CacheSuperblock, Header) {
    let superblock = CacheSuperblock::fresh(&NewCache {
        uuid: Uuid([1; 16]),
        set_uuid: Uuid([2; 16]),
        block_sectors: 1,
        bucket_sectors: BUCKET_SECTORS,
        device_sectors: buckets * BUCKET_SECTORS,
        replacement: Replacement::Lru,
        discard: false,
    });
    let mut device = Device(Image::new(SectorCount(buckets * BUCKET_SECTORS)));
    let builder = Builder::new(&superblock.expect("legal"), 11, &mut device);
    let volume = UuidEntry { uuid: Uuid([3; 16]), ..UuidEntry::default() };
    let Ok(superblock) = builder.finish(&[volume]) else { panic!("there is room") };
    let superblock = superblock.registered(0);
    let Ok(()) = device.write(SUPERBLOCK_SECTOR, &superblock.encode());
    let first = superblock.geometry().sector_of(superblock.journal_buckets().start + 1);
    let entry = device.0.sector(Sector(first));
    let (entries, _) = scan(&entry, superblock.set_uuid().set_magic(), SECTOR_BYTES);
    let header = entries[0].header;
    (device, superblock, header)
}

/// A set whose journal has so many open entries of one block, with a dirty sector each, in a ring
/// of so many buckets; and what the volume reads as.
fn set(entries: u64, ring_buckets: u64) -> ([Image; 2], Vec<u8>) {
    // Of 128 buckets one is of the ring. The last ones get the data.
    let buckets = ring_buckets << 7;
    let (mut cache, superblock, first) = empty_cache(buckets);
    let (geometry, magic) = (superblock.geometry(), superblock.set_uuid().set_magic());
    let ring = superblock.journal_buckets();
    assert_eq!(ring.end - ring.start, ring_buckets);
    let mut content = vec![0; SECTORS as usize * SECTOR_BYTES];
    let backing = backing_of(Uuid([3; 16]), 1, &content, CacheMode::Writeback);
    for seq in 2..=entries {
        // An odd step: the entries of each `SECTORS` in a row have all sectors.
        let start = seq * 1031 % SECTORS;
        let at = buckets * BUCKET_SECTORS - seq;
        content[start as usize * SECTOR_BYTES..][..SECTOR_BYTES].copy_from_slice(&stamp(seq));
        let Ok(()) = cache.write(at, &stamp(seq));
        let key = Key::new(0, FIRST + start + 1, 1).with_dirty(true);
        let key = key.at(Pointer::new(at, Generation(0)));
        let entry = encode(&Header { seq, ..first }, &[key], magic, SECTOR_BYTES);
        assert_eq!(entry.len(), SECTOR_BYTES);
        let place = (BUCKET_SECTORS + seq - 1) % (ring_buckets * BUCKET_SECTORS);
        let Ok(()) = cache.write(geometry.sector_of(ring.start) + place, &entry);
    }
    ([cache.0, Image::of_bytes(&backing)], content)
}

fn read(lab: &Lab, line: &str) -> Vec<u8> {
    lab.read_all(&lab.open(line, true))
}

#[test]
fn a_set_with_as_many_open_entries_as_a_kernel_leaves_is_drained() {
    // The second ring has no free bucket.
    for (entries, ring_buckets) in [(25_000, 26), (ENTRIES_MAX, 32)] {
        let (images, content) = set(entries, ring_buckets);
        let line = format!("0 {SECTORS} bcache backing cache 0");
        let found = read(&Lab::of_images(1, images.clone()), &line);
        assert_eq!(difference(&found, &content), None, "{entries}: before");
        let lab = Lab::of_images(1, images);
        lab.open_and_drain(&line).expect("no power cut").expect("it is drained");
        let backing = lab.world.drive("backing").durable().to_vec();
        assert_eq!(state_of(&backing), BackingState::Clean);
        let data = &backing[FIRST as usize * SECTOR_BYTES..];
        assert_eq!(difference(data, &content), None, "{entries}: the backing device alone");
        assert_eq!(difference(&read(&lab, &line), &content), None, "{entries}: after");
    }
}
