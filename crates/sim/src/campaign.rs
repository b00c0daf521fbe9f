//! [`Campaign`]: cut the power at every write, and judge what is left.
//!
//! One cut is a life of several generations. In each, a new world takes over the drives as the
//! last power cut left them; the scenario opens its disk on them (sometimes the power goes
//! during that, too); everything is read, twice, and judged; a workload runs, sometimes under a
//! volume that is suspended and resumed meanwhile or suspended at the end, until the power goes
//! at a seeded write, or when all is done. Everything follows from the campaign's seed
//! and the cut's number; a failure prints the command that repeats exactly this cut.
//!
//! From the environment: `CAIRN_CUTS` how many cuts, `CAIRN_SEED` the campaign's seed,
//! `CAIRN_CUT` only this one.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use cairn_block::{
    ConfigError, Disk, Env, Io, LocalFuture, Registry, Sector, SectorCount, SectorRange,
    SuspendMode, Table, TableContext, TableLine, TargetTypes,
};

use crate::drive::DriveOptions;
use crate::history::History;
use crate::image::Image;
use crate::mechanics::{Cut, CutWhen};
use crate::stamp::Content;
use crate::workload::Workload;
use crate::world::{SimWorld, Stopped};

/// Cuts per campaign if nobody says otherwise.
const CUTS: u64 = 300;

const SEED: u64 = 0x5eed;

/// Longest virtual time of one phase; whatever takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(600);

/// Drive images by name.
pub type Images = BTreeMap<String, Image>;

/// What a campaign exercises.
pub trait Scenario {
    /// The drives and what they hold at first. May vary with the cut.
    fn drives(&self, rng: &mut fastrand::Rng) -> Vec<(DriveOptions, Image)>;

    /// Opens the disk on the drives (device arguments are their names), as a server would after
    /// a crash; the first time as a server would for the first time.
    fn open(
        &self,
        env: Env,
        registry: Arc<Registry>,
    ) -> LocalFuture<'static, Result<Arc<dyn Disk>, ConfigError>>;

    /// Judges the metadata that a power cut left.
    ///
    /// # Errors
    /// What is wrong with it.
    fn check_metadata(&self, _images: &Images) -> Result<(), String> {
        Ok(())
    }

    /// What to do to the disk in one generation.
    fn workload(&self, rng: &mut fastrand::Rng) -> Workload {
        let (seed, ops) = (rng.u64(..), rng.u64(..200));
        Workload::mixed(seed, ops)
    }

    /// Whether the disk is a volume that is to be suspended and resumed under the workload, and
    /// suspended after it. Messages of the scenario's own then meet a suspended device.
    fn suspends(&self) -> bool {
        false
    }

    /// Whether errors may make the disk lose, without a crash, what no flush covered.
    fn rolls_back(&self) -> bool {
        false
    }

    /// Makes trouble once the disk is open, besides the workload: plants faults, starts tasks
    /// that send messages. True if errors that nobody planted are then in order (there are no
    /// suspends then: a resume could fail).
    fn trouble(&self, _world: &SimWorld, _disk: &Arc<dyn Disk>, _rng: &mut fastrand::Rng) -> bool {
        false
    }
}

/// Creates a volume with this table, resumed; the usual [`Scenario::open`].
///
/// # Errors
/// What a constructor or the resume says.
pub async fn open_table(
    env: &Env,
    registry: &Registry,
    types: &TargetTypes,
    volume: &str,
    table: &str,
) -> Result<Arc<dyn Disk>, ConfigError> {
    let device = registry.create_volume(volume)?;
    let lines = TableLine::parse_all(table)?;
    let context = TableContext { types, registry, read_only: false };
    let table = Table::build(env, &device, &lines, context).await?;
    device.load(table).await;
    device.resume(env).await?.whole()?;
    Ok(device)
}

/// Many cuts of one scenario.
pub struct Campaign<'a> {
    scenario: &'a dyn Scenario,
    replay: &'a str,
    cuts: u64,
}

/// What the environment asks for.
fn from_environment(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    let parsed = value.parse();
    Some(parsed.unwrap_or_else(|_| panic!("{name}: found '{value}', expected a number")))
}

