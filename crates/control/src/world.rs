//! The real world: reactors, the registry of devices, kinds of target, and the operations on one
//! volume.
//!
//! Every operation runs on its volume's home reactor while the caller waits, so no function here
//! may be called from a reactor. Records are not kept here: see `verbs`.

use std::collections::HashMap;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use cairn_backends::rbd::TakeOver;
use cairn_backends::{DeviceOpener, Handles};
use cairn_block::{
    CallOff, Claim, ConfigError, ConfigKind, DeviceTraffic, Dirty, Disk, Env, Line, MappedDevice,
    MessageError, NewTable, Opener, ReactorId, Registry, Sector, SectorCount, SuspendMode, Table,
    TableContext, TableLine, TargetTypes, escape_word, unescape_word,
};
use cairn_outcome::failure::{Outcome, system};
use cairn_reactor::{Options, Reactors, RingKind};
use cairn_targets::args::Device;
use cairn_targets::blank::{Formatting, layer_on};
use event_listener::Event;
use futures_util::future::Either;
use parking_lot::Mutex;

use self::crash_logs::CrashLogFiles;
use self::marks::AllMarks;
use self::opener::BaseOpener;
use crate::kept::{Conflict, Reserve, needed, owned};
use crate::measure::{Asked, measured};
use crate::names::parent_of;
use crate::under_way::UnderWay;

mod attached;
mod clock;
mod crash_logs;
mod losses;
mod marks;
mod opener;
mod remotes;
mod stack;
mod stop;

pub use attached::Parted;
pub use remotes::remotes_of;
pub use stop::Ended;

/// The parameters of a world.
pub struct WorldOptions {
    /// How many reactors; none means one per processor, at most four.
    pub reactors: Option<u16>,
    /// Which ring.
    pub ring: RingKind,
    /// Where relative paths in tables begin; none means the current folder.
    pub base: Option<PathBuf>,
    /// Open everything read-only and write no byte.
    pub read_only: bool,
    /// The devices that an earlier process left, and those that are open.
    pub handles: Arc<Handles>,
    /// Sets of bcache on the devices belong to clients: tables may write to backing devices without
    /// their caches.
    pub guest_sets: bool,
    /// Images whose locks are taken from these owners.
    pub take_overs: Vec<TakeOver>,
}

/// Who is who, shared with the reactors.
pub struct Names {
    registry: Registry,
    types: TargetTypes,
    read_only: bool,
}

/// Reactors and the volumes on them.
pub struct World {
    reactors: Arc<Reactors>,
    count: u16,
    names: Arc<Names>,
    base: Option<PathBuf>,
    handles: Arc<Handles>,
    under_way: UnderWay,
    reserve: Reserve,
    /// Sets of bcache on the devices belong to clients (see `attached`).
    sets_of_clients: bool,
    crash_logs: CrashLogFiles,
    marks: AllMarks,
    /// Volumes that could not be brought up at the start, and why.
    not_served: Mutex<HashMap<String, String>>,
    /// Another one for each start.
    start_number: u64,
}

impl Names {
    /// The volume of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn volume(&self, name: &str) -> Outcome<Arc<MappedDevice>> {
        self.registry.volume(name)
    }

    /// Every volume, by name.
    pub fn volumes(&self) -> Vec<Arc<MappedDevice>> {
        self.registry.volumes()
    }
}

impl World {
    /// Starts the reactors.
    ///
    /// # Errors
    /// The system refused a thread or a ring.
    pub fn start(options: WorldOptions) -> Outcome<World> {
        let opener = DeviceOpener::with_handles(options.handles.clone())
            .taking_over(options.take_overs.clone());
        World::start_over(options, Box::new(opener))
    }

