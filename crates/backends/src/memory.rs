//! [`MemoryDisk`]: a disk in RAM that all reactors share and that completes at once.
//!
//! The contents are one anonymous mapping, so sectors that were never written take no memory. It is
//! divided into regions of 64 KiB. Every access to a region's bytes or to its bit in `written`
//! happens under the lock of its stripe, which is taken for one region at a time. Hence overlapping
//! requests are sound and a sector is never torn; requests that overlap in time may interleave by
//! region, as on any drive.
//!
//! A copy between memory disks holds the stripes of both sides, taken in the order of their
//! addresses. No other operation holds two.
//!
//! Huge pages are advised for a disk that fits in half of the machine's memory. A larger disk can
//! only be meant to stay mostly empty; there, a huge page per scattered write would waste memory.
//!
//! Invariant: a region whose bit is clear reads as zero.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use cairn_block::sync::{Mutex, MutexGuard};
use cairn_block::{
    ConfigError, ConfigKind, CopyError, Disk, Env, Extent, ExtentKind, Flow, IoError, LocalFuture,
    Op, Request, Sector, SectorCount, SectorRange, Segs,
};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

const REGION_BYTES: usize = 64 << 10;
const STRIPES: usize = 64;

/// The most extents of one answer.
const EXTENTS_MAX: usize = 1024;
const HUGE_PAGE_BYTES: usize = 2 << 20;
const REGIONS_PER_WORD: usize = 64;

/// A disk in memory.
pub struct MemoryDisk {
    memory: Mapping,
    /// One bit per region, 64 to a word.
    written: Vec<AtomicU64>,
    stripes: Box<[Stripe; STRIPES]>,
    sectors: SectorCount,
    name: String,
}

/// A lock on a cache line of its own: reactors that use different stripes share no line.
#[derive(Default)]
#[repr(align(64))]
struct Stripe(Mutex<()>);

/// An anonymous mapping; only this disk refers to it.
struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
    /// The whole mapping, longer than `bytes` so that `base` can be aligned.
    whole: (NonNull<u8>, usize),
}

// SAFETY: the mapping belongs to no thread; MemoryDisk orders all access to it by its stripes.
unsafe impl Send for Mapping {}
// SAFETY: see above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(bytes: usize) -> rustix::io::Result<Mapping> {
        let (protection, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        let room = bytes.checked_add(HUGE_PAGE_BYTES).ok_or(rustix::io::Errno::NOMEM)?;
        // SAFETY: a fresh mapping at an address of the system's choice.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), room, protection, flags)? };
        let start = start.cast::<u8>();
        // SAFETY: less than a huge page from the start, which is in the mapping.
        let base = unsafe { start.add(start.align_offset(HUGE_PAGE_BYTES)) };
        if bytes as u64 <= memory_bytes() / 2 {
            // The advice may fail: without huge pages the disk works, only slower.
            // SAFETY: advice on our own mapping that changes no contents.
            let _ = unsafe { madvise(base.cast(), bytes, Advice::LinuxHugepage) };
        }
        let never_null = "a mapping is never at address zero";
        let (base, start) = (NonNull::new(base), NonNull::new(start));
        let (base, start) = (base.expect(never_null), start.expect(never_null));
        Ok(Mapping { base, bytes, whole: (start, room) })
    }

    /// The address of byte `offset`.
    fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.bytes);
        // SAFETY: within the mapping, or one past its end (asserted).
        unsafe { self.base.as_ptr().add(offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, and its only owner is going away.
        let unmapped = unsafe { munmap(self.whole.0.as_ptr().cast(), self.whole.1) };
        debug_assert!(unmapped.is_ok());
    }
}

/// The memory of this machine.
fn memory_bytes() -> u64 {
    let system = rustix::system::sysinfo();
    system.totalram as u64 * u64::from(system.mem_unit)
}

/// The part of a request that lies in one region.
#[derive(Clone, Copy)]
struct Piece {
    region: usize,
    /// In bytes on the disk.
    offset: usize,
    len: usize,
    /// In bytes from the start of the request.
    at: usize,
}

