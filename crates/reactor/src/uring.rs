//! The ring over io_uring: one kernel ring per reactor thread, one system call per batch.
//!
//! Owns the slots that keep what the kernel reads (iovec arrays, message headers, addresses) at a
//! fixed address until the completion, and the list of operations that did not fit into the
//! kernel's queue. A wake arrives as the completion of an eventfd read that is in flight in the
//! ring itself.
//!
//! Promises: the ring's promises (`ring.rs`). Must never free a slot or itself while the kernel
//! holds an operation that names it.

use std::collections::VecDeque;
use std::ffi::CStr;
use std::io;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use io_uring::types::{Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, opcode, squeue};

use rustix::net::SocketAddrAny;

use crate::ring::{
    EventWake, Io, IoVecs, Ring, SpareIoVecs, Token, Wake, bounded_sleep, plain_offset,
};
use crate::threads::{HelperPool, close_accepted, message};

/// Length of the kernel's submission queue; operations beyond it wait in `overflow`.
const SQ_ENTRIES: u32 = 256;

/// The kernel's completion queue is this many times longer, for the completions of several batches.
const CQ_FACTOR: u32 = 8;

/// Slots are allocated in chunks of this many, and never move.
const SLOTS_PER_CHUNK: usize = 64;

/// `user_data` of the wake-up read and of cancellations; no slot has these values.
const WAKE_DATA: u64 = u64::MAX;
const CANCEL_DATA: u64 = u64::MAX - 1;

/// What the kernel must support; the first release with all of it is 5.11.
const OPCODES: [u8; 14] = [
    opcode::Read::CODE,
    opcode::Readv::CODE,
    opcode::Write::CODE,
    opcode::Writev::CODE,
    opcode::Fsync::CODE,
    opcode::Fallocate::CODE,
    opcode::Recv::CODE,
    opcode::RecvMsg::CODE,
    opcode::Send::CODE,
    opcode::SendMsg::CODE,
    opcode::Accept::CODE,
    opcode::Connect::CODE,
    opcode::PollAdd::CODE,
    opcode::AsyncCancel::CODE,
];

/// The ring over io_uring.
pub struct UringRing {
    ring: IoUring,
    slots: Slots,
    overflow: VecDeque<squeue::Entry>,
    pool: HelperPool,
    wake: Arc<EventWake>,
    wake_armed: bool,
    wake_count: Box<[u8; 8]>,
    /// The kernel sends commands to drivers (since 5.19).
    sends_commands: bool,
    /// A receive of everything that is cancelled tells what it received (since 6.1).
    tells_what_was_received: bool,
    /// The kernel takes submissions only from the thread that opened the ring.
    one_thread: PhantomData<*const ()>,
}

impl UringRing {
    /// The name of this ring in the log.
    pub const NAME: &str = "io_uring";

    /// Opens a ring for the calling thread; an error where io_uring is forbidden, absent or older
    /// than needed.
    pub fn new() -> io::Result<Self> {
        Self::with_entries(SQ_ENTRIES)
    }

    pub(crate) fn with_entries(entries: u32) -> io::Result<Self> {
        let ring = open_kernel_ring(entries)?;
        let sends_commands = check_features(&ring)?;
        let wake = Arc::new(EventWake::new()?);
        Ok(Self {
            ring,
            slots: Slots::default(),
            overflow: VecDeque::new(),
            pool: HelperPool::new(Arc::clone(&wake)),
            wake,
            wake_armed: false,
            wake_count: Box::new([0; 8]),
            sends_commands,
            tells_what_was_received: is_kernel_since(rustix::system::uname().release(), (6, 1)),
            one_thread: PhantomData,
        })
    }

    /// Queues an entry behind all earlier ones. The memory it points to must stay until its
    /// completion; that memory is a slot, or the wake-up's buffer.
    fn push(&mut self, entry: squeue::Entry) {
        // SAFETY: see above.
        let fits =
            self.overflow.is_empty() && unsafe { self.ring.submission().push(&entry) }.is_ok();
        if !fits {
            self.overflow.push_back(entry);
        }
    }

    /// Moves entries to the kernel's queue; `false` if some are left over.
    fn fill(&mut self) -> bool {
        let mut queue = self.ring.submission();
        while let Some(entry) = self.overflow.front() {
            // SAFETY: the memory it points to stays until its completion: see `push`.
            if unsafe { queue.push(entry) }.is_err() {
                return false;
            }
            self.overflow.pop_front();
        }
        true
    }

