//! What the tests of sources share.

use super::{Operation, Source};

/// The next `count` operations.
pub fn take(source: &mut dyn Source, count: usize) -> Vec<Operation> {
    (0..count).map(|_| source.next()).collect()
}

/// Fails if counts are further from their expected shares than one in a million of samples would
/// be: the sum of squared differences over the expected counts against its mean, the degrees of
/// freedom, and five times its deviation.
pub fn assert_fits(counts: &[u64], shares: &[f64]) {
    let sum: u64 = counts.iter().sum();
    let whole: f64 = shares.iter().sum();
    assert_eq!(counts.len(), shares.len());
    let (mut squares, mut freedom) = (0.0, -1.0);
    for (&count, share) in counts.iter().zip(shares) {
        let expected = sum as f64 * share / whole;
        if expected == 0.0 {
            assert_eq!(count, 0, "what never comes");
            continue;
        }
        assert!(expected >= 5.0, "too few samples: {expected}");
        squares += (count as f64 - expected) * (count as f64 - expected) / expected;
        freedom += 1.0;
    }
    let bound = freedom + 5.0 * f64::sqrt(2.0 * freedom) + 5.0;
    assert!(squares <= bound, "{squares} > {bound}: {counts:?}");
}
