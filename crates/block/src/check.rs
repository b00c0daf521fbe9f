//! The contract between every two layers, always compiled in.
//!
//! A request that breaks it is a bug of the layer above: it fails with
//! [`ErrorKind::Invalid`](crate::ErrorKind::Invalid), is logged and counted
//! ([`Env::contract_violations`]); nothing reaches the layer below. Exactly one completion per
//! request is enforced by ownership and generations: a second one finds no request.

use crate::disk::Disk;
use crate::env::Env;
use crate::error::IoError;
use crate::request::{Flags, Op, Request, RequestId};

#[derive(Debug)]
enum Breach {
    Empty,
    BeyondTheEnd,
    Unaligned,
    ShortData,
    Flags,
}

fn breach(disk: &dyn Disk, request: &Request) -> Option<Breach> {
    let legal = match request.op {
        Op::Read | Op::Flush | Op::Discard => Flags::META,
        Op::Write => Flags::META | Flags::FUA,
        Op::WriteZeroes => Flags::META | Flags::FUA | Flags::NO_UNMAP | Flags::FAST_ZERO,
    };
    if !legal.contains(request.flags) {
        return Some(Breach::Flags);
    }
    if request.op == Op::Flush {
        return None;
    }
    if request.range.is_empty() {
        return Some(Breach::Empty);
    }
    if !request.range.fits_in(disk.sectors()) {
        return Some(Breach::BeyondTheEnd);
    }
    if !request.range.is_aligned(disk.limits().logical_sectors()) {
        return Some(Breach::Unaligned);
    }
    if request.op.has_data() && (request.segs.bytes() as u64) < request.range.to_bytes() {
        return Some(Breach::ShortData);
    }
    None
}

/// Checks a request before `disk` sees it.
pub(crate) fn request(env: &Env, disk: &dyn Disk, request: &Request) -> Result<(), IoError> {
    if let Some(breach) = breach(disk, request) {
        env.count_violation();
        tracing::error!("{}: contract broken ({breach:?}): {request:?}", disk.name());
        return Err(IoError::INVALID);
    }
    if request.op.is_write() && disk.limits().read_only {
        return Err(IoError::READ_ONLY);
    }
    Ok(())
}

/// Somebody completed a request that is not parked: it ended before, or never began.
pub(crate) fn stale(env: &Env, id: RequestId) {
    env.count_violation();
    tracing::error!("contract broken (completed twice): {id:?}");
}
