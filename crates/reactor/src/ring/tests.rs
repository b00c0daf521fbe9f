//! Every test runs against both rings: both keep the same promises.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrAny, SocketAddrUnix, SocketType};

use super::{Io, IoVecs, Ring, RingKind, Token, open};
use crate::threads::ThreadRing;
use crate::uring::UringRing;

/// Small enough that most tests overflow it somewhere.
const FEW_ENTRIES: u32 = 4;

/// A ring with the bookkeeping of a reactor.
struct Runner {
    ring: Box<dyn Ring>,
    results: Vec<(Token, i32)>,
    next_token: Token,
}

impl Runner {
    fn new(ring: impl Ring + 'static) -> Self {
        Self { ring: Box::new(ring), results: Vec::new(), next_token: 1000 }
    }

    fn start(&mut self, io: Io) -> Token {
        self.next_token += 1;
        // SAFETY: each test keeps memory and descriptors until it has seen the result, or
        // dropped the ring.
        unsafe { self.ring.submit(io, self.next_token) };
        self.next_token
    }

    fn collect(&mut self) {
        let results = &mut self.results;
        self.ring.reap(&mut |token, result| results.push((token, result)));
    }

    fn finish(&mut self, token: Token) -> i32 {
        loop {
            if let Some(at) = self.results.iter().position(|(done, _)| *done == token) {
                return self.results.swap_remove(at).1;
            }
            self.ring.wait(None);
            self.collect();
        }
    }

    fn run(&mut self, io: Io) -> i32 {
        let token = self.start(io);
        self.finish(token)
    }
}

fn on_both_rings(test: impl Fn(&mut Runner)) {
    test(&mut Runner::new(ThreadRing::new().unwrap()));
    match UringRing::with_entries(FEW_ENTRIES) {
        Ok(ring) => test(&mut Runner::new(ring)),
        Err(error) => eprintln!("io_uring not tested here: {error}"),
    }
}

fn memory(bytes: &mut [u8]) -> IoVecs {
    IoVecs::one(bytes.as_mut_ptr(), bytes.len())
}

fn two_pieces(bytes: &mut [u8], at: usize) -> IoVecs {
    let (head, tail) = bytes.split_at_mut(at);
    [(head.as_mut_ptr(), head.len()), (tail.as_mut_ptr(), tail.len())].into_iter().collect()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8).collect()
}

#[test]
fn data_written_at_an_offset_is_read_back() {
    on_both_rings(|runner| {
        let file = tempfile::tempfile().unwrap();
        let fd = file.as_raw_fd();
        let mut written = pattern(9000);
        let iov = two_pieces(&mut written, 1234);
        assert_eq!(runner.run(Io::WriteV { fd, iov, offset: 777, dsync: false }), 9000);
        let mut direct = vec![0; 9000];
        file.read_exact_at(&mut direct, 777).unwrap();
        assert_eq!(direct, pattern(9000));

        let mut read = vec![0; 9000];
        let iov = two_pieces(&mut read, 5000);
        assert_eq!(runner.run(Io::ReadV { fd, iov, offset: 777 }), 9000);
        assert_eq!(read, pattern(9000));
        let mut read = vec![0; 100];
        assert_eq!(runner.run(Io::ReadV { fd, iov: memory(&mut read), offset: 777 }), 100);
        assert_eq!(read, pattern(100));
    });
}

#[test]
fn a_read_across_the_end_of_a_file_is_short() {
    on_both_rings(|runner| {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&pattern(10), 0).unwrap();
        let fd = file.as_raw_fd();
        let mut read = vec![0; 100];
        assert_eq!(runner.run(Io::ReadV { fd, iov: memory(&mut read), offset: 4 }), 6);
        assert_eq!(runner.run(Io::ReadV { fd, iov: memory(&mut read), offset: 10 }), 0);
        assert_eq!(runner.run(Io::ReadV { fd, iov: IoVecs::new(), offset: 0 }), 0);
    });
}

#[test]
fn more_pieces_than_the_kernel_takes_move_as_a_short_transfer() {
    on_both_rings(|runner| {
        let file = tempfile::tempfile().unwrap();
        let mut written = pattern(1500);
        let iov: IoVecs = written.iter_mut().map(|byte| (&raw mut *byte, 1)).collect();
        assert_eq!(iov.total_bytes(), 1500);
        let fd = file.as_raw_fd();
        assert_eq!(runner.run(Io::WriteV { fd, iov, offset: 0, dsync: false }), 1024);
    });
}

