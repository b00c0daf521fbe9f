//! Mapped devices: a name, a live table, perhaps an inactive one, and the verbs that change them.
//!
//! States: *suspended* (gates closed; requests park in order at each reactor) and *active*. A
//! device begins suspended without a table.
//!
//! Suspend: every reactor closes its gate and reports it. The targets give back the requests that
//! they parked. Each reactor reports when its last admitted request has left. Then the targets'
//! `suspend` runs (commit, stop tasks). Resume: the inactive table, if any, becomes live. Its
//! targets' `resume` runs (read metadata, recover, start tasks). Every reactor takes the table,
//! opens its gate and lets the parked requests in, in their order. A client sees only a pause.
//!
//! D1. No request is admitted while the gate is closed, except parts of admitted ones.
//! D2. A table is dropped only when no request has a frame of it: the swap happens when every
//!     reactor's count is zero.
//! D3. One verb at a time per device.
//! D4. A reactor's tables change only between two runs of its engine: by mail or by a verb's task,
//!     never from inside a call to a target or client.
//! D5. A suspend always leaves the device suspended. If acknowledged writes may be lost by then,
//!     its result says so and the device's failure count rises: each client's next flush fails,
//!     whichever table is live by then.
//! D6. Writes to the old table's disks are durable before another table serves: after its commit
//!     every disk of it is flushed. Clients flush what they wrote before the swap through the new
//!     table, which may use other disks.
//! D7. A resume that cannot start the new table starts the old one again.
//! D8. Calls into targets are ordered with these verbs (`calls`).
//! D9. A suspend that waits for requests can be called off (`call_off`): the live table goes on.

use std::pin::pin;
use std::sync::Arc;

use event_listener::Event;
use futures_util::future::{Either, select};

use crate::call_off::CallOff;
use crate::calls::{Call, Calls};
use crate::claiming::{Claim, Claimant, Claimed, Claims, claimed_by};
use crate::claims::Holder;
use crate::disk::{Disk, Extent, ExtentKind, Flow, Limits, LocalFuture, MarkerPlace};
use crate::env::{Env, Io};
use crate::error::{ConfigError, ConfigKind, IoError};
use crate::events::Events;
use crate::failures::FailureCount;
use crate::ids::DeviceId;
use crate::local::{Latch, everywhere, traffic_of};
use crate::mutants;
use crate::nature::{Nature, Shape};
use crate::request::Request;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::table::Table;
use crate::target::SuspendMode;
use crate::traffic::DeviceTraffic;
use crate::units::{Sector, SectorCount, SectorRange};
use crate::wait::until;

#[derive(Default)]
struct State {
    live: Option<Arc<Table>>,
    inactive: Option<Arc<Table>>,
    suspended: bool,
    /// The live table has started at least once.
    served: bool,
    /// The disks of the live table were flushed since the suspend (D6).
    flushed: bool,
    /// The number of failures of the live table that the device's own count includes, or never
    /// will.
    base_failures: u64,
}

impl State {
    /// Failures that the live table passes on, beyond those of the device's own count.
    fn passed_on(&self) -> u64 {
        let passed_on = self.live.as_ref().map_or(0, |table| table.failures());
        passed_on - self.base_failures
    }
}

/// Whether the inactive table of a resume has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewTable {
    /// It has, and serves no request yet.
    Started,
    /// A target refused. The old table has not started again yet (D7).
    Refused,
}

/// What a resume did.
#[derive(Debug, Default)]
#[must_use]
pub struct Resumed {
    /// The device is live, but acknowledged writes may be lost: what the old table's suspend
    /// or the flush of its disks said.
    pub lost: Option<ConfigError>,
}

impl Resumed {
    /// The result for callers that treat a loss as a failure.
    ///
    /// # Errors
    /// Acknowledged writes may be lost.
    pub fn whole(self) -> Result<(), ConfigError> {
        self.lost.map_or(Ok(()), Err)
    }
}

