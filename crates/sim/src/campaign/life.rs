//! [`Life`]: the generations of one set of drives, from first use to the last check.
//!
//! L1. After a cut, the contents read are what the drives hold durably: the histories start again
//!     from them ([`History::rebase`]). After a kill the histories continue ([`History::reopen`]).
//! L2. A life whose drives lost completed writes ([`crate::Effect::Lose`]) ends by a cut, not by a
//!     kill. Only the process that used the drives knows of the loss; the next process could not
//!     know that some of what it reads will never be durable.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::{Disk, Io, IoError, KeptLogs, Sector, SectorCount, SectorRange};

use super::server::{Generation, Server};
use super::verbs::{close, start_suspending};
use super::{Images, Scenario, Tally, plant_failures};
use crate::drive::{DriveOptions, SimDrive};
use crate::history::History;
use crate::markers::Markers;
use crate::mechanics::{Cut, CutWhen};
use crate::stamp::Content;
use crate::workload::{Connection, Workload};
use crate::world::{SimWorld, Stopped};

/// Limit on the virtual time of one phase; a longer phase counts as hanging.
const PATIENCE: Duration = Duration::from_secs(600);

/// How the generations of a life end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    Cuts,
    Kills,
    Both,
}

/// Records that half a crash log has room for: some lives fill one.
const LOG_RECORDS: usize = 24;

/// The drives that a generation starts with.
enum Media {
    /// After a power cut, and at first.
    Images(Images),
    /// After a kill.
    Drives(Vec<SimDrive>),
}

/// A volume that clients use, and its history.
type Volume = (Arc<dyn Disk>, History);

/// One life.
pub(super) struct Life<'a, S: Scenario> {
    scenario: &'a S,
    case: Rc<S::Case>,
    rng: fastrand::Rng,
    options: Vec<DriveOptions>,
    media: Media,
    /// The volumes that were opened last.
    server: Option<Server>,
    /// By volume name.
    histories: BTreeMap<String, History>,
    /// They go with the power.
    logs: Arc<KeptLogs>,
    /// They outlast the power, as the state file does.
    markers: Arc<Markers>,
    /// The power was cut since the contents were judged last.
    is_cut: bool,
    history_seed: u64,
    ends: Ends,
    pub tally: Tally,
}

/// Why a generation ended early.
pub(super) enum Early {
    /// The power cut or kill that was planned.
    Ended,
    /// Opening was refused because drives failed.
    Refused,
    /// The check failed.
    Failed(String),
}

impl From<Stopped> for Early {
    fn from(stopped: Stopped) -> Early {
        match stopped {
            Stopped::PowerCut => Early::Ended,
            Stopped::Deadlock => Early::Failed("a request never ended (deadlock)".to_owned()),
            Stopped::TimedOut => Early::Failed(format!("no end within {PATIENCE:?}")),
        }
    }
}

