//! Two clocks: the processor time of the calling thread, which other programs do not lengthen, and
//! wall time.
//!
//! Figures of one reactor are in processor time: on an idle machine a busy reactor's is the
//! wall's. Figures beside other programs are in wall time.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// A moment on both clocks.
#[derive(Clone, Copy)]
pub struct Moment {
    processor: Duration,
    wall: Instant,
}

/// How long something took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Took {
    /// Processor time of the thread that did it.
    pub processor: Duration,
    /// Wall time.
    pub wall: Duration,
}

impl Moment {
    /// Now, on the calling thread.
    pub fn now() -> Moment {
        Moment { processor: read(ClockId::ThreadCPUTime), wall: Instant::now() }
    }

    /// The time since, on the same thread.
    pub fn elapsed(self) -> Took {
        let now = Moment::now();
        Took {
            processor: now.processor.saturating_sub(self.processor),
            wall: now.wall.duration_since(self.wall),
        }
    }
}

impl Took {
    /// Nanoseconds of processor time for each of `count`.
    pub fn ns_each(self, count: usize) -> f64 {
        self.processor.as_nanos() as f64 / count as f64
    }

    /// Microseconds of processor time for each of `count`.
    pub fn us_each(self, count: usize) -> f64 {
        self.ns_each(count) / 1000.0
    }
}

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Processor time of this process so far, that of all its threads and the kernel's for it.
pub fn process_time() -> Duration {
    read(ClockId::ProcessCPUTime)
}

/// MiB per second.
pub fn mib_per_s(bytes: u64, took: Duration) -> f64 {
    bytes as f64 / (1 << 20) as f64 / took.as_secs_f64().max(1e-9)
}
