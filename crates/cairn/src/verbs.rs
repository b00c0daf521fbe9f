//! The device-mapper verbs of a running server, as the control socket calls them.
//!
//! Owns what tables verbs changed: kept in the state file before a verb answers. Order, and what
//! a crash between two steps leaves:
//! - load: build, then record, then answer. Crash: the old tables, or the loaded one waiting.
//! - resume with a loaded table, and replace: see `swap`.
//! - create: build, resume, record, export. Crash: no volume, or the one that nobody was told of.
//! - remove: record, then end. Crash: it is gone at the next start.
//! - clear: record, then drop. suspend and message change nothing that is recorded.
//!
//! So a verb that fails leaves a record of what is served. What could not be brought up at a start
//! stays recorded, and no verb gives its name away.
//!
//! Without a state file the verbs that change tables refuse. One such verb runs at a time, and
//! `snap list` and `snap diff` wait for it, to tell of one moment; other reading verbs never do.
//!
//! What that verb waits for must not need another verb. So suspend, and resume with a new table,
//! wait for requests outside their turn, other verbs on their volume being refused meanwhile; and a
//! verb that would read through a suspended volume, or wait for requests that do, is refused.
//! [`Verbs::close`] refuses all further changes and gives up what verbs under way wait for.

mod exports;
pub mod pool;
pub mod snap;
mod state;
pub mod steps;
mod swap;
pub mod thin;

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use cairn_block::{Claimed, ConfigError, ConfigKind, SuspendMode};
use cairn_outcome::failure::{Outcome, refused};
use parking_lot::{Mutex, MutexGuard};
use serde::Serialize;
use serde_json::{Value, json};

use self::snap::Keeper;
use self::steps::{Step, log_undo_failure};
use crate::caches::{Caches, Leave};
use crate::control::rpc::{
    AnyName, Call, CreateParams, LoadParams, METHODS, MessageParams, OneName, RemoveParams,
    RpcError, SnapRollbackParams, WaitParams,
};
use crate::control::server::{Answer, Caller};
use crate::exports::Exports;
use crate::live_pool::will_be_pool;
use crate::names::{parent_of, real_of, refuse_at_sign, snapshot_of};
use crate::report;
use crate::state::{CacheRecord, Export, Noting, Record, StateFile};
use crate::thin_line::ThinLine;
use crate::under_way::Doing;
use crate::world::{Ended, World};

/// The verbs of one server.
pub struct Verbs {
    /// Reactors and volumes.
    pub(crate) world: Arc<World>,
    /// What is served.
    pub(crate) exports: Arc<Exports>,
    /// Ends merges and lets stores grow.
    pub(crate) keeper: Keeper,
    /// The state file, for what is noted beside the verbs.
    state: Option<StateFile>,
    changes: Mutex<Changes>,
    /// What is recorded, for those who do not wait for their turn.
    told: Told,
    /// The server is going away.
    closed: AtomicBool,
    /// Sees each step of a verb on snapshots.
    #[cfg(test)]
    pub(crate) at_step: Mutex<Box<dyn FnMut(Step) + Send>>,
}

/// What may be loaded for a volume with snapshots.
const LOAD_BENEATH: &str = "none (VOLUME@real takes a table with the same content, say a cache in \
                            front of the same device)";

type Records = Arc<HashMap<String, Record>>;
type Told = Arc<Mutex<Records>>;

/// What verbs changed.
pub(crate) struct Changes {
    /// Where it is kept.
    pub(crate) state: Option<StateFile>,
    /// Every volume's, by name.
    pub(crate) records: Records,
    /// Of these, what the state file could not be given. The next change writes it, too.
    owed: Vec<Record>,
    told: Told,
}

impl Verbs {
    /// Verbs on a world whose volumes have the tables in `records`.
    pub fn new(
        world: Arc<World>,
        exports: Arc<Exports>,
        state: Option<StateFile>,
        records: Vec<Record>,
    ) -> Verbs {
        let named = records.into_iter().map(|record| (record.name.clone(), record));
        let records: Records = Arc::new(named.collect());
        let told: Told = Arc::new(Mutex::new(records.clone()));
        let verbs = Verbs {
            world,
            exports,
            keeper: Keeper::default(),
            state: state.clone(),
            changes: Mutex::new(Changes { state, records, owed: Vec::new(), told: told.clone() }),
            told,
            closed: AtomicBool::new(false),
            #[cfg(test)]
            at_step: Mutex::new(Box::new(|_| ())),
        };
        for volume in verbs.world.volumes() {
            // It is there.
            let _ = verbs.set_loss_log(volume.volume());
        }
        verbs
    }

