//! Which format a device holds, and hence which tools read it.

use cairn_block::SECTOR_BYTES;
use cairn_format::probe::{self, Signature};
use cairn_format::thin::{BLOCK_BYTES, block};
use cairn_outcome::failure::Outcome;

use super::source::Source;

/// How many blocks are searched for those of a pool.
const POOL_BLOCKS: u64 = 64;
/// What the tools can read.
pub const FORMATS: &str =
    "a dm-writecache cache, a dm-snapshot store, a dm-thin metadata device or a bcache device";
/// What the check can read.
pub const CHECKED: &str = "a dm-writecache cache, a dm-snapshot store, a dm-thin or dm-clone \
                           metadata device, a bcache device or a qcow2 image";

/// Says that a device on which probing `found` these signatures is none of `formats`.
pub fn not_a(formats: &str, found: &[Signature]) -> String {
    let kinds: Vec<_> = found.iter().map(|signature| signature.kind.name()).collect();
    match kinds.is_empty() {
        true => format!("not {formats} (nothing recognised; if it was one, its header is lost)"),
        false => format!("{}, not {formats}", kinds.join(", ")),
    }
}

/// A format with tools of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A dm-writecache cache device.
    Writecache,
    /// A dm-snapshot exception store.
    Snapshot,
    /// The metadata of a dm-thin pool.
    Thin,
    /// The metadata of a dm-clone.
    Clone,
    /// A bcache cache device.
    Bcache,
    /// A bcache backing device.
    BcacheBacking,
    /// An image of qemu.
    Qcow2,
}

impl Kind {
    /// The first of these that probing found.
    pub fn of(found: &[Signature]) -> Option<Kind> {
        found.iter().find_map(|signature| match signature.kind {
            probe::Kind::Writecache => Some(Kind::Writecache),
            probe::Kind::Snapshot => Some(Kind::Snapshot),
            probe::Kind::ThinMetadata => Some(Kind::Thin),
            probe::Kind::Other("dm-clone-metadata") => Some(Kind::Clone),
            probe::Kind::BcacheCache => Some(Kind::Bcache),
            probe::Kind::BcacheBacking => Some(Kind::BcacheBacking),
            probe::Kind::Other("qcow2") => Some(Kind::Qcow2),
            _ => None,
        })
    }

    /// The format of a device on which probing found nothing. The metadata of a pool whose
    /// superblock is lost is recognised by its other blocks: each has the checksum of its kind and
    /// its own block number.
    ///
    /// # Errors
    /// The sector lies beyond the end.
    pub fn without_header(source: &Source, start_sector: u64) -> Outcome<Option<Kind>> {
        let count = source.area_bytes(start_sector)? / BLOCK_BYTES as u64;
        let is_of_a_pool = |at: &u64| {
            let offset = start_sector * SECTOR_BYTES + at * BLOCK_BYTES as u64;
            let mut bytes = [0; BLOCK_BYTES];
            let read = source.read_into(offset, &mut bytes).is_ok();
            read && block::identify(&bytes).is_some() && block::number(&bytes).0 == *at
        };
        Ok((0..count.min(POOL_BLOCKS)).find(is_of_a_pool).map(|_| Kind::Thin))
    }
}
