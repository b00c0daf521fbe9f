//! Caches that a real kernel wrote, opened by the target: the content of the volume, read-only and
//! after a drain, and what a drain leaves on the devices. Two of them show what a power cut takes
//! from the backing device of a kernel that does not flush it; `bcache_power_loss.rs` has the same
//! histories with cairn in its place.

#[path = "bcache_lab/mod.rs"]
mod bcache_lab;

use bcache_lab::make::stamp;
use bcache_lab::tagged::{pair, read, run, runs};
use bcache_lab::{Cache, Lab, hash, superblock_of};
use cairn_format::bcache::{BackingState, Key, SECTOR_BYTES, Superblock};
use cairn_testkit::{image, manifest};

/// What the manifest says of one volume.
struct Golden {
    cache: Option<String>,
    backing: Option<String>,
    flash: Option<u64>,
    sha256: String,
    bytes: Option<u64>,
}

fn goldens() -> Vec<Golden> {
    let golden = |record: &serde_json::Value| {
        let text = |key: &str| record[key].as_str().map(str::to_owned);
        Golden {
            cache: text("cache"),
            backing: text("backing"),
            flash: record["flash"].as_u64(),
            sha256: text("sha256").expect("the manifest has the sum"),
            bytes: record["bytes"].as_u64(),
        }
    };
    manifest("bcache").iter().map(golden).collect()
}

impl Golden {
    /// The devices as the manifest has them.
    fn lab(&self) -> Lab {
        let of = |name: &Option<String>| name.as_ref().map(|name| image("bcache", name));
        Lab::new(7, of(&self.cache), of(&self.backing))
    }

    fn line(&self, lab: &Lab) -> String {
        let word = |name: &Option<String>, word| if name.is_some() { word } else { "-" };
        let (backing, cache) = (word(&self.backing, "backing"), word(&self.cache, "cache"));
        let options = match self.flash {
            Some(inode) => format!("2 flash {}", lab.cache().volume(inode as u32).uuid),
            // What the kernel wrote back without a flush is in clean extents alone.
            None if self.has_lost() => "1 keep_clean".to_owned(),
            None => "0".to_owned(),
        };
        format!("0 {} bcache {backing} {cache} {options}", self.sectors(lab))
    }

    /// True if a power cut took data from the backing device that the kernel had called clean.
    fn has_lost(&self) -> bool {
        self.cache.as_deref() == Some("undirty_noflush.cache")
    }

    fn sectors(&self, lab: &Lab) -> u64 {
        match (self.bytes, self.backing.is_some()) {
            (Some(bytes), _) => bytes / 512,
            (None, true) => lab.data_sectors(),
            (None, false) => unreachable!("a flash-only volume has a size"),
        }
    }
}

#[test]
fn each_golden_set_is_served_as_the_kernel_read_it_and_no_byte_is_written() {
    for golden in goldens() {
        let lab = golden.lab();
        let before = lab.images();
        let volume = lab.open(&golden.line(&lab), true);
        let name = format!("{:?} {:?}", golden.cache, golden.backing);
        assert_eq!(hash(&lab.read_all(&volume)), golden.sha256, "{name}");
        lab.close(&volume);
        assert!(lab.images() == before, "{name}: a byte was written");
    }
}

#[test]
fn a_writable_table_reads_the_same_while_its_cache_is_filled() {
    for golden in goldens() {
        let name = format!("{:?} {:?}", golden.cache, golden.backing);
        let lab = golden.lab();
        let [cache, _] = lab.images();
        let volume = lab.open(&golden.line(&lab), false);
        for _ in 0..3 {
            assert_eq!(hash(&lab.read_all(&volume)), golden.sha256, "{name}");
        }
        lab.close(&volume);
        let [filled, _] = lab.images();
        match golden.cache.is_some() && golden.backing.is_some() {
            true => {
                drop(Cache::try_read(&filled).unwrap_or_else(|error| panic!("{name}: {error}")))
            }
            false => assert!(filled == cache, "{name}: a byte was written"),
        }
        let volume = lab.open(&golden.line(&lab), true);
        assert_eq!(hash(&lab.read_all(&volume)), golden.sha256, "{name}: opened again");
        lab.close(&volume);
    }
}

/// The state of the backing device.
fn state_of(lab: &Lab) -> BackingState {
    match superblock_of(&lab.images()[1]) {
        Superblock::Backing(superblock) => superblock.state(),
        Superblock::Cache(_) => panic!("it is a backing device"),
    }
}

