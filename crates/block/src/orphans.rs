//! Dirty data at a table change: data that a cache has on its own device and that the origin lacks
//! ([`Dirty`]).
//!
//! Owns the verdict ([`fate_of`], a pure function) and the walk from tables to its input. Two disks
//! are the same if they are one [`Disk`] of the registry, under any name. Both tables are followed
//! through the volumes beneath, and through remappers to the range they use.
//!
//! O1. A line that claims what the old line claimed, in the same roles from the same sectors on, is
//!     the same cache. It reads its own metadata, so nothing is lost, whatever its options are.
//! O2. A table that reaches any part of the origin in another way serves old data there, and
//!     writes what a later writeback overwrites: the dirty data is orphaned.
//! O3. A table that does not reach the origin loses nothing: cache and origin stay as they are.

use std::sync::Arc;

use crate::claiming::place_of;
use crate::claims::Place;
use crate::device::MappedDevice;
use crate::disk::Disk;
use crate::table::{Line, Table};
use crate::target::Dirty;
use crate::units::{Sector, SectorRange};

/// What becomes of the dirty data of a cache when another table is live. Ordered: of several lines
/// the worst counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fate {
    /// Cache and origin stay as they are, unused (O3).
    Left,
    /// The new table has the same cache (O1).
    Kept,
    /// The new table uses the origin without it (O2).
    Orphaned,
}

/// A range of a disk, or of a volume that is no remapper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    place: Place,
    range: SectorRange,
}

/// Ranges of disks, or of volumes that are no remappers, in order.
pub type Ranges = Vec<(Arc<dyn Disk>, SectorRange)>;

