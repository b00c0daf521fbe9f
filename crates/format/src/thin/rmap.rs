//! The reverse mapping: which virtual blocks are mapped to a data block.
//!
//! The trees are in the order of virtual blocks, so the mappings of a region are collected and
//! sorted. Promises memory for at most [`RUNS_MAX`] runs: if a region has more, the trees are read
//! again for the rest of it.

use core::ops::Range;

use super::blocks::Blocks;
use super::stream::{Device, Run, Stop, devices, each_run};
use super::{DeviceId, Superblock};

/// Limit on the runs in memory.
pub const RUNS_MAX: usize = 1 << 21;

/// A run of data blocks that a device maps to a run of virtual blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owned {
    /// The first data block.
    pub data: u64,
    /// The device.
    pub device: DeviceId,
    /// The first virtual block.
    pub origin: u64,
    /// Blocks.
    pub len: u64,
}

/// Calls `each` for the mappings to each data block of a region, in ascending order.
///
/// # Errors
/// The first damage, or reading or `each` has to end.
pub fn rmap<B: Blocks>(
    blocks: &mut B,
    superblock: &Superblock,
    held: bool,
    region: Range<u64>,
    each: &mut dyn FnMut(Owned) -> Result<(), B::Error>,
) -> Result<(), Stop<B::Error>> {
    let all = devices(blocks, superblock, held)?;
    by_parts(blocks, &all, held, region, RUNS_MAX, each)
}

/// As [`rmap`], with at most `most` runs in memory.
fn by_parts<B: Blocks>(
    blocks: &mut B,
    devices: &[Device],
    held: bool,
    region: Range<u64>,
    most: usize,
    each: &mut dyn FnMut(Owned) -> Result<(), B::Error>,
) -> Result<(), Stop<B::Error>> {
    let mut left = region;
    while left.start < left.end {
        let (runs, end) = gather(blocks, devices, held, left.clone(), most)?;
        for run in runs {
            each(run)?;
        }
        left.start = end;
    }
    Ok(())
}

/// The runs of the first part of a region, sorted, and the end of that part.
fn gather<B: Blocks>(
    blocks: &mut B,
    devices: &[Device],
    held: bool,
    region: Range<u64>,
    most: usize,
) -> Result<(Vec<Owned>, u64), Stop<B::Error>> {
    let (mut runs, mut part) = (Vec::new(), region);
    for (device, _, root) in devices {
        let mut open: Option<Owned> = None;
        each_run(blocks, *device, held, *root, &mut |run| {
            let next = owned(*device, run);
            // Runs also end where the time changes, which does not matter here.
            if open.as_mut().is_some_and(|open| extend(open, &next)) {
                return Ok(());
            }
            if let Some(done) = open.replace(next) {
                keep(&mut runs, &mut part, done, most);
            }
            Ok(())
        })?;
        if let Some(done) = open {
            keep(&mut runs, &mut part, done, most);
        }
    }
    runs.sort_unstable();
    Ok((runs, part.end))
}

fn owned(device: DeviceId, run: Run) -> Owned {
    Owned { data: run.data, device, origin: run.origin, len: run.len }
}

fn extend(open: &mut Owned, next: &Owned) -> bool {
    let goes_on =
        open.data + open.len == next.data && open.origin.checked_add(open.len) == Some(next.origin);
    open.len += if goes_on { next.len } else { 0 };
    goes_on
}

/// Keeps the part of a run that lies in `part`; if there are too many runs, drops the second half
/// of `part`.
fn keep(runs: &mut Vec<Owned>, part: &mut Range<u64>, run: Owned, most: usize) {
    runs.extend(clip(&run, part));
    if runs.len() < most || part.end - part.start < 2 {
        return;
    }
    let mut starts: Vec<u64> = runs.iter().map(|run| run.data).collect();
    let middle = starts.len() / 2;
    let (_, median, _) = starts.select_nth_unstable(middle);
    part.end = (*median).max(part.start + 1);
    let kept: Vec<_> = runs.iter().filter_map(|run| clip(run, part)).collect();
    *runs = kept;
}

