//! The cache device: its requests, and what a failure means.
//!
//! D1. A flush counts only if the device's failure count did not change since the device was
//!     opened: another user's failed flush may have dropped writes of ours. A failure of the cache
//!     device is final for the set until it is opened again.
//! D2. A failed flush may have dropped writes that the device still shows when it is read (a page
//!     cache does so), and no later flush makes them durable. So copies of metadata are kept
//!     until a flush covers them, or until they have ended well with FUA. (A copy that is kept for
//!     longer would be a risk: writing it again may fail half-way.) When the set is opened again
//!     they are written again, before anything is read. Their order does not matter: what each of
//!     them relies on was durable before it was first written.
//! D3. A killed process leaves no copies. If the device has failed since the system started, an
//!     opening writes again what it reads. The order does not matter, as in D2. All of it is
//!     durable before anything rests on it: a session begins with a flush, and is none if that
//!     fails. The superblock needs none of it, as a session begins with another one.

use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;

use cairn_block::sync::Mutex;
use cairn_block::sync::atomic::{AtomicU64, Ordering};
use cairn_block::{
    Disk, Env, Flags, Io, IoError, IoResult, Sector, SectorCount, SectorRange, failures_beneath,
    mutants,
};
use cairn_format::bcache::load::Source;

use crate::args::Device;

/// How many writes are in flight at once, and of how many bytes these are; one may be longer.
const WRITES_IN_FLIGHT: usize = 64;
const BYTES_IN_FLIGHT: usize = 512 << 10;

/// See the module's description.
pub(in super::super) struct CacheDevice {
    device: Device,
    /// The failure count at opening.
    known: AtomicU64,
    /// The failure counts beneath, of before that.
    beneath: AtomicU64,
    uncovered: Mutex<Uncovered>,
    /// How many writes in place without FUA have ended (V4), and how many of them a flush has
    /// covered: the counts of R1.
    overwrites: AtomicU64,
    covered: AtomicU64,
    pub work: MetadataWork,
}

/// What was done on the device for metadata since it was opened.
#[derive(Default)]
pub(in super::super) struct MetadataWork {
    /// Sectors of metadata, and of these those of nodes.
    pub metadata: AtomicU64,
    pub nodes: AtomicU64,
    pub flushes: AtomicU64,
}

/// The writes of metadata that no flush has covered, in order (D2).
#[derive(Default)]
struct Uncovered {
    writes: Vec<Kept>,
    /// How many writes have begun, and how many have ended.
    begun: u64,
    ended: u64,
}

/// A write of metadata.
struct Kept {
    sector: u64,
    bytes: Vec<u8>,
    number: u64,
    /// Which one it was of those that have ended.
    ended: Option<u64>,
}

impl Uncovered {
    /// A write begins. Answers its number.
    fn begin(&mut self, sector: u64, bytes: &[u8]) -> u64 {
        let (bytes, number) = (bytes.to_vec(), self.begun);
        self.begun += 1;
        self.writes.push(Kept { sector, bytes, number, ended: None });
        number
    }

    /// These writes have ended well.
    fn end(&mut self, numbers: Range<u64>) {
        for kept in self.writes.iter_mut().filter(|kept| numbers.contains(&kept.number)) {
            kept.ended = Some(self.ended);
            self.ended += 1;
        }
    }

    /// This write has ended well, with FUA.
    fn end_durable(&mut self, number: u64) {
        self.writes.retain(|kept| kept.number != number);
    }

    /// A flush has succeeded that began when so many had ended.
    fn cover(&mut self, ended: u64) {
        self.writes.retain(|kept| kept.ended.is_none_or(|own| own >= ended));
    }
}

impl CacheDevice {
    pub fn new(device: Device) -> CacheDevice {
        let [known, beneath, overwrites, covered] = std::array::from_fn(|_| AtomicU64::new(0));
        let (uncovered, work) = (Mutex::default(), MetadataWork::default());
        CacheDevice { device, known, beneath, uncovered, overwrites, covered, work }
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The disk.
    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.device.disk
    }

    /// Bytes of its blocks: it writes one of them whole or not at all.
    pub fn block_bytes(&self) -> usize {
        self.device.disk.limits().logical_block as usize
    }

    /// The set is opened: what failed before concerns what was before.
    pub fn open(&self) {
        self.beneath.store(failures_beneath(self.device.disk.as_ref()), Ordering::Relaxed);
        self.known.store(self.device.disk.failures(), Ordering::Relaxed);
        self.covered.store(self.overwrites.load(Ordering::Acquire), Ordering::Release);
    }

    /// The failure counts beneath, of before the count at opening.
    pub fn known_beneath(&self) -> u64 {
        self.beneath.load(Ordering::Relaxed)
    }

