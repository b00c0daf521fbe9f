//! `cairn lab writeback --ranges`: what rows show if drives are not exactly as their models.
//!
//! A row runs with its models as they are, and again for each of [`CHANGES`], in which all its arms
//! differ from their model in one way. Seeds are the same. A verdict that turns among these runs
//! depends on a figure of the model, and holds for such drives only.
//!
//! - R1. A run is that of an experiment's text, which says how its arms differ and may be written
//!   into a folder.
//! - R2. A change that no drive of a row has is not run: an SSD has no arm.

use cairn_outcome::failure::Outcome;

use super::asked::Asked;
use super::measure::measure_row;
use super::rows::{Observation, When};
use super::table::{FIRST, LEAST_OF_FIRST, Measured, OURS, shown};
use super::versions::Version;
use crate::experiment::form::Experiment;
use crate::experiment::variant::Median;
use crate::page::{Page, Part, Section, Table};

/// A way in which the arms of a row differ from their model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Change {
    /// A word of a drive in the file of an experiment.
    word: &'static str,
    /// Times this.
    factor: &'static str,
}

const fn change(word: &'static str, factor: &'static str) -> Change {
    Change { word, factor }
}

const CHANGES: [Change; 6] = [
    change("seek", "0.7"),
    change("seek", "1.3"),
    change("ncq", "0.7"),
    change("ncq", "1.3"),
    change("cache", "0.7"),
    change("cache", "1.3"),
];

/// A row with its models as they are, and with each change that one of its drives has.
struct Ranged {
    models: Vec<(Option<Change>, Measured<'static>)>,
}

/// Runs rows with all models; writes their files if there is a folder for them.
///
/// # Errors
/// A target refuses a row, or a file cannot be written.
pub fn page(asked: &Asked, versions: Vec<Version>, facts: Vec<(String, String)>) -> Outcome<Page> {
    let mut all = Vec::new();
    for version in versions {
        all.push(Ranged::run(asked, &version)?);
    }
    Ok(page_of(&all, facts))
}

fn page_of(all: &[Ranged], facts: Vec<(String, String)>) -> Page {
    let section = |title: &str, table: Table| Section {
        title: title.to_owned(),
        parts: vec![Part::Table(table)],
    };
    Page {
        title: "The order of writeback over ranges of the drives".to_owned(),
        introduction: "Each row runs with its models as they are, and with one figure of its arms \
                       0.7 or 1.3 times the model's: the time of seeks and changes of tracks, the \
                       commands that a drive holds with the oldest dirty runs that it chooses \
                       among (ncq), or its volatile write cache. A figure is the median of all \
                       seeds; ratios are of runs with the same seed."
            .to_owned(),
        facts,
        sections: vec![
            section("What reviewers saw", observations(all)),
            section("What was promised", bars(all)),
        ],
    }
}

impl Change {
    /// In words.
    fn name(self) -> String {
        format!("{} x {}", self.word, self.factor)
    }

    /// The text of an experiment whose drives have this change; none if none of them can.
    fn of_text(self, text: &str, experiment: &Experiment) -> Option<String> {
        let mut changed = text.to_owned();
        for (name, drive) in &experiment.drives {
            let can_change = match self.word {
                "cache" => drive.model.has_arm_with_cache(),
                _ => drive.model.has_arm(),
            };
            if can_change {
                let head = format!("[drive.{name}]\n");
                let with = format!("{head}{} = {}\n", self.word, self.factor);
                changed = changed.replacen(&head, &with, 1);
            }
        }
        (changed != text).then_some(changed)
    }
}

/// A row with its models as they are, then with each change that one of its drives has.
fn models(version: &Version) -> Outcome<Vec<(Option<Change>, Version)>> {
    let Version { row, stem, text } = version;
    let plain = Experiment::parse(text, stem)?;
    let mut all = vec![(None, Version { row, stem: stem.clone(), text: text.clone() })];
    for change in CHANGES {
        if let Some(text) = change.of_text(text, &plain) {
            let stem = format!("{stem}-{}-{}", change.word, change.factor);
            all.push((Some(change), Version { row, stem, text }));
        }
    }
    Ok(all)
}

impl Ranged {
    fn run(asked: &Asked, version: &Version) -> Outcome<Ranged> {
        let (changes, versions): (Vec<_>, Vec<_>) = models(version)?.into_iter().unzip();
        let runs = measure_row(asked, versions)?;
        Ok(Ranged { models: changes.into_iter().zip(runs).collect() })
    }

    /// As its models are.
    fn plain(&self) -> &Measured<'static> {
        &self.models[0].1
    }

