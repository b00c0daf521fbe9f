//! `snapshot-merge`: the origin, into which a snapshot is merged.
//!
//! One step takes a run from the end of the list of records:
//! 1. every other snapshot of the origin keeps the range, and its readers have left it;
//! 2. writes to the run wait, and those under way to the COW device have ended;
//! 3. the run is copied to the origin, and the origin flushed. If the origin's failure count is not
//!    what it was before the first write, this step is repeated;
//! 4. its records are cleared with FUA;
//! 5. the exceptions are dropped, and the writes continue to the origin.
//!
//! *A crash* before 4 leaves the records: the run is merged again, with the same content, as no
//! client wrote it in between. After 4, the origin has it durably. A torn clearing leaves a list
//! that ends earlier or later within the run; opening clears the records after its end.
//!
//! *A clearing that fails* may have been done in part. Then a write to the run, which still goes to
//! the COW device, would not be found after a crash. So the records are written back before the
//! writes continue. If that fails too, writes to the run fail until it succeeds.
//!
//! *Reports of a failed flush.* A failed flush of the origin may have dropped client writes there,
//! so every client gets an error, whichever user sent the flush. One of the COW device concerns
//! client writes in place (C2 of `losses`). The loss of a run that was copied again is not
//! reported: its exceptions are still there.
//!
//! M1. Nothing is allocated in a merging store.
//! M2. A record is cleared only when the origin's content is durable.

use std::ops::Range;
use std::pin::pin;
use std::sync::{Arc, Weak};

use cairn_block::sync::Mutex;
use cairn_block::sync::atomic::{AtomicBool, Ordering};
use cairn_block::{
    Attribute, Claim, ConfigError, CopyPiece, Ctor, Dirty, Disk, EndIo, Env, Extent, ExtentKind,
    Flags, IoError, IoResult, Limits, LocalFuture, Op, Report, Request, SECTOR_BYTES, Sector,
    SectorCount, SectorRange, SuspendMode, TURN_BYTES, Target, Turn, Verdict, mutants, until,
};
use cairn_format::snapshot::{Layout, Record};
use event_listener::Event;
use futures_util::future::{Either, select};

use super::attachment::Attachment;
use super::canary::{self, Bug};
use super::config::MERGE_SPEC;
use super::core::{Condition, Core, wake};
use super::map::ChunkSpan;
use super::origin::OriginSide;
use super::store::TailPiece;
use super::table::{Run, stripe_of};
use crate::args::Device;
use crate::epochs::Epoch;
use crate::kind::TargetKind;

/// Longest run of one step, unless a chunk is longer: a turn of the limit of background copies.
const STEP_SECTORS: u64 = TURN_BYTES / SECTOR_BYTES;
/// How often a run is copied whose durability is in doubt.
const COPY_ATTEMPTS: u32 = 3;
/// Memory of a copy.
const PIECE_SECTORS: u64 = 2048;

/// The kind of target `snapshot-merge`.
pub const KIND: TargetKind =
    TargetKind { spec: &MERGE_SPEC, construct: |env, ctor| Box::pin(construct(env, ctor)) };

async fn construct(env: &Env, ctor: Ctor<'_>) -> Result<Arc<dyn Target>, ConfigError> {
    let attachment = Attachment::take(&MERGE_SPEC, true, env, &ctor).await?;
    let (device, kin) = (attachment.config.origin.clone(), attachment.kin.clone());
    let side = OriginSide::new(env, device, kin, &attachment.tasks);
    let merge = Arc::new_cyclic(|me| Merge {
        me: me.clone(),
        attachment,
        side,
        stopping: AtomicBool::new(false),
        stopped: Event::new(),
        running: AtomicBool::new(false),
        failed: AtomicBool::new(false),
        stuck: Mutex::default(),
    });
    Ok(merge)
}

/// The target.
pub struct Merge {
    me: Weak<Merge>,
    attachment: Attachment,
    side: OriginSide,
    stopping: AtomicBool,
    /// It is about to stop.
    stopped: Event,
    running: AtomicBool,
    failed: AtomicBool,
    /// A step whose records may be cleared, while its exceptions still exist.
    stuck: Mutex<Option<Step>>,
}

