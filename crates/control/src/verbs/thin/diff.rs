//! The difference between a snapshot and its volume, or any other volume of the pool. It is read
//! from metadata. It reports whole blocks and may over-report, never under-report. Subtrees that
//! both volumes share are skipped unread.

use cairn_block::{ConfigError, ConfigKind, IoError, Sector, SectorCount, SectorRange};
use cairn_outcome::failure::{Outcome, refused, wrong};
use cairn_targets::thin::ThinPool;

use super::create::refuse_other_pool;
use super::names::Spot;
use crate::live_pool::LivePool;
use crate::names::parent_of;
use crate::verbs::Verbs;
use crate::verbs::snap::diff::{Differences, EXTENTS_MAX, Extent};
use crate::verbs::verb::declare;

declare! {
    /// `thin diff`
    ThinDiff = "thin_diff" -> Differences {
        /// The snapshot
        #[arg(value_name = "VOLUME@NAME")]
        name: String,
        /// Another volume or snapshot (default: the volume itself)
        #[arg(value_name = "@NAME|VOLUME")]
        other: Option<String>,
        /// The byte to begin at; none: 0
        #[arg(skip)]
        from: Option<u64>,
    }
    |verb, verbs, _| verbs.thin_diff(&verb)
}

impl Verbs {
    /// `thin diff`, from a byte on.
    ///
    /// # Errors
    /// There are no such volumes, they are of different pools, or the metadata can't be read.
    pub fn thin_diff(&self, params: &ThinDiff) -> Outcome<Differences> {
        let (said, name) = Spot::parse(&params.name)?.named()?;
        let family = parent_of(&name).unwrap_or(&name);
        let (said_other, other) = match (&params.other, parent_of(&name)) {
            (Some(own), _) if own.starts_with('@') => (None, format!("{family}{own}")),
            (Some(other), _) => Spot::parse(other)?.named()?,
            (None, Some(parent)) => (None, parent.to_owned()),
            (None, None) => {
                let expected = "a snapshot (VOLUME@NAME), or two volumes";
                return Err(wrong(&name, "name", format!("'{name}'"), expected));
            }
        };
        let (one, with) = (self.thin_line(&name)?, self.thin_line(&other)?);
        let pool = self.pool_of_line(&name, &one, said.as_deref())?;
        refuse_other_pool(&other, &with.pool, said_other.as_deref())?;
        if with.pool != one.pool {
            let found = format!("'{other}', of pool {}", with.pool);
            return Err(wrong(&name, "other", found, format!("a volume of pool {}", one.pool)));
        }
        let end = one.sectors.max(with.sectors);
        let from = (params.from.unwrap_or(0) / 512).min(end);
        self.differences(&pool, [one.id, with.id], from, end)
    }

    pub(super) fn differences(
        &self,
        pool: &LivePool,
        ids: [u32; 2],
        from: u64,
        end: u64,
    ) -> Outcome<Differences> {
        pool.ask(&self.world, async move |env, pool| {
            pool.settle(env).await?;
            let (mut at, mut extents) = (from, Vec::<Extent>::new());
            while at < end && extents.len() < EXTENTS_MAX {
                let rest = SectorRange::new(Sector(at), SectorCount(end - at));
                let step = pool.differences(env, ids, rest).await;
                let (told, parts) = step.map_err(|error| unreadable(pool, ids, error))?;
                parts.into_iter().for_each(|part| add(&mut extents, part));
                at += told.0;
            }
            Ok(Differences { extents, next: (at < end).then_some(at * 512) })
        })
    }
}

/// The error of a failed step. The end of a volume is not an error of the metadata.
fn unreadable(pool: &ThinPool, ids: [u32; 2], error: IoError) -> ConfigError {
    let known = match pool.devices() {
        Ok(known) => known,
        Err(error) => return error,
    };
    if let Some(id) = ids.iter().find(|id| known.iter().all(|device| device.id != **id)) {
        let found = format!("volume {id} removed meanwhile");
        return refused(ConfigKind::Busy, "", "pool", found, "both volumes");
    }
    let found = format!("it unreadable ({error}; the server's log tells where)");
    refused(ConfigKind::Damaged, "", "metadata", found, "sound metadata of both volumes")
}

/// Adds a part to a list in order, joined to the last if they touch.
pub fn add(extents: &mut Vec<Extent>, part: SectorRange) {
    let (offset, length) = (part.start.to_bytes(), part.count.to_bytes());
    match extents.last_mut().filter(|last| last.offset + last.length == offset) {
        Some(last) => last.length += length,
        None => extents.push(Extent { offset, length }),
    }
}