/// The pieces of `range`, in order.
fn pieces(range: SectorRange) -> impl Iterator<Item = Piece> {
    let (start, bytes) = (range.start.to_bytes() as usize, range.to_bytes() as usize);
    let mut at = 0;
    std::iter::from_fn(move || {
        let offset = start + at;
        let len = (REGION_BYTES - offset % REGION_BYTES).min(bytes - at);
        let piece = Piece { region: offset / REGION_BYTES, offset, len, at };
        at += len;
        (len > 0).then_some(piece)
    })
}

impl MemoryDisk {
    /// A disk of zeros.
    ///
    /// # Errors
    /// The system refuses that much address space.
    pub fn new(sectors: SectorCount) -> Result<MemoryDisk, ConfigError> {
        let name = format!("mem:{sectors}s");
        let refused = |source| {
            let detail = format!("size: found {sectors} sectors, expected what memory can hold");
            ConfigError::new(ConfigKind::System, &name, detail).with_source(source)
        };
        let bytes = sectors.0.checked_mul(cairn_block::SECTOR_BYTES);
        let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok());
        let bytes = bytes.and_then(|bytes| bytes.max(1).checked_next_multiple_of(REGION_BYTES));
        let bytes = bytes.ok_or_else(|| refused(rustix::io::Errno::NOMEM))?;
        let memory = Mapping::new(bytes).map_err(refused)?;
        let words = (bytes / REGION_BYTES).div_ceil(REGIONS_PER_WORD);
        let written = (0..words).map(|_| AtomicU64::new(0)).collect();
        let stripes = Box::new(std::array::from_fn(|_| Stripe::default()));
        Ok(MemoryDisk { memory, written, stripes, sectors, name })
    }

    /// The same disk with the display name `name`.
    #[must_use]
    pub fn named(self, name: &str) -> MemoryDisk {
        MemoryDisk { name: name.to_owned(), ..self }
    }

    fn lock(&self, region: usize) -> MutexGuard<'_, ()> {
        self.stripes[region % STRIPES].0.lock()
    }

    fn bit(&self, region: usize) -> (&AtomicU64, u64) {
        (&self.written[region / REGIONS_PER_WORD], 1 << (region % REGIONS_PER_WORD))
    }

    fn is_written(&self, region: usize) -> bool {
        let (word, bit) = self.bit(region);
        word.load(Ordering::Relaxed) & bit != 0
    }

    fn mark_written(&self, region: usize) {
        if !self.is_written(region) {
            let (word, bit) = self.bit(region);
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    fn read(&self, range: SectorRange, segs: &Segs) {
        for piece in pieces(range) {
            let _lock = self.lock(piece.region);
            if !self.is_written(piece.region) {
                segs.zero(piece.at, piece.len);
                continue;
            }
            let mut from = piece.offset;
            for (out, len) in segs.iovecs_of(piece.at, piece.len) {
                // SAFETY: `len` bytes from `from` lie in the region whose stripe is locked. The
                // request holds its segments, whose bytes are the disk's until it is done; the
                // mapping never overlaps them. A guest may change them at any time, so they are
                // named by address alone.
                unsafe { std::ptr::copy_nonoverlapping(self.memory.at(from), out, len) };
                from += len;
            }
        }
    }

    fn write(&self, range: SectorRange, segs: &Segs) {
        for piece in pieces(range) {
            let _lock = self.lock(piece.region);
            self.mark_written(piece.region);
            let mut to = piece.offset;
            for (bytes, len) in segs.iovecs_of(piece.at, piece.len) {
                // SAFETY: as in `read`.
                unsafe { std::ptr::copy_nonoverlapping(bytes, self.memory.at(to), len) };
                to += len;
            }
        }
    }

    /// Copies a range of `source`, which may be this disk but must not overlap the destination.
    fn copy(&self, source: &MemoryDisk, from: SectorRange, to: Sector) {
        for read in pieces(from) {
            let start = to + SectorCount::of_bytes(read.at as u64);
            let count = SectorCount::of_bytes(read.len as u64);
            for write in pieces(SectorRange::new(start, count)) {
                let _locks = lock_both((source, read.region), (self, write.region));
                let is_there = source.is_written(read.region);
                if !is_there && !self.is_written(write.region) {
                    continue;
                }
                self.mark_written(write.region);
                let target = self.memory.at(write.offset);
                let bytes = source.memory.at(read.offset + write.at);
                // SAFETY: `write.len` bytes of a region of each disk, whose stripes are locked;
                // the ranges do not overlap.
                unsafe {
                    match is_there {
                        true => std::ptr::copy_nonoverlapping(bytes, target, write.len),
                        false => target.write_bytes(0, write.len),
                    }
                }
            }
        }
    }

    /// Makes the range read as zero; returns the memory of whole regions to the system.
    fn zero(&self, range: SectorRange) -> Result<(), IoError> {
        for piece in pieces(range) {
            // A region that was never written reads as zero already; no lock is needed to skip it.
            if !self.is_written(piece.region) {
                continue;
            }
            let _lock = self.lock(piece.region);
            let start = self.memory.at(piece.offset);
            if piece.len < REGION_BYTES {
                // SAFETY: the bytes lie in the region whose stripe is locked.
                unsafe { start.write_bytes(0, piece.len) };
                continue;
            }
            // SAFETY: a whole region of our own anonymous mapping, its stripe locked; the
            // pages read as zero afterwards.
            unsafe { madvise(start.cast(), REGION_BYTES, Advice::LinuxDontNeed) }
                .map_err(|error| IoError::from_errno(error.raw_os_error()))?;
            let (word, bit) = self.bit(piece.region);
            word.fetch_and(!bit, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Locks the stripes of two regions, which may be one, in the order of their addresses.
fn lock_both<'a>(
    (disk, region): (&'a MemoryDisk, usize),
    (other, other_region): (&'a MemoryDisk, usize),
) -> (MutexGuard<'a, ()>, Option<MutexGuard<'a, ()>>) {
    let mut stripes = [&disk.stripes[region % STRIPES], &other.stripes[other_region % STRIPES]];
    stripes.sort_unstable_by_key(|stripe| std::ptr::from_ref(*stripe));
    let [first, second] = stripes;
    let lock = first.0.lock();
    (lock, (!std::ptr::eq(first, second)).then(|| second.0.lock()))
}

impl Disk for MemoryDisk {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn sectors(&self) -> SectorCount {
        self.sectors
    }

    fn submit(&self, _env: &Env, request: &mut Request) -> Flow {
        match request.op {
            Op::Read => self.read(request.range, &request.segs),
            Op::Write => self.write(request.range, &request.segs),
            Op::Flush => {}
            Op::Discard | Op::WriteZeroes => {
                if let Err(error) = self.zero(request.range) {
                    return Flow::Failed(error);
                }
            }
        }
        Flow::Done
    }

    fn copy_from(
        &self,
        _env: &Env,
        source: &dyn Disk,
        from: SectorRange,
        to: Sector,
    ) -> Option<Result<(), CopyError>> {
        let source: &MemoryDisk = source.as_any()?.downcast_ref()?;
        if std::ptr::eq(self, source) && from.overlaps(SectorRange::new(to, from.count)) {
            return None;
        }
        self.copy(source, from, to);
        Some(Ok(()))
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn extents<'a>(
        &'a self,
        _env: &'a Env,
        range: SectorRange,
    ) -> LocalFuture<'a, Result<Vec<Extent>, IoError>> {
        let mut extents: Vec<Extent> = Vec::new();
        for piece in pieces(range) {
            let written = self.is_written(piece.region);
            let kind = if written { ExtentKind::Data } else { ExtentKind::Hole };
            let count = Sector::of_byte((piece.offset + piece.len) as u64)
                - Sector::of_byte(piece.offset as u64);
            let is_full = extents.len() == EXTENTS_MAX;
            match extents.last_mut() {
                Some(last) if last.kind == kind => last.count += count,
                // A caller that wants to know of more asks again.
                _ if is_full => break,
                _ => extents.push(Extent { count, kind }),
            }
        }
        Box::pin(std::future::ready(Ok(extents)))
    }
}
