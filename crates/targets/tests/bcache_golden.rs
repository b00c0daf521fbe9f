//! Caches that a real kernel wrote, opened by the target: the content of the volume, read-only and
//! after a drain, and what a drain leaves on the devices.

#[path = "bcache_lab/mod.rs"]
mod bcache_lab;

use bcache_lab::{Cache, Lab, hash, superblock_of};
use cairn_format::bcache::{BackingState, Superblock};
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
            None => "0".to_owned(),
        };
        format!("0 {} bcache {backing} {cache} {options}", self.sectors(lab))
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
fn a_writable_table_reads_the_same_and_writes_nothing_either() {
    for golden in goldens() {
        let lab = golden.lab();
        let before = lab.images();
        let volume = lab.open(&golden.line(&lab), false);
        assert_eq!(hash(&lab.read_all(&volume)), golden.sha256);
        assert!(lab.try_write(&volume).is_err(), "it is read-only");
        lab.close(&volume);
        assert!(lab.images() == before, "a byte was written");
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
