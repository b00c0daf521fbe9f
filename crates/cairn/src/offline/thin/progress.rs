//! How far a long look at metadata is: a bar on a terminal, a line every few seconds elsewhere.
//! Both on stderr, and neither for what is over at once.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressStyle};

/// What takes less is not worth showing.
const QUIET: Duration = Duration::from_secs(1);
const BAR_EVERY: Duration = Duration::from_millis(100);
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Blocks being gone through.
pub struct Progress {
    doing: &'static str,
    total: u64,
    done: u64,
    began: Instant,
    said: Instant,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Begins with nothing known.
    pub fn new(doing: &'static str) -> Progress {
        let now = Instant::now();
        Progress { doing, total: 0, done: 0, began: now, said: now, bar: None }
    }

    /// Says how many blocks there will be.
    pub fn expect(&mut self, blocks: u64) {
        self.total = blocks;
    }

    /// More blocks are done.
    pub fn add(&mut self, blocks: u64) {
        self.done += blocks;
        let terminal = std::io::stderr().is_terminal();
        let every = if terminal { BAR_EVERY } else { LINE_EVERY };
        if self.began.elapsed() < QUIET || self.said.elapsed() < every {
            return;
        }
        self.said = Instant::now();
        let (total, pace) = (self.total.max(self.done), self.pace(self.began.elapsed()));
        if !terminal {
            eprintln!("cairn: {}: {} of {total} blocks, {pace}", self.doing, self.done);
            return;
        }
        let bar = self.bar.get_or_insert_with(|| {
            let style = "{prefix} {bar:30} {pos}/{len} blocks, {msg}";
            let style = ProgressStyle::with_template(style).expect("the template is well formed");
            ProgressBar::new(total)
                .with_style(style)
                .with_prefix(self.doing)
                .with_position(self.done)
        });
        // The bar itself would count from its first display on.
        bar.set_message(pace);
        bar.set_length(total);
        bar.set_position(self.done);
    }

    /// Takes the bar away.
    pub fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    /// The rate so far, and the time left.
    fn pace(&self, elapsed: Duration) -> String {
        let rate = (self.done as f64 / elapsed.as_secs_f64().max(0.001)) as u64;
        let left = self.total.saturating_sub(self.done).checked_div(rate).filter(|left| *left > 0);
        let left = left.map_or(String::new(), |seconds| {
            format!(", {} left", HumanDuration(Duration::from_secs(seconds)))
        });
        format!("{rate}/s{left}")
    }
}

#[cfg(test)]
mod tests {
    use super::Progress;
    use std::time::Duration;

    #[test]
    fn the_pace_is_that_from_the_beginning_on() {
        let mut progress = Progress::new("check");
        progress.expect(3000);
        progress.done = 1000;
        assert_eq!(progress.pace(Duration::from_secs(1000)), "1/s, 33 minutes left");
        progress.done = 3000;
        assert_eq!(progress.pace(Duration::from_secs(1000)), "3/s");
    }
}
