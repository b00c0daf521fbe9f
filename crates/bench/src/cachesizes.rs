//! [`Sizes`]: the job and the cache of the benchmark `writecache`, here and in the kernel.

use cairn_block::Op;

use super::load::{Job, shuffled};
use super::settings::Settings;

pub const MIB: u64 = 1 << 20;
/// Bytes of each write of the job.
pub const WRITE_BYTES: usize = 512 << 10;

/// Sizes of one run.
pub struct Sizes {
    /// Bytes that the job writes.
    pub span: u64,
    /// Bytes of the cache device.
    pub cache: u64,
    /// How often random writes turn the cache over.
    pub turnovers: u64,
    /// Block sizes of the cache.
    pub blocks: &'static [u32],
}

impl Sizes {
    /// What the published table used, or less.
    pub fn of(settings: &Settings) -> Sizes {
        let span = settings.pick(400 * MIB, 4 * MIB);
        Sizes {
            span,
            // Half of it is in use when aged, and the other half holds the span.
            cache: span * 9 / 4 / MIB * MIB,
            turnovers: settings.pick(10, 2),
            blocks: settings.pick(&[512, 1024, 2048, 4096], &[512, 4096]),
        }
    }

    /// The job on the span.
    pub fn job(&self, seed: u64) -> Job {
        Job::new(Op::Write, WRITE_BYTES, shuffled(self.span, WRITE_BYTES, seed)).flushed()
    }

    /// Bytes of the origin beyond the span, for what ages the cache.
    pub fn elsewhere(&self) -> u64 {
        self.cache * 2
    }
}
