//! The plot of a chart as SVG.
//!
//! From above: title, name of the y axis, the field with its grid, labels of x, name of the x
//! axis, legend. Every text has a space of its own, which no other reaches: the constants below
//! are that division, in pixels.

use super::chart::{Axis, Chart, Line, Point, Scale};
use super::exact::{floor_log10, log10, pow10};
use super::reduce::reduce;
use super::style::{STYLES, Style};
use super::text::{Label, NAME_CHARS_MAX, TITLE_CHARS_MAX, escape, label, shorten, width};
use super::ticks::{Tick, linear, logarithmic, shown, step, takes_prefix};

const WIDTH: u64 = 720;
/// The field's left end; labels of y end [`GAP`] before it.
const LEFT: u64 = 70;
const TOP: u64 = 54;
const FIELD_WIDTH: u64 = 610;
const FIELD_HEIGHT: u64 = 280;
const GAP: u64 = 6;
const TITLE_SIZE: u64 = 15;
const TEXT_SIZE: u64 = 12;
/// Of the legend.
const ROW: u64 = 19;
const SAMPLE: u64 = 44;
const LEGEND_WIDTH: u64 = WIDTH - 2 * GAP;
/// A legend has as many columns as its names fit into, and no more than this.
const LEGEND_COLUMNS_MAX: u64 = 3;
/// Markers of a line with many points are this far apart.
const MARKER_PIXELS: f64 = 110.0;
/// A line with at most so many points has a marker at each.
const MARKED_POINTS_MAX: usize = 16;
const X_TICKS_MAX: usize = 10;
const Y_TICKS_MAX: usize = 6;

/// An axis with its range and marks.
struct Ruler {
    low: f64,
    high: f64,
    is_logarithmic: bool,
    ticks: Vec<Tick>,
    name: String,
}

impl Ruler {
    /// Where a value lies, as a share of the range; `None` if it has no place.
    fn share(&self, value: f64) -> Option<f64> {
        if !value.is_finite() || (self.is_logarithmic && value <= 0.0) {
            return None;
        }
        Some(if self.is_logarithmic {
            (log10(value) - log10(self.low)) / (log10(self.high) - log10(self.low))
        } else {
            (value - self.low) / (self.high - self.low)
        })
    }
}

/// The axis upward: from zero if linear, and up to the next mark.
fn y_ruler(axis: &Axis, values: impl Iterator<Item = f64>) -> Ruler {
    if axis.scale == Scale::Logarithmic {
        return logarithmic_ruler(axis, values, Y_TICKS_MAX);
    }
    let (mut low, mut high) = (0.0, 0.0);
    for value in values {
        (low, high) = (f64::min(low, value), f64::max(high, value));
    }
    if high <= low {
        high = 1.0;
    }
    let shown = shown(high.max(-low), axis.unit, axis.scale == Scale::Time);
    let (low, high) = (low / shown.by, high / shown.by);
    let (step, _) = step(low, high, Y_TICKS_MAX);
    let (low, high) = ((low / step).floor() * step, (high / step).ceil() * step);
    let marks = ((high - low) / step).round() as usize + 1;
    let ticks = linear(low, high, marks, shown.by);
    let name = named(axis, &shown.unit);
    Ruler { low: low * shown.by, high: high * shown.by, is_logarithmic: false, ticks, name }
}

/// The axis to the right: from the first to the last value, with as many marks as fit.
fn x_ruler(axis: &Axis, values: impl Iterator<Item = f64>) -> Ruler {
    if axis.scale == Scale::Logarithmic {
        return logarithmic_ruler(axis, values, X_TICKS_MAX);
    }
    let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
    for value in values {
        (low, high) = (low.min(value), high.max(value));
    }
    if low > high {
        (low, high) = (0.0, 1.0);
    }
    if low == high {
        high = low + 1.0;
    }
    let shown = shown(high.max(-low), axis.unit, axis.scale == Scale::Time);
    let marks = |count| linear(low / shown.by, high / shown.by, count, shown.by);
    let fits = |ticks: &[Tick]| {
        let widest = ticks.iter().map(|tick| width(&tick.label)).max().unwrap_or(0);
        ticks.len() as u64 * (widest * TEXT_SIZE / 1000 + 2 * GAP) <= FIELD_WIDTH
    };
    let counts = (2..=X_TICKS_MAX).rev().map(marks);
    let ticks = counts.into_iter().find(|ticks| fits(ticks)).unwrap_or_else(|| marks(2));
    Ruler { low, high, is_logarithmic: false, ticks, name: named(axis, &shown.unit) }
}

