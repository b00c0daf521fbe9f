//! The crash campaign of clones: power cuts and kills at seeded writes, during copies, commits and
//! recovery, over drives that lose, reorder and tear; with messages, suspends and other tables
//! under the workload, and with drives that fail in every way. The destination holds other data at
//! first, so that a bit without its content shows.
//!
//! `CAIRN_CUTS=10000 cargo test -p cairn-targets --release --test clone_campaign` is the long run.
//! With `--features canary` known ordering bugs are planted: each must be caught.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::{LocalFuture, SectorCount, TargetType};
use cairn_format::clone::read;
use cairn_format::thin::blocks::MemoryBlocks;
use cairn_sim::campaign::{
    Campaign, Generation, Images, Links, Opened, Scenario, Server, plant_failures,
};
use cairn_sim::{DriveOptions, Image, Workload};

const SECTOR: usize = 512;

/// What varies between cuts.
#[derive(Clone, Copy)]
struct Shape {
    sectors: u64,
    region: u64,
    options: &'static str,
    /// Bytes of a logical block of the drives.
    logical: u32,
}

const SMALL: Shape = Shape { sectors: 131, region: 8, options: "1 no_hydration", logical: 512 };

const SHAPES: &[Shape] = &[
    SMALL,
    Shape { options: "0", ..SMALL },
    Shape { sectors: 250, options: "0 4 hydration_threshold 6 hydration_batch_size 3", ..SMALL },
    Shape { sectors: 500, region: 32, ..SMALL },
    Shape { sectors: 256, region: 16, options: "0 2 hydration_threshold 4", logical: 4096 },
    Shape { sectors: 256, options: "1 no_discard_passdown", ..SMALL },
];

impl Shape {
    fn table(&self, options: &str) -> String {
        let Shape { sectors, region, .. } = self;
        format!("0 {sectors} clone meta dest src {region} {options}")
    }
}

struct Clones {
    /// Drives fail in every way, also while the volume is opened.
    failing: bool,
}

fn filled(name: &str, shape: &Shape, salt: u64) -> (DriveOptions, Image) {
    let byte = |sector: u64| ((sector * 7 + salt) % 255) as u8 + 1;
    let bytes: Vec<u8> = (0..shape.sectors).flat_map(|sector| [byte(sector); SECTOR]).collect();
    let options = DriveOptions { logical_block: shape.logical, ..DriveOptions::named(name) };
    (options, Image::of_bytes(&bytes))
}

impl Scenario for Clones {
    type Case = Shape;

    fn types(&self) -> Vec<Arc<dyn TargetType>> {
        cairn_targets::types()
    }

    fn begin(&self, rng: &mut fastrand::Rng) -> (Shape, Vec<(DriveOptions, Image)>) {
        let shape = SHAPES[rng.usize(..SHAPES.len())];
        let meta = DriveOptions { logical_block: shape.logical, ..DriveOptions::named("meta") };
        let drives = vec![
            (meta, Image::new(SectorCount(rng.u64(16..40) * 8))),
            filled("dest", &shape, 90),
            filled("src", &shape, 11),
        ];
        (shape, drives)
    }

