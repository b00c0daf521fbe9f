//! The array of uuids, rewritten without a volume that is detached, with one that joins the set, or
//! in the 128-byte layout.
//!
//! U1. It goes to a free bucket (K1), to which no key leads. The entry of the journal that names it
//!     is written after a flush, and is the one that names the priorities with the generation of
//!     that bucket (`priorities`). The bucket of the old array is free once that entry is durable.
//! U2. The version of an entry says which layout the array has that it names: 0 is the 64-byte
//!     layout of old kernels. A session on such a set rewrites the array when it ends; its entries
//!     before that have version 0 as well. The array stays if no bucket is free, or if it has a
//!     volume beyond the entries of the new layout.
//!
//! A power cut leaves the old array or the new one. The inode of a detached volume is never used
//! again, so keys of it that are left lead to data that no volume has.

use cairn_format::bcache::uuids::{INVALIDATED, UuidEntry, encode};
use cairn_format::bcache::{Key, Pointer, Uuid};

use super::{Session, Set, WriteError};

/// An array to write.
pub(super) struct Array {
    key: Key,
    bytes: Vec<u8>,
}

/// How a volume enters the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Entered {
    /// With this inode.
    At(u32),
    /// Not: each entry has been used.
    NoSlot,
    /// Not: there is no bucket for the array, or too few for the priorities.
    NoBucket,
}

impl Entered {
    /// What was found and expected, where it did not enter.
    pub fn text(self) -> &'static str {
        match self {
            Entered::At(_) => "it entered",
            Entered::NoSlot => {
                "uuids: found no unused entry, expected one: each device or volume that the set \
                 ever had keeps its own"
            }
            Entered::NoBucket => {
                "buckets: found too few free ones for the array of uuids and the priorities; \
                 cairn cache flush on the volumes of the set makes some free"
            }
        }
    }
}

impl Session<'_> {
    /// Adds a volume to the array, durably; an entry with its UUID becomes invalid. If it does not
    /// enter, the array is unchanged, but a session has begun.
    ///
    /// # Errors
    /// The set cannot be written.
    pub async fn enter_volume(&self, entry: UuidEntry) -> Result<Entered, WriteError> {
        self.begin().await?;
        self.refill_for_array().await;
        let mut unused = self.with(|set| set.unused_inodes()).into_iter();
        let inode = loop {
            let Some(inode) = unused.next() else { return Ok(Entered::NoSlot) };
            if !self.core.has_extents(self.env, inode).await? {
                break inode;
            }
        };
        let (entered, array) = self.with(|set| set.plan_with(entry, inode));
        if let Some(array) = array {
            self.replace_array(&array).await?;
        }
        Ok(entered)
    }

    /// Takes a volume out of the array, durably. False if the set has no room for the new array, or
    /// does not know the volume: then the array is unchanged, but a session has begun, which writes
    /// the superblock and replays the journal.
    ///
    /// # Errors
    /// The set cannot be written.
    pub async fn forget_volume(&self, uuid: Uuid, now_s: u32) -> Result<bool, WriteError> {
        self.begin().await?;
        self.refill_for_array().await;
        let planned = self.with(|set| set.plan_without(uuid, now_s));
        let Some(array) = planned else { return Ok(false) };
        self.replace_array(&array).await?;
        Ok(true)
    }

    /// Makes an array count, durably. The last entry names it also where other volumes have taken
    /// the room for the priorities by then.
    async fn replace_array(&self, array: &Array) -> Result<(), WriteError> {
        let replaced = self.write_array(array).await?;
        self.end().await?;
        self.write_entry().await?;
        self.with(|set| set.array_written(replaced));
        Ok(())
    }

    /// Looks for free buckets if an array needs them.
    pub(super) async fn refill_for_array(&self) {
        if self.with(|set| set.buckets.free() < set.needed_for_array()) {
            self.refill().await;
        }
    }

    /// Writes an array, which the next entry of the journal makes count. Answers the bucket of the
    /// old one.
    ///
    /// # Errors
    /// The set cannot be written.
    pub(super) async fn write_array(&self, array: &Array) -> Result<Option<u64>, WriteError> {
        let sector = array.key.cached_at().expect("it has a bucket").sector();
        let written = self.core.cache.write_all(self.env, &[(sector, &array.bytes)]).await;
        written.map_err(WriteError::Cache)?;
        Ok(self.with(|set| set.name_array(array.key)))
    }
}

impl Set {
    /// Plans the array without a volume, if there is room for it and for the priorities.
    fn plan_without(&mut self, uuid: Uuid, now_s: u32) -> Option<Array> {
        let (inode, _) = self.volume(uuid)?;
        let at = self.place_for_array()?;
        let entry = &mut self.volumes[inode as usize];
        (entry.uuid, entry.invalidated) = (INVALIDATED, now_s);
        Some(self.array_at(at))
    }

    /// The inodes whose entries are all zeros: no volume has had them. The caller looks for extents
    /// with their number.
    fn unused_inodes(&self) -> Vec<u32> {
        let most = self.superblock.geometry().uuids();
        let slots = self.volumes.iter().take(most).enumerate();
        slots.filter(|(_, slot)| slot.is_empty()).map(|(slot, _)| slot as u32).collect()
    }

    /// Plans the array with another volume, with an inode that has never been used.
    fn plan_with(&mut self, entry: UuidEntry, inode: u32) -> (Entered, Option<Array>) {
        let Some(at) = self.place_for_array() else { return (Entered::NoBucket, None) };
        let invalidated = entry.last_registered;
        let former = self.volumes.iter_mut().find(|it| it.is_live() && it.uuid == entry.uuid);
        if let Some(former) = former {
            (former.uuid, former.invalidated) = (INVALIDATED, invalidated);
        }
        self.volumes[inode as usize] = entry;
        (Entered::At(inode), Some(self.array_at(at)))
    }

    /// Plans the array in the 128-byte layout (U2), if it has the old one and there is room for it
    /// and for the priorities.
    pub(super) fn plan_long_uuids(&mut self) -> Option<Array> {
        if self.journal.has_long_uuids() {
            return None;
        }
        let at = self.place_for_array()?;
        Some(self.array_at(at))
    }

    /// A free bucket for an array, if there are enough for the priorities as well, and if each
    /// volume has a place in the array: the old layout may have more entries than the new one.
    fn place_for_array(&mut self) -> Option<Pointer> {
        let beyond = self.volumes.iter().skip(self.superblock.geometry().uuids());
        if beyond.into_iter().any(|entry| !entry.is_empty()) {
            return None;
        }
        if self.buckets.free() < self.needed_for_array() {
            return None;
        }
        self.buckets.take_for_metadata()
    }

    fn needed_for_array(&self) -> usize {
        1 + self.priorities.len()
    }

    /// The current array, for this place.
    fn array_at(&self, at: Pointer) -> Array {
        let geometry = *self.superblock.geometry();
        let bytes = encode(&self.volumes, geometry.meta_bytes());
        Array { key: Key::new(0, 0, geometry.meta_sectors()).at(at), bytes }
    }

    /// Entries of the journal name this array from now on. Answers the bucket of the old one.
    fn name_array(&mut self, key: Key) -> Option<u64> {
        let old = self.journal.name_uuids(key);
        old.cached_at().map(|old| self.superblock.geometry().bucket_of(old.sector()))
    }

    /// The entry that names another array than that of this bucket is durable.
    pub(super) fn array_written(&mut self, replaced: Option<u64>) {
        self.buckets.structure_replaced(replaced.as_slice());
    }
}
