//! The interface to the kernel: operations go in, completions come out, a thread sleeps.
//!
//! Owns what both rings share: [`Io`], [`IoVecs`], [`Token`], the [`Ring`] trait, and the wake-up
//! of a sleeping ring from another thread. The two rings are
//! [`UringRing`] and [`ThreadRing`].
//!
//! Promises, the same for both rings:
//! - every submitted operation completes exactly once, cancelled or not;
//! - a transfer may be short; the submitter submits the rest;
//! - operations run in any order, whatever the order of submission. A submitter that needs the
//!   bytes of a stream in order keeps one receive and one send in flight per socket.
//!
//! Who owns what while an operation is in flight: the ring owns the iovec array and everything else
//! that the kernel reads to start the operation. The submitter owns the descriptor and the bytes
//! that the iovecs name, and keeps both until the completion was reaped. The owner of a ring drains
//! it before dropping it. A ring dropped earlier cancels what it can and waits for the rest, so the
//! kernel never writes to memory named by an operation of a dropped ring.
//!
//! Must never: interpret the bytes, retry, reorder for policy, or know what a request is.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use rustix::net::SocketAddrAny;
use smallvec::SmallVec;

use crate::threads::ThreadRing;
use crate::uring::UringRing;

/// Chosen by the submitter and returned with the result; unique among operations in flight.
pub type Token = u64;

/// Longest array of iovecs the kernel takes; a longer one is transferred up to there (short).
const IOVECS_MAX: usize = 1024;

/// Most bytes one transfer moves; the kernel cuts longer ones the same way.
const TRANSFER_BYTES_MAX: usize = 0x7fff_f000;

/// Longest sleep, in seconds: far beyond any use, and within every kernel's time arithmetic.
const SLEEP_SECONDS_MAX: u64 = 1 << 31;

/// The memory of one transfer, in order. Holds addresses only: see [`Ring::submit`] for the rule
/// on what they point to.
#[derive(Default)]
pub struct IoVecs(SmallVec<[libc::iovec; 4]>);

// SAFETY: these are addresses, and nothing here follows them. Code that follows them, on any
// thread, relies on the promise given to `Ring::submit`.
unsafe impl Send for IoVecs {}

impl IoVecs {
    /// No memory at all.
    pub fn new() -> Self {
        Self::default()
    }

    /// A single piece of `len` bytes.
    pub fn one(base: *mut u8, len: usize) -> Self {
        let mut iovecs = Self::new();
        iovecs.push(base, len);
        iovecs
    }

    /// Adds `len` bytes at `base` at the end. A write or send only reads its bytes, so a pointer
    /// cast from `*const u8` is allowed there.
    pub fn push(&mut self, base: *mut u8, len: usize) {
        self.0.push(libc::iovec { iov_base: base.cast(), iov_len: len });
    }

    /// Bytes in all pieces together.
    pub fn total_bytes(&self) -> usize {
        self.0.iter().map(|piece| piece.iov_len).sum()
    }

    /// The array as system calls take it; valid until this value moves, changes or drops.
    pub(crate) fn as_ptr(&self) -> *const libc::iovec {
        self.0.as_ptr()
    }

    /// How many pieces one system call takes.
    pub(crate) fn count(&self) -> usize {
        self.0.len().min(IOVECS_MAX)
    }

    /// The only piece, if there is exactly one: operations on one piece take a shorter path in the
    /// kernel.
    pub(crate) fn only(&self) -> Option<(*mut u8, u32)> {
        match self.0.as_slice() {
            [piece] => Some((piece.iov_base.cast(), piece.iov_len.min(TRANSFER_BYTES_MAX) as u32)),
            _ => None,
        }
    }
}

impl FromIterator<(*mut u8, usize)> for IoVecs {
    fn from_iter<I: IntoIterator<Item = (*mut u8, usize)>>(pieces: I) -> Self {
        let mut iovecs = Self::new();
        pieces.into_iter().for_each(|(base, len)| iovecs.push(base, len));
        iovecs
    }
}

/// Empty arrays that keep their capacity, so that long ones are not allocated for each operation.
#[derive(Default)]
pub(crate) struct SpareIoVecs(Vec<IoVecs>);

impl SpareIoVecs {
    /// Limit on the arrays kept.
    const MAX: usize = 64;

    /// An empty array, a kept one if there is any.
    pub(crate) fn take(&mut self) -> IoVecs {
        self.0.pop().unwrap_or_default()
    }