/// A virtual disk: requests to it are mapped by the live table's targets.
pub struct MappedDevice {
    id: DeviceId,
    volume: String,
    sectors: AtomicU64,
    limits: Mutex<Limits>,
    state: Mutex<State>,
    verb: AtomicBool,
    verb_free: Event,
    /// A suspend has closed the gates and waits for what was admitted.
    draining: AtomicBool,
    /// Removed or given up: no resume will come.
    ended: AtomicBool,
    events: Events,
    holder: Holder,
    claims: Arc<Claims>,
    /// Wakes calls that wait for a resume.
    resumed: Event,
    pub(crate) calls: Calls,
    /// The failures of its own targets and of former tables. The live table adds those that it
    /// passes on.
    failures: Arc<FailureCount>,
}

/// D3: held while a verb runs.
struct VerbGuard<'a>(&'a MappedDevice);

impl Drop for VerbGuard<'_> {
    fn drop(&mut self) {
        self.0.verb.store(false, Ordering::Release);
        self.0.verb_free.notify(1);
    }
}

impl MappedDevice {
    /// A volume that is a part of `family`, which may be itself.
    pub(crate) fn new(
        id: DeviceId,
        volume: &str,
        family: &str,
        claims: &Arc<Claims>,
        failures: Arc<FailureCount>,
    ) -> MappedDevice {
        let holder = Holder { id: id.0, name: volume.to_owned(), family: family.to_owned() };
        MappedDevice {
            id,
            holder,
            claims: claims.clone(),
            volume: volume.to_owned(),
            sectors: AtomicU64::new(0),
            limits: Mutex::new(Limits::default()),
            state: Mutex::new(State { suspended: true, ..State::default() }),
            verb: AtomicBool::new(false),
            verb_free: Event::new(),
            draining: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            events: Events::of(volume),
            resumed: Event::new(),
            calls: Calls::default(),
            failures,
        }
    }

    /// Names the device inside its world.
    pub fn id(&self) -> DeviceId {
        self.id
    }

    /// The volume's name.
    pub fn volume(&self) -> &str {
        &self.volume
    }

    /// The live table.
    pub fn live_table(&self) -> Option<Arc<Table>> {
        self.state.lock().live.clone()
    }

    /// The inactive table, waiting for a resume.
    pub fn inactive_table(&self) -> Option<Arc<Table>> {
        self.state.lock().inactive.clone()
    }

    /// The table that will serve after the next resume.
    pub(crate) fn newest_table(&self) -> Option<Arc<Table>> {
        let state = self.state.lock();
        state.inactive.clone().or_else(|| state.live.clone())
    }

    /// True if requests to it reach `other`, now or with the table that waits for a resume. Also
    /// true for the device itself.
    pub fn stands_on(&self, other: DeviceId) -> bool {
        let tables = [self.live_table(), self.inactive_table()];
        let mut lines = tables.iter().flatten().flat_map(|table| table.lines());
        let reaches =
            |lower: &Arc<dyn Disk>| lower.mapped().is_some_and(|lower| lower.stands_on(other));
        self.id == other || lines.any(|line| line.target.lowers().iter().any(reaches))
    }

    /// True if requests wait.
    pub fn is_suspended(&self) -> bool {
        self.state.lock().suspended
    }

    /// Its events, for the targets of its tables and for waiters.
    pub fn events(&self) -> &Events {
        &self.events
    }

    /// Its own failure count, for the targets of its tables.
    pub fn failure_count(&self) -> &Arc<FailureCount> {
        &self.failures
    }

    /// How many events its targets raised. A table change raises none, as in the kernel.
    pub fn event_nr(&self) -> u64 {
        self.events.count()
    }

    /// Raises an event: wakes every waiter.
    pub fn raise_event(&self) {
        self.events.raise();
    }

