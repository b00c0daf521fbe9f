//! What a fuzzer does with the metadata of a thin pool that serves: open it, read, write and
//! discard volumes, send messages.
//!
//! Shared with the ordinary property test of `crates/targets`. A body panics when a promise is
//! broken, and must never depend on anything but its input.

use std::sync::Arc;
use std::time::Duration;

use cairn_block::{Disk, Env, Io, MappedDevice, Op, Registry, Sector, SectorCount, SectorRange};
use cairn_format::Severity;
use cairn_format::thin::blocks::MemoryBlocks;
use cairn_format::thin::check::{Limits, check};
use cairn_sim::{DriveOptions, Image, SimWorld};

#[path = "thin_image.rs"]
mod thin_image;
#[path = "thin_mappings.rs"]
mod thin_mappings;

use super::volumes::load;

/// Sectors of a data block, if the metadata says nothing else.
const BLOCK: u64 = 128;
/// Sectors of the data device.
const DATA_SECTORS: u64 = 400 * BLOCK;
/// Sectors of a volume.
const VOLUME: u64 = 8 * BLOCK;

/// Devices that are written or deleted, if they are there.
const CHANGED: [u64; 4] = [0, 1, 7, 4001];

/// A metadata device under a pool. True if the pool was opened.
pub fn thin_pool(bytes: &[u8]) -> bool {
    let image = thin_image::sealed(bytes);
    let (before, block) = judge(&image);
    let mappings = thin_mappings::readable(&image);
    let world = SimWorld::new(1, 1);
    world.set_patience(Duration::from_secs(3600));
    world.add_drive(DriveOptions::named("meta"), Image::of_bytes(&image));
    world.add_drive(DriveOptions::named("data"), Image::new(SectorCount(DATA_SECTORS)));
    let registry = Arc::new(Registry::new(Box::new(world.opener())));
    let is_sound = before < Severity::Repairable;
    let opened = world.block_on(0, |env| serve(env, registry, block, is_sound));
    let left = world.drive("meta").visible().to_vec();
    thin_mappings::assert_kept(&mappings, &left, |device| CHANGED.contains(&device));
    if is_sound && opened {
        let (after, _) = judge(&left);
        assert!(after < Severity::Repairable, "what was sound is sound");
    }
    opened
}

/// How sound an image is, and the sectors of its data blocks.
fn judge(image: &[u8]) -> (Severity, u64) {
    let Ok(report) = check(&mut MemoryBlocks::new(image), Limits::default());
    let size = report.superblock.as_ref().map(|own| u64::from(own.data_block_size.sectors()));
    (report.severity, size.filter(|size| *size <= 1024).unwrap_or(BLOCK))
}

/// Uses the pool as its users do. A removal tells of what was lost, which only damaged metadata may
/// cause: no device fails here.
async fn serve(env: Env, registry: Arc<Registry>, block: u64, is_sound: bool) -> bool {
    let env = &env;
    let line = format!("0 {DATA_SECTORS} thin-pool meta data {block} 0 1 error_if_no_space");
    let Ok(pool) = load(env, &registry, ("pool", true), &line).await else { return false };
    for id in [0, 1, 7] {
        let line = format!("0 {VOLUME} thin @pool {id}");
        let Ok(volume) = load(env, &registry, ("thin", true), &line).await else { continue };
        use_volume(env, volume.clone()).await;
        registry.remove_volume("thin").expect("it was created");
        let removed = volume.remove(env).await;
        assert!(removed.is_ok() || !is_sound, "{removed:?}");
    }
    for words in [
        ["create_thin", "4000", ""],
        ["create_snap", "4001", "0"],
        ["create_snap", "4002", "1"],
        ["delete", "0", ""],
        ["reserve_metadata_snap", "", ""],
        ["delete", "4001", ""],
        ["release_metadata_snap", "", ""],
        ["delete", "7", ""],
    ] {
        let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
        // Refusals are in order.
        drop(pool.message(env, Sector(0), &words).await);
    }
    registry.remove_volume("pool").expect("it was created");
    let removed = pool.remove(env).await;
    assert!(removed.is_ok() || !is_sound, "{removed:?}");
    true
}

/// Reads all, writes parts and blocks, discards; errors are in order.
async fn use_volume(env: &Env, volume: Arc<MappedDevice>) {
    let disk: Arc<dyn Disk> = volume;
    let range = |start, count| SectorRange::new(Sector(start), SectorCount(count));
    let all = range(0, VOLUME);
    let requests = [
        Io::read(all, env.segs(all.count)),
        Io::write(range(8, 8), env.zeros(SectorCount(8))),
        Io::write(range(3 * BLOCK, BLOCK), env.zeros(SectorCount(BLOCK))),
        Io::flush(),
        Io::on(Op::Discard, range(0, 4 * BLOCK)),
        Io::on(Op::WriteZeroes, range(5 * BLOCK, BLOCK)),
        Io::flush(),
        Io::read(all, env.segs(all.count)),
    ];
    for io in requests {
        let _ = env.io(&disk, io).await;
    }
}
