//! [`Campaign`]: ends lives at any write, and checks what is left.
//!
//! A life has several generations; each is a process of its own in a world of its own. In each
//! generation:
//! - the scenario opens its volumes on the drives as the last end left them (sometimes drives fail,
//!   or another end comes, during that, too);
//! - the whole contents are read twice and checked;
//! - clients of each volume send requests, sometimes while volumes are suspended and resumed, until
//!   the end comes at a seeded write, or until all requests are done.
//!
//! An end is one of:
//! - a *cut* of the power: the drives lose some of the volatile writes;
//! - a *kill* of the process: the drives keep the volatile writes, so that a later cut loses them.
//!
//! Each volume has a history and one or two clients with flushes of their own. They learn of losses
//! as the clients of a server do. The rule: after a loss of completed writes, each client's next
//! flush fails, or the writes that it covers are there.
//!
//! Everything follows from the campaign's seed and the life's number. A failure prints the command
//! that repeats exactly this life.
//!
//! Environment: `CAIRN_CUTS` number of lives, `CAIRN_SEED` the campaign's seed, `CAIRN_CUT` run
//! only this life.

mod elsewhere;
mod life;
mod server;
mod verbs;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use cairn_block::{ConfigError, Disk, LocalFuture, TargetType, invariants};

use crate::drive::{DriveOptions, SimDrive};
use crate::faults::{Fault, OpSet};
use crate::image::Image;
use crate::workload::Workload;
pub use elsewhere::{Elsewhere, Links};
use life::Life;
pub use server::{Generation, Server};
pub use verbs::users_first;

/// The usual number of lives in a campaign.
const CUTS: u64 = 300;

const SEED: u64 = 0x5eed;

/// Drive images by name.
pub type Images = BTreeMap<String, Image>;

/// The volumes and events that a campaign tests. The campaign owns the rest: seeds, cuts, kills,
/// clients, histories, suspends and the last close.
pub trait Scenario {
    /// What belongs to one life: its shape, and what a server's state file would keep.
    type Case: 'static;

    /// The types of the targets in the scenario's tables.
    fn types(&self) -> Vec<Arc<dyn TargetType>>;

    /// Begins a life: the drives and their first contents.
    fn begin(&self, rng: &mut fastrand::Rng) -> (Self::Case, Vec<(DriveOptions, Image)>);

    /// Opens the volumes on the drives (device arguments are their names), as a server would after
    /// a crash; in the first generation, as a server would for the first time. Returns the volumes
    /// that clients use.
    fn open(&self, case: Rc<Self::Case>, server: Server) -> LocalFuture<'static, Opened>;

    /// Checks the metadata that a power cut or a kill left.
    ///
    /// # Errors
    /// What is wrong with it.
    fn check_metadata(&self, _case: &Self::Case, _images: &Images) -> Result<(), String> {
        Ok(())
    }

    /// The requests to the volumes in one generation, all volumes together.
    fn workload(&self, _case: &Self::Case, rng: &mut fastrand::Rng) -> Workload {
        let (seed, ops) = (rng.u64(..), rng.u64(..200));
        Workload::mixed(seed, ops)
    }

    /// Whether the volumes are suspended and resumed during the workload, and suspended after it.
    /// Messages that the scenario sends may then meet a suspended device.
    fn suspends(&self) -> bool {
        false
    }

    /// Whether what was acknowledged outlives a kill of the process (H11 of [`crate::History`]).
    fn outlives_kills(&self) -> bool {
        false
    }

    /// Whether what is durable outlives a power cut. If not, every end is a kill.
    fn outlives_cuts(&self) -> bool {
        true
    }

    /// Whether drives fail while the volumes are opened. Opening may then be refused.
    fn fails_at_start(&self) -> bool {
        false
    }

    /// Whether an error may make the disk lose, without a crash, writes that no flush covered. A
    /// failed flush reports that.
    fn rolls_back(&self) -> bool {
        false
    }

    /// Disturbs the run once the volumes are open, in addition to the workload: plants faults,
    /// starts tasks that send messages. True if errors that were not planted are then allowed.
    fn trouble(
        &self,
        _case: &Rc<Self::Case>,
        _generation: &Generation,
        _rng: &mut fastrand::Rng,
    ) -> bool {
        false
    }
}

/// The volumes that clients use, or why there are none.
pub type Opened = Result<Vec<Arc<dyn Disk>>, ConfigError>;

/// Makes every one of these drives fail in ways of its own, with a chance of `per_mille` per
/// operation, at most `shots` times each way: flushes and writes with FUA, losing the volatile
/// writes or not; other writes; reads. On a drive where a failed FUA write loses the volatile
/// writes, writes without FUA do not fail: the same write, sent again without FUA, must succeed, or
/// its error would be the write's own.
pub fn plant_failures(
    drives: &[Arc<SimDrive>],
    per_mille: u16,
    shots: Option<u32>,
    rng: &mut fastrand::Rng,
) {
    let kinds = [
        Fault::losing_flushes(),
        Fault::losing_durable_writes(),
        Fault::error(OpSet::FLUSHES),
        Fault::error(OpSet::DURABLE_WRITES),
        Fault::error(OpSet::WRITES),
        Fault::error(OpSet::READS),
    ];
    for drive in drives {
        let loses_by_writes = rng.bool();
        let planted = |fault: &Fault| match fault.ops {
            OpSet::WRITES => !loses_by_writes,
            OpSet::DURABLE_WRITES => loses_by_writes == (fault.effect == kinds[1].effect),
            _ => true,
        };
        for kind in kinds.into_iter().filter(planted).filter(|_| rng.u8(..3) == 0) {
            drive.faults().add(Fault { shots, ..kind.per_mille(per_mille) });
        }
    }
}

