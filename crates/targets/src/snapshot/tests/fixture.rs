//! Volumes over one origin and a few COW devices.

use std::ops::Deref;
use std::sync::Arc;

use cairn_block::{IoError, SectorCount, SectorRange};
use cairn_sim::Image;

use super::super::core::Core;
use super::super::map::Snapshot;
use crate::fixture::{Fixture, image};

pub use crate::fixture::{range, write_io};

pub struct SnapshotFixture(Fixture);

impl Deref for SnapshotFixture {
    type Target = Fixture;

    fn deref(&self) -> &Fixture {
        &self.0
    }
}

/// What a sector of the origin holds at first.
pub fn initial_byte(sector: u64) -> u8 {
    (sector % 127) as u8 + 1
}

/// What so many sectors of the origin hold at first, a byte per sector.
pub fn initial_bytes(start: u64, count: u64) -> Vec<u8> {
    (start..start + count).map(initial_byte).collect()
}

pub fn initial(sectors: u64) -> Image {
    image(sectors, initial_byte)
}

impl SnapshotFixture {
    /// An origin of so many sectors, and blank COW devices `cow0`, `cow1`, ...
    pub fn new(origin: u64, cows: &[u64]) -> SnapshotFixture {
        let cows = cows.iter().map(|&sectors| Image::new(SectorCount(sectors))).collect();
        SnapshotFixture::of_images(initial(origin), cows)
    }

    pub fn of_images(origin: Image, cows: Vec<Image>) -> SnapshotFixture {
        let names = (0..cows.len()).map(|at| format!("cow{at}"));
        let origin = std::iter::once(("origin".to_owned(), origin));
        SnapshotFixture(Fixture::new(origin.chain(names.zip(cows))))
    }

    /// A new world whose drives hold what a power cut now certainly leaves.
    pub fn reopen_durable(&self) -> SnapshotFixture {
        let mut images = self.durable();
        let origin = images.next().expect("an origin");
        SnapshotFixture::of_images(origin, images.collect())
    }

    /// The process dies and another one starts; the drives keep what they hold.
    pub fn killed(self) -> SnapshotFixture {
        SnapshotFixture(self.0.killed())
    }

    /// The core of a live snapshot.
    pub fn core(&self, name: &str) -> Arc<Core> {
        self.with_target(name, |snapshot: &Snapshot| snapshot.attachment.core().clone())
    }

    /// Where a live snapshot and its origin may differ.
    pub fn changed(&self, name: &str, range: SectorRange) -> Result<Vec<SectorRange>, IoError> {
        self.with_target(name, |snapshot: &Snapshot| snapshot.changed(range))
    }
}