    /// The same, over devices that `opener` opens.
    ///
    /// # Errors
    /// The system refused a thread or a ring.
    pub(crate) fn start_over(options: WorldOptions, opener: Box<dyn Opener>) -> Outcome<World> {
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get().min(4));
        let count = options.reactors.unwrap_or(processors as u16);
        let reactors = Reactors::start(Options { count, ring: options.ring })
            .map_err(|error| system("reactors", "start", error))?;
        tracing::debug!("{count} reactors over {}", reactors.ring_name());
        let opener = BaseOpener { base: options.base.clone(), opener };
        let names = Names {
            registry: Registry::new(Box::new(opener)),
            types: TargetTypes::new(cairn_targets::types()),
            read_only: options.read_only,
        };
        let (reactors, names) = (Arc::new(reactors), Arc::new(names));
        let (under_way, reserve) = (UnderWay::default(), Reserve::default());
        let crash_logs = CrashLogFiles::default();
        let (base, handles, not_served) = (options.base, options.handles, Mutex::default());
        let start_number = RandomState::new().hash_one(());
        let sets_of_clients = options.guest_sets;
        Ok(World {
            reactors,
            count,
            names,
            base,
            handles,
            under_way,
            reserve,
            sets_of_clients,
            crash_logs,
            marks: AllMarks::default(),
            not_served,
            start_number,
        })
    }

    /// The reactors.
    pub fn reactors(&self) -> &Arc<Reactors> {
        &self.reactors
    }

    /// Who is who, for tasks on the reactors.
    pub fn names(&self) -> Arc<Names> {
        self.names.clone()
    }

    /// Where the relative paths of tables begin.
    pub fn folder(&self) -> PathBuf {
        self.base.clone().or_else(|| std::env::current_dir().ok()).unwrap_or_default()
    }

    /// Where a path in a table leads.
    pub fn place(&self, argument: &str) -> PathBuf {
        self.base.as_deref().unwrap_or(Path::new("")).join(unescape_word(argument))
    }

    /// A path as a word of a table: relative, if it lies where relative paths begin.
    pub fn argument_of(&self, path: &Path) -> String {
        let inside = self.base.as_deref().and_then(|base| path.strip_prefix(base).ok());
        escape_word(&inside.unwrap_or(path).to_string_lossy())
    }

    /// The device that an argument of a table names.
    ///
    /// # Errors
    /// There is none, or another process holds it.
    pub fn open(&self, argument: &str) -> Outcome<Arc<dyn Disk>> {
        self.open_as(argument, self.read_only())
    }

    /// The same, for reading.
    ///
    /// # Errors
    /// There is none, or another process writes it.
    pub fn open_to_read(&self, argument: &str) -> Outcome<Arc<dyn Disk>> {
        self.open_as(argument, true)
    }

    fn open_as(&self, argument: &str, read_only: bool) -> Outcome<Arc<dyn Disk>> {
        self.patiently(|| {
            let (names, argument) = (self.names.clone(), argument.to_owned());
            self.on_home(&argument.clone(), move |env| async move {
                names.registry.open_on(&env, &argument, read_only).await
            })
        })
    }

    /// Who is who.
    pub fn registry(&self) -> &Registry {
        &self.names.registry
    }

    /// Refuses a device that is not blank. `kind` and `options` are those of the `cairn format`
    /// command that the message proposes.
    ///
    /// # Errors
    /// It is not; or it can't be opened or read.
    pub fn refuse_unless_blank(
        &self,
        argument: &str,
        kind: &'static str,
        options: String,
    ) -> Outcome<()> {
        let device = Device { argument: argument.to_owned(), disk: self.open(argument)? };
        self.on_home(argument, move |env| async move {
            let (device, start) = (&device, SectorCount::ZERO);
            let formatting =
                Formatting { device, start, kind, options, is_own_remainder: |_| false };
            formatting.refuse_unless_blank(&env).await
        })
    }

    /// The signature of a cache, store or pool in the content of a volume, if there is one.
    ///
    /// # Errors
    /// There is no such volume, or it can't be read.
    pub fn layer_in(&self, name: &str) -> Outcome<Option<String>> {
        let device = Device { argument: name.to_owned(), disk: self.volume(name)? };
        self.on_home(name, move |env| async move { layer_on(&env, &device).await })
    }

    /// The kinds of target.
    pub fn types(&self) -> &TargetTypes {
        &self.names.types
    }

    /// The verbs that wait for requests.
    pub fn under_way(&self) -> &UnderWay {
        &self.under_way
    }

    /// Keeps the devices of a volume that is not served (see `kept`).
    pub fn keep<'a>(
        &self,
        name: &str,
        tables: impl IntoIterator<Item = &'a str>,
        has_snapshots: bool,
    ) {
        let mut live = Vec::new();
        for table in self.volumes().iter().filter_map(|volume| volume.live_table()) {
            live.extend(lines_of(&table));
        }
        let identify = |argument: &str| self.names.registry.identify(argument).ok();
        self.reserve.keep(name, needed(tables, has_snapshots), &live, identify);
    }

    /// Keeps the devices that a volume owns until its turn (K6 of `kept`).
    pub fn await_turn<'a>(
        &self,
        name: &str,
        tables: impl IntoIterator<Item = &'a str>,
        has_snapshots: bool,
    ) {
        self.reserve.await_turn(name, owned(tables, has_snapshots));
    }

    /// The unserved volume for which this one is kept.
    pub fn kept_for(&self, name: &str) -> Option<String> {
        if self.read_only() { None } else { self.reserve.owner_of(name) }
    }

    /// True if the volume `name` is kept for `owner`, which is not served or awaits its turn.
    pub fn is_kept_for(&self, name: &str, owner: &str) -> bool {
        !self.read_only() && self.reserve.is_kept_for(name, owner)
    }

    /// Releases the devices that were kept for a volume; false if it was served.
    pub fn let_go(&self, name: &str) -> bool {
        self.reserve.release(name);
        self.not_served.lock().remove(name).is_some()
    }

    /// Notes the volumes that could not be brought up, with the reasons.
    pub fn note_not_served(&self, failures: impl IntoIterator<Item = (String, String)>) {
        self.not_served.lock().extend(failures);
    }

    /// Why a volume could not be brought up at the start.
    pub fn why_not_served(&self, name: &str) -> Option<String> {
        self.not_served.lock().get(name).cloned()
    }

    /// The volumes that could not be brought up at the start.
    pub fn not_served(&self) -> Vec<String> {
        self.not_served.lock().keys().cloned().collect()
    }

    /// Every volume, by name, with what passed it so far.
    pub fn traffic(&self) -> Vec<(Arc<MappedDevice>, DeviceTraffic)> {
        let volumes = self.volumes();
        let asked = volumes.clone();
        let ask = |env| async move { MappedDevice::traffic(&env, &asked).await };
        volumes.into_iter().zip(self.on_home("", ask)).collect()
    }

    /// True if no byte is to be written.
    pub fn read_only(&self) -> bool {
        self.names.read_only
    }

    /// The volume of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn volume(&self, name: &str) -> Outcome<Arc<MappedDevice>> {
        self.names.registry.volume(name).map_err(|error| match self.why_not_served(name) {
            Some(why) => ConfigError::new(error.kind, name, format!("not served: {why}")),
            None => error,
        })
    }

    /// Every volume, by name.
    pub fn volumes(&self) -> Vec<Arc<MappedDevice>> {
        self.names.registry.volumes()
    }

    /// Adds a volume without a table.
    ///
    /// # Errors
    /// The name is taken or no name.
    pub fn create(&self, name: &str) -> Outcome<()> {
        let family = parent_of(name).unwrap_or(name);
        self.names.registry.create_part(name, family).map(drop)
    }

    /// Builds the inactive table. Reads the sizes of the lower devices again first.
    ///
    /// # Errors
    /// The text is no table, a target refuses it, or it would write to what is kept for another
    /// volume.
    pub fn load(&self, name: &str, text: &str) -> Outcome<()> {
        let volume = self.volume(name)?;
        let text = self.measured(name, text)?;
        let lines = TableLine::parse_all(&text).map_err(|error| of_volume(name, error))?;
        self.refuse_kept(name, &lines)?;
        // This thread waits for other programs' locks, so that no reactor does.
        let built = self.patiently(|| {
            let (names, volume, lines) = (self.names.clone(), volume.clone(), lines.clone());
            self.on_home(name, |env| build(env, names, volume, lines))
        });
        built.map_err(|error| of_volume(name, error))
    }

    /// The text of a table for the volume `name`, with a number in place of `N` or `whole`.
    ///
    /// # Errors
    /// The text is no table, or there is no length to take.
    pub fn measured(&self, name: &str, text: &str) -> Outcome<String> {
        let measured = measured(text, |asked| self.length_of(asked));
        measured.map_err(|error| of_volume(name, error))
    }

    /// How long a line may be.
    ///
    /// # Errors
    /// A device is not there, or its content says nothing.
    pub fn length_of(&self, asked: Asked<'_>) -> Outcome<SectorCount> {
        let (measure, words) = match asked {
            Asked::Size(argument) => return self.sectors_of(argument),
            Asked::Content(measure, words) => (measure, words),
        };
        self.patiently(|| {
            let (names, words) = (self.names.clone(), words.to_owned());
            self.on_home("", move |env| async move {
                measure(&env, &names.registry, &words, names.read_only).await
            })
        })
    }

    /// How large a device is now.
    ///
    /// # Errors
    /// There is none.
    pub fn sectors_of(&self, argument: &str) -> Outcome<SectorCount> {
        let disk = self.open_to_read(argument)?;
        disk.refresh()?;
        Ok(disk.sectors())
    }

    /// Refuses lines for the volume `name` that would write to what is kept for another volume.
    ///
    /// # Errors
    /// One line about the device and that volume.
    pub fn refuse_kept(&self, name: &str, lines: &[TableLine]) -> Outcome<()> {
        if self.read_only() {
            return Ok(());
        }
        let identify = |argument: &str| self.names.registry.identify(argument).ok();
        let conflict = self.reserve.conflict(name, lines, identify);
        let Some(Conflict { argument, volume, awaited }) = conflict else { return Ok(()) };
        let detail = match awaited {
            true => format!("kept for '{volume}', which needs it for itself"),
            false => format!(
                "kept for '{volume}', which is not served (cairn state show tells why; \
                 cairn state forget {volume} gives it up)"
            ),
        };
        Err(of_volume(name, ConfigError::new(ConfigKind::Busy, argument, detail)))
    }

    /// Refuses what a resume would refuse because of the claims and writes of other volumes.
    ///
    /// # Errors
    /// One line about the device and its owner.
    pub fn refuse_claimed(&self, name: &str) -> Outcome<()> {
        self.volume(name)?.refuse_claimed().map_err(|error| of_volume(name, error))
    }

    /// Refuses what a new part of the volume `name` could not claim (see
    /// [`MappedDevice::refuse_part`]).
    ///
    /// # Errors
    /// One line about the device and its owner.
    pub fn refuse_part(&self, name: &str, part: &str, claim: &Claim) -> Outcome<()> {
        self.volume(name)?.refuse_part(part, claim).map_err(|error| of_volume(part, error))
    }

    /// Makes the loaded table live, if there is one, and admits requests.
    ///
    /// # Errors
    /// There is no table, or a target cannot start.
    pub fn resume(&self, name: &str) -> Outcome<()> {
        self.resume_with(name, |_| ())
    }

    /// The same. If a table is loaded, `decided` runs on this thread once it is known whether that
    /// starts: before it serves a request, or the former one starts again.
    ///
    /// # Errors
    /// There is no table, a target cannot start, or the loaded table writes to a backing device
    /// without its cache. Of kind [`ConfigKind::Lost`]: the table is live, but acknowledged writes
    /// may be lost.
    pub fn resume_with(&self, name: &str, decided: impl FnOnce(NewTable)) -> Outcome<()> {
        let volume = self.volume(name)?;
        self.refuse_attached(name)?;
        let (tell, told) = channel();
        let run = Arc::new(Event::new());
        let has_run = run.clone();
        self.reactors.spawn(self.home(name), move |env| async move {
            let decided = async |new_table| {
                let has_run = has_run.listen();
                if tell.send(Either::Left(new_table)).is_ok() {
                    has_run.await;
                }
            };
            let resumed = volume.resume_with(&env, decided).await;
            drop(tell.send(Either::Right(resumed)));
        });
        let mut decided = Some(decided);
        let resumed = loop {
            match told.recv().expect("a reactor runs until it is stopped by its owner") {
                Either::Right(resumed) => break resumed,
                Either::Left(new_table) => {
                    decided.take().into_iter().for_each(|decided| decided(new_table));
                    run.notify(usize::MAX);
                }
            }
        };
        match resumed.map_err(|error| of_volume(name, error))?.lost {
            Some(error) => Err(lost(name, "resume", error)),
            None => Ok(()),
        }
    }

    /// Admits requests to the live table again, even if another table is loaded.
    ///
    /// # Errors
    /// There is no such volume, or its table cannot start: it stays suspended.
    pub fn resume_live(&self, name: &str) -> Outcome<()> {
        let volume = self.volume(name)?;
        let resumed = self.on_home(name, |env| async move { volume.resume_live(&env).await });
        resumed.map_err(|error| of_volume(name, error))
    }

    /// Admits no more requests and waits until the targets have stopped.
    ///
    /// # Errors
    /// There is no such volume.
    pub fn suspend(&self, name: &str, mode: SuspendMode) -> Outcome<()> {
        let volume = self.volume(name)?;
        let suspended =
            self.on_home(name, move |env| async move { volume.suspend(&env, mode).await });
        suspended.map_err(|error| lost(name, "suspend", error))
    }

    /// The same, unless it is called off while requests are waited for, as it is once `is_gone`
    /// says so: then the volume serves on, and this answers false.
    ///
    /// # Errors
    /// There is no such volume.
    pub fn suspend_unless(
        &self,
        name: &str,
        mode: SuspendMode,
        call_off: &Arc<CallOff>,
        is_gone: &dyn Fn() -> bool,
    ) -> Outcome<bool> {
        const STEP: Duration = Duration::from_millis(100);
        let volume = self.volume(name)?;
        let (send, receive) = channel();
        let calls = call_off.clone();
        self.reactors.spawn(self.home(name), move |env| async move {
            drop(send.send(volume.suspend_unless(&env, mode, &calls).await));
        });
        loop {
            let suspended = receive.recv_timeout(STEP);
            if is_gone() {
                call_off.call();
            }
            match suspended {
                Ok(suspended) => return suspended.map_err(|error| lost(name, "suspend", error)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    unreachable!("a reactor runs until it is stopped by its owner")
                }
            }
        }
    }

    /// Suspends a volume whose table a verb is about to replace, and flushes the disks of that
    /// table: at the time of the swap a volume beneath may be suspended.
    ///
    /// # Errors
    /// There is no such volume; or it is suspended, but acknowledged writes may be lost.
    pub fn hold(&self, name: &str, mode: SuspendMode) -> Outcome<()> {
        let volume = self.volume(name)?;
        let suspended = self.suspend(name, mode);
        let flushed = self.on_home(name, |env| async move { volume.flush_disks(&env).await });
        suspended.and(flushed.map_err(|error| lost(name, "suspend", error)))
    }

    /// Drops the loaded table.
    ///
    /// # Errors
    /// There is no such volume.
    pub fn clear(&self, name: &str) -> Outcome<()> {
        let volume = self.volume(name)?;
        self.on_home(name, |_env| async move { volume.clear().await });
        Ok(())
    }

    /// Ends a volume that no other one stands on.
    ///
    /// # Errors
    /// There is no such volume, or another one uses it.
    pub fn remove(&self, name: &str) -> Outcome<()> {
        let volume = self.volume(name)?;
        self.refuse_users(name)?;
        let removed = self.on_home(name, |env| async move { volume.remove(&env).await });
        self.names.registry.remove_volume(name);
        self.forget_marks(name);
        removed.map_err(|error| lost(name, "remove", error))
    }

    /// A message: how much stays dirty, and where.
    pub fn what_stays(&self, dirty: &Dirty) -> String {
        format!("{} keeps {} that {} lacks", dirty.device, size_of(dirty), self.origin_of(dirty))
    }

    /// The origin of dirty data as a table names it.
    pub fn origin_of(&self, dirty: &Dirty) -> String {
        self.argument_of(Path::new(&dirty.origin.name()))
    }

    /// Sends a message to the target at `sector` of the live table.
    ///
    /// # Errors
    /// There is no target there, or it refuses.
    pub fn message(&self, name: &str, sector: u64, words: &[String]) -> Outcome<String> {
        let volume = self.volume(name)?;
        let words = words.to_vec();
        let said = self.on_home(name, move |env| async move {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            volume.message(&env, Sector(sector), &words).await
        });
        said.map_err(|error| message_refused(name, &error))
    }

    /// The live table of a volume as it is printed.
    ///
    /// # Errors
    /// There is no such volume.
    pub fn printed(&self, name: &str) -> Outcome<Option<String>> {
        let table = self.volume(name)?.live_table();
        let text = |table: Arc<Table>| {
            lines_of(&table).map(|line| line.to_string()).collect::<Vec<_>>().join("\n")
        };
        Ok(table.map(text))
    }

    /// The lines of a volume's tables, the live one and the one that is loaded.
    pub fn lines_in(&self, volume: &MappedDevice) -> Vec<TableLine> {
        let tables = [volume.live_table(), volume.inactive_table()];
        tables.iter().flatten().flat_map(|table| lines_of(table)).collect()
    }

    /// How much the caches of all volumes have that their origins lack.
    pub fn dirty_bytes(&self) -> u64 {
        let dirty = self.volumes().into_iter().flat_map(|volume| volume.dirty());
        dirty.map(|dirty| dirty.sectors.to_bytes()).fold(0, u64::saturating_add)
    }

    /// Makes the caches of a volume write back their dirty blocks, and waits.
    ///
    /// # Errors
    /// The first that cannot.
    pub fn drain(&self, name: &str) -> Outcome<()> {
        let volume = self.volume(name)?;
        let drained = self.on_home(name, |env| async move { volume.drain_caches(&env).await });
        drained.map_err(|error| message_refused(name, &error))
    }

    /// Detaches the origins of a volume's caches after a drain, and waits. `given_up` names a set
    /// whose data is given up where an origin lacks it. Answers what became of each.
    ///
    /// # Errors
    /// The first that cannot.
    pub fn detach(&self, name: &str, given_up: Option<&str>) -> Outcome<Vec<String>> {
        let (volume, given_up) = (self.volume(name)?, given_up.map(str::to_owned));
        let detached = self.on_home(name, |env| async move {
            volume.detach_caches(&env, given_up.as_deref()).await
        });
        detached.map_err(|error| message_refused(name, &error))
    }

    /// Starts `make`'s future on the home reactor of a volume and waits for its result.
    pub fn on_home<T, F>(&self, name: &str, make: impl FnOnce(Env) -> F + Send + 'static) -> T
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        self.reactors.block_on(self.home(name), make)
    }

    /// The reactor of a volume's verbs and background tasks. Spread by name, so that a volume has
    /// the same one throughout.
    pub fn home(&self, name: &str) -> ReactorId {
        let sum = name.bytes().fold(0u16, |sum, byte| sum.wrapping_add(u16::from(byte)));
        ReactorId(sum % self.count)
    }

    /// Ends the waits when the server stops: requests that wait for a resume fail, and suspends no
    /// longer wait for a target. So the verbs that wait for these end.
    pub fn give_up_waiting(&self) {
        for volume in self.volumes() {
            let name = volume.volume().to_owned();
            self.on_home(&name, move |env| async move { volume.give_up(&env).await });
        }
    }
}

