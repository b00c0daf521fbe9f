//! A pool and its volumes.

use std::cell::RefCell;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::{
    ConfigError, Disk, Env, FailureCursor, Io, IoResult, MessageError, Op, Sector, SectorCount,
};
use cairn_format::thin::blocks::MemoryBlocks;
use cairn_format::thin::check::{Finding, Limits, Severity, check};
use cairn_sim::Image;

use crate::rig::{self, Rig};
use crate::thin::ThinPool;

pub use crate::rig::{range, write_io};

/// Sectors of a data block in the beds.
pub const BLOCK: u64 = 128;

/// Sectors of the external origin: it ends inside a block.
pub const ORIGIN_SECTORS: u64 = BLOCK * 5 / 2;

/// What the data device and the external origin hold at first: never zero.
pub fn initial_byte(sector: u64) -> u8 {
    (sector % 127) as u8 + 128
}

/// A connection to a volume.
pub struct Client {
    volume: Arc<dyn Disk>,
    cursor: RefCell<FailureCursor>,
}

pub struct Bed {
    rig: Rig,
    pub data_blocks: u64,
}

impl Deref for Bed {
    type Target = Rig;

    fn deref(&self) -> &Rig {
        &self.rig
    }
}

impl Bed {
    /// A blank metadata device of so many blocks, a data device of so many data blocks, and an
    /// external origin of two and a half.
    pub fn new(metadata_blocks: u64, data_blocks: u64) -> Bed {
        let metadata = Image::new(SectorCount(metadata_blocks * 8));
        Bed::of_images(metadata, rig::image(data_blocks * BLOCK, initial_byte), data_blocks)
    }

    pub fn of_images(metadata: Image, data: Image, data_blocks: u64) -> Bed {
        let origin = rig::image(ORIGIN_SECTORS, initial_byte);
        let drives = [("meta", metadata), ("data", data), ("origin", origin)];
        let rig = Rig::new(drives.map(|(name, image)| (name.to_owned(), image)));
        Bed { rig, data_blocks }
    }

    /// A pool with default options and a volume `thin` with id 0 of so many blocks.
    pub fn with_volume(metadata_blocks: u64, data_blocks: u64, blocks: u64) -> Bed {
        let bed = Bed::new(metadata_blocks, data_blocks);
        bed.serve("0 0", blocks);
        bed
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

    /// A bed on what a power cut now certainly leaves.
    pub fn reopen_durable(&self) -> Bed {
        let [metadata, data, _origin] =
            self.durable().collect::<Vec<_>>().try_into().expect("three drives");
        Bed::of_images(metadata, data, self.data_blocks)
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
        let (pool, words) = (self.volume("pool"), words.to_vec());
        self.sim.block_on(0, |env| async move { pool.message(&env, Sector(0), &words).await })
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
        let (pool, words) = (self.volume("pool"), words.to_vec());
        self.sim.block_on(0, |env| {
            env.clone().spawn(async move { drop(pool.message(&env, Sector(0), &words).await) });
            std::future::ready(())
        });
    }

    /// Lets time pass.
    pub fn wait(&self, time: Duration) {
        self.sim.block_on(0, |env| async move { env.sleep(time).await });
    }

    pub fn zero(&self, name: &str, start: u64, count: u64) -> IoResult {
        self.io(name, |_| Io::on(Op::WriteZeroes, range(start, count)))
    }

    pub fn discard(&self, name: &str, start: u64, count: u64) -> IoResult {
        self.io(name, |_| Io::on(Op::Discard, range(start, count)))
    }

    pub fn flush(&self, name: &str) -> IoResult {
        self.io(name, |_| Io::flush())
    }

    // Losses.

    /// Connects a client to a volume.
    pub fn client(&self, name: &str) -> Client {
        let volume: Arc<dyn Disk> = self.volume(name);
        let cursor = RefCell::new(FailureCursor::new(&volume));
        Client { volume, cursor }
    }

    /// What a client is told at a flush.
    pub fn flush_of(&self, client: &Client) -> IoResult {
        let volume = client.volume.clone();
        let result = self.sim.block_on(1, |env| async move { env.io(&volume, Io::flush()).await });
        let mut cursor = client.cursor.borrow_mut();
        let told = cursor.end_of_flush(&client.volume, result);
        cursor.was_told(&client.volume);
        told
    }

    /// Clients of these volumes, who are told of a loss once each.
    pub fn are_told_once(&self, clients: &[Client]) {
        for client in clients {
            let name = client.volume.name();
            assert!(self.flush_of(client).is_err(), "{name} is told");
            assert_eq!(self.flush_of(client), Ok(()), "{name} is told once");
        }
    }

    /// Makes a table live after a loss, which the verb tells.
    pub fn load_after_loss(&self, name: &str, text: &str) -> ConfigError {
        let lost = self.try_load(name, text).expect_err("there was a loss");
        assert!(!self.volume(name).is_suspended(), "it is live: {lost}");
        lost
    }
}
