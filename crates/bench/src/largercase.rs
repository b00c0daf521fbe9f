//! [`Case`]: one case of the benchmark `larger`, on any disk.

use super::row::{Report, Row, Samples};

pub const MIB: u64 = 1 << 20;
pub const KIB: usize = 1 << 10;

/// What pauses.
pub const WRITEBACKS: [(&str, &str); 2] = [("default", "0"), ("no_pause", "2 pause_writeback 0")];
/// In which order.
pub const PATTERNS: [&str; 2] = ["sequential", "random"];
/// Sizes of requests.
pub const SIZES: [usize; 3] = [4 * KIB, 64 * KIB, 512 * KIB];

/// One case of the table.
#[derive(Clone, Copy)]
pub struct Case {
    /// What it lies on.
    pub disk: &'static str,
    /// How full the cache is before.
    pub state: &'static str,
    /// One of [`WRITEBACKS`].
    pub writeback: &'static str,
    /// One of [`PATTERNS`].
    pub pattern: &'static str,
    /// Of one request.
    pub bytes: usize,
}

impl Case {
    /// Tells what a request took, through the cache and without it, in microseconds.
    pub fn tell(self, report: &mut Report, cached: &Samples, bare: &Samples) {
        let row = |value, unit| {
            let row = Row::new("larger", value, unit).with("disk", self.disk);
            let row = row.with("state", self.state).with("writeback", self.writeback);
            row.with("pattern", self.pattern).with("bytes", self.bytes)
        };
        let speed = |us: &Samples| {
            let mib = self.bytes as f64 / MIB as f64;
            us.zip(us, |us, _| mib / us * 1e6)
        };
        report.push(row(cached.clone(), "us/write").against(bare));
        report.push(row(speed(cached), "MiB/s").against(&speed(bare)));
    }
}
