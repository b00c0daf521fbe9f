//! Pages: one experiment as one HTML file, its plots as SVG, and its data as CSV and JSON lines.
//!
//! - [`Page`]: title, introduction, facts and sections. [`Table`], [`Chart`]: what sections hold.
//! - `ticks`: round numbers on axes. `exact`: logarithms and powers of ten that are the same
//!   everywhere. `reduce`: long lines in few points. `text`: escaping, and the space of a label.
//!
//! Promises, which the tests hold:
//! - P1. The same page is the same bytes on every machine: numbers are printed with fixed digits,
//!   arithmetic is + - * / and sqrt of IEEE 754 only, and nothing is ordered by a hash.
//! - P2. A page is one file: no script, no font, no address of another file. Only its plots and
//!   data also stand beside it ([`Page::files`]).
//! - P3. A page is well-formed XML as well as HTML, with any texts in it.
//! - P4. A line of a plot differs from the others in colour, dash and marker. Each plot has a text
//!   alternative, each table a caption and headers with a scope. Backgrounds are white.
//! - P5. Labels do not overlap: a text longer than its limit ([`TITLE_CHARS_MAX`],
//!   [`NAME_CHARS_MAX`]) ends in an ellipsis, and one that may be wider than its space is squeezed
//!   into it.

mod chart;
mod draw;
mod exact;
mod reduce;
mod style;
mod table;
#[cfg(test)]
mod testing;
mod text;
mod ticks;

use serde_json::{Value, json};

pub use chart::{Axis, Chart, Line, Point, Scale};
pub use reduce::POINTS_MAX;
pub use style::LINES_MAX;
pub use table::Table;
pub use text::{NAME_CHARS_MAX, TITLE_CHARS_MAX};
pub use ticks::with_unit;

use text::escape;

/// A part of a section.
#[derive(Clone, Debug)]
pub enum Part {
    /// A paragraph.
    Text(String),
    /// Rows.
    Table(Table),
    /// A plot.
    Chart(Chart),
}

/// A heading and what follows it.
#[derive(Clone, Debug, Default)]
pub struct Section {
    /// The heading.
    pub title: String,
    /// In order.
    pub parts: Vec<Part>,
}

/// One experiment, for readers.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// The first line.
    pub title: String,
    /// What was asked, and what was found.
    pub introduction: String,
    /// Names and values that the page depends on: seeds, scale, versions of models.
    pub facts: Vec<(String, String)>,
    /// In order.
    pub sections: Vec<Section>,
}

const CSS: &str = "\
body { max-width: 50rem; margin: 2rem auto; padding: 0 1rem; color: #000; background: #fff;
  font: 1rem/1.5 sans-serif; }
