//! The helper thread of all disks of objects: it has the client's runtime. Each disk has one task
//! there, with its [`Planner`]; its requests to the server are tasks beside it. A slow server
//! therefore delays its own disk alone.
//!
//! - W1. Each read is answered, also if the task of its disk ends before its time, by a panic: the
//!   reads that it leaves fail, and so does every later one.
//!
//! - W2. A range is tried until the time of the last of its readers is over, which is counted from
//!   the moment in which that reader came. After a try that has failed, the ranges that
//!   wait for their first one fail, too, if all of their readers are overdue. So a server that is
//!   silent keeps a read for its time and one try more, however many reads there are.
//!
//! Must never: touch a request. Its reactor stores the data that comes by its mailbox.

use std::io;
use std::ops::Range;
use std::sync::mpsc;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use cairn_block::sync::Mutex;
use cairn_block::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use cairn_block::{Env, IoError, Mail, Op, Post, ReactorId, RequestId, SectorCount, Time};
use futures_util::StreamExt;
use futures_util::future::poll_fn;
use futures_util::stream::FuturesUnordered;
use tokio::runtime::{Builder, Handle};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, sleep};
use tracing::subscriber::{NoSubscriber, set_default};

use super::fetch::{Fault, Object};
use super::planner::{Answer, Fetch, Planner};
use crate::remote::{RemoteCounts, RemoteState, add};

/// Pauses between two tries.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// A read on its way.
pub struct Read {
    /// The request.
    pub id: RequestId,
    /// Its bytes, which may end behind the object.
    pub range: Range<u64>,
    /// When it came, on its reactor's clock.
    pub at: Time,
}

/// A read that has come.
struct Ticket {
    read: Read,
    /// No try of it begins later (W2).
    end: Instant,
}

/// What a disk and its task share.
pub struct Shared {
    /// What is read.
    pub object: Object,
    /// The object was changed: every read fails from now on.
    pub is_changed: AtomicBool,
    /// The task of the disk alone enters states.
    pub counts: RemoteCounts,
    /// What the server sent as data.
    pub fetched_bytes: AtomicU64,
    /// The way to the reactors, once there was a request.
    pub post: OnceLock<Arc<dyn Post>>,
}

impl Shared {
    /// A read that came at a time of this reactor has ended.
    pub fn count(&self, env: &Env, sectors: SectorCount, at: Time, is_ok: bool) {
        self.counts.count(env.reactor(), (Op::Read, sectors), (at, env.now()), !is_ok);
    }

    /// Notes what a try has shown; answers the state of before. A changed object stays one.
    fn enter(&self, state: RemoteState) -> RemoteState {
        match self.is_changed.load(Ordering::Acquire) {
            true => self.counts.enter(RemoteState::Changed),
            false => self.counts.enter(state),
        }
    }
}

/// The thread's runtime; none if it could not be started.
fn runtime() -> io::Result<Handle> {
    static RUNTIME: Mutex<Option<Handle>> = Mutex::new(None);
    let mut known = RUNTIME.lock();
    if let Some(handle) = &*known {
        return Ok(handle.clone());
    }
    // An error means that there is a provider already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    std::thread::Builder::new().name("objects".to_owned()).spawn(move || {
        // Libraries log what is an error of the caller here, which has its own line.
        let _silence = set_default(NoSubscriber::default());
        runtime.block_on(std::future::pending::<()>());
    })?;
    *known = Some(handle.clone());
    Ok(handle)
}

/// Runs a future on the helper thread, and blocks this one until it has ended.
pub fn block_on<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> io::Result<T> {
    let (told, result) = mpsc::channel();
    runtime()?.spawn(async move {
        // An error means that the caller has gone.
        let _ = told.send(future.await);
    });
    result.recv().map_err(|_| io::Error::other("the helper thread has ended"))
}

/// Starts the task of a disk. It ends when the disk is dropped.
pub fn serve(shared: Arc<Shared>, inbox: UnboundedReceiver<Read>, first: Bytes) -> io::Result<()> {
    runtime()?.spawn(async move {
        let mut planner = Planner::new(shared.object.bytes);
        planner.keep(0, first);
        Task { shared, inbox, planner, is_closed: false }.run().await;
    });
    Ok(())
}

struct Task {
    shared: Arc<Shared>,
    inbox: UnboundedReceiver<Read>,
    planner: Planner<Ticket>,
    is_closed: bool,
}

/// W1. A task that has done its work leaves none.
impl Drop for Task {
    fn drop(&mut self) {
        self.inbox.close();
        while let Ok(read) = self.inbox.try_recv() {
            let range = read.range.clone();
            self.planner.submit(Ticket { read, end: Instant::now() }, range);
        }
        self.planner.fail_all();
        for answer in self.planner.take_answers() {
            tell(&self.shared, Answer { data: None, ..answer });
        }
        if std::thread::panicking() {
            let uri = &self.shared.object.address.argument;
            warn(&self.shared, format!("{uri} ended"), format!("{uri}: every read of it fails"));
        }
    }
}

