//! `cairn lab writeback --check-scales`: whether rows tell the same at their scale and at a quarter
//! of it.
//!
//! A scale divides sizes and leaves the drives' queues and caches, batches, and all that is done
//! once as they are, so these weigh more than at full size. What agrees at a scale and at a quarter
//! of it, four times as large, does not rest on them. A row whose pace a controller sets has no
//! other scale: the controller's terms would have to be scaled by hand.

use std::time::Duration;

use cairn_outcome::failure::Outcome;

use super::asked::Asked;
use super::measure::measure_row;
use super::rows::When;
use super::table::{Measured, shown};
use super::versions::{Version, left_out, scaled};
use crate::experiment::form::Experiment;
use crate::experiment::variant::{Median, Variant};
use crate::page::{Page, Part, Section, Table};

/// How many times as large a row is run.
const LARGER: u64 = 4;
/// How far the two may be apart, of the smaller row.
const APART: f64 = 0.03;
/// What is compared of a row besides the whole of it, in times as reported.
const FIRST: When = When::First(Duration::from_secs(600));

/// A row that is run at its scale alone.
struct Alone {
    stem: String,
    why: String,
}

/// A row at its scale, and at a quarter of it.
struct Pair {
    own: Measured<'static>,
    larger: Measured<'static>,
}

/// Runs rows at both scales; writes their files if there is a folder for them.
///
/// # Errors
/// A target refuses a row, or a file cannot be written.
pub fn page(asked: &Asked, versions: Vec<Version>, facts: Vec<(String, String)>) -> Outcome<Page> {
    let left = if asked.quick { left_out(&asked.rows) } else { Vec::new() };
    let left = left
        .into_iter()
        .map(|name| Alone { stem: name.to_owned(), why: "it has no quick scale".to_owned() });
    let (mut pairs, mut alone) = (Vec::new(), left.collect::<Vec<_>>());
    for version in versions {
        let own = Experiment::parse(&version.text, &version.stem)?;
        match why_alone(&own) {
            Some(why) => alone.push(Alone { stem: version.stem, why }),
            None => pairs.push(Pair::run(asked, version, own.scale)?),
        }
    }
    Ok(page_of(&pairs, &alone, facts))
}

fn page_of(pairs: &[Pair], alone: &[Alone], facts: Vec<(String, String)>) -> Page {
    let mut others = Table::new("Rows with one scale", &["row", "why"]);
    for one in alone {
        others.row(&[&one.stem, &one.why]);
    }
    let parts = vec![Part::Table(compared(pairs)), Part::Table(others)];
    Page {
        title: "Rows of writeback at their scale and at a quarter of it".to_owned(),
        introduction: "Sizes are divided by a scale and times are reported times it. A figure is \
                       the median of all seeds. Seeds make other data dirty at another scale."
            .to_owned(),
        facts,
        sections: vec![Section { title: "Scales".to_owned(), parts }],
    }
}

/// Why a row has no other scale; none if it has.
fn why_alone(experiment: &Experiment) -> Option<String> {
    let is_paced = experiment.volumes.iter().any(|volume| {
        let words = volume.table.split_whitespace();
        let full_speed = |it: &String| it.starts_with("set writeback_rate_minimum ");
        words.into_iter().any(|word| word == "bcache") && !volume.messages.iter().any(full_speed)
    });
    match experiment.scale {
        1 => Some("it has its full size".to_owned()),
        _ if is_paced => Some("its controller sets the pace, and is not scaled".to_owned()),
        scale if scale % LARGER != 0 => Some(format!("{scale} is no multiple of {LARGER}")),
        _ => None,
    }
}

impl Pair {
    fn run(asked: &Asked, own: Version, scale: u64) -> Outcome<Pair> {
        let scale = scale / LARGER;
        let stem = format!("{}-scale-{scale}", own.stem);
        let larger = Version { row: own.row, stem, text: scaled(&own.text, scale) };
        // The longer runs first, so that none of them is alone at the end.
        let mut runs = measure_row(asked, vec![larger, own])?.into_iter();
        let mut next = || runs.next().expect("runs of each version");
        Ok(Pair { larger: next(), own: next() })
    }

    /// A figure at both scales, with how far apart they are.
    fn figures(&self, index: usize, figure: &Figure<'_>) -> [Option<Median>; 2] {
        [&self.own, &self.larger].map(|one| figure(one, &one.variants[index]))
    }
}

/// What is compared of a variant; none if the runs do not tell.
type Figure<'a> = dyn Fn(&Measured<'_>, &Variant) -> Option<Median> + 'a;

fn hours(one: &Measured<'_>, variant: &Variant) -> Option<Median> {
    one.runs().hours_to(variant, 0)
}

fn first_minutes(one: &Measured<'_>, variant: &Variant) -> Option<Median> {
    one.runs().mib_per_second(variant, FIRST)
}

