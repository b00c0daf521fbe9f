//! A volume with a write cache over the drives `origin` and `cache`.

use std::cell::RefCell;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::{ConfigError, Env, Flags, Io, IoResult, MessageError, Resumed, SectorCount};
use cairn_format::writecache::{Entry, EntryState, Geometry, Superblock};
use cairn_sim::{DriveModel, DriveOptions, Effect, Fault, Image, OpSet, SimDrive};

use super::super::{State, WriteCache};
use crate::fixture::{Answer, Client, Fixture, OneVolume, drive_options, image};

pub use crate::fixture::{DRIVE_TIME, Seen, range, write_io};

pub struct CacheFixture {
    pub one: OneVolume,
    pub origin: Arc<SimDrive>,
    pub cache: Arc<SimDrive>,
    /// The client that flushes when a test names none.
    client: Client,
}

impl Deref for CacheFixture {
    type Target = OneVolume;

    fn deref(&self) -> &OneVolume {
        &self.one
    }
}

/// Counters and gauges of the status line.
#[derive(Debug, PartialEq, Eq)]
pub struct Status(pub Vec<u64>);

impl Status {
    pub fn error(&self) -> u64 {
        self.0[0]
    }
    pub fn free(&self) -> u64 {
        self.0[2]
    }
    pub fn dirty(&self) -> u64 {
        self.0[1] - self.0[2]
    }
    pub fn counters(&self) -> &[u64] {
        &self.0[4..]
    }
    pub fn named(&self, name: &str) -> u64 {
        let fields = crate::writecache::KIND.spec.status_fields;
        let at = fields.iter().position(|field| field.name == name);
        self.0[at.expect(name)]
    }
}

/// How large a cache device must be for `slots` slots.
pub fn cache_sectors(slots: u64, block: u64) -> u64 {
    ((64 + 16 * slots).next_multiple_of(block) + slots * block).div_ceil(512)
}

impl CacheFixture {
    /// An origin of `origin` sectors with contents that tell their sector, and a blank cache.
    pub fn new(origin: u64, cache: u64) -> CacheFixture {
        CacheFixture::of_images(initial(origin), Image::new(SectorCount(cache)), 1)
    }

    pub fn of_images(origin: Image, cache: Image, seed: u64) -> CacheFixture {
        CacheFixture::with_model(origin, cache, seed, drive_options("").model)
    }

    pub fn with_model(origin: Image, cache: Image, seed: u64, model: DriveModel) -> CacheFixture {
        let options = |name| DriveOptions { model, ..drive_options(name) };
        let drives = [(options("origin"), origin), (options("cache"), cache)];
        CacheFixture::of(OneVolume::of(Fixture::with_options(seed, drives)))
    }

    fn of(one: OneVolume) -> CacheFixture {
        let (origin, cache, client) = (one.drive("origin"), one.drive("cache"), one.client());
        CacheFixture { one, origin, cache, client }
    }

    /// A live cache of `slots` slots of 4 KiB before an origin of 1 MiB; writeback does not pause
    /// unless `options` say so.
    pub fn live(slots: u64, options: &str) -> CacheFixture {
        let test = CacheFixture::new(2048, cache_sectors(slots, 4096));
        let pause = if options.contains("pause_writeback") { "" } else { "pause_writeback 0" };
        test.load(&table(2048, 4096, &format!("{options} {pause}")));
        assert_eq!(test.status().free(), slots);
        test.forget();
        test
    }

    /// The process dies and another one starts; the drives keep what they hold.
    pub fn killed(self) -> CacheFixture {
        CacheFixture::of(self.one.killed())
    }

    /// A new world whose drives hold what a power cut now certainly leaves.
    pub fn reopen_durable(&self) -> CacheFixture {
        CacheFixture::of_images(self.origin.durable(), self.cache.durable(), 2)
    }

