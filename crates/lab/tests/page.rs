//! A page with everything that a page can have, compared to the byte with the one kept here, and
//! texts that try to break it.
//!
//! After a change that is meant, look at the new page in a browser and keep it:
//! `CAIRN_KEEP_PAGE=1 cargo test -p cairn-lab --test page`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use cairn_lab::page::{
    Axis, Chart, LINES_MAX, Line, NAME_CHARS_MAX, Page, Part, Point, Section, TITLE_CHARS_MAX,
    Table,
};

fn lowercase(count: usize) -> String {
    ('a'..='z').cycle().take(count).collect()
}

/// Dirty data of three policies over a drain of seven hours, a value per second.
fn drain() -> Chart {
    let policy = |name: &str, seconds: f64, seed: u64| {
        let mut rng = fastrand::Rng::with_seed(seed);
        let points = (0..25_000).map(|second| {
            let left = (1.0 - f64::from(second) / seconds).max(0.1);
            let dirty = 900e9 * (left + rng.f64() * 0.004);
            let off = 20e9 * left + 3e9;
            Point::new(f64::from(second), dirty).with_spread(dirty - off, dirty + off)
        });
        Line { name: name.to_owned(), points: points.collect() }
    };
    Chart {
        title: "Dirty data while the cache drains".to_owned(),
        description: "The data of the cache that is newer than the backing device's.".to_owned(),
        x: Axis::time(),
        y: Axis::linear("dirty data", "B"),
        spread: "least to greatest of 5 seeds".to_owned(),
        lines: vec![
            policy("completion", 26_000.0, 1),
            policy("strict", 17_000.0, 2),
            policy("sweep", 11_000.0, 3),
        ],
    }
}

/// Latencies over five decades, with a time in which nothing was asked for.
fn latency() -> Chart {
    let percentile = |name: &str, times: f64| {
        let mut rng = fastrand::Rng::with_seed(7);
        let values = (0..120_u32).map(|second| {
            let seconds = 30e-6 * times * (1.0 + rng.f64()) * if second > 80 { 20.0 } else { 1.0 };
            let value = if (40..50).contains(&second) { f64::NAN } else { seconds };
            (f64::from(second), value)
        });
        Line::new(name, values)
    };
    Chart {
        title: "Latency of the client".to_owned(),
        x: Axis::time(),
        y: Axis::logarithmic("latency", "s"),
        lines: vec![percentile("p50", 1.0), percentile("p99", 40.0), percentile("p99.9", 500.0)],
        ..Chart::default()
    }
}

/// As many lines as can be, all names as long as can be and wide; few points.
fn crowded() -> Chart {
    let line = |i: usize| {
        let name = if i.is_multiple_of(2) { "W".repeat(99) } else { lowercase(NAME_CHARS_MAX) };
        let values = (1..6).map(|x| (f64::from(x), f64::from(x * x) * (i + 1) as f64 - 30.0));
        Line::new(&name, values)
    };
    let mut lines: Vec<Line> = (0..LINES_MAX).map(line).collect();
    lines[0].points[2] = Point::new(3.0, -21.0).with_spread(-30.0, 20.0);
    Chart {
        title: "W".repeat(TITLE_CHARS_MAX + 1),
        description: "Names at their limits.".to_owned(),
        x: Axis::linear(&"M".repeat(NAME_CHARS_MAX), "workers"),
        y: Axis::linear(&"W".repeat(NAME_CHARS_MAX), "IOPS"),
        spread: "@".repeat(NAME_CHARS_MAX),
        lines,
    }
}

/// Large numbers on both axes, that do not begin at zero.
fn numbers() -> Chart {
    Chart {
        title: "Operations over flush costs".to_owned(),
        x: Axis::logarithmic("cost of a flush", "s"),
        y: Axis::linear("operations", "IOPS"),
        lines: vec![Line::new(
            "dsync",
            [(1e-4, 1_234_567.0), (1e-3, 900_000.0), (1e-2, 87_000.0), (3e-2, 31_000.0)],
        )],
        ..Chart::default()
    }
}

fn page() -> Page {
    let mut table = Table::new("Time to drain", &["policy", "median", "of completion"]);
    table.row(&["completion", "6.50 h", "1.00"]);
    table.row(&["strict", "4.25 h", "1.53"]);
    table.row(&["sweep", "2.75 h", "2.36"]);
    let text = "Texts of a page are plain: <b>, &amp; and \"quotes\" stand as they are.";
    let first = vec![Part::Text(text.to_owned()), Part::Table(table), Part::Chart(drain())];
    let second = vec![Part::Chart(latency()), Part::Chart(crowded()), Part::Chart(numbers())];
    let fact = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    Page {
        title: "An example of a page".to_owned(),
        introduction: "No experiment: the figures are made up, to show and to test pages."
            .to_owned(),
        facts: vec![fact("seeds", "1, 2, 3, 4, 5"), fact("N", "8"), fact("drive models", "1")],
        sections: vec![
            Section { title: "Drain".to_owned(), parts: first },
            Section { title: "Other plots".to_owned(), parts: second },
        ],
    }
}

#[test]
fn page_is_the_one_kept_here_to_the_byte() {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/page");
    let files = page().files("example");
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    let expected = [
        "example.html",
        "example.json",
        "example-table-1.csv",
        "example-chart-1.svg",
        "example-chart-1.csv",
    ];
    assert_eq!(names[..5], expected);
    assert_eq!(names.len(), 11);
    for (name, text) in files.iter().filter(|(name, _)| name.ends_with(".html")) {
        if std::env::var_os("CAIRN_KEEP_PAGE").is_some() {
            std::fs::write(kept.join(name), text).unwrap();
        }
        let kept = std::fs::read_to_string(kept.join(name)).unwrap();
        let line = kept.lines().zip(text.lines()).position(|(kept, line)| kept != line);
        assert!(kept == *text, "{name} differs, first in line {:?}, from 0", line);
    }
}

#[test]
fn plot_in_a_page_and_the_plot_as_a_file_differ_in_ids_only() {
    let files = page().files("example");
    let text = |end: &str| &files.iter().find(|(name, _)| name.ends_with(end)).unwrap().1;
    let (html, svg) = (text(".html"), text("chart-2.svg"));
    assert!(html.contains(&svg.replace("\"chart-", "\"chart-2-").replace(" chart-", " chart-2-")));
}