/// From a round number at or below the least positive value to one at or above the greatest.
fn logarithmic_ruler(axis: &Axis, values: impl Iterator<Item = f64>, count: usize) -> Ruler {
    let (mut low, mut high) = (f64::INFINITY, 0.0);
    for value in values.filter(|value| *value > 0.0) {
        (low, high) = (f64::min(low, value), f64::max(high, value));
    }
    if low > high {
        (low, high) = (1.0, 10.0);
    }
    let round = |value: f64| [1.0, 2.0, 5.0, 10.0].map(|times| times * pow10(floor_log10(value)));
    let from = round(low).into_iter().rfind(|round| *round <= low).unwrap_or(low);
    let to = round(high).into_iter().find(|round| *round >= high).unwrap_or(high);
    let decades = floor_log10(to) - floor_log10(from);
    // At least two decades have a label.
    let (from, to) = if decades < 2 {
        (round(low)[0], if round(low)[0] < round(to)[0] { to } else { round(to)[3] })
    } else {
        (from, to)
    };
    let to = if floor_log10(to) == floor_log10(from) { round(to)[3] } else { to };
    let ticks = logarithmic(from, to, count, axis.unit);
    // Labels with a prefix have the unit with them.
    let unit = if takes_prefix(axis.unit) { "" } else { axis.unit };
    Ruler { low: from, high: to, is_logarithmic: true, ticks, name: named(axis, unit) }
}

fn named(axis: &Axis, unit: &str) -> String {
    let name = shorten(&axis.name, NAME_CHARS_MAX);
    if unit.is_empty() { name } else { format!("{name} ({unit})") }
}

/// The field: from values to pixels.
struct Field {
    x: Ruler,
    y: Ruler,
}

impl Field {
    fn place_x(&self, x: f64) -> Option<f64> {
        self.x.share(x).map(|share| LEFT as f64 + share * FIELD_WIDTH as f64)
    }

    fn place_y(&self, y: f64) -> Option<f64> {
        self.y.share(y).map(|share| TOP as f64 + (1.0 - share) * FIELD_HEIGHT as f64)
    }

    /// A bound of the band: where it has no place on the axis, the band ends at the field's floor.
    fn place_bound(&self, y: f64) -> f64 {
        self.place_y(y).unwrap_or((TOP + FIELD_HEIGHT) as f64)
    }
}

/// A point in pixels, with its band.
#[derive(Clone, Copy)]
struct Dot {
    x: f64,
    y: f64,
    low: f64,
    high: f64,
}

/// The line in pixels, in pieces that have no gap.
fn pieces(field: &Field, points: &[Point]) -> Vec<Vec<Dot>> {
    let mut pieces = vec![Vec::new()];
    for point in reduce(points) {
        match (field.place_x(point.x), field.place_y(point.y)) {
            (Some(x), Some(y)) => {
                let (low, high) = (field.place_bound(point.low), field.place_bound(point.high));
                let piece = pieces.last_mut().expect("there is one from the beginning");
                piece.push(Dot { x, y, low, high });
            }
            _ => pieces.push(Vec::new()),
        }
    }
    pieces.retain(|piece| !piece.is_empty());
    pieces
}