impl<'a> Campaign<'a> {
    /// A campaign; `replay` is how its test is run: the arguments of `cargo test`, such as
    /// `-p cairn-targets --test crash -- nothing_acknowledged_is_lost`.
    pub fn new(scenario: &'a dyn Scenario, replay: &'a str) -> Campaign<'a> {
        Campaign { scenario, replay, cuts: CUTS }
    }

    /// Another number of cuts than the usual, unless the environment says one.
    #[must_use]
    pub fn cuts(mut self, cuts: u64) -> Campaign<'a> {
        self.cuts = cuts;
        self
    }

    /// Runs it.
    ///
    /// # Panics
    /// At the first failure, with the command that repeats it.
    pub fn run(&self) {
        let seed = from_environment("CAIRN_SEED").unwrap_or(SEED);
        if let Some(cut) = from_environment("CAIRN_CUT") {
            return self.run_cut(seed, cut);
        }
        for cut in 0..from_environment("CAIRN_CUTS").unwrap_or(self.cuts) {
            self.run_cut(seed, cut);
        }
    }

    fn run_cut(&self, seed: u64, cut: u64) {
        let replay = Replay { seed, cut, command: self.replay };
        if let Err(text) = Life::new(self.scenario, seed, cut).run() {
            panic!("{text}");
        }
        replay.forget();
    }

    /// For a canary: a scenario with a known bug. Answers the first cut that found it.
    ///
    /// # Panics
    /// The alarm did not ring within the campaign's cuts.
    pub fn expect_caught(&self) -> (u64, String) {
        for cut in 0..self.cuts {
            let life = || Life::new(self.scenario, SEED, cut).run();
            match catch_unwind(AssertUnwindSafe(life)) {
                Ok(Ok(())) => {}
                Ok(Err(text)) => return (cut, text),
                Err(_) => return (cut, "a panic".to_owned()),
            }
        }
        panic!("the bug was not found within {} cuts: {}", self.cuts, self.replay);
    }
}

/// Prints the command that repeats a cut if it panics, wherever the panic comes from.
struct Replay<'a> {
    seed: u64,
    cut: u64,
    command: &'a str,
}

impl Replay<'_> {
    fn forget(self) {
        std::mem::forget(self);
    }
}

impl Drop for Replay<'_> {
    fn drop(&mut self) {
        let Replay { seed, cut, command } = self;
        eprintln!("replay: CAIRN_SEED={seed} CAIRN_CUT={cut} cargo test {command}");
    }
}

/// One cut: the generations of one set of drives.
struct Life<'a> {
    scenario: &'a dyn Scenario,
    rng: fastrand::Rng,
    options: Vec<DriveOptions>,
    images: Images,
    history: Option<History>,
    history_seed: u64,
}

/// What ended a generation before its time.
enum Early {
    PowerCut,
    Failed(String),
}

impl From<Stopped> for Early {
    fn from(stopped: Stopped) -> Early {
        match stopped {
            Stopped::PowerCut => Early::PowerCut,
            Stopped::Deadlock => Early::Failed("a request never ended (deadlock)".to_owned()),
            Stopped::TimedOut => Early::Failed(format!("no end within {PATIENCE:?}")),
        }
    }
}

