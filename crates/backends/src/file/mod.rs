//! [`FileDisk`]: a file or block device as a disk.
//!
//! Two modes, decided when it is opened. *Direct* (O_DIRECT): data moves between the request's
//! own segments and the drive, a flush is fdatasync(2), FUA is RWF_DSYNC. *Page cache*, where
//! the file system refuses O_DIRECT: the same system calls, except that durability goes through
//! [`PageCacheSync`](durability::PageCacheSync), which never forgets a lost write.
//!
//! Reads, writes and flushes of the direct mode are one ring operation each. Everything else
//! waits more than once and is a task ([`Task`](task::Task)): bounced transfers, discard,
//! write-zeroes, and what must be followed by a flush.
//!
//! The file is locked while the disk is open. The file's size never changes through a disk.

mod durability;
mod extents;
mod lock;
mod open;
mod probe;
mod task;
mod trim;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cairn_block::{
    ConfigError, Disk, Env, Extent, ExtentKind, Flow, IoError, Limits, LocalFuture, Op, Request,
    SectorCount, SectorRange,
};
use cairn_reactor::{Direction, Driver};

use durability::PageCacheSync;
use probe::{DirectIo, Kind};
use task::Task;

pub use open::FileOptions;
pub(crate) use open::identify;

/// A file or block device, open and locked.
pub struct FileDisk(Arc<OpenFile>);

struct OpenFile {
    fd: Arc<OwnedFd>,
    /// As the user named it.
    path: String,
    kind: Kind,
    /// None: the page cache.
    direct: Option<DirectIo>,
    /// What a hole is made of, in bytes.
    hole_block: u64,
    limits: Limits,
    sectors: AtomicU64,
    page_cache: PageCacheSync,
}

/// How a request is carried out.
enum Plan {
    /// Straight between its segments and the file.
    Transfer(Direction),
    /// One fdatasync.
    Sync,
    /// In several steps.
    Task,
}

impl FileDisk {
    /// Opens and locks the file or block device at `path`: exclusively, or shared with other
    /// readers if `read_only`.
    ///
    /// # Errors
    /// It does not exist, is neither file nor block device, may not be opened, or somebody
    /// else holds it ([`cairn_block::ConfigKind::Busy`]).
    pub fn open(
        path: &str,
        read_only: bool,
        options: FileOptions,
    ) -> Result<FileDisk, ConfigError> {
        open::open(path, read_only, options).map(|file| FileDisk(Arc::new(file)))
    }

    /// True if data bypasses the page cache.
    pub fn is_direct(&self) -> bool {
        self.0.direct.is_some()
    }
}

impl OpenFile {
    fn plan(&self, request: &Request) -> Plan {
        let fua = request.is_fua();
        match (request.op, self.direct) {
            (Op::Flush, Some(_)) => Plan::Sync,
            (Op::Read, None) => Plan::Transfer(Direction::Read),
            (Op::Write, None) if !fua => Plan::Transfer(Direction::Write { dsync: false }),
            (Op::Read, Some(direct)) if direct.takes(request.iovecs()) => {
                Plan::Transfer(Direction::Read)
            }
            (Op::Write, Some(direct)) if direct.takes(request.iovecs()) => {
                Plan::Transfer(Direction::Write { dsync: fua })
            }
            _ => Plan::Task,
        }
    }
}

impl Disk for FileDisk {
    fn name(&self) -> String {
        self.0.path.clone()
    }

    fn sectors(&self) -> SectorCount {
        SectorCount(self.0.sectors.load(Ordering::Relaxed))
    }

    fn submit(&self, env: &Env, request: &mut Request) -> Flow {
        let (driver, file) = (Driver::of(env), &self.0);
        match file.plan(request) {
            Plan::Transfer(direction) => {
                driver.transfer(&file.fd, request, direction, request.range.start.to_bytes());
            }
            Plan::Sync => driver.fdatasync(&file.fd, request.id()),
            Plan::Task => Task::start(env, file.clone(), request),
        }
        Flow::Queued
    }

    fn limits(&self) -> Limits {
        self.0.limits
    }

    fn refresh(&self) -> Result<(), ConfigError> {
        let file = &self.0;
        let sectors = probe::sectors(&file.path, &file.fd, file.kind, file.limits.logical_block)?;
        file.sectors.store(sectors.0, Ordering::Relaxed);
        Ok(())
    }

    fn extents<'a>(
        &'a self,
        env: &'a Env,
        range: SectorRange,
    ) -> LocalFuture<'a, Result<Vec<Extent>, IoError>> {
        match self.0.kind {
            Kind::File => Box::pin(extents::of_file(env, self.0.clone(), range)),
            Kind::Block => {
                let all = Extent { count: range.count, kind: ExtentKind::Data };
                Box::pin(std::future::ready(Ok(vec![all])))
            }
        }
    }
}
