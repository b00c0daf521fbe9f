//! Helper threads for blocking calls, and a ring made of them for systems that forbid io_uring.
//!
//! `HelperPool` runs one operation per thread, starts threads as they are needed, and reports
//! through a queue and a wake. [`ThreadRing`] sends file operations there and keeps sockets and
//! pollables on its own thread, as non-blocking calls driven by ppoll(2).
//!
//! Promises: the ring's promises (`ring.rs`). Must never touch an operation's memory after its
//! result was queued.

use std::collections::VecDeque;
use std::io;
use std::marker::PhantomData;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_queue::SegQueue;
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::net::SocketAddrAny;

use crate::ring::{
    EventWake, Io, IoVecs, Ring, SpareIoVecs, Token, Wake, bounded_sleep, plain_offset,
};

/// Most helper threads of one ring.
const HELPERS_MAX: usize = 8;

/// A pool of helper threads that belongs to one ring. Dropping it forgets the jobs that have not
/// started and waits for the others.
pub(crate) struct HelperPool {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
}

struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
    done: SegQueue<(Token, i32)>,
    wake: Arc<EventWake>,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<(Token, Io)>,
    idle: usize,
    closing: bool,
}

impl HelperPool {
    /// Starts no thread yet. Each result wakes `wake`.
    pub(crate) fn new(wake: Arc<EventWake>) -> Self {
        let queue = Mutex::new(Queue::default());
        let shared = Shared { queue, work: Condvar::new(), done: SegQueue::new(), wake };
        Self { shared: Arc::new(shared), helpers: Vec::new() }
    }

    /// Hands a file operation or a closure to a helper. The promise given to `Ring::submit` holds
    /// for the helper too.
    pub(crate) fn submit(&mut self, io: Io, token: Token) {
        let mut queue = self.shared.queue.lock();
        queue.jobs.push_back((token, io));
        let short_of_helpers = queue.jobs.len() > queue.idle && self.helpers.len() < HELPERS_MAX;
        drop(queue);
        if short_of_helpers {
            self.start_helper();
        } else {
            self.shared.work.notify_one();
        }
    }

    /// Whether `drain` would return something.
    pub(crate) fn has_results(&self) -> bool {
        !self.shared.done.is_empty()
    }

    /// Calls `done` for each finished job.
    pub(crate) fn drain(&self, done: &mut dyn FnMut(Token, i32)) {
        while let Some((token, result)) = self.shared.done.pop() {
            done(token, result);
        }
    }

    /// Removes a job that has not started, completing it with -ECANCELED.
    pub(crate) fn cancel(&self, token: Token) {
        let mut queue = self.shared.queue.lock();
        let found = queue.jobs.iter().position(|(queued, _)| *queued == token);
        let job = found.and_then(|index| queue.jobs.remove(index));
        drop(queue);
        if job.is_some() {
            self.shared.done.push((token, -libc::ECANCELED));
        }
    }

    fn start_helper(&mut self) {
        let shared = Arc::clone(&self.shared);
        let name = format!("cairn-helper-{}", self.helpers.len());
        match thread::Builder::new().name(name).spawn(move || shared.help()) {
            Ok(helper) => self.helpers.push(helper),
            Err(error) if self.helpers.is_empty() => {
                tracing::error!("cannot start a helper thread: {error}");
                self.refuse_all();
            }
            // The existing helpers will run the job.
            Err(_) => drop(self.shared.work.notify_one()),
        }
    }

    fn refuse_all(&self) {
        let jobs = std::mem::take(&mut self.shared.queue.lock().jobs);
        for (token, _) in jobs {
            self.shared.done.push((token, -libc::ENOMEM));
        }
    }
}

impl Drop for HelperPool {
    fn drop(&mut self) {
        let mut queue = self.shared.queue.lock();
        queue.closing = true;
        let unstarted = std::mem::take(&mut queue.jobs);
        drop(queue);
        drop(unstarted);
        self.shared.work.notify_all();
        for helper in self.helpers.drain(..) {
            // A helper catches the panics of its jobs, so there is nothing to report here.
            let _ = helper.join();
        }
    }
}

