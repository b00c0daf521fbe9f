//! Serving over random damage: a set with damaged metadata is refused with one line, or served.
//! What is served is what the keys vouch for that a naive reader finds in the same bytes, and
//! nothing else; a drain of it changes no sector, or says why it ended. Nothing panics, and all
//! ends.
//!
//! Damage is of bits and bytes, of whole sectors (zeros, another sector), and of words whose
//! checksum is made right again, so that what is wrong is only what they say. `CAIRN_CUTS` sets how
//! many damaged sets there are, `CAIRN_CUT` repeats one.

#[path = "bcache_lab/mod.rs"]
mod bcache_lab;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use bcache_lab::make::{Made, SHAPE, Shape, make};
use bcache_lab::{Cache, Lab};
use cairn_format::bcache::journal::scan;
use cairn_format::bcache::node::encode_set;
use cairn_format::bcache::{Generation, Key, Pointer, SECTOR_BYTES, crc64};

const SHAPES: [Shape; 3] = [
    Shape { sectors: 600, journaled: 40, ..SHAPE },
    // Nodes of 4 KiB in several levels.
    Shape { bucket_sectors: 8, sectors: 1500, longest: 1, journaled: 12, per_entry: 4, ..SHAPE },
    Shape { sectors: 600, free: 1, clean: 12, journaled: 20, ..SHAPE },
];

/// A structure of the cache, in bytes.
#[derive(Clone, Copy)]
struct Area {
    start: usize,
    bytes: usize,
    is_journal: bool,
}

/// Where the metadata is, but for the superblock.
fn areas(cache: &Cache) -> Vec<Area> {
    let geometry = *cache.superblock.geometry();
    let bucket = geometry.bucket_sectors() as usize * SECTOR_BYTES;
    let area = |sector: u64, bytes, is_journal| {
        let start = sector as usize * SECTOR_BYTES;
        Area { start, bytes, is_journal }
    };
    let ring = cache.superblock.journal_buckets();
    let ring = ring.map(|at| area(geometry.sector_of(at), bucket, true));
    let nodes = cache.nodes.iter().filter_map(|key| Some((key.cached_at()?, key.sectors())));
    let nodes = nodes.map(|(at, sectors)| area(at.sector(), sectors as usize * 512, false));
    let meta = geometry.meta_bytes();
    let priorities = cache.loaded.priorities.iter();
    let priorities = priorities.map(|at| area(geometry.sector_of(*at), meta, false));
    let uuids = cache.loaded.newest.uuids.cached_at().map(|at| area(at.sector(), meta, false));
    ring.chain(nodes).chain(priorities).chain(uuids).collect()
}