impl<'a, S: Scenario> Life<'a, S> {
    pub fn new(scenario: &'a S, seed: u64, cut: u64) -> Life<'a, S> {
        let mut rng = fastrand::Rng::with_seed(seed ^ cut.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (mut options, mut images) = (Vec::new(), Images::new());
        let (case, drives) = scenario.begin(&mut rng);
        for (mut drive, image) in drives {
            drive.torn_reads = rng.bool();
            // The other lives copy by reading and writing, as with files.
            drive.copies = cut.is_multiple_of(3);
            // Some drives need no flush, in any mixture with others.
            drive.volatile_cache &= !(cut + options.len() as u64).is_multiple_of(5);
            images.insert(drive.name.clone(), image);
            options.push(drive);
        }
        let (history_seed, histories) = (rng.u64(..), BTreeMap::new());
        let drawn = [Ends::Cuts, Ends::Kills, Ends::Both][rng.usize(..3)];
        let ends = if scenario.outlives_cuts() { drawn } else { Ends::Kills };
        let (media, tally) = (Media::Images(images), Tally::default());
        let (case, server) = (Rc::new(case), None);
        let logs = Arc::new(KeptLogs::new(LOG_RECORDS));
        Life {
            scenario,
            case,
            rng,
            options,
            media,
            server,
            histories,
            logs,
            markers: Arc::default(),
            is_cut: false,
            history_seed,
            ends,
            tally,
        }
    }

    pub fn run(&mut self) -> Result<(), String> {
        let generations = self.rng.u32(1..=3);
        for generation in 0..generations {
            let told = |text| format!("generation {generation}: {text}");
            let world = self.world();
            match self.generation(&world) {
                Ok(()) | Err(Early::Ended) => {}
                Err(Early::Refused) => self.tally.refused += 1,
                Err(Early::Failed(text)) => return Err(told(text)),
            }
            self.end(&world).map_err(told)?;
        }
        // A cut after the last kill may still lose what the kill left volatile.
        while matches!(self.media, Media::Drives(_)) && self.scenario.outlives_cuts() {
            let world = self.last_look("after the last kill")?;
            self.ends = Ends::Cuts;
            self.end(&world).map_err(|text| format!("after the last kill: {text}"))?;
        }
        self.last_look("at the end").map(drop)
    }

    fn last_look(&mut self, when: &str) -> Result<SimWorld, String> {
        let world = self.world();
        match self.open_and_judge(&world) {
            Ok(_) => Ok(world),
            Err(Early::Ended | Early::Refused) => {
                unreachable!("no end and no fault is planned here")
            }
            Err(Early::Failed(text)) => Err(format!("{when}: {text}")),
        }
    }

    fn world(&mut self) -> SimWorld {
        let world = SimWorld::new(self.rng.u64(..), SimWorld::REACTORS);
        world.set_patience(PATIENCE);
        match &mut self.media {
            Media::Images(images) => {
                for options in &self.options {
                    let drive = world.add_drive(options.clone(), images[&options.name].clone());
                    if drive.is_remote() {
                        drive.share(&self.markers);
                    }
                }
            }
            Media::Drives(drives) => drives.drain(..).for_each(|drive| world.add_survivor(drive)),
        }
        world
    }

    /// Opens, checks and works, until the work is done or the world ends.
    fn generation(&mut self, world: &SimWorld) -> Result<(), Early> {
        if !self.histories.is_empty() {
            if self.rng.u8(..4) == 0 {
                world.cut_at(self.draw_end(0, 16));
            }
            if self.scenario.fails_at_start() && self.rng.u8(..4) == 0 {
                let often = [100, 300][self.rng.usize(..2)];
                plant_failures(&world.all_drives(), often, Some(2), &mut self.rng);
            }
        }
        let volumes = self.open_and_judge(world)?;
        // A process that was killed knew of losses that no client was told of; or a drive failed
        // just now.
        let may_fail = volumes.iter().any(|(disk, _)| disk.failures() > disk.failures_told());
        let may_fail = may_fail || world.injected() > 0;
        for (_, history) in &volumes {
            history.tolerate_errors(may_fail);
        }
        let clients = self.connect(world, &volumes);
        let workload = self.scenario.workload(&self.case, &mut self.rng);
        world.cut_at(self.draw_end(world.writes(), workload.ops.max(1) * 3));
        if self.rng.u8(..3) == 0 {
            flush(world, &clients)?;
        }
        let disks: Vec<_> = volumes.iter().map(|(disk, _)| disk.clone()).collect();
        let server = self.server.clone().expect("volumes were opened");
        let generation = Generation { world, server: &server, disks: &disks };
        let tolerate = self.scenario.trouble(&self.case, &generation, &mut self.rng) | may_fail;
        for (_, history) in &volumes {
            history.tolerate_errors(tolerate);
            let rolls_back = self.scenario.rolls_back();
            history.failed_flushes_lose(rolls_back || world.failed_flushes_lose());
            history.may_roll_back(rolls_back);
        }
        let suspends = if self.scenario.suspends() { self.rng.u8(..8) } else { 0 };
        if suspends & 6 == 6 {
            let disk = &disks[self.rng.usize(..disks.len())];
            start_suspending(&generation, disk, tolerate);
        }
        let ended = self.work(world, workload, &clients);
        for (_, history) in &volumes {
            history.verdict().map_err(|wrong| Early::Failed(wrong.to_string()))?;
        }
        ended?;
        if suspends & 1 == 1 {
            close(world, &server.registry, &clients)?;
        }
        check_contract(world)
    }

    /// Connects one or two clients of each volume.
    fn connect(&mut self, world: &SimWorld, volumes: &[Volume]) -> Vec<Vec<Connection>> {
        let of_volume = |(disk, history): &Volume| {
            let count = self.rng.usize(1..=2);
            (0..count).map(|_| Connection::new(world, disk, history)).collect()
        };
        volumes.iter().map(of_volume).collect()
    }

    /// Runs the workload, divided among the clients of all volumes.
    fn work(
        &mut self,
        world: &SimWorld,
        whole: Workload,
        clients: &[Vec<Connection>],
    ) -> Result<(), Stopped> {
        let count = clients.len() as u64;
        let mut running = Vec::new();
        for of_volume in clients {
            let mut share = whole;
            share.seed = self.rng.u64(..);
            share.ops = whole.ops.div_ceil(count);
            if self.rng.u8(..6) == 0 {
                (share.mix.flush, share.mix.fua) = (0, 0);
            }
            running.push(share.start_for(world, of_volume.clone()));
        }
        world.try_run_until(|| running.iter().all(|running| running.is_done()))
    }

    fn draw_end(&mut self, from: u64, count: u64) -> Cut {
        let when = if self.rng.bool() { CutWhen::Submitted } else { CutWhen::Completed };
        // Squared, so that short generations are as likely as long ones.
        let far = self.rng.u64(0..=count) * self.rng.u64(0..=count) / count;
        Cut { index: from + far, when }
    }

    /// Ends the generation here, if it has not ended: by a cut or a kill.
    fn end(&mut self, world: &SimWorld) -> Result<(), String> {
        world.power_off();
        self.tally.injected += world.injected();
        let drives = world.all_drives();
        let lost = drives.iter().any(|drive| drive.lost_writes());
        let kill = match self.ends {
            Ends::Cuts => false,
            Ends::Kills => !lost,
            Ends::Both => self.rng.bool() && !lost,
        };
        let images: Images;
        if kill {
            self.tally.kills += 1;
            self.histories.values().for_each(History::kill);
            let survivors: Vec<_> = drives.iter().map(|drive| drive.after_kill()).collect();
            images = survivors.iter().map(|drive| (drive.name(), drive.visible())).collect();
            self.media = Media::Drives(survivors);
            self.logs = Arc::new(self.logs.after_kill());
        } else {
            self.tally.cuts += 1;
            self.logs = Arc::new(KeptLogs::new(LOG_RECORDS));
            self.is_cut = true;
            images = world.images_after_power_cut(&mut self.rng).into_iter().collect();
            self.media = Media::Images(images.clone());
        }
        self.scenario
            .check_metadata(&self.case, &images)
            .map_err(|text| format!("metadata: {text}"))
    }

    /// Opens the volumes, reads everything, and checks it against the histories, if there are any.
    fn open_and_judge(&mut self, world: &SimWorld) -> Result<Vec<Volume>, Early> {
        let reactor = self.rng.u16(..world.reactors());
        let server = Server::new(
            world,
            reactor,
            self.scenario.types(),
            self.logs.clone(),
            self.markers.clone(),
        );
        self.server = Some(server.clone());
        let case = self.case.clone();
        let opened = world.try_block_on(reactor, |_| self.scenario.open(case, server))?;
        let failing = world.injected() > 0;
        let refuse = |text| if failing { Early::Refused } else { Early::Failed(text) };
        world.all_drives().iter().for_each(|drive| drive.faults().clear());
        let disks = opened.map_err(|refused| refuse(format!("refused to open: {refused}")))?;
        let mut volumes = Vec::new();
        for disk in disks {
            let contents = read_all(world, &disk)?.map_err(refuse)?;
            if let Some(history) = self.histories.get(&disk.name()) {
                // What a failure has lost is told to the clients.
                let is_told = disk.failures() > disk.failures_told();
                let outlives = !self.is_cut && !is_told && self.scenario.outlives_kills();
                let checked = match outlives {
                    true => history.check_after_kill(&contents),
                    false => history.check_after_crash(&contents),
                };
                checked.map_err(|wrong| Early::Failed(format!("{}: {wrong}", disk.name())))?;
            }
            if read_all(world, &disk)?.map_err(refuse)? != contents {
                let text = format!("{}: read twice, found two things", disk.name());
                return Err(Early::Failed(text));
            }
            volumes.push((disk, contents));
        }
        check_contract(world)?;
        self.is_cut = false;
        Ok(volumes.into_iter().map(|(disk, contents)| self.go_on(disk, contents)).collect())
    }

    /// L1.
    fn go_on(&mut self, disk: Arc<dyn Disk>, contents: Vec<Content>) -> Volume {
        let seed = self.history_seed ^ self.histories.len() as u64;
        let known = self.histories.get(&disk.name()).cloned();
        let history = match (known, &self.media) {
            (Some(history), Media::Drives(_)) => {
                history.reopen(&contents);
                history
            }
            (Some(history), Media::Images(_)) => {
                history.rebase(contents);
                history
            }
            (None, _) => History::new(seed, contents),
        };
        self.histories.insert(disk.name(), history.clone());
        (disk, history)
    }
}

/// Flushes each volume, as its first client.
fn flush(world: &SimWorld, clients: &[Vec<Connection>]) -> Result<(), Early> {
    for of_volume in clients {
        let client = of_volume[0].clone();
        world.try_block_on(0, |env| async move { client.flush(&env).await })?;
    }
    Ok(())
}

pub(super) fn check_contract(world: &SimWorld) -> Result<(), Early> {
    match world.contract_violations() {
        0 => Ok(()),
        count => Err(Early::Failed(format!("{count} requests broke the contract"))),
    }
}

/// The contents of the whole disk, or why they cannot be read.
fn read_all(world: &SimWorld, disk: &Arc<dyn Disk>) -> Result<Result<Vec<Content>, String>, Early> {
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
    Ok(contents
        .map_err(|(range, error): (SectorRange, IoError)| format!("can't read {range}: {error}")))
}