/// The plot.
pub fn svg(chart: &Chart, id: &str) -> String {
    let points = || chart.lines.iter().flat_map(|line| &line.points);
    let with_value = || points().filter(|point| point.y.is_finite());
    let ys = with_value().flat_map(|point| [point.y, point.low, point.high]);
    let field =
        Field { x: x_ruler(&chart.x, points().map(|point| point.x)), y: y_ruler(&chart.y, ys) };
    let (legend, height) = legend(chart);
    let title = escape(&chart.title);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\" role=\"img\" \
         aria-labelledby=\"{id}-title {id}-description\" font-family=\"sans-serif\" \
         fill=\"#000\">\n<title id=\"{id}-title\">{title}</title>\n\
         <desc id=\"{id}-description\">{}</desc>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n",
        escape(&chart.alternative())
    );
    let heading = shorten(&chart.title, TITLE_CHARS_MAX);
    let at = (GAP as f64, 20.0);
    let space = WIDTH - 2 * GAP;
    out += &label(&Label { text: &heading, at, anchor: "start", size: TITLE_SIZE, space });
    out += &axes(&field);
    let lines = || chart.lines.iter().zip(&STYLES);
    let drawn: Vec<_> =
        lines().map(|(line, style)| (style, pieces(&field, &line.points))).collect();
    for ((line, _), (style, pieces)) in lines().zip(&drawn) {
        if line.has_spread() {
            pieces.iter().for_each(|piece| out += &band(piece, style));
        }
    }
    for (i, (style, pieces)) in drawn.iter().enumerate() {
        pieces.iter().for_each(|piece| out += &path(piece, style));
        out += &markers(pieces, style, i as f64 / drawn.len() as f64);
    }
    out + &legend + "</svg>\n"
}

/// Grid, marks and names of both axes.
fn axes(field: &Field) -> String {
    let (right, bottom) = (LEFT + FIELD_WIDTH, TOP + FIELD_HEIGHT);
    let line = |x1: f64, y1: f64, x2: f64, y2: f64, colour: &str| {
        format!(
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" \
             stroke=\"{colour}\"/>\n"
        )
    };
    let mut out = String::new();
    let grid = |tick: &Tick| if tick.label.is_empty() { "#eee" } else { "#ccc" };
    let (left, top, right, bottom) = (LEFT as f64, TOP as f64, right as f64, bottom as f64);
    for tick in &field.y.ticks {
        let Some(y) = field.place_y(tick.at) else { continue };
        out += &line(left, y, right, y, grid(tick));
        let (at, space) = ((left - GAP as f64, y + 4.0), LEFT - 2 * GAP);
        if !tick.label.is_empty() {
            let text = &tick.label;
            out += &label(&Label { text, at, anchor: "end", size: TEXT_SIZE, space });
        }
    }
    let labels = field.x.ticks.iter().filter(|tick| !tick.label.is_empty()).count();
    let space = FIELD_WIDTH / labels.max(1) as u64 - GAP;
    for tick in &field.x.ticks {
        let Some(x) = field.place_x(tick.at) else { continue };
        out += &line(x, top, x, bottom, grid(tick));
        if !tick.label.is_empty() {
            let (text, at) = (&tick.label, (x, bottom + 17.0));
            // The last one is near the edge of the picture.
            let space = space.min(2 * (WIDTH - LEFT - FIELD_WIDTH));
            out += &label(&Label { text, at, anchor: "middle", size: TEXT_SIZE, space });
        }
    }
    out += &line(left, top, left, bottom, "#000");
    out += &line(left, bottom, right, bottom, "#000");
    // Where values of both signs are, zero is a line too.
    if !field.y.is_logarithmic && field.y.low < 0.0 {
        let zero = field.place_y(0.0).unwrap_or(bottom);
        out += &line(left, zero, right, zero, "#666");
    }
    let space = WIDTH - 2 * GAP;
    let (text, at) = (&field.y.name, (GAP as f64, top - 11.0));
    out += &label(&Label { text, at, anchor: "start", size: TEXT_SIZE, space });
    let (text, at) = (&field.x.name, (right, bottom + 35.0));
    out + &label(&Label { text, at, anchor: "end", size: TEXT_SIZE, space: FIELD_WIDTH })
}

