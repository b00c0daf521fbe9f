//! Caches that a real kernel wrote, opened by the target: the content of the volume, the counts
//! of the status line, and what recovery leaves on the cache device.

use std::sync::Arc;

use cairn_block::{
    Disk, Io, MappedDevice, Registry, Sector, SectorRange, Table, TableContext, TableLine,
    TargetTypes,
};
use cairn_format::writecache::{Entry, EntryState, Geometry, SUPERBLOCK_BYTES, Superblock};
use cairn_sim::{DriveOptions, Image, SimWorld};
use cairn_testkit::{has_image, image, manifest};
use sha2::{Digest, Sha256};

/// What the manifest says of one cache.
struct Golden {
    cache: String,
    origin: String,
    block_size: u64,
    opts: String,
    sectors: u64,
    n_blocks: u64,
    free: u64,
    sha256: String,
}

fn goldens() -> Vec<Golden> {
    let golden = |record: &serde_json::Value| {
        let text = |key: &str| record[key].as_str().expect(key).to_owned();
        let number = |key: &str| record[key].as_u64().expect(key);
        Golden {
            cache: text("cache"),
            origin: text("origin"),
            block_size: number("block_size"),
            opts: text("opts"),
            sectors: number("sectors"),
            n_blocks: number("n_blocks"),
            free: number("free"),
            sha256: text("sha256"),
        }
    };
    manifest("writecache").iter().map(golden).collect()
}

impl Golden {
    fn start_bytes(&self) -> usize {
        let sector = self.opts.strip_prefix("2 start_sector ");
        sector.map_or(0, |sector| sector.parse::<usize>().expect("a sector") * 512)
    }
}

/// A cache and its origin in a world of their own.
struct Opened {
    world: SimWorld,
    volume: Arc<MappedDevice>,
}

impl Opened {
    fn new(golden: &Golden, read_only: bool) -> Opened {
        let world = SimWorld::new(7, 2);
        for (name, file) in [("origin", &golden.origin), ("cache", &golden.cache)] {
            world.add_drive(DriveOptions::named(name), Image::of_bytes(&image("writecache", file)));
        }
        let Golden { sectors, block_size, opts, .. } = golden;
        let text = format!("0 {sectors} writecache s origin cache {block_size} {opts}");
        let registry = Registry::new(Box::new(world.opener()));
        let volume = registry.create_volume("golden").expect("a new name");
        let device = volume.clone();
        world.block_on(0, |env| async move {
            let lines = TableLine::parse_all(&text).expect("a table");
            let types = TargetTypes::new(cairn_targets::types());
            let context = TableContext { types: &types, registry: &registry, read_only };
            let table = Table::build(&env, &device, &lines, context).await.expect("it opens");
            device.load(table).await;
            device.resume(&env).await.expect("it resumes").whole().expect("nothing is lost");
        });
        Opened { world, volume }
    }

    fn read_all(&self) -> Vec<u8> {
        let disk: Arc<dyn Disk> = self.volume.clone();
        self.world.block_on(1, |env| async move {
            let range = SectorRange::new(Sector(0), disk.sectors());
            let segs = env.segs(range.count);
            env.io(&disk, Io::read(range, segs.clone())).await.expect("it reads");
            segs.to_vec()
        })
    }

    fn status(&self) -> Vec<u64> {
        let table = self.volume.live_table().expect("it is live");
        let status = table.lines()[0].target.status();
        status.split(' ').map(|field| field.parse().expect("a number")).collect()
    }

    fn end(&self) {
        let volume = self.volume.clone();
        self.world
            .block_on(0, |env| async move { volume.remove(&env).await })
            .expect("it ends well");
        assert_eq!(self.world.contract_violations(), 0);
    }

    /// What the drive holds, durably.
    fn durable(&self, name: &str) -> Vec<u8> {
        self.world.drive(name).durable().to_vec()
    }
}

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What recovery means by the bytes of a cache: the seq, and each slot's sector, seq and data,
/// if it holds a committed block.
type Meaning = (u64, Vec<Option<(u64, u64, Vec<u8>)>>);

fn meaning(area: &[u8]) -> Meaning {
    let superblock = Superblock::parse(area).expect("a superblock");
    let geometry = Geometry::of_superblock(&superblock, area.len() as u64).expect("it fits");
    let slot = |slot: u64| {
        let entry = Entry::read_at(area, slot).expect("the slot exists");
        if entry.state(superblock.seq()) != EntryState::Committed {
            assert!(entry.seq.is_free(), "slot {slot} is neither committed nor free");
            return None;
        }
        let data = geometry.slot_offset(slot) as usize;
        let data = area[data..data + geometry.block_size().bytes() as usize].to_vec();
        Some((entry.original_sector, entry.seq.0, data))
    };
    assert!(area.len() > SUPERBLOCK_BYTES);
    (superblock.seq().0, (0..geometry.n_blocks()).map(slot).collect())
}

#[test]
fn every_cache_reads_as_the_kernel_read_it() {
    for golden in goldens() {
        let opened = Opened::new(&golden, false);
        assert_eq!(hash(&opened.read_all()), golden.sha256, "{}", golden.cache);
        let status = opened.status();
        assert_eq!(status[..4], [0, golden.n_blocks, golden.free, 0], "{}", golden.cache);
        let blocks = golden.sectors * 512 / golden.block_size;
        let hits = golden.n_blocks - golden.free;
        assert_eq!(status[4..], [blocks, hits, 0, 0, 0, 0, 0, 0, 0, 0], "{}", golden.cache);
        opened.end();
    }
}

#[test]
fn recovery_leaves_what_the_kernels_left() {
    let mut compared = 0;
    for golden in goldens() {
        let opened = Opened::new(&golden, false);
        opened.end();
        let after = meaning(&opened.durable("cache")[golden.start_bytes()..]);
        let pair = golden.cache.replace(".cache", "-after.cache");
        if has_image("writecache", &pair) {
            let kernel = meaning(&image("writecache", &pair)[golden.start_bytes()..]);
            assert_eq!(after, kernel, "{}", golden.cache);
            compared += 1;
        }
        assert_eq!(
            opened.durable("origin"),
            image("writecache", &golden.origin),
            "{}",
            golden.cache
        );
        let free = after.1.iter().filter(|slot| slot.is_none()).count() as u64;
        assert_eq!(free, golden.free, "{}", golden.cache);
    }
    assert_eq!(compared, 2);
}

#[test]
fn a_clean_opening_changes_no_byte() {
    for golden in goldens().into_iter().filter(|golden| {
        let recovered = ["dups.cache", "uncommitted.cache", "preflush.cache"];
        !recovered.contains(&golden.cache.as_str())
    }) {
        let opened = Opened::new(&golden, false);
        opened.end();
        assert!(opened.durable("cache") == image("writecache", &golden.cache), "{}", golden.cache);
    }
}

#[test]
fn a_read_only_opening_reads_the_same_and_changes_no_byte() {
    for golden in goldens() {
        let opened = Opened::new(&golden, true);
        assert_eq!(hash(&opened.read_all()), golden.sha256, "{}", golden.cache);
        opened.end();
        for (drive, file) in [("cache", &golden.cache), ("origin", &golden.origin)] {
            assert!(
                opened.world.drive(drive).visible().to_vec() == image("writecache", file),
                "{file}"
            );
            assert!(opened.durable(drive) == image("writecache", file), "{file}");
        }
        assert_eq!(opened.world.writes(), 0, "{}: not even a flush", golden.cache);
    }
}
