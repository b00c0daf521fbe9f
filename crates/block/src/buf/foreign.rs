//! Foreign memory: buffers over memory of another owner, such as a virtual machine's, which the
//! guest may change at any time, also while a request uses it.
//!
//! F1. No reference to foreign bytes is ever made: a `&[u8]` promises that nothing changes the
//!     bytes. They are copied, at most [`STAGE_BYTES`] at a time, and only the copy is read. So a
//!     decision about data (a zero test) and its use see one value of each byte they copy together.
//! F2. A buffer holds its owner, and a request its buffers. So the memory stays mapped until the
//!     last request that names it has ended, also where the kernel or a helper thread reads and
//!     writes it by address ([`super::Segs::iovecs`]).
//!
//! A guest that writes to its memory while a request reads it gets any mixture of the old and the
//! new bytes, as from any drive.

use std::any::Any;
use std::cell::Cell;
use std::ptr::NonNull;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use super::{Buf, Memory, Region};

/// The value of [`Region::borrows`] for foreign memory: it can not be borrowed.
pub(super) const FOREIGN: isize = isize::MIN;

/// How much is copied at a time, onto the stack.
const STAGE_BYTES: usize = 4096;

impl Buf {
    /// A buffer over the `bytes` bytes at `base`, which `owner` keeps mapped; to be used through
    /// [`super::Segs`] alone. One serves all requests of a reactor: its segments allocate nothing.
    ///
    /// # Safety
    /// Until `owner` is dropped, the bytes are mapped, initialised, readable and writable, and
    /// nothing in this process holds a reference to them.
    pub unsafe fn foreign(
        owner: Arc<dyn Any + Send + Sync>,
        base: NonNull<u8>,
        bytes: usize,
    ) -> Buf {
        Buf(Some(Rc::new(Region {
            ptr: base,
            capacity: bytes,
            class: None,
            borrows: Cell::new(FOREIGN),
            pool: Weak::new(),
            memory: Memory::Foreign { _owner: owner },
        })))
    }

    /// True if [`Buf::read`] works: the memory is not foreign (nor borrowed for writing, which is a
    /// bug that [`Buf::address`] finds).
    #[inline(always)]
    pub(super) fn lends(&self) -> bool {
        self.region().borrows.get() >= 0
    }