    /// Keeps an array that is no longer needed, if it has capacity on the heap.
    pub(crate) fn keep(&mut self, mut iovecs: IoVecs) {
        if iovecs.0.spilled() && self.0.len() < SpareIoVecs::MAX {
            iovecs.0.clear();
            self.0.push(iovecs);
        }
    }
}

/// One operation. Results are bytes moved unless a variant says otherwise, or `-errno`.
pub enum Io {
    /// Read a file or block device at a byte offset; 0 at its end.
    ReadV {
        /// A file or block device; with O_DIRECT, memory and offset must be aligned.
        fd: RawFd,
        /// Filled in order.
        iov: IoVecs,
        /// In bytes.
        offset: u64,
    },
    /// Write a file or block device at a byte offset.
    WriteV {
        /// A file or block device; with O_DIRECT, memory and offset must be aligned.
        fd: RawFd,
        /// Written in order.
        iov: IoVecs,
        /// In bytes.
        offset: u64,
        /// Complete only once these bytes are durable (RWF_DSYNC).
        dsync: bool,
    },
    /// Make completed writes durable; results in 0.
    Fdatasync {
        /// A file or block device.
        fd: RawFd,
    },
    /// Allocate, punch or zero a byte range, as fallocate(2) does; results in 0.
    Fallocate {
        /// A file or block device.
        fd: RawFd,
        /// FALLOC_FL_* bits.
        mode: i32,
        /// In bytes.
        offset: u64,
        /// In bytes.
        len: u64,
    },
    /// Receive at least one byte; 0 when the peer closed.
    Recv {
        /// A connected socket, non-blocking or not.
        fd: RawFd,
        /// Filled in order.
        iov: IoVecs,
        /// Complete early only if the stream ends or something fails, if the ring can do that.
        all: bool,
    },
    /// Send at least one byte; a vanished peer is -EPIPE and never a signal.
    Send {
        /// A connected socket, non-blocking or not.
        fd: RawFd,
        /// Sent in order.
        iov: IoVecs,
        /// Complete early only if something fails, if the ring can do that.
        all: bool,
    },
    /// Accept one connection; results in its descriptor, blocking and close-on-exec.
    Accept {
        /// A listening socket; the ring may set O_NONBLOCK on it.
        fd: RawFd,
    },
    /// Connect a socket; results in 0. A unix socket whose listener accepts too slowly may be
    /// -EAGAIN.
    Connect {
        /// A socket that is not connected; the ring may set O_NONBLOCK on it.
        fd: RawFd,
        /// Where to.
        address: Box<SocketAddrAny>,
    },
    /// Wait until readable; results in the poll(2) bits seen.
    PollIn {
        /// Anything poll(2) takes.
        fd: RawFd,
    },
    /// Wait until writable; results in the poll(2) bits seen.
    PollOut {
        /// Anything poll(2) takes.
        fd: RawFd,
    },
    /// Wait until the peer has ended its own sending, or is gone: closed both ways, or an error.
    /// Results in the poll(2) bits seen. What can be read before that counts for nothing.
    PollHup {
        /// A socket.
        fd: RawFd,
    },
    /// A command of the file's driver (ublk's, for one), which says what results. -EOPNOTSUPP if
    /// the file takes no commands, or the ring cannot send any: helper threads cannot.
    UringCmd {
        /// A device that takes commands.
        fd: RawFd,
        /// The number of the command.
        command: u32,
        /// Its argument. Memory that it names stays valid like that of a transfer.
        argument: [u8; 16],
    },
    /// Any other blocking call, on a helper thread; results in what the closure returns, which
    /// follows the rule above (a panic is -EIO). It cannot be cancelled once it runs, and dropping
    /// the ring waits for it.
    Blocking(Box<dyn FnOnce() -> i32 + Send>),
}

/// Wakes a sleeping ring from any thread.
pub trait Wake: Send + Sync {
    /// Makes the current or the next `wait` return. Costs one atomic exchange when awake.
    fn wake(&self);
}

/// Submits operations, sleeps until something happens, returns results. Used by one thread.
pub trait Ring {
    /// Queues one operation; it starts at the latest at the next `kick` or `wait`.
    ///
    /// # Safety
    /// Until the completion was handed out by `reap`, or the ring's drop returned:
    /// - the memory named by the iovecs stays allocated, and is neither written elsewhere (reads
    ///   and receives: nor read);
    /// - the descriptor stays open.
    unsafe fn submit(&mut self, io: Io, token: Token);

