//! [`Server`]: the volumes of one generation as a server holds them, and what its users do to them.
//!
//! Where drives fail, verbs may fail too. A user then tries again, and later replaces the failing
//! drives. If a volume cannot be resumed even then, the generation ends.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::{
    ConfigError, Disk, Env, Io, IoError, KeptLogs, MappedDevice, MessageError, Registry, Sector,
    SectorRange, SuspendMode, Table, TableContext, TableLine, Target, TargetType, TargetTypes,
};

use crate::drive::SimDrive;
use crate::history::History;
use crate::markers::Markers;
use crate::mechanics::Mechanics;
use crate::stamp::Content;
use crate::world::SimWorld;

/// How many times a resume is tried before the drives are replaced, and again afterwards.
const TRIES: u32 = 4;

/// The volumes of one generation, as a task on one reactor uses them.
#[derive(Clone)]
pub struct Server {
    /// The environment of the task's reactor.
    pub env: Env,
    /// The volumes and the drives by name.
    pub registry: Arc<Registry>,
    types: TargetTypes,
    drives: Rc<[Arc<SimDrive>]>,
    /// A process that was killed has left a failure of which no client was told.
    inherits_loss: bool,
}

impl Server {
    /// A server without volumes on the drives of a world.
    pub(super) fn new(
        world: &SimWorld,
        reactor: u16,
        types: Vec<Arc<dyn TargetType>>,
        logs: Arc<KeptLogs>,
        markers: Arc<Markers>,
    ) -> Server {
        let registry = Arc::new(Registry::new(Box::new(world.opener())));
        registry.set_crash_logs(logs);
        registry.set_markers(markers);
        let drives: Rc<[Arc<SimDrive>]> = world.all_drives().into();
        let is_untold = |drive: &Arc<SimDrive>| drive.failures() > drive.failures_told();
        Server {
            env: world.env(reactor).clone(),
            registry,
            types: TargetTypes::new(types),
            inherits_loss: drives.iter().any(is_untold),
            drives,
        }
    }

    /// Waits for less than so many microseconds.
    pub async fn pause(&self, micros: u64) {
        self.env.sleep(Duration::from_micros(self.env.random_below(micros))).await;
    }

    /// A volume that exists.
    pub fn volume(&self, name: &str) -> Arc<MappedDevice> {
        self.registry.volume(name).expect("the scenario created it")
    }

    /// The target of the live table's first line, if the volume has a live table.
    pub fn target(&self, name: &str) -> Option<Arc<dyn Target>> {
        let table = self.registry.volume(name).ok()?.live_table()?;
        Some(table.lines()[0].target.clone())
    }

    /// True if a drive dropped completed writes, which reads may still show.
    pub fn lost_writes(&self) -> bool {
        self.drives.iter().any(|drive| drive.lost_writes())
    }

    /// Creates a volume with this table and resumes it.
    ///
    /// # Errors
    /// Those of the targets' constructors and of the resume.
    pub async fn create(&self, name: &str, table: &str) -> Result<Arc<dyn Disk>, ConfigError> {
        let device = self.registry.create_volume(name)?;
        self.load(name, table).await?;
        Ok(device)
    }

    /// Loads a table into a volume and makes it live.
    ///
    /// # Errors
    /// Those of the targets' constructors and of the resume, and what the swap lost.
    pub async fn load(&self, name: &str, table: &str) -> Result<(), ConfigError> {
        self.build(name, table).await?;
        self.registry.volume(name)?.resume(&self.env).await?.whole()
    }

    async fn build(&self, name: &str, table: &str) -> Result<(), ConfigError> {
        let device = self.registry.volume(name)?;
        let lines = TableLine::parse_all(table)?;
        let context =
            TableContext { types: &self.types, registry: &self.registry, read_only: false };
        let table = Table::build(&self.env, &device, &lines, context).await?;
        device.load(table).await;
        Ok(())
    }

