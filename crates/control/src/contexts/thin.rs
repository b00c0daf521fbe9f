//! The NBD metadata context `cairn:changed:NAME` of a thin volume and of its snapshots: which
//! ranges may differ from snapshot NAME, by the pool's metadata.

use cairn_block::{Env, IoError, Sector, SectorCount, SectorRange};

use crate::live_pool::LivePool;
use crate::thin_line::ThinLine;
use crate::world::Names;

/// The most steps of a comparison in one answer, so that other requests are served in between.
const STEPS_MAX: usize = 256;

/// Two volumes of one pool.
pub struct ThinContext {
    pool: LivePool,
    ids: [u32; 2],
}

impl ThinContext {
    /// Compares `volume` with `snapshot`; none if they are not of one pool.
    pub fn of(names: &Names, volume: &str, snapshot: &str) -> Option<ThinContext> {
        let line = |name: &str| {
            let volume = names.volume(name).ok()?;
            ThinLine::of_volume(&volume)
        };
        let (own, with) = (line(volume)?, line(snapshot)?);
        if own.pool != with.pool {
            return None;
        }
        let pool = LivePool::of(names, &own.pool).ok()?;
        Some(ThinContext { pool, ids: [own.id, with.id] })
    }

    /// The ranges that differ inside a range, from its start on, in order; and how far the
    /// comparison came. Ranges may touch; the caller joins them.
    ///
    /// # Errors
    /// The metadata can't be read.
    pub async fn changed(
        &self,
        env: &Env,
        range: SectorRange,
    ) -> Result<(SectorRange, Vec<SectorRange>), IoError> {
        let _call = self.pool.begin_call().await;
        let pool = self.pool.target();
        // The answer must include the client's earlier writes.
        pool.settle(env).await.map_err(|_| IoError::IO)?;
        let (mut at, mut parts) = (range.start, Vec::<SectorRange>::new());
        for _ in 0..STEPS_MAX {
            let rest = SectorRange::between(at, range.end());
            if rest.is_empty() {
                break;
            }
            let (told, found) = pool.differences(env, self.ids, rest).await?;
            parts.extend(found);
            at = Sector(at.0 + told.0);
        }
        let told = SectorCount(at.0 - range.start.0);
        Ok((SectorRange::new(range.start, told), parts))
    }
}
