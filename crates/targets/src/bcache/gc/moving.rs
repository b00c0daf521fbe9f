//! Moving: the dirty data of buckets that have little of it is packed into fresh ones, inside the
//! cache. So a fragmented cache gets its buckets back without a write to the backing device: those
//! with nothing else are free, and eviction may take those with clean data.
//!
//! # Order of a pass
//! Beside other changes of the set, one look finds the sources of many rounds: closed buckets with
//! dirty data and no write in flight, those with the least of it, and its extents, as many as
//! [`EXTENTS_MAX`]. Then come the rounds, each in the turn of the set, and the next look once these
//! sources are used up.
//!
//! # Order of a round
//! 1. Of the sources that are left, and are such buckets still, the next ones, as long as their
//!    dirty data fits into the buckets that a round may take, and takes fewer than they are.
//! 2. Their dirty extents are copied to fresh buckets, at most [`IN_FLIGHT`] at once. Clean ones
//!    stay. An extent that cannot be read stays where it is. So does one that cannot be written:
//!    the bucket takes no more.
//! 3. The cache device is flushed (R3): the copies are durable.
//! 4. Compare and swap: what the tree still has of an extent leads to its copy from then on, as
//!    dirty as before. These keys are pending, as those of clients (R4), and enter the journal and
//!    the leaves.
//! 5. A checkpoint: the leaves have the keys, no entry that counts has the old ones, and the
//!    requests that had found them have ended. Then the sources without clean data are free (R6,
//!    K1), as each bucket that lost its data.
//!
//! # Invariants
//! G1. A copy has the data of its extent: a round takes only extents whose bucket was neither freed
//!     nor reused since the look, and keeps it from being freed then ([`Core::take_out`]). A bucket
//!     is not written to again before it is free.
//! G2. A write of a client, a discard, or a batch that made an extent clean, that came between the
//!     look and 4 wins: the compare fails, and the copy is in a bucket that counts it not.
//! G3. Writeback that copies an extent to the backing device while it moves leaves it dirty: its
//!     own compare fails. The source is not free before that copy has ended (R6).
//! G4. No client writes an extent in place from before its copy begins until step 4 has ended
//!     (R15, W3): the compare would not see that.
//! G5. A broken set takes no keys: the next opening finds the extents where they were. The set may
//!     break while a round copies, as clients commit; no more copies begin then. Errors of copies
//!     count as those of other data (`cache/io_error_limit`).
//!
//! # What a crash leaves
//! - Before 4: copies to which no key leads.
//! - Before 5: keys to the source or to the copy, each with the same data, durably. An entry of the
//!   journal with the old key counts no longer than its source is whole.

use cairn_block::{CopyPiece, Env, Flags, Sector, SectorCount, SectorRange, Time, yield_once};
use cairn_format::bcache::{Key, Pointer};
use futures_util::stream::{self, StreamExt};

use crate::bcache::btree::Which;
use crate::bcache::buckets::{Choice, Marks};
use crate::bcache::canary::{Bug, planted};
use crate::bcache::coverage::{self, Path};
use crate::bcache::set::{Core, Session, Set, WriteError};
use crate::bcache::work;

/// A look finds so many extents at most, or those of a round.
const EXTENTS_MAX: usize = 1 << 16;
/// How many extents are copied at once.
const IN_FLIGHT: usize = 64;
/// How much a round moves at most, in sectors.
const ROUND_SECTORS: u64 = (8 << 20) / 512;
/// A round takes so many parts of all buckets at most, of [`PARTS`]: the kernel's reserve.
const PARTS: u64 = 1024;
/// A copy has so many sectors at most.
const COPY_SECTORS: u64 = (1 << 20) / 512;
/// Of so many sources of a round at least one is gained beyond the buckets that it takes.
const GAIN: u64 = 4;

/// What a look found and no round has taken yet.
#[derive(Default)]
pub(super) struct Sources {
    /// Those with the least dirty data first.
    buckets: Vec<u64>,
    /// Their dirty extents, in order.
    extents: Vec<Key>,
}

impl Sources {
    pub fn are_used_up(&self) -> bool {
        self.buckets.is_empty()
    }
}

