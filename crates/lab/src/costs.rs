//! What the processor's work costs in experiments: figures that `cairn bench costs` measured, kept
//! with their date and machine.

use cairn_sim::Prices;
use serde::Deserialize;

/// The file that `docs/evidence` has.
const TEXT: &str = include_str!("../../../docs/evidence/costs.toml");

/// What the file says. Prices are in picoseconds.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// When they were measured.
    pub date: String,
    /// On what.
    pub machine: String,
    turn: u64,
    request: u64,
    poll: u64,
    metadata_kib: u64,
}

/// The costs that experiments are charged.
///
/// # Panics
/// The file is no such, which a test finds.
pub fn costs() -> Costs {
    toml::from_str(TEXT).expect("the file of costs is well formed")
}

impl Costs {
    /// So many percent of them.
    pub fn prices(&self, percent: u64) -> Prices {
        let [turn, request, poll, metadata_kib] =
            [self.turn, self.request, self.poll, self.metadata_kib].map(|ps| ps * percent / 100);
        Prices { turn, request, poll, metadata_kib }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_known_and_above_zero() {
        let costs = costs();
        assert!(!costs.date.is_empty() && !costs.machine.is_empty());
        let Prices { turn, request, poll, metadata_kib } = costs.prices(100);
        assert!([turn, request, poll, metadata_kib].into_iter().all(|price| price > 0));
        assert_eq!(costs.prices(0), Prices::FREE);
        assert_eq!(costs.prices(200).request, 2 * request);
    }
}