/// A run of records at the end of the list.
#[derive(Clone)]
struct Step {
    piece: TailPiece,
    count: u64,
    /// Its lowest chunks.
    old: u64,
    new: u64,
}

impl Step {
    /// The longest run at the end of a piece whose chunks, on both sides, count down by one.
    fn of(piece: TailPiece, most: u64) -> Option<Step> {
        let last = *piece.records.last()?;
        let follows = |pair: &(&Record, &Record)| {
            pair.0.old.0 == pair.1.old.0 + 1 && pair.0.new.0 == pair.1.new.0 + 1
        };
        let backwards = piece.records.iter().rev();
        let pairs = backwards.clone().zip(backwards.skip(1));
        let count = (pairs.take_while(follows).count() as u64 + 1).min(most);
        let (old, new) = (last.old.0 + 1 - count, last.new.0 + 1 - count);
        Some(Step { piece, count, old, new })
    }

    fn end(&self) -> u64 {
        self.old + self.count
    }

    fn chunks(&self) -> Range<u64> {
        self.old..self.end()
    }
}

impl Merge {
    /// The parts of a range of the origin that are still on the COW device: where this volume and
    /// its origin may differ. In order; widened to whole chunks, then cut to the range. None are
    /// while nothing is served. Reads nothing from any device.
    pub fn unmerged(&self, range: SectorRange) -> Vec<SectorRange> {
        self.attachment.core_if_live().map_or_else(Vec::new, |core| core.changed(range))
    }

    fn core(&self) -> &Arc<Core> {
        self.attachment.core()
    }

