//! A row as several experiments, for pages that compare these: they run beside each other.

use std::time::Duration;

use cairn_outcome::failure::Outcome;

use super::asked::Asked;
use super::rows::{Observation, Row};
use super::table::{FIRST, Measured, OURS};
use super::versions::Version;
use crate::experiment::form::Experiment;
use crate::experiment::verb::{measure_each, write_files};

/// How often a run is looked at, as reported: short runs are compared to a few parts in a thousand.
const EVERY: Duration = Duration::from_secs(1);

/// Runs versions of a row, with the policies that a verdict names; the runs have their order. Their
/// files are written if there is a folder for them.
///
/// # Errors
/// A version has no meaning, a target refuses it, or a file cannot be written.
pub fn measure_row(asked: &Asked, versions: Vec<Version>) -> Outcome<Vec<Measured<'static>>> {
    let (mut rows, mut experiments) = (Vec::new(), Vec::new());
    for Version { row, stem, text } in versions {
        let file = format!("{stem}.toml");
        let mut experiment = Experiment::parse(&text, &file)?;
        experiment.variants.retain(|policy| is_judged(row, policy));
        if let Some(folder) = &asked.out {
            write_files(folder, [(file, text)])?;
        }
        rows.push(row);
        experiments.push(experiment);
    }
    let runs = measure_each(&experiments, &asked.seeds(), asked.charge, EVERY)?;
    let all = rows.into_iter().zip(experiments).zip(runs);
    Ok(all.map(|((row, experiment), variants)| Measured { row, experiment, variants }).collect())
}

/// True if a verdict about a row names a policy.
fn is_judged(row: &Row, policy: &str) -> bool {
    let names = |it: &Observation| [it.policy, it.than].contains(&policy);
    [OURS, FIRST].contains(&policy) || row.observations.iter().any(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writeback::rows::ROWS;

    #[test]
    fn policies_are_run_that_a_verdict_names() {
        let judged = |name: &str| {
            let row = ROWS.iter().find(|row| row.name == name).expect("a row");
            let all = ["completion", "strict", "sorted", "sweep"];
            all.into_iter().filter(|policy| is_judged(row, policy)).collect::<Vec<_>>()
        };
        assert_eq!(judged("row-1.1"), ["completion", "strict", "sorted", "sweep"]);
        assert_eq!(judged("row-1.2"), ["completion", "strict", "sweep"]);
        assert_eq!(judged("uncached"), ["completion", "sweep"]);
    }
}
