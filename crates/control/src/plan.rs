//! The plan of a start: which volumes a server brings up, in which order. It merges the configured
//! volumes and messages with the records of the state file.
//!
//! A volume is brought up with all its lines at its place in the order, or earlier if the table of
//! an earlier volume names it with `@`. A record wins over the configuration under which it was
//! made. If the configuration has changed since, it must be equal to the record; otherwise the
//! volume is not brought up, so that neither the record nor the change is lost.
//!
//! A volume with snapshots is brought up as a whole when any part of it is named: first its own
//! table, then its snapshots, a merge, the volumes that stand on the merge, and the volume itself.
//! So no client writes to an origin before every recorded snapshot of it is live. The store of a
//! recorded snapshot is never formatted; it is marked invalid if the record says that the snapshot
//! ended. The metadata of a pool with recorded volumes is never formatted either.
//!
//! A volume that cannot be brought up is left out, with all volumes that stand on it, and with its
//! whole family if it has snapshots. The other volumes are brought up. Its record stays.
//!
//! The devices that such a volume needs are kept for it (see `kept`). The devices that a volume
//! owns are also kept before its turn.
//!
//! If the server was killed during a swap of tables, the record has the old table as `former`. The
//! start serves `former` if the new table cannot start. See `verbs::volume::swap`.
//!
//! A pool that was being grown has the longer table as its inactive table. The start brings up the
//! shorter one, or the longer one if the metadata has already grown: see `verbs::pool`.

use std::collections::{BTreeSet, HashMap, HashSet};

use cairn_block::{ConfigError, ConfigKind, SectorCount, TableLine};
use cairn_outcome::failure::{Outcome, one_line, refused, wrong};
use cairn_targets::bcache::without_cache;

use crate::caches::{Caches, Leave};
use crate::lasting::lasting;
use crate::measure::{Asked, measured, sectors_of};
use crate::names::{is_hidden, parent_of, real_of, refuse_at_sign};
use crate::state::{Export, Record, StateFile, is_same_table};
use crate::thin_line::ThinLine;
use crate::verbs::pool;
use crate::verbs::snap::{assemble, store};
use crate::verbs::steps::log_undo_failure;
use crate::verbs::thin::lost_name;
use crate::verbs::volume::VolumeMessage;
use crate::world::{World, of_volume};

/// One step of the start.
#[derive(Debug, PartialEq, Eq)]
enum Act {
    /// Bring up a volume.
    Volume(String),
    /// Send a message.
    Message(VolumeMessage),
}

/// The volumes that were brought up or tried.
#[derive(Default)]
struct Begun<'a> {
    all: HashSet<&'a str>,
    /// New records: of names without a volume, and of pools that have grown.
    changed: Vec<Record>,
    /// The volumes that could not be brought up, in the order of the attempts.
    failed: Vec<Failure>,
}

impl Begun<'_> {
    fn failure_of(&self, name: &str) -> Option<&Failure> {
        self.failed.iter().find(|failure| failure.name == name)
    }

    fn fail(&mut self, name: &str, error: &ConfigError) {
        let (name, why) = (name.to_owned(), one_line(error));
        self.failed.push(Failure { name, kind: error.kind, why });
    }
}

/// A volume that could not be brought up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The volume.
    pub name: String,
    kind: ConfigKind,
    why: String,
}

impl Failure {
    /// The kind of the error.
    pub fn kind(&self) -> ConfigKind {
        self.kind
    }

    /// The failure as an error.
    pub fn error(&self) -> ConfigError {
        ConfigError::new(self.kind, "", self.why.clone())
    }

    /// The reason, on one line.
    pub fn why(&self) -> &str {
        &self.why
    }
}

/// The result of a start.
#[derive(Debug, Default)]
pub struct BroughtUp {
    /// Records that are to be replaced.
    pub changed: Vec<Record>,
    /// The volumes that are missing, in the order of the attempts.
    pub failed: Vec<Failure>,
}

