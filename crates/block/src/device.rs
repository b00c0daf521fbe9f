//! Mapped devices: a name, a live table, perhaps an inactive one, and the verbs between them.
//!
//! States: *suspended* (gates closed; requests park in order at each reactor) and *active*. A
//! device begins suspended without a table.
//!
//! Suspend: every reactor closes its gate and says so; the targets give back what they parked;
//! each reactor says when its last admitted request has left; then the targets' `suspend` runs
//! (commit, stop tasks). Resume: the inactive table, if any, becomes live; its targets'
//! `resume` runs (read metadata, recover, start tasks); every reactor takes the table, opens
//! its gate and lets the parked requests in, in their order. A client sees only a pause.
//!
//! D1. No request is admitted while the gate is closed, except parts of admitted ones.
//! D2. A table is dropped only when no request holds a frame of it: the swap happens when
//!     every reactor's count is zero.
//! D3. One verb at a time per device.
//! D4. A reactor's tables change only between two runs of its engine: by mail, or by a verb's
//!     task, never by what a target or client does while it is called.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;

use event_listener::Event;

use crate::check::Bounds;
use crate::claiming::{Claimant, Claimed, Claims, claimed_by};
use crate::claims::Holder;
use crate::disk::{Disk, Extent, ExtentKind, Flow, Limits, LocalFuture};
use crate::engine::Work;
use crate::env::Env;
use crate::error::{ConfigError, ConfigKind, ErrorKind, IoError};
use crate::request::{Op, Request, RequestId};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::table::{Straight, Table};
use crate::target::SuspendMode;
use crate::units::{Sector, SectorCount, SectorRange};
use crate::witness::{Witness, tell_content_lost};

/// What a request to a removed device is told.
pub(crate) const SHUTDOWN: IoError = IoError::new(ErrorKind::Shutdown);

/// Names a mapped device inside a world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DeviceId(pub(crate) u32);

/// The events of a mapped device, for whoever raises or awaits them.
#[derive(Clone, Default)]
pub struct Events(Arc<EventsInner>);

#[derive(Default)]
struct EventsInner {
    count: AtomicU64,
    raised: Event,
    witness: Mutex<Option<Arc<dyn Witness>>>,
}

impl Events {
    /// How many there were.
    pub fn count(&self) -> u64 {
        self.0.count.load(Ordering::Acquire)
    }

    /// Tells every waiter that something worth looking at happened.
    pub fn raise(&self) {
        self.0.count.fetch_add(1, Ordering::AcqRel);
        self.0.raised.notify(usize::MAX);
    }

    /// From now on `witness` is told what the volume's devices can't keep.
    pub fn set_witness(&self, witness: Arc<dyn Witness>) {
        *self.0.witness.lock() = Some(witness);
    }

    /// The volume's content is lost, and its own device can't say so any more. True when the
    /// volume's witness knows it durably; false if there is none, or it failed.
    pub async fn content_lost(&self) -> bool {
        let witness = self.0.witness.lock().clone();
        match witness {
            Some(witness) => tell_content_lost(witness.as_ref()).await,
            None => false,
        }
    }

    /// Waits until there were more than `seen`; answers how many.
    pub async fn wait(&self, seen: u64) -> u64 {
        loop {
            let listener = self.0.raised.listen();
            let now = self.count();
            if now > seen {
                return now;
            }
            listener.await;
        }
    }
}

/// Counts arrivals down from any thread; one waits for the last.
struct Latch {
    left: AtomicUsize,
    event: Event,
}

impl Latch {
    fn new(count: usize) -> Arc<Latch> {
        Arc::new(Latch { left: AtomicUsize::new(count), event: Event::new() })
    }

    fn arrive(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.event.notify(usize::MAX);
        }
    }

    async fn wait(&self) {
        loop {
            let listener = self.event.listen();
            if self.left.load(Ordering::Acquire) == 0 {
                return;
            }
            listener.await;
        }
    }
}

/// The live tables of one reactor, by device. They change only between two runs of the engine
/// (D4), so that a run borrows them all at once and touches no reference count.
#[derive(Default)]
pub(crate) struct Tables(Vec<Option<Arc<Table>>>);

impl Tables {
    /// The table of a device; none while it is being swapped.
    pub fn get(&self, device: DeviceId) -> Option<&Table> {
        self.0.get(device.0 as usize)?.as_deref()
    }

