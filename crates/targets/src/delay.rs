//! `delay`: requests wait before they go on; reads, writes and flushes each for their own time
//! and to their own device.
//!
//! A request that must wait is parked and entered in a queue by its due time; one task per
//! target sleeps until the first is due and has it mapped again, marked as delayed.
//!
//! ```text
//!            resume              presuspend                suspend
//! Stopped ------------> Delaying ----------> Passing ----------------> Stopping -> Stopped
//!                                                                       (task ends)
//! ```
//!
//! I1. A request is in the queue exactly while it is parked by this target: `map` enters it; the
//!     task that remaps it or hands it back takes it out, under the lock.
//! I2. The queue gains requests only while Delaying; so it is empty after a presuspend.
//! I3. The task runs in every state but Stopped.
//!
//! Promises: of two requests of one class that arrive one after the other, the first goes on first.
//! A suspend does not wait for a delay: waiting requests go on at once, or with
//! [`SuspendMode::NoFlush`] back to the device.

use std::collections::BTreeMap;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::sync::Mutex;
use cairn_block::{
    ConfigError, Ctor, Disk, Env, Extent, Field, IoError, LocalFuture, Op, Report, Request,
    RequestId, SectorRange, SuspendMode, Target, Time, Unit, Value, Verdict,
};
use event_listener::Event;
use futures_util::future::select;

use crate::area::Area;
use crate::args::{Args, refuse};
use crate::kind::{TargetKind, built};
use crate::spec::{Arg, Spec, Use};

/// The fields of the report: how many requests of each class wait now.
const FIELDS: &[Field] = &[
    Field::new("delayed_reads", Unit::Requests),
    Field::new("delayed_writes", Unit::Requests),
    Field::new("delayed_flushes", Unit::Requests),
];

/// The names of the delays, one per class.
const DELAYS: [&str; CLASSES] = ["delay", "write_delay", "flush_delay"];

const fn millis(class: usize, doc: &'static str) -> Arg {
    Arg::number(DELAYS[class], 0, u32::MAX as u64, doc)
}

/// What `delay` declares.
pub const SPEC: Spec = Spec {
    status_fields: FIELDS,
    ..Spec::plain(
        "delay",
        [1, 3, 0],
        &[
            Arg::device("device", Use::Maps, "the device for reads").gives_length(),
            Arg::offset("offset"),
            millis(0, "how long a read waits, in ms"),
            Arg::device("write_device", Use::Maps, "the device for writes")
                .optional()
                .gives_length(),
            Arg::offset("write_offset"),
            millis(1, "how long a write, discard or write-zeroes waits, in ms"),
            Arg::device("flush_device", Use::Maps, "the device for flushes")
                .optional()
                .gives_length(),
            Arg::offset("flush_offset"),
            millis(2, "how long a flush waits, in ms"),
        ],
    )
};

/// The word of a request that has waited.
const HAS_WAITED: u64 = 1;

/// The kind of target.
pub const KIND: TargetKind =
    TargetKind { spec: &SPEC, construct: |_, ctor| built(Delay::parse(&ctor)) };

/// The classes of requests, in the order of the arguments and of the status fields.
const CLASSES: usize = FIELDS.len();

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
    args: Args,
    /// One per class.
    routes: [Route; CLASSES],
    /// How many of them the table line gave: 1, 2 or 3.
    given: usize,
    queue: Arc<Queue>,
}

impl Delay {
    fn parse(ctor: &Ctor<'_>) -> Result<Delay, ConfigError> {
        if ![3, 6, 9].contains(&ctor.args.len()) {
            return Err(refuse(SPEC.name, "arguments", ctor.args.len(), "3, 6 or 9"));
        }
        let args = Args::parse(&SPEC, ctor)?;
        let routes = args.areas(ctor.len)?.into_iter().zip(DELAYS).map(|(area, delay)| {
            let delay = Duration::from_millis(args.number(delay));
            Route { area, delay }
        });
        let routes: Vec<Route> = routes.collect();
        // A class without a route of its own goes where the one before it goes.
        let route_of = |class: usize| routes[class.min(routes.len() - 1)].clone();
        let (given, queue) = (routes.len(), Arc::default());
        Ok(Delay { routes: [0, 1, 2].map(route_of), given, queue, args })
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

/// The requests that wait, and the event for the task that releases them.
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
        debug_assert_eq!(self.first_due(), None, "I2");
        self.set_phase(Phase::Stopped);
        self.stopped.notify(usize::MAX);
    }

    /// Ends the task and waits for its end (I3).
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