/// The volumes to bring up, and the messages to send.
#[derive(Debug, Default)]
pub struct Plan {
    acts: Vec<Act>,
    volumes: Vec<Record>,
    /// Snapshots whose content is lost although their stores may look valid.
    lost: HashSet<String>,
    /// Volumes whose configuration contradicts what is recorded, or whose images are missing, with
    /// the refusal.
    contradicted: HashMap<String, Failure>,
    /// Records that are equal to the configuration by now.
    settled: Vec<Record>,
    /// The names of volumes that could not be brought up.
    missing: HashSet<String>,
    /// The state file, which has the records of caches.
    state: Option<StateFile>,
    /// A message that is refused ends nothing.
    forgives: bool,
}

impl Plan {
    /// Adds a volume with these lines, or the lines to the volume that the plan has already.
    ///
    /// # Errors
    /// The name is that of a snapshot.
    pub fn add_table(&mut self, name: &str, lines: &str) -> Outcome<()> {
        refuse_at_sign(name)?;
        self.append(name, lines);
        Ok(())
    }

    /// From now on a message that is refused is only logged: an earlier process has sent it.
    pub fn forgive_messages(&mut self) {
        self.forgives = true;
    }

    /// Refuses tables that no start could build: lines, kinds of target, and the number of their
    /// words. Opens no device.
    ///
    /// # Errors
    /// The first such table.
    pub fn check_words(&self) -> Outcome<()> {
        for record in &self.volumes {
            let Some(table) = &record.table else { continue };
            let of_record = |error| of_volume(&record.name, error);
            for line in TableLine::parse_all(table).map_err(of_record)? {
                let Some(spec) = cairn_targets::spec(&line.target) else {
                    let found = format!("'{}'", line.target);
                    return Err(wrong(&record.name, "target", found, "a kind of `cairn targets`"));
                };
                spec.split(line.args.iter().map(String::as_str)).1.map_err(of_record)?;
            }
        }
        Ok(())
    }

    /// Adds a message, which is sent after the steps before it.
    pub fn add_message(&mut self, message: VolumeMessage) {
        self.acts.push(Act::Message(message));
    }

    fn append(&mut self, name: &str, lines: &str) {
        if let Some(known) = self.volumes.iter_mut().find(|known| known.name == name) {
            let text = format!("{}\n{}", known.table.as_deref().unwrap_or_default(), lines);
            *known = Record::as_configured(name, Some(&text));
            return;
        }
        self.volumes.push(Record::as_configured(name, Some(lines)));
        self.acts.push(Act::Volume(name.to_owned()));
    }

    /// Lets the records of the state file override the configuration, and logs each difference. A
    /// record that is equal to the configuration is no longer needed.
    pub fn restore(&mut self, state: &StateFile) {
        self.state = Some(state.clone());
        let records = state.records();
        for record in &records {
            if state.is_lost(&record.name) {
                self.lost.insert(record.name.clone());
            }
            let known = self.volumes.iter().position(|known| known.name == record.name);
            let configured = known.and_then(|known| self.volumes[known].configured.clone());
            let own = own_table(&records, record);
            let was = record.configured.as_deref();
            let mut record = record.clone();
            if is_same_table(configured.as_deref(), was) {
                if configured.is_some() && !is_same_table(configured.as_deref(), own) {
                    tell_override(&record, own, state);
                }
            } else if configured.is_some() && is_same_table(configured.as_deref(), own) {
                tracing::info!("{}: configured as it is recorded", record.name);
                record.configured = configured;
                if record.table.as_deref() == own {
                    record.table.clone_from(&record.configured);
                }
                self.settled.push(record.clone());
            } else {
                let failure = contradiction(&record, state);
                self.contradicted.insert(record.name.clone(), failure);
            }
            match known {
                Some(known) => self.volumes[known] = record,
                None => {
                    self.acts.push(Act::Volume(record.name.clone()));
                    self.volumes.push(record);
                }
            }
        }
    }

