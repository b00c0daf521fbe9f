//! What to do about a comparison: an [`Advice`] from figures, and the sentences that say it.
//!
//! A1. A cache is advised if it makes the trace, or the mean operation, at least [`WORTH`] times
//!     faster than no cache: less is within what the models of drives are wrong by.
//! A2. Caches whose drive would wear out within [`YEARS_LEAST`] are advised only if there is no
//!     other that is worth it.
//! A3. Among those within [`NEAR`] of the best, the smallest is advised; of one size one without
//!     dirty data, as that loses nothing with its drive; then the better one.
//! A4. The sentences say what was compared, and end with what is not known; of a short trace
//!     ([`OPERATIONS_FEW`], [`LENGTH_SHORT`]) that is said first.

use std::time::Duration;

use crate::page::{Axis, with_unit};

/// A gain that counts.
const WORTH: f64 = 1.2;
/// The part of the best gain that is as good as it.
const NEAR: f64 = 0.9;
/// A cache drive must last so long.
const YEARS_LEAST: f64 = 1.0;
/// A drive that is used as its maker expects lasts so long.
const YEARS_USUAL: f64 = 5.0;
/// A drain that takes longer than this is spoken of as long.
const DRAIN_LONG: Duration = Duration::from_secs(3600);

/// A trace of fewer operations tells little about a cache.
const OPERATIONS_FEW: u64 = 10_000;
/// So does one that takes less.
const LENGTH_SHORT: Duration = Duration::from_secs(600);

/// What a run of the trace showed.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    /// What ran, in words.
    pub label: String,
    /// How large its cache is; none without one.
    pub cache_bytes: Option<u64>,
    /// The cache may have data that the backing device lacks.
    pub is_writeback: bool,
    /// All was sent.
    pub is_whole: bool,
    /// From the first operation to the end of the last.
    pub took: Duration,
    /// Operations that ended.
    pub operations: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// How long an operation took in the mean, in nanoseconds.
    pub mean_ns: f64,
    /// Nanoseconds that 50 %, 99 % and 99.9 % of operations did not exceed.
    pub percentiles_ns: [Option<u64>; 3],
    /// Reads that the cache answered, in percent.
    pub hit_percent: Option<f64>,
    /// How much of the time the backing device was busy until all was sent, in percent.
    pub backing_busy_percent: f64,
    /// Bytes written to the backing device.
    pub backing_written: u64,
    /// Bytes written to the cache drive.
    pub cache_written: Option<u64>,
    /// How many years the cache drive lasts; none if it does not wear.
    pub years: Option<f64>,
    /// Dirty data when all was sent.
    pub dirty_bytes: u64,
    /// How long that took to go home; none if it did not.
    pub drained: Option<Duration>,
}

/// What a trace is, where advice depends on it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Asked {
    /// Its operations start at their times.
    pub has_times: bool,
    /// Operations in flight, at most.
    pub depth: u32,
    /// Bytes of all blocks that it touches.
    pub touched_bytes: u64,
}

/// What is faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// The whole trace.
    Trace,
    /// The mean operation.
    Operation,
}

/// How many times faster than without a cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gain {
    /// What.
    pub of: Measure,
    /// How many times.
    pub times: f64,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Advice {
    /// No cache is worth it; the best that there is, if any.
    None(Option<(usize, Gain)>),
    /// This one is. All are worn out soon, if so.
    Take {
        /// Which one, by its index.
        index: usize,
        /// What it brings.
        gain: Gain,
        /// Each that is worth it wears its drive out within [`YEARS_LEAST`].
        wears_out: bool,
    },
}

/// The gain of a run, over the run without a cache.
fn gain(bare: &Figures, run: &Figures) -> Gain {
    let over = |bare: f64, run: f64| if run > 0.0 { bare / run } else { 1.0 };
    // A run that did not end in its time tells by what it did in that.
    let each = |it: &Figures| it.took.as_secs_f64() / it.operations.max(1) as f64;
    let (trace, operation) = (over(each(bare), each(run)), over(bare.mean_ns, run.mean_ns));
    match trace >= operation {
        true => Gain { of: Measure::Trace, times: trace },
        false => Gain { of: Measure::Operation, times: operation },
    }
}

/// Decides. `runs` are those with a cache.
pub fn judge(bare: &Figures, runs: &[Figures]) -> Advice {
    let gains: Vec<Gain> = runs.iter().map(|run| gain(bare, run)).collect();
    let best = |of: &[usize]| {
        of.iter().copied().max_by(|&a, &b| gains[a].times.total_cmp(&gains[b].times))
    };
    let all: Vec<usize> = (0..runs.len()).collect();
    let worth: Vec<usize> =
        all.iter().copied().filter(|&index| gains[index].times >= WORTH).collect();
    let lasting: Vec<usize> = worth
        .iter()
        .copied()
        .filter(|&index| runs[index].years.is_none_or(|years| years >= YEARS_LEAST))
        .collect();
    let wears_out = lasting.is_empty();
    let candidates = if wears_out { worth } else { lasting };
    let Some(top) = best(&candidates) else {
        return Advice::None(best(&all).map(|index| (index, gains[index])));
    };
    let near = candidates.into_iter().filter(|&it| gains[it].times >= NEAR * gains[top].times);
    let order = |&a: &usize, &b: &usize| {
        let key = |it: usize| (runs[it].cache_bytes, runs[it].is_writeback);
        key(a).cmp(&key(b)).then(gains[b].times.total_cmp(&gains[a].times))
    };
    let index = near.min_by(order).expect("the best is near itself");
    Advice::Take { index, gain: gains[index], wears_out }
}

