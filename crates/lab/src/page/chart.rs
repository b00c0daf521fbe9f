//! [`Chart`]: lines over time or over another number, with the band of their spread.
//!
//! This file has the data, its text alternative, and its CSV and JSON; `draw` makes the plot.

use serde_json::{Value, json};

use super::draw;
use super::style::LINES_MAX;
use super::text::{csv_line, escape};
use super::ticks::{shown, with_unit};

/// How positions on an axis follow from values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// In proportion. As an axis of y it includes zero.
    #[default]
    Linear,
    /// By the logarithm. A value of zero or less has no place: the line has a gap there.
    Logarithmic,
    /// In proportion; the values are seconds, shown as seconds, minutes, hours or days.
    Time,
}

/// What an axis shows.
#[derive(Clone, Debug, Default)]
pub struct Axis {
    /// The quantity.
    pub name: String,
    /// Its unit without a prefix. `s`, `B` and `B/s` get one as the values need it.
    pub unit: &'static str,
    /// How values are placed.
    pub scale: Scale,
}

impl Axis {
    /// An axis in proportion.
    pub fn linear(name: &str, unit: &'static str) -> Axis {
        Axis { name: name.to_owned(), unit, scale: Scale::Linear }
    }

    /// An axis by the logarithm.
    pub fn logarithmic(name: &str, unit: &'static str) -> Axis {
        Axis { name: name.to_owned(), unit, scale: Scale::Logarithmic }
    }

    /// An axis of virtual time, in seconds.
    pub fn time() -> Axis {
        Axis { name: "time".to_owned(), unit: "s", scale: Scale::Time }
    }

    /// A value of the axis with its unit.
    pub fn print(&self, value: f64) -> String {
        let shown = shown(value.abs(), self.unit, self.scale == Scale::Time);
        if self.scale == Scale::Time && shown.unit != "s" {
            return format!("{:.1} {}", value / shown.by, shown.unit);
        }
        with_unit(value, self.unit)
    }
}

/// A value of a line and its spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Where.
    pub x: f64,
    /// The value; NaN if there is none.
    pub y: f64,
    /// The least of the runs.
    pub low: f64,
    /// The greatest of the runs.
    pub high: f64,
}

impl Point {
    /// A value without spread.
    pub fn new(x: f64, y: f64) -> Point {
        Point { x, y, low: y, high: y }
    }

    /// The same value with the least and the greatest of the runs.
    #[must_use]
    pub fn with_spread(self, low: f64, high: f64) -> Point {
        Point { low, high, ..self }
    }
}

/// One line of a chart.
#[derive(Clone, Debug, Default)]
pub struct Line {
    /// Stands in the legend.
    pub name: String,
    /// In order of x.
    pub points: Vec<Point>,
}

impl Line {
    /// A line of values without spread.
    pub fn new(name: &str, values: impl IntoIterator<Item = (f64, f64)>) -> Line {
        let points = values.into_iter().map(|(x, y)| Point::new(x, y)).collect();
        Line { name: name.to_owned(), points }
    }

    /// The median of several runs that have their values at the same places, with the least and the
    /// greatest as spread. It ends with the shortest run. Of an even number of runs the median is
    /// the lower of the two in the middle: a value that was seen. A place where a run has no value
    /// (NaN) is judged by the other runs.
    ///
    /// # Panics
    /// If two runs differ in a place.
    pub fn of_runs(name: &str, runs: &[Vec<(f64, f64)>]) -> Line {
        let count = runs.iter().map(Vec::len).min().unwrap_or(0);
        let point = |i: usize| {
            let x = runs[0][i].0;
            assert!(runs.iter().all(|run| run[i].0 == x), "runs are measured at the same places");
            let mut values: Vec<f64> =
                runs.iter().map(|run| run[i].1).filter(|value| value.is_finite()).collect();
            values.sort_unstable_by(f64::total_cmp);
            match values.as_slice() {
                [] => Point::new(x, f64::NAN),
                [low, ..] => {
                    let middle = values[(values.len() - 1) / 2];
                    Point::new(x, middle).with_spread(*low, values[values.len() - 1])
                }
            }
        };
        Line { name: name.to_owned(), points: (0..count).map(point).collect() }
    }

    /// True if some point has a spread.
    pub(super) fn has_spread(&self) -> bool {
        self.points.iter().any(|point| point.low < point.high)
    }
}

/// A plot.
#[derive(Clone, Debug, Default)]
pub struct Chart {
    /// Stands above it.
    pub title: String,
    /// Stands below it, and tells a reader who cannot see it what it is about.
    pub description: String,
    /// The axis to the right.
    pub x: Axis,
    /// The axis upward.
    pub y: Axis,
    /// What the bands are, as in "least to greatest of 5 seeds".
    pub spread: String,
    /// At most [`LINES_MAX`].
    pub lines: Vec<Line>,
}

impl Chart {
    /// The plot as a file of its own.
    ///
    /// # Panics
    /// If it has more than [`LINES_MAX`] lines.
    pub fn svg(&self) -> String {
        self.draw("chart")
    }

