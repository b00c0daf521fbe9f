//! Sets of old kernels: a cache superblock of version 0, and a journal of version 0, whose array of
//! uuids has entries of 64 bytes. They are made of sets that a kernel wrote. They are checked,
//! served read-only, drained and detached; what a drain leaves has the current versions, and a
//! power cut at any write of it leaves the volumes in one layout or the other.

#[path = "bcache_lab/mod.rs"]
mod bcache_lab;

use bcache_lab::make::{SHAPE, make};
use bcache_lab::{Cache, Lab, hash, superblock_of};
use cairn_format::bcache::check::{Backing, Report, check};
use cairn_format::bcache::journal::scan;
use cairn_format::bcache::load::now;
use cairn_format::bcache::uuids::{ENTRY_BYTES, INVALIDATED, LEGACY_ENTRY_BYTES};
use cairn_format::bcache::{BackingState, SECTOR_BYTES, Superblock, crc64};
use cairn_sim::{Cut, CutWhen};
use cairn_testkit::{image, manifest};

/// A cache, and a backing device of it.
const PAIRS: [(&str, &str); 6] = [
    ("wb_stop.cache", "wb_stop.backing"),
    ("wb_kill.cache", "wb_kill.backing"),
    ("tree_kill.cache", "tree_kill.backing"),
    ("ring_kill.cache", "ring_kill.backing"),
    ("two_kill.cache", "two_kill.first"),
    ("two_kill.cache", "two_kill.second"),
];

/// The cache as an old kernel would have left it.
fn of_old_versions(mut bytes: Vec<u8>) -> Vec<u8> {
    let cache = Cache::read(&bytes);
    let (geometry, magic) = (*cache.superblock.geometry(), cache.superblock.set_uuid().set_magic());
    let superblock = &mut bytes[4096..8192];
    superblock[16] = 0;
    let keys = usize::from(u16::from_le_bytes([superblock[206], superblock[207]]));
    seal(&mut superblock[..208 + 8 * keys]);
    for bucket in cache.superblock.journal_buckets() {
        let start = geometry.sector_of(bucket) as usize * SECTOR_BYTES;
        let length = geometry.bucket_sectors() as usize * SECTOR_BYTES;
        let own = &mut bytes[start..start + length];
        let (entries, _) = scan(own, magic, geometry.block_bytes());
        let entries: Vec<_> = entries.iter().map(|it| it.at..it.at + it.bytes()).collect();
        for range in entries {
            own[range.start + 24] = 0;
            seal(&mut own[range]);
        }
    }
    let at = cache.loaded.newest.uuids.cached_at().expect("there is one").sector();
    let array = &mut bytes[at as usize * SECTOR_BYTES..][..geometry.meta_bytes()];
    let long = array.to_vec();
    array.fill(0);
    for (old, new) in array.chunks_mut(LEGACY_ENTRY_BYTES).zip(long.chunks(ENTRY_BYTES)) {
        // UUID, label, and three times; the rest of an old entry is padding.
        old[..60].copy_from_slice(&new[..60]);
    }
    bytes
}

/// Makes the checksum in front right.
fn seal(bytes: &mut [u8]) {
    let sum = crc64(&bytes[8..]);
    bytes[..8].copy_from_slice(&sum.to_le_bytes());
}

/// The old version of a golden pair.
fn pair(cache: &str, backing: &str) -> [Vec<u8>; 2] {
    [of_old_versions(image("bcache", cache)), image("bcache", backing)]
}

fn lab(seed: u64, [cache, backing]: &[Vec<u8>; 2]) -> Lab {
    Lab::new(seed, Some(cache.clone()), Some(backing.clone()))
}

fn line(lab: &Lab) -> String {
    format!("0 {} bcache backing cache 0", lab.data_sectors())
}

fn content_sum(backing: &str) -> String {
    let record = manifest("bcache").into_iter().find(|it| it["backing"] == backing);
    record.expect("it is in the manifest")["sha256"].as_str().expect("a sum").to_owned()
}

fn checked([cache, backing]: &[Vec<u8>; 2]) -> Report {
    let superblock = match Superblock::decode(&backing[4096..]) {
        Ok(Superblock::Backing(superblock)) => Ok(superblock),
        other => panic!("it is a backing device: {other:?}"),
    };
    let device_sectors = (backing.len() / SECTOR_BYTES) as u64;
    let backing = Backing { superblock, device_sectors };
    let (mut source, sectors) = (&cache[..], (cache.len() / SECTOR_BYTES) as u64);
    let Ok(report) = now(check(&mut source, sectors, &[backing]));
    report
}

fn images_after_power_cut(lab: &Lab, rng: &mut fastrand::Rng) -> [Vec<u8>; 2] {
    let images = lab.world.images_after_power_cut(rng);
    let of = |name: &str| images.iter().find(|(own, _)| own == name).expect(name).1.to_vec();
    ["cache", "backing"].map(of)
}