    /// True if what verbs change is kept, so that volumes may come.
    pub fn keeps_changes(&self) -> bool {
        self.state.is_some()
    }

    /// Has the state file note if the content of a snapshot is lost and its store can't say so.
    ///
    /// # Errors
    /// There is no such volume.
    pub(crate) fn set_loss_log(&self, name: &str) -> Outcome<()> {
        let is_snapshot = parent_of(name).is_some_and(|on| snapshot_of(name, on).is_some());
        if let Some(state) = self.state.as_ref().filter(|_| is_snapshot) {
            let volume = self.world.volume(name)?;
            volume.events().set_loss_log(Noting::new(state.clone(), name));
        }
        Ok(())
    }

    /// What verbs changed so far; none once all further changes are refused.
    pub(crate) fn look(&self) -> Option<MutexGuard<'_, Changes>> {
        let changes = self.changes.lock();
        (!self.is_closed()).then_some(changes)
    }

    /// What verbs recorded, for who does not wait for the one under way.
    pub(crate) fn told(&self) -> Records {
        self.told.lock().clone()
    }

    /// Keeps in the state file which losses no client was told of, for the next start, and which
    /// snapshots ended. Answers what it could not keep: each snapshot, and what the system said.
    pub fn keep_untold(&self) -> Vec<ConfigError> {
        // One that may only read holds no lock on the file, which may be another server's.
        let Some(state) = self.state.as_ref().filter(|_| !self.world.read_only()) else {
            return Vec::new();
        };
        let untold = self.world.untold_losses().into_iter().collect();
        let Err(error) = state.keep_untold(untold) else { return Vec::new() };
        let untrusted = |name: String| {
            let detail = format!(
                "content: it ended, which neither its store nor the state file could be told: it \
                 must not be trusted, though it looks valid (cairn snap remove {name})"
            );
            ConfigError::new(ConfigKind::Lost, name, detail)
        };
        state.owed().into_iter().map(untrusted).chain([error]).collect()
    }

    /// Refuses all further changes, and waits for the verbs under way: what these wait for is given
    /// up, as only another verb may bring it.
    pub fn close(&self) {
        const STEP: Duration = Duration::from_millis(100);
        /// Most verbs end by themselves, and no request fails for them.
        const PATIENCE_STEPS: u32 = 20;
        self.closed.store(true, Ordering::Release);
        let mut steps = 0;
        while self.changes.try_lock_for(STEP).is_none() || !self.world.under_way().is_empty() {
            steps += 1;
            if steps > PATIENCE_STEPS {
                self.world.give_up_waiting();
            }
            std::thread::sleep(STEP);
        }
        let mut changes = self.changes.lock();
        if !changes.owed.is_empty() {
            log_undo_failure("state", changes.record_all(Vec::new()));
        }
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn refuse_closed(&self) -> Outcome<()> {
        if !self.is_closed() {
            return Ok(());
        }
        let found = "a server that is going away";
        Err(refused(ConfigKind::Busy, "", "server", found, "a running one"))
    }

    /// The right to change something, or to look at several things of one moment.
    ///
    /// # Errors
    /// The server is going away.
    pub(crate) fn change(&self) -> Outcome<MutexGuard<'_, Changes>> {
        let changes = self.changes.lock();
        self.refuse_closed().map(|()| changes)
    }

    /// The right to change a table of `name`.
    ///
    /// # Errors
    /// The server is going away, or there is no state file.
    pub(crate) fn change_table(&self, name: &str, verb: &str) -> Outcome<MutexGuard<'_, Changes>> {
        let changes = self.change()?;
        if changes.state.is_none() {
            let expected = "a server started with --state FILE or a TOML file, to keep the change";
            let field = format!("{verb} state file");
            return Err(refused(ConfigKind::Argument, name, &field, "none", expected));
        }
        Ok(changes)
    }

    fn load_table(&self, params: &LoadParams) -> Outcome<()> {
        let name = params.name.as_str();
        let mut changes = self.change_table(name, "load")?;
        let table = self.world.measured(name, &params.table)?;
        let table = table.as_str();
        self.refuse_loading(&changes, name, table)?;
        self.world.load(name, table)?;
        if let Err(error) = self.refuse_other_content(&changes, name, params.same_content) {
            log_undo_failure(
                name,
                match changes.record_of(name).inactive {
                    Some(former) => self.world.load(name, &former),
                    None => self.world.clear(name),
                },
            );
            return Err(error);
        }
        let inactive = Some(table.to_owned());
        let recorded = changes.record(name, |tables| tables.inactive = inactive);
        if recorded.is_err() {
            self.world.clear(name)?;
        }
        self.step(Step::Recorded);
        recorded
    }

    /// After a table could not become live: the one before it is, and is recorded. Answers what to
    /// tell.
    pub(crate) fn go_back(
        &self,
        changes: &mut Changes,
        before: Record,
        error: ConfigError,
    ) -> ConfigError {
        let (name, kind) = (before.name.clone(), error.kind);
        let former = before.table.clone().unwrap_or_default();
        let is_suspended = self.world.volume(&name).is_ok_and(|volume| volume.is_suspended());
        let back = match is_suspended {
            true => self.world.load(&name, &former).and_then(|()| self.make_live(&name)),
            false => self.world.clear(&name),
        };
        self.exports.settle(&self.world);
        let Err(second) = back else {
            log_undo_failure(&name, changes.record_fact(Record { inactive: None, ..before }));
            return error;
        };
        log_undo_failure(&name, changes.record_fact(before));
        let detail =
            format!("{error}; it stays suspended, as its former table is refused too: {second}");
        ConfigError::new(kind, "", detail)
    }

    /// Refuses a table that must not be loaded by hand, or cannot be now.
    fn refuse_loading(&self, changes: &Changes, name: &str, table: &str) -> Outcome<()> {
        self.refuse_snapshots(name, "load", LOAD_BENEATH)?;
        self.refuse_other_thin(changes, name, table)?;
        self.refuse_being_suspended(name)?;
        self.world.refuse_suspended_in(name, table)
    }

    fn clear(&self, name: &str) -> Outcome<()> {
        let mut changes = self.change()?;
        self.world.volume(name)?;
        self.refuse_being_suspended(name)?;
        changes.record(name, |tables| tables.inactive = None)?;
        self.step(Step::Recorded);
        self.world.clear(name)
    }

    /// `create`: answers what a person should know.
    fn create_volume(&self, params: &CreateParams) -> Outcome<Vec<String>> {
        let name = params.name.as_str();
        refuse_at_sign(name)?;
        let mut changes = self.change_table(name, "create")?;
        self.refuse_recorded(name)?;
        let table = self.world.measured(name, &params.table)?;
        let table = table.as_str();
        self.world.refuse_suspended_in(name, table)?;
        self.world.create(name)?;
        let served = self.exports.served();
        let before = self.caches().map(|caches| caches.recorded());
        let made = self.bring_up(&mut changes, name, table, params.discard_dirty);
        if made.is_err() {
            log_undo_failure(name, changes.record(name, Record::clear));
            log_undo_failure(name, self.take_down(name));
            if let (Some(caches), Some(before)) = (self.caches(), before) {
                caches.put_back(name, before);
            }
        }
        made.map(|mut notes| {
            notes.extend(self.exports_ended(name, &served));
            notes
        })
    }

    fn bring_up(
        &self,
        changes: &mut Changes,
        name: &str,
        table: &str,
        discard_dirty: bool,
    ) -> Outcome<Vec<String>> {
        self.world.load(name, table)?;
        let given_up = self.given_up_by(name, discard_dirty)?;
        self.give_up(&given_up)?;
        self.make_live(name)?;
        self.step(Step::Resumed);
        changes.record(name, |tables| tables.table = Some(table.to_owned()))?;
        self.step(Step::Recorded);
        self.exports.add_volume(&self.world, name)?;
        Ok(given_up.iter().map(CacheRecord::farewell).collect())
    }

    /// What the state file remembers of caches, and a table gives up that was loaded for `name`.
    ///
    /// # Errors
    /// It must not be live (see `caches`).
    pub(crate) fn given_up_by(&self, name: &str, discard_dirty: bool) -> Outcome<Vec<CacheRecord>> {
        let judged = self.caches().map(|all| all.judge(name, Leave::Option(discard_dirty)));
        judged.unwrap_or(Ok(Vec::new()))
    }

    /// Records that what these keep is lost.
    pub(crate) fn give_up(&self, lost: &[CacheRecord]) -> Outcome<()> {
        self.caches().map_or(Ok(()), |caches| caches.give_up(lost))
    }

    /// `remove`, `snap remove`, `snap merge` and `thin remove`: clients that are connected refuse
    /// it, unless they are to be disconnected.
    fn take_away<T>(
        &self,
        params: &RemoveParams,
        remove: impl FnOnce(&Verbs, &str) -> Outcome<T>,
    ) -> Outcome<T> {
        if !params.force {
            // A volume of a pool may be named with its pool.
            let volume = params.name.rsplit('/').next().unwrap_or_default();
            self.exports.refuse_clients(volume, "none (--force disconnects them)")?;
        }
        remove(self, &params.name)
    }

    /// `remove`: answers what a person should know.
    fn remove(&self, name: &str) -> Outcome<Vec<String>> {
        let mut changes = self.change_table(name, "remove")?;
        self.refuse_thin(&changes, name, "remove")?;
        self.refuse_snapshots(name, "remove", "none (cairn snap remove takes snapshots away)")?;
        self.world.refuse_users(name)?;
        self.refuse_being_suspended(name)?;
        self.refuse_to_wait_beneath(name)?;
        let before = changes.record_of(name);
        changes.record(name, Record::clear)?;
        self.step(Step::Recorded);
        let table = self.world.volume(name)?.live_table();
        let removed = self.take_down(name);
        if removed.is_err() && self.world.volume(name).is_ok() {
            log_undo_failure(name, changes.record_all(vec![before]));
        }
        let left = self.left_by(table.as_deref());
        if removed.is_ok() {
            self.record_left(name, table.as_deref());
        }
        if removed.is_err() {
            left.iter().for_each(|what| tracing::warn!("{name}: removed: {what}"));
        }
        removed.map(|()| left)
    }

    /// Refuses to remove a volume whose requests may wait for one that is suspended. Those of a
    /// volume of a suspended pool wait at the pool, and are handed back.
    fn refuse_to_wait_beneath(&self, name: &str) -> Outcome<()> {
        let Some(line) = ThinLine::of_volume(&*self.world.volume(name)?) else {
            return self.world.refuse_suspended_beneath(name);
        };
        if !self.world.volume(&line.pool)?.is_suspended() {
            return self.world.refuse_suspended_beneath(name);
        }
        let origin = line.origin.as_deref().and_then(|origin| origin.strip_prefix('@'));
        origin.map_or(Ok(()), |origin| self.world.refuse_suspended(origin))
    }

    /// The exports that ended since, as `name` took their volumes, in words.
    fn exports_ended(&self, name: &str, before: &[Export]) -> Vec<String> {
        let ended = before.iter().filter(|export| {
            let is_there = self.world.volume(&export.volume).is_ok();
            is_there && self.exports.served_as(&export.name).is_none()
        });
        let told =
            |export: &Export| format!("export '{}' has ended: {name} uses its volume", export.name);
        ended.map(told).collect()
    }

    /// Makes the loaded table live. What it claims is no longer exported, and what it claims no
    /// longer is again.
    ///
    /// # Errors
    /// Somebody else claims or uses what it claims, or a target cannot start.
    pub(crate) fn make_live(&self, name: &str) -> Outcome<()> {
        self.make_live_with(name, || ())
    }

    /// The same. `started` runs once the loaded table has started, before it serves a request.
    fn make_live_with(&self, name: &str, started: impl FnOnce()) -> Outcome<()> {
        self.clear_the_way(name)?;
        let resume = || self.world.resume_with(name, started);
        let resumed = match self.caches() {
            Some(caches) => {
                let judged = caches.judge(name, Leave::Forget);
                judged.and_then(|_| caches.go_live(name, resume))
            }
            None => resume(),
        };
        self.exports.settle(&self.world);
        resumed
    }

    /// The caches that the state file remembers.
    pub(crate) fn caches(&self) -> Option<Caches<'_>> {
        Caches::of(&self.world, self.state.as_ref())
    }

    /// The server stops: records what its caches are left with.
    pub fn keep_caches(&self, ended: &Ended) {
        let Some(caches) = self.caches() else { return };
        if let Err(error) = caches.left_by_all(|name| ended.has_lost(name)) {
            tracing::warn!("what caches keep is not recorded, the next start looks: {error}");
        }
    }

    /// Refuses a resume that claims would refuse, and stops exporting what it is about to claim.
    ///
    /// # Errors
    /// Somebody claims it, writes to it, or is connected to it.
    fn clear_the_way(&self, name: &str) -> Outcome<()> {
        self.world.refuse_claimed(name)?;
        let volume = self.world.volume(name)?;
        let mut claimed = volume.will_claim();
        if will_be_pool(&volume) {
            claimed.push(Claimed { volume: name.to_owned(), may_be_read: false });
        }
        self.exports.give_way(&self.world, name, &claimed)
    }

    /// Other verbs go on while requests are waited for: one of them may be what these wait for. If
    /// the caller goes meanwhile, or a `resume` comes, the volume serves on.
    fn suspend(&self, name: &str, noflush: bool, caller: &dyn Caller) -> Outcome<()> {
        let turn = self.change()?;
        self.refuse_being_suspended(name)?;
        self.refuse_swaps_above(name)?;
        let is_suspended = self.world.volume(name)?.is_suspended();
        let under_way = self.world.under_way().begin(name, Doing::Suspend);
        drop(turn);
        self.keeper.leave_alone(name);
        let mode = if noflush { SuspendMode::NoFlush } else { SuspendMode::Flush };
        let call_off = under_way.call_off().clone();
        let ended = self.world.suspend_unless(name, mode, &call_off, &|| caller.is_gone());
        drop(under_way);
        if is_suspended || !call_off.is_called() {
            return ended.map(drop);
        }
        if !matches!(ended, Ok(false)) {
            // It came too late.
            self.note_if_stuck(name);
            log_undo_failure(name, self.bring_back(name));
        }
        ended?;
        Err(match caller.is_gone() {
            true => interrupted(name, "suspend"),
            false => ConfigError::new(ConfigKind::Busy, name, "suspend: called off by a resume"),
        })
    }

    /// Calls off a suspend under way, and waits for its end: the volume is live then, or suspended.
    ///
    /// # Errors
    /// The server is going away, or the caller is gone.
    fn call_off_suspend(&self, name: &str, caller: &dyn Caller) -> Outcome<()> {
        const STEP: Duration = Duration::from_millis(10);
        while self.world.under_way().call_off_suspend(name) {
            self.refuse_closed()?;
            if caller.is_gone() {
                return Err(interrupted(name, "resume"));
            }
            std::thread::sleep(STEP);
        }
        Ok(())
    }

    /// Refuses a verb that would wait for another one on the same volume.
    pub(crate) fn refuse_being_suspended(&self, name: &str) -> Outcome<()> {
        self.world.under_way().refuse(name)
    }

    /// Refuses to suspend a volume that a table needs which is about to start (U4 of `under_way`).
    fn refuse_swaps_above(&self, name: &str) -> Outcome<()> {
        let volume = self.world.volume(name)?;
        let swaps = self.world.under_way().swaps();
        let stands =
            |user: &&String| self.world.volume(user).is_ok_and(|user| user.stands_on(volume.id()));
        let Some(user) = swaps.iter().find(stands) else { return Ok(()) };
        let found = format!("volume '{user}' on it, whose table is being replaced");
        Err(refused(ConfigKind::Busy, name, "state", found, "none"))
    }

    fn message(&self, params: &MessageParams) -> Outcome<Value> {
        // The target with something to say is the one beneath the snapshots.
        let real = real_of(&params.name);
        let name = if self.world.volume(&real).is_ok() { &real } else { &params.name };
        let text = self.world.message(name, params.sector, &params.words)?;
        Ok(json!({ "text": text }))
    }

    /// Waits in short steps: for no longer than the server runs and the caller listens.
    fn wait(&self, params: WaitParams, caller: &dyn Caller) -> Outcome<Value> {
        const STEP: Duration = Duration::from_millis(200);
        let volume = self.world.volume(&params.name)?;
        let seen = params.event_nr.unwrap_or_else(|| volume.event_nr());
        let (send, receive) = std::sync::mpsc::channel();
        self.world.reactors().spawn(self.world.home(&params.name), move |env| async move {
            let mut event = pin!(volume.wait_event(seen));
            loop {
                let mut step = pin!(env.sleep(STEP));
                let event_nr = poll_fn(|context| match event.as_mut().poll(context) {
                    Poll::Ready(event_nr) => Poll::Ready(Some(event_nr)),
                    Poll::Pending => step.as_mut().poll(context).map(|()| None),
                });
                let event_nr = event_nr.await;
                if send.send(event_nr).is_err() || event_nr.is_some() {
                    return;
                }
            }
        });
        for event_nr in &receive {
            if let Some(event_nr) = event_nr {
                return Ok(json!({ "event_nr": event_nr }));
            }
            if caller.is_gone() {
                break;
            }
            self.refuse_closed()?;
        }
        Err(interrupted(&params.name, "wait"))
    }

    fn server_info(&self) -> Value {
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "read_only": self.world.read_only(),
            "state": self.state.as_ref().map(|state| state.path().to_owned()),
            "uris": self.exports.uris(),
        })
    }
}

