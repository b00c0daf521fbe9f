//! Where a live snapshot differs from its origin or from another snapshot. The answer comes from
//! the exceptions, in whole chunks. It may over-report, never under-report.

use std::sync::Arc;

use cairn_block::{IoError, MappedDevice, SectorRange, Target};
use cairn_targets::snapshot::{Merge, Snapshot};

use crate::names::{merge_of, parent_of};
use crate::world::Names;

fn first_target(volume: &MappedDevice) -> Option<Arc<dyn Target>> {
    volume.live_table()?.lines().first().map(|line| line.target.clone())
}

/// Where a volume and a snapshot of it, or two snapshots, may differ because a merge is under way
/// between them.
///
/// Ask before [`changed`]: a chunk leaves the merge when the snapshots beside it have it.
pub fn unmerged(names: &Names, one: &str, other: &str, range: SectorRange) -> Vec<SectorRange> {
    let merge = merge_of(parent_of(one).unwrap_or(one));
    let Ok(merge) = names.volume(&merge) else { return Vec::new() };
    let is_above = |name: &str| {
        let target = names.volume(name).ok().and_then(|volume| first_target(&volume));
        let lower = target.and_then(|target| target.lowers().into_iter().next());
        lower.is_some_and(|lower| lower.mapped().is_some_and(|on| on.volume() == merge.volume()))
    };
    if is_above(one) == is_above(other) {
        return Vec::new();
    }
    let target = first_target(&merge);
    let any = target.as_ref().and_then(|target| target.as_any());
    let merge: Option<&Merge> = any.and_then(|any| any.downcast_ref());
    merge.map_or_else(Vec::new, |merge| merge.unmerged(range))
}

/// Where a live snapshot differs from its origin, inside a range.
///
/// # Errors
/// There is no such snapshot, or its content is lost.
pub fn changed(names: &Names, full: &str, range: SectorRange) -> Result<Vec<SectorRange>, IoError> {
    let volume = names.volume(full).map_err(|_| IoError::INVALID)?;
    let target = first_target(&volume);
    let any = target.as_ref().and_then(|target| target.as_any());
    let snapshot: Option<&Snapshot> = any.and_then(|any| any.downcast_ref());
    snapshot.ok_or(IoError::INVALID)?.changed(range)
}

/// True for a live snapshot with a store.
pub fn is_snapshot(names: &Names, full: &str) -> bool {
    let target = names.volume(full).ok().and_then(|volume| first_target(&volume));
    let any = target.as_ref().and_then(|target| target.as_any());
    any.is_some_and(|any| any.is::<Snapshot>())
}

/// Both lists as one, in order and merged.
pub fn union(mut a: Vec<SectorRange>, b: Vec<SectorRange>) -> Vec<SectorRange> {
    a.extend(b);
    a.sort_by_key(|range| range.start);
    let mut merged: Vec<SectorRange> = Vec::new();
    for range in a {
        match merged.last_mut().filter(|last| last.end() >= range.start) {
            Some(last) => *last = SectorRange::between(last.start, last.end().max(range.end())),
            None => merged.push(range),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::union;
    use cairn_block::{Sector, SectorRange};

    #[test]
    fn two_lists_become_one_without_overlap() {
        let list = |ranges: &[(u64, u64)]| -> Vec<SectorRange> {
            ranges.iter().map(|(a, b)| SectorRange::between(Sector(*a), Sector(*b))).collect()
        };
        let (a, b) = (list(&[(0, 8), (32, 40)]), list(&[(4, 16), (16, 24), (36, 38)]));
        assert_eq!(union(a, b), list(&[(0, 24), (32, 40)]));
        assert_eq!(union(list(&[]), list(&[(1, 2)])), list(&[(1, 2)]));
    }
}
