//! [`Driver`]: a reactor's ring as disks and exports use it.
//!
//! Owns the operations in flight, and how each ends: it completes a request, or it gives a future
//! its result. Memory and descriptors of an operation stay in its slot until the completion was
//! reaped. Dropping a future cancels its operation but frees nothing before that.
//!
//! A transfer for a request is continued here if the kernel splits it: after a short transfer the
//! rest is submitted. A read that meets the end of the file is an error.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use cairn_block::{Env, IoError, IoResult, Request, RequestId, Segs};
use rustix::net::SocketAddrAny;

use crate::ring::{Io, IoVecs, Ring, Token};
use crate::watch::{Watch, Watches};

/// Direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the file into memory.
    Read,
    /// From memory to the file.
    Write {
        /// Durable when it completes.
        dsync: bool,
    },
}

/// The file of a request's transfer. The transfer keeps it open.
pub trait TransferFile: AsRawFd + Send + Sync + 'static {
    /// A transfer failed in the piece at `offset` bytes. Called before the request completes.
    fn transfer_failed(&self, env: &Env, direction: Direction, offset: u64, error: io::Error);
}

impl TransferFile for OwnedFd {
    fn transfer_failed(&self, _: &Env, _: Direction, _: u64, _: io::Error) {}
}

/// A transfer for a request.
struct Transfer {
    id: RequestId,
    fd: RawFd,
    file: Arc<dyn TransferFile>,
    direction: Direction,
    offset: u64,
    pieces: Vec<(*mut u8, usize)>,
    left: usize,
}

enum Op {
    Transfer(Transfer),
    /// An operation of a future, with the memory and descriptor that it uses.
    Future {
        waiter: Waiter,
        keep: Keep,
    },
}

/// The state of a future that waits for an operation.
enum Waiter {
    /// The future has not been polled.
    NotPolled,
    /// The future's task.
    Task(Waker),
    /// The future was dropped.
    Dropped,
    /// The operation has ended; the future takes the result at its next poll.
    Ended(i32),
}

/// What an operation borrows: its memory and descriptor.
#[derive(Default)]
pub struct Keep {
    segs: Segs,
    _fd: Option<Arc<OwnedFd>>,
    /// The result is a descriptor; it must not leak if the future was dropped.
    accepts: bool,
}

impl Keep {
    /// Ends an operation whose future was dropped.
    fn abandon(self, result: i32) {
        if self.accepts && result >= 0 {
            // SAFETY: accept made this descriptor and its future was dropped, so no other code
            // knows it.
            drop(unsafe { OwnedFd::from_raw_fd(result) });
        }
    }
}

#[derive(Default)]
struct Ops {
    slots: Vec<Option<Op>>,
    free: Vec<usize>,
    /// Recycled piece lists, so that a transfer does not allocate.
    pieces: Vec<Vec<(*mut u8, usize)>>,
}

impl Ops {
    fn insert(&mut self, op: Op) -> Token {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Some(op);
        slot as Token
    }

    /// Frees the slot of an operation that has ended; none if its future will free it.
    fn end(&mut self, token: Token, result: i32) -> Option<Op> {
        let slot = &mut self.slots[token as usize];
        if let Some(Op::Future { waiter, .. }) = slot
            && !matches!(waiter, Waiter::Dropped)
        {
            let ended = std::mem::replace(waiter, Waiter::Ended(result));
            if let Waiter::Task(waker) = ended {
                waker.wake();
            }
            return None;
        }
        let op = slot.take().expect("a ring completes each operation once");
        self.free.push(token as usize);
        Some(op)
    }

    /// The result of a future's operation that has ended; frees its slot.
    fn take_result(&mut self, token: Token) -> Option<(i32, Keep)> {
        let slot = self.slots.get_mut(token as usize)?;
        let Some(Op::Future { waiter: Waiter::Ended(result), keep }) = slot else { return None };
        let ended = (*result, std::mem::take(keep));
        *slot = None;
        self.free.push(token as usize);
        Some(ended)
    }

    /// Sets the waiter of a future's operation that has not ended.
    fn set_waiter(&mut self, token: Token, new: Waiter) {
        if let Some(Some(Op::Future { waiter, .. })) = self.slots.get_mut(token as usize) {
            *waiter = new;
        }
    }
}

/// One reactor's ring with its operations in flight.
pub struct Driver {
    /// None once the reactor has ended.
    ring: RefCell<Option<Box<dyn Ring>>>,
    ops: RefCell<Ops>,
    reaped: RefCell<Vec<(Token, i32)>>,
    pub(crate) watches: Rc<Watches>,
}