/// Many lives of one scenario.
pub struct Campaign<S> {
    scenario: S,
    cuts: u64,
    part: u64,
}

/// How the lives ended.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    cuts: u64,
    kills: u64,
    /// Opens that were refused because drives failed.
    refused: u64,
    /// Planted errors.
    injected: u64,
}

impl<S: Scenario> Campaign<S> {
    /// A campaign. A test runs it on the test's own thread, whose name [`replay`] prints.
    pub fn new(scenario: S) -> Campaign<S> {
        Campaign { scenario, cuts: CUTS, part: 1 }
    }

    /// Sets the number of lives, unless the environment does.
    #[must_use]
    pub fn cuts(mut self, cuts: u64) -> Campaign<S> {
        self.cuts = cuts;
        self
    }

    /// Runs one of so many lives that are asked for: where several campaigns share a time.
    #[must_use]
    pub fn one_in(mut self, part: u64) -> Campaign<S> {
        self.part = part;
        self
    }

    /// The same with some drives at servers, by their names.
    #[must_use]
    pub fn elsewhere(
        self,
        drives: &'static [&'static str],
        links: Links,
    ) -> Campaign<Elsewhere<S>> {
        let scenario = Elsewhere::new(self.scenario, drives, links);
        Campaign { scenario, cuts: self.cuts, part: self.part }
    }

    /// Runs all lives.
    ///
    /// # Panics
    /// At the first failure, with the command that repeats it.
    pub fn run(&self) {
        invariants::check_every_entry();
        let seed = from_environment("CAIRN_SEED").unwrap_or(SEED);
        if let Some(cut) = from_environment("CAIRN_CUT") {
            self.run_cut(seed, cut);
            return;
        }
        let asked = from_environment("CAIRN_CUTS").unwrap_or(self.cuts);
        let (lives, mut tally) = (asked.div_ceil(self.part), Tally::default());
        for cut in 0..lives {
            let ends = self.run_cut(seed, cut);
            tally.cuts += ends.cuts;
            tally.kills += ends.kills;
            tally.refused += ends.refused;
            tally.injected += ends.injected;
        }
        eprintln!("{lives} lives: {tally:?}");
    }

    fn run_cut(&self, seed: u64, cut: u64) -> Tally {
        let replay = Replay { seed, cut };
        let mut life = Life::new(&self.scenario, seed, cut);
        if let Err(text) = life.run() {
            panic!("{text}");
        }
        replay.forget();
        life.tally
    }

    /// For a canary, a scenario with a known bug: prints and returns the first life that failed,
    /// and its message.
    ///
    /// # Panics
    /// No life failed.
    pub fn expect_caught(&self, bug: &str) -> (u64, String) {
        invariants::check_every_entry();
        for cut in 0..self.cuts {
            let life = || Life::new(&self.scenario, SEED, cut).run();
            let text = match catch_unwind(AssertUnwindSafe(life)) {
                Ok(Ok(())) => continue,
                Ok(Err(text)) => text,
                Err(_) => "a panic".to_owned(),
            };
            eprintln!("{bug}: caught by life {cut}: {text}");
            return (cut, text);
        }
        panic!("{bug}: not found within {} lives", self.cuts);
    }
}

/// The number in an environment variable; none if it is not set.
fn from_environment(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    let parsed = value.parse();
    Some(parsed.unwrap_or_else(|_| panic!("{name}: found '{value}', expected a number")))
}

/// The arguments of `cargo test` that run the test of this thread: its program is named after its
/// source, and its thread after the test.
fn replay() -> String {
    let package = std::env::var("CARGO_PKG_NAME").unwrap_or_default();
    let program = std::env::args().next().unwrap_or_default();
    let stem = Path::new(&program).file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let source = stem.rsplit_once('-').map_or(stem, |(source, _hash)| source);
    let target = if source == package.replace('-', "_") { "--lib" } else { "--test" };
    let source = if target == "--lib" { String::new() } else { format!(" {source}") };
    let package = if package.is_empty() { "--workspace".into() } else { format!("-p {package}") };
    let thread = std::thread::current();
    let test = thread.name().filter(|name| *name != "main").unwrap_or_default();
    format!("{package} {target}{source} -- {test}")
}

/// Prints the command that repeats a life when it panics, wherever the panic comes from.
struct Replay {
    seed: u64,
    cut: u64,
}

impl Replay {
    fn forget(self) {
        std::mem::forget(self);
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        let Replay { seed, cut } = self;
        eprintln!("replay: CAIRN_SEED={seed} CAIRN_CUT={cut} cargo test {}", replay());
    }
}

#[cfg(test)]
mod tests;
