//! What must hold of the devices of a set at any time: after a cut of the power, a kill, a stop.
//!
//! G1. The checker (`cairn check`) finds nothing, but perhaps an entry of the journal that a cut
//!     left torn.
//! G2. The state of a backing device is dirty if the cache has dirty data of it (R11).
//! G3. What is clean in the cache is what the backing device has, so that no content changes when
//!     it leaves the cache (R13).

use cairn_format::bcache::check::{Backing, Finding, Report, check};
use cairn_format::bcache::load::now;
use cairn_format::bcache::{BackingSuperblock, Key, SECTOR_BYTES, Superblock};

use super::{Cache, superblock_of};

/// The devices of a set: the bytes of its cache, and of each backing device.
pub struct Devices<'a> {
    pub cache: &'a [u8],
    pub backings: &'a [Vec<u8>],
}

impl Devices<'_> {
    /// G1 to G3. Answers what was counted.
    ///
    /// # Errors
    /// The first that does not hold.
    pub fn judge(&self) -> Result<Report, String> {
        let backing = |bytes: &Vec<u8>| Backing {
            superblock: Ok(superblock_of_backing(bytes)),
            device_sectors: (bytes.len() / SECTOR_BYTES) as u64,
        };
        let backings: Vec<Backing> = self.backings.iter().map(backing).collect();
        let sectors = (self.cache.len() / SECTOR_BYTES) as u64;
        let Ok(report) = now(check(&mut { self.cache }, sectors, &backings));
        let found = report.findings.iter().find(|it| !matches!(it, Finding::Torn(_)));
        if let Some(finding) = found {
            return Err(format!("check: {finding}"));
        }
        let cache = Cache::try_read(self.cache)?;
        for bytes in self.backings {
            self.judge_clean(&cache, bytes)?;
        }
        Ok(report)
    }

    /// G3.
    fn judge_clean(&self, cache: &Cache, backing: &[u8]) -> Result<(), String> {
        let inode = inode_of(cache, backing);
        for key in cache.extents.iter().filter(|key| Some(key.inode()) == inode) {
            let own = sectors_of(backing, key.start(), key.sectors());
            if !key.is_dirty() && own != self.cached(key) {
                return Err(format!("clean extent {key:?}: the backing device has other data"));
            }
        }
        Ok(())
    }

    /// The data of an extent.
    fn cached(&self, key: &Key) -> &[u8] {
        let pointer = key.cached_at().expect("an extent leads somewhere");
        sectors_of(self.cache, pointer.sector(), key.sectors())
    }

    /// What a volume holds: that of a backing device, or a flash-only one of so many sectors.
    pub fn content_of(&self, inode: u32, backing: Option<&[u8]>, sectors: u64) -> Vec<u8> {
        let first = backing.map_or(0, |bytes| superblock_of_backing(bytes).data_offset());
        let mut content = match backing {
            Some(bytes) => sectors_of(bytes, first, sectors).to_vec(),
            None => vec![0; sectors as usize * SECTOR_BYTES],
        };
        let cache = Cache::read(self.cache);
        for key in cache.extents.iter().filter(|key| key.inode() == inode) {
            let at = (key.start() - first) as usize * SECTOR_BYTES;
            let data = self.cached(key);
            content[at..at + data.len()].copy_from_slice(data);
        }
        content
    }
}

/// The number that the set gave the volume of a backing device, if it knows that.
pub fn inode_of(cache: &Cache, backing: &[u8]) -> Option<u32> {
    let uuid = superblock_of_backing(backing).uuid();
    let found = cache.loaded.volumes.iter().position(|entry| entry.uuid == uuid);
    found.map(|inode| inode as u32)
}

pub fn superblock_of_backing(bytes: &[u8]) -> BackingSuperblock {
    match superblock_of(bytes) {
        Superblock::Backing(superblock) => superblock,
        Superblock::Cache(_) => panic!("it is a backing device"),
    }
}

fn sectors_of(bytes: &[u8], start: u64, count: u64) -> &[u8] {
    &bytes[start as usize * SECTOR_BYTES..][..count as usize * SECTOR_BYTES]
}