    fn open(&self, shape: Rc<Shape>, server: Server) -> LocalFuture<'static, Opened> {
        Box::pin(
            async move { Ok(vec![server.create("volume", &shape.table(shape.options)).await?]) },
        )
    }

    fn check_metadata(&self, shape: &Shape, images: &Images) -> Result<(), String> {
        let bytes = images["meta"].to_vec();
        // A crash while formatting leaves a blank device.
        if bytes[..4096].iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        let Ok(read) = read(&mut MemoryBlocks::new(&bytes));
        let bitset = read.map_err(|fault| fault.to_string())?;
        match bitset.superblock.target_sectors == shape.sectors {
            true => Ok(()),
            false => Err("superblock target_size: found another".to_owned()),
        }
    }

    fn workload(&self, _shape: &Shape, rng: &mut fastrand::Rng) -> Workload {
        let (seed, ops) = (rng.u64(..), rng.u64(..300));
        Workload::mixed(seed, ops)
    }

    fn suspends(&self) -> bool {
        true
    }

    fn outlives_kills(&self) -> bool {
        true
    }

    /// Regions that a failure may have lost are copied from the source again.
    fn rolls_back(&self) -> bool {
        self.failing
    }

    fn fails_at_start(&self) -> bool {
        self.failing
    }

    fn trouble(&self, shape: &Rc<Shape>, generation: &Generation, rng: &mut fastrand::Rng) -> bool {
        let delay = Duration::from_micros(rng.u64(..20_000));
        let word = ["enable_hydration", "disable_hydration"][rng.usize(..2)];
        if rng.bool() {
            generation.start(0, async move |server| {
                server.env.sleep(delay).await;
                server.message("volume", &[word]).await;
            });
        }
        if self.failing {
            plant_failures(&generation.world.all_drives(), [5, 50][rng.usize(..2)], None, rng);
        }
        if rng.u8(..4) == 0 {
            // Tables with other options, while requests come.
            let (shape, may_fail) = (shape.clone(), self.failing);
            generation.start(2, async move |server| {
                for _ in 0..3 {
                    server.pause(8000).await;
                    let other = server.env.random_below(SHAPES.len() as u64) as usize;
                    let table = shape.table(SHAPES[other].options);
                    server.swap_or_end("volume", &table, may_fail).await;
                }
            });
        }
        self.failing
    }
}

fn campaign(failing: bool) -> Campaign<Clones> {
    Campaign::new(Clones { failing })
}

#[test]
fn nothing_acknowledged_is_lost_by_a_power_cut_or_a_kill() {
    campaign(false).run();
}

#[test]
fn losses_of_any_drive_are_told_to_each_client() {
    campaign(true).run();
}

#[test]
fn deaths_of_the_server_of_a_destination_lose_nothing() {
    campaign(false).elsewhere(&["dest"], Links::ServersDie).cuts(60).run();
}

#[test]
fn deaths_of_servers_lose_nothing() {
    campaign(false).elsewhere(&["meta", "dest", "src"], Links::ServersDie).cuts(60).run();
}

#[cfg(feature = "canary")]
mod canaries {
    use super::campaign;
    use cairn_block::mutants::skip;
    use cairn_targets::clone::canary::{Bug, plant};

    fn caught(bug: Bug, failing: bool) {
        plant(Some(bug));
        campaign(failing).cuts(5000).expect_caught(&format!("{bug:?}"));
        plant(None);
    }

    fn taken_out(name: &'static str, failing: bool) {
        skip(Some(name));
        campaign(failing).cuts(10_000).expect_caught(name);
        skip(None);
    }

    #[test]
    fn bits_before_their_data_are_caught() {
        caught(Bug::BitsBeforeData, false);
    }

    #[test]
    fn a_flush_without_a_commit_is_caught() {
        caught(Bug::FlushWithoutCommit, false);
    }

    #[test]
    fn a_bit_before_its_copy_is_caught() {
        caught(Bug::BitBeforeCopy, false);
    }

    #[test]
    fn a_part_of_a_region_that_counts_as_all_of_it_is_caught() {
        caught(Bug::PartForWhole, false);
    }

    #[test]
    fn a_write_without_a_record_is_caught() {
        caught(Bug::NoRecord, false);
    }

    #[test]
    fn trust_in_regions_after_a_failure_is_caught() {
        caught(Bug::TrustAfterFailure, true);
    }

    #[test]
    fn a_superblock_before_its_blocks_is_caught() {
        taken_out("clone metadata: flush before the superblock", false);
    }

    #[test]
    fn a_commit_that_does_not_wait_for_its_superblock_is_caught() {
        taken_out("clone metadata: flush of the superblock", false);
    }
}
