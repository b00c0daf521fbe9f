//! [`RbdDisk`]: an image of a Ceph cluster as a disk.
//!
//! - `uri`: what the argument of a table line means. `library`: librbd, loaded at run time.
//! - `image`: a connection and an open image. `lock`: its exclusive lock, and the fence.
//! - `session`: a word of each open, in the lock, which shows later that the lock was kept.
//! - `class`: calls of the OSD's classes.
//! - `clock`: the clock of the guard. `marker`: the dirty marker, in the image's metadata.
//! - `size`: how large an image is now. `extents`: which parts of it are data.
//! - `snapshots`: which ones were taken while a marker stood.
//! - `held`: what of an image outlives its last user.
//! - `keeper`: asks for the lock again and again.
//! - `operation`: the way of a request through librbd, and its memory.
//! - `flight`: whether the cluster is silent. `within`: calls that may not end.
//!
//! # What is durable
//! The cache of librbd is off: a write that has completed is on every OSD of its placement group. A
//! user may turn the cache on for an image, so the disk counts as volatile and a flush is sent. A
//! write with FUA is a write and a flush. Flushes pass a [`FlushGate`].
//!
//! # Fences
//! F1. The cluster tells a fenced client so: by errno 108, or by refusing a write since the lock is
//!     gone. From then on the disk fails every request with an error of its own
//!     ([`IoError::FENCED`]) and sends nothing; the failure count has risen before the first of
//!     them fails. Nothing but opening the image again ends that.
//! F2. A client that was stopped may wake when another one has the image. The cluster refuses what
//!     it sends as long as its entry in the blocklist lasts. For entries that expire there is the
//!     guard: if no request that was started within the patience of the `Target` has succeeded, the
//!     disk asks the cluster whether it has had its lock ever since before it sends anything (N2 of
//!     `session`). The keeper asks each quarter of the patience. librbd takes a lock that it has
//!     lost again by itself once it may, so what librbd says of the lock is no answer.
//! F3. The volume over a fenced disk has no crash log: an image has no lasting name
//!     ([`cairn_block::Identity::lasting_name`]). So nothing of this process is replayed over what
//!     the new owner wrote.
//!
//! What the guard cannot see is a stop between its look at the time and the system call that sends
//! the request, in a thread of librbd; such a request is sent when the host wakes. Nor does it see
//! a pause of the virtual machine that it runs in, whose clock may stand still with it. That is why
//! entries last 50 years unless the user says otherwise.

mod class;
mod clock;
mod extents;
mod flight;
mod held;
mod image;
mod keeper;
mod library;
mod lock;
mod marker;
mod metadata;
mod operation;
mod session;
mod size;
mod snapshots;
mod unfence;
mod uri;
mod within;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use cairn_block::sync::Mutex;
use cairn_block::{
    ConfigError, Disk, Env, Extent, FailureCount, Flags, Flow, FlushGate, IoError, IoResult,
    Limits, LocalFuture, MarkerPlace, Nature, Op, Request, SECTOR_BYTES, Sector, SectorCount,
    SectorRange, Segs, Shape, Time, until,
};
use event_listener::Event;

use self::flight::Flight;
use self::held::Held;
use self::image::{Image, text_of};
use self::keeper::Keeper;
use self::operation::{Owner, PIECES_MAX, Queues, error_of, start};
use self::session::Session;
use self::within::{Care, beside, within};

use crate::answer::Answer;
use crate::remote::{RemoteCounts, RemoteDisk, RemoteFigures, RemoteKind, RemoteState};

pub use self::held::{finish_closing, finish_closing_others};
pub use self::lock::TakeOver;
pub use self::marker::{name_in_notes, unmark};
pub use self::unfence::unfence;
pub(crate) use self::uri::{Target, is_uri};

/// The most bytes of one discard or write of zeros that is sent; longer ones are sent in pieces.
const PIECE_BYTES: u64 = 64 << 20;
/// Objects have 4 MiB unless their maker chose otherwise.
const OBJECT_BYTES: u32 = 4 << 20;

/// Why a disk is fenced: its lock was another client's, or may have been.
const LOST: &str = "its lock was lost";
const REFUSED: &str = "the cluster refuses this client";

/// An image of a cluster.
pub struct RbdDisk(Arc<Shared>, #[expect(dead_code, reason = "it is for its drop")] Option<Keeper>);

/// What the reactors and librbd share of an image.
struct Shared {
    target: Target,
    /// Taken out when the last user is gone.
    image: Option<Image>,
    /// There once the disk is gone (H1 of `held`).
    closing: Mutex<Option<Held>>,
    read_only: bool,
    /// That of the lock that this open has taken; none if it is for reading only.
    session: Option<Session>,
    sectors: AtomicU64,
    /// A call for the size has not ended.
    is_measuring: AtomicBool,
    gate: FlushGate,
    queues: OnceLock<Queues>,
    counts: RemoteCounts,
    flight: Flight,
    /// F1. It only rises.
    is_fenced: AtomicBool,
    /// When a request was started that has since succeeded, or the lock was looked at: the newest,
    /// on [`clock`].
    good: AtomicU64,
    is_checking: AtomicBool,
    /// A check has ended.
    checked: Event,
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(image) = self.image.take() {
            image::close(image);
        }
    }
}