impl Driver {
    /// A driver over `ring`.
    pub fn new(ring: Box<dyn Ring>) -> Driver {
        Driver {
            ring: RefCell::new(Some(ring)),
            ops: RefCell::default(),
            reaped: RefCell::default(),
            watches: Rc::default(),
        }
    }

    /// The driver of `env`'s reactor.
    pub fn of(env: &Env) -> &Rc<Driver> {
        env.mechanism::<Rc<Driver>>().expect("a disk over a ring is used in a world with rings")
    }

    pub(crate) fn ring(&self) -> std::cell::RefMut<'_, Box<dyn Ring>> {
        std::cell::RefMut::map(self.ring.borrow_mut(), |ring| {
            ring.as_mut().expect("nothing is submitted after the end of the reactor")
        })
    }

    /// Ends the ring: cancels the operations in flight and waits for them. Afterwards the kernel
    /// touches no memory of this reactor, so requests and buffers may be freed.
    pub(crate) fn close(&self) {
        drop(self.ring.borrow_mut().take());
        let ops = self.ops.take();
        drop(ops);
    }

    fn submit(&self, io: Io, op: Op) -> Token {
        let token = self.ops.borrow_mut().insert(op);
        // SAFETY: the memory and descriptor that `io` names are owned by `op` (a Keep, or the
        // request whose id it holds: its box stays parked, with its segments, until `op` ends), and
        // `op` stays in its slot until the completion was reaped. A reactor that ends with
        // operations in flight closes the ring before it frees requests and slots.
        unsafe { self.ring().submit(io, token) };
        token
    }

    /// Moves a request's data between its segments and `file`, at `offset` bytes; then
    /// completes it. The caller answers [`cairn_block::Flow::Queued`].
    pub fn transfer(
        &self,
        file: &Arc<impl TransferFile>,
        request: &Request,
        direction: Direction,
        offset: u64,
    ) {
        let mut pieces = self.ops.borrow_mut().pieces.pop().unwrap_or_default();
        pieces.extend(request.iovecs());
        let left = pieces.iter().map(|(_, len)| len).sum();
        let (id, fd, file) = (request.id(), file.as_raw_fd(), file.clone());
        self.submit_transfer(Transfer { id, fd, file, direction, offset, pieces, left });
    }

    fn submit_transfer(&self, transfer: Transfer) {
        let fd = transfer.fd;
        let mut iov = self.ring().spare_iovecs();
        transfer.pieces.iter().for_each(|(base, len)| iov.push(*base, *len));
        let io = match transfer.direction {
            Direction::Read => Io::ReadV { fd, iov, offset: transfer.offset },
            Direction::Write { dsync } => Io::WriteV { fd, iov, offset: transfer.offset, dsync },
        };
        self.submit(io, Op::Transfer(transfer));
    }

    fn future(self: &Rc<Self>, io: Io, keep: Keep) -> OpFuture {
        let token = self.submit(io, Op::Future { waiter: Waiter::NotPolled, keep });
        OpFuture { driver: self.clone(), token, ended: false, segs: Segs::default() }
    }

    /// The addresses of `segs`, in a recycled array.
    fn iovecs(&self, segs: &Segs) -> IoVecs {
        let mut iov = self.ring().spare_iovecs();
        segs.iovecs().for_each(|(base, len)| iov.push(base, len));
        iov
    }

    /// Receives into `segs`; returns bytes (0 at the end) or `-errno`. With `all`, the kernel is
    /// asked to return only once all of it has arrived; it may return earlier.
    pub fn recv(self: &Rc<Self>, socket: &Arc<OwnedFd>, segs: Segs, all: bool) -> OpFuture {
        let (fd, iov) = (socket.as_raw_fd(), self.iovecs(&segs));
        let keep = Keep { segs, _fd: Some(socket.clone()), accepts: false };
        self.future(Io::Recv { fd, iov, all }, keep)
    }

    /// Sends from `segs`; returns bytes or `-errno`. The kernel is asked to send all of it, but may
    /// send less.
    pub fn send(self: &Rc<Self>, socket: &Arc<OwnedFd>, segs: Segs) -> OpFuture {
        let (fd, iov) = (socket.as_raw_fd(), self.iovecs(&segs));
        let keep = Keep { segs, _fd: Some(socket.clone()), accepts: false };
        self.future(Io::Send { fd, iov, all: true }, keep)
    }

    /// Accepts a connection; returns a descriptor that the caller owns, or `-errno`.
    pub fn accept(self: &Rc<Self>, listener: &Arc<OwnedFd>) -> OpFuture {
        let keep = Keep { _fd: Some(listener.clone()), accepts: true, ..Keep::default() };
        self.future(Io::Accept { fd: listener.as_raw_fd() }, keep)
    }

    /// Waits until `fd` is readable; returns poll's revents or `-errno`.
    pub fn readable(self: &Rc<Self>, fd: &Arc<OwnedFd>) -> OpFuture {
        let keep = Keep { _fd: Some(fd.clone()), ..Keep::default() };
        self.future(Io::PollIn { fd: fd.as_raw_fd() }, keep)
    }

    /// Waits until `fd` is writable; returns poll's revents or `-errno`.
    pub fn writable(self: &Rc<Self>, fd: &Arc<OwnedFd>) -> OpFuture {
        let keep = Keep { _fd: Some(fd.clone()), ..Keep::default() };
        self.future(Io::PollOut { fd: fd.as_raw_fd() }, keep)
    }

    /// Waits until the peer of `socket` has ended its own sending, or is gone: true if that is
    /// certain. A peer over TCP that is gone looks like one that may still read, until it is sent
    /// something.
    pub async fn hung_up(self: &Rc<Self>, socket: &Arc<OwnedFd>) -> bool {
        let keep = Keep { _fd: Some(socket.clone()), ..Keep::default() };
        let events = self.future(Io::PollHup { fd: socket.as_raw_fd() }, keep).await;
        events < 0 || events & i32::from(libc::POLLHUP | libc::POLLERR) != 0
    }

    /// Has the reactor look at memory while it is awake: `is_ready` says whether something came. It
    /// is called between tasks, often.
    pub fn watch(&self, is_ready: impl Fn() -> bool + 'static) -> Watch {
        Watch::new(self.watches.clone(), is_ready)
    }

    /// Connects `socket`; returns 0 or `-errno`.
    pub fn connect(self: &Rc<Self>, socket: &Arc<OwnedFd>, address: SocketAddrAny) -> OpFuture {
        let keep = Keep { _fd: Some(socket.clone()), ..Keep::default() };
        self.future(Io::Connect { fd: socket.as_raw_fd(), address: Box::new(address) }, keep)
    }

    /// Reads `file` at `offset` bytes into `segs`; returns bytes (0 at the end) or `-errno`. May be
    /// short.
    pub fn read_at(self: &Rc<Self>, file: &Arc<OwnedFd>, segs: Segs, offset: u64) -> OpFuture {
        let io = Io::ReadV { fd: file.as_raw_fd(), iov: segs.iovecs().collect(), offset };
        self.future(io, Keep { segs, _fd: Some(file.clone()), accepts: false })
    }

    /// Writes `segs` to `file` at `offset` bytes, durably if `dsync`; returns bytes or `-errno`.
    /// May be short.
    pub fn write_at(
        self: &Rc<Self>,
        file: &Arc<OwnedFd>,
        segs: Segs,
        offset: u64,
        dsync: bool,
    ) -> OpFuture {
        let iov = segs.iovecs().collect();
        let io = Io::WriteV { fd: file.as_raw_fd(), iov, offset, dsync };
        self.future(io, Keep { segs, _fd: Some(file.clone()), accepts: false })
    }

    /// Makes completed writes to `file` durable; returns 0 or `-errno`.
    pub fn fdatasync(self: &Rc<Self>, file: &Arc<OwnedFd>) -> OpFuture {
        let keep = Keep { _fd: Some(file.clone()), ..Keep::default() };
        self.future(Io::Fdatasync { fd: file.as_raw_fd() }, keep)
    }

    /// Changes the allocation of `len` bytes of `file` from `offset`, as fallocate(2) does; returns
    /// 0 or `-errno`.
    pub fn fallocate(
        self: &Rc<Self>,
        file: &Arc<OwnedFd>,
        mode: i32,
        offset: u64,
        len: u64,
    ) -> OpFuture {
        let io = Io::Fallocate { fd: file.as_raw_fd(), mode, offset, len };
        self.future(io, Keep { _fd: Some(file.clone()), ..Keep::default() })
    }

    /// Runs `work` on a helper thread and returns its result.
    pub fn run(self: &Rc<Self>, work: impl FnOnce() -> i32 + Send + 'static) -> OpFuture {
        self.future(Io::Blocking(Box::new(work)), Keep::default())
    }

    /// Handles every completion. True if there was one.
    pub(crate) fn reap(&self, env: &Env) -> bool {
        let mut reaped = std::mem::take(&mut *self.reaped.borrow_mut());
        self.ring().reap(&mut |token, result| reaped.push((token, result)));
        let any = !reaped.is_empty();
        for (token, result) in reaped.drain(..) {
            let Some(op) = self.ops.borrow_mut().end(token, result) else { continue };
            match op {
                Op::Transfer(transfer) => self.end_transfer(env, transfer, result),
                Op::Future { keep, .. } => keep.abandon(result),
            }
        }
        *self.reaped.borrow_mut() = reaped;
        any
    }

    fn end_transfer(&self, env: &Env, mut transfer: Transfer, result: i32) {
        let ended = match usize::try_from(result) {
            Err(_) if result == -libc::EINTR || result == -libc::EAGAIN => None,
            Err(_) => Some(errno_result(result)),
            Ok(0) => Some(Err(IoError::IO)),
            Ok(moved) => {
                transfer.left -= moved.min(transfer.left);
                transfer.offset += moved as u64;
                advance(&mut transfer.pieces, moved);
                (transfer.left == 0).then_some(Ok(()))
            }
        };
        match ended {
            None => self.submit_transfer(transfer),
            Some(ended) => {
                if ended.is_err() {
                    let error = match result {
                        0 => io::ErrorKind::UnexpectedEof.into(),
                        _ => io::Error::from_raw_os_error(-result),
                    };
                    let Transfer { direction, offset, .. } = transfer;
                    transfer.file.transfer_failed(env, direction, offset, error);
                }
                env.complete(transfer.id, ended);
                transfer.pieces.clear();
                self.ops.borrow_mut().pieces.push(transfer.pieces);
            }
        }
    }
}

