//! The registry: all disks and volumes of a world by name. There is one [`Disk`] per identity,
//! under however many names. It also has the kin of targets (the pool of a thin volume, the
//! snapshots of an origin).
//!
//! The registry keeps weak references only: a disk is closed when its last user drops it, on
//! whatever thread that is. Dropping must not block. What takes time (a goodbye over a network) the
//! disk leaves to a task on a reactor, by the [`Post`](crate::Post) of the [`Env`] that opened it;
//! its opener waits for that task before it opens the device again.
//!
//! R1. A device is opened by one task or thread at a time, so it never has two disks.

use std::any::{Any, TypeId};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use event_listener::Event;

use crate::claiming::Claims;
use crate::crash_log::{Content, CrashLogs};
use crate::device::MappedDevice;
use crate::dirty_marker::MarkerBook;
use crate::disk::{Disk, Identity, LocalFuture};
use crate::env::Env;
use crate::error::{ConfigError, ConfigKind};
use crate::failures::FailureCount;
use crate::ids::DeviceId;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::wait::until_some;
use crate::zone_maps::ZoneMaps;

/// Opens what a device argument of a table line names, other than `@VOLUME`.
pub trait Opener: Send + Sync {
    /// The identity of the device that the argument names: the same for two names of one device.
    ///
    /// # Errors
    /// There is no such device.
    fn identify(&self, argument: &str) -> Result<Identity, ConfigError>;

    /// Opens and locks it; blocks the thread. Called once per identity while it is in use. The disk
    /// counts its failures in `failures`.
    ///
    /// # Errors
    /// It can't be opened, or another user has it locked.
    fn open(
        &self,
        argument: &str,
        read_only: bool,
        failures: Arc<FailureCount>,
    ) -> Result<Arc<dyn Disk>, ConfigError>;

    /// The same for a task of a reactor, which must not block. The default is for openers that
    /// wait for nothing.
    ///
    /// # Errors
    /// Those of [`Opener::open`].
    fn open_on<'a>(
        &'a self,
        _env: &'a Env,
        argument: &'a str,
        read_only: bool,
        failures: Arc<FailureCount>,
    ) -> LocalFuture<'a, Result<Arc<dyn Disk>, ConfigError>> {
        Box::pin(std::future::ready(self.open(argument, read_only, failures)))
    }

    /// True if a line opens this device read-only when it only reads it, and it must not change.
    /// False for a device that has a lock for its writer and none for readers: the line takes that
    /// lock, to keep other writers out.
    fn opens_source_read_only(&self, _argument: &str) -> bool {
        true
    }
}

type Kin = HashMap<(Identity, TypeId), Weak<dyn Any + Send + Sync>>;

struct Opened {
    disk: Weak<dyn Disk>,
    read_only: bool,
}

/// The turn to open a device, until dropped (R1).
struct Turn<'a> {
    registry: &'a Registry,
    identity: Identity,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.registry.opening.lock().remove(&self.identity);
        self.registry.turn_ended.notify(usize::MAX);
    }
}

/// The names of one world.
pub struct Registry {
    opener: Box<dyn Opener>,
    disks: Mutex<HashMap<Identity, Opened>>,
    /// What is being opened.
    opening: Mutex<HashSet<Identity>>,
    turn_ended: Event,
    volumes: Mutex<HashMap<String, Arc<MappedDevice>>>,
    kin: Mutex<Kin>,
    claims: Arc<Claims>,
    failure_counts: Mutex<HashMap<Identity, Arc<FailureCount>>>,
    zone_maps: Mutex<Option<Arc<dyn ZoneMaps>>>,
    crash_logs: Mutex<Option<Arc<dyn CrashLogs>>>,
    markers: Mutex<Option<Arc<dyn MarkerBook>>>,
    next_device: AtomicU32,
    next_unique: AtomicU64,
}

impl Registry {
    /// An empty registry over `opener`.
    pub fn new(opener: Box<dyn Opener>) -> Registry {
        Registry {
            opener,
            disks: Mutex::default(),
            opening: Mutex::default(),
            turn_ended: Event::new(),
            volumes: Mutex::default(),
            kin: Mutex::default(),
            claims: Arc::default(),
            failure_counts: Mutex::default(),
            zone_maps: Mutex::default(),
            crash_logs: Mutex::default(),
            markers: Mutex::default(),
            next_device: AtomicU32::new(0),
            next_unique: AtomicU64::new(0),
        }
    }

