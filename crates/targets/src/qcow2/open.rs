//! Opening an image: constructor, the tables, the crash log. Also stopping it.
//!
//! The constructor checks arguments and the header only. Resume reads the header again, and all
//! tables. What a killed process had answered is committed before anything is served.

use std::sync::Arc;

use cairn_block::sync::Mutex;
use cairn_block::sync::atomic::{AtomicU64, Ordering};
use cairn_block::{
    ConfigError, ConfigKind, Copier, CrashLog, Ctor, Env, IoError, Left, Record, SECTOR_BYTES,
    SectorCount, Target, failures_beneath, invariants,
};
use cairn_format::qcow2::write::{ZEROS, entry_of, mark_of, mark_with, named_by, set_mark};
use cairn_format::qcow2::{Backing, Header, MAGIC};

use super::acknowledged::{Place, entries_of};
use super::config::{Config, SPEC};
use super::image::{Geometry, Image, Writes};
use super::load::{Found, Loader, failed, header, wrong};
use super::space::Space;
use super::state::State;
use super::tables::Tables;
use super::{COPY_BYTES, Qcow2};
use crate::epochs::Epochs;
use crate::kind::TargetKind;
use crate::losses::{FAILED, UNTOLD};

/// Where a table is that a reader needs for records, and that is not on the disk.
const NO_PLACE: u64 = u64::MAX;

/// The kind of target.
pub const KIND: TargetKind =
    TargetKind { spec: &SPEC, construct: |env, ctor| Box::pin(construct(env, ctor)) };

async fn construct(env: &Env, ctor: Ctor<'_>) -> Result<Arc<dyn Target>, ConfigError> {
    let config = Config::parse(&ctor)?;
    let image = config.device();
    let Found { header, layout, .. } = header(env, &config.image, &image).await?;
    if !ctor.read_only {
        header.refuse_for_writing(&layout).map_err(|error| wrong(&config.image, &error))?;
    }
    let geometry = Geometry::of(&header, &layout);
    refuse_length(&config, &geometry)?;
    refuse_backing(&config, &header)?;
    refuse_small_clusters(&config, &geometry)?;
    refuse_raw_image(env, &config, &header).await?;
    let backing = config.backing.as_ref().map_or(SectorCount::ZERO, |it| it.disk.sectors());
    let entries = layout.l1_entries as usize;
    let crash_log = Place::of(&ctor, &config)?;
    Ok(Arc::new_cyclic(|me| Qcow2 {
        me: me.clone(),
        read_only: ctor.read_only,
        image,
        geometry,
        backing_sectors: backing.0.min(geometry.sectors()),
        failures: ctor.failures.clone(),
        events: ctor.events.clone(),
        crash_log,
        tables: Tables::new(geometry.cluster_bytes, entries),
        state: Mutex::new(State::new(Space::new((geometry.cluster_bytes, 16), (0, 0)))),
        users: Epochs::new(env.post().reactors()),
        withdrawals: AtomicU64::new(0),
        copier: Copier::new(COPY_BYTES),
        tasks: Arc::default(),
        seen_failures: AtomicU64::new(0),
        changed: event_listener::Event::new(),
        config,
    }))
}

/// A cluster is a block of each device at least.
fn refuse_small_clusters(config: &Config, geometry: &Geometry) -> Result<(), ConfigError> {
    let devices = std::iter::once(&config.image).chain(&config.backing);
    for device in devices {
        let block = u64::from(device.disk.limits().logical_block);
        if geometry.cluster_bytes < block {
            let found = geometry.cluster_bytes.to_string();
            let expected = format!("at least the logical block size, {block} bytes");
            return Err(ConfigError::argument(&device.argument, "cluster size", found, &expected));
        }
    }
    Ok(())
}

/// The line is as long as the content.
fn refuse_length(config: &Config, geometry: &Geometry) -> Result<(), ConfigError> {
    let device = &config.image.argument;
    if !geometry.size.is_multiple_of(SECTOR_BYTES) {
        let found = format!("{} bytes", geometry.size);
        return Err(ConfigError::argument(device, "size", found, "whole sectors"));
    }
    if config.sectors == geometry.sectors() {
        return Ok(());
    }
    let found = format!("{} sectors in the table", config.sectors);
    let expected = format!("{}, as in the image", geometry.sectors());
    Err(ConfigError::argument(device, "length", found, &expected))
}

