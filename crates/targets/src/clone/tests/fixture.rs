//! A clone of 1003 sectors in regions of 8: the last one has 3.

use std::ops::Deref;

use cairn_block::SectorCount;
use cairn_format::clone::{Bitset, read};
use cairn_format::thin::blocks::MemoryBlocks;
use cairn_sim::Image;

use crate::clone::Clone;
use crate::fixture::{Fixture, OneVolume, initial};

pub const SECTORS: u64 = 1003;
pub const PAUSED: &str = "0 1003 clone meta dest src 8 1 no_hydration";
pub const TABLE: &str = "0 1003 clone meta dest src 8";

pub struct CloneFixture(pub OneVolume);

impl Deref for CloneFixture {
    type Target = OneVolume;

    fn deref(&self) -> &OneVolume {
        &self.0
    }
}

/// What the volume must read as.
pub fn source() -> Vec<u8> {
    initial("src", SECTORS)
}

impl CloneFixture {
    /// A blank metadata device, and a destination that was used before.
    pub fn fresh() -> CloneFixture {
        CloneFixture::with_metadata(Image::new(SectorCount(24 * 8)))
    }

    pub fn with_metadata(meta: Image) -> CloneFixture {
        CloneFixture(OneVolume::of(CloneFixture::drives(meta)))
    }

    /// A crash log with room for so many records in each half.
    pub fn with_log_of(records: usize) -> CloneFixture {
        let drives = CloneFixture::drives(Image::new(SectorCount(24 * 8)));
        CloneFixture(OneVolume::of(drives.with_logs_of(records)))
    }

    fn drives(meta: Image) -> Fixture {
        let filled = |name| (name, Image::of_bytes(&initial(name, SECTORS)));
        Fixture::new([("meta", meta), filled("dest"), filled("src")])
    }

    pub fn loaded(table: &str) -> CloneFixture {
        let test = CloneFixture::fresh();
        test.load(table);
        test
    }

    pub fn killed(self) -> CloneFixture {
        CloneFixture(self.0.killed())
    }

    pub fn all(&self) -> Vec<u8> {
        self.read(0, SECTORS).unwrap()
    }

    /// Hydrated regions, in memory.
    pub fn hydrated(&self) -> u64 {
        self.with_target("test", |clone: &Clone| clone.state.lock().hydrated)
    }

    /// What a power cut leaves of the bits.
    pub fn durable_bits(&self) -> Bitset {
        let Ok(read) = read(&mut MemoryBlocks::new(&self.drive("meta").durable().to_vec()));
        read.unwrap_or_else(|fault| panic!("{fault}"))
    }
}
