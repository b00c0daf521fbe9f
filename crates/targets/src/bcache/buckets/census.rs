//! A census of the buckets: how many hold what, and how long ago they were used. It is sysfs's
//! `priority_stats`. It is taken in pieces, so that no reactor is held for long.

use super::{Buckets, JUST_USED};
use crate::bcache::work;

/// How many quantiles are shown.
const QUANTILES: u64 = 31;

/// See the module's description.
pub(in super::super) struct Census {
    /// The next bucket to count.
    next: usize,
    unused: u64,
    clean: u64,
    dirty: u64,
    metadata: u64,
    /// How many buckets with data were used so long ago, by the clock of uses.
    ages: Vec<u32>,
}

impl Census {
    /// No bucket was counted yet.
    pub fn new() -> Census {
        let ages = vec![0; usize::from(JUST_USED) + 1];
        Census { next: 0, unused: 0, clean: 0, dirty: 0, metadata: 0, ages }
    }

    /// How many buckets have data.
    fn with_data(&self) -> u64 {
        self.clean + self.dirty
    }

    /// How long ago the bucket was used that is at this place in the order of their ages.
    fn age_at(&self, place: u64) -> usize {
        let mut seen = 0;
        let is_it = |count: &u32| {
            seen += u64::from(*count);
            seen > place
        };
        self.ages.iter().position(is_it).unwrap_or_default()
    }

    /// The lines of sysfs, for a set with so many buckets of so many sectors.
    pub fn text(&self, buckets: u64, bucket_sectors: u64) -> String {
        let percent = |count: u64| count * 100 / buckets.max(1);
        let with_data = self.with_data();
        let ages = self.ages.iter().zip(0_u64..);
        let sum: u64 = ages.map(|(count, age)| u64::from(*count) * age).sum();
        let parts = QUANTILES + 1;
        let quantile = |at: u64| self.age_at(with_data * at / parts).to_string();
        let quantiles: Vec<String> = (1..=QUANTILES).map(quantile).collect();
        let lines = [
            format!("Unused:\t\t{}%", percent(self.unused)),
            format!("Clean:\t\t{}%", percent(self.clean)),
            format!("Dirty:\t\t{}%", percent(self.dirty)),
            format!("Metadata:\t{}%", percent(self.metadata)),
            format!("Average:\t{}", sum.checked_div(with_data).unwrap_or_default()),
            format!("Sectors per Q:\t{}", with_data * bucket_sectors / parts),
            format!("Quantiles:\t[{}]", quantiles.join(" ")),
        ];
        lines.join("\n")
    }
}

impl Buckets {
    /// Counts the next piece of the buckets. True if that was the last one.
    pub fn count_into(&self, census: &mut Census) -> bool {
        let first = self.geometry.usable().start as usize;
        let from = census.next.max(first).min(self.buckets.len());
        let to = (from + work::piece()).min(self.buckets.len());
        work::did(to - from);
        for bucket in &self.buckets[from..to] {
            match (bucket.is_metadata, bucket.live, bucket.dirty) {
                (true, ..) => census.metadata += 1,
                (false, 0, _) => census.unused += 1,
                (false, _, 0) => census.clean += 1,
                (false, ..) => census.dirty += 1,
            }
            if !bucket.is_metadata && bucket.live > 0 {
                let age = JUST_USED - bucket.priority(self.clock());
                census.ages[usize::from(age)] += 1;
            }
        }
        census.next = to;
        to == self.buckets.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn census(ages: &[usize], dirty: u64) -> Census {
        let mut census = Census::new();
        ages.iter().for_each(|age| census.ages[*age] += 1);
        census.dirty = dirty;
        census.clean = ages.len() as u64 - dirty;
        census
    }

    #[test]
    fn quantiles_are_ages_of_buckets_in_their_order() {
        let ages: Vec<usize> = (0..64).map(|bucket| bucket * 37 % 64 * 100).collect();
        let text = Census { unused: 30, metadata: 6, ..census(&ages, 16) }.text(100, 128);
        let quantiles: Vec<String> = (1..32).map(|at| (at * 200).to_string()).collect();
        let expected = format!(
            "Unused:\t\t30%\nClean:\t\t48%\nDirty:\t\t16%\nMetadata:\t6%\nAverage:\t3150\n\
             Sectors per Q:\t256\nQuantiles:\t[{}]",
            quantiles.join(" ")
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn cache_without_data_has_quantiles_of_zero() {
        let text = Census { unused: 100, ..census(&[], 0) }.text(100, 128);
        let expected = format!("Quantiles:\t[{}]", ["0"; 31].join(" "));
        assert!(text.ends_with(&expected) && text.contains("Average:\t0\n"), "{text}");
    }

    #[test]
    fn one_bucket_is_in_each_quantile() {
        let text = census(&[0x8000 - 1], 1).text(1, 128);
        assert!(text.ends_with(&format!("[{}]", ["32767"; 31].join(" "))), "{text}");
    }
}