impl<'a> Life<'a> {
    fn new(scenario: &'a dyn Scenario, seed: u64, cut: u64) -> Life<'a> {
        let mut rng = fastrand::Rng::with_seed(seed ^ cut.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (mut options, mut images) = (Vec::new(), Images::new());
        for (drive, image) in scenario.drives(&mut rng) {
            images.insert(drive.name.clone(), image);
            options.push(drive);
        }
        let history_seed = rng.u64(..);
        Life { scenario, rng, options, images, history: None, history_seed }
    }

    fn run(mut self) -> Result<(), String> {
        let generations = self.rng.u32(1..=3);
        for generation in 0..generations {
            let told = |text| format!("generation {generation}: {text}");
            let world = self.world();
            match self.generation(&world) {
                Ok(()) => world.power_off(),
                Err(Early::PowerCut) => {}
                Err(Early::Failed(text)) => return Err(told(text)),
            }
            self.take_images(&world).map_err(told)?;
        }
        let world = self.world();
        match self.open_and_judge(&world) {
            Ok(_) => Ok(()),
            Err(Early::PowerCut) => unreachable!("nobody planned a cut"),
            Err(Early::Failed(text)) => Err(format!("at the end: {text}")),
        }
    }

    fn world(&mut self) -> SimWorld {
        let world = SimWorld::new(self.rng.u64(..), SimWorld::REACTORS);
        world.set_patience(PATIENCE);
        for options in &self.options {
            world.add_drive(options.clone(), self.images[&options.name].clone());
        }
        world
    }

    /// Opens, judges, works; until the end of the work or the power cut.
    fn generation(&mut self, world: &SimWorld) -> Result<(), Early> {
        if self.history.is_some() && self.rng.u8(..4) == 0 {
            world.cut_at(self.draw_cut(0, 16));
        }
        let (disk, history) = self.open_and_judge(world)?;
        let workload = self.scenario.workload(&mut self.rng);
        let expected = workload.ops.max(1) * 3;
        world.cut_at(self.draw_cut(world.writes(), expected));
        let tolerate = self.scenario.trouble(world, &disk, &mut self.rng);
        history.tolerate_errors(tolerate);
        let rolls_back = self.scenario.rolls_back();
        history.failed_flushes_lose(rolls_back || world.failed_flushes_lose());
        history.may_roll_back(rolls_back);
        let may_suspend = self.scenario.suspends() && !tolerate;
        let suspends = if may_suspend { self.rng.u8(..8) } else { 0 };
        if suspends & 6 == 6 {
            start_suspending(world, &disk);
        }
        let ended = workload.run(world, &disk, &history);
        history.verdict().map_err(|wrong| Early::Failed(wrong.to_string()))?;
        ended?;
        if suspends & 1 == 1 {
            close(world, &disk)?;
        }
        check_contract(world)
    }

    fn draw_cut(&mut self, from: u64, count: u64) -> Cut {
        let when = if self.rng.bool() { CutWhen::Submitted } else { CutWhen::Completed };
        // Squared, so that short lives are as well tried as long ones.
        let far = self.rng.u64(0..=count) * self.rng.u64(0..=count) / count;
        Cut { index: from + far, when }
    }

    fn take_images(&mut self, world: &SimWorld) -> Result<(), String> {
        self.images = world.images_after_power_cut(&mut self.rng).into_iter().collect();
        self.scenario.check_metadata(&self.images).map_err(|text| format!("metadata: {text}"))
    }

    /// Opens the disk and reads everything; the first time that is what was there first.
    fn open_and_judge(&mut self, world: &SimWorld) -> Result<(Arc<dyn Disk>, History), Early> {
        let registry = Arc::new(Registry::new(Box::new(world.opener())));
        let reactor = self.rng.u16(..world.reactors());
        let opened = world.try_block_on(reactor, |env| self.scenario.open(env, registry))?;
        let disk =
            opened.map_err(|refused| Early::Failed(format!("refused to open: {refused}")))?;
        let contents = read_all(world, &disk)?;
        if let Some(history) = &self.history {
            let checked = history.check_after_crash(&contents);
            checked.map_err(|wrong| Early::Failed(wrong.to_string()))?;
        }
        if read_all(world, &disk)? != contents {
            return Err(Early::Failed("read twice, found two things".to_owned()));
        }
        check_contract(world)?;
        let seed = self.history_seed;
        let history = self.history.get_or_insert_with(|| History::new(seed, Vec::new()));
        history.rebase(contents);
        Ok((disk, history.clone()))
    }
}

/// Suspends and resumes the volume, if it is one, a few times while something else goes on.
fn start_suspending(world: &SimWorld, disk: &Arc<dyn Disk>) {
    let (env, disk) = (world.env(1).clone(), disk.clone());
    world.env(1).spawn(async move {
        let Some(device) = disk.mapped() else { return };
        for _ in 0..3 {
            env.sleep(Duration::from_micros(env.random_below(5000))).await;
            let modes = [SuspendMode::Flush, SuspendMode::NoFlush];
            let suspended = device.suspend(&env, modes[env.random_below(2) as usize]).await;
            suspended.expect("nobody planted an error");
            env.sleep(Duration::from_micros(env.random_below(1000))).await;
            let resumed = device.resume(&env).await;
            let whole = resumed.and_then(|resumed| resumed.whole());
            whole.expect("nobody planted an error");
        }
    });
}

/// Suspends the volume, if it is one, as a server does that ends.
fn close(world: &SimWorld, disk: &Arc<dyn Disk>) -> Result<(), Early> {
    let disk = disk.clone();
    let suspended = world.try_block_on(0, |env| async move {
        match disk.mapped() {
            Some(device) => device.suspend(&env, SuspendMode::Flush).await,
            None => Ok(()),
        }
    })?;
    suspended.map_err(|lost| Early::Failed(format!("lost in the last suspend: {lost}")))
}

fn check_contract(world: &SimWorld) -> Result<(), Early> {
    match world.contract_violations() {
        0 => Ok(()),
        count => Err(Early::Failed(format!("{count} requests broke the contract"))),
    }
}

/// What the whole disk holds.
fn read_all(world: &SimWorld, disk: &Arc<dyn Disk>) -> Result<Vec<Content>, Early> {
    let disk = disk.clone();
    let contents = world.try_block_on(0, move |env| async move {
        let mut contents = Vec::new();
        let (mut at, size) = (Sector(0), disk.sectors());
        while at.0 < size.0 {
            let count = SectorCount((size.0 - at.0).min(1024));
            let range = SectorRange::new(at, count);
            let segs = env.segs(count);
            env.io(&disk, Io::read(range, segs.clone())).await.map_err(|error| (range, error))?;
            contents.extend(History::contents(at, &segs.to_vec()));
            at += count;
        }
        Ok(contents)
    })?;
    contents.map_err(|(range, error): (SectorRange, cairn_block::IoError)| {
        Early::Failed(format!("can't read {range}: {error}"))
    })
}

#[cfg(test)]
mod tests;
