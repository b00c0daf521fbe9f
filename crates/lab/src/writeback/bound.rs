//! The least time in which drives can take what is written back, in any order: a bound of the
//! models, beside which a policy is judged.
//!
//! ```text
//! track with k runs   max((1 - H_k / k) turns, (k - 1) setups + the data under the arm) + a switch
//! row of a RAID 5     its writes and, unless it is written whole, its reads: two visits
//! request of an SSD   command + data
//! several drives      the slowest
//! ```
//!
//! Of k places at random on a track the largest gap is H_k / k of a turn on average, with
//! H_k = 1 + 1/2 + ... + 1/k: the arm comes to the track behind it. Runs are those of blocks that
//! are dirty independently of each other, each with the same probability: what
//! [`Pattern::Uniform`](crate::fill::Pattern::Uniform) and `Fragmented` make.
//!
//! Only operations are used that are exact on every machine.

use std::time::Duration;

use cairn_sim::drives::{HddFigures, PathFigures};

use crate::experiment::devices::Model;
use crate::experiment::form::{Drive, Experiment};
use crate::fill::Pattern;

/// Bytes of a row on one member of an array with parity.
const ROW_BYTES: f64 = 4096.0;

/// Blocks of a drive that are dirty at random.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    /// Sectors of the drive.
    pub sectors: u64,
    /// Sectors of a block.
    pub block: u64,
    /// How much of it is dirty: 0 to 1.
    pub share: f64,
}

impl Spread {
    /// Runs of touching blocks, on average, of so many sectors in a row.
    fn runs(&self, sectors: f64) -> f64 {
        let share = self.share;
        sectors / self.block as f64 * share * (1.0 - share) + share
    }
}

/// The blocks of an experiment that are dirty at random.
struct Dirty<'a> {
    cache: &'a Drive,
    backings: Vec<&'a Drive>,
    /// Sectors of a block.
    block: u64,
    /// How much of the backing drives is dirty, and of the cache: 0 to 1.
    shares: [f64; 2],
}

