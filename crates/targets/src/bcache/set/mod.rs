//! The set in memory: tree, buckets, journal and volumes of one cache.
//!
//! `core` is what the volumes of a set share; `device` is the cache device; `open` reads the set,
//! and writes nothing; `session` changes it on the device; `replay` has the entries of the journal
//! that were found at opening; `changes` has the keys of clients that the device does not have yet;
//! `acknowledged` keeps these where a killed process does not lose them;
//! `checkpoint` brings the device up to date with them, `eviction` empties buckets with clean data,
//! and `keeper` decides when; `leaves` reads absent leaves and has others leave; `emptying` makes
//! buckets free where a session cannot go on without;
//! `ghosts` says where the device may have clean keys that the tree has not; `distrust` drops clean
//! data that may differ from the backing device; `priorities` writes the generations and priorities
//! of the buckets; `uuids` rewrites the array of volumes; `overwrites` is what clients write in
//! place, and `recent` says where keys are not durable yet; `errors` counts the errors of a device;
//! `users` has the volumes that serve the set.

mod acknowledged;
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
mod leaves;
mod open;
mod overwrites;
mod priorities;
mod recent;
mod replay;
mod session;
mod users;
mod uuids;

use cairn_format::bcache::uuids::UuidEntry;
use cairn_format::bcache::{CacheSuperblock, Uuid};

use acknowledged::Acknowledged;
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
use leaves::Wanted;

/// The set as it is in memory.
pub(super) struct Set {
    pub superblock: CacheSuperblock,
    pub tree: Tree,
    pub buckets: Buckets,
    pub open_buckets: OpenBuckets,
    pub changes: Changes,
    pub journal: Journal,
    /// The crash log.
    pub acknowledged: Acknowledged,
    volumes: Vec<UuidEntry>,
    /// The buckets of the priorities, in order.
    priorities: Vec<u64>,
    /// What the journal has that leaves may not have, until a session has written it there.
    replay: Option<Replay>,
    /// The oldest entry of the journal that this session wrote and that has holes which may be in
    /// no leaf.
    open_holes: Option<u64>,
    /// The absent leaves that requests wait for.
    pub wanted: Wanted,
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

    /// The volumes that are in the set.
    pub fn live_volumes(&self) -> impl Iterator<Item = u32> {
        let live = self.volumes.iter().enumerate().filter(|(_, entry)| entry.is_live());
        live.map(|(inode, _)| inode as u32)
    }

    /// True if a session has begun: the device changes from then on.
    pub fn has_session(&self) -> bool {
        self.replay.is_none()
    }

    /// The flash-only volumes, by their inodes.
    pub fn flash_volumes(&self) -> Vec<u32> {
        let is_flash = |(_, entry): &(usize, &UuidEntry)| entry.is_live() && entry.is_flash_only();
        let flash = self.volumes.iter().enumerate().filter(is_flash);
        flash.map(|(inode, _)| inode as u32).collect()
    }
}
