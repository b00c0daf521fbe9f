//! `delay`: requests wait before they go on; reads, writes and flushes each for their own time
//! and to their own device.
//!
//! A request that must wait is parked and entered in a queue by its due time; one task per
//! target sleeps until the first is due and has it mapped again, marked as delayed.
//!
//! ```text
//!            resume              presuspend                suspend
//! Stopped ------------> Delaying ----------> Passing ----------------> Stopping -> Stopped
//!                          ^  presuspend_undo  |                         (task ends)
//!                          +-------------------+
//! ```
//!
//! I1. A request is in the queue exactly while it is parked by this target: entered by `map`,
//!     taken out by whoever remaps it or hands it back, under the lock.
//! I2. The queue gains requests while Delaying only; therefore nothing stays in it behind a
//!     presuspend.
//! I3. The task runs in every state but Stopped.
//!
//! Promises: of two requests of one class, that arrive one after the other, the first goes on
//! first. A suspend does not wait for a delay: what waits goes on at once, or with
//! [`SuspendMode::NoFlush`] back to the device.

use std::collections::BTreeMap;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::sync::Mutex;
use cairn_block::{
    ConfigError, Ctor, Disk, Env, Extent, IoError, LocalFuture, Op, Request, RequestId,
    SectorRange, SuspendMode, Target, TargetType, Time, Verdict,
};
use event_listener::Event;
use futures_util::future::select;

use crate::area::Area;
use crate::args::{Args, Spec};

/// The words of `delay`.
pub const SPEC: Spec = Spec {
    options: &[],
    status_fields: &["delayed_reads", "delayed_writes", "delayed_flushes"],
    messages: &[],
};

/// What a request is remembered by once it has waited.
const HAS_WAITED: u64 = 1;

/// The kind of target.
pub struct DelayType;

impl TargetType for DelayType {
    fn name(&self) -> &'static str {
        "delay"
    }

    fn version(&self) -> [u32; 3] {
        [1, 3, 0]
    }

    fn construct<'a>(
        &'a self,
        _env: &'a Env,
        ctor: Ctor<'a>,
    ) -> LocalFuture<'a, Result<Arc<dyn Target>, ConfigError>> {
        Box::pin(ready(Delay::parse(&ctor).map(|target| Arc::new(target) as _)))
    }
}

/// The classes of requests, in the order of the arguments and of the status fields.
const CLASSES: usize = SPEC.status_fields.len();

fn class_of(op: Op) -> usize {
    match op {
        Op::Read => 0,
        Op::Write | Op::Discard | Op::WriteZeroes => 1,
        Op::Flush => 2,
    }
}

/// Where a class of requests goes, and after how long.
#[derive(Clone)]
struct Route {
    area: Area,
    delay: Duration,
}

struct Delay {
    /// One per class.
    routes: [Route; CLASSES],
    /// How many of them the table line gave: 1, 2 or 3.
    given: usize,
    queue: Arc<Queue>,
}

impl Delay {
    /// `<device> <offset> <delay> [<write_device> <write_offset> <write_delay>
    /// [<flush_device> <flush_offset> <flush_delay>]]`, delays in milliseconds.
    fn parse(ctor: &Ctor<'_>) -> Result<Delay, ConfigError> {
        let mut args = Args::new("delay", ctor);
        if ![3, 6, 9].contains(&args.left()) {
            return Err(args.refuse("arguments", args.left(), "3, 6 or 9"));
        }
        let mut route = |device, offset, delay| {
            let area = args.area(device, offset, ctor.len)?;
            let millis = args.number(delay, 0..=u64::from(u32::MAX))?;
            Ok::<_, ConfigError>((
                Route { area, delay: Duration::from_millis(millis) },
                args.left(),
            ))
        };
        let (read, left) = route("device", "offset", "delay")?;
        let (mut write, mut flush, mut given) = (read.clone(), read.clone(), 1);
        if left > 0 {
            let (route_of_writes, left) = route("write_device", "write_offset", "write_delay")?;
            (write, flush, given) = (route_of_writes.clone(), route_of_writes, 2);
            if left > 0 {
                (flush, given) = (route("flush_device", "flush_offset", "flush_delay")?.0, 3);
            }
        }
        args.finish()?;
        Ok(Delay { routes: [read, write, flush], given, queue: Arc::default() })
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Stopped,
    Delaying,
    Passing,
    Stopping,
}

#[derive(Default)]
struct Waiting {
    phase: Phase,
    /// By due time, then in order of arrival.
    requests: BTreeMap<(Time, u64), (RequestId, usize)>,
    arrivals: u64,
    counts: [usize; CLASSES],
}

/// The requests that wait, and the news for the task that releases them.
#[derive(Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    changed: Event,
    stopped: Event,
}