h1, h2 { line-height: 1.2; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: bold; padding-bottom: 0.3rem; }
th, td { padding: 0.2rem 0.8rem 0.2rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid #999; }
td { overflow-wrap: anywhere; }
.number { text-align: right; white-space: nowrap; }
figure { margin: 1.5rem 0; }
figcaption { font-size: 0.9rem; }
svg { width: 100%; height: auto; }
@media print {
  body { max-width: none; margin: 0; padding: 0; font-size: 10pt; }
  h2 { break-after: avoid; }
  figure, tr { break-inside: avoid; }
  svg { width: 17cm; }
}
";

impl Page {
    /// The page as one HTML file.
    pub fn html(&self) -> String {
        let title = escape(&self.title);
        let mut out = String::from("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n");
        out += "<meta charset=\"utf-8\"/>\n";
        out += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n";
        out += &format!("<title>{title}</title>\n<style>\n{CSS}</style>\n</head>\n<body>\n");
        out += &format!("<h1>{title}</h1>\n");
        if !self.introduction.is_empty() {
            out += &paragraph(&self.introduction);
        }
        if !self.facts.is_empty() {
            out += &self.facts_table();
        }
        let mut charts = 0;
        for section in &self.sections {
            out += &format!("<section>\n<h2>{}</h2>\n", escape(&section.title));
            for part in &section.parts {
                out += &match part {
                    Part::Text(text) => paragraph(text),
                    Part::Table(table) => table.html(),
                    Part::Chart(chart) => {
                        charts += 1;
                        chart.figure(charts)
                    }
                };
            }
            out += "</section>\n";
        }
        out + "</body>\n</html>\n"
    }

    /// Its title, tables and texts, for a terminal.
    pub fn summary(&self) -> String {
        let mut out = format!("{}\n", self.title);
        for section in &self.sections {
            if section.parts.iter().any(|part| matches!(part, Part::Text(_))) {
                out += &format!("\n{}\n", section.title);
            }
            for part in &section.parts {
                match part {
                    Part::Table(table) => out += &format!("\n{}", table.text()),
                    Part::Text(text) => out += &format!("- {text}\n"),
                    Part::Chart(_) => {}
                }
            }
        }
        out
    }

    /// An object per fact, text, row and point, one a line. Each names its part.
    pub fn json(&self) -> String {
        let facts = self.facts.iter();
        let mut lines: Vec<Value> =
            facts.map(|(name, value)| json!({ "fact": name, "value": value })).collect();
        for part in self.parts() {
            match part {
                Part::Text(text) => lines.push(json!({ "text": text })),
                Part::Table(table) => lines.extend(table.to_json()),
                Part::Chart(chart) => lines.extend(chart.to_json()),
            }
        }
        lines.iter().map(|line| format!("{line}\n")).collect()
    }

    /// The page and what stands beside it, by file name: `STEM.html`, `STEM.json`, and for the
    /// n-th chart or table of the page, from 1, `STEM-chart-N.svg` and `.csv`, `STEM-table-N.csv`.
    pub fn files(&self, stem: &str) -> Vec<(String, String)> {
        let mut files =
            vec![(format!("{stem}.html"), self.html()), (format!("{stem}.json"), self.json())];
        let (mut charts, mut tables) = (0, 0);
        for part in self.parts() {
            match part {
                Part::Text(_) => {}
                Part::Table(table) => {
                    tables += 1;
                    files.push((format!("{stem}-table-{tables}.csv"), table.csv()));
                }
                Part::Chart(chart) => {
                    charts += 1;
                    files.push((format!("{stem}-chart-{charts}.svg"), chart.svg()));
                    files.push((format!("{stem}-chart-{charts}.csv"), chart.csv()));
                }
            }
        }
        files
    }

    fn parts(&self) -> impl Iterator<Item = &Part> {
        self.sections.iter().flat_map(|section| &section.parts)
    }

    fn facts_table(&self) -> String {
        let mut out = String::from("<table>\n<caption>What this page rests on</caption>\n");
        for (name, value) in &self.facts {
            let (name, value) = (escape(name), escape(value));
            out += &format!("<tr><th scope=\"row\">{name}</th><td>{value}</td></tr>\n");
        }
        out + "</table>\n"
    }
}

fn paragraph(text: &str) -> String {
    format!("<p>{}</p>\n", escape(text))
}

#[cfg(test)]
mod tests {
    use super::testing::elements;
    use super::{Axis, Chart, Line, POINTS_MAX, Page, Part, Section, Table};

    /// A page whose every text is `text`.
    fn page_of(text: &str) -> Page {
        let owned = || text.to_owned();
        let mut table = Table::new(text, &[text, text]);
        table.row(&[text, text]);
        let chart = Chart {
            title: owned(),
            description: owned(),
            x: Axis::linear(text, "x"),
            y: Axis::logarithmic(text, "s"),
            spread: owned(),
            lines: vec![Line::of_runs(text, &[vec![(0.0, 1.0)], vec![(0.0, 2.0)]])],
        };
        let parts = vec![
            Part::Text(owned()),
            Part::Table(table),
            Part::Chart(chart.clone()),
            Part::Chart(chart),
        ];
        Page {
            title: owned(),
            introduction: owned(),
            facts: vec![(owned(), owned())],
            sections: vec![Section { title: owned(), parts }],
        }
    }

    #[test]
    fn page_is_well_formed_and_of_the_same_elements_whatever_the_texts_hold() {
        let plain = elements(&page_of("a plain text").html());
        for text in ["</title></svg><script>", "&", "\"' onload=\"x", "]]>", "\u{0}\u{7}\n<!--"] {
            assert_eq!(elements(&page_of(text).html()), plain, "{text}");
        }
        assert!(!plain.iter().any(|name| name == "script" || name == "link" || name == "img"));
    }

    #[test]
    fn page_names_no_other_file_and_each_id_once() {
        let html = page_of("a").html();
        for word in ["src=", "href=", "url(", "@import", "<script"] {
            assert!(!html.contains(word), "{word}");
        }
        let places = html.matches("http").count();
        assert_eq!(places, html.matches("xmlns=\"http://www.w3.org/2000/svg\"").count());
        let ids: Vec<&str> = html.split(" id=\"").skip(1).map(|rest| &rest[..9]).collect();
        assert_eq!(ids.len(), 4);
        assert_eq!(html.matches("id=\"chart-1-title\"").count(), 1);
        assert_eq!(html.matches("id=\"chart-2-title\"").count(), 1);
    }

    #[test]
    fn charts_without_points_values_or_extent_are_drawn() {
        let (nan, inf) = (f64::NAN, f64::INFINITY);
        let lines = [
            vec![],
            vec![(0.0, 0.0)],
            vec![(5.0, nan)],
            vec![(1.0, inf), (2.0, -inf)],
            vec![(1.0, -5.0), (2.0, -5.0)],
            vec![(1e-12, 1e-300), (1e12, 1e300)],
            vec![(0.0, 1e18), (1.0, 1e18 + 4096.0)],
        ];
        for (x, y) in [("linear", "linear"), ("time", "log"), ("log", "log"), ("log", "linear")] {
            for values in &lines {
                let axis = |kind| match kind {
                    "linear" => Axis::linear("a", "B"),
                    "log" => Axis::logarithmic("a", "B"),
                    _ => Axis::time(),
                };
                let chart = Chart {
                    x: axis(x),
                    y: axis(y),
                    lines: vec![Line::new("line", values.iter().copied())],
                    ..Chart::default()
                };
                let svg = chart.svg();
                elements(&svg);
                assert!(!svg.contains("NaN") && !svg.contains("inf"), "{x} {y} {values:?}: {svg}");
            }
        }
    }

    #[test]
    fn line_is_drawn_in_pieces_between_places_without_a_value() {
        let strokes = |values: &[f64], y| {
            let line = Line::new("line", (0..).map(f64::from).zip(values.iter().copied()));
            let svg = Chart { y, lines: vec![line], ..Chart::default() }.svg();
            // One more is in the legend.
            svg.matches("stroke-width=\"1.6\"").count() - 1
        };
        let (linear, log) = (Axis::linear("a", ""), Axis::logarithmic("a", ""));
        assert_eq!(strokes(&[1.0, 2.0, 3.0, 4.0], linear.clone()), 1);
        assert_eq!(strokes(&[1.0, f64::NAN, 3.0, f64::NAN, f64::NAN, 4.0], linear.clone()), 3);
        assert_eq!(strokes(&[1.0, 0.0, -1.0, 4.0], linear), 1);
        assert_eq!(strokes(&[1.0, 0.0, -1.0, 4.0], log), 2);
    }

    #[test]
    fn plot_of_a_long_line_is_short_and_its_data_is_whole() {
        let values = (0..100_000).map(|x| (f64::from(x), f64::from(x % 1000)));
        let line = Line::new("line", values);
        let chart = Chart { lines: vec![line], ..Chart::default() };
        assert!(chart.svg().len() < 20 * POINTS_MAX, "{}", chart.svg().len());
        assert_eq!(chart.csv().lines().count(), 100_001);
        assert_eq!(chart.to_json().len(), 100_000);
    }
}