    /// Starts all queued operations, without waiting. Also makes pending completions available.
    fn kick(&mut self);

    /// Calls `done` for each completion available since the last call: token, and result or
    /// `-errno`. Makes no system call, so call `kick` or `wait` before it.
    fn reap(&mut self, done: &mut dyn FnMut(Token, i32));

    /// Kicks, then sleeps until a completion is ready, a wake, a signal, or the timeout (`None`:
    /// without limit). May return early for no reason.
    fn wait(&mut self, timeout: Option<Duration>);

    /// Asks to end an operation early. It still completes once: with -ECANCELED, or with its own
    /// result if it was too late. Unknown tokens are ignored.
    fn cancel(&mut self, token: Token);

    /// The handle with which other threads end a `wait`.
    fn waker(&self) -> Arc<dyn Wake>;

    /// True if `reap` would return something, now or after a `kick`. Makes no system call.
    fn is_ready(&mut self) -> bool;

    /// An empty array for an operation, with the capacity of an earlier one if possible.
    fn spare_iovecs(&mut self) -> IoVecs;
}

/// Which ring to open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RingKind {
    /// io_uring, or helper threads with a line in the log when it is not available.
    #[default]
    Auto,
    /// io_uring or an error.
    Uring,
    /// Helper threads.
    Threads,
}

/// Opens a ring for the calling thread and names it: `io_uring` or `threads`.
pub fn open(kind: RingKind) -> io::Result<(Box<dyn Ring>, &'static str)> {
    match kind {
        RingKind::Uring => Ok((Box::new(UringRing::new()?), UringRing::NAME)),
        RingKind::Threads => Ok((Box::new(ThreadRing::new()?), ThreadRing::NAME)),
        RingKind::Auto => UringRing::new()
            .map(|ring| (Box::new(ring) as Box<dyn Ring>, UringRing::NAME))
            .or_else(|refusal| {
                tracing::warn!("io_uring is not available, using helper threads: {refusal}");
                open(RingKind::Threads)
            }),
    }
}

const AWAKE: u8 = 0;
const ASLEEP: u8 = 1;
const WOKEN: u8 = 2;

/// The wake-up of both rings: an eventfd, written only when the ring may be asleep. No wake is
/// lost: a wake that finds the ring awake sets `WOKEN`, so that the next `fall_asleep` returns
/// false; one that finds it asleep writes the eventfd that the sleeper watches.
pub(crate) struct EventWake {
    fd: OwnedFd,
    state: AtomicU8,
}

impl EventWake {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and no other code owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd, state: AtomicU8::new(AWAKE) })
    }

    /// Readable once a wake found the ring asleep.
    pub(crate) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Marks the ring asleep; `false` if a wake came first. `end_sleep` must follow in both cases.
    pub(crate) fn fall_asleep(&self) -> bool {
        self.state.compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Whether a wake came since the last sleep.
    pub(crate) fn is_woken(&self) -> bool {
        self.state.load(Ordering::Acquire) == WOKEN
    }

    /// Ends the sleep. What was published before the wakes seen so far is visible afterwards.
    pub(crate) fn end_sleep(&self) {
        self.state.swap(AWAKE, Ordering::AcqRel);
    }

    /// Makes the eventfd unreadable again; only for a caller that has just seen it readable.
    pub(crate) fn drain(&self) {
        let mut count = 0u64;
        // SAFETY: `count` is eight bytes long.
        unsafe { libc::read(self.fd(), (&raw mut count).cast(), size_of::<u64>()) };
    }
}

impl Wake for EventWake {
    fn wake(&self) {
        if self.state.swap(WOKEN, Ordering::AcqRel) != ASLEEP {
            return;
        }
        let one = 1u64;
        // SAFETY: `one` is eight bytes long. The write cannot fail: the counter is far from its
        // limit.
        unsafe { libc::write(self.fd(), (&raw const one).cast(), size_of::<u64>()) };
    }
}

/// A timeout short enough for the kernel's arithmetic.
pub(crate) fn bounded_sleep(timeout: Duration) -> Duration {
    timeout.min(Duration::from_secs(SLEEP_SECONDS_MAX))
}

/// The offset as the kernel takes it. All ones would mean "the current position"; the value below
/// it is refused, like every other offset beyond the signed range.
pub(crate) fn plain_offset(offset: u64) -> u64 {
    offset.min(u64::MAX - 1)
}

#[cfg(test)]
mod tests;
