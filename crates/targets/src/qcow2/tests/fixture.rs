//! An image of 1003 sectors in clusters of 2, so that the last one is not whole, over a backing
//! device of 300 sectors, or without one. Its free clusters hold other data.

use std::ops::Deref;

use cairn_block::SectorCount;
use cairn_format::qcow2::check::Report;
use cairn_format::qcow2::write::Blank;
use cairn_format::qcow2::{Header, Layout, check};
use cairn_sim::{DriveOptions, Image};

use crate::fixture::{Fixture, OneVolume, SECTOR, drive_options, initial};

pub const SECTORS: u64 = 1003;
pub const BACKING: u64 = 300;
pub const OVER: &str = "0 1003 qcow2 image base";
pub const ALONE: &str = "0 1003 qcow2 image -";
/// Sectors of a cluster.
pub const CLUSTER: u64 = 2;
/// Clusters of an image that has only its header and tables.
pub const FIRST_CLUSTERS: u64 = 4;

pub struct Qcow2Fixture(pub OneVolume);

impl Deref for Qcow2Fixture {
    type Target = OneVolume;

    fn deref(&self) -> &OneVolume {
        &self.0
    }
}

/// An image without content.
pub fn blank(has_backing: bool) -> Vec<u8> {
    let backing = has_backing.then_some(("base", "raw"));
    let size = SECTORS * SECTOR as u64;
    Blank { size, cluster_bits: 10, refcount_order: 4, backing }.bytes().unwrap()
}

fn padded(mut image: Vec<u8>, clusters: u64) -> Image {
    let left = clusters * CLUSTER - (image.len() / SECTOR) as u64;
    image.extend_from_slice(&initial("free", left));
    Image::of_bytes(&image)
}

/// What a fresh volume reads as, a byte for each sector.
pub fn model(has_backing: bool) -> Vec<u8> {
    let base = initial("base", BACKING);
    let shown = base.chunks(SECTOR).map(|sector| sector[0]).filter(|_| has_backing);
    let mut model: Vec<u8> = shown.collect();
    model.resize(SECTORS as usize, 0);
    model
}

impl Qcow2Fixture {
    /// An image with so many clusters, which is not loaded.
    pub fn of(image: Vec<u8>, clusters: u64) -> Qcow2Fixture {
        Qcow2Fixture::with(drive_options("image"), padded(image, clusters))
    }

    pub fn with(options: DriveOptions, image: Image) -> Qcow2Fixture {
        Qcow2Fixture::seeded(1, options, image)
    }

    pub fn seeded(seed: u64, options: DriveOptions, image: Image) -> Qcow2Fixture {
        let base = (drive_options("base"), Image::of_bytes(&initial("base", BACKING)));
        Qcow2Fixture(OneVolume::of(Fixture::with_options(seed, [(options, image), base])))
    }

    /// The drives of a blank image of so many clusters without a backing device.
    pub fn drives(clusters: u64) -> Fixture {
        Fixture::new([("image", padded(blank(false), clusters))])
    }

    /// In a file that grows up to so many clusters.
    pub fn growing(image: &[u8], clusters: u64) -> Qcow2Fixture {
        let grows_to = SectorCount(clusters * CLUSTER);
        let options = DriveOptions { grows_to, ..drive_options("image") };
        Qcow2Fixture::with(options, Image::of_bytes(image))
    }

    pub fn loaded(table: &str) -> Qcow2Fixture {
        let test = Qcow2Fixture::of(blank(table == OVER), 600);
        test.load(table);
        test
    }

    pub fn killed(self) -> Qcow2Fixture {
        Qcow2Fixture(self.0.killed())
    }

    /// Why the volume cannot start with this table.
    pub fn try_load_refused(&self, table: &str) -> String {
        self.build("test", table).unwrap();
        self.try_resume().and_then(cairn_block::Resumed::whole).unwrap_err().to_string()
    }

    pub fn all(&self) -> Vec<u8> {
        self.bytes(0, SECTORS)
    }

    /// What a check finds of an image.
    pub fn check(image: &Image) -> (Report, Layout) {
        let bytes = image.to_vec();
        let header = Header::parse(&bytes, bytes.len() as u64).expect("a header");
        let layout = Layout::parse(&bytes, &header).expect("a layout");
        let read = &mut |at: u64, out: &mut [u8]| {
            out.copy_from_slice(&bytes[at as usize..at as usize + out.len()]);
            Ok::<(), std::convert::Infallible>(())
        };
        let Ok(report) = check(&header, &layout, read);
        (report, layout)
    }

    /// What a check finds of what a power cut would leave.
    pub fn durable(&self) -> (Report, Layout) {
        Qcow2Fixture::check(&self.drive("image").durable())
    }

    /// Clusters of the content that have data in the image, durably.
    pub fn durable_data(&self) -> u64 {
        self.durable().0.counts.data
    }

    /// The fields of the status line.
    pub fn used(&self) -> String {
        self.target().status().split(' ').nth(1).expect("a share").to_owned()
    }
}