impl Task {
    async fn run(mut self) {
        let mut under_way = FuturesUnordered::new();
        while !(self.is_closed && self.planner.is_idle()) {
            let ended = poll_fn(|context| {
                let has_come = self.take_inbox(context);
                match under_way.is_empty() {
                    true if has_come => Poll::Ready(None),
                    true => Poll::Pending,
                    false => match under_way.poll_next_unpin(context) {
                        Poll::Pending if has_come => Poll::Ready(None),
                        polled => polled,
                    },
                }
            });
            if let Some((attempt, found)) = ended.await
                && let Some(next) = self.ended(attempt, found)
            {
                under_way.push(run(self.shared.clone(), next));
            }
            while let Some(fetch) = self.planner.start() {
                let end = self.end_of(&fetch);
                let first = Attempt { fetch, pause: Duration::ZERO, end };
                under_way.push(run(self.shared.clone(), first));
            }
            for answer in self.planner.take_answers() {
                tell(&self.shared, answer);
            }
        }
    }

    /// The time until which a range is tried (W2).
    fn end_of(&self, fetch: &Fetch) -> Instant {
        let last = self.planner.readers(fetch.number).map(|read| read.end).max();
        last.unwrap_or_else(|| Instant::now() + self.shared.object.address.reconnect)
    }

    /// A try has ended; the result is the next one, if it is to run again.
    fn ended(&mut self, attempt: Attempt, found: Result<Bytes, Fault>) -> Option<Attempt> {
        let Attempt { fetch, pause, .. } = attempt;
        let (shared, number) = (&self.shared, fetch.number);
        let uri = &shared.object.address.argument;
        match found {
            Ok(data) => {
                shared.enter(RemoteState::Connected);
                add(&shared.fetched_bytes, data.len() as u64);
                self.planner.ended(number, Some(data));
                return None;
            }
            Err(Fault::Changed(found)) => {
                let was_changed = shared.is_changed.swap(true, Ordering::AcqRel);
                shared.enter(RemoteState::Changed);
                if !was_changed {
                    let line = format!("{uri}: the object was changed: {found}; reads of it fail");
                    warn(shared, format!("{uri} changed"), line);
                }
            }
            Err(Fault::Refused(found)) => {
                shared.enter(RemoteState::Refused);
                warn(shared, uri.clone(), format!("{uri}: read: {found}"));
            }
            Err(Fault::Again(why)) => {
                let now = Instant::now();
                let pause = (pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
                // What is fetched ahead without a reader is not tried again.
                let is_wanted = self.planner.readers(number).next().is_some();
                let end = self.end_of(&fetch);
                self.planner.fail_wanted(|read| read.end <= now);
                if is_wanted && now + pause < end && !shared.is_changed.load(Ordering::Acquire) {
                    let line = format!("{uri}: read: {why}; trying again");
                    warn(shared, format!("{uri} again"), line);
                    shared.enter(RemoteState::Reconnecting);
                    add(&shared.counts.retries, 1);
                    return Some(Attempt { fetch, pause, end });
                }
                if is_wanted {
                    shared.enter(RemoteState::Unreachable);
                    let time = shared.object.address.reconnect.as_secs();
                    warn(shared, uri.clone(), format!("{uri}: read: failed for {time} s: {why}"));
                }
            }
        }
        self.planner.ended(number, None);
        None
    }

    /// Submits the reads that have come. True if there were any, or if it is the end.
    fn take_inbox(&mut self, context: &mut std::task::Context<'_>) -> bool {
        let mut any = false;
        // Before the first is taken: a panic in between would lose it (W1).
        let end = Instant::now() + self.shared.object.address.reconnect;
        while !self.is_closed
            && let Poll::Ready(read) = self.inbox.poll_recv(context)
        {
            any = true;
            match read {
                Some(read) => {
                    let range = read.range.clone();
                    self.planner.submit(Ticket { read, end }, range);
                }
                None => self.is_closed = true,
            }
        }
        any
    }
}

/// One try of a range.
struct Attempt {
    fetch: Fetch,
    /// Before it.
    pause: Duration,
    /// Its answer should begin before.
    end: Instant,
}

async fn run(shared: Arc<Shared>, attempt: Attempt) -> (Attempt, Result<Bytes, Fault>) {
    if !attempt.pause.is_zero() {
        sleep(attempt.pause).await;
    }
    let found = shared.object.read(&attempt.fetch.range, attempt.end).await;
    (attempt, found)
}

/// Has a reactor log a line: it has the limit of repeated ones.
fn warn(shared: &Shared, key: String, line: String) {
    if let Some(post) = shared.post.get() {
        let job = move |env: &Env| env.warn(&key, || line);
        post.post(ReactorId(0), Mail::Call(Box::new(job)));
    }
}

/// Has the reactor of a read store its data and end it. A changed object's data is none.
fn tell(shared: &Arc<Shared>, Answer { ticket, data }: Answer<Ticket>) {
    let Read { id, range, at } = ticket.read;
    let Some(post) = shared.post.get() else { return };
    let data = data.filter(|_| !shared.is_changed.load(Ordering::Acquire));
    let count = SectorCount::of_bytes(range.end - range.start);
    let behind = range.end.saturating_sub(shared.object.bytes).min(range.end - range.start);
    let tail = (range.end - range.start - behind) as usize;
    let shared = shared.clone();
    let job = move |env: &Env| {
        shared.count(env, count, at, data.is_some());
        let Some(pieces) = data else { return env.complete(id, Err(IoError::IO)) };
        if let Some(segs) = env.queued_segs(id) {
            for (at, piece) in pieces {
                segs.copy_in(at, &piece);
            }
            segs.zero(tail, behind as usize);
        }
        env.complete(id, Ok(()));
    };
    post.post(id.reactor, Mail::Call(Box::new(job)));
}