    /// From now on `maps` keeps the maps of dirty zones of tables that are loaded.
    pub fn set_zone_maps(&self, maps: Arc<dyn ZoneMaps>) {
        *self.zone_maps.lock() = Some(maps);
    }

    /// What keeps them; none if the server has no place for them.
    pub fn zone_maps(&self) -> Option<Arc<dyn ZoneMaps>> {
        self.zone_maps.lock().clone()
    }

    /// From now on caches of tables that are loaded keep dirty markers, and `book` their notes.
    pub fn set_markers(&self, book: Arc<dyn MarkerBook>) {
        *self.markers.lock() = Some(book);
    }

    /// What has the notes of dirty markers; none if the server keeps no markers.
    pub fn markers(&self) -> Option<Arc<dyn MarkerBook>> {
        self.markers.lock().clone()
    }

    /// From now on tables that are loaded have crash logs, and disks that are opened have failure
    /// counts that outlive the process.
    pub fn set_crash_logs(&self, logs: Arc<dyn CrashLogs>) {
        *self.crash_logs.lock() = Some(logs);
    }

    /// Where they are; none if the server has no place for them.
    pub fn crash_logs(&self) -> Option<Arc<dyn CrashLogs>> {
        self.crash_logs.lock().clone()
    }

    /// The failure count of a disk that is about to be opened. A writer has the disk alone, and its
    /// count outlives the process. A reader's begins with what a writer has left there.
    ///
    /// # Errors
    /// Another process has the count, and so the disk.
    fn count_of_disk(
        &self,
        identity: &Identity,
        read_only: bool,
    ) -> Result<Arc<FailureCount>, ConfigError> {
        let (logs, name) = (self.crash_logs(), identity.lasting_name());
        let (Some(logs), Some(name)) = (logs, name) else {
            return Ok(self.failure_count(identity));
        };
        let mut counts = self.failure_counts.lock();
        if let Some(count) = counts.get(identity) {
            return Ok(count.clone());
        }
        let name = format!("failures-{name}");
        let memory = match read_only {
            true => logs.find(&name, Content::Failures)?,
            false => logs.open(&name, Content::Failures)?,
        };
        let count = Arc::new(memory.map_or_else(FailureCount::default, FailureCount::kept));
        if read_only {
            // Another process may write before this one opens the disk again.
            return Ok(count);
        }
        counts.insert(identity.clone(), count.clone());
        Ok(count)
    }

    /// Adds a volume: a mapped device without a table, suspended.
    ///
    /// # Errors
    /// The name is taken or empty.
    pub fn create_volume(&self, name: &str) -> Result<Arc<MappedDevice>, ConfigError> {
        self.create_part(name, name)
    }

    /// Adds a volume that is a part of another one: what a suspended part has claimed, another
    /// part may take over.
    ///
    /// # Errors
    /// The name is taken or empty.
    pub fn create_part(&self, name: &str, of: &str) -> Result<Arc<MappedDevice>, ConfigError> {
        Registry::check_name(name)?;
        let mut volumes = self.volumes.lock();
        if volumes.contains_key(name) {
            let detail = "name: found a volume of this name, expected a new one";
            return Err(ConfigError::new(ConfigKind::Busy, name, detail));
        }
        let id = DeviceId(self.next_device.fetch_add(1, Ordering::Relaxed));
        let failures = self.failure_count(&Identity::Volume(name.to_owned()));
        let device = Arc::new(MappedDevice::new(id, name, of, &self.claims, failures));
        volumes.insert(name.to_owned(), device.clone());
        Ok(device)
    }

    /// Refuses what is no name of a volume.
    ///
    /// # Errors
    /// It is none.
    pub fn check_name(name: &str) -> Result<(), ConfigError> {
        let odd = name.starts_with('@') || name.contains('/') || name.contains(char::is_whitespace);
        if name.is_empty() || odd {
            let expected = "a name without spaces and '/' that does not begin with '@'";
            return Err(ConfigError::argument("volume", "name", format!("'{name}'"), expected));
        }
        Ok(())
    }