    /// Waits until there were more than `seen` events; answers how many.
    pub async fn wait_event(&self, seen: u64) -> u64 {
        self.events.wait(seen).await
    }

    async fn verb(&self) -> VerbGuard<'_> {
        until(&self.verb_free, || !self.verb.swap(true, Ordering::AcqRel)).await;
        VerbGuard(self)
    }

    /// Makes `table` the inactive table; the next resume makes it live.
    pub async fn load(&self, table: Table) {
        let _verb = self.verb().await;
        self.state.lock().inactive = Some(Arc::new(table));
    }

    /// Drops the inactive table, if there is one.
    pub async fn clear(&self) {
        let _verb = self.verb().await;
        self.state.lock().inactive = None;
    }

    /// Stops admitting requests and waits until every task of the live targets has stopped.
    ///
    /// # Errors
    /// It is suspended, but acknowledged writes may be lost (D5).
    pub async fn suspend(&self, env: &Env, mode: SuspendMode) -> Result<(), ConfigError> {
        self.suspend_unless(env, mode, &CallOff::default()).await.map(drop)
    }

    /// Like [`MappedDevice::suspend`], but can be called off while it waits for requests: then the
    /// live table continues, and this returns false.
    ///
    /// # Errors
    /// As for [`MappedDevice::suspend`].
    pub async fn suspend_unless(
        &self,
        env: &Env,
        mode: SuspendMode,
        call_off: &CallOff,
    ) -> Result<bool, ConfigError> {
        let _verb = self.verb().await;
        if !self.is_suspended() && !self.drain(env, mode, call_off).await {
            return Ok(false);
        }
        let suspended = self.stop_targets(env).await;
        self.claims.rest(self);
        suspended.map(|()| true)
    }

    async fn suspend_locked(&self, env: &Env, mode: SuspendMode) -> Result<(), ConfigError> {
        if !self.is_suspended() {
            self.drain(env, mode, &CallOff::default()).await;
        }
        self.stop_targets(env).await
    }

    /// Closes the gates and waits until no request is left. False if that was called off: the
    /// gates are open again (D9).
    async fn drain(&self, env: &Env, mode: SuspendMode, call_off: &CallOff) -> bool {
        let id = self.id;
        everywhere(env, move |env| env.local(id).close()).await;
        self.draining.store(true, Ordering::Release);
        let stop = self.calls.announce();
        let table = self.live_table();
        for line in table.iter().flat_map(|table| table.lines()) {
            line.target.presuspend(env, mode);
        }
        let drained = Latch::new(usize::from(env.post().reactors()));
        let latch = drained.clone();
        env.call_everywhere(move |env| env.local(id).when_drained(latch.clone()));
        let is_called_off = {
            let (drained, called_off) = (pin!(drained.wait()), pin!(call_off.called()));
            matches!(select(drained, called_off).await, Either::Right(_))
        };
        self.draining.store(false, Ordering::Release);
        if let Some(table) = table.filter(|_| is_called_off) {
            for line in table.lines() {
                line.target.presuspend_undo(env).await;
            }
            everywhere(env, move |env| env.local(id).reopen(env, id, &table)).await;
            return false;
        }
        stop.wait().await;
        true
    }

    /// Stops the targets of a device that has no request left, unless it is suspended already.
    async fn stop_targets(&self, env: &Env) -> Result<(), ConfigError> {
        if self.is_suspended() {
            return Ok(());
        }
        let table = self.live_table();
        let mut result = Ok(());
        for line in table.iter().flat_map(|table| table.lines()) {
            result = result.and(line.target.suspend(env).await);
        }
        self.state.lock().suspended = true;
        self.count_loss(result)
    }

    /// Counts a loss that a verb met, and goes on (D5).
    fn count_loss(&self, result: Result<(), ConfigError>) -> Result<(), ConfigError> {
        if result.is_err() {
            self.failures.raise();
        }
        result
    }

    /// What passed these devices so far, on all reactors, in their order: one call on each.
    pub async fn traffic(env: &Env, devices: &[Arc<MappedDevice>]) -> Vec<DeviceTraffic> {
        traffic_of(env, devices.iter().map(|device| device.id).collect()).await
    }

    /// Flushes every disk of the live table that it may have written to (D6), once per suspend. The
    /// device is suspended.
    ///
    /// # Errors
    /// A flush failed: acknowledged writes may be lost.
    pub async fn flush_disks(&self, env: &Env) -> Result<(), ConfigError> {
        let _verb = self.verb().await;
        self.flush_disks_locked(env).await
    }

    async fn flush_disks_locked(&self, env: &Env) -> Result<(), ConfigError> {
        let table = {
            let mut state = self.state.lock();
            let flushed = std::mem::replace(&mut state.flushed, true);
            state.live.clone().filter(|table| !flushed && !table.is_read_only())
        };
        let mut result = Ok(());
        let table =
            table.filter(|_| !mutants::skips("device: flush of the disks that a verb leaves"));
        for disk in table.iter().flat_map(|table| table.written_lowers()) {
            let before = self.failures();
            if let Err(error) = env.io(&disk, Io::flush()).await {
                let failed = ConfigError::new(ConfigKind::System, disk.name(), "flush");
                result = result.and(Err(failed.with_source(error)));
                if self.failures() == before {
                    self.failures.raise();
                }
            }
        }
        result
    }

    /// Flushes the drives of the live table, which are the disks that are no volumes: a stop does,
    /// for one volume after the other, and a removal, which waits for no volume beneath. The device
    /// is suspended.
    ///
    /// # Errors
    /// A flush failed that the targets do not make good: acknowledged writes may be lost.
    pub async fn flush_drives(&self, env: &Env) -> Result<(), ConfigError> {
        let _verb = self.verb().await;
        self.flush_drives_locked(env).await
    }

    async fn flush_drives_locked(&self, env: &Env) -> Result<(), ConfigError> {
        let table = self.live_table().filter(|table| !table.is_read_only());
        let mut result = Ok(());
        for disk in table.iter().flat_map(|table| table.written_lowers()) {
            let before = self.failures();
            if disk.mapped().is_some() {
                continue;
            }
            if let Err(error) = env.io(&disk, Io::flush()).await
                && self.failures() != before
            {
                let failed = ConfigError::new(ConfigKind::System, disk.name(), "flush");
                result = result.and(Err(failed.with_source(error)));
            }
        }
        result
    }

    /// Makes the inactive table live, if there is one (suspending first if need be), and lets
    /// requests in.
    ///
    /// # Errors
    /// There is no table, or a target refused to start. Then the old table is live again (D7);
    /// if that cannot start either, or there is none, the device stays suspended.
    pub async fn resume(&self, env: &Env) -> Result<Resumed, ConfigError> {
        self.resume_with(env, |_| std::future::ready(())).await
    }

    /// Like [`MappedDevice::resume`]. If a table is inactive, `decided` runs once it is known
    /// whether that starts; it ends before a table serves a request, or the old one starts again.
    ///
    /// # Errors
    /// As for [`MappedDevice::resume`].
    pub async fn resume_with<F: Future<Output = ()>>(
        &self,
        env: &Env,
        decided: impl FnOnce(NewTable) -> F,
    ) -> Result<Resumed, ConfigError> {
        let _verb = self.verb().await;
        let swaps = self.inactive_table().is_some();
        if !swaps && !self.is_suspended() {
            return Ok(Resumed::default());
        }
        self.claim()?;
        let mut lost = Ok(());
        if swaps {
            lost = self.suspend_locked(env, SuspendMode::Flush).await;
            lost = lost.and(self.flush_disks_locked(env).await);
        }
        let stop = self.calls.announce();
        stop.wait().await;
        if swaps {
            lost = lost.and(self.swap(env, decided).await?);
        } else {
            self.start_live(env).await?;
        }
        drop(stop);
        Ok(Resumed { lost: lost.err() })
    }

    /// Lets requests in to the live table again, even if another table waits.
    ///
    /// # Errors
    /// Another volume claims a range that it needs, or it cannot start: the device stays suspended.
    pub async fn resume_live(&self, env: &Env) -> Result<(), ConfigError> {
        let _verb = self.verb().await;
        if !self.is_suspended() {
            return Ok(());
        }
        if let Some(live) = self.live_table() {
            self.claims.take(self, &live)?;
        }
        let stop = self.calls.announce();
        stop.wait().await;
        self.start_live(env).await
    }

    /// Starts the live table again.
    async fn start_live(&self, env: &Env) -> Result<(), ConfigError> {
        let Some(table) = self.live_table() else {
            let detail = "resume: no table is loaded";
            return Err(ConfigError::new(ConfigKind::Argument, self.volume(), detail));
        };
        if let Err(error) = table.start(env).await {
            self.claims.rest(self);
            return Err(error);
        }
        self.claims.settle(self, &table);
        self.serve(env, &table).await;
        Ok(())
    }

    /// Replaces the live table by the inactive one. Answers what the old one said at its end.
    async fn swap<F: Future<Output = ()>>(
        &self,
        env: &Env,
        decided: impl FnOnce(NewTable) -> F,
    ) -> Result<Result<(), ConfigError>, ConfigError> {
        let (old, new, served) = {
            let mut state = self.state.lock();
            let new = state.inactive.take().expect("only verbs take it, and they take turns");
            (state.live.clone(), new, state.served)
        };
        // The old table's targets let go of their devices before the new ones recover.
        self.drop_local_tables(env).await;
        let closed = self.count_loss(close(env, old.as_ref()).await);
        match new.start(env).await {
            Ok(()) => {
                decided(NewTable::Started).await;
                self.claims.settle(self, &new);
                self.make_live(Some(new.clone()));
                self.serve(env, &new).await;
                Ok(closed)
            }
            Err(error) => {
                // It served nothing: there is nothing to lose.
                let _ = new.close(env).await;
                decided(NewTable::Refused).await;
                Err(self.back_to(env, old.filter(|_| served), new, error).await)
            }
        }
    }

    /// D7: the new table cannot start, as `error` says. `old` is the one that served before.
    async fn back_to(
        &self,
        env: &Env,
        old: Option<Arc<Table>>,
        new: Arc<Table>,
        error: ConfigError,
    ) -> ConfigError {
        let Some(old) = old else {
            // The next resume may succeed.
            self.claims.settle(self, &new);
            self.claims.rest(self);
            self.make_live(Some(new));
            return error;
        };
        self.claims.settle(self, &old);
        match old.start(env).await {
            Ok(()) => {
                self.serve(env, &old).await;
                error
            }
            Err(second) => {
                self.claims.rest(self);
                let detail = format!("{error}; and the old table cannot start again: {second}");
                ConfigError::new(error.kind, self.volume(), detail)
            }
        }
    }

    /// Another table is live from now on. What the old one passed on stays counted.
    fn make_live(&self, table: Option<Arc<Table>>) -> Option<Arc<Table>> {
        let mut state = self.state.lock();
        self.failures.add(state.passed_on());
        state.served = false;
        state.base_failures = table.as_ref().map_or(0, |table| table.failures_told());
        std::mem::replace(&mut state.live, table)
    }

    /// Lets requests in to a table that has started.
    async fn serve(&self, env: &Env, table: &Arc<Table>) {
        self.publish(table);
        self.open_gates(env, table).await;
    }

    async fn drop_local_tables(&self, env: &Env) {
        let id = self.id;
        everywhere(env, move |env| env.swap_table(id, None)).await;
    }

    fn publish(&self, table: &Table) {
        let limits = table.limits();
        self.sectors.store(table.sectors().0, Ordering::Release);
        *self.limits.lock() = limits;
        let mut state = self.state.lock();
        (state.suspended, state.flushed, state.served) = (false, false, true);
        drop(state);
        self.resumed.notify(usize::MAX);
    }

    async fn open_gates(&self, env: &Env, table: &Arc<Table>) {
        let (id, table) = (self.id, table.clone());
        everywhere(env, move |env| env.local(id).open(env, id, table.clone())).await;
    }

    /// The world ends: requests at the gate fail, now and later, and a running suspend gets back
    /// the requests that targets keep waiting. It takes no turn (D3): the verb that holds the turn
    /// may wait for these requests.
    pub async fn give_up(&self, env: &Env) {
        self.end_calls();
        if self.draining.load(Ordering::Acquire) {
            self.give_back(env);
        }
        let id = self.id;
        everywhere(env, move |env| env.local(id).give_up(env)).await;
    }

    /// Like [`MappedDevice::give_up`]; requests that the targets keep waiting fail too, now and
    /// later, with or without a suspend.
    pub async fn let_go(&self, env: &Env) {
        self.give_up(env).await;
        self.give_back(env);
    }

    fn give_back(&self, env: &Env) {
        for line in self.live_table().iter().flat_map(|table| table.lines()) {
            line.target.presuspend(env, SuspendMode::NoFlush);
        }
    }

    /// Ends the device: suspends it and drops its tables. Requests that are parked at the gate or
    /// in the targets fail, and so do all later ones.
    ///
    /// # Errors
    /// It is removed, but acknowledged writes may be lost.
    pub async fn remove(&self, env: &Env) -> Result<(), ConfigError> {
        let _verb = self.verb().await;
        self.end_calls();
        // Nothing is to wait here for what may never come.
        let suspended = self.suspend_locked(env, SuspendMode::NoFlush).await;
        let suspended = suspended.and(self.flush_drives_locked(env).await);
        let stop = self.calls.announce();
        stop.wait().await;
        let live = self.make_live(None);
        self.state.lock().inactive = None;
        let id = self.id;
        everywhere(env, move |env| env.local(id).remove(env, id)).await;
        let closed = self.count_loss(close(env, live.as_ref()).await);
        self.claims.release(self);
        suspended.and(closed)
    }

    /// Begins a call into targets of the live table from outside this file. Until it ends they are
    /// neither suspended, closed nor resumed (D8). A call must be short, because verbs wait for it.
    pub async fn begin_call(&self) -> Call<'_> {
        self.calls.begin().await
    }

    /// Begins a call into the live table, once the device is not suspended, as a read would.
    ///
    /// # Errors
    /// It never will be live again.
    async fn call_live(&self) -> Result<(Call<'_>, Arc<Table>), IoError> {
        loop {
            let resumed = self.resumed.listen();
            if self.is_suspended() {
                if self.ended.load(Ordering::Acquire) {
                    return Err(IoError::SHUTDOWN);
                }
                resumed.await;
                continue;
            }
            let call = self.calls.begin().await;
            if let Some(table) = self.live_table().filter(|_| !self.is_suspended()) {
                return Ok((call, table));
            }
        }
    }

    /// Calls that wait for a resume fail.
    fn end_calls(&self) {
        self.ended.store(true, Ordering::Release);
        self.resumed.notify(usize::MAX);
    }
}