    /// Begins to load a table and make it live; the cell holds the result when that has ended.
    pub fn start_load(&self, text: &str) -> Rc<RefCell<Option<Result<(), ConfigError>>>> {
        let (end, env) = (Rc::<RefCell<_>>::default(), self.sim.env(0).clone());
        let (place, volume) = (Rc::clone(&end), self.volume.clone());
        let building = self.building(env.clone(), "test", text, false);
        self.sim.env(0).spawn(async move {
            building.await.expect("it is built");
            let resumed = volume.resume(&env).await.and_then(Resumed::whole);
            *place.borrow_mut() = Some(resumed);
        });
        // The reactor notices at its next turn.
        self.sim.run_until(|| true);
        end
    }

    /// Looks into the live cache.
    pub fn look<R>(&self, look: impl FnOnce(&WriteCache, &State) -> R) -> R {
        self.with_target("test", |cache: &WriteCache| look(cache, &cache.state.lock()))
    }

    /// Checks what must hold of the live cache between any two steps.
    pub fn check(&self) {
        self.look(|_, state| state.check_whole());
    }

    pub fn status(&self) -> Status {
        let status = self.target().status();
        Status(status.split(' ').map(|field| field.parse().unwrap()).collect())
    }

    pub fn message(&self, word: &'static str) -> Result<String, MessageError> {
        self.one.message(&[word])
    }

    /// Sends a message without waiting for its answer.
    pub fn start_message(&self, word: &'static str) -> Answer {
        self.one.start_message(&[word])
    }

    /// Starts a request on reactor 1; `ends` records its result under `label`.
    pub fn start(&self, label: &'static str, io: impl FnOnce(&Env) -> Io) {
        self.one.start(1, label, io);
    }

    pub fn write_fua(&self, start: u64, count: u64, byte: u8) -> IoResult {
        self.io(|env| write_io(env, start, count, byte).with(Flags::FUA))
    }

    /// A flush of the fixture's own client.
    pub fn flush(&self) -> IoResult {
        self.flush_of(&self.client)
    }

    /// The byte that a block of 4 KiB consists of.
    pub fn byte(&self, start: u64) -> u8 {
        let bytes = self.bytes(start, 8);
        assert!(bytes.iter().all(|&byte| byte == bytes[0]), "sectors from {start} differ");
        bytes[0]
    }

    /// The committed blocks that a crash would certainly leave: sector, seq and first byte.
    pub fn durable_entries(&self) -> Vec<(u64, u64, u8)> {
        committed(&self.cache.durable().to_vec())
    }
}

/// A table line for a volume of `sectors`.
pub fn table(sectors: u64, block: u64, options: &str) -> String {
    let count = options.split_whitespace().count();
    format!("0 {sectors} writecache s origin cache {block} {count} {options}")
}

/// An origin on which each 4 KiB are one byte, from 128 up.
pub fn initial(sectors: u64) -> Image {
    image(sectors, initial_byte)
}

pub fn initial_byte(sector: u64) -> u8 {
    128 + (sector / 8 % 128) as u8
}

/// Operations of these kinds take `duration` longer.
pub fn slow(ops: OpSet, duration: Duration) -> Fault {
    Fault { effect: Effect::Delay(duration), ..Fault::error(ops) }
}

/// Sector, seq and first byte of each committed entry of a cache without start_sector.
pub fn committed(area: &[u8]) -> Vec<(u64, u64, u8)> {
    let superblock = Superblock::parse(area).unwrap();
    let geometry = Geometry::of_superblock(&superblock, area.len() as u64).unwrap();
    let mut blocks: Vec<_> = (0..geometry.n_blocks())
        .map(|slot| (slot, Entry::read_at(area, slot).unwrap()))
        .filter(|(_, entry)| entry.state(superblock.seq()) == EntryState::Committed)
        .map(|(slot, entry)| {
            (entry.original_sector, entry.seq.0, area[geometry.slot_offset(slot) as usize])
        })
        .collect();
    blocks.sort_unstable();
    blocks
}
