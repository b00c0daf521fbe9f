//! Volumes over one origin and a few COW devices.

use std::ops::Deref;
use std::sync::Arc;

use cairn_block::{IoError, SectorCount, SectorRange};
use cairn_sim::Image;

use super::super::core::Core;
use super::super::map::Snapshot;
use crate::rig::{self, Rig};

pub use crate::rig::{range, write_io};

pub struct Bed(Rig);

impl Deref for Bed {
    type Target = Rig;

    fn deref(&self) -> &Rig {
        &self.0
    }
}

/// What a sector of the origin holds at first.
pub fn initial_byte(sector: u64) -> u8 {
    (sector % 127) as u8 + 1
}

pub fn initial(sectors: u64) -> Image {
    rig::image(sectors, initial_byte)
}

impl Bed {
    /// An origin of so many sectors, and blank COW devices `cow0`, `cow1`, ...
    pub fn new(origin: u64, cows: &[u64]) -> Bed {
        let cows = cows.iter().map(|&sectors| Image::new(SectorCount(sectors))).collect();
        Bed::of_images(initial(origin), cows)
    }

    pub fn of_images(origin: Image, cows: Vec<Image>) -> Bed {
        let names = (0..cows.len()).map(|at| format!("cow{at}"));
        Bed(Rig::new(std::iter::once(("origin".to_owned(), origin)).chain(names.zip(cows))))
    }

    /// A bed on what a power cut now certainly leaves.
    pub fn reopen_durable(&self) -> Bed {
        let mut images = self.durable();
        let origin = images.next().expect("an origin");
        Bed::of_images(origin, images.collect())
    }

    fn with_snapshot<R>(&self, name: &str, look: impl FnOnce(&Snapshot) -> R) -> R {
        let target = self.target(name);
        look(target.as_any().and_then(|any| any.downcast_ref()).expect("a snapshot"))
    }

    /// The core of a live snapshot.
    pub fn core(&self, name: &str) -> Arc<Core> {
        self.with_snapshot(name, |snapshot| snapshot.attachment.core().clone())
    }

    /// Where a live snapshot and its origin may differ.
    pub fn changed(&self, name: &str, range: SectorRange) -> Result<Vec<SectorRange>, IoError> {
        self.with_snapshot(name, |snapshot| snapshot.changed(range))
    }
}
