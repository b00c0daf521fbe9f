//! Progress of a drain on stderr: a bar on a terminal, else a line every few seconds.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use cairn_outcome::stderr::say;
use indicatif::{HumanBytes, HumanDuration, ProgressBar, ProgressStyle};

const LINE_EVERY: Duration = Duration::from_secs(5);

/// What is left to copy to the origin, from a cache or from a snapshot that is merged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// In blocks of the cache, sectors, or chunks of the snapshot.
    pub blocks: u64,
    /// In bytes.
    pub bytes: u64,
}

/// The display of one drain.
pub struct Progress {
    bar: Option<ProgressBar>,
    unit: &'static str,
    total: Left,
    began: Instant,
    said: Instant,
}

impl Progress {
    /// A drain of a cache, counted in blocks.
    pub fn begin(total: Left) -> Progress {
        Progress::of(total, "blocks", "to write back")
    }

    /// A drain of a cache, counted in sectors.
    pub fn begin_drain(total: Left) -> Progress {
        Progress::of(total, "sectors", "to write back")
    }

    /// A merge, counted in chunks.
    pub fn begin_merge(total: Left) -> Progress {
        Progress::of(total, "chunks", "to merge")
    }

    fn of(total: Left, unit: &'static str, task: &str) -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = "{bar:30} {bytes}/{total_bytes}  {bytes_per_sec}  {eta} left";
            let style = ProgressStyle::with_template(style).expect("the template is well formed");
            ProgressBar::new(total.bytes).with_style(style)
        });
        let now = Instant::now();
        if bar.is_none() {
            say(format_args!("{} {unit} ({}) {task}", total.blocks, HumanBytes(total.bytes)));
        }
        Progress { bar, unit, total, began: now, said: now }
    }

    /// Shows how much is left now.
    pub fn show(&mut self, left: Left) {
        // Recovery or new writes may leave more than at first.
        let done = self.total.bytes.saturating_sub(left.bytes);
        if let Some(bar) = &self.bar {
            bar.set_position(done);
        } else if self.said.elapsed() >= LINE_EVERY {
            self.said = Instant::now();
            say(line(self.unit, left, done, self.began.elapsed()));
        }
    }

    /// Ends the display and returns the result of the drain.
    pub fn finish<T>(&mut self, left: Left, end: T) -> T {
        let done = self.total.bytes.saturating_sub(left.bytes);
        match &self.bar {
            Some(bar) => {
                bar.set_position(done);
                bar.abandon();
            }
            None => say(line(self.unit, left, done, self.began.elapsed())),
        }
        end
    }
}

/// A size in the largest unit that leaves a number of at least 1: `1.50 GiB`.
#[must_use]
pub fn size_text(bytes: u64) -> String {
    HumanBytes(bytes).to_string()
}

/// Blocks or chunks left, rate, time left.
fn line(unit: &str, left: Left, done: u64, elapsed: Duration) -> String {
    let rate = (done as f64 / elapsed.as_secs_f64().max(0.001)) as u64;
    let rest = match left.bytes.checked_div(rate) {
        Some(seconds) if left.bytes > 0 => {
            format!(", {} left", HumanDuration(Duration::from_secs(seconds)))
        }
        _ => String::new(),
    };
    let (blocks, size) = (left.blocks, HumanBytes(left.bytes));
    format!("{blocks} {unit} ({size}) left, {}/s{rest}", HumanBytes(rate))
}

#[cfg(test)]
mod tests {
    use super::{Left, line};
    use std::time::Duration;

    #[test]
    fn a_line_tells_blocks_rate_and_time_left() {
        let left = Left { blocks: 256, bytes: 1 << 20 };
        assert_eq!(
            line("blocks", left, 1 << 20, Duration::from_secs(2)),
            "256 blocks (1.00 MiB) left, 512.00 KiB/s, 2 seconds left"
        );
        assert_eq!(
            line("chunks", Left::default(), 0, Duration::ZERO),
            "0 chunks (0 B) left, 0 B/s"
        );
    }
}
