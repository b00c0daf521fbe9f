//! [`FileDisk`]: a file or block device as a disk.
//!
//! Two modes, decided when the disk is opened. *Direct* (O_DIRECT): data moves between the
//! request's own segments and the drive, a flush is fdatasync(2), FUA is RWF_DSYNC. *Page cache*,
//! where the file system refuses O_DIRECT: the same system calls, except that FUA is a write and an
//! fdatasync.
//!
//! In both modes the system reports lost writes once, to one fdatasync or synchronous write.
//! Therefore both go through a [`FlushGate`], which counts the failures for all users of the file.
//!
//! A read, or a write without FUA, is one ring operation. Everything else waits more than once and
//! is a task ([`Task`](task::Task)): flushes, FUA writes, bounced transfers, discard and
//! write-zeroes.
//!
//! The file is locked while the disk is open. A disk changes the size of its file only where its
//! user asks for it ([`Disk::grow`]).
//!
//! A file of a network or cluster file system has a place for a dirty marker ([`marker`]).

mod extents;
mod grow;
mod lock;
mod marker;
mod nature;
mod open;
mod probe;
mod task;
mod trim;

use std::fmt::Display;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cairn_block::{
    ConfigError, Disk, Env, ErrorKind, Extent, ExtentKind, FailureCount, Flow, FlushGate, IoError,
    Limits, LocalFuture, MarkerPlace, Nature, Op, Request, Sector, SectorCount, SectorRange,
};
use cairn_reactor::{Direction, Driver, TransferFile};

use crate::handles::Handles;

use marker::SideFile;
use nature::Sysfs;
use probe::{DirectIo, Kind};
use task::Task;

pub use marker::standing_marker;
pub(crate) use marker::{name_in_notes, unmark};
pub use open::FileOptions;
pub(crate) use open::identify;

/// A file or block device, open and locked.
pub struct FileDisk(Arc<OpenFile>);

struct OpenFile {
    fd: Arc<OwnedFd>,
    /// As given by the user.
    path: String,
    kind: Kind,
    /// None: through the page cache.
    direct: Option<DirectIo>,
    /// Holes consist of whole blocks of this many bytes.
    hole_block: u64,
    limits: Limits,
    /// Of a block device in direct mode: the page cache is volatile, too.
    sysfs: Option<Sysfs>,
    sectors: AtomicU64,
    /// Where the file ends, if its last sector is a part of the disk and not whole: the rest of it
    /// reads as zero.
    end: Option<u64>,
    gate: FlushGate,
    /// Of a file that other hosts can open.
    marker: Option<SideFile>,
}

/// How a request is carried out.
enum Plan {
    /// One transfer between its segments and the file.
    Transfer(Direction),
    /// In several steps.
    Task,
}

impl FileDisk {
    /// Opens and locks the file or block device at `path`: exclusively, or shared with other
    /// readers if `read_only`. Tries once; [`crate::patiently`] retries.
    ///
    /// # Errors
    /// It does not exist, is neither file nor block device, may not be opened, or another program
    /// holds it ([`cairn_block::ConfigKind::Busy`]).
    pub fn open(
        path: &str,
        read_only: bool,
        options: FileOptions,
    ) -> Result<FileDisk, ConfigError> {
        FileDisk::open_counted(path, read_only, (options, &Handles::default()), Arc::default())
    }

    /// As [`FileDisk::open`], counting failures in `failures`, which outlives this handle. A
    /// descriptor that an earlier process left is taken from the handles.
    ///
    /// # Errors
    /// Those of [`FileDisk::open`].
    pub fn open_counted(
        path: &str,
        read_only: bool,
        (options, handles): (FileOptions, &Handles),
        failures: Arc<FailureCount>,
    ) -> Result<FileDisk, ConfigError> {
        open::open(path, read_only, (options, handles), failures)
            .map(|file| FileDisk(Arc::new(file)))
    }

    /// True if data bypasses the page cache.
    pub fn is_direct(&self) -> bool {
        self.0.direct.is_some()
    }
}

impl OpenFile {
    fn plan(&self, request: &Request) -> Plan {
        let direction = match request.op {
            Op::Read => Direction::Read,
            Op::Write if !request.is_fua() => Direction::Write { dsync: false },
            _ => return Plan::Task,
        };
        if self.end.is_some_and(|end| request.range.end().to_bytes() > end) {
            return Plan::Task;
        }
        match self.direct {
            Some(direct) if !direct.takes(request.iovecs()) => Plan::Task,
            _ => Plan::Transfer(direction),
        }
    }
}

impl OpenFile {
    /// Logs that the system failed an operation. An unsupported operation is not a failure.
    #[cold]
    fn log_failure(&self, env: &Env, op: Op, sector: Sector, kind: ErrorKind, error: &dyn Display) {
        if matches!(kind, ErrorKind::Unsupported | ErrorKind::Shutdown) {
            return;
        }
        let key = format!("{}: {} failed", self.path, op.name());
        env.warn(&key, || match op {
            Op::Flush => format!("{key}: {error}"),
            _ => format!("{key}: sector {}: {error}", sector.0),
        });
    }
}

impl OpenFile {
    /// Looks at the size again.
    fn refresh(&self) -> Result<(), ConfigError> {
        if self.end.is_none() {
            let block = self.limits.logical_block;
            let sectors = probe::sectors(&self.path, &self.fd, self.kind, block)?;
            self.sectors.store(sectors.0, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl AsRawFd for OpenFile {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl TransferFile for OpenFile {
    fn transfer_failed(&self, env: &Env, direction: Direction, offset: u64, error: io::Error) {
        let op = if direction == Direction::Read { Op::Read } else { Op::Write };
        let kind = IoError::from_errno(error.raw_os_error().unwrap_or(libc::EIO)).kind;
        self.log_failure(env, op, Sector::of_byte(offset), kind, &error);
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
                driver.transfer(file, request, direction, request.range.start.to_bytes());
            }
            Plan::Task => Task::start(env, file.clone(), request),
        }
        Flow::Queued
    }

    fn limits(&self) -> Limits {
        self.0.limits
    }

    fn nature(&self) -> Nature {
        self.0.sysfs.as_ref().map_or(Nature::UNKNOWN, Sysfs::nature)
    }

    fn refresh(&self) -> Result<(), ConfigError> {
        self.0.refresh()
    }

    fn grow<'a>(
        &'a self,
        env: &'a Env,
        sectors: SectorCount,
    ) -> LocalFuture<'a, Result<SectorCount, IoError>> {
        Box::pin(grow::grow(env, &self.0, sectors))
    }

    fn failures(&self) -> u64 {
        self.0.gate.failures().count()
    }

    fn failures_told(&self) -> u64 {
        self.0.gate.failures().told()
    }

    fn acknowledge_failures(&self, upto: u64) {
        self.0.gate.failures().acknowledge(upto);
    }

    fn marker_place(&self) -> MarkerPlace<'_> {
        match &self.0.marker {
            Some(marker) => MarkerPlace::Store(marker),
            None => MarkerPlace::Needless,
        }
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