impl Shared {
    /// The life of a helper: run jobs, sleep when there are none, end when the pool closes.
    fn help(&self) {
        let mut queue = self.queue.lock();
        loop {
            if let Some((token, io)) = queue.jobs.pop_front() {
                MutexGuard::unlocked(&mut queue, || {
                    self.done.push((token, perform(io)));
                    self.wake.wake();
                });
            } else if queue.closing {
                return;
            } else {
                queue.idle += 1;
                self.work.wait(&mut queue);
                queue.idle -= 1;
            }
        }
    }
}

/// Runs one operation to its end, on this thread.
fn perform(io: Io) -> i32 {
    match io {
        Io::ReadV { fd, iov, offset } => {
            let (base, count, offset) = transfer(&iov, offset);
            // SAFETY: the array lives in `iov`; its memory is the submitter's promise.
            uninterrupted(|| unsafe { libc::preadv(fd, base, count, offset) })
        }
        Io::WriteV { fd, iov, offset, dsync } => {
            let (base, count, offset) = transfer(&iov, offset);
            let flags = if dsync { libc::RWF_DSYNC } else { 0 };
            // SAFETY: the array lives in `iov`; its memory is the submitter's promise.
            uninterrupted(|| unsafe { libc::pwritev2(fd, base, count, offset, flags) })
        }
        Io::Fdatasync { fd } => {
            // SAFETY: no memory is passed.
            uninterrupted(|| unsafe { libc::fdatasync(fd) as isize })
        }
        Io::Fallocate { fd, mode, offset, len } => {
            let (offset, len) = (offset as i64, len as i64);
            // SAFETY: no memory is passed.
            uninterrupted(|| unsafe { libc::fallocate(fd, mode, offset, len) as isize })
        }
        Io::Blocking(work) => catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
            tracing::error!("a blocking operation panicked; it is answered with EIO");
            -libc::EIO
        }),
        // No system call sends one.
        Io::UringCmd { .. } => -libc::EOPNOTSUPP,
        Io::Recv { .. }
        | Io::Send { .. }
        | Io::Accept { .. }
        | Io::Connect { .. }
        | Io::PollIn { .. }
        | Io::PollOut { .. }
        | Io::PollHup { .. } => {
            unreachable!("sockets and pollables never reach a helper thread")
        }
    }
}

fn transfer(iov: &IoVecs, offset: u64) -> (*const libc::iovec, i32, i64) {
    (iov.as_ptr(), iov.count() as i32, plain_offset(offset) as i64)
}

/// Repeats an interrupted call; returns the result as a ring reports it.
fn uninterrupted(mut call: impl FnMut() -> isize) -> i32 {
    loop {
        let result = call();
        if result >= 0 {
            // The kernel moves less than 2 GiB per call.
            return result as i32;
        }
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR) => {}
            errno => return -errno.unwrap_or(libc::EIO),
        }
    }
}

/// The ring for systems that forbid io_uring.
pub struct ThreadRing {
    pool: HelperPool,
    wake: Arc<EventWake>,
    waiting: Vec<SocketOp>,
    polled: Vec<libc::pollfd>,
    ready: VecDeque<Finished>,
    spare: SpareIoVecs,
    one_thread: PhantomData<*const ()>,
}

struct SocketOp {
    token: Token,
    fd: RawFd,
    kind: SocketKind,
}

enum SocketKind {
    Recv(IoVecs),
    Send(IoVecs),
    Accept,
    Connect(Box<SocketAddrAny>),
    /// The poll(2) bits to wait for.
    Poll(i16),
}

struct Finished {
    token: Token,
    result: i32,
    /// The result is a descriptor that has no owner until it is reaped.
    accepted: bool,
}

impl ThreadRing {
    /// The name of this ring in the log.
    pub const NAME: &str = "threads";

