//! Stores that a real kernel wrote, opened by the target: the content of the snapshot, the status
//! line, and merges that go on where the kernel stopped.

use std::sync::Arc;

use cairn_block::{
    Disk, Io, MappedDevice, Registry, Sector, SectorRange, Table, TableContext, TableLine,
    TargetTypes,
};
use cairn_sim::{DriveOptions, Image, SimWorld};
use cairn_testkit::{image, manifest};
use sha2::{Digest, Sha256};

/// What the manifest says of one store.
struct Golden {
    cow: String,
    origin: String,
    chunk: u64,
    status: String,
    sha256: Option<String>,
}

fn goldens() -> Vec<Golden> {
    let golden = |store: &serde_json::Value| {
        let text = |key: &str| store[key].as_str().expect(key).to_owned();
        Golden {
            cow: text("cow"),
            origin: text("origin"),
            chunk: store["chunk"].as_u64().expect("chunk"),
            status: text("status"),
            sha256: store["sha256"].as_str().map(str::to_owned),
        }
    };
    manifest("snapshot").iter().map(golden).collect()
}

/// A store and its origin in a world of their own.
struct Opened {
    world: SimWorld,
    volume: Arc<MappedDevice>,
}

impl Opened {
    fn new(cow: &str, origin: &str, line: &str, read_only: bool) -> Opened {
        let world = SimWorld::new(7, 2);
        for (name, file) in [("origin", origin), ("cow", cow)] {
            world.add_drive(DriveOptions::named(name), Image::of_bytes(&image("snapshot", file)));
        }
        let registry = Registry::new(Box::new(world.opener()));
        let volume = registry.create_volume("golden").expect("a new name");
        let (device, line) = (volume.clone(), line.to_owned());
        world.block_on(0, |env| async move {
            let lines = TableLine::parse_all(&line).expect("a table");
            let types = TargetTypes::new(cairn_targets::types());
            let context = TableContext { types: &types, registry: &registry, read_only };
            let table = Table::build(&env, &device, &lines, context).await.expect("it opens");
            device.load(table).await;
            device.resume(&env).await.expect("it resumes").whole().expect("nothing is lost");
        });
        Opened { world, volume }
    }

    fn status(&self) -> String {
        self.volume.live_table().expect("live").lines()[0].target.status()
    }

    /// The sha256 of the whole volume.
    fn sha256(&self) -> Option<String> {
        let disk: Arc<dyn Disk> = self.volume.clone();
        self.world.block_on(1, |env| async move {
            let range = SectorRange::new(Sector(0), disk.sectors());
            let segs = env.segs(range.count);
            env.io(&disk, Io::read(range, segs.clone())).await.ok()?;
            let digest = Sha256::digest(segs.to_vec());
            Some(digest.iter().map(|byte| format!("{byte:02x}")).collect())
        })
    }

    /// Writes a few sectors.
    fn write(&self, start: u64, bytes: &[u8]) {
        let (disk, bytes): (Arc<dyn Disk>, _) = (self.volume.clone(), bytes.to_vec());
        self.world.block_on(1, |env| async move {
            let count = cairn_block::SectorCount::of_bytes(bytes.len() as u64);
            let segs = env.segs(count);
            segs.copy_in(0, &bytes);
            let io = Io::write(SectorRange::new(Sector(start), count), segs);
            env.io(&disk, io).await.expect("it writes");
        });
    }
}

#[test]
fn the_kernels_stores_open_with_their_content_and_status() {
    for golden in goldens() {
        for (kind, read_only) in [("P", false), ("PO", false), ("P", true)] {
            let line = format!("0 1024 snapshot origin cow {kind} {}", golden.chunk);
            let opened = Opened::new(&golden.cow, &golden.origin, &line, read_only);
            assert_eq!(opened.status(), golden.status, "{}", golden.cow);
            assert_eq!(opened.sha256(), golden.sha256, "{}", golden.cow);
            let left = opened.world.drive("cow").visible().to_vec();
            assert!(
                left == image("snapshot", &golden.cow),
                "{}: opening changes nothing",
                golden.cow
            );
        }
    }
}

#[test]
fn a_store_goes_on_where_the_kernel_stopped() {
    let line = "0 1024 snapshot origin cow P 8";
    let opened = Opened::new("crafted.cow", "clean.origin", line, false);
    opened.write(8, &[7; 512]);
    // The kernel took the chunk after the highest, too.
    assert_eq!(opened.status(), "152/192 16");
}

#[test]
fn merges_of_the_kernels_stores_end_with_the_snapshots_content() {
    for (cow, origin) in [("premerge.cow", "clean.origin"), ("mergefail.cow", "mergefail.origin")] {
        let golden = goldens().into_iter().find(|golden| golden.cow == cow).expect(cow);
        let line = format!("0 1024 snapshot-merge origin cow P {}", golden.chunk);
        let opened = Opened::new(cow, origin, &line, false);
        assert_eq!(opened.sha256(), golden.sha256, "{cow}: at once");
        opened.world.run_until(|| opened.status() == "16/192 16");
        assert_eq!(opened.sha256(), golden.sha256, "{cow}: in the end");
        let digest = Sha256::digest(opened.world.drive("origin").durable().to_vec());
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(Some(digest), golden.sha256, "{cow}: it is home, durably");
    }
}