impl<'a> Dirty<'a> {
    /// None if its blocks are not dirty at random. All drives but the cache are written.
    fn of(experiment: &'a Experiment) -> Option<Dirty<'a>> {
        let fill = experiment.fill.as_ref()?;
        if !matches!(fill.pattern, Pattern::Uniform | Pattern::Fragmented { .. }) {
            return None;
        }
        let (_, cache) = experiment.drives.get(fill.cache)?;
        let others = experiment.drives.iter().enumerate().filter(|(i, _)| *i != fill.cache);
        let backings: Vec<&Drive> = others.map(|(_, (_, drive))| drive).collect();
        let all: u64 = backings.iter().map(|drive| drive.bytes / 512).sum();
        let share = fill.dirty_percent / 100.0;
        let dirty = (cache.bytes / 512) as f64 * share;
        let shares = [dirty / all as f64, share];
        Some(Dirty { cache, backings, block: fill.block_sectors, shares })
    }

    fn spread(&self, drive: &Drive, share: f64) -> Spread {
        Spread { sectors: drive.bytes / 512, block: self.block, share }
    }
}

/// The bound of an experiment in which all that is dirty goes home, in virtual time; none if its
/// blocks are not dirty at random. The cache is read, and all other drives are written.
pub fn of_experiment(experiment: &Experiment) -> Option<Duration> {
    let dirty = Dirty::of(experiment)?;
    let [home, cached] = dirty.shares;
    let written = dirty.backings.iter().map(|it| of_model(it.model, dirty.spread(it, home)));
    let read = match dirty.cache.model {
        Model::Ssd(flash) => of_path(&flash.figures().read, dirty.spread(dirty.cache, cached)),
        Model::Hdd | Model::HddUncached | Model::Raid5 { .. } => Duration::ZERO,
    };
    written.chain([read]).max()
}

/// How much of the arrays with parity of an experiment is dirty, from 0 to 1, and how many of
/// their rows are dirty on all data members; none without an array, or if blocks are not dirty at
/// random. A row has one block of each data member, which lie a chunk apart.
pub fn whole_rows(experiment: &Experiment) -> Option<(f64, f64)> {
    let dirty = Dirty::of(experiment)?;
    let share = dirty.shares[0];
    let of = |drive: &&Drive| match drive.model {
        Model::Raid5 { members } => {
            let data = u64::from(members) - 1;
            Some(drive.bytes as f64 / ROW_BYTES / data as f64 * power(share, data))
        }
        Model::Hdd | Model::HddUncached | Model::Ssd(_) => None,
    };
    let rows: Vec<f64> = dirty.backings.iter().filter_map(of).collect();
    (!rows.is_empty()).then(|| (share, rows.iter().sum()))
}

fn of_model(model: Model, spread: Spread) -> Duration {
    match model {
        Model::Hdd | Model::HddUncached => of_hdd(&HddFigures::NEARLINE, spread),
        Model::Ssd(flash) => of_path(&flash.figures().write, spread),
        Model::Raid5 { members } => of_raid5(&HddFigures::NEARLINE, u64::from(members), spread),
    }
}

/// The sum of 1/i up to k, between whole numbers in proportion.
fn harmonic(k: f64) -> f64 {
    let whole = k as u64;
    let sum: f64 = (1..=whole).map(|i| 1.0 / i as f64).sum();
    sum + (k - whole as f64) / (whole + 1) as f64
}

/// `base` to the power of `exponent`.
fn power(base: f64, exponent: u64) -> f64 {
    (0..exponent).fold(1.0, |product, _| product * base)
}

/// A drive with one arm.
pub fn of_hdd(figures: &HddFigures, spread: Spread) -> Duration {
    let turn = figures.revolution.as_secs_f64();
    let (setup, switch) = (figures.setup.as_secs_f64(), figures.head_switch.as_secs_f64());
    let outer = figures.outer_track as f64;
    let inner = outer * figures.inner_percent as f64 / 100.0;
    let zones = figures.zones;
    let tracks = spread.sectors as f64 / ((outer + inner) / 2.0) / zones as f64;
    let of_zone = |zone: u64| {
        let track = outer - (outer - inner) * (2 * zone + 1) as f64 / (2 * zones) as f64;
        let visited = 1.0 - power(1.0 - spread.share, (track / spread.block as f64) as u64);
        if visited <= 0.0 {
            return 0.0;
        }
        let runs = (spread.runs(track) / visited).max(1.0);
        let gaps = turn * (1.0 - harmonic(runs) / runs);
        let data = (runs - 1.0) * setup + turn * spread.share / visited;
        tracks * visited * (gaps.max(data) + switch)
    };
    Duration::from_secs_f64((0..zones).map(of_zone).sum())
}

/// A drive without an arm, which takes its requests one after another.
pub fn of_path(path: &PathFigures, spread: Spread) -> Duration {
    let requests = spread.runs(spread.sectors as f64);
    let kib = spread.sectors as f64 * spread.share / 2.0;
    let command = path.command.as_secs_f64();
    Duration::from_secs_f64(requests * command + kib * path.ns_per_kib as f64 / 1e9)
}

/// An array with one parity member, each of so many sectors. Rows whose data is not all dirty are
/// read first, by the rule of the model: the fewer reads.
pub fn of_raid5(figures: &HddFigures, members: u64, spread: Spread) -> Duration {
    let data = members - 1;
    let (mut writes, mut reads) = (0.0, 0.0);
    for dirty in 1..=data {
        let ways = (0..dirty).fold(1.0, |ways, i| ways * (data - i) as f64 / (i + 1) as f64);
        let chance = ways * power(spread.share, dirty) * power(1.0 - spread.share, data - dirty);
        let (old, rest) = (dirty + 1, data - dirty);
        writes += chance * (dirty + 1) as f64;
        reads += chance * if rest == 0 { 0.0 } else { old.min(rest) as f64 };
    }
    let own = Spread { sectors: spread.sectors / data, ..spread };
    let of = |operations: f64| {
        of_hdd(figures, Spread { share: (operations / members as f64).min(1.0), ..own })
    };
    of(writes) + of(reads)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Loop;
    use crate::workload::Operation;
    use cairn_block::{Op, SectorCount};
    use cairn_sim::drives::{Hdd, SsdFigures};

    const HDD: HddFigures = HddFigures::NEARLINE;

    #[test]
    fn a_drive_that_is_dirty_as_a_whole_takes_its_turns_and_switches() {
        let sectors = 1 << 26;
        let whole = of_hdd(&HDD, Spread { sectors, block: 8, share: 1.0 }).as_secs_f64();
        let mean = HDD.outer_track as f64 * 1.47 / 2.0;
        let turns = sectors as f64 / mean * (HDD.revolution + HDD.head_switch).as_secs_f64();
        assert!((whole / turns - 1.0).abs() < 0.001, "{whole} {turns}");
    }

    #[test]
    fn a_run_alone_on_its_track_takes_a_switch() {
        let spread = Spread { sectors: 1 << 32, block: 8, share: 1e-6 };
        let found = of_hdd(&HDD, spread).as_secs_f64();
        let each = found / (spread.sectors as f64 / 8.0 * spread.share);
        let switch = HDD.head_switch.as_secs_f64();
        assert!((1.0..1.05).contains(&(each / switch)), "{each}");
    }

    /// The bound is below what a scan takes on the model, and not by far where there is little to
    /// choose.
    #[test]
    fn a_scan_by_rising_sectors_takes_longer_than_the_bound() {
        for (share, most) in [(0.002, 3.0), (0.03, 3.0), (0.3, 3.0), (1.0, 1.2)] {
            let (sectors, block) = (1 << 21, 8);
            let mut rng = fastrand::Rng::with_seed(1);
            let places = (0..sectors / block).filter(|_| rng.f64() < share);
            let places: Vec<u64> = places.map(|at| at * block).collect();
            let mut next = places.iter().copied();
            let figures = HddFigures { cache: SectorCount(2048), ..HDD };
            let mut drive = Hdd::new(figures, SectorCount(sectors));
            let step = || match next.next() {
                Some(at) => Operation::new(Op::Write, at, block),
                None => Operation::flush(),
            };
            let took = Loop::new(&mut drive).run(32, places.len() as u64 + 1, step);
            let share = places.len() as f64 * block as f64 / sectors as f64;
            let bound = of_hdd(&HDD, Spread { sectors, block, share });
            let ratio = took.nanos as f64 / bound.as_nanos() as f64;
            assert!((1.0..most).contains(&ratio), "{share}: {ratio}");
        }
    }

    #[test]
    fn ssd_takes_commands_and_bytes() {
        let path = SsdFigures::SATA.write;
        let alone = Spread { sectors: 1 << 30, block: 8, share: 1e-3 };
        let each = of_path(&path, alone).as_secs_f64() / (alone.sectors as f64 / 8.0 * 1e-3);
        let expected = path.command.as_secs_f64() + 4.0 * path.ns_per_kib as f64 / 1e9;
        assert!((each / expected - 1.0).abs() < 0.002, "{each} {expected}");
        let whole = of_path(&path, Spread { share: 1.0, ..alone }).as_secs_f64();
        let bytes = alone.sectors as f64 / 2.0 * path.ns_per_kib as f64 / 1e9;
        assert!((whole / bytes - 1.0).abs() < 1e-3, "a request");
    }

    #[test]
    fn rows_are_dirty_as_a_whole_as_often_as_all_their_blocks_are() {
        let text = |model: &str, size: &str| {
            format!(
                "title = \"t\"\n[drive.cache]\nmodel = \"nvme\"\nsize = \"16G\"\n\
                 [drive.home]\nmodel = {model}\nsize = \"{size}\"\n[fill]\n\
                 cache = \"cache\"\nbacking = \"home\"\ndirty = 60\npattern = \"uniform\"\n\
                 block = \"4K\"\n[end]\nat_most = \"1h\"\n"
            )
        };
        let of = |model, size| {
            let parsed = Experiment::parse(&text(model, size), "x.toml");
            whole_rows(&parsed.expect("it has a meaning"))
        };
        // 9.6 of 12 GiB are dirty, and so is half of the rows: 0.8 to the third power.
        let (share, rows) = of("\"raid5\"\nmembers = 4", "12G").expect("an array");
        assert!((share - 0.8).abs() < 1e-6, "{share}");
        assert!((rows / (f64::from(1 << 20) * 0.512) - 1.0).abs() < 1e-6, "{rows}");
        assert_eq!(of("\"hdd\"", "12G"), None);
    }

    #[test]
    fn rows_that_are_written_whole_read_nothing() {
        let spread = Spread { sectors: 3 << 24, block: 8, share: 1.0 };
        let whole = of_raid5(&HDD, 4, spread);
        assert_eq!(whole, of_hdd(&HDD, Spread { sectors: 1 << 24, ..spread }));
        // Of one dirty block in a row of three: two writes and two reads.
        let rare = of_raid5(&HDD, 4, Spread { share: 1e-5, ..spread }).as_secs_f64();
        let one = Spread { sectors: 1 << 24, block: 8, share: 1e-5 * 3.0 / 2.0 };
        assert!((rare / (2.0 * of_hdd(&HDD, one).as_secs_f64()) - 1.0).abs() < 1e-3, "{rare}");
    }
}