impl Drop for RbdDisk {
    fn drop(&mut self) {
        *self.0.closing.lock() = Some(Held::closing(&self.0.target.place()));
    }
}

impl RbdDisk {
    /// Opens an image, and takes its lock unless it is for reading only. Blocks the thread.
    ///
    /// # Errors
    /// It is no URI of RBD, there is no such image, its lock is held, librbd is missing, or the
    /// cluster did not answer within the time of the URI.
    pub(crate) fn open(
        uri: &str,
        read_only: bool,
        take_overs: &[TakeOver],
        failures: Arc<FailureCount>,
    ) -> Result<RbdDisk, ConfigError> {
        let (target, take_overs) = (Target::parse(uri)?, take_overs.to_vec());
        let open = target.clone();
        within(&target, move |care| {
            held::wait_for_lock(&open, || care.is_left());
            care.check(&open)?;
            RbdDisk::open_when_answered(open, read_only, &take_overs, (failures, care))
        })
    }

    /// The same, for as long as the cluster does not answer.
    fn open_when_answered(
        target: Target,
        read_only: bool,
        take_overs: &[TakeOver],
        (failures, care): (Arc<FailureCount>, &Care),
    ) -> Result<RbdDisk, ConfigError> {
        let image = Image::open(&target, read_only)?;
        // What is known of the lock is as old as this.
        let started = clock::now();
        let acquire = || {
            lock::acquire(&image, &target, take_overs, care)?;
            Session::begin(&image, &target, care)
        };
        let session = match (!read_only).then(acquire).transpose() {
            Ok(session) => session,
            Err(refused) => {
                image::close(image);
                return Err(refused);
            }
        };
        let sectors = size::of(&target, &image)?;
        marker::warn_of_snapshot(&target, &image);
        let shared = Arc::new(Shared {
            target,
            image: Some(image),
            closing: Mutex::new(None),
            read_only,
            session,
            sectors: AtomicU64::new(sectors),
            is_measuring: AtomicBool::new(false),
            gate: FlushGate::new(failures),
            queues: OnceLock::new(),
            counts: RemoteCounts::default(),
            flight: Flight::default(),
            is_fenced: AtomicBool::new(false),
            good: AtomicU64::new(started.0),
            is_checking: AtomicBool::new(false),
            checked: Event::new(),
        });
        let keeper = (!read_only).then(|| Keeper::start(&shared)).flatten();
        Ok(RbdDisk(shared, keeper))
    }
}

impl Shared {
    fn image(&self) -> &Image {
        self.image.as_ref().expect("only drop takes it out")
    }

    fn queues(&self, env: &Env) -> &Queues {
        self.queues.get_or_init(|| {
            self.counts.prepare(env.post().reactors());
            Queues::new(env.post())
        })
    }

    fn queues_made(&self) -> Option<&Queues> {
        self.queues.get()
    }

    /// A request that came at a time of this reactor has ended.
    fn count(&self, env: &Env, what: (Op, SectorCount), at: Time, result: IoResult) {
        self.counts.count(env.reactor(), what, (at, env.now()), result.is_err());
    }

    /// True if requests may be sent at once: see F2.
    fn is_good(&self) -> bool {
        let good = Time(self.good.load(Ordering::Acquire));
        self.read_only || clock::now().since(good) <= self.target.patience
    }

    /// Asks the cluster whether this client has had the lock ever since the open (N2 of `session`),
    /// and whether it keeps others from writing. Blocks the thread.
    fn has_its_lock(&self) -> Result<bool, i32> {
        if !self.image().has_exclusive_lock()? {
            return Ok(false);
        }
        let cookie = self.session.as_ref().map(|session| session.cookie(self.image()));
        Ok(cookie.transpose()?.flatten().is_some())
    }

    fn is_fenced(&self) -> bool {
        self.is_fenced.load(Ordering::Acquire)
    }

    /// What an operation that was started then has shown (F1).
    fn judge(
        self: &Arc<Self>,
        env: &Env,
        (op, sector): (Op, Sector),
        started: Time,
        result: Result<(), i32>,
    ) -> IoResult {
        match result {
            Ok(()) => {
                self.good.fetch_max(started.0, Ordering::AcqRel);
                Ok(())
            }
            Err(libc::ESHUTDOWN) => Err(self.fence(REFUSED)),
            Err(libc::EROFS) if !self.read_only => Err(self.fence(LOST)),
            Err(errno) => {
                let key = format!("{}: {} failed", self.target.uri, op.name());
                env.warn(&key, || format!("{key}: sector {}: {}", sector.0, text_of(errno)));
                Err(error_of(errno))
            }
        }
    }