#[test]
fn a_durable_write_and_a_sync_succeed() {
    on_both_rings(|runner| {
        let file = tempfile::tempfile().unwrap();
        let fd = file.as_raw_fd();
        let mut one = pattern(4096);
        let iov = memory(&mut one);
        assert_eq!(runner.run(Io::WriteV { fd, iov, offset: 0, dsync: true }), 4096);
        let iov = two_pieces(&mut one, 512);
        assert_eq!(runner.run(Io::WriteV { fd, iov, offset: 4096, dsync: true }), 4096);
        assert_eq!(runner.run(Io::Fdatasync { fd }), 0);
    });
}

#[test]
fn a_punched_hole_reads_as_zeroes() {
    on_both_rings(|runner| {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 32768], 0).unwrap();
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let punch = Io::Fallocate { fd: file.as_raw_fd(), mode, offset: 4096, len: 8192 };
        match runner.run(punch) {
            result if result == -libc::EOPNOTSUPP => return,
            result => assert_eq!(result, 0),
        }
        let mut found = vec![1; 32768];
        file.read_exact_at(&mut found, 0).unwrap();
        assert!(found[4096..12288].iter().all(|byte| *byte == 0));
        assert!(found[..4096].iter().chain(&found[12288..]).all(|byte| *byte == 7));
    });
}

#[repr(C, align(4096))]
struct Aligned([u8; 8192]);

#[test]
fn aligned_memory_serves_direct_io() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true).custom_flags(libc::O_DIRECT);
    let Ok(file) = options.open(folder.path().join("direct")) else { return };
    let fd = file.as_raw_fd();
    on_both_rings(|runner| {
        let mut written = Box::new(Aligned([0; 8192]));
        written.0.copy_from_slice(&pattern(8192));
        let iov = two_pieces(&mut written.0, 4096);
        assert_eq!(runner.run(Io::WriteV { fd, iov, offset: 4096, dsync: false }), 8192);
        let mut read = Box::new(Aligned([0; 8192]));
        assert_eq!(runner.run(Io::ReadV { fd, iov: memory(&mut read.0), offset: 4096 }), 8192);
        assert_eq!(read.0, written.0);
        // The file system decides whether it refuses or serves an unaligned transfer; it completes
        // in both cases.
        let crooked = Io::ReadV { fd, iov: memory(&mut read.0[..100]), offset: 1 };
        let result = runner.run(crooked);
        assert!(result == -libc::EINVAL || result >= 0, "{result}");
    });
}

#[test]
fn errors_come_back_as_negative_errno() {
    on_both_rings(|runner| {
        let file = tempfile::tempfile().unwrap();
        let fd = file.as_raw_fd();
        let mut bytes = pattern(512);
        for offset in [u64::MAX, 1 << 63] {
            let iov = memory(&mut bytes);
            assert_eq!(runner.run(Io::ReadV { fd, iov, offset }), -libc::EINVAL);
        }
        let iov = memory(&mut bytes);
        assert_eq!(runner.run(Io::ReadV { fd: -1, iov, offset: 0 }), -libc::EBADF);
        assert_eq!(runner.run(Io::Fdatasync { fd: -1 }), -libc::EBADF);
        let iov = memory(&mut bytes);
        assert_eq!(runner.run(Io::Recv { fd, iov, all: false }), -libc::ENOTSOCK);
        assert_eq!(runner.run(Io::Accept { fd }), -libc::ENOTSOCK);
        let read_only = File::open("/dev/null").unwrap();
        let (fd, iov) = (read_only.as_raw_fd(), memory(&mut bytes));
        assert_eq!(runner.run(Io::WriteV { fd, iov, offset: 0, dsync: false }), -libc::EBADF);
    });
}

#[test]
fn a_receive_takes_what_is_there_and_waits_for_the_first_byte() {
    on_both_rings(|runner| {
        for nonblocking in [false, true] {
            let (ours, mut peer) = UnixStream::pair().unwrap();
            ours.set_nonblocking(nonblocking).unwrap();
            let fd = ours.as_raw_fd();
            let mut bytes = vec![0; 10];
            let early = runner.start(Io::Recv { fd, iov: two_pieces(&mut bytes, 2), all: false });
            runner.ring.kick();
            runner.collect();
            assert_eq!(runner.results, []);
            peer.write_all(b"abc").unwrap();
            assert_eq!(runner.finish(early), 3);
            assert_eq!(&bytes[..3], b"abc");
            let single = runner.start(Io::Recv { fd, iov: memory(&mut bytes), all: false });
            runner.ring.kick();
            peer.write_all(b"xy").unwrap();
            assert_eq!(runner.finish(single), 2);
            assert_eq!(&bytes[..3], b"xyc");
            drop(peer);
            assert_eq!(runner.run(Io::Recv { fd, iov: memory(&mut bytes), all: false }), 0);
        }
    });
}