#[test]
fn a_golden_set_is_written_and_sound_after_it() {
    for golden in goldens() {
        let name = format!("{:?} {:?}", golden.cache, golden.backing);
        let lab = golden.lab();
        let line = golden.line(&lab);
        let volume = lab.open(&line, false);
        let mut content = lab.read_all(&volume);
        let written: Vec<u8> = (0..16).flat_map(stamp).collect();
        let ended = lab.try_write(&volume, 24, &written);
        if golden.cache.is_none() && state_of(&lab) != BackingState::None {
            assert!(ended.is_err(), "{name}: without its cache it is read-only");
            continue;
        }
        ended.unwrap_or_else(|error| panic!("{name}: {error}"));
        content[24 * SECTOR_BYTES..40 * SECTOR_BYTES].copy_from_slice(&written);
        assert!(lab.read_all(&volume) == content, "{name}: while it is open");
        lab.close(&volume);
        if golden.cache.is_some() {
            Cache::try_read(&lab.images()[0]).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        let volume = lab.open(&line, false);
        assert!(lab.read_all(&volume) == content, "{name}: opened again");
        lab.close(&volume);
    }
}

#[test]
fn a_drained_golden_set_is_clean_and_its_backing_device_alone_has_the_content() {
    let drained = goldens().into_iter().filter(|it| it.cache.is_some() && it.backing.is_some());
    for golden in drained {
        let name = format!("{:?} {:?}", golden.cache, golden.backing);
        let lab = golden.lab();
        let line = golden.line(&lab);
        let volume = lab.open(&line, false);
        lab.drain(&volume).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(volume.dirty().is_empty());
        assert_eq!(hash(&lab.read_all(&volume)), golden.sha256, "{name}: while it is open");
        lab.close(&volume);
        let [cache, backing] = lab.images();
        let Superblock::Backing(superblock) = superblock_of(&backing) else {
            panic!("{name}: it is a backing device")
        };
        assert_eq!(superblock.state(), BackingState::Clean, "{name}");
        let cache = Cache::read(&cache);
        assert_eq!(cache.dirty_sectors(superblock.uuid()), 0, "{name}");
        assert!(cache.loaded.journal.is_empty(), "{name}: all is in leaves");
        // A clean extent that differs from its backing copy was so before.
        if golden.bytes.is_some() {
            let content = &backing[superblock.data_offset() as usize * 512..];
            assert_eq!(hash(content), golden.sha256, "{name}: the backing device alone");
        }
        let again = Lab::new(8, Some(lab.images()[0].clone()), Some(backing));
        let volume = again.open(&line, true);
        assert_eq!(hash(&again.read_all(&volume)), golden.sha256, "{name}: opened again");
        again.close(&volume);
    }
}

const TOGETHER: &str = "backing cache 1 keep_clean";
/// The state of the backing devices is dirty.
const ALONE: &str = "backing - 1 stale_ok";

#[test]
fn data_called_clean_without_a_flush_is_in_the_cache_alone_and_a_detach_shows_older_data() {
    let lab = pair("undirty_noflush.cache", "undirty_noflush.backing-lost");
    // The kernel fsynced and wrote back AAAA, and called it clean; the drive lost it.
    let written = 2048..2176;
    let cache = lab.cache();
    let is_over = |key: &&Key| key.start() < 16 + written.end && key.end() > 16 + written.start;
    let over: Vec<_> = cache.extents.iter().filter(is_over).collect();
    assert!(over.len() == 1 && !over[0].is_dirty(), "{over:?}");
    let [before, between, later] = [0..2048, 2176..6144, 6152..16368];
    let dirty = 6144..6152;
    let merged = read(&lab, TOGETHER);
    assert_eq!(merged[..3], [run("INIT", before), run("AAAA", written), run("INIT", between)]);
    let [(last, at), rest] = &merged[3..] else { panic!("{merged:?}") };
    assert!(*at == dirty && *rest == run("INIT", later), "{merged:?}");
    assert_eq!(read(&lab, ALONE), [run("INIT", 0..16368)]);
    // Without the word nothing clean counts that a kernel cached: a detach changes no read.
    let [dropped, alone] = ["backing cache 0", ALONE].map(|words| read(&lab, words));
    assert_eq!(dropped[..1], [run("INIT", 0..6144)]);
    assert_eq!((&alone[..], dropped.len()), (&[run("INIT", 0..16368)][..], 3));
    // A drain writes what is dirty, and a detach shows what is beneath the rest.
    let lab = pair("undirty_noflush.cache", "undirty_noflush.backing-lost");
    let detached = lab.open_and_detach(&format!("0 16368 bcache {TOGETHER}"));
    detached.expect("no power cut").expect("it is detached");
    let [_, backing] = lab.images();
    let found = runs(&backing[16 * 512..]);
    assert_eq!(found, [run("INIT", 0..6144), (last.clone(), dirty), run("INIT", 6152..16368)]);
}

#[test]
fn a_bypass_over_dirty_data_that_the_drive_lost_shows_data_older_than_both() {
    // AAAA was fsynced as dirty data in 2048..2176; BBBB bypassed it, and its hole is durable.
    for (backing, expected) in [
        ("bypass_over_dirty.backing-lost", vec![run("INIT", 0..16368)]),
        (
            "bypass_over_dirty.backing-kept",
            vec![run("INIT", 0..1024), run("BBBB", 1024..2560), run("INIT", 2560..16368)],
        ),
    ] {
        let lab = pair("bypass_over_dirty.cache", backing);
        let cache = lab.cache();
        assert_eq!(cache.extents, [], "the hole hides the dirty extent");
        let is_dirty = |key: &&Key| key.is_dirty();
        let hidden = cache.loaded.journal.iter().find(is_dirty).expect("it is in the journal");
        let at = hidden.cached_at().expect("it leads to its data").sector() as usize * 512;
        assert!(lab.images()[0][at..].starts_with(b"AAAA 0000000800\n"), "its data is there");
        assert_eq!(read(&lab, TOGETHER), expected, "{backing}");
        assert_eq!(read(&lab, ALONE), expected, "{backing}");
        let lab = pair("bypass_over_dirty.cache", backing);
        let detached = lab.open_and_detach(&format!("0 16368 bcache {TOGETHER}"));
        detached.expect("no power cut").expect("it is detached");
        assert_eq!(runs(&lab.images()[1][16 * 512..]), expected, "{backing}: detached");
    }
}
