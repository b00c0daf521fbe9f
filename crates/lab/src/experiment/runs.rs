//! Runs of experiments, several at a time, with their progress on stderr.

use std::io::IsTerminal;
use std::time::Duration;

use cairn_block::ConfigKind;
use cairn_outcome::failure::{Outcome, refused};
use cairn_outcome::stderr;
use cairn_sim::Prices;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::form::Experiment;
use super::record::Record;
use super::run::Run;
use crate::jobs;

/// One run of an experiment.
pub struct Wanted<'a> {
    /// The experiment.
    pub experiment: &'a Experiment,
    /// One of its variants.
    pub variant: &'a str,
    /// What decides all that is random.
    pub seed: u64,
    /// How often it is looked at, in virtual time.
    pub every: Duration,
}

/// Runs all of them, on so many threads; the records have their order.
///
/// # Errors
/// Of the first that failed: a target refuses something, a trace cannot be read, or an operation
/// fails.
pub fn run_each(threads: usize, wanted: &[Wanted<'_>], prices: Prices) -> Outcome<Vec<Record>> {
    let bars = std::io::stderr().is_terminal().then(MultiProgress::new);
    jobs::each(threads, wanted, |one| one.run(prices, bars.as_ref()))
}

impl Wanted<'_> {
    fn run(&self, prices: Prices, bars: Option<&MultiProgress>) -> Outcome<Record> {
        let &Wanted { experiment, variant, seed, every } = self;
        let run = Run::start(experiment, variant, seed, prices)?;
        let bar = bars.map(|bars| bars.add(self.bar()));
        let record = run.finish(every, |sample| {
            let Some(bar) = &bar else { return };
            let at = sample.at.0 / 1_000_000_000 * experiment.scale;
            let dirty = (sample.dirty.iter().sum::<u64>() * experiment.scale) >> 21;
            bar.set_position(at);
            bar.set_message(format!("{:.1} h, {dirty} GiB dirty", at as f64 / 3600.0));
        })?;
        if let Some(bar) = bar {
            bar.finish_and_clear();
        }
        let hours = record.took().as_secs_f64() * experiment.scale as f64 / 3600.0;
        let line = format!("{}: ended after {hours:.2} h, as reported", self.name());
        match bars {
            // The bars of other runs go on below it.
            Some(bars) => bars.suspend(|| stderr::say(&line)),
            None => stderr::say(&line),
        }
        let failed: u64 = record.clients.iter().map(|done| done.failed).sum();
        match failed {
            0 => Ok(record),
            _ => Err(refused(
                ConfigKind::System,
                &experiment.file,
                "failed operations",
                failed,
                "none, as no drive fails",
            )),
        }
    }

    fn name(&self) -> String {
        format!("{}: {}, seed {}", self.experiment.file, self.variant, self.seed)
    }

    fn bar(&self) -> ProgressBar {
        let style = "{prefix} {bar:30} {msg}  {elapsed}, at most {eta} left";
        let style = ProgressStyle::with_template(style).expect("the template is well formed");
        let bar = ProgressBar::new(self.experiment.end.at_most.as_secs()).with_style(style);
        bar.with_prefix(self.name())
    }
}