    /// F1.
    #[cold]
    fn fence(self: &Arc<Self>, why: &str) -> IoError {
        if self.is_fenced() {
            return IoError::FENCED;
        }
        // First the count: once the disk is fenced, other reactors fail requests at once.
        self.gate.failures().raise();
        if self.is_fenced.swap(true, Ordering::AcqRel) {
            return IoError::FENCED;
        }
        self.counts.enter(RemoteState::Fenced);
        tracing::error!("{}: fenced: {why}; every request fails from now on", self.target.uri);
        let target = self.target.clone();
        // A new connection is another client, which the cluster answers.
        drop(beside(move || log_owner(&target)));
        IoError::FENCED
    }

    /// Waits until requests may be sent: looks at the lock if nothing has shown for too long that
    /// this client has it.
    async fn ready(self: &Arc<Self>, env: &Env) -> IoResult {
        loop {
            if self.is_fenced() {
                return Err(IoError::FENCED);
            }
            if self.is_good() {
                return Ok(());
            }
            if self.is_checking.swap(true, Ordering::AcqRel) {
                until(&self.checked, || !self.is_checking.load(Ordering::Acquire)).await;
                continue;
            }
            let ended = CheckEnd(self);
            let (started, shared) = (clock::now(), self.clone());
            self.flight.begin(started);
            let found = beside(move || shared.has_its_lock()).wait().await;
            self.flight.end(1);
            let result = match found.unwrap_or(Err(-libc::EAGAIN)) {
                Ok(true) => self.judge(env, (Op::Read, Sector(0)), started, Ok(())),
                Ok(false) => Err(self.fence(LOST)),
                Err(errno) => self.judge(env, (Op::Read, Sector(0)), started, Err(-errno)),
            };
            drop(ended);
            result?;
            // The look itself may have been stopped for longer than the patience.
        }
    }

    /// Sends an operation and waits for its result.
    async fn ask(self: &Arc<Self>, env: &Env, what: (Op, SectorRange), segs: Segs) -> IoResult {
        self.ready(env).await?;
        let answer = Arc::<Answer<()>>::default();
        start(self, env, what, segs, Owner::Task(answer.clone()));
        answer.wait().await
    }

    async fn flush(self: &Arc<Self>, env: &Env) -> IoResult {
        let what = (Op::Flush, SectorRange::default());
        self.gate.flush(|| self.ask(env, what, Segs::default())).await
    }

    /// Sends what may be too long for one operation.
    async fn send_in_pieces(
        self: &Arc<Self>,
        env: &Env,
        (op, range): (Op, SectorRange),
        segs: &Segs,
    ) -> IoResult {
        let (end, mut at) = (range.end(), range.start);
        while at < end {
            let done = (at - range.start).to_bytes() as usize;
            let count = piece_of(segs, done).min(end - at);
            let bytes = if op.has_data() { count.to_bytes() as usize } else { 0 };
            let data = if bytes > 0 { segs.slice(done, bytes) } else { Segs::default() };
            self.ask(env, (op, SectorRange::new(at, count)), data).await?;
            at += count;
        }
        Ok(())
    }

    /// Starts the task of a request that takes several steps, or has to wait.
    fn start_task(self: &Arc<Self>, env: &Env, request: &Request) {
        let (id, op, range, flags) = (request.id(), request.op, request.range, request.flags);
        let bytes = if op.has_data() { range.to_bytes() as usize } else { 0 };
        let segs = request.segs.slice(0, bytes);
        let (shared, env) = (self.clone(), env.clone());
        env.clone().spawn(async move {
            let result = shared.perform(&env, (op, range, flags), &segs).await;
            env.complete(id, result);
        });
    }

    async fn perform(
        self: &Arc<Self>,
        env: &Env,
        (op, range, flags): (Op, SectorRange, Flags),
        segs: &Segs,
    ) -> IoResult {
        let failures = self.gate.failures().count();
        if op == Op::Flush {
            return self.flush(env).await;
        }
        self.send_in_pieces(env, (op, range), segs).await?;
        if !flags.contains(Flags::FUA) {
            return Ok(());
        }
        self.flush(env).await?;
        // A flush may have failed between the write and its flush.
        let lost = self.gate.failures().count() != failures;
        if lost { Err(IoError::IO) } else { Ok(()) }
    }
}

/// Ends a check, also if its task is dropped.
struct CheckEnd<'a>(&'a Shared);