#[test]
fn a_send_moves_what_fits_and_waits_for_room() {
    on_both_rings(|runner| {
        let (ours, mut peer) = UnixStream::pair().unwrap();
        let fd = ours.as_raw_fd();
        let mut bytes = pattern(4 << 20);
        let first = runner.run(Io::Send { fd, iov: two_pieces(&mut bytes, 1000), all: false });
        assert!(first > 1000 && (first as usize) < bytes.len(), "{first}");
        let sent = first as usize;
        let mut rest = bytes[sent..sent + 1000].to_vec();
        let second = runner.start(Io::Send { fd, iov: memory(&mut rest), all: false });
        let mut received = vec![0; sent];
        peer.read_exact(&mut received).unwrap();
        assert_eq!(received, bytes[..sent]);
        let moved = runner.finish(second) as usize;
        let mut received = vec![0; moved];
        peer.read_exact(&mut received).unwrap();
        assert_eq!(received, bytes[sent..sent + moved]);
        drop(peer);
        assert_eq!(runner.run(Io::Send { fd, iov: memory(&mut rest), all: false }), -libc::EPIPE);
    });
}

#[test]
fn an_accept_delivers_a_working_connection() {
    on_both_rings(|runner| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let fd = listener.as_raw_fd();
        let waiting = runner.start(Io::Accept { fd });
        runner.ring.kick();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let accepted = runner.finish(waiting);
        assert!(accepted >= 0, "{accepted}");
        // SAFETY: the accept returned a new descriptor.
        let accepted = TcpStream::from(unsafe { OwnedFd::from_raw_fd(accepted) });
        // SAFETY: no memory is passed.
        let flags = unsafe { libc::fcntl(accepted.as_raw_fd(), libc::F_GETFD) };
        assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
        client.write_all(b"hello").unwrap();
        let mut bytes = vec![0; 5];
        let iov = memory(&mut bytes);
        assert_eq!(runner.run(Io::Recv { fd: accepted.as_raw_fd(), iov, all: false }), 5);
        assert_eq!(bytes, b"hello");
    });
}

#[test]
fn a_poll_for_hang_ups_ignores_what_can_be_read() {
    on_both_rings(|runner| {
        let (ours, mut peer) = UnixStream::pair().unwrap();
        let fd = ours.as_raw_fd();
        let waiting = runner.start(Io::PollHup { fd });
        runner.ring.kick();
        peer.write_all(b"!").unwrap();
        runner.run(Io::PollIn { fd });
        assert!(runner.results.iter().all(|(done, _)| *done != waiting), "the peer is there");
        drop(peer);
        let events = runner.finish(waiting);
        assert_eq!(events & i32::from(libc::POLLHUP), i32::from(libc::POLLHUP));
    });
}

#[test]
fn a_poll_for_hang_ups_reports_the_end_of_sending_behind_unread_bytes() {
    on_both_rings(|runner| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let ours = listener.accept().unwrap().0;
        let waiting = runner.start(Io::PollHup { fd: ours.as_raw_fd() });
        runner.ring.kick();
        peer.write_all(b"!").unwrap();
        runner.run(Io::PollIn { fd: ours.as_raw_fd() });
        assert!(runner.results.iter().all(|(done, _)| *done != waiting), "the peer is there");
        drop(peer);
        let events = runner.finish(waiting);
        assert_eq!(events & i32::from(libc::POLLRDHUP), i32::from(libc::POLLRDHUP));
    });
}

#[test]
fn a_poll_reports_readable_and_hung_up() {
    on_both_rings(|runner| {
        let (ours, mut peer) = UnixStream::pair().unwrap();
        let fd = ours.as_raw_fd();
        let waiting = runner.start(Io::PollIn { fd });
        runner.ring.kick();
        peer.write_all(b"!").unwrap();
        assert_eq!(runner.finish(waiting), i32::from(libc::POLLIN));
        drop(peer);
        let events = runner.run(Io::PollIn { fd });
        assert_eq!(events & i32::from(libc::POLLHUP), i32::from(libc::POLLHUP));
        assert_eq!(runner.run(Io::PollIn { fd: 1 << 20 }), -libc::EBADF);
    });
}