    /// Submits the kernel's queue, and waits for one completion if `sleep`. `false` if the kernel
    /// needs completions to be reaped, or memory, before it takes more.
    fn enter(&mut self, sleep: bool, timeout: Option<Duration>) -> bool {
        let submitter = self.ring.submitter();
        let entered = match timeout {
            _ if !sleep => submitter.submit(),
            None => submitter.submit_and_wait(1),
            Some(timeout) => {
                let time = Timespec::from(bounded_sleep(timeout));
                submitter.submit_with_args(1, &SubmitArgs::new().timespec(&time))
            }
        };
        match entered {
            Ok(_) => true,
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR | libc::ETIME) => true,
                Some(libc::EAGAIN | libc::EBUSY) => false,
                _ => panic!("io_uring_enter on our own ring: {error}"),
            },
        }
    }

    /// True if there is nothing to submit, and no completion that needs a system call to be
    /// delivered.
    fn kernel_is_idle(&mut self) -> bool {
        let queue = self.ring.submission();
        queue.is_empty() && !queue.taskrun() && !queue.cq_overflow()
    }

    fn arm_wake(&mut self) {
        if !self.wake_armed {
            self.wake_armed = true;
            let count = self.wake_count.as_mut_ptr();
            let read = opcode::Read::new(Fd(self.wake.fd()), count, 8).build();
            self.push(read.user_data(WAKE_DATA));
        }
    }

    fn push_cancel(&mut self, target: u64) {
        self.push(opcode::AsyncCancel::new(target).build().user_data(CANCEL_DATA));
    }

    /// Empties the kernel's completion queue.
    fn collect(&mut self, done: &mut dyn FnMut(Finished)) {
        for completion in self.ring.completion() {
            match completion.user_data() {
                WAKE_DATA => self.wake_armed = false,
                CANCEL_DATA => {}
                data => done(self.slots.finish(data, completion.result())),
            }
        }
    }
}

impl Ring for UringRing {
    unsafe fn submit(&mut self, io: Io, token: Token) {
        match io {
            Io::Blocking(_) => self.pool.submit(io, token),
            Io::UringCmd { .. } if !self.sends_commands => self.pool.submit(io, token),
            io => {
                let io = match io {
                    Io::Recv { fd, iov, .. } if !self.tells_what_was_received => {
                        Io::Recv { fd, iov, all: false }
                    }
                    io => io,
                };
                let entry = self.slots.start(io, token);
                self.push(entry);
            }
        }
    }

    fn kick(&mut self) {
        loop {
            let everything = self.fill();
            if self.kernel_is_idle() || !self.enter(false, None) || everything {
                return;
            }
        }
    }

    fn reap(&mut self, done: &mut dyn FnMut(Token, i32)) {
        self.collect(&mut |finished| done(finished.token, finished.result));
        self.pool.drain(done);
    }

    fn wait(&mut self, timeout: Option<Duration>) {
        self.arm_wake();
        let mut stuck = false;
        while !stuck && !self.fill() {
            stuck = !self.enter(false, None);
        }
        let completed = !self.ring.completion().is_empty() || self.pool.has_results();
        let sleep = !stuck && !completed && self.wake.fall_asleep();
        if sleep || !self.kernel_is_idle() {
            self.enter(sleep, timeout);
        }
        self.wake.end_sleep();
    }

    fn cancel(&mut self, token: Token) {
        match self.slots.find(token) {
            Some(data) => self.push_cancel(data),
            None => self.pool.cancel(token),
        }
    }

    fn waker(&self) -> Arc<dyn Wake> {
        Arc::clone(&self.wake) as Arc<dyn Wake>
    }

    fn is_ready(&mut self) -> bool {
        !self.ring.completion().is_empty()
            || self.ring.submission().taskrun()
            || self.pool.has_results()
            || self.wake.is_woken()
    }

    fn spare_iovecs(&mut self) -> IoVecs {
        self.slots.spare.take()
    }
}

impl Drop for UringRing {
    /// The kernel may still write to the memory of operations, so this cancels them and waits. If
    /// even that fails, `enter` panics; the process must then not go on.
    fn drop(&mut self) {
        let abort_guard = AbortOnUnwind;
        for data in self.slots.in_flight() {
            self.push_cancel(data);
        }
        if self.wake_armed {
            self.push_cancel(WAKE_DATA);
        }
        while self.wake_armed || self.slots.busy > 0 {
            let everything = self.fill();
            self.enter(everything, None);
            self.collect(&mut |finished| {
                if finished.accepted {
                    close_accepted(finished.result);
                }
            });
        }
        std::mem::forget(abort_guard);
    }
}

struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}

/// The kernel's ring, with the best task-running mode that the kernel knows (6.1, then 5.19, then
/// any).
fn open_kernel_ring(entries: u32) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder.setup_clamp().setup_cqsize(entries * CQ_FACTOR);
    let plain = builder.clone();
    builder.setup_submit_all().setup_coop_taskrun().setup_taskrun_flag();
    let cooperative = builder.clone();
    builder.setup_single_issuer().setup_defer_taskrun();
    let unknown = |error: &io::Error| error.raw_os_error() == Some(libc::EINVAL);
    match builder.build(entries) {
        Err(error) if unknown(&error) => match cooperative.build(entries) {
            Err(error) if unknown(&error) => plain.build(entries),
            opened => opened,
        },
        opened => opened,
    }
}

/// Whether the kernel sends commands to drivers; an error if it lacks something else.
fn check_features(ring: &IoUring) -> io::Result<bool> {
    let params = ring.params();
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    let complete = params.is_feature_ext_arg()
        && params.is_feature_nodrop()
        && OPCODES.iter().all(|code| probe.is_supported(*code));
    if complete {
        return Ok(probe.is_supported(opcode::UringCmd16::CODE));
    }
    Err(io::Error::new(io::ErrorKind::Unsupported, "this kernel's io_uring is older than 5.11"))
}

/// The completion of a slot's operation.
struct Finished {
    token: Token,
    result: i32,
    /// The result is a descriptor that has no owner until it is reaped.
    accepted: bool,
}

/// What the kernel reads for one operation; its address is fixed while the operation is in flight.
struct Slot {
    token: Token,
    generation: u32,
    busy: bool,
    accepts: bool,
    iov: IoVecs,
    message: libc::msghdr,
    address: Option<Box<SocketAddrAny>>,
}

impl Slot {
    fn new() -> Self {
        let iov = IoVecs::new();
        let message = message(&iov);
        Self { token: 0, generation: 0, busy: false, accepts: false, iov, message, address: None }
    }

    /// Stores the operation's iovecs in the slot and makes the kernel's entry.
    fn prepare(&mut self, io: Io) -> squeue::Entry {
        self.accepts = matches!(io, Io::Accept { .. });
        match io {
            Io::ReadV { fd, iov, offset } => self.read(Fd(fd), iov, plain_offset(offset)),
            Io::WriteV { fd, iov, offset, dsync } => {
                let flags = if dsync { libc::RWF_DSYNC } else { 0 };
                self.write(Fd(fd), iov, plain_offset(offset), flags)
            }
            Io::Fdatasync { fd } => opcode::Fsync::new(Fd(fd)).flags(FsyncFlags::DATASYNC).build(),
            Io::Fallocate { fd, mode, offset, len } => {
                opcode::Fallocate::new(Fd(fd), len).offset(offset).mode(mode).build()
            }
            Io::Recv { fd, iov, all } => self.recv(Fd(fd), iov, wait_all(all)),
            Io::Send { fd, iov, all } => self.send(Fd(fd), iov, libc::MSG_NOSIGNAL | wait_all(all)),
            Io::Accept { fd } => {
                let no_address = std::ptr::null_mut();
                opcode::Accept::new(Fd(fd), no_address, std::ptr::null_mut())
                    .flags(libc::SOCK_CLOEXEC)
                    .build()
            }
            Io::Connect { fd, address } => {
                let address = self.address.insert(address);
                opcode::Connect::new(Fd(fd), address.as_ptr().cast(), address.addr_len()).build()
            }
            Io::PollIn { fd } => opcode::PollAdd::new(Fd(fd), libc::POLLIN as u32).build(),
            Io::PollOut { fd } => opcode::PollAdd::new(Fd(fd), libc::POLLOUT as u32).build(),
            Io::PollHup { fd } => opcode::PollAdd::new(Fd(fd), libc::POLLRDHUP as u32).build(),
            Io::UringCmd { fd, command, argument } => {
                opcode::UringCmd16::new(Fd(fd), command).cmd(argument).build()
            }
            Io::Blocking(_) => unreachable!("closures go to the helper threads"),
        }
    }

    fn read(&mut self, fd: Fd, iov: IoVecs, offset: u64) -> squeue::Entry {
        self.iov = iov;
        match self.iov.only() {
            Some((base, len)) => opcode::Read::new(fd, base, len).offset(offset).build(),
            None => opcode::Readv::new(fd, self.iov.as_ptr(), self.iov.count() as u32)
                .offset(offset)
                .build(),
        }
    }

