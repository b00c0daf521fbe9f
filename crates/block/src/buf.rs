//! Memory for requests: aligned buffers from a pool, and scatter-gather lists over them.
//!
//! A [`Buf`] is a counted handle on one aligned region; the last handle gives the region back
//! to its [`BufPool`]. [`Segs`] names pieces of buffers in order and keeps them alive, so
//! memory that a drive or the kernel still writes to cannot return to the pool: the request
//! that was submitted owns a handle until its completion arrived.
//!
//! Promises: regions are aligned to [`BUF_ALIGN`] and were zeroed once when first taken from
//! the system. Handles stay on one thread (`Rc`), therefore two borrows of one region can only
//! nest; a borrow flag turns such a bug into a panic instead of undefined behaviour. The only
//! concurrent access is by the kernel or a helper thread through [`Segs::iovecs`] while a
//! request is submitted; submitters do not touch the bytes until it completes.
//!
//! Where the memory comes from: a class that is used a lot, and every class of large buffers,
//! is cut from [`Span`]s, for which huge pages are advised; their addresses stay with the pool
//! until it ends. The first buffers of a small class are taken piecemeal, and those larger than
//! every class come and go piecemeal. [`HugeWords`] are a span of their own. A buffer may also lie
//! over memory of another owner ([`Buf::foreign`]), which no pool ever takes back.
//!
//! P1. Free regions of a pool occupy at most its limit ([`BufPool::set_keep`]): beyond it the
//!     memory of those that were free for longest goes back to the system. They stay in the free
//!     list, read as zeros, and take memory again when they are used.
//! P2. A class's free list is a stack; its lowest `empty` regions occupy no memory.
//!
//! This module is the only one of the crate with `unsafe` code.

#![allow(unsafe_code)]

mod foreign;
mod span;
mod words;
mod zero;

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use rustix::mm::{Advice, madvise};
use smallvec::SmallVec;

use span::Span;

pub use words::HugeWords;

/// Alignment of every buffer in bytes: enough for O_DIRECT on any drive.
pub const BUF_ALIGN: usize = 4096;

const CLASS_BYTES: [usize; 6] = [4 << 10, 64 << 10, 256 << 10, 512 << 10, 1 << 20, 4 << 20];
/// Default for the free memory that a pool keeps, in bytes.
const KEEP_BYTES: usize = 128 << 20;
/// Buffers of at least this many bytes always come from spans.
const LARGE_BYTES: usize = 256 << 10;
/// So many bytes of a class of small buffers are taken piecemeal before a span is worth it.
const PIECEMEAL_BYTES: usize = 1 << 20;

struct Region {
    ptr: NonNull<u8>,
    capacity: usize,
    class: Option<usize>,
    /// 0 free, n > 0 borrowed n times for reading, -1 borrowed for writing, or `foreign::FOREIGN`.
    borrows: Cell<isize>,
    pool: Weak<PoolInner>,
    memory: Memory,
}

/// Where the memory of a region comes from.
enum Memory {
    /// Taken from the system for this region alone.
    Piecemeal,
    /// Cut from a span, which lives as long as any of its regions.
    Span { _span: Rc<Span> },
    /// Another owner's, which keeps it mapped until it is dropped.
    Foreign { _owner: Arc<dyn Any + Send + Sync> },
}

impl Region {
    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, BUF_ALIGN).expect("a buffer is far below isize::MAX")
    }

    fn piecemeal(capacity: usize, class: Option<usize>, pool: Weak<PoolInner>) -> Rc<Region> {
        let layout = Region::layout(capacity);
        // SAFETY: the layout has a non-zero size (callers round up to BUF_ALIGN).
        let ptr = unsafe { alloc_zeroed(layout) };
        let Some(ptr) = NonNull::new(ptr) else { handle_alloc_error(layout) };
        let (borrows, memory) = (Cell::new(0), Memory::Piecemeal);
        Rc::new(Region { ptr, capacity, class, borrows, pool, memory })
    }
}