    /// How many times as fast a policy is as another, for each model; none if a run does not tell.
    fn times(&self, policy: &str, than: &str, when: When) -> Option<Vec<Found>> {
        let times = |(change, one): &(Option<Change>, Measured<'_>)| {
            let times = one.runs().times(policy, than, when)?;
            Some(Found { change: *change, times })
        };
        self.models.iter().map(times).collect()
    }

    /// How many models there are, and why not more.
    fn count(&self) -> String {
        let drives = || self.plain().experiment.drives.iter().map(|(_, drive)| drive.model);
        let count = self.models.len();
        match (drives().any(|it| it.has_arm()), drives().any(|it| it.has_arm_with_cache())) {
            (false, _) => format!("{count}: no drive has an arm"),
            (_, false) => format!("{count}: no disk has a write cache"),
            (true, true) => count.to_string(),
        }
    }
}

/// What the runs with one model show.
struct Found {
    change: Option<Change>,
    times: Median,
}

/// The least and the greatest of all models.
fn range(found: &[Found]) -> String {
    let all = Median::of(found.iter().map(|it| it.times.middle));
    all.map_or_else(|| "-".to_owned(), |it| format!("{:.2} to {:.2}", it.low, it.high))
}

/// The models for which something does not hold, in words.
fn without(found: &[Found], holds: impl Fn(Median) -> bool) -> Vec<String> {
    let others = found.iter().filter(|it| !holds(it.times));
    others.map(|it| it.change.map_or_else(|| "as it is".to_owned(), Change::name)).collect()
}

fn observations(all: &[Ranged]) -> Table {
    let columns =
        ["row", "block, KiB", "seen by reviewers", "models", "as they are", "all", "verdict"];
    let mut table = Table::new("What reviewers saw, over all models", &columns);
    for one in all {
        let plain = one.plain();
        for observation in plain.row.observations {
            let Observation { policy, than, when, .. } = *observation;
            let found = one.times(policy, than, when).unwrap_or_default();
            let as_it_is = found.first().map(|it| it.times);
            let as_it_is = format!("{policy} is {}x {than}", shown(as_it_is, 2));
            let verdict = agreement(observation, &found);
            let row = [
                plain.row.name,
                &plain.kib(),
                observation.seen,
                &one.count(),
                &as_it_is,
                &range(&found),
                &verdict,
            ];
            table.row(&row);
        }
    }
    table
}

/// With which of the models what was seen is shown.
fn agreement(observation: &Observation, found: &[Found]) -> String {
    let others = without(found, |times| observation.is_shown_by(times));
    match (found.len(), others.len()) {
        (0, _) => "does not tell".to_owned(),
        (_, 0) => "agrees with all".to_owned(),
        (all, others) if all == others => format!("agrees with none{}", observation.why_not()),
        (all, _) => {
            let agree = all - others.len();
            format!("agrees with {agree} of {all}, not with: {}", others.join(", "))
        }
    }
}

fn bars(all: &[Ranged]) -> Table {
    let names = CHANGES.map(Change::name);
    let mut columns = vec!["row", "block, KiB", "as it is"];
    columns.extend(names.iter().map(String::as_str));
    columns.push("verdict");
    let caption = format!("{OURS}, x {FIRST}: >= {LEAST_OF_FIRST} with all models");
    let mut table = Table::new(&caption, &columns);
    let has_first = |one: &&Ranged| one.plain().variants.iter().any(|it| it.name == FIRST);
    for one in all.iter().filter(has_first) {
        let plain = one.plain();
        let found = one.times(OURS, FIRST, When::Whole).unwrap_or_default();
        let of = |change: Option<Change>| {
            let times = found.iter().find(|it| it.change == change).map(|it| it.times);
            shown(times, 3)
        };
        let mut row = vec![plain.row.name.to_owned(), plain.kib(), of(None)];
        row.extend(CHANGES.iter().map(|&change| of(Some(change))));
        row.push(bar(&found, &one.count()));
        table.row(&row.iter().map(String::as_str).collect::<Vec<_>>());
    }
    table
}

