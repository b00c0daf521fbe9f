//! The difference between a snapshot and its volume, or another snapshot of the volume. It is read
//! from metadata. It reports whole chunks and may over-report, never under-report.
//!
//! A chunk of the volume that was written since the snapshot has an exception in it, as has one of
//! the snapshot that was written itself. Between two snapshots a chunk can only differ if one of
//! them has an exception: so the answer is the union. While a merge is under way, the volume (and
//! the snapshot that a rollback keeps) stands on the merge, and the others beside it: between such
//! two, what is not merged yet differs too.

use cairn_block::{ConfigError, ConfigKind, Disk, SECTOR_BYTES, Sector, SectorRange};
use cairn_outcome::failure::{Outcome, wrong};
use serde::{Deserialize, Serialize};

use crate::contexts::changed::{changed, union, unmerged};
use crate::control::server::Caller;
use crate::names::SnapName;
use crate::reach::Named;
use crate::verbs::Verbs;
use crate::verbs::verb::declare;

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

declare! {
    /// `snap diff`
    SnapDiff = "snap_diff" -> Differences {
        /// The snapshot
        #[arg(value_name = "VOLUME@NAME")]
        name: String,
        /// Another snapshot of the same volume (default: the volume itself)
        #[arg(value_name = "@NAME")]
        other: Option<String>,
        /// The byte to begin at; none: 0
        #[arg(skip)]
        from: Option<u64>,
    }
    |verb, verbs, caller| verbs.snap_diff(&verb, caller)
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

impl Verbs {
    /// `snap diff`, from a byte on.
    ///
    /// # Errors
    /// There is no such snapshot, its content is lost, or the server is going away.
    pub fn snap_diff(&self, params: &SnapDiff, caller: &dyn Caller) -> Outcome<Differences> {
        let snap = SnapName::parse(&params.name)?;
        let other = params.other.as_ref().map(|name| self.sibling(&snap, name)).transpose()?;
        let changes = self.change(&Named::volume(&snap.volume).to_look(), "snap diff", caller)?;
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

#[cfg(test)]
mod tests {
    use super::{Differences, Extent};
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
}