impl Region {
    /// Gives the memory of a free region back to the system. Where that is refused it stays.
    fn empty(&self) {
        let advice = Advice::LinuxDontNeed;
        // SAFETY: the pages lie inside the region, which the pool made, and no handle on it
        // exists, so nobody expects contents; it stays mapped, and reads as zeros afterwards.
        let _ = unsafe { madvise(self.ptr.as_ptr().cast(), self.capacity, advice) };
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if matches!(self.memory, Memory::Piecemeal) {
            // SAFETY: allocated in `piecemeal` with this very layout, and no handle is left.
            unsafe { dealloc(self.ptr.as_ptr(), Region::layout(self.capacity)) }
        }
    }
}

/// The memory of one size class.
#[derive(Default)]
struct Class {
    free: RefCell<Vec<Rc<Region>>>,
    /// So many at the bottom of `free` occupy no memory (P2).
    empty: Cell<usize>,
    /// Bytes that were taken piecemeal so far, up to what makes a span worth it.
    piecemeal_bytes: Cell<usize>,
}

impl Class {
    /// How many free regions occupy memory.
    fn idle(&self) -> usize {
        self.free.borrow().len() - self.empty.get()
    }
}

struct PoolInner {
    classes: [Class; CLASS_BYTES.len()],
    /// Bytes that free regions occupy.
    idle_bytes: Cell<usize>,
    /// The most that they may.
    keep_bytes: Cell<usize>,
}

impl Default for PoolInner {
    fn default() -> PoolInner {
        PoolInner {
            classes: Default::default(),
            idle_bytes: Cell::new(0),
            keep_bytes: Cell::new(KEEP_BYTES),
        }
    }
}

impl PoolInner {
    /// Takes the free region of a class that was used last.
    fn recycle(&self, number: usize) -> Option<Rc<Region>> {
        let class = &self.classes[number];
        let mut free = class.free.borrow_mut();
        let region = free.pop()?;
        if free.len() < class.empty.get() {
            class.empty.set(free.len());
        } else {
            self.idle_bytes.set(self.idle_bytes.get() - CLASS_BYTES[number]);
        }
        Some(region)
    }

    /// Takes back a region that was used.
    fn release(&self, number: usize, region: Rc<Region>) {
        let idle_bytes = self.idle_bytes.get() + CLASS_BYTES[number];
        self.idle_bytes.set(idle_bytes);
        self.classes[number].free.borrow_mut().push(region);
        if idle_bytes > self.keep_bytes.get() {
            self.trim();
        }
    }

    /// Gives memory back, the class with most of it first, and some more than P1 asks for, so
    /// that the next release does not come here again.
    #[cold]
    fn trim(&self) {
        let target = self.keep_bytes.get() / 4 * 3;
        let idle_bytes = |number: &usize| self.classes[*number].idle() * CLASS_BYTES[*number];
        while self.idle_bytes.get() > target {
            let largest = (0..CLASS_BYTES.len()).max_by_key(idle_bytes);
            let number = largest.expect("there are classes");
            let (class, size) = (&self.classes[number], CLASS_BYTES[number]);
            let count = (self.idle_bytes.get() - target).div_ceil(size).min(class.idle());
            let first = class.empty.get();
            class.free.borrow()[first..first + count].iter().for_each(|region| region.empty());
            class.empty.set(first + count);
            self.idle_bytes.set(self.idle_bytes.get() - count * size);
        }
    }
}

/// A reactor's buffers, recycled by size class.
#[derive(Clone, Default)]
pub struct BufPool(Rc<PoolInner>);

impl BufPool {
    /// The memory that a buffer of `bytes` bytes takes.
    pub fn footprint(bytes: usize) -> usize {
        let class = CLASS_BYTES.into_iter().find(|&size| bytes <= size);
        class.unwrap_or(bytes.next_multiple_of(BUF_ALIGN))
    }

    /// Limits what free buffers occupy, in bytes (P1).
    pub fn set_keep(&self, bytes: usize) {
        self.0.keep_bytes.set(bytes);
        self.0.trim();
    }

