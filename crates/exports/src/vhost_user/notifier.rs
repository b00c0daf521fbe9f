//! [`Notifier`]: one end of a descriptor by which the two sides of a ring notify each other: an
//! eventfd or a pipe.
//!
//! The driver has the other end, or the same one, and may rely on its blocking. So its flags stay
//! as they are, and this side does not wait in the system for it: neither for a notification that
//! the driver took away again, nor for room in a counter that the driver filled. One gap is left: a
//! driver that fills an eventfd between the look at it and the write holds up a reactor.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FileType;
use rustix::io::{Errno, ReadWriteFlags, preadv2, pwritev2, write};

use super::wire::Breach;

/// The offset that means that the file has no positions.
const NOWHERE: u64 = u64::MAX;

/// See the module's description.
#[derive(Clone)]
pub(super) struct Notifier {
    pub(super) end: Arc<OwnedFd>,
    /// It is no eventfd.
    is_pipe: bool,
}

impl Notifier {
    /// Takes a descriptor that was passed. A file or device is always readable: it would keep a
    /// reactor busy.
    pub(super) fn new(end: impl Into<Arc<OwnedFd>>) -> Result<Notifier, Breach> {
        let end = end.into();
        let refused =
            |found: String| Breach::field("descriptor of a ring", found, "an eventfd or a pipe");
        let failed = |error: Errno| refused(error.to_string());
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&end).map_err(failed)?.st_mode);
        if kind.is_file() || kind.is_dir() || kind.is_block_device() || kind.is_char_device() {
            return Err(refused(format!("{kind:?}")));
        }
        let is_pipe = kind == FileType::Fifo || kind == FileType::Socket;
        Ok(Notifier { end, is_pipe })
    }

    /// Notifies the other side. If there is no room, it has been notified often enough; whether it
    /// has gone, its socket tells.
    pub(super) fn notify(&self) {
        let one = 1_u64.to_ne_bytes();
        if self.is_pipe {
            let flags = ReadWriteFlags::NOWAIT;
            let _ = pwritev2(&*self.end, &[IoSlice::new(&one)], NOWHERE, flags);
        } else if self.is_ready(PollFlags::OUT) {
            // The system has no write to an eventfd that never waits: see the module's description.
            let _ = write(&*self.end, &one);
        }
    }

    /// Takes a notification, if there is one. False if none will ever come again.
    pub(super) fn take(&self) -> bool {
        let mut count = [0; 8];
        let count = &mut [IoSliceMut::new(&mut count)];
        match preadv2(&*self.end, count, NOWHERE, ReadWriteFlags::NOWAIT) {
            Ok(bytes) => bytes > 0,
            Err(error) => matches!(error, Errno::AGAIN | Errno::INTR),
        }
    }

    fn is_ready(&self, events: PollFlags) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&*self.end, events)], Some(&now)).is_ok_and(|ready| ready > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use rustix::event::{EventfdFlags, eventfd};
    use rustix::io::write;

    use super::Notifier;

    fn of(end: &OwnedFd) -> Notifier {
        Notifier::new(end.try_clone().unwrap()).unwrap()
    }

    #[test]
    fn neither_side_of_a_blocking_counter_is_waited_for() {
        for flags in [EventfdFlags::empty(), EventfdFlags::NONBLOCK] {
            let counter = eventfd(0, flags).unwrap();
            let notifier = of(&counter);
            assert!(notifier.take(), "nothing to take, and more may come");
            notifier.notify();
            notifier.notify();
            let mut count = [0; 8];
            rustix::io::read(&counter, &mut count).unwrap();
            assert_eq!(u64::from_ne_bytes(count), 2);
            write(&counter, &(u64::MAX - 1).to_ne_bytes()).unwrap();
            notifier.notify();
            assert!(notifier.take());
            notifier.notify();
        }
    }

    #[test]
    fn a_pipe_notifies_until_its_other_end_is_closed() {
        let (reader, writer) = std::io::pipe().unwrap();
        let (reader, writer) = (of(&reader.into()), writer);
        assert!(reader.take());
        write(&writer, b"x").unwrap();
        assert!(reader.take());
        drop(writer);
        assert!(!reader.take());
    }

    #[test]
    fn a_file_is_no_notifier() {
        assert!(Notifier::new(OwnedFd::from(std::fs::File::open("/dev/null").unwrap())).is_err());
    }
}
