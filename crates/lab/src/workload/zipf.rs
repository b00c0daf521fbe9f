//! Ranks by Zipf's law: rank k comes with a probability in proportion to k^-s.
//!
//! The method is rejection from an envelope of constant pieces (Devroye, "Non-Uniform Random
//! Variate Generation", 1986, II.3, with the pieces mixed as in II.4). The ranks are divided into
//! segments, each an eighth longer than what lies before it at most; the envelope of a segment is
//! the weight of its first rank. Draw a segment by the area of its envelope and a rank of it
//! evenly, and keep the rank with the ratio of its weight to the envelope, else begin again. About
//! (8/9)^s of all draws are kept. A number of segments that grows with the logarithm of the ranks
//! is all that is remembered.
//!
//! Weights use + * / and sqrt only ([`Exponent::power`]), so that ranks are the same everywhere.

/// Segments grow by this part of the ranks before them.
const GROWTH: u64 = 8;

/// The largest exponent.
pub const EXPONENT_MAX: f64 = 8.0;

/// An exponent in units of 2^-16.
#[derive(Clone, Copy, Debug)]
struct Exponent(u32);

impl Exponent {
    const FRACTION_BITS: u32 = 16;

    /// The nearest to `value`, which is between 0 and [`EXPONENT_MAX`].
    fn nearest(value: f64) -> Exponent {
        Exponent((value * f64::from(1 << Exponent::FRACTION_BITS)).round() as u32)
    }

    /// `base` to this power: a factor for each bit of the exponent that is set. Those of the
    /// fraction are square roots of square roots.
    fn power(self, base: f64) -> f64 {
        let whole = self.0 >> Exponent::FRACTION_BITS;
        let mut power = (0..whole).fold(1.0, |power, _| power * base);
        let mut root = base;
        for bit in (0..Exponent::FRACTION_BITS).rev() {
            root = root.sqrt();
            if self.0 >> bit & 1 == 1 {
                power *= root;
            }
        }
        power
    }
}

/// Ranks `first..first + count`.
#[derive(Clone, Copy, Debug)]
struct Segment {
    first: u64,
    count: u64,
    /// Of its first rank; no weight of the segment is more.
    most: f64,
    /// Of its last rank; no weight of the segment is less.
    least: f64,
    /// The areas of all envelopes until the end of this.
    area: f64,
}

/// Draws ranks from 1.
#[derive(Clone, Debug)]
pub struct Zipf {
    segments: Vec<Segment>,
    exponent: Exponent,
}

impl Zipf {
    /// Ranks from 1 to `ranks`, which is not zero, for an exponent between 0 and [`EXPONENT_MAX`].
    pub fn new(ranks: u64, exponent: f64) -> Zipf {
        assert!(ranks > 0 && (0.0..=EXPONENT_MAX).contains(&exponent));
        let exponent = Exponent::nearest(exponent);
        let weight = |rank: u64| 1.0 / exponent.power(rank as f64);
        let (mut segments, mut area) = (Vec::new(), 0.0);
        let mut first = 1;
        while first <= ranks {
            let count = (first / GROWTH).clamp(1, ranks - (first - 1));
            let (most, least) = (weight(first), weight(first + (count - 1)));
            area += most * count as f64;
            segments.push(Segment { first, count, most, least, area });
            match first.checked_add(count) {
                Some(next) => first = next,
                None => break,
            }
        }
        Zipf { segments, exponent }
    }

    /// The next rank.
    pub fn next(&self, rng: &mut fastrand::Rng) -> u64 {
        let last = self.segments[self.segments.len() - 1];
        loop {
            let at = rng.f64() * last.area;
            let i = self.segments.partition_point(|segment| segment.area <= at);
            // `at` may have been rounded up to the whole area.
            let segment = self.segments.get(i).copied().unwrap_or(last);
            let rank = segment.first + rng.u64(..segment.count);
            let height = rng.f64() * segment.most;
            if height < segment.least || height * self.exponent.power(rank as f64) < 1.0 {
                return rank;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Exponent, Zipf};
    use crate::workload::testing::assert_fits;

    #[test]
    fn powers_agree_with_the_library_to_the_precision_of_the_exponent() {
        for exponent in [0.0, 0.5, 0.99, 1.0, 1.2, 2.75, 8.0] {
            for base in [1.0, 2.0, 3.5, 1e3, 1e9] {
                let power = Exponent::nearest(exponent).power(base);
                let expected = f64::powf(base, exponent);
                // Half a unit of the exponent, at the largest base.
                assert!((power / expected - 1.0).abs() < 2e-4, "{base}^{exponent}: {power}");
            }
        }
    }

    #[test]
    fn ranks_come_as_often_as_the_law_says() {
        for (ranks, exponent) in [(1000, 0.5), (1000, 1.0), (1000, 1.2), (50, 2.5), (40, 0.0)] {
            let zipf = Zipf::new(ranks, exponent);
            let mut rng = fastrand::Rng::with_seed(1);
            let shares: Vec<f64> =
                (1..=ranks).map(|rank| f64::powf(rank as f64, -exponent)).collect();
            let mut counts = vec![0; ranks as usize];
            for _ in 0..400_000 {
                counts[zipf.next(&mut rng) as usize - 1] += 1;
            }
            assert_fits(&counts, &shares);
        }
    }

    #[test]
    fn largest_number_of_ranks_has_few_segments_and_no_rank_beyond() {
        let zipf = Zipf::new(u64::MAX, 0.1);
        assert!(zipf.segments.len() < 500, "{}", zipf.segments.len());
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..1000 {
            assert!(zipf.next(&mut rng) >= 1);
        }
        assert_eq!(Zipf::new(1, 1.0).next(&mut rng), 1);
    }
}
