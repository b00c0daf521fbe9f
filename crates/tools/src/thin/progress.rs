//! Progress of reading or writing metadata, on stderr: a bar on a terminal, else a line every few
//! seconds. Short runs show nothing.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use cairn_outcome::stderr::say;
use indicatif::{HumanDuration, ProgressBar, ProgressStyle};

/// Shorter runs show nothing.
const QUIET: Duration = Duration::from_secs(1);
const BAR_EVERY: Duration = Duration::from_millis(100);
const LINE_EVERY: Duration = Duration::from_secs(5);

/// A count of blocks, or of bytes of text.
pub struct Progress {
    doing: &'static str,
    unit: &'static str,
    /// 0 if it is not known.
    total: u64,
    done: u64,
    began: Instant,
    said: Instant,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// A display whose total is not known yet.
    pub fn new(doing: &'static str, unit: &'static str) -> Progress {
        let now = Instant::now();
        Progress { doing, unit, total: 0, done: 0, began: now, said: now, bar: None }
    }

    /// Sets the total.
    pub fn expect(&mut self, total: u64) {
        self.total = total;
    }

    /// Adds to the number done.
    pub fn add(&mut self, count: u64) {
        self.done += count;
        let terminal = std::io::stderr().is_terminal();
        let every = if terminal { BAR_EVERY } else { LINE_EVERY };
        if self.began.elapsed() < QUIET || self.said.elapsed() < every {
            return;
        }
        self.said = Instant::now();
        let text = self.text(self.began.elapsed());
        if !terminal {
            say(format_args!("{}: {text}", self.doing));
            return;
        }
        let known = self.total > 0;
        let bar = self.bar.get_or_insert_with(|| {
            let style = if known { "{prefix} {bar:30} {msg}" } else { "{prefix} {msg}" };
            let style = ProgressStyle::with_template(style).expect("the template is well formed");
            ProgressBar::new(0).with_style(style).with_prefix(self.doing).with_position(self.done)
        });
        // The bar itself would count from its first display on.
        bar.set_message(text);
        bar.set_length(self.total.max(self.done));
        bar.set_position(self.done);
    }

    /// Removes the bar.
    pub fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    /// How many are done, the rate so far, and the time left.
    fn text(&self, elapsed: Duration) -> String {
        let Progress { unit, done, .. } = *self;
        let rate = (done as f64 / elapsed.as_secs_f64().max(0.001)) as u64;
        if self.total == 0 {
            return format!("{done} {unit}, {rate}/s");
        }
        let total = self.total.max(done);
        let left = (total - done).checked_div(rate).filter(|left| *left > 0);
        let left = left.map_or(String::new(), |seconds| {
            format!(", {} left", HumanDuration(Duration::from_secs(seconds)))
        });
        format!("{done} of {total} {unit}, {rate}/s{left}")
    }
}

#[cfg(test)]
mod tests {
    use super::Progress;
    use std::time::Duration;

    #[test]
    fn the_pace_is_that_from_the_beginning_on() {
        let mut progress = Progress::new("check", "blocks");
        let text = |progress: &Progress| progress.text(Duration::from_secs(1000));
        progress.done = 1000;
        assert_eq!(text(&progress), "1000 blocks, 1/s");
        progress.expect(3000);
        assert_eq!(text(&progress), "1000 of 3000 blocks, 1/s, 33 minutes left");
        progress.done = 3000;
        assert_eq!(text(&progress), "3000 of 3000 blocks, 3/s");
        progress.done = 4000;
        assert_eq!(text(&progress), "4000 of 4000 blocks, 4/s");
    }
}