/// What a round did.
#[derive(Default)]
pub(super) struct Packed {
    /// How many sources have no dirty data any more, and how many of these no data.
    pub clean: usize,
    pub empty: usize,
}

/// An extent, and where its copy goes.
struct Move {
    from: Key,
    to: Pointer,
    /// The copy has ended well.
    is_copied: bool,
}

impl Core {
    /// A look.
    ///
    /// # Errors
    /// The set is broken.
    pub(super) async fn find_sources(&self, env: &Env) -> Result<Sources, WriteError> {
        let mut choice = Choice::new(EXTENTS_MAX);
        while !self.with(|set| set.buckets.choose_sparse(&mut choice)) {
            yield_once().await;
        }
        let mut buckets = choice.into_buckets();
        // A round has so many extents at most.
        let of_round =
            self.with(|set| set.superblock.geometry().bucket_sectors().max(ROUND_SECTORS));
        let most = EXTENTS_MAX.max(of_round as usize);
        let extents = self.extents_in(env, &mut buckets, most, Which::Dirty).await?;
        Ok(Sources { buckets, extents })
    }
}

impl Session<'_> {
    /// A round. It does nothing without sources for one.
    ///
    /// # Errors
    /// The set cannot be written.
    pub(super) async fn pack(&self, left: &mut Sources) -> Result<Packed, WriteError> {
        if self.core.rests() {
            return Ok(Packed::default());
        }
        self.refill().await;
        let Some((sources, marks)) = self.with(|set| set.take_round(&mut left.buckets)) else {
            return Ok(Packed::default());
        };
        coverage::take(Path::Move);
        let extents = left.extents.extract_if(.., |key| marks.have(key)).collect();
        // G4: until their keys are replaced.
        let taken = self.core.take_out(extents).await;
        let mut moves = self.place_all(&taken.keys).await;
        let early = planted(Bug::MoveBeforeCopy);
        if early {
            moves.iter_mut().for_each(|it| it.is_copied = true);
            self.replace_all(&moves).await?;
        }
        self.copy_all(&mut moves).await;
        self.core.check()?;
        if !early {
            self.core.cache.flush(self.env).await.map_err(WriteError::Cache)?;
            self.replace_all(&moves).await?;
        }
        drop(taken);
        if planted(Bug::SourceBeforeCheckpoint) {
            self.with(|set| sources.iter().for_each(|at| set.buckets.call_settled(*at)));
            self.refill().await;
        }
        self.core.changed.notify(usize::MAX);
        let [clean, empty] = self.with(|set| set.buckets.count_clean(&sources));
        self.checkpoint().await?;
        Ok(Packed { clean, empty })
    }

    /// A place for each extent, or for each part of one; for as many as there are buckets.
    async fn place_all(&self, extents: &[Key]) -> Vec<Move> {
        let (mut moves, mut open) = (Vec::new(), None);
        for some in extents.chunks(work::changes()) {
            let is_placed =
                self.with(|set| some.iter().all(|key| set.place_copy(key, &mut open, &mut moves)));
            if !is_placed {
                break;
            }
            yield_once().await;
        }
        if let Some((next, _)) = open {
            self.with(|set| set.close_at(next));
        }
        moves
    }

    /// Step 2.
    async fn copy_all(&self, moves: &mut [Move]) {
        let copies = moves.iter_mut().map(|it| self.copy(it));
        stream::iter(copies).buffer_unordered(IN_FLIGHT).collect::<()>().await;
    }

    async fn copy(&self, one: &mut Move) {
        if self.core.is_broken() {
            return;
        }
        let Core { cache, copier, .. } = self.core;
        let count = SectorCount(one.from.sectors());
        let range = |at: Pointer| SectorRange::new(Sector(at.sector()), count);
        let from = range(one.from.cached_at().expect("an extent leads somewhere"));
        let grant = copier.grant(count.to_bytes()).await;
        let piece = CopyPiece { disk: cache.disk().clone(), range: from };
        let read = grant.read(self.env, &[piece]).await;
        self.core.count(self.env, read.as_ref().map(drop).map_err(|error| *error));
        let Ok(data) = read else { return };
        let written = data.write(self.env, cache.disk(), range(one.to), Flags::empty()).await;
        self.core.count(self.env, written);
        if written.is_err() {
            self.with(|set| set.write_failed(one.to.sector()));
        }
        one.is_copied = written.is_ok();
    }

    /// Step 4.
    async fn replace_all(&self, moves: &[Move]) -> Result<(), WriteError> {
        for some in moves.chunks(work::changes()) {
            let at = self.core.commit_at(self.env);
            let keys: Vec<Key> = some.iter().map(|it| it.from).collect();
            let replace = |set: &mut Set| {
                let is_broken = self.core.is_broken();
                for it in some {
                    let to = set.buckets.end_write(it.to.sector());
                    // G5.
                    if it.is_copied && !is_broken {
                        set.move_to_copy(it, to, at);
                    }
                }
            };
            self.with_present(&keys, replace).await?;
            yield_once().await;
        }
        Ok(())
    }
}