    fn to_cow(&self, span: &ChunkSpan, chunk: u64) -> Verdict<'_> {
        let sector = self.core().cow_sector(chunk) + SectorCount(span.offset);
        Verdict::Remapped { disk: self.core().cow().as_ref(), sector }
    }

    fn map_read<'a>(&'a self, request: &mut Request, span: &ChunkSpan) -> Verdict<'a> {
        let Run { cow, count } = self.core().exceptions.find(span.chunk, span.chunks);
        request.accept(span.head(count));
        match cow {
            Some(chunk) => self.to_cow(span, chunk),
            None => self.side.pass(span.sector),
        }
    }

    fn map_write<'a>(&'a self, env: &Env, request: &mut Request, span: &ChunkSpan) -> Verdict<'a> {
        let core = self.core();
        let epoch = core.writers.announce(env.reactor(), stripe_of(span.chunk));
        let run = core.exceptions.plan_merging_write(span.chunk, span.chunks, request.id());
        let Some(Run { cow, count }) = run else {
            core.writers.leave(env.reactor(), epoch);
            request.accept(span.head(1));
            return Verdict::Queued;
        };
        request.accept(span.head(count));
        match cow {
            Some(_) if self.is_stuck(span.chunk..span.chunk + count) => {
                core.writers.leave(env.reactor(), epoch);
                Verdict::Failed(IoError::IO)
            }
            Some(chunk) => {
                core.losses.writes_in_place();
                request.watch(epoch.to_word());
                self.to_cow(span, chunk)
            }
            None => {
                core.writers.leave(env.reactor(), epoch);
                self.side.map_write(env, request, span.sector)
            }
        }
    }

    fn map_flush(&self, request: &mut Request) -> Verdict<'_> {
        if request.flush_copy() == 0 {
            return self.side.pass(Sector(0));
        }
        if !self.core().is_readable() {
            return Verdict::Completed;
        }
        request.watch(0);
        Verdict::Remapped { disk: self.core().cow().as_ref(), sector: Sector(0) }
    }

    /// Starts merging unless it runs, or there is nothing to merge.
    fn start(&self, env: &Env) {
        let idle = self.attachment.read_only || !self.core().is_readable();
        if idle || self.running.swap(true, Ordering::AcqRel) {
            return;
        }
        let me = self.me.upgrade().expect("a target that is called is alive");
        self.attachment.tasks.spawn(env, async move |env| me.run(env).await);
    }

    async fn run(&self, env: &Env) {
        let _in_use = self.core().enter();
        while let Some(turn) = self.next_turn(env).await {
            match self.step(env, turn).await {
                Ok(true) => (),
                Ok(false) => {
                    self.attachment.announce();
                    break;
                }
                // A suspend, or the end of the server, cut the step short.
                Err(_) if self.stopping.load(Ordering::Acquire) || env.is_ending() => break,
                Err(why) => {
                    let (volume, cow) =
                        (self.attachment.volume(), &self.attachment.config.cow.argument);
                    tracing::error!("{volume}: {cow}: merging stopped: {why}");
                    self.failed.store(true, Ordering::Release);
                    self.attachment.announce();
                    break;
                }
            }
        }
        self.running.store(false, Ordering::Release);
    }

    /// Waits until the limit of background copies allows a step; none if there is to be none. A
    /// step holds what clients may wait for, so the wait comes before it.
    async fn next_turn<'e>(&self, env: &'e Env) -> Option<Turn<'e>> {
        let stopped = until(&self.stopped, || self.stopping.load(Ordering::Acquire));
        let turn = env.background().turn(env);
        match select(pin!(turn), pin!(stopped)).await {
            Either::Left((turn, _)) if !self.stopping.load(Ordering::Acquire) => Some(turn),
            _ => None,
        }
    }

    /// True if some of these chunks can't be written. Called after their exceptions were found: a
    /// request that finds them after a failed step sees the state that the step left.
    fn is_stuck(&self, chunks: Range<u64>) -> bool {
        let stuck = self.stuck.lock();
        stuck.as_ref().is_some_and(|step| step.old < chunks.end && chunks.start < step.end())
    }

    /// Writes records back whose clearing failed.
    async fn restore(&self, env: &Env, layout: &Layout, step: &Step) -> Result<(), String> {
        let restored = self.core().store.restore_tail(env, layout, &step.piece, step.count).await;
        *self.stuck.lock() = restored.err().map(|_| step.clone());
        restored.map_err(|error| format!("records: could not be written back: {error}"))
    }

    /// Merges a run; false if there is none left.
    async fn step(&self, env: &Env, turn: Turn<'_>) -> Result<bool, String> {
        let core = self.core();
        let layout = core.store.layout().ok_or("the COW device is too small")?;
        let stuck = self.stuck.lock().clone();
        if let Some(step) = stuck {
            self.restore(env, &layout, &step).await?;
        }
        let told = |error: IoError| format!("records: {error}");
        let Some(piece) = core.store.tail(env, &layout).await.map_err(told)? else {
            return Ok(false);
        };
        let most = (STEP_SECTORS / core.chunk_sectors()).max(1);
        let step = Step::of(piece, most).ok_or("records: found none where some were")?;
        for (at, chunk) in step.chunks().enumerate() {
            if core.exceptions.find(chunk, 1).cow != Some(step.new + at as u64) {
                return Err(format!("record of chunk {chunk}: changed since it was read first"));
            }
        }
        let range = core.origin_range(step.old, step.count);
        if !range.is_empty() {
            let kept = self.side.keep(env, range).await;
            kept.map_err(|error| format!("{}: {error}", self.side.device.argument))?;
        }
        turn.spend(range.to_bytes());
        self.hold(&step).await;
        let result = self.bring_home(env, &step, range, &layout).await;
        match result {
            Ok(()) => {
                core.store.shorten(step.count);
                wake(env, core.exceptions.forget(step.chunks()));
            }
            Err(_) => wake(env, core.exceptions.settle(step.chunks())),
        }
        result.map(|()| true)
    }

    /// Step 2.
    async fn hold(&self, step: &Step) {
        for chunk in step.chunks() {
            self.core().exceptions.hold(chunk);
        }
        let mut last = None;
        for chunk in step.chunks() {
            let stripe = stripe_of(chunk);
            let waits = !mutants::skips("snapshot-merge: wait for writers");
            if last.replace(stripe) != Some(stripe) && waits {
                self.core().writers.quiesce(stripe).await;
            }
        }
    }

    /// Steps 3 and 4.
    async fn bring_home(
        &self,
        env: &Env,
        step: &Step,
        range: SectorRange,
        layout: &Layout,
    ) -> Result<(), String> {
        let core = self.core();
        let from = core.cow_sector(step.new);
        let clear_first = canary::planted(Bug::ClearBeforeOriginFlush);
        match clear_first {
            true => self.copy(env, from, range).await?,
            false => self.copy_durably(env, from, range).await?,
        }
        let cleared = core.store.clear_tail(env, layout, &step.piece, step.count).await;
        if let Err(error) = cleared {
            let why = format!("records: could not be cleared: {error}");
            let restored = self.restore(env, layout, step).await;
            return Err(restored.err().map_or(why.clone(), |also| format!("{why}; {also}")));
        }
        if clear_first { self.copy_durably(env, from, range).await } else { Ok(()) }
    }

    /// Copies a run to the origin until it is durable there (M2). A flush that failed since the
    /// first write, by any user, may have dropped the copy; the COW device still has the data.
    async fn copy_durably(
        &self,
        env: &Env,
        from: Sector,
        range: SectorRange,
    ) -> Result<(), String> {
        let Device { argument: name, disk: origin } = &self.side.device;
        let mut attempt = 1;
        loop {
            let failures = origin.failures();
            self.copy(env, from, range).await?;
            let flush = async { env.make_durable(origin).await };
            let flushed = mutants::step("snapshot-merge: flush of the origin", (), flush).await;
            let compared = "snapshot-merge: failure count of the origin";
            if flushed.is_ok() && mutants::same(compared, failures, origin.failures()) {
                return Ok(());
            }
            if attempt == COPY_ATTEMPTS {
                let error = flushed.err().unwrap_or(IoError::IO);
                return Err(format!("{name}: could not be flushed: {error}"));
            }
            let volume = self.attachment.volume();
            let line = format!("{volume}: {name}: a flush failed, a run is copied again");
            env.warn(&line, || line.clone());
            attempt += 1;
        }
    }

    async fn copy(&self, env: &Env, from: Sector, range: SectorRange) -> Result<(), String> {
        let block = self.core().cow().limits().logical_sectors();
        let (mut from, mut rest) = (from, range);
        while !rest.is_empty() {
            let take = SectorCount(rest.count.0.min(PIECE_SECTORS));
            // The origin may end inside a block of the COW device.
            let wide = SectorRange::new(from, take).widen(block);
            let grant = self.attachment.kin.budget.grant(wide.to_bytes()).await;
            let piece = CopyPiece { disk: self.core().cow().clone(), range: wide };
            let read = grant.read(env, &[piece]).await;
            let data = read.map_err(|error| format!("could not be read: {error}"))?;
            let Device { argument: name, disk: origin } = &self.side.device;
            let to = SectorRange::new(rest.start, take);
            let written = data.write(env, origin, to, Flags::empty()).await;
            written.map_err(|error| format!("{name}: could not be written: {error}"))?;
            from += take;
            rest = SectorRange::new(rest.start + take, rest.count - take);
        }
        Ok(())
    }
}