/// The line names a backing device if the image names a backing image.
fn refuse_backing(config: &Config, header: &Header) -> Result<(), ConfigError> {
    let device = &config.image.argument;
    let named = |Backing { name, format }: &Backing| {
        let format = format.as_ref().map(|format| format!(" (format {})", format.escape_debug()));
        format!("'{}'{}, as the image names it", name.escape_debug(), format.unwrap_or_default())
    };
    match (&config.backing, &header.backing) {
        (None, Some(backing)) => {
            Err(ConfigError::argument(device, "backing", "'-'", &named(backing)))
        }
        (Some(backing), None) => {
            let found = format!("'{}'", backing.argument);
            Err(ConfigError::argument(device, "backing", found, "'-': the image has none"))
        }
        (Some(backing), Some(named)) => {
            refuse_format(device, named)?;
            warn_of_another(config, &backing.argument, &named.name);
            let block = u64::from(config.image.disk.limits().logical_block);
            let bytes = backing.disk.sectors().to_bytes();
            if bytes.is_multiple_of(block) {
                return Ok(());
            }
            let expected = format!("a multiple of the image's logical block size, {block} bytes");
            let found = format!("{bytes} bytes");
            Err(ConfigError::argument(&backing.argument, "size", found, &expected))
        }
        (None, None) => Ok(()),
    }
}

/// A backing image of another program's format is no device.
fn refuse_format(device: &str, named: &Backing) -> Result<(), ConfigError> {
    match named.format.as_deref() {
        None | Some("raw" | "qcow2") => Ok(()),
        Some(other) => {
            let found = format!("{} for '{}'", other.escape_debug(), named.name.escape_debug());
            let detail = format!("backing format: found {found}, expected raw or qcow2");
            Err(ConfigError::new(ConfigKind::Unsupported, device, detail))
        }
    }
}

/// The image may name the backing image by another path, but hardly as another file.
fn warn_of_another(config: &Config, argument: &str, named: &str) {
    let last = |name: &str| name.rsplit(['/', ':']).next().map(str::to_owned);
    if last(argument) != last(named) && !argument.starts_with('@') {
        let (volume, device) = (&config.volume, &config.image.argument);
        tracing::warn!(
            "{volume}: {device}: the image names the backing image '{}', the table '{argument}'; \
             with another content the volume is not what it was",
            named.escape_debug()
        );
    }
}

/// The backing device shows the content of an image, not the image.
async fn refuse_raw_image(env: &Env, config: &Config, header: &Header) -> Result<(), ConfigError> {
    let format = header.backing.as_ref().and_then(|backing| backing.format.as_deref());
    let Some(backing) = config.backing.as_ref().filter(|_| format == Some("qcow2")) else {
        return Ok(());
    };
    let image = Image::new(backing.disk.clone());
    if image.bytes() < image.unit {
        return Ok(());
    }
    let first = image.read(env, 0..4).await;
    let first = first.map_err(|error| failed(backing, "read", error))?;
    match first == MAGIC.to_be_bytes() {
        true => {
            let expected = format!("its content: qcow2:{}", backing.argument);
            let found = "an image of qemu";
            Err(ConfigError::argument(&backing.argument, "backing", found, &expected))
        }
        false => Ok(()),
    }
}

impl Qcow2 {
    /// Resume.
    pub(super) async fn start(&self, env: &Env) -> Result<(), ConfigError> {
        let beneath = failures_beneath(self.disk().as_ref());
        let known = self.disk().failures();
        let l1_end =
            (self.geometry.l1.0 + self.geometry.l1.1 * 8).next_multiple_of(self.image.unit);
        if !self.read_only && self.image.bytes() < l1_end {
            // The L1 table ends within a last sector that is not whole.
            self.grow_to_whole_clusters(env).await?;
        }
        let found = header(env, &self.config.image, &self.image).await?;
        self.refuse_change(&found)?;
        let mark = mark_of(found.layout.autoclear);
        if mark != 0 && !self.crash_log.as_ref().is_some_and(|place| place.knows(mark)) {
            tracing::warn!(
                "{}: {}: its last server did not end it, and that server's crash log is not here: \
                 what it had acknowledged and not flushed may be missing",
                self.config.volume,
                self.config.image.argument
            );
        }
        let mut loader = Loader::new(env, &self.config, &self.image, &found);
        loader.to_rewrite = self.is_shown_only(mark, beneath).then(Writes::default);
        if !self.read_only {
            loader.read_refcounts().await?;
        }
        loader.read_mapping(&self.tables).await?;
        let Loader { space, to_rewrite, .. } = loader;
        self.seen_failures.store(known, Ordering::Relaxed);
        {
            let mut state = self.state.lock();
            let losses = std::mem::take(&mut state.losses);
            *state = State { losses, mark, ..State::new(space) };
            state.losses.resume();
        }
        let (log, records) = self.open_crash_log(mark)?;
        if self.read_only {
            return self.enter(&records, known);
        }
        self.make_durable(env, &found, to_rewrite).await?;
        self.complete_last_cluster(env).await?;
        self.enter(&records, known)?;
        self.commit_replay(env, records.len()).await?;
        self.begin_log(env, log, &found, beneath).await?;
        self.ensure_coverage(env).await?;
        if self.disk().failures() != known {
            // What was read, or written since, may not be durable. The next start writes it again.
            return Err(failed(&self.config.image, "start", IoError::IO));
        }
        self.spawn(env, async |own, env| own.commit_periodically(env).await);
        Ok(())
    }