/// The part of a run that lies in `part`.
fn clip(run: &Owned, part: &Range<u64>) -> Option<Owned> {
    let begin = run.data.max(part.start);
    let end = (run.data + run.len).min(part.end);
    let skipped = begin - run.data;
    (begin < end).then(|| Owned {
        data: begin,
        origin: run.origin.saturating_add(skipped),
        len: end - begin,
        ..*run
    })
}

#[cfg(test)]
mod tests {
    use super::{Owned, by_parts, clip, devices, keep, rmap};
    use crate::thin::blocks::MemoryBlocks;
    use crate::thin::build::{Builder, Room};
    use crate::thin::stream::{Pool, Run};
    use crate::thin::{DataBlockSize, DeviceDetails, DeviceId, Superblock, VERSION};

    /// Data blocks of a pool; a prime.
    const BLOCKS: u64 = 1009;

    /// The data block of a device's virtual block: consecutive virtual blocks are not consecutive
    /// there.
    fn data(device: u32, origin: u64) -> u64 {
        origin * (37 + u64::from(device)) % BLOCKS
    }

    /// A pool with all of its blocks in three devices, each in another order.
    fn tangled() -> (Vec<u8>, Superblock) {
        let (mut memory, data_block_size) = (Vec::new(), DataBlockSize::new(128).unwrap());
        let (version, data_blocks) = (VERSION, BLOCKS);
        let pool =
            Pool { time: 0, transaction_id: 0, flags: 0, version, data_block_size, data_blocks };
        let mut builder = Builder::new(&mut memory, Room::AtLeast(16), pool).unwrap();
        for device in 0..3 {
            let id = DeviceId::new(u64::from(device)).unwrap();
            let details = DeviceDetails {
                mapped_blocks: 0,
                transaction_id: 0,
                creation_time: 0,
                snapshotted_time: 0,
            };
            builder.begin_device(id, details).unwrap();
            for origin in 0..BLOCKS {
                let data = data(device, origin);
                builder.add(Run { origin, data, len: 1, time: 0 }).unwrap();
            }
            builder.end_device().unwrap();
        }
        let superblock = builder.finish().unwrap();
        (memory, superblock)
    }

    #[test]
    fn region_gives_the_same_runs_in_one_reading_and_in_many() {
        let (memory, superblock) = tangled();
        let (mut blocks, region) = (MemoryBlocks::new(&memory), 5..1000);
        let mut expected: Vec<_> = (0..3)
            .flat_map(|device| {
                (0..BLOCKS).map(move |origin| (data(device, origin), device, origin))
            })
            .filter(|(data, ..)| region.contains(data))
            .collect();
        expected.sort_unstable();
        let told = |run: &Owned| (run.data, run.device.get(), run.origin);
        let mut found = Vec::new();
        rmap(&mut blocks, &superblock, false, region.clone(), &mut |run| {
            found.push(run);
            Ok(())
        })
        .unwrap();
        assert_eq!(found.iter().map(told).collect::<Vec<_>>(), expected);
        let all = devices(&mut blocks, &superblock, false).unwrap();
        for most in [7, 64, 1000] {
            let mut parts = Vec::new();
            by_parts(&mut blocks, &all, false, region.clone(), most, &mut |run| {
                parts.push(run);
                Ok(())
            })
            .unwrap();
            assert_eq!(parts, found, "{most} runs at once");
        }
    }

    fn run(data: u64, len: u64) -> Owned {
        Owned { data, device: DeviceId::new(1).unwrap(), origin: data + 1000, len }
    }

    #[test]
    fn a_run_is_cut_to_the_region() {
        assert_eq!(clip(&run(5, 10), &(0..100)), Some(run(5, 10)));
        assert_eq!(clip(&run(5, 10), &(7..9)), Some(run(7, 2)));
        assert_eq!(clip(&run(5, 10), &(15..20)), None);
    }

    #[test]
    fn runs_beyond_the_limit_are_left_for_another_reading() {
        let (mut runs, mut part) = (Vec::new(), 0..1000);
        for data in (0..1000).rev() {
            keep(&mut runs, &mut part, run(data, 1), 64);
            assert!(runs.len() < 64);
        }
        runs.sort_unstable();
        let expected: Vec<_> = (0..part.end).map(|data| run(data, 1)).collect();
        assert_eq!(runs, expected);
        assert!(part.end > 8);
    }
}