    /// The volume of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn volume(&self, name: &str) -> Result<Arc<MappedDevice>, ConfigError> {
        self.volumes.lock().get(name).cloned().ok_or_else(|| {
            let detail = "there is no volume of this name; `cairn ls` lists them";
            ConfigError::new(ConfigKind::Argument, name, detail)
        })
    }

    /// Every volume, by name.
    pub fn volumes(&self) -> Vec<Arc<MappedDevice>> {
        let mut volumes: Vec<_> = self.volumes.lock().values().cloned().collect();
        volumes.sort_by(|a, b| a.volume().cmp(b.volume()));
        volumes
    }

    /// Takes a volume out; its remaining users keep it alive.
    pub fn remove_volume(&self, name: &str) -> Option<Arc<MappedDevice>> {
        self.volumes.lock().remove(name)
    }

    /// Opens the device that an argument of a table line names, or finds it open. Blocks the
    /// thread.
    ///
    /// # Errors
    /// There is no such device, it can't be opened, it is being opened by another user, or it is
    /// open read-only and must be written.
    pub fn open(&self, argument: &str, read_only: bool) -> Result<Arc<dyn Disk>, ConfigError> {
        if let Some(name) = argument.strip_prefix('@') {
            let volume = self.volume(name)?;
            return Ok(volume);
        }
        let identity = self.opener.identify(argument)?;
        if let Some(disk) = self.find(&identity, argument, read_only)? {
            return Ok(disk);
        }
        let turn = self.turn(identity).ok_or_else(|| {
            ConfigError::new(ConfigKind::Busy, argument, "another user is opening it; try again")
        })?;
        // Another user's turn may have ended since.
        if let Some(disk) = self.find(&turn.identity, argument, read_only)? {
            return Ok(disk);
        }
        let failures = match self.count_of_disk(&turn.identity, read_only) {
            Ok(failures) => failures,
            // Who has the count has the disk, and the refusal of the disk says more.
            Err(busy) => {
                self.opener.open(argument, read_only, Arc::default())?;
                return Err(busy);
            }
        };
        let disk = self.opener.open(argument, read_only, failures)?;
        Ok(self.keep(&turn, disk, read_only))
    }

    /// The same for a task of a reactor: waits until the device was opened.
    ///
    /// # Errors
    /// There is no such device, it can't be opened, or it is open read-only and must be written.
    pub async fn open_on(
        &self,
        env: &Env,
        argument: &str,
        read_only: bool,
    ) -> Result<Arc<dyn Disk>, ConfigError> {
        if let Some(name) = argument.strip_prefix('@') {
            let volume = self.volume(name)?;
            return Ok(volume);
        }
        let identity = self.opener.identify(argument)?;
        let turn = until_some(&self.turn_ended, || self.turn(identity.clone())).await;
        if let Some(disk) = self.find(&turn.identity, argument, read_only)? {
            return Ok(disk);
        }
        let failures = match self.count_of_disk(&turn.identity, read_only) {
            Ok(failures) => failures,
            Err(busy) => {
                self.opener.open_on(env, argument, read_only, Arc::default()).await?;
                return Err(busy);
            }
        };
        let disk = self.opener.open_on(env, argument, read_only, failures).await?;
        Ok(self.keep(&turn, disk, read_only))
    }

    /// See [`Opener::opens_source_read_only`].
    pub fn opens_source_read_only(&self, argument: &str) -> bool {
        self.opener.opens_source_read_only(argument)
    }

    /// The turn to open a device, unless somebody has it.
    fn turn(&self, identity: Identity) -> Option<Turn<'_>> {
        let begins = self.opening.lock().insert(identity.clone());
        // Made only if it is this one's: its end is another's begin.
        begins.then(|| Turn { registry: self, identity })
    }

    /// The disk of a device that is open.
    fn find(
        &self,
        identity: &Identity,
        argument: &str,
        read_only: bool,
    ) -> Result<Option<Arc<dyn Disk>>, ConfigError> {
        let disks = self.disks.lock();
        let Some(opened) = disks.get(identity) else { return Ok(None) };
        let disk = opened.disk.upgrade();
        // A disk in memory takes writes, however it was opened.
        let refuses_writes = |disk: &Arc<dyn Disk>| opened.read_only && disk.limits().read_only;
        if !read_only && disk.as_ref().is_some_and(refuses_writes) {
            let detail = "in use by lines that only read it; name another device, or remove them \
                          first";
            return Err(ConfigError::new(ConfigKind::Busy, argument, detail));
        }
        Ok(disk)
    }

    /// Has others find a disk that was opened.
    fn keep(&self, turn: &Turn<'_>, disk: Arc<dyn Disk>, read_only: bool) -> Arc<dyn Disk> {
        let mut disks = self.disks.lock();
        disks.retain(|_, opened| opened.disk.strong_count() > 0);
        disks.insert(turn.identity.clone(), Opened { disk: Arc::downgrade(&disk), read_only });
        disk
    }

    /// The identity of the device that an argument names.
    ///
    /// # Errors
    /// There is no such device.
    pub fn identify(&self, argument: &str) -> Result<Identity, ConfigError> {
        match argument.strip_prefix('@') {
            Some(name) => Ok(Identity::Volume(name.to_owned())),
            None => self.opener.identify(argument),
        }
    }

    /// The identity of an open disk, or of a volume.
    pub fn identity_of(&self, disk: &Arc<dyn Disk>) -> Option<Identity> {
        if let Some(volume) = disk.mapped() {
            return Some(Identity::Volume(volume.volume().to_owned()));
        }
        let disks = self.disks.lock();
        let is_it = |opened: &Opened| std::ptr::addr_eq(opened.disk.as_ptr(), Arc::as_ptr(disk));
        disks.iter().find(|(_, opened)| is_it(opened)).map(|(identity, _)| identity.clone())
    }

    /// The disk with this identity, if it is open, or the volume.
    pub fn opened(&self, identity: &Identity) -> Option<Arc<dyn Disk>> {
        if let Identity::Volume(name) = identity {
            return self.volume(name).ok().map(|volume| volume as Arc<dyn Disk>);
        }
        self.disks.lock().get(identity)?.disk.upgrade()
    }

    /// A disk that is open, and has an identity for which this is true.
    pub fn opened_if(&self, is_it: impl Fn(&Identity) -> bool) -> Option<Arc<dyn Disk>> {
        let disks = self.disks.lock();
        let mut found = disks.iter().filter(|(identity, _)| is_it(identity));
        found.find_map(|(_, opened)| opened.disk.upgrade())
    }

    /// The failure count of what has this identity: it is kept for as long as the world exists,
    /// however often the device is closed and opened.
    pub fn failure_count(&self, identity: &Identity) -> Arc<FailureCount> {
        match identity {
            Identity::Unique(_) => Arc::default(),
            _ => self.failure_counts.lock().entry(identity.clone()).or_default().clone(),
        }
    }

    /// The names of volumes, also removed ones, with losses that no client was told of.
    pub fn untold_losses(&self) -> Vec<String> {
        let untold = |name: &String| {
            let count = self.failure_count(&Identity::Volume(name.clone()));
            let live = self.volumes.lock().get(name).cloned();
            live.map_or(count.count(), |volume| volume.failures()) > count.told()
        };
        let known = self.failure_counts.lock().keys().cloned().collect::<Vec<_>>();
        let names = known.into_iter().filter_map(|identity| match identity {
            Identity::Volume(name) => Some(name),
            _ => None,
        });
        let mut names: Vec<String> = names.filter(untold).collect();
        names.sort();
        names
    }

    /// An identity that no other name leads to.
    pub fn unique(&self) -> Identity {
        Identity::Unique(self.next_unique.fetch_add(1, Ordering::Relaxed))
    }

    /// The shared object of type `T` that belongs to `identity`, made by `make` if there is
    /// none or its last user has gone.
    pub fn kin<T: Any + Send + Sync>(
        &self,
        identity: &Identity,
        make: impl FnOnce() -> Arc<T>,
    ) -> Arc<T> {
        let key = (identity.clone(), TypeId::of::<T>());
        let mut kin = self.kin.lock();
        let found = kin.get(&key).and_then(Weak::upgrade).and_then(|any| any.downcast().ok());
        found.unwrap_or_else(|| {
            let made = make();
            let any: Arc<dyn Any + Send + Sync> = made.clone();
            kin.retain(|_, weak| weak.strong_count() > 0);
            kin.insert(key, Arc::downgrade(&any));
            made
        })
    }
}
