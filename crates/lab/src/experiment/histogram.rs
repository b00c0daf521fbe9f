//! [`Histogram`]: latencies in steps of a thirty-second, so that percentiles of any number of
//! operations take little memory.

/// Steps of each power of two; smaller values are exact.
const STEPS: u64 = 32;
const EXACT_BITS: u32 = STEPS.ilog2();
/// Up to 2^64.
const COUNTS: usize = (64 - EXACT_BITS as usize + 1) * STEPS as usize;

/// Counts of values, by their size.
pub struct Histogram {
    counts: Box<[u64; COUNTS]>,
    all: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: Box::new([0; COUNTS]), all: 0 }
    }
}

/// The step of a value.
fn step_of(value: u64) -> u64 {
    match value {
        0..STEPS => value,
        _ => {
            let power = value.ilog2() - EXACT_BITS;
            u64::from(power) * STEPS + (value >> power)
        }
    }
}

/// The largest value of a step.
fn end_of(step: u64) -> u64 {
    match step {
        0..STEPS => step,
        _ => {
            let power = step / STEPS - 1;
            let within = u128::from(step % STEPS + STEPS + 1);
            u64::try_from((within << power) - 1).unwrap_or(u64::MAX)
        }
    }
}

impl Histogram {
    /// Counts a value.
    pub fn add(&mut self, value: u64) {
        self.counts[step_of(value) as usize] += 1;
        self.all += 1;
    }

    /// The value that so many of a thousand do not exceed, at most a thirty-second too large; none
    /// of no values.
    pub fn per_mille(&self, share: u64) -> Option<u64> {
        let rank = (self.all * share).div_ceil(1000).max(1);
        let mut seen = 0;
        let step = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        step.map(|step| end_of(step as u64))
    }

    /// Forgets all values.
    pub fn clear(&mut self) {
        self.counts.fill(0);
        self.all = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_follow_each_other_without_gaps() {
        let mut last = 0;
        for value in 0..100_000 {
            let step = step_of(value);
            assert!(step == last || step == last + 1, "{value}");
            assert!(end_of(step) >= value && (step == 0 || end_of(step - 1) < value), "{value}");
            last = step;
        }
        assert_eq!(step_of(u64::MAX) as usize, COUNTS - 1);
        assert_eq!(end_of(step_of(u64::MAX)), u64::MAX);
    }

    #[test]
    fn percentiles_are_those_of_a_sorted_list() {
        let mut rng = fastrand::Rng::with_seed(1);
        let (mut histogram, mut values) = (Histogram::default(), Vec::new());
        assert_eq!(histogram.per_mille(500), None);
        for _ in 0..5000 {
            let value = rng.u64(..) >> rng.u32(20..60);
            histogram.add(value);
            values.push(value);
        }
        values.sort_unstable();
        for share in [1, 500, 990, 999, 1000] {
            let expected = values[(5000_usize * share as usize).div_ceil(1000).max(1) - 1];
            let found = histogram.per_mille(share).unwrap();
            assert!(found >= expected && found <= expected + expected / 32, "{share}");
        }
    }
}