/// Writes the only set of a leaf or node again, with one of its keys changed.
fn with_other_key(rng: &mut fastrand::Rng, bytes: &mut [u8], cache: &Cache) {
    let node = cache.nodes[rng.usize(..cache.nodes.len())];
    let (at, geometry) = (node.cached_at().expect("it lies there"), cache.superblock.geometry());
    let magic = cache.superblock.set_uuid().set_magic();
    let start = at.sector() as usize * SECTOR_BYTES;
    let words = u32::from_le_bytes(bytes[start + 28..start + 32].try_into().expect("4 bytes"));
    let seq = u64::from_le_bytes(bytes[start + 16..start + 24].try_into().expect("8 bytes"));
    // It may be damaged by now.
    let Some(words) = bytes.get(start + 32..start + 32 + words as usize * 8) else { return };
    let words: Vec<u64> =
        words.chunks(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes"))).collect();
    let mut keys: Vec<Key> = words
        .chunks(3)
        .filter_map(|words| {
            let words: Vec<_> = words.iter().copied().map(Into::into).collect();
            Key::decode(&words).ok().map(|(key, _)| key)
        })
        .collect();
    let Some(index) = (!keys.is_empty()).then(|| rng.usize(..keys.len())) else { return };
    let (key, buckets) = (keys[index], geometry.buckets());
    let place = Pointer::new(
        geometry.sector_of(rng.u64(..buckets + 2)) + rng.u64(..geometry.bucket_sectors()),
        Generation([0, 1, 95, 97, 128, 129, 255][rng.usize(..7)]),
    );
    match rng.u8(..7) {
        0 => keys[index] = key.at(place),
        1 => {
            keys[index] = Key::new(key.inode(), key.end() + rng.u64(..40), key.sectors()).at(place)
        }
        2 => keys[index] = key.with_dirty(!key.is_dirty()),
        3 => drop(keys.remove(index)),
        4 => keys.insert(index, key),
        5 => keys[index] = Key::MAX.at(place),
        _ => {
            let other = rng.usize(..keys.len());
            keys.swap(index, other);
        }
    }
    let mut set = Vec::new();
    encode_set(&mut set, at, magic, seq, &keys, geometry.block_bytes());
    set.truncate(node.sectors() as usize * SECTOR_BYTES);
    bytes[start..start + set.len()].copy_from_slice(&set);
}

/// Changes a word of an entry of the journal, or of the priorities; its checksum is right again.
fn with_other_word(rng: &mut fastrand::Rng, bytes: &mut [u8], area: Area, cache: &Cache) {
    let magic = cache.superblock.set_uuid().set_magic();
    let block = cache.superblock.geometry().block_bytes();
    let own = &mut bytes[area.start..area.start + area.bytes];
    let (start, end) = match area.is_journal {
        true => {
            let (entries, _) = scan(own, magic, block);
            let places: Vec<_> = entries.iter().map(|at| (at.at, at.at + at.bytes())).collect();
            let Some(place) = rng.choice(places) else { return };
            place
        }
        false => (0, own.len()),
    };
    let word = start + 16 + rng.usize(..(end - start - 16) / 8) * 8;
    let value = match rng.u8(..4) {
        0 => 0,
        1 => u64::MAX,
        2 => rng.u64(..),
        _ => {
            let old = u64::from_le_bytes(own[word..word + 8].try_into().expect("8 bytes"));
            old ^ 1 << rng.u8(..64)
        }
    };
    own[word..word + 8].copy_from_slice(&value.to_le_bytes());
    let sum = crc64(&own[start + 8..end]);
    own[start..start + 8].copy_from_slice(&sum.to_le_bytes());
}

fn damage(rng: &mut fastrand::Rng, bytes: &mut [u8], cache: &Cache) {
    let areas = areas(cache);
    let area = areas[rng.usize(..areas.len())];
    let at = area.start + rng.usize(..area.bytes);
    let sector = at / SECTOR_BYTES * SECTOR_BYTES;
    match rng.u8(..8) {
        0 => bytes[at] ^= 1 << rng.u8(..8),
        1 => bytes[at..(at + 8).min(area.start + area.bytes)].fill(rng.u8(..)),
        2 => bytes[sector..sector + SECTOR_BYTES].fill(0),
        3 => {
            let from = areas[rng.usize(..areas.len())].start;
            bytes.copy_within(from..from + SECTOR_BYTES, sector);
        }
        4 | 5 => with_other_word(rng, bytes, area, cache),
        _ => with_other_key(rng, bytes, cache),
    }
}

/// What the keys of a cache vouch for: its extents over the backing device.
fn vouched_for(cache: &Cache, bytes: &[u8], made: &Made, inode: u32) -> Vec<u8> {
    let first = if inode == 0 { 16 } else { 0 };
    let mut content = match inode {
        0 => made.backing[16 * SECTOR_BYTES..].to_vec(),
        _ => vec![0; made.flash_content.len()],
    };
    let end = first + (content.len() / SECTOR_BYTES) as u64;
    let own = cache.extents.iter().filter(|key| key.inode() == inode);
    for key in own.filter_map(|key| key.part(first, end)) {
        let from = key.cached_at().expect("it leads somewhere").sector() as usize * SECTOR_BYTES;
        let to = (key.start() - first) as usize * SECTOR_BYTES;
        let length = key.sectors() as usize * SECTOR_BYTES;
        content[to..to + length].copy_from_slice(&bytes[from..from + length]);
    }
    content
}

/// The outcome for a damaged set.
#[derive(PartialEq, Eq)]
enum Fate {
    Refused,
    Served,
    Drained,
}

fn live(seed: u64) -> Fate {
    // All leaves stay in memory, or none while the set is opened.
    #[cfg(feature = "canary")]
    cairn_targets::bcache::canary::keep_in_memory(seed.is_multiple_of(2).then_some(0));
    let rng = &mut fastrand::Rng::with_seed(seed);
    let shape = SHAPES[rng.usize(..SHAPES.len())];
    let made = make(rng, shape);
    let (mut bytes, whole) = (made.cache.clone(), Cache::read(&made.cache));
    for _ in 0..rng.u8(1..4) {
        damage(rng, &mut bytes, &whole);
    }
    let lab = Lab::new(3, Some(bytes.clone()), Some(made.backing.clone()));
    lab.world.set_patience(Duration::from_secs(3600));
    let mut fate = Fate::Refused;
    for (inode, line) in [(0, &made.line), (1, &made.flash_line)] {
        let volume = match lab.try_open(line, true) {
            Ok(volume) => volume,
            Err(error) => {
                let line = error.to_string();
                assert!(!line.contains('\n') && line.contains("found"), "{line}");
                continue;
            }
        };
        let read = Cache::try_read(&bytes).expect("what is served can be read");
        let expected = vouched_for(&read, &bytes, &made, inode);
        assert!(lab.read_all(&volume) == expected, "{line}: found what no key vouches for");
        lab.close(&volume);
        fate = Fate::Served;
    }
    assert!(lab.images() == [bytes.clone(), made.backing.clone()], "a byte was written");
    // Devices that are open for reading alone stay so.
    let lab = Lab::new(4, Some(bytes), Some(made.backing.clone()));
    lab.world.set_patience(Duration::from_secs(3600));
    let Ok(volume) = lab.try_open(&made.line, false) else { return fate };
    let before = lab.read_all(&volume);
    let drained = lab.drain(&volume);
    assert!(lab.read_all(&volume) == before, "a drain changed what is read: {drained:?}");
    lab.close(&volume);
    let [_, backing] = lab.images();
    if drained.is_ok() {
        let length = before.len();
        let read = Cache::try_read(&lab.images()[0]).expect("what was drained is sound");
        let is_dirty = |key: &&Key| key.inode() == 0 && key.is_dirty();
        assert_eq!(read.extents.iter().find(is_dirty), None);
        // Clean extents may differ from what lies beneath them; dirty ones are there now.
        let written = vouched_for(&read, &lab.images()[0], &Made { backing, ..made }, 0);
        assert!(written[..length] == before, "a drain lost something");
        fate = Fate::Drained;
    }
    fate
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect(name))
}

#[test]
fn a_damaged_set_is_refused_or_served_as_its_keys_say() {
    let lives = match number("CAIRN_CUT") {
        Some(life) => life..life + 1,
        None => 0..number("CAIRN_CUTS").unwrap_or(150),
    };
    let (mut fates, count) = ([0_u64; 3], lives.end - lives.start);
    for life in lives {
        let fate = catch_unwind(AssertUnwindSafe(|| live(life)));
        let fate = fate.unwrap_or_else(|_| panic!("life {life}: CAIRN_CUT={life} repeats it"));
        fates[fate as usize] += 1;
    }
    assert!(count < 100 || fates.iter().all(|fate| fate * 50 > count), "{fates:?} of {count}");
}
