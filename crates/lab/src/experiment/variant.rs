//! [`Variant`]: the runs of one variant. [`Median`]: what is printed of their figures.

use super::record::Record;

/// The runs of one variant, one for each seed.
pub struct Variant {
    /// Its word.
    pub name: String,
    /// In the order of the seeds.
    pub records: Vec<Record>,
}

/// The median of a value of each run, printed with the spread.
pub(super) fn median(variant: &Variant, value: impl Fn(&Record) -> f64, digits: usize) -> String {
    let median = Median::of(variant.records.iter().map(value));
    median.expect("a variant has a run for each seed").print(digits)
}

/// A median, with the least and the greatest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Median {
    /// Of an even number the lower one: a value that was seen.
    pub middle: f64,
    /// The least.
    pub low: f64,
    /// The greatest.
    pub high: f64,
}

impl Median {
    /// None if there are no values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Median> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_unstable_by(f64::total_cmp);
        let (low, high) = (*values.first()?, *values.last()?);
        Some(Median { middle: values[(values.len() - 1) / 2], low, high })
    }

    /// Printed, with the spread if there is one.
    pub fn print(&self, digits: usize) -> String {
        let Median { middle, low, high } = *self;
        let [middle, low, high] = [middle, low, high].map(|it| format!("{it:.digits$}"));
        if low == high { middle } else { format!("{middle} ({low} to {high})") }
    }
}
