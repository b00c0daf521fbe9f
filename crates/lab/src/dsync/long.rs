//! Two days of random writes: what protection costs clients that wait for the disk.

use cairn_outcome::failure::Outcome;

use super::drain::rescaled;
use super::runs::{Settings, TWO_DAYS, flushes, median, micros, read, run};
use super::{Bar, Shown};
use crate::experiment::record::Record;
use crate::experiment::report::seconds;
use crate::page::{Part, Table};

/// Bar.
const LEAST: f64 = 0.994;

/// Runs it, and makes a table.
///
/// # Errors
/// A target refuses it.
pub fn show(settings: &Settings) -> Outcome<Shown> {
    let mut experiment = read(TWO_DAYS)?;
    if settings.quick {
        experiment = rescaled(experiment, 16);
    }
    // A run is long enough for one seed.
    let settings = Settings { quick: settings.quick, seeds: 1, prices: settings.prices };
    let columns = ["policy", "operations/s", "p99, us", "p99.9, us", "flushes/min"];
    let mut table = Table::new("Random writes of 4 KiB for two days", &columns);
    let mut rates = Vec::new();
    for policy in &experiment.variants {
        let records = run(&experiment, policy, &settings)?;
        let rate = |it: &Record| it.clients[0].operations as f64 / seconds(it);
        let flushes = |it: &Record| flushes(&experiment, it) / seconds(it) * 60.0;
        rates.push(median(&records, rate));
        let row = [
            policy.clone(),
            format!("{:.1}", median(&records, rate)),
            format!("{:.0}", median(&records, |it| micros(it.clients[0].p99_ns))),
            format!("{:.0}", median(&records, |it| micros(it.clients[0].p999_ns))),
            format!("{:.3}", median(&records, flushes)),
        ];
        table.row(&row.each_ref().map(String::as_str));
    }
    let bar = Bar {
        what: "two days: operations of clients, of those without protection".to_owned(),
        found: rates[1] / rates[0],
        least: LEAST,
    };
    let scale = format!("One seed. Sizes and the two days are divided by {}.", experiment.scale);
    Ok(Shown { parts: vec![Part::Text(scale), Part::Table(table)], bars: vec![bar] })
}
