//! A check of the metadata snapshot alone, while the pool may be in use.
//!
//! The blocks that the snapshot refers to do not change, so its trees are checked like any others:
//! checksums, block numbers, key ranges, mapped counts. The space maps belong to the pool as it is
//! now and change while the check runs: they are not read. Of the pool's superblock only the sizes
//! are used, which never shrink.

use super::{BITMAP_ENTRIES, Check, Counts, Limits, Report, sizes};
use crate::thin::Superblock;
use crate::thin::blocks::Blocks;

/// Checks the metadata snapshot of a pool with this superblock, if it holds one. The report
/// describes the snapshot: its superblock, its devices, the blocks that it refers to.
///
/// # Errors
/// Reading has to end.
pub fn check_held<B: Blocks>(
    blocks: &mut B,
    now: &Superblock,
    limits: Limits,
) -> Result<Report, B::Error> {
    let mut report = Report::begin();
    let count = sizes(now, blocks.count(), limits, &mut report);
    let mut within = super::Within { blocks, count };
    Check::new(now.clone(), count, report).run_held(&mut within)
}

impl Check {
    fn run_held<B: Blocks>(mut self, blocks: &mut B) -> Result<Report, B::Error> {
        self.enter_superblock();
        let Some(held) = self.held(blocks)? else { return Ok(self.report) };
        let countable = blocks.count().saturating_mul(BITMAP_ENTRIES);
        self.data = Counts::new(self.superblock.data_space_map.blocks.min(countable));
        // No mapping in it is newer than the snapshot.
        self.superblock.time = held.time;
        let sets = [self.devices(blocks, &held, true)?];
        self.mappings(blocks, &sets)?;
        self.mapped_blocks(&sets);
        self.report.superblock = Some(held);
        // The pool's own superblock was counted as well.
        self.report.totals.metadata_used = self.metadata.used() - 1;
        self.report.totals.data_used = self.data.used();
        Ok(self.report)
    }
}
