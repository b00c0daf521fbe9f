//! What the processor's work costs in experiments: figures that `cairn bench costs` measured, kept
//! with their date and machine.

use cairn_sim::Prices;
use serde::Deserialize;

/// The file that `docs/evidence` has.
const TEXT: &str = include_str!("../../../docs/evidence/costs.toml");

/// What the file says. Prices are in picoseconds.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Costs {
    /// When they were measured.
    date: String,
    /// On what.
    machine: String,
    turn: u64,
    request: u64,
    poll: u64,
    metadata_kib: u64,
}

/// The costs that are known.
///
/// # Panics
/// The file is no such, which a test finds.
fn costs() -> Costs {
    toml::from_str(TEXT).expect("the file of costs is well formed")
}

/// What experiments are charged for the processor.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Charge {
    /// Charge the processor's time by its prices, times so many percent
    #[arg(
        long = "cpu",
        value_name = "PERCENT",
        default_value_t = 100,
        value_parser = clap::value_parser!(u64).range(0..=10_000)
    )]
    percent: u64,
}

impl Charge {
    /// The prices as they were measured.
    pub const WHOLE: Charge = Charge { percent: 100 };

    /// The prices.
    pub fn prices(self) -> Prices {
        let Costs { turn, request, poll, metadata_kib, .. } = costs();
        let [turn, request, poll, metadata_kib] =
            [turn, request, poll, metadata_kib].map(|ps| ps * self.percent / 100);
        Prices { turn, request, poll, metadata_kib }
    }

    /// In words.
    pub fn describe(self) -> String {
        let Costs { date, machine, .. } = costs();
        format!("{} % of what {date} took on {machine}", self.percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_known_and_above_zero() {
        let costs = costs();
        assert!(!costs.date.is_empty() && !costs.machine.is_empty());
        let prices = |percent| Charge { percent }.prices();
        let Prices { turn, request, poll, metadata_kib } = Charge::WHOLE.prices();
        assert!([turn, request, poll, metadata_kib].into_iter().all(|price| price > 0));
        assert_eq!(prices(0), Prices::FREE);
        assert_eq!(prices(200).request, 2 * request);
    }
}
