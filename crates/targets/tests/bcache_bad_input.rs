//! Bad input: each set that contradicts itself is refused with one line that names the device, the
//! structure, its place and what was found, and no byte is written.

#[path = "bcache_lab/mod.rs"]
mod bcache_lab;

use std::sync::LazyLock;

use bcache_lab::make::{SHAPE, make};
use bcache_lab::{Cache, Lab};
use cairn_format::bcache::journal::{Header, encode, scan};
use cairn_format::bcache::node::encode_set;
use cairn_format::bcache::priorities::PrioritySet;
use cairn_format::bcache::{
    BackingState, Generation, Key, Pointer, SECTOR_BYTES, Superblock, crc64,
};
use cairn_testkit::image;

const SUPERBLOCK: usize = 4096;

/// A cache and its backing device, to be damaged.
#[derive(Clone)]
struct Devices {
    cache: Vec<u8>,
    backing: Vec<u8>,
}

/// A set whose tree has two levels, with several open entries of the journal.
fn tree() -> Devices {
    static TREE: LazyLock<Devices> = LazyLock::new(|| {
        let made = make(&mut fastrand::Rng::with_seed(5), SHAPE);
        Devices { cache: made.cache, backing: made.backing }
    });
    TREE.clone()
}

/// A set that a kernel made, with one leaf.
fn leaf() -> Devices {
    static LEAF: LazyLock<Devices> = LazyLock::new(|| golden("wb_stop"));
    LEAF.clone()
}

fn golden(name: &str) -> Devices {
    let of = |kind| image("bcache", &format!("{name}.{kind}"));
    Devices { cache: of("cache"), backing: of("backing") }
}

impl Devices {
    fn lab(&self) -> Lab {
        Lab::new(3, Some(self.cache.clone()), Some(self.backing.clone()))
    }

    /// Expects a refusal, of a table that only reads and of one that drains, that begins so.
    #[track_caller]
    fn refused(&self, expected: &str) {
        for read_only in [true, false] {
            let lab = self.lab();
            let before = lab.images();
            let line = lab.refusal("0 8 bcache backing cache 0", read_only);
            assert!(line.starts_with(expected), "found    {line}\nexpected {expected}");
            assert!(line.contains("found ") && !line.contains('\n'), "{line}");
            assert!(lab.images() == before, "{line}: a byte was written");
        }
    }

    /// Expects that a table that only reads serves what the undamaged leaf has.
    #[track_caller]
    fn reads_as_the_leaf(&self) {
        let [lab, sound] = [self.lab(), leaf().lab()];
        let before = lab.images();
        let [volume, same] =
            [&lab, &sound].map(|lab| lab.open("0 16368 bcache backing cache 0", true));
        assert!(lab.read_all(&volume) == sound.read_all(&same));
        lab.close(&volume);
        assert!(lab.images() == before, "a byte was written");
    }

    /// The cache, read whole: before it is damaged.
    fn read(&self) -> Cache {
        Cache::read(&self.cache)
    }

    /// Changes bytes of a superblock; its checksum is right again.
    fn superblock(device: &mut [u8], at: usize, bytes: &[u8]) {
        device[SUPERBLOCK + at..SUPERBLOCK + at + bytes.len()].copy_from_slice(bytes);
        let keys = u16::from_le_bytes([device[SUPERBLOCK + 206], device[SUPERBLOCK + 207]]);
        let end = SUPERBLOCK + 208 + 8 * usize::from(keys);
        let sum = crc64(&device[SUPERBLOCK + 8..end]);
        device[SUPERBLOCK..SUPERBLOCK + 8].copy_from_slice(&sum.to_le_bytes());
    }

    /// Where an entry of the journal is, in bytes: the one this far before the newest.
    fn entry(&self, before: usize) -> usize {
        let Cache { superblock, loaded, .. } = self.read();
        let entries = &loaded.ring.entries;
        let entry = entries[entries.len() - 1 - before];
        let bucket = superblock.journal_buckets().start + entry.index as u64;
        superblock.geometry().sector_of(bucket) as usize * SECTOR_BYTES + entry.bytes.start
    }

    /// Writes the newest entry again, with another header.
    fn with_header(&mut self, change: impl FnOnce(&mut Header)) {
        let (at, Cache { superblock, loaded, .. }) = (self.entry(0), self.read());
        let magic = superblock.set_uuid().set_magic();
        let block = superblock.geometry().block_bytes();
        let (found, _) = scan(&self.cache[at..], magic, block);
        let keys: Vec<Key> = found[0].keys().map(|key| key.expect("a key")).collect();
        let mut header = loaded.newest;
        change(&mut header);
        let bytes = encode(&header, &keys, magic, block);
        self.cache[at..at + bytes.len()].copy_from_slice(&bytes);
    }

