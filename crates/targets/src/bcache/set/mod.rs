//! The set in memory: tree, buckets, journal and volumes of one cache.
//!
//! `core` is what the volumes of a set share; `device` is the cache device; `open` reads the set,
//! and writes nothing; `session` changes it on the device; `replay` has the entries of the journal
//! that were found at opening; `changes` has the keys of clients that the device does not have yet;
//! `checkpoint` brings the device up to date with them, `eviction` empties buckets with clean data,
//! and `keeper` decides when; `priorities`
//! writes the generations and priorities of the buckets; `uuids` rewrites the array of volumes.

mod changes;
mod checkpoint;
mod core;
mod device;
mod eviction;
mod ghosts;
mod keeper;
mod open;
mod priorities;
mod replay;
mod session;
mod uuids;

use std::ops::Range;

use cairn_format::bcache::places::is_beyond;
use cairn_format::bcache::uuids::UuidEntry;
use cairn_format::bcache::{CacheSuperblock, Key, Uuid};

use changes::Changes;
use replay::Replay;

pub(super) use core::Core;
pub(super) use device::{CacheDevice, DiskSource, write_io};
pub(super) use keeper::COMMIT_DELAY;
pub(super) use open::open;
pub(super) use session::{Session, WriteError};

use super::btree::Tree;
use super::buckets::{Buckets, OpenBuckets};
use super::journal::Journal;

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

    /// The first dirty extent of a volume that does not lie within it: it has these sectors, as
    /// keys count them.
    pub fn beyond(&self, inode: u32, sectors: &Range<u64>) -> Option<Key> {
        let is_beyond = |key: &&Key| key.is_dirty() && is_beyond(key, sectors);
        self.tree.extents_from(inode, 0).find(is_beyond).copied()
    }

    /// Dirty sectors of the flash-only volumes.
    pub fn flash_dirty(&self) -> u64 {
        let is_flash = |(_, entry): &(usize, &UuidEntry)| entry.is_live() && entry.is_flash_only();
        let flash = self.volumes.iter().enumerate().filter(is_flash);
        flash.map(|(inode, _)| self.sectors_of(inode as u32).1).sum()
    }

    /// Sectors of a volume that are cached, and those that are dirty.
    pub fn sectors_of(&self, inode: u32) -> (u64, u64) {
        self.tree.extents_from(inode, 0).fold((0, 0), |(cached, dirty), key| {
            let own = if key.is_dirty() { key.sectors() } else { 0 };
            (cached + key.sectors(), dirty + own)
        })
    }
}
