//! [`GuestMemory`]: the memory that a driver shares, mapped into this process.
//!
//! A region is a run of bytes with two names: its addresses as the guest knows them, which
//! descriptors of requests use, and those of the process at the other end, which the addresses of
//! rings use.
//!
//! M1. Only bytes that a region names are touched: an address and a length that no region holds as
//!     a whole give nothing.
//! M2. No reference to these bytes is made: the guest changes them at any time. They are copied, or
//!     read and written by atomic operations.
//! M3. A region stays mapped while a window, a buffer or a request names it.
//! M4. At the time of the mapping the file had all the bytes. A file that shrinks afterwards is the
//!     peer's breach: the bytes that are gone read as zeros, and [`Buffers::is_whole`] says so.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use cairn_block::{Buf, Segs};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::truncated::Guarded;
use super::wire::{Breach, RegionFacts};

/// The most regions of a driver's memory.
pub(super) const REGIONS_MAX: usize = 64;

/// The unit in which files of huge pages are mapped, if they do not say.
const PAGE_BYTES: u64 = 4096;

/// A mapped file.
struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
    /// None only while it is dropped.
    guard: Option<Guarded>,
}

// SAFETY: the memory is shared with another process anyway; M2 covers other threads, too.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `file` from its start to the end of a region.
    fn new(file: &OwnedFd, facts: &RegionFacts) -> Result<Mapping, Breach> {
        let refused = |found: String| {
            Breach::field("region of memory", found, "a file of memory with all of its bytes")
        };
        let end = facts.offset.checked_add(facts.bytes);
        let stat = rustix::fs::fstat(file).map_err(|error| refused(error.to_string()))?;
        let length = u64::try_from(stat.st_size).unwrap_or(0);
        let Some(end) = end.filter(|end| facts.bytes > 0 && *end <= length) else {
            let RegionFacts { bytes, offset, .. } = facts;
            return Err(refused(format!("{bytes} bytes from {offset} of a file of {length}")));
        };
        let page = u64::try_from(stat.st_blksize).unwrap_or(0).max(PAGE_BYTES);
        let bytes = end.next_multiple_of(page) as usize;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping at an address of the system's choice.
        let base = unsafe { mmap(std::ptr::null_mut(), bytes, protection, flags, file, 0) };
        let base = base.map_err(|error| refused(error.to_string()))?;
        let base =
            NonNull::new(base.cast::<u8>()).ok_or_else(|| refused("address 0".to_owned()))?;
        let guard = Guarded::new(base.as_ptr().addr(), bytes, page as usize);
        let mapping = Mapping { base, bytes, guard };
        match mapping.guard {
            Some(_) => Ok(mapping),
            None => Err(refused("too many of them".to_owned())),
        }
    }

    /// The byte at `at` of the region that was mapped.
    fn pointer(&self, region: &RegionFacts, at: usize) -> NonNull<u8> {
        // SAFETY: `at` lies within the region, and the region within its mapping.
        unsafe { self.base.add(region.offset as usize + at) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        drop(self.guard.take());
        // SAFETY: mapped in `new`; windows and buffers hold the mapping, so none is left (M3).
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

#[derive(Clone)]
struct Region {
    facts: RegionFacts,
    mapping: Arc<Mapping>,
    /// For another process.
    file: Arc<OwnedFd>,
}

impl Region {
    /// Where `bytes` bytes from `address` are in the region, if it names them so.
    fn find(&self, begin: u64, address: u64, bytes: usize) -> Option<usize> {
        let at = address.checked_sub(begin)?;
        let fits = at <= self.facts.bytes && bytes as u64 <= self.facts.bytes - at;
        fits.then_some(at as usize)
    }

    fn pointer(&self, at: usize) -> NonNull<u8> {
        self.mapping.pointer(&self.facts, at)
    }
}

/// See the module's description.
#[derive(Clone, Default)]
pub(super) struct GuestMemory {
    regions: Vec<Region>,
}

impl GuestMemory {
    /// Maps one more region.
    pub(super) fn add(&mut self, facts: RegionFacts, file: Arc<OwnedFd>) -> Result<(), Breach> {
        let RegionFacts { guest, user, bytes, .. } = facts;
        if guest.checked_add(bytes).is_none() || user.checked_add(bytes).is_none() {
            return Err(Breach::field("region of memory", guest, "an end below 2^64"));
        }
        if self.regions.len() == REGIONS_MAX {
            return Err(Breach::field("regions of memory", "one more", "at most 64"));
        }
        let overlaps = |a: u64, b: u64, length: u64| a < b + length && b < a + bytes;
        let is_taken = |other: &Region| {
            overlaps(guest, other.facts.guest, other.facts.bytes)
                || overlaps(user, other.facts.user, other.facts.bytes)
        };
        if self.regions.iter().any(is_taken) {
            return Err(Breach::field("region of memory", guest, "addresses of no other region"));
        }
        let mapping = Arc::new(Mapping::new(&file, &facts)?);
        self.regions.push(Region { facts, mapping, file });
        Ok(())
    }

    /// The regions, with their files.
    pub(super) fn regions(&self) -> impl Iterator<Item = (RegionFacts, &Arc<OwnedFd>)> {
        self.regions.iter().map(|region| (region.facts, &region.file))
    }

    /// Forgets a region.
    pub(super) fn remove(&mut self, facts: RegionFacts) -> Result<(), Breach> {
        let is_it = |region: &Region| {
            let known = region.facts;
            (known.guest, known.user, known.bytes) == (facts.guest, facts.user, facts.bytes)
        };
        let Some(index) = self.regions.iter().position(is_it) else {
            return Err(Breach::field("region of memory", facts.guest, "one that was added"));
        };
        self.regions.remove(index);
        Ok(())
    }

    /// A window on `bytes` bytes at an address of the process at the other end, which must be a
    /// multiple of `align`.
    pub(super) fn window(&self, user: u64, bytes: usize, align: usize) -> Option<Window> {
        let here = |region: &Region| {
            let at = region.find(region.facts.user, user, bytes)?;
            let (base, mapping) = (region.pointer(at), region.mapping.clone());
            let is_aligned = base.as_ptr().addr().is_multiple_of(align);
            is_aligned.then_some(Window { base, bytes, mapping })
        };
        self.regions.iter().find_map(here)
    }

    /// The memory as requests of one reactor use it.
    pub(super) fn buffers(&self) -> Buffers {
        let buffer = |region: &Region| {
            let RegionFacts { guest, bytes, .. } = region.facts;
            let owner: Arc<dyn Any + Send + Sync> = region.mapping.clone();
            let base = region.pointer(0);
            // SAFETY: the mapping has the region's bytes, readable and writable, until its last
            // owner is gone; files read as initialised; M2.
            let buf = unsafe { Buf::foreign(owner, base, bytes as usize) };
            Buffer { guest, bytes, base, buf }
        };
        let mut regions: Vec<Buffer> = self.regions.iter().map(buffer).collect();
        regions.sort_unstable_by_key(|region| region.guest);
        let mappings = self.regions.iter().map(|region| region.mapping.clone()).collect();
        Buffers { regions, mappings }
    }
}

/// A run of shared bytes of a fixed place: a part of a ring.
pub(super) struct Window {
    base: NonNull<u8>,
    bytes: usize,
    mapping: Arc<Mapping>,
}

// SAFETY: as for the mapping, which it holds.
unsafe impl Send for Window {}

impl Window {
    /// A window on all of `bytes` bytes from `offset` of a file.
    pub(super) fn of_file(file: &OwnedFd, offset: u64, bytes: u64) -> Result<Window, Breach> {
        let facts = RegionFacts { guest: 0, user: 0, bytes, offset };
        let mapping = Arc::new(Mapping::new(file, &facts)?);
        Ok(Window { base: mapping.pointer(&facts, 0), bytes: bytes as usize, mapping })
    }

    /// A window on a part of it; none if it is not inside, or not at a multiple of eight.
    pub(super) fn slice(&self, at: usize, bytes: usize) -> Option<Window> {
        let fits = at <= self.bytes && bytes <= self.bytes - at;
        let base = NonNull::new(self.pointer(fits.then_some(at)?, bytes))?;
        let is_aligned = base.as_ptr().addr().is_multiple_of(8);
        is_aligned.then(|| Window { base, bytes, mapping: self.mapping.clone() })
    }

    fn pointer(&self, at: usize, bytes: usize) -> *mut u8 {
        assert!(at <= self.bytes && bytes <= self.bytes - at, "M1");
        // SAFETY: within the window (asserted).
        unsafe { self.base.as_ptr().add(at) }
    }

    /// A copy of bytes.
    pub(super) fn load<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut copy = [0; N];
        // SAFETY: `pointer` checked the bounds; `copy` is a reference of our own (M2).
        unsafe { std::ptr::copy_nonoverlapping(self.pointer(at, N), copy.as_mut_ptr(), N) };
        copy
    }

    /// Writes bytes.
    pub(super) fn store(&self, at: usize, bytes: &[u8]) {
        #[cfg(test)]
        if !stores::spend() {
            return;
        }
        let to = self.pointer(at, bytes.len());
        // SAFETY: as in `load`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    fn atomic(&self, at: usize) -> &AtomicU16 {
        let at = self.pointer(at, 2).cast::<u16>();
        assert!(at.is_aligned());
        // SAFETY: in bounds and aligned (asserted), mapped as long as the window (M3), and read and
        // written by atomic operations only.
        unsafe { AtomicU16::from_ptr(at) }
    }

    /// The number at an even place. What the driver wrote before it is visible afterwards.
    pub(super) fn load_u16(&self, at: usize) -> u16 {
        u16::from_le(self.atomic(at).load(Ordering::Acquire))
    }

    /// Writes the number at an even place. What was written before it is visible with it.
    pub(super) fn store_u16(&self, at: usize, value: u16) {
        #[cfg(test)]
        if !stores::spend() {
            return;
        }
        self.atomic(at).store(value.to_le(), Ordering::Release);
    }

    /// Writes the number at a multiple of eight at once. What was written before it is visible with
    /// it.
    pub(super) fn store_u64(&self, at: usize, value: u64) {
        #[cfg(test)]
        if !stores::spend() {
            return;
        }
        let at = self.pointer(at, 8).cast::<u64>();
        assert!(at.is_aligned());
        // SAFETY: in bounds and aligned (asserted), mapped as long as the window (M3). Bytes that
        // are read and written otherwise, too, are the peer's (M2).
        unsafe { AtomicU64::from_ptr(at) }.store(value.to_le(), Ordering::Release);
    }
}

struct Buffer {
    guest: u64,
    bytes: u64,
    base: NonNull<u8>,
    buf: Buf,
}

/// Bytes of one region: a part of what a descriptor names, judged. It is of the [`Buffers`] that
/// gave it, and holds nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    region: u32,
    pub(super) bytes: u32,
    at: usize,
}