fn errno_result(result: i32) -> IoResult {
    if result < 0 { Err(IoError::from_errno(-result)) } else { Ok(()) }
}

/// Drops the first `moved` bytes of the pieces.
fn advance(pieces: &mut Vec<(*mut u8, usize)>, mut moved: usize) {
    let whole = pieces.iter().take_while(|(_, len)| {
        let fits = *len <= moved;
        moved -= if fits { *len } else { 0 };
        fits
    });
    let whole = whole.count();
    pieces.drain(..whole);
    if let Some((ptr, len)) = pieces.first_mut() {
        *ptr = ptr.wrapping_add(moved);
        *len -= moved;
    }
}

/// The result of one operation: bytes or `-errno`. Dropping it cancels the operation.
pub struct OpFuture {
    driver: Rc<Driver>,
    token: Token,
    ended: bool,
    segs: Segs,
}

impl OpFuture {
    /// The memory of an operation that has ended, for another one.
    pub fn take_segs(&mut self) -> Segs {
        std::mem::take(&mut self.segs)
    }

    /// Asks the system to end the operation soon. It still has a result: that of what it did, or
    /// `-ECANCELED`.
    pub fn cancel(&self) {
        if !self.ended
            && let Some(ring) = self.driver.ring.borrow_mut().as_mut()
        {
            ring.cancel(self.token);
        }
    }
}

