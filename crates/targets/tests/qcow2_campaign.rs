//! The crash campaign of images: power cuts and kills at seeded writes, during fills, commits,
//! releases and recovery, over drives that lose, reorder and tear; with suspends and other tables
//! under the workload, and with drives that fail in every way. Free clusters hold other data at
//! first, so that an entry without its content shows. After each end the image is checked: leaks
//! are all that a crash may leave.
//!
//! `CAIRN_CUTS=10000 cargo test -p cairn-targets --release --test qcow2_campaign` is the long run.
//! With `--features canary` known ordering bugs are planted: each must be caught.

use std::rc::Rc;
use std::sync::Arc;

use cairn_block::{LocalFuture, SectorCount, TargetType};
use cairn_format::qcow2::write::Blank;
use cairn_format::qcow2::{Header, Layout, Severity, check};
use cairn_sim::campaign::{
    Campaign, Generation, Images, Links, Opened, Scenario, Server, plant_failures,
};
use cairn_sim::{DriveOptions, Image, Workload};

const SECTOR: usize = 512;

/// What varies between cuts.
#[derive(Clone, Copy)]
struct Shape {
    /// Sectors of the content.
    sectors: u64,
    cluster_bits: u32,
    refcount_order: u32,
    /// Sectors of the backing device; 0: there is none.
    backing: u64,
    /// Clusters of the device beyond those that the whole content needs.
    spare: u64,
    /// Bytes of a logical block of the drives.
    logical: u32,
    /// The image is in a file: it begins without room, and grows.
    grows: bool,
}

const SMALL: Shape = Shape {
    sectors: 131,
    cluster_bits: 10,
    refcount_order: 4,
    backing: 0,
    spare: 200,
    logical: 512,
    grows: false,
};

const SHAPES: &[Shape] = &[
    SMALL,
    Shape { backing: 131, ..SMALL },
    Shape { backing: 70, ..SMALL },
    // Several L2 tables and refcount blocks; little room.
    Shape { cluster_bits: 9, backing: 100, spare: 4, ..SMALL },
    Shape { cluster_bits: 9, refcount_order: 6, sectors: 300, spare: 2, ..SMALL },
    Shape { cluster_bits: 9, refcount_order: 6, sectors: 200, backing: 150, ..SMALL },
    Shape { refcount_order: 0, ..SMALL },
    // A refcount table that is too small for the content.
    Shape { cluster_bits: 9, refcount_order: 6, sectors: 4200, ..SMALL },
    Shape { cluster_bits: 12, sectors: 512, backing: 512, ..SMALL },
    Shape { cluster_bits: 12, sectors: 504, backing: 400, logical: 4096, ..SMALL },
    Shape { cluster_bits: 13, sectors: 500, backing: 0, spare: 8, ..SMALL },
    Shape { grows: true, ..SMALL },
    Shape { cluster_bits: 12, sectors: 1100, backing: 900, grows: true, ..SMALL },
];

impl Shape {
    fn table(&self) -> String {
        let backing = if self.backing > 0 { "base" } else { "-" };
        format!("0 {} qcow2 image {backing}", self.sectors)
    }

    fn options(&self, name: &str) -> DriveOptions {
        DriveOptions { logical_block: self.logical, ..DriveOptions::named(name) }
    }

    fn blank(&self) -> Vec<u8> {
        let backing = (self.backing > 0).then_some(("base", "raw"));
        let Shape { cluster_bits, refcount_order, .. } = *self;
        Blank { size: self.sectors * 512, cluster_bits, refcount_order, backing }
            .bytes()
            .expect("legal")
    }

    fn image(&self) -> Image {
        let cluster = 1_u64 << self.cluster_bits;
        let mut bytes = self.blank();
        let content = (self.sectors * 512).div_ceil(cluster);
        let tables = content.div_ceil(cluster / 8);
        let blocks = 2 + content / (cluster / (1 << self.refcount_order) * 8);
        let clusters = bytes.len() as u64 / cluster + content + tables + blocks + self.spare;
        let left = (clusters * cluster) as usize - bytes.len();
        bytes.extend(filled(left / SECTOR, 90));
        Image::of_bytes(&bytes)
    }
}

fn filled(sectors: usize, salt: usize) -> Vec<u8> {
    let byte = |sector: usize| ((sector * 7 + salt) % 255) as u8 + 1;
    (0..sectors).flat_map(|sector| [byte(sector); SECTOR]).collect()
}

