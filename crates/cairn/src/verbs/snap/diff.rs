//! What differs between a snapshot and its volume, or another snapshot of it: told from metadata,
//! in whole chunks, never too little.
//!
//! A chunk of the volume that was written since the snapshot has an exception in it, as has one of
//! the snapshot that was written itself. Between two snapshots a chunk can only differ if one of
//! them has an exception: so the answer is the union. While a merge is under way, the volume (and
//! the snapshot that a rollback keeps) stands on the merge, and the others beside it: between such
//! two, what is not merged yet differs too.

use std::sync::Arc;

use cairn_block::{
    ConfigError, ConfigKind, Disk, IoError, MappedDevice, SECTOR_BYTES, Sector, SectorRange, Target,
};
use cairn_outcome::stdout::{print, print_json};
use cairn_targets::snapshot::{Merge, Snapshot};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::names::{SnapName, merge_of, parent_of};
use crate::cli::ServerArgs;
use crate::control::rpc::SnapDiffParams;
use crate::exit;
use crate::failure::{Outcome, wrong};
use crate::remote::client;
use crate::verbs::Verbs;
use crate::world::Names;

/// Most extents of one answer: its line stays far below what a client reads.
pub const EXTENTS_MAX: usize = 100_000;

/// A range that may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

/// A part of the differences; `snap diff` and `thin diff` answer with it.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Differences {
    /// In order.
    pub extents: Vec<Extent>,
    /// The byte at which the next part begins; none: this part is the last.
    pub next: Option<u64>,
}

impl Differences {
    /// The first `most` of the ranges that differ.
    fn first_of(ranges: &[SectorRange], most: usize) -> Differences {
        let extent = |range: &SectorRange| Extent {
            offset: range.start.to_bytes(),
            length: range.count.to_bytes(),
        };
        let next = ranges.get(most).map(|range| range.start.to_bytes());
        Differences { extents: ranges.iter().take(most).map(extent).collect(), next }
    }
}

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

impl Verbs {
    /// `snap diff`, from a byte on.
    ///
    /// # Errors
    /// There is no such snapshot, its content is lost, or the server is going away.
    pub fn snap_diff(&self, params: &SnapDiffParams) -> Outcome<Differences> {
        let snap = SnapName::parse(&params.name)?;
        let other = params.other.as_ref().map(|name| self.sibling(&snap, name)).transpose()?;
        let changes = self.change()?;
        let snaps = [Some(&snap), other.as_ref()];
        for snap in snaps.into_iter().flatten() {
            self.record_of_snapshot(&changes, snap)?;
        }
        let names = self.world.names();
        let beside = other.as_ref().map_or_else(|| snap.volume.clone(), SnapName::full);
        let end = Sector(self.world.volume(&snap.full())?.sectors().0);
        let from = Sector(params.from.unwrap_or(0) / SECTOR_BYTES).min(end);
        let rest = SectorRange::between(from, end);
        let mut all = unmerged(&names, &snap.full(), &beside, rest);
        for snap in snaps.into_iter().flatten() {
            let found = changed(&names, &snap.full(), rest);
            let found = found.map_err(|error| {
                let detail = "status: found its content lost, expected a valid snapshot";
                ConfigError::new(ConfigKind::Damaged, snap.full(), detail).with_source(error)
            })?;
            all = union(all, found);
        }
        Ok(Differences::first_of(&all, EXTENTS_MAX))
    }

    /// Another snapshot of the same volume: `@NAME`, or in full.
    fn sibling(&self, snap: &SnapName, name: &str) -> Outcome<SnapName> {
        let full = match name.strip_prefix('@') {
            Some(own) => format!("{}@{own}", snap.volume),
            None => name.to_owned(),
        };
        let other = SnapName::parse(&full)?;
        if other.volume != snap.volume {
            let expected = format!("a snapshot of {}", snap.volume);
            return Err(wrong(snap.full(), "other", format!("'{name}'"), expected));
        }
        Ok(other)
    }
}

/// Asks a server for the differences until there are no more, and prints them as they come.
///
/// # Errors
/// There is no server, it refuses, or stdout does.
pub fn print_differences(
    server: &ServerArgs,
    method: &str,
    as_json: bool,
    params: impl Fn(Option<u64>) -> Value,
) -> Outcome<u8> {
    let client = client(server)?;
    let (mut from, mut all) = (None, Vec::<Extent>::new());
    loop {
        let answer = client.ask(method, params(from))?;
        let Differences { extents, next } = serde_json::from_value(answer).map_err(|error| {
            let detail = "answer: not understood";
            ConfigError::new(ConfigKind::System, method, detail).with_source(error)
        })?;
        match as_json {
            true => all.extend(extents),
            false => drop(print(&diff_text(&extents))?),
        }
        from = next;
        if from.is_none() {
            break;
        }
    }
    if as_json { print_json(&json!(all)) } else { Ok(exit::OK) }
}

fn diff_text(extents: &[Extent]) -> String {
    let lines = extents.iter().map(|extent| format!("{} {}\n", extent.offset, extent.length));
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::{Differences, Extent, union};
    use cairn_block::{Sector, SectorRange};

    #[test]
    fn a_part_of_the_differences_says_where_the_next_begins() {
        let range = |a, b| SectorRange::between(Sector(a), Sector(b));
        let all = [range(0, 8), range(16, 24), range(32, 48)];
        let extent = |offset, length| Extent { offset, length };
        let first = Differences::first_of(&all, 2);
        assert_eq!(first.extents, [extent(0, 4096), extent(8192, 4096)]);
        assert_eq!(first.next, Some(32 * 512));
        assert_eq!(Differences::first_of(&all[2..], 2).next, None);
        assert_eq!(Differences::first_of(&all, 3).next, None);
    }

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