    fn remaps(&self, range: SectorRange) -> Option<Vec<(Arc<dyn Disk>, SectorRange)>> {
        // Flushes have no range.
        let with_data = &self.routes[..self.given.min(2)];
        let mut places: Vec<(Arc<dyn Disk>, SectorRange)> = Vec::new();
        for route in with_data {
            let (disk, range) = route.area.place(range);
            // Reads and writes of one place do not use it twice.
            if !places.iter().any(|(other, at)| Arc::ptr_eq(other, &disk) && *at == range) {
                places.push((disk, range));
            }
        }
        Some(places)
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

    /// The task runs on while requests pass.
    fn presuspend_undo<'a>(&'a self, _env: &'a Env) -> LocalFuture<'a, ()> {
        self.queue.set_phase(Phase::Delaying);
        Box::pin(ready(()))
    }

    fn suspend<'a>(&'a self, _env: &'a Env) -> LocalFuture<'a, Result<(), ConfigError>> {
        Box::pin(async {
            self.queue.stop().await;
            Ok(())
        })
    }

    fn report(&self) -> Report {
        Report::new(
            FIELDS,
            self.queue.waiting.lock().counts.map(|count| Value::Gauge(count as u64)),
        )
    }

    fn table(&self) -> String {
        self.args.to_string()
    }

    fn extents<'a>(
        &'a self,
        env: &'a Env,
        range: SectorRange,
    ) -> LocalFuture<'a, Result<Vec<Extent>, IoError>> {
        self.routes[0].area.extents(env, range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{OneVolume, SECTOR, initial, range, write_io};
    use cairn_block::{Io, SectorCount};

    /// More than a request takes beyond its delay, less than any delay here.
    const SLACK: Duration = Duration::from_millis(1);

    fn fixture() -> OneVolume {
        OneVolume::new(&[("a", 64), ("b", 64), ("c", 64)])
    }

    fn read_io(env: &Env, start: u64) -> Io {
        Io::read(range(start, 1), env.segs(SectorCount(1)))
    }

    /// How long a request takes.
    fn duration(test: &OneVolume, io: impl FnOnce(&Env) -> Io) -> Duration {
        let began = test.sim.now();
        test.io(io).unwrap();
        test.sim.now().since(began)
    }

    fn is_about(duration: Duration, millis: u64) -> bool {
        let expected = Duration::from_millis(millis);
        duration >= expected && duration < expected + SLACK
    }

    #[test]
    fn one_delay_is_for_every_request() {
        let test = fixture();
        test.load("0 32 delay a 8 20");
        assert!(is_about(duration(&test, |env| read_io(env, 3)), 20));
        assert!(is_about(duration(&test, |env| write_io(env, 3, 1, 9)), 20));
        assert!(is_about(duration(&test, |_| Io::flush()), 20));
        assert!(is_about(duration(&test, |_| Io::on(Op::WriteZeroes, range(4, 1))), 20));
        let mut model = initial("a", 64);
        model[11 * SECTOR..12 * SECTOR].fill(9);
        model[12 * SECTOR..13 * SECTOR].fill(0);
        assert_eq!(test.contents("a"), model);
        assert_eq!(test.target().table(), "a 8 20");
    }

    #[test]
    fn each_class_has_its_delay_and_its_device() {
        let test = fixture();
        test.load("0 32 delay a 0 0 b 8 20 c 0 40");
        assert!(is_about(duration(&test, |env| read_io(env, 0)), 0));
        assert!(is_about(duration(&test, |env| write_io(env, 0, 1, 9)), 20));
        assert!(is_about(duration(&test, |_| Io::flush()), 40));
        assert_eq!(test.read(0, 1).unwrap(), initial("a", 1));
        assert_eq!(test.contents("a"), initial("a", 64));
        assert_eq!(test.contents("b")[8 * SECTOR..9 * SECTOR], [9; SECTOR]);
        assert_eq!(test.target().table(), "a 0 0 b 8 20 c 0 40");
    }

    #[test]
    fn with_two_delays_a_flush_goes_the_way_of_writes() {
        let test = fixture();
        test.load("0 32 delay a 0 10 b 0 20");
        assert!(is_about(duration(&test, |_| Io::flush()), 20));
        test.drive("b").faults().add(cairn_sim::Fault::error(cairn_sim::OpSet::FLUSHES));
        assert!(test.io(|_| Io::flush()).is_err());
        assert_eq!(test.target().table(), "a 0 10 b 0 20");
        assert_eq!(test.target().lowers().len(), 2);
    }

    #[test]
    fn requests_go_on_when_they_are_due_and_in_order_of_arrival() {
        let test = fixture();
        test.load("0 32 delay a 0 10 a 0 30");
        test.start(1, "write 1", |env| write_io(env, 0, 1, 1));
        test.run(Duration::from_millis(1));
        test.start(2, "write 2", |env| write_io(env, 0, 1, 2));
        test.run(Duration::from_millis(1));
        test.start(0, "write 3", |env| write_io(env, 0, 1, 3));
        test.start(1, "read", |env| read_io(env, 1));
        test.run(Duration::from_millis(5));
        assert_eq!(test.target().status(), "1 3 0");
        test.run(Duration::from_millis(10));
        assert_eq!(
            (test.ends.labels(), test.target().status()),
            (vec!["read"], "0 3 0".to_owned())
        );
        test.run(Duration::from_millis(30));
        assert_eq!(test.ends.labels(), ["read", "write 1", "write 2", "write 3"]);
        assert_eq!(test.contents("a")[..SECTOR], [3; SECTOR]);
        assert_eq!(test.target().status(), "0 0 0");
    }

    #[test]
    fn a_suspend_sends_on_what_waits() {
        let test = fixture();
        test.load("0 32 delay a 0 3600000");
        test.start(1, "write", |env| write_io(env, 0, 1, 1));
        test.start(0, "read", |env| read_io(env, 1));
        test.run(Duration::from_millis(1));
        assert_eq!(test.target().status(), "1 1 0");
        let began = test.sim.now();
        test.suspend(SuspendMode::Flush);
        assert!(is_about(test.sim.now().since(began), 0));
        assert_eq!(test.contents("a")[..SECTOR], [1; SECTOR]);
        test.run(SLACK);
        assert_eq!(test.ends.count(), 2);
        assert!(test.ends.all().iter().all(|(_, result)| result.is_ok()));
    }

    #[test]
    fn a_noflush_suspend_hands_back_and_the_next_table_serves() {
        let test = fixture();
        test.load("0 32 delay a 0 3600000");
        test.start(1, "write", |env| write_io(env, 0, 1, 1));
        test.start(2, "flush", |_| Io::flush());
        test.run(Duration::from_millis(1));
        test.suspend(SuspendMode::NoFlush);
        test.run(Duration::from_millis(10));
        assert_eq!(test.ends.labels(), Vec::<&str>::new());
        assert_eq!(test.contents("a"), initial("a", 64));
        test.load("0 32 linear b 0");
        test.run(Duration::from_millis(10));
        assert_eq!(test.ends.count(), 2);
        assert_eq!(test.contents("b")[..SECTOR], [1; SECTOR]);
    }

    #[test]
    fn after_a_resume_it_delays_again() {
        let test = fixture();
        test.load("0 32 delay a 0 20");
        for _ in 0..3 {
            test.suspend(SuspendMode::Flush);
            test.resume();
            assert!(is_about(duration(&test, |env| read_io(env, 0)), 20));
        }
    }

    #[test]
    fn after_a_suspend_that_was_called_off_it_delays_again() {
        for mode in [SuspendMode::Flush, SuspendMode::NoFlush] {
            let test = fixture();
            test.load("0 32 delay a 0 20");
            test.start(1, "write", |env| write_io(env, 0, 1, 1));
            test.run(SLACK);
            test.call_off(mode);
            assert!(is_about(duration(&test, |env| read_io(env, 0)), 20));
            test.run(SLACK);
            assert!(matches!(test.ends.all()[..], [(_, Ok(()))]));
        }
    }

    #[test]
    fn when_stop_returns_the_task_has_ended() {
        let (test, queue) = (fixture(), Arc::new(Queue::default()));
        for _ in 0..3 {
            queue.set_phase(Phase::Delaying);
            let (own, stopped) = (queue.clone(), queue.clone());
            test.sim.block_on(0, |env| async move {
                let task_env = env.clone();
                env.spawn(async move { own.run(&task_env).await });
                env.sleep(SLACK).await;
            });
            assert_eq!(Arc::strong_count(&queue), 3, "the task lives");
            test.sim.block_on(1, |_| async move { stopped.stop().await });
            assert_eq!(Arc::strong_count(&queue), 1, "the task is gone");
        }
    }

    #[test]
    fn each_wrong_argument_is_named() {
        let test = fixture();
        for (table, expected) in [
            ("0 32 delay", "delay: arguments: found 0, expected 3, 6 or 9"),
            ("0 32 delay a 0 10 b", "delay: arguments: found 4, expected 3, 6 or 9"),
            ("0 32 delay x 0 10", "x: device: found none"),
            ("0 32 delay a x 10", "delay: offset: found 'x'"),
            ("0 32 delay a 33 10", "a: delay offset: found 33 for 32 sectors"),
            (
                "0 32 delay a 0 1s",
                "delay: delay: found '1s', expected a number from 0 to 4294967295",
            ),
            ("0 32 delay a 0 10 x 0 10", "x: device: found none"),
            ("0 32 delay a 0 10 b -1 10", "delay: write_offset: found '-1'"),
            ("0 32 delay a 0 10 b 0 x", "delay: write_delay: found 'x'"),
            ("0 32 delay a 0 10 b 0 1 c x 1", "delay: flush_offset: found 'x'"),
            ("0 32 delay a 0 10 b 0 1 c 0 4294967296", "delay: flush_delay: found '4294967296'"),
        ] {
            let refusal = test.refusal(table);
            assert!(refusal.starts_with(expected), "{refusal}");
        }
    }
}
