//! A pool and its volumes.

use std::ops::Deref;

use cairn_block::{ConfigError, Env, MessageError, SectorCount};
use cairn_format::thin::blocks::MemoryBlocks;
use cairn_format::thin::check::{Finding, Limits, Severity, check};
use cairn_sim::Image;

use crate::fixture::{Fixture, image};
use crate::thin::ThinPool;

pub use crate::fixture::{range, write_io};

/// Sectors of a data block of the data device.
pub const BLOCK: u64 = 128;

/// Sectors of the external origin: it ends inside a block.
pub const ORIGIN_SECTORS: u64 = BLOCK * 5 / 2;

/// What the data device and the external origin hold at first: never zero.
pub fn initial_byte(sector: u64) -> u8 {
    (sector % 127) as u8 + 128
}

pub struct PoolFixture {
    fixture: Fixture,
    pub data_blocks: u64,
}

impl Deref for PoolFixture {
    type Target = Fixture;

    fn deref(&self) -> &Fixture {
        &self.fixture
    }
}

impl PoolFixture {
    /// A blank metadata device of so many blocks, a data device of so many data blocks, and an
    /// external origin of two and a half.
    pub fn new(metadata_blocks: u64, data_blocks: u64) -> PoolFixture {
        let metadata = Image::new(SectorCount(metadata_blocks * 8));
        PoolFixture::of_images(metadata, image(data_blocks * BLOCK, initial_byte), data_blocks)
    }

    pub fn of_images(metadata: Image, data: Image, data_blocks: u64) -> PoolFixture {
        let origin = image(ORIGIN_SECTORS, initial_byte);
        let drives = [("meta", metadata), ("data", data), ("origin", origin)];
        PoolFixture { fixture: Fixture::new(drives), data_blocks }
    }

    /// A pool with default options and a volume `thin` with id 0 of so many blocks.
    pub fn with_volume(metadata_blocks: u64, data_blocks: u64, blocks: u64) -> PoolFixture {
        let test = PoolFixture::new(metadata_blocks, data_blocks);
        test.serve("0 0", blocks);
        test
    }

    /// A fresh pool, with a low water mark and features, and a volume `thin` with id 0.
    pub fn serve(&self, rest: &str, blocks: u64) {
        self.load_pool(rest);
        self.message(&["create_thin", "0"]).unwrap();
        self.load_thin("thin", 0, blocks);
    }

    pub fn pool_table(&self, rest: &str) -> String {
        format!("0 {} thin-pool meta data {BLOCK} {rest}", self.data_blocks * BLOCK)
    }

    /// Loads the pool: low water mark and features.
    pub fn load_pool(&self, rest: &str) {
        self.load("pool", &self.pool_table(rest));
    }

    pub fn load_thin(&self, name: &str, id: u32, blocks: u64) {
        self.load(name, &format!("0 {} thin @pool {id}", blocks * BLOCK));
    }

    /// The status line of the pool has this part.
    pub fn pool_says(&self, part: &str) {
        let status = self.status("pool");
        assert!(status.contains(part), "found '{status}', expected '{part}' in it");
    }

    /// A write whose data and mapping are durable.
    pub fn write_through(&self, name: &str, start: u64, count: u64, byte: u8) {
        self.write(name, start, count, byte).unwrap();
        self.flush(name).unwrap();
    }

    /// The line that refuses a table has this part.
    pub fn refuses(&self, name: &str, text: &str, part: &str) {
        let refused = self.try_load(name, text).expect_err(text).to_string();
        assert!(refused.contains(part), "found '{refused}', expected '{part}' in it");
    }

    /// The process dies and another one starts; the drives keep what they hold.
    pub fn killed(self) -> PoolFixture {
        PoolFixture { fixture: self.fixture.killed(), data_blocks: self.data_blocks }
    }

    /// A new world whose drives hold what a power cut now certainly leaves.
    pub fn reopen_durable(&self) -> PoolFixture {
        let [metadata, data, _origin] =
            self.durable().collect::<Vec<_>>().try_into().expect("three drives");
        PoolFixture::of_images(metadata, data, self.data_blocks)
    }

    /// The checker finds nothing wrong with the metadata that a power cut now certainly leaves,
    /// but the mark of a failed commit.
    pub fn check_metadata(&self) {
        let bytes = self.drive("meta").durable().to_vec();
        let checked = check(&mut MemoryBlocks::new(&bytes), Limits::default());
        let report = checked.expect("memory can be read");
        let only_marked = report.findings.iter().all(|found| *found == Finding::NeedsCheck);
        assert!(report.severity < Severity::Repairable || only_marked, "{:?}", report.findings);
    }

    /// Sends a message to the pool.
    pub fn message(&self, words: &[&'static str]) -> Result<String, MessageError> {
        self.fixture.message("pool", words)
    }

    /// Calls a typed function of the pool.
    pub fn ask<T: 'static>(&self, ask: impl AsyncFnOnce(&Env, &ThinPool) -> T + 'static) -> T {
        let target = self.target("pool");
        self.sim.block_on(0, |env| async move {
            let any = target.as_any().and_then(|any| any.downcast_ref::<ThinPool>());
            ask(&env, any.expect("a pool")).await
        })
    }

    /// Sends a message to the pool without waiting for its answer.
    pub fn start_message(&self, words: &[&'static str]) {
        self.fixture.start_message("pool", words);
    }

    /// Makes a table live after a loss, which the verb tells.
    pub fn load_after_loss(&self, name: &str, text: &str) -> ConfigError {
        let lost = self.try_load(name, text).expect_err("there was a loss");
        assert!(!self.volume(name).is_suspended(), "it is live: {lost}");
        lost
    }
}
