//! Fragmented buckets: how fast each policy frees those that little dirty data holds, and how long
//! the cache stays above its cutoff, where writes go around it.
//!
//! Buckets are those in use as bcache counts them, in whole percent. They become free as dirty data
//! goes home, or as it is packed into fewer of them. The speed counts until the cache is below its
//! cutoff: after that there is no need to free any.

use std::time::Duration;

use super::table::{Measured, OURS, shown};
use crate::experiment::form::FillKind;
use crate::experiment::record::{Record, Sample};
use crate::experiment::variant::{Median, Variant};
use crate::fill::Pattern;
use crate::page::Table;

/// `cutoff_writeback`, as it is without a message: with more buckets in use, in percent, writes go
/// around the cache, but for those that are durable.
const CUTOFF: u64 = 40;
/// From then on a cache is not to be above its cutoff.
const SETTLED: Duration = Duration::from_secs(600);
/// What it is compared with, and how many times as fast it is to be.
const OTHER: &str = "sorted";
const TIMES_MIN: f64 = 10.0;
/// The number that an experiment records of packing.
const PACKED: &str = "moved_buckets";

/// True if this is an experiment about such buckets: dirty data stays, as it is packed.
pub(super) fn are_judged(one: &Measured<'_>) -> bool {
    let fill = one.experiment.fill.as_ref();
    fill.is_some_and(|fill| matches!(fill.pattern, Pattern::Fragmented { .. }))
}

