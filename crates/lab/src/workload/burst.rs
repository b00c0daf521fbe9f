//! [`Burst`]: a client that writes much at once, at equal distances in time.

use std::time::Duration;

use cairn_block::{Op, Sector, SectorCount, SectorRange, Time};
use cairn_outcome::failure::{Outcome, wrong};

use super::{Operation, Source};

/// Sequential writes in bursts. The n-th burst, from 0, begins at n periods, or when the one before
/// it has ended. At the end of its region it goes on from the start.
pub struct Burst {
    region: SectorRange,
    size: SectorCount,
    per_burst: u64,
    period: Duration,
    /// In the region.
    next: u64,
    /// Operations so far.
    count: u64,
}

impl Burst {
    /// `length` in operations of `size`, each `period`. A length that is no multiple of the size is
    /// rounded up to one.
    ///
    /// # Errors
    /// The size is zero or larger than the region, or the length is zero.
    pub fn new(
        region: SectorRange,
        size: SectorCount,
        length: SectorCount,
        period: Duration,
    ) -> Outcome<Burst> {
        if size == SectorCount::ZERO || size > region.count {
            let expected = format!("1 to {} sectors, the region", region.count);
            return Err(wrong("workload", "size", format!("{size} sectors"), expected));
        }
        if length == SectorCount::ZERO {
            return Err(wrong("workload", "burst", "0 sectors", "1 or more"));
        }
        let per_burst = length.0.div_ceil(size.0);
        Ok(Burst { region, size, per_burst, period, next: 0, count: 0 })
    }
}

impl Source for Burst {
    fn next(&mut self) -> Operation {
        if self.next + self.size.0 > self.region.count.0 {
            self.next = 0;
        }
        let start = Sector(self.region.start.0 + self.next);
        self.next += self.size.0;
        let bursts = u128::from(self.count / self.per_burst);
        self.count += 1;
        let nanos = bursts.saturating_mul(self.period.as_nanos());
        let not_before = Time(u64::try_from(nanos).unwrap_or(u64::MAX));
        let range = SectorRange::new(start, self.size);
        Operation { not_before, ..Operation::on(Op::Write, range) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cairn_block::{Sector, SectorCount, SectorRange};

    use super::Burst;
    use crate::workload::testing::take;

    #[test]
    fn burst_is_sequential_and_each_begins_at_its_period() {
        let region = SectorRange::new(Sector(100), SectorCount(7));
        let second = Duration::from_secs(1);
        let mut burst = Burst::new(region, SectorCount(2), SectorCount(4), second).unwrap();
        let operations = take(&mut burst, 5).into_iter();
        let operations: Vec<_> =
            operations.map(|op| (op.range.start.0, op.not_before.0 / 1_000_000_000)).collect();
        assert_eq!(operations, [(100, 0), (102, 0), (104, 1), (100, 1), (102, 2)]);
    }

    #[test]
    fn burst_that_cannot_be_is_refused() {
        let region = SectorRange::new(Sector(0), SectorCount(8));
        for (size, length) in [(0, 1), (9, 9), (1, 0)] {
            let burst = Burst::new(region, SectorCount(size), SectorCount(length), Duration::ZERO);
            let error = burst.map(|_| ()).unwrap_err().to_string();
            assert!(error.contains("found") && error.contains("expected"), "{error}");
        }
    }
}
