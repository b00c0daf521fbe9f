//! [`Disk`]: the one lower interface. A backend, a mapped device and a simulated drive are
//! disks; targets and exports know nothing else.
//!
//! A disk promises the kernel bio's ordering and no more: a flush makes durable every write
//! that completed before it was submitted; FUA makes that write durable; everything else may
//! be reordered, lost and torn at sector granularity by a crash.
//!
//! A disk is closed when its last user drops it: see [`crate::Registry`].

use std::any::Any;
use std::future::Future;
use std::pin::Pin;

use crate::device::MappedDevice;
use crate::env::Env;
use crate::error::{ConfigError, IoError};
use crate::nature::Nature;
use crate::request::Request;
use crate::units::{SECTOR_BYTES, Sector, SectorCount, SectorRange};

/// A future that stays on its reactor.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// What a disk did with a request it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Finished, with success.
    Done,
    /// Finished, with an error.
    Failed(IoError),
    /// Kept: somebody calls [`Env::complete`] (or posts it) with the request's id.
    Queued,
}

/// What makes two names one disk.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Identity {
    /// A file, by device, inode and birth: inodes are used again.
    File {
        /// st_dev.
        device: u64,
        /// st_ino.
        inode: u64,
        /// Nanoseconds since 1970; 0 if the file system does not tell.
        birth_ns: i128,
    },
    /// A block device, by number and sequence: numbers are used again.
    Block {
        /// st_rdev.
        number: u64,
        /// Counts what the system has attached since it started; 0 if it does not tell.
        sequence: u64,
    },
    /// A volume of this server, by name.
    Volume(String),
    /// What another machine or process serves, by its place and name.
    Remote(String),
    /// Something private: no other name leads to it.
    Unique(u64),
}

impl Identity {
    /// A name that a later process finds for the same thing, until the machine starts again; none
    /// if nothing of it outlives this process, or only this process knows it.
    pub fn lasting_name(&self) -> Option<String> {
        match self {
            Identity::File { device, inode, birth_ns } => {
                Some(format!("file-{device:x}-{inode:x}-{birth_ns:x}"))
            }
            Identity::Block { number, sequence: 0 } => Some(format!("block-{number:x}")),
            Identity::Block { number, sequence } => Some(format!("block-{number:x}-{sequence:x}")),
            // A crash log says that data is on its disk. A server may be killed, too, and forget.
            Identity::Remote(_) | Identity::Volume(_) | Identity::Unique(_) => None,
        }
    }
}

/// Which side of a copy failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyError {
    /// A source could not be read.
    Read(IoError),
    /// The destination could not be written.
    Write(IoError),
}

/// Sizes and abilities of a disk, in bytes where not said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Smallest addressable unit; requests are multiples of it.
    pub logical_block: u32,
    /// Smallest unit written without read-modify-write inside the device.
    pub physical_block: u32,
    /// Preferred smallest request.
    pub io_min: u32,
    /// Preferred large request; 0 = no preference.
    pub io_opt: u32,
    /// Discard is passed down to something that frees space.
    pub discard: bool,
    /// Write-zeroes is faster than writing zeros.
    pub fast_zero: bool,
    /// Every write is refused. False where only a part refuses writes: see
    /// [`crate::read_only_parts`].
    pub read_only: bool,
    /// The data of a write must not change before the write has ended: it is sent to more than one
    /// place, or a decision about it and its use must see the same bytes.
    pub stable_data: bool,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            logical_block: SECTOR_BYTES as u32,
            physical_block: SECTOR_BYTES as u32,
            io_min: SECTOR_BYTES as u32,
            io_opt: 0,
            discard: true,
            fast_zero: true,
            read_only: false,
            stable_data: false,
        }
    }
}

impl Limits {
    /// The limits of something that stands on both: the stricter of each.
    #[must_use]
    pub fn stack(self, other: Limits) -> Limits {
        Limits {
            logical_block: self.logical_block.max(other.logical_block),
            physical_block: self.physical_block.max(other.physical_block),
            io_min: self.io_min.max(other.io_min),
            io_opt: self.io_opt.max(other.io_opt),
            discard: self.discard || other.discard,
            fast_zero: self.fast_zero && other.fast_zero,
            read_only: self.read_only || other.read_only,
            stable_data: self.stable_data || other.stable_data,
        }
    }

    /// The logical block size as a count of sectors.
    pub fn logical_sectors(self) -> SectorCount {
        SectorCount::of_bytes(u64::from(self.logical_block))
    }
}

/// What a run of sectors holds, for block status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentKind {
    /// Allocated data.
    Data,
    /// Not allocated; reads as zero.
    Hole,
    /// Allocated; known to read as zero.
    Zero,
}

/// A run of sectors of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// How long.
    pub count: SectorCount,
    /// What it holds.
    pub kind: ExtentKind,
}

/// Keeps a text beside a disk, on the engine that keeps the disk. Every host that can open the disk
/// finds it there.
pub trait MarkerStore: Send + Sync {
    /// What the notes call the disk: the same by whichever argument it was opened.
    fn disk(&self) -> String;