#[test]
fn a_cancelled_receive_completes_once_and_leaves_the_stream_alone() {
    on_both_rings(|runner| {
        let (ours, mut peer) = UnixStream::pair().unwrap();
        let fd = ours.as_raw_fd();
        let mut bytes = vec![0; 8];
        let iov = memory(&mut bytes);
        let cancelled = runner.start(Io::Recv { fd, iov, all: false });
        runner.ring.kick();
        runner.ring.cancel(cancelled);
        runner.ring.cancel(cancelled);
        assert_eq!(runner.finish(cancelled), -libc::ECANCELED);
        runner.ring.cancel(cancelled);
        // The next operation may use the same slot; the late cancellation must not hit it.
        let next = runner.start(Io::Recv { fd, iov: memory(&mut bytes), all: false });
        runner.ring.kick();
        peer.write_all(b"data").unwrap();
        assert_eq!(runner.finish(next), 4);
        assert_eq!(runner.results, []);
    });
}

#[test]
fn a_cancelled_operation_that_was_never_kicked_completes_once() {
    on_both_rings(|runner| {
        let (ours, _peer) = UnixStream::pair().unwrap();
        let token = runner.start(Io::PollIn { fd: ours.as_raw_fd() });
        runner.ring.cancel(token);
        assert_eq!(runner.finish(token), -libc::ECANCELED);
    });
}

#[test]
fn a_queued_closure_can_be_cancelled_and_a_running_one_cannot() {
    on_both_rings(|runner| {
        let mut gates = Vec::new();
        let (started, running) = mpsc::channel();
        let mut tokens = Vec::new();
        for result in 0..8 {
            let (gate, opened) = mpsc::channel::<()>();
            let started = started.clone();
            gates.push(gate);
            tokens.push(runner.start(Io::Blocking(Box::new(move || {
                started.send(()).unwrap();
                opened.recv().unwrap_err();
                result
            }))));
        }
        runner.ring.kick();
        (0..8).for_each(|_| running.recv().unwrap());
        let queued = runner.start(Io::Blocking(Box::new(|| unreachable!("it is cancelled"))));
        runner.ring.cancel(queued);
        runner.ring.cancel(tokens[0]);
        assert_eq!(runner.finish(queued), -libc::ECANCELED);
        drop(gates);
        for (token, result) in tokens.into_iter().zip(0..) {
            assert_eq!(runner.finish(token), result);
        }
    });
}

#[test]
fn a_closure_that_panics_is_an_io_error_and_the_helper_lives_on() {
    on_both_rings(|runner| {
        let panics = Io::Blocking(Box::new(|| panic!("on purpose, in a test")));
        assert_eq!(runner.run(panics), -libc::EIO);
        assert_eq!(runner.run(Io::Blocking(Box::new(|| 42))), 42);
    });
}

#[test]
fn another_thread_wakes_a_wait_without_a_timeout() {
    on_both_rings(|runner| {
        for _ in 0..100 {
            let waker = runner.ring.waker();
            let flag = Arc::new(AtomicBool::new(false));
            let posted = Arc::clone(&flag);
            let poster = thread::spawn(move || {
                posted.store(true, Ordering::Relaxed);
                waker.wake();
            });
            while !flag.load(Ordering::Relaxed) {
                runner.ring.wait(None);
            }
            poster.join().unwrap();
        }
    });
}

#[test]
fn a_wake_before_the_wait_is_not_lost() {
    on_both_rings(|runner| {
        for _ in 0..3 {
            runner.ring.waker().wake();
            runner.ring.wait(None);
        }
        runner.collect();
        assert_eq!(runner.results, []);
    });
}

#[test]
fn a_wait_ends_at_its_timeout() {
    on_both_rings(|runner| {
        let (ours, _peer) = UnixStream::pair().unwrap();
        let token = runner.start(Io::PollIn { fd: ours.as_raw_fd() });
        runner.ring.wait(Some(Duration::ZERO));
        runner.ring.wait(Some(Duration::from_micros(300)));
        runner.collect();
        assert_eq!(runner.results, []);
        runner.ring.cancel(token);
        runner.finish(token);
        runner.ring.waker().wake();
        runner.ring.wait(Some(Duration::MAX));
    });
}

