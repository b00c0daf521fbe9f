//! Reactors in threads of shuttle: the code of a whole target, its tasks included, under the
//! interleavings that shuttle tries. The simulator's reactors take whole turns; here another one
//! may run at each lock and each atomic.
//!
//! Y1. A task runs only if it was woken, so that a wake-up which is lost shows.
//! Y2. Time stands still while any reactor has something to do. It goes on to the next timer of a
//!     reactor once all have been idle for [`IDLE_TURNS`] turns. So a task that only a timer wakes
//!     although what it waits for has happened sees that time has passed.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::sync::Mutex;
use cairn_block::sync::atomic::{AtomicU64, Ordering};
use cairn_block::{Env, LogLimit, Mail, Post, ReactorId, Throttle, Time};
use cairn_reactor::{Core, CoreParts, ReactorWaker};
use shuttle::rand::Rng;
use shuttle::thread;

/// What a reactor is to do.
pub type Job = Box<dyn FnOnce(Env) -> Pin<Box<dyn Future<Output = ()>>> + Send>;

/// See Y2: so many turns of all reactors together, each of which a task would have used.
const IDLE_TURNS: u64 = 40;

/// What the reactors share.
struct Shared {
    mail: Vec<Mutex<Vec<Mail>>>,
    log: LogLimit,
    background: Throttle,
    now: AtomicU64,
    /// Turns without anything to do, since the last one with something.
    idle: AtomicU64,
    /// Jobs that have not ended.
    jobs: AtomicU64,
}

impl Post for Shared {
    fn post(&self, to: ReactorId, mail: Mail) {
        self.mail[usize::from(to.0)].lock().push(mail);
        self.idle.store(0, Ordering::SeqCst);
    }

    fn reactors(&self) -> u16 {
        self.mail.len() as u16
    }

    fn log(&self) -> &LogLimit {
        &self.log
    }

    fn background(&self) -> &Throttle {
        &self.background
    }

    fn unix_time(&self) -> Duration {
        Duration::from_secs(1_767_225_600)
    }
}

/// Runs each job on a reactor of its own, until all have ended. Called within a life of shuttle.
pub fn run_reactors(jobs: Vec<Job>) {
    let shared = Arc::new(Shared {
        mail: jobs.iter().map(|_| Mutex::default()).collect(),
        log: LogLimit::default(),
        background: Throttle::default(),
        now: AtomicU64::new(1),
        idle: AtomicU64::new(0),
        jobs: AtomicU64::new(jobs.len() as u64),
    });
    let threads: Vec<_> = (0..)
        .zip(jobs)
        .map(|(id, job)| {
            let shared = shared.clone();
            thread::spawn(move || run_one(&shared, ReactorId(id), job))
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
}

fn run_one(shared: &Arc<Shared>, reactor: ReactorId, job: Job) {
    let core = Core::new(CoreParts {
        reactor,
        seed: shuttle::rand::thread_rng().r#gen(),
        post: shared.clone(),
        reactor_waker: Arc::new(ReactorWaker::default()),
        mechanism: Rc::new(()),
    });
    let has_ended = Rc::new(Cell::new(false));
    let (env, ended) = (core.env().clone(), has_ended.clone());
    core.env().spawn(async move {
        job(env).await;
        ended.set(true);
    });
    loop {
        let mail = std::mem::take(&mut *shared.mail[usize::from(reactor.0)].lock());
        if core.turn(Time(shared.now.load(Ordering::SeqCst)), mail) {
            shared.idle.store(0, Ordering::SeqCst);
        } else if shared.jobs.load(Ordering::SeqCst) == 0 {
            break;
        } else {
            pass_time(shared, core.next_timer());
            thread::yield_now();
        }
        if has_ended.take() {
            shared.jobs.fetch_sub(1, Ordering::SeqCst);
        }
    }
    assert_eq!(core.env().requests_in_use(), 0, "a request has not ended");
    assert_eq!(core.env().contract_violations(), 0);
}

/// A reactor has nothing to do before this timer.
fn pass_time(shared: &Shared, timer: Option<Time>) {
    let idle = shared.idle.fetch_add(1, Ordering::SeqCst);
    let now = shared.now.load(Ordering::SeqCst);
    if idle >= IDLE_TURNS * shared.mail.len() as u64
        && let Some(Time(at)) = timer
    {
        // By small steps, so that a reactor whose timer is earlier comes first.
        shared.now.store(at.min(now + 100_000).max(now), Ordering::SeqCst);
        shared.idle.store(IDLE_TURNS * shared.mail.len() as u64 / 2, Ordering::SeqCst);
    }
}