impl Queue {
    /// Enters a request, if this is the time to delay any (I2).
    fn enter(&self, due: Time, id: RequestId, class: usize) -> bool {
        let mut waiting = self.waiting.lock();
        if waiting.phase != Phase::Delaying {
            return false;
        }
        let key = (due, waiting.arrivals);
        waiting.arrivals += 1;
        waiting.counts[class] += 1;
        waiting.requests.insert(key, (id, class));
        let is_first = waiting.requests.first_key_value().is_some_and(|(first, _)| *first == key);
        drop(waiting);
        if is_first {
            self.changed.notify(usize::MAX);
        }
        true
    }

    /// Takes out the first request that is due at `now`.
    fn take_due(&self, now: Time) -> Option<RequestId> {
        let mut waiting = self.waiting.lock();
        let first = waiting.requests.first_entry().filter(|first| first.key().0 <= now)?;
        let (id, class) = first.remove();
        waiting.counts[class] -= 1;
        Some(id)
    }

    fn set_phase(&self, phase: Phase) {
        self.waiting.lock().phase = phase;
        self.changed.notify(usize::MAX);
    }

    fn phase(&self) -> Phase {
        self.waiting.lock().phase
    }

    fn first_due(&self) -> Option<Time> {
        self.waiting.lock().requests.first_key_value().map(|((due, _), _)| *due)
    }

    /// The task: sends on what is due, sleeps until the next is.
    async fn run(&self, env: &Env) {
        loop {
            let changed = self.changed.listen();
            while let Some(id) = self.take_due(env.now()) {
                env.remap(id);
            }
            if self.phase() == Phase::Stopping {
                break;
            }
            match self.first_due() {
                None => changed.await,
                Some(due) => drop(select(changed, env.sleep_until(due)).await),
            }
        }
        self.set_phase(Phase::Stopped);
        self.stopped.notify(usize::MAX);
    }

    /// Has the task end, and waits for it (I3).
    async fn stop(&self) {
        loop {
            let stopped = self.stopped.listen();
            match self.phase() {
                Phase::Stopped => return,
                Phase::Stopping => stopped.await,
                Phase::Delaying | Phase::Passing => self.set_phase(Phase::Stopping),
            }
        }
    }
}

impl Target for Delay {
    fn map<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        let class = class_of(request.op);
        let route = &self.routes[class];
        if request.word() == HAS_WAITED || route.delay.is_zero() {
            return route.area.remap(request);
        }
        if !self.queue.enter(env.now() + route.delay, request.id(), class) {
            return route.area.remap(request);
        }
        // Still there when the request is mapped again.
        request.watch(HAS_WAITED);
        Verdict::Queued
    }

    fn lowers(&self) -> Vec<Arc<dyn Disk>> {
        self.routes[..self.given].iter().map(|route| route.area.disk.clone()).collect()
    }

    fn resume<'a>(&'a self, env: &'a Env) -> LocalFuture<'a, Result<(), ConfigError>> {
        self.queue.set_phase(Phase::Delaying);
        let (queue, task_env) = (self.queue.clone(), env.clone());
        env.spawn(async move { queue.run(&task_env).await });
        Box::pin(ready(Ok(())))
    }

    fn presuspend(&self, env: &Env, mode: SuspendMode) {
        self.queue.set_phase(Phase::Passing);
        while let Some(id) = self.queue.take_due(Time(u64::MAX)) {
            match mode {
                SuspendMode::Flush => env.remap(id),
                SuspendMode::NoFlush => env.hand_back(id),
            }
        }
    }

    fn presuspend_undo(&self, _env: &Env) {
        self.queue.set_phase(Phase::Delaying);
    }

    fn suspend<'a>(&'a self, _env: &'a Env) -> LocalFuture<'a, ()> {
        Box::pin(self.queue.stop())
    }

    fn status(&self) -> String {
        self.queue.waiting.lock().counts.map(|count| count.to_string()).join(" ")
    }

    fn table(&self) -> String {
        let word = |route: &Route| format!("{} {}", route.area, route.delay.as_millis());
        self.routes[..self.given].iter().map(word).collect::<Vec<_>>().join(" ")
    }

    fn extents<'a>(
        &'a self,
        env: &'a Env,
        range: SectorRange,
    ) -> LocalFuture<'a, Result<Vec<Extent>, IoError>> {
        self.routes[0].area.extents(env, range)
    }
}
