//! The cells of `top`, from two answers of a server.

use std::fmt;

use cairn_control::watch::figures::{Figures, VolumeFigures};
use cairn_control::watch::rates::{Rates, rates};

use crate::remote::columns::Sizes;

/// The columns.
pub const HEAD: [&str; 15] = [
    "NAME", "STATE", "R/S", "W/S", "READ", "WRITE", "R50", "R99", "W50", "W99", "DIRTY", "BACK",
    "LEFT", "HIT%", "USED%",
];

/// A volume.
#[derive(Clone, Debug)]
pub struct Row {
    /// What the columns have.
    pub cells: [String; HEAD.len()],
    /// The same in numbers.
    pub rates: Rates,
    /// Its figures.
    pub volume: VolumeFigures,
}

/// The line over the rows: all volumes together.
pub struct Summary {
    volumes: usize,
    not_served: usize,
    dirty_bytes: u64,
}

impl Summary {
    /// Of all volumes of an answer.
    pub fn of(figures: &Figures) -> Summary {
        let dirty = figures.volumes.iter().filter_map(|volume| volume.cache.as_ref());
        Summary {
            volumes: figures.volumes.len(),
            not_served: figures.not_served.len(),
            dirty_bytes: dirty.map(|cache| cache.dirty_bytes).sum(),
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { volumes, not_served, dirty_bytes } = self;
        let plural = if *volumes == 1 { "" } else { "s" };
        write!(f, "{volumes} volume{plural}, {} dirty", Sizes::Human.text(*dirty_bytes))?;
        if *not_served > 0 {
            write!(f, ", {not_served} NOT SERVED (cairn state show)")?;
        }
        Ok(())
    }
}

/// A row for each volume of `now`.
pub fn rows(before: &Figures, now: &Figures) -> Vec<Row> {
    let rates = rates(before, now);
    let row = |(volume, rates): (&VolumeFigures, Rates)| {
        let cells = cells(volume, &rates);
        Row { cells, rates, volume: volume.clone() }
    };
    now.volumes.iter().zip(rates).map(row).collect()
}

fn cells(volume: &VolumeFigures, rates: &Rates) -> [String; HEAD.len()] {
    let none = || "-".to_owned();
    // Of a pool that of its data or its metadata, as each of them stops it.
    let used = volume.fill.iter().map(|fill| percent(fill.used_bytes, fill.size_bytes));
    let per_second = |bytes: f64| Sizes::Human.text(bytes as u64);
    let (dirty, back, left) = match &volume.cache {
        None => (none(), none(), none()),
        Some(cache) => {
            let left = rates.seconds_left.filter(|_| cache.dirty_bytes > 0);
            let back = per_second(rates.writeback_bytes_per_second);
            (Sizes::Human.text(cache.dirty_bytes), back, left.map_or_else(none, duration))
        }
    };
    [
        volume.name.clone(),
        volume.state.clone(),
        format!("{:.0}", rates.reads.iops),
        format!("{:.0}", rates.writes.iops),
        per_second(rates.reads.bytes_per_second),
        per_second(rates.writes.bytes_per_second),
        latency(rates.reads.p50_ns),
        latency(rates.reads.p99_ns),
        latency(rates.writes.p50_ns),
        latency(rates.writes.p99_ns),
        dirty,
        back,
        left,
        rates.hit_percent.map_or_else(none, |percent| format!("{percent:.0}")),
        used.max().map_or_else(none, |percent| percent.to_string()),
    ]
}

/// How long requests take: a bound of the histogram, or `-` without requests.
pub fn latency(nanos: Option<u64>) -> String {
    let Some(nanos) = nanos else { return "-".to_owned() };
    let value = nanos as f64;
    match nanos {
        0..1_000_000 => format!("{:.0}us", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1}ms", value / 1e6),
        _ => format!("{:.1}s", value / 1e9),
    }
}

/// A time in the two largest units.
pub fn duration(seconds: f64) -> String {
    let seconds = seconds.ceil() as u64;
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..360_000 => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// How full something is, in percent.
pub fn percent(used: u64, size: u64) -> u64 {
    used.saturating_mul(100).checked_div(size).unwrap_or(0).min(100)
}

#[cfg(test)]
mod tests {
    use super::{duration, latency, percent};

    #[test]
    fn times_are_one_short_word() {
        let cases = [(0.2, "1s"), (59.0, "59s"), (61.0, "1m01s"), (3700.0, "1h01m"), (1e6, "11d")];
        for (seconds, text) in cases {
            assert_eq!(duration(seconds), text);
        }
        let cases =
            [(None, "-"), (Some(2048), "2us"), (Some(1 << 21), "2.1ms"), (Some(1 << 32), "4.3s")];
        for (nanos, text) in cases {
            assert_eq!(latency(nanos), text);
        }
    }

    #[test]
    fn a_share_is_at_most_all_and_none_of_nothing() {
        assert_eq!([percent(1, 0), percent(5, 10), percent(12, 10)], [0, 50, 100]);
    }
}
