//! The NBD metadata context `cairn:changed:NAME` of a thin volume and of its snapshots: which
//! ranges may differ from snapshot NAME, told from the pool's metadata.

use cairn_block::{Env, IoError, Sector, SectorCount, SectorRange};

use crate::live_pool::LivePool;
use crate::thin_line::ThinLine;
use crate::world::Names;

/// How many steps of a comparison one answer takes at most: others have their turn.
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

    /// What differs inside a range, from its start on, in order; also how far that was told. Parts
    /// may touch: who sends them on joins them.
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
        // What a client wrote before is to be told.
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
