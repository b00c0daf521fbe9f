//! Rows: what a benchmark tells. Medians with their spread, a baseline of the same run, and a
//! verdict about the machine.
//!
//! Invariant: a row with a baseline has as many samples as the baseline, taken in turns; the
//! ratio is the median of the ratios within each round, so that a slow minute of the machine
//! falls on both sides.

use std::fmt::Write;

use serde_json::{Map, Value, json};

/// A baseline that varies by more than this (largest minus smallest, over the median) says that
/// the machine was too noisy to tell.
pub const NOISE_MAX: f64 = 0.10;

/// The values of one subject, one per round.
#[derive(Clone, Debug, Default)]
pub struct Samples(pub Vec<f64>);

impl Samples {
    /// The middle value (the mean of the middle two).
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
        (sorted[last / 2] + sorted[last.div_ceil(2)]) / 2.0
    }

    /// The smallest value.
    pub fn min(&self) -> f64 {
        self.0.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// The largest value.
    pub fn max(&self) -> f64 {
        self.0.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    }

    /// Largest minus smallest, over the median.
    pub fn spread(&self) -> f64 {
        (self.max() - self.min()) / self.median().abs().max(f64::MIN_POSITIVE)
    }

    /// Combines two series round by round.
    pub fn zip(&self, other: &Samples, with: impl Fn(f64, f64) -> f64) -> Samples {
        Samples(self.0.iter().zip(&other.0).map(|(a, b)| with(*a, *b)).collect())
    }
}

/// One figure.
#[derive(Clone, Debug)]
pub struct Row {
    name: &'static str,
    parameters: Vec<(&'static str, Value)>,
    value: Samples,
    unit: &'static str,
    baseline: Option<Samples>,
}

impl Row {
    /// A figure of the benchmark `name`.
    pub fn new(name: &'static str, value: Samples, unit: &'static str) -> Row {
        Row { name, parameters: Vec::new(), value, unit, baseline: None }
    }

    /// Says what was measured.
    #[must_use]
    pub fn with(mut self, parameter: &'static str, value: impl Into<Value>) -> Row {
        self.parameters.push((parameter, value.into()));
        self
    }

    /// Says beside what, in the same unit and the same rounds.
    #[must_use]
    pub fn against(mut self, baseline: &Samples) -> Row {
        debug_assert_eq!(baseline.0.len(), self.value.0.len());
        self.baseline = Some(baseline.clone());
        self
    }

    fn ratio(&self) -> Option<f64> {
        let baseline = self.baseline.as_ref()?;
        Some(self.value.zip(baseline, |value, base| value / base).median())
    }

    /// True if the baseline can tell about the machine: one value does not vary.
    fn is_judged(&self) -> bool {
        self.baseline.as_ref().is_some_and(|baseline| baseline.0.len() > 1)
    }

    fn is_noisy(&self) -> bool {
        self.baseline.as_ref().is_some_and(|baseline| baseline.spread() > NOISE_MAX)
    }

    fn to_json(&self) -> Value {
        let parameters: Map<String, Value> =
            self.parameters.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
        json!({
            "name": self.name,
            "parameters": parameters,
            "value": self.value.median(),
            "min": self.value.min(),
            "max": self.value.max(),
            "unit": self.unit,
            "runs": self.value.0.len(),
            "baseline": self.baseline.as_ref().map(Samples::median),
            "baseline_min": self.baseline.as_ref().map(Samples::min),
            "baseline_max": self.baseline.as_ref().map(Samples::max),
            "ratio": self.ratio(),
            "noisy": self.is_noisy(),
        })
    }

