//! Large write-zeroes: they do not fill the cache with zeros.
//!
//! A write-zeroes is *large* if it has `write_zeroes_cutoff` bytes (1 MiB) or more. Without dirty
//! data in its sectors it goes around the cache in each mode (`writes`). With some, the order is
//! (R9):
//!
//! 1. A batch of writeback that runs ends, and none begins before 5: its copies could reach the
//!    backing device after the zeros. The request is listed as a write from above, so that no data
//!    of its sectors enters the cache as clean.
//! 2. Clean data of the sectors leaves: holes, durably.
//! 3. The backing device is zeroed, durably.
//! 4. Holes over the dirty data, durably.
//! 5. The request ends.
//!
//! On a volume that is all in the cache a hole reads as zeros: 4 alone, unless the client wants the
//! space to be kept.
//!
//! # What a crash leaves
//! - Before 4: dirty sectors have their old data, which is written back later; the others what the
//!   backing device has. The request has not ended.
//! - During 4: each dirty extent has its old data, or a hole over durable zeros.
//! - After it: zeros.
//!
//! A write of a client that comes between is concurrent with the zeros: one that goes into the
//! cache before 4 is replaced by them, one that enters it later replaces them. A failure in 3
//! leaves the dirty data; one in 4 leaves a set in error, whose volume has the zeros durably on its
//! backing device: data under the holes no longer counts as dirty, so a volume without other dirty
//! data goes on without its cache (`degraded`).

use cairn_block::sync::atomic::Ordering;
use cairn_block::{
    Env, Flags, Io, IoResult, Op, Request, RequestId, Sector, SectorCount, SectorRange, mutants,
};

use super::btree::Span;
use super::bypass::WRITE_ZEROES_CUTOFF;
use super::canary::{Bug, planted};
use super::removal::Dropped;
use super::superblocks::intact;
use super::volume::Bcache;

impl Bcache {
    /// True if a request is a large write-zeroes.
    #[inline]
    pub(super) fn is_large_zeroes(&self, request: &Request) -> bool {
        let cutoff = || match &self.bypass {
            Some(bypass) => bypass.write_zeroes_cutoff.load(Ordering::Relaxed),
            None => WRITE_ZEROES_CUTOFF,
        };
        request.op == Op::WriteZeroes
            && matches!(cutoff(), cutoff if cutoff > 0 && request.range.to_bytes() >= cutoff)
    }

    /// See the module's description. `flags` are those of the request.
    pub(super) async fn write_zeroes(&self, env: &Env, span: Span, flags: Flags, id: RequestId) {
        match self.zero(env, span, flags & Flags::NO_UNMAP).await {
            Err(_) if self.is_broken() => env.remap(id),
            result => env.complete(id, result),
        }
    }

    async fn zero(&self, env: &Env, span: Span, flags: Flags) -> IoResult {
        let _turn = self.turn_to_remove().await;
        let core = self.core.as_ref().expect("it has a cache");
        core.with(|set| {
            set.changes.fills.touch(&span);
            self.traffic.begin(span)
        });
        let result = self.zero_in_turn(env, span, flags).await;
        self.traffic.end_undefined(&span);
        result
    }

    /// Steps 2 to 4.
    async fn zero_in_turn(&self, env: &Env, span: Span, flags: Flags) -> IoResult {
        let first = if planted(Bug::HoleBeforeZeros) { Dropped::All } else { Dropped::Clean };
        self.drop_extents(env, span, first).await?;
        let backing = self.config.devices.backing().expect("a large one has a backing device");
        let known = backing.disk.failures();
        let range = SectorRange::new(Sector(span.start), SectorCount(span.end - span.start));
        let fua = mutants::fua("bcache: FUA of large zeroes");
        let zeroed = env.io(&backing.disk, Io::on(Op::WriteZeroes, range).with(flags | fua)).await;
        self.count_backing(env, zeroed);
        zeroed?;
        intact(backing, known)?;
        self.drop_extents(env, span, Dropped::Replaced).await
    }
}