    /// The memory that free buffers occupy, in bytes.
    pub fn idle_bytes(&self) -> usize {
        self.0.idle_bytes.get()
    }

    /// A buffer of at least `bytes` bytes (at least one page). Contents are undefined but
    /// never memory from outside the pool.
    pub fn alloc(&self, bytes: usize) -> Buf {
        let class = CLASS_BYTES.iter().position(|&size| bytes <= size);
        let recycled = class.and_then(|class| self.0.recycle(class));
        let region = recycled.unwrap_or_else(|| self.grow(bytes, class));
        debug_assert_eq!(region.borrows.get(), 0);
        Buf(Some(region))
    }

    #[cold]
    fn grow(&self, bytes: usize, number: Option<usize>) -> Rc<Region> {
        let pool = Rc::downgrade(&self.0);
        let Some(number) = number else {
            return Region::piecemeal(bytes.next_multiple_of(BUF_ALIGN), None, pool);
        };
        let (class, size) = (&self.0.classes[number], CLASS_BYTES[number]);
        let wanted = size >= LARGE_BYTES || class.piecemeal_bytes.get() >= PIECEMEAL_BYTES;
        if wanted && let Some(region) = self.cut_span(number) {
            return region;
        }
        class.piecemeal_bytes.set((class.piecemeal_bytes.get() + size).min(PIECEMEAL_BYTES));
        Region::piecemeal(size, Some(number), pool)
    }

    /// Cuts a new span into free regions of a class that has none, and takes one; none if the
    /// system refuses.
    fn cut_span(&self, number: usize) -> Option<Rc<Region>> {
        let (class, size) = (&self.0.classes[number], CLASS_BYTES[number]);
        let span = Rc::new(Span::new(size)?);
        let mut free = class.free.borrow_mut();
        debug_assert!(free.is_empty());
        for offset in (0..span.bytes()).step_by(size) {
            free.push(Rc::new(Region {
                ptr: span.at(offset),
                capacity: size,
                class: Some(number),
                borrows: Cell::new(0),
                pool: Rc::downgrade(&self.0),
                memory: Memory::Span { _span: span.clone() },
            }));
        }
        let region = free.pop();
        class.empty.set(free.len());
        region
    }
}

/// A counted handle on an aligned region of memory.
#[derive(Clone)]
pub struct Buf(Option<Rc<Region>>);

impl Buf {
    fn region(&self) -> &Rc<Region> {
        self.0.as_ref().expect("a handle holds its region until it is dropped")
    }

    /// The size of the region in bytes.
    pub fn capacity(&self) -> usize {
        self.region().capacity
    }

    /// Runs `read` on `len` bytes from `offset`. Must not nest inside [`Buf::write`]. Not for
    /// foreign memory.
    pub fn read<R>(&self, offset: usize, len: usize, read: impl FnOnce(&[u8]) -> R) -> R {
        self.read_or(offset, len, read, |_| panic!("buffer is borrowed, or foreign memory"))
    }

    /// Runs `read` as [`Buf::read`] does, or calls `other` if the memory may not be referred to: it
    /// is foreign (or borrowed for writing, a bug that access to foreign memory finds).
    #[inline(always)]
    fn read_or<R, F: FnOnce(&[u8]) -> R>(
        &self,
        offset: usize,
        len: usize,
        read: F,
        other: impl FnOnce(F) -> R,
    ) -> R {
        let region = self.region();
        assert!(offset <= region.capacity && len <= region.capacity - offset);
        if region.borrows.get() < 0 {
            return other(read);
        }
        region.borrows.set(region.borrows.get() + 1);
        // SAFETY: in bounds (asserted), initialised (with zeros), and no `&mut` exists on
        // this thread (flag) nor elsewhere (handles are not Send).
        let slice = unsafe { std::slice::from_raw_parts(region.ptr.as_ptr().add(offset), len) };
        let result = read(slice);
        region.borrows.set(region.borrows.get() - 1);
        result
    }