    /// Copies foreign bytes from `offset` into `out`.
    pub(super) fn load(&self, offset: usize, out: &mut [u8]) {
        let from = self.address(offset, out.len());
        // SAFETY: `address` checked the bounds; `foreign` promises the memory (F2); `out` is a
        // reference, so it does not overlap foreign memory (F1).
        unsafe { std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) };
    }

    /// Copies `bytes` into foreign memory at `offset`.
    pub(super) fn store(&self, offset: usize, bytes: &[u8]) {
        let to = self.address(offset, bytes.len());
        // SAFETY: as in `load`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Sets foreign bytes to zero.
    pub(super) fn clear(&self, offset: usize, len: usize) {
        let at = self.address(offset, len);
        // SAFETY: as in `load`.
        unsafe { at.write_bytes(0, len) };
    }

    /// The address of foreign bytes.
    fn address(&self, offset: usize, len: usize) -> *mut u8 {
        let region = self.region();
        assert_eq!(region.borrows.get(), FOREIGN, "buffer is borrowed");
        assert!(offset <= region.capacity && len <= region.capacity - offset);
        // SAFETY: within the region (asserted).
        unsafe { region.ptr.as_ptr().add(offset) }
    }

    /// Runs `read` on copies of `len` foreign bytes from `offset`, in order, until it returns
    /// false. Returns whether it never did.
    #[cold]
    pub(super) fn read_staged(
        &self,
        offset: usize,
        len: usize,
        mut read: impl FnMut(&[u8]) -> bool,
    ) -> bool {
        let mut stage = [0; STAGE_BYTES];
        (0..len).step_by(STAGE_BYTES).all(|at| {
            let piece = &mut stage[..STAGE_BYTES.min(len - at)];
            self.load(offset + at, piece);
            read(piece)
        })
    }

    /// Runs `write` on copies of `len` foreign bytes from `offset`, in order, and stores each copy.
    #[cold]
    pub(super) fn write_staged(&self, offset: usize, len: usize, mut write: impl FnMut(&mut [u8])) {
        let mut stage = [0; STAGE_BYTES];
        for at in (0..len).step_by(STAGE_BYTES) {
            let piece = &mut stage[..STAGE_BYTES.min(len - at)];
            self.load(offset + at, piece);
            write(piece);
            self.store(offset + at, piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::UnsafeCell;
    use std::ptr::NonNull;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::STAGE_BYTES;
    use crate::buf::{Buf, BufPool, Segs};

    const GUEST_BYTES: usize = 3 * STAGE_BYTES;

    /// Memory as another program would own it.
    struct Guest {
        bytes: UnsafeCell<[u8; GUEST_BYTES]>,
        unmapped: Arc<AtomicBool>,
    }

    // SAFETY: the tests touch it from one thread.
    unsafe impl Send for Guest {}
    // SAFETY: as above.
    unsafe impl Sync for Guest {}

    impl Drop for Guest {
        fn drop(&mut self) {
            self.unmapped.store(true, Ordering::Relaxed);
        }
    }

    fn guest() -> (Buf, Arc<AtomicBool>) {
        let (bytes, unmapped) = (UnsafeCell::new([0; GUEST_BYTES]), Arc::default());
        let guest = Arc::new(Guest { bytes, unmapped });
        let (base, unmapped) = (guest.bytes.get().cast(), guest.unmapped.clone());
        let base = NonNull::new(base).expect("an allocation is never at address zero");
        // SAFETY: the cell lives as long as the owner, and only its raw pointer is used.
        (unsafe { Buf::foreign(guest, base, GUEST_BYTES) }, unmapped)
    }

    /// Pieces in front of, across, and behind the length of a copy, with pool memory in between.
    fn mixed(guest: &Buf, pool: &BufPool) -> Segs {
        let mut segs = Segs::of(guest, 5, 700);
        segs.push(pool.alloc(100), 3, 90);
        segs.push(guest.clone(), 1000, 2 * STAGE_BYTES + 1);
        segs
    }

    #[test]
    fn foreign_memory_keeps_what_is_copied_in_across_pieces() {
        let (pool, (guest, _)) = (BufPool::default(), guest());
        let segs = mixed(&guest, &pool);
        let data: Vec<u8> = (0..segs.bytes()).map(|at| (at % 251) as u8 + 1).collect();
        segs.copy_in(0, &data);
        assert_eq!(segs.to_vec(), data);
        assert_eq!(segs.slice(690, 5000).to_vec(), data[690..5690]);
        let mut seen = Vec::new();
        segs.for_each(1, data.len() - 1, |bytes| seen.extend_from_slice(bytes));
        assert_eq!(seen, data[1..]);
        segs.for_each_mut(2, data.len() - 4, |bytes| bytes.iter_mut().for_each(|byte| *byte ^= 1));
        let flipped: Vec<u8> = data[2..data.len() - 2].iter().map(|byte| byte ^ 1).collect();
        assert_eq!(segs.slice(2, data.len() - 4).to_vec(), flipped);
        assert_eq!(
            (segs.to_vec()[1], segs.to_vec()[data.len() - 1]),
            (data[1], data[data.len() - 1])
        );
    }

    #[test]
    fn one_byte_anywhere_in_foreign_memory_is_no_zero() {
        let (pool, (guest, _)) = (BufPool::default(), guest());
        let segs = mixed(&guest, &pool);
        segs.copy_in(0, &vec![9; segs.bytes()]);
        segs.zero(0, segs.bytes());
        assert!(segs.is_zero(0, segs.bytes()));
        for at in [0, 699, 700, 789, 790, 790 + STAGE_BYTES, segs.bytes() - 1] {
            segs.copy_in(at, &[1]);
            assert!(!segs.is_zero(0, segs.bytes()), "{at}");
            assert!(segs.is_zero(0, at) && segs.is_zero(at + 1, segs.bytes() - at - 1), "{at}");
            segs.copy_in(at, &[0]);
        }
        let alone = Segs::of(&guest, 0, GUEST_BYTES);
        assert!(alone.is_zero(8, GUEST_BYTES - 8));
        alone.copy_in(GUEST_BYTES - 1, &[1]);
        assert!(!alone.is_zero(8, GUEST_BYTES - 8));
    }

    #[test]
    fn last_segment_over_foreign_memory_releases_its_owner() {
        let (guest, unmapped) = guest();
        let segs = Segs::of(&guest, 0, 10);
        drop(guest);
        let part = segs.slice(2, 3);
        drop(segs);
        assert!(!unmapped.load(Ordering::Relaxed));
        part.copy_in(0, b"abc");
        assert_eq!(part.to_vec(), b"abc");
        drop(part);
        assert!(unmapped.load(Ordering::Relaxed));
    }

    #[test]
    #[should_panic(expected = "foreign memory")]
    fn no_reference_to_foreign_memory_is_handed_out() {
        guest().0.read(0, 1, |_| ());
    }

    #[test]
    #[should_panic(expected = "assertion failed")]
    fn segment_beyond_the_end_of_foreign_memory_panics() {
        Segs::of(&guest().0, GUEST_BYTES - 1, 2);
    }
}