    /// A write in place without FUA has ended, and is not answered yet. Answers its number.
    pub fn add_overwrite(&self) -> u64 {
        self.overwrites.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// How many of these writes a flush has covered.
    pub fn overwrites_covered(&self) -> u64 {
        self.covered.load(Ordering::Acquire)
    }

    /// True if a flush of a client has to wait for a flush of the device, for writes in place.
    pub fn owes_a_flush(&self) -> bool {
        self.overwrites_covered() < self.overwrites.load(Ordering::Acquire)
    }

    /// Writes again what a failure may have dropped (D2), before a flush.
    ///
    /// # Errors
    /// A write failed.
    pub async fn write_again(&self, env: &Env) -> IoResult {
        let writes = std::mem::take(&mut self.uncovered.lock().writes);
        let mut result = Ok(());
        for Kept { sector, bytes, .. } in writes {
            result = result.and(self.write_all(env, &[(sector, &bytes)]).await);
        }
        result
    }

    /// True if the device may have lost what was written since the set was opened.
    pub fn has_failed(&self) -> bool {
        self.judge().is_err()
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
        let mut rest = pieces;
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |(_, piece): &&(u64, &[u8])| {
                bytes += piece.len();
                bytes <= BYTES_IN_FLIGHT
            };
            let count = rest.iter().take(WRITES_IN_FLIGHT).take_while(fits).count().max(1);
            let some;
            (some, rest) = rest.split_at(count);
            let numbers = self.begin(some);
            let write = |(sector, bytes): &(u64, &[u8])| {
                env.io(&self.device.disk, write_io(env, *sector, bytes))
            };
            let mut result = Ok(());
            for write in some.iter().map(write).collect::<Vec<_>>() {
                result = result.and(write.await);
            }
            result?;
            self.uncovered.lock().end(numbers);
        }
        Ok(())
    }

    /// Writes begin. Answers their numbers.
    fn begin(&self, pieces: &[(u64, &[u8])]) -> Range<u64> {
        let mut uncovered = self.uncovered.lock();
        let first = uncovered.begun;
        for (sector, bytes) in pieces {
            uncovered.begin(*sector, bytes);
        }
        let bytes = pieces.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        count_written(&self.work.metadata, bytes);
        first..uncovered.begun
    }

    /// Makes what was written durable (D1).
    ///
    /// # Errors
    /// A flush failed, of this user or another.
    pub async fn flush(&self, env: &Env) -> IoResult {
        let ended = self.uncovered.lock().ended;
        let overwrites = self.overwrites.load(Ordering::Acquire);
        self.work.flushes.fetch_add(1, Ordering::Relaxed);
        env.make_durable(&self.device.disk).await?;
        self.judge()?;
        self.covered.fetch_max(overwrites, Ordering::AcqRel);
        self.uncovered.lock().cover(ended);
        Ok(())
    }

    /// Writes durably what may lead to all that was written before: after a flush.
    ///
    /// # Errors
    /// The flush or the write failed.
    pub async fn commit(&self, env: &Env, sector: u64, bytes: &[u8]) -> IoResult {
        mutants::step("bcache: flush before an entry", (), self.flush(env)).await?;
        self.write_entry(env, sector, bytes, Flags::FUA).await
    }

    /// Writes what may lead to all that was written before: the caller has flushed the device. It
    /// is durable at the end if it has FUA, otherwise after the next flush. On a device that is not
    /// volatile FUA is left out: the write would pass the gate of such writes, and writes of
    /// clients overtake it. If the drive's volatile cache is switched on before the write ends, the
    /// writer flushes the device.
    ///
    /// # Errors
    /// The write failed.
    pub async fn write_entry(&self, env: &Env, sector: u64, bytes: &[u8], fua: Flags) -> IoResult {
        let number = self.uncovered.lock().begin(sector, bytes);
        count_written(&self.work.metadata, bytes.len() as u64);
        let fua = fua & mutants::fua("bcache: FUA of an entry");
        let sent = if self.disk().nature().volatile { fua } else { Flags::empty() };
        env.io(self.disk(), write_io(env, sector, bytes).with(sent)).await?;
        if sent != fua {
            env.make_durable(self.disk()).await?;
        }
        match fua.contains(Flags::FUA) {
            true => self.uncovered.lock().end_durable(number),
            false => self.uncovered.lock().end(number..number + 1),
        }
        self.judge()
    }
}

/// So many bytes, of whole sectors, are written.
pub(in super::super) fn count_written(sectors: &AtomicU64, bytes: u64) {
    sectors.fetch_add(SectorCount::of_bytes(bytes).0, Ordering::Relaxed);
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
    env: &'a Env,
    device: &'a Device,
    /// What is read is written again (D3).
    writes_again: bool,
}

impl<'a> DiskSource<'a> {
    pub fn new(env: &'a Env, device: &'a Device, writes_again: bool) -> DiskSource<'a> {
        DiskSource { env, device, writes_again }
    }
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
            let mut result = reading.await;
            if result.is_ok() && self.writes_again {
                let write = Io::write(wide, segs.clone()).with(Flags::META);
                result = self.env.io(&self.device.disk, write).await;
            }
            let bytes = result.map_err(|error| error.to_string());
            read.push(bytes.map(|()| segs.slice(skip, range.to_bytes() as usize).to_vec()));
        }
        Ok(read)
    }
}