/// True if a device is this volume, or a part of it (see [`of_volume`]).
pub fn is_of(device: &str, volume: &str) -> bool {
    device.strip_prefix(volume).is_some_and(|rest| rest.is_empty() || rest.starts_with(": "))
}

/// The lines of a table as it is printed.
fn lines_of(table: &Table) -> impl Iterator<Item = TableLine> {
    table.lines().iter().map(Line::to_table_line)
}

/// Builds a table and loads it.
async fn build(
    env: Env,
    names: Arc<Names>,
    volume: Arc<MappedDevice>,
    lines: Vec<TableLine>,
) -> Outcome<()> {
    for known in names.registry.volumes() {
        known.refresh()?;
    }
    let (types, registry, read_only) = (&names.types, &names.registry, names.read_only);
    let context = TableContext { types, registry, read_only };
    let table = Table::build(&env, &volume, &lines, context).await?;
    volume.load(table).await;
    Ok(())
}

/// The error of kind `Lost`: the verb has succeeded, but acknowledged writes may be lost.
fn lost(name: &str, verb: &str, error: ConfigError) -> ConfigError {
    let mut lost = of_volume(name, error);
    if lost.kind == ConfigKind::Lost {
        // The error says what is lost.
        return lost;
    }
    lost.kind = ConfigKind::Lost;
    lost.detail =
        format!("{}; {verb} went on, writes since the last flush may be lost", lost.detail);
    lost
}

/// The dirty bytes as text.
pub fn size_of(dirty: &Dirty) -> String {
    format!("{} KiB", dirty.sectors.to_bytes().div_ceil(1024))
}

/// The error for a message that a target refused.
pub fn message_refused(name: &str, error: &MessageError) -> ConfigError {
    let kind = match error {
        MessageError::Invalid(_) => ConfigKind::Argument,
        MessageError::Busy(_) => ConfigKind::Busy,
        MessageError::Failed(_) => ConfigKind::System,
    };
    ConfigError::new(kind, name, error.to_string())
}

/// Names the volume in an error of a part of it.
pub fn of_volume(name: &str, mut error: ConfigError) -> ConfigError {
    if error.device != name {
        let inner = std::mem::take(&mut error.device);
        error.device = if inner.is_empty() { name.to_owned() } else { format!("{name}: {inner}") };
    }
    error
}
