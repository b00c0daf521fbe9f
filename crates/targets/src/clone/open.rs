//! Opening a clone: constructor, formatting, the crash log. Also stopping it.
//!
//! The constructor checks arguments and the superblock only. Resume reads the superblock again,
//! formats a blank metadata device, and reads the bits. What a killed process had answered is
//! committed before anything is served.

use std::sync::Arc;

use cairn_block::sync::Mutex;
use cairn_block::sync::atomic::{AtomicU64, Ordering};
use cairn_block::{
    ConfigError, ConfigKind, Copier, CrashLog, Ctor, Env, IoError, Left, Record, SectorCount,
    Target, failures_beneath, invariants,
};
use cairn_format::clone::{Opening, Superblock, WORDS_MAX};
use cairn_format::thin::METADATA_BLOCKS_MAX;

use super::acknowledged::{Place, regions_of};
use super::commit::Metadata;
use super::config::{Config, SPEC, Settings};
use super::regions::{Bits, State};
use super::status::METADATA_BLOCK_SECTORS;
use super::{BACKGROUND_BYTES, Clone, FOREGROUND_BYTES};
use crate::blank::Formatting;
use crate::epochs::Epochs;
use crate::fair::Fair;
use crate::kind::TargetKind;
use crate::losses::{FAILED, UNTOLD};
use crate::persistent::{BitStore, Error};

/// The state of a blank metadata device, for its crash log.
const BLANK: u64 = u64::MAX - 1;

/// The kind of target.
pub const KIND: TargetKind =
    TargetKind { spec: &SPEC, construct: |env, ctor| Box::pin(construct(env, ctor)) };

async fn construct(env: &Env, ctor: Ctor<'_>) -> Result<Arc<dyn Target>, ConfigError> {
    let config = Config::parse(&ctor)?;
    let formats = look(env, &config).await?.is_none();
    refuse_too_small(&config, formats)?;
    if formats {
        refuse_to_format(env, &config).await?;
    }
    let crash_log = Place::of(&ctor, &config)?;
    let regions = config.region_size.regions_of(config.sectors);
    Ok(Arc::new_cyclic(|me| Clone {
        me: me.clone(),
        read_only: ctor.read_only,
        source: config.source.disk.clone(),
        destination: config.destination.disk.clone(),
        failures: ctor.failures.clone(),
        events: ctor.events.clone(),
        formats,
        crash_log,
        bits: Bits::new(regions),
        state: Mutex::new(State::new(Settings::of(&config.args))),
        metadata: Fair::new(Metadata { store: None, durable: Vec::new() }),
        writers: Epochs::new(env.post().reactors()),
        foreground: Copier::new(FOREGROUND_BYTES),
        background: Copier::new(BACKGROUND_BYTES),
        tasks: Arc::default(),
        seen_failures: AtomicU64::new(0),
        changed: event_listener::Event::new(),
        config,
    }))
}

fn config_error(config: &Config, error: &Error) -> ConfigError {
    let kind = match error {
        Error::Io { .. } => ConfigKind::System,
        Error::Damaged { .. } => ConfigKind::Damaged,
        _ => ConfigKind::Argument,
    };
    ConfigError::new(kind, &config.metadata.argument, error.to_string())
}

/// The superblock, if there is one.
///
/// # Errors
/// It is damaged, or of a clone with other sizes.
async fn look(env: &Env, config: &Config) -> Result<Option<Superblock>, ConfigError> {
    let opening = BitStore::look(env, &config.metadata.disk).await;
    let superblock = match opening.map_err(|error| config_error(config, &error))? {
        Opening::Blank => return Ok(None),
        Opening::Existing(superblock) => superblock,
    };
    let sizes = [
        ("region_size", config.region_size.sectors(), superblock.region_size.sectors()),
        ("length", config.sectors, superblock.target_sectors),
    ];
    for (field, found, expected) in sizes {
        if found != expected {
            let found = format!("{found} sectors in the table");
            let expected = format!("{expected}, as in the superblock");
            let device = &config.metadata.argument;
            return Err(ConfigError::argument(device, field, found, &expected));
        }
    }
    Ok(Some(superblock))
}