    /// True if the engine takes no write from a host that has lost the disk. Of another one the
    /// cache has to ask before it writes whether its marker still stands.
    fn fences(&self) -> bool;

    /// This host uses the disk from now on: no marker refuses it. Called before anything is written
    /// to the disk, by each table over it.
    ///
    /// # Errors
    /// The engine did not answer, or refused.
    fn take<'a>(&'a self, _env: &'a Env) -> LocalFuture<'a, Result<(), ConfigError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// The text, if there is one.
    ///
    /// # Errors
    /// The engine did not answer, or refused.
    fn read<'a>(&'a self, env: &'a Env) -> LocalFuture<'a, Result<Option<String>, ConfigError>>;

    /// Replaces the text, or removes it. Durable on return.
    ///
    /// # Errors
    /// The engine did not answer, or refused: either text may be there.
    fn write<'a>(
        &'a self,
        env: &'a Env,
        text: Option<String>,
    ) -> LocalFuture<'a, Result<(), ConfigError>>;
}

/// Where the dirty marker of a disk is.
pub enum MarkerPlace<'a> {
    /// No other host reaches the disk, or no program writes it.
    Needless,
    /// Other hosts reach the disk, and nothing can be kept beside it.
    Nowhere,
    /// There.
    Store(&'a dyn MarkerStore),
}

/// The one lower interface. Only `name`, `sectors` and `submit` must be written.
pub trait Disk: Send + Sync {
    /// The name to print: the argument it was opened by.
    fn name(&self) -> String;

    /// The size now.
    fn sectors(&self) -> SectorCount;

    /// Starts a request. Called on the request's reactor with a checked request; must not
    /// block. On [`Flow::Queued`] the caller parks the request under its id; the disk (or
    /// whoever it told) completes it exactly once.
    fn submit(&self, env: &Env, request: &mut Request) -> Flow;

    /// Copies the range `from` of `source` to `to` on this disk, at once and without a buffer;
    /// `None` if it cannot, and then nothing was done. Called by [`Env::copy`] with checked
    /// ranges of two disks that are no mapped devices. `source` may be this disk.
    ///
    /// A copy is a read of the source and a write of this disk that have completed on return: a
    /// later flush makes the write durable, and until then a crash may lose or tear it. It has no
    /// FUA.
    ///
    /// Must not block. Files do not support it: io_uring has no `copy_file_range`, the system
    /// call waits for the drive, and it would go through the page cache beside direct I/O.
    fn copy_from(
        &self,
        _env: &Env,
        _source: &dyn Disk,
        _from: SectorRange,
        _to: Sector,
    ) -> Option<Result<(), CopyError>> {
        None
    }

    /// Block sizes and abilities.
    fn limits(&self) -> Limits {
        Limits::default()
    }

    /// What it is made of, now.
    fn nature(&self) -> Nature {
        Nature::UNKNOWN
    }

    /// Looks again at the size of what lies beneath (called at `load`: a grown file shows).
    ///
    /// # Errors
    /// The system refused to tell.
    fn refresh(&self) -> Result<(), ConfigError> {
        Ok(())
    }

    /// Makes it at least so long, if it can grow at its user's wish: what comes behind the old end
    /// reads as zeros, and a flush that follows makes the new size durable. Answers how long it is.
    ///
    /// # Errors
    /// It could grow, and did not.
    fn grow<'a>(
        &'a self,
        _env: &'a Env,
        _sectors: SectorCount,
    ) -> LocalFuture<'a, Result<SectorCount, IoError>> {
        Box::pin(std::future::ready(Ok(self.sectors())))
    }

    /// What a range holds, in order, covering it from its start (perhaps not to its end, but
    /// at least one logical block). The default knows nothing and says data.
    fn extents<'a>(
        &'a self,
        _env: &'a Env,
        range: SectorRange,
    ) -> LocalFuture<'a, Result<Vec<Extent>, IoError>> {
        let all = Extent { count: range.count, kind: ExtentKind::Data };
        Box::pin(std::future::ready(Ok(vec![all])))
    }

    /// How often completed writes may have been lost: see [`crate::FailureCount`]. Zero for
    /// ever where nothing is volatile.
    fn failures(&self) -> u64 {
        0
    }

    /// Up to which failure someone who relied on the disk was told, or made it good.
    fn failures_told(&self) -> u64 {
        0
    }

    /// Someone was told of the failures up to this count, or made them good.
    fn acknowledge_failures(&self, _upto: u64) {}

    /// Where a cache of this disk keeps its dirty marker.
    fn marker_place(&self) -> MarkerPlace<'_> {
        MarkerPlace::Needless
    }

    /// The mapped device, if this disk is one: the engine maps instead of submitting.
    fn mapped(&self) -> Option<&MappedDevice> {
        None
    }

    /// The concrete disk, for kin that share more than requests.
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }
}