    /// Where the root is, in bytes.
    fn root(&self) -> usize {
        let root = self.read().loaded.newest.root.cached_at().expect("it lies there");
        root.sector() as usize * SECTOR_BYTES
    }

    /// Writes the root again, with these keys alone.
    fn with_root(&mut self, keys: &[Key]) {
        let (at, Cache { superblock, loaded, .. }) = (self.root(), self.read());
        let root = loaded.newest.root;
        let (geometry, magic) = (superblock.geometry(), superblock.set_uuid().set_magic());
        let mut bytes = Vec::new();
        let pointer = root.cached_at().expect("it lies there");
        encode_set(&mut bytes, pointer, magic, 5, keys, geometry.block_bytes());
        bytes.resize(root.sectors() as usize * SECTOR_BYTES, 0);
        self.cache[at..at + bytes.len()].copy_from_slice(&bytes);
    }
}

#[test]
fn a_wrong_superblock_is_refused_with_its_device_and_field() {
    for (at, bytes, field) in [
        (24, &[0_u8; 16][..], "superblock magic: found 0000"),
        (110, &[1], "superblock checksum: found 0x"),
        (8, &[9], "superblock offset: found sector "),
    ] {
        let mut set = leaf();
        set.cache[SUPERBLOCK + at..SUPERBLOCK + at + bytes.len()].copy_from_slice(bytes);
        set.refused(&format!("cache: {field}"));
        let mut set = leaf();
        set.backing[SUPERBLOCK + at..SUPERBLOCK + at + bytes.len()].copy_from_slice(bytes);
        set.refused(&format!("backing: {field}"));
    }
    let of_cache: [(usize, &[u8], &str); 6] = [
        (16, &[2], "superblock version: found 2, expected 0, 1, 3, 4, 5 or 6"),
        (16, &[9], "superblock version: found 9"),
        (196, &[2], "superblock nr_in_set: found 2, expected 1 (one cache device in a set)"),
        (198, &[1], "superblock nr_this_dev: found 1"),
        (216, &[9], "superblock journal bucket 1: found bucket 9"),
        (192, &[3], "superblock block_size: found 3, expected 1, 2, 4 or 8"),
    ];
    for (at, bytes, field) in of_cache {
        let mut set = leaf();
        Devices::superblock(&mut set.cache, at, bytes);
        set.refused(&format!("cache: {field}"));
    }
    let mut set = leaf();
    Devices::superblock(&mut set.backing, 16, &[2]);
    set.refused("backing: superblock version: found 2");
}

#[test]
fn unknown_features_of_a_cache_are_refused_with_their_bits() {
    let mut set = leaf();
    // Version 5, whose features count.
    Devices::superblock(&mut set.cache, 16, &[5]);
    Devices::superblock(&mut set.cache, feature_incompat(), &[8]);
    set.refused("cache: superblock feature_incompat: found 0x8, expected no bits but 0x3");
}

/// A kernel writes what its memory held there before, and reads the bits of caches only.
#[test]
fn features_of_a_backing_device_count_for_nothing() {
    let mut set = leaf();
    // Version 6, which has a data_offset.
    Devices::superblock(&mut set.backing, 16, &[6]);
    Devices::superblock(&mut set.backing, 184, &[16]);
    Devices::superblock(&mut set.backing, feature_incompat(), &[8]);
    set.reads_as_the_leaf();
}

/// Where the incompatible features are in a superblock.
fn feature_incompat() -> usize {
    let fields = cairn_format::bcache::superblock::SUPERBLOCK_FIELDS;
    fields.iter().find(|field| field.name == "feature_incompat").expect("a field").offset
}

#[test]
fn the_obsolete_bucket_size_is_read_and_not_drained() {
    let mut set = leaf();
    Devices::superblock(&mut set.cache, 16, &[5]);
    let at = feature_incompat();
    Devices::superblock(&mut set.cache, at, &[1]);
    set.reads_as_the_leaf();
    let lab = set.lab();
    let before = lab.images();
    let line = lab.refusal("0 8 bcache backing cache 0", false);
    let expected = "cache: superblock feature_incompat: found the obsolete form of bucket_size";
    assert!(line.starts_with(expected), "{line}");
    assert!(lab.images() == before);
}