    /// Serves lines of bcache, for this run, as if their caches were gone; with `stale_ok` even
    /// what is old. Answers whether there is such a line. A text that is no table is left for its
    /// turn.
    pub fn leave_caches_out(&mut self, stale_ok: bool) -> bool {
        let mut is_any = false;
        for record in &mut self.volumes {
            for text in [&mut record.table, &mut record.configured, &mut record.former] {
                let lines = text.as_deref().map(TableLine::parse_all);
                let Some(Ok(mut lines)) = lines else { continue };
                let changes = lines.iter_mut().map(|line| without_cache(line, stale_ok));
                if changes.fold(false, |any, it| any | it) {
                    let lines: Vec<String> = lines.iter().map(TableLine::to_string).collect();
                    *text = Some(lines.join("\n"));
                    is_any = true;
                }
            }
        }
        is_any
    }

    /// Every volume with its tables.
    pub fn records(&self) -> &[Record] {
        &self.volumes
    }

    /// The names of the volumes that the start brings up, without those that failed.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let there = self.volumes.iter().filter(|record| record.table.is_some());
        let names = there.map(|record| record.name.as_str());
        names.filter(|name| !self.missing.contains(*name))
    }

    /// The arguments of each volume's tables, with those of the volumes beneath it.
    pub fn arguments(&self) -> Vec<(String, Vec<String>)> {
        let own = |name: &str| -> Vec<&str> {
            let records = self.volumes.iter().filter(|record| record.name == name);
            let tables = records.flat_map(|record| [&record.table, &record.former]).flatten();
            tables.flat_map(|table| table.split_whitespace()).collect()
        };
        let all_of = |name: &str| {
            let (mut seen, mut names, mut all) = (HashSet::new(), vec![name], Vec::new());
            while let Some(name) = names.pop() {
                if seen.insert(name) {
                    all.extend(own(name));
                    names.extend(own(name).iter().filter_map(|word| word.strip_prefix('@')));
                }
            }
            all.into_iter().map(str::to_owned).collect()
        };
        self.names().map(|name| (name.to_owned(), all_of(name))).collect()
    }

    /// Refuses a volume at its turn, with this error.
    pub fn refuse(&mut self, name: &str, error: ConfigError) {
        let failure = Failure { name: name.to_owned(), kind: error.kind, why: one_line(&error) };
        self.contradicted.entry(name.to_owned()).or_insert(failure);
    }

    /// True for a volume that is configured or recorded, even if it was removed.
    pub fn knows(&self, name: &str) -> bool {
        self.volumes.iter().any(|record| record.name == name)
    }

    /// True for a volume that is configured, not only made by a verb.
    pub fn is_configured(&self, name: &str) -> bool {
        let mut volumes = self.volumes.iter();
        volumes.any(|record| record.name == name && record.configured.is_some())
    }

    /// Brings up the volumes and sends the messages. The name of a thin volume that its pool does
    /// not have any more is dropped, with a notice.
    ///
    /// # Errors
    /// A message is refused; the volumes that are up stay up. A volume that cannot be brought up is
    /// not an error.
    pub fn bring_up(&mut self, world: &World) -> Outcome<BroughtUp> {
        self.measure(world);
        let Begun { changed, failed, .. } = self.act(world)?;
        for record in &changed {
            let known = self.volumes.iter_mut().find(|known| known.name == record.name);
            *known.expect("it was brought up from there") = record.clone();
        }
        self.missing = failed.iter().map(|failure| failure.name.clone()).collect();
        let settled = std::mem::take(&mut self.settled).into_iter();
        let settled = settled.filter(|record| changed.iter().all(|new| new.name != record.name));
        let changed = settled.chain(changed.iter().cloned()).collect();
        Ok(BroughtUp { changed, failed })
    }

    /// Replaces the lengths `N` and `whole` by numbers. A volume whose device is missing is refused
    /// at its turn.
    fn measure(&mut self, world: &World) {
        let mut goes_on = true;
        while std::mem::take(&mut goes_on) {
            for at in 0..self.volumes.len() {
                let Some(table) = self.volumes[at].table.clone() else { continue };
                if sectors_of(&table).is_some() {
                    continue;
                }
                let ask = |asked: Asked<'_>| match asked {
                    Asked::Size(device) => self.size_of(world, device),
                    content @ Asked::Content(..) => world.length_of(content),
                };
                let Ok(measured) = measured(&table, ask) else { continue };
                goes_on |= sectors_of(&measured).is_some();
                let record = &mut self.volumes[at];
                if is_same_table(record.configured.as_deref(), Some(&table)) {
                    record.configured = Some(measured.clone());
                }
                record.table = Some(measured);
            }
        }
    }

    /// The size of a device, also of a volume that is not up yet.
    fn size_of(&self, world: &World, argument: &str) -> Outcome<SectorCount> {
        let Some(name) = argument.strip_prefix('@') else { return world.sectors_of(argument) };
        let table = self.volumes.iter().find(|record| record.name == name);
        let sectors = table.and_then(|record| sectors_of(record.table.as_deref()?));
        sectors.ok_or_else(|| wrong(name, "size", "unknown", "a volume whose table has a length"))
    }

    fn act(&self, world: &World) -> Outcome<Begun<'_>> {
        let mut begun = Begun::default();
        self.keep_contradicted(world);
        for record in &self.volumes {
            let (tables, has_snapshots) = self.tables_of(record);
            world.await_turn(&record.name, tables, has_snapshots);
        }
        for act in &self.acts {
            match act {
                // Its failure is noted.
                Act::Volume(name) => drop(self.ensure_up(world, name, &mut begun)),
                Act::Message(step) if self.is_removed(&step.name) => {
                    tracing::info!("{}: removed at run time: message left out", step.name);
                }
                Act::Message(step) if begun.failure_of(&step.name).is_some() => {
                    tracing::info!("{}: not brought up: message left out", step.name);
                }
                Act::Message(step) => {
                    let real = real_of(&step.name);
                    let volume = if self.is_there(&real) { &real } else { &step.name };
                    let answer = world.message(volume, step.sector, &step.words);
                    let text = match answer {
                        Err(error) if self.forgives => {
                            tracing::info!("{}: message left out: {error}", step.name);
                            continue;
                        }
                        answer => answer?,
                    };
                    if !text.is_empty() {
                        tracing::info!("{}: {text}", step.name);
                    }
                }
            }
        }
        Ok(begun)
    }

    fn is_there(&self, name: &str) -> bool {
        self.names().any(|there| there == name)
    }

    fn is_removed(&self, name: &str) -> bool {
        self.volumes.iter().any(|record| record.name == name && record.table.is_none())
    }

    /// A recorded volume that a verb made in this pool.
    fn held_by(&self, pool: &str) -> Option<&str> {
        let mut recorded = self.volumes.iter().filter(|record| record.table != record.configured);
        let is_held = |record: &&Record| {
            let line = record.table.as_deref().and_then(ThinLine::of_table);
            line.is_some_and(|line| line.pool == pool)
        };
        recorded.find(is_held).map(|record| record.name.as_str())
    }

    /// Brings a volume up, with its whole family if it has snapshots. Notes a failure for each
    /// volume that is missing in consequence.
    fn ensure_up<'a>(&'a self, world: &World, name: &str, begun: &mut Begun<'a>) -> Outcome<()> {
        let family = parent_of(name).unwrap_or(name);
        if self.is_there(&real_of(family)) {
            let mut members = assemble::family(&self.volumes, family);
            // A snapshot in a pool stands alone.
            members.retain(|member| member.thin.is_none() || member.name == family);
            self.ensure_family_up(world, &members, begun)?;
        }
        self.ensure_one_up(world, name, begun)
    }

    /// Brings up all members or none: an origin is never live without its snapshots.
    fn ensure_family_up<'a>(
        &'a self,
        world: &World,
        members: &[&'a Record],
        begun: &mut Begun<'a>,
    ) -> Outcome<()> {
        let contradicted = |member: &&Record| self.contradicted.get(&member.name);
        let up = match members.iter().find_map(contradicted) {
            Some(failure) => Err(failure.error()),
            None => members.iter().try_for_each(|one| self.ensure_one_up(world, &one.name, begun)),
        };
        let Err(error) = up else { return Ok(()) };
        for member in members.iter().rev() {
            begun.all.insert(&member.name);
            if world.volume(&member.name).is_ok() {
                log_undo_failure(&member.name, world.remove(&member.name));
            }
            if begun.failure_of(&member.name).is_none() {
                begun.fail(&member.name, &error);
                self.keep_devices_of(world, member);
            }
        }
        Err(error)
    }

    fn ensure_one_up<'a>(
        &'a self,
        world: &World,
        name: &str,
        begun: &mut Begun<'a>,
    ) -> Outcome<()> {
        let Some(record) = self.volumes.iter().find(|record| record.name == name) else {
            return Ok(());
        };
        let Some(table) = &record.table else { return Ok(()) };
        if let Some(failure) = begun.failure_of(name) {
            return Err(failure.error());
        }
        if !begun.all.insert(&record.name) {
            return Ok(());
        }
        let up = self.bring_one_up(world, record, table, begun);
        if let Err(error) = &up
            && begun.failure_of(name).is_none()
        {
            begun.fail(name, error);
            self.keep_devices_of(world, record);
        } else {
            world.let_go(name);
        }
        up
    }

    /// Keeps the devices of the contradicted volumes, and of their families.
    fn keep_contradicted(&self, world: &World) {
        let mut families: Vec<&str> =
            self.contradicted.keys().map(|name| parent_of(name).unwrap_or(name)).collect();
        families.sort_unstable();
        let of_one = |record: &&Record| {
            let family = parent_of(&record.name).unwrap_or(&record.name);
            families.binary_search(&family).is_ok()
        };
        self.volumes.iter().filter(of_one).for_each(|record| self.keep_devices_of(world, record));
    }

    fn keep_devices_of(&self, world: &World, record: &Record) {
        let (tables, has_snapshots) = self.tables_of(record);
        world.keep(&record.name, tables, has_snapshots);
    }

    /// The tables that may be live, and whether the volume has snapshots.
    fn tables_of<'a>(&self, record: &'a Record) -> (impl Iterator<Item = &'a str>, bool) {
        let tables = [&record.table, &record.former].into_iter().flatten();
        let real = real_of(parent_of(&record.name).unwrap_or(&record.name));
        (tables.map(String::as_str), self.is_there(&real))
    }

    fn bring_one_up<'a>(
        &'a self,
        world: &World,
        record: &'a Record,
        table: &str,
        begun: &mut Begun<'a>,
    ) -> Outcome<()> {
        let name = record.name.as_str();
        if let Some(failure) = self.contradicted.get(name) {
            return Err(failure.error());
        }
        let Some(former) = &record.former else {
            return self.bring_table_up(world, record, table, begun);
        };
        let mut serves = record.table.as_deref().map(lasting);
        if let Err(error) = self.bring_table_up(world, record, table, begun) {
            let old = self.bring_table_up(world, record, former, begun);
            old.map_err(|second| {
                let detail = format!("{error}; and its former table cannot start: {second}");
                ConfigError::new(error.kind, "", detail)
            })?;
            tracing::warn!("{name}: its former table serves, as the new one cannot start: {error}");
            serves = Some(former.clone());
        }
        // Without a volume its name is dropped.
        if world.volume(name).is_ok() {
            begun.changed.push(Record { table: serves, former: None, ..record.clone() });
        }
        Ok(())
    }

    fn bring_table_up<'a>(
        &'a self,
        world: &World,
        record: &'a Record,
        table: &str,
        begun: &mut Begun<'a>,
    ) -> Outcome<()> {
        let name = record.name.as_str();
        for lower in table.split_whitespace().filter_map(|word| word.strip_prefix('@')) {
            let up = match parent_of(lower) == parent_of(name).or(Some(name)) {
                true => self.ensure_one_up(world, lower, begun),
                false => self.ensure_up(world, lower, begun),
            };
            up.map_err(|error| match begun.failure_of(lower) {
                // It has a line of its own.
                Some(_) => ConfigError::new(error.kind, "", format!("@{lower} is not served")),
                None => {
                    let detail = format!("@{lower} could not be brought up: {error}");
                    ConfigError::new(error.kind, name, detail)
                }
            })?;
        }
        self.refuse_what_changed_beneath(world, record, table)?;
        if let Some(why) = lost_name(world, record)? {
            tracing::warn!("{name}: the name is dropped: {why}; its table was '{table}'");
            let mut dropped = record.clone();
            dropped.clear();
            begun.changed.push(dropped);
            return Ok(());
        }
        let (inactive, state) = (record.inactive.as_deref(), self.state.as_ref());
        let Err(error) = try_table(world, state, name, table) else {
            // No client was told that the pool grows, and the inactive table would block other
            // verbs.
            if record.former.is_none()
                && inactive.is_some_and(|longer| pool::is_growth(table, longer))
            {
                tracing::warn!("{name}: the growth was interrupted: the size is unchanged");
                begun.changed.push(Record { inactive: None, ..record.clone() });
            } else if let Some(inactive) = inactive
                && let Err(error) = world.load(name, inactive)
            {
                tracing::warn!("the table that waited for a resume is not loaded: {error}");
            }
            return Ok(());
        };
        let Some(longer) = inactive.filter(|longer| pool::is_growth(table, longer)) else {
            return Err(error);
        };
        // The metadata may belong to the longer table already; if not, return the first error.
        try_table(world, state, name, longer).map_err(|_| error)?;
        tracing::info!("{name}: the pool had grown: '{longer}'");
        let table = Some(longer.to_owned());
        begun.changed.push(Record { table, inactive: None, ..record.clone() });
        Ok(())
    }

    /// Refuses a recorded volume whose store or pool metadata has become blank.
    fn refuse_what_changed_beneath(
        &self,
        world: &World,
        record: &Record,
        table: &str,
    ) -> Outcome<()> {
        let name = record.name.as_str();
        if let Some(store) = &record.store {
            let argument = &store.argument;
            let sound = store::refuse_blank(world, argument).and_then(|()| {
                let lost = self.lost.contains(name);
                if lost { store::mark_lost(world, argument) } else { Ok(()) }
            });
            sound.map_err(|error| of_volume(name, error))?;
        }
        let Some(held) = self.held_by(name) else { return Ok(()) };
        let sound = pool::refuse_blank(world, name, table, held);
        sound.map_err(|error| of_volume(name, error))
    }
}