impl Target for Merge {
    fn map<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        if request.op == Op::Flush {
            return self.map_flush(request);
        }
        let span = ChunkSpan::of(self.core(), self.attachment.config.start, request.range);
        match request.op {
            Op::Read => self.map_read(request, &span),
            // A discard leaves contents undefined: nothing need change, as in the kernel.
            Op::Discard if self.attachment.config.discard_zeroes_cow => Verdict::Completed,
            Op::Discard => Verdict::Failed(IoError::UNSUPPORTED),
            _ => self.map_write(env, request, &span),
        }
    }

    fn end_io(&self, env: &Env, request: &mut Request, result: IoResult) -> EndIo {
        if request.op == Op::Flush {
            self.core().look_at_failures();
            return EndIo::Done(result);
        }
        self.core().writers.leave(env.reactor(), Epoch::of_word(request.word()));
        EndIo::Done(result)
    }

    fn flush_copies(&self) -> u16 {
        2
    }

    fn lowers(&self) -> Vec<Arc<dyn Disk>> {
        vec![self.attachment.config.origin.disk.clone(), self.attachment.config.cow.disk.clone()]
    }

    fn claims(&self) -> Vec<Claim> {
        self.attachment.claims()
    }

    fn limits(&self, stacked: Limits) -> Limits {
        Limits {
            discard: self.attachment.config.discard_zeroes_cow,
            fast_zero: false,
            read_only: self.attachment.read_only || stacked.read_only,
            ..stacked
        }
    }

    fn resume<'a>(&'a self, env: &'a Env) -> LocalFuture<'a, Result<(), ConfigError>> {
        Box::pin(async move {
            self.side.begin();
            let core = self.attachment.core_if_live();
            if core.is_some_and(|core| core.condition() >= Condition::Closed) {
                // What is on the device now is read.
                *self.stuck.lock() = None;
            }
            self.attachment.resume(env).await?;
            self.stopping.store(false, Ordering::Release);
            self.failed.store(false, Ordering::Release);
            self.start(env);
            Ok(())
        })
    }

    fn presuspend(&self, _env: &Env, _mode: SuspendMode) {
        self.stopping.store(true, Ordering::Release);
        self.stopped.notify(usize::MAX);
        self.side.presuspend();
    }

    /// The task that merges has seen the suspend, or never will: once all tasks have ended a new
    /// one begins.
    fn presuspend_undo<'a>(&'a self, env: &'a Env) -> LocalFuture<'a, ()> {
        Box::pin(async move {
            self.attachment.tasks.idle().await;
            self.side.begin();
            self.stopping.store(false, Ordering::Release);
            if !self.failed.load(Ordering::Acquire) {
                self.start(env);
            }
        })
    }

    fn suspend<'a>(&'a self, env: &'a Env) -> LocalFuture<'a, Result<(), ConfigError>> {
        Box::pin(self.attachment.pause(env))
    }

    // Client writes to the origin may be lost by it. For the COW device see the core.

    fn failures(&self) -> u64 {
        self.side.device.disk.failures()
    }

    fn failures_told(&self) -> u64 {
        self.side.device.disk.failures_told()
    }

    fn acknowledge_failures(&self) {
        let origin = &self.side.device.disk;
        origin.acknowledge_failures(origin.failures());
    }

    fn report(&self) -> Report {
        self.attachment.report(self.failed.load(Ordering::Acquire))
    }

    fn attributes(&self) -> Vec<Attribute> {
        self.attachment.config.attributes()
    }

    fn table(&self) -> String {
        self.attachment.config.print()
    }

    fn extents<'a>(
        &'a self,
        env: &'a Env,
        range: SectorRange,
    ) -> LocalFuture<'a, Result<Vec<Extent>, IoError>> {
        Box::pin(async move {
            let core = self.attachment.core_if_live().ok_or(IoError::IO)?;
            let span = ChunkSpan::of(core, self.attachment.config.start, range);
            let run = core.exceptions.find(span.chunk, span.chunks);
            let count = span.head(run.count);
            if run.cow.is_some() {
                return Ok(vec![Extent { count, kind: ExtentKind::Data }]);
            }
            // Nothing leaves the origin for the COW device: what it says is true when it says so.
            let range = SectorRange::new(span.sector, count);
            self.side.device.disk.extents(env, range).await
        })
    }

    fn dirty(&self) -> Option<Dirty> {
        let core =
            self.attachment.core_if_live().filter(|core| core.condition() != Condition::Invalid)?;
        let origin = self.side.device.disk.clone();
        let sectors = core.store.committed() * core.chunk_sectors();
        // The last chunk may reach beyond the origin's end.
        let sectors = SectorCount(sectors.min(origin.sectors().0));
        let device = self.attachment.config.cow.argument.clone();
        let block = SectorCount(core.chunk_sectors());
        (sectors.0 > 0).then_some(Dirty { sectors, block, origin, device, since: None })
    }

    fn parting_word(&self) -> Option<String> {
        let Dirty { sectors, device, .. } = self.dirty()?;
        Some(format!("{device}: {} KiB not merged yet", sectors.to_bytes() >> 10))
    }

    fn as_any(&self) -> Option<&dyn std::any::Any> {
        Some(self)
    }
}