/// By how much the larger row is above its own; none if the runs do not tell, as where nothing
/// became clean yet.
fn apart([own, larger]: [Option<Median>; 2]) -> Option<f64> {
    let (own, larger) = (own?.middle, larger?.middle);
    (own > 0.0).then(|| larger / own - 1.0)
}

fn percent(apart: Option<f64>) -> String {
    apart.map_or_else(|| "-".to_owned(), |apart| format!("{:+.1}", 100.0 * apart))
}

fn compared(pairs: &[Pair]) -> Table {
    let columns = [
        "row",
        "block, KiB",
        "policy",
        "scales",
        "to clean, h",
        "at a quarter, h",
        "apart, %",
        "first 10 min, MiB/s",
        "at a quarter, MiB/s",
        "first 10 min apart, %",
        "agrees within 3 %",
    ];
    let mut table = Table::new("At a scale and at a quarter of it", &columns);
    for pair in pairs {
        for (index, variant) in pair.own.variants.iter().enumerate() {
            let [whole, first] =
                [&hours as &Figure<'_>, &first_minutes].map(|figure| pair.figures(index, figure));
            let fields = [
                pair.own.row.name.to_owned(),
                pair.own.kib(),
                variant.name.clone(),
                format!("{}, {}", pair.own.experiment.scale, pair.larger.experiment.scale),
                shown(whole[0], 3),
                shown(whole[1], 3),
                percent(apart(whole)),
                shown(first[0], 2),
                shown(first[1], 2),
                percent(apart(first)),
                agreement(apart(whole), apart(first), pair.own.is_whole()),
            ];
            table.row(&fields.each_ref().map(String::as_str));
        }
    }
    table
}

/// Whether both figures agree; a row that is not run to its end has the second alone.
fn agreement(whole: Option<f64>, first: Option<f64>, is_whole: bool) -> String {
    let is_off = |apart: Option<f64>| apart.is_none_or(|apart| apart.abs() > APART);
    let answer = match (is_whole && is_off(whole), is_off(first)) {
        (false, false) => "yes",
        (true, false) => "no: the whole",
        (false, true) => "no: the first ten minutes",
        (true, true) => "no",
    };
    answer.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writeback::testing::{asked, small};
    use crate::writeback::versions::versions;

    #[test]
    fn rows_that_a_controller_paces_or_that_have_their_full_size_are_named() {
        let mut alone = Vec::new();
        for version in versions(&[], false).expect("all rows") {
            let experiment = Experiment::parse(&version.text, "x").expect("a row has a meaning");
            if let Some(why) = why_alone(&experiment) {
                alone.push(format!("{}: {why}", version.stem));
            }
        }
        let expected = [
            "row-2.1: its controller sets the pace, and is not scaled",
            "row-2.1-64k: its controller sets the pace, and is not scaled",
            "fragmented: it has its full size",
            "fragmented-64k: it has its full size",
            "front-end: it has its full size",
            "front-end-64k: it has its full size",
        ];
        assert_eq!(alone, expected);
        let odd = scaled(&small().text, 6);
        let odd = Experiment::parse(&odd, "x").expect("it has a meaning");
        assert_eq!(why_alone(&odd).as_deref(), Some("6 is no multiple of 4"));
    }

    #[test]
    fn a_row_has_four_times_as_much_at_a_quarter_of_its_scale() {
        let pair = Pair::run(&asked(), small(), 64).expect("it runs");
        let dirty = |one: &Measured<'_>| one.variants[0].records[0].samples[0].dirty[0] as f64;
        let ratio = dirty(&pair.larger) / dirty(&pair.own);
        assert!((3.9..4.1).contains(&ratio), "{ratio}");
        let [own, larger] = pair.figures(0, &hours).map(|it| it.expect("it became clean").middle);
        assert!((0.5..2.0).contains(&(larger / own)), "reported alike: {own} {larger}");
        assert!(pair.figures(1, &first_minutes).iter().all(Option::is_some));
        let table = compared(&[pair]);
        assert_eq!(table.rows.len(), 2, "completion and sweep");
        assert_eq!(table.rows[0][..4], ["small", "64", "completion", "64, 16"]);
    }

    #[test]
    fn rows_agree_within_3_percent_in_their_first_ten_minutes_too() {
        let median = |middle| Some(Median { middle, low: middle, high: middle });
        assert_eq!(percent(apart([median(10.0), median(10.2)])), "+2.0");
        assert_eq!(percent(apart([median(10.0), None])), "-");
        assert_eq!(percent(apart([median(0.0), median(0.0)])), "-", "both had nothing yet");
        let of = |whole, first, is_whole| agreement(whole, first, is_whole);
        assert_eq!(of(Some(-0.029), Some(0.029), true), "yes");
        assert_eq!(of(Some(0.031), Some(0.029), true), "no: the whole");
        assert_eq!(of(Some(0.029), Some(-0.031), true), "no: the first ten minutes");
        assert_eq!(of(None, Some(0.0), true), "no: the whole");
        assert_eq!(of(None, Some(0.0), false), "yes");
        assert_eq!(of(Some(1.0), None, true), "no");
    }
}
