//! The targets: policy only.
//!
//! One file (or folder) per kind of target. Read [`linear`] first; [`passthrough`] is the
//! template with every hook explained. [`args`] reads table lines for all of them.
//!
//! Deliberately absent: files, sockets, threads, clocks. A target sees its lower disks, and
//! the `Env` that comes with each call.

use std::sync::Arc;

use cairn_block::TargetType;

pub mod area;
pub mod args;
pub mod blank;

pub mod delay;
mod epochs;
pub mod error;
mod fair;
pub mod flakey;
mod flushes;
mod group_commit;
#[cfg(all(test, shuttle))]
mod interleaved;
pub mod linear;
#[cfg(test)]
mod meta;
#[cfg(test)]
mod owners;
pub mod passthrough;
pub mod persistent;
#[cfg(test)]
mod rig;
mod shared_core;
pub mod snapshot;
pub mod striped;
#[cfg(test)]
mod testbed;
pub mod thin;
pub mod writecache;
pub mod zero;

use args::Spec;

/// Every kind of target, with its options, messages and status fields.
pub fn all() -> Vec<(Arc<dyn TargetType>, Spec)> {
    vec![
        (Arc::new(linear::LinearType), linear::SPEC),
        (Arc::new(passthrough::PassthroughType), passthrough::SPEC),
        (Arc::new(striped::StripedType), striped::SPEC),
        (Arc::new(zero::ZeroType), zero::SPEC),
        (Arc::new(error::ErrorType), error::SPEC),
        (Arc::new(delay::DelayType), delay::SPEC),
        (Arc::new(flakey::FlakeyType), flakey::SPEC),
        (Arc::new(writecache::WriteCacheType), writecache::SPEC),
        (Arc::new(snapshot::SnapshotType::default()), snapshot::SNAPSHOT_SPEC),
        (Arc::new(snapshot::OriginType), snapshot::ORIGIN_SPEC),
        (Arc::new(snapshot::MergeType), snapshot::MERGE_SPEC),
        (Arc::new(thin::PoolType), thin::POOL_SPEC),
        (Arc::new(thin::ThinType), thin::THIN_SPEC),
    ]
}

/// Every kind of target.
pub fn types() -> Vec<Arc<dyn TargetType>> {
    all().into_iter().map(|(kind, _)| kind).collect()
}