#[test]
fn devices_that_shrank_or_were_used_alone_or_are_of_another_set_are_refused() {
    let whole = leaf();
    let mut set = whole.clone();
    set.backing.truncate(16 * SECTOR_BYTES);
    set.refused("backing: device size: found 16 sectors, expected at least 17");
    let mut set = whole.clone();
    set.cache.truncate(32 << 20);
    set.refused("cache: device size: found 65536 sectors, expected at least 131072");
    let mut set = whole.clone();
    let Superblock::Backing(mut superblock) = bcache_lab::superblock_of(&set.backing) else {
        panic!("it is a backing device")
    };
    superblock.set_state(BackingState::Stale);
    set.backing[SUPERBLOCK..2 * SUPERBLOCK].copy_from_slice(&superblock.encode());
    set.refused("backing: state: found inconsistent: it was used without its cache");
    Devices { backing: tree().backing, ..whole.clone() }.refused("backing: set_uuid: found ");
    // The length of the table is that of the device before it shrank.
    let mut set = whole;
    set.backing.truncate(4 << 20);
    let line = set.lab().refusal("0 16368 bcache backing cache 0", true);
    assert_eq!(line, "backing: device size: found 8192 sectors, expected at least 16384");
}

#[test]
fn a_damaged_entry_of_the_journal_is_refused_with_its_bucket_and_number() {
    let seqs: Vec<u64> =
        tree().read().loaded.ring.entries.iter().map(|entry| entry.header.seq).collect();
    let [.., before, _] = seqs[..] else { panic!("several entries count") };
    let mut set = tree();
    let at = set.entry(1);
    set.cache[at + 100] ^= 1;
    let located = tree().read().loaded.ring.entries[seqs.len() - 2];
    let (index, block) = (located.index, located.bytes.start);
    let entry = format!("cache: journal bucket {index}: journal entry {before}");
    set.refused(&format!("{entry}: checksum: found 0x"));
    let mut set = tree();
    set.cache[at + 24] = 9;
    let words = set.cache[at + 28..at + 32].try_into().expect("four bytes");
    let end = at + 240 + 8 * u32::from_le_bytes(words) as usize;
    let sum = crc64(&set.cache[at + 8..end]);
    set.cache[at..at + 8].copy_from_slice(&sum.to_le_bytes());
    set.refused(&format!("{entry}: version: found 9, expected 0 or 1"));
    // Another magic, or a block of zeros, in the place of an entry.
    let mut set = tree();
    set.cache[at + 8] ^= 1;
    set.refused(&format!("{entry}: magic: found 0x"));
    let mut set = tree();
    set.cache[at..at + 512].fill(0);
    let newest = before + 1;
    let found = "found no journal entry, expected one in front of entry";
    set.refused(&format!("cache: journal bucket {index}: byte {block}: {found} {newest}"));
    // No entry at all.
    let mut set = tree();
    let Cache { superblock, .. } = set.read();
    for bucket in superblock.journal_buckets() {
        let start = superblock.geometry().sector_of(bucket) as usize * SECTOR_BYTES;
        set.cache[start..start + superblock.geometry().bucket_sectors() as usize * 512].fill(0);
    }
    set.refused("cache: journal: found no entry, expected one at least");
    // The newest entry counts itself out.
    let mut set = tree();
    set.with_header(|header| header.last_seq = header.seq + 1);
    set.refused("cache: journal: entry ");
}

#[test]
fn a_root_that_is_none_is_refused_with_the_entry_that_names_it() {
    let mut set = tree();
    set.with_header(|header| header.root_level = 16);
    set.refused("cache: journal entry ");
    let mut set = tree();
    set.with_header(|header| {
        header.root = header.root.at(Pointer::new(1 << 40, Generation(0)));
    });
    set.refused("cache: node of level 1 at sector 1099511627776: key ");
    let mut set = tree();
    set.with_header(|header| {
        header.uuids = header.uuids.at(Pointer::new(1 << 40, Generation(0)));
    });
    set.refused("cache: uuids: key ");
}

#[test]
fn damaged_priorities_are_refused_with_their_bucket() {
    // It has several sets of priorities.
    let several = golden("tree_kill");
    let bucket = several.read().loaded.priorities[0];
    let place =
        |set: &Devices| set.read().superblock.geometry().sector_of(bucket) as usize * SECTOR_BYTES;
    for (at, field) in [(8, "magic"), (60, "checksum")] {
        let mut set = several.clone();
        let start = place(&set);
        set.cache[start + at] ^= 1;
        set.refused(&format!(
            "cache: priorities in bucket {bucket}: priorities: {field}: found 0x"
        ));
    }
    // The chain of sets comes back to its first, or leaves the device.
    for (next, expected) in [
        (bucket, format!("priorities in bucket {bucket}: bucket: found {bucket} again")),
        (1 << 40, "priorities in bucket 1099511627776: bucket: found 1099511627776, ".to_owned()),
    ] {
        let mut set = several.clone();
        let (start, superblock) = (place(&set), set.read().superblock);
        let bytes = superblock.geometry().meta_sectors() as usize * SECTOR_BYTES;
        let sound = &set.cache[start..start + bytes];
        PrioritySet::read(sound, superblock.set_uuid().set_magic()).expect("it is sound");
        let at = start + 32;
        set.cache[at..at + 8].copy_from_slice(&next.to_le_bytes());
        let sum = crc64(&set.cache[start + 8..start + bytes]);
        set.cache[start..start + 8].copy_from_slice(&sum.to_le_bytes());
        set.refused(&format!("cache: {expected}"));
    }
}

