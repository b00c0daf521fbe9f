//! [`Fixture`]: what a benchmark runs on: real reactors, disks by name, and volumes built over them
//! from table lines.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;

use cairn_backends::{DeviceOpener, MemoryDisk};
use cairn_block::{
    ConfigError, ConfigKind, Disk, Env, FailureCount, Identity, MappedDevice, Opener, ReactorId,
    Registry, Sector, SectorCount, SuspendMode, Table, TableContext, TableLine, TargetType,
    TargetTypes,
};
use cairn_outcome::failure::{Outcome, system, wrong};
use cairn_reactor::{Options, Reactors, RingKind};
use parking_lot::Mutex;

use super::clock::{Moment, Took};

/// Identities of a shelf begin here: the registry counts its own from zero.
const FIRST_UNIQUE: u64 = 1 << 63;

/// Disks by the names that table lines call them.
#[derive(Clone, Default)]
struct Shelf(Arc<Mutex<Disks>>);

/// The identity of each disk, and the disk.
type Disks = HashMap<String, (u64, Arc<dyn Disk>)>;

impl Opener for Shelf {
    fn identify(&self, argument: &str) -> Result<Identity, ConfigError> {
        let shelf = self.0.lock();
        let found = shelf.get(argument).map(|(unique, _)| Identity::Unique(*unique));
        found.ok_or_else(|| wrong(argument, "device", "nothing", "a disk of this bench"))
    }

    fn open(
        &self,
        argument: &str,
        _read_only: bool,
        _failures: Arc<FailureCount>,
    ) -> Result<Arc<dyn Disk>, ConfigError> {
        let shelf = self.0.lock();
        let found = shelf.get(argument).map(|(_, disk)| disk.clone());
        found.ok_or_else(|| wrong(argument, "device", "nothing", "a disk of this bench"))
    }
}

/// Reactors with disks and volumes.
pub struct Fixture {
    reactors: Reactors,
    /// How many.
    count: u16,
    types: Arc<TargetTypes>,
    shelf: Shelf,
    registry: Arc<Registry>,
}

impl Fixture {
    /// One reactor, no disk and no volume.
    ///
    /// # Errors
    /// The system refused a thread or a ring.
    pub fn make() -> Outcome<Fixture> {
        Fixture::with(1, cairn_targets::types())
    }

    /// `count` reactors and these kinds of target, no disk and no volume.
    ///
    /// # Errors
    /// The system refused a thread or a ring.
    pub fn with(count: u16, types: Vec<Arc<dyn TargetType>>) -> Outcome<Fixture> {
        let options = Options { count, ring: RingKind::Auto };
        let reactors = Reactors::start(options)
            .map_err(|error| system("bench", "start of a reactor", error))?;
        let shelf = Shelf::default();
        let registry = Arc::new(Registry::new(Box::new(shelf.clone())));
        let types = Arc::new(TargetTypes::new(types));
        Ok(Fixture { reactors, count, types, shelf, registry })
    }

    /// Gives a disk a name for table lines.
    pub fn put(&self, name: &str, disk: Arc<dyn Disk>) {
        let mut shelf = self.shelf.0.lock();
        let unique = FIRST_UNIQUE + shelf.len() as u64;
        shelf.insert(name.to_owned(), (unique, disk));
    }

    /// A disk in memory under this name.
    ///
    /// # Errors
    /// There is not enough address space.
    pub fn memory(&self, name: &str, bytes: u64) -> Outcome<Arc<dyn Disk>> {
        let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new(SectorCount::of_bytes(bytes))?);
        self.put(name, disk.clone());
        Ok(disk)
    }

    /// Opens a device argument for reading, as a server does: on a reactor.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(&self, argument: &str) -> Outcome<Arc<dyn Disk>> {
        let argument = argument.to_owned();
        self.on(|env| async move {
            DeviceOpener::default().open_on(&env, &argument, true, Arc::default()).await
        })
    }

    /// Runs a future on the first reactor and waits.
    pub fn on<T, F>(&self, make: impl FnOnce(Env) -> F + Send + 'static) -> T
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        self.reactors.block_on(ReactorId(0), make)
    }

    /// Runs a future on every reactor at once and waits for all of them.
    pub fn on_each<T, F>(&self, make: impl Fn(u16, Env) -> F + Send + Sync + 'static) -> Vec<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let make = Arc::new(make);
        std::thread::scope(|scope| {
            let start = |index| {
                let make = make.clone();
                let run =
                    move || self.reactors.block_on(ReactorId(index), move |env| make(index, env));
                scope.spawn(run)
            };
            let started: Vec<_> = (0..self.count).map(start).collect();
            let end = |thread: std::thread::ScopedJoinHandle<'_, T>| thread.join();
            started.into_iter().map(|thread| end(thread).expect("a reactor runs on")).collect()
        })
    }

    /// Brings up a volume.
    ///
    /// # Errors
    /// The table is refused or cannot start.
    pub fn volume(&self, name: &str, table: &str) -> Outcome<Arc<dyn Disk>> {
        let volume = self.registry.create_volume(name)?;
        let (registry, device) = (self.registry.clone(), volume.clone());
        let (lines, types) = (TableLine::parse_all(table)?, self.types.clone());
        self.on(|env| async move {
            let context = TableContext { types: &types, registry: &registry, read_only: false };
            device.load(Table::build(&env, &device, &lines, context).await?).await;
            device.resume(&env).await?.whole()
        })?;
        Ok(volume)
    }

    /// Sends a message to the first target of a volume. Answers how long it took.
    ///
    /// # Errors
    /// The target refuses it.
    pub fn message(&self, name: &str, words: &str) -> Outcome<Took> {
        let (volume, words) = (self.registry.volume(name)?, words.to_owned());
        let told = self.on(|env| async move {
            let words: Vec<&str> = words.split(' ').collect();
            let began = Moment::now();
            volume.message(&env, Sector(0), &words).await.map(|_| began.elapsed())
        });
        told.map_err(|error| ConfigError::new(ConfigKind::System, name, error.to_string()))
    }

    /// Has a volume drain what is dirty. Answers how long it took.
    ///
    /// # Errors
    /// There is none, or it cannot.
    pub fn drain(&self, name: &str) -> Outcome<Took> {
        let volume = self.registry.volume(name)?;
        let drained = self.on(|env| async move {
            let began = Moment::now();
            volume.drain_caches(&env).await.map(|()| began.elapsed())
        });
        drained.map_err(|error| ConfigError::new(ConfigKind::System, name, error.to_string()))
    }

    /// The volume of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn mapped(&self, name: &str) -> Outcome<Arc<MappedDevice>> {
        self.registry.volume(name)
    }

    /// Suspends a volume.
    ///
    /// # Errors
    /// There is none, or its last commit failed.
    pub fn suspend(&self, name: &str) -> Outcome<()> {
        let volume = self.registry.volume(name)?;
        self.on(|env| async move { volume.suspend(&env, SuspendMode::Flush).await })
    }

    /// Resumes it.
    ///
    /// # Errors
    /// There is none, or its table cannot start.
    pub fn resume(&self, name: &str) -> Outcome<()> {
        let volume = self.registry.volume(name)?;
        self.on(|env| async move { volume.resume(&env).await?.whole() })
    }

    /// Ends a volume: it commits and stops.
    ///
    /// # Errors
    /// There is none, or its last commit failed.
    pub fn remove(&self, name: &str) -> Outcome<()> {
        let volume = self.registry.volume(name)?;
        let removed = self.on(|env| async move { volume.remove(&env).await });
        self.registry.remove_volume(name);
        removed
    }
}
