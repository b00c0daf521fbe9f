//! The cache device: its requests, and what a failure means.
//!
//! D1. A flush counts only if the device's failure count did not change since the device was
//!     opened: another user's failed flush may have dropped writes of ours. A failure of the cache
//!     device is final for the set until it is opened again.

use std::convert::Infallible;
use std::ops::Range;

use cairn_block::sync::atomic::{AtomicU64, Ordering};
use cairn_block::{Env, Flags, Io, IoError, IoResult, Sector, SectorCount, SectorRange, mutants};
use cairn_format::bcache::load::Source;

use crate::args::Device;

/// How many writes are in flight at once.
const WRITES_IN_FLIGHT: usize = 64;

/// See the module's description.
pub(in super::super) struct CacheDevice {
    device: Device,
    /// The failure count at opening.
    known: AtomicU64,
}

impl CacheDevice {
    pub fn new(device: Device) -> CacheDevice {
        CacheDevice { device, known: AtomicU64::new(0) }
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Bytes of its blocks: it writes one of them whole or not at all.
    pub fn block_bytes(&self) -> usize {
        self.device.disk.limits().logical_block as usize
    }

    /// The set is opened: what failed before concerns what was before.
    pub fn open(&self) {
        self.known.store(self.device.disk.failures(), Ordering::Relaxed);
    }

    fn judge(&self) -> IoResult {
        let known = self.known.load(Ordering::Relaxed);
        let name = "bcache: failure count of the cache device";
        let is_well = mutants::same(name, known, self.device.disk.failures());
        if is_well { Ok(()) } else { Err(IoError::IO) }
    }

    /// Writes pieces, each to the sector before it. They may end in any order.
    ///
    /// # Errors
    /// A write failed.
    pub async fn write_all(&self, env: &Env, pieces: &[(u64, &[u8])]) -> IoResult {
        for some in pieces.chunks(WRITES_IN_FLIGHT) {
            let write = |(sector, bytes): &(u64, &[u8])| {
                env.io(&self.device.disk, write_io(env, *sector, bytes))
            };
            let mut result = Ok(());
            for write in some.iter().map(write).collect::<Vec<_>>() {
                result = result.and(write.await);
            }
            result?;
        }
        Ok(())
    }

    /// Makes what was written durable (D1).
    ///
    /// # Errors
    /// A flush failed, of this user or another.
    pub async fn flush(&self, env: &Env) -> IoResult {
        env.make_durable(&self.device.disk).await?;
        self.judge()
    }

    /// Writes durably what may lead to all that was written before: after a flush.
    ///
    /// # Errors
    /// The flush or the write failed.
    pub async fn commit(&self, env: &Env, sector: u64, bytes: &[u8]) -> IoResult {
        mutants::step("bcache: flush before an entry", (), self.flush(env)).await?;
        let write = write_io(env, sector, bytes).with(mutants::fua("bcache: FUA of an entry"));
        env.io(&self.device.disk, write).await?;
        self.judge()
    }
}

/// A write of metadata.
pub(in super::super) fn write_io(env: &Env, sector: u64, bytes: &[u8]) -> Io {
    let count = SectorCount::of_bytes(bytes.len() as u64);
    let segs = env.segs(count);
    segs.copy_in(0, bytes);
    Io::write(SectorRange::new(Sector(sector), count), segs).with(Flags::META)
}

/// Reads a device for `load`.
pub(in super::super) struct DiskSource<'a> {
    pub env: &'a Env,
    pub device: &'a Device,
}

impl Source for DiskSource<'_> {
    type Error = Infallible;

    async fn read(
        &mut self,
        ranges: &[Range<u64>],
    ) -> Result<Vec<Result<Vec<u8>, String>>, Infallible> {
        let block = self.device.disk.limits().logical_sectors();
        let start = |range: &Range<u64>| {
            let range = SectorRange::between(Sector(range.start), Sector(range.end));
            let wide = range.widen(block);
            let segs = self.env.segs(wide.count);
            let read = Io::read(wide, segs.clone()).with(Flags::META);
            (range, wide, segs, self.env.io(&self.device.disk, read))
        };
        let mut read = Vec::with_capacity(ranges.len());
        for (range, wide, segs, reading) in ranges.iter().map(start).collect::<Vec<_>>() {
            let skip = (range.start - wide.start).to_bytes() as usize;
            let bytes = reading.await.map_err(|error| error.to_string());
            read.push(bytes.map(|()| segs.slice(skip, range.to_bytes() as usize).to_vec()));
        }
        Ok(read)
    }
}