struct Qcow2s {
    /// Drives fail in every way, also while the volume is opened.
    failing: bool,
}

impl Scenario for Qcow2s {
    type Case = Shape;

    fn types(&self) -> Vec<Arc<dyn TargetType>> {
        cairn_targets::types()
    }

    fn begin(&self, rng: &mut fastrand::Rng) -> (Shape, Vec<(DriveOptions, Image)>) {
        let shape = SHAPES[rng.usize(..SHAPES.len())];
        let mut image = shape.image();
        let grows_to = if shape.grows { image.sectors() } else { SectorCount::ZERO };
        if shape.grows {
            let bytes = shape.blank().len() as u64;
            image.resize(SectorCount::of_bytes(bytes) + SectorCount(rng.u64(..20)));
        }
        let mut drives = vec![(DriveOptions { grows_to, ..shape.options("image") }, image)];
        if shape.backing > 0 {
            let base = Image::of_bytes(&filled(shape.backing as usize, 11));
            drives.push((shape.options("base"), base));
        }
        (shape, drives)
    }

    fn open(&self, shape: Rc<Shape>, server: Server) -> LocalFuture<'static, Opened> {
        Box::pin(async move { Ok(vec![server.create("volume", &shape.table()).await?]) })
    }

    fn check_metadata(&self, _shape: &Shape, images: &Images) -> Result<(), String> {
        let bytes = images["image"].to_vec();
        let header =
            Header::parse(&bytes, bytes.len() as u64).map_err(|error| error.to_string())?;
        let layout = Layout::parse(&bytes, &header).map_err(|error| error.to_string())?;
        let read = &mut |at: u64, out: &mut [u8]| {
            out.copy_from_slice(&bytes[at as usize..at as usize + out.len()]);
            Ok::<(), std::convert::Infallible>(())
        };
        let Ok(report) = check(&header, &layout, read);
        match report.severity {
            Severity::Sound | Severity::Repairable => Ok(()),
            _ => Err(report.findings.iter().map(|finding| format!("{finding}; ")).collect()),
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

    /// Entries of content that a failure may have lost are withdrawn.
    fn rolls_back(&self) -> bool {
        self.failing
    }

    fn fails_at_start(&self) -> bool {
        self.failing
    }

    fn trouble(&self, shape: &Rc<Shape>, generation: &Generation, rng: &mut fastrand::Rng) -> bool {
        if self.failing {
            plant_failures(&generation.world.all_drives(), [5, 50][rng.usize(..2)], None, rng);
        }
        if rng.u8(..4) == 0 {
            // Other tables, while requests come.
            let (shape, may_fail) = (shape.clone(), self.failing);
            generation.start(2, async move |server| {
                for _ in 0..3 {
                    server.pause(8000).await;
                    server.swap_or_end("volume", &shape.table(), may_fail).await;
                }
            });
        }
        self.failing
    }
}

fn campaign(failing: bool) -> Campaign<Qcow2s> {
    Campaign::new(Qcow2s { failing })
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
fn deaths_of_the_server_of_an_image_lose_nothing() {
    campaign(false).elsewhere(&["image"], Links::ServersDie).cuts(60).run();
}

#[cfg(feature = "canary")]
mod canaries {
    use super::campaign;
    use cairn_block::mutants::skip;
    use cairn_targets::qcow2::canary::{Bug, plant};

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
    fn entries_before_their_data_are_caught() {
        caught(Bug::EntriesBeforeData, false);
    }

    #[test]
    fn a_flush_without_a_commit_is_caught() {
        caught(Bug::FlushWithoutCommit, false);
    }

    #[test]
    fn a_cluster_that_is_released_at_once_is_caught() {
        caught(Bug::ReleaseAtOnce, false);
    }

    #[test]
    fn a_part_of_a_cluster_that_counts_as_all_of_it_is_caught() {
        caught(Bug::PartForWhole, false);
    }

    #[test]
    fn a_write_without_a_record_is_caught() {
        caught(Bug::NoRecord, false);
    }

    #[test]
    fn trust_in_entries_after_a_failure_is_caught() {
        caught(Bug::TrustAfterFailure, true);
    }

    #[test]
    fn entries_before_the_refcount_table_are_caught() {
        taken_out("qcow2: flush of the refcount table", false);
    }

    #[test]
    fn a_commit_that_does_not_wait_for_its_entries_is_caught() {
        taken_out("qcow2: flush of entries", false);
    }
}