/// Who may use what: see `claiming`.
impl MappedDevice {
    pub(crate) fn holder(&self) -> &Holder {
        &self.holder
    }

    /// Takes the claims of the table that the next resume makes live, in addition to those of the
    /// volume.
    fn claim(&self) -> Result<(), ConfigError> {
        let table = self.newest_table();
        table.map_or(Ok(()), |table| self.claims.take(self, &table))
    }

    /// Refuses if the next resume would be refused for what others claim or write.
    ///
    /// # Errors
    /// One line about the device and its owner.
    pub fn refuse_claimed(&self) -> Result<(), ConfigError> {
        let table = self.newest_table();
        table.map_or(Ok(()), |table| self.claims.check(self, &table))
    }

    /// Refuses what a new part of this volume could not claim. `claim` is on this volume, whose
    /// table will be that of another new part, beneath that one and this volume.
    ///
    /// # Errors
    /// One line about the device and its owner.
    pub fn refuse_part(&self, part: &str, claim: &Claim) -> Result<(), ConfigError> {
        self.claims.check_part(self, part, claim)
    }

    /// The volumes that the table claims that the next resume makes live.
    pub fn will_claim(&self) -> Vec<Claimed> {
        self.newest_table().map(|table| claimed_by(&self.holder, &table)).unwrap_or_default()
    }