/// Makes a volume with this table; removes it again after a failure.
fn try_table(world: &World, state: Option<&StateFile>, name: &str, table: &str) -> Outcome<()> {
    world.create(name)?;
    let up = world.load(name, table).and_then(|()| match Caches::of(world, state) {
        Some(caches) => {
            caches.judge(name, Leave::Forget)?;
            caches.go_live(name, || world.resume(name))
        }
        None => world.resume(name),
    });
    if up.is_err() {
        log_undo_failure(name, world.remove(name));
    }
    up
}

/// The table of a volume beneath its snapshots.
fn own_table<'a>(records: &'a [Record], record: &'a Record) -> Option<&'a str> {
    let real = real_of(&record.name);
    let real = records.iter().find(|other| other.name == real && !is_hidden(&record.name));
    real.and_then(|real| real.table.as_deref()).or(record.table.as_deref())
}

fn tell_override(record: &Record, own: Option<&str>, state: &StateFile) {
    let (name, path) = (&record.name, state.path().display());
    let way = format!("to drop it: stop the server, then cairn state forget {name} --state {path}");
    let one = |text: Option<&str>| text.unwrap_or_default().trim().replace('\n', "', '");
    let configured = one(record.configured.as_deref());
    let what = match own {
        Some(own) => format!("'{}' instead of the configured '{configured}'", one(Some(own))),
        None => format!("that it was removed, though '{configured}' is configured"),
    };
    tracing::warn!("{name}: {path} says {what} ({way})");
}

