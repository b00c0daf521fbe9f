//! The real world: reactors as threads, each with its ring, its clock and its core.
//!
//! A turn of the loop reads the clock once, reaps completions, takes the mail, and runs the
//! runnable tasks. When no task is runnable, one system call submits all queued operations and
//! sleeps until a completion, a message or the next timer. A loop that is never idle submits them
//! every few turns. With a spin budget, a reactor polls for a while before it sleeps: see
//! [`Spinner`]. Each turn looks at the watches, and so does polling.

use std::future::Future;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cairn_block::{Env, LOG_INTERVAL, Mail, Post, ReactorId, Time};

use rustix::rand::GetRandomFlags;

use crate::core::{Core, CoreParts};
use crate::driver::Driver;
use crate::mailbox::PostOffice;
use crate::ring::{self, RingKind};
use crate::spin::{SpinBudget, Spinner};

/// After this many turns without a pause, queued operations are submitted.
const TURNS_PER_KICK: u32 = 4;

/// A clock, read once per turn.
pub trait Clock {
    /// The time since the clock was started.
    fn now(&self) -> Time;
}

/// The system's monotonic clock.
#[derive(Clone, Copy)]
pub struct MonotonicClock {
    began: Instant,
}

impl MonotonicClock {
    /// A clock that starts now.
    pub fn begin() -> MonotonicClock {
        MonotonicClock { began: Instant::now() }
    }
}

impl Clock for MonotonicClock {
    fn now(&self) -> Time {
        Time(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

/// How to start reactors.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How many threads.
    pub count: u16,
    /// Which ring.
    pub ring: RingKind,
}

/// Running reactors. Dropping this stops and joins them.
pub struct Reactors {
    post: Arc<PostOffice>,
    stop: Arc<AtomicBool>,
    spin: SpinBudget,
    clock: MonotonicClock,
    threads: Vec<JoinHandle<()>>,
    ring_name: &'static str,
}

impl Reactors {
    /// Starts the threads and waits until each has its ring.
    ///
    /// # Errors
    /// A ring or thread could not be made.
    pub fn start(options: Options) -> io::Result<Reactors> {
        let (post, clock) = (PostOffice::new(options.count), MonotonicClock::begin());
        let (stop, spin, threads) = (Arc::default(), SpinBudget::default(), Vec::new());
        let mut reactors = Reactors { post, stop, spin, clock, threads, ring_name: "" };
        for id in (0..options.count).map(ReactorId) {
            let (post, stop) = (reactors.post.clone(), reactors.stop.clone());
            let spinner = Spinner::new(reactors.spin.clone());
            let (ready, started) = mpsc::channel();
            let thread =
                std::thread::Builder::new().name(format!("reactor-{}", id.0)).spawn(move || {
                    match ring::open(options.ring) {
                        Err(error) => drop(ready.send(Err(error))),
                        Ok((ring, name)) => {
                            let reactor =
                                Reactor::new(id, post, Box::new(clock), Driver::new(ring));
                            drop(ready.send(Ok(name)));
                            reactor.run(&stop, spinner);
                        }
                    }
                })?;
            reactors.threads.push(thread);
            let gone = || Err(io::Error::other("a reactor thread ended before it had a ring"));
            reactors.ring_name = started.recv().unwrap_or_else(|_| gone())?;
        }
        reactors.spawn(ReactorId(0), flush_log);
        Ok(reactors)
    }

    /// Logs a warning from another thread, as [`Env::warn`] does.
    pub fn warn(&self, key: &str, line: impl FnOnce() -> String) {
        self.post.log().warn(self.clock.now(), key, line);
    }

    /// The kind of ring in use: "io_uring" or "threads".
    pub fn ring_name(&self) -> &'static str {
        self.ring_name
    }

    /// Sets how long an idle reactor polls before it sleeps; zero means not at all. It polls less
    /// often while it finds nothing by that, so an idle server uses no processor time. Unless this
    /// is called, reactors poll while they have a [`Watch`](crate::Watch), for 32 microseconds.
    pub fn set_spin(&self, budget: Duration) {
        self.spin.set(budget);
    }

    /// The mailboxes.
    pub fn post(&self) -> Arc<dyn Post> {
        self.post.clone()
    }

    /// Starts a task on a reactor: `make` is called there.
    pub fn spawn<F: Future<Output = ()> + 'static>(
        &self,
        on: ReactorId,
        make: impl FnOnce(Env) -> F + Send + 'static,
    ) {
        let job = move |env: &Env| env.spawn(make(env.clone()));
        self.post.post(on, Mail::Call(Box::new(job)));
    }