    #[inline(always)]
    fn is_zero(&self, offset: usize, len: usize) -> bool {
        let staged = |_| self.read_staged(offset, len, zero::is_zero);
        self.read_or(offset, len, zero::is_zero, staged)
    }

    /// Runs `write` on `len` bytes from `offset`. Must not nest inside another borrow. Not for
    /// foreign memory.
    pub fn write<R>(&self, offset: usize, len: usize, write: impl FnOnce(&mut [u8]) -> R) -> R {
        self.write_or(offset, len, write, |_| panic!("buffer is borrowed, or foreign memory"))
    }

    /// The same for writing.
    #[inline(always)]
    fn write_or<R, F: FnOnce(&mut [u8]) -> R>(
        &self,
        offset: usize,
        len: usize,
        write: F,
        other: impl FnOnce(F) -> R,
    ) -> R {
        let region = self.region();
        assert!(offset <= region.capacity && len <= region.capacity - offset);
        if region.borrows.get() != 0 {
            return other(write);
        }
        region.borrows.set(-1);
        // SAFETY: in bounds (asserted), initialised, and the only borrow (flag, not Send).
        let slice = unsafe { std::slice::from_raw_parts_mut(region.ptr.as_ptr().add(offset), len) };
        let result = write(slice);
        region.borrows.set(0);
        result
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        let Some(region) = self.0.take() else { return };
        if Rc::strong_count(&region) > 1 {
            return;
        }
        let (Some(class), Some(pool)) = (region.class, region.pool.upgrade()) else { return };
        // A borrow flag left behind by a panic inside a closure ends with its last handle.
        region.borrows.set(0);
        pool.release(class, region);
    }
}

/// One contiguous piece of a buffer.
#[derive(Clone)]
pub struct Seg {
    buf: Buf,
    offset: usize,
    len: usize,
}

/// A scatter-gather list: pieces of buffers, in order, kept alive by the list.
#[derive(Clone, Default)]
pub struct Segs {
    list: SmallVec<[Seg; 2]>,
    bytes: usize,
}

impl Segs {
    /// The list of one piece: `len` bytes of `buf` from `offset`.
    pub fn of(buf: &Buf, offset: usize, len: usize) -> Segs {
        let mut segs = Segs::default();
        segs.push(buf.clone(), offset, len);
        segs
    }

    /// Appends `len` bytes of `buf` from `offset`.
    pub fn push(&mut self, buf: Buf, offset: usize, len: usize) {
        assert!(offset <= buf.capacity() && len <= buf.capacity() - offset);
        self.list.push(Seg { buf, offset, len });
        self.bytes += len;
    }

    /// The total length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Drops every piece; the list keeps its room.
    pub fn clear(&mut self) {
        self.list.clear();
        self.bytes = 0;
    }

    /// The `len` bytes from `offset`, as a list of its own over the same memory.
    pub fn slice(&self, offset: usize, len: usize) -> Segs {
        let mut out = Segs::default();
        out.extend(self, offset, len);
        out
    }

    /// Appends the `len` bytes from `offset` of `other`, without copying them.
    pub fn extend(&mut self, other: &Segs, offset: usize, len: usize) {
        assert!(offset <= other.bytes && len <= other.bytes - offset);
        for (seg, seg_offset, seg_len) in other.pieces(offset, len) {
            self.push(seg.buf.clone(), seg_offset, seg_len);
        }
    }

    /// Drops the first `count` bytes; the list keeps its room.
    pub fn advance(&mut self, mut count: usize) {
        assert!(count <= self.bytes);
        self.bytes -= count;
        let mut whole = 0;
        for seg in &mut self.list {
            let skipped = seg.len.min(count);
            (seg.offset, seg.len) = (seg.offset + skipped, seg.len - skipped);
            count -= skipped;
            if seg.len > 0 {
                break;
            }
            whole += 1;
        }
        self.list.drain(..whole);
    }