fn contradiction(record: &Record, state: &StateFile) -> Failure {
    let (name, path) = (&record.name, state.path().display());
    let found = "another table configured than when a verb changed it";
    let expected = format!(
        "the former one, the recorded one, or no record of it in {path} (cairn state forget {name})"
    );
    let error = refused(ConfigKind::Argument, name, "state", found, expected);
    Failure { name: name.clone(), kind: error.kind, why: one_line(&error) }
}

/// Refuses an export of an unknown volume. If a verb removed the volume, a log line says that the
/// export is not served. Returns the volumes of verbs that the configuration exports, so that the
/// next start knows them too (see `StateFile::exported`).
///
/// # Errors
/// There is such an export.
pub fn refuse_unknown(
    configured: &[Export],
    state: Option<&StateFile>,
    plan: &Plan,
) -> Outcome<BTreeSet<String>> {
    let (added, exported) =
        state.map(|state| (state.exports().added, state.exported())).unwrap_or_default();
    let is_known = |volume: &String| plan.knows(volume) || exported.contains(volume);
    for export in configured.iter().chain(&added) {
        let volume = &export.volume;
        if plan.names().any(|there| there == volume) {
            continue;
        }
        let device = format!("export '{}'", export.name);
        let error = wrong(device, "volume", format!("'{volume}'"), "a volume with a table");
        if !is_known(volume) && !added.contains(export) {
            return Err(error);
        }
        tracing::warn!("{error}: it is not served until there is one");
    }
    let volumes = configured.iter().map(|export| &export.volume);
    Ok(volumes.filter(|volume| !plan.is_configured(volume)).cloned().collect())
}