    /// The volumes that claim this one, or a part of it.
    pub fn claimants(&self) -> Vec<Claimant> {
        self.claims.claimants(self)
    }
}

/// Has the targets of a table, if there is one, let go of their devices.
async fn close(env: &Env, table: Option<&Arc<Table>>) -> Result<(), ConfigError> {
    match table {
        Some(table) => table.close(env).await,
        None => Ok(()),
    }
}

impl Disk for MappedDevice {
    fn name(&self) -> String {
        format!("@{}", self.volume)
    }

    fn sectors(&self) -> SectorCount {
        SectorCount(self.sectors.load(Ordering::Acquire))
    }

    fn limits(&self) -> Limits {
        *self.limits.lock()
    }

    /// Of the live table, and of one that may become live before a later request is mapped.
    fn nature(&self) -> Nature {
        let tables = [self.live_table(), self.inactive_table()];
        let natures: Vec<Nature> = tables.iter().flatten().map(|table| table.nature()).collect();
        let shape = natures.last().map_or(Shape::Unknown, |newest| newest.shape);
        Nature::of_parts(natures, shape)
    }

    fn submit(&self, _env: &Env, _request: &mut Request) -> Flow {
        unreachable!("the engine maps requests to a mapped device")
    }

    fn refresh(&self) -> Result<(), ConfigError> {
        let Some(table) = self.newest_table() else { return Ok(()) };
        for line in table.lines() {
            for lower in line.target.lowers() {
                lower.refresh()?;
            }
        }
        Ok(())
    }