    /// Keeps the first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        if len < self.bytes {
            *self = self.slice(0, len);
        }
    }

    /// The pieces that make up `len` bytes from `offset`: segment, offset in its buffer, length.
    fn pieces(&self, offset: usize, len: usize) -> impl Iterator<Item = (&Seg, usize, usize)> {
        let (mut skip, mut left) = (offset, len);
        self.list.iter().filter_map(move |seg| {
            let skipped = skip.min(seg.len);
            skip -= skipped;
            let take = (seg.len - skipped).min(left);
            left -= take;
            (take > 0).then_some((seg, seg.offset + skipped, take))
        })
    }

    /// Copies `out.len()` bytes from `offset` of the list into `out`.
    pub fn copy_out(&self, offset: usize, out: &mut [u8]) {
        let mut at = 0;
        for (seg, start, len) in self.pieces(offset, out.len()) {
            let out = &mut out[at..at + len];
            match seg.buf.lends() {
                true => seg.buf.read(start, len, |bytes| out.copy_from_slice(bytes)),
                false => seg.buf.load(start, out),
            }
            at += len;
        }
        assert_eq!(at, out.len(), "read beyond the end of the segments");
    }

    /// Copies `bytes` into the list at `offset`.
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) {
        let mut at = 0;
        for (seg, start, len) in self.pieces(offset, bytes.len()) {
            let bytes = &bytes[at..at + len];
            let copy = |out: &mut [u8]| out.copy_from_slice(bytes);
            seg.buf.write_or(start, len, copy, |_| seg.buf.store(start, bytes));
            at += len;
        }
        assert_eq!(at, bytes.len(), "write beyond the end of the segments");
    }

    /// True if the `len` bytes from `offset` are all zero; looks no further than the first that
    /// is not.
    pub fn is_zero(&self, offset: usize, len: usize) -> bool {
        assert!(offset <= self.bytes && len <= self.bytes - offset);
        match self.list.as_slice() {
            // Nearly all data is one piece, and no zeros: that is to cost next to nothing.
            [seg] => seg.buf.is_zero(seg.offset + offset, len),
            _ => self.pieces_are_zero(offset, len),
        }
    }

    #[inline(never)]
    fn pieces_are_zero(&self, offset: usize, len: usize) -> bool {
        self.pieces(offset, len).all(|(seg, at, len)| seg.buf.is_zero(at, len))
    }

    /// Runs `read` on contiguous pieces that make up `len` bytes from `offset`, in order.
    pub fn for_each(&self, offset: usize, len: usize, mut read: impl FnMut(&[u8])) {
        for (seg, start, len) in self.pieces(offset, len) {
            seg.buf.read_or(start, len, &mut read, |read| {
                seg.buf.read_staged(start, len, |bytes| {
                    read(bytes);
                    true
                });
            });
        }
    }

    /// Runs `write` on contiguous pieces that make up `len` bytes from `offset`, in order.
    pub fn for_each_mut(&self, offset: usize, len: usize, mut write: impl FnMut(&mut [u8])) {
        for (seg, start, len) in self.pieces(offset, len) {
            let staged = |write: &mut _| seg.buf.write_staged(start, len, write);
            seg.buf.write_or(start, len, &mut write, staged);
        }
    }

    /// Sets `len` bytes from `offset` to zero.
    pub fn zero(&self, offset: usize, len: usize) {
        for (seg, start, len) in self.pieces(offset, len) {
            let clear = |_| seg.buf.clear(start, len);
            seg.buf.write_or(start, len, |bytes| bytes.fill(0), clear);
        }
    }

    /// All bytes, copied into one vector (for metadata and tests, not for the ready path).
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = vec![0; self.bytes];
        self.copy_out(0, &mut out);
        out
    }

    /// Address and length of each piece, for a drive or the kernel. They are valid while a
    /// clone of this list is held; whoever passes them on holds the request that owns it.
    pub fn iovecs(&self) -> impl Iterator<Item = (*mut u8, usize)> {
        self.iovecs_of(0, self.bytes)
    }

    /// The same for the pieces that make up `len` bytes from `offset`.
    pub fn iovecs_of(&self, offset: usize, len: usize) -> impl Iterator<Item = (*mut u8, usize)> {
        self.pieces(offset, len).map(|(seg, start, len)| {
            // SAFETY: `push` asserted that the segment lies within the region.
            let ptr = unsafe { seg.buf.region().ptr.as_ptr().add(start) };
            (ptr, len)
        })
    }

    /// True if every piece begins and ends at a multiple of `align` bytes in memory.
    pub fn is_aligned(&self, align: usize) -> bool {
        self.iovecs()
            .all(|(ptr, len)| (ptr as usize).is_multiple_of(align) && len.is_multiple_of(align))
    }
}