    /// The columns of the table.
    fn cells(&self) -> [String; 6] {
        let words: Vec<String> =
            self.parameters.iter().map(|(key, value)| format!("{key}={}", plain(value))).collect();
        let range = format!("({} .. {})", figure(self.value.min()), figure(self.value.max()));
        let baseline = self.baseline.as_ref().map_or(String::new(), |baseline| {
            let (low, high) = (figure(baseline.min()), figure(baseline.max()));
            format!("{} ({low} .. {high})", figure(baseline.median()))
        });
        let noise = if self.is_noisy() { " ?" } else { "" };
        let ratio = self.ratio().map_or(String::new(), |ratio| format!("{ratio:.3}{noise}"));
        let value = figure(self.value.median());
        [words.join(" "), value, range, self.unit.to_owned(), baseline, ratio]
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Four significant digits.
fn figure(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 1000.0 => 0,
        size if size >= 100.0 => 1,
        size if size >= 10.0 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

/// What a benchmark found.
#[derive(Debug, Default)]
pub struct Report {
    rows: Vec<Row>,
    notes: Vec<String>,
}

impl Report {
    /// Adds a row.
    pub fn push(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Adds a line for people: what was left out, and why.
    pub fn note(&mut self, line: impl Into<String>) {
        self.notes.push(line.into());
    }

    /// Adds another report to the end.
    pub fn extend(&mut self, other: Report) {
        self.rows.extend(other.rows);
        self.notes.extend(other.notes);
    }

    /// An object per row and line. Notes go to the log.
    pub fn json(&self) -> String {
        self.notes.iter().for_each(|note| tracing::warn!("bench: {note}"));
        self.rows.iter().map(|row| format!("{}\n", row.to_json())).collect()
    }

    /// A table for people, then the notes and the verdict about the machine.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let mut rows = &self.rows[..];
        while let Some(first) = rows.first() {
            let len = rows.iter().take_while(|row| row.name == first.name).count();
            table(&mut out, &rows[..len]);
            rows = &rows[len..];
        }
        for note in &self.notes {
            let _ = writeln!(out, "note: {note}");
        }
        let _ = writeln!(out, "{}", self.verdict());
        out
    }

    fn verdict(&self) -> String {
        let judged = self.rows.iter().filter(|row| row.is_judged()).count();
        let noisy = self.rows.iter().filter(|row| row.is_noisy()).count();
        let limit = NOISE_MAX * 100.0;
        if judged == 0 {
            return "machine: not judged (no row has a baseline of two runs or more)".to_owned();
        }
        match noisy {
            0 => format!("machine: quiet (no baseline varied by more than {limit:.0} %)"),
            _ => format!(
                "machine: too noisy to tell in {noisy} of {judged} rows, marked '?' (the \
                 baseline varied by more than {limit:.0} %)"
            ),
        }
    }
}

fn table(out: &mut String, rows: &[Row]) {
    let head = [rows[0].name, "median", "(min .. max)", "unit", "baseline", "ratio"];
    let mut lines = vec![head.map(str::to_owned)];
    lines.extend(rows.iter().map(Row::cells));
    let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
    let widths: [usize; 6] = std::array::from_fn(width);
    for [words, value, range, unit, baseline, ratio] in &lines {
        let [a, b, c, d, e, _] = widths;
        let line =
            format!("{words:<a$}  {value:>b$}  {range:<c$}  {unit:<d$}  {baseline:<e$}  {ratio}");
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::{Report, Row, Samples};

    fn samples(values: &[f64]) -> Samples {
        Samples(values.to_vec())
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        assert_eq!(samples(&[4.0, 1.0, 2.0, 3.0]).median(), 2.5);
        assert_eq!(samples(&[9.0, 1.0, 2.0]).median(), 2.0);
    }

    #[test]
    fn a_ratio_is_taken_within_each_round() {
        // The second round was slow on both sides: the ratio does not see it.
        let row = Row::new("x", samples(&[2.0, 20.0, 2.0]), "us")
            .with("block", 512)
            .against(&samples(&[1.0, 10.0, 1.0]));
        let json = row.to_json();
        assert_eq!(json["ratio"], 2.0);
        assert_eq!(json["parameters"]["block"], 512);
        assert_eq!(json["noisy"], true);
    }

    #[test]
    fn the_table_says_when_it_cannot_tell() {
        let mut report = Report::default();
        report.push(Row::new("x", samples(&[1.0, 1.0]), "us").against(&samples(&[1.0, 1.05])));
        assert!(report.text().contains("machine: quiet"), "{}", report.text());
        report.push(Row::new("x", samples(&[1.0, 1.0]), "us").against(&samples(&[1.0, 1.2])));
        assert!(report.text().contains("too noisy to tell in 1 of 2"), "{}", report.text());
        assert_eq!(report.json().lines().count(), 2);
    }

    #[test]
    fn a_machine_is_not_called_quiet_without_two_runs_of_a_baseline() {
        let mut report = Report::default();
        for _ in 0..2 {
            assert!(report.text().contains("machine: not judged"), "{}", report.text());
            report.push(Row::new("x", samples(&[1.0, 9.0]), "us"));
            report.push(Row::new("x", samples(&[1.0]), "us").against(&samples(&[1.0])));
        }
        report.push(Row::new("x", samples(&[1.0, 1.0]), "us").against(&samples(&[1.0, 1.0])));
        assert!(report.text().contains("machine: quiet"), "{}", report.text());
    }
}
