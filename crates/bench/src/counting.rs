//! [`CountingDisk`]: passes requests on and counts the writes at or beyond a sector, by length.

use std::sync::Arc;

use cairn_block::sync::atomic::{AtomicU64, Ordering};
use cairn_block::{Disk, Env, Flow, Limits, Op, Request, Sector, SectorCount};

/// Lengths are counted by powers of two sectors.
const CLASSES: usize = 32;

/// A disk that counts.
pub struct CountingDisk {
    inner: Arc<dyn Disk>,
    /// Writes before this sector are metadata's.
    data: AtomicU64,
    writes: [AtomicU64; CLASSES],
}

impl CountingDisk {
    /// Counts the requests to `inner`.
    pub fn new(inner: Arc<dyn Disk>) -> CountingDisk {
        let writes = std::array::from_fn(|_| AtomicU64::new(0));
        CountingDisk { inner, data: AtomicU64::new(0), writes }
    }

    /// Counts from zero again, and only writes at or beyond `data`.
    pub fn count_from(&self, data: Sector) {
        self.data.store(data.0, Ordering::Relaxed);
        self.writes.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }

    /// How many writes of at least 2^class sectors (and below twice that) there were, by class.
    pub fn writes(&self) -> Vec<u64> {
        self.writes.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }
}

impl Disk for CountingDisk {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn sectors(&self) -> SectorCount {
        self.inner.sectors()
    }

    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn submit(&self, env: &Env, request: &mut Request) -> Flow {
        let range = request.range;
        if request.op == Op::Write && range.start.0 >= self.data.load(Ordering::Relaxed) {
            let class = range.count.0.max(1).ilog2() as usize;
            let count = &self.writes[class.min(CLASSES - 1)];
            count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        self.inner.submit(env, request)
    }
}
