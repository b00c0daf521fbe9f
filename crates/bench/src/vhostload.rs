//! [`Load`]: requests over shared memory, by the driver of another project, in one thread.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use virtio_driver::{
    QueueNotifier, VhostUser, VirtioBlkFeatureFlags, VirtioBlkQueue, VirtioBlkTransport,
    VirtioFeatureFlags,
};

/// Bytes of a request.
pub const BYTES: usize = 4096;

/// Bytes of the disk.
pub const DISK_BYTES: u64 = 256 << 20;

const DISK_PAGES: u64 = DISK_BYTES / BYTES as u64;
const QUEUE_ENTRIES: u16 = 128;

/// What the driver does.
#[derive(Clone, Copy)]
pub struct Job {
    /// It writes, or reads.
    pub writes: bool,
    /// Requests in flight in each queue.
    pub depth: usize,
    /// Queues.
    pub queues: usize,
    /// The rings are packed.
    pub packed: bool,
}

/// Memory that the server shares, a page for each request.
struct Pages {
    base: *mut u8,
    bytes: usize,
    file: File,
}

impl Pages {
    fn new(bytes: usize) -> std::io::Result<Pages> {
        let file: File = memfd_create("load", MemfdFlags::CLOEXEC)?.into();
        ftruncate(&file, bytes as u64)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the system's choice.
        let base =
            unsafe { mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, &file, 0)? };
        Ok(Pages { base: base.cast(), bytes, file })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`; the driver, which names it, was dropped before.
        let unmapped = unsafe { munmap(self.base.cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// A driver that keeps so many requests in flight in each of its queues.
pub struct Load {
    // Dropped in this order: the queues lie in memory of the transport.
    queues: Vec<VirtioBlkQueue<'static, usize>>,
    notifiers: Vec<Box<dyn QueueNotifier>>,
    transport: Box<VirtioBlkTransport>,
    pages: Pages,
    job: Job,
    random: fastrand::Rng,
    /// The page of the next request, if they come in order; they end with the disk.
    pub next: Option<u64>,
}

impl Load {
    /// Connects to a server's socket.
    ///
    /// # Errors
    /// The server refused.
    pub fn connect(socket: &str, job: Job) -> std::io::Result<Load> {
        let mut ring = VirtioFeatureFlags::RING_INDIRECT_DESC | VirtioFeatureFlags::RING_EVENT_IDX;
        ring.set(VirtioFeatureFlags::RING_PACKED, job.packed);
        let features = (ring | VirtioFeatureFlags::VERSION_1).bits();
        let features = features | VirtioBlkFeatureFlags::all().bits();
        let mut transport: Box<VirtioBlkTransport> = Box::new(VhostUser::new(socket, features)?);
        let mut queues = VirtioBlkQueue::setup_queues(&mut *transport, job.queues, QUEUE_ENTRIES)?;
        queues.iter_mut().for_each(|queue| queue.set_used_notif_enabled(true));
        let pages = Pages::new(job.queues * job.depth * BYTES)?;
        transport.map_mem_region(pages.base.addr(), pages.bytes, pages.file.as_raw_fd(), 0)?;
        let random = fastrand::Rng::with_seed(7);
        let notifier = |queue| transport.get_submission_notifier(queue);
        let notifiers = (0..job.queues).map(notifier).collect();
        Ok(Load { queues, notifiers, transport, pages, job, random, next: None })
    }

    /// Runs requests until `end`; answers how many have ended.
    ///
    /// # Errors
    /// A request failed, or the server has gone.
    pub fn run(&mut self, end: Instant) -> std::io::Result<u64> {
        let mut ended = 0;
        for queue in 0..self.job.queues {
            for slot in 0..self.job.depth {
                self.submit(queue, slot)?;
            }
            self.kick(queue)?;
        }
        let mut slots = Vec::with_capacity(self.job.depth);
        loop {
            let before = ended;
            let is_filled = self.next.is_some() && ended >= DISK_PAGES;
            let is_over = is_filled || Instant::now() >= end;
            for queue in 0..self.job.queues {
                slots.clear();
                slots.extend(self.queues[queue].completions().map(|it| (it.context, it.ret)));
                ended += slots.len() as u64;
                for (slot, result) in &slots {
                    if *result != 0 {
                        return Err(std::io::Error::from_raw_os_error(-*result));
                    }
                    if !is_over {
                        self.submit(queue, *slot)?;
                    }
                }
                if !slots.is_empty() && !is_over {
                    self.kick(queue)?;
                }
            }
            if is_over {
                return Ok(ended);
            }
            if ended == before {
                self.wait()?;
            }
        }
    }

    /// Runs one request in the first queue.
    ///
    /// # Errors
    /// It failed, or the server has gone.
    pub fn run_one(&mut self) -> std::io::Result<()> {
        self.submit(0, 0)?;
        self.kick(0)?;
        loop {
            if let Some(done) = self.queues[0].completions().next() {
                return match done.ret {
                    0 => Ok(()),
                    error => Err(std::io::Error::from_raw_os_error(-error)),
                };
            }
            self.wait()?;
        }
    }

    fn submit(&mut self, queue: usize, slot: usize) -> std::io::Result<()> {
        let number = match &mut self.next {
            Some(next) => std::mem::replace(next, (*next + 1).min(DISK_PAGES - 1)),
            None => self.random.u64(..DISK_PAGES),
        };
        let offset = number * BYTES as u64;
        let page = (queue * self.job.depth + slot) * BYTES;
        // SAFETY: within the pages, of which each slot has one.
        let page = unsafe { self.pages.base.add(page) };
        let queue = &mut self.queues[queue];
        // SAFETY: the page is mapped until the driver is dropped, and used by this request alone.
        unsafe {
            match self.job.writes {
                true => queue.write_raw(offset, page, BYTES, slot),
                false => queue.read_raw(offset, page, BYTES, slot),
            }
        }
    }

    fn kick(&mut self, queue: usize) -> std::io::Result<()> {
        match self.queues[queue].avail_notif_needed() {
            true => self.notifiers[queue].notify(),
            false => Ok(()),
        }
    }

    /// Sleeps until a queue is notified.
    fn wait(&self) -> std::io::Result<()> {
        let ends: Vec<_> =
            (0..self.job.queues).map(|queue| self.transport.get_completion_fd(queue)).collect();
        let mut polled: Vec<_> =
            ends.iter().map(|end| PollFd::from_borrowed_fd(end_of(end), PollFlags::IN)).collect();
        poll(&mut polled, None)?;
        let ready: Vec<bool> = polled.iter().map(|end| !end.revents().is_empty()).collect();
        for (end, is_ready) in ends.iter().zip(ready) {
            if is_ready {
                end.read()?;
            }
        }
        Ok(())
    }
}

/// The driver's descriptor, as this version of the system's interface names it.
fn end_of(end: &virtio_driver::EventFd) -> std::os::fd::BorrowedFd<'_> {
    // SAFETY: it is open as long as `end`.
    unsafe { std::os::fd::BorrowedFd::borrow_raw(end.as_raw_fd()) }
}