    /// Changes the table of a device; answers the old one.
    pub fn swap(&mut self, device: DeviceId, table: Option<Arc<Table>>) -> Option<Arc<Table>> {
        let index = device.0 as usize;
        if self.0.len() <= index {
            self.0.resize(index + 1, None);
        }
        std::mem::replace(&mut self.0[index], table)
    }
}

/// The views of one reactor, made (closed) at first use. They never move: chunk n holds
/// `CHUNK << n` devices, and ids count from zero.
#[derive(Default)]
pub(crate) struct Locals {
    first: OnceCell<Box<[LocalDevice; CHUNK]>>,
    /// From the second on; as many as ids can reach.
    rest: [OnceCell<Box<[LocalDevice]>>; 32],
}

/// How many views are made at once at first: more than most worlds have devices.
const CHUNK: usize = 16;

impl Locals {
    #[inline(always)]
    pub fn get(&self, device: DeviceId) -> &LocalDevice {
        let index = device.0 as usize;
        if index < CHUNK
            && let Some(first) = self.first.get()
        {
            return &first[index];
        }
        self.find(index)
    }

    #[inline(never)]
    fn find(&self, index: usize) -> &LocalDevice {
        if index < CHUNK {
            return &self.first.get_or_init(Box::default)[index];
        }
        let chunk = (index / CHUNK + 1).ilog2();
        let (first, len) = (CHUNK * ((1 << chunk) - 1), CHUNK << chunk);
        let make = || (0..len).map(|_| LocalDevice::default()).collect();
        &self.rest[chunk as usize - 1].get_or_init(make)[index - first]
    }
}

/// Where every request to a device goes, if its table is one line that decides nothing.
#[derive(Clone, Copy)]
pub(crate) struct Way {
    /// On the lower disk.
    pub start: Sector,
    /// The lower disk, if that is a mapped device too.
    pub next: Option<DeviceId>,
}

/// One reactor's view of a device.
pub(crate) struct LocalDevice {
    closed: Cell<bool>,
    inflight: Cell<u64>,
    /// What the live table takes; nothing while closed.
    bounds: Cell<Bounds>,
    way: Cell<Option<Way>>,
    drained: RefCell<Option<Arc<Latch>>>,
    /// Requests at the gate, in order. They wait in their slots: a request may have parts
    /// elsewhere that end meanwhile.
    parked: RefCell<VecDeque<RequestId>>,
    /// The device has been removed: nothing is admitted any more. Ids are not used again, so
    /// this is all that is left of it.
    removed: Cell<bool>,
    /// Nobody opens the gate any more: who comes to it while it is closed fails.
    given_up: Cell<bool>,
}

impl Default for LocalDevice {
    fn default() -> LocalDevice {
        LocalDevice {
            closed: Cell::new(true),
            inflight: Cell::default(),
            drained: RefCell::default(),
            parked: RefCell::default(),
            removed: Cell::default(),
            given_up: Cell::default(),
            bounds: Cell::new(Bounds::NOTHING),
            way: Cell::default(),
        }
    }
}

impl LocalDevice {
    pub fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// What the live table takes; only while the gate is open.
    pub fn bounds(&self) -> Bounds {
        debug_assert!(!self.closed.get());
        self.bounds.get()
    }

    /// The way of a request, if the gate is open, the table takes it and need not be asked.
    #[inline(always)]
    pub fn way(&self, range: SectorRange, op: Op) -> Option<Way> {
        let taken = self.bounds.get().take(range, op);
        self.way.get().filter(|_| taken)
    }

    fn close(&self) {
        self.closed.set(true);
        self.bounds.set(Bounds::NOTHING);
    }

    pub fn admit(&self) {
        self.inflight.set(self.inflight.get() + 1);
    }

    #[inline(always)]
    pub fn leave(&self) {
        let left = self.inflight.get() - 1;
        self.inflight.set(left);
        // Nobody waits for the last request before the gate was closed.
        if left == 0 && self.closed.get() {
            self.tell_drained();
        }
    }

    #[cold]
    fn tell_drained(&self) {
        if let Some(latch) = self.drained.borrow_mut().take() {
            latch.arrive();
        }
    }

    pub fn is_removed(&self) -> bool {
        self.removed.get()
    }

    /// True if no request may wait at the gate.
    pub fn is_given_up(&self) -> bool {
        self.given_up.get()
    }

    pub fn park(&self, env: &Env, mut request: Box<Request>) {
        self.parked.borrow_mut().push_back(request.id);
        request.at_gate = true;
        env.slots().park(request);
    }

    fn when_drained(&self, latch: Arc<Latch>) {
        if self.inflight.get() == 0 {
            latch.arrive();
        } else {
            *self.drained.borrow_mut() = Some(latch);
        }
    }