    fn extents<'a>(
        &'a self,
        env: &'a Env,
        range: SectorRange,
    ) -> LocalFuture<'a, Result<Vec<Extent>, IoError>> {
        Box::pin(async move {
            let (_call, table) = self.call_live().await?;
            let Some((_, line)) = table.line_at(range.start) else { return Err(IoError::INVALID) };
            let data = vec![Extent { count: range.count, kind: ExtentKind::Data }];
            let Some(mut inside) = range.intersect(line.range()) else { return Ok(data) };
            inside.start = Sector(inside.start.0 - line.start.0);
            line.target.extents(env, inside).await
        })
    }

    fn failures(&self) -> u64 {
        let state = self.state.lock();
        self.failures.count() + state.passed_on()
    }

    fn failures_told(&self) -> u64 {
        self.failures.told()
    }

    fn acknowledge_failures(&self, upto: u64) {
        let (live, count) = {
            let state = self.state.lock();
            (state.live.clone(), self.failures.count() + state.passed_on())
        };
        self.failures.acknowledge(upto);
        if upto < count {
            return;
        }
        for line in live.iter().flat_map(|table| table.lines()) {
            line.target.acknowledge_failures();
        }
    }

    fn marker_place(&self) -> MarkerPlace<'_> {
        self.newest_table().map_or(MarkerPlace::Needless, |table| table.marker_place())
    }

    fn mapped(&self) -> Option<&MappedDevice> {
        Some(self)
    }
}