    /// True if what the device shows may not be durable, and no later flush would make it so. The
    /// device has failed since the system started. Or a server has left a mark, and its count of
    /// failures is not known: there is no crash log that names the mark.
    fn is_shown_only(&self, mark: u64, beneath: u64) -> bool {
        let is_known = self.crash_log.as_ref().is_some_and(|place| place.knows(mark));
        !self.read_only && (beneath != 0 || (mark != 0 && !is_known))
    }

    /// Makes durable what the device shows (I10). What was read is written again if that is needed:
    /// entries, refcounts and the header are what later commits rest on.
    async fn make_durable(
        &self,
        env: &Env,
        found: &Found,
        to_rewrite: Option<Writes>,
    ) -> Result<(), ConfigError> {
        let mut writes = Writes::default();
        if let Some(read) = to_rewrite {
            writes = read;
            writes.insert(0, found.first[..self.image.unit as usize].to_vec());
        }
        let written = self.image.write_durably(env, "qcow2: flush of what is shown", &writes).await;
        written.map_err(|error| failed(&self.config.image, "make it durable", error))
    }

    /// The last cluster is made whole if it is used; else it does not count.
    async fn complete_last_cluster(&self, env: &Env) -> Result<(), ConfigError> {
        let whole = self.image.bytes() / self.geometry.cluster_bytes;
        let is_cut = self.state.lock().space.cut(whole);
        match is_cut {
            true => Ok(()),
            false => self.grow_to_whole_clusters(env).await,
        }
    }

    /// True if requests for the image wait for a suspended volume.
    pub(super) fn is_lower_suspended(&self) -> bool {
        self.disk().mapped().is_some_and(|beneath| beneath.is_suspended())
    }

    async fn grow_to_whole_clusters(&self, env: &Env) -> Result<(), ConfigError> {
        let end = (self.image.bytes() + 1).next_multiple_of(self.geometry.cluster_bytes);
        let grown = self.disk().grow(env, SectorCount::of_bytes(end)).await;
        let grown =
            grown.map_err(|error| failed(&self.config.image, "make the image longer", error))?;
        if grown.to_bytes() >= end {
            return Ok(());
        }
        let device = &self.config.image.argument;
        let expected = format!("whole clusters of {} bytes", self.geometry.cluster_bytes);
        Err(ConfigError::argument(device, "size", format!("{} bytes", grown.to_bytes()), &expected))
    }

    /// The header is what it was when the table was loaded, in all that counts.
    fn refuse_change(&self, found: &Found) -> Result<(), ConfigError> {
        if !self.read_only {
            let refused = found.header.refuse_for_writing(&found.layout);
            refused.map_err(|error| wrong(&self.config.image, &error))?;
        }
        refuse_backing(&self.config, &found.header)?;
        if Geometry::of(&found.header, &found.layout) == self.geometry {
            return Ok(());
        }
        let device = &self.config.image.argument;
        let (found, expected) = ("other sizes or places", "those of when the table was loaded");
        Err(ConfigError::argument(device, "header", found, expected))
    }

    /// The crash log, with what a killed process left in it.
    ///
    /// # Errors
    /// It is of another state of the image.
    fn open_crash_log(&self, mark: u64) -> Result<(Option<CrashLog>, Vec<Record>), ConfigError> {
        let Some(place) = self.crash_log.as_ref() else { return Ok((None, Vec::new())) };
        let (log, left) = place.open(mark, &self.config);
        match left {
            Left::Foreign(_) => {
                Err(self.foreign("another program or server has written to the image"))
            }
            Left::Records(records) => Ok((place.is_kept().then_some(log), records)),
        }
    }

