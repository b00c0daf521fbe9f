//! [`SimWorld`]: several reactors in one thread, in virtual time, under a seeded scheduler.
//!
//! A step is one of: a reactor takes a turn of its loop, or a drive completes an operation. The
//! seed chooses among the steps that are possible now; if there is none, time advances to the next
//! completion, message or timer. A turn takes a little time, so that a loop which never waits still
//! advances time.
//!
//! A world of events ([`SimWorld::of_events`]) has one reactor and no choice: what drives have
//! ended comes first, then a turn of the reactor if it has something to do, then the next event. A
//! turn takes the time that its work costs a processor ([`Prices`]). It is for the lab, with drives
//! that have timing models.
//!
//! W1. The same seed and the same calls make the same run: [`SimWorld::fingerprint`] is equal.
//! W2. After the power was cut nothing happens any more.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::{Disk, Env, ReactorId, Time};
use cairn_reactor::{Core, CoreParts, ReactorWaker};

use crate::cpu::{Prices, Processor};
use crate::drive::{DriveOptions, SimDrive, TimedOptions};
use crate::drives::{Timing, Used};
use crate::image::Image;
use crate::mechanics::{Cut, Mechanics};
use crate::opener::SimOpener;
use crate::post::SimPost;

/// Longest turn of a reactor in nanoseconds.
const TURN_NS: u64 = 2_000;

/// Default limit on the virtual time of a future.
const PATIENCE: Duration = Duration::from_secs(7200);

/// Where work takes time, one of so many steps comes after the next event, if that is so near.
const LATE: u8 = 4;
const NEAR: Duration = Duration::from_micros(200);

/// Why a world stopped before a future was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// The power was cut.
    PowerCut,
    /// Nothing is runnable, and no event is scheduled.
    Deadlock,
    /// The virtual time limit ended; only timers kept the world going.
    TimedOut,
}

struct Reactor {
    core: Core,
    /// Something happened to this reactor since its last turn.
    ready: Cell<bool>,
}

/// Which step is next.
enum Schedule {
    /// A choice of the seed.
    Seeded,
    /// What ended first, then the reactor.
    Events(Processor),
}

/// A deterministic world.
pub struct SimWorld {
    seed: u64,
    schedule: Schedule,
    mechanics: Rc<Mechanics>,
    post: Arc<SimPost>,
    reactors: Vec<Reactor>,
    rng: RefCell<fastrand::Rng>,
    patience: Cell<Duration>,
    work_takes_time: Cell<bool>,
    drives: RefCell<Vec<(String, Arc<SimDrive>)>>,
}

/// What can happen now.
#[derive(Clone, Copy)]
enum Choice {
    Turn(usize),
    Completion,
}

impl SimWorld {
    /// The usual number of reactors.
    pub const REACTORS: u16 = 3;

    /// A world at time zero.
    pub fn new(seed: u64, reactors: u16) -> SimWorld {
        assert!(reactors > 0, "a world needs a reactor");
        SimWorld::with(Schedule::Seeded, seed, reactors)
    }

    /// A world of events at time zero. The seed is that of random numbers, not of an order.
    pub fn of_events(seed: u64, prices: Prices) -> SimWorld {
        SimWorld::with(Schedule::Events(Processor::new(prices)), seed, 1)
    }

