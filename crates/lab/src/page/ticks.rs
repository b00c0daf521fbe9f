//! Round numbers on axes, and the unit in which an axis shows its values.

use super::exact::{floor_log10, pow10};

/// A mark of an axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    /// Where, in the values of the data.
    pub at: f64,
    /// What stands beside it; empty for a mark between two decades.
    pub label: String,
}

/// How values are shown.
#[derive(Clone, Debug, PartialEq)]
pub struct Shown {
    /// What a value is divided by.
    pub by: f64,
    /// The unit after that, with its prefix.
    pub unit: String,
}

/// The steps of [`linear`], in tenths of a power of ten. 2.5 is missing: it needs a digit more.
const STEPS: [f64; 3] = [1.0, 2.0, 5.0];

/// At most `count` marks (2 at least) at multiples of a round step within `low..=high`, which are
/// values in the unit that is shown; positions are multiplied by `by`.
pub fn linear(low: f64, high: f64, count: usize, by: f64) -> Vec<Tick> {
    let (step, exponent) = step(low, high, count);
    let digits = usize::try_from(-exponent).unwrap_or(0);
    let first = (low / step).ceil() as i64;
    let last = (high / step).floor() as i64;
    (first..=last)
        .map(|i| {
            let value = i as f64 * step;
            Tick { at: value * by, label: grouped(value, digits) }
        })
        .collect()
}

/// The smallest round step that needs at most `count` marks, and its power of ten.
pub fn step(low: f64, high: f64, count: usize) -> (f64, i32) {
    let smallest = (high - low) / count.max(2) as f64;
    let start = if smallest > 0.0 { floor_log10(smallest) } else { 0 };
    for exponent in start.. {
        for step in STEPS {
            let step = step * pow10(exponent);
            let marks = (high / step).floor() - (low / step).ceil() + 1.0;
            if marks <= count.max(2) as f64 {
                return (step, exponent);
            }
        }
    }
    unreachable!("a step larger than the range needs at most two marks")
}

/// Marks at the powers of ten within `low..=high`, which are positive, with their values and
/// units; at most `count` of them have labels. Marks at the multiples between have none.
pub fn logarithmic(low: f64, high: f64, count: usize, unit: &str) -> Vec<Tick> {
    let (first, last) = (floor_log10(low), floor_log10(high));
    let decades = usize::try_from(last - first).unwrap_or(0) + 1;
    let every = i32::try_from(decades.div_ceil(count.max(1))).unwrap_or(i32::MAX);
    let mut ticks = Vec::new();
    for exponent in first..=last {
        let labelled = exponent.rem_euclid(every) == 0;
        let marks = if decades > 6 { 1..2 } else { 1..10 };
        for times in marks {
            let at = f64::from(times) * pow10(exponent);
            if at < low || at > high {
                continue;
            }
            let label = if times == 1 && labelled { with_prefix(at, unit) } else { String::new() };
            ticks.push(Tick { at, label });
        }
    }
    ticks
}

/// A number with `digits` after the point, and narrow spaces between groups of three before it.
pub fn grouped(value: f64, digits: usize) -> String {
    let text = fixed(value, digits);
    let whole = text.find('.').unwrap_or(text.len());
    let first = usize::from(text.starts_with('-'));
    let mut out = String::new();
    for (i, c) in text.chars().enumerate() {
        if i > first && i < whole && (whole - i).is_multiple_of(3) && whole - first > 4 {
            out.push('\u{202f}');
        }
        out.push(c);
    }
    out
}

/// A number with `digits` after the point. What rounds to zero has no sign.
pub fn fixed(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    let is_zero = text.chars().all(|c| matches!(c, '-' | '0' | '.'));
    if is_zero { text.trim_start_matches('-').to_owned() } else { text }
}

const PREFIXES: [(i32, &str); 9] =
    [(-9, "n"), (-6, "u"), (-3, "m"), (0, ""), (3, "k"), (6, "M"), (9, "G"), (12, "T"), (15, "P")];

/// The prefix with which the number before it is at least 1, or the least there is. Only seconds
/// have parts.
fn prefix(value: f64, unit: &str) -> (i32, &'static str) {
    let exponent = if value > 0.0 { floor_log10(value) } else { 0 };
    let mut prefixes = PREFIXES.into_iter().filter(|&(power, _)| power >= 0 || unit == "s");
    let least = prefixes.next().expect("there is a power of zero");
    prefixes.rfind(|&(power, _)| power <= exponent).unwrap_or(least)
}

/// True of units that a prefix can stand before. A count or a ratio keeps plain numbers.
pub fn takes_prefix(unit: &str) -> bool {
    matches!(unit, "s" | "B" | "B/s")
}