/// Whether the bar holds with all of so many models.
fn bar(found: &[Found], count: &str) -> String {
    let others = without(found, |times| times.middle >= LEAST_OF_FIRST);
    match (found.len(), others.len()) {
        (0, _) => "no less was dirty".to_owned(),
        (_, 0) => format!("holds ({count})"),
        (all, others) if all == others => format!("missed with all ({count})"),
        _ => format!("missed with: {}", others.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::devices::Changes;
    use crate::writeback::testing::{asked, small};
    use crate::writeback::versions::versions;

    fn parse(text: &str) -> Experiment {
        Experiment::parse(text, "x.toml").expect("a row has a meaning")
    }

    fn expected(change: Change) -> Changes {
        let factor = change.factor.parse().expect("a number");
        match change.word {
            "seek" => Changes { seek: factor, ..Changes::NONE },
            "ncq" => Changes { ncq: factor, ..Changes::NONE },
            _ => Changes { cache: factor, ..Changes::NONE },
        }
    }

    #[test]
    fn models_of_each_row_differ_in_one_figure_of_all_arms_alone() {
        for version in versions(&[], false).expect("all rows") {
            for (change, model) in models(&version).expect("a row has a meaning") {
                let Version { stem, text, .. } = model;
                let (plain, mut changed) = (parse(&version.text), parse(&text));
                let Some(change) = change else {
                    assert!(plain == changed && stem == version.stem);
                    continue;
                };
                let mut arms = 0;
                for (name, drive) in &mut changed.drives {
                    let can_change = drive.model.has_arm_with_cache()
                        || (drive.model.has_arm() && change.word != "cache");
                    let expected = if can_change { expected(change) } else { Changes::NONE };
                    let found = std::mem::replace(&mut drive.changes, Changes::NONE);
                    assert_eq!(found, expected, "{stem}: {name}");
                    arms += usize::from(can_change);
                }
                assert!(arms > 0 && plain == changed, "{stem}");
            }
        }
    }

    #[test]
    fn drives_without_what_changes_are_run_less() {
        let count = |name: &str| {
            let named = versions(&[name.to_owned()], false).expect("a row");
            models(&named[0]).expect("a row has a meaning").len()
        };
        let counts = ["row-1.1", "row-1.2", "row-1.3", "uncached"].map(count);
        assert_eq!(counts, [7, 1, 7, 5]);
    }

    /// The same seeds take another time with other arms, and with fast ones a shorter one.
    #[test]
    fn models_with_other_arms_take_times_of_their_own() {
        let ranged = Ranged::run(&asked(), &small()).expect("it runs");
        let times = ranged.models.iter().map(|(change, one)| {
            let [completion, sweep] = &one.variants[..] else { panic!("two policies") };
            let hours = [completion, sweep].map(|it| one.runs().hours_to(it, 0));
            (change.map(Change::name), hours.map(|it| it.expect("it became clean").middle))
        });
        let times: Vec<(Option<String>, [f64; 2])> = times.collect();
        assert_eq!(times.len(), 7);
        for (index, (change, hours)) in times[..5].iter().enumerate() {
            let others = || times[..index].iter().map(|(_, hours)| hours);
            assert!(!others().any(|it| it == hours), "{change:?}: {times:?}");
        }
        let of = |index: usize| times[index].1[0];
        assert!(of(1) < of(0) && of(0) < of(2), "seeks: {times:?}");
        assert!(ranged.times(OURS, FIRST, When::Whole).is_some_and(|found| found.len() == 7));
        assert!(ranged.times(OURS, "none", When::Whole).is_none());
    }

    fn found(change: Option<Change>, times: f64) -> Found {
        Found { change, times: Median { middle: times, low: times, high: times } }
    }

    #[test]
    fn verdicts_name_the_models_without_which_they_hold() {
        let observation = |because| Observation {
            seen: "",
            policy: "strict",
            than: "completion",
            when: When::Whole,
            times: (1.5, 2.0),
            because,
        };
        let all = [found(None, 1.6), found(Some(CHANGES[1]), 1.4), found(Some(CHANGES[2]), 1.9)];
        let of = |because, found: &[Found]| agreement(&observation(because), found);
        assert_eq!(of("", &all), "agrees with 2 of 3, not with: seek x 1.3");
        assert_eq!(of("", &all[2..]), "agrees with all");
        assert_eq!(of("the arm", &all[1..2]), "agrees with none: the arm");
        assert_eq!(of("", &[]), "does not tell");
        assert_eq!(range(&all), "1.40 to 1.90");
    }

    #[test]
    fn bar_holds_only_over_the_range() {
        let all = [found(None, 0.99), found(Some(CHANGES[5]), 0.9)];
        assert_eq!(bar(&all, "7"), "missed with: cache x 1.3");
        assert_eq!(bar(&all[..1], "1: no drive has an arm"), "holds (1: no drive has an arm)");
        assert_eq!(bar(&all[1..], "7"), "missed with all (7)");
        assert_eq!(bar(&[], "7"), "no less was dirty");
    }
}