impl Changes {
    /// Changes what is recorded of a volume, in the state file first.
    fn record(&mut self, name: &str, change: impl FnOnce(&mut Record)) -> Outcome<()> {
        let mut record = self.record_of(name);
        change(&mut record);
        self.record_all(vec![record])
    }

    /// Changes what is recorded of several volumes, in the state file first: all of it or nothing.
    ///
    /// # Errors
    /// The system refused to write.
    pub(crate) fn record_all(&mut self, records: Vec<Record>) -> Outcome<()> {
        if let Some(state) = &mut self.state {
            let is_new = |owed: &&Record| records.iter().all(|record| record.name != owed.name);
            let owed = self.owed.iter().filter(is_new).cloned();
            state.record(owed.chain(records.iter().cloned()).collect())?;
        }
        self.owed.clear();
        self.tell(records);
        Ok(())
    }

    /// Records what a volume has already: what cannot be written now is written with the next
    /// change, or at the end.
    ///
    /// # Errors
    /// The system refused to write.
    pub(crate) fn record_fact(&mut self, record: Record) -> Outcome<()> {
        let recorded = self.record_all(vec![record.clone()]);
        if recorded.is_err() {
            self.owed.retain(|owed| owed.name != record.name);
            self.owed.push(record.clone());
            self.tell(vec![record]);
        }
        recorded
    }

