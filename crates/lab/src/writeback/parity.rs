//! Rows of arrays with parity: how many of them each policy writes whole, for which an array reads
//! nothing.
//!
//! The bar is for an array of which [`SHARE_MIN`] or more is dirty: [`WHOLE_MIN`] percent of the
//! rows that are written are written whole. Where blocks are dirty at random, fewer rows may be
//! dirty on all data members ([`bound::whole_rows`]), and the array reads for the others in any
//! order. So a second figure counts beside the first: how many of the rows that are dirty as a
//! whole are written whole.

use super::bound;
use super::table::{Measured, OURS, shown};
use crate::experiment::record::Record;
use crate::experiment::report::{used_of, whole_percent};
use crate::experiment::variant::{Median, Variant};
use crate::page::Table;
use cairn_sim::drives::Used;

/// From so much dirty data on rows are to be written whole.
const SHARE_MIN: f64 = 0.8;
/// So many of them, in percent.
const WHOLE_MIN: f64 = 80.0;

/// The rows of all experiments with such an array; none without one.
pub(super) fn table(all: &[Measured<'_>]) -> Option<Table> {
    let columns = [
        "row",
        "block, KiB",
        "policy",
        "rows written whole",
        "in part",
        "whole, %",
        "of rows dirty as a whole, %",
        "verdict",
    ];
    let title = "Rows of RAID 5: >= 80 % are written whole where >= 80 % of the array is dirty";
    let mut table = Table::new(title, &columns);
    for one in all {
        let Some((share, possible)) = bound::whole_rows(&one.experiment) else { continue };
        for variant in &one.variants {
            let scale = one.experiment.scale as f64;
            let of = |figure: &dyn Fn(&Used) -> f64| {
                Median::of(variant.records.iter().map(|record| figure(&used(one, record))))
            };
            let whole = of(&whole_percent);
            let of_possible = of(&|used| 100.0 * used.whole_rows as f64 / possible);
            let fields = [
                one.row.name.to_owned(),
                one.kib(),
                variant.name.clone(),
                shown(of(&|used| used.whole_rows as f64 * scale), 0),
                shown(of(&|used| used.part_rows as f64 * scale), 0),
                shown(whole, 1),
                shown(of_possible, 1),
                verdict(variant, share, [whole, of_possible]),
            ];
            table.row(&fields.each_ref().map(String::as_str));
        }
    }
    (!table.rows.is_empty()).then_some(table)
}

/// What all drives did.
fn used(one: &Measured<'_>, record: &Record) -> Used {
    let drives = 0..one.experiment.drives.len();
    drives.map(|index| used_of(record, index)).fold(Used::default(), |sum, used| sum + used)
}

/// `found` is how many of the rows were written whole, in percent: of those that were written, and
/// of those that were dirty as a whole.
fn verdict(variant: &Variant, share: f64, found: [Option<Median>; 2]) -> String {
    let is_met = found.map(|it| it.is_some_and(|found| found.middle >= WHOLE_MIN));
    let verdict = match is_met {
        _ if variant.name != OURS => "-",
        _ if share < SHARE_MIN => return format!("not judged: {:.0} % are dirty", 100.0 * share),
        [true, _] => "met",
        [false, true] => "met of the rows that are dirty as a whole; the others need a read",
        [false, false] => "missed",
    };
    verdict.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::form::Experiment;
    use crate::experiment::record::{Sample, testing};
    use crate::writeback::rows::ROWS;

    /// A run whose array wrote so many of its rows whole and in part.
    fn record(experiment: &Experiment, [whole_rows, part_rows]: [u64; 2]) -> Record {
        let sample = |second: u64| {
            let [whole_rows, part_rows] = [whole_rows, part_rows].map(|rows| rows * second);
            let array = Used { whole_rows, part_rows, ..Used::default() };
            Sample {
                drives: experiment.drives.iter().map(|_| array).collect(),
                ..testing::nothing_at(second)
            }
        };
        let samples = vec![sample(0), sample(1)];
        testing::record(samples)
    }

    /// The verdict about a policy that wrote this part of the possible rows whole, and so many in
    /// part for each.
    fn verdict_of(name: &str, policy: &str, part: f64, parts_for_each: f64) -> String {
        let row = ROWS.iter().find(|row| row.name == name).expect("there is such a row");
        let experiment = Experiment::parse(row.text, "x.toml").expect("a row has a meaning");
        let (_, possible) = bound::whole_rows(&experiment).expect("an array");
        // Both drives of the experiment count.
        let whole = possible * part / 2.0;
        let rows = [whole, whole * parts_for_each].map(|rows| rows as u64);
        let records = vec![record(&experiment, rows)];
        let variants = vec![Variant { name: policy.to_owned(), records }];
        let table = table(&[Measured { row, experiment, variants }]).expect("an array");
        table.rows[0].last().expect("a verdict").clone()
    }

    #[test]
    fn bar_is_for_our_order_on_an_array_that_is_mostly_dirty() {
        let possible = "met of the rows that are dirty as a whole; the others need a read";
        assert_eq!(verdict_of("raid5-dense", "sweep", 0.81, 0.2), "met");
        assert_eq!(verdict_of("raid5-dense", "sweep", 0.79, 0.2), "met");
        assert_eq!(verdict_of("raid5-dense", "sweep", 0.81, 0.3), possible);
        assert_eq!(verdict_of("raid5-dense", "sweep", 0.79, 0.3), "missed");
        assert_eq!(verdict_of("raid5-dense", "strict", 0.79, 0.3), "-");
        assert_eq!(verdict_of("row-1.3", "sweep", 0.1, 9.0), "not judged: 65 % are dirty");
    }

    #[test]
    fn experiments_without_an_array_have_no_rows() {
        let row = &ROWS[0];
        let experiment = Experiment::parse(row.text, "x.toml").expect("a row has a meaning");
        assert!(table(&[Measured { row, experiment, variants: Vec::new() }]).is_none());
    }
}
