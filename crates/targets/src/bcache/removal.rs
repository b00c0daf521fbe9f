//! Discards: the cache drops what it has of the sectors, and the backing device gets the discard.
//!
//! # Order
//! 1. A batch of writeback that runs ends, and none begins before 4. (Its copies could reach the
//!    backing device after what a client writes there next.)
//! 2. The sectors enter the list of writes from above, so that no fill of them begins. Holes enter
//!    the tree, a piece at a time, also over dirty data, and the journal, durably. Fills of the
//!    sectors that had begun are dropped.
//! 3. The backing device gets the discard, if it takes any. The sectors count as written and not
//!    durable, also without a discard: copies of data that was dropped may be there (L2).
//! 4. The discard ends.
//!
//! # What a crash leaves
//! Before the end of 2: for each piece what the cache had, or what the backing device has. After
//! it: what the backing device has. A discard that has not ended allows both.

use cairn_block::{
    Env, Io, IoError, IoResult, Op, RequestId, Sector, SectorCount, SectorRange, yield_once,
};

use super::btree::Span;
use super::coverage::{self, Path};
use super::route::Overlap;
use super::set::Set;
use super::volume::Bcache;
use super::work;

/// What leaves the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dropped {
    All,
    /// What is not dirty, and what the device alone may have.
    Clean,
    /// All. The backing device has, durably, what is to be read instead.
    Replaced,
}

impl Set {
    /// The parts of these sectors without dirty data.
    fn not_dirty(&self, span: &Span) -> Vec<Span> {
        let (mut start, mut parts) = (span.start, Vec::new());
        for key in self.tree.extents_in(span).filter(|key| key.is_dirty()) {
            if start < key.start() {
                parts.push(Span { start, end: key.start(), ..*span });
            }
            start = key.end();
        }
        if start < span.end {
            parts.push(Span { start, ..*span });
        }
        parts
    }
}

impl Bcache {
    /// See the module's description.
    pub(super) async fn discard(&self, env: &Env, span: Span, id: RequestId) {
        match self.remove(env, span).await {
            Err(_) if self.is_broken() => env.remap(id),
            result => env.complete(id, result),
        }
    }

    async fn remove(&self, env: &Env, span: Span) -> IoResult {
        let _turn = self.turn_to_remove().await;
        let core = self.core.as_ref().expect("it has a cache");
        core.with(|_| self.traffic.begin(span));
        let dropped = self.drop_extents(env, span, Dropped::All).await;
        let result = match dropped {
            Ok(()) => self.discard_backing(env, span).await,
            Err(error) => Err(error),
        };
        self.traffic.end_undefined(&span);
        result
    }

    /// Step 3.
    async fn discard_backing(&self, env: &Env, span: Span) -> IoResult {
        match self.config.devices.backing() {
            Some(backing) if backing.disk.limits().discard => {
                let count = SectorCount(span.end - span.start);
                let range = SectorRange::new(Sector(span.start), count);
                env.io(&backing.disk, Io::on(Op::Discard, range)).await
            }
            _ => Ok(()),
        }
    }

    /// Step 2: holes, durably; of keys that were pending, too.
    pub(super) async fn drop_extents(&self, env: &Env, span: Span, what: Dropped) -> IoResult {
        let core = self.core.as_ref().expect("it has a cache");
        let (mut start, mut holes, mut dropped) = (span.start, Vec::new(), 0);
        while start < span.end {
            // Each sector may be an extent.
            let piece = Span { start, end: span.end.min(start + work::piece() as u64), ..span };
            let drop_some = |set: &mut Set| {
                set.changes.fills.touch(&piece);
                // A broken set takes no keys; the commit fails.
                if core.is_broken() {
                    return;
                }
                let parts = match what {
                    Dropped::All | Dropped::Replaced => vec![piece],
                    Dropped::Clean => set.not_dirty(&piece),
                };
                for part in parts {
                    if set.overlap(&part) == Overlap::None {
                        continue;
                    }
                    let dirty = set.lay_hole(part, core.commit_at(env));
                    dropped += dirty;
                    if dirty < 0 {
                        coverage::take(Path::DiscardDirty);
                    }
                    holes.push(part);
                }
            };
            // Without it the set is broken: the commit fails.
            let _ = core.with_present(env, [piece], drop_some).await;
            start = piece.end;
            yield_once().await;
        }
        let committed = core.commit(env).await;
        // The cache keeps what a hole is over that is lost: the volume needs that data, unless it
        // was replaced.
        if committed.is_ok() || what == Dropped::Replaced {
            self.add_dirty(dropped);
        }
        for some in holes.chunks(work::changes()) {
            core.with(|set| some.iter().for_each(|hole| set.changes.ghosts.end_hole(hole)));
            yield_once().await;
        }
        committed.and(if core.is_broken() { Err(IoError::IO) } else { Ok(()) })
    }
}