    fn write(&mut self, fd: Fd, iov: IoVecs, offset: u64, flags: i32) -> squeue::Entry {
        self.iov = iov;
        match self.iov.only() {
            Some((base, len)) => {
                opcode::Write::new(fd, base, len).offset(offset).rw_flags(flags).build()
            }
            None => opcode::Writev::new(fd, self.iov.as_ptr(), self.iov.count() as u32)
                .offset(offset)
                .rw_flags(flags)
                .build(),
        }
    }

    fn recv(&mut self, fd: Fd, iov: IoVecs, flags: i32) -> squeue::Entry {
        self.iov = iov;
        match self.iov.only() {
            Some((base, len)) => opcode::Recv::new(fd, base, len).flags(flags).build(),
            None => {
                self.message = message(&self.iov);
                opcode::RecvMsg::new(fd, &raw mut self.message).flags(flags as u32).build()
            }
        }
    }

    fn send(&mut self, fd: Fd, iov: IoVecs, flags: i32) -> squeue::Entry {
        self.iov = iov;
        match self.iov.only() {
            Some((base, len)) => opcode::Send::new(fd, base, len).flags(flags).build(),
            None => {
                self.message = message(&self.iov);
                opcode::SendMsg::new(fd, &raw const self.message).flags(flags as u32).build()
            }
        }
    }
}

/// True for the release of a kernel of at least this version.
fn is_kernel_since(release: &CStr, version: (u32, u32)) -> bool {
    let text = release.to_string_lossy();
    let mut numbers = text.split(['.', '-']).map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= version
}

/// The flag that makes the kernel continue after a short transfer; older kernels ignore it.
fn wait_all(all: bool) -> i32 {
    if all { libc::MSG_WAITALL } else { 0 }
}

/// Slots in chunks that never move. `user_data` is the slot's generation above its index, so a late
/// cancellation cannot hit the slot's next operation.
#[derive(Default)]
struct Slots {
    chunks: Vec<Box<[Slot]>>,
    free: Vec<u32>,
    busy: usize,
    spare: SpareIoVecs,
}

impl Slots {
    /// Takes a slot for the operation and returns its entry.
    fn start(&mut self, io: Io, token: Token) -> squeue::Entry {
        let index = self.free.pop().unwrap_or_else(|| self.grow());
        self.busy += 1;
        let slot = self.at(index);
        assert!(!slot.busy, "a free slot is not in flight");
        slot.busy = true;
        slot.token = token;
        slot.generation = slot.generation.wrapping_add(1);
        let data = pack(slot.generation, index);
        slot.prepare(io).user_data(data)
    }

    /// Frees the slot of a completion.
    fn finish(&mut self, data: u64, result: i32) -> Finished {
        let index = data as u32;
        let slot = self.at(index);
        let current = slot.busy && pack(slot.generation, index) == data;
        assert!(current, "each operation completes once");
        slot.busy = false;
        let iov = std::mem::take(&mut slot.iov);
        let finished = Finished { token: slot.token, result, accepted: slot.accepts };
        self.free.push(index);
        self.busy -= 1;
        self.spare.keep(iov);
        finished
    }

    fn find(&self, token: Token) -> Option<u64> {
        self.packed().find(|(slot, _)| slot.token == token).map(|(_, data)| data)
    }

    fn in_flight(&self) -> Vec<u64> {
        self.packed().map(|(_, data)| data).collect()
    }

    fn packed(&self) -> impl Iterator<Item = (&Slot, u64)> {
        let slots = self.chunks.iter().flatten().zip(0..);
        slots.filter(|(slot, _)| slot.busy).map(|(slot, i)| (slot, pack(slot.generation, i)))
    }

    fn at(&mut self, index: u32) -> &mut Slot {
        let index = index as usize;
        &mut self.chunks[index / SLOTS_PER_CHUNK][index % SLOTS_PER_CHUNK]
    }

    /// Adds a chunk; returns its first slot and frees the others.
    fn grow(&mut self) -> u32 {
        let first = (self.chunks.len() * SLOTS_PER_CHUNK) as u32;
        self.chunks.push((0..SLOTS_PER_CHUNK).map(|_| Slot::new()).collect());
        self.free.extend((first + 1..first + SLOTS_PER_CHUNK as u32).rev());
        first
    }
}

fn pack(generation: u32, index: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(index)
}