#[test]
fn no_operation_is_lost_when_far_more_come_than_the_queue_holds() {
    on_both_rings(|runner| {
        let file = tempfile::tempfile().unwrap();
        let fd = file.as_raw_fd();
        let mut written = pattern(1000 * 8);
        let mut expected = Vec::new();
        for (index, piece) in written.chunks_mut(8).enumerate() {
            let iov = memory(piece);
            let offset = index as u64 * 8;
            expected.push(runner.start(Io::WriteV { fd, iov, offset, dsync: false }));
            if index % 3 == 0 {
                expected.push(runner.start(Io::Blocking(Box::new(|| 8))));
            }
        }
        for token in expected {
            assert_eq!(runner.finish(token), 8);
        }
        let mut found = vec![0; written.len()];
        file.read_exact_at(&mut found, 0).unwrap();
        assert_eq!(found, written);
    });
}

#[test]
fn many_pending_polls_complete_when_their_sockets_become_readable() {
    on_both_rings(|runner| {
        let pairs: Vec<_> = (0..100).map(|_| UnixStream::pair().unwrap()).collect();
        let tokens: Vec<_> = pairs
            .iter()
            .map(|(ours, _)| runner.start(Io::PollIn { fd: ours.as_raw_fd() }))
            .collect();
        runner.ring.kick();
        for ((_, peer), token) in pairs.iter().zip(tokens).rev() {
            (&*peer).write_all(b"!").unwrap();
            assert_eq!(runner.finish(token), i32::from(libc::POLLIN));
        }
    });
}

#[test]
fn kick_and_reap_without_wait_make_progress() {
    on_both_rings(|runner| {
        let (ours, mut peer) = UnixStream::pair().unwrap();
        let mut bytes = vec![0; 4];
        let token =
            runner.start(Io::Recv { fd: ours.as_raw_fd(), iov: memory(&mut bytes), all: false });
        runner.ring.kick();
        peer.write_all(b"ping").unwrap();
        while runner.results.is_empty() {
            runner.ring.kick();
            runner.collect();
        }
        assert_eq!(runner.results, [(token, 4)]);
    });
}

#[test]
fn a_dropped_ring_never_writes_to_the_memory_of_its_operations() {
    let (ours, mut peer) = UnixStream::pair().unwrap();
    let mut bytes = vec![0; 64];
    for kind in [RingKind::Threads, RingKind::Auto] {
        let (ring, _) = open(kind).unwrap();
        let mut runner = Runner { ring, results: Vec::new(), next_token: 0 };
        runner.start(Io::Recv { fd: ours.as_raw_fd(), iov: memory(&mut bytes), all: false });
        runner.start(Io::PollIn { fd: ours.as_raw_fd() });
        runner.ring.wait(Some(Duration::ZERO));
        runner.start(Io::Blocking(Box::new(|| 0)));
        runner.start(Io::Recv { fd: ours.as_raw_fd(), iov: memory(&mut bytes), all: false });
    }
    peer.write_all(b"late").unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0));
    let mut late = [0; 4];
    (&ours).read_exact(&mut late).unwrap();
    assert_eq!(&late, b"late");
}

#[test]
fn dropped_ring_closes_an_accepted_connection_that_was_not_reaped() {
    for kind in [RingKind::Threads, RingKind::Auto] {
        let (ring, _) = open(kind).unwrap();
        let mut runner = Runner { ring, results: Vec::new(), next_token: 0 };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        runner.start(Io::Accept { fd: listener.as_raw_fd() });
        runner.ring.kick();
        drop(runner);
        drop(listener);
        // If a connection were still open, this would hang.
        let end = client.read(&mut [0; 1]);
        assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
    }
}

#[test]
fn the_ring_that_was_asked_for_opens_under_its_name() {
    assert_eq!(open(RingKind::Threads).unwrap().1, "threads");
    let (_, name) = open(RingKind::Auto).unwrap();
    match open(RingKind::Uring) {
        Ok((_, asked)) => assert_eq!((name, asked), ("io_uring", "io_uring")),
        Err(_) => assert_eq!(name, "threads"),
    }
}

/// A socket of `family`, non-blocking or not.
fn socket(family: AddressFamily, nonblocking: bool) -> OwnedFd {
    let socket = rustix::net::socket(family, SocketType::STREAM, None).unwrap();
    rustix::io::ioctl_fionbio(&socket, nonblocking).unwrap();
    socket
}

fn connect(socket: &OwnedFd, address: impl Into<SocketAddrAny>) -> Io {
    Io::Connect { fd: socket.as_raw_fd(), address: Box::new(address.into()) }
}

