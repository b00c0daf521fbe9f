//! One reactor's view of each mapped device: whether its gate is open, how many requests it has
//! admitted, which requests wait at the gate, and the live table.
//!
//! Only the owning reactor touches these; a device's verbs change them by a call on every reactor
//! (`crate::device`, D1, D2 and D4).

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;

use event_listener::Event;

use crate::check::Bounds;
use crate::disk::Limits;
use crate::engine::Work;
use crate::env::Env;
use crate::error::IoError;
use crate::ids::{DeviceId, RequestId};
use crate::line_traffic::LineCounts;
use crate::op::Op;
use crate::request::Request;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::table::{Straight, Table};
use crate::traffic::{DeviceTraffic, LocalTraffic};
use crate::units::{Sector, SectorCount, SectorRange};
use crate::wait::until;

/// Counts arrivals down from any thread; one waits for the last.
pub(crate) struct Latch {
    left: AtomicUsize,
    event: Event,
}

impl Latch {
    pub fn new(count: usize) -> Arc<Latch> {
        Arc::new(Latch { left: AtomicUsize::new(count), event: Event::new() })
    }

    pub fn arrive(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.event.notify(usize::MAX);
        }
    }

    pub async fn wait(&self) {
        until(&self.event, || self.left.load(Ordering::Acquire) == 0).await;
    }
}

/// Runs `job` on every reactor, and waits until all have.
pub(crate) async fn everywhere(env: &Env, job: impl Fn(&Env) + Send + Clone + 'static) {
    let done = Latch::new(usize::from(env.post().reactors()));
    let latch = done.clone();
    env.call_everywhere(move |env| {
        job(env);
        latch.arrive();
    });
    done.wait().await;
}

/// What passed devices so far, on all reactors, in their order.
pub(crate) async fn traffic_of(env: &Env, ids: Arc<[DeviceId]>) -> Vec<DeviceTraffic> {
    let sums = Arc::new(Mutex::new(vec![DeviceTraffic::default(); ids.len()]));
    let adds = sums.clone();
    everywhere(env, move |env| {
        for (sum, id) in adds.lock().iter_mut().zip(&*ids) {
            let local = env.local(*id);
            local.lines.add_to(&local.traffic, sum);
        }
    })
    .await;
    std::mem::take(&mut *sums.lock())
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
    /// The size and limits of the live table; meaningless while closed.
    facts: Cell<(SectorCount, Limits)>,
    way: Cell<Option<Way>>,
    drained: RefCell<Option<Arc<Latch>>>,
    /// Requests at the gate, in order. They wait in their slots: a request may have parts elsewhere
    /// that end while it waits.
    parked: RefCell<VecDeque<RequestId>>,
    /// The device has been removed: nothing is admitted any more. Ids are not used again, so
    /// this is all that is left of it.
    removed: Cell<bool>,
    /// The gate will not open any more: a request that finds it closed fails.
    given_up: Cell<bool>,
    traffic: LocalTraffic,
    lines: LineCounts,
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
            facts: Cell::default(),
            way: Cell::default(),
            traffic: LocalTraffic::default(),
            lines: LineCounts::default(),
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

    /// The size and limits of the live table; none while the gate is closed.
    pub fn facts(&self) -> Option<(SectorCount, Limits)> {
        (!self.closed.get()).then(|| self.facts.get())
    }

    /// The way of a request, if the gate is open, the table takes it and need not be asked.
    #[inline(always)]
    pub fn way(&self, range: SectorRange, op: Op) -> Option<Way> {
        let taken = self.bounds.get().take(range, op);
        self.way.get().filter(|_| taken)
    }

    pub fn close(&self) {
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
        // No task waits for the last request before the gate is closed.
        if left == 0 && self.closed.get() {
            self.tell_drained();
        }
    }

    /// What has left so far.
    #[inline(always)]
    pub fn traffic(&self) -> &LocalTraffic {
        &self.traffic
    }

    /// What has left each line.
    #[inline(always)]
    pub fn lines(&self) -> &LineCounts {
        &self.lines
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

    /// Parks a handed-back request at the gate. If the suspend was called off since, the request
    /// enters at once.
    pub fn park_again(&self, env: &Env, device: DeviceId, mut request: Box<Request>) {
        if self.is_closed() {
            return self.park(env, request);
        }
        env.push_work(Work::Enter { device, id: request.id });
        request.at_gate = true;
        env.slots().park(request);
    }

    pub fn when_drained(&self, latch: Arc<Latch>) {
        if self.inflight.get() == 0 {
            latch.arrive();
        } else {
            *self.drained.borrow_mut() = Some(latch);
        }
    }

    pub fn open(&self, env: &Env, device: DeviceId, table: Arc<Table>) {
        debug_assert_eq!(self.inflight.get(), 0, "D2");
        self.way.set(table.straight().map(Straight::way));
        let lines = table.lines().iter().map(|line| (line.start, line.name.as_str()));
        self.lines.follow(lines, &self.traffic);
        let live = table.clone();
        env.swap_table(device, Some(table));
        self.let_in(env, device, &live);
    }

    /// A suspend was called off: the live table, which is `table`, goes on.
    pub fn reopen(&self, env: &Env, device: DeviceId, table: &Table) {
        self.drained.borrow_mut().take();
        self.let_in(env, device, table);
    }

    fn let_in(&self, env: &Env, device: DeviceId, table: &Table) {
        let (sectors, limits) = (table.sectors(), table.limits());
        self.bounds.set(Bounds::new(sectors, limits));
        self.facts.set((sectors, limits));
        self.closed.set(false);
        for id in self.parked.borrow_mut().drain(..) {
            env.push_work(Work::Enter { device, id });
        }
    }

    /// Fails parked requests and all later ones.
    pub fn remove(&self, env: &Env, device: DeviceId) {
        self.removed.set(true);
        env.swap_table(device, None);
        self.fail_parked(env);
    }

    /// Fails the requests at the gate, and later ones that find it closed.
    pub fn give_up(&self, env: &Env) {
        env.set_ending();
        self.given_up.set(true);
        if self.is_closed() {
            self.fail_parked(env);
        }
    }

    fn fail_parked(&self, env: &Env) {
        for id in self.parked.borrow_mut().drain(..) {
            env.push_work(Work::Fail(id, IoError::SHUTDOWN));
        }
    }
}