    /// Runs a future on a reactor and waits for its result. Must not be called from a reactor.
    pub fn block_on<T, F>(&self, on: ReactorId, make: impl FnOnce(Env) -> F + Send + 'static) -> T
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let (send, receive) = mpsc::channel();
        self.spawn(on, move |env| {
            let future = make(env);
            async move { drop(send.send(future.await)) }
        });
        receive.recv().expect("a reactor runs until it is stopped by its owner")
    }
}

impl Drop for Reactors {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        for (index, thread) in self.threads.drain(..).enumerate() {
            self.post.reactor_waker(ReactorId(index as u16)).wake();
            if thread.join().is_err() {
                tracing::error!("reactor {index} panicked");
            }
        }
    }
}

/// Logs, at intervals, the warnings that were only counted.
async fn flush_log(env: Env) {
    loop {
        env.sleep(LOG_INTERVAL).await;
        env.post().log().flush(env.now());
    }
}

struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        tracing::error!("a reactor panicked; the server aborts");
        std::process::abort();
    }
}

struct Reactor {
    id: ReactorId,
    core: Core,
    driver: Rc<Driver>,
    clock: Box<dyn Clock>,
    post: Arc<PostOffice>,
}

impl Reactor {
    fn new(id: ReactorId, post: Arc<PostOffice>, clock: Box<dyn Clock>, driver: Driver) -> Reactor {
        let driver = Rc::new(driver);
        let reactor_waker = post.reactor_waker(id);
        reactor_waker.connect(driver.ring().waker());
        let core = Core::new(CoreParts {
            reactor: id,
            seed: random_seed(),
            post: post.clone(),
            reactor_waker,
            mechanism: Rc::new(driver.clone()),
        });
        Reactor { id, core, driver, clock, post }
    }

    /// Serves until `stop` is set. A panic in here ends the process: if a reactor were gone, its
    /// requests would never complete, and neither would any suspend.
    fn run(self, stop: &AtomicBool, spinner: Spinner) {
        let abort_guard = AbortOnUnwind;
        self.serve(stop, spinner);
        self.core.end_tasks();
        self.driver.close();
        std::mem::forget(abort_guard);
    }

    fn serve(&self, stop: &AtomicBool, mut spinner: Spinner) {
        let (mut mail, mut turns) = (Vec::new(), 0);
        let watches = &self.driver.watches;
        while !stop.load(Ordering::Acquire) {
            let now = self.clock.now();
            self.core.env().set_now(now);
            watches.set_polls(spinner.tries(!watches.is_empty()));
            let reaped = self.driver.reap(self.core.env());
            watches.wake_ready();
            self.post.collect(self.id, &mut mail);
            if self.core.turn_with(now, &mut mail) || reaped {
                spinner.busy();
                turns += 1;
                if !self.core.is_idle() && turns < TURNS_PER_KICK {
                    continue;
                }
            }
            turns = 0;
            if !self.core.is_idle() || !self.post.is_empty(self.id) {
                self.driver.ring().kick();
            } else if let Some(until) = spinner.idle(self.clock.now(), !watches.is_empty()) {
                self.spin(until, stop);
            } else if !watches.end() {
                self.sleep();
                spinner.slept();
            }
        }
    }

    fn sleep(&self) {
        let timeout = self.core.next_timer().map(|at| at.since(self.clock.now()));
        self.driver.ring().wait(timeout);
    }

    /// Polls for something to do until `until`, or until the next timer if that is earlier.
    fn spin(&self, until: Time, stop: &AtomicBool) {
        let until = self.core.next_timer().map_or(until, |at| at.min(until));
        let (mut ring, watches) = (self.driver.ring(), &self.driver.watches);
        ring.kick();
        let is_quiet = || self.core.is_idle() && self.post.is_empty(self.id);
        while !ring.is_ready() && !watches.is_ready() && is_quiet() {
            if self.clock.now() >= until || stop.load(Ordering::Acquire) {
                return;
            }
            std::hint::spin_loop();
        }
        // Has the kernel deliver the completions that it holds back until a system call.
        ring.kick();
    }
}

/// A seed from the kernel, so that random numbers (and UUIDs made of them) differ between starts.
fn random_seed() -> u64 {
    let mut seed = [0; 8];
    let got = rustix::rand::getrandom(&mut seed, GetRandomFlags::empty());
    assert_eq!(got, Ok(seed.len()), "the kernel gives up to 256 bytes whole");
    u64::from_ne_bytes(seed)
}