impl Drop for CheckEnd<'_> {
    fn drop(&mut self) {
        self.0.is_checking.store(false, Ordering::Release);
        self.0.checked.notify(usize::MAX);
    }
}

/// How many sectors from byte `done` on one operation takes: what [`PIECES_MAX`] pieces of the data
/// have, less what is no whole sector.
fn piece_of(segs: &Segs, done: usize) -> SectorCount {
    if segs.bytes() == 0 {
        return SectorCount::of_bytes(PIECE_BYTES);
    }
    let rest = segs.iovecs_of(done, segs.bytes() - done).take(PIECES_MAX);
    let bytes = rest.map(|(_, len)| len as u64).sum::<u64>();
    SectorCount::of_bytes((bytes - bytes % SECTOR_BYTES).max(SECTOR_BYTES))
}

/// Logs which client has the lock of an image. Blocks the thread.
fn log_owner(target: &Target) {
    match lock::owner_now(target) {
        Ok(Some(owner)) => {
            tracing::error!("{}: fenced: {} has the lock now", target.uri, owner.address);
        }
        Ok(None) => tracing::error!("{}: fenced: no client has the lock now", target.uri),
        Err(error) => tracing::debug!("{error}"),
    }
}

impl RemoteDisk for RbdDisk {
    fn kind(&self) -> RemoteKind {
        RemoteKind::Rbd
    }

    /// librbd tells nothing of its connections, which it makes again by itself. The URI has no
    /// secret: the keyring has it.
    fn figures(&self) -> RemoteFigures {
        let Shared { target, counts, flight, .. } = &*self.0;
        let is_silent = flight.is_silent(target.timeout);
        RemoteFigures {
            uri: target.uri.clone(),
            shown: target.uri.clone(),
            kind: RemoteKind::Rbd,
            state: match counts.state() {
                RemoteState::Connected if is_silent => RemoteState::Reconnecting,
                state => state,
            },
            is_silent,
            size: self.sectors(),
            connections: None,
            reconnects: None,
            retries: None,
            replay: None,
            fetched_bytes: None,
            losses: self.failures(),
            traffic: counts.traffic(),
        }
    }
}

impl Disk for RbdDisk {
    fn name(&self) -> String {
        self.0.target.uri.clone()
    }

    fn sectors(&self) -> SectorCount {
        SectorCount(self.0.sectors.load(Ordering::Relaxed))
    }

    fn submit(&self, env: &Env, request: &mut Request) -> Flow {
        let shared = &self.0;
        if shared.is_fenced() {
            let (what, failed) = ((request.op, request.range.count), Err(IoError::FENCED));
            shared.count(env, what, env.now(), failed);
            return Flow::Failed(IoError::FENCED);
        }
        if request.flags.contains(Flags::FAST_ZERO) && request.op == Op::WriteZeroes {
            return Flow::Failed(IoError::UNSUPPORTED);
        }
        let is_one = match request.op {
            Op::Read | Op::Write => request.iovecs().take(PIECES_MAX + 1).count() <= PIECES_MAX,
            Op::Discard | Op::WriteZeroes => request.range.to_bytes() <= PIECE_BYTES,
            Op::Flush => false,
        };
        if !is_one || request.is_fua() || !shared.is_good() {
            shared.start_task(env, request);
            return Flow::Queued;
        }
        let bytes = if request.op.has_data() { request.range.to_bytes() as usize } else { 0 };
        let segs = request.segs.slice(0, bytes);
        let what = (request.op, request.range);
        start(shared, env, what, segs, Owner::Request(request.id()));
        Flow::Queued
    }

    fn limits(&self) -> Limits {
        Limits {
            io_opt: OBJECT_BYTES,
            fast_zero: false,
            read_only: self.0.read_only,
            ..Limits::default()
        }
    }

    fn nature(&self) -> Nature {
        Nature { rotational: None, volatile: true, shape: Shape::Unknown }
    }

    fn marker_place(&self) -> MarkerPlace<'_> {
        match self.0.target.snapshot {
            // The open warns of it.
            Some(_) => MarkerPlace::Needless,
            None => MarkerPlace::Store(self),
        }
    }

    fn extents<'a>(
        &'a self,
        env: &'a Env,
        range: SectorRange,
    ) -> LocalFuture<'a, Result<Vec<Extent>, IoError>> {
        Box::pin(self.0.extents(env, range))
    }

    /// A reactor calls it: see [`size`]. What is not known does not refuse a table.
    fn refresh(&self) -> Result<(), ConfigError> {
        self.0.refresh();
        Ok(())
    }

    fn failures(&self) -> u64 {
        self.0.gate.failures().count()
    }

    fn failures_told(&self) -> u64 {
        self.0.gate.failures().told()
    }

    fn acknowledge_failures(&self, upto: u64) {
        self.0.gate.failures().acknowledge(upto);
    }
}
