//! The contract between every two layers, always compiled in.
//!
//! A request that breaks it is a bug of the layer above: it fails with
//! [`ErrorKind::Invalid`](crate::ErrorKind::Invalid), is logged and counted
//! ([`Env::contract_violations`]); nothing reaches the layer below. Exactly one completion per
//! request is enforced by ownership and generations: a second one finds no request.

use crate::disk::{Disk, Limits};
use crate::env::Env;
use crate::error::IoError;
use crate::ids::RequestId;
use crate::op::{Flags, Op};
use crate::request::Request;
use crate::units::{SectorCount, SectorRange};

#[derive(Debug)]
enum Breach {
    Empty,
    BeyondTheEnd,
    Unaligned,
    ShortData,
    Flags,
}

/// What a disk takes, looked up once for several questions.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    sectors: SectorCount,
    /// The logical block size less one, in sectors: block sizes are powers of two.
    block_mask: u64,
    read_only: bool,
}

impl Bounds {
    /// The bounds of what takes no request.
    pub const NOTHING: Bounds =
        Bounds { sectors: SectorCount::ZERO, block_mask: 0, read_only: true };

    /// The bounds of a disk or device with these limits.
    pub fn new(sectors: SectorCount, limits: Limits) -> Bounds {
        let block = limits.logical_sectors().0.next_power_of_two();
        Bounds { sectors, block_mask: block - 1, read_only: limits.read_only }
    }

    /// What the disk says now.
    pub fn of(disk: &dyn Disk) -> Bounds {
        Bounds::new(disk.sectors(), disk.limits())
    }

    /// True if a request whose other parts are sound may lie here. It is no flush.
    #[inline(always)]
    pub fn take(self, range: SectorRange, op: Op) -> bool {
        self.hold(range) && !(self.read_only && op.is_write())
    }

    #[inline(always)]
    fn hold(self, range: SectorRange) -> bool {
        !range.is_empty() && range.fits_in(self.sectors) && self.is_aligned(range)
    }

    fn is_aligned(self, range: SectorRange) -> bool {
        (range.start.0 | range.count.0) & self.block_mask == 0
    }
}

fn legal(op: Op) -> Flags {
    let hints = Flags::META | Flags::BACKGROUND;
    match op {
        Op::Read | Op::Flush | Op::Discard => hints,
        Op::Write => hints | Flags::FUA,
        Op::WriteZeroes => hints | Flags::FUA | Flags::NO_UNMAP | Flags::FAST_ZERO,
    }
}

fn has_its_data(request: &Request) -> bool {
    !request.op.has_data() || request.segs.bytes() as u64 >= request.range.to_bytes()
}

/// Why the request breaks the contract. It does.
fn breach(bounds: Bounds, request: &Request) -> Breach {
    if !legal(request.op).contains(request.flags) {
        Breach::Flags
    } else if request.range.is_empty() {
        Breach::Empty
    } else if !request.range.fits_in(bounds.sectors) {
        Breach::BeyondTheEnd
    } else if !bounds.is_aligned(request.range) {
        Breach::Unaligned
    } else {
        Breach::ShortData
    }
}

/// Checks a request before `disk`, which has these bounds, sees it.
pub(crate) fn request(
    env: &Env,
    disk: &dyn Disk,
    bounds: Bounds,
    request: &Request,
) -> Result<(), IoError> {
    let legal = request.flags.is_empty() || legal(request.op).contains(request.flags);
    let sound = request.op == Op::Flush || (has_its_data(request) && bounds.hold(request.range));
    if !(legal && sound) {
        return Err(broken(env, disk, bounds, request));
    }
    match bounds.read_only && request.op.is_write() {
        true => Err(IoError::READ_ONLY),
        false => Ok(()),
    }
}

#[cold]
fn broken(env: &Env, disk: &dyn Disk, bounds: Bounds, request: &Request) -> IoError {
    env.count_violation();
    let breach = breach(bounds, request);
    tracing::error!("{}: contract broken ({breach:?}): {request:?}", disk.name());
    IoError::INVALID
}

/// A completion came for a request that is not parked: it ended before, or never began.
pub(crate) fn stale(env: &Env, id: RequestId) {
    env.count_violation();
    tracing::error!("contract broken (completed twice): {id:?}");
}