    fn open(&self, env: &Env, device: DeviceId, table: Arc<Table>) {
        debug_assert_eq!(self.inflight.get(), 0, "D2");
        self.bounds.set(Bounds::new(table.sectors(), table.limits()));
        self.way.set(table.straight().map(Straight::way));
        env.swap_table(device, Some(table));
        self.closed.set(false);
        for id in self.parked.borrow_mut().drain(..) {
            env.push_work(Work::Enter { device, id });
        }
    }

    /// Fails what is parked and whatever comes later.
    fn remove(&self, env: &Env, device: DeviceId) {
        self.removed.set(true);
        env.swap_table(device, None);
        self.fail_parked(env);
    }

    /// Fails what waits at the gate, and whatever comes to it later and finds it closed.
    fn give_up(&self, env: &Env) {
        env.set_ending();
        self.given_up.set(true);
        if self.is_closed() {
            self.fail_parked(env);
        }
    }

    fn fail_parked(&self, env: &Env) {
        for id in self.parked.borrow_mut().drain(..) {
            env.push_work(Work::Fail(id, SHUTDOWN));
        }
    }
}

#[derive(Default)]
struct State {
    live: Option<Arc<Table>>,
    inactive: Option<Arc<Table>>,
    suspended: bool,
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
    events: Events,
    holder: Holder,
    claims: Arc<Claims>,
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
            events: Events::default(),
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

    /// True if requests to it reach `other`, or will with the table that waits for a resume; of
    /// itself, too.
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

    /// Its events: for a target of one of its tables, and for who waits.
    pub fn events(&self) -> &Events {
        &self.events
    }

    /// How many events (table changes, targets' notices) there were.
    pub fn event_nr(&self) -> u64 {
        self.events.count()
    }

    /// Tells every waiter that something worth looking at happened.
    pub fn raise_event(&self) {
        self.events.raise();
    }

    /// Waits until there were more than `seen` events; answers how many.
    pub async fn wait_event(&self, seen: u64) -> u64 {
        self.events.wait(seen).await
    }

    async fn verb(&self) -> VerbGuard<'_> {
        loop {
            let listener = self.verb_free.listen();
            if !self.verb.swap(true, Ordering::AcqRel) {
                return VerbGuard(self);
            }
            listener.await;
        }
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
    pub async fn suspend(&self, env: &Env, mode: SuspendMode) {
        let _verb = self.verb().await;
        self.suspend_locked(env, mode).await;
        self.claims.rest(self);
    }

    async fn suspend_locked(&self, env: &Env, mode: SuspendMode) {
        if self.is_suspended() {
            return;
        }
        let reactors = usize::from(env.post().reactors());
        let (id, closed) = (self.id, Latch::new(reactors));
        let latch = closed.clone();
        env.call_everywhere(move |env| {
            env.local(id).close();
            latch.arrive();
        });
        closed.wait().await;
        self.draining.store(true, Ordering::Release);
        let table = self.live_table();
        for line in table.iter().flat_map(|table| table.lines()) {
            line.target.presuspend(env, mode);
        }
        let drained = Latch::new(reactors);
        let latch = drained.clone();
        env.call_everywhere(move |env| env.local(id).when_drained(latch.clone()));
        drained.wait().await;
        self.draining.store(false, Ordering::Release);
        for line in table.iter().flat_map(|table| table.lines()) {
            line.target.suspend(env).await;
        }
        self.state.lock().suspended = true;
    }

    /// Makes the inactive table live, if there is one (suspending first if need be), and lets
    /// requests in.
    ///
    /// # Errors
    /// There is no table, or a target refused to start: the device stays suspended.
    pub async fn resume(&self, env: &Env) -> Result<(), ConfigError> {
        let _verb = self.verb().await;
        let reload = self.inactive_table().is_some();
        if !reload && !self.is_suspended() {
            return Ok(());
        }
        self.claim()?;
        if reload {
            self.suspend_locked(env, SuspendMode::Flush).await;
        }
        let (swapped, table, old) = {
            let mut state = self.state.lock();
            let inactive = state.inactive.take();
            let swapped = inactive.is_some();
            let old = if swapped { state.live.take() } else { None };
            state.live = inactive.or_else(|| state.live.take());
            (swapped, state.live.clone(), old)
        };
        let Some(table) = table else {
            let detail = "resume: found no table, expected one loaded before";
            return Err(ConfigError::new(ConfigKind::Argument, self.volume(), detail));
        };
        // The old table's targets let go of their devices before the new ones recover.
        self.drop_local_tables(env).await;
        close_table(env, old).await;
        self.claims.settle(self, &table);
        for (started, line) in table.lines().iter().enumerate() {
            if let Err(error) = line.target.resume(env).await {
                for line in &table.lines()[..started] {
                    line.target.suspend(env).await;
                }
                self.claims.rest(self);
                return Err(error);
            }
        }
        self.publish(&table);
        self.open_gates(env, &table).await;
        if swapped {
            self.raise_event();
        }
        Ok(())
    }