#[test]
fn connect_reaches_a_listener_and_a_closed_port_refuses_it() {
    on_both_rings(|runner| {
        for nonblocking in [false, true] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let ours = socket(AddressFamily::INET, nonblocking);
            assert_eq!(runner.run(connect(&ours, address)), 0);
            let (mut peer, _) = listener.accept().unwrap();
            peer.write_all(b"hello").unwrap();
            let mut bytes = vec![0; 5];
            let iov = memory(&mut bytes);
            assert_eq!(runner.run(Io::Recv { fd: ours.as_raw_fd(), iov, all: false }), 5);
            assert_eq!(runner.run(connect(&ours, address)), -libc::EISCONN);

            drop(listener);
            let ours = socket(AddressFamily::INET, nonblocking);
            assert_eq!(runner.run(connect(&ours, address)), -libc::ECONNREFUSED);
        }
    });
}

#[test]
fn connect_reaches_a_unix_socket_and_fails_where_there_is_none() {
    on_both_rings(|runner| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let address = SocketAddrUnix::new(&path).unwrap();
        let ours = socket(AddressFamily::UNIX, false);
        assert_eq!(runner.run(connect(&ours, address.clone())), -libc::ENOENT);
        let listener = UnixListener::bind(&path).unwrap();
        assert_eq!(runner.run(connect(&ours, address.clone())), 0);
        listener.accept().unwrap();
        let mut full = vec![socket(AddressFamily::UNIX, false)];
        // Once the backlog is full, one ring waits and the other one says so.
        rustix::net::listen(&listener, 0).unwrap();
        assert_eq!(runner.run(connect(&full[0], address.clone())), 0);
        full.push(socket(AddressFamily::UNIX, false));
        let late = runner.start(connect(&full[1], address));
        runner.ring.kick();
        listener.accept().unwrap();
        let ended = runner.finish(late);
        assert!(ended == 0 || ended == -libc::EAGAIN, "{ended}");
    });
}

#[test]
fn cancelled_connect_completes_once() {
    on_both_rings(|runner| {
        let ours = socket(AddressFamily::INET, false);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let token = runner.start(connect(&ours, listener.local_addr().unwrap()));
        runner.ring.cancel(token);
        let ended = runner.finish(token);
        assert!(ended == -libc::ECANCELED || ended == 0, "{ended}");
        assert_eq!(runner.results, []);
    });
}

#[test]
fn poll_for_writing_waits_until_a_full_pipe_has_room() {
    on_both_rings(|runner| {
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        let fd = writer.as_raw_fd();
        assert_eq!(runner.run(Io::PollOut { fd }), i32::from(libc::POLLOUT));
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        let mut room = 0;
        while let Ok(count) = writer.write(&[1; 4096]) {
            room += count;
        }
        let waiting = runner.start(Io::PollOut { fd });
        runner.ring.kick();
        runner.collect();
        assert_eq!(runner.results, []);
        reader.read_exact(&mut vec![0; room]).unwrap();
        assert_eq!(runner.finish(waiting), i32::from(libc::POLLOUT));
        drop(reader);
        let events = runner.run(Io::PollOut { fd });
        assert_eq!(events & i32::from(libc::POLLERR), i32::from(libc::POLLERR));
    });
}

#[test]
fn command_is_not_supported_by_a_file_without_commands() {
    on_both_rings(|runner| {
        let file = tempfile::tempfile().unwrap();
        let command = Io::UringCmd { fd: file.as_raw_fd(), command: 1, argument: [0; 16] };
        assert_eq!(runner.run(command), -libc::EOPNOTSUPP);
    });
}

/// Linux answers every command to /dev/null with success, since 6.1.
#[test]
fn command_reaches_a_device_that_takes_commands() {
    let null = File::options().read(true).write(true).open("/dev/null").unwrap();
    let command = || Io::UringCmd { fd: null.as_raw_fd(), command: 1, argument: [7; 16] };
    let mut threads = Runner::new(ThreadRing::new().unwrap());
    assert_eq!(threads.run(command()), -libc::EOPNOTSUPP, "only io_uring has commands");
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    match UringRing::with_entries(FEW_ENTRIES) {
        Ok(ring) if version >= (6, 1) => assert_eq!(Runner::new(ring).run(command()), 0),
        Ok(_) => eprintln!("not tested here: Linux {release} has no commands for /dev/null"),
        Err(error) => eprintln!("io_uring not tested here: {error}"),
    }
}