    /// Opens a ring; no helper thread runs until the first file operation.
    pub fn new() -> io::Result<Self> {
        let wake = Arc::new(EventWake::new()?);
        Ok(Self {
            pool: HelperPool::new(Arc::clone(&wake)),
            wake,
            waiting: Vec::new(),
            polled: Vec::new(),
            ready: VecDeque::new(),
            spare: SpareIoVecs::default(),
            one_thread: PhantomData,
        })
    }

    fn watch(&mut self, fd: RawFd, kind: SocketKind, token: Token) {
        self.waiting.push(SocketOp { token, fd, kind });
    }

    /// Polls the wake-up and every waiting descriptor once, and tries the operations that are
    /// ready.
    fn sweep(&mut self, timeout: Option<Duration>) {
        let wake = libc::pollfd { fd: self.wake.fd(), events: libc::POLLIN, revents: 0 };
        self.polled.clear();
        self.polled.push(wake);
        self.polled.extend(self.waiting.iter().map(SocketOp::interest));
        if !poll(&mut self.polled, timeout) {
            return;
        }
        if self.polled[0].revents != 0 {
            self.wake.drain();
        }
        let mut seen = self.polled[1..].iter().map(|polled| polled.revents);
        self.waiting.retain_mut(|op| {
            let revents = seen.next().expect("one entry was polled per waiting operation");
            let Some(result) = op.attempt(revents) else { return true };
            let accepted = matches!(op.kind, SocketKind::Accept);
            self.ready.push_back(Finished { token: op.token, result, accepted });
            if let SocketKind::Recv(iov) | SocketKind::Send(iov) = &mut op.kind {
                self.spare.keep(std::mem::take(iov));
            }
            false
        });
    }
}

/// Sleeps in ppoll; `false` when nothing is ready or a signal came.
fn poll(polled: &mut [libc::pollfd], timeout: Option<Duration>) -> bool {
    let timeout = timeout.map(bounded_sleep).map(|timeout| libc::timespec {
        tv_sec: timeout.as_secs() as i64,
        tv_nsec: i64::from(timeout.subsec_nanos()),
    });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let count = polled.len() as libc::nfds_t;
    // SAFETY: the array and the time outlive the call; no signal mask is given.
    unsafe { libc::ppoll(polled.as_mut_ptr(), count, timeout, std::ptr::null()) > 0 }
}

impl SocketOp {
    fn interest(&self) -> libc::pollfd {
        let events = match self.kind {
            SocketKind::Send(_) | SocketKind::Connect(_) => libc::POLLOUT,
            SocketKind::Recv(_) | SocketKind::Accept => libc::POLLIN,
            SocketKind::Poll(events) => events,
        };
        libc::pollfd { fd: self.fd, events, revents: 0 }
    }

    /// The result, or `None` if the operation must wait.
    fn attempt(&self, revents: i16) -> Option<i32> {
        if revents == 0 {
            return None;
        }
        let result = match &self.kind {
            SocketKind::Poll(_) if revents & libc::POLLNVAL != 0 => -libc::EBADF,
            SocketKind::Poll(_) => i32::from(revents),
            SocketKind::Connect(address) => return connect(self.fd, address),
            SocketKind::Accept => uninterrupted(|| accept(self.fd)),
            SocketKind::Recv(iov) => {
                let mut message = message(iov);
                // SAFETY: the array lives in `iov`; its memory is the submitter's promise.
                uninterrupted(|| unsafe {
                    libc::recvmsg(self.fd, &raw mut message, libc::MSG_DONTWAIT)
                })
            }
            SocketKind::Send(iov) => {
                let message = message(iov);
                let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
                // SAFETY: the array lives in `iov`; its memory is the submitter's promise.
                uninterrupted(|| unsafe { libc::sendmsg(self.fd, &raw const message, flags) })
            }
        };
        (result != -libc::EAGAIN).then_some(result)
    }
}