/// Refuses a metadata device without room for the bits: before there is memory for them, which are
/// as many as the destination is large. One that a kernel has formatted may be smaller than one
/// that is formatted here.
fn refuse_too_small(config: &Config, formats: bool) -> Result<(), ConfigError> {
    let regions = config.region_size.regions_of(config.sectors);
    let arrays = regions.div_ceil(64 * WORDS_MAX as u64);
    let least = if formats { BitStore::least_blocks(arrays) } else { arrays + 1 };
    let blocks = config.metadata.disk.sectors().0 / METADATA_BLOCK_SECTORS;
    if least <= blocks.min(METADATA_BLOCKS_MAX) {
        return Ok(());
    }
    let device = &config.metadata.argument;
    let found = format!("{blocks} blocks of 4 KiB");
    let expected = format!("at least {least}, for {regions} regions");
    Err(ConfigError::argument(device, "size", found, &expected))
}

/// Refuses a metadata device that is not blank.
async fn refuse_to_format(env: &Env, config: &Config) -> Result<(), ConfigError> {
    let formatting = Formatting {
        device: &config.metadata,
        start: SectorCount::ZERO,
        kind: "clone",
        options: String::new(),
        is_own_remainder: |_| false,
    };
    match formatting.found(env).await? {
        None => Ok(()),
        Some(found) => {
            let detail = format!(
                "not blank: found {found}, expected the metadata of a clone, or zeros on all of \
                 it"
            );
            Err(ConfigError::new(ConfigKind::Argument, &config.metadata.argument, detail))
        }
    }
}

impl Clone {
    fn error(&self, error: &Error) -> ConfigError {
        config_error(&self.config, error)
    }

    /// Resume.
    pub(super) async fn start(&self, env: &Env) -> Result<(), ConfigError> {
        let beneath = failures_beneath(self.destination.as_ref());
        let known = self.destination.failures();
        let mut metadata = self.metadata.lock().await;
        if look(env, &self.config).await?.is_none() {
            if self.read_only {
                self.take_over(&[0; 0], known);
                return Ok(());
            }
            refuse_to_format(env, &self.config).await?;
            self.open_crash_log(BLANK)?;
            let (disk, size) = (&self.config.metadata.disk, self.config.region_size);
            let formatted = BitStore::format_fresh(env, disk, size, self.config.sectors).await;
            formatted.map_err(|error| self.error(&error))?;
        }
        let disk = &self.config.metadata.disk;
        let opened = BitStore::open(env, disk, self.read_only).await;
        let (store, words) = opened.map_err(|error| self.error(&error))?;
        let crash_log = self.open_crash_log(store.state())?;
        self.take_over(&words, known);
        self.state.lock().blocks = store.blocks();
        *metadata = Metadata { store: Some(store), durable: words };
        drop(metadata);
        let was_complete = self.state.lock().hydrated == self.bits.regions();
        if let Some((log, left)) = crash_log {
            self.replay(env, log, left, beneath).await?;
        }
        if !self.read_only {
            self.spawn(env, async move |clone, env| {
                clone.commit_periodically(env, was_complete).await;
            });
            self.spawn(env, async |clone, env| clone.hydrate(env).await);
        }
        Ok(())
    }

    /// The bits that were read.
    fn take_over(&self, words: &[u64], known: u64) {
        self.bits.load(words);
        self.seen_failures.store(known, Ordering::Relaxed);
        let mut state = self.state.lock();
        state.hydrated = words.iter().map(|word| u64::from(word.count_ones())).sum();
        (state.uncommitted, state.known) = (0, known);
        state.changed.clear();
        state.losses.resume();
        (state.is_failing, state.suspending, state.stopping) = (false, false, false);
        (state.handing_back, state.rests_until) = (false, None);
        invariants::always(|| state.check_state(&self.bits));
    }

    /// The crash log, with what a killed process left in it.
    ///
    /// # Errors
    /// It is of another state of the device.
    fn open_crash_log(&self, state: u64) -> Result<Option<(CrashLog, Left)>, ConfigError> {
        let Some(place) = self.crash_log.as_ref() else { return Ok(None) };
        let (log, left) = place.open(state, &self.config);
        let Left::Foreign(states) = &left else {
            return Ok(place.is_kept().then_some((log, left)));
        };
        let name = |state: u64| format!("{state:016x}");
        let states: Vec<String> = states.iter().copied().map(name).collect();
        let expected = if state == BLANK { "none".to_owned() } else { name(state) };
        let detail = format!(
            "crash log: found acknowledged writes of a killed server on top of state {}, expected \
             {expected} as on the device: it was used by something else, or with other devices; \
             `cairn serve --discard-crash-log` gives these writes up",
            states.join(" and ")
        );
        Err(ConfigError::new(ConfigKind::Damaged, &self.config.metadata.argument, detail))
    }

