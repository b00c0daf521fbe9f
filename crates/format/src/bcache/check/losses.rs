//! What a damaged cache took with it: which sectors of which volume.
//!
//! - *Lost*: the only copy was in the cache, and cannot be read, or its bucket was reused.
//! - *Suspect*: the cache may have had the only copy, and what said so is damaged; or one of two
//!   extents that claim the same place in the cache is not what was written.
//!
//! All other sectors are sound: the cache has them dirty and readable, or does not need to have
//! them. A damaged node leaves all that lies in its range suspect: the damaged bset may have had a
//! newer key for any of it. Not suspect is what open entries of the journal say, and what the bsets
//! behind the damaged one say: both are newer. Dirty extents of the bsets before it are ranges of
//! their own among what is suspect. Without an entry of the journal everything is
//! suspect; but a key whose pointer leads nowhere (in a leaf or an entry) or whose range is
//! impossible (in an entry) leaves only what it covers suspect. Without priorities nothing is, but
//! for what the journal has as dirty: it may have been moved since, and only the generation of its
//! bucket would show it.
//!
//! Whether the cache had anything at all that a backing device lacks, that device's state says: its
//! suspect sectors count only if the state is neither clean nor none.

use std::ops::Range;

use super::{Loaded, Report};
use crate::bcache::load::{Fault, Place, Source, What};
use crate::bcache::{Geometry, Key};

/// A sector of a volume, by its inode.
type At = (u32, u64);

/// All sectors of all volumes.
const EVERYTHING: Range<At> = (0, 0)..(u32::MAX, 0);
/// Sectors that are read at once.
const PIECE_SECTORS: u64 = 2048;

/// How much is known of sectors that are not sound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Certainty {
    /// Their content is gone.
    Lost,
    /// It may be.
    Suspect,
}

/// The sectors that are not sound.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Losses {
    lost: Vec<Range<At>>,
    suspect: Vec<Range<At>>,
    /// Dirty extents, or parts of them, that are suspect.
    extents: Vec<Range<At>>,
}

/// What is known of a cache in spite of its damage.
pub(super) struct Known<'a> {
    pub loaded: &'a Loaded,
    pub geometry: &'a Geometry,
    /// What damaged leaves have that is newer than the damage.
    pub newer: Vec<Key>,
    /// The extents of the tree with the journal over them.
    pub extents: &'a [Key],
}

impl Losses {
    /// The sectors of a volume that are not sound, in order, as keys count them.
    #[must_use]
    pub fn of(&self, inode: u32, volume: &Range<u64>) -> Vec<(Certainty, Range<u64>)> {
        let lost = self.lost.iter().map(|range| (Certainty::Lost, range));
        let suspect = self.suspect.iter().chain(&self.extents);
        let suspect = suspect.map(|range| (Certainty::Suspect, range));
        let mut found: Vec<(Certainty, Range<u64>)> = lost
            .chain(suspect)
            .filter_map(|(certainty, range)| {
                let range = within(range, inode, volume)?;
                Some((certainty, range))
            })
            .collect();
        found.sort_by_key(|(_, range)| range.start);
        found
    }

    /// Nothing is known of the cache.
    pub(super) fn everything() -> Losses {
        Losses { suspect: vec![EVERYTHING], ..Losses::default() }
    }

    /// Puts what was found in order; what is lost is not suspect as well.
    fn settle(&mut self) {
        self.lost = merged(std::mem::take(&mut self.lost));
        self.extents = without(&self.extents, &self.lost);
        self.suspect = without(&merged(std::mem::take(&mut self.suspect)), &self.lost);
        self.suspect = without(&self.suspect, &self.extents);
    }
}

fn within(range: &Range<At>, inode: u32, volume: &Range<u64>) -> Option<Range<u64>> {
    let (from, to) = ((inode, volume.start), (inode, volume.end));
    let (start, end) = (range.start.max(from), range.end.min(to));
    (start < end).then_some(start.1..end.1)
}

/// Ranges in order, and joined where they touch.
fn merged(mut ranges: Vec<Range<At>>) -> Vec<Range<At>> {
    ranges.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<At>> = Vec::with_capacity(ranges.len());
    for range in ranges.into_iter().filter(|range| range.start < range.end) {
        match joined.last_mut().filter(|last| last.end >= range.start) {
            Some(last) => last.end = last.end.max(range.end),
            None => joined.push(range),
        }
    }
    joined
}

/// `ranges` without what `known` covers; both are in order.
fn without(ranges: &[Range<At>], known: &[Range<At>]) -> Vec<Range<At>> {
    let mut rest = Vec::with_capacity(ranges.len());
    let mut first = 0;
    for range in ranges {
        let mut at = range.start;
        first += known[first..].iter().take_while(|known| known.end <= at).count();
        for known in known[first..].iter().take_while(|known| known.start < range.end) {
            if at < known.start {
                rest.push(at..known.start);
            }
            at = at.max(known.end);
        }
        if at < range.end {
            rest.push(at..range.end);
        }
    }
    rest
}

/// The parts of `ranges` that are in `others` too; both are in order.
fn common(ranges: &[Range<At>], others: &[Range<At>]) -> Vec<Range<At>> {
    without(ranges, &without(ranges, others))
}