/// What a line claims, by role, each followed down to where it lies.
type Claims = Vec<(&'static str, Vec<Part>)>;

/// A cache with dirty data.
struct Cache {
    claims: Claims,
    origin: Vec<Part>,
}

/// A line of a table, as far as a range of it is used.
struct Node {
    claims: Claims,
    /// Where its requests may go.
    uses: Vec<Part>,
    /// The lines of the volumes among these.
    beneath: Vec<Node>,
}

/// The verdict.
fn fate_of(cache: &Cache, table: &[Node]) -> Fate {
    table.iter().map(|node| fate_under(cache, node)).max().unwrap_or(Fate::Left)
}

fn fate_under(cache: &Cache, node: &Node) -> Fate {
    if is_same_cache(&cache.claims, &node.claims) {
        return Fate::Kept;
    }
    let meets = |used: &Part| {
        cache.origin.iter().any(|own| own.place == used.place && own.range.overlaps(used.range))
    };
    let reaches = node.uses.iter().any(meets);
    if reaches { Fate::Orphaned } else { fate_of(cache, &node.beneath) }
}

fn is_same_cache(old: &Claims, new: &Claims) -> bool {
    let alike = old
        .iter()
        .zip(new)
        .all(|((role, one), (other_role, other))| role == other_role && begins_alike(one, other));
    !old.is_empty() && old.len() == new.len() && alike
}

/// True if one of these is the beginning of the other.
fn begins_alike(one: &[Part], other: &[Part]) -> bool {
    let (one, other) = (joined(one), joined(other));
    let shared = one.len().min(other.len());
    let alike = |(at, (a, b)): (usize, (&Part, &Part))| {
        let is_last = at + 1 == shared;
        let starts = (a.place, a.range.start) == (b.place, b.range.start);
        starts && (is_last || a.range.count == b.range.count)
    };
    shared > 0 && one.iter().zip(&other).enumerate().all(alike)
}

/// Parts that go on from each other, as one.
fn joined(parts: &[Part]) -> Vec<Part> {
    let mut joined: Vec<Part> = Vec::new();
    for part in parts {
        match joined.last_mut() {
            Some(last) if (last.place, last.range.end()) == (part.place, part.range.start) => {
                last.range = SectorRange::between(last.range.start, part.range.end());
            }
            _ => joined.push(*part),
        }
    }
    joined
}

impl MappedDevice {
    /// The dirty data of the live table's caches.
    pub fn dirty(&self) -> Vec<Dirty> {
        let table = self.live_table();
        table
            .iter()
            .flat_map(|table| table.lines())
            .filter_map(|line| line.target.dirty())
            .collect()
    }

    /// The dirty data of the live table's caches, and what becomes of it with the table that waits,
    /// or with none.
    pub fn fates(&self) -> Vec<(Dirty, Fate)> {
        let (Some(live), waiting) = (self.live_table(), self.inactive_table()) else {
            return Vec::new();
        };
        let dirty = live.lines().iter().filter_map(|line| Some((line, line.target.dirty()?)));
        let nodes = waiting
            .as_ref()
            .map(|table| nodes(table, SectorRange::new(Sector(0), table.sectors())));
        let nodes = nodes.unwrap_or_default();
        let judged = dirty.map(|(line, dirty)| {
            let mut origin = Vec::new();
            follow(&dirty.origin, whole(&dirty.origin), &mut origin);
            let origin = parts(&origin);
            let fate = fate_of(&Cache { claims: claims_of(line), origin }, &nodes);
            (dirty, fate)
        });
        judged.collect()
    }
}

fn whole(disk: &Arc<dyn Disk>) -> SectorRange {
    SectorRange::new(Sector(0), disk.sectors())
}

/// What a line claims on lower disks, by role, and where that lies beneath all remappers.
pub fn claimed_by_line(line: &Line) -> Vec<(&'static str, Ranges)> {
    let claims = line.target.claims().into_iter();
    let followed = claims.filter_map(|claim| {
        let (disk, mut ranges) = (claim.disk?, Vec::new());
        follow(&disk, claim.range, &mut ranges);
        Some((claim.role, ranges))
    });
    followed.collect()
}

/// What becomes of the dirty data of a cache that no table has if `table` is live: of one with
/// these claims, as [`claimed_by_line`] tells them, and an origin that lies in these ranges.
pub fn fate_of_claimed(table: &Table, claims: &[(&'static str, Ranges)], origin: &Ranges) -> Fate {
    let claims = claims.iter().map(|(role, ranges)| (*role, parts(ranges))).collect();
    let cache = Cache { claims, origin: parts(origin) };
    fate_of(&cache, &nodes(table, SectorRange::new(Sector(0), table.sectors())))
}

fn claims_of(line: &Line) -> Claims {
    claimed_by_line(line).iter().map(|(role, ranges)| (*role, parts(ranges))).collect()
}

fn parts(ranges: &Ranges) -> Vec<Part> {
    ranges.iter().map(|(disk, range)| Part { place: place_of(disk), range: *range }).collect()
}

/// Where a range of a disk lies beneath all remappers.
fn follow(disk: &Arc<dyn Disk>, range: SectorRange, ranges: &mut Ranges) {
    let Some(range) = range.intersect(whole(disk)) else { return };
    let Some(table) = disk.mapped().and_then(MappedDevice::live_table) else {
        return ranges.push((disk.clone(), range));
    };
    for (line, inside) in lines_in(&table, range) {
        match line.target.remaps(inside) {
            Some(ways) => ways.iter().for_each(|(disk, range)| follow(disk, *range, ranges)),
            None => {
                let range = SectorRange::new(line.start + (inside.start - Sector(0)), inside.count);
                ranges.push((disk.clone(), range));
            }
        }
    }
}

/// The lines in a range of a table, each with what it is of the line.
fn lines_in(table: &Table, range: SectorRange) -> impl Iterator<Item = (&Line, SectorRange)> {
    table.lines().iter().filter_map(move |line| {
        let mut inside = range.intersect(line.range())?;
        inside.start = Sector(inside.start.0 - line.start.0);
        Some((line, inside))
    })
}

fn nodes(table: &Table, range: SectorRange) -> Vec<Node> {
    lines_in(table, range).map(|(line, inside)| node(line, inside)).collect()
}

fn node(line: &Line, inside: SectorRange) -> Node {
    let lowers = || line.target.lowers().into_iter().map(|disk| (disk.clone(), whole(&disk)));
    let ways = line.target.remaps(inside).unwrap_or_else(|| lowers().collect());
    let part = |(disk, range): &(Arc<dyn Disk>, SectorRange)| Part {
        place: place_of(disk),
        range: *range,
    };
    let beneath = ways.iter().flat_map(|(disk, range)| {
        let table = disk.mapped().and_then(MappedDevice::live_table);
        table.map(|table| nodes(&table, *range)).unwrap_or_default()
    });
    Node {
        claims: claims_of(line),
        uses: ways.iter().map(part).collect(),
        beneath: beneath.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::Fate::{Kept, Left, Orphaned};
    use super::{Cache, Claims, Fate, Node, Part, begins_alike, fate_of};
    use crate::claims::Place;
    use crate::units::{Sector, SectorCount, SectorRange};

    const SLOW: usize = 1;
    const FAST: usize = 2;
    const OTHER: usize = 3;

    fn part(disk: usize, start: u64, count: u64) -> Part {
        let range = SectorRange::new(Sector(start), SectorCount(count));
        Part { place: Place::Disk(disk), range }
    }

    fn whole(disk: usize) -> Part {
        part(disk, 0, 100)
    }

    fn cache_of(origin: Part, cache: Part) -> Claims {
        vec![("cached origin", vec![origin]), ("cache device", vec![cache])]
    }

    /// A remapper, or any target that claims nothing.
    fn plain(uses: &[Part]) -> Node {
        Node { claims: Vec::new(), uses: uses.to_vec(), beneath: Vec::new() }
    }

    fn caching(origin: Part, cache: Part) -> Node {
        Node { claims: cache_of(origin, cache), ..plain(&[origin, cache]) }
    }

    fn over(volume: u32, beneath: Node) -> Node {
        let range = SectorRange::new(Sector(0), SectorCount(100));
        Node { beneath: vec![beneath], ..plain(&[Part { place: Place::Volume(volume), range }]) }
    }

    #[test]
    fn a_table_orphans_dirty_data_if_it_uses_the_origin_without_the_cache() {
        // slow's first 100 sectors behind fast.
        let cache = Cache { claims: cache_of(whole(SLOW), whole(FAST)), origin: vec![whole(SLOW)] };
        let cases: Vec<(&str, Vec<Node>, Fate)> = vec![
            ("no table", vec![], Left),
            ("error or zero", vec![plain(&[])], Left),
            ("another disk", vec![plain(&[whole(OTHER)])], Left),
            ("the cache device alone", vec![plain(&[whole(FAST)])], Left),
            ("a range beside the origin", vec![plain(&[part(SLOW, 100, 8)])], Left),
            ("another volume's cache", vec![caching(whole(OTHER), part(4, 0, 8))], Left),
            ("the origin", vec![plain(&[whole(SLOW)])], Orphaned),
            (
                "its last sector",
                vec![plain(&[whole(OTHER)]), plain(&[part(SLOW, 99, 8)])],
                Orphaned,
            ),
            ("through a volume", vec![over(7, plain(&[whole(SLOW)]))], Orphaned),
            ("through two", vec![over(8, over(7, plain(&[whole(SLOW)])))], Orphaned),
            ("another cache device", vec![caching(whole(SLOW), whole(OTHER))], Orphaned),
            ("another start of it", vec![caching(whole(SLOW), part(FAST, 8, 92))], Orphaned),
            ("an origin moved by a block", vec![caching(part(SLOW, 8, 92), whole(FAST))], Orphaned),
            ("the same cache", vec![caching(whole(SLOW), whole(FAST))], Kept),
            ("a shorter origin", vec![caching(part(SLOW, 0, 50), whole(FAST))], Kept),
            ("a longer cache device", vec![caching(whole(SLOW), part(FAST, 0, 200))], Kept),
            ("in a volume beneath", vec![over(7, caching(whole(SLOW), whole(FAST)))], Kept),
            (
                "the same cache, and the origin past it",
                vec![caching(whole(SLOW), whole(FAST)), plain(&[part(SLOW, 50, 8)])],
                Orphaned,
            ),
        ];
        for (what, table, fate) in cases {
            assert_eq!(fate_of(&cache, &table), fate, "{what}");
        }
    }

    #[test]
    fn ways_in_pieces_are_the_same_if_one_begins_the_other() {
        let pieces = [part(SLOW, 0, 8), part(SLOW, 8, 8), part(OTHER, 0, 8)];
        let cases: [(&[Part], bool); 6] = [
            (&[part(SLOW, 0, 16), part(OTHER, 0, 100)], true),
            (&[part(SLOW, 0, 4)], true),
            (&[], false),
            (&[part(SLOW, 0, 24)], true),
            (&[part(SLOW, 0, 24), part(OTHER, 0, 8)], false),
            (&[part(SLOW, 0, 16), part(OTHER, 8, 8)], false),
        ];
        for (other, alike) in cases {
            assert_eq!(begins_alike(&pieces, other), alike, "{other:?}");
            assert_eq!(begins_alike(other, &pieces), alike, "{other:?}");
        }
    }
}