impl Future for OpFuture {
    type Output = i32;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<i32> {
        let this = &mut *self;
        let mut ops = this.driver.ops.borrow_mut();
        if let Some((result, keep)) = ops.take_result(this.token) {
            (this.ended, this.segs) = (true, keep.segs);
            return Poll::Ready(result);
        }
        ops.set_waiter(this.token, Waiter::Task(cx.waker().clone()));
        Poll::Pending
    }
}

impl Drop for OpFuture {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let ended = self.driver.ops.borrow_mut().take_result(self.token);
        if let Some((result, keep)) = ended {
            return keep.abandon(result);
        }
        self.driver.ops.borrow_mut().set_waiter(self.token, Waiter::Dropped);
        if let Some(ring) = self.driver.ring.borrow_mut().as_mut() {
            ring.cancel(self.token);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use cairn_block::ReactorId;
    use rustix::net::{AddressFamily, SocketType, socket};

    use super::*;
    use crate::{Options, Reactors, RingKind};

    #[test]
    fn socket_is_writable_once_it_is_connected() {
        for ring in [RingKind::Auto, RingKind::Threads] {
            let reactors = Reactors::start(Options { count: 1, ring }).unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let ended = reactors.block_on(ReactorId(0), move |env| async move {
                let driver = Driver::of(&env).clone();
                let socket =
                    Arc::new(socket(AddressFamily::INET, SocketType::STREAM, None).unwrap());
                let connected = driver.connect(&socket, address.into()).await;
                (connected, driver.writable(&socket).await)
            });
            assert_eq!(ended, (0, i32::from(libc::POLLOUT)));
            listener.accept().unwrap();
        }
    }

    #[test]
    fn a_short_transfer_goes_on_inside_the_right_piece() {
        let base = std::ptr::null_mut::<u8>();
        let mut pieces = vec![(base, 10), (base.wrapping_add(100), 10), (base, 5)];
        advance(&mut pieces, 10);
        assert_eq!(pieces, [(base.wrapping_add(100), 10), (base, 5)]);
        advance(&mut pieces, 4);
        assert_eq!(pieces, [(base.wrapping_add(104), 6), (base, 5)]);
        advance(&mut pieces, 11);
        assert!(pieces.is_empty());
    }
}
