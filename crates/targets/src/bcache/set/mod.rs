//! The set in memory: tree, buckets, journal and volumes of one cache.
//!
//! `core` is what the volumes of a set share; `device` is the cache device; `open` reads the set,
//! and writes nothing; `session` changes it on the device; `replay` has the entries of the journal
//! that were found at opening; `changes` has the keys of clients that the device does not have yet;
//! `checkpoint` brings the device up to date with them, `eviction` empties buckets with clean data,
//! and `keeper` decides when; `emptying` makes buckets free where a session cannot go on without;
//! `ghosts` says where the device may have clean keys that the tree has not; `distrust` drops clean
//! data that may differ from the backing device; `priorities` writes the generations and priorities
//! of the buckets; `uuids` rewrites the array of volumes; `overwrites` is what clients write in
//! place, and `recent` says where keys are not durable yet; `errors` counts the errors of a device;
//! `users` has the volumes that serve the set.

mod changes;
mod checkpoint;
mod core;
mod device;
mod distrust;
mod emptying;
mod errors;
mod eviction;
mod ghosts;
mod keeper;
mod open;
mod overwrites;
mod priorities;
mod recent;
mod replay;
mod session;
mod users;
mod uuids;

use std::ops::Range;

use cairn_format::bcache::places::is_beyond;
use cairn_format::bcache::uuids::UuidEntry;
use cairn_format::bcache::{CacheSuperblock, Key, Uuid};

use changes::Changes;
use replay::Replay;

pub(super) use core::Core;
pub(super) use device::{CacheDevice, DiskSource, count_written, write_io};
pub(super) use errors::Errors;
pub(super) use open::open;
pub(super) use overwrites::TakenOut;
pub(super) use session::{Session, WriteError};
pub(super) use users::Serving;
pub(super) use uuids::Entered;

use super::btree::Tree;
use super::buckets::{Buckets, OpenBuckets};
use super::journal::Journal;
use super::work;

/// Sectors of some extents of a volume.
#[derive(Default)]
pub(super) struct Counted {
    pub cached: u64,
    pub dirty: u64,
    /// Where the next extents begin, if these were not all.
    pub next: Option<u64>,
}

/// The set as it is in memory.
pub(super) struct Set {
    pub superblock: CacheSuperblock,
    pub tree: Tree,
    pub buckets: Buckets,
    pub open_buckets: OpenBuckets,
    pub changes: Changes,
    pub journal: Journal,
    volumes: Vec<UuidEntry>,
    /// The buckets of the priorities, in order.
    priorities: Vec<u64>,
    /// What the journal has that leaves may not have, until a session has written it there.
    replay: Option<Replay>,
    /// The oldest entry of the journal that this session wrote and that has holes which may be in
    /// no leaf.
    open_holes: Option<u64>,
}

impl Set {
    /// The volume with this identifier: its inode and entry.
    pub fn volume(&self, uuid: Uuid) -> Option<(u32, &UuidEntry)> {
        let is_it = |(_, entry): &(usize, &UuidEntry)| entry.is_live() && entry.uuid == uuid;
        let found = self.volumes.iter().enumerate().find(is_it);
        found.map(|(inode, entry)| (inode as u32, entry))
    }

    /// The newest entry of the journal.
    pub fn newest(&self) -> u64 {
        self.journal.newest()
    }

    /// True if a session has begun: the device changes from then on.
    pub fn has_session(&self) -> bool {
        self.replay.is_none()
    }

    /// Counts extents of a volume, from this sector on, so many that the lock is not held for long.
    ///
    /// # Errors
    /// The first dirty one that does not lie within the volume, which has these sectors as keys
    /// count them.
    pub fn count_part(&self, inode: u32, from: u64, sectors: &Range<u64>) -> Result<Counted, Key> {
        let mut counted = Counted::default();
        for (index, key) in self.tree.extents_from(inode, from).enumerate() {
            if index == work::piece() {
                counted.next = Some(key.start());
                break;
            }
            counted.cached += key.sectors();
            if key.is_dirty() {
                counted.dirty += key.sectors();
                if is_beyond(key, sectors) {
                    return Err(*key);
                }
            }
        }
        Ok(counted)
    }

    /// Calls for the sectors of each dirty extent among some extents of a volume, from this sector
    /// on. Answers where the next extents begin, if these were not all.
    pub fn each_dirty_of_part(
        &self,
        inode: u32,
        from: u64,
        mut each: impl FnMut(Range<u64>),
    ) -> Option<u64> {
        let mut extents = self.tree.extents_from(inode, from);
        for key in extents.by_ref().take(work::piece()).filter(|key| key.is_dirty()) {
            each(key.start()..key.end());
        }
        extents.next().map(Key::start)
    }

    /// The flash-only volumes, by their inodes.
    pub fn flash_volumes(&self) -> Vec<u32> {
        let is_flash = |(_, entry): &(usize, &UuidEntry)| entry.is_live() && entry.is_flash_only();
        let flash = self.volumes.iter().enumerate().filter(is_flash);
        flash.map(|(inode, _)| inode as u32).collect()
    }
}