impl Piece {
    /// Without its first bytes.
    pub(super) fn skip(self, bytes: u32) -> Piece {
        Piece { bytes: self.bytes - bytes, at: self.at + bytes as usize, ..self }
    }

    /// Its first bytes.
    pub(super) fn first(self, bytes: u32) -> Piece {
        Piece { bytes: self.bytes.min(bytes), ..self }
    }
}

/// The memory of a guest as requests of one reactor use it.
#[derive(Default)]
pub(super) struct Buffers {
    /// By their addresses.
    regions: Vec<Buffer>,
    mappings: Vec<Arc<Mapping>>,
}

impl Buffers {
    /// False once an access has met the end of a file that was shortened. (M4)
    pub(super) fn is_whole(&self) -> bool {
        let is_truncated =
            |mapping: &Arc<Mapping>| mapping.guard.as_ref().is_some_and(Guarded::is_truncated);
        !self.mappings.iter().any(is_truncated)
    }

    /// Calls `each` with the pieces of `bytes` bytes at an address of the guest, which may lie in
    /// adjacent regions. False if some of them are in no region. (M1)
    pub(super) fn find(&self, mut guest: u64, bytes: u32, mut each: impl FnMut(Piece)) -> bool {
        let mut left = u64::from(bytes);
        let after = self.regions.partition_point(|region| region.guest <= guest);
        let first = after.saturating_sub(1);
        let mut regions = self.regions[first..].iter().zip(first as u32..);
        while left > 0 {
            let Some((region, index)) = regions.next() else { return false };
            let Some(at) = guest.checked_sub(region.guest).filter(|at| *at < region.bytes) else {
                return false;
            };
            let take = left.min(region.bytes - at);
            each(Piece { region: index, bytes: take as u32, at: at as usize });
            (left, guest) = (left - take, guest + take);
        }
        true
    }