    async fn drop_local_tables(&self, env: &Env) {
        let (id, done) = (self.id, Latch::new(usize::from(env.post().reactors())));
        let latch = done.clone();
        env.call_everywhere(move |env| {
            env.swap_table(id, None);
            latch.arrive();
        });
        done.wait().await;
    }

    fn publish(&self, table: &Table) {
        let limits = table.limits();
        self.sectors.store(table.sectors().0, Ordering::Release);
        *self.limits.lock() = limits;
        self.state.lock().suspended = false;
    }

    async fn open_gates(&self, env: &Env, table: &Arc<Table>) {
        let (id, done) = (self.id, Latch::new(usize::from(env.post().reactors())));
        let (latch, table) = (done.clone(), table.clone());
        env.call_everywhere(move |env| {
            env.local(id).open(env, id, table.clone());
            latch.arrive();
        });
        done.wait().await;
    }

    /// The world ends: what waits at the gate fails, now and later, and a suspend under way gets
    /// back what the targets keep waiting. Needs no turn (D3): the verb whose turn it is may wait
    /// for these.
    pub async fn give_up(&self, env: &Env) {
        if self.draining.load(Ordering::Acquire) {
            self.give_back(env);
        }
        let (id, done) = (self.id, Latch::new(usize::from(env.post().reactors())));
        let latch = done.clone();
        env.call_everywhere(move |env| {
            env.local(id).give_up(env);
            latch.arrive();
        });
        done.wait().await;
    }

    /// The same, and what the targets keep waiting fails, now and later, suspend or not.
    pub async fn let_go(&self, env: &Env) {
        self.give_up(env).await;
        self.give_back(env);
    }

    fn give_back(&self, env: &Env) {
        for line in self.live_table().iter().flat_map(|table| table.lines()) {
            line.target.presuspend(env, SuspendMode::NoFlush);
        }
    }

    /// Ends the device: suspends it, drops its tables, fails what is parked, at the gate or in the
    /// targets, and whatever is sent to it later.
    pub async fn remove(&self, env: &Env) {
        let _verb = self.verb().await;
        // Nothing is to wait here for what may never come.
        self.suspend_locked(env, SuspendMode::NoFlush).await;
        let last = State { suspended: true, ..State::default() };
        let state = std::mem::replace(&mut *self.state.lock(), last);
        let (id, done) = (self.id, Latch::new(usize::from(env.post().reactors())));
        let latch = done.clone();
        env.call_everywhere(move |env| {
            env.local(id).remove(env, id);
            latch.arrive();
        });
        done.wait().await;
        close_table(env, state.live).await;
        self.claims.release(self);
    }
}

/// Who may use what: see `claiming`.
impl MappedDevice {
    pub(crate) fn holder(&self) -> &Holder {
        &self.holder
    }

    /// Takes what the table claims that the next resume makes live, beside what the volume has.
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

    /// The volumes that the table claims that the next resume makes live.
    pub fn will_claim(&self) -> Vec<Claimed> {
        self.newest_table().map(|table| claimed_by(&self.holder, &table)).unwrap_or_default()
    }

    /// The volumes that claim this one, or a part of it.
    pub fn claimants(&self) -> Vec<Claimant> {
        self.claims.claimants(self)
    }
}

/// Has a table's targets let go of their devices, and drops it.
async fn close_table(env: &Env, table: Option<Arc<Table>>) {
    for line in table.iter().flat_map(|table| table.lines()) {
        line.target.close(env).await;
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
            let data = vec![Extent { count: range.count, kind: ExtentKind::Data }];
            let Some(table) = self.live_table() else { return Ok(data) };
            let Some((_, line)) = table.line_at(range.start) else { return Err(IoError::INVALID) };
            let Some(mut inside) = range.intersect(line.range()) else { return Ok(data) };
            inside.start = Sector(inside.start.0 - line.start.0);
            line.target.extents(env, inside).await
        })
    }

    fn mapped(&self) -> Option<&MappedDevice> {
        Some(self)
    }
}