    /// Swaps the table of a volume as a patient user does; a table that cannot be built because
    /// drives fail leaves the old one.
    ///
    /// # Panics
    /// The table is refused although no drive may fail.
    pub async fn swap_or_end(&self, name: &str, table: &str, may_fail: bool) {
        if let Err(refused) = self.build(name, table).await {
            assert!(may_fail, "no drive fails: {refused}");
        }
        self.resume_or_end(&self.volume(name), may_fail).await;
    }

    /// Suspends a volume, flushing or not.
    ///
    /// # Panics
    /// Something was lost although no fault was planted and `may_fail` is false.
    pub async fn suspend_somehow(&self, device: &MappedDevice, may_fail: bool) {
        let modes = [SuspendMode::Flush, SuspendMode::NoFlush];
        let mode = modes[self.env.random_below(2) as usize];
        if let Err(lost) = device.suspend(&self.env, mode).await {
            assert!(self.is_excused(may_fail), "an error that was not planted: {lost}");
        }
    }

    /// Resumes the volume as a patient user does: tries again, and later replaces the failing
    /// drives. If that does not help, the generation ends here.
    ///
    /// # Panics
    /// The volume is not resumed at once and whole, although no fault was planted and `may_fail`
    /// is false.
    pub async fn resume_or_end(&self, device: &MappedDevice, may_fail: bool) {
        for tried in 0..2 * TRIES {
            let resumed = device.resume(&self.env).await;
            let resumed_whole = match resumed {
                Ok(resumed) => resumed.whole().map_err(|lost| (true, lost)),
                Err(refused) => Err((false, refused)),
            };
            let Err((live, error)) = resumed_whole else { return };
            assert!(self.is_excused(may_fail), "an error that was not planted: {error}");
            if live {
                return;
            }
            if tried == TRIES {
                self.drives.iter().for_each(|drive| drive.faults().clear());
            }
            self.env.sleep(Duration::from_millis(1)).await;
        }
        let mechanics: &Rc<Mechanics> = self.env.mechanism().expect("a simulated world");
        mechanics.power_off();
    }

    fn is_excused(&self, may_fail: bool) -> bool {
        may_fail
            || self.inherits_loss
            || self.drives.iter().any(|drive| drive.faults().injected() > 0)
    }

    /// Removes a volume, if there is one of this name.
    ///
    /// # Errors
    /// What was lost.
    pub async fn remove(&self, name: &str) -> Result<(), ConfigError> {
        match self.registry.remove_volume(name) {
            Some(volume) => volume.remove(&self.env).await,
            None => Ok(()),
        }
    }

    /// Sends a message to a volume. It may be refused by a suspended or failing device.
    ///
    /// # Panics
    /// The message is refused for another reason.
    pub async fn message(&self, name: &str, words: &[&str]) {
        let sent = self.volume(name).message(&self.env, Sector(0), words).await;
        match sent {
            Ok(_) | Err(MessageError::Busy(_) | MessageError::Failed(_)) => (),
            Err(refused) => panic!("{words:?}: {refused}"),
        }
    }

    /// The contents of a whole disk, by one read.
    ///
    /// # Errors
    /// That of the read.
    pub async fn read_whole(&self, disk: &Arc<dyn Disk>) -> Result<Vec<Content>, IoError> {
        let segs = self.env.segs(disk.sectors());
        let range = SectorRange::new(Sector(0), disk.sectors());
        self.env.io(disk, Io::read(range, segs.clone())).await?;
        Ok(History::contents(range.start, &segs.to_vec()))
    }
}

/// A generation whose volumes are open.
pub struct Generation<'a> {
    /// The world it runs in.
    pub world: &'a SimWorld,
    /// Its volumes.
    pub server: &'a Server,
    /// The volumes that clients use.
    pub disks: &'a [Arc<dyn Disk>],
}

impl Generation<'_> {
    /// Starts a task on a reactor.
    pub fn start(&self, reactor: u16, task: impl AsyncFnOnce(Server) + 'static) {
        let server = Server { env: self.world.env(reactor).clone(), ..self.server.clone() };
        self.world.env(reactor).spawn(async move { task(server).await });
    }
}
