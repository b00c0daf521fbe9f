//! The sweep: the planner chooses what the background writeback copies next.
//!
//! A pass fills a planner with what is dirty, in pieces, and ends when nothing is left of it. The
//! planner knows zones and no extents; the extents of a zone are looked up when it is their turn,
//! so what became dirty there since the pass began goes with them. The rest waits for the next
//! pass.

use cairn_block::{Sector, SectorCount, SectorRange, yield_once};
use cairn_format::bcache::Key;

use super::batch::{BATCH_KEYS, BATCH_SECTORS};
use crate::bcache::btree::Span;
use crate::bcache::set::Set;
use crate::bcache::volume::Bcache;
use crate::planner::{Members, Piece, Planner};

/// How many extents are looked at while the lock is held.
const PIECE_KEYS: usize = 8192;

fn range_of(key: &Key) -> SectorRange {
    SectorRange::between(Sector(key.start()), Sector(key.end()))
}

impl Bcache {
    /// A planner that knows what is dirty now.
    pub(super) async fn plan_pass(&self) -> Planner {
        let backing = &self.config.devices.backing().expect("a volume that is drained").disk;
        let mut planner = Planner::new(Members::of(backing));
        let mut from = 0;
        loop {
            let next = self.look(|set| {
                let mut extents = set.tree.extents_from(self.inode(), from);
                let piece = extents.by_ref().take(PIECE_KEYS);
                piece.filter(|key| key.is_dirty()).for_each(|key| planner.add(range_of(key)));
                extents.next().map(Key::start)
            });
            match next.flatten() {
                Some(next) => from = next,
                None => return planner,
            }
            yield_once().await;
        }
    }

    /// The dirty extents that the planner chooses, of about `most` sectors at most.
    pub(super) async fn next_swept(&self, planner: &mut Planner, most: u64) -> Vec<Key> {
        let (mut keys, mut sectors) = (Vec::new(), 0);
        let most = most.min(BATCH_SECTORS);
        while keys.len() < BATCH_KEYS && sectors < most {
            let Some(piece) = planner.next() else { break };
            let room = (most - sectors).min(piece.most.0);
            let before = keys.len();
            let looked = self.look(|set| self.dirty_of(set, &piece, room, &mut keys));
            let taken = keys[before..].iter().map(Key::sectors).sum();
            sectors += taken;
            let to = looked.unwrap_or(piece.range.end());
            planner.looked(
                &piece,
                to.clamp(piece.range.start, piece.range.end()),
                SectorCount(taken),
            );
            if looked.is_none() {
                break;
            }
            if taken == 0 {
                yield_once().await;
            }
        }
        keys
    }

    /// Takes the dirty extents of a piece, until they have `most` sectors. Answers how far it has
    /// looked.
    fn dirty_of(&self, set: &Set, piece: &Piece, most: u64, keys: &mut Vec<Key>) -> Sector {
        let (mut sectors, room) = (0, BATCH_KEYS.saturating_sub(keys.len()).max(1));
        let end = piece.range.end().0;
        let extents = set.tree.extents_from(self.inode(), piece.range.start.0);
        for (looked, key) in extents.take_while(|key| key.start() < end).enumerate() {
            if looked == PIECE_KEYS.min(room) || sectors >= most {
                return Sector(key.start());
            }
            // An extent that begins before the piece was offered with the one before.
            let is_own = key.start() >= piece.range.start.0;
            if key.is_dirty() && is_own && !self.traffic.overlaps(&Span::of(key)) {
                sectors += key.sectors();
                keys.push(*key);
            }
        }
        piece.range.end()
    }

    /// What a batch left goes with a later one of the pass.
    pub(super) fn sweep_again(planner: &mut Planner, untried: &[Key]) {
        untried.iter().for_each(|key| planner.add(range_of(key)));
    }
}
