//! [`Span`]: a range of memory, aligned to and advised for huge pages, from which a pool cuts its
//! buffers.
//!
//! Promises: zeroed when new; its address never changes; freed with its last handle. It never
//! accesses the bytes: they belong to the regions that are cut from it.

use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// The size of a huge page on the machines at hand, in bytes. Elsewhere it is only an alignment.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// See the module's description.
pub(super) struct Span {
    base: NonNull<u8>,
    bytes: usize,
}

impl Span {
    /// A span of whole huge pages, at least `bytes` long; none if the system refuses.
    pub(super) fn new(bytes: usize) -> Option<Span> {
        let bytes = bytes.next_multiple_of(HUGE_PAGE_BYTES);
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        let mapped = bytes + HUGE_PAGE_BYTES;
        // SAFETY: a fresh mapping at an address of the system's choice.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), mapped, protection, flags) };
        let start = start.ok()?.cast::<u8>();
        let head = start.align_offset(HUGE_PAGE_BYTES);
        debug_assert!(head < HUGE_PAGE_BYTES);
        // SAFETY: `head` lies inside the mapping.
        let base = unsafe { start.add(head) };
        // SAFETY: both ends belong to the mapping that was just made, lie outside of what is kept,
        // and nobody knows them.
        unsafe {
            unmap(start, head);
            unmap(base.add(bytes), mapped - head - bytes);
        }
        // Without huge pages the memory is as good, only slower.
        // SAFETY: advice on our own mapping that changes no contents.
        let _ = unsafe { madvise(base.cast(), bytes, Advice::LinuxHugepage) };
        Some(Span { base: NonNull::new(base)?, bytes })
    }

    /// Its length.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The address of the byte at `offset`.
    pub(super) fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset < self.bytes);
        // SAFETY: within the mapping (asserted).
        unsafe { self.base.add(offset) }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`; the regions hold the span, so none of them is left.
        unsafe { unmap(self.base.as_ptr(), self.bytes) };
    }
}

/// Gives a part of a mapping back.
///
/// # Safety
/// Nobody uses it any more.
unsafe fn unmap(start: *mut u8, bytes: usize) {
    if bytes > 0 {
        // SAFETY: the caller's promise.
        let unmapped = unsafe { munmap(start.cast(), bytes) };
        debug_assert!(unmapped.is_ok());
    }
}
