//! [`CacheFixture`]: a write cache on memory disks that can be put into a state again and again, by
//! its metadata, and measured from there.
//!
//! The memory was touched before, so that no figure includes the cost of the first touch. What
//! the target keeps only in memory (a cursor) starts again with each measurement.

use std::sync::Arc;
use std::time::Duration;

use cairn_backends::MemoryDisk;
use cairn_block::{Disk, Op, Sector, SectorCount};
use cairn_format::writecache::Geometry;
use cairn_outcome::failure::Outcome;

use super::clock::Took;
use super::counting::CountingDisk;
use super::fixture::Fixture;
use super::image;
use super::load::{Job, run, sequential};

/// Writeback begins only when no slot is left.
pub const NO_WRITEBACK: &str = "4 high_watermark 100 low_watermark 100";

/// Bytes of one write that touches memory.
const TOUCH_BYTES: usize = 512 << 10;

/// The background is quiet when so many looks at the status saw no change.
const QUIET_LOOKS: u32 = 10;
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A cache and its origin.
pub struct CacheFixture {
    /// The reactor.
    pub fixture: Fixture,
    /// The cache device, without the counting.
    cache: Arc<dyn Disk>,
    counting: Arc<CountingDisk>,
    origin: Arc<dyn Disk>,
}

/// The result of one measurement of a cache.
pub struct Measured {
    /// How long each job took.
    pub took: Vec<Took>,
    /// For each job, the writes to the slots by class of length.
    pub writes: Vec<Vec<u64>>,
}

impl CacheFixture {
    /// A cache device of this size in memory, touched.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn make(cache_bytes: u64, origin: Arc<dyn Disk>) -> Outcome<CacheFixture> {
        CacheFixture::of(Arc::new(MemoryDisk::new(SectorCount::of_bytes(cache_bytes))?), origin)
    }

    /// These as cache device and origin; the cache device is touched.
    ///
    /// # Errors
    /// The cache device cannot be written.
    pub fn of(cache: Arc<dyn Disk>, origin: Arc<dyn Disk>) -> Outcome<CacheFixture> {
        let fixture = Fixture::make()?;
        let counting = Arc::new(CountingDisk::new(cache.clone()));
        fixture.put("cache", counting.clone());
        fixture.put("origin", origin.clone());
        touch(&fixture, &cache)?;
        Ok(CacheFixture { fixture, cache, counting, origin })
    }

    /// The layout with blocks of this size.
    ///
    /// # Errors
    /// The format has none.
    pub fn geometry(&self, block_bytes: u32) -> Outcome<Geometry> {
        image::geometry(self.cache.sectors().to_bytes(), block_bytes)
    }

    /// Puts the cache into the state of `metadata`, brings it up with `options` (a count and so
    /// many words), does the jobs in order, and takes it down.
    ///
    /// # Errors
    /// A step failed.
    pub fn measure(
        &self,
        geometry: &Geometry,
        metadata: &Arc<Vec<u8>>,
        options: &str,
        jobs: &[Job],
    ) -> Outcome<Measured> {
        let volume = self.bring_up(geometry, metadata, options)?;
        let mut measured = Measured { took: Vec::new(), writes: Vec::new() };
        for job in jobs {
            self.counting.count_from(Sector::of_byte(geometry.data_offset()));
            measured.took.push(run(&self.fixture, &volume, job)?);
            measured.writes.push(self.counting.writes());
        }
        self.fixture.remove("volume")?;
        Ok(measured)
    }

    /// Puts the cache into a state, brings it up, waits until its background work is done, and
    /// takes it down.
    ///
    /// # Errors
    /// A step failed.
    pub fn leave_alone(
        &self,
        geometry: &Geometry,
        metadata: &Arc<Vec<u8>>,
        options: &str,
    ) -> Outcome<()> {
        let volume = self.bring_up(geometry, metadata, options)?;
        let status = || {
            let table = volume.mapped().and_then(|device| device.live_table());
            table.map(|table| table.lines()[0].target.status())
        };
        let (mut last, mut quiet) = (status(), 0);
        while quiet < QUIET_LOOKS {
            std::thread::sleep(LOOK_EVERY);
            let now = status();
            quiet = if now == last { quiet + 1 } else { 0 };
            last = now;
        }
        drop(volume);
        self.fixture.remove("volume")
    }

    fn bring_up(
        &self,
        geometry: &Geometry,
        metadata: &Arc<Vec<u8>>,
        options: &str,
    ) -> Outcome<Arc<dyn Disk>> {
        image::store(&self.fixture, &self.cache, metadata)?;
        let (len, block) = (self.origin.sectors(), geometry.block_size().bytes());
        let table = format!("0 {len} writecache s origin cache {block} {options}");
        self.fixture.volume("volume", &table)
    }

    /// The metadata that the last measurement left.
    ///
    /// # Errors
    /// The device cannot be read.
    pub fn metadata(&self, geometry: &Geometry) -> Outcome<Arc<Vec<u8>>> {
        Ok(Arc::new(image::fetch(&self.fixture, &self.cache, geometry.metadata_bytes())?))
    }
}

/// Writes a whole disk once.
///
/// # Errors
/// It cannot be written.
pub fn touch(fixture: &Fixture, disk: &Arc<dyn Disk>) -> Outcome<()> {
    let bytes = disk.sectors().to_bytes();
    let places = sequential(bytes, TOUCH_BYTES);
    run(fixture, disk, &Job::new(Op::Write, TOUCH_BYTES, places)).map(drop)
}
