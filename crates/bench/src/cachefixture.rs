//! [`CacheBed`]: a write cache on memory disks that can be put into a state again and again, by
//! its metadata, and measured from there.
//!
//! The memory was touched before, so that no figure holds the system's first-touch cost. What
//! the target kept only in memory before (a cursor) starts anew with each measurement.

use std::sync::Arc;
use std::time::Duration;

use cairn_backends::MemoryDisk;
use cairn_block::{Disk, Op, Sector, SectorCount};
use cairn_format::writecache::Geometry;
use cairn_outcome::failure::Outcome;

use super::bed::Bed;
use super::clock::Took;
use super::counting::CountingDisk;
use super::image;
use super::load::{Job, run, sequential};

/// Writeback begins only when no slot is left.
pub const NO_WRITEBACK: &str = "4 high_watermark 100 low_watermark 100";

/// Bytes written at once to touch memory.
const TOUCH_BYTES: usize = 512 << 10;

/// The background is quiet when so many looks at the status saw no change.
const QUIET_LOOKS: u32 = 10;
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A cache and its origin.
pub struct CacheBed {
    /// The reactor.
    pub bed: Bed,
    /// The cache device, without the counting.
    cache: Arc<dyn Disk>,
    counting: Arc<CountingDisk>,
    origin: Arc<dyn Disk>,
}

/// What one measurement of a cache gave.
pub struct Measured {
    /// How long each job took.
    pub took: Vec<Took>,
    /// For each job, the writes to the slots by class of length.
    pub writes: Vec<Vec<u64>>,
}

impl CacheBed {
    /// A cache device of this size in memory, touched.
    ///
    /// # Errors
    /// There is not so much memory.
    pub fn make(cache_bytes: u64, origin: Arc<dyn Disk>) -> Outcome<CacheBed> {
        CacheBed::of(Arc::new(MemoryDisk::new(SectorCount::of_bytes(cache_bytes))?), origin)
    }

    /// These as cache device and origin; the cache device is touched.
    ///
    /// # Errors
    /// The cache device cannot be written.
    pub fn of(cache: Arc<dyn Disk>, origin: Arc<dyn Disk>) -> Outcome<CacheBed> {
        let bed = Bed::make()?;
        let counting = Arc::new(CountingDisk::new(cache.clone()));
        bed.put("cache", counting.clone());
        bed.put("origin", origin.clone());
        touch(&bed, &cache)?;
        Ok(CacheBed { bed, cache, counting, origin })
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
    /// Something of that did not work.
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
            measured.took.push(run(&self.bed, &volume, job)?);
            measured.writes.push(self.counting.writes());
        }
        self.bed.remove("volume")?;
        Ok(measured)
    }

    /// Puts the cache into a state, brings it up, waits until nothing happens in the background
    /// any more, and takes it down.
    ///
    /// # Errors
    /// Something of that did not work.
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
        self.bed.remove("volume")
    }

    fn bring_up(
        &self,
        geometry: &Geometry,
        metadata: &Arc<Vec<u8>>,
        options: &str,
    ) -> Outcome<Arc<dyn Disk>> {
        image::store(&self.bed, &self.cache, metadata)?;
        let (len, block) = (self.origin.sectors(), geometry.block_size().bytes());
        let table = format!("0 {len} writecache s origin cache {block} {options}");
        self.bed.volume("volume", &table)
    }

    /// The metadata that the last measurement left.
    ///
    /// # Errors
    /// The device cannot be read.
    pub fn metadata(&self, geometry: &Geometry) -> Outcome<Arc<Vec<u8>>> {
        Ok(Arc::new(image::fetch(&self.bed, &self.cache, geometry.metadata_bytes())?))
    }
}

/// Writes a whole disk once.
///
/// # Errors
/// It cannot be written.
pub fn touch(bed: &Bed, disk: &Arc<dyn Disk>) -> Outcome<()> {
    let bytes = disk.sectors().to_bytes();
    let places = sequential(bytes, TOUCH_BYTES);
    run(bed, disk, &Job::new(Op::Write, TOUCH_BYTES, places)).map(drop)
}