impl Set {
    /// How many buckets a round may take.
    fn buckets_to_fill(&self) -> u64 {
        let geometry = self.superblock.geometry();
        let most = (ROUND_SECTORS / geometry.bucket_sectors()).max(1);
        let part = (geometry.buckets() / PARTS).max(2);
        // The others are for what clients write beside it.
        part.min(most).min((self.buckets.free_for_data() as u64).div_ceil(2))
    }

    /// Step 1: the sources of the next round, and marks for them. None if too few would have no
    /// dirty data then.
    fn take_round(&self, left: &mut Vec<u64>) -> Option<(Vec<u64>, Marks)> {
        let bucket_sectors = self.superblock.geometry().bucket_sectors();
        let room = self.buckets_to_fill() * bucket_sectors;
        let (mut chosen, mut sectors, mut looked) = (Vec::new(), 0, 0);
        for at in left.iter().take(work::piece()) {
            if self.buckets.may_be_packed(*at) {
                let more = sectors + self.buckets.dirty_sectors_of(*at);
                if more > room {
                    break;
                }
                sectors = more;
                chosen.push(*at);
            }
            looked += 1;
        }
        work::did(looked);
        let (count, filled) = (chosen.len() as u64, sectors.div_ceil(bucket_sectors));
        if count <= filled || (count - filled) * GAIN < count {
            return None;
        }
        left.drain(..looked);
        let marks = self.buckets.marks(&chosen);
        Some((chosen, marks))
    }

    /// Places an extent, in parts where a bucket ends. False if no bucket is free.
    fn place_copy(
        &mut self,
        key: &Key,
        open: &mut Option<(Pointer, u64)>,
        moves: &mut Vec<Move>,
    ) -> bool {
        let mut start = key.start();
        while start < key.end() {
            if open.is_none() {
                let bucket_sectors = self.superblock.geometry().bucket_sectors();
                *open = self.buckets.take_for_data().map(|next| (next, bucket_sectors));
            }
            let Some((to, left)) = *open else { return false };
            let end = key.end().min(start + left.min(COPY_SECTORS));
            let from = key.part(start, end).expect("it lies within");
            self.buckets.begin_write(to);
            moves.push(Move { from, to, is_copied: false });
            let count = end - start;
            *open = Some((Pointer::new(to.sector() + count, to.generation()), left - count));
            if left == count {
                self.close_at(to);
                *open = None;
            }
            start = end;
        }
        true
    }

    /// Closes the bucket of a place.
    fn close_at(&mut self, place: Pointer) {
        let bucket = self.superblock.geometry().bucket_of(place.sector());
        self.buckets.close(bucket);
    }

    /// Step 4 of one extent. Its copy is not in flight any more, and begins at `to`.
    fn move_to_copy(&mut self, one: &Move, to: Pointer, at: Time) {
        let parts: Vec<Key> = self.tree.parts_left(&one.from).collect();
        if parts.is_empty() {
            coverage::take(Path::MoveLost);
        }
        for part in parts {
            let skipped = part.start() - one.from.start();
            let place = Pointer::new(to.sector() + skipped, to.generation());
            let key =
                Key::new(part.inode(), part.end(), part.sectors()).with_dirty(part.is_dirty());
            self.insert(&key.at(place), at);
        }
    }
}
