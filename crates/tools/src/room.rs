//! Which format a device holds, and hence which room's tools look at it.

use cairn_block::SECTOR_BYTES;
use cairn_format::probe::{Kind, Signature};
use cairn_format::thin::{BLOCK_BYTES, block};
use cairn_outcome::failure::Outcome;

use super::source::Source;

/// Blocks among which those of a pool are looked for.
const POOL_BLOCKS: u64 = 64;
/// What a device may hold that tools look at.
pub const FORMATS: &str = "dm-writecache, dm-snapshot or dm-thin";
/// What else it may hold.
pub const NOTHING: &str = "nothing recognised";

/// A format with tools of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// A dm-writecache cache device.
    Writecache,
    /// A dm-snapshot exception store.
    Snapshot,
    /// The metadata of a dm-thin pool.
    Thin,
}

impl Room {
    /// The first of these that probing found.
    pub fn of(found: &[Signature]) -> Option<Room> {
        found.iter().find_map(|signature| match signature.kind {
            Kind::Writecache => Some(Room::Writecache),
            Kind::Snapshot => Some(Room::Snapshot),
            Kind::ThinMetadata => Some(Room::Thin),
            _ => None,
        })
    }

    /// The room of a device on which probing found nothing: a pool's whose superblock is lost tells
    /// itself by its other blocks, each of which carries its kind's checksum and its own number.
    ///
    /// # Errors
    /// The sector lies beyond the end.
    pub fn without_header(source: &Source, start_sector: u64) -> Outcome<Option<Room>> {
        let count = source.area_bytes(start_sector)? / BLOCK_BYTES as u64;
        let is_of_a_pool = |at: &u64| {
            let offset = start_sector * SECTOR_BYTES + at * BLOCK_BYTES as u64;
            let mut bytes = [0; BLOCK_BYTES];
            let read = source.read_into(offset, &mut bytes).is_ok();
            read && block::identify(&bytes).is_some() && block::number(&bytes).0 == *at
        };
        Ok((0..count.min(POOL_BLOCKS)).find(is_of_a_pool).map(|_| Room::Thin))
    }
}
