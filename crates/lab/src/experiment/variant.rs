//! [`Variant`]: the runs of one variant, and what is printed of them.

use super::record::Record;

/// The runs of one variant, one for each seed.
pub struct Variant {
    /// Its word.
    pub name: String,
    /// In the order of the seeds.
    pub records: Vec<Record>,
}

/// The median of a value of each run with the least and the greatest, printed.
pub(super) fn median(variant: &Variant, value: impl Fn(&Record) -> f64, digits: usize) -> String {
    let mut values: Vec<f64> = variant.records.iter().map(value).collect();
    values.sort_unstable_by(f64::total_cmp);
    let middle = values[(values.len() - 1) / 2];
    let (low, high) = (values[0], values[values.len() - 1]);
    match values.len() {
        1 => format!("{middle:.digits$}"),
        _ => format!("{middle:.digits$} ({low:.digits$} to {high:.digits$})"),
    }
}
