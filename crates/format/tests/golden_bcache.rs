//! Caches that a real kernel wrote, read whole: their content by its sum, and what is special of
//! each.

use std::ops::ControlFlow;

use cairn_format::bcache::journal::EntryFault;
use cairn_format::bcache::load::{Fault, Loaded, NodePlace, Place, Visitor, What, load_now};
use cairn_format::bcache::node::Node;
use cairn_format::bcache::places::Places;
use cairn_format::bcache::{
    BackingState, BackingSuperblock, CacheMode, CacheSuperblock, Key, SECTOR_BYTES,
    SUPERBLOCK_SECTOR, Superblock,
};
use cairn_testkit::{image, manifest};
use sha2::{Digest, Sha256};

/// Takes the extents, and refuses every fault.
#[derive(Default)]
struct Strict {
    extents: Vec<Key>,
    nodes: usize,
}

impl Visitor for Strict {
    fn fault(&mut self, _: &Fault) -> ControlFlow<()> {
        ControlFlow::Break(())
    }

    fn node(&mut self, _: &NodePlace, _: &Node<'_>) {
        self.nodes += 1;
    }

    fn extent(&mut self, key: Key) {
        self.extents.push(key);
    }
}

fn superblock(image: &[u8]) -> Superblock {
    let begin = SUPERBLOCK_SECTOR as usize * SECTOR_BYTES;
    Superblock::decode(&image[begin..]).expect("a golden image opens")
}

fn cache_superblock(image: &[u8]) -> CacheSuperblock {
    match superblock(image) {
        Superblock::Cache(cache) => cache,
        Superblock::Backing(_) => panic!("it is a backing device"),
    }
}

fn backing_superblock(image: &[u8]) -> BackingSuperblock {
    match superblock(image) {
        Superblock::Backing(backing) => backing,
        Superblock::Cache(_) => panic!("it is a cache"),
    }
}

/// A cache, read whole.
struct Cache {
    superblock: CacheSuperblock,
    loaded: Loaded,
    extents: Vec<Key>,
    nodes: usize,
    image: Vec<u8>,
}

fn cache(name: &str) -> Cache {
    let image = image("bcache", name);
    let superblock = cache_superblock(&image);
    superblock.geometry().fits((image.len() / SECTOR_BYTES) as u64).expect("it has all buckets");
    let mut visitor = Strict::default();
    let loaded = load_now(&image[..], &superblock, &mut visitor);
    let loaded = loaded.unwrap_or_else(|error| panic!("{name}: {error}"));
    let extents = loaded.extents(superblock.geometry(), visitor.extents);
    Cache { superblock, loaded, extents, nodes: visitor.nodes, image }
}

impl Cache {
    /// Lays the extents of a volume over `content`, whose first sector its keys call `first`.
    fn overlay(&self, content: &mut [u8], inode: u32, first: u64) {
        for key in self.extents.iter().filter(|key| key.inode() == inode) {
            let from = key.cached_at().expect("extents lead somewhere").sector() as usize;
            let to = (key.start() - first) as usize * SECTOR_BYTES;
            let bytes = key.sectors() as usize * SECTOR_BYTES;
            content[to..to + bytes].copy_from_slice(&self.image[from * SECTOR_BYTES..][..bytes]);
        }
    }

    fn inode_of(&self, backing: &BackingSuperblock) -> u32 {
        let is_it = |entry: &cairn_format::bcache::uuids::UuidEntry| entry.uuid == backing.uuid();
        self.loaded.volumes.iter().position(is_it).expect("it is attached") as u32
    }

