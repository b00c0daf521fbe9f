//! qcow2 images as read-only disks, over files and remote disks, with their backing images.
//!
//! ```text
//! qcow2:ARGUMENT --> Chain --> Layer::Image --> Layer::Image --> Layer::Raw
//!                                 |                |
//!                              a disk           a disk: a file, an export, an object ...
//! ```
//!
//! - `name`: what the name of a backing image means. Pure.
//! - `open`: opens an image and what it stands on.
//! - `image`: one image: pages of its tables, and its compressed clusters.
//! - `cache`: what it keeps of these.
//! - `inflate`: decompression. Pure.
//! - `chain`: where content is in all of them; reads, and block status.
//!
//! - Q1. No byte is ever written: every disk beneath is opened for reading, and a file with the
//!   locks of qemu, so no program writes to it in the meantime. Therefore nothing that is kept in
//!   memory becomes stale.
//! - Q2. What an image says is refused, at open or with EIO and a line in the log, or it is what
//!   qemu reads there. A cluster beyond the end of the image is an error, not zeros.
//! - Q3. Memory of an image: [`image::PAGES_MAX`] pages, [`image::CLUSTERS_BYTES_MAX`] of
//!   decompressed clusters (two clusters at least), and [`image::LOADS_MAX`] compressed clusters
//!   that are loaded at once. It does not depend on the size of its content.
//!
//! Nothing is written, so no failure can lose a write: the failure count stays zero.

mod cache;
mod chain;
mod image;
mod inflate;
mod name;
mod open;

use std::sync::Arc;

use cairn_block::{
    Disk, Env, Extent, Flow, IoError, Limits, LocalFuture, Nature, Op, Request, SECTOR_BYTES,
    SectorCount, SectorRange, Shape,
};

use self::chain::Chain;
pub(crate) use self::open::{Lower, open};

/// An image, with those that it stands on.
pub(crate) struct Qcow2Disk {
    /// As given by the user.
    argument: String,
    chain: Arc<Chain>,
}

impl Disk for Qcow2Disk {
    fn name(&self) -> String {
        self.argument.clone()
    }

    /// A last sector that is not whole ends in zeroes.
    fn sectors(&self) -> SectorCount {
        SectorCount(self.chain.bytes().div_ceil(SECTOR_BYTES))
    }

    fn submit(&self, env: &Env, request: &mut Request) -> Flow {
        match request.op {
            Op::Flush => return Flow::Done,
            Op::Read => {}
            _ => return Flow::Failed(IoError::READ_ONLY),
        }
        let bytes = request.range.to_bytes() as usize;
        let (id, range, segs) = (request.id(), request.range, request.segs.slice(0, bytes));
        let (chain, own) = (self.chain.clone(), env.clone());
        env.spawn(async move {
            let result = chain.read(&own, range, segs).await;
            own.complete(id, result);
        });
        Flow::Queued
    }

    fn limits(&self) -> Limits {
        Limits { discard: false, fast_zero: false, read_only: true, ..Limits::default() }
    }

    fn nature(&self) -> Nature {
        Nature { rotational: None, volatile: false, shape: Shape::Unknown }
    }

    fn extents<'a>(
        &'a self,
        env: &'a Env,
        range: SectorRange,
    ) -> LocalFuture<'a, Result<Vec<Extent>, IoError>> {
        Box::pin(self.chain.extents(env, range))
    }
}