/// Two to five sentences.
pub fn sentences(advice: Advice, bare: &Figures, runs: &[Figures], asked: Asked) -> Vec<String> {
    let mut said = Vec::new();
    match advice {
        Advice::None(None) => said.push("There is no cache to compare with.".to_owned()),
        Advice::None(Some((index, gain))) => said.push(format!(
            "None of these caches is worth a drive for this trace: the best, {}, {}, and less \
             than {WORTH} times is within what the models are wrong by.",
            runs[index].label,
            brings(gain, bare, &runs[index])
        )),
        Advice::Take { index, gain, wears_out } => {
            let run = &runs[index];
            said.push(format!("Take {}: it {}.", run.label, brings(gain, bare, run)));
            said.push(beside_others(run, gain, bare, runs, asked));
            said.extend(wear(run, wears_out));
            said.extend(risk(run));
        }
    }
    said.push(unknown(bare, asked));
    said
}

/// What a cache brings, as the end of a sentence.
fn brings(gain: Gain, bare: &Figures, run: &Figures) -> String {
    let times = format!("({} times faster)", digits(gain.times));
    match gain.of {
        Measure::Trace if bare.is_whole && run.is_whole => format!(
            "replays the trace in {} instead of {} without a cache {times}",
            time(run.took),
            time(bare.took)
        ),
        Measure::Trace => format!("does more of the trace in the same time {times}"),
        Measure::Operation => format!(
            "answers an operation in {} in the mean instead of {} without a cache {times}",
            with_unit(run.mean_ns / 1e9, "s"),
            with_unit(bare.mean_ns / 1e9, "s")
        ),
    }
}

/// Why this one and not another.
fn beside_others(
    run: &Figures,
    own: Gain,
    bare: &Figures,
    runs: &[Figures],
    asked: Asked,
) -> String {
    let touched = with_unit(asked.touched_bytes as f64, "B");
    let best = runs.iter().map(|it| (it, gain(bare, it))).max_by(|a, b| {
        let times = |it: &(&Figures, Gain)| it.1.times;
        times(a).total_cmp(&times(b))
    });
    let (best, most) = best.expect("a run was chosen");
    let beside = match best == run {
        true => "no other is faster".to_owned(),
        false => format!(
            "the best of all, {}, is {} times faster than no cache, this one {}",
            best.label,
            digits(most.times),
            digits(own.times)
        ),
    };
    let holds = match run.cache_bytes {
        Some(bytes) if bytes >= asked.touched_bytes => "which it holds",
        _ => "more than it holds",
    };
    let why = if run.is_writeback { "size" } else { "size, and has no dirty data to lose" };
    format!(
        "Of those that are as good it has the least {why}; {beside}; the trace touches {touched}, \
         {holds}."
    )
}

fn wear(run: &Figures, wears_out: bool) -> Option<String> {
    let years = run.years?;
    let lasts = format!("its drive lasts {} years of such days", digits(years));
    Some(match (wears_out, years < YEARS_USUAL) {
        (true, _) => format!("Mind the wear: {lasts}, and no other that is worth it lasts a year."),
        (false, true) => format!("Mind the wear: {lasts}, less than the five that are usual."),
        (false, false) => format!("Wear is no concern: {lasts}."),
    })
}

fn risk(run: &Figures) -> Option<String> {
    if !run.is_writeback {
        return None;
    }
    let dirty = with_unit(run.dirty_bytes as f64, "B");
    Some(match run.drained {
        Some(drained) => {
            let time = time(drained);
            let long = if drained > DRAIN_LONG { ", which is long" } else { "" };
            format!(
                "What only the cache has is lost with its drive: {dirty} at the end, which took \
                 {time} to go home{long}."
            )
        }
        None => format!(
            "What only the cache has is lost with its drive: {dirty} at the end, which did not go \
             home within the time of the run."
        ),
    })
}

/// What is not known.
fn unknown(bare: &Figures, asked: Asked) -> String {
    let is_short = bare.operations < OPERATIONS_FEW || bare.took < LENGTH_SHORT;
    let short = match is_short {
        true => format!(
            "the rest of your days, as the trace is short ({} operations in {}); ",
            bare.operations,
            time(bare.took)
        ),
        false => String::new(),
    };
    let clients = match asked.has_times {
        true => format!(
            "operations start at the times of the trace, with {} at most in flight, though a \
             client that is answered sooner may ask for more",
            asked.depth
        ),
        false => format!(
            "{} operations are kept in flight without any pause, though real clients think and \
             wait for each other",
            asked.depth
        ),
    };
    format!(
        "Not known: {short}{clients}; the cache begins empty; other memory caches than the one \
         that the trace was recorded beneath, other traces, and the drives that you have, which \
         may differ from the models."
    )
}

/// A time with its unit.
pub fn time(time: Duration) -> String {
    Axis::time().print(time.as_secs_f64())
}

/// Three digits.
fn digits(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests;
