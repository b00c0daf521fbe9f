//! How runs of a row compare: times, ratios over paired seeds, and what was seen elsewhere.

use std::time::Duration;

use super::rows::{Observation, When};
use crate::experiment::record::Record;
use crate::experiment::variant::{Median, Variant};

/// The runs of a row.
pub struct Runs<'a> {
    /// One of each policy.
    pub variants: &'a [Variant],
    /// Times are reported times this.
    pub scale: u64,
}

/// Dirty sectors of all volumes at a time, in proportion between two samples.
fn dirty_at(record: &Record, at: Duration) -> f64 {
    let sum = |index: usize| record.samples[index].dirty.iter().sum::<u64>() as f64;
    let time = |index: usize| record.samples[index].at.0 as f64;
    let at = at.as_nanos() as f64;
    let after = record.samples.partition_point(|sample| (sample.at.0 as f64) < at);
    match after {
        0 => sum(0),
        after if after == record.samples.len() => sum(after - 1),
        after => {
            let (from, to) = (time(after - 1), time(after));
            let part = (at - from) / (to - from);
            sum(after - 1) + (sum(after) - sum(after - 1)) * part
        }
    }
}

/// When so many sectors or fewer were dirty for the first time, in proportion between two samples,
/// in virtual seconds; none if that did not come.
fn time_to(record: &Record, dirty: f64) -> Option<f64> {
    let seconds = |at: Duration| at.as_secs_f64();
    let sum = |index: usize| record.samples[index].dirty.iter().sum::<u64>() as f64;
    let at = |index: usize| seconds(Duration::from_nanos(record.samples[index].at.0));
    let index = (0..record.samples.len()).find(|&index| sum(index) <= dirty)?;
    let Some(before) = index.checked_sub(1) else { return Some(0.0) };
    let part = (sum(before) - dirty) / (sum(before) - sum(index));
    Some(at(before) + (at(index) - at(before)) * part)
}

impl Runs<'_> {
    fn of(&self, policy: &str) -> Option<&Variant> {
        self.variants.iter().find(|variant| variant.name == policy)
    }

    /// Hours until so many sectors or fewer were dirty; none if that did not come in each run.
    pub fn hours_to(&self, variant: &Variant, dirty: u64) -> Option<Median> {
        let hours = |record: &Record| {
            time_to(record, dirty as f64).map(|seconds| seconds * self.scale as f64 / 3600.0)
        };
        let all: Option<Vec<f64>> = variant.records.iter().map(hours).collect();
        Median::of(all?)
    }

    /// By how many GiB less was dirty at the end: what went home, without what clients added.
    pub fn gib_written(&self, variant: &Variant) -> Option<Median> {
        let gib = |record: &Record| {
            let gone = dirty_at(record, Duration::ZERO) - dirty_at(record, record.took());
            gone * self.scale as f64 / f64::from(1 << 21)
        };
        Median::of(variant.records.iter().map(gib))
    }

    /// By how much less was dirty in a second, at a part of a run, in sectors. To a run that
    /// became clean before the end of the part only the time counts until then.
    fn speed(&self, record: &Record, when: When) -> f64 {
        let scale = u32::try_from(self.scale).unwrap_or(u32::MAX);
        let took = record.took();
        let (from, to) = match when {
            When::Whole => (Duration::ZERO, took),
            When::First(time) => (Duration::ZERO, (time / scale).min(took)),
            When::After(time) => (time / scale, took),
        };
        let clean = time_to(record, 0.0).map_or(to, Duration::from_secs_f64);
        let to = to.min(clean);
        let gone = dirty_at(record, from) - dirty_at(record, to);
        gone / to.saturating_sub(from).as_secs_f64()
    }

    /// By how many MiB less was dirty in a second, at a part of a run; none if a run was not in it.
    pub fn mib_per_second(&self, variant: &Variant, when: When) -> Option<Median> {
        let speed = |record: &Record| {
            let speed = self.speed(record, when) / 2048.0;
            speed.is_finite().then_some(speed)
        };
        let all: Option<Vec<f64>> = variant.records.iter().map(speed).collect();
        Median::of(all?)
    }

    /// How many times as fast a policy is as another, over paired seeds; none if one has no runs,
    /// or the other wrote nothing.
    pub fn times(&self, policy: &str, than: &str, when: When) -> Option<Median> {
        let (own, other) = (self.of(policy)?, self.of(than)?);
        let pairs = own.records.iter().zip(&other.records);
        let ratio = |(own, other): (&Record, &Record)| {
            let (own, other) = (self.speed(own, when), self.speed(other, when));
            (own.is_finite() && other > 0.0).then(|| own / other)
        };
        let all: Option<Vec<f64>> = pairs.map(ratio).collect();
        Median::of(all?)
    }
}