#[cfg(test)]
mod tests {
    use super::{Act, Plan};
    use crate::state::{Record, StateFile};
    use crate::verbs::volume::VolumeMessage;

    fn plan(tables: &[(&str, &str)]) -> Plan {
        let mut plan = Plan::default();
        tables.iter().for_each(|(name, lines)| plan.add_table(name, lines).unwrap());
        plan
    }

    #[test]
    fn a_name_given_again_appends_lines_at_its_first_place() {
        let words = vec!["frob".to_owned()];
        let message = VolumeMessage { name: "a".to_owned(), sector: 0, words };
        let mut plan = plan(&[("a", "0 8 zero")]);
        plan.add_message(message.clone());
        plan.add_table("default", "0 8 zero").unwrap();
        plan.add_table("a", "8 8 zero").unwrap();
        assert_eq!(plan.volumes[0].table.as_deref(), Some("0 8 zero\n8 8 zero"));
        let acts = [Act::Volume("a".into()), Act::Message(message), Act::Volume("default".into())];
        assert_eq!(plan.acts, acts);
    }

    #[test]
    fn a_record_wins_unless_the_configuration_has_changed_to_something_else() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateFile::open(&folder.path().join("s")).unwrap();
        let live = Some("0 16 zero".to_owned());
        let record = Record { table: live, ..Record::as_configured("a", Some("0 8 zero")) };
        state.record(vec![record.clone()]).unwrap();
        for text in ["0 8 zero", "0  8 zero\n"] {
            let mut same = plan(&[("a", text)]);
            same.restore(&state);
            assert_eq!(same.records(), std::slice::from_ref(&record));
            assert!(same.contradicted.is_empty() && same.settled.is_empty());
        }
        for steps in [&[("a", "0 9 zero")][..], &[]] {
            let mut other = plan(steps);
            other.restore(&state);
            let line = other.contradicted["a"].why();
            assert!(line.starts_with("a: state: found another table configured"), "{line}");
        }
    }

    #[test]
    fn a_configuration_equal_to_the_record_drops_the_record() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateFile::open(&folder.path().join("s")).unwrap();
        let record = |name: &str, configured, table: &str| Record {
            table: Some(table.to_owned()),
            ..Record::as_configured(name, configured)
        };
        // Changed, made by a verb, and with a snapshot.
        let records = vec![
            record("a", Some("0 8 zero"), "0 16 zero"),
            record("b", None, "0 8 zero"),
            record("c", Some("0 8 zero"), "0 16 snapshot-origin @c@real"),
            record("c@real", None, "0 16 zero"),
        ];
        state.record(records).unwrap();
        let mut same = plan(&[("a", "0 16  zero"), ("b", "0 8 zero"), ("c", "0 16 zero")]);
        same.restore(&state);
        assert!(same.contradicted.is_empty());
        state.record(same.settled).unwrap();
        let left = state.records();
        let names: Vec<&str> = left.iter().map(|record| record.name.as_str()).collect();
        assert_eq!(names, ["c", "c@real"]);
        assert_eq!(left[0].configured.as_deref(), Some("0 16 zero"));
        assert_eq!(left[0].table.as_deref(), Some("0 16 snapshot-origin @c@real"));
    }
}