/// Starts to connect, or asks how that ends: the system tells by the same call. `None` while it
/// is under way. (A socket that does not connect polls as writable.)
fn connect(socket: RawFd, address: &SocketAddrAny) -> Option<i32> {
    let (address, length) = (address.as_ptr().cast(), address.addr_len());
    // SAFETY: the address outlives the call.
    match uninterrupted(|| unsafe { libc::connect(socket, address, length) as isize }) {
        INPROGRESS | ALREADY => None,
        result => Some(result),
    }
}

const INPROGRESS: i32 = -libc::EINPROGRESS;
const ALREADY: i32 = -libc::EALREADY;

fn accept(listener: RawFd) -> isize {
    let (address, length) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: no address is asked for.
    unsafe { libc::accept4(listener, address, length, libc::SOCK_CLOEXEC) as isize }
}

/// A message header that points into `iov`.
pub(crate) fn message(iov: &IoVecs) -> libc::msghdr {
    // SAFETY: all zero is a valid header: no name, no control data, no memory.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = iov.as_ptr().cast_mut();
    message.msg_iovlen = iov.count() as _;
    message
}

/// Another process may empty the listener between poll and accept; the accept must not block then,
/// nor a connect ever.
fn make_nonblocking(fd: RawFd) {
    // SAFETY: no memory is passed. A failure shows in the result of the accept.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        if flags >= 0 && flags & libc::O_NONBLOCK == 0 {
            libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK);
        }
    }
}

impl Ring for ThreadRing {
    unsafe fn submit(&mut self, io: Io, token: Token) {
        match io {
            Io::Recv { fd, iov, .. } => self.watch(fd, SocketKind::Recv(iov), token),
            Io::Send { fd, iov, .. } => self.watch(fd, SocketKind::Send(iov), token),
            Io::PollIn { fd } => self.watch(fd, SocketKind::Poll(libc::POLLIN), token),
            Io::PollOut { fd } => self.watch(fd, SocketKind::Poll(libc::POLLOUT), token),
            Io::PollHup { fd } => self.watch(fd, SocketKind::Poll(libc::POLLRDHUP), token),
            Io::Connect { fd, address } => {
                make_nonblocking(fd);
                self.watch(fd, SocketKind::Connect(address), token);
            }
            Io::Accept { fd } => {
                make_nonblocking(fd);
                self.watch(fd, SocketKind::Accept, token);
            }
            file => self.pool.submit(file, token),
        }
    }

    fn kick(&mut self) {
        if !self.waiting.is_empty() {
            self.sweep(Some(Duration::ZERO));
        }
    }

    fn reap(&mut self, done: &mut dyn FnMut(Token, i32)) {
        while let Some(finished) = self.ready.pop_front() {
            done(finished.token, finished.result);
        }
        self.pool.drain(done);
    }

    fn wait(&mut self, timeout: Option<Duration>) {
        let ready = !self.ready.is_empty() || self.pool.has_results() || !self.wake.fall_asleep();
        self.sweep(if ready { Some(Duration::ZERO) } else { timeout });
        self.wake.end_sleep();
    }

    fn cancel(&mut self, token: Token) {
        match self.waiting.iter().position(|op| op.token == token) {
            None => self.pool.cancel(token),
            Some(index) => {
                self.waiting.remove(index);
                let result = -libc::ECANCELED;
                self.ready.push_back(Finished { token, result, accepted: false });
            }
        }
    }

    fn waker(&self) -> Arc<dyn Wake> {
        Arc::clone(&self.wake) as Arc<dyn Wake>
    }

    fn spare_iovecs(&mut self) -> IoVecs {
        self.spare.take()
    }

    fn is_ready(&mut self) -> bool {
        !self.ready.is_empty() || self.pool.has_results() || self.wake.is_woken()
    }
}

impl Drop for ThreadRing {
    fn drop(&mut self) {
        for finished in self.ready.drain(..).filter(|finished| finished.accepted) {
            close_accepted(finished.result);
        }
    }
}

/// Closes the descriptor of an accept that was never reaped.
pub(crate) fn close_accepted(result: i32) {
    if result >= 0 {
        // SAFETY: the descriptor came from an accept and was never handed out.
        unsafe { libc::close(result) };
    }
}
