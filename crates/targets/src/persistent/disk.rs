//! Reads and writes of whole metadata blocks: sorted, neighbours joined to large requests, many
//! requests at a time.

use std::ops::Range;
use std::sync::Arc;

use cairn_block::{Disk, Env, Flags, Io, IoError, Sector, SectorCount, SectorRange, mutants};
use cairn_format::thin::{BLOCK_BYTES, MetadataBlock};

use super::error::Error;
use crate::runs::runs;

/// Most blocks in one request: 1 MiB.
const REQUEST_BLOCKS_MAX: u64 = 256;
/// Most requests at a time.
const REQUESTS_MAX: usize = 32;
const BLOCK_SECTORS: u64 = BLOCK_BYTES as u64 / cairn_block::SECTOR_BYTES;

/// The metadata device.
pub(super) struct MetaDisk(pub Arc<dyn Disk>);

impl MetaDisk {
    /// Whole metadata blocks on the device now.
    pub fn blocks(&self) -> u64 {
        self.0.sectors().0 / BLOCK_SECTORS
    }

    /// Reads blocks, given in ascending order, and passes each to `take`.
    pub async fn read(
        &self,
        env: &Env,
        blocks: &[MetadataBlock],
        mut take: impl FnMut(MetadataBlock, &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut result = Ok(());
        for window in runs_of(blocks).chunks(REQUESTS_MAX) {
            let start = |run: &Range<u64>| {
                let range = sectors(run);
                let segs = env.segs(range.count);
                (
                    run.clone(),
                    segs.clone(),
                    env.io(&self.0, Io::read(range, segs).with(Flags::META)),
                )
            };
            for (run, segs, read) in window.iter().map(start).collect::<Vec<_>>() {
                let done = read.await;
                result = result.and(done.map_err(|source| failed("read", &run, source)));
                for block in run.clone().filter(|_| done.is_ok()) {
                    let at = (block - run.start) as usize * BLOCK_BYTES;
                    segs.for_each(at, BLOCK_BYTES, |bytes| {
                        if result.is_ok() {
                            result = take(MetadataBlock(block), bytes);
                        }
                    });
                }
            }
            result.clone()?;
        }
        result
    }

    /// Writes blocks, given in ascending order, with the content from `fill`.
    pub async fn write(
        &self,
        env: &Env,
        blocks: &[MetadataBlock],
        mut fill: impl FnMut(MetadataBlock, &mut [u8]),
    ) -> Result<(), Error> {
        for window in runs_of(blocks).chunks(REQUESTS_MAX) {
            let mut writes = Vec::with_capacity(window.len());
            for run in window {
                let range = sectors(run);
                let segs = env.segs(range.count);
                for block in run.clone() {
                    let at = (block - run.start) as usize * BLOCK_BYTES;
                    segs.for_each_mut(at, BLOCK_BYTES, |out| fill(MetadataBlock(block), out));
                }
                writes.push((run, env.io(&self.0, Io::write(range, segs).with(Flags::META))));
            }
            let mut result = Ok(());
            for (run, write) in writes {
                let done = write.await.map_err(|source| failed("write", run, source));
                result = result.and(done);
            }
            result?;
        }
        Ok(())
    }

    /// The device's failure count: read before the first write that a flush is to cover.
    pub fn failures(&self) -> u64 {
        self.0.failures()
    }

    /// Makes all writes durable that were sent since the failure count was `failures`.
    ///
    /// # Errors
    /// The flush failed, or another one did since then, and may have dropped these writes.
    pub async fn flush(&self, env: &Env, failures: u64) -> Result<(), Error> {
        let failed = |what: &str, source| Error::Io { what: what.into(), source };
        let flushed = env.make_durable(&self.0).await;
        flushed.map_err(|source| failed("flush", source))?;
        match mutants::same("metadata: failure count of a commit", failures, self.failures()) {
            true => Ok(()),
            false => Err(failed("flush by another user, which may have lost writes", IoError::IO)),
        }
    }
}

fn failed(what: &str, run: &Range<u64>, source: IoError) -> Error {
    Error::Io { what: format!("{what} of blocks {}..{}", run.start, run.end), source }
}

fn sectors(run: &Range<u64>) -> SectorRange {
    let count = SectorCount((run.end - run.start) * BLOCK_SECTORS);
    SectorRange::new(Sector(run.start * BLOCK_SECTORS), count)
}

/// Neighbours joined.
fn runs_of(blocks: &[MetadataBlock]) -> Vec<Range<u64>> {
    runs(blocks.iter().map(|block| block.0), REQUEST_BLOCKS_MAX).collect()
}