    fn with(schedule: Schedule, seed: u64, reactors: u16) -> SimWorld {
        let mut seeds = fastrand::Rng::with_seed(seed);
        let mechanics = Rc::new(Mechanics::new(seeds.u64(..)));
        let is_prompt = matches!(schedule, Schedule::Events(_));
        let post = Arc::new(SimPost::new(reactors, seeds.u64(..), is_prompt));
        let reactors = (0..reactors).map(|id| {
            let core = Core::new(CoreParts {
                reactor: ReactorId(id),
                seed: seeds.u64(..),
                post: post.clone(),
                reactor_waker: Arc::new(ReactorWaker::default()),
                mechanism: Rc::new(mechanics.clone()),
            });
            Reactor { core, ready: Cell::new(true) }
        });
        let reactors = reactors.collect();
        let rng = RefCell::new(seeds.fork());
        let (patience, drives) = (Cell::new(PATIENCE), RefCell::default());
        let work_takes_time = Cell::new(false);
        SimWorld {
            seed,
            schedule,
            mechanics,
            post,
            reactors,
            rng,
            patience,
            work_takes_time,
            drives,
        }
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The virtual time.
    pub fn now(&self) -> Time {
        self.mechanics.now()
    }

    /// Sets the limit on the virtual time of each further future.
    pub fn set_patience(&self, patience: Duration) {
        self.patience.set(patience);
    }

    /// How many reactors there are.
    pub fn reactors(&self) -> u16 {
        self.reactors.len() as u16
    }

    /// The environment of one reactor.
    pub fn env(&self, reactor: u16) -> &Env {
        self.reactors[usize::from(reactor)].core.env()
    }

    /// Adds a drive that holds `image`.
    pub fn add_drive(&self, options: DriveOptions, image: Image) -> Arc<SimDrive> {
        let name = options.name.clone();
        let drive = Arc::new(SimDrive::new(options, image));
        self.drives.borrow_mut().push((name, drive.clone()));
        drive
    }

    /// Adds a drive with a timing model, which holds `image`.
    pub fn add_timed_drive(
        &self,
        options: TimedOptions,
        image: Image,
        model: Box<dyn Timing>,
    ) -> Arc<SimDrive> {
        let mut models = self.mechanics.models.borrow_mut();
        let (name, number) = (options.name.clone(), models.next_number());
        let drive = Arc::new(SimDrive::timed(options, image, model.as_ref(), number));
        models.add(drive.shared().clone(), model);
        self.drives.borrow_mut().push((name, drive.clone()));
        drive
    }

    /// Adds a drive that another world left when its process was killed ([`SimDrive::after_kill`]);
    /// the faults planted in it are removed.
    pub fn add_survivor(&self, drive: SimDrive) {
        let drive = Arc::new(drive);
        drive.faults().forget();
        self.drives.borrow_mut().push((drive.name(), drive));
    }

    /// All drives, in the order in which they were added.
    pub fn all_drives(&self) -> Vec<Arc<SimDrive>> {
        self.drives.borrow().iter().map(|(_, drive)| drive.clone()).collect()
    }

    /// How many requests to the drives failed by planted errors so far.
    pub fn injected(&self) -> u64 {
        self.drives.borrow().iter().map(|(_, drive)| drive.faults().injected()).sum()
    }

    /// The drive of this name.
    pub fn drive(&self, name: &str) -> Arc<SimDrive> {
        let drives = self.drives.borrow();
        let found = drives.iter().find(|(own, _)| own == name);
        found.unwrap_or_else(|| panic!("the world has no drive '{name}'")).1.clone()
    }

    /// True if failed flushes of a drive lose writes ([`crate::Effect::Lose`]).
    pub fn failed_flushes_lose(&self) -> bool {
        self.drives.borrow().iter().any(|(_, drive)| drive.faults().lose() || drive.tells())
    }

    /// An opener of the drives added so far, by their names.
    pub fn opener(&self) -> SimOpener {
        let opener = SimOpener::new();
        let drives = self.drives.borrow();
        drives.iter().fold(opener, |all, (name, drive)| all.with_drive(name, drive.clone()))
    }

    /// Runs a future on a reactor until it is done.
    ///
    /// # Panics
    /// On a deadlock or a power cut, with the seed.
    pub fn block_on<T, F>(&self, reactor: u16, make: impl FnOnce(Env) -> F) -> T
    where
        T: 'static,
        F: Future<Output = T> + 'static,
    {
        self.try_block_on(reactor, make)
            .unwrap_or_else(|why| panic!("{why:?} at {:?}, seed {}", self.now(), self.seed))
    }

    /// Runs a future on a reactor until it is done.
    ///
    /// # Errors
    /// Why the world stopped before that.
    pub fn try_block_on<T, F>(
        &self,
        reactor: u16,
        make: impl FnOnce(Env) -> F,
    ) -> Result<T, Stopped>
    where
        T: 'static,
        F: Future<Output = T> + 'static,
    {
        let result = Rc::new(RefCell::new(None));
        let (env, out) = (self.env(reactor), result.clone());
        env.set_now(self.now());
        let future = make(env.clone());
        env.spawn(async move {
            let value = future.await;
            *out.borrow_mut() = Some(value);
        });
        self.try_run_until(|| result.borrow().is_some())?;
        Ok(result.take().expect("the world ran until it was there"))
    }

    /// Runs until the condition holds; it is checked after every step.
    ///
    /// # Panics
    /// On a deadlock or a power cut, with the seed.
    pub fn run_until(&self, done: impl Fn() -> bool) {
        self.try_run_until(done)
            .unwrap_or_else(|why| panic!("{why:?} at {:?}, seed {}", self.now(), self.seed));
    }

    /// Runs until the condition holds; it is checked after every step.
    ///
    /// # Errors
    /// Why the world stopped before that.
    pub fn try_run_until(&self, done: impl Fn() -> bool) -> Result<(), Stopped> {
        self.reactors.iter().for_each(|reactor| reactor.ready.set(true));
        let end = self.now() + self.patience.get();
        while !done() {
            if self.now() > end {
                return Err(Stopped::TimedOut);
            }
            if !self.step() {
                let powerless = self.mechanics.is_powerless();
                return Err(if powerless { Stopped::PowerCut } else { Stopped::Deadlock });
            }
        }
        Ok(())
    }

    /// Runs for this much virtual time, whether or not anything happens.
    pub fn run_for(&self, duration: Duration) {
        self.reactors.iter().for_each(|reactor| reactor.ready.set(true));
        let end = self.now() + duration;
        while !self.mechanics.is_powerless() {
            if self.is_waiting() && self.next_moment().is_none_or(|next| next > end) {
                return self.mechanics.set_now(end.max(self.now()));
            }
            if self.now() > end || !self.step() {
                return;
            }
        }
    }

    /// From now on the next event may come before work that is ready is done. Without this, work
    /// takes no time: what yields in between goes on before any drive answers.
    pub fn let_work_take_time(&self) {
        self.work_takes_time.set(true);
    }

    /// Does one step. False if there is none left.
    pub fn step(&self) -> bool {
        if self.mechanics.is_powerless() {
            return false;
        }
        if let Schedule::Events(_) = self.schedule {
            return self.next_event();
        }
        let mut choices = self.choices();
        let is_late = self.work_takes_time.get() && self.rng.borrow_mut().u8(..LATE) == 0;
        if choices.is_empty() || is_late {
            let is_near = |next: &Time| choices.is_empty() || *next <= self.now() + NEAR;
            match self.next_moment().filter(is_near) {
                Some(next) => self.mechanics.set_now(next.max(self.now())),
                None if choices.is_empty() => return false,
                None => {}
            }
            choices = self.choices();
        }
        let choice = choices[self.rng.borrow_mut().usize(..choices.len())];
        match choice {
            Choice::Turn(index) => self.turn(index),
            Choice::Completion => self.complete(),
        }
        true
    }

    /// A step of a world of events.
    fn next_event(&self) -> bool {
        if self.is_due(self.mechanics.next_end()) {
            self.complete();
            return true;
        }
        if self.is_ready(0) {
            self.turn(0);
            return true;
        }
        let next = self.next_moment();
        next.is_some_and(|next| {
            self.mechanics.set_now(next);
            true
        })
    }

    fn is_due(&self, at: Option<Time>) -> bool {
        at.is_some_and(|at| at <= self.now())
    }

    /// True if a reactor has something to do now.
    fn is_ready(&self, index: usize) -> bool {
        let reactor = &self.reactors[index];
        reactor.ready.get()
            || !reactor.core.is_idle()
            || self.is_due(reactor.core.next_timer())
            || self.is_due(self.post.next_arrival(index as u16))
    }

    /// True if nothing can happen now.
    fn is_waiting(&self) -> bool {
        let any = (0..self.reactors.len()).any(|index| self.is_ready(index));
        !any && !self.is_due(self.mechanics.next_end())
    }

    fn choices(&self) -> Vec<Choice> {
        let mut choices = Vec::with_capacity(self.reactors.len() + 1);
        let ready = (0..self.reactors.len()).filter(|&index| self.is_ready(index));
        choices.extend(ready.map(Choice::Turn));
        if self.is_due(self.mechanics.next_end()) {
            choices.push(Choice::Completion);
        }
        choices
    }

    /// The time of the next event.
    fn next_moment(&self) -> Option<Time> {
        let arrivals = (0..self.reactors()).filter_map(|id| self.post.next_arrival(id));
        let timers = self.reactors.iter().filter_map(|reactor| reactor.core.next_timer());
        arrivals.chain(timers).chain(self.mechanics.next_end()).min()
    }

    fn turn(&self, index: usize) {
        let (reactor, now) = (&self.reactors[index], self.now());
        let mail = self.post.collect(index as u16, now);
        self.mechanics.note(&[3, now.0, index as u64, mail.len() as u64]);
        self.post.set_turn(now, Some(index as u16));
        reactor.ready.set(reactor.core.turn(now, mail));
        self.post.set_turn(now, None);
        let cost = match &self.schedule {
            Schedule::Seeded => self.rng.borrow_mut().u64(1..=TURN_NS),
            Schedule::Events(processor) => {
                let (metadata, gated) = (self.mechanics.metadata_bytes(), self.mechanics.gated());
                processor.charge(&reactor.core, metadata, gated)
            }
        };
        self.mechanics.set_now(Time(now.0 + cost));
    }

    fn complete(&self) {
        let (now, mechanics) = (self.now(), &self.mechanics);
        if self.is_due(mechanics.models.borrow().next()) {
            return mechanics.models.borrow_mut().go_on(now, |drive, done| {
                let result = drive.finish_timed(mechanics, done);
                if mechanics.is_powerless() {
                    return;
                }
                let reactor = &self.reactors[usize::from(done.request.reactor.0)];
                reactor.core.env().complete(done.request, result);
                reactor.ready.set(true);
            });
        }
        let Some(done) = self.mechanics.pop() else { return };
        let reactor = &self.reactors[usize::from(done.started.request.reactor.0)];
        self.mechanics.note(&[4, self.now().0]);
        done.drive.finish(reactor.core.env(), &self.mechanics, done.started);
        reactor.ready.set(true);
    }

    /// What the model of a drive counted.
    ///
    /// # Panics
    /// The drive has none.
    pub fn used(&self, drive: &SimDrive) -> Used {
        let number = drive.model_number().expect("a drive with a timing model");
        self.mechanics.models.borrow().used(number)
    }

    /// How long the processor was busy, in a world of events.
    pub fn busy(&self) -> Duration {
        match &self.schedule {
            Schedule::Seeded => Duration::ZERO,
            Schedule::Events(processor) => processor.busy(),
        }
    }

    // Power.

    /// How many writes (flushes, write-zeroes and discards among them) were submitted to the
    /// drives.
    pub fn writes(&self) -> u64 {
        self.mechanics.writes()
    }

    /// Sets where the power is cut, or cancels that.
    pub fn cut_at(&self, cut: impl Into<Option<Cut>>) {
        self.mechanics.cut_at(cut.into());
    }

    /// Cuts the power now.
    pub fn power_off(&self) {
        self.mechanics.power_off();
    }

    /// True after the power was cut.
    pub fn is_powerless(&self) -> bool {
        self.mechanics.is_powerless()
    }

    /// What each drive holds after the power cut, or would hold if the power were cut now.
    pub fn images_after_power_cut(&self, rng: &mut fastrand::Rng) -> Vec<(String, Image)> {
        let drives = self.drives.borrow();
        drives.iter().map(|(name, drive)| (name.clone(), drive.power_cut(rng))).collect()
    }

    // Checks.

    /// A hash of everything that happened.
    pub fn fingerprint(&self) -> u64 {
        self.mechanics.fingerprint()
    }

    /// How many requests broke the contract between two layers, on all reactors.
    pub fn contract_violations(&self) -> u64 {
        self.reactors.iter().map(|reactor| reactor.core.env().contract_violations()).sum()
    }

    /// Requests that have not ended, on all reactors.
    pub fn requests_in_use(&self) -> usize {
        self.reactors.iter().map(|reactor| reactor.core.env().requests_in_use()).sum()
    }
}

impl Drop for SimWorld {
    fn drop(&mut self) {
        self.mechanics.clear();
        self.post.clear();
    }
}

#[cfg(test)]
mod events;
#[cfg(test)]
mod tests;
