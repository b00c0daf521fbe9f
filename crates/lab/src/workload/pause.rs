//! Think time.
//!
//! The exponential distribution is drawn by von Neumann's comparison of uniform numbers ("Various
//! techniques used in connection with random digits", 1951): draw numbers for as long as each is
//! less than the one before. If their count, without the one that was not, is odd, the first one
//! is the fraction of the result; else add one to its whole part and begin again. That is exact
//! without a logarithm.

use std::time::Duration;

/// How long a client waits before an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Pause {
    /// Not at all.
    #[default]
    None,
    /// Always the same.
    Fixed(Duration),
    /// As if operations came independently of each other, with this mean.
    Exponential(Duration),
}

impl Pause {
    /// The next one.
    pub fn next(self, rng: &mut fastrand::Rng) -> Duration {
        match self {
            Pause::None => Duration::ZERO,
            Pause::Fixed(pause) => pause,
            Pause::Exponential(mean) => {
                let nanos = (mean.as_nanos().saturating_mul(exponential(rng))) >> 32;
                Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
            }
        }
    }
}

/// A number with mean one, in units of 2^-32.
fn exponential(rng: &mut fastrand::Rng) -> u128 {
    let mut whole = 0;
    loop {
        let first = rng.u32(..);
        let (mut last, mut count) = (first, 1);
        loop {
            let next = rng.u32(..);
            if next >= last {
                break;
            }
            (last, count) = (next, count + 1);
        }
        if count % 2 == 1 {
            return (whole << 32) | u128::from(first);
        }
        whole += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Pause;
    use crate::workload::testing::assert_fits;

    #[test]
    fn exponential_pauses_have_their_mean_and_their_distribution() {
        let mut rng = fastrand::Rng::with_seed(1);
        let pause = Pause::Exponential(Duration::from_micros(100));
        let count = 200_000;
        let mut counts = [0; 40];
        let mut sum = Duration::ZERO;
        for _ in 0..count {
            let pause = pause.next(&mut rng);
            sum += pause;
            counts[(pause.as_micros() / 20).min(39) as usize] += 1;
        }
        let mean = sum.as_nanos() as f64 / f64::from(count);
        assert!((mean / 1e5 - 1.0).abs() < 0.01, "{mean}");
        let beyond = |i: i32| f64::exp(-0.2 * f64::from(i));
        let shares: Vec<f64> =
            (0..40).map(|i| beyond(i) - if i < 39 { beyond(i + 1) } else { 0.0 }).collect();
        assert_fits(&counts, &shares);
    }

    #[test]
    fn longest_mean_does_not_overflow() {
        let mut rng = fastrand::Rng::with_seed(2);
        for _ in 0..1000 {
            Pause::Exponential(Duration::MAX).next(&mut rng);
        }
        assert_eq!(Pause::Fixed(Duration::MAX).next(&mut rng), Duration::MAX);
    }
}