#[test]
fn a_damaged_node_is_refused_with_its_level_sector_and_set() {
    for at in [8, 24, 40] {
        let mut set = tree();
        let root = set.root();
        set.cache[root + at] ^= 0x80;
        let place = format!("node of level 1 at sector {}: ", root / SECTOR_BYTES);
        set.refused(&format!("cache: {place}bset at byte 0: "));
    }
}

#[test]
fn children_that_loop_or_leave_their_node_are_refused() {
    let tree_root = tree().read().loaded.newest.root;
    let place = format!("node of level 1 at sector {}", tree().root() / SECTOR_BYTES);
    // The root is its own child.
    let mut set = tree();
    set.with_root(&[tree_root]);
    let geometry = *tree().read().superblock.geometry();
    let sector = tree_root.cached_at().expect("it lies there").sector();
    let bucket = geometry.bucket_of(sector);
    set.refused(&format!(
        "cache: node of level 0 at sector {sector}: bucket {bucket}: found a second node in it"
    ));
    // The last child does not reach the end.
    let mut set = tree();
    set.with_root(&[]);
    set.refused(&format!("cache: {place}: children: found the last at (0, 0), expected it at"));
}

#[test]
fn extents_that_lead_nowhere_or_overlap_are_refused() {
    /// No entry of the journal has what is there.
    const F: u64 = 12000;
    /// Where the backing device ends.
    const END: u64 = 16384;
    let Cache { superblock, loaded, .. } = leaf().read();
    let geometry = *superblock.geometry();
    let place = format!("node of level 0 at sector {}", leaf().root() / SECTOR_BYTES);
    let generation = |bucket: u64| {
        loaded.buckets.get(bucket as usize).map_or(Generation(0), |known| known.generation)
    };
    let at = |start: u64, sectors: u64, bucket: u64, skip: u64| {
        let pointer = Pointer::new(geometry.sector_of(bucket) + skip, generation(bucket));
        Key::new(0, start + sectors, sectors).with_dirty(true).at(pointer)
    };
    let (data, journal) = (900, superblock.journal_buckets().start);
    let size = geometry.bucket_sectors();
    let stale = {
        let key = at(F, 8, data, 0);
        let next = Pointer::new(geometry.sector_of(data) + 8, generation(data).next());
        [key, Key::new(0, F + 24, 8).with_dirty(true).at(next)]
    };
    let cases: [(&[Key], String); 10] = [
        (&[at(F, 8, 1 << 30, 0)], format!("{place}: key 0:12000+8")),
        (&[at(F, 16, data, size - 8)], format!("{place}: key 0:12000+16")),
        (&[at(F, 8, data, 0), at(F + 4, 8, data, 16)], format!("{place}: bset at byte 0: ")),
        (
            &[at(F, size, data, 0), at(F + size, 8, data, 0)],
            format!("bucket {data}: found extents of {} sectors in it, expected {size}", size + 8),
        ),
        (&[at(F, 8, journal, 0)], format!("bucket {journal}: found data in it, expected meta")),
        (&stale, "extent 0:12000+8 dirty".to_owned()),
        // Two in one place.
        (
            &[at(F, 8, data, 0), at(F + 24, 8, data, 7)],
            format!("extent {:?}: found its sectors in 0:12000+8 ", at(F + 24, 8, data, 7)),
        ),
        // Over the superblock of the backing device, before its data, and beyond its end.
        (&[at(8, 8, data, 0)], format!("extent {:?}: found beyond its", at(8, 8, data, 0))),
        (&[at(0, 16, data, 0)], format!("extent {:?}: found beyond its", at(0, 16, data, 0))),
        (&[at(END - 4, 8, data, 0)], format!("extent {:?}: found b", at(END - 4, 8, data, 0))),
    ];
    for (keys, expected) in cases {
        let mut set = leaf();
        set.with_root(keys);
        set.refused(&format!("cache: {expected}"));
    }
}

#[test]
fn servers_know_no_policies_of_flushes_but_their_own() {
    for (policy, _) in cairn_targets::bcache::flush_policies() {
        let lab = leaf().lab();
        let line = format!("0 8 bcache backing cache 2 flushes {policy}");
        let refused = lab.refusal(&line, false);
        assert!(refused.contains("option: found 'flushes', expected one of set"), "{refused}");
    }
}