    fn dirty_sectors(&self) -> u64 {
        self.extents.iter().filter(|key| key.is_dirty()).map(Key::sectors).sum()
    }
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn each_golden_set_has_the_content_that_the_kernel_read() {
    for record in manifest("bcache") {
        let text = |key: &str| record[key].as_str();
        let content = match (text("cache"), text("backing"), record["flash"].as_u64()) {
            (Some(name), Some(backing), _) => {
                let (cache, backing) = (cache(name), image("bcache", backing));
                let of = backing_superblock(&backing);
                let mut content = backing[of.data_offset() as usize * SECTOR_BYTES..].to_vec();
                cache.overlay(&mut content, cache.inode_of(&of), of.data_offset());
                content
            }
            (Some(name), None, Some(inode)) => {
                let cache = cache(name);
                let volume = &cache.loaded.volumes[inode as usize];
                assert!(volume.is_flash_only() && volume.is_live());
                let mut content = vec![0; volume.sectors as usize * SECTOR_BYTES];
                cache.overlay(&mut content, inode as u32, 0);
                content
            }
            (None, Some(backing), _) => {
                let backing = image("bcache", backing);
                let of = backing_superblock(&backing);
                assert!(of.set_uuid().is_zero() && of.state() == BackingState::None);
                backing[of.data_offset() as usize * SECTOR_BYTES..].to_vec()
            }
            other => panic!("{other:?}"),
        };
        let bytes = record["bytes"].as_u64().unwrap_or(content.len() as u64);
        assert_eq!(
            (hex(&content).as_str(), content.len() as u64),
            (text("sha256").expect("the manifest has the sum"), bytes,),
            "{record}"
        );
    }
}

#[test]
fn the_journal_alone_has_what_a_killed_kernel_had_not_written_to_a_leaf() {
    let killed = cache("wb_kill.cache");
    assert_eq!(killed.dirty_sectors() * 512, 340 << 10);
    assert!(!killed.loaded.journal.is_empty());
    let stopped = cache("wb_stop.cache");
    assert_eq!(stopped.dirty_sectors(), killed.dirty_sectors());
    assert_eq!(stopped.superblock.geometry().bucket_sectors(), 128);
}

#[test]
fn a_tree_of_two_levels_and_several_sets_of_priorities_are_read() {
    let cache = cache("tree_kill.cache");
    assert_eq!(cache.superblock.geometry().buckets(), 8192);
    assert_eq!((cache.loaded.priorities.len(), cache.loaded.newest.root_level), (2, 1));
    assert_eq!(cache.loaded.ring.entries.len(), 12);
    assert!(cache.nodes > 3, "{} nodes", cache.nodes);
    let backing = backing_superblock(&image("bcache", "tree_kill.backing"));
    assert_eq!((backing.version(), backing.data_offset()), (4, 64));
    assert_eq!((backing.state(), backing.mode()), (BackingState::Dirty, CacheMode::Writeback));
}

#[test]
fn a_ring_that_wrapped_counts_its_open_entries_alone() {
    let cache = cache("ring_kill.cache");
    assert_eq!(cache.loaded.ring.entries.len(), 136);
    assert_eq!(cache.loaded.ring.newest().header.seq, cache.loaded.newest.seq);
}

#[test]
fn superblocks_of_the_kernel_encode_to_their_own_bytes() {
    for record in manifest("bcache") {
        for name in ["cache", "backing"].iter().filter_map(|key| record[*key].as_str()) {
            let image = image("bcache", name);
            let bytes = match superblock(&image) {
                Superblock::Cache(cache) => cache.encode(),
                Superblock::Backing(backing) => backing.encode(),
            };
            assert!(bytes == image[4096..8192], "{name}");
        }
    }
}

#[test]
fn a_detached_volume_leaves_its_slot_behind() {
    let cache = cache("detached.cache");
    let volumes = &cache.loaded.volumes;
    assert!(volumes.iter().all(|volume| !volume.is_live()));
    assert!(volumes.iter().any(|volume| !volume.is_empty()));
}

#[test]
fn a_set_of_two_backing_devices_has_the_extents_of_both_in_its_leaf_and_its_journal() {
    let cache = cache("two_kill.cache");
    let both = |keys: &[Key]| [0, 1].map(|inode| keys.iter().any(|key| key.inode() == inode));
    assert_eq!(both(&cache.extents), [true; 2]);
    assert_eq!(both(&cache.loaded.journal), [true; 2]);
    assert!(cache.loaded.ring.entries.len() > 4 && cache.loaded.torn.is_none());
    let devices = ["two_kill.first", "two_kill.second"].map(|name| image("bcache", name));
    let offsets = devices.each_ref().map(|device| backing_superblock(device).data_offset());
    assert_eq!(offsets, [16, 64]);
    let inodes = devices.each_ref().map(|device| cache.inode_of(&backing_superblock(device)));
    assert!(inodes == [0, 1] || inodes == [1, 0]);
    assert_eq!(cache.dirty_sectors() * 512, 204 << 10);
    let mut places = Places::new(cache.superblock.geometry());
    cache.extents.iter().for_each(|key| places.take(key));
    assert_eq!(places.shared(), None);
}

#[test]
fn a_part_of_an_entry_behind_the_newest_is_torn_and_counts_for_nothing() {
    for name in ["made_v3.cache", "made_v5.cache"] {
        let Loaded { torn, newest, .. } = cache(name).loaded;
        let torn = torn.expect("its journal ends so");
        let What::Entry(EntryFault::Checksum { seq, .. }) = torn.what else { panic!("{torn}") };
        assert_eq!((seq, torn.place), (newest.seq + 1, Place::Journal { index: 5 }));
    }
    // The newest entry of a kernel, as a power cut within its write leaves it.
    for name in ["wb_kill.cache", "two_kill.cache", "tree_kill.cache", "ring_kill.cache"] {
        let whole = cache(name);
        let (ring, geometry) = (&whole.loaded.ring, whole.superblock.geometry());
        let newest = ring.newest();
        let bucket = whole.superblock.journal_buckets().start + newest.index as u64;
        let begin = geometry.sector_of(bucket) as usize * SECTOR_BYTES;
        let mut image = whole.image.clone();
        image[begin + newest.bytes.end - 1] ^= 0xff;
        let loaded = load_now(&image[..], &whole.superblock, &mut Strict::default());
        if ring.entries.len() == 1 {
            assert!(loaded.is_err(), "{name}: the entry before it has given its keys up");
            continue;
        }
        let loaded = loaded.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(loaded.newest.seq, newest.header.seq - 1, "{name}");
        let torn = loaded.torn.expect(name).to_string();
        let expected = format!("journal entry {}: checksum: found ", newest.header.seq);
        assert!(torn.contains(&expected), "{name}: {torn}");
    }
}
