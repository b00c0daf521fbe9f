//! [`dirty_runs`]: how long the runs of dirty data in a cache are, from the metadata on its drive.
//!
//! It finds what an opening at that moment would find: keys that are not in the journal yet, and
//! blocks that are not committed, do not count. A run is dirty sectors of a volume that touch each
//! other, wherever in the cache they lie: what could go home as one write.
//!
//! A writecache begins at the first sector of its drive.

use std::ops::{ControlFlow, Range};

use cairn_block::{SECTOR_BYTES, Sector};
use cairn_format::bcache::load::{Fault, InMemory, Visitor, load_now};
use cairn_format::bcache::{Key, SUPERBLOCK_SECTOR, Superblock};
use cairn_format::writecache::{self, EntryState, Geometry};
use cairn_sim::Image;
use cairn_sim::drives::Lengths;

/// Bytes of the first sectors that say what a drive is.
const HEAD_BYTES: usize = 4096;

/// The runs of dirty data in the cache whose drive has this image; none if it is no cache's.
///
/// # Errors
/// The set has a fault: what it is.
pub fn dirty_runs(image: &Image) -> Result<Option<Lengths>, String> {
    match of_set(image)? {
        Some(lengths) => Ok(Some(lengths)),
        None => Ok(of_writecache(image)),
    }
}

/// The bytes of the image in a range of sectors.
fn bytes(image: &Image, range: &Range<u64>) -> Vec<u8> {
    let mut bytes = vec![0; ((range.end - range.start) * SECTOR_BYTES) as usize];
    image.read(Sector(range.start), &mut bytes);
    bytes
}

/// The extents of the leaves, up to the first fault.
struct Extents(Vec<Key>);

impl Visitor for Extents {
    fn fault(&mut self, _fault: &Fault) -> ControlFlow<()> {
        ControlFlow::Break(())
    }

    fn extent(&mut self, key: Key) {
        self.0.push(key);
    }
}

fn of_set(image: &Image) -> Result<Option<Lengths>, String> {
    let mut head = [0; HEAD_BYTES];
    image.read(Sector(SUPERBLOCK_SECTOR), &mut head);
    let Ok(Superblock::Cache(superblock)) = Superblock::decode(&head) else { return Ok(None) };
    let mut found = Extents(Vec::new());
    let loaded = load_now(InMemory(|range: &_| bytes(image, range)), &superblock, &mut found);
    let loaded = loaded.map_err(|error| error.to_string())?;
    let extents = loaded.extents(superblock.geometry(), found.0);
    let dirty = extents.iter().filter(|key| key.is_dirty());
    Ok(Some(runs(dirty.map(|key| (key.inode(), key.start()..key.end())))))
}

fn of_writecache(image: &Image) -> Option<Lengths> {
    let mut head = [0; HEAD_BYTES];
    image.read(Sector(0), &mut head);
    let superblock = writecache::Superblock::parse(&head).ok()?;
    let geometry = Geometry::of_superblock(&superblock, image.sectors().to_bytes()).ok()?;
    let metadata = bytes(image, &(0..geometry.metadata_bytes().div_ceil(SECTOR_BYTES)));
    let entries = geometry.entries_in(0, &metadata).map(|(_, entry)| entry);
    let is_committed =
        |entry: &writecache::Entry| entry.state(superblock.seq()) == EntryState::Committed;
    let mut blocks: Vec<u64> =
        entries.filter(is_committed).map(|entry| entry.original_sector).collect();
    // Of a block that was written again before the older slot was free there are two.
    blocks.sort_unstable();
    blocks.dedup();
    let length = u64::from(geometry.sectors_per_block());
    Some(runs(blocks.into_iter().map(|start| (0, start..start + length))))
}

/// The runs of ranges that come in order, each of a volume.
fn runs(ranges: impl Iterator<Item = (u32, Range<u64>)>) -> Lengths {
    let mut lengths = Lengths::default();
    let mut open: Option<(u32, Range<u64>)> = None;
    for (volume, range) in ranges {
        match &mut open {
            Some((last, run)) if (*last, run.end) == (volume, range.start) => run.end = range.end,
            _ => {
                let ended = open.replace((volume, range));
                ended.into_iter().for_each(|(_, run)| lengths.count(run.end - run.start));
            }
        }
    }
    open.into_iter().for_each(|(_, run)| lengths.count(run.end - run.start));
    lengths
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fill::bcache::{BackingSpec, CacheSpec, Plan};
    use crate::fill::{ImageSink, Pattern, writecache};
    use cairn_block::SectorCount;

    /// Runs by a map of blocks of 8 sectors.
    fn counted(dirty: &[bool]) -> Lengths {
        let mut lengths = Lengths::default();
        for run in dirty.chunk_by(|a, b| a == b).filter(|run| run[0]) {
            lengths.count(run.len() as u64 * 8);
        }
        lengths
    }

    #[test]
    fn runs_of_a_set_are_those_of_a_map_of_its_dirty_blocks() {
        for pattern in [Pattern::Uniform, Pattern::Clustered, Pattern::OutOfOrder] {
            let backing = |mib: u64| BackingSpec { device_sectors: mib << 11, weight: 1 };
            let plan = Plan {
                cache: CacheSpec { device_sectors: 64 << 11, bucket_sectors: 128 },
                backings: vec![backing(40), backing(60)],
                dirty_percent: 40.0,
                clean_percent: 20.0,
                block_sectors: 8,
                pattern,
                seed: 7,
            };
            let layout = plan.lay_out().expect("it fits");
            let mut image = Image::new(SectorCount(64 << 11));
            let mut backings = [40, 60].map(|mib| Image::new(SectorCount(mib << 11)));
            let mut sinks: Vec<ImageSink<'_>> = backings.iter_mut().map(ImageSink).collect();
            layout.write(ImageSink(&mut image), &mut sinks).expect("memory");
            // The volumes one after another, with a gap between them.
            let mut dirty = vec![false; (101 << 11) / 8];
            for key in layout.keys().filter(Key::is_dirty) {
                let first = u64::from(key.inode()) * (41 << 11);
                let blocks = (first + key.start()) / 8..(first + key.end()) / 8;
                dirty[blocks.start as usize..blocks.end as usize].fill(true);
            }
            assert_eq!(dirty_runs(&image), Ok(Some(counted(&dirty))), "{pattern}");
        }
    }

    #[test]
    fn runs_of_a_writecache_are_those_of_a_map_of_its_blocks() {
        for pattern in [Pattern::Uniform, Pattern::Clustered, Pattern::OutOfOrder] {
            let plan = writecache::Plan {
                cache_sectors: 32 << 11,
                cache_block_bytes: 4096,
                origin_sectors: 64 << 11,
                dirty_percent: 80.0,
                block_sectors: 8,
                pattern,
                seed: 42,
            };
            let layout = plan.lay_out().expect("it fits");
            let mut image = Image::new(SectorCount(plan.cache_sectors));
            layout.write(ImageSink(&mut image)).expect("memory");
            let mut dirty = vec![false; (64 << 11) / 8];
            layout.entries().for_each(|entry| dirty[entry.original_sector as usize / 8] = true);
            assert_eq!(dirty_runs(&image), Ok(Some(counted(&dirty))), "{pattern}");
        }
    }

    #[test]
    fn drive_without_a_cache_has_no_runs() {
        assert_eq!(dirty_runs(&Image::new(SectorCount(8192))), Ok(None));
    }
}