/// The rows of all experiments about fragmented buckets; none without one.
pub(super) fn table(all: &[Measured<'_>]) -> Option<Table> {
    let columns = [
        "row",
        "block, KiB",
        "policy",
        "in use, %",
        "at the end, %",
        "minutes above the cutoff",
        "after the first ten",
        "freed per hour",
        "packed",
        "x sorted",
        "verdict",
    ];
    let title = "Fragmented buckets: not above the cutoff (40 % in use) after ten minutes, and \
                 >= 10x sorted in buckets freed per hour until then";
    let mut table = Table::new(title, &columns);
    for one in all.iter().filter(|one| are_judged(one)) {
        for variant in &one.variants {
            let of = |figure: &dyn Fn(&Record) -> Option<f64>| {
                let figures: Option<Vec<f64>> = variant.records.iter().map(figure).collect();
                Median::of(figures?)
            };
            let minutes =
                |from| move |it: &Record| Some(above_cutoff(it, from).as_secs_f64() / 60.0);
            let all = buckets(one)? as f64 / 100.0;
            let settled = of(&minutes(one.experiment.unscaled(SETTLED)));
            let times = times(one, variant);
            let fields = [
                one.row.name.to_owned(),
                one.kib(),
                variant.name.clone(),
                shown(of(&|it| Some(in_use(it.samples.first()?)? as f64)), 0),
                shown(of(&|it| Some(in_use(it.samples.last()?)? as f64)), 0),
                shown(of(&minutes(Duration::ZERO)), 1),
                shown(settled, 1),
                shown(of(&|it| Some(freed_per_second(it)? * all * 3600.0)), 0),
                shown(of(&|it| packed(one, it)), 0),
                shown(times, 1),
                verdict(variant, settled, times),
            ];
            table.row(&fields.each_ref().map(String::as_str));
        }
    }
    (!table.rows.is_empty()).then_some(table)
}

/// How many buckets the cache has.
fn buckets(one: &Measured<'_>) -> Option<u64> {
    let fill = one.experiment.fill.as_ref()?;
    match fill.kind {
        FillKind::Bcache { bucket_sectors } => {
            Some(one.experiment.drives[fill.cache].1.bytes / 512 / bucket_sectors)
        }
        FillKind::Writecache { .. } => None,
    }
}

/// The fullest cache, in percent.
fn in_use(sample: &Sample) -> Option<u64> {
    sample.in_use.iter().flatten().copied().max()
}

fn is_above(sample: &Sample) -> bool {
    in_use(sample).is_some_and(|percent| percent > CUTOFF)
}

/// For how long more was in use than the cutoff, from a time of the run on.
fn above_cutoff(record: &Record, from: Duration) -> Duration {
    let begin = record.samples.first().map(|first| first.at + from);
    let pairs = record.samples.windows(2).filter(|pair| begin.is_some_and(|it| pair[0].at >= it));
    pairs.filter(|pair| is_above(&pair[1])).map(|pair| pair[1].at.since(pair[0].at)).sum()
}

/// How many percent of the buckets became free in a second, until no more were in use than the
/// cutoff, or to the end.
fn freed_per_second(record: &Record) -> Option<f64> {
    let first = record.samples.first()?;
    let below = record.samples.iter().find(|sample| !is_above(sample));
    let last = below.or(record.samples.last())?;
    let freed = in_use(first)? as f64 - in_use(last)? as f64;
    let speed = freed / last.at.since(first.at).as_secs_f64();
    speed.is_finite().then_some(speed)
}

/// How many buckets were packed into others; none if the experiment does not record it.
fn packed(one: &Measured<'_>, record: &Record) -> Option<f64> {
    let index = one.experiment.counts.iter().position(|name| name == PACKED)?;
    let (first, last) = (record.samples.first()?, record.samples.last()?);
    Some((last.counts[index] - first.counts[index]) as f64)
}

/// How many times as fast buckets become free as with the other policy, over paired seeds.
fn times(one: &Measured<'_>, variant: &Variant) -> Option<Median> {
    let other = one.variants.iter().find(|variant| variant.name == OTHER)?;
    let pairs = variant.records.iter().zip(&other.records);
    let ratio = |(own, other)| {
        let ratio = freed_per_second(own)? / freed_per_second(other)?;
        ratio.is_finite().then_some(ratio)
    };
    let all: Option<Vec<f64>> = pairs.map(ratio).collect();
    Median::of(all?)
}

fn verdict(variant: &Variant, settled: Option<Median>, times: Option<Median>) -> String {
    let verdict = match (settled, times) {
        _ if variant.name != OURS => "-",
        (Some(settled), Some(times)) => match (settled.high <= 0.0, times.middle >= TIMES_MIN) {
            (true, true) => "met",
            (false, _) => "missed: above the cutoff after ten minutes",
            (true, false) => "missed: not fast enough",
        },
        _ => "does not tell",
    };
    verdict.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::form::Experiment;
    use crate::experiment::record::testing;
    use crate::writeback::rows::ROWS;

    /// A run with so many percent in use after each minute.
    fn record(in_use: &[u64]) -> Record {
        let sample = |(minute, percent): (u64, &u64)| Sample {
            in_use: vec![None, Some(*percent)],
            counts: vec![minute * 3],
            ..testing::nothing_at(minute * 60)
        };
        let samples = (0..).zip(in_use).map(sample).collect();
        Record { is_done: false, ..testing::record(samples) }
    }

    /// The last fields of our policy beside `sorted`.
    fn fields_of(ours: &[u64], sorted: &[u64]) -> Vec<String> {
        let row = ROWS.iter().find(|row| row.name == "fragmented").expect("there is such a row");
        let experiment = Experiment::parse(row.text, "x.toml").expect("a row has a meaning");
        let of =
            |name: &str, in_use| Variant { name: name.to_owned(), records: vec![record(in_use)] };
        let variants = vec![of(OTHER, sorted), of(OURS, ours)];
        let table = table(&[Measured { row, experiment, variants }]).expect("such buckets");
        table.rows[1][3..].to_vec()
    }

    #[test]
    fn speed_counts_until_the_cache_is_below_its_cutoff() {
        assert_eq!(freed_per_second(&record(&[70, 60, 40, 10])), Some(30.0 / 120.0));
        assert_eq!(freed_per_second(&record(&[70, 60, 55])), Some(15.0 / 120.0));
        assert_eq!(freed_per_second(&record(&[40, 30])), None, "it is below at once");
    }

    #[test]
    fn time_above_the_cutoff_is_that_of_intervals_at_whose_end_it_is_above() {
        let record = record(&[70, 41, 40, 41, 30]);
        let above =
            |minutes: u64| above_cutoff(&record, Duration::from_secs(60 * minutes)).as_secs();
        assert_eq!([0, 1, 2, 3].map(above), [120, 60, 60, 0]);
    }

    #[test]
    fn verdict_is_about_our_policy_beside_sorted() {
        let slow = [&[70; 14][..], &[69]].concat();
        let fast = [&[70, 10][..], &[10; 13]].concat();
        // 60 percent in a minute beside 1 in 14.
        assert_eq!(
            fields_of(&fast, &slow),
            ["70", "10", "0.0", "0.0", "1179648", "42", "840.0", "met"]
        );
        assert_eq!(
            fields_of(&slow, &slow)[5..],
            ["42", "1.0", "missed: above the cutoff after ten minutes"]
        );
        let steady = [&[70, 60, 55, 50, 45, 41][..], &[40; 10]].concat();
        assert_eq!(fields_of(&fast, &steady)[6..], ["12.0", "met"]);
        let halved = [&[70, 65, 60, 55, 50, 45, 41][..], &[40; 10]].concat();
        assert_eq!(fields_of(&steady, &halved)[6..], ["1.2", "missed: not fast enough"]);
        assert_eq!(fields_of(&fast, &[10; 15])[7], "does not tell");
    }
}