/// The version of the superblock, and whether the array of uuids has the 128-byte layout.
fn versions(cache: &Cache) -> (u64, bool) {
    (cache.superblock.version(), cache.loaded.newest.has_long_uuids)
}

#[test]
fn a_set_of_old_versions_is_sound_and_is_served_read_only_with_the_same_content() {
    for (cache, backing) in PAIRS {
        let images = pair(cache, backing);
        let old = Cache::read(&images[0]);
        let new = Cache::read(&image("bcache", cache));
        assert_eq!((versions(&old), versions(&new)), ((0, false), (3, true)), "{cache}");
        let volumes = new.loaded.volumes.len();
        assert_eq!(old.loaded.volumes[..volumes], new.loaded.volumes, "{cache}");
        assert_eq!(old.loaded.volumes.len(), 2 * volumes, "entries are half as long");
        let found = checked(&images);
        assert_eq!(found.findings, [], "{cache}");
        let lab = lab(1, &images);
        let volume = lab.open(&line(&lab), true);
        assert_eq!(hash(&lab.read_all(&volume)), content_sum(backing), "{backing}");
        lab.close(&volume);
        assert!(lab.images() == images, "{cache}: a byte was written");
    }
}

#[test]
fn a_drain_leaves_the_superblock_and_the_journal_in_the_current_versions() {
    for (cache, backing) in PAIRS {
        let images = pair(cache, backing);
        let old = Cache::read(&images[0]);
        let lab = lab(2, &images);
        lab.open_and_drain(&line(&lab)).expect("no power cut").expect("it is drained");
        let drained = lab.images();
        let now = Cache::read(&drained[0]);
        assert_eq!(versions(&now), (3, true), "{cache}");
        let volumes = now.loaded.volumes.len();
        assert_eq!(now.loaded.volumes, old.loaded.volumes[..volumes], "{cache}");
        assert_eq!(checked(&drained).findings, [], "{cache}");
        let data = &drained[1][(drained[1].len() - lab.data_sectors() as usize * SECTOR_BYTES)..];
        assert_eq!(hash(data), content_sum(backing), "{backing} alone");
        let volume = lab.open(&line(&lab), true);
        assert_eq!(hash(&lab.read_all(&volume)), content_sum(backing), "{backing}");
    }
}

#[test]
fn a_volume_of_an_old_set_is_detached_and_the_other_one_is_kept() {
    for (cache, backing) in PAIRS {
        let images = pair(cache, backing);
        let sectors = lab(3, &images).data_sectors() as usize;
        let lab = lab(3, &images);
        lab.open_and_detach(&line(&lab)).expect("no power cut").expect("it is detached");
        let detached = lab.images();
        let Superblock::Backing(superblock) = superblock_of(&detached[1]) else {
            panic!("it is a backing device")
        };
        assert_eq!(superblock.state(), BackingState::None, "{backing}");
        assert!(superblock.set_uuid().is_zero(), "{backing}");
        let data = &detached[1][detached[1].len() - sectors * SECTOR_BYTES..];
        assert_eq!(hash(data), content_sum(backing), "{backing} alone");
        let now = Cache::read(&detached[0]);
        assert_eq!(versions(&now), (3, true), "{cache}");
        let old = Cache::read(&images[0]);
        for (before, after) in old.loaded.volumes.iter().zip(&now.loaded.volumes) {
            let expected = match before.uuid == superblock.uuid() {
                true => INVALIDATED,
                false => before.uuid,
            };
            assert_eq!((after.uuid, &after.label), (expected, &before.label), "{cache}");
        }
    }
}

#[test]
fn a_power_cut_at_any_write_of_a_drain_leaves_an_old_set_in_one_layout_or_the_other() {
    let rng = &mut fastrand::Rng::with_seed(5);
    let made = make(rng, SHAPE);
    let images = [of_old_versions(made.cache), made.backing];
    let volume = Cache::read(&images[0]).loaded.volumes[0];
    let whole = lab(1, &images);
    whole.open_and_drain(&made.line).expect("no power cut").expect("it is drained");
    let mut layouts = [0, 0];
    for index in 0..whole.world.writes() {
        for when in [CutWhen::Submitted, CutWhen::Completed] {
            let cut = lab(rng.u64(..), &images);
            cut.world.cut_at(Cut { index, when });
            drop(cut.open_and_drain(&made.line));
            let left = images_after_power_cut(&cut, rng);
            let now = Cache::read(&left[0]);
            layouts[usize::from(now.loaded.newest.has_long_uuids)] += 1;
            assert_eq!(now.loaded.volumes[0], volume, "write {index} {when:?}");
            let lab = lab(1, &left);
            let volume = lab.open(&made.line, true);
            assert!(lab.read_all(&volume) == made.content, "write {index} {when:?}");
        }
    }
    assert!(layouts[0] > 2 && layouts[1] > 0, "{layouts:?}");
}