    /// Hydrates the regions of records again, and commits them (A4 of `acknowledged`).
    async fn replay(
        &self,
        env: &Env,
        mut log: CrashLog,
        left: Left,
        beneath: u64,
    ) -> Result<(), ConfigError> {
        let volume = &self.config.volume;
        if let Left::Records(records) = left
            && !records.is_empty()
        {
            self.enter(&records)?;
            if self.read_only {
                // They are hydrated in memory, and never committed.
                let mut state = self.state.lock();
                state.uncommitted = 0;
                state.changed.clear();
            } else {
                self.commit_replay(env, &mut log).await?;
                tracing::warn!(
                    "{volume}: a server was killed: {} records of acknowledged writes are durable \
                     now",
                    records.len()
                );
            }
        }
        if self.read_only {
            return Ok(());
        }
        let is_lost = log.take_loss();
        let metadata = self.metadata.lock().await;
        let mut state = self.state.lock();
        if let Some((place, store)) = self.crash_log.as_ref().zip(metadata.store.as_ref()) {
            log.begin(&place.base(store.state(), beneath));
        }
        state.acknowledged.keep(Some(log));
        if is_lost {
            tracing::error!(
                "{volume}: acknowledged writes of a server that was killed may be lost"
            );
            state.losses.add(&self.failures);
            state.acknowledged.count_loss();
        }
        Ok(())
    }

    /// Sets the bits of records.
    ///
    /// # Errors
    /// They are of another clone.
    fn enter(&self, records: &[Record]) -> Result<(), ConfigError> {
        let regions = self.bits.regions();
        let Some(runs) = regions_of(records, regions) else {
            let detail = format!(
                "crash log: found a record of regions that do not exist, expected regions below \
                 {regions}"
            );
            let device = &self.config.metadata.argument;
            return Err(ConfigError::new(ConfigKind::Damaged, device, detail));
        };
        let mut state = self.state.lock();
        let known = state.known;
        for region in runs.into_iter().flatten() {
            if !self.bits.is_set(region) {
                state.hydrate(&self.bits, region..region + 1, known);
            }
        }
        Ok(())
    }

    async fn commit_replay(&self, env: &Env, log: &mut CrashLog) -> Result<(), ConfigError> {
        let failed = |device: &str, error: IoError| {
            let detail = "crash log: could not be made durable";
            ConfigError::new(ConfigKind::System, device, detail).with_source(error)
        };
        let mut metadata = self.metadata.lock().await;
        let flushed = env.make_durable(&self.destination).await;
        flushed.map_err(|error| failed(&self.config.destination.argument, error))?;
        let (arrays, known): (Vec<usize>, _) = {
            let mut state = self.state.lock();
            (std::mem::take(&mut state.changed).into_iter().collect(), state.known)
        };
        if known != self.destination.failures() {
            return Err(failed(&self.config.destination.argument, IoError::IO));
        }
        let words = (0..self.bits.words()).map(|at| self.bits.word(at)).collect();
        let Metadata { store, durable } = &mut *metadata;
        *durable = words;
        let store = store.as_mut().expect("it was opened");
        let committed = store.commit(env, durable, &arrays, Some(|state| log.include(state))).await;
        committed.map_err(|error| self.error(&error))?;
        let mut state = self.state.lock();
        (state.uncommitted, state.blocks) = (0, store.blocks());
        Ok(())
    }

    /// Suspend: no request is left. Ends all tasks, with everything durable.
    ///
    /// # Errors
    /// Acknowledged writes may be lost.
    pub(super) async fn stop(&self, env: &Env) -> Result<(), ConfigError> {
        self.state.lock().stopping = true;
        self.changed.notify(usize::MAX);
        self.tasks.idle().await;
        let is_dirty = !self.state.lock().is_durable();
        // What a suspended volume beneath was given is durable since its suspend, and a flush of it
        // would wait.
        let waits = self.destination.mapped().is_some_and(|beneath| beneath.is_suspended());
        let committed = match self.read_only || (waits && !is_dirty) {
            true => Ok(()),
            false => self.commit(env).await,
        };
        self.tasks.idle().await;
        let mut state = self.state.lock();
        invariants::always(|| state.check_state(&self.bits));
        state.acknowledged.keep(None);
        let (are_untold, is_failing) = (state.losses.are_untold(), state.is_failing);
        drop(state);
        let config = &self.config;
        let device = if is_failing { &config.metadata } else { &config.destination };
        let device = &device.argument;
        match committed {
            Err(error) => {
                Err(ConfigError::new(ConfigKind::System, device, FAILED).with_source(error))
            }
            Ok(()) if are_untold => Err(ConfigError::new(ConfigKind::System, device, UNTOLD)),
            Ok(()) => Ok(()),
        }
    }
}