/// From the least to the greatest along a piece of a line.
fn band(piece: &[Dot], style: &Style) -> String {
    let above = piece.iter().map(|dot| (dot.x, dot.high));
    let below = piece.iter().rev().map(|dot| (dot.x, dot.low));
    format!(
        "<path d=\"{} Z\" fill=\"{}\" fill-opacity=\"0.2\"/>\n",
        through(above.chain(below)),
        style.colour
    )
}

fn path(piece: &[Dot], style: &Style) -> String {
    let dots = piece.iter().map(|dot| (dot.x, dot.y));
    format!("<path d=\"{}\" {} stroke-linejoin=\"round\"/>\n", through(dots), style.stroke())
}

fn through(dots: impl Iterator<Item = (f64, f64)>) -> String {
    let mut path = String::new();
    for (i, (x, y)) in dots.enumerate() {
        let before = match i {
            0 => "M",
            i if i % 10 == 0 => "\n",
            _ => " ",
        };
        path += &format!("{before}{x:.1} {y:.1}");
    }
    path
}

/// A marker at each of few points; else at equal distances, at a phase of their line, so that lines
/// over one another show theirs in turn. A piece of one point always has one.
fn markers(pieces: &[Vec<Dot>], style: &Style, phase: f64) -> String {
    let is_sparse = pieces.iter().map(Vec::len).sum::<usize>() <= MARKED_POINTS_MAX;
    let mut next = LEFT as f64 + (phase + 0.5 / STYLES.len() as f64) * MARKER_PIXELS;
    let mut out = String::new();
    for piece in pieces {
        for dot in piece {
            let is_due = dot.x >= next;
            if is_due || is_sparse || piece.len() == 1 {
                out += &style.marker((dot.x, dot.y));
            }
            while is_due && next <= dot.x {
                next += MARKER_PIXELS;
            }
        }
    }
    out
}

/// A sample and the name of each line, and of the bands; with the height of the whole picture.
fn legend(chart: &Chart) -> (String, u64) {
    let names: Vec<String> =
        chart.lines.iter().map(|line| shorten(&line.name, NAME_CHARS_MAX)).collect();
    let widest = names.iter().map(|name| width(name) * TEXT_SIZE / 1000).max().unwrap_or(0);
    let fits = |columns: &u64| widest + SAMPLE + 2 * GAP <= LEGEND_WIDTH / columns;
    let columns = (1..=LEGEND_COLUMNS_MAX).rev().find(fits).unwrap_or(1);
    let column_width = LEGEND_WIDTH / columns;
    let top = TOP + FIELD_HEIGHT + 58;
    let mut out = String::new();
    for (i, (name, style)) in (0..).zip(names.iter().zip(&STYLES)) {
        let (x, y) = (GAP + i % columns * column_width, top + i / columns * ROW);
        let (start, end) = (x as f64, (x + SAMPLE - 2 * GAP) as f64);
        let middle = y as f64 - 4.0;
        let stroke = style.stroke();
        out += &format!("<path d=\"M{start:.1} {middle:.1} {end:.1} {middle:.1}\" {stroke}/>\n");
        out += &style.marker(((start + end) / 2.0, middle));
        out += &legend_name(name, x, y, column_width - SAMPLE - GAP);
    }
    let mut rows = (names.len() as u64).div_ceil(columns);
    if chart.lines.iter().any(Line::has_spread) {
        // In a row of its own, since it may be longer than a column.
        let y = top + rows * ROW;
        out += &format!(
            "<rect x=\"{GAP}\" y=\"{}\" width=\"{}\" height=\"10\" fill=\"#666\" \
             fill-opacity=\"0.3\"/>\n",
            y - 9,
            SAMPLE - 2 * GAP
        );
        let name = format!("band: {}", shorten(&chart.spread, NAME_CHARS_MAX));
        out += &legend_name(&name, GAP, y, LEGEND_WIDTH - SAMPLE);
        rows += 1;
    }
    (out, top + rows * ROW - GAP)
}

fn legend_name(text: &str, x: u64, y: u64, space: u64) -> String {
    let at = ((x + SAMPLE) as f64, y as f64);
    label(&Label { text, at, anchor: "start", size: TEXT_SIZE, space })
}