fn range_of(key: &Key) -> Range<At> {
    key.begin()..key.position()
}

/// The keys of which a fault leaves nothing known.
pub(super) fn suspect_of(fault: &Fault) -> Option<Range<At>> {
    match (&fault.place, &fault.what) {
        (Place::Uuids | Place::Priorities { .. }, _) => None,
        (Place::Node(place), What::Pointer(key)) if place.level == 0 => Some(range_of(key)),
        (Place::Node(place), _) => Some(place.after..place.key.position()),
        (Place::Newest { .. }, What::Pointer(key) | What::Range(key)) => Some(range_of(key)),
        (Place::Journal { .. } | Place::Ring | Place::Newest { .. }, _) => Some(EVERYTHING),
    }
}

/// The dirty extents whose buckets were reused.
pub(super) fn gone(loaded: &Loaded, geometry: &Geometry, extents: &[Key]) -> Vec<Range<At>> {
    let is_gone = |key: &&Key| key.is_dirty() && loaded.is_stale(geometry, key);
    extents.iter().filter(is_gone).map(range_of).collect()
}

/// What the damage that a check found took with it, [`gone`] included, except for data that cannot
/// be read.
pub(super) fn of_damage(
    report: &Report,
    known: &Known<'_>,
    gone: Vec<Range<At>>,
    in_doubt: &[Key],
) -> Losses {
    let journaled = known.loaded.journaled(known.geometry);
    let mut losses = Losses::default();
    let damaged = merged(report.suspect.clone());
    if report.suspect.contains(&EVERYTHING) {
        losses.suspect = damaged;
    } else {
        let newer = known.newer.iter().chain(&journaled).map(range_of);
        let suspect = without(&damaged, &merged(newer.collect()));
        let dirty = known.extents.iter().filter(|key| key.is_dirty());
        losses.extents = common(&dirty.map(range_of).collect::<Vec<_>>(), &suspect);
        losses.suspect = without(&suspect, &losses.extents);
    }
    losses.suspect.extend(in_doubt.iter().filter(|key| key.is_dirty()).map(range_of));
    if (known.loaded.priorities.len() as u64) < known.geometry.priority_sets() {
        losses.suspect.extend(journaled.iter().filter(|key| key.is_dirty()).map(range_of));
    }
    losses.lost = gone;
    losses.settle();
    losses
}

/// Adds the dirty extents, or parts of them, that cannot be read. Answers how many sectors.
pub(super) async fn add_unreadable<S: Source>(
    losses: &mut Losses,
    source: &mut S,
    geometry: &Geometry,
    extents: &[Key],
) -> Result<u64, S::Error> {
    let mut unreadable = 0;
    let block = u64::from(geometry.block_sectors());
    for key in extents.iter().filter(|key| key.is_dirty()) {
        let mut pieces: Vec<Key> = (key.start()..key.end())
            .step_by(PIECE_SECTORS as usize)
            .filter_map(|start| key.part(start, start + PIECE_SECTORS))
            .collect();
        while let Some(piece) = pieces.pop() {
            let Some(pointer) = piece.cached_at() else { continue };
            let range = pointer.sector()..pointer.sector() + piece.sectors();
            let is_read = matches!(source.read(&[range]).await?.first(), Some(Ok(_)));
            if is_read {
                continue;
            }
            if piece.sectors() <= block {
                losses.lost.push(range_of(&piece));
                unreadable += piece.sectors();
                continue;
            }
            let middle = piece.start() + (piece.sectors() / 2).next_multiple_of(block);
            pieces.extend(piece.part(middle, piece.end()));
            pieces.extend(piece.part(piece.start(), middle));
        }
    }
    losses.settle();
    Ok(unreadable)
}

#[cfg(test)]
mod tests {
    use super::{Certainty, Losses, merged, without};

    #[test]
    fn ranges_are_joined_and_taken_out_of_each_other() {
        let ranges = merged(vec![(1, 0)..(1, 5), (0, 7)..(0, 9), (0, 9)..(0, 9), (0, 8)..(1, 0)]);
        assert_eq!(ranges, [(0, 7)..(1, 5)]);
        let known = [(0, 0)..(0, 8), (0, 9)..(0, 12), (1, 4)..(2, 0)];
        assert_eq!(without(&ranges, &known), [(0, 8)..(0, 9), (0, 12)..(1, 4)]);
        assert_eq!(without(&ranges, &[]), ranges);
        assert_eq!(without(&[(0, 1)..(0, 2), (0, 3)..(0, 4)], &[(0, 0)..(0, 9)]), []);
    }

    #[test]
    fn a_volume_has_its_part_of_a_range_of_several() {
        let mut losses = Losses::everything();
        losses.lost.push((1, 20)..(1, 30));
        losses.settle();
        let (lost, suspect) = (Certainty::Lost, Certainty::Suspect);
        assert_eq!(losses.of(0, &(16..99)), [(suspect, 16..99)]);
        let parts = [(suspect, 16..20), (lost, 20..30), (suspect, 30..40)];
        assert_eq!(losses.of(1, &(16..40)), parts);
    }
}