    /// Begins the log again: everything in it is durable. The image gets another mark before, which
    /// it has also without a log: see [`Self::is_shown_only`].
    async fn begin_log(
        &self,
        env: &Env,
        mut log: Option<CrashLog>,
        found: &Found,
        beneath: u64,
    ) -> Result<(), ConfigError> {
        let mark = mark_with(env.random_below(1 << 31) << 32);
        if let Some(log) = &mut log {
            log.include(mark);
        }
        let mut first = found.first[..self.image.unit as usize].to_vec();
        set_mark(&mut first, mark);
        let writes = Writes::from([(0, first)]);
        let written = self.image.write_durably(env, "qcow2: flush of the mark", &writes).await;
        written.map_err(|error| failed(&self.config.image, "header: write", error))?;
        let mut state = self.state.lock();
        state.mark = mark;
        state.space.find_leaks();
        let Some((mut log, place)) = log.zip(self.crash_log.as_ref()) else { return Ok(()) };
        let is_lost = log.take_loss();
        log.begin(&place.base(mark, beneath));
        state.acknowledged.keep(Some(log));
        if is_lost {
            tracing::error!(
                "{}: acknowledged writes of a server that was killed may be lost",
                self.config.volume
            );
            state.losses.add(&self.failures);
            state.acknowledged.count_loss();
        }
        Ok(())
    }

    fn foreign(&self, what: &str) -> ConfigError {
        let detail = format!(
            "crash log: a killed server left acknowledged writes, and {what}; \
             `cairn serve --discard-crash-log` gives these writes up"
        );
        ConfigError::new(ConfigKind::Damaged, &self.config.image.argument, detail)
    }

    /// Enters the entries of records; the device failed so often before they were read.
    ///
    /// # Errors
    /// They are of another image.
    fn enter(&self, records: &[Record], known: u64) -> Result<(), ConfigError> {
        let cluster_bytes = self.geometry.cluster_bytes;
        let clusters = self.geometry.size.div_ceil(cluster_bytes);
        let foreign = || self.foreign("a record of them does not go with the image");
        let entries = entries_of(records, clusters, cluster_bytes);
        let mut entries = entries.ok_or_else(foreign)?;
        entries.retain(|at, word| self.tables.word(*at) != *word);
        let mut state = self.state.lock();
        for word in entries.values() {
            let named = named_by(*word);
            let is_whole = match named {
                None => [0, ZEROS].contains(word),
                Some(byte) => byte.is_multiple_of(cluster_bytes) && word & !ZEROS == entry_of(byte),
            };
            let takes = |byte: u64| state.space.take_named(byte / cluster_bytes);
            if !is_whole || !named.is_none_or(takes) {
                return Err(foreign());
            }
        }
        if !self.read_only && !state.space.add_blocks() {
            return Err(foreign());
        }
        for (at, word) in &entries {
            let (index, _) = self.tables.place_of(*at);
            match self.read_only {
                true if self.tables.at(index).is_none() => self.tables.put_empty(index, NO_PLACE),
                false if !self.ensure_table(&mut state, *at) => return Err(foreign()),
                _ => {}
            }
            state.change(&self.tables, *at, *word, named_by(*word).map(|_| known));
        }
        if self.read_only {
            // They are in memory, and never committed.
            (state.changes, state.known) = Default::default();
        }
        Ok(())
    }

    /// Makes durable what records brought.
    async fn commit_replay(&self, env: &Env, records: usize) -> Result<(), ConfigError> {
        if records == 0 {
            return Ok(());
        }
        let committed = self.commit(env).await;
        self.tasks.idle().await;
        let detail = "crash log: could not be made durable";
        committed.map_err(|error| failed(&self.config.image, detail, error))?;
        tracing::warn!(
            "{}: a server was killed: {records} records of acknowledged writes are durable now",
            self.config.volume
        );
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
        // Without it there are leaks, and a mark, which the next start deals with.
        let is_dirty = !self.state.lock().is_durable();
        // What a suspended volume beneath was given is durable since its suspend, and a flush of it
        // would wait.
        let stopped = match self.read_only || (self.is_lower_suspended() && !is_dirty) {
            true => Ok(()),
            false => self.settle(env).await,
        };
        self.tasks.idle().await;
        let mut state = self.state.lock();
        invariants::always(|| state.check_state(&self.tables));
        state.acknowledged.keep(None);
        let are_untold = state.losses.are_untold();
        drop(state);
        let device = &self.config.image.argument;
        match stopped {
            Err(error) => {
                Err(ConfigError::new(ConfigKind::System, device, FAILED).with_source(error))
            }
            Ok(()) if are_untold => Err(ConfigError::new(ConfigKind::System, device, UNTOLD)),
            Ok(()) => Ok(()),
        }
    }

    /// Commits until the disk says what memory says: the refcounts of what a commit releases are
    /// written by the next one. Then the mark goes.
    async fn settle(&self, env: &Env) -> Result<(), IoError> {
        loop {
            self.commit(env).await?;
            self.tasks.idle().await;
            if self.state.lock().is_settled() {
                break;
            }
        }
        let mut first = self.image.read(env, 0..self.image.unit).await?;
        set_mark(&mut first, 0);
        let writes = Writes::from([(0, first)]);
        self.image.write_durably(env, "qcow2: flush of the mark", &writes).await?;
        Ok(())
    }
}
