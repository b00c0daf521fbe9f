//! The NBD metadata contexts `cairn:changed:NAME` of a volume and of its snapshots: which ranges
//! may differ from snapshot NAME. State 1 means changed, 0 the same. `qemu:dirty-bitmap:NAME` is
//! another name of each: backup tools ask for it, and in it qemu's state 1 means dirty.
//!
//! Called on reactors. For a snapshot with a store the answer comes from memory, for one in a pool
//! from the pool's metadata.

pub mod changed;
mod thin;

use std::sync::Arc;

use cairn_block::{Env, IoError, LocalFuture, SectorCount, SectorRange};
use cairn_exports::nbd::{ContextRun, Contexts};

use crate::names::{parent_of, snapshot_of};
use crate::world::Names;
use changed::{changed, is_snapshot, union, unmerged};
use thin::ThinContext;

/// What precedes the name of a snapshot, in both names of a context.
const PREFIXES: [&str; 2] = ["cairn:changed:", "qemu:dirty-bitmap:"];
const CHANGED: u32 = 1;
/// The longest range of one answer: 64 MiB. A client asks again for the rest, so that other
/// requests are served in between.
const SECTORS_MAX: u64 = 1 << 17;

/// The contexts of one exported volume.
pub struct SnapContexts {
    names: Arc<Names>,
    volume: String,
}

impl SnapContexts {
    /// Those of `volume`, which may be a snapshot.
    pub fn new(names: Arc<Names>, volume: &str) -> SnapContexts {
        SnapContexts { names, volume: volume.to_owned() }
    }

    fn parent(&self) -> &str {
        parent_of(&self.volume).unwrap_or(&self.volume)
    }

    /// The snapshot and this volume, if both are of one pool.
    fn thin(&self, full: &str) -> Option<ThinContext> {
        ThinContext::of(&self.names, &self.volume, full)
    }

    /// The snapshots with stores whose exceptions tell it, if they do.
    fn in_stores<'a>(&'a self, full: &'a str) -> Option<Vec<&'a str>> {
        let mut all = vec![full];
        if parent_of(&self.volume).is_some() && self.volume != full {
            all.push(&self.volume);
        }
        all.iter().all(|name| is_snapshot(&self.names, name)).then_some(all)
    }
}

impl Contexts for SnapContexts {
    fn names(&self) -> Vec<String> {
        let volumes = self.names.volumes();
        let own = volumes.iter().filter_map(|volume| snapshot_of(volume.volume(), self.parent()));
        let told = own.filter(|name| {
            let full = format!("{}@{name}", self.parent());
            self.thin(&full).is_some() || self.in_stores(&full).is_some()
        });
        let told: Vec<&str> = told.collect();
        let named = |prefix: &'static str| told.iter().map(move |name| format!("{prefix}{name}"));
        PREFIXES.into_iter().flat_map(named).collect()
    }

    fn describe<'a>(
        &'a self,
        env: &'a Env,
        name: &'a str,
        range: SectorRange,
    ) -> LocalFuture<'a, Result<Vec<ContextRun>, IoError>> {
        Box::pin(async move {
            let without = PREFIXES.into_iter().find_map(|prefix| name.strip_prefix(prefix));
            let name = without.ok_or(IoError::INVALID)?;
            let full = format!("{}@{name}", self.parent());
            if let Some(thin) = self.thin(&full) {
                let (told, found) = thin.changed(env, range).await?;
                return Ok(runs(told, &found));
            }
            let snapshots = self.in_stores(&full).ok_or(IoError::INVALID)?;
            let count = SectorCount(range.count.0.min(SECTORS_MAX));
            let range = SectorRange::new(range.start, count);
            let mut all = unmerged(&self.names, &full, &self.volume, range);
            for snapshot in snapshots {
                let volume = self.names.volume(snapshot).map_err(|_| IoError::INVALID)?;
                let _call = volume.begin_call().await;
                all = union(all, changed(&self.names, snapshot, range)?);
            }
            Ok(runs(range, &all))
        })
    }
}

/// The whole range as runs of changed and same.
fn runs(range: SectorRange, changed: &[SectorRange]) -> Vec<ContextRun> {
    let (mut at, mut runs) = (range.start, Vec::new());
    let mut push = |count: SectorCount, state| {
        if count > SectorCount::ZERO {
            runs.push(ContextRun { count, state });
        }
    };
    for part in changed {
        push(part.start - at, 0);
        push(part.count, CHANGED);
        at = part.end();
    }
    push(range.end() - at, 0);
    runs
}

#[cfg(test)]
mod tests {
    use super::runs;
    use cairn_block::{Sector, SectorRange};

    #[test]
    fn runs_cover_the_range_whatever_changed() {
        let range = |a, b| SectorRange::between(Sector(a), Sector(b));
        let told = |changed: &[SectorRange]| -> Vec<(u64, u32)> {
            runs(range(8, 32), changed).iter().map(|run| (run.count.0, run.state)).collect()
        };
        assert_eq!(told(&[]), [(24, 0)]);
        assert_eq!(told(&[range(8, 16), range(24, 32)]), [(8, 1), (8, 0), (8, 1)]);
        assert_eq!(told(&[range(10, 12)]), [(2, 0), (2, 1), (20, 0)]);
    }
}
