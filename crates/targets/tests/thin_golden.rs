//! Pools that a real kernel (and thin_restore) wrote, opened by the targets: the content of every
//! volume, the counts of the status lines, and that they go on from there.

use std::sync::Arc;

use cairn_block::{
    Disk, Env, Io, MappedDevice, Registry, Sector, SectorCount, SectorRange, Table, TableContext,
    TableLine, TargetTypes,
};
use cairn_sim::{DriveOptions, Image, SimWorld};
use cairn_testkit::{image, manifest};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// A pool in a world of its own.
struct Opened {
    world: SimWorld,
    registry: Arc<Registry>,
    has_origin: bool,
    table: String,
}

impl Opened {
    fn new(record: &Value) -> Opened {
        let world = SimWorld::new(7, 2);
        let (blocks, size) = (
            record["data_blocks"].as_u64().expect("a count"),
            record["data_block_sectors"].as_u64().expect("a size"),
        );
        let mut data = record["data"].as_str().map(|name| image("thin", name)).unwrap_or_default();
        data.resize((blocks * size * 512) as usize, 0);
        let metadata = image("thin", record["meta"].as_str().expect("a name"));
        world.add_drive(DriveOptions::named("meta"), Image::of_bytes(&metadata));
        world.add_drive(DriveOptions::named("data"), Image::of_bytes(&data));
        let origin = record["ext"].as_str().map(|name| image("thin", name));
        let has_origin = origin.is_some();
        if let Some(origin) = origin {
            world.add_drive(DriveOptions::named("origin"), Image::of_bytes(&origin));
        }
        let table = format!("0 {} thin-pool meta data {size} 0", blocks * size);
        let registry = Arc::new(Registry::new(Box::new(world.opener())));
        let opened = Opened { world, registry, has_origin, table };
        opened.load("pool", &opened.table);
        opened
    }

    /// The same drives after a power cut that loses whatever is not durable.
    fn again(self) -> Opened {
        let Opened { world, has_origin, table, .. } = self;
        let next = SimWorld::new(8, 2);
        for name in ["meta", "data", "origin"].into_iter().take(2 + usize::from(has_origin)) {
            next.add_drive(DriveOptions::named(name), world.drive(name).durable());
        }
        let registry = Arc::new(Registry::new(Box::new(next.opener())));
        let opened = Opened { world: next, registry, has_origin, table };
        opened.load("pool", &opened.table);
        opened
    }

    fn load(&self, name: &str, text: &str) -> Arc<MappedDevice> {
        let volume = self.registry.create_volume(name).expect("a new one");
        let (registry, own) = (self.registry.clone(), volume.clone());
        let lines = TableLine::parse_all(text).expect(text);
        let loaded = self.world.block_on(0, |env| async move {
            let types = TargetTypes::new(cairn_targets::types());
            let context = TableContext { types: &types, registry: &registry, read_only: false };
            let table = Table::build(&env, &own, &lines, context).await?;
            own.load(table).await;
            own.resume(&env).await?.whole()
        });
        loaded.unwrap_or_else(|error| panic!("{text}: {error}"));
        volume
    }

    fn thin(&self, id: &str, sectors: u64) -> Arc<MappedDevice> {
        let origin = if self.has_origin { " origin" } else { "" };
        self.load(&format!("v{id}"), &format!("0 {sectors} thin @pool {id}{origin}"))
    }

    fn status(&self, volume: &MappedDevice) -> String {
        volume.live_table().expect("live").lines()[0].target.status()
    }

    fn io<F: FnOnce(&Env) -> Io>(&self, volume: &Arc<MappedDevice>, make: F) {
        let disk: Arc<dyn Disk> = volume.clone();
        let done = self.world.block_on(1, |env| {
            let io = make(&env);
            async move { env.io(&disk, io).await }
        });
        done.unwrap_or_else(|error| panic!("{error}: {}", self.status(volume)));
    }

    fn content(&self, volume: &Arc<MappedDevice>) -> Vec<u8> {
        let size = volume.sectors();
        let mut content = Vec::new();
        while (content.len() as u64) < size.to_bytes() {
            let start = Sector::of_byte(content.len() as u64);
            let count = SectorCount((size.0 - start.0).min(4096));
            let mut segs = None;
            self.io(volume, |env| {
                let own = env.segs(count);
                segs = Some(own.clone());
                Io::read(SectorRange::new(start, count), own)
            });
            content.extend(segs.expect("it was read").to_vec());
        }
        content
    }
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn golden_pools_open_with_every_volumes_content() {
    for record in manifest("thin") {
        let name = record["meta"].as_str().expect("a name");
        let opened = Opened::new(&record);
        let pool = opened.registry.volume("pool").expect("loaded");
        let status = opened.status(&pool);
        let (used, blocks) = (&record["used_data"], &record["data_blocks"]);
        assert!(status.contains(&format!(" {used}/{blocks} ")), "{name}: {status}");
        let damaged = record["needs_check"] == 1;
        // The kernel, too, calls a pool whose metadata ran full read-only, and that alone.
        let is_full = name == "oom.meta";
        assert_eq!(status.contains(" ro "), damaged || is_full, "{name}: {status}");
        assert_eq!(status.contains(" needs_check "), damaged, "{name}: {status}");
        for (id, device) in record["devs"].as_object().expect("volumes") {
            let volume = opened.thin(id, device["sectors"].as_u64().expect("a length"));
            let content = opened.content(&volume);
            assert_eq!(sha256(&content), device["sha256"].as_str().expect("a sum"), "{name} {id}");
            let mapped = device["mapped"].as_u64().expect("a count") * 128;
            let status = opened.status(&volume);
            assert_eq!(status.split(' ').next(), Some(mapped.to_string().as_str()), "{name} {id}");
        }
    }
}

#[test]
fn golden_pools_go_on_from_there() {
    for record in manifest("thin") {
        let devices = record["devs"].as_object().expect("volumes");
        let mut opened = Opened::new(&record);
        eprintln!(
            "{} {}",
            record["meta"],
            opened.status(&opened.registry.volume("pool").expect("loaded"))
        );
        let mut expected = Vec::new();
        for (number, (id, device)) in devices.iter().enumerate() {
            let volume = opened.thin(id, device["sectors"].as_u64().expect("a length"));
            let mut content = opened.content(&volume);
            // Over shared and unshared blocks, and over what was never written.
            for start in [3, 600] {
                let (range, byte) =
                    (SectorRange::new(Sector(start), SectorCount(100)), number as u8 + 1);
                opened.io(&volume, |env| {
                    let segs = env.segs(range.count);
                    segs.for_each_mut(0, segs.bytes(), |bytes| bytes.fill(byte));
                    Io::write(range, segs)
                });
                content[start as usize * 512..][..100 * 512].fill(byte);
            }
            opened.io(&volume, |_| Io::flush());
            expected.push((id.clone(), volume.sectors().0, content));
        }
        opened = opened.again();
        for (id, sectors, content) in expected {
            let volume = opened.thin(&id, sectors);
            assert!(opened.content(&volume) == content, "{}: {id}", record["meta"]);
        }
    }
}