    /// A piece as requests name memory.
    pub(super) fn push(&self, segs: &mut Segs, piece: Piece) {
        let region = &self.regions[piece.region as usize];
        segs.push(region.buf.clone(), piece.at, piece.bytes as usize);
    }

    /// Copies a piece.
    pub(super) fn load(&self, piece: Piece, out: &mut [u8]) {
        let from = self.pointer(piece, out.len());
        // SAFETY: within its region, which is mapped (M3); `out` is a reference, so it does not
        // overlap what the guest shares (M2).
        unsafe { std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) };
    }

    /// Writes the first byte of a piece.
    pub(super) fn store(&self, piece: Piece, byte: u8) {
        // SAFETY: as in `load`.
        unsafe { self.pointer(piece, 1).write(byte) };
    }

    fn pointer(&self, piece: Piece, bytes: usize) -> *mut u8 {
        let region = &self.regions[piece.region as usize];
        assert!(bytes as u64 <= region.bytes && piece.at as u64 <= region.bytes - bytes as u64);
        // SAFETY: within the region (asserted).
        unsafe { region.base.as_ptr().add(piece.at) }
    }
}

/// The end of a life after so many stores: the later ones do nothing.
#[cfg(test)]
pub(super) mod stores {
    use std::cell::Cell;

    use super::Window;

    thread_local! {
        static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
    }

    pub(super) fn spend() -> bool {
        match LEFT.get() {
            Some(left) => {
                LEFT.set(Some(left.saturating_sub(1)));
                left > 0
            }
            None => true,
        }
    }

    /// True while the life goes on.
    pub(crate) fn are_left() -> bool {
        LEFT.get() != Some(0)
    }

    /// Runs `live` with so many stores. True if it wanted at least as many.
    pub(crate) fn with(left: usize, live: impl FnOnce()) -> bool {
        LEFT.set(Some(left));
        live();
        LEFT.take() == Some(0)
    }

    impl Window {
        /// The same window for another life.
        pub(crate) fn part(&self) -> Window {
            self.slice(0, self.bytes).expect("all of it")
        }
    }
}