impl Observation {
    /// True if a model shows what was seen.
    pub fn is_shown_by(&self, found: Median) -> bool {
        let (from, to) = self.times;
        (from..=to).contains(&found.middle)
    }

    /// Why a model shows something else, to go on after that it does.
    pub fn why_not(&self) -> String {
        match self.because {
            "" => "; why is not known".to_owned(),
            because => format!(": {because}"),
        }
    }
}

/// Whether the model shows what was seen, in words; none if the runs do not tell.
pub fn verdict(observation: &Observation, runs: &Runs<'_>) -> Option<[String; 2]> {
    let found = runs.times(observation.policy, observation.than, observation.when)?;
    let shown = format!("{} is {}x {}", observation.policy, found.print(2), observation.than);
    let verdict = match observation.is_shown_by(found) {
        true => "agrees".to_owned(),
        false => format!("does not agree{}", observation.why_not()),
    };
    Some([shown, verdict])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::record::{Sample, testing};

    /// A run with so much dirty at each second.
    fn record(dirty: &[u64]) -> Record {
        let sample = |(second, dirty): (u64, &u64)| Sample {
            dirty: vec![*dirty],
            rate: vec![None],
            in_use: vec![None],
            ..testing::nothing_at(second)
        };
        let samples = (0..).zip(dirty).map(sample).collect();
        testing::record(samples)
    }

    fn variants() -> Vec<Variant> {
        let of = |name: &str, runs: &[&[u64]]| Variant {
            name: name.to_owned(),
            records: runs.iter().map(|dirty| record(dirty)).collect(),
        };
        vec![
            of("slow", &[&[100, 80, 60, 40, 20, 0], &[100, 80, 60, 40, 20, 0]]),
            of("fast", &[&[100, 60, 20, 0], &[100, 80, 40, 0]]),
        ]
    }

    #[test]
    fn times_lie_between_samples() {
        let record = record(&[100, 60, 20, 0]);
        assert_eq!(time_to(&record, 100.0), Some(0.0));
        assert_eq!(time_to(&record, 40.0), Some(1.5));
        assert_eq!(time_to(&record, 0.0), Some(3.0));
        assert_eq!(dirty_at(&record, Duration::from_millis(1500)), 40.0);
        assert_eq!(dirty_at(&record, Duration::from_secs(9)), 0.0);
        let variants = variants();
        let runs = Runs { variants: &variants, scale: 3600 };
        let to = |dirty| runs.hours_to(&variants[1], dirty).map(|it| it.print(1));
        assert_eq!(to(20).as_deref(), Some("2.0 (2.0 to 2.5)"));
        assert_eq!(runs.gib_written(&variants[0]).map(|it| it.print(2)).as_deref(), Some("0.17"));
    }

    #[test]
    fn ratios_are_of_paired_seeds_and_of_parts_of_runs() {
        let variants = variants();
        let runs = Runs { variants: &variants, scale: 60 };
        let times = |when| runs.times("fast", "slow", when).map(|it| it.print(2));
        assert_eq!(times(When::Whole).as_deref(), Some("1.67"));
        let speed = |when| runs.mib_per_second(&variants[0], when).map(|it| it.middle * 2048.0);
        assert_eq!(
            (speed(When::Whole), speed(When::After(Duration::from_secs(300)))),
            (Some(20.0), None)
        );
        let first = When::First(Duration::from_secs(60));
        assert_eq!(times(first).as_deref(), Some("1.00 (1.00 to 2.00)"));
        // 60 and 80 in 2 s, beside 20 a second.
        let after = When::After(Duration::from_secs(60));
        assert_eq!(times(after).as_deref(), Some("1.50 (1.50 to 2.00)"));
        assert_eq!(runs.times("fast", "none", When::Whole), None);
    }

    #[test]
    fn verdict_names_what_is_shown_and_why_it_differs() {
        let variants = variants();
        let runs = Runs { variants: &variants, scale: 1 };
        let observation = |times, because| Observation {
            seen: "",
            policy: "fast",
            than: "slow",
            when: When::Whole,
            times,
            because,
        };
        let of =
            |times, because| verdict(&observation(times, because), &runs).expect("both have runs");
        assert_eq!(of((1.5, 1.8), ""), ["fast is 1.67x slow", "agrees"]);
        assert_eq!(of((1.8, 2.5), "")[1], "does not agree; why is not known");
        assert_eq!(of((1.8, 2.5), "the cache")[1], "does not agree: the cache");
    }
}