/// The unit for an axis whose largest value is `largest`. Times are seconds, and become minutes,
/// hours or days if `is_time`.
pub fn shown(largest: f64, unit: &str, is_time: bool) -> Shown {
    const TIMES: [(f64, f64, &str); 3] =
        [(2.0 * 86_400.0, 86_400.0, "d"), (7200.0, 3600.0, "h"), (120.0, 60.0, "min")];
    if is_time && let Some(&(_, by, unit)) = TIMES.iter().find(|(from, ..)| largest > *from) {
        return Shown { by, unit: unit.to_owned() };
    }
    if !takes_prefix(unit) {
        return Shown { by: 1.0, unit: unit.to_owned() };
    }
    let (power, prefix) = prefix(largest, unit);
    Shown { by: pow10(power), unit: format!("{prefix}{unit}") }
}

/// A value with three digits and its unit, as in "1.25 GB".
pub fn with_unit(value: f64, unit: &str) -> String {
    let Shown { by, unit } = shown(value.abs(), unit, false);
    let value = value / by;
    let digits = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        _ => 2,
    };
    format!("{} {unit}", grouped(value, digits)).trim_end().to_owned()
}

/// A power of ten with its unit, as in "100 us"; of a count "10k".
fn with_prefix(value: f64, unit: &str) -> String {
    let (power, prefix) = prefix(value, unit);
    let number = value / pow10(power);
    let digits = usize::try_from(-floor_log10(number)).unwrap_or(0);
    let space = if takes_prefix(unit) { " " } else { "" };
    let unit = if takes_prefix(unit) { unit } else { "" };
    format!("{}{space}{prefix}{unit}", fixed(number, digits))
}

#[cfg(test)]
mod tests {
    use super::{grouped, linear, logarithmic, shown, with_unit};

    fn labels(low: f64, high: f64, count: usize) -> String {
        let ticks = linear(low, high, count, 1.0);
        assert!(ticks.len() <= count, "{ticks:?}");
        ticks.iter().map(|tick| tick.label.as_str()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn linear_ticks_are_round_and_no_more_than_asked_for() {
        let cases = [
            (0.0, 10.0, 6, "0 2 4 6 8 10"),
            (0.0, 10.0, 5, "0 5 10"),
            (0.0, 1.0, 6, "0.0 0.2 0.4 0.6 0.8 1.0"),
            (0.0, 7.3, 6, "0 2 4 6"),
            (0.0, 0.09, 5, "0.00 0.02 0.04 0.06 0.08"),
            (-3.0, 3.0, 8, "-3 -2 -1 0 1 2 3"),
            (95.0, 105.0, 4, "95 100 105"),
            (0.0, 12_000.0, 4, "0 5000 10\u{202f}000"),
            (1e6, 1e6 + 4.0, 2, "1\u{202f}000\u{202f}000"),
        ];
        for (low, high, count, expected) in cases {
            assert_eq!(labels(low, high, count), expected, "{low} to {high}, {count}");
        }
    }

    #[test]
    fn logarithmic_ticks_are_decades_with_units_and_marks_between() {
        let named = |low, high, count, unit| {
            let ticks = logarithmic(low, high, count, unit);
            let named = ticks.into_iter().filter(|tick| !tick.label.is_empty());
            named.map(|tick| tick.label).collect::<Vec<_>>().join(", ")
        };
        assert_eq!(named(1e-5, 0.1, 6, "s"), "10 us, 100 us, 1 ms, 10 ms, 100 ms");
        assert_eq!(named(0.5, 2e4, 6, ""), "1, 10, 100, 1k, 10k");
        assert_eq!(named(0.01, 2.0, 6, "x"), "0.01, 0.1, 1");
        assert_eq!(named(1.0, 1e9, 5, "B"), "1 B, 100 B, 10 kB, 1 MB, 100 MB");
        let between = logarithmic(1.0, 10.0, 6, "").len();
        assert_eq!(between, 10);
        assert_eq!(logarithmic(3.0, 30.0, 6, "").len(), 10);
    }

    #[test]
    fn unit_of_an_axis_follows_its_largest_value() {
        let cases = [
            (90.0, "s", true, 1.0, "s"),
            (600.0, "s", true, 60.0, "min"),
            (8.0 * 3600.0, "s", true, 3600.0, "h"),
            (7.0 * 86_400.0, "s", true, 86_400.0, "d"),
            (0.02, "s", false, 0.001, "ms"),
            (1.5e12, "B", false, 1e12, "TB"),
            (3e8, "B/s", false, 1e6, "MB/s"),
            (5000.0, "IOPS", false, 1.0, "IOPS"),
            (0.0, "B", false, 1.0, "B"),
        ];
        for (largest, unit, is_time, by, expected) in cases {
            let shown = shown(largest, unit, is_time);
            assert_eq!((shown.by, shown.unit.as_str()), (by, expected), "{largest} {unit}");
        }
    }

    #[test]
    fn numbers_have_fixed_digits_groups_and_no_negative_zero() {
        assert_eq!(grouped(-0.04, 1), "0.0");
        assert_eq!(grouped(-1234.5, 1), "-1234.5");
        assert_eq!(grouped(-12345.25, 1), "-12\u{202f}345.2");
        assert_eq!(with_unit(1.25e9, "B"), "1.25 GB");
        assert_eq!(with_unit(0.0135, "s"), "13.5 ms");
        assert_eq!(with_unit(0.0, "x"), "0.00 x");
    }
}
