//! The array of uuids, written again without a volume that is detached.
//!
//! U1. It goes to a free bucket (K1), to which no key leads. The entry of the journal that names it
//!     is written after a flush, and is the one that names the priorities with the generation of
//!     that bucket (`priorities`). The bucket of the old array is free once that entry is durable.
//!
//! A power cut leaves the old array or the new one. The inode of the volume is never used again, so
//! keys of it that are left lead to data that no volume has.

use cairn_format::bcache::uuids::{INVALIDATED, encode};
use cairn_format::bcache::{Key, Uuid};

use super::{Session, Set, WriteError};

/// An array to write.
struct Array {
    sector: u64,
    bytes: Vec<u8>,
    /// The bucket of the old one.
    replaced: Vec<u64>,
}

impl Session<'_> {
    /// Takes a volume out of the array, durably. False if the set has no room for the new array, or
    /// does not know the volume: then the array is unchanged, but a session has begun, which writes
    /// the superblock and replays the journal.
    ///
    /// # Errors
    /// The set cannot be written.
    pub async fn forget_volume(&self, uuid: Uuid, now_s: u32) -> Result<bool, WriteError> {
        self.begin().await?;
        let planned = self.set.lock().as_mut().and_then(|set| set.plan_without(uuid, now_s));
        let Some(Array { sector, bytes, replaced }) = planned else { return Ok(false) };
        let written = self.cache.write_all(self.env, &[(sector, &bytes)]).await;
        written.map_err(WriteError::Cache)?;
        self.end().await?;
        if let Some(set) = self.set.lock().as_mut() {
            set.buckets.structure_replaced(&replaced);
        }
        Ok(true)
    }
}

impl Set {
    /// Plans the array without a volume, if there is room for it and for the priorities.
    fn plan_without(&mut self, uuid: Uuid, now_s: u32) -> Option<Array> {
        let (inode, _) = self.volume(uuid)?;
        let geometry = *self.superblock.geometry();
        // An array of the old layout may have more entries than the new one has room for.
        let beyond = self.volumes.iter().skip(geometry.uuids());
        if beyond.into_iter().any(|entry| !entry.is_empty()) {
            return None;
        }
        let needed = 1 + self.priorities.len();
        if self.buckets.free() < needed {
            self.buckets.refill();
        }
        if self.buckets.free() < needed {
            return None;
        }
        let at = self.buckets.take_for_metadata()?;
        let entry = &mut self.volumes[inode as usize];
        (entry.uuid, entry.invalidated) = (INVALIDATED, now_s);
        let bytes = encode(&self.volumes, geometry.meta_bytes());
        let old = self.journal.name_uuids(Key::new(0, 0, geometry.meta_sectors()).at(at));
        let replaced = old.cached_at().map(|old| geometry.bucket_of(old.sector()));
        Some(Array { sector: at.sector(), bytes, replaced: replaced.into_iter().collect() })
    }
}