    /// The plot in a page, where it is the chart of this number.
    pub(super) fn figure(&self, number: usize) -> String {
        let svg = self.draw(&format!("chart-{number}"));
        let caption = if self.description.is_empty() {
            String::new()
        } else {
            format!("<figcaption>{}</figcaption>\n", escape(&self.description))
        };
        format!("<figure>\n{svg}{caption}</figure>\n")
    }

    fn draw(&self, id: &str) -> String {
        assert!(self.lines.len() <= LINES_MAX, "a chart has at most {LINES_MAX} lines");
        draw::svg(self, id)
    }

    /// What the plot shows, in words.
    pub(super) fn alternative(&self) -> String {
        let mut out = self.description.clone();
        for line in &self.lines {
            if !out.is_empty() {
                out.push(' ');
            }
            out += &self.line_alternative(line);
        }
        out
    }

    fn line_alternative(&self, line: &Line) -> String {
        let points = || line.points.iter().filter(|point| point.y.is_finite());
        let (Some(first), Some(last)) = (points().next(), points().next_back()) else {
            return format!("{}: no values.", line.name);
        };
        let least = points().map(|point| point.y).fold(f64::INFINITY, f64::min);
        let greatest = points().map(|point| point.y).fold(f64::NEG_INFINITY, f64::max);
        let (x, y) = (|value| self.x.print(value), |value| self.y.print(value));
        format!(
            "{}: {} at {}, {} at {}; least {}, greatest {}.",
            line.name,
            y(first.y),
            x(first.x),
            y(last.y),
            x(last.x),
            y(least),
            y(greatest)
        )
    }

    /// All points of all lines, with a line of headers. A missing value is an empty field.
    pub fn csv(&self) -> String {
        let header = |axis: &Axis| match axis.unit {
            "" => axis.name.clone(),
            unit => format!("{} ({unit})", axis.name),
        };
        let (x, y) = (header(&self.x), header(&self.y));
        let mut out = csv_line(["line", &x, &y, "low", "high"]);
        let number = |value: f64| if value.is_finite() { value.to_string() } else { String::new() };
        for line in &self.lines {
            for point in &line.points {
                let fields = [point.x, point.y, point.low, point.high].map(number);
                out += &csv_line(std::iter::once(&line.name).chain(&fields));
            }
        }
        out
    }

    /// An object per point. A missing value is null.
    pub fn to_json(&self) -> Vec<Value> {
        let points = self.lines.iter().flat_map(|line| {
            let named = |point| (&line.name, point);
            line.points.iter().map(named)
        });
        let object = |(line, point): (&String, &Point)| {
            json!({
                "chart": self.title,
                "line": line,
                "x": point.x,
                "x_unit": self.x.unit,
                "y": point.y,
                "y_unit": self.y.unit,
                "low": point.low,
                "high": point.high,
            })
        };
        points.map(object).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Axis, Chart, Line, Point};

    fn chart() -> Chart {
        let points = vec![Point::new(0.0, 2e9).with_spread(1e9, 3e9), Point::new(7300.0, f64::NAN)];
        Chart {
            title: "Drain".to_owned(),
            description: "Dirty data.".to_owned(),
            x: Axis::time(),
            y: Axis::linear("dirty", "B"),
            lines: vec![
                Line { name: "a, b".to_owned(), points },
                Line::new("c", [(0.0, 5.0), (7300.0, 0.1)]),
            ],
            ..Chart::default()
        }
    }

    #[test]
    fn data_of_a_chart_is_all_its_points() {
        let csv = "line,time (s),dirty (B),low,high\n\"a, b\",0,2000000000,1000000000,3000000000\n\
                   \"a, b\",7300,,,\nc,0,5,5,5\nc,7300,0.1,0.1,0.1\n";
        assert_eq!(chart().csv(), csv);
        let json = chart().to_json();
        assert_eq!(json.len(), 4);
        assert_eq!((&json[0]["high"], &json[0]["x_unit"]), (&3e9.into(), &"s".into()));
        assert!(json[1]["y"].is_null());
    }

    #[test]
    fn alternative_tells_ends_and_extremes_of_each_line() {
        let text = "Dirty data. a, b: 2.00 GB at 0.00 s, 2.00 GB at 0.00 s; least 2.00 GB, \
                    greatest 2.00 GB. c: 5.00 B at 0.00 s, 0.10 B at 2.0 h; least 0.10 B, \
                    greatest 5.00 B.";
        assert_eq!(chart().alternative(), text);
        let empty = Chart { lines: vec![Line::new("none", [])], ..Chart::default() };
        assert_eq!(empty.alternative(), "none: no values.");
    }

    #[test]
    fn runs_become_their_median_with_the_extremes_as_spread() {
        let nan = f64::NAN;
        let runs = [
            vec![(0.0, 3.0), (1.0, nan), (2.0, nan), (3.0, 1.0)],
            vec![(0.0, 1.0), (1.0, 4.0), (2.0, nan)],
            vec![(0.0, 2.0), (1.0, 8.0), (2.0, nan)],
        ];
        let line = Line::of_runs("runs", &runs);
        assert_eq!(line.points.len(), 3);
        assert_eq!(line.points[0], Point::new(0.0, 2.0).with_spread(1.0, 3.0));
        assert_eq!(line.points[1], Point::new(1.0, 4.0).with_spread(4.0, 8.0));
        assert!(line.points[2].y.is_nan());
    }
}
