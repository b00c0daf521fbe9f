//! The targets: policy only.
//!
//! One file (or folder) per kind of target. Read [`linear`] first; [`passthrough`] is the
//! template with every hook explained. [`mod@spec`] is how a target declares its table line, and
//! [`args`] reads and prints table lines by it.
//!
//! Deliberately absent: files, sockets, threads, clocks. A target sees its lower disks, and
//! the `Env` that comes with each call.

#![cfg_attr(shuttle, allow(dead_code, reason = "the large tests are left out, not their helpers"))]

use std::sync::Arc;

use cairn_block::TargetType;

pub mod area;
pub mod args;
pub mod bcache;
pub mod blank;
mod canary;
pub mod clone;
pub mod delay;
mod epochs;
pub mod error;
mod fair;
#[cfg(test)]
mod fixture;
pub mod flakey;
mod flushes;
mod group_commit;
#[cfg(all(test, shuttle))]
mod interleaved;
pub mod kind;
pub mod linear;
mod live_log;
mod losses;
#[cfg(test)]
mod meta;
mod origin_marker;
#[cfg(test)]
mod owners;
pub mod passthrough;
pub mod persistent;
mod planner;
pub mod qcow2;
mod runs;
mod shared_core;
pub mod snapshot;
mod span;
pub mod spec;
pub mod striped;
pub mod thin;
pub mod writecache;
pub mod zero;

use kind::TargetKind;

/// Every kind of target.
pub const KINDS: &[TargetKind] = &[
    linear::KIND,
    passthrough::KIND,
    striped::KIND,
    zero::KIND,
    error::KIND,
    delay::KIND,
    flakey::KIND,
    writecache::KIND,
    bcache::KIND,
    snapshot::KIND,
    snapshot::ORIGIN_KIND,
    snapshot::MERGE_KIND,
    thin::POOL_KIND,
    thin::KIND,
    clone::KIND,
    qcow2::KIND,
];

/// Every kind of target, for a server.
pub fn types() -> Vec<Arc<dyn TargetType>> {
    KINDS.iter().map(|kind| Arc::new(*kind) as _).collect()
}

/// Every kind of target, for the lab: `bcache` has the words of experiments, too.
fn lab_kinds() -> impl Iterator<Item = TargetKind> {
    KINDS.iter().map(|kind| match kind.spec.name == bcache::LAB_KIND.spec.name {
        true => bcache::LAB_KIND,
        false => *kind,
    })
}

/// Every kind of target, for the lab.
pub fn lab_types() -> Vec<Arc<dyn TargetType>> {
    lab_kinds().map(|kind| Arc::new(kind) as _).collect()
}

/// The declaration of a kind of target of the lab, by its name.
pub fn lab_spec(name: &str) -> Option<&'static spec::Spec> {
    lab_kinds().map(|kind| kind.spec).find(|spec| spec.name == name)
}

/// The declaration of a kind of target, by its name.
pub fn spec(name: &str) -> Option<&'static spec::Spec> {
    KINDS.iter().map(|kind| kind.spec).find(|spec| spec.name == name)
}