impl std::fmt::Debug for Segs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Segs({} pieces, {} bytes)", self.list.len(), self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::sample::Index;

    fn segs_of_three(pool: &BufPool) -> Segs {
        let mut segs = Segs::of(&pool.alloc(100), 10, 7);
        segs.push(pool.alloc(100), 0, 5);
        segs.push(pool.alloc(70 << 10), 4090, 9);
        segs
    }

    #[test]
    fn bytes_copied_in_come_out_across_pieces_and_slices() {
        let segs = segs_of_three(&BufPool::default());
        let data: Vec<u8> = (1..=21).collect();
        segs.copy_in(0, &data);
        assert_eq!(segs.to_vec(), data);
        for offset in 0..=21 {
            for len in 0..=21 - offset {
                assert_eq!(segs.slice(offset, len).to_vec(), data[offset..offset + len]);
            }
            let mut rest = segs.clone();
            rest.advance(offset);
            assert_eq!((rest.to_vec(), rest.bytes()), (data[offset..].to_vec(), 21 - offset));
        }
        segs.zero(6, 7);
        assert_eq!(segs.slice(6, 7).to_vec(), [0; 7]);
        assert_eq!(segs.slice(13, 8).to_vec(), data[13..]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn zeros_are_found_in_any_part_of_any_pieces(
            pieces in prop::collection::vec((0..70usize, 1..150usize), 1..=4),
            marks in prop::collection::vec((any::<Index>(), 1..=255u8), 0..=2),
        ) {
            let pool = BufPool::default();
            let mut segs = Segs::default();
            for (offset, len) in pieces {
                let buf = pool.alloc(300);
                // What is not in a piece is no zero.
                buf.write(0, 300, |bytes| bytes.fill(0xff));
                segs.push(buf, offset, len);
            }
            segs.zero(0, segs.bytes());
            for (place, byte) in marks {
                segs.copy_in(place.index(segs.bytes()), &[byte]);
            }
            let bytes = segs.to_vec();
            for offset in 0..=bytes.len() {
                let mut zeros = true;
                prop_assert!(segs.is_zero(offset, 0));
                for (before, byte) in bytes[offset..].iter().enumerate() {
                    zeros &= *byte == 0;
                    let len = before + 1;
                    prop_assert_eq!(segs.is_zero(offset, len), zeros, "{} {}", offset, len);
                }
            }
        }
    }

    #[test]
    fn the_last_handle_gives_the_region_back() {
        let pool = BufPool::default();
        let buf = pool.alloc(4096);
        let segs = Segs::of(&buf, 0, 4096);
        let address = segs.iovecs().next().unwrap().0;
        drop(buf);
        let other = Segs::of(&pool.alloc(4096), 0, 1).iovecs().next().unwrap().0;
        assert_ne!(address, other, "still held by the list");
        drop(segs);
        let addresses: Vec<_> = (0..2)
            .map(|_| pool.alloc(4096))
            .collect::<Vec<_>>()
            .iter()
            .map(|buf| Segs::of(buf, 0, 1).iovecs().next().unwrap().0)
            .collect();
        assert!(addresses.contains(&address), "recycled");
    }

    #[test]
    fn regions_are_aligned_for_direct_io() {
        let pool = BufPool::default();
        for bytes in [1, 4096, 5000, 100 << 10, 1 << 20, (1 << 20) + 1, (4 << 20) + 1] {
            let buf = pool.alloc(bytes);
            assert!(buf.capacity() >= bytes);
            assert!(Segs::of(&buf, 0, BUF_ALIGN).is_aligned(BUF_ALIGN));
        }
    }

    #[test]
    fn buffers_in_use_never_overlap_wherever_they_come_from() {
        for bytes in [4096, 64 << 10, 1 << 20] {
            let pool = BufPool::default();
            let count = (40 << 20) / bytes;
            let bufs: Vec<Buf> = (0..count).map(|_| pool.alloc(bytes)).collect();
            for (number, buf) in bufs.iter().enumerate() {
                assert!(buf.read(0, bytes, |data| data[0] == 0 && data[bytes - 1] == 0));
                buf.write(0, bytes, |data| data.fill(number as u8 | 1));
            }
            for (number, buf) in bufs.iter().enumerate() {
                let mark = number as u8 | 1;
                assert!(buf.read(0, bytes, |data| data.iter().all(|&byte| byte == mark)));
            }
        }
    }

    #[test]
    fn idle_buffers_of_all_classes_together_occupy_no_more_than_the_limit() {
        let pool = BufPool::default();
        pool.set_keep(8 << 20);
        for bytes in [4 << 10, 64 << 10, 256 << 10, 512 << 10, 1 << 20, 4 << 20] {
            let bufs: Vec<Buf> = (0..(24 << 20) / bytes).map(|_| pool.alloc(bytes)).collect();
            bufs.iter().for_each(|buf| buf.write(0, bytes, |data| data.fill(0xa5)));
            drop(bufs);
            assert!((1..=8 << 20).contains(&pool.idle_bytes()), "{bytes}");
            let listed: usize = (0..CLASS_BYTES.len())
                .map(|number| pool.0.classes[number].idle() * CLASS_BYTES[number])
                .sum();
            assert_eq!(pool.idle_bytes(), listed, "{bytes}");
        }
        pool.set_keep(0);
        assert_eq!(pool.idle_bytes(), 0);
    }

    #[test]
    fn a_buffer_whose_memory_went_back_is_used_again() {
        let pool = BufPool::default();
        let bufs = [pool.alloc(1 << 20), pool.alloc(1 << 20)];
        bufs.iter().for_each(|buf| buf.write(0, 1 << 20, |data| data.fill(0xa5)));
        drop(bufs);
        assert_eq!(pool.idle_bytes(), 2 << 20);
        pool.set_keep(0);
        let again = [pool.alloc(1 << 20), pool.alloc(1 << 20)];
        for buf in &again {
            assert!(buf.read(0, 1 << 20, |data| data.iter().all(|&byte| byte == 0)), "given back");
        }
        pool.set_keep(1 << 20);
        drop(again);
        assert!(pool.idle_bytes() <= 1 << 20);
    }

    #[test]
    fn the_footprint_is_what_a_buffer_takes() {
        let pool = BufPool::default();
        for bytes in [1, 4096, 4097, 64 << 10, 300 << 10, (2 << 20) + 1, (4 << 20) + 1] {
            assert_eq!(BufPool::footprint(bytes), pool.alloc(bytes).capacity(), "{bytes}");
        }
    }

    #[test]
    fn a_buffer_outlives_its_pool() {
        let pool = BufPool::default();
        let bufs = [pool.alloc(1 << 20), pool.alloc(1 << 20), pool.alloc(1)];
        drop(pool);
        for (buf, mark) in bufs.iter().zip(1..) {
            buf.write(0, buf.capacity(), |bytes| bytes.fill(mark));
        }
        for (buf, mark) in bufs.iter().zip(1..) {
            assert!(buf.read(0, buf.capacity(), |bytes| bytes.iter().all(|&byte| byte == mark)));
        }
    }

    #[test]
    #[should_panic(expected = "buffer is borrowed")]
    fn a_nested_write_borrow_panics() {
        let buf = BufPool::default().alloc(1);
        buf.read(0, 1, |_| buf.write(0, 1, |_| ()));
    }
}