    fn tell(&mut self, records: Vec<Record>) {
        let named = records.into_iter().map(|record| (record.name.clone(), record));
        Arc::make_mut(&mut self.records).extend(named);
        *self.told.lock() = self.records.clone();
    }

    /// What is recorded of a volume.
    pub(crate) fn record_of(&self, name: &str) -> Record {
        let known = self.records.get(name).cloned();
        known.unwrap_or_else(|| Record::as_configured(name, None))
    }

    /// False if the state file may name what a refused record named: nothing of that is deleted.
    pub(crate) fn is_sure(&self) -> bool {
        self.state.as_ref().is_none_or(StateFile::is_sure)
    }

    /// What is recorded of some volumes.
    pub(crate) fn records_of(&self, names: &[&str]) -> Vec<Record> {
        names.iter().map(|name| self.record_of(name)).collect()
    }
}

impl Answer for Verbs {
    fn answer(&self, method: &str, params: Value, caller: &dyn Caller) -> Result<Value, RpcError> {
        Ok(self.carry_out(Call::of(method, params)?, caller)?)
    }

    fn waits(&self, method: &str) -> bool {
        method == "volume_wait"
    }

    fn warn(&self, key: &str, line: String) {
        self.world.reactors().warn(key, || line);
    }
}

impl Verbs {
    fn carry_out(&self, call: Call, caller: &dyn Caller) -> Outcome<Value> {
        let done = |done: Outcome<()>| done.map(|()| json!({}));
        let told = |told: Outcome<Vec<String>>| told.map(|notes| json!({ "notes": notes }));
        match call {
            Call::Methods => Ok(METHODS.iter().map(|(name, _)| json!(name)).collect()),
            Call::Server => Ok(self.server_info()),
            Call::Targets => to_value(report::targets(&self.world)),
            Call::Exports => to_value(self.exports.list(&self.world)),
            Call::ExportAdd(params) => done(self.export_add(params)),
            Call::ExportRemove(params) => done(self.export_remove(&params)),
            Call::StateShow(AnyName { name }) => to_value(self.state_show(name.as_deref())?),
            Call::StateForget(params) => to_value(self.state_forget(&params.name, params.yes)?),
            Call::Volumes => to_value(report::infos(&self.world, &self.exports, None)?),
            Call::Info(AnyName { name }) => {
                to_value(report::infos(&self.world, &self.exports, name.as_deref())?)
            }
            Call::Status(AnyName { name }) => {
                to_value(report::status(&self.world, name.as_deref())?)
            }
            Call::Table(params) => to_value(report::tables(&self.world, &params)?),
            Call::Message(params) => self.message(&params),
            Call::Suspend(params) => done(self.suspend(&params.name, params.noflush, caller)),
            Call::Resume(params) => told(self.resume(&params, caller)),
            Call::Replace(params) => told(self.replace(&params, caller)),
            Call::Load(params) => done(self.load_table(&params)),
            Call::Clear(OneName { name }) => done(self.clear(&name)),
            Call::Create(params) => told(self.create_volume(&params)),
            Call::Remove(params) => told(self.take_away(&params, Verbs::remove)),
            Call::Wait(params) => self.wait(params, caller),
            Call::SnapCreate(params) => done(self.snap_create(&params)),
            Call::SnapList(AnyName { name }) => to_value(self.snap_list(name.as_deref())?),
            Call::SnapDiff(params) => to_value(self.snap_diff(&params)?),
            Call::SnapRollback(SnapRollbackParams { name, store }) => {
                done(self.snap_merge(&name, true, store.as_deref()))
            }
            Call::SnapMerge(params) => {
                done(self.take_away(&params, |verbs, name| verbs.snap_merge(name, false, None)))
            }
            Call::SnapRemove(params) => told(self.take_away(&params, Verbs::remove_snapshot)),
            Call::SnapGrow(params) => done(self.snap_grow(&params.name, params.size_bytes)),
            Call::PoolCreate(params) => done(self.pool_create(&params)),
            Call::PoolStatus(AnyName { name }) => to_value(self.pool_status(name.as_deref())?),
            Call::PoolGrow(params) => done(self.pool_grow(&params)),
            Call::PoolTrim(OneName { name }) => {
                Ok(json!({ "trimmed_bytes": self.pool_trim(&name)? }))
            }
            Call::ThinCreate(params) => done(self.thin_create(&params)),
            Call::ThinSnapshot(params) => done(self.thin_snapshot(&params)),
            Call::ThinList(AnyName { name }) => to_value(self.thin_list(name.as_deref())?),
            Call::ThinDiff(params) => to_value(self.thin_diff(&params)?),
            Call::ThinRollback(params) => done(self.thin_rollback(&params)),
            Call::ThinRemove(params) => done(self.take_away(&params, Verbs::thin_remove)),
            Call::ThinRename(params) => done(self.thin_rename(&params)),
        }
    }
}

/// The caller of a verb waits no more, so the verb was not carried out.
fn interrupted(name: &str, verb: &str) -> ConfigError {
    ConfigError::new(ConfigKind::Busy, name, format!("{verb}: interrupted by its caller"))
}

fn to_value(reply: impl Serialize) -> Outcome<Value> {
    serde_json::to_value(reply).map_err(|error| {
        ConfigError::new(ConfigKind::System, "", "reply: cannot be written").with_source(error)
    })
}

#[cfg(test)]
mod tests;
